#include "models/rotary.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "models/by_type.h"

namespace rehearse::models {
namespace {

/// Sine and cosine of one position, for each pair of a head.
struct Angles {
  std::vector<float> cosine, sine;
  explicit Angles(std::size_t pairs) : cosine(pairs), sine(pairs) {}

  void turn_to(std::int64_t position, const std::vector<float>& frequencies, Turn turn) {
    for (std::size_t i = 0; i < frequencies.size(); ++i) {
      const float angle = static_cast<float>(position) * frequencies[i];
      cosine[i] = std::cos(angle);
      sine[i] = turn == Turn::forward ? std::sin(angle) : -std::sin(angle);
    }
  }
};

template <class T>
void rotate_head(T* x, const Angles& angles) {
  const std::size_t pairs = angles.cosine.size();
  for (std::size_t i = 0; i < pairs; ++i) {
    const auto a = static_cast<float>(x[i]), b = static_cast<float>(x[i + pairs]);
    x[i] = static_cast<T>(a * angles.cosine[i] - b * angles.sine[i]);
    x[i + pairs] = static_cast<T>(b * angles.cosine[i] + a * angles.sine[i]);
  }
}

template <class T>
void rotate_rows(const at::Tensor& x, const std::vector<float>& frequencies, const Batch& batch,
                 Turn turn) {
  T* const data = x.data_ptr<T>();
  at::parallel_for(0, x.size(1), 4, [&](std::int64_t begin, std::int64_t end) {
    Angles angles(frequencies.size());
    for (std::int64_t token = begin; token < end; ++token) {
      angles.turn_to(batch.position(token), frequencies, turn);
      for (std::int64_t sample = 0; sample < x.size(0); ++sample)
        for (std::int64_t head = 0; head < x.size(2); ++head)
          rotate_head(data + sample * x.stride(0) + token * x.stride(1) + head * x.stride(2),
                      angles);
    }
  });
}

}  // namespace

std::vector<float> rotary_frequencies(const model::ModelSpec& model) {
  const int head_dim = model.hidden / model.heads;
  const model::RopeScaling& scaling = model.rope_scaling;
  std::vector<float> frequencies;
  for (int i = 0; i < head_dim / 2; ++i) {
    const double frequency = std::pow(model.rope_theta, -2.0 * i / head_dim);
    const double turns = scaling.positions * frequency / (2 * std::numbers::pi);
    const double unscaled =
        std::clamp((turns - scaling.low) / (scaling.high - scaling.low), 0.0, 1.0);
    frequencies.push_back(
        static_cast<float>(frequency * (unscaled + (1 - unscaled) / scaling.factor)));
  }
  return frequencies;
}

void rotate(const at::Tensor& x, const std::vector<float>& frequencies, const Batch& batch,
            Turn turn) {
  if (!x.is_cpu() || x.stride(3) != 1) return rotate_by_tensors(x, frequencies, batch, turn);
  by_type(x, [&]<class T>(T) { rotate_rows<T>(x, frequencies, batch, turn); });
}

void rotate_by_tensors(const at::Tensor& x, const std::vector<float>& frequencies,
                       const Batch& batch, Turn turn) {
  const auto pairs = static_cast<std::int64_t>(frequencies.size());
  const at::Tensor frequency = at::tensor(frequencies, at::kFloat).to(x.device());
  const at::Tensor position = batch.positions.empty()
                                  ? at::arange(x.size(1), frequency.options())
                                  : at::tensor(batch.positions).to(frequency.options());
  // (T, 1, pairs), the same for all samples and heads.
  const at::Tensor angle = position.view({-1, 1, 1}).mul(frequency);
  const at::Tensor cosine = angle.cos();
  const at::Tensor sine = turn == Turn::forward ? angle.sin() : angle.sin().neg_();
  const at::Tensor first = x.narrow(3, 0, pairs), second = x.narrow(3, pairs, pairs);
  const at::Tensor a = first.to(at::kFloat, false, true), b = second.to(at::kFloat, false, true);
  first.copy_(a.mul(cosine).sub_(b.mul(sine)));
  second.copy_(b.mul(cosine).add_(a.mul(sine)));
}

}  // namespace rehearse::models
