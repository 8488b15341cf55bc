"""Whether an epoch becomes faster where the best of a run takes a kernel's place."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

from harness.records import EpochGain
from harness.timing.comparison import MARGIN, compare, median_interval
from minibatch import audit, training
from minibatch.graphs import GraphError
from minibatch.resident import Trainer

PAIRS = 11
"""Epochs of each side: so many that the 99 % interval of the median leaves out the two outermost ratios."""


EDGES_APART = 0.02
"""Share by which the two sides' sampled edges may differ: an epoch's number of them varies by less than 0.1 %."""


def run(
    make: Callable[[Mapping[str, str]], Trainer],
    sources: Mapping[str, str],
    seed: int,
    pairs: int = PAIRS,
    say: training.Say = lambda _done, _total: None,
) -> EpochGain:
    """make: sources -> a trainer that is not prepared, with the same first weights each time.

    Raises GraphError where a side samples what no epoch may (audit.py), or another amount than the other side.
    """
    sides = {"base": make({}), "swapped": make(sources)}
    graph = sides["base"].graph
    records: dict[str, list[Any]] = {name: [] for name in sides}
    for name, trainer in sides.items():
        trainer.prepare()
        if said := audit.of_variant(trainer):
            raise GraphError(f"epochs with {_of(name, sources)} are not timed: {said}")
        trainer.epoch(training.order(graph, seed, 0).to(graph.col.device), 0)  # not timed: the first is slower
    for number in range(1, pairs + 1):
        ids = training.order(graph, seed, number).to(graph.col.device)
        for name in random.sample(list(sides), 2):
            records[name].append(sides[name].epoch(ids, number))
        say(number, pairs)
    edges = {name: sum(record.edges for record in made) for name, made in records.items()}
    if abs(edges["swapped"] / edges["base"] - 1) > EDGES_APART:
        raise GraphError(
            f"epochs with {_of('swapped', sources)} are not compared: {edges['swapped'] // pairs:,} edges were sampled in one, "
            f"{edges['base'] // pairs:,} in one with the baselines"
        )
    seconds = {name: [record.seconds for record in made] for name, made in records.items()}
    speedup = median_interval([a / b for a, b in zip(seconds["base"], seconds["swapped"], strict=True)])
    accuracy = {name: trainer.accuracy(graph.valid, trainer.sampler.fanouts) for name, trainer in sides.items()}
    return EpochGain(
        kernels=tuple(sources),
        nodes=graph.nodes,
        edges=edges["base"] // pairs,
        pairs=pairs,
        speedup=speedup,
        comparison=compare(speedup, MARGIN[graph.col.device.type]),
        baseline_s=median_interval(seconds["base"]).median,
        time_s=median_interval(seconds["swapped"]).median,
        baseline_accuracy=accuracy["base"],
        accuracy=accuracy["swapped"],
    )


def _of(side: str, sources: Mapping[str, str]) -> str:
    return f"this {' and '.join(sources)}" if side == "swapped" else "the baselines"
