#include "engine/program/packets.h"

#include <algorithm>
#include <cmath>

namespace rehearse::program {

std::vector<Coding> codings_of(Selector selector) {
  if (selector == Selector::random_k)
    return {Coding::values, Coding::index32, Coding::bitmap, Coding::delta16};
  return {Coding::index32, Coding::bitmap, Coding::delta16};
}

std::int64_t entries_kept(std::int64_t n, double density) {
  const double k = density * static_cast<double>(n), whole = std::round(k);
  // `density` differs from its decimal fraction by at most 2^-53, and a density computed as
  // 1 - sparsity by at most twice that. So a product this near to a whole number is one.
  const bool integral = std::fabs(k - whole) <= 1e-12 * static_cast<double>(n);
  const auto kept = static_cast<std::int64_t>(integral ? whole : std::ceil(k));
  return std::clamp(kept, std::min<std::int64_t>(density > 0 ? 1 : 0, n), n);
}

std::int64_t packet_bytes(std::int64_t n, std::int64_t k, Coding coding) {
  switch (coding) {
    case Coding::index32:
      break;
    case Coding::bitmap:
      return 4 * k + (n + 7) / 8;
    case Coding::delta16:
      return 4 * k + 2 * k + 4 * ((n + delta_block - 1) / delta_block);
    case Coding::values:
      return 4 * k;
  }
  return 4 * k + 4 * k;
}

std::int64_t packet_capacity(std::int64_t n, std::int64_t k, Selector selector) {
  return selector == Selector::threshold ? std::min(n, 2 * k) : k;
}

std::int64_t packet_bytes(const Kernel& kernel) {
  return packet_header(kernel.selector) + packet_bytes(kernel.of, kernel.keep, kernel.coding);
}

std::int64_t packet_room(const Kernel& kernel) {
  const std::int64_t capacity = packet_capacity(kernel.of, kernel.keep, kernel.selector);
  return packet_header(kernel.selector) + packet_bytes(kernel.of, capacity, kernel.coding);
}

std::int64_t scale_bytes(const Kernel& kernel) {
  if (kernel.compressor == Compressor::vote) return 0;
  return 4 * ((kernel.keep - 1) / kernel.block + 1);
}

std::int64_t quantised_bytes(const Kernel& kernel) {
  return scale_bytes(kernel) + (kernel.keep * kernel.bits + 7) / 8;
}

bool codes_have(Compressor compressor, int bits) {
  switch (compressor) {
    case Compressor::int8:
      return bits == 8;
    case Compressor::stochastic:
      return bits == 2 || bits == 4 || bits == 8;
    case Compressor::sign:
    case Compressor::sign_rms:
    case Compressor::vote:
      return bits == 1;
  }
  return false;
}

std::string bits_text(Compressor compressor) {
  switch (compressor) {
    case Compressor::int8:
      return "8";
    case Compressor::stochastic:
      return "2, 4 or 8";
    case Compressor::sign:
    case Compressor::sign_rms:
    case Compressor::vote:
      return "1";
  }
  return "";
}

std::int64_t select_candidates(const Kernel& kernel) {
  constexpr std::int64_t block = 4096, vector = 16;
  const std::int64_t most = packet_capacity(kernel.of, kernel.keep, kernel.selector);
  return most + most / 4 + block + vector;
}

std::int64_t select_workspace(const Kernel& kernel) { return 12 * select_candidates(kernel); }

}  // namespace rehearse::program
