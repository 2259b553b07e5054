// The walk over weeks: its times add up to the duration exactly whatever happens, single failures
// cost what a calculation by hand says, and each policy does what it promises.
#include "engine/goodput/walk.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "engine/base/names.h"
#include "engine/base/numbers/random.h"
#include "tests/engine/goodput/walks.h"

namespace rehearse::goodput {
namespace {

TEST(Walk, NothingFails) {
  const Outcome o = run(small(), RecoveryPolicy::restart, {});
  // 105 s a round of ten steps: 95 rounds, 25 s remain.
  EXPECT_EQ(o.steps, 952);
  EXPECT_EQ(lost(o, Loss::checkpoint), 95 * 5 * second);
  EXPECT_EQ(o.productive, o.steps * 10 * second + 5 * second) << "with the step in flight";
  EXPECT_EQ(total(o), o.duration);
  EXPECT_EQ(o.interruptions, 0);
}

TEST(Walk, ARestartCostsWhatAHandCountSays) {
  // In the third round, 42 s after its begin: four steps and 2 s of the fifth are lost.
  const Outcome o = run(small(), RecoveryPolicy::restart, {stop((2 * 105 + 42) * second, 1)});
  EXPECT_EQ(o.interruptions, 1);
  EXPECT_EQ(lost(o, Loss::rework), 42 * second);
  EXPECT_EQ(o.lost_steps, 4);
  EXPECT_EQ(lost(o, Loss::detection), 20 * second);
  EXPECT_EQ(lost(o, Loss::restart), 107 * second) << "processes, and reading the state";
  EXPECT_EQ(lost(o, Loss::waiting), 0);
  EXPECT_EQ(total(o), o.duration);
}

TEST(Walk, ADeathNeedsASpareOrWaits) {
  Setting s = small();
  const std::vector<Incident> one{death(252 * second, 1, 1000 * second)};
  Outcome o = run(s, RecoveryPolicy::restart, one);
  EXPECT_EQ(lost(o, Loss::waiting), (1000 - 20 + 50) * second) << "until the repair is over";
  EXPECT_FALSE(o.ends_waiting);
  s.spares = 1;
  o = run(s, RecoveryPolicy::restart, one);
  EXPECT_EQ(lost(o, Loss::waiting), 50 * second);
  // The repaired node stands by for the next one.
  o = run(s, RecoveryPolicy::restart, {one[0], death(5000 * second, 2), death(7000 * second, 3)});
  EXPECT_TRUE(o.ends_waiting) << "two nodes for three deaths";
  EXPECT_EQ(o.interruptions, 3);
  EXPECT_EQ(total(o), o.duration);
}

TEST(Walk, WithoutACheckpointEverythingIsDoneAgain) {
  Setting s = small();
  s.save_every = 0;
  const Outcome o = run(s, RecoveryPolicy::restart, {stop(5003 * second, 0)});
  EXPECT_EQ(o.lost_steps, 500);
  EXPECT_EQ(lost(o, Loss::rework), 5003 * second);
  EXPECT_EQ(o.steps, (10'000 - 5003 - 127) / 10);
}

TEST(Walk, AnUnfinishedAsynchronousCheckpointDoesNotCount) {
  Setting s = small();
  s.checkpoint = {.stall = 1 * second, .persist = 60 * second};
  // Snapshot at 101 s, safe at 161 s.
  EXPECT_EQ(run(s, RecoveryPolicy::restart, {stop(160 * second, 0)}).lost_steps, 15);
  EXPECT_EQ(run(s, RecoveryPolicy::restart, {stop(161 * second, 0)}).lost_steps, 6);
  // One in flight: the next snapshot waits for the last to be safe.
  s.checkpoint.persist = 150 * second;
  const Outcome o = run(s, RecoveryPolicy::restart, {});
  EXPECT_NEAR(static_cast<double>(o.checkpoints), 10'000 / 151.0, 2);
}

TEST(Walk, AFailureDuringRecoveryBeginsItAgain) {
  const Outcome o =
      run(small(), RecoveryPolicy::restart, {stop(252 * second, 1), stop(300 * second, 2)});
  EXPECT_EQ(o.interruptions, 2);
  EXPECT_EQ(lost(o, Loss::detection), 40 * second);
  EXPECT_EQ(lost(o, Loss::restart), (28 + 107) * second) << "28 s of the first were in vain";
  EXPECT_EQ(o.lost_steps, 4) << "lost once";
  EXPECT_EQ(total(o), o.duration);
}

TEST(Walk, ASpareTakesOverFromSurvivors) {
  Setting s = small();
  s.spares = 1;
  const Outcome o = run(s, RecoveryPolicy::spare, {death(252 * second, 1)});
  EXPECT_EQ(o.lost_steps, 0);
  EXPECT_EQ(lost(o, Loss::rework), 2 * second) << "the step in flight";
  EXPECT_EQ(lost(o, Loss::restart), 18 * second);
  s.replicated = false;  // sharded states: nobody has the dead rank's part
  const Outcome sharded = run(s, RecoveryPolicy::spare, {death(252 * second, 1)});
  EXPECT_EQ(sharded.lost_steps, 4);
  EXPECT_EQ(lost(sharded, Loss::restart), 22 * second);
}

TEST(Walk, SurvivorsKeepTheStateWhileTheyWait) {
  Setting s = small();  // no node stands by
  const std::vector<Incident> one{death(252 * second, 1, 1000 * second)};
  Outcome o = run(s, RecoveryPolicy::spare, one);
  EXPECT_EQ(o.lost_steps, 0);
  EXPECT_EQ(o.reads, 0);
  EXPECT_EQ(lost(o, Loss::rework), 2 * second) << "the step in flight";
  EXPECT_EQ(lost(o, Loss::waiting), (1000 - 20) * second);
  EXPECT_EQ(lost(o, Loss::restart), 18 * second);
  EXPECT_EQ(total(o), o.duration);
  // The others are struck while they wait: nobody has the state any more.
  std::vector<Incident> all = one;
  for (Id slot : {0, 2, 3}) all.push_back(stop(300 * second, slot));
  o = run(s, RecoveryPolicy::spare, all);
  EXPECT_EQ(o.lost_steps, 4);
  EXPECT_EQ(o.reads, 1);
  // Below its minimum a run that shrinks waits too.
  s.min_ranks = 4;
  EXPECT_EQ(run(s, RecoveryPolicy::shrink, one).lost_steps, 0);
  EXPECT_EQ(run(s, RecoveryPolicy::restart, one).lost_steps, 4) << "all processes end";
}

TEST(Walk, ShrinkGoesOnWithFewerUntilTheNextFailure) {
  const std::vector<Incident> one{death(252 * second, 1, 2000 * second)};
  const Outcome o = run(small(), RecoveryPolicy::shrink, one);
  EXPECT_EQ(o.least_replicas, 3);
  EXPECT_EQ(o.lost_steps, 0);
  EXPECT_EQ(lost(o, Loss::waiting), 0);
  EXPECT_EQ(lost(o, Loss::replanning), 30 * second);
  EXPECT_GT(lost(o, Loss::degraded), 2000 * second) << "a third of each step, to the end";
  // grow: the node joins when it returns, between two steps.
  const Outcome grown = run(small(), RecoveryPolicy::grow, one);
  EXPECT_EQ(lost(grown, Loss::replanning), 60 * second);
  EXPECT_LT(lost(grown, Loss::degraded), 500 * second);
  EXPECT_GT(grown.steps, o.steps + 100);
  EXPECT_EQ(total(grown), grown.duration);
}

TEST(Walk, ShrinkWaitsBelowTheMinimum) {
  Setting s = small();
  s.min_ranks = 3;
  const Outcome o =
      run(s, RecoveryPolicy::shrink, {death(252 * second, 1), death(1000 * second, 2)});
  EXPECT_TRUE(o.ends_waiting);
  EXPECT_EQ(o.least_replicas, 3);
  EXPECT_EQ(lost(o, Loss::waiting), (10'000 - 1020) * second);
}

TEST(Walk, ReplicasGoOnWithoutTheSamplesOfALostOne) {
  Setting s = small();
  s.spares = 1;
  const Outcome o = run(s, RecoveryPolicy::replica, {death(252 * second, 1)});
  EXPECT_EQ(o.lost_steps, 0);
  EXPECT_EQ(lost(o, Loss::replanning), 30 * second);
  EXPECT_EQ(lost(o, Loss::restart), 3 * second) << "the others wait only while it heals";
  // 150 s until the spare's processes run: a quarter of these steps is not trained.
  EXPECT_NEAR(seconds(lost(o, Loss::degraded)).value, 150 / 4.0, 15);
  EXPECT_EQ(o.least_replicas, 3);
  EXPECT_EQ(total(o), o.duration);
}

TEST(Walk, WrongNumbersAreUndoneWithAllThatFollowedThem) {
  const Incident wrong{
      .at = 252 * second, .strike = Strike::corrupts, .slots = {0}, .detection = 500 * second};
  const Outcome o = run(small(), RecoveryPolicy::spare, {wrong});
  EXPECT_EQ(o.interruptions, 1);
  // Back to the checkpoint at 205 s: 20 steps. At 752 s, 71 steps were done.
  EXPECT_EQ(o.lost_steps, 71 - 20);
  const Outcome late = run(
      small(), RecoveryPolicy::spare,
      {{.at = 9900 * second, .strike = Strike::corrupts, .slots = {0}, .detection = 500 * second}});
  EXPECT_EQ(late.undetected, 1);
}

/// Groups of so many nodes hold checkpoints, of which every fourth is whole.
Setting held_by_nodes(int group) {
  Setting s = small();
  s.spares = 4;
  s.replicated = false;
  s.checkpoint.group = group;
  s.checkpoint.whole_every = 4;
  return s;
}
constexpr Ticks at = (9 * 105 + 52) * second;  // nine checkpoints; the eighth is whole

TEST(Walk, PeersSurviveOneDeathAndNotTwo) {
  const Setting s = held_by_nodes(2);
  EXPECT_EQ(run(s, RecoveryPolicy::restart, {death(at, 0)}).lost_steps, 5);
  const Incident both{.at = at, .strike = Strike::loses, .slots = {0, 1}};
  EXPECT_EQ(run(s, RecoveryPolicy::restart, {both}).lost_steps, 15) << "back to the eighth";
  const Incident two_groups{.at = at, .strike = Strike::loses, .slots = {1, 2}};
  EXPECT_EQ(run(s, RecoveryPolicy::restart, {two_groups}).lost_steps, 5);
  // The second of a group dies before a new checkpoint gave the first its part back.
  EXPECT_EQ(run(s, RecoveryPolicy::restart, {death(at, 0), death(at + 200 * second, 1)}).lost_steps,
            5 + 10 + 2);
}

TEST(Walk, WhatNodesLoseIsReadFromTheSharedDisk) {
  Setting s = held_by_nodes(1);
  s.checkpoint.load_whole = 40 * second;
  const auto restart = [&](const std::vector<Incident>& incidents) {
    return lost(run(s, RecoveryPolicy::restart, incidents), Loss::restart);
  };
  EXPECT_EQ(restart({stop(at, 0)}), (100 + 7) * second);
  EXPECT_EQ(restart({death(at, 0)}), (100 + 40) * second);
  // A process fails before the next checkpoint is complete, and one after it.
  EXPECT_EQ(restart({death(at, 0), stop(at + 250 * second, 1)}), 2 * (100 + 40) * second);
  EXPECT_EQ(restart({death(at, 0), stop(at + 500 * second, 1)}), (100 + 40 + 100 + 7) * second);

  const auto lost_steps = [&] {
    return run(s, RecoveryPolicy::restart, {death(at, 0)}).lost_steps;
  };
  EXPECT_EQ(lost_steps(), 15);
  s.checkpoint.persist_whole = 200 * second;  // the eighth was complete 157 s before
  EXPECT_EQ(lost_steps(), 55) << "back to the fourth";
  s.checkpoint.persist_whole = 5000 * second;
  EXPECT_EQ(lost_steps(), 95);
  s.checkpoint.persist_whole = 0;
  s.checkpoint.whole_every = 0;
  EXPECT_EQ(lost_steps(), 95) << "nothing survives";
}

TEST(Walk, SpoiledAndBlockedCheckpointsCostTheOneBefore) {
  const Incident spoiled{.at = 230 * second, .strike = Strike::spoils, .slots = {0}};
  EXPECT_EQ(run(small(), RecoveryPolicy::restart, {spoiled, stop(252 * second, 1)}).lost_steps, 14);
  const Incident full{100 * second, Strike::blocks, {}, -1, 400 * second};
  Setting behind = small(), local = small();
  behind.checkpoint.persist = 1 * second, local.checkpoint.local = true;
  EXPECT_EQ(run(behind, RecoveryPolicy::restart, {full, stop(252 * second, 1)}).lost_steps, 20);
  EXPECT_EQ(run(small(), RecoveryPolicy::restart, {full, stop(252 * second, 1)}).lost_steps, 10);
  // The second checkpoint, from 205 s to 210 s, waits until 255 s, or stands still from 207 s on.
  for (const auto& [from, lasts, longer] : {std::tuple(150, 105, 50), {207, 48, 48}}) {
    const Incident some{from * second, Strike::blocks, {}, -1, lasts * second};
    EXPECT_EQ(lost(run(small(), RecoveryPolicy::restart, {some}), Loss::checkpoint),
              (94 * 5 + longer) * second);
  }
  EXPECT_EQ(run(small(), RecoveryPolicy::restart, {{150 * second, Strike::blocks}}).steps, 20);
  EXPECT_EQ(run(local, RecoveryPolicy::restart, {{150 * second, Strike::blocks}}).steps, 952);
}

TEST(Walk, SlowNodesAndShortStalls) {
  const Incident slow{
      .at = 0, .strike = Strike::slows, .slots = {0}, .lasts = 1000 * second, .factor = 2};
  const Outcome o = run(small(), RecoveryPolicy::restart, {slow});
  EXPECT_NEAR(seconds(lost(o, Loss::degraded)).value, 490, 15);
  const Incident blink{
      .at = 252 * second, .strike = Strike::stalls, .slots = {0}, .lasts = 5 * second};
  const Outcome waited = run(small(), RecoveryPolicy::restart, {blink});
  EXPECT_EQ(waited.interruptions, 0);
  EXPECT_EQ(lost(waited, Loss::degraded), 5 * second);
}

/// Four workers and a parameter server, each on a node of its own.
Setting served() {
  Setting s = small();
  s.ranks_of_slot.push_back(1);
  s.replicas_of_slot.push_back({0, 1, 2, 3});
  s.servers = 1;
  return s;
}

TEST(Walk, OfParameterServersALostWorkerCostsNoStepAndALostServerDoes) {
  const Ticks at = (2 * 105 + 42) * second;
  for (const auto policy :
       {RecoveryPolicy::shrink, RecoveryPolicy::grow, RecoveryPolicy::replica}) {
    const Outcome worker = run(served(), policy, {death(at, 1, 1000 * second)});
    EXPECT_EQ(worker.lost_steps, 0) << name_of(policy);
    EXPECT_EQ(worker.least_replicas, 3);
    EXPECT_EQ(lost(worker, Loss::waiting), 0);
    const Outcome server = run(served(), policy, {death(at, 4, 1000 * second)});
    EXPECT_EQ(server.lost_steps, 4) << name_of(policy);
  }
  // A worker's node takes the server's role; under replica nobody does.
  EXPECT_EQ(run(served(), RecoveryPolicy::shrink, {death(at, 4)}).least_replicas, 3);
  EXPECT_TRUE(run(served(), RecoveryPolicy::replica, {death(at, 4)}).ends_waiting);
  Setting s = served();
  s.min_ranks = 5;
  EXPECT_TRUE(run(s, RecoveryPolicy::shrink, {death(at, 0)}).ends_waiting) << "servers are ranks";
}

TEST(Walk, TheLastWorkerHasTakenTheServersRole) {
  const Ticks at = (2 * 105 + 42) * second, later = 5080 * second;
  const auto lost_steps = [&](const std::vector<Incident>& incidents) {
    return run(served(), RecoveryPolicy::shrink, incidents).lost_steps;
  };
  EXPECT_EQ(lost_steps({death(at, 4), death(later, 0)}), 4) << "a worker: the servers know";
  EXPECT_GT(lost_steps({death(at, 4), death(later, 3)}), 4) << "the new server";
}

/// A random setting and random incidents, some of them at one time or during recoveries.
std::pair<Setting, std::vector<Incident>> any_case(std::uint64_t seed) {
  const RandomKey key = random_key(seed, Draw::test, 1, 0);
  std::uint32_t n = 0;
  const auto below = [&](std::uint32_t limit) { return random_bits(key, n++) % limit; };
  Setting s;
  const auto slots = 1 + below(6), per_slot = 1 + below(3);
  s.ranks_of_slot.assign(slots, static_cast<int>(per_slot));
  const auto total_ranks = slots * per_slot;
  s.ranks_of_replica = 1;
  for (const auto divisor : {2U, 3U})
    if (total_ranks % divisor == 0 && below(2) == 0) s.ranks_of_replica = static_cast<int>(divisor);
  s.replicas = static_cast<int>(total_ranks) / s.ranks_of_replica;
  s.replicas_of_slot.resize(slots);
  for (std::uint32_t r = 0; r < total_ranks; ++r) {
    auto& of = s.replicas_of_slot[r / per_slot];
    const Id replica = r / static_cast<std::uint32_t>(s.ranks_of_replica);
    if (of.empty() || of.back() != replica) of.push_back(replica);
  }
  if (seed % 3 == 0) {  // a parameter server on a node of its own
    s.ranks_of_slot.push_back(s.servers = 1);
    s.replicas_of_slot.emplace_back();
    for (Id r = 0; r < static_cast<Id>(s.replicas); ++r) s.replicas_of_slot.back().push_back(r);
  }
  s.duration = (1 + below(100'000)) * second;
  s.step = 1 + static_cast<Ticks>(below(4'000'000'000U)) * 20;
  s.step_with = [step = s.step, all = s.replicas](int r) { return step * all / std::max(1, r); };
  s.replicated = below(2) == 0;
  s.save_every = below(30);
  s.checkpoint = {.stall = below(100) * second,
                  .persist = below(3) * static_cast<Ticks>(below(500)) * second,
                  .load = below(100) * second,
                  .group = static_cast<int>(below(3)),
                  .whole_every = static_cast<int>(1 + below(5))};
  s.restart = below(500) * second;
  s.replacement = below(500) * second;
  s.replan = below(100) * second;
  s.takeover = below(100) * second;
  s.copy = below(50) * second;
  s.overhead = below(3) * 0.1;
  s.spares = static_cast<int>(below(3));
  s.min_ranks = static_cast<int>(1 + below(total_ranks));
  s.default_detection = below(700) * second;
  std::vector<Incident> incidents;
  const auto many = below(60);
  for (std::uint32_t i = 0; i < many; ++i) {
    Incident one{.at = static_cast<Ticks>(below(120'000)) * second,
                 .strike = static_cast<Strike>(below(8)),
                 .slots = {below(static_cast<std::uint32_t>(s.ranks_of_slot.size()))},
                 .detection = static_cast<Ticks>(below(900)) * second - second,
                 .lasts = static_cast<Ticks>(below(20'000)) * second,
                 .factor = 1.0 + below(3)};
    if (below(4) == 0) one.slots.push_back((one.slots[0] + 1) % slots);
    if (below(4) == 0 && !incidents.empty()) one.at = incidents.back().at + below(2) * second;
    std::erase_if(one.slots, [&, first = true](Id slot) mutable {
      const bool again = !first && slot == one.slots[0];
      first = false;
      return again;
    });
    incidents.push_back(one);
  }
  std::stable_sort(incidents.begin(), incidents.end(),
                   [](const Incident& a, const Incident& b) { return a.at < b.at; });
  return {std::move(s), std::move(incidents)};
}

TEST(Walk, TimesAddUpWhateverHappens) {
  int waited = 0, recovered = 0;
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    const auto [s, incidents] = any_case(seed);
    for (const auto& [name, policy] : policies()) {
      const Outcome o = walk(s, policy, incidents);
      const std::string what = fmt::format("seed {} policy {}", seed, name_of(name));
      ASSERT_EQ(total(o), s.duration) << what;
      for (const Ticks t : o.lost) ASSERT_GE(t, 0) << what;
      ASSERT_GE(o.productive, 0) << what;
      ASSERT_GE(o.steps, 0) << what;
      ASSERT_GE(o.lost_steps, 0) << what;
      ASSERT_LE(o.steps * s.step, s.duration) << what;
      if (!policy.units) {
        ASSERT_LT(std::abs(o.productive - o.steps * s.step), s.step) << what;
      }
      ASSERT_LE(o.interruptions, static_cast<int>(incidents.size())) << what;
      const Outcome again = walk(s, policy, incidents);
      ASSERT_EQ(again.productive, o.productive) << what;
      ASSERT_EQ(again.lost, o.lost) << what;
      waited += o.ends_waiting ? 1 : 0;
      recovered += o.interruptions > 0 && !o.ends_waiting ? 1 : 0;
    }
  }
  EXPECT_GT(waited, 300);
  EXPECT_GT(recovered, 1000);
}

}  // namespace
}  // namespace rehearse::goodput
