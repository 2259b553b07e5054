// A plan: all decisions that a program is compiled from. The job file states some of them; defaults
// or the planner decide the rest. Strategies read only the plan and the model.
#pragma once
#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/units.h"
#include "engine/model/model.h"
#include "engine/program/program.h"

namespace rehearse::plan {

enum class Optimizer : std::uint8_t { adamw, sgd };  // sgd: with momentum
constexpr auto spellings(Optimizer) { return std::to_array<const char*>({"adamw", "sgd"}); }
enum class Pipeline : std::uint8_t { one_f_one_b, gpipe, interleaved };
constexpr auto spellings(Pipeline) {
  return std::to_array<const char*>({"1f1b", "gpipe", "interleaved"});
}
/// How the data-parallel ranks sum a gradient. dense: all entries. sparse: each rank selects
/// entries, and an all-gather gives these packets to all ranks. two_level: dense within a node,
/// sparse across nodes.
enum class Reduction : std::uint8_t { dense, sparse, two_level };
constexpr auto spellings(Reduction) {
  return std::to_array<const char*>({"dense", "sparse", "two_level"});
}

/// How the data-parallel ranks sum the gradient of one layer. A layer is a segment that owns
/// parameters.
struct LayerExchange {
  double density = 1;  // part of the entries that is sent, 1 - s of Sun 2026, eq. 3;
                       // k = ceil(density x elements)
  Reduction reduction = Reduction::dense;
  program::Coding coding = program::Coding::index32;
  friend bool operator==(const LayerExchange&, const LayerExchange&) = default;
};

/// What recompute keeps, and what it runs again. segment: keeps the input of each segment. layer:
/// keeps the input of each layer (attention and mlp), half as many; backward runs the layer's
/// forward again, with the all-reduce between attention and mlp. (Megatron-LM repeats the
/// all-reduce after the mlp too, whose result nobody reads.) attention: as segment, but of
/// attention alone.
enum class RecomputeUnit : std::uint8_t { segment, layer, attention };
constexpr auto spellings(RecomputeUnit) {
  return std::to_array<const char*>({"segment", "layer", "attention"});
}

/// How segments are divided over model chunks. work: parts of equal forward work. layers: equally
/// many layers in each, the embedding with the first and the head with the last, as Megatron-LM
/// does.
enum class Partition : std::uint8_t { work, layers };
constexpr auto spellings(Partition) { return std::to_array<const char*>({"work", "layers"}); }

/// What is in the memory of the host in place of the device's. optimizer: moments, an fp32 copy of
/// the weights, and the update, which the host's cores compute (ZeRO-Offload; Ren et al., USENIX
/// ATC 2021).
enum class Offload : std::uint8_t { none, optimizer };
constexpr auto spellings(Offload) { return std::to_array<const char*>({"none", "optimizer"}); }

/// Activations that are in the memory of the host between forward and backward: all that forward
/// keeps for backward, or with recomputation the inputs that are kept for it (DeepSpeed's
/// cpu_checkpointing; Rajbhandari et al., ZeRO-Infinity, SC 2021).
struct HostActivations {
  bool on = false;
  int layers = 0;  // of each model chunk, from its first on; 0: all segments
  /// Beside the segment that computes, the most segments whose activations are on the device
  /// because they wait for their copy to the host, or are back ahead of their backward.
  int ahead = 2;
  friend bool operator==(const HostActivations&, const HostActivations&) = default;
};

/// Where the servers of BytePS are (Jiang et al., OSDI 2020, section 3). own: on nodes without
/// workers. colocated: one beside the workers of each machine. mixed: the first ones colocated, the
/// others on nodes of their own.
enum class ServerPlacement : std::uint8_t { own, colocated, mixed };
constexpr auto spellings(ServerPlacement) {
  return std::to_array<const char*>({"own", "colocated", "mixed"});
}

/// How the cp ranks that divide a sequence attend to each other's tokens. ring: each rank has a
/// block of the sequence; blocks of keys and values travel around the ring (Liu et al., Ring
/// Attention, 2023). zigzag: the same with program::Cut::zigzag, so that causal attention is equal
/// work for all. ulysses: all-to-alls before and after attention exchange tokens for heads (Jacobs
/// et al., DeepSpeed Ulysses, 2023).
enum class Context : std::uint8_t { ring, zigzag, ulysses };
constexpr auto spellings(Context) {
  return std::to_array<const char*>({"ring", "zigzag", "ulysses"});
}

/// The mesh of ranks: the size of each axis, and the order of the axes. With order "pp,dp,tp" (the
/// outermost first), rank = (pp_rank * dp + dp_rank) * tp + tp_rank: tp ranks are neighbours. An
/// order without cp is for cp = 1.
struct Mesh {
  int pp = 1, dp = 1, tp = 1;
  std::string order = "pp,dp,tp";  // outermost axis first
  int servers = 0;                 // parameter servers, one rank each, after the ranks of the mesh
  bool sequence_parallel = false;  // tp ranks split activations along the sequence between segments
  int cp = 1;                      // ranks that divide each sequence (context parallelism)
  Context context = Context::ring;

  int world_size() const { return pp * dp * cp * tp + servers; }
  /// The names and sizes of the axes that `order` lists, outermost first; a name that is no axis
  /// has size 0.
  std::vector<std::pair<std::string, int>> axes() const;
  /// Whether blocks of keys and values travel around rings, and not heads through all-to-alls.
  bool rings() const { return cp > 1 && context != Context::ulysses; }
  friend bool operator==(const Mesh&, const Mesh&) = default;
};

/// The samples of a step, and how they are divided into passes.
struct Schedule {
  int global_batch = 0;          // samples per step, over all dp ranks and micro-batches
  int micro_batches = 1;         // per dp rank and step
  std::vector<int> shares = {};  // samples per micro-batch of each dp rank; empty: equal shares
  int virtual_stages = 1;        // model chunks per pipeline rank (interleaved 1F1B)
  int staleness = 0;             // steps that a worker may run ahead (stale-synchronous)
  Pipeline pipeline = Pipeline::one_f_one_b;  // used by method "adaptive" if pp > 1
  bool recompute = false;  // backward recomputes saved activations in place of keeping them
  RecomputeUnit recompute_unit = RecomputeUnit::segment;  // how much at a time
  /// Layers of each model chunk that are recomputed, from its first on (Megatron-LM's
  /// recompute-method block); 0: all segments.
  int recompute_layers = 0;
  HostActivations hosted = {};
  friend bool operator==(const Schedule&, const Schedule&) = default;
};

/// Whose weights a rank averages with its own in gossip. With n ranks in a circle: ring: one place
/// before and after it. exponential: 1, 2, 4, ... places before it (Ying et al., NeurIPS 2021).
/// random: so many distances before it, drawn once (Song et al., NeurIPS 2022).
enum class Graph : std::uint8_t { ring, exponential, random };
constexpr auto spellings(Graph) {
  return std::to_array<const char*>({"ring", "exponential", "random"});
}

/// A sum on the server of which the server learns nothing else (secure::Settings).
struct SecureSum {
  bool on = false;
  int neighbours = 0;  // with which a client shares masks; 0: all others
  int threshold = 0;   // shares that open a secret; 0: more than two thirds
  // Numbers are clipped to this size, and rounded to so many levels. none: as in secure::Ring.
  std::optional<double> clipping_range = {};
  std::optional<int> levels = {};
  friend bool operator==(const SecureSum&, const SecureSum&) = default;
};

/// How data-parallel ranks that train weights of their own keep them together. none: the method's.
struct Averaging {
  std::optional<int> local_steps = {};  // between two exchanges
  /// DiLoCo's outer optimizer.
  std::optional<double> outer_lr = {}, outer_momentum = {};
  std::optional<Graph> graph = {};
  std::optional<int> degree = {}, graph_seed = {};  // of a random graph
  /// Clients of FedAvg whose local steps take longer are dropped from the round; none: none are.
  std::optional<Seconds> deadline = {};
  SecureSum secure = {};
  friend bool operator==(const Averaging&, const Averaging&) = default;
};

/// PyTorch DDP's default (bucket_cap_mb = 25).
inline constexpr Bytes default_bucket = Bytes(25e6);

/// ZeRO: what the data-parallel ranks shard, and when they gather and reduce it.
struct Sharding {
  int zero = 0;                // ZeRO stage, 0 to 3
  bool keep_gathered = false;  // ZeRO-3: gather weights once a step, and keep them until its end
  /// ZeRO 2 and 3: whole gradients add up over micro-batches and are reduced once a step, as FSDP
  /// does under torch.distributed.pipelining. false: each micro-batch's gradient becomes a shard.
  bool reduce_once = false;
  /// ZeRO-3: segments whose weights may be gathered before the pass that runs has ended. 0: a
  /// gather waits for the pass before its own.
  int prefetch = 1;
  /// ZeRO 2 and 3, and optimizers on the host: buckets of whole gradients that wait for the network
  /// or the host. The backward of the next one waits for the oldest.
  int pending_buckets = 2;
  /// ZeRO in groups of so many data-parallel ranks, neighbours along the axis: a group shards all
  /// state, and groups have equal copies (hybrid sharding, Zhao et al., VLDB 2023, section 3.2.2).
  /// 0: one group of all ranks.
  int shard_group = 0;
  /// ZeRO-3: after forward, a group of so many data-parallel ranks keeps one copy of the weights,
  /// from which backward gathers (FSDP2's reshard_after_forward as a number; the secondary
  /// partition of ZeRO++, Wang et al. 2023, section 3.2). 0: backward gathers from all ranks.
  int reshard_group = 0;
  friend bool operator==(const Sharding&, const Sharding&) = default;
};

/// Which variance of a layer's gradient eq. 3 of Sun 2026 compares. total: eq. 2 as printed, a sum
/// over the layer's entries, so that the largest layers are the densest. per_element: its mean over
/// them.
enum class Variance : std::uint8_t { per_element, total };
constexpr auto spellings(Variance) { return std::to_array<const char*>({"per_element", "total"}); }

/// Which entries of a gradient are sent, and how.
struct Sparsity {
  double density = 0.1;                       // part of a gradient's entries that a select keeps
  double s_min = 0.7, s_max = 0.95;           // bounds of a layer's sparsity in method "adaptive"
  Variance variance = Variance::per_element;  // from which "adaptive" computes that
  program::Selector selector = program::Selector::top_k;
  program::Feedback feedback = program::Feedback::conserving;
  std::optional<Reduction> reduction = {};     // of all layers; none: see `layers`
  std::optional<program::Coding> coding = {};  // of all layers; none: see `layers`
  /// By segment, for method "adaptive", whose planner chooses each layer's reduction and coding.
  /// Empty: all layers use `density`, `reduction` (none: dense) and `coding` (none: index32).
  std::vector<LayerExchange> layers = {};
  friend bool operator==(const Sparsity&, const Sparsity&) = default;
};

/// Of methods that quantise gradients or momenta. none: the method's.
struct Quantisation {
  std::optional<int> bits = {};             // of a code
  std::optional<std::int64_t> block = {};   // entries that share a scale
  std::optional<bool> error_feedback = {};  // keep what codes miss for the next step
  /// Of methods that send momenta: the steps of plain Adam before, after which the second moment
  /// stays as it is.
  std::optional<int> freeze = {};
  friend bool operator==(const Quantisation&, const Quantisation&) = default;
};

/// Of methods that send factors of gradients. none: the method's.
struct LowRank {
  std::optional<int> rank = {};         // of the factors
  std::optional<bool> warm_start = {};  // begin a step with the right factors of the step before
  std::optional<int> start = {};        // the first step that sends factors, counted from 0
  friend bool operator==(const LowRank&, const LowRank&) = default;
};

/// Of Horovod. none: the method's.
struct Fusion {
  std::optional<Seconds> cycle_time = {};  // between two cycles of the coordinator
  std::optional<int> response_cache = {};  // tensors that the response cache holds; 0: none
  /// The segments after whose backward a bucket ends, because the next one is ready in a later
  /// cycle (planner/fusion.h).
  std::vector<Id> fused_after = {};
  friend bool operator==(const Fusion&, const Fusion&) = default;
};

/// Of BytePS, in which the ranks of a machine sum first, and servers sum over machines.
struct Machines {
  /// Partitions that may be on their way at a time; none: any number, and no priorities.
  std::optional<int> credit = {};
  /// Data-parallel ranks of a machine, neighbours; none: a rank is a machine of its own.
  std::optional<int> local_ranks = {};
  ServerPlacement server_placement = ServerPlacement::own;
  /// The order in which partitions are exchanged (planner/push_order.h); empty: as backward
  /// completes them.
  std::vector<Id> push_order = {};
  friend bool operator==(const Machines&, const Machines&) = default;
};

/// How the data-parallel ranks exchange gradients and weights: what all methods read, then what
/// only some do.
struct Exchange {
  Sharding sharding = {};
  Offload offload = Offload::none;
  /// Accumulate and sum gradients in fp32 under 16-bit weights (Megatron-LM's
  /// accumulate-allreduce-grads-in-fp32).
  bool fp32_gradients = false;
  /// A bucket is full when it has so many bytes of gradients. none: the method's, for most
  /// `default_bucket`.
  std::optional<Bytes> bucket = {};
  program::Algorithm collective = program::Algorithm::automatic;
  int observe = 0;  // observe every observe-th gradient entry to measure variances; 0: none
  Sparsity sparse = {};
  Quantisation quantised = {};
  LowRank low_rank = {};
  Fusion fusion = {};
  Machines machines = {};
  Averaging averaging = {};

  double bucket_bytes() const { return bucket.value_or(default_bucket).value; }
  /// The ranks of a group into which the dp axis is divided; 0: it is not.
  int group() const {
    return sharding.shard_group > 0     ? sharding.shard_group
           : sharding.reshard_group > 0 ? sharding.reshard_group
                                        : machines.local_ranks.value_or(0);
  }
  friend bool operator==(const Exchange&, const Exchange&) = default;
};

/// Which segments run on which stage, and which rank on which device.
struct Placement {
  std::vector<std::vector<Id>> stages = {};  // segments of each model chunk; chunk c runs on stage
                                             // c mod pp
  Partition partition = Partition::work;     // makes `stages` when it is empty
  /// With Partition::layers: layers of each model chunk, or of the first one, each further one and
  /// the last one. Empty: equally many.
  std::vector<int> stage_layers = {};
  std::vector<Id> rank_to_device = {};  // by rank
  std::vector<Id> node_of = {};         // by rank, for two-level reductions
  friend bool operator==(const Placement&, const Placement&) = default;
};

/// Checkpoints that the program saves behind training.
struct Checkpoints {
  int every = 0;  // steps between two of them; 0: none
  program::Medium to = program::Medium::shared_disk;
  int group = 1;  // program::Save::group
  friend bool operator==(const Checkpoints&, const Checkpoints&) = default;
};

struct Plan {
  std::string method = "ddp";
  Mesh mesh = {};
  Schedule schedule = {};
  Exchange exchange = {};
  Placement placement = {};
  program::DType precision = program::DType::f32;
  bool fp8 = false;   // linear layers of blocks multiply in FP8; all else is in `precision`, bf16
  bool clip = false;  // clip gradients by their global norm, which takes an all-reduce
  Optimizer optimizer = Optimizer::adamw;
  bool master_weights = true;  // with 16 bits: updates work on an fp32 copy of the weights
  bool bf16_moments = false;   // the optimizer's moments are kept in bf16, else in fp32
  Checkpoints checkpoints = {};

  /// The type in which gradients are accumulated and summed.
  program::DType gradient_type() const {
    return exchange.fp32_gradients ? program::DType::f32 : precision;
  }
  /// Whether updates work on an fp32 copy of the weights.
  bool has_master() const {
    return (master_weights && precision != program::DType::f32) ||
           exchange.offload != Offload::none;
  }
  program::DType moment_type() const {
    return bf16_moments ? program::DType::bf16 : program::DType::f32;
  }
  /// Whether whole gradients stay on the device until the update. On the way to a host, those of a
  /// single micro-batch do not.
  bool keeps_gradients() const {
    return exchange.offload == Offload::none || schedule.micro_batches > 1;
  }
  /// Whether a rank keeps a shard of the gradients only (ZeRO 2 and 3).
  bool shards_gradients() const {
    return exchange.sharding.zero >= 2 && !exchange.sharding.reduce_once;
  }
  /// The number of ranks over which ZeRO divides state, or a machine of BytePS gradients.
  int shards() const {
    return exchange.sharding.shard_group > 0 ? exchange.sharding.shard_group
           : exchange.machines.local_ranks   ? *exchange.machines.local_ranks
                                             : mesh.dp * mesh.cp;
  }
  /// Samples of one micro-batch on the rank with this index along the dp axis.
  int samples(int dp_rank = 0) const {
    return schedule.shares.empty() ? schedule.global_batch / (mesh.dp * schedule.micro_batches)
                                   : schedule.shares[static_cast<std::size_t>(dp_rank)];
  }
  friend bool operator==(const Plan&, const Plan&) = default;
};

/// The number of passes over segments in the program of a plan, over all stages and micro-batches.
/// The time and memory of compiling grow with it.
std::int64_t passes_of(const Plan& plan, const model::ModelSpec& model);
/// The most passes that `complete` accepts: gigabytes of ops, about a minute to compile.
inline constexpr std::int64_t most_passes = 2'000'000;
/// [segment]: whether its backward recomputes what forward could have kept. `plan` is complete.
std::vector<bool> recomputed(const Plan& plan, const model::ModelSpec& model);
/// Whether that is so for all segments.
bool recomputes_all(const Plan& plan);
/// [segment]: whether what forward keeps of it may go to the host. `plan` is complete.
std::vector<bool> hosted(const Plan& plan, const model::ModelSpec& model);
/// Bytes of optimizer state for each parameter on the device: moments and fp32 copy.
double optimizer_bytes(const Plan& plan);
/// Whether tp divides every size that tensor parallelism splits.
bool splits(const model::ModelSpec& model, int tp);
/// The first size that tp does not divide: "must divide the 25 heads of gpt2-1.5b"; empty: none.
std::string split_rule(const model::ModelSpec& model, int tp);

/// Fills in what the plan leaves empty (stages balanced by forward work, rank_to_device) and checks
/// the rest against the model. Throws Refused, which names the key, the value, the constraint and
/// the nearest valid choice.
Plan complete(Plan plan, const model::ModelSpec& model);

}  // namespace rehearse::plan
