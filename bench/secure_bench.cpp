// Bytes of masks that one core makes and adds in a second, and the same for making levels of
// numbers and numbers of levels: what engine/secure/group.h says where no profile does.
#include <benchmark/benchmark.h>

#include <vector>

#include "engine/secure/keys.h"
#include "engine/secure/ring.h"

namespace {

using namespace rehearse::secure;

constexpr int numbers = 1 << 24;  // more than a cache holds

void masks(benchmark::State& state) {
  std::vector<std::uint32_t> levels(numbers);
  const Key key = random_secret_number();
  for (auto _ : state) add_mask(levels, key, false);
  state.SetBytesProcessed(state.iterations() * numbers * 4);
}

void to_levels(benchmark::State& state) {
  const std::vector<float> values(numbers, 0.25F);
  for (auto _ : state) benchmark::DoNotOptimize(levels_of(values, 0.5, Ring{}).data());
  state.SetBytesProcessed(state.iterations() * numbers * 4);
}

void from_levels(benchmark::State& state) {
  const std::vector<std::uint32_t> sum(numbers, 1 << 21);
  for (auto _ : state) benchmark::DoNotOptimize(mean_of(sum, 3, 2.5, Ring{}).data());
  state.SetBytesProcessed(state.iterations() * numbers * 4);
}

BENCHMARK(masks);
BENCHMARK(to_levels);
BENCHMARK(from_levels);

}  // namespace

BENCHMARK_MAIN();
