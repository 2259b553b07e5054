#include "engine/software/library.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/files/data_dir.h"
#include "engine/base/names.h"
#include "engine/base/numbers/limits.h"

namespace rehearse::software {
namespace {

constexpr const char* rounds = "rounds";

ProtocolTimes read_times(const Config& c) {
  return {.base = c.seconds("base", std::nullopt, limits::latency),
          .nvlink = c.seconds("nvlink", std::nullopt, limits::latency),
          .pcie = c.seconds("pcie", std::nullopt, limits::latency),
          .network = c.seconds("network", std::nullopt, limits::latency),
          .efficiency = c.number("efficiency", std::nullopt, limits::efficiency)};
}

Library read_library(const Config& file) {
  Library out;
  file.text("summary", "");
  file.text("source", std::nullopt);
  out.copies = file.number("copies", 0, between(0, 16));
  for (const Config& c : file.sections("protocol")) {
    Protocol& p = out.protocols.emplace_back();
    p.name = c.text("name", std::nullopt);
    p.algorithm = *from_name<program::Algorithm>(
        c.text("algorithm", std::nullopt, {"ring", "double_tree", "nvls", "in_network", "direct"}));
    p.nvlink_only = c.flag("nvlink_only", false);
    p.measured = read_times(c.section("measured"));
    p.estimated = read_times(c.section("estimated"));
  }
  const auto everywhere = [](const Protocol& p) {
    return p.algorithm == program::Algorithm::ring && !p.nvlink_only;
  };
  if (std::none_of(out.protocols.begin(), out.protocols.end(), everywhere))
    throw file.error("protocol", "must have a ring that is not nvlink_only: it serves every group");
  return out;
}

}  // namespace

bool Library::has(program::Algorithm algorithm) const {
  return std::any_of(protocols.begin(), protocols.end(),
                     [&](const Protocol& p) { return p.algorithm == algorithm; });
}

bool Library::runs_sums_of(program::Algorithm algorithm) const {
  if (algorithm == program::Algorithm::in_network) return protocols.empty() || has(algorithm);
  return algorithm != program::Algorithm::nvls || has(algorithm);
}

Library load_library(const std::string& name_or_path) {
  if (name_or_path == rounds) return {};
  const auto path = find_data("software/libraries", name_or_path, "library");
  const Config file = Config::load(path.string());
  Library out = read_library(file);
  file.finish();
  out.name = path.stem().string();
  return out;
}

std::vector<std::string> known_libraries() {
  std::vector<std::string> names = data_names("software/libraries");
  names.emplace_back(rounds);
  return names;
}

std::string text_of(const Library& library) {
  std::string text = fmt::format("{} {} {} {}", library.launch.value, library.in_node.value,
                                 library.across.value, library.copies);
  if (library.on_device) text += " on_device";
  for (const Protocol& p : library.protocols) {
    text += fmt::format(" {} {} {}", name_of(p.algorithm), p.name, p.nvlink_only);
    for (const ProtocolTimes& t : {p.measured, p.estimated})
      text += fmt::format(" {} {} {} {} {}", t.base.value, t.nvlink.value, t.pcie.value,
                          t.network.value, t.efficiency);
  }
  return text;
}

std::vector<Config::Key> library_keys() {
  const std::string times =
      "{ base = \"1us\", nvlink = \"1us\", pcie = \"1us\", network = \"1us\", efficiency = 1 }";
  const Config file = Config::parse(
      fmt::format("source = \"any\"\n[[protocol]]\nname = \"any\"\nalgorithm = \"ring\"\n"
                  "measured = {}\nestimated = {}\n",
                  times, times),
      "keys");
  read_library(file);
  return file.keys();
}

}  // namespace rehearse::software
