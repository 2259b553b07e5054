"""Communication and robustness of Table 1's methods on the paper's cluster and on an ideal one, simulated."""

import study

JOB = "experiments/table2/110m.toml"
INPUTS = (JOB, "models/bert-paper-110m.toml", "platforms/paper.toml", "platforms/dgx-a100.toml")
CLUSTERS = {"ideal": {"cluster.name": "dgx-a100:4"}, "paper": {}}  # 32 A100 with NVLink and eight NICs a node; the job's own
# method: the ways to run it, of which the fastest on a cluster is taken. DeepSpeed is two stages of ZeRO, with and without offloading.
OFFLOAD = {"method.offload": "optimizer"}
WAYS = {
    "megatron": [{"method.name": "megatron"}],
    "deepspeed": [{"method.name": stage} | offload for stage in ("zero2", "zero3") for offload in ({}, OFFLOAD)],
    "pipedream": [{"method.name": "pipedream-2bw"}],
    "byteps": [{"method.name": "byteps", "method.servers": servers} for servers in (1, 2, 4)],
    "fedavg": [{"method.name": "fedavg", "method.secure": "true"}],
    "adaptive": [{"method.name": "adaptive"}],
}
ROUND = 12  # steps between two sums of fedavg: its default
SLOW = "node8"  # it has the slowest devices
DISTURBED = {
    "slow rank": lambda rank: {"disturb.stragglers": f"[{{rank={rank},factor=2}}]"},
    "slow link": lambda _: {"disturb.slow_links": f'[{{link="{SLOW}/nic0>fabric",factor=10}},{{link="fabric>{SLOW}/nic0",factor=10}}]'},
}
POLICIES = ("restart", "spare", "shrink", "replica")
# Failures as on Meta's RSC-2, but one an hour on these twelve nodes.
FAULTS = {"faults.model": "rsc2-a100", "faults.rate": 600}
DURATION = "2d"


def step(settings, options):
    """What a step takes and sends."""
    seeds = ("--seeds", options.seeds, "--fidelity", options.fidelity)
    one = study.rehearse("simulate", JOB, *study.sets(settings), *seeds, *study.ALL_STEPS)
    return {
        "settings": settings,
        "mesh": one["mesh"],
        "ranks_on": one["rank_to_device"],
        "step_time_s": study.Sample(one["step_time_s"]["values"]),
        "samples_per_s": one["samples_per_s"],
        "exposed_s": one["exposed_comm_s"],
        "bytes_per_sample": one["bytes_per_step_total"] / one["global_batch"],
        "global_batch": one["global_batch"],
    }


def secured(one, settings, options):
    """A step of fedavg of which all counts as communication that takes longer than the local steps: the masks too."""
    clear = step(settings | {"method.secure": "false"}, options)
    return one | {"exposed_s": clear["exposed_s"] + one["step_time_s"].mean - clear["step_time_s"].mean}


def run(method, settings, options, name):
    """A step of a method on a cluster that may be disturbed; adaptive makes a plan for just this cluster."""
    if method == "adaptive":
        keep = {key: value for key, value in settings.items() if not key.startswith("method.")}
        plan = options.output / "plans" / f"{name.replace(' ', '-')}.toml"
        return step(keep | study.planned(JOB, plan, settings), options)
    one = step(settings, options)
    return secured(one, settings, options) if method == "fedavg" else one


def goodput(settings):
    """{policy: part of the time that is productive}, of the policies that the method can have."""
    found = {}
    for policy in POLICIES:
        keys = settings | FAULTS | {"recovery.policy": policy}
        try:
            one = study.rehearse("simulate", JOB, *study.sets(keys), "--duration", DURATION, "--fidelity", "analytic")
        except study.Refused:
            continue
        found[policy] = study.Sample(one["goodput"]["values"])
    return found


def row(method, options):
    found = {"method": method, "clusters": {}}
    for name, cluster in CLUSTERS.items():
        ways = [run(method, way | cluster, options, name) for way in WAYS[method]]
        found["clusters"][name] = max(ways, key=lambda one: one["samples_per_s"])
    best = found["clusters"]["paper"]
    chosen = {"method.name": "adaptive"} if method == "adaptive" else best["settings"]
    rank = next(i for i, device in enumerate(best["ranks_on"]) if device == f"{SLOW}/gpu2")
    found["slowdown"] = {
        what: run(method, chosen | keys(rank), options, what)["step_time_s"].mean / best["step_time_s"].mean
        for what, keys in DISTURBED.items()
    }
    found["goodput"] = goodput(chosen)
    for one in found["clusters"].values():
        del one["ranks_on"]
    return found


def rows(options):
    return study.in_parallel(lambda method: row(method, options), list(WAYS))


def secrecy(options):
    """Seconds of a step of fedavg on the paper's cluster, by what hides the weights of a client."""
    ways = {"all neighbours": {}, "8 neighbours": {"method.neighbours": 8}, "in the clear": {"method.secure": "false"}}
    return {way: step(WAYS["fedavg"][0] | keys, options)["step_time_s"].mean for way, keys in ways.items()}


def left_clients():
    """A real secure round of the paper's 31 clients, two of which leave in its midst."""
    given = ("--set", "method.name=fedavg", "--run", "--elements", 10_000, "--drop", 5, "--drop", "7:unmask", "--fidelity", "analytic")
    one = study.rehearse("aggregate", JOB, *given)
    return {"clients": one["clients"], "left": len(one["dropped"]), "in_the_sum": one["run"]["clients_in_the_sum"],
            "exact": one["run"]["sum_is_exact"]}  # fmt: skip
