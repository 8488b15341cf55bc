"""Tensors in tuples, lists, dicts and dataclasses: what a problem's module takes and returns."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

SCALARS = (int, float, bool, str, type(None))


class UnfitProblem(Exception):
    """The problem cannot be worked on; one sentence."""


# --- a problem's structure -------------------------------------------------------------------------------------------


def flatten(value: Any, tensors: list[torch.Tensor], what: str) -> Any:
    """Append the tensors of a nest of lists, tuples and dicts to `tensors`; answers the nest as JSON, tensors as numbers."""
    import torch

    if type(value) in (torch.Tensor, torch.nn.Parameter):
        tensors.append(value.detach())
        return {"t": len(tensors) - 1}
    if isinstance(value, SCALARS):
        return {"v": value}
    if type(value) is list:
        return {"l": [flatten(one, tensors, what) for one in value]}
    if isinstance(value, tuple):
        return {"u": [flatten(one, tensors, what) for one in value]}
    if type(value) is dict and all(isinstance(name, str) for name in value):
        return {"d": {name: flatten(one, tensors, what) for name, one in value.items()}}
    raise UnfitProblem(
        f"{what} a {type(value).__name__}, which is neither a tensor, a number, a text nor a list of such"
    )


def rebuilt(form: Any, tensors: list[Any]) -> Any:
    (kind, inner), *_ = form.items()
    if kind == "t":
        return tensors[inner]
    if kind == "v":
        return inner
    if kind == "l":
        return [rebuilt(one, tensors) for one in inner]
    if kind == "u":
        return tuple(rebuilt(one, tensors) for one in inner)
    return {name: rebuilt(one, tensors) for name, one in inner.items()}


def tensors_of(value: Any) -> list[Any]:
    """What a function returned, as a flat list without what is no tensor; a lone value as it is."""
    found: list[Any] = []
    outline(value, found)
    return [one for one in found if not isinstance(one, SCALARS)]


def leaves_of(value: Any) -> list[Any]:
    """What of a module's answer is judged: tensors, and its numbers as such."""
    found: list[Any] = []
    outline(value, found)
    return [as_tensor(one) for one in found]


def fields(value: Any) -> list[tuple[str, Any]] | None:
    """(name, value) of a named tuple, a dataclass or a dict; None for what is none."""
    if isinstance(value, tuple) and isinstance(names := getattr(value, "_fields", None), tuple):
        return list(zip(names, value, strict=True))
    if isinstance(value, dict):  # transformers' outputs are dicts and dataclasses
        return list(value.items())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(one.name, getattr(value, one.name)) for one in dataclasses.fields(value)]
    return None


def describe_access(value: Any) -> str:
    """How a user gets at a field: by attribute, by key, or by both."""
    by_key = isinstance(value, dict)
    return "attribute" if not by_key else "both" if dataclasses.is_dataclass(value) else "key"


def outline(value: Any, leaves: list[Any]) -> Any:
    """The structure of what a module returned, as JSON; what is judged is appended to `leaves`: tensors and numbers."""
    if (named := fields(value)) is not None:
        return {describe_access(value): [[str(name), outline(one, leaves)] for name, one in named]}
    if isinstance(value, (list, tuple)):
        return {"list": [outline(one, leaves) for one in value]}
    if value is None or isinstance(value, str):
        return {"v": value}
    leaves.append(value)
    return {"t": len(leaves) - 1}


def as_tensor(value: Any, device: str = "cpu", wide: bool = False) -> Any:
    """A number as a tensor without dimensions, float32 where it is none of `wide` inputs; anything else as it is."""
    import torch

    if type(value) not in (bool, int, float):
        return value
    dtype = None if type(value) is not float else torch.float64 if wide else torch.float32
    return torch.tensor(value, dtype=dtype, device=device)


def pick_leaves(form: Any, value: Any, leaves: list[Any], where: str = "what it returns") -> None:
    """Append what is judged of a candidate's answer, in the order of Model's. Raises ValueError where a user of Model's would not
    get at it in the same way."""
    (kind, inner), *_ = form.items()
    if kind == "t":
        if isinstance(value, (list, tuple, dict)):
            raise ValueError(f"{where} is a {type(value).__name__} of {len(value)} values, should be one tensor")
        leaves.append(value)
    elif kind == "v":
        if value != inner or type(value) is not type(inner):
            raise ValueError(f"{where} is a {type(value).__name__}, should be {inner!r}")
    elif kind == "list":
        if not isinstance(value, (list, tuple)) or len(value) != len(inner):
            count = f" of {len(value)}" if isinstance(value, (list, tuple)) else ""
            raise ValueError(f"{where} is a {type(value).__name__}{count}, should be {len(inner)} values")
        for at, (one, found) in enumerate(zip(inner, value, strict=True)):
            pick_leaves(one, found, leaves, f"{where}[{at}]")
    else:
        named = dict(fields(value) or [])
        missing = [name for name, _ in inner if name not in named]
        if (
            fields(value) is None
            or missing
            or (kind, describe_access(value)) in (("attribute", "key"), ("key", "attribute"))
        ):
            lacks = f" without {missing[0]}" if missing and fields(value) is not None else ""
            names = ", ".join(name for name, _ in inner)
            raise ValueError(f"{where} is a {type(value).__name__}{lacks}; Model's has, by {kind}: {names}")
        if isinstance(value, tuple) and [name for name, _ in fields(value) or []] != [name for name, _ in inner]:
            raise ValueError(f"{where} has its fields in another order than Model's")
        for name, one in inner:
            pick_leaves(one, named[name], leaves, f"{where}.{name}")
