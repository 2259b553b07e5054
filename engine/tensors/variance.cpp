#include "engine/tensors/variance.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <sstream>

#include "engine/base/errors.h"

namespace rehearse::tensors {
namespace {

constexpr std::int64_t least_observed = 64;

/// The parameter group of an element of a storage; none: the element is padding.
Id group_at(const StorageMap& storage, std::int64_t element) {
  const auto after =
      std::upper_bound(storage.pieces.begin(), storage.pieces.end(), element,
                       [](std::int64_t e, const ParamPiece& piece) { return e < piece.begin; });
  if (after == storage.pieces.begin() || element >= (after - 1)->end) return none;
  return (after - 1)->group;
}

/// Whether this rank reports the group: of ranks with equal copies, the first along each axis does.
bool reports(const program::Program& program, const model::ModelSpec& model, Id group,
             program::Layout layout, Id rank) {
  for (std::size_t a = 0; a < program.mesh.size(); ++a) {
    const std::string& axis = program.mesh[a].name;
    const bool parts = axis == "tp" ? model.groups[group].split : (layout.shard >> a & 1) != 0;
    if (axis != "pp" && !parts && place_along(program, axis, rank).index != 0) return false;
  }
  return true;
}

}  // namespace

Id layer_of(const model::ModelSpec& model, Id group) {
  for (Id s = 0; s < model.segments.size(); ++s) {
    const auto& groups = model.segments[s].groups;
    if (std::find(groups.begin(), groups.end(), group) != groups.end()) return s;
  }
  return none;
}

int observe_stride(std::span<const std::int64_t> elements, int wanted) {
  std::int64_t most = wanted;
  for (const std::int64_t n : elements) most = std::min(most, n / least_observed);
  if (most == wanted) return wanted;
  // A prime, as the default is: a divisor of a matrix's width would observe some columns alone.
  const auto prime = [](std::int64_t n) {
    for (std::int64_t d = 2; d * d <= n; ++d)
      if (n % d == 0) return false;
    return true;
  };
  while (most > 1 && !prime(most)) --most;
  return static_cast<int>(std::max<std::int64_t>(most, 1));
}

bool is_observation(const program::Role& role, Id storage) {
  return std::any_of(role.ops.begin(), role.ops.end(), [&](const program::Op& op) {
    const auto* kernel = std::get_if<program::Kernel>(&op.work);
    return kernel && kernel->kind == program::KernelKind::observe &&
           role.views[find(op, program::Slot::target)->view].storage == storage;
  });
}

std::vector<GroupObservation> observations_of(const link::LinkedProgram& linked,
                                              const model::ModelSpec& model, const RankMap& map,
                                              Id rank, Id op, std::span<const float> state,
                                              std::int64_t first_step) {
  const program::Program& program = linked.program;
  const program::Role& role = program.roles[linked.role_of[rank]];
  const program::Ref& source = *find(role.ops[op], program::Slot::source);
  const int stride = std::get<program::Kernel>(role.ops[op].work).stride;
  const Extent extent = extent_of(program, role, source.view, rank);
  const StorageMap& storage = map.storages[role.views[source.view].storage];
  const auto observed = (state.size() - 1) / 2;
  std::map<Id, GroupObservation> by_group;
  // If a gradient ended the observation: the group with its largest coordinate.
  Id worst = none;
  double largest = 0;
  for (std::size_t i = 0; i < observed; ++i) {
    const Id group = group_at(storage, extent.begin + static_cast<std::int64_t>(i) * stride);
    if (group == none) continue;
    const double mean = state[1 + i], deviations = state[1 + observed + i];
    if (state[0] < 0) {
      const bool finite = std::isfinite(mean) && std::isfinite(deviations);
      const double size = finite ? std::abs(mean) : std::numeric_limits<double>::infinity();
      if (worst == none || size > largest) worst = group, largest = size;
      continue;
    }
    if (!reports(program, model, group, source.layout, rank)) continue;
    GroupObservation& sum = by_group[group];
    sum.group = group;
    sum.observed_steps = static_cast<int>(state[0]);
    ++sum.observed;
    sum.deviations += deviations;
    sum.means += mean * mean;
  }
  if (worst != none)
    throw InputError(fmt::format(
        "the gradient of layer {} was {} at step {}: training diverges, so warm-up has no "
        "variances to plan with; a smaller train.lr or a longer train.warmup_steps may help",
        model.segments[layer_of(model, worst)].name,
        std::isfinite(largest) ? "1e18 or more" : "not finite",
        first_step + static_cast<std::int64_t>(std::abs(state[0])) - 1));
  std::vector<GroupObservation> out;
  for (const auto& [group, sum] : by_group) out.push_back(sum);
  return out;
}

std::vector<LayerVariance> layer_variances(const model::ModelSpec& model,
                                           std::span<const GroupObservation> all) {
  std::map<Id, GroupObservation> groups;
  for (const GroupObservation& one : all) {
    GroupObservation& sum = groups[one.group];
    if (sum.observed > 0 && sum.observed_steps != one.observed_steps)
      throw BackendError(fmt::format("ranks observed the gradients of {} at {} and at {} steps",
                                     model.groups[one.group].name, sum.observed_steps,
                                     one.observed_steps));
    sum.group = one.group;
    sum.observed_steps = one.observed_steps;
    sum.observed += one.observed;
    sum.deviations += one.deviations;
    sum.means += one.means;
  }
  std::map<Id, LayerVariance> layers;
  std::map<Id, double> sampled;  // elements of the groups with a sample
  for (const auto& [group, sum] : groups) {
    if (sum.observed_steps == 0 || sum.observed == 0) continue;
    const Id segment = layer_of(model, group);
    const auto elements = static_cast<double>(elements_of(model.groups[group], 1));
    const double scale = elements / static_cast<double>(sum.observed);
    const double variance = sum.deviations / sum.observed_steps;
    LayerVariance& layer = layers[segment];
    layer.model = model.name;
    layer.segment = segment;
    layer.observed_steps = sum.observed_steps;
    layer.observed += sum.observed;
    layer.total += scale * variance;
    layer.square_norm += scale * (variance + sum.means);
    sampled[segment] += elements;
  }
  for (Id g = 0; g < model.groups.size(); ++g)
    if (const auto layer = layers.find(layer_of(model, g)); layer != layers.end())
      layer->second.elements += elements_of(model.groups[g], 1);
  std::vector<LayerVariance> out;
  for (auto& [segment, layer] : layers) {
    // Groups so small that no coordinate was observed count like the rest of their layer.
    const auto elements = static_cast<double>(layer.elements);
    layer.total *= elements / sampled[segment];
    layer.square_norm *= elements / sampled[segment];
    layer.per_element = layer.total / elements;
    out.push_back(layer);
  }
  return out;
}

std::string to_text(std::span<const GroupObservation> observations) {
  std::string out;
  for (const GroupObservation& o : observations)
    out += fmt::format("{} {} {} {:a} {:a}\n", o.group, o.observed, o.observed_steps, o.deviations,
                       o.means);
  return out;
}

std::vector<GroupObservation> parse_observations(const std::string& text) {
  std::vector<GroupObservation> out;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    GroupObservation o;
    std::string deviations, means;
    if (!(words >> o.group >> o.observed >> o.observed_steps >> deviations >> means))
      throw BackendError("a rank's observations of gradients are damaged: " + line);
    o.deviations = std::strtod(deviations.c_str(), nullptr);
    o.means = std::strtod(means.c_str(), nullptr);
    out.push_back(o);
  }
  return out;
}

}  // namespace rehearse::tensors
