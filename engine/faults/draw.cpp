#include "engine/faults/draw.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/base/errors.h"
#include "engine/faults/trace_file.h"

namespace rehearse::faults {
namespace {

constexpr double day = 86400;

/// What a draw of one cause is for. Each purpose has draws of its own.
enum class Purpose : std::uint64_t { gap, where, transient, repair, lasts };

RandomKey key_of(std::uint64_t seed, std::size_t cause, Purpose what, std::uint64_t part) {
  return random_key(seed, Draw::failure, 8 * cause + static_cast<std::uint64_t>(what), part);
}

Seconds milliseconds(double seconds) { return Seconds(std::round(seconds * 1000) / 1000); }

/// One incident before it becomes events: when, and in which domain.
struct Incident {
  double at = 0;
  std::uint32_t domain = 0, number = 0;
};

/// Calls `found` for each incident of a cause.
template <class F>
void each_incident(const Cause& cause, std::size_t index, double incidents_per_day,
                   std::uint32_t domains, double seconds, std::uint64_t seed, F found) {
  if (incidents_per_day <= 0) return;
  if (cause.shape == 1) {
    // Independent exponential processes together are one process; any domain may be the one.
    const RandomKey gaps = key_of(seed, index, Purpose::gap, 0),
                    where = key_of(seed, index, Purpose::where, 0);
    const double mean = day / incidents_per_day;
    double at = 0;
    for (std::uint32_t n = 0;; ++n) {
      at -= mean * std::log(random_uniform(gaps, n));
      if (at >= seconds) return;
      const auto domain = static_cast<std::uint32_t>(random_uniform(where, n) * domains);
      found(Incident{at, std::min(domain, domains - 1), n});
    }
  }
  // Every domain is a renewal process that begins anew with the run.
  const double mean = day / incidents_per_day * domains;
  const double scale = mean / std::tgamma(1 + 1 / cause.shape);
  std::uint32_t number = 0;
  for (std::uint32_t domain = 0; domain < domains; ++domain) {
    const RandomKey gaps = key_of(seed, index, Purpose::gap, domain + std::uint64_t{1});
    double at = 0;
    for (std::uint32_t n = 0;; ++n) {
      at += scale * std::pow(-std::log(random_uniform(gaps, n)), 1 / cause.shape);
      if (at >= seconds) break;
      found(Incident{at, domain, number++});
    }
  }
}

}  // namespace

Drawer::Drawer(const FailureModel& model, int nodes, double rate)
    : model_(model), nodes_(nodes), rate_(rate), repair_(model.repair_sigma) {}

Trace Drawer::operator()(Seconds duration, std::uint64_t seed) const {
  Trace trace{.model = model_.name, .seed = seed, .duration = duration};
  for (std::size_t c = 0; c < model_.causes.size(); ++c) {
    const Cause& cause = model_.causes[c];
    const int domain_nodes = std::min(cause.nodes, nodes_);
    const auto domains = static_cast<std::uint32_t>((nodes_ + domain_nodes - 1) / domain_nodes);
    const RandomKey transient = key_of(seed, c, Purpose::transient, 0),
                    repair = key_of(seed, c, Purpose::repair, 0),
                    lasts = key_of(seed, c, Purpose::lasts, 0);
    const auto add = [&](const Incident& i) {
      Event e{.kind = cause.kind,
              .at = milliseconds(i.at),
              .factor = cause.kind == Kind::slows ? cause.factor : 1,
              .detection = cause.detection,
              .cause = cause.name};
      if (e.kind == Kind::freezes || e.kind == Kind::slows)
        e.duration = milliseconds(-cause.lasts.value * std::log(random_uniform(lasts, i.number)));
      const bool restart =
          e.kind == Kind::node_dies && random_uniform(transient, i.number) < cause.transient;
      if (restart) e.kind = Kind::rank_dies;
      if (e.kind == Kind::node_dies)
        e.duration = milliseconds(model_.repair.value * repair_(repair, i.number));
      const int first = static_cast<int>(i.domain) * domain_nodes;
      const int end = restart ? first + 1 : std::min(nodes_, first + domain_nodes);
      for (int node = first; node < end; ++node) {
        e.node = static_cast<Id>(node);
        trace.events.push_back(e);
      }
      if (trace.events.size() > most_events)
        throw InputError(
            fmt::format("failure model \"{}\": more than {} events in {} on {} nodes; a "
                        "shorter time or lower rates have fewer",
                        model_.name, most_events, to_text(duration), nodes_));
    };
    each_incident(cause, c, rate_ * per_day(cause, nodes_), domains, duration.value, seed, add);
  }
  std::stable_sort(trace.events.begin(), trace.events.end(),
                   [](const Event& a, const Event& b) { return *a.at < *b.at; });
  return trace;
}

}  // namespace rehearse::faults
