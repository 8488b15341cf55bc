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
LEAST_REPLACED = 0.01
"""Of the eager module's time: a kernel of one's own beside a library that still does all of it is a decoy."""


class Shares(Frozen):
    """Of one call: device time of the candidate's own kernels and of libraries' ones, against the eager module's."""

    own_us: float
    library_us: float
    replaced: float
    """Share of the eager module's device time in kernels that no longer run, or for less time."""

    @property
    def own(self) -> float:
        return self.own_us / max(self.own_us + self.library_us, 1e-9)

    @property
    def says(self) -> str:
        return (
            f"{self.own:.0%} of its device time is in kernels of its own; {self.replaced:.0%} of what eager torch spends is "
            "done by others now"
        )

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
    own = {name for name in candidate if name not in eager and not LIBRARY.search(name)}
    own_us = sum(candidate[name] for name in own)
    total = sum(eager.values())
    saved = sum(max(0.0, spent - candidate.get(name, 0.0)) for name, spent in eager.items())
    return Shares(
        own_us=own_us,
        library_us=sum(candidate.values()) - own_us,
        replaced=saved / total if total else 1.0,
    )
