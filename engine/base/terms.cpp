// Families of models as in transformers' config.json ("model_type"); methods and keys as other
// programs name them.
#include "engine/base/terms.h"

#include <algorithm>
#include <cctype>
#include <vector>

#include "engine/base/files/data_dir.h"
#include "engine/base/hints.h"

namespace rehearse {
namespace {

struct Term {
  std::vector<std::string_view> words = {};
  const char* note = "";
  std::vector<std::string> models = {};  // the names of its files without their sizes
};

constexpr const char* experts =
    "it is a mixture of experts whose layers differ from those of Mixtral and Qwen3-MoE, which are "
    "modelled (model.experts)";
constexpr const char* ranks_of_experts =
    "expert parallelism is not modelled: dp, tp, pp and ZeRO divide a model with experts";
constexpr const char* count_of_experts = "it is model.experts here";

/// Families: what comes after the word does not count, unless it is a letter.
const std::vector<Term> families = {
    {{"deepseek"},
     "it is a mixture of experts with latent attention (V2, V3, R1): experts that all tokens pass "
     "and keys and values of low rank are not modelled"},
    {{"dbrx", "grok", "olmoe", "qwen2_moe", "llama4", "llama_4", "switch_transformers"}, experts},
    {{"mixtral"}, "its config.json is read", {"mixtral"}},
    {{"roberta", "xlm_roberta", "camembert"},
     "it is BERT with positions that begin at 2 and one type of token, which is not read; for a "
     "prediction, model.name = \"bert-base\" with model.vocab = 50265 has the sizes of "
     "RoBERTa-base"},
    {{"albert", "distilbert", "electra", "deberta", "modernbert"},
     "its layers differ from BERT's and are not modelled"},
    {{"qwen", "qwen1"},
     "this family's config.json is read from Qwen 2 on: model_type is \"qwen2\", as in Qwen 2.5"},
    {{"qwen2", "qwen2.5"}, "Qwen 2.5's config.json is read", {"qwen2"}},
    {{"qwen3", "qwen3_moe"}, "config.json is read", {"qwen3"}},
    {{"gemma"}, "", {"gemma", "gemma2", "gemma3"}},
    {{"gemma3n", "gemma4"}, "its layers differ from Gemma 3's, which is read (\"gemma3_text\")"},
    {{"phi3", "phi3.5", "phi_3", "phi_3.5"},
     "config.json is read; experts are not modelled",
     {"phi3"}},
    {{"phi4", "phi_4"}, "its config.json is read (\"phi3\")"},
    {{"phi", "phi1", "phi2", "phi_1", "phi_2"},
     "its attention and feed-forward beside each other, with partial rotary embeddings, are not "
     "modelled"},
    {{"phi4_multimodal"}, "only models of text are modelled"},
    {{"ministral"}, "its windows that differ between layers are not modelled"},
    {{"gptj", "gpt_j", "gpt_neox", "pythia", "falcon"},
     "its attention and feed-forward beside each other, with rotary embeddings, are not modelled"},
    {{"gpt_neo", "gpt_bigcode", "bloom", "opt", "mpt"},
     "its attention, positions or activation differ from GPT-2's: config.json is not read; for a "
     "prediction, a model file of family \"gpt\" can have its sizes"},
    {{"t5", "mt5", "flan_t5", "bart", "mbart", "whisper"},
     "an encoder with a decoder is not modelled"},
    {{"vit", "clip", "resnet", "llava", "qwen2_vl", "qwen2_5_vl", "qwen2_audio", "qwen3_vl"},
     "only models of text are modelled"},
    {{"mamba", "mamba2", "jamba", "rwkv"}, "state space and recurrent layers are not modelled"},
};

/// Methods and keys: the whole word.
const std::vector<Term> names = {
    {{"ep", "expert_parallel", "expert_parallelism", "expert_model_parallel_size"},
     ranks_of_experts},
    {{"experts", "expert", "moe", "num_experts", "num_local_experts", "n_experts"},
     count_of_experts},
    {{"fsdp", "fsdp2", "fully_sharded"},
     "PyTorch's FSDP is \"zero3\" here, its hybrid form \"hsdp\""},
    {{"deepspeed"}, "DeepSpeed's stages are \"zero1\", \"zero2\" and \"zero3\" here"},
    {{"tensor_parallel", "tensor_parallelism", "tensor_model_parallel_size"},
     "it is method.tp here"},
    {{"tp"}, "method.tp divides tensors, as in \"megatron\""},
    {{"cp"}, "method.cp divides sequences, as in \"ddp\""},
    {{"pp"}, "method.pp divides layers, as in \"1f1b\""},
    {{"dp"}, "method.dp divides samples, as in \"ddp\""},
    {{"batch_size", "global_batch_size", "train_batch_size"},
     "the samples of a step are train.global_batch here"},
    {{"micro_batch_size", "per_device_train_batch_size", "train_micro_batch_size_per_gpu"},
     "the samples that a replica takes at once are method.micro_batch here"},
    {{"gradient_accumulation", "gradient_accumulation_steps", "accumulate_grad_batches"},
     "it is method.micro_batches here"},
    {{"activation_checkpointing", "gradient_checkpointing", "checkpoint_activations"},
     "it is method.recompute here"},
    {{"learning_rate"}, "it is train.lr here"},
    {{"seq_length", "sequence_length", "max_seq_len", "block_size", "context_length"},
     "it is train.seq_len here"},
    {{"gpus", "num_gpus", "n_gpus", "ngpus", "num_gpu", "nodes", "num_nodes", "nnodes"},
     "ranks are cluster.world_size here, and nodes are part of the cluster's name: "
     "\"dgx-a100:16\" has 16"},
    {{"gpu", "gpu_type", "device_type", "accelerator"},
     "devices are those of the platform; cluster.replace puts others in their places: "
     "[\"H100: H200\"]"},
    {{"nic", "nic_bandwidth", "network_bandwidth"}, "it is cluster.links.network.bandwidth here"},
    {{"nvlink_bandwidth"}, "it is cluster.links.nvlink.bandwidth here"},
    {{"pcie_bandwidth"}, "it is cluster.links.pcie.bandwidth here"},
    {{"fp8", "bf16", "fp16", "dtype", "mixed_precision"}, "it is method.precision here"},
    {{"tf32"}, "it is software.kernels.tf32 here"},
    {{"experts_per_token", "num_experts_per_tok", "moe_router_topk"},
     "it is model.experts_per_token here"},
    {{"router_aux_loss", "router_aux_loss_coef", "moe_aux_loss_coeff"},
     "it is model.router_aux_loss here"},
    {{"pipeline_parallel", "pipeline_parallelism", "pipeline_model_parallel_size"},
     "it is method.pp here"},
    {{"data_parallel", "data_parallelism", "data_parallel_size"},
     "it is method.dp here, and \"ddp\" the method"},
    {{"context_parallel", "context_parallelism", "context_parallel_size"}, "it is method.cp here"},
};

bool begins(const std::string& word, std::string_view family) {
  return word.starts_with(family) &&
         (word.size() == family.size() ||
          std::isalpha(static_cast<unsigned char>(word[family.size()])) == 0);
}

}  // namespace

std::string folded(std::string_view text) {
  std::string out;
  for (const char c : text)
    out += c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

std::string term_note(std::string_view word) {
  const std::string wanted = folded(word);
  for (const Term& term : names)
    if (std::ranges::find(term.words, wanted) != term.words.end()) return term.note;
  return "";
}

std::string model_note(std::string_view name) {
  const std::string wanted = folded(name);
  std::size_t longest = 0;
  const Term* found = nullptr;
  for (const Term& term : families)
    for (const std::string_view one : term.words)
      if (one.size() > longest && begins(wanted, one)) longest = one.size(), found = &term;
  if (found == nullptr) return "";
  const std::string sizes = sizes_of(found->models, data_names("models")), note = found->note;
  return sizes.empty() || note.empty() ? sizes + note : sizes + "; " + note;
}

}  // namespace rehearse
