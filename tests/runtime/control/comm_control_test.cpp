// The control plane between ranks: who comes, what they tell each other, how they stop together,
// and who is named when one does not come. Who is silent shows after a timeout, so these tests are
// in suites named Soak.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <optional>
#include <thread>

#include "engine/base/errors.h"
#include "runtime/communication/network.h"
#include "runtime/control/net/handshake.h"
#include "runtime/control/net/socket.h"
#include "runtime/control/supervisor.h"
#include "tests/runtime/comm_ranks.h"

namespace rehearse::runtime {
namespace {

using testing::HasSubstr;

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

}  // namespace
}  // namespace rehearse::runtime
