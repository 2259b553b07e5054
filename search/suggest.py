#!/usr/bin/env python3
"""Chooses the points of a sweep that are worth computing next, from those whose figures are known. `rehearse sweep --search` runs it.

Usage: search/suggest.py STATE.json

STATE.json: `axes`, the number of `values` of each axis, and whether they are `ordered`; `points`, the place on each axis of every point
that can be asked for; `most`, for each figure, whether the largest is the best; `known`: of points by their place in `points` the
figures, null for one that cannot run; `budget`, how many points may be known in the end. Prints the places of unknown points, as JSON.

The optimiser is NSGA-II (Deb et al. 2002) of Optuna: generations of points, each made of the best so far by crossing and changing their
values. It is run again from its first generation each time, with the figures that are known, up to the first points that are not.
So nothing but the figures is kept, and equal figures lead to equal points. Points that cannot run, and combinations that the sweep
excludes, are violated constraints.
"""

import json
import math
import random
import sys

try:
    import optuna
except ImportError as missing:
    print(f"search/suggest.py: needs the Python package optuna ({missing}); tools/python has it", file=sys.stderr)
    sys.exit(2)

optuna.logging.set_verbosity(optuna.logging.ERROR)

SEED = 1
STALE = 10  # generations after the last new point, after which points are drawn


def distribution(axis):
    if axis["ordered"]:
        return optuna.distributions.IntDistribution(0, axis["values"] - 1)
    return optuna.distributions.CategoricalDistribution(range(axis["values"]))


def population(budget):
    """Points of a generation. Small ones have more generations."""
    return max(10, min(50, math.isqrt(budget)))


def differ_by_one(a, b):
    return sum(x != y for x, y in zip(a, b, strict=True)) == 1


def drawn(state, figures, best, count):
    """`count` unknown points in a random order, first those that differ from one of the best in the value of one axis."""
    unknown = [at for at in range(len(state["points"])) if at not in figures]
    random.Random(SEED + len(figures)).shuffle(unknown)
    near = [at for at in unknown if any(differ_by_one(state["points"][at], point) for point in best)]
    return list(dict.fromkeys(near + unknown))[:count]


def suggest(state):
    """Places of unknown points, at most as many as a generation has and as the budget leaves: those of the first generation that has
    some, and others; empty at the end."""
    figures = {one["point"]: one["figures"] for one in state["known"]}
    size = population(state["budget"])
    left = min(size, state["budget"] - len(figures), len(state["points"]) - len(figures))
    if left <= 0:
        return []
    place = {tuple(point): at for at, point in enumerate(state["points"])}
    distributions = {str(number): distribution(axis) for number, axis in enumerate(state["axes"])}
    study = optuna.create_study(
        directions=["maximize" if most else "minimize" for most in state["most"]],
        sampler=optuna.samplers.NSGAIISampler(seed=SEED, population_size=size),
    )
    seen, stale, unknown = set(), 0, {}
    while stale < STALE:
        trials = [study.ask(distributions) for _ in range(size)]
        points = [place.get(tuple(trial.params.values())) for trial in trials]
        unknown = dict.fromkeys(point for point in points if point is not None and point not in figures)
        if unknown:
            break
        stale = stale + 1 if seen.issuperset(points) else 0
        seen.update(points)
        for trial, point in zip(trials, points, strict=True):
            found = figures.get(point)
            trial.set_constraint("cannot run", 0.0 if found else 1.0)
            study.tell(trial, found or [0.0] * len(state["most"]))
    best = [tuple(trial.params.values()) for trial in study.best_trials]
    return list(dict.fromkeys([*unknown, *drawn(state, figures, best, size)]))[:left]


def main():
    with open(sys.argv[1]) as file:
        state = json.load(file)
    print(json.dumps(suggest(state)))


if __name__ == "__main__":
    main()
