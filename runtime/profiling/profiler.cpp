#include "runtime/profiling/profiler.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <malloc.h>
#include <sys/utsname.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <optional>
#include <thread>
#include <utility>

#include "engine/base/errors.h"
#include "runtime/communication/network.h"
#include "runtime/control/control.h"
#include "runtime/device/accelerator.h"
#include "runtime/device/load_device.h"
#include "runtime/profiling/profile_parts.h"

namespace rehearse::runtime {

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double mean_over_ranks(Control& control, const std::string& key, double mine) {
  double sum = 0;
  const std::vector<std::string> all = control.gather(key, fmt::format("{:.17g}", mine));
  for (const std::string& one : all) sum += std::stod(one);
  return sum / static_cast<double>(all.size());
}

double max_over_ranks(Control& control, const std::string& key, double mine) {
  double largest = mine;
  for (const std::string& one : control.gather(key, fmt::format("{:.17g}", mine)))
    largest = std::max(largest, std::stod(one));
  return largest;
}

namespace {

std::string processor() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  return "unknown processor";
}

std::string describe_host(const Device& device, int cores) {
  utsname kernel = {};
  uname(&kernel);
  const std::time_t now = std::time(nullptr);
  char date[16] = {};
  std::strftime(date, sizeof date, "%Y-%m-%d", std::gmtime(&now));
  const std::string on = device.name() == "cpu" ? "" : device.name() + ", ";
  return fmt::format("{}{}, {} cores, {} {}, {}", on, processor(), cores, kernel.sysname,
                     kernel.release, date);
}

void set_device_kind(costs::Profile& profile, const std::string& kind) {
  const auto set = [&](auto& entries) {
    for (auto& entry : entries) entry.device_kind = kind;
  };
  set(profile.segments), set(profile.updates), set(profile.kernels);
  set(profile.collectives), set(profile.transfers);
}

/// The cluster whose devices the ranks are on. Nothing if the settings name none and ranks are on
/// several hosts, or on devices of a stated kind.
std::optional<cluster::Cluster> cluster_of(const ProfileSettings& settings,
                                           const Environment& environment) {
  const int ranks = environment.world_size;
  if (settings.cluster.empty() && (environment.local_world_size != ranks || !settings.kind.empty()))
    return std::nullopt;
  cluster::Cluster cluster = cluster::load_cluster(
      settings.cluster.empty() ? fmt::format("this-machine:{}", ranks) : settings.cluster);
  if (std::cmp_not_equal(cluster.devices().size(), ranks))
    throw InputError(fmt::format("--ranks-on {}: it has {} devices, {} ranks were started",
                                 settings.cluster, cluster.devices().size(), ranks));
  for (const cluster::Device& device : cluster.devices())
    if (device.kind != cluster.devices()[0].kind)
      throw InputError(
          fmt::format("--ranks-on {}: its devices are unlike; times are means over ranks: measure "
                      "each kind by itself and put the profiles together with --merge",
                      settings.cluster));
  return cluster;
}

/// The device kind that the times are for. Throws InputError when the device table lacks it.
std::string kind_of(const ProfileSettings& settings,
                    const std::optional<cluster::Cluster>& cluster) {
  if (!settings.kind.empty()) return cluster::load_device(settings.kind).name;
  return cluster ? cluster->kind_of(0).name : "CPU core";
}

}  // namespace

costs::Profile measure_profile(const model::ModelSpec& model, const ProfileSettings& settings,
                               const Environment& environment) {
  if (model.outputs > 0)
    throw InputError(
        fmt::format("model {}: it is simulated only: there is nothing to measure", model.name));
  const int cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  const int threads =
      settings.threads > 0 ? settings.threads : std::max(1, cores / environment.local_world_size);
  const std::optional<cluster::Cluster> cluster = cluster_of(settings, environment);
  check_device(settings.device);
  const std::string kind = kind_of(settings, cluster);
  at::set_num_threads(threads);
  // As in training, keep freed pages instead of requesting them from the kernel in every step.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, -1);
  Control control(environment, {.encrypt = settings.encrypt});
  try {
    Network network(control);
    const auto device = make_device(settings.device, environment.rank, &control);
    if (device->accelerator() != nullptr && settings.cluster.empty() && settings.kind.empty())
      throw InputError(
          fmt::format("{}: --kind or --ranks-on says which device of platforms/devices.toml this "
                      "is: {}",
                      device->name(), fmt::join(cluster::known_devices(), ", ")));
    TimedStream stream(*device);
    costs::Profile profile{.host = describe_host(*device, cores),
                           .encrypted = settings.network && settings.encrypt,
                           .cores = cores,
                           .ranks = environment.world_size,
                           .threads_per_rank = threads};
    for (const int tp : settings.tensor_parallel)
      for (const int samples : settings.samples)
        profile_model(model, samples, tp, settings, stream, control, profile);
    profile_kernels(settings, stream, control, profile);
    if (settings.network) profile_network(settings, stream, control, network, profile);
    if (settings.network && cluster && environment.world_size > 1)
      profile_pairs(*cluster, stream, control, network, profile);
    control.finish();
    set_device_kind(profile, kind);
    return profile;
  } catch (const std::exception& error) {
    control.fail(error.what());
    throw;
  }
}

}  // namespace rehearse::runtime
