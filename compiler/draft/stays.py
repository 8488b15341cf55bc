"""Parts of a module that the exporter cannot follow stay with torch: each is one call in the graph, and forward calls it as it is.

What a part returns is known from one call with inputs as shipped, so sizes are not left open; where a call returns another shape, the module's
own forward answers.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree

from . import library
from .lowering import Lowering, lowers, shape_of
from .module import call_text, parameter_text
from .tensors import NoDraft, Value

MOST_PARTS = 6
"""Of a module."""
OPERATORS = torch.library.Library("astrolabe_draft", "DEF")
OPERATORS.define("part(Tensor[] inputs, str path, int call) -> Tensor[]")


@dataclass
class PartCall:
    """One of a part: what it was given and what it returned, as nests whose tensors hold no values."""

    given: tuple
    named: dict[str, Any]
    returned: Any

    def outs(self) -> list[torch.Tensor]:
        return [leaf for leaf in pytree.tree_leaves(self.returned) if isinstance(leaf, torch.Tensor)]


@dataclass
class Part:
    text: str
    """In Python."""
    calls: list[PartCall] = field(default_factory=list)


PARTS: dict[str, Part] = {}
"""Of the module at hand, by their paths."""


@torch.library.register_fake("astrolabe_draft::part", lib=OPERATORS)
def _shapes(inputs: list[torch.Tensor], path: str, call: int) -> list[torch.Tensor]:
    return [torch.empty(one.shape, dtype=one.dtype, device=inputs[0].device) for one in PARTS[path].calls[call].outs()]


def at_fault(error: BaseException) -> str | None:
    """The path of the innermost part in whose forward an exporter's exception was raised; None where it is the module itself."""
    modules, trace = [], error.__traceback__
    while trace is not None:
        one = trace.tb_frame.f_locals.get("self")
        if (
            isinstance(one, torch.nn.Module)
            and type(one).__module__ == "problem"
            and trace.tb_frame.f_code.co_filename == "problem.py"
        ):
            modules.append(one)
        trace = trace.tb_next
    if not modules:
        return None
    return next((path for path, part in modules[0].named_modules() if part is modules[-1] and path), None)


def remember(module: types.ModuleType, model: torch.nn.Module, paths: set[str]) -> None:
    """Calls the model once, with data, and fills PARTS. Raises what the problem's code raises, and NoDraft."""

    def without_data(value: Any) -> Any:
        return pytree.tree_map(lambda leaf: leaf.to("meta") if isinstance(leaf, torch.Tensor) else leaf, value)

    def called(path: str, forward: Any) -> Any:
        def recorded(*given: Any, **named: Any) -> Any:
            tensors = [leaf for leaf in pytree.tree_leaves((given, named)) if isinstance(leaf, torch.Tensor)]
            versions = [leaf._version for leaf in tensors]
            returned = forward(*given, **named)
            if not tensors or versions != [leaf._version for leaf in tensors]:
                raise NoDraft(f"{path} is followed by no exporter, and takes no tensor or changes what it is given")
            PARTS[path].calls.append(PartCall(*without_data((given, named, returned))))
            return returned

        return recorded

    PARTS.clear()
    for path in paths:
        PARTS[path] = Part(parameter_text(model, path))
        part = model.get_submodule(path)
        part.__dict__["forward"] = called(path, part.forward)
    with torch.no_grad():
        model(*module.get_inputs())


@contextlib.contextmanager
def left_alone(model: torch.nn.Module) -> Iterator[None]:
    """Meanwhile calls of PARTS are calls of the operator."""
    parts = {path: model.get_submodule(path) for path in PARTS}
    count = dict.fromkeys(PARTS, 0)

    def called(path: str) -> Any:
        def forward(*given: Any, **named: Any) -> Any:
            at = count[path]
            count[path] = (at + 1) % len(PARTS[path].calls)  # the exporter calls forward more than once
            call = PARTS[path].calls[at]
            tensors = [leaf for leaf in pytree.tree_leaves((given, named)) if isinstance(leaf, torch.Tensor)]
            outs = iter(torch.ops.astrolabe_draft.part(tensors, path, at))
            return pytree.tree_map(lambda leaf: next(outs) if isinstance(leaf, torch.Tensor) else leaf, call.returned)

        return forward

    for path, part in parts.items():
        part.__dict__["forward"] = called(path)
    try:
        yield
    finally:
        for part in parts.values():
            del part.__dict__["forward"]


def _plain(leaf: Any) -> str:
    if not isinstance(leaf, (bool, int, float, str, type(None))):
        raise NoDraft(f"a part that stays with torch takes a {type(leaf).__name__}, which has no text in a candidate")
    return repr(leaf)


@lowers("astrolabe_draft.part.default")
def part(low: Lowering, inputs: list[Value], path: str, at: int) -> tuple[Value | None, ...]:
    call = PARTS[path].calls[at]
    texts = iter(library.tensor_text(low.program, value) for value in inputs)
    given, named = pytree.tree_map(
        lambda leaf: next(texts) if isinstance(leaf, torch.Tensor) else _plain(leaf), (call.given, call.named)
    )
    text = call_text(PARTS[path].text, given, named)
    leaves = pytree.tree_flatten_with_path(call.returned)[0]
    places = [pytree.keystr(path) for path, leaf in leaves if isinstance(leaf, torch.Tensor)]
    low.name = low.program.operator = path.rpartition(".")[2]
    outs = [low.program.allocate(shape_of(one), one.dtype, low.name) for one in low.meta]
    single = len(places) == 1
    if single:
        text += places[0]
    elif places != [f"[{place}]" for place in range(len(places))] or not isinstance(call.returned, (tuple, list)):
        text = f"(lambda made: ({', '.join(f'made{place}' for place in places)}))({text})"
    library.record(low, text, inputs, outs, single)
    kept = low.program.libraries[-1]
    for out in outs:
        shape = ", ".join(map(library.index_text, out.shape))
        kept.after += [
            f"if {{{out.name}}}.shape != ({shape}{',' if len(out.shape) == 1 else ''}):",
            f"    return self.as_written({low.program.call})",
        ]
    return tuple(low.program.whole(out, origin=out.name) for out in outs)
