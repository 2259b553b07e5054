// One pipeline stage being compiled: walks a schedule of (pass, chunk, micro-batch) and writes down
// the ops of every segment, with the tensor-parallel collectives at their seams and the transfers
// to the neighbouring stages. What happens to weights and gradients over the data-parallel axis is
// left to a GradientSync. Nothing here orders ops across lanes: refs say who reads what, and
// passes/infer_after.cpp derives the waits.
#pragma once
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "engine/plan.h"
#include "engine/role_builder.h"

namespace rehearse {

/// One entry of a pipeline schedule. `chunk` counts the model chunks of this rank (0 without
/// interleaving). `shift` as in Op.
struct Action {
  Pass pass = Pass::forward;
  int chunk = 0, microbatch = 0, shift = 0;
  /// The shift of the update that follows; without one in the whole list it follows the last
  /// backward of the step.
  std::optional<int> update = {};
};
/// What stage `stage` does in one iteration, in order. A pure function.
using StageOrder = std::vector<Action> (*)(const Plan& plan, int stage);

/// Parameter groups that share flat storage and are reduced together. Split groups come first, so
/// that the gradients that are partial over tp (of groups that every tensor rank holds whole) are
/// one interval.
struct Bucket {
  std::string name = {};
  std::vector<Id> groups = {};
  std::vector<std::int64_t> begin = {};  // of each group, in elements; one more entry: the end
  std::int64_t whole_begin = 0;          // where the groups that tp does not split begin
  std::int64_t elements = 0;             // padded so that shards are equal
  Id completes_at = none;                // the segment whose backward completes its gradients
  bool tied = false;                     // summed with a copy on another stage
  bool tied_copy = false;                // ... of which this is the one that counts for norms
};

/// The ranks that one role stands for. Replicas (places along dp and tp) are of one kind when they
/// take equally many samples and play the same part in exchanges on every stage, so that the i-th
/// rank of a kind meets the i-th rank of that kind on the neighbouring stage.
struct StageRole {
  int stage = 0, kind = 0, kinds = 1;
  int samples = 0;  // of a micro-batch
  /// In syncs in which one rank of a node exchanges for the others: the kind of that rank, whether
  /// it is this role itself, alone on its node, and how many such ranks exchange.
  int led_by = 0, leaders = 0;
  bool leader = false, alone = false;
  std::vector<Id> ranks = {};

  std::string name(const Plan& plan) const;
};

class Stage;

/// What becomes of weights and gradients over the data-parallel ranks. One object serves all
/// stages.
class GradientSync {
 public:
  virtual ~GradientSync() = default;
  /// Weights of one segment a bucket (sharded weights are gathered segment by segment), or packed
  /// up to plan.bucket.
  virtual bool bucket_per_segment(const Plan&) const { return false; }
  /// Groups that tp splits and groups that every tensor rank holds whole in buckets of their own.
  virtual bool bucket_per_kind(const Plan& plan) const { return plan.zero > 0; }
  virtual double bucket_bytes(const Plan& plan, const ModelSpec&) const {
    return plan.bucket.value;
  }
  virtual void declare(Stage& stage, const Bucket& bucket) const = 0;
  /// Makes the weights of a bucket readable under `param_view` before a pass uses them; a no-op
  /// unless they are sharded.
  virtual void before_use(Stage&, const Bucket&, Pass, int /*microbatch*/, int /*shift*/) const {}
  virtual Ref param(const Stage& stage, Id group, Pass pass, int microbatch) const = 0;
  virtual int grad_index(int /*microbatch*/) const { return 0; }
  /// The loss scale that a step's backward applies and its update takes out again: as old as its
  /// weights.
  virtual int scale_age(const Plan&) const { return 1; }
  /// By rank, the rank that exchanges for it in some exchange of this sync; empty: each for itself.
  virtual std::vector<Id> leaders(const Plan&, const Program&) const { return {}; }
  /// After the backward that completed a bucket's gradient of one micro-batch; `last`: of the step.
  virtual void reduce(Stage& stage, const Bucket& bucket, int microbatch, bool last,
                      int shift) const = 0;
  /// After the last reduce of a step: norms, updates, and whatever brings new weights to every
  /// rank.
  virtual void finish(Stage& stage, int shift) const = 0;
};

class Stage {
 public:
  Stage(Program& program, const Plan& plan, const ModelSpec& model, const StageRole& who,
        const GradientSync& sync);
  void lower(const std::vector<Action>& actions);
  /// What was lowered, as replicas do it that take another number of samples and differ in nothing
  /// else.
  Role as(const StageRole& who) const;

  // For GradientSync.
  const Plan& plan() const { return plan_; }
  const ModelSpec& model() const { return model_; }
  Program& program() { return program_; }
  const Program& program() const { return program_; }
  RoleBuilder& role() { return role_; }
  int index() const { return stage_; }
  const StageRole& who() const { return who_; }
  const std::vector<Bucket>& buckets() const { return buckets_; }
  Axes dp() const { return dp_; }
  Axes tp() const { return tp_; }
  Axes pp() const { return pp_; }
  Id axis_channel(Axes axes);
  /// A collective by the plan's algorithm, or, where that does not serve the move, by the fastest.
  Collective collective(Id channel, Move move) const;
  /// Partial axes of a group's gradient as backward leaves it.
  Axes partial_of(Id group, const Bucket& bucket) const;
  Ref ref(std::string_view view, Slot slot, Mode mode, int index = 0, int age = 0,
          Layout layout = {}) const {
    return ref(role_.view(view), slot, mode, index, age, layout);
  }
  Ref ref(Id view, Slot slot, Mode mode, int index = 0, int age = 0, Layout layout = {}) const;
  /// The views "W." and "G." of a parameter group.
  Id weight(Id group) const { return of_group(weights_, "W.", group); }
  Id grad(Id group) const { return of_group(grads_, "G.", group); }
  /// Sum over tp what every tensor rank holds whole, and tied copies over their stages. `grads`:
  /// the storage's name.
  void reduce_model_axes(const Bucket& bucket, const std::string& grads, int index, int shift);
  /// The sum of squares of all gradients into "norm", summed over pp, tp and `also`; only when the
  /// plan needs it.
  void emit_norm(const std::vector<std::pair<const Bucket*, Ref>>& grads, Axes also, int shift);
  bool needs_norm() const { return plan_.clip || plan_.precision == DType::f16; }
  /// Optimizer state of `elements` for a bucket, and the Update that reads `grad` and writes
  /// `weight`.
  void declare_optimizer(const Bucket& bucket, std::int64_t elements);
  void emit_update(const Bucket& bucket, Ref weight, Ref grad, int shift);
  /// Before a bucket's update where the plan observes gradients: its running mean and deviations
  /// (engine/variance.h), of the entries that `grad` has on this rank.
  void emit_observe(const Bucket& bucket, Ref grad, int shift);
  /// Every how many-th entry of a bucket's gradient is observed.
  int observe_stride(const Bucket& bucket) const;
  void emit_rescale(int shift);
  /// True the first time that a key is seen in this stage.
  bool once(const std::string& key) { return seen_.insert(key).second; }
  /// The compute op that a prefetch for the next pass waits for, so that it runs at most one
  /// segment ahead; none at first.
  Id prefetch_gate() const { return history_.size() < 2 ? none : history_[history_.size() - 2]; }
  const Bucket& bucket_of(Id group) const;

 private:
  void make_buckets();
  void forward(const Action& action);
  void backward(const Action& action);
  void run_segment_forward(Id segment, const Action& action);
  void run_segment_backward(Id segment, const Action& action);
  /// Storages of which a role has one for each segment, by what their names begin with.
  enum class Kept : std::uint8_t { x, y, dx, dy, xg, dxg, saved };
  /// A storage whose size follows the number of samples.
  struct Activation {
    Id view = none, segment = none;
    enum class Size : std::uint8_t {
      boundary,
      shard,
      saved,
      stats,
      all_stats
    } size = Size::boundary;
  };
  std::int64_t elements(const Activation& activation, int samples) const;
  Id activation(Activation activation, std::string name, DType dtype, int indices);
  Id boundary(Kept what, Id segment, bool sharded, bool per_pass = false);
  Id saved(Id segment);
  Id readable_input(Id segment, const Action& action, bool for_backward);
  Id of_group(std::vector<Id>& known, const char* prefix, Id group) const;
  std::vector<Ref> params(Id segment, const Action& action);
  void transfer(bool send, Id segment, Kept what, int chunk_from, int chunk_to,
                const Action& action);
  Compute compute(Id segment, Pass pass, const Action& action) const;
  void computed(Id op);

  Program& program_;
  const Plan& plan_;
  const ModelSpec& model_;
  const GradientSync& sync_;
  StageRole who_;
  int stage_;
  RoleBuilder role_;
  Axes pp_ = 0, dp_ = 0, tp_ = 0, tied_ = 0;
  std::vector<Bucket> buckets_ = {};
  std::vector<Activation> activations_ = {};
  std::vector<Id> computes_ = {};           // the last compute of each action, for throttles
  std::vector<Id> history_ = {};            // every compute
  std::vector<std::vector<Id>> kept_ = {};  // views, [Kept][segment]
  mutable std::vector<Id> weights_ = {}, grads_ = {};  // views, by group
  std::vector<Id> bucket_of_ = {};                     // by group
  std::set<std::string> seen_ = {};
  std::vector<bool> touched_ = {};  // gradients, [group][micro-batch]
  std::vector<std::pair<Axes, Id>> axis_channels_ = {};
};

/// The whole program: mesh, channels, one role for each kind of replica on each stage; its waits
/// are still to be inferred.
Program lower(const Plan& plan, const ModelSpec& model, StageOrder order, const GradientSync& sync);

/// The axis of that name; 0 when it has but one place.
Axes axis_named(const Program& program, const std::string& name);
/// Mesh and the ranks of each stage, for methods that add roles of their own.
Program make_mesh(const Plan& plan);
std::vector<Id> ranks_of_stage(const Program& program, int stage);
/// In the order of roles: stage by stage, the kinds of replicas of each.
std::vector<StageRole> stage_roles(const Program& program, const Plan& plan,
                                   const GradientSync& sync);

/// Everything replicated over dp: gradients are all-reduced bucket by bucket under backward (DDP,
/// Li et al. 2020).
const GradientSync& replicated();
/// ZeRO (Rajbhandari et al. 2020) of level 1 to 3.
const GradientSync& sharded(int level);
/// The one of these two that plan.zero asks for; one rank has nothing to shard.
const GradientSync& gradient_sync(const Plan& plan);
/// Each layer as plan.layers says: dense, or packets of chosen entries with error feedback, over
/// all ranks or across nodes; ZeRO 1 and 2 beside it. Without plan.layers, buckets as large as
/// plan.bucket, by plan.reduction (none: dense) at plan.density.
const GradientSync& sparse();

/// Forward and backward of one micro-batch after the other: one stage, with gradient accumulation.
std::vector<Action> one_by_one(const Plan& plan, int stage);

}  // namespace rehearse
