#include "study/parts/program_check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "engine/base/fnv.h"
#include "engine/base/table.h"
#include "engine/base/units.h"
#include "engine/link/rendezvous.h"

namespace rehearse::study {
namespace {

constexpr std::size_t shown_storages = 3;

std::string bytes(std::int64_t n) { return to_text(Bytes(static_cast<double>(n))); }

std::string mesh_text(const program::Program& program) {
  std::vector<std::string> axes;
  for (const program::Axis& axis : program.mesh)
    axes.push_back(fmt::format("{} {}", axis.name, axis.size));
  return fmt::format("{}", fmt::join(axes, " x "));
}

/// "0-7", "0,2,4,6", "0,2,4,... (64)".
std::string ranks_text(const std::vector<Id>& ranks) {
  const bool run = !ranks.empty() && ranks.back() - ranks.front() + 1 == ranks.size();
  if (run && ranks.size() > 1) return fmt::format("{}-{}", ranks.front(), ranks.back());
  if (ranks.size() <= 4) return fmt::format("{}", fmt::join(ranks, ","));
  return fmt::format("{},{},{},...,{} ({})", ranks[0], ranks[1], ranks[2], ranks.back(),
                     ranks.size());
}

std::string op_text(const link::LinkedProgram& linked, Id role, Id op) {
  std::string text = to_text(linked.program, linked.program.roles[role], op);
  while (!text.empty() && text.back() == '\n') text.pop_back();
  text.erase(0, text.find_first_not_of(' '));
  return text;
}

/// Ops per step on one channel and their payload in bytes, summed over all roles. A collective
/// counts once for each role that takes part.
struct ChannelUse {
  int ops = 0;
  std::int64_t bytes = 0;
};
std::vector<ChannelUse> channel_uses(const link::LinkedProgram& linked) {
  std::vector<ChannelUse> out(linked.program.channels.size());
  for (Id r = 0; r < linked.roles.size(); ++r)
    for (Id o = 0; o < linked.roles[r].ops.size(); ++o)
      if (const Id c = channel_of(linked.program.roles[r].ops[o].work); c != none)
        ++out[c].ops, out[c].bytes += linked.roles[r].ops[o].bytes;
  return out;
}

/// Which ranks talk on the channel: "by colour", the axes along which they differ ("dp,tp"), or "by
/// role".
std::string group_text(const program::Program& program, const program::Channel& channel) {
  if (!channel.group.colour.empty()) return "by colour";
  std::vector<std::string> axes;
  for (std::size_t a = 0; a < program.mesh.size(); ++a)
    if (channel.group.axes >> a & 1) axes.push_back(program.mesh[a].name);
  return axes.empty() ? "by role" : fmt::format("{}", fmt::join(axes, ","));
}

}  // namespace

std::string describe(const link::LinkedProgram& linked, bool with_model) {
  const program::Program& program = linked.program;
  std::string out =
      fmt::format("method {}, {} ranks, mesh {}, hash {:016x}: links\n\n", program.method,
                  program.world_size, mesh_text(program), hash_of(linked.program));
  std::vector<std::vector<std::string>> rows{
      {"role", "ranks", "lanes", "ops", "state", "buffers", "values", "memory", "largest"}};
  const bool host = std::ranges::any_of(linked.memory, [](const auto& m) { return m.host > 0; });
  if (host) rows[0].insert(rows[0].end() - 1, "of the host");
  for (Id r = 0; r < program.roles.size(); ++r) {
    const program::Role& role = program.roles[r];
    const link::RoleMemory& m = linked.memory[r];
    std::vector<std::string> largest;
    for (const link::StorageUse& use : m.largest)
      if (largest.size() < shown_storages) largest.push_back(use.name + " " + bytes(use.bytes));
    rows.push_back({role.name, ranks_text(role.ranks), std::to_string(role.lanes.size()),
                    std::to_string(role.ops.size()), bytes(m.state), bytes(m.buffer),
                    bytes(m.value), bytes(m.total()), fmt::format("{}", fmt::join(largest, ", "))});
    if (host) rows.back().insert(rows.back().end() - 1, bytes(m.host));
  }
  out += table(rows);
  if (!with_model)
    out += "memory without workspace and batches, which the model decides: name its JOB.toml too\n";
  if (!program.channels.empty()) {
    rows = {{"channel", "group", "match", "ops", "payload a step"}};
    const auto uses = channel_uses(linked);
    for (std::size_t c = 0; c < program.channels.size(); ++c)
      rows.push_back({program.channels[c].name, group_text(program, program.channels[c]),
                      program.channels[c].match == program::Match::mailbox ? "mailbox" : "in order",
                      std::to_string(uses[c].ops), bytes(uses[c].bytes)});
    out += "\n" + table(rows);
  }
  out += fmt::format("\nredundant waits: {}\n", linked.redundant.size());
  for (const link::RedundantWait& r : linked.redundant)
    out += fmt::format("  role {}: {}  (its wait for op {})\n", program.roles[r.role].name,
                       op_text(linked, r.role, r.op),
                       program.roles[r.role].ops[r.op].after[r.index].op);
  return out;
}

nlohmann::ordered_json to_json(const link::LinkedProgram& linked, bool with_model) {
  using Json = nlohmann::ordered_json;
  const program::Program& program = linked.program;
  Json mesh = Json::object(), roles = Json::array(), channels = Json::array();
  for (const program::Axis& axis : program.mesh) mesh[axis.name] = axis.size;
  for (Id r = 0; r < program.roles.size(); ++r) {
    const program::Role& role = program.roles[r];
    const link::RoleMemory& m = linked.memory[r];
    Json largest = Json::array();
    for (const link::StorageUse& use : m.largest)
      if (largest.size() < shown_storages)
        largest.push_back({{"name", use.name}, {"bytes", use.bytes}});
    roles.push_back({{"name", role.name},
                     {"ranks", role.ranks},
                     {"lanes", role.lanes.size()},
                     {"ops", role.ops.size()},
                     {"memory_bytes",
                      {{"state", m.state},
                       {"buffer", m.buffer},
                       {"value", m.value},
                       {"total", m.total()},
                       {"host", m.host}}},
                     {"largest", std::move(largest)}});
  }
  const auto uses = channel_uses(linked);
  for (std::size_t c = 0; c < program.channels.size(); ++c)
    channels.push_back({{"name", program.channels[c].name},
                        {"group", group_text(program, program.channels[c])},
                        {"mailbox", program.channels[c].match == program::Match::mailbox},
                        {"ops", uses[c].ops},
                        {"payload_bytes", uses[c].bytes}});
  return {{"schema_version", 1},
          {"method", program.method},
          {"world_size", program.world_size},
          {"mesh", std::move(mesh)},
          {"program_hash", hash_text(hash_of(linked.program))},
          {"workspace_included", with_model},
          {"roles", std::move(roles)},
          {"channels", std::move(channels)},
          {"redundant_waits", linked.redundant.size()}};
}

}  // namespace rehearse::study
