// The division of training text by source, where each data-parallel rank reads the text of its own
// inputs (train.split = "source"): the clients of federated learning, whose texts differ.
//
//   inputs of data/prepare.py --by-input   a.txt   b.txt   c/   d.txt   e.txt
//   two clients                              0       1      0     1       0
//
// Inputs without training text do not count. Of a client's windows, each is drawn once an epoch of
// that client, in an order of its own.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "runtime/data/shards.h"

namespace rehearse::runtime {

class Sources {
 public:
  /// `samples`: of each client in a global batch, in their order there. `files`: those of `shards`.
  /// `manifest`: says which input each shard is of. `where`: the key and the folder, for messages.
  /// Throws InputError when the manifest does not say that, when inputs are fewer than clients, or
  /// when a client's text is shorter than a sample.
  Sources(const std::vector<int>& samples, const std::vector<std::string>& files,
          const Shards& shards, const nlohmann::json& manifest, const std::string& where);

  /// The window of the sample at a place of a step's global batch. `order`: chooses the order.
  std::int64_t window(std::int64_t step, std::int64_t place, std::uint64_t order) const;

 private:
  struct Client {
    std::int64_t begin = 0, samples = 0;  // its places in a global batch
    std::int64_t windows = 0;
    std::vector<std::pair<std::int64_t, std::int64_t>> parts = {};  // first window, behind the last
  };
  std::vector<Client> clients_;
};

}  // namespace rehearse::runtime
