// Adam's bias correction counts updates, not steps (Kingma & Ba 2015, algorithm 1): a step whose
// gradient overflowed in fp16 changes neither weights, moments nor the count. Compares every update
// of a run with overflows with the formula, and checks that a resumed run continues the count.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>

#include "engine/methods/strategy.h"
#include "runtime/checkpoints/checkpoint.h"
#include "runtime/checkpoints/files/run_folder.h"
#include "runtime/kernels/optimizer.h"
#include "tests/runtime/conformance.h"
#include "tests/runtime/processes.h"

namespace rehearse::runtime {
namespace {

constexpr std::int64_t all_steps = 12, saved_at = 8;

using States = std::map<std::string, std::vector<float>>;

States states_of(RankRun& rank, std::int64_t step) {
  States states;
  const program::Role& role = rank.executor.role();
  for (Id s = 0; s < role.storages.size(); ++s) {
    const program::Storage& storage = role.storages[s];
    if (storage.life != program::Life::state || storage.dtype != program::DType::f32) continue;
    const auto bytes = rank.executor.state(s, step, 1);
    auto& values = states[storage.name];
    values.resize(bytes.size() / sizeof(float));
    std::memcpy(values.data(), bytes.data(), bytes.size());
  }
  return states;
}

/// Sets a loss scale that is so large that gradients overflow.
void raise_scale(RankRun& rank) {
  const program::Role& role = rank.executor.role();
  for (Id s = 0; s < role.storages.size(); ++s)
    if (role.storages[s].name == "scale")
      for (int age = 1; age <= role.storages[s].versions; ++age) {
        const float scale = 0x1p22F;
        rank.executor.edit_state(s, 0, age, [&](std::span<std::byte> bytes) {
          std::memcpy(bytes.data(), &scale, sizeof scale);
        });
      }
}

/// Relative difference between the change of all weights and the formula: ||found - formula|| /
/// ||formula||.
double distance(const job::Train& train, std::int64_t step, int updates, const States& before,
                const States& after) {
  const double lr = learning_rate(train, step);
  double difference = 0, size = 0;
  for (const auto& [name, weights] : after) {
    if (!name.starts_with("master.")) continue;
    const std::string bucket = name.substr(name.find('.'));
    const std::vector<float>&old = before.at(name), &m = after.at("M" + bucket),
          &v = after.at("V" + bucket);
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const double mean = m[i] / (1 - std::pow(train.beta1, updates));
      const double square = v[i] / (1 - std::pow(train.beta2, updates));
      const double change = -lr * mean / (std::sqrt(square) + train.eps);
      difference += std::pow(weights[i] - old[i] - change, 2);
      size += change * change;
    }
  }
  return std::sqrt(difference / size);
}

/// Runs all steps, saves at `saved_at`, and repeats the rest from that checkpoint. Returns what is
/// wrong; empty: nothing.
std::string check_rank(const job::Job& job, const link::LinkedProgram& linked,
                       const Environment& environment, const std::string& folder) {
  RankRun rank(job, linked, environment);
  raise_scale(rank);
  const ExecutorContext context{
      linked,    job.model,    job.plan,    job.train, static_cast<Id>(environment.rank),
      rank.data, rank.network, rank.control};
  int updates = 0;
  States before = states_of(rank, 0);
  for (std::int64_t step = 0; step < all_steps; ++step) {
    rank.steps(step, step + 1);
    States after = states_of(rank, step + 1);
    if (after.at("M.b0") == before.at("M.b0")) {
      if (after.at("scale")[0] != before.at("scale")[0] / 2)
        return fmt::format("step {} was skipped, its scale {} became {}", step,
                           before.at("scale")[0], after.at("scale")[0]);
    } else {
      ++updates;
      const double wrong = distance(job.train, step, updates, before, after);
      if (!(wrong < 1e-3)) return fmt::format("update {} is off by {}", updates, wrong);
    }
    before = std::move(after);
    if (step + 1 == saved_at) save_checkpoint(folder, saved_at, context, rank.executor);
  }
  if (updates < 3 || updates > all_steps - 3)
    return fmt::format("{} updates of {} steps show nothing", updates, all_steps);
  if (rank.executor.skipped_updates() != all_steps - updates)
    return fmt::format("{} steps were skipped, {} counted", all_steps - updates,
                       rank.executor.skipped_updates());
  rank.executor.initialise();
  rank.executor.skipped_updates(0);
  load_checkpoint(find_checkpoint(folder), context, rank.executor);
  rank.steps(saved_at, all_steps);
  return states_of(rank, all_steps) == before ? "" : "a resumed run ends elsewhere";
}

TEST(SkippedUpdates, CountForNoBiasCorrection) {
  at::set_num_threads(1);
  for (const plan::Plan& plan :
       {plan::Plan{.method = "ddp", .mesh = {.dp = 2}, .precision = program::DType::f16},
        plan::Plan{.method = "zero2", .mesh = {.dp = 2}, .precision = program::DType::f16},
        plan::Plan{.method = "pipedream-2bw",
        .mesh = {.pp = 2},
        .schedule = {.micro_batches = 4},
        .precision = program::DType::f16}}) {
    SCOPED_TRACE(plan.method);
    ScratchFolder data, out;
    write_training_data(data);
    job::Job job = conformance_job(plan, data.path(), all_steps);
    job.train.weight_decay = 0;
    job.train.decay = job::Decay::constant;
    const link::LinkedProgram linked = link::link(program_of(job));
    const std::vector<Outcome> outcomes =
        run_ranks(job.plan.mesh.world_size(), [&](const Environment& environment) {
          return check_rank(job, linked, environment, out.path());
        });
    for (const Outcome& outcome : outcomes) {
      EXPECT_EQ(outcome.status, 0);
      EXPECT_EQ(outcome.text, "");
    }
  }
}

}  // namespace
}  // namespace rehearse::runtime
