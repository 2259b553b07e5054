// Names for what a step spends its time on: the passes by kind of segment, the optimizer, kernels,
// the host, copies between host and device, communication by axis of the mesh and move, and
// waiting. Each op has one such part.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/execution/trace/trace_labels.h"
#include "engine/link/link.h"
#include "engine/model/model.h"

namespace rehearse::execution {

/// compute: forward, backward and recompute passes. kernel: other work on gradients (casts, norms,
/// sparsifiers). optimizer: updates. host: issuing kernels. waiting: for other ranks.
enum class PartKind : std::uint8_t {
  compute,
  kernel,
  optimizer,
  checkpoint,
  host,
  host_copy,
  communication,
  waiting
};
constexpr auto spellings(PartKind) {
  return std::to_array<const char*>({"compute", "kernel", "optimizer", "checkpoint", "host",
                                     "host_copy", "communication", "waiting"});
}

struct WorkPart {
  PartKind kind = PartKind::compute;
  std::string name = {};  // "forward attention", "dp all-reduce", "pp send"
  friend bool operator==(const WorkPart&, const WorkPart&) = default;
};

class WorkParts {
 public:
  /// `linked` and `model` must outlive this object.
  WorkParts(const link::OrderedProgram& linked, const model::ModelSpec& model);

  /// All parts of the program: compute first, forward before backward, waiting last.
  const std::vector<WorkPart>& all() const { return all_; }
  /// Index into all().
  Id of(Id role, Id op) const { return of_[role][op]; }
  Id waiting() const { return static_cast<Id>(all_.size() - 1); }
  Id host() const { return host_; }

 private:
  WorkPart part_of(const TraceLabels& labels, Id role, Id op) const;
  /// The axes along which the ranks of two roles differ, or "servers".
  std::string axes_between(Id role, Id peer) const;
  std::string axes_of(Id channel) const;

  const link::OrderedProgram& linked_;
  std::vector<WorkPart> all_ = {};
  std::vector<std::vector<Id>> of_ = {};  // [role][op]
  Id host_ = none;
};

/// The lane with the passes of a role; none: the role has none (a parameter server).
Id compute_lane_of(const program::Role& role);

}  // namespace rehearse::execution
