// Platform files: what the shipped ones say, what shapes of clusters are made of their keys, and
// the error message of every wrong file.
#include "engine/cluster/platform/platform.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "engine/cluster/cluster.h"
#include "tests/engine/cluster/path_names.h"
#include "tests/engine/reference.h"
#include "tests/message_of.h"

namespace rehearse::cluster {
namespace {

using testing::HasSubstr;

std::string write_platform(const std::string& text) {
  std::string path = testing::TempDir() + "/platform_under_test.toml";
  std::ofstream(path) << text;
  return path;
}

TEST(Platform, FatTreeOversubscription) {
  const std::string head =
      "summary = \"s\"\n[[nodes]]\ncount = 6\ndevices = [\"A100 40GB\"]\n"
      "links = [{ from = \"gpu0\", to = \"fabric\", bandwidth = \"10GB/s\", "
      "latency = \"1us\" }]\n";
  const Cluster flat = load_cluster(write_platform(head));
  EXPECT_EQ(flat.path(0, 5).size(), 2U);
  const Cluster tree = load_cluster(write_platform(
      head + "[fabric]\nnodes_per_leaf = 2\noversubscription = 4\nlatency = \"0.3us\"\n"));
  EXPECT_EQ(tree.path(0, 1).size(), 2U);
  EXPECT_EQ(names_of(tree, 0, 5),
            (std::vector<std::string>{"node0/gpu0>fabric/leaf0", "fabric/leaf0>spine",
                                      "spine>fabric/leaf2", "fabric/leaf2>node5/gpu0"}));
  EXPECT_DOUBLE_EQ(tree.bandwidth(0, 5).value, 2 * 10e9 / 4);
  EXPECT_NEAR(tree.latency(0, 5).value, 2.6e-6, 1e-12);
}

TEST(Platform, HeadersOfTcpTakeTheirShare) {
  const auto bandwidth = [](const std::string& key) {
    const std::string text =
        "summary = \"s\"\n[[nodes]]\ncount = 2\ndevices = [\"H100\"]\nlinks = [{ from = \"gpu0\", "
        "to "
        "= \"fabric\", bandwidth = \"1Gb/s\", latency = \"1us\"";
    return load_cluster(write_platform(text + key + " }]\n")).bandwidth(0, 1).value;
  };
  EXPECT_DOUBLE_EQ(bandwidth(""), 125e6);
  EXPECT_DOUBLE_EQ(bandwidth(", tcp_mtu = 1500"), 125e6 * 1448 / 1538);
  EXPECT_DOUBLE_EQ(bandwidth(", tcp_mtu = 9000"), 125e6 * 8948 / 9038);
}

/// A platform with a link of each kind but a torus, changed by a job's keys.
Cluster changed(const std::string& keys) {
  const std::string path = write_platform(
      "summary = \"s\"\n[[nodes]]\ncount = 4\ndevices = [\"H100\", \"H100\"]\nparts = [\"nic\"]\n"
      "links = [\n"
      "{ from = \"gpu0\", to = \"gpu1\", bandwidth = \"100GB/s\", latency = \"1us\", nvlink = true "
      "},\n"
      "{ from = \"gpu*\", to = \"nic\", bandwidth = \"20GB/s\", latency = \"2us\" },\n"
      "{ from = \"nic\", to = \"fabric\", bandwidth = \"10GB/s\", latency = \"4us\", tcp_mtu = "
      "1500 }]\n"
      "[fabric]\nnodes_per_leaf = 2\noversubscription = 2\n");
  return load_cluster(path, read_platform_changes(Config::parse(keys, "job")));
}

TEST(Platform, AJobChangesItsLinks) {
  const double payload = 1448.0 / 1538;
  const Cluster plain = changed("");
  EXPECT_DOUBLE_EQ(plain.bandwidth(0, 1).value, 100e9);
  EXPECT_DOUBLE_EQ(plain.bandwidth(0, 2).value, 10e9 * payload);
  EXPECT_NEAR(plain.latency(0, 2).value, 12e-6, 1e-12);

  const Cluster network =
      changed("links.network.bandwidth = \"40GB/s\"\nlinks.network.latency = \"5us\"");
  EXPECT_DOUBLE_EQ(network.bandwidth(0, 1).value, 100e9);
  EXPECT_DOUBLE_EQ(network.bandwidth(0, 2).value, 20e9) << "PCIe is narrower now";
  EXPECT_DOUBLE_EQ(network.bandwidth(0, 4).value, 20e9);
  EXPECT_NEAR(network.latency(0, 2).value, 14e-6, 1e-12);
  for (const Link& link : network.links())  // two nodes below a leaf, half of that up
    if (link.name.ends_with(">spine")) {
      EXPECT_DOUBLE_EQ(link.bandwidth.value, 40e9 * payload);
    }

  const Cluster factors = changed(
      "[links]\nnvlink.bandwidth_factor = 0.5\npcie.bandwidth_factor = 0.25\n"
      "network.bandwidth_factor = 3");
  EXPECT_DOUBLE_EQ(factors.bandwidth(0, 1).value, 50e9);
  EXPECT_DOUBLE_EQ(factors.bandwidth(0, 2).value, 5e9);

  const auto error = [](const std::string& keys) {
    return test::message_of<InputError>([&] { changed(keys); });
  };
  EXPECT_THAT(error("links.torus.latency = \"1us\""),
              testing::AllOf(HasSubstr("key \"links.torus\": "), HasSubstr("no links of this kind"),
                             HasSubstr("it has network, nvlink, pcie")));
  EXPECT_THAT(error("[links.pcie]\nbandwidth = \"1GB/s\"\nbandwidth_factor = 2"),
              testing::AllOf(HasSubstr("pcie.bandwidth_factor"), HasSubstr("leave out one")));
}

TEST(Platform, AJobReplacesDevices) {
  const auto replaced = [](const std::string& list) {
    return load_cluster("paper", read_platform_changes(Config::parse("replace = " + list, "job")));
  };
  const auto kinds = [](const Cluster& cluster) {
    std::vector<std::string> names;
    for (const DeviceKind& kind : cluster.kinds()) names.push_back(kind.name);
    return names;
  };
  const Cluster h200 = replaced("[\"V100 PCIe 32GB: H200\"]");
  EXPECT_THAT(kinds(h200), testing::ElementsAre("RTX 4090", "H200"));
  EXPECT_EQ(h200.kinds()[1].memory.value, load_device("H200").memory.value);
  EXPECT_EQ(h200.links().size(), load_cluster("paper").links().size());
  // A kind that is there already is one kind with it. All changes are made at once: two kinds may
  // change places.
  EXPECT_THAT(kinds(replaced("[\"V100 PCIe 32GB: RTX 4090\"]")), testing::ElementsAre("RTX 4090"));
  EXPECT_THAT(kinds(replaced("[\"V100 PCIe 32GB: RTX 4090\", \"RTX 4090: V100 PCIe 32GB\"]")),
              testing::ElementsAre("V100 PCIe 32GB", "RTX 4090"));
  const auto error = [&](const std::string& list) {
    return test::message_of<InputError>([&] { replaced(list); });
  };
  EXPECT_THAT(
      error("[\"H100: H200\"]"),
      HasSubstr("key \"replace\": \"paper\" has no device \"H100\"; it has RTX 4090, V100"));
  EXPECT_THAT(error("[\"RTX 4090: H100\", \"RTX 4090: H200\"]"),
              HasSubstr("\"RTX 4090\" stands there twice"));
  EXPECT_THAT(error("[\"RTX 4090: H20\"]"), HasSubstr("did you mean \"H200\"?"));
  for (const char* text : {"[\"RTX 4090\"]", "[\": H100\"]", "[\"RTX 4090: \"]"})
    EXPECT_THAT(error(text), HasSubstr("as in \"H100: H200\"")) << text;
}

TEST(Platform, AJobChangesTheLinksOfATorus) {
  const PlatformChanges twice =
      read_platform_changes(Config::parse("links.torus.bandwidth_factor = 2", "job"));
  EXPECT_DOUBLE_EQ(load_cluster("tpu-v4:4x4x4", twice).bandwidth(0, 1).value,
                   2 * load_cluster("tpu-v4:4x4x4").bandwidth(0, 1).value);
}

/// Two devices a node, which share one link of 10 GB/s to the network.
std::string three_nodes(const std::string& key) {
  return "summary = \"s\"\n[[nodes]]\ncount = 3\ndevices = [\"H100\", \"H100\"]\nparts = "
         "[\"host\"]\n"
         "links = [{ from = \"gpu*\", to = \"host\", bandwidth = \"40GB/s\", latency = \"1us\" },\n"
         "{ from = \"host\", to = \"fabric\", bandwidth = \"10GB/s\", latency = \"1us\"" +
         key + " }]\n";
}

TEST(Platform, TransfersBetweenTwoNodesShareOneFlow) {
  const Cluster c = load_cluster(write_platform(three_nodes(", flow_rate = \"2GB/s\"")));
  EXPECT_DOUBLE_EQ(c.bandwidth(0, 2).value, 2e9);
  EXPECT_DOUBLE_EQ(c.bandwidth(0, 1).value, 40e9) << "inside a node";
  EXPECT_DOUBLE_EQ(load_cluster(write_platform(three_nodes(""))).bandwidth(0, 2).value, 10e9);
  // The flow of the sender's link and that of the receiver's, each named after the other node.
  EXPECT_EQ(names_of(c, 0, 4), (std::vector<std::string>{
                                   "node0/gpu0>node0/host", "node0/host>fabric",
                                   "fabric>node2/host", "node2/host>node2/gpu0",
                                   "node0/host>fabric to node2", "fabric>node2/host from node0"}));
  // Both devices of a node share the flow; another node has another one; the way back too.
  const auto flow = [&](Id a, Id b) { return c.path(a, b)[4]; };
  EXPECT_EQ(flow(0, 4), flow(1, 5));
  EXPECT_NE(flow(0, 4), flow(0, 2));
  EXPECT_NE(flow(0, 4), c.path(4, 0)[5]);
  EXPECT_DOUBLE_EQ(c.networks()[0].value, 10e9) << "all flows of a node together";
  EXPECT_DOUBLE_EQ(c.ways(0, 2).back().bandwidth.value, 2e9);
}

TEST(Platform, ThisMachineSharesItsCoresAndMemory) {
  const Cluster c = load_cluster("this-machine:4");
  EXPECT_EQ(c.devices().size(), 4U);
  EXPECT_EQ(c.nodes(), 1);
  EXPECT_GE(c.shared_cores(), 1);
  EXPECT_EQ(load_cluster("this-machine").devices().size(), static_cast<size_t>(c.shared_cores()));
  EXPECT_DOUBLE_EQ(c.kind_of(0).memory.value * 4,
                   load_cluster("this-machine:1").kind_of(0).memory.value);
}

TEST(Platform, DeviceTableIsSane) {
  ASSERT_GE(known_devices().size(), 8U);
  for (const std::string& name : known_devices()) {
    const DeviceKind k = load_device(name);
    EXPECT_GT(k.peak_f32.value, 0) << name;
    EXPECT_GE(std::max(k.peak_f16, k.peak_bf16), k.peak_f32) << name;
    EXPECT_FALSE(k.source.empty()) << name;
  }
  EXPECT_DOUBLE_EQ(load_device("V100 SXM2 16GB").peak_bf16.value, 0);
  EXPECT_DOUBLE_EQ(load_device("RTX 4090").memory.value, 24.0 * (1 << 30));
  EXPECT_THAT(test::message_of([] { load_device("RTX4090"); }),
              HasSubstr("device \"RTX4090\" is not known; did you mean \"RTX 4090\"? known: "));
}

TEST(Platform, DataDirCanBeElsewhere) {
  const std::string dir = testing::TempDir() + "/data_elsewhere";
  std::filesystem::create_directories(dir + "/platforms");
  std::ofstream(dir + "/platforms/mine.toml")
      << "summary = \"s\"\n[[device]]\nname = \"D\"\nmemory = \"1GB\"\nf32 = \"1TFLOP/s\"\n"
         "memory_bandwidth = \"1GB/s\"\nsource = \"s\"\n[[nodes]]\ndevices = [\"D\"]\n";
  std::ofstream(dir + "/platforms/devices.toml") << "";
  setenv("REHEARSE_DATA_DIR", dir.c_str(), 1);
  const std::size_t devices = load_cluster("mine").devices().size();
  const std::string error = test::message_of([] { load_cluster("paper"); });
  unsetenv("REHEARSE_DATA_DIR");
  EXPECT_EQ(devices, 1U);
  EXPECT_THAT(error, HasSubstr("cluster \"paper\" is not known; known: mine"));
  EXPECT_EQ(load_cluster("paper").devices().size(), 32U);
}

TEST(Platform, ErrorsNameFileKeyAndWhatFits) {
  EXPECT_THAT(
      test::message_of([] { load_cluster("papre"); }),
      HasSubstr(
          "cluster \"papre\" is not known; did you mean \"paper\"? known: a100-40, a100-4nic, "
          "dgx-a100, dgx-a100-sharp, dgx-b200, dgx-h100, dgx1, dgx1-32gb, grand-teton, h200x4, "
          "paper, paper-homogeneous, server-4090, this-machine"));
  EXPECT_THAT(test::message_of([] { load_cluster("devices"); }), HasSubstr("is not known"));
  EXPECT_THAT(test::message_of([] { load_cluster("no/where.toml"); }),
              HasSubstr("cluster file \"no/where.toml\" does not exist; paths are relative to the "
                        "working directory, /"));
  EXPECT_EQ(
      test::message_of([] { load_cluster("dgx1:x"); }),
      "cluster \"dgx1:x\": \"x\" is neither a number from 1 to 131072, as in \"dgx-a100:16\", nor "
      "the sizes of a torus, as in \"tpu-v4:4x4x8\"");
  EXPECT_THAT(test::message_of([] { load_cluster("dgx1:0"); }),
              HasSubstr("is neither a number from 1 to 131072"));
  EXPECT_EQ(test::message_of([] { load_cluster("paper:3"); }),
            "cluster \"paper:3\": it has a size of its own; leave out \":3\"");
  const auto error_of = [](const std::string& text) {
    return test::message_of([&] { load_cluster(write_platform("summary = \"s\"\n" + text)); });
  };
  const std::string node = "[[nodes]]\ndevices = [\"H100\"]\n";
  const auto link = [](const std::string& l) { return "links = [" + l + "]\n"; };
  EXPECT_THAT(error_of(""),
              HasSubstr("platform_under_test.toml: key \"nodes\": must have at least"));
  EXPECT_THAT(error_of("[[nodes]]\ndevices = [\"H10\"]"),
              HasSubstr(":3: key \"nodes[0].devices\": device \"H10\" is not known; did you mean "
                        "\"H100\"?"));
  EXPECT_THAT(error_of("[[nodes]]\n"), HasSubstr("must name at least one device"));
  EXPECT_THAT(error_of(node + link("{ from = \"gpu0\", to = \"fabrik\", bandwidth = \"1GB/s\", "
                                   "latency = \"1us\" }")),
              HasSubstr("\"fabrik\" is neither a device, a part nor fabric"));
  EXPECT_THAT(
      error_of(node + link("{ from = \"gpu0\", to = \"fabric\", bandwidth = \"1GB\", latency "
                           "= \"1us\" }")),
      HasSubstr("key \"nodes[0].links[0].bandwidth\": \"1GB\" is not a bandwidth"));
  EXPECT_THAT(error_of(node + link("{ from = \"nic*\", to = \"fabric\", bandwidth = \"1GB/s\", "
                                   "latency = \"1us\" }")),
              HasSubstr("\"nic*\" matches nothing"));
  EXPECT_THAT(
      error_of(node + link("{ from = \"gpu0\", to = \"gpu0\", bandwidth = \"1GB/s\", latency "
                           "= \"1us\" }")),
      HasSubstr("must be a device or a part other than"));
  EXPECT_THAT(error_of("[[nodes]]\ncount = 2000000000\ndevices = [\"H100\"]"),
              HasSubstr("2000000000 is out of range: must be from 1 to 131072"));
  EXPECT_THAT(error_of(node + link("{ from = \"gpu0\", to = \"fabric\", bandwidth = \"1B/s\", "
                                   "latency = \"1us\" }")),
              HasSubstr("must be from 1000 to 1e+16"));
  EXPECT_THAT(error_of(node + link("{ from = \"gpu0\", to = \"fabric\", bandwidth = \"1GB/s\", "
                                   "latency = \"1us\", tcp_mtu = 100 }")),
              HasSubstr("must be 0 or at least 576"));
  EXPECT_THAT(error_of("[[nodes]]\ndevices = [\"H100\", \"H100\"]\n" +
                       link("{ from = \"gpu0\", to = \"gpu1\", bandwidth = \"1GB/s\", "
                            "latency = \"1us\", flow_rate = \"1MB/s\" }")),
              HasSubstr("flow_rate\": only a link to fabric carries flows between nodes"));
  EXPECT_THAT(error_of(node + "coutn = 2\n"),
              HasSubstr(":4: key \"nodes[0].coutn\": unknown; did you mean \"count\"?"));
  EXPECT_THAT(error_of(node + "[fabric]\noversubscription = 2\n"),
              HasSubstr("needs nodes_per_leaf"));
}

TEST(Platform, DocumentationListsKeysDevicesAndClusters) {
  test::expect_documented("docs/platforms.md", platform_keys());
  const auto rows = test::table_rows("docs/platforms.md");
  std::size_t devices = 0, clusters = 0;
  const auto tera = [](FlopsPerSecond rate) {
    return rate.value == 0 ? std::string("-") : fmt::format("{:g}", rate.value / 1e12);
  };
  for (const std::string& name : known_devices()) {
    ASSERT_TRUE(rows.contains(name)) << name;
    const DeviceKind k = load_device(name);
    EXPECT_EQ(rows.at(name),
              (std::vector<std::string>{
                  to_text(k.memory), tera(k.peak_f32), tera(k.peak_f16), tera(k.peak_bf16),
                  tera(k.peak_fp8), to_text(k.memory_bandwidth), fmt::format("{:g}", k.efficiency),
                  fmt::format("{:g}", k.memory_efficiency), k.calibrated ? "yes" : "no"}));
  }
  for (const std::string& name : known_clusters()) {
    ASSERT_TRUE(rows.contains(name)) << name;
    const Cluster c = load_cluster(name);
    const std::string size =
        c.shared_cores() > 0 ? "ranks" : fmt::format("{} on {}", c.devices().size(), c.nodes());
    EXPECT_EQ(rows.at(name).front(), size) << name;
  }
  for (const auto& [name, cells] : rows) {
    devices += cells.size() == 9 ? 1 : 0;
    clusters += cells.size() == 2 ? 1 : 0;
  }
  EXPECT_EQ(devices, known_devices().size());
  EXPECT_EQ(clusters, known_clusters().size());
}

}  // namespace
}  // namespace rehearse::cluster
