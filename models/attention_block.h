// What the two forms of attention share: over whole sequences (attention.cpp) and in parts over
// sequences that ranks divide (parted_attention.cpp). Internal to models.
#pragma once
#include <algorithm>
#include <utility>

#include "models/layers.h"
#include "models/rotary.h"

namespace rehearse::models {

/// The parameters of attention, and what is computed of norm, heads and positions.
class AttentionParts : protected WithNorm {
 protected:
  using WithNorm::WithNorm;

  /// The block's two groups cut into tensors: of parameters, or of gradients in the same order.
  struct Tensors {
    at::Tensor qkv_weight, qkv_bias, out_weight, out_bias;
    NormParams norm, output_norm, q_norm, k_norm;
    Tensors(const LocalShape& z, std::span<const at::Tensor> groups) {
      GroupTensors split(groups[0]), whole(groups[1]);
      const std::int64_t rows = z.width() + 2 * z.kv_width();
      qkv_weight = split.next({rows, z.hidden});
      if (z.qkv_bias) qkv_bias = split.next({rows});
      out_weight = split.next({z.hidden, z.width()});
      norm = next_norm(whole, z);
      if (!z.llama) out_bias = whole.next({z.hidden});
      if (z.output_norm) output_norm = next_norm(whole, z);
      if (!z.qk_norm) return;
      for (NormParams* const of_heads : {&q_norm, &k_norm})
        *of_heads = {whole.next({z.head_dim}), {}, z.norm_offset};
    }
  };

  /// (n, heads x head_dim) -> (B, T, heads, head_dim).
  at::Tensor heads_of(const at::Tensor& x, const at::Tensor& input) const {
    return x.unflatten(1, {-1, z_.head_dim}).unflatten(0, {input.size(0), input.size(1)});
  }
  /// RMSNorms of queries and of keys, by head (Qwen 3).
  struct HeadNorms {
    Norm q = {}, k = {};
  };
  /// q, k: (B, T, heads, head_dim); so are the outputs.
  HeadNorms head_norms(const at::Tensor& q, const at::Tensor& k, const Tensors& p) const {
    const auto one = [&](const at::Tensor& x, const NormParams& of) {
      Norm norm = rms_forward(x.flatten(0, 1), of, z_.epsilon);
      norm.y = norm.y.view(x.sizes());
      return norm;
    };
    return {one(q, p.q_norm), one(k, p.k_norm)};
  }
  /// Replaces the gradients of queries and keys, (n, W) and (n, kv_heads x head_dim), by those of
  /// the norms' inputs. `before`: these inputs, (n, W) and (n, kv_heads x head_dim).
  void through_head_norms(std::array<at::Tensor, 3>& grads, const std::array<at::Tensor, 2>& before,
                          const std::array<at::Tensor, 2>& rstd, const Tensors& p, const Tensors& d,
                          bool accumulate) const {
    for (const std::size_t i : {0, 1}) {
      const auto by_head = [&](const at::Tensor& x) { return x.unflatten(1, {-1, z_.head_dim}); };
      grads[i] =
          rms_backward(by_head(grads[i]), by_head(before[i]), rstd[i], i == 0 ? p.q_norm : p.k_norm,
                       i == 0 ? d.q_norm : d.k_norm, accumulate)
              .view({-1, grads[i].size(1)});
    }
  }
  /// Rotary positions, in place.
  void turn(std::initializer_list<at::Tensor> parts, const Batch& batch, Turn direction) const {
    if (!z_.llama) return;
    for (const at::Tensor& x : parts) rotate(x, z_.rotary, batch, direction);
  }
  /// Stores the gradients of the products with query, key and value weights, or adds to the
  /// gradient of their input, or both. `grads`: of query, key and value, (n, W) and twice (n,
  /// kv_heads x head_dim); one after the other, because one product for all three would first have
  /// to copy them into one matrix. `release`: drops each when it is no longer needed.
  at::Tensor through_projection(std::array<at::Tensor, 3>& grads, const at::Tensor& y,
                                const Tensors& p, const Tensors& d, const Halves& half,
                                bool accumulate, bool release) const {
    at::Tensor grad_y;
    std::int64_t row = 0;
    for (at::Tensor& grad : grads) {
      const at::Tensor g = release ? std::move(grad) : grad;
      const std::int64_t width = g.size(1);
      if (half.weights) {
        if (d.qkv_bias.defined()) store_row_sum(d.qkv_bias.narrow(0, row, width), g, accumulate);
        store_product(d.qkv_weight.narrow(0, row, width), g, rows(y), accumulate);
      }
      if (half.inputs) add_product(grad_y, g, p.qkv_weight.narrow(0, row, width));
      row += width;
    }
    return grad_y;
  }

  Reach reach(bool causal, std::int64_t window) const {
    return {causal, window, z_.score_scale, z_.attention_cap};
  }
  DropoutMask mask(const Batch& batch) const {
    return {batch, Site::attention, z_.layer, z_.dropout};
  }
  DropoutMask embedding_mask(const Batch& batch) const {
    return {batch, Site::embedding, -1, z_.dropout};
  }
  bool drops_embedding(const Batch& batch) const {
    return z_.bert && z_.layer == 0 && embedding_mask(batch).active();
  }

 private:
  /// sum += a b; makes an undefined sum.
  static void add_product(at::Tensor& sum, const at::Tensor& a, const at::Tensor& b) {
    if (sum.defined())
      product_into(sum, a, b, true);
    else
      sum = product(a, b);
  }
};

}  // namespace rehearse::models
