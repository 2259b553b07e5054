// Times segment passes and updates. Runs whole training steps of the model, so that caches hold
// what they would hold in training.
#include <ATen/ops/empty.h>
#include <ATen/ops/randint.h>
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <utility>

#include "engine/base/numbers/median.h"
#include "models/block.h"
#include "runtime/device/accelerator.h"
#include "runtime/executor/rank_memory.h"
#include "runtime/kernels/optimizer.h"
#include "runtime/profiling/profile_parts.h"

namespace rehearse::runtime {
namespace {

// The learning rate is so small that the weights do not change.
OptimizerStep still(const ProfileSettings& settings) {
  return {.kind = settings.optimizer, .lr = 1e-12, .step = 1000};
}

class ModelRun {
 public:
  ModelRun(const model::ModelSpec& model, int samples, int tp, const ProfileSettings& settings,
           TimedStream& stream)
      : model_(model),
        tp_(tp),
        settings_(settings),
        stream_(stream),
        scalars_(device_tensor(stream.device(), {sizeof(StepScalars)}, at::kByte)),
        inputs_(model.segments.size()),
        saved_(model.segments.size()) {
    Device& device = stream.device();
    const at::ScalarType type = scalar_type(settings.dtype);
    const auto on_device = [&](const at::Tensor& values) {
      const at::Tensor there = device_tensor(device, values.sizes(), values.scalar_type());
      store(device, there, values);
      return there;
    };
    for (Id g = 0; g < model.groups.size(); ++g) {
      const std::int64_t elements = elements_of(model.groups[g], tp);
      const at::Tensor initial = at::empty({elements}, at::kFloat);
      models::initialise(model, g, tp, 0, 1, initial);
      params_.push_back(on_device(initial.to(type)));
      grads_.push_back(device_tensor(device, {elements}, type));
      moment1_.push_back(device_tensor(device, {elements}, at::kFloat));
      moment2_.push_back(device_tensor(device, {elements}, at::kFloat));
      masters_.push_back(settings.dtype == program::DType::f32 ? at::Tensor() : on_device(initial));
    }
    const auto written = std::make_unique<bool[]>(model.groups.size());
    for (Id s = static_cast<Id>(model.segments.size()); s-- > 0;) {  // as backward writes them
      const std::vector<Id>& groups = model.segments[s].groups;
      accumulate_[s] = std::make_unique<bool[]>(groups.size());
      for (std::size_t i = 0; i < groups.size(); ++i)
        accumulate_[s][i] = std::exchange(written[groups[i]], true);
    }
    for (Id s = 0; s < model.segments.size(); ++s)
      blocks_.push_back(models::make_block(model, s, tp, 0, settings.dtype));
    batch_.tokens = on_device(at::randint(model.vocab, {samples, model.seq_len}, at::kLong));
    batch_.labels = on_device(at::randint(model.vocab, {samples, model.seq_len}, at::kLong));
    batch_.loss_weight = 1.0 / static_cast<double>(samples * model.seq_len);
    batch_.seed = 1;
    const StepScalars scalars = scalars_of(still(settings), still(settings).step);
    device.store(static_cast<std::byte*>(scalars_.data_ptr()),
                 reinterpret_cast<const std::byte*>(&scalars), sizeof scalars);
  }
  ~ModelRun() {
    try {
      stream_.finish();
    } catch (const std::exception&) {  // another error is on its way
    }
  }
  ModelRun(const ModelRun&) = delete;
  ModelRun& operator=(const ModelRun&) = delete;

  /// Queues one step, whose seconds come to `passes` and `updates`, when the step but one before
  /// has ended, as in training. Every second step computes each backward in two halves.
  void step() {
    halves_ = !halves_;
    const std::size_t before = queued_;
    for (Id s = 0; s < model_.segments.size(); ++s)
      time_pass(s, program::Pass::forward, [this, s] {
        inputs_[s] = activation_;
        activation_ = blocks_[s]->forward(of(params_, s), inputs_[s], batch_, &saved_[s]);
      });
    // The head's statistics as if every tp rank had computed the same: (B, T, 3) -> (tp, B, T, 3).
    run([this] {
      gradient_ = activation_.unsqueeze(0).expand({tp_, -1, -1, -1}).contiguous();
      activation_.reset();
    });
    for (Id s = static_cast<Id>(model_.segments.size()); s-- > 0;) {
      if (halves_ && model_.segments[s].kind != model::SegmentKind::embedding) {
        backward(s, program::Pass::backward_input);
        backward(s, program::Pass::backward_weight);
      } else {
        backward(s, program::Pass::backward);
      }
      run([this, s] { inputs_[s].reset(); });
    }
    for (Id g = 0; g < model_.groups.size(); ++g) update(g);
    stream_.finish(2 * (queued_ - before));
  }

  /// Waits for all steps.
  void finish() { stream_.finish(); }

  std::map<std::pair<model::SegmentKind, program::Pass>, std::vector<double>> passes = {};
  std::map<std::int64_t, std::vector<double>> updates = {};  // by elements

 private:
  std::vector<at::Tensor> of(const std::vector<at::Tensor>& flat, Id segment) const {
    std::vector<at::Tensor> list;
    for (const Id group : model_.segments[segment].groups) list.push_back(flat[group]);
    return list;
  }

  void run(std::function<void()> work) {
    ++queued_;
    stream_.run(std::move(work));
  }

  void time_pass(Id segment, program::Pass pass, std::function<void()> work) {
    ++queued_;
    stream_.time(passes[{model_.segments[segment].kind, pass}], std::move(work));
  }

  void backward(Id s, program::Pass pass) {
    const std::vector<Id>& groups = model_.segments[s].groups;
    std::vector<at::Tensor> grads(groups.size());
    for (const Id group : gradients_of(model_, s, pass))
      grads[static_cast<std::size_t>(std::ranges::find(groups, group) - groups.begin())] =
          grads_[group];
    time_pass(s, pass, [this, s, pass, grads = std::move(grads)]() mutable {
      const std::span<const bool> accumulate(accumulate_[s].get(), grads.size());
      at::Tensor of_input = blocks_[s]->backward(pass, of(params_, s), inputs_[s], saved_[s],
                                                 gradient_, batch_, grads, accumulate);
      if (pass == program::Pass::backward_weight) of_input = std::move(of_input_);
      (pass == program::Pass::backward_input ? of_input_ : gradient_) = std::move(of_input);
    });
  }

  void update(Id g) {
    ++queued_;
    stream_.time(updates[params_[g].numel()], [this, g] {
      const bool adam = settings_.optimizer == plan::Optimizer::adamw;
      const OptimizerInterval all{
          .param = params_[g].data_ptr(),
          .grad = grads_[g].data_ptr(),
          .moment1 = moment1_[g].data_ptr<float>(),
          .moment2 = adam ? moment2_[g].data_ptr<float>() : nullptr,
          .master = masters_[g].defined() ? masters_[g].data_ptr<float>() : nullptr,
          .param_type = settings_.dtype,
          .grad_type = settings_.dtype,
          .elements = params_[g].numel()};
      const auto& scalars = *static_cast<const StepScalars*>(scalars_.data_ptr());
      if (Accelerator* const accelerator = stream_.device().accelerator())
        accelerator->update(still(settings_), all, true, &scalars);
      else
        runtime::update(still(settings_), all, true, scalars);
    });
  }

  const model::ModelSpec& model_;
  int tp_;
  const ProfileSettings& settings_;
  TimedStream& stream_;
  at::Tensor scalars_;
  std::vector<at::Tensor> params_ = {}, grads_ = {}, moment1_ = {}, moment2_ = {}, masters_ = {};
  std::vector<std::unique_ptr<models::Block>> blocks_ = {};
  std::map<Id, std::unique_ptr<bool[]>> accumulate_ = {};  // by segment, of its groups
  models::Batch batch_ = {};
  bool halves_ = false;
  std::size_t queued_ = 0;  // pieces of work so far
  // What bodies hand to the next ones: the last activation, the gradient of one, that which waits
  // for the second half of a backward, and what backward needs.
  at::Tensor activation_ = {}, gradient_ = {}, of_input_ = {};
  std::vector<at::Tensor> inputs_;
  std::vector<models::Saved> saved_;
};

}  // namespace

void profile_model(const model::ModelSpec& model, int samples, int tp,
                   const ProfileSettings& settings, TimedStream& stream, Control& control,
                   costs::Profile& profile) {
  const std::string key = fmt::format("profile {} {} {}", model.name, samples, tp);
  ModelRun run(model, samples, tp, settings, stream);
  for (int i = 0; i < 2; ++i) run.step();  // both kinds of backward, not counted
  run.finish();
  run.passes.clear();
  run.updates.clear();
  control.barrier(key);
  const double until = seconds_now() + settings.segment_time.value;
  constexpr int least = 6;  // three of each kind
  for (int i = 0; i < least || seconds_now() < until; ++i) run.step();
  // Other ranks may still be measuring. Keep the machine as busy as before until all are done.
  control.publish(fmt::format("{} {}", key, control.environment().rank), "done");
  for (int rank = 0; rank < control.environment().world_size; ++rank)
    while (!control.lookup(fmt::format("{} {}", key, rank))) run.step();
  run.finish();

  for (auto& [what, seconds] : run.passes) {
    const auto [kind, pass] = what;
    costs::SegmentTime time{.model = model.name,
                            .kind = kind,
                            .pass = pass,
                            .samples = samples,
                            .seq_len = model.seq_len,
                            .tp = tp,
                            .dtype = settings.dtype};
    time.seconds = mean_over_ranks(
        control, fmt::format("{} {} {}", key, static_cast<int>(kind), static_cast<int>(pass)),
        median(std::move(seconds)));
    profile.segments.push_back(time);
    if (pass != program::Pass::forward) continue;
    time.pass = program::Pass::recompute;  // the same work as forward
    profile.segments.push_back(time);
  }
  if (!profile.updates.empty()) return;
  // seconds = launch + rate x elements, by least squares over the model's groups.
  double n = 0, x = 0, y = 0, xx = 0, xy = 0;
  for (auto& [elements, seconds] : run.updates) {
    const double e = static_cast<double>(elements), s = median(std::move(seconds));
    n += 1, x += e, y += s, xx += e * e, xy += e * s;
  }
  const double spread = n * xx - x * x;
  double rate = spread > 0 ? (n * xy - x * y) / spread : y / x;
  double launch = (y - rate * x) / n;
  if (rate <= 0 || launch < 0) rate = xy / xx, launch = 0;
  profile.updates.push_back({.optimizer = settings.optimizer,
                             .dtype = settings.dtype,
                             .seconds_per_element = mean_over_ranks(control, key + " rate", rate),
                             .launch = mean_over_ranks(control, key + " launch", launch)});
}

}  // namespace rehearse::runtime
