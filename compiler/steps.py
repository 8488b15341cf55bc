"""A reference's loop over steps stays a loop: one step is traced, at an open step, from what the step before has left.

`for t in range(...)` in the reference's own body becomes a call of `run_loop`; what a step appends to a list or writes at its own place is a row of
a tensor. Lowered, it is a definition of kind `steps`, and each element of what is carried has a thread that goes through all steps.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch

from compiler.draft.expressions import COMPUTED, Expr, cast, loads_of, make, put
from compiler.draft.index import Index, flatten, joined, product, unflatten
from compiler.draft.loops import _names, indices_written
from compiler.draft.lowering import Lowering, lowers
from compiler.draft.partition import Member
from compiler.draft.tensors import Buffer, Definition, NoDraft, Value
from compiler.kernel import PackedKernel
from compiler.selects import SelectedProgram

STEPS = "steps"
LOOPED = "looped_by_the_compiler"
ENDS = (ast.Return, ast.Break, ast.Continue, ast.Yield, ast.FunctionDef, ast.Lambda, ast.While, ast.Delete)
OPEN_STEP: ContextVar[Callable[[Any], Any] | None] = ContextVar("OPEN_STEP", default=None)
"""What makes a step's open number while a reference is traced."""


MOST_BEFORE = 8
"""Elements of a list that it had before the loop."""
COUNTS: dict[int, Any] = {}
"""Steps of the loops of the reference that is being traced."""


class StepRows(list):
    """What a loop has appended to a list: `tensor` has a row for each step, behind what the list had before."""

    def __init__(self, before: list, tensor: torch.Tensor) -> None:
        super().__init__(before)
        self.tensor = tensor

    def __getitem__(self, key):
        if key == slice(None, None, -1) and not len(self):
            return StepRows([], self.tensor.flip(0))
        raise NoDraft("what a loop appends is read otherwise than by torch.stack")


def stack_rows(tensors, dim=0):
    if not isinstance(tensors, StepRows):
        return torch.stack(tensors, dim)
    dim %= tensors.tensor.dim()
    rows = tensors.tensor.movedim(0, dim)
    return torch.cat([*(one.unsqueeze(dim) for one in list.__iter__(tensors)), rows], dim) if len(tensors) else rows


def pick_row(x: torch.Tensor, key: Any) -> torch.Tensor:
    """`x[key]`; torch itself takes an open number in a key for the one that it stands for now."""
    parts = list(key) if isinstance(key, tuple) else [key]
    if not any(isinstance(part, torch.SymInt) for part in parts) or any(
        isinstance(part, torch.Tensor) for part in parts
    ):
        return x[key]
    told = sum(part is not None and part is not Ellipsis for part in parts)
    axis, chosen = 0, []
    for at, part in enumerate(parts):
        if isinstance(part, torch.SymInt):
            chosen.append((axis, part))
            parts[at] = slice(None)
        if not isinstance(part, int):
            axis += x.dim() - told if part is Ellipsis else 1
    found = x[tuple(parts)]
    for axis, place in reversed(chosen):
        found = found.select(axis, place)
    return found


@torch.library.custom_op("astrolabe::carried", mutates_args=())
def carry(start: torch.Tensor, at: int) -> torch.Tensor:
    """What the step before has left."""
    return start.clone()


@carry.register_fake
def _(start, at):
    return torch.empty_like(start)


@torch.library.custom_op("astrolabe::steps", mutates_args=())
def steps(
    start: list[torch.Tensor], now: list[torch.Tensor], rows: list[torch.Tensor], loop: int
) -> list[torch.Tensor]:
    """(what the last step leaves, the rows of all steps) of a loop, by its number: only traced."""
    raise NotImplementedError


@steps.register_fake
def _(start, now, rows, loop):
    return [torch.empty_like(one) for one in start] + [row.new_empty([COUNTS[loop], *row.shape]) for row in rows]


def run_loop(limits: tuple, body: Callable[..., Any], start: tuple, filled: tuple) -> tuple:
    """(what is carried, lists and tensors that the loop fills) behind it."""
    begin, end, by = (0, *limits, 1) if len(limits) == 1 else (*limits, 1)[:3]
    if not any(isinstance(limit, torch.SymInt) for limit in limits):
        return _unrolled(range(*limits), body, start, filled)
    make_step = OPEN_STEP.get()
    if make_step is None or by not in (1, -1):
        raise NoDraft("a loop whose steps are no range by one")
    count = (end - begin) * by
    loop, step = make_step(count)
    COUNTS[loop] = count
    if not all(isinstance(one, torch.Tensor) for one in start):
        raise NoDraft("a loop carries something else than tensors")
    before = tuple(carry(one, at) for at, one in enumerate(start))
    now, rows = body(begin + by * step, *before)
    if any(a.shape != b.shape or a.dtype != b.dtype for a, b in zip(start, now, strict=True)):
        raise NoDraft("what a loop carries changes its shape or type")
    made = steps(list(start), list(now), [row.contiguous() for row in rows], loop)
    last, full = made[: len(start)], made[len(start) :]
    done: list[Any] = []
    for (held, axis), rows_of in zip(filled, full, strict=True):
        if axis is None:
            done.append(StepRows(held, rows_of))
            continue
        first, rows = (begin, rows_of) if by == 1 else (end + 1, rows_of.flip(0))
        rows, left = rows.movedim(0, axis), held.shape[axis] - first - count
        parts = [held.narrow(axis, 0, first), rows, held.narrow(axis, first + count, left)]
        parts = [part for part in parts if part is rows or str(part.shape[axis]) != "0"]
        done.append(torch.cat(parts, axis) if len(parts) > 1 else rows)
    return (*last, *done)


def _unrolled(places: range, body: Callable[..., Any], now: tuple, filled: tuple) -> tuple:
    """As Python runs it: of a number of steps that is no size of the call."""
    for place in places:
        now, rows = body(place, *now)
        for (held, axis), row in zip(filled, rows, strict=True):
            if axis is None:
                held.append(row)
            else:
                held[(*[slice(None)] * axis, place)] = row
    return (*now, *(held for held, _ in filled))


def rewritten(text: str) -> str:
    """The reference with its loops over ranges as calls of `run_loop`; as it is where it has none."""
    tree = ast.parse(text)
    found = next((n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "reference"), None)
    if found is None:
        return text
    known = {a.arg for a in found.args.args}
    body: list[ast.stmt] = []
    for at, statement in enumerate(found.body):
        later = {name for one in found.body[at + 1 :] for name in _names(one, ast.Load)}
        made = _loop(statement, known, later) if isinstance(statement, ast.For) else None
        body += made or [statement]
        known |= _names(statement, ast.Store)
    if body == found.body:
        return text
    found.body = body
    return ast.unparse(ast.fix_missing_locations(tree))


def _loop(loop: ast.For, known: set[str], later: set[str]) -> list[ast.stmt] | None:
    """The loop as a function of a step and a call; None where it may not be one. `known`: names before it; `later`: read behind it."""
    plain = (
        isinstance(loop.iter, ast.Call) and ast.unparse(loop.iter.func) == "range" and isinstance(loop.target, ast.Name)
    )
    if not plain or loop.orelse or any(isinstance(n, ENDS) for part in loop.body for n in ast.walk(part)):
        return None
    assert isinstance(loop.target, ast.Name) and isinstance(loop.iter, ast.Call)
    step = loop.target.id
    body: list[ast.stmt] = []
    filled: list[tuple[str, int | None]] = []
    rows: list[str] = []
    for statement in copy.deepcopy(loop.body):
        value = statement.value if isinstance(statement, ast.Expr) else None
        name: str | None = None
        axis: int | None = None
        row: ast.expr | None = None
        if isinstance(value, ast.Call) and ast.unparse(value.func).endswith(".append"):
            name, row = ast.unparse(value.func)[: -len(".append")], value.args[0]
        elif isinstance(statement, ast.Assign) and isinstance(target := statement.targets[0], ast.Subscript):
            places = indices_written(target)
            if step not in places or any(place not in (":", step) for place in places):
                return None
            name, axis, row = ast.unparse(target.value), places.index(step), statement.value
        if name is None or row is None:
            body.append(statement)
            continue
        made = f"made_by_step_{len(rows)}"
        rows.append(made)
        filled.append((name, axis))
        body.append(ast.Assign([ast.Name(made, ast.Store())], row))
    changed = {name for statement in body for name in _names(statement, ast.Store)} - set(rows)
    held = sorted(changed & known)
    names = [name for name, _ in filled]
    if (
        not held
        or ((changed | {step}) - known) & later
        or len(set(names)) < len(names)
        or set(names) & {n for one in body for n in _names(one, ast.Load)}
    ):
        return None
    (function,) = ast.parse(f"def one_step({', '.join([step, *held])}): pass").body
    assert isinstance(function, ast.FunctionDef)
    many = lambda of: f"({''.join(f'{one}, ' for one in of)})"  # noqa: E731
    function.body = [*body, *ast.parse(f"return {many(held)}, {many(rows)}").body]
    limits = ", ".join(ast.unparse(one) for one in loop.iter.args)
    call = f"{many([*held, *names])} = {LOOPED}(({limits},), one_step, {many(held)}, {many(f'({name}, {axis})' for name, axis in filled)})"
    return [function, *ast.parse(call.replace("(", "", 1).replace(") =", " =", 1)).body]


# ------------------------------------------------------------------------------------------ the definition


@dataclass(frozen=True)
class StepLoop:
    variable: sympy.Symbol
    count: Index
    start: list[Value]
    now: list[Value]
    rows: list[Value]


@dataclass(eq=False)
class StepsDefinition(Definition):
    loop: StepLoop | None = None


@lowers("astrolabe.carried.default")
def _carried(low: Lowering, start: Value, at: int):
    start = low.program.whole(start.buffer) if start.is_whole and start.buffer else start
    return low.formula(lambda position: make("carried", at, flatten(position, start.shape), type=COMPUTED[low.dtype]))


@lowers("astrolabe.steps.default")
def _steps(low: Lowering, start, now, rows, loop):
    program: Any = low.program
    shape = start[0].shape
    step, count = program.open_steps[loop]
    if any(tuple(one.shape) != tuple(shape) for one in (*start, *now, *rows)):
        raise NoDraft(
            "a step of the loop mixes elements of what is carried, or carries tensors of several shapes: say it by scans (cumsum, cummax), or carry one shape"
        )
    order = program.next_order()
    lasts = [program.allocate(shape, one.dtype, f"last_{at}") for at, one in enumerate(now)]
    full = [program.allocate((count, *shape), one.dtype, f"rows_{at}") for at, one in enumerate(rows)]

    def element(position) -> Expr:  # names what it reads
        parts = [one.at(position) for one in (*start, *now, *rows)]
        return make("together", *parts, type="float")

    definition = StepsDefinition(order, STEPS, tuple(shape), frozenset(), element, [*lasts, *full], "steps", "float")
    definition.loop = StepLoop(step, count, start, now, rows)
    for buffer in definition.outs:
        buffer.written_by = definition
    program.definitions.append(definition)
    return [program.whole(buffer, order, "steps") for buffer in definition.outs]


# ------------------------------------------------------------------------------------------ the kernel


@dataclass(eq=False)
class StepsKernel(PackedKernel):
    """A thread to each element of what is carried."""

    loop: StepLoop | None = None
    start: list[Expr] = field(default_factory=list)
    now: list[Expr] = field(default_factory=list)
    each: list[tuple[Buffer, Index, Expr]] = field(default_factory=list)
    """What is stored in every step: where, what."""
    once: list[tuple[Buffer, Index, Expr]] = field(default_factory=list)
    """Behind the last one, of which the values are `carried`."""


def steps_of(program: SelectedProgram, outputs: set[Buffer]) -> list[StepsKernel]:
    """Kernels of the program's loops; their definitions and the maps that read their rows are taken out of it. Raises NoDraft."""
    definitions = [d for d in program.definitions if isinstance(d, StepsDefinition)]
    return [program.take(_kernel(program, definition, outputs)) for definition in definitions]


def _own(value: Expr, place: Index) -> Expr:
    """The value with what the step before left by its name. Raises NoDraft where that is another element's."""

    def name(one: Expr) -> Expr | None:
        if one.op != "carried":
            return None
        if joined(sympy.expand(one.args[1] - place)) != 0:
            raise NoDraft(
                "a step of the loop reads what another element has carried: say it by scans (cumsum, cummax), or leave it to the baseline"
            )
        return make("scalar", f"carriedOf{one.args[0]}", type=one.type)

    return put(value, name)


def _kernel(program, definition: StepsDefinition, outputs: set[Buffer]) -> StepsKernel:
    ranges, loop = program.ranges, definition.loop
    assert loop is not None
    elements = product(definition.ranges)
    row = ranges.variable(program.name("element"), elements)
    axes = unflatten(row, definition.ranges, ranges)
    kernel = StepsKernel(
        (elements,), frozenset(), row, axes, layout=STEPS, order=definition.order, pack=row, width=1, loop=loop,
    )  # fmt: skip
    place = joined(flatten(axes, definition.ranges))
    start, now, rows = ([_own(one.at(axes), place) for one in of] for of in (loop.start, loop.now, loop.rows))
    kernel.start, kernel.now = start, now
    lasts, full = definition.outs[: len(now)], definition.outs[len(now) :]
    names = {buffer: make("scalar", f"carriedOf{at}", type=now[at].type) for at, buffer in enumerate(lasts)}
    made = dict(zip(full, rows, strict=True))
    kernel.members = [
        Member(
            definition, make("together", *start, *now, *rows, type="float"), 0, [place] * len(definition.outs), False
        )
    ]
    of_step = sympy.expand(loop.variable * elements + place)
    kernel.once = [(b, place, names[b]) for b in lasts if b in outputs]
    kernel.each = [(b, of_step, made[b]) for b in full if b in outputs]
    for other in list(program.definitions):
        if other is definition or not other.reads(ranges) & set(definition.outs):
            continue
        if other.kind != "map" or other.outs[0] not in outputs or other.by is not None or other.when is not None:
            raise NoDraft("what a loop makes goes through memory: that needs a workspace")
        kernel.order = max(kernel.order, other.order)
        found = _placed(program, other, axes, definition.ranges, loop, made, names, of_step, place)
        if not found:
            raise NoDraft("what a loop makes is read otherwise than element by element")
        for goes, value, in_loop in found:
            (kernel.each if in_loop else kernel.once).append((other.outs[0], goes, value))
            kernel.members.append(Member(other, value, 0, [goes], False))
    return kernel


def _decided(one: Expr) -> Expr | None:
    """Of a choice by a place, what is chosen wherever that is."""
    if one.op != "masked" or one.args[0].op != "lt" or any(side.op != "index" for side in one.args[0].args):
        return None
    place, end = (side.args[0] for side in one.args[0].args)
    apart = sympy.expand(place - end)
    chosen = 1 if apart.is_negative else 2 if apart.is_nonnegative else 0
    return put(one.args[chosen], _decided) if chosen else None


def _placed(
    program, other: Definition, axes, shape, loop: StepLoop, made, names, of_step, place
) -> list[tuple[Index, Expr, bool]]:
    """(where a map's element goes, its value, whether that is in each step) of all its elements, at the kernel's variables; [] where it
    reads other elements. What a list had before the loop is what the map has more than steps."""
    candidates = [[(list(axes), False)]] if tuple(other.ranges) == tuple(shape) else []
    for axis, size in enumerate(other.ranges):
        before = sympy.expand(size - loop.count)
        rest = [s for n, s in enumerate(other.ranges) if n != axis]
        if before.is_Integer and 0 <= before <= MOST_BEFORE and sympy.expand(product(rest) - product(shape)) == 0:
            inner = unflatten(joined(flatten(axes, shape)), rest, program.ranges)
            steps_ = [loop.variable + before] if before else [loop.variable, loop.count - 1 - loop.variable]
            for step in steps_:
                every = [(step, True), *((sympy.Integer(at), False) for at in range(int(before)))]
                candidates.append([([*inner[:axis], at, *inner[axis:]], in_loop) for at, in_loop in every])
    known = made | names

    def named(one: Expr) -> Expr | None:
        return cast(known[one.args[0]], one.type) if one.op == "load" and one.args[0] in known else None

    def element(at, in_loop: bool) -> tuple[Index, Expr, bool] | None:
        value = put(other.element(at), _decided)
        own = [load for load in loads_of([value]) if load.args[0] in made or load.args[0] in names]
        right = all(
            load.op == "load" and joined(sympy.expand(load.args[1] - (of_step if load.args[0] in made else place))) == 0
            for load in own
        )
        if not right or (in_loop and any(load.args[0] in names for load in own)):
            return None
        goes = joined(other.place_at(at))
        return goes, put(value, named), in_loop

    for parts in candidates:
        found = [one for at, in_loop in parts if (one := element(at, in_loop)) is not None]
        if len(found) == len(parts):
            return found
    return []
