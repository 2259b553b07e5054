// Fuzz target for shards of training tokens: opens a shard and reads its windows.
#include "runtime/data/shards.h"

#include "tests/fuzz/targets.h"

namespace rehearse::fuzz {

void shards(std::string_view input) {
  const std::string path = write_input(input, "train.bin");
  for (const int seq_len : {1, 7, 1024})
    accepts([&] {
      const runtime::Shards read({path, path}, seq_len);
      std::int64_t sum = 0;
      for (std::int64_t w = 0; w < std::min<std::int64_t>(read.windows(), 1000); ++w)
        for (const std::uint16_t token : read.window(w)) sum += token;
      if (read.windows() > 0)
        for (const std::uint16_t token : read.window(read.windows() - 1)) sum += token;
      expect(sum >= 0, "tokens are natural numbers");
    });
}

}  // namespace rehearse::fuzz
