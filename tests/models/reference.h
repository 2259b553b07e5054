// A second, independent implementation of the models, with which tests compare the blocks: a whole
// GPT, BERT or LLaMA with LibTorch's autograd over named tensors, written from the papers with
// elementary operations. It uses nothing of models/.
#pragma once
#include <ATen/ATen.h>

#include <map>
#include <string>

#include "engine/model/model.h"

namespace rehearse::reference {

using Weights = std::map<std::string, at::Tensor>;

/// Dropout masks by site and layer: ("embedding", -1), ("attention", 3), ("mlp", 3). The output of
/// the site is multiplied by its mask. A site without a mask has no dropout.
struct Masks {
  std::map<std::pair<std::string, int>, at::Tensor> at = {};
};

/// Sum of -log p over the counted labels, differentiable. tokens, labels: i64 (B, T), samples and
/// sequence length. Adds to `balance` the losses that balance experts, times the tokens.
at::Tensor loss_sum(const model::ModelSpec& model, const Weights& weights, const at::Tensor& tokens,
                    const at::Tensor& labels, const Masks& masks = {},
                    at::Tensor* balance = nullptr);

/// Gradients of loss_scale * (loss_sum + balance) by autograd, by name of the tensor. `loss`: also
/// the product of loss_scale and loss_sum.
Weights gradients(const model::ModelSpec& model, const Weights& weights, const at::Tensor& tokens,
                  const at::Tensor& labels, double loss_scale, const Masks& masks = {},
                  double* loss = nullptr);

}  // namespace rehearse::reference
