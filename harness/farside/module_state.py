"""The state of a module: what its calls change beside what they return, put in before a judged call and read after it.

Runs on the far side, boxed, with nothing of the project on its path. State are a module's parameters, buffers and other
attributes (numbers, tensors, nests of them) that depend on earlier calls or their inputs. What a first call leaves and no
later one changes is a cache, and none. Values travel as tensors [rows, ROW], one for each dtype: a leaf begins a row of its own.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

ROW = 64
"""A tolerance is a row's own, so a variance of 1e4 must not lend a mean its noise."""
FLOATS = ("float64", "float32", "float16", "bfloat16")
INTEGERS = ("int64", "int32", "int16", "int8", "uint8", "bool")
MOST_ENTRIES = 2000
FAR_S, FAR_BYTES = 1.0, 64 << 20
"""Seconds that calls in a row of Model may take, by which what happens rarely is found, and bytes of outputs and state up to which one is
compared with the one before."""
MISSING = object()
COMPILED = "_orig_mod"
"""The submodule that torch.compile of a module wraps."""


class Stateful(Exception):
    """Its state cannot be followed; one sentence."""


# --- an attribute as a nest with leaves ------------------------------------------------------------------------------------


def nest(value: Any, leaves: list[Any]) -> Any:
    """The nest as JSON, tensors and numbers appended to `leaves`. Raises TypeError for what is none."""
    import torch

    if type(value) in (torch.Tensor, torch.nn.Parameter):
        leaves.append(value)
        return {"t": len(leaves) - 1}
    if type(value) in (bool, int, float):
        leaves.append(value)
        return {"n": len(leaves) - 1, "type": type(value).__name__}
    if value is None or type(value) is str:
        return {"v": value}
    if type(value) in (list, tuple, deque):
        return {type(value).__name__: [nest(one, leaves) for one in value], "most": getattr(value, "maxlen", None)}
    if type(value) is dict and all(type(name) in (str, int) for name in value):
        return {"dict": [[name, nest(one, leaves)] for name, one in value.items()]}
    raise TypeError(type(value).__name__)


def rebuilt(form: Any, leaves: list[Any]) -> Any:
    (kind, inner), *_ = form.items()
    if kind in ("t", "n"):
        return leaves[inner]
    if kind == "v":
        return inner
    if kind == "dict":
        return {name: rebuilt(one, leaves) for name, one in inner}
    found = [rebuilt(one, leaves) for one in inner]
    return deque(found, form["most"]) if kind == "deque" else {"list": list, "tuple": tuple}[kind](found)


def attributes(model: Any) -> Iterator[tuple[str, str, Any]]:
    """(module's path, name, value) of all that a module holds but its submodules."""
    import torch

    own = frozenset(vars(torch.nn.Module()))
    for path, module in model.named_modules():
        held = {**module._parameters, **module._buffers}
        yield from ((path, name, value) for name, value in held.items())
        yield from ((path, name, value) for name, value in vars(module).items() if name not in own)


# --- describe --------------------------------------------------------------------------------------------------------------


def snapshot(model: Any) -> dict[tuple[str, str], tuple[Any, list[Any]]]:
    """(path, name) -> nest and leaves, of what can be followed; tensors are copies."""
    found = {}
    for path, name, value in attributes(model):
        leaves: list[Any] = []
        try:
            form = nest(value, leaves)
        except (TypeError, RecursionError):
            continue
        found[path, name] = (
            form,
            [one if isinstance(one, (bool, int, float)) else one.detach().clone() for one in leaves],
        )
    return found


def alike(one: Any, other: Any) -> bool:
    import torch

    if one is None or other is None or one[0] != other[0]:
        return one is other
    for a, b in zip(one[1], other[1], strict=True):
        if isinstance(a, (bool, int, float)):
            if a != b and not (a != a and b != b):
                return False
        elif (
            a.shape != b.shape
            or a.dtype != b.dtype
            or not torch.equal(a.contiguous().view(-1).view(torch.uint8), b.contiguous().view(-1).view(torch.uint8))
        ):
            return False
    return True


def find_sharing(model: Any) -> set[tuple[tuple[str, str], tuple[str, str]]]:
    """Pairs (path, name), either way round, of a module's parameters, buffers and attributes that lie in the same memory."""
    import torch

    spans = []
    for path, name, value in attributes(model):
        leaves: list[Any] = []
        try:
            nest(value, leaves)
        except (TypeError, RecursionError):
            continue
        for one in leaves:
            if isinstance(one, torch.Tensor) and one.numel():
                last = sum((n - 1) * step for n, step in zip(one.shape, one.stride(), strict=True))
                spans.append((one.data_ptr(), one.data_ptr() + (last + 1) * one.element_size(), (path, name)))
    found, open_ = set(), list[tuple[int, tuple[str, str]]]()
    for first, end, at in sorted(spans):
        open_ = [one for one in open_ if one[0] > first]
        found |= {pair for _, other in open_ if other != at for pair in ((at, other), (other, at))}
        open_.append((end, at))
    return found


def mark_apart(entries: list[dict[str, Any]], model: Any, sharing: set[Any]) -> None:
    """Mark the entries that no longer lie where they lay as constructed, `sharing` being find_sharing() of then: what is put into these
    must not reach what they shared memory with. Of two of which one is registered it is the other."""
    own = {(entry["path"], entry["name"]) for entry in entries}
    plain = {at for at in own if at[1] in vars(model.get_submodule(at[0]))}
    moved = {(at, other) for at, other in sharing - find_sharing(model) if at in own}
    for entry in entries:
        at = entry["path"], entry["name"]
        if any(one == at and (at in plain or other not in plain) for one, other in moved):
            entry["apart"] = True


def shape_of(snap: Any) -> list[list[Any]]:
    """[shape, dtype] of each leaf, a number's dtype its Python type."""
    return [
        [[], type(one).__name__]
        if isinstance(one, (bool, int, float))
        else [list(one.shape), str(one.dtype).removeprefix("torch.")]
        for one in snap[1]
    ]


def find_entries(
    before: dict[Any, Any],
    first: dict[Any, Any],
    second: dict[Any, Any],
    other: dict[Any, Any],
    *,
    caches: bool = False,
) -> list[dict[str, Any]]:
    """The entries of the state: snapshots of a module as constructed, after one call, after another of other inputs, and of a
    fresh one after that other call. `caches`: what the first call leaves, whatever its inputs, is state, too: whether a first call
    has set weights by its inputs. Raises Stateful."""
    entries = []
    for at in dict.fromkeys([*before, *first, *second, *other]):
        zero, one, two, again = (snap.get(at) for snap in (before, first, second, other))
        if alike(one, two) and alike(one, again) and (not caches or alike(zero, one)):
            continue  # never changed, or kept once and for all
        path, name = at
        said = ".".join(filter(None, at))
        if one is None or two is None or again is None:
            raise Stateful(f"its Model keeps {said}, which is of another kind after each call")
        shapes = shape_of(one)
        if one[0] != two[0] or one[0] != again[0] or shapes != shape_of(two) or shapes != shape_of(again):
            raise Stateful(f"its Model keeps {said}, whose shape or structure changes from call to call")
        for _, dtype in shapes:
            if dtype not in (*FLOATS, *INTEGERS, "int", "float"):
                raise Stateful(f"its Model keeps {said} of {dtype}, which is not supported")
        entry = {"path": path, "name": name, "form": one[0], "leaves": shapes}
        if zero is None or zero[0] != one[0] or shape_of(zero) != shapes:
            if zero is not None and any(not isinstance(leaf, (bool, int, float)) for leaf in zero[1]):
                raise Stateful(f"its Model keeps {said}, whose shape or structure changes with the first call")
            entry["initial"] = None if zero is None else constant(*zero)
        entries.append(entry)
    if len(entries) > MOST_ENTRIES:
        raise Stateful(
            f"its Model changes {len(entries)} parameters, buffers and attributes; at most {MOST_ENTRIES} can be followed"
        )
    return entries


def constant(form: Any, leaves: list[Any]) -> Any:
    """The nest with its numbers in their places."""
    (kind, inner), *_ = form.items()
    if kind == "n":
        return {"v": leaves[inner]}
    if kind == "v":
        return form
    if kind == "dict":
        return {"dict": [[name, constant(one, leaves)] for name, one in inner]}
    return {**form, kind: [constant(one, leaves) for one in inner]}


def place_entries(entries: list[dict[str, Any]]) -> tuple[list[tuple[str, int]], list[list[tuple[int, int]]]]:
    """((dtype, rows) of each tensor that the values travel in, for each entry (which of them, row) of each leaf).

    An entry that the first call makes has a leaf more, the last: whether it is there.
    """

    def dtype_of(dtype: str) -> str:
        return dtype if dtype in FLOATS else "float32" if dtype == "float" else "int64"

    every = [[*entry["leaves"], *([[[], "int"]] if "initial" in entry else [])] for entry in entries]
    groups = sorted({dtype_of(dtype) for leaves in every for _, dtype in leaves})
    rows, places = dict.fromkeys(groups, 0), []
    for leaves in every:
        own = []
        for shape, dtype in leaves:
            group = dtype_of(dtype)
            own.append((groups.index(group), rows[group]))
            rows[group] += max(1, -(-math.prod(shape) // ROW))
        places.append(own)
    return [(group, rows[group]) for group in groups], places


def view(buffers: list[torch.Tensor], at: tuple[int, int], shape: list[int]) -> torch.Tensor:
    """Where a leaf lies in the tensors [rows, ROW]."""
    group, row = at
    return buffers[group].view(-1)[row * ROW : row * ROW + math.prod(shape)].view(shape)


def inside(module: Any) -> Any:
    """The module, that which torch.compile has wrapped where it is such."""
    return module if module is None else inside(module._modules[COMPILED]) if COMPILED in module._modules else module


# --- one module's state ------------------------------------------------------------------------------------------------------


class ModuleState:
    """Puts a module's state in and reads it. `refused`: makes the exception for a module that has another."""

    def __init__(
        self, entries: list[dict[str, Any]], model: Any, device: str, refused: Callable[[str], Exception]
    ) -> None:
        import torch

        self.torch, self.device, self.refused = torch, device, refused
        base = torch._C.TensorBase
        self.detach, self.address = base.detach, base.data_ptr
        self.shape_of, self.device_of = (vars(base)[name].__get__ for name in ("shape", "device"))
        """Not the module's own: a method of its tensors, or of all, would bring them up to date when they are looked at, and for nobody else."""
        self.entries, self.model = entries, model
        self.groups, self.places = place_entries(entries)
        self.holders = [self._holder(entry) for entry in entries]
        self.constructed: list[Any] = []
        """Tensors of the state as the module has them now."""
        self.own: list[list[Any]] = [
            self._own(entry, holder) for entry, holder in zip(entries, self.holders, strict=True)
        ]
        self.on_host = any("initial" in entry for entry in entries) or any(
            isinstance(one, type) or one.device.type != device for own in self.own for one in own
        )
        """Whether some of it is the host's, so that no graph can hold a call."""

    @staticmethod
    def says(entry: dict[str, Any]) -> str:
        return ".".join(filter(None, (entry["path"], entry["name"])))

    def _holder(self, entry: dict[str, Any]) -> Any:
        """The submodule, also where one of the two has it under torch.compile and the other not."""
        module = inside(self.model)
        for part in filter(None, entry["path"].split(".")):
            if part != COMPILED:
                module = inside(module._modules.get(part))
            if module is None:
                raise self.refused(self._lacking(entry))
        return module

    def _lacking(self, entry: dict[str, Any]) -> str:
        return f"Model changes its state {self.says(entry)}, and ModelNew has nothing of that name"

    def _own(self, entry: dict[str, Any], holder: Any) -> list[Any]:
        """For each leaf the module's own tensor as constructed, a new one where it has none yet, the type of a number."""
        value = self._value(holder, entry["name"])
        leaves: list[Any] = []
        try:
            same = value is not MISSING and nest(value, leaves) and len(leaves) == len(entry["leaves"])
        except TypeError:
            same = False
        if not same and "initial" not in entry:
            raise self.refused(self._lacking(entry))
        found: list[Any] = []
        for at, (shape, dtype) in enumerate(entry["leaves"]):
            one = leaves[at] if same else None
            if isinstance(one, self.torch.Tensor) and list(one.shape) == shape:
                self.constructed.append(one)
                found.append(self.torch.empty_like(one) if entry.get("apart") else one)
            elif dtype in ("int", "float") or (isinstance(one, (bool, int, float)) and not shape):
                found.append(float if dtype == "float" else int if one is None else type(one))
            else:
                found.append(self.torch.empty(shape, dtype=self._dtype(dtype), device=self.device))
        return found

    def _dtype(self, dtype: str) -> Any:
        made = getattr(self.torch, dtype)
        wide = made == self.torch.float32 and self.torch.get_default_dtype() == self.torch.float64
        return self.torch.float64 if wide else made

    @staticmethod
    def _value(holder: Any, name: str) -> Any:
        for held in (holder._parameters, holder._buffers, vars(holder)):
            if type(held) not in (dict, OrderedDict):  # which may compute when it is looked at, and for nobody else
                return MISSING
            if name in held:
                return held[name]
        return MISSING

    @staticmethod
    def _assign(holder: Any, name: str, value: Any) -> None:
        for held in (holder._parameters, holder._buffers):
            if name in held:
                held[name] = value
                return
        vars(holder)[name] = value

    def prepare(self, buffers: list[torch.Tensor]) -> list[list[torch.Tensor]]:
        """The views of every leaf, made before a call is timed."""
        return [
            [view(buffers, at, shape) for at, (shape, _) in zip(places, [*entry["leaves"], [[], "int"]], strict=False)]
            for entry, places in zip(self.entries, self.places, strict=True)
        ]

    def put(self, views: list[list[torch.Tensor]]) -> None:
        """Make the module's state what lies in `views`."""
        to, of = [], []
        for entry, holder, own, there in zip(self.entries, self.holders, self.own, views, strict=True):
            if "initial" in entry and not int(there[-1]):
                initial = entry["initial"]
                if initial is None and entry["name"] in vars(holder):
                    del vars(holder)[entry["name"]]
                elif initial is not None:
                    self._assign(holder, entry["name"], rebuilt(initial, []))
                continue
            leaves = []
            for tensor, view in zip(own, there, strict=False):
                if isinstance(tensor, type):
                    leaves.append(tensor(view.item()))
                    continue
                to.append(self.detach(tensor))
                of.append(view)
                leaves.append(tensor)
            if self._value(holder, entry["name"]) is not leaves[0] or len(leaves) > 1:
                plain = entry["form"].keys() <= {"t", "n", "type"}
                self._assign(holder, entry["name"], leaves[0] if plain else rebuilt(entry["form"], leaves))
        if to:
            self.torch._foreach_copy_(to, of)

    def read(self, views: list[list[torch.Tensor]], buffers: list[torch.Tensor]) -> None:
        """Write the module's state into `views`, which lie in `buffers`. Raises what `refused` makes."""
        for buffer in buffers:
            buffer.zero_()
        to, of = [], []
        constructed = {id(one) for own in (self.constructed, *self.own) for one in own}
        for entry, holder, there in zip(self.entries, self.holders, views, strict=True):
            value = self._value(holder, entry["name"])
            leaves: list[Any] = []
            if "initial" in entry:
                try:
                    is_there = value is not MISSING and self._is_made(nest(value, leaves), leaves, entry)
                except TypeError:
                    is_there = False
                there[-1].fill_(int(is_there))
                if not is_there:
                    continue
            else:
                try:
                    if value is MISSING:
                        raise TypeError
                    nest(value, leaves)
                except TypeError:
                    raise self.refused(self._lacking(entry)) from None
            if len(leaves) != len(entry["leaves"]):
                raise self.refused(
                    f"its state {self.says(entry)} has {len(leaves)} values, Model's {len(entry['leaves'])}"
                )
            for leaf, view, (shape, _) in zip(leaves, there, entry["leaves"], strict=False):
                if isinstance(leaf, (bool, int, float)):
                    if shape:
                        raise self.refused(f"its state {self.says(entry)} is a number, Model's has shape {shape}")
                    view.fill_(leaf)
                    continue
                own, at = list(self.shape_of(leaf)), self.address(leaf)
                if own != shape:
                    raise self.refused(f"its state {self.says(entry)} has shape {own}, Model's {shape}")
                if any(one.data_ptr() <= at < one.data_ptr() + one.nbytes for one in buffers):
                    raise self.refused(f"its state {self.says(entry)} lies in the memory that it is copied to")
                on = self.device_of(leaf)
                if on != view.device and id(leaf) not in constructed:  # which Model.to() may leave where it is
                    raise self.refused(f"its state {self.says(entry)} is on {on}, should be on {view.device}")
                to.append(view)
                of.append(self.detach(leaf))
        if to:
            self.torch._foreach_copy_(to, of)

    @staticmethod
    def _is_made(form: Any, leaves: list[Any], entry: dict[str, Any]) -> bool:
        """Whether a value is what the first call makes, rather than what was there before it."""
        return len(leaves) == len(entry["leaves"]) and (
            entry["initial"] is None or constant_or_none(form, leaves) != entry["initial"]
        )


def constant_or_none(form: Any, leaves: list[Any]) -> Any:
    """`constant`, None for a nest with tensors."""
    return constant(form, leaves) if all(isinstance(one, (bool, int, float)) for one in leaves) else None
