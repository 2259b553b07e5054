// What the events of a fault trace mean for a run of weeks: incidents in order of time, each with
// the nodes of the job that it strikes.
#pragma once
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "engine/faults/event.h"
#include "engine/goodput/setting.h"

namespace rehearse::goodput {

enum class Strike : std::uint8_t {
  loses,     // the nodes die
  stops,     // processes end or hang; the nodes are good
  stalls,    // steps stand still for `lasts`, if the run does not notice before
  slows,     // steps take `factor` times as long for `lasts`
  drags,     // a disk's reads and writes take `factor` times as long for `lasts`
  corrupts,  // numbers are wrong until somebody notices
  returns,   // nodes come back
  spoils,    // the newest checkpoint cannot be read
  blocks     // checkpoints are not complete before `lasts` is over
};

struct Incident {
  Ticks at = 0;
  Strike strike = Strike::stops;
  std::vector<Id> slots = {};
  Ticks detection = -1;  // -1: not stated
  Ticks lasts = 0;       // of a loss: until the nodes return; 0: not known
  double factor = 1;
};

/// Time until a failure is noticed.
Ticks detection_of(const Setting& setting, const Incident& incident);
/// Whether a stall is over before the run notices: steps go on where they stood.
bool passes_unnoticed(const Setting& setting, const Incident& incident);

/// Where the targets of events are in the job.
struct Slots {
  std::vector<Id> of_rank = {};   // by rank
  std::map<Id, Id> of_node = {};  // nodes of the cluster that the job uses
  std::map<std::string, Id> of_device = {};
};

struct Incidents {
  std::vector<Incident> all = {};  // in order of time
  int elsewhere = 0;               // events on nodes that the job does not use
};

/// How many times as long steps take under a link_slow or a packet_loss; at least 1.
using LinkPrice = std::function<double(const faults::Event&)>;

/// How many times as long steps take once the ranks on these slots, which compute so many times as
/// long, have handed samples to others (recovery.slow_rank); at most that factor.
using Balanced = std::function<double(const std::vector<Id>& slots, double factor)>;
/// Slow steps until real runs see that a rank is slow: two whole windows of 20, and half a one.
constexpr int steps_until_balanced = 50;

/// Events of one cause at one time are one incident. An event keyed by a step strikes when the
/// undisturbed run would begin that step.
Incidents incidents_of(const faults::Trace& trace, const Slots& slots, Ticks step,
                       const LinkPrice& price, const Balanced& balanced = {});

/// Whether an incident ends the step, so that the run has to recover.
constexpr bool interrupts(Strike strike) {
  return strike == Strike::loses || strike == Strike::stops;
}

}  // namespace rehearse::goodput
