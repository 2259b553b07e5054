"""Records what Hugging Face's transformers computes with tiny random models, for tests/runtime/checkpoints/huggingface_test.cpp.

The files in this folder were made by version 5.23.0 with PyTorch 2.11:  python record.py. Each folder has a model's config.json and
model.safetensors, as save_pretrained writes them, and recorded.json: a stream of tokens, the logits of its first window, and the mean
loss over all windows for causal models."""

import json
import pathlib
import shutil

import torch
import transformers

LENGTH, WINDOWS, VOCAB = 12, 4, 61
LLAMA = dict(
    vocab_size=VOCAB,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=32,
)
LLAMA3 = dict(
    rope_type="llama3", rope_theta=500.0, factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16
)
LINEAR = dict(rope_type="linear", rope_theta=500.0, factor=4.0)
# Of six pairs, the first stays, the last is divided by the factor, and the others lie between.
YARN = dict(rope_type="yarn", rope_theta=500.0, factor=4.0, original_max_position_embeddings=16, beta_fast=2.0, beta_slow=0.02)
# Its sequences are longer than the first ones, so the long list counts.
LONGROPE = dict(rope_type="longrope", rope_theta=500.0, short_factor=[1.0, 1.5], long_factor=[1.2, 3.0])
BERT = dict(vocab_size=VOCAB, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=32)
MODELS = {
    "gpt2": (transformers.GPT2LMHeadModel, transformers.GPT2Config(vocab_size=VOCAB, n_embd=16, n_layer=2, n_head=4, n_positions=32)),
    "bert": (transformers.BertForMaskedLM, transformers.BertConfig(**BERT)),
    "llama": (transformers.LlamaForCausalLM, transformers.LlamaConfig(rope_parameters=LLAMA3, **LLAMA)),
    "mistral": (transformers.MistralForCausalLM, transformers.MistralConfig(sliding_window=5, **LLAMA)),
    "nemo": (
        transformers.MistralForCausalLM,
        transformers.MistralConfig(head_dim=12, sliding_window=None, rope_parameters=YARN, **LLAMA),
    ),
    "qwen2": (transformers.Qwen2ForCausalLM, transformers.Qwen2Config(rope_parameters=LINEAR, **LLAMA)),
    "phi3": (
        transformers.Phi3ForCausalLM,
        transformers.Phi3Config(sliding_window=7, original_max_position_embeddings=8, rope_parameters=LONGROPE, pad_token_id=None, **LLAMA),
    ),
    "qwen3": (transformers.Qwen3ForCausalLM, transformers.Qwen3Config(head_dim=6, **LLAMA)),
    # Caps so low that they bend scores and logits; one layer of the two has a window.
    "gemma2": (
        transformers.Gemma2ForCausalLM,
        transformers.Gemma2Config(
            head_dim=6, query_pre_attn_scalar=9, attn_logit_softcapping=2.0, final_logit_softcapping=4.0, sliding_window=5, **LLAMA
        ),
    ),
    "gemma": (transformers.GemmaForCausalLM, transformers.GemmaConfig(head_dim=6, **LLAMA)),
    # The layer with a window has rotary positions of its own base, and those of the other one are stretched.
    "gemma3": (
        transformers.Gemma3ForCausalLM,
        transformers.Gemma3TextConfig(
            head_dim=6,
            query_pre_attn_scalar=9,
            sliding_window=5,
            layer_types=["sliding_attention", "full_attention"],
            rope_parameters={"full_attention": LINEAR, "sliding_attention": dict(rope_type="default", rope_theta=20.0)},
            **LLAMA,
        ),
    ),
    "mixtral": (
        transformers.MixtralForCausalLM,
        transformers.MixtralConfig(num_local_experts=4, num_experts_per_tok=2, sliding_window=5, **LLAMA),
    ),
    # Weights of experts that are not divided by their sum.
    "qwen3_moe": (
        transformers.Qwen3MoeForCausalLM,
        transformers.Qwen3MoeConfig(
            head_dim=6, num_experts=6, num_experts_per_tok=3, moe_intermediate_size=12, norm_topk_prob=False, **LLAMA
        ),
    ),
}


def main():
    here = pathlib.Path(__file__).parent
    for number, (name, (kind, config)) in enumerate(MODELS.items()):
        torch.manual_seed(number)
        config._attn_implementation = "eager"
        model = kind(config).eval()
        with torch.no_grad():
            # Larger than initial weights, so that attention and norms matter.
            for weight in model.parameters():
                weight.add_(torch.randn_like(weight) * 0.2)
            stream = torch.randint(0, VOCAB, (LENGTH * WINDOWS + 1,))
            windows = stream[:-1].view(WINDOWS, LENGTH)
            logits = model(windows).logits
            recorded = {
                "transformers": transformers.__version__,
                "stream": stream.tolist(),
                "length": LENGTH,
                "logits": [[float(f"{x:.7g}") for x in row] for row in logits[0].tolist()],
            }
            if name != "bert":
                recorded["loss"] = torch.nn.functional.cross_entropy(logits.flatten(0, 1), stream[1:]).item()
        folder = here / name
        shutil.rmtree(folder, ignore_errors=True)
        model.save_pretrained(folder)
        (folder / "generation_config.json").unlink(missing_ok=True)
        (folder / "recorded.json").write_text(json.dumps(recorded) + "\n")


main()
