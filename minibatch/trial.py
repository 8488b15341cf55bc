"""Whether an epoch becomes faster where the best of a run takes a kernel's place."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from harness.comparison import MARGIN, compare, median_interval
from harness.records import Comparison, Interval
from minibatch import training
from minibatch.resident import Trainer

PAIRS = 11
"""Epochs of each side: so many that the 99 % interval of the median leaves out the two outermost ratios."""


@dataclass
class Trial:
    """Epochs with the baselines against epochs with the swapped kernels, in turn."""

    kernels: tuple[str, ...]
    speedup: Interval
    comparison: Comparison
    base_s: float
    swapped_s: float
    """Medians."""
    base_accuracy: float
    swapped_accuracy: float


def run(
    make: Callable[[Mapping[str, str]], Trainer],
    sources: Mapping[str, str],
    seed: int,
    pairs: int = PAIRS,
    say: training.Say = lambda _done, _total: None,
) -> Trial:
    """make: sources -> a trainer that is not prepared, with the same first weights each time."""
    sides = {"base": make({}), "swapped": make(sources)}
    graph = sides["base"].graph
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for trainer in sides.values():
        trainer.prepare()
        trainer.epoch(training.order(graph, seed, 0).to(graph.col.device), 0)  # not timed: the first is slower
    for number in range(1, pairs + 1):
        ids = training.order(graph, seed, number).to(graph.col.device)
        for name in random.sample(list(sides), 2):
            seconds[name].append(sides[name].epoch(ids, number).seconds)
        say(number, pairs)
    ratios = [base / swapped for base, swapped in zip(seconds["base"], seconds["swapped"], strict=True)]
    speedup = median_interval(ratios)
    accuracy = {
        name: trainer.accuracy(graph.valid, trainer.sampler.fanouts, trainer.sampler.batch)
        for name, trainer in sides.items()
    }
    return Trial(
        kernels=tuple(sources),
        speedup=speedup,
        comparison=compare(speedup, MARGIN[graph.col.device.type]),
        base_s=median_interval(seconds["base"]).median,
        swapped_s=median_interval(seconds["swapped"]).median,
        base_accuracy=accuracy["base"],
        swapped_accuracy=accuracy["swapped"],
    )
