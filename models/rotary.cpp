#include "models/rotary.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "models/by_type.h"

namespace rehearse::models {
namespace {

/// Sine and cosine of one position, for each pair of a head, times the factor.
struct Angles {
  std::size_t pairs;
  float* cosine = row_room(2 * static_cast<std::int64_t>(pairs));
  float* sine = cosine + pairs;

  void turn_to(std::int64_t position, const Rotary& rotary, Turn turn) {
    for (std::size_t i = 0; i < pairs; ++i) {
      const float angle = static_cast<float>(position) * rotary.frequencies[i];
      cosine[i] = rotary.factor * std::cos(angle);
      sine[i] = rotary.factor * (turn == Turn::forward ? std::sin(angle) : -std::sin(angle));
    }
  }
};

template <class T>
void rotate_head(T* x, const Angles& angles) {
  const std::size_t pairs = angles.pairs;
  for (std::size_t i = 0; i < pairs; ++i) {
    const auto a = static_cast<float>(x[i]), b = static_cast<float>(x[i + pairs]);
    x[i] = static_cast<T>(a * angles.cosine[i] - b * angles.sine[i]);
    x[i + pairs] = static_cast<T>(b * angles.cosine[i] + a * angles.sine[i]);
  }
}

template <class T>
void rotate_rows(const at::Tensor& x, const Rotary& rotary, const Batch& batch, Turn turn) {
  T* const data = x.data_ptr<T>();
  at::parallel_for(0, x.size(1), 4, [&](std::int64_t begin, std::int64_t end) {
    Angles angles{.pairs = rotary.frequencies.size()};
    for (std::int64_t token = begin; token < end; ++token) {
      angles.turn_to(batch.position(token), rotary, turn);
      for (std::int64_t sample = 0; sample < x.size(0); ++sample)
        for (std::int64_t head = 0; head < x.size(2); ++head)
          rotate_head(data + sample * x.stride(0) + token * x.stride(1) + head * x.stride(2),
                      angles);
    }
  });
}

/// The part of the way from stretched to unchanged at which yarn has pair i: along the pairs
/// between those of `high` and `low` turns, to whole pairs.
double yarn_unscaled(const model::ModelSpec& model, int i) {
  const auto pair_of = [&](double turns) {
    const double radians = 2 * std::numbers::pi * turns / model.rope_scaling.positions;
    return -model.head_dim * std::log(radians) / (2 * std::log(model.rope_theta));
  };
  const double first = std::max(std::floor(pair_of(model.rope_scaling.high)), 0.0);
  const double last =
      std::min(std::ceil(pair_of(model.rope_scaling.low)), double(model.head_dim - 1));
  return 1 - std::clamp((i - first) / std::max(last - first, 0.001), 0.0, 1.0);
}

/// By what the frequency of pair i is divided.
double divisor(const model::ModelSpec& model, int i, double frequency) {
  using Type = model::RopeScaling::Type;
  const model::RopeScaling& scaling = model.rope_scaling;
  const double turns = scaling.positions * frequency / (2 * std::numbers::pi);
  double unscaled = 0;
  switch (scaling.type) {
    case Type::llama3:
      unscaled = std::clamp((turns - scaling.low) / (scaling.high - scaling.low), 0.0, 1.0);
      break;
    case Type::yarn:
      unscaled = yarn_unscaled(model, i);
      break;
    case Type::linear:
      break;
    case Type::longrope:
      return (model.seq_len > scaling.positions ? scaling.longer
                                                : scaling.shorter)[static_cast<std::size_t>(i)];
  }
  return 1 / (unscaled + (1 - unscaled) / scaling.factor);
}

}  // namespace

Rotary rotary_of(const model::ModelSpec& model, int layer) {
  const bool local = model.local_rope_theta > 0 && has_window(model, layer);
  const double theta = local ? model.local_rope_theta : model.rope_theta;
  Rotary rotary{.factor = local ? 1 : static_cast<float>(rope_attention(model.rope_scaling))};
  for (int i = 0; i < model.head_dim / 2; ++i) {
    const double frequency = std::pow(theta, -2.0 * i / model.head_dim);
    rotary.frequencies.push_back(
        static_cast<float>(local ? frequency : frequency / divisor(model, i, frequency)));
  }
  return rotary;
}

void rotate(const at::Tensor& x, const Rotary& rotary, const Batch& batch, Turn turn) {
  if (!x.is_cpu() || x.stride(3) != 1) return rotate_by_tensors(x, rotary, batch, turn);
  by_type(x, [&]<class T>(T) { rotate_rows<T>(x, rotary, batch, turn); });
}

void rotate_by_tensors(const at::Tensor& x, const Rotary& rotary, const Batch& batch, Turn turn) {
  const auto pairs = static_cast<std::int64_t>(rotary.frequencies.size());
  const at::Tensor frequency = at::tensor(rotary.frequencies, at::kFloat).to(x.device());
  const at::Tensor position = batch.positions.empty()
                                  ? at::arange(x.size(1), frequency.options())
                                  : at::tensor(batch.positions).to(frequency.options());
  // (T, 1, pairs), the same for all samples and heads.
  const at::Tensor angle = position.view({-1, 1, 1}).mul(frequency);
  const at::Tensor cosine = angle.cos().mul_(rotary.factor);
  const at::Tensor sine = angle.sin().mul_(turn == Turn::forward ? rotary.factor : -rotary.factor);
  const at::Tensor first = x.narrow(3, 0, pairs), second = x.narrow(3, pairs, pairs);
  const at::Tensor a = first.to(at::kFloat, false, true), b = second.to(at::kFloat, false, true);
  first.copy_(a.mul(cosine).sub_(b.mul(sine)));
  second.copy_(b.mul(cosine).add_(a.mul(sine)));
}

}  // namespace rehearse::models
