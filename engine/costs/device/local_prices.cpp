#include "engine/costs/device/local_prices.h"

#include "engine/costs/device/device_time.h"
#include "engine/secure/group.h"

namespace rehearse::costs {

std::optional<double> LocalPrices::measured(const cluster::DeviceKind& kind, Id segment,
                                            program::Pass pass, int samples,
                                            model::TensorSplit split, program::DType dtype,
                                            const model::Piece& piece) const {
  if (profile_ == nullptr || split.fp8) return std::nullopt;  // `rehearse profile` has no FP8
  const bool part = piece.part != program::Part::whole;
  const auto of = [&](program::Pass what) {
    return profile_->segment_seconds(model_->name, model_->segments[segment].kind, what, samples,
                                     part ? model_->seq_len : model_->seq_len / split.context,
                                     split.ranks, dtype, kind.name);
  };
  const auto flops = [&](program::Pass what, model::TensorSplit over, const model::Piece& of_part) {
    double sum = 0;
    for (const model::Launch& l :
         launches_of(*model_, segment, what, samples, over, dtype, of_part))
      if (l.kind != model::Launch::Kind::memory) sum += l.flops();
    return sum;
  };
  if (part) {
    const auto whole = of(pass);
    if (!whole) return std::nullopt;
    return *whole * flops(pass, split, piece) / flops(pass, split.ranks, {});
  }
  const auto found = of(pass);
  if (found || (pass != program::Pass::backward_input && pass != program::Pass::backward_weight))
    return found;
  const auto whole = of(program::Pass::backward);
  if (!whole) return std::nullopt;
  return *whole * flops(pass, split, {}) /
         (flops(program::Pass::backward_input, split, {}) +
          flops(program::Pass::backward_weight, split, {}));
}

LocalPrice LocalPrices::pass(const cluster::DeviceKind& kind, Id segment, program::Pass pass,
                             int samples, model::TensorSplit split, program::DType dtype,
                             const model::Piece& piece) const {
  if (const auto found = measured(kind, segment, pass, samples, split, dtype, piece))
    return {*found, true};
  return {compute_seconds(kind, *model_, segment, pass, samples, split, dtype, piece), false};
}

double LocalPrices::conversion(const cluster::DeviceKind& kind, std::int64_t elements,
                               program::DType dtype) const {
  if (elements == 0) return 0;
  return kernel(kind, program::KernelKind::cast,
                elements * (size_of(dtype) + 2 * size_of(program::DType::f32)))
      .seconds;
}

LocalPrice LocalPrices::kernel(const cluster::DeviceKind& kind, program::KernelKind what,
                               std::int64_t bytes) const {
  if (profile_ != nullptr)
    if (const auto measured = profile_->kernel_seconds(what, bytes, kind.name))
      return {*measured, true};
  return {kernel_seconds(kind, static_cast<double>(bytes)), false};
}

LocalPrice LocalPrices::masks(const cluster::DeviceKind& kind, program::KernelKind what,
                              std::int64_t bytes, std::int64_t masks) const {
  const auto count = static_cast<double>(masks + secure::masks_of_levels);
  if (profile_ != nullptr)
    if (const auto measured = profile_->kernel_seconds(what, bytes, kind.name))
      return {count / (1 + secure::masks_of_levels) * *measured, true};
  return {count * static_cast<double>(bytes) / 2 / secure::mask_rate, false};
}

LocalPrice LocalPrices::factors(const cluster::DeviceKind& kind, program::KernelKind what,
                                const program::Factors& factors, std::int64_t bytes) const {
  return {kernel_seconds(kind, static_cast<double>(bytes), flops_of(what, factors),
                         launches_of(what, factors)),
          false};
}

LocalPrice LocalPrices::update(const cluster::DeviceKind& kind, plan::Optimizer optimizer,
                               program::DType dtype, std::int64_t elements,
                               std::int64_t bytes) const {
  if (profile_ != nullptr)
    if (const auto measured = profile_->update_seconds(optimizer, dtype, bytes, kind.name))
      return {*measured, true};
  const double further = model_->software.update_bytes * static_cast<double>(elements);
  return {kernel_seconds(kind, static_cast<double>(bytes) + further), false};
}

}  // namespace rehearse::costs
