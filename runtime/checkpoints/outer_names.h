// How Hugging Face's files name and shape the tensors of a model. Internal to runtime/checkpoints.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "engine/model/model.h"

namespace rehearse::runtime {

/// A tensor of a model as the files have it.
struct OuterTensor {
  std::vector<std::int64_t> shape = {};
  bool transposed = false;  // a matrix that is stored (in, out)
  bool padded = false;      // ours has rows after the vocabulary's that are no token
  // Its rows within those of the matrix in which files have it, where they fuse some (Phi 3).
  std::int64_t first_row = 0, all_rows = 0;

  /// The shape of that matrix.
  std::vector<std::int64_t> whole() const {
    std::vector<std::int64_t> out = shape;
    out[0] = all_rows;
    return out;
  }
};
OuterTensor outer_tensor(const model::ModelSpec& model, const model::TensorSpec& spec);

/// All names under which files of some age have the tensor, the present one first.
std::vector<std::string> outer_names(const model::ModelSpec& model, const std::string& name);

/// Whether files of this family have such a tensor beside the weights of the model: buffers, heads
/// for other tasks, copies.
bool is_beside(const model::ModelSpec& model, const std::string& name);

/// The name under which files repeat the table of a tied embedding for the head, and the table's.
struct TiedNames {
  std::string head = {}, table = {};
};
TiedNames tied_names(const model::ModelSpec& model);

}  // namespace rehearse::runtime
