// Interleaved 1F1B (Narayanan et al., SC 2021, section 2.2): each rank holds v model chunks, so the
// pipeline fills in steps v times shorter. With S ranks and M micro-batches the bubble is
// (S-1)/(v M + S-1) of a step, for v times the transfers. Groups of S micro-batches pass through
// all chunks.
//
//   S = 2, v = 2, M = 4; F, B: chunk 0 of the rank, f, b: chunk 1; the digit is the micro-batch
//   rank 0   F0 F1 f0 f1 F2 b0 F3 b1 f2 B0 f3 B1 .  b2 .  b3 B2 B3
//   rank 1   .  F0 F1 f0 b0 f1 b1 F2 B0 F3 B1 f2 b2 f3 b3 B2 B3 .
#include <fmt/format.h>

#include <algorithm>

#include "engine/methods/strategy.h"

namespace rehearse::methods {

void check_interleaving(const plan::Plan& plan) {
  if (plan.mesh.pp < 2) refuse("pp", "1", "interleaved needs a pipeline of at least 2 stages");
  if (plan.schedule.micro_batches % plan.mesh.pp != 0)
    refuse(
        "micro_batches", std::to_string(plan.schedule.micro_batches),
        fmt::format("interleaved needs a multiple of pp {}; nearest: {}", plan.mesh.pp,
                    std::max(1, (plan.schedule.micro_batches + plan.mesh.pp / 2) / plan.mesh.pp) *
                        plan.mesh.pp));
}

namespace {

/// Warm-up forwards. One more forward precedes the first backward, unless none is left.
int warm_up_of(const plan::Plan& plan, int stage) {
  return std::min(
      (plan.mesh.pp - stage - 1) * 2 + (plan.schedule.virtual_stages - 1) * plan.mesh.pp,
      plan.schedule.micro_batches * plan.schedule.virtual_stages);
}

std::vector<Action> actions_of(const plan::Plan& plan, int stage) {
  const int v = plan.schedule.virtual_stages, pp = plan.mesh.pp,
            total = plan.schedule.micro_batches * v;
  // The k-th forward or the k-th backward. Groups of pp micro-batches pass through all chunks
  // before the next group starts.
  auto action = [&](int k, program::Pass pass) {
    const int in_group = k % (pp * v), chunk = in_group / pp;
    return Action{.pass = pass,
                  .chunk = pass == program::Pass::forward ? chunk : v - 1 - chunk,
                  .microbatch = k / (pp * v) * pp + k % pp};
  };
  const int warm_up = warm_up_of(plan, stage);
  std::vector<Action> actions;
  for (int k = 0; k < total + warm_up; ++k) {
    if (k < total) actions.push_back(action(k, program::Pass::forward));
    if (k >= warm_up) actions.push_back(action(k - warm_up, program::Pass::backward));
  }
  return actions;
}

}  // namespace

const PassOrder interleave{
    .actions = actions_of, .in_flight = [](const plan::Plan& plan, int stage) {
      return std::min(warm_up_of(plan, stage) + 1,
                      plan.schedule.micro_batches * plan.schedule.virtual_stages);
    }};

namespace {

const Register interleaved(
    "interleaved",
    {.summary = "1F1B over several model chunks a rank",
     .source = "Narayanan et al., SC 2021",
     .combines = {.pp = true,
                  .tp = true,
                  .max_zero = 3,
                  .interleave = true,
                  .context = true,
                  .shares = true},
     .pp = 4,
     .defaults =
         [](plan::Plan& plan) {
           if (plan.schedule.virtual_stages == 1) plan.schedule.virtual_stages = 2;
         },
     .check = [](const plan::Plan& plan, const model::ModelSpec&) { check_interleaving(plan); },
     .order = [](const plan::Plan&, const model::ModelSpec&) { return interleave; },
     .proposed = plan::Pipeline::interleaved});

}  // namespace
}  // namespace rehearse::methods
