// What was measured on a machine, in pieces no longer than one segment or one collective, so that a
// prediction is put together from parts and never contains the step time it predicts. `rehearse
// profile` writes it, simulations read it in place of the device table's assumptions. JSON,
// versioned.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/model.h"
#include "engine/plan.h"
#include "engine/program.h"

namespace rehearse {

/// Median seconds of one pass of a segment over one micro-batch on one of `tp` ranks, `ranks` of
/// them running at a time (Profile::ranks). Segments of one kind of one model are alike.
struct SegmentTime {
  std::string model = {};
  SegmentKind kind = SegmentKind::embedding;
  Pass pass = Pass::forward;
  int samples = 0, seq_len = 0, tp = 1;
  DType dtype = DType::f32;
  double seconds = 0;
};
/// Seconds per element of one optimizer update (reads gradient, writes parameter and moments).
struct UpdateTime {
  Optimizer optimizer = Optimizer::adamw;
  DType dtype = DType::f32;
  double seconds_per_element = 0;
  double launch = 0;  // fixed part, seconds
};
/// Bytes touched (read plus written) per second by a kernel of this kind.
struct KernelRate {
  Local kind = Local::measure;
  double bytes_per_second = 0;
  double launch = 0;  // fixed part, seconds
};
/// Seconds of one collective of `bytes` (the whole tensor) among `members` ranks, by the runtime's
/// own implementation.
struct CollectiveTime {
  Move move = Move::all_reduce;
  int members = 0;
  std::int64_t bytes = 0;
  double seconds = 0;
};
/// Seconds of one send with its receive.
struct TransferTime {
  std::int64_t bytes = 0;
  double seconds = 0;
};

struct Profile {
  static constexpr int version = 1;
  std::string host = {};         // for people: CPU, cores, kernel, date
  std::string device_kind = {};  // which DeviceKind of the cluster this is about; empty: all
  int cores = 0, ranks = 1, threads_per_rank = 1;  // ranks: how many ran while it was measured
  std::vector<SegmentTime> segments = {};
  std::vector<UpdateTime> updates = {};
  std::vector<KernelRate> kernels = {};
  std::vector<CollectiveTime> collectives = {};
  std::vector<TransferTime> transfers = {};
  double cpu_seconds_per_byte = 0;  // work that a communicated byte costs a host's cores (sent or
                                    // received), where ranks share them

  /// Measured at exactly this model, kind, pass, tp and dtype, straight lines between measured
  /// numbers of tokens (samples x seq_len), proportional beyond them. Empty when there is none.
  std::optional<double> segment_seconds(const std::string& model, SegmentKind kind, Pass pass,
                                        int samples, int seq_len, int tp, DType dtype) const;
  std::optional<double> update_seconds(Optimizer optimizer, DType dtype,
                                       std::int64_t elements) const;
  std::optional<double> kernel_seconds(Local kind, std::int64_t bytes) const;
  /// Straight lines between measured sizes of this move and number of members; below the smallest:
  /// its time; above the largest: its bandwidth.
  std::optional<double> collective_seconds(Move move, int members, std::int64_t bytes) const;
  std::optional<double> transfer_seconds(std::int64_t bytes) const;
};

std::string to_json(const Profile& profile);
/// `source` names the text in messages. Throws InputError on malformed JSON, an unknown version, an
/// unknown key, a negative or missing number.
Profile parse_profile(const std::string& json, const std::string& source);
/// Throws InputError when the file cannot be read.
Profile load_profile(const std::string& path);

}  // namespace rehearse
