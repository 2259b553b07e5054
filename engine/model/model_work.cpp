// The cost of a segment: FLOPs, memory traffic, kernels, and bytes kept for backward. Each term
// stands for one kernel of the blocks in models/, in their order.
//
// Conventions: a product of (m, k) and (k, n) is 2 m k n FLOPs, and backward has twice the products
// of forward. Attention's two (s, s) products count in full, although a causal mask halves the
// kernel's work (as in Megatron-LM, Narayanan et al. 2021, appendix). Traffic is what memory-bound
// kernels read and write, without the operands of products and of attention. All counts are those
// of tp rank 0, which alone adds the residual.
#include "engine/model/model.h"

namespace rehearse::model {
namespace {

/// Sizes of a segment on one tensor-parallel rank. `element`: bytes of an activation; `table`:
/// elements of the vocabulary shard.
struct Sizes {
  double tokens = 0, seq = 0, hidden = 0, heads = 0, query = 0, key = 0, ffn = 0, vocab = 0;
  double element = 0, table = 0;
  bool rms = false, post_norm = false, dropout = false;

  Sizes(const ModelSpec& m, int samples, int tp, program::DType dtype)
      : tokens(double(samples) * m.seq_len),
        seq(m.seq_len),
        hidden(m.hidden),
        heads(double(m.heads) / tp),
        query(double(m.hidden) / tp),
        key(double(m.hidden) / m.heads * m.kv_heads / tp),
        ffn(double(m.ffn) / tp),
        vocab(double(m.padded_vocab) / tp),
        element(double(size_of(dtype))),
        table(double(m.padded_vocab) / tp * m.hidden),
        rms(m.family == Family::llama),
        post_norm(m.family == Family::bert),
        dropout(m.dropout > 0) {}

  double product(double inner, double outer) const { return 2 * tokens * inner * outer; }
  /// Bytes of a norm's statistics, f32: mean (not for RMSNorm) and 1 / deviation of each token.
  double statistics() const { return tokens * (rms ? 4 : 8); }
};

/// Adds up kernels: their launches, and the elements that they read and write per token.
struct Count {
  const Sizes& z;
  SegmentWork work = {};

  void kernel(double elements_per_token, int launches = 1) {
    work.traffic += Bytes(elements_per_token * z.tokens * z.element);
    work.kernels += launches;
  }
  void product(double inner, double outer, int launches = 1) {
    work.flops += Flops(z.product(inner, outer));
    work.kernels += launches;
  }
  void norm_forward() {
    kernel(2 * z.hidden);
    work.traffic += Bytes(z.statistics());
  }
  /// One kernel for the gradient of the input, one for those of weight and bias.
  void norm_backward() {
    kernel(5 * z.hidden, 2);
    work.traffic += Bytes(2 * z.statistics());
  }
  /// The residual of a row-parallel product: the product accumulates into a copy of the residual
  /// and bias. With dropout, a kernel after the product adds them.
  void residual_forward() { kernel((z.dropout ? 3 : 2) * z.hidden); }
  void residual_backward() {
    if (z.dropout) kernel(2 * z.hidden);
    if (!z.rms) kernel(z.hidden);  // bias gradient
    kernel(3 * z.hidden);          // the residual's part of the input's gradient
  }
};

void attention(Count& c, const Sizes& z, bool forward) {
  const double width = z.query + 2 * z.key;
  if (forward) {
    c.norm_forward();
    c.product(z.hidden, width);
    if (z.rms) c.kernel(2 * (z.query + z.key));  // rotary positions
    c.work.flops += Flops(4 * z.tokens * z.seq * z.query);
    c.work.kernels += 1;
    c.residual_forward();
    c.product(z.query, z.hidden);
    return;
  }
  c.residual_backward();
  for (int i = 0; i < 2; ++i) c.product(z.query, z.hidden);
  c.work.flops += Flops(8 * z.tokens * z.seq * z.query);
  c.work.kernels += 1;
  if (z.rms) {
    c.kernel(2 * (z.query + z.key));
  } else {
    c.kernel(width, 3);  // bias gradients of query, key, value
  }
  for (int i = 0; i < 2; ++i) c.product(z.hidden, width, 3);
  c.norm_backward();
}

void mlp(Count& c, const Sizes& z, bool forward) {
  const double width = z.rms ? 2 * z.ffn : z.ffn;  // SwiGLU: gate and up
  if (forward) {
    c.norm_forward();
    c.product(z.hidden, width);
    c.kernel(width + z.ffn);
    c.residual_forward();
    c.product(z.ffn, z.hidden);
    return;
  }
  c.residual_backward();
  for (int i = 0; i < 2; ++i) c.product(z.ffn, z.hidden);
  c.kernel(2 * width + z.ffn);
  if (!z.rms) c.kernel(z.ffn);  // bias gradient
  for (int i = 0; i < 2; ++i) c.product(z.hidden, width);
  c.norm_backward();
}

void embedding(Count& c, const ModelSpec& m, const Sizes& z, bool forward) {
  const double positions = z.rms ? 0 : z.seq * z.hidden * z.element;
  if (forward) {
    c.kernel(2 * z.hidden);
    if (!z.rms) c.kernel(2 * z.hidden);
    if (z.dropout && !z.post_norm) c.kernel(2 * z.hidden);
    c.work.traffic += Bytes(positions);
    return;
  }
  if (z.dropout && !z.post_norm) c.kernel(2 * z.hidden);
  c.kernel(3 * z.hidden);
  if (!z.rms) c.kernel(z.hidden);
  c.work.traffic += Bytes(positions);
  if (!m.tied) {  // nothing has written the table's gradient in this step yet, so clear it
    c.work.traffic += Bytes(z.table * z.element);
    c.work.kernels += 1;
  }
}

void head(Count& c, const Sizes& z, bool forward) {
  if (forward) {
    c.norm_forward();
    if (z.post_norm) {
      c.product(z.hidden, z.hidden);
      c.kernel(2 * z.hidden);
      c.norm_forward();
    }
    c.product(z.hidden, z.vocab);
    // Kernels: maximum, exponentials in place, their sum, the target's logit.
    c.kernel(2 * z.vocab, 4);
    c.work.traffic += Bytes(12 * z.tokens);
    return;
  }
  c.kernel(2 * z.vocab, 2);  // probabilities to gradients, in place; minus one at the target
  for (int i = 0; i < 2; ++i) c.product(z.hidden, z.vocab);
  if (z.post_norm) {
    c.kernel(z.vocab);  // bias gradient
    c.norm_backward();
    c.kernel(3 * z.hidden);
    c.kernel(z.hidden);
    for (int i = 0; i < 2; ++i) c.product(z.hidden, z.hidden);
  }
  c.norm_backward();
}

}  // namespace

SegmentWork work_of(const ModelSpec& model, Id segment, program::Pass pass, int samples, int tp,
                    program::DType dtype) {
  const Sizes z(model, samples, tp, dtype);
  Count c{z};
  const bool forward = pass != program::Pass::backward;
  switch (model.segments[segment].kind) {
    case SegmentKind::embedding:
      embedding(c, model, z, forward);
      break;
    case SegmentKind::attention:
      attention(c, z, forward);
      if (z.post_norm && z.dropout && model.segments[segment].layer == 0) c.kernel(2 * z.hidden);
      break;
    case SegmentKind::mlp:
      mlp(c, z, forward);
      break;
    case SegmentKind::head:
      head(c, z, forward);
      break;
  }
  return c.work;
}

std::int64_t saved_bytes(const ModelSpec& model, Id segment, int samples, int tp,
                         program::DType dtype) {
  const Sizes z(model, samples, tp, dtype);
  double elements = 0, f32_bytes = 0;  // per token: in the model's dtype, and always in f32
  const double statistics = z.statistics() / z.tokens;
  switch (model.segments[segment].kind) {
    case SegmentKind::embedding:
      break;
    case SegmentKind::attention:  // norm's output, query, key, value, attention's output
      elements = z.hidden + 2 * z.query + 2 * z.key;
      f32_bytes = statistics + 4 * z.heads;  // the log of the sum of exponentials of each head
      break;
    case SegmentKind::mlp:  // norm's output, the activation's input and output
      elements = z.hidden + (z.rms ? 3 : 2) * z.ffn;
      f32_bytes = statistics;
      break;
    case SegmentKind::head:  // norm's output, and the exponentials, which overwrite the logits
      elements = z.hidden + z.vocab;
      f32_bytes = statistics;
      if (z.post_norm) {  // the transform: input and output of its GELU, output of its norm
        elements += 3 * z.hidden;
        f32_bytes += statistics;
      }
      break;
  }
  return static_cast<std::int64_t>(z.tokens * (elements * z.element + f32_bytes));
}

Flops model_flops(const ModelSpec& model, std::int64_t tokens) {
  double parameters = 0;
  for (const ParamGroup& group : model.groups) {
    parameters += static_cast<double>(elements_of(group, 1));
  }
  // N excludes padding rows, and tables that are only looked up (no products).
  const double padding = model.padded_vocab - model.vocab;
  parameters -= padding * model.hidden * (model.tied ? 1 : 2);
  if (model.family == Family::bert) parameters -= padding;
  if (!model.tied) parameters -= double(model.vocab) * model.hidden;
  if (model.family != Family::llama) parameters -= double(model.max_positions) * model.hidden;
  if (model.family == Family::bert) parameters -= 2.0 * model.hidden;
  const double attention = 12.0 * model.layers * model.hidden * model.seq_len;
  return Flops((6 * parameters + attention) * static_cast<double>(tokens));
}

}  // namespace rehearse::model
