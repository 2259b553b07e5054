// Helpers for tests of sparse exchanges in real processes: jobs whose gradients are sent as
// packets, and the state of ranks as bytes.
#pragma once
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "engine/link/workspace.h"
#include "engine/methods/strategy.h"
#include "tests/runtime/conformance.h"
#include "tests/runtime/processes.h"

namespace rehearse::runtime {

/// A job in which every layer uses `reduction` with `density`; the three codings alternate.
/// `node_of`: by rank, its node.
inline job::Job sparse_job(plan::Plan plan, plan::Reduction reduction, double density,
                           const std::string& data, std::vector<Id> node_of = {0, 0, 1, 2}) {
  plan.method = "adaptive";
  if (plan.schedule.micro_batches == 1 && plan.mesh.pp > 1) plan.schedule.micro_batches = 2;
  job::Job job = conformance_job(plan, data, 20);
  const std::size_t segments = job.model.segments.size();
  for (std::size_t s = 0; s < segments; ++s)
    job.plan.exchange.sparse.layers.push_back({density, reduction, program::Coding(s % 3)});
  node_of.resize(static_cast<std::size_t>(job.plan.mesh.world_size()));
  job.plan.placement.node_of = std::move(node_of);
  job.plan = methods::prepare(job.plan, job.model);
  return job;
}

using States = std::map<std::string, std::string>;  // of one rank: bytes by name of the storage

/// The state storages of a rank as they are before step `step`.
inline States states_of(Executor& executor, std::int64_t step) {
  States out;
  const program::Role& role = executor.role();
  for (Id s = 0; s < role.storages.size(); ++s) {
    if (role.storages[s].life != program::Life::state) continue;
    const auto bytes = executor.state(s, step, 1);
    out[role.storages[s].name].assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  return out;
}

inline std::string packed(const States& states) {
  std::string out;
  for (const auto& [name, bytes] : states)
    for (const std::string* part : {&name, &bytes}) {
      const auto size = static_cast<std::uint32_t>(part->size());
      out.append(reinterpret_cast<const char*>(&size), sizeof size);
      out += *part;
    }
  return out;
}
inline States unpacked(const std::string& text) {
  States out;
  for (std::size_t at = 0; at < text.size();) {
    std::string parts[2];
    for (std::string& part : parts) {
      std::uint32_t size = 0;
      std::memcpy(&size, text.data() + at, sizeof size);
      part = text.substr(at + sizeof size, size);
      at += sizeof size + size;
    }
    out[parts[0]] = parts[1];
  }
  return out;
}

/// Runs steps [0, steps) in real processes and returns each rank's state afterwards. `between` is
/// called on every rank before the last step.
inline std::vector<States> run_sparse(const job::Job& job, int steps,
                                      const std::function<void(RankRun&, int rank)>& between = {}) {
  const link::LinkedProgram linked = link::link(program_of(job), job.model);
  at::set_num_threads(1);
  const auto outcomes = run_ranks(job.plan.mesh.world_size(), [&](const Environment& environment) {
    RankRun rank(job, linked, environment);
    rank.steps(0, steps - 1);
    if (between) between(rank, environment.rank);
    rank.steps(steps - 1, steps);
    const std::string text = packed(states_of(rank.executor, steps));
    rank.control.finish();
    return text;
  });
  std::vector<States> out;
  for (std::size_t r = 0; r < outcomes.size(); ++r) {
    EXPECT_EQ(outcomes[r].status, 0) << "rank " << r << ": " << outcomes[r].text;
    out.push_back(outcomes[r].status == 0 ? unpacked(outcomes[r].text) : States{});
  }
  return out;
}

}  // namespace rehearse::runtime
