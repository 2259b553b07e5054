// Mailboxes between real processes: several senders, order of arrival, replies, a slow receiver and
// the orderly end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <csignal>
#include <span>
#include <stdexcept>
#include <thread>

#include "engine/base/errors.h"
#include "runtime/communication/network.h"
#include "runtime/communication/switchboard.h"
#include "tests/runtime/comm_ranks.h"

namespace rehearse::runtime {
namespace {

using testing::HasSubstr;

void require(bool ok, const std::string& what) {
  if (!ok) throw std::runtime_error("wrong: " + what);
}

/// Rank 0 is the server: it adds what workers send to its value and replies with the value.
std::string serve_and_work(const Environment& environment) {
  constexpr int rounds = 30;
  constexpr std::int64_t elements = 50'001;
  Control control(environment, patient());
  std::string text;
  {
    Network network(control);
    const auto pushes = network.mailbox("push", {1, 2, 3}, {0});
    const auto pulls = network.mailbox("pull", {0}, {1, 2, 3});
    std::vector<std::int32_t> x(elements);
    const Buffer buffer = {x.data(), elements, program::DType::i32};
    if (environment.rank == 0) {
      std::vector<std::int32_t> sum(elements, 0);
      std::vector<int> from(4, 0);
      for (Id worker = 0; (worker = pushes->take(buffer).from) != none;) {
        ++from[worker];
        for (std::size_t i = 0; i < x.size(); ++i) sum[i] += x[i];
        pulls->put({sum.data(), elements, program::DType::i32}, worker);
      }
      pulls->close();
      for (const int worker : {1, 2, 3})
        require(from[static_cast<std::size_t>(worker)] == rounds, "count");
      require(sum.front() == rounds * (1 + 2 + 3) && sum.back() == sum.front(), "sum");
      require(pushes->traffic().received == 3 * rounds * buffer.bytes(), "bytes received");
      pushes->close();  // not a sender: does nothing
      require(pulls->traffic().sent == 3 * rounds * buffer.bytes(), "bytes sent");
    } else {
      std::int32_t last = 0;
      for (int i = 0; i < rounds; ++i) {
        std::fill(x.begin(), x.end(), environment.rank);
        pushes->put(buffer, 0);
        std::fill(x.begin(), x.end(), -1);
        require(pulls->take(buffer).from == 0, "sender");
        require(x.front() == x.back() && x.front() >= last + environment.rank, "reply");
        last = x.front();
      }
      pushes->close();
      require(pulls->take(buffer).from == none, "the end");
    }
  }
  control.finish();
  return text;
}

/// Rank 1 sends these bytes to rank 0's mailbox and no more; it stays until the run ends.
std::string send_nonsense(const Environment& environment, const ControlOptions& options,
                          std::span<const std::byte> bytes, bool closes) {
  Control control(environment, options);
  if (environment.rank == 0) {
    Network network(control);
    const auto mailbox = network.mailbox("push", {1}, {0});
    std::int32_t x = 0;
    mailbox->take({&x, 1, program::DType::i32});
  } else {
    Switchboard switchboard(control);
    ByteStream line = switchboard.connect(Switchboard::key_of("mailbox push", {0}), "push", 0);
    const auto soon = Clock::now() + std::chrono::seconds(60);
    send_all(line.fd(), bytes, soon);
    std::byte none_comes = {};
    if (!closes) require(!recv_all(line.fd(), std::span(&none_comes, 1), soon), "end");
    line = ByteStream();
    for (;;) {
      control.check();
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
  return "";
}

/// Both ranks end with the same error, which says that rank 1 is broken and why.
void expect_that_it_is_named(const ControlOptions& options, std::uint64_t bytes_of_letter,
                             bool closes, const std::string& why) {
  const std::array<std::uint64_t, 2> header = {0x5248544c, bytes_of_letter};
  for (const Ended& end : run_ranks(2, [&](const Environment& environment) {
         return send_nonsense(environment, options, std::as_bytes(std::span(header)), closes);
       })) {
    EXPECT_EQ(end.status, 1);
    EXPECT_THAT(end.text, testing::StartsWith("rank 1 ("));
    EXPECT_THAT(end.text,
                testing::EndsWith(" sent a broken message to rank 0: channel push: " + why));
  }
}

TEST(CommMailbox, ALetterWithoutMeasureEndsItsConnection) {
  expect_that_it_is_named(patient(), ~0ULL >> 1, false,
                          "no message of a mailbox has the kind 0x5248544c and "
                          "9223372036854775807 bytes");
}

// Who dies closes its connections too, so the control plane has its time to say so.
TEST(SoakCommMailbox, ALetterThatIsCutOffIsNamedAfterTheTimeout) {
  expect_that_it_is_named(impatient(), 100, true,
                          "the connection ended after 16 bytes of a message of 116");
}

TEST(CommMailbox, ServerAndWorkers) {
  for (const Ended& rank : run_ranks(4, serve_and_work)) EXPECT_EQ(rank.status, 0) << rank.text;
}

TEST(CommMailbox, PutDoesNotWaitForTheReceiver) {
  const auto ended = run_ranks(2, [](const Environment& environment) {
    Control control(environment, patient());
    std::string text;
    {
      Network network(control);
      const auto box = network.mailbox("push", {1}, {0});
      std::vector<float> x(2'500'000, 1.0F);  // 10 MB: more than any socket buffer here
      const Buffer buffer = {x.data(), static_cast<std::int64_t>(x.size())};
      if (environment.rank == 1) {
        for (int i = 0; i < 8; ++i) {
          x[0] = static_cast<float>(i);
          box->put(buffer, 0);
        }
        control.publish("all put", "");
        box->close();
      } else {
        // Takes nothing before all is put, so a put that waited for the receiver would never end.
        control.await("all put");
        for (int i = 0; i < 8; ++i) {
          require(box->take(buffer).from == 1 && x[0] == static_cast<float>(i), "order");
        }
        require(box->take(buffer).from == none && box->try_take(buffer).from == none, "the end");
      }
    }
    control.finish();
    return text;
  });
  for (const Ended& rank : ended) EXPECT_EQ(rank.status, 0) << rank.text;
}

TEST(CommMailbox, MemoryIsBounded) {
  // Beyond the bound a put waits until the receiver takes.
  const auto ended = run_ranks(2, [](const Environment& environment) {
    Control control(environment, patient());
    std::string text;
    {
      NetworkOptions options;
      options.mailbox_bound = Bytes(20e6);
      Network network(control, options);
      const auto box = network.mailbox("push", {1}, {0});
      std::vector<float> x(2'500'000, 1.0F);
      const Buffer buffer = {x.data(), static_cast<std::int64_t>(x.size())};
      if (environment.rank == 1) {
        for (int i = 0; i < 12; ++i) {
          box->put(buffer, 0);
          control.publish("put " + std::to_string(i), "");
        }
        box->close();
      } else {
        control.await("put 1");
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
        // At most 20 MB on either side, one message read beyond that, and the sockets' buffers.
        require(!control.lookup("put 9").has_value(), "100 MB were put into mailboxes of 20");
        for (int i = 0; i < 12; ++i) require(box->take(buffer).from == 1, "message");
      }
    }
    control.finish();
    return text;
  });
  for (const Ended& rank : ended) EXPECT_EQ(rank.status, 0) << rank.text;
}

TEST(CommMailbox, FreeRunningWorkersWorkUntilAnAnswerIsTheLast) {
  // Rank 0 counts steps of two messages each. One of the workers asks for the end.
  const auto ended = run_ranks(3, [](const Environment& environment) {
    Control control(environment, patient());
    control.start_at(0, environment.rank > 0);
    control.barrier("start");
    std::int64_t step = 0;
    {
      Network network(control);
      const auto pushes = network.mailbox("push", {1, 2}, {0});
      const auto pulls = network.mailbox("pull", {0}, {1, 2});
      float x = 1;
      const Buffer buffer = {&x, 1};
      if (environment.rank == 0) {
        for (; control.begin_step(step); ++step) {
          for (int i = 0; i < 2; ++i) {
            const Id worker = pushes->take(buffer).from;
            pulls->put(buffer, worker, control.last_step() == step);
          }
        }
        require(pushes->take(buffer).from == none, "a gradient was left over");
        pulls->close();
      } else {
        bool last = false;
        for (int own = 0; !last && control.begin_step(0); ++own) {
          if (environment.rank == 2 && own == 10) control.request_stop();
          pushes->put(buffer, 0);
          last = pulls->take(buffer).last;
        }
        require(last, "the end came without an answer");
        pushes->close();
      }
      control.barrier("end");
    }
    control.finish();
    return std::to_string(step - 1 - control.last_step().value_or(-9));
  });
  for (const Ended& rank : ended) EXPECT_EQ(rank.status, 0) << rank.text;
  EXPECT_EQ(ended[0].text, "0");
}

TEST(CommMailbox, DeadWorkerIsNamed) {
  const auto ended = run_ranks(3, [](const Environment& environment) {
    Control control(environment, patient());
    LaneProgress& lane = control.lane("apply");
    Network network(control);
    const auto box = network.mailbox("push", {1, 2}, {0});
    float x = 1;
    if (environment.rank == 2) raise(SIGKILL);
    if (environment.rank == 1) {
      for (;;) {
        control.check();
        lane.pulse();
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      }
    }
    lane.enter(LaneState::communicating, 0, 0);
    box->take({&x, 1});
    return std::string("took");
  });
  for (const std::size_t rank : {0, 1}) {
    EXPECT_EQ(ended[rank].status, 1);
    EXPECT_THAT(ended[rank].text, HasSubstr("rank 2 ("));
  }
}

TEST(CommMailbox, OtherSizeIsAnError) {
  const auto ended = run_ranks(1, [](const Environment& environment) {
    Control control(environment, patient());
    Network network(control);
    const auto box = network.mailbox("push", {0}, {0});
    std::vector<float> x(10);
    box->put({x.data(), 4}, 0);
    box->take({x.data(), 10});
    return std::string("took");
  });
  EXPECT_EQ(ended[0].status, 1);
  EXPECT_THAT(ended[0].text, HasSubstr("sent a broken message to rank 0: channel push: 16 bytes "
                                       "came where 40 were due"));
}

}  // namespace
}  // namespace rehearse::runtime
