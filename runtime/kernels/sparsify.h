// Sparse gradients with error feedback (Sun 2026, eq. 4 and 5; Stich et al. 2018; Lin et al. 2018).
// `select` chooses the entries to send and keeps the rest in a residual for later steps, in one
// pass over both. With n = kernel.of flat entries:
//
//   g    gradient / loss scale                              (n)
//   e    residual before the step                           (n)
//   v    entries are chosen from g + e; `literal`: from g   (n)
//   s    v where an entry is sent, 0 elsewhere              (n)
//   e' = (g + beta e) - s, the residual after the step; beta = 1 for `conserving`, else 0.9
//
// The result depends on the operands alone, so ranks with equal operands choose the same entries.
// Of equal magnitudes the lower index is chosen.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/program/packets.h"
#include "engine/program/program.h"
#include "runtime/kernels/elements.h"

namespace rehearse::runtime {

/// beta of the forms `printed` and `literal`.
inline constexpr float printed_beta = 0.9F;
/// `printed` clears its residual every so many steps.
inline constexpr std::int64_t printed_reset = 1000;

/// Whether entries are chosen from gradient + residual, the factor beta, and whether a step begins
/// with a cleared residual.
constexpr bool uses_residual(const program::Kernel& kernel) {
  return kernel.feedback != program::Feedback::literal;
}
constexpr float residual_beta(const program::Kernel& kernel) {
  return kernel.feedback == program::Feedback::conserving ? 1 : printed_beta;
}
constexpr bool clears_residual(const program::Kernel& kernel, std::int64_t step) {
  return kernel.feedback == program::Feedback::printed && step > 0 && step % printed_reset == 0;
}

/// Working memory of `select`: the candidate entries, by ascending index, and room to sort them or
/// a sample of all entries by magnitude. Reused from call to call.
struct SelectScratch {
  std::vector<float> values = {};
  std::vector<std::uint32_t> indices = {}, magnitudes = {};
  void fit(const program::Kernel& kernel);
};

struct SelectStep {
  std::int64_t step = 0;
  std::uint64_t seed = 0;  // for random_k: equal on ranks that must choose alike
  NormAndScale gradients = {};
};

/// Sends `kernel.keep` of the `kernel.of` entries of `gradient` (f32, bf16 or f16): writes them to
/// `packet` (packet_room(kernel) bytes) and e' to `residual` (kernel.of entries). A threshold
/// selector sends about `kernel.keep`. `threshold` is its state, other selectors ignore it: two
/// numbers, 0 before the first step; the magnitude that an entry must reach, and how many entries
/// the last step sent. A step that is skipped sends nothing (select_nothing) and changes neither.
/// Returns the number of entries sent.
std::int64_t select(const program::Kernel& kernel, const SelectStep& step, const void* gradient,
                    program::DType type, float* residual, float* threshold, std::byte* packet,
                    SelectScratch& scratch);

/// Writes a packet that adds nothing, for a step whose gradient overflowed. A threshold's packet is
/// empty; the others hold kernel.keep zeros, since their length is fixed.
void select_nothing(const program::Kernel& kernel, std::byte* packet);

/// Writes `count` entries (`indices` ascending) as a packet in kernel.coding.
void write_packet(const program::Kernel& kernel, const float* values, const std::uint32_t* indices,
                  std::int64_t count, std::byte* packet);
/// Number of entries in a packet: its count if a threshold wrote it, else kernel.keep. Throws
/// BackendError when the count is more than there is room for.
std::int64_t entries_in(const program::Kernel& kernel, const std::byte* packet);

/// Writes the kernel.keep indices, rising, that random_k draws in this step.
void draw_entries(const program::Kernel& kernel, const SelectStep& step, std::uint32_t* indices);

/// target = loss scale x the sum of `count` packets, added in order. Packets lie
/// packet_room(kernel) bytes apart. `target` holds entries [begin, end) of the gradient; entries
/// from kernel.of on are padding and become 0. Throws BackendError when a packet does not fit the
/// kernel, because a peer's packets are not trusted.
void scatter_add(const program::Kernel& kernel, const SelectStep& step, const std::byte* packets,
                 std::int64_t count, std::int64_t begin, std::int64_t end, float* target,
                 SelectScratch& scratch);

}  // namespace rehearse::runtime
