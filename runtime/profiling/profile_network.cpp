// Times collectives and transfers by size, all ranks at once.
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "engine/base/numbers/median.h"
#include "runtime/device/accelerator.h"
#include "runtime/executor/rank_memory.h"
#include "runtime/profiling/profile_parts.h"

namespace rehearse::runtime {
namespace {

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

std::unique_ptr<Communicator> connect_all(const std::string& channel, Device& device,
                                          Control& control, Network& network) {
  std::vector<Id> ranks(static_cast<std::size_t>(control.environment().world_size));
  std::iota(ranks.begin(), ranks.end(), Id{0});
  Accelerator* const accelerator = device.accelerator();
  auto comm = accelerator == nullptr ? network.communicator(channel, std::move(ranks))
                                     : accelerator->communicator(channel, std::move(ranks));
  comm->connect();
  return comm;
}

void meet(Communicator& comm, Device& device, float* scratch) {
  if (device.accelerator() == nullptr)
    comm.barrier();
  else
    comm.all_reduce({.data = scratch, .elements = 1});
}

void profile_network(const ProfileSettings& settings, TimedStream& stream, Control& control,
                     Network& network, costs::Profile& profile) {
  const int world = control.environment().world_size, rank = control.environment().rank;
  if (world < 2) return;
  Device& device = stream.device();
  const auto comm = connect_all("profile", device, control, network);
  const auto largest = static_cast<std::int64_t>(settings.largest.value) / 4 / world * world;
  const at::Tensor whole = device_tensor(device, {largest}, at::kFloat);
  const at::Tensor out = device_tensor(device, {largest}, at::kFloat);
  const double cpu_before = cpu_seconds();
  const Traffic traffic_before = comm->traffic();
  // The number of repetitions must be the same at all ranks.
  const auto timed = [&](const std::string& key, const std::function<void()>& work) {
    control.barrier(key);
    std::vector<double> once, times;
    stream.run(work);
    stream.time(once, work);
    stream.finish();
    const double mean = mean_over_ranks(control, key + " once", once.front());
    const int repeats = std::clamp(static_cast<int>(settings.collective_time.value / mean), 5, 200);
    for (int i = 0; i < repeats; ++i) {
      stream.run([&] { meet(*comm, device, out.data_ptr<float>()); });
      stream.time(times, work);
    }
    stream.finish();
    // The maximum over ranks: a collective has ended when it has ended on every rank.
    return max_over_ranks(control, key, median(std::move(times)));
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
  // An accelerator moves bytes without the host's cores.
  const double cpu = device.accelerator() == nullptr ? cpu_seconds() - cpu_before : 0;
  profile.cpu_seconds_per_byte = mean_over_ranks(control, "cpu", cpu / std::max(moved, 1.0));

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
