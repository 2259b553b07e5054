// A profile: times measured on machines, and the variance of gradients measured in a warm-up. In
// the terms of Sun 2026, section 3.1: the results of the Topology Profiler and of the Gradient
// Variance Analyzer. `rehearse profile` writes it as versioned JSON (docs/profile.md); simulations
// and the planner use it in place of the device table. No time covers more than one pass of a
// segment or one collective, so a prediction never contains the step time that it predicts.
//
// Every time names the kind of device it was measured on, so profiles of different machines can be
// merged. An empty kind stands for all kinds; only files of version 1 may have one.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/cluster/cluster.h"
#include "engine/model/model.h"
#include "engine/plan/plan.h"
#include "engine/program/program.h"
#include "engine/tensors/variance.h"

namespace rehearse::costs {

/// Median seconds of one pass of a segment over one micro-batch of `samples` on one of `tp` ranks,
/// while Profile::ranks ranks run. Holds for all segments of this kind in the model.
struct SegmentTime {
  std::string model = {};
  model::SegmentKind kind = model::SegmentKind::embedding;
  program::Pass pass = program::Pass::forward;
  int samples = 0, seq_len = 0, tp = 1;
  program::DType dtype = program::DType::f32;
  double seconds = 0;
  std::string device_kind = {};
};
/// Bytes that a measured update touches of each element: it reads the gradient; it reads and writes
/// weight, fp32 moments and, with 16 bits, the fp32 weight.
double bytes_of_update(plan::Optimizer optimizer, program::DType dtype);
/// Seconds per element of one optimizer update that touches `bytes_of_update` of it.
struct UpdateTime {
  plan::Optimizer optimizer = plan::Optimizer::adamw;
  program::DType dtype = program::DType::f32;
  double seconds_per_element = 0;
  double launch = 0;  // fixed part, seconds
  std::string device_kind = {};
};
/// Rate of a kernel: bytes touched (read plus written) per second.
struct KernelRate {
  program::KernelKind kind = program::KernelKind::measure;
  double bytes_per_second = 0;
  double launch = 0;  // fixed part, seconds
  std::string device_kind = {};
};
/// Seconds of one collective of `bytes` (the whole tensor) among `members` ranks of one node, as
/// the runtime implements it.
struct CollectiveTime {
  program::Move move = program::Move::all_reduce;
  int members = 0;
  std::int64_t bytes = 0;
  double seconds = 0;
  std::string device_kind = {};
};
/// Seconds of one send with its receive inside a node.
struct TransferTime {
  std::int64_t bytes = 0;
  double seconds = 0;
  std::string device_kind = {};
};
/// One direction between two devices (indices into Cluster::devices): latency in seconds and
/// bandwidth in bytes/s. Medians of several ping-pongs; a spread is the median absolute deviation.
struct PairTime {
  Id from = 0, to = 0;
  double latency = 0, latency_spread = 0;
  double bandwidth = 0, bandwidth_spread = 0;
};

struct Profile {
  static constexpr int version = 3;
  std::string host = {};                           // for readers: CPU, cores, kernel, date
  bool simulated = false;                          // simulated on a modelled cluster, not measured
  bool encrypted = false;                          // connections, as with run.encrypt
  int cores = 0, ranks = 1, threads_per_rank = 1;  // ranks: how many ran during the measurement
  std::vector<SegmentTime> segments = {};
  std::vector<UpdateTime> updates = {};
  std::vector<KernelRate> kernels = {};
  std::vector<CollectiveTime> collectives = {};
  std::vector<TransferTime> transfers = {};
  double cpu_seconds_per_byte = 0;   // core seconds per byte sent or received, where ranks share
                                     // the cores of a host
  std::string cluster = {};          // name of the cluster of `pairs`, for messages
  std::uint64_t cluster_hash = 0;    // its Cluster::hash; 0: no particular cluster
  std::vector<PairTime> pairs = {};  // by (from, to)
  std::vector<tensors::LayerVariance> variances = {};

  /// Whether it has times of communication.
  bool communicates() const;
  /// Whether some time holds for this kind of device.
  bool covers(std::string_view device_kind) const;
  /// Seconds from entries of exactly this model, kind, pass, tp and dtype, by tokens (samples x
  /// seq_len): linear between measured points, proportional to tokens outside them. These functions
  /// return nullopt when nothing fits.
  std::optional<double> segment_seconds(const std::string& model, model::SegmentKind kind,
                                        program::Pass pass, int samples, int seq_len, int tp,
                                        program::DType dtype, std::string_view device_kind) const;
  /// `bytes`: that the update touches, of all its elements. One that keeps other state than the
  /// measured one takes time in proportion.
  std::optional<double> update_seconds(plan::Optimizer optimizer, program::DType dtype,
                                       std::int64_t bytes, std::string_view device_kind) const;
  std::optional<double> kernel_seconds(program::KernelKind kind, std::int64_t bytes,
                                       std::string_view device_kind) const;
  /// Seconds from entries of this move and number of members, linear between measured sizes. Below
  /// the smallest size: its seconds. Above the largest size: in proportion to the bytes.
  std::optional<double> collective_seconds(program::Move move, int members, std::int64_t bytes,
                                           std::string_view device_kind) const;
  /// Between sizes and beyond them like collective_seconds.
  std::optional<double> transfer_seconds(std::int64_t bytes, std::string_view device_kind) const;
  /// Null when the pair was not measured.
  const PairTime* pair(Id from, Id to) const;
};

/// The entries of both profiles; equal entries are kept once. Throws InputError when the profiles
/// contradict each other: pairs of different clusters, times with different numbers of ranks or
/// threads, connections in the clear and encrypted ones, or different results for the same key.
/// `a_name` and `b_name` (files): for messages.
Profile merge(const Profile& a, const Profile& b, const std::string& a_name = "first",
              const std::string& b_name = "second");

/// What two entries of the profile measured, so that they may contradict each other; empty:
/// nothing.
std::string measured_twice(const Profile& profile);

std::string to_json(const Profile& profile);
/// `source` names the text in messages. Throws InputError for malformed JSON, an unknown version or
/// key, a missing number or one out of range, and two entries that measured the same.
Profile parse_profile(const std::string& json, const std::string& source);
/// Throws InputError when the file cannot be read.
Profile load_profile(const std::string& path);
/// Loads a profile for use on this cluster. Throws InputError (key cluster.profile) when the
/// profile is of another cluster or covers none of this cluster's devices. A host with shared cores
/// (this-machine) may have another number of ranks now; then only the pairs are dropped, because
/// they name devices of the old number.
Profile load_profile(const std::string& path, const cluster::Cluster& cluster);

}  // namespace rehearse::costs
