// Compares three ways to compute large fp32 matrix products with the shapes of a GPT-2 block: MKL
// and oneDNN, from which the blocks choose (models/large_products.h), and oneDNN's registered
// operator for linear layers. That operator refuses no processor, but the blocks do not use it: it
// returns a new tensor and copies transposed operands. The three take turns. A ratio belongs to one
// round; the median of the ratios is printed with the least and the largest.
// ONEDNN_MAX_CPU_ISA=AVX2 limits oneDNN's instructions; MKL uses all that it finds. Argument:
// rounds.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <functional>

#include "bench/figure.h"
#include "models/large_products.h"
#include "models/layers.h"

namespace rehearse::bench {
namespace {

/// CPU seconds of this thread. Wall-clock time would include waiting on a busy machine.
double seconds(const std::function<void()>& work) {
  const auto now = [] {
    timespec time = {};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return double(time.tv_sec) + 1e-9 * double(time.tv_nsec);
  };
  const double begin = now();
  work();
  return now() - begin;
}

/// The product of a (rows, in) and b (in, out) by mkldnn::_linear_pointwise, which takes b.t(), a
/// weight of shape (out, in).
void by_operator(const at::Tensor& a, const at::Tensor& b) {
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("mkldnn::_linear_pointwise", "");
  torch::jit::Stack stack{a,
                          b.t(),
                          c10::IValue(),
                          std::string("none"),
                          c10::List<std::optional<at::Scalar>>(),
                          c10::IValue()};
  op.callBoxed(stack);
}

struct Times {
  std::vector<double> values = {};
  double best() const { return *std::ranges::min_element(values); }
};

/// "1.12 [1.01, 1.20]": the time of `plain` by the time of `other`, as median and range of the
/// rounds; "refused" if `other` has no times.
std::string gain(const Times& plain, const Times& other) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < other.values.size(); ++i)
    ratios.push_back(plain.values[i] / other.values[i]);
  if (ratios.empty()) return "refused";
  std::ranges::sort(ratios);
  return fmt::format("{:.2f} [{:.2f}, {:.2f}]", ratios[ratios.size() / 2], ratios.front(),
                     ratios.back());
}

void compare(const std::string& what, const at::Tensor& a, const at::Tensor& b, int rounds) {
  const at::Tensor out = at::empty({a.size(0), b.size(1)});
  const double gigaflop = 2e-9 * double(a.numel()) * double(b.size(1));
  Times plain, one_dnn, op;
  bool refused = false;
  const auto try_one_dnn = [&] {
    try {
      models::one_dnn_product_into(out, a, b, false);
    } catch (const std::exception&) {
      refused = true;
    }
  };
  models::plain_product_into(out, a, b, false);
  try_one_dnn();
  by_operator(a, b);
  for (int i = 0; i < rounds; ++i) {
    plain.values.push_back(seconds([&] { models::plain_product_into(out, a, b, false); }));
    if (!refused) one_dnn.values.push_back(seconds(try_one_dnn));
    op.values.push_back(seconds([&] { by_operator(a, b); }));
  }
  fmt::print("{:<26} {:>6.0f}   {:<20} {:<20}\n", what, gigaflop / plain.best(),
             gain(plain, one_dnn), gain(plain, op));
  std::fflush(stdout);
  if (refused) return;
  record({.name = "product " + what,
          .measured = gigaflop / one_dnn.best(),
          .unit = "GFLOP/s",
          .against = "MKL",
          .reference = gigaflop / plain.best(),
          .more_is_better = true});
}

}  // namespace
}  // namespace rehearse::bench

int main(int argc, char** argv) {
  using namespace rehearse;
  using namespace rehearse::bench;
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 15;
  at::set_num_threads(1);
  at::manual_seed(1);
  fmt::print("LibTorch's vector instructions: {}. {}: {}.\n", models::vector_instructions(),
             models::large_products().one_dnn ? "Large products by oneDNN"
                                              : "All products by LibTorch's own",
             models::large_products().why);
  fmt::print("{:<26} {:>6}   {:<20} {:<20}\n", "weight, 256 rows", "MKL", "oneDNN / MKL",
             "operator / MKL");
  for (const auto& [in, out] : {std::pair<std::int64_t, std::int64_t>{768, 768},
                                {768, 2304},
                                {768, 3072},
                                {3072, 768},
                                {768, 50304}}) {
    const at::Tensor x = at::randn({256, in}), weight = at::randn({out, in});
    const at::Tensor grad = at::randn({256, out});
    const int some = out > 10'000 ? (rounds + 2) / 3 : rounds;
    const std::string name = fmt::format("{} x {}", in, out);
    compare(name + " forward", x, weight.t(), some);
    compare(name + " of the input", grad, weight, some);
    compare(name + " of the weight", grad.t(), x, some);
  }
}
