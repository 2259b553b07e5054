#include "engine/methods/lowering/exchange/partitions.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/base/refusal.h"
#include "engine/methods/lowering/exchange/gradient_sync.h"
#include "engine/methods/lowering/roles.h"
#include "engine/methods/strategy.h"

namespace rehearse::methods {
namespace {

/// Elements of a partition: a multiple of the ranks of a machine.
std::int64_t elements_of_partition(const plan::Plan& plan) {
  const double bytes = plan.exchange.bucket_bytes();
  const double elements =
      std::min(1e15, bytes / static_cast<double>(size_of(plan.gradient_type())));
  const std::int64_t local = local_ranks(plan);
  return std::max<std::int64_t>(1, std::llround(std::ceil(elements / double(local)))) * local;
}

/// Gives each partition its server.
void assign(const plan::Plan& plan, std::vector<Partition>& partitions) {
  std::vector<double> load(static_cast<std::size_t>(plan.mesh.servers), 0.0);
  for (Partition& partition : partitions) {
    double least = 0;
    for (int s = 0; s < plan.mesh.servers; ++s) {
      const double filled = (load[static_cast<std::size_t>(s)] +
                             static_cast<double>(partition.end - partition.begin)) /
                            server_share(plan, s);
      if (partition.server < 0 || filled < least) partition.server = s, least = filled;
    }
    if (partition.server >= 0)
      load[static_cast<std::size_t>(partition.server)] +=
          static_cast<double>(partition.end - partition.begin);
  }
  const auto idle = std::ranges::count(load, 0.0);
  if (idle > 0)
    refuse("servers", std::to_string(plan.mesh.servers),
           fmt::format("{} of them would sum nothing, as there are {} partitions of at most {}; "
                       "nearest: {}, or a smaller method.bucket",
                       idle, partitions.size(), to_text(Bytes(plan.exchange.bucket_bytes())),
                       plan.mesh.servers - idle));
}

}  // namespace

int local_ranks(const plan::Plan& plan) { return plan.exchange.machines.local_ranks.value_or(1); }

int machines_of(const plan::Plan& plan) { return plan.mesh.dp / local_ranks(plan); }

double server_share(const plan::Plan& plan, int server) {
  if (plan.exchange.machines.server_placement != plan::ServerPlacement::mixed) return 1;
  const int machines = machines_of(plan), own = plan.mesh.servers - machines;
  return server < machines ? machines - own : 2 * (machines - 1);
}

std::vector<Partition> partitions_of(const plan::Plan& plan, const std::vector<Bucket>& buckets) {
  const std::int64_t size = elements_of_partition(plan);
  std::vector<Partition> out;
  for (Id b = 0; b < buckets.size(); ++b) {
    const Bucket& bucket = buckets[b];
    for (std::int64_t begin = 0; begin < bucket.elements; begin += size) {
      const bool whole = size >= bucket.elements;
      out.push_back({.name = whole ? bucket.name : fmt::format("{}.p{}", bucket.name, begin / size),
                     .bucket = b,
                     .begin = begin,
                     .end = std::min(begin + size, bucket.elements),
                     .layer = bucket.completes_at});
    }
  }
  assign(plan, out);
  return out;
}

std::vector<Partition> partitions_of(const plan::Plan& plan, const model::ModelSpec& model) {
  program::Program program = make_mesh(plan);
  return partitions_of(
      plan, make_buckets(program, plan, model, 0, strategy_named(plan.method).sync(plan)));
}

}  // namespace rehearse::methods
