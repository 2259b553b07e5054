// Rings on machines whose devices are joined by cables: as many as the cables allow, none uses a
// cable twice, and the time of an all-reduce follows from the cables that leave a device.
#include "engine/costs/network/rings.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "engine/cluster/cluster.h"
#include "engine/costs/costs.h"

namespace rehearse::costs {
namespace {

std::vector<Id> first(int n) {
  std::vector<Id> out(static_cast<std::size_t>(n));
  std::iota(out.begin(), out.end(), Id{0});
  return out;
}

TEST(Rings, UseEachBrickOfTheCubeMeshOnce) {
  const cluster::Cluster dgx1 = cluster::load_cluster("dgx1");
  constexpr double brick = 23.5e9;
  for (const auto& [gpus, rings] : {std::pair{8, 6}, {4, 4}}) {
    const auto found = rings_of(dgx1, first(gpus));
    EXPECT_EQ(found.size(), static_cast<std::size_t>(rings));
    std::map<std::pair<int, int>, int> used;
    for (const auto& ring : found) {
      std::vector<int> sorted = ring;
      std::sort(sorted.begin(), sorted.end());
      for (int i = 0; i < gpus; ++i) EXPECT_EQ(sorted[static_cast<std::size_t>(i)], i);
      for (std::size_t i = 0; i < ring.size(); ++i) ++used[{ring[i], ring[(i + 1) % ring.size()]}];
    }
    for (const auto& [pair, times] : used)
      EXPECT_LE(
          times * brick,
          dgx1.cable(static_cast<Id>(pair.first), static_cast<Id>(pair.second)).value * 1.001);
  }
}

TEST(Rings, AnAllReduceUsesAllBricksThatLeaveADevice) {
  const cluster::Cluster dgx1 = cluster::load_cluster("dgx1");
  constexpr std::int64_t elements = 1 << 28;  // 1 GiB of f32
  for (const auto& [gpus, bricks] : {std::pair{8, 6}, {4, 4}}) {
    const double seconds =
        collective_seconds(dgx1, program::Move::all_reduce, program::Algorithm::ring, elements,
                           program::DType::f32, {first(gpus)})
            .front();
    const double expected = 2.0 * (gpus - 1) / gpus * 4.0 * elements / (bricks * 23.5e9);
    EXPECT_NEAR(seconds, expected, 0.01 * expected);
  }
}

TEST(Rings, NoneWithoutCables) {
  EXPECT_TRUE(rings_of(cluster::load_cluster("dgx-a100"), first(8)).empty());
  EXPECT_TRUE(rings_of(cluster::load_cluster("paper"), first(8)).empty());
}

TEST(Rings, NoneWhereCablesDoNotCloseACycle) {
  // GPUs 0 and 5 of the cube mesh have no common brick, and neither have 0 and 6.
  EXPECT_TRUE(rings_of(cluster::load_cluster("dgx1"), std::vector<Id>{0, 5, 6}).empty());
}

}  // namespace
}  // namespace rehearse::costs
