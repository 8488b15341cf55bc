"""What makes outputs right: each compared with what is expected of it, within its tolerance.

Of standard library, torch and the files beside it, as noise.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from harness.checks import steps
from harness.checks.expected import BEYOND, UNIT_ROUNDOFF, Expected, Right, errors, numbers_only

if TYPE_CHECKING:
    import torch

OFF_SHARE = 16
"""One element in so many of an integer output may be off by its `ulps`: truncation is off in half."""


def judge_outputs(
    dtypes: Mapping[str, str], outputs: dict[str, torch.Tensor], right: Right, *, closely: bool = False
) -> tuple[float, str]:
    """(largest error in tolerances, "" or what is wrong) of the outputs of one call, by name; those with a length of their own are cut to it.

    dtypes: of the outputs by name, in the order in which they are looked at. `closely`: what is on the other side of a step of the
    reference's is looked at, too; it takes other roundings of it.
    """
    worst = 0.0
    for name, dtype in dtypes.items():
        one, got = right.get(name), outputs[name]
        if one is None or not got.numel():
            continue
        one = one.beside(got)
        if right.nans:
            got = numbers_only(got, one)
        error, message = judge(got, one, dtype)
        if message and closely and steps.explain(name, dtype, got, one, right):
            error, message = 1.0, ""
        worst = max(worst, error)
        if message:
            cares = " (nans=False in the spec, where nobody cares)" if right.nans else ""
            return error, f"{name}{message}{cares}"
    violated = right.law(outputs) if right.law is not None else ""
    return (BEYOND, violated) if violated else (worst, "")


def judge_closely(
    dtypes: Mapping[str, str], outputs: dict[str, torch.Tensor], right: Right
) -> tuple[float, str, Right]:
    """`judge_outputs`, and where something seems wrong once more with a closer look at noise and steps; what it was judged by."""
    error, message = judge_outputs(dtypes, outputs, right)
    if message:
        error, message = judge_outputs(dtypes, outputs, right, closely=True)
    if message and right.doubted is not None and (closer := right.doubted()) is not None:
        closer.roundings, right = right.roundings, closer
        error, message = judge_outputs(dtypes, outputs, right, closely=True)
    if message and steps.explain_picks(dtypes, outputs, right):
        message = right.law(outputs) if right.law is not None else ""
        error = BEYOND if message else 1.0
    return error, message, right


NEAR_MISS, NEAR_MISSES = 2.0, 1e-7
"""Factor on the tolerance, and share of an output's elements that may need it: of hundreds of millions one may round
worse than all that its row's noise shows (eager torch's own once did, by 8 %, one of 277 million); another answer, or
one of a narrower type, is off by more."""


def judge(got: torch.Tensor, right: Expected, dtype: str) -> tuple[float, str]:
    """(largest error in tolerances, "" or what is wrong and where) of one output tensor."""
    import torch

    error = errors(got, right, dtype)
    worst = float(error.max())
    wrong = int((error > 1.0).sum()) if worst > 1.0 else 0
    if not wrong and dtype not in UNIT_ROUNDOFF and bool(right.tolerance.any()):
        off, most = int((got.to(torch.float64) != right.value).sum()), max(1, got.numel() // OFF_SHARE)
        if off > most:
            return worst, f": {off} of {got.numel()} elements are off, and by its ulps {most} may be"
    if not wrong or (worst <= NEAR_MISS and wrong <= NEAR_MISSES * error.numel()):
        return worst, ""
    place = _place(int(error.argmax()), error.shape)
    text = (
        f"{list(place)} is {float(got[place]):.6g}, should be {float(right.value[place]):.6g} "
        f"+- {float(right.tolerance[place]):.2g}; {wrong} of {error.numel()} elements are wrong"
    )
    return worst, text


def _place(at: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Of an element of a contiguous tensor; torch's own imports SymPy."""
    place: list[int] = []
    for extent in reversed(shape):
        at, one = divmod(at, extent)
        place.insert(0, one)
    return tuple(place)
