"""Which float32 products go by halves (halves.py), into how many parts, and where their prepared operands lie."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import sympy
import torch

from .expressions import Expr, indices_of
from .halves import CONSTRUCTED, STEPS, TILE, Side
from .hopper import MULTIPROCESSORS
from .index import Index, number, product
from .lowering import Lowering
from .tensors import Buffer, Tiling, Value

PER_TILE_S, PER_STEP_S = 6e-6, 17.3e-9
"""A tile on one of an H200's multiprocessors: 42 to 148 us for 2048 to 8192 steps."""
MOVED_PER_S, PER_LAUNCH_S = 3.2e12, 3e-6
"""Bytes that an H200 moves where an operand is prepared, of which an element takes 12, or parts are added; and what a launch takes at least."""
LIBRARY_PER_S = 48e12
"""Operations a second of cuBLAS in float32 there: 43 to 51 in eight products of 128 to 16384 rows, 768 to 8192 columns and 2048 to 8192 steps."""
MOST_PARTS, SHORTEST = 64, 256
"""Parts of a depth, and steps of one."""


def kept(low: Lowering, value: Value) -> bool:
    """Whether it is a weight, which the constructor can prepare."""
    return value.buffer in low.program.weights


def parts_by_halves(low: Lowering, batch, rows, columns, depth, weights: tuple[bool, bool]) -> int:
    """Into how many products of a part of its depth such a product is best divided; 0 where the library is faster.

    `weights`: whether the left and the right are ready when forward begins.
    """
    if low.program.device != "cuda" or low.dtype != torch.float32:
        return 0
    batches, down, across, steps = (low.program.estimate(size) for size in (product(batch), rows, columns, depth))
    tiles = batches * -(-down // TILE) * -(-across // TILE)

    def seconds(parts: int) -> float:
        joined = PER_LAUNCH_S + 8 * parts * batches * down * across / MOVED_PER_S if parts > 1 else 0.0
        return -(-parts * tiles // MULTIPROCESSORS) * (PER_TILE_S + steps // parts * PER_STEP_S) + joined

    most = min(MOST_PARTS, 2 * MULTIPROCESSORS // tiles, steps // SHORTEST) if depth.is_Integer else 1
    # parts of whole lines: a weight's are then the same however many there are
    best = min((p for p in range(1, max(most, 1) + 1) if p == 1 or depth % (p * STEPS) == 0), key=seconds)
    prepared = sum(
        12 * batches * places * steps / MOVED_PER_S + 3 * PER_LAUNCH_S
        for places, ready in zip((down, across), weights, strict=True) if not ready
    )  # fmt: skip
    return best if seconds(best) + prepared < 2 * batches * down * across * steps / LIBRARY_PER_S else 0


def by_halves(low: Lowering, tiling: Tiling, batch, sizes, parts: int, whole: tuple[Callable, Callable]) -> Tiling:
    """With memory for the prepared operands, each once where it is the same for all of the batch.

    `sizes`: rows, columns and steps of a part; `whole`: the left at (row, step) and the right at (column, step) of the undivided depth,
    where they are the same for all of the batch.
    """
    *ends, depth = sizes
    ranges = [*([parts] if parts > 1 else []), *batch]
    probe = low.program.ranges.probe([*ranges, *sizes], "probe")
    of_batch = {variable for variable in probe[: len(ranges)] if variable.is_Symbol}
    assert tiling.factors is not None
    sides: list[Side] = []
    for value, places, name, element in zip(tiling.factors(probe).args, ends, ("left", "right"), whole, strict=True):
        text = None if any(size != 1 for size in batch) else _weight(low, element, places, depth * parts)
        differs = any(of_batch & index.free_symbols for index in indices_of([value]))
        batches = product(ranges) if differs else number(1)
        # whole tiles of whole lines, a high and a low half of every step
        lines = low.program.allocate(
            [batches * (places + TILE - 1) * (depth + STEPS - 1)], torch.int32, f"{low.name}_{name}_halves"
        )
        largest = low.program.allocate(
            [batches * places if text is None else places], torch.int32, f"{low.name}_{name}_largest"
        )
        sides.append(Side(lines, largest, differs, differs and text is None, text is not None))
        if text is not None:
            _construct(low, lines, largest, text)
    left, right = sides
    return replace(tiling, halves=(left, right))


def _weight(low: Lowering, element: Callable, places: Index, depth: Index) -> str | None:
    """The Python text of a matrix [places, steps] that the constructor knows."""
    place, step = (low.program.ranges.named(name, end) for name, end in (("place", places), ("step", depth)))
    value: Expr = element(place, step)
    if value.op != "load" or value.args[0] not in low.program.weights or value.args[0].dtype != torch.float32:
        return None
    buffer, index = value.args[:2]
    if sympy.expand(buffer.elements - places * depth) != 0:
        return None
    if sympy.expand(index - place * depth - step) == 0:
        return f"{buffer.text}.reshape({places}, {depth})"
    if sympy.expand(index - step * places - place) == 0:
        return f"{buffer.text}.reshape({depth}, {places}).t()"
    return None


def _construct(low: Lowering, lines: Buffer, largest: Buffer, text: str) -> None:
    low.program.helpers["halves_of"] = CONSTRUCTED
    for buffer in (lines, largest):
        buffer.text = f"self.{buffer.name}"
    low.program.kept += [
        f"lines, largest = halves_of({text})",
        f'self.register_buffer("{lines.name}", lines, persistent=False)',
        f'self.register_buffer("{largest.name}", largest, persistent=False)',
    ]
