#include "engine/base/files/foreign.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "engine/base/errors.h"

namespace rehearse {
namespace {

struct Format {
  std::array<std::string_view, 2> has = {};  // both stand near the text's beginning
  const char* note = "";
};

constexpr const char* platform_file =
    "it is not read; write its nodes, links and rates as a platform file (docs/platforms.md)";

const std::array formats = {
    Format{{"<platform", "simgrid"}, "a platform of SimGrid (XML): "},
    Format{{"<system", "<cpu"}, "a topology of NCCL (XML): "},
    Format{{"<topology", "<object"}, "a topology of hwloc (XML): "},
    Format{{"GPU0", "Affinity"}, "the matrix of `nvidia-smi topo -m`, which has no rates: "},
};
const std::array measurements = {
    Format{{"\"traceEvents\"", "{"},
           "a trace of PyTorch's profiler: `rehearse calibrate` reads it"},
    Format{{"# nThread", "#"}, "output of nccl-tests: `rehearse calibrate` reads it"},
};
constexpr const char* chakra =
    "an execution trace of Chakra: it is not read, and nothing here replays one, because programs "
    "are compiled from model, cluster and method. `rehearse calibrate` reads the trace of "
    "PyTorch's profiler that it was made from";

bool is(std::string_view text, const Format& format) {
  return std::ranges::all_of(
      format.has, [&](std::string_view word) { return text.find(word) != std::string_view::npos; });
}

/// Whether the first line that says something is a key of YAML: "model:", "lr: 0.1".
bool is_yaml(std::string_view text) {
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find_first_of("\r\n"));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    if (line.empty() || line.starts_with('#') || line == "---") continue;
    const auto name =
        line.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.");
    return name != line.npos && name > 0 && line[name] == ':' &&
           (name + 1 == line.size() || line[name + 1] == ' ');
  }
  return false;
}

constexpr std::size_t beginning = 1 << 16;

}  // namespace

void refuse_foreign(std::string_view text, const std::string& file) {
  text = text.substr(0, beginning);
  // A log may begin with the matrix of the machine.
  if (std::ranges::any_of(measurements, [&](const Format& format) { return is(text, format); }))
    return;
  for (const Format& format : formats)
    if (is(text, format))
      throw InputError(fmt::format("{}: is {}{}", file, format.note, platform_file));
  if (is(text, {{"chakra", "{"}, ""}) || is(text, {{"COMP_NODE", "{"}, ""}))
    throw InputError(fmt::format("{}: is {}", file, chakra));
}

void refuse_other_syntax(std::string_view text, const std::string& file) {
  const char* is = nullptr;
  const auto first = text.find_first_not_of(" \t\r\n");
  if (text.starts_with("\xff\xfe") || text.starts_with("\xfe\xff"))
    is = "text in UTF-16; save it as UTF-8";
  else if (text.starts_with("PK\x03\x04") || text.starts_with("\x1f\x8b"))
    is = "an archive; unpack it first";
  else if (first != text.npos && text[first] == '{')
    is = "JSON; write it as TOML, as in [model] and name = \"gpt2-124m\" below it";
  else if (is_yaml(text))
    is = "YAML; write it as TOML, as in [model] and name = \"gpt2-124m\" below it";
  if (is != nullptr) throw InputError(fmt::format("{}: is {}", file, is));
}

void refuse_measurements(std::string_view text, const std::string& file) {
  refuse_foreign(text, file);
  for (const Format& format : measurements)
    if (is(text.substr(0, beginning), format))
      throw InputError(fmt::format("{}: is {}", file, format.note));
}

}  // namespace rehearse
