"""Recurrent layers (torch.nn.RNN, GRU, LSTM) as products of all steps at once and kernels that take the steps (recurrences.py).

The inputs' part of a layer's sums needs no step before it, so it is one product. Of several layers in one direction the first one's is
taken out, and the others read the layer below while it works. A layer of two directions needs both of the one below to its end, so
there each layer is a product and a kernel.
"""

from __future__ import annotations

import operator

import sympy
import torch
from torch import fx

from .algebra import Own
from .expressions import binary, make
from .inserting import insert
from .lowering import Lowering, lowers, size_of
from .recurrences import GATES, fits, padded, runs
from .tensors import Recurrence, Value

aten = torch.ops.aten
LAYERS = {f"aten.{name}.input": name for name in GATES}
EXPLAINED = (
    "recurrence",
    "What a step's inputs add does not depend on the step before: W x for all steps is one product.",
)


def _like(given, weights, from_below, bias, hidden, state, cell, layers, batch_first, first, rounds=(False, False)):
    """(out, last hidden state, last cell state): shapes and types."""
    cells, units = weights.shape[:2]
    out = given.new_empty((*given.shape[:2], units if layers else cells * units))
    last = given.new_empty((cells, given.shape[0 if batch_first else 1], units))
    return out, last, last.clone()


recurrence = Own("recurrence", _like)
rounded = Own("rounded", lambda x: x.new_empty(x.shape))
MANY_ROWS = 64


def rounds_before(cell: str, rows: int, units: int) -> bool:
    """Whether cuDNN multiplies what was a step before in TF32; the inputs it always does.

    It picks that by size: on an H100 (cuDNN 9.19) so it was of 90 layers of one to 64 rows and 16 to 512 units, but for five of 64 rows.
    """
    if rows >= MANY_ROWS and cell in ("gru", "lstm"):
        return units >= 256
    return rows > 1 and (units == 256 if cell == "gru" else units >= 512)


def own_layers(graph: fx.Graph, always: bool = False, rounds: bool = False) -> list[tuple[str, str]]:
    """Replaces recurrent layers where their kernels hold all weights at once; `always`: every one that can be. `rounds`: operands to TF32 where
    cuDNN does. What it did, explained."""
    found = []
    for node in list(graph.nodes):
        if node.op == "call_function" and str(node.target) in LAYERS:
            layer = _Layer(node, rounds)
            if layer.is_possible and (fits(layer.shape) or (always and runs(layer.shape))):
                layer.replace()
                found.append(EXPLAINED)
    if found:
        graph.eliminate_dead_code()
    return found


def padded_weights(before: fx.Node, weights: fx.Node, features: int) -> fx.Node:
    """With zeros behind each row, to a length in fours."""
    more = padded(features) - features
    return insert(before, aten.constant_pad_nd.default, weights, [0, more]) if more else weights


class _Layer:
    """A call of torch's recurrent layer."""

    def __init__(self, node: fx.Node, rounds: bool) -> None:
        self.node, self.cell = node, LAYERS[str(node.target)]
        (
            self.x,
            states,
            self.weights,
            self.has_bias,
            self.count,
            self.dropout,
            self.training,
            self.both,
            self.batch_first,
        ) = node.args
        self.states = list(states) if self.cell == "lstm" else [states]
        self.directions = 2 if self.both else 1
        self.units = self.weights[1].meta["val"].shape[1]
        self.rounds = (rounds, rounds and rounds_before(self.cell, self.rows, self.units))
        """Of its inputs, and of what was a step before: as cuDNN did on an H100, to the nearest, of two as near to the even one."""

    @property
    def rows(self) -> int:
        """Of the shipped input."""
        size = self.x.meta["val"].shape[0 if self.batch_first else 1]
        return size if isinstance(size, int) else int(size.node.hint)

    @property
    def is_possible(self) -> bool:
        tensors = [self.x, *self.states, *self.weights]
        each = 4 if self.has_bias else 2
        drops = self.training and self.dropout and self.count > 1
        projected = len(self.weights) != each * self.count * self.directions
        return not drops and not projected and all(t.meta["val"].dtype == torch.float32 for t in tensors)

    @property
    def shape(self) -> Recurrence:
        """Of one of its kernels, as far as it matters where that runs."""
        cells = self.directions if self.both else self.count
        return Recurrence(self.cell, self.units, cells, not self.both, False, 0, sympy.S.One, sympy.S.One, {})

    def _of(self, number: int) -> list[fx.Node]:
        """Weights and biases of a cell: of inputs, of the step before."""
        each = 4 if self.has_bias else 2
        return list(self.weights[number * each : (number + 1) * each])

    def insert(self, function, *arguments) -> fx.Node:
        return insert(self.node, function, *arguments)

    def packed(self, cells: list[int], which: int) -> fx.Node:
        """[cells, units, gates, padded inputs]: a unit's rows beside one another."""
        gates, rows = GATES[self.cell], []
        for number in cells:
            weight = self._of(number)[which]
            features = weight.meta["val"].shape[1]
            turned = self.insert(
                aten.permute.default, self.insert(aten.view.default, weight, [gates, self.units, features]), [1, 0, 2]
            )
            rows.append(padded_weights(self.node, turned, features))
        return self.insert(aten.stack.default, rows)

    def bias(self, cells: list[int]) -> fx.Node:
        """[cells, units, sums]."""
        return self.insert(aten.stack.default, [self._bias(number) for number in cells])

    def _bias(self, number: int) -> fx.Node:
        gates, units = GATES[self.cell], self.units
        sums = 4 if self.cell == "gru" else gates
        if not self.has_bias:
            return self.insert(aten.new_zeros.default, self._of(number)[0], [units, sums])
        of_input, of_before = self._of(number)[2:]
        both = self.insert(aten.add.Tensor, of_input, of_before)
        if self.cell == "gru":  # the third gate weighs what comes of the step before
            shared = self.insert(aten.slice.Tensor, both, 0, 0, 2 * units)
            apart = [self.insert(aten.slice.Tensor, one, 0, 2 * units, 3 * units) for one in (of_input, of_before)]
            both = self.insert(aten.cat.default, [shared, *apart])
        return self.insert(aten.permute.default, self.insert(aten.view.default, both, [sums, units]), [1, 0])

    def given(self, x: fx.Node, cells: list[int]) -> fx.Node:
        weights = [self._of(number)[0] for number in cells]
        weight = self.insert(aten.cat.default, weights, 0) if len(weights) > 1 else weights[0]
        if self.rounds[0]:
            x, weight = self.insert(rounded, x), self.insert(rounded, weight)
        return self.insert(aten.linear.default, x, weight)

    def steps(self, x: fx.Node, cells: list[int], layers: bool) -> list[fx.Node]:
        """(out, last hidden state, last cell state) of the cells."""
        first = cells[:1] if layers else cells
        made = self.insert(
            recurrence, self.given(x, first), self.packed(cells, 1), self.packed(cells[1:], 0) if layers and cells[1:] else None,
            self.bias(cells), *self.states, *[None] * (2 - len(self.states)), self.cell, layers, self.batch_first, cells[0], self.rounds,
        )  # fmt: skip
        return [self.insert(operator.getitem, made, place) for place in range(3)]

    def replace(self) -> None:
        x, last = self.x, []
        if self.both:
            for layer in range(self.count):
                x, *ends = self.steps(x, [2 * layer, 2 * layer + 1], False)
                last.append(ends)
        else:
            x, *ends = self.steps(x, list(range(self.count)), True)
            last.append(ends)
        for user in list(self.node.users):
            place = user.args[1]
            if place and len(last) > 1:
                user.replace_all_uses_with(self.insert(aten.cat.default, [ends[place - 1] for ends in last], 0))
            else:
                user.replace_all_uses_with(last[0][place - 1] if place else x)
            self.node.graph.erase_node(user)
        self.node.graph.erase_node(self.node)  # its dropout makes it random to torch, so that it would stay


@lowers("draft.rounded")
def lower_rounded(low: Lowering, x: Value):
    return low.formula(lambda p: make("round_to", x.at(p), "tf32_even", type="float"))


@lowers("draft.recurrence")
def lower_recurrence(
    low: Lowering,
    given: Value,
    weights,
    from_below,
    bias,
    hidden,
    state,
    cell,
    layers,
    batch_first,
    first,
    rounds=(False, False),
):
    program, out_shape = low.program, low.meta[0].shape
    read = {
        "given": given,
        "weights": weights,
        "from_below": from_below,
        "bias": bias,
        "hidden": hidden,
        "state": state,
    }
    buffers = {use: program.realise(value) for use, value in read.items() if value is not None}
    reads = list(buffers.values())
    cells, units = (int(size) for size in weights.shape[:2])
    batch, steps = (size_of(size) for size in (out_shape[:2] if batch_first else reversed(out_shape[:2])))
    buffers["out"] = program.allocate(map(size_of, out_shape), torch.float32, cell)
    buffers["last"] = program.allocate([cells, batch, units], torch.float32, f"{cell}_last")
    if cell == "lstm":
        buffers["last_state"] = program.allocate([cells, batch, units], torch.float32, f"{cell}_state")
    if layers and cells > 1:
        buffers["below"] = program.allocate([cells - 1, steps, batch, units], torch.float32, f"{cell}_below")
    shape = Recurrence(cell, units, cells, layers, batch_first, first, steps, batch, buffers, tuple(rounds))

    def element(position):
        """Everything that it reads."""
        total = make("load", reads[0], sympy.S.Zero, type="float")
        for buffer in reads[1:]:
            total = binary("add", total, make("load", buffer, sympy.S.Zero, type="float"))
        return total

    outs = [buffer for buffer in buffers.values() if buffer not in reads]
    made = dict(zip((buffer.name for buffer in outs), program.recur(shape, element, outs), strict=True))
    return tuple(made[buffers[use].name] if use in buffers else None for use in ("out", "last", "last_state"))
