"""Which other form of a kernel stands beside a base's in one file, and when the host takes it."""

from __future__ import annotations

from pydantic import Field, model_validator

from harness.bands import Measure
from kernels.spec import Frozen, Spec, Workload


class Version(Frozen):
    """Another form of the kernel that a plan puts beside its base's in one file, and when the host is to take it."""

    candidate: str
    """Hash of the source that the other form comes from; it PASSED."""
    dtypes: tuple[str, ...] = Field(min_length=1)
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
        if self.measure is not None:
            said.append(f"{self.measure.words()} {self.sign} {limit or self.limit}")
        return " with ".join(said)

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
        if self.measure is None:
            return True
        size = self.measure.of(spec, workload)
        return size < self.below if self.below is not None else size >= (self.at_least or 0)
