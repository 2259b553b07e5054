// A plan: every decision a program is compiled from. A job file states some of it, defaults or a
// planner the rest; whoever made it, strategies read nothing else but the model.
#pragma once
#include <array>
#include <optional>
#include <string>
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
/// How the data-parallel ranks sum a gradient: whole; as packets of chosen entries that all gather;
/// or whole inside a node and as packets across nodes.
enum class Reduction : std::uint8_t { dense, sparse, two_level };
constexpr auto spellings(Reduction) {
  return std::to_array<const char*>({"dense", "sparse", "two_level"});
}

/// What becomes of one layer's gradient (a layer is a segment that owns parameters) on its way over
/// the data-parallel ranks.
struct LayerExchange {
  double density = 1;  // part that is kept, 1 - s of Sun 2026, eq. 3; k = ceil(density x elements)
  Reduction reduction = Reduction::dense;
  program::Coding coding = program::Coding::index32;
};

/// How many ranks there are, along which axes, and in which order.
struct Mesh {
  int pp = 1, dp = 1, tp = 1;
  std::string order = "pp,dp,tp";  // outermost first: tp ranks are neighbours
  int servers = 0;                 // parameter-server shards, on ranks of their own behind the mesh
  bool sequence_parallel = false;  // of the tp ranks

  int world_size() const { return pp * dp * tp + servers; }
};

/// Which samples a step consumes, and in which passes.
struct Schedule {
  int global_batch = 0;          // samples a step, over all dp ranks and micro-batches
  int micro_batches = 1;         // per dp rank and step
  std::vector<int> shares = {};  // samples of a micro-batch on each dp rank; empty: equally many
  int virtual_stages = 1;        // model chunks a pipeline rank (interleaved 1F1B)
  int staleness = 0;             // steps a worker may run ahead (stale-synchronous)
  Pipeline pipeline = Pipeline::one_f_one_b;  // of method "adaptive" where pp > 1
  bool recompute = false;
};

/// What becomes of weights and gradients over the data-parallel ranks.
struct Exchange {
  int zero = 0;                // 0 to 3
  bool keep_gathered = false;  // ZeRO-3: keep gathered weights from forward to backward
  Bytes bucket = Bytes(25e6);
  program::Algorithm collective = program::Algorithm::automatic;
  double density = 0.1;              // part of a gradient that a sparsifier keeps
  double s_min = 0.7, s_max = 0.95;  // what the adaptive method clamps a layer's sparsity to
  program::Selector selector = program::Selector::top_k;
  program::Feedback feedback = program::Feedback::conserving;
  std::optional<Reduction> reduction = {};  // of every layer; none: chosen layer by layer
  std::optional<program::Coding> coding = {};
  std::vector<LayerExchange> layers = {};  // by segment, of method "adaptive"; empty: all dense
  int observe = 0;  // every how many-th gradient entry is observed for its variance; 0: none
};

/// Where the model and the ranks go.
struct Placement {
  std::vector<std::vector<Id>> stages = {};  // segments of each model chunk; chunk c runs on stage
                                             // c mod pp
  std::vector<Id> rank_to_device = {};
  std::vector<Id> node_of = {};  // by rank, for two-level exchanges
};

struct Plan {
  std::string method = "ddp";
  Mesh mesh = {};
  Schedule schedule = {};
  Exchange exchange = {};
  Placement placement = {};
  program::DType precision = program::DType::f32;
  bool clip = false;  // global-norm clipping: a collective of the program
  Optimizer optimizer = Optimizer::adamw;

  /// Samples of one micro-batch on a rank at this place of the dp axis.
  int samples(int dp_rank = 0) const {
    return schedule.shares.empty() ? schedule.global_batch / (mesh.dp * schedule.micro_batches)
                                   : schedule.shares[static_cast<std::size_t>(dp_rank)];
  }
};

/// Passes over segments that a program of the plan has, of all stages and micro-batches: what
/// compiling it takes grows with them.
std::int64_t passes_of(const Plan& plan, const model::ModelSpec& model);
/// What `complete` accepts of them: gigabytes of ops, and a minute or so to compile them.
inline constexpr std::int64_t most_passes = 2'000'000;
/// Whether everything that tensor parallelism splits divides by tp.
bool splits(const model::ModelSpec& model, int tp);
/// What of it does not: "must divide the 25 heads of gpt2-1.5b".
std::string split_rule(const model::ModelSpec& model, int tp);

/// Fill what is empty (stages balanced by forward work, ...) and check what is there against the
/// model. Throws Refused, which names the key, the value, the constraint and the nearest choice
/// that fits.
Plan complete(Plan plan, const model::ModelSpec& model);

}  // namespace rehearse::plan
