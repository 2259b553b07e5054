// One thing that breaks, and a list of them. A trace says what breaks, where and when; whoever
// replays it decides what that means. The same trace can be replayed by the long run (goodput/), by
// a simulation and by real ranks, because an event is keyed either by time or by (step, phase).
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/id.h"
#include "engine/base/units.h"

namespace rehearse::faults {

enum class Kind : std::uint8_t {
  rank_dies,             // its process ends; the device and the node are good
  device_dies,           // until its node is replaced
  node_dies,             // with all its processes, its memory and its disk
  node_returns,          // repaired, empty
  freezes,               // stands still for `duration`
  hangs,                 // an op does not return for `duration`, while heartbeats go on
  slows,                 // local ops take `factor` times as long for `duration`
  link_down,             // for `duration`, or until link_up
  link_up,               //
  link_slow,             // transfers take `factor` times as long for `duration`
  packet_loss,           // `factor` is the part of the packets that is lost
  partition,             // `nodes` cannot reach the others for `duration`
  disk_full,             // no write succeeds for `duration`
  disk_slow,             // reads and writes take `factor` times as long
  checkpoint_truncated,  // the part that a rank wrote last is too short
  checkpoint_flipped,    // one bit of it is wrong
  wrong_numbers          // a computation is silently wrong until somebody notices
};
constexpr auto spellings(Kind) {
  return std::to_array<const char*>(
      {"rank_dies", "device_dies", "node_dies", "node_returns", "freezes", "hangs", "slows",
       "link_down", "link_up", "link_slow", "packet_loss", "partition", "disk_full", "disk_slow",
       "checkpoint_truncated", "checkpoint_flipped", "wrong_numbers"});
}

/// Where in a step an event strikes that is keyed by a step. exchange: while gradients are summed.
/// save: while a checkpoint is written. recovery: while the run recovers from an earlier event.
enum class Phase : std::uint8_t { begin, forward, backward, exchange, update, save, recovery };
constexpr auto spellings(Phase) {
  return std::to_array<const char*>(
      {"begin", "forward", "backward", "exchange", "update", "save", "recovery"});
}

struct Event {
  Kind kind = Kind::rank_dies;
  // The target; which members count depends on the kind (takes).
  Id rank = none;
  Id node = none;                  // of rank_dies and the like: the lowest rank of this node
  std::string device = {};         // a device of the cluster: "node0/gpu1"
  std::string link = {};           // a directed link of the cluster
  std::vector<Id> nodes = {};      // of a partition: one of its sides
  std::optional<Seconds> at = {};  // since the run began; none: keyed by step and phase
  std::int64_t step = 0;
  Phase phase = Phase::begin;
  Seconds duration = {};   // 0: for good. Of a death: until the repaired node returns
  double factor = 1;       // kinds above; 1 where it means nothing
  Seconds detection = {};  // until the run notices; 0: as long as its own detection takes
  std::string cause = {};  // of the failure model that drew the event
  friend bool operator==(const Event&, const Event&) = default;
};

struct Trace {
  std::string cluster = {};  // for which it was drawn; empty: not stated
  std::string model = {};    // the failure model that it was drawn from; empty: none
  std::uint64_t seed = 0;    // of that draw
  Seconds duration = {};     // that it covers; 0: not stated
  // Of that model, for runs that state neither.
  std::optional<int> spares = {};
  std::optional<Seconds> replacement = {};
  std::vector<Event> events = {};
  friend bool operator==(const Trace&, const Trace&) = default;
};

/// The targets that a kind can have, of which an event states exactly one.
struct Targets {
  bool rank = false, node = false, device = false, link = false, nodes = false;
  bool nothing = false;  // no target at all: the shared disk
};
Targets takes(Kind kind);
/// Whether `factor` and `duration` mean something for the kind, and whether it must state a factor.
bool takes_factor(Kind kind);
bool needs_factor(Kind kind);
bool takes_duration(Kind kind);
/// "link_slow node0/nic0>fabric x4 for 2 s".
std::string to_text(const Event& event);

}  // namespace rehearse::faults
