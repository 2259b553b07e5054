// Maps the elements of a rank's storages to the model's parameters. Initial weights, the
// weight-decay mask and checkpoints use this map, so none of them depends on a method's layout.
//
// A program names parameters only where a segment uses them (Slot::param, in the segment's order).
// The layout of gradients, shards, moments, masters, residuals and servers' copies is inferred from
// ops that relate their operands element by element. Example: a bucket of group 3 (6 elements) and
// group 4 (3 elements) with one element of padding, and the shard of dp rank 1 of 2:
//
//   bucket:  0  1  2  3  4  5 | 6  7  8 | 9        group 3 | group 4 | padding
//   shard:                 0  | 1  2  3 | 4
//   pieces of the shard: [0, 1) = group 3 from offset 5; [1, 4) = group 4 from offset 0
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/link/link.h"
#include "engine/model/model.h"

namespace rehearse::tensors {

/// Elements [begin, end) of an instance of a storage are elements [offset, offset + end - begin) of
/// parameter group `group`. Offsets count in the group's flat form on this tensor-parallel rank.
struct ParamPiece {
  std::int64_t begin = 0, end = 0;
  Id group = none;
  std::int64_t offset = 0;
};

/// The kind of a storage, from the slots of the refs to it. other: not the model's or optimizer's.
enum class StorageKind : std::uint8_t {
  other,
  param,
  grad,
  moment1,
  moment2,
  master,
  residual,
  scale,
  sum_residual,
  anchor,
  outer_moment
};
constexpr auto spellings(StorageKind) {
  return std::to_array<const char*>({"other", "param", "grad", "moment1", "moment2", "master",
                                     "residual", "scale", "sum_residual", "anchor",
                                     "outer_moment"});
}

/// Whether the storage has weights: a new run and imported weights fill it.
constexpr bool is_weight(StorageKind kind) {
  return kind == StorageKind::param || kind == StorageKind::master || kind == StorageKind::anchor;
}

struct StorageMap {
  StorageKind kind = StorageKind::other;
  bool updated = false;   // whether this rank computes it: it is the owner's copy
  program::Axes own = 0;  // along these, each rank has values of its own (program::Layout::own)
  std::vector<ParamPiece> pieces = {};  // by rising begin, without overlaps; padding has no piece
};

struct RankMap {
  int tp_rank = 0, tp_size = 1;
  std::vector<StorageMap> storages = {};  // by storage of the rank's role
};

/// The map of every rank of the program. Throws ProgramError when one element would hold two
/// parameters, when a view is smaller than its parameter group, or when a pass has more operands
/// than its segment has groups.
std::vector<RankMap> map_tensors(const link::LinkedProgram& linked, const model::ModelSpec& model);

/// A tensor, or this tensor-parallel rank's part of it, within a group's flat form.
struct TensorInterval {
  const model::TensorSpec* spec = nullptr;
  std::int64_t begin = 0, end = 0;       // elements of the flat form
  std::vector<std::int64_t> shape = {};  // of this rank's part
};
/// The tensors of a group in their order in the flat form.
std::vector<TensorInterval> tensors_of(const model::ParamGroup& group, int tp_size);

/// The index of a rank in its group, and the size of the group.
struct GroupPlace {
  int index = 0, count = 1;
};
/// The rank's place among the ranks that differ from it only along `axes`, or in an irregular
/// group; 0 of 1 for a rank in no such group.
GroupPlace place_of(const program::Program& program, program::Axes axes, Id rank);
/// The rank's place along the mesh axis of that name; 0 of 1 when there is no such axis, or for a
/// rank beyond the mesh.
GroupPlace place_along(const program::Program& program, const std::string& axis, Id rank);

/// An interval of elements of a storage.
struct Extent {
  std::int64_t begin = 0, end = 0;
  std::int64_t size() const { return end - begin; }
};
/// Part `index` of `count` of an extent, divided as collectives divide tensors.
Extent part_of(Extent whole, int index, int count);
/// The elements of its storage that a view covers on a rank; of a sliced view, the rank's part.
Extent extent_of(const program::Program& program, const program::Role& role, Id view, Id rank);

}  // namespace rehearse::tensors
