// The engine's model of a Transformer: an ordered list of segments (embedding, attention i, mlp i,
// head). A segment is the unit of execution. It ends where tensor parallelism must synchronise. Its
// parameters form groups that are either split over the tensor-parallel ranks or whole on each of
// them. All counts are exact; models/ runs the same segments with LibTorch.
//
// Tensor parallelism (Megatron-LM, Shoeybi et al. 2019) has one form for all segments: the input is
// a copy on each tp rank, the output a partial sum over tp.
//
//   copy of x -> column-parallel product -> row-parallel product -> partial sum -> all-reduce -> x
//
// Only tensor rank 0 adds the residual, the biases of row-parallel products and the positions.
// Dropout commutes with the sum because it is linear for a fixed mask. So forward needs one
// all-reduce per segment, and backward too. The gradients of groups that are not split are partial
// sums over tp.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/units.h"
#include "engine/program/program.h"
#include "engine/software/software.h"

namespace rehearse::model {

enum class Family : std::uint8_t { gpt, bert, llama };
enum class SegmentKind : std::uint8_t { embedding, attention, mlp, head };
constexpr auto spellings(SegmentKind) {
  return std::to_array<const char*>({"embedding", "attention", "mlp", "head"});
}
enum class Init : std::uint8_t { normal, zeros, ones };
/// LLaMA's feed-forward layer multiplies one product by a function of the other (Shazeer 2020):
/// silu, or GELU with tanh (Gemma).
enum class Activation : std::uint8_t { swiglu, geglu };
constexpr auto spellings(Activation) { return std::to_array<const char*>({"swiglu", "geglu"}); }

struct TensorSpec {
  std::string name = {};  // Hugging Face's name, so checkpoints need no table of names
  std::vector<std::int64_t> shape =
      {};  // (3, heads, head_dim, hidden) for a fused qkv weight, so `split` is one dimension
  int split = -1;      // dimension sharded over tp; -1: whole on each rank
  bool decay = false;  // whether weight decay applies (to matrices, not to biases or norms)
  Init init = Init::zeros;
  double std = 0;  // standard deviation of Init::normal
};

/// Tensors that are contiguous in flat storage, in this order. Either all are split over tp, or
/// none.
struct ParamGroup {
  std::string name = {};
  bool split = false;
  std::vector<TensorSpec> tensors = {};
};

struct Segment {
  std::string name = {};  // "embedding", "L3.attention", "L3.mlp", "head"
  SegmentKind kind = SegmentKind::embedding;
  int layer = -1;               // -1: embedding or head
  std::vector<Id> groups = {};  // the group of a tied embedding is in the embedding and in the head
};

/// How rotary positions are stretched to longer sequences than the model was trained on first, as
/// in transformers' modeling_rope_utils.py. A pair of a head turns positions x frequency / (2 pi)
/// times within the first sequences.
///
/// llama3 (Llama 3.1)          frequencies of fewer than `low` turns are divided by `factor`, those
///                             of more than `high` stay, and by turns the others lie between
/// yarn (Peng et al. 2023)     the same, but the others lie between by the number of the pair
/// linear                      all frequencies are divided by `factor`
/// longrope (Ding et al. 2024) each frequency is divided by its own number: of `longer` where
///                             seq_len is above `positions`, of `shorter` otherwise
///
/// yarn and longrope also multiply queries and keys by rope_attention (below).
struct RopeScaling {
  enum class Type : std::uint8_t { llama3, yarn, linear, longrope };
  Type type = Type::llama3;
  double factor = 1;  // 1: nothing is stretched, except by longrope
  double low = 1, high = 4;
  int positions = 8192;
  double attention = 0;                           // 0: what the type computes from the factor
  std::vector<double> shorter = {}, longer = {};  // of longrope: one number a pair of a head
  bool operator==(const RopeScaling&) const = default;
};
constexpr auto spellings(RopeScaling::Type) {
  return std::to_array<const char*>({"llama3", "yarn", "linear", "longrope"});
}

/// How tensor parallelism divides a segment: over `ranks`, and with `sequence` (sequence
/// parallelism) also what is computed for each token alone. An int is a number of ranks. Context
/// parallelism divides the tokens of each sample over `context` ranks (engine/model/context.h).
struct TensorSplit {
  TensorSplit(int ranks, bool sequence = false, int context = 1, bool heads = false)
      : ranks(ranks), sequence(sequence), context(context), heads(heads) {}
  /// How the outputs of norms get to backward. They are kept where sequence parallelism divides
  /// nothing, where a backward has two halves, and instead of computing them again in attention
  /// whose parts (`parted`) exchange tensors.
  software::Norms norms(const software::Software& software, bool parted = false) const;
  int ranks;
  bool sequence;
  int context;
  bool heads;  // these ranks exchange heads for tokens before and after attention (Ulysses)
  bool halves = false;  // a backward has two halves (zero bubble)
  bool fp8 = false;     // linear layers of blocks multiply in FP8 (engine/model/fp8.h)
  /// The same with this `fp8`.
  TensorSplit in_fp8(bool yes) const {
    TensorSplit out = *this;
    out.fp8 = yes;
    return out;
  }
};

struct ModelSpec {
  std::string name = {};
  Family family = Family::gpt;
  int layers = 0, hidden = 0, heads = 0, ffn = 0, vocab = 0, seq_len = 0;
  int max_positions = 0;  // rows of the position table
  int padded_vocab = 0;   // rows of the embedding: `vocab` rounded up so that shards are equal
  int kv_heads = 0;       // equals heads, except with grouped-query attention
  int head_dim = 0;       // elements of a head
  int outputs = 0;        // numbers per token that BERT's head computes (2: the span of an answer);
                          // 0: one for each word of the vocabulary. Others are only simulated
  int window = 0;         // how many tokens a token attends to, itself included; 0: all before it
  int global_every = 0;   // of so many layers, the last one has no window; 0: all layers have it
  double dropout = 0;     // probability
  double norm_epsilon = 0;        // added to a norm's variance; 0: the family's published value
  double rope_theta = 10'000;     // base of the rotary frequencies
  RopeScaling rope_scaling = {};  // of the rotary frequencies
  double local_rope_theta = 0;    // base in layers with a window, where nothing is scaled; 0: as in
                                  // all others
  bool tied = true;               // the head uses the embedding's table
  bool qkv_bias = false;          // llama: biases of query, key and value; others have all biases
  bool qk_norm = false;           // llama: an RMSNorm of the query and of the key of each head
  Activation activation = Activation::swiglu;  // llama's
  bool norm_offset = false;                    // llama: RMSNorms multiply by 1 + weight
  bool output_norm = false;       // llama: an RMSNorm of what attention and MLP add to the residual
  bool scaled_embedding = false;  // llama: the embedding is multiplied by the root of hidden
  double query_scalar = 0;        // llama: scores are divided by its root; 0: head_dim
  double attention_cap = 0;       // llama: scores s become cap tanh(s / cap); 0: no cap
  double logit_cap = 0;           // llama: the same of logits
  bool fused_weights = false;     // files of weights have query, key and value in one matrix, gate
                                  // and up in another (Phi 3)
  /// llama: a feed-forward layer is `experts` layers, each `ffn` wide, of which a router chooses
  /// `experts_per_token` for each token (Fedus et al. 2022). 0: one layer for all tokens.
  int experts = 0, experts_per_token = 0;
  /// What experts return is weighted by their probabilities, divided by the sum of those of the
  /// token's experts; false: not divided.
  bool norm_topk = true;
  /// Factor of the loss that balances experts (Fedus et al. 2022, equation 4).
  double router_aux_loss = 0;
  bool mixtral_names = false;  // files of weights have Mixtral's names of experts
  std::vector<ParamGroup> groups = {};
  std::vector<Segment> segments = {};
  software::Software software = {};  // what executes the segments
};

/// Fills groups and segments from the hyperparameters; 0 for kv_heads, head_dim, ffn,
/// max_positions, padded_vocab or norm_epsilon means the default. Throws InputError when the
/// hyperparameters do not fit together.
ModelSpec build_model(ModelSpec hyperparameters);
/// The published value: 1e-12 in BERT, 1e-5 in the others.
double default_epsilon(Family family);
/// By what rotary positions multiply queries and keys: `attention` of the scaling where it states
/// it, otherwise 0.1 ln(factor) + 1 (yarn), sqrt(1 + ln(factor) / ln(positions)) (longrope) or 1.
double rope_attention(const RopeScaling& scaling);
/// Elements of all heads of a token's query: heads x head_dim.
std::int64_t query_width(const ModelSpec& model);
/// Elements of a token's key, as many as of its value: kv_heads x head_dim.
std::int64_t key_width(const ModelSpec& model);
/// Feed-forward layers of a Transformer block that a token passes: 1, or `experts_per_token`.
int layers_per_token(const ModelSpec& model);
/// By what attention's scores are multiplied.
double score_scale(const ModelSpec& model);
/// Whether a token attends to `window` tokens in a layer.
bool has_window(const ModelSpec& model, int layer);
/// The most tokens that a token attends to in a layer. The first layer attends to the fewest.
int attention_span(const ModelSpec& model, int layer);
/// Columns of the logits of which one of `tp` tensor ranks computes the loss: its part of the
/// vocabulary, or all.
std::int64_t loss_columns(const ModelSpec& model, int tp);
/// Numbers in f32 that a tensor rank sends the others for the loss of a token: maximum, sum of
/// exponentials and the target's logit. With software::Logits::gathered also room for its logits,
/// `element` bytes each.
std::int64_t loss_numbers(const ModelSpec& model, int tp, std::int64_t element);
/// The greatest common divisor of all sizes that tensor parallelism splits: heads, key-value heads,
/// feed-forward width, padded vocabulary. tp must divide it. 1 with `output_norm`: such a norm
/// needs the sum over tp, and a segment returns a partial sum.
int tensor_divisor(const ModelSpec& model);
/// Segments of one shape have the same work and memory: those of a kind, but attention without the
/// window of other layers has a shape of its own.
constexpr std::size_t segment_shapes = spellings(SegmentKind{}).size() + 1;
std::size_t shape_of(const ModelSpec& model, Id segment);
/// Whether the software writes attention's scores to memory: its attention does, or has no kernel
/// that caps them.
bool writes_scores(const ModelSpec& model);
/// With `attention_cap`, how many of its tokens' queries a block of models/ has the scores of at a
/// time.
constexpr int capped_queries = 64;
/// Loads a spec by name (gpt2-124m: models/gpt2-124m.toml), by the path of a TOML file, or by that
/// of a Hugging Face config.json. seq_len 0 keeps the spec's own. Throws InputError.
ModelSpec load_model(const std::string& name_or_path, int seq_len);
std::vector<std::string> known_models();

/// Elements of the group on one of `tp` ranks. Throws InputError when tp does not divide a split
/// dimension.
std::int64_t elements_of(const ParamGroup& group, int tp);
/// Parameters of the whole model. Counts tied parameters once, and includes padding rows.
std::int64_t parameters_of(const ModelSpec& model);
/// Parameters of the experts that a token does not pass.
std::int64_t idle_parameters_of(const ModelSpec& model);

/// The cost of a pass over one micro-batch for one of `tp` ranks.
struct SegmentWork {
  Flops flops = {};    // of matrix products and of attention
  Bytes traffic = {};  // that memory-bound kernels read and write
  int kernels = 0;     // launches
};
/// The groups of a segment whose gradients a pass computes, in the segment's order. backward: all.
/// backward_weight: those that are split over tp, the matrices with their biases. backward_input:
/// the others, norms and biases of row-parallel products (and the transform of BERT's head), whose
/// gradients cost little beside that of the input.
std::vector<Id> gradients_of(const ModelSpec& model, Id segment, program::Pass pass);
SegmentWork work_of(const ModelSpec& model, Id segment, program::Pass pass, int samples,
                    TensorSplit split, program::DType dtype);
/// Bytes that forward keeps for backward on one of the ranks of `split`, without the input boundary
/// activation, which has its own storage. With the default software it equals what the LibTorch
/// blocks save. Where context parallelism divides the sequence, what attention's parts exchange
/// (engine/model/context.h) has storages of its own.
std::int64_t saved_bytes(const ModelSpec& model, Id segment, int samples, TensorSplit split,
                         program::DType dtype);
/// Model FLOPs of one training step over `tokens` tokens, for MFU: 6 N + 12 L h s per token (PaLM,
/// appendix B). N excludes tables that are only looked up, padding rows, and experts that a token
/// does not pass; L: layers, h: heads x head_dim, s: sequence length, at most the layer's window.
Flops model_flops(const ModelSpec& model, std::int64_t tokens);

}  // namespace rehearse::model
