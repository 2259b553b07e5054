// Judges how a trial has ended.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "cli/chaos/trial_run.h"

namespace rehearse::cli {

/// survived: the run, or where nobody could start it again a second run that went on, ended with
/// status 0, all steps once in its metrics, and the weights of the undisturbed run. refused: it
/// ended in time with another status, and its messages name the rank, file or cause. wrong:
/// anything else.
enum class Verdict : std::uint8_t { survived, refused, wrong };
constexpr auto spellings(Verdict) {
  return std::to_array<const char*>({"survived", "refused", "wrong"});
}

struct Judgement {
  Verdict verdict = Verdict::wrong;
  std::string why = {};                 // of refused: what it said; of wrong: what is wrong
  std::vector<std::string> notes = {};  // what else is worth knowing
};

/// Losses that may differ by so much from the undisturbed run's where bits may differ: a part.
inline constexpr double loss_tolerance = 0.1;

Judgement judge(Mishap kind, const Draws& draws, const TrialJob& subject,
                const Reference& reference, const TrialEnd& end);

}  // namespace rehearse::cli
