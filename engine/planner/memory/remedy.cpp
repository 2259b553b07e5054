#include "engine/planner/memory/remedy.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "engine/base/numbers/divisors.h"
#include "engine/link/workspace.h"
#include "engine/methods/lowering/roles.h"
#include "engine/methods/strategy.h"
#include "engine/planner/memory/needs.h"
#include "engine/planner/search/bounds.h"

namespace rehearse::planner {
namespace {

Trial with_micro_batches(Trial trial, int micro_batches) {
  trial.plan.schedule.micro_batches = micro_batches;
  trial.changes.push_back(fmt::format("method.micro_batches={}", micro_batches));
  return trial;
}
Trial with_recompute(Trial trial) {
  trial.plan.schedule.recompute = true;
  trial.changes.emplace_back("method.recompute=true");
  return trial;
}

/// The same plan at each higher ZeRO level that the method supports.
std::vector<Trial> with_zero(const Trial& trial) {
  std::vector<Trial> out;
  const methods::Strategy& strategy = methods::strategy_named(trial.plan.method);
  for (int zero = trial.plan.exchange.sharding.zero + 1; zero <= strategy.combines.max_zero;
       ++zero) {
    Trial next = trial;
    next.plan.exchange.sharding.zero = zero;
    if (strategy.at_zero != nullptr) {
      next.plan.method = strategy.at_zero(zero);
      next.changes.push_back("method.name=" + next.plan.method);
    }
    // Beside a name that implies it too: the job may state another level.
    next.changes.push_back(fmt::format("method.zero={}", zero));
    out.push_back(std::move(next));
  }
  return out;
}

/// Whether the plan has few enough passes to be compiled in a search.
bool small_enough(const plan::Plan& plan, const plan::Plan& start, const model::ModelSpec& model) {
  plan::Plan recomputed = start;
  recomputed.schedule.recompute = true;
  return passes_of(plan, model) <= std::max(most_tried_passes, passes_of(recomputed, model));
}

/// The larger numbers of micro-batches that divide a replica's samples. `recompute`: those with
/// which the plan is small enough also with recomputation.
std::vector<int> more_micro_batches(const plan::Plan& plan, const plan::Plan& start,
                                    const model::ModelSpec& model, bool recompute = false) {
  std::vector<int> out;
  for (const int m : divisors(plan.schedule.global_batch / plan.mesh.dp)) {
    plan::Plan next = plan;
    next.schedule.micro_batches = m;
    next.schedule.recompute |= recompute;
    if (m > plan.schedule.micro_batches && small_enough(next, start, model)) out.push_back(m);
  }
  return out;
}

/// More micro-batches, recomputation, higher ZeRO levels, then their combinations.
std::vector<Trial> on_this_mesh(const Trial& start, const model::ModelSpec& model) {
  std::vector<Trial> out;
  const std::vector<int> more = more_micro_batches(start.plan, start.plan, model);
  const std::vector<int> and_recompute = more_micro_batches(start.plan, start.plan, model, true);
  for (int m : more) out.push_back(with_micro_batches(start, m));
  if (!start.plan.schedule.recompute) out.push_back(with_recompute(start));
  const std::vector<Trial> sharded = with_zero(start);
  out.insert(out.end(), sharded.begin(), sharded.end());
  if (!start.plan.schedule.recompute && !and_recompute.empty())
    out.push_back(with_recompute(with_micro_batches(start, and_recompute.back())));
  if (!more.empty())
    for (const Trial& s : sharded) out.push_back(with_micro_batches(s, more.back()));
  for (const Trial& s : sharded) {
    Trial all = and_recompute.empty() ? s : with_micro_batches(s, and_recompute.back());
    out.push_back(all.plan.schedule.recompute ? all : with_recompute(all));
  }
  return out;
}

Trial with_offload(Trial trial) {
  trial.plan.exchange.offload = plan::Offload::optimizer;
  trial.changes.emplace_back("method.offload=optimizer");
  return trial;
}
Trial with_hosted_activations(Trial trial) {
  trial.plan.schedule.hosted.on = true;
  trial.changes.emplace_back("method.offload_activations=true");
  return trial;
}
Trial with_sequence_parallel(Trial trial) {
  trial.plan.mesh.sequence_parallel = true;
  trial.changes.emplace_back("method.sequence_parallel=true");
  return trial;
}

using Change = std::function<Trial(Trial)>;
/// All that saves memory on the mesh of the trial, each as far as it goes; what costs most time
/// comes first.
std::vector<Change> savings(const Trial& on, const plan::Plan& start, const model::ModelSpec& model,
                            const cluster::Cluster& cluster) {
  std::vector<Change> out;
  const methods::Combines& can = methods::strategy_named(on.plan.method).combines;
  if (!on.plan.schedule.hosted.on && reaches_hosts(cluster))
    out.emplace_back(with_hosted_activations);
  if (can.offload && on.plan.exchange.offload == plan::Offload::none && can_offload(cluster))
    out.emplace_back(with_offload);
  if (can.recompute && !on.plan.schedule.recompute) out.emplace_back(with_recompute);
  if (on.plan.mesh.tp > 1 && !on.plan.mesh.sequence_parallel)
    out.emplace_back(with_sequence_parallel);
  if (!with_zero(on).empty())
    out.emplace_back([](const Trial& trial) { return with_zero(trial).back(); });
  if (const auto more = more_micro_batches(on.plan, start, model, can.recompute); !more.empty())
    out.emplace_back(
        [most = more.back()](Trial trial) { return with_micro_batches(std::move(trial), most); });
  return out;
}

/// The trial with groups of ZeRO-3 inside nodes, as methods choose them for its mesh, and with
/// those that it has. Their size is said, because the method would choose the former by itself.
std::vector<Trial> with_shard_groups(const Trial& trial) {
  const int had = trial.plan.exchange.sharding.shard_group;
  if (had == 0) return {trial};
  std::vector<Trial> out;
  for (const int group : {methods::group_in_nodes(trial.plan), had}) {
    if (group == 0 || trial.plan.mesh.dp % group != 0 ||
        (!out.empty() && out.front().plan.exchange.sharding.shard_group == group))
      continue;
    Trial& next = out.emplace_back(trial);
    next.plan.exchange.sharding.shard_group = group;
    next.changes.push_back(fmt::format("method.shard_group={}", group));
  }
  return out;
}

/// Meshes with less data parallelism and more tensor and pipeline parallelism, with as many
/// micro-batches as possible.
std::vector<Trial> on_other_meshes(const Trial& start, const model::ModelSpec& model) {
  std::vector<Trial> out;
  const plan::Plan& plan = start.plan;
  const int world = plan.mesh.pp * plan.mesh.dp * plan.mesh.tp;
  for (int ways = 2; ways <= world / (plan.mesh.pp * plan.mesh.tp); ways *= 2)
    for (int tp = ways; tp >= 1; tp /= 2) {
      Trial next = start;
      next.plan.mesh.tp = plan.mesh.tp * tp;
      next.plan.mesh.pp = plan.mesh.pp * (ways / tp);
      if (world % (next.plan.mesh.tp * next.plan.mesh.pp) != 0) continue;
      next.plan.mesh.dp = world / (next.plan.mesh.tp * next.plan.mesh.pp);
      next.plan.placement.stages.clear();
      const methods::Strategy& strategy = methods::strategy_named(plan.method);
      if ((next.plan.mesh.pp > 1 && !strategy.combines.pp) ||
          (next.plan.mesh.tp > 1 && !strategy.combines.tp)) {
        if (strategy.with_model_parallelism == nullptr) continue;
        next.plan.method = strategy.with_model_parallelism;
        next.plan.exchange.sharding.zero = 0;
        next.changes.push_back("method.name=" + next.plan.method);
        if (plan.exchange.offload != plan::Offload::none)  // as the other name may have implied
          next.changes.emplace_back("method.offload=optimizer");
      }
      next.changes.push_back(fmt::format("method.pp={}", next.plan.mesh.pp));
      next.changes.push_back(fmt::format("method.dp={}", next.plan.mesh.dp));
      next.changes.push_back(fmt::format("method.tp={}", next.plan.mesh.tp));
      if (next.plan.schedule.global_batch % next.plan.mesh.dp != 0) continue;
      next.plan.schedule.micro_batches = 0;  // so that more_micro_batches lists all numbers
      std::vector<int> numbers = more_micro_batches(next.plan, start.plan, model, true);
      if (numbers.empty()) numbers = more_micro_batches(next.plan, start.plan, model);
      if (numbers.empty()) continue;
      next = with_micro_batches(next, numbers.back());
      for (Trial& one : with_shard_groups(next)) out.push_back(std::move(one));
    }
  return out;
}

/// Of changes of one key the last one, which is the one that counts.
std::vector<std::string> last_of_each_key(const std::vector<std::string>& changes) {
  const auto key = [](const std::string& change) { return change.substr(0, change.find('=')); };
  std::vector<std::string> out;
  for (auto change = changes.begin(); change != changes.end(); ++change)
    if (std::ranges::find(change + 1, changes.end(), key(*change), key) == changes.end())
      out.push_back(*change);
  return out;
}

class RemedySearch {
 public:
  RemedySearch(const Trial& start, const model::ModelSpec& model, const cluster::Cluster& cluster,
               bool keep_method)
      : start_(start),
        plan_(start.plan),
        model_(model),
        cluster_(cluster),
        keep_method_(keep_method),
        bounds_(model, cluster, nullptr) {}

  std::optional<Remedy> run() {
    std::optional<Remedy> remedy = search();
    if (remedy) take_fewest_micro_batches(*remedy);
    return remedy;
  }

 private:
  std::optional<Remedy> search() {
    left_ = most_remedies - 2 * (for_smaller_batches + for_all_together) - for_other_meshes -
            for_fewest_micro_batches;
    if (!start_.changes.empty())
      if (auto remedy = try_out(start_)) return remedy;
    for (const Trial& trial : on_this_mesh(start_, model_))
      if (auto remedy = try_out(trial)) return remedy;
    left_ += for_all_together;
    if (auto remedy = together(start_)) return remedy;
    left_ += for_other_meshes;
    const std::vector<Trial> meshes = on_other_meshes(start_, model_);
    for (const Trial& mesh : meshes) {
      if (auto remedy = try_out(mesh)) return remedy;
      if (mesh.plan.schedule.recompute) continue;
      if (auto remedy = try_out(with_recompute(mesh))) return remedy;
    }
    left_ += for_all_together;
    for (const Trial& mesh : meshes)
      if (auto remedy = together(mesh)) return remedy;
    return smaller_batch();
  }

  /// Where the search has taken as many micro-batches as it could, and no pipeline gains by them:
  /// the fewest that fit too.
  void take_fewest_micro_batches(Remedy& remedy) {
    const auto change = std::ranges::find_if(remedy.changes, [](const std::string& text) {
      return text.starts_with("method.micro_batches=");
    });
    const auto at = static_cast<std::size_t>(change - remedy.changes.begin());
    const Trial most = fitting_;
    const plan::Schedule& schedule = most.plan.schedule;
    if (change == remedy.changes.end() || remedy.changes.size() == 1 || most.plan.mesh.pp > 1 ||
        schedule.global_batch != plan_.schedule.global_batch)
      return;
    std::vector<int> numbers = divisors(schedule.global_batch / most.plan.mesh.dp);
    std::erase_if(numbers, [&](int m) { return m >= schedule.micro_batches; });
    if (most.plan.mesh == plan_.mesh)
      std::erase_if(numbers, [&](int m) { return m < plan_.schedule.micro_batches; });
    left_ = for_fewest_micro_batches;
    for (auto begin = numbers.begin(), end = numbers.end(); begin != end;) {
      const auto middle = begin + (end - begin) / 2;
      Trial fewer = most;
      fewer.plan.schedule.micro_batches = *middle;
      fewer.changes = remedy.changes;
      fewer.changes[at] = fmt::format("method.micro_batches={}", *middle);
      if (auto better = try_out(fewer))
        remedy = *std::move(better), end = middle;
      else
        begin = middle + 1;
    }
  }

  static constexpr int for_smaller_batches = 2, for_fewest_micro_batches = 5, for_other_meshes = 2,
                       for_all_together = 7;

  /// Whether the plan is valid and its lower bound of memory fits.
  bool open(const plan::Plan& plan) {
    const auto ready = unless_refused([&] { return methods::prepare(plan, model_); });
    // The bound does not include the memory of parameter servers.
    return ready && small_enough(*ready, plan_, model_) &&
           (ready->mesh.servers > 0 || bounds_.memory(*ready).share <= 1);
  }

  /// Compiles and links the trial; none: it does not fit.
  std::optional<Remedy> try_out(const Trial& trial) {
    if (keep_method_ && trial.plan.method != plan_.method) return std::nullopt;
    if (left_ == 0 || !open(trial.plan)) return std::nullopt;
    --left_;
    const auto program = unless_refused([&] { return methods::compile(trial.plan, model_); });
    if (!program) return std::nullopt;
    Remedy remedy{last_of_each_key(trial.changes), 0};
    const link::LinkedProgram linked = link::link(*program, model_);
    if (short_host(linked, cluster_, trial.plan)) return std::nullopt;
    for (const DeviceNeed& n :
         device_needs(linked, cluster_, trial.plan.placement.rank_to_device)) {
      if (!n.fits()) return std::nullopt;
      remedy.need = std::max(remedy.need, n.need);
    }
    fitting_ = trial;
    return remedy;
  }

  /// All savings of a mesh at once, then without those that are not needed.
  std::optional<Remedy> together(const Trial& on) {
    std::vector<Change> changes;
    for (Change& change : savings(on, plan_, model_, cluster_)) {
      const Trial tried = change(on);
      if (keep_method_ && tried.plan.method != plan_.method) continue;
      if (unless_refused([&] { methods::prepare(tried.plan, model_); }))
        changes.push_back(std::move(change));
    }
    const auto with = [&](const std::vector<Change>& chosen) {
      Trial trial = on;
      for (const Change& change : chosen) trial = change(std::move(trial));
      return trial;
    };
    std::optional<Remedy> best = try_out(with(changes));
    for (std::size_t i = 0; best && i < changes.size();) {
      std::vector<Change> fewer = changes;
      fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(i));
      if (auto remedy = try_out(with(fewer))) {
        best = std::move(remedy);
        changes = std::move(fewer);
      } else {
        ++i;
      }
    }
    return best;
  }

  /// A smaller batch, first with as many micro-batches as a search can compile, then with the
  /// plan's number.
  std::optional<Remedy> smaller_batch() {
    if (!plan_.schedule.shares.empty()) return std::nullopt;
    plan::Plan one = plan_;
    one.schedule.micro_batches = 1;
    const auto most = std::min<std::int64_t>(plan_.schedule.global_batch / plan_.mesh.dp,
                                             most_tried_passes / passes_of(one, model_));
    if (most > plan_.schedule.micro_batches)
      if (auto remedy = smaller_batch(static_cast<int>(most))) return remedy;
    if (auto remedy = smaller_batch(plan_.schedule.micro_batches)) return remedy;
    // A pipeline that has all micro-batches in flight: fewer of one sample.
    left_ = for_smaller_batches;
    for (int fewer = plan_.schedule.micro_batches / 2; plan_.mesh.pp > 1 && fewer > 0; fewer /= 2)
      if (auto remedy = try_out(with_batch(fewer, 1))) return remedy;
    return std::nullopt;
  }

  /// So many micro-batches of so many samples on each replica.
  Trial with_batch(int micro_batches, int samples) const {
    Trial trial = with_micro_batches(start_, micro_batches);
    trial.plan.schedule.global_batch = plan_.mesh.dp * micro_batches * samples;
    trial.changes.push_back(fmt::format("train.global_batch={}", trial.plan.schedule.global_batch));
    return trial;
  }

  /// Fewer samples per micro-batch. Starts with the most samples that the memory bound allows,
  /// found by bisection; each further trial has a quarter fewer.
  std::optional<Remedy> smaller_batch(int micro_batches) {
    left_ = for_smaller_batches;
    const int at_once = plan_.mesh.dp * micro_batches;
    const auto with = [&](int samples) { return with_batch(micro_batches, samples); };
    int fits = 0,
        beyond = plan_.schedule.global_batch / at_once + 1;  // memory grows with the samples
    while (beyond - fits > 1) {
      const int middle = fits + (beyond - fits) / 2;
      (open(with(middle).plan) ? fits : beyond) = middle;
    }
    if (at_once * fits == plan_.schedule.global_batch) --fits;
    for (; fits > 0; fits -= (fits + 3) / 4)
      if (auto remedy = try_out(with(fits))) return remedy;
    return std::nullopt;
  }

  const Trial& start_;
  const plan::Plan& plan_;
  const model::ModelSpec& model_;
  const cluster::Cluster& cluster_;
  bool keep_method_;
  Bounds bounds_;
  Trial fitting_ = {};  // the last one that fits
  int left_ = 0;        // number of programs that may still be compiled
};

}  // namespace

std::optional<Remedy> find_remedy(const Trial& start, const model::ModelSpec& model,
                                  const cluster::Cluster& cluster, bool keep_method) {
  return RemedySearch(start, model, cluster, keep_method).run();
}

}  // namespace rehearse::planner
