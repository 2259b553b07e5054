// Links grouped by the role that they play, and clusters with other links and devices.
#include "engine/cluster/link_roles.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace rehearse::cluster {
namespace {

TEST(LinkRoles, OfANodeTemplate) {
  const Cluster c = load_cluster("dgx-a100:2");
  const std::vector<LinkRole> roles = link_roles(c);
  std::vector<std::string> names;
  std::size_t links = 0;
  for (const LinkRole& role : roles) {
    names.push_back(role.name);
    links += role.links.size();
  }
  EXPECT_THAT(names, testing::ElementsAre("node*/gpu* - node*/nvswitch", "node*/gpu* - node*/pcie*",
                                          "node*/nic* - node*/pcie*", "node*/nic* - fabric"));
  EXPECT_EQ(links, c.links().size());
  EXPECT_EQ(roles[0].links.size(), 32U);
  EXPECT_DOUBLE_EQ(roles[0].bandwidth.value, 240e9);
}

TEST(LinkRoles, UnequalBandwidthsAreApart) {
  const std::vector<LinkRole> roles = link_roles(load_cluster("paper"));
  int hosts = 0;
  for (const LinkRole& role : roles) hosts += role.name == "node*/gpu* - node*/host";
  EXPECT_EQ(hosts, 2);
}

TEST(Cluster, ScaledLinks) {
  Cluster c;
  const Id kind = c.add_kind({.name = "unit"});
  const Id a = c.add_device("a", kind, 0), b = c.add_device("b", kind, 0);
  const Id link =
      c.connect(c.vertex_of(a), c.vertex_of(b), "cable", BytesPerSecond(10), Seconds(4));
  EXPECT_DOUBLE_EQ(c.way(a, b, 20).latency.value, 4);
  const Id one[] = {link};
  c.scale_links(one, 3, 0.5);
  EXPECT_DOUBLE_EQ(c.cable(a, b).value, 30);
  EXPECT_DOUBLE_EQ(c.cable(b, a).value, 10);
  EXPECT_DOUBLE_EQ(c.way(a, b, 20).latency.value, 2);
  EXPECT_DOUBLE_EQ(c.way(a, b, 20).bandwidth.value, 30);
  EXPECT_DOUBLE_EQ(c.way(b, a, 20).bandwidth.value, 10);
  c.replace_kind(kind, {.name = "other"});
  EXPECT_EQ(c.kind_of(a).name, "other");
}

}  // namespace
}  // namespace rehearse::cluster
