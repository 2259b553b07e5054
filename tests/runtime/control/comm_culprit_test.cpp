// When a rank (rank 0 too) is killed, is stopped, hangs or never comes, every other rank ends with
// an error that names that rank only. A closed connection shows who was killed, however busy the
// machine is; who is silent shows after a timeout, so these tests are in suites named Soak.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <functional>
#include <optional>
#include <thread>

#include "runtime/communication/network.h"
#include "runtime/control/supervisor.h"
#include "runtime/control/together.h"
#include "tests/runtime/comm_ranks.h"

namespace rehearse::runtime {
namespace {

using testing::HasSubstr;
using testing::Not;

enum class Mishap { killed, stopped, hung, absent_minded };

struct Accident {
  int ranks = 3, culprit = 0;
  Mishap fate = Mishap::killed;
  job::Transport transport = job::Transport::sockets;
};

/// Runs steps of a little work and an all-reduce. The culprit meets its fate in step 3.
std::string train(const Environment& environment, const Accident& accident) {
  ControlOptions options = accident.fate == Mishap::killed ? patient() : impatient();
  options.describe = [](Id, Id op) { return "the op numbered " + std::to_string(op); };
  Control control(environment, options);
  NetworkOptions network_options;
  network_options.transport = accident.transport;
  Network network(control, network_options);
  const auto group = network.communicator("dp", all_ranks(environment.world_size));
  LaneProgress& lane = control.lane("compute");
  std::vector<float> x(100'000, 1.0F);
  for (std::int64_t step = 0;; ++step) {
    lane.enter(LaneState::working, step, 7);
    if (step == 3 && environment.rank == accident.culprit) {
      switch (accident.fate) {
        case Mishap::killed:
          raise(SIGKILL);
          break;
        case Mishap::stopped:
          raise(SIGSTOP);
          break;
        case Mishap::hung:
          for (std::atomic<int> spin = 0;; ++spin) {
          }
        case Mishap::absent_minded:  // hangs while no lane is at work
          lane.enter(LaneState::idle, step, none);
          pause();
      }
    }
    lane.enter(LaneState::communicating, step, 8);
    group->all_reduce({x.data(), static_cast<std::int64_t>(x.size())});
  }
}

void expect_that_all_others_name_it(const Accident& accident) {
  RunOptions options;
  if (accident.fate == Mishap::stopped) options.hostage = accident.culprit;
  const auto ended = run_ranks(
      accident.ranks, [&](const Environment& e) { return train(e, accident); }, options);
  for (int rank = 0; rank < accident.ranks; ++rank) {
    const Ended& end = ended[static_cast<std::size_t>(rank)];
    if (rank == accident.culprit) {
      const bool ends_itself =
          accident.fate == Mishap::hung || accident.fate == Mishap::absent_minded;
      EXPECT_EQ(end.status, ends_itself ? 1 : 128 + SIGKILL);
      continue;
    }
    EXPECT_EQ(end.status, 1);
    EXPECT_THAT(end.text, HasSubstr("rank " + std::to_string(accident.culprit) + " ("));
    for (int other = 0; other < accident.ranks; ++other) {
      if (other == accident.culprit) continue;
      EXPECT_THAT(end.text, Not(HasSubstr("rank " + std::to_string(other)))) << "rank " << rank;
    }
    switch (accident.fate) {
      case Mishap::killed:
        EXPECT_THAT(end.text, HasSubstr("it was killed or crashed"));
        break;
      case Mishap::stopped:
        EXPECT_THAT(end.text, HasSubstr("has been silent for"));
        break;
      case Mishap::hung:
        EXPECT_THAT(end.text, HasSubstr("makes no progress: lane compute has been at step 4, op 7 "
                                        "(the op numbered 7) for"));
        break;
      case Mishap::absent_minded:
        EXPECT_THAT(end.text, HasSubstr("has not arrived while others wait for it"));
        break;
    }
  }
}

class Culprit : public testing::TestWithParam<Accident> {};
TEST_P(Culprit, IsNamedByEveryOtherRank) { expect_that_all_others_name_it(GetParam()); }

class SoakCulprit : public testing::TestWithParam<Accident> {};
TEST_P(SoakCulprit, IsNamedByEveryOtherRank) { expect_that_all_others_name_it(GetParam()); }

const Accident killed[] = {{3, 0, Mishap::killed, job::Transport::sockets},
                           {3, 1, Mishap::killed, job::Transport::sockets},
                           {3, 2, Mishap::killed, job::Transport::gloo}};
std::vector<Accident> silences() {
  std::vector<Accident> all;
  for (const Mishap fate : {Mishap::stopped, Mishap::hung, Mishap::absent_minded}) {
    for (const int culprit : {0, 1}) all.push_back({3, culprit, fate, job::Transport::sockets});
  }
  all.push_back({3, 1, Mishap::stopped, job::Transport::gloo});
  return all;
}
std::string name_of(const testing::TestParamInfo<Accident>& info) {
  const std::array<const char*, 4> fates = {"killed", "stopped", "hung", "absent_minded"};
  return std::string(info.param.transport == job::Transport::gloo ? "gloo_" : "") +
         fates[static_cast<std::size_t>(info.param.fate)] + "_rank_" +
         std::to_string(info.param.culprit);
}
INSTANTIATE_TEST_SUITE_P(Comm, Culprit, testing::ValuesIn(killed), name_of);
INSTANTIATE_TEST_SUITE_P(Comm, SoakCulprit, testing::ValuesIn(silences()), name_of);

// Two ranks work together, rank 1 on `work`, with less time to join and to move than that takes.
std::vector<Ended> work_of_rank_1(const std::function<void(LaneProgress&)>& work) {
  return run_ranks(2, [&](const Environment& environment) {
    ControlOptions options = impatient();
    options.join = Seconds(10);
    Control control(environment, options);
    LaneProgress& lane = control.lane("checkpoint");
    lane.enter(LaneState::communicating, 8, none);
    const auto mine = [&] {
      if (environment.rank == 1) work(lane);
    };
    together(control, "checkpoint", mine, &lane);
    lane.become(LaneState::idle);
    control.finish();
    return std::string("done");
  });
}

TEST(SoakCommTogether, WorkThatPulsesMayOutlastEveryTimeout) {
  const auto ended = work_of_rank_1([](LaneProgress& lane) {
    for (const auto begin = Clock::now(); seconds_since(begin) < 12; lane.pulse())
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
  });
  for (const Ended& end : ended) EXPECT_EQ(end.text, "done");
}

TEST(SoakCommTogether, WorkThatHangsIsNamed) {
  const auto ended = work_of_rank_1([](LaneProgress&) { pause(); });
  EXPECT_EQ(ended[0].status, 1);
  EXPECT_THAT(ended[0].text,
              HasSubstr("makes no progress: lane checkpoint has been at step 9 for"));
  EXPECT_THAT(ended[0].text, HasSubstr("rank 1 ("));
}

TEST(CommHang, WhoWaitsIsNotToBlame) {
  const ControlOptions options = impatient();
  const auto now = Clock::now();
  const auto old = now - std::chrono::seconds(10);
  const auto packed = [](LaneState state, std::int64_t step, Id op) {
    LaneProgress lane;
    lane.enter(state, step, op);
    return lane.packed();
  };
  const auto rank = [&](Id id, LaneState state, std::int64_t step, Deadline since) {
    return RankView{id, false, old, {{"compute", packed(state, step, 5), 0, since}}};
  };
  const auto blamed = [&](const std::vector<RankView>& ranks) {
    const auto blame = find_hang(ranks, now, options);
    return blame ? static_cast<int>(blame->rank) : -2;
  };
  constexpr auto waiting = LaneState::communicating;
  // A lane has just moved: no hang.
  EXPECT_EQ(blamed({rank(0, waiting, 3, old), rank(1, LaneState::idle, 3, now)}), -2);
  // To blame is the rank at work for too long, although others are behind it.
  EXPECT_EQ(blamed({rank(0, waiting, 2, old), rank(1, LaneState::working, 3, old),
                    rank(2, waiting, 1, now)}),
            1);
  // No lane is at work: to blame is the least advanced rank that does not wait.
  EXPECT_EQ(blamed({rank(0, waiting, 3, old), rank(1, LaneState::idle, 3, old),
                    rank(2, LaneState::idle, 2, old)}),
            2);
  // All idle (between runs) is no hang. If all wait, no single rank is to blame.
  EXPECT_EQ(blamed({rank(0, LaneState::idle, 3, old), rank(1, LaneState::idle, 3, old)}), -2);
  EXPECT_EQ(blamed({rank(0, waiting, 3, old), rank(1, waiting, 3, old)}), static_cast<int>(none));
  // A finished rank waits for the others. A rank without lanes gets the join timeout in addition.
  EXPECT_EQ(blamed({{0, true, old, {}}, rank(1, LaneState::idle, 9, old)}), 1);
  EXPECT_EQ(blamed({{0, true, now, {}}, rank(1, LaneState::idle, 9, old)}), -2);
  EXPECT_EQ(blamed({{0, false, old, {}}, rank(1, waiting, 1, old)}), -2);
}

}  // namespace
}  // namespace rehearse::runtime
