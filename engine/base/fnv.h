// FNV-1a, a hash that is the same on every machine. Files and ranks of a run compare its values, so
// they never change.
#pragma once
#include <bit>
#include <cstdint>
#include <string>
#include <string_view>

namespace rehearse {

/// The hash of all bytes that were added.
class Fnv {
 public:
  /// `seed`: other seeds give unrelated hashes of the same bytes.
  explicit Fnv(std::uint64_t seed = 0) : state_(0xcbf29ce484222325ULL ^ seed) {}

  void byte(unsigned char b) { state_ = (state_ ^ b) * 0x100000001b3ULL; }
  void bytes(std::string_view text) {
    for (const char c : text) byte(static_cast<unsigned char>(c));
  }
  /// The lowest byte first.
  template <class Number>
  void word(Number number) {
    for (std::size_t i = 0; i < sizeof number; ++i)
      byte(static_cast<unsigned char>(number >> (8 * i)));
  }
  void add(std::uint64_t number) { word(number); }
  void add(double number) { add(std::bit_cast<std::uint64_t>(number)); }
  /// Its length first, so that two texts differ from one that joins them.
  void add(const std::string& text) {
    add(static_cast<std::uint64_t>(text.size()));
    bytes(text);
  }
  std::uint64_t value() const { return state_; }

 private:
  std::uint64_t state_;
};

inline std::uint64_t fnv1a(std::string_view text) {
  Fnv hash;
  hash.bytes(text);
  return hash.value();
}

/// As files state a hash: 16 hexadecimal digits.
std::string hash_text(std::uint64_t hash);

}  // namespace rehearse
