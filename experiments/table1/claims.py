"""How the measured numbers compare with the words of Table 1 of Sun 2026. Every sentence is made from the rows."""

import paper


def named(rows):
    return {row["method"]: row for row in rows}


def right_about_the_reader(found):
    """{method: chance}: that an observer who names a word is right about which rank has read it. A sum of more clients than were trained
    counts as the largest that was."""
    by_size = {one["sum_of"]: one["read_by_it"] for one in found["observer"]}
    return {row["method"]: by_size[max(size for size in by_size if size <= row["seen"]["sum_of"])] for row in found["rows"]}


def exposed(found, cluster):
    parts = {}
    for row in found["rows"]:
        one = row["clusters"][cluster]
        parts[row["method"]] = one["exposed_s"] / one["step_time_s"].mean
    return parts


def best_goodput(found):
    return {row["method"]: max(one.mean for one in row["goodput"].values()) for row in found["rows"]}


def measures(found):
    """[(column, what, {method: number}, whether more is better)]"""
    rows = found["rows"]
    sent = {row["method"]: row["clusters"]["paper"]["bytes_per_sample"] for row in rows}
    slow = [(paper.ROBUSTNESS, what, {row["method"]: row["slowdown"][what] for row in rows}, False) for what in rows[0]["slowdown"]]
    return [
        (paper.PRIVACY, "right about the reader", right_about_the_reader(found), False),
        (paper.COMMUNICATION, "exposed on the ideal cluster", exposed(found, "ideal"), False),
        (paper.COMMUNICATION, "exposed on the paper's cluster", exposed(found, "paper"), False),
        (paper.COMMUNICATION, "bytes a sample", sent, False),
        (paper.ROBUSTNESS, "goodput under the best policy", best_goodput(found), True),
        *slow,
    ]


def orders(found, column):
    """How many of the pairs that the paper's words order, each measure orders so too."""
    said = []
    for of, what, values, more_is_better in measures(found):
        if of == column:
            agree, pairs = paper.agreement(column, values, more_is_better)
            said.append(f"{what} {agree} of {pairs}")
    return "Pairs of methods that the paper's words order, and the numbers order alike: " + "; ".join(said) + "."


def privacy(found):
    one, most = found["observer"][0], found["observer"][-1]
    text = f"The sum of {most['sum_of']} clients names {most['named']:,.0f} words and misses {most['missed'] or 'none'} that a client has"
    text += f" read. So a secure sum hides who has read a word (right {most['read_by_it']:.0%} of the time, {one['read_by_it']:.0%} with a"
    return text + " client's own update), and not that it was read: for this, noise would have to be added."


def megatron(found):
    ideal, real = exposed(found, "ideal")["megatron"], exposed(found, "paper")["megatron"]
    text = f"Of Megatron-LM's step {ideal:.1%} are exposed communication on the ideal cluster and {real:.1%} on the paper's"
    return text + (': its "ideal clusters" is reproduced.' if ideal < real / 2 else ': its "ideal clusters" is not reproduced.')


def offloading(found):
    row = named(found["rows"])["deepspeed"]["clusters"]["paper"]
    text = "The fastest DeepSpeed on the paper's cluster is " + row["settings"]["method.name"]
    return text + (" with offloading." if "method.offload" in row["settings"] else " without offloading.")


def fedavg(found):
    rows = named(found["rows"])
    least = min(rows, key=lambda method: rows[method]["clusters"]["paper"]["bytes_per_sample"])
    sent = rows["fedavg"]["clusters"]["paper"]["bytes_per_sample"] / 1e6
    step = found["secrecy"]
    text = f"It sends {sent:.1f} MB a sample, {'the least' if least == 'fedavg' else 'not the least'} of all; but"
    text += f" {exposed(found, 'paper')['fedavg']:.0%} of its time is the secure sum. A step takes {step['all neighbours']:.2f} s,"
    text += f" {step['8 neighbours']:.2f} s if each client shares masks with eight others instead of all, and"
    return text + f" {step['in the clear']:.2f} s without masks, in the clear."


def failures(found):
    best = best_goodput(found)
    policies = [one.mean for row in found["rows"] for one in row["goodput"].values()]
    text = f"Under its best policy each method is productive for {min(best.values()):.1%} to {max(best.values()):.1%} of the time; over"
    return text + f" all policies, for {min(policies):.1%} to {max(policies):.1%}. How a run recovers decides more than the method."


def unlike_devices(found):
    rows = named(found["rows"])
    ours = rows["adaptive"]
    step = ours["clusters"]["paper"]["step_time_s"].mean
    text = f"Adaptive, which plans for them, loses {ours['slowdown']['slow rank'] - 1:.0%} to a slow rank; the others"
    others = [row["slowdown"]["slow rank"] - 1 for method, row in rows.items() if method != "adaptive"]
    text += f" {min(others):.0%} to {max(others):.0%}. A slow link costs it {ours['slowdown']['slow link'] - 1:.0%}, and then its step of"
    slow = {method: row["slowdown"]["slow link"] * row["clusters"]["paper"]["step_time_s"].mean for method, row in rows.items()}
    place = sorted(slow, key=slow.get).index("adaptive")
    return text + f" {slow['adaptive']:.2f} s ({step:.2f} s undisturbed) is {'still the shortest' if place == 0 else 'not the shortest'}."


def verdicts(found):
    """[(claim, sentence)]"""
    return [
        ("Privacy", orders(found, paper.PRIVACY)),
        ("What a secure sum hides", privacy(found)),
        ("Communication efficiency", orders(found, paper.COMMUNICATION)),
        ("High (ideal clusters)", megatron(found)),
        ("High (with offloading)", offloading(found)),
        ("FedAvg, low", fedavg(found)),
        ("Robustness", orders(found, paper.ROBUSTNESS)),
        ("Failures", failures(found)),
        ("Slow devices and links", unlike_devices(found)),
    ]
