"""Whose kernels did a candidate's work on the GPU: its own or a library's, by the names that a profile shows.

Names of library kernels cannot be made to look otherwise from outside their binaries; a candidate that gives its own
kernel such a name only harms itself. What counts as work is what the eager module spends time on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from kernels.spec import Frozen

LIBRARY = re.compile(
    r"at::native|at::cuda|at_cuda|cublas|cudnn|cutlass|nvjet|_xmma_|xmma_|flash_fwd|fmha|pytorch_flash|sgemm|hgemm|"
    r"flashinfer|sgl_kernel|triton_(poi|red|per|tem|for)_|implicit_convolve|wgrad|dgrad|fft|Memcpy|Memset|^void gemv|splitK"
)
COPY = "Memcpy DtoD"
"""Name of the copy by which the harness takes what a call returns, the eager module's too: what both have of it is
nobody's work."""
STILL = 0.9
"""Share of its time in the eager module from which on a kernel counts as still running: a few microseconds are never
the same twice, and a decoy would have replaced what its neighbours happened to be faster by."""
LEAST_REPLACED = 0.01
"""Share of the eager module's time that a candidate must replace: a kernel of one's own beside a library that still
does all of it is a decoy."""


class Shares(Frozen):
    """Shares of one call: device time of the candidate's own kernels and of libraries' ones, against the eager module's."""

    own_us: float
    library_us: float
    replaced: float
    """Share of the eager module's device time in kernels that no longer run, or run for less time."""

    @property
    def own(self) -> float:
        return self.own_us / max(self.own_us + self.library_us, 1e-9)

    @property
    def says(self) -> str:
        by_others = f"{self.replaced:.0%} of what eager torch spends is done by others now"
        return f"{self.own:.0%} of its device time is in kernels of its own; {by_others}"

    @property
    def fault(self) -> str:
        """Why such a candidate is none, or ""."""
        if not self.own_us:
            return "no kernel of its own ran: libraries did all the work"
        if self.replaced < LEAST_REPLACED:
            return "the kernels that eager torch runs all run still, for as long: its own kernel replaces nothing"
        return ""


def divide(candidate: Mapping[str, float], eager: Mapping[str, float]) -> Shares:
    """From the microseconds by kernel name of one call of each."""
    own_us = sum(spent for name, spent in candidate.items() if name not in eager and not LIBRARY.search(name))
    copied = sum(min(spent, candidate.get(name, 0.0)) for name, spent in eager.items() if name.startswith(COPY))
    saved = 0.0
    for name, spent in eager.items():
        now = candidate.get(name, 0.0)
        saved += spent - now if now < STILL * spent else 0.0
    total = sum(eager.values()) - copied
    library_us = max(0.0, sum(candidate.values()) - own_us - copied)
    return Shares(own_us=own_us, library_us=library_us, replaced=min(1.0, saved / total) if total > 0 else 1.0)
