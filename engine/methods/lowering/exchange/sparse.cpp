// The sparse sync sums each layer's gradient in its own way (Sun 2026, section 3.3):
//   dense: an all-reduce over the n data-parallel ranks; with ZeRO a reduce-scatter.
//   sparse: each rank adds its gradient to a residual, sends k selected entries as a packet and
//   keeps the rest (Aji & Heafield 2017; Lin et al., DGC, ICLR 2018). All ranks gather all packets
//   and add them up.
//   two_level: only the leader of a node selects and has a residual:
//
//     node 0   rank 1 --reduce--> rank 0 (leader) --broadcast packets--> rank 1
//                                    ^
//                                    | all-gather of packets
//                                    v
//     node 1   rank 3 --reduce--> rank 2 (leader) --broadcast packets--> rank 3
//
// Sums over tensor ranks and tied copies come first, so that copies select the same entries. A rank
// sends one packet per step, because a select needs the gradient of all micro-batches. With ZeRO 1
// and 2 each rank adds the packets into its shard only; with ZeRO 2 the gradient lives from its
// first micro-batch until it is sent. In bf16 and fp16 the selected values, their sum and the
// residual are f32, and the residual is without the loss scale. In fp16 no rank selects before all
// know that nothing overflowed. A rank sends (n - 1) packets, which is less than a dense ring only
// while a packet is smaller than 2 / n of the gradient.
#include "engine/methods/lowering/stage/layer_exchange.h"
#include "engine/methods/lowering/updates.h"
#include "engine/program/packets.h"

namespace rehearse::methods {
namespace {

class Sparse final : public GradientSync {
 public:
  bool bucket_per_segment(const plan::Plan& plan) const override {
    return !plan.exchange.sparse.layers.empty();
  }
  bool bucket_per_kind(const plan::Plan& plan) const override {
    return plan.exchange.sharding.zero > 0 || chooses(plan);
  }

  std::vector<Id> leaders(const plan::Plan& plan, const program::Program& program) const override {
    return uses(plan, plan::Reduction::two_level) ? node_leaders(plan, program) : std::vector<Id>();
  }

  void declare(Stage& stage, Bucket& b) const override {
    const plan::Plan& plan = stage.plan();
    program::RoleBuilder& role = stage.role();
    BucketViews& views = b.views;
    const bool zero = shards(stage);
    const std::int64_t shard = zero ? b.elements / plan.mesh.dp : b.elements;
    views.weight = views.own_weight = role.storage({.name = "W." + b.name,
                                                    .life = program::Life::state,
                                                    .dtype = plan.precision,
                                                    .elements = b.elements});
    views.grad = views.sum =
        role.storage({.name = "G." + b.name,
                      .life = plan.exchange.sharding.zero == 2 && zero ? program::Life::value
                                                                       : program::Life::buffer,
                      .dtype = plan.gradient_type(),
                      .elements = b.elements});
    stage.declare_groups(b);
    if (zero) views.own_weight = stage.own_part(views.weight, b);
    const BucketExchange x = exchange_of(stage, b);
    if (x.reduction != plan::Reduction::dense && plan.gradient_type() != program::DType::f32)
      views.sum = role.storage({.name = "S." + b.name, .elements = shard});
    else if (zero && plan.exchange.sharding.zero == 2)
      views.sum = role.storage({.name = "S." + b.name,
                                .life = program::Life::buffer,
                                .dtype = plan.gradient_type(),
                                .elements = shard});
    else if (zero)
      views.sum = stage.own_part(views.grad, b);
    stage.optimizer().declare(b, shard);
    if (x.reduction != plan::Reduction::dense) declare_packets(stage, b, x);
  }

  program::Ref param(const Stage& stage, Id group, program::Pass, int) const override {
    return ref(stage.weight(group), program::Slot::param, program::Mode::read, 0, 1);
  }

  void reduce(Stage& stage, Bucket& b, int, bool last, int shift) const override {
    if (!last) return;
    reduce_model_axes(stage, b, 0, shift);
    if (!b.tied) exchange(stage, b, shift);
  }

  void finish(Stage& stage, int shift) const override {
    // Tied copies are summed only after the last backward of the first stage. A select that waited
    // for that sum earlier, on the compute lane, would cause a deadlock.
    for (const Bucket& b : stage.buckets())
      if (b.tied) exchange(stage, b, shift);
    Id overflow = none;
    if (checks_first(stage)) {
      overflow = check_overflow(stage, shift);
      for (const Bucket& b : stage.buckets())
        if (const BucketExchange x = exchange_of(stage, b); x.reduction != plan::Reduction::dense)
          send(stage, b, x, overflow, shift);
    }
    // Packets are added up after backward, so that backward never waits for the network. Without a
    // global norm, a bucket's packets are added up just before its update.
    const bool at_once = !stage.optimizer().needs_norm();
    if (!at_once) {
      for (const Bucket& b : stage.buckets()) {
        add_up(stage, b, shift);
        stage.to_host(b, shard_of(stage), shift);
      }
      emit_norm(stage, shard_of(stage), shift);
      // Adds 0 x overflow, so that inf or NaN spreads into the norm of a step that overflowed.
      if (overflow != none)
        stage.role().op("compute",
                        program::Kernel{.kind = program::KernelKind::measure, .scale = 0},
                        {ref(overflow, program::Slot::source, program::Mode::read),
                         ref(stage.optimizer().norm(), program::Slot::target, program::Mode::add)},
                        shift);
    }
    for (const Bucket& b : stage.buckets()) {
      if (at_once) {
        add_up(stage, b, shift);
        stage.to_host(b, shard_of(stage), shift);
      }
      emit_update(stage, b, shard_of(stage), shift);
    }
    stage.optimizer().rescale(shift);
    if (shards(stage)) gather_weights(stage, shift);
  }

 private:
  static bool shards(const Stage& stage) {
    return stage.dp() && stage.plan().exchange.sharding.zero > 0;
  }
  static program::Layout shard_of(const Stage& stage) {
    return {.shard = shards(stage) ? stage.dp() : program::Axes{0}};
  }
  /// Whether overflow is checked before the selects, because an overflow on any rank must leave
  /// every residual unchanged.
  static bool checks_first(const Stage& stage) {
    return stage.dp() && stage.plan().precision == program::DType::f16 && chooses(stage.plan());
  }
  static std::int64_t packets_in(const Stage& stage, const BucketExchange& x) {
    return x.reduction == plan::Reduction::two_level ? stage.who().leaders : stage.plan().mesh.dp;
  }
  static bool sends(const Stage& stage, const BucketExchange& x) {
    return x.reduction == plan::Reduction::sparse || stage.who().leader;
  }

  /// The view of `count` packets. A threshold select may pick more than `keep` entries: the storage
  /// has room for the most, but the view, which sets the bytes of a transfer, is that of `keep`.
  static Id packet_storage(Stage& stage, const std::string& name, const program::Kernel& kernel,
                           std::int64_t count) {
    program::RoleBuilder& role = stage.role();
    const std::string all = name + ".room";
    const bool varies = packet_room(kernel) != packet_bytes(kernel);
    const Id id = role.storage({.name = varies ? all : name,
                                .dtype = program::DType::u8,
                                .elements = count * packet_room(kernel)});
    if (!varies) return id;
    return role.view({.name = name,
                      .storage = role.role().views[id].storage,
                      .end = count * packet_bytes(kernel)});
  }

  static void declare_packets(Stage& stage, Bucket& b, const BucketExchange& x) {
    program::RoleBuilder& role = stage.role();
    const std::int64_t count = packets_in(stage, x);
    if (x.reduction == plan::Reduction::two_level) check_copies(stage, b);
    if (sends(stage, x)) {
      b.views.residual = role.storage(
          {.name = "R." + b.name, .life = program::Life::state, .elements = x.kernel.of});
      if (x.kernel.selector == program::Selector::threshold)
        b.views.threshold =
            role.storage({.name = "T." + b.name, .life = program::Life::state, .elements = 2});
      if (count > 1) b.views.packet = packet_storage(stage, "packet." + b.name, x.kernel, 1);
    }
    b.views.packets = packet_storage(stage, "packets." + b.name, x.kernel, count);
    if (b.views.packet == none) b.views.packet = b.views.packets;  // there is only one
  }

  /// Sums one bucket, as far as that is possible before the check for overflow.
  static void exchange(Stage& stage, const Bucket& b, int shift) {
    if (!stage.dp()) return;
    const BucketExchange x = exchange_of(stage, b);
    if (x.reduction == plan::Reduction::dense) sum_dense(stage, b, shift);
    if (x.reduction == plan::Reduction::two_level) sum_in_node(stage, b, shift);
    if (x.reduction != plan::Reduction::dense && !checks_first(stage))
      send(stage, b, x, none, shift);
  }

  static void sum_dense(Stage& stage, const Bucket& b, int shift) {
    const bool zero = shards(stage);
    stage.role().op(
        "dp",
        stage.collective(stage.axis_channel(stage.dp()),
                         zero ? program::Move::reduce_scatter : program::Move::all_reduce),
        {ref(b.views.grad, program::Slot::source, program::Mode::read, 0, 0,
             {.partial = stage.dp()}),
         ref(zero ? b.views.sum : b.views.grad, program::Slot::target, program::Mode::write, 0, 0,
             shard_of(stage))},
        shift);
  }

  static void sum_in_node(Stage& stage, const Bucket& b, int shift) {
    const StageRole& who = stage.who();
    const program::Layout partial{.partial = stage.dp()}, between{.partial = leader_axis(stage)};
    std::vector<program::Ref> refs{
        ref(b.views.grad, program::Slot::source, program::Mode::read, 0, 0, partial)};
    if (who.leader)
      refs.push_back(ref(b.views.grad, program::Slot::target, program::Mode::write, 0, 0, between));
    if (!who.alone)
      stage.role().op("node",
                      program::Collective{.channel = node_channel(stage, "node"),
                                          .move = program::Move::reduce,
                                          .root = root_of(stage)},
                      std::move(refs), shift);
  }
  /// The role of this role's leader.
  static Id root_of(const Stage& stage) {
    const StageRole& who = stage.who();
    return static_cast<Id>(who.stage * who.kinds + who.leader_kind);
  }

  /// Selects, gathers the packets and, in two-level exchanges, hands them to the node. `overflow`:
  /// the view of check_overflow; none: not checked.
  static void send(Stage& stage, const Bucket& b, const BucketExchange& x, Id overflow, int shift) {
    program::RoleBuilder& role = stage.role();
    const bool two = x.reduction == plan::Reduction::two_level, alone = packets_in(stage, x) == 1;
    const program::Axes over = two ? leader_axis(stage) : stage.dp();
    const program::Layout one{.shard = alone ? program::Axes{0} : over};
    if (sends(stage, x)) {
      const program::Axes unsummed = two && !stage.who().alone ? leader_axis(stage) : stage.dp();
      std::vector<program::Ref> refs{
          ref(b.views.grad, program::Slot::source, program::Mode::read, 0, 0,
              {.partial = unsummed}),
          ref(b.views.residual, program::Slot::residual, program::Mode::add, 0, 1),
          ref(b.views.packet, program::Slot::target, program::Mode::write, 0, 0, one)};
      if (b.views.threshold != none)
        refs.push_back(ref(b.views.threshold, program::Slot::threshold, program::Mode::add, 0, 1));
      if (overflow != none) {
        refs.push_back(ref(overflow, program::Slot::norm, program::Mode::read));
        refs.push_back(stage.optimizer().scale());
      }
      role.op("compute", x.kernel, std::move(refs), shift);
      if (!alone)
        role.op(two ? "leaders" : "dp",
                stage.collective(two ? leader_channel(stage) : stage.axis_channel(over),
                                 program::Move::all_gather),
                {ref(b.views.packet, program::Slot::source, program::Mode::read, 0, 0, one),
                 ref(b.views.packets, program::Slot::target, program::Mode::write)},
                shift);
    }
    if (two && !stage.who().alone)
      role.op(
          "node.packets",
          program::Collective{.channel = node_channel(stage, "node.packets"),
                              .move = program::Move::broadcast,
                              .root = root_of(stage)},
          {stage.who().leader ? ref(b.views.packets, program::Slot::source, program::Mode::read)
                              : ref(b.views.packets, program::Slot::target, program::Mode::write)},
          shift);
  }

  static void add_up(Stage& stage, const Bucket& b, int shift) {
    const BucketExchange x = exchange_of(stage, b);
    if (x.reduction == plan::Reduction::dense) return;
    program::Kernel kernel = x.kernel;
    kernel.kind = program::KernelKind::scatter_add;
    kernel.feedback = {};
    std::vector<program::Ref> refs{
        ref(b.views.packets, program::Slot::source, program::Mode::read),
        ref(b.views.sum, program::Slot::target, program::Mode::write, 0, 0, shard_of(stage))};
    if (checks_first(stage)) refs.push_back(stage.optimizer().scale());
    stage.role().op("compute", kernel, std::move(refs), shift);
  }

  /// The sum of squares of all gradients over all ranks, before any select. Not finite: overflow.
  static Id check_overflow(Stage& stage, int shift) {
    program::RoleBuilder& role = stage.role();
    const program::Axes over = stage.pp() | stage.dp() | stage.tp();
    const Id overflow =
        role.storage({.name = "overflow", .life = program::Life::buffer, .elements = 1});
    bool first = true;
    const auto measure = [&](program::Ref source, double scale) {
      source.slot = program::Slot::source;
      role.op(
          "compute", program::Kernel{.kind = program::KernelKind::measure, .scale = scale},
          {source, ref(overflow, program::Slot::target,
                       first ? program::Mode::write : program::Mode::add, 0, 0, {.partial = over})},
          shift);
      first = false;
    };
    for (const Bucket& b : stage.buckets()) {
      const BucketExchange x = exchange_of(stage, b);
      const bool two = x.reduction == plan::Reduction::two_level, alone = stage.who().alone;
      if (x.reduction == plan::Reduction::dense)
        measure(ref(b.views.sum, program::Slot::source, program::Mode::read, 0, 0, shard_of(stage)),
                1);
      else if (!two || stage.who().leader)
        measure(ref(b.views.grad, program::Slot::source, program::Mode::read, 0, 0,
                    {.partial = two && !alone ? leader_axis(stage) : stage.dp()}),
                1);
    }
    // A rank with no local gradient contributes 0.
    if (first) measure(stage.optimizer().scale(), 0);
    role.op(
        "overflow",
        program::Collective{.channel = stage.axis_channel(over), .move = program::Move::all_reduce},
        {ref(overflow, program::Slot::source, program::Mode::read, 0, 0, {.partial = over}),
         ref(overflow, program::Slot::target, program::Mode::write)},
        shift);
    return overflow;
  }
};

}  // namespace

const GradientSync& sparse(const plan::Plan&) {
  static const Sparse sync;
  return sync;
}

}  // namespace rehearse::methods
