"""Outputs on the other side of a step: where a reference rounds to a code, compares with a threshold or picks a place.

fp64 says one side, and an honest kernel may be on the other where the two are within rounding of each other. Each element that is
not the reference's must be what another rounding of the reference makes of it (harness/farside/rounding.py), or, of an index into
an input, name a place that holds the same value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.checks.expected import Expected, Right, errors

if TYPE_CHECKING:
    import torch

RUNS, LOOKS, SHARE = 32, 4, 0.5
"""An element is right where one of at most so many roundings of the reference has it. After the first looks so large a share of the
elements in doubt must have been found: of what is wrong by itself next to none is."""
MOST_WRONG = 0.25
"""Share of an output's elements in doubt beyond which steps are not the reason, and nothing is computed to find out."""
COUNT, FEW = 4, 4
"""Elements on another side than fp64's may be so many times those of any of these roundings, and so many."""
INDICES = ("int64", "int32")
LEAST_PLACES = 8
"""Places that must look like an index before any are taken for one (lower bound)."""


def explain(name: str, dtype: str, got: torch.Tensor, right: Expected, whole: Right) -> bool:
    """Whether every element of an output that is not within its tolerance is right on another side of a step."""
    wrong = errors(got, right, dtype) > 1.0
    if whole.roundings is None or not bool(wrong.any()):
        return False
    if dtype in INDICES:
        wrong &= ~_same_values(got, right.value, whole.roundings.inputs)
    return not bool(wrong.any()) or _found(name, got, right, wrong, whole)


def _found(name: str, got: torch.Tensor, right: Expected, wrong: torch.Tensor, whole: Right) -> bool:
    """Whether other roundings of the reference are, element by element, where these are."""
    import torch

    assert whole.roundings is not None
    value, tolerance = right.value, right.tolerance
    there, out = value[wrong], got[wrong].to(torch.float64)
    allowed = tolerance[wrong]
    if len(out) > max(FEW, MOST_WRONG * got.numel()):
        return False
    left, most = torch.ones_like(out, dtype=torch.bool), 0
    for number in range(RUNS):
        other = whole.roundings.get(number)[name][: len(value)].to(torch.float64)
        moved = _beyond(other, value, tolerance)
        most = max(most, int(moved.sum()))
        left &= ~(moved[wrong] & ~_beyond(out, other[wrong], allowed))
        if not bool(left.any()):
            return len(there) <= COUNT * most + FEW
        if number + 1 >= LOOKS and int(left.sum()) > max(FEW, SHARE * len(there)):
            return False
    return False


def _beyond(one: torch.Tensor, other: torch.Tensor, tolerance: torch.Tensor) -> torch.Tensor:
    """Where two are further apart than that; not where both are the same infinity, or no number."""
    return ~(((one - other).abs() <= tolerance) | (one == other) | (one.isnan() & other.isnan()))


def _same_values(got: torch.Tensor, right: torch.Tensor, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """bool of the output's shape: where it and what is right name places of an input that hold the same value.

    Nowhere, unless what is right picks a row's extreme values, or its values in order, all over the tensor.
    """
    import torch

    same = torch.zeros_like(right, dtype=torch.bool)
    for values in inputs.values():
        if not values.dtype.is_floating_point:
            continue
        for dim in range(values.dim()):
            kept = values.dim() == right.dim()
            places = (got.to(torch.int64), right.to(torch.int64))
            theirs, ours = (
                (one if kept else one.unsqueeze(dim) for one in places) if _fits(values, right, dim) else (None, None)
            )
            if theirs is None or ours is None or ours.numel() < LEAST_PLACES:
                continue
            extent = values.shape[dim]
            if bool(((theirs < 0) | (theirs >= extent) | (ours < 0) | (ours >= extent)).any()):
                continue
            held = values.to(torch.float64).gather(dim, ours)
            if not _picks(held, values.to(torch.float64), dim) or _repeats(theirs, dim, ours):
                continue
            found = held == values.to(torch.float64).gather(dim, theirs)
            same |= found if kept else found.squeeze(dim)
    return same


def _fits(values: torch.Tensor, places: torch.Tensor, dim: int) -> bool:
    """Whether places could be an index into a dimension of values: all other extents are the same, or it is left out."""
    others = [extent for at, extent in enumerate(values.shape) if at != dim]
    if places.dim() == values.dim() - 1:
        return list(places.shape) == others
    return places.dim() == values.dim() and [e for at, e in enumerate(places.shape) if at != dim] == others


def _picks(held: torch.Tensor, values: torch.Tensor, dim: int) -> bool:
    """Whether these are the largest or the smallest of each row, or in order."""
    if held.shape[dim] == 1:
        return any(bool((held == most(dim=dim, keepdim=True)).all()) for most in (values.amax, values.amin))
    steps = held.diff(dim=dim)
    return bool((steps <= 0).all()) or bool((steps >= 0).all())


def _repeats(places: torch.Tensor, dim: int, right: torch.Tensor) -> bool:
    """Whether a row names a place twice although what is right does not."""

    def twice(one: torch.Tensor) -> bool:
        return bool((one.sort(dim=dim).values.diff(dim=dim) == 0).any())

    return places.shape[dim] > 1 and twice(places) and not twice(right)
