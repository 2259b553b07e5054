// Parameter servers (Li et al., OSDI 2014): workers compute gradients; servers on ranks of their
// own hold the weights and apply updates. Bucket b lives on server b mod servers.
//
//   worker 0   worker 1   worker 2     push: gradients to the server
//        \         |         /         update: on the server
//         server 0    server 1         pull: new weights to the workers
//
// - ps-sync: every step reduces the gradients of all workers. A bucket's push, update and pull
//   overlap the rest of backward.
// - ps-ssp: stale-synchronous (Ho et al., NeurIPS 2013), always at the largest staleness s that the
//   bound allows. Step t computes with the weights of step t - 1 - s, so results do not depend on
//   timing, and workers may run s steps ahead.
// - ps-async (Dean et al., NeurIPS 2012): the server applies each gradient when it arrives and
//   replies with the newest weights. Each gradient is divided by the global batch, so the updates
//   of one step together move as far as one synchronous update.
#include "engine/methods/lowering/exchange/replicated.h"
#include "engine/methods/lowering/served.h"
#include "engine/methods/strategy.h"

namespace rehearse::methods {
namespace {

/// The workers' side of ps-sync and ps-ssp: reduce to the server, broadcast from it. Shares are
/// refused, so all workers are of one kind.
class Served : public Replicated {
 public:
  void finish(Stage& stage, int shift) const override {
    for (std::size_t b = 0; b < stage.buckets().size(); ++b) {
      const int server = server_of(stage.plan(), b);
      pull(stage, ref(stage.buckets()[b].views.weight, program::Slot::target, program::Mode::write),
           server, shift);
    }
  }

 protected:
  bool owns_optimizer() const override { return false; }
  int weight_versions(const plan::Plan& plan, const model::ModelSpec&, int) const override {
    return 1 + plan.schedule.staleness;
  }
  int scale_age(const plan::Plan& plan) const override { return 1 + plan.schedule.staleness; }
  int grad_versions(const plan::Plan& plan, const model::ModelSpec&, int) const override {
    return plan.schedule.staleness > 0 ? 2 : 1;
  }

  void exchange(Stage& stage, const Bucket& bucket, int shift) const override {
    const auto at = static_cast<std::size_t>(&bucket - stage.buckets().data());
    push(stage,
         ref(bucket.views.grad, program::Slot::source, program::Mode::read, 0, 0,
             {.partial = stage.dp()}),
         server_of(stage.plan(), at), shift);
  }
  virtual void push(Stage& stage, program::Ref grad, int server, int shift) const {
    stage.role().op(on_server("push", server),
                    star(stage.program(), stage.plan(), program::Move::reduce, server, 1), {grad},
                    shift);
  }
  virtual void pull(Stage& stage, program::Ref weights, int server, int shift) const {
    stage.role().op(on_server("pull", server),
                    star(stage.program(), stage.plan(), program::Move::broadcast, server, 1),
                    {weights}, shift);
  }
};

/// The workers' side of ps-async: mailbox messages.
class ServedAtOnce final : public Served {
  bool workers_run_free() const override { return true; }
  bool bucket_per_server() const override { return true; }
  double bucket_bytes(const plan::Plan& plan, const model::ModelSpec& model) const override {
    return bucket_of_server(plan, model);
  }
  void push(Stage& stage, program::Ref grad, int server, int shift) const override {
    put_to_server(stage, server, grad, shift);
  }
  void pull(Stage& stage, program::Ref weights, int server, int shift) const override {
    take_answer(stage, server, weights, shift);
  }
};

/// A bucket on its server, with the server's storages and views.
Bucket shard_of(program::RoleBuilder& role, OptimizerOps& optimizer, const plan::Plan& plan,
                const Bucket& bucket) {
  Bucket shard = bucket;
  shard.views = {};
  shard.views.weight = role.storage({.name = "W." + bucket.name,
                                     .life = program::Life::state,
                                     .dtype = plan.precision,
                                     .elements = bucket.elements});
  optimizer.declare(shard, bucket.elements);
  shard.views.sum = role.storage({.name = "G." + bucket.name,
                                  .life = program::Life::buffer,
                                  .dtype = plan.gradient_type(),
                                  .elements = bucket.elements});
  return shard;
}

const GradientSync& in_step(const plan::Plan&) {
  static const Served sync;
  return sync;
}
const GradientSync& at_once(const plan::Plan&) {
  static const ServedAtOnce sync;
  return sync;
}

/// A server's ops. `AtOnce`: ps-async.
template <bool AtOnce>
void serve(Server& server, const std::vector<Bucket>& buckets) {
  const plan::Plan& plan = server.plan;
  program::RoleBuilder& role = server.role;
  role.lane("compute");
  OptimizerOps optimizer(role, plan);
  for (const Bucket& bucket : buckets) {
    const Bucket shard = shard_of(role, optimizer, plan, bucket);
    const program::Ref grads = ref(shard.views.sum, program::Slot::target, program::Mode::write),
                       weights =
                           ref(shard.views.weight, program::Slot::source, program::Mode::read);
    if constexpr (AtOnce) {
      // The first update of a step starts from the state of the step before.
      serve_by_arrival(server, grads, weights,
                       [&](int age) { optimizer.update(shard, weights, grads, 0, age); });
    } else {
      const auto meet = [&](program::Move move) {
        return star(server.program, plan, move, server.index, server.kinds);
      };
      role.op("push", meet(program::Move::reduce), {grads});
      if (plan.exchange.observe > 0)
        optimizer.observe(shard, grads, shard.elements, optimizer.stride(shard, server.model));
      optimizer.update(shard, weights, grads);
      role.op("pull", meet(program::Move::broadcast), {weights});
    }
  }
}

template <bool AtOnce>
LoweredProgram lower(const plan::Plan& plan, const model::ModelSpec& model) {
  return lower_served(plan, model, AtOnce ? at_once(plan) : in_step(plan), serve<AtOnce>);
}

template <bool AtOnce>
void check(const plan::Plan& plan, const model::ModelSpec&) {
  needs_server(plan);
  if (AtOnce && plan.exchange.observe > 0)
    refuse("name", plan.method,
           "applies every worker's gradient as it arrives: there is no gradient of a step whose "
           "variance could be observed; ps-sync has one");
}

template <bool AtOnce>
Strategy parameter_server(const char* summary, const char* source, bool staleness = false) {
  return {.summary = summary,
          .source = source,
          .combines = {.servers = true,
                       .staleness = staleness,
                       .clip = false,
                       .low_precision = false,
                       .lockstep = !AtOnce && !staleness,
                       .offload = false},
          .defaults = [](plan::Plan& plan) { plan.mesh.servers = std::max(plan.mesh.servers, 1); },
          .check = check<AtOnce>,
          .sync = AtOnce ? at_once : in_step,
          .lower = lower<AtOnce>};
}

const Register sync("ps-sync", parameter_server<false>("parameter servers, all workers every step",
                                                       "Li et al., OSDI 2014"));
const Register async(
    "ps-async", parameter_server<true>("parameter servers, every gradient applied as it arrives",
                                       "Dean et al., NeurIPS 2012"));

Strategy stale_synchronous() {
  Strategy strategy = parameter_server<false>(
      "parameter servers, weights a fixed number of steps old", "Ho et al., NeurIPS 2013", true);
  strategy.defaults = [](plan::Plan& plan) {
    plan.mesh.servers = std::max(plan.mesh.servers, 1),
    plan.schedule.staleness = std::max(plan.schedule.staleness, 1);
  };
  return strategy;
}

const Register ssp("ps-ssp", stale_synchronous());

}  // namespace
}  // namespace rehearse::methods
