// Context parallelism with everything that it combines with: programs link, nothing in them is
// superfluous, bytes on the wire and work of each rank equal closed forms, and what does not
// combine is refused.
#include <gtest/gtest.h>

#include "engine/base/names.h"
#include "engine/costs/network/piece.h"
#include "engine/link/workspace.h"
#include "engine/methods/strategy.h"
#include "engine/model/launches.h"
#include "engine/model/tensor_split.h"
#include "tests/engine/rig.h"
#include "tests/engine/sent_bytes.h"
#include "tests/message_of.h"

namespace rehearse::methods {
namespace {

using plan::Context;

model::ModelSpec small_model(model::Family family = model::Family::gpt) {
  return model::build_model({.name = "small",
                             .family = family,
                             .layers = 4,
                             .hidden = 96,
                             .heads = 48,
                             .ffn = 48,
                             .vocab = 96,
                             .seq_len = 48,
                             .kv_heads = family == model::Family::llama ? 24 : 0});
}

struct Case {
  std::string name = {};
  plan::Plan plan = {};
};

std::vector<Case> cases(int most_cp = 4) {
  std::vector<Case> out;
  for (const Context context : {Context::ring, Context::zigzag, Context::ulysses})
    for (int cp = 2; cp <= most_cp; ++cp) {
      const auto add = [&](const std::string& name, plan::Plan plan) {
        plan.mesh.cp = cp, plan.mesh.context = context, plan.mesh.order = "pp,dp,cp,tp";
        plan.schedule.global_batch = 2 * plan.mesh.dp * plan.schedule.micro_batches;
        plan.exchange.bucket = Bytes(20000);
        out.push_back({std::string(name_of(context)) + " of " + std::to_string(cp) + ", " + name,
                       std::move(plan)});
      };
      add("ddp", {.method = "ddp"});
      add("ddp of 2, accumulating",
          {.method = "ddp", .mesh = {.dp = 2}, .schedule = {.micro_batches = 2}});
      for (int zero = 1; zero <= 3; ++zero)
        add("zero" + std::to_string(zero), {.method = "ddp",
                                            .mesh = {.dp = zero == 3 ? 1 : 2},
                                            .schedule = {.micro_batches = 2},
                                            .exchange = {.sharding = {.zero = zero}},
                                            .clip = true});
      add("recomputing", {.method = "ddp", .schedule = {.micro_batches = 2, .recompute = true}});
      add("recomputing attention of one layer",
          {.method = "zero3",
           .schedule = {.recompute = true,
                        .recompute_unit = plan::RecomputeUnit::attention,
                        .recompute_layers = 1}});
      add("tensor parallel", {.method = "megatron", .mesh = {.tp = 2}});
      add("sequence parallel",
          {.method = "megatron", .mesh = {.tp = 2, .sequence_parallel = true}, .clip = true});
      add("1f1b", {.method = "1f1b", .mesh = {.pp = 2}, .schedule = {.micro_batches = 3}});
      add("interleaved", {.method = "interleaved",
                          .mesh = {.pp = 2},
                          .schedule = {.micro_batches = 2, .virtual_stages = 2}});
      add("all axes", {.method = "gpipe",
                       .mesh = {.pp = 2, .dp = 2, .tp = 2},
                       .schedule = {.micro_batches = 2},
                       .exchange = {.sharding = {.zero = 1}},
                       .precision = program::DType::f16,
                       .clip = true});
    }
  return out;
}

TEST(ContextParallel, LinksWithEverythingItCombinesWithAndWaitsForNothingTwice) {
  for (const model::Family family : {model::Family::gpt, model::Family::llama})
    for (const Case& c : cases()) {
      SCOPED_TRACE(c.name);
      const program::Program program = compile(c.plan, small_model(family));
      const link::LinkedProgram linked = link::link(program);
      EXPECT_TRUE(linked.redundant.empty());
      EXPECT_EQ(to_text(program::parse_program(to_text(program))), to_text(program));
    }
}

TEST(ContextParallel, EveryTransferAndEveryWaitIsNeeded) {
  for (const Case& c : cases(3)) {
    const int others = c.plan.mesh.pp * c.plan.mesh.dp * c.plan.mesh.tp;
    if (others > (c.plan.mesh.cp == 2 ? 2 : 1)) continue;
    const program::Program program = compile(c.plan, small_model());
    for (Id r = 0; r < program.roles.size(); ++r)
      for (Id o = 0; o < program.roles[r].ops.size(); ++o) {
        const program::Op& op = program.roles[r].ops[o];
        const auto text = [&] { return c.name + "\n" + to_text(program, program.roles[r], o); };
        if (channel_of(op.work) != none) {
          EXPECT_THROW(link::link(test::without_op(program, r, o)), ProgramError) << text();
        }
        for (std::size_t i = 0; i < op.after.size(); ++i) {
          if (op.after[i].throttle) continue;
          program::Program without = program;
          auto& after = without.roles[r].ops[o].after;
          after.erase(after.begin() + static_cast<std::ptrdiff_t>(i));
          EXPECT_THROW(link::link(without), ProgramError) << text();
        }
      }
  }
}

/// Elements that a rank sends for the attention of one layer in forward and backward, B samples of
/// s tokens: rings send 2 (s / P) K in each of P - 1 steps of forward, the same once more and as
/// much for the gradients in backward; exchanges of heads send (P - 1) / P of the queries, keys,
/// values and outputs of s / P tokens, twice. (Where K = W = h that is 4 (P - 1) / P x s h / P for
/// each pass, Jacobs et al. 2023, section 3.2, of a link that also carries what stays.)
TEST(ContextParallel, SendsWhatThePapersSay) {
  for (const model::Family family : {model::Family::gpt, model::Family::llama})
    for (const Context context : {Context::ring, Context::zigzag, Context::ulysses})
      for (const int cp : {2, 3, 4})
        for (const bool recompute : {false, true}) {
          const model::ModelSpec model = small_model(family);
          plan::Plan plan{.method = "ddp",
                          .mesh = {.order = "pp,dp,cp,tp", .cp = cp, .context = context},
                          .schedule = {.global_batch = 4, .micro_batches = 2}};
          plan.schedule.recompute = recompute;
          const std::int64_t tokens = 4 * model.seq_len / cp, queries = model.hidden,
                             keys = model.hidden / model.heads * model.kv_heads;
          const std::int64_t forward = context == Context::ulysses
                                           ? (cp - 1) * tokens * (2 * queries + 2 * keys) / cp
                                           : (cp - 1) * 2 * tokens * keys;
          const std::int64_t backward = context == Context::ulysses ? forward : 2 * forward;
          const std::int64_t a_rank = model.layers * (forward * (recompute ? 2 : 1) + backward);
          const std::int64_t gradients = 2 * (cp - 1) * parameters_of(model);
          EXPECT_EQ(test::sent_bytes(link::link(compile(plan, model))),
                    4 * (cp * a_rank + gradients))
              << name_of(context) << " " << cp;
        }
}

double attention_flops(const program::Program& program, const model::ModelSpec& model, Id role,
                       program::Pass pass) {
  double flops = 0;
  for (const program::Op& op : program.roles[role].ops)
    if (const auto* c = std::get_if<program::Compute>(&op.work);
        c != nullptr && c->pass == pass && c->part == program::Part::attend)
      for (const model::Launch& launch : launches_of(
               model, c->segment, c->pass, c->samples, model::tensor_split(program),
               program::DType::f32, costs::piece_of(program, program.roles[role], *c, model)))
        flops += launch.kind == model::Launch::Kind::attention ? launch.flops() : 0;
  return flops;
}

/// Of the work of one rank on the whole sequence, rank r of a ring of P does (2 r + 1) / P^2, ranks
/// of the others 1 / P.
TEST(ContextParallel, RanksShareTheWorkOfAttention) {
  const model::ModelSpec model = small_model();
  double whole = 0;
  for (const model::Launch& launch :
       launches_of(model, 1, program::Pass::forward, 2, 1, program::DType::f32))
    whole += launch.kind == model::Launch::Kind::attention ? launch.flops() * model.layers : 0;
  for (const int cp : {2, 3, 4})
    for (const Context context : {Context::ring, Context::zigzag, Context::ulysses}) {
      const program::Program program =
          compile({.method = "ddp",
                   .mesh = {.order = "pp,dp,cp,tp", .cp = cp, .context = context},
                   .schedule = {.global_batch = 2}},
                  model);
      ASSERT_EQ(program.roles.size(), context == Context::ulysses ? 1U : std::size_t(cp));
      for (Id r = 0; r < program.roles.size(); ++r)
        for (const auto& [pass, times] :
             {std::pair(program::Pass::forward, 1.0), std::pair(program::Pass::backward, 2.0)})
          EXPECT_NEAR(attention_flops(program, model, r, pass) / (times * whole),
                      context == Context::ring ? (2.0 * r + 1) / (cp * cp) : 1.0 / cp, 1e-12)
              << name_of(context) << " " << cp << " rank " << r;
    }
}

/// Activations of a rank are those of its tokens. Before and after an exchange of heads,
/// attention's output exists twice.
TEST(ContextParallel, DividesActivations) {
  const model::ModelSpec model = small_model();
  const auto values = [&](int cp, Context context) {
    plan::Plan plan{.method = "ddp",
                    .mesh = {.order = "pp,dp,cp,tp", .cp = cp, .context = context},
                    .schedule = {.global_batch = 64}};
    const link::LinkedProgram linked = link::link(compile(plan, model), model);
    return static_cast<double>(linked.memory[0].value);
  };
  const double one = values(1, Context::ring);
  for (const Context context : {Context::ring, Context::zigzag, Context::ulysses})
    for (const int cp : {2, 4}) {
      EXPECT_GT(values(cp, context) * cp / one, 0.95) << name_of(context);
      EXPECT_LT(values(cp, context) * cp / one, context == Context::ulysses ? 1.31 : 1.24)
          << name_of(context);
    }
}

// All tensor-parallel ranks gather the statistics of the loss; this alone is no sequence
// parallelism.
TEST(TensorSplit, IsReadFromTheProgram) {
  const model::ModelSpec model = small_model();
  const auto split = [&](const std::string& method, bool sequence) {
    plan::Plan plan{.method = method,
                    .mesh = {.tp = 2, .sequence_parallel = sequence},
                    .schedule = {.global_batch = 4}};
    if (method == "zb-h1") plan.mesh.pp = 2, plan.schedule.micro_batches = 4;
    return model::tensor_split(compile(prepare(plan, model), model));
  };
  for (const char* method : {"megatron", "zb-h1"})
    for (const bool sequence : {false, true}) {
      const model::TensorSplit found = split(method, sequence);
      EXPECT_EQ(found.ranks, 2);
      EXPECT_EQ(found.sequence, sequence) << method;
      EXPECT_EQ(found.halves, sequence && method == std::string("zb-h1")) << method;
    }
}

TEST(ContextParallel, RefusesWhatDoesNotCombine) {
  const auto says = [](plan::Plan plan, const model::ModelSpec& model) {
    plan.mesh.order = "pp,dp,cp,tp";
    if (plan.schedule.global_batch == 0) plan.schedule.global_batch = 12;
    return test::message_of([&] { prepare(plan, model); });
  };
  const model::ModelSpec gpt = small_model();
  model::ModelSpec window = small_model(model::Family::llama);
  window.window = 8;
  const auto expect = [](const std::string& said, std::initializer_list<const char*> words) {
    for (const char* word : words)
      EXPECT_NE(said.find(word), std::string::npos) << said << "\nlacks " << word;
  };
  expect(says({.method = "ddp", .mesh = {.cp = 5}}, gpt),
         {"method.cp: 5", "48 tokens", "nearest: "});
  expect(says({.method = "ddp", .mesh = {.cp = 16, .context = Context::zigzag}}, gpt),
         {"method.cp: 16", "2 x cp", "nearest: 12"});
  expect(
      says({.method = "megatron", .mesh = {.tp = 2, .cp = 16, .context = Context::ulysses}}, gpt),
      {"method.cp: 16", "24 heads", "nearest: 12", "ring"});
  expect(says({.method = "ddp", .mesh = {.cp = 2, .context = Context::zigzag}},
              small_model(model::Family::bert)),
         {"method.context: \"zigzag\"", "both directions", "\"ring\""});
  expect(says({.method = "ddp", .mesh = {.cp = 2}}, window),
         {"method.context: \"ring\"", "last 8 tokens", "\"ulysses\""});
  expect(says({.method = "zb-h1", .mesh = {.pp = 2, .cp = 2}}, gpt),
         {"method.cp: 2", "zb-h1", "cp must be 1", "megatron"});
  expect(says({.method = "ddp",
               .mesh = {.cp = 2},
               .schedule = {.recompute = true, .recompute_unit = plan::RecomputeUnit::layer}},
              gpt),
         {"method.recompute_unit: \"layer\"", "cp above 1"});
  expect(says({.method = "ddp",
               .mesh = {.dp = 4, .cp = 2},
               .exchange = {.sharding = {.zero = 1, .shard_group = 2}}},
              gpt),
         {"method.shard_group: 2", "over dp and cp"});
  expect(says({.method = "ddp", .mesh = {.dp = 2, .cp = 2}, .schedule = {.shares = {3, 1}}}, gpt),
         {"method.cp: 2", "shares"});
  plan::Plan order{.method = "ddp", .mesh = {.cp = 2}, .schedule = {.global_batch = 4}};
  expect(test::message_of([&] { prepare(order, gpt); }),
         {"method.order: \"pp,dp,tp\"", "pp,dp,cp,tp"});
}

}  // namespace
}  // namespace rehearse::methods
