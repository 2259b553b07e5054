// Data parallelism with gradients sent as codes of a few bits (lowering/quantised.cpp):
//   int8-sync   8 bits: v / scale rounded to nearest, a scale for each 256 entries (Dettmers, ICLR
//               2016), with error feedback
//   qsgd        2, 4 or 8 bits, rounded at random, so that what is sent has the gradient as its
//               mean (Alistarh et al., NeurIPS 2017). Codes have a fixed width instead of the
//               paper's Elias code. No error feedback.
//   ef-signsgd  1 bit: the sign, and a scale for each part, with error feedback (Karimireddy et
//               al., ICML 2019). Its scale, the mean of |v|, is the one of least squared error;
//               1-bit Adam (onebit_adam.cpp) has the root mean square.
//   signsgd-majority  1 bit: ranks vote with the signs of their gradients, and the gradient of an
//               entry is the sign of most of them (Bernstein et al., ICLR 2019). No error feedback.
#include "engine/methods/lowering/exchange/quantised.h"

#include "engine/base/refusal.h"
#include "engine/methods/lowering/exchange/gradient_sync.h"
#include "engine/methods/strategy.h"

namespace rehearse::methods {
namespace {

using program::Compressor;

template <Compressor Coder>
Strategy strategy(const char* summary, const char* source) {
  constexpr bool vote = Coder == Compressor::vote, sign = Coder == Compressor::sign || vote,
                 random = Coder == Compressor::stochastic;
  return {.summary = summary,
          .source = source,
          .combines = {.tp = true,
                       .clip = !vote,
                       .low_precision = false,
                       .shares = true,
                       .offload = false,
                       .quantised = true},
          .defaults =
              [](plan::Plan& plan) {
                plan::Exchange& x = plan.exchange;
                if (!x.quantised.bits) x.quantised.bits = sign ? 1 : 8;
                if (!x.quantised.block && !sign) x.quantised.block = random ? 512 : 256;
                if (!x.quantised.error_feedback) x.quantised.error_feedback = !random && !vote;
              },
          .check =
              [](const plan::Plan& plan, const model::ModelSpec&) {
                check_codes(plan, Coder);
                if (vote && *plan.exchange.quantised.error_feedback)
                  refuse("error_feedback", "true", "must be false: votes have no scale to miss by");
                if (vote && plan.exchange.quantised.block)
                  refuse("block", std::to_string(*plan.exchange.quantised.block),
                         "must be left out: votes have no scales");
              },
          .sync = [](const plan::Plan&) -> const GradientSync& { return quantised(Coder); }};
}

const Register int8_sync(
    "int8-sync",
    strategy<Compressor::int8>("data parallelism, gradients in 8 bits with error feedback",
                               "Dettmers, ICLR 2016; Tang et al., ICML 2021"));
const Register qsgd("qsgd", strategy<Compressor::stochastic>(
                                "data parallelism, gradients rounded at random to few bits",
                                "Alistarh et al., NeurIPS 2017"));
const Register ef_signsgd(
    "ef-signsgd",
    strategy<Compressor::sign>("data parallelism, signs of gradients with error "
                               "feedback",
                               "Karimireddy et al., ICML 2019; Tang et al., ICML 2021"));
const Register signsgd_majority("signsgd-majority",
                                strategy<Compressor::vote>("data parallelism, a majority vote of "
                                                           "the signs of gradients",
                                                           "Bernstein et al., ICLR 2019"));

}  // namespace
}  // namespace rehearse::methods
