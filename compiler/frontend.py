"""A kernel's reference -> a graph of torch's operators in which every axis of the spec is an open size.

The reference runs once on tensors without data: 16-bit and 8-bit floats as float32, since it defines the value in higher
precision; integers as they are. Scalars of the call stay scalars where the reference lets them.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch
from torch import fx
from torch._decomp import core_aten_decompositions, decomposition_table
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, GuardOnDataDependentSymNode, ShapeEnv
from torch.overrides import TorchFunctionMode

from compiler import steps
from compiler.compositions import COMPOSED
from compiler.draft.algebra import rewritten
from compiler.draft.complex_numbers import complex_parts
from compiler.draft.graphs import graphs_alone
from compiler.draft.index import Ranges, divide
from compiler.draft.lowering import LOWERINGS
from compiler.draft.tensors import NoDraft
from kernels.spec import Spec, Tensor, Workload, expression

MOST_OPERATORS = 400
"""Lowering and index arithmetic take milliseconds an operator."""
NOT_COMPILED = ("float8_e5m2", "uint32", "uint16")
VALUES_ASKED = (DataDependentOutputException, DynamicOutputShapeException, GuardOnDataDependentSymNode)
MOST_CALLS = 1500
"""Of torch's functions, sizes that are looked up among them."""


class NoProgram(NoDraft):
    """The reference has no kernels of the compiler's; the text is one sentence that says why."""


@dataclass(frozen=True)
class Traced:
    """What a reference computes, by torch's operators."""

    graph: fx.Graph
    inputs: dict[str, fx.Node]
    """By the spec's name, of tensors and of scalars that stayed open."""
    outputs: dict[str, fx.Node]
    symbols: dict[str, str]
    """torch's name of a size -> the spec's axis."""
    hints: dict[str, int]
    fixed: frozenset[str]
    """Scalars that became constants: the spec's values."""
    tables: dict[fx.Node, torch.Tensor] = field(default_factory=dict)
    """Tensors that the reference writes down as numbers."""
    steps: dict[str, Any] = field(default_factory=dict)
    """torch's name of a loop's open step -> how many there are."""


class _Sizes(ShapeEnv):
    """Does not look for the line that asked for a size, which torch's own logs alone tell: to skip its own files there torch imports
    400 modules, a second of processor time."""

    def _get_user_frame(self) -> None:
        return None


def first_timed(spec: Spec) -> Workload:
    return next((w for w in spec.workloads if w.timed and not w.held_out), spec.workloads[0])


def trace(spec: Spec, reference: str, dtype: str) -> Traced:
    """The graph of `reference` (its text) for workloads of a dtype. Raises NoProgram."""
    for tensor in spec.tensors:
        if (kind := dtype if tensor.dtype == "T" else tensor.dtype) in NOT_COMPILED:
            raise NoProgram(
                f"{tensor.name} is of {kind}, which no kernel of the compiler's reads or writes: hold its bits in uint8 or int16 and decode them (x.view(dtype))"
            )
    found: dict[str, Any] = {steps.LOOPED: steps.run_loop}
    try:
        reference = steps.rewritten(reference)
        exec(compile(reference, "reference.py", "exec"), found)
    except Exception as error:  # noqa: BLE001 -- the file's own code raises what it likes
        raise NoProgram(f"reference.py does not import: {error}") from None
    if not callable(found.get("reference")):
        raise NoProgram("reference.py defines no function `reference`")
    failure: Exception | None = None
    for scalars_open in (True, False):
        if scalars_open and not spec.scalars:
            continue
        try:
            return _trace(spec, found["reference"], dtype, scalars_open, reference.count(steps.LOOPED))
        except Exception as error:  # noqa: BLE001 -- torch's tracer raises what it likes; the last one is reported
            failure = error
    if isinstance(failure, NoDraft):
        raise NoProgram(str(failure))
    first = (str(failure).strip().splitlines() or [type(failure).__name__])[0]
    if isinstance(failure, VALUES_ASKED):
        raise NoProgram(
            f"the reference asks what values are ({first[:100]}): choose by torch.where instead, or take the choice as an argument"
        )
    raise NoProgram(f"the reference cannot be traced: {type(failure).__name__}: {first[:300]}")


def _trace(spec: Spec, reference, dtype: str, scalars_open: bool, loops: int) -> Traced:
    environment = _Sizes()
    # To keep what each operator gave of open sizes takes a quarter of a trace, and none is asked for again.
    with torch._dynamo.config.patch(fake_tensor_cache_enabled=False):
        mode = FakeTensorMode(shape_env=environment, allow_non_fake_inputs=True)
    hints = dict(first_timed(spec).axes)
    axes: dict[str, Any] = {}
    symbols: dict[str, str] = {}

    def open_number(name: str, hint: int) -> Any:
        symbol = environment.create_symbol(
            hint, ConstantSource(name), DimDynamic.DYNAMIC, None, do_not_specialize_zero_one=True
        )
        return symbol, environment.create_symintnode(symbol, hint=hint)

    for axis in spec.axes:
        symbol, axes[axis] = open_number(axis, max(hints[axis], 2))
        symbols[str(symbol)] = axis
    step_numbers = [open_number(f"step {at}", 1)[1] for at in range(loops)]
    counts: dict[str, Any] = {}
    accepted = set(inspect.signature(reference).parameters)
    if any(p.kind is p.VAR_KEYWORD for p in inspect.signature(reference).parameters.values()):
        accepted |= {tensor.name for tensor in spec.inputs} | set(spec.scalars)
    with mode:
        tensors = {tensor.name: _empty(spec, tensor, dtype, axes) for tensor in spec.inputs}
        floats = {
            argument.name: torch.empty((), dtype=torch.float64)
            for argument in spec.arguments
            if argument.kind == "scalar" and argument.ctype != "int64_t" and scalars_open and argument.name in accepted
        }
    fixed: dict[str, Any] = {
        name: value for name, value in spec.scalars.items() if name in accepted and name not in floats
    }
    sizes = {axis: size for axis, size in axes.items() if axis in accepted and axis not in tensors}
    if "dtype" in accepted - spec.scalars.keys():
        fixed["dtype"] = getattr(torch, dtype)
    given = {**tensors, **floats}
    table = {op: how for op, (name, how) in _decompositions().items() if name not in LOWERINGS}

    def call(*values):
        named, unused = [*given, *sizes], list(values[len(given) + len(sizes) :])

        def next_step(count):
            counts[str(unused[0].node.expr)] = count
            return len(counts) - 1, unused.pop(0)

        steps.OPEN_STEP.set(next_step)
        found = reference(**dict(zip(named, values, strict=False)), **fixed)
        return {name: found[name] for name in (tensor.name for tensor in spec.outputs)}

    with mode, enable_python_dispatcher(), _OutOfPlace(), graphs_alone():
        values = *given.values(), *sizes.values(), *step_numbers
        module = make_fx(torch.func.functionalize(call, remove="mutations"), decomposition_table=table)(*values)
        if any(map(_changes, module.graph.nodes)):  # what an operator is made of may change its own tensors
            module = make_fx(torch.func.functionalize(module, remove="mutations"), decomposition_table=table)(*values)
    graph = module.graph
    with mode:
        rewritten(graph, (complex_parts,))
    held = {node: getattr(module, str(node.target)) for node in graph.nodes if node.op == "get_attr"}
    pinned = [symbols[str(symbol)] for symbol in environment.replacements if str(symbol) in symbols]
    if pinned:
        raise NoProgram(
            f"the reference fixes the size {pinned[0]}: it is used as a number of Python's, or compared with another; leave it a size (x.shape[0]), or write the number into the spec"
        )
    count = sum(node.op == "call_function" for node in graph.nodes)
    if count > MOST_OPERATORS:
        raise NoProgram(
            f"the reference has {count} operators once it is unrolled, more than {MOST_OPERATORS}: say its loops by axes of tensors"
        )
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    (outputs,) = next(node for node in graph.nodes if node.op == "output").args
    return Traced(
        graph,
        dict(zip(given, placeholders, strict=False)),
        dict(outputs),
        symbols,
        hints,
        frozenset(fixed),
        held,
        counts,
    )


def _changes(node: fx.Node) -> bool:
    """Whether a call writes to what it is given."""
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


@functools.cache
def _decompositions() -> dict[Any, tuple[str, Callable[..., Any]]]:
    """Of each operator that has one its name and what it is made of. To list them takes a third of a small reference's trace."""
    aten = torch.ops.aten
    whole = (
        aten.grid_sampler_2d.default, aten.addmm.default, aten.baddbmm.default, aten.addmv.default, aten.native_group_norm.default,
        aten._native_batch_norm_legit.default, aten._native_batch_norm_legit.no_stats,
    )  # fmt: skip
    every = {
        **core_aten_decompositions(),
        **{op: decomposition_table[op] for op in whole},
        aten.native_layer_norm.default: _layer_norm,
        aten.var_mean.correction: _var_mean,
    }
    return {op: (str(op), how) for op, how in every.items()}


def _layer_norm(x, shape, weight, bias, eps):
    """aten.native_layer_norm by elementwise operators and means."""
    dims = list(range(-len(shape), 0))
    mean = x.mean(dims, keepdim=True)
    centred = x - mean
    inverse = torch.rsqrt((centred * centred).mean(dims, keepdim=True) + eps)
    normal = centred * inverse
    normal = normal if weight is None else normal * weight
    return (normal if bias is None else normal + bias), mean, inverse


def _var_mean(x, dims=None, *, correction=1, keepdim=False):
    return torch.var(x, dims, correction=correction, keepdim=keepdim), torch.mean(x, dims, keepdim=keepdim)


class _OutOfPlace(TorchFunctionMode):
    """`x.square_()` as `x.copy_(x.square())`: some operators in place have no form that the tracer can follow.

    Ends a trace that is a loop over elements.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.inside = False

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.calls += 1
        if self.calls > MOST_CALLS:
            raise NoProgram(
                f"the reference makes more than {MOST_CALLS} calls: it is a loop over elements; say it by operators on whole tensors"
            )
        if function in COMPOSED and not self.inside:
            self.inside = True
            try:
                return COMPOSED[function](*args, **(kwargs or {}))
            finally:
                self.inside = False
        if function is torch.where and len(args) == 3 and args[0].ndim:
            args = args[0], *map(_as_number, args[1:])
        name = getattr(function, "__name__", "")
        plain = getattr(torch.Tensor, name[:-1], None) if name.endswith("_") and not name.endswith("__") else None
        if plain is None or not args or not isinstance(args[0], torch.Tensor):
            return function(*args, **(kwargs or {}))
        return args[0].copy_(plain(*args, **(kwargs or {})))


def _as_number(value):
    """A number of the call as torch chooses among numbers: those of Python make no elements of 64 bits."""
    is_number = isinstance(value, torch.Tensor) and value.ndim == 0 and value.dtype == torch.float64
    return value.to(torch.float32) if is_number else value


def _empty(spec: Spec, tensor: Tensor, dtype: str, axes: dict[str, Any]) -> torch.Tensor:
    kind = getattr(torch, dtype if tensor.dtype == "T" else tensor.dtype)
    kind = torch.float32 if kind.is_floating_point and kind != torch.float64 else kind
    return torch.empty([expression(extent, axes) for extent in tensor.shape], dtype=kind)


def extent(text: str, sizes: dict[str, sympy.Expr]) -> sympy.Expr:
    """An extent of the spec's as an Index of these sizes."""
    whole = sympy.sympify(expression(text, sizes))
    return sympy.expand(whole.replace(sympy.floor, _quotient))


def _quotient(ratio: sympy.Expr) -> sympy.Expr:
    top, bottom = sympy.together(ratio).as_numer_denom()
    return divide(sympy.expand(top), bottom, Ranges())
