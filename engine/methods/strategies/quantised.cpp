// Data parallelism with gradients sent as codes of a few bits (lowering/quantised.cpp):
//   int8-sync   8 bits: v / scale rounded to nearest, a scale for each 256 entries (Dettmers, ICLR
//               2016), with error feedback
//   qsgd        2, 4 or 8 bits, rounded at random, so that what is sent has the gradient as its
//               mean (Alistarh et al., NeurIPS 2017). Codes have a fixed width instead of the
//               paper's Elias code. No error feedback.
//   ef-signsgd  1 bit: the sign, and a scale for each part, with error feedback (Karimireddy et
//               al., ICML 2019). Its scale, the mean of |v|, is the one of least squared error;
//               1-bit Adam (Tang et al., ICML 2021) has the root mean square.
#include <fmt/format.h>

#include "engine/methods/lowering/gradient_sync.h"
#include "engine/methods/strategy.h"
#include "engine/program/packets.h"

namespace rehearse::methods {
namespace {

using program::Compressor;

/// Checks the settings of a compressor whose plan is complete.
void check_codes(const plan::Plan& plan, Compressor compressor) {
  const int bits = *plan.exchange.bits;
  if (!program::codes_have(compressor, bits))
    refuse("bits", fmt::format("{}", bits),
           fmt::format("method \"{}\" has codes of {} bits", plan.method,
                       program::bits_text(compressor)));
  if (const std::int64_t block = plan.exchange.block.value_or(8); block % 8 != 0)
    refuse("block", fmt::format("{}", block),
           fmt::format("must be a multiple of 8; nearest: {}", (block + 4) / 8 * 8));
}

template <Compressor Coder>
Strategy strategy(const char* summary, const char* source) {
  constexpr bool sign = Coder == Compressor::sign, random = Coder == Compressor::stochastic;
  return {
      .summary = summary,
      .source = source,
      .combines =
          {.tp = true, .low_precision = false, .shares = true, .offload = false, .quantised = true},
      .defaults =
          [](plan::Plan& plan) {
            plan::Exchange& x = plan.exchange;
            if (!x.bits) x.bits = sign ? 1 : 8;
            if (!x.block && !sign) x.block = random ? 512 : 256;
            if (!x.error_feedback) x.error_feedback = !random;
          },
      .check = [](const plan::Plan& plan, const model::ModelSpec&) { check_codes(plan, Coder); },
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

}  // namespace
}  // namespace rehearse::methods
