"""A problem's text as a graph of torch's operators: exported without data, its leading sizes left open where the module allows it.

This executes the problem's code: only ever call it in a process that is boxed for that.
"""

from __future__ import annotations

import ast
import collections
import contextlib
import dataclasses
import functools
import random
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import sympy
import torch
from sympy.core.relational import Relational
from torch import fx
from torch._decomp import decomposition_table
from torch._subclasses import FakeTensorMode
from torch.export import Dim, ExportedProgram
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, ShapeEnv
from torch.utils import _pytree as pytree
from torch.utils._sympy.printers import PythonPrinter

from .lowering import LOWERINGS
from .tensors import NoDraft, Supposed

MOST_ARGUMENTS = 256
"""Of `*args`."""
SOME = 60
"""What a size that depends on values is when the module's code asks whether there are any."""
KEPT = (
    "linear", "conv", "scaled_dot", "lstm", "gru", "rnn", "einsum", "matmul", "dropout", "cumsum", "cumprod", "pool", "norm",
    "softmax", "loss", "diag", "cholesky", "linalg_solve", "linalg_inv",
)  # fmt: skip
"""Operators with these in their names are not decomposed: they have a lowering or stay calls of a library."""


@dataclass(frozen=True)
class Leaf:
    """One tensor or number of what forward is called with: an argument, or what lies in one that is a list, a tuple or a dict."""

    text: str
    """What forward calls it: `x`, `state[0]`, `batch['mask']`."""
    value: Any
    """As shipped, a tensor without data."""


@dataclass
class Exported:
    graph: ExportedProgram
    model: torch.nn.Module
    leaves: list[Leaf]
    """In the order of the graph's own inputs."""
    holders: list[tuple[str, list | tuple | dict]]
    """Lists, tuples and dicts that come in, the outer ones first, with what forward calls them."""
    signature: str
    arguments: list[str]
    """Names in the signature."""
    left_out: dict[str, str]
    """Arguments that get_inputs leaves at their defaults, with these."""
    call: str
    """The arguments as they are handed on."""
    floats: set[int]
    """Leaves that are numbers and stay open; others that are no tensors are constants of the graph."""
    fixed: dict[int, Any]
    attributes: set[str]
    """Tensors of the model that are no buffers, where forward changes one; in the graph they are."""
    supposed: list[Supposed]
    limits: list[str]
    """Conditions on the open sizes, in Python, without which forward does something else than the graph."""


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


def _length(value: Any) -> Any:
    """`len` as a problem sees it: of a tensor an open size, where Python's would fix it."""
    return value.shape[0] if isinstance(value, torch.Tensor) and value.dim() else len(value)


def load(text: str) -> types.ModuleType:
    """The problem as a module. Its exceptions are its own."""
    text = text.removeprefix("\ufeff")
    module = types.ModuleType("problem")
    module.__file__ = "problem.py"
    module.__dict__.update(int=_Int, len=_length)
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
    """As harness/farside/problem.py makes it: arguments are a list, a dict of names, or none."""
    arguments = getattr(module, "get_init_inputs", list)()
    model = module.Model(**arguments) if isinstance(arguments, dict) else module.Model(*arguments)
    for holder in list(model.modules()):
        for name, value in list(vars(holder).items()):
            if isinstance(value, list) and value and all(isinstance(part, torch.nn.Module) for part in value):
                # The exporter takes the weights of layers in a plain list for numbers; the draft finds them where they are.
                del holder.__dict__[name]
                setattr(holder, name, torch.nn.ModuleList(value))
    return model


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

    def without_data(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return value.to("meta", dtype=dtype if dtype and value.is_floating_point() else value.dtype)

    return pytree.tree_map(without_data, inputs)


def _register_classes(module: types.ModuleType) -> None:
    """Dataclasses of the problem may carry tensors, in and out."""
    for value in list(module.__dict__.values()):
        if isinstance(value, type) and dataclasses.is_dataclass(value) and value.__module__ == "problem":
            with contextlib.suppress(ValueError):  # it is registered already
                torch.export.register_dataclass(value)


def _leaves(inputs: list[Any], names: list[str]) -> list[Leaf]:
    if len(names) < len(inputs):
        raise NoDraft(f"get_inputs gives {len(inputs)} values and Model.forward takes {len(names)}")
    found, _ = pytree.tree_flatten_with_path(tuple(inputs))
    return [Leaf(names[path[0].idx] + pytree.keystr(path[1:]), value) for path, value in found]


def _holders(inputs: list[Any], names: list[str]) -> list[tuple[str, list | tuple | dict]]:
    found: list[tuple[str, list | tuple | dict]] = []

    def look(text: str, value: Any) -> None:
        if isinstance(value, (list, tuple)):
            found.append((text, value))
            for place, part in enumerate(value):
                look(f"{text}[{place}]", part)
        elif isinstance(value, dict):
            found.append((text, value))
            for key, part in value.items():
                look(f"{text}[{key!r}]", part)

    for name, value in zip(names, inputs, strict=False):
        look(name, value)
    return found


TWO_DEVICES = ("expected device meta", "devices, cpu and meta", "devices, meta and cpu")
"""What torch says where the module makes a tensor that is not beside its inputs."""


def export(
    text: str,
    dtype: torch.dtype | None = None,
    shorter: tuple[int, int] | None = None,
    device: str = "",
    fixed: bool = False,
) -> Exported:
    """Raises NoDraft with the exporter's own words where the module cannot be exported. `shorter`: a leaf's place and another leading
    size. `device`: what the draft is for; it matters where a module asks an input for its own. `fixed`: leading sizes are not left open."""
    warnings.filterwarnings("ignore")
    module = load(text)
    _register_classes(module)
    inputs, model = _inputs(module, dtype), _model(module, dtype)
    taken = forward_arguments(text, type(model))
    names = taken.positional
    leaves, spec = _leaves(inputs, names), pytree.tree_structure(tuple(inputs))
    if shorter is not None:
        place, size = shorter
        value = leaves[place].value
        leaves[place] = Leaf(leaves[place].text, value.new_empty((size, *value.shape[1:])))
    numbers = {place for place, leaf in enumerate(leaves) if type(leaf.value) is float}
    failure: Exception | None = None
    for registers in (False, True):
        attributes: set[str] = set()
        if registers:
            model = _model(module, dtype)  # the first one has been changed
            attributes = _registered(model)
            if not attributes:
                break
        for floats in [numbers, set()] if numbers and _may_be_open(model, spec, leaves, numbers) else [set()]:
            for doubled in (True, False):
                given = [_argument(leaf.value, place in floats, doubled) for place, leaf in enumerate(leaves)]
                before = _plain_attributes(model) if _assigns(text) else {}
                try:
                    if "autocast" in text and device == "cpu":  # its casts are those of a device
                        traced = _with_data(module, spec, given, dtype)
                    else:
                        try:
                            traced = _graph(model, spec, given, fixed)
                        except RuntimeError as error:
                            if not any(words in str(error) for words in TWO_DEVICES):
                                raise
                            traced = _with_data(
                                module, spec, given, dtype
                            )  # it makes tensors on the device of no input
                    if _lost_numbers(traced.program, attributes):
                        traced = _with_data(module, spec, given, dtype)
                except NoDraft:
                    raise
                except Exception as error:  # noqa: BLE001 -- torch.export raises what it likes; the last one is reported
                    failure = error
                    continue
                if before:
                    _refuse_counters(model, pytree.tree_unflatten(given, spec), before)
                constants = {
                    place: leaf.value for place, leaf in enumerate(leaves)
                    if not isinstance(leaf.value, torch.Tensor) and place not in floats
                }  # fmt: skip
                return Exported(
                    traced.program, model, leaves, _holders(inputs, names), ast.unparse(taken.arguments), taken.names,
                    taken.left_out(len(inputs)), taken.call, floats, constants, attributes,
                    [Supposed(*condition, taken.call) for condition in traced.supposed], _limits(traced.program, text),
                )  # fmt: skip
    first = str(failure).strip().splitlines() or [type(failure).__name__]
    raise NoDraft(f"torch.export cannot follow the module: {type(failure).__name__}: {first[0]}")


def _assigns(text: str) -> bool:
    """Whether a method of the problem's, other than a constructor, assigns attributes or fills lists and dicts."""
    for method in ast.walk(ast.parse(text)):
        if not isinstance(method, ast.FunctionDef) or method.name == "__init__":
            continue
        for node in ast.walk(method):
            if isinstance(node, ast.Attribute) and (
                isinstance(node.ctx, ast.Store)
                or node.attr in ("append", "appendleft", "extend", "add", "update", "pop")
            ):
                return True
            if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
                return True
    return False


def _plain_attributes(model: torch.nn.Module) -> dict[str, Any]:
    """Numbers, words and choices that the model's parts keep in attributes, and how much their lists and dicts hold."""
    found: dict[str, Any] = {}
    for path, holder in model.named_modules():
        for name, value in vars(holder).items():
            if name.startswith("_") and name in vars(torch.nn.Module()):
                continue
            if type(value) in (bool, int, float, str):
                found[f"{path}.{name}".removeprefix(".")] = value
            elif type(value) in (list, dict, set, collections.deque):
                found[f"{path}.{name}".removeprefix(".")] = len(value)
    return found


def _refuse_counters(model: torch.nn.Module, arguments: tuple, before: dict[str, Any]) -> None:
    """What forward counts in an attribute is a constant of the graph. A cache, which a second call leaves alone, is none."""
    found = [before]
    with torch.no_grad(), contextlib.suppress(Exception):  # the problem's code, without data
        for _ in range(2):
            model(*arguments)
            found.append(_plain_attributes(model))
    changed = {name for name in before if any(later.get(name) != before[name] for later in found[1:])}
    counted = {name for name in changed if found[-1].get(name) != found[1].get(name) or isinstance(before[name], bool)}
    if counted:
        raise NoDraft(f"forward changes {', '.join(sorted(counted))}, which a draft would take for a constant")


def _limits(graph: ExportedProgram, text: str) -> list[str]:
    """What the exporter took for granted about open sizes: the module went this way because of it."""
    bounds, sizes = [], []
    for symbol, ends in graph.range_constraints.items():
        if not str(symbol).startswith("s"):
            continue
        sizes.append(str(symbol))
        if ends.lower.is_Integer and (ends.lower > 2 or _looks_at_one(text)):
            bounds.append(f"{symbol} >= {int(ends.lower)}")
        if ends.upper.is_Integer and int(ends.upper) < sys.maxsize - 1:
            bounds.append(f"{symbol} <= {int(ends.upper)}")
    env = _shape_env(graph)
    asked: list[str] = []
    for guard in [] if env is None else env.guards:
        names = {str(symbol) for symbol in guard.expr.free_symbols}
        # that sizes are none of 0 and 1 is what the exporter supposes, not the module
        if names and names <= set(sizes) and not isinstance(guard.expr, sympy.Ne) and 2 not in guard.expr.args:
            asked.append(PythonPrinter().doprint(guard.expr))
    asked.sort(key=lambda condition: "%" not in condition)
    tried = random.Random(0)
    draws = [{name: tried.randint(1, 4096 if at % 2 else 64) for name in sizes} for at in range(2000)]
    draws = [draw for draw in draws if all(eval(bound, {}, draw) for bound in bounds)]
    for condition in dict.fromkeys(asked):
        with contextlib.suppress(
            ArithmeticError, NameError
        ):  # what Python alone cannot evaluate is no condition on a batch
            left = [draw for draw in draws if eval(condition, {}, draw)]
            if len(left) < len(draws):
                bounds.append(condition)
                draws = left
    return bounds


def _shape_env(graph: ExportedProgram) -> Any:
    for node in graph.graph.nodes:
        value = node.meta.get("val")
        for size in value.shape if isinstance(value, torch.Tensor) else ():
            if isinstance(size, torch.SymInt):
                return size.node.shape_env
    return None


def _looks_at_one(text: str) -> bool:
    """Whether the module may do something else where a size is one, of which the exporter says nothing."""
    for method in ast.walk(ast.parse(text)):
        if not isinstance(method, ast.FunctionDef) or method.name in ("__init__", "get_inputs", "get_init_inputs"):
            continue
        sizes = {
            name.id for node in ast.walk(method) if isinstance(node, ast.Assign) and _names_size(node.value, set())
            for target in node.targets for name in ast.walk(target) if isinstance(name, ast.Name)
        }  # fmt: skip
        for node in ast.walk(method):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "squeeze":
                if not node.args or getattr(node.args[0], "value", None) == 0:
                    return True
            elif isinstance(node, ast.Compare) and _names_size(node, sizes):
                sides = (node.left, *node.comparators)
                if any(isinstance(side, ast.Constant) and side.value in (1, 2) for side in sides):
                    return True
    return False


def _names_size(node: ast.AST, sizes: set[str]) -> bool:
    """Whether it names a tensor's size or length."""
    return any(
        (isinstance(part, ast.Attribute) and part.attr in ("shape", "size", "numel"))
        or (isinstance(part, ast.Name) and part.id in {"len", *sizes})
        for part in ast.walk(node)
    )


def _registered(model: torch.nn.Module) -> set[str]:
    """Makes buffers of the tensors that the model holds as plain attributes, so that the exporter follows what changes them."""
    found = set()
    for path, holder in model.named_modules():
        for name in [name for name, value in vars(holder).items() if isinstance(value, torch.Tensor)]:
            value = holder.__dict__.pop(name)
            holder.register_buffer(name, value, persistent=False)
            found.add(f"{path}.{name}" if path else name)
    return found


def _with_data(module: types.ModuleType, spec: pytree.TreeSpec, given: list[Any], dtype: torch.dtype | None) -> _Traced:
    """The same with the numbers that forward itself makes tensors of: they need a device that holds data, the inputs do not."""
    model = _built(module)
    model = model if dtype is None else model.to(dtype)
    with FakeTensorMode(allow_non_fake_inputs=True):
        inputs = [
            torch.empty(a.shape, dtype=a.dtype, device="cpu") if isinstance(a, torch.Tensor) else a for a in given
        ]
    return _graph(model, spec, inputs)


def _lost_numbers(graph: ExportedProgram, attributes: set[str]) -> bool:
    return any(
        isinstance(value, torch.Tensor) and value.is_meta and name not in attributes
        for name, value in graph.constants.items()
    )


def _may_be_open(model: torch.nn.Module, spec: pytree.TreeSpec, leaves: list[Leaf], numbers: set[int]) -> bool:
    """Whether the module answers in the same types where its numbers are tensors, as the exporter has them: beside integers it does not."""
    found: list[list[Any]] = []
    for places in (numbers, set()):
        given = [_argument(leaf.value, place in places, False) for place, leaf in enumerate(leaves)]
        with (
            torch.no_grad(),
            contextlib.suppress(Exception),
        ):  # the problem's code, without data: the exporter will say it
            found.append(
                [getattr(out, "dtype", None) for out in pytree.tree_leaves(model(*pytree.tree_unflatten(given, spec)))]
            )
    return len(found) < 2 or found[0] == found[1]


def _argument(value: Any, is_open: bool, doubled: bool) -> Any:
    """A leading size of one would be taken for a constant, so it is exported as two where the module accepts that."""
    if is_open:
        return torch.empty((), dtype=torch.float64, device="meta")
    if doubled and isinstance(value, torch.Tensor) and value.dim() and value.shape[0] == 1:
        return torch.empty((2, *value.shape[1:]), dtype=value.dtype, device="meta")
    return value


@contextlib.contextmanager
def layers_at_once() -> Iterator[None]:
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


@dataclass(frozen=True)
class _Traced:
    program: ExportedProgram
    supposed: list[tuple[frozenset[str], str]]
    """Names and text of each condition on sizes that depend on values which the module's code asked for."""


@contextlib.contextmanager
def _sizes_are_some() -> Iterator[list[tuple[frozenset[str], str]]]:
    """Where the module's code asks about a size that depends on values (whether there are any), it is told that there are some."""
    supposed: dict[str, frozenset[str]] = {}
    answer = ShapeEnv.evaluate_expr

    def evaluate(env: ShapeEnv, expr: sympy.Basic, *arguments: Any, **named: Any) -> sympy.Basic:
        try:
            return answer(env, expr, *arguments, **named)
        except GuardOnDataDependentSymNode:
            symbols = expr.free_symbols
            if not isinstance(expr, Relational) or not symbols or not symbols <= env.size_like:
                raise
            holds = expr.subs(dict.fromkeys(symbols, sympy.Integer(SOME)))
            text = PythonPrinter().doprint(expr)
            supposed[text if holds else f"not ({text})"] = frozenset(map(str, symbols))
            return holds

    found: list[tuple[frozenset[str], str]] = []
    with patch.object(ShapeEnv, "evaluate_expr", evaluate):
        yield found
    found += [(names, text) for text, names in supposed.items()]


def _cumulative_norm(as_it_is: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Batch norm whose running statistics are the means of all batches (momentum=None): how many there were, torch reads as a number of
    Python's, which the exporter cannot follow; here it stays a tensor."""

    def forward(self: torch.nn.modules.batchnorm._BatchNorm, x: torch.Tensor) -> torch.Tensor:
        if self.momentum is not None or not self.training or self.running_mean is None or self.running_var is None:
            return as_it_is(self, x)
        self._check_input_dim(x)
        self.num_batches_tracked.add_(1)
        share = 1 / self.num_batches_tracked.double()
        means, variances = torch.zeros_like(self.running_mean), torch.ones_like(self.running_var)
        out, _, _, mean, variance = torch.ops.aten._native_batch_norm_legit_functional(
            x, self.weight, self.bias, means, variances, True, 1.0, self.eps
        )
        for kept, new in ((self.running_mean, mean), (self.running_var, variance)):
            kept.copy_(kept * (1 - share) + new * share)
        return out

    return forward


VIEWS = (
    "view",
    "slice",
    "select",
    "permute",
    "transpose",
    "t",
    "unsqueeze",
    "squeeze",
    "alias",
    "narrow",
    "expand",
    "as_strided",
)


def _refuse_smears(graph: fx.Graph) -> None:
    """A copy of part of a tensor to where that part goes on: eager reads there what it has just written, in an order that is its own."""
    for node in graph.nodes:
        if str(node.target) != "aten.copy.default" or not all(isinstance(part, fx.Node) for part in node.args[:2]):
            continue
        (base, to), (other, of) = map(_root, node.args[:2])
        if base is other and base is not node.args[1] and to[2] > of[2] and _overlap(to, of):
            raise NoDraft(
                "forward copies part of a tensor onto itself, shifted: what comes out depends on the order in which torch copies"
            )


def _root(node: fx.Node) -> tuple[fx.Node, tuple[list[int], list[int], int]]:
    """What a node is a view of, and its sizes, strides and offset there, at the shipped sizes."""

    def plain(value: Any) -> int:
        return int(value.node.hint) if isinstance(value, torch.SymInt) and value.node.hint is not None else int(value)

    val, base = node.meta["val"], node
    while str(base.target).startswith("aten.") and str(base.target).split(".")[1] in VIEWS:
        base = base.args[0]
    return base, ([*map(plain, val.shape)], [*map(plain, val.stride())], plain(val.storage_offset()))


def _overlap(a: tuple, b: tuple) -> bool:
    ends = [
        offset + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
        for sizes, strides, offset in (a, b)
    ]
    written = torch.zeros(max(ends) + 1, dtype=torch.bool)
    written.as_strided(*a).fill_(True)
    return bool(written.as_strided(*b).any())


@contextlib.contextmanager
def _buffers_of_parts(model: torch.nn.Module) -> Iterator[None]:
    """A buffer that a part of the model assigns is changed in place when forward ends: the exporter follows no assignment but the model's own."""
    as_it_is = model.forward
    places = [(part, name) for part in model.modules() if part is not model for name in part._buffers]

    @functools.wraps(as_it_is)
    def forward(*arguments: Any, **named: Any) -> Any:
        before = [(part, name, part._buffers[name]) for part, name in places]
        out = as_it_is(*arguments, **named)
        for part, name, old in before:
            new = part._buffers.get(name)
            if old is None or new is None or new is old or (new.shape, new.dtype) != (old.shape, old.dtype):
                continue
            out = pytree.tree_map(lambda leaf, old=old: leaf.clone() if leaf is old else leaf, out)
            part._buffers[name] = old.copy_(new)
        return out

    if not places:
        yield
        return
    model.__dict__["forward"] = forward
    try:
        yield
    finally:
        del model.__dict__["forward"]


def _of_sizes(made: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """`new_tensor`, of a list of open sizes too, which torch would fix."""

    @functools.wraps(made)
    def new_tensor(like: torch.Tensor, data: Any, **named: Any) -> torch.Tensor:
        if not isinstance(data, (list, tuple)) or not any(isinstance(one, torch.SymInt) for one in data):
            return made(like, data, **named)
        named = {"dtype": like.dtype, "device": like.device, **named}
        return torch.stack([torch.scalar_tensor(one, **named) for one in data])

    return new_tensor


def _hidden(graph: fx.Graph) -> list[tuple[str, ...]]:
    """Names of sizes that depend on values, call by call."""
    bindings = [node.meta.get("unbacked_bindings") or {} for node in graph.nodes]
    return [tuple(map(str, bound)) for bound in bindings if bound]


def _graph(model: torch.nn.Module, spec: pytree.TreeSpec, given: list[Any], fixed: bool = False) -> _Traced:
    opened = [{0: Dim.AUTO} if isinstance(a, torch.Tensor) and a.dim() and not fixed else None for a in given]
    arguments, shapes = pytree.tree_unflatten(given, spec), pytree.tree_unflatten(opened, spec)
    with torch.no_grad(), layers_at_once(), torch.compiler.set_stance("force_eager"):
        norm = torch.nn.modules.batchnorm._BatchNorm
        cumulative = patch.object(norm, "forward", _cumulative_norm(norm.forward))
        of_sizes = patch.object(torch.Tensor, "new_tensor", _of_sizes(torch.Tensor.new_tensor))
        with _sizes_are_some() as supposed, cumulative, of_sizes, _buffers_of_parts(model):
            exported = torch.export.export(model, arguments, dynamic_shapes=shapes, strict=False)
        named = _hidden(exported.graph)
        table = torch.export.default_decompositions()
        for operator in list(table):
            if str(operator) in LOWERINGS or any(word in str(operator) for word in KEPT):
                table.pop(operator)
        program = exported.run_decompositions(table)
        _refuse_smears(program.graph)
        if supposed and named != _hidden(program.graph):
            raise NoDraft("the module asks for sizes that depend on values, and the exporter names them anew")
        return _Traced(program, supposed)


@dataclass
class Arguments:
    """What forward takes, without annotations."""

    arguments: ast.arguments

    @property
    def listed(self) -> list[str]:
        return [argument.arg for argument in [*self.arguments.posonlyargs, *self.arguments.args]][1:]

    @property
    def names(self) -> list[str]:
        more = [*self.arguments.kwonlyargs, self.arguments.vararg, self.arguments.kwarg]
        return self.listed + [argument.arg for argument in more if argument is not None]

    @property
    def positional(self) -> list[str]:
        """Those of `*args` as `args[0]` and so on."""
        star = self.arguments.vararg
        return self.listed + ([f"{star.arg}[{place}]" for place in range(MOST_ARGUMENTS)] if star is not None else [])

    @property
    def call(self) -> str:
        star = [f"*{self.arguments.vararg.arg}"] if self.arguments.vararg is not None else []
        named = [f"{argument.arg}={argument.arg}" for argument in self.arguments.kwonlyargs]
        twice = [f"**{self.arguments.kwarg.arg}"] if self.arguments.kwarg is not None else []
        return ", ".join([*self.listed, *star, *named, *twice])

    def left_out(self, given: int) -> dict[str, str]:
        """Arguments behind the first `given` ones whose defaults are constants, with these."""
        defaults = self.arguments.defaults
        pairs = list(zip(self.listed[len(self.listed) - len(defaults) :], defaults, strict=True)) if defaults else []
        pairs = [pair for pair in pairs if pair[0] in self.listed[given:]]
        pairs += [
            (argument.arg, default)
            for argument, default in zip(self.arguments.kwonlyargs, self.arguments.kw_defaults, strict=True)
            if default is not None
        ]
        found = {name: ast.unparse(default) for name, default in pairs if isinstance(default, ast.Constant)}
        return found | ({self.arguments.kwarg.arg: "{}"} if self.arguments.kwarg is not None else {})


def forward_arguments(text: str, model: type) -> Arguments:
    owner = next(part for part in model.__mro__ if "forward" in vars(part))
    parsed = ast.parse(text.removeprefix("\ufeff")).body
    found = [node for node in parsed if isinstance(node, ast.ClassDef) and node.name == owner.__name__]
    methods = [part for part in found[-1].body if getattr(part, "name", "") == "forward"] if found else []
    if owner.__module__ != "problem" or not methods or not isinstance(methods[-1], ast.FunctionDef):
        raise NoDraft(
            "the problem's Model has no forward of its own, nor has a class of the problem that it inherits from"
        )
    arguments = methods[-1].args
    listed = [*arguments.posonlyargs, *arguments.args]
    for argument in [*listed, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]:
        if argument is not None:
            argument.annotation = None
    return Arguments(arguments)
