"""Sizes that nobody listed, by rule: what a suite's own sizes leave open between them.

Only for kernels whose sizes are free of each other (floats in, floats out, no tables and no properties), and only multiples of
what all listed sizes of an axis share. What the kernel's own baseline cannot do counts against nobody.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator

from kernels.spec import SIGNIFICAND_BITS, Spec, Workload

MOST_BYTES = {"cpu": 2 << 20, "cuda": 32 << 20}
"""Bytes that one call may move, by device (upper bound)."""
LARGE_BYTES = {"cpu": 10 << 20, "cuda": 32 << 20}
"""The same of the call of odd sizes that is nearly as large as the largest listed one."""
FEW_ROWS, REMAINDERS = range(1, 18), 16
"""Numbers of rows that all are tried, and of widths that follow each other: remainders of what is done by so many and fewer."""
PAIRS = 7
"""Rows times this are the remainder of the width that they come with, and the other way round (49 is one more than three times 16): each remainder
but none is met by an odd number of rows and, one row more, by an even one."""
WIDER = 16
"""Each of these widths has 0 to WIDER - 1 times REMAINDERS more: a loop of 64, or a warp's of 256, has remainders that no sixteen widths one
after another show."""
DRAWN = secrets.token_bytes(len(FEW_ROWS) + REMAINDERS)
"""By how many, for as long as this process lives: who knew could be right at these."""
BEYOND, BEYOND_BYTES = (1 << 16) + 1, 32 << 20
"""Rows beyond what a launch's second and third extent and 16 bits count, and bytes that the call for them may move."""


def crossings(spec: Spec, device: str, dtypes: tuple[str, ...], *, held_out: bool = False) -> tuple[Workload, ...]:
    """Untimed workloads: many rows, an odd number of them where there may be, also of a large odd width, and more than 65,535; each of FEW_ROWS, and REMAINDERS widths, in pairs; each other axis beyond
    its largest size; the largest sizes in every dtype that lacks them. Empty where the sizes may depend on each other.

    Sizes of the visible suite only, since a reason would tell agents what is held out; `held_out`: of all the device's, what
    those of the visible suite lack.
    """
    listed = [*spec.suite(device), *(spec.suite(device, held_out=True) if held_out else ())]
    if spec.problem or not listed or not _free(spec):
        return ()
    found: dict[str, Workload] = {}
    known = {workload.label for workload in spec.workloads}
    if held_out:
        known |= {workload.label for workload in crossings(spec, device, dtypes)}
    large = {workload.label for workload in _odd_and_large(spec, listed, device, dtypes)}
    for workload in (*_wanted(spec, listed, device, dtypes), *_odd_and_large(spec, listed, device, dtypes)):
        apart = not any(tensor.strides and spec.overlaps(tensor, workload.axes) for tensor in spec.tensors)
        most = MOST_BYTES[device]
        if max(workload.axes.values()) >= BEYOND:
            most = max(most, BEYOND_BYTES)
        elif workload.label in large:
            most = LARGE_BYTES[device]
        if workload.label not in known and apart and _moved(spec, workload) <= most:
            found.setdefault(workload.label, workload)
    return tuple(found.values())


def _free(spec: Spec) -> bool:
    return all(
        (tensor.dtype == "T" or tensor.dtype in SIGNIFICAND_BITS) and tensor.touched is None and tensor.used is None
        for tensor in spec.tensors
    ) and all(dtype in SIGNIFICAND_BITS for dtype in spec.dtypes)


def _wanted(spec: Spec, listed: list[Workload], device: str, dtypes: tuple[str, ...]) -> Iterator[Workload]:
    sizes = {axis: sorted({workload.axes[axis] for workload in listed}) for axis in spec.axes}
    steps = {axis: math.gcd(*known) for axis, known in sizes.items()}
    rows = next((axis for axis in spec.outputs[0].shape[:1] if axis in sizes), None)
    width = spec.outputs[0].shape[-1] if spec.outputs[0].shape else ""
    free_width = width in sizes and width != rows and steps[width] == 1
    smallest = min(listed, key=lambda workload: _moved(spec, workload))
    largest = max(listed, key=lambda workload: _moved(spec, workload))

    def made(axes: dict[str, int], dtype: str) -> Workload:
        return Workload(axes=axes, dtype=dtype, devices=(device,), timed=False)  # type: ignore[arg-type]

    for number, dtype in enumerate(dtypes):
        if rows is not None:
            fewer = largest.axes[rows]
            while fewer > steps[rows] and _moved(spec, made({**largest.axes, rows: fewer}, dtype)) > MOST_BYTES[device]:
                fewer = fewer // 2 // steps[rows] * steps[rows]
            if fewer >= steps[rows]:
                yield made({**largest.axes, rows: fewer}, dtype)
            if number == 0:
                many = sizes[rows][-1] - steps[rows] if steps[rows] % 2 else sizes[rows][-1]
                yield made({**smallest.axes, rows: max(many, steps[rows])}, dtype)
                for at, few in enumerate(FEW_ROWS if steps[rows] == 1 else ()):
                    remainder = (
                        {width: smallest.axes[width] + few * PAIRS % REMAINDERS + _wider(at)} if free_width else {}
                    )
                    yield made({**smallest.axes, **remainder, rows: few}, dtype)
                beyond = -(-BEYOND // steps[rows]) * steps[rows]
                yield _narrow(spec, made({**smallest.axes, rows: beyond}, dtype), steps, rows)
        if number == len(dtypes) - 1:
            for more in range(1, REMAINDERS) if free_width else ():
                beside = {rows: 1 + more * PAIRS % REMAINDERS} if rows is not None and steps[rows] == 1 else {}
                yield made({**smallest.axes, **beside, width: smallest.axes[width] + more + _wider(-more)}, dtype)
            for axis in spec.axes:
                if axis != rows:
                    yield made({**smallest.axes, axis: sizes[axis][-1] + steps[axis]}, dtype)


def _odd_and_large(spec: Spec, listed: list[Workload], device: str, dtypes: tuple[str, ...]) -> Iterator[Workload]:
    """The largest listed sizes, rows and width odd and halved by chance: what is done by so many at once ends within both, where neither is few."""
    largest = max(listed, key=lambda workload: _moved(spec, workload))
    rows, width = spec.outputs[0].shape[:1], spec.outputs[0].shape[-1:]
    if len(spec.outputs[0].shape) < 2 or not dtypes or not {*rows, *width} <= set(spec.axes):
        return
    axes = dict(largest.axes)
    for axis, known in ((name, {workload.axes[name] for workload in listed}) for name in (*rows, *width)):
        if math.gcd(*known) != 1 and len(known) > 1:
            return
        axes[axis] = max(1, axes[axis] - 1 - DRAWN[0] % WIDER // 2 * 2)
    made = Workload(axes=axes, dtype=dtypes[0], devices=(device,), timed=False)  # type: ignore[arg-type]
    turn = 0
    while max(axes[rows[0]], axes[width[0]]) > 1 and _moved(spec, made) > LARGE_BYTES[device]:
        halved = (rows, width)[DRAWN[1] >> turn % 8 & 1][0]
        axes[halved], turn = axes[halved] // 2 | 1, turn + 1
        made = made.model_copy(update={"axes": dict(axes)})
    yield made


def _wider(at: int) -> int:
    return DRAWN[at] % WIDER * REMAINDERS


def _narrow(spec: Spec, workload: Workload, steps: dict[str, int], rows: str) -> Workload:
    """The workload with every other axis halved, as far as their sizes may be, until a call of it moves few bytes."""
    axes = dict(workload.axes)
    while _moved(spec, workload.model_copy(update={"axes": axes})) > MOST_BYTES["cpu"]:
        halved = {axis: max(step, axes[axis] // 2 // step * step) for axis, step in steps.items()} | {rows: axes[rows]}
        if halved == axes:
            break
        axes = halved
    return workload.model_copy(update={"axes": axes})


def _moved(spec: Spec, workload: Workload) -> int:
    return spec.read_bytes(workload) + spec.write_bytes(workload)
