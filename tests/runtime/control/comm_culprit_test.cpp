// When a rank (rank 0 too) is killed, is stopped, hangs or never comes, every other rank ends with
// an error that names that rank only. A closed connection shows who was killed, however busy the
// machine is; who is silent shows after a timeout, so these tests are in suites named Soak.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <functional>
#include <numeric>
#include <optional>
#include <thread>

#include "engine/base/errors.h"
#include "runtime/communication/network.h"
#include "runtime/control/handshake.h"
#include "runtime/control/socket.h"
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

std::vector<Id> all_ranks(int n) {
  std::vector<Id> ranks(static_cast<std::size_t>(n));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

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

/// Runs `ranks` ranks but does not start rank `absent`.
std::vector<Ended> without_rank(int absent, int ranks) {
  RunOptions options;
  options.absent = absent;
  return run_ranks(
      ranks,
      [](const Environment& environment) {
        ControlOptions control = impatient();
        control.join = Seconds(1);
        const Control joined(environment, control);
        return std::string("came");
      },
      options);
}

TEST(SoakCommControl, WhoNeverComesIsNamed) {
  const auto ended = without_rank(2, 3);
  for (const int rank : {0, 1}) {
    const Ended& end = ended[static_cast<std::size_t>(rank)];
    EXPECT_EQ(end.status, 1);
    EXPECT_EQ(end.text, "rank 2 did not come within 1 s");
  }
}

TEST(SoakCommControl, RankZeroThatNeverComesIsNamed) {
  const auto ended = without_rank(0, 2);
  EXPECT_EQ(ended[1].status, 1);
  EXPECT_THAT(ended[1].text, HasSubstr("rank 0 did not come"));
}

TEST(CommControl, PortInUse) {
  const Fd taken = listen_on(0);
  Environment environment;
  environment.world_size = environment.local_world_size = 2;
  environment.master_port = port_of(taken.get());
  try {
    const Control control(environment, patient());
    FAIL() << "listened twice on one port";
  } catch (const BackendError& error) {
    EXPECT_THAT(error.what(), HasSubstr("port " + std::to_string(environment.master_port) +
                                        " is in use by another program"));
  }
}

TEST(CommControl, WhoComesAfterTheVerdictHearsIt) {
  Fd listener = listen_on(0);
  const std::uint16_t port = port_of(listener.get());
  const Secret secret = random_secret();
  const Supervisor supervisor(std::move(listener), 3, 0, secret, patient());
  const auto soon = [] { return Clock::now() + std::chrono::seconds(60); };
  const auto join = [&](std::uint32_t rank, const std::optional<Message>& more = {}) {
    FrameSocket socket(connect_as({.from = rank}, secret, loopback, port, soon()));
    socket.queue(CommHello{.world_size = 3, .host = "here", .pid = getpid()}.message());
    if (more) socket.queue(*more);
    socket.flush();
    return socket;
  };
  const auto verdict = [&](FrameSocket& socket) {
    for (const Deadline end = soon(); Clock::now() < end;) {
      pollfd wait = {socket.fd(), POLLIN, 0};
      if (poll(&wait, 1, 100) > 0 && !socket.fill()) break;
      while (std::optional<Message> message = socket.next())
        if (message->kind() == MessageKind::verdict) {
          message->take<Id>();
          message->take<Fate>();
          return message->take_text();
        }
    }
    return std::string("no verdict");
  };
  // Also a message that comes together with the hello is heard.
  FrameSocket one = join(1, Message(MessageKind::fail).put_text("the disk is full"));
  EXPECT_THAT(verdict(one), HasSubstr("failed: the disk is full"));
  FrameSocket late = join(0);
  EXPECT_THAT(verdict(late), HasSubstr("failed: the disk is full"));
}

TEST(CommControl, OtherProgramIsNamed) {
  const auto ended = run_ranks(3, [](const Environment& environment) {
    Control control(environment, patient());
    control.agree("the program", environment.rank == 1 ? "bbbb" : "aaaa");
    return std::string("agreed");
  });
  for (const Ended& end : ended) {
    EXPECT_EQ(end.status, 1);
    EXPECT_EQ(end.text, "the program differs between ranks: aaaa on ranks 0, 2; bbbb on rank 1");
  }
}

TEST(CommControl, ARanksOwnErrorReachesAll) {
  const auto ended = run_ranks(3, [](const Environment& environment) {
    Control control(environment, patient());
    if (environment.rank == 1) {
      control.fail("the disk is full");
      throw BackendError("the disk is full");
    }
    control.barrier("end");
    return std::string("ended well");
  });
  EXPECT_EQ(ended[1].text, "the disk is full");
  for (const std::size_t rank : {0, 2}) {
    EXPECT_EQ(ended[rank].status, 1);
    EXPECT_THAT(ended[rank].text, HasSubstr("rank 1 ("));
    EXPECT_THAT(ended[rank].text, HasSubstr("failed: the disk is full"));
  }
}

TEST(CommControl, LeavingEarlyIsAnError) {
  const auto ended = run_ranks(2, [](const Environment& environment) {
    Control control(environment, patient());
    if (environment.rank == 0) return std::string("left");
    control.barrier("end");
    return std::string("ended well");
  });
  EXPECT_EQ(ended[1].status, 1);
  EXPECT_THAT(ended[1].text, HasSubstr("rank 0 ("));
  EXPECT_THAT(ended[1].text, HasSubstr("it left the run before its end"));
}

TEST(CommControl, GathersAKeyAgain) {
  const auto ended = run_ranks(3, [](const Environment& environment) {
    Control control(environment, patient());
    std::string text;
    for (int turn = 0; turn < 20; ++turn) {
      for (const std::string& one :
           control.gather("loss", std::to_string(turn + 100 * environment.rank))) {
        text += one + " ";
      }
    }
    control.finish();
    return text;
  });
  std::string want;
  for (int turn = 0; turn < 20; ++turn) {
    for (const int rank : {0, 1, 2}) want += std::to_string(turn + 100 * rank) + " ";
  }
  for (const Ended& end : ended) EXPECT_EQ(end.text, want);
}

TEST(CommControl, ReportsReachRankZero) {
  const auto ended = run_ranks(3, [](const Environment& environment) {
    Control control(environment, patient());
    for (std::int64_t step = 0; step < 50; ++step) {
      control.report(step, std::vector<double>{1.0 + environment.rank, static_cast<double>(step)});
    }
    std::string text;
    if (environment.rank == 0) {
      double sum = 0;
      double steps = 0;
      for (int count = 0; count < 150;) {
        if (const auto report = control.next_report()) {
          sum += report->values.at(0);
          steps += report->values.at(1);
          ++count;
        }
        control.check();
      }
      text = std::to_string(sum) + " " + std::to_string(steps);
    }
    control.finish();
    return text;
  });
  EXPECT_EQ(ended[0].text, std::to_string(50.0 * 6) + " " + std::to_string(3.0 * 49 * 50 / 2));
}

TEST(CommControl, AllStopAtOneStep) {
  // Ranks run at different speeds; the all-reduce lets a rank be at most one step ahead.
  const auto ended = run_ranks(4, [](const Environment& environment) {
    Control control(environment, patient());
    std::int64_t step = 0;
    {
      Network network(control);
      const auto group = network.communicator("dp", all_ranks(4));
      std::vector<float> x(1000, 1.0F);
      for (; control.begin_step(step); ++step) {
        if (environment.rank == 2 && step == 20) control.request_stop();
        if (environment.rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(2));
        group->all_reduce({x.data(), 1000});
      }
    }
    control.finish();
    return std::to_string(step - 1) + " " + std::to_string(control.last_step().value_or(-2));
  });
  for (const Ended& end : ended) {
    EXPECT_EQ(end.status, 0) << end.text;
    EXPECT_EQ(end.text, ended[0].text);
  }
  const int last = std::stoi(ended[0].text);
  EXPECT_GE(last, 20);
  EXPECT_EQ(ended[0].text, std::to_string(last) + " " + std::to_string(last));
}

TEST(SoakCommControl, ARunThatWasSuspendedGoesOn) {
  RunOptions options;
  options.pause = 3;  // longer than the timeout
  const auto ended = run_ranks(
      3,
      [](const Environment& environment) {
        Control control(environment, impatient());
        {
          Network network(control);
          const auto group = network.communicator("dp", all_ranks(3));
          LaneProgress& lane = control.lane("compute");
          float x = 0;
          const auto start = Clock::now();
          for (std::int64_t step = 0; x == 0; ++step) {
            lane.enter(LaneState::working, step, 0);
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
            x = environment.rank == 0 && seconds_since(start) > 5 ? 1 : 0;
            lane.enter(LaneState::communicating, step, 1);
            group->all_reduce({&x, 1});
          }
        }
        control.finish();
        return std::string("went on");
      },
      options);
  for (const Ended& end : ended) EXPECT_EQ(end.text, "went on");
}

TEST(SoakCommControl, TimeInWhichARankWasSuspendedIsNotCountedAfterAVerdict) {
  RunOptions options;
  options.pause = 8;  // longer than `exit_after`
  const auto ended = run_ranks(
      2,
      [](const Environment& environment) {
        ControlOptions timeouts = patient();
        timeouts.exit_after = Seconds(5);
        Control control(environment, timeouts);
        if (environment.rank == 1) {
          control.fail("the disk is full");
          return std::string("failed");
        }
        while (!control.failure()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        // It ends a second after the verdict, in which all are suspended.
        for (int i = 0; i < 100; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
        return std::string("ended by itself");
      },
      options);
  EXPECT_EQ(ended[0].text, "ended by itself");
}

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
