// Counts of a segment: FLOPs, memory traffic and launches of a pass, bytes kept for backward, and
// the model's FLOPs of a step.
#include "engine/model/fp8.h"
#include "engine/model/launches.h"
#include "engine/model/model.h"
#include "engine/model/sizes.h"

namespace rehearse::model {

software::Norms TensorSplit::norms(const software::Software& software, bool parted) const {
  if (!sequence || halves) return software::Norms::kept;
  return parted && software.norms == software::Norms::again ? software::Norms::kept
                                                            : software.norms;
}

SegmentWork work_of(const ModelSpec& model, Id segment, program::Pass pass, int samples,
                    TensorSplit split, program::DType dtype) {
  SegmentWork work;
  for (const Launch& launch : launches_of(model, segment, pass, samples, split, dtype)) {
    work.kernels += 1;
    if (launch.kind == Launch::Kind::memory)
      work.traffic += Bytes(launch.bytes);
    else
      work.flops += Flops(launch.flops());
  }
  return work;
}

std::int64_t saved_bytes(const ModelSpec& model, Id segment, int samples, TensorSplit split,
                         program::DType dtype) {
  const Sizes z(model, model.segments[segment].layer, samples, split, dtype);
  const software::Software& how = model.software;
  // Per token: elements in the model's dtype, and bytes of what is always in f32 or a mask.
  double elements = 0, bytes = 0;
  const double statistics = z.statistics() / z.tokens;
  const double mask = z.dropout && how.keeps_masks ? z.hidden * z.own_tokens / z.tokens : 0;
  const bool attention = model.segments[segment].kind == SegmentKind::attention;
  const software::Norms norms = split.norms(how, attention && split.context > 1);
  const double norm = norms == software::Norms::kept      ? z.hidden
                      : norms == software::Norms::divided ? z.hidden / split.ranks
                                                          : 0;
  switch (model.segments[segment].kind) {
    case SegmentKind::embedding:
      bytes = mask;
      break;
    case SegmentKind::attention:  // norm's output, query, key, value, attention's output
      elements = norm + 2 * z.query + 2 * z.key;
      // What parts of attention send or receive is kept in storages of its own: key and value, and
      // where heads are exchanged for tokens also query and output.
      if (split.context > 1) elements -= 2 * z.key + (split.heads ? 2 * z.query : 0);
      if (z.qk_norm) elements += z.query + z.key;  // before their norms
      bytes = statistics + mask + z.head_statistics() / z.tokens;
      if (!writes_scores(model))
        bytes += 4 * z.heads;          // the log of the sum of exponentials of each head
      else if (!how.recompute_scores)  // softmax, dropout's result, its mask
        bytes += z.heads * z.seq * (z.kept_of_a_score(how) + (z.dropout ? z.element + 1 : 0));
      break;
    case SegmentKind::mlp:  // norm's output, the activation's input and output
      elements =
          norm + (z.rms ? 3 : 2) * z.routed * z.ffn + (z.rows_read + z.rows_returned) * z.hidden;
      bytes = statistics + mask + z.routing() / z.tokens;
      break;
    case SegmentKind::head:  // norm's output, and what the loss keeps of the logits
      elements = norm;
      bytes = statistics;
      if (how.cross_entropy == software::CrossEntropy::fused ||
          how.cross_entropy == software::CrossEntropy::unconverted)
        elements += z.loss_columns;  // the exponentials, which overwrite the logits; log-softmax
      else
        bytes += 4 * z.loss_columns;           // the softmax in f32
      if (z.caps_logits) elements += z.vocab;  // the tanh
      if (z.transform) {  // the transform: input and output of its GELU, output of its norm
        elements += 3 * z.hidden;
        bytes += statistics;
      }
      break;
  }
  if (z.output_norm && model.segments[segment].layer >= 0)
    elements += z.hidden, bytes += statistics;  // what the segment adds to the residual, unnormed
  if (split.fp8) bytes += kept_in_fp8(model, segment, split, z, norm);
  return static_cast<std::int64_t>(z.tokens * (elements * z.element + bytes));
}

Flops model_flops(const ModelSpec& model, std::int64_t tokens) {
  double parameters = 0;
  for (const ParamGroup& group : model.groups) {
    parameters += static_cast<double>(elements_of(group, 1));
  }
  parameters -= static_cast<double>(idle_parameters_of(model));
  // N excludes padding rows, and tables that are only looked up (no products).
  const double padding = model.padded_vocab - model.vocab;
  const bool words = model.outputs == 0;  // the head has a row for each word
  parameters -= padding * model.hidden * (model.tied || !words ? 1 : 2);
  if (model.family == Family::bert && words) parameters -= padding;
  if (!model.tied) parameters -= double(model.vocab) * model.hidden;
  if (model.family != Family::llama) parameters -= double(model.max_positions) * model.hidden;
  if (model.family == Family::bert) parameters -= 2.0 * model.hidden;
  double keys = 0;  // of all layers
  for (int layer = 0; layer < model.layers; ++layer) keys += attention_span(model, layer);
  const double attention = 12.0 * double(query_width(model)) * keys;
  return Flops((6 * parameters + attention) * static_cast<double>(tokens));
}

}  // namespace rehearse::model
