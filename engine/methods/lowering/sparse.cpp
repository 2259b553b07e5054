// Gradients summed layer by layer, each in its own way (Sun 2026, section 3.3):
//   dense: a ring all-reduce over the data-parallel ranks;
//   sparse: each rank adds its gradient to a residual, sends k chosen entries and keeps the rest
//   (Aji & Heafield 2017; Lin et al., DGC, ICLR 2018); all gather the packets and sum them;
//   two_level: the ranks of a node reduce to one of them, its leader; leaders choose and gather
//   across nodes, and hand the packets on to their node. The residual is the leader's alone.
// Sums over tensor ranks and tied copies come first, so that copies choose alike. A packet goes
// once a step: a choice needs the whole sum. With ZeRO 1 and 2 every rank adds the packets into its
// shard only; under 2 the gradient lives from its first micro-batch until it is sent. With 16 bits
// the chosen values, their sum and the residual are fp32, the residual without the loss scale;
// under fp16 nothing is chosen before all ranks know that nothing overflowed. Bytes a rank sends:
// (n - 1) packets, so it wins over a dense ring only while a packet is smaller than 2 / n of the
// gradient.
#include "engine/methods/lowering/layer_exchange.h"
#include "engine/methods/lowering/updates.h"
#include "engine/program/packets.h"

namespace rehearse {
namespace {

class Sparse final : public GradientSync {
 public:
  bool bucket_per_segment(const Plan& plan) const override { return !plan.layers.empty(); }
  bool bucket_per_kind(const Plan& plan) const override { return plan.zero > 0 || chooses(plan); }

  std::vector<Id> leaders(const Plan& plan, const Program& program) const override {
    return uses(plan, Reduction::two_level) ? node_leaders(plan, program) : std::vector<Id>();
  }

  void declare(Stage& stage, Bucket& b) const override {
    const Plan& plan = stage.plan();
    RoleBuilder& role = stage.role();
    BucketViews& views = b.views;
    const bool zero = shards(stage);
    const std::int64_t shard = zero ? b.elements / plan.dp : b.elements;
    views.weight = views.own_weight = role.storage({.name = "W." + b.name,
                                                    .life = Life::state,
                                                    .dtype = plan.precision,
                                                    .elements = b.elements});
    views.grad = views.sum =
        role.storage({.name = "G." + b.name,
                      .life = plan.zero == 2 && zero ? Life::value : Life::buffer,
                      .dtype = plan.precision,
                      .elements = b.elements});
    stage.declare_groups(b);
    if (zero) views.own_weight = stage.own_part(views.weight, b);
    const BucketExchange x = exchange_of(stage, b);
    if (x.reduction != Reduction::dense && plan.precision != DType::f32)
      views.sum = role.storage({.name = "S." + b.name, .elements = shard});
    else if (zero && plan.zero == 2)
      views.sum = role.storage({.name = "S." + b.name,
                                .life = Life::buffer,
                                .dtype = plan.precision,
                                .elements = shard});
    else if (zero)
      views.sum = stage.own_part(views.grad, b);
    stage.optimizer().declare(b, shard);
    if (x.reduction != Reduction::dense) declare_packets(stage, b, x);
  }

  Ref param(const Stage& stage, Id group, Pass, int) const override {
    return ref(stage.weight(group), Slot::param, Mode::read, 0, 1);
  }

  void reduce(Stage& stage, Bucket& b, int, bool last, int shift) const override {
    if (!last) return;
    reduce_model_axes(stage, b, 0, shift);
    if (!b.tied) exchange(stage, b, shift);
  }

  void finish(Stage& stage, int shift) const override {
    // Copies of tied weights are summed when the first stage has done its last backward: whoever
    // waited for them on the compute lane earlier would wait for ever.
    for (const Bucket& b : stage.buckets())
      if (b.tied) exchange(stage, b, shift);
    Id overflow = none;
    if (checks_first(stage)) {
      overflow = check_overflow(stage, shift);
      for (const Bucket& b : stage.buckets())
        if (const BucketExchange x = exchange_of(stage, b); x.reduction != Reduction::dense)
          send(stage, b, x, overflow, shift);
    }
    // Packets are added up once backward is done, so that it never waits for the network; without a
    // common norm just before the update that needs the sum.
    const bool at_once = !stage.optimizer().needs_norm();
    if (!at_once) {
      for (const Bucket& b : stage.buckets()) add_up(stage, b, shift);
      emit_norm(stage, shard_of(stage), shift);
      // Adds 0 x overflow, so that inf or NaN spreads into the norm of a step that overflowed.
      if (overflow != none)
        stage.role().op("compute", Kernel{.kind = Local::measure, .scale = 0},
                        {ref(overflow, Slot::source, Mode::read),
                         ref(stage.optimizer().norm(), Slot::target, Mode::add)},
                        shift);
    }
    for (const Bucket& b : stage.buckets()) {
      if (at_once) add_up(stage, b, shift);
      emit_update(stage, b, shard_of(stage), shift);
    }
    stage.optimizer().rescale(shift);
    if (shards(stage)) gather_weights(stage, shift);
  }

 private:
  static bool shards(const Stage& stage) { return stage.dp() && stage.plan().zero > 0; }
  static Layout shard_of(const Stage& stage) {
    return {.shard = shards(stage) ? stage.dp() : Axes{0}};
  }
  /// Before anything is chosen: an overflow anywhere must leave every residual as it was.
  static bool checks_first(const Stage& stage) {
    return stage.dp() && stage.plan().precision == DType::f16 && chooses(stage.plan());
  }
  static std::int64_t packets_in(const Stage& stage, const BucketExchange& x) {
    return x.reduction == Reduction::two_level ? stage.who().leaders : stage.plan().dp;
  }
  static bool sends(const Stage& stage, const BucketExchange& x) {
    return x.reduction == Reduction::sparse || stage.who().leader;
  }

  /// Memory for as many entries as there may be; transfers of as many as are wanted.
  static Id packet_storage(Stage& stage, const std::string& name, const Kernel& kernel,
                           std::int64_t count) {
    RoleBuilder& role = stage.role();
    const std::string all = name + ".room";
    const bool varies = packet_room(kernel) != packet_bytes(kernel);
    const Id id = role.storage(
        {.name = varies ? all : name, .dtype = DType::u8, .elements = count * packet_room(kernel)});
    if (!varies) return id;
    return role.view({.name = name,
                      .storage = role.role().views[id].storage,
                      .end = count * packet_bytes(kernel)});
  }

  static void declare_packets(Stage& stage, Bucket& b, const BucketExchange& x) {
    RoleBuilder& role = stage.role();
    const std::int64_t count = packets_in(stage, x);
    if (x.reduction == Reduction::two_level) check_copies(stage, b);
    if (sends(stage, x)) {
      b.views.residual =
          role.storage({.name = "R." + b.name, .life = Life::state, .elements = x.kernel.of});
      if (x.kernel.selector == Selector::threshold)
        b.views.threshold =
            role.storage({.name = "T." + b.name, .life = Life::state, .elements = 2});
      if (count > 1) b.views.packet = packet_storage(stage, "packet." + b.name, x.kernel, 1);
    }
    b.views.packets = packet_storage(stage, "packets." + b.name, x.kernel, count);
    if (b.views.packet == none) b.views.packet = b.views.packets;  // the only one
  }

  /// Of one bucket, as far as it can go before all ranks have said that nothing overflowed.
  static void exchange(Stage& stage, const Bucket& b, int shift) {
    if (!stage.dp()) return;
    const BucketExchange x = exchange_of(stage, b);
    if (x.reduction == Reduction::dense) sum_dense(stage, b, shift);
    if (x.reduction == Reduction::two_level) sum_in_node(stage, b, shift);
    if (x.reduction != Reduction::dense && !checks_first(stage)) send(stage, b, x, none, shift);
  }

  static void sum_dense(Stage& stage, const Bucket& b, int shift) {
    const bool zero = shards(stage);
    stage.role().op(
        "dp",
        stage.collective(stage.axis_channel(stage.dp()),
                         zero ? Move::reduce_scatter : Move::all_reduce),
        {ref(b.views.grad, Slot::source, Mode::read, 0, 0, {.partial = stage.dp()}),
         ref(zero ? b.views.sum : b.views.grad, Slot::target, Mode::write, 0, 0, shard_of(stage))},
        shift);
  }

  static void sum_in_node(Stage& stage, const Bucket& b, int shift) {
    const StageRole& who = stage.who();
    const Layout partial{.partial = stage.dp()}, between{.partial = leader_axis(stage)};
    std::vector<Ref> refs{ref(b.views.grad, Slot::source, Mode::read, 0, 0, partial)};
    if (who.leader) refs.push_back(ref(b.views.grad, Slot::target, Mode::write, 0, 0, between));
    if (!who.alone)
      stage.role().op(
          "node",
          Collective{
              .channel = node_channel(stage, "node"), .move = Move::reduce, .root = root_of(stage)},
          std::move(refs), shift);
  }
  /// The role of this role's leader.
  static Id root_of(const Stage& stage) {
    const StageRole& who = stage.who();
    return static_cast<Id>(who.stage * who.kinds + who.led_by);
  }

  /// `overflow`: what says that the step overflows; none where nothing is checked before.
  static void send(Stage& stage, const Bucket& b, const BucketExchange& x, Id overflow, int shift) {
    RoleBuilder& role = stage.role();
    const bool two = x.reduction == Reduction::two_level, alone = packets_in(stage, x) == 1;
    const Axes over = two ? leader_axis(stage) : stage.dp();
    const Layout one{.shard = alone ? Axes{0} : over};
    if (sends(stage, x)) {
      const Axes unsummed = two && !stage.who().alone ? leader_axis(stage) : stage.dp();
      std::vector<Ref> refs{
          ref(b.views.grad, Slot::source, Mode::read, 0, 0, {.partial = unsummed}),
          ref(b.views.residual, Slot::residual, Mode::add, 0, 1),
          ref(b.views.packet, Slot::target, Mode::write, 0, 0, one)};
      if (b.views.threshold != none)
        refs.push_back(ref(b.views.threshold, Slot::threshold, Mode::add, 0, 1));
      if (overflow != none) {
        refs.push_back(ref(overflow, Slot::norm, Mode::read));
        refs.push_back(stage.optimizer().scale());
      }
      role.op("compute", x.kernel, std::move(refs), shift);
      if (!alone)
        role.op(two ? "leaders" : "dp",
                Collective{.channel = two ? leader_channel(stage) : stage.axis_channel(over),
                           .move = Move::all_gather},
                {ref(b.views.packet, Slot::source, Mode::read, 0, 0, one),
                 ref(b.views.packets, Slot::target, Mode::write)},
                shift);
    }
    if (two && !stage.who().alone)
      role.op("node.packets",
              Collective{.channel = node_channel(stage, "node.packets"),
                         .move = Move::broadcast,
                         .root = root_of(stage)},
              {stage.who().leader ? ref(b.views.packets, Slot::source, Mode::read)
                                  : ref(b.views.packets, Slot::target, Mode::write)},
              shift);
  }

  static void add_up(Stage& stage, const Bucket& b, int shift) {
    const BucketExchange x = exchange_of(stage, b);
    if (x.reduction == Reduction::dense) return;
    Kernel kernel{.kind = Local::scatter_add,
                  .of = x.kernel.of,
                  .keep = x.kernel.keep,
                  .selector = x.kernel.selector,
                  .coding = x.kernel.coding};
    if (kernel.selector == Selector::random_k) kernel.selector = Selector::top_k;
    std::vector<Ref> refs{ref(b.views.packets, Slot::source, Mode::read),
                          ref(b.views.sum, Slot::target, Mode::write, 0, 0, shard_of(stage))};
    if (checks_first(stage)) refs.push_back(stage.optimizer().scale());
    stage.role().op("compute", kernel, std::move(refs), shift);
  }

  /// The sum of squares of all gradients as they stand before anything is chosen, on all ranks.
  static Id check_overflow(Stage& stage, int shift) {
    RoleBuilder& role = stage.role();
    const Axes over = stage.pp() | stage.dp() | stage.tp();
    const Id overflow = role.storage({.name = "overflow", .life = Life::buffer, .elements = 1});
    bool first = true;
    const auto measure = [&](Ref source, double scale) {
      source.slot = Slot::source;
      role.op("compute", Kernel{.kind = Local::measure, .scale = scale},
              {source, ref(overflow, Slot::target, first ? Mode::write : Mode::add, 0, 0,
                           {.partial = over})},
              shift);
      first = false;
    };
    for (const Bucket& b : stage.buckets()) {
      const BucketExchange x = exchange_of(stage, b);
      const bool two = x.reduction == Reduction::two_level, alone = stage.who().alone;
      if (x.reduction == Reduction::dense)
        measure(ref(b.views.sum, Slot::source, Mode::read, 0, 0, shard_of(stage)), 1);
      else if (!two || stage.who().leader)
        measure(ref(b.views.grad, Slot::source, Mode::read, 0, 0,
                    {.partial = two && !alone ? leader_axis(stage) : stage.dp()}),
                1);
    }
    // A rank with no local gradient contributes 0.
    if (first) measure(stage.optimizer().scale(), 0);
    role.op("overflow", Collective{.channel = stage.axis_channel(over), .move = Move::all_reduce},
            {ref(overflow, Slot::source, Mode::read, 0, 0, {.partial = over}),
             ref(overflow, Slot::target, Mode::write)},
            shift);
    return overflow;
  }
};

}  // namespace

const GradientSync& sparse(const Plan&) {
  static const Sparse sync;
  return sync;
}

}  // namespace rehearse
