#include "cli/train/after_warm_up.h"

#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <optional>

#include "cli/console/files.h"
#include "cli/console/spawn.h"
#include "engine/base/errors.h"
#include "engine/base/files/data_dir.h"
#include "engine/base/files/files.h"
#include "engine/base/units.h"
#include "engine/job/plan_file.h"
#include "engine/methods/strategy.h"
#include "study/load.h"

namespace rehearse::cli {
namespace {

plan::Plan decide_again(const job::Job& job, const std::string& path,
                        const std::vector<std::string>& set, const planner::Measured& measured) {
  std::optional<TemporaryFolder> scratch;
  if (job.train.out.empty()) scratch.emplace();
  const auto file = [&](const std::string& name) {
    return scratch ? scratch->file(name) : (std::filesystem::path(job.train.out) / name).string();
  };
  const std::string observed = file("warm-up.profile.json");
  const costs::Profile* const named = study::profile_of(job);
  costs::Profile profile = named != nullptr ? *named : costs::Profile{};
  // A run resumed with other ranks has no variances of its own yet; take those its warm-up saved.
  if (measured.variances.empty() && std::filesystem::is_regular_file(observed))
    profile = costs::load_profile(observed);
  else
    replace_variances(profile, job.model.name, measured.variances);
  write_file(observed, to_json(profile));
  std::vector<std::string> command{own_path(), "plan", path};
  for (const std::string& one : set) command.insert(command.end(), {"--set", one});
  command.insert(command.end(),
                 {"--set", fmt::format("cluster.world_size={}", job.plan.mesh.world_size()),
                  "--profile", observed, "-o", file("plan.toml"), "--quiet"});
  const Finished planned = run_program(command, true, ProcessGroup::own, job.adaptive.plan_timeout);
  if (planned.timed_out)
    throw BackendError(
        fmt::format("planning after warm-up took longer than adaptive.plan_timeout, {}",
                    to_text(job.adaptive.plan_timeout)));
  if (planned.status != 0) throw BackendError("planning after warm-up failed: " + planned.output);
  return methods::prepare(job::load_plan(file("plan.toml"), job.model, job.cluster), job.model);
}

}  // namespace

void replace_variances(costs::Profile& into, const std::string& model,
                       const std::vector<tensors::LayerVariance>& variances) {
  std::erase_if(into.variances, [&](const tensors::LayerVariance& v) { return v.model == model; });
  into.variances.insert(into.variances.end(), variances.begin(), variances.end());
}

planner::ReplaceOnce::Decide decide_after_warm_up(const job::Job& job, const std::string& path,
                                                  const std::vector<std::string>& set) {
  return [job, path, set](const planner::Measured& measured, const plan::Plan&) {
    return decide_again(job, path, set, measured);
  };
}

}  // namespace rehearse::cli
