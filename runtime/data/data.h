// Batches of training text (shards.h). A sample depends on (seed, step, index of the sample in the
// global batch) alone, not on the mesh, the micro-batches or the rank that asks; with
// `DataSettings::clients`, also on how that batch is divided. So every rank knows without
// communication how many labels the whole step has. Shapes: S samples, sequence length T = seq_len.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/data/shards.h"
#include "runtime/data/sources.h"

namespace rehearse::runtime {

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
  /// Who draws from its own inputs of data/prepare.py. Without samples: all draw from all text.
  Clients clients = {};
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

  /// The client that each data-parallel rank plays in a step, where they are drawn anew each round
  /// (sources.h); else nothing.
  std::vector<std::int64_t> drawn_clients(std::int64_t step) const;

  /// Number of labels in all samples of a step, at least 1. The step's loss is divided by it.
  std::int64_t training_labels(std::int64_t step) const;
  /// The same of samples [first, first + samples) of the global batch.
  std::int64_t training_labels(std::int64_t step, std::int64_t first, std::int64_t samples) const;
  std::int64_t validation_labels(std::int64_t first, std::int64_t samples) const;

  std::int64_t validation_windows() const;

  /// What tells the folder from others: SHA-256 of its tokenizer, empty where no manifest says
  /// it...
  const std::string& tokenizer() const { return tokenizer_; }
  /// ... and a hash of the names, lengths and, where the manifest has them, checksums of its shards
  /// for training.
  std::uint64_t shards_hash() const { return shards_hash_; }

 private:
  /// The sample of the whole sequence at a place of a step's batch.
  std::int64_t sample_at(std::int64_t step, std::int64_t place) const;
  void fill(const Shards& shards, std::int64_t window, std::uint64_t key, std::int64_t* tokens,
            std::int64_t* labels) const;
  std::int64_t labels_of(std::uint64_t key) const;

  DataSettings settings_;
  std::int64_t drawn_ = 0;  // samples of a step, with those that are left out
  Shards train_;
  std::optional<Sources> sources_ = {};  // none: all draw from all text
  std::unique_ptr<Shards> validation_;   // null: no validation shards
  std::int64_t mask_token_ = -1;
  std::string tokenizer_ = {};
  std::uint64_t shards_hash_ = 0;
};

}  // namespace rehearse::runtime
