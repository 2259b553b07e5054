// Variances: eq. 2 computed by hand, sampling, and that with every method each coordinate of every
// layer is observed exactly once.
#include "engine/tensors/variance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "engine/base/errors.h"
#include "engine/base/names.h"
#include "engine/methods/strategy.h"
#include "tests/engine/rig.h"
#include "tests/message_of.h"
#include "tests/methods.h"

namespace rehearse::tensors {
namespace {

/// The state of an observe kernel on a rank after `steps` steps, with equal mean and deviations at
/// every coordinate.
std::vector<float> state_of(const link::LinkedProgram& linked, Id rank, Id op, int steps,
                            float mean, float deviations) {
  const program::Role& role = linked.program.roles[linked.role_of[rank]];
  const auto n = static_cast<std::size_t>(
      elements_of(linked.program, role, *find(role.ops[op], program::Slot::target)));
  std::vector<float> state(n, mean);
  std::fill(state.begin() + static_cast<std::ptrdiff_t>(n / 2) + 1, state.end(), deviations);
  state[0] = static_cast<float>(steps);
  return state;
}

std::vector<Id> observing(const link::LinkedProgram& linked, Id rank) {
  const program::Role& role = linked.program.roles[linked.role_of[rank]];
  std::vector<Id> ops;
  for (Id o = 0; o < role.ops.size(); ++o)
    if (const auto* k = std::get_if<program::Kernel>(&role.ops[o].work);
        k && k->kind == program::KernelKind::observe)
      ops.push_back(o);
  return ops;
}

std::vector<LayerVariance> variances(const link::LinkedProgram& linked,
                                     const model::ModelSpec& model) {
  const auto maps = map_tensors(linked, model);
  std::vector<GroupObservation> all;
  for (Id rank = 0; rank < maps.size(); ++rank)
    for (Id op : observing(linked, rank)) {
      const auto state = state_of(linked, rank, op, 4, 3, 8);
      const auto mine = observations_of(linked, model, maps[rank], rank, op, state, 0);
      // Ranks exchange observations as text.
      const auto back = parse_observations(to_text(mine));
      EXPECT_EQ(to_text(back), to_text(mine));
      all.insert(all.end(), back.begin(), back.end());
    }
  return layer_variances(model, all);
}

std::map<Id, std::int64_t> elements_by_layer(const model::ModelSpec& model) {
  std::map<Id, std::int64_t> out;
  for (Id g = 0; g < model.groups.size(); ++g)
    out[layer_of(model, g)] += elements_of(model.groups[g], 1);
  return out;
}

TEST(Variance, IsEquation2) {
  // A layer of two coordinates over three steps: g = (1, 5), (2, 5), (6, 2).
  // Means: (1 + 2 + 6) / 3 = 3 and (5 + 5 + 2) / 3 = 4.
  // Squared deviations: (-2)^2 + (-1)^2 + 3^2 = 14 and 1^2 + 1^2 + (-2)^2 = 6.
  // Eq. 2: the three |g_t - mean|^2 are 4 + 1 = 5, 1 + 1 = 2, 9 + 4 = 13; (5 + 2 + 13) / 3 = 20/3.
  // |g_t|^2 are 26, 29, 40: mean 95/3 = 20/3 + 3^2 + 4^2.
  model::ModelSpec model = model::build_model(
      {.layers = 1, .hidden = 8, .heads = 1, .ffn = 8, .vocab = 8, .seq_len = 4});
  model.groups = {{.name = "g", .tensors = {{.name = "w", .shape = {2}}}}};
  model.segments = {{.name = "layer", .groups = {0}}};
  const std::vector<GroupObservation> all = {
      {.group = 0, .observed = 2, .observed_steps = 3, .deviations = 14 + 6, .means = 9 + 16}};
  const auto layers = layer_variances(model, all);
  ASSERT_EQ(layers.size(), 1U);
  EXPECT_DOUBLE_EQ(layers[0].total, 20.0 / 3);
  EXPECT_DOUBLE_EQ(layers[0].per_element, 10.0 / 3);
  EXPECT_DOUBLE_EQ(layers[0].square_norm, 95.0 / 3);
  EXPECT_EQ(layers[0].elements, 2);
  EXPECT_EQ(layers[0].observed, 2);
  EXPECT_EQ(layers[0].observed_steps, 3);
}

TEST(Variance, ScalesEachGroupFromItsOwnSample) {
  // 10 elements of which 2 are observed, with sum of deviations 8 over 4 steps: 10 / 2 x 8 / 4 =
  // 10. 4 elements, all observed, 12 over 4 steps: 3. A group of 2 that no sample hit counts like
  // the other 14: x 16 / 14.
  model::ModelSpec model;
  const auto group = [](const char* name, std::int64_t n) {
    return model::ParamGroup{.name = name, .tensors = {{.name = name, .shape = {n}}}};
  };
  model.groups = {group("a", 10), group("b", 4), group("c", 2), group("d", 7)};
  model.segments = {{.name = "one", .groups = {0, 1, 2}}, {.name = "two", .groups = {1, 3}}};
  const std::vector<GroupObservation> all = {
      {.group = 0, .observed = 1, .observed_steps = 4, .deviations = 5, .means = 0},
      {.group = 1, .observed = 4, .observed_steps = 4, .deviations = 12, .means = 1},
      {.group = 0, .observed = 1, .observed_steps = 4, .deviations = 3, .means = 0}};
  const auto layers = layer_variances(model, all);
  ASSERT_EQ(layers.size(), 1U);  // b is tied and belongs to the first layer; d was not observed
  EXPECT_EQ(layers[0].elements, 16);
  EXPECT_EQ(layers[0].observed, 6);
  EXPECT_DOUBLE_EQ(layers[0].total, 13.0 * 16 / 14);
  EXPECT_DOUBLE_EQ(layers[0].square_norm, 14.0 * 16 / 14);
  EXPECT_THROW(
      layer_variances(
          model, std::vector<GroupObservation>{{.group = 0, .observed = 1, .observed_steps = 4},
                                               {.group = 0, .observed = 1, .observed_steps = 5}}),
      BackendError);
}

TEST(Variance, SmallGroupsAreObservedMoreClosely) {
  const auto stride = [](std::vector<std::int64_t> elements) {
    return observe_stride(elements, 61);
  };
  EXPECT_EQ(stride({1'000'000}), 61);
  EXPECT_EQ(stride({1'000'000, 1536}), 23);  // the largest prime up to 1536 / 64
  EXPECT_EQ(stride({1'000'000, 63}), 1);
  EXPECT_EQ(stride({}), 61);
  EXPECT_EQ(observe_stride(std::vector<std::int64_t>{1'000'000}, 1), 1);
  EXPECT_EQ(program::observed_entries(10, 3), 4);  // 0, 3, 6, 9
  EXPECT_EQ(program::observed_entries(9, 3), 3);
  EXPECT_EQ(program::observed_entries(1, 61), 1);
}

class ObservedMethods : public testing::TestWithParam<std::string> {};

TEST_P(ObservedMethods, SeeEveryCoordinateOnce) {
  const methods::Combines& can = methods::strategy_named(GetParam()).combines;
  const model::ModelSpec model = test::small_model(8);
  test::Refusals refusals;
  int linked_plans = 0;
  for (const int ranks : {1, 2, 4, 6})
    for (int pp = 1; pp <= (can.pp ? ranks : 1); ++pp)
      for (int tp = 1; tp <= (can.tp ? ranks : 1); ++tp)
        for (int zero = 0; zero <= can.max_zero; ++zero)
          for (const program::DType precision : {program::DType::f32, program::DType::f16}) {
            if (ranks % (pp * tp) != 0) continue;
            plan::Plan plan{.method = GetParam(),
                            .mesh = {.pp = pp, .dp = ranks / pp / tp, .tp = tp}};
            if (can.servers) plan.mesh.servers = 1;
            plan.exchange.sharding.zero = zero;
            plan.precision = precision;
            plan.schedule.micro_batches = 4;
            plan.exchange.bucket = Bytes(20000);
            plan.schedule.global_batch = plan.mesh.dp * 8;
            if (precision == program::DType::f16 && !can.low_precision) continue;
            if (refusals.refuses(plan, model)) continue;  // refused even without observation
            const program::Program program = methods::compile(plan, model);
            const bool no_sum =
                can.local_steps || can.graph ||
                std::any_of(program.roles.begin(), program.roles.end(),
                            [](const program::Role& role) { return role.free_running; });
            plan.exchange.observe = 1;
            SCOPED_TRACE(testing::Message() << "pp " << pp << " tp " << tp << " zero " << zero
                                            << " ranks " << ranks << " " << name_of(precision));
            if (no_sum) {
              EXPECT_THROW(methods::compile(plan, model), InputError);
              ++linked_plans;
              continue;
            }
            const link::LinkedProgram linked = link::link(methods::compile(plan, model));
            EXPECT_TRUE(linked.redundant.empty());
            const std::map<Id, std::int64_t> elements = elements_by_layer(model);
            const auto layers = variances(linked, model);
            EXPECT_EQ(layers.size(), elements.size());
            for (const LayerVariance& layer : layers) {
              EXPECT_EQ(layer.observed, elements.at(layer.segment));
              EXPECT_EQ(layer.elements, elements.at(layer.segment));
              EXPECT_NEAR(layer.per_element, 8.0 / 4, 1e-12);
              EXPECT_NEAR(layer.square_norm / static_cast<double>(layer.elements), 2 + 9, 1e-10);
            }
            // All coordinates are equal here, so a sample gives the same variance.
            plan.exchange.observe = 7;
            const link::LinkedProgram sampled = link::link(methods::compile(plan, model));
            for (const LayerVariance& layer : variances(sampled, model)) {
              EXPECT_NEAR(layer.per_element, 8.0 / 4, 1e-12);
              EXPECT_GE(layer.observed, std::min<std::int64_t>(layer.elements, 64) / 2);
            }
            ++linked_plans;
          }
  EXPECT_GE(linked_plans, 1);
  refusals.expect(GetParam(), {{"interleaved", 80}, {"pipedream-2bw", 2}});
}

INSTANTIATE_TEST_SUITE_P(Registry, ObservedMethods, testing::ValuesIn(test::all_methods()),
                         test::method_name);

/// An observation of steps 100, 101, ... that ended at its fifth step, because the first entry of a
/// bucket had this mean and deviation. Returns the error, and the layer that it should name.
std::pair<std::string, std::string> refusal_of(float mean, float deviation) {
  plan::Plan plan = test::plan_of("ddp", 1, 2, 1, 1);
  plan.exchange.observe = 1;
  const model::ModelSpec model = test::small_model(2);
  const link::LinkedProgram linked = link::link(methods::compile(plan, model));
  const auto maps = map_tensors(linked, model);
  // The first bucket that backward completes begins with the head's parameters.
  const Id op = observing(linked, 1).front();
  auto state = state_of(linked, 1, op, -5, 3, 8);
  const std::size_t n = (state.size() - 1) / 2;
  state[1 + 0] = mean;
  state[1 + n] = deviation;
  const program::Role& role = linked.program.roles[0];
  const Id storage = role.views[find(role.ops[op], program::Slot::source)->view].storage;
  const Id group = maps[1].storages[storage].pieces.front().group;
  return {test::message_of([&] { observations_of(linked, model, maps[1], 1, op, state, 100); }),
          "layer " + model.segments[layer_of(model, group)].name};
}

TEST(Variance, NamesLayerAndStepOfAGradientThatIsNotFinite) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto [message, layer] = refusal_of(nan, nan);
  EXPECT_THAT(message, testing::HasSubstr(layer + " was not finite at step 104"));
}

/// The observe kernel stops before sums of squares overflow fp32.
TEST(Variance, NamesLayerAndStepOfAGradientThatIsTooLarge) {
  const auto [message, layer] = refusal_of(4e17F, 1e35F);
  EXPECT_THAT(message, testing::HasSubstr(layer + " was 1e18 or more at step 104"));
}

TEST(Variance, PartialSumsAreNotObserved) {
  plan::Plan plan = test::plan_of("ddp", 1, 2, 1, 1);
  plan.exchange.observe = 3;
  const program::Program good = methods::compile(plan, test::small_model(2));
  const auto message = [&](auto change) {
    program::Program program = good;
    for (program::Op& op : program.roles[0].ops)
      if (auto* k = std::get_if<program::Kernel>(&op.work);
          k && k->kind == program::KernelKind::observe)
        change(program, op, *k);
    try {
      link::link(program);
    } catch (const ProgramError& e) {
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(message([](program::Program&, program::Op&, program::Kernel&) {}), "accepted");
  EXPECT_THAT(message([](program::Program& p, program::Op& op, program::Kernel&) {
                for (program::Ref& ref : op.refs)
                  if (ref.slot == program::Slot::source)
                    ref.layout.partial = p.channels[0].group.axes;
              }),
              testing::HasSubstr("partial"));
  EXPECT_THAT(message([](program::Program&, program::Op&, program::Kernel& k) { k.stride = 2; }),
              testing::HasSubstr("at stride 2 takes"));
  EXPECT_THAT(message([](program::Program&, program::Op&, program::Kernel& k) { k.stride = 0; }),
              testing::HasSubstr("stride is 0"));
}

TEST(Variance, AKernelTouchesALineAnEntry) {
  for (const int stride : {1, 8, 61}) {
    plan::Plan plan = test::plan_of("ddp", 1, 1, 1, 1);
    plan.exchange.observe = stride;
    const model::ModelSpec model = model::build_model({.name = "wide",
                                                       .layers = 1,
                                                       .hidden = 128,
                                                       .heads = 2,
                                                       .ffn = 512,
                                                       .vocab = 8192,
                                                       .seq_len = 8});
    const link::LinkedProgram linked = link::link(methods::compile(plan, model));
    const program::Role& role = linked.program.roles[0];
    for (Id op : observing(linked, 0)) {
      const std::int64_t n =
          elements_of(linked.program, role, *find(role.ops[op], program::Slot::source));
      const int own = std::get<program::Kernel>(role.ops[op].work).stride;
      const std::int64_t entries = program::observed_entries(n, own);
      EXPECT_EQ(linked.roles[0].ops[op].bytes,
                std::min(4 * n, 64 * entries) + 2 * 4 * (1 + 2 * entries));
    }
  }
}

}  // namespace
}  // namespace rehearse::tensors
