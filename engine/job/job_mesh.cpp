// An error message recommends a mesh only after a trial: `advice` fills and prepares a plan with
// that mesh as if the job had stated it.
#include "engine/job/job_mesh.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>

#include "engine/base/errors.h"
#include "engine/base/numbers/divisors.h"

namespace rehearse::job {
namespace {

struct Sizes {
  int pp = 1, dp = 1, tp = 1;
};

std::string text(const Sizes& s) { return fmt::format("pp {} x dp {} x tp {}", s.pp, s.dp, s.tp); }

/// With the place of cp and the servers, which the advice leaves as they are.
std::string whole_text(const Sizes& s, const plan::Mesh& mesh) {
  std::string out = text(s);
  if (mesh.cp > 1) out += fmt::format(" x cp {}", mesh.cp);
  if (mesh.servers > 0)
    out += fmt::format(" + {} server{}", mesh.servers, mesh.servers == 1 ? "" : "s");
  return out;
}

/// Meshes of `ranks` ranks whose axes the method supports and whose sizes divide the model. Those
/// that keep the most of the axes that `wanted` has come first, then the nearest; the distance is
/// the sum of |log(size / wanted size)| over the axes.
std::vector<Sizes> meshes_near(const Sizes& wanted, int ranks, const methods::Combines& can,
                               const model::ModelSpec& model, int chunks_a_stage) {
  const auto apart = [&](const Sizes& s) {
    return std::abs(std::log(double(s.pp) / wanted.pp)) +
           std::abs(std::log(double(s.dp) / wanted.dp)) +
           std::abs(std::log(double(s.tp) / wanted.tp));
  };
  const auto dropped = [&](const Sizes& s) {
    return (wanted.pp > 1 && s.pp == 1) + (wanted.dp > 1 && s.dp == 1) +
           (wanted.tp > 1 && s.tp == 1);
  };
  std::vector<std::pair<double, Sizes>> found;
  for (int p = 1; p <= std::min(ranks, can.pp ? model.layers : 1); ++p) {
    if (ranks % p != 0 || (p > 1 && p * chunks_a_stage > model.layers)) continue;
    for (int t = 1; t <= std::min(ranks / p, can.tp ? model.heads : 1); ++t)
      if (ranks / p % t == 0 && plan::splits(model, t)) {
        const Sizes s{p, ranks / p / t, t};
        found.emplace_back(apart(s), s);
      }
  }
  std::stable_sort(found.begin(), found.end(), [&](const auto& a, const auto& b) {
    const int fewer = dropped(a.second) - dropped(b.second);
    return fewer != 0 ? fewer < 0 : a.first < b.first - 1e-9;
  });
  std::vector<Sizes> out;
  for (const auto& [distance, sizes] : found) out.push_back(sizes);
  return out;
}

/// The smallest multiple of pp that is at least 4 pp and divides `samples`; else the largest
/// multiple of pp that does; else the largest divisor. At most `limit`. 1 without a pipeline.
int default_micro_batches(const plan::Plan& plan, int samples, int limit) {
  if (plan.mesh.pp == 1) return 1;
  int most = 1, multiple = 0;
  for (const int m : divisors(samples)) {
    if (m > limit) break;
    most = m;
    if (m % plan.mesh.pp != 0) continue;
    multiple = m;
    if (m >= 4 * plan.mesh.pp) break;
  }
  return multiple > 0 ? multiple : most;
}

/// Throws Refused; the message names the key's place in the file.
[[noreturn]] void refuse_in(const Config& file, const char* section, const char* key,
                            const std::string& why) {
  throw Refused({fmt::format("{}.{}", section, key), file.section(section).error(key, why).what()});
}

/// The numbers of a batch that keys state, where method.micro_batch says how many samples a replica
/// takes at once: global_batch = micro_batch x dp x micro_batches. Whichever of the others is not
/// stated follows. A number of micro-batches on the command line replaces a file's micro_batch.
JobKeys with_micro_batch(const Config& file, JobKeys keys, const plan::Plan& plan) {
  const auto on_command_line = [&](const char* key) {
    return file.section("method").where(key).starts_with("--set");
  };
  if (on_command_line("micro_batches") && !on_command_line("micro_batch")) keys.micro_batch.reset();
  if (!keys.micro_batch) return keys;
  const std::int64_t at_once = *keys.micro_batch * plan.mesh.dp;
  if (!keys.global_batch) {
    keys.micro_batches = keys.micro_batches.value_or(plan.mesh.pp == 1 ? 1 : 4 * plan.mesh.pp);
    keys.global_batch = at_once * *keys.micro_batches;
    if (*keys.global_batch > std::numeric_limits<int>::max())
      refuse_in(file, "method", "micro_batch",
                fmt::format("{} x dp {} x {} micro-batches are a global batch of {}; at most {}",
                            *keys.micro_batch, plan.mesh.dp, *keys.micro_batches,
                            *keys.global_batch, std::numeric_limits<int>::max()));
    return keys;
  }
  const std::int64_t batch = *keys.global_batch;
  if (batch % at_once != 0) {
    const bool shared = batch % plan.mesh.dp == 0;
    if (!shared && file.section("train").has("global_batch"))
      refuse_in(file, "train", "global_batch",
                fmt::format("{} must be a multiple of method.micro_batch {} x {} replicas; "
                            "nearest: {}",
                            batch, *keys.micro_batch, plan.mesh.dp,
                            std::max<std::int64_t>(1, (batch + at_once / 2) / at_once) * at_once));
    const int share = static_cast<int>(batch / plan.mesh.dp);
    refuse_in(
        file, "method", "micro_batch",
        fmt::format("{} samples on each of {} replicas must divide train.global_batch {}; "
                    "nearest: {}",
                    *keys.micro_batch, plan.mesh.dp, batch,
                    shared ? nearest_divisor(share, static_cast<int>(*keys.micro_batch)) : 1));
  }
  if (keys.micro_batches && *keys.micro_batches != batch / at_once)
    refuse_in(
        file, "method", "micro_batches",
        fmt::format("{}: train.global_batch {} is {} micro-batches of method.micro_batch {} "
                    "samples on {} replicas; leave one of the three out",
                    *keys.micro_batches, batch, batch / at_once, *keys.micro_batch, plan.mesh.dp));
  keys.micro_batches = batch / at_once;
  return keys;
}

/// Batch of a plan with stated shares: global_batch = sum of shares x micro_batches. Whichever of
/// the two is not stated follows from the other.
void fill_shared_batch(const Config& file, const JobKeys& keys, plan::Plan& plan) {
  const std::int64_t at_once =
      std::accumulate(plan.schedule.shares.begin(), plan.schedule.shares.end(), std::int64_t{0});
  const std::int64_t unstated = plan.mesh.pp == 1 ? 1 : 4 * plan.mesh.pp;
  plan.schedule.micro_batches = static_cast<int>(keys.micro_batches.value_or(
      keys.global_batch ? std::max<std::int64_t>(1, *keys.global_batch / at_once) : unstated));
  const std::int64_t batch = keys.global_batch.value_or(at_once * plan.schedule.micro_batches);
  if (batch > std::numeric_limits<int>::max())
    refuse_in(file, "method", keys.micro_batches ? "micro_batches" : "shares",
              fmt::format(
                  "shares of {} samples and {} micro-batches are a global batch of {}; at most {}",
                  at_once, plan.schedule.micro_batches, batch, std::numeric_limits<int>::max()));
  plan.schedule.global_batch = static_cast<int>(batch);
}

/// Batch of a plan whose shares will follow from speeds (planner::with_shares). Until then they are
/// as equal as possible.
void fill_batch_by_speed(const Config& file, const JobKeys& keys, plan::Plan& plan) {
  const int batch = plan.schedule.global_batch, dp = plan.mesh.dp, least = std::max(1, batch / dp);
  if (batch < dp)
    refuse_in(
        file, "train", "global_batch",
        fmt::format("{}: must give each of {} replicas a sample; at least {}", batch, dp, dp));
  plan.schedule.micro_batches = static_cast<int>(keys.micro_batches.value_or(
      default_micro_batches(plan, batch % dp == 0 ? least : batch, least)));
  const int micro_batches = plan.schedule.micro_batches;
  if (micro_batches > least || batch % micro_batches != 0)
    refuse_in(file, "method", "micro_batches",
              fmt::format("{}: must divide train.global_batch {} into micro-batches of at least {} "
                          "samples, one for each replica; nearest: {}",
                          micro_batches, batch, dp,
                          nearest_divisor(batch, std::min(micro_batches, least))));
  const int samples = batch / micro_batches;
  plan.schedule.shares.assign(static_cast<std::size_t>(dp), samples / dp);
  for (int i = 0; i < samples % dp; ++i) ++plan.schedule.shares[static_cast<std::size_t>(i)];
}

void fill_batch(const Config& file, const JobKeys& stated, plan::Plan& plan) {
  if (!plan.schedule.shares.empty() && stated.micro_batch)
    refuse_in(file, "method", "micro_batch",
              fmt::format("{}: method.shares says how many samples each replica takes at once; "
                          "leave it out",
                          *stated.micro_batch));
  if (!plan.schedule.shares.empty()) return fill_shared_batch(file, stated, plan);
  const JobKeys keys = with_micro_batch(file, stated, plan);
  plan.schedule.global_batch = static_cast<int>(
      keys.global_batch.value_or(std::int64_t{16} * plan.mesh.pp * plan.mesh.dp * plan.mesh.tp));
  if (keys.shares == Shares::speed && plan.mesh.dp > 1)
    return fill_batch_by_speed(file, keys, plan);
  if (plan.schedule.global_batch % plan.mesh.dp != 0) {
    const std::int64_t batch = plan.schedule.global_batch, micro = keys.micro_batches.value_or(1),
                       per = plan.mesh.dp * micro;
    refuse_in(file, "train", "global_batch",
              fmt::format("{}: must be a multiple of dp {}{}; nearest: {}", batch, plan.mesh.dp,
                          micro > 1 ? fmt::format(" x micro_batches {} = {}", micro, per) : "",
                          std::max<std::int64_t>(1, (batch + per / 2) / per) * per));
  }
  const int share = plan.schedule.global_batch / plan.mesh.dp;
  plan.schedule.micro_batches =
      static_cast<int>(keys.micro_batches.value_or(default_micro_batches(plan, share, share)));
  if (plan.schedule.micro_batches > share)
    refuse_in(file, "method", "micro_batches",
              fmt::format("{}: each of {} replicas has only {} samples of "
                          "train.global_batch {}; at most {}",
                          plan.schedule.micro_batches, plan.mesh.dp, share,
                          plan.schedule.global_batch, share));
  if (share % plan.schedule.micro_batches != 0 && !keys.global_batch)
    refuse_in(file, "method", "micro_batches",
              fmt::format("{}: must divide the {} samples of each of {} replicas; "
                          "nearest: {}",
                          plan.schedule.micro_batches, share, plan.mesh.dp,
                          nearest_divisor(share, plan.schedule.micro_batches)));
}

/// Advice for a mesh that does not fit: the nearest mesh that this job could run with.
std::string advice(const Config& file, const JobKeys& keys, int ranks,
                   const methods::Strategy& method, const model::ModelSpec& model,
                   const plan::Plan& plan, const plan::Plan& implied) {
  constexpr int most_tries = 32;  // each trial balances the stages of the model
  int tries = 0;
  for (const Sizes& s : meshes_near({plan.mesh.pp, plan.mesh.dp, plan.mesh.tp}, ranks,
                                    method.combines, model, implied.schedule.virtual_stages)) {
    if (!plan.schedule.shares.empty() && s.dp != static_cast<int>(plan.schedule.shares.size()))
      continue;
    if (++tries > most_tries) break;
    const auto found = unless_refused([&] {
      plan::Plan tried = plan;
      tried.mesh.pp = s.pp, tried.mesh.dp = s.dp, tried.mesh.tp = s.tp;
      fill_batch(file, keys, tried);
      methods::prepare(std::move(tried), model);
    });
    if (found)
      return fmt::format("nearest mesh that fits: {}; or set cluster.world_size",
                         whole_text(s, plan.mesh));
  }
  if (!plan.schedule.shares.empty())
    return fmt::format(
        "state a number for each replica of a mesh of {} ranks, or \"speed\", or set "
        "cluster.world_size",
        ranks);
  return fmt::format(
      "no mesh of {} ranks fits this model and batch: set cluster.world_size or "
      "train.global_batch",
      ranks);
}

/// Fills the sizes that are not stated. tp, then pp: the largest size that is at most the method's
/// default, divides the rest of the world and fits the model. dp: what remains.
void fill_sizes(const JobKeys& keys, int ranks, const methods::Strategy& method,
                const model::ModelSpec& model, int chunks_a_stage, plan::Plan& plan) {
  const auto wanted = [](int most, int rest, const auto& fits) {
    int best = 1;
    for (int size = 1; size <= std::min(most, rest); ++size)
      if (rest % size == 0 && fits(size)) best = size;
    return best;
  };
  const int left = std::max(1, ranks / product({keys.pp, keys.dp}));
  plan.mesh.tp = static_cast<int>(
      keys.tp.value_or(wanted(method.tp, left, [&](int tp) { return plan::splits(model, tp); })));
  const int deep = std::max(1, ranks / product({keys.dp, plan.mesh.tp}));
  plan.mesh.pp = static_cast<int>(keys.pp.value_or(
      wanted(method.pp, deep, [&](int pp) { return pp * chunks_a_stage <= model.layers; })));
  plan.mesh.dp = static_cast<int>(keys.dp.value_or(
      std::max<std::int64_t>(1, ranks / (std::int64_t{plan.mesh.pp} * plan.mesh.tp))));
}

/// The stated key to name in the error about a mesh of the wrong size.
const char* key_to_blame(const JobKeys& keys) {
  if (keys.pp) return "pp";
  if (keys.tp) return "tp";
  return keys.dp_of_shares ? "shares" : keys.dp ? "dp" : "pp";
}

void fill_mesh(const Config& file, const JobKeys& keys, int world, const methods::Strategy& method,
               const model::ModelSpec& model, plan::Plan& plan) {
  const Config section = file.section("method");
  plan::Plan implied = plan;
  if (method.defaults != nullptr) method.defaults(implied);
  const int workers = world - plan.mesh.servers;
  if (workers < 1)
    throw section.error(
        "servers", world == 1
                       ? fmt::format("{} of 1 rank leave no worker; method \"{}\" needs at least 2 "
                                     "ranks, a server and a worker",
                                     plan.mesh.servers, plan.method)
                       : fmt::format("{} of {} ranks leave no worker; at most {}",
                                     plan.mesh.servers, world, world - 1));
  plan.mesh.cp = static_cast<int>(keys.cp.value_or(1));
  if (workers % plan.mesh.cp != 0)
    throw section.error("cp",
                        fmt::format("{}: must divide the {} ranks; nearest: {}; or set "
                                    "cluster.world_size",
                                    plan.mesh.cp, workers, nearest_divisor(workers, plan.mesh.cp)));
  const int ranks = workers / plan.mesh.cp;  // of each place along cp
  fill_sizes(keys, ranks, method, model, implied.schedule.virtual_stages, plan);
  const auto near = [&] { return advice(file, keys, ranks, method, model, plan, implied); };
  const auto size = std::int64_t{plan.mesh.pp} * plan.mesh.dp * plan.mesh.tp;
  if (size != ranks)
    throw section.error(
        key_to_blame(keys),
        fmt::format("{}{} = {} ranks, but the world has {}; {}",
                    keys.dp_of_shares ? fmt::format("[{}] is one number for each replica: ",
                                                    fmt::join(plan.schedule.shares, ", "))
                                      : "",
                    whole_text({plan.mesh.pp, plan.mesh.dp, plan.mesh.tp}, plan.mesh),
                    size * plan.mesh.cp + plan.mesh.servers, world, near()));
  if (method.combines.tp && !plan::splits(model, plan.mesh.tp))
    throw section.error("tp", fmt::format("{}: {}; {}", plan.mesh.tp,
                                          plan::split_rule(model, plan.mesh.tp), near()));
}

}  // namespace

int product(const std::vector<std::optional<std::int64_t>>& sizes) {
  std::int64_t out = 1;
  for (const auto& size : sizes)
    out = std::min<std::int64_t>(out * size.value_or(1), std::numeric_limits<int>::max());
  return static_cast<int>(out);
}

void leave_mesh(const Config& file, const JobKeys& keys, int world, const model::ModelSpec& model,
                plan::Plan& plan) {
  if (keys.cp.value_or(1) > 1)
    throw file.section("method").error(
        "cp", fmt::format("{}: the planner divides no sequences; must be 1, or state a method such "
                          "as \"ddp\" or \"megatron\"",
                          *keys.cp));
  if (!plan.schedule.shares.empty())
    throw file.section("method").error(
        "shares",
        "the planner chooses how many samples each replica takes; must be \"speed\" or "
        "\"equal\"");
  plan.mesh.pp = static_cast<int>(keys.pp.value_or(1));
  plan.mesh.tp = static_cast<int>(keys.tp.value_or(1));
  const int stated = product({keys.pp, keys.dp, keys.tp});
  plan.mesh.dp = static_cast<int>(keys.dp.value_or(std::max(1, world / stated)));
  if (world % stated != 0 || (keys.pp && keys.dp && keys.tp && stated != world)) {
    const methods::Combines any{.pp = !keys.pp || *keys.pp > 1, .tp = !keys.tp || *keys.tp > 1};
    const auto near = meshes_near({plan.mesh.pp, plan.mesh.dp, plan.mesh.tp}, world, any, model, 1);
    throw file.section("method").error(
        key_to_blame(keys),
        fmt::format("no mesh of the {} ranks has the sizes that are stated; {}set "
                    "cluster.world_size",
                    world, near.empty() ? "" : fmt::format("nearest: {}; or ", text(near[0]))));
  }
  plan.schedule.global_batch =
      static_cast<int>(keys.global_batch.value_or(std::int64_t{16} * world));
  plan.schedule.micro_batches = static_cast<int>(keys.micro_batches.value_or(1));
}

void fill_mesh_and_batch(const Config& file, const JobKeys& keys, int world,
                         const methods::Strategy& method, const model::ModelSpec& model,
                         plan::Plan& plan) {
  fill_mesh(file, keys, world, method, model, plan);
  fill_batch(file, keys, plan);
}

}  // namespace rehearse::job
