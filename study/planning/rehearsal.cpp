#include "study/planning/rehearsal.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "engine/base/errors.h"
#include "engine/base/files/files.h"
#include "engine/base/fnv.h"
#include "engine/base/names.h"
#include "engine/job/identity.h"
#include "engine/job/plan_file.h"
#include "engine/methods/strategy.h"
#include "engine/planner/memory/linked_program.h"
#include "engine/planner/memory/remedy.h"
#include "study/load.h"
#include "study/methods.h"

namespace rehearse::study {
namespace {

StepTime time_of(const Study& study) {
  return {study.summary.step_time.mean, study.summary.step_time.ci95};
}

/// Simulates one baseline. If it does not fit into memory, tries again with the first change that
/// makes it fit and keeps the method.
Baseline run_baseline(const std::string& method, const job::Job& job, const StudyOptions& how,
                      const std::string& path, const std::vector<std::string>& set) {
  Baseline out{.method = method};
  const std::vector<std::string> base =
      overrides_for({.label = method, .method = method, .set = {}}, job, set);
  for (int attempt = 0; attempt < 2; ++attempt) {
    std::vector<std::string> all = base;
    all.insert(all.end(), out.set.begin(), out.set.end());
    std::optional<job::Job> other;
    try {
      other = load(path, all);
      out.step_time = time_of(predict(*other, how));
      out.cannot_run.clear();
      return out;
    } catch (const InputError& error) {
      if (attempt == 0) out.cannot_run = error.what();
    }
    if (!other) break;
    const auto remedy = planner::find_remedy({other->plan, {}}, other->model, other->cluster, true);
    if (!remedy) break;
    out.set = remedy->changes;
  }
  out.set.clear();
  return out;
}

std::string text(const StepTime& t) {
  return t.ci95 > 0 ? fmt::format("{:.4g} s +- {:.2g}", t.mean, t.ci95)
                    : fmt::format("{:.4g} s", t.mean);
}

void refuse(const std::string& file, const std::string& why) {
  throw InputError(fmt::format("--rehearsed: {}: {}", file, why));
}

}  // namespace

std::string rehearsal_path(const std::string& plan_file) {
  return std::filesystem::path(plan_file).replace_extension(".rehearsal.json").string();
}

Rehearsal begin_rehearsal(const job::Job& job) {
  Rehearsal out;
  const costs::Profile* const profile = profile_of(job);
  const job::PlanFile plan = job::load_plan_file(job.plan_file, job.model, job.cluster);
  out.model_hash = job::hash_of(job.model);
  out.cluster_hash = job.cluster.hash();
  out.profile_hash = profile != nullptr ? job::hash_of(*profile) : 0;
  out.plan_hash = plan.hash;
  const link::LinkedProgram linked = planner::linked_program(job);
  std::map<Id, std::int64_t> need;  // bytes by device, summed over the ranks on the device
  for (Id rank = 0; rank < linked.role_of.size(); ++rank)
    need[job.plan.placement.rank_to_device[rank]] += linked.memory[linked.role_of[rank]].total();
  for (const auto& [device, bytes] : need) {
    const std::string& name = job.cluster.devices()[device].name;
    out.peak_memory[name] = bytes;
    const auto usable = static_cast<std::int64_t>(job.cluster.kind_of(device).usable().value);
    if (bytes > usable) out.over_memory[name] = usable;
  }
  return out;
}

void finish_rehearsal(Rehearsal& rehearsal, const job::Job& job, const Study& study,
                      const StudyOptions& options, const std::string& path,
                      const std::vector<std::string>& set, const std::string& traces) {
  rehearsal.fidelity = name_of(study.fidelity);
  rehearsal.seeds = study.seeds;
  rehearsal.step_time = time_of(study);
  StudyOptions how = options;
  for (const bool pipelined : {false, true})
    for (const auto& [method, strategy] : methods::strategies()) {
      if (!strategy.baseline || strategy.combines.pp != pipelined) continue;
      how.trace = traces.empty() ? "" : traces + method + ".json";
      rehearsal.baselines.push_back(run_baseline(method, job, how, path, set));
    }
}

void write_rehearsal(const Rehearsal& rehearsal, const job::Job& job) {
  write_file(rehearsal_path(job.plan_file), to_json(rehearsal));
}

const Baseline* best_baseline(const Rehearsal& rehearsal) {
  const Baseline* best = nullptr;
  for (const Baseline& b : rehearsal.baselines)
    if (b.step_time && (best == nullptr || b.step_time->mean < best->step_time->mean)) best = &b;
  return best;
}

std::string describe(const Rehearsal& rehearsal) {
  std::string out;
  for (const Baseline& b : rehearsal.baselines) {
    const std::string with = b.set.empty() ? "" : fmt::format(" (with {})", fmt::join(b.set, ", "));
    out += fmt::format("{:<23}{}{}\n", b.method + " instead",
                       b.step_time ? text(*b.step_time) : "cannot run: " + b.cannot_run, with);
  }
  return out;
}

void check_rehearsal(const job::Job& job) {
  if (job.plan_file.empty())
    throw InputError("--rehearsed: the job names no plan; [method] plan does");
  const std::string file = rehearsal_path(job.plan_file);
  const std::string again = fmt::format("rehearse simulate {} writes it", job.file);
  if (!std::filesystem::exists(file))
    refuse(file, "missing: the plan was never rehearsed; " + again);
  const Rehearsal rehearsal = parse_rehearsal(read_file(file), file);
  const costs::Profile* const profile = profile_of(job);
  const job::PlanFile plan = job::load_plan_file(job.plan_file, job.model, job.cluster);
  const auto same = [&](const char* what, std::uint64_t then, std::uint64_t now) {
    if (then != now)
      refuse(file, fmt::format("stale: the {} is {} and was {} when it was rehearsed; {} anew",
                               what, hash_text(now), hash_text(then), again));
  };
  same("model", rehearsal.model_hash, job::hash_of(job.model));
  same("cluster", rehearsal.cluster_hash, job.cluster.hash());
  same("profile", rehearsal.profile_hash, profile != nullptr ? job::hash_of(*profile) : 0);
  same("plan", rehearsal.plan_hash, plan.hash);
  if (!rehearsal.over_memory.empty()) {
    const auto& [device, capacity] = *rehearsal.over_memory.begin();
    refuse(file, fmt::format("over memory: {} would need {} of {}; plan again", device,
                             to_text(Bytes(double(rehearsal.peak_memory.at(device)))),
                             to_text(Bytes(double(capacity)))));
  }
  const Baseline* best = best_baseline(rehearsal);
  const StepTime& own = *rehearsal.step_time;
  if (best != nullptr && own.mean - own.ci95 > best->step_time->mean + best->step_time->ci95)
    refuse(file,
           fmt::format("slower: the plan takes {} a step, {} takes {}; run that, or plan again",
                       text(own), best->method, text(*best->step_time)));
}

void add_measured(const job::Job& job, const std::vector<double>& step_times) {
  if (step_times.empty()) return;
  const std::string file = rehearsal_path(job.plan_file);
  Rehearsal rehearsal = parse_rehearsal(read_file(file), file);
  const execution::Spread steps = execution::spread(step_times);
  rehearsal.runs.push_back({.step_time = {steps.mean, steps.ci95},
                            .steps = static_cast<std::int64_t>(step_times.size()),
                            .ratio = steps.mean / rehearsal.step_time->mean});
  write_rehearsal(rehearsal, job);
}

}  // namespace rehearse::study
