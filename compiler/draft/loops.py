"""A loop over many steps stays a loop: one step of it is drafted, and forward's own loop calls that.

torch.export follows a loop step by step, which of some thousand operators takes minutes and gives a text as long. Where forward has such a loop
(`for t in range(steps)`, `for piece in x`), its body becomes the forward of a problem of its own: what a step slices out of what does not change
(`x[:, t]`) and what one step leaves for the next are its arguments, and what it appends to lists or writes at its own place is returned.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import re
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from .drafting import drafted
from .exported import _inputs, _model, load
from .tensors import NoDraft

MANY = 3000
"""Calls of torch's functions from which a loop is drafted as one: torch.export takes 10 to 20 ms for each."""
TOO_MANY = 12000
"""From which nothing else is tried."""
FEWEST = 16
"""Steps of a loop."""
REACHED = "LoopReached"
ENDS = (ast.Return, ast.Break, ast.Continue, ast.Yield, ast.YieldFrom, ast.Await, ast.FunctionDef, ast.Lambda, ast.Global, ast.Nonlocal, ast.Delete, ast.ClassDef)  # fmt: skip
"""What a body that becomes a function may not have."""
IN_PLACE = r"\w*[a-z0-9]_|append|appendleft|extend|insert|pop|remove|clear|update|setdefault|add_module"
"""Attributes by which something is changed."""


@dataclass(frozen=True)
class Loop:
    problem: str
    """Whose forward is a step, and whose `whole` is the module's forward that calls it as `step`."""
    steps: int

    def joined(self, source: str) -> str:
        """A draft of the problem as a draft of the module."""
        lines = source.split("\n")
        model = next(n for n in ast.parse(source).body if isinstance(n, ast.ClassDef) and n.name == "ModelNew")
        for at in range(model.lineno - 1, model.end_lineno or len(lines)):
            lines[at] = re.sub(r"^    def forward\(", "    def step(", lines[at])
            lines[at] = re.sub(r"^    def whole\(", "    def forward(", lines[at])
        return "\n".join(lines)


class _Count(TorchFunctionMode):
    """Counts calls of torch's functions, up to `most`."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most, self.calls = most, 0

    def __torch_function__(self, function, types, arguments=(), named=None):
        self.calls += 1
        if self.calls > self.most:
            raise _Enough
        return function(*arguments, **(named or {}))


class _Enough(BaseException):
    pass


def calls(problem: str, dtype: torch.dtype | None, most: int) -> int:
    """Of torch's functions in one call of the module, without data; `most` + 1 where there are more. 0 where it cannot be called so."""
    module = load(problem)
    model, inputs = _model(module, dtype), _inputs(module, dtype)
    counter = _Count(most)
    try:
        with torch.no_grad(), torch.device("meta"), counter:
            model(*inputs)
    except _Enough:
        return most + 1
    except Exception:  # noqa: BLE001 -- the problem's code, without data
        return 0
    return counter.calls


def loop_of(problem: str, dtype: torch.dtype | None) -> Loop | None:
    """The module's first loop of many steps that can be drafted by one of them."""
    tree = ast.parse(problem)
    found = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Model"]
    forwards = [n for model in found for n in model.body if isinstance(n, ast.FunctionDef) and n.name == "forward"]
    if len(forwards) != 1 or forwards[0].decorator_list:
        return None
    for place, node in enumerate(forwards[0].body):
        if isinstance(node, ast.For) and not node.orelse:
            try:
                return _Split(tree, forwards[0], place).loop(dtype)
            except _NotThis:
                continue
    return None


class _NotThis(Exception):
    """This loop stays unrolled."""


def _names(node: ast.AST | list[ast.stmt], kind: type) -> set[str]:
    nodes = node if isinstance(node, list) else [node]
    return {n.id for one in nodes for n in ast.walk(one) if isinstance(n, ast.Name) and isinstance(n.ctx, kind)}


def indices_written(node: ast.Subscript) -> list[str]:
    return [ast.unparse(one) for one in (node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice])]


class _Split:
    """Forward's loop at `place` of its body as a step and what calls it."""

    def __init__(self, tree: ast.Module, forward: ast.FunctionDef, place: int) -> None:
        self.tree, self.forward, self.place = tree, forward, place
        loop = forward.body[place]
        assert isinstance(loop, ast.For)
        self.loop_node = loop
        if any(isinstance(n, ENDS) for statement in loop.body for n in ast.walk(statement)):
            raise _NotThis
        arguments = [a.arg for a in (*forward.args.posonlyargs, *forward.args.args, *forward.args.kwonlyargs)]
        self.itself, before = arguments[0], forward.body[:place]
        self.known = {*arguments, *_names(before, ast.Store)}
        self.targets = _names(loop.target, ast.Store)
        self.hoisted: dict[str, ast.expr] = {}
        """What a step is given, by its name: slices of what does not change."""
        self.after: list[ast.stmt] = []
        """What the loop does with what a step returns."""
        self.moved: dict[str, tuple[str, int]] = {}
        """Copies in which a step's slice is in one piece: of what, and the steps' axis there."""
        self.made: list[str] = []
        self.filled: set[str] = set()
        """Lists and tensors that `after` fills."""
        self.body = [one for statement in copy.deepcopy(loop.body) for one in self._statement(statement)]

    def _statement(self, statement: ast.stmt) -> list[ast.stmt]:
        """`outs.append(y)` and `out[:, t] = y` become values that a step returns."""
        value = statement.value if isinstance(statement, ast.Expr) else None
        if isinstance(value, ast.Call) and re.fullmatch(r"\w+\.append", text := ast.unparse(value.func)):
            self.filled.add(text.removesuffix(".append"))
            return [self._returned(value.args[0], lambda made: f"{text}({made})")]
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target = statement.targets[0]
            if (
                isinstance(target, ast.Subscript)
                and _names(target.slice, ast.Load) & self.targets
                and isinstance(target.value, ast.Name)
            ):
                self.filled.add(target.value.id)
                return [self._returned(statement.value, lambda made: f"{ast.unparse(target)} = {made}")]
        return [statement]

    def _returned(self, value: ast.expr, text) -> ast.stmt:
        name = f"made_{len(self.made)}"
        self.made.append(name)
        self.after += ast.parse(text(name)).body
        return ast.Assign([ast.Name(name, ast.Store())], value)

    def loop(self, dtype: torch.dtype | None) -> Loop:
        nodes = [n for statement in self.body for n in ast.walk(statement)]
        stored = [n for n in nodes if isinstance(n, (ast.Attribute, ast.Subscript)) and isinstance(n.ctx, ast.Store)]
        if not all(isinstance(n, ast.Subscript) and isinstance(n.value, ast.Name) for n in stored):
            raise _NotThis  # the module's state
        lists = {n.value.id for n in stored if isinstance(n, ast.Subscript) and isinstance(n.value, ast.Name)}
        assigned = _names(self.body, ast.Store) | lists
        if any(isinstance(n, ast.Attribute) and re.fullmatch(IN_PLACE, n.attr) for n in nodes):
            raise _NotThis  # what is changed in place may be seen elsewhere
        changed = {ast.unparse(n.target) for n in nodes if isinstance(n, ast.AugAssign)}
        if changed & self.known:
            raise _NotThis
        hoist = _Hoist(assigned, self.targets, self.hoisted, {} if changed or lists else self.moved)
        self.body = [hoist.visit(one) for one in self.body]
        read = _names(self.body, ast.Load)
        later = _names(self.forward.body[self.place + 1 :], ast.Load)
        sliced = {name for one in self.hoisted.values() for name in _names(one, ast.Load)} | {
            name for name, _ in self.moved.values()
        }
        beside = _names(self.after, ast.Load) - self.filled - set(self.made)
        if self.filled & (read | sliced | assigned) or beside & assigned:
            raise _NotThis  # a step reads what the loop fills
        carried = sorted(assigned & self.known & (read | later))
        given = sorted((read & self.known) - assigned - {self.itself} | (read & self.targets))
        outs = [*carried, *sorted((assigned & later) - set(carried) - set(self.made)), *self.made]
        if not outs:
            raise _NotThis
        names = [*self.hoisted, *given, *carried]
        steps, values = self._reached(
            [*self.hoisted.values(), *(ast.Name(n, ast.Load()) for n in names[len(self.hoisted) :])], dtype
        )
        for name, value in zip(names, values, strict=True):
            whole = isinstance(value, list) and name in lists
            if not (isinstance(value, torch.Tensor) or whole or (name in given and name not in self.targets)):
                raise _NotThis  # a step's number, or None before the first one
            if isinstance(value, list) and not all(isinstance(part, torch.Tensor) for part in value):
                raise _NotThis
        if any(not isinstance(values[names.index(name)], list) for name in lists & set(names)) or lists - set(names):
            raise _NotThis
        copies = [ast.parse(f"{name} = list({name})").body[0] for name in sorted(lists)]
        return Loop(self._text(names, outs, copies, values), steps)

    def _reached(self, wanted: list[ast.expr], dtype: torch.dtype | None) -> tuple[int, list[Any]]:
        """How many steps there are and the values of expressions before the first of them, without data."""
        asked = ast.unparse(ast.List(wanted, ast.Load()))
        stop = copy.deepcopy(self.loop_node)
        stop.body = ast.parse(f"raise {REACHED}(steps_of_loop, {asked})").body
        iterated = [*self._moved(), *ast.parse(f"steps_of_loop = list({ast.unparse(stop.iter)})").body]
        stop.iter = ast.Name("steps_of_loop", ast.Load())
        text = f"class {REACHED}(Exception):\n    pass\n\n\n" + with_methods(
            self.tree, {"forward": (self.forward.args, [*self.forward.body[: self.place], *iterated, stop])}
        )
        future = "from __future__ import annotations\n"
        if future in text:
            text = future + text.replace(future, "")
        try:
            module = load(text)
            with torch.no_grad(), torch.device("meta"):
                _model(module, dtype)(*_inputs(module, dtype))
        except Exception as error:  # noqa: BLE001 -- the problem's code raises what it likes; ours is known by its name
            if type(error).__name__ == REACHED and len(error.args[0]) >= FEWEST:
                return len(error.args[0]), error.args[1]
        raise _NotThis

    def _moved(self) -> list[ast.stmt]:
        lines = [f"{name} = {of}.movedim({axis}, 0).contiguous()" for name, (of, axis) in self.moved.items()]
        return ast.parse("\n".join(lines)).body

    def _text(self, names: list[str], outs: list[str], copies: list[ast.stmt], values: list[Any]) -> str:
        arguments = ast.parse(f"def f({', '.join([self.itself, *names])}): pass").body[0].args  # type: ignore[attr-defined]
        answer = f"{', '.join(outs)}"
        step = [*copies, *self.body, *ast.parse(f"return {answer}", mode="exec").body]
        given = [*map(ast.unparse, self.hoisted.values()), *names[len(self.hoisted) :]]
        loop = copy.deepcopy(self.loop_node)
        loop.body = [*ast.parse(f"{answer} = {self.itself}.step({', '.join(given)})").body, *self.after]
        whole = [*self.forward.body[: self.place], *self._moved(), loop, *self.forward.body[self.place + 1 :]]
        inputs = f"\n\n\ndef get_inputs():\n    return [{', '.join(map(_input_text, values))}]\n"
        methods = {"forward": (arguments, step), "whole": (self.forward.args, whole)}
        return with_methods(self.tree, methods) + inputs


def with_methods(tree: ast.Module, methods: dict[str, tuple[ast.arguments, list[ast.stmt]]]) -> str:
    """The problem's text with these in the place of Model's forward."""
    tree = copy.deepcopy(tree)
    (model,) = (n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "Model")
    at = next(place for place, n in enumerate(model.body) if isinstance(n, ast.FunctionDef) and n.name == "forward")
    made = []
    for name, (arguments, body) in methods.items():
        (function,) = ast.parse(f"def {name}(): pass").body
        assert isinstance(function, ast.FunctionDef)
        function.args, function.body = arguments, body
        made.append(function)
    model.body[at : at + 1] = made
    return ast.unparse(ast.fix_missing_locations(tree))


class _Hoist(ast.NodeTransformer):
    """Slices by the step of what does not change become names of their own."""

    def __init__(
        self, assigned: set[str], targets: set[str], hoisted: dict[str, ast.expr], moved: dict[str, tuple[str, int]]
    ) -> None:
        self.assigned, self.targets, self.hoisted, self.moved = assigned, targets, hoisted, moved

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        names = _names(node, ast.Load)
        calls = any(isinstance(n, (ast.Call, ast.NamedExpr)) for n in ast.walk(node))
        if not isinstance(node.ctx, ast.Load) or names & self.assigned or not names & self.targets or calls:
            return self.generic_visit(node)
        text = self._in_one_piece(node) or ast.unparse(node)
        name = next(
            (name for name, one in self.hoisted.items() if ast.unparse(one) == text), f"piece_{len(self.hoisted)}"
        )
        self.hoisted[name] = ast.parse(text, mode="eval").body
        return ast.copy_location(ast.Name(name, ast.Load()), node)

    def _in_one_piece(self, node: ast.Subscript) -> str:
        """`x[:, t]` as a slice of a copy that has the steps in front, "" where it is none."""
        parts = indices_written(node)
        axis = next((axis for axis, part in enumerate(parts) if part in self.targets), 0)
        if (
            not axis
            or not isinstance(node.value, ast.Name)
            or any(part != ":" for at, part in enumerate(parts) if at != axis)
        ):
            return ""
        name = f"{node.value.id}_by_step_{axis}"
        self.moved[name] = (node.value.id, axis)
        return f"{name}[{parts[axis]}]"


def _input_text(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"torch.zeros({tuple(value.shape)}, dtype={value.dtype})"
    if isinstance(value, list):
        return f"[{', '.join(map(_input_text, value))}]"
    if isinstance(value, (bool, int, float, str, type(None))):
        return repr(value)
    raise _NotThis


def looped(problem: str, device: str, dtype: str | None, numerics: str) -> dict[str, Any] | None:
    """A draft whose loop stays one; None where the module has none, or too few steps to be worth it. Raises NoDraft, as drafting.drafted
    would after minutes, where a loop can neither stay nor be followed."""
    problem = problem.removeprefix("\ufeff")
    if not any(isinstance(node, (ast.For, ast.While)) for node in ast.walk(ast.parse(problem))):
        return None
    cast = getattr(torch, dtype) if dtype else None
    count = calls(problem, cast, TOO_MANY)
    if count < MANY:
        return None
    loop = loop_of(problem, cast)
    if loop is not None:
        with contextlib.suppress(NoDraft):
            step = drafted(loop.problem, device, dtype, numerics).answer()
            note = f"a loop of {loop.steps} steps stays a loop: what follows is one step"
            return step | {"source": loop.joined(step["source"]), "notes": [note, *step["notes"]]}
    if count > TOO_MANY:
        raise NoDraft(
            f"forward calls more than {TOO_MANY:,} functions of torch, one after another, which torch.export would follow for minutes, most of them in a loop: "
            "the module stays with torch; with fewer steps in get_inputs, or a loop that stands in Model.forward itself and carries tensors alone, it is drafted"
        )
    return None
