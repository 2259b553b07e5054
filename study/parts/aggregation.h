// One round of federated averaging in which the server learns the sum of weights only
// (engine/secure): its messages, its time on the cluster, and, when asked, a real round with a
// process for each client. `rehearse aggregate` prints it.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/units.h"
#include "engine/job/job.h"
#include "engine/secure/group.h"
#include "study/parts/aggregation_run.h"
#include "study/rehearse.h"

namespace rehearse::study {

struct AggregationQuestion {
  Fidelity fidelity = Fidelity::fluid;
  std::int64_t elements = 0;              // numbers of a client; 0: the model's parameters
  std::uint64_t seed = 0;                 // of the order of the ring, and of drawn numbers
  std::vector<std::string> leaving = {};  // "2" or "2:unmask": who leaves, and before which round
  std::vector<std::string> silent = {};   // the same of who falls silent without a word
  Seconds timeout = Seconds(600);         // for which the server waits for who is silent
  BytesPerSecond mask_rate = BytesPerSecond(secure::mask_rate);
  bool run = false;  // also really run the round
};

struct AggregationRound {
  std::int64_t messages = 0;
  std::int64_t up = 0, down = 0;  // bytes from and to all clients
  double seconds = 0;             // simulated, without the rounds before; with `waiting`
  double waiting = 0;             // for clients that are silent
};

struct Aggregation {
  std::string model = {}, cluster = {};
  Fidelity fidelity = Fidelity::fluid;
  secure::Settings settings = {};
  secure::Leaving leaving = {}, silent = {};  // who falls silent leaves, too
  Seconds timeout = {};
  std::vector<AggregationRound> rounds = {};
  double seconds = 0;
  std::int64_t bytes = 0, bytes_in_the_clear = 0;  // of all messages; without secure aggregation
  double error_bound = 0;                          // of the mean, for weights within the range
  std::optional<AggregationRun> run = {};
};

/// `job`: with method.secure = true. Throws InputError when too many clients leave.
Aggregation aggregate(const job::Job& job, const AggregationQuestion& question);

nlohmann::ordered_json to_json(const Aggregation& aggregation);
std::string describe(const Aggregation& aggregation);

}  // namespace rehearse::study
