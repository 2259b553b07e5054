// Training text: memory-mapped token shards in llm.c's format (github.com/karpathy/llm.c) and the
// batches made of them. A shard is 256 little-endian i32 (magic 20240520, version 1, number of
// tokens, rest unused), then u16 tokens. It is cut into windows that share one token (here seq_len
// is 4):
//
//   tokens  0 1 2 3 4 5 6 7 8 9 ...
//           |-------|                 window 0: inputs 0 to 3, next tokens 1 to 4
//                   |-------|         window 1: inputs 4 to 7, next tokens 5 to 8
//
// A sample depends on (seed, step, index of the sample in the global batch) alone, not on the mesh,
// the micro-batches or the rank that asks. So every rank knows without communication how many
// labels the whole step has. Shapes: S samples, sequence length T = seq_len.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace rehearse::runtime {

/// The token shards of one side (training or validation), as one sequence of windows. A window has
/// seq_len inputs and one token more, the label of its last position. It does not cross a shard's
/// end.
class Shards {
 public:
  /// Maps the files, in this order. Throws InputError that names the file when it is missing, no
  /// shard, of another version or truncated, or when all files together have no window.
  Shards(const std::vector<std::string>& files, int seq_len);
  Shards(Shards&&) noexcept;
  Shards& operator=(Shards&&) noexcept;
  ~Shards();

  std::int64_t windows() const { return windows_; }
  std::int64_t tokens() const { return tokens_; }
  /// The seq_len + 1 tokens of a window.
  std::span<const std::uint16_t> window(std::int64_t index) const;

 private:
  struct Mapping;
  std::vector<Mapping> mappings_;
  std::int64_t windows_ = 0, tokens_ = 0;
  int seq_len_ = 0;
};

/// What a language model predicts. causal: the next token at every position. masked: the tokens at
/// 15% of positions (BERT, Devlin et al. 2018), of which 80% are replaced by [MASK], 10% by a
/// random token and 10% kept.
enum class Objective : std::uint8_t { causal, masked };

struct DataSettings {
  std::string key = "train.data";  // of the job that names the folder, for messages
  std::string path = {};           // a folder with *train*.bin and *val*.bin
  Objective objective = Objective::causal;
  int seq_len = 0, global_batch = 0, vocab = 0;
  std::uint64_t seed = 0;
  /// Positions [begin, end) of samples that are drawn but that nobody trains: those of lost
  /// replicas. In order. `global_batch` does not count them.
  std::vector<std::pair<int, int>> left_out = {};
};

/// Label of a position without one; torch's cross_entropy ignores it too.
inline constexpr std::int64_t no_label = -100;

class Data {
 public:
  /// Throws InputError when the folder or its shards are missing, when a masked objective finds no
  /// manifest with a mask token, or when the data's vocabulary is larger than the model's.
  explicit Data(DataSettings settings);

  /// Writes samples [first, first + samples) of a step's global batch to `tokens` and `labels`,
  /// each (S, T). Throws InputError that names a token outside the vocabulary.
  void training(std::int64_t step, std::int64_t first, int samples, std::int64_t* tokens,
                std::int64_t* labels) const;
  /// The same for validation, from sample `first` of a fixed sequence that starts again when it is
  /// used up.
  void validation(std::int64_t first, int samples, std::int64_t* tokens,
                  std::int64_t* labels) const;

  /// Number of labels in all samples of a step, at least 1. The step's loss is divided by it.
  std::int64_t training_labels(std::int64_t step) const;
  /// The same of samples [first, first + samples) of the global batch.
  std::int64_t training_labels(std::int64_t step, std::int64_t first, std::int64_t samples) const;
  std::int64_t validation_labels(std::int64_t first, std::int64_t samples) const;

  std::int64_t validation_windows() const;

 private:
  /// The sample of the whole sequence at a place of a step's batch.
  std::int64_t sample_at(std::int64_t step, std::int64_t place) const;
  void fill(const Shards& shards, std::int64_t window, std::uint64_t key, std::int64_t* tokens,
            std::int64_t* labels) const;
  std::int64_t labels_of(std::uint64_t key) const;

  DataSettings settings_;
  std::int64_t drawn_ = 0;  // samples of a step, with those that are left out
  Shards train_;
  std::unique_ptr<Shards> validation_;  // null: no validation shards
  std::int64_t mask_token_ = -1;
};

/// The place of `index` in a permutation of [0, count) chosen by `key`: the order of an epoch
/// without a table. A Feistel network is applied again until the result is below `count`.
std::int64_t permute(std::int64_t index, std::int64_t count, std::uint64_t key);

/// A hash of both arguments, the same on every machine, used as counter-based random numbers (after
/// SplitMix64's finaliser, Steele et al. 2014).
std::uint64_t hash(std::uint64_t a, std::uint64_t b);

}  // namespace rehearse::runtime
