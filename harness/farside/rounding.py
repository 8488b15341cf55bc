"""Another honest rounding of the same formula: every operator's result off by some units at random, exact ones left alone.

A kernel may compute a reference's formula in another order, by other operators. Where the formula rounds, compares or picks,
that moves a few elements to the other side of a step. Which ones is found by Monte Carlo arithmetic (D. Stott Parker, 1997): the
reference runs once more, each result that a format of `bits` bits cannot hold moved at random and rounded to it. What it can
hold is exact in any order: a tie of numbers that are known exactly stays a tie, and has one right answer.

What picks by a computed number, a ranking of sigmoids of large numbers, has many right answers where these are equal in the format: each
turn of the reference takes another of those that share a place (`Rounding.turn`).

Used by the parent for kernel folders, and on the far side for problems. Standard library and torch only.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

WIDE_BITS = 53
_SUMS = frozenset(
    f"aten::{name}" for name in ("sum", "mean", "mm", "bmm", "addmm", "baddbmm", "dot", "mv", "cumsum", "var", "std", "index_add", "scatter_add", "linear")
)  # fmt: skip
"""Operators that add up: a narrow accumulator rounds in between even where the format can hold the sum."""


_LARGEST = {
    "aten::topk": True,
    "aten::sort": False,
    "aten::argmax": True,
    "aten::argmin": False,
    "aten::max": True,
    "aten::min": False,
}
"""Operators that pick by value, and whether the largest come first where no argument says it."""
_MOVES = frozenset(
    f"aten::{name}" for name in (
        "_to_copy", "clone", "contiguous", "neg", "abs", "relu", "clamp", "maximum", "minimum", "amax", "amin", "where", "masked_fill", "index",
        "index_select", "gather", "cat", "stack", "flip", "roll", "repeat", "sort", "topk", "max", "min",
    )
)  # fmt: skip
"""Operators whose results hold numbers that were there, up to the sign, beside views."""
_FAR = 2.0**960
"""What no splitting of smaller numbers overflows by."""
_FLUSHED = 2.0**-126
"""Smaller numbers are 0 to who flushes subnormal ones."""


class Rounding(TorchDispatchMode):
    """A context in which results of fp64 operators (and, at 24 bits, of fp32 ones) are those of another rounding."""

    def __init__(
        self, bits: int, units: float, sum_units: float, *, holds: bool = True, smallest: float = 0.0, turn: int | None = None,
        unstable: bool = False, loosely: float | None = None, picks: Any = (),
    ) -> None:  # fmt: skip
        """bits: of the format. units: how far a result may be off, in its unit roundoffs. sum_units: of operators that take in
        many elements, so much for each of these too. `holds`: what was moved is rounded to the format. smallest: where above 0 the
        format's smallest number, by half of which any result may be off too, and sums are kept in the format, so that one which it can hold is inexact.
        `turn`: nothing is moved, but of computed values that are equal in the format those are picked that stand half as many places
        behind; odd turns round them to a grid in between. `unstable`: of equal values that a stable sort ranks, too. `picks`: nests of places, which are taken
        by a result of that shape wherever they hold the same but for rounding. `loosely`: nothing is moved, but
        zero times whatever is no finite number is zero, and what an operator makes no number of numbers is this."""
        super().__init__()
        self.bits, self.units, self.sum_units, self.holds, self.smallest = bits, units, sum_units, holds, smallest
        self.turn, self.unstable, self.loosely = turn, unstable, loosely
        self.picks = [torch.tensor(one) for one in picks]
        self.computed: weakref.WeakValueDictionary[int, torch.Tensor] = weakref.WeakValueDictionary()
        """Tensors whose values are known but for rounding, by id."""
        self.generators: dict[torch.device, torch.Generator] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """To be told to leave this alone torch's compiler would be imported, which takes 1.5 s: only where it is there."""
        return "torch._dynamo" in sys.modules

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.turn is not None:
            return self._pick(operator, args, kwargs)
        if self.loosely is not None:
            return self._leave(operator, args, kwargs)
        name, draws, views, mutates, pointwise = _facts(operator)
        if draws or views:
            return operator(*args, **kwargs)
        narrow = self.bits == 24 and not mutates and self._narrow(args, kwargs)
        result = operator(*args, **kwargs)
        exact = self._widened(operator, args, kwargs, result) if narrow else result
        divided = self._by_what(name, args, kwargs)
        sums = not mutates and not pointwise
        every = sums and self.smallest > 0 and name in _SUMS
        masks = {id(one): self._inexact(one, divided, every) for one in _tensors(exact)}
        masks = {key: mask for key, mask in masks.items() if mask is not None and bool(mask.any())}
        if not masks:
            return result
        moved, units = exact, self.units
        if sums:
            units = max(units, self.sum_units)
            wide = (_cast(args), _cast(kwargs)) if narrow else (args, kwargs)
            moved = operator(*_map(self._shaken, wide[0]), **_map(self._shaken, wide[1]))
            moved = self._decentred(name, args, moved)
        return _each(
            lambda was, whole, off: self._settle(was, whole, off, units, masks.get(id(whole))), result, exact, moved
        )

    def _pick(self, operator: Any, args: Any, kwargs: Any) -> Any:
        """What the operator makes, of values that share a place others than it picks."""
        result = operator(*args, **kwargs)
        known = any(id(one) in self.computed for one in _tensors([args, kwargs]))
        name, _draws, views, mutates, _pointwise = _facts(operator)
        if name in _LARGEST and not mutates:
            arguments = operator._schema.arguments
            given = {one.name: one.default_value for one in arguments}
            given |= dict(zip(given, args, strict=False)) | kwargs
            if "dim" in given:
                result = self._turned(name, given, result, known)
        for one in _tensors(result):
            if one.dtype.is_floating_point:
                inexact = None if known or views or name in _MOVES else self._inexact(one)
                if known or (inexact is not None and bool(inexact.any())):
                    self.computed[id(one)] = one
        return result

    def _leave(self, operator: Any, args: Any, kwargs: Any) -> Any:
        """What the operator makes for who leaves out what is times zero."""
        assert self.loosely is not None
        name, draws, views, mutates, _pointwise = _facts(operator)
        if draws or views:
            return operator(*args, **kwargs)
        numbers = all(not bool(one.isnan().any()) for one in _tensors([args, kwargs]) if one.is_floating_point())
        factors = args[_FACTORS[name] :][:2] if name in _FACTORS and not kwargs else ()
        factors = tuple(one.clone() if isinstance(one, torch.Tensor) and mutates else one for one in factors)
        result = operator(*args, **kwargs)
        if isinstance(result, torch.Tensor) and factors and not bool(result.isfinite().all()):
            left = _without_zeros(operator, name, args, factors, result)
            result = result.copy_(left) if mutates else left
        if numbers:
            for one in _tensors(result):
                if one.is_floating_point():
                    one.masked_fill_(one.isnan(), self.loosely)
        return result

    def _turned(self, name: str, given: dict[str, Any], result: Any, computed: bool) -> Any:
        """Picked values and places, those that share a place turned. What is not `computed` shares it where it is equal, and only where
        nothing says which of equal ones comes first."""
        values, dim, keeps = given["self"], given["dim"], bool(given.get("keepdim", True))
        specified = name not in ("aten::topk", "aten::sort") or (bool(given.get("stable")) and not self.unstable)
        if (
            values.dtype != torch.float64
            or not values.dim()
            or (specified and not computed)
            or (name in ("aten::argmin", "aten::min") and bool(values.isnan().any()))
        ):
            return result
        flat = dim is None
        rows = values.flatten() if flat else values.movedim(dim, -1)
        descending = bool(given.get("largest", given.get("descending", _LARGEST[name])))
        held, places = rows.sort(dim=-1, descending=descending, stable=True)
        assert self.turn is not None
        grid = held
        if computed:
            grid = torch.where(held.abs() < _FLUSHED, 0.0, held) * (1 + self.turn % 2 * 2.0 ** (-1 - self.bits))
            grid = _to_bits(grid, self.bits)
        at = torch.arange(held.shape[-1], device=held.device).expand(held.shape)
        fresh = torch.ones_like(held, dtype=torch.bool)
        fresh[..., 1:] = (grid[..., 1:] != grid[..., :-1]) & ~(grid[..., 1:].isnan() & grid[..., :-1].isnan())
        # Those that share a place by where they stand, as a stable order has them.
        first = (fresh.cumsum(-1) * held.shape[-1] + places).sort(dim=-1).indices
        held, places = held.gather(-1, first), places.gather(-1, first)
        start = torch.where(fresh, at, 0).cummax(-1).values
        behind = torch.where(fresh, at, held.shape[-1])[..., 1:]
        end = torch.cat((behind, torch.full_like(at[..., :1], held.shape[-1])), -1).flip(-1).cummin(-1).values.flip(-1)
        source = start + (at - start + self.turn // 2) % (end - start)
        count = given.get("k", held.shape[-1] if name == "aten::sort" else 1)
        source = source[..., :count]
        for wanted in self.picks:
            rows = (
                wanted.flatten()
                if flat
                else wanted.unsqueeze(-1)
                if wanted.dim() < values.dim()
                else wanted.movedim(dim, -1)
            )
            if rows.shape == source.shape and not bool((rows.sort(dim=-1).values.diff(dim=-1) == 0).any()):
                at_wanted = (places.unsqueeze(-2) == rows.to(places).unsqueeze(-1)).int().argmax(-1)
                theirs, ours = held.gather(-1, at_wanted), held[..., :count]
                shares = (at_wanted >= start[..., :count]) & (at_wanted < end[..., :count])
                if computed:  # or is on another side of the grid
                    shares |= (theirs - ours).abs() <= ours.abs() * 2.0**-self.bits
                source = torch.where(shares, at_wanted, source)
        picked = [one.gather(-1, source) for one in (held, places)]
        if name not in ("aten::topk", "aten::sort") and (flat or not keeps):
            picked = [one.squeeze(-1) for one in picked]
        elif not flat:
            picked = [one.movedim(-1, dim) for one in picked]
        if not isinstance(result, (tuple, list)):
            return picked[1].reshape(result.shape)
        return type(result)(picked) if type(result) in (tuple, list) else type(result)(tuple(picked))

    def _decentred(self, name: str, args: Any, result: Any) -> Any:
        """What a norm makes where its mean is off by some units of its deviation, the same for all that share the mean."""
        made = result[0] if isinstance(result, (tuple, list)) else result
        axes = _axes_of_norm(name, args, made)
        if not axes:
            return result
        rows, axes = (made.view(len(made), args[6], -1), (2,)) if axes == "groups" else (made, axes)
        deviation = rows.var(dim=axes, unbiased=False, keepdim=True).sqrt()
        off = (rows + deviation * (self._random(deviation, self.units) - 1)).view(made.shape)
        return (off, *result[1:]) if isinstance(result, (tuple, list)) else off

    def _narrow(self, args: Any, kwargs: Any) -> bool:
        """Whether it computes in fp32: some operand is of it, none is wider."""
        found = {one.dtype for one in _tensors([args, kwargs])}
        return torch.float32 in found and torch.float64 not in found and kwargs.get("dtype") is None

    def _widened(self, operator: Any, args: Any, kwargs: Any, result: Any) -> Any:
        try:
            return operator(*_cast(args), **_cast(kwargs))
        except RuntimeError:  # it has no fp64 form
            return result

    def _by_what(self, name: str, args: Any, kwargs: Any) -> torch.Tensor | None:
        """What a division divides by, fp64: whoever multiplies by its inverse is as honest."""
        if name not in ("aten::div", "aten::div_") or len(args) < 2 or kwargs.get("rounding_mode"):
            return None
        return torch.as_tensor(args[1]).double()

    def _inexact(
        self, value: torch.Tensor, divided: torch.Tensor | None = None, every: bool = False
    ) -> torch.Tensor | None:
        """bool of its shape, None where it is none of ours. `divided`: what it is a quotient by. `every`: all of it is."""
        if value.dtype != torch.float64:
            return None
        plain = _plain(value)
        if every:
            return torch.ones_like(value, dtype=torch.bool) if plain else value.isfinite()
        inexact = _to_bits(value, self.bits, plain=plain) != value
        if divided is not None:
            inverse = 1.0 / divided.to(value.device)
            inexact |= (self._rounded(inverse) != inverse) & (value != 0)
        return inexact if plain else inexact & value.isfinite()

    def _rounded(self, value: torch.Tensor) -> torch.Tensor:
        return _to_bits(value, self.bits)

    def _random(self, like: torch.Tensor, units: float) -> torch.Tensor:
        """1 + so many unit roundoffs at most, uniform."""
        if like.device not in self.generators:
            made = torch.Generator(device=like.device)
            made.seed()
            self.generators[like.device] = made
        by = units * 2.0**-self.bits
        drawn = torch.empty(like.shape, dtype=torch.float64, device=like.device)
        return drawn.uniform_(1 - by, 1 + by, generator=self.generators[like.device])

    def _shaken(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.dtype != torch.float64:
            return value
        moved = value * self._random(value, max(self.units, self.sum_units))
        return torch.rand_like(moved).sub_(0.5).mul_(self.smallest).add_(moved) if self.smallest else moved

    def _settle(self, was: Any, whole: Any, off: Any, units: float, inexact: torch.Tensor | None) -> Any:
        """The result, its inexact elements moved, in place where somebody else holds it too."""
        if inexact is None:
            return was
        if off.shape != whole.shape:
            off = whole
        moved = self._random(off, units).mul_(off)
        if self.smallest:
            moved += torch.rand_like(moved).sub_(0.5).mul_(self.smallest)
        return was.copy_(torch.where(inexact, self._rounded(moved) if self.holds else moved, whole))


_FACTORS = {
    "aten::mul": 0,
    "aten::mul_": 0,
    "aten::mm": 0,
    "aten::bmm": 0,
    "aten::mv": 0,
    "aten::addmm": 1,
    "aten::baddbmm": 1,
}
"""Operators that multiply, and where their two factors begin."""


def _without_zeros(operator: Any, name: str, args: Any, factors: Any, result: torch.Tensor) -> torch.Tensor:
    """A product that is not finite, but without its terms of zero times what is not."""
    one, other = (torch.as_tensor(f, dtype=result.dtype, device=result.device) for f in factors)
    if name in ("aten::mul", "aten::mul_"):
        return result.masked_fill((one == 0) | (other == 0), 0.0)
    finite = [f.masked_fill(~f.isfinite(), 0.0) for f in (one, other)]
    reached = torch.matmul((~one.isfinite()).to(one), (other != 0).to(one))
    reached += torch.matmul((one != 0).to(one), (~other.isfinite()).to(one))
    return torch.where(reached > 0, result, operator(*args[: _FACTORS[name]], *finite))


@functools.cache
def _facts(operator: Any) -> tuple[str, bool, bool, bool, bool]:
    """Its name, and whether it draws, is a view, mutates, is pointwise: to ask torch at each call takes as long as small tensors do."""
    tags, schema = operator.tags, operator._schema
    draws, pointwise = torch.Tag.nondeterministic_seeded in tags, torch.Tag.pointwise in tags
    return schema.name, draws, operator.is_view, schema.is_mutable, pointwise


def _tensors(given: Any) -> Iterator[torch.Tensor]:
    """Those in a nest of arguments or results."""
    if isinstance(given, torch.Tensor):
        yield given
    elif isinstance(given, (tuple, list, dict)):
        for one in given.values() if isinstance(given, dict) else given:
            yield from _tensors(one)


def _map(function: Callable[[Any], Any], given: Any) -> Any:
    """A nest of arguments with `function` of each leaf in its place, a third of torch.utils._pytree.tree_map's time."""
    if type(given) in (tuple, list):
        return type(given)([_map(function, one) for one in given])
    if type(given) is dict:
        return {name: _map(function, one) for name, one in given.items()}
    return function(given)


def _plain(value: torch.Tensor) -> bool:
    """Whether all of it is finite and far from the largest numbers: one pass, where torch's isfinite and what follows take six."""
    if not value.numel():
        return True
    low, high = value.aminmax()
    return float(low) >= -_FAR and float(high) <= _FAR


def _to_bits(value: torch.Tensor, bits: int, *, plain: bool | None = None) -> torch.Tensor:
    """To the nearest of so many bits (Dekker's splitting); what overflows in between stays as it is. `plain`: what `_plain` says of it."""
    spread = value * (2.0 ** (WIDE_BITS - bits) + 1)
    rounded = spread.sub_(spread - value)
    if _plain(value) if plain is None else plain:
        return rounded
    return torch.where(rounded.isfinite(), rounded, value)


def _axes_of_norm(name: str, args: Any, made: Any) -> Any:
    """Axes over which a norm takes its mean, "groups" for parts of the second one with all behind it; None for another operator."""
    if not isinstance(made, torch.Tensor) or made.dim() < 2 or made.dtype != torch.float64:
        return None
    if "batch_norm" in name:
        return tuple(axis for axis in range(made.dim()) if axis != 1)
    if name == "aten::native_layer_norm":
        return tuple(range(made.dim() - len(args[1]), made.dim()))
    return "groups" if name == "aten::native_group_norm" else None


def _cast(given: Any) -> Any:
    return _map(
        lambda one: one.double() if isinstance(one, torch.Tensor) and one.dtype == torch.float32 else one, given
    )


def _each(function: Any, result: Any, *others: Any) -> Any:
    if isinstance(result, (tuple, list)):
        made = [_each(function, *rest) for rest in zip(result, *others, strict=True)]
        return type(result)(made) if type(result) in (tuple, list) else type(result)(*made)
    return function(result, *others)
