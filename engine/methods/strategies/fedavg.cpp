// Federated averaging (McMahan et al., AISTATS 2017, algorithm 1). Data-parallel ranks are clients,
// with train.clients others in each round; servers, on ranks of their own, keep nothing between
// rounds.
//
//   client    H local steps | weights x n_k / n |                    | new weights | H local steps
//   push.s                                      | to server s |
//   server s                                              | adds |
//   pull.s                                                       | the mean |
//
// - A round is `local_steps` = H steps. Clients begin each with a new optimizer, as they do in the
//   paper, whose ClientUpdate has no state. The default of 12 is u, the expected number of updates
//   a round, of the paper's table 2 for one epoch (E = 1) of batches of B = 50.
// - n_k is the samples of client k, n those of all clients: equal ones, unless `shares` says
//   otherwise. So the sum on the server is the weighted mean.
// - A client's weights are their own product with n_k / n until it has pulled, and servers have no
//   state to save beside training. So a checkpoint stops all ranks, between two steps.
#include <ranges>

#include "engine/methods/lowering/own_weights.h"
#include "engine/methods/lowering/served.h"
#include "engine/methods/strategy.h"

namespace rehearse::methods {
namespace {

int local_steps(const plan::Plan& plan) { return *plan.exchange.averaging.local_steps; }

class FedAvg final : public OwnWeights {
 public:
  void finish(Stage& stage, int shift) const override {
    const plan::Plan& plan = stage.plan();
    const program::When when{.every = local_steps(plan)};
    const std::vector<Bucket>& buckets = stage.buckets();
    for (const Bucket& b : buckets) update(stage, b, shift, none, {.restart = local_steps(plan)});
    const auto meet = [&](const char* lane, std::size_t b, program::Move move, program::Ref ref) {
      const int server = server_of(plan, b);
      stage.role().op(on_server(lane, server),
                      star(stage.program(), plan, move, server, stage.who().kinds), {ref}, shift,
                      when);
    };
    // In the order in which the next forward reads the weights.
    const double part = double(stage.who().samples) * plan.schedule.micro_batches /
                        double(plan.schedule.global_batch);
    for (std::size_t b = buckets.size(); b-- > 0;) {
      const program::Layout partial{.partial = stage.dp()};
      program::Ref weighed =
          weights(stage, buckets[b], program::Slot::target, program::Mode::write);
      weighed.layout = partial;
      stage.role().op(
          "compute", program::Kernel{.kind = program::KernelKind::weigh, .scale = part},
          {weights(stage, buckets[b], program::Slot::source, program::Mode::read), weighed}, shift,
          when);
      meet("push", b, program::Move::reduce,
           ref(weighed.view, program::Slot::source, program::Mode::read, 0, 0, partial));
    }
    for (std::size_t b = buckets.size(); b-- > 0;)
      meet("pull", b, program::Move::broadcast,
           weights(stage, buckets[b], program::Slot::target, program::Mode::write));
    for (const Bucket& b : std::ranges::reverse_view(buckets)) round(stage, b, shift, when);
  }
};

const GradientSync& sync(const plan::Plan&) {
  static const FedAvg clients;
  return clients;
}

void serve(Server& server, const std::vector<Bucket>& buckets) {
  const program::When when{.every = local_steps(server.plan)};
  const auto meet = [&](program::Move move) {
    return star(server.program, server.plan, move, server.index, server.kinds);
  };
  for (const Bucket& b : std::ranges::reverse_view(buckets)) {
    const Id mean = server.role.storage(
        {.name = "mean." + b.name, .life = program::Life::buffer, .elements = b.elements});
    server.role.op("push", meet(program::Move::reduce),
                   {ref(mean, program::Slot::target, program::Mode::write)}, 0, when);
    server.role.op("pull", meet(program::Move::broadcast),
                   {ref(mean, program::Slot::source, program::Mode::read)}, 0, when);
  }
}

const Register fedavg(
    "fedavg", {.summary = "clients train apart, a server averages their weights by their samples",
               .source = "McMahan et al., AISTATS 2017",
               .combines = {.servers = true,
                            .clip = false,
                            .low_precision = false,
                            .shares = true,
                            .lockstep = false,
                            .offload = false,
                            .local_steps = true},
               .defaults =
                   [](plan::Plan& plan) {
                     plan.mesh.servers = std::max(plan.mesh.servers, 1);
                     plan::Averaging& how = plan.exchange.averaging;
                     if (!how.local_steps) how.local_steps = 12;
                   },
               .check = [](const plan::Plan& plan, const model::ModelSpec&) { needs_server(plan); },
               .sync = sync,
               .lower =
                   [](const plan::Plan& plan, const model::ModelSpec& model) {
                     return lower_served(plan, model, sync(plan), serve);
                   }});

}  // namespace
}  // namespace rehearse::methods
