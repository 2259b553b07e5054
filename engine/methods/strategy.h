// The registry of training methods. A method is one file in strategies/: how a stage orders its
// passes, what becomes of gradients over the data-parallel ranks, what the method combines with,
// and what searches over plans want to know of it. Nothing outside that file names the method.
// Registration happens in static objects, which is why engine/ is a CMake OBJECT library.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/refusal.h"
#include "engine/methods/lowering/lowered_program.h"
#include "engine/methods/pass_order.h"
#include "engine/plan/plan.h"
#include "engine/program/program.h"

namespace rehearse::methods {

class GradientSync;

/// The replicated or sharded exchange of gradients that plan.zero asks for (lowering/stage.h).
const GradientSync& gradient_sync(const plan::Plan& plan);

/// A role for each kind of replica on each stage, by the order and the sync of the plan's method.
LoweredProgram lower_stages(const plan::Plan& prepared, const model::ModelSpec& model);

/// What a method combines with; everything else is refused. The compatibility matrix in the docs is
/// printed from these.
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
  void (*defaults)(plan::Plan&) = nullptr;  // what the method's name implies (zero3: plan.zero = 3)
  /// What else the method asks of a plan that is complete: throws Refused.
  void (*check)(const plan::Plan&, const model::ModelSpec&) = nullptr;
  PassOrder (*order)(const plan::Plan&, const model::ModelSpec&) =
      [](const plan::Plan&, const model::ModelSpec&) { return one_by_one; };
  const GradientSync& (*sync)(const plan::Plan&) = gradient_sync;
  /// From a prepared plan to the ops of every role. A method that adds roles to its stages has a
  /// function of its own.
  LoweredProgram (*lower)(const plan::Plan&, const model::ModelSpec&) = lower_stages;

  // For searches over plans.
  /// The planner proposes the method, and plan.pipeline is what its schedule is called.
  std::optional<plan::Pipeline> proposed = {};
  /// The plan of a job of this method is left to the planner, which may make gradients sparse.
  bool planned = false;
  /// What a planned job's rehearsal is compared with.
  bool baseline = false;
  /// The method's name with states sharded at this level; null: any level by `method.zero`.
  std::string (*at_zero)(int level) = nullptr;
  /// The method to turn to for pipeline or tensor parallelism that this one lacks; null: none.
  const char* with_model_parallelism = nullptr;
};

std::map<std::string, Strategy>& strategies();

struct Register {
  Register(const char* name, Strategy strategy);
};

/// Throws InputError with the nearest known name.
const Strategy& strategy_named(const std::string& name);
/// "unknown method ..., did you mean ...?; known: ..."; empty for a known one.
std::string unknown_method(const std::string& name);
/// Whether that is a method whose jobs leave their plan to the planner.
bool planned(const std::string& method);

/// What the method's name implies, checked against what it combines with, then completed against
/// the model and checked by the method. Throws Refused.
plan::Plan prepare(plan::Plan plan, const model::ModelSpec& model);

/// The way from a plan to a program: prepare, lower, infer the waits. Throws Refused.
program::Program compile(const plan::Plan& plan, const model::ModelSpec& model);
/// The same for a plan that has been prepared, with the waits of infer_all_waits.
program::Program compile_with_all_waits(const plan::Plan& prepared, const model::ModelSpec& model);

}  // namespace rehearse::methods
