// What ranks read from a data connection before and between the bytes of tensors. A connection
// carries the pieces of one channel, or the letters of one mailbox:
//
//   piece    [TransferHeader] [bytes of a tensor]
//   letter   [LetterHeader]   [bytes of a tensor]
//
// Whoever sends has proven that it belongs to the run, but may be broken.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "engine/program/program.h"
#include "runtime/control/net/stream.h"

namespace rehearse::runtime {

/// Sent before every piece, so that two ranks that disagree find out at once.
struct TransferHeader {
  static constexpr std::uint32_t own_magic = 0x52485431;
  std::uint32_t magic = own_magic;
  std::uint32_t sequence = 0;  // of the piece on its connection
  std::uint64_t bytes = 0;
  friend bool operator==(const TransferHeader&, const TransferHeader&) = default;
};

enum class LetterKind : std::uint32_t { letter = 0x5248544c, end = 0x52485445 };
struct LetterHeader {
  LetterKind kind = LetterKind::letter;
  std::uint32_t last = 0;  // 1: the sender's last letter to this receiver
  std::uint64_t bytes = 0;
};
static_assert(sizeof(TransferHeader) == 16 && sizeof(LetterHeader) == 16);

/// Far more than a model's gradients.
inline constexpr std::uint64_t longest_letter = 1ULL << 36;  // bytes

struct Letter {
  Id from = none;
  LetterHeader header = {};
  std::vector<std::byte> payload = {};  // may be longer than header.bytes
  std::size_t done = 0;                 // bytes of header and payload sent or received
  std::size_t size() const { return sizeof header + header.bytes; }
};

enum class Reading : std::uint8_t { incomplete, complete, ended, cut_off };
/// Reads more of a letter from a connection, as far as it has come. `buffer`: memory for a
/// payload of so many bytes, or empty; without it, memory grows with what has come, whatever the
/// header says. `cut_off`: the connection has ended in the middle of the letter. Throws
/// BackendError when the header is no letter's, or was changed on its way.
Reading read_letter(ByteStream& stream, Letter& letter,
                    const std::function<std::vector<std::byte>(std::size_t)>& buffer);

}  // namespace rehearse::runtime
