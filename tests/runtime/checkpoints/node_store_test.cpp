// Which nodes hold whose parts, and which checkpoint hosts have together.
#include "runtime/checkpoints/files/node_store.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "engine/base/errors.h"

namespace rehearse::runtime {
namespace {

/// A job with `nodes` nodes of eight ranks, which keep copies in groups of `group` nodes.
job::Job job_of(int nodes, int group) {
  return job::parse_job(fmt::format("model.name = \"gpt-tiny\"\n"
                                    "cluster.name = \"dgx1:{}\"\n"
                                    "method.name = \"ddp\"\n"
                                    "checkpoint = {{ kind = \"peer\", group = {} }}\n",
                                    nodes, group),
                        "job.toml");
}

TEST(NodeStore, EveryPartIsOnAnotherNode) {
  for (int nodes = 2; nodes <= 9; ++nodes)
    for (int group = 2; group <= 4; ++group) {
      SCOPED_TRACE(testing::Message() << nodes << " nodes in groups of " << group);
      const NodeStore store(job_of(nodes, group));
      ASSERT_EQ(store.nodes(), nodes);
      for (Id rank = 0; rank < static_cast<Id>(8 * nodes); ++rank) {
        const std::vector<Id> peers = store.peers_of(rank);
        // Whole groups, but the last node of an odd one out joins its neighbours.
        EXPECT_GE(peers.size(), 1U);
        EXPECT_LE(peers.size(), static_cast<std::size_t>(group));
        std::set<Id> leaders{store.leader_of(rank)};
        for (const Id peer : peers) {
          EXPECT_TRUE(leaders.insert(store.leader_of(peer)).second) << "twice on one node";
          const std::vector<Id> kept = store.kept_by(peer);
          EXPECT_EQ(std::ranges::count(kept, rank), 1);
        }
      }
    }
}

HeldCheckpoint held(std::int64_t step, std::uint64_t identity, const std::set<std::string>& here) {
  HeldCheckpoint h{.step = step, .identity = identity, .files = {{"a", 1}, {"b", 1}, {"m", 1}}};
  for (const std::string& file : here) h.paths[file] = "/" + file;
  return h;
}

TEST(NodeStore, TheNewestThatHostsHaveTogether) {
  const HeldCheckpoint old = held(4, 1, {"a", "b", "m"});
  EXPECT_FALSE(newest_of({}));
  EXPECT_FALSE(newest_of({{held(8, 2, {"a", "m"})}, {held(8, 2, {"m"})}}));
  EXPECT_EQ(newest_of({{old, held(8, 2, {"a", "m"})}, {held(8, 2, {"b", "m"})}})->step, 8);
  EXPECT_EQ(newest_of({{old, held(8, 2, {"a", "m"})}, {}})->step, 4);
  // Two runs of the same step do not make up one checkpoint.
  EXPECT_EQ(newest_of({{old, held(8, 2, {"a", "m"})}, {held(8, 3, {"b", "m"})}})->step, 4);
  // What was saved after the last passed check does not count.
  EXPECT_EQ(newest_of({{old, held(8, 2, {"a", "b", "m"})}}, 7)->step, 4);
}

TEST(NodeStore, WhatIsHeldTravelsAsText) {
  const std::vector<HeldCheckpoint> back = held_from_json(to_json({held(8, 2, {"a", "m"})}));
  ASSERT_EQ(back.size(), 1U);
  EXPECT_EQ(back[0].step, 8);
  EXPECT_EQ(back[0].paths.at("a"), "/a");
  EXPECT_EQ(back[0].files.size(), 3U);
  EXPECT_THROW(held_from_json("[{}]"), BackendError);
  EXPECT_THROW(held_from_json("nonsense"), BackendError);
  EXPECT_THROW(held_from_json(
                   R"([{"step": 1e300, "identity": 7, "files": {}, "paths": {}, "damaged": []}])"),
               BackendError);
}

}  // namespace
}  // namespace rehearse::runtime
