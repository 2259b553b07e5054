// A Transformer as the engine sees it: an ordered list of segments (embedding, attention i, mlp i,
// head). A segment is the unit of execution and ends where tensor parallelism must synchronise; its
// parameters lie in groups that are either split over the tensor-parallel ranks or held whole by
// each. Every count here is exact; models/ runs the same segments with LibTorch.
//
// Tensor parallelism (Megatron-LM, Shoeybi et al. 2019), made uniform: a segment reads its input as
// a copy and produces its output as a partial sum over tp. The residual, biases of row-parallel
// products and positions are added by tensor rank 0 alone (dropout is linear once its mask is
// fixed, so it commutes with the sum), hence one all-reduce a segment in forward, and by the same
// argument one in backward, after which the gradients of groups that are not split are partial over
// tp.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/units.h"
#include "engine/program/program.h"

namespace rehearse::model {

enum class Family : std::uint8_t { gpt, bert, llama };  // llama: simulated only
enum class SegmentKind : std::uint8_t { embedding, attention, mlp, head };
constexpr auto spellings(SegmentKind) {
  return std::to_array<const char*>({"embedding", "attention", "mlp", "head"});
}
enum class Init : std::uint8_t { normal, zeros, ones };

struct TensorSpec {
  std::string name = {};  // Hugging Face's name, so that checkpoints need no table
  std::vector<std::int64_t> shape =
      {};  // [3, heads, head_dim, hidden] for a fused qkv weight, so that `split` is one dimension
  int split = -1;      // dimension sharded over tp; -1: whole on each rank
  bool decay = false;  // weight decay applies (matrices, not biases or norms)
  Init init = Init::zeros;
  double std = 0;  // of Init::normal
};

/// Tensors that lie together in flat storage, in order. All are split over tp, or none is.
struct ParamGroup {
  std::string name = {};
  bool split = false;
  std::vector<TensorSpec> tensors = {};
};

struct Segment {
  std::string name = {};  // "embedding", "L3.attention", "L3.mlp", "head"
  SegmentKind kind = SegmentKind::embedding;
  int layer = -1;
  std::vector<Id> groups = {};  // a tied embedding's group is in the embedding and in the head
};

struct ModelSpec {
  std::string name = {};
  Family family = Family::gpt;
  int layers = 0, hidden = 0, heads = 0, ffn = 0, vocab = 0, seq_len = 0;
  int max_positions = 0;  // rows of the position table
  int padded_vocab = 0;   // rows of the embedding: `vocab` rounded up so that shards are equal
  int kv_heads = 0;       // = heads but for grouped-query attention
  double dropout = 0;
  bool tied = true;
  std::vector<ParamGroup> groups = {};
  std::vector<Segment> segments = {};
};

/// Fill groups and segments from the hyperparameters above. Throws InputError when they do not fit
/// together.
ModelSpec build_model(ModelSpec hyperparameters);
/// What the size of every tensor group divides: heads, key-value heads, the feed-forward width and
/// the rows of the vocabulary are cut into equal parts.
int tensor_divisor(const ModelSpec& model);
/// A spec by name (models/gpt2-124m.toml), or a path to a TOML file. seq_len 0 keeps the spec's
/// own.
ModelSpec load_model(const std::string& name_or_path, int seq_len);
std::vector<std::string> known_models();

std::int64_t elements_of(const ParamGroup& group, int tp);
/// Parameters of the whole model, tied ones once, padding rows included.
std::int64_t parameters_of(const ModelSpec& model);

/// What a pass over one micro-batch costs one of `tp` ranks: floating-point work of its matrix
/// products (and of attention), bytes that its memory-bound kernels move, and how many kernels it
/// launches.
struct SegmentWork {
  Flops flops = {};
  Bytes traffic = {};
  int kernels = 0;
};
SegmentWork work_of(const ModelSpec& model, Id segment, program::Pass pass, int samples, int tp,
                    program::DType dtype);
/// Bytes that forward keeps for backward on one of `tp` ranks, the input boundary activation
/// excluded (it is a storage of its own). Exactly what the LibTorch blocks save.
std::int64_t saved_bytes(const ModelSpec& model, Id segment, int samples, int tp,
                         program::DType dtype);
/// Model FLOPs of one training step by the formula 6N + 12 L h s per token (N without embeddings'
/// look-up, PaLM appendix B).
Flops model_flops(const ModelSpec& model, std::int64_t tokens);

}  // namespace rehearse::model
