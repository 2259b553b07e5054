// Measures error feedback with the selection of 10% of 25 million gradient entries on one core.
// Exact top-k and a warm threshold are compared with one pass that reads gradient and residual and
// writes the residual. Exact top-k is also compared with the same step by at::topk. And codes of
// the same gradient, made and read, are compared with the same pass. All of them run in each round,
// so that other load on the machine slows all of them; the result is the median of the rounds'
// ratios.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "bench/figure.h"
#include "engine/program/packets.h"
#include "runtime/kernels/quantise.h"
#include "runtime/kernels/sparsify.h"

namespace {

using namespace rehearse;

constexpr std::int64_t n = 25'000'000, keep = n / 10;

class Contest {
 public:
  Contest() : gradients_(3), residual_(n), packet_(std::size_t(packet_room(threshold_kernel))) {
    at::set_num_threads(1);
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (auto& gradient : gradients_) {
      gradient.resize(n);
      for (float& g : gradient) g = normal(random);
    }
  }

  /// One pass over memory: reads gradient and residual, writes the residual.
  void one_pass() {
    const float* g = gradient();
    float* e = residual_.data();
    for (std::int64_t i = 0; i < n; ++i) e[i] += g[i];
  }
  void exact() {
    select(exact_kernel, {.step = step_}, gradient(), program::DType::f32, residual_.data(),
           nullptr, packet_.data(), scratch_);
  }
  void threshold() {
    kept_ = select(threshold_kernel, {.step = step_}, gradient(), program::DType::f32,
                   residual_.data(), state_.data(), packet_.data(), scratch_);
  }
  void by_topk() {
    const at::Tensor e = at::from_blob(residual_.data(), {n}, at::kFloat);
    e.add_(at::from_blob(gradient(), {n}, at::kFloat));
    const auto [magnitude, index] = at::topk(e.abs(), keep, -1, true, false);
    benchmark::DoNotOptimize(e.index_select(0, index));
    e.index_fill_(0, index, 0);
  }
  /// Makes one packet of the gradient.
  void quantise(const program::Kernel& kernel, bool feedback) {
    packet_.resize(std::max(packet_.size(), std::size_t(quantised_bytes(kernel))));
    runtime::quantise(kernel, random_key(1, Draw::quantise, std::uint64_t(step_), 0), gradient(),
                      program::DType::f32, 0, 1, feedback ? residual_.data() : nullptr,
                      packet_.data());
  }
  void dequantise(const program::Kernel& kernel) {
    runtime::dequantise(kernel, packet_.data(), 1, residual_.data());
  }
  double kept() const { return static_cast<double>(kept_) / keep; }
  void next() { ++step_; }

 private:
  float* gradient() {
    return gradients_[static_cast<std::size_t>(step_) % gradients_.size()].data();
  }

  static constexpr program::Kernel exact_kernel{.of = n, .keep = keep};
  static constexpr program::Kernel threshold_kernel{
      .of = n, .keep = keep, .selector = program::Selector::threshold};
  std::vector<std::vector<float>> gradients_;
  std::vector<float> residual_;
  std::vector<std::byte> packet_;
  std::vector<float> state_ = {0, 0};
  runtime::SelectScratch scratch_;
  std::int64_t step_ = 0, kept_ = 0;
};

double seconds_of(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void select_a_tenth(benchmark::State& state) {
  Contest contest;
  contest.threshold();  // warms the threshold and touches all memory
  contest.exact();
  std::vector<double> exact, warm, topk, faster, kept;
  for (auto _ : state) {
    contest.next();
    const double pass = seconds_of([&] { contest.one_pass(); });
    const double by_exact = seconds_of([&] { contest.exact(); });
    const double by_threshold = seconds_of([&] { contest.threshold(); });
    const double by_topk = seconds_of([&] { contest.by_topk(); });
    exact.push_back(by_exact / pass);
    warm.push_back(by_threshold / pass);
    topk.push_back(by_topk / by_exact);
    kept.push_back(contest.kept());
  }
  state.counters["exact/pass"] = median(exact);
  state.counters["threshold/pass"] = median(warm);
  state.counters["topk/exact"] = median(topk);
  state.counters["kept/wanted"] = median(kept);
  const std::string what = "selecting 10% of 25 M entries, ";
  bench::record({what + "exact", median(exact), "passes", "goal", 4});
  bench::record({what + "warm threshold", median(warm), "passes", "goal", 2});
  bench::record({what + "by at::topk", median(topk), "exact selections", "goal", 10, true});
}
BENCHMARK(select_a_tenth)->Iterations(9)->Unit(benchmark::kMillisecond);

void make_codes(benchmark::State& state) {
  struct Way {
    const char* name;
    program::Kernel kernel;
    bool feedback;
    std::vector<double> making = {}, reading = {};
  };
  const auto kernel = [](program::Compressor compressor, int bits, std::int64_t block) {
    return program::Kernel{.kind = program::KernelKind::quantise,
                           .of = n,
                           .keep = n,
                           .compressor = compressor,
                           .bits = bits,
                           .block = block};
  };
  Way ways[] = {{"int8", kernel(program::Compressor::int8, 8, 256), true},
                {"qsgd of 8 bits", kernel(program::Compressor::stochastic, 8, 512), false},
                {"qsgd of 4 bits", kernel(program::Compressor::stochastic, 4, 512), false},
                {"qsgd of 2 bits", kernel(program::Compressor::stochastic, 2, 512), false},
                {"signs", kernel(program::Compressor::sign, 1, n), true}};
  Contest contest;
  for (const Way& way : ways) contest.quantise(way.kernel, way.feedback);  // touches all memory
  for (auto _ : state) {
    contest.next();
    const double pass = seconds_of([&] { contest.one_pass(); });
    for (Way& way : ways) {
      way.making.push_back(seconds_of([&] { contest.quantise(way.kernel, way.feedback); }) / pass);
      way.reading.push_back(seconds_of([&] { contest.dequantise(way.kernel); }) / pass);
    }
  }
  for (const Way& way : ways) {
    state.counters[std::string(way.name) + " made/pass"] = median(way.making);
    state.counters[std::string(way.name) + " read/pass"] = median(way.reading);
    const std::string of = std::string("codes of 25 M entries, ") + way.name;
    bench::record({of + ", making", median(way.making), "passes", "goal", 2});
    bench::record({of + ", reading", median(way.reading), "passes", "goal", 2});
  }
}
BENCHMARK(make_codes)->Iterations(9)->Unit(benchmark::kMillisecond);

}  // namespace

BENCHMARK_MAIN();
