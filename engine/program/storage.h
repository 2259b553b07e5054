// What a program's memory is: storages, views of them, and how an op uses a view. Part of
// program.h, which states the rules.
#pragma once
#include <array>
#include <cstdint>
#include <string>

#include "engine/base/id.h"
#include "engine/base/numbers/narrow.h"

namespace rehearse::program {

/// A set of mesh axes: bit i stands for mesh[i]. Bits from mesh.size() up name irregular groups
/// (see Group).
using Axes = std::uint32_t;

enum class DType : std::uint8_t { f32, bf16, f16, i32, u8 };
constexpr auto spellings(DType) {
  return std::to_array<const char*>({"f32", "bf16", "f16", "i32", "u8"});
}
/// Bytes of one element.
constexpr std::int64_t size_of(DType t) {
  return t == DType::f32 || t == DType::i32 ? 4 : t == DType::u8 ? 1 : 2;
}

/// How long a storage lives. state: outlives steps and goes into checkpoints (weights, moments,
/// residuals). buffer: allocated once, its contents live within a step (a flat gradient). value:
/// allocated at its first write of a step and freed after its last use (activations).
enum class Life : std::uint8_t { state, buffer, value };
constexpr auto spellings(Life) { return std::to_array<const char*>({"state", "buffer", "value"}); }

/// Where the bytes of a storage are: in the memory of the rank's device, or in that of its host.
enum class Place : std::uint8_t { device, host };
constexpr auto spellings(Place) { return std::to_array<const char*>({"device", "host"}); }

/// How a tensor is distributed over the mesh: sharded over the axes in `shard`, a partial sum over
/// those in `partial`, whole and each rank's own over those in `own` (weights that ranks train
/// apart), equal copies over the rest. An all-reduce turns partial into copy, a reduce-scatter
/// partial into shard, an all-gather shard into copy. An all-to-all turns partial or shard into
/// shard: each rank then has all that the group has for its shard. A copy may be written as own. An
/// Update refuses partial, and a gradient that is own where its weights are copies. What an op
/// makes of own values is own or partial.
struct Layout {
  Axes shard = 0, partial = 0, own = 0;
  friend bool operator==(Layout, Layout) = default;
};

/// Memory of a rank; nothing else in a program occupies any. A storage has `indices` instances
/// within a step (micro-batches, copies of a gathered weight) times `versions` instances across
/// steps (2 for PipeDream-2BW's weights). Of a value, the versions are instances of steps that run
/// at the same time.
struct Storage {
  std::string name = {};
  Life life = Life::value;
  DType dtype = DType::f32;
  std::int64_t elements = 0;  // per rank and instance
  int indices = 1, versions = 1;
  Place place = Place::device;  // of others: Copy, Save, and updates that the host computes
};

/// The interval [begin, end) of a storage, in elements. Example: a bucket is one storage, and the
/// gradients of its parameter groups are views of it. Along the axes in `slice`, each rank has its
/// own equal part of the interval (a ZeRO shard of a bucket).
struct View {
  std::string name = {};
  Id storage = none;
  std::int64_t begin = 0, end = 0;
  Axes slice = 0;
};

/// add: read and write, that is, accumulate into the present value.
enum class Mode : std::uint8_t { read, write, add };

/// The part that a ref plays in its op. Executors find operands by slot, never by position or name.
enum class Slot : std::uint8_t {
  param,        // one per parameter group of the segment, in the segment's order
  grad,         // gradients of `param`, in the same order
  input,        // boundary activation that enters the segment, (samples, seq, hidden)
  output,       // boundary activation that leaves the segment, (samples, seq, hidden)
  saved,        // what forward keeps for backward
  grad_output,  // gradient of `output`
  grad_input,   // gradient of `input`
  stats,      // (tokens, 3) f32 of a vocabulary shard: running maximum, sum of exponentials, target
              // logit
  source,     // input of a collective, send, put or kernel
  target,     // result of a collective, receive, take or kernel
  moment1,    // Adam's first moment; SGD's momentum
  moment2,    // Adam's second moment
  master,     // fp32 copy of a 16-bit parameter
  norm,       // f32 scalar: sum of squares of gradients; not finite = overflow
  scale,      // f32 x 2: loss scale, steps since it last changed
  residual,   // error-feedback memory of a sparsifier or a quantiser
  threshold,  // f32 x 2: the limit of a threshold select, the number of entries that last passed it
  sum_residual,  // error-feedback memory of the quantiser of a sum
  left,          // the left factor of a matrix, its columns one after the other: rank x rows
  right,         // the right factor of a matrix: rank x columns
  anchor,        // fp32 copy of the weights that ranks last agreed on
  outer_moment,  // momentum of the optimizer of `anchor`
  share,         // f32 scalar: what the rank counts in a mean, or all ranks together
  message,       // bytes that a kernel of a secure sum reads
};
constexpr auto spellings(Slot) {
  return std::to_array<const char*>(
      {"param",      "grad",  "input",  "output",       "saved",     "grad_output",
       "grad_input", "stats", "source", "target",       "moment1",   "moment2",
       "master",     "norm",  "scale",  "residual",     "threshold", "sum_residual",
       "left",       "right", "anchor", "outer_moment", "share",     "message"});
}

struct InstanceIndex {
  static constexpr const char* name = "the index of an instance (a micro-batch, say)";
};
struct Age {
  static constexpr const char* name = "an age";
};
struct Lag {
  static constexpr const char* name = "the lag of a wait";
};
struct Shift {
  static constexpr const char* name = "a shift";
};

/// An operand of an op: a view, which instance and version of it, and how the op uses it.
struct Ref {
  Id view = none;
  Slot slot = Slot::source;
  Mode mode = Mode::read;
  Narrow<std::uint16_t, InstanceIndex> index = 0;
  Narrow<std::uint8_t, Age> age = 0;
  Layout layout = {};  // the layout that a read expects and a write produces
  friend bool operator==(const Ref&, const Ref&) = default;
};

}  // namespace rehearse::program
