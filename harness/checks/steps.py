"""Outputs on the other side of a step: where a reference rounds to a code, compares with a threshold or picks a place.

fp64 says one side, and an honest kernel may be on the other where the two are within rounding of each other. Each element that is
not the reference's must be what another rounding of the reference makes of it (harness/farside/rounding.py), or, of an index into
an input, name a place that holds the same value, unless a stable sort has ranked it. Where values that are equal but for rounding are ranked (sigmoids of large numbers), any order
of them is right, and what is gathered by it (`explain_picks`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from harness.checks.expected import Expected, Right, errors, numbers_only

if TYPE_CHECKING:
    import torch

RUNS, LOOKS, SHARE = 32, 4, 0.5
"""An element is right where one of at most so many roundings of the reference has it. After the first looks so large a share of the
elements in doubt must have been found: of what is wrong by itself next to none is."""
MOST_WRONG = 0.25
"""Share of an output's elements in doubt beyond which steps are not the reason, and nothing is computed to find out."""
MOST_FOLLOWED = 1 << 14
"""Places of outputs that a reference takes over, at most: as text they go to the process where it runs."""
MOST_TURNS, PATIENCE, TURNS_AT_ONCE, PICKS_BYTES = 2048, 256, 32, 1 << 30
"""Turns of what shares a place in a ranking, at most: two for each place in it. It ends where so many more explain nothing; it is seen to after
so many; what is kept of them takes so much."""
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
    if dtype in INDICES and bool((same := wrong & _same_values(got, right.value, whole.roundings.inputs)).any()):
        if whole.roundings.has_order(name):
            return False
        wrong &= ~same
    return not bool(wrong.any()) or _found(name, got, right, wrong, whole)


def explain_picks(dtypes: Mapping[str, str], outputs: dict[str, torch.Tensor], whole: Right) -> bool:
    """Whether all outputs are right where the reference ranks values that are equal but for rounding, as sigmoids of large numbers are.

    Each turn of the reference picks others of those that share a place. An element is right where one turn has it; outputs of as many places
    agree with each other on which turn that is, and nothing is picked twice that no turn picks twice.
    """
    import torch

    if whole.roundings is None:
        return False
    names = [name for name in dtypes if name in whole and outputs[name].numel()]
    parts = {name: whole[name].beside(outputs[name]) for name in names}
    # Those of which all is known already but where picks are.
    doubted = [name for name in names if bool((errors(outputs[name], parts[name], dtypes[name]) > 1.0).any())]
    doubted = [name for name in doubted if not explain(name, dtypes[name], outputs[name], parts[name], whole)]
    if doubted and _follows(dtypes, outputs, parts, whole):
        return True
    matches: dict[str, list[torch.Tensor]] = {name: [] for name in names}
    turns: dict[str, list[torch.Tensor]] = {name: [] for name in names}
    most = min(MOST_TURNS, PICKS_BYTES // (9 * max(1, sum(outputs[name].numel() for name in names))))
    explained, since = -1, 0
    for turn in range(most if doubted else 0):
        made = whole.roundings.turn(turn)
        for name in names:
            right = Expected(made[name][: len(outputs[name])].to(torch.float64), parts[name].tolerance, "")
            turns[name].append(right.value)
            got = numbers_only(outputs[name], right) if whole.nans else outputs[name]
            matches[name].append(errors(got, right, dtypes[name]) <= 1.0)
        if turn == 2 and all(torch.equal(*(turns[name][k].nan_to_num() for k in (0, 2))) for name in doubted):
            return False  # nothing shares a place
        if turn % TURNS_AT_ONCE == TURNS_AT_ONCE - 1 or turn == most - 1:
            known = {name: torch.stack(matches[name]) for name in names}
            done = sum(int(known[name].any(0).sum()) for name in doubted)
            if done == sum(outputs[name].numel() for name in doubted) and _agree(dtypes, doubted, known):
                return not any(_picked_twice(outputs[name], turns[name]) for name in doubted)
            explained, since = done, since if done == explained else turn
            if turn - since >= PATIENCE:
                return False
    return False


def _follows(
    dtypes: Mapping[str, str], outputs: dict[str, torch.Tensor], parts: dict[str, Expected], whole: Right
) -> bool:
    """Whether all outputs are what the reference makes that takes the outputs' own places wherever they share one: what is counted behind a
    gate follows from all its picks."""
    assert whole.roundings is not None
    places = [outputs[name] for name in parts if dtypes[name] in INDICES and outputs[name].numel() <= MOST_FOLLOWED]
    for ones in (places, *([one] for one in places if len(places) > 1)):  # a count may look like a place
        made = whole.roundings.follow(ones) if ones else {}
        if ones and all(
            bool((errors(outputs[name], Expected(made[name][: len(outputs[name])].double(), one.tolerance, ""), dtypes[name]) <= 1.0).all())
            for name, one in parts.items()
        ):  # fmt: skip
            return True
    return False


def _agree(dtypes: Mapping[str, str], doubted: list[str], known: dict[str, torch.Tensor]) -> bool:
    """Whether each output in doubt shares a turn, place by place, with one in doubt of as many places and of another shape or dtype, where there
    is one: those that are alike may be of other rows of a batch, of which others were picked."""
    for name in doubted:
        shape, agrees = known[name].shape[1:], list[bool]()
        for other in doubted:
            theirs = known[other].shape[1:]
            places = min(len(shape), len(theirs))
            if places and theirs[:places] == shape[:places] and (theirs, dtypes[other]) != (shape, dtypes[name]):
                one, two = (_at_places(known[n], places) for n in (name, other))
                agrees.append(bool((one & two).any(0).all()))
        if agrees and not any(agrees):
            return False
    return True


def _at_places(known: torch.Tensor, places: int) -> torch.Tensor:
    """Of [turns, places..., rest...] whether all the rest is right."""
    return known.flatten(1 + places).all(-1) if known.dim() > 1 + places else known


def _picked_twice(got: torch.Tensor, turns: list[torch.Tensor]) -> bool:
    """Whether two rows of an output of floats are alike that are not in any turn."""

    def twice(one: torch.Tensor) -> bool:
        rows = one.to(turns[0].dtype).flatten(0, -2)
        return len(rows.unique(dim=0)) < len(rows)

    return got.dtype.is_floating_point and got.dim() > 1 and twice(got) and not any(map(twice, turns))


def _found(name: str, got: torch.Tensor, right: Expected, wrong: torch.Tensor, whole: Right) -> bool:
    """Whether other roundings of the reference are, element by element, where these are."""
    import torch

    assert whole.roundings is not None
    value, tolerance = right.value, right.tolerance
    there, out = value[wrong], got[wrong].to(torch.float64)
    allowed = tolerance[wrong]
    # What fp32 makes of it anybody's eager torch does, however much that is.
    runs = RUNS if len(out) <= max(FEW, MOST_WRONG * got.numel()) else 1
    left, most = torch.ones_like(out, dtype=torch.bool), 0
    for number in range(runs):
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
