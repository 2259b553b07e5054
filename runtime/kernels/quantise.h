// Gradients as codes of a few bits (program::Compressor has the rules and their sources).
// `quantise` makes packets of codes and keeps what they miss, `dequantise` reads them. With k =
// kernel.keep entries in a packet and n = kernel.of in the gradient, a gradient of three parts:
//
//   entries   | 0 ...... k - 1 | k ..... 2k - 1 | 2k ... n - 1 | padding |
//   packets   |    packet 0    |    packet 1    |         packet 2       |
//
// Entries from n on are padding: they count in no scale, and are decoded as 0. The bytes of a
// packet are those of program/packets.h. Results are the same bits on every processor.
#pragma once
#include <cstddef>
#include <cstdint>

#include "engine/base/numbers/random.h"
#include "engine/program/program.h"

namespace rehearse::runtime {

/// Writes the packets of `parts` parts, quantised_bytes(kernel) each, one behind the other.
/// `source` (f32, bf16 or f16) holds entries [begin, begin + parts x keep) of the gradient; so does
/// `residual`, which may be null. With v = source + residual, the new residual is v minus what the
/// packets say. A block with an entry that is not finite gets NaN as its scale, and its residual
/// becomes 0. `key`: of the draws of stochastic rounding.
void quantise(const program::Kernel& kernel, RandomKey key, const void* source, program::DType type,
              std::int64_t begin, std::int64_t parts, float* residual, std::byte* packets);

/// Writes the entries of `count` packets to `target`, side by side: entries [0, count x keep).
void dequantise(const program::Kernel& kernel, const std::byte* packets, std::int64_t count,
                float* target);
/// Writes their sum, in the order of the packets, to `target`: entries [begin, begin + keep), which
/// all packets hold.
void dequantise_sum(const program::Kernel& kernel, const std::byte* packets, std::int64_t count,
                    std::int64_t begin, float* target);

}  // namespace rehearse::runtime
