"""What a second call of forward finds that the first has left: a count, a choice that is settled, memory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

from .attributes import Held
from .counters import Counted
from .tensors import NoDraft
from .traced import TracedModule, plain


def refuse_memory(traced: TracedModule, follow: Callable[..., TracedModule]) -> None:
    """What a call finds in an attribute since the last one has left it there is none of the graph's inputs."""
    with contextlib.suppress(Exception):  # the problem's code
        if plain(follow(again=True).program.graph) == plain(traced.program.graph):
            return
    names = sorted({f"{place.path}.{place.name}".removeprefix(".") for place in traced.left.places})
    raise NoDraft(f"forward goes another way where its last call has left something in {', '.join(names)}")


def counting(
    traced: TracedModule,
    follow: Callable[..., TracedModule],
    asked: tuple[torch.nn.Module, tuple],
    with_data: Callable[[], tuple[torch.nn.Module, list]],
) -> tuple[TracedModule, dict[str, bool]]:
    """The graph with what forward counts in attributes as inputs, and the choices that a first call has settled. A number that a second call
    leaves alone is a cache, and a constant of the graph. `asked`: a model and its arguments without data, where it can be called so."""
    names, settled = set(traced.left.numbers), dict[str, bool]()
    numbers: dict[str, Any] = {}
    for make in (lambda: asked, with_data):
        with torch.no_grad(), contextlib.suppress(Exception):  # the problem's code
            model, arguments = make()
            before = Held(model)
            numbers, held = before.numbers(), []
            for _ in range(2):
                model(*arguments)
                held.append(Held(model).numbers())
            before.restore()
            first, second = held
            same = {name for name in names if second.get(name) == first.get(name)}
            settled = {name: second[name] for name in same if isinstance(numbers[name], bool)}
            names -= same
            break
    if not names and not settled:
        return traced, {}
    if any(type(numbers.get(name)) not in (int, float) or name.endswith("]") for name in names):
        raise Counted(names)
    try:
        found = follow(again=bool(settled), counts=names)
    except Exception:  # noqa: BLE001 -- the problem's code, to which a count is no number
        raise Counted(names | settled.keys()) from None
    if found.left.numbers & (names | settled.keys()):
        raise Counted(names | settled.keys())
    return found, settled
