// What was measured on machines, in pieces no longer than one segment or one collective, so that a
// prediction is put together from parts and never contains the step time it predicts; and what a
// warm-up saw of the gradients. It is what Sun 2026, section 3.1, calls the Topology Profiler's and
// the Gradient Variance Analyzer's results. `rehearse profile` writes it, simulations and the
// planner read it in place of the device table's assumptions. JSON, versioned (docs/profile.md).
//
// Every time says on which kind of device it was taken, so that profiles of unlike machines merge
// into one. An empty kind stands for all: only files of version 1 have it.
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

/// Median seconds of one pass of a segment over one micro-batch on one of `tp` ranks, `ranks` of
/// them running at a time (Profile::ranks). Segments of one kind of one model are alike.
struct SegmentTime {
  std::string model = {};
  model::SegmentKind kind = model::SegmentKind::embedding;
  program::Pass pass = program::Pass::forward;
  int samples = 0, seq_len = 0, tp = 1;
  program::DType dtype = program::DType::f32;
  double seconds = 0;
  std::string device_kind = {};
};
/// Seconds per element of one optimizer update (reads gradient, writes parameter and moments).
struct UpdateTime {
  plan::Optimizer optimizer = plan::Optimizer::adamw;
  program::DType dtype = program::DType::f32;
  double seconds_per_element = 0;
  double launch = 0;  // fixed part, seconds
  std::string device_kind = {};
};
/// Bytes touched (read plus written) per second by a kernel of this kind.
struct KernelRate {
  program::KernelKind kind = program::KernelKind::measure;
  double bytes_per_second = 0;
  double launch = 0;  // fixed part, seconds
  std::string device_kind = {};
};
/// Seconds of one collective of `bytes` (the whole tensor) among `members` ranks of one node, by
/// the runtime's own implementation.
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
/// One direction between two devices of the cluster (indices as in Cluster::devices): seconds and
/// bytes a second, the median of several ping-pongs and their median absolute deviation.
struct PairTime {
  Id from = 0, to = 0;
  double latency = 0, latency_spread = 0;
  double bandwidth = 0, bandwidth_spread = 0;
};

struct Profile {
  static constexpr int version = 2;
  std::string host = {};   // for people: CPU, cores, kernel, date
  bool simulated = false;  // played on a model of the machines: no better than the model
  int cores = 0, ranks = 1, threads_per_rank = 1;  // ranks: how many ran while it was measured
  std::vector<SegmentTime> segments = {};
  std::vector<UpdateTime> updates = {};
  std::vector<KernelRate> kernels = {};
  std::vector<CollectiveTime> collectives = {};
  std::vector<TransferTime> transfers = {};
  double cpu_seconds_per_byte = 0;   // work that a communicated byte costs a host's cores (sent or
                                     // received), where ranks share them
  std::string cluster = {};          // name of the cluster that `pairs` is about, for messages
  std::uint64_t cluster_hash = 0;    // Cluster::hash of it; 0: of no particular cluster
  std::vector<PairTime> pairs = {};  // by (from, to)
  std::vector<tensors::LayerVariance> variances = {};

  /// Something was timed on this kind of device.
  bool covers(std::string_view device_kind) const;
  /// Measured at exactly this model, kind, pass, tp and dtype, straight lines between measured
  /// numbers of tokens (samples x seq_len), proportional beyond them. Empty when there is none.
  std::optional<double> segment_seconds(const std::string& model, model::SegmentKind kind,
                                        program::Pass pass, int samples, int seq_len, int tp,
                                        program::DType dtype, std::string_view device_kind) const;
  std::optional<double> update_seconds(plan::Optimizer optimizer, program::DType dtype,
                                       std::int64_t elements, std::string_view device_kind) const;
  std::optional<double> kernel_seconds(program::KernelKind kind, std::int64_t bytes,
                                       std::string_view device_kind) const;
  /// Straight lines between measured sizes of this move and number of members; below the smallest:
  /// its time; above the largest: its bandwidth.
  std::optional<double> collective_seconds(program::Move move, int members, std::int64_t bytes,
                                           std::string_view device_kind) const;
  std::optional<double> transfer_seconds(std::int64_t bytes, std::string_view device_kind) const;
  /// Null when the pair was not measured.
  const PairTime* pair(Id from, Id to) const;
};

/// What both hold. Equal entries count once. Throws InputError when they contradict each other:
/// other clusters, other numbers of ranks or threads at work, or one thing measured twice with
/// different results. `a_name` and `b_name` (files) are for messages.
Profile merge(const Profile& a, const Profile& b, const std::string& a_name = "first",
              const std::string& b_name = "second");

std::string to_json(const Profile& profile);
/// `source` names the text in messages. Throws InputError on malformed JSON, an unknown version, an
/// unknown key, a negative or missing number, an entry that stands there twice.
Profile parse_profile(const std::string& json, const std::string& source);
/// Throws InputError when the file cannot be read.
Profile load_profile(const std::string& path);
/// The same for use on this cluster. Throws InputError, about key cluster.profile, when the profile
/// is of another one. A host whose ranks share its cores is the same host with any number of ranks:
/// then only the pairs, which are of devices that are not there now, are left out.
Profile load_profile(const std::string& path, const cluster::Cluster& cluster);

}  // namespace rehearse::costs
