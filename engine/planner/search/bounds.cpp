#include "engine/planner/search/bounds.h"

#include <algorithm>
#include <limits>
#include <set>

#include "engine/costs/device/storage_prices.h"
#include "engine/costs/network/contention.h"
#include "engine/methods/strategy.h"
#include "engine/planner/memory/needs.h"
#include "engine/planner/placement/rank_grid.h"

namespace rehearse::planner {
namespace {

model::TensorSplit split_of(const plan::Plan& plan) {
  return model::TensorSplit(plan.mesh.tp, plan.mesh.sequence_parallel).in_fp8(plan.fp8);
}

}  // namespace

Bounds::Bounds(const model::ModelSpec& model, const cluster::Cluster& cluster,
               const costs::Profile* profile, std::span<const double> slow,
               std::span<const double> pace)
    : model_(model),
      cluster_(cluster),
      local_(model, profile),
      pace_(pace.begin(), pace.end()),
      network_known_(profile == nullptr || profile->collectives.empty()),
      transfers_known_(profile == nullptr || profile->transfers.empty()),
      slow_(slow.begin(), slow.end()),
      prices_(cluster, slow) {}

namespace {

/// Whether data-parallel ranks exchange gradients (ZeRO-3: weights) with all their entries.
bool sums_whole_gradients(const plan::Plan& plan) {
  return plan.mesh.dp > 1 && plan.exchange.sparse.layers.empty();
}

}  // namespace

double Bounds::seconds(const plan::Plan& plan) {
  // With shared cores there is no bound: ranks slow each other down, or run faster than measured.
  if (cluster_.shared_cores() > 0) return 0;
  double most = 0;
  for (const Replica& replica : mesh_of(plan).replicas)
    most = std::max(most, compute_seconds(plan, replica, network_known_));
  if (sums_whole_gradients(plan) && network_known_)
    for (int s = 0; s < plan.mesh.pp; ++s)
      most =
          std::max(most, network_seconds(plan, s, elements(plan)[static_cast<std::size_t>(s)].all));
  return most * (1 - 1e-6);  // tolerance for rounding
}

double Bounds::host_seconds(const plan::Plan& plan, std::int64_t elements) {
  // An update reads and writes at least the optimizer's state.
  const double bytes = 2 * optimizer_bytes(plan) * static_cast<double>(elements) /
                       (plan.exchange.sharding.zero >= 1 ? plan.shards() : 1);
  return bytes * mesh_of(plan).host_rate;
}

double Bounds::copy_seconds(const plan::Plan& plan, const Replica& replica, int stage) {
  if (!plan.schedule.hosted.on || plan.schedule.hosted.layers > 0) return 0;
  // The last segments of a chunk may stay; of two segments that are recomputed together, one is
  // copied.
  const std::size_t stay = 2 * static_cast<std::size_t>(plan.schedule.hosted.ahead);
  const auto& sums = saved(replica.samples, plan);
  double bytes = 0;
  for (auto c = static_cast<std::size_t>(stage); c < plan.placement.stages.size();
       c += static_cast<std::size_t>(plan.mesh.pp))
    if (const std::vector<Id>& chunk = plan.placement.stages[c]; chunk.size() > stay)
      bytes += sums[chunk.back() + 1 - stay] - sums[chunk.front()];
  return plan.schedule.micro_batches * bytes * mesh_of(plan).copy_rate;
}

double Bounds::local_seconds(const plan::Plan& plan) {
  if (cluster_.shared_cores() > 0) return 0;
  double most = 0;
  for (const Replica& replica : mesh_of(plan).replicas)
    most = std::max(most, compute_seconds(plan, replica, false));
  return most * (1 - 1e-6);
}

Bounds::MeshGroups& Bounds::mesh_of(const plan::Plan& plan) {
  const int divided = plan.exchange.group();
  std::vector<int> shape{plan.mesh.pp, plan.mesh.tp, plan.samples(), divided};
  shape.insert(shape.end(), plan.schedule.shares.begin(), plan.schedule.shares.end());
  std::list<MeshGroups>& meshes = meshes_[std::move(shape)];
  for (MeshGroups& mesh : meshes)
    if (mesh.order == plan.mesh.order && mesh.devices == plan.placement.rank_to_device) return mesh;
  MeshGroups& mesh = meshes.emplace_back(
      MeshGroups{.order = plan.mesh.order, .devices = plan.placement.rank_to_device});
  const costs::StoragePrices host(cluster_, mesh.devices);
  const auto fastest = [&](auto seconds) {
    double least = std::numeric_limits<double>::infinity();
    for (const Id d : mesh.devices) least = std::min(least, seconds(cluster_.devices()[d].node));
    return least;
  };
  if (cluster_.shared_cores() == 0 && can_offload(cluster_))
    mesh.host_rate = fastest([&](Id node) { return host.update(node, 1); });
  if (reaches_hosts(cluster_))
    mesh.copy_rate = fastest([&](Id node) { return host.copy(node, 1); });
  const RankGrid at(plan);
  using Key = std::pair<int, std::vector<std::vector<PacedKind>>>;
  std::map<Key, std::size_t> seen;  // the index of the replica
  for (int d = 0; d < plan.mesh.dp; ++d) {
    Replica replica{.samples = plan.samples(d), .members = {d}};
    std::vector<std::vector<Id>> groups;
    for (int s = 0; s < plan.mesh.pp; ++s) {
      std::set<PacedKind> kinds;
      auto& group = groups.emplace_back();
      for (int t = 0; t < plan.mesh.tp; ++t) {
        const Id rank = at.rank(s, d, t);
        group.push_back(plan.placement.rank_to_device[rank]);
        kinds.emplace(cluster_.devices()[group.back()].kind, pace_.empty() ? 1 : pace_[rank]);
      }
      replica.kinds.emplace_back(kinds.begin(), kinds.end());
    }
    const auto [same, fresh] =
        seen.try_emplace({replica.samples, replica.kinds}, mesh.replicas.size());
    if (!fresh) {
      mesh.replicas[same->second].members.push_back(d);
      continue;
    }
    for (const auto& group : groups) replica.tensor_groups.push_back(prices_.groups({group}, {0}));
    mesh.replicas.push_back(std::move(replica));
  }
  for (int s = 0; s < plan.mesh.pp; ++s) {
    std::vector<std::vector<Id>> groups;
    for (int t = 0; t < plan.mesh.tp; ++t) {
      auto& group = groups.emplace_back();
      for (int d = 0; d < plan.mesh.dp; ++d)
        group.push_back(plan.placement.rank_to_device[at.rank(s, d, t)]);
    }
    const auto priced = [&](const std::vector<std::vector<Id>>& of) {
      return prices_.groups(of, std::vector<int>(of.size(), 0));
    };
    mesh.data_groups.push_back(priced(groups));
    if (divided == 0) continue;
    std::vector<std::vector<Id>> parts;
    for (const auto& group : groups)
      for (auto from = group.begin(); from < group.end(); from += divided)
        parts.emplace_back(from, from + divided);
    mesh.shard_groups.push_back(priced(parts));
  }
  return mesh;
}

const std::vector<double>& Bounds::passes(Id kind, int samples, const plan::Plan& plan,
                                          bool recompute) {
  auto [it, fresh] =
      passes_.try_emplace({kind, samples, plan.mesh.tp, plan.mesh.sequence_parallel, recompute});
  if (!fresh) return it->second;
  const cluster::DeviceKind& device = cluster_.kinds()[kind];
  it->second = {0};
  for (Id s = 0; s < model_.segments.size(); ++s) {
    double seconds = 0;
    for (const program::Pass pass :
         {program::Pass::forward, program::Pass::backward, program::Pass::recompute})
      if (pass != program::Pass::recompute || recompute)
        seconds += local_.pass(device, s, pass, samples, split_of(plan), plan.precision).seconds;
    it->second.push_back(it->second.back() + seconds);
  }
  return it->second;
}

double Bounds::fastest(Id group, program::Move move, std::int64_t elements, program::DType wire) {
  const program::Algorithm algorithm = prices_.fastest(group, move, elements, wire);
  const auto seconds = prices_.seconds(group, move, algorithm, elements, wire);
  return *std::min_element(seconds.begin(), seconds.end());
}

Bounds::Work Bounds::chunk_work(const plan::Plan& plan, const Replica& replica, int stage,
                                std::size_t chunk, bool recompute, bool network) {
  const auto& segments = plan.placement.stages[chunk];
  Work work{.segments = static_cast<int>(segments.size())};
  double without = 0;  // seconds without recomputation
  for (const auto& [kind, pace] : replica.kinds[static_cast<std::size_t>(stage)]) {
    const auto longest = [&, kind = kind, pace = pace](double& most, bool again) {
      const auto& sums = passes(kind, replica.samples, plan, again);
      most = std::max(most, pace * (sums[segments.back() + 1] - sums[segments.front()]));
    };
    longest(work.seconds, recompute);
    longest(without, false);
  }
  if (plan.mesh.tp == 1 || segments.size() < 2 || !network) return work;
  const Id group = replica.tensor_groups[static_cast<std::size_t>(stage)];
  const std::int64_t elements = std::int64_t{replica.samples} * model_.seq_len * model_.hidden;
  const double one = plan.mesh.sequence_parallel
                         ? fastest(group, program::Move::reduce_scatter, elements, plan.precision) +
                               fastest(group, program::Move::all_gather, elements, plan.precision)
                         : fastest(group, program::Move::all_reduce, elements, plan.precision);
  const double sums = (work.segments - 1) * one;
  // Collectives of backward overlap with recomputation, which waits for none of them.
  work.seconds += sums + std::max(0.0, sums - (work.seconds - without));
  return work;
}

double Bounds::compute_seconds(const plan::Plan& plan, const Replica& replica, bool network) {
  const bool overlaps = methods::strategy_named(plan.method).order(plan, model_).halved != nullptr;
  const bool once_a_step = network && sums_whole_gradients(plan) && !plan.shards_gradients() &&
                           plan.exchange.sharding.zero < 3;
  const bool hosted = plan.exchange.offload != plan::Offload::none;
  const int micro_batches = plan.schedule.micro_batches;
  const auto pp = static_cast<std::size_t>(plan.mesh.pp);
  const std::size_t chunks = plan.placement.stages.size();
  std::vector<double> all(chunks), rest(pp, 0.0);  // seconds of one micro-batch
  for (std::size_t c = 0; c < chunks; ++c) {
    all[c] = chunk_work(plan, replica, static_cast<int>(c % pp), c, recomputes_all(plan), network)
                 .seconds;
    rest[c % pp] += all[c];
  }
  const std::vector<Hop> no_hops(pp);
  const bool hops_known = network && !overlaps && transfers_known_ &&
                          plan.exchange.sparse.layers.empty();  // these may divide roles
  const std::vector<Hop>& hops = hops_known && pp > 1 ? this->hops(plan, replica) : no_hops;
  double most = 0, down = 0;
  for (std::size_t c = 0; c < chunks; ++c) {
    const std::size_t s = c % pp;
    most = std::max(most, down + micro_batches * rest[s]);
    if (c < pp) most = std::max(most, copy_seconds(plan, replica, static_cast<int>(s)));
    if ((once_a_step || hosted) && c < pp) {
      const std::int64_t first = elements(plan)[s].first;
      const double sums = once_a_step ? network_seconds(plan, static_cast<int>(s), first) : 0;
      const double updates = hosted ? host_seconds(plan, first) : 0;
      most = std::max(most, micro_batches * rest[s] - all[c] + std::max({all[c], sums, updates}));
    }
    if (overlaps) continue;
    rest[s] -= all[c];
    // Without recomputation: it may run before the gradient arrives.
    down += chunk_work(plan, replica, static_cast<int>(s), c, false, network).seconds;
    if (c + 1 == chunks) break;
    const std::size_t sends = (chunks - 2 - c) / pp + 1;  // chunks of the stage that send on
    const double transfers = micro_batches * static_cast<double>(sends);
    const auto [shorter, longer] = std::minmax(hops[s].forward, hops[s].backward);
    most = std::max(most, down + shorter + transfers * longer);
    down += shorter + longer;
  }
  return most;
}

const std::vector<Bounds::Hop>& Bounds::hops(const plan::Plan& plan, const Replica& replica) {
  const std::int64_t bytes = std::int64_t{replica.samples} * model_.seq_len * model_.hidden *
                             size_of(plan.precision) /
                             (plan.mesh.cp * (plan.mesh.sequence_parallel ? plan.mesh.tp : 1));
  auto [it, fresh] = mesh_of(plan).hops.try_emplace({replica.members.front(), bytes},
                                                    static_cast<std::size_t>(plan.mesh.pp), Hop{});
  if (!fresh) return it->second;
  const RankGrid at(plan);
  costs::Contention contention(cluster_, slow_);
  std::vector<std::vector<Hop>> of_replica(static_cast<std::size_t>(plan.mesh.dp), it->second);
  std::vector<double> seconds;
  for (const bool forward : {true, false})
    for (int s = 0; s < plan.mesh.pp; ++s) {
      const int to = (s + 1) % plan.mesh.pp;
      for (int d = 0; d < plan.mesh.dp; ++d)
        for (int t = 0; t < plan.mesh.tp && plan.samples(d) == replica.samples; ++t) {
          const Id a = plan.placement.rank_to_device[at.rank(s, d, t)],
                   b = plan.placement.rank_to_device[at.rank(to, d, t)];
          contention.add(forward ? a : b, forward ? b : a, static_cast<double>(bytes));
        }
      contention.finish(seconds), contention.clear();
      auto next = seconds.begin();
      for (int d = 0; d < plan.mesh.dp; ++d) {
        if (plan.samples(d) != replica.samples) continue;
        Hop& hop = of_replica[static_cast<std::size_t>(d)][static_cast<std::size_t>(s)];
        (forward ? hop.forward : hop.backward) = *std::min_element(next, next + plan.mesh.tp);
        next += plan.mesh.tp;
      }
    }
  const auto sum = [&](int d) {
    double all = 0;
    for (const Hop& hop : of_replica[static_cast<std::size_t>(d)])
      all += hop.forward + hop.backward;
    return all;
  };
  const int slowest = *std::max_element(replica.members.begin(), replica.members.end(),
                                        [&](int a, int b) { return sum(a) < sum(b); });
  return it->second = std::move(of_replica[static_cast<std::size_t>(slowest)]);
}

const std::vector<Bounds::Elements>& Bounds::elements(const plan::Plan& plan) {
  if (pp_ == plan.mesh.pp && tp_ == plan.mesh.tp && stages_ == plan.placement.stages)
    return elements_;
  pp_ = plan.mesh.pp, tp_ = plan.mesh.tp, stages_ = plan.placement.stages;
  elements_.clear();
  for (int stage = 0; stage < plan.mesh.pp; ++stage) {
    std::set<Id> groups;
    Elements& of_stage = elements_.emplace_back();
    for (auto c = static_cast<std::size_t>(stage); c < plan.placement.stages.size();
         c += static_cast<std::size_t>(plan.mesh.pp)) {
      for (const Id s : plan.placement.stages[c])
        for (const Id g : model_.segments[s].groups)
          if (groups.insert(g).second) of_stage.all += elements_of(model_.groups[g], plan.mesh.tp);
      if (c == static_cast<std::size_t>(stage)) of_stage.first = of_stage.all;
    }
  }
  return elements_;
}

double Bounds::network_seconds(const plan::Plan& plan, int stage, std::int64_t elements) {
  const MeshGroups& mesh = mesh_of(plan);
  const auto at = static_cast<std::size_t>(stage);
  const Id group =
      plan.exchange.sharding.shard_group > 0 ? mesh.shard_groups[at] : mesh.data_groups[at];
  switch (plan.exchange.sharding.zero) {
    case 0:
      return fastest(group, program::Move::all_reduce, elements, plan.gradient_type());
    case 3: {
      const auto gather = [&](Id of) {
        return fastest(of, program::Move::all_gather, elements, plan.precision);
      };
      if (plan.exchange.sharding.keep_gathered) return gather(group);
      const Id backward = plan.exchange.sharding.reshard_group > 0 ? mesh.shard_groups[at] : group;
      return plan.schedule.micro_batches * (gather(group) + gather(backward));
    }
    default:
      return (plan.shards_gradients() ? plan.schedule.micro_batches : 1) *
                 fastest(group, program::Move::reduce_scatter, elements, plan.gradient_type()) +
             fastest(group, program::Move::all_gather, elements, plan.precision);
  }
}

const std::vector<double>& Bounds::saved(int samples, const plan::Plan& plan) {
  auto [it, fresh] = saved_.try_emplace(
      {samples, plan.mesh.tp, plan.mesh.sequence_parallel, plan.schedule.recompute});
  if (!fresh) return it->second;
  it->second = {0};
  const bool by_layers = plan.schedule.recompute_unit == plan::RecomputeUnit::layer;
  const auto boundary = static_cast<double>(std::int64_t{samples} * model_.seq_len * model_.hidden *
                                            size_of(plan.precision));
  for (Id s = 0; s < model_.segments.size(); ++s) {
    // With recomputation only the segment's input is kept; 1/tp of it, as with sequence
    // parallelism, so that this is a lower bound.
    const double kept =
        plan.schedule.recompute
            ? (s == 0 || (by_layers && model_.segments[s].kind == model::SegmentKind::mlp)
                   ? 0
                   : boundary / plan.mesh.tp)
            : static_cast<double>(saved_bytes(model_, s, samples, split_of(plan), plan.precision));
    it->second.push_back(it->second.back() + kept);
  }
  return it->second;
}

MemoryNeed Bounds::memory(const plan::Plan& plan) {
  MemoryNeed most;
  const methods::PassOrder order = methods::strategy_named(plan.method).order(plan, model_);
  const double element = static_cast<double>(size_of(plan.precision)), shards = plan.shards();
  const double optimizer = optimizer_bytes(plan);
  const double each =
      element / (plan.exchange.sharding.zero >= 3 ? shards : 1) +
      (plan.keeps_gradients() ? static_cast<double>(size_of(plan.gradient_type())) : 0) /
          (plan.shards_gradients() ? shards : 1) +
      optimizer / (plan.exchange.sharding.zero >= 1 ? shards : 1);
  for (int s = 0; s < plan.mesh.pp; ++s) {
    const double states =
        static_cast<double>(elements(plan)[static_cast<std::size_t>(s)].all) * each;
    for (const Replica& replica : mesh_of(plan).replicas) {
      const auto& sums = saved(replica.samples, plan);
      const int alive =
          order.in_flight(plan, s) - (order.halved != nullptr ? order.halved(plan, s) : 0);
      double least = std::numeric_limits<double>::infinity(), largest = 0;
      for (auto c = static_cast<std::size_t>(s); c < plan.placement.stages.size();
           c += static_cast<std::size_t>(plan.mesh.pp)) {
        const std::vector<Id>& chunk = plan.placement.stages[c];
        least = std::min(least, sums[chunk.back() + 1] - sums[chunk.front()]);
        for (const Id segment : chunk)
          largest =
              std::max(largest, static_cast<double>(saved_bytes(model_, segment, replica.samples,
                                                                split_of(plan), plan.precision)));
      }
      // Activations on the host are on the device while their segment's backward runs, recomputed
      // ones too.
      const double bytes = states + (plan.schedule.hosted.on ? largest : alive * least);
      for (const auto& [kind, pace] : replica.kinds[static_cast<std::size_t>(s)])
        add_need(most, bytes, cluster_.kinds()[kind]);
    }
  }
  return most;
}

}  // namespace rehearse::planner
