"""Faults at stated times: reads "node1@30s..40s" and the like, and applies them to a bed when they are due.

down       NODE@BEGIN..END            the node's cable is unplugged; without END for good
loss       NODE=SHARE[@BEGIN..END]    this share of the packets that reach the node is lost; without times always
partition  NODE,NODE@BEGIN..END       these nodes and the others do not reach each other
"""

import dataclasses

from testbed import platform

KINDS = ("down", "loss", "partition")


@dataclasses.dataclass(frozen=True)
class Change:
    """Something that happens to the network at a time; times are seconds from the start of the ranks."""

    at: float
    text: str  # what happens, for people and for the log
    apply: object  # function of the bed
    filters: bool = False  # whether it needs packet filters


def span(text):
    """(begin, end or None) of "30s..40s" or "30s"."""
    begin, dots, end = text.partition("..")
    begin, end = platform.seconds_of(begin), platform.seconds_of(end) if dots else None
    if end is not None and end <= begin:
        raise platform.Unfit(f'"{text}": ends before it begins')
    return begin, end


def share_of(text):
    share = platform.quantity(text, {"%": 0.01})
    if not 0 <= share <= 1:
        raise platform.Unfit(f'"{text}": between 0% and 100% are expected')
    return share


def known(names, nodes):
    for name in names:
        if name not in nodes:
            raise platform.Unfit(f'"{name}": the nodes are {", ".join(nodes)}')
    return names


def changes(kind, text, nodes):
    """The changes of one fault. `nodes`: the names of all nodes. Raises platform.Unfit for a text that says none."""
    subject, at, when = text.partition("@")
    if kind != "loss" and not at:
        raise platform.Unfit(f'--{kind} {text}: when? for example "{subject}@30s..40s"')
    begin, end = span(when) if at else (0, None)
    if kind == "down":
        [name] = known([subject], nodes)
        found = [Change(begin, f"{name} down", lambda bed: bed.down(name)), Change(end, f"{name} up", lambda bed: bed.up(name))]
    elif kind == "loss":
        name, equals, share = subject.partition("=")
        if not equals:
            raise platform.Unfit(f'--loss {text}: how much? for example "{name}=1%"')
        known([name], nodes)
        part = share_of(share)
        found = [
            Change(begin, f"{name} loses {share}", lambda bed: bed.lose(name, part), True),
            Change(end, f"{name} loses nothing", lambda bed: bed.lose(name, 0), True),
        ]
    else:
        group = known(subject.split(","), nodes)
        if len(set(group)) == len(nodes):
            raise platform.Unfit(f"--partition {text}: from whom? it names every node")
        found = [
            Change(begin, f"{subject} cut off", lambda bed: bed.part(group), True),
            Change(end, f"{subject} back", lambda bed: bed.part([]), True),
        ]
    return [one for one in found if one.at is not None]
