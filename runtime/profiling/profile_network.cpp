// Times kernels, collectives and transfers by size, all ranks at once.
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "runtime/execution/rank_memory.h"
#include "runtime/kernels/averaging.h"
#include "runtime/kernels/low_rank.h"
#include "runtime/kernels/optimizer.h"
#include "runtime/kernels/quantise.h"
#include "runtime/kernels/sparsify.h"
#include "runtime/profiling/profile_parts.h"

namespace rehearse::runtime {
namespace {

/// Median seconds of one call of `work`, from at least five calls in about `seconds`.
double time_of(double seconds, const std::function<void()>& work) {
  work();
  std::vector<double> times;
  const double until = seconds_now() + seconds;
  while (times.size() < 5 || seconds_now() < until) {
    const double began = seconds_now();
    work();
    times.push_back(seconds_now() - began);
  }
  return costs::median(std::move(times));
}

/// Fixed seconds and rate of a kernel from its times at two sizes.
costs::KernelRate fit(program::KernelKind kind, double small_bytes, double small_seconds,
                      double large_bytes, double large_seconds) {
  const double per_byte =
      std::max((large_seconds - small_seconds) / (large_bytes - small_bytes), 1e-15);
  return {.kind = kind,
          .bytes_per_second = 1 / per_byte,
          .launch = std::max(0.0, small_seconds - per_byte * small_bytes)};
}

/// CPU time of this process so far, user and system.
double cpu_seconds() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

}  // namespace

void profile_kernels(Control& control, costs::Profile& profile) {
  constexpr std::int64_t small = 1 << 14, large = 1 << 22;
  const at::Tensor source = at::zeros({large}, at::kFloat);
  auto* const from = source.data_ptr<float>();
  for (std::int64_t i = 0; i < large; ++i)
    from[i] = static_cast<float>((i * 2654435761U) % 1000003) * 1e-6F - 0.5F;
  const at::Tensor target = at::zeros({large}, at::kFloat);
  const at::Tensor anchor = at::zeros({large}, at::kFloat), moment = at::zeros({large}, at::kFloat);
  const auto kernel_of = [](std::int64_t n) { return program::Kernel{.of = n, .keep = n / 10}; };
  std::vector<std::byte> packet(static_cast<std::size_t>(packet_room(kernel_of(large))));
  const auto codes_of = [](std::int64_t n) {
    return program::Kernel{.kind = program::KernelKind::quantise, .of = n, .keep = n, .block = 256};
  };
  std::vector<std::byte> codes(static_cast<std::size_t>(quantised_bytes(codes_of(large))));
  SelectScratch scratch;
  const auto seconds = [&](program::KernelKind kind, std::int64_t n) {
    const std::string key = fmt::format("kernel {} {}", static_cast<int>(kind), n);
    control.barrier(key);
    const double mine = time_of(0.1, [&] {
      switch (kind) {
        case program::KernelKind::measure:
          measure(std::array{Values{from, program::DType::f32, n}}, 1, false,
                  target.data_ptr<float>());
          return;
        case program::KernelKind::rescale:
          rescale(from, target.data_ptr<float>());
          return;
        case program::KernelKind::select:
          select(kernel_of(n), {}, from, program::DType::f32, target.data_ptr<float>(), nullptr,
                 packet.data(), scratch);
          return;
        case program::KernelKind::scatter_add:
          scatter_add(kernel_of(n), {}, packet.data(), 1, 0, n, target.data_ptr<float>(), scratch);
          return;
        case program::KernelKind::cast:
          source.narrow(0, 0, n).to(at::kBFloat16);
          return;
        case program::KernelKind::observe:
          observe(from, program::DType::f32, n / 3, 1, {}, target.data_ptr<float>());
          return;
        case program::KernelKind::quantise:
          quantise(codes_of(n), {}, from, program::DType::f32, 0, 1, target.data_ptr<float>(),
                   codes.data());
          return;
        case program::KernelKind::dequantise:
          dequantise(codes_of(n), codes.data(), 1, target.data_ptr<float>());
          return;
        case program::KernelKind::weigh:
          weigh(0.5F, from, target.data_ptr<float>(), n);
          return;
        case program::KernelKind::drift:
          drift(0.5F, anchor.data_ptr<float>(), from, target.data_ptr<float>(), n);
          return;
        case program::KernelKind::outer_step:
          outer_step(0.7F, 0.9F, from, anchor.data_ptr<float>(), moment.data_ptr<float>(),
                     target.data_ptr<float>(), n);
          return;
        case program::KernelKind::mix: {
          const float* const one[] = {from};
          mix(0.5F, one, target.data_ptr<float>(), n);
          return;
        }
        case program::KernelKind::momentum:
          blend_momentum(0.9, 0.5, from, target.data_ptr<float>(), n);
          return;
        case program::KernelKind::draw:
          draw({}, 0, target.data_ptr<float>(), n);
          return;
        case program::KernelKind::project:  // their time depends on shapes (costs/local_prices.h)
        case program::KernelKind::orthonormalise:
        case program::KernelKind::project_back:
        case program::KernelKind::expand:
          return;
      }
    });
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
  profile.kernels.push_back({.kind = program::KernelKind::rescale,
                             .bytes_per_second = 1e9,
                             .launch = seconds(program::KernelKind::rescale, small)});
}

void profile_network(const ProfileSettings& settings, Control& control, Network& network,
                     costs::Profile& profile) {
  const int world = control.environment().world_size, rank = control.environment().rank;
  if (world < 2) return;
  std::vector<Id> ranks(world);
  std::iota(ranks.begin(), ranks.end(), Id{0});
  const auto comm = network.communicator("profile", ranks);
  const auto largest = static_cast<std::int64_t>(settings.largest.value) / 4 / world * world;
  const at::Tensor whole = at::zeros({largest}, at::kFloat), out = at::zeros({largest}, at::kFloat);
  const double cpu_before = cpu_seconds();
  const Traffic traffic_before = comm->traffic();
  // The number of repetitions must be the same at all ranks.
  const auto timed = [&](const std::string& key, const std::function<void()>& work) {
    control.barrier(key);
    work();
    const double began = seconds_now();
    work();
    const double once = mean_over_ranks(control, key + " once", seconds_now() - began);
    const int repeats = std::clamp(static_cast<int>(settings.collective_time.value / once), 5, 200);
    std::vector<double> times;
    for (int i = 0; i < repeats; ++i) {
      comm->barrier();
      const double start = seconds_now();
      work();
      times.push_back(seconds_now() - start);
    }
    // The maximum over ranks: a collective has ended when it has ended on every rank.
    return max_over_ranks(control, key, costs::median(std::move(times)));
  };
  for (const program::Move move :
       {program::Move::all_reduce, program::Move::reduce_scatter, program::Move::all_gather,
        program::Move::broadcast, program::Move::reduce, program::Move::all_to_all,
        program::Move::rotate})
    for (std::int64_t elements = 1024 * world;; elements = std::min(elements * 8, largest)) {
      const int handle = comm->prepare({.move = move,
                                        .elements = elements,
                                        .root = move == program::Move::rotate ? 1 : 0,
                                        .consume = true});
      auto* const data = whole.data_ptr<float>();
      const std::int64_t part = rank * elements / world;
      profile.collectives.push_back(
          {.move = move,
           .members = world,
           .bytes = elements * 4,
           .seconds = timed(fmt::format("collective {} {}", static_cast<int>(move), elements), [&] {
             float* source = data;
             float* target = out.data_ptr<float>();
             if (move == program::Move::all_reduce || move == program::Move::broadcast)
               target = data;
             if (move == program::Move::all_gather) target = data, source = data + part;
             if (move == program::Move::reduce_scatter) target = data + part;
             comm->run(handle, source, target);
           })});
      if (elements >= largest) break;
    }
  const Traffic traffic = comm->traffic();
  const double moved = static_cast<double>(traffic.sent - traffic_before.sent) +
                       static_cast<double>(traffic.received - traffic_before.received);
  profile.cpu_seconds_per_byte =
      mean_over_ranks(control, "cpu", (cpu_seconds() - cpu_before) / std::max(moved, 1.0));

  // Ping-pongs between ranks 0 and 1, 2 and 3, and so on. With an odd number of ranks, the last one
  // takes no part.
  const int peer = rank ^ 1;
  for (std::int64_t elements = 1024;; elements = std::min(elements * 8, largest)) {
    const Buffer buffer{.data = whole.data_ptr(), .elements = elements};
    const double both = timed(fmt::format("transfer {}", elements), [&] {
      if (peer >= world) return;
      if (rank < peer) {
        comm->send(buffer, peer);
        comm->recv(buffer, peer);
      } else {
        comm->recv(buffer, peer);
        comm->send(buffer, peer);
      }
    });
    profile.transfers.push_back({.bytes = elements * 4, .seconds = both / 2});
    if (elements >= largest) break;
  }
}

}  // namespace rehearse::runtime
