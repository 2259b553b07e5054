// How two processes of a run prove to each other that they know its secret, before anything else is
// sent: a challenge and an answer by a keyed hash, in both directions (libsodium's crypto_auth,
// that is HMAC-SHA-512 cut to 256 bits; the scheme is ISO/IEC 9798-4, mutual, three passes).
//
//   caller                                     listener
//     |<-- challenge: version, random ------------|   (Challenge)
//     |--- caller, random, hash of all of it ---->|   (Answer: the only bytes that are read before)
//     |<-- verdict, hash of all of it ------------|   (Acceptance)
//
// The random numbers make every hash new, so nothing can be replayed. Rank, start, purpose and
// channel are inside the hash, so nothing can be redirected. With run.encrypt, two more hashes of
// all of it, with other labels, are the keys of the connection (runtime/control/net/stream.h).
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "runtime/control/net/secret.h"
#include "runtime/control/net/socket.h"
#include "runtime/control/net/stream.h"

namespace rehearse::runtime {

inline constexpr std::uint32_t control_version = 5;

/// What a connection is for.
enum class Purpose : std::uint16_t { control = 1, data = 2 };

/// Who calls whom, and for what.
struct Caller {
  Purpose purpose = Purpose::control;
  std::uint16_t encrypted = 0;     // 1: everything after the handshake is
  std::uint32_t from = 0, to = 0;  // ranks
  std::uint32_t start = 0;         // Environment::start
  std::uint64_t channel = 0;       // data: key of the channel
};

// The frames as they are sent, without padding. All ranks run on little-endian machines.
inline constexpr std::uint32_t handshake_magic = 0x52484853;
using Random = std::array<unsigned char, 32>;
using Hash = std::array<unsigned char, 32>;
struct Challenge {
  std::uint32_t magic = handshake_magic, version = control_version;
  Random random = {};
};
struct Answer {
  std::uint32_t magic = handshake_magic, version = control_version;
  Caller caller = {};
  Random random = {};
  Hash hash = {};
};
enum class Verdict : std::uint32_t {
  accepted = 1,
  other_secret = 2,
  misdirected = 3,
  other_encryption = 4
};
struct Acceptance {
  Verdict verdict = Verdict::accepted;
  Hash hash = {};  // zeros unless accepted
};
static_assert(sizeof(Caller) == 24 && sizeof(Challenge) == 40 && sizeof(Answer) == 96 &&
              sizeof(Acceptance) == 36);

Hash hash_of_answer(const Secret& secret, const Challenge& challenge, const Answer& answer);
Hash hash_of_acceptance(const Secret& secret, const Challenge& challenge, const Answer& answer);
/// The keys of the caller's end or of the listener's; nothing for a connection in the clear.
enum class End : std::uint8_t { caller, listener };
std::optional<StreamKeys> keys_of(const Secret& secret, const Challenge& challenge,
                                  const Answer& answer, End end);
bool equal(const Hash& a, const Hash& b);  // in a time that does not depend on them

/// Connects as `caller` to a listener of the run (runtime/control/net/door.h), until the deadline
/// or until the descriptor `stop` (-1: none) becomes readable; tries again while nobody listens
/// there or the connection ends without a verdict, or the rank there is in an earlier start. Throws
/// BackendError that names host and port, and what to do when the other end has another secret or
/// another version, or encrypts and this rank does not.
ByteStream connect_as(const Caller& caller, const Secret& secret, const std::string& host,
                      std::uint16_t port, Deadline deadline, int stop = -1);

}  // namespace rehearse::runtime
