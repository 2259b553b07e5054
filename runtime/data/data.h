// Training text: memory-mapped token shards in llm.c's format (github.com/karpathy/llm.c: 256
// little-endian i32, of which magic 20240520, version 1, token count; then u16 tokens), and the
// batches made of them. What a sample is depends on (seed, step, index of the sample in the global
// batch) and on nothing else: not on the mesh, micro-batching or which rank asks. So every rank
// also knows, without communication, how many labels the whole step has.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace rehearse::runtime {

/// The token shards of one side (training or validation), as one sequence of windows of `seq_len`
/// tokens; each window carries one token more, the label of its last position. A window does not
/// cross a shard's end.
class Shards {
 public:
  /// Files in this order. Throws InputError that names the file: missing, not a shard, another
  /// version, truncated, or too few tokens in all of them for one window.
  Shards(const std::vector<std::string>& files, int seq_len);
  Shards(Shards&&) noexcept;
  Shards& operator=(Shards&&) noexcept;
  ~Shards();

  std::int64_t windows() const { return windows_; }
  std::int64_t tokens() const { return tokens_; }
  /// seq_len + 1 tokens.
  std::span<const std::uint16_t> window(std::int64_t index) const;

 private:
  struct Mapping;
  std::vector<Mapping> mappings_;
  std::int64_t windows_ = 0, tokens_ = 0;
  int seq_len_ = 0;
};

/// What is asked of a language model: the next token at every position; or the tokens that were
/// hidden (BERT, Devlin et al. 2018: 15% of positions, of those 80% replaced by [MASK], 10% by a
/// random token, 10% left).
enum class Objective : std::uint8_t { causal, masked };

struct DataSettings {
  std::string path = {};  // a folder with *train*.bin and *val*.bin
  Objective objective = Objective::causal;
  int seq_len = 0, global_batch = 0, vocab = 0;
  std::uint64_t seed = 0;
};

/// Label of a position that has none (torch's cross_entropy ignores it too).
inline constexpr std::int64_t no_label = -100;

class Data {
 public:
  /// Throws InputError: folder or shards missing, no manifest with a mask token for a masked
  /// objective, vocabulary of the data larger than the model's.
  explicit Data(DataSettings settings);

  /// Samples [first, first + samples) of a step's global batch: `tokens` and `labels` are samples x
  /// seq_len. Throws InputError on a token outside the vocabulary, naming token and shard side.
  void training(std::int64_t step, std::int64_t first, int samples, std::int64_t* tokens,
                std::int64_t* labels) const;
  /// The same for validation: sample `first` of a fixed sequence, which repeats from its start when
  /// it is used up.
  void validation(std::int64_t first, int samples, std::int64_t* tokens,
                  std::int64_t* labels) const;

  /// Labels of all samples of a step (at least 1): what the step's loss is divided by.
  std::int64_t training_labels(std::int64_t step) const;
  std::int64_t validation_labels(std::int64_t first, std::int64_t samples) const;

  std::int64_t validation_windows() const;

 private:
  void fill(const Shards& shards, std::int64_t window, std::uint64_t key, std::int64_t* tokens,
            std::int64_t* labels) const;
  std::int64_t labels_of(std::uint64_t key) const;

  DataSettings settings_;
  Shards train_;
  std::unique_ptr<Shards> validation_;  // empty when there is none
  std::int64_t mask_token_ = -1;
};

/// The place of `index` in a permutation of [0, count) that `key` chooses (a Feistel network walked
/// until it falls inside): the order of an epoch without a table of it.
std::int64_t permute(std::int64_t index, std::int64_t count, std::uint64_t key);

/// A hash of its arguments with every bit used, the same on every machine: counter-based random
/// numbers (after SplitMix64's finaliser, Steele et al. 2014).
std::uint64_t hash(std::uint64_t a, std::uint64_t b);

}  // namespace rehearse::runtime
