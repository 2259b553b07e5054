// Bytes on the wire of every method on meshes of several sizes: the sum over all transfers of a
// step's program equals the papers' formulas, which use only the plan and the model. Bytes are
// summed over all ranks.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "engine/link/link.h"
#include "engine/methods/strategy.h"
#include "tests/engine/sent_bytes.h"
#include "tests/methods.h"

namespace rehearse::methods {
namespace {

model::ModelSpec model_of(int layers) {
  return model::build_model({.name = "small",
                             .layers = layers,
                             .hidden = 24,
                             .heads = 12,
                             .ffn = 48,
                             .vocab = 96,
                             .seq_len = 12});
}

/// Bytes of dense methods by the papers' formulas. n, t: sizes of dp and tp; m: micro-batches; a:
/// elements of a boundary activation, summed over the data-parallel ranks.
std::int64_t formula(plan::Plan plan, const model::ModelSpec& model) {
  if (plan.mesh.dp == 1) plan.exchange.sharding.zero = 0;  // nothing to shard
  // Methods with sparse exchanges reduce once per step, also with ZeRO-2.
  if (strategy_named(plan.method).combines.sparse)
    plan.exchange.sharding.zero = std::min(plan.exchange.sharding.zero, 1);
  const std::int64_t n = plan.mesh.dp, t = plan.mesh.tp, m = plan.schedule.micro_batches;
  const std::int64_t shards = plan.exchange.sharding.zero > 0 ? plan.shards() : n;
  // Samples of one micro-batch on all data-parallel ranks together, also with unequal shares.
  const std::int64_t samples = plan.schedule.global_batch / m;
  const std::int64_t a = samples * model.seq_len * model.hidden;
  const std::int64_t replicas = plan.mesh.dp * plan.mesh.tp;  // ranks of a stage
  std::int64_t elements = 0;
  const auto chunks = static_cast<int>(plan.placement.stages.size());
  std::int64_t head_stats = 0;
  auto uses = [&](int stage, Id group) {
    for (int c = stage; c < chunks; c += plan.mesh.pp)
      for (Id s : plan.placement.stages[static_cast<std::size_t>(c)])
        for (Id g : model.segments[s].groups)
          if (g == group) return true;
    return false;
  };
  for (int stage = 0; stage < plan.mesh.pp; ++stage) {
    std::int64_t params = 0, whole = 0;
    for (Id g = 0; g < model.groups.size(); ++g) {
      if (!uses(stage, g)) continue;
      params += elements_of(model.groups[g], plan.mesh.tp);
      if (!model.groups[g].split) whole += elements_of(model.groups[g], plan.mesh.tp);
    }
    // Over dp: a rank sends 2 (n-1)/n of the gradient in an all-reduce. lowering/sharded.cpp has
    // the factors of ZeRO. A gather or scatter among n ranks moves (n-1) times its elements, in
    // groups of s of them (s-1) n/s times.
    const auto among = [&](std::int64_t group) { return (group - 1) * (n / group); };
    const std::int64_t gathers = plan.exchange.sharding.zero < 3            ? 1
                                 : plan.exchange.sharding.keep_gathered     ? 1
                                 : plan.exchange.sharding.reshard_group > 0 ? m
                                                                            : 2 * m,
                       scatters = plan.shards_gradients() ? m : 1;
    std::int64_t moved = 2 * (n - 1);
    if (plan.exchange.sharding.zero > 0) {
      moved = (gathers + scatters) * among(shards);
      if (plan.exchange.sharding.reshard_group > 0)
        moved += m * among(plan.exchange.sharding.reshard_group);
      moved += 2 * (n / shards - 1);  // all-reduces of shards across groups
    }
    elements += moved * params * t;
    // Over tp: gradients of groups that tp does not split are all-reduced before each dp reduction.
    elements += scatters * 2 * (t - 1) * whole * n;
    for (int c = stage; c < chunks; c += plan.mesh.pp)
      for (Id s : plan.placement.stages[static_cast<std::size_t>(c)]) {
        const bool first = s == 0, last = s + 1 == model.segments.size();
        // One all-reduce in forward (not in the head) and one in backward (not in the embedding):
        // 2 (t-1) x a each. With sequence parallelism each of them is a reduce-scatter and an
        // all-gather, and backward gathers the input once more.
        elements += ((!last) + (!first)) * 2 * (t - 1) * a * m;
        if (plan.mesh.sequence_parallel && t > 1) elements += (!first) * (t - 1) * a * m;
        // Recomputation of a layer sums its mlp's input anew; with sequence parallelism it gathers
        // that sum in place of the kept input.
        const bool again = plan.schedule.recompute_unit == plan::RecomputeUnit::layer &&
                           model.segments[s].kind == model::SegmentKind::mlp &&
                           s != plan.placement.stages[static_cast<std::size_t>(c)].front();
        if (plan.schedule.recompute && again)
          elements += (plan.mesh.sequence_parallel ? 1 : 2) * (t - 1) * a * m;
        if (last && t > 1) head_stats += (t - 1) * t * samples * model.seq_len * 3 * m;
      }
  }
  elements += 2 * (chunks - 1) * m * a * t / (plan.mesh.sequence_parallel ? t : 1);
  if (plan.mesh.pp > 1 &&
      model.tied)  // two copies of the word embedding, or shards: 2 (2-1) x its elements per pair
    elements += 2 * elements_of(model.groups[model.segments.front().groups[0]], plan.mesh.tp) *
                replicas / (plan.shards_gradients() ? shards : 1);
  if (plan.clip) {  // one scalar over all ranks that hold different gradients
    const std::int64_t together = plan.mesh.pp * t * (plan.exchange.sharding.zero ? shards : 1);
    elements += 2 * (together - 1) * (plan.exchange.sharding.zero ? n / shards : n);
  }
  return (elements + head_stats) * 4;
}

/// Elements that low-rank exchanges send of a group on one of t ranks. A matrix (rows x columns)
/// sends rank x (rows + columns) if that is less than half of its entries. Rows are those
/// dimensions in front for which rows + columns are fewest. Biases are vectors, which are sent
/// whole.
std::int64_t sent_as_factors(const model::ParamGroup& group, int t, int rank) {
  std::int64_t sent = 0;
  for (const model::TensorSpec& spec : group.tensors) {
    std::int64_t elements = 1, rows = 1;
    std::vector<std::int64_t> shape = spec.shape;
    if (group.split && spec.split >= 0) shape[static_cast<std::size_t>(spec.split)] /= t;
    for (const std::int64_t extent : shape) elements *= extent;
    std::int64_t least = elements + 1;
    for (std::size_t i = 0; i + 1 < shape.size(); ++i) {
      rows *= shape[i];
      least = std::min(
          least, std::min<std::int64_t>({rank, rows, elements / rows}) * (rows + elements / rows));
    }
    sent += 2 * least < elements && !spec.name.ends_with(".bias") ? least : elements;
  }
  return sent;
}

std::int64_t formula_of_method(const plan::Plan& plan, const model::ModelSpec& model) {
  const std::int64_t params = parameters_of(model), n = plan.mesh.dp;
  if (plan.mesh.servers > 0) return 2 * n * params * 4;  // every worker pushes and pulls everything
  if (plan.exchange.sparse.reduction == plan::Reduction::sparse) {
    // Instead of the dense sum, each rank's (index, value) pairs reach the n - 1 others. Groups
    // that tp splits and groups that it does not split form one bucket each, and each bucket rounds
    // up.
    const std::int64_t t = plan.mesh.tp;
    std::int64_t split = 0, whole = 0;
    for (const model::ParamGroup& g : model.groups)
      (t > 1 && g.split ? split : whole) += elements_of(g, plan.mesh.tp);
    std::int64_t pairs = 0;
    for (const std::int64_t part : {split, whole})
      pairs += static_cast<std::int64_t>(
          std::ceil(plan.exchange.sparse.density * static_cast<double>(part)));
    // ZeRO still gathers the weights, so only half of the dense volume is saved.
    const std::int64_t dense =
        (plan.exchange.sharding.zero > 0 ? 1 : 2) * (n - 1) * (split + whole) * t * 4;
    return formula(plan, model) - dense + t * n * (n - 1) * pairs * 8;
  }
  if (strategy_named(plan.method).combines.quantised && n > 1) {
    // Instead of the dense sum, each rank sends n - 1 packets to the owners of the parts and n - 1
    // copies of the packet of its own sum. A packet has a scale for each block, and its codes.
    const std::int64_t t = plan.mesh.tp;
    std::int64_t split = 0, whole = 0;
    for (const model::ParamGroup& g : model.groups)
      (t > 1 && g.split ? split : whole) += elements_of(g, plan.mesh.tp);
    std::int64_t packets = 0;
    for (const std::int64_t elements : {split, whole}) {
      if (elements == 0) continue;
      const std::int64_t part = (elements + n - 1) / n,
                         block = plan.exchange.quantised.block.value_or(part);
      const bool scales = plan.method != "signsgd-majority";
      packets += scales * 4 * ((part + block - 1) / block) +
                 (part * *plan.exchange.quantised.bits + 7) / 8;
    }
    return formula(plan, model) - 2 * (n - 1) * (split + whole) * t * 4 +
           t * n * 2 * (n - 1) * packets;
  }
  if (strategy_named(plan.method).combines.low_rank && n > 1) {
    std::int64_t whole = 0, sent = 0;
    for (const model::ParamGroup& g : model.groups) {
      whole += elements_of(g, plan.mesh.tp);
      sent += sent_as_factors(g, plan.mesh.tp, *plan.exchange.low_rank.rank);
    }
    return formula(plan, model) + 2 * (n - 1) * plan.mesh.tp * (sent - whole) * 4;
  }
  if (strategy_named(plan.method).combines.cycles && n > 1) {
    // Also the bits of all tensors and three flags, in words of 64 bits, for the one bucket.
    std::int64_t tensors = 0;
    for (const model::ParamGroup& g : model.groups)
      tensors += static_cast<std::int64_t>(g.tensors.size());
    return formula(plan, model) + 2 * (n - 1) * 8 * ((tensors + 3 + 63) / 64);
  }
  if (strategy_named(plan.method).combines.graph && n > 1) {
    // Instead of the dense sum, each rank sends its weights to two neighbours in the ring (with two
    // ranks, to one).
    std::int64_t whole = 0;
    for (const model::ParamGroup& g : model.groups) whole += elements_of(g, plan.mesh.tp);
    return formula(plan, model) +
           (std::min<std::int64_t>(2, n - 1) * n - 2 * (n - 1)) * whole * plan.mesh.tp * 4;
  }
  // Methods that train apart send as much in an exchange as others in each step.
  if (strategy_named(plan.method).combines.one_bucket && n > 1)  // the barrier: one number
    return formula(plan, model) + 2 * (n - 1) * 4;
  return formula(plan, model);
}

class Volumes : public testing::TestWithParam<std::string> {};

TEST_P(Volumes, EqualTheFormula) {
  const Combines& can = strategy_named(GetParam()).combines;
  test::Refusals refusals;
  auto check = [&](plan::Plan plan, const model::ModelSpec& model) {
    plan.method = GetParam();
    plan.exchange.bucket = Bytes(1e12);
    plan.mesh.servers = can.servers ? 1 : 0;
    const int at_once =
        plan.schedule.shares.empty()
            ? plan.mesh.dp
            : std::accumulate(plan.schedule.shares.begin(), plan.schedule.shares.end(), 0);
    plan.schedule.global_batch = at_once * plan.schedule.micro_batches;
    if (refusals.refuses(plan, model)) return;
    plan = prepare(plan, model);
    SCOPED_TRACE(testing::Message()
                 << GetParam() << " pp" << plan.mesh.pp << " dp" << plan.mesh.dp << " tp"
                 << plan.mesh.tp << " m" << plan.schedule.micro_batches << " zero"
                 << plan.exchange.sharding.zero << " in " << plan.exchange.sharding.shard_group
                 << '/' << plan.exchange.sharding.reshard_group << " sp"
                 << plan.mesh.sequence_parallel << " shares" << plan.schedule.shares.size());
    const std::int64_t bytes = test::sent_bytes(link::link(compile(plan, model))),
                       expected = formula_of_method(plan, model);
    if (plan.exchange.sharding.zero > 0 &&
        (plan.mesh.dp &
         (plan.mesh.dp - 1))) {  // padding to equal shards: under n elements per bucket
      EXPECT_GE(bytes, expected);
      EXPECT_LE(static_cast<double>(bytes), 1.005 * static_cast<double>(expected));
    } else {
      EXPECT_EQ(bytes, expected);
    }
  };
  for (const int ranks : {1, 2, 3, 4, 6, 7, 8})
    for (int pp = 1; pp <= (can.pp ? ranks : 1); ++pp)
      for (int tp = 1; tp <= (can.tp ? ranks : 1); ++tp) {
        if (ranks % (pp * tp)) continue;
        const model::ModelSpec model = model_of(8);
        for (const int mb : {1, 3, 8}) {
          plan::Plan plan{.mesh = {.pp = pp, .dp = ranks / pp / tp, .tp = tp},
                          .schedule = {.micro_batches = mb}};
          check(plan, model);
          for (int i = 0; can.shares && i < plan.mesh.dp; ++i)
            plan.schedule.shares.push_back(1 + i % 3);
          check(plan, model);
          plan.schedule.shares.clear();
          plan.clip = can.clip;
          check(plan, model);
          for (const bool sequence_parallel : {false, true})
            for (const auto unit : {plan::RecomputeUnit::segment, plan::RecomputeUnit::layer}) {
              if (!can.recompute || (sequence_parallel && tp == 1)) continue;
              plan.mesh.sequence_parallel = sequence_parallel;
              plan.schedule.recompute = true, plan.schedule.recompute_unit = unit;
              check(plan, model);
            }
          plan.schedule.recompute = false, plan.schedule.recompute_unit = {};
          plan.mesh.sequence_parallel = tp > 1;
          check(plan, model);
          for (plan.exchange.sharding.zero = 1; plan.exchange.sharding.zero <= can.max_zero;
               ++plan.exchange.sharding.zero)
            check(plan, model);
          for (const int group : {2, 3, 4})
            for (plan.exchange.sharding.zero = 1; plan.exchange.sharding.zero <= can.max_zero;
                 ++plan.exchange.sharding.zero) {
              if (plan.mesh.dp % group != 0 || can.sparse) continue;
              plan.exchange.sharding.shard_group = group;
              check(plan, model);
              plan.exchange.sharding.shard_group = 0, plan.exchange.sharding.reshard_group = group;
              if (plan.exchange.sharding.zero == 3) check(plan, model);
              plan.exchange.sharding.reshard_group = 0;
            }
          plan.exchange.sharding.zero = 3, plan.exchange.sharding.keep_gathered = true;
          if (can.max_zero == 3) check(plan, model);
          plan.exchange.sharding.reduce_once = true;
          if (can.max_zero == 3) check(plan, model);
          plan.exchange.sharding.keep_gathered = false;
          for (plan.exchange.sharding.zero = 2; plan.exchange.sharding.zero <= can.max_zero;
               ++plan.exchange.sharding.zero)
            check(plan, model);
        }
      }
  // Refused: numbers of micro-batches that do not fit the number of stages.
  refusals.expect(GetParam(), {{"interleaved", 1113}, {"pipedream-2bw", 144}});
}

// Gradients in fp32 under 16-bit weights: each sum of gradients sends twice the bytes, each gather
// of weights the same.
TEST(Fp32Gradients, SendTwiceTheBytesOfGradients) {
  const model::ModelSpec model = model_of(8);
  const auto bytes = [&](const char* method, bool fp32_gradients) {
    const plan::Plan plan{.method = method,
                          .mesh = {.dp = 4},
                          .schedule = {.global_batch = 8, .micro_batches = 2},
                          .exchange = {.fp32_gradients = fp32_gradients, .bucket = Bytes(1e12)},
                          .precision = program::DType::bf16};
    return static_cast<double>(test::sent_bytes(link::link(compile(plan, model))));
  };
  EXPECT_EQ(bytes("ddp", true) / bytes("ddp", false), 2.0);
  EXPECT_EQ(bytes("zero1", true) / bytes("zero1", false), 3.0 / 2);  // of 2 units, 1 of gradients
  EXPECT_EQ(bytes("zero2", true) / bytes("zero2", false), 5.0 / 3);  // of M + 1 units, M
  EXPECT_EQ(bytes("zero3", true) / bytes("zero3", false), 8.0 / 6);  // of 3 M units, M
}

TEST(QuantisedBytes, FollowFromBitsAndBlock) {
  const model::ModelSpec model = model_of(8);
  const std::int64_t elements = parameters_of(model), n = 4, part = (elements + n - 1) / n;
  struct Case {
    const char* method;
    std::optional<int> bits = {};
    std::optional<std::int64_t> block = {};
    std::int64_t packet = 0;
  };
  for (const Case& c : {Case{"int8-sync", {}, {}, part + 4 * ((part + 255) / 256)},
                        Case{"int8-sync", {}, 64, part + 4 * ((part + 63) / 64)},
                        Case{"qsgd", {}, {}, part + 4 * ((part + 511) / 512)},
                        Case{"qsgd", 4, {}, (part + 1) / 2 + 4 * ((part + 511) / 512)},
                        Case{"qsgd", 2, 1024, (part + 3) / 4 + 4 * ((part + 1023) / 1024)},
                        Case{"ef-signsgd", {}, {}, (part + 7) / 8 + 4},
                        Case{"ef-signsgd", {}, 512, (part + 7) / 8 + 4 * ((part + 511) / 512)},
                        Case{"signsgd-majority", {}, {}, (part + 7) / 8}})
    for (const program::DType precision : {program::DType::f32, program::DType::bf16}) {
      const plan::Plan plan{
          .method = c.method,
          .mesh = {.dp = static_cast<int>(n)},
          .schedule = {.global_batch = 8, .micro_batches = 2},
          .exchange = {.bucket = Bytes(1e12), .quantised = {.bits = c.bits, .block = c.block}},
          .precision = precision};
      EXPECT_EQ(test::sent_bytes(link::link(compile(plan, model))), n * 2 * (n - 1) * c.packet)
          << c.method << c.bits.value_or(0);
    }
}

// Before they compress, methods send what ddp sends; then what their own formula says.
TEST(PhasedBytes, AreThoseOfDdpBeforeAndOfCodesOrFactorsAfter) {
  const model::ModelSpec model = model_of(8);
  const std::int64_t elements = parameters_of(model), n = 4, part = (elements + n - 1) / n;
  const auto linked = [&](plan::Exchange exchange, const char* method) {
    exchange.bucket = Bytes(1e12);
    return link::link(compile({.method = method,
                               .mesh = {.dp = static_cast<int>(n)},
                               .schedule = {.global_batch = 8, .micro_batches = 2},
                               .exchange = exchange},
                              model));
  };
  const std::int64_t dense = test::sent_bytes(linked({}, "ddp"));
  EXPECT_EQ(dense, 2 * (n - 1) * elements * 4);
  const link::LinkedProgram adam = linked({.quantised = {.freeze = 7}}, "onebit-adam");
  // Padding that makes parts equal is summed too.
  EXPECT_EQ(test::sent_bytes(adam, 6), 2 * (n - 1) * n * part * 4);
  EXPECT_EQ(test::sent_bytes(adam, 7), n * 2 * (n - 1) * ((part + 7) / 8 + 4));
  for (const int rank : {1, 4}) {
    const link::LinkedProgram sgd = linked({.low_rank = {.rank = rank, .start = 7}}, "powersgd");
    std::int64_t sent = 0;
    for (const model::ParamGroup& group : model.groups) sent += sent_as_factors(group, 1, rank);
    EXPECT_EQ(test::sent_bytes(sgd, 6), dense);
    EXPECT_EQ(test::sent_bytes(sgd, 7), 2 * (n - 1) * sent * 4) << rank;
    EXPECT_LT((rank == 1 ? 4 : 1) * sent, elements) << rank;
  }
}

// Without a cache, or with one that is too small, all requests go to rank 0 and its answer to all.
TEST(HorovodBytes, WithoutACacheAreThoseOfRequestsToRank0) {
  const model::ModelSpec model = model_of(8);
  std::int64_t tensors = 0;
  for (const model::ParamGroup& g : model.groups)
    tensors += static_cast<std::int64_t>(g.tensors.size());
  const std::int64_t n = 4, sums = 2 * (n - 1) * parameters_of(model) * 4;
  for (const std::int64_t cache : {std::int64_t{0}, tensors - 1, tensors}) {
    plan::Plan plan{.method = "horovod",
                    .mesh = {.dp = static_cast<int>(n)},
                    .schedule = {.global_batch = 4},
                    .exchange = {.bucket = Bytes(1e12)}};
    plan.exchange.fusion.response_cache = static_cast<int>(cache);
    const std::int64_t told = cache < tensors ? 128 * tensors : 8 * ((tensors + 3 + 63) / 64);
    EXPECT_EQ(test::sent_bytes(link::link(compile(plan, model))), sums + 2 * (n - 1) * told)
        << cache;
  }
}

INSTANTIATE_TEST_SUITE_P(All, Volumes, testing::ValuesIn(test::all_methods()), test::method_name);

}  // namespace
}  // namespace rehearse::methods
