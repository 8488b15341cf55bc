"""Loops over steps that forward takes itself, which are unrolled in the exported graph: a recurrence of its own.

Where such a loop goes over the leading axis, the graph has as many steps as the shipped input. That another input has as many steps as it
is long is nothing that one graph shows: the module is exported a second time, with a shorter input, and only where both graphs are
the same recurrence is the length left open.
"""

from __future__ import annotations

import operator
from typing import Any

import sympy
import torch
from torch import fx
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.source import ConstantSource
from torch._subclasses import FakeTensorMode
from torch.export.graph_signature import InputKind
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from .algebra import RULES, is_size, rewritten, slice_of
from .exported import Exported, export
from .inserting import insert
from .lower_recurrent import EXPLAINED, padded_weights, recurrence
from .recurrences import fits, padded
from .tensors import NoDraft, Recurrence
from .traced import plain

aten = torch.ops.aten

ACTIVATIONS = {"aten.tanh.default": "rnn_tanh", "aten.relu.default": "rnn_relu"}
FEWEST = 8
"""Steps from which a loop is worth a kernel of its own."""


def own_loops(graph: fx.Graph) -> list[_Chain]:
    """Replaces each loop whose kernel holds all weights at once; those that it did."""
    found = [chain for chain in _chains(graph) if chain.fits]
    for chain in found:
        chain.replace()
    if found:
        graph.eliminate_dead_code()
    return found


def followed(problem: str, exported: Exported, dtype: torch.dtype | None) -> list[tuple[str, str]]:
    """Replaces loops and rewrites the graph, and leaves the steps' number open where that can be. What was done, explained."""
    graph = exported.graph.graph
    loops = own_loops(graph)
    rules = [EXPLAINED] * len(loops) + rewritten(graph, RULES)
    names = [s.arg.name for s in exported.graph.graph_signature.input_specs if s.kind == InputKind.USER_INPUT]
    places = {names.index(chain.x.name) for chain in loops if chain.axis == 0 and chain.x.name in names}
    for place in places:
        if _same_with_fewer(problem, exported, place, dtype):
            _open_leading(graph, names[place])
    return rules


def _same_with_fewer(problem: str, exported: Exported, place: int, dtype: torch.dtype | None) -> bool:
    """Whether the module of an input that is shorter is the same graph."""
    try:
        fewer = export(problem, dtype, shorter=(place, FEWEST + 1))
    except NoDraft:
        return False
    graph = fewer.graph.graph
    own_loops(graph)
    rewritten(graph, RULES)
    return plain(graph) == plain(exported.graph.graph)


def _open_leading(graph: fx.Graph, name: str) -> None:
    """Gives every node its shape again, with that input's leading size open; all stays as it was where the size is needed as a number."""
    mode = FakeTensorMode(shape_env=ShapeEnv())
    made: dict[fx.Node, object] = {}
    for node in graph.nodes:
        value = node.meta.get("val")
        if node.op == "placeholder" and isinstance(value, torch.Tensor):
            sizes = [DimDynamic.STATIC] * value.dim()
            if node.name == name:
                sizes[0] = DimDynamic.DYNAMIC
            plain = torch.empty([int(size) for size in value.shape], dtype=value.dtype, device="meta")
            context = StatelessSymbolicContext(dynamic_sizes=sizes)
            made[node] = mode.from_tensor(plain, symbolic_context=context, source=ConstantSource(node.name))
        elif node.op == "placeholder":
            made[node] = value
        elif node.op == "call_function":
            arguments, keywords = (fx.map_arg(given, lambda n: made[n]) for given in (node.args, node.kwargs))
            with mode, enable_python_dispatcher():
                made[node] = node.target(*arguments, **keywords)
    env = mode.shape_env
    assert env is not None
    if env.guards or env.replacements:
        return
    for node, value in made.items():
        node.meta["val"] = value


class _Chain:
    """h[t] = tanh(cat(x[t], h[t-1]) W^T + b), step for step in the graph: W [x, h] = W_x x + W_h h."""

    def __init__(self, steps: list[fx.Node], x: fx.Node, axis: int, place: int) -> None:
        self.steps, self.x, self.axis, self.place = steps, x, axis, place
        """Linear layers in order; `place` is that of h in what is put together."""
        first = steps[0]
        self.weight, self.bias = first.args[1], (*first.args, None)[2]
        self.initial = first.args[0].args[0][place]
        self.units = self.weight.meta["val"].shape[0]
        (active,) = first.users
        self.cell = ACTIVATIONS[str(active.target)]

    @property
    def fits(self) -> bool:
        return fits(Recurrence(self.cell, self.units, 1, True, False, 0, sympy.S.One, sympy.S.One, {}))

    def replace(self) -> None:
        before, features = self.steps[0], self.x.meta["val"].shape[-1]
        ends = [(0, features), (features, features + self.units)]
        if self.place == 0:
            ends = [(self.units, self.units + features), (0, self.units)]
        of_x, of_h = (
            insert(before, aten.clone.default, insert(before, aten.slice.Tensor, self.weight, 1, *end)) for end in ends
        )
        packed = padded_weights(before, of_h, self.units)
        packed = insert(before, aten.view.default, packed, [1, self.units, 1, padded(self.units)])
        if self.bias is None:
            bias = insert(before, aten.new_zeros.default, self.weight, [1, self.units, 1])
        else:
            bias = insert(before, aten.view.default, self.bias, [1, self.units, 1])
        made = insert(
            before, recurrence, insert(before, aten.linear.default, self.x, of_x), packed, None, bias,
            insert(before, aten.unsqueeze.default, self.initial, 0), None, self.cell, True, self.axis == 1, 0,
        )  # fmt: skip
        out = insert(before, operator.getitem, made, 0)
        for place, step in enumerate(self.steps):
            (active,) = step.users
            at = -1 if step is self.steps[-1] else place  # the last one of however many
            active.replace_all_uses_with(insert(before, aten.select.int, out, self.axis, at))


def _chains(graph: fx.Graph) -> list[_Chain]:
    by_weight: dict[fx.Node, list[fx.Node]] = {}
    for node in graph.nodes:
        if str(node.target) == "aten.linear.default" and str(node.args[0].target) == "aten.cat.default":
            by_weight.setdefault(node.args[1], []).append(node)
    found = [_chain(steps) for steps in by_weight.values() if len(steps) >= FEWEST]
    return [chain for chain in found if chain is not None]


def _chain(steps: list[fx.Node]) -> _Chain | None:
    """The steps as a recurrence over all of a tensor's slices in their order, or None where they are something else."""
    x: Any
    before, place, x, axis, cell = None, 0, None, 0, ""
    for count, step in enumerate(steps):
        together = step.args[0]
        parts, along = (*together.args, 0)[:2]
        rank = step.meta["val"].dim()
        if step.args[1:] != steps[0].args[1:] or rank != 2 or len(parts) != 2 or along % rank != 1:
            return None
        if len(step.users) != 1 or step.meta["val"].dtype != torch.float32:
            return None
        (active,) = step.users
        if count == 0:
            found = [slice_of(part) for part in parts]
            place = 0 if found[0][0] is None else 1
            (x, axis, _), cell = found[1 - place], str(active.target)
            if x is None or x.meta["val"].dim() != 3 or axis not in (0, 1) or cell not in ACTIVATIONS:
                return None
        elif parts[place] is not before:
            return None
        if slice_of(parts[1 - place]) != (x, axis, count) or str(active.target) != cell:
            return None
        before = active
    return _Chain(steps, x, axis, place) if is_size(x.meta["val"].shape[axis], len(steps)) else None
