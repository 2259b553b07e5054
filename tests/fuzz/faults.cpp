// Fuzz target for what breaks: reads a fault trace, a failure model, and traces of spot instances
// in both formats. What is read is written and read again, drawn from, and walked.
#include "engine/faults/draw.h"
#include "engine/faults/spot.h"
#include "engine/faults/trace_file.h"
#include "engine/goodput/walk.h"
#include "tests/fuzz/targets.h"

namespace rehearse::fuzz {
namespace {

constexpr int nodes = 4;

/// A run of a day on four nodes, with every policy.
void walk_through(const rehearse::faults::Trace& trace) {
  goodput::Setting s;
  s.duration = goodput::ticks(Seconds(86400));
  s.step = goodput::ticks(Seconds(1));
  s.ranks_of_slot.assign(nodes, 1);
  s.replicas = nodes;
  for (Id n = 0; n < nodes; ++n) s.replicas_of_slot.push_back({n});
  s.step_with = [&s](int replicas) { return s.step * nodes / replicas; };
  s.replicated = true;
  s.save_every = 100;
  s.checkpoint.stall = goodput::ticks(Seconds(1));
  goodput::Slots slots{.of_rank = {0, 1, 2, 3}};
  for (Id n = 0; n < nodes; ++n) slots.of_node[n] = n;
  const std::vector<goodput::Incident> all =
      incidents_of(trace, slots, s.step, [](const rehearse::faults::Event& e) {
        return e.factor;
      }).all;
  for (const auto& [name, policy] : goodput::policies()) {
    const goodput::Outcome o = goodput::walk(s, policy, all);
    goodput::Ticks sum = o.productive;
    for (const goodput::Ticks t : o.lost) sum += t;
    expect(sum == s.duration, "the parts of a run add up to its duration");
  }
}

}  // namespace

void faults(std::string_view input) {
  const std::string text(input);
  const std::string path = write_input(input, "trace.toml");
  accepts([&] {
    const rehearse::faults::Trace trace = rehearse::faults::load_trace(path, {});
    const std::string again = write_input(rehearse::faults::to_toml(trace), "again.toml");
    expect(rehearse::faults::load_trace(again, {}) == trace, "a trace is read as it was written");
    walk_through(trace);
  });
  accepts([&] {
    const rehearse::faults::FailureModel model = rehearse::faults::load_model(path);
    if (rehearse::faults::interruptions_per_day(model, nodes) > 1e4) return;
    walk_through(rehearse::faults::Drawer(model, nodes)(Seconds(86400), 1));
  });
  accepts([&] { walk_through(rehearse::faults::parse_bamboo(text, "spot.csv", nodes)); });
  accepts([&] { walk_through(rehearse::faults::parse_skypilot(text, "spot.json", nodes)); });
}

}  // namespace rehearse::fuzz
