// The fused sync: data parallelism whose gradients are copied into one buffer for each bucket (a
// "fusion buffer", a "pack"), all-reduced there and copied back. Two frameworks do so:
//
//   Horovod (Sergeev & Del Balso 2018). A coordinator on each rank wakes up once a cycle and agrees
//   with the other ranks which tensors are ready on all of them. Which tensors share a buffer, the
//   plan says (planner/fusion.h). One bucket on a rank:
//
//     compute     backward |
//     coordinate           | pause: half a cycle | agree |
//     dp                                                 | copy in | all-reduce | copy out |
//
//   Tensors that all ranks have met before are bits in a vector (the response cache), which one
//   all-reduce combines. In the first step, or without a cache, each rank sends a list of ready
//   tensors to rank 0, which answers with the list of those to reduce.
//
//   TensorFlow's MultiWorkerMirroredStrategy. It packs gradients in the compute stream, without a
//   coordinator, and each step ends when all ranks have ended it.
#include <algorithm>
#include <limits>

#include "engine/methods/lowering/exchange/replicated.h"
#include "engine/methods/lowering/updates.h"

namespace rehearse::methods {
namespace {

/// Bytes that say of one tensor that it is ready: its name, shape and type in a message. Assumed:
/// Horovod's messages have no fixed size.
constexpr std::int64_t bytes_of_a_request = 128;

class Fused : public Replicated {
 public:
  void declare(Stage& stage, Bucket& b) const override {
    Replicated::declare(stage, b);
    if (stage.dp())
      b.views.packet = stage.role().storage(
          {.name = "F." + b.name, .dtype = stage.plan().gradient_type(), .elements = b.elements});
  }

 protected:
  /// Copies a bucket's gradient into its buffer and all-reduces it there. Returns the copy.
  static Id sum(Stage& stage, const Bucket& b, const char* lane, int shift) {
    program::RoleBuilder& role = stage.role();
    const program::Layout partial{.partial = stage.dp()};
    const Id in =
        role.op(lane, program::Copy{},
                {ref(b.views.grad, program::Slot::source, program::Mode::read, 0, 0, partial),
                 ref(b.views.packet, program::Slot::target, program::Mode::write, 0, 0, partial)},
                shift);
    role.op("dp", stage.collective(stage.axis_channel(stage.dp()), program::Move::all_reduce),
            {ref(b.views.packet, program::Slot::source, program::Mode::read, 0, 0, partial),
             ref(b.views.packet, program::Slot::target, program::Mode::write)},
            shift);
    return in;
  }
  static void copy_back(Stage& stage, const Bucket& b, const char* lane, int shift) {
    stage.role().op(lane, program::Copy{},
                    {ref(b.views.packet, program::Slot::source, program::Mode::read),
                     ref(b.views.grad, program::Slot::target, program::Mode::write)},
                    shift);
  }

  /// What the ranks of a group tell each other.
  struct Message {
    std::string name = {};
    std::int64_t bytes = 4;
    const char* lane = nullptr;
    bool through_rank_0 = false;  // else all ranks at once
    program::When when = {};
  };
  /// All ranks send a message and receive the answer, after op `ready`. Returns the op that reads
  /// the answer.
  static Id agree(Stage& stage, const Message& message, Id ready, int shift) {
    program::RoleBuilder& role = stage.role();
    const program::When when = message.when;
    const Id flags = role.storage(
        {.name = message.name, .life = program::Life::buffer, .elements = (message.bytes + 3) / 4});
    const program::Layout partial{.partial = stage.dp()};
    const program::Ref own = ref(flags, program::Slot::source, program::Mode::read, 0, 0, partial);
    const program::Ref answer = ref(flags, program::Slot::target, program::Mode::write);
    const Id over = channel(stage.program(), message.lane, {.axes = stage.dp()});
    role.throttle(role.op(message.lane, program::Pause{},
                          {ref(flags, program::Slot::target, program::Mode::write, 0, 0, partial)},
                          shift, when),
                  ready);
    if (!message.through_rank_0) {
      role.op(message.lane, program::Collective{.channel = over, .move = program::Move::all_reduce},
              {own, answer}, shift, when);
    } else {
      const bool root = stage.who().leader;
      const auto move = [&](program::Move what, std::vector<program::Ref> refs) {
        role.op(message.lane,
                program::Collective{.channel = over,
                                    .move = what,
                                    .algorithm = program::Algorithm::direct,
                                    .root = static_cast<Id>(stage.who().leader_kind)},
                std::move(refs), shift, when);
      };
      move(program::Move::reduce, root ? std::vector{own, answer} : std::vector{own});
      move(program::Move::broadcast,
           {root ? ref(flags, program::Slot::source, program::Mode::read) : answer});
    }
    return role.op(message.lane, program::Pause{},
                   {ref(flags, program::Slot::source, program::Mode::read)}, shift, when);
  }
};

class Horovod final : public Fused {
 public:
  bool closes_after(const plan::Plan& plan, Id segment) const override {
    return std::ranges::count(plan.exchange.fusion.fused_after, segment) > 0;
  }
  std::vector<Id> leaders(const plan::Plan&, const program::Program& program) const override {
    std::vector<Id> leader(static_cast<std::size_t>(program.world_size), none);
    if (!data_axes(program)) return {};
    for (const std::vector<Id>& group : groups_of(program, {.group = {.axes = data_axes(program)}}))
      for (const Id rank : group) leader[rank] = group.front();
    return leader;
  }

 private:
  void exchange(Stage& stage, const Bucket& b, int shift) const override {
    if (!stage.dp()) return;
    program::RoleBuilder& role = stage.role();
    const auto made = static_cast<Id>(role.role().ops.size() - 1);  // the last gradient
    const plan::Exchange& x = stage.plan().exchange;
    std::int64_t here = 0, all = 0;
    for (const Id g : b.groups)
      here += static_cast<std::int64_t>(stage.model().groups[g].tensors.size());
    for (const model::ParamGroup& group : stage.model().groups)
      all += static_cast<std::int64_t>(group.tensors.size());
    Id last =
        role.op("coordinate", program::Pause{.seconds = x.fusion.cycle_time->value / 2}, {}, shift);
    role.throttle(last, made);
    // A cache that is too small drops each tensor before its next turn.
    const bool cached = *x.fusion.response_cache >= all;
    last = agree(stage,
                 {.name = "requests." + b.name,
                  .bytes = here * bytes_of_a_request,
                  .lane = "coordinate",
                  .through_rank_0 = true,
                  .when = {.until = cached ? 1 : 0}},
                 last, shift);
    constexpr std::int64_t flags = 3;  // beside the bits of the tensors, in words of 64 bits
    if (cached)
      last = agree(stage,
                   {.name = "bits." + b.name,
                    .bytes = (all + flags + 63) / 64 * 8,
                    .lane = "coordinate",
                    .when = {.from = 1}},
                   last, shift);
    role.throttle(sum(stage, b, "dp", shift), last);
    copy_back(stage, b, "dp", shift);
  }
};

class MultiWorkerMirrored final : public Fused {
 public:
  double bucket_bytes(const plan::Plan& plan, const model::ModelSpec& model) const override {
    const double bytes = Fused::bucket_bytes(plan, model);
    return bytes > 0 ? bytes : std::numeric_limits<double>::infinity();  // 0: one pack
  }
  void finish(Stage& stage, int shift) const override {
    if (stage.dp())
      for (const Bucket& b : stage.buckets()) copy_back(stage, b, "compute", shift);
    Fused::finish(stage, shift);
    if (!stage.dp()) return;
    program::RoleBuilder& role = stage.role();
    const Id done = agree(stage, {.name = "done", .lane = "barrier"},
                          static_cast<Id>(role.role().ops.size() - 1), shift);
    role.throttle(0, done, 1);  // the next step begins
  }

 private:
  void exchange(Stage& stage, const Bucket& b, int shift) const override {
    if (stage.dp()) sum(stage, b, "compute", shift);
  }
};

}  // namespace

const GradientSync& horovod() {
  static const Horovod sync;
  return sync;
}
const GradientSync& multi_worker_mirrored() {
  static const MultiWorkerMirrored sync;
  return sync;
}

}  // namespace rehearse::methods
