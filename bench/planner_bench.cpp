// How fast planning is, in seconds of one core: the paper's model on the paper's cluster; how many
// candidates a second are compiled and dry-run there (every n-th of all that fit, nothing pruned);
// GPT-3 175B on 1,024 GPUs. Finalists are not simulated again. Argument: "quick" leaves out GPT-3.
#include <fmt/format.h>

#include <cstring>
#include <ctime>

#include "engine/planner/bounds.h"
#include "engine/planner/candidates.h"
#include "engine/planner/evaluator.h"
#include "engine/planner/planner.h"

namespace {

using namespace rehearse;

// CPU time of this one-threaded process: what one core needs, whatever else the machine does.
double now() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

Job job_of(const char* model, const char* cluster, const char* more) {
  return parse_job_to_plan(fmt::format("model.name = \"{}\"\ncluster.name = \"{}\"\n"
                                       "method.name = \"ddp\"\n{}",
                                       model, cluster, more),
                           "bench");
}

void plan(const Job& job) {
  const double start = now();
  const Decision d = decide(job, nullptr, {});
  fmt::print("{} on {}\n  planned in            {:.2f} s: {}, {:.4g} s a step\n", job.model.name,
             job.cluster.name(), now() - start, summary_of(d.plan), d.seconds);
  int infeasible = 0;
  for (const Infeasible& i : d.infeasible) infeasible += i.candidates;
  fmt::print("  candidates            {}: {} pruned by time, {} infeasible, {} dry-run\n",
             d.candidates, d.pruned, infeasible, d.dry_run);
}

void rate(const Job& job, std::size_t wanted) {
  const Candidates all = candidates(job, nullptr);
  Bounds bounds(job, nullptr, {});
  std::vector<const Plan*> fit;
  for (const Plan& p : all.plans)
    if (bounds.memory(p).share <= memory_share) fit.push_back(&p);
  const std::size_t stride = std::max<std::size_t>(1, fit.size() / wanted);
  Evaluator evaluator(job.model, job.cluster, nullptr, {});
  const double start = now();
  std::size_t count = 0;
  double sum = 0;
  for (std::size_t i = 0; i < fit.size(); i += stride, ++count) sum += evaluator.seconds(*fit[i]);
  const double seconds = now() - start;
  fmt::print(
      "  compiled and dry-run  {} of {} candidates in {:.2f} s: {:.0f} a second (mean step "
      "{:.3f} s)\n",
      count, fit.size(), seconds, static_cast<double>(count) / seconds,
      sum / static_cast<double>(count));
}

}  // namespace

int main(int argc, char** argv) {
  const Job paper = job_of("bert-paper-110m", "paper", "");
  plan(paper);
  rate(paper, 4000);
  if (argc > 1 && std::strcmp(argv[1], "quick") == 0) return 0;
  plan(job_of("gpt3-175b", "dgx-a100:128",
              "method.precision = \"bf16\"\ntrain.global_batch = 1536"));
}
