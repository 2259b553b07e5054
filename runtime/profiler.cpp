#include "runtime/profiler.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <malloc.h>
#include <sys/utsname.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <thread>

#include "engine/errors.h"
#include "runtime/control.h"
#include "runtime/network.h"
#include "runtime/profile_parts.h"

namespace rehearse {

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
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

std::string describe_host(int cores) {
  utsname kernel = {};
  uname(&kernel);
  const std::time_t now = std::time(nullptr);
  char date[16] = {};
  std::strftime(date, sizeof date, "%Y-%m-%d", std::gmtime(&now));
  return fmt::format("{}, {} cores, {} {}, {}", processor(), cores, kernel.sysname, kernel.release,
                     date);
}

void set_device_kind(Profile& profile, const std::string& kind) {
  const auto set = [&](auto& entries) {
    for (auto& entry : entries) entry.device_kind = kind;
  };
  set(profile.segments), set(profile.updates), set(profile.kernels);
  set(profile.collectives), set(profile.transfers);
}

}  // namespace

Profile measure_profile(const ModelSpec& model, const ProfileSettings& settings,
                        const Environment& environment) {
  if (model.family == Family::llama)
    throw InputError(
        fmt::format("model {}: it is simulated only: there is nothing to measure", model.name));
  const int cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  const int threads =
      settings.threads > 0 ? settings.threads : std::max(1, cores / environment.local_world_size);
  at::set_num_threads(threads);
  // As in training: keep pages instead of asking the kernel for them each step.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, -1);
  Control control(environment, {});
  try {
    Network network(control);
    Profile profile{.host = describe_host(cores),
                    .cores = cores,
                    .ranks = environment.world_size,
                    .threads_per_rank = threads};
    for (const int tp : settings.tensor_parallel)
      for (const int samples : settings.samples)
        profile_model(model, samples, tp, settings, control, profile);
    profile_kernels(control, profile);
    profile_network(settings, control, network, profile);
    control.finish();
    set_device_kind(profile, "CPU core");  // of platforms/this-machine.toml
    return profile;
  } catch (const std::exception& error) {
    control.fail(error.what());
    throw;
  }
}

}  // namespace rehearse
