// Prices collectives only at powers of two bytes, once for all layers of a stage, and interpolates
// linearly.
#include "engine/planner/exchange/sparsity.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <tuple>

#include "engine/base/errors.h"
#include "engine/costs/costs.h"
#include "engine/costs/device/local_prices.h"
#include "engine/methods/lowering/roles.h"
#include "engine/program/packets.h"

namespace rehearse::planner {

std::vector<double> sparsity(std::span<const double> variance, double s_min, double s_max) {
  if (s_min < 0 || s_min > s_max || s_max >= 1)
    throw InputError(
        fmt::format("method.s_min: {}: must be in [0, s_max], and s_max {} below 1", s_min, s_max));
  for (std::size_t layer = 0; layer < variance.size(); ++layer)
    if (!std::isfinite(variance[layer]) || variance[layer] < 0)
      throw InputError(
          fmt::format("the gradient variance of layer {} is {}: were there NaN or "
                      "infinite gradients in warm-up?",
                      layer, variance[layer]));
  if (variance.empty()) return {};
  const auto [least, most] = std::minmax_element(variance.begin(), variance.end());
  std::vector<double> out;
  for (const double v : variance) {
    const double part = *least == *most ? 0.5 : (v - *least) / (*most - *least);
    out.push_back(std::clamp(s_max - (s_max - s_min) * part, s_min, s_max));
  }
  return out;
}

std::int64_t kept(std::int64_t elements, double sparsity) {
  return program::entries_kept(elements, 1 - sparsity);
}

namespace {

/// By parameter group: the first segment that uses it.
std::vector<Id> owner_of(const model::ModelSpec& model) {
  std::vector<Id> owner(model.groups.size(), none);
  for (Id s = static_cast<Id>(model.segments.size()); s-- > 0;)
    for (const Id g : model.segments[s].groups) owner[g] = s;
  return owner;
}

}  // namespace

double variance_of(const tensors::LayerVariance& layer, const plan::Plan& plan) {
  return plan.exchange.sparse.variance == plan::Variance::total ? layer.total : layer.per_element;
}

std::vector<double> densities(const plan::Plan& plan, const model::ModelSpec& model,
                              const costs::Profile* profile) {
  std::vector<bool> owns(model.segments.size());
  for (const Id s : owner_of(model)) owns[s] = true;
  std::map<Id, double> known;
  if (profile != nullptr)
    for (const tensors::LayerVariance& v : profile->variances)
      if (v.model == model.name) known[v.segment] = variance_of(v, plan);
  std::vector<double> variance;
  for (Id s = 0; s < owns.size(); ++s) {
    if (!owns[s]) continue;
    const auto found = known.find(s);
    if (found == known.end() && !known.empty())
      throw InputError(fmt::format(
          "cluster.profile: it has gradient variances of {}, but none of its segment {} ({})",
          model.name, s, model.segments[s].name));
    variance.push_back(found == known.end() ? 0 : found->second);
  }
  const std::vector<double> s =
      sparsity(variance, plan.exchange.sparse.s_min, plan.exchange.sparse.s_max);
  std::vector<double> out;
  std::size_t layer = 0;
  for (const bool one : owns) out.push_back(one ? 1 - s[layer++] : 1);
  return out;
}

std::vector<Id> nodes_of(const plan::Plan& plan, const cluster::Cluster& cluster) {
  std::vector<Id> node;
  for (const Id device : plan.placement.rank_to_device)
    node.push_back(cluster.devices()[device].node);
  return node;
}

namespace {

constexpr double impossible = std::numeric_limits<double>::infinity();

/// The groups of ranks that exchange the gradients of one stage, as devices: all replicas, those of
/// each node, and the first of each node (leaders).
struct Groups {
  std::vector<std::vector<Id>> replicas = {}, nodes = {}, leaders = {};
  std::vector<Id> devices = {};
  bool two_level = false;  // a group has several nodes and several ranks on one of them
};

/// Prices of exchanges for one plan.
class Prices {
 public:
  Prices(const plan::Plan& plan, const model::ModelSpec& model, const cluster::Cluster& cluster,
         const costs::Profile* profile)
      : plan_(plan),
        model_(model),
        cluster_(cluster),
        prices_(model, profile),
        program_(methods::make_mesh(plan)),
        owner_(owner_of(model)),
        node_(nodes_of(plan, cluster)),
        stages_(static_cast<std::size_t>(plan.mesh.pp)) {}

  std::vector<ExchangeSeconds> all(Id segment, double density) {
    const int stage = stage_of(segment);
    std::vector<ExchangeSeconds> out;
    const auto add = [&](plan::Reduction reduction, program::Coding coding) {
      const plan::LayerExchange one{reduction == plan::Reduction::dense ? 1 : density, reduction,
                                    coding};
      ExchangeSeconds seconds{.exchange = one};
      for (const auto& [split, elements] : buckets(segment)) price(stage, one, elements, seconds);
      out.push_back(seconds);
    };
    if (plan_.exchange.sparse.reduction.value_or(plan::Reduction::dense) == plan::Reduction::dense)
      add(plan::Reduction::dense, program::Coding::index32);
    for (const plan::Reduction reduction : {plan::Reduction::sparse, plan::Reduction::two_level}) {
      if (plan_.exchange.sparse.reduction.value_or(reduction) != reduction) continue;
      if (reduction == plan::Reduction::two_level && !plan_.exchange.sparse.reduction &&
          !(groups(stage).two_level && copies_alike(segment)))
        continue;
      for (const program::Coding coding : program::codings_of(plan_.exchange.sparse.selector))
        if (plan_.exchange.sparse.coding.value_or(coding) == coding) add(reduction, coding);
    }
    std::stable_sort(out.begin(), out.end(),
                     [](const auto& a, const auto& b) { return a.total() < b.total(); });
    return out;
  }

 private:
  int stage_of(Id segment) const {
    for (std::size_t c = 0; c < plan_.placement.stages.size(); ++c)
      for (const Id s : plan_.placement.stages[c])
        if (s == segment) return static_cast<int>(c) % plan_.mesh.pp;
    return 0;
  }

  /// Elements per rank of the parameter groups that the segment owns: [true] groups that tp splits,
  /// [false] all others.
  std::map<bool, std::int64_t> buckets(Id segment) const {
    std::map<bool, std::int64_t> out;
    for (const Id g : model_.segments[segment].groups)
      if (owner_[g] == segment)
        out[plan_.mesh.tp > 1 && model_.groups[g].split] +=
            elements_of(model_.groups[g], plan_.mesh.tp);
    return out;
  }

  const Groups& groups(int stage) {
    std::optional<Groups>& known = stages_[static_cast<std::size_t>(stage)];
    if (known) return *known;
    Groups& out = known.emplace();
    const std::vector<Id> ranks = methods::ranks_of_stage(program_, stage);
    for (const auto& group : groups_of(program_, {.group = {.axes = data_axes(program_)}})) {
      if (std::find(ranks.begin(), ranks.end(), group.front()) == ranks.end()) continue;
      std::map<Id, std::vector<Id>> by_node;
      auto& replicas = out.replicas.emplace_back();
      for (const Id rank : group) {
        replicas.push_back(plan_.placement.rank_to_device[rank]);
        by_node[node_[rank]].push_back(replicas.back());
      }
      out.devices.insert(out.devices.end(), replicas.begin(), replicas.end());
      auto& leaders = out.leaders.emplace_back();
      for (const Id device : replicas)  // in the order of ranks
        for (const auto& [node, devices] : by_node)
          if (devices.front() == device) leaders.push_back(device);
      for (const auto& [node, devices] : by_node) out.nodes.push_back(devices);
      out.two_level |= by_node.size() > 1 && by_node.size() < group.size();
    }
    return out;
  }

  /// Whether all copies of the segment's parameters (on tensor ranks, and tied groups on other
  /// stages) are distributed over nodes in the same way. Only then can two-level exchanges sum them
  /// equally.
  bool copies_alike(Id segment) {
    std::vector<std::vector<std::vector<std::size_t>>> shapes;
    for (Id s = 0; s < model_.segments.size(); ++s) {
      const auto& mine = model_.segments[segment].groups;
      const bool shares = std::any_of(mine.begin(), mine.end(), [&](Id g) {
        const auto& theirs = model_.segments[s].groups;
        return owner_[g] == segment && std::find(theirs.begin(), theirs.end(), g) != theirs.end();
      });
      if (!shares) continue;
      // By group of the stage, by replica: the first replica on the same node.
      auto& shape = shapes.emplace_back();
      for (const auto& devices : groups(stage_of(s)).replicas) {
        auto& firsts = shape.emplace_back();
        for (const Id d : devices)
          firsts.push_back(static_cast<std::size_t>(
              std::find_if(devices.begin(), devices.end(),
                           [&](Id other) {
                             return cluster_.devices()[other].node == cluster_.devices()[d].node;
                           }) -
              devices.begin()));
      }
    }
    if (shapes.empty()) return true;
    const auto& first = shapes.front().front();
    return std::all_of(shapes.begin(), shapes.end(), [&](const auto& shape) {
      return shape == shapes.front() &&
             (plan_.mesh.tp == 1 ||
              std::count(shape.begin(), shape.end(), first) == std::ssize(shape));
    });
  }

  /// Adds the seconds of exchange x for a gradient of n elements.
  void price(int stage, const plan::LayerExchange& x, std::int64_t n, ExchangeSeconds& out) {
    const Groups& g = groups(stage);
    const std::int64_t width = size_of(plan_.gradient_type());
    const bool zero = plan_.exchange.sharding.zero > 0;
    const program::Move dense = zero ? program::Move::reduce_scatter : program::Move::all_reduce;
    if (x.reduction == plan::Reduction::dense) {
      out.transfer += seconds(stage, dense, g.replicas, n * width,
                              collectives::algorithm_for(dense, plan_.exchange.collective));
      return;
    }
    const bool two = x.reduction == plan::Reduction::two_level;
    const program::Kernel kernel{.of = n,
                                 .keep = program::entries_kept(n, x.density),
                                 .selector = plan_.exchange.sparse.selector,
                                 .coding = x.coding};
    const std::int64_t packet = packet_bytes(kernel);
    const auto& across = two ? g.leaders : g.replicas;
    std::size_t most = 0;
    for (const auto& group : across) most = std::max(most, group.size());
    const std::int64_t packets = packet * static_cast<std::int64_t>(most);
    out.transfer +=
        seconds(stage, program::Move::all_gather, across, packets, program::Algorithm::automatic);
    if (two)
      out.transfer +=
          seconds(stage, program::Move::reduce, g.nodes, n * width, program::Algorithm::automatic) +
          seconds(stage, program::Move::broadcast, g.nodes, packets, program::Algorithm::automatic);
    // Bytes read and written, as the linker counts them.
    out.select += local(g, program::KernelKind::select, n * width + 8 * n + packet);
    out.scatter +=
        local(g, program::KernelKind::scatter_add, packets + 4 * (zero ? n / plan_.mesh.dp : n));
  }

  /// Seconds of a kernel on the slowest device.
  double local(const Groups& g, program::KernelKind kind, std::int64_t bytes) const {
    double slowest = 0;
    for (const Id d : g.devices)
      slowest = std::max(slowest, prices_.kernel(cluster_.kind_of(d), kind, bytes).seconds);
    return slowest;
  }

  /// Seconds of a collective over all groups at once, with its fastest algorithm if `automatic`.
  double seconds(int stage, program::Move move, const std::vector<std::vector<Id>>& groups,
                 std::int64_t bytes, program::Algorithm algorithm) {
    if (std::all_of(groups.begin(), groups.end(), [](const auto& g) { return g.size() < 2; }))
      return 0;
    double best = impossible;
    for (const program::Algorithm one :
         {program::Algorithm::ring, program::Algorithm::hierarchical,
          program::Algorithm::halving_doubling, program::Algorithm::double_tree,
          program::Algorithm::direct, program::Algorithm::nvls, program::Algorithm::in_network}) {
      if (algorithm == program::Algorithm::automatic ? !costs::considered(cluster_, one, move, true)
                                                     : algorithm != one)
        continue;
      const auto at = [&](int power) {
        auto [it, fresh] = known_.try_emplace({stage, move, one, &groups, power});
        if (fresh) {
          const auto all = costs::collective_seconds(cluster_, move, one, std::int64_t{1} << power,
                                                     program::DType::u8, groups);
          it->second = *std::max_element(all.begin(), all.end());
        }
        return it->second;
      };
      const auto size = static_cast<std::uint64_t>(std::max<std::int64_t>(bytes, 64));
      const int power = static_cast<int>(std::bit_width(size)) - 1;
      const double part = static_cast<double>(size) / std::exp2(power) - 1;
      const double low = at(power);
      best = std::min(best, part == 0 ? low : low + part * (at(power + 1) - low));
    }
    return best;
  }

  const plan::Plan& plan_;
  const model::ModelSpec& model_;
  const cluster::Cluster& cluster_;
  costs::LocalPrices prices_;
  program::Program program_;
  std::vector<Id> owner_, node_;
  std::vector<std::optional<Groups>> stages_;
  std::map<std::tuple<int, program::Move, program::Algorithm, const void*, int>, double> known_ =
      {};
};

}  // namespace

std::vector<ExchangeSeconds> exchanges_of(const plan::Plan& plan, const model::ModelSpec& model,
                                          const cluster::Cluster& cluster,
                                          const costs::Profile* profile, Id segment,
                                          double density) {
  return Prices(plan, model, cluster, profile).all(segment, density);
}

std::vector<ExchangeSeconds> fastest_exchanges(const plan::Plan& plan,
                                               const model::ModelSpec& model,
                                               const cluster::Cluster& cluster,
                                               const costs::Profile* profile) {
  const std::vector<double> density = densities(plan, model, profile);
  std::vector<ExchangeSeconds> out(model.segments.size());
  if (plan.mesh.dp == 1) return out;
  Prices prices(plan, model, cluster, profile);
  for (Id s = 0; s < out.size(); ++s) out[s] = prices.all(s, density[s]).front();
  return out;
}

}  // namespace rehearse::planner
