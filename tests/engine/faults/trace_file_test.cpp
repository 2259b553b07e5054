// Fault traces as files: what is written reads back the same, and every wrong file is refused with
// its place.
#include "engine/faults/trace_file.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "engine/base/names.h"
#include "engine/base/numbers/random.h"
#include "tests/engine/reference.h"
#include "tests/message_of.h"

namespace rehearse::faults {
namespace {

using testing::HasSubstr;

Trace parse_trace(const std::string& text, const Bounds& bounds) {
  const std::string path = testing::TempDir() + "/t.toml";
  std::ofstream(path) << text;
  return load_trace(path, bounds);
}

std::string error_of(const std::string& events, const Bounds& bounds = {}) {
  return test::message_of([&] { parse_trace("version = 1\n" + events, bounds); });
}

/// An event with every field that its kind has, drawn from `seed`.
Event any_event(std::uint64_t seed) {
  const RandomKey key = random_key(seed, Draw::test, 0, 0);
  std::uint32_t n = 0;
  const auto below = [&](std::uint32_t limit) { return random_bits(key, n++) % limit; };
  Event e;
  e.kind = static_cast<Kind>(below(static_cast<std::uint32_t>(spellings(Kind{}).size())));
  const Targets can = takes(e.kind);
  if (can.nodes)
    e.nodes = {below(9), 9 + below(9)};
  else if (can.link)
    e.link = "node0/nic0>fabric";
  else if (can.device)
    e.device = "a \"quoted\" \\ name";
  else if (can.rank && (!can.node || below(2) == 0))
    e.rank = below(1000);
  else
    e.node = below(1000);
  if (below(2) == 0)
    e.at = Seconds(random_uniform(key, 100) * 5e6);
  else
    e.step = below(1U << 30), e.phase = static_cast<Phase>(below(7));
  if (takes_duration(e.kind)) e.duration = Seconds(random_uniform(key, 101) * 1e-7);
  if (takes_factor(e.kind))
    e.factor = random_uniform(key, 102) + (e.kind == Kind::packet_loss ? 0 : 1);
  e.detection = Seconds(random_uniform(key, 103) * 1e4);
  e.cause = below(2) == 0 ? "" : "faulty GPU";
  return e;
}

TEST(FaultTrace, ReadsBackWhatItWrites) {
  Trace trace{.cluster = "dgx-h100:4", .model = "m", .seed = 7, .duration = Seconds(0.1 + 0.2)};
  for (std::uint64_t i = 0; i < 500; ++i) trace.events.push_back(any_event(i));
  std::set<Kind> kinds;
  for (const Event& e : trace.events) kinds.insert(e.kind);
  EXPECT_EQ(kinds.size(), spellings(Kind{}).size());
  EXPECT_EQ(parse_trace(to_toml(trace), {}), trace);
  trace.spares = 3;
  trace.replacement = Seconds(0.1);
  EXPECT_EQ(parse_trace(to_toml(trace), {}), trace);
}

TEST(FaultTrace, RefusesOtherVersions) {
  EXPECT_THAT(test::message_of([&] { parse_trace("version = 2\n", {}); }),
              HasSubstr("t.toml:1: key \"version\": 2 is not known; this program reads version 1"));
  EXPECT_THAT(test::message_of([&] { parse_trace("", {}); }),
              HasSubstr("\"version\": is required and missing"));
}

TEST(FaultTrace, RefusesWrongEvents) {
  const std::string death = "[[event]]\nkind = \"node_dies\"\nnode = 3\n";
  EXPECT_THAT(error_of("[[event]]\nkind = \"node_dis\"\nnode = 3\nat = \"1s\"\n"),
              HasSubstr("t.toml:3: key \"event[0].kind\": \"node_dis\" is not one of"));
  EXPECT_THAT(error_of("[[event]]\nkind = \"node_dis\"\nnode = 3\nat = \"1s\"\n"),
              HasSubstr("did you mean \"node_dies\"?"));
  EXPECT_THAT(error_of("[[event]]\nkind = \"node_dies\"\nat = \"1s\"\n"),
              HasSubstr("node_dies needs a node"));
  EXPECT_THAT(error_of("[[event]]\nkind = \"node_dies\"\nrank = 1\nat = \"1s\"\n"),
              HasSubstr("node_dies has no rank; it has node"));
  EXPECT_THAT(error_of("[[event]]\nkind = \"freezes\"\nrank = 1\nnode = 1\nat = \"1s\"\n"),
              HasSubstr("freezes needs only one of rank or node"));
  EXPECT_THAT(error_of(death), HasSubstr("needs at or step"));
  EXPECT_THAT(error_of(death + "at = \"1s\"\nstep = 2\n"), HasSubstr("one of the two"));
  EXPECT_THAT(error_of(death + "at = \"1s\"\nphase = \"save\"\n"), HasSubstr("needs step"));
  EXPECT_THAT(error_of(death + "at = \"1s\"\nfactor = 2\n"), HasSubstr("node_dies has no factor"));
  EXPECT_THAT(error_of("[[event]]\nkind = \"slows\"\nnode = 1\nat = \"1s\"\n"),
              HasSubstr("slows needs a factor"));
  EXPECT_THAT(
      error_of("[[event]]\nkind = \"rank_dies\"\nrank = 1\nat = \"1s\"\nduration = \"1s\"\n"),
      HasSubstr("rank_dies has no duration"));
  EXPECT_THAT(
      error_of("[[event]]\nkind = \"packet_loss\"\nlink = \"a\"\nat = \"1s\"\nfactor = 2\n"),
      HasSubstr("out of range"));
  EXPECT_THAT(error_of(death + "at = \"1s\"\ncuase = \"x\"\n"),
              HasSubstr("did you mean \"cause\"?"));
}

TEST(FaultTrace, RefusesTargetsThatDoNotExist) {
  const cluster::Cluster cluster = cluster::load_cluster("dgx-h100:2");
  const Bounds bounds{.world_size = 16, .cluster = &cluster};
  const auto event = [](const std::string& kind, const std::string& target) {
    return fmt::format("[[event]]\nkind = \"{}\"\n{}\nat = \"1s\"\n", kind, target);
  };
  EXPECT_THAT(error_of(event("rank_dies", "rank = 16"), bounds),
              HasSubstr("16 is not a rank of 16; at most 15"));
  EXPECT_THAT(error_of(event("node_dies", "node = 2"), bounds),
              HasSubstr("2 is not a node of 2; at most 1"));
  EXPECT_THAT(error_of(event("device_dies", "device = \"node0/gpu8\""), bounds),
              HasSubstr("did you mean \"node0/gpu"));
  EXPECT_THAT(error_of(event("link_down", "link = \"node0/nic9>fabric\""), bounds),
              HasSubstr("is no link of the cluster; did you mean"));
  EXPECT_THAT(error_of(event("partition", "nodes = [0, 5]"), bounds), HasSubstr("at most 1"));
  EXPECT_EQ(error_of(event("link_down", "link = \"node0/nic7>fabric\"") +
                         event("device_dies", "device = \"node1/gpu7\""),
                     bounds),
            "no error");
}

TEST(FaultTrace, DocumentationListsItsKeys) {
  std::vector<Config::Key> keys = trace_keys();
  const auto rows = test::table_rows("docs/faults.md");
  for (const Config::Key& key : keys) {
    ASSERT_TRUE(rows.contains(key.path)) << key.path;
    EXPECT_EQ(rows.at(key.path)[0], key.type) << key.path;
  }
  for (const char* kind : spellings(Kind{})) EXPECT_TRUE(rows.contains(kind)) << kind;
}

}  // namespace
}  // namespace rehearse::faults
