"""Running maxima with sums that are relative to them: `m' = max(m, e); s' = s * exp(m - m') + exp(e - m')`.

Recognised by what the statements compute: they run on the syntax tree, on numbers, a test point a thread, and whatever
m and s become must be what the recurrence says, for every point, infinities and NaN among them. So it does not matter
whether a source asks `if (v > m)`, keeps the old maximum, scales by `exp2f(... * LOG2E)`, holds both in a struct or
hands them to a function of its own.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import product

from tree_sitter import Node

from nodes.rewrites.analysis.block_arithmetic import UNKNOWN, Frame
from nodes.rewrites.analysis.block_values import KNOWN, Block
from nodes.rewrites.analysis.device_code import Code, inside
from nodes.rewrites.analysis.kernels import Kernel
from nodes.rewrites.analysis.numbers import FLT_MAX, Values, base_of, close, fields_of, power
from nodes.rewrites.syntax.source import Unsupported
from nodes.rewrites.syntax.tree import children_of, field_of, names_declared, same

POINTS = 96
"""How many random values each name stands for at once."""
_MADE = {"binary_expression", "parenthesized_expression", "unary_expression", "conditional_expression"}
"""What is made of other values, which are drawn."""


@dataclass(frozen=True)
class Online:
    """What one element does to a running maximum and its sums."""

    maximum: str
    """`m` or `md.m`"""
    sums: tuple[tuple[str, str], ...]
    """Each with the text of what an element's exponential is multiplied by, "" for nothing."""
    element: str
    """The text of what the maximum is of."""
    function: str
    """The exponential function that the source calls."""
    scale: str
    """The text of what its argument is multiplied by, "" for nothing."""
    free: tuple[Node, ...]
    """The statements that the state takes no part in."""
    scale_node: Node | None
    """Where the scale is named."""
    keeps_largest: bool = False
    """Whether the source makes something else of +inf than exponentials do, which is a NaN."""

    def below(self, value: str, maximum: str) -> str:
        """The exponential of what a value is below a maximum."""
        difference = f"{value} - {maximum}"
        return f"{self.function}({f'({difference}) * {self.scale}' if self.scale else difference})"


class _Element(Block):
    """One element's statements. What the state takes no part in stands for numbers of its own."""

    def __init__(self, code: Code, state: set[str], draw: Callable[[str], Values]) -> None:
        super().__init__(code, POINTS, lambda _: None)
        self.draw = draw
        self.bound = set(state)
        """Names that hold what the state took part in."""
        self.free: dict[str, object] = {}
        """What else there is, by its text."""

    def depends(self, node: Node) -> bool:
        return any(self.source.of(n) in self.bound for n in self.source.walk(node, "identifier"))

    def value(self, node: Node | None, frame: Frame, active: list[int]) -> object:
        if self.depends(node):
            return super().value(node, frame, active)
        text = self.source.of(node)
        names = [self.source.of(n) for n in self.source.walk(node, "identifier")]
        own = any(n in scope for n in names for scope in frame.scopes)
        known = all(n in KNOWN or n in self.code.overloads for n in names)
        made = own or known or self.depth or node.type in _MADE
        found = super().value(node, frame, active) if made else self.draw(text)
        if not self.depth:
            self.free[text] = found
        return found

    def name(self, node: Node, frame: Frame, active: list[int]) -> object:
        text = self.source.of(node)
        if not any(text in scope for scope in frame.scopes) and text not in KNOWN:
            return self.draw(text)
        return super().name(node, frame, active)


@cache
def _drawn(text: str) -> Values:
    numbers = random.Random(text)
    return [numbers.gauss(0.0, 1.5) for _ in range(POINTS)]


def declares(name: Node) -> bool:
    """Whether a name is where a variable begins, of whatever scope."""
    parent = name.parent
    if parent is None or parent.type == "declaration":
        return parent is not None
    return parent.type == "init_declarator" and same(field_of(parent, "declarator"), name)


def recurrence(code: Code, kernel: Kernel, body: list[Node]) -> Online:
    """What the statements, run once for each element, do. Raises Unsupported where that is something else."""
    return _Recurrence(code, kernel, body).found()


def _assigned(code: Code, nodes: Iterable[Node]) -> Iterator[Node]:
    """Variables that are assigned to, wholly or in a field, or that a function changes through a reference."""
    for statement in nodes:
        yield from code.assigned(statement)
        for call in code.source.walk(statement, "call_expression"):
            for argument in children_of(call, "arguments"):
                base = argument
                while base.type == "field_expression":
                    base = field_of(base, "argument")
                if base.type == "identifier" and code.lends(call, argument)[0]:
                    yield base


def _declared(code: Code, statement: Node) -> Iterator[Node]:
    for node in code.source.walk(statement, "declaration"):
        yield from names_declared(node)


class _Recurrence:
    def __init__(self, code: Code, kernel: Kernel, body: list[Node]) -> None:
        self.code, self.source, self.kernel, self.body = code, code.source, kernel, body
        self.paths = self._state()
        """`m`, `md.m` and so on: what outlives the element."""
        self.names = {path.partition(".")[0] for path in self.paths}
        told, free = set(self.names), list[Node]()
        for statement in body:
            if any(self.source.of(n) in told for n in self.source.walk(statement, "identifier")):
                told |= {self.source.of(n) for n in (*_assigned(code, [statement]), *_declared(code, statement))}
            else:
                free.append(statement)
        self.free = tuple(free)
        self._check_free()

    def _state(self) -> list[str]:
        paths: dict[str, None] = {}
        for target in _assigned(self.code, self.body):
            found = self.code.definition(target)
            if found is None:
                raise Unsupported("a variable of unknown origin")
            if any(inside(found.declaration, s) for s in self.body):
                continue
            kind = self.code.plain_type(self.source.of(found.declaration, "type"))
            declarator = found.form
            if found.kind != "local" or declarator is None or declarator.type != "identifier":
                raise Unsupported("state of another form")
            fields = fields_of(self.code, kind)
            if not fields and kind != "float":
                raise Unsupported("state of another type")
            paths.update(dict.fromkeys([f"{found.name}.{f}" for f in fields] or [found.name]))
        if len(paths) < 2:
            raise Unsupported("no maximum with a sum")
        return list(paths)

    def _check_free(self) -> None:
        """What is done twice must be the same the second time."""
        for statement in self.free:
            if statement.type not in {"declaration", "expression_statement"}:
                raise Unsupported("statements beside the recurrence")
            if self._does_more(statement):
                raise Unsupported("a call that may do more than compute")
        for access in self.kernel.accesses:
            if access.writes and any(inside(access.node, s) for s in self.body):
                raise Unsupported("a store beside the recurrence")

    def _does_more(self, statement: Node) -> bool:
        """Whether something below a node, or in what it calls, is an atomic, an assembler's or printed."""
        calls = {self.source.called(call) for call in self.source.walk(statement, "call_expression")}
        texts = map(self.source.of, (statement, *self.code.reached(*calls)))
        return bool(calls & self.code.macros.keys()) or any(re.search(r"\b(asm|printf|atomic)", t) for t in texts)

    def _run(self, start: dict[str, Values], draw: Callable[[str], Values]) -> tuple[dict[str, Values], _Element]:
        """What the state becomes."""
        block = _Element(self.code, self.names, draw)
        frame = block.holding({path: start[path] for path in self.paths})
        frame.scopes.append({})
        for statement in self.body:
            if not any(statement == s for s in self.free):
                block.bound |= {self.source.of(n) for n in _declared(self.code, statement)}
            block.run(statement, frame, block.everyone)
        after = {}
        for path in self.paths:
            name, _, field = path.partition(".")
            held = block.merged(UNKNOWN, frame.scopes[0][name], block.everyone)
            after[path] = [v.get(field, UNKNOWN) if isinstance(v, dict) else v for v in held]
        for name, held in frame.scopes[1].items():  # fields of the body's own structs are elements too
            if name not in block.bound and isinstance(held, list) and isinstance(held[0], dict):
                for field in held[0]:
                    block.free[f"{name}.{field}"] = [v.get(field, UNKNOWN) for v in held]
        return after, block

    def found(self) -> Online:
        numbers = random.Random(7)
        start: dict[str, Values] = {p: [numbers.gauss(0.0, 1.5) for _ in range(POINTS)] for p in self.paths}
        after, block = self._run(start, _drawn)
        if len(block.exponentials) != 1:
            raise Unsupported("no exponential, or several kinds")
        (function,) = block.exponentials
        free = {text: self._spread(value) for text, value in block.free.items()}
        named = sorted(free, key=lambda text: (not text.isidentifier(), len(text), text))
        free = {text: value for text in named if (value := free[text]) is not None}
        for maximum in self.paths:
            for element, values in free.items():
                larger = [max(a, b) for a, b in zip(start[maximum], values, strict=True)]  # type: ignore[type-var]
                if after[maximum] == larger and larger != values:
                    found = self._sums(function, maximum, element, free, start, after)
                    return replace(found, keeps_largest=self._keeps_largest(found, block))
        raise Unsupported("no running maximum")

    def _spread(self, value: object) -> list[float] | None:
        values = value if isinstance(value, list) else [value] * POINTS
        return values if all(isinstance(v, (int, float)) for v in values) else None

    def _sums(
        self,
        function: str,
        maximum: str,
        element: str,
        free: dict[str, list[float]],
        start: dict[str, Values],
        after: dict[str, Values],
    ) -> Online:
        ones = {"": [1.0] * POINTS}
        scales = {text: node for text in free if (node := self._scale(text)) is not None}
        sums: list[tuple[str, str]] = []
        scale = None
        for path in self.paths:
            if path == maximum:
                continue
            for factor, weight in product([scale] if scale is not None else [*ones, *scales], [*ones, *free]):
                model = self._model(
                    start[maximum], free[element], start[path], (ones | free)[factor], (ones | free)[weight], function
                )
                if all(close(a, b) for a, b in zip(model, after[path], strict=True)):
                    sums.append((path, weight))
                    scale = factor
                    break
            else:
                raise Unsupported("state that is no sum below the maximum")
        if scale is None or not sums:
            raise Unsupported("no sum below the maximum")
        return Online(maximum, tuple(sums), element, function, scale, self.free, scales.get(scale))

    def _scale(self, text: str) -> Node | None:
        """Where a number, or a macro that stands for one, is written; None for anything else."""
        names = (node for s in self.body for node in self.source.walk(s, "identifier", "number_literal"))
        node = next((node for node in names if self.source.of(node) == text), None)
        found = self.code.variable(node)
        return node if found is None or found.kind == "macro" else None

    def _model(
        self, m: list[float], e: list[float], s: list[float], k: list[float], g: list[float], function: str
    ) -> list[float]:
        """What our form makes of a sum: nothing is taken from -inf."""
        found = []
        for top, value, total, scale, weight in zip(m, e, s, k, g, strict=True):
            after = value if math.isnan(top) else top if math.isnan(value) else max(top, value)
            shift = after if after > -math.inf else 0.0
            scale *= base_of(self.code, function)
            kept = total * power((top - shift) * scale)
            found.append(kept + weight * power((value - shift) * scale))
        return found

    def _keeps_largest(self, online: Online, seen: _Element) -> bool:
        """Our form gives what the source gives for infinities, NaN, zeros and the numbers that it names, but that it makes
        no NaN of -inf below -inf. Whether +inf is an exception: a branch may count the first +inf as 1, where inf below inf is a
        NaN."""
        inf, named = math.inf, {float(number) for number in seen.bounds}
        special = sorted({0.0, 1.5, -1.5, 1e30, -1e30, FLT_MAX, -FLT_MAX, inf, -inf} | named)
        special += [c + d for c in named if math.isfinite(c) for d in (-0.5, 0.5)] + [math.nan]
        points = [(m, e) for m in special if m == m for e in special]
        groups = ([points[(at + i) % len(points)] for i in range(POINTS)] for at in range(0, len(points), POINTS))
        return max(self._differs_at_largest(online, group) for group in groups)

    def _differs_at_largest(self, online: Online, points: list[tuple[float, float]]) -> bool:
        """Of pairs of a maximum and an element. Raises Unsupported where the two forms differ for others. The sums are nothing in
        the beginning, where the maximum is -inf or -FLT_MAX."""
        inf, differs, named = math.inf, False, {online.scale, *(w for _, w in online.sums)}
        start = {path: [2.5 if m > -FLT_MAX else 0.0 for m, _ in points] for path in self.paths}
        start[online.maximum] = [m for m, _ in points]
        after, block = self._run(start, lambda text: [0.75] * POINTS if text in named else [e for _, e in points])
        ones = [1.0] * POINTS
        value = self._spread(block.free[online.element])
        factor = self._spread(block.free[online.scale]) if online.scale else ones
        for path, weight in online.sums:
            times = self._spread(block.free[weight]) if weight else ones
            ours = self._model(start[online.maximum], value, start[path], factor, times, online.function)
            for theirs, top, mine, m, e in zip(
                after[path], after[online.maximum], ours, start[online.maximum], value, strict=True
            ):
                if close(theirs, mine) or (theirs != theirs and m == e == -inf):
                    continue
                if mine != mine and (top != top or (m == -inf and e != e)):
                    continue  # a sum below a NaN, or a NaN that only counts once there is a number
                if inf not in (m, e):
                    raise Unsupported("other sums for infinities or NaN")
                differs = True
        for theirs, m, e in zip(after[online.maximum], start[online.maximum], value, strict=True):
            if e == e and theirs != max(m, e):
                if inf not in (m, e):
                    raise Unsupported("another maximum for infinities")
                differs = True
        return differs
