// Which entries of a gradient are sent and what becomes of the rest: error feedback and selection
// in one pass over both (Sun 2026, eq. 4 and 5; Stich et al. 2018; Lin et al. 2018). With v what is
// chosen from (gradient + residual; the gradient alone for `literal`), beta 1 (conserving) or 0.9,
// and s what is sent of v: e' = (g + beta e) - s. Every rank that calls with equal operands chooses
// equally: nothing depends on the machine, and equal magnitudes go to the lower index.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/program/packets.h"
#include "engine/program/program.h"

namespace rehearse::runtime {

inline constexpr float printed_beta = 0.9F;          // of forms `printed` and `literal`
inline constexpr std::int64_t printed_reset = 1000;  // steps after which `printed` forgets

/// Candidates as they are found, by rising index. Reused from call to call.
struct SelectScratch {
  std::vector<float> values = {};
  std::vector<std::uint32_t> indices = {};
  void fit(const program::Kernel& kernel);
};

struct SelectStep {
  std::int64_t step = 0;
  std::uint64_t seed = 0, key = 0;  // of random_k's draw: equal on every rank that must agree
  float factor = 1;                 // the gradient is multiplied by it: 1 / loss scale
};

/// Takes `kernel.keep` (of a threshold: about as many) of the `kernel.of` entries of `gradient`
/// (f32, bf16 or f16) into `packet`, which has packet_room(kernel) bytes. `residual` has as many
/// entries. `threshold`: two numbers, zero before the first step: the magnitude that entries must
/// reach, and how many did; other selectors ignore it. Returns the number of entries taken.
std::int64_t select(const program::Kernel& kernel, const SelectStep& step, const void* gradient,
                    program::DType type, float* residual, float* threshold, std::byte* packet,
                    SelectScratch& scratch);

/// The packet of a step that overflowed: nothing, said in as many bytes.
void select_nothing(const program::Kernel& kernel, std::byte* packet);

/// What both are made of. `values` and `indices` (rising) of `count` entries, as kernel.coding says
/// them; and back, each entry added to `target`, which holds entries [begin, end) of the gradient.
/// Throws BackendError when a packet is not one of this kernel: what comes from a peer is not
/// trusted.
void write_packet(const program::Kernel& kernel, const float* values, const std::uint32_t* indices,
                  std::int64_t count, std::byte* packet);
void add_packet(const program::Kernel& kernel, const std::byte* packet, std::int64_t begin,
                std::int64_t end, float* target);
/// Entries in a packet: what its count says, or kernel.keep. Throws BackendError on more than there
/// is room for.
std::int64_t entries_in(const program::Kernel& kernel, const std::byte* packet);

/// target = factor x the sum of `count` packets, each `packet_room(kernel)` bytes after the one
/// before, added in order. `target` holds entries [begin, end); what lies beyond kernel.of is
/// padding and becomes 0.
void scatter_add(const program::Kernel& kernel, const std::byte* packets, std::int64_t count,
                 float factor, std::int64_t begin, std::int64_t end, float* target);

}  // namespace rehearse::runtime
