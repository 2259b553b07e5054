// Devices on a torus, and switches that add: routes, trees, hashes, and the messages of wrong
// files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "engine/cluster/cluster.h"
#include "tests/engine/cluster/path_names.h"
#include "tests/message_of.h"

namespace rehearse::cluster {
namespace {

using testing::AllOf;
using testing::HasSubstr;

/// Two nodes on one switch, whose file has this [fabric].
Cluster two_nodes(const std::string& fabric) {
  const std::string path = testing::TempDir() + "/two_nodes.toml";
  std::ofstream(path) << "summary = \"any\"\n[[nodes]]\ncount = 2\ndevices = [\"H100\"]\n"
                         "links = [{ from = \"gpu0\", to = \"fabric\", bandwidth = \"1GB/s\", "
                         "latency = \"1us\" }]\n[fabric]\n"
                      << fabric;
  return load_cluster(path);
}

TEST(Torus, RoutesGoAlongOneDimensionAfterTheOtherTheShorterWay) {
  const Cluster c = load_cluster("tpu-v4:4x5x2");
  ASSERT_EQ(c.devices().size(), 40U);
  EXPECT_EQ(c.nodes(), 10);
  EXPECT_EQ(c.links().size(), 2 * (40U + 40U + 20U + 10U));  // 10: a NIC for each host
  const auto chip = [](Id x, Id y, Id z) { return x + 4 * y + 20 * z; };
  const auto walk = [&](Id from, Id to) {
    std::vector<std::string> names;
    for (const std::string& link : names_of(c, from, to))
      names.push_back(link.substr(link.find('>') + 1));
    return names;
  };
  const auto name = [&](Id device) { return c.devices()[device].name; };
  EXPECT_EQ(walk(chip(0, 0, 0), chip(2, 1, 1)),
            (std::vector<std::string>{name(chip(1, 0, 0)), name(chip(2, 0, 0)), name(chip(2, 1, 0)),
                                      name(chip(2, 1, 1))}));
  EXPECT_EQ(walk(chip(0, 0, 1), chip(3, 3, 0)),
            (std::vector<std::string>{name(chip(3, 0, 1)), name(chip(3, 4, 1)), name(chip(3, 3, 1)),
                                      name(chip(3, 3, 0))}));
  EXPECT_EQ(c.ways(chip(0, 0, 0), chip(2, 1, 1)).size(), 1U);
  EXPECT_NEAR(c.latency(chip(0, 0, 0), chip(2, 1, 1)).value, 4e-6, 1e-15);
  EXPECT_EQ(c.networks()[0].value, 12.5e9) << "the torus does not lead to a file system";
}

TEST(Torus, WrongSizesAreRefused) {
  const auto message = [](const std::string& name) {
    return test::message_of([&] { load_cluster(name); });
  };
  EXPECT_THAT(message("tpu-v4:4x4"), HasSubstr("2 sizes; this torus has 3 dimensions"));
  EXPECT_THAT(message("tpu-v4:4xax4"),
              AllOf(HasSubstr("\"a\" is not a number"), HasSubstr("as in \"tpu-v4:4x4x8\"")));
  EXPECT_THAT(message("tpu-v4:0x4x4"), HasSubstr("each size is 1 to 4096"));
  EXPECT_THAT(message("tpu-v4:4096x4096x4"), HasSubstr("more than 65536 devices"));
  EXPECT_THAT(message("tpu-v4:1x1x1"), HasSubstr("one device is no torus"));
  EXPECT_THAT(message("tpu-v4:3x3x3"), HasSubstr("27 devices do not fill nodes of 4"));
  EXPECT_THAT(message("tpu-v4:64"), HasSubstr("as in \"tpu-v4:4x4x4\""));
  EXPECT_THAT(message("dgx-a100:2x2"), HasSubstr("leave out \":2x2\""));
}

TEST(SummingSwitches, WrongKeysAreRefused) {
  const auto message = [](const std::string& fabric) {
    return test::message_of([&] { two_nodes(fabric); });
  };
  EXPECT_THAT(message("sums = [\"leave\"]"),
              AllOf(HasSubstr("fabric.sums"), HasSubstr("known: leaf, spine")));
  EXPECT_THAT(message("sum_latency = \"1us\""), HasSubstr("needs sums"));
  EXPECT_THAT(message("sums = [\"leaf\"]\nsum_bandwidth = \"1B/s\""), HasSubstr("sum_bandwidth"));
}

TEST(SummingSwitches, ChangeTheHashAndNoPath) {
  const Cluster plain = two_nodes(""), sums = two_nodes("sums = [\"leaf\"]");
  EXPECT_NE(plain.hash(), sums.hash());
  EXPECT_EQ(names_of(plain, 0, 1), names_of(sums, 0, 1));
  EXPECT_FALSE(sums.on_summing_switch(0)) << "that is NVLink SHARP";
  const SumTree tree = sums.sum_tree(std::vector<Id>{0, 1});
  EXPECT_EQ(tree.cannot, "");
  EXPECT_EQ(tree.up[0].size(), 2U);  // to the switch, and to its arithmetic
  EXPECT_EQ(tree.down[0].size(), 1U);
}

}  // namespace
}  // namespace rehearse::cluster
