// Rotary positions (Su et al. 2021) in Hugging Face's convention: element i of a head is paired
// with element i + head_dim / 2, and the pair is rotated by position x frequency i.
#pragma once
#include <ATen/ATen.h>

#include <vector>

#include "engine/model/model.h"
#include "models/block.h"

namespace rehearse::models {

/// `frequencies`: radians a token, one for each pair of a head: theta^(-2 i / head_dim), scaled as
/// the model says for the layer. `factor`: of what is rotated (model::rope_attention).
struct Rotary {
  std::vector<float> frequencies = {};
  float factor = 1;
};
Rotary rotary_of(const model::ModelSpec& model, int layer = 0);

enum class Turn : std::uint8_t { forward, back };
/// Rotates each head of x (B, T, heads, head_dim) in place by the batch's positions and multiplies
/// it by the factor; `back` rotates the other way, as gradients need. x may be a slice of wider
/// rows.
void rotate(const at::Tensor& x, const Rotary& rotary, const Batch& batch, Turn turn);
/// The same by tensor operations. For devices other than the CPU, and for tests.
void rotate_by_tensors(const at::Tensor& x, const Rotary& rotary, const Batch& batch, Turn turn);

}  // namespace rehearse::models
