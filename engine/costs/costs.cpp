#include "engine/costs/costs.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <optional>
#include <tuple>

#include "engine/costs/device/beside.h"
#include "engine/costs/device/local_costs.h"
#include "engine/costs/network/contention.h"
#include "engine/costs/network/library_collective.h"
#include "engine/link/rendezvous.h"

namespace rehearse::costs {
namespace {

/// The row, or a single entry if all its entries are equal.
std::vector<double> squeeze(std::vector<double> row) {
  if (std::all_of(row.begin(), row.end(), [&](double v) { return v == row[0]; })) row.resize(1);
  return row;
}

}  // namespace

struct Costs::Impl {
  const link::OrderedProgram& linked;
  const model::ModelSpec& model;
  const cluster::Cluster& cluster;
  std::vector<Id> device_of;  // by rank
  plan::Optimizer optimizer;
  const Profile* profile;
  std::vector<double> slow;
  CollectivePrices* prices = nullptr;
  std::span<const double> pace = {};
  std::optional<LocalCosts> local_costs = {};  // set when the devices are known

  struct Entry {
    std::uint32_t seconds = 0, sent = 0, links = 0;  // index into rows, rows, link_rows
    program::Algorithm algorithm = program::Algorithm::automatic;
  };
  std::deque<std::vector<double>> rows = {};
  std::vector<std::vector<std::pair<Id, double>>> link_rows = {};  // each: (link, bytes)
  std::vector<std::vector<Entry>> entries = {};                    // [role][op]
  std::map<std::array<std::int64_t, 9>, Entry> known = {};         // local ops
  std::map<double, Entry> known_issues = {};                       // Issue and Pause, by seconds
  /// Channel and first role of an event (they determine its members); root, distance, move,
  /// algorithm, elements, dtype.
  using CollectiveKey =
      std::tuple<Id, Id, Id, int, program::Move, program::Algorithm, std::int64_t, program::DType>;
  std::map<CollectiveKey, std::vector<Entry>> known_collectives = {};  // [member]
  /// Role, peer, bytes; whether all ranks send together; whether it is a reply.
  std::map<std::tuple<Id, Id, std::int64_t, bool, bool>, Entry> known_transfers = {};

  const program::Role& role(Id r) const { return linked.program.roles[r]; }
  Id device(Id r, Id place) const { return device_of[role(r).ranks[place]]; }
  std::uint32_t add(std::vector<double> row) {
    rows.push_back(squeeze(std::move(row)));
    return static_cast<std::uint32_t>(rows.size() - 1);
  }

  /// All segments of one shape cost the same, so a pass of a role costs what its first pass of that
  /// shape costs. Kept for the last number of samples seen.
  struct Passes {
    int samples = -1;
    Entry entry = {};
  };
  static constexpr std::size_t pass_kinds = spellings(program::Pass{}).size();
  std::vector<std::array<Passes, model::segment_shapes* pass_kinds>> passes =
      {};  // [role][shape of segment x pass]

  Entry local(Id r, Id o) {
    const program::Work& work = role(r).ops[o].work;
    const auto* issue = std::get_if<program::Issue>(&work);
    const auto* pause = std::get_if<program::Pause>(&work);
    if (issue != nullptr || pause != nullptr) {
      const double seconds = issue != nullptr ? issue->seconds : pause->seconds;
      const auto [it, fresh] = known_issues.try_emplace(seconds);
      if (fresh) it->second = {add({seconds}), zero(), 0};
      return it->second;
    }
    const auto* compute = std::get_if<program::Compute>(&work);
    if (compute == nullptr || compute->part != program::Part::whole) return local_class(r, o);
    const std::size_t shape = shape_of(model, compute->segment);
    Passes& known = passes[r][pass_kinds * shape + static_cast<std::size_t>(compute->pass)];
    if (known.samples != compute->samples) known = {compute->samples, local_class(r, o)};
    return known.entry;
  }

  Entry local_class(Id r, Id o) {
    const program::Op& op = role(r).ops[o];
    const link::LinkedOp& l = linked.roles[r].ops[o];
    std::array<std::int64_t, 9> key = {r, static_cast<std::int64_t>(op.work.index()), l.bytes, -1};
    if (const program::Ref* param = find(op, program::Slot::param)) {
      key[3] =
          static_cast<std::int64_t>(role(r).storages[role(r).views[param->view].storage].dtype);
      key[4] = elements_of(linked.program, role(r), *param);
    }
    if (const auto* c = std::get_if<program::Compute>(&op.work)) {
      // All segments of one shape cost the same.
      key[2] = static_cast<std::int64_t>(shape_of(model, c->segment));
      key[5] = static_cast<std::int64_t>(c->pass);
      key[6] = c->samples;
      key[7] = static_cast<std::int64_t>(c->part), key[8] = c->block;
    } else if (const auto* k = std::get_if<program::Kernel>(&op.work)) {
      key[5] = static_cast<std::int64_t>(k->kind);
    }
    auto [it, fresh] = known.try_emplace(key);
    if (fresh) {
      std::vector<double> row;
      row.reserve(role(r).ranks.size());
      std::map<std::pair<Id, int>, double> seconds;  // by LocalCosts::alike
      for (Id i = 0; i < role(r).ranks.size(); ++i) {
        auto [at, first] = seconds.try_emplace(local_costs->alike(role(r), op, device(r, i)), 0.0);
        if (first) at->second = local_costs->seconds(r, o, device(r, i));
        row.push_back(at->second * (pace.empty() ? 1 : pace[role(r).ranks[i]]));
      }
      it->second = {add(std::move(row)), zero(), 0};
    }
    return it->second;
  }

  std::uint32_t zero() {
    if (rows.empty()) rows.push_back({0.0}), link_rows.emplace_back();
    return 0;
  }

  std::uint32_t add_links(const std::vector<double>& bytes) {
    auto& row = link_rows.emplace_back();
    for (Id i = 0; i < bytes.size(); ++i)
      if (bytes[i] > 0) row.emplace_back(i, bytes[i]);
    return static_cast<std::uint32_t>(link_rows.size() - 1);
  }

  void collective(std::span<const link::RoleOp> event) {
    const auto& first = std::get<program::Collective>(role(event[0].role).ops[event[0].op].work);
    std::int64_t elements = 0;
    program::DType wire = program::DType::f32;
    for (const link::RoleOp& m : event) {
      const link::LinkedOp& l = linked.roles[m.role].ops[m.op];
      if (l.elements > elements) elements = l.elements, wire = l.wire;
    }
    const auto [it, fresh] =
        known_collectives.try_emplace({first.channel, event[0].role, first.root, first.distance,
                                       first.move, first.algorithm, elements, wire});
    if (fresh) it->second = collective(event, first, elements, wire);
    for (std::size_t m = 0; m < event.size(); ++m)
      entries[event[m].role][event[m].op] = it->second[m];
    // The bytes on links count once per event, at its first member.
    for (std::size_t m = 1; m < event.size(); ++m) entries[event[m].role][event[m].op].links = 0;
  }

  struct PricedGathering : link::Gathering {
    Id groups = none;  // the number of these groups in `prices`; none without prices
  };
  std::map<std::tuple<Id, Id, Id, int>, PricedGathering> gatherings =
      {};  // by channel, first role, root, distance

  const PricedGathering& gathering(std::span<const link::RoleOp> event,
                                   const program::Collective& work) {
    const auto [it, fresh] =
        gatherings.try_emplace({work.channel, event[0].role, work.root, work.distance});
    if (!fresh) return it->second;
    it->second = {gathering_of(linked, work, event, device_of)};
    if (prices != nullptr) it->second.groups = prices->groups(it->second.devices, it->second.roots);
    return it->second;
  }

  std::vector<Entry> collective(std::span<const link::RoleOp> event,
                                const program::Collective& work, std::int64_t elements,
                                program::DType wire) {
    const PricedGathering& gathered = gathering(event, work);
    const auto& devices = gathered.devices;
    const Id groups = gathered.who.groups;
    CollectiveCost cost;
    if (prices != nullptr) {
      const auto known =
          prices->seconds(gathered.groups, work.move, work.algorithm, elements, wire);
      cost.seconds.assign(known.begin(), known.end());
    } else {
      cost = collective_cost(cluster, work.move, work.algorithm, elements, wire, devices,
                             gathered.roots, slow);
    }
    const std::int64_t bytes = elements * size_of(wire);
    for (Id g = 0; g < groups; ++g)
      if (const auto measured = measured_collective(work.move, devices[g], bytes))
        cost.seconds[g] = *measured * local_costs->crowding(devices[g][0]);
    const program::Algorithm chosen =
        algorithm_run(cluster, work.move, work.algorithm, bytes, devices);
    const std::uint32_t links = prices != nullptr ? 0 : add_links(cost.link_bytes);
    std::vector<Entry> out;
    for (Id m = 0; m < event.size(); ++m) {
      std::vector<double> seconds(gathered.who.group[m].size(), 0.0), sent;
      if (prices == nullptr) sent = seconds;
      for (Id g = 0; g < groups; ++g)
        for (std::size_t i = 0; i < gathered.members[g].size(); ++i) {
          const link::RoleOp where = gathered.members[g][i].second;
          if (where.role != m) continue;
          seconds[where.op] = cost.seconds[g];
          if (prices == nullptr)
            sent[where.op] = static_cast<double>(cost.sent[g][i] * size_of(wire));
        }
      const std::uint32_t a = add(std::move(seconds));
      out.push_back({a, prices == nullptr ? add(std::move(sent)) : zero(), links, chosen});
    }
    return out;
  }

  /// `together` (Send): the ranks of the role send at the same time and share links. Otherwise
  /// (Put) each transfer has its path to itself. A `reply` costs as much as to its slowest
  /// receiver.
  Entry transfer(Id r, Id o, Id peer, bool together, bool reply) {
    const std::int64_t bytes = linked.roles[r].ops[o].bytes;
    const auto [it, fresh] = known_transfers.try_emplace({r, peer, bytes, together, reply});
    if (!fresh) return it->second;
    const auto n = static_cast<Id>(role(r).ranks.size());
    const auto peers = static_cast<Id>(role(peer).ranks.size());
    std::vector<double> seconds(n, 0.0), links(cluster.links().size(), 0.0), one;
    Contention contention(cluster, slow);
    if (together) {
      for (Id i = 0; i < n; ++i)
        contention.add(device(r, i), device(peer, i % peers), static_cast<double>(bytes));
      contention.finish(seconds);
      for (double& one : seconds) one += cluster.library().launch.value;
      contention.clear(1, &links);
      for (Id i = 0; i < n; ++i)
        if (const auto measured = measured_transfer(device(r, i), device(peer, i % peers), bytes))
          seconds[i] = *measured;
    } else {
      for (Id i = 0; i < n; ++i)
        for (Id k = 0; k < (reply ? peers : 1); ++k) {
          const Id to = device(peer, reply ? k : i % peers);
          seconds[i] = std::max(seconds[i], alone(device(r, i), to, bytes));
          contention.add(device(r, i), to, static_cast<double>(bytes));
          contention.finish(one);
          contention.clear(reply ? 1.0 / peers : 1, &links);
        }
    }
    return it->second = {add(std::move(seconds)), add({static_cast<double>(bytes)}),
                         add_links(links)};
  }

  std::optional<double> measured_collective(program::Move move, std::span<const Id> devices,
                                            std::int64_t bytes) const {
    const cluster::Device& first = cluster.devices()[devices[0]];
    const bool alike = std::ranges::all_of(devices, [&](Id d) {
      return cluster.devices()[d].node == first.node && cluster.devices()[d].kind == first.kind;
    });
    if (!alike || !local_costs->profiled(devices[0]) || devices.size() < 2) return std::nullopt;
    return profile->collective_seconds(move, static_cast<int>(devices.size()), bytes,
                                       cluster.kinds()[first.kind].name);
  }
  std::optional<double> measured_transfer(Id from, Id to, std::int64_t bytes) const {
    const cluster::Device &a = cluster.devices()[from], &b = cluster.devices()[to];
    if (!local_costs->profiled(from) || a.node != b.node || a.kind != b.kind) return std::nullopt;
    return profile->transfer_seconds(bytes, cluster.kinds()[a.kind].name);
  }
  double alone(Id from, Id to, std::int64_t bytes) const {
    if (const auto measured = measured_transfer(from, to, bytes)) return *measured;
    double worst = 0;
    const cluster::Path& way = cluster.way(from, to, static_cast<double>(bytes));
    for (const Id link : way.links) worst = std::max(worst, seconds_on(cluster, link, bytes, slow));
    return cluster.library().launch.value + way.latency.value + worst;
  }

  /// A pass beside collectives, whose kernels take multiprocessors from it, loses a share of their
  /// seconds (where they work in every n-th step: of an n-th), and at most its own seconds.
  void slow_passes() {
    if (!model.software.library.on_device) return;
    std::map<std::vector<std::uint32_t>, std::uint32_t> known;  // role, rows of pass, collectives
    for (Id r = 0; r < entries.size(); ++r)
      for (const Beside& beside : passes_beside(role(r))) {
        std::vector<std::uint32_t> key = {r, entries[r][beside.pass].seconds};
        for (const Id c : beside.collectives)
          key.insert(key.end(),
                     {entries[r][c].seconds, static_cast<std::uint32_t>(role(r).ops[c].when.every),
                      std::get<program::Collective>(role(r).ops[c].work).channel});
        const auto [it, fresh] = known.try_emplace(std::move(key));
        if (fresh) it->second = add(slowed(r, beside));
        entries[r][beside.pass].seconds = it->second;
      }
  }
  std::vector<double> slowed(Id r, const Beside& beside) {
    std::vector<double> row(role(r).ranks.size());
    for (Id i = 0; i < row.size(); ++i) {
      const double own = seconds(r, beside.pass, i);
      double lost = 0;
      for (const Id c : beside.collectives)
        lost += cluster.kind_of(device(r, i)).collective_share * channels(r, c) * seconds(r, c, i) /
                role(r).ops[c].when.every;
      row[i] = own + std::min(own, lost);
    }
    return row;
  }
  double channels(Id r, Id o) {
    const Id channel = std::get<program::Collective>(role(r).ops[o].work).channel;
    const auto [it, fresh] = channels_of.try_emplace({r, channel}, 1.0);
    if (fresh) it->second = channels_needed(linked.program, r, channel, cluster, device_of);
    return it->second;
  }
  std::map<std::pair<Id, Id>, double> channels_of = {};         // by role and channel
  std::map<std::tuple<Id, Id, Id>, double> known_leaving = {};  // by role, op and place
  double seconds(Id r, Id o, Id place) const {
    const std::vector<double>& row = rows[entries[r][o].seconds];
    return row[row.size() == 1 ? 0 : place];
  }

  void build() {
    const program::Program& p = linked.program;
    device_of = devices_of_ranks(p, cluster, std::move(device_of));
    local_costs.emplace(linked, model, cluster, device_of, optimizer, profile);
    zero();
    for (const program::Role& who : p.roles) entries.emplace_back(who.ops.size());
    passes.resize(p.roles.size());
    for (const auto event : linked.events) {
      const link::RoleOp a = event[0];
      const program::Work& work = role(a.role).ops[a.op].work;
      if (std::holds_alternative<program::Collective>(work)) {
        collective(event);
      } else if (event.size() == 2) {
        const bool a_sends = std::holds_alternative<program::Send>(work);
        const link::RoleOp from = a_sends ? a : event[1], to = a_sends ? event[1] : a;
        const Entry sent = transfer(from.role, from.op, to.role, true, false);
        entries[from.role][from.op] = sent;
        entries[to.role][to.op] = {sent.seconds, 0, 0};
      } else if (const auto* put = std::get_if<program::Put>(&work)) {
        entries[a.role][a.op] = transfer(a.role, a.op, put->peer, false, put->reply != none);
      } else if (!std::holds_alternative<program::Take>(work)) {
        entries[a.role][a.op] = local(a.role, a.op);
      }
    }
    slow_passes();
  }
};

Costs::Costs(const link::OrderedProgram& linked, const model::ModelSpec& model,
             const cluster::Cluster& cluster, const Conditions& on)
    : impl_(std::make_unique<Impl>(Impl{linked,
                                        model,
                                        cluster,
                                        {on.rank_to_device.begin(), on.rank_to_device.end()},
                                        on.optimizer,
                                        on.profile,
                                        {on.slow.begin(), on.slow.end()},
                                        on.prices,
                                        on.pace})) {
  impl_->build();
}
Costs::Costs(Costs&&) noexcept = default;
Costs::~Costs() = default;

std::span<const double> Costs::seconds(Id role, Id op) const {
  return impl_->rows[impl_->entries[role][op].seconds];
}
double Costs::seconds(Id role, Id op, Id place) const { return impl_->seconds(role, op, place); }
std::span<const double> Costs::bytes_sent(Id role, Id op) const {
  return impl_->rows[impl_->entries[role][op].sent];
}
double Costs::transfer_seconds(Id from_rank, Id to_rank, std::int64_t bytes) const {
  return impl_->alone(impl_->device_of[from_rank], impl_->device_of[to_rank], bytes);
}
std::optional<double> Costs::measured_collective(program::Move move, std::span<const Id> devices,
                                                 std::int64_t bytes) const {
  return impl_->measured_collective(move, devices, bytes);
}
std::optional<double> Costs::measured_transfer(Id from, Id to, std::int64_t bytes) const {
  return impl_->measured_transfer(from, to, bytes);
}
double Costs::leaving_seconds(Id role, Id op, Id place) const {
  const auto& put = std::get<program::Put>(impl_->role(role).ops[op].work);
  const auto [it, fresh] = impl_->known_leaving.try_emplace({role, op, place}, 0.0);
  if (!fresh) return it->second;
  std::vector<Id> receivers;
  for (Id k = 0; k < impl_->role(put.peer).ranks.size(); ++k)
    receivers.push_back(impl_->device(put.peer, k));
  return it->second = costs::leaving_seconds(impl_->cluster, impl_->device(role, place), receivers,
                                             impl_->linked.roles[role].ops[op].bytes, impl_->slow);
}
program::Algorithm Costs::algorithm(Id role, Id op) const {
  return impl_->entries[role][op].algorithm;
}
std::vector<double> Costs::link_bytes() const {
  std::vector<double> out(impl_->cluster.links().size(), 0.0);
  for (Id r = 0; r < impl_->entries.size(); ++r)
    for (Id o = 0; o < impl_->entries[r].size(); ++o)
      if (const program::When& when = impl_->role(r).ops[o].when; when.until == 0)
        for (const auto& [link, bytes] : impl_->link_rows[impl_->entries[r][o].links])
          out[link] += bytes / when.every;
  return out;
}
bool Costs::calibrated() const { return impl_->local_costs->calibrated(); }
std::span<const Id> Costs::rank_to_device() const { return impl_->device_of; }
std::size_t Costs::classes() const {
  return impl_->known.size() + impl_->known_collectives.size() + impl_->known_transfers.size();
}

}  // namespace rehearse::costs
