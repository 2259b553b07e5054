#include "engine/job/job_servers.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "engine/base/errors.h"
#include "engine/base/files/config.h"

namespace rehearse::job {
namespace {

/// Refuses nodes of several sizes for servers of which each node has one: the machines, the nodes
/// without their servers, must have equally many workers.
void check_alike(const Config& method, const std::vector<Id>& node_of) {
  std::map<Id, int> devices;
  for (const Id node : node_of) ++devices[node];
  std::set<int> sizes;
  for (const auto& [node, count] : devices) sizes.insert(count);
  if (sizes.size() > 1)
    throw method.error("server_placement",
                       fmt::format("\"colocated\": each node has a server and as many workers as "
                                   "the others, and the nodes have {} devices; cluster.devices can "
                                   "leave some out, or take \"own\"",
                                   fmt::join(sizes, " and ")));
}

}  // namespace

int servers_of(const Config& method, const JobKeys& keys, const methods::Combines& can,
               const std::vector<Id>& node_of) {
  if (keys.servers.value_or(0) > 0 && !can.servers)
    throw method.error("servers",
                       fmt::format("{} does not combine with method \"{}\": only parameter servers "
                                   "have them; leave it out",
                                   *keys.servers, keys.plan.method));
  if (keys.servers) return static_cast<int>(*keys.servers);
  if (!can.machines) return can.servers ? 1 : 0;
  const plan::ServerPlacement placement = keys.plan.exchange.machines.server_placement;
  if (placement == plan::ServerPlacement::mixed)
    throw method.error("server_placement",
                       "mixed: state method.servers, one for each machine and those on nodes of "
                       "their own");
  const bool own = placement == plan::ServerPlacement::own;
  const std::optional<int> local = keys.plan.exchange.machines.local_ranks;
  const auto nodes = static_cast<int>(std::set(node_of.begin(), node_of.end()).size());
  const int world = keys.dp ? static_cast<int>(*keys.dp) : static_cast<int>(node_of.size());
  if (!own && !local && keys.devices.empty()) check_alike(method, node_of);
  int machines = nodes;
  if (local) machines = world / (own || keys.dp ? *local : *local + 1);
  if (machines < 2) return 0;
  return own ? 1 : machines;
}

std::vector<Id> with_servers_last(std::vector<Id> devices, const JobKeys& keys, int servers,
                                  const cluster::Cluster& cluster) {
  if (keys.plan.exchange.machines.server_placement != plan::ServerPlacement::colocated ||
      servers == 0 || !keys.devices.empty() || cluster.shared_cores() > 0)
    return devices;
  const auto node = [&](std::size_t i) { return cluster.devices()[devices[i]].node; };
  std::vector<Id> workers, last;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const bool ends_node = i + 1 == devices.size() || node(i + 1) != node(i);
    (ends_node ? last : workers).push_back(devices[i]);
  }
  workers.insert(workers.end(), last.begin(), last.end());
  return workers;
}

}  // namespace rehearse::job
