// The walk over weeks: a run trains until something breaks, notices it, recovers and goes on, until
// its duration is over. It goes from one incident to the next; steps between them are counted, not
// played. The parts of the time add up to the duration exactly.
#pragma once
#include <array>
#include <cstdint>
#include <span>

#include "engine/goodput/incidents.h"
#include "engine/goodput/recovery_policy.h"
#include "engine/goodput/setting.h"

namespace rehearse::goodput {

/// Where time goes that trains nothing new.
enum class Loss : std::uint8_t {
  detection,   // from a failure until the run notices
  restart,     // processes start, state is read or copied
  rework,      // steps that are done again, or were wrong
  checkpoint,  // steps wait for a checkpoint
  degraded,    // steps that take longer than undisturbed ones, or train fewer samples
  replanning,  // a new plan, new communicators
  waiting      // for a node: a spare is put in, or none is left
};
constexpr auto spellings(Loss) {
  return std::to_array<const char*>(
      {"detection", "restart", "rework", "checkpoint", "degraded", "replanning", "waiting"});
}
constexpr std::size_t losses = spellings(Loss{}).size();

struct Outcome {
  Ticks duration = 0;
  /// What the steps that count, and the one in flight at the end, take in the undisturbed run.
  Ticks productive = 0;
  std::array<Ticks, losses> lost = {};
  int interruptions = 0;
  std::int64_t steps = 0, lost_steps = 0, checkpoints = 0;
  int reads = 0;              // recoveries that went back to a checkpoint
  int destroyed = 0;          // interruptions that took the newest checkpoints with them
  int undetected = 0;         // corruptions that nobody has noticed at the end
  bool ends_waiting = false;  // the run stood still for lack of nodes when its time was over
  int least_replicas = 0;     // with which it ever trained

  double goodput() const {
    return duration > 0 ? static_cast<double>(productive) / static_cast<double>(duration) : 0;
  }
};

/// `incidents` in order of time; those after the end do not count.
Outcome walk(const Setting& setting, const Policy& policy, std::span<const Incident> incidents);

}  // namespace rehearse::goodput
