// Bytes on the wire of every reduction and coding, summed transfer by transfer, equal formulas that
// follow from the definitions. Also the memory for packets of a threshold select.
#include <gtest/gtest.h>

#include <cmath>

#include "engine/base/names.h"
#include "engine/link/link.h"
#include "engine/methods/strategy.h"
#include "engine/program/packets.h"
#include "tests/engine/rig.h"
#include "tests/engine/sent_bytes.h"

namespace rehearse::methods {
namespace {

std::int64_t packet(std::int64_t n, std::int64_t k, program::Coding coding) {
  switch (coding) {
    case program::Coding::index32:
      return 8 * k;
    case program::Coding::bitmap:
      return 4 * k + (n + 7) / 8;
    case program::Coding::delta16:
      return 6 * k + 4 * ((n + 65535) / 65536);
    case program::Coding::values:
      return 4 * k;
  }
  return 0;
}

/// [segment]: elements of its layer on one rank. Tied weights belong to the embedding.
std::vector<std::int64_t> layers_of(const model::ModelSpec& model) {
  std::vector<std::int64_t> out(model.segments.size());
  std::vector<bool> seen(model.groups.size());
  for (Id s = 0; s < model.segments.size(); ++s)
    for (const Id g : model.segments[s].groups) {
      if (!seen[g]) out[s] += elements_of(model.groups[g], 1);
      seen[g] = true;
    }
  return out;
}

/// [node]: how many ranks of one data-parallel group it has.
using Nodes = std::vector<std::int64_t>;

std::int64_t layer_bytes(const plan::LayerExchange& x, std::int64_t n, const Nodes& nodes, int zero,
                         std::int64_t width, std::int64_t header) {
  std::int64_t ranks = 0;
  for (const std::int64_t m : nodes) ranks += m;
  const auto k = static_cast<std::int64_t>(std::ceil(x.density * static_cast<double>(n) - 1e-9));
  const std::int64_t one = packet(n, k, x.coding) + header;
  const auto padded = zero > 0 ? (n + ranks - 1) / ranks * ranks : n;
  const std::int64_t weights = zero > 0 ? (ranks - 1) * padded * width : 0;
  switch (x.reduction) {
    case plan::Reduction::dense:
      return (zero > 0 ? 1 : 2) * (ranks - 1) * padded * width + weights;
    case plan::Reduction::sparse:
      return ranks * (ranks - 1) * one + weights;
    case plan::Reduction::two_level: {
      const auto leaders = static_cast<std::int64_t>(nodes.size());
      std::int64_t bytes = leaders * (leaders - 1) * one;
      for (const std::int64_t m : nodes) bytes += (m - 1) * (padded * width + leaders * one);
      return bytes + weights;
    }
  }
  return 0;
}

struct Case {
  Nodes nodes = {};
  std::vector<Id> node_of = {};
};

TEST(Packets, KeepAtLeastOneEntry) {
  EXPECT_EQ(program::entries_kept(10, 0.3), 3);
  EXPECT_EQ(program::entries_kept(1'000'000, 1e-12), 1);
  EXPECT_EQ(program::entries_kept(10, 0), 0);
  EXPECT_EQ(program::entries_kept(0, 0.5), 0);
}

TEST(SparseBytes, OfEveryReductionCodingAndSelectorAreTheFormulas) {
  const model::ModelSpec model = test::small_model(2);
  const auto elements = layers_of(model);
  for (const Case& c : {Case{{2, 1}, {0, 0, 1}}, Case{{2, 2}, {0, 0, 1, 1}},
                        Case{{4}, {5, 5, 5, 5}}, Case{{4, 2, 1}, {0, 0, 0, 0, 1, 1, 2}},
                        Case{{1, 1}, {3, 4}}, Case{{2, 1, 2}, {0, 1, 2, 0, 2}}})
    for (const plan::Reduction reduction :
         {plan::Reduction::dense, plan::Reduction::sparse, plan::Reduction::two_level})
      for (const program::Selector selector :
           {program::Selector::top_k, program::Selector::random_k, program::Selector::threshold})
        for (const program::Coding coding : program::codings_of(selector))
          for (const int zero : {0, 1, 2})
            for (const program::DType precision : {program::DType::f32, program::DType::bf16}) {
              const int dp = static_cast<int>(c.node_of.size());
              plan::Plan plan{
                  .method = "adaptive",
                  .mesh = {.dp = dp},
                  .schedule = {.global_batch = 2 * dp, .micro_batches = 2},
                  .exchange = {.sharding = {.zero = zero}, .sparse = {.selector = selector}},
                  .placement = {.node_of = c.node_of},
                  .precision = precision};
              for (std::size_t s = 0; s < elements.size(); ++s)
                plan.exchange.sparse.layers.push_back(
                    {0.05 * static_cast<double>(1 + s), reduction, coding});
              std::int64_t expected = 0;
              for (std::size_t s = 0; s < elements.size(); ++s)
                expected += layer_bytes(plan.exchange.sparse.layers[s], elements[s], c.nodes, zero,
                                        size_of(precision),
                                        selector == program::Selector::threshold ? 4 : 0);
              // Tied weights have a bucket of their own, and each bucket rounds up. So a packet may
              // have one entry and one partly filled byte more than the formula.
              const std::int64_t bytes = test::sent_bytes(link::link(compile(plan, model)));
              const std::int64_t slack = 200 * dp * dp;
              EXPECT_GE(bytes, expected - slack)
                  << name_of(reduction) << ' ' << name_of(coding) << " zero " << zero;
              EXPECT_LE(bytes, expected + slack)
                  << name_of(reduction) << ' ' << name_of(coding) << " zero " << zero;
            }
}

TEST(SparseBytes, AThresholdsPacketsHaveRoomForTwiceAsMany) {
  const model::ModelSpec model = test::small_model(1);
  plan::Plan plan{
      .method = "topk-sync",
      .mesh = {.dp = 4},
      .schedule = {.global_batch = 4},
      .exchange = {.bucket = Bytes(1e12), .sparse = {.selector = program::Selector::threshold}}};
  const program::Program program = compile(plan, model);
  const std::int64_t n = parameters_of(model), k = (n + 9) / 10;
  bool found = false;
  for (const program::Storage& s : program.roles[0].storages) {
    if (!s.name.starts_with("packets.")) continue;
    found = true;
    EXPECT_EQ(s.elements, 4 * (4 + 8 * 2 * k));
  }
  EXPECT_TRUE(found);
  // A simulation sends packets of the wanted number of entries.
  EXPECT_EQ(test::sent_bytes(link::link(program)), 4 * 3 * (4 + 8 * k));
}

}  // namespace
}  // namespace rehearse::methods
