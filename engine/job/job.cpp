#include "engine/job/job.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include "engine/base/names.h"
#include "engine/cluster/platform.h"
#include "engine/costs/host_lane.h"
#include "engine/job/job_keys.h"
#include "engine/job/job_mesh.h"
#include "engine/job/job_servers.h"
#include "engine/job/job_split.h"
#include "engine/job/plan_file.h"
#include "engine/methods/passes/passes.h"
#include "engine/methods/strategy.h"
#include "engine/program/phases.h"

namespace rehearse::job {
namespace {

/// Calls f; adds the place of `key` to an InputError that f throws. A Refused names its own key.
template <class F>
auto at_key(const Config& section, const std::string& key, F f) {
  try {
    return f();
  } catch (const Refused&) {
    throw;
  } catch (const InputError& e) {
    throw section.error(key, e.what());
  }
}

/// The devices that a job uses, by rank: those that the entries of `wanted` name, or all in node
/// order when `wanted` is empty. An entry names a device ("node0/gpu1"), a node ("node0") or a kind
/// of device ("RTX 4090").
std::vector<Id> choose_devices(const Config& section, const std::vector<std::string>& wanted,
                               const cluster::Cluster& cluster) {
  std::vector<Id> out;
  const auto all = static_cast<Id>(cluster.devices().size());
  std::vector<std::string> names;
  for (Id d = 0; d < all; ++d) names.push_back(cluster.devices()[d].name);
  for (const cluster::DeviceKind& kind : cluster.kinds()) names.push_back(kind.name);
  for (const std::string& entry : wanted) {
    const std::size_t before = out.size();
    for (Id d = 0; d < all; ++d) {
      const cluster::Device& device = cluster.devices()[d];
      if (device.name != entry && cluster.kind_of(d).name != entry &&
          !device.name.starts_with(entry + "/"))
        continue;
      if (std::find(out.begin(), out.end(), d) != out.end())
        throw section.error("devices", fmt::format("{} is listed twice", device.name));
      out.push_back(d);
    }
    if (out.size() == before) {
      const std::string near = nearest(entry, names);
      throw section.error(
          "devices", fmt::format("\"{}\" is no device, node or kind of {}{}", entry, cluster.name(),
                                 near.empty() ? "" : "; did you mean \"" + near + "\"?"));
    }
  }
  for (Id d = 0; wanted.empty() && d < all; ++d) out.push_back(d);
  return out;
}

const methods::Strategy& find_method(const Config& section, const std::string& name) {
  if (const std::string unknown = methods::unknown_method(name); !unknown.empty())
    throw section.error("name", unknown);
  return methods::strategy_named(name);
}

/// Loads the cluster, with the library: its hash, which plan files state, contains both. The local
/// machine (a cluster with shared cores) gets a device for each rank, unless it is named "name:4".
cluster::Cluster open_cluster(const Config& section, const JobKeys& keys, int servers,
                              const software::Library& library) {
  cluster::Cluster opened = at_key(section, "name", [&] {
    cluster::Cluster cluster = cluster::load_cluster(keys.cluster, keys.platform);
    if (cluster.shared_cores() == 0 || keys.cluster.find(':') != std::string::npos) return cluster;
    std::int64_t ranks =
        std::max(static_cast<std::int64_t>(cluster.devices().size()), std::int64_t{servers} + 1);
    if (keys.pp || keys.dp || keys.tp) ranks = product({keys.pp, keys.dp, keys.tp}) + servers;
    return cluster::load_cluster(
        fmt::format("{}:{}", keys.cluster, keys.world_size.value_or(ranks)), keys.platform);
  });
  opened.use_library(library);
  return opened;
}

void check_reserve(const Config& section, Bytes reserve, const cluster::Cluster& cluster) {
  for (const cluster::DeviceKind& kind : cluster.kinds())
    if (kind.memory.value > 0 && reserve >= kind.memory)
      throw section.error("memory_reserve",
                          fmt::format("{} leaves nothing of the {} of {}; it is what the driver "
                                      "and libraries take, 1 or 2 GB",
                                      to_text(reserve), to_text(kind.memory), kind.name));
}

void check_precision(const Config& section, const plan::Plan& plan,
                     const cluster::Cluster& cluster) {
  if (plan.precision == program::DType::f32) return;
  for (Id device : plan.placement.rank_to_device) {
    const cluster::DeviceKind& kind = cluster.kind_of(device);
    const Precision wanted = precision_of(plan);
    const bool bf16 = wanted == Precision::bf16, fp8 = wanted == Precision::fp8;
    if ((fp8 ? kind.peak_fp8 : bf16 ? kind.peak_bf16 : kind.peak_f16).value > 0) continue;
    const bool has_f16 = wanted != Precision::fp16 && kind.peak_f16.value > 0;
    const char* nearest = fp8 && kind.peak_bf16.value > 0 ? "bf16"
                          : has_f16                       ? "fp32 or fp16"
                                                          : "fp32";
    throw section.error("precision",
                        fmt::format("{} of {} cannot compute in {}; {} would fit", kind.name,
                                    cluster.devices()[device].name, name_of(wanted), nearest));
  }
}

void check_profile(const Config& cluster, const Job& job) {
  if (!job.profile.empty() && !std::filesystem::is_regular_file(job.profile))
    throw cluster.error("profile", fmt::format("\"{}\" does not exist; `rehearse profile -o FILE` "
                                               "writes one",
                                               job.profile));
}

/// Fills cluster and plan from [cluster], [method] and [train], with defaults.
void state_plan(const Config& file, const JobKeys& keys, bool to_plan, Job& job) {
  const Config cluster = file.section("cluster"), method = file.section("method");
  const methods::Strategy& strategy = find_method(method, keys.plan.method);
  job.plan = keys.plan;
  if (keys.autotune && !strategy.combines.cycles)
    throw method.error("autotune",
                       fmt::format("method \"{}\" has no coordinator to tune; leave it out, or use "
                                   "`rehearse plan`",
                                   keys.plan.method));
  if (keys.shares == Shares::speed && !strategy.combines.shares)
    throw method.error("shares", fmt::format("\"speed\": every rank of method \"{}\" takes equally "
                                             "many samples; leave it out",
                                             keys.plan.method));
  job.plan.mesh.servers = servers_of(method, keys, strategy.combines, {});
  // Checked first, because open_cluster makes a cluster of pp x dp x tp ranks.
  if (keys.pp && *keys.pp > job.model.layers && *keys.pp > 1)
    throw method.error("pp",
                       fmt::format("{} stages need at least as many layers; {} has {}; at "
                                   "most {}",
                                   *keys.pp, job.model.name, job.model.layers, job.model.layers));
  job.cluster = open_cluster(cluster, keys, job.plan.mesh.servers, job.model.software.library);
  check_profile(cluster, job);

  std::vector<Id> devices = choose_devices(cluster, keys.devices, job.cluster);
  const auto most = static_cast<std::int64_t>(devices.size());
  const std::int64_t world = keys.world_size.value_or(most);
  if (world > most)
    throw cluster.error("world_size", fmt::format("{} ranks, but {} has {} devices; at most {}",
                                                  world, job.cluster.name(), most, most));
  devices.resize(static_cast<std::size_t>(world));
  std::vector<Id> node_of;
  for (const Id device : devices) node_of.push_back(job.cluster.devices()[device].node);
  job.plan.mesh.servers = servers_of(method, keys, strategy.combines, node_of);
  devices = with_servers_last(std::move(devices), keys, job.plan.mesh.servers, job.cluster);

  plan::Plan& plan = job.plan;
  if (to_plan) {
    leave_mesh(file, keys, static_cast<int>(world), job.model, plan);
  } else {
    fill_mesh_and_batch(file, keys, static_cast<int>(world), strategy, job.model, plan);
  }
  plan.clip = keys.train.clip > 0;
  plan.placement.rank_to_device = std::move(devices);
  for (const Id device : plan.placement.rank_to_device)
    plan.placement.node_of.push_back(job.cluster.devices()[device].node);
  check_precision(method, plan, job.cluster);
}

/// Fills cluster and plan from the plan file that the job names. Throws InputError when another key
/// of the job contradicts the plan.
void read_plan(const Config& file, const JobKeys& keys, Job& job) {
  const Config cluster = file.section("cluster"), method = file.section("method"),
               train = file.section("train");
  if (!std::filesystem::is_regular_file(keys.plan_file))
    throw method.error("plan",
                       fmt::format("\"{}\" does not exist; `rehearse plan JOB.toml -o FILE` "
                                   "writes one",
                                   keys.plan_file));
  job.plan_file = keys.plan_file;
  JobKeys sized = keys;
  sized.world_size = world_size_of_plan(keys.plan_file);
  job.cluster = open_cluster(cluster, sized, 0, job.model.software.library);
  check_profile(cluster, job);
  job.plan = load_plan(keys.plan_file, job.model, job.cluster);
  try {
    job.plan = methods::prepare(std::move(job.plan), job.model);
  } catch (const InputError& error) {
    throw InputError(fmt::format("{}: {}", keys.plan_file, error.what()));
  }
  const auto differs = [&](const Config& section, const char* key, const auto& here,
                           const auto& there) {
    return section.error(
        key, fmt::format("{}: the plan {} says {}; leave it out", here, keys.plan_file, there));
  };
  const plan::Plan& plan = job.plan;
  if (keys.world_size && *keys.world_size != plan.mesh.world_size())
    throw differs(cluster, "world_size", *keys.world_size, plan.mesh.world_size());
  if (!keys.devices.empty())
    throw cluster.error(
        "devices", fmt::format("the plan {} says which devices; leave it out", keys.plan_file));
  if (keys.global_batch && *keys.global_batch != plan.schedule.global_batch)
    throw differs(train, "global_batch", *keys.global_batch, plan.schedule.global_batch);
  if (train.has("optimizer") && keys.plan.optimizer != plan.optimizer)
    throw differs(train, "optimizer", name_of(keys.plan.optimizer), name_of(plan.optimizer));
  if ((keys.train.clip > 0) != plan.clip)
    throw train.error("clip", fmt::format("{}: the plan {} was made {} clipping", keys.train.clip,
                                          keys.plan_file, plan.clip ? "with" : "without"));
}

/// Completes the plan and checks it against model and method (methods::prepare). Throws InputError
/// when the method's name implies another value than the file states.
void prepare_plan(const Config& method, Job& job) {
  const plan::Plan stated = job.plan;
  job.plan = methods::prepare(std::move(job.plan), job.model);
  const auto agree = [&](const char* key, int written, int implied) {
    if (method.has(key) && written != implied)
      throw method.error(
          key, fmt::format("{}: method \"{}\" implies {}", written, stated.method, implied));
  };
  agree("zero", stated.exchange.sharding.zero, job.plan.exchange.sharding.zero);
  agree("virtual_stages", stated.schedule.virtual_stages, job.plan.schedule.virtual_stages);
  agree("servers", stated.mesh.servers, job.plan.mesh.servers);
  agree("staleness", stated.schedule.staleness, job.plan.schedule.staleness);
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

/// Throws InputError when the activations of a step exceed 4e18 bytes, because byte counts are
/// 64-bit integers. The estimate of a step's bytes is generous.
void check_countable(const Config& train, const Job& job) {
  const model::ModelSpec& m = job.model;
  const double tokens = double(job.plan.schedule.global_batch) * m.seq_len;
  const double a_token = 4.0 * m.hidden + 4.0 * double(query_width(m)) + 4.0 * m.ffn +
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

  job.model = model_of(file, keys);
  job.model.software = std::move(keys.software);
  job.profile = keys.profile;
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
  job.plan.checkpoints = checkpoints_of(file.section("train"), job);
  const std::size_t world = job.plan.placement.rank_to_device.size();
  for (std::size_t i = 0; i < job.disturb.stragglers.size(); ++i)
    if (job.disturb.stragglers[i].rank >= world)
      throw file.section("disturb").sections("stragglers")[i].error(
          "rank", fmt::format("{} is not a rank of a world of {}; at most {}",
                              job.disturb.stragglers[i].rank, world, world - 1));
  at_key(file.section("disturb"), "slow_links",
         [&] { return link_slowdowns(job.disturb, job.cluster); });
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

Job load_job_to_plan(const std::string& path, const std::vector<std::string>& overrides) {
  return read_job(Config::load(path, overrides), true);
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
