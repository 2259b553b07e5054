#include "study/calibration/calibration_files.h"

#include <fmt/format.h>

#include <string>

#include "engine/base/files/toml_text.h"
#include "engine/base/names.h"

namespace rehearse::study {
namespace {

std::string microseconds(Seconds s) { return fmt::format("\"{:.10g}us\"", s.value * 1e6); }

std::string comment_lines(const std::vector<std::string>& comments) {
  std::string out;
  for (const std::string& line : comments) out += "# " + line + "\n";
  return out;
}

std::string times_text(const software::ProtocolTimes& t) {
  return fmt::format("{{ base = {}, nvlink = {}, pcie = {}, network = {}, efficiency = {:.6g} }}",
                     microseconds(t.base), microseconds(t.nvlink), microseconds(t.pcie),
                     microseconds(t.network), t.efficiency);
}

}  // namespace

double rounded(double value) { return std::stod(fmt::format("{:.4g}", value)); }

std::string device_text(const cluster::DeviceKind& kind, const std::vector<std::string>& comments) {
  std::string out = comment_lines(comments) + "[[device]]\n";
  const auto add = [&](const char* key, const std::string& value) {
    out += fmt::format("{} = {}\n", key, value);
  };
  const auto quantity = [&](const char* key, double value, double unit, const char* name) {
    if (value > 0) add(key, fmt::format("\"{:.10g}{}\"", value / unit, name));
  };
  const auto rate = [&](const char* key, FlopsPerSecond value) {
    quantity(key, value.value, 1e12, "TFLOP/s");
  };
  add("name", toml_string(kind.name));
  add("memory", fmt::format("\"{:.0f}B\"", kind.memory.value));
  add("reserve", fmt::format("\"{:.0f}B\"", kind.reserve.value));
  rate("f32", kind.peak_f32);
  rate("f16", kind.peak_f16);
  rate("bf16", kind.peak_bf16);
  rate("tf32", kind.peak_tf32);
  rate("fp8", kind.peak_fp8);
  quantity("memory_bandwidth", kind.memory_bandwidth.value, 1e9, "GB/s");
  add("efficiency", fmt::format("{:.6g}", kind.efficiency));
  add("f32_efficiency", fmt::format("{:.6g}", kind.f32_efficiency));
  add("memory_efficiency", fmt::format("{:.6g}", kind.memory_efficiency));
  add("attention_efficiency", fmt::format("{:.6g}", kind.attention_efficiency));
  add("multiprocessors", fmt::format("{}", kind.multiprocessors));
  add("launch", microseconds(kind.launch));
  quantity("idle", kind.idle.value, 1, "W");
  quantity("busy", kind.busy.value, 1, "W");
  add("calibrated", kind.calibrated ? "true" : "false");
  add("source", toml_string(kind.source));
  return out;
}

std::string software_text(const std::string& base, const std::string& source,
                          const std::vector<CalibratedKey>& keys,
                          const std::vector<std::string>& comments,
                          const std::optional<software::Measured>& measured) {
  std::string out = comment_lines(comments) + fmt::format("base = {}\nsource = {}\n\n[host]\n",
                                                          toml_string(base), toml_string(source));
  for (const CalibratedKey& key : keys)
    if (key.fitted && key.key.starts_with("host."))
      out += fmt::format("{} = {}\n", key.key.substr(5),
                         microseconds(Seconds(rounded(key.calibrated))));
  if (measured) {
    const auto texts = [](std::vector<std::string> words) {
      for (std::string& word : words) word = toml_string(word);
      return fmt::format("[{}]", fmt::join(words, ", "));
    };
    out += fmt::format(
        "\n[measured]\nhidden = [{}, {}]\ntokens = [{}, {}]\nranks = {}\nmethods = {}\n"
        "precisions = {}\ndevices = {}\n",
        measured->least_hidden, measured->most_hidden, measured->least_tokens,
        measured->most_tokens, measured->most_ranks, texts(measured->methods),
        texts(measured->precisions), texts(measured->devices));
  }
  return out;
}

std::string library_text(const software::Library& library, const std::string& source,
                         const std::vector<std::string>& comments) {
  std::string out = comment_lines(comments) + fmt::format("source = {}\ncopies = {:.6g}\n",
                                                          toml_string(source), library.copies);
  for (const software::Protocol& p : library.protocols) {
    out += fmt::format("\n[[protocol]]\nname = {}\nalgorithm = \"{}\"\n", toml_string(p.name),
                       name_of(p.algorithm));
    if (p.nvlink_only) out += "nvlink_only = true\n";
    out += fmt::format("measured = {}\nestimated = {}\n", times_text(p.measured),
                       times_text(p.estimated));
  }
  return out;
}

}  // namespace rehearse::study
