// The kernels of which launches.cpp makes the passes: products, norms, attention, sums. Internal to
// engine/model.
#pragma once
#include <vector>

#include "engine/model/fp8.h"
#include "engine/model/launches.h"
#include "engine/model/sizes.h"

namespace rehearse::model {

using software::Attention;
using software::Bias;
using software::Operators;
using software::Residual;

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
  bool routes = false;  // a router reads the norm's output in 16 bits

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
  /// How many kernels compute what all experts do, and experts of each.
  int expert_kernels() const {
    return how_.experts == software::Experts::grouped ? 1 : static_cast<int>(z_.busy_experts());
  }
  /// For each expert (rows, inner) times (inner, columns).
  void expert_products(double rows, double columns, double inner) {
    for (int i = 0; i < expert_kernels(); ++i)
      product(rows, columns, inner, 1, z_.busy_experts() / expert_kernels(), fp8_);
  }
  /// The linear layer of each expert: (its tokens, inner) -> (its tokens, outer).
  void expert_linear(double inner, double outer) {
    const double weights = z_.busy_experts() * inner * outer;
    if (autocast()) memory_bytes(weights * (4 + z_.element), expert_kernels());
    const int copies = delayed() ? 2 : 1;
    to_fp8(z_.tokens * z_.routed * inner, copies);
    if (!delayed() || first_) to_fp8(weights, copies);
    expert_products(z_.expert_tokens(), outer, inner);
  }
  void expert_linear_backward(double inner, double outer) {
    to_fp8(z_.tokens * z_.routed * outer, (inputs() ? 1 : 0) + (weights() ? 1 : 0));
    if (inputs() && !delayed()) to_fp8(z_.busy_experts() * inner * outer, 1);
    if (weights() && !delayed()) to_fp8(z_.tokens * z_.routed * inner, 1);
    if (inputs()) expert_products(z_.expert_tokens(), inner, outer);
    if (weights()) expert_products(inner, outer, z_.expert_tokens());
  }
  /// The rows that experts read, by expert.
  void gather() { memory(2 * z_.routed * z_.hidden, expert_kernels()); }
  /// The same in backward, unless forward has kept them.
  void gather_again() {
    if (how_.experts == software::Experts::looped) gather();
  }
  /// What experts return is added to the rows of its tokens, in forward times a weight.
  void scatter(bool weighted) {
    if (weighted) memory(2 * z_.routed * z_.hidden, expert_kernels());
    memory((how_.experts == software::Experts::grouped ? z_.routed + 1 : 3 * z_.routed) * z_.hidden,
           expert_kernels());
  }
  /// Logits, probabilities in f32, the chosen ones and their weights, the order of tokens by
  /// expert.
  void router() {
    product(z_.tokens, z_.experts, z_.hidden);
    memory_bytes(z_.tokens * z_.experts * (z_.element + 4));
    memory_bytes(z_.tokens * (4 * z_.experts + 12 * z_.routed));
    memory_bytes(z_.tokens * z_.routed * 48, 3);
  }
  /// The gradients of the weights by which results of experts were multiplied (a product and its
  /// sum), and those of the results. looped and grouped: where results have their inner width.
  void router_weights_backward() {
    const bool results = how_.experts == software::Experts::modules;
    memory(6 * z_.routed * (results ? z_.hidden : z_.ffn), 3 * expert_kernels());
  }
  void router_backward() {
    memory_bytes(z_.tokens * (12 * z_.experts + 12 * z_.routed), 3);
    product(z_.tokens, z_.hidden, z_.experts);
    product(z_.experts, z_.hidden, z_.tokens);
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
    if (fp8_ && delayed() && !routes) return 1;
    return how_.operators == Operators::separate ? stream() : z_.element;
  }
  void norm() { norm_of(z_.own_tokens * z_.hidden, z_.statistics(), normed()); }
  /// `written`: bytes of an element of the result.
  void norm_of(double elements, double statistics, double written) {
    if (separate() && z_.norm_offset) offset();
    if (separate())  // to f32, square, mean, scale, back, weight; with an offset weight in f32
      return z_.norm_offset ? chain(elements, 36, 2, 6) : chain(elements, 28, 4, 6);
    memory_bytes(elements * (stream() + written) + statistics);
    convert();
  }
  /// 1 + weight: to f32, sum.
  void offset() { memory_bytes(z_.hidden * (z_.element + 12), 2); }
  /// Before a backward that needs the norm's output.
  void norm_again() {
    if (again_) norm();
  }
  /// One kernel for the gradient of the input, one for those of weight and bias.
  void norm_backward() { norm_backward_of(z_.own_tokens * z_.hidden, z_.statistics()); }
  void norm_backward_of(double elements, double statistics) {
    const double both = 5 * elements * z_.element + 2 * statistics;
    if (separate())  // weight, to f32, scale and its sum, mean, square, sum of both, back
      z_.norm_offset ? chain(elements, 84, 2, 10) : chain(elements, 64, 7, 10);
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
      forward() ? norm_of(elements, statistics, normed()) : norm_backward_of(elements, statistics);
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
  bool fused_softmax() const { return z_.fused_softmax(how_); }
  void softmax() {
    if (z_.caps_scores) capped();
    if (fused_softmax()) return scores(2 * z_.element);
    if (z_.caps_scores) return capped_softmax();
    const double e = how_.softmax_f32 ? 4 : z_.element;
    if (e != z_.element) scores(z_.element + e);
    for (int i = 0; i < 3; ++i) scores(2 * e);  // scale, mask, softmax
    if (e != z_.element) scores(e + z_.element);
  }
  void softmax_backward() {
    if (!z_.caps_scores) return uncapped_softmax_backward();
    const double e = z_.element;
    if (fused_softmax()) {
      scores(3 * e);
    } else {  // the conversion and the softmax; the mask has no gradient
      if (e < 4) scores(4 + e);
      scores(8 + e);
    }
    for (const double operands : {2, 3, 2}) scores(operands * e);  // product, tanh, quotient
    if (!fused_softmax()) scores(2 * e);                           // scale
  }
  /// Quotient, tanh, product.
  void capped() {
    for (int i = 0; i < 3; ++i) scores(2 * z_.element);
  }
  /// As in transformers: only the softmax is in f32, and reads its operand in the model's type.
  void capped_softmax() {
    const double e = z_.element;
    for (int i = 0; i < 2; ++i) scores(2 * e);  // scale, mask
    scores(e + 4);
    if (e < 4) scores(4 + e);
  }
  void uncapped_softmax_backward() {
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
    if (how_.residual == Residual::accumulated && !z_.output_norm)
      own((z_.dropout ? 3 : 2) * z_.hidden);
  }
  void residual_after() {
    if (z_.output_norm) {
      norm_of(z_.own_tokens * z_.hidden, z_.statistics(), z_.element);
      return own(3 * z_.hidden);
    }
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
    if (z_.output_norm) norm_backward();
  }
  /// The head's logits.
  void cap() {
    for (int i = 0; i < 3 && z_.caps_logits; ++i) memory(2 * z_.vocab);  // quotient, tanh, product
  }
  void cap_backward() {
    if (!z_.caps_logits) return;
    for (const int operands : {2, 3, 2}) memory(operands * z_.vocab);
  }

 private:
  const Sizes& z_;
  const software::Software& how_;
  program::Pass pass_;
  bool again_, fp8_, first_;
};

}  // namespace rehearse::model
