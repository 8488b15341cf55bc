"""What is right for one set of inputs, and how far from it an output is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch

UNIT_ROUNDOFF = {
    "float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8, "float8_e4m3fn": 2.0**-4,
    "float8_e5m2": 2.0**-3,
}  # fmt: skip
BEYOND = 1e9
"""The error reported where it is infinite or not a number, so that records stay valid JSON."""


class Roundings(Protocol):
    """Outputs of a reference for the same inputs, each time otherwise rounded; made when asked for."""

    inputs: dict[str, torch.Tensor]

    def get(self, number: int) -> dict[str, torch.Tensor]: ...

    def turn(self, number: int) -> dict[str, torch.Tensor]: ...

    def follow(self, places: list[torch.Tensor]) -> dict[str, torch.Tensor]: ...

    def has_order(self, name: str) -> bool: ...


@dataclass
class Expected:
    """The right answer of one output in fp64, and how far from it each element may be."""

    value: torch.Tensor
    tolerance: torch.Tensor
    says: str

    def beside(self, got: torch.Tensor) -> Expected:
        """As much of it as an output with a length of its own is."""
        if not got.dim() or len(got) >= len(self.value):
            return self
        return Expected(self.value[: len(got)], self.tolerance[: len(got)], self.says)


class Right(dict[str, Expected]):
    """What is right for one set of inputs: by name the outputs that a reference gives, and what else must hold of all."""

    law: Callable[[dict[str, torch.Tensor]], str] | None = None
    """Outputs by name -> "" or which property they violate; None where the kernel has no properties.py."""
    doubted: Callable[[], Right | None] | None = None
    """Gives the same with the noise looked at more closely, for outputs that are not within it."""
    nans: bool = False
    """Whether only NaNs are compared: they come out where they must, and nowhere else (make_special)."""
    roundings: Roundings | None = None
    """Roundings of the reference, for elements that are on another side of a step."""


def errors(got: torch.Tensor, right: Expected, dtype: str) -> torch.Tensor:
    """Each element's error in tolerances, fp64; BEYOND where it is infinite or no number."""
    import torch

    value, out = right.value, got.to(torch.float64)
    # Only integers may have no tolerance at all.
    tolerance = right.tolerance if dtype in UNIT_ROUNDOFF else right.tolerance.clamp_min(1e-300)
    error = (out - value).abs_().div_(tolerance)
    if float(error.max()) <= 1.0:  # NaN never is; the rare cases below cost four more passes
        return error
    # Equal infinities differ by NaN; exact integers have tolerance 0 and difference 0.
    error.masked_fill_(out == value, 0.0)
    error.masked_fill_(out.isnan() & value.isnan(), 0.0)
    error = error.nan_to_num_(nan=BEYOND, posinf=BEYOND).clamp_max_(BEYOND)
    if dtype in UNIT_ROUNDOFF:
        top = torch.finfo(getattr(torch, dtype)).max
        overflow = (value.abs() + right.tolerance > top) & (out.isinf()) & (out.sign() == value.sign())
        error.masked_fill_(overflow, 0.0)
    return error


def numbers_only(got: torch.Tensor, right: Expected) -> torch.Tensor:
    """What came out as no number where right is one, or where anything is right, taken for right; an integer made of no number is
    anything."""
    import torch

    if got.dtype.is_floating_point:
        spread = (got.to(torch.float64).isnan() & ~right.value.isnan()) | right.tolerance.isinf()
        return torch.where(spread, right.value, got.to(torch.float64))
    return right.value
