// Tests plan files: a plan that is written and read is the same plan, and files that were edited or
// made for another model or cluster are refused.
#include "engine/job/plan_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <concepts>
#include <cstdio>
#include <fstream>
#include <limits>
#include <numeric>
#include <random>
#include <type_traits>

#include "engine/base/errors.h"
#include "engine/base/fnv.h"
#include "engine/base/names.h"
#include "engine/job/job.h"
#include "engine/plan/fields.h"
#include "tests/engine/rig.h"

namespace rehearse::job {
namespace {

using testing::AllOf;
using testing::HasSubstr;

struct Draw {
  std::mt19937 random;
  int operator()(int from, int to) {
    return from + static_cast<int>(random() % static_cast<unsigned>(to - from + 1));
  }
  bool coin() { return random() % 2 == 0; }
  double part() { return static_cast<double>(1 + random() % 1000) / 1001; }
};

/// Draws a value for every field, within its limits.
struct DrawnFields {
  Draw& draw;

  template <class T>
  void operator()(const char*, T&& member, const plan::Rule& rule) {
    fill(member, rule);
  }

 private:
  int whole(Limits limits) {
    return draw(static_cast<int>(limits.least), static_cast<int>(std::min(limits.most, 999.0)));
  }
  void fill(bool& member, const plan::Rule&) { member = draw.coin(); }
  void fill(double& member, const plan::Rule&) { member = 0.999 * draw.part(); }
  void fill(Seconds& member, const plan::Rule& rule) { fill(member.value, rule); }
  void fill(Bytes& member, const plan::Rule&) { member = Bytes(1e9 * draw.part()); }
  template <std::integral I>
  void fill(I& member, const plan::Rule& rule) {
    member = static_cast<I>(whole(rule.limits));
  }
  template <class E>
    requires std::is_enum_v<E>
  void fill(E& member, const plan::Rule&) {
    const std::vector<std::string> names = names_of<E>();
    member = static_cast<E>(draw(0, int(names.size()) - 1));
  }
  template <class T>
  void fill(std::optional<T>& member, const plan::Rule& rule) {
    if (draw.coin()) fill(member.emplace(), rule);
  }
  template <std::integral I>
  void fill(std::vector<I>& member, const plan::Rule& rule) {
    for (int i = draw(0, 9); i > 0; --i) fill(member.emplace_back(), rule);
  }
  /// random_plan fills what the model, the cluster or the world's size limits.
  template <class T>
  void fill(T&, const plan::Rule&) {}
};

/// A random value in every field; stages hold all segments in order.
plan::Plan random_plan(Draw& draw, const model::ModelSpec& model, const cluster::Cluster& cluster) {
  plan::Plan p;
  plan::each_field(p, DrawnFields{draw});
  for (auto it = methods::strategies().begin();
       const int skip : {draw(0, int(methods::strategies().size()) - 1)})
    p.method = std::next(it, skip)->first;
  p.mesh.pp = draw(1, 3), p.mesh.dp = draw(1, 4), p.mesh.tp = draw(1, 2), p.mesh.cp = draw(1, 2);
  if (p.mesh.cp == 1) p.mesh.context = plan::Context::ring;  // which a file leaves out
  p.mesh.order = draw.coin() ? "tp,dp,pp" : "dp,pp,tp";
  p.mesh.servers = draw(0, 2);
  p.fp8 = p.fp8 && p.precision == program::DType::bf16;
  if (p.checkpoints.every == 0) p.checkpoints.to = program::Medium::shared_disk;
  if (!p.exchange.bucket) p.exchange.bucket = plan::default_bucket;
  for (Id s = 0; s < model.segments.size(); ++s) {
    if (s == 0 || draw(0, 3) == 0) p.placement.stages.emplace_back();
    p.placement.stages.back().push_back(s);
  }
  if (draw.coin())
    for (std::size_t s = 0; s < model.segments.size(); ++s)
      p.exchange.sparse.layers.push_back({draw.part(), static_cast<plan::Reduction>(draw(0, 2)),
                                          static_cast<program::Coding>(draw(0, 3))});
  p.exchange.fusion.fused_after.clear();
  for (Id s = 0; s < model.segments.size(); ++s)
    if (draw.coin()) p.exchange.fusion.fused_after.push_back(s);
  const int world = p.mesh.world_size();
  p.placement.node_of.clear();
  for (int i = draw.coin() ? world : 0; i > 0; --i)
    p.placement.node_of.push_back(static_cast<Id>(draw(0, 3)));
  for (int i = draw.coin() ? world : 0; i > 0; --i)
    p.placement.rank_to_device.push_back(
        static_cast<Id>(draw(0, int(cluster.devices().size()) - 1)));
  return p;
}

plan::Decision random_decision(Draw& draw, const model::ModelSpec& model,
                               const cluster::Cluster& cluster) {
  plan::Decision d;
  d.plan = random_plan(draw, model, cluster);
  d.seconds = draw.part() / 3, d.dry_run_seconds = draw.part() * 1e-7;
  d.candidates = draw(0, 9999), d.pruned = draw(0, 99), d.dry_run = draw(0, 99);
  d.beyond_budget = draw(0, 9);
  for (int i = draw(0, 2); i > 0; --i) d.would_change.emplace_back("a \"quoted\" \\ thing\n");
  for (int i = draw(0, 2); i > 0; --i)
    d.warnings.emplace_back("tensor parallelism over a slow link");
  for (int i = draw(0, 3); i > 0; --i) {
    d.choices.push_back(
        {.name = "mesh", .value = "pp 2", .seconds = draw.part(), .runners_up = {}});
    for (int k = draw(0, 2); k > 0; --k)
      d.choices.back().runners_up.push_back(
          {"pp 4", draw.coin() ? draw.part() : std::numeric_limits<double>::infinity(), "slower"});
  }
  for (int i = draw(0, 2); i > 0; --i)
    d.runners_up.push_back(
        {.plan = {}, .value = "ddp", .seconds = draw.part(), .why = "12% slower"});
  for (int i = draw(0, 2); i > 0; --i) d.infeasible.push_back({"memory", draw(1, 9), "zero 1"});
  return d;
}

const model::ModelSpec& model() {
  static const model::ModelSpec spec = test::small_model(4);
  return spec;
}

TEST(PlanFile, WritingAndReadingAreExactInverses) {
  const cluster::Cluster cluster = test::fast(6);
  for (unsigned seed = 1; seed <= 300; ++seed) {
    Draw draw{std::mt19937(seed)};
    const plan::Decision decision = random_decision(draw, model(), cluster);
    MadeFor made = made_for(model(), cluster, nullptr);
    made.profile_hash = draw.random();
    const std::string text = to_toml(decision, made, model(), cluster);
    const PlanFile read = parse_plan_file(text, "plan.toml", model(), cluster);
    ASSERT_TRUE(read.why.plan == decision.plan) << "seed " << seed;
    EXPECT_EQ(read.made_for, made);
    EXPECT_EQ(read.hash, hash_of(decision.plan, made, model(), cluster));
    EXPECT_EQ(read.why.seconds, decision.seconds);
    EXPECT_EQ(read.why.would_change, decision.would_change);
    // The text contains all reasons, so equal texts mean equal reasons.
    ASSERT_EQ(to_toml(read.why, read.made_for, model(), cluster), text) << "seed " << seed;
  }
}

TEST(PlanFile, EveryMethodCompilesToTheSameProgram) {
  const cluster::Cluster cluster = test::fast(6);
  for (const auto& [name, strategy] : methods::strategies()) {
    plan::Plan plan = test::plan_of(name, strategy.combines.pp ? 2 : 1, 2, 1, 4);
    if (strategy.combines.servers) plan.mesh.servers = 1;
    plan = methods::prepare(std::move(plan), model());
    const std::string text =
        to_toml({.plan = plan}, made_for(model(), cluster, nullptr), model(), cluster);
    const plan::Plan read = parse_plan_file(text, "plan.toml", model(), cluster).why.plan;
    EXPECT_EQ(hash_of(methods::compile(read, model())), hash_of(methods::compile(plan, model())))
        << name;
  }
}

class Written : public testing::Test {
 protected:
  cluster::Cluster cluster_ = test::fast(2);
  std::string text_ = text_of(model());

  std::string text_of(const model::ModelSpec& spec) {
    return to_toml({.plan = methods::prepare(test::plan_of("ddp", 1, 2, 1, 2), spec)},
                   made_for(spec, cluster_, nullptr), spec, cluster_);
  }
  std::string message_of(const std::string& text) {
    try {
      parse_plan_file(text, "plan.toml", model(), cluster_);
    } catch (const InputError& e) {
      return e.what();
    }
    return "no error";
  }
  std::string changed(const std::string& from, const std::string& to) {
    std::string text = text_;
    const auto at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return text.replace(at, from.size(), to);
  }
};

TEST_F(Written, FilesOfVersionsWithoutAUnitOfRecomputationRecomputeSegments) {
  // Their hash does not contain the key, so a plan with the default must not write it.
  EXPECT_EQ(text_.find("recompute_unit"), std::string::npos);
  EXPECT_EQ(parse_plan_file(text_, "plan.toml", model(), cluster_).why.plan.schedule.recompute_unit,
            plan::RecomputeUnit::segment);
  plan::Plan layers = test::plan_of("ddp", 1, 2, 1, 2);
  layers.schedule.recompute = true, layers.schedule.recompute_unit = plan::RecomputeUnit::layer;
  text_ = to_toml({.plan = methods::prepare(layers, model())}, made_for(model(), cluster_, nullptr),
                  model(), cluster_);
  EXPECT_EQ(parse_plan_file(text_, "plan.toml", model(), cluster_).why.plan.schedule.recompute_unit,
            plan::RecomputeUnit::layer);
  const std::string line = "recompute_unit = \"layer\"\n";
  EXPECT_THAT(message_of(changed(line, "")), HasSubstr("the plan was edited"));
  EXPECT_THAT(message_of(changed(line, "recompute_unit = \"layers\"\n")),
              HasSubstr("did you mean \"layer\"?"));
}

TEST_F(Written, UnknownKeysAndVersions) {
  EXPECT_EQ(message_of(text_), "no error");
  EXPECT_THAT(message_of(changed("version = 1", "version = 2")),
              AllOf(HasSubstr("plan.toml:3"), HasSubstr("\"version\""), HasSubstr("2"),
                    HasSubstr("reads version 1")));
  EXPECT_THAT(message_of(changed("bucket_bytes", "bucket_byte")),
              AllOf(HasSubstr("plan.toml:"), HasSubstr("did you mean \"bucket_bytes\"?")));
  EXPECT_THAT(message_of(text_ + "\n[extra]\na = 1\n"), HasSubstr("\"extra\": unknown"));
  EXPECT_THAT(message_of(changed("clip = false\n", "")),
              AllOf(HasSubstr("plan.clip"), HasSubstr("is required and missing")));
  EXPECT_THAT(message_of(changed("optimizer = \"adamw\"", "optimizer = \"adam\"")),
              HasSubstr("did you mean \"adamw\"?"));
  EXPECT_THAT(message_of(changed("embedding .. head", "embeding .. head")),
              HasSubstr("did you mean \"embedding\"?"));
  EXPECT_THAT(message_of("version = \n"), HasSubstr("plan.toml:1:11: not TOML"));
}

TEST_F(Written, EditedPlansAreRefused) {
  EXPECT_THAT(message_of(changed("zero = 0", "zero = 1")),
              AllOf(HasSubstr("\"hash\""), HasSubstr("edited"), HasSubstr("plan again")));
  EXPECT_THAT(message_of(changed("embedding .. head", "embedding .. L3.mlp")),
              AllOf(HasSubstr("edited"), HasSubstr("not even complete")));
  EXPECT_THAT(message_of(changed("dp = 2", "dp = 16")),
              AllOf(HasSubstr("plan.toml:"), HasSubstr("entries, but"), HasSubstr("16 ranks")));
  EXPECT_EQ(message_of(changed("# A plan", "# My plan")), "no error");  // comments do not count
}

TEST_F(Written, PlansOfOtherModelsAndClustersAreRefused) {
  EXPECT_THAT(message_of(text_of(test::small_model(5))),
              AllOf(HasSubstr("plan.toml:"), HasSubstr("made_for.model"), HasSubstr("5 layers"),
                    HasSubstr("4 layers")));
  cluster_ = test::fast(3);
  EXPECT_THAT(message_of(text_),
              AllOf(HasSubstr("made_for.cluster"), HasSubstr("2 x unit"), HasSubstr("3 x unit")));
  cluster_ = test::star(2, BytesPerSecond(1e9), Seconds(0));
  EXPECT_THAT(message_of(text_), HasSubstr("bandwidths"));
}

TEST(Identity, HashesFollowWhatMatters) {
  model::ModelSpec a = test::small_model(4), b = a;
  b.name = "another name";
  EXPECT_EQ(hash_of(a), hash_of(b));
  b.seq_len *= 2;
  EXPECT_NE(hash_of(a), hash_of(b));
  EXPECT_NE(hash_of(a), hash_of(test::small_model(5)));
}

/// A job file that names a plan file.
class Planned : public testing::Test {
 protected:
  std::string path_ = testing::TempDir() + "/planned.toml";
  std::string base_ = "model.name = \"gpt-tiny\"\ncluster.name = \"paper\"\n";

  Planned() {
    const Job job = parse_job(base_ +
                                  "method = { name = \"1f1b\", pp = 2, dp = 2 }\n"
                                  "cluster.world_size = 4\ntrain.global_batch = 16\n",
                              "job.toml");
    plan_ = job.plan;
    std::swap(plan_.placement.rank_to_device[0], plan_.placement.rank_to_device[3]);
    std::ofstream(path_) << to_toml({.plan = plan_}, made_for(job.model, job.cluster, nullptr),
                                    job.model, job.cluster);
  }
  std::string message_of(const std::string& rest) {
    try {
      parse_job(text(rest), "job.toml");
    } catch (const InputError& e) {
      return e.what();
    }
    return "no error";
  }
  std::string text(const std::string& rest) {
    return base_ + "method.plan = \"" + path_ + "\"\n" + rest;
  }
  plan::Plan plan_;
};

TEST_F(Planned, IsExactlyWhatRuns) {
  const Job job = parse_job(text(""), "job.toml");
  plan_.exchange.bucket = Bytes(plan_.exchange.bucket_bytes());  // which a file states
  EXPECT_TRUE(job.plan == plan_);
  EXPECT_EQ(job.plan_file, path_);
  EXPECT_EQ(message_of("train.global_batch = 16\ncluster.world_size = 4\n"), "no error");
}

TEST_F(Planned, NothingElseMayContradictIt) {
  EXPECT_THAT(message_of("method.name = \"ddp\"\n"),
              AllOf(HasSubstr("method.plan"), HasSubstr("name one of the two")));
  EXPECT_THAT(message_of("method.pp = 2\n"),
              AllOf(HasSubstr("job.toml:4"), HasSubstr("method.pp"), HasSubstr("says this")));
  EXPECT_THAT(message_of("train.global_batch = 32\n"),
              AllOf(HasSubstr("train.global_batch"), HasSubstr("32"), HasSubstr("16")));
  EXPECT_THAT(message_of("cluster.world_size = 8\n"), HasSubstr("cluster.world_size"));
  EXPECT_THAT(message_of("cluster.devices = [\"node0\"]\n"), HasSubstr("cluster.devices"));
  EXPECT_THAT(message_of("train.optimizer = \"sgd\"\n"),
              AllOf(HasSubstr("train.optimizer"), HasSubstr("adamw")));
  EXPECT_THAT(message_of("train.clip = 1\n"), AllOf(HasSubstr("train.clip"), HasSubstr("without")));
  EXPECT_THAT(message_of("train.seq_len = 32\n"),
              AllOf(HasSubstr(path_), HasSubstr("made_for.model"), HasSubstr("32 tokens")));
  path_ += ".none";
  EXPECT_THAT(message_of(""), AllOf(HasSubstr("method.plan"), HasSubstr("does not exist")));
}

}  // namespace
}  // namespace rehearse::job
