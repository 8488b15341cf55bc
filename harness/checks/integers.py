"""How integers are drawn: ids, row pointers, codes. What comes only by chance at a small size (the first and the last id, an id that is none, a
run without elements) is put there, since a verdict draws some inputs a handful of times."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

NONE = -1
"""An id that is none: padding in a list of ids."""
EDGES = "edges"
"""Beside the distributions that a spec names: the same with what chance brings at no size. Of ids half are one, a row of those that may
be none has nothing else and their end is padding; of row pointers the first and last run are empty, and one holds half."""
EDGED = ("index", "padded", "distinct", "offsets", "starts")
"""Distributions that `EDGES` changes."""
NONE_SHARE = 0.125
SPARE = 2
"""Elements that a tensor has at least beside those that are put there always; of a smaller one half are, by chance."""


def draw_below(view: torch.Tensor, bound: torch.Tensor, rng: torch.Generator) -> None:
    """Fill an integer tensor in place with values from 0 up to, not including, `bound`; 0 where that is not above 0.

    bound: of shape [1], or of the first extents of `view`'s.
    """
    import torch

    limit = bound.reshape(*bound.shape, *[1] * (view.dim() - bound.dim())).to(torch.float64)
    drawn = torch.rand(view.shape, generator=rng, device=view.device, dtype=torch.float64)
    limit = limit.expand(view.shape)
    for share, place in zip((0.0, 1.0), _places(view.numel(), 2), strict=False):
        drawn.view(-1)[place] = share
    view.copy_(drawn.mul_(limit).floor_().clamp_max_(limit - 1).clamp_min_(0))


def draw_between(view: torch.Tensor, low: int, high: int, rng: torch.Generator) -> None:
    """Fill an integer tensor in place with values from `low` up to, not including, `high`, both ends among them."""
    view.random_(low, high, generator=rng)
    put(view, [low, high - 1])


def draw_integers(view: torch.Tensor, kind: str, limit: int, rng: torch.Generator, *, edges: bool = False) -> None:
    """Fill an integer tensor in place.

    `bits`: any non-negative value; `index`: ids below `limit`; `padded`: the same, one in eight of them none (-1); `distinct`: the same, no
    two of the others the same; `permutation`: the same without -1; `offsets`: non-decreasing
    from 0 to `limit`, steps lognormal as degrees of graphs are (sigma 1.6), one in twenty of them empty, one at least; `starts`: the same
    without the last, where each run begins. The first and last id are drawn wherever there is room; `edges`: see EDGES.
    """
    import torch

    if view.dtype.is_floating_point:
        raise ValueError(f"{kind!r} needs an integer tensor")
    if kind == "bits":
        view.random_(generator=rng)
        if view.numel() > 2 * SPARE:  # a seed is any
            put(view, [0, torch.iinfo(view.dtype).max])
    elif kind in ("index", "padded"):
        view.random_(0, limit, generator=rng)
        if edges:
            one = torch.randint(limit, (), generator=rng, device=view.device).to(view.dtype)
            view.copy_(torch.where(torch.rand(view.shape, generator=rng, device=view.device) < 0.5, one, view))
        _pad(view, [0, limit - 1], rng, none=kind == "padded", edges=edges)
    elif kind in ("distinct", "permutation"):
        view.view(-1).copy_(torch.randperm(limit, generator=rng, device=view.device)[: view.numel()])
        _pad(view, [0, limit - 1], rng, none=kind == "distinct", edges=edges, once=True)
    elif kind == "starts":
        whole = torch.empty(len(view) + 1, dtype=view.dtype, device=view.device)
        draw_integers(whole, "offsets", limit, rng, edges=edges)
        view.copy_(whole[:-1])
    else:
        _draw_offsets(view, limit, rng, edges=edges)


def put(view: torch.Tensor, values: list[int], *, free: range | None = None, once: bool = False) -> None:
    """Put the values at random places of a tensor, all where it has room; `free`: row of which no element is overwritten. `once`: what stands
    there changes places with it, so that nothing comes twice."""
    flat = view.view(-1)
    left = free or range(0)
    values = secrets.SystemRandom().sample(values, len(values))
    for value, place in zip(values, _places(len(flat) - len(left), len(values)), strict=False):
        at = place + len(left) if left and place >= left.start else place
        if once and value != NONE:
            flat.masked_fill_(flat == value, int(flat[at]))
        flat[at] = value


def _places(extent: int, count: int) -> list[int]:
    """Different places of so many: `count`, or where that is nearly all of them by chance about half."""
    most = count if extent >= count + SPARE else min(count, (extent + secrets.randbelow(2)) // 2)
    return secrets.SystemRandom().sample(range(extent), most)


def _pad(
    view: torch.Tensor, ends: list[int], rng: torch.Generator, *, none: bool, edges: bool, once: bool = False
) -> None:
    """Make some ids none, and put both ends, and one that is none, among them."""
    import torch

    ends = list(dict.fromkeys(ends))
    if not none:
        put(view, ends, once=once)
        return
    view.masked_fill_(torch.rand(view.shape, generator=rng, device=view.device) < NONE_SHARE, NONE)
    empty = None
    if edges and view.dim() > 1 and len(view) > 1:
        width = view.numel() // len(view)
        row = secrets.randbelow(len(view))
        view[row] = NONE
        empty = range(row * width, (row + 1) * width)
    elif edges:
        view[-(len(view) // 2) :] = NONE
        empty = range(len(view) - len(view) // 2, len(view))
    put(view, [*ends, NONE], free=empty, once=once)


def _draw_offsets(view: torch.Tensor, limit: int, rng: torch.Generator, *, edges: bool) -> None:
    import torch

    runs = len(view) - 1
    steps = torch.randn(runs, generator=rng, device=view.device, dtype=torch.float64).mul_(1.6).exp_()
    steps.masked_fill_(torch.rand(steps.shape, generator=rng, device=view.device) < 0.05, 0.0)
    if runs > SPARE:
        steps[_places(runs, 1)] = 0.0
    if edges and runs > 2 * SPARE:
        steps[0] = steps[-1] = 0.0
        within = 1 + secrets.randbelow(runs - 2)
        steps[within] = 0.0
        steps[within] = max(1.0, float(steps.sum()))
    if not bool(steps.any()):
        steps.fill_(1.0)
    upto = steps.cumsum(0)
    view[0] = 0
    view[1:] = (upto / upto[-1] * limit).round_().clamp_max_(limit)
