// Runs one program on one cluster with the dry run or the simulator, so that tests can compare the
// traces.
#pragma once
#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/base/errors.h"
#include "engine/cluster/cluster.h"
#include "engine/cluster/disturbance.h"
#include "engine/costs/costs.h"
#include "engine/costs/device/host_lane.h"
#include "engine/execution/dry_run/dry_run.h"
#include "engine/execution/trace/trace.h"
#include "engine/link/link.h"
#include "engine/methods/strategy.h"
#include "engine/model/model.h"
#include "sim/executor.h"
#include "tests/sim/isolated.h"

namespace rehearse::sim {

/// A host with rates that are not negligible beside those of the links.
inline cluster::Host some_host() {
  return {.link = BytesPerSecond(10e9),
          .bandwidth = BytesPerSecond(100e9),
          .disk = {.read = BytesPerSecond(1e9), .write = BytesPerSecond(1e9)}};
}

/// Devices on one non-blocking switch, each with a full-duplex link of its own, `per_node` devices
/// per node. Bandwidth in bytes per second, latency in seconds.
inline cluster::Cluster switched(int devices, int per_node = 1, double bandwidth = 12.5e9,
                                 double latency = 2e-6) {
  cluster::Cluster cluster;
  const Id kind = cluster.add_kind(cluster::load_device("A100 80GB"));
  const Id middle = cluster.add_vertex("switch");
  for (int i = 0; i < devices; ++i) {
    const Id device =
        cluster.add_device("gpu" + std::to_string(i), kind, static_cast<Id>(i / per_node));
    cluster.connect(cluster.vertex_of(device), middle, "wire" + std::to_string(i),
                    BytesPerSecond(bandwidth), Seconds(latency));
    cluster.set_host(static_cast<Id>(i / per_node), some_host());
  }
  return cluster;
}

/// Devices with a separate cable between every two of them.
inline cluster::Cluster meshed(int devices, double bandwidth = 12.5e9, double latency = 2e-6) {
  cluster::Cluster cluster;
  const Id kind = cluster.add_kind(cluster::load_device("A100 80GB"));
  for (int i = 0; i < devices; ++i) {
    const Id device = cluster.add_device("gpu" + std::to_string(i), kind, static_cast<Id>(i));
    cluster.set_host(static_cast<Id>(i), some_host());
    for (Id other = 0; other < device; ++other)
      cluster.connect(cluster.vertex_of(device), cluster.vertex_of(other), "",
                      BytesPerSecond(bandwidth), Seconds(latency));
  }
  return cluster;
}

/// (role, op, step, place) -> (start, end).
using Times = std::map<std::tuple<Id, Id, int, Id>, std::pair<double, double>>;

inline double last_end(const Times& times) {
  double last = 0;
  for (const auto& [key, time] : times) last = std::max(last, time.second);
  return last;
}

/// The latencies that a software adds to transfers, as a job's cluster has them.
inline cluster::Cluster with_library(cluster::Cluster cluster, const software::Software& how) {
  cluster.use_library(how.library);
  return cluster;
}

/// A model, a cluster, a linked program (with the host's lane, if the model's software has a busy
/// host) and its costs.
struct Bench {
  Bench(const plan::Plan& plan, cluster::Cluster on, const std::string& model_name = "gpt-tiny",
        const costs::Profile* profile = nullptr, std::span<const double> slow = {})
      : Bench(plan, std::move(on), model::load_model(model_name, 0), profile, slow) {}
  Bench(const plan::Plan& plan, cluster::Cluster on, model::ModelSpec spec,
        const costs::Profile* profile = nullptr, std::span<const double> slow = {})
      : model(std::move(spec)),
        cluster(with_library(std::move(on), model.software)),
        linked(link::link(costs::with_host_lane(methods::compile(plan, model), model))),
        costs(linked, model, cluster, {.profile = profile, .slow = slow}) {}

  Times dry(const cluster::Disturbance& disturbance = {}, int steps = 3) const {
    execution::Recording recording;
    dry_run(linked, costs, cluster::Disturber(disturbance, linked.program.world_size), steps,
            recording);
    return times_of(recording);
  }
  struct Sim {
    Times times = {};
    Simulated simulated = {};
    std::vector<double> raw = {};  // all figures and the trace in the order of its calls
  };
  Sim sim(SimOptions options, const cluster::Disturbance& disturbance = {}, int steps = 3) const {
    Sim out;
    out.raw = isolated([&] {
      execution::Recording recording;
      const Simulated s = simulate(linked, costs, cluster,
                                   cluster::Disturber(disturbance, linked.program.world_size),
                                   steps, recording, options);
      std::vector<double> flat = {s.seconds, static_cast<double>(s.instances),
                                  static_cast<double>(s.transfers), static_cast<double>(s.flows),
                                  static_cast<double>(s.bypassed)};
      for (const execution::Interval& i : recording.intervals)
        flat.insert(flat.end(),
                    {static_cast<double>(i.role), static_cast<double>(i.op),
                     static_cast<double>(i.step), static_cast<double>(i.place), i.start, i.end});
      return flat;
    });
    out.simulated = {.seconds = out.raw[0],
                     .instances = static_cast<std::int64_t>(out.raw[1]),
                     .transfers = static_cast<std::int64_t>(out.raw[2]),
                     .flows = static_cast<std::int64_t>(out.raw[3]),
                     .bypassed = static_cast<std::int64_t>(out.raw[4])};
    execution::Recording recording;
    for (std::size_t i = 5; i < out.raw.size(); i += 6)
      recording.intervals.push_back({static_cast<Id>(out.raw[i]), static_cast<Id>(out.raw[i + 1]),
                                     static_cast<int>(out.raw[i + 2]),
                                     static_cast<Id>(out.raw[i + 3]), out.raw[i + 4],
                                     out.raw[i + 5]});
    out.times = times_of(recording);
    return out;
  }

  static Times times_of(const execution::Recording& recording) {
    Times times;
    for (const execution::Interval& i : recording.intervals)
      if (!times.try_emplace({i.role, i.op, i.step, i.place}, i.start, i.end).second)
        throw ProgramError("an instance stands twice in a trace");
    return times;
  }

  model::ModelSpec model;
  cluster::Cluster cluster;
  link::LinkedProgram linked;
  costs::Costs costs;
};

/// The largest difference of a start or end between two runs, divided by the length of run `a`; 1
/// when the runs have different instances.
inline double difference(const Times& a, const Times& b) {
  if (a.size() != b.size()) return 1;
  double most = 0;
  for (const auto& [key, time] : a) {
    const auto other = b.find(key);
    if (other == b.end()) return 1;
    most = std::max({most, std::abs(time.first - other->second.first),
                     std::abs(time.second - other->second.second)});
  }
  return most / last_end(a);
}

}  // namespace rehearse::sim
