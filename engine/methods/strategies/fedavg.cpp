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
// - With a `deadline`, a client whose local steps take longer counts nothing, as in the reporting
//   window of Bonawitz et al. (MLSys 2019, section 2.2). It gives up between two of its steps.
//   Clients push a share, n_k / n or 0, and the share times what their weights have moved by; the
//   sum of these divided by the sum of shares is the mean. When all clients are late, the weights
//   stay what they were.
// - With `secure`, the server learns the sum alone (engine/secure): clients push masked levels in
//   place of numbers. Numbers are multiplied by n_k / the largest n_k, not by n_k / n, so that
//   rounding to levels changes them as little as it can.
// - A client's weights are their own product with n_k / n until it has pulled, and servers have no
//   state to save beside training. So a checkpoint stops all ranks, between two steps.
#include <algorithm>
#include <optional>
#include <ranges>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/refusal.h"
#include "engine/methods/lowering/own_weights.h"
#include "engine/methods/lowering/secure_sum.h"
#include "engine/methods/lowering/served.h"
#include "engine/methods/strategy.h"

namespace rehearse::methods {
namespace {

int local_steps(const plan::Plan& plan) { return *plan.exchange.averaging.local_steps; }
std::optional<Seconds> deadline(const plan::Plan& plan) { return plan.exchange.averaging.deadline; }
bool secure(const plan::Plan& plan) { return plan.exchange.averaging.secure.on; }
/// The steps in which clients meet servers.
program::When at_end(const plan::Plan& plan) { return {.every = local_steps(plan)}; }
/// n / the largest n_k: what numbers are multiplied by for a secure sum, and the sum is divided by.
double magnified(const plan::Plan& plan) {
  int largest = 1;
  for (int client = 0; client < plan.mesh.dp; ++client)
    largest = std::max(largest, plan.samples(client));
  return double(plan.schedule.global_batch) / plan.schedule.micro_batches / largest;
}

class FedAvg final : public OwnWeights {
 public:
  void declare(Stage& stage, Bucket& b) const override {
    OwnWeights::declare(stage, b);
    if (!deadline(stage.plan())) return;
    b.views.anchor = storage_of(stage.role(), b, "anchor.", program::Life::state);
    b.views.outer_grad = storage_of(stage.role(), b, "moved.", program::Life::value);
  }

  void finish(Stage& stage, int shift) const override {
    const plan::Plan& plan = stage.plan();
    for (const Bucket& b : stage.buckets())
      update(stage, b, shift, none, {.restart = local_steps(plan)});
    std::optional<SecureClient> hidden;
    if (secure(plan)) hidden.emplace(stage, shift, at_end(plan));
    SecureClient* const sum = hidden ? &*hidden : nullptr;
    if (deadline(plan))
      mean_of_those_in_time(stage, sum, shift);
    else
      mean_of_all(stage, sum, shift);
    for (const Bucket& b : std::ranges::reverse_view(stage.buckets()))
      round(stage, b, shift, at_end(plan));
  }

 private:
  /// What a client counts in a mean over all of them: n_k / n.
  static double part(const Stage& stage) {
    const plan::Plan& plan = stage.plan();
    return double(stage.who().samples) * plan.schedule.micro_batches /
           double(plan.schedule.global_batch);
  }
  static void meet(Stage& stage, int server, program::Move move, program::Ref ref, int shift) {
    stage.role().op(star_lane(move, server),
                    star(stage.program(), stage.plan(), move, server, stage.who().kinds), {ref},
                    shift, at_end(stage.plan()));
  }
  static void kernel(Stage& stage, program::KernelKind kind, double scale,
                     std::vector<program::Ref> refs, int shift) {
    OwnWeights::kernel(stage, {.kind = kind, .scale = scale}, std::move(refs), shift,
                       at_end(stage.plan()));
  }

  // Both exchange in the order in which the next forward reads the weights. `sum`: null, or what
  // hides the clients' numbers.

  static void mean_of_all(Stage& stage, SecureClient* sum, int shift) {
    using program::Mode, program::Move, program::Slot;
    const std::vector<Bucket>& buckets = stage.buckets();
    const program::Layout partial{.partial = stage.dp()};
    for (std::size_t b = buckets.size(); b-- > 0;) {
      if (sum != nullptr) {
        sum->push(buckets[b], weights(stage, buckets[b], Slot::source, Mode::read),
                  part(stage) * magnified(stage.plan()));
        continue;
      }
      program::Ref weighed = weights(stage, buckets[b], Slot::target, Mode::write);
      weighed.layout = partial;
      kernel(stage, program::KernelKind::weigh, part(stage),
             {weights(stage, buckets[b], Slot::source, Mode::read), weighed}, shift);
      meet(stage, server_of(stage.plan(), b), Move::reduce,
           ref(weighed.view, Slot::source, Mode::read, 0, 0, partial), shift);
    }
    if (sum != nullptr) sum->open();
    for (std::size_t b = buckets.size(); b-- > 0;)
      meet(stage, server_of(stage.plan(), b), Move::broadcast,
           weights(stage, buckets[b], Slot::target, Mode::write), shift);
  }

  static void mean_of_those_in_time(Stage& stage, SecureClient* sum, int shift) {
    using program::Mode, program::Move, program::Slot;
    const std::vector<Bucket>& buckets = stage.buckets();
    const program::Layout partial{.partial = stage.dp()};
    const auto number = [&](const char* name) {
      return stage.role().storage({.name = name, .life = program::Life::buffer, .elements = 1});
    };
    const Id share = number("share"), shares = number("shares");
    kernel(stage, program::KernelKind::in_time, part(stage),
           {ref(share, Slot::target, Mode::write, 0, 0, partial)}, shift);
    meet(stage, 0, Move::reduce, ref(share, Slot::source, Mode::read, 0, 0, partial), shift);
    for (std::size_t b = buckets.size(); b-- > 0;) {
      const Id moved = buckets[b].views.outer_grad;
      kernel(stage, program::KernelKind::drift, sum != nullptr ? magnified(stage.plan()) : 1,
             {ref(buckets[b].views.anchor, Slot::anchor, Mode::read, 0, 1),
              weights(stage, buckets[b], Slot::source, Mode::read),
              ref(share, Slot::share, Mode::read, 0, 0, partial),
              ref(moved, Slot::target, Mode::write, 0, 0, partial)},
             shift);
      const program::Ref pushed = ref(moved, Slot::source, Mode::read, 0, 0, partial);
      if (sum != nullptr)
        sum->push(buckets[b], pushed, 1);
      else
        meet(stage, server_of(stage.plan(), b), Move::reduce, pushed, shift);
    }
    if (sum != nullptr) sum->open();
    meet(stage, 0, Move::broadcast, ref(shares, Slot::target, Mode::write), shift);
    for (std::size_t b = buckets.size(); b-- > 0;) {
      const Id moved = buckets[b].views.outer_grad;
      meet(stage, server_of(stage.plan(), b), Move::broadcast,
           ref(moved, Slot::target, Mode::write), shift);
      kernel(stage, program::KernelKind::outer_step, 1,
             {ref(moved, Slot::source, Mode::read), ref(shares, Slot::share, Mode::read),
              ref(buckets[b].views.anchor, Slot::anchor, Mode::add, 0, 1),
              weights(stage, buckets[b], Slot::target, Mode::write)},
             shift);
    }
  }
};

const GradientSync& sync(const plan::Plan&) {
  static const FedAvg clients;
  return clients;
}

/// What a server does with all that it gets, and what it sends.
void serve(Server& server, const std::vector<Bucket>& buckets) {
  using program::Mode, program::Move, program::Slot;
  const auto meet = [&](Move move, program::Ref ref) {
    server.role.op(move == Move::reduce ? "push" : "pull",
                   star(server.program, server.plan, move, server.index, server.kinds), {ref}, 0,
                   at_end(server.plan));
  };
  const auto receive = [&](const std::string& name, std::int64_t elements) {
    const Id sum = server.role.storage(
        {.name = "mean." + name, .life = program::Life::buffer, .elements = elements});
    meet(Move::reduce, ref(sum, Slot::target, Mode::write));
    return sum;
  };
  const auto send = [&](Id sum) { meet(Move::broadcast, ref(sum, Slot::source, Mode::read)); };
  const auto add = [&](const std::string& name, std::int64_t elements) {
    send(receive(name, elements));
  };
  if (!secure(server.plan)) {
    if (deadline(server.plan) && server.index == 0) add("share", 1);
    for (const Bucket& b : std::ranges::reverse_view(buckets)) add(b.name, b.elements);
    return;
  }
  SecureServer sum(server, at_end(server.plan));
  const Id share = deadline(server.plan) ? receive("share", 1) : none;
  for (const Bucket& b : std::ranges::reverse_view(buckets)) sum.add(b);
  sum.open();
  if (share != none) send(share);
  for (const Bucket& b : std::ranges::reverse_view(buckets))
    send(sum.unmasked(b, magnified(server.plan)));
}

LoweredProgram lower(const plan::Plan& plan, const model::ModelSpec& model) {
  LoweredProgram lowered = lower_served(plan, model, sync(plan), serve);
  if (secure(plan)) lowered.program.secure = secure_sum(secure_group(plan, 1));
  if (const auto limit = deadline(plan))
    for (program::Role& role : lowered.program.roles)
      if (role.ranks.front() < static_cast<Id>(plan.mesh.dp))  // a client
        role.round = {.steps = local_steps(plan), .deadline = limit->value};
  return lowered;
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
                            .local_steps = true,
                            .deadlines = true,
                            .secure = true},
               .defaults =
                   [](plan::Plan& plan) {
                     plan.mesh.servers = std::max(plan.mesh.servers, 1);
                     plan::Averaging& how = plan.exchange.averaging;
                     if (!how.local_steps) how.local_steps = 12;
                   },
               .check =
                   [](const plan::Plan& plan, const model::ModelSpec&) {
                     needs_server(plan);
                     const plan::SecureSum& sum = plan.exchange.averaging.secure;
                     if (!sum.on && sum != plan::SecureSum{})
                       refuse("secure", "false",
                              "neighbours, threshold, clipping_range and levels are of a secure "
                              "sum; nearest: true");
                     if (sum.on) secure_group(plan, 1);
                   },
               .sync = sync,
               .lower = lower});

}  // namespace
}  // namespace rehearse::methods
