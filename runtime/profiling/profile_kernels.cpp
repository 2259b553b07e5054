// Times kernels by size, all ranks at once. A kernel that the device lacks is timed as it runs in
// training: on the host, with copies.
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include "engine/secure/keys.h"
#include "engine/secure/ring.h"
#include "runtime/device/accelerator.h"
#include "runtime/executor/host_copies.h"
#include "runtime/executor/rank_memory.h"
#include "runtime/kernels/host_kernels.h"
#include "runtime/kernels/low_rank.h"
#include "runtime/profiling/profile_parts.h"

namespace rehearse::runtime {
namespace {

/// Fixed seconds and rate of a kernel from its times at two sizes.
costs::KernelRate fit(program::KernelKind kind, double small_bytes, double small_seconds,
                      double large_bytes, double large_seconds) {
  const double per_byte =
      std::max((large_seconds - small_seconds) / (large_bytes - small_bytes), 1e-15);
  return {.kind = kind,
          .bytes_per_second = 1 / per_byte,
          .launch = std::max(0.0, small_seconds - per_byte * small_bytes)};
}

program::Kernel selection(std::int64_t n) { return {.of = n, .keep = n / 10}; }
program::Kernel coding(std::int64_t n) {
  return {.kind = program::KernelKind::quantise, .of = n, .keep = n, .block = 256};
}

/// What the kernels read and write, for at most `largest` values.
class Operands {
 public:
  Operands(Device& device, std::int64_t largest)
      : device_(device),
        source_(device_tensor(device, {largest}, at::kFloat)),
        target_(device_tensor(device, {largest}, at::kFloat)),
        anchor_(device_tensor(device, {largest}, at::kFloat)),
        moment_(device_tensor(device, {largest}, at::kFloat)),
        packet_(device_tensor(device, {packet_room(selection(largest))}, at::kByte)),
        codes_(device_tensor(device, {quantised_bytes(coding(largest))}, at::kByte)),
        levels_(device_tensor(device, {largest}, at::kInt)) {
    const at::Tensor values = at::empty({largest}, at::kFloat);
    auto* const at = values.data_ptr<float>();
    for (std::int64_t i = 0; i < largest; ++i)
      at[i] = static_cast<float>((i * 2654435761U) % 1000003) * 1e-6F - 0.5F;
    store(device, source_, values);
  }

  /// Runs a kernel on `n` values, in a body.
  void run(program::KernelKind kind, std::int64_t n) {
    Accelerator* const accelerator = device_.accelerator();
    if (accelerator == nullptr) return compute(kind, n, host_kernels_);
    if (accelerator->has({.kind = kind})) return compute(kind, n, *accelerator);
    HostCopies copies(device_);
    compute(kind, n, host_kernels_);
    copies.store();
  }

 private:
  /// The first `n` elements, where this body computes.
  static at::Tensor first(const at::Tensor& tensor, std::int64_t n, bool writes) {
    const at::Tensor part = tensor.narrow(0, 0, n);
    HostCopies* const copies = HostCopies::current();
    return copies == nullptr ? part : copies->of(part, writes);
  }
  static const float* read(const at::Tensor& tensor, std::int64_t n) {
    return first(tensor, n, false).data_ptr<float>();
  }
  static float* write(const at::Tensor& tensor, std::int64_t n) {
    return first(tensor, n, true).data_ptr<float>();
  }
  static std::byte* bytes(const at::Tensor& tensor, std::int64_t n, bool writes) {
    return static_cast<std::byte*>(first(tensor, n, writes).data_ptr());
  }
  void compute(program::KernelKind kind, std::int64_t n, Kernels& kernels);

  Device& device_;
  at::Tensor source_, target_, anchor_, moment_, packet_, codes_, levels_;
  HostKernels host_kernels_ = {};
};

void Operands::compute(program::KernelKind kind, std::int64_t n, Kernels& kernels) {
  switch (kind) {
    case program::KernelKind::measure: {
      const std::array sources = {Values{read(source_, n), program::DType::f32, n}};
      kernels.measure(sources, 1, false, write(target_, n));
      return;
    }
    case program::KernelKind::rescale:
      kernels.rescale(read(source_, n), write(target_, n));
      return;
    case program::KernelKind::select:
      kernels.select(selection(n), {}, read(source_, n), program::DType::f32, write(target_, n),
                     nullptr, bytes(packet_, packet_room(selection(n)), true));
      return;
    case program::KernelKind::scatter_add:
      kernels.scatter_add(selection(n), {}, bytes(packet_, packet_room(selection(n)), false), 1, 0,
                          n, write(target_, n));
      return;
    case program::KernelKind::cast:
      first(source_, n, false).to(at::kBFloat16);
      return;
    case program::KernelKind::observe:
      kernels.observe({read(source_, n), program::DType::f32, n / 3}, 1, {}, write(target_, n));
      return;
    case program::KernelKind::quantise:
      kernels.quantise(coding(n), {}, read(source_, n), program::DType::f32, 0, 1,
                       write(target_, n), bytes(codes_, quantised_bytes(coding(n)), true));
      return;
    case program::KernelKind::dequantise:
      kernels.dequantise(coding(n), bytes(codes_, quantised_bytes(coding(n)), false), 1,
                         write(target_, n));
      return;
    case program::KernelKind::weigh:
    case program::KernelKind::drift:
    case program::KernelKind::outer_step:
    case program::KernelKind::mix: {
      const bool anchored =
          kind == program::KernelKind::drift || kind == program::KernelKind::outer_step;
      const bool steps = kind == program::KernelKind::outer_step;
      const float* const one[] = {read(source_, n)};
      kernels.average({.kind = kind,
                       .scale = 0.5F,
                       .momentum = 0.9F,
                       .sources = one,
                       .anchor = anchored ? write(anchor_, n) : nullptr,
                       .moment = steps ? write(moment_, n) : nullptr,
                       .target = write(target_, n),
                       .elements = n});
      return;
    }
    case program::KernelKind::mask: {
      std::vector<std::uint32_t> levels = secure::levels_of(
          std::span(read(source_, n), static_cast<std::size_t>(n)), 1, secure::Ring{});
      secure::add_mask(levels, {}, false);
      std::memcpy(bytes(levels_, n, true), levels.data(), levels.size() * sizeof levels[0]);
      return;
    }
    case program::KernelKind::unmask: {
      std::vector<std::uint32_t> sum(static_cast<std::size_t>(n));
      std::memcpy(sum.data(), bytes(levels_, n, false), sum.size() * sizeof sum[0]);
      secure::add_mask(sum, {}, true);
      std::ranges::copy(secure::mean_of(sum, 1, 1, secure::Ring{}), write(target_, n));
      return;
    }
    case program::KernelKind::in_time:    // reads a clock
    case program::KernelKind::advertise:  // few bytes
    case program::KernelKind::relay_keys:
    case program::KernelKind::share_secrets:
    case program::KernelKind::relay_shares:
    case program::KernelKind::tell_stayed:
    case program::KernelKind::open_shares:
      return;
    case program::KernelKind::momentum:
      kernels.blend_momentum(0.9, 0.5, read(source_, n), write(target_, n), n);
      return;
    case program::KernelKind::draw:
      draw({}, 0, write(target_, n), n);
      return;
    case program::KernelKind::project:  // their time depends on shapes (costs/local_prices.h)
    case program::KernelKind::orthonormalise:
    case program::KernelKind::project_back:
    case program::KernelKind::expand:
      return;
  }
}

}  // namespace

void profile_kernels(const ProfileSettings& settings, TimedStream& stream, Control& control,
                     costs::Profile& profile) {
  constexpr std::int64_t small = 1 << 14, large = 1 << 22;
  Operands operands(stream.device(), large);
  const auto seconds = [&](program::KernelKind kind, std::int64_t n) {
    const std::string key = fmt::format("kernel {} {}", static_cast<int>(kind), n);
    if (kind == program::KernelKind::scatter_add)  // it reads the packet of a selection
      stream.run([&] { operands.run(program::KernelKind::select, n); });
    control.barrier(key);
    const double mine =
        median_time(stream, settings.kernel_time.value, [&] { operands.run(kind, n); });
    return mean_over_ranks(control, key + " s", mine);
  };
  // Bytes read plus bytes written, as the linker counts them.
  const auto measure = [&](program::KernelKind kind, double bytes_per_element) {
    profile.kernels.push_back(fit(kind, bytes_per_element * small, seconds(kind, small),
                                  bytes_per_element * large, seconds(kind, large)));
  };
  measure(program::KernelKind::measure, 4);
  measure(program::KernelKind::select, 4 + 8 + 0.8);
  measure(program::KernelKind::scatter_add, 4 + 0.8);
  measure(program::KernelKind::cast, 6);
  measure(program::KernelKind::observe, (4 + 16) / 3.0);
  const double code = 1 + 4 / 256.0;
  measure(program::KernelKind::quantise, 4 + 8 + code);
  measure(program::KernelKind::dequantise, 4 + code);
  measure(program::KernelKind::weigh, 4 + 4);
  measure(program::KernelKind::drift, 4 + 4 + 4);
  measure(program::KernelKind::outer_step, 4 + 8 + 8 + 4);
  measure(program::KernelKind::mix, 4 + 8);
  measure(program::KernelKind::momentum, 12);
  measure(program::KernelKind::draw, 4);
  measure(program::KernelKind::mask, 8);  // one mask
  measure(program::KernelKind::unmask, 8);
  profile.kernels.push_back({.kind = program::KernelKind::rescale,
                             .bytes_per_second = 1e9,
                             .launch = seconds(program::KernelKind::rescale, small)});
}

}  // namespace rehearse::runtime
