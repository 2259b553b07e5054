// The parts of tensors that a program's state consists of. Each part has a key that does not depend
// on the layout of storages, so parts of any mesh can be joined to whole tensors. Checkpoints
// contain parts, and migrations move them.
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

/// Identifies a part, wherever it is stored.
struct PartKey {
  StorageKind kind = StorageKind::param;
  int age = 1;              // 1: the newest version, 2: the one before
  std::string tensor = {};  // a TensorSpec's name; "scale" for the loss scale; "ROLE.STORAGE" for
                            // a storage without tensors
  int copy = 0;  // residuals: the index of residual_place; what is each rank's own: its place
                 // along those axes; storages without tensors: the rank; else 0, because all copies
                 // are equal
  int tp_rank = 0, tp_size = 1;     // 0 and 1 if the tensor is not split over tp
  std::int64_t begin = 0, end = 0;  // elements of this tp rank's part of the tensor, flat
  friend auto operator<=>(const PartKey&, const PartKey&) = default;

  std::string text() const;
};

struct TensorPart {
  PartKey key = {};
  Id storage = none;
  std::int64_t begin = 0;  // first element in the storage
};

/// The place of `rank` among the ranks of its data-parallel group that have a residual for
/// parameter group `group`. In two-level reductions only the leaders of nodes have one.
GroupPlace residual_place(const link::LinkedProgram& linked, const std::vector<RankMap>& maps,
                          Id rank, Id group);

/// All parts of all state storages of a rank, owned or not; without observations of variances.
std::vector<TensorPart> parts_of(const link::LinkedProgram& linked, const model::ModelSpec& model,
                                 const std::vector<RankMap>& maps, Id rank);
/// The parts that each rank saves. Of equal parts, the lowest rank saves its own. Of parameters,
/// only copies that an Update writes are saved.
std::vector<std::vector<TensorPart>> owned_parts(const link::LinkedProgram& linked,
                                                 const model::ModelSpec& model,
                                                 const std::vector<RankMap>& maps);

/// The same, but the ranks that have equal parts save an equal share of each. Of parts that are too
/// small to divide, each rank saves some.
std::vector<std::vector<TensorPart>> shared_parts(const link::LinkedProgram& linked,
                                                  const model::ModelSpec& model,
                                                  const std::vector<RankMap>& maps);

/// The parts that each rank saves by the program's own ops (program::Save). `storage` and `begin`
/// are those of the snapshot in host memory, whose instance is `key.age` - 1.
std::vector<std::vector<TensorPart>> snapshot_parts(const link::LinkedProgram& linked,
                                                    const model::ModelSpec& model,
                                                    const std::vector<RankMap>& maps);

/// Copies elements between a whole tensor and elements [begin, end) of the flat part of tp rank
/// `tp_rank` of `tp_size`. `part` points to element `begin` of that part. `width`: bytes of an
/// element. `split`: whether the tensor's group is split.
enum class Direction : std::uint8_t { to_whole, to_part };
void copy_part(const model::TensorSpec& spec, bool split, int tp_rank, int tp_size,
               std::int64_t begin, std::int64_t end, int width, std::byte* whole, std::byte* part,
               Direction direction);
std::int64_t elements_of(const model::TensorSpec& spec);

}  // namespace rehearse::tensors
