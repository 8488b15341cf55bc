"""How inputs are drawn: a spec's distributions, and those that only a problem's get_inputs() can draw."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from harness.checks.integers import EDGED, EDGES, draw_below, draw_between, draw_integers
from harness.device import generator
from kernels import catalog
from kernels.spec import AXIS_VALUES, BELOW, DRAWN, OWN_VALUES, Spec, Workload

if TYPE_CHECKING:
    import torch


GIVEN: dict[str, list[Callable[[torch.Tensor, Workload], None]]] = {}
"""Name in `given:<name>` -> what fills a tensor, or several of them one above the other, with draws of a generator that
the harness does not know, such as a problem's get_inputs(). Whoever opens a problem puts it here and takes it away; one
that is open twice is here twice, and either draws for both."""


def draw(
    view: torch.Tensor,
    values: str,
    workload: Workload,
    rng: torch.Generator,
    bound: torch.Tensor | None = None,
    *,
    edges: bool = False,
) -> None:
    """Fill `view` (any shape, the tensor's dtype) in place with values of the named distribution.

    bound: of `below:NAME`, that input's values. edges: harness/checks/integers.py, EDGES.
    """
    import torch

    kind, _, rest = values.partition(":")
    if not view.numel():
        return
    if kind == BELOW:
        assert bound is not None, f"{values} is drawn beside the tensor that it names"
        draw_below(view, bound, rng)
        return
    if kind in OWN_VALUES:
        GIVEN[rest][-1](view, workload)
        return
    if kind == DRAWN:
        view.copy_(catalog.draw_by_function(rest, workload.axes, tuple(view.shape), generator("cpu")))
        return
    if view.dtype in (torch.uint16, torch.uint32):  # no random kernels for these
        wide = torch.empty(view.shape, dtype=torch.int64, device=view.device)
        own = {"bits": f"integers:0:{1 << 8 * view.element_size()}"}.get(kind, values)
        draw(wide, own if ":" in own else "integers:0:127", workload, rng)
        view.copy_(wide)
        return
    if kind == "integers":
        low, high = (int(bound) for bound in rest.split(":"))
        draw_between(view, low, high, rng)
        return
    if kind == "bits" and view.dtype.is_floating_point:  # any: subnormals, infinities and NaNs too
        whole = getattr(torch, {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}[view.element_size()])
        least, end = (0, 256) if view.element_size() == 1 else (-(1 << 8 * view.element_size() - 1), None)
        view.view(whole).random_(least, end, generator=rng)
        return
    if kind == "bits" or kind in AXIS_VALUES:
        draw_integers(view, kind, workload.axes.get(rest, 0), rng, edges=edges)
        return
    if not view.dtype.is_floating_point:
        low, high = {torch.uint8: (0, 256), torch.bool: (0, 2)}.get(view.dtype, (-128, 128))
        draw_between(view, low, high, rng)
        return
    if view.dtype.itemsize == 1:  # no random kernels for 8-bit floats
        wide = torch.empty(view.shape, dtype=torch.float32, device=view.device)
        draw(wide, values, workload, rng)
        view.copy_(wide)
        return
    if kind == "normal":
        mean, deviation = (float(number) for number in rest.split(":"))
        view.normal_(mean, deviation, generator=rng)
        return
    if kind == "range":
        lowest, highest = (float(bound) for bound in rest.split(":"))
        view.uniform_(lowest, highest, generator=rng)
        return
    if kind in ("uniform", "scaled"):
        view.uniform_(0, 1, generator=rng)
        if kind == "scaled":
            view.mul_(torch.rand((), generator=rng, device=view.device).to(view.dtype))
        return
    view.normal_(generator=rng)
    if kind == "large":
        view.mul_(30.0)  # products of two still fit float16
    elif kind == "tiny":
        # Subnormal, and squares that underflow; of some rows larger, each by a scale of its own, or who takes 1e-7 for 0 were right. They are
        # fewer than half: a tolerance is that of the median row, where that is larger.
        lowest, highest = (-20, -8) if view.dtype == torch.float16 else (-66, -16)
        rows = len(view) if view.dim() > 1 else 1
        drawn = torch.rand(rows, 2, generator=rng, device=view.device)
        larger = torch.where(
            drawn[:, 0] < (LARGER_ROWS if rows > 1 else 1 - LARGER_ROWS),
            (drawn[:, 1] * (highest - lowest)).round(),
            0.0,
        )
        view.mul_(torch.exp2(lowest + larger).view(-1, *[1] * max(0, view.dim() - 1)).to(view.dtype))
    elif kind == "zero_rows" and view.dim():
        zero = torch.rand((*view.shape[:-1], 1), generator=rng, device=view.device) < ZERO_ROWS
        zero.view(-1)[torch.randint(zero.numel(), (1,), generator=rng, device=view.device)] = True
        view.masked_fill_(zero, 0.0)
    elif kind in ("zeros", "outliers", "infinities"):
        pick = torch.rand(view.shape, generator=rng, device=view.device)
        if kind == "zeros":
            view.masked_fill_(pick < 0.5, 0.0)
        elif kind == "outliers":
            view.mul_(torch.where(pick < 0.001, 300.0, 1.0).to(view.dtype))
        else:
            view.masked_fill_(pick < 0.05, math.inf)
            view.masked_fill_(pick > 0.95, -math.inf)


ZERO_ROWS = 0.1
"""Share of the rows (of the last extent) that `zero_rows` makes zero; one is at least."""
LARGER_ROWS = 0.4
"""Share of the rows of tiny values that are not the smallest; a single row is one of the others."""


def draw_inputs(
    spec: Spec, workload: Workload, values: str, extra: dict[str, tuple[str, ...]], device: str
) -> dict[str, torch.Tensor]:
    """Every input that knows the distribution `values` drawn from it, the others from their first."""
    import torch

    rng, inputs = generator(device), dict[str, torch.Tensor]()
    for tensor in spec.inputs:
        known = (*tensor.values, *extra.get(tensor.name, ()))
        dtype = getattr(torch, spec.dtype(tensor, workload))
        view = torch.empty(spec.shape(tensor, workload.axes), dtype=dtype, device=device)
        bound = spec.bound(tensor)
        beside = inputs[bound.name] if bound else None
        asked = values if values in known else tensor.values[0]
        if tensor.strides and spec.overlaps(tensor, workload.axes):
            whole = torch.empty(spec.span(tensor, workload.axes), dtype=dtype, device=device)
            draw(whole, asked, workload, rng)
            view = whole.as_strided(view.shape, spec.strides(tensor, workload.axes)).clone(
                memory_format=torch.contiguous_format
            )
        else:
            draw(view, asked, workload, rng, beside, edges=values == EDGES)
        inputs[tensor.name] = view
    return inputs


AS_TIMED = "as timed"
"""Every input from its first distribution, where no distribution's name says so."""


def distributions(spec: Spec, extra: dict[str, tuple[str, ...]]) -> list[str]:
    """Names for `draw_inputs`, so that every distribution of every input is drawn: what is timed first, none that gives the same as another."""
    known = [(*tensor.values, *extra.get(tensor.name, ())) for tensor in spec.inputs]
    firsts = tuple(values[0] for values in known)
    names = list(dict.fromkeys(name for values in known for name in values))
    drawn_as = {name: tuple(name if name in values else values[0] for values in known) for name in names}
    timed = [name for name in names if drawn_as[name] == firsts]
    found = {firsts: timed[0] if timed else AS_TIMED}
    for name in names:
        found.setdefault(drawn_as[name], name)
    if any(first.partition(":")[0] in EDGED for first in firsts):
        found[EDGES,] = EDGES
    return list(found.values()) if spec.inputs else ["ordinary"]
