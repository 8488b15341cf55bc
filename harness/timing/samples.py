"""Every sample of every timing, kept beside the verdicts and written out as CSV: for whoever doubts an interval."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Iterable

from harness.records import Cache, TimingContext
from harness.store import Store, digest
from kernels.spec import Frozen, Workload


class Samples(Frozen):
    """Samples of one candidate on one workload in one cache state and timing context: side -> seconds a call, one for each block.

    The sides of one block were timed in turn: `baseline`, `incumbent` where there was one, `candidate`, and `pair`, the
    producer and the consumer by themselves, whose time is in the others' too.
    """

    workload: Workload
    cache: Cache
    company: TimingContext
    seconds: dict[str, tuple[float, ...]]

    def net_us(self, side: str) -> float | None:
        """Median of that side, its neighbours' own median taken off, in microseconds; None where nothing is left."""
        if not self.seconds.get(side):
            return None
        pair = self.seconds.get("pair", ())
        net = statistics.median(self.seconds[side]) - (statistics.median(pair) if pair else 0.0)
        return net * 1e6 if net > 0 else None


def _key(candidate: str, workload: Workload, cache: str, company: str) -> str:
    return digest("samples", candidate, workload.label, str(workload.held_out), cache, company)


def save(store: Store, candidate: str, samples: Samples) -> None:
    """The last measurement of that candidate, workload and state; there is one, unless the machine was changed."""
    store.keep("samples", _key(candidate, samples.workload, samples.cache, samples.company), samples)


def load(store: Store, candidate: str, workload: Workload, cache: str, company: str) -> Samples | None:
    return store.find_record("samples", _key(candidate, workload, cache, company), Samples)


def as_csv(every: Iterable[Samples]) -> str:
    """One line a sample: sizes, dtype, cache, company, held_out, side, block, microseconds a call."""
    every = list(every)
    axes = list(dict.fromkeys(axis for samples in every for axis in samples.workload.axes))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*axes, "dtype", "cache", "company", "held_out", "side", "block", "us"])
    for samples in every:
        workload = samples.workload
        place = [*(workload.axes.get(axis, "") for axis in axes), workload.dtype, samples.cache, samples.company]
        for side, seconds in samples.seconds.items():
            for block, value in enumerate(seconds):
                writer.writerow([*place, int(workload.held_out), side, block, f"{value * 1e6:.6g}"])
    return out.getvalue()
