#include "engine/costs/table_profile.h"

#include <fmt/format.h>

#include "engine/base/errors.h"
#include "engine/base/names.h"
#include "engine/base/numbers/median.h"
#include "engine/costs/device/device_time.h"
#include "engine/costs/network/ping_pong.h"

namespace rehearse::costs {
namespace {

/// All devices of one kind.
class DevicesOfKind {
 public:
  DevicesOfKind(const cluster::Cluster& cluster, Id kind, const cluster::Disturber& disturber,
                int repeats)
      : disturber_(disturber), repeats_(repeats) {
    for (Id d = 0; d < cluster.devices().size(); ++d)
      if (cluster.devices()[d].kind == kind) devices_.push_back(d);
  }
  bool present() const { return !devices_.empty(); }
  /// Measures work that takes `seconds` undisturbed: the median over devices of the median over
  /// runs.
  double measure(double seconds) {
    std::vector<double> of_device;
    for (const Id device : devices_) {
      std::vector<double> runs;
      for (int r = 0; r < repeats_; ++r)
        runs.push_back(seconds * disturber_.compute_factor(device, r, op_));
      of_device.push_back(median(std::move(runs)));
    }
    ++op_;
    return median(std::move(of_device));
  }

 private:
  const cluster::Disturber& disturber_;
  int repeats_;
  std::vector<Id> devices_ = {};
  Id op_ = 0;  // number of the measurement: each has its own jitter
};

/// The median over all segments of a kind. They cost the same, except the first or the last.
double layer_seconds(const cluster::DeviceKind& kind, const model::ModelSpec& model,
                     model::SegmentKind segment, program::Pass pass, int samples, int tp,
                     program::DType dtype) {
  std::vector<double> seconds;
  for (Id s = 0; s < model.segments.size(); ++s)
    if (model.segments[s].kind == segment)
      seconds.push_back(compute_seconds(kind, model, s, pass, samples, tp, dtype));
  return median(std::move(seconds));
}

/// The embedding has no gradient of an input, so its backward has no halves.
std::vector<program::Pass> passes_of(model::SegmentKind segment) {
  std::vector<program::Pass> passes{program::Pass::forward, program::Pass::backward,
                                    program::Pass::recompute};
  if (segment != model::SegmentKind::embedding)
    passes.insert(passes.end(), {program::Pass::backward_input, program::Pass::backward_weight});
  return passes;
}

void add_segments(Profile& profile, const model::ModelSpec& model, const cluster::DeviceKind& kind,
                  DevicesOfKind& devices, const TableSettings& settings) {
  for (const int tp : settings.tensor_parallel)
    for (const int samples : settings.samples)
      for (const model::SegmentKind segment :
           {model::SegmentKind::embedding, model::SegmentKind::attention, model::SegmentKind::mlp,
            model::SegmentKind::head})
        for (const program::Pass pass : passes_of(segment))
          profile.segments.push_back({.model = model.name,
                                      .kind = segment,
                                      .pass = pass,
                                      .samples = samples,
                                      .seq_len = model.seq_len,
                                      .tp = tp,
                                      .dtype = settings.dtype,
                                      .seconds = devices.measure(layer_seconds(
                                          kind, model, segment, pass, samples, tp, settings.dtype)),
                                      .device_kind = kind.name});
}

}  // namespace

void add_table_times(Profile& profile, const model::ModelSpec& model,
                     const cluster::Cluster& cluster, const cluster::Disturber& disturber,
                     const TableSettings& settings) {
  bool any = false;
  for (Id k = 0; k < cluster.kinds().size(); ++k) {
    const cluster::DeviceKind& kind = cluster.kinds()[k];
    DevicesOfKind devices(cluster, k, disturber, settings.repeats);
    if (!devices.present() || !computes_in(kind, settings.dtype)) continue;
    any = true;
    add_segments(profile, model, kind, devices, settings);
    const double launch = devices.measure(kernel_seconds(kind, 0));
    const double per_byte = devices.measure(kernel_seconds(kind, 1) - kernel_seconds(kind, 0));
    profile.updates.push_back(
        {.optimizer = settings.optimizer,
         .dtype = settings.dtype,
         .seconds_per_element = per_byte * bytes_of_update(settings.optimizer, settings.dtype),
         .launch = launch,
         .device_kind = kind.name});
    for (std::size_t i = 0; i < spellings(program::KernelKind{}).size(); ++i)
      if (!sums_securely(static_cast<program::KernelKind>(i)))  // the host's work
        profile.kernels.push_back({.kind = static_cast<program::KernelKind>(i),
                                   .bytes_per_second = 1 / per_byte,
                                   .launch = launch,
                                   .device_kind = kind.name});
  }
  if (!any)
    throw InputError(fmt::format("--precision: no device of {} computes in {}", cluster.name(),
                                 name_of(settings.dtype)));
}

}  // namespace rehearse::costs
