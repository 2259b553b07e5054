// The division of training text by source, where each data-parallel rank reads the text of its own
// inputs (train.split = "source"): the clients of federated learning, whose texts differ.
//
//   inputs of data/prepare.py --by-input   a.txt   b.txt   c/   d.txt   e.txt
//   two clients                              0       1      0     1       0
//
// Inputs without training text do not count. Of a client's windows, each is drawn once an epoch of
// that client, in an order of its own.
//
// With more clients than ranks (train.clients), the ranks play others in each round: as many as
// there are ranks, drawn without replacement (McMahan et al., AISTATS 2017, algorithm 1: a random
// set of max(C K, 1) clients). A client that is drawn begins with its first epoch, in a new order.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "runtime/data/shards.h"

namespace rehearse::runtime {

/// Who draws from its own inputs.
struct Clients {
  std::vector<int> samples = {};  // of each data-parallel rank in a global batch, in their order
  int count = 0;                  // of clients; 0: each rank is one
  std::int64_t round = 1;         // steps for which a rank plays the same client of `count`
};

class Sources {
 public:
  /// `files`: those of `shards`. `manifest`: says which input each shard is of. `where`: the key
  /// and the folder, for messages. `seed`: of the orders and draws. Throws InputError when the
  /// manifest does not say that, when inputs are fewer than clients, or when a client's text is
  /// shorter than a sample.
  Sources(const Clients& clients, const std::vector<std::string>& files, const Shards& shards,
          const nlohmann::json& manifest, const std::string& where, std::uint64_t seed);

  /// The window of the sample at a place of a step's global batch.
  std::int64_t window(std::int64_t step, std::int64_t place) const;
  /// The client that each rank plays in a step, if they are drawn; else nothing.
  std::vector<std::int64_t> drawn(std::int64_t step) const;

 private:
  struct Rank {
    std::int64_t begin = 0, samples = 0;  // its places in a global batch
  };
  struct Client {
    std::int64_t windows = 0;
    std::vector<std::pair<std::int64_t, std::int64_t>> parts = {};  // first window, behind the last
  };
  /// The client that a rank plays in a round of `drawn`.
  std::int64_t player(std::int64_t rank, std::int64_t round) const;

  std::vector<Rank> ranks_ = {};
  std::vector<Client> clients_ = {};
  bool drawn_;
  std::int64_t round_;
  std::uint64_t seed_;
};

}  // namespace rehearse::runtime
