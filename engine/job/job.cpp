#include "engine/job/job.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "engine/base/names.h"
#include "engine/cluster/platform/platform.h"
#include "engine/costs/device/host_lane.h"
#include "engine/job/job_keys.h"
#include "engine/job/job_plan.h"
#include "engine/job/job_split.h"
#include "engine/methods/passes/passes.h"
#include "engine/methods/strategy.h"
#include "engine/program/phases.h"

namespace rehearse::job {
namespace {

void check_reserve(const Config& section, Bytes reserve, const cluster::Cluster& cluster) {
  for (const cluster::DeviceKind& kind : cluster.kinds())
    if (kind.memory.value > 0 && reserve >= kind.memory)
      throw section.error("memory_reserve",
                          fmt::format("{} leaves nothing of the {} of {}; it is what the driver "
                                      "and libraries take, 1 or 2 GB",
                                      to_text(reserve), to_text(kind.memory), kind.name));
}

/// Throws InputError when the stated algorithm needs a library that asks switches to add.
void check_library(const Config& file, const Job& job) {
  const program::Algorithm stated = job.plan.exchange.collective;
  const software::Library& library = job.model.software.library;
  if (library.runs_sums_of(stated)) return;
  throw file.section("method").error(
      "collective",
      fmt::format("{} needs a communication library that has it; that of software.name = {} ({}) "
                  "has not",
                  name_of(stated), job.model.software.name, library.name));
}

/// Gloo has only rings. Then every executor uses rings, so that a simulation matches the real run.
bool plays_rings(const Job& job) { return job.run.transport == Transport::gloo; }

void check_transport(const Config& run, const Job& job) {
  const program::Algorithm stated = job.plan.exchange.collective;
  if (plays_rings(job) && stated != program::Algorithm::automatic &&
      stated != program::Algorithm::ring)
    throw run.error("transport",
                    fmt::format("gloo has rings alone, and method.collective is \"{}\"; "
                                "sockets play it, or leave method.collective out",
                                name_of(stated)));
}

/// Throws InputError when load balancing would give replicas shares that they cannot have.
void check_balance(const Config& adaptive, const Job& job) {
  if (job.adaptive.balance_every == 0 || methods::planned(job.plan.method)) return;
  const bool divided = job.plan.mesh.cp > 1;
  if (methods::strategy_named(job.plan.method).combines.shares && !divided) return;
  throw adaptive.error(
      "balance_every",
      fmt::format("{}: load balancing changes the samples of replicas, and {} take equally many; "
                  "leave it out{}",
                  job.adaptive.balance_every,
                  divided ? "ranks that divide a sequence (method.cp)"
                          : fmt::format("those of method \"{}\"", job.plan.method),
                  divided ? "" : ", or take a method such as \"ddp\""));
}

/// Throws InputError when the activations of a step exceed 4e18 bytes, because byte counts are
/// 64-bit integers. The estimate of a step's bytes is generous.
void check_countable(const Config& train, const Job& job) {
  const model::ModelSpec& m = job.model;
  const double tokens = double(job.plan.schedule.global_batch) * m.seq_len;
  const double a_token = 4.0 * m.hidden + 4.0 * double(query_width(m)) +
                         4.0 * double(layers_per_token(m)) * m.ffn + m.experts +
                         4.0 * double(m.heads) * m.seq_len;
  const double bytes = 8 * tokens * (a_token * m.layers + m.padded_vocab);
  if (bytes < 4e18) return;
  throw train.error(
      "global_batch",
      fmt::format("{} samples of {} tokens: a step of {} would keep {:.1e} bytes, "
                  "more than can be counted; at most {:.0f} samples",
                  job.plan.schedule.global_batch, m.seq_len, m.name, bytes,
                  std::max(1.0, job.plan.schedule.global_batch * (4e18 / bytes) - 1)));
}

/// The checkpoints that the program saves itself. Ranks that count their own steps have none:
/// a run stops them for each checkpoint, also for one that goes to peers.
plan::Checkpoints checkpoints_of(const Config& train, const Job& job) {
  const Checkpoint& how = job.checkpoint;
  const bool peer = how.kind == CheckpointKind::peer;
  if (peer && !methods::cannot_save_behind(job.plan.method).empty()) return {};
  if ((!peer && how.kind != CheckpointKind::async) || job.train.save_every == 0) return {};
  constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
  if (job.train.save_every > most)
    throw train.error("save_every", fmt::format("{} with checkpoint.kind = \"{}\"; at most {}",
                                                job.train.save_every, name_of(how.kind), most));
  const auto to = [&] {
    if (peer) return program::Medium::peers;
    switch (how.place) {
      case CheckpointPlace::local:
        return program::Medium::local_disk;
      case CheckpointPlace::memory:
        return program::Medium::memory;
      default:
        return program::Medium::shared_disk;
    }
  };
  return {
      .every = static_cast<int>(job.train.save_every), .to = to(), .group = peer ? how.group : 1};
}

void fill_job(const Config& file, Job& job, bool to_plan) {
  JobKeys keys = read_keys(file);
  for (const std::string& section : file.names())
    for (const std::string& key : file.section(section).names())
      job.where[fmt::format("{}.{}", section, key)] = file.section(section).where(key);
  if (const Config kernels = file.section("software").section("kernels"); kernels.has("fp8"))
    job.where["software.kernels.fp8"] = kernels.where("fp8");

  job.model = model_of(file, keys);
  job.model.software = std::move(keys.software);
  job.profile = costs::ProfileOnce(keys.profile);
  if (keys.plan_file.empty())
    state_plan(file, keys, to_plan, job);
  else
    read_plan(file, keys, job);
  check_library(file, job);
  if (keys.memory_reserve) {
    check_reserve(file.section("cluster"), *keys.memory_reserve, job.cluster);
    job.cluster.reserve_memory(*keys.memory_reserve);
  }
  cluster::set_prices(job.cluster, file.section("cluster"));
  check_countable(file.section("train"), job);

  job.train = std::move(keys.train);
  job.train.seq_len = job.model.seq_len;
  job.train.warmup_steps = keys.warmup_steps.value_or(job.train.steps / 10);
  if (job.train.min_lr > job.train.lr)
    throw file.section("train").error(
        "min_lr", fmt::format("{} is above train.lr {}", job.train.min_lr, job.train.lr));
  job.adaptive = std::move(keys.adaptive);
  job.adaptive.warmup_steps = keys.adaptive_warmup_steps.value_or(
      std::clamp<std::int64_t>(job.train.steps / 4, 1, job.adaptive.warmup_steps));
  job.run = keys.run;
  check_transport(file.section("run"), job);
  job.disturb = std::move(keys.disturb);
  job.faults = std::move(keys.faults);
  job.checkpoint = keys.checkpoint;
  job.recovery = keys.recovery;
  job.autotune = keys.autotune;
  job.shares = keys.shares;
  job.micro_batch = static_cast<int>(keys.micro_batch.value_or(0));
  check_split(file.section("train"), job);
  check_balance(file.section("adaptive"), job);
  job.plan.checkpoints = checkpoints_of(file.section("train"), job);
  const std::size_t world = job.plan.placement.rank_to_device.size();
  for (std::size_t i = 0; i < job.disturb.stragglers.size(); ++i)
    if (job.disturb.stragglers[i].rank >= world)
      throw file.section("disturb").sections("stragglers")[i].error(
          "rank", fmt::format("{} is not a rank of a world of {}; at most {}",
                              job.disturb.stragglers[i].rank, world, world - 1));
  const std::vector<Config> slow_links = file.section("disturb").sections("slow_links");
  for (std::size_t i = 0; i < slow_links.size(); ++i)
    at_key(slow_links[i], "link", [&] {
      return link_slowdowns({.slow_links = {job.disturb.slow_links[i]}}, job.cluster);
    });
  if (keys.plan_file.empty() && !to_plan) prepare_plan(file.section("method"), job);
}

}  // namespace

Job read_job(const Config& file, bool to_plan) {
  Job job{.file = file.file()};
  try {
    fill_job(file, job, to_plan);
  } catch (const InputError& e) {
    throw located(job, e);
  }
  return job;
}

Job parse_job_to_plan(const std::string& text, const std::string& file,
                      const std::vector<std::string>& overrides) {
  return read_job(Config::parse(text, file, overrides), true);
}

Job parse_job(const std::string& text, const std::string& file,
              const std::vector<std::string>& overrides) {
  return read_job(Config::parse(text, file, overrides));
}

InputError located(const Job& job, const InputError& error) {
  // Only an error that starts with a known key gets a place.
  static const std::set<std::string> known = [] {
    std::set<std::string> paths;
    for (const Config::Key& key : job_keys()) paths.insert(key.path);
    return paths;
  }();
  const std::string text = error.what();
  const auto colon = text.find(": ");
  const std::string key = text.substr(0, colon);
  if (colon == std::string::npos || !known.contains(key)) return error;
  const auto it = job.where.find(key);
  return InputError(fmt::format("{}: key \"{}\": {}", it == job.where.end() ? job.file : it->second,
                                key, text.substr(colon + 2)));
}

program::Program program_of(const Job& job) {
  try {
    plan::Plan plan = job.plan;
    if (plays_rings(job)) plan.exchange.collective = program::Algorithm::ring;
    return methods::choose_collectives(methods::compile(plan, job.model), job.cluster,
                                       plan.placement.rank_to_device);
  } catch (const InputError& error) {
    throw located(job, error);
  }
}

program::Program predicted_program_of(const Job& job) {
  return costs::with_host_lane(program::with_early_last_phase(program_of(job)), job.model);
}

}  // namespace rehearse::job
