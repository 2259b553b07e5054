// A job: what the user asks for, read from one strict TOML file. [model], [cluster] and [method]
// become a ModelSpec, a Cluster and a Plan; [train], [run] and [disturb] say how long, how
// patiently and how roughly. docs/job.md is its reference and is tested against this reader.
// Defaults:
//
// - the world is the whole cluster, or on this machine as many ranks as the mesh has;
// - dp is what remains of the world, global_batch 16 x dp (Sun 2026, section 4.1);
// - a pipeline takes at least 4 x pp micro-batches, where the bubble is small (GPipe, Huang et al.
//   2019, section 2);
// - ranks in mesh order stand on devices in node order. Plain methods give each rank equally many
//   samples, so on unlike devices the slowest sets the pace.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "engine/base/config.h"
#include "engine/base/errors.h"
#include "engine/base/units.h"
#include "engine/cluster/cluster.h"
#include "engine/cluster/disturbance.h"
#include "engine/model/model.h"
#include "engine/plan/plan.h"

namespace rehearse::job {

enum class Decay : std::uint8_t {
  linear,
  cosine,
  constant
};  // of the learning rate, after warm-up

/// [train]. Batch, optimizer and whether to clip are in the plan: they shape the program.
struct Train {
  int seq_len = 0;  // tokens a sample
  std::int64_t steps = 100;
  std::uint64_t seed = 1;  // of initial weights, dropout and data order
  double lr = 1e-4;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;  // AdamW
  double momentum = 0.9;                          // SGD
  double weight_decay = 0.01;
  std::int64_t warmup_steps = 0;  // linear
  Decay decay = Decay::linear;    // from lr after warm-up to min_lr at the last step
  double min_lr = 0;
  double clip = 0;              // largest global gradient norm; 0: no clipping
  std::int64_t eval_every = 0;  // steps; 0: only at the end
  std::int64_t eval_batches = 8;
  std::int64_t save_every = 0;  // steps; 0: only at the end
  std::string data = {};        // folder of token shards
  std::string out = {};         // folder of checkpoints and metrics
};

/// [adaptive]: when a run changes its plan.
struct Adaptive {
  std::int64_t warmup_steps = 50;       // under the first plan, where there are two
  Seconds plan_timeout = Seconds(600);  // for the planner, after warm-up
  std::string warmup_plan = {};         // path of the first plan; empty: there is one
  std::int64_t balance_every = 0;       // steps between looks at how busy ranks are; 0: none
  double balance_bound = 0.1;           // part by which the busiest rank's step must become shorter
  /// Stages, devices and samples follow links and speeds; false: stages of equal work, devices in
  /// order, equal samples, as methods do that do not look.
  bool placement = true;
};

/// What carries the collectives of a real run (runtime/communication/network.h).
enum class Transport : std::uint8_t {
  sockets,  // our own play the schedules of engine/collectives
  gloo      // Gloo's rings where it has them (runtime/communication/gloo_communicator.h)
};

/// [run]: of real execution.
struct Run {
  Seconds timeout = Seconds(60);          // without progress of a peer
  Seconds connect_timeout = Seconds(60);  // for all ranks to appear
  Seconds heartbeat = Seconds(1);
  int threads = 0;  // of tensor work per rank; 0: the machine's cores divided by its ranks
  Transport transport = Transport::sockets;
  std::int64_t log_every = 1;  // steps
};

struct Job {
  std::string file = {};
  model::ModelSpec model = {};
  cluster::Cluster cluster = {};
  plan::Plan plan = {};  // as `complete` leaves it
  Train train = {};
  Run run = {};
  cluster::Disturbance disturb = {};
  std::string profile = {};                       // path of a profile; empty: the device table
  std::string plan_file = {};                     // path of the plan; empty: `method` says it
  std::map<std::string, std::string> where = {};  // "method.pp" -> "job.toml:7", of keys that stand
                                                  // in the file
  Adaptive adaptive = {};
};

/// Throws InputError on anything wrong, model that does not fit the mesh included; memory is
/// checked by whoever links the program. `overrides` as in Config.
Job load_job(const std::string& path, const std::vector<std::string>& overrides = {});
/// `file` names the text in messages.
Job parse_job(const std::string& text, const std::string& file,
              const std::vector<std::string>& overrides = {});
/// The same for decide() (planner/planner.h): keys of the mesh that the file does not state are
/// left open, its plan is neither completed nor checked, and method.name may be that of any method.
Job load_job_to_plan(const std::string& path, const std::vector<std::string>& overrides = {});
Job parse_job_to_plan(const std::string& text, const std::string& file,
                      const std::vector<std::string>& overrides = {});
/// Every key that the reader knows, in the reference's order.
std::vector<Config::Key> job_keys();
/// "method.pp: 3: must ..." of what reads plans and knows keys, not files, becomes FILE:LINE: key
/// "method.pp": 3: must ... of this job. Other messages are left as they are.
InputError located(const Job& job, const InputError& error);
/// The program that every executor of this job runs: the method's, with `automatic` collectives
/// decided on the job's devices. Throws InputError, located.
program::Program compile(const Job& job);

}  // namespace rehearse::job
