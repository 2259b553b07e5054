#include "engine/base/foreign.h"

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

void refuse_measurements(std::string_view text, const std::string& file) {
  refuse_foreign(text, file);
  for (const Format& format : measurements)
    if (is(text.substr(0, beginning), format))
      throw InputError(fmt::format("{}: is {}", file, format.note));
}

}  // namespace rehearse
