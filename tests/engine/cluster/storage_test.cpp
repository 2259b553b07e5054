// Storage of platforms: host memory, disks of nodes, the shared file system, and the rate of a
// node's network that limits it.
#include "engine/cluster/storage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "engine/cluster/cluster.h"
#include "tests/message_of.h"

namespace rehearse::cluster {
namespace {

using testing::HasSubstr;

std::string write_platform(const std::string& text) {
  std::string path = testing::TempDir() + "/storage_under_test.toml";
  std::ofstream(path) << "summary = \"x\"\n" << text;
  return path;
}

std::string error_of(const std::string& text) {
  const std::string path = write_platform(text);
  return test::message_of<InputError>([&] { load_cluster(path); });
}

TEST(Storage, IsReadForEveryNode) {
  const Cluster c = load_cluster(write_platform(R"(
[[nodes]]
count = 2
devices = ["H100", "H100"]
host_memory = "1TiB"
disk = { size = "4TB", read = "7GB/s", write = "5GB/s" }
parts = ["nvswitch", "host", "nic"]
links = [
  { from = "gpu*", to = "nvswitch", bandwidth = "370GB/s", latency = "1us", nvlink = true },
  { from = "gpu*", to = "host", bandwidth = "48GB/s", latency = "1us" },
  { from = "host", to = "nic", bandwidth = "48GB/s", latency = "1us" },
  { from = "nic", to = "fabric", bandwidth = "400Gb/s", latency = "1us" },
]
[[nodes]]
devices = ["H100"]
host_memory = "64GB"
host_link = "10GB/s"
links = [{ from = "gpu0", to = "fabric", bandwidth = "100Gb/s", latency = "1us" },
         { from = "gpu0", to = "fabric/b", bandwidth = "200Gb/s", latency = "1us" }]
[shared_disk]
read = "1TB/s"
write = "0.5TB/s"
)"));
  ASSERT_EQ(c.nodes(), 3);
  EXPECT_DOUBLE_EQ(c.host_of(1).memory.value, 1024.0 * 1024 * 1024 * 1024);
  EXPECT_DOUBLE_EQ(c.host_of(1).link.value, 48e9) << "the widest cable but NVLink";
  EXPECT_DOUBLE_EQ(c.host_of(1).disk.size.value, 4e12);
  EXPECT_DOUBLE_EQ(c.host_of(1).disk.read.value, 7e9);
  EXPECT_DOUBLE_EQ(c.host_of(1).disk.write.value, 5e9);
  EXPECT_DOUBLE_EQ(c.host_of(2).link.value, 10e9);
  EXPECT_FALSE(c.host_of(2).disk.known());
  EXPECT_DOUBLE_EQ(c.shared_disk().read.value, 1e12);
  EXPECT_DOUBLE_EQ(c.shared_disk().write.value, 5e11);
  const auto networks = c.networks();
  ASSERT_EQ(networks.size(), 3U);
  EXPECT_DOUBLE_EQ(networks[0].value, 50e9);
  EXPECT_DOUBLE_EQ(networks[1].value, 50e9);
  EXPECT_DOUBLE_EQ(networks[2].value, 12.5e9 + 25e9) << "both rails";
}

TEST(Storage, IsNotKnownWhereAPlatformDoesNotStateIt) {
  const Cluster c = load_cluster(write_platform("[[nodes]]\ndevices = [\"H100\"]\n"));
  EXPECT_EQ(c.host_of(0).memory.value, 0);
  EXPECT_EQ(c.host_of(7).memory.value, 0) << "no such node";
  EXPECT_FALSE(c.host_of(0).disk.known());
  EXPECT_FALSE(c.shared_disk().known());
}

TEST(Storage, WrongKeysAreRefused) {
  const std::string node = "[[nodes]]\ndevices = [\"H100\"]\n";
  EXPECT_THAT(error_of(node + "disk = { read = \"1GB/s\" }\n"),
              HasSubstr("nodes[0].disk.write\": is required and missing"));
  EXPECT_THAT(error_of(node + "disk = { raed = \"1GB/s\", write = \"1GB/s\" }\n"),
              HasSubstr("nodes[0].disk.raed\": unknown; did you mean \"read\"?"));
  EXPECT_THAT(error_of(node + "[shared_disk]\nread = \"1GB\"\nwrite = \"1GB/s\"\n"),
              HasSubstr("\"1GB\" is not a bandwidth"));
  EXPECT_THAT(error_of(node + "[shared_disk]\nread = \"0GB/s\"\nwrite = \"1GB/s\"\n"),
              HasSubstr("out of range"));
  EXPECT_THAT(error_of(node + "host_memory = \"1TB\"\n"), HasSubstr("needs host_link"));
}

TEST(Storage, ShippedClustersStateIt) {
  for (const std::string& name : known_clusters()) {
    const Cluster c = load_cluster(name);
    for (Id node = 0; node < static_cast<Id>(c.nodes()); ++node) {
      EXPECT_GT(c.host_of(node).memory.value, 1e9) << name;
      EXPECT_GT(c.host_of(node).link.value, 1e9) << name;
      EXPECT_TRUE(c.host_of(node).disk.known()) << name;
    }
    EXPECT_EQ(c.shared_disk().known(), !name.starts_with("workstation")) << name;
  }
  EXPECT_DOUBLE_EQ(load_cluster("dgx-h100:2").networks()[1].value, 400e9);
}

TEST(Storage, ChangesNoHash) {
  Cluster c = load_cluster("dgx-a100");
  const std::uint64_t before = c.hash();
  c.set_host(0, {.memory = Bytes(1)});
  c.share_disk({.read = BytesPerSecond(1), .write = BytesPerSecond(1)});
  EXPECT_EQ(c.hash(), before);
}

}  // namespace
}  // namespace rehearse::cluster
