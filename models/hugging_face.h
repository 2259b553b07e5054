// Weights in and out as Hugging Face's transformers keeps them, so that published GPT-2 and BERT
// checkpoints can be read and ours can be used elsewhere. Names are already theirs; what differs is
// that GPT-2's matrices are stored [in, out] there (its Conv1D), heads are not a dimension of their
// own, and the vocabulary has no padding rows.
#pragma once
#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "engine/model.h"

namespace rehearse {

/// The names under which a checkpoint may hold the tensor; the first is the one to write. The
/// published GPT-2 files lack the prefix "transformer.", old BERT files call norms gamma and beta.
std::vector<std::string> hugging_face_names(const ModelSpec& model, const TensorSpec& tensor);
std::vector<std::int64_t> hugging_face_shape(const ModelSpec& model, Id group, std::size_t tensor);
/// `full`: the whole tensor in our shape, all shards together. Returns a contiguous tensor.
at::Tensor to_hugging_face(const ModelSpec& model, Id group, std::size_t tensor,
                           const at::Tensor& full);
/// The inverse; padding rows become 0. Throws InputError when the shape is another.
at::Tensor from_hugging_face(const ModelSpec& model, Id group, std::size_t tensor,
                             const at::Tensor& theirs);

}  // namespace rehearse
