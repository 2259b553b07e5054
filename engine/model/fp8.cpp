#include "engine/model/fp8.h"

#include <algorithm>

namespace rehearse::model {
namespace {

struct Linear {
  double inner = 0, outer = 0;
};

std::vector<Linear> linear_layers(SegmentKind kind, const Sizes& z) {
  if (kind == SegmentKind::attention) return {{z.hidden, z.query + 2 * z.key}, {z.query, z.hidden}};
  if (kind == SegmentKind::mlp) return {{z.hidden, (z.rms ? 2 : 1) * z.ffn}, {z.ffn, z.hidden}};
  return {};
}

/// How many matrices a linear layer has: one for each expert.
double matrices(SegmentKind kind, const Sizes& z) {
  return kind == SegmentKind::mlp && z.experts > 0 ? z.experts : 1;
}

bool delayed(const ModelSpec& model) { return model.software.fp8 == software::Fp8::delayed; }

}  // namespace

bool multiplies_in_fp8(SegmentKind kind) {
  return kind == SegmentKind::attention || kind == SegmentKind::mlp;
}

std::vector<double> conversion(software::Fp8 scaling, double elements, double element, int copies) {
  const double convert = elements * (element + copies);
  if (scaling == software::Fp8::delayed) return {convert};
  return {elements * element, convert};
}

double kept_in_fp8(const ModelSpec& model, Id segment, const TensorSplit& split, const Sizes& z,
                   double norm) {
  const SegmentKind kind = model.segments[segment].kind;
  if (!delayed(model) || !multiplies_in_fp8(kind)) return 0;
  const double smaller = 1 - z.element;
  // The router reads the norm's output in 16 bits.
  if (kind == SegmentKind::mlp)
    return ((z.experts > 0 ? z.rows_read * z.hidden : norm) + z.routed * z.ffn) * smaller;
  // What ranks exchange for heads has storages of its own.
  if (split.context > 1 && split.heads) return norm * smaller;
  // Fused attention keeps its output for its own backward; the product keeps an 8-bit copy of it.
  return norm * smaller + z.query * (writes_scores(model) ? smaller : 1);
}

std::int64_t fp8_workspace(const ModelSpec& model, Id segment, program::Pass pass, int samples,
                           const TensorSplit& split) {
  const Sizes z(model, model.segments[segment].layer, samples, split, program::DType::bf16);
  const int copies = pass == program::Pass::backward ? 2 : 1;  // of the gradient
  const SegmentKind kind = model.segments[segment].kind;
  const bool grouped = model.software.experts == software::Experts::grouped;
  const double rows = z.tokens * (kind == SegmentKind::mlp && grouped ? z.routed : 1);
  double most = 0;
  for (const Linear& l : linear_layers(kind, z)) {
    const double input = rows * l.inner,
                 weight = l.inner * l.outer * (grouped ? matrices(kind, z) : 1);
    double bytes = is_backward(pass) ? copies * rows * l.outer : input;
    if (!delayed(model))
      bytes += !is_backward(pass) || pass == program::Pass::backward_input ? weight
               : pass == program::Pass::backward_weight                    ? input
                                                        : std::max(input, weight);
    most = std::max(most, bytes);
  }
  return static_cast<std::int64_t>(most);
}

std::int64_t fp8_weights(const ModelSpec& model, Id segment, const TensorSplit& split) {
  if (!delayed(model)) return 0;
  const Sizes z(model, model.segments[segment].layer, 1, split, program::DType::bf16);
  const SegmentKind kind = model.segments[segment].kind;
  double bytes = 0;
  for (const Linear& l : linear_layers(kind, z))
    bytes += 2 * l.inner * l.outer * matrices(kind, z);  // along each of its dimensions
  return static_cast<std::int64_t>(bytes);
}

}  // namespace rehearse::model
