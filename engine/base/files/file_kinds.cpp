#include "engine/base/files/file_kinds.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "engine/base/errors.h"

namespace rehearse {
namespace {

struct Kind {
  FileKind kind = FileKind::job;
  const char* name = "";
  const char* use = "";
  std::array<std::string_view, 4> keys = {};  // no other kind has one of them at its top
};

constexpr std::array kinds = {
    Kind{FileKind::job, "a job", "`rehearse simulate` predicts it", {"model", "cluster", "method"}},
    Kind{FileKind::sweep, "a sweep", "`rehearse sweep` computes it", {"axes", "scaling"}},
    Kind{FileKind::platform, "a platform", "a job names it as cluster.name", {"nodes"}},
    Kind{FileKind::model, "a model", "a job names it as model.name", {"family"}},
    Kind{FileKind::software,
         "a software",
         "a job names it as software.name",
         {"kernels", "host", "communication", "base"}},
    Kind{FileKind::failure_model, "a failure model", "a job names it as faults.model", {"cause"}},
    Kind{FileKind::fault_trace, "a fault trace", "a job names it as faults.trace", {"event"}},
    Kind{FileKind::plan, "a plan", "a job names it as method.plan", {"made_for"}},
};

bool is(const Config& file, const Kind& kind) {
  return std::ranges::any_of(
      kind.keys, [&](std::string_view key) { return !key.empty() && file.has(std::string(key)); });
}

}  // namespace

void check_kind(const Config& file, FileKind wanted) {
  const auto& own = *std::ranges::find(kinds, wanted, &Kind::kind);
  if (is(file, own)) return;
  for (const Kind& other : kinds)
    if (is(file, other))
      throw InputError(
          fmt::format("{}: is {} and not {}: {}", file.file(), other.name, own.name, other.use));
}

}  // namespace rehearse
