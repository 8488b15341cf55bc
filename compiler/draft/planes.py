"""CUDA for convolutions as products on halves' tensor cores, with operands of TF32's precision: the input in planes of eight channels.

TF32 has 11 significant bits of float32's 24, and so has a half, which takes half the bytes and which wgmma multiplies at twice the rate; what
it lacks is range. So an operand is scaled by a power of two, rounded to the nearest half, and the scale undone in the float32 sums: where
torch lets cuDNN round a convolution's operands to TF32 (tensor_cores.py), that is the same rounding.

What the range costs: a half keeps 11 bits down to 2^-14 and errs by at most 2^-25 below. A row of the weights is scaled so that its
largest magnitude lies from 2^14 to 2^15: weights down to 2^-28 of their row's largest keep TF32's precision, and what is smaller errs by at most
2^-39 of that. The input's scale puts the largest of a sample of it, 4,096 elements evenly apart, from 2^11 to 2^12. The pass that makes
halves tells the largest magnitude that does not fit, and where there is one it is done again with that one from 2^14 to 2^15. So the input's
largest lies above 2^11 in either case: elements down to 2^-25 of it keep TF32's precision, smaller ones err by at most 2^-36 of it. All of that happens on
the device, the same for equal inputs.

Where eager computes in float32 (channels of a group fewer than 16, or not in fours), so do planes: a number is high + low, the nearest half and the nearest to
what is left, and of a * b only low * low is left out, "kExact". An element's low half lies in a plane of its own, times 2^11, and meets the weight's high half
divided by that; so the low parts begin to lose bits where the high ones do. Each operand errs by at most 2^-22 of itself, the product left out is as small: 2^-20 |a b| a product
at most, of either sign. Tensor cores cut off what they add (tensor_cores.py), so only a depth of few steps is one sum.

What is not finite does not count for a scale, and makes sums that are computed again by plain multiply-adds.

The input lies in planes of eight channels, 16 bytes of a place beside those of the next place, with the zeros around it (padding). Places
are counted through a plane, row after row; those in a row's padding are computed and not stored. So a tap of the window is the same shift for all places,
a run of places is one copy, and a row of the window needs one run of them in shared memory for all of its taps: wgmma reads lines of 16 bytes from any
16 bytes on. A block's 64 x 256 sums (output channels x places) are two warp groups', another warp brings runs and weights (bulk copies, mbarriers), and two
blocks share a multiprocessor, so that one's stores meet the other's products.

On an H200, of cuDNN in TF32, with all that belongs to it: see docs/results.md. Where wgmma is missing the same stages are multiplied by mma.sync, below sm_80
by plain multiply-adds, one stage after another.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

ROWS, COLUMNS = 64, 256
"""Output channels and places of a block."""
CHUNK = 8
"""Eights of channels that a stage may have."""
RUN_BYTES, WEIGHT_BYTES = 37 * 1024, 18 * 1024
"""Of a stage of the input and of one of the weights, at most, where a stage could be smaller."""
SHARED_BYTES = 112 * 1024
"""Of a block: two are at work on a multiprocessor."""
PUT_BYTES = 8 * 8 * (COLUMNS // 2 + 8) * 4
"""What results take on their way out: eight rows of each of eight warps."""
STAGES = 6
"""Of either ring, at most."""
EXACT_STEPS = 512
"""Steps up to which numbers of two halves go to one sum."""


@dataclass(frozen=True)
class Stages:
    """How the depth of a convolution is cut; everything of one image and group."""

    exact: bool
    """Whether a number is two halves."""
    eights: int
    """Eights of input channels, the last ones perhaps zeros."""
    chunk: int
    """Those of a stage."""
    taps: int
    """Of a row of the window: even where it is exact, since a step of the product then takes two taps."""
    run: int
    """Places that a row's taps read for the columns of a block."""
    together: int = 1
    """Rows of the window that a stage of the input serves."""
    at_once: int = 1
    """Taps of a stage of the weights, in the order of the stage's rows."""
    runs: int = 2
    weights: int = 2
    """Stages in the rings."""

    @property
    def planes(self) -> int:
        """Of an eight."""
        return 2 if self.exact else 1

    @property
    def tap_bytes(self) -> int:
        return self.chunk * (3 if self.exact else 1) * ROWS * 16

    @property
    def run_bytes(self) -> int:
        return self.together * self.chunk * self.planes * self.run * 16

    @property
    def weight_bytes(self) -> int:
        return self.at_once * self.tap_bytes


def stages(channels: int, taps: int, step: int, rows: int, exact: bool, apart: bool = False) -> Stages | None:
    """For `rows` rows of a window of `taps` taps, places `step` apart, and channels of a group; None where a stage has no room, or where it is
    to be exact and has too many steps for that. `apart`: a stage is to be of one row of the window, and of one tap or two."""
    eights = -(-channels // 8) if exact else -(-channels // 16) * 2
    taps += taps % 2 if exact else 0
    if exact and rows * taps * eights * 8 > EXACT_STEPS:
        return None
    for chunk in (n for n in range(CHUNK, 0, -1) if eights % n == 0 and (exact or n % 2 == 0)):
        found = Stages(exact, eights, chunk, taps, COLUMNS + (taps - 1) * step)
        together = 1 if apart else max((n for n in _divisors(rows) if n * found.run_bytes <= RUN_BYTES), default=1)
        fitting = [
            n for n in _divisors(together * taps) if n * found.tap_bytes <= WEIGHT_BYTES and not (exact and n % 2)
        ]
        at_once = 1 + exact if apart else max(fitting, default=1 + exact)
        found = replace(found, together=together, at_once=at_once)
        left = SHARED_BYTES - 1024 - found.runs * found.run_bytes
        if left >= 2 * found.weight_bytes:
            return replace(found, weights=min(left // found.weight_bytes, STAGES))
    return None


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]
