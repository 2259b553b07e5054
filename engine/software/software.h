// The software that executes a model: which kernels a pass of a segment launches, how long the host
// takes to issue them, and when the host waits for the device. A model and a cluster say what is to
// be done and on what; the software says how well. Files: software/*.toml, docs/software.md.
//
// The default, "rehearse", is what `rehearse train` does. The others describe programs whose step
// times were published, so that predictions can be compared with them.
#pragma once
#include <array>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "engine/base/files/config.h"
#include "engine/base/units.h"
#include "engine/software/library.h"

namespace rehearse::software {

/// fused: one kernel computes attention and keeps the (seq, seq) scores on the chip
/// (FlashAttention). written: scores, softmax and dropout are tensors in memory. flash: as fused,
/// and priced by what FlashAttention 2 computes: no masked pairs, five products in backward.
enum class Attention : std::uint8_t { fused, written, flash };
constexpr auto spellings(Attention) {
  return std::to_array<const char*>({"fused", "written", "flash"});
}

/// RMSNorm, rotary positions, SwiGLU and the repetition of shared keys and values. fused: a kernel
/// each. separate: a kernel for each operator, norms and rotations in f32 between two conversions.
enum class Operators : std::uint8_t { fused, separate };
constexpr auto spellings(Operators) { return std::to_array<const char*>({"fused", "separate"}); }

/// Between the two products of written attention. fused: one kernel scales, masks and normalises.
/// separate: a kernel for each of the three.
enum class Softmax : std::uint8_t { fused, separate };
constexpr auto spellings(Softmax) { return std::to_array<const char*>({"fused", "separate"}); }

/// Caps of scores and logits (Gemma 2). fused: part of the kernels of fused attention and of the
/// loss. separate: a kernel each for quotient, tanh and product, which needs the scores in memory.
enum class SoftCaps : std::uint8_t { fused, separate };
constexpr auto spellings(SoftCaps) { return std::to_array<const char*>({"fused", "separate"}); }

/// How a product gets its bias. epilogue: in the product's kernel. kernel: a kernel fills the
/// result with the bias, and the product adds to it.
enum class Bias : std::uint8_t { epilogue, kernel };
constexpr auto spellings(Bias) { return std::to_array<const char*>({"epilogue", "kernel"}); }

/// How dropout and the residual are added to the result of attention and MLP. accumulated: a kernel
/// copies residual and bias into the result, the product adds to it, and a kernel applies dropout
/// if there is any. fused: one kernel for bias, dropout and sum. separate: one kernel for dropout,
/// one for the sum.
enum class Residual : std::uint8_t { accumulated, fused, separate };
constexpr auto spellings(Residual) {
  return std::to_array<const char*>({"accumulated", "fused", "separate"});
}

/// The loss over the logits. fused: in the model's type, exponentials overwrite the logits.
/// library: logits become f32, then PyTorch's log-softmax. unconverted: the same in the model's
/// type. separate: logits become f32, then one kernel for each of maximum, difference, exponential,
/// sum and quotient (Megatron-LM).
enum class CrossEntropy : std::uint8_t { fused, library, unconverted, separate };
constexpr auto spellings(CrossEntropy) {
  return std::to_array<const char*>({"fused", "library", "unconverted", "separate"});
}

/// A layer of experts. looped: a kernel for each expert; backward gathers an expert's rows again.
/// modules: the same with modules and autograd, which keeps the rows that an expert reads and those
/// that it returns. grouped: one kernel for all experts (grouped GEMM), and the rows that experts
/// read are kept.
enum class Experts : std::uint8_t { looped, modules, grouped };
constexpr auto spellings(Experts) {
  return std::to_array<const char*>({"looped", "modules", "grouped"});
}

/// Where tensor ranks, each with a part of the vocabulary, compute the loss. divided: each over its
/// part; they exchange three numbers a token. gathered: each over the whole vocabulary, whose
/// logits it gathers (a column-parallel head of PyTorch whose output is replicated).
enum class Logits : std::uint8_t { divided, gathered };
constexpr auto spellings(Logits) { return std::to_array<const char*>({"divided", "gathered"}); }

/// How backward gets the outputs of norms under sequence parallelism. again: forward keeps none,
/// and backward computes them anew from the input, which it gathers again. divided: forward keeps
/// those of this rank's tokens, and backward gathers them again (Korthikanti et al. 2022,
/// section 4.2.2). kept: forward keeps them for all tokens, as autograd keeps the gathered input of
/// a product.
enum class Norms : std::uint8_t { again, divided, kept };
constexpr auto spellings(Norms) { return std::to_array<const char*>({"again", "divided", "kept"}); }

/// How tensor ranks gather a sequence that they divide. shared: once for all products that read it.
/// each: every column-parallel product gathers its input for itself, so the gradient of that input
/// is scattered once for each of them, and a kernel puts the parts of each such tensor in order
/// (PyTorch's DTensor, whose collectives work on the first dimension).
enum class Gathers : std::uint8_t { shared, each };
constexpr auto spellings(Gathers) { return std::to_array<const char*>({"shared", "each"}); }

/// How a product in FP8 gets its operands (engine/model/fp8.h). dynamic: every pass finds the
/// largest element of each operand, then converts it with that scale, weights too, and keeps the
/// 16-bit input for backward (torchao). delayed: scales are those of earlier steps, so one kernel
/// converts; weights are converted once a step, and forward keeps the 8-bit input (Transformer
/// Engine).
enum class Fp8 : std::uint8_t { dynamic, delayed };
constexpr auto spellings(Fp8) { return std::to_array<const char*>({"dynamic", "delayed"}); }

/// Where the host waits for the device before it issues the next op. loss: after the forward pass
/// of the head. transfers: after each receive of a pipeline. update: before the first update, for
/// what that update needs (a norm that decides whether to skip it).
enum class HostWait : std::uint8_t { loss, transfers, update };
constexpr auto spellings(HostWait) {
  return std::to_array<const char*>({"loss", "transfers", "update"});
}

/// The jobs whose measured step times this software predicts well (docs/accuracy.md). Predictions
/// of other jobs are marked uncalibrated. 0 ranks: nothing was measured.
struct Measured {
  std::int64_t least_hidden = 0, most_hidden = 0;  // of the model
  std::int64_t least_tokens = 0, most_tokens = 0;  // of a micro-batch
  std::int64_t most_ranks = 0;
  std::vector<std::string> methods = {}, precisions = {};  // as jobs spell them; empty: all
  /// Kinds of device. "A100" is also every kind whose name begins with this word. Empty: all.
  std::vector<std::string> devices = {};

  /// What it is asked about.
  struct Job {
    std::int64_t hidden = 0;
    double tokens = 0;  // of a micro-batch
    std::int64_t ranks = 0;
    std::string method = {}, precision = {};
    std::set<std::string> devices = {};  // kinds
  };

  bool operator==(const Measured&) const = default;
  /// Why such a job is outside; empty: it is inside.
  std::string outside(const Job& job) const;
};

struct Software {
  std::string name = "rehearse", summary = {}, source = {};

  Attention attention = Attention::fused;
  double attention_rate = 1;  // flash: its rate, as a multiple of the flash_efficiency of a device
  Operators operators = Operators::fused;
  double reductions = 1;  // sums over all tokens (gradients of biases and of norms' weights): part
                          // of the rate of other memory-bound kernels that they reach
  Softmax softmax = Softmax::fused;
  int softmax_multiple = 1;  // fused only if (samples x heads on the rank) is a multiple of it
  bool softmax_f32 = false;  // separate kernels compute in f32 and convert before and after
  SoftCaps soft_caps = SoftCaps::fused;
  int head_copies = 0;  // copies of (tokens, heads x head size) around written attention: one
                        // after it, the others before it
  int qkv_forward = 1, qkv_backward = 3;  // products for query, key and value together
  Bias bias = Bias::epilogue;
  bool bias_activation = false;  // one kernel adds the MLP's bias and applies GELU
  bool autocast = false;         // torch.autocast: weights and residual stream are f32, and passes
                                 // convert what products read
  Residual residual = Residual::accumulated;
  bool recompute_scores = false;  // backward of written attention computes scores and softmax anew
  bool divides_tokens = false;    // with sequence parallelism, a rank computes norms, dropout and
                                  // sums for its part of the tokens alone
  bool keeps_masks = false;       // stores dropout's masks for backward, a byte per element
  Norms norms = Norms::again;
  CrossEntropy cross_entropy = CrossEntropy::fused;
  Experts experts = Experts::looped;
  bool tf32 = false;        // products of f32 tensors use TF32 where the device has it
  Fp8 fp8 = Fp8::dynamic;   // with method.precision fp8
  double update_bytes = 0;  // bytes that an update moves per parameter, beyond its operands
  Library library = {};     // of communication
  Gathers gathers = Gathers::shared;
  Logits logits = Logits::divided;

  /// Host: seconds to issue one kernel. 0: issuing costs nothing and the host never delays the
  /// device.
  Seconds forward_issue = {}, backward_issue = {};
  Seconds microbatch = {};      // further host work of a micro-batch, at its first forward pass
  Seconds update = {};          // further host work of a step, at its first update
  Seconds transfer = {};        // further host work of each send and each receive of a pipeline
  BytesPerSecond staging = {};  // of a rank that copies its state to the host's memory for a
                                // checkpoint; 0: as fast as the link to the host
  std::vector<HostWait> waits = {};

  Measured measured = {};  // no key of jobs: what is true of the file is true of the file alone

  bool operator==(const Software&) const = default;
  bool waits_for(HostWait what) const;
  /// Whether the host takes any time.
  bool busy_host() const;
};

/// Loads a software by name (megatron-2021: software/megatron-2021.toml) or by the path of a TOML
/// file. Throws InputError.
Software load_software(const std::string& name_or_path);
std::vector<std::string> known_software();
/// Reads the keys of a software file from `table`; absent keys keep what `base` says.
Software read_software(const Config& table, Software base);
/// The section [software] of a job: `name`, and keys that change what it says. Throws InputError.
Software read_section(const Config& section);
/// A hash of everything that changes a time or a size; not of name, summary and source.
std::uint64_t hash_of(const Software& software);
/// Every key of a software file, for tests of docs/software.md.
std::vector<Config::Key> software_keys();

}  // namespace rehearse::software
