"""Values of tunables by workload size: where the best ones differ from size to size, and by more than noise.

A split orders workloads by one measure that the host knows at a launch (the bytes of a tensor, or one axis) and gives
each band of it values of its own. Thresholds lie between measured sizes, so sizes that were never measured fall to the
nearer of their neighbours; the outermost bands are open.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence

from pydantic import Field, model_validator

from harness.records import Comparison
from harness.timing import comparison
from kernels.spec import DTYPE_BYTES, Frozen, Size, Spec, Workload

Key = tuple[tuple[str, int], ...]
"""A choice of values, sorted by name."""
Ratios = Sequence[Sequence[float]]
"""case -> (time of the source as it came / time of the variant), one for each block of samples."""
MOST_BANDS = 3
LARGEST_THRESHOLD = 10**9 - 1
"""The largest number that a tunable line can name."""


class Measure(Frozen):
    """How large a workload is, from what its entry point is given: a product of sizes, in bytes of a tensor if it names one."""

    sizes: tuple[str, ...] = Field(min_length=1)
    tensor: str | None = None
    """Name of the tensor whose elements the threshold counts in bytes."""

    def of(self, spec: Spec, workload: Workload) -> int:
        count = math.prod(workload.axes[name] for name in self.sizes)
        if self.tensor is None:
            return count
        tensor = next(t for t in spec.tensors if t.name == self.tensor)
        return count * DTYPE_BYTES[spec.dtype(tensor, workload)]

    def words(self, names: dict[str, str] | None = None) -> str:
        """As an expression of C++, with these names for the arguments where they are called otherwise."""
        said = names or {}
        factors = [said.get(size, size) for size in self.sizes]
        if self.tensor is not None:
            # In front, or a product of two ints would overflow before it is widened.
            factors.insert(0, f"sizeof(*{said.get(self.tensor, self.tensor)})")
        elif len(factors) > 1:
            factors.insert(0, "1LL")
        return " * ".join(factors)


class Band(Frozen):
    """Values for workloads that measure less than `below`; for all that are left where that is None."""

    below: int | None
    values: dict[str, int]
    others: tuple[int, ...] = ()
    """Thresholds in the neighbouring gaps between measured sizes, which a search may move `below` to."""


class Split(Frozen):
    measure: Measure
    bands: tuple[Band, ...] = Field(min_length=2, max_length=MOST_BANDS)

    @model_validator(mode="after")
    def _ascending(self) -> Split:
        below = [band.below for band in self.bands]
        known = [limit for limit in below[:-1] if limit is not None]
        if below[-1] is not None or len(known) != len(below) - 1 or sorted(set(known)) != known:
            raise ValueError("bands must ascend, and the last one must be open")
        return self

    def values(self, spec: Spec, workload: Workload) -> dict[str, int]:
        """The values that this workload gets."""
        size = self.measure.of(spec, workload)
        return next(band.values for band in self.bands if band.below is None or size < band.below)


def measures(spec: Spec) -> tuple[Measure, ...]:
    """Measures by which workloads may be ordered: the bytes of the elements that all sizes span, then each size alone."""
    sizes = tuple(argument.name for argument in spec.arguments if isinstance(argument, Size))
    generic = next((t.name for t in (*spec.outputs, *spec.inputs) if t.dtype == "T"), None)
    if not sizes:
        return ()
    every = Measure(sizes=sizes, tensor=generic)
    return (every, *(Measure(sizes=(name,)) for name in sizes if every != Measure(sizes=(name,))))


def score(ratios: Ratios, cases: Sequence[int] | None = None) -> float:
    """Mean log of (time of the variant / time of the source as it came) over `cases`; the worst one counts twice.

    Numbers that are fast on most workloads and ruin one are of no use to anybody.
    """
    logs = [-math.log(statistics.median(ratios[case])) for case in (range(len(ratios)) if cases is None else cases)]
    return statistics.fmean(logs) + max(0.0, *logs)


def propose(
    spec: Spec, workloads: Sequence[Workload], measured: dict[Key, Ratios], margin: float
) -> tuple[Measure, list[tuple[int, Key]]] | None:
    """The measure and bands (first rank, values) that promise most over one choice for all; None where none does.

    `workloads` are those of the cases. Every band must promise `margin`; whether that was noise is `confirm`'s.
    """
    best, found = min(score(ratios) for ratios in measured.values()), None
    for measure in measures(spec):
        sizes = [measure.of(spec, workload) for workload in workloads]
        ranked = sorted(set(sizes))
        winners: dict[tuple[int, int], tuple[float, Key]] = {}
        for low, high in itertools.combinations(range(len(ranked) + 1), 2):
            cases = [case for case, size in enumerate(sizes) if ranked[low] <= size <= ranked[high - 1]]
            key = min(measured, key=lambda key: score(measured[key], cases))
            winners[low, high] = len(cases) / len(sizes) * score(measured[key], cases), key
        for count in range(2, min(MOST_BANDS, len(ranked)) + 1):
            for cuts in itertools.combinations(range(1, len(ranked)), count - 1):
                ends = list(itertools.pairwise([0, *cuts, len(ranked)]))
                total = sum(winners[pair][0] for pair in ends) + (count - 1) * margin / 2
                keys = [winners[pair][1] for pair in ends]
                if total < best and all(a != b for a, b in itertools.pairwise(keys)):
                    best = total
                    found = measure, [(low, winners[low, high][1]) for low, high in ends]
    return found


def confirm(
    spec: Spec,
    workloads: Sequence[Workload],
    proposal: tuple[Measure, list[tuple[int, Key]]],
    measured: dict[Key, Ratios],
    single: Key,
    margin: float,
) -> Split | None:
    """The proposal's bands that fresh samples call FASTER than `single`, which the others fall back to; None for none."""
    measure, bands = proposal
    sizes = [measure.of(spec, workload) for workload in workloads]
    ranked = sorted(set(sizes))
    starts = [start for start, _ in bands]
    kept: list[tuple[int, Key]] = []
    for start, end, key in zip(starts, [*starts[1:], len(ranked)], [key for _, key in bands], strict=True):
        cases = [case for case, size in enumerate(sizes) if ranked[start] <= size <= ranked[end - 1]]
        chosen = key if key != single and _faster(measured, key, single, cases, margin) else single
        if not kept or kept[-1][1] != chosen:
            kept.append((start, chosen))
    limits = [between(ranked[rank - 1], ranked[rank]) for rank in range(1, len(ranked))]
    cuts = [start for start, _ in kept[1:]]
    if not cuts or max(limits[cut - 1] for cut in cuts) > LARGEST_THRESHOLD:
        return None
    return Split(
        measure=measure,
        bands=tuple(
            Band(below=limits[cut - 1], values=dict(key), others=tuple(_neighbours(limits, cut - 1, cuts)))
            if cut is not None
            else Band(below=None, values=dict(key))
            for cut, (_, key) in zip([*cuts, None], kept, strict=True)
        ),
    )


def _faster(measured: dict[Key, Ratios], key: Key, single: Key, cases: list[int], margin: float) -> bool:
    """Whether `key` is FASTER than `single` over these cases, and SLOWER in none."""
    if key not in measured:
        return False
    pairs = [[a / b for a, b in zip(measured[key][case], measured[single][case], strict=True)] for case in cases]
    if any(comparison.compare(comparison.median_interval(pair), margin) is Comparison.SLOWER for pair in pairs):
        return False
    return comparison.compare(comparison.geometric_mean(pairs), margin) is Comparison.FASTER


def between(low: int, high: int) -> int:
    """A threshold between two measured sizes: near their geometric mean, a power of two or one and a half of it."""
    middle = math.sqrt(low * high)
    power = 2 ** int(math.log2(middle))
    round_numbers = [n for n in (power, power + power // 2, 2 * power) if low < n <= high]
    return min(round_numbers, key=lambda n: abs(math.log(n / middle)), default=max(low + 1, round(middle)))


def _neighbours(limits: list[int], at: int, cuts: list[int]) -> list[int]:
    """Thresholds one measured size down and up, unless another band would be left without a size."""
    taken = {cut - 1 for cut in cuts}
    near = [i for i in (at - 1, at + 1) if 0 <= i < len(limits) and i not in taken]
    return [limits[i] for i in near if limits[i] <= LARGEST_THRESHOLD]
