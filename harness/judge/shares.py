"""Whose kernels did a candidate's work on the GPU: its own or a library's, by the names that a profile shows.

Names of library kernels cannot be made to look otherwise from outside their binaries; a candidate that gives its own
kernel such a name only harms itself. What counts as work is what the eager module spends time on. Where a library does by
another of its kernels what one of its kernels did before, that is the library's work: own kernels have of it what their time is
of both.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from kernels.spec import Frozen

LIBRARY = re.compile(
    r"at::native|at::cuda|at_cuda|cublas|cudnn|cutlass|nvjet|_xmma_|xmma_|flash_fwd|fmha|pytorch_flash|sgemm|hgemm|"
    r"flashinfer|sgl_kernel|triton_(poi|red|per|tem|for)_|implicit_convolve|wgrad|dgrad|fft|Memcpy|Memset|^void gemv|splitK"
)
PRODUCTS = re.compile(
    r"gemm|gemv|cublas|cudnn|cutlass|nvjet|xmma|convol|wgrad|dgrad|fprop|winograd|splitK|flash|fmha|attention",
    re.IGNORECASE,
)
"""Names of kernels that do matrix products, convolutions and attention; all others move and map elements."""
MOVES = re.compile(r"copy|Fill|Memset|Memcpy|CatArray|nchwToNhwc|nhwcToNchw|transpose", re.IGNORECASE)
"""Names of kernels that only move or set elements: they do nobody's work."""
COPY = "Memcpy DtoD"
"""Name of the copy by which the harness takes what a call returns, the eager module's too: what both have of it is
nobody's work."""
STILL = 0.9
"""Share of its time in the eager module from which on a kernel counts as still running: a few microseconds are never
the same twice, and a decoy would have replaced what its neighbours happened to be faster by."""
LEAST_REPLACED = 0.01
"""Share of the eager module's time that a candidate's own kernels must replace: one of its own beside a library that still
does all of it is a decoy."""
LAUNCH_US = 2.0
"""Microseconds that a kernel takes that does nothing: so much of its own is no share of matrix products."""
GAINED = 1.01
"""Ratio of the eager module's time to a candidate's from which on there is a gain."""


class Shares(Frozen):
    """Shares of one call: device time of the candidate's own kernels and of libraries' ones, against the eager module's."""

    own_us: float
    library_us: float
    eager_us: float
    replaced: float
    """Share of the eager module's device time in kernels that no longer run, or run for less time."""
    by_own: float
    """The part of it that own kernels do now."""
    gained_by_libraries_us: float
    """Time that libraries save by doing the same by other kernels of theirs."""

    @property
    def own(self) -> float:
        return self.own_us / max(self.own_us + self.library_us, 1e-9)

    @property
    def says(self) -> str:
        by_others = f"{self.replaced:.0%} of what eager torch spends is done by others now"
        swapped = f", {self.by_own:.0%} by its own kernels" if self.by_own < self.replaced else ""
        return f"{self.own:.0%} of its device time is in kernels of its own; {by_others}{swapped}"

    @property
    def fault(self) -> str:
        """Why such a candidate is none, or ""."""
        if not self.own_us:
            return "no kernel of its own ran: libraries did all the work"
        if self.replaced < LEAST_REPLACED:
            return "the kernels that eager torch runs all run still, for as long: its own kernel replaces nothing"
        if self.by_own < LEAST_REPLACED:
            return "what eager torch runs is done by other kernels of libraries: its own kernel replaces nothing"
        return ""

    @property
    def doubt(self) -> str:
        """Why a gain is not the candidate's own, or ""."""
        taken = self.own_us + self.library_us
        if self.gained_by_libraries_us <= 0 or self.eager_us > GAINED * (taken + self.gained_by_libraries_us):
            return ""
        return (
            f"a library did the work: of {self.eager_us:.1f} us it saves {self.gained_by_libraries_us:.1f} us by other kernels of its own, "
            f"without which the candidate would gain nothing ({self.says})"
        )


def by_library(name: str) -> bool:
    """Whether a kernel of that name does a library's work, more than to move elements."""
    return bool(LIBRARY.search(name)) and not MOVES.search(name)


def divide(candidate: Mapping[str, float], eager: Mapping[str, float]) -> Shares:
    """From the microseconds by kernel name of one call of each."""
    own_us = sum(spent for name, spent in candidate.items() if name not in eager and not LIBRARY.search(name))
    copied = sum(min(spent, candidate.get(name, 0.0)) for name, spent in eager.items() if name.startswith(COPY))
    total = sum(eager.values()) - copied
    replaced = by_own = gained = 0.0
    for products in (False, True):
        gone = new = 0.0
        for name, spent in eager.items():
            now = candidate.get(name, 0.0)
            gone += spent - now if now < STILL * spent and bool(PRODUCTS.search(name)) is products else 0.0
        for name, spent in candidate.items():
            swapped = name not in eager and by_library(name)
            new += spent if swapped and bool(PRODUCTS.search(name)) is products else 0.0
        worked_us = max(0.0, own_us - LAUNCH_US) if products else own_us
        mine = gone * worked_us / (worked_us + new) if new else gone
        replaced, by_own = replaced + gone, by_own + mine
        gained += max(0.0, gone - mine - new) if new else 0.0
    # What is moved for another kernel's sake is what that one costs.
    moved = sum(
        us for name, us in candidate.items() if name not in eager and LIBRARY.search(name) and MOVES.search(name)
    )
    library_us = max(0.0, sum(candidate.values()) - own_us - copied)
    share = (lambda part: min(1.0, part / total)) if total > 0 else (lambda part: 1.0)
    return Shares(
        own_us=own_us, library_us=library_us, eager_us=max(0.0, total), replaced=share(replaced), by_own=share(by_own),
        gained_by_libraries_us=max(0.0, gained - moved),
    )  # fmt: skip
