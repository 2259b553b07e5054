// The storages of one rank as tensors. State and buffers are flat tensors allocated once; views
// into them are made once. Values are handles: empty until their first write of a step, and again
// after their last use. What forward keeps for backward is the block's own affair.
#pragma once
#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstddef>
#include <mutex>
#include <vector>

#include "engine/link/link.h"
#include "engine/tensors/tensor_map.h"
#include "models/block.h"

namespace rehearse::runtime {

at::ScalarType scalar_type(program::DType type);

/// A ref of an op, resolved for one rank.
struct Operand {
  Id storage = none;
  program::Slot slot = program::Slot::source;
  program::Mode mode = program::Mode::read;
  program::DType dtype = program::DType::f32;
  bool value = false;  // Life::value
  bool whole = false;  // all of the instance
  int index = 0, age = 0, versions = 1;
  std::int64_t begin = 0, elements = 0;
  std::vector<at::Tensor> views = {};  // by version; empty for values
};

class RankMemory {
 public:
  /// `given`: by storage, memory that is there already (of one version); null: allocated here.
  RankMemory(const program::Program& program, Id role, Id rank,
             const std::vector<std::byte*>& given = {});

  Operand operand(const program::Ref& ref);
  /// The part of it that begins `skip` elements into what the ref touches.
  Operand operand(const program::Ref& ref, std::int64_t skip, std::int64_t elements);

  /// The flat tensor an operand reads at a step: version step - age. Throws ProgramError when a
  /// value has not been written.
  at::Tensor read(const Operand& operand, std::int64_t step);
  /// The flat tensor that becomes version `step`; a value is allocated when it is not there.
  at::Tensor write(const Operand& operand, std::int64_t step);
  /// Makes a tensor the value of an operand that is a whole instance; copies otherwise.
  void set(const Operand& operand, std::int64_t step, const at::Tensor& tensor);
  models::Saved& saved(const Operand& operand, std::int64_t step);
  /// An instance of a value is freed when every op that lists it has released it.
  void add_lister(const Operand& operand);
  void forget_listers();
  void release(const Operand& operand, std::int64_t step);
  /// Frees all values and counts releases anew.
  void drop_values();

  /// A version of a state storage: the one that an age-1 read at `step` sees when age is 1.
  at::Tensor state(Id storage, std::int64_t step, int age) const;

 private:
  struct Instances {
    std::vector<at::Tensor> tensors = {};  // index * versions + version
    std::vector<models::Saved> saved = {};
    std::vector<int> listers = {};                    // by index
    std::vector<std::atomic<int>> still_listed = {};  // by instance
  };
  static std::size_t slot(const Operand& operand, std::int64_t version) {
    const std::int64_t v = operand.versions;
    return operand.index * v + ((version % v) + v) % v;
  }
  std::string name_of(const Operand& operand) const;

  const program::Program& program_;
  const program::Role& role_;
  Id rank_;
  std::vector<Instances> storages_;
  std::mutex allocation_;
};

}  // namespace rehearse::runtime
