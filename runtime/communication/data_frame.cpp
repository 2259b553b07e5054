#include "runtime/communication/data_frame.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <span>

#include "engine/base/errors.h"

namespace rehearse::runtime {
namespace {

constexpr std::size_t first_room = 1 << 20;  // bytes of memory for a letter of which none has come

void check(const LetterHeader& header) {
  const bool known = header.kind == LetterKind::letter || header.kind == LetterKind::end;
  const std::uint64_t most = header.kind == LetterKind::letter ? longest_letter : 0;
  if (!known || header.last > 1 || header.bytes > most)
    throw BackendError(fmt::format("no message of a mailbox has the kind {:#x} and {} bytes",
                                   static_cast<std::uint32_t>(header.kind), header.bytes));
}

/// Where the next bytes of an incomplete letter go.
std::span<std::byte> room_in(Letter& letter) {
  if (letter.done < sizeof letter.header)
    return std::as_writable_bytes(std::span(&letter.header, 1)).subspan(letter.done);
  const std::size_t done = letter.done - sizeof letter.header;
  if (letter.payload.size() == done)
    letter.payload.resize(std::min(letter.header.bytes, std::max(first_room, 2 * done)));
  return std::span(letter.payload)
      .first(std::min(letter.payload.size(), letter.header.bytes))
      .subspan(done);
}

}  // namespace

Reading read_letter(ByteStream& stream, Letter& letter,
                    const std::function<std::vector<std::byte>(std::size_t)>& buffer) {
  for (;;) {
    const std::span<std::byte> room = room_in(letter);
    const ssize_t n = stream.receive(room);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return Reading::incomplete;
    if (n <= 0) return letter.done == 0 ? Reading::ended : Reading::cut_off;
    letter.done += static_cast<std::size_t>(n);
    if (letter.done < sizeof letter.header) continue;
    if (letter.done == sizeof letter.header) {
      check(letter.header);
      letter.payload = buffer(letter.header.bytes);
    }
    if (letter.done == letter.size()) return Reading::complete;
  }
}

}  // namespace rehearse::runtime
