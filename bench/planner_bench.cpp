// Measures the speed of planning, in CPU seconds of one core:
//   - the paper's model on the paper's cluster;
//   - candidates compiled and dry-run per second there, without pruning: the 2,000 with the lowest
//     bounds, which a search tries first, and every 100th of all, most of which are long programs;
//   - GPT-3 175B on 1,024 GPUs (not with the argument "quick").
// Finalists are not simulated again.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <ctime>

#include "bench/figure.h"
#include "engine/planner/planner.h"
#include "engine/planner/search/bounds.h"
#include "engine/planner/search/candidates.h"
#include "engine/planner/search/evaluator.h"

namespace {

using namespace rehearse;

/// CPU seconds of this single-threaded process, which do not depend on other load of the machine.
double now() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

job::Job job_of(const char* model, const char* cluster, const char* more) {
  return job::parse_job_to_plan(fmt::format("model.name = \"{}\"\ncluster.name = \"{}\"\n"
                                            "method.name = \"ddp\"\n{}",
                                            model, cluster, more),
                                "bench");
}

void time_planning(const job::Job& job, double goal) {
  const double start = now();
  const plan::Decision d = planner::decide(job, nullptr, {});
  const double took = now() - start;
  fmt::print("{} on {}\n  planned in            {:.2f} s: {}, {:.4g} s a step\n", job.model.name,
             job.cluster.name(), took, planner::summary_of(d.plan), d.seconds);
  bench::record({.name = fmt::format("planning {} on {}", job.model.name, job.cluster.name()),
                 .measured = took,
                 .unit = "s",
                 .against = "goal",
                 .reference = goal});
  int infeasible = 0;
  for (const plan::Infeasible& i : d.infeasible) infeasible += i.candidates;
  fmt::print("  candidates            {}: {} pruned by time, {} infeasible, {} dry-run\n",
             d.candidates, d.pruned, infeasible, d.dry_run);
}

void rate(planner::Evaluator& evaluator, const char* which,
          const std::vector<const plan::Plan*>& plans, double goal = 0) {
  const double start = now();
  std::size_t ops = 0;
  for (const plan::Plan* p : plans) evaluator.seconds(*p), ops += evaluator.ops();
  const double seconds = now() - start;
  const auto count = static_cast<double>(plans.size());
  fmt::print(
      "  compiled and dry-run  {} candidates ({}) in {:.2f} s: {:.0f} a second, {:.0f} ops "
      "each, {:.2f} us an op\n",
      plans.size(), which, seconds, count / seconds, static_cast<double>(ops) / count,
      1e6 * seconds / static_cast<double>(ops));
  bench::record({.name = fmt::format("candidates compiled and dry-run, {}", which),
                 .measured = count / seconds,
                 .unit = "/s",
                 .against = goal == 0 ? "" : "goal",
                 .reference = goal,
                 .more_is_better = true});
}

void rates(const job::Job& job) {
  const planner::Candidates all = planner::candidates(job, nullptr);
  planner::Bounds bounds(job.model, job.cluster, nullptr);
  std::vector<std::pair<double, const plan::Plan*>> fit;
  for (const plan::Plan& p : all.plans)
    if (bounds.memory(p).fits()) fit.emplace_back(bounds.seconds(p), &p);
  std::stable_sort(fit.begin(), fit.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<const plan::Plan*> first, sample;
  for (std::size_t i = 0; i < fit.size(); ++i) {
    if (i < 2000) first.push_back(fit[i].second);
    if (i % 100 == 0) sample.push_back(fit[i].second);
  }
  planner::Evaluator evaluator(job.model, job.cluster, nullptr, {});
  rate(evaluator, "those with the least bounds", first, 1000);
  rate(evaluator, "every 100th of all", sample);
}

}  // namespace

int main(int argc, char** argv) {
  const job::Job paper = job_of("bert-paper-110m", "paper", "");
  time_planning(paper, 10);
  rates(paper);
  if (argc > 1 && std::strcmp(argv[1], "quick") == 0) return 0;
  time_planning(
      job_of("gpt3-175b", "dgx-a100:128", "method.precision = \"bf16\"\ntrain.global_batch = 1536"),
      60);
}
