"""What kind of operation a reference is, by the operators that torch runs for it: what it sums and along which axis, what it picks,
gathers, scatters, scans or multiplies. No name is looked at.

The reference runs once without data at the size of the first timed workload; where it asks for values, once on zeros at the smallest.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import warnings
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from kernels.family import Family
from kernels.spec import Spec, Workload

MOST_OPERATORS = 2000
"""Operators that are looked at: a loop over elements says what it is long before."""
STEPS = 8
"""So many single places of one axis, taken one after another: a loop over that axis."""
TELLING = 0.25
"""An operator counts from this share of the largest one's elements on."""
DECODED = 16
"""Query rows of a product in attention up to which keys and values are read once each, and what counts is their bytes."""
TABLE = 4096
"""Elements of a table that stays in a core's or block's own memory: a look-up, no gather."""
PARTS: dict[Family, tuple[Family, ...]] = {
    "attention": ("matrix product", "row reduction", "column reduction", "gather"),
    "decode attention": ("matrix product", "row reduction", "column reduction", "gather", "quantised product"),
    "convolution": ("matrix product", "row reduction", "column reduction"),
    "quantised product": ("matrix product", "row reduction", "column reduction"),
    "matrix product": ("row reduction", "column reduction"),
    "state update": ("row reduction", "column reduction", "matrix product"),
    "histogram": ("scatter", "gather", "column reduction", "row reduction"),
    "scatter": ("gather", "row reduction", "column reduction", "state update"),
    "gather": ("row reduction", "column reduction"),
    "scan": ("gather", "state update"),
    "sort": ("gather", "scan"),
    "select": ("gather",),
}
"""Family -> those that are a part of it where both were found; the first that was found here is what a kernel is first of all."""
REDUCTIONS = (
    "sum", "mean", "prod", "amax", "amin", "any", "all", "var", "std", "var_mean", "std_mean", "logsumexp", "norm", "linalg_vector_norm",
    "_softmax", "_safe_softmax", "_log_softmax", "nansum", "aminmax",
)  # fmt: skip
NORMS = {"native_layer_norm": True, "native_group_norm": True, "_fused_rms_norm": True}
SELECTS = ("topk", "argmax", "argmin", "kthvalue", "mode", "median")
SORTS = ("sort", "argsort", "msort", "_unique2", "unique_dim", "unique_consecutive")
SCANS = ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp", "_cummax_helper", "_cummin_helper")
GATHERS = ("index", "index_select", "gather", "embedding", "take", "_embedding_bag", "_unsafe_index")
SCATTERS = (
    "index_put", "index_add", "index_copy", "scatter", "scatter_add", "scatter_reduce", "index_fill", "index_reduce", "put",
    "_index_put_impl", "_unsafe_index_put", "masked_scatter",
)  # fmt: skip
PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "mv", "addmv", "dot", "_int_mm", "_scaled_mm")
CONSTANTS = ("ones", "ones_like", "new_ones", "full", "full_like", "new_full", "scalar_tensor", "lift_fresh_copy")
VIEWS = (
    "view", "_unsafe_view", "expand", "unsqueeze", "squeeze", "reshape", "_to_copy", "alias", "clone", "permute", "t", "transpose",
    "detach", "slice", "select", "device", "new_zeros", "zeros_like", "new_empty", "empty_like",
)  # fmt: skip


@dataclass
class RecordedOperator:
    """What was found in the operators so far, each with the most elements that one operator of the kind worked on."""

    found: Counter[str] = field(default_factory=Counter)
    largest: int = 1
    products: list[tuple[int, bool]] = field(default_factory=list)
    """(rows of the smaller operand's side, whether a softmax came before) of each product of matrices."""

    def add(self, family: Family, elements: int) -> None:
        self.found[family] = max(self.found[family], elements)


class _Enough(Exception):
    pass


class _Recorder(TorchDispatchMode):
    def __init__(self, given: int) -> None:
        """`given`: elements of the largest input."""
        super().__init__()
        self.given = given
        self.recorded = RecordedOperator()
        self.count, self.softmax = 0, False
        self.constants: dict[int, Any] = {}
        """By id, tensors that hold one number; kept, so that no other gets their id."""
        self.places: dict[int, Any] = {}
        """By id, tensors that count from 0; kept likewise."""
        self.compared = False
        """Whether integers were compared with each place that they may name: what is summed then is counted."""
        self.multiplied: dict[tuple[int, ...], bool] = {}
        """Shape of what a tensor was multiplied to by another of fewer elements -> whether each of both was repeated: an outer product."""
        self.packed = False
        """Whether bits of integers were taken apart."""
        self.steps: dict[tuple[Any, ...], set[int]] = {}

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        made = operator(*args, **(kwargs or {}))
        self.count += 1
        if self.count > MOST_OPERATORS:
            raise _Enough
        name = operator.overloadpacket.__name__ if hasattr(operator, "overloadpacket") else str(operator)
        self._look(name.rstrip("_") if not name.startswith("__") else name, args, kwargs or {}, made)
        return made

    def _look(self, name: str, args: tuple, kwargs: dict, made: Any) -> None:
        read = _tensors(args)
        if not read:
            if name in CONSTANTS:
                self._constant(made)
            elif name == "arange":
                self.places[id(made)] = made
            return
        first, say = read[0], self.recorded.add
        elements = max(one.numel() for one in (read[1:] if name in GATHERS and len(read) > 1 else read))
        if name not in VIEWS:  # all of a table may be cast where only some of it is read
            self.recorded.largest = max(self.recorded.largest, elements)
        if name in CONSTANTS or (name in VIEWS and id(first) in self.constants):
            self._constant(made)
        elif name in ("convolution", "_convolution", "mkldnn_convolution") or "pool" in name:
            say("convolution", elements)
        elif "scaled_dot_product" in name or "flash_attention" in name:
            say("decode attention" if first.shape[-2] <= DECODED else "attention", elements)
        elif name in PRODUCTS:
            self._product(name, args, elements)
        elif name in SORTS:
            say("sort", elements)
        elif name in SELECTS or (name in ("max", "min") and len(args) > 1):
            if elements <= 2 * self.given:  # not each element beside all of a table
                say("select", elements)
                axis = kwargs.get("dim", next(iter(args[2 if name in ("topk", "kthvalue") else 1 :]), -1))
                if folds_columns(first, [axis if isinstance(axis, int) else -1]):
                    say("column reduction", elements)
        elif name in SCANS:
            say("scan", elements)
        elif name in ("bincount", "histc", "_histogramdd_from_bin_cts"):
            say("histogram", elements)
        elif name in SCATTERS:
            ones = any(id(one) in self.constants for one in read[1:]) or any(
                isinstance(one, (int, float)) for one in args[2:]
            )
            counts = ones and (
                name.startswith(("scatter", "index_add")) or kwargs.get("accumulate") or True in args[3:]
            )
            say("histogram" if counts and name != "index_fill" else "scatter", elements)
        elif name in GATHERS:
            picked = sum(one.numel() for one in _tensors(made if isinstance(made, tuple) else (made,)))
            if first.numel() > TABLE or name == "embedding":
                say("gather", picked)
        elif name in NORMS:
            say("row reduction", elements)
        elif name in ("native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training"):
            say("column reduction" if first.dim() == 2 else "row reduction", elements)
        elif name in REDUCTIONS:
            self.softmax |= "softmax" in name or name == "logsumexp"
            if self.compared and name == "sum":
                say("histogram", elements)
            if name == "sum" and tuple(first.shape) in self.multiplied:
                outer = self.multiplied[tuple(first.shape)]
                self.recorded.products.append((elements if outer else 1, self.softmax))
                if outer:
                    say("matrix product", elements)
            self._reduction(name, first, args, kwargs, elements)
        elif name == "eq":
            self.compared |= [id(one) in self.places for one in read].count(True) == 1 and not first.is_floating_point()
        elif name == "exp":
            self.softmax = True
        elif name == "mul" and len(read) > 1 and min(one.numel() for one in read) > 1:
            self._multiplied(read, made)
        elif "shift" in name or "bitwise_and" in name or name == "__and__":
            self.packed |= not first.is_floating_point()
        elif name in ("select", "slice") and first.dim():
            self._step(name, first, args, elements)

    def _multiplied(self, read: list[torch.Tensor], made: torch.Tensor) -> None:
        repeated = [
            math.prod(size for size, stride in zip(one.shape, one.stride(), strict=True) if stride or size == 1)
            for one in read
        ]
        whole = made.numel()
        if min(repeated) < whole:
            self.multiplied[tuple(made.shape)] = max(repeated) < whole

    def _constant(self, made: Any) -> None:
        if isinstance(made, torch.Tensor):
            self.constants[id(made)] = made

    def _reduction(self, name: str, value: torch.Tensor, args: tuple, kwargs: dict, elements: int) -> None:
        """Along the axis whose elements are neighbours in memory it is one of rows, else of columns."""
        args = args[1:] if name in ("norm", "linalg_vector_norm") else args  # their order comes first
        said = kwargs.get(
            "dim", next((one for one in args[1:] if isinstance(one, (list, tuple)) or type(one) is int), None)
        )
        columns = folds_columns(value, [said] if isinstance(said, int) else list(said or range(value.dim())))
        if columns is not None:
            self.recorded.add("column reduction" if columns else "row reduction", elements)

    def _product(self, name: str, args: tuple, elements: int) -> None:
        left, right = _tensors(args)[-2:]
        rows = 1 if name in ("mv", "addmv", "dot") else min(left.shape[-2], right.shape[-1])
        self.recorded.products.append((rows, self.softmax))
        self.recorded.add("matrix product", elements)

    def _step(self, name: str, value: torch.Tensor, args: tuple, elements: int) -> None:
        """One place of an axis; a loop takes one after another."""
        axis = args[1] if len(args) > 1 else 0
        place = args[2] if len(args) > 2 else None
        if not isinstance(place, int) or (name == "slice" and not (len(args) > 3 and args[3] == place + 1)):
            return
        places = self.steps.setdefault((tuple(value.shape), axis), set())
        places.add(place)
        if len(places) >= STEPS and value.shape[axis] >= STEPS:
            self.recorded.add("scan", elements)


def folds_columns(value: torch.Tensor, axes: list[int]) -> bool | None:
    """Whether elements that are neighbours in memory stay apart; None where there is one element alone."""
    axes = [axis % max(value.dim(), 1) for axis in axes]
    steps = {
        axis: stride
        for axis, (size, stride) in enumerate(zip(value.shape, value.stride(), strict=True))
        if size > 1 and stride
    }
    return min(steps, key=lambda axis: steps[axis]) not in axes if steps else None


def _tensors(values: Iterable[Any]) -> list[torch.Tensor]:
    found = []
    for one in values:
        if isinstance(one, torch.Tensor):
            found.append(one)
        elif isinstance(one, (list, tuple)):
            found += _tensors(one)
    return found


def families(spec: Spec, reference: str) -> tuple[Family, ...]:
    """What the reference (its text) is, first of all and then besides, two at most; () where it cannot be run so."""
    found: dict[str, Any] = {}
    try:
        exec(compile(reference, "reference.py", "exec"), found)
    except Exception:  # noqa: BLE001 -- the file's own code raises what it likes
        return ()
    suite = [one for one in spec.workloads if not one.held_out] or list(spec.workloads)
    timed = next((one for one in suite if one.timed), suite[0])
    smallest = min(suite, key=lambda one: sum(math.prod(spec.shape(tensor, one.axes)) for tensor in spec.tensors))
    for workload, mode in ((timed, FakeTensorMode(allow_non_fake_inputs=True)), (smallest, None)):
        recorder = _Recorder(max(math.prod(spec.shape(tensor, workload.axes)) for tensor in spec.tensors))
        try:
            with warnings.catch_warnings(), torch.no_grad():
                warnings.simplefilter("ignore")
                _run(spec, found["reference"], workload, recorder, mode)
        except _Enough:
            pass
        except Exception:  # noqa: BLE001 -- so does its function
            continue
        return _judge(spec, recorder.recorded, recorder.packed)
    return ()


def _run(spec: Spec, reference: Any, workload: Workload, recorder: _Recorder, mode: FakeTensorMode | None) -> None:
    accepted = inspect.signature(reference).parameters
    rest = any(one.kind is one.VAR_KEYWORD for one in accepted.values())
    with mode or contextlib.nullcontext():
        given: dict[str, Any] = {}
        for tensor in spec.inputs:
            kind = getattr(torch, workload.dtype if tensor.dtype == "T" else tensor.dtype)
            kind = torch.float32 if kind.is_floating_point and kind != torch.float64 else kind
            given[tensor.name] = torch.zeros(spec.shape(tensor, workload.axes), dtype=kind)
        others: dict[str, Any] = {**spec.scalars, **workload.axes}
        others = {name: value for name, value in others.items() if name not in given and (rest or name in accepted)}
        for argument in spec.arguments:
            if argument.kind == "scalar" and argument.ctype == "int64_t" and argument.name in others:
                others[argument.name] = int(others[argument.name])
        if "dtype" in accepted and "dtype" not in {**given, **others}:
            others["dtype"] = getattr(torch, workload.dtype)
        named = {name: value for name, value in given.items() if rest or name in accepted}
        with recorder:
            reference(**named, **others)


def _judge(spec: Spec, recorded: RecordedOperator, packed: bool) -> tuple[Family, ...]:
    least = TELLING * recorded.largest
    there: set[Family] = {name for name, elements in recorded.found.items() if elements >= least}  # type: ignore[misc]
    there |= {name for name in ("select", "sort", "histogram") if name in recorded.found}
    products = recorded.products
    if len(products) >= 2 and products[0][1] is False and any(after for _rows, after in products[1:]):
        there.add("decode attention" if products[0][0] <= DECODED else "attention")
    few_bits = {"int8", "uint8", "float8_e4m3fn"}
    held = {tensor.dtype for tensor in spec.inputs if len(tensor.shape) > 1}
    if "matrix product" in there and (few_bits & held or (packed and "int32" in held)):
        there.add("quantised product")
    if _updates_state(spec) and there & {"row reduction", "matrix product", "column reduction"}:
        there.add("state update")
    for family in PARTS:
        if family in there:
            there -= set(PARTS[family])
    order = [*PARTS, "column reduction", "row reduction"]
    return tuple(sorted(there, key=order.index))[:2] or ("elementwise",)


def _updates_state(spec: Spec) -> bool:
    """A tensor is changed in place that has an axis which nothing that is only written has: it stays, and what is read of it goes out."""
    written = [axis for tensor in spec.outputs if tensor.role == "output" for axis in tensor.shape]
    return bool(written) and any(
        tensor.role == "inout" and len(tensor.shape) > 1 and set(tensor.shape) - set(written) for tensor in spec.tensors
    )
