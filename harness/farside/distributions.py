"""How a problem's inputs are distributed, found from its draws."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


SAMPLED = 1 << 18
"""Elements of a tensor by which its distribution is judged."""
MOST_VALUES = 4096
"""Distinct values of an input that are sent to the parent, where it has few."""
REPEATED = 0.5
"""Share of distinct values among 32-bit floats below which they are few: of a continuous range 262,144 have repeats in
2 %, of a lattice nearly all."""
FEW_VALUES = 64
"""Distinct 16-bit floats up to which they are few; torch.rand makes 256."""
BY_CHANCE = 3
"""Elements that two draws may share beside one in a hundred: of 64 normal bfloat16 numbers every fourth pair of draws shares one."""
UNEVEN = 4
"""Standard deviations by which the share of what is set among booleans is no half."""
LOOKED = 1 << 22
ALTERNATIVES = {
    "uniform": ("ordinary", "large"),
    "scaled": ("ordinary", "large"),
    "ordinary": ("uniform", "large", "zeros", "outliers"),
    "normal": ("uniform", "large", "zeros", "outliers"),
}
"""Other distributions for inputs of a kind, tried one after another."""


def take_sample(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.reshape(-1)
    return wide_enough(flat[:: max(1, len(flat) // SAMPLED)].clone())


def wide_enough(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, in float32 where it is of 8-bit floats, for which torch has hardly an operator."""
    return tensor.float() if tensor.is_floating_point() and tensor.itemsize == 1 else tensor


def distribution(draws: list[torch.Tensor]) -> str:
    """How the parent may draw such a tensor itself; `given` where only get_inputs() can, `among` where its values are few."""
    import torch

    whole = torch.cat(draws)
    first, *others = draws
    alike = torch.stack([first == other for other in others]).all(dim=0)
    if whole.dtype == torch.bool:
        kept = bool(alike.all()) or (len(first) > 64 and float(alike.float().mean()) > 0.99)
        # Of a mask that is rarely set, or rarely not, whole rows are empty; of one as often set as not hardly one is.
        uneven = abs(float(whole.double().mean()) - 0.5) > UNEVEN * math.sqrt(0.25 / len(whole))
        return "given" if kept or uneven else "integers:0:2"
    if not whole.dtype.is_floating_point:
        low, high = int(whole.min()), int(whole.max())
        counts = torch.bincount((whole.long() - low).clamp_max(1 << 16), minlength=1) if high - low < 1 << 16 else None
        chance = 4.0 / max(1, high - low + 1) + 0.02
        sorted_ = len(first) > 8 and bool((first[1:] >= first[:-1]).all())
        uneven = (
            counts is not None and len(whole) > 40 * len(counts) and float(counts.min()) < 0.5 * float(counts.max())
        )
        distinct = len(first) > 8 and len(first.unique()) == len(first)
        if float(alike.float().mean()) > chance or sorted_ or uneven or distinct or high == low or is_crowded(whole):
            return "given"
        return f"integers:{low}:{high + 1}"
    if len(whole) < 64 or float(alike.sum()) > 0.01 * len(first) + BY_CHANCE or not bool(whole.isfinite().all()):
        return "given"
    values = whole.double().sort().values
    if is_lattice(values, whole.dtype):  # what lies between is never drawn, and ties are
        return "among"
    least, most = float(values[0]), float(values[-1])
    if least >= 0 and most <= 1 and uniform(values):
        return "uniform"
    if uniform(torch.special.ndtr(values)):
        return "ordinary"
    mean, deviation = float(values.mean()), float(values.std())
    if deviation > 1e-3 and uniform(torch.special.ndtr((values - mean) / deviation)):
        mean = 0.0 if abs(mean) < 0.05 * deviation else mean  # any sign may be changed of its values
        return f"normal:{mean:.6g}:{deviation:.6g}"
    span = (most - least) * (1 + 2 / len(values))
    if uniform((values - least) / span):
        return f"range:{least:.6f}:{most:.6f}"
    # torch.rand(n) * torch.rand(()): up to an end that another draw does not share.
    if least >= 0 and most <= 1 and all(uniform((one.double() / one.max()).sort().values) for one in draws):
        return "scaled"
    return "given"


def is_lattice(values: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether sorted floats are of few values that lie further apart than their dtype's own. values: float64."""
    import torch

    different = values.unique_consecutive()
    if len(different) < 2 or len(different) > (MOST_VALUES if dtype.itemsize > 2 else FEW_VALUES):
        return False
    spacing = torch.finfo(dtype).eps * float(values.abs().max())
    return len(different) < REPEATED * len(values) and float(different.diff().min()) > 2 * spacing


def is_crowded(whole: torch.Tensor) -> bool:
    """Whether some integer comes more often, or fewer of them come, than of a range: -100 among targets, 255 among classes."""
    values, counts = whole.unique(return_counts=True)
    span = float(int(values[-1]) - int(values[0]) + 1)
    mean = len(whole) / span
    seen = span * -math.expm1(-mean)
    return float(counts.max()) > mean + 8 * math.sqrt(mean) + 8 or len(values) < 0.8 * seen - 4


def table_of(draws: list[torch.Tensor]) -> dict[str, Any] | None:
    """The values of elements that do not depend on their places, and how often each comes; None where there are too many."""
    import torch

    whole = torch.cat(draws)
    first, *others = draws
    values, counts = wide_enough(whole).unique(return_counts=True)
    if len(whole) < 64 or not 2 <= len(values) <= MOST_VALUES:
        return None
    shares = counts.double() / len(whole)
    # Elements of several draws are alike as often as chance has it, unless they have places of their own.
    alike = float(torch.stack([first == other for other in others]).all(dim=0).double().mean())
    chance = float(shares.pow(len(draws)).sum())
    placed = abs(alike - chance) > 6 * math.sqrt(chance / len(first)) + 8 / len(first)
    if placed or bool((first[1:] >= first[:-1]).all()) or len(first.unique()) == len(first):
        return None
    return {"values": values.tolist(), "shares": shares.tolist()}


def centre(tensor: torch.Tensor) -> torch.Tensor:
    """float64, less its mean, of at most LOOKED elements of the tensor."""
    while tensor.numel() > LOOKED:
        longest = max(range(tensor.dim()), key=lambda dim: tensor.shape[dim])
        tensor = tensor.narrow(longest, 0, tensor.shape[longest] // 2)
    values = wide_enough(tensor).double()
    return values - values.mean()


def is_structured(tensor: torch.Tensor) -> bool:
    """Whether elements of a draw depend on each other or on their places, as far as moments over each dimension show."""
    values = centre(tensor)
    total = float(values.square().mean())
    if not total or is_bound(tensor):  # NaN is no zero
        return True
    for moments in (values, values.square() - total):
        spread = float(moments.square().mean())
        if not spread > 1e-9 * total * total:  # two values of one size
            continue
        for dim, size in enumerate(values.shape):
            others = values.numel() // size
            if size < 8:
                continue
            if others > 1:
                means = moments.mean(dim=[d for d in range(values.dim()) if d != dim])
                if abs(float(means.square().mean()) * others / spread - 1) > 6 * math.sqrt(2 / size) + 8 / others:
                    return True
            near = float((moments.narrow(dim, 1, size - 1) * moments.narrow(dim, 0, size - 1)).mean()) / spread
            if abs(near) > 6 / math.sqrt(values.numel()) + 1 / size:
                return True
    return False


def is_bound(tensor: torch.Tensor) -> bool:
    """Whether elements of a draw are bound to each other exactly: symmetric, sorted, of one sum or one length over a dimension."""
    import torch

    if tensor.dim() >= 2 and tensor.shape[-1] == tensor.shape[-2] > 1 and tensor.dtype.is_floating_point:
        wide = wide_enough(tensor)
        if torch.equal(wide, wide.mT) or torch.equal(wide, -wide.mT):
            return True
    values = centre(tensor)
    for dim, size in enumerate(values.shape):
        if size < 8:
            continue
        if float((values.narrow(dim, 1, size - 1) >= values.narrow(dim, 0, size - 1)).double().mean()) > 0.99:
            return True
        for moments in (values, wide_enough(tensor).double().square() if tensor.numel() == values.numel() else values):
            sums = moments.sum(dim)
            usual = moments.abs().sum(dim).mean() / math.sqrt(size)
            if sums.numel() > 1 and float(sums.std()) < 1e-4 * float(usual):
                return True
    return False


def own_kind(draws: list[torch.Tensor], bound: bool, structured: bool) -> str:
    """The kind of an input that is of no known distribution: `among` where its elements depend on nothing, `near` where the
    floats that
    differ between draws hardly ever repeat and its zeros have their places, so that their mantissas may be others."""
    import torch

    first, *others = draws
    if bound or not first.dtype.is_floating_point or first.dtype.itemsize < 4:
        return "given"
    alike = torch.stack([first == other for other in others]).all(dim=0)
    moving = first[~alike & (first != 0)]
    if len(moving) < 64 or not bool(moving.isfinite().all()) or len(moving.unique()) < 0.95 * len(moving):
        return "given"
    if not structured and bool(torch.stack([one.isfinite().all() for one in draws]).all()):
        return "among"
    return "near" if all(torch.equal(first == 0, other == 0) for other in others) else "given"


def uniform(values: torch.Tensor) -> bool:
    """Whether values in their order are distributed evenly from 0 to 1, by the largest distance of their cumulative shares from a line."""
    import torch

    n = len(values)
    steps = torch.arange(1, n + 1, dtype=torch.float64) / n
    return float((values - steps).abs().max()) < 2.5 / math.sqrt(n) + 1e-3


def others(values: str, dtype: str) -> tuple[str, ...]:
    """Other distributions that inputs of that one and dtype may be tried with. Numbers that are none of a mask's, and never negative, as
    far below zero too: fmod passed for remainder. Integers that are never zero may be what is divided by."""
    kind, *bounds = values.split(":")
    if kind == "integers" and int(bounds[0]) == 0 and int(bounds[1]) > 2 and dtype in ("int16", "int32", "int64"):
        return (f"integers:{1 - int(bounds[1])}:{bounds[1]}",)
    if kind == "range" and float(bounds[0]) >= 0:
        return (f"range:-{bounds[1]}:{bounds[1]}",)
    return ALTERNATIVES.get(kind, ())


def alternative(like: torch.Tensor, name: str) -> torch.Tensor:
    """About what harness/checks/drawing.py draws under that name."""
    import torch

    if name == "uniform":
        return torch.rand_like(like)
    kind, *bounds = name.split(":")
    if bounds:
        low, high = map(float, bounds)
        drawn = (
            torch.empty_like(like).uniform_(low, high)
            if kind == "range"
            else torch.randint_like(like, int(low), int(high))
        )
        drawn[(0,) * drawn.dim()] = low  # however few there are
        return drawn
    drawn = torch.randn_like(like)
    if name == "large":
        return drawn * 30
    if name == "zeros":
        return drawn.masked_fill(torch.rand_like(like) < 0.5, 0)
    return drawn * torch.where(torch.rand_like(like) < 0.001, 300.0, 1.0) if name == "outliers" else drawn
