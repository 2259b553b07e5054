// Which logical tensors lie behind a rank's storages. A program names parameters only where a
// segment uses them (Slot::param, in the segment's order); everything else that is laid out like
// them - gradients, shards, moments, masters, residuals, what a server holds - follows from the
// operands that ops relate element by element. Initial weights, the weight-decay mask and
// checkpoints read this map, so none of them knows how a method lays out its memory.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/link/link.h"
#include "engine/model/model.h"

namespace rehearse::tensors {

/// Elements [begin, end) of one instance of a storage are elements [offset, offset + end - begin)
/// of the flat form that parameter group `group` has on this tensor-parallel rank.
struct ParamPiece {
  std::int64_t begin = 0, end = 0;
  Id group = none;
  std::int64_t offset = 0;
};

/// What a storage is to the optimizer, from the slots that refer to it.
enum class StorageKind : std::uint8_t {
  other,
  param,
  grad,
  moment1,
  moment2,
  master,
  residual,
  scale
};
constexpr auto spellings(StorageKind) {
  return std::to_array<const char*>(
      {"other", "param", "grad", "moment1", "moment2", "master", "residual", "scale"});
}

struct StorageMap {
  StorageKind kind = StorageKind::other;
  bool updated = false;  // an Update of this rank writes it: this is the owner's copy
  std::vector<ParamPiece> pieces = {};  // by rising begin, no overlaps; padding is covered by none
};

struct RankMap {
  int tp_rank = 0, tp_size = 1;
  std::vector<StorageMap> storages = {};  // by storage of the rank's role
};

/// For every rank of the program. Throws ProgramError when one element would hold two parameters,
/// or when a parameter that a segment uses is laid out in another size than the model's.
std::vector<RankMap> map_tensors(const link::LinkedProgram& linked, const model::ModelSpec& model);

/// One tensor (or the part of it that this tensor-parallel rank has) within a group's flat form.
struct TensorSlot {
  const model::TensorSpec* spec = nullptr;
  std::int64_t begin = 0, end = 0;       // in the flat form
  std::vector<std::int64_t> shape = {};  // of the part
};
std::vector<TensorSlot> tensors_of(const model::ParamGroup& group, int tp_size);

/// Place of a rank among those that differ from it along `axes`, and how many there are.
struct GroupPlace {
  int index = 0, count = 1;
};
GroupPlace place_of(const program::Program& program, program::Axes axes, Id rank);
/// Place along the mesh axis of that name; 0 of 1 when there is none, or for a rank behind the
/// mesh.
GroupPlace place_along(const program::Program& program, const std::string& axis, Id rank);

/// Elements of its storage's instance that a ref touches on a rank.
struct Extent {
  std::int64_t begin = 0, end = 0;
  std::int64_t size() const { return end - begin; }
};
/// Part `index` of `count` of an extent, as collectives divide it.
Extent part_of(Extent whole, int index, int count);
Extent extent_of(const program::Program& program, const program::Role& role, Id view, Id rank);

}  // namespace rehearse::tensors
