#include "engine/planner/search/candidates.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "engine/base/errors.h"
#include "engine/base/names.h"
#include "engine/base/numbers/divisors.h"
#include "engine/costs/device/local_prices.h"
#include "engine/methods/lowering/roles.h"
#include "engine/methods/strategy.h"
#include "engine/planner/memory/needs.h"
#include "engine/planner/placement/shares.h"

namespace rehearse::planner {
namespace {

/// Keys of [method] that the search varies unless the job states them.
constexpr std::array shape_keys{"pp",
                                "dp",
                                "tp",
                                "order",
                                "micro_batches",
                                "virtual_stages",
                                "zero",
                                "recompute",
                                "sequence_parallel",
                                "keep_gathered",
                                "shard_group",
                                "reshard_group",
                                "offload",
                                "offload_activations",
                                "bucket"};

class Enumeration {
 public:
  Enumeration(const job::Job& job, const costs::Profile* profile, bool wide)
      : job_(job),
        profile_(profile),
        wide_(wide),
        model_(job.model),
        prices_(job.model, profile),
        pace_(rank_slowdowns(job.disturb, job.plan.placement.rank_to_device.size())) {}

  Candidates run() {
    const auto world = static_cast<int>(job_.plan.placement.rank_to_device.size());
    for (const int pp : choices("pp", job_.plan.mesh.pp, divisors(world)))
      for (const int tp : choices("tp", job_.plan.mesh.tp, divisors(std::max(1, world / pp)))) {
        if (pp * tp > world || world % (pp * tp) != 0) continue;
        const int dp = world / (pp * tp);
        if (states("dp") && dp != job_.plan.mesh.dp) continue;
        mesh(pp, dp, tp);
      }
    for (auto& [reason, count] : refused_)
      out_.refused.push_back({reason, count.first, count.second});
    return std::move(out_);
  }

 private:
  /// Whether the job's file states this key of [method].
  bool states(const std::string& key) const { return job_.where.contains("method." + key); }
  /// The stated value alone, or all free values.
  template <class T>
  std::vector<T> choices(const char* key, T stated, std::vector<T> free) const {
    return states(key) ? std::vector<T>{stated} : std::move(free);
  }
  /// Counts a combination that is no candidate.
  void count(const std::string& reason, const std::string& nearest) {
    auto& entry = refused_[reason];
    ++entry.first;
    if (entry.second.empty()) entry.second = nearest;
  }

  void mesh(int pp, int dp, int tp) {
    plan::Plan plan = job_.plan;
    plan.mesh.pp = pp, plan.mesh.dp = dp, plan.mesh.tp = tp;
    plan.placement.stages.clear(), plan.schedule.shares.clear(),
        plan.exchange.sparse.layers.clear();
    plan.schedule.virtual_stages = 1;
    if (pp > 1 && pp > model_.layers)
      return count(fmt::format("pp at most {}, the layers of {}", model_.layers, model_.name),
                   fmt::format("pp {}", model_.layers));
    if (model_.output_norm && tp > 1) return count("tp " + plan::split_rule(model_, tp), "tp 1");
    if (const int most = tensor_divisor(model_); most % tp != 0)
      return count(fmt::format("tp must divide {}, which heads, key-value heads, feed-forward "
                               "width and padded vocabulary of {} have in common",
                               most, model_.name),
                   fmt::format("tp {}", nearest_divisor(most, tp)));
    if (!states("tp") && only_assumed(tp))
      return count(
          fmt::format("cluster.profile has times of {}, but none with tp {}", model_.name, tp),
          fmt::format("rehearse profile --tp 1,{} measures them", tp));
    if (plan.schedule.global_batch < dp)
      return count("train.global_batch must give each replica a sample",
                   fmt::format("train.global_batch={}", dp));
    for (const std::string& order : orders(plan)) {
      plan.mesh.order = order;
      for (const int m : numbers_of_micro_batches(plan)) {
        plan.schedule.micro_batches = m;
        if (m * dp > plan.schedule.global_batch) continue;
        for (const std::vector<int>& shares : share_choices(plan)) {
          plan.schedule.shares = shares;
          schedules(plan);
        }
      }
    }
  }

  /// Those that fit what the job states of micro_batches and micro_batch.
  std::vector<int> numbers_of_micro_batches(const plan::Plan& plan) const {
    std::vector<int> numbers = choices("micro_batches", job_.plan.schedule.micro_batches,
                                       divisors(plan.schedule.global_batch));
    if (job_.micro_batch > 0)
      std::erase_if(numbers, [&](int m) {
        return std::int64_t{m} * job_.micro_batch * plan.mesh.dp != plan.schedule.global_batch;
      });
    return numbers;
  }

  /// Whether the profile has times of this model on a kind of device in use, but none with this tp.
  /// Such a plan is no candidate, because assumed times cannot be compared with measured ones.
  bool only_assumed(int tp) const {
    if (profile_ == nullptr) return false;
    std::set<Id> kinds;
    for (const Id device : job_.plan.placement.rank_to_device)
      kinds.insert(job_.cluster.devices()[device].kind);
    const model::Segment& first = model_.segments.front();
    return std::any_of(kinds.begin(), kinds.end(), [&](Id kind) {
      const std::string& name = job_.cluster.kinds()[kind].name;
      const auto timed = [&](int t) {
        return profile_->segment_seconds(model_.name, first.kind, program::Pass::forward, 1,
                                         model_.seq_len, t, job_.plan.precision, name);
      };
      return !timed(tp) && std::any_of(profile_->segments.begin(), profile_->segments.end(),
                                       [&](const costs::SegmentTime& s) { return timed(s.tp); });
    });
  }

  /// Orders of the axes. The place of an axis of size 1 does not matter, so such orders count once.
  std::vector<std::string> orders(const plan::Plan& plan) const {
    if (states("order")) return {job_.plan.mesh.order};
    std::vector<std::string> out;
    std::set<std::string> seen;
    for (const char* order :
         {"pp,dp,tp", "dp,pp,tp", "pp,tp,dp", "dp,tp,pp", "tp,pp,dp", "tp,dp,pp"}) {
      std::string real;
      for (const std::string_view axis :
           {std::string_view(order, 2), std::string_view(order + 3, 2),
            std::string_view(order + 6, 2)})
        if ((axis == "pp" ? plan.mesh.pp : axis == "dp" ? plan.mesh.dp : plan.mesh.tp) > 1)
          real += axis;
      if (seen.insert(real).second) out.emplace_back(order);
    }
    return out;
  }

  /// Equal shares (an empty list) if they divide the batch, and shares by speed if replicas differ
  /// in speed: in proportion to it, and refined by the times of so many samples.
  std::vector<std::vector<int>> share_choices(const plan::Plan& plan) {
    std::vector<std::vector<int>> out;
    const int total = plan.schedule.global_batch / plan.schedule.micro_batches;
    if (total % plan.mesh.dp == 0) out.emplace_back();
    if (plan.mesh.dp == 1 || (!job_.adaptive.placement && !out.empty())) return out;
    if (states("shares") && job_.shares == job::Shares::equal) {
      if (out.empty())
        count("method.shares = \"equal\" needs a micro-batch that divides among the replicas",
              "method.shares=speed");
      return out;
    }
    const int equal = std::max(1, total / plan.mesh.dp);
    std::vector<double> per_sample = by_replica(plan, rank_seconds(plan, equal));
    for (double& seconds : per_sample) seconds /= equal;
    const std::vector<int> in_proportion = shares_of(per_sample, total);
    std::map<int, std::vector<double>> by_samples;
    const auto seconds = [&](std::size_t replica, int samples) {
      const auto [at, fresh] = by_samples.try_emplace(samples);
      if (fresh) at->second = by_replica(plan, rank_seconds(plan, samples));
      return at->second[replica];
    };
    // In proportion too: communication may hide what the others save.
    for (std::vector<int> shares : {in_proportion, refined(in_proportion, seconds)}) {
      shares = unless_equal(std::move(shares));
      if (!shares.empty() && (out.empty() || out.back() != shares))
        out.push_back(std::move(shares));
    }
    return out;
  }

  /// By rank: seconds of so many samples. The stages of a pipeline are not known yet, so each rank
  /// is taken to compute the whole model.
  std::vector<double> rank_seconds(const plan::Plan& plan, int samples) {
    std::vector<double> out;
    for (Id rank = 0; rank < plan.placement.rank_to_device.size(); ++rank) {
      const Id kind = job_.cluster.devices()[plan.placement.rank_to_device[rank]].kind;
      out.push_back(model_seconds(kind, plan, samples) * (pace_.empty() ? 1 : pace_[rank]));
    }
    return out;
  }

  /// Seconds of forward and backward of the whole model.
  double model_seconds(Id kind, const plan::Plan& plan, int samples) {
    auto [it, fresh] = model_seconds_.try_emplace({kind, samples, plan.mesh.tp}, 0.0);
    if (!fresh) return it->second;
    const cluster::DeviceKind& device = job_.cluster.kinds()[kind];
    for (Id s = 0; s < model_.segments.size(); ++s)
      for (const program::Pass pass : {program::Pass::forward, program::Pass::backward})
        it->second += prices_
                          .pass(device, s, pass, samples,
                                model::TensorSplit(plan.mesh.tp).in_fp8(plan.fp8), plan.precision)
                          .seconds;
    return it->second;
  }

  /// All methods that the planner proposes for this mesh, with their virtual stages.
  void schedules(plan::Plan plan) {
    for (const auto& [name, strategy] : methods::strategies()) {
      const bool itself = strategy.proposed_to_itself && name == job_.plan.method;
      if (!strategy.proposed && !itself) continue;
      if (strategy.combines.pp != (plan.mesh.pp > 1)) continue;
      if (!plan.schedule.shares.empty() && !strategy.combines.shares) continue;
      plan.method = name;
      plan.schedule.pipeline = strategy.proposed.value_or(plan::Pipeline::one_f_one_b);
      plan.schedule.virtual_stages = 1;
      if (plan.mesh.pp == 1 || !strategy.combines.interleave) {
        if (!states("virtual_stages") || job_.plan.schedule.virtual_stages == 1) sharding(plan);
        continue;
      }
      if (plan.schedule.micro_batches % plan.mesh.pp != 0) continue;
      for (const int v :
           choices("virtual_stages", job_.plan.schedule.virtual_stages, {2, 3, 4, 6, 8})) {
        if (v < 2) continue;
        if (plan.placement.stage_layers.empty() && plan.mesh.pp * v > model_.layers) continue;
        plan.schedule.virtual_stages = v;
        sharding(plan);
      }
    }
  }

  /// All ZeRO levels, recomputation, sequence parallelism and buckets.
  void sharding(plan::Plan plan) {
    const std::string method = plan.method;
    const int able = methods::strategy_named(method).combines.max_zero;
    const int plain = plan.mesh.pp > 1 && !wide_ ? std::min(able, 1) : able;
    const methods::Strategy& stated = methods::strategy_named(job_.plan.method);
    const int planned = stated.planned ? stated.combines.max_zero : 0;
    const int most = std::max(planned, states("zero") ? able : plain);
    for (const int zero : choices("zero", job_.plan.exchange.sharding.zero, {0, 1, 2, 3})) {
      if (zero > most || (zero > 0 && plan.mesh.dp == 1)) continue;
      plan.exchange.sharding.zero = zero;
      plan.method = zero > plain && zero <= planned ? job_.plan.method : method;
      for (const bool recompute : flags("recompute", job_.plan.schedule.recompute, true))
        for (const bool sequence : flags("sequence_parallel", job_.plan.mesh.sequence_parallel,
                                         plan.mesh.tp > 1 && model_.seq_len % plan.mesh.tp == 0))
          for (const bool keep :
               flags("keep_gathered", job_.plan.exchange.sharding.keep_gathered, zero == 3))
            for (const Bytes bucket : buckets(plan)) {
              plan.schedule.recompute = recompute, plan.mesh.sequence_parallel = sequence;
              plan.exchange.sharding.keep_gathered = keep, plan.exchange.bucket = bucket;
              groups(plan);
            }
    }
  }

  /// One group of all ranks; of ZeRO-3 also hybrid sharding inside nodes, and weights that stay in
  /// nodes after forward.
  void groups(plan::Plan plan) {
    plan.exchange.sharding.shard_group = job_.plan.exchange.sharding.shard_group;
    plan.exchange.sharding.reshard_group = job_.plan.exchange.sharding.reshard_group;
    add(plan);
    if (plan.exchange.sharding.zero < 3 || states("shard_group") || states("reshard_group")) return;
    const int inside = methods::group_in_nodes(plan);
    if (inside == 0 || inside == plan.mesh.dp) return;
    plan.exchange.sharding.shard_group = inside;
    add(plan);
    plan.exchange.sharding.shard_group = 0, plan.exchange.sharding.reshard_group = inside;
    if (!plan.exchange.sharding.keep_gathered) add(plan);
  }

  std::vector<bool> flags(const char* key, bool stated, bool both) const {
    if (states(key)) return {stated};
    return both ? std::vector<bool>{false, true} : std::vector<bool>{false};
  }
  std::vector<Bytes> buckets(const plan::Plan& plan) {
    if (states("bucket") || plan.mesh.dp == 1 || plan.exchange.sharding.zero == 3)
      return {Bytes(job_.plan.exchange.bucket_bytes())};
    out_.bucket_sizes = 3;
    return {plan::default_bucket, Bytes(5e6), Bytes(100e6)};
  }

  /// Prepares the plan and adds it. Takes its stages from an earlier plan of the same shape.
  void add(const plan::Plan& plan) {
    plan::Plan with_stages = plan;
    const std::tuple key{plan.mesh.pp, plan.schedule.virtual_stages, plan.mesh.tp};
    if (const auto it = stages_.find(key); it != stages_.end())
      with_stages.placement.stages = it->second;
    auto ready = unless_refused([&] { return methods::prepare(std::move(with_stages), model_); });
    if (!ready) return count(ready.error().key, ready.error().text);
    stages_.try_emplace(key, ready->placement.stages);
    out_.plans.push_back(*std::move(ready));
  }

  const job::Job& job_;
  const costs::Profile* profile_;
  const bool wide_;
  const model::ModelSpec& model_;
  costs::LocalPrices prices_;
  std::vector<double> pace_;  // by rank, as in costs::Costs; empty: 1
  std::map<std::tuple<int, int, int>, std::vector<std::vector<Id>>> stages_ = {};
  std::map<std::tuple<Id, int, int>, double> model_seconds_ = {};
  std::map<std::string, std::pair<int, std::string>> refused_ = {};
  Candidates out_ = {};
};

}  // namespace

Candidates candidates(const job::Job& job, const costs::Profile* profile, bool wide) {
  return Enumeration(job, profile, wide).run();
}

std::vector<plan::Plan> on_host(const job::Job& job, const plan::Plan& candidate) {
  std::vector<plan::Plan> out;
  const methods::Combines& can = methods::strategy_named(candidate.method).combines;
  const auto add = [&](const plan::Plan& plan) {
    if (auto ready = unless_refused([&] { return methods::prepare(plan, job.model); }))
      out.push_back(*std::move(ready));
  };
  if (!job.where.contains("method.offload") && candidate.exchange.offload == plan::Offload::none &&
      can.offload && can_offload(job.cluster)) {
    plan::Plan plan = candidate;
    plan.exchange.offload = plan::Offload::optimizer;
    add(plan);
  }
  if (!job.where.contains("method.offload_activations") && !candidate.schedule.hosted.on &&
      candidate.exchange.offload == plan::Offload::none && reaches_hosts(job.cluster) &&
      (candidate.schedule.recompute || !can.recompute)) {
    plan::Plan plan = candidate;
    plan.schedule.hosted.on = true;
    add(plan);
  }
  return out;
}

std::vector<std::string> stated_choices(const job::Job& job) {
  std::vector<std::string> out;
  for (const char* key : shape_keys)
    if (job.where.contains(fmt::format("method.{}", key))) out.emplace_back(key);
  return out;
}

bool must_be_sparse(const job::Job& job) {
  return methods::planned(job.plan.method) && job.plan.exchange.sparse.reduction.value_or(
                                                  plan::Reduction::dense) != plan::Reduction::dense;
}

bool allows_sums(const job::Job& job, const plan::Plan& candidate) {
  return !must_be_sparse(job) || candidate.mesh.dp == 1 ||
         !candidate.exchange.sparse.layers.empty();
}

}  // namespace rehearse::planner
