// How ranks introduce themselves to rank 0, and who is not heard.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <optional>
#include <thread>

#include "runtime/control/control.h"
#include "runtime/control/frame.h"
#include "runtime/control/socket.h"
#include "tests/runtime/comm_ranks.h"

namespace rehearse::runtime {
namespace {

using testing::HasSubstr;

Deadline soon() { return Clock::now() + std::chrono::seconds(60); }

FrameSocket say(std::uint16_t port, const CommHello& hello) {
  FrameSocket socket(connect_to("127.0.0.1", port, soon()));
  socket.queue(hello.message());
  socket.flush();
  return socket;
}

/// A run of two ranks in this process that is in its start 1.
struct Pair {
  Fd listener = listen_on(0);
  std::uint16_t port = port_of(listener.get());

  Environment environment(int rank) const {
    return {.rank = rank,
            .world_size = 2,
            .local_rank = rank,
            .local_world_size = 2,
            .master_port = port,
            .listener = rank == 0 ? dup(listener.get()) : -1,
            .start = 1};
  }
  /// What rank 1 says in both ranks' exchange; an error's text if they do not come together.
  std::string meet() const {
    std::optional<std::string> heard;
    std::thread first([&] {
      try {
        Control control(environment(0), patient());
        heard = control.gather("word", "zero")[1];
        control.finish();
      } catch (const std::exception& error) {
        heard = error.what();
      }
    });
    try {
      Control control(environment(1), patient());
      control.gather("word", "one");
      control.finish();
    } catch (const std::exception&) {
      // Rank 0 has the reason.
    }
    first.join();
    return *heard;
  }
};

TEST(CommHello, IsReadAsItWasWritten) {
  const CommHello hello{.rank = 3, .world_size = 8, .start = 2, .host = "node7", .pid = 4711};
  Message message = hello.message();
  const CommHello read = CommHello::of(message);
  EXPECT_EQ(read.version, control_version);
  EXPECT_EQ(read.rank, 3U);
  EXPECT_EQ(read.world_size, 8U);
  EXPECT_EQ(read.start, 2U);
  EXPECT_EQ(read.host, "node7");
  EXPECT_EQ(read.pid, 4711);
}

// All starts share the launcher's socket: a rank that connected to it in the start before may be
// found there by this start's rank 0, even when it is dead.
TEST(CommHello, RanksOfAnEarlierStartAreNotHeard) {
  const Pair pair;
  const CommHello hello{.rank = 1, .world_size = 2, .start = 0, .host = "here", .pid = getpid()};
  { const FrameSocket dead = say(pair.port, hello); }
  const FrameSocket alive = say(pair.port, hello);
  const FrameSocket of_more_ranks = say(pair.port, {.rank = 2, .world_size = 3});
  EXPECT_EQ(pair.meet(), "one");
}

TEST(CommHello, TwoOfTheSameStartAreRefused) {
  const Pair pair;
  const FrameSocket twin =
      say(pair.port, {.rank = 1, .world_size = 2, .start = 1, .host = "here", .pid = getpid()});
  EXPECT_THAT(pair.meet(), HasSubstr("two processes are rank 1"));
}

TEST(CommHello, AnotherVersionIsRefusedByItsAddress) {
  const Pair pair;
  const FrameSocket old = say(pair.port, {.version = control_version - 1});
  EXPECT_THAT(pair.meet(), HasSubstr("a rank at 127.0.0.1 speaks version 2"));
}

}  // namespace
}  // namespace rehearse::runtime
