"""What forward leaves in attributes of Model and of its parts: tensors, which a draft leaves there, too, and counts, which have none."""

from __future__ import annotations

import collections
import contextlib
import functools
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from .counters import SUFFIX, Count

OWN = frozenset(vars(torch.nn.Module()))
"""What torch itself keeps in a module's dict."""
HOLDERS = (list, dict, set, collections.deque)
MISSING = object()


@dataclass(frozen=True)
class Place:
    """An attribute of a part of the model, or what a list or a dict in one has at a key."""

    path: str
    name: str
    key: Any = MISSING

    def text(self, part: str) -> str:
        """In Python; `part` is the text of the part."""
        return f"{part}.{self.name}" + ("" if self.key is MISSING else f"[{self.key!r}]")


class Held:
    """What the model's parts hold beside parameters and parts at one time."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.parts = list(model.named_modules())
        self.attributes = [{n: v for n, v in vars(part).items() if n not in OWN} for _, part in self.parts]
        self.buffers = [dict(part._buffers) for _, part in self.parts]
        self.inside = {
            (path, name): (value, value.copy())
            for (path, _), held in zip(self.parts, self.attributes, strict=True)
            for name, value in held.items() if type(value) in HOLDERS
        }  # fmt: skip

    def restore(self) -> None:
        for (_, part), attributes, buffers in zip(self.parts, self.attributes, self.buffers, strict=True):
            for name in vars(part).keys() - attributes.keys() - OWN:
                del part.__dict__[name]
            part.__dict__.update(attributes)
            part._buffers.clear()
            part._buffers.update(buffers)
        for value, copied in self.inside.values():
            value.clear()
            (value.extend if isinstance(value, (list, collections.deque)) else value.update)(copied)

    def left_in_attributes(self) -> None:
        """Makes plain attributes of what the model has since put where a buffer was none, or one of another shape."""
        for (_, part), buffers in zip(self.parts, self.buffers, strict=True):
            for name, value in list(part._buffers.items()):
                if value is not buffers.get(name) and not _replaces(value, buffers.get(name)):
                    del part._buffers[name]
                    part.__dict__[name] = value

    def numbers(self) -> dict[str, Any]:
        """Numbers, words and choices, those in lists and dicts, too, and how much these hold."""
        whole = [
            (f"{path}.{name}".removeprefix("."), value)
            for (path, _), attributes in zip(self.parts, self.attributes, strict=True)
            for name, value in attributes.items()
        ]
        for at, (_, copied) in self.inside.items():
            text = ".".join(filter(None, at))
            whole.append((text, len(copied)))
            if not isinstance(copied, set):
                pairs = copied.items() if isinstance(copied, dict) else enumerate(copied)
                whole += [(f"{text}[{key!r}]", value) for key, value in pairs]
        return {name: value for name, value in whole if type(value) in (bool, int, float, str)}

    def left(self, later: Held) -> Iterator[tuple[Place, Any]]:
        """Places that hold another thing `later`, and what they hold then."""
        for number, (path, _) in enumerate(self.parts):
            attributes, buffers = self.attributes[number], self.buffers[number]
            yield from _others(attributes, later.attributes[number], path)
            for name, value in later.buffers[number].items():
                if value is not buffers.get(name) and not _replaces(value, buffers.get(name)):
                    yield Place(path, name), value
        for at, (value, copied) in self.inside.items():
            same, now = later.inside.get(at, (None, None))
            if same is value and isinstance(value, (list, dict)):
                before, after = (one if isinstance(one, dict) else dict(enumerate(one)) for one in (copied, now))
                yield from _others(before, after, *at)


def _others(before: dict, after: dict, *at: Any) -> Iterator[tuple[Place, Any]]:
    for name, value in after.items():
        if value is not before.get(name, MISSING) and isinstance(name, (str, int)):
            yield Place(*(*at, name)), value


def _replaces(value: Any, old: Any) -> bool:
    tensors = isinstance(value, torch.Tensor) and isinstance(old, torch.Tensor)
    return tensors and (value.shape, value.dtype) == (old.shape, old.dtype)


def _is_kept(value: Any, weights: set[int]) -> bool:
    """Whether it has a tensor, and no weight: recurrent layers of torch hold a list of theirs, which the exporter exchanges."""
    leaves = pytree.tree_leaves(value)
    kinds = (torch.Tensor, bool, int, float, str, type(None), torch.SymInt)
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    return bool(tensors) and all(isinstance(leaf, kinds) and id(leaf) not in weights for leaf in leaves)


@dataclass
class Left:
    """What forward has left in the model's attributes, call by call of the exporter's the same."""

    places: list[Place] = field(default_factory=list)
    """Of tensors, and of lists, tuples and dicts with some: these are outputs of the graph behind forward's own."""
    specs: list[pytree.TreeSpec] = field(default_factory=list)
    numbers: set[str] = field(default_factory=set)
    """Attributes whose number, word, choice or length is another one afterwards."""
    counts: dict[str, Count] = field(default_factory=dict)
    """What is afterwards in the attributes that are counts."""
    calls: int = 0

    @property
    def count(self) -> int:
        """Of the outputs."""
        return sum(spec.num_leaves for spec in self.specs)


@contextlib.contextmanager
def followed_attributes(model: torch.nn.Module, counts: set[str], device: torch.device) -> Iterator[Left]:
    """The exporter follows neither what a part's attributes are given nor buffers that a part assigns. So forward returns the former, and
    changes the latter in place when it ends; and each call begins with what the model has held before. Of the attributes `counts` the
    numbers are buffers on `device`."""
    as_it_is, found = model.forward, Left()
    counting = {path: (model.get_submodule(path.rpartition(".")[0]), path.rpartition(".")[2]) for path in counts}
    for part, name in counting.values():
        value = torch.empty((), dtype=torch.float64, device=device)
        part.register_buffer(name + SUFFIX, value, persistent=False)

    @functools.wraps(as_it_is)
    def forward(*arguments: Any, **named: Any) -> Any:
        before = Held(model)
        found.calls += 1
        for part, name in counting.values():
            buffer: Any = part._buffers[name + SUFFIX]
            part.__dict__[name] = Count(buffer, type(part.__dict__[name]) is int)
        try:
            out = as_it_is(*arguments, **named)
            after = Held(model)
            found.counts |= {path: part.__dict__[name] for path, (part, name) in counting.items()}
        finally:
            before.restore()
        numbers = after.numbers()
        changed = {name for name, value in before.numbers().items() if numbers.get(name) != value}
        found.numbers |= changed - {path for path, count in found.counts.items() if isinstance(count, Count)}
        weights = {id(one) for part in model.modules() for one in part._parameters.values()}
        left = [(place, value) for place, value in before.left(after) if _is_kept(value, weights)]
        found.places = [place for place, _ in left]
        found.specs = [pytree.tree_structure(value) for _, value in left]
        for olds, news in zip(before.buffers, after.buffers, strict=True):
            for name, old in olds.items():
                if news.get(name) is not old and _replaces(news.get(name), old):
                    out = pytree.tree_map(lambda leaf, old=old: leaf.clone() if leaf is old else leaf, out)
                    old.copy_(news[name])
        return (out, [value for _, value in left]) if left else out

    model.__dict__["forward"] = forward
    try:
        yield found
    finally:
        del model.__dict__["forward"]
        for part, name in counting.values():
            del part._buffers[name + SUFFIX]


def of_sizes_alone(program: ExportedProgram, count: int) -> bool:
    """Whether the last `count` outputs are what they are for all values of inputs and weights: a mask, a table of positions."""
    (output,) = [node for node in program.graph.nodes if node.op == "output"]
    asked = [node for node in output.args[0][len(output.args[0]) - count :] if isinstance(node, torch.fx.Node)]
    seen = set(asked)
    while asked:
        node = asked.pop()
        if node.op == "placeholder":
            return False
        name = str(node.target)
        of_sizes = "sym_" in name or name.startswith("aten.new_") or "_like." in name
        more = [] if of_sizes else [one for one in node.all_input_nodes if one not in seen]
        seen.update(more)
        asked += more
    return True


@contextlib.contextmanager
def modes_asked() -> Iterator[list[str]]:
    """Meanwhile, from which files a module was asked whether it is in training; torch's exporter asks, too."""
    found: list[str] = []

    def ask(part: torch.nn.Module) -> bool:
        if "training" not in part.__dict__:
            raise AttributeError(f"{type(part).__name__} has no training")
        name = sys._getframe(1).f_code.co_filename
        if f"{os.sep}torch{os.sep}" not in name or f"{os.sep}torch{os.sep}nn{os.sep}" in name:
            found.append(name)
        return bool(part.__dict__["training"])

    def put(part: torch.nn.Module, mode: bool) -> None:
        part.__dict__["training"] = mode

    torch.nn.Module.training = property(ask, put)  # type: ignore[assignment]  # torch's own is of each instance alone
    try:
        yield found
    finally:
        del torch.nn.Module.training
