#include "engine/faults/event.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "engine/base/names.h"

namespace rehearse::faults {

Targets takes(Kind kind) {
  switch (kind) {
    case Kind::rank_dies:
    case Kind::freezes:
    case Kind::hangs:
    case Kind::slows:
    case Kind::wrong_numbers:
      return {.rank = true, .node = true};
    case Kind::device_dies:
      return {.device = true};
    case Kind::node_dies:
    case Kind::node_returns:
      return {.node = true};
    case Kind::link_down:
    case Kind::link_up:
    case Kind::link_slow:
    case Kind::packet_loss:
      return {.link = true};
    case Kind::partition:
      return {.nodes = true};
    case Kind::disk_full:
      return {.rank = true, .node = true, .nothing = true};
    case Kind::disk_slow:
      return {.node = true, .nothing = true};
    case Kind::checkpoint_truncated:
    case Kind::checkpoint_flipped:
      return {.rank = true};
  }
  return {};
}

bool takes_factor(Kind kind) { return needs_factor(kind) || kind == Kind::wrong_numbers; }

bool needs_factor(Kind kind) {
  return kind == Kind::slows || kind == Kind::link_slow || kind == Kind::packet_loss ||
         kind == Kind::disk_slow;
}

bool takes_duration(Kind kind) {
  return kind != Kind::rank_dies && kind != Kind::node_returns && kind != Kind::link_up &&
         kind != Kind::checkpoint_truncated && kind != Kind::checkpoint_flipped &&
         kind != Kind::wrong_numbers;
}

std::string to_text(const Event& e) {
  std::string out(name_of(e.kind));
  if (e.rank != none) out += fmt::format(" rank {}", e.rank);
  if (e.node != none) out += fmt::format(" node {}", e.node);
  if (!e.device.empty()) out += " " + e.device;
  if (!e.link.empty()) out += " " + e.link;
  if (!e.nodes.empty()) out += fmt::format(" nodes {}", fmt::join(e.nodes, ", "));
  if (e.kind == Kind::packet_loss)
    out += fmt::format(" {:.4g}%", 100 * e.factor);
  else if (takes_factor(e.kind))
    out += fmt::format(" x{:.4g}", e.factor);
  if (e.duration.value > 0) out += " for " + rehearse::to_text(e.duration);
  return out;
}

}  // namespace rehearse::faults
