#include "engine/cluster/platform/device_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "engine/base/files/data_dir.h"
#include "engine/base/hints.h"
#include "engine/base/numbers/limits.h"

namespace rehearse::cluster {
namespace {

/// The memory of a GPU that tensors cannot use. A PyTorch process holds 781 MiB before its first
/// tensor (pytorch/pytorch issue 34323: context, kernels of libraries). The first all-reduce of one
/// NCCL group takes 544 to 688 MiB for buffers (NVIDIA/nccl issue 964, A100 on NVLink).
constexpr Bytes usual_reserve(1.5e9);

DeviceKind read_device(const Config& c) {
  DeviceKind kind;
  kind.name = c.text("name", std::nullopt);
  kind.memory = c.bytes("memory", std::nullopt, limits::memory);
  kind.reserve = c.bytes("reserve", usual_reserve, limits::reserve);
  kind.peak_f32 = c.flop_rate("f32", std::nullopt, limits::rate);
  kind.peak_f16 = c.flop_rate("f16", FlopsPerSecond(0), limits::maybe_rate);
  kind.peak_bf16 = c.flop_rate("bf16", FlopsPerSecond(0), limits::maybe_rate);
  kind.peak_tf32 = c.flop_rate("tf32", FlopsPerSecond(0), limits::maybe_rate);
  kind.peak_fp8 = c.flop_rate("fp8", FlopsPerSecond(0), limits::maybe_rate);
  for (const auto& [key, peak] : {std::pair("f16", kind.peak_f16),
                                  {"bf16", kind.peak_bf16},
                                  {"tf32", kind.peak_tf32},
                                  {"fp8", kind.peak_fp8}})
    if (peak.value > 0 && peak.value < limits::rate.least)
      throw c.error(key,
                    "is out of range: must be 0, which is not supported, or at least 1000 "
                    "FLOP/s");
  kind.memory_bandwidth = c.bandwidth("memory_bandwidth", std::nullopt, limits::bandwidth);
  kind.efficiency = c.number("efficiency", 1, limits::efficiency);
  kind.f32_efficiency = c.number("f32_efficiency", kind.efficiency, limits::efficiency);
  kind.memory_efficiency = c.number("memory_efficiency", 1, limits::efficiency);
  kind.attention_efficiency = c.number("attention_efficiency", 1, limits::efficiency);
  kind.flash_efficiency =
      c.number("flash_efficiency", kind.attention_efficiency, limits::efficiency);
  kind.collective_share = c.number("collective_share", 0, between(0, 1));
  kind.multiprocessors = static_cast<int>(c.integer("multiprocessors", 0, between(0, 1 << 20)));
  kind.launch = c.seconds("launch", Seconds(0), limits::latency);
  kind.idle = c.watts("idle", Watts(0), limits::power);
  kind.busy = c.watts("busy", Watts(0), limits::power);
  if (kind.idle > kind.busy)
    throw c.error("idle",
                  fmt::format("{:g} W is above busy, {:g} W", kind.idle.value, kind.busy.value));
  kind.price = read_price(c);
  kind.calibrated = c.flag("calibrated", false);
  kind.source = c.text("source", std::nullopt);
  return kind;
}

std::vector<std::string> names_of(const std::vector<DeviceKind>& table) {
  std::vector<std::string> names;
  for (const DeviceKind& kind : table) names.push_back(kind.name);
  return names;
}

}  // namespace

std::vector<DeviceKind> read_devices(const Config& file) {
  std::vector<DeviceKind> out;
  for (const Config& c : file.sections("device")) {
    out.push_back(read_device(c));
    for (std::size_t i = 0; i + 1 < out.size(); ++i)
      if (out[i].name == out.back().name)
        throw c.error("name",
                      fmt::format("\"{}\" is the second device of this name", out.back().name));
  }
  return out;
}

std::vector<DeviceKind> device_table() {
  const Config file = Config::load((data_dir() / "platforms" / "devices.toml").string());
  std::vector<DeviceKind> out = read_devices(file);
  file.finish();
  return out;
}

const DeviceKind* find_kind(const std::vector<DeviceKind>& table, const std::string& name) {
  const auto found = std::ranges::find(table, name, &DeviceKind::name);
  return found == table.end() ? nullptr : &*found;
}

std::string unknown_kind(const std::vector<DeviceKind>& table, const std::string& name) {
  return fmt::format("device \"{}\" is not known; {}", name, hint_and_all(name, names_of(table)));
}

DeviceKind load_device(const std::string& name) {
  const std::vector<DeviceKind> table = device_table();
  const DeviceKind* const kind = find_kind(table, name);
  if (kind == nullptr) throw InputError(unknown_kind(table, name));
  return *kind;
}

std::vector<std::string> known_devices() { return names_of(device_table()); }

}  // namespace rehearse::cluster
