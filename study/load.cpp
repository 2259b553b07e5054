#include "study/load.h"

#include <fmt/format.h>

#include "engine/base/errors.h"
#include "engine/methods/strategy.h"
#include "engine/planner/exchange/fusion.h"
#include "engine/planner/exchange/push_order.h"
#include "engine/planner/placement/shares.h"

namespace rehearse::study {

Config config_of(const JobSource& source) {
  return source.text ? Config::parse(*source.text, source.file, source.set)
                     : Config::load(source.file, source.set);
}

faults::FailureModel failure_model_of(const job::Job& job) {
  try {
    return faults::load_model(job.faults.model);
  } catch (const InputError& error) {
    throw job::located(job, InputError(std::string("faults.model: ") + error.what()));
  }
}

namespace {

/// The failure model is checked also where no long run will read it.
job::Job checked(job::Job job) {
  if (!job.faults.model.empty()) failure_model_of(job);
  return job;
}

}  // namespace

job::Job load(const JobSource& source) {
  const Config file = config_of(source);
  const bool open = methods::planned(file.section("method").text("name", ""));
  return checked(open ? job::read_job(file, true) : completed(job::read_job(file)));
}

job::Job load_to_plan(const JobSource& source) {
  return checked(job::read_job(config_of(source), true));
}

job::Job load(const std::string& path, const std::vector<std::string>& set) {
  return load({.file = path, .set = set});
}

job::Job completed(job::Job job) {
  const bool cycles = methods::strategy_named(job.plan.method).combines.cycles;
  if (!cycles && !job.plan.exchange.machines.credit && job.shares == job::Shares::equal) return job;
  const costs::Profile* const profile = profile_of(job);
  job = planner::with_shares(std::move(job), profile);
  return cycles ? planner::with_cycles(std::move(job), profile)
                : planner::with_push_order(std::move(job), profile);
}

job::Job load_for(const std::string& path, const std::vector<std::string>& set, int ranks) {
  const auto sized = [&] {
    std::vector<std::string> sizing = set;
    sizing.push_back(fmt::format("cluster.world_size={}", ranks));
    return load(path, sizing);
  };
  const Config file = Config::load(path, set);
  const bool states_size = file.section("cluster").has("world_size");
  std::optional<job::Job> job;
  try {
    job = load(path, set);
  } catch (const InputError& unsized) {
    // The job's batch may divide among `ranks` though not among the host's cores.
    if (states_size) throw;
    try {
      if (job = sized(); job->cluster.shared_cores() > 0) return *std::move(job);
    } catch (const InputError& error) {
      // Whoever starts `ranks` ranks on this machine does not ask about its cores.
      const bool started = file.section("cluster").text("name", "") == "this-machine" &&
                           !file.section("method").has("dp");
      if (started && std::string_view(error.what()) != unsized.what())
        throw InputError(fmt::format("{} ranks: {}", ranks, error.what()));
    }
    throw;
  }
  if (job->plan.mesh.world_size() == ranks || states_size || job->cluster.shared_cores() == 0)
    return *std::move(job);
  try {
    return sized();
  } catch (const InputError& error) {
    // Where the job states its mesh, the caller reports the mismatch.
    if (job->where.contains("method.dp") || !job->plan_file.empty()) return *std::move(job);
    throw InputError(fmt::format("{} ranks: {}", ranks, error.what()));
  }
}

const costs::Profile* profile_of(const job::Job& job) {
  try {
    return job.profile.on(job.cluster);
  } catch (const InputError& error) {
    throw located(job, error);
  }
}

void warn_of_encryption(const job::Job& job, std::vector<std::string>& warnings) {
  const costs::Profile* const profile = profile_of(job);
  const bool measured = profile != nullptr && profile->communicates();
  const bool encrypted = measured && profile->encrypted;
  if (encrypted == job.run.encrypt) return;
  warnings.push_back(fmt::format(
      "run.encrypt = {}, but {}: `rehearse profile{} -o FILE` measures what the run will have",
      job.run.encrypt,
      encrypted  ? "connections were encrypted when cluster.profile was measured"
      : measured ? "connections were not encrypted when cluster.profile was measured"
                 : "times of communication are those of connections that are not encrypted",
      encrypted ? "" : " --encrypt"));
}

}  // namespace rehearse::study
