// Methods whose ranks train weights of their own: what is sent in which steps, what overlaps, and
// the graphs of gossip.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "engine/base/refusal.h"
#include "engine/link/link.h"
#include "engine/link/workspace.h"
#include "engine/methods/lowering/secure_sum.h"
#include "engine/methods/strategy.h"
#include "tests/engine/sent_bytes.h"
#include "tests/message_of.h"

namespace rehearse::methods {
namespace {

using testing::AllOf;
using testing::HasSubstr;

model::ModelSpec tiny() {
  return model::build_model(
      {.name = "tiny", .layers = 2, .hidden = 8, .heads = 2, .ffn = 16, .vocab = 32, .seq_len = 4});
}

plan::Plan plan_of(const std::string& method, int dp, plan::Averaging averaging = {}) {
  return {.method = method,
          .mesh = {.dp = dp},
          .schedule = {.global_batch = dp},
          .exchange = {.averaging = averaging}};
}

/// The distances of the program's rotates.
std::vector<int> distances(const plan::Plan& plan) {
  std::set<int> out;
  const program::Program program = compile(plan, tiny());
  for (const program::Op& op : program.roles[0].ops)
    if (const auto* c = std::get_if<program::Collective>(&op.work);
        c != nullptr && c->move == program::Move::rotate)
      out.insert(c->distance);
  return {out.begin(), out.end()};
}

// The update rounds weights that the exchange, which changes the fp32 copy, rounds again.
TEST(Apart, ExchangesAfterEveryStepLinkInSixteenBits) {
  for (const std::string method : {"local-sgd", "diloco", "fedavg"}) {
    plan::Plan plan = plan_of(method, 3, {.local_steps = 1});
    plan.precision = program::DType::bf16;
    EXPECT_NO_THROW(link::link(compile(prepare(plan, tiny()), tiny()), tiny())) << method;
  }
}

TEST(Apart, NothingIsSentBetweenExchanges) {
  for (const std::string method : {"local-sgd", "diloco", "fedavg"})
    for (const int every : {1, 7}) {
      const program::Program p = compile(plan_of(method, 3, {.local_steps = every}), tiny());
      int exchanges = 0;
      for (const program::Op& op : p.roles[0].ops)
        if (std::holds_alternative<program::Collective>(op.work)) {
          ++exchanges;
          EXPECT_EQ(op.when, program::When{.every = every});
        }
      EXPECT_GT(exchanges, 0);
    }
}

// The messages are those of engine/secure, to the byte, and pass between clients and server alone.
TEST(Apart, ASecureSumSendsTheBytesOfItsRounds) {
  for (const plan::SecureSum secure :
       {plan::SecureSum{.on = true}, {.on = true, .neighbours = 2, .threshold = 2}}) {
    plan::Plan plan = plan_of("fedavg", 5, {.local_steps = 7, .secure = secure});
    std::int64_t elements = 0;
    const link::LinkedProgram linked = link::link(compile(plan, tiny()));
    for (const program::Storage& storage : linked.program.roles.back().storages)
      if (storage.name.starts_with("levels.")) elements += storage.elements;
    EXPECT_EQ(elements, model::parameters_of(tiny()));
    plan.mesh.servers = 1;
    const secure::Leaving nobody(5, secure::rounds);
    std::int64_t all = 0;
    for (const secure::ClientTraffic& client :
         secure::traffic_of(secure_group(plan, elements), nobody))
      for (std::size_t round = 0; round < secure::rounds; ++round)
        all += client.up[round] + client.down[round];
    EXPECT_EQ(test::sent_bytes(linked, 6), all);
    EXPECT_EQ(test::sent_bytes(linked, 5), 0);
  }
}

// Nothing that a client sends holds its numbers in the clear: only what kernels of the secure sum
// have written goes to the server, and with a deadline whether the client is in time.
TEST(Apart, OnlyMaskedNumbersLeaveAClient) {
  for (const bool late : {false, true}) {
    plan::Averaging averaging{.local_steps = 3, .secure = {.on = true}};
    if (late) averaging.deadline = Seconds(1);
    const program::Program p = compile(plan_of("fedavg", 4, averaging), tiny());
    EXPECT_EQ(to_text(program::parse_program(to_text(p))), to_text(p));
    const program::Role& client = p.roles.front();
    std::set<Id> hidden, in_the_clear;
    for (const program::Op& op : client.ops)
      if (const auto* kernel = std::get_if<program::Kernel>(&op.work);
          kernel != nullptr && sums_securely(kernel->kind))
        hidden.insert(find(op, program::Slot::target)->view);
    std::size_t sent = 0;
    for (const program::Op& op : client.ops)
      if (std::holds_alternative<program::Collective>(op.work))
        if (const program::Ref* source = find(op, program::Slot::source))
          (hidden.contains(source->view) ? sent : (in_the_clear.insert(source->view), sent))++;
    EXPECT_GE(sent, 4U);
    for (const Id view : in_the_clear) EXPECT_EQ(client.views[view].name, "share");
    EXPECT_EQ(in_the_clear.size(), late ? 1U : 0U);
  }
}

TEST(Apart, ASecureSumIsRefusedWhereItProtectsNothing) {
  const auto said = [](const plan::Plan& plan) {
    return test::message_of<Refused>([&] { prepare(plan, tiny()); });
  };
  const auto with = [](const plan::SecureSum& secure, int dp = 5) {
    return plan_of("fedavg", dp, {.secure = secure});
  };
  EXPECT_EQ(said(with({.on = true})), "no error");
  EXPECT_THAT(said(with({.on = true}, 2)), testing::HasSubstr("method.dp: 2"));
  EXPECT_THAT(said(with({.neighbours = 2})), testing::HasSubstr("method.secure: false"));
  EXPECT_THAT(said(with({.on = true, .neighbours = 3})),
              testing::HasSubstr("method.neighbours: 3: a ring has equally many on both sides"));
  EXPECT_THAT(said(with({.on = true, .threshold = 2})),
              testing::HasSubstr("method.threshold: 2: must be from 3 to 5"));
  EXPECT_THAT(said(with({.on = true, .levels = 1 << 30})),
              testing::HasSubstr("method.levels: 1073741824: must be from 2 to 858993460"));
  plan::Plan plan = with({.on = true});
  plan.mesh.servers = 2;
  EXPECT_THAT(said(plan), testing::HasSubstr("method.servers: 2: one server makes a secure sum"));
  EXPECT_THAT(said(plan_of("diloco", 3, {.secure = {.on = true}})),
              testing::HasSubstr("no server sums its weights in secret, as that of fedavg can"));
}

TEST(Apart, DefaultsAreThoseOfTheSources) {
  const plan::Averaging local = prepare(plan_of("local-sgd", 2), tiny()).exchange.averaging;
  EXPECT_EQ(local.local_steps, 4);
  const plan::Averaging outer = prepare(plan_of("diloco", 2), tiny()).exchange.averaging;
  EXPECT_EQ(outer.local_steps, 500);
  EXPECT_EQ(outer.outer_lr, 0.7);
  EXPECT_EQ(outer.outer_momentum, 0.9);
  EXPECT_EQ(prepare(plan_of("fedavg", 2), tiny()).exchange.averaging.local_steps, 12);
  EXPECT_EQ(prepare(plan_of("d-psgd", 2), tiny()).exchange.averaging.graph, plan::Graph::ring);
}

TEST(Apart, GraphsHaveTheirDistances) {
  using plan::Graph;
  for (const auto& [graph, n, expected] :
       std::vector<std::tuple<Graph, int, std::vector<int>>>{{Graph::ring, 1, {}},
                                                             {Graph::ring, 2, {1}},
                                                             {Graph::ring, 3, {1, 2}},
                                                             {Graph::ring, 8, {1, 7}},
                                                             {Graph::exponential, 2, {1}},
                                                             {Graph::exponential, 5, {1, 2, 4}},
                                                             {Graph::exponential, 8, {1, 2, 4}},
                                                             {Graph::exponential, 9, {1, 2, 4, 8}}})
    EXPECT_EQ(distances(plan_of("d-psgd", n, {.graph = graph})), expected) << n;
}

TEST(Apart, RandomGraphsConnectAllRanks) {
  std::set<std::vector<int>> drawn;
  for (const int n : {2, 6, 12, 30})
    for (int seed = 0; seed < 20; ++seed)
      for (const int degree : {1, 2, 3}) {
        if (degree >= n) continue;
        const std::vector<int> d = distances(plan_of(
            "d-psgd", n, {.graph = plan::Graph::random, .degree = degree, .graph_seed = seed}));
        ASSERT_EQ(d.size(), static_cast<std::size_t>(degree));
        EXPECT_GE(d.front(), 1);
        EXPECT_LT(d.back(), n);
        EXPECT_EQ(std::accumulate(d.begin(), d.end(), n, std::gcd<int, int>), 1);
        if (n == 30 && degree == 3) drawn.insert(d);
      }
  EXPECT_GT(drawn.size(), 15U) << "seeds hardly differ";
  // Without a degree: as many neighbours as an exponential graph.
  EXPECT_EQ(distances(plan_of("d-psgd", 12, {.graph = plan::Graph::random})).size(), 4U);
}

// A neighbour's weights arrive beside the passes; no pass waits for them, only the mix does.
TEST(Apart, GossipRunsBesideThePasses) {
  const program::Program p = compile(plan_of("d-psgd", 4), tiny());
  const program::Role& role = p.roles[0];
  const auto rotates = [&](Id op) {
    const auto* c = std::get_if<program::Collective>(&role.ops[op].work);
    return c != nullptr && c->move == program::Move::rotate;
  };
  int mixed = 0;
  for (const program::Op& op : role.ops)
    for (const program::After& after : op.after) {
      if (!rotates(after.op) || after.lag > 0) continue;
      const auto* kernel = std::get_if<program::Kernel>(&op.work);
      ASSERT_TRUE(kernel != nullptr && kernel->kind == program::KernelKind::mix);
      ++mixed;
    }
  EXPECT_GT(mixed, 0);
}

// Checkpoints behind training read state in steps without an exchange, too. Each rank saves its own
// weights, and its part of what ranks agreed on.
TEST(Apart, CheckpointsBehindTrainingLink) {
  for (const std::string method : {"local-sgd", "diloco", "d-psgd"})
    for (const program::DType precision : {program::DType::f32, program::DType::bf16}) {
      plan::Plan plan = plan_of(method, 4);
      plan.precision = precision;
      plan.checkpoints = {.every = 3, .to = program::Medium::memory};
      const program::Program p = compile(plan, tiny());
      EXPECT_NO_THROW(link::link(p)) << method;
      const auto elements = [&](const std::string& name) {
        for (const program::Storage& storage : p.roles[0].storages)
          if (storage.name == name) return storage.elements;
        return std::int64_t{0};
      };
      EXPECT_EQ(elements("saved.W.b0.whole"), elements("W.b0")) << method;
      EXPECT_EQ(elements("saved.anchor.b0.part"), elements("anchor.b0") / 4) << method;
    }
}

// Averaging takes no memory; DiLoCo keeps the anchor and its momentum, 8 bytes for each parameter;
// gossip a copy of the weights of each neighbour.
TEST(Apart, MemoryIsWhatTheMethodKeeps) {
  const model::ModelSpec model = tiny();
  const std::int64_t params = parameters_of(model);
  const auto memory = [&](const plan::Plan& plan) {
    return link::link(compile(plan, model)).memory[0];
  };
  const link::RoleMemory ddp = memory(plan_of("ddp", 4)), local = memory(plan_of("local-sgd", 4)),
                         outer = memory(plan_of("diloco", 4)), ring = memory(plan_of("d-psgd", 4));
  EXPECT_EQ(local.state, ddp.state);
  EXPECT_EQ(local.total(), ddp.total());
  EXPECT_EQ(outer.state, ddp.state + 8 * params);
  const link::RoleMemory clients = memory(plan_of("fedavg", 4));
  EXPECT_EQ(clients.state, ddp.state);
  EXPECT_EQ(clients.total(), ddp.total());
  EXPECT_EQ(ring.state, ddp.state);
  EXPECT_EQ(ring.buffer, ddp.buffer + 2 * 4 * params);
}

// Ranks exchange fp32 copies where weights have 16 bits.
TEST(Apart, SixteenBitsSendTheFp32Copy) {
  for (const std::string method : {"local-sgd", "diloco", "fedavg", "d-psgd"}) {
    plan::Plan plan = plan_of(method, 4);
    const std::int64_t full = test::sent_bytes(link::link(compile(plan, tiny())));
    plan.precision = program::DType::bf16;
    EXPECT_EQ(test::sent_bytes(link::link(compile(plan, tiny()))), full) << method;
  }
}

// As strategies_test.cpp tests for fp32: without any of its collectives, a program does not link.
TEST(Apart, SixteenBitsNeedEveryCollective) {
  for (const std::string method : {"local-sgd", "diloco", "fedavg", "d-psgd"}) {
    plan::Plan plan = plan_of(method, 4);
    plan.precision = program::DType::bf16;
    const program::Program whole = compile(plan, tiny());
    for (Id o = 0; o < whole.roles[0].ops.size(); ++o) {
      program::Program without = whole;
      program::Op& op = without.roles[0].ops[o];
      if (!std::holds_alternative<program::Collective>(op.work)) continue;
      op.work = program::Pause{};
      op.refs.clear();
      EXPECT_THROW(link::link(without), ProgramError) << to_text(whole, whole.roles[0], o);
    }
  }
}

// Clients weigh their weights by their samples; the server has one buffer for the sum, and no
// state.
TEST(Apart, ClientsCountByTheirSamples) {
  plan::Plan plan = plan_of("fedavg", 3);
  plan.schedule = {.global_batch = 16, .micro_batches = 2, .shares = {1, 5, 2}};
  const program::Program p = compile(plan, tiny());
  ASSERT_EQ(p.roles.size(), 4U);
  std::vector<double> parts;
  for (const program::Role& role : p.roles)
    for (const program::Op& op : role.ops)
      if (const auto* kernel = std::get_if<program::Kernel>(&op.work);
          kernel != nullptr && kernel->kind == program::KernelKind::weigh)
        parts.push_back(kernel->scale);
  EXPECT_EQ(parts, (std::vector{1.0 / 8, 5.0 / 8, 2.0 / 8}));
  const link::RoleMemory server = link::link(p).memory[3];
  EXPECT_EQ(server.state, 0);
  EXPECT_EQ(server.buffer, 4 * parameters_of(tiny()));
}

TEST(Apart, RefusesKeysOfOtherMethods) {
  const auto refusal = [&](const plan::Plan& plan) {
    return test::message_of([&] { prepare(plan, tiny()); });
  };
  EXPECT_THAT(refusal(plan_of("ddp", 2, {.local_steps = 4})),
              AllOf(HasSubstr("method.local_steps: 4"), HasSubstr("diloco, fedavg, local-sgd")));
  EXPECT_THAT(refusal(plan_of("local-sgd", 2, {.outer_lr = 0.5})),
              AllOf(HasSubstr("method.outer_lr: 0.5"), HasSubstr("only diloco")));
  EXPECT_THAT(refusal(plan_of("fedavg", 2, {.outer_lr = 0.5})), HasSubstr("only diloco"));
  EXPECT_THAT(refusal(plan_of("diloco", 2, {.graph = plan::Graph::ring})),
              AllOf(HasSubstr("method.graph: ring"), HasSubstr("only d-psgd")));
  EXPECT_THAT(refusal(plan_of("d-psgd", 4, {.degree = 2})),
              AllOf(HasSubstr("method.degree: 2"), HasSubstr("only a random graph")));
  EXPECT_THAT(refusal(plan_of("d-psgd", 4, {.graph = plan::Graph::random, .degree = 4})),
              AllOf(HasSubstr("method.degree: 4"), HasSubstr("nearest: 3")));
}

}  // namespace
}  // namespace rehearse::methods
