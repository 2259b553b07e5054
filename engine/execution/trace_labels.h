// What a trace file says of an op beside its times: a name that many ops share, so that a viewer
// groups them, and everything that tells them apart.
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
  /// Both must outlive it.
  TraceLabels(const link::LinkedProgram& linked, const model::ModelSpec& model);

  /// "forward attention", "backward mlp", "update", "all-reduce", "send", "select" ...
  std::string name(Id role, Id op) const;
  /// Members of a JSON object, as text, but for the step: op, stage, segment, micro_batch, samples,
  /// bytes, channel, group, peer, payload, line; those that the op has.
  std::string args(Id role, Id op, Id rank);

 private:
  /// The pass that makes or uses what an op moves.
  struct Owner {
    Id segment = none;
    int microbatch = -1;
  };
  std::vector<Owner> owners_of(const program::Role& role) const;
  std::optional<int> stage_of(Id rank) const;

  const link::LinkedProgram& linked_;
  const model::ModelSpec& model_;
  link::RanksThatMeet meet_;
  std::vector<std::vector<Owner>> owners_ = {};       // [role][op]
  std::vector<std::vector<std::string>> fixed_ = {};  // [role][op]: args that all ranks share
};

}  // namespace rehearse::execution
