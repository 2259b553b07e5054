// ZeRO (Rajbhandari et al., SC 2020): data parallelism that shards optimizer state (level 1), also
// gradients (2), also weights (3) over the ranks. lowering/sharded.cpp does the sharding. Other
// methods that allow it use it with `zero = N`.
#include <fmt/format.h>

#include "engine/methods/strategy.h"

namespace rehearse::methods {
namespace {

template <int Level>
Strategy zero(const char* what) {
  return {.summary = what,
          .source = "Rajbhandari et al., SC 2020",
          .combines = {.tp = true, .max_zero = 3, .shares = true},
          .defaults =
              [](plan::Plan& plan) {
                if (plan.exchange.zero != 0 && plan.exchange.zero != Level)
                  refuse("zero", std::to_string(plan.exchange.zero),
                         fmt::format("method \"zero{}\" is level {}; leave the key out or use "
                                     "method \"ddp\"",
                                     Level, Level));
                plan.exchange.zero = Level;
              },
          .baseline = Level == 2,
          .at_zero = [](int level) { return fmt::format("zero{}", level); },
          .with_model_parallelism = "megatron"};
}

const Register zero1("zero1", zero<1>("data parallelism, optimizer state sharded"));
const Register zero2("zero2", zero<2>("data parallelism, optimizer state and gradients sharded"));
const Register zero3("zero3",
                     zero<3>("data parallelism, everything sharded, weights gathered for use"));

}  // namespace
}  // namespace rehearse::methods
