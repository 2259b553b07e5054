#include "study/prediction/runs.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/names.h"

namespace rehearse::study {
namespace {

constexpr std::size_t traced_ranks = 64;

execution::TraceSelection selection_of(const Runs& runs, int first) {
  execution::TraceSelection out{.first_step = first,
                                .last_step = first + traced_steps - 1,
                                .critical = runs.options.critical};
  const auto& roles = runs.linked.program.roles;
  if (runs.linked.role_of.size() <= traced_ranks) return out;
  const std::size_t each = std::max<std::size_t>(1, traced_ranks / roles.size());
  for (const program::Role& role : roles)
    for (std::size_t i = 0; i < std::min(each, role.ranks.size()); ++i)
      out.ranks.push_back(role.ranks[i]);
  std::sort(out.ranks.begin(), out.ranks.end());
  return out;
}

}  // namespace

cluster::Disturber disturber_of(const Runs& runs, int i) {
  cluster::Disturbance disturbance = runs.job.disturb;
  disturbance.seed += static_cast<std::uint64_t>(i);
  return {disturbance, runs.linked.program.world_size};
}

std::unique_ptr<execution::ChromeTrace> trace_writer(const Runs& runs, int first, int i) {
  if (i != 0 || runs.options.trace.empty()) return nullptr;
  return std::make_unique<execution::ChromeTrace>(runs.options.trace, runs.linked, runs.job.model,
                                                  selection_of(runs, first));
}

#ifdef REHEARSE_HAS_SIM
sim::Fidelity sim_fidelity(Fidelity fidelity) {
  return fidelity == Fidelity::chunk ? sim::Fidelity::chunk : sim::Fidelity::fluid;
}

sim::SimOptions sim_options(const Runs& runs) {
  return {
      .fidelity = sim_fidelity(runs.options.fidelity), .profile = runs.profile, .slow = runs.slow};
}
#else
InputError needs_sim(Fidelity fidelity) {
  return InputError(fmt::format("--fidelity {}: this build has no SimGrid; analytic needs none",
                                name_of(fidelity)));
}
#endif

}  // namespace rehearse::study
