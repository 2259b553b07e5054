"""Compares real training with PyTorch's DistributedDataParallel, in interleaved rounds.

Both sides train the GPT-2 124M shape on the same synthetic tokens and the same batch, in fp32 with
AdamW, with two processes of one thread each. Our side is `rehearse train`. The peer is a minimal
GPT-2 in plain PyTorch (scaled_dot_product_attention, fused AdamW, gradients as bucket views, Gloo),
started as a user would start it. Each round runs both sides, one after the other, and rounds
alternate which side runs first. The result of a side is the median tokens/s of its steps without
the first. A busy machine slows both sides, so the figure is the ratio of a round. The smallest and
the largest ratio of seven rounds enclose the true median with 98% confidence (binomial, 1 - 2 / 2^7).
CPU time is also shown: it does not include waiting, and a busy machine changes it least.

On a processor with AVX-512, everything runs twice, with and without it. Environment variables limit
the instructions of LibTorch, PyTorch and the oneDNN inside both, in the same way on both sides. MKL
follows its own variable on Intel processors; on other processors it uses at most AVX2 anyway. Our
optimizer has no limit; its loops wait for memory.
"""

import argparse
import itertools
import json
import math
import os
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve()
REHEARSE = HERE.parent.parent / "build" / "bin" / "rehearse"
VOCAB = 50257
ROWS = 50304  # of the vocabulary table: padded to a multiple of 128 on both sides, as `rehearse` does
CAPS = {
    "AVX-512": {},
    "AVX2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
}
SHAPES = {"gpt2-124m": (12, 768, 12), "quick": (2, 192, 6)}  # layers, hidden, heads


def write_job(folder, args):
    """Writes the job and its tokens; the peer uses the same tokens."""
    import numpy

    layers, hidden, heads = SHAPES[args.shape]
    model = folder / "model.toml"
    model.write_text(
        f'family = "gpt"\nlayers = {layers}\nhidden = {hidden}\nheads = {heads}\n'
        f"vocab = {VOCAB}\nseq_len = {args.seq}\nmax_positions = 1024\n"
    )
    header = numpy.zeros(256, dtype="<i4")
    tokens = numpy.random.default_rng(1).integers(0, VOCAB, 400_000).astype("<u2")
    header[:3] = 20240520, 1, len(tokens)
    (folder / "bench_train_000.bin").write_bytes(header.tobytes() + tokens.tobytes())
    (folder / "job.toml").write_text(
        f'model.name = "{model}"\n'
        'cluster.name = "this-machine"\n'
        'method = { name = "ddp", dp = 2 }\n'
        f'train = {{ seq_len = {args.seq}, global_batch = {2 * args.samples}, data = "{folder}", out = "" }}\n'
        'run = { threads = 1, timeout = "300 s" }\n'
    )


def processor():
    """The processor's name, family and model, and the instruction sets to measure with."""
    said = dict(line.split(":", 1) for line in Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines())
    said = {key.strip(): value.strip() for key, value in said.items()}
    name = f"{said.get('model name', 'unknown')}, family {said.get('cpu family')}, model {said.get('model')}"
    return name, list(CAPS) if "avx512bw" in said.get("flags", "") else ["AVX2"]


def ours(folder, args, steps, cap):
    command = [REHEARSE, "train", folder / "job.toml", "--nproc", "2", "--json", "--set", f"train.steps={steps}"]
    done = subprocess.run(command, stdout=subprocess.PIPE, cwd=folder, check=True, text=True, env=os.environ | cap)
    said = json.loads(done.stdout)
    return said["step_times_s"], said["first_loss"]


def peer(folder, args, steps, cap):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--steps", str(steps), "--seq", str(args.seq), "--samples", str(args.samples), "--shape", args.shape]
    ranks = []
    for rank in range(2):
        variables = {"RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": 1}
        ranks.append(
            subprocess.Popen(
                [sys.executable, HERE, "--peer", folder, *options],
                env=os.environ | cap | {name: str(value) for name, value in variables.items()},
                stdout=subprocess.PIPE,
                text=True,
            )
        )
    outputs = [rank.communicate()[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        raise SystemExit("train_vs_ddp: the peer failed")
    said = json.loads(outputs[0])
    return said["step_times_s"], said["first_loss"]


def be_peer(args):
    """Runs as one rank of the PyTorch side."""
    import numpy
    import torch
    import torch.distributed
    from torch import nn
    from torch.nn import functional as F

    layers, hidden, heads = SHAPES[args.shape]

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
            self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
            self.wide, self.narrow = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

        def forward(self, x):
            b, t, _ = x.shape
            parts = self.qkv(self.norm1(x)).split(hidden, dim=2)
            q, k, v = (part.view(b, t, heads, -1).transpose(1, 2) for part in parts)
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(mixed.transpose(1, 2).reshape(b, t, hidden))
            return x + self.narrow(F.gelu(self.wide(self.norm2(x)), approximate="tanh"))

    class Gpt2(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.positions = nn.Embedding(ROWS, hidden), nn.Embedding(1024, hidden)
            self.layers = nn.ModuleList(Layer() for _ in range(layers))
            self.norm = nn.LayerNorm(hidden)
            for parameter in self.parameters():
                if parameter.dim() == 2:
                    nn.init.normal_(parameter, std=0.02)

        def forward(self, tokens, labels):
            x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
            for layer in self.layers:
                x = layer(x)
            logits = F.linear(self.norm(x), self.tokens.weight)
            return F.cross_entropy(logits.view(-1, ROWS), labels.view(-1))

    torch.set_num_threads(1)
    torch.manual_seed(1)
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    model = nn.parallel.DistributedDataParallel(Gpt2(), gradient_as_bucket_view=True)
    decays = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": decays, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-4, fused=True)
    shard = numpy.fromfile(Path(args.peer) / "bench_train_000.bin", dtype="<u2", offset=1024).astype("int64")
    windows = torch.from_numpy(shard[: len(shard) // (args.seq + 1) * (args.seq + 1)].reshape(-1, args.seq + 1))
    ends, losses = [], []
    for step in range(args.steps):
        at = (2 * step + rank) * args.samples % (len(windows) - args.samples)
        batch = windows[at : at + args.samples]
        loss = model(batch[:, :-1].contiguous(), batch[:, 1:].contiguous())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        ends.append(time.perf_counter())
    if rank == 0:
        times = [b - a for a, b in itertools.pairwise(ends)]
        print(json.dumps({"step_times_s": times, "first_loss": losses[0]}))
    torch.distributed.destroy_process_group()


def processor_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def record(name, measured, unit, reference, more_is_better, ratio):
    """Writes a row for the table of tools/bench; see bench/figure.h."""
    if path := os.environ.get("REHEARSE_FIGURES"):
        row = {"name": name, "measured": measured, "unit": unit, "against": "PyTorch DDP", "reference": reference}
        with open(path, "a") as file:
            file.write(json.dumps(row | {"ratio": ratio, "more_is_better": more_is_better}) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=6, help="steps of a run; the first is not counted")
    parser.add_argument("--seq", type=int, default=128)
    parser.add_argument("--samples", type=int, default=2, help="samples of each process")
    parser.add_argument("--shape", choices=SHAPES, default="gpt2-124m")
    parser.add_argument("--quick", action="store_true", help="a small shape and three rounds, only to check that it works")
    parser.add_argument("--json", metavar="FILE", help="write every step's time")
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.peer:
        be_peer(args)
        return
    if args.quick:
        args.shape, args.rounds = "quick", 3
    tokens = 2 * args.samples * args.seq
    name, instructions = processor()
    print(f"real training, {args.shape}, ddp of 2 processes x 1 thread, fp32, {tokens} tokens a step; {name}")
    sides = {"rehearse": ours, "PyTorch DDP": peer}
    contests = {of: {side: {"speed": [], "processor": []} for side in sides} for of in instructions}
    everything = []
    with tempfile.TemporaryDirectory(prefix="rehearse-bench-") as name:
        folder = Path(name)
        write_job(folder, args)
        start_up = {}
        for side, run in sides.items():  # CPU time of everything except the other steps
            before = processor_seconds()
            run(folder, args, 1, {})
            start_up[side] = processor_seconds() - before
        for round_ in range(args.rounds):
            order = list(sides) if round_ % 2 == 0 else list(sides)[::-1]
            for of, side in ((of, side) for of in instructions for side in order):
                before = processor_seconds()
                times, loss = sides[side](folder, args, args.steps, CAPS[of])
                took = contests[of][side]
                took["processor"].append((processor_seconds() - before - start_up[side]) / (args.steps - 1))
                took["speed"].append(tokens / statistics.median(times))
                everything.append({"round": round_, "side": side, "instructions": of, "step_times_s": times, "first_loss": loss})
                if abs(loss - math.log(VOCAB)) > 1:
                    raise SystemExit(f"train_vs_ddp: {side} begins with a loss of {loss:.3f}, not near ln {VOCAB}")
            for of, contest in contests.items():
                a, b = (contest[side]["speed"][-1] for side in sides)
                print(f"  round {round_ + 1}, {of}: {a:8.1f} tok/s, PyTorch DDP {b:8.1f} tok/s, ratio {a / b:.3f}", flush=True)
    for of, contest in contests.items():
        summarise(f"training {args.shape}, 2 processes, {of}", *contest.values())
    if args.json:
        Path(args.json).write_text(json.dumps({"args": vars(args), "runs": everything}, indent=1))


def summarise(what, ours, peers):
    """Prints and records the median ratio of all rounds, with the smallest and the largest."""
    ratios = sorted(a / b for a, b in zip(ours["speed"], peers["speed"], strict=True))
    a, b, middle = statistics.median(ours["speed"]), statistics.median(peers["speed"]), statistics.median(ratios)
    print(f"{what}: {a:.1f} tok/s, PyTorch DDP {b:.1f} tok/s")
    print(f"  ratio of tokens/s        {middle:.3f} [{ratios[0]:.3f}, {ratios[-1]:.3f}] (more is better for us)")
    record(what, a, "tokens/s", b, True, middle)
    used = sorted(b / a for a, b in zip(ours["processor"], peers["processor"], strict=True))
    a, b, middle = statistics.median(ours["processor"]), statistics.median(peers["processor"]), statistics.median(used)
    print(f"  processor time a step    {a:.2f} s, PyTorch DDP {b:.2f} s: ratio {middle:.3f} [{used[0]:.3f}, {used[-1]:.3f}]")
    record(f"{what}, processor time a step", a, "s", b, False, 1 / middle)


if __name__ == "__main__":
    main()
