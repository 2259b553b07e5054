// Profiles: writing and reading files, interpolation, merging, and files that are refused.
#include "engine/costs/profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "engine/base/errors.h"

namespace rehearse::costs {
namespace {

Profile sample() {
  Profile p;
  p.host = "a machine", p.cores = 2, p.ranks = 2, p.threads_per_rank = 1;
  p.cpu_seconds_per_byte = 1e-10;
  p.segments = {{"gpt2-124m", model::SegmentKind::mlp, program::Pass::backward, 2, 128, 1,
                 program::DType::f32, 0.02, "cpu"},
                {"gpt2-124m", model::SegmentKind::mlp, program::Pass::backward, 4, 128, 1,
                 program::DType::f32, 0.03, "cpu"}};
  p.updates = {{plan::Optimizer::sgd, program::DType::f32, 1e-9, 1e-6, "cpu"}};
  p.kernels = {{program::KernelKind::measure, 1e10, 1e-6, "cpu"}};
  p.collectives = {{program::Move::all_reduce, 2, 1000, 1e-4, "cpu"},
                   {program::Move::all_reduce, 2, 3000, 2e-4, "cpu"}};
  p.transfers = {{1000, 1e-5, "cpu"}};
  p.cluster = "pair", p.cluster_hash = 0xfedcba9876543210;
  p.pairs = {{0, 1, 1e-6, 1e-8, 1e9, 1e6}, {1, 0, 2e-6, 1e-8, 2e9, 1e6}};
  p.variances = {{"gpt2-124m", 0, 1000, 50, 2e-3, 2e-6, 4e-3, 100}};
  return p;
}

TEST(Profile, RoundTrip) {
  const std::string json = to_json(sample());
  EXPECT_EQ(to_json(parse_profile(json, "p.json")), json);
  EXPECT_THAT(json, testing::HasSubstr("\"cluster_hash\": \"fedcba9876543210\""));
}

// A file of version 1: one device kind for the whole file, no pairs, no variances.
TEST(Profile, ReadsVersion1) {
  const auto file = [](const std::string& kind) {
    return R"({"profile_version": 1, "host": "h", "device_kind": ")" + kind +
           R"(", "cores": 2, "ranks": 2, "threads_per_rank": 1, "cpu_seconds_per_byte": 0,
 "segments": [{"model": "m", "kind": "head", "pass": "forward", "samples": 1, "seq_len": 8, "tp": 1,
   "dtype": "f32", "seconds": 0.5}],
 "updates": [], "kernels": [{"kind": "cast", "bytes_per_second": 4, "launch": 1}],
 "collectives": [], "transfers": [{"bytes": 8, "seconds": 2}]})";
  };
  const Profile one = parse_profile(file("cpu"), "p"), all = parse_profile(file(""), "p");
  EXPECT_TRUE(one.covers("cpu"));
  EXPECT_FALSE(one.covers("gpu"));
  EXPECT_DOUBLE_EQ(one.kernel_seconds(program::KernelKind::cast, 8, "cpu").value(), 3);
  EXPECT_FALSE(one.kernel_seconds(program::KernelKind::cast, 8, "gpu"));
  EXPECT_TRUE(all.covers("gpu"));
  EXPECT_DOUBLE_EQ(all.transfer_seconds(8, "gpu").value(), 2);
  EXPECT_EQ(one.cluster_hash, 0U);
}

// A file of version 2: no word about encryption.
TEST(Profile, ReadsVersion2) {
  std::string json = to_json(sample());
  const auto replace = [&](const std::string& from, const std::string& to) {
    const auto at = json.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    json.replace(at, from.size(), to);
  };
  replace("\"profile_version\": 3", "\"profile_version\": 2");
  EXPECT_THROW(parse_profile(json, "p.json"), InputError);
  replace(" \"encrypted\": false,\n", "");
  const Profile old = parse_profile(json, "p.json");
  EXPECT_FALSE(old.encrypted);
  EXPECT_EQ(to_json(old), to_json(sample()));
}

TEST(Profile, Interpolates) {
  const Profile p = sample();
  auto mlp = [&](int samples, int seq_len) {
    return p.segment_seconds("gpt2-124m", model::SegmentKind::mlp, program::Pass::backward, samples,
                             seq_len, 1, program::DType::f32, "cpu");
  };
  EXPECT_DOUBLE_EQ(mlp(2, 128).value(), 0.02);
  EXPECT_DOUBLE_EQ(mlp(3, 128).value(), 0.025);
  EXPECT_DOUBLE_EQ(mlp(1, 128).value(), 0.01);
  EXPECT_DOUBLE_EQ(mlp(8, 128).value(), 0.06);
  EXPECT_FALSE(p.segment_seconds("gpt2-124m", model::SegmentKind::mlp, program::Pass::forward, 2,
                                 128, 1, program::DType::f32, "cpu"));
  EXPECT_FALSE(p.segment_seconds("other", model::SegmentKind::mlp, program::Pass::backward, 2, 128,
                                 1, program::DType::f32, "cpu"));
  EXPECT_DOUBLE_EQ(p.collective_seconds(program::Move::all_reduce, 2, 10, "cpu").value(), 1e-4);
  EXPECT_DOUBLE_EQ(p.collective_seconds(program::Move::all_reduce, 2, 2000, "cpu").value(), 1.5e-4);
  EXPECT_DOUBLE_EQ(p.collective_seconds(program::Move::all_reduce, 2, 6000, "cpu").value(), 4e-4);
  EXPECT_FALSE(p.collective_seconds(program::Move::all_reduce, 3, 10, "cpu"));
  // 1000 elements: of gradient, weight and momentum five fp32 numbers are read or written.
  const auto sgd = [&](std::int64_t bytes) {
    return p.update_seconds(plan::Optimizer::sgd, program::DType::f32, bytes, "cpu").value();
  };
  EXPECT_DOUBLE_EQ(sgd(20'000), 2e-6);
  EXPECT_DOUBLE_EQ(sgd(10'000), 1.5e-6);  // as many starts, half the bytes
  EXPECT_FALSE(p.update_seconds(plan::Optimizer::adamw, program::DType::f32, 1000, "cpu"));
}

TEST(Profile, FindsPairsByTheirEnds) {
  const Profile p = sample();
  ASSERT_NE(p.pair(1, 0), nullptr);
  EXPECT_DOUBLE_EQ(p.pair(1, 0)->bandwidth, 2e9);
  EXPECT_EQ(p.pair(0, 2), nullptr);
  EXPECT_EQ(p.pair(0, 0), nullptr);
}

TEST(Profile, MergesUnlikeDevicesAndParts) {
  Profile cpu = sample(), gpu = sample();
  cpu.pairs.clear(), cpu.cluster_hash = 0, cpu.cluster.clear(), cpu.variances.clear();
  gpu.host = "another";
  for (SegmentTime& s : gpu.segments) s.device_kind = "gpu", s.seconds /= 10;
  gpu.updates.clear(), gpu.kernels.clear(), gpu.collectives.clear(), gpu.transfers.clear();
  const Profile both = merge(cpu, gpu);
  const auto seconds = [&](const char* kind) {
    return both.segment_seconds("gpt2-124m", model::SegmentKind::mlp, program::Pass::backward, 2,
                                128, 1, program::DType::f32, kind);
  };
  EXPECT_DOUBLE_EQ(seconds("cpu").value(), 0.02);
  EXPECT_DOUBLE_EQ(seconds("gpu").value(), 0.002);
  EXPECT_FALSE(seconds("tpu"));
  EXPECT_EQ(both.host, "a machine; another");
  EXPECT_EQ(both.cluster_hash, gpu.cluster_hash);
  EXPECT_EQ(both.pairs.size(), 2U);
  EXPECT_EQ(both.variances.size(), 1U);
  // A profile merged with itself is unchanged. A profile without times does not set `ranks`.
  EXPECT_EQ(to_json(merge(cpu, cpu)), to_json(cpu));
  Profile network = {.cluster = gpu.cluster, .cluster_hash = gpu.cluster_hash, .pairs = gpu.pairs};
  EXPECT_EQ(to_json(merge(network, sample())), to_json(sample()));
  EXPECT_EQ(merge(cpu, network).ranks, 2);
}

TEST(Profile, RefusesToMergeContradictions) {
  const auto message = [](const Profile& other) {
    try {
      merge(sample(), other, "a.json", "b.json");
    } catch (const InputError& e) {
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  Profile p = sample();
  p.cluster = "other", p.cluster_hash = 5;
  EXPECT_THAT(message(p), testing::AllOf(testing::HasSubstr("a.json and b.json"),
                                         testing::HasSubstr("two clusters, pair"),
                                         testing::HasSubstr("other (0000000000000005)")));
  p = sample(), p.encrypted = true;
  EXPECT_THAT(message(p), testing::HasSubstr("the connections of one were encrypted"));
  p.collectives.clear(), p.transfers.clear(), p.pairs.clear(), p.cluster_hash = 0;
  EXPECT_EQ(message(p), "accepted");
  p = sample(), p.ranks = 4;
  EXPECT_THAT(message(p), testing::HasSubstr("2 ranks of 1 threads were at work, and 4"));
  p = sample(), p.segments[1].seconds = 9;
  EXPECT_THAT(message(p), testing::HasSubstr("mlp backward of gpt2-124m, 4 samples"));
  p = sample(), p.pairs[1].latency = 9;
  EXPECT_THAT(message(p), testing::HasSubstr("pair 1 to 0"));
  p = sample(), p.variances[0].total = 9;
  EXPECT_THAT(message(p), testing::HasSubstr("variance of segment 0 of gpt2-124m"));
}

/// The error of loading this profile for a job on `cluster`, or "accepted".
std::string use(const Profile& profile, const cluster::Cluster& cluster,
                Profile* loaded = nullptr) {
  const std::string path = testing::TempDir() + "/" +
                           testing::UnitTest::GetInstance()->current_test_info()->name() + ".json";
  std::ofstream(path) << to_json(profile);
  std::string out = "accepted";
  try {
    Profile found = load_profile(path, cluster);
    if (loaded) *loaded = std::move(found);
  } catch (const InputError& e) {
    out = e.what();
  }
  std::filesystem::remove(path);
  return out;
}

TEST(Profile, IsRefusedOnAnotherCluster) {
  const cluster::Cluster paper = cluster::load_cluster("paper");
  Profile p;
  p.cluster = "paper", p.cluster_hash = paper.hash(), p.pairs = {{0, 1, 1e-6, 0, 1e9, 0}};
  EXPECT_EQ(use(p, paper), "accepted");
  EXPECT_THAT(use(p, cluster::load_cluster("dgx1")),
              testing::AllOf(testing::StartsWith("cluster.profile: "),
                             testing::HasSubstr("on paper ("), testing::HasSubstr("is dgx1 (")));
  // Times of a device kind need only one such device in the cluster.
  p = {}, p.kernels = {{program::KernelKind::cast, 1e9, 0, "V100 PCIe 32GB"}};
  EXPECT_EQ(use(p, paper), "accepted");
  EXPECT_THAT(use(p, cluster::load_cluster("dgx-a100")), testing::HasSubstr("A100"));
  p.kernels[0].device_kind.clear();
  EXPECT_EQ(use(p, cluster::load_cluster("dgx-a100")), "accepted");
}

TEST(Profile, OfAHostServesOtherNumbersOfItsRanks) {
  Profile p, loaded;
  p.ranks = 2, p.cluster = "this-machine:2",
  p.cluster_hash = cluster::load_cluster(p.cluster).hash();
  p.kernels = {{program::KernelKind::cast, 1e9, 0, "CPU core"}};
  p.pairs = {{0, 1, 1e-6, 0, 1e9, 0}};
  EXPECT_EQ(use(p, cluster::load_cluster("this-machine:2"), &loaded), "accepted");
  EXPECT_EQ(loaded.pairs.size(), 1U);
  EXPECT_EQ(use(p, cluster::load_cluster("this-machine:3"), &loaded), "accepted");
  EXPECT_TRUE(loaded.pairs.empty());
  p.cluster_hash += 1;
  EXPECT_THAT(use(p, cluster::load_cluster("this-machine:3")),
              testing::HasSubstr("another cluster"));
}

TEST(Profile, RefusesWhatItDoesNotUnderstand) {
  auto message = [](std::string json, const std::string& from, const std::string& to) {
    const auto at = json.find(from);
    EXPECT_NE(at, std::string::npos);
    json.replace(at, from.size(), to);
    try {
      parse_profile(json, "p.json");
    } catch (const InputError& e) {
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  const std::string json = to_json(sample());
  EXPECT_THAT(message(json, "\"profile_version\": 3", "\"profile_version\": 9"),
              testing::AllOf(testing::HasSubstr("p.json"), testing::HasSubstr("9")));
  EXPECT_THAT(message(json, "\"mlp\"", "\"mlpp\""), testing::HasSubstr("did you mean \"mlp\""));
  EXPECT_THAT(message(json, "\"seconds\": 0.02", "\"seconds\": -1"),
              testing::HasSubstr("segments[0]"));
  EXPECT_THAT(message(json, "\"cores\"", "\"core\""), testing::HasSubstr("missing"));
  EXPECT_THAT(message(json, "\"host\"", "\"extra\": 1, \"host\""),
              testing::HasSubstr("unknown key \"extra\""));
  EXPECT_THAT(message(json, "\"from\": 1", "\"from\": 0"), testing::HasSubstr("itself"));
  EXPECT_THAT(message(json, "\"from\": 0,\n   \"to\": 1", "\"from\": 1,\n   \"to\": 0"),
              testing::HasSubstr("pair 1 to 0 stands there twice"));
  Profile doubled = sample();
  doubled.segments.push_back(doubled.segments.front());
  doubled.segments.back().seconds *= 3;
  EXPECT_THAT(message(to_json(doubled), "{", "{"), testing::HasSubstr(" stands there twice"));
  EXPECT_THAT(message(json, "fedcba9876543210", "fedcba987654321"),
              testing::HasSubstr("16 hexadecimal digits"));
  EXPECT_THAT(message(json, "fedcba9876543210", ""), testing::HasSubstr("\"cluster_hash\""));
  EXPECT_THAT(message(json, "{", "["),
              testing::AllOf(testing::StartsWith("p.json:2:"), testing::HasSubstr(": not JSON: "),
                             testing::HasSubstr("rehearse profile -o FILE"),
                             testing::Not(testing::HasSubstr("json.exception"))));
  EXPECT_THAT(message(json, "\"seconds\": 0.02", "\"seconds\": 1e300"),
              testing::HasSubstr("segments[0]: \"seconds\" = 1e+300: must be from 0 to 3600"));
  EXPECT_THAT(message(json, "\"seconds\": 0.02", "\"seconds\": 1e999"),
              testing::AllOf(testing::StartsWith("p.json: not JSON: number overflow"),
                             testing::Not(testing::HasSubstr("json.exception"))));
  EXPECT_THROW(load_profile("no/such/file.json"), InputError);
}

}  // namespace
}  // namespace rehearse::costs
