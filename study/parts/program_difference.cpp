// How a program from a file differs from the one that a job compiles to. A program's text names its
// method, but no model: the sizes of its states tell models apart.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <sstream>

#include "engine/base/fnv.h"
#include "engine/base/names.h"
#include "study/parts/program_check.h"

namespace rehearse::study {
namespace {

std::string mesh_of(const program::Program& program) {
  std::vector<std::string> axes;
  for (const program::Axis& axis : program.mesh)
    axes.push_back(fmt::format("{} {}{}", axis.name, axis.size,
                               axis.cut == program::Cut::zigzag ? " zigzag" : ""));
  return fmt::format("{}", fmt::join(axes, " x "));
}

std::string roles_of(const program::Program& program) {
  std::vector<std::string> roles;
  for (const program::Role& role : program.roles)
    roles.push_back(fmt::format("{} ({} rank{})", role.name, role.ranks.size(),
                                role.ranks.size() == 1 ? "" : "s"));
  return fmt::format("{}", fmt::join(roles, ", "));
}

/// The numbers that outlive a step, by type: weights and moments.
std::string states_of(const program::Role& role) {
  std::map<std::string, std::int64_t> elements;
  for (const program::Storage& storage : role.storages)
    if (storage.life == program::Life::state)
      elements[std::string(name_of(storage.dtype))] += storage.elements;
  std::vector<std::string> out;
  for (const auto& [dtype, count] : elements) out.push_back(fmt::format("{} {}", count, dtype));
  return out.empty() ? "none" : fmt::format("{}", fmt::join(out, ", "));
}

}  // namespace

std::string of_another_job(const program::Program& program, const program::Program& own) {
  const auto unlike = [](const std::string& what, const std::string& here,
                         const std::string& there) -> std::string {
    return here == there ? "" : fmt::format("{} {}, the job's {}", what, here, there);
  };
  const auto products = [](const program::Program& p) { return p.fp8 ? "8 bits" : "full width"; };
  for (const std::string& why :
       {unlike("its method is", program.method, own.method),
        unlike("its mesh is", mesh_of(program), mesh_of(own)),
        unlike("its linear layers multiply in", products(program), products(own)),
        unlike("its roles are", roles_of(program), roles_of(own))})
    if (!why.empty()) return why;
  for (std::size_t r = 0; r < own.roles.size(); ++r)
    if (const std::string why =
            unlike(fmt::format("the numbers that {} keeps between steps are", own.roles[r].name),
                   states_of(program.roles[r]), states_of(own.roles[r]));
        !why.empty())
      return why;
  return "";
}

ProgramDifference difference_of(const program::Program& program, const program::Program& own) {
  const std::string mine = to_text(program), job = to_text(own);
  if (mine == job) return {.job_hash = hash_of(own)};
  std::istringstream left(mine), right(job);
  ProgramDifference out{.job_hash = hash_of(own)};
  do {
    ++out.line;
    if (!std::getline(left, out.here)) out.here.clear();
    if (!std::getline(right, out.of_job)) out.of_job.clear();
  } while (out.here == out.of_job && (left || right));
  return out;
}

std::string describe(const ProgramDifference& difference, const std::string& job) {
  if (difference.line == 0) return "";
  const auto quoted = [](const std::string& line) {
    return line.empty() ? "nothing" : "\"" + line + "\"";
  };
  return fmt::format(
      "differs from the program of {}, hash {:016x}: line {} is {}, that of the job {}\n", job,
      difference.job_hash, difference.line, quoted(difference.here), quoted(difference.of_job));
}

nlohmann::ordered_json to_json(const ProgramDifference& difference) {
  if (difference.line == 0) return nullptr;
  return {{"line", difference.line},
          {"text", difference.here},
          {"job_text", difference.of_job},
          {"job_program_hash", hash_text(difference.job_hash)}};
}

}  // namespace rehearse::study
