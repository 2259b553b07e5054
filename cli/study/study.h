// One job, predicted: compiled, linked, checked against memory, played over several seeds. What
// `simulate`, each row of `compare` and the prediction of a real run are made of.
#pragma once
#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/study/collectives_used.h"
#include "cli/study/subject.h"
#include "engine/execution/metrics.h"
#include "engine/job/job.h"
#include "engine/planner/fit.h"

namespace rehearse::cli {

class Teller;

/// analytic: the dry run, nothing contends. fluid, chunk: SimGrid (sim/executor.h).
enum class Level : std::uint8_t { analytic, fluid, chunk };
constexpr auto spellings(Level) {
  return std::to_array<const char*>({"analytic", "fluid", "chunk"});
}

struct StudyOptions {
  Level level = Level::fluid;
  int seeds = 5;                // as many runs, unless nothing in [disturb] is random: then one
  execution::Steps steps = {};  // of each run
  std::string trace = {};    // Chrome trace of the first seed's first two steady steps; empty: none
  Teller* teller = nullptr;  // none: says nothing
};

struct Study {
  std::string method = {};
  Subject subject = {};
  int world_size = 0, servers = 0;
  std::vector<program::Axis> mesh = {};
  std::vector<std::string> devices = {};  // by rank
  std::vector<std::uint64_t> seeds = {};
  Level level = Level::fluid;
  bool calibrated = false;
  execution::Summary summary = {};
  std::vector<CollectivesUsed> collectives = {};
  bool automatic = true;  // algorithms of collectives were chosen, not stated
  std::vector<planner::DeviceNeed> memory = {};
  std::vector<std::string> idle_unknown = {};  // kinds whose idle power counts as nothing
  std::uint64_t program_hash = 0, cluster_hash = 0;
  std::vector<std::string> warnings = {};
  /// Wall clock of this machine, seconds: never part of to_json.
  double compile_s = 0, link_s = 0, costs_s = 0, run_s = 0;
};

/// Throws InputError when the job cannot be compiled, does not fit into memory or gives numbers
/// that are not finite.
Study study(const job::Job& job, const StudyOptions& options);

/// The JSON of `simulate`, documented in docs/cli.md. Equal job, seeds and fidelity give equal
/// bytes.
nlohmann::ordered_json to_json(const Study& study);
nlohmann::ordered_json timings_json(const Study& study);

/// "0.812 s +- 0.004 (95%, 5 seeds)".
std::string step_time_text(const Study& study);
/// "31.2 kJ a step, 975 J a rank, 61 J a sample"; empty: not known.
std::string energy_text(const Study& study);
/// "pp 4 x dp 8"; axes of size 1 left out.
std::string mesh_text(const Study& study);

}  // namespace rehearse::cli
