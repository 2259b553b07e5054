#include "runtime/training/evaluation.h"

#include <fmt/format.h>

#include <chrono>
#include <limits>

#include "engine/base/errors.h"

namespace rehearse::runtime {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

DataSettings settings_of(const job::Job& job, const std::string& key, const std::string& folder) {
  return {
      .key = key,
      .path = folder,
      .objective = job.model.family == model::Family::bert ? Objective::masked : Objective::causal,
      .seq_len = job.model.seq_len,
      .global_batch = job.plan.schedule.global_batch,
      .vocab = job.model.vocab,
      .seed = job.train.seed,
      .left_out = job.train.left_out};
}

}  // namespace

Clients clients_of(const job::Job& job) {
  if (job.train.split == job::Split::iid) return {};
  Clients clients{.count = job.train.clients,
                  .round = job.plan.exchange.averaging.local_steps.value_or(1)};
  for (int rank = 0; rank < job.plan.mesh.dp; ++rank)
    clients.samples.push_back(job.plan.samples(rank) * job.plan.schedule.micro_batches);
  return clients;
}

EvaluationData::EvaluationData(const job::Job& job)
    : own([&] {
        DataSettings settings = settings_of(job, "train.data", job.train.data);
        settings.clients = clients_of(job);
        return settings;
      }()) {
  for (const std::string& folder : job.train.evaluate) {
    const Data& data =
        others.emplace_back(folder, Data(settings_of(job, "train.evaluate", folder))).second;
    if (!own.tokenizer().empty() && !data.tokenizer().empty() &&
        own.tokenizer() != data.tokenizer())
      throw InputError(fmt::format(
          "train.evaluate = \"{}\": the folder is made with the tokenizer {:.12}..., train.data = "
          "\"{}\" with {:.12}... (both SHA-256), so tokens would mean other text: make the folder "
          "with the same one (data/prepare.py --tokenizer FILE)",
          folder, data.tokenizer(), job.train.data, own.tokenizer()));
    if (data.validation_windows() == 0)
      throw InputError(
          fmt::format("train.evaluate = \"{}\": the folder has no token shard named *val*.bin; "
                      "data/prepare.py makes them",
                      folder));
  }
}

double Evaluation::loss_of(const Data& data, const std::string& what, std::int64_t step,
                           Executor& executor) const {
  const std::int64_t batches = job_.train.eval_batches;
  const double mine = executor.evaluate(step, batches, data);
  double sum = 0;
  for (const std::string& one :
       control_.gather(fmt::format("{} {}", what, step), fmt::format("{:.17g}", mine)))
    sum += std::stod(one);
  return sum /
         static_cast<double>(data.validation_labels(0, batches * job_.plan.schedule.global_batch));
}

Losses Evaluation::run(std::int64_t step, Executor& executor) const {
  Losses losses{.validation = std::numeric_limits<double>::quiet_NaN()};
  if (data_.own.validation_windows() > 0) {
    const double began = now();
    losses.validation = loss_of(data_.own, "validation", step, executor);
    progress_.validation(step, losses.validation, now() - began);
  }
  for (const auto& [folder, data] : data_.others) {
    const double began = now();
    losses.others.emplace_back(folder, loss_of(data, "loss on " + folder, step, executor));
    progress_.evaluated(step, folder, losses.others.back().second, now() - began);
  }
  return losses;
}

}  // namespace rehearse::runtime
