#include "runtime/executor/variance.h"

#include <fmt/format.h>

#include <string>

#include "engine/base/errors.h"
#include "engine/tensors/variance.h"

namespace rehearse::runtime {
namespace {

constexpr const char* refusal = "error: ";

std::string own_observations(const ExecutorContext& context, Executor& executor,
                             std::int64_t first_step, std::int64_t step) {
  const program::Role& role = executor.role();
  std::vector<tensors::GroupObservation> mine;
  for (Id op = 0; op < role.ops.size(); ++op) {
    const auto* kernel = std::get_if<program::Kernel>(&role.ops[op].work);
    if (kernel == nullptr || kernel->kind != program::KernelKind::observe) continue;
    const Id storage = role.views[find(role.ops[op], program::Slot::target)->view].storage;
    const HostBytes bytes = executor.state(storage, step, 1);
    const std::span<const float> state(reinterpret_cast<const float*>(bytes.data()),
                                       bytes.size() / sizeof(float));
    const auto of_op = observations_of(context.linked, context.model, executor.maps()[context.rank],
                                       context.rank, op, state, first_step);
    mine.insert(mine.end(), of_op.begin(), of_op.end());
  }
  return to_text(mine);
}

}  // namespace

std::vector<tensors::LayerVariance> gather_variances(const ExecutorContext& context,
                                                     Executor& executor, std::int64_t first_step,
                                                     std::int64_t step) {
  std::string mine;
  try {
    mine = own_observations(context, executor, first_step, step);
  } catch (const InputError& error) {
    mine = refusal + std::string(error.what());  // gathered, so that every rank throws the same
  }
  std::vector<tensors::GroupObservation> all;
  for (const std::string& one : context.control.gather(fmt::format("variances {}", step), mine)) {
    if (one.starts_with(refusal)) throw InputError(one.substr(std::string(refusal).size()));
    const auto of_rank = tensors::parse_observations(one);
    all.insert(all.end(), of_rank.begin(), of_rank.end());
  }
  return layer_variances(context.model, all);
}

}  // namespace rehearse::runtime
