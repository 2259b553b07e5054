// Runs programs that link but are wrong in real processes, and right ones beside a reference that
// is wrong. Final weights must differ from the reference's; otherwise the numerics tests could not
// fail.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/methods/passes/passes.h"
#include "engine/methods/strategy.h"
#include "runtime/checkpoints/checkpoint.h"
#include "runtime/checkpoints/files/run_folder.h"
#include "tests/runtime/conformance.h"
#include "tests/runtime/training.h"

namespace rehearse::runtime {
namespace {

/// Runs all steps of `program`, which may differ from the method's own, and returns the final
/// weights.
reference::Weights train_program(const job::Job& job, const program::Program& program,
                                 const std::string& folder) {
  at::set_num_threads(1);
  const link::LinkedProgram linked = link::link(program);
  const std::vector<Outcome> outcomes =
      run_ranks(job.plan.mesh.world_size(), [&](const Environment& environment) {
        RankRun rank(job, linked, environment);
        rank.steps(0, job.train.steps);
        save_checkpoint(folder, job.train.steps,
                        {linked, job.model, job.plan, job.train, static_cast<Id>(environment.rank),
                         rank.data, rank.network, rank.control},
                        rank.executor);
        return std::string();
      });
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.status, 0) << outcome.text;
  return testing::Test::HasFailure() ? reference::Weights{}
                                     : weights_of(find_checkpoint(folder), job.model);
}

/// The program without the collectives on a channel, and with layouts that do not require them.
program::Program without_channel(program::Program program, const std::string& name) {
  const auto found = std::find_if(program.channels.begin(), program.channels.end(),
                                  [&](const program::Channel& c) { return c.name == name; });
  if (found == program.channels.end()) {
    ADD_FAILURE() << "no channel " << name;
    return program;
  }
  const Id channel = static_cast<Id>(found - program.channels.begin());
  for (program::Role& role : program.roles) {
    std::erase_if(role.ops, [&](const program::Op& op) {
      const auto* collective = std::get_if<program::Collective>(&op.work);
      return collective != nullptr && collective->channel == channel;
    });
    for (program::Op& op : role.ops) {
      op.after.clear();  // throttles too, because the numbers of ops have changed
      for (program::Ref& ref : op.refs) ref.layout.partial &= ~found->group.axes;
    }
  }
  return methods::infer_waits({std::move(program)});
}

/// The program without the sums of the inputs that backward computes anew.
program::Program without_sums_again(program::Program program) {
  std::size_t erased = 0;
  for (program::Role& role : program.roles) {
    const auto again = [&](const program::Ref& ref) {
      return role.views[ref.view].name.starts_with("xr");
    };
    erased += std::erase_if(role.ops, [&](const program::Op& op) {
      return std::holds_alternative<program::Collective>(op.work) &&
             std::any_of(op.refs.begin(), op.refs.end(), again);
    });
    for (program::Op& op : role.ops) {
      op.after.clear();
      for (program::Ref& ref : op.refs)
        if (again(ref)) ref.layout.partial = 0;
    }
  }
  EXPECT_GT(erased, 0U);
  return methods::infer_waits({std::move(program)});
}

TEST(Mutations, AMissingSumOfARecomputedLayerShows) {
  ScratchFolder data, out;
  write_data(data);
  const job::Job job =
      small_job({.method = "megatron",
                 .mesh = {.tp = 2},
                 .schedule = {.recompute = true, .recompute_unit = plan::RecomputeUnit::layer},
                 .optimizer = plan::Optimizer::sgd},
                data.path(), out.path());
  const program::Program program = program_of(job);
  const reference::Weights right = train_program(job, program, out.file("right"));
  const reference::Weights wrong =
      train_program(job, without_sums_again(program), out.file("wrong"));
  if (HasFailure()) return;
  const ReferenceRun reference = train_reference(job);
  EXPECT_LE(worst_difference(right, reference.weights).first, 1e-5);
  EXPECT_GT(worst_difference(wrong, reference.weights).first, 1e-3);
}

TEST(Mutations, AMissingSumOfTiedEmbeddingsShows) {
  ScratchFolder data, out;
  write_data(data);
  const job::Job job = small_job({.method = "1f1b",
                                  .mesh = {.pp = 2},
                                  .schedule = {.micro_batches = 4},
                                  .optimizer = plan::Optimizer::sgd},
                                 data.path(), out.path());
  ASSERT_TRUE(job.model.tied);
  const program::Program program = program_of(job);
  const reference::Weights right = train_program(job, program, out.file("right"));
  const reference::Weights wrong =
      train_program(job, without_channel(program, "tied"), out.file("wrong"));
  if (HasFailure()) return;
  const ReferenceRun reference = train_reference(job);
  EXPECT_LE(worst_difference(right, reference.weights).first, 1e-5);
  EXPECT_GT(worst_difference(wrong, reference.weights).first, 1e-3);
}

TEST(Mutations, ADroppedMicroBatchShows) {
  ScratchFolder data, out;
  write_data(data);
  const job::Job job =
      small_job({.method = "ddp", .mesh = {.dp = 2}, .optimizer = plan::Optimizer::sgd},
                data.path(), out.path());
  const TrainedRun run = train_in_processes(job);
  if (HasFailure()) return;
  const ReferenceRun broken = train_reference(job, {.dropped_samples = 1});
  EXPECT_GT(worst_difference(weights_of(run.checkpoint, job.model), broken.weights).first, 1e-3);
}

}  // namespace
}  // namespace rehearse::runtime
