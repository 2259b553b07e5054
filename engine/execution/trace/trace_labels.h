// Labels of the ops in a trace file: a name that ops of one kind share, so that a viewer groups
// them, and args that tell the ops apart.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "engine/link/link.h"
#include "engine/link/rendezvous.h"
#include "engine/model/model.h"

namespace rehearse::execution {

class TraceLabels {
 public:
  /// `linked` and `model` must outlive this object.
  TraceLabels(const link::OrderedProgram& linked, const model::ModelSpec& model);

  /// "forward attention", "backward mlp", "update", "all-reduce", "send", "select" ...
  std::string name(Id role, Id op) const;
  /// The op's args as the text of JSON members: op, stage, segment, micro_batch, samples, bytes,
  /// channel, group, peer, payload, line. Members that the op lacks, and the step, are left out.
  std::string args(Id role, Id op, Id rank);

 private:
  /// The compute pass that produces or consumes the data of an op.
  struct Owner {
    Id segment = none;
    int microbatch = -1;
  };
  std::vector<Owner> owners_of(const program::Role& role) const;
  std::optional<int> stage_of(Id rank) const;

  const link::OrderedProgram& linked_;
  const model::ModelSpec& model_;
  link::RanksThatMeet meet_;
  std::vector<std::vector<Owner>> owners_ = {};  // [role][op]
  std::vector<std::vector<std::string>> fixed_ =
      {};  // [role][op]: args that are the same on all ranks
};

}  // namespace rehearse::execution
