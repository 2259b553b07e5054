// Reads a checkpoint back as logical tensors, whatever mesh it was saved from. Files are opened and
// their checksums compared when they are first needed.
#pragma once
#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/tensor_parts.h"
#include "runtime/safetensors.h"

namespace rehearse {

/// Which of a run's plans was in force: a run that goes on must know whether it has been placed
/// anew.
struct PlanRecord {
  int placements = 0;
  std::string plan = {};  // as a plan file; empty: the job's
};

class CheckpointReader {
 public:
  /// Throws InputError that names the file: no manifest, damaged, an unknown version.
  explicit CheckpointReader(const std::string& folder);

  std::int64_t step() const { return step_; }
  std::int64_t skipped_updates() const { return skipped_updates_; }
  /// Where a free-running rank goes on: after its own last step, or with the run where this rank
  /// counted no steps of its own.
  std::int64_t own_step(Id rank) const;
  const std::string& model() const { return model_; }
  const std::string& method() const { return method_; }
  const PlanRecord& record() const { return record_; }

  /// A whole tensor of this kind, age and copy; empty when there is none. `spec` null: not a
  /// tensor of the model (a loss scale). Throws InputError that names the file: truncated, damaged,
  /// another precision or shape, elements that no part covers.
  std::vector<std::byte> whole(Kind kind, const std::string& tensor, int age, int copy,
                               const TensorSpec* spec, DType dtype);
  /// How many copies (residuals of data-parallel ranks) there are.
  int copies(Kind kind, const std::string& tensor) const;
  /// The dtype that a tensor was saved in; f32 when there is none.
  DType dtype_of(Kind kind, const std::string& tensor);

 private:
  struct Place {
    PartKey key = {};
    std::string file = {}, checksum = {};
  };
  TensorEntry read(const Place& place);

  std::string folder_, model_, method_;
  std::int64_t step_ = 0, skipped_updates_ = 0;
  std::vector<std::int64_t> own_steps_ = {};  // by rank
  PlanRecord record_ = {};
  std::map<std::pair<Kind, std::string>, std::vector<Place>> places_ = {};
  std::map<std::string, std::unique_ptr<SafetensorsFile>> files_ = {};
};

/// Version of the folder's layout; another one is refused.
inline constexpr int checkpoint_version = 1;

}  // namespace rehearse
