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
#include <ranges>

#include "engine/lowering/layer_exchange.h"
#include "engine/lowering/replicated.h"
#include "engine/packets.h"

namespace rehearse {
namespace {

class Sparse final : public GradientSync {
 public:
  bool bucket_per_segment(const Plan& plan) const override { return !plan.layers.empty(); }
  bool bucket_per_kind(const Plan& plan) const override { return plan.zero > 0 || chooses(plan); }

  std::vector<Id> leaders(const Plan& plan, const Program& program) const override {
    return uses(plan, Reduction::two_level) ? node_leaders(plan, program) : std::vector<Id>();
  }

  void declare(Stage& stage, const Bucket& b) const override {
    const Plan& plan = stage.plan();
    RoleBuilder& role = stage.role();
    const bool zero = shards(stage);
    const std::int64_t shard = zero ? b.elements / plan.dp : b.elements;
    const auto own = [&](const std::string& storage) {
      role.view({.name = storage + ".own",
                 .storage = role.role().views[role.view(storage)].storage,
                 .end = b.elements,
                 .slice = stage.dp()});
    };
    role.storage({.name = "W." + b.name,
                  .life = Life::state,
                  .dtype = plan.precision,
                  .elements = b.elements});
    role.storage({.name = "G." + b.name,
                  .life = plan.zero == 2 && zero ? Life::value : Life::buffer,
                  .dtype = plan.precision,
                  .elements = b.elements});
    declare_group_views(stage, b, "W.", "W." + b.name);
    declare_group_views(stage, b, "G.", "G." + b.name);
    if (zero) own("W." + b.name);
    const BucketExchange x = exchange_of(stage, b);
    if (x.reduction != Reduction::dense && plan.precision != DType::f32)
      role.storage({.name = "S." + b.name, .elements = shard});
    else if (zero && plan.zero == 2)
      role.storage({.name = "S." + b.name,
                    .life = Life::buffer,
                    .dtype = plan.precision,
                    .elements = shard});
    else if (zero)
      own("G." + b.name);
    stage.declare_optimizer(b, shard);
    if (x.reduction != Reduction::dense) declare_packets(stage, b, x);
  }

  Ref param(const Stage& stage, Id group, Pass, int) const override {
    return stage.ref(stage.weight(group), Slot::param, Mode::read, 0, 1);
  }

  void reduce(Stage& stage, const Bucket& b, int, bool last, int shift) const override {
    if (!last) return;
    stage.reduce_model_axes(b, "G." + b.name, 0, shift);
    if (!b.tied) exchange(stage, b, shift);
  }

  void finish(Stage& stage, int shift) const override {
    // Copies of tied weights are summed when the first stage has done its last backward: whoever
    // waited for them on the compute lane earlier would wait for ever.
    for (const Bucket& b : stage.buckets())
      if (b.tied) exchange(stage, b, shift);
    const bool checks = checks_first(stage);
    if (checks) {
      check_overflow(stage, shift);
      for (const Bucket& b : stage.buckets())
        if (const BucketExchange x = exchange_of(stage, b); x.reduction != Reduction::dense)
          send(stage, b, x, shift);
    }
    // Packets are added up once backward is done, so that it never waits for the network; without a
    // common norm just before the update that needs the sum.
    const bool at_once = !stage.needs_norm();
    std::vector<std::pair<const Bucket*, Ref>> grads;
    for (const Bucket& b : stage.buckets()) grads.emplace_back(&b, summed(stage, b));
    if (!at_once) {
      for (const auto& [b, grad] : grads) add_up(stage, *b, grad, shift);
      stage.emit_norm(grads, shards(stage) ? stage.dp() : Axes{0}, shift);
      // Times nothing: makes the norm that of a step that overflowed, and changes no other.
      if (checks)
        stage.role().op("compute", Kernel{.kind = Local::measure, .scale = 0},
                        {stage.ref("overflow", Slot::source, Mode::read),
                         stage.ref("norm", Slot::target, Mode::add)},
                        shift);
    }
    for (const auto& [b, grad] : grads) {
      if (at_once) add_up(stage, *b, grad, shift);
      const std::string weight = "W." + b->name + (shards(stage) ? ".own" : "");
      stage.emit_update(*b, stage.ref(weight, Slot::param, Mode::add, 0, 0, shard_of(stage)), grad,
                        shift);
    }
    stage.emit_rescale(shift);
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
  static void packet_storage(Stage& stage, const std::string& name, const Kernel& kernel,
                             std::int64_t count) {
    RoleBuilder& role = stage.role();
    const std::string all = name + ".room";
    const bool varies = packet_room(kernel) != packet_bytes(kernel);
    const Id id = role.storage(
        {.name = varies ? all : name, .dtype = DType::u8, .elements = count * packet_room(kernel)});
    if (varies)
      role.view({.name = name,
                 .storage = role.role().views[id].storage,
                 .end = count * packet_bytes(kernel)});
  }

  static void declare_packets(Stage& stage, const Bucket& b, const BucketExchange& x) {
    RoleBuilder& role = stage.role();
    const std::int64_t count = packets_in(stage, x);
    if (x.reduction == Reduction::two_level) check_copies(stage, b);
    if (sends(stage, x)) {
      role.storage({.name = "R." + b.name, .life = Life::state, .elements = x.kernel.of});
      if (x.kernel.selector == Selector::threshold)
        role.storage({.name = "T." + b.name, .life = Life::state, .elements = 2});
      if (count > 1) packet_storage(stage, "packet." + b.name, x.kernel, 1);
    }
    packet_storage(stage, "packets." + b.name, x.kernel, count);
  }

  /// Of one bucket, as far as it can go before all ranks have said that nothing overflowed.
  static void exchange(Stage& stage, const Bucket& b, int shift) {
    if (!stage.dp()) return;
    const BucketExchange x = exchange_of(stage, b);
    if (x.reduction == Reduction::dense) sum_dense(stage, b, shift);
    if (x.reduction == Reduction::two_level) sum_in_node(stage, b, shift);
    if (x.reduction != Reduction::dense && !checks_first(stage)) send(stage, b, x, shift);
  }

  static void sum_dense(Stage& stage, const Bucket& b, int shift) {
    const bool zero = shards(stage);
    Ref target = zero ? summed(stage, b) : stage.ref("G." + b.name, Slot::target, Mode::write);
    target.slot = Slot::target;
    target.mode = Mode::write;
    stage.role().op(
        "dp",
        stage.collective(stage.axis_channel(stage.dp()),
                         zero ? Move::reduce_scatter : Move::all_reduce),
        {stage.ref("G." + b.name, Slot::source, Mode::read, 0, 0, {.partial = stage.dp()}), target},
        shift);
  }

  static void sum_in_node(Stage& stage, const Bucket& b, int shift) {
    const StageRole& who = stage.who();
    const Layout partial{.partial = stage.dp()}, between{.partial = leader_axis(stage)};
    const std::string grad = "G." + b.name;
    std::vector<Ref> refs{stage.ref(grad, Slot::source, Mode::read, 0, 0, partial)};
    if (who.leader) refs.push_back(stage.ref(grad, Slot::target, Mode::write, 0, 0, between));
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

  static void send(Stage& stage, const Bucket& b, const BucketExchange& x, int shift) {
    RoleBuilder& role = stage.role();
    const bool two = x.reduction == Reduction::two_level, alone = packets_in(stage, x) == 1;
    const Axes over = two ? leader_axis(stage) : stage.dp();
    const std::string packets = "packets." + b.name;
    const std::string packet = alone ? packets : "packet." + b.name;
    const Layout one{.shard = alone ? Axes{0} : over};
    if (sends(stage, x)) {
      const Axes unsummed = two && !stage.who().alone ? leader_axis(stage) : stage.dp();
      std::vector<Ref> refs{
          stage.ref("G." + b.name, Slot::source, Mode::read, 0, 0, {.partial = unsummed}),
          stage.ref("R." + b.name, Slot::residual, Mode::add, 0, 1),
          stage.ref(packet, Slot::target, Mode::write, 0, 0, one)};
      if (x.kernel.selector == Selector::threshold)
        refs.push_back(stage.ref("T." + b.name, Slot::threshold, Mode::add, 0, 1));
      if (checks_first(stage)) {
        refs.push_back(stage.ref("overflow", Slot::norm, Mode::read));
        refs.push_back(stage.ref("scale", Slot::scale, Mode::read, 0, 1));
      }
      role.op("compute", x.kernel, std::move(refs), shift);
      if (!alone)
        role.op(two ? "leaders" : "dp",
                Collective{.channel = two ? leader_channel(stage) : stage.axis_channel(over),
                           .move = Move::all_gather},
                {stage.ref(packet, Slot::source, Mode::read, 0, 0, one),
                 stage.ref(packets, Slot::target, Mode::write)},
                shift);
    }
    if (two && !stage.who().alone)
      role.op("node.packets",
              Collective{.channel = node_channel(stage, "node.packets"),
                         .move = Move::broadcast,
                         .root = root_of(stage)},
              {stage.who().leader ? stage.ref(packets, Slot::source, Mode::read)
                                  : stage.ref(packets, Slot::target, Mode::write)},
              shift);
  }

  /// Where a bucket's sum is found.
  static Ref summed(Stage& stage, const Bucket& b) {
    const RoleBuilder& role = stage.role();
    const std::string own = "G." + b.name + ".own";
    const std::string name = role.has("S." + b.name) ? "S." + b.name
                             : role.has(own)         ? own
                                                     : "G." + b.name;
    return stage.ref(name, Slot::grad, Mode::read, 0, 0, shard_of(stage));
  }

  static void add_up(Stage& stage, const Bucket& b, Ref sum, int shift) {
    const BucketExchange x = exchange_of(stage, b);
    if (x.reduction == Reduction::dense) return;
    Kernel kernel{.kind = Local::scatter_add,
                  .of = x.kernel.of,
                  .keep = x.kernel.keep,
                  .selector = x.kernel.selector,
                  .coding = x.kernel.coding};
    if (kernel.selector == Selector::random_k) kernel.selector = Selector::top_k;
    sum.slot = Slot::target;
    sum.mode = Mode::write;
    std::vector<Ref> refs{stage.ref("packets." + b.name, Slot::source, Mode::read), sum};
    if (checks_first(stage)) refs.push_back(stage.ref("scale", Slot::scale, Mode::read, 0, 1));
    stage.role().op("compute", kernel, std::move(refs), shift);
  }

  /// The sum of squares of all gradients as they stand before anything is chosen, on all ranks.
  static void check_overflow(Stage& stage, int shift) {
    RoleBuilder& role = stage.role();
    const Axes over = stage.pp() | stage.dp() | stage.tp();
    role.storage({.name = "overflow", .life = Life::buffer, .elements = 1});
    bool first = true;
    const auto measure = [&](Ref source, double scale) {
      source.slot = Slot::source;
      role.op("compute", Kernel{.kind = Local::measure, .scale = scale},
              {source, stage.ref("overflow", Slot::target, first ? Mode::write : Mode::add, 0, 0,
                                 {.partial = over})},
              shift);
      first = false;
    };
    for (const Bucket& b : stage.buckets()) {
      const BucketExchange x = exchange_of(stage, b);
      const bool two = x.reduction == Reduction::two_level, alone = stage.who().alone;
      if (x.reduction == Reduction::dense)
        measure(summed(stage, b), 1);
      else if (!two || stage.who().leader)
        measure(stage.ref("G." + b.name, Slot::source, Mode::read, 0, 0,
                          {.partial = two && !alone ? leader_axis(stage) : stage.dp()}),
                1);
    }
    // Whose sums are all with its leader has nothing of its own to say.
    if (first) measure(stage.ref("scale", Slot::source, Mode::read, 0, 1), 0);
    role.op("overflow", Collective{.channel = stage.axis_channel(over), .move = Move::all_reduce},
            {stage.ref("overflow", Slot::source, Mode::read, 0, 0, {.partial = over}),
             stage.ref("overflow", Slot::target, Mode::write)},
            shift);
  }

  /// In the order in which the next forward asks for them, so that it starts after the first.
  static void gather_weights(Stage& stage, int shift) {
    for (const Bucket& b : std::ranges::reverse_view(stage.buckets())) {
      const std::string name = "W." + b.name;
      stage.role().op("dp.gather",
                      stage.collective(channel(stage.program(), "dp.gather", {.axes = stage.dp()}),
                                       Move::all_gather),
                      {stage.ref(name + ".own", Slot::source, Mode::read, 0, 0, shard_of(stage)),
                       stage.ref(name, Slot::target, Mode::write)},
                      shift);
    }
  }
};

}  // namespace

const GradientSync& sparse(const Plan&) {
  static const Sparse sync;
  return sync;
}

}  // namespace rehearse
