// A cluster: a graph of devices, switches and NICs (Boost.Graph inside). Its edges are directed
// links with a bandwidth and a latency. Transfers share links. A vertex costs nothing, so a switch
// is non-blocking. Hosts do not forward: a path never crosses a node other than the nodes of its
// two ends.
//
// Two kinds of paths:
//
// - The cheapest path by 1/bandwidth (the edge weights of Sun 2026, section 3.2) defines the
//   distance of two devices. It may cross a third device.
// - A transfer takes the path that is fastest for its size, latency + bytes / bandwidth: a short
//   transfer that of the least latency, a long one the widest. It crosses switches and hosts, and a
//   third device only if no cable joins its two devices (as NCCL does).
//
// Of equal paths, the one with the fewest hops, then the first by name is taken, so all machines
// find the same path.
#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/base/units.h"
#include "engine/cluster/routes/sum_tree.h"
#include "engine/cluster/storage.h"
#include "engine/program/program.h"
#include "engine/software/library.h"

namespace rehearse::cluster {

/// One kind of accelerator (or CPU core). Peak rates are the dense matrix rates of the data sheet.
/// engine/costs/device/device_time.h says how they become seconds.
struct DeviceKind {
  std::string name = {};
  Bytes memory = {};
  Bytes reserve = {};  // part of the memory that no plan may use: driver, network library
  FlopsPerSecond peak_f32 = {}, peak_f16 = {}, peak_bf16 = {};  // bf16 0: not supported
  FlopsPerSecond peak_tf32 = {}, peak_fp8 = {};                 // 0: not supported
  BytesPerSecond memory_bandwidth = {};
  double efficiency = 1;            // fraction of peak that large matrix products reach
  double f32_efficiency = 1;        // the same, of products of f32 tensors
  double memory_efficiency = 1;     // fraction of memory bandwidth that element-wise kernels reach
  double attention_efficiency = 1;  // fraction of `efficiency` that fused attention reaches
  double flash_efficiency = 1;      // the same of FlashAttention 2, by the FLOPs that it computes
  double collective_share = 0;      // seconds that passes lose for each second of a collective
                                    // beside them whose kernels run on the device
  int multiprocessors = 0;          // 0: products are not cut into tiles
  Seconds launch = {};              // between the ends of a kernel and the start of the next
  Watts idle = {}, busy = {};
  Price price = {};
  bool calibrated = false;  // whether the efficiencies were measured; otherwise assumed
  std::string source = {};  // where the numbers come from

  /// The memory that plans may use.
  Bytes usable() const { return std::max(Bytes(0), memory - reserve); }
};

struct Device {
  std::string name = {};  // "node3/gpu1"
  Id kind = 0, node = 0;
};

/// One direction of a cable, a bus or a bundle of NVLink bricks.
struct Link {
  std::string name = {};
  BytesPerSecond bandwidth = {};
  Seconds latency = {};
  bool nvlink = false;  // decides the library's latency of a hop, and which protocols it may use
  int tcp_mtu = 0;      // bytes of its largest IP packets, if it carries TCP; 0: it does not
  BytesPerSecond flow_rate = {};  // of what it carries between two nodes; 0: all of it
};

/// A path between two devices. A transfer that does not share it takes latency + bytes / bandwidth.
struct Path {
  std::vector<Id> links = {};     // directed, from the first device to the second
  Seconds latency = {};           // sum over the links, and the library's
  Seconds wire = {};              // the links' part of `latency`
  BytesPerSecond bandwidth = {};  // smallest of the links
};
/// The path that is fastest for `bytes`; of equally fast ones the first. `ways` must not be empty.
const Path& fastest(std::span<const Path> ways, double bytes);

class Cluster {
 public:
  Cluster();
  Cluster(const Cluster&);
  Cluster(Cluster&&) noexcept;
  Cluster& operator=(const Cluster&);
  Cluster& operator=(Cluster&&) noexcept;
  ~Cluster();

  Id add_kind(DeviceKind kind);
  Id add_device(std::string name, Id kind, Id node);  // returns the device's index
  /// Adds a switch, NIC or root complex and returns its vertex. `node`: the node that it is part
  /// of; none: it is between nodes. `sums`: the switch adds what the devices send and gives the
  /// sum to all of them (in a node: NVLink SHARP).
  Id add_vertex(std::string name, Id node = none, bool sums = false);
  /// Makes a switch between nodes one that adds (SHARP): at most `bandwidth` of sums, each after
  /// `latency`. Its arithmetic is a vertex below it, NAME/sums, which only sum_tree crosses.
  void let_sum(Id vertex, BytesPerSecond bandwidth, Seconds latency);
  Id vertex_of(Id device) const;
  /// Adds a full-duplex cable: link NAME from a to b, and link NAME.back from b to a. An empty name
  /// means "a>b" and "b>a". Returns the first link; the second has the next index.
  Id connect(Id vertex_a, Id vertex_b, std::string name, BytesPerSecond bandwidth, Seconds latency,
             bool nvlink = false, int tcp_mtu = 0);
  /// Everything that crosses the cable of this link between its node and one other node is one
  /// flow, of at most this rate: a TCP stream. Call it after all calls of connect: flows are links
  /// of their own, two for each other node, which follow the other links on paths.
  void limit_flows(Id link, BytesPerSecond rate);

  const std::string& name() const;
  void rename(std::string name);
  std::span<const Device> devices() const;
  std::span<const DeviceKind> kinds() const;
  std::span<const Link> links() const;
  const DeviceKind& kind_of(Id device) const;
  /// The cables that join two devices directly, one direction: their bandwidth together; 0: none.
  BytesPerSecond cable(Id a, Id b) const;
  bool has_cables() const;  // whether any two devices are joined directly
  /// Whether a cable joins the device to a switch in its node that sums.
  bool on_summing_switch(Id device) const;
  /// The tree of switches that adds the tensors of `devices`, which are two or more, each on a node
  /// of its own. sum_tree.h says how it is laid. Throws InputError when there is no path.
  SumTree sum_tree(std::span<const Id> devices) const;
  /// Joins the devices, which have no cables yet, to a torus (torus.h): device i has the
  /// coordinates i mod sizes[0], i / sizes[0] mod sizes[1], and so on. From then on, transfers
  /// between devices travel along one dimension after the other. The sizes' product must be the
  /// number of devices.
  void lay_torus(std::vector<int> sizes, BytesPerSecond bandwidth, Seconds latency);
  std::span<const int> torus() const;  // its sizes; empty: the devices form none
  int nodes() const;
  /// Host memory and disk of a node; all 0 where the platform does not state them.
  const Host& host_of(Id node) const;
  void set_host(Id node, const Host& host);
  /// The file system that all nodes share. A node reads and writes it at no more than its network.
  const Disk& shared_disk() const;
  void share_disk(const Disk& disk);
  /// By node: the bandwidth of its links to other nodes together, in one direction. One pass over
  /// all links.
  std::vector<BytesPerSecond> networks() const;
  /// The paths from device a to device b that a transfer may take: each has a higher latency and a
  /// higher bandwidth than the one before. Empty when a == b. Computed at the first call and cached
  /// until the cluster changes. Throws InputError when there is no path.
  std::span<const Path> ways(Id a, Id b) const;
  /// The path that is fastest for a transfer of `bytes`; empty when a == b.
  const Path& way(Id a, Id b, double bytes) const;
  /// Its directed links.
  std::span<const Id> path(Id a, Id b, double bytes) const;
  /// Directed links of the cheapest path by 1/bandwidth; empty when a == b.
  std::span<const Id> path(Id a, Id b) const;
  Seconds latency(Id a, Id b) const;           // sum over the cheapest path
  BytesPerSecond bandwidth(Id a, Id b) const;  // smallest on the cheapest path; a == b: infinite
  /// Host cores that the ranks of a node share for compute, communication and optimizer work; 0:
  /// devices have their own engines (a GPU with its NIC).
  int shared_cores() const;
  void share_cores(int cores);
  /// The library that carries transfers; its latencies are part of every Path. Default: none.
  const software::Library& library() const;
  void use_library(software::Library library);
  /// For questions of the form "what if": puts `by` in place of a kind of device.
  void replace_kind(Id kind, DeviceKind by);
  /// The same for links: multiplies the bandwidth and the latency of each of them. The factors must
  /// be positive.
  void scale_links(std::span<const Id> links, double bandwidth, double latency);
  /// The same for all hosts: their links to the devices and the bandwidths of their memory.
  void scale_hosts(double link, double bandwidth);
  /// Sets the reserved memory of every device kind, in place of the device table's.
  void reserve_memory(Bytes reserve);
  /// A hash of the cluster. It leaves out what changes no step time: the name, the `source` of
  /// device kinds, reserved memory, hosts' memory and disks, prices.
  std::uint64_t hash() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Loads a platform by name (paper: platforms/paper.toml) or by the path of a TOML file.
/// "dgx-a100:16" has 16 nodes, "this-machine:4" has four ranks on this host. docs/platforms.md
/// describes the files. Throws InputError.
Cluster load_cluster(const std::string& name_or_path);
std::vector<std::string> known_clusters();
/// A device kind of the device table (platforms/devices.toml). Throws InputError.
DeviceKind load_device(const std::string& name);
std::vector<std::string> known_devices();

}  // namespace rehearse::cluster
