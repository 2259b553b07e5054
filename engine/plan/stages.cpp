#include "engine/plan/stages.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "engine/base/numbers/divisors.h"
#include "engine/base/refusal.h"

namespace rehearse::plan {
namespace {

/// Divides the segments into contiguous parts such that the largest part has as little work as
/// possible (forward FLOPs), by dynamic programming: best[p][end] is the minimum over `begin` of
/// max(best[p - 1][begin], work of [begin, end)). The first argument never falls as `begin` grows,
/// and the second never rises, so bisection finds where they meet. Of equally good values of
/// `begin` it takes the smallest.
std::vector<std::vector<Id>> equal_work(const model::ModelSpec& model, int parts, int samples,
                                        int tp) {
  const std::size_t n = model.segments.size(), k = static_cast<std::size_t>(parts);
  std::vector<double> sum(n + 1, 0);
  std::array<std::optional<double>, model::segment_shapes> work = {};
  for (Id s = 0; s < n; ++s) {
    auto& one = work[shape_of(model, s)];
    if (!one)
      one = work_of(model, s, program::Pass::forward, samples, tp, program::DType::f32).flops.value;
    sum[s + 1] = sum[s] + *one;
  }
  std::vector<double> best_of_one_less = sum;  // best[p - 1]; one part takes all work up to `end`
  std::vector<std::vector<Id>> cut(k + 1, std::vector<Id>(n + 1, 0));
  for (std::size_t p = 2; p <= k; ++p) {
    std::vector<double> best(n + 1, 0);
    for (std::size_t end = p; end <= n; ++end) {
      const auto last = [&](std::size_t begin) { return sum[end] - sum[begin]; };
      std::size_t low = p - 1, high = end - 1;
      while (low < high) {
        const std::size_t middle = low + (high - low) / 2;
        if (best_of_one_less[middle] >= last(middle))
          high = middle;
        else
          low = middle + 1;
      }
      if (low > p - 1 && last(low - 1) <= std::max(best_of_one_less[low], last(low)))
        for (--low; low > p - 1 && last(low - 1) == last(low);) --low;
      best[end] = std::max(best_of_one_less[low], last(low)), cut[p][end] = static_cast<Id>(low);
    }
    best_of_one_less = std::move(best);
  }
  std::vector<std::vector<Id>> stages(k);
  for (std::size_t p = k, end = n; p-- > 0; end = cut[p + 1][end])
    for (std::size_t s = cut[p + 1][end]; s < end; ++s) stages[p].push_back(static_cast<Id>(s));
  return stages;
}

/// A value of method.stage_layers that fits: chunks as equal as can be, of which the first and the
/// last take the difference.
std::string fitting_layers(int layers, int chunks) {
  if (chunks == 1) return fmt::format("[{}]", layers);
  int each = (layers + chunks / 2) / chunks;
  if (each * (chunks - 2) > layers) each = std::max(1, layers / chunks);
  const int both = layers - each * (chunks - 2);
  return chunks == 2 ? fmt::format("[{}, {}]", both / 2, both - both / 2)
                     : fmt::format("[{}, {}, {}]", both / 2, each, both - both / 2);
}

/// The layers of each of so many model chunks.
std::vector<int> layers_of_chunks(const Plan& plan, const model::ModelSpec& model, int chunks) {
  std::vector<int> layers = plan.placement.stage_layers;
  if (layers.empty()) {
    if (model.layers % chunks != 0)
      refuse("partition", "\"layers\"",
             fmt::format("{} model chunks must divide the {} layers of {}; nearest: {}; or "
                         "\"work\", or method.stage_layers",
                         chunks, model.layers, model.name, nearest_divisor(model.layers, chunks)));
    return std::vector<int>(static_cast<std::size_t>(chunks), model.layers / chunks);
  }
  const auto refuse_list = [&](const std::string& why) {
    refuse("stage_layers", fmt::format("[{}]", fmt::join(plan.placement.stage_layers, ", ")),
           fmt::format("{}; such as {}", why, fitting_layers(model.layers, chunks)));
  };
  const int given = static_cast<int>(layers.size());
  if (given == 3 && chunks > 3) layers.insert(layers.begin() + 1, chunks - 3, layers[1]);
  if (static_cast<int>(layers.size()) != chunks)
    refuse_list(fmt::format(
        "must have a number for each of the {} model chunks (pp {} x "
        "virtual_stages {}){}, not {}",
        chunks, plan.mesh.pp, plan.schedule.virtual_stages,
        chunks > 3 ? ", or three: of the first, of each other and of the last" : "", given));
  const auto sum = std::accumulate(layers.begin(), layers.end(), std::int64_t{0});
  if (sum != model.layers)
    refuse_list(fmt::format(
        "{} must sum to the {} layers of {}, not to {}",
        given < chunks ? fmt::format("first + {} x each + last", chunks - 2) : "the numbers",
        model.layers, model.name, sum));
  if (chunks > 2 && *std::min_element(layers.begin() + 1, layers.end() - 1) < 1)
    refuse_list("a chunk between the first and the last must have at least 1 layer");
  return layers;
}

std::vector<std::vector<Id>> by_layers(const Plan& plan, const model::ModelSpec& model,
                                       int chunks) {
  const std::vector<int> layers = layers_of_chunks(plan, model, chunks);
  std::vector<std::vector<Id>> stages(layers.size());
  std::size_t chunk = 0;
  int end = layers[0];  // of the layers of this chunk and those before
  for (Id s = 0; s < model.segments.size(); ++s) {
    const model::Segment& segment = model.segments[s];
    if (segment.kind == model::SegmentKind::head) chunk = stages.size() - 1;
    while (segment.layer >= end) end += layers[++chunk];
    stages[chunk].push_back(s);
  }
  return stages;
}

}  // namespace

std::vector<std::vector<Id>> divided(const Plan& plan, const model::ModelSpec& model, int chunks) {
  return plan.placement.partition == Partition::layers
             ? by_layers(plan, model, chunks)
             : equal_work(model, chunks, plan.samples(), plan.mesh.tp);
}

}  // namespace rehearse::plan
