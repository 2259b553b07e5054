// A small model for tests of launches, and what all launches of a pass add up to.
#pragma once
#include "engine/model/launches.h"

namespace rehearse::model {

using program::DType;
using program::Pass;
using software::Attention;

inline constexpr int seq = 512, hidden = 1024, heads = 16, samples = 2, vocab = 51200;
inline constexpr double tokens = double(samples) * seq,
                        scores = double(samples) * heads * seq * seq;
inline constexpr Id attention = 1, mlp = 2, head = 5;  // segments

inline ModelSpec gpt(double dropout = 0.1, const software::Software& how = {},
                     Family family = Family::gpt) {
  ModelSpec m{.name = "test",
              .family = family,
              .layers = 2,
              .hidden = hidden,
              .heads = heads,
              .vocab = vocab,
              .seq_len = seq,
              .padded_vocab = vocab};
  m.dropout = dropout;
  m = build_model(m);
  m.software = how;
  return m;
}
inline software::Software written() {
  software::Software how;
  how.attention = Attention::written;
  return how;
}

struct Total {
  double flops = 0, bytes = 0;
  int products = 0, kernels = 0;
};
inline Total total(const ModelSpec& m, Id segment, Pass pass, TensorSplit tp = 1,
                   DType dtype = DType::bf16, int batch = samples) {
  Total sum;
  for (const Launch& l : launches_of(m, segment, pass, batch, tp, dtype)) {
    sum.kernels += 1;
    sum.products += l.kind == Launch::Kind::product;
    if (l.kind == Launch::Kind::memory)
      sum.bytes += l.bytes;
    else
      sum.flops += l.flops();
  }
  return sum;
}

}  // namespace rehearse::model
