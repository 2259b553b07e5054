#include "engine/secure/keys.h"

#include <sodium.h>

#include <algorithm>
#include <cstring>

#include "engine/base/errors.h"

namespace rehearse::secure {
namespace {

static_assert(sizeof(Key) == crypto_core_ed25519_SCALARBYTES);
static_assert(sizeof(Key) == crypto_box_PUBLICKEYBYTES);
static_assert(sizeof(Key) == crypto_box_SEEDBYTES);
static_assert(sealed_bytes == sizeof(Shares) + crypto_aead_chacha20poly1305_ietf_ABYTES);

void begin() {
  static const int ready = sodium_init();
  if (ready < 0) throw BackendError("libsodium finds no source of random numbers");
}

/// A holder's place on the polynomial: never 0, where the secret is.
Key place_of(Id holder) {
  Key out = {};
  const std::uint64_t place = std::uint64_t{holder} + 1;
  for (std::size_t i = 0; i < sizeof place; ++i)
    out[i] = static_cast<unsigned char>(place >> (8 * i));
  return out;
}

Key times(const Key& a, const Key& b) {
  Key out = {};
  crypto_core_ed25519_scalar_mul(out.data(), a.data(), b.data());
  return out;
}
Key plus(const Key& a, const Key& b) {
  Key out = {};
  crypto_core_ed25519_scalar_add(out.data(), a.data(), b.data());
  return out;
}
Key minus(const Key& a, const Key& b) {
  Key out = {};
  crypto_core_ed25519_scalar_sub(out.data(), a.data(), b.data());
  return out;
}

/// A key for one message alone, so that its nonce may be zero.
Key message_key(const Key& agreed, Id from, Id to) {
  const std::array<std::uint32_t, 2> ends{from, to};
  Key out = {};
  crypto_generichash(out.data(), out.size(), reinterpret_cast<const unsigned char*>(ends.data()),
                     sizeof ends, agreed.data(), agreed.size());
  return out;
}

constexpr std::array<unsigned char, crypto_aead_chacha20poly1305_ietf_NPUBBYTES> no_nonce = {};

}  // namespace

Key random_secret_number() {
  begin();
  Key out = {};
  crypto_core_ed25519_scalar_random(out.data());
  return out;
}

KeyPair pair_of(const Key& number) {
  begin();
  KeyPair out;
  crypto_box_seed_keypair(out.open.data(), out.secret.data(), number.data());
  return out;
}

Key agreed_key(const KeyPair& own, const Key& other) {
  Key out = {};
  // Hashes the shared point of the curve, as every use of X25519 must.
  if (crypto_box_beforenm(out.data(), other.data(), own.secret.data()) != 0)
    throw BackendError("secure aggregation: a client's public key is not valid");
  return out;
}

void add_mask(std::span<std::uint32_t> values, const Key& key, bool subtract, std::int64_t first) {
  // The cipher makes blocks, which it counts.
  constexpr std::size_t block = 64 / sizeof(std::uint32_t), room = 64 * block;
  static_assert(crypto_stream_chacha20_ietf_NONCEBYTES == no_nonce.size());
  std::array<std::uint32_t, room> mask;
  for (std::size_t at = 0; at < values.size();) {
    const std::size_t place = static_cast<std::size_t>(first) + at, skip = place % block;
    const std::span<std::uint32_t> part =
        values.subspan(at, std::min(room - skip, values.size() - at));
    mask.fill(0);
    auto* bytes = reinterpret_cast<unsigned char*>(mask.data());
    crypto_stream_chacha20_ietf_xor_ic(bytes, bytes, (skip + part.size()) * sizeof mask[0],
                                       no_nonce.data(), static_cast<std::uint32_t>(place / block),
                                       key.data());
    for (std::size_t i = 0; i < part.size(); ++i)
      part[i] = subtract ? part[i] - mask[skip + i] : part[i] + mask[skip + i];
    at += part.size();
  }
}

std::array<unsigned char, sealed_bytes> seal(const Shares& shares, const Key& agreed, Id from,
                                             Id to) {
  std::array<unsigned char, sizeof(Shares)> plain;
  std::copy(shares.pair.begin(), shares.pair.end(), plain.begin());
  std::copy(shares.self.begin(), shares.self.end(), plain.begin() + sizeof(Key));
  std::array<unsigned char, sealed_bytes> out;
  crypto_aead_chacha20poly1305_ietf_encrypt(out.data(), nullptr, plain.data(), plain.size(),
                                            nullptr, 0, nullptr, no_nonce.data(),
                                            message_key(agreed, from, to).data());
  return out;
}

std::optional<Shares> unseal(std::span<const unsigned char> sealed, const Key& agreed, Id from,
                             Id to) {
  std::array<unsigned char, sizeof(Shares)> plain;
  if (sealed.size() != sealed_bytes ||
      crypto_aead_chacha20poly1305_ietf_decrypt(plain.data(), nullptr, nullptr, sealed.data(),
                                                sealed.size(), nullptr, 0, no_nonce.data(),
                                                message_key(agreed, from, to).data()) != 0)
    return std::nullopt;
  Shares out;
  std::copy_n(plain.begin(), sizeof(Key), out.pair.begin());
  std::copy_n(plain.begin() + sizeof(Key), sizeof(Key), out.self.begin());
  return out;
}

std::vector<Key> split(const Key& number, std::span<const Id> holders, int threshold) {
  std::vector<Key> polynomial{number};
  while (polynomial.size() < static_cast<std::size_t>(threshold))
    polynomial.push_back(random_secret_number());
  std::vector<Key> out;
  for (const Id holder : holders) {
    const Key x = place_of(holder);
    Key y = polynomial.back();
    for (std::size_t i = polynomial.size() - 1; i-- > 0;) y = plus(times(y, x), polynomial[i]);
    out.push_back(y);
  }
  return out;
}

Key join(std::span<const std::pair<Id, Key>> shares) {
  Key out = {};
  for (const auto& [holder, share] : shares) {
    Key above = share, below = place_of(0);  // place_of(0) is the number 1
    for (const auto& [other, unused] : shares) {
      if (other == holder) continue;
      above = times(above, place_of(other));
      below = times(below, minus(place_of(other), place_of(holder)));
    }
    Key inverse = {};
    crypto_core_ed25519_scalar_invert(inverse.data(), below.data());
    out = plus(out, times(above, inverse));
  }
  return out;
}

}  // namespace rehearse::secure
