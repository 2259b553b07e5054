// What a migration has to move, as rectangles: the half of migration.cpp that knows tensors, but
// no program. A tensor is rows of `width` elements, where a tensor-parallel rank has the same
// columns of every row and other tensors are one row. Internal to migration.cpp.
#pragma once
#include <compare>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/link/link.h"
#include "engine/model/model.h"
#include "engine/tensors/tensor_parts.h"

namespace rehearse::migration {

struct Rect {
  std::int64_t row = 0, row_end = 0, col = 0, col_end = 0;
  std::int64_t rows() const { return row_end - row; }
  std::int64_t cols() const { return col_end - col; }
  std::int64_t size() const { return rows() * cols(); }
  bool empty() const { return row >= row_end || col >= col_end; }
  friend bool operator==(const Rect&, const Rect&) = default;
};
Rect common(const Rect& a, const Rect& b);
/// What is left of `whole` without `taken`, as at most four rectangles.
std::vector<Rect> without(const Rect& whole, const Rect& taken);

/// A rectangle that lies in a storage of a rank: element (row, col) at origin + row x pitch + col.
struct HeldRect {
  Id rank = none, storage = none;  // of the migration program
  Rect rect = {};
  std::int64_t origin = 0, pitch = 0;
  program::DType dtype = program::DType::f32;
  std::int64_t at(std::int64_t row, std::int64_t col) const { return origin + row * pitch + col; }
  /// Whether these of its elements follow each other without gaps.
  bool dense(const Rect& part) const { return part.rows() == 1 || part.cols() == pitch; }
};

/// The elements [begin, end) that a tensor-parallel rank has of a tensor, as rectangles.
/// `whole`: treat the tensor as one row (no side of the migration splits it).
std::vector<HeldRect> rectangles(const tensors::TensorPart& part, const model::TensorSpec* spec,
                                 bool split, bool whole);

/// `rows` runs of `run` elements, one after the other in the target (or in a packet), `pitch` apart
/// in the source.
struct PieceCopy {
  Id from = none, to = none, source = none, target = none;  // ranks and their storages
  std::int64_t rows = 1, run = 0, source_begin = 0, source_pitch = 0;
  std::int64_t target_begin = 0;  // of a piece that is woven: unused
  program::DType source_type = program::DType::f32, target_type = program::DType::f32;
  /// Of a residual: its number, and how many others are put there before this one. Turn 0 writes,
  /// later ones add. Everything else (item -1) is written once.
  int item = -1, turn = 0;
  int weave = -1;
  bool dense() const { return rows == 1 || run == source_pitch; }
  std::int64_t elements() const { return rows * run; }
  program::DType wire() const {
    return size_of(target_type) < size_of(source_type) ? target_type : source_type;
  }
};
/// Rows that are put together from several pieces, in the order of their columns.
struct RowAssembly {
  Id to = none, target = none;
  std::int64_t begin = 0, rows = 0, width = 0;
  program::DType type = program::DType::f32;
  int item = -1, turn = 0;  // as in PieceCopy
  std::vector<std::size_t> pieces = {};
};
struct PieceMoves {
  std::vector<PieceCopy> copies = {};
  std::vector<RowAssembly> weaves = {};
};

struct OwnedRect {
  tensors::PartKey key = {};
  HeldRect held = {};
};
/// All parts of all ranks, before and after. `most`: elements of a packet.
PieceMoves moves_between(const std::vector<OwnedRect>& old_parts,
                         const std::vector<OwnedRect>& new_parts,
                         const std::function<double(Id, Id)>& distance, std::int64_t most);

}  // namespace rehearse::migration
