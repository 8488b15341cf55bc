"""Traces whose graphs are read and not called: what torch makes of a graph for its callers is left out."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

from torch import fx
from torch.fx.experimental import proxy_tensor
from torch.fx.graph import _PyTreeCodeGen

_compile_graph = fx.GraphModule.recompile


class _Forward:
    """A graph module's `forward`, compiled when it is asked for."""

    def __get__(self, module: fx.GraphModule | None, kind: type | None = None) -> Any:
        if module is None:
            return self
        _compile_graph(module)
        return type(module).forward.__get__(module)


def _compile_later(self: fx.GraphModule) -> None:
    """A graph becomes Python's text once it is called, and once: torch writes and compiles each some ten times, and calls few."""
    code = self._graph._codegen
    if isinstance(code, _PyTreeCodeGen):
        self._in_spec, self._out_spec = code.pytree_info.in_spec, code.pytree_info.out_spec
    type(self).forward = _Forward()


@contextlib.contextmanager
def graphs_alone() -> Iterator[None]:
    # Of each value torch notes a second time what it is; nobody reads that, and with open sizes it takes a tenth of the trace.
    no_notes = patch.object(proxy_tensor, "_extract_tensor_metadata", lambda _value: None)
    with patch.object(fx.GraphModule, "recompile", _compile_later), no_notes:
        yield
