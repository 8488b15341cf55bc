"""Which other form of a kernel stands beside a base's in one file, and when the host takes it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from pydantic import Field, model_validator

from harness.judge.bands import LARGEST_THRESHOLD, Measure, between, measures
from kernels.spec import Frozen, Spec, Workload


class Uneven(Frozen):
    """Workloads of which a size does not divide by a number: rows that packs do not fit."""

    size: str
    by: int = Field(gt=1)

    def words(self, names: dict[str, str]) -> str:
        return f"{names.get(self.size, self.size)} % {self.by} != 0"


class Version(Frozen):
    """Another form of the kernel that a plan puts beside its base's in one file, and when the host is to take it."""

    candidate: str
    """Hash of the source that the other form comes from; it PASSED."""
    dtypes: tuple[str, ...] = Field(min_length=1)
    uneven: Uneven | None = None
    """The other form serves such sizes alone."""
    measure: Measure | None = None
    """Which size is compared with `below` or `at_least`; without it the other form serves all sizes of those dtypes."""
    below: int | None = None
    at_least: int | None = None
    others: tuple[int, ...] = ()
    """Thresholds in the neighbouring gaps between measured sizes, which a search may move to."""

    @model_validator(mode="after")
    def _one_side(self) -> Version:
        if (self.below is not None) + (self.at_least is not None) != (self.measure is not None):
            raise ValueError("a measure goes with one of below and at_least, and neither without one")
        return self

    def said(self, spec: Spec, limit: str = "") -> str:
        """For what the other form is, as C++ compares it; `limit` is the threshold's name."""
        said = [] if set(self.dtypes) == set(spec.dtypes) else [", ".join(self.dtypes)]
        return " with ".join([*said, *filter(None, [self.condition({}, limit)])])

    def condition(self, names: dict[str, str], limit: str = "") -> str:
        """Of the sizes, as an expression of C++ over the arguments of these names; "" where the data type decides alone."""
        said = [self.uneven.words(names)] if self.uneven is not None else []
        if self.measure is not None:
            said.append(f"{self.measure.words(names)} {self.sign} {limit or self.limit}")
        return " && ".join(said)

    @property
    def asked(self) -> set[str]:
        """The arguments that the condition names."""
        found = {self.uneven.size} if self.uneven is not None else set()
        if self.measure is not None:
            found |= {*self.measure.sizes, *([self.measure.tensor] if self.measure.tensor else [])}
        return found

    @property
    def limit(self) -> int | None:
        return self.below if self.below is not None else self.at_least

    @property
    def sign(self) -> str:
        return "<" if self.below is not None else ">="

    def takes(self, spec: Spec, workload: Workload) -> bool:
        """Whether the host would call the other form for this workload."""
        if workload.dtype not in self.dtypes:
            return False
        if self.uneven is not None and workload.axes[self.uneven.size] % self.uneven.by == 0:
            return False
        if self.measure is None:
            return True
        size = self.measure.of(spec, workload)
        return size < self.below if self.below is not None else size >= (self.at_least or 0)


def choices(spec: Spec, workloads: Sequence[Workload]) -> Iterator[tuple[Version, int]]:
    """What a host can go by, and how narrow that is: a size, a data type, both. Nothing that takes all or none."""
    dtypes = list(dict.fromkeys(workload.dtype for workload in workloads))
    subsets = [tuple(spec.dtypes), *((dtype,) for dtype in dtypes if len(dtypes) > 1)]
    for subset in subsets:
        narrowed = 2 * (subset != tuple(spec.dtypes))
        if narrowed:
            yield Version(candidate="", dtypes=subset), narrowed
        mine = [workload for workload in workloads if workload.dtype in subset]
        for measure in measures(spec):
            ranked = sorted({measure.of(spec, workload) for workload in mine})
            limits = [between(low, high) for low, high in itertools.pairwise(ranked)]
            limits = [limit for limit in limits if limit <= LARGEST_THRESHOLD]
            for at in range(len(limits)):
                for side in ("below", "at_least"):
                    yield _version(subset, measure, limits, at, side), 1 + narrowed


def _version(dtypes: tuple[str, ...], measure: Measure, limits: list[int], at: int, side: str) -> Version:
    near = [limits[i] for i in (at - 1, at + 1) if 0 <= i < len(limits)]
    return Version(candidate="", dtypes=dtypes, measure=measure, others=tuple(near), **{side: limits[at]})
