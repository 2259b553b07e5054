// The parts of logical tensors that a program's state consists of: which rank has what, under a
// name that no layout is in, and how parts of any mesh become a whole tensor. Checkpoints are made
// of them, and migrations move them.
#pragma once
#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/link/link.h"
#include "engine/model/model.h"
#include "engine/tensors/tensor_map.h"

namespace rehearse::tensors {

/// What a part is, wherever it lies.
struct PartKey {
  StorageKind kind = StorageKind::param;
  int age = 1;              // 1: the newest version, 2: the one before
  std::string tensor = {};  // a TensorSpec's name; for Kind::scale and Kind::other: the storage's
  int copy = 0;             // residuals: as in residual_place; others differ in nothing
  int tp_rank = 0, tp_size = 1;
  std::int64_t begin = 0, end = 0;  // elements of the flat part that this tensor rank has
  friend auto operator<=>(const PartKey&, const PartKey&) = default;

  std::string text() const;
};

struct TensorPart {
  PartKey key = {};
  Id storage = none;
  std::int64_t begin = 0;  // element of the storage
};

/// Among the ranks of a rank's data-parallel group that owe what they have not sent of a parameter
/// group: the rank's place and how many they are. Leaders owe for their nodes.
GroupPlace residual_place(const link::LinkedProgram& linked, const std::vector<RankMap>& maps,
                          Id rank, Id group);

/// Every part of every state storage of a rank, owned or not.
std::vector<TensorPart> parts_of(const link::LinkedProgram& linked, const model::ModelSpec& model,
                                 const std::vector<RankMap>& maps, Id rank);
/// The parts that each rank saves: of equal parts the first rank's, and of weights only copies that
/// an Update writes, where there is one.
std::vector<std::vector<TensorPart>> owned_parts(const link::LinkedProgram& linked,
                                                 const model::ModelSpec& model,
                                                 const std::vector<RankMap>& maps);

/// Copies elements between a whole tensor and the interval [begin, end) of the flat part that
/// tensor rank `tp_rank` of `tp_size` has of it. `width`: bytes of an element.
enum class Direction : std::uint8_t { to_whole, to_part };
void copy_part(const model::TensorSpec& spec, bool split, int tp_rank, int tp_size,
               std::int64_t begin, std::int64_t end, int width, std::byte* whole, std::byte* part,
               Direction direction);
std::int64_t elements_of(const model::TensorSpec& spec);

}  // namespace rehearse::tensors
