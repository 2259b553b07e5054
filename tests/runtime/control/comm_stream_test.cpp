// An encrypted connection: what one end sends the other end receives, nothing of it is in the
// clear, and whatever somebody between them changes, drops, repeats or moves is an error.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string>

#include "engine/base/errors.h"
#include "runtime/control/net/stream.h"

namespace rehearse::runtime {
namespace {

using Bytes = std::vector<std::byte>;

std::array<Fd, 2> socket_pair() {
  std::array<int, 2> ends = {};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()) != 0)
    throw std::runtime_error("no pair of sockets");
  return {Fd(ends[0]), Fd(ends[1])};
}

/// What has come at a socket.
Bytes drain(const Fd& fd) {
  Bytes all(1 << 20);
  const ssize_t n = recv(fd.get(), all.data(), all.size(), MSG_DONTWAIT);
  all.resize(n < 0 ? 0 : static_cast<std::size_t>(n));
  return all;
}

/// Two ends with somebody between them, who sees and passes on what they send.
struct Between {
  StreamKeys keys = {.send = random_secret(), .receive = random_secret()};
  std::array<Fd, 2> left = socket_pair(), right = socket_pair();
  ByteStream sender{std::move(left[0]), keys};
  ByteStream receiver{std::move(right[1]), StreamKeys{.send = keys.receive, .receive = keys.send}};

  /// What the sender makes of a text.
  Bytes sealed(const std::string& text) {
    EXPECT_EQ(sender.send(std::as_bytes(std::span(text))), static_cast<ssize_t>(text.size()));
    return drain(left[1]);
  }
  /// What the receiver makes of bytes; "error" if it refuses them.
  std::string received(const Bytes& bytes) {
    EXPECT_EQ(send(right[0].get(), bytes.data(), bytes.size(), 0),
              static_cast<ssize_t>(bytes.size()));
    std::string all(100, '\0');
    try {
      const ssize_t n = receiver.receive(std::as_writable_bytes(std::span(all)));
      all.resize(n < 0 ? 0 : static_cast<std::size_t>(n));
      return all;
    } catch (const BackendError&) {
      return "error";
    }
  }
};

TEST(CommStream, EveryByteArrivesInBothDirectionsHoweverFewTheKernelTakes) {
  for (const bool encrypted : {false, true}) {
    const StreamKeys keys{.send = random_secret(), .receive = random_secret()};
    const StreamKeys others{.send = keys.receive, .receive = keys.send};
    auto ends = socket_pair();
    for (const Fd& end : ends) {
      const int few = 1 << 10;
      setsockopt(end.get(), SOL_SOCKET, SO_SNDBUF, &few, sizeof few);
    }
    std::array<ByteStream, 2> both{
        ByteStream(std::move(ends[0]), encrypted ? std::optional(keys) : std::nullopt),
        ByteStream(std::move(ends[1]), encrypted ? std::optional(others) : std::nullopt)};
    for (int from = 0; from < 2; ++from) {
      Bytes out(300'001), in(out.size());
      fill_randomly({reinterpret_cast<unsigned char*>(out.data()), out.size()});
      std::size_t sent = 0, got = 0;
      while (got < in.size()) {
        const ssize_t n = both[from].send(std::span<const std::byte>(out).subspan(sent));
        ASSERT_TRUE(n >= 0 || errno == EAGAIN);
        sent += static_cast<std::size_t>(std::max<ssize_t>(n, 0));
        const std::size_t piece = std::min<std::size_t>(in.size() - got, 7'777);
        const ssize_t m = both[1 - from].receive(std::span(in).subspan(got, piece));
        ASSERT_TRUE(m > 0 || (m < 0 && errno == EAGAIN));
        got += static_cast<std::size_t>(std::max<ssize_t>(m, 0));
      }
      EXPECT_EQ(in, out);
      EXPECT_FALSE(both[1 - from].has_input());
    }
  }
}

TEST(CommStream, NothingIsInTheClear) {
  Between b;
  const std::string text = "the weights of layer 7";
  const Bytes bytes = b.sealed(text);
  const auto clear = std::as_bytes(std::span(text)).first(4);
  EXPECT_EQ(std::search(bytes.begin(), bytes.end(), clear.begin(), clear.end()), bytes.end());
  EXPECT_NE(bytes, b.sealed(text));  // nor is it visible that the same is sent again
}

TEST(CommStream, AChangedByteIsAnErrorWhereverItIs) {
  const std::size_t size = Between().sealed("weights").size();
  for (std::size_t at = 0; at < size; ++at) {
    Between b;
    Bytes bytes = b.sealed("weights");
    bytes[at] ^= std::byte{1};
    bytes.resize(bytes.size() + 1000);  // a longer record may have come
    EXPECT_EQ(b.received(bytes), "error") << at;
  }
}

TEST(CommStream, ARecordThatIsRepeatedMovedOrLeftOutIsAnError) {
  for (const std::string order : {"aab", "ba", "acb", "ac"}) {
    Between b;
    const Bytes first = b.sealed("begin");
    const std::array<Bytes, 3> records{b.sealed("1"), b.sealed("2"), b.sealed("3")};
    EXPECT_EQ(b.received(first), "begin");
    std::string last;
    for (const char c : order) last = b.received(records[static_cast<std::size_t>(c - 'a')]);
    EXPECT_EQ(last, "error") << order;
  }
}

TEST(CommStream, OtherKeysAndTheOwnBytesAreErrors) {
  Between b, other;
  EXPECT_EQ(other.received(b.sealed("weights")), "error");
  // What an end has sent itself comes back.
  Between reflected;
  const Bytes own = reflected.sealed("weights");
  EXPECT_EQ(send(reflected.left[1].get(), own.data(), own.size(), 0),
            static_cast<ssize_t>(own.size()));
  Bytes into(100);
  EXPECT_THROW(reflected.sender.receive(into), BackendError);
}

}  // namespace
}  // namespace rehearse::runtime
