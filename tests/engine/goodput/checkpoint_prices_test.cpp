// Bytes of a checkpoint and what it costs, against counts by hand and against the parts that real
// ranks save.
#include "engine/goodput/checkpoint_prices.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/job/job.h"
#include "engine/link/workspace.h"
#include "tests/message_of.h"

namespace rehearse::goodput {
namespace {

using job::CheckpointKind;
using job::CheckpointPlace;
using testing::HasSubstr;

job::Job job_of(const std::string& method, const std::string& more = "") {
  return job::parse_job(
      "model.name = \"gpt-tiny\"\ncluster.name = \"dgx-h100:2\"\n"
      "train.global_batch = 32\nmethod = { " +
          method + " }\n" + more,
      "job.toml");
}

double whole_bytes(const job::Job& job) {
  return state_bytes(link::link(program_of(job)), job.plan).whole;
}

TEST(StateBytes, AreTheParametersWithTheirMoments) {
  const job::Job ddp = job_of("name = \"ddp\"");
  const auto parameters = static_cast<double>(model::parameters_of(ddp.model));
  const double fp32 = whole_bytes(ddp);
  EXPECT_NEAR(fp32 / (12 * parameters), 1, 0.01) << "weight and two moments of 4 bytes";
  // The same state, however it is sharded.
  for (const char* method :
       {"name = \"zero1\"", "name = \"zero2\"", "name = \"zero3\"", "name = \"ddp\", tp = 2",
        "name = \"hsdp\"", "name = \"zero1\", shard_group = 4",
        "name = \"zero3\", reshard_group = 8"})
    EXPECT_NEAR(whole_bytes(job_of(method)) / fp32, 1, 0.07) << method;
  const job::Job half = job_of("name = \"zero2\", precision = \"bf16\"");
  EXPECT_NEAR(whole_bytes(half) / parameters, 14, 0.3);
  // Weights of 2 bytes; a master and a first moment of 4; the second moment stays exact.
  const StateBytes state = state_bytes(link::link(program_of(half)), half.plan);
  EXPECT_NEAR(state.halves / parameters, 1, 0.03);
  EXPECT_NEAR(state.floats / parameters, 2, 0.06);
}

TEST(StateBytes, RanksHoldCopiesUnlessSharded) {
  const job::Job ddp = job_of("name = \"ddp\""), zero3 = job_of("name = \"zero3\"");
  const StateBytes copies = state_bytes(link::link(program_of(ddp)), ddp.plan);
  const StateBytes shards = state_bytes(link::link(program_of(zero3)), zero3.plan);
  ASSERT_EQ(copies.of_rank.size(), 16U);
  EXPECT_NEAR(copies.of_rank[5], copies.whole, 1);
  EXPECT_NEAR(shards.of_rank[5], shards.whole / 16, shards.whole * 0.01);
  const job::Job hsdp = job_of("name = \"hsdp\"");  // two nodes of eight
  const StateBytes in_nodes = state_bytes(link::link(program_of(hsdp)), hsdp.plan);
  EXPECT_NEAR(in_nodes.of_rank[5], in_nodes.whole / 8, in_nodes.whole * 0.01);
}

// Weights and moments that are each rank's own are all saved; what ranks agreed on is saved once.
TEST(StateBytes, OwnWeightsAreNoCopies) {
  const job::Job ddp = job_of("name = \"ddp\"");
  const auto parameters = static_cast<double>(model::parameters_of(ddp.model));
  for (const char* method : {"local-sgd", "d-psgd"})
    EXPECT_NEAR(whole_bytes(job_of(fmt::format("name = \"{}\"", method))), 16 * whole_bytes(ddp), 1)
        << method;
  // Servers that only average have no state.
  EXPECT_NEAR(whole_bytes(job_of("name = \"fedavg\", dp = 8", "cluster.world_size = 9\n")),
              8 * whole_bytes(ddp), 1);
  EXPECT_NEAR(whole_bytes(job_of("name = \"diloco\"")), 16 * whole_bytes(ddp) + 8 * parameters, 1);
}

TEST(Layout, FollowsTheMesh) {
  const job::Job job = job_of("name = \"megatron\", pp = 2, dp = 4, tp = 2");
  const Layout layout = layout_of(job.cluster, job.plan);
  EXPECT_EQ(layout.node_of_slot, (std::vector<Id>{0, 1}));
  EXPECT_EQ(layout.slot_of_rank, (std::vector<Id>{0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1}));
  EXPECT_EQ(layout.replica_of_rank,
            (std::vector<Id>{0, 0, 1, 1, 2, 2, 3, 3, 0, 0, 1, 1, 2, 2, 3, 3}));
  const job::Job other =
      job_of("name = \"megatron\", pp = 2, dp = 4, tp = 2, order = \"dp,pp,tp\"");
  EXPECT_EQ(layout_of(other.cluster, other.plan).replica_of_rank,
            (std::vector<Id>{0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3}));
}

/// 16 ranks on two nodes with a state of 1.6 TB, of which each rank holds all.
class CheckpointKinds : public testing::Test {
 protected:
  double stall(const job::Checkpoint& c) { return seconds(price(c).stall).value; }
  CheckpointPrices price(const job::Checkpoint& c) {
    return checkpoint_prices(c, state_, layout_, job_.cluster, staging_);
  }
  BytesPerSecond staging_ = {};
  job::Job job_ = job_of("name = \"ddp\"");
  Layout layout_ = layout_of(job_.cluster, job_.plan);
  StateBytes state_{.whole = 1.6e12, .of_rank = std::vector<double>(16, 1.6e12)};
};

TEST_F(CheckpointKinds, OfEachKind) {
  // Two nodes of 400 GB/s network each; the shared disk takes 2 TB/s; host links of 48 GB/s.
  EXPECT_NEAR(stall({.kind = CheckpointKind::sharded}), 0.1e12 / 48e9, 1e-6);
  EXPECT_NEAR(stall({.kind = CheckpointKind::full}), 1.6e12 / 48e9, 1e-6) << "one GPU copies all";
  const CheckpointPrices async = price({.kind = CheckpointKind::async});
  EXPECT_NEAR(seconds(async.stall).value, 0.1e12 / 48e9, 1e-6);
  EXPECT_NEAR(seconds(async.persist).value, 2.0, 1e-6);
  EXPECT_NEAR(stall({.kind = CheckpointKind::incremental, .changed = 0.1, .full_every = 4}),
              0.1e12 / 48e9 * (1 + 0.3) / 4, 1e-6);
  // A third of the state is exact; of the rest each element takes 1 + 4 / 256 bytes in place of 4.
  state_.floats = 1.6e12 / 12 * 2;
  EXPECT_NEAR(
      stall({.kind = CheckpointKind::incremental, .changed = 1, .bits = 8, .full_every = 4}),
      0.1e12 / 48e9 * (1 + 3 * (4 + 2 * (1 + 1.0 / 64)) / 12) / 4, 1e-6);
  EXPECT_NEAR(
      seconds(price({.kind = CheckpointKind::incremental, .changed = 0.1, .full_every = 4}).load)
          .value,
      8 * 1.6e12 / 400e9 * (1 + 0.075), 1e-6);
  // Every rank's copy of the state comes over the network.
  EXPECT_NEAR(seconds(async.load).value, 8 * 1.6e12 / 400e9, 1e-6);
  EXPECT_EQ(async.group, 0);
}

TEST_F(CheckpointKinds, AFrameworkStagesNoFasterThanItsRate) {
  staging_ = BytesPerSecond(0.5e9);
  const CheckpointPrices slow = price({.kind = CheckpointKind::async});
  EXPECT_NEAR(seconds(slow.stall).value, 0.1e12 / 0.5e9, 1e-6);
  EXPECT_NEAR(stall({.kind = CheckpointKind::sharded}), 0.1e12 / 0.5e9, 1e-6);
  EXPECT_NEAR(seconds(slow.load).value, 8 * 1.6e12 / 400e9, 1e-6) << "nothing is staged to load";
  staging_ = BytesPerSecond(1e12);
  EXPECT_NEAR(stall({.kind = CheckpointKind::async}), 0.1e12 / 48e9, 1e-6) << "the link is slower";
}

TEST_F(CheckpointKinds, OfPlacesThatANodesDeathDestroys) {
  const CheckpointPrices local =
      price({.kind = CheckpointKind::sharded, .place = CheckpointPlace::local, .full_every = 10});
  EXPECT_NEAR(seconds(local.stall).value, 0.8e12 / 25e9, 1e-6);
  EXPECT_EQ(local.group, 1);
  EXPECT_EQ(local.whole_every, 10);
  // What a node's death destroys is read from the shared disk, 2 TB/s, to all ranks' copies.
  EXPECT_NEAR(seconds(local.load_whole).value, 8 * 1.6e12 / 400e9, 1e-6);
  state_.whole = 0.8e12;
  const CheckpointPrices peer = price({.kind = CheckpointKind::peer, .full_every = 5, .group = 2});
  EXPECT_NEAR(seconds(peer.persist).value, 0.4e12 / 400e9, 1e-6);
  EXPECT_EQ(peer.group, 2);
  EXPECT_EQ(peer.whole_every, 5);
  EXPECT_NEAR(seconds(peer.persist_whole).value, 1.0, 1e-6);
}

TEST_F(CheckpointKinds, WholeOnesGoToTheSharedDisk) {
  job_.cluster.share_disk(
      {.size = Bytes(1e15), .read = BytesPerSecond(1e9), .write = BytesPerSecond(1e9)});
  job::Checkpoint how{.kind = CheckpointKind::sharded, .place = CheckpointPlace::memory};
  how.full_every = 1;
  state_.whole = 1.2e12;
  const double whole = 1.2e12 / 1e9;
  EXPECT_NEAR(stall(how), whole, 1e-6);
  how.kind = CheckpointKind::incremental;
  EXPECT_NEAR(stall(how), whole, 1e-6) << "all of them are whole";
  how.full_every = 4, how.changed = 0.1;
  EXPECT_NEAR(stall(how), (whole + 3 * 0.1 * 1.2e12 / 16 / 48e9) / 4, 1e-6);
  EXPECT_NEAR(seconds(price(how).load_whole).value, whole, 1e-6);
  how.place = CheckpointPlace::shared;
  EXPECT_EQ(price(how).load_whole, price(how).load);
  // Without such a disk nothing survives the death of a node.
  job_.cluster.share_disk({});
  how.place = CheckpointPlace::memory;
  EXPECT_EQ(price(how).whole_every, 0);
  state_.whole = 0.4e12;
  how = {.kind = CheckpointKind::peer, .place = CheckpointPlace::local, .group = 2};
  EXPECT_EQ(price(how).whole_every, 0);
}

TEST_F(CheckpointKinds, InMemoryMustFitThere) {
  const auto keeps = [&](CheckpointKind kind) {
    return test::message_of([&] { price({.kind = kind, .place = CheckpointPlace::memory}); });
  };
  state_.whole = 1.2e12;  // 0.6 TB a node, three times
  EXPECT_EQ(keeps(CheckpointKind::sharded), "no error");
  EXPECT_THAT(keeps(CheckpointKind::async),
              HasSubstr("checkpoint.place: memory keeps 2.4 TB in the memory of a host that has 2 "
                        "TB; shared keeps none there"))
      << "and a snapshot";
  state_.whole = 1.6e12;
  for (const auto kind :
       {CheckpointKind::sharded, CheckpointKind::incremental, CheckpointKind::full})
    EXPECT_THAT(keeps(kind), HasSubstr("checkpoint.place: memory keeps"));
}

TEST_F(CheckpointKinds, NeedWhatTheClusterHas) {
  state_.whole = 5e12;
  EXPECT_THAT(
      test::message_of([&] { price({.kind = CheckpointKind::async}); }),
      HasSubstr("checkpoint.kind: async keeps 2.5 TB in the memory of a host that has 2 TB"));
  job_.cluster.share_disk({});
  EXPECT_THAT(
      test::message_of([&] { price({.kind = CheckpointKind::sharded}); }),
      HasSubstr("checkpoint.place: shared: cluster dgx-h100:2 states no shared_disk; local"));
  for (const Id node : {0, 1}) job_.cluster.set_host(node, {.memory = Bytes(1e15)});
  EXPECT_THAT(test::message_of([&] {
                price({.kind = CheckpointKind::sharded, .place = CheckpointPlace::local});
              }),
              HasSubstr("states no disk of its nodes"));
}

}  // namespace
}  // namespace rehearse::goodput
