// Who may join a run: ranks that prove that they know its secret. Whoever else connects, and
// whatever it sends, is refused, and the run does not notice.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <functional>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/errors.h"
#include "runtime/control/control.h"
#include "runtime/control/net/door.h"
#include "runtime/control/net/frame.h"
#include "runtime/control/net/handshake.h"
#include "tests/runtime/comm_ranks.h"

namespace rehearse::runtime {
namespace {

using testing::HasSubstr;

Deadline soon() { return Clock::now() + std::chrono::seconds(60); }

template <class Frame>
auto bytes_of(Frame& frame) {
  return std::as_writable_bytes(std::span(&frame, 1));
}

/// Whether the other end closes the connection, whatever it says before.
bool is_closed(const Fd& fd) {
  std::byte one = {};
  while (recv_all(fd.get(), bytes_of(one), soon())) continue;
  return recv(fd.get(), &one, 1, MSG_DONTWAIT) == 0 || errno == ECONNRESET;
}

std::string verdict_of(FrameSocket& socket) {
  for (const Deadline end = soon(); Clock::now() < end;) {
    pollfd wait = {socket.fd(), POLLIN, 0};
    poll(&wait, 1, milliseconds_until(end));
    const bool open = socket.fill();
    while (std::optional<Message> message = socket.next())
      if (message->kind() == MessageKind::verdict) {
        message->take<Id>();
        message->take<Fate>();
        return message->take_text();
      }
    if (!open) break;
  }
  return "no verdict";
}

/// A run of two ranks in this process that is in its start 1.
struct Pair {
  Fd listener = listen_on(0);
  std::uint16_t port = port_of(listener.get());
  Secret secret = random_secret();

  Environment environment(int rank) const {
    return {.rank = rank,
            .world_size = 2,
            .local_rank = rank,
            .local_world_size = 2,
            .master_port = port,
            .listener = rank == 0 ? dup(listener.get()) : -1,
            .secret = secret,
            .start = 1};
  }
  Fd stranger() const { return connect_to(loopback, port, soon()); }
  ByteStream proven(std::uint32_t rank, std::uint32_t start = 1, int stop = -1) const {
    return connect_as({.from = rank, .start = start}, secret, loopback, port, soon(), stop);
  }
  /// Somebody who knows the secret and says this hello.
  FrameSocket say(std::uint32_t rank, const CommHello& hello) const {
    FrameSocket socket(proven(rank));
    socket.queue(hello.message());
    socket.flush();
    return socket;
  }
  /// What rank 1 says in both ranks' exchange; an error's text if they do not come together.
  /// `meanwhile` runs after both have joined and before they exchange anything.
  std::string meet(const std::function<void()>& meanwhile = {}) const {
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
      if (meanwhile) meanwhile();
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
  Message message = CommHello{.world_size = 8, .host = "node7", .pid = 4711}.message();
  const CommHello read = CommHello::of(message);
  EXPECT_EQ(read.world_size, 8U);
  EXPECT_EQ(read.host, "node7");
  EXPECT_EQ(read.pid, 4711);
}

TEST(CommHello, ShortAndLongOnesAreRefused) {
  const std::string whole =
      CommHello{.world_size = 8, .host = "node7", .pid = 4711}.message().body();
  for (std::size_t bytes = 0; bytes <= whole.size() + 1; ++bytes) {
    if (bytes == whole.size()) continue;
    std::string body = whole;
    body.resize(bytes);
    Message message(MessageKind::hello, body);
    EXPECT_THROW(CommHello::of(message), BackendError) << bytes << " bytes";
  }
}

TEST(CommHello, NoMessageIsLongerThanItsKindMayBe) {
  const auto read = [](std::uint32_t size, std::uint8_t kind) {
    const Fd listener = listen_on(0);
    const Fd writer = connect_to(loopback, port_of(listener.get()), soon());
    FrameSocket reader(ByteStream(accept_from(listener.get())));
    EXPECT_TRUE(send_all(writer.get(), bytes_of(size), soon()));
    EXPECT_TRUE(send_all(writer.get(), bytes_of(kind), soon()));
    for (const Deadline end = soon(); Clock::now() < end;) {
      pollfd wait = {reader.fd(), POLLIN, 0};
      poll(&wait, 1, milliseconds_until(end));
      reader.fill();
      if (reader.next()) return true;
    }
    return false;
  };
  for (std::uint8_t kind = 0; kind <= static_cast<std::uint8_t>(MessageKind::release); ++kind)
    EXPECT_THROW(read(1U << 27, kind), BackendError) << int{kind};
  EXPECT_THROW(read(0, 200), BackendError);
  EXPECT_THROW(read(1, static_cast<std::uint8_t>(MessageKind::tick)), BackendError);
  EXPECT_TRUE(read(0, static_cast<std::uint8_t>(MessageKind::tick)));
}

// All starts share the launcher's socket: a rank that connected to it in the start before may be
// found there by this start's rank 0, even when it is dead.
TEST(CommHello, RanksOfAnEarlierStartAreNotHeard) {
  const Pair pair;
  { const Fd dead = pair.stranger(); }
  const Fd over = make_signal();
  std::thread alive([&] { EXPECT_THROW(pair.proven(1, 0, over.get()), BackendError); });
  EXPECT_EQ(pair.meet(), "one");
  notify(over.get());
  alive.join();
}

TEST(CommHello, WhoDoesNotBelongToTheRunIsRefusedAndTheRunGoesOn) {
  const Pair pair;
  EXPECT_EQ(pair.meet([&] {
    FrameSocket twin = pair.say(1, {.world_size = 2, .host = "there", .pid = getpid()});
    EXPECT_THAT(verdict_of(twin), HasSubstr("two processes are rank 1"));
    FrameSocket other = pair.say(1, {.world_size = 3, .host = "there", .pid = getpid()});
    EXPECT_THAT(verdict_of(other), HasSubstr("was started for 3 ranks, rank 0 for 2"));
    FrameSocket beyond = pair.say(2, {.world_size = 2, .host = "there", .pid = getpid()});
    EXPECT_THAT(verdict_of(beyond), HasSubstr("is not one of 2 ranks"));
    FrameSocket mute(pair.proven(1));
    mute.queue(Message(MessageKind::finish));
    mute.flush();
    EXPECT_THAT(verdict_of(mute), HasSubstr("rank 1 said no hello"));
  }),
            "one");
}

TEST(CommHello, AnotherSecretIsRefusedOnBothSides) {
  const Pair pair;
  EXPECT_EQ(pair.meet([&] {
    try {
      connect_as({.from = 1, .start = 1}, random_secret(), loopback, pair.port, soon());
      ADD_FAILURE() << "joined without the secret";
    } catch (const BackendError& error) {
      EXPECT_THAT(error.what(), HasSubstr("has another secret than this rank"));
    }
  }),
            "one");
}

TEST(CommHello, WhoDoesNotEncryptAsRankZeroDoesIsRefused) {
  const Pair pair;
  EXPECT_EQ(pair.meet([&] {
    try {
      connect_as({.encrypted = 1, .from = 1, .start = 1}, pair.secret, loopback, pair.port, soon());
      ADD_FAILURE() << "joined with encryption";
    } catch (const BackendError& error) {
      EXPECT_THAT(error.what(),
                  HasSubstr("has run.encrypt = false, this rank has run.encrypt = true"));
    }
  }),
            "one");
}

/// A rank of the run calls somebody who does not know the secret, but says that all is well.
TEST(CommHello, ARankDoesNotTrustWhoeverAnswers) {
  const Fd listener = listen_on(0);
  std::thread impostor([&] {
    pollfd wait = {listener.get(), POLLIN, 0};
    poll(&wait, 1, 60'000);
    const Fd fd = accept_from(listener.get());
    Challenge challenge;
    Answer answer;
    Acceptance acceptance;
    send_all(fd.get(), bytes_of(challenge), soon());
    recv_all(fd.get(), bytes_of(answer), soon());
    acceptance.hash = answer.hash;  // reflected
    send_all(fd.get(), bytes_of(acceptance), soon());
  });
  EXPECT_THROW(connect_as({}, random_secret(), loopback, port_of(listener.get()), soon()),
               BackendError);
  impostor.join();
}

TEST(CommHello, StrangersDoNoHarm) {
  const Pair pair;
  std::mt19937 random(1);
  const auto say = [&](const std::vector<std::byte>& words) {
    const Fd fd = pair.stranger();
    send_all(fd.get(), words, soon());
    shutdown(fd.get(), SHUT_WR);
    EXPECT_TRUE(is_closed(fd));
  };
  // An answer that was right once.
  Answer old;
  const auto answer_to = [&](const Fd& fd, const Caller& caller) {
    Challenge challenge;
    EXPECT_TRUE(recv_all(fd.get(), bytes_of(challenge), soon()));
    old.caller = caller;
    old.hash = hash_of_answer(pair.secret, challenge, old);
  };
  EXPECT_EQ(pair.meet([&] {
    for (const std::size_t bytes : {0, 1, 4, 5, 8, 16, 95, 96, 97, 4096}) {
      say(std::vector<std::byte>(bytes));
      std::vector<std::byte> noise(bytes);
      for (std::byte& b : noise) b = static_cast<std::byte>(random());
      say(noise);
    }
    const Fd first = pair.stranger(), again = pair.stranger(), elsewhere = pair.stranger();
    answer_to(first, {.from = 1, .start = 1});
    Acceptance acceptance;
    EXPECT_TRUE(send_all(again.get(), bytes_of(old), soon()));  // replayed
    EXPECT_TRUE(is_closed(again));
    answer_to(elsewhere, {.purpose = Purpose::data, .from = 1, .start = 1});  // redirected
    EXPECT_TRUE(send_all(elsewhere.get(), bytes_of(old), soon()));
    EXPECT_TRUE(is_closed(elsewhere));
    Answer other_version{.version = control_version - 1};
    const Fd of_another_build = pair.stranger();
    EXPECT_TRUE(send_all(of_another_build.get(), bytes_of(other_version), soon()));
    EXPECT_TRUE(is_closed(of_another_build));
  }),
            "one");
}

TEST(CommHello, OnlySoManyWaitAtTheDoor) {
  const Fd listener = listen_on(0);
  const std::uint16_t port = port_of(listener.get());
  const Secret secret = random_secret();
  Door door(Fd(dup(listener.get())), secret, {});
  const auto nobody = [](const Caller&, ByteStream) { ADD_FAILURE() << "a stranger passed"; };
  std::vector<Fd> callers;
  for (std::size_t i = 0; i < Door::most_waiting + 3; ++i) {
    callers.push_back(connect_to(loopback, port, soon()));
    door.turn(nobody);
  }
  for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(is_closed(callers[i])) << i;
  std::vector<pollfd> wait;
  door.add_to(wait);
  EXPECT_EQ(wait.size(), 1 + Door::most_waiting);
  // A rank passes all the same.
  std::thread rank([&] { connect_as({.from = 7}, secret, loopback, port, soon()); });
  std::optional<std::uint32_t> passed;
  for (const Deadline end = soon(); !passed && Clock::now() < end;) {
    wait.clear();
    door.add_to(wait);
    poll(wait.data(), wait.size(), 100);
    door.turn([&](const Caller& caller, const ByteStream&) { passed = caller.from; });
  }
  rank.join();
  EXPECT_EQ(passed, 7U);
}

}  // namespace
}  // namespace rehearse::runtime
