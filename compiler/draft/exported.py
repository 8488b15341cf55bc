"""A problem's text as a graph of torch's operators: exported without data, its leading sizes left open where the module allows it.

This executes the problem's code: only ever call it in a process that is boxed for that.
"""

from __future__ import annotations

import ast
import contextlib
import sys
import types
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import sympy
import torch
from torch._decomp import decomposition_table
from torch._subclasses import FakeTensorMode
from torch.export import Dim, ExportedProgram

from .lowering import LOWERINGS
from .tensors import NoDraft

KEPT = (
    "linear", "conv", "scaled_dot", "lstm", "gru", "rnn", "einsum", "matmul", "dropout", "cumsum", "cumprod", "pool", "norm",
    "softmax", "loss", "diag",
)  # fmt: skip
"""Operators with these in their names are not decomposed: they have a lowering or stay calls of a library."""


@dataclass
class Exported:
    graph: ExportedProgram
    model: torch.nn.Module
    inputs: list[Any]
    """As shipped, tensors without data."""
    floats: set[int]
    """Places of inputs that are numbers and stay open; other inputs that are no tensors are constants of the graph."""
    fixed: dict[int, Any]
    attributes: set[str]
    """Tensors of the model that are no buffers, where forward changes one; in the graph they are."""


class _IntType(type):
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, int)


class _Int(int, metaclass=_IntType):
    """`int` as a problem sees it: of an open size divided without a rest it is an open size, where Python's would fix it."""

    def __new__(cls, value: Any = 0, *base: Any) -> Any:
        whole = _whole(value) if isinstance(value, torch.SymFloat) else None
        return int(value, *base) if whole is None else whole


def _whole(value: torch.SymFloat) -> torch.SymInt | None:
    """A quotient of integers as the integer that it is for all sizes; None where it is none."""

    def exact(expr: sympy.Expr) -> sympy.Expr:
        parts = [exact(part) for part in expr.args]
        if type(expr).__name__ in ("FloatTrueDiv", "IntTrueDiv"):
            return parts[0] / parts[1]
        if type(expr).__name__ == "ToFloat":
            return parts[0]
        if expr.is_Float and float(expr).is_integer():
            return sympy.Integer(int(expr))
        return expr.func(*parts) if parts else expr

    found = sympy.expand(exact(value.node.expr))
    if not found.is_integer:
        return None
    return value.node.shape_env.create_symintnode(found, hint=int(value.node.hint))


def load(text: str) -> types.ModuleType:
    """The problem as a module. Its exceptions are its own."""
    module = types.ModuleType("problem")
    module.__file__ = "problem.py"
    module.__dict__["int"] = _Int
    sys.modules["problem"] = module
    try:
        exec(compile(text, "problem.py", "exec"), module.__dict__)
    except Exception as error:  # noqa: BLE001 -- the problem's code raises what it likes, a package that is missing say
        words = str(error).strip().splitlines() or ["no reason given"]
        raise NoDraft(f"the problem does not import: {type(error).__name__}: {words[0]}") from None
    for name in ("Model", "get_inputs"):
        if name not in module.__dict__:
            raise NoDraft(f"the problem defines no {name}")
    return module


def _built(module: types.ModuleType) -> torch.nn.Module:
    """As harness/worker_problem.py makes it: arguments are a list, a dict of names, or none."""
    arguments = getattr(module, "get_init_inputs", list)()
    return module.Model(**arguments) if isinstance(arguments, dict) else module.Model(*arguments)


def _model(module: types.ModuleType, dtype: torch.dtype | None) -> torch.nn.Module:
    """The model without data; one that looks at its data while it is built is built with it."""
    try:
        with torch.device("meta"):
            model = _built(module)
    except Exception:  # noqa: BLE001 -- whatever the problem's code raises for tensors without data
        model = _built(module).to("meta")
    return model if dtype is None else model.to(dtype)


def _inputs(module: types.ModuleType, dtype: torch.dtype | None) -> list[Any]:
    try:
        with torch.device("meta"):
            inputs = list(module.get_inputs())
    except Exception:  # noqa: BLE001 -- whatever the problem's code raises for tensors without data
        inputs = list(module.get_inputs())
    cast = {} if dtype is None else {"dtype": dtype}
    return [
        value.to("meta", **(cast if value.is_floating_point() else {})) if isinstance(value, torch.Tensor) else value
        for value in inputs
    ]  # fmt: skip


def export(text: str, dtype: torch.dtype | None = None, shorter: tuple[int, int] | None = None) -> Exported:
    """Raises NoDraft with the exporter's own words where the module cannot be exported. `shorter`: an input's place and another leading size."""
    warnings.filterwarnings("ignore")
    module = load(text)
    inputs, model = _inputs(module, dtype), _model(module, dtype)
    if shorter is not None:
        place, size = shorter
        inputs[place] = inputs[place].new_empty((size, *inputs[place].shape[1:]))
    numbers = {place for place, value in enumerate(inputs) if type(value) is float}
    failure: Exception | None = None
    for registers in (False, True):
        attributes: set[str] = set()
        if registers:
            model = _model(module, dtype)  # the first one has been changed
            attributes = _registered(model)
            if not attributes:
                break
        for floats in [numbers, set()] if numbers else [set()]:
            for doubled in (True, False):
                arguments = [_argument(v, place in floats, doubled) for place, v in enumerate(inputs)]
                try:
                    graph = _graph(model, arguments)
                    if _lost_numbers(graph, attributes):
                        graph = _with_data(module, arguments, dtype)
                except Exception as error:  # noqa: BLE001 -- torch.export raises what it likes; the last one is reported
                    failure = error
                    continue
                fixed = {
                    place: value for place, value in enumerate(inputs)
                    if not isinstance(value, torch.Tensor) and place not in floats
                }  # fmt: skip
                return Exported(graph, model, inputs, floats, fixed, attributes)
    first = str(failure).strip().splitlines() or [type(failure).__name__]
    raise NoDraft(f"torch.export cannot follow the module: {type(failure).__name__}: {first[0]}")


def _registered(model: torch.nn.Module) -> set[str]:
    """Makes buffers of the tensors that the model holds as plain attributes, so that the exporter follows what changes them."""
    found = set()
    for path, holder in model.named_modules():
        for name in [name for name, value in vars(holder).items() if isinstance(value, torch.Tensor)]:
            value = holder.__dict__.pop(name)
            holder.register_buffer(name, value, persistent=False)
            found.add(f"{path}.{name}" if path else name)
    return found


def _with_data(module: types.ModuleType, arguments: list[Any], dtype: torch.dtype | None) -> ExportedProgram:
    """The same with the numbers that forward itself makes tensors of: they need a device that holds data, the inputs do not."""
    model = _built(module)
    model = model if dtype is None else model.to(dtype)
    with FakeTensorMode(allow_non_fake_inputs=True):
        inputs = [
            torch.empty(a.shape, dtype=a.dtype, device="cpu") if isinstance(a, torch.Tensor) else a for a in arguments
        ]
    return _graph(model, inputs)


def _lost_numbers(graph: ExportedProgram, attributes: set[str]) -> bool:
    return any(
        isinstance(value, torch.Tensor) and value.is_meta and name not in attributes
        for name, value in graph.constants.items()
    )


def _argument(value: Any, is_open: bool, doubled: bool) -> Any:
    """A leading size of one would be taken for a constant, so it is exported as two where the module accepts that."""
    if is_open:
        return torch.empty((), dtype=torch.float64, device="meta")
    if doubled and isinstance(value, torch.Tensor) and value.dim() and value.shape[0] == 1:
        return torch.empty((2, *value.shape[1:]), dtype=value.dtype, device="meta")
    return value


@contextlib.contextmanager
def _layers_at_once() -> Iterator[None]:
    """Recurrent layers tell the exporter what they return without taking their steps, of which there may be thousands."""
    with contextlib.ExitStack() as stack:
        for name in ("rnn_tanh", "rnn_relu", "gru", "lstm"):
            call = getattr(torch.ops.aten, name).input
            stack.callback(call._dispatch_cache.clear)
            stack.enter_context(patch.dict(decomposition_table, {call: _returned}))
            stack.enter_context(patch.dict(call.py_kernels, dict.fromkeys(call.py_kernels, _returned)))
            call._dispatch_cache.clear()
        yield


def _returned(x, states, weights, has_bias, layers, dropout, training, both, batch_first) -> tuple[torch.Tensor, ...]:
    """Of a recurrent layer, without data: its outputs, and its states after the last step."""
    states = list(states) if isinstance(states, (list, tuple)) else [states]
    features = states[0].shape[-1] * (2 if both else 1)
    return x.new_empty((*x.shape[:2], features)), *(state.new_empty(state.shape) for state in states)


def _graph(model: torch.nn.Module, arguments: list[Any]) -> ExportedProgram:
    shapes = tuple({0: Dim.AUTO} if isinstance(a, torch.Tensor) and a.dim() else None for a in arguments)
    with torch.no_grad(), _layers_at_once():
        exported = torch.export.export(model, tuple(arguments), dynamic_shapes=shapes, strict=False)
        table = torch.export.default_decompositions()
        for operator in list(table):
            if str(operator) in LOWERINGS or any(word in str(operator) for word in KEPT):
                table.pop(operator)
        return exported.run_decompositions(table)


def forward_arguments(text: str) -> tuple[str, list[str]]:
    """The signature of Model.forward as text, and its arguments' names without self."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef) and node.name == "Model":
            for method in node.body:
                if isinstance(method, ast.FunctionDef) and method.name == "forward":
                    if method.args.vararg or method.args.kwarg:
                        raise NoDraft("Model.forward takes a variable number of arguments")
                    names = [a.arg for a in [*method.args.posonlyargs, *method.args.args, *method.args.kwonlyargs]]
                    for argument in [*method.args.posonlyargs, *method.args.args, *method.args.kwonlyargs]:
                        argument.annotation = None
                    return ast.unparse(method.args), names[1:]
    raise NoDraft("the problem's Model has no forward of its own")
