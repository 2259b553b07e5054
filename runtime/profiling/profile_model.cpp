// Times segment passes and updates. Runs whole training steps of the model, so that caches hold
// what they would hold in training.
#include <ATen/ops/empty.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "models/block.h"
#include "runtime/execution/rank_memory.h"
#include "runtime/kernels/optimizer.h"
#include "runtime/profiling/profile_parts.h"

namespace rehearse::runtime {
namespace {

class ModelRun {
 public:
  ModelRun(const model::ModelSpec& model, int samples, int tp, const ProfileSettings& settings)
      : model_(model), tp_(tp), settings_(settings) {
    const at::ScalarType type = scalar_type(settings.dtype);
    for (Id g = 0; g < model.groups.size(); ++g) {
      const std::int64_t elements = elements_of(model.groups[g], tp);
      const at::Tensor initial = at::empty({elements}, at::kFloat);
      models::initialise(model, g, tp, 0, 1, initial);
      params_.push_back(initial.to(type));
      grads_.push_back(at::zeros({elements}, type));
      moment1_.push_back(at::zeros({elements}, at::kFloat));
      moment2_.push_back(at::zeros({elements}, at::kFloat));
      masters_.push_back(settings.dtype == program::DType::f32 ? at::Tensor() : initial);
    }
    for (Id s = 0; s < model.segments.size(); ++s)
      blocks_.push_back(models::make_block(model, s, tp, 0, settings.dtype));
    batch_.tokens = at::randint(model.vocab, {samples, model.seq_len}, at::kLong);
    batch_.labels = at::randint(model.vocab, {samples, model.seq_len}, at::kLong);
    batch_.loss_weight = 1.0 / static_cast<double>(samples * model.seq_len);
    batch_.seed = 1;
  }

  /// Runs one step and appends the seconds of each pass to `passes`, of each update to `updates`.
  /// Every second step computes each backward in two halves.
  void step() {
    halves_ = !halves_;
    std::vector<at::Tensor> inputs(model_.segments.size());
    std::vector<models::Saved> saved(model_.segments.size());
    at::Tensor activation;
    for (Id s = 0; s < model_.segments.size(); ++s) {
      inputs[s] = activation;
      activation = timed(s, program::Pass::forward, [&] {
        return blocks_[s]->forward(of(params_, s), inputs[s], batch_, &saved[s]);
      });
    }
    // The head's statistics as if every tp rank had computed the same: (B, T, 3) -> (tp, B, T, 3).
    at::Tensor gradient = activation.unsqueeze(0).expand({tp_, -1, -1, -1}).contiguous();
    std::vector<bool> written(model_.groups.size());
    for (Id s = static_cast<Id>(model_.segments.size()); s-- > 0;) {
      const std::vector<Id>& groups = model_.segments[s].groups;
      const auto accumulate = std::make_unique<bool[]>(groups.size());
      for (std::size_t i = 0; i < groups.size(); ++i) {
        accumulate[i] = written[groups[i]];
        written[groups[i]] = true;
      }
      const auto pass = [&](program::Pass what) {
        const std::vector<at::Tensor> params = of(params_, s);
        std::vector<at::Tensor> grads(groups.size());
        for (const Id group : gradients_of(model_, s, what))
          grads[static_cast<std::size_t>(std::ranges::find(groups, group) - groups.begin())] =
              grads_[group];
        return timed(s, what, [&] {
          return blocks_[s]->backward(what, params, inputs[s], saved[s], gradient, batch_, grads,
                                      std::span<const bool>(accumulate.get(), groups.size()));
        });
      };
      if (halves_ && model_.segments[s].kind != model::SegmentKind::embedding) {
        const at::Tensor of_input = pass(program::Pass::backward_input);
        pass(program::Pass::backward_weight);
        gradient = of_input;
      } else {
        gradient = pass(program::Pass::backward);
      }
      inputs[s].reset();
    }
    for (Id g = 0; g < model_.groups.size(); ++g) update(g);
  }

  std::map<std::pair<model::SegmentKind, program::Pass>, std::vector<double>> passes = {};
  std::map<std::int64_t, std::vector<double>> updates = {};  // by elements

 private:
  std::vector<at::Tensor> of(const std::vector<at::Tensor>& flat, Id segment) const {
    std::vector<at::Tensor> list;
    for (const Id group : model_.segments[segment].groups) list.push_back(flat[group]);
    return list;
  }

  template <class F>
  at::Tensor timed(Id segment, program::Pass pass, F&& work) {
    const double began = seconds_now();
    at::Tensor result = work();
    passes[{model_.segments[segment].kind, pass}].push_back(seconds_now() - began);
    return result;
  }

  void update(Id g) {
    const double began = seconds_now();
    const bool adam = settings_.optimizer == plan::Optimizer::adamw;
    // The learning rate is so small that the weights do not change.
    const OptimizerStep step{.kind = settings_.optimizer, .lr = 1e-12, .step = 1000};
    runtime::update(step,
                    {.param = params_[g].data_ptr(),
                     .grad = grads_[g].data_ptr(),
                     .moment1 = moment1_[g].data_ptr<float>(),
                     .moment2 = adam ? moment2_[g].data_ptr<float>() : nullptr,
                     .master = masters_[g].defined() ? masters_[g].data_ptr<float>() : nullptr,
                     .param_type = settings_.dtype,
                     .grad_type = settings_.dtype,
                     .elements = params_[g].numel()},
                    true, scalars_of(step, step.step));
    updates[params_[g].numel()].push_back(seconds_now() - began);
  }

  const model::ModelSpec& model_;
  int tp_;
  const ProfileSettings& settings_;
  std::vector<at::Tensor> params_ = {}, grads_ = {}, moment1_ = {}, moment2_ = {}, masters_ = {};
  std::vector<std::unique_ptr<models::Block>> blocks_ = {};
  models::Batch batch_ = {};
  bool halves_ = false;
};

}  // namespace

void profile_model(const model::ModelSpec& model, int samples, int tp,
                   const ProfileSettings& settings, Control& control, costs::Profile& profile) {
  const c10::AutoGradMode no_grad(false);
  const std::string key = fmt::format("profile {} {} {}", model.name, samples, tp);
  ModelRun run(model, samples, tp, settings);
  for (int i = 0; i < 2; ++i) run.step();  // both kinds of backward, not counted
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
        costs::median(std::move(seconds)));
    profile.segments.push_back(time);
    if (pass != program::Pass::forward) continue;
    time.pass = program::Pass::recompute;  // the same work as forward
    profile.segments.push_back(time);
  }
  if (!profile.updates.empty()) return;
  // seconds = launch + rate x elements, by least squares over the model's groups.
  double n = 0, x = 0, y = 0, xx = 0, xy = 0;
  for (auto& [elements, seconds] : run.updates) {
    const double e = static_cast<double>(elements), s = costs::median(std::move(seconds));
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
