#include "engine/execution/trace/trace_labels.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/base/names.h"

namespace rehearse::execution {
namespace {

std::string quoted(const std::string& text) { return nlohmann::json(text).dump(); }

std::string dashed(std::string_view name) {
  std::string out(name);
  std::ranges::replace(out, '_', '-');
  return out;
}

/// The peer role of a message; none for ops other than send, recv and put.
Id peer_of(const program::Work& work) {
  return std::visit(program::overloaded{[](const program::Send& s) { return s.peer; },
                                        [](const program::Recv& r) { return r.peer; },
                                        [](const program::Put& p) { return p.peer; },
                                        [](const auto&) { return none; }},
                    work);
}

}  // namespace

TraceLabels::TraceLabels(const link::OrderedProgram& linked, const model::ModelSpec& model)
    : linked_(linked), model_(model), meet_(linked) {
  for (const program::Role& role : linked.program.roles) {
    owners_.push_back(owners_of(role));
    fixed_.emplace_back(role.ops.size());
  }
}

std::string TraceLabels::name(Id role, Id op) const {
  return std::visit(
      program::overloaded{[&](const program::Compute& c) {
                            return c.segment < model_.segments.size()
                                       ? fmt::format("{} {}", name_of(c.pass),
                                                     name_of(model_.segments[c.segment].kind))
                                       : std::string(name_of(c.pass));
                          },
                          [](const program::Kernel& k) { return dashed(name_of(k.kind)); },
                          [](const program::Update&) { return std::string("update"); },
                          [](const program::Collective& c) { return dashed(name_of(c.move)); },
                          [](const program::Send&) { return std::string("send"); },
                          [](const program::Recv&) { return std::string("recv"); },
                          [](const program::Put&) { return std::string("put"); },
                          [](const program::Take&) { return std::string("take"); },
                          [](const program::Copy&) { return std::string("copy"); },
                          [](const program::Save&) { return std::string("save"); },
                          [](const program::Pause&) { return std::string("pause"); },
                          [](const program::Issue&) { return std::string("issue"); }},
      linked_.program.roles[role].ops[op].work);
}

std::vector<TraceLabels::Owner> TraceLabels::owners_of(const program::Role& role) const {
  std::vector<Owner> owners(role.ops.size());
  std::map<std::pair<Id, int>, Owner> pass_of;  // by value instance: the pass that makes or uses it
  const auto visit = [&](Id id, bool backwards) {
    const program::Op& op = role.ops[id];
    const auto* compute = std::get_if<program::Compute>(&op.work);
    if (compute != nullptr) owners[id] = {compute->segment, compute->microbatch};
    for (const program::Ref& ref : op.refs) {
      const Id storage = role.views[ref.view].storage;
      if (role.storages[storage].life != program::Life::value) continue;
      const std::pair<Id, int> instance(storage, ref.index);
      // Forward over the ops: the pass that wrote the value. Backward: the pass that reads it.
      if (compute != nullptr &&
          (backwards ? ref.mode != program::Mode::write : ref.mode != program::Mode::read))
        pass_of[instance] = owners[id];
      else if (const auto found = pass_of.find(instance);
               compute == nullptr && found != pass_of.end() && owners[id].microbatch < 0 &&
               (ref.slot == (backwards ? program::Slot::target : program::Slot::source)))
        owners[id] = found->second;
    }
  };
  for (Id id = 0; id < role.ops.size(); ++id) visit(id, false);
  pass_of.clear();
  for (Id id = static_cast<Id>(role.ops.size()); id-- > 0;) visit(id, true);
  return owners;
}

std::optional<int> TraceLabels::stage_of(Id rank) const {
  Id rest = rank, stride = 1;
  std::optional<int> stage = 0;
  for (std::size_t a = linked_.program.mesh.size(); a-- > 0;) {
    const program::Axis& axis = linked_.program.mesh[a];
    const auto size = static_cast<Id>(axis.size);
    if (axis.name == "pp") stage = static_cast<int>(rest % size);
    rest /= size, stride *= size;
  }
  return rank < stride ? stage : std::nullopt;  // ranks after the mesh are servers
}

std::string TraceLabels::args(Id role_id, Id op_id, Id rank) {
  const program::Role& role = linked_.program.roles[role_id];
  const program::Op& op = role.ops[op_id];
  std::string& fixed = fixed_[role_id][op_id];
  if (fixed.empty()) {
    fixed = fmt::format("\"op\": {}", op_id);
    const Owner& owner = owners_[role_id][op_id];
    if (owner.segment < model_.segments.size())
      fixed += fmt::format(", \"segment\": {}", quoted(model_.segments[owner.segment].name));
    if (owner.microbatch >= 0) fixed += fmt::format(", \"micro_batch\": {}", owner.microbatch);
    if (const auto* compute = std::get_if<program::Compute>(&op.work))
      fixed += fmt::format(", \"samples\": {}", compute->samples);
    if (const std::int64_t bytes = linked_.roles[role_id].ops[op_id].bytes; bytes > 0)
      fixed += fmt::format(", \"bytes\": {}", bytes);
    if (const Id channel = channel_of(op.work); channel != none)
      fixed += fmt::format(", \"channel\": {}", quoted(linked_.program.channels[channel].name));
    if (const Id peer = peer_of(op.work); peer != none)
      fixed += fmt::format(", \"peer\": {}", quoted(linked_.program.roles[peer].name));
    if (!std::holds_alternative<program::Compute>(op.work) && !op.refs.empty())
      fixed += fmt::format(", \"payload\": {}", quoted(role.views[op.refs.front().view].name));
    fixed += fmt::format(", \"line\": {}", quoted(to_text(linked_.program, role, op_id)));
  }
  std::string out = fixed;
  if (const auto stage = stage_of(rank)) out += fmt::format(", \"stage\": {}", *stage);
  if (const std::vector<Id> ranks = meet_.of(op.work, rank); !ranks.empty())
    out += fmt::format(", \"group\": [{}]", fmt::join(ranks, ", "));
  return out;
}

}  // namespace rehearse::execution
