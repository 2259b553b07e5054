// The registry of training methods. Each method is one file in strategies/. The file says in which
// order a stage runs its passes, how gradients are exchanged between data-parallel ranks, what the
// method combines with, and what searches over plans need to know. No other file names the method.
// Methods register through static objects, so engine/ must be a CMake OBJECT library.
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

/// The gradient exchange for plan.exchange.sharding.zero: replicated or sharded (lowering/stage.h).
const GradientSync& gradient_sync(const plan::Plan& plan);

/// One role for each kind of replica on each stage, with the pass order and gradient exchange of
/// the plan's method.
LoweredProgram lower_stages(const plan::Plan& prepared, const model::ModelSpec& model);

/// The features that a method combines with; all others are refused. The compatibility matrix in
/// the docs is generated from these.
struct Combines {
  bool pp = false, tp = false;
  int max_zero = 0;
  bool interleave = false;  // virtual_stages > 1
  bool servers = false, staleness = false;
  bool recompute = true, clip = true, low_precision = true;
  bool context = false;    // cp ranks may divide each sequence
  bool shares = false;     // dp ranks with different numbers of samples
  bool lockstep = true;    // all ranks have state of the same step, so they can save it together
  bool sgd = true;         // any optimizer; false: AdamW alone
  bool offload = true;     // its optimizer may live on the host
  bool sparse = false;     // may exchange only chosen gradient entries, once a step even if sharded
  bool quantised = false;  // exchanges gradients as codes of a few bits
  bool low_rank = false;   // exchanges gradients as factors of a low rank
  bool freezes = false;    // exchanges momenta once the second moments are frozen
  bool one_bucket = false;   // takes a bucket of 0 bytes: one bucket of all gradients
  bool cycles = false;       // has a coordinator that wakes up once a cycle
  bool machines = false;     // ranks of a machine sum first, servers sum over machines
  bool local_steps = false;  // ranks train apart for some steps
  bool deadlines = false;    // drops ranks whose local steps take too long
  bool secure = false;       // a server may sum what ranks send without seeing it
  bool outer = false;        // an outer optimizer updates what ranks agree on
  bool graph = false;        // a rank exchanges weights with its neighbours in a graph
};

struct Strategy {
  std::string summary = {};
  std::string source = {};  // paper, section
  Combines combines = {};
  int pp = 1, tp = 1;  // defaults for a job, or the largest smaller sizes that fit
  void (*defaults)(plan::Plan&) = nullptr;  // e.g. zero3 sets plan.exchange.sharding.zero = 3
  /// Further checks on a completed plan: throws Refused.
  void (*check)(const plan::Plan&, const model::ModelSpec&) = nullptr;
  PassOrder (*order)(const plan::Plan&, const model::ModelSpec&) =
      [](const plan::Plan&, const model::ModelSpec&) { return one_by_one; };
  const GradientSync& (*sync)(const plan::Plan&) = gradient_sync;
  /// Lowers a prepared plan to the ops of every role. A method with roles other than its stages
  /// (for example servers) sets its own function.
  LoweredProgram (*lower)(const plan::Plan&, const model::ModelSpec&) = lower_stages;

  // For searches over plans.
  /// Set: the planner proposes this method, with this pipeline schedule. Empty: it does not.
  std::optional<plan::Pipeline> proposed = {};
  /// The planner proposes it to jobs that name it, beside the others.
  bool proposed_to_itself = false;
  /// The planner chooses the plan for jobs of this method and may make gradients sparse.
  bool planned = false;
  /// The rehearsal of a planned job is compared with this method.
  bool baseline = false;
  /// The method's name at this ZeRO level; null: `method.zero` sets the level, the name stays.
  std::string (*at_zero)(int level) = nullptr;
  /// The method to use instead when a job needs pipeline or tensor parallelism; null: none.
  const char* with_model_parallelism = nullptr;
  /// What users should know of a plan, although it is valid; empty: nothing.
  std::string (*remark)(const plan::Plan&) = nullptr;
};

std::map<std::string, Strategy>& strategies();

struct Register {
  Register(const char* name, Strategy strategy);
};

/// Throws InputError that suggests the nearest known name.
const Strategy& strategy_named(const std::string& name);
/// "unknown method ..., did you mean ...?; known: ..."; empty for a known method.
std::string unknown_method(const std::string& name);
/// Why a method cannot save checkpoints behind training (checkpoint.kind = async); empty: it can.
std::string cannot_save_behind(const std::string& method);
/// The remark of the plan's method.
std::string remark_on(const plan::Plan& plan);
/// Whether the planner chooses the plan for jobs of this method.
bool planned(const std::string& method);

/// What a plan states that changes nothing in it, as sentences that name the keys. Such plans are
/// good: one job may be asked about several methods.
std::vector<std::string> idle_fields(const plan::Plan& plan);

/// Gives the fields that only some methods read (plan::Readers), and the number of servers, the
/// values of a plan that states nothing. Returns the keys of [method] that had others.
std::vector<std::string> drop_own_fields(plan::Plan& plan);

/// Applies the method's defaults, checks what it combines with, completes the plan for the model,
/// then runs the method's own check. Throws Refused.
plan::Plan prepare(plan::Plan plan, const model::ModelSpec& model);

/// Compiles a plan into a program: prepare, lower, infer the waits. Throws Refused.
program::Program compile(const plan::Plan& plan, const model::ModelSpec& model);
/// The same for a plan that is already prepared, with infer_all_waits instead of infer_waits.
program::Program compile_with_all_waits(const plan::Plan& prepared, const model::ModelSpec& model);

}  // namespace rehearse::methods
