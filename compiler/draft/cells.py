"""Loops in which forward applies a cell (torch.nn.GRUCell, LSTMCell, RNNCell) to slice after slice, as the layer of that cell.

What the exporter unrolls is one call of torch's recurrent layer, which is a library's or becomes one of our own (lower_recurrent.py).
"""

from __future__ import annotations

import operator

import torch
from torch import fx

from .algebra import is_size, slice_of
from .inserting import insert
from .traced import layers_at_once

aten = torch.ops.aten
LAYERS = {
    "aten.gru_cell.default": aten.gru.input, "aten.lstm_cell.default": aten.lstm.input,
    "aten.rnn_tanh_cell.default": aten.rnn_tanh.input, "aten.rnn_relu_cell.default": aten.rnn_relu.input,
}  # fmt: skip
FEWEST = 2
EXPLAINED = (
    "cells as a layer",
    "A cell applied to one slice after another, each time to the state before, is its layer.",
)


def cells_as_layers(graph: fx.Graph) -> list[tuple[str, str]]:
    """Replaces every such loop, also one over what another loop makes. What it did, explained."""
    done = 0
    while any(_replaced(steps) for steps in _loops(graph)):
        graph.eliminate_dead_code()
        done += 1
    if done:
        for node in list(graph.nodes):
            whole = _restacked(node)
            if whole is not None:
                node.replace_all_uses_with(whole)
        graph.eliminate_dead_code()
    return [EXPLAINED] * done


def _loops(graph: fx.Graph) -> list[list[fx.Node]]:
    """Calls of one cell with the same weights, in order."""
    found: dict[tuple, list[fx.Node]] = {}
    for node in graph.nodes:
        if str(node.target) in LAYERS:
            found.setdefault((node.target, *_weights(node)), []).append(node)
    return [steps for steps in found.values() if len(steps) >= FEWEST]


def _weights(step: fx.Node) -> list[fx.Node]:
    return [weight for weight in step.args[2:] if weight is not None]


def _slice(node: fx.Node) -> tuple[fx.Node | None, int, int]:
    """(x, axis, place) of a slice, or of one of the pieces that unbind makes."""
    if node.target is operator.getitem and str(node.args[0].target) == "aten.unbind.int":
        x, axis = (*node.args[0].args, 0)[:2]
        return x, axis % x.meta["val"].dim(), node.args[1]
    return slice_of(node)


def _states(step: fx.Node) -> list[fx.Node]:
    return list(step.args[1]) if isinstance(step.args[1], (list, tuple)) else [step.args[1]]


def _made(step: fx.Node) -> list[fx.Node | None]:
    """The states that a step makes, None where nobody reads one."""
    if "lstm" not in str(step.target):
        return [step]
    of_place = {user.args[1]: user for user in step.users}
    return [of_place.get(0), of_place.get(1)]


def _replaced(steps: list[fx.Node]) -> bool:
    x, axis, first = _slice(steps[0].args[0])
    count = len(steps)
    if x is None or x.meta["val"].dim() != 3 or axis not in (0, 1) or not is_size(x.meta["val"].shape[axis], count):
        return False
    backwards = first == count - 1
    if not backwards and first != 0:
        return False
    for place, step in enumerate(steps):
        if _slice(step.args[0]) != (x, axis, count - 1 - place if backwards else place):
            return False
        if place and _states(step) != _made(steps[place - 1]):
            return False
        if place < count - 1 and any(
            made is not None and set(made.users) != {steps[place + 1]} for made in _made(step)[1:]
        ):
            return False  # a layer does not say what a cell holds between its steps
    before, weights = steps[0], _weights(steps[0])
    initial = [insert(before, aten.unsqueeze.default, state, 0) for state in _states(steps[0])]
    with layers_at_once():
        given = insert(before, aten.flip.default, x, [axis]) if backwards else x
        made = insert(
            before, LAYERS[str(before.target)], given, initial if len(initial) > 1 else initial[0], weights, len(weights) == 4, 1, 0.0,
            False, False, axis == 1,
        )  # fmt: skip
    out = insert(before, operator.getitem, made, 0)
    for place, step in enumerate(steps):
        hidden, *cell = _made(step)
        if hidden is not None:
            hidden.replace_all_uses_with(insert(before, aten.select.int, out, axis, place))
        if cell and cell[0] is not None and place == count - 1:
            last = insert(before, operator.getitem, made, 2)
            cell[0].replace_all_uses_with(insert(before, aten.select.int, last, 0, 0))
    for step in reversed(steps):  # their own graph's eliminate_dead_code keeps what it takes for random
        for user in list(step.users):
            step.graph.erase_node(user)
        step.graph.erase_node(step)
    return True


def _restacked(node: fx.Node) -> fx.Node | None:
    """All slices of a tensor, put together again, are the tensor."""
    name = str(node.target)
    if name not in ("aten.stack.default", "aten.cat.default"):
        return None
    parts, axis = (*node.args, 0)[:2]
    axis %= node.meta["val"].dim()
    if name == "aten.cat.default":
        raised = all(
            str(part.target) == "aten.unsqueeze.default" and part.args[1] % node.meta["val"].dim() == axis
            for part in parts
        )
        parts = [part.args[0] for part in parts] if raised else []
    slices = [slice_of(part) for part in parts]
    if not slices or slices[0][0] is None or not is_size(slices[0][0].meta["val"].shape[axis], len(slices)):
        return None
    return slices[0][0] if slices == [(slices[0][0], axis, place) for place in range(len(slices))] else None
