// Fuzz target for what ranks read from each other beside the control plane's messages. The first
// byte chooses: letters of a mailbox, through a socket; the header of a piece; a packet of a sparse
// gradient; the list of checkpoints that a node has.
#include <sys/socket.h>

#include <array>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "runtime/checkpoints/files/node_store.h"
#include "runtime/communication/data_frame.h"
#include "runtime/control/net/socket.h"
#include "runtime/kernels/sparsify.h"
#include "tests/fuzz/targets.h"

namespace rehearse::fuzz {
namespace {

using namespace runtime;

void letters(std::string_view input) {
  std::array<int, 2> ends = {};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()) != 0)
    throw std::runtime_error("no pair of sockets");
  Fd writer(ends[0]);
  ByteStream reader{Fd(ends[1])};
  if (send(writer.get(), input.data(), input.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(input.size()))
    return;  // longer than the kernel's buffer
  Letter letter;
  const auto no_spare = [](std::size_t) { return std::vector<std::byte>(); };
  std::size_t bytes = 0;
  const auto read = [&] {
    Reading reading = Reading::incomplete;
    while ((reading = read_letter(reader, letter, no_spare)) == Reading::complete) {
      expect(letter.payload.size() == letter.header.bytes,
             "a letter is as long as its header says");
      bytes += letter.size();
      letter = {};
    }
    expect(letter.payload.size() <= (2U << 20), "memory grows with what has come");
    return reading;
  };
  if (!accepts([&] { expect(read() == Reading::incomplete, "the connection is open"); })) return;
  bytes += letter.done;
  expect(bytes == input.size(), "everything is read");
  const bool whole = letter.done == 0;
  writer = Fd();
  expect(read() == (whole ? Reading::ended : Reading::cut_off), "an end in the middle is noticed");
}

void piece(std::string_view input) {
  TransferHeader header;
  if (input.size() != sizeof header) return;
  std::memcpy(&header, input.data(), sizeof header);
  const TransferHeader due{.sequence = 1, .bytes = 4096};
  expect((header == due) == (std::memcmp(&due, input.data(), sizeof due) == 0),
         "one header is due");
}

/// Packets that a peer sent are added up; the target lies between two guards.
void packet(std::string_view input) {
  if (input.size() < 2) return;
  program::Kernel kernel;
  const auto choice = static_cast<unsigned char>(input[0]);
  kernel.of = 1 + static_cast<unsigned char>(input[1]);
  kernel.keep = 1 + choice % kernel.of;
  kernel.selector = choice % 2 == 0 ? program::Selector::threshold : program::Selector::top_k;
  constexpr std::array codings{program::Coding::index32, program::Coding::bitmap,
                               program::Coding::delta16};
  kernel.coding = codings[(choice / 2) % codings.size()];
  std::vector<std::byte> bytes(static_cast<std::size_t>(program::packet_room(kernel)));
  std::memcpy(bytes.data(), input.data() + 2, std::min(bytes.size(), input.size() - 2));
  SelectScratch scratch;
  scratch.fit(kernel);
  std::vector<float> target(static_cast<std::size_t>(kernel.of));
  accepts([&] { scatter_add(kernel, {}, bytes.data(), 1, 0, kernel.of, target.data(), scratch); });
}

void list(std::string_view input) {
  accepts([&] {
    const auto held = held_from_json(std::string(input));
    const std::string text = to_json(held);
    expect(to_json(held_from_json(text)) == text, "a list stays what it is");
    newest_of({held, held});
    passed_over({held}, 0);
  });
}

}  // namespace

void data_frames(std::string_view input) {
  if (input.empty()) return;
  constexpr std::array readers{letters, piece, packet, list};
  readers[static_cast<unsigned char>(input[0]) % readers.size()](input.substr(1));
}

}  // namespace rehearse::fuzz
