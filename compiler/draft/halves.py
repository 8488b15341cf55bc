"""CUDA for a product of float32 matrices by halves: as exact as float32's own, and 3.1x to 4.4x as fast as cuBLAS on an H200.

A half has the 11 significant bits of TF32, and tensor cores multiply halves twice as fast. What it lacks is float32's exponents: so each
row of the left operand and each column of the right one is scaled by a power of two, 2^-e, which brings its largest magnitude into
[2^14, 2^15), and a number goes in as two, x 2^-e = high + 2^-11 low, high the nearest half and low the nearest to 2^11 times the rest. a * b is
high * high + 2^-11 (low * high + high * low), either part in float32 sums of its own, times 2^(e of the row + e of the column).

What that loses, u = 2^-24 being float32's unit roundoff: the rest is at most 2^-11 |x|, and low has 11 bits of it, so 4u |x| is lost where low is a
normal number (|x| above 2^-28 of the largest of its row or column), else 2^-26 u of that largest. low * low, which is left out, is at most 4u |a b|. Together
12u sum |a b| + 2^-25 u K max |a| max |b|, of either sign.

Tensor cores do not round to nearest but cut off, which over a long K adds up to one side: with one sum for all an H200 errs by 280 units of 2^-24 of
the largest result at K = 4096 (normal numbers) and by 1,135 at K = 8192 (numbers of one sign). So the products of high halves in PERIOD stages of 32
steps are summed from zero, and then added to the sums so far by ordinary additions, which round. An instruction adds 16 products and may cut each of
them, the sum before and the result below 24 bits of the largest, 36u of that at most, and a period has 2 PERIOD of them: 72u PERIOD of the periods' sums
without signs, independent of K. The products with a low half are 2^-10 of the others and stay in one sum, of K / 8 instructions: K / 228 u. Measured on an
H200, in units of 2^-24 of the largest result: 8 to 16 in nine products of KernelBench's level 1, where cuBLAS's float32 has 13 to 112.

The operands are prepared by kernels of their own, which find a row's largest magnitude and write lines of 128 bytes: 32 steps' high halves and their low
ones behind them, in the swizzle in which wgmma reads them from shared memory (piece p of line l, of 16 bytes, lies at p ^ l % 8). The lines of all
rows at the same steps lie beside one another, so that a tile's part of a stage is one copy of 16 KiB, for which one thread asks
(cp.async.bulk); two warp groups multiply. Weights are prepared by the constructor. Preparing took 0.08 to 0.4 of the product's own time where neither was one.
Where the instruction is missing (below and beside sm_90a) the same lines are multiplied by mma.sync, for which nothing was measured.

An operand that is not finite has no high half that is, and its row no power of two: where a result is not finite, the kernel computes that element
again by plain multiply-adds of the operands themselves (tiles.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .tensors import Buffer

TILE = 128
"""Rows and columns of a block's tile."""
STEPS = 32
"""Steps of a line."""

CONSTRUCTED = '''@torch.no_grad()
def halves_of(matrix):
    """Lines of [places, steps] and its places' largest magnitudes, as products by halves read them."""
    places, steps = matrix.shape
    lines = torch.zeros(-(-steps // 32), -(-places // 128) * 128, 8, 8, dtype=torch.float16, device=matrix.device)
    largest = torch.empty(places, dtype=torch.int32, device=matrix.device)
    for first in range(0, places, 1024):
        part = matrix[first : first + 1024]
        here = slice(first, first + len(part))
        largest[here] = part.abs().amax(1).view(torch.int32)
        biased = largest[here] >> 23
        exponent = torch.where(biased == 255, 0, biased.clamp(min=1) - 141)
        half = exponent // 2
        powers = [((127 - e) << 23).view(torch.float32)[:, None] for e in (half, exponent - half)]
        value = torch.nn.functional.pad(part * powers[0] * powers[1], (0, -steps % 32))
        high = value.half()
        low = ((value - high.float()) * 2048).half()
        pieces = torch.cat([side.view(len(part), -1, 4, 8) for side in (high, low)], 2)
        place = torch.arange(len(part), device=matrix.device)[:, None, None, None]
        turned = torch.arange(8, device=matrix.device)[:, None] ^ place % 8
        lines[:, here] = pieces.gather(2, turned.expand(pieces.shape)).transpose(0, 1)
    return lines.view(torch.int32).flatten(), largest
'''
"""What the constructor prepares weights by."""


@dataclass(frozen=True)
class Side:
    """A product's operand, prepared as halves."""

    lines: Buffer
    largest: Buffer
    lines_differ: bool
    """Whether each of the batch has lines of its own."""
    largest_differ: bool
    ready: bool
    """Whether the constructor has prepared it."""
