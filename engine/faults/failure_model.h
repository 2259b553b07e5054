// A model of failures: causes with rates, read from faults/NAME.toml (docs/faults.md). Rates are
// incidents per 1000 nodes and day, as operators of clusters publish them.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/files/config.h"
#include "engine/base/units.h"
#include "engine/faults/event.h"

namespace rehearse::faults {

/// The nodes that one incident takes. leaf, rack: neighbouring nodes below one leaf switch, or in
/// one rack.
enum class Domain : std::uint8_t { node, leaf, rack };
constexpr auto spellings(Domain) { return std::to_array<const char*>({"node", "leaf", "rack"}); }

struct Cause {
  std::string name = {};
  Kind kind = Kind::node_dies;  // node_dies, rank_dies, freezes, slows or wrong_numbers
  double rate = 0;              // incidents per 1000 node-days
  /// Shape of the Weibull distribution of the time between two incidents of one domain. 1:
  /// exponential; below 1: a domain that has just failed, or is new, fails sooner.
  double shape = 1;
  double transient = 0;    // part of the incidents after which a restart of the process suffices
  Seconds detection = {};  // until the run notices
  Domain domain = Domain::node;
  int nodes = 1;  // of a domain
  /// The rate is multiplied by (nodes of the job / reference)^growth. 0: failures are independent,
  /// so the rate of a node does not depend on the size of the job.
  double growth = 0;
  double reference = 1;
  Seconds lasts = {};  // of freezes and slows
  double factor = 1;   // of slows
};

struct FailureModel {
  std::string name = {}, summary = {}, source = {};
  std::vector<Cause> causes = {};
  Seconds repair = {};       // mean time until a node that died returns
  double repair_sigma = 0;   // of the log-normal distribution of that time
  Seconds replacement = {};  // until a spare node has taken the place of a dead one
  int spares = 0;            // nodes that stand by
};

/// Loads a model by name (llama3-h100: faults/llama3-h100.toml) or by the path of a TOML file.
/// Throws InputError.
FailureModel load_model(const std::string& name_or_path);
/// Names of the models that ship with the program.
std::vector<std::string> known_models();
/// All keys that a model file can have. A test compares docs/faults.md with them.
std::vector<Config::Key> model_file_keys();

/// The same rates without correlation: every incident takes one node, and rates do not grow with
/// the size of a job.
FailureModel independent(FailureModel model);
/// Incidents per day of a cause in a job of so many nodes.
double per_day(const Cause& cause, int nodes);
/// The same of all causes, of those that end steps: without slows.
double interruptions_per_day(const FailureModel& model, int nodes);

}  // namespace rehearse::faults
