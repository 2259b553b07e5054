// What hides and opens secrets, all from libsodium: X25519 key agreement, masks from ChaCha20,
// shares sealed with ChaCha20-Poly1305, and Shamir's shares (Communications of the ACM 1979) in the
// field of integers modulo the prime order of the curve's group, about 2^252. Every secret that may
// have to be opened by shares is an element of that field: a self mask is expanded from it, and a
// key pair is derived from it.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "engine/base/id.h"

namespace rehearse::secure {

using Key = std::array<unsigned char, 32>;
using Message = std::vector<unsigned char>;

struct KeyPair {
  Key open = {}, secret = {};
};

/// A random element of the field, from the system's source. Throws BackendError when there is none.
Key random_secret_number();
/// The key pair that belongs to a secret number.
KeyPair pair_of(const Key& number);
/// The key that two clients agree on: the same with the roles exchanged. Throws BackendError when
/// the other key is no point of the curve.
Key agreed_key(const KeyPair& own, const Key& other);
/// values += the mask that belongs to the key, from its number `first` on; with `subtract` -=.
/// Modulo 2^32.
void add_mask(std::span<std::uint32_t> values, const Key& key, bool subtract,
              std::int64_t first = 0);

/// The two shares that a client gives to another one.
struct Shares {
  Key pair = {}, self = {};  // of the number of its key pair; of its self mask
};
inline constexpr std::size_t sealed_bytes = 2 * sizeof(Key) + 16;
/// Sealed from `from` to `to` under the key that they agree on.
std::array<unsigned char, sealed_bytes> seal(const Shares& shares, const Key& agreed, Id from,
                                             Id to);
/// nullopt: not sealed so.
std::optional<Shares> unseal(std::span<const unsigned char> sealed, const Key& agreed, Id from,
                             Id to);

/// A share for each holder; any `threshold` of them open the number, fewer say nothing about it.
std::vector<Key> split(const Key& number, std::span<const Id> holders, int threshold);
/// The number, from the shares of different holders, at least `threshold` of them.
Key join(std::span<const std::pair<Id, Key>> shares);

}  // namespace rehearse::secure
