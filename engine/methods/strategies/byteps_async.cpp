// BytePS's asynchronous mode (bytedance/byteps at f5df52f, BYTEPS_ENABLE_ASYNC): every worker takes
// steps of its own, with an optimizer of its own, and sends what the step has moved its weights by.
// A server adds that to its weights at once and answers with them:
//
//   compute  | passes | next = weights | update next | next -= weights |
//   push.s                                                           to server s
//   server s                                                                       adds
//   pull.s                                                                              weights
//
// - A worker's gradient is the mean over its own samples, and nobody divides what it sends by the
//   number of workers: n workers take n steps in the time of one. So Adam moves n times as far as
//   in synchronous training (BytePS calls push_pull with average = False).
// - Where weights have 16 bits, workers and servers exchange fp32: a worker keeps an fp32 copy of
//   the answer and rounds it.
// - In BytePS each tensor travels alone, and the ranks of a machine sum first. Here there is a
//   message for each server, and each rank is a machine of its own.
#include "engine/methods/lowering/own_weights.h"
#include "engine/methods/lowering/served.h"
#include "engine/methods/strategy.h"

namespace rehearse::methods {
namespace {

using program::Mode;
using program::Slot;

class Mover final : public OwnWeights {
 public:
  bool workers_run_free() const override { return true; }
  bool bucket_per_server() const override { return true; }
  double bucket_bytes(const plan::Plan& plan, const model::ModelSpec& model) const override {
    return bucket_of_server(plan, model);
  }

  void finish(Stage& stage, int shift) const override {
    for (std::size_t b = 0; b < stage.buckets().size(); ++b) {
      const Bucket& bucket = stage.buckets()[b];
      const Id next = next_weights(stage, bucket, shift);
      const auto of_next = [&](Slot slot, Mode mode) {
        return ref(next, slot, mode, 0, 0, stage.weights_layout());
      };
      const int server = server_of(stage.plan(), b);
      // -1 x (weights - next)
      kernel(stage, {.kind = program::KernelKind::drift, .scale = -1},
             {weights(stage, bucket, Slot::anchor, Mode::read, 1),
              of_next(Slot::source, Mode::read), of_next(Slot::target, Mode::write)},
             shift);
      put_to_server(stage, server, of_next(Slot::source, Mode::read), shift);
      take_answer(stage, server, weights(stage, bucket, Slot::target, Mode::write), shift);
      round(stage, bucket, shift, {});
    }
  }

 private:
  /// Copies the weights and updates the copy by the worker's gradient. Returns its view.
  static Id next_weights(Stage& stage, const Bucket& bucket, int shift) {
    const program::Layout own = stage.weights_layout();
    const Id next = storage_of(stage.role(), bucket, "next.", program::Life::value);
    kernel(stage, {.kind = program::KernelKind::weigh, .scale = 1},
           {weights(stage, bucket, Slot::source, Mode::read, 1),
            ref(next, Slot::target, Mode::write, 0, 0, own)},
           shift);
    std::vector<program::Ref> refs{ref(next, Slot::param, Mode::add, 0, 0, own),
                                   ref(bucket.views.sum, Slot::grad, Mode::read, 0, 0, own),
                                   ref(bucket.views.moment1, Slot::moment1, Mode::add, 0, 1, own)};
    if (bucket.views.moment2 != none)
      refs.push_back(ref(bucket.views.moment2, Slot::moment2, Mode::add, 0, 1, own));
    stage.role().op("compute", program::Update{}, std::move(refs), shift);
    return next;
  }
};

const GradientSync& sync(const plan::Plan&) {
  static const Mover workers;
  return workers;
}

void serve(Server& server, const std::vector<Bucket>& buckets) {
  program::RoleBuilder& role = server.role;
  role.lane("compute");
  for (const Bucket& bucket : buckets) {
    const Id weights = storage_of(role, bucket, "W.", program::Life::state),
             moved = storage_of(role, bucket, "moved.", program::Life::buffer);
    serve_by_arrival(server, ref(moved, Slot::target, Mode::write),
                     ref(weights, Slot::source, Mode::read), [&](int age) {
                       role.op("compute", program::Kernel{.kind = program::KernelKind::mix},
                               {ref(moved, Slot::source, Mode::read),
                                ref(weights, Slot::target, Mode::add, 0, age)});
                     });
  }
}

LoweredProgram lower(const plan::Plan& plan, const model::ModelSpec& model) {
  return lower_served(plan, model, sync(plan), serve);
}

void check(const plan::Plan& plan, const model::ModelSpec&) {
  needs_server(plan);
  if (!plan.master_weights)
    refuse("master_weights", "false", "servers add up weights in fp32; must be true");
  if (plan.exchange.observe > 0)
    refuse("name", plan.method,
           "applies every worker's update as it arrives: there is no gradient of a step whose "
           "variance could be observed; ps-sync has one");
}

const Register method(
    "byteps-async",
    {.summary = "workers step alone, servers add what each has moved by",
     .source = "Jiang et al., OSDI 2020, asynchronous mode",
     .combines = {.servers = true,
                  .clip = false,
                  .low_precision = false,
                  .lockstep = false,
                  .offload = false},
     .defaults = [](plan::Plan& plan) { plan.mesh.servers = std::max(plan.mesh.servers, 1); },
     .check = check,
     .sync = sync,
     .lower = lower});

}  // namespace
}  // namespace rehearse::methods
