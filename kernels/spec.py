"""The typed description of an operation: its arguments, its axes and the workloads it is judged on.

A kernel is a folder with a `spec.py` that binds `SPEC = Spec(...)` and a `reference.py` that defines
`reference(**arguments) -> dict[str, torch.Tensor]`. Nothing here imports torch, so listing kernels is quick.
"""

from __future__ import annotations

import ast
import math
import operator
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Dtype = Literal[
    "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "int64", "int32", "int16", "int8", "uint8", "bool"
]
DTYPE_BYTES: dict[str, int] = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip
Device = Literal["cuda", "cpu"]
Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")]

# What a generator may put into an input. Every kernel must survive `ordinary`; a spec narrows or widens the list.
# `integers:low:high` leaves `high` out; `given` asks a generator of the problem's own (harness/correctness.py, GIVEN).
Values = Annotated[
    str,
    Field(
        pattern=r"^(ordinary|large|tiny|zeros|outliers|infinities|uniform|index:[a-z_0-9]+|range:-?[0-9.]+:-?[0-9.]+"
        r"|normal:-?[0-9.]+:[0-9.]+|integers:-?[0-9]+:-?[0-9]+|given:[a-z0-9_]+)$"
    ),
]
ORDINARY_VALUES: tuple[str, ...] = ("ordinary", "large", "tiny", "zeros", "outliers")


class Frozen(BaseModel):
    """Base of every record: immutable, and a misspelt field is an error rather than a silent default."""

    model_config = ConfigDict(frozen=True, extra="forbid")


_OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv}


def expression(text: str, axes: dict[str, int]) -> int:
    """The value of an integer expression over axis names, such as `2*hidden`.

    Only names, integers, `+ - * //` and parentheses are understood; anything else raises ValueError.
    """

    def value(node: ast.expr) -> int:
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return node.value
        if isinstance(node, ast.Name):
            if node.id not in axes:
                raise ValueError(f"{text!r} names {node.id!r}, which is no axis (axes: {', '.join(axes)})")
            return axes[node.id]
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            return _OPERATORS[type(node.op)](value(node.left), value(node.right))
        raise ValueError(f"{text!r} is not an integer expression of axes, + - * // and parentheses")

    try:
        return value(ast.parse(text, mode="eval").body)
    except SyntaxError as error:
        raise ValueError(f"{text!r} is not an integer expression") from error


def _named(field: str, text: str, axes: dict[str, int]) -> int:
    """`expression`, whose ValueError names the field that holds the text."""
    try:
        return expression(text, axes)
    except ValueError as error:
        raise ValueError(f"{field}: {error}") from None


class Tensor(Frozen):
    """A pointer argument. `dtype="T"` is the workload's dtype; `shape` holds integer expressions of the axes."""

    kind: Literal["tensor"] = "tensor"
    name: Name
    role: Literal["input", "output", "inout"]
    shape: tuple[str, ...] = Field(min_length=1)
    dtype: Dtype | Literal["T"] = "T"
    values: tuple[Values, ...] = Field(default=ORDINARY_VALUES, min_length=1)
    touched: str | None = None
    """Elements that a call must really move, where that is fewer than the tensor holds (a gather's table)."""
    constant: bool = False
    """Inputs only: kept by a model between calls (weights, tables), so not written anew for each one."""
    ulps: float | None = Field(default=None, gt=0)
    """Outputs only: allowed error in unit roundoffs of the output's dtype; None takes the harness's default."""


class Size(Frozen):
    """An axis passed by value as `int64_t`."""

    kind: Literal["size"] = "size"
    name: Name


class Scalar(Frozen):
    """A constant passed by value, such as an epsilon."""

    kind: Literal["scalar"] = "scalar"
    name: Name
    ctype: Literal["float", "double", "int64_t"] = "float"
    value: float


Argument = Annotated[Tensor | Size | Scalar, Field(discriminator="kind")]


class Workload(Frozen):
    """One set of sizes and a dtype. Agents never see held-out workloads; the winner meets them last."""

    axes: dict[Name, Annotated[int, Field(gt=0)]]
    dtype: Dtype
    held_out: bool = False
    devices: tuple[Device, ...] = ("cuda", "cpu")
    timed: bool = True
    """False: checked for correctness only (one row, odd sizes), where a time would say nothing."""

    @property
    def label(self) -> str:
        return f"{self.dtype} " + " ".join(f"{name}={size}" for name, size in self.axes.items())


class Spec(Frozen):
    """An operation: what a candidate's entry point takes, what it is called with, and what it costs at least.

    The entry point is `extern "C" void <entry>_<dtype>(arguments in order[, cudaStream_t stream])`, one for each
    dtype of the spec; where the spec has a single dtype the suffix may be left out.
    """

    name: Name
    summary: str = Field(min_length=1)
    entry: Name | None = None
    axes: tuple[Name, ...] = Field(min_length=1)
    dtypes: tuple[Dtype, ...] = Field(min_length=1)
    arguments: tuple[Argument, ...] = Field(min_length=1)
    workloads: tuple[Workload, ...] = Field(min_length=1)
    default_baseline: dict[Device, str] = Field(default_factory=dict)
    flops: str = "0"
    """Floating-point operations of one call, an expression of the axes."""
    problem: bool = False
    """A PyTorch module to be made faster: candidates are a ModelNew, the arguments those of its forward."""
    library: str | None = None
    """What a user would call instead, as `package.function`, for the report."""

    @property
    def entry_name(self) -> str:
        return self.entry or self.name

    def entry_names(self, dtype: str) -> tuple[str, ...]:
        """The symbols to look for, best first."""
        suffixed = f"{self.entry_name}_{dtype}"
        return (suffixed, self.entry_name) if len(self.dtypes) == 1 else (suffixed,)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(argument for argument in self.arguments if isinstance(argument, Tensor))

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        return tuple(tensor for tensor in self.tensors if tensor.role != "output")

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        return tuple(tensor for tensor in self.tensors if tensor.role != "input")

    @property
    def scalars(self) -> dict[str, float]:
        return {argument.name: argument.value for argument in self.arguments if isinstance(argument, Scalar)}

    def shape(self, tensor: Tensor, axes: dict[str, int]) -> tuple[int, ...]:
        return tuple(expression(extent, axes) for extent in tensor.shape)

    def dtype(self, tensor: Tensor, workload: Workload) -> str:
        return workload.dtype if tensor.dtype == "T" else tensor.dtype

    def tensor_bytes(self, tensor: Tensor, workload: Workload) -> int:
        """Bytes that one call must move for this tensor, in one direction."""
        count = (
            expression(tensor.touched, workload.axes)
            if tensor.touched
            else math.prod(self.shape(tensor, workload.axes))
        )
        return count * DTYPE_BYTES[self.dtype(tensor, workload)]

    def read_bytes(self, workload: Workload) -> int:
        return sum(self.tensor_bytes(tensor, workload) for tensor in self.inputs)

    def write_bytes(self, workload: Workload) -> int:
        return sum(self.tensor_bytes(tensor, workload) for tensor in self.outputs)

    def suite(self, device: str, *, held_out: bool = False) -> tuple[Workload, ...]:
        return tuple(w for w in self.workloads if device in w.devices and w.held_out == held_out)

    @model_validator(mode="after")
    def _consistent(self) -> Spec:
        names = [argument.name for argument in self.arguments]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"arguments: {name!r} is named twice")
        if not self.outputs:
            raise ValueError("arguments: no tensor has role 'output' or 'inout', so there is nothing to check")
        for tensor in self.tensors:
            if tensor.constant and tensor.role != "input":
                raise ValueError(f"arguments: {tensor.name} is constant, which only an input can be")
        for argument in self.arguments:
            if isinstance(argument, Size) and argument.name not in self.axes:
                raise ValueError(f"arguments: size {argument.name!r} is no axis (axes: {', '.join(self.axes)})")
        for workload in self.workloads:
            if set(workload.axes) != set(self.axes):
                raise ValueError(f"workloads: {workload.label} must give exactly the axes {', '.join(self.axes)}")
            if workload.dtype not in self.dtypes:
                raise ValueError(f"workloads: {workload.label} has a dtype that the spec does not list")
            for tensor in self.tensors:
                shape = [_named(f"arguments: {tensor.name}.shape", extent, workload.axes) for extent in tensor.shape]
                if min(shape) < 1:
                    raise ValueError(f"arguments: {tensor.name}.shape is empty at {workload.label}")
                if tensor.touched:
                    _named(f"arguments: {tensor.name}.touched", tensor.touched, workload.axes)
                for value in tensor.values:
                    if value.startswith("index:") and value[6:] not in self.axes:
                        raise ValueError(f"arguments: {tensor.name} draws indices from {value[6:]!r}, which is no axis")
            _named("flops", self.flops, workload.axes)
        if not any(not workload.held_out for workload in self.workloads):
            raise ValueError("workloads: every one is held out, so agents would have nothing to run")
        return self
