#include "study/prediction/saving.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "engine/base/names.h"
#include "engine/base/units.h"
#include "engine/costs/device/storage_prices.h"

namespace rehearse::study {
namespace {

/// Steps between checkpoints, or exchanges of weights, above which no simulated step contains one:
/// a longer run would take too much time for so small an effect.
constexpr int rarest = 1000;

const char* place_of(program::Medium to) {
  switch (to) {
    case program::Medium::shared_disk:
      return "shared disk";
    case program::Medium::local_disk:
      return "node's disk";
    case program::Medium::memory:
      return "host's memory";
    default:
      return "memory of other nodes";
  }
}

std::string bytes(std::int64_t count) { return to_text(Bytes(static_cast<double>(count))); }

}  // namespace

std::optional<Saving> saving_of(const job::Job& job, const link::OrderedProgram& linked,
                                const costs::Costs& costs) {
  const plan::Checkpoints& how = job.plan.checkpoints;
  if (how.every == 0) return std::nullopt;
  Saving out{.every = how.every, .to = how.to, .simulated = how.every <= rarest};
  for (Id r = 0; r < linked.program.roles.size(); ++r) {
    const program::Role& role = linked.program.roles[r];
    std::int64_t saved = 0;
    std::vector<double> copies(role.ranks.size(), 0.0);
    for (Id o = 0; o < role.ops.size(); ++o) {
      const bool copy = costs::takes_snapshot(role, role.ops[o]);
      const bool save = std::holds_alternative<program::Save>(role.ops[o].work);
      if (save) saved += linked.roles[r].ops[o].bytes;
      for (Id place = 0; (copy || save) && place < role.ranks.size(); ++place) {
        const double seconds = costs.seconds(r, o, place);
        if (copy)
          copies[place] += seconds;
        else
          out.write_s = std::max(out.write_s, seconds);
      }
    }
    out.snapshot_s = std::max(out.snapshot_s, *std::ranges::max_element(copies));
    out.bytes += saved * static_cast<std::int64_t>(role.ranks.size());
    out.most_bytes = std::max(out.most_bytes, saved);
  }
  return out;
}

int repetition(const program::Program& program) {
  std::int64_t all = 1;
  int longest = 1;
  for (const program::Role& role : program.roles)
    for (const program::Op& op : role.ops) {
      if (op.when.every > rarest) continue;
      longest = std::max(longest, op.when.every);
      all = std::min<std::int64_t>(std::lcm(all, op.when.every), rarest + 1);
    }
  return all <= rarest ? static_cast<int>(all) : longest;
}

int rarest_left_out(const program::Program& program) {
  int out = 0;
  for (const program::Role& role : program.roles)
    for (const program::Op& op : role.ops)
      if (op.when.every > rarest && std::holds_alternative<program::Collective>(op.work))
        out = std::max(out, op.when.every);
  return out;
}

execution::Steps whole_repetitions(execution::Steps steps, int repetition) {
  const auto whole = [&](int least) { return (least + repetition - 1) / repetition * repetition; };
  return {.warm_up = whole(steps.warm_up), .steady = whole(steps.steady)};
}

nlohmann::ordered_json to_json(const std::optional<Saving>& s) {
  if (!s) return nullptr;
  return {{"every_steps", s->every},     {"to", name_of(s->to)},
          {"bytes_total", s->bytes},     {"bytes_per_rank_max", s->most_bytes},
          {"snapshot_s", s->snapshot_s}, {"write_s", s->write_s},
          {"simulated", s->simulated}};
}

std::string describe(const Saving& s) {
  return fmt::format("every {} {}, at most {} a rank: snapshot {}, write to the {} {}",
                     s.every == 1 ? "step" : fmt::format("{} steps", s.every), bytes(s.bytes),
                     bytes(s.most_bytes), to_text(Seconds(s.snapshot_s)), place_of(s.to),
                     to_text(Seconds(s.write_s)));
}

}  // namespace rehearse::study
