// A second, independent formulation of the models: a whole GPT or BERT as plain LibTorch autograd
// over named tensors, written from the papers with elementary operations and nothing of models/.
// What blocks compute is held to this.
#pragma once
#include <ATen/ATen.h>

#include <map>
#include <string>

#include "engine/model/model.h"

namespace rehearse::reference {

using Weights = std::map<std::string, at::Tensor>;

/// Multiplies the output of a site by a mask: ("embedding", -1), ("attention", 3), ("mlp", 3).
struct Masks {
  std::map<std::pair<std::string, int>, at::Tensor> at = {};
};

/// Sum over counted labels of -log p, differentiable. tokens, labels: i64 [samples, seq].
at::Tensor loss_sum(const model::ModelSpec& model, const Weights& weights, const at::Tensor& tokens,
                    const at::Tensor& labels, const Masks& masks = {});

/// Gradients of loss_scale * loss_sum by autograd, under the tensors' names.
Weights gradients(const model::ModelSpec& model, const Weights& weights, const at::Tensor& tokens,
                  const at::Tensor& labels, double loss_scale, const Masks& masks = {});

}  // namespace rehearse::reference
