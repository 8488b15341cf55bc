"""A call more in an exported graph."""

from __future__ import annotations

from collections.abc import Callable

from torch import fx
from torch._dispatch.python import enable_python_dispatcher


def insert(before: fx.Node, operator: Callable, *arguments) -> fx.Node:
    """A new call whose shape and type are known."""
    with before.graph.inserting_before(before):
        node = before.graph.call_function(operator, arguments)
    values = fx.map_arg(arguments, lambda n: n.meta["val"])
    # As the exporter does: operators in C++ may ask for a size as a number, which fixes it.
    with enable_python_dispatcher():
        node.meta["val"] = operator(*values)
    return node
