#include "engine/job/survival_keys.h"

#include <fmt/format.h>

#include "engine/base/choose.h"
#include "engine/base/numbers/limits.h"

namespace rehearse::job {
namespace {

constexpr const char* memory_folder = "/dev/shm";  // a file system in memory, on every Linux
constexpr Limits wait{.least = 0, .most = limits::patience.most};

}  // namespace

Faults read_fault_keys(const Config& c) {
  Faults f;
  f.model = c.text("model", "");
  f.trace = c.text("trace", "");
  f.seed = static_cast<std::uint64_t>(c.integer("seed", 1, at_least(0)));
  f.rate = c.number("rate", f.rate, between(0, limits::factor.most));
  f.correlated = c.flag("correlated", f.correlated);
  if (!f.model.empty() && !f.trace.empty())
    throw c.error(
        "trace",
        fmt::format(
            "\"{}\" and faults.model = \"{}\": name one of the two; --set faults.model= leaves the "
            "model out",
            f.trace, f.model));
  for (const char* key : {"rate", "correlated"})
    if (c.has(key) && f.model.empty()) throw c.error(key, "needs faults.model");
  return f;
}

Checkpoint read_checkpoint_keys(const Config& c) {
  Checkpoint out;
  out.kind = choose(c, "kind", out.kind);
  out.place = choose(c, "place", out.place);
  out.changed = c.number("changed", out.changed, {.least = 0, .most = 1, .open = true});
  out.bits = static_cast<int>(c.integer("bits", out.bits, between(0, 16)));
  if (out.bits != 0 && out.bits != 8 && out.bits != 16)
    throw c.error("bits", fmt::format("{}: must be 8 or 16, or 0: nothing is rounded", out.bits));
  out.full_every = static_cast<int>(c.integer("full_every", out.full_every, between(1, 1 << 20)));
  out.group = static_cast<int>(c.integer("group", out.group, between(2, 1 << 17)));
  const bool at_nodes = out.place != CheckpointPlace::shared || out.kind == CheckpointKind::peer;
  const bool local = out.place == CheckpointPlace::local && out.kind != CheckpointKind::peer;
  out.folder = c.text("folder", local ? "" : memory_folder);
  if (c.has("folder") && !at_nodes)
    throw c.error("folder",
                  "needs place = \"local\" or \"memory\", or checkpoint.kind = \"peer\"; "
                  "checkpoints on the shared disk go to train.out");
  const bool incremental = out.kind == CheckpointKind::incremental;
  const bool peer = out.kind == CheckpointKind::peer;
  for (const char* key : {"changed", "bits"})
    if (c.has(key) && !incremental) throw c.error(key, "needs checkpoint.kind = \"incremental\"");
  if (c.has("group") && !peer) throw c.error("group", "needs checkpoint.kind = \"peer\"");
  if (c.has("full_every") && !incremental && !at_nodes)
    throw c.error("full_every", fmt::format("every {} checkpoint on the shared disk is whole; it "
                                            "needs another kind, or place = \"local\" or "
                                            "\"memory\"",
                                            name_of(out.kind)));
  return out;
}

Recovery read_recovery_keys(const Config& c) {
  Recovery r;
  r.policy = choose(c, "policy", r.policy);
  r.restarts = static_cast<int>(c.integer("restarts", r.restarts, between(0, 1 << 20)));
  r.detection = c.maybe_seconds("detection", wait);
  r.restart = c.maybe_seconds("restart", wait);
  r.replacement = c.maybe_seconds("replacement", wait);
  if (const auto spares = c.maybe_integer("spares", between(0, 1 << 17)))
    r.spares = static_cast<int>(*spares);
  r.replan = c.seconds("replan", r.replan, wait);
  r.takeover = c.seconds("takeover", r.takeover, wait);
  r.overhead = c.number("overhead", r.overhead, between(0, 100));
  r.slow_factor = c.number("slow_factor", r.slow_factor, between(0, limits::factor.most));
  if (r.slow_factor > 0 && r.slow_factor < 1.5)
    throw c.error("slow_factor", fmt::format("{}: at least 1.5, or 0: no rank is slow; ranks that "
                                             "differ by less are no fault",
                                             r.slow_factor));
  r.slow_rank = choose(c, "slow_rank", r.slow_rank);
  if (c.has("slow_rank") && r.slow_factor == 0)
    throw c.error("slow_rank", "needs recovery.slow_factor, from which on a rank is slow");
  r.without = choose_all<LeftState>(c, "without");
  r.min_ranks = static_cast<int>(c.integer("min_ranks", r.min_ranks, between(1, 1 << 20)));
  return r;
}

}  // namespace rehearse::job
