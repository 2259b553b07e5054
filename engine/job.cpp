// From keys to a job: what the file leaves out follows from the cluster, the method and the model,
// in that order.
#include "engine/job.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

#include "engine/divisors.h"
#include "engine/job_keys.h"
#include "engine/names.h"
#include "engine/passes/passes.h"
#include "engine/plan_file.h"
#include "engine/strategy.h"

namespace rehearse {
namespace {

/// An error about a name in the file (a model, a cluster, a method), with its place.
template <class F>
auto at_key(const Config& section, const std::string& key, F f) {
  try {
    return f();
  } catch (const InputError& e) {
    throw section.error(key, e.what());
  }
}

int product(const std::vector<std::optional<std::int64_t>>& sizes) {
  std::int64_t out = 1;
  for (const auto& size : sizes) out *= size.value_or(1);
  return static_cast<int>(std::min<std::int64_t>(out, std::numeric_limits<int>::max()));
}

/// The mesh of `ranks` ranks, of axes that the method has, whose sizes differ least from the wanted
/// ones, by ratio.
std::tuple<int, int, int> nearest_mesh(int ranks, const Combines& can, double pp, double dp,
                                       double tp) {
  std::tuple<int, int, int> best{1, ranks, 1};
  double best_distance = std::numeric_limits<double>::infinity();
  for (int p = 1; p <= ranks; ++p) {
    if (ranks % p != 0 || (p > 1 && !can.pp)) continue;
    for (int t = 1; t <= ranks / p; ++t) {
      if (ranks / p % t != 0 || (t > 1 && !can.tp)) continue;
      const int d = ranks / p / t;
      const double distance =
          std::abs(std::log(p / pp)) + std::abs(std::log(d / dp)) + std::abs(std::log(t / tp));
      if (distance < best_distance - 1e-9) best = {p, d, t}, best_distance = distance;
    }
  }
  return best;
}

/// Ranks on devices: all in node order, or the listed ones. An entry is a device ("node0/gpu1"), a
/// node ("node0") or a kind ("RTX 4090").
std::vector<Id> choose_devices(const Config& section, const std::vector<std::string>& wanted,
                               const Cluster& cluster) {
  std::vector<Id> out;
  const auto all = static_cast<Id>(cluster.devices().size());
  std::vector<std::string> names;
  for (Id d = 0; d < all; ++d) names.push_back(cluster.devices()[d].name);
  for (const DeviceKind& kind : cluster.kinds()) names.push_back(kind.name);
  for (const std::string& entry : wanted) {
    const std::size_t before = out.size();
    for (Id d = 0; d < all; ++d) {
      const Device& device = cluster.devices()[d];
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

const Strategy& find_method(const Config& section, const std::string& name) {
  const auto it = strategies().find(name);
  if (it != strategies().end()) return it->second;
  std::vector<std::string> names;
  for (const auto& [known, strategy] : strategies()) names.push_back(known);
  const std::string near = nearest(name, names);
  throw section.error("name", fmt::format("\"{}\" is not a method; {}known: {}", name,
                                          near.empty() ? "" : "did you mean \"" + near + "\"? ",
                                          fmt::join(names, ", ")));
}

/// The cluster, sized when it is this machine: as many ranks as the job wants share its cores.
Cluster open_cluster(const Config& section, const JobKeys& keys, int servers) {
  return at_key(section, "name", [&] {
    Cluster cluster = load_cluster(keys.cluster);
    if (cluster.shared_cores() == 0 || keys.cluster.find(':') != std::string::npos) return cluster;
    std::int64_t ranks =
        std::max(static_cast<std::int64_t>(cluster.devices().size()), std::int64_t{servers} + 1);
    if (keys.pp || keys.dp || keys.tp) ranks = product({keys.pp, keys.dp, keys.tp}) + servers;
    return load_cluster(fmt::format("{}:{}", keys.cluster, keys.world_size.value_or(ranks)));
  });
}

void fill_mesh(const Config& file, const JobKeys& keys, int world, const Strategy& method,
               const ModelSpec& model, Plan& plan) {
  const Config section = file.section("method");
  Plan implied = plan;
  if (method.defaults != nullptr) method.defaults(implied);
  const int ranks = world - plan.servers;
  if (ranks < 1)
    throw section.error("servers", fmt::format("{} of {} ranks leave no worker; at most {}",
                                               plan.servers, world, world - 1));
  // The largest sizes up to the method's own that divide what is left, and the model.
  const auto wanted = [&](int most, int rest, const auto& fits) {
    int best = 1;
    for (int size = 1; size <= std::min(most, rest); ++size)
      if (rest % size == 0 && fits(size)) best = size;
    return best;
  };
  const int left = std::max(1, ranks / product({keys.pp, keys.dp}));
  plan.tp = static_cast<int>(keys.tp.value_or(
      wanted(method.tp, left, [&](int tp) { return tensor_divisor(model) % tp == 0; })));
  const int deep = std::max(1, ranks / product({keys.dp, plan.tp}));
  plan.pp = static_cast<int>(keys.pp.value_or(wanted(
      method.pp, deep, [&](int pp) { return pp * implied.virtual_stages <= model.layers; })));
  plan.dp = static_cast<int>(keys.dp.value_or(std::max(1, ranks / std::max(1, plan.pp * plan.tp))));
  const std::int64_t size = std::int64_t{plan.pp} * plan.dp * plan.tp;
  if (size == ranks) return;
  const auto [pp, dp, tp] = nearest_mesh(ranks, method.combines, plan.pp, plan.dp, plan.tp);
  const std::string key = keys.pp ? "pp" : keys.tp ? "tp" : keys.dp ? "dp" : "pp";
  throw section.error(
      key,
      fmt::format("pp {} x dp {} x tp {}{} = {} ranks, but the world has {}; nearest mesh that "
                  "fits: pp {} x dp {} x tp {}; or set cluster.world_size",
                  plan.pp, plan.dp, plan.tp,
                  plan.servers > 0 ? fmt::format(" + {} servers", plan.servers) : "",
                  size + plan.servers, world, pp, dp, tp));
}

int default_micro_batches(const Plan& plan) {
  if (plan.pp == 1) return 1;
  int most = 1, multiple = 0;
  for (const int m : divisors(std::max(1, plan.global_batch / plan.dp))) {
    most = m;
    if (m % plan.pp != 0) continue;
    multiple = m;
    if (m >= 4 * plan.pp) break;
  }
  return multiple > 0 ? multiple : most;
}

/// Global batch and micro-batches; shares that are given fix the one by the other.
void fill_batch(const Config& method, const JobKeys& keys, Plan& plan) {
  if (!plan.shares.empty()) {
    const auto at_once = std::accumulate(plan.shares.begin(), plan.shares.end(), std::int64_t{0});
    const std::int64_t unstated = plan.pp == 1 ? 1 : 4 * plan.pp;
    const std::int64_t micro_batches = keys.micro_batches.value_or(
        keys.global_batch ? std::max<std::int64_t>(1, *keys.global_batch / at_once) : unstated);
    if (constexpr std::int64_t most = std::numeric_limits<int>::max();
        at_once > most / micro_batches)
      throw method.error("shares", fmt::format("{} samples in {} micro-batches are more than {}",
                                               at_once, micro_batches, most));
    plan.micro_batches = static_cast<int>(micro_batches);
    plan.global_batch = static_cast<int>(keys.global_batch.value_or(at_once * micro_batches));
    return;
  }
  plan.global_batch =
      static_cast<int>(keys.global_batch.value_or(16 * plan.pp * plan.dp * plan.tp));
  plan.micro_batches = static_cast<int>(keys.micro_batches.value_or(default_micro_batches(plan)));
  if (const int share = plan.global_batch / plan.dp; plan.micro_batches > std::max(1, share))
    throw method.error(
        "micro_batches",
        fmt::format("{}: each of {} replicas has only {} samples of train.global_batch "
                    "{}; at most {}",
                    plan.micro_batches, plan.dp, share, plan.global_batch, std::max(1, share)));
}

void check_precision(const Config& section, const Plan& plan, const Cluster& cluster) {
  if (plan.precision == DType::f32) return;
  for (Id device : plan.rank_to_device) {
    const DeviceKind& kind = cluster.kind_of(device);
    const bool bf16 = plan.precision == DType::bf16;
    if ((bf16 ? kind.peak_bf16 : kind.peak_f16).value > 0) continue;
    throw section.error("precision",
                        fmt::format("{} of {} cannot compute in {}; fp32{} would fit", kind.name,
                                    cluster.devices()[device].name, bf16 ? "bf16" : "fp16",
                                    bf16 && kind.peak_f16.value > 0 ? " or fp16" : ""));
  }
}

void check_profile(const Config& cluster, const Job& job) {
  if (!job.profile.empty() && !std::filesystem::is_regular_file(job.profile))
    throw cluster.error("profile", fmt::format("\"{}\" does not exist; `rehearse profile -o FILE` "
                                               "writes one",
                                               job.profile));
}

/// What is stated of the mesh, the rest 1 or all: a planner decides.
void leave_mesh(const Config& method, const JobKeys& keys, int world, Plan& plan) {
  const int stated = product({keys.pp, keys.dp, keys.tp});
  if (world % stated != 0 || (keys.pp && keys.dp && keys.tp && stated != world)) {
    const Combines any{.pp = !keys.pp || *keys.pp > 1, .tp = !keys.tp || *keys.tp > 1};
    const auto [pp, dp, tp] = nearest_mesh(world, any, static_cast<double>(keys.pp.value_or(1)),
                                           static_cast<double>(keys.dp.value_or(1)),
                                           static_cast<double>(keys.tp.value_or(1)));
    throw method.error(
        keys.pp   ? "pp"
        : keys.tp ? "tp"
                  : "dp",
        fmt::format("no mesh of the {} ranks has the sizes that are stated; nearest: pp {} x dp {} "
                    "x tp {}; or set cluster.world_size",
                    world, pp, dp, tp));
  }
  plan.pp = static_cast<int>(keys.pp.value_or(1));
  plan.tp = static_cast<int>(keys.tp.value_or(1));
  plan.dp = static_cast<int>(keys.dp.value_or(world / (plan.pp * plan.tp)));
  plan.global_batch = static_cast<int>(keys.global_batch.value_or(std::int64_t{16} * world));
  plan.micro_batches = static_cast<int>(keys.micro_batches.value_or(1));
}

/// Cluster and plan as [cluster], [method] and [train] state them, defaults filled in.
void state_plan(const Config& file, const JobKeys& keys, bool to_plan, Job& job) {
  const Config cluster = file.section("cluster"), method = file.section("method");
  const Strategy& strategy = find_method(method, keys.plan.method);
  job.plan = keys.plan;
  job.plan.servers = static_cast<int>(keys.servers.value_or(strategy.combines.servers ? 1 : 0));
  // Before a cluster of so many ranks is made.
  if (keys.pp && *keys.pp > job.model.layers && *keys.pp > 1)
    throw method.error("pp",
                       fmt::format("{} stages need at least as many layers; {} has {}; at "
                                   "most {}",
                                   *keys.pp, job.model.name, job.model.layers, job.model.layers));
  job.cluster = open_cluster(cluster, keys, job.plan.servers);
  check_profile(cluster, job);

  std::vector<Id> devices = choose_devices(cluster, keys.devices, job.cluster);
  const auto most = static_cast<std::int64_t>(devices.size());
  const std::int64_t world = keys.world_size.value_or(most);
  if (world > most)
    throw cluster.error("world_size", fmt::format("{} ranks, but {} has {} devices; at most {}",
                                                  world, job.cluster.name(), most, most));
  devices.resize(static_cast<std::size_t>(world));

  Plan& plan = job.plan;
  if (to_plan) {
    leave_mesh(method, keys, static_cast<int>(world), plan);
  } else {
    fill_mesh(file, keys, static_cast<int>(world), strategy, job.model, plan);
    fill_batch(method, keys, plan);
  }
  plan.clip = keys.train.clip > 0;
  plan.rank_to_device = std::move(devices);
  for (const Id device : plan.rank_to_device)
    plan.node_of.push_back(job.cluster.devices()[device].node);
  check_precision(method, plan, job.cluster);
}

/// Cluster and plan of a job that names a plan file: the plan as it stands there, and nothing in
/// the job that contradicts it.
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
  job.cluster = open_cluster(cluster, sized, 0);
  check_profile(cluster, job);
  job.plan = load_plan(keys.plan_file, job.model, job.cluster);
  try {
    job.plan = prepare(std::move(job.plan), job.model);
  } catch (const InputError& error) {
    throw InputError(fmt::format("{}: {}", keys.plan_file, error.what()));
  }
  const auto differs = [&](const Config& section, const char* key, const auto& here,
                           const auto& there) {
    return section.error(
        key, fmt::format("{}: the plan {} says {}; leave it out", here, keys.plan_file, there));
  };
  const Plan& plan = job.plan;
  if (keys.world_size && *keys.world_size != plan.world_size())
    throw differs(cluster, "world_size", *keys.world_size, plan.world_size());
  if (!keys.devices.empty())
    throw cluster.error(
        "devices", fmt::format("the plan {} says which devices; leave it out", keys.plan_file));
  if (keys.global_batch && *keys.global_batch != plan.global_batch)
    throw differs(train, "global_batch", *keys.global_batch, plan.global_batch);
  if (train.has("optimizer") && keys.plan.optimizer != plan.optimizer)
    throw differs(train, "optimizer", name_of(keys.plan.optimizer), name_of(plan.optimizer));
  if ((keys.train.clip > 0) != plan.clip)
    throw train.error("clip", fmt::format("{}: the plan {} was made {} clipping", keys.train.clip,
                                          keys.plan_file, plan.clip ? "with" : "without"));
}

/// The plan against the model and the method; a name that implies a value does not overrule the
/// file in silence.
void prepare_plan(const Config& method, Job& job) {
  const Plan stated = job.plan;
  job.plan = prepare(std::move(job.plan), job.model);
  const auto agree = [&](const char* key, int written, int implied) {
    if (method.has(key) && written != implied)
      throw method.error(
          key, fmt::format("{}: method \"{}\" implies {}", written, stated.method, implied));
  };
  agree("zero", stated.zero, job.plan.zero);
  agree("virtual_stages", stated.virtual_stages, job.plan.virtual_stages);
  agree("servers", stated.servers, job.plan.servers);
  agree("staleness", stated.staleness, job.plan.staleness);
}

void fill_job(const Config& file, Job& job, bool to_plan) {
  JobKeys keys = read_keys(file);
  job.file = file.file();
  for (const std::string& section : file.names())
    for (const std::string& key : file.section(section).names())
      job.where[fmt::format("{}.{}", section, key)] = file.section(section).where(key);

  job.model = at_key(file.section("model"), "name", [&] { return load_model(keys.model, 0); });
  if (keys.seq_len)
    job.model = at_key(file.section("train"), "seq_len",
                       [&] { return load_model(keys.model, static_cast<int>(*keys.seq_len)); });
  job.profile = keys.profile;
  if (keys.plan_file.empty())
    state_plan(file, keys, to_plan, job);
  else
    read_plan(file, keys, job);
  if (keys.memory_reserve) job.cluster.reserve_memory(*keys.memory_reserve);

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
  job.disturb = std::move(keys.disturb);
  const std::size_t world = job.plan.rank_to_device.size();
  for (std::size_t i = 0; i < job.disturb.stragglers.size(); ++i)
    if (job.disturb.stragglers[i].rank >= world)
      throw file.section("disturb").sections("stragglers")[i].error(
          "rank", fmt::format("{} is not a rank of a world of {}; at most {}",
                              job.disturb.stragglers[i].rank, world, world - 1));
  at_key(file.section("disturb"), "slow_links",
         [&] { return link_slowdowns(job.disturb, job.cluster); });
  if (keys.plan_file.empty() && !to_plan) prepare_plan(file.section("method"), job);
}

Job read_job(const Config& file, bool to_plan = false) {
  Job job;
  try {
    fill_job(file, job, to_plan);
  } catch (const InputError& e) {
    throw located(job, e);
  }
  return job;
}

}  // namespace

Job load_job(const std::string& path, const std::vector<std::string>& overrides) {
  return read_job(Config::load(path, overrides));
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
  // "method.pp: 3: must ..."; anything else is not about a key.
  const std::string text = error.what();
  const auto colon = text.find(": ");
  const std::string key = text.substr(0, colon);
  const bool is_key =
      colon != std::string::npos && std::count(key.begin(), key.end(), '.') == 1 &&
      std::all_of(key.begin(), key.end(), [](char c) {
        return c == '.' || c == '_' || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
      });
  if (!is_key) return error;
  const auto it = job.where.find(key);
  return InputError(fmt::format("{}: key \"{}\": {}", it == job.where.end() ? job.file : it->second,
                                key, text.substr(colon + 2)));
}

Program compile(const Job& job) {
  try {
    return choose_collectives(compile(job.plan, job.model), job.cluster, job.plan.rank_to_device);
  } catch (const InputError& error) {
    throw located(job, error);
  }
}

}  // namespace rehearse
