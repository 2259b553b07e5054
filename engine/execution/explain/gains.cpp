#include "engine/execution/explain/gains.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "engine/cluster/link_roles.h"
#include "engine/execution/dry_run/dry_run.h"
#include "engine/execution/dry_run/fold.h"

namespace rehearse::execution {
namespace {

/// Runs the program once for each changed resource.
class Gains {
 public:
  Gains(const link::OrderedProgram& linked, const Pricing& pricing, Steps steps)
      : linked_(linked), pricing_(pricing), steps_(steps) {}

  void kind(Id id) {
    const cluster::DeviceKind& kind = pricing_.cluster.kinds()[id];
    if (pricing_.profile != nullptr && pricing_.profile->covers(kind.name)) return measured(id);
    const auto with = [&](const char* what, auto change) {
      cluster::Cluster changed = pricing_.cluster;
      cluster::DeviceKind other = kind;
      change(other);
      changed.replace_kind(id, other);
      run(fmt::format("{}: {}", kind.name, what), changed);
    };
    with("matrix rate", [](cluster::DeviceKind& k) {
      for (FlopsPerSecond* rate :
           {&k.peak_f32, &k.peak_f16, &k.peak_bf16, &k.peak_tf32, &k.peak_fp8})
        *rate = more * *rate;
    });
    with("memory bandwidth",
         [](cluster::DeviceKind& k) { k.memory_bandwidth = more * k.memory_bandwidth; });
    if (kind.launch.value > 0)
      with("gap between kernels", [](cluster::DeviceKind& k) { k.launch = k.launch / more; });
  }

  void links(const cluster::LinkRole& role) {
    cluster::Cluster changed = pricing_.cluster;
    changed.scale_links(role.links, more, 1);
    run(fmt::format("{} ({}): bandwidth", role.name, to_text(role.bandwidth)), changed);
  }

  void latency() {
    cluster::Cluster changed = pricing_.cluster;
    std::vector<Id> all(changed.links().size());
    std::iota(all.begin(), all.end(), Id{0});
    changed.scale_links(all, 1, 1 / more);
    run("all links: latency", changed);
  }

  void library() {
    const auto with = [&](const char* what, auto change) {
      software::Library library = pricing_.cluster.library();
      change(library);
      if (library == pricing_.cluster.library()) return;
      cluster::Cluster changed = pricing_.cluster;
      changed.use_library(std::move(library));
      run(fmt::format("communication library: {}", what), changed);
    };
    with("launch", [](software::Library& library) {
      library.launch = library.launch / more;
      for (software::Protocol& p : library.protocols) p.measured.base = p.measured.base / more;
    });
    with("latency of a transfer", [](software::Library& library) {
      for (Seconds* hop : {&library.in_node, &library.across}) *hop = *hop / more;
      for (software::Protocol& p : library.protocols)
        for (Seconds* hop : {&p.measured.nvlink, &p.measured.pcie, &p.measured.network})
          *hop = *hop / more;
    });
  }

  void hosts() {
    const auto with = [&](const char* resource, double link, double bandwidth) {
      cluster::Cluster changed = pricing_.cluster;
      changed.scale_hosts(link, bandwidth);
      run(resource, changed);
    };
    bool copies = false, updates = false;
    for (const program::Role& role : linked_.program.roles)
      for (const program::Op& op : role.ops) {
        const bool moves = std::ranges::any_of(op.refs, [&](const program::Ref& ref) {
          return role.storages[role.views[ref.view].storage].place == program::Place::host;
        });
        copies = copies || (moves && std::holds_alternative<program::Copy>(op.work));
        updates = updates || place_of(role, op) == program::Place::host;
      }
    if (copies) with("hosts: link to a device", more, 1);
    if (updates) with("hosts: memory bandwidth", 1, more);
  }

  void host() {
    link::OrderedProgram changed = linked_;
    bool issues = false;
    for (program::Role& role : changed.program.roles)
      for (program::Op& op : role.ops)
        if (auto* issue = std::get_if<program::Issue>(&op.work)) {
          issues = issues || issue->seconds > 0;
          issue->seconds /= more;
        }
    if (issues)
      out_.push_back(
          {"host: issuing kernels", step_seconds(changed, pricing_.costs(changed), steps_)});
  }

  std::vector<Gain> sorted() {
    std::stable_sort(out_.begin(), out_.end(),
                     [](const Gain& a, const Gain& b) { return a.seconds < b.seconds; });
    return std::move(out_);
  }

 private:
  /// The profile has measured whole passes, so their rates cannot be told apart.
  void measured(Id id) {
    Pricing changed = pricing_;
    changed.pace.resize(static_cast<std::size_t>(linked_.program.world_size), 1.0);
    for (std::size_t rank = 0; rank < changed.pace.size(); ++rank)
      if (pricing_.cluster.devices()[pricing_.rank_to_device[rank]].kind == id)
        changed.pace[rank] /= more;
    out_.push_back({pricing_.cluster.kinds()[id].name + ": all local work",
                    step_seconds(linked_, changed.costs(linked_), steps_)});
  }
  void run(const std::string& resource, const cluster::Cluster& cluster) {
    const Pricing changed{pricing_.model,     cluster,          pricing_.rank_to_device,
                          pricing_.optimizer, pricing_.profile, pricing_.slow,
                          pricing_.pace};
    out_.push_back({resource, step_seconds(linked_, changed.costs(linked_), steps_)});
  }

  const link::OrderedProgram& linked_;
  const Pricing& pricing_;
  const Steps steps_;
  std::vector<Gain> out_ = {};
};

/// Remembers when each step ends, in the roles that do not run freely.
class LastEnds : public TraceSink {
 public:
  LastEnds(const link::OrderedProgram& linked, int steps)
      : linked_(linked), ends_(static_cast<std::size_t>(steps), 0.0) {}
  void record(Id role, Id, int step, Id, std::span<const double>,
              std::span<const double> ends) override {
    if (linked_.program.roles[role].free_running) return;
    double& last = ends_[static_cast<std::size_t>(step)];
    last = std::max(last, *std::max_element(ends.begin(), ends.end()));
  }
  const std::vector<double>& all() const { return ends_; }

 private:
  const link::OrderedProgram& linked_;
  std::vector<double> ends_;
};

}  // namespace

int overlapping_steps(const link::OrderedProgram& linked) { return 1 + linked.max_offset; }

double step_seconds(const link::OrderedProgram& linked, const costs::Costs& costs, Steps steps) {
  const int counted = steps.warm_up + steps.steady, all = counted + overlapping_steps(linked);
  std::vector<double> ends;
  if (needs_events(linked)) {
    LastEnds sink(linked, all);
    dry_run(linked, costs, cluster::Disturber({}, linked.program.world_size), all, sink);
    ends = sink.all();
  } else {
    ends = dry_run_folded(linked, costs, fold(linked, costs), all);
  }
  const auto latest = [&](int n) {
    return n > 0 ? *std::max_element(ends.begin(), ends.begin() + n) : 0;
  };
  return (latest(counted) - latest(steps.warm_up)) / steps.steady;
}

std::vector<Gain> gains(const link::OrderedProgram& linked, const Pricing& pricing,
                        const std::vector<double>& used, Steps steps) {
  Gains out(linked, pricing, steps);
  std::set<Id> kinds;
  for (const Id device : pricing.rank_to_device)
    kinds.insert(pricing.cluster.devices()[device].kind);
  for (const Id kind : kinds) out.kind(kind);
  const auto carries = [&](Id link) { return used[link] > 0; };
  for (const cluster::LinkRole& role : cluster::link_roles(pricing.cluster))
    if (std::any_of(role.links.begin(), role.links.end(), carries)) out.links(role);
  bool latency = false;
  for (Id link = 0; link < used.size(); ++link)
    latency = latency || (carries(link) && pricing.cluster.links()[link].latency.value > 0);
  if (latency) out.latency();
  out.library();
  out.hosts();
  out.host();
  return out.sorted();
}

}  // namespace rehearse::execution
