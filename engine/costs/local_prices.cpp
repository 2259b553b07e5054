#include "engine/costs/local_prices.h"

#include "engine/costs/device_time.h"

namespace rehearse::costs {

std::optional<double> LocalPrices::measured(const cluster::DeviceKind& kind, Id segment,
                                            program::Pass pass, int samples,
                                            model::TensorSplit split, program::DType dtype) const {
  if (profile_ == nullptr) return std::nullopt;
  const auto of = [&](program::Pass what) {
    return profile_->segment_seconds(model_->name, model_->segments[segment].kind, what, samples,
                                     model_->seq_len, split.ranks, dtype, kind.name);
  };
  const auto found = of(pass);
  if (found || (pass != program::Pass::backward_input && pass != program::Pass::backward_weight))
    return found;
  const auto whole = of(program::Pass::backward);
  if (!whole) return std::nullopt;
  const auto flops = [&](program::Pass what) {
    return work_of(*model_, segment, what, samples, split.ranks, dtype).flops.value;
  };
  return *whole * flops(pass) /
         (flops(program::Pass::backward_input) + flops(program::Pass::backward_weight));
}

LocalPrice LocalPrices::pass(const cluster::DeviceKind& kind, Id segment, program::Pass pass,
                             int samples, model::TensorSplit split, program::DType dtype) const {
  if (const auto found = measured(kind, segment, pass, samples, split, dtype))
    return {*found, true};
  return {compute_seconds(kind, *model_, segment, pass, samples, split, dtype), false};
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

LocalPrice LocalPrices::update(const cluster::DeviceKind& kind, plan::Optimizer optimizer,
                               program::DType dtype, std::int64_t elements,
                               std::int64_t bytes) const {
  if (profile_ != nullptr)
    if (const auto measured = profile_->update_seconds(optimizer, dtype, elements, kind.name))
      return {*measured, true};
  const double further = model_->software.update_bytes * static_cast<double>(elements);
  return {kernel_seconds(kind, static_cast<double>(bytes) + further), false};
}

}  // namespace rehearse::costs
