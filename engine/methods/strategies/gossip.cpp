// D-PSGD (Lian et al., NeurIPS 2017): in each step, a rank averages its weights with those of its
// neighbours in a graph and steps from there by its own gradient, which it computes meanwhile at
// its weights from before:
//
//   x(t+1, i) = sum over j of W(i, j) x(t, j) - lr g(x(t, i))
//
// The n ranks stand in a circle, and `distances` says how far from a rank those are whose weights
// it gets. All have equal weight, W(i, j) = 1 / (1 + number of distances), so W is doubly
// stochastic. A rank sends its weights once for each distance, beside forward and backward.
//   ring         1 and n - 1 (Lian et al., section 5)
//   exponential  1, 2, 4, ... below n (Ying et al., NeurIPS 2021: static exponential graph)
//   random       `degree` distances, drawn once by `graph_seed` (Song et al., NeurIPS 2022:
//                D-EquiStatic); drawn anew until the graph connects all ranks
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <numeric>
#include <vector>

#include "engine/base/numbers/random.h"
#include "engine/methods/lowering/own_weights.h"
#include "engine/methods/strategy.h"

namespace rehearse::methods {
namespace {

/// So many distances of a rank's neighbours as an exponential graph of n ranks has.
int doublings(int n) { return n < 2 ? 0 : std::bit_width(static_cast<unsigned>(n - 1)); }

std::vector<int> random_distances(int n, int degree, int seed) {
  std::vector<int> all(static_cast<std::size_t>(n - 1));
  std::iota(all.begin(), all.end(), 1);
  for (std::uint64_t attempt = 0;; ++attempt) {
    for (std::size_t i = 0; i < static_cast<std::size_t>(degree); ++i) {
      const std::uint32_t draw =
          random_bits(random_key(static_cast<std::uint64_t>(seed), Draw::graph, attempt, i), 0);
      std::swap(all[i], all[i + draw % (all.size() - i)]);
    }
    std::vector<int> drawn(all.begin(), all.begin() + degree);
    if (std::accumulate(drawn.begin(), drawn.end(), n, std::gcd<int, int>) != 1) continue;
    std::ranges::sort(drawn);
    return drawn;
  }
}

/// How many places before a rank its neighbours are. `plan` is prepared.
std::vector<int> distances(const plan::Plan& plan) {
  const int n = plan.mesh.dp;
  const plan::Averaging& how = plan.exchange.averaging;
  if (n < 2) return {};
  switch (*how.graph) {
    case plan::Graph::ring:
      return n == 2 ? std::vector{1} : std::vector{1, n - 1};
    case plan::Graph::exponential: {
      std::vector<int> out;
      for (int k = 0; k < doublings(n); ++k) out.push_back(1 << k);
      return out;
    }
    case plan::Graph::random:
      break;
  }
  return random_distances(n, *how.degree, *how.graph_seed);
}

class Gossip final : public OwnWeights {
 public:
  void declare(Stage& stage, Bucket& b) const override {
    OwnWeights::declare(stage, b);
    if (const std::vector<int> from = distances(stage.plan()); !from.empty())
      b.views.neighbours = stage.role().storage({.name = "neighbours." + b.name,
                                                 .life = program::Life::buffer,
                                                 .elements = b.elements,
                                                 .indices = static_cast<int>(from.size())});
  }

  /// Sends a bucket's weights before the first pass that reads them.
  void before_use(Stage& stage, const Bucket& b, program::Pass, int, int shift) const override {
    if (!stage.dp() || !stage.once("rotate " + b.name)) return;
    int index = 0;
    for (const int distance : distances(stage.plan())) {
      program::Collective rotate = stage.collective(
          channel(stage.program(), "gossip", {.axes = stage.dp()}), program::Move::rotate);
      rotate.distance = distance;
      stage.role().op("gossip", rotate,
                      {weights(stage, b, program::Slot::source, program::Mode::read, 1),
                       ref(b.views.neighbours, program::Slot::target, program::Mode::write, index++,
                           0, stage.weights_layout())},
                      shift);
    }
  }

  void finish(Stage& stage, int shift) const override {
    const int neighbours = static_cast<int>(distances(stage.plan()).size());
    for (const Bucket& b : stage.buckets()) {
      std::vector<program::Ref> refs{
          weights(stage, b, program::Slot::target, program::Mode::add, 1)};
      for (int index = 0; index < neighbours; ++index)
        refs.push_back(ref(b.views.neighbours, program::Slot::source, program::Mode::read, index, 0,
                           stage.weights_layout()));
      if (neighbours > 0)
        kernel(stage, {.kind = program::KernelKind::mix, .scale = 1.0 / (1 + neighbours)},
               std::move(refs), shift);
      update(stage, b, shift, neighbours > 0 ? stage.optimizer().updated(b) : none);
    }
  }
};

void check_graph(const plan::Plan& plan) {
  const plan::Averaging& how = plan.exchange.averaging;
  const int n = plan.mesh.dp;
  if (*how.graph != plan::Graph::random) {
    for (const auto& [key, value] :
         {std::pair("degree", how.degree), {"graph_seed", how.graph_seed}})
      if (value)
        refuse(key, std::to_string(*value),
               "only a random graph has it; leave it out, or use graph random");
    return;
  }
  if (n > 1 && *how.degree >= n)
    refuse("degree", std::to_string(*how.degree),
           fmt::format("a rank has at most as many neighbours as there are others; nearest: {}",
                       n - 1));
}

const Register d_psgd(
    "d-psgd",
    {.summary = "each rank averages its weights with its neighbours' in a graph",
     .source = "Lian et al., NeurIPS 2017",
     .combines =
         {.tp = true, .clip = false, .low_precision = false, .offload = false, .graph = true},
     .defaults =
         [](plan::Plan& plan) {
           plan::Averaging& how = plan.exchange.averaging;
           if (!how.graph) how.graph = plan::Graph::ring;
           if (*how.graph != plan::Graph::random) return;
           if (!how.degree) how.degree = std::max(1, doublings(plan.mesh.dp));
           if (!how.graph_seed) how.graph_seed = 1;
         },
     .check = [](const plan::Plan& plan, const model::ModelSpec&) { check_graph(plan); },
     .sync = [](const plan::Plan&) -> const GradientSync& {
       static const Gossip sync;
       return sync;
     }});

}  // namespace
}  // namespace rehearse::methods
