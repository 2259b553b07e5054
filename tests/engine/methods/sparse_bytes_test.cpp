// Bytes on the wire of every reduction and coding, played transfer by transfer, against formulas
// written here from the definitions; and memory for packets whose size a threshold decides.
#include <gtest/gtest.h>

#include <cmath>

#include "engine/link/link.h"
#include "engine/base/names.h"
#include "engine/methods/strategy.h"
#include "tests/engine/rig.h"
#include "tests/engine/sent_bytes.h"

namespace rehearse {
namespace {

std::int64_t packet(std::int64_t n, std::int64_t k, Coding coding) {
  switch (coding) {
    case Coding::index32:
      return 8 * k;
    case Coding::bitmap:
      return 4 * k + (n + 7) / 8;
    case Coding::delta16:
      return 6 * k + 4 * ((n + 65535) / 65536);
  }
  return 0;
}

/// Elements of each layer of a model on one rank: tied weights are the embedding's.
std::vector<std::int64_t> layers_of(const ModelSpec& model) {
  std::vector<std::int64_t> out(model.segments.size());
  std::vector<bool> seen(model.groups.size());
  for (Id s = 0; s < model.segments.size(); ++s)
    for (const Id g : model.segments[s].groups) {
      if (!seen[g]) out[s] += elements_of(model.groups[g], 1);
      seen[g] = true;
    }
  return out;
}

/// Sizes of the groups that share a node, of one data-parallel group.
using Nodes = std::vector<std::int64_t>;

std::int64_t layer_bytes(const LayerExchange& x, std::int64_t n, const Nodes& nodes, int zero,
                         std::int64_t width, std::int64_t header) {
  std::int64_t ranks = 0;
  for (const std::int64_t m : nodes) ranks += m;
  const auto k = static_cast<std::int64_t>(std::ceil(x.density * static_cast<double>(n) - 1e-9));
  const std::int64_t one = packet(n, k, x.coding) + header;
  const auto padded = zero > 0 ? (n + ranks - 1) / ranks * ranks : n;
  const std::int64_t weights = zero > 0 ? (ranks - 1) * padded * width : 0;
  switch (x.reduction) {
    case Reduction::dense:
      return (zero > 0 ? 1 : 2) * (ranks - 1) * padded * width + weights;
    case Reduction::sparse:
      return ranks * (ranks - 1) * one + weights;
    case Reduction::two_level: {
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

TEST(SparseBytes, OfEveryReductionCodingAndSelectorAreTheFormulas) {
  const ModelSpec model = small_model(2);
  const auto elements = layers_of(model);
  for (const Case& c : {Case{{2, 1}, {0, 0, 1}}, Case{{2, 2}, {0, 0, 1, 1}},
                        Case{{4}, {5, 5, 5, 5}}, Case{{4, 2, 1}, {0, 0, 0, 0, 1, 1, 2}},
                        Case{{1, 1}, {3, 4}}, Case{{2, 1, 2}, {0, 1, 2, 0, 2}}})
    for (const Reduction reduction : {Reduction::dense, Reduction::sparse, Reduction::two_level})
      for (const Coding coding : {Coding::index32, Coding::bitmap, Coding::delta16})
        for (const Selector selector : {Selector::top_k, Selector::random_k, Selector::threshold})
          for (const int zero : {0, 1, 2})
            for (const DType precision : {DType::f32, DType::bf16}) {
              const int dp = static_cast<int>(c.node_of.size());
              Plan plan{.method = "adaptive",
                        .dp = dp,
                        .zero = zero,
                        .global_batch = 2 * dp,
                        .micro_batches = 2,
                        .precision = precision,
                        .selector = selector,
                        .node_of = c.node_of};
              for (std::size_t s = 0; s < elements.size(); ++s)
                plan.layers.push_back({0.05 * static_cast<double>(1 + s), reduction, coding});
              std::int64_t expected = 0;
              for (std::size_t s = 0; s < elements.size(); ++s)
                expected +=
                    layer_bytes(plan.layers[s], elements[s], c.nodes, zero, size_of(precision),
                                selector == Selector::threshold ? 4 : 0);
              // Tied weights are a bucket of their own beside the embedding's others, and rounding
              // up happens bucket by bucket: at most one entry, and a partly filled byte, a packet
              // more.
              const std::int64_t bytes = sent_bytes(link(compile(plan, model)));
              const std::int64_t slack = 200 * dp * dp;
              EXPECT_GE(bytes, expected - slack)
                  << name_of(reduction) << ' ' << name_of(coding) << " zero " << zero;
              EXPECT_LE(bytes, expected + slack)
                  << name_of(reduction) << ' ' << name_of(coding) << " zero " << zero;
            }
}

TEST(SparseBytes, AThresholdsPacketsHaveRoomForTwiceAsMany) {
  const ModelSpec model = small_model(1);
  Plan plan{.method = "topk-sync",
            .dp = 4,
            .global_batch = 4,
            .bucket = Bytes(1e12),
            .selector = Selector::threshold};
  const Program program = compile(plan, model);
  const std::int64_t n = parameters_of(model), k = (n + 9) / 10;
  bool found = false;
  for (const Storage& s : program.roles[0].storages) {
    if (!s.name.starts_with("packets.")) continue;
    found = true;
    EXPECT_EQ(s.elements, 4 * (4 + 8 * 2 * k));
  }
  EXPECT_TRUE(found);
  // What is sent in a simulation is what is wanted.
  EXPECT_EQ(sent_bytes(link(program)), 4 * 3 * (4 + 8 * k));
}

}  // namespace
}  // namespace rehearse
