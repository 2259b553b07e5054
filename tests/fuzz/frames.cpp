// Fuzz target for the control plane's frames: what comes through a socket is cut into messages, and
// each message is read as a hello and as counts, texts and numbers.
#include <sys/socket.h>

#include <array>
#include <stdexcept>

#include "runtime/control/net/frame.h"
#include "tests/fuzz/targets.h"

namespace rehearse::fuzz {
namespace {

using runtime::CommHello;
using runtime::Message;

void read(const Message& message) {
  accepts([&] {
    Message hello = message;
    expect(CommHello::of(hello).message().body() == message.body(), "a hello stays what it is");
  });
  accepts([&] {
    Message values = message;
    const auto count = values.take_count(sizeof(double));
    for (std::uint32_t i = 0; i < count; ++i) values.take<double>();
    values.check_end();
    expect(message.body().size() == sizeof count + count * sizeof(double), "all were counted");
  });
  accepts([&] {
    Message texts = message;
    std::size_t bytes = 0;
    while (bytes < message.body().size()) bytes += sizeof(std::uint32_t) + texts.take_text().size();
    texts.check_end();
  });
}

}  // namespace

void frames(std::string_view input) {
  std::array<int, 2> ends = {};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()) != 0)
    throw std::runtime_error("no pair of sockets");
  const runtime::Fd writer(ends[0]);
  runtime::FrameSocket reader{runtime::ByteStream(runtime::Fd(ends[1]))};
  if (send(writer.get(), input.data(), input.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(input.size()))
    return;  // longer than the kernel's buffer
  reader.fill();
  std::size_t bytes = 0;
  accepts([&] {
    while (const auto message = reader.next()) {
      bytes += sizeof(std::uint32_t) + 1 + message->body().size();
      read(*message);
    }
  });
  expect(bytes <= input.size(), "messages are not longer than what came");
}

}  // namespace rehearse::fuzz
