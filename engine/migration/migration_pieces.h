// The pieces that a migration moves, as rectangles of tensors. This file knows tensors, but no
// program. Internal to engine/migration.
//
// A tensor is a matrix (rows, width). A tensor-parallel rank holds the same columns of every row,
// as a flat part. Tensors that no side of the migration splits have one row. Example: 3 rows, width
// 6, 2 tp ranks. Rank 1 holds the flat part d e f j k l p q r; its elements [1, 7) are 3
// rectangles:
//
//          0 1 2   3 4 5
//       0  a b c | d[e f]     rows [0, 1), columns [4, 6)
//       1  g h i |[j k l]     rows [1, 2), columns [3, 6)
//       2  m n o |[p]q r      rows [2, 3), columns [3, 4)
//
// If the new plan has the whole tensor on one rank, each of its rows is assembled from two pieces
// (RowAssembly): "a b c" of one rank, then "d e f" of the other.
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

/// Rows [row, row_end) and columns [col, col_end) of a tensor.
struct Rect {
  std::int64_t row = 0, row_end = 0, col = 0, col_end = 0;
  std::int64_t rows() const { return row_end - row; }
  std::int64_t cols() const { return col_end - col; }
  std::int64_t size() const { return rows() * cols(); }
  bool empty() const { return row >= row_end || col >= col_end; }
  friend bool operator==(const Rect&, const Rect&) = default;
};
/// The intersection; may be empty.
Rect common(const Rect& a, const Rect& b);
/// The rest of `whole` without `taken`, as at most four rectangles.
std::vector<Rect> without(const Rect& whole, const Rect& taken);

/// A rectangle in a storage of a rank. Element (row, col) of the tensor is element origin + row x
/// pitch + col of the storage.
struct HeldRect {
  Id rank = none, storage = none;  // of the migration program
  Rect rect = {};
  std::int64_t origin = 0, pitch = 0;
  program::DType dtype = program::DType::f32;
  std::int64_t at(std::int64_t row, std::int64_t col) const { return origin + row * pitch + col; }
  /// Whether the elements of `part` are contiguous in the storage.
  bool dense(const Rect& part) const { return part.rows() == 1 || part.cols() == pitch; }
};

/// The elements [key.begin, key.end) of a rank's flat part, as at most three rectangles. `spec`:
/// null for state that is no tensor. `split`: tensor parallelism splits the parameter group.
/// `whole`: treat the tensor as one row, because no side of the migration splits it.
std::vector<HeldRect> rectangles(const tensors::TensorPart& part, const model::TensorSpec* spec,
                                 bool split, bool whole);

/// Copies `rows` runs of `run` elements each. In the source the runs start `source_pitch` elements
/// apart; in the target (or the packet) they are contiguous.
struct PieceCopy {
  Id from = none, to = none, source = none, target = none;  // ranks; their storages
  std::int64_t rows = 1, run = 0, source_begin = 0, source_pitch = 0;
  std::int64_t target_begin = 0;  // unused for a piece of a RowAssembly
  program::DType source_type = program::DType::f32, target_type = program::DType::f32;
  /// For residuals: `item` is the number of the new residual, and `turn` counts the old residuals
  /// that go there before this one. Turn 0 writes, later turns add. Item -1: no residual; written
  /// once.
  int item = -1, turn = 0;
  int assembly = -1;  // the RowAssembly that this piece belongs to; -1: none
  bool dense() const { return rows == 1 || run == source_pitch; }
  std::int64_t elements() const { return rows * run; }
  /// The data type on the network: the smaller of source and target.
  program::DType wire() const {
    return size_of(target_type) < size_of(source_type) ? target_type : source_type;
  }
};
/// Rows of a target that are assembled from several pieces. `pieces` are in the order of their
/// columns.
struct RowAssembly {
  Id to = none, target = none;
  std::int64_t begin = 0, rows = 0, width = 0;
  program::DType type = program::DType::f32;
  int item = -1, turn = 0;  // as in PieceCopy
  std::vector<std::size_t> pieces = {};
};
struct PieceMoves {
  std::vector<PieceCopy> copies = {};
  std::vector<RowAssembly> assemblies = {};
};

/// A rectangle and the logical tensor part that it belongs to.
struct OwnedRect {
  tensors::PartKey key = {};
  HeldRect held = {};
};
/// The copies that turn the old state into the new one. `old_parts`, `new_parts`: all parts of all
/// ranks. `distance`: as in MigrationOptions. `most`: largest number of elements in a packet.
/// Throws InputError and ProgramError as `migrate`.
PieceMoves moves_between(const std::vector<OwnedRect>& old_parts,
                         const std::vector<OwnedRect>& new_parts,
                         const std::function<double(Id, Id)>& distance, std::int64_t most);

}  // namespace rehearse::migration
