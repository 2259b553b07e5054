// Tests every key of a job with a value of a wrong type and out of range: the message names the key
// and its place (the file's line, or --set). A job with the setting that a message recommends is
// accepted.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <regex>
#include <string>
#include <vector>

#include "engine/job/job.h"
#include "tests/message_of.h"

namespace rehearse::job {
namespace {

using Words = std::vector<std::string>;

const std::map<std::string, std::string> base = {
    {"model.name", "\"gpt2-124m\""}, {"cluster.name", "\"paper\""}, {"method.name", "\"ddp\""}};

/// Values of other types than this one, or misspelt ones.
Words wrong_types(const std::string& type) {
  if (type == "integer") return {"\"four\"", "1.5", "true", "[1]"};
  if (type == "number") return {"\"many\"", "true", "[1]", "nan", "inf", "-inf"};
  if (type == "text") return {"3", "true", "[\"a\"]"};
  if (type == "list of text") return {"3", "\"a\"", "[1]"};
  if (type == "list of integers") return {"3", "\"a\"", "[\"a\"]", "[1.5]"};
  if (type == "true or false") return {"1", "\"yes\""};
  if (type == "duration") return {"3", "true", "\"3 parsecs\"", "\"25MB\"", "\"1e308h\""};
  if (type == "size") return {"3", "true", "\"25Mb\"", "\"3s\"", "\"1e308EB\""};
  return {"3", "true", "\"no such choice\""};
}

/// By key: values out of range. A test checks that every key with a number is listed.
const std::map<std::string, Words> out_of_range = {
    {"model.layers", {"0", "-1", "99999999999"}},
    {"model.hidden", {"0", "-1", "99999999999"}},
    {"model.heads", {"0", "-1", "99999999999"}},
    {"model.kv_heads", {"0", "-1", "99999999999"}},
    {"model.head_dim", {"0", "-1", "99999999999"}},
    {"model.ffn", {"0", "-1", "99999999999"}},
    {"model.vocab", {"0", "-1", "99999999999"}},
    {"model.padded_vocab", {"0", "-1", "99999999999"}},
    {"model.max_positions", {"0", "-1", "99999999999"}},
    {"model.outputs", {"-1", "99999999999"}},
    {"model.experts", {"-1", "99999999999"}},
    {"model.experts_per_token", {"0", "-1", "99999999999"}},
    {"model.router_aux_loss", {"-0.1", "1001"}},
    {"model.dropout", {"-0.1", "1.1"}},
    {"software.kernels.attention_rate", {"0", "11"}},
    {"software.kernels.reductions", {"0", "1.1"}},
    {"software.kernels.softmax_multiple", {"0", "65"}},
    {"software.kernels.head_copies", {"-1", "65"}},
    {"software.kernels.qkv_forward", {"0", "65"}},
    {"software.kernels.qkv_backward", {"0", "65"}},
    {"software.kernels.update_bytes", {"-1", "1e5"}},
    {"software.communication.launch", {"\"-1us\"", "\"2h\""}},
    {"software.communication.in_node", {"\"-1us\"", "\"2h\""}},
    {"software.communication.across", {"\"-1us\"", "\"2h\""}},
    {"software.host.forward", {"\"-1us\"", "\"2h\""}},
    {"software.host.backward", {"\"-1us\"", "\"2h\""}},
    {"software.host.micro_batch", {"\"-1us\"", "\"2h\""}},
    {"software.host.update", {"\"-1us\"", "\"2h\""}},
    {"software.host.transfer", {"\"-1us\"", "\"2h\""}},
    {"software.host.staging", {"\"1B/s\"", "\"100PB/s\""}},
    {"cluster.world_size", {"0", "-1", "99999999"}},
    {"cluster.fabric.nodes_per_leaf", {"-1", "99999999"}},
    {"cluster.fabric.oversubscription", {"0.5", "1e300"}},
    {"cluster.fabric.latency", {"\"-1s\"", "\"99999h\""}},
    {"cluster.fabric.nodes_per_group", {"-1", "99999999"}},
    {"cluster.fabric.group_latency", {"\"-1s\"", "\"99999h\""}},
    {"cluster.fabric.sum_latency", {"\"-1s\"", "\"99999h\""}},
    {"cluster.links.network.bandwidth_factor", {"0", "1e7"}},
    {"cluster.links.network.latency", {"\"-1s\"", "\"99999h\""}},
    {"cluster.links.nvlink.bandwidth_factor", {"0", "1e7"}},
    {"cluster.links.nvlink.latency", {"\"-1s\"", "\"99999h\""}},
    {"cluster.links.pcie.bandwidth_factor", {"0", "1e7"}},
    {"cluster.links.pcie.latency", {"\"-1s\"", "\"99999h\""}},
    {"cluster.links.torus.bandwidth_factor", {"0", "1e7"}},
    {"cluster.links.torus.latency", {"\"-1s\"", "\"99999h\""}},
    {"cluster.memory_reserve", {"\"-1GB\"", "\"1e6EB\""}},
    {"cluster.replace", {"[\"H100\"]", "[\": H100\"]"}},
    {"cluster.prices", {"[\"-1 USD/h\"]", "[\"free\"]", "[\"2 USD\"]", "[\"NoSuch: 2 USD/h\"]"}},
    {"method.pp", {"0", "-1", "99999999"}},
    {"method.dp", {"0", "-1", "99999999"}},
    {"method.tp", {"0", "-1", "99999999"}},
    {"method.zero", {"-1", "4"}},
    {"method.shares", {"[0]", "[1, -1]", "[99999999]"}},
    {"method.stage_layers", {"[-1]", "[1, 99999999]"}},
    {"method.micro_batch", {"0", "-1", "99999999"}},
    {"method.micro_batches", {"0", "-1", "99999999999"}},
    {"method.virtual_stages", {"0", "2000"}},
    {"method.bucket", {"\"-1MB\"", "\"1e6EB\""}},
    {"method.cp", {"0", "-1", "99999999999"}},
    {"method.cycle_time", {"\"-1ms\"", "\"2s\""}},
    {"method.response_cache", {"-1", "99999999"}},
    {"method.credit", {"0", "-1", "99999999"}},
    {"method.local_ranks", {"0", "-1", "99999999"}},
    {"method.local_steps", {"0", "-1", "9999999"}},
    {"method.deadline", {"\"0s\"", "\"-1s\""}},
    {"method.neighbours", {"-1", "99999999999"}},
    {"method.threshold", {"-1", "99999999999"}},
    {"method.clipping_range", {"0", "-1"}},
    {"method.levels", {"1", "99999999999"}},
    {"method.outer_lr", {"0", "-1"}},
    {"method.outer_momentum", {"-0.1", "1"}},
    {"method.degree", {"0", "-1", "99999999"}},
    {"method.graph_seed", {"-1", "99999999999"}},
    {"method.recompute_layers", {"-1", "99999999999"}},
    {"method.offload_layers", {"-1", "99999999999"}},
    {"method.offload_ahead", {"0", "-1", "5000"}},
    {"method.prefetch", {"-1", "5000"}},
    {"method.pending_buckets", {"0", "-1", "5000"}},
    {"method.shard_group", {"-1", "99999999999"}},
    {"method.reshard_group", {"-1", "99999999999"}},
    {"method.density", {"0", "-0.1", "1.5", "1e300"}},
    {"method.bits", {"0", "9", "-1"}},
    {"method.block", {"0", "7", "99999999"}},
    {"method.rank", {"0", "-1", "2000"}},
    {"method.start", {"-1", "99999999999"}},
    {"method.freeze", {"0", "-1", "99999999999"}},
    {"method.s_min", {"-0.1", "1.5"}},
    {"method.s_max", {"-0.1", "1.5", "1"}},
    {"method.staleness", {"-1", "99999999999"}},
    {"method.servers", {"-1", "99999999"}},
    {"train.global_batch", {"0", "-8", "99999999"}},
    {"train.seq_len", {"0", "-8", "99999999", "100000"}},
    {"train.steps", {"0", "-1", "99999999999"}},
    {"train.seed", {"-1"}},
    {"train.lr", {"0", "-1"}},
    {"train.beta1", {"-0.1", "1.1"}},
    {"train.beta2", {"-0.1", "1.1"}},
    {"train.eps", {"0", "-1"}},
    {"train.momentum", {"-0.1", "1.1"}},
    {"train.weight_decay", {"-1"}},
    {"train.warmup_steps", {"-1", "99999999999"}},
    {"train.min_lr", {"-1", "1"}},
    {"train.clip", {"-1"}},
    {"train.eval_every", {"-1", "99999999999"}},
    {"train.clients", {"-1", "99999999999"}},
    {"train.eval_batches", {"0", "99999999999"}},
    {"train.save_every", {"-1", "99999999999"}},
    {"train.left_out", {"[-1, 1]", "[1, 99999999999]"}},
    {"adaptive.warmup_steps", {"0", "-1", "99999999999"}},
    {"adaptive.plan_timeout", {"\"0s\"", "\"-1s\"", "\"99999h\""}},
    {"adaptive.balance_every", {"-1", "99999999999"}},
    {"adaptive.balance_bound", {"-0.1", "1.1"}},
    {"run.timeout", {"\"0s\"", "\"-1s\"", "\"99999h\""}},
    {"run.connect_timeout", {"\"0s\"", "\"-1s\"", "\"99999h\""}},
    {"run.heartbeat", {"\"0s\"", "\"-1s\"", "\"16s\"", "\"99999h\""}},
    {"run.threads", {"-1", "99999999999"}},
    {"run.log_every", {"0", "-1", "99999999999"}},
    {"run.check_every", {"-1", "99999999999"}},
    {"disturb.seed", {"-1"}},
    {"disturb.compute_jitter", {"-0.1", "10", "1e300"}},
    {"disturb.stragglers[].rank", {"-1", "32", "99999999999"}},
    {"disturb.stragglers[].factor", {"0", "-1", "1e300", "1e-300"}},
    {"disturb.straggler_probability", {"-0.1", "1.1"}},
    {"disturb.straggler_factor", {"0", "-1", "1e300", "1e-300"}},
    {"disturb.link_jitter", {"-0.1", "10", "1e300"}},
    {"disturb.slow_links[].factor", {"0", "-1", "1e300", "1e-300"}},
    {"faults.seed", {"-1"}},
    {"faults.rate", {"-0.1", "1e300"}},
    {"checkpoint.changed", {"0", "-1", "1.1"}},
    {"checkpoint.bits", {"-1", "4", "17"}},
    {"checkpoint.full_every", {"0", "-1", "99999999999"}},
    {"checkpoint.group", {"1", "-1", "99999999999"}},
    {"recovery.detection", {"\"-1s\"", "\"99999h\""}},
    {"recovery.restart", {"\"-1s\"", "\"99999h\""}},
    {"recovery.replacement", {"\"-1s\"", "\"99999h\""}},
    {"recovery.spares", {"-1", "99999999999"}},
    {"recovery.replan", {"\"-1s\"", "\"99999h\""}},
    {"recovery.takeover", {"\"-1s\"", "\"99999h\""}},
    {"recovery.overhead", {"-0.1", "101"}},
    {"recovery.restarts", {"-1", "1048577"}},
    {"recovery.slow_factor", {"-1", "1e300", "1.4"}},
    {"recovery.min_ranks", {"0", "-1", "99999999999"}},
};

bool is_number(const std::string& type) {
  return type == "integer" || type == "number" || type == "list of integers" ||
         type == "duration" || type == "size";
}

/// Turns a key of an array of tables, such as "disturb.stragglers[].rank" = V, into the path and
/// value of the whole array, as a setting states it.
std::pair<std::string, std::string> as_setting(const std::string& path, const std::string& value) {
  const auto brackets = path.find("[].");
  if (brackets == std::string::npos) return {path, value};
  const std::string array = path.substr(0, brackets), key = path.substr(brackets + 3);
  std::map<std::string, std::string> table = {{"factor", "2.0"}};
  if (array == "disturb.stragglers") table["rank"] = "0";
  if (array == "disturb.slow_links") table["link"] = "\"node0/nic0>fabric\"";
  table[key] = value;
  std::string inside;
  for (const auto& [k, v] : table)
    inside += fmt::format("{}{} = {}", inside.empty() ? "" : ", ", k, v);
  return {array, fmt::format("[{{ {} }}]", inside)};
}

void expect_named(const std::string& path, const std::string& wrong) {
  std::string named = path;
  if (const auto at = named.find("[]"); at != std::string::npos) named.insert(at + 1, "0");
  const auto [key, value] = as_setting(path, wrong);
  const std::string says = fmt::format(": key \"{}\": ", named);

  std::string text;
  for (const auto& [k, v] : base)
    if (k != key) text += fmt::format("{} = {}\n", k, v);
  const std::string rest = text;
  const auto line = 1 + std::count(rest.begin(), rest.end(), '\n');
  text += fmt::format("{} = {}\n", key, value);
  EXPECT_THAT(test::message_of([&] { parse_job(text, "d2.toml"); }),
              testing::StartsWith(fmt::format("d2.toml:{}{}", line, says)))
      << text;

  std::string whole;
  for (const auto& [k, v] : base) whole += fmt::format("{} = {}\n", k, v);
  const std::string set = fmt::format("{}={}", key, value);
  EXPECT_THAT(test::message_of([&] { parse_job(whole, "d2.toml", {set}); }),
              testing::StartsWith(fmt::format("--set {}{}", set, says)));
}

TEST(JobKeys, OfTheWrongTypeAreNamedWithTheirPlace) {
  for (const Config::Key& key : job_keys())
    for (const std::string& wrong : wrong_types(key.type)) expect_named(key.path, wrong);
}

TEST(JobKeys, OutOfRangeAreNamedWithTheirPlace) {
  for (const Config::Key& key : job_keys()) {
    if (!is_number(key.type)) continue;
    ASSERT_TRUE(out_of_range.contains(key.path)) << key.path << " has no value out of range here";
    for (const std::string& wrong : out_of_range.at(key.path)) expect_named(key.path, wrong);
  }
}

TEST(JobKeys, NoneOfAnArrayOfTablesIsFine) {
  EXPECT_EQ(test::message_of([] {
              parse_job(
                  "model.name = \"gpt-tiny\"\ncluster.name = \"paper\"\nmethod.name = \"ddp\"\n",
                  "job.toml", {"disturb.stragglers=[]", "disturb.slow_links=[]"});
            }),
            "no error");
}

std::string try_it(const std::vector<std::string>& set) {
  std::string text;
  for (const auto& [k, v] : base) text += fmt::format("{} = {}\n", k, v);
  return test::message_of([&] { parse_job(text, "job.toml", set); });
}

/// The settings that an error about `key` recommends.
Words recommended(const std::string& message, const std::string& key) {
  std::smatch found;
  if (std::regex_search(message, found,
                        std::regex(R"(nearest mesh that fits: pp (\d+) x dp (\d+) x tp (\d+))")))
    return {"method.pp=" + found[1].str(), "method.dp=" + found[2].str(),
            "method.tp=" + found[3].str()};
  if (std::regex_search(message, found, std::regex(R"((?:nearest:|at most) ([^;]+)$)")))
    return {key + "=" + found[1].str()};
  return {};
}

TEST(JobKeys, WhatARefusalRecommendsIsAccepted) {
  const std::string grouped = testing::TempDir() + "grouped.toml";
  std::ofstream(grouped) << "family = \"llama\"\nlayers = 8\nhidden = 512\nheads = 32\n"
                            "kv_heads = 8\nvocab = 1024\nseq_len = 64\n";
  const std::vector<std::pair<std::string, Words>> cases = {
      {"method.tp", {"model.name=gpt2-1.5b", "method.name=megatron", "method.tp=3"}},
      {"method.tp",
       {"model.name=gpt2-1.5b", "method.name=megatron", "method.tp=3", "cluster.world_size=6"}},
      {"method.tp", {"method.name=megatron", "method.tp=8"}},
      {"method.tp", {"method.name=megatron", "method.tp=5", "cluster.world_size=20"}},
      {"method.tp",
       {"model.name=" + grouped, "method.name=megatron", "method.tp=16",
        "cluster.name=dgx-a100:4"}},
      {"method.pp", {"method.name=1f1b", "method.pp=3", "method.tp=2"}},
      {"method.pp", {"method.name=1f1b", "method.pp=5"}},
      {"method.pp", {"method.name=interleaved", "method.pp=7"}},
      {"method.dp", {"method.dp=5"}},
      {"train.global_batch", {"train.global_batch=33"}},
      {"train.global_batch", {"train.global_batch=7"}},
      {"train.global_batch", {"train.global_batch=100", "method.micro_batches=3"}},
      {"method.micro_batches", {"method.micro_batches=3"}},
      {"method.micro_batches", {"method.micro_batches=2147483647"}},
      {"cluster.world_size", {"cluster.world_size=33"}},
      {"method.servers", {"method.name=ps-async", "method.servers=32"}},
      {"method.local_ranks",
       {"method.name=byteps", "cluster.world_size=10", "method.servers=2", "method.local_ranks=3"}},
      {"run.heartbeat", {"run.heartbeat=1s", "run.timeout=3s"}},
      {"disturb.stragglers[0].rank", {"disturb.stragglers=[{rank=32,factor=2}]"}},
  };
  for (const auto& [key, set] : cases) {
    SCOPED_TRACE(fmt::format("{}", fmt::join(set, " ")));
    const std::string message = try_it(set);
    EXPECT_THAT(message, testing::HasSubstr(fmt::format("key \"{}\": ", key)));
    Words again = set;
    const Words better = recommended(message, key);
    ASSERT_FALSE(better.empty()) << message;
    if (key == "disturb.stragglers[0].rank") continue;  // "at most 31" is not a setting
    again.insert(again.end(), better.begin(), better.end());
    EXPECT_EQ(try_it(again), "no error") << message;
  }
}

TEST(JobKeys, SharesAreToBlameForTheMeshThatTheyImply) {
  const std::string message = try_it({"method.shares=[1,2,3]"});
  EXPECT_THAT(message, testing::StartsWith("--set method.shares=[1,2,3]: key \"method.shares\": "
                                           "[1, 2, 3] is one number for each replica: "));
  EXPECT_THAT(message, testing::HasSubstr("3 ranks, but the world has 32"));
  EXPECT_EQ(try_it({"method.shares=[1,2,3]", "cluster.world_size=3"}), "no error");
}

TEST(JobKeys, AHeartbeatFitsFourTimesIntoTheTimeout) {
  EXPECT_EQ(try_it({"run.timeout=3s"}), "no error");  // the default becomes smaller
  EXPECT_EQ(try_it({"run.heartbeat=1s", "run.timeout=4s"}), "no error");
  EXPECT_EQ(try_it({"run.heartbeat=1s", "run.timeout=3s"}),
            "--set run.heartbeat=1s: key \"run.heartbeat\": 1 s must be at most a quarter of "
            "run.timeout 3 s, or a healthy peer looks dead; at most 750 ms");
}

TEST(JobKeys, AMissingKeyOrAMisspeltSectionIsNamedOnce) {
  const auto error = [](const std::string& text) {
    return test::message_of([&] { parse_job(text, "d2.toml"); });
  };
  EXPECT_EQ(error("model.name = \"gpt-tiny\"\ncluster.name = \"paper\"\n"),
            "d2.toml: key \"method.name\": is required and missing");
  EXPECT_EQ(
      error("model.name = \"gpt-tiny\"\ncluster.name = \"paper\"\n[methods]\nname = \"ddp\"\n"),
      "d2.toml:3: key \"methods\": unknown; did you mean \"method\"?");
  EXPECT_EQ(error("[modle]\nname = \"gpt-tiny\"\n[cluster]\nname = \"paper\"\n"),
            "d2.toml:1: key \"modle\": unknown; did you mean \"model\"?");
  EXPECT_EQ(error("model.name = \"gpt-tiny\"\nclusters.name = \"paper\"\n"),
            "d2.toml:2: key \"clusters\": unknown; did you mean \"cluster\"?");
}

TEST(JobKeys, ClippingIsBlamedOnTheKeyThatAsksForIt) {
  EXPECT_THAT(try_it({"method.name=ps-async", "train.clip=1"}),
              testing::StartsWith("--set train.clip=1: key \"train.clip\": "));
}

TEST(JobKeys, AStepThatCannotBeCountedIsRefused) {
  EXPECT_THAT(
      try_it({"model.name=llama-7b", "train.seq_len=1048576", "train.global_batch=16777216"}),
      testing::AllOf(testing::StartsWith("--set train.global_batch=16777216: key "
                                         "\"train.global_batch\": "),
                     testing::HasSubstr("more than can be counted")));
}

}  // namespace
}  // namespace rehearse::job
