// Codes of gradients. As on the CPU, the sums behind a scale are made of pieces of a block, each in
// 16 lanes; then eight codes after the other become whole bytes.
//
//   AddSource    v = source + residual, in the place of the residual
//   PieceSums    of each piece (int8: largest magnitudes)
//   Scales       of each block, from its pieces
//   Codes        of eight entries, and what they leave in the residual
#include "engine/program/packets.h"
#include "runtime/cuda/each.h"
#include "runtime/cuda/numbers.h"
#include "runtime/cuda/quantise.h"
#include "runtime/kernels/codes.h"

namespace rehearse::runtime {
namespace {

constexpr int sum_lanes = 16;
constexpr std::int64_t piece = 4096, octet = 8;  // entries; the codes of an octet are whole bytes

REHEARSE_BOTH std::int64_t parts_of(std::int64_t entries, std::int64_t part) {
  return (entries + part - 1) / part;
}

/// Packets, and how they are divided: `parts` of kernel.keep entries, each in blocks of
/// kernel.block, and these in pieces.
struct Layout {
  program::Kernel kernel;
  std::int64_t begin;  // the first packet's first entry in the gradient
  std::int64_t bytes, scale_bytes;
  REHEARSE_BOTH std::int64_t blocks() const { return parts_of(kernel.keep, kernel.block); }
  REHEARSE_BOTH std::int64_t pieces() const {  // of a block
    return parts_of(kernel.block < kernel.keep ? kernel.block : kernel.keep, piece);
  }
  /// Entries of a packet that are no padding.
  REHEARSE_BOTH std::int64_t entries(std::int64_t part) const {
    return entries_from(kernel, begin + part * kernel.keep);
  }
};
Layout layout_of(const program::Kernel& kernel, std::int64_t begin) {
  return {kernel, begin, quantised_bytes(kernel), scale_bytes(kernel)};
}

/// Entries [begin, end) of a packet.
struct Range {
  std::int64_t part, begin, end;
};

struct Quantising : Layout {
  RandomKey key;
  const void* source;
  program::DType type;
  float* residual;
  std::byte* packets;
  double* piece_sums;  // of int8: bits of the largest magnitudes, which a double holds exactly

  /// v = source + residual, which stands in the residual's memory by now; the source, without one.
  REHEARSE_BOTH float value(std::int64_t part, std::int64_t i) const {
    const std::int64_t at = part * kernel.keep + i;
    return residual != nullptr ? residual[at] : load(source, type, at);
  }
  REHEARSE_BOTH Range block(std::int64_t number) const {
    const std::int64_t part = number / blocks(), first = number % blocks() * kernel.block;
    const std::int64_t end = entries(part), next = first + kernel.block;
    return {part, first, next < end ? next : end};
  }
  REHEARSE_BOTH Range piece_at(std::int64_t number) const {
    Range out = block(number / pieces());
    out.begin += number % pieces() * piece;
    if (out.begin + piece < out.end) out.end = out.begin + piece;
    return out;
  }
  REHEARSE_BOTH std::byte* scale_at(std::int64_t part, std::int64_t i) const {
    return packets + part * bytes + i / kernel.block * 4;
  }
  /// What an entry adds to the sum of its block.
  REHEARSE_BOTH double term(float value) const {
    const double one = value;
    return by_squares(kernel) ? one * one : std::fabs(one);
  }
  REHEARSE_BOTH bool by_largest() const { return kernel.compressor == program::Compressor::int8; }
  REHEARSE_BOTH static double larger(double most, float value) {
    const double bits = std::bit_cast<std::int32_t>(value) & 0x7fffffff;
    return bits > most ? bits : most;
  }
  /// What two parts of a block come to.
  REHEARSE_BOTH double joined(double one, double other) const {
    if (by_largest()) return other > one ? other : one;
    return one + other;
  }
};

struct AddSource {
  Quantising x;
  REHEARSE_BOTH void operator()(std::int64_t at) const {
    const std::int64_t part = at / x.kernel.keep;
    if (at - part * x.kernel.keep < x.entries(part))
      x.residual[at] += load(x.source, x.type, at);
    else
      x.residual[at] = 0;
  }
};

/// A block for 16 pieces: their lanes, then their sums.
struct PieceSums {
  static constexpr int threads = 256, phases = 2, pieces = threads / sum_lanes;
  struct Shared {
    double sums[threads];
  };
  Quantising x;
  std::int64_t count;  // of pieces
  REHEARSE_BOTH void operator()(int phase, const BlockThread& at, Shared& shared) const {
    const int lane = at.thread % sum_lanes;
    const std::int64_t number = at.block * pieces + at.thread / sum_lanes;
    if (number >= count) return;
    const Range of = x.piece_at(number);
    if (phase == 0)
      shared.sums[at.thread] = lane_sum(of, lane);
    else if (lane == 0)
      x.piece_sums[number] = whole_sum(of, shared.sums + at.thread);
  }

 private:
  REHEARSE_BOTH double lane_sum(const Range& of, int lane) const {
    double sum = 0;
    if (x.by_largest())
      for (std::int64_t i = of.begin + lane; i < of.end; i += sum_lanes)
        sum = Quantising::larger(sum, x.value(of.part, i));
    else
      for (std::int64_t row = of.begin; row + sum_lanes <= of.end; row += sum_lanes)
        sum += x.term(x.value(of.part, row + lane));
    return sum;
  }
  REHEARSE_BOTH double whole_sum(const Range& of, const double* sums) const {
    double sum = 0;
    for (int lane = 0; lane < sum_lanes; ++lane) sum = x.joined(sum, sums[lane]);
    const std::int64_t entries = of.end > of.begin ? of.end - of.begin : 0;
    if (!x.by_largest())
      for (std::int64_t i = of.begin + entries / sum_lanes * sum_lanes; i < of.end; ++i)
        sum += x.term(x.value(of.part, i));
    return sum;
  }
};

struct Scales {
  Quantising x;
  REHEARSE_BOTH void operator()(std::int64_t at) const {
    const Range of = x.block(at);
    if (of.begin >= of.end) return;
    double sum = 0;
    for (std::int64_t i = 0; i < x.pieces(); ++i)
      sum = x.joined(sum, x.piece_sums[at * x.pieces() + i]);
    const auto largest = x.by_largest() ? static_cast<std::int32_t>(sum) : 0;
    store_bytes(x.scale_at(of.part, of.begin), scale_of(x.kernel, largest, sum, of.end - of.begin));
  }
};

struct Codes {
  Quantising x;
  REHEARSE_BOTH void operator()(std::int64_t at) const {
    const std::int64_t octets = parts_of(x.kernel.keep, octet), part = at / octets;
    const std::int64_t first = at % octets * octet, left = x.entries(part) - first;
    if (left <= 0) return;
    const std::int64_t count = left < octet ? left : octet;
    const float scale = has_scales(x.kernel) ? load_bytes<float>(x.scale_at(part, first)) : 1.0F;
    const bool finite = std::isfinite(scale);
    const Meaning meaning = meaning_of(x.kernel, scale);
    const std::uint64_t mask = (std::uint64_t{1} << x.kernel.bits) - 1;
    std::uint64_t bits = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      const float v = x.value(part, first + i);
      const std::int8_t code = finite ? code_of(v, scale, part, first + i) : std::int8_t{0};
      bits |= (static_cast<std::uint64_t>(code) & mask) << i * x.kernel.bits;
      if (x.residual != nullptr)
        x.residual[part * x.kernel.keep + first + i] = finite ? v - meaning.of(code) : 0;
    }
    std::byte* const out = x.packets + part * x.bytes + x.scale_bytes + first * x.kernel.bits / 8;
    for (std::int64_t i = 0; i < (count * x.kernel.bits + 7) / 8; ++i)
      out[i] = static_cast<std::byte>(bits >> 8 * i & 0xffU);
  }

 private:
  REHEARSE_BOTH std::int8_t code_of(float v, float scale, std::int64_t part, std::int64_t i) const {
    if (is_sign(x.kernel)) return sign_code(v);
    if (scale == 0) return 0;
    if (x.by_largest()) return nearest_code(v, 1 / scale);
    const std::int64_t entry = x.begin + part * x.kernel.keep + i;
    return random_code(v, 1 / scale, random_bits(x.key, static_cast<std::uint32_t>(entry)),
                       levels_of(x.kernel));
  }
};

/// The number that entry `i` of a packet stands for.
REHEARSE_BOTH float decoded(const Layout& x, const std::byte* packet, std::int64_t i) {
  const float scale =
      has_scales(x.kernel) ? load_bytes<float>(packet + i / x.kernel.block * 4) : 1.0F;
  const std::int64_t bit = i * x.kernel.bits;
  const int byte = static_cast<int>(packet[x.scale_bytes + bit / 8]);
  const int code = byte >> bit % 8 & ((1 << x.kernel.bits) - 1), half = 1 << (x.kernel.bits - 1);
  const bool negative = !is_sign(x.kernel) && code >= half;
  return meaning_of(x.kernel, scale)
      .of(static_cast<std::int8_t>(negative ? code - 2 * half : code));
}

struct Decode {
  Layout x;
  const std::byte* packets;
  float* target;
  REHEARSE_BOTH void operator()(std::int64_t at) const {
    const std::int64_t part = at / x.kernel.keep, i = at % x.kernel.keep;
    target[at] = i < x.entries(part) ? decoded(x, packets + part * x.bytes, i) : 0;
  }
};

struct DecodeSum {
  Layout x;
  const std::byte* packets;
  std::int64_t count;
  float* target;
  REHEARSE_BOTH void operator()(std::int64_t i) const {
    float sum = 0;
    if (i < x.entries(0))
      for (std::int64_t p = 0; p < count; ++p) {
        const float one = decoded(x, packets + p * x.bytes, i);
        sum = p == 0 ? one : sum + one;
      }
    target[i] = sum;
  }
};

}  // namespace

std::int64_t quantise_bytes(const program::Kernel& kernel, std::int64_t parts) {
  const Layout x = layout_of(kernel, 0);
  return static_cast<std::int64_t>(sizeof(double)) * parts * x.blocks() * x.pieces();
}

cudaError_t queue_quantise(const program::Kernel& kernel, RandomKey key, const void* source,
                           program::DType type, std::int64_t begin, std::int64_t parts,
                           float* residual, std::byte* packets, std::byte* working,
                           cudaStream_t stream) {
  const Layout layout = layout_of(kernel, begin);
  const std::int64_t blocks = parts * layout.blocks(), pieces = blocks * layout.pieces();
  const Quantising x{
      layout, key, source, type, residual, packets, reinterpret_cast<double*>(working)};
  cudaError_t error =
      cudaMemsetAsync(packets, 0, static_cast<std::size_t>(parts * layout.bytes), stream);
  const auto then = [&](std::int64_t count, const auto& body) {
    if (error == cudaSuccess) error = each(count, stream, body);
  };
  if (residual != nullptr) then(parts * kernel.keep, AddSource{x});
  if (has_scales(kernel)) {
    if (error == cudaSuccess)
      error = each_block(parts_of(pieces, PieceSums::pieces), stream, PieceSums{x, pieces});
    then(blocks, Scales{x});
  }
  then(parts * parts_of(kernel.keep, octet), Codes{x});
  return error;
}

cudaError_t queue_dequantise(const program::Kernel& kernel, const std::byte* packets,
                             std::int64_t count, float* target, cudaStream_t stream) {
  return each(count * kernel.keep, stream, Decode{layout_of(kernel, 0), packets, target});
}

cudaError_t queue_dequantise_sum(const program::Kernel& kernel, const std::byte* packets,
                                 std::int64_t count, std::int64_t begin, float* target,
                                 cudaStream_t stream) {
  return each(kernel.keep, stream, DecodeSum{layout_of(kernel, begin), packets, count, target});
}

}  // namespace rehearse::runtime
