// The hash of a cluster. Private to Cluster.
#pragma once
#include <bit>
#include <cstdint>
#include <string>

namespace rehearse::cluster {

/// FNV-1a hash of everything that is added.
class Fnv {
 public:
  void add(std::uint64_t word) {
    for (int i = 0; i < 8; ++i) byte(static_cast<unsigned char>(word >> (8 * i)));
  }
  void add(double number) { add(std::bit_cast<std::uint64_t>(number)); }
  void add(const std::string& text) {
    add(static_cast<std::uint64_t>(text.size()));
    for (char c : text) byte(static_cast<unsigned char>(c));
  }
  std::uint64_t value() const { return state_; }

 private:
  void byte(unsigned char b) { state_ = (state_ ^ b) * 0x100000001b3ULL; }
  std::uint64_t state_ = 0xcbf29ce484222325ULL;
};

}  // namespace rehearse::cluster
