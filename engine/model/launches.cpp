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

#include <cmath>
#include <utility>

#include "engine/model/fp8.h"
#include "engine/model/sizes.h"

namespace rehearse::model {
namespace {

using software::Attention;
using software::Bias;
using software::CrossEntropy;
using software::Operators;
using software::Residual;
using software::Softmax;

/// Appends launches. Counts of elements are per token, in the model's type, unless a name says
/// bytes.
class List {
 public:
  /// `again`: backward computes the outputs of norms again. `fp8`: linear layers multiply in FP8;
  /// `first`: their weights are new.
  List(const Sizes& z, const software::Software& how, program::Pass pass, bool again, bool fp8,
       bool first)
      : z_(z),
        how_(how),
        pass_(pass),
        again_(again && pass == program::Pass::backward),
        fp8_(fp8),
        first_(first && pass == program::Pass::forward) {}
  std::vector<Launch> launches = {};

  bool forward() const { return !is_backward(pass_); }
  /// Whether this backward computes the gradient of the input, and with it those of norms.
  bool inputs() const { return pass_ != program::Pass::backward_weight; }
  /// Whether this backward computes the gradients of matrices.
  bool weights() const { return pass_ != program::Pass::backward_input; }

  /// `kernels` launches that share this traffic.
  void memory(double elements_per_token, int kernels = 1) {
    memory_bytes(elements_per_token * z_.tokens * z_.element, kernels);
  }
  /// A kernel over the tokens that sequence parallelism leaves to this rank.
  void own(double elements_per_token) {
    memory_bytes(elements_per_token * z_.own_tokens * z_.element);
  }
  void memory_bytes(double bytes, int kernels = 1) {
    for (int i = 0; i < kernels; ++i)
      launches.push_back({.kind = Launch::Kind::memory, .bytes = bytes / kernels});
  }
  /// (rows, inner) times (inner, columns), in `kernels` launches that share the columns.
  void product(double rows, double columns, double inner, int kernels = 1, double batch = 1,
               bool fp8 = false) {
    for (int i = 0; i < kernels; ++i) {
      const double part = columns / kernels;
      launches.push_back({.kind = Launch::Kind::product,
                          .batch = batch,
                          .rows = rows,
                          .columns = part,
                          .inner = inner,
                          .bytes = batch * ((fp8 ? 1 : z_.element) * (rows * inner + inner * part) +
                                            z_.element * rows * part),
                          .fp8 = fp8});
    }
  }
  /// A linear layer's forward: (tokens, inner) -> (tokens, outer). `normed`: a norm makes its
  /// input.
  void linear(double inner, double outer, int kernels = 1, bool bias = true, bool normed = false) {
    if (autocast()) memory_bytes(inner * outer * (4 + z_.element), kernels);  // the weight
    if (bias && how_.bias == Bias::kernel) memory(outer, kernels);
    const int copies = delayed() ? 2 : 1;
    if (!delayed() || !normed) to_fp8(z_.tokens * inner, copies);
    if (!delayed() || first_) to_fp8(inner * outer, copies);
    product(z_.tokens, outer, inner, kernels, 1, fp8_);
  }
  /// The gradients of its input and of its weight.
  void linear_backward(double inner, double outer, int kernels = 1, bool normed = false) {
    if (normed && fp8_ && delayed() && weights()) memory_bytes(2 * z_.tokens * inner);  // transpose
    linear_backward_of(inner, outer, kernels, inputs(), weights());
  }
  void linear_backward_of(double inner, double outer, int kernels, bool input, bool weight) {
    to_fp8(z_.tokens * outer, (input ? 1 : 0) + (weight ? 1 : 0));
    if (input && !delayed()) to_fp8(inner * outer, 1);
    if (weight && !delayed()) to_fp8(z_.tokens * inner, 1);
    for (int i = 0; i < kernels; ++i) {
      const double part = outer / kernels;
      if (input) product(z_.tokens, inner, part, 1, 1, fp8_);
      if (weight) product(inner, part, z_.tokens, 1, 1, fp8_);
    }
  }
  bool delayed() const { return how_.fp8 == software::Fp8::delayed; }
  /// The kernels that convert an operand of a product, if that is in FP8.
  void to_fp8(double elements, int copies) {
    if (!fp8_) return;
    for (const double bytes : conversion(how_.fp8, elements, z_.element, copies))
      memory_bytes(bytes);
  }
  /// The gradient of a column-parallel product's bias.
  void bias_backward(double outer, int kernels = 1) {
    for (int i = 0; weights() && i < kernels; ++i)
      reduction(outer / kernels * z_.tokens * z_.element);
  }
  /// FLOPs count every pair of tokens and backward as twice forward. What FlashAttention leaves out
  /// (masked pairs) and adds (scores anew in backward: five products, not four) is in the rate.
  void fused_attention(double inner, double keys) {
    const bool flash = how_.attention == Attention::flash;
    const double leaves_out = (z_.causal ? 2 : 1) * (forward() ? 1 : 4.0 / 5);
    launches.push_back({.kind = flash ? Launch::Kind::flash : Launch::Kind::attention,
                        .batch = z_.samples * z_.heads,
                        .rows = z_.seq,
                        .columns = keys,
                        .inner = inner,
                        .rate = flash ? how_.attention_rate * leaves_out : 1});
  }
  void reduction(double bytes) {  // a sum over all tokens
    launches.push_back({.kind = Launch::Kind::memory, .bytes = bytes, .rate = how_.reductions});
  }
  /// Operators that move `f32` bytes of each element in f32, and it `own` times in its own type.
  void chain(double elements, double f32, double own, int kernels) {
    memory_bytes(elements * (f32 + own * z_.element), kernels);
  }
  void activation(double fused, double operators) {  // GELU, or SwiGLU
    separate() ? memory(operators, forward() ? 2 : 3) : memory(fused);
  }
  /// The kernels by which DTensor puts the parts of a gathered tensor, or those of one that is to
  /// be scattered, in order.
  void arrange(int times) {
    for (int i = 0; i < times && inputs() && z_.gathers_each; ++i) memory(2 * z_.hidden);
  }
  bool separate() const { return z_.rms && how_.operators == Operators::separate; }
  /// Weights and residual stream in f32, which products do not read (torch.autocast).
  bool autocast() const { return how_.autocast && !z_.rms && z_.element < 4; }
  /// Bytes of an element of the residual stream.
  double stream() const { return autocast() ? 4 : z_.element; }
  /// A tensor of the residual stream between f32 and the type of products: a kernel of its own, or
  /// part of the one before.
  void convert() {
    if (autocast() && how_.operators == Operators::separate)
      memory_bytes(z_.own_tokens * z_.hidden * (4 + z_.element));
  }
  /// What a norm writes and its backward reads: converted by a kernel of its own, or not.
  double normed() const {
    if (fp8_ && delayed()) return 1;
    return how_.operators == Operators::separate ? stream() : z_.element;
  }
  void norm() { norm_of(z_.own_tokens * z_.hidden, z_.statistics()); }
  void norm_of(double elements, double statistics) {
    if (separate())  // to f32, square, mean, scale, back, weight
      return chain(elements, 28, 4, 6);
    memory_bytes(elements * (stream() + normed()) + statistics);
    convert();
  }
  /// Before a backward that needs the norm's output.
  void norm_again() {
    if (again_) norm();
  }
  /// One kernel for the gradient of the input, one for those of weight and bias.
  void norm_backward() { norm_backward_of(z_.own_tokens * z_.hidden, z_.statistics()); }
  void norm_backward_of(double elements, double statistics) {
    const double both = 5 * elements * z_.element + 2 * statistics;
    if (separate())  // weight, to f32, scale and its sum, mean, square, sum of both, back
      chain(elements, 64, 7, 10);
    else if (autocast())
      convert(), memory_bytes(elements * (2 * stream() + normed()) + statistics);
    else
      memory_bytes(both / 2);
    reduction(autocast() ? elements * (stream() + normed()) + statistics : both / 2);
  }
  /// Norms of queries and of keys.
  void head_norms() {
    if (!z_.qk_norm) return;
    for (const double width : {z_.query, z_.key}) {
      const double elements = z_.tokens * width, statistics = 4 * elements / z_.head_size();
      forward() ? norm_of(elements, statistics) : norm_backward_of(elements, statistics);
    }
  }
  /// Rotary positions. separate: also keys and values once for each query head.
  void rotary() {
    if (!z_.rms) return;
    if (!separate()) return memory(2 * (z_.query + z_.key));
    chain(z_.tokens * (z_.query + z_.key), 16, 2, 6);
    if (z_.key != z_.query) memory(2 * (z_.query + z_.key), 2);
  }

  /// A pass over the scores, of so many bytes per score.
  void scores(double bytes) { memory_bytes(bytes * z_.scores()); }
  bool fused_softmax() const {
    return how_.softmax == Softmax::fused &&
           std::fmod(z_.samples * z_.heads, how_.softmax_multiple) == 0;
  }
  void softmax() {
    if (fused_softmax()) return scores(2 * z_.element);
    const double e = how_.softmax_f32 ? 4 : z_.element;
    if (e != z_.element) scores(z_.element + e);
    for (int i = 0; i < 3; ++i) scores(2 * e);  // scale, mask, softmax
    if (e != z_.element) scores(e + z_.element);
  }
  void softmax_backward() {
    if (fused_softmax()) return scores(3 * z_.element);
    const double e = how_.softmax_f32 ? 4 : z_.element;
    if (e != z_.element) scores(z_.element + e);
    scores(3 * e);  // softmax
    scores(2 * e);  // scale; the mask has no gradient
    if (e != z_.element) scores(e + z_.element);
  }
  /// Scores, softmax, dropout and context of attention whose scores are in memory.
  void written_attention() {
    for (int i = 1; i < how_.head_copies; ++i) memory(2 * z_.query);
    probabilities();
    product(z_.seq, z_.head_size(), z_.seq, 1, z_.samples * z_.heads);
    if (how_.head_copies > 0) memory(2 * z_.query);  // back to (tokens, heads x head size)
  }
  void probabilities() {
    product(z_.seq, z_.seq, z_.head_size(), 1, z_.samples * z_.heads);
    softmax();
    if (z_.dropout) scores(2 * z_.element + 1);
  }
  void written_attention_backward() {
    const double batch = z_.samples * z_.heads;
    if (how_.recompute_scores) probabilities();
    for (int i = 0; i < how_.head_copies; ++i) memory(2 * z_.query);
    product(z_.seq, z_.seq, z_.head_size(), 1, batch);
    product(z_.seq, z_.head_size(), z_.seq, 1, batch);
    if (z_.dropout) scores(2 * z_.element + 1);
    softmax_backward();
    for (int i = 0; i < 2; ++i) product(z_.seq, z_.head_size(), z_.seq, 1, batch);
  }

  /// What adds dropout, bias and residual to the result of a row-parallel product. `accumulated`
  /// makes the sum before the product.
  void residual_before() {
    if (how_.residual == Residual::accumulated) own((z_.dropout ? 3 : 2) * z_.hidden);
  }
  void residual_after() {
    const double mask = z_.dropout ? z_.own_tokens * z_.hidden : 0;
    const double sum = z_.own_tokens * z_.hidden * (2 * stream() + z_.element);
    if (how_.residual == Residual::fused) memory_bytes(sum + mask);
    if (how_.residual == Residual::separate) {
      if (z_.dropout) memory_bytes(2 * z_.own_tokens * z_.hidden * z_.element + mask);
      memory_bytes(sum);
    }
  }
  void residual_backward() {
    if (z_.dropout) own(2 * z_.hidden);  // each half applies the mask
    if (!inputs()) return;
    if (!z_.rms) reduction(z_.hidden * z_.own_tokens * z_.element);  // bias gradient
    memory_bytes(3 * z_.own_tokens * z_.hidden * stream());  // the residual's part of the gradient
    convert();                                               // of the result
  }

 private:
  const Sizes& z_;
  const software::Software& how_;
  program::Pass pass_;
  bool again_, fp8_, first_;
};

void attention(List& l, const Sizes& z, const software::Software& how) {
  const double width = z.query + 2 * z.key;
  const bool written = how.attention == Attention::written;
  if (l.forward()) {
    l.norm();
    l.arrange(how.qkv_forward);
    l.linear(z.hidden, width, how.qkv_forward, z.qkv_bias, true);
    l.head_norms();
    l.rotary();
    if (written)
      l.written_attention();
    else
      l.fused_attention(2 * z.head_size(), z.attended);
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
      l.fused_attention(4 * z.head_size(), z.attended);
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

void mlp(List& l, const Sizes& z, const software::Software& how) {
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
    if (dropout) l.memory(2 * z.hidden);
    return;
  }
  if (dropout) l.memory(2 * z.hidden);
  l.memory(3 * z.hidden);
  if (!z.rms) l.memory_bytes(row + positions);
  // If tied, the head's backward has already written the table's gradient in this step.
  if (!m.tied) l.memory_bytes(z.table * z.element);
}

/// The loss over the logits, (tokens, vocabulary shard).
void cross_entropy(List& l, const Sizes& z, CrossEntropy form) {
  const bool forward = l.forward();
  const double logits = z.tokens * z.vocab;
  if (form == CrossEntropy::fused) {
    if (forward) {  // maximum, exponentials in place, their sum, the target's logit
      l.memory_bytes(2 * logits * z.element + 12 * z.tokens, 4);
    } else {  // probabilities to gradients, in place; minus one at the target
      l.memory(2 * z.vocab, 2);
    }
    return;
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
    cross_entropy(l, z, how.cross_entropy);
    return;
  }
  if (l.inputs()) cross_entropy(l, z, how.cross_entropy);
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
  const Sizes z(model, samples, split, dtype);
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
      attention(l, z, how);
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
