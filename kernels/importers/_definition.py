"""What a definition and its workloads may say, read from somebody else's files: checked here, one sentence for each fault."""

from __future__ import annotations

import ast
import json
import keyword
import operator
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kernels.catalog import KernelError, one_sentence
from kernels.extras import install
from kernels.importers.kernelbench import MOST_BYTES, MOST_DIMENSIONS, text_of
from kernels.spec import AXIS_VALUES, Dtype, check_values, expression

MOST_WORKLOAD_BYTES = 64 << 20
MOST_WORKLOADS = 10_000
MOST_STORED_BYTES = 32 << 20
"""Bytes of the tensors from files that one workload may bring: they travel into the box in the module's text."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")


class Read(BaseModel):
    """A record of somebody else's file: what else it holds is ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class DefinitionAxis(Read):
    type: Literal["const", "var", "expr"]
    value: int | None = Field(default=None, ge=0, le=2**40)
    expression: str | None = Field(default=None, max_length=200)


class TensorForm(Read):
    shape: tuple[str, ...] | None = Field(default=None, max_length=MOST_DIMENSIONS)
    """Names of axes; None: a number of Python."""
    dtype: str
    values: str | None = None
    """Ours (harness/capture/__init__.py): how an input is drawn where a workload says `random`."""


class KernelDefinition(Read):
    name: str
    axes: dict[str, DefinitionAxis] = Field(max_length=100)
    inputs: dict[str, TensorForm] = Field(min_length=1, max_length=100)
    outputs: dict[str, TensorForm] = Field(min_length=1, max_length=100)
    reference: str = Field(min_length=1, max_length=MOST_BYTES)
    description: str | None = None
    custom_inputs_entrypoint: str | None = None
    strided: tuple[str, ...] = Field(default=(), max_length=100)
    """Ours (harness/capture.py): inputs that were not contiguous where the calls were recorded."""


class InputSource(Read):
    """Where one input of a workload comes from."""

    type: Literal["random", "scalar", "safetensors", "custom"]
    value: bool | int | float | None = Field(default=None, allow_inf_nan=False)
    path: str | None = Field(default=None, max_length=1000)
    tensor_key: str | None = Field(default=None, max_length=1000)


class WorkloadTrace(Read):
    """One workload."""

    uuid: str = Field(pattern=r"^[A-Za-z0-9._:-]{1,200}$")
    axes: dict[str, Annotated[int, Field(ge=0, le=2**40)]] = Field(max_length=100)
    inputs: dict[str, InputSource] = Field(max_length=100)

    def scalars(self) -> tuple[tuple[str, bool | int | float], ...]:
        return tuple((n, s.value) for n, s in sorted(self.inputs.items()) if s.type == "scalar" and s.value is not None)


def parse_definition(path: Path) -> KernelDefinition:
    """The definition in that file, checked by itself. Raises KernelError."""
    found = _json(text_of(path), str(path))
    try:
        definition = KernelDefinition.model_validate(found)
    except ValidationError as error:
        raise KernelError(f"{path}: {printable(one_sentence(error))}") from None
    try:
        _check(definition)
    except ValueError as error:
        raise KernelError(f"{path}: {error}") from None
    return definition


def printable(text: str, most: int = 500) -> str:
    """Somebody else's words without what a terminal would obey."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)[:most]


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise KernelError(f"{where} is no JSON: {str(error).splitlines()[0]}") from None


def _check(definition: KernelDefinition) -> None:
    if not NAME.fullmatch(definition.name):
        raise ValueError(f"its name {definition.name[:80]!r} must be letters, digits, dots, dashes and underscores")
    for name, axis in definition.axes.items():
        _identifier("axis", name)
        needed = {"const": axis.value, "var": 0, "expr": axis.expression}[axis.type]
        if needed is None:
            raise ValueError(
                f"axis {name} is {axis.type} and gives no {'value' if axis.type == 'const' else 'expression'}"
            )
    for role, tensors in (("input", definition.inputs), ("output", definition.outputs)):
        for name, one in tensors.items():
            _identifier(role, name)
            if one.dtype not in get_args(Dtype):
                raise ValueError(f"{role} {name} is of dtype {one.dtype[:40]!r}, which is not supported")
            if one.values is not None and (
                one.values.partition(":")[0] in (*AXIS_VALUES, "given") or one.shape is None
            ):
                raise ValueError(f"{role} {name} cannot be drawn from {one.values[:80]!r}")
            if one.values is not None:
                check_values(one.values)
            for size in one.shape or ():
                if size not in definition.axes:
                    raise ValueError(f"{role} {name} has the axis {size[:80]!r}, which is not among its axes")
    if both := sorted(definition.inputs.keys() & definition.outputs.keys()):
        raise ValueError(f"{both[0]} is an input and an output")
    if all(one.shape is None for one in definition.inputs.values()):
        raise ValueError("it has no input that is a tensor")
    defined = _functions(definition.reference)
    wanted = ["run", *([definition.custom_inputs_entrypoint] if definition.custom_inputs_entrypoint else [])]
    for function in wanted:
        if function not in defined:
            raise ValueError(f"its reference defines no function {function[:80]}() at its top level")


def _identifier(role: str, name: str) -> None:
    if not name.isidentifier() or keyword.iskeyword(name) or len(name) > 60:
        raise ValueError(f"{role} {name[:80]!r} has no name that Python could use")


def _functions(reference: str) -> set[str]:
    try:
        body = ast.parse(reference).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"its reference is no Python: {str(error).splitlines()[0]}") from None
    return {node.name for node in body if isinstance(node, ast.FunctionDef)}


def parse_workloads(path: Path, name: str) -> list[WorkloadTrace]:
    """The workloads of the definition of that name in a file of JSON lines, each by itself or in a trace's `workload`.

    Raises KernelError.
    """
    if not path.is_file():
        raise KernelError(f"{path} is not there: it holds the workloads of {name}, one a line")
    if path.stat().st_size > MOST_WORKLOAD_BYTES:
        raise KernelError(f"{path} has more than {MOST_WORKLOAD_BYTES >> 20} MiB")
    found: dict[str, WorkloadTrace] = {}
    for number, line in enumerate(text_of(path).splitlines(), 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        one = _json(line, where)
        if isinstance(one, dict) and isinstance(one.get("workload"), dict):
            if one.get("definition", name) != name:
                raise KernelError(f"{where} is of the definition {str(one['definition'])[:80]!r}, not {name}")
            one = one["workload"]
        try:
            trace = WorkloadTrace.model_validate(one)
        except ValidationError as error:
            raise KernelError(f"{where}: {printable(one_sentence(error))}") from None
        found.setdefault(trace.uuid, trace)  # traces of several solutions repeat it
        if len(found) > MOST_WORKLOADS:
            raise KernelError(f"{path} holds more than {MOST_WORKLOADS} workloads")
    if not found:
        raise KernelError(f"{path} holds no workload")
    return list(found.values())


_ARITHMETIC: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}  # fmt: skip


def evaluate_expression(text: str, axes: dict[str, int]) -> int:
    """The value of an axis's expression: `expression` of kernels.spec, with `/` where it leaves no rest, `%` and signs.

    Raises ValueError.
    """

    def value(node: ast.expr) -> int:
        found = computed(node)
        if abs(found) > 2**62:
            raise ValueError(f"{text!r} is too large on the way")
        return found

    def computed(node: ast.expr) -> int:
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
            inner = value(node.operand)
            return -inner if isinstance(node.op, ast.USub) else inner
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div | ast.Pow):
            left, right = value(node.left), value(node.right)
            if isinstance(node.op, ast.Pow) and 0 <= right <= 8:
                return left**right
            if isinstance(node.op, ast.Div) and right and left % right == 0:
                return left // right
            raise ValueError(f"{text!r} is no whole number here")
        if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
            return _ARITHMETIC[type(node.op)](value(node.left), value(node.right))
        return expression(ast.unparse(node), axes)

    try:
        found = value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, RecursionError, ZeroDivisionError) as error:
        raise ValueError(f"{text!r} is no expression of axes: {error}") from None
    if not 0 <= found <= 2**40:
        raise ValueError(f"{text!r} is {found}, no size")
    return found


def with_common_scalars(traces: list[WorkloadTrace], where: Path) -> tuple[tuple[WorkloadTrace, ...], tuple[str, ...]]:
    """The workloads with the most common values of scalars, since a kernel's scalars are constants, and what is left out."""
    counts = Counter(trace.scalars() for trace in traces)
    common = counts.most_common(1)[0][0]
    kept = tuple(trace for trace in traces if trace.scalars() == common)
    if len(kept) == len(traces):
        return kept, ()
    values = ", ".join(f"{name} {value}" for name, value in common)
    return kept, (f"left out: {len(traces) - len(kept)} of {len(traces)} workloads, whose scalars are not {values}",)


def check_sources(definition: KernelDefinition, traces: tuple[WorkloadTrace, ...], where: Path) -> None:
    """That each input of each workload can be had. Raises KernelError."""
    for trace in traces:
        at = f"{where}: workload {trace.uuid[:80]}"
        for name, source in trace.inputs.items():
            if name not in definition.inputs:
                raise KernelError(f"{at} gives {name[:80]!r}, which is no input of {definition.name}")
            if (source.type == "scalar") != (definition.inputs[name].shape is None):
                kind = "a number" if definition.inputs[name].shape is None else "a tensor"
                raise KernelError(f"{at}: input {name} is {kind}, and its value is said to be of type {source.type}")
            if source.type == "scalar" and source.value is None:
                raise KernelError(f"{at}: the scalar {name} has no value")
            if source.type == "custom" and not definition.custom_inputs_entrypoint:
                raise KernelError(f"{at}: input {name} is custom, and the definition names no custom_inputs_entrypoint")
        for name, form in definition.inputs.items():
            if form.shape is None and name not in trace.inputs:
                raise KernelError(f"{at}: the scalar {name} has no value")


def read_tensor(path: Path, key: str, form: TensorForm, sizes: dict[str, int], name: str) -> bytes:
    """One tensor of a safetensors file, as bytes. Raises KernelError."""
    try:
        from safetensors import SafetensorError, deserialize
    except ModuleNotFoundError:
        raise KernelError(f"{path.name} needs the package safetensors; in the checkout: {install('traces')}") from None
    if path.stat().st_size > 64 * MOST_STORED_BYTES:
        raise KernelError(f"{path} has more than {64 * MOST_STORED_BYTES >> 20} MiB")
    try:
        tensors = dict(deserialize(path.read_bytes()))
    except (SafetensorError, OSError) as error:
        raise KernelError(f"{path} is no safetensors file: {' '.join(str(error).split())[:200]}") from None
    if key not in tensors:
        raise KernelError(f"{path} holds no tensor {key[:80]!r}")
    found, shape = tensors[key], [sizes[axis] for axis in form.shape or ()]
    said = {"BOOL": "bool", "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn"}.get(found["dtype"])
    said = said or found["dtype"].replace("F", "float").replace("I", "int").replace("Uint", "uint").lower()
    if (said, list(found["shape"])) != (form.dtype, shape):
        raise KernelError(
            f"{path}: {key[:80]} is {said} {list(found['shape'])} where input {name} is {form.dtype} {shape}"
        )
    return bytes(found["data"])
