// GPT-2 weights in and out under Hugging Face's names (model.safetensors of GPT2LMHeadModel). Two
// things differ from ours: its linear layers are "Conv1D", stored [in, out], where ours are [out,
// in]; and our vocabulary table is padded with rows that are no token.
#pragma once
#include <string>

#include "engine/model/model.h"
#include "runtime/execution/executor.h"

namespace rehearse::runtime {

/// Writes the weights of a checkpoint of a GPT model, in the dtype they were saved in. Throws
/// InputError for another family or a damaged checkpoint, BackendError when it cannot write.
void export_gpt2(const std::string& checkpoint, const model::ModelSpec& model,
                 const std::string& path);

/// Fills weights (and fp32 masters) from a file of GPT-2's, f32, f16 or bf16; the state must be as
/// `initialise` left it. Names may lack the prefix "transformer.", as in OpenAI's files. Throws
/// InputError that names the tensor: missing, or of another shape than the model's.
void import_gpt2(const std::string& path, const ExecutorContext& context, Executor& executor);

}  // namespace rehearse::runtime
