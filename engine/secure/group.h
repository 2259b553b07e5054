// Who takes part in a secure sum, and how large each message is. The protocol is that of Bonawitz
// et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning", CCS 2017, against
// a server that follows it but is curious (their figure 4 without signatures and without the round
// of consistency checks). With `neighbours`, clients share masks and secrets with some others only
// (Bell et al., "Secure Single-Server Aggregation with (Poly)Logarithmic Overhead", CCS 2020: as
// SecAgg+ in Flower, a shuffled ring on which each client meets the nearest ones on both sides).
//
//   round       a client sends                             the server answers
//   advertise   two public keys                            those of its neighbours
//   share       to each neighbour two sealed shares        those for it
//   mask        its masked levels                          which of its neighbours sent theirs
//   unmask      one share for each neighbour, and its own  the mean
#pragma once
#include <array>
#include <cstdint>
#include <vector>

#include "engine/base/id.h"
#include "engine/secure/ring.h"

namespace rehearse::secure {

enum class Round : std::uint8_t { advertise, share, mask, unmask };
constexpr auto spellings(Round) {
  return std::to_array<const char*>({"advertise", "share", "mask", "unmask"});
}
inline constexpr int rounds = 4;

struct Settings {
  int clients = 0;
  int neighbours = 0;  // of each client; 0: all others
  int threshold = 0;   // shares that open a secret; 0: more than two thirds of them
  std::int64_t elements = 0;
  Ring ring = {};
  std::uint64_t seed = 0;  // of the shuffled ring
};

/// Settings that were found good.
struct Group {
  Settings settings = {};                        // complete
  std::vector<std::vector<Id>> neighbours = {};  // by client, in ascending order
};

/// Completes and checks the settings. Throws Refused, which names the key of a job.
Group group_of(Settings settings);

/// [client]: the round before which it leaves; `rounds`: it stays to the end.
using Leaving = std::vector<int>;
/// The clients that send in a round.
std::vector<Id> senders(const Leaving& leaving, int round);
/// Throws InputError when those who stay cannot open what the sum needs.
void check_leaving(const Group& group, const Leaving& leaving);

/// Bytes of one client's messages, by round; 0: none.
struct ClientTraffic {
  std::array<std::int64_t, rounds> up = {}, down = {};
};
std::vector<ClientTraffic> traffic_of(const Group& group, const Leaving& leaving);

// Sizes of the parts of messages.
inline constexpr std::int64_t id_bytes = 4, key_bytes = 32;

/// Where no profile says it: bytes of masks that a core makes and adds in a second, and how many
/// masks take as long as to make levels of numbers, or numbers of levels. From bench_secure on a
/// Xeon with AVX-512. In profiles, the kernels mask and unmask have one mask in them.
inline constexpr double mask_rate = 1.7e9;
inline constexpr int masks_of_levels = 2;

}  // namespace rehearse::secure
