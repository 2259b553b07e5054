// Tests the planner: bounds are lower bounds, pruning loses nothing, the same job gives the same
// decision, and a job without a feasible plan is refused with the reason.
#include "engine/planner/planner.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <tuple>

#include "engine/base/errors.h"
#include "engine/link/link.h"
#include "engine/link/workspace.h"
#include "engine/methods/strategy.h"
#include "engine/planner/memory/needs.h"
#include "engine/planner/search/bounds.h"
#include "engine/planner/search/candidates.h"
#include "engine/planner/search/evaluator.h"
#include "engine/planner/search/sensitivity.h"
#include "tests/engine/planner/planner_job.h"
#include "tests/message_of.h"

namespace rehearse::planner {
namespace {

/// Jobs that are small enough to dry-run every candidate.
std::vector<job::Job> small_jobs() {
  return {job_of("gpt-tiny", "dgx1", "train.global_batch = 16"),
          job_of("bert-tiny", "dgx-a100:2", "train.global_batch = 32\ncluster.world_size = 4"),
          job_of("bert-paper-110m", "paper",
                 "train.global_batch = 32\ncluster.world_size = 8\nmethod.bucket = \"25MB\"\n"
                 "method.order = \"pp,dp,tp\"")};
}

TEST(Planner, BoundsAreBelowWhatIsFound) {
  std::vector<job::Job> jobs = small_jobs();
  // With a busy host, library latencies and recomputation by layers.
  jobs.push_back(job_of("gpt-tiny", "dgx-a100:2",
                        "train.global_batch = 16\ncluster.world_size = 4\n"
                        "software.name = \"megatron-2021\"\nmethod.recompute = true\n"
                        "method.recompute_unit = \"layer\""));
  // With slow hops between stages, several chunks a stage, and weights that are gathered.
  jobs.push_back(job_of("gpt2-124m", "server-4090:2",
                        "train.global_batch = 32\ncluster.links.network.bandwidth = \"10Gb/s\"\n"
                        "method.bucket = \"25MB\""));
  for (const char* halved : {"zb-h1", "zb-h2"})
    jobs.push_back(job_of("gpt2-124m", "dgx-a100",
                          "train.global_batch = 16\nmethod.bucket = \"25MB\"\nmethod.pp = 4",
                          halved));
  for (const job::Job& job : jobs) {
    Bounds bounds(job.model, job.cluster, nullptr);
    Evaluator evaluator(job.model, job.cluster, nullptr, {});
    const auto check = [&](const plan::Plan& plan) {
      SCOPED_TRACE(summary_of(plan));
      const double seconds = evaluator.seconds(plan);
      EXPECT_LE(bounds.seconds(plan), seconds * (1 + 1e-9));
      EXPECT_GT(bounds.seconds(plan), 0);
      const double whole = evaluator.memory(evaluator.link_fully(plan), plan).share;
      EXPECT_LE(evaluator.least_memory().share, whole);
      EXPECT_LE(bounds.memory(plan).share, evaluator.least_memory().share * (1 + 1e-9));
    };
    const auto plans = candidates(job, nullptr).plans;
    ASSERT_GT(plans.size(), 50u);
    for (std::size_t i = 0; i < plans.size(); i += (plans.size() + 99) / 100) {
      check(plans[i]);
      for (const plan::Plan& other : on_host(job, plans[i])) check(other);
    }
  }
}

TEST(Planner, PruningLosesNothing) {
  for (const job::Job& job : small_jobs()) {
    const plan::Decision pruned = decide(job, nullptr, {});
    const plan::Decision all = decide(job, nullptr, {.prune = false});
    EXPECT_EQ(summary_of(pruned.plan), summary_of(all.plan));
    EXPECT_EQ(pruned.seconds, all.seconds);
    EXPECT_GT(pruned.pruned, 0);
    EXPECT_EQ(all.pruned, 0);
    // Placement adds one candidate for each of up to 8 meshes.
    EXPECT_LE(pruned.candidates, all.candidates);
    EXPECT_LE(all.candidates - pruned.candidates, 8);
    // A plainer plan may be chosen although another one is a little faster.
    for (const plan::RunnerUp& r : all.runners_up)
      EXPECT_GE(r.seconds * (1 + plainer_within), pruned.seconds);
  }
}

TEST(Planner, ZeroBubblePipelinesOnlyForJobsThatNameThem) {
  const auto methods_of = [](const std::string& name) {
    std::set<std::string> out;
    for (const plan::Plan& plan :
         candidates(job_of("gpt2-124m", "dgx-a100", "train.global_batch = 16\nmethod.dp = 2", name),
                    nullptr)
             .plans)
      if (plan.mesh.pp > 1) out.insert(plan.method);
    return out;
  };
  const std::set<std::string> proposed{"1f1b", "gpipe", "interleaved"};
  EXPECT_EQ(methods_of("1f1b"), proposed);
  std::set<std::string> with_own = proposed;
  with_own.insert("zb-h1");
  EXPECT_EQ(methods_of("zb-h1"), with_own);
}

TEST(Planner, KeepsAStatedPartitionAndUnitOfRecomputation) {
  const job::Job job = job_of("gpt2-124m", "paper",
                              "cluster.world_size = 8\ntrain.global_batch = 64\n"
                              "method.pp = 4\nmethod.virtual_stages = 1\n"
                              "method.partition = \"layers\"\nmethod.recompute = true\n"
                              "method.recompute_unit = \"layer\"");
  const plan::Plan plan = decide(job, nullptr, {}).plan;
  EXPECT_EQ(plan.schedule.recompute_unit, plan::RecomputeUnit::layer);
  std::vector<std::size_t> sizes;
  for (const auto& stage : plan.placement.stages) sizes.push_back(stage.size());
  EXPECT_THAT(sizes, testing::ElementsAre(7, 6, 6, 7));
}

TEST(Planner, SameQuestionSameAnswer) {
  const job::Job job = job_of("bert-paper-110m", "paper");
  const plan::Decision a = decide(job, nullptr, {}), b = decide(job, nullptr, {});
  EXPECT_EQ(explain(a), explain(b));
  EXPECT_EQ(a.plan.placement.rank_to_device, b.plan.placement.rank_to_device);
}

TEST(Planner, BudgetCountsCandidates) {
  const job::Job job = job_of("bert-paper-110m", "paper");
  const plan::Decision d = decide(job, nullptr, {.budget = 5, .prune = false});
  EXPECT_EQ(d.dry_run, 5);
  EXPECT_EQ(d.candidates, d.dry_run + d.beyond_budget);
  int last = 0, calls = 0;
  PlannerOptions options;
  options.progress = [&](int done, int total) {
    EXPECT_LE(done, total);
    EXPECT_GE(done, last);
    last = done, ++calls;
  };
  decide(job, nullptr, options);
  EXPECT_GT(calls, 1);
}

TEST(Planner, KeepsWhatTheJobStates) {
  const plan::Decision d = decide(job_of("gpt2-124m", "dgx1",
                                         "train.global_batch = 64\nmethod.tp = 2\n"
                                         "method.recompute = true\nmethod.precision = \"fp16\""),
                                  nullptr, {});
  EXPECT_EQ(d.plan.mesh.tp, 2);
  EXPECT_TRUE(d.plan.schedule.recompute);
  EXPECT_EQ(d.plan.precision, program::DType::f16);
  EXPECT_EQ(d.plan.schedule.global_batch, 64);
}

TEST(Planner, ThePlanFitsAndRuns) {
  const job::Job job = job_of("gpt2-1.5b", "paper", "method.precision = \"fp16\"");
  const plan::Decision d = decide(job, nullptr, {});
  const link::LinkedProgram linked = link::link(methods::compile(d.plan, job.model), job.model);
  for (const DeviceNeed& need : device_needs(linked, job.cluster, d.plan.placement.rank_to_device))
    EXPECT_TRUE(need.fits());
  EXPECT_FALSE(d.choices.empty());
  EXPECT_FALSE(d.infeasible.empty());
  EXPECT_FALSE(d.would_change.empty());
}

TEST(Planner, FinalistsAreScoredAgain) {
  const job::Job job = job_of("gpt-tiny", "dgx1", "train.global_batch = 16");
  int scored = 0;
  PlannerOptions options;
  // Plans with recomputation are fastest by this score, whatever the dry run says.
  options.rescore = [&](const plan::Plan& plan) {
    ++scored;
    return plan.schedule.recompute ? 1.0 : 2.0 + plan.schedule.micro_batches;
  };
  options.finalists = 7;
  const plan::Decision d = decide(job, nullptr, options);
  EXPECT_EQ(scored, d.simulations);
  EXPECT_GE(scored, 7);
  EXPECT_LE(scored, 7 + 32 + 40);
  EXPECT_EQ(d.seconds, d.plan.schedule.recompute ? 1.0 : 2.0 + d.plan.schedule.micro_batches);
  for (const plan::RunnerUp& r : d.runners_up) EXPECT_GE(r.seconds, d.seconds);
}

/// The path of a model file with grouped-query attention.
std::string grouped_queries(int heads, int kv_heads) {
  const std::string path = testing::TempDir() + fmt::format("grouped-{}-{}.toml", heads, kv_heads);
  std::ofstream(path) << fmt::format(
      "family = \"llama\"\nlayers = 4\nhidden = {}\nheads = {}\nkv_heads = {}\nffn = {}\n"
      "vocab = 32000\nseq_len = 512\ntied = false\n",
      64 * heads, heads, kv_heads, 256 * heads);
  return path;
}

TEST(Planner, TensorGroupsDivideKeyValueHeadsToo) {
  for (const auto& [heads, kv_heads, cluster] :
       {std::tuple{32, 8, "dgx-h100:4"}, {64, 8, "dgx-a100:8"}}) {
    const job::Job job = job_of(grouped_queries(heads, kv_heads), cluster,
                                "train.global_batch = 64\nmethod.precision = \"bf16\"\n"
                                "method.bucket = \"25MB\"\n");
    const plan::Decision d = decide(job, nullptr, {});
    EXPECT_EQ(kv_heads % d.plan.mesh.tp, 0) << summary_of(d.plan);
    EXPECT_TRUE(
        std::any_of(d.infeasible.begin(), d.infeasible.end(), [](const plan::Infeasible& i) {
          return i.constraint.find("key-value heads") != std::string::npos &&
                 i.nearest.find("tp 8") != std::string::npos && i.candidates > 0;
        }));
    plan::Plan stated = d.plan;
    stated.method = "megatron", stated.mesh.pp = 1, stated.mesh.tp = 16,
    stated.exchange.sharding.zero = 0;
    stated.placement.stages.clear();
    stated.mesh.dp = static_cast<int>(job.plan.placement.rank_to_device.size()) / 16;
    EXPECT_THAT(
        test::message_of([&] { methods::prepare(stated, job.model); }),
        testing::AllOf(testing::HasSubstr("method.tp: 16: must divide the 8 key-value heads"),
                       testing::HasSubstr("nearest: 8")));
  }
}

/// Makes method ddp compile some plans to a wrong program, as a bug would.
struct Fault {
  methods::LoweredProgram (*const before)(const plan::Plan&, const model::ModelSpec&);
  static inline methods::LoweredProgram (*good)(const plan::Plan&,
                                                const model::ModelSpec&) = nullptr;
  static inline bool another_error = false;
  Fault() : before(methods::strategies().at("ddp").lower) {
    good = before;
    methods::strategies().at("ddp").lower = [](const plan::Plan& plan,
                                               const model::ModelSpec& model) {
      if (plan.mesh.tp == 2) throw ProgramError("layout mismatch on 'G.b1': wrong\n  here");
      if (plan.exchange.sharding.zero == 1) refuse("zero", "1", "refused for the test");
      if (plan.exchange.sharding.zero == 2 && another_error)
        throw InputError("no refusal of a combination");
      return good(plan, model);
    };
  }
  ~Fault() { methods::strategies().at("ddp").lower = before; }
};

TEST(Planner, OneRefusedCandidateDoesNotEndTheSearchAndIsTold) {
  const job::Job job = job_of("gpt-tiny", "dgx1", "train.global_batch = 16");
  const Fault fault;
  const plan::Decision d = decide(job, nullptr, {.prune = false});
  EXPECT_NE(d.plan.mesh.tp == 2 && d.plan.mesh.pp == 1, true);
  const auto infeasible = [&](const std::string& what) {
    const auto it = std::find_if(d.infeasible.begin(), d.infeasible.end(), [&](const auto& i) {
      return i.constraint.find(what) != std::string::npos;
    });
    return it == d.infeasible.end() ? 0 : it->candidates;
  };
  EXPECT_GT(infeasible("fault of rehearse"), 0);
  EXPECT_GT(infeasible("method.zero"), 0);
  ASSERT_FALSE(d.warnings.empty());
  EXPECT_THAT(d.warnings.back(), testing::HasSubstr("layout mismatch on 'G.b1': wrong"));
  EXPECT_EQ(d.warnings.back().find('\n'), std::string::npos);
  EXPECT_THAT(explain(d), testing::HasSubstr("a fault of rehearse"));
  // If all candidates are refused, the error says why.
  EXPECT_THAT(test::message_of([] {
                decide(job_of("gpt-tiny", "dgx1",
                              "train.global_batch = 16\nmethod.pp = 1\nmethod.tp = 2\n"
                              "method.dp = 4"),
                       nullptr, {.budget = 1000});
              }),
              testing::HasSubstr("layout mismatch"));
  // An error that is not a refusal of a combination ends the search.
  Fault::another_error = true;
  EXPECT_THAT(test::message_of([&] { decide(job, nullptr, {.prune = false}); }),
              testing::HasSubstr("no refusal of a combination"));
  Fault::another_error = false;
}

TEST(Planner, GoesOnWhereContentionMayHurtLess) {
  const job::Job job = job_of("bert-paper-110m", "paper");
  const auto slow_unless_piped = [&](const plan::Plan& plan, const plan::Decision& first) {
    return plan.mesh.pp > 1 ? 1.5 : 4 * first.dry_run_seconds + plan.schedule.micro_batches;
  };
  const plan::Decision plain = decide(job, nullptr, {});
  ASSERT_EQ(plain.plan.mesh.pp, 1) << "the dry run prefers a pipeline: the test needs another job";
  PlannerOptions options;
  int simulated = 0;
  options.finalists = 4;
  options.rescore = [&](const plan::Plan& plan) {
    ++simulated;
    return slow_unless_piped(plan, plain);
  };
  const plan::Decision d = decide(job, nullptr, options);
  EXPECT_GT(d.plan.mesh.pp, 1) << "no pipeline was simulated";
  EXPECT_EQ(d.simulations, simulated);
  EXPECT_LE(simulated, 4 + 32 + 40);
  // What the dry run preferred is shown with what its simulation said.
  EXPECT_THAT(explain(d), testing::ContainsRegex("faster without contention, .* slower with it"));
  // If simulations equal dry runs, only the finalists are simulated.
  simulated = 0;
  Evaluator evaluator(job.model, job.cluster, nullptr);
  options.rescore = [&](const plan::Plan& plan) {
    ++simulated;
    return evaluator.seconds(plan);
  };
  EXPECT_EQ(summary_of(decide(job, nullptr, options).plan), summary_of(plain.plan));
  EXPECT_EQ(simulated, 4);
}

TEST(Planner, KnownStragglersGetFewerSamples) {
  const std::string stragglers =
      "train.global_batch = 512\nmethod.pp = 1\nmethod.tp = 1\n"
      "disturb.stragglers = [{ rank = 3, factor = 2.0 }, { rank = 17, factor = 1.5 }]\n";
  const job::Job job = job_of("bert-paper-110m", "paper-homogeneous", stragglers);
  const plan::Decision d = decide(job, nullptr, {});
  ASSERT_EQ(d.plan.schedule.shares.size(), 32u) << summary_of(d.plan);
  for (std::size_t r = 0; r < 32; ++r)
    if (r != 3 && r != 17) {
      EXPECT_LT(d.plan.schedule.shares[3], d.plan.schedule.shares[r]);
      EXPECT_LT(d.plan.schedule.shares[17], d.plan.schedule.shares[r]);
    }
  EXPECT_LT(d.plan.schedule.shares[3], d.plan.schedule.shares[17]);
  EXPECT_THAT(explain(d), testing::HasSubstr("rank 3 x 2, rank 17 x 1.5: counted on"));
  // The same plan with equal samples is slower by the same dry run.
  plan::Plan equal = d.plan;
  equal.schedule.shares.clear();
  Evaluator evaluator(job.model, job.cluster, nullptr, {}, rank_slowdowns(job.disturb, 32));
  EXPECT_LT(evaluator.seconds(d.plan), 0.9 * evaluator.seconds(methods::prepare(equal, job.model)));
  // The bounds hold with stragglers, too.
  Bounds bounds(job.model, job.cluster, nullptr, {}, rank_slowdowns(job.disturb, 32));
  EXPECT_LE(bounds.seconds(d.plan), evaluator.seconds(d.plan) * (1 + 1e-9));
  // Random jitter and stragglers are not known beforehand, so they do not change the plan.
  const job::Job chance =
      job_of("bert-paper-110m", "paper-homogeneous",
             "train.global_batch = 512\nmethod.pp = 1\nmethod.tp = 1\n"
             "disturb.compute_jitter = 0.1\ndisturb.straggler_probability = 0.2\n");
  EXPECT_TRUE(decide(chance, nullptr, {}).plan.schedule.shares.empty());
}

TEST(Planner, ImpossibleMeshesAreRefusedWithoutASearch) {
  const auto refused = [](const std::string& more) {
    return test::message_of([&] { job_of("gpt-demo", "paper", more); });
  };
  EXPECT_THAT(refused("method.pp = 100000"),
              testing::AllOf(testing::HasSubstr("\"method.pp\""),
                             testing::HasSubstr("gpt-demo has 4; at most 4")));
  EXPECT_THAT(refused("method.tp = 1000000\nmethod.pp = 3"),
              testing::AllOf(testing::HasSubstr("no mesh of the 32 ranks"),
                             testing::HasSubstr("nearest: pp 4 x dp 2 x tp 4")));
}

TEST(Planner, NothingFits) {
  try {
    decide(job_of("gpt3-175b", "paper", "train.global_batch = 32"), nullptr, {});
    FAIL() << "175 billion parameters fit on 32 small GPUs";
  } catch (const InputError& e) {
    const std::string text = e.what();
    EXPECT_NE(text.find("memory"), std::string::npos) << text;
    EXPECT_NE(text.find("nearest"), std::string::npos) << text;
  }
}

TEST(Planner, NamesTheKeyWithoutWhichSomethingFits) {
  const job::Job job =
      job_of("gpt2-1.5b", "paper",
             "method.pp = 1\nmethod.tp = 1\nmethod.zero = 0\nmethod.offload = \"none\"\n");
  try {
    decide(job, nullptr, {});
    FAIL() << "1.5 billion parameters and their optimizer fit on one RTX 4090";
  } catch (const InputError& e) {
    const std::string text = e.what();
    // Without method.pp = 1 or method.tp = 1 the model could be split and would fit.
    EXPECT_NE(text.find("method.pp, method.tp, method.zero, method.offload as stated"),
              std::string::npos)
        << text;
    EXPECT_NE(text.find("nearest: leave out method.pp: pp "), std::string::npos) << text;
  }
  job::Job freer = job;
  freer.where.erase("method.pp");
  EXPECT_GT(decide(freer, nullptr, {.finalists = 1}).plan.mesh.pp, 1);
}

TEST(Planner, WarnsOfTensorParallelismOverSlowLinks) {
  const job::Job paper = job_of("bert-paper-110m", "paper"),
                 dgx = job_of("gpt2-124m", "dgx-a100:1");
  plan::Plan plan{.method = "megatron",
                  .mesh = {.pp = 1, .dp = 16, .tp = 2},
                  .schedule = {.global_batch = 512}};
  const auto warned = plan_warnings(methods::prepare(plan, paper.model), paper.cluster);
  ASSERT_EQ(warned.size(), 1u);
  EXPECT_NE(warned[0].find("tensor parallelism over a slow link"), std::string::npos);
  plan.mesh.dp = 4, plan.schedule.global_batch = 64;
  EXPECT_TRUE(plan_warnings(methods::prepare(plan, dgx.model), dgx.cluster).empty());
}

TEST(Planner, FindsTheLinksBetweenNodes) {
  const cluster::Cluster paper = cluster::load_cluster("paper");
  const auto links = links_between_nodes(paper);
  // Of each of 12 nodes: host > nic0 and nic0 > fabric, in both directions.
  EXPECT_EQ(links.size(), 48u);
}

}  // namespace
}  // namespace rehearse::planner
