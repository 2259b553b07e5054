// Seconds of local work on a kind of device: from the profile if it has measured such work, else
// from the device table (device_time.h). Only this file decides between the two.
#pragma once
#include <cstdint>
#include <optional>

#include "engine/cluster/cluster.h"
#include "engine/costs/profile.h"
#include "engine/model/launches.h"
#include "engine/model/model.h"
#include "engine/plan/plan.h"
#include "engine/program/low_rank.h"
#include "engine/program/program.h"

namespace rehearse::costs {

struct LocalPrice {
  double seconds = 0;
  bool measured = false;  // from the profile

  LocalPrice operator+(double more) const { return {seconds + more, measured}; }
};

class LocalPrices {
 public:
  /// `profile` may be null. Model and profile must outlive this object.
  LocalPrices(const model::ModelSpec& model, const Profile* profile)
      : model_(&model), profile_(profile) {}

  /// One pass of a segment over `samples` samples on one of the ranks of `split`. Throws InputError
  /// when the profile has no such pass and the kind cannot compute in this dtype.
  LocalPrice pass(const cluster::DeviceKind& kind, Id segment, program::Pass pass, int samples,
                  model::TensorSplit split, program::DType dtype,
                  const model::Piece& piece = {}) const;
  /// Seconds to add `elements` gradients of this dtype to fp32 sums: each is read, and its sum is
  /// read and written.
  double conversion(const cluster::DeviceKind& kind, std::int64_t elements,
                    program::DType dtype) const;
  /// A kernel that touches `bytes` (read plus written).
  LocalPrice kernel(const cluster::DeviceKind& kind, program::KernelKind what,
                    std::int64_t bytes) const;
  /// A kernel of a secure sum that touches `bytes`, of which half are levels, and adds so many
  /// masks to them. The host's work, at secure::mask_rate; in a profile it has one mask.
  LocalPrice masks(const cluster::DeviceKind& kind, program::KernelKind what, std::int64_t bytes,
                   std::int64_t masks) const;
  /// A kernel on factors of a matrix (program/low_rank.h) that touches `bytes`. Profiles have none.
  LocalPrice factors(const cluster::DeviceKind& kind, program::KernelKind what,
                     const program::Factors& factors, std::int64_t bytes) const;
  /// An update of `elements` parameters of this dtype, which touches `bytes`.
  LocalPrice update(const cluster::DeviceKind& kind, plan::Optimizer optimizer,
                    program::DType dtype, std::int64_t elements, std::int64_t bytes) const;

 private:
  /// From the profile. The halves of a backward that was measured as a whole (files of older
  /// versions) share its time in proportion to their FLOPs; so do the parts of attention, of which
  /// profiles have the whole.
  std::optional<double> measured(const cluster::DeviceKind& kind, Id segment, program::Pass pass,
                                 int samples, model::TensorSplit split, program::DType dtype,
                                 const model::Piece& piece) const;

  const model::ModelSpec* model_;
  const Profile* profile_;
};

}  // namespace rehearse::costs
