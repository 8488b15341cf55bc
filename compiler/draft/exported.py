"""A problem's text as a graph of torch's operators: exported without data, its leading sizes left open where the module allows it.

This executes the problem's code: only ever call it in a process that is boxed for that.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import sys
import types
import warnings
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import sympy
import torch
from torch._subclasses import FakeTensorMode
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from . import stays
from .arguments import forward_arguments
from .attributes import OWN, Held, Left, modes_asked, of_sizes_alone
from .autocasts import Casts, noticed, of_a_gpu
from .counters import SUFFIX
from .limits import Int, length, limits_of
from .lowering import size_of
from .second_calls import counting, refuse_memory
from .tensors import NoDraft, Supposed
from .traced import Answers, TracedModule, trace, types_by_name
from .unscripted import unscripted

MOST_WITH_DATA = 1 << 24
"""Elements of inputs with which the module is called once where its code asks for what they hold."""


@dataclass(frozen=True)
class Leaf:
    """One tensor or number of what forward is called with: an argument, or what lies in one that is a list, a tuple or a dict."""

    text: str
    """What forward calls it: `x`, `state[0]`, `batch['mask']`."""
    value: Any
    """As shipped, a tensor without data."""


@dataclass
class Exported:
    graph: ExportedProgram
    model: torch.nn.Module
    leaves: list[Leaf]
    """In the order of the graph's own inputs."""
    holders: list[tuple[str, list | tuple | dict]]
    """Lists, tuples and dicts that come in, the outer ones first, with what forward calls them."""
    signature: str
    arguments: list[str]
    """Names in the signature."""
    left_out: dict[str, str]
    """Arguments that get_inputs leaves at their defaults, with these."""
    call: str
    """The arguments as they are handed on."""
    floats: set[int]
    """Leaves that are numbers and stay open; others that are no tensors are constants of the graph."""
    fixed: dict[int, Any]
    attributes: set[str]
    """Tensors of the model that are no buffers, where forward changes one; in the graph they are."""
    supposed: list[Supposed]
    limits: list[str]
    """Conditions on the open sizes, in Python, without which forward does something else than the graph."""
    left: Left
    settled: dict[str, bool]
    """Choices in attributes that the first call has settled, of which the graph is what later ones do."""
    changed: set[str]
    """Parameters and buffers that forward may change on another way than the graph's."""
    draws: bool
    """Whether forward draws numbers and asks a tensor for a choice."""
    modal: bool
    """Whether forward asks a part whether it is in training."""


def load(text: str) -> types.ModuleType:
    """The problem as a module. Its exceptions are its own."""
    text = text.removeprefix("\ufeff")
    module = types.ModuleType("problem")
    module.__file__ = "problem.py"
    module.__dict__.update(int=Int, len=length)
    sys.modules["problem"] = module
    try:
        with unscripted():
            exec(compile(text, "problem.py", "exec"), module.__dict__)
    except Exception as error:  # noqa: BLE001 -- the problem's code raises what it likes, a package that is missing say
        words = str(error).strip().splitlines() or ["no reason given"]
        raise NoDraft(f"the problem does not import: {type(error).__name__}: {words[0]}") from None
    for name in ("Model", "get_inputs"):
        if name not in module.__dict__:
            raise NoDraft(f"the problem defines no {name}")
    return module


def _built(module: types.ModuleType) -> torch.nn.Module:
    """As harness/farside/problem.py makes it: arguments are a list, a dict of names, or none."""
    arguments: Any = getattr(module, "get_init_inputs", list)()
    with unscripted():
        model = module.Model(**arguments) if isinstance(arguments, dict) else module.Model(*arguments)
    for holder in list(model.modules()):
        for name, value in list(vars(holder).items()):
            if name not in OWN and (layers := _registrable(value)) is not None:
                # The exporter takes the weights of layers in plain lists for numbers; the draft finds them where they are.
                del holder.__dict__[name]
                setattr(holder, name, layers)
    return model


def _registrable(value: Any) -> torch.nn.Module | None:
    """Lists, tuples and dicts of layers, and nests of such, as torch's own; None where something else is in them."""
    if isinstance(value, torch.nn.Module):
        return value
    if not isinstance(value, (list, tuple, dict)) or not value:
        return None
    found = [_registrable(part) for part in (value.values() if isinstance(value, dict) else value)]
    parts = [part for part in found if part is not None]
    if len(parts) < len(found):
        return None
    try:
        named = dict(zip(value, parts, strict=True)) if isinstance(value, dict) else None
        return torch.nn.ModuleList(parts) if named is None else torch.nn.ModuleDict(named)
    except (TypeError, KeyError):  # a name that no part of a module may have
        return None


def _model(module: types.ModuleType, dtype: torch.dtype | None) -> torch.nn.Module:
    """The model without data; one that looks at its data while it is built is built with it."""
    try:
        with torch.device("meta"):
            model = _built(module).to("meta")  # torch.Tensor(2, 3) lies on the CPU all the same
    except Exception:  # noqa: BLE001 -- whatever the problem's code raises for tensors without data
        model = _built(module).to("meta")
    return model if dtype is None else model.to(dtype)


def _inputs(module: types.ModuleType, dtype: torch.dtype | None) -> list[Any]:
    try:
        with torch.device("meta"):
            inputs = list(module.get_inputs())
    except Exception:  # noqa: BLE001 -- whatever the problem's code raises for tensors without data
        inputs = list(module.get_inputs())

    def without_data(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return value.to("meta", dtype=dtype if dtype and value.is_floating_point() else value.dtype)

    return pytree.tree_map(without_data, inputs)


def _register_classes(module: types.ModuleType) -> None:
    """Dataclasses of the problem may carry tensors, in and out."""
    for value in list(module.__dict__.values()):
        if isinstance(value, type) and dataclasses.is_dataclass(value) and value.__module__ == "problem":
            with contextlib.suppress(ValueError):  # it is registered already
                torch.export.register_dataclass(value)


def _leaves(inputs: list[Any], names: list[str]) -> list[Leaf]:
    if len(names) < len(inputs):
        raise NoDraft(f"get_inputs gives {len(inputs)} values and Model.forward takes {len(names)}")
    found, _ = pytree.tree_flatten_with_path(tuple(inputs))
    return [Leaf(names[path[0].idx] + pytree.keystr(path[1:]), value) for path, value in found]  # type: ignore[attr-defined]  # a tuple's key


def _holders(inputs: list[Any], names: list[str]) -> list[tuple[str, list | tuple | dict]]:
    found: list[tuple[str, list | tuple | dict]] = []

    def look(text: str, value: Any) -> None:
        if isinstance(value, (list, tuple)):
            found.append((text, value))
            for place, part in enumerate(value):
                look(f"{text}[{place}]", part)
        elif isinstance(value, dict):
            found.append((text, value))
            for key, part in value.items():
                look(f"{text}[{key!r}]", part)

    for name, value in zip(names, inputs, strict=False):
        look(name, value)
    return found


TWO_DEVICES = ("on the expected device", "to be on same device", "devices, cpu and meta", "devices, meta and cpu")
"""What torch says where the module makes a tensor that is not beside its inputs."""


def export(
    text: str,
    dtype: torch.dtype | None = None,
    shorter: tuple[int, int] | None = None,
    device: str = "",
    fixed: bool = False,
) -> Exported:
    """Raises NoDraft with the exporter's own words where the module cannot be exported. `shorter`: a leaf's place and another leading
    size. `device`: what the draft is for; it matters where a module asks an input for its own. `fixed`: leading sizes are not left open."""
    warnings.filterwarnings("ignore")
    with types_by_name(device):
        try:
            with noticed():
                return _with_parts(text, dtype, shorter, fixed, False)
        except Casts:
            with of_a_gpu() if device == "cuda" else contextlib.nullcontext():
                return _with_parts(text, dtype, shorter, fixed, True)


class NotFollowed(NoDraft):
    """By torch.export; the cause is its exception."""


def _with_parts(
    text: str, dtype: torch.dtype | None, shorter: tuple[int, int] | None, fixed: bool, casts: bool
) -> Exported:
    """`_export`; where a part of the module cannot be followed, that part is left to torch."""
    paths: set[str] = set()
    stays.PARTS.clear()
    first: NotFollowed | None = None
    while True:
        try:
            return _export(text, dtype, shorter, fixed or bool(paths), casts)
        except NotFollowed as failure:
            first = first or failure
            path = stays.at_fault(failure.__cause__ or failure)
            if path is None or path in paths or len(paths) == stays.MOST_PARTS or dtype is not None:
                raise first from None
        paths = {one for one in paths if not one.startswith(f"{path}.")} | {path}
        try:
            module = load(text)
            stays.remember(module, _built(module), paths)
        except Exception:  # noqa: BLE001 -- the problem's code
            raise first from None


def _export(
    text: str, dtype: torch.dtype | None, shorter: tuple[int, int] | None, fixed: bool, casts: bool
) -> Exported:
    """`casts`: by torch.autocast, whose casts are those of a device."""
    module = load(text)
    _register_classes(module)
    inputs, model = _inputs(module, dtype), _model(module, dtype)
    taken = forward_arguments(text, type(model))
    names = taken.positional
    leaves, spec = _leaves(inputs, names), pytree.tree_structure(tuple(inputs))
    if shorter is not None:
        place, size = shorter
        value = leaves[place].value
        leaves[place] = Leaf(leaves[place].text, value.new_empty((size, *value.shape[1:])))
    numbers = {place for place, leaf in enumerate(leaves) if type(leaf.value) is float}
    failure: Exception | None = None
    for registers in (False, True):
        attributes: set[str] = set()
        if registers:
            model = _model(module, dtype)  # the first one has been changed
            attributes = _registered(model)
            if not attributes:
                break
        for floats in [numbers, set()] if numbers and _may_be_open(model, spec, leaves, numbers) else [set()]:
            for doubled in (True, False):
                given = [_argument(leaf.value, place in floats, doubled) for place, leaf in enumerate(leaves)]
                follow = functools.partial(_follow, module, model, spec, given, inputs, dtype, fixed, casts, attributes)
                try:
                    with modes_asked() as modes:
                        traced = follow()
                except NoDraft:
                    raise
                except Exception as error:  # noqa: BLE001 -- torch.export raises what it likes; the last one is reported
                    failure = error
                    continue
                settled: dict[str, bool] = {}
                if traced.left.numbers:
                    asked = (model, pytree.tree_unflatten(given, spec))
                    traced, settled = counting(traced, follow, asked, lambda: (_built(module), module.get_inputs()))
                if traced.left.places and not of_sizes_alone(traced.program, traced.left.count):
                    refuse_memory(traced, follow)
                constants = {
                    place: leaf.value for place, leaf in enumerate(leaves)
                    if not isinstance(leaf.value, torch.Tensor) and place not in floats
                }  # fmt: skip
                return Exported(
                    traced.program, model, leaves, taken.rest(inputs) + _holders(inputs, names), ast.unparse(taken.arguments), taken.names,
                    taken.left_out(len(inputs)), taken.call, floats, constants, attributes,
                    [Supposed(*condition, taken.call) for condition in traced.supposed], limits_of(traced.program, text), traced.left, settled, traced.changed, traced.draws, bool(modes),
                )  # fmt: skip
    first = str(failure).strip().splitlines() or [type(failure).__name__]
    raise NotFollowed(f"torch.export cannot follow the module: {type(failure).__name__}: {first[0]}") from failure


def _follow(
    module: types.ModuleType, model: torch.nn.Module, spec: pytree.TreeSpec, given: list[Any], inputs: list[Any],
    dtype: torch.dtype | None, fixed: bool, casts: bool, attributes: set[str], again: bool = False,
    counts: set[str] | None = None,
) -> TracedModule:  # fmt: skip
    """`again`: as its second call goes. `counts`: numbers in attributes that are inputs of the graph."""

    def traced(answers: Answers | None = None) -> TracedModule:
        if casts:
            return _with_data(module, spec, given, dtype, fixed, again, answers, counts)
        before = Held(model)
        try:
            if again:
                with torch.no_grad():
                    model(*pytree.tree_unflatten(given, spec))
                before.left_in_attributes()
            found = trace(model, spec, given, fixed, answers, counts)
            if not _lost_numbers(found.program, attributes):
                return found
        except RuntimeError as error:
            if not any(words in str(error) for words in TWO_DEVICES):
                raise  # else it makes tensors on the device of no input
        finally:
            before.restore()
        return _with_data(module, spec, given, dtype, fixed, again, answers, counts)

    try:
        return traced()
    except GuardOnDataDependentSymNode:
        answers = _answers(module, inputs)
        if answers is None:
            raise
        return traced(answers)


def _registered(model: torch.nn.Module) -> set[str]:
    """Makes buffers of the tensors that the model holds as plain attributes, so that the exporter follows what changes them."""
    found = set()
    for path, holder in model.named_modules():
        for name in [name for name, value in vars(holder).items() if isinstance(value, torch.Tensor)]:
            value = holder.__dict__.pop(name)
            holder.register_buffer(name, value, persistent=False)
            found.add(f"{path}.{name}" if path else name)
    return found


def _with_data(
    module: types.ModuleType,
    spec: pytree.TreeSpec,
    given: list[Any],
    dtype: torch.dtype | None,
    fixed: bool,
    again: bool,
    answers: Answers | None,
    counts: set[str] | None,
) -> TracedModule:
    """The same with the numbers that forward itself makes tensors of: they need a device that holds data, the inputs do not."""
    model = _built(module)
    model = model if dtype is None else model.to(dtype)
    if again:
        before = Held(model)
        with torch.no_grad():
            model(*module.get_inputs())
        before.left_in_attributes()
    with FakeTensorMode(allow_non_fake_inputs=True):
        inputs = [
            torch.empty(a.shape, dtype=a.dtype, device="cpu") if isinstance(a, torch.Tensor) else a for a in given
        ]
    return trace(model, spec, inputs, fixed, answers, counts)


class _Made(TorchFunctionMode):
    """Whether tensors are made that may be drawn, and on no device that is said."""

    MAKERS = (
        torch.rand,
        torch.randn,
        torch.randint,
        torch.randperm,
        torch.normal,
        torch.empty,
        torch.zeros,
        torch.ones,
    )
    anywhere = False

    def __torch_function__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        of_tensors = any(isinstance(one, torch.Tensor) for one in args)
        self.anywhere |= function in self.MAKERS and not of_tensors and (kwargs or {}).get("device") is None
        return function(*args, **(kwargs or {}))


def _answers(module: types.ModuleType, inputs: list[Any]) -> Answers | None:
    """What the module's code is told where it asks a tensor for a choice or a number, with inputs as shipped: in its second call, since the
    first may set it up. None where these are large, or where it draws on the CPU wherever its inputs are: a draft draws beside them."""
    sizes = [a.numel() for a in pytree.tree_leaves(inputs) if isinstance(a, torch.Tensor)]
    found = Answers()
    ask, take, read = torch.Tensor.__bool__, torch.Tensor.item, torch.Tensor.tolist

    def asked(tensor: torch.Tensor) -> bool:
        found.choices.append(ask(tensor))
        return found.choices[-1]

    def taken(tensor: torch.Tensor) -> Any:
        value = take(tensor)
        kind: list[Any] = found.choices if isinstance(value, bool) else found.numbers  # `if mask.any().item()`
        kind.append(value)
        return value

    def listed(tensor: torch.Tensor) -> Any:
        values = read(tensor)
        found.numbers.extend(pytree.tree_leaves(values))
        return values

    if sum(sizes) > MOST_WITH_DATA:
        return None
    model, draws = _built(module), False
    weights = {name: value.clone() for name, value in [*model.named_parameters(), *model.named_buffers()]}
    made = _Made()
    with (
        torch.no_grad(), contextlib.suppress(Exception), made,
        patch.object(torch.Tensor, "__bool__", asked), patch.object(torch.Tensor, "item", taken),
        patch.object(torch.Tensor, "tolist", listed),
    ):  # fmt: skip
        for _ in range(2):
            given, before = module.get_inputs(), torch.get_rng_state()
            found, made.anywhere = Answers(), False
            model(*given)  # the problem's code
            draws |= not torch.equal(before, torch.get_rng_state())
    for name, value in [*model.named_parameters(), *model.named_buffers()]:
        if name not in weights or not torch.equal(value, weights[name]):
            found.changed.add(name)
    if not (found.choices or found.numbers) or (draws and made.anywhere):
        return None
    return dataclasses.replace(found, draws=draws)


def _lost_numbers(graph: ExportedProgram, attributes: set[str]) -> bool:
    return any(
        isinstance(value, torch.Tensor) and value.is_meta and name not in attributes and not name.endswith(SUFFIX)
        for name, value in graph.constants.items()
    )


def _may_be_open(model: torch.nn.Module, spec: pytree.TreeSpec, leaves: list[Leaf], numbers: set[int]) -> bool:
    """Whether the module answers in the same types where its numbers are tensors, as the exporter has them: beside integers it does not."""
    found: list[list[Any]] = []
    held = Held(model)
    for places in (numbers, set()):
        given = [_argument(leaf.value, place in places, False) for place, leaf in enumerate(leaves)]
        with (
            torch.no_grad(),
            contextlib.suppress(Exception),
        ):  # the problem's code, without data: the exporter will say it
            found.append(
                [getattr(out, "dtype", None) for out in pytree.tree_leaves(model(*pytree.tree_unflatten(given, spec)))]
            )
        held.restore()
    return len(found) < 2 or found[0] == found[1]


def _argument(value: Any, is_open: bool, doubled: bool) -> Any:
    """A leading size of one would be taken for a constant, so it is exported as two where the module accepts that."""
    if is_open:
        return torch.empty((), dtype=torch.float64, device="meta")
    if doubled and isinstance(value, torch.Tensor) and value.dim() and value.shape[0] == 1:
        return torch.empty((2, *value.shape[1:]), dtype=value.dtype, device="meta")
    return value


def hints(exported: Exported) -> dict[sympy.Symbol, int]:
    """The shipped value of each open size."""
    hints: dict[sympy.Symbol, int] = {}
    nodes = [n for n in exported.graph.graph.nodes if n.op == "placeholder"]
    names = [s.arg.name for s in exported.graph.graph_signature.input_specs if s.kind == InputKind.USER_INPUT]
    for name, leaf in zip(names, exported.leaves, strict=True):
        node, value = next(n for n in nodes if n.name == name), leaf.value
        if isinstance(value, torch.Tensor):
            for size, shipped in zip(node.meta["val"].shape, value.shape, strict=True):
                if isinstance(size, torch.SymInt):
                    symbol = size_of(size)
                    if symbol.is_Symbol:
                        hints.setdefault(symbol, int(shipped))
    return hints
