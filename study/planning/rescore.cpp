#include "study/planning/rescore.h"

#include <limits>

#include "engine/costs/costs.h"
#include "engine/link/workspace.h"
#ifdef REHEARSE_HAS_SIM
#include "sim/run_seeds.h"
#endif

namespace rehearse::study {

#ifdef REHEARSE_HAS_SIM
namespace {

constexpr std::uint64_t own_seed = 0x52454845;
/// Without randomness fewer steps suffice: steps then differ only in patterns that repeat every two
/// or three steps.
constexpr execution::Steps steps{1, 6}, quiet_steps{1, 3};
/// A plan with more (rank, op) instances per step takes too long to simulate in a search.
constexpr std::size_t most_instances = 500'000;

}  // namespace

std::function<double(const plan::Plan&)> fluid_rescore(const job::Job& job,
                                                       const costs::Profile* profile) {
  return [&job, profile](const plan::Plan& plan) {
    job::Job one = job;
    one.plan = plan;
    one.disturb.seed += own_seed;
    const link::OrderedProgram linked = link::order(predicted_program_of(one));
    std::size_t instances = 0;
    for (const program::Role& role : linked.program.roles)
      instances += role.ops.size() * role.ranks.size();
    if (instances > most_instances) return std::numeric_limits<double>::quiet_NaN();
    const std::vector<double> slow = link_slowdowns(one.disturb, one.cluster);
    const costs::Costs costs(linked, one.model, one.cluster,
                             {.rank_to_device = plan.placement.rank_to_device,
                              .optimizer = plan.optimizer,
                              .profile = profile,
                              .slow = slow});
    sim::SeedOptions options;
    options.seeds = 1;
    options.samples_per_step = plan.schedule.global_batch;
    options.steps =
        one.disturb.compute_sigma > 0 || one.disturb.link_sigma > 0 ? steps : quiet_steps;
    options.sim.profile = profile;
    options.sim.slow = slow;
    return run_seeds(linked, one.model, one.cluster, costs, one.disturb, options)
        .front()
        .metrics.mean_step;
  };
}
#else
std::function<double(const plan::Plan&)> fluid_rescore(const job::Job&, const costs::Profile*) {
  return {};
}
#endif

}  // namespace rehearse::study
