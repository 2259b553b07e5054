#include "engine/job/job_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "engine/base/hints.h"
#include "engine/base/names.h"
#include "engine/cluster/platform/platform.h"
#include "engine/job/job_mesh.h"
#include "engine/job/job_servers.h"
#include "engine/job/plan_file.h"
#include "engine/methods/strategy.h"

namespace rehearse::job {
namespace {

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
    const std::size_t size_so_far = out.size();
    for (Id d = 0; d < all; ++d) {
      const cluster::Device& device = cluster.devices()[d];
      if (device.name != entry && cluster.kind_of(d).name != entry &&
          !device.name.starts_with(entry + "/"))
        continue;
      if (std::find(out.begin(), out.end(), d) != out.end())
        throw section.error("devices", fmt::format("{} is listed twice", device.name));
      out.push_back(d);
    }
    if (out.size() == size_so_far)
      throw section.error("devices", fmt::format("\"{}\" is no device, node or kind of {}{}", entry,
                                                 cluster.name(), did_you_mean(entry, names)));
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
  const auto open = [&] {
    cluster::Cluster cluster = cluster::load_cluster(keys.cluster, keys.platform);
    if (cluster.shared_cores() == 0 || keys.cluster.find(':') != std::string::npos) return cluster;
    std::int64_t ranks =
        std::max(static_cast<std::int64_t>(cluster.devices().size()), std::int64_t{servers} + 1);
    if (keys.pp || keys.dp || keys.tp) ranks = product({keys.pp, keys.dp, keys.tp}) + servers;
    return cluster::load_cluster(
        fmt::format("{}:{}", keys.cluster, keys.world_size.value_or(ranks)), keys.platform);
  };
  const std::string path = keys.cluster.substr(0, keys.cluster.rfind(':'));
  cluster::Cluster opened = [&] {
    try {
      return at_key(section, "name", open, beside_job(section, path));
    } catch (const Refused& refused) {  // a key of the job's, not of the file that it names
      if (refused.refusal.key.starts_with("cluster.")) throw;  // its error has a place already
      throw section.section("fabric").error(refused.refusal.key, refused.what());
    }
  }();
  opened.use_library(library);
  return opened;
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
  const std::string& path = job.profile.path();
  if (!path.empty() && !std::filesystem::is_regular_file(path))
    throw cluster.error("profile", fmt::format("\"{}\" does not exist; `rehearse profile -o FILE` "
                                               "writes one",
                                               path));
}

}  // namespace

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
  // Checked first, because open_cluster makes a cluster of pp x dp x tp ranks. A list of layers may
  // have none for the first and the last stage; it is checked with the plan.
  if (keys.pp && *keys.pp > job.model.layers && *keys.pp > 1 &&
      keys.plan.placement.stage_layers.empty())
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
    throw cluster.error(
        "world_size",
        fmt::format("{} ranks, but {} has {} devices{}; at most {}", world, job.cluster.name(),
                    most, keys.devices.empty() ? "" : " of cluster.devices", most));
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

}  // namespace rehearse::job
