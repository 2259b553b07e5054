#include "tests/runtime/arrivals.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <thread>

#include "runtime/checkpoints/checkpoint.h"
#include "runtime/checkpoints/files/run_folder.h"
#include "tests/runtime/apart.h"
#include "tests/runtime/conformance.h"
#include "tests/runtime/training.h"

namespace rehearse::runtime {
namespace {

/// Number of the current turn, in memory that all ranks share.
class Turns {
 public:
  explicit Turns(const std::vector<int>& order)
      : order_(order),
        now_(new(mmap(nullptr, sizeof(std::atomic<std::size_t>), PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0)) std::atomic<std::size_t>(0)) {}
  ~Turns() { munmap(now_, sizeof *now_); }
  Turns(const Turns&) = delete;
  Turns& operator=(const Turns&) = delete;

  void end(std::size_t turn) { now_->store(turn + 1); }
  /// Waits until it is the turn of `worker` or all turns are over. Returns the number of the turn.
  std::size_t await(int worker) const {
    for (int i = 0; i < 60'000; ++i) {
      const std::size_t now = now_->load();
      if (now >= order_.size() || order_[now] == worker) return now;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    throw std::runtime_error("a turn did not come within a minute");
  }

 private:
  const std::vector<int>& order_;
  std::atomic<std::size_t>* now_;
};

}  // namespace

ServedRun train_in_order(const job::Job& job, const std::vector<int>& order,
                         const std::string& folder) {
  at::set_num_threads(1);  // starts no thread pool, which would not survive a fork
  const link::LinkedProgram linked = link::link(program_of(job));
  Turns turns(order);
  const std::vector<Outcome> outcomes =
      run_ranks(job.plan.mesh.world_size(), [&](const Environment& environment) {
        RankRun rank(job, linked, environment);
        const bool works = rank.executor.role().free_running;
        const auto worker = static_cast<int>(linked.place_of[static_cast<Id>(environment.rank)]);
        nlohmann::json losses = nlohmann::json::array();
        std::optional<std::size_t> turn;
        // Called within the step's last backward op. The gradient is sent after that op, so waiting
        // here delays it until the worker's turn.
        const auto on_step = [&](std::int64_t, const StepLoss& loss) {
          if (!works) return;
          losses.push_back(loss.sum);
          if (turn) turns.end(*turn);  // the answer of that turn was used by this step
          turn = turns.await(worker);
        };
        rank.executor.run(0, works ? std::numeric_limits<std::int32_t>::max() : job.train.steps,
                          on_step);
        if (turn) turns.end(*turn);  // the last one, which no further step ends
        rank.control.barrier("served");
        const ExecutorContext context{linked,
                                      job.model,
                                      job.plan,
                                      job.train,
                                      static_cast<Id>(environment.rank),
                                      rank.data,
                                      rank.network,
                                      rank.control,
                                      &rank.disturber};
        save_checkpoint(folder, job.train.steps, context, rank.executor);
        rank.control.finish();
        return losses.dump();
      });
  ServedRun run;
  for (int worker = 0; worker < job.plan.mesh.dp; ++worker) {
    const Outcome& outcome = outcomes[static_cast<std::size_t>(worker)];
    EXPECT_EQ(outcome.status, 0) << "rank " << worker << ": " << outcome.text;
    if (outcome.status != 0) return run;
    run.losses.push_back(nlohmann::json::parse(outcome.text).get<std::vector<double>>());
  }
  run.weights = weights_of(find_checkpoint(folder), job.model);
  return run;
}

ServedRun reference_in_order(const job::Job& job, const std::vector<int>& order) {
  const Data data = data_of(job);
  const int batch = job.plan.schedule.global_batch, length = job.model.seq_len;
  const bool moves = trains_apart(job);
  ReferenceOptimizer server(job);
  std::vector<ReferenceOptimizer> own;  // by worker, where workers move weights themselves
  std::vector<reference::Weights> answered;
  for (int worker = 0; worker < job.plan.mesh.dp; ++worker)
    answered.push_back(server.copy()), own.emplace_back(job);
  ServedRun run;
  run.losses.resize(answered.size());
  for (std::size_t turn = 0; turn < order.size(); ++turn) {
    const auto worker = static_cast<std::size_t>(order[turn]);
    const auto step = static_cast<std::int64_t>(run.losses[worker].size());  // of its own
    const at::Tensor tokens = at::empty({batch, length}, at::kLong);
    const at::Tensor labels = at::empty({batch, length}, at::kLong);
    data.training(step, 0, batch, tokens.data_ptr<std::int64_t>(), labels.data_ptr<std::int64_t>());
    const int count = batch / job.plan.mesh.dp, first = order[turn] * count;
    const at::Tensor own_tokens = tokens.narrow(0, first, count);
    const at::Tensor own_labels = labels.narrow(0, first, count);
    run.losses[worker].push_back(
        reference::loss_sum(job.model, answered[worker], own_tokens, own_labels).item<double>());
    const std::int64_t counted =
        moves ? (own_labels != no_label).sum().item<std::int64_t>() : data.training_labels(step);
    const reference::Weights gradients = reference::gradients(
        job.model, answered[worker], own_tokens, own_labels, 1.0 / static_cast<double>(counted));
    if (moves) {
      own[worker].set(answered[worker]);
      own[worker].update(gradients, step);
      reference::Weights moved = own[worker].copy(), sum = server.copy();
      for (auto& [name, weight] : sum) weight.add_(moved.at(name) - answered[worker].at(name));
      server.set(sum);
    } else {
      server.update(gradients, static_cast<std::int64_t>(turn) / job.plan.mesh.dp);
    }
    answered[worker] = server.copy();
  }
  run.weights = server.copy();
  return run;
}

}  // namespace rehearse::runtime
