// Sizes of a segment on one tensor-parallel rank. Internal to engine/model.
#pragma once
#include "engine/model/model.h"

namespace rehearse::model {

/// `element`: bytes of an activation; `table`: elements of the vocabulary shard; `vocab`: outputs
/// of the head; `transform`: BERT's dense layer before the vocabulary.
struct Sizes {
  double samples = 0, tokens = 0, seq = 0, hidden = 0, heads = 0, query = 0, key = 0, ffn = 0,
         vocab = 0;
  double element = 0, table = 0;
  bool rms = false, post_norm = false, transform = false, dropout = false;

  Sizes(const ModelSpec& m, int samples, int tp, program::DType dtype)
      : samples(samples),
        tokens(double(samples) * m.seq_len),
        seq(m.seq_len),
        hidden(m.hidden),
        heads(double(m.heads) / tp),
        query(double(m.hidden) / tp),
        key(double(m.hidden) / m.heads * m.kv_heads / tp),
        ffn(double(m.ffn) / tp),
        vocab(double(m.outputs > 0 ? m.outputs : m.padded_vocab) / tp),
        element(double(size_of(dtype))),
        table(double(m.padded_vocab) / tp * m.hidden),
        rms(m.family == Family::llama),
        post_norm(m.family == Family::bert),
        transform(post_norm && m.outputs == 0),
        dropout(m.dropout > 0) {}

  double head_size() const { return query / heads; }
  /// Elements of attention's scores, (samples, heads, seq, seq).
  double scores() const { return samples * heads * seq * seq; }
  /// Bytes of a norm's statistics, f32: mean (not for RMSNorm) and 1 / deviation of each token.
  double statistics() const { return tokens * (rms ? 4 : 8); }
};

}  // namespace rehearse::model
