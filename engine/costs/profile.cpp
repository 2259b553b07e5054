#include "engine/costs/profile.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "engine/base/errors.h"
#include "engine/base/names.h"

namespace rehearse::costs {
namespace {

using Point = std::pair<double, double>;

/// Linear between points (x, y), proportional to x outside them; `flat_below`: constant below the
/// first. nullopt without points.
std::optional<double> interpolate(std::vector<Point> points, double x, bool flat_below) {
  if (points.empty()) return std::nullopt;
  std::sort(points.begin(), points.end());
  const Point first = points.front(), last = points.back();
  if (x <= first.first) {
    if (flat_below || first.first == 0) return first.second;
    return first.second * x / first.first;
  }
  if (x >= last.first) return last.first == 0 ? last.second : last.second * x / last.first;
  auto hi = std::upper_bound(points.begin(), points.end(), Point{x, HUGE_VAL});
  auto lo = hi - 1;
  if (hi == points.end() || hi->first == lo->first) return lo->second;
  return lo->second + (hi->second - lo->second) * (x - lo->first) / (hi->first - lo->first);
}

/// The entries that `same` accepts: those of this kind of device, or if there are none, those
/// without a kind.
template <class T, class Same>
std::vector<const T*> entries_of(const std::vector<T>& all, std::string_view kind, Same same) {
  std::vector<const T*> own, general;
  for (const T& entry : all)
    if (same(entry)) {
      if (entry.device_kind == kind)
        own.push_back(&entry);
      else if (entry.device_kind.empty())
        general.push_back(&entry);
    }
  return own.empty() ? general : own;
}

// key: what an entry measures; result: the numbers measured; what: the key as text.
auto key(const SegmentTime& s) {
  return std::tuple(s.device_kind, s.model, s.kind, s.pass, s.samples, s.seq_len, s.tp, s.dtype);
}
auto key(const UpdateTime& u) { return std::tuple(u.device_kind, u.optimizer, u.dtype); }
auto key(const KernelRate& k) { return std::tuple(k.device_kind, k.kind); }
auto key(const CollectiveTime& c) { return std::tuple(c.device_kind, c.move, c.members, c.bytes); }
auto key(const TransferTime& t) { return std::tuple(t.device_kind, t.bytes); }
auto key(const PairTime& t) { return std::tuple(t.from, t.to); }
auto key(const tensors::LayerVariance& v) { return std::tuple(v.model, v.segment); }

auto result(const SegmentTime& s) { return std::tuple(s.seconds); }
auto result(const UpdateTime& u) { return std::tuple(u.seconds_per_element, u.launch); }
auto result(const KernelRate& k) { return std::tuple(k.bytes_per_second, k.launch); }
auto result(const CollectiveTime& c) { return std::tuple(c.seconds); }
auto result(const TransferTime& t) { return std::tuple(t.seconds); }
auto result(const PairTime& t) {
  return std::tuple(t.latency, t.latency_spread, t.bandwidth, t.bandwidth_spread);
}
auto result(const tensors::LayerVariance& v) {
  return std::tuple(v.elements, v.observed, v.observed_steps, v.total, v.per_element,
                    v.square_norm);
}

std::string on(const std::string& kind) { return kind.empty() ? "" : " on " + kind; }
std::string what(const SegmentTime& s) {
  return fmt::format("{} {} of {}, {} samples of {} tokens, tp {}, {}{}", name_of(s.kind),
                     name_of(s.pass), s.model, s.samples, s.seq_len, s.tp, name_of(s.dtype),
                     on(s.device_kind));
}
std::string what(const UpdateTime& u) {
  return fmt::format("{} update in {}{}", name_of(u.optimizer), name_of(u.dtype),
                     on(u.device_kind));
}
std::string what(const KernelRate& k) {
  return fmt::format("kernel {}{}", name_of(k.kind), on(k.device_kind));
}
std::string what(const CollectiveTime& c) {
  return fmt::format("{} of {} bytes among {}{}", name_of(c.move), c.bytes, c.members,
                     on(c.device_kind));
}
std::string what(const TransferTime& t) {
  return fmt::format("transfer of {} bytes{}", t.bytes, on(t.device_kind));
}
std::string what(const PairTime& t) { return fmt::format("pair {} to {}", t.from, t.to); }
std::string what(const tensors::LayerVariance& v) {
  return fmt::format("variance of segment {} of {}", v.segment, v.model);
}

struct Merging {
  const std::string &a_name, &b_name;
  [[noreturn]] void contradiction(const std::string& text) const {
    throw InputError(fmt::format("{} and {} are not one profile: {}", a_name, b_name, text));
  }
  template <class T>
  std::vector<T> operator()(const std::vector<T>& a, const std::vector<T>& b) const {
    std::map<decltype(key(a[0])), const T*> known;
    for (const T& entry : a) known.emplace(key(entry), &entry);
    std::vector<T> out = a;
    for (const T& entry : b) {
      const auto it = known.find(key(entry));
      if (it == known.end())
        out.push_back(entry);
      else if (result(*it->second) != result(entry))
        contradiction(fmt::format("each measured {}, with different results", what(entry)));
    }
    return out;
  }
};

bool timed(const Profile& p) {
  return !p.segments.empty() || !p.updates.empty() || !p.kernels.empty() ||
         !p.collectives.empty() || !p.transfers.empty();
}

std::set<std::string> kinds_of(const Profile& p) {
  std::set<std::string> out;
  const auto add = [&](const auto& entries) {
    for (const auto& entry : entries) out.insert(entry.device_kind);
  };
  add(p.segments), add(p.updates), add(p.kernels), add(p.collectives), add(p.transfers);
  return out;
}

}  // namespace

bool Profile::covers(std::string_view device_kind) const {
  const std::set<std::string> kinds = kinds_of(*this);
  return kinds.count("") > 0 || kinds.count(std::string(device_kind)) > 0;
}

std::optional<double> Profile::segment_seconds(const std::string& model, model::SegmentKind kind,
                                               program::Pass pass, int samples, int seq_len, int tp,
                                               program::DType dtype,
                                               std::string_view device_kind) const {
  std::vector<Point> points;
  for (const SegmentTime* s : entries_of(segments, device_kind, [&](const SegmentTime& s) {
         return s.model == model && s.kind == kind && s.pass == pass && s.tp == tp &&
                s.dtype == dtype;
       }))
    points.emplace_back(static_cast<double>(s->samples) * s->seq_len, s->seconds);
  return interpolate(std::move(points), static_cast<double>(samples) * seq_len, false);
}

double bytes_of_update(plan::Optimizer optimizer, program::DType dtype) {
  const double weight = static_cast<double>(size_of(dtype));
  const int states =
      (optimizer == plan::Optimizer::adamw ? 2 : 1) + (dtype == program::DType::f32 ? 0 : 1);
  return weight + 2 * weight + states * 8;
}

std::optional<double> Profile::update_seconds(plan::Optimizer optimizer, program::DType dtype,
                                              std::int64_t bytes,
                                              std::string_view device_kind) const {
  for (const UpdateTime* u : entries_of(updates, device_kind, [&](const UpdateTime& u) {
         return u.optimizer == optimizer && u.dtype == dtype;
       }))
    return u->launch +
           u->seconds_per_element * static_cast<double>(bytes) / bytes_of_update(optimizer, dtype);
  return std::nullopt;
}

std::optional<double> Profile::kernel_seconds(program::KernelKind kind, std::int64_t bytes,
                                              std::string_view device_kind) const {
  for (const KernelRate* k : entries_of(kernels, device_kind, [&](const KernelRate& k) {
         return k.kind == kind && k.bytes_per_second > 0;
       }))
    return k->launch + static_cast<double>(bytes) / k->bytes_per_second;
  return std::nullopt;
}

std::optional<double> Profile::collective_seconds(program::Move move, int members,
                                                  std::int64_t bytes,
                                                  std::string_view device_kind) const {
  std::vector<Point> points;
  for (const CollectiveTime* c : entries_of(collectives, device_kind, [&](const CollectiveTime& c) {
         return c.move == move && c.members == members;
       }))
    points.emplace_back(static_cast<double>(c->bytes), c->seconds);
  return interpolate(std::move(points), static_cast<double>(bytes), true);
}

std::optional<double> Profile::transfer_seconds(std::int64_t bytes,
                                                std::string_view device_kind) const {
  std::vector<Point> points;
  for (const TransferTime* t :
       entries_of(transfers, device_kind, [](const TransferTime&) { return true; }))
    points.emplace_back(static_cast<double>(t->bytes), t->seconds);
  return interpolate(std::move(points), static_cast<double>(bytes), true);
}

bool Profile::communicates() const {
  return !collectives.empty() || !transfers.empty() || !pairs.empty();
}

const PairTime* Profile::pair(Id from, Id to) const {
  const auto it = std::lower_bound(
      pairs.begin(), pairs.end(), std::pair(from, to),
      [](const PairTime& t, std::pair<Id, Id> ends) { return std::pair(t.from, t.to) < ends; });
  return it != pairs.end() && it->from == from && it->to == to ? &*it : nullptr;
}

std::string measured_twice(const Profile& profile) {
  std::string twice;
  const auto look = [&](const auto& entries) {
    std::set<decltype(key(entries[0]))> seen;
    for (const auto& entry : entries)
      if (twice.empty() && !seen.insert(key(entry)).second) twice = what(entry);
  };
  look(profile.segments), look(profile.updates), look(profile.kernels), look(profile.collectives);
  look(profile.transfers), look(profile.pairs), look(profile.variances);
  return twice;
}

Profile merge(const Profile& a, const Profile& b, const std::string& a_name,
              const std::string& b_name) {
  const Merging merged{a_name, b_name};
  if (a.cluster_hash != 0 && b.cluster_hash != 0 && a.cluster_hash != b.cluster_hash)
    merged.contradiction(
        fmt::format("their pairs are of two clusters, {} ({:016x}) and {} "
                    "({:016x})",
                    a.cluster, a.cluster_hash, b.cluster, b.cluster_hash));
  // `ranks` and `threads_per_rank` qualify times; in a profile without times they mean nothing.
  if (timed(a) && timed(b) && (a.ranks != b.ranks || a.threads_per_rank != b.threads_per_rank))
    merged.contradiction(fmt::format("{} ranks of {} threads were at work, and {} of {}", a.ranks,
                                     a.threads_per_rank, b.ranks, b.threads_per_rank));
  if (a.communicates() && b.communicates() && a.encrypted != b.encrypted)
    merged.contradiction("the connections of one were encrypted, those of the other were not");
  Profile out = timed(a) || !timed(b) ? a : b;
  if (out.host.empty()) out.host = a.host.empty() ? b.host : a.host;
  if (timed(a) && timed(b)) {
    if (a.host != b.host && !b.host.empty()) out.host = fmt::format("{}; {}", a.host, b.host);
    out.cores = std::max(a.cores, b.cores);
  }
  // cpu_seconds_per_byte is used only where ranks share cores; of two hosts, take the larger.
  out.simulated = a.simulated || b.simulated;
  out.encrypted = a.encrypted || b.encrypted;
  out.cpu_seconds_per_byte = std::max(a.cpu_seconds_per_byte, b.cpu_seconds_per_byte);
  const Profile& placed = a.cluster_hash != 0 ? a : b;
  out.cluster = placed.cluster;
  out.cluster_hash = placed.cluster_hash;
  out.segments = merged(a.segments, b.segments);
  out.updates = merged(a.updates, b.updates);
  out.kernels = merged(a.kernels, b.kernels);
  out.collectives = merged(a.collectives, b.collectives);
  out.transfers = merged(a.transfers, b.transfers);
  out.pairs = merged(a.pairs, b.pairs);
  out.variances = merged(a.variances, b.variances);
  std::sort(out.pairs.begin(), out.pairs.end(),
            [](const PairTime& x, const PairTime& y) { return key(x) < key(y); });
  return out;
}

Profile load_profile(const std::string& path, const cluster::Cluster& cluster) {
  Profile profile = load_profile(path);
  if (profile.cluster_hash != 0 && profile.cluster_hash != cluster.hash()) {
    const std::string here = fmt::format("this-machine:{}", std::max(1, profile.ranks));
    if (cluster.shared_cores() == 0 || profile.cluster_hash != cluster::load_cluster(here).hash())
      throw InputError(fmt::format(
          "cluster.profile: {} was measured on another cluster: on {} ({:016x}), the job's is {} "
          "({:016x}); measure again with rehearse profile, or name that cluster in cluster.name",
          path, profile.cluster, profile.cluster_hash, cluster.name(), cluster.hash()));
    profile.pairs.clear();
    profile.cluster = cluster.name();
    profile.cluster_hash = cluster.hash();
  }
  std::set<std::string> kinds = kinds_of(profile), present;
  for (Id d = 0; d < cluster.devices().size(); ++d) present.insert(cluster.kind_of(d).name);
  const bool any = kinds.empty() || std::any_of(present.begin(), present.end(),
                                                [&](auto& kind) { return profile.covers(kind); });
  if (!any)
    throw InputError(fmt::format(
        "cluster.profile: {} has times of {} only, and {} has none of them: its devices are {}",
        path, fmt::join(kinds, ", "), cluster.name(), fmt::join(present, ", ")));
  return profile;
}

}  // namespace rehearse::costs
