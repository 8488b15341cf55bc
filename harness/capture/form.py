"""What was captured as a definition with workloads: which extents are one axis, which numbers are inputs, what is stored."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from harness.capture import source
from harness.capture.source import CaptureError

if TYPE_CHECKING:
    import torch


Tensors = dict[str, "torch.Tensor"]


MOST_WORKLOADS = 64
"""The most frequent kinds become workloads."""
MOST_STORED_BYTES = 32 << 20
"""Bytes of a workload's stored values (upper bound); the importer takes no more."""


@dataclass(frozen=True)
class CapturedForm:
    """A tensor as one call had it."""

    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...]

    @property
    def contiguous(self) -> bool:
        expected, strides = 1, []
        for extent in reversed(self.shape):
            strides.append(expected)
            expected *= extent
        pairs = zip(self.shape, self.strides, reversed(strides), strict=True)
        return all(extent < 2 or is_ == wanted for extent, is_, wanted in pairs)


@dataclass
class Kind:
    """One set of shapes, dtypes, strides and numbers."""

    tensors: dict[str, CapturedForm]
    numbers: dict[str, Any]
    """Arguments that are no tensors."""
    count: int = 0
    values: dict[str, str] = field(default_factory=dict)
    """Input -> a distribution of kernels.spec, or `stored`."""
    kept: dict[str, torch.Tensor] = field(default_factory=dict)
    outputs: tuple[CapturedForm, ...] = ()


class Recorded(Protocol):
    """Whose calls are written down."""

    function: Callable[..., Any]
    axes: dict[str, tuple[str, ...]]
    __name__: str
    __module__: str


def write_definition(
    recorder: Recorded, kinds: list[Kind]
) -> tuple[dict[str, Any], list[dict[str, Any]], dict[str, Tensors]]:
    """(definition, workloads, stored tensors by file) of these kinds of calls, the most frequent first.

    Raises CaptureError.
    """
    every = sum(kind.count for kind in kinds)
    kinds = _alike(kinds)[:MOST_WORKLOADS]
    first = kinds[0]
    numbers = [name for name, value in first.numbers.items() if type(value) in (int, float, bool)]
    fixed = {name: value for name, value in first.numbers.items() if name not in numbers}
    extents = _extents(recorder, kinds)
    axes = _axes(extents)
    stored: dict[str, Tensors] = {}
    lines = []
    kept_by = {name for kind in kinds for name in kind.kept}
    for place, kind in enumerate(kinds):
        inputs: dict[str, dict[str, Any]] = {name: {"type": "scalar", "value": kind.numbers[name]} for name in numbers}
        for name in kind.tensors:
            inputs[name] = {"type": "random"}
            if name in kept_by:
                if name not in kind.kept:
                    raise CaptureError(
                        f"{recorder.__name__}: {name} is {kind.values[name]} in some calls and nothing known in others: say which "
                        f"by values={{{name!r}: ...}}"
                    )
                file = f"inputs/{place}.safetensors"
                stored.setdefault(file, {})[name] = kind.kept[name]
                inputs[name] = {"type": "safetensors", "path": file, "tensor_key": name}
        size = sum(tensor.nbytes for tensor in stored.get(f"inputs/{place}.safetensors", {}).values())
        if size > MOST_STORED_BYTES:
            raise CaptureError(
                f"{recorder.__name__}: the values of {', '.join(sorted(kept_by))} take {size >> 20} MiB in a call, and at most "
                f"{MOST_STORED_BYTES >> 20} are stored: name a distribution by values={{...}} for the largest"
            )
        sizes = {name: values[place] for name, values in axes.items() if len(values) > 1 or name == _open(axes)}
        lines.append({"uuid": f"call-{place}", "axes": sizes, "inputs": inputs, "calls": kind.count})
    definition = {
        "name": re.sub(r"[^A-Za-z0-9._-]", "_", recorder.__name__).lstrip("._-") or "captured",
        "op_type": "captured",
        "description": _said(recorder, kinds, every),
        "strided": _strided(kinds),
        "axes": {
            name: {"type": "var"} if len(values) > 1 or name == _open(axes) else {"type": "const", "value": values[0]}
            for name, values in axes.items()
        },
        "inputs": _inputs(recorder, first, kept_by, extents, axes),
        "outputs": {
            f"out_{at}" if len(first.outputs) > 1 else "out": {
                "shape": _named(extents[f"out_{at}"], axes), "dtype": form.dtype,
            }
            for at, form in enumerate(first.outputs)
        },
        "reference": _reference(recorder, fixed),
        "captured": True,
    }  # fmt: skip
    return definition, lines, stored


def _alike(kinds: list[Kind]) -> list[Kind]:
    """Those with the most calls that agree in dtypes, ranks and what is no number, since a definition fixes these."""

    def form(kind: Kind) -> Any:
        tensors = (*kind.tensors.items(), *((f"out_{at}", one) for at, one in enumerate(kind.outputs)))
        others = [(name, repr(v)) for name, v in kind.numbers.items() if type(v) not in (int, float, bool)]
        return tuple((name, one.dtype, len(one.shape)) for name, one in tensors), tuple(kind.numbers), tuple(others)

    counts: Counter[Any] = Counter()
    for kind in kinds:
        counts[form(kind)] += kind.count
    common = counts.most_common(1)[0][0]
    return [kind for kind in kinds if form(kind) == common]


def _extents(recorder: Recorded, kinds: list[Kind]) -> dict[str, list[tuple[str, tuple[int, ...]]]]:
    """Tensor -> of each dimension a name that it would like, and its sizes over the calls."""
    found = {}
    for name in (*kinds[0].tensors, *(f"out_{at}" for at in range(len(kinds[0].outputs)))):
        forms = [
            kind.tensors[name] if name in kind.tensors else kind.outputs[int(name.removeprefix("out_"))]
            for kind in kinds
        ]
        wanted = recorder.axes.get(name) or tuple(f"{name}_{dim}" for dim in range(len(forms[0].shape)))
        if len(wanted) != len(forms[0].shape):
            raise CaptureError(f"axes names {len(wanted)} dimensions of {name}, which has {len(forms[0].shape)}")
        found[name] = [(wanted[dim], tuple(form.shape[dim] for form in forms)) for dim in range(len(wanted))]
    return found


def _axes(extents: dict[str, list[tuple[str, tuple[int, ...]]]]) -> dict[str, tuple[int, ...]]:
    """Axis -> its sizes over the calls, one where they are all the same. Dimensions of the same sizes are one axis."""
    found: dict[str, tuple[int, ...]] = {}
    for dimensions in extents.values():
        for wanted, sizes in dimensions:
            values = sizes if len(set(sizes)) > 1 else sizes[:1]
            if values not in found.values():
                found[wanted if wanted not in found else f"{wanted}_{len(found)}"] = values
    if all(len(values) == 1 for values in found.values()):  # one size of everything: its first may be another
        first = next(iter(found))
        found[first] = tuple(found[first] * len(next(iter(extents.values()))[0][1]))
    return found


def _open(axes: dict[str, tuple[int, ...]]) -> str:
    """The axis that is left open where every one had a single size, else ""."""
    return next(iter(axes)) if all(len(set(values)) == 1 for values in axes.values()) else ""


def _named(dimensions: list[tuple[str, tuple[int, ...]]], axes: dict[str, tuple[int, ...]]) -> list[str]:
    def name(sizes: tuple[int, ...]) -> str:
        wanted = [sizes] if len(set(sizes)) > 1 else [sizes[:1], sizes]
        return next(axis for axis, values in axes.items() if values in wanted)

    return [name(sizes) for _, sizes in dimensions]


def _inputs(
    recorder: Recorded, first: Kind, kept: set[str], extents: dict[str, list[tuple[str, tuple[int, ...]]]],
    axes: dict[str, tuple[int, ...]],
) -> dict[str, Any]:  # fmt: skip
    """In the order of the function's arguments."""
    found: dict[str, Any] = {}
    for name in inspect.signature(recorder.function).parameters:
        if name in first.tensors:
            found[name] = {"shape": _named(extents[name], axes), "dtype": first.tensors[name].dtype}
            if name not in kept:
                found[name]["values"] = first.values[name]
        elif type(value := first.numbers.get(name)) in (int, float, bool):
            found[name] = {"shape": None, "dtype": {int: "int64", float: "float32", bool: "bool"}[type(value)]}
    return found


def _reference(recorder: Recorded, fixed: dict[str, Any]) -> str:
    """The function's own source, and `run`, which gives it what is no input."""
    function = inspect.unwrap(recorder.function)
    given, keywords = [], []
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise CaptureError(
                f"{recorder.__name__} takes {name} of any number: record a function with named arguments"
            )
        value = source.literal(fixed[name]) if name in fixed else name
        given.append(f"{name}={value}" if parameter.kind is parameter.KEYWORD_ONLY else str(value))
        keywords += [] if name in fixed else [name]
    own = source.write_standalone(function)
    call = f"{function.__name__}({', '.join(given)})"
    if function.__name__ == "run":
        own, call = f"{own}\n\n_captured = run\n", call.replace("run(", "_captured(", 1)
    return f"{own}\n\ndef run({', '.join(keywords)}):\n    return {call}\n"


def _said(recorder: Recorded, kinds: list[Kind], every: int) -> str:
    said = f"captured from {recorder.__module__}.{recorder.__name__}: {len(kinds)} kinds of {every} calls"
    strided = _strided(kinds)
    return said + (f"; {', '.join(strided)} had strides there and are contiguous here" if strided else "")


def _strided(kinds: list[Kind]) -> list[str]:
    return sorted({name for kind in kinds for name, form in kind.tensors.items() if not form.contiguous})
