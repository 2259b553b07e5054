// The kernels that a pass of a segment launches, one entry each, in their order. With the default
// software they are those of the blocks in models/; other software (engine/software) fuses more or
// less, and writes the scores of attention to memory or keeps them on the chip:
//
//   written:  q k^T -> [scale, mask, softmax] -> dropout -> p v     scores: (samples, heads, s, s)
//   fused, flash: one kernel, no (s, s) tensor in memory
//
// Conventions: a product of (m, k) and (k, n) is 2 m k n FLOPs, and backward has twice the products
// of forward. Attention's two (s, s) products count in full, although a causal mask halves the
// work of a fused kernel (as in Megatron-LM, Narayanan et al. 2021, appendix). A memory-bound
// kernel has the bytes that it reads and writes. All counts are those of tp rank 0, which alone
// adds the residual.
#include "engine/model/launches.h"

#include <utility>

#include "engine/model/launch_list.h"

namespace rehearse::model {
namespace {

using software::CrossEntropy;

void attention(List& l, const Sizes& z, const software::Software& how, bool written) {
  const double width = z.query + 2 * z.key;
  if (l.forward()) {
    l.norm();
    l.arrange(how.qkv_forward);
    l.linear(z.hidden, width, how.qkv_forward, z.qkv_bias, true);
    l.head_norms();
    l.rotary();
    if (written)
      l.written_attention();
    else
      l.fused_attention(2 * z.head_size(), z.attention_span);
    l.residual_before();
    l.linear(z.query, z.hidden, 1, how.residual == Residual::separate && !z.rms);
    l.arrange(1);
    l.residual_after();
    return;
  }
  l.residual_backward();
  l.arrange(1 + how.qkv_forward);
  l.linear_backward(z.query, z.hidden);
  if (l.inputs()) {
    if (written)
      l.written_attention_backward();
    else
      l.fused_attention(4 * z.head_size(), z.attention_span);
    l.rotary();
    l.head_norms();
  }
  l.norm_again();
  if (z.qkv_bias) l.bias_backward(width, how.qkv_backward);  // of query, key, value
  l.linear_backward(z.hidden, width, how.qkv_backward, true);
  if (l.inputs()) l.norm_backward();
}

void projection(List& l, const Sizes& z, const software::Software& how, bool packs) {
  const double width = z.query + 2 * z.key;
  if (l.forward()) {
    l.norm();
    l.linear(z.hidden, width, how.qkv_forward, z.qkv_bias, true);
    l.head_norms();
    l.rotary();
    if (packs) l.memory(2 * width);  // heads in the order of the ranks that get them
    return;
  }
  if (packs) l.memory(2 * width);
  l.residual_backward();
  l.linear_backward_of(z.query, z.hidden, 1, false, true);  // of attention's output
  l.rotary();
  l.head_norms();
  if (z.qkv_bias) l.bias_backward(width, how.qkv_backward);
  l.linear_backward(z.hidden, width, how.qkv_backward, true);
  l.norm_backward();
}

void block_of_attention(List& l, const Sizes& z, const Piece& piece, bool packs) {
  if (piece.keys == 0) {
    // A gradient that begins its way at a rank that does not attend to the block is zero.
    if (!l.forward()) l.memory(2 * z.key);
    return;
  }
  if (packs) l.memory((l.forward() ? 2 : 4) * (z.query + z.key));
  l.fused_attention((l.forward() ? 2 : 4) * z.head_size(), piece.keys);
  // Adds to output or gradient of the query.
  if (piece.adds) l.memory(3 * z.query);
}

void output_part(List& l, const Sizes& z, const software::Software& how, bool packs) {
  if (packs) l.memory(2 * z.query);
  if (l.forward()) {
    l.residual_before();
    l.linear(z.query, z.hidden, 1, how.residual == Residual::separate && !z.rms);
    l.residual_after();
    return;
  }
  if (z.dropout) l.own(2 * z.hidden);
  l.linear_backward_of(z.query, z.hidden, 1, true, false);
}

/// Parts of attention over a divided sequence (engine/model/context.h). `packs`: ranks exchange
/// heads for tokens, which takes copies.
void attention_part(List& l, const Sizes& z, const software::Software& how, const Piece& piece,
                    bool packs) {
  if (piece.part == program::Part::project) return projection(l, z, how, packs);
  if (piece.part == program::Part::attend) return block_of_attention(l, z, piece, packs);
  output_part(l, z, how, packs);
}

/// Experts and their router (models/experts.cpp). The tokens of each expert are gathered, and what
/// it returns is weighted and added to theirs.
void experts(List& l, const Sizes& z) {
  l.routes = true;
  const double width = 2 * z.ffn;
  if (l.forward()) {
    l.norm();
    l.arrange(1);
    l.router();
    l.gather();
    l.expert_linear(z.hidden, width);
    l.activation(z.routed * (width + z.ffn), 5 * z.routed * z.ffn);
    l.residual_before();
    l.expert_linear(z.ffn, z.hidden);
    l.scatter(true);
    l.arrange(1);
    l.residual_after();
    return;
  }
  l.residual_backward();
  l.arrange(2);
  l.gather();
  l.expert_linear_backward(z.ffn, z.hidden);
  if (l.inputs()) {
    l.router_weights_backward();
    l.activation(z.routed * (2 * width + z.ffn), 9 * z.routed * z.ffn);
  }
  l.norm_again();
  if (l.weights()) l.gather_again();
  l.expert_linear_backward(z.hidden, width);
  if (!l.inputs()) return;
  l.scatter(false);
  l.router_backward();
  l.norm_backward();
}

void mlp(List& l, const Sizes& z, const software::Software& how) {
  if (z.experts > 0) return experts(l, z);
  const double width = z.rms ? 2 * z.ffn : z.ffn;  // SwiGLU: gate and up
  const int readers = z.rms ? 2 : 1;
  if (l.forward()) {
    l.norm();
    l.arrange(readers);
    l.linear(z.hidden, width, 1, !z.rms && !how.bias_activation, true);
    l.activation(width + z.ffn, 5 * z.ffn);
    l.residual_before();
    l.linear(z.ffn, z.hidden, 1, how.residual == Residual::separate && !z.rms);
    l.arrange(1);
    l.residual_after();
    return;
  }
  l.residual_backward();
  l.arrange(1 + readers);
  l.linear_backward(z.ffn, z.hidden);
  if (l.inputs()) l.activation(2 * width + z.ffn, 9 * z.ffn);
  l.norm_again();
  if (!z.rms) l.bias_backward(z.ffn);
  l.linear_backward(z.hidden, width, 1, true);
  if (l.inputs()) l.norm_backward();
}

void embedding(List& l, const ModelSpec& m, const Sizes& z) {
  const double positions = z.rms ? 0 : z.seq * z.hidden * z.element;
  const bool dropout = z.dropout && !z.post_norm;
  const double row = z.tokens * z.hidden * z.element;
  if (l.forward()) {
    l.memory_bytes(2 * row + (z.rms ? positions : 0));
    if (!z.rms) l.memory_bytes(2 * row + positions);
    if (m.scaled_embedding) l.memory(2 * z.hidden);
    if (dropout) l.memory(2 * z.hidden);
    return;
  }
  if (dropout) l.memory(2 * z.hidden);
  // Elsewhere the table's gradient is scaled where it is added up.
  if (m.scaled_embedding && l.separate()) l.memory(2 * z.hidden);
  l.memory(3 * z.hidden);
  if (!z.rms) l.memory_bytes(row + positions);
  // If tied, the head's backward has already written the table's gradient in this step.
  if (!m.tied) l.memory_bytes(z.table * z.element);
}

/// The loss over the logits, (tokens, loss_columns).
void cross_entropy(List& l, const Sizes& z, CrossEntropy form) {
  const bool forward = l.forward();
  const double logits = z.tokens * z.loss_columns;
  if (form == CrossEntropy::fused) {
    if (forward) {  // maximum, exponentials in place, their sum, the target's logit
      l.memory_bytes(2 * logits * z.element + 12 * z.tokens, 4);
    } else {  // probabilities to gradients, in place; minus one at the target
      l.memory(2 * z.loss_columns, 2);
    }
    return;
  }
  if (form == CrossEntropy::unconverted) {
    // Log-softmax; backward reads it and the gradient of it.
    return l.memory((forward ? 2 : 3) * z.loss_columns);
  }
  const double convert = (z.element + 4) * logits;
  if (forward) {
    l.memory_bytes(convert);
    if (form == CrossEntropy::library) return l.memory_bytes(8 * logits);
    for (const int bytes : {4, 8, 8, 4, 8}) l.memory_bytes(bytes * logits);
    return;
  }
  l.memory_bytes((form == CrossEntropy::library ? 12 : 8) * logits);
  l.memory_bytes(convert);
}

void head(List& l, const Sizes& z, const software::Software& how) {
  if (l.forward()) {
    l.norm();
    if (z.transform) {
      l.linear(z.hidden, z.hidden);
      l.memory(2 * z.hidden);
      l.norm();
    }
    l.linear(z.hidden, z.vocab, 1, z.transform);
    l.cap();
    cross_entropy(l, z, how.cross_entropy);
    return;
  }
  if (l.inputs()) {
    cross_entropy(l, z, how.cross_entropy);
    l.cap_backward();
  }
  l.norm_again();
  l.linear_backward(z.hidden, z.vocab);
  if (z.transform) l.bias_backward(z.vocab);
  if (!l.inputs()) return;
  if (z.transform) {
    l.norm_backward();
    l.memory(3 * z.hidden);
    l.memory(z.hidden);
    // The transform is not split over tp, so all of its gradients are those of the first half.
    l.product(z.tokens, z.hidden, z.hidden);
    l.product(z.hidden, z.hidden, z.tokens);
  }
  l.norm_backward();
}

}  // namespace

std::vector<Launch> launches_of(const ModelSpec& model, Id segment, program::Pass pass, int samples,
                                TensorSplit split, program::DType dtype, const Piece& piece) {
  const Sizes z(model, model.segments[segment].layer, samples, split, dtype);
  const software::Software& how = model.software;
  List l(z, how, pass,
         split.norms(how, piece.part != program::Part::whole) == software::Norms::again,
         split.fp8 && multiplies_in_fp8(model.segments[segment].kind), piece.first);
  switch (model.segments[segment].kind) {
    case SegmentKind::embedding:
      embedding(l, model, z);
      break;
    case SegmentKind::attention:
      if (piece.part != program::Part::whole) {
        attention_part(l, z, how, piece, split.heads);
        break;
      }
      attention(l, z, how, writes_scores(model));
      // BERT applies dropout to the embedding's output in the first layer.
      if (z.post_norm && z.dropout && model.segments[segment].layer == 0 && l.inputs())
        l.memory(2 * z.hidden);
      break;
    case SegmentKind::mlp:
      mlp(l, z, how);
      break;
    case SegmentKind::head:
      head(l, z, how);
      break;
  }
  return std::move(l.launches);
}

}  // namespace rehearse::model
