// Tests job files: defaults, constraints between keys, and the message of each kind of wrong job.
// docs/job.md must list exactly the keys that the reader knows.

#include "engine/job/job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <sstream>

#include "engine/methods/strategy.h"
#include "tests/engine/reference.h"
#include "tests/message_of.h"

namespace rehearse::job {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

const char* const five_lines =
    "model.name = \"gpt2-124m\"\n"
    "cluster.name = \"paper\"\n"
    "method.name = \"ddp\"\n";

Job parse(const std::vector<std::string>& overrides = {}, const std::string& text = five_lines) {
  return parse_job(text, "job.toml", overrides);
}

std::string error_of(const std::vector<std::string>& overrides,
                     const std::string& text = five_lines) {
  try {
    parse(overrides, text);
  } catch (const InputError& e) {
    return e.what();
  }
  return "no error";
}

std::string mesh(const Job& job) {
  std::ostringstream out;
  out << "pp " << job.plan.mesh.pp << " dp " << job.plan.mesh.dp << " tp " << job.plan.mesh.tp
      << " M " << job.plan.schedule.micro_batches << " batch " << job.plan.schedule.global_batch;
  return out.str();
}

TEST(Job, FiveLinesAreEnough) {
  const Job job = parse();
  EXPECT_EQ(mesh(job), "pp 1 dp 32 tp 1 M 1 batch 512");
  EXPECT_EQ(job.model.name, "gpt2-124m");
  EXPECT_EQ(job.train.seq_len, job.model.seq_len);
  EXPECT_EQ(job.plan.placement.rank_to_device.size(), 32U);
  EXPECT_EQ(job.plan.placement.rank_to_device[31], 31U);
  EXPECT_FALSE(job.plan.clip);
  EXPECT_EQ(job.train.warmup_steps, 10);
  EXPECT_FALSE(job.plan.placement.stages.empty());
}

TEST(Job, SharesSayTheBatchAndTheWorld) {
  const Job job =
      parse({"method.shares=[3,1,2]", "cluster.world_size=6", "method.name=1f1b", "method.pp=2"});
  EXPECT_EQ(mesh(job), "pp 2 dp 3 tp 1 M 8 batch 48");
  EXPECT_EQ(job.plan.samples(0), 3);
  EXPECT_EQ(job.plan.samples(2), 2);
  EXPECT_EQ(mesh(parse({"method.shares=[3,1]", "cluster.world_size=2", "train.global_batch=16"})),
            "pp 1 dp 2 tp 1 M 4 batch 16");
  const std::vector<std::string> two = {"cluster.world_size=2", "method.dp=2"};
  const auto error = [&](const std::string& shares, const std::string& other = "method.pp=1") {
    return error_of({two[0], two[1], "method.shares=" + shares, other});
  };
  EXPECT_THAT(error("[3,1,2]"), HasSubstr("must have one number for each of the 2 dp ranks"));
  EXPECT_THAT(error("[3,0]"), HasSubstr("method.shares"));
  EXPECT_THAT(error("[3,2]", "train.global_batch=16"),
              HasSubstr("sums to 5, which must divide global_batch 16"));
  EXPECT_THAT(error_of({"cluster.world_size=3", "method.name=ps-async", "method.shares=[3,1]"}),
              HasSubstr("every rank takes equally many"));
}

TEST(Job, SharesBySpeedNeedAWholeNumberOfSamplesAMicroBatch) {
  const Job job = parse({"method.shares=speed"});
  EXPECT_EQ(job.shares, Shares::speed);
  EXPECT_EQ(mesh(job), mesh(parse()));
  EXPECT_EQ(parse({"method.shares=equal"}).shares, Shares::equal);
  // A batch that replicas cannot take equally: as equal as possible until speeds are known.
  const Job odd =
      parse({"method.shares=speed", "train.global_batch=500", "method.micro_batches=4"});
  EXPECT_EQ(std::accumulate(odd.plan.schedule.shares.begin(), odd.plan.schedule.shares.end(), 0),
            125);
  EXPECT_EQ(odd.plan.samples(0), 4);
  EXPECT_EQ(odd.plan.samples(31), 3);
  EXPECT_EQ(mesh(parse({"method.shares=speed", "method.name=1f1b"})),
            mesh(parse({"method.name=1f1b"})));
  const auto error = [](const std::string& a, const std::string& b = "train.seed=1") {
    return error_of({"method.shares=speed", a, b});
  };
  EXPECT_THAT(error("train.global_batch=31"), HasSubstr("must give each of 32 replicas a sample"));
  EXPECT_THAT(error("train.global_batch=64", "method.micro_batches=3"), HasSubstr("nearest: 2"));
  EXPECT_THAT(error("method.name=ps-async"), HasSubstr("takes equally many samples; leave it out"));
  EXPECT_THAT(error("method.cp=2"), HasSubstr("leave out shares"));
  EXPECT_THAT(error_of({"method.shares=sped"}), HasSubstr("did you mean \"speed\""));
  EXPECT_THAT(error_of({"method.shares=3"}),
              HasSubstr("3 is not equal, speed or a list of integers, as in [3, 1]"));
  EXPECT_THAT(
      test::message_of([] { parse_job_to_plan(five_lines, "job.toml", {"method.shares=[1, 2]"}); }),
      HasSubstr("the planner chooses how many samples each replica takes"));
}

TEST(Job, AMicroBatchIsStatedInSamplesOrByNumber) {
  EXPECT_EQ(mesh(parse({"method.micro_batch=4"})), "pp 1 dp 32 tp 1 M 1 batch 128");
  EXPECT_EQ(mesh(parse({"method.micro_batch=4", "train.global_batch=512"})),
            "pp 1 dp 32 tp 1 M 4 batch 512");
  EXPECT_EQ(mesh(parse({"method.micro_batch=2", "method.name=1f1b", "method.pp=2"})),
            "pp 2 dp 16 tp 1 M 8 batch 256");
  EXPECT_EQ(mesh(parse({"method.micro_batch=2", "method.micro_batches=3"})),
            "pp 1 dp 32 tp 1 M 3 batch 192");
  EXPECT_EQ(mesh(parse({"method.micro_batch=2", "method.shares=speed", "train.global_batch=128"})),
            "pp 1 dp 32 tp 1 M 2 batch 128");
  EXPECT_THAT(error_of({"method.micro_batch=3", "train.global_batch=512"}),
              HasSubstr("method.micro_batch\": 3 samples on each of 32 replicas must divide "
                        "train.global_batch 512; nearest: 2"));
  EXPECT_THAT(
      error_of({"method.micro_batch=4", "train.global_batch=512", "method.micro_batches=2"}),
      HasSubstr("is 4 micro-batches of method.micro_batch 4 samples on 32 replicas; leave one"));
  EXPECT_THAT(error_of({"method.micro_batch=1", "method.shares=[3,1]", "cluster.world_size=2"}),
              HasSubstr("leave it out"));
  EXPECT_THAT(error_of({"method.micro_batch=0"}), HasSubstr("method.micro_batch"));
}

TEST(Job, DefaultsFollowTheMethod) {
  EXPECT_EQ(mesh(parse({"method.name=1f1b"})), "pp 4 dp 8 tp 1 M 16 batch 512");
  EXPECT_EQ(mesh(parse({"method.name=1f1b", "method.pp=2"})), "pp 2 dp 16 tp 1 M 8 batch 512");
  EXPECT_EQ(mesh(parse({"method.name=1f1b", "method.dp=16"})), "pp 2 dp 16 tp 1 M 8 batch 512");
  EXPECT_EQ(mesh(parse({"method.name=megatron"})), "pp 2 dp 8 tp 2 M 8 batch 512");
  EXPECT_EQ(mesh(parse({"method.name=interleaved", "cluster.world_size=6"})),
            "pp 3 dp 2 tp 1 M 12 batch 96");
  EXPECT_EQ(parse({"method.name=interleaved"}).plan.schedule.virtual_stages, 2);
  EXPECT_EQ(parse({"method.name=zero2"}).plan.exchange.sharding.zero, 2);
  EXPECT_EQ(mesh(parse({"train.global_batch=64"})), "pp 1 dp 32 tp 1 M 1 batch 64");
  EXPECT_TRUE(parse({"train.clip=1.0"}).plan.clip);
}

TEST(Job, EveryMethodHasAFiveLineJobOnEveryPlatform) {
  for (const auto& [name, strategy] : methods::strategies())
    for (const char* cluster :
         {"paper", "paper-homogeneous", "dgx1", "dgx-a100:2", "this-machine:4"})
      EXPECT_EQ(error_of({"method.name=" + name, std::string("cluster.name=") + cluster}),
                "no error")
          << name << " on " << cluster;
}

TEST(Job, ThisMachineHasAsManyRanksAsTheMesh) {
  const std::string here = "cluster.name=this-machine";
  EXPECT_EQ(parse({here, "method.dp=5"}).cluster.devices().size(), 5U);
  EXPECT_EQ(parse({here, "cluster.world_size=3"}).plan.mesh.dp, 3);
  EXPECT_EQ(parse({here, "method.name=1f1b", "method.pp=2", "method.dp=2", "method.tp=2"})
                .cluster.devices()
                .size(),
            8U);
  const Job server = parse({here, "method.name=ps-sync", "method.dp=2"});
  EXPECT_EQ(server.plan.mesh.servers, 1);
  EXPECT_EQ(server.cluster.devices().size(), 3U);
  EXPECT_EQ(parse({here}).plan.mesh.dp, parse({here}).cluster.shared_cores());
  EXPECT_THAT(error_of({"cluster.name=this-machine:2", "method.dp=4"}),
              HasSubstr("4 ranks, but the world has 2"));
}

TEST(Job, TextBySourceStaysWithItsRanks) {
  EXPECT_EQ(parse({}).train.split, Split::iid);
  EXPECT_EQ(parse({"train.split=source"}).train.split, Split::source);
  EXPECT_THAT(error_of({"train.split=sources"}), HasSubstr("did you mean \"source\""));
  EXPECT_THAT(error_of({"train.split=source", "method.name=adaptive"}),
              HasSubstr("train.split\": \"source\": method \"adaptive\" changes the samples"));
  EXPECT_THAT(error_of({"train.split=source", "adaptive.balance_every=5"}),
              HasSubstr("adaptive.balance_every changes the samples"));
  EXPECT_THAT(error_of({"train.split=source", "train.left_out=[1, 2]"}),
              HasSubstr("lost replicas"));
  EXPECT_THAT(error_of({"train.split=source", "recovery.policy=replica", "recovery.restarts=1"}),
              HasSubstr("lost replicas"));
}

TEST(Job, RanksPlayMoreClients) {
  const std::string source = "train.split=source";
  EXPECT_EQ(parse({source}).train.clients, 0);
  EXPECT_EQ(parse({source, "train.clients=40"}).train.clients, 40);
  EXPECT_THAT(error_of({"train.clients=9"}),
              HasSubstr("train.clients\": 9: clients without texts of their own are all alike"));
  EXPECT_THAT(error_of({source, "train.clients=31"}),
              HasSubstr("31: 32 data-parallel ranks play a client each in a round; at least 32"));
  EXPECT_THAT(error_of({source, "method.name=ps-async", "method.servers=1", "train.clients=99"}),
              HasSubstr("with method \"ps-async\" workers do not wait for each other"));
  EXPECT_THAT(error_of({source, "method.name=d-psgd", "train.clients=99"}),
              HasSubstr("with method \"d-psgd\" ranks never have equal ones"));
}

TEST(Job, DevicesAreChosenByNameNodeOrKind) {
  const Job v100 = parse({"cluster.devices=[\"V100 PCIe 32GB\"]"});
  EXPECT_EQ(v100.plan.mesh.dp, 8);
  EXPECT_EQ(v100.plan.placement.rank_to_device, (std::vector<Id>{18, 19, 22, 23, 26, 27, 30, 31}));
  EXPECT_EQ(parse({"cluster.devices=[\"node9\", \"node0/gpu1\"]"}).plan.placement.rank_to_device,
            (std::vector<Id>{20, 21, 22, 23, 1}));
  EXPECT_EQ(
      parse({"cluster.world_size=2", "cluster.devices=[\"node9\"]"}).plan.placement.rank_to_device,
      (std::vector<Id>{20, 21}));
  EXPECT_EQ(error_of({"cluster.devices=[\"node0/gpu2\"]"}),
            "--set cluster.devices=[\"node0/gpu2\"]: key \"cluster.devices\": \"node0/gpu2\" is no "
            "device, node or kind of paper; did you mean \"node0/gpu0\"?");
  EXPECT_THAT(error_of({"cluster.devices=[\"node0\", \"node0/gpu1\"]"}),
              HasSubstr("node0/gpu1 is listed twice"));
}

TEST(Job, MeshMustMultiplyToTheWorld) {
  EXPECT_EQ(error_of({}, std::string(five_lines) + "method.dp = 5\n"),
            "job.toml:4: key \"method.dp\": pp 1 x dp 5 x tp 1 = 5 ranks, but the world has 32; "
            "nearest mesh that fits: pp 1 x dp 32 x tp 1; or set cluster.world_size");
  EXPECT_THAT(
      error_of({"method.name=1f1b", "method.pp=3", "method.tp=2"}),
      HasSubstr("pp 3 x dp 5 x tp 2 = 30 ranks, but the world has 32; nearest mesh that fits: "
                "pp 4 x dp 4 x tp 2"));
  EXPECT_EQ(error_of({"cluster.world_size=33"}),
            "--set cluster.world_size=33: key \"cluster.world_size\": 33 ranks, but paper has 32 "
            "devices; at most 32");
  EXPECT_THAT(error_of({"cluster.world_size=25", "cluster.devices=[\"RTX 4090\"]"}),
              HasSubstr("25 ranks, but paper has 24 devices of cluster.devices; at most 24"));
  EXPECT_THAT(error_of({"method.name=ps-sync", "method.servers=32"}),
              HasSubstr("32 of 32 ranks leave no worker"));
}

TEST(Job, WhatDoesNotDivideNamesFileLineAndKey) {
  EXPECT_THAT(
      error_of({}, std::string(five_lines) + "method.tp = 8\n"),
      StartsWith("job.toml:4: key \"method.tp\": 8: must divide the 12 heads of gpt2-124m"));
  EXPECT_THAT(error_of({}, std::string(five_lines) + "train.global_batch = 33\n"),
              StartsWith("job.toml:4: key \"train.global_batch\": 33: must be a multiple of"));
  EXPECT_THAT(
      error_of({"method.micro_batches=2147483647"}),
      HasSubstr("each of 32 replicas has only 16 samples of train.global_batch 512; at most 16"));
  EXPECT_THAT(error_of({"method.virtual_stages=2147483647"}), HasSubstr("must be from 1 to 1024"));
  EXPECT_THAT(error_of({"method.name=1f1b", "method.pp=16"}),
              StartsWith("--set method.pp=16: key \"method.pp\": 16"));
  EXPECT_THAT(error_of({"method.pp=4"}), HasSubstr("does not combine with method \"ddp\""));
}

TEST(Job, NamesThatAreNotKnown) {
  EXPECT_THAT(error_of({"model.name=gpt2-124n"}),
              testing::AllOf(StartsWith("--set model.name=gpt2-124n: key \"model.name\": "),
                             HasSubstr("did you mean \"gpt2-124m\"?")));
  EXPECT_THAT(error_of({"cluster.name=papr"}),
              StartsWith("--set cluster.name=papr: key \"cluster.name\": cluster \"papr\" is not "
                         "known; did you mean \"paper\"?"));
  EXPECT_THAT(
      error_of({"method.name=zero4"}),
      StartsWith("--set method.name=zero4: key \"method.name\": unknown method \"zero4\", did "
                 "you mean \"zero1\"?; known: 1f1b, adaptive, byteps, byteps-async, d-psgd, ddp,"));
}

TEST(Job, UnknownKeysAndWrongUnits) {
  EXPECT_EQ(error_of({}, std::string(five_lines) + "method.microbatches = 2\n"),
            "job.toml:4: key \"method.microbatches\": unknown; did you mean \"micro_batches\"?");
  EXPECT_EQ(error_of({"model.seq_len=128"}),
            "--set model.seq_len=128: key \"model.seq_len\": unknown; did you mean "
            "\"train.seq_len\"?");
  EXPECT_THAT(error_of({"method.bucket=25Mb"}), HasSubstr("units that fit: B, kB, MB"));
  EXPECT_THAT(error_of({"run.timeout=30"}), HasSubstr("units that fit: ns, us, ms, s, min, h, d"));
  EXPECT_THAT(error_of({"method.precision=int8"}),
              HasSubstr("is not one of fp32, bf16, fp16, fp8"));
  EXPECT_THAT(error_of({"method.order=pp,tp"}), HasSubstr("is not one of pp,dp,tp, pp,tp,dp"));
  EXPECT_THAT(error_of({"method.density=0"}), HasSubstr("must be above 0 and at most 1"));
  EXPECT_THAT(error_of({"train.steps=0"}),
              HasSubstr("0 is out of range: must be from 1 to 2147483647"));
}

TEST(Job, ConstraintsBetweenKeys) {
  EXPECT_EQ(error_of({"method.precision=bf16"}),
            "--set method.precision=bf16: key \"method.precision\": V100 PCIe 32GB of node8/gpu2 "
            "cannot compute in bf16; fp32 or fp16 would fit");
  EXPECT_EQ(error_of({"method.precision=bf16", "cluster.devices=[\"RTX 4090\"]"}), "no error");
  EXPECT_EQ(error_of({"method.precision=fp8"}),
            "--set method.precision=fp8: key \"method.precision\": V100 PCIe 32GB of node8/gpu2 "
            "cannot compute in fp8; fp32 or fp16 would fit");
  EXPECT_EQ(error_of({"method.precision=fp8", "cluster.devices=[\"RTX 4090\"]"}), "no error");
  EXPECT_THAT(
      error_of({"method.name=zero3", "method.zero=1"}),
      StartsWith("--set method.zero=1: key \"method.zero\": 1: method \"zero3\" is level 3"));
  EXPECT_THAT(error_of({"method.name=interleaved", "method.virtual_stages=1"}),
              HasSubstr("key \"method.virtual_stages\": 1: method \"interleaved\" implies 2"));
  EXPECT_THAT(error_of({"train.min_lr=1.0"}), HasSubstr("1 is above train.lr 0.0001"));
  EXPECT_THAT(error_of({"run.heartbeat=40s"}), HasSubstr("at most a quarter of run.timeout"));
  EXPECT_THAT(error_of({"disturb.stragglers=[{rank=32,factor=2}]"}),
              StartsWith("--set disturb.stragglers=[{rank=32,factor=2}]: key "
                         "\"disturb.stragglers[0].rank\": 32 is not a rank"));
  EXPECT_THAT(error_of({"disturb.slow_links=[{link=\"node0/nic0>fabrik\",factor=2}]"}),
              testing::AllOf(HasSubstr("key \"disturb.slow_links[0].link\": "),
                             HasSubstr("node0/nic0>fabric")));
  EXPECT_THAT(error_of({"disturb.slow_links=[{link=\"uplink7\",factor=2}]"}),
              HasSubstr("no such link; it has node0/gpu0>node0/host, "));
  EXPECT_THAT(
      error_of({"cluster.links.torus.bandwidth=10GB/s"}),
      StartsWith("--set cluster.links.torus.bandwidth=10GB/s: key \"cluster.links.torus\": "));
  EXPECT_THAT(error_of({"cluster.profile=none.json"}), HasSubstr("\"none.json\" does not exist"));
}

TEST(Job, ReadsEverySection) {
  const Job job = parse({"train.seq_len=128", "train.optimizer=sgd", "train.schedule=cosine",
                         "train.lr=3e-4", "run.timeout=5s", "run.threads=2",
                         "disturb.compute_jitter=0.05", "disturb.stragglers=[{rank=3,factor=5}]",
                         "method.collective=hierarchical", "method.bucket=1MiB", "train.seed=7"});
  EXPECT_EQ(job.model.seq_len, 128);
  EXPECT_EQ(job.train.seq_len, 128);
  EXPECT_EQ(job.plan.optimizer, plan::Optimizer::sgd);
  EXPECT_EQ(job.train.decay, Decay::cosine);
  EXPECT_DOUBLE_EQ(job.train.lr, 3e-4);
  EXPECT_DOUBLE_EQ(job.run.timeout.value, 5);
  EXPECT_EQ(job.run.threads, 2);
  EXPECT_DOUBLE_EQ(job.disturb.compute_sigma, 0.05);
  ASSERT_EQ(job.disturb.stragglers.size(), 1U);
  EXPECT_EQ(job.disturb.stragglers[0].rank, 3U);
  EXPECT_EQ(job.plan.exchange.collective, program::Algorithm::hierarchical);
  EXPECT_DOUBLE_EQ(job.plan.exchange.bucket_bytes(), 1048576);
  EXPECT_EQ(job.train.seed, 7U);
  EXPECT_EQ(job.where.at("method.name"), "job.toml:3");
  EXPECT_EQ(job.where.at("run.threads"), "--set run.threads=2");
}

TEST(Job, PlacesTheErrorsOfThoseWhoReadPlans) {
  const Job job = parse();
  EXPECT_STREQ(located(job, InputError("method.name: x: no")).what(),
               "job.toml:3: key \"method.name\": x: no");
  EXPECT_STREQ(located(job, InputError("method.pp: 3: no")).what(),
               "job.toml: key \"method.pp\": 3: no");
  EXPECT_STREQ(located(job, InputError("rank 3: no. of GPUs")).what(), "rank 3: no. of GPUs");
}

TEST(Job, DocumentationListsExactlyTheKeysThatTheReaderKnows) {
  test::expect_documented("docs/job.md", job_keys());
}

}  // namespace
}  // namespace rehearse::job
