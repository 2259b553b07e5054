// The kernels that a pass of a segment launches (launches.cpp). The device table prices each of
// them (engine/costs/device/device_time.h), and the software says how long the host takes to issue
// one.
#pragma once
#include <cstdint>
#include <vector>

#include "engine/model/model.h"

namespace rehearse::model {

/// One kernel. product: `batch` products of (rows, inner) and (inner, columns), with `fp8` at the
/// device's FP8 rate. attention, flash: the same sizes, in one kernel that keeps the product on the
/// chip. memory: reads and writes `bytes`.
struct Launch {
  enum class Kind : std::uint8_t { product, attention, memory, flash };
  Kind kind = Kind::memory;
  double batch = 1, rows = 0, columns = 0, inner = 0;
  double bytes = 0;  // of operands and result
  double rate = 1;   // flash, memory: the kernel's rate, as a multiple of the device's
  bool fp8 = false;  // product: of 8-bit operands

  double flops() const { return 2 * batch * rows * columns * inner; }
};

/// What a pass does of a segment: a part of attention over a divided sequence. `keys`: how many
/// keys each of this rank's queries attends to in the block, with the count of causal attention
/// (launches.cpp); 0: none of them. `adds`: to the result of an earlier block. `first`: it works on
/// the first micro-batch of a step, so its weights are new.
struct Piece {
  program::Part part = program::Part::whole;
  double keys = 0;
  bool adds = false;
  bool first = false;
};

/// The launches of one pass over one micro-batch on one of the ranks of `split`, in their order.
std::vector<Launch> launches_of(const ModelSpec& model, Id segment, program::Pass pass, int samples,
                                TensorSplit split, program::DType dtype, const Piece& piece = {});

}  // namespace rehearse::model
