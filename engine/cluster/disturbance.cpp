#include "engine/cluster/disturbance.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <vector>

#include "engine/base/errors.h"
#include "engine/base/hints.h"

namespace rehearse::cluster {

Disturber::Disturber(const Disturbance& d, int world_size)
    : seed_(d.seed),
      compute_(d.compute_sigma),
      link_(d.link_sigma),
      persistent_(static_cast<std::size_t>(world_size), 1.0) {
  auto check = [](bool good, const char* key, double value, const char* constraint) {
    if (!good) throw InputError(fmt::format("disturb.{}: {}: {}", key, value, constraint));
  };
  check(d.compute_sigma >= 0 && d.compute_sigma <= most_jitter, "compute_jitter", d.compute_sigma,
        "must be from 0 to 5");
  check(d.link_sigma >= 0 && d.link_sigma <= most_jitter, "link_jitter", d.link_sigma,
        "must be from 0 to 5");
  check(d.straggler_probability >= 0 && d.straggler_probability <= 1, "straggler_probability",
        d.straggler_probability, "must be from 0 to 1");
  check(d.straggler_factor > 0, "straggler_factor", d.straggler_factor, "must be positive");
  const RandomKey key = random_key(d.seed, Draw::straggler, 0, 0);
  for (std::size_t r = 0; r < persistent_.size(); ++r)
    if (random_uniform(key, static_cast<std::uint32_t>(r)) < d.straggler_probability)
      persistent_[r] = d.straggler_factor;
  for (const Straggler& s : d.stragglers) {
    check(s.factor > 0, "stragglers.factor", s.factor, "must be positive");
    check(s.rank < persistent_.size(), "stragglers.rank", s.rank,
          fmt::format("ranks are 0 to {}", world_size - 1).c_str());
    persistent_[s.rank] *= s.factor;
  }
  for (double factor : persistent_) persistent_quiet_ = persistent_quiet_ && factor == 1;
  quiet_compute_ = persistent_quiet_ && d.compute_sigma == 0;
}

double Disturber::compute_factor(Id rank, int step, Id op) const {
  if (compute_.sigma() == 0) return persistent_[rank];
  return persistent_[rank] *
         compute_(random_key(seed_, Draw::compute, static_cast<std::uint64_t>(step), op), rank);
}

void Disturber::compute_factors(std::span<const Id> ranks, int step, Id op,
                                std::span<double> out) const {
  if (compute_.sigma() == 0) {
    for (std::size_t i = 0; i < ranks.size(); ++i) out[i] = persistent_[ranks[i]];
    return;
  }
  compute_.fill(random_key(seed_, Draw::compute, static_cast<std::uint64_t>(step), op), ranks, out);
  if (!persistent_quiet_)
    for (std::size_t i = 0; i < ranks.size(); ++i) out[i] *= persistent_[ranks[i]];
}

double Disturber::link_factor(Id rank, int step, Id op) const {
  if (link_.sigma() == 0) return 1;
  return link_(random_key(seed_, Draw::link, static_cast<std::uint64_t>(step), op), rank);
}

std::vector<double> rank_slowdowns(const Disturbance& disturbance, std::size_t world_size) {
  if (disturbance.stragglers.empty()) return {};
  std::vector<double> slow(world_size, 1.0);
  for (const Straggler& s : disturbance.stragglers)
    if (s.rank < world_size) slow[s.rank] *= s.factor;
  return slow;
}

std::vector<double> link_slowdowns(const Disturbance& disturbance, const Cluster& cluster) {
  std::vector<double> slow(cluster.links().size(), 1.0);
  for (const SlowLink& s : disturbance.slow_links) {
    if (!(s.factor > 0))
      throw InputError(
          fmt::format("slow link {}: its factor {} must be positive", s.link, s.factor));
    bool found = false;
    for (std::size_t i = 0; i < slow.size(); ++i)
      if (cluster.links()[i].name == s.link) slow[i] *= s.factor, found = true;
    if (found) continue;
    std::vector<std::string> names;
    for (const Link& link : cluster.links()) names.push_back(link.name);
    std::string hint = did_you_mean(s.link, names);
    if (hint.empty()) {
      constexpr std::size_t most_named = 6;
      const std::size_t more = names.size() - std::min(names.size(), most_named);
      names.resize(names.size() - more);
      hint = fmt::format("; it has {}{}", fmt::join(names, ", "),
                         more > 0 ? fmt::format(" and {} more", more) : "");
    }
    throw InputError(fmt::format("\"{}\": {} has no such link{}", s.link, cluster.name(), hint));
  }
  return slow;
}

}  // namespace rehearse::cluster
