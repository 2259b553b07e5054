// Sizes of a segment on one tensor-parallel rank. Internal to engine/model.
#pragma once
#include <algorithm>
#include <cmath>

#include "engine/model/model.h"

namespace rehearse::model {

/// `element`: bytes of an activation; `table`: elements of the vocabulary shard; `vocab`: outputs
/// of the head; `loss_columns`: those of which a rank computes the loss; `transform`: BERT's dense
/// layer before the vocabulary; `experts`: of a feed-forward layer, 0 where it is one for all
/// tokens; `routed`: how many of them a token passes, otherwise 1; `rows_read`, `rows_returned`:
/// rows of `hidden` that they read and return of which forward keeps so many a token.
struct Sizes {
  double samples = 0, tokens = 0, own_tokens = 0, seq = 0, attention_span = 0, hidden = 0,
         heads = 0, query = 0, key = 0, ffn = 0, vocab = 0, loss_columns = 0, experts = 0,
         routed = 1, rows_read = 0, rows_returned = 0;
  double element = 0, table = 0;
  bool rms = false, post_norm = false, transform = false, dropout = false, causal = false,
       qkv_bias = false, qk_norm = false, norm_offset = false, output_norm = false,
       gathers_each = false;
  /// Kernels that cap scores and logits, which the software launches for themselves.
  bool caps_scores = false, caps_logits = false;

  /// `layer`: of the segment.
  Sizes(const ModelSpec& m, int layer, int samples, TensorSplit split, program::DType dtype)
      : samples(samples),
        tokens(double(samples) * m.seq_len / split.context),
        own_tokens(tokens / (split.sequence && m.software.divides_tokens ? split.ranks : 1)),
        seq(double(m.seq_len) / split.context),
        attention_span(model::attention_span(m, layer)),
        hidden(m.hidden),
        heads(double(m.heads) / split.ranks),
        query(double(query_width(m)) / split.ranks),
        key(double(key_width(m)) / split.ranks),
        ffn(double(m.ffn) / split.ranks),
        vocab(double(m.outputs > 0 ? m.outputs : m.padded_vocab) / split.ranks),
        loss_columns(double(model::loss_columns(m, split.ranks))),
        experts(m.experts),
        routed(layers_per_token(m)),
        rows_read(m.experts > 0 && m.software.experts != software::Experts::looped ? routed : 0),
        rows_returned(m.experts > 0 && m.software.experts == software::Experts::modules ? routed
                                                                                        : 0),
        element(double(size_of(dtype))),
        table(double(m.padded_vocab) / split.ranks * m.hidden),
        rms(m.family == Family::llama),
        post_norm(m.family == Family::bert),
        transform(post_norm && m.outputs == 0),
        dropout(m.dropout > 0),
        causal(!post_norm && attention_span == m.seq_len),
        qkv_bias(!rms || m.qkv_bias),
        qk_norm(m.qk_norm),
        norm_offset(m.norm_offset),
        output_norm(m.output_norm),
        gathers_each(split.sequence && m.software.gathers == software::Gathers::each),
        caps_scores(m.attention_cap > 0 && m.software.soft_caps == software::SoftCaps::separate),
        caps_logits(m.logit_cap > 0 && m.software.soft_caps == software::SoftCaps::separate) {}

  double head_size() const { return query / heads; }
  /// Experts that tokens pass, where the router gives all of them equally many, and their tokens.
  double busy_experts() const { return std::min(experts, tokens * routed); }
  double expert_tokens() const { return tokens * routed / busy_experts(); }
  /// Bytes of what the router keeps: probabilities in f32, numbers of the chosen experts in i64.
  double routing() const { return tokens * (4 * experts + (experts > 0 ? 8 * routed : 0)); }
  /// Whether one kernel scales, masks and normalises written scores.
  bool fused_softmax(const software::Software& how) const {
    return how.softmax == software::Softmax::fused &&
           std::fmod(samples * heads, how.softmax_multiple) == 0;
  }
  /// Bytes that forward keeps of each written score: the softmax; with a cap also tanh, and where
  /// separate kernels make the softmax of capped scores, it is in f32 before its conversion.
  double kept_of_a_score(const software::Software& how) const {
    if (!caps_scores) return element;
    return element + (fused_softmax(how) ? element : element < 4 ? 4 + element : 4);
  }
  /// Bytes of the statistics of the norms of queries and keys, f32: 1 / deviation of each head.
  double head_statistics() const { return qk_norm ? tokens * 4 * (query + key) / head_size() : 0; }
  /// Elements of attention's scores, (samples, heads, seq, seq).
  double scores() const { return samples * heads * seq * seq; }
  /// Bytes of a norm's statistics, f32: mean (not for RMSNorm) and 1 / deviation of each token.
  double statistics() const { return own_tokens * (rms ? 4 : 8); }
};

}  // namespace rehearse::model
