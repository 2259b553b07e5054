// Imports and exports weights under Hugging Face's names, as GPT2LMHeadModel, BertForMaskedLM,
// LlamaForCausalLM and MistralForCausalLM have them in model.safetensors. What differs from ours:
// heads are not a dimension of their own; our vocabulary tables are padded with rows that are no
// token; GPT-2's linear layers are "Conv1D", stored (in, out), and ours (out, in).
#pragma once
#include <functional>
#include <string>

#include "engine/model/model.h"
#include "runtime/executor/executor.h"

namespace rehearse::runtime {

/// Writes the weights of a checkpoint, in the dtype in which they were saved. Throws InputError for
/// another model's or a damaged checkpoint, BackendError when it cannot write.
void export_weights(const std::string& checkpoint, const model::ModelSpec& model,
                    const std::string& path);

/// Fills weights (and fp32 masters) from a file in f32, f16 or bf16, or from the files that an
/// index (model.safetensors.index.json) names. The rest of the state must be as `initialise` left
/// it. Throws InputError that names a tensor that is missing, that has another shape than the
/// model's, or that the model does not have.
void import_weights(const std::string& path, const ExecutorContext& context, Executor& executor,
                    const std::function<void()>& alive = {});

}  // namespace rehearse::runtime
