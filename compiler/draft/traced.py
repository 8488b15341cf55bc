"""torch.export of a model that lies on no device, with what it cannot follow put into its way."""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import sympy
import torch
from sympy.core.relational import Relational
from torch import fx
from torch._decomp import decomposition_table
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.export import Dim, ExportedProgram
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, ShapeEnv
from torch.utils import _pytree as pytree
from torch.utils._sympy.printers import PythonPrinter

from .attributes import Left, followed_attributes
from .graphs import graphs_alone
from .lowering import LOWERINGS
from .operators import asked_once
from .stays import left_alone
from .tensors import NoDraft

NEVER = -(1 << 62)
"""What no number is below that a module compares."""
SOME = 60
"""What a size that depends on values is when the module's code asks whether there are any."""
KEPT = (
    "linear", "conv", "scaled_dot", "lstm", "gru", "rnn", "einsum", "matmul", "dropout", "cumsum", "cumprod", "pool", "norm",
    "softmax", "loss", "diag", "cholesky", "linalg_solve", "linalg_inv", "index_add",
)  # fmt: skip
"""Operators with these in their names are not decomposed: they have a lowering or stay calls of a library."""


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
class TracedModule:
    program: ExportedProgram
    supposed: list[tuple[frozenset[str], str]]
    """Names and text of each condition on sizes that depend on values which the module's code asked for."""
    left: Left
    changed: set[str]
    """Parameters and buffers that forward may change on another way than the graph's."""
    draws: bool
    """Whether forward draws numbers, which the module's own is to draw again where it is asked in the middle."""


@dataclass(frozen=True)
class Answers:
    """What the module's code is told where it asks tensors, in the order in which it asks."""

    choices: list[bool] = field(default_factory=list)
    numbers: list[Any] = field(default_factory=list)
    changed: set[str] = field(default_factory=set)
    """Parameters and buffers that were others afterwards."""
    draws: bool = False


@contextlib.contextmanager
def _sizes_are_some(answers: Answers, left: Left) -> Iterator[list[tuple[frozenset[str], str]]]:
    """Where the module's code asks about a size that depends on values (whether there are any), it is told that there are some.

    Where it asks a tensor for a choice, or for a number that it compares, it is told the next of `answers`.
    """
    supposed: dict[str, tuple[ShapeEnv, sympy.Basic]] = {}
    chosen, choice_of, number_of = 0, dict[sympy.Basic, bool](), dict[sympy.Basic, Any]()
    read, call = 0, 0
    answer, item = ShapeEnv.evaluate_expr, torch.Tensor.item

    def begun() -> None:
        """Each of the exporter's calls of forward asks again."""
        nonlocal chosen, read, call
        if call != left.calls:
            chosen, read, call = 0, 0, left.calls

    def taken(tensor: torch.Tensor) -> Any:
        nonlocal read
        begun()
        at, value = read, item(tensor)
        read = at  # torch's modes ask once more inside
        if tensor.dtype != torch.bool:
            if isinstance(value, (torch.SymInt, torch.SymFloat)) and at < len(answers.numbers):
                number_of[value.node.expr] = answers.numbers[at]
                torch.ops.aten._assert_scalar.default(
                    value > NEVER, ""
                )  # which reads it, so that it stays in the graph
            read += 1
        return value

    def evaluate(env: ShapeEnv, expr: sympy.Basic, *arguments: Any, **named: Any) -> sympy.Basic:
        nonlocal chosen
        try:
            return answer(env, expr, *arguments, **named)
        except GuardOnDataDependentSymNode:
            begun()
            symbols = expr.free_symbols
            holds: Any = None
            if expr in choice_of:
                holds = choice_of[expr]
            elif _is_choice(env, expr) and chosen < len(answers.choices):
                holds = choice_of[expr] = answers.choices[chosen]
                chosen += 1
            elif isinstance(expr, Relational) and symbols and symbols <= number_of.keys() | env.size_like:
                shipped = {one: sympy.sympify(number_of.get(one, SOME)) for one in symbols}
                holds = expr.subs(shipped) == sympy.true
            if holds is None:
                raise
            text = PythonPrinter().doprint(expr)
            supposed[text if holds else f"not ({text})"] = env, expr
            return sympy.true if holds else sympy.false

    found: list[tuple[frozenset[str], str]] = []
    with patch.object(ShapeEnv, "evaluate_expr", evaluate), patch.object(torch.Tensor, "item", taken):
        yield found
    for text, (env, expr) in supposed.items():
        if env.replace(expr).free_symbols:  # else what came later says how many there are (lowering.py asks for that)
            found.append((frozenset(map(str, expr.free_symbols)), text))


@functools.cache
def _name_of(operator: torch._ops.OperatorBase) -> tuple[str, bool]:
    """Its name, and whether one of KEPT is in it: each trace asks a thousand operators."""
    name = str(operator)
    return name, any(word in name for word in KEPT)


def _is_kept(operator: torch._ops.OperatorBase) -> bool:
    """Whether it is not decomposed; lowerings may be added between two traces."""
    name, kept = _name_of(operator)
    return kept or name in LOWERINGS


def _decomposed(exported: ExportedProgram, table: dict) -> ExportedProgram:
    """By `table`. What the module's code reads of a tensor stays in the graph though nothing there has use for it: torch 2.11 drops that, and
    with it the names of what is supposed."""
    aten, impure = torch.ops.aten, fx.node._side_effectful_functions
    reads = {aten.item.default, aten._local_scalar_dense.default}
    added = reads - impure
    impure.update(added)
    try:
        program = exported.run_decompositions(table)
    finally:
        impure.difference_update(added)
    for node in program.graph.find_nodes(op="call_function", target=aten._local_scalar_dense.default):
        if not node.users:
            with program.graph.inserting_after(node):
                program.graph.call_function(aten._assert_scalar.default, (node, ""))
    return program


def _is_choice(env: ShapeEnv, expr: sympy.Basic) -> bool:
    """Whether the condition is a choice that a tensor holds, as the exporter has those: an integer of 0 or 1 that is 1."""
    if not isinstance(expr, sympy.Eq) or expr.args[1] != 1 or not isinstance(expr.args[0], sympy.Symbol):
        return False
    ends = env.var_to_range.get(expr.args[0])
    return ends is not None and (ends.lower, ends.upper) == (0, 1)


def _cumulative_norm(as_it_is: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Batch norm whose running statistics are the means of all batches (momentum=None): how many there were, torch reads as a number of
    Python's, which the exporter cannot follow; here it stays a tensor."""

    def forward(self: torch.nn.modules.batchnorm._BatchNorm, x: torch.Tensor) -> torch.Tensor:
        if self.momentum is not None or not self.training or self.running_mean is None or self.running_var is None:
            return as_it_is(self, x)
        assert self.num_batches_tracked is not None
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


def _refuse_weights(program: ExportedProgram) -> None:
    """Of layers that no module registers: to the exporter they are numbers, which are those of this model alone."""
    memory = {
        value.untyped_storage().data_ptr() for name, value in program.constants.items()
        if "lifted_tensor" in name and isinstance(value, torch.Tensor) and value.numel() > 1 and not value.is_meta
    }  # fmt: skip
    parameters = (
        [one for one in gc.get_objects() if type(one) is torch.nn.Parameter and not one.is_meta] if memory else []
    )
    if any(one.untyped_storage().data_ptr() in memory for one in parameters):
        raise NoDraft("forward reads weights that the module does not register")


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


def _of_sizes(made: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """`new_tensor`, of a list of open sizes too, which torch would fix."""

    @functools.wraps(made)
    def new_tensor(like: torch.Tensor, data: Any, **named: Any) -> torch.Tensor:
        if not isinstance(data, (list, tuple)) or not any(isinstance(one, torch.SymInt) for one in data):
            return made(like, data, **named)
        named = {"dtype": like.dtype, "device": like.device, **named}
        return torch.stack([torch.scalar_tensor(one, **named) for one in data])

    return new_tensor


def _rolled(roll: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """`torch.roll`, by a number that was read of a tensor too: what the exporter would need to know is only where each element comes from."""

    @functools.wraps(roll)
    def rolled(x: torch.Tensor, shifts: Any, dims: Any = None) -> torch.Tensor:
        if not isinstance(shifts, torch.SymInt) or not isinstance(dims, int):
            return roll(x, shifts, dims)
        places: Any = torch.arange(x.shape[dims], device=x.device)
        places = places - shifts
        return x.index_select(dims, places.remainder(x.shape[dims]))

    return rolled


@contextlib.contextmanager
def types_by_name(device: str) -> Iterator[None]:
    """Meanwhile `x.type()` answers as on `device`, and `x.type("torch.FloatTensor")` casts there: what is followed lies on none."""
    by_type, of_device = torch.Tensor.type, {"cuda": torch.cuda}.get(device, torch)
    kinds = [getattr(of_device, name) for name in dir(torch) if name.endswith("Tensor") and name != "Tensor"]
    names = {kind: f"{kind.__module__}.{kind.__name__}" for kind in kinds if hasattr(kind, "dtype")}
    casts = {at: kind.dtype for kind, name in names.items() for at in (kind, name)}
    of_dtype = {kind.dtype: name for kind, name in names.items()}

    def type_of(tensor: torch.Tensor, dtype: Any = None, *more: Any, **named: Any) -> Any:
        if dtype is None and not named:
            return of_dtype.get(tensor.dtype) or by_type(tensor)
        return by_type(tensor, casts.get(dtype, dtype), *more, **named)

    with patch.object(torch.Tensor, "type", type_of):
        yield


@contextlib.contextmanager
def _numbers_are_known() -> Iterator[None]:
    """`torch.arange(1, x.dim()).tolist()`: what is made of plain numbers alone is read as those numbers.

    To the exporter they are values of a tensor, of which it knows nothing.
    """
    known = "_astrolabe_numbers"

    make = torch.arange

    @functools.wraps(make)
    def arange(*arguments: Any, **named: Any) -> torch.Tensor:
        out = make(*arguments, **named)
        if arguments and all(type(one) is int for one in arguments) and named.keys() <= {"device"}:
            setattr(out, known, (out._version, range(*arguments)))
        return out

    def read(ask: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(ask)
        def tolist(tensor: torch.Tensor) -> Any:
            version, numbers = getattr(tensor, known, (None, None))
            return list(numbers) if numbers is not None and version == tensor._version else ask(tensor)

        return tolist

    with contextlib.ExitStack() as stack:
        stack.enter_context(patch.object(torch, "arange", arange))
        for kind in (FakeTensor, FunctionalTensor):
            stack.enter_context(patch.object(kind, "tolist", read(kind.tolist)))
        yield


def _hidden(graph: fx.Graph) -> list[tuple[str, ...]]:
    """Names of sizes that depend on values, call by call."""
    bindings = [node.meta.get("unbacked_bindings") or {} for node in graph.nodes]
    return [tuple(map(str, bound)) for bound in bindings if bound]


def plain(graph: fx.Graph) -> list:
    """What the graph does, without sizes and names."""
    nodes = [
        node for node in graph.nodes
        if not str(node.target).startswith("aten._assert") and (node.op != "placeholder" or node.users)
    ]  # fmt: skip
    numbers = {node: place for place, node in enumerate(nodes)}
    return [
        (str(node.target) if node.op == "call_function" else node.op, str(fx.map_arg(node.args, lambda n: numbers[n])))
        for node in nodes
    ]


def _bound(model: torch.nn.Module, values: tuple) -> tuple:
    """One value for each parameter of forward, as torch.export has them: what `*args` takes is one tuple."""
    kinds = [one.kind for one in inspect.signature(model.forward).parameters.values()]
    star = kinds.index(inspect.Parameter.VAR_POSITIONAL) if inspect.Parameter.VAR_POSITIONAL in kinds else len(values)
    return (*values[:star], *([values[star:]] if values[star:] else []))


def _other_generators() -> tuple[Any, ...]:
    """The states of Python's generator and of numpy's, where that is loaded."""
    numpy = sys.modules.get("numpy.random")
    return random.getstate(), repr(
        numpy.get_state()[1:3]
    ) if numpy else ""  # numpy prints the ends of its 624 numbers, and the place


def trace(
    model: torch.nn.Module,
    spec: pytree.TreeSpec,
    given: list[Any],
    fixed: bool = False,
    answers: Answers | None = None,
    counts: set[str] | None = None,
) -> TracedModule:
    """`counts`: attributes whose numbers are inputs of the graph."""
    device = next((a.device for a in given if isinstance(a, torch.Tensor)), torch.device("meta"))
    opened = [{0: Dim.AUTO} if isinstance(a, torch.Tensor) and a.dim() and not fixed else None for a in given]
    arguments, shapes = pytree.tree_unflatten(given, spec), _bound(model, pytree.tree_unflatten(opened, spec))
    # What is traced once asks for no operator's result again: to keep them takes longer than it saves.
    no_cache = torch._dynamo.config.patch(fake_tensor_cache_enabled=False)
    # Nobody reads which lines a node is of, and to find them takes a tenth of the export; torch 2.11 does not ask this.
    no_lines = patch.object(fx.config, "do_not_emit_stack_traces", True, create=True)
    eager = torch.compiler.set_stance("force_eager")
    with torch.no_grad(), layers_at_once(), asked_once(), graphs_alone(), eager, no_cache, no_lines:
        norm = torch.nn.modules.batchnorm._BatchNorm
        cumulative = patch.object(norm, "forward", _cumulative_norm(norm.forward))
        written: Any = torch.Tensor.data  # a descriptor, which stubs call a tensor
        data = patch.object(torch.Tensor, "data", property(lambda read: read.detach(), written.__set__))
        of_sizes = patch.object(torch.Tensor, "new_tensor", _of_sizes(torch.Tensor.new_tensor))
        with (
            left_alone(model),
            followed_attributes(model, counts or set(), device) as left,
            _sizes_are_some(answers or Answers(), left) as supposed,
            _numbers_are_known(),
            cumulative,
            of_sizes,
            data,
            patch.object(torch, "roll", _rolled(torch.roll)),
            patch.object(torch.Tensor, "roll", _rolled(torch.Tensor.roll)),
        ):
            before = _other_generators()
            exported = torch.export.export(model, arguments, dynamic_shapes=shapes, strict=False)
        if _other_generators() != before:
            raise NoDraft(
                "forward draws numbers by Python's random or by numpy, which a graph would take for constants"
            )
        _refuse_weights(exported)
        named = _hidden(exported.graph)
        table = torch.export.default_decompositions()
        for operator in list(table):
            if _is_kept(operator):
                table.pop(operator)
        program = _decomposed(exported, table) if supposed else exported.run_decompositions(table)
        _refuse_smears(program.graph)
        if supposed and named != _hidden(program.graph):
            raise NoDraft("the module asks for sizes that depend on values, and the exporter names them anew")
        asked = answers or Answers()
        return TracedModule(program, supposed, left, asked.changed, asked.draws)
