"""Models of Hugging Face's transformers, by their config.json and model.safetensors: recorded losses, weights out as they went in, numbers
of parameters, and refusals of what is not computed here."""

import json
import shutil
import struct

from cli_test_case import ROOT, CliTestCase

MODELS = ROOT / "tests/data/huggingface"
JOB = """model.name = "{model}/config.json"
cluster = {{ name = "this-machine:2", world_size = 2 }}
method = {{ name = "{method}" }}
train = {{ global_batch = {windows}, seq_len = {length}, steps = 1, lr = 1e-30, data = "{data}", out = "{out}" }}
run = {{ threads = 1, timeout = "10min" }}
"""


def tensors_of(path):
    """The tensors of a safetensors file: shape and bytes by name."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    body = data[8 + length :]
    return {name: (entry["shape"], body[slice(*entry["data_offsets"])]) for name, entry in header.items()}


def write_tensors(path, tensors):
    """A safetensors file of f32 tensors: shape and bytes by name."""
    header, at = {}, 0
    for name, (shape, data) in tensors.items():
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data for _, data in tensors.values()))


class HuggingFace(CliTestCase):
    def model_job(self, name, method="ddp"):
        """A job whose only step sees each window of the recorded stream once, and changes no weight (the rate is too small)."""
        recorded = json.loads((MODELS / name / "recorded.json").read_text())
        stream, length = recorded["stream"], recorded["length"]
        data = self.tmp / name
        data.mkdir(exist_ok=True)
        header = struct.pack("<256i", 20240520, 1, len(stream), *[0] * 253)
        (data / "tiny_train_000.bin").write_bytes(header + struct.pack(f"<{len(stream)}H", *stream))
        (data / "manifest.json").write_text('{"special_token_ids": {"mask": 3}}')
        out = self.tmp / f"{name}-{method}"
        text = JOB.format(model=MODELS / name, method=method, windows=(len(stream) - 1) // length, length=length, data=data, out=out)
        return self.job(text, f"{name}-{method}.toml"), recorded

    def test_losses_are_the_recorded_ones(self):
        """Across tensor-parallel ranks too, and the weights come out as they went in."""
        first, later = ("gpt2", "llama", "mistral", "bert"), ("nemo", "qwen2", "qwen3", "phi3")
        ways = dict.fromkeys(first, ("megatron", "ddp", "zero3")) | dict.fromkeys(later, ("megatron",))
        ways |= dict.fromkeys(("gemma", "qwen3_moe"), ("megatron",)) | {"mixtral": ("megatron", "zero3")}
        ways |= {"gemma2": ("ddp", "zero3"), "gemma3": ("zero3",)}  # have no tensor parallelism
        for name, methods in ways.items():
            for method in methods:
                with self.subTest(model=name, method=method):
                    job, recorded = self.model_job(name, method)
                    weights, out = MODELS / name / "model.safetensors", self.tmp / f"{name}-{method}.safetensors"
                    dry = ["--set", "model.dropout=0"]
                    one = self.json("train", job, "--nproc", "2", "--import", weights, "--export", out, *dry)
                    if name != "bert":  # its loss depends on which tokens are masked
                        self.assertAlmostEqual(one["first_loss"] / recorded["loss"], 1, delta=1e-5)
                    self.assertEqual(tensors_of(out), tensors_of(weights))

    def test_the_text_model_of_one_that_sees_images(self):
        """Its sizes are an object of config.json. Its tensors have a prefix, and those that see images are beside them."""
        for name, kind, prefix, inner in (
            ("gemma3", "gemma3", "language_model.", ""),
            ("mistral", "mistral3", "model.language_model.", "model."),
        ):
            with self.subTest(model=name, prefix=prefix):
                job, recorded = self.model_job(name, "zero3")
                folder = self.tmp / f"{name}-sees"
                folder.mkdir()
                config = json.loads((MODELS / name / "config.json").read_text())
                (folder / "config.json").write_text(json.dumps({"model_type": kind, "text_config": config, "vision_config": {}}))
                weights = tensors_of(MODELS / name / "model.safetensors")
                seen = {prefix + n.removeprefix(inner) if n != "lm_head.weight" else n: tensor for n, tensor in weights.items()}
                seen |= {inner + "vision_tower.embeddings.weight": ([2, 2], bytes(16)), "multi_modal_projector.bias": ([1], bytes(4))}
                write_tensors(folder / "model.safetensors", seen)
                out = self.tmp / f"{name}-seen.safetensors"
                more = ["--set", f"model.name={folder}/config.json", "--import", folder / "model.safetensors", "--export", out]
                one = self.json("train", job, "--nproc", "2", *more)
                self.assertAlmostEqual(one["first_loss"] / recorded["loss"], 1, delta=1e-5)
                self.assertEqual(tensors_of(out), weights)

    def test_weights_of_another_model_are_refused(self):
        job, _ = self.model_job("llama")
        self.refused("train", job, "--nproc", "2", "--import", MODELS / "gpt2/model.safetensors", says=["model llama has no tensor"])
        phi, _ = self.model_job("phi3")  # in whose files gate and up are one matrix
        says = ["model phi3 has no tensor model.layers.0.mlp.gate_proj.weight"]
        self.refused("train", phi, "--nproc", "2", "--import", MODELS / "llama/model.safetensors", says=says)
        more = ["--set", "model.layers=3", "--import", MODELS / "llama/model.safetensors"]
        self.refused("train", job, "--nproc", "2", *more, says=["it has no tensor model.layers.2."])

    def test_a_config_is_a_model_in_every_command(self):
        config = MODELS / "mistral/config.json"
        job = self.job(f'model.name = "{config}"\ncluster.name = "dgx-a100:1"\nmethod.name = "zero3"\n')
        one = self.json("simulate", job)
        self.assertGreater(one["step_time_s"]["mean"], 0)
        self.assertIn("mistral", self.rehearse("simulate", job).stdout)
        self.rehearse("program", job, "--check")

    def changed(self, name, **keys):
        """Simulates a model with other keys in its config.json; a key with the value ... is left out."""
        folder = self.tmp / "changed"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        config = json.loads((MODELS / name / "config.json").read_text()) | keys
        (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not ...}))
        return self.job(f'model.name = "{folder}/config.json"\ncluster.name = "dgx-a100:1"\nmethod.name = "ddp"\n')

    def test_what_is_not_computed_is_refused(self):
        yarn, longrope = ({"rope_type": name, "factor": 4.0} for name in ("yarn", "longrope"))
        for name, keys, says in (
            (
                "llama",
                {"model_type": "lama"},
                [
                    '"model_type" = "lama"',
                    "gpt2, bert, llama, mistral, mixtral, qwen2, qwen3, qwen3_moe, phi3, gemma, gemma2, gemma3_text, gemma3, mistral3",
                    'did you mean "llama"?',
                ],
            ),
            ("llama", {"model_type": ...}, ['"model_type" = ""']),
            ("llama", {"hidden_size": ...}, ['"hidden_size" is missing']),
            ("llama", {"hidden_size": "16"}, ['"hidden_size" = "16"', "whole number"]),
            ("llama", {"hidden_act": "gelu"}, ['"hidden_act" = "gelu"', 'must be "silu"']),
            ("llama", {"attention_bias": True}, ['"attention_bias" = true', "must be false"]),
            ("llama", {"head_dim": 7}, ["head_dim = 7", "is odd"]),
            ("llama", {"rope_parameters": yarn | {"rope_type": "dynamic"}}, ["rope_parameters", '"rope_type" = "dynamic"', '"yarn"']),
            ("llama", {"rope_parameters": yarn | {"truncate": False}}, ['"truncate" = false']),
            ("llama", {"rope_parameters": yarn | {"beta_fast": 0.5}}, ["rope_scaling.high = 0.5 must be above low = 1"]),
            ("llama", {"rope_parameters": longrope}, ['"short_factor" is missing']),
            ("llama", {"rope_parameters": longrope | {"short_factor": [1.0], "long_factor": [2.0]}}, ["has 1 numbers where it needs 2"]),
            ("llama", {"rope_parameters": None, "rope_scaling": {"type": "linear"}}, ["rope_scaling", '"factor" is missing']),
            ("qwen2", {"use_sliding_window": True}, ['"use_sliding_window" = true', "must be false"]),
            ("llama", {"num_key_value_heads": 3}, ["config.json", "kv_heads = 3 does not divide heads = 4"]),
            ("mixtral", {"output_router_logits": True}, ['"output_router_logits" = true', "must be false"]),
            ("mixtral", {"num_experts_per_tok": 5}, ["experts_per_token = 5 must be at least 1 and at most experts = 4"]),
            ("qwen3_moe", {"mlp_only_layers": [0]}, ['"mlp_only_layers" = [0]', "must be []"]),
            ("qwen3_moe", {"decoder_sparse_step": 2}, ['"decoder_sparse_step" = 2', "must be 1"]),
            ("phi3", {"resid_pdrop": 0.1}, ['"resid_pdrop" = 0.1', "must be 0.0"]),
            ("phi3", {"partial_rotary_factor": 0.75}, ['"partial_rotary_factor" = 0.75']),
            ("gemma2", {"hidden_activation": "gelu"}, ['"hidden_activation" = "gelu"', '"gelu_pytorch_tanh"']),
            ("gemma2", {"use_bidirectional_attention": True}, ['"use_bidirectional_attention" = true']),
            ("gemma2", {"layer_types": ["full_attention", "sliding_attention"]}, ['"layer_types"', "the last one full_attention"]),
            ("gemma2", {"layer_types": ["full_attention"]}, ['"layer_types" must list one type for each of the 2 layers']),
            ("gemma2", {"sliding_window": None}, ['"layer_types"', '"sliding_window"']),
            ("gemma2", {"attn_logit_softcapping": -1.0}, ['"attn_logit_softcapping" = -1.0', "must be a number >= 0"]),
            ("gemma", {"hidden_act": "silu"}, ['"hidden_act" = "silu"', '"gelu"']),
            ("gemma3", {"hidden_act": "gelu"}, ['"hidden_act" = "gelu"', '"gelu_pytorch_tanh"']),
            (
                "gemma3",
                {"rope_parameters": {"full_attention": {}, "sliding_attention": yarn}},
                ["sliding_attention", '"rope_type" = "yarn"'],
            ),
            ("gemma3", {"layer_types": ["full_attention", "sliding_attention"]}, ['"layer_types"', "the last one full_attention"]),
            ("gemma3", {"model_type": "gemma3"}, ['config.json: "text_config" is missing']),
            ("gemma3", {"model_type": "gemma3", "text_config": {"head_dim": 7}}, ["head_dim = 7"]),
            ("mistral", {"model_type": "mistral3", "text_config": {}}, ['text_config: "vocab_size" is missing']),
            (
                "mistral",
                {"model_type": "mistral3", "text_config": {"model_type": "mistral3"}},
                ["text_config", '"model_type" = "mistral3"'],
            ),
            ("gpt2", {"scale_attn_weights": False}, ['"scale_attn_weights" = false']),
            ("gpt2", {"embd_pdrop": 0.2}, ['"embd_pdrop" = 0.2', '"resid_pdrop" = 0.1']),
            ("bert", {"type_vocab_size": 1}, ['"type_vocab_size" = 1']),
            ("bert", {"position_embedding_type": "relative_key"}, ["relative_key", '"absolute"']),
        ):
            with self.subTest(model=name, keys=keys):
                self.refused("simulate", self.changed(name, **keys), says=says)
        self.refused("simulate", self.job('model.name = "none.json"\ncluster.name = "paper"\nmethod.name = "ddp"\n'), says=["none.json"])
        broken = self.tmp / "broken.json"
        broken.write_text("{")
        job = self.job(f'model.name = "{broken}"\ncluster.name = "paper"\nmethod.name = "ddp"\n')
        self.refused("simulate", job, says=["broken.json", "not JSON"])

    def test_keys_of_the_past_mean_the_same(self):
        """transformers 4 has the rotary keys at the top; a Mistral without a stated window has one of 4,096 tokens."""

        def hashed(**keys):
            return self.json("simulate", self.changed("llama", **keys))["step_time_s"]["mean"]

        self.assertEqual(hashed(), hashed(rope_parameters=..., rope_theta=500.0, rope_scaling=None))
        long = {"max_position_embeddings": 16384}
        window = [self.json("simulate", self.changed("mistral", sliding_window=w, **long)) for w in (..., 4096, None)]
        self.assertEqual(window[0]["step_time_s"], window[1]["step_time_s"])
        self.assertLess(window[0]["step_time_s"]["mean"], window[2]["step_time_s"]["mean"])
