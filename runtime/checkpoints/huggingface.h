// Imports and exports GPT-2 weights under Hugging Face's names (model.safetensors of
// GPT2LMHeadModel). Two things differ: its linear layers are "Conv1D", stored (in, out), and ours
// (out, in); our vocabulary table is padded with rows that are no token.
#pragma once
#include <string>

#include "engine/model/model.h"
#include "runtime/execution/executor.h"

namespace rehearse::runtime {

/// Writes the weights of a GPT model's checkpoint, in the dtype in which they were saved. Throws
/// InputError for another model family or a damaged checkpoint, BackendError when it cannot write.
void export_gpt2(const std::string& checkpoint, const model::ModelSpec& model,
                 const std::string& path);

/// Fills weights (and fp32 masters) from a GPT-2 file in f32, f16 or bf16. The rest of the state
/// must be as `initialise` left it. Names may lack the prefix "transformer.", as in OpenAI's files.
/// Throws InputError that names a tensor that is missing or has another shape than the model's.
void import_gpt2(const std::string& path, const ExecutorContext& context, Executor& executor);

}  // namespace rehearse::runtime
