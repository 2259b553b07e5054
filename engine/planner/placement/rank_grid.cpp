#include "engine/planner/placement/rank_grid.h"

#include <ranges>
#include <set>
#include <string>

namespace rehearse::planner {
namespace {

/// Bytes that each member of a ring all-reduce sends to the next (Patarasuk and Yuan 2009).
double ring_bytes(double bytes, int members) { return 2.0 * (members - 1) / members * bytes; }

/// Collects traffic between ranks.
class TrafficCollector {
 public:
  explicit TrafficCollector(std::vector<RankTraffic>& out) : out_(out) {}
  void add(Id from, Id to, double bytes) {
    if (from != to && bytes > 0) out_.push_back({from, to, bytes});
  }
  template <class Member>
  void ring(int members, double bytes, Member member) {
    if (members < 2) return;
    for (int i = 0; i < members; ++i)
      add(member(i), member((i + 1) % members), ring_bytes(bytes, members));
  }

 private:
  std::vector<RankTraffic>& out_;
};

}  // namespace

RankGrid::RankGrid(const plan::Plan& plan) {
  const auto axes = plan.mesh.axes();
  int stride = 1;
  for (const auto& [name, size] : std::views::reverse(axes)) {
    (name == "pp" ? pp_ : name == "dp" ? dp_ : name == "cp" ? cp_ : tp_) = stride;
    stride *= size;
  }
}

double boundary_bytes(const model::ModelSpec& model, const plan::Plan& plan, int samples) {
  return static_cast<double>(samples) * model.seq_len * model.hidden *
         static_cast<double>(size_of(plan.precision));
}

double gradient_bytes(const model::ModelSpec& model, const plan::Plan& plan,
                      const std::vector<Id>& segments) {
  std::set<Id> groups;
  for (Id segment : segments)
    groups.insert(model.segments[segment].groups.begin(), model.segments[segment].groups.end());
  double elements = 0;
  for (Id group : groups)
    elements += static_cast<double>(elements_of(model.groups[group], plan.mesh.tp));
  return elements * static_cast<double>(size_of(plan.gradient_type()));
}

std::vector<RankTraffic> traffic_of(const model::ModelSpec& model, const plan::Plan& plan) {
  std::vector<RankTraffic> out;
  TrafficCollector sum(out);
  const RankGrid mesh(plan);
  const int chunks = static_cast<int>(plan.placement.stages.size());
  const double tensor_part = plan.mesh.sequence_parallel ? 1.0 / plan.mesh.tp : 1.0;
  for (int c = 0; c < chunks; ++c) {
    const auto& segments = plan.placement.stages[static_cast<std::size_t>(c)];
    const int stage = c % plan.mesh.pp, next = (c + 1) % plan.mesh.pp;
    const double passes = plan.schedule.recompute ? 3 : 2;
    for (int d = 0; d < plan.mesh.dp; ++d) {
      const double step =
          boundary_bytes(model, plan, plan.samples(d)) * plan.schedule.micro_batches;
      for (int t = 0; t < plan.mesh.tp && c + 1 < chunks; ++t) {
        sum.add(mesh.rank(stage, d, t), mesh.rank(next, d, t), step * tensor_part);
        sum.add(mesh.rank(next, d, t), mesh.rank(stage, d, t), step * tensor_part);
      }
      sum.ring(plan.mesh.tp, passes * static_cast<double>(segments.size()) * step,
               [&](int t) { return mesh.rank(stage, d, t); });
    }
    const double gradient = gradient_bytes(model, plan, segments);
    for (int t = 0; t < plan.mesh.tp; ++t)
      sum.ring(plan.mesh.dp, gradient, [&](int d) { return mesh.rank(stage, d, t); });
  }
  return out;
}

}  // namespace rehearse::planner
