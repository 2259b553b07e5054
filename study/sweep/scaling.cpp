#include "study/sweep/scaling.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <numeric>

#include "engine/base/errors.h"
#include "engine/base/numbers/divisors.h"
#include "engine/cluster/cluster.h"

namespace rehearse::study {
namespace {

using Json = nlohmann::ordered_json;

/// "dgx-a100:16" without what follows the colon.
std::string without_size(const std::string& name) {
  const auto colon = name.rfind(':');
  return colon == std::string::npos || name.find('/', colon) != std::string::npos
             ? name
             : name.substr(0, colon);
}

/// Chooses the factors of `left` with the smallest sum, so many and none below `least`, and writes
/// them after `so_far` into `best`.
void factorise(int left, std::size_t factors, int least, std::vector<int>& so_far,
               std::vector<int>& best) {
  const auto sum = [](const std::vector<int>& of) {
    return std::accumulate(of.begin(), of.end(), 0);
  };
  if (factors == 0) {
    if (left == 1 && (best.empty() || sum(so_far) < sum(best))) best = so_far;
    return;
  }
  for (const int factor : divisors(left)) {
    if (factor < least) continue;
    so_far.push_back(factor);
    factorise(left / factor, factors - 1, factor, so_far, best);
    so_far.pop_back();
  }
}

/// "4x4x8": the torus of so many devices that is closest to a cube.
std::string torus_of(int devices, std::size_t dimensions) {
  std::vector<int> so_far, best;
  factorise(devices, dimensions, 1, so_far, best);
  return fmt::format("{}", fmt::join(best, "x"));
}

}  // namespace

const Resizer::Size& Resizer::size_of(const Config& cluster, const std::string& name) {
  const auto [it, fresh] = sizes_.try_emplace(name);
  Size& size = it->second;
  if (!fresh) return size;
  std::string other;  // a size, after the colon
  try {
    const cluster::Cluster one = cluster::load_cluster(name);
    const auto devices = static_cast<int>(one.devices().size());
    const bool torus = !one.torus().empty();
    size = {.devices = torus ? devices / one.nodes() : devices,
            .of_ranks = one.shared_cores() > 0,
            .dimensions = one.torus().size()};
    other = torus ? torus_of(devices, size.dimensions) : "1";
  } catch (const InputError& error) {
    throw cluster.error("name", error.what());
  }
  try {
    cluster::load_cluster(name + ":" + other);
  } catch (const InputError&) {
    size.fixed = true;
  }
  return size;
}

std::vector<std::string> Resizer::keys_for(const Config& job, std::int64_t devices) {
  const Config cluster = job.section("cluster"), train = job.section("train");
  if (cluster.has("devices"))
    throw cluster.error("devices", "a scaling chooses the devices; leave it out");
  const std::string stated = cluster.text("name", std::nullopt), name = without_size(stated);
  const Size& size = size_of(cluster, name);
  std::vector<std::string> out = {fmt::format("cluster.world_size={}", devices)};
  if (!size.fixed) {
    const std::int64_t count =
        size.of_ranks ? devices : (devices + size.devices - 1) / size.devices;
    out.push_back(fmt::format(
        "cluster.name=\"{}:{}\"", name,
        size.dimensions > 0 ? torus_of(static_cast<int>(count * size.devices), size.dimensions)
                            : std::to_string(count)));
  }
  if (scaling_ == Scaling::strong) return out;
  const std::int64_t batch = train.integer("global_batch", std::nullopt) * devices;
  if (batch % least_ != 0)
    throw train.error("global_batch",
                      fmt::format("{} on {} devices would be {} / {} on {}, which is no whole "
                                  "number",
                                  batch / devices, least_, batch, least_, devices));
  out.push_back(fmt::format("train.global_batch={}", batch / least_));
  return out;
}

void add_efficiency(Scaling scaling, std::vector<Row>& results) {
  struct First {
    double devices = 0, seconds = 0;
  };
  std::map<std::string, First> first;  // by the other values
  for (Row& row : results) {           // the number of devices rises
    if (row.metrics.is_null()) continue;
    Json others = row.values;
    others.erase("devices");
    const auto devices = row.values["devices"].get<double>();
    const auto seconds = row.metrics["step_s"].get<double>();
    const First& base = first.try_emplace(others.dump(), First{devices, seconds}).first->second;
    const double speedup = base.seconds / seconds;
    row.metrics["efficiency"] =
        scaling == Scaling::weak ? speedup : speedup * base.devices / devices;
  }
}

}  // namespace rehearse::study
