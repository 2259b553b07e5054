// The registry of training methods. A method is one file in strategies/: a pure function from
// (plan, model) to a program, and what it combines with. Registration happens in static objects,
// which is why engine/ is a CMake OBJECT library.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "engine/plan.h"
#include "engine/program.h"

namespace rehearse {

/// What a method combines with; everything else is an InputError. The compatibility matrix in the
/// docs is printed from these.
struct Combines {
  bool pp = false, tp = false;
  int max_zero = 0;
  bool interleave = false;  // virtual_stages > 1
  bool servers = false, staleness = false;
  bool recompute = true, clip = true, low_precision = true;
  bool shares = false;  // unlike numbers of samples on the dp ranks
  bool sparse = false;  // gradients of chosen entries; all go once a step, whatever is sharded
};

struct Strategy {
  std::string summary = {};
  std::string source = {};  // paper, section
  Combines combines = {};
  int pp = 1, tp = 1;  // of a job that does not say, or the largest smaller sizes that fit
  /// A gradient is taken at weights that lack the updates of so many steps, and of plan.staleness
  /// more. 0, no staleness: what is learnt is what one process learns.
  int late = 0;
  void (*defaults)(Plan&) = nullptr;  // what the method's name implies (zero3: plan.zero = 3)
  Program (*compile)(const Plan&, const ModelSpec&) = nullptr;  // waits are inferred afterwards
};

std::map<std::string, Strategy>& strategies();

struct Register {
  Register(const char* name, Strategy strategy);
};

/// Throws InputError with the nearest known name.
const Strategy& strategy_named(const std::string& name);

/// What the method's name implies, checked against what it combines with, then completed against
/// the model.
Plan prepare(Plan plan, const ModelSpec& model);

/// prepare, then the method's own compile, then the waits that its refs imply. The one way from a
/// plan to a program.
Program compile(const Plan& plan, const ModelSpec& model);
/// The same of a plan that has been prepared, with the waits left in that other roles imply (see
/// infer_waits).
Program draft(const Plan& prepared, const ModelSpec& model);

}  // namespace rehearse
