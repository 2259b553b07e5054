// The storages of one rank as tensors. State and buffers are flat tensors that are allocated once.
// Values are tensor handles: empty before their first write of a step and after their last use.
// What forward keeps for backward is a models::Saved, whose tensors belong to the block.
//
// A storage with several versions has a tensor for each: version v is tensor v mod versions.
// Weights with 2 versions:
//
//   step 6   writes version 6               tensor 0
//            reads age 1, that is version 5 tensor 1
//   step 7   writes version 7               tensor 1
//            reads age 1, that is version 6 tensor 0
#pragma once
#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstddef>
#include <functional>
#include <mutex>
#include <span>
#include <vector>

#include "engine/link/link.h"
#include "engine/tensors/tensor_map.h"
#include "models/block.h"
#include "runtime/device/device.h"

namespace rehearse::runtime {

at::ScalarType scalar_type(program::DType type);
/// Where LibTorch keeps the tensors of bodies.
at::Device torch_device(Device& device);
/// A tensor in memory of the device, filled with 0.
at::Tensor device_tensor(Device& device, at::IntArrayRef sizes, at::ScalarType type);
/// Copies `values`, a tensor of the host, to a tensor of the device of the same size and type,
/// while no stream runs anything.
void store(Device& device, const at::Tensor& target, const at::Tensor& values);

/// A ref of an op, resolved for one rank.
struct Operand {
  Id storage = none;
  program::Slot slot = program::Slot::source;
  program::Mode mode = program::Mode::read;
  program::DType dtype = program::DType::f32;
  bool value = false;  // Life::value
  bool whole = false;  // covers the whole instance
  int index = 0, age = 0, versions = 1;
  std::int64_t begin = 0, elements = 0;
  std::vector<at::Tensor> views = {};  // by version mod versions; empty for values
};

class RankMemory {
 public:
  /// `given`: by storage, existing memory of the device to use for it, of one version, by its
  /// address outside of bodies. A null entry or a missing one: allocated here.
  RankMemory(Device& device, const program::Program& program, Id role, Id rank,
             const std::vector<std::byte*>& given = {});

  Device& device() const { return device_; }

  Operand operand(const program::Ref& ref);
  /// A part of what the ref touches: `elements` elements, after the first `skip`.
  Operand operand(const program::Ref& ref, std::int64_t skip, std::int64_t elements);

  // Only bodies of ops call these. A body that computes on the host in place of the device gets
  // copies (HostCopies).

  /// The flat tensor that an operand reads at a step: version step - age. Throws ProgramError for a
  /// value that has not been written.
  at::Tensor read(const Operand& operand, std::int64_t step);
  /// The flat tensor that becomes version `step`. Allocates a value that is not allocated.
  at::Tensor write(const Operand& operand, std::int64_t step);
  /// Gives an operand the contents of `tensor`. Takes over the handle without a copy for a value
  /// that covers the whole instance; copies otherwise. Throws ProgramError when the sizes differ.
  void set(const Operand& operand, std::int64_t step, const at::Tensor& tensor);
  models::Saved& saved(const Operand& operand, std::int64_t step);
  /// Whether an operand holds what a block keeps: only `saved` and `copy_saved` reach it.
  bool is_saved(const Operand& operand) const { return !storages_[operand.storage].saved.empty(); }
  /// Copies it between the memories of device and host.
  void copy_saved(const Operand& from, const Operand& to, std::int64_t step);
  /// The version of a state storage that a read with age `age` at step `step` sees.
  at::Tensor state(Id storage, std::int64_t step, int age) const;

  /// Freeing values. Several ops, the listers, may list a value among those that die with them. Its
  /// instance is freed when all its listers have released it.
  void add_last_user(const Operand& operand);
  void forget_last_users();
  void release(const Operand& operand, std::int64_t step);
  /// Frees all values and restarts the counts of releases.
  void drop_values();

  // The host calls these while nothing runs on the device.

  /// What `state` gives to a body.
  HostBytes host(Id storage, std::int64_t step, int age) const;
  void edit(Id storage, std::int64_t step, int age,
            const std::function<void(std::span<std::byte>)>& change);
  /// Its address outside of bodies.
  std::byte* address(Id storage, std::int64_t step, int age) const;
  /// An instance of a storage in host memory, while the program does not write it.
  std::span<const std::byte> snapshot(Id storage, int index) const;

 private:
  struct Instances {
    std::vector<at::Tensor> tensors = {};                 // by instance: see `slot`
    std::vector<models::Saved> saved = {};                // the same, for what forward keeps
    std::vector<int> listers = {};                        // by index: how many ops list it
    std::vector<std::atomic<int>> pending_releases = {};  // by instance: releases still to come
  };
  /// Number of an instance: index * versions + version mod versions.
  static std::size_t slot(const Operand& operand, std::int64_t version) {
    const std::int64_t v = operand.versions;
    return operand.index * v + ((version % v) + v) % v;
  }
  std::string name_of(const Operand& operand) const;
  bool on_host(const Operand& operand) const {
    return role_.storages[operand.storage].place == program::Place::host;
  }
  /// Of a new tensor of a value, where the operand is.
  at::TensorOptions options_of(const Operand& operand, at::ScalarType type) const;
  const at::Tensor& version(Id storage, std::int64_t step, int age) const;
  /// Whether the host may read and write a storage in place while nothing runs on the device.
  bool host_reaches(Id storage) const;
  void touch(const Operand& operand, std::size_t instance, bool writes) const;
  /// What an operand is of a value, which the running body uses.
  at::Tensor part_of_value(const Operand& operand, const at::Tensor& value) const;
  /// A tensor of the operand as the running body reaches it.
  at::Tensor reached(const Operand& operand, const at::Tensor& tensor, bool writes) const;

  Device& device_;
  const program::Program& program_;
  const program::Role& role_;
  Id rank_;
  std::vector<Instances> storages_;
  // Of the values' handles, so that a program that lacks a wait ends with an error: two threads
  // that meet in one handle would end the process.
  std::mutex handles_;
};

}  // namespace rehearse::runtime
