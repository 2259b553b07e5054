// Every registered method on meshes of several sizes: its program links, has no redundant waits,
// and is equal after writing and parsing its text. Every single collective, wait and weight version
// is needed: the linker refuses the program without it.
#include <gtest/gtest.h>

#include <numeric>

#include "engine/base/names.h"
#include "engine/link/link.h"
#include "engine/methods/strategy.h"
#include "engine/tensors/tensor_map.h"
#include "tests/engine/rig.h"
#include "tests/message_of.h"
#include "tests/methods.h"

namespace rehearse::methods {
namespace {

model::ModelSpec small_model(int layers) {
  model::ModelSpec model{.name = "small",
                         .layers = layers,
                         .hidden = 24,
                         .heads = 12,
                         .ffn = 48,
                         .vocab = 96,
                         .seq_len = 12};
  return model::build_model(model);
}

/// Most of its sizes are no multiples of the numbers of ranks, so shards have padding.
model::ModelSpec odd_model(model::Family family) {
  return model::build_model({.name = "odd",
                             .family = family,
                             .layers = 4,
                             .hidden = 20,
                             .heads = 4,
                             .ffn = 40,
                             .vocab = 97,
                             .seq_len = 12,
                             .max_positions = 13});
}

struct Case {
  std::string name;
  plan::Plan plan;
  int layers = 0;
};

/// All valid plans of a method on `ranks` ranks: meshes, ZeRO levels and techniques.
std::vector<Case> cases_of(const std::string& method, int ranks, int layers,
                           test::Refusals* refusals = nullptr) {
  test::Refusals uncounted;
  if (refusals == nullptr) refusals = &uncounted;
  std::vector<Case> cases;
  const Combines& can = strategy_named(method).combines;
  auto add = [&](plan::Plan plan, const std::string& what) {
    plan.method = method;
    plan.exchange.bucket = Bytes(20000);
    if (can.servers) plan.mesh.servers = plan.mesh.dp > 2 ? 2 : 1;
    plan.schedule.global_batch = plan.mesh.dp * plan.schedule.micro_batches * 2;
    if (!plan.schedule.shares.empty())
      plan.schedule.global_batch =
          std::accumulate(plan.schedule.shares.begin(), plan.schedule.shares.end(), 0) *
          plan.schedule.micro_batches;
    if (refusals->refuses(plan, small_model(layers))) return;
    cases.push_back({method + what, plan, layers});
  };
  // Layers take turns in reductions and codings. The first node has three places, later nodes two.
  auto mixed = [&](plan::Plan plan) {
    for (Id s = 0; s < small_model(layers).segments.size(); ++s)
      plan.exchange.sparse.layers.push_back({.density = 0.1,
                                             .reduction = plan::Reduction((s + 1) % 3),
                                             .coding = program::Coding(s / 3 % 3)});
    for (int rank = 0; rank < ranks; ++rank) {  // tensor ranks share a node
      const int at = rank / plan.mesh.tp;
      plan.placement.node_of.push_back(at < 3 ? 0 : 1 + (at - 3) / 2);
    }
    return plan;
  };
  for (int pp = 1; pp <= (can.pp ? ranks : 1); ++pp)
    for (int tp = 1; tp <= (can.tp ? ranks : 1); ++tp) {
      if (ranks % (pp * tp) != 0) continue;
      for (const int mb : {1, 4}) {
        plan::Plan plan{.mesh = {.pp = pp, .dp = ranks / pp / tp, .tp = tp},
                        .schedule = {.micro_batches = mb}};
        const std::string mesh = " pp" + std::to_string(pp) + " dp" + std::to_string(plan.mesh.dp) +
                                 " tp" + std::to_string(tp) + " m" + std::to_string(mb);
        add(plan, mesh);
        for (int zero = 1; zero <= can.max_zero; ++zero)
          plan.exchange.sharding.zero = zero, add(plan, mesh + " zero" + std::to_string(zero));
        for (int zero = 1; zero <= can.max_zero && !can.sparse && plan.mesh.dp % 2 == 0; ++zero) {
          plan.exchange.sharding.zero = zero, plan.exchange.sharding.shard_group = 2;
          add(plan, mesh + " zero" + std::to_string(zero) + " in groups");
          plan.exchange.sharding.shard_group = 0, plan.exchange.sharding.reshard_group = 2;
          if (zero == 3) add(plan, mesh + " zero3 kept in groups");
          plan.exchange.sharding.reshard_group = 0;
        }
        for (plan.exchange.sharding.zero = 2;
             mb > 1 && plan.exchange.sharding.zero <= can.max_zero && !can.sparse;
             ++plan.exchange.sharding.zero) {
          plan.exchange.sharding.reduce_once = plan.exchange.sharding.keep_gathered = true;
          add(plan,
              mesh + " kept and reduced once, zero" + std::to_string(plan.exchange.sharding.zero));
          plan.exchange.sharding.reduce_once = plan.exchange.sharding.keep_gathered = false;
        }
        plan.exchange.sharding.zero = 0;
        if (can.shares && plan.mesh.dp > 1) {
          // Shares 1, 3, 1, ...: with three dp ranks, one kind has two of them and one has one.
          for (int i = 0; i < plan.mesh.dp; ++i) plan.schedule.shares.push_back(i % 2 == 0 ? 1 : 3);
          add(plan, mesh + " shares");
          plan.exchange.sharding.zero = can.max_zero, add(plan, mesh + " shares zero"),
          plan.exchange.sharding.zero = 0;
          plan.schedule.shares.clear();
        }
        if (can.machines && plan.mesh.dp % 2 == 0) {
          plan.exchange.machines.local_ranks = 2, plan.exchange.machines.credit = 2;
          add(plan, mesh + " machines of 2");
          plan.exchange.machines.local_ranks = {}, plan.exchange.machines.credit = {};
        }
        if (can.recompute)
          plan.schedule.recompute = true, add(plan, mesh + " recompute"),
          plan.schedule.recompute = false;
        if (can.recompute) {
          plan.schedule.recompute = true, plan.schedule.recompute_layers = 1;
          add(plan, mesh + " recompute one layer");
          plan.schedule.recompute_unit = plan::RecomputeUnit::attention;
          add(plan, mesh + " recompute attention of one layer");
          plan.schedule.recompute = false, plan.schedule.recompute_layers = 0;
          plan.schedule.recompute_unit = plan::RecomputeUnit::segment;
        }
        if (can.recompute) {
          const plan::Plan before = plan;
          plan.schedule.recompute = true, plan.schedule.recompute_unit = plan::RecomputeUnit::layer;
          add(plan, mesh + " recompute layers");
          if (tp > 1) plan.mesh.sequence_parallel = true, add(plan, mesh + " recompute layers sp");
          plan = before;
        }
        if (can.clip) plan.clip = true, add(plan, mesh + " clip"), plan.clip = false;
        if (can.low_precision)
          plan.precision = program::DType::f16, add(plan, mesh + " f16"),
          plan.precision = program::DType::f32;
        if (tp > 1) plan.mesh.sequence_parallel = true, add(plan, mesh + " sp");
        if (method != "adaptive" || plan.mesh.dp == 1) continue;
        plan = mixed(plan);
        add(plan, mesh + " mixed");
        if (mb > 1) continue;
        plan.exchange.sparse.selector = program::Selector::threshold;
        add(plan, mesh + " mixed threshold");
        for (const int zero : {0, 2})
          for (const program::DType precision : {program::DType::f16, program::DType::bf16})
            plan.precision = precision, plan.exchange.sharding.zero = zero,
            add(plan, mesh + " mixed zero" + std::to_string(zero) + ' ' +
                          std::string(name_of(precision)));
        plan.precision = program::DType::f32, plan.exchange.sharding.zero = 1;
        plan.schedule.shares.assign(static_cast<std::size_t>(plan.mesh.dp), 1);
        plan.schedule.shares.front() = plan.mesh.dp + 1;
        add(plan, mesh + " mixed unequal");
      }
    }
  return cases;
}

class Methods : public testing::TestWithParam<std::string> {};

TEST_P(Methods, LinkForEverySizeAndWaitForNothingTwice) {
  test::Refusals refusals;
  for (const int ranks : {1, 2, 3, 4, 6, 7, 8})
    for (Case c : cases_of(GetParam(), ranks, 8, &refusals)) {
      // The first, the last and two layers between them; pipelines have one for each stage.
      if (c.plan.mesh.pp == 1 && c.plan.exchange.sparse.layers.empty()) c.layers = 4;
      SCOPED_TRACE(c.name);
      const program::Program program = compile(c.plan, small_model(c.layers));
      const link::LinkedProgram linked = link::link(program);
      EXPECT_TRUE(linked.redundant.empty())
          << to_text(program, program.roles[linked.redundant[0].role], linked.redundant[0].op);
      for (const link::RoleMemory& memory : linked.memory) EXPECT_GT(memory.total(), 0);
      const std::string text = to_text(program);
      EXPECT_EQ(to_text(program::parse_program(text)), text);
      EXPECT_EQ(linked.order.size(), [&] {
        std::size_t ops = 0;
        for (const program::Role& role : program.roles) ops += role.ops.size();
        return ops;
      }());
    }
  // Refused: numbers of micro-batches that do not fit the number of stages.
  refusals.expect(GetParam(), {{"interleaved", 622}, {"pipedream-2bw", 155}});
}

/// Dense plans of the odd models link, too. With bert, the groups that every tensor rank holds
/// whole do not end at the end of a shard.
TEST_P(Methods, LinkWhereShardsArePadded) {
  for (const model::Family family : {model::Family::gpt, model::Family::bert})
    for (const int ranks : {3, 6, 7, 12})
      for (const Case& c : cases_of(GetParam(), ranks, 4)) {
        if (!c.plan.exchange.sparse.layers.empty() || c.plan.mesh.pp > 4 || c.plan.mesh.tp > 4 ||
            c.plan.mesh.tp == 3)
          continue;
        SCOPED_TRACE(c.name);
        EXPECT_NO_THROW(link::link(compile(c.plan, odd_model(family))));
      }
}

/// Every stage has one role for each number of samples. Its compute ops take that number, and the
/// role with more samples needs more memory.
TEST_P(Methods, GiveEachKindOfReplicaItsSamples) {
  if (!strategy_named(GetParam()).combines.shares) {
    // The method gives all ranks equally many samples and refuses shares.
    plan::Plan plan = cases_of(GetParam(), 6, 8).front().plan;
    plan.schedule.shares.assign(static_cast<std::size_t>(plan.mesh.dp), plan.samples());
    EXPECT_NE(test::message_of([&] { prepare(plan, small_model(8)); }).find("method.shares: ["),
              std::string::npos);
    return;
  }
  int seen = 0;
  for (const Case& c : cases_of(GetParam(), 6, 8)) {
    if (c.plan.schedule.shares.empty() || !c.plan.exchange.sparse.layers.empty())
      continue;  // leaders would add kinds
    SCOPED_TRACE(c.name);
    const link::LinkedProgram linked = link::link(compile(c.plan, small_model(c.layers)));
    const program::Program& p = linked.program;
    // One more if rank 0, which coordinates, has a role of its own. Servers come last.
    const auto with_samples =
        static_cast<Id>(2 * c.plan.mesh.pp + strategy_named(GetParam()).combines.cycles);
    ASSERT_EQ(p.roles.size(), with_samples + static_cast<Id>(c.plan.mesh.servers));
    for (Id r = 0; r < with_samples; ++r) {
      for (const Id rank : p.roles[r].ranks) {
        const int samples = c.plan.samples(tensors::place_of(p, data_axes(p), rank).index);
        for (const program::Op& op : p.roles[r].ops)
          if (const auto* compute = std::get_if<program::Compute>(&op.work)) {
            EXPECT_EQ(compute->samples, samples) << "rank " << rank;
          }
      }
      if (r % 2 == 1) {
        EXPECT_GT(linked.memory[r].total(), linked.memory[r - 1].total());
      }
      EXPECT_EQ(linked.memory[r].state, linked.memory[r - r % 2].state);
    }
    ++seen;
  }
  EXPECT_GE(seen, 2);
}

/// Plans of which each op, wait and version is dropped in turn. Without stages, three layers and
/// micro-batches are enough: the first, the last and one between them.
std::vector<Case> cases_to_break(const std::string& method) {
  std::vector<Case> cases = cases_of(method, 4, 4);
  for (Case& c : cases) {
    if (c.plan.mesh.pp > 1 || !c.plan.exchange.sparse.layers.empty()) continue;
    c.layers = 3;
    if (c.plan.schedule.micro_batches == 1) continue;
    c.plan.schedule.global_batch = c.plan.schedule.global_batch / c.plan.schedule.micro_batches * 3;
    c.plan.schedule.micro_batches = 3;
  }
  return cases;
}

/// Counts the programs from which something was dropped; all of them must be refused. The count is
/// in the test's report (docs/testing.md).
class Dropped {
 public:
  ~Dropped() { testing::Test::RecordProperty("dropped", count_); }
  Dropped() = default;
  Dropped(const Dropped&) = delete;
  Dropped& operator=(const Dropped&) = delete;
  void must_be_missed(program::Program without, const std::string& what) {
    ++count_;
    EXPECT_THROW(link::link(std::move(without)), ProgramError) << what;
  }
  int count() const { return count_; }

 private:
  int count_ = 0;
};

TEST_P(Methods, EveryCollectiveIsNeeded) {
  Dropped dropped;
  for (const Case& c : cases_to_break(GetParam())) {
    const program::Program program = compile(c.plan, small_model(c.layers));
    for (Id r = 0; r < program.roles.size(); ++r)
      for (Id o = 0; o < program.roles[r].ops.size(); ++o) {
        const program::Work& work = program.roles[r].ops[o].work;
        if (!std::holds_alternative<program::Collective>(work) &&
            !std::holds_alternative<program::Send>(work) &&
            !std::holds_alternative<program::Recv>(work) &&
            !std::holds_alternative<program::Put>(work) &&
            !std::holds_alternative<program::Take>(work))
          continue;
        dropped.must_be_missed(test::without_op(program, r, o),
                               c.name + "\n" + to_text(program, program.roles[r], o));
      }
  }
  EXPECT_GT(dropped.count(), 0);
}

/// A collective that is dropped from all its members leaves no unmatched peer, so only layouts show
/// that it is missing.
TEST_P(Methods, EveryCollectiveIsNeededByAllItsMembers) {
  Dropped dropped;
  for (const Case& c : cases_to_break(GetParam())) {
    const program::Program program = compile(c.plan, small_model(c.layers));
    const link::LinkedProgram linked = link::link(program);
    for (const auto& event : linked.events) {
      if (!std::holds_alternative<program::Collective>(
              program.roles[event[0].role].ops[event[0].op].work))
        continue;
      program::Program without = program;
      for (const link::RoleOp& m : event) without = test::without_op(without, m.role, m.op);
      dropped.must_be_missed(
          std::move(without),
          c.name + "\n" + to_text(program, program.roles[event[0].role], event[0].op));
    }
  }
}

TEST_P(Methods, EveryWaitIsNeeded) {
  Dropped dropped;
  for (const Case& c : cases_to_break(GetParam())) {
    const program::Program program = compile(c.plan, small_model(c.layers));
    for (Id r = 0; r < program.roles.size(); ++r)
      for (Id o = 0; o < program.roles[r].ops.size(); ++o)
        for (std::size_t i = 0; i < program.roles[r].ops[o].after.size(); ++i) {
          if (program.roles[r].ops[o].after[i].throttle) continue;
          program::Program without = program;
          auto& after = without.roles[r].ops[o].after;
          after.erase(after.begin() + static_cast<std::ptrdiff_t>(i));
          dropped.must_be_missed(std::move(without),
                                 c.name + "\n" + to_text(program, program.roles[r], o));
        }
  }
  EXPECT_GT(dropped.count(), 0);
}

TEST_P(Methods, EveryWeightVersionIsNeeded) {
  Dropped dropped;
  for (const Case& c : cases_to_break(GetParam())) {
    const program::Program program = compile(c.plan, small_model(c.layers));
    for (Id r = 0; r < program.roles.size(); ++r)
      for (Id s = 0; s < program.roles[r].storages.size(); ++s) {
        program::Program without = program;
        if (--without.roles[r].storages[s].versions == 0) continue;
        dropped.must_be_missed(std::move(without),
                               c.name + "\n" + program.roles[r].storages[s].name);
      }
  }
}

/// PassOrder::in_flight equals a count over the actions. The second half of a backward frees the
/// activations. A backward with a shift belongs to an earlier step, so its activations, and those
/// of the steps between, already exist when the iteration begins.
TEST_P(Methods, SayHowManyActivationsTheirScheduleKeeps) {
  const Strategy& strategy = strategy_named(GetParam());
  const model::ModelSpec model = small_model(12);
  int seen = 0;
  for (const int pp : {1, 2, 3, 4, 6})
    for (const int v : {1, 2, 3})
      for (const int micro_batches : {1, 2, 3, 4, 6, 8, 12}) {
        plan::Plan plan{.method = GetParam(),
                        .mesh = {.pp = pp},
                        .schedule = {.global_batch = micro_batches,
                                     .micro_batches = micro_batches,
                                     .virtual_stages = v}};
        const auto ready = unless_refused([&] { return prepare(plan, model); });
        if (!ready || ready->schedule.virtual_stages != v) continue;
        const PassOrder order = strategy.order(*ready, model);
        for (int stage = 0; stage < pp; ++stage) {
          SCOPED_TRACE(testing::Message() << "pp " << pp << " v " << v << " micro-batches "
                                          << micro_batches << " stage " << stage);
          const std::vector<Action> actions = order.actions(*ready, stage);
          int alive = 0, most = 0;
          const auto frees = [](const Action& a) {
            return a.pass == program::Pass::backward || a.pass == program::Pass::backward_weight;
          };
          for (const Action& a : actions) alive += frees(a) ? a.shift : 0;
          for (const Action& a : actions)
            most = std::max(most, alive += (a.pass == program::Pass::forward) - frees(a));
          EXPECT_EQ(order.in_flight(*ready, stage), most);
          ++seen;
        }
      }
  EXPECT_GE(seen, 7);  // at least one stage for each number of micro-batches
}

INSTANTIATE_TEST_SUITE_P(All, Methods, testing::ValuesIn(test::all_methods()), test::method_name);

}  // namespace
}  // namespace rehearse::methods
