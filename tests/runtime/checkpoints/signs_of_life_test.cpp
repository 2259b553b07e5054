// What a rank does before its first step tells the others that it goes on: with each layer or
// tensor.

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "runtime/checkpoints/checkpoint.h"
#include "runtime/checkpoints/files/run_folder.h"
#include "runtime/checkpoints/huggingface.h"
#include "tests/runtime/conformance.h"
#include "tests/runtime/processes.h"

namespace rehearse::runtime {
namespace {

/// How often each way to fill the state tells of itself.
std::string told(const job::Job& job, const link::LinkedProgram& linked,
                 const Environment& environment, const std::string& folder) {
  RankRun rank(job, linked, environment);
  const ExecutorContext context{
      linked,    job.model,    job.plan,    job.train, static_cast<Id>(environment.rank),
      rank.data, rank.network, rank.control};
  save_checkpoint(folder, 1, context, rank.executor);
  const std::string checkpoint = find_checkpoint(folder), file = folder + "/model.safetensors";
  export_weights(checkpoint, job.model, file);
  int drawn = 0, loaded = 0, imported = 0, compared = 0;
  rank.executor.initialise([&] { ++drawn; });
  load_checkpoint(checkpoint, context, rank.executor, {.alive = [&] { ++loaded; }});
  import_weights(file, context, rank.executor, [&] { ++imported; });
  undamaged_checkpoint_before(checkpoint, [&] { ++compared; });
  return fmt::format("{} {} {} {}", drawn, loaded, imported, compared);
}

TEST(SignsOfLife, ComeWithEachLayerAndTensor) {
  at::set_num_threads(1);  // starts no thread pool, which would not survive a fork
  ScratchFolder data, out;
  write_training_data(data);
  const job::Job job = conformance_job({.method = "ddp", .mesh = {.dp = 1}}, data.path(), 1);
  const link::LinkedProgram linked = link::link(program_of(job));
  const std::vector<Outcome> outcomes = run_ranks(1, [&](const Environment& environment) {
    return told(job, linked, environment, out.path());
  });
  std::size_t tensors = 0;
  for (const model::ParamGroup& group : job.model.groups) tensors += group.tensors.size();
  // A load: the one file, and AdamW's moments and the weight of each tensor.
  EXPECT_EQ(outcomes[0].text,
            fmt::format("{} {} {} {}", job.model.groups.size(), 1 + 3 * tensors, tensors, 1));
}

}  // namespace
}  // namespace rehearse::runtime
