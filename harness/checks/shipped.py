"""What a kernel's own baseline errs by where its arithmetic is of 16 bits in between: a candidate may err by as much, never by more.

Engines add in half, or store a sum as bfloat16 before the next operator. A reference in fp64 that does not say so calls that wrong. What rounding
every operator's result to the workload's dtype makes of the reference is the measure: a baseline that is off by more than MOST of it in one element,
or by more than TYPICAL of its usual size in all of them, is broken.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from harness.checks.cases import Case
from harness.checks.expected import UNIT_ROUNDOFF, Right
from harness.checks.noise import DOUBT_DRAWS, round_between
from harness.checks.tolerance import call_of
from kernels.catalog import Kernel

if TYPE_CHECKING:
    import torch

DTYPES = ("float16", "bfloat16")
MOST = 2.5
"""The share that may be seen at most, and allowed at most."""
MARGIN, SPREAD = 1.5, 8.0
"""Other inputs show other errors: what is allowed is MARGIN times the largest that was seen, and at least SPREAD times the root of their mean square.
Of 768 elements the largest was 3.1 to 7.4 times that (sums of 8 and 64, five distributions, 15 draws each); by MARGIN alone two of
24 honest verdicts were refused."""
TYPICAL, UNUSUAL, FEW = 1.5, 6.0, 16
"""Root mean square over all elements of the error, each in units of its usual one: of sums of eight in bfloat16 0.4 where they round to nearest, 2.1
where every one of them is 2 % too large, which no single element gives away. One element counts as UNUSUAL units at most; fewer than FEW say nothing."""


class Share(NamedTuple):
    """An error beyond the tolerance, in units of what rounding between operators makes of the element."""

    seen: float
    """The largest; inf where such rounding does not explain it."""
    reach: float
    """What other inputs may show."""

    def larger(self, other: Share) -> Share:
        return Share(max(self.seen, other.seen), max(self.reach, other.reach))


NO_SHARE = Share(0.0, 0.0)


def shares(kernel: Kernel, case: Case, outputs: dict[str, torch.Tensor]) -> dict[str, Share]:
    """By output. outputs: of one call of the baseline, by name, each in its own dtype."""
    import torch

    assert isinstance(case.expected, Right)
    exact = {name: one.value for name, one in case.expected.items()}
    noise: dict[str, torch.Tensor] = {}
    usual: dict[str, torch.Tensor] = {}
    found = {}
    for name, right in case.expected.items():
        got = outputs[name].to(torch.float64)
        same = (got == right.value) | (got.isnan() & right.value.isnan())
        beyond = ((got - right.value).abs() - right.tolerance).masked_fill(same, 0.0)
        integer = str(outputs[name].dtype).removeprefix("torch.") not in UNIT_ROUNDOFF
        if not bool((beyond > 0).any() | beyond.isnan().any()):
            found[name] = NO_SHARE
            continue
        if integer:
            found[name] = Share(math.inf, math.inf)
            continue
        if not noise:
            noise, usual = round_between(call_of(kernel, case.workload), case.inputs, exact, DOUBT_DRAWS)
        share = torch.where(beyond > 0, beyond / noise[name], beyond.clamp_max(0.0))
        seen = float(share.nan_to_num(nan=math.inf).max())
        rounded = usual[name] > 0
        units = ((got - right.value).masked_fill(same, 0.0).abs() / usual[name])[rounded].clamp_max(UNUSUAL)
        if len(units) < FEW:
            found[name] = Share(seen, MARGIN * seen)
            continue
        deviation = float(units.square().mean().sqrt())
        spread = ((SPREAD * deviation * usual[name] - right.tolerance) / noise[name])[rounded].median()
        found[name] = Share(math.inf if deviation > TYPICAL else seen, max(MARGIN * seen, float(spread)))
    return found


def allow_errors(found: dict[str, Share]) -> tuple[tuple[str, float], ...]:
    """What candidates may err by, of the largest shares over all cases; () where nothing is to be allowed, or rounding explains it not."""
    if max((share.seen for share in found.values()), default=0.0) > MOST:
        return ()
    return tuple((name, min(MOST, share.reach)) for name, share in found.items() if share.seen)


HEADING = "errors allowed"
"""Of what a report says of how it was measured: the same shares, for a package's tests."""


def write(allowed: tuple[tuple[str, float], ...]) -> str:
    return ", ".join(f"{name}: {share!r}" for name, share in allowed)


def read(measured: dict[str, str]) -> tuple[tuple[str, float], ...]:
    """The shares that a report's words hold; () where it says of none."""
    pairs = (one.partition(": ") for one in measured.get(HEADING, "").split(", ") if one)
    return tuple((name, float(share)) for name, _, share in pairs)
