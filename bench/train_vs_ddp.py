"""Real training against PyTorch's own DistributedDataParallel, in interleaved rounds.

Both train the GPT-2 124M shape on the same synthetic tokens, fp32, AdamW, two processes of one
thread each, the same batch. Ours is `rehearse train`; the peer is a minimal GPT-2 in plain PyTorch
(scaled_dot_product_attention, fused AdamW, gradients as bucket views, Gloo), started like a user
would start it. A round runs both, one after the other, the first to run changing from round to
round; what a round gives is the median of its steps' tokens/s, the first step left out. Busy
machines slow both, so the ratio of a round is the figure; of seven rounds the least and the
largest ratio enclose the true median with 98% confidence (binomial, 1 - 2 / 2^7). Processor time
is shown beside it: it does not see waiting, and it is what a busy machine blurs least.
"""

import argparse
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
ROWS = 50304  # of the table: padded to a multiple of 128, as `rehearse` does and here the peer too
SHAPES = {"gpt2-124m": (12, 768, 12), "quick": (2, 192, 6)}  # layers, hidden, heads


def write_job(folder, args):
    """The job and its tokens; the same tokens are the peer's."""
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
        "run = { threads = 1, timeout = \"300 s\" }\n"
    )


def ours(folder, args, steps):
    command = [REHEARSE, "train", folder / "job.toml", "--nproc", "2", "--json", "--set", f"train.steps={steps}"]
    done = subprocess.run(command, stdout=subprocess.PIPE, cwd=folder, check=True, text=True)
    said = json.loads(done.stdout)
    return said["step_times_s"], said["first_loss"]


def peer(folder, args, steps):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = []
    for rank in range(2):
        variables = {"RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": 1}
        ranks.append(
            subprocess.Popen(
                [sys.executable, HERE, "--peer", folder, "--steps", str(steps), "--seq", str(args.seq)]
                + ["--samples", str(args.samples), "--shape", args.shape],
                env=os.environ | {name: str(value) for name, value in variables.items()},
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
    """One rank of plain PyTorch."""
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
        times = [b - a for a, b in zip(ends, ends[1:])]
        print(json.dumps({"step_times_s": times, "first_loss": losses[0]}))
    torch.distributed.destroy_process_group()


def processor_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def record(name, measured, unit, reference, more_is_better, ratio):
    """A row of the table of tools/bench; see bench/figure.h."""
    if path := os.environ.get("REHEARSE_FIGURES"):
        row = {"name": name, "measured": measured, "unit": unit, "against": "PyTorch DDP", "reference": reference}
        with open(path, "a") as file:
            file.write(json.dumps(row | {"ratio": ratio, "more_is_better": more_is_better}) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=6, help="of a run, the first of which is not counted")
    parser.add_argument("--seq", type=int, default=128)
    parser.add_argument("--samples", type=int, default=2, help="of each process")
    parser.add_argument("--shape", choices=SHAPES, default="gpt2-124m")
    parser.add_argument("--quick", action="store_true", help="a small shape, three rounds: only to see that it works")
    parser.add_argument("--json", metavar="FILE", help="write every step's time")
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.peer:
        return be_peer(args)
    if args.quick:
        args.shape, args.rounds = "quick", 3
    tokens = 2 * args.samples * args.seq
    print(f"real training, {args.shape}, ddp of 2 processes x 1 thread, fp32, {tokens} tokens a step")
    sides = {"rehearse": ours, "PyTorch DDP": peer}
    speeds, processor, everything = {s: [] for s in sides}, {s: [] for s in sides}, []
    with tempfile.TemporaryDirectory(prefix="rehearse-bench-") as name:
        folder = Path(name)
        write_job(folder, args)
        start_up = {}
        for side, run in sides.items():  # processor time of everything but the other steps
            before = processor_seconds()
            run(folder, args, 1)
            start_up[side] = processor_seconds() - before
        for round_ in range(args.rounds):
            order = list(sides) if round_ % 2 == 0 else list(sides)[::-1]
            for side in order:
                before = processor_seconds()
                times, loss = sides[side](folder, args, args.steps)
                processor[side].append((processor_seconds() - before - start_up[side]) / (args.steps - 1))
                speeds[side].append(tokens / statistics.median(times))
                everything.append({"round": round_, "side": side, "step_times_s": times, "first_loss": loss})
                if abs(loss - math.log(VOCAB)) > 1:
                    raise SystemExit(f"train_vs_ddp: {side} begins with a loss of {loss:.3f}, not near ln {VOCAB}")
            a, b = (speeds[side][-1] for side in sides)
            print(f"  round {round_ + 1}: {a:8.1f} tok/s, PyTorch DDP {b:8.1f} tok/s, ratio {a / b:.3f}", flush=True)
    ratios = sorted(a / b for a, b in zip(*speeds.values()))
    used = sorted(b / a for a, b in zip(*processor.values()))
    a, b = (statistics.median(speeds[side]) for side in sides)
    print(f"  median:  {a:8.1f} tok/s, PyTorch DDP {b:8.1f} tok/s")
    middle = statistics.median(ratios)
    print(f"  ratio of tokens/s        {middle:.3f} [{ratios[0]:.3f}, {ratios[-1]:.3f}] (more is better for us)")
    what = f"training {args.shape}, 2 processes"
    record(what, a, "tokens/s", b, True, middle)
    a, b = (statistics.median(processor[side]) for side in sides)
    middle = statistics.median(used)
    print(f"  processor time a step    {a:.2f} s, PyTorch DDP {b:.2f} s: ratio {middle:.3f} [{used[0]:.3f}, {used[-1]:.3f}]")
    record(f"{what}, processor time a step", a, "s", b, False, 1 / middle)
    if args.json:
        Path(args.json).write_text(json.dumps({"args": vars(args), "runs": everything}, indent=1))


if __name__ == "__main__":
    main()
