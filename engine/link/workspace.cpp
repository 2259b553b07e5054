#include "engine/link/workspace.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "engine/model/fp8.h"
#include "engine/model/tensor_split.h"
#include "engine/program/packets.h"

namespace rehearse::link {
namespace {

/// Elements of keys of which the kernel of grouped queries computes at a time, for each token: one
/// query head of each group. With capped scores all query heads are computed together.
std::int64_t keys_at_a_time(const model::ModelSpec& model, std::int64_t keys) {
  return model.kv_heads < model.heads && model.attention_cap == 0 ? keys : 0;
}

/// What capped attention holds of the queries of some tokens (models/capped_attention.cpp): their
/// scores in f32, also in the type of the activations; copies of these queries. Backward: three
/// tensors of scores, or two and a gradient of the keys; the gradients of results and a number for
/// each row of scores too; and it sums the gradients of keys and values in f32. `tokens`: of a
/// sample, with `query` and `key` elements.
std::int64_t capped_bytes(const model::ModelSpec& model, int samples, std::int64_t tokens,
                          std::int64_t query, std::int64_t key, std::int64_t element,
                          bool backward) {
  if (model.attention_cap == 0) return 0;
  const std::int64_t queries = std::min<std::int64_t>(model::capped_queries, tokens);
  const std::int64_t rows = queries * (query / model.head_dim), scores = rows * tokens;
  const std::int64_t converted = element < 4 ? scores * element : 0;
  if (!backward) return scores * 4 + converted + queries * query * element;
  return 4 * rows + 2 * queries * query * element + samples * tokens * 2 * key * (4 - element) +
         std::max(scores * 12 + converted, scores * 8 + converted + tokens * key * element);
}

/// What the loss holds of the logits for a token, beside what saved_bytes() counts. fused: nothing,
/// each step overwrites the one before. Forward of the others: the logits, unless they are in a
/// storage of their own because they were gathered, and what f32 takes. Backward: PyTorch makes the
/// gradients of the log-softmax's output and of its input; Megatron-LM overwrites the softmax and
/// converts it.
std::int64_t loss_bytes(const model::ModelSpec& model, int tp, std::int64_t element,
                        bool backward) {
  using software::CrossEntropy;
  const CrossEntropy form = model.software.cross_entropy;
  if (form == CrossEntropy::fused) return 0;
  const std::int64_t columns = loss_columns(model, tp);
  const std::int64_t converted = form != CrossEntropy::unconverted && element < 4 ? 4 : 0;
  const bool gathered = model.software.logits == software::Logits::gathered && tp > 1;
  if (!backward) return columns * ((gathered ? 0 : element) + converted);
  if (form == CrossEntropy::separate) return columns * (converted > 0 ? element : 0);
  return 2 * columns * (converted > 0 ? converted : element);
}

/// Workspace bytes of a part of attention over a divided sequence, `element` bytes an activation.
std::int64_t part_bytes(const model::ModelSpec& model, const program::Compute& compute,
                        model::TensorSplit split, std::int64_t element) {
  const std::int64_t tokens = std::int64_t{compute.samples} * model.seq_len / split.context;
  const std::int64_t query = query_width(model) / split.ranks;
  const std::int64_t key = key_width(model) / split.ranks;
  const std::int64_t all = query + 2 * key;
  const std::int64_t masked = model.dropout > 0 ? tokens * model.hidden * element : 0;
  const bool packs = compute.block == none, backward = is_backward(compute.pass);
  switch (compute.part) {
    case program::Part::project: {
      // Heads in the order of ranks; a rotated gradient of the keys; what norms of heads return.
      const std::int64_t normed = model.qk_norm ? query + (backward ? 2 : 1) * key : 0;
      const std::int64_t columns = normed + (packs ? all : backward ? key : 0);
      return (backward ? masked : 0) + tokens * element * columns;
    }
    case program::Part::attend: {
      // Of grouped queries, the kernel computes as many at a time as there are key-value heads.
      const std::int64_t at_a_time = keys_at_a_time(model, key);
      const std::int64_t capped = capped_bytes(
          model, compute.samples, model.seq_len / split.context, query, key, element, backward);
      // The block's own result, in f32 while it is added to those of earlier blocks; heads in the
      // order of tokens.
      if (!backward)
        return capped + tokens * (element * (2 * query + (packs ? all : 0) + at_a_time) +
                                  (packs ? 0 : 4 * query + 16 * model.heads / split.ranks));
      return capped + tokens * element * (2 * all + 2 * query + (packs ? all : 0) + 4 * at_a_time);
    }
    case program::Part::output:
      return (backward ? masked : 0) + (packs ? tokens * element * query : 0);
    case program::Part::whole:
      break;
  }
  return 0;
}

/// Workspace bytes of an op.
std::int64_t of_op(const model::ModelSpec& model, model::TensorSplit split,
                   const program::Program& program, const program::Role& role,
                   const program::Op& op) {
  if (const auto* compute = std::get_if<program::Compute>(&op.work)) {
    const program::DType dtype = dtype_of(role, op);
    // Recomputation whose output is read writes it to its storage, as forward does.
    const program::Pass pass =
        compute->pass == program::Pass::recompute && find(op, program::Slot::output) != nullptr
            ? program::Pass::forward
            : compute->pass;
    // The gradient of a weight is computed in the type of the weight, then added to its storage;
    // the embedding converts the gradient of its output instead.
    const std::int64_t converted =
        converted_gradients(program, role, op).largest *
        (model.segments[compute->segment].kind == model::SegmentKind::embedding ? 0
                                                                                : size_of(dtype));
    return converted +
           (compute->part == program::Part::whole
                ? workspace_bytes(model, compute->segment, pass, compute->samples, split, dtype)
                : part_bytes(model, *compute, split, size_of(dtype))) +
           (split.fp8 && compute->part != program::Part::attend
                ? fp8_workspace(model, compute->segment, pass, compute->samples, split)
                : 0);
  }
  if (const auto* kernel = std::get_if<program::Kernel>(&op.work))
    return kernel->kind == program::KernelKind::select ||
                   (kernel->kind == program::KernelKind::scatter_add &&
                    kernel->coding == program::Coding::values)
               ? select_workspace(*kernel)
               : 0;
  // A result that is added to its target is received into a temporary first.
  if (std::holds_alternative<program::Collective>(op.work))
    if (const program::Ref* target = find(op, program::Slot::target);
        target != nullptr && target->mode == program::Mode::add)
      return bytes_of(program, role, *target);
  return 0;
}

/// Workspace of a pass over experts (models/experts.cpp): the order of rows by expert, and rows of
/// one expert at a time, as many as tokens if all choose it; grouped products hold those of all
/// experts. Forward holds what these rows return, backward its gradient and twice that of their
/// width.
std::int64_t expert_bytes(const model::ModelSpec& model, std::int64_t tokens, int tp,
                          std::int64_t element, program::Pass pass) {
  const std::int64_t routed = tokens * model.experts_per_token, order = 28 * routed;
  const bool grouped = model.software.experts == software::Experts::grouped;
  const std::int64_t rows = (grouped ? routed : tokens) * element;
  if (!is_backward(pass) || pass == program::Pass::backward_weight)
    return order + rows * model.hidden;
  return order + std::max(rows * (model.hidden + 2 * (model.ffn / tp)),
                          12 * tokens * model.experts + tokens * model.hidden * element);
}

}  // namespace

std::int64_t workspace_bytes(const model::ModelSpec& model, Id segment, program::Pass pass,
                             int samples, model::TensorSplit split, program::DType dtype) {
  const int tp = split.ranks;
  const std::int64_t element = size_of(dtype), seq_len = model.seq_len / split.context,
                     tokens = samples * seq_len;
  const std::int64_t activation = tokens * model.hidden * element;
  const model::SegmentKind kind = model.segments[segment].kind;
  // Recomputation also produces the segment's output, which is not read.
  const std::int64_t unread = pass != program::Pass::recompute   ? 0
                              : kind == model::SegmentKind::head ? 12 * tokens
                                                                 : activation;
  // Backward applies the dropout mask to a copy of the gradient.
  const std::int64_t masked = model.dropout > 0 ? activation : 0;
  const bool experts = kind == model::SegmentKind::mlp && model.experts > 0;
  if (pass == program::Pass::backward_weight && !experts)
    return kind == model::SegmentKind::head ? 0 : masked;
  // The first half of a backward frees nothing that forward has saved, so at its end the gradient
  // of the norm's output needs room beside that of the input.
  const bool half = pass == program::Pass::backward_input;
  const bool bert = model.family == model::Family::bert;
  const bool attention = kind == model::SegmentKind::attention;
  const bool again =
      split.norms(model.software, attention && split.context > 1) == software::Norms::again;
  // Forward holds a norm's output that it does not keep until its product, which is the head's
  // largest tensor; BERT adds it to the block's output at the end.
  const bool holds = again && !is_backward(pass) && bert != (kind == model::SegmentKind::head);
  const std::int64_t held = holds ? activation : 0;
  switch (kind) {
    case model::SegmentKind::embedding: {
      // With tp > 1: an index (i64) and a flag (1 byte) per token and, in backward, a copy of the
      // gradient with the tokens of other shards masked. Position gradients are summed in a
      // temporary.
      const std::int64_t rows = tp > 1 ? 9 * tokens : 0;
      if (!is_backward(pass)) return unread + rows;
      const std::int64_t positions =
          model.family == model::Family::llama ? 0 : seq_len * model.hidden * element;
      return std::max(positions, tp > 1 ? activation + rows : 0) + (bert ? 0 : masked);
    }
    case model::SegmentKind::attention: {
      const std::int64_t width = query_width(model) / tp, keys = key_width(model) / tp;
      // The kernel's backward copies their part of the output's gradient and makes three gradients.
      const std::int64_t at_a_time = keys_at_a_time(model, keys);
      // A window's mask, in the type of the activations; flags while it is made. Or what capped
      // attention holds.
      const std::int64_t scores = std::int64_t{model.seq_len} * model.seq_len;
      const bool masks = attention_span(model, model.segments[segment].layer) < model.seq_len;
      const std::int64_t kernel =
          model.attention_cap > 0
              ? capped_bytes(model, samples, seq_len, width, keys, element, is_backward(pass))
          : masks ? scores * (element + 3)
                  : 0;
      // What is alive before forward's output, or before the gradient of backward's input: in
      // backward, the gradients of attention's output, query, key and value.
      std::int64_t columns = is_backward(pass) ? 2 * (width + keys) + 4 * at_a_time : at_a_time;
      // Norms of heads: their gradient and a copy of their input, beside the three gradients.
      if (half && model.qk_norm) columns = std::max(columns, 3 * width + 2 * keys);
      const std::int64_t before = tokens * columns * element + kernel - activation;
      if (!is_backward(pass)) return held + std::max(unread, before + unread);
      // A norm's output that is computed again takes the place of attention's output, which is
      // freed.
      const std::int64_t norm = again ? activation - tokens * width * element : 0;
      return std::max<std::int64_t>(half ? activation + masked : norm + masked, before + masked);
    }
    case model::SegmentKind::mlp:
      if (experts)
        return expert_bytes(model, tokens, tp, element, pass) +
               (is_backward(pass) ? (again ? activation : 0) : held + unread);
      // The gradient of the activation function's output is made before that of the input.
      if (half)
        return std::max(activation, tokens * (model.ffn / tp) * element - activation) + masked;
      return held + unread;  // backward works in place
    case model::SegmentKind::head:
      return std::max(tokens * loss_bytes(model, tp, element, is_backward(pass)),
                      half ? activation : held + unread);
  }
  return 0;
}

namespace {

std::int64_t fp8_weights_of(const program::Role& role, const model::ModelSpec& model,
                            const model::TensorSplit& split) {
  std::set<Id> segments;
  for (const program::Op& op : role.ops)
    if (const auto* compute = std::get_if<program::Compute>(&op.work); compute && split.fp8)
      segments.insert(compute->segment);
  return std::accumulate(
      segments.begin(), segments.end(), std::int64_t{0},
      [&](std::int64_t sum, Id segment) { return sum + fp8_weights(model, segment, split); });
}

}  // namespace

LinkedProgram link(program::Program program, const model::ModelSpec& model) {
  const model::TensorSplit split = model::tensor_split(program);
  LinkedProgram linked = link(
      std::move(program), [&](const program::Program& p, const program::Role& role,
                              const program::Op& op) { return of_op(model, split, p, role, op); });
  for (Id r = 0; r < linked.program.roles.size(); ++r) {
    const program::Role& role = linked.program.roles[r];
    RoleMemory& memory = linked.memory[r];
    const auto add = [&](const char* name, Part part, std::int64_t bytes) {
      if (bytes == 0) return;
      memory.buffer += bytes;
      at(memory.parts, part) += bytes;
      const auto smaller = [&](const StorageUse& use) { return use.bytes < bytes; };
      memory.largest.insert(std::find_if(memory.largest.begin(), memory.largest.end(), smaller),
                            {name, bytes});
    };
    const std::vector<int> samples = samples_of(role);
    add("batch", Part::batch,
        std::accumulate(samples.begin(), samples.end(), std::int64_t{0}) *
            (model.seq_len / split.context) * bytes_per_token);
    add("8-bit weights", Part::weights, fp8_weights_of(role, model, split));
  }
  return linked;
}

std::vector<int> samples_of(const program::Role& role) {
  std::vector<int> samples;
  for (const program::Op& op : role.ops)
    if (const auto* compute = std::get_if<program::Compute>(&op.work)) {
      const auto microbatch = static_cast<std::size_t>(compute->microbatch);
      if (samples.size() <= microbatch) samples.resize(microbatch + 1);
      samples[microbatch] = compute->samples;
    }
  return samples;
}

}  // namespace rehearse::link
