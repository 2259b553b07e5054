// Which keys of compressors, and of the numbers that a method keeps, a method refuses.
#include <gtest/gtest.h>

#include "engine/base/errors.h"
#include "engine/methods/strategy.h"
#include "tests/engine/rig.h"

namespace rehearse::methods {
namespace {

TEST(CompressorKeys, AreThoseThatTheMethodHas) {
  const model::ModelSpec model = test::small_model(2);
  const auto refusal = [&](const char* method, const auto& change) {
    plan::Plan plan{.method = method, .mesh = {.dp = 2}, .schedule = {.global_batch = 2}};
    change(plan);
    try {
      prepare(plan, model);
    } catch (const InputError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(refusal("int8-sync", [](plan::Plan& p) { p.exchange.quantised.bits = 4; }),
            "method.bits: 4: method \"int8-sync\" has codes of 8 bits");
  EXPECT_EQ(refusal("qsgd", [](plan::Plan& p) { p.exchange.quantised.bits = 3; }),
            "method.bits: 3: method \"qsgd\" has codes of 2, 4 or 8 bits");
  EXPECT_EQ(refusal("qsgd", [](plan::Plan& p) { p.exchange.quantised.bits = 2; }), "accepted");
  EXPECT_EQ(refusal("qsgd", [](plan::Plan& p) { p.exchange.quantised.block = 100; }),
            "method.block: 100: must be a multiple of 8; nearest: 104");
  EXPECT_EQ(refusal("ef-signsgd", [](plan::Plan& p) { p.exchange.sharding.zero = 1; }),
            "method.zero: 1 does not combine with method \"ef-signsgd\": at most 0");
  EXPECT_EQ(refusal("ddp", [](plan::Plan& p) { p.exchange.quantised.error_feedback = true; }),
            "method.error_feedback: true does not combine with method \"ddp\": its gradients are "
            "not compressed, as those of ef-signsgd, int8-sync, onebit-adam, powersgd, qsgd, "
            "signsgd-majority are");
  EXPECT_EQ(
      refusal("topk-sync", [](plan::Plan& p) { p.exchange.quantised.bits = 8; }),
      "method.bits: 8 does not combine with method \"topk-sync\": its gradients are not "
      "quantised, as those of ef-signsgd, int8-sync, onebit-adam, qsgd, signsgd-majority are");
  EXPECT_EQ(refusal("ddp", [](plan::Plan& p) { p.exchange.low_rank.rank = 4; }),
            "method.rank: 4 does not combine with method \"ddp\": its gradients are not sent as "
            "factors, as those of powersgd are");
  EXPECT_EQ(refusal("powersgd", [](plan::Plan& p) { p.exchange.quantised.freeze = 4; }),
            "method.freeze: 4 does not combine with method \"powersgd\": its second moments are "
            "never frozen, as those of onebit-adam are");
  EXPECT_EQ(refusal("powersgd", [](plan::Plan& p) { p.exchange.low_rank.start = 1; }),
            "method.start: 1: must be at least 2 with error_feedback or warm_start, as in PyTorch; "
            "nearest: 2");
  const auto rounded = [](plan::Plan& p) {
    p.precision = program::DType::bf16, p.master_weights = false;
  };
  EXPECT_EQ(refusal("zero3", rounded), "accepted");
  EXPECT_EQ(refusal("diloco", rounded),
            "method.master_weights: false does not combine with method \"diloco\": ranks average "
            "their weights in fp32; must be true");
  EXPECT_EQ(refusal("zero-offload", rounded),
            "method.master_weights: false: does not combine with offload, in which the host "
            "updates an fp32 copy");
  EXPECT_EQ(refusal("ddp", [](plan::Plan& p) { p.master_weights = false; }),
            "method.master_weights: false: needs precision \"bf16\"; fp32 weights have no fp32 "
            "copy");
  EXPECT_EQ(refusal("onebit-adam", [](plan::Plan& p) { p.bf16_moments = true; }),
            "method.bf16_moments: true does not combine with method \"onebit-adam\": it sends "
            "momenta, which are kept in fp32; must be false");
  const auto free = [](plan::Plan& p) {
    p.exchange.low_rank.start = 0,
    p.exchange.quantised.error_feedback = p.exchange.low_rank.warm_start = false;
  };
  EXPECT_EQ(refusal("powersgd", free), "accepted");
  EXPECT_EQ(
      refusal("onebit-adam", [](plan::Plan& p) { p.optimizer = plan::Optimizer::sgd; }),
      "train.optimizer: \"sgd\" does not combine with method \"onebit-adam\", which is a kind "
      "of Adam; must be \"adamw\"");
  EXPECT_EQ(refusal("signsgd-majority",
                    [](plan::Plan& p) { p.exchange.quantised.error_feedback = true; }),
            "method.error_feedback: true: must be false: votes have no scale to miss by");
  EXPECT_EQ(refusal("signsgd-majority", [](plan::Plan& p) { p.exchange.quantised.block = 64; }),
            "method.block: 64: must be left out: votes have no scales");
}

}  // namespace
}  // namespace rehearse::methods
