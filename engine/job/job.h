// A job: everything that the user asks for, read from one strict TOML file. docs/job.md lists all
// keys; a test compares it with this reader.
//
//   [model]   -> Job::model             [train]    -> Job::train     length, optimizer, data
//   [software] -> Job::model.software, how the model is executed
//   [cluster] -> Job::cluster           [run]      -> Job::run       timeouts, threads
//   [method]  -> Job::plan              [disturb]  -> Job::disturb   jitter, slow ranks and links
//                                       [adaptive] -> Job::adaptive  when the plan changes
//   [faults], [checkpoint], [recovery] -> Job::faults, ...: what breaks, how the run survives it
//
// Defaults of keys that the file leaves out:
//
// - The world size is the number of devices of the cluster. On the local machine it is the number
//   of ranks of the mesh.
// - dp is the world size divided by pp x tp. The global batch is 16 samples per worker, 16 x pp x
//   dp x tp (Sun 2026, section 4.1).
// - A pipeline gets at least 4 x pp micro-batches if the global batch allows it, because the bubble
//   is then small (GPipe, Huang et al. 2019, section 2).
// - Rank i of the mesh runs on device i, with devices in node order. Without method.shares each dp
//   rank gets the same number of samples, so the slowest device limits the step.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/errors.h"
#include "engine/base/files/config.h"
#include "engine/base/units.h"
#include "engine/cluster/cluster.h"
#include "engine/cluster/disturbance.h"
#include "engine/costs/profile_once.h"
#include "engine/job/survival.h"
#include "engine/model/model.h"
#include "engine/plan/plan.h"

namespace rehearse::job {

/// How the learning rate falls after warm-up.
enum class Decay : std::uint8_t { linear, cosine, constant };
constexpr auto spellings(Decay) {
  return std::to_array<const char*>({"linear", "cosine", "constant"});
}

/// How training text is divided among the data-parallel ranks. iid: each sample may be of any text.
/// source: each rank reads the text of its own inputs of data/prepare.py (runtime/data/sources.h).
enum class Split : std::uint8_t { iid, source };
constexpr auto spellings(Split) { return std::to_array<const char*>({"iid", "source"}); }

/// [train]. Global batch, optimizer and whether to clip are in the plan, because the program
/// depends on them.
struct Train {
  int seq_len = 0;  // tokens per sample
  std::int64_t steps = 100;
  std::uint64_t seed = 1;  // for initial weights, dropout and data order
  double lr = 1e-4;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;  // AdamW
  double momentum = 0.9;                          // SGD
  double weight_decay = 0.01;
  std::int64_t warmup_steps = 0;  // the learning rate rises linearly from 0 to lr
  Decay decay = Decay::linear;    // from lr after warm-up to min_lr at the last step
  double min_lr = 0;
  double clip = 0;              // largest allowed global gradient norm; 0: no clipping
  std::int64_t eval_every = 0;  // steps between evaluations; 0: only at the end
  std::int64_t eval_batches = 8;
  std::int64_t save_every = 0;  // steps between checkpoints; 0: only at the end
  std::string data = {};        // folder of token shards
  Split split = Split::iid;     // of `data`
  /// With Split::source: that inputs are dealt to. A round has as many of them as there are
  /// data-parallel ranks, drawn anew. 0: one for each rank.
  int clients = 0;
  std::vector<std::string> evaluate = {};  // further such folders, to measure losses on
  /// Positions [begin, end) of samples that each step draws besides the global batch and nobody
  /// trains: those of lost replicas. In order.
  std::vector<std::pair<int, int>> left_out = {};
  std::string out = {};  // folder of checkpoints and metrics
};

/// [adaptive]: when a run changes its plan (planner/adaptive.h).
struct Adaptive {
  std::int64_t warmup_steps = 50;       // steps under the first plan, if the run has two plans
  Seconds plan_timeout = Seconds(600);  // time limit of the planner after warm-up
  std::string warmup_plan = {};         // path of the first plan; empty: none is given
  std::int64_t balance_every = 0;       // steps between load-balance checks; 0: no load balancing
  double balance_bound = 0.1;  // part of the busiest replica's step that must be saved to rebalance
  /// true: stages, devices and samples per replica follow link and device speeds. false: stages of
  /// equal work, devices in order, equal samples where the batch divides.
  bool placement = true;
};

/// What carries out the collectives of a real run (runtime/communication/network.h).
enum class Transport : std::uint8_t {
  sockets,  // our own socket code; follows the schedules of engine/collectives
  gloo      // Gloo's ring algorithms where it has them (runtime/communication/gloo_communicator.h)
};
constexpr auto spellings(Transport) { return std::to_array<const char*>({"sockets", "gloo"}); }

/// What passes compute in, as files and options spell it.
enum class Precision : std::uint8_t { fp32, bf16, fp16, fp8 };
constexpr auto spellings(Precision) {
  return std::to_array<const char*>({"fp32", "bf16", "fp16", "fp8"});
}
/// The type of all but the 8-bit products.
constexpr program::DType dtype_of(Precision precision) {
  return precision == Precision::fp32   ? program::DType::f32
         : precision == Precision::fp16 ? program::DType::f16
                                        : program::DType::bf16;
}
inline Precision precision_of(const plan::Plan& plan) {
  return plan.fp8                                 ? Precision::fp8
         : plan.precision == program::DType::f32  ? Precision::fp32
         : plan.precision == program::DType::bf16 ? Precision::bf16
                                                  : Precision::fp16;
}

/// [run]: settings of real execution.
struct Run {
  Seconds timeout = Seconds(60);          // a run fails when a peer makes no progress for so long
  Seconds connect_timeout = Seconds(60);  // for all ranks to connect
  Seconds heartbeat = Seconds(1);         // time between two heartbeats
  int threads = 0;  // for tensor work, per rank; 0: the machine's cores divided by its ranks
  Transport transport = Transport::sockets;
  std::int64_t log_every = 1;    // steps
  std::int64_t check_every = 0;  // steps between two comparisons of replicas' state; 0: none
  std::string interface = {};    // by which ranks on other hosts reach this one; empty: found
  std::string secret_file = {};  // that all hosts share; empty: none
  bool trust_network = false;    // ranks on several hosts may do without a secret
  bool encrypt = false;          // connections between ranks
  std::string device = "auto";   // where tensors are and ops run; see runtime/device
};

/// How method.shares divides the samples of a micro-batch among replicas. speed: each replica gets
/// as many as it can compute while the others do the same (planner/shares.h).
enum class Shares : std::uint8_t { equal, speed };

struct Job {
  std::string file = {};
  model::ModelSpec model = {};
  cluster::Cluster cluster = {};
  plan::Plan plan = {};  // completed by plan::complete, except when read with `to_plan`
  Train train = {};
  Run run = {};
  cluster::Disturbance disturb = {};
  costs::ProfileOnce profile = {};  // none: times from the device table
  std::string plan_file = {};       // path of the plan file; empty: [method] states the plan
  /// The place of each key that the file or an override states: "method.pp" -> "job.toml:7".
  std::map<std::string, std::string> where = {};
  Adaptive adaptive = {};
  Faults faults = {};
  Checkpoint checkpoint = {};
  Recovery recovery = {};
  /// Of a plan whose shares the job does not list.
  Shares shares = Shares::equal;
  /// method.micro_batch, for the planner: samples of a replica in each micro-batch; 0: not stated.
  int micro_batch = 0;
  /// method.autotune: the planner chooses the buckets and the cycle of a coordinator.
  bool autotune = false;
};

/// Throws InputError (file, line, key) on a wrong job; this includes a model that does not fit the
/// mesh. Does not check memory: the caller links the program and then calls check_memory
/// (planner/fit.h). `to_plan`: for planner::decide (planner/planner.h); sizes of the mesh that the
/// file does not state stay open, and the plan is neither completed nor checked.
Job read_job(const Config& file, bool to_plan = false);
/// Reads the job from `text`. Error messages call it `file`. `overrides`: "key.path=value", as in
/// Config (base/config.h).
Job parse_job(const std::string& text, const std::string& file,
              const std::vector<std::string>& overrides = {});
/// The same with `to_plan`.
Job parse_job_to_plan(const std::string& text, const std::string& file,
                      const std::vector<std::string>& overrides = {});
/// Every key that the reader knows, in the order of docs/job.md.
std::vector<Config::Key> job_keys();
/// Adds the place to an error that starts with a key: "method.pp: 3: must ..." becomes FILE:LINE:
/// key "method.pp": 3: must ... Code that checks plans knows keys, but no files. Returns other
/// errors unchanged.
InputError located(const Job& job, const InputError& error);
/// The program that every executor of this job runs. It is the method's program, with a concrete
/// algorithm for each `automatic` collective, chosen for the job's devices. Throws InputError with
/// file and line.
program::Program program_of(const Job& job);
/// What predictions run: the same, with the host's lane where the software's host takes time
/// (costs/host_lane.h), and with its last phase from step 1 on (program/phases.h).
program::Program predicted_program_of(const Job& job);

}  // namespace rehearse::job
