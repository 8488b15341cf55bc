"""Running maxima with sums that are relative to them: `m' = max(m, e); s' = s * exp(m - m') + exp(e - m')`.

Recognised by what the statements compute: they run on the syntax tree, on numbers, a test point a thread, and whatever
m and s become must be what the recurrence says, for every point, infinities and NaN among them. So it does not matter
whether a source asks `if (v > m)`, keeps the old maximum, scales by `exp2f(... * LOG2E)`, holds both in a struct or
hands them to a function of its own.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product

from tree_sitter import Node

from nodes.rewrites.analysis.block_arithmetic import UNKNOWN, Frame
from nodes.rewrites.analysis.block_values import KNOWN, Block
from nodes.rewrites.analysis.device_code import Code, inside
from nodes.rewrites.analysis.kernels import Kernel
from nodes.rewrites.analysis.numbers import FLT_MAX, Values, base_of, close, fields_of, power
from nodes.rewrites.syntax.source import Unsupported
from nodes.rewrites.syntax.tree import JUMPS, children_of, field_of, names_declared, same

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
    aside: tuple[Node, ...] = ()
    """Statements that other state takes part in, and this does not."""
    keeps_largest: bool = False
    """Whether the source makes something else of +inf than exponentials do, which is a NaN."""
    keeps_least: bool = False
    """Whether the source makes a number of -inf on top of -inf that is not what was there before."""

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


def _element_values(seed: int) -> Callable[[str], Values]:
    held: dict[str, Values] = {}

    def draw(text: str) -> Values:
        if text not in held:
            numbers = random.Random(f"{seed} {text}")
            held[text] = [numbers.gauss(0.0, 1.5) for _ in range(POINTS)]
        return held[text]

    return draw


def declares(name: Node) -> bool:
    """Whether a name is where a variable begins, of whatever scope."""
    parent = name.parent
    if parent is None or parent.type == "declaration":
        return parent is not None
    return parent.type == "init_declarator" and same(field_of(parent, "declarator"), name)


def recurrence(code: Code, kernel: Kernel, body: list[Node]) -> Online:
    """What the statements, run once for each element, do. Raises Unsupported where that is something else."""
    groups = _groups(code, body)
    for names in dict.fromkeys(g for g in groups if g):
        aside = tuple(s for s, group in zip(body, groups, strict=True) if group not in {frozenset(), names})
        if any(code.source.has(s, *JUMPS) for s in aside):
            continue
        try:
            found = _Recurrence(code, kernel, [s for s in body if s not in aside]).found()
        except Unsupported:
            if not aside:
                raise
            continue
        return replace(found, aside=aside)
    raise Unsupported("no state")


def _groups(code: Code, body: list[Node]) -> list[frozenset[str]]:
    """By statement, the variables that outlive the element and belong together, of which some take part in it."""
    source = code.source
    reached: dict[str, set[str]] = {}
    """By name, of the state or of the body's own, the state that takes part in it."""
    for target in _assigned(code, body):
        found = code.definition(target)
        if found is None or not any(inside(found.declaration, s) for s in body):
            reached[source.of(target)] = {source.of(target)}
    for _ in range(len(body)):  # what belongs together may show only later
        for statement in body:
            together = set().union(*(reached.get(source.of(n), ()) for n in source.walk(statement, "identifier")))
            if not together:
                continue
            changed = {source.of(n) for n in (*_assigned(code, [statement]), *_declared(code, statement))}
            for name in together | changed:
                reached.setdefault(name, set()).update(together)
    taking = [set().union(*(reached.get(source.of(n), ()) for n in source.walk(s, "identifier"))) for s in body]
    return [frozenset(names) for names in taking]


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
        self.free = tuple(s for s, group in zip(body, _groups(code, body), strict=True) if not group)
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
            for target in _assigned(self.code, [statement]):
                found = self.code.definition(target)
                if found is None or not any(inside(found.declaration, s) for s in self.body):
                    raise Unsupported("a change beside the recurrence")
        for access in self.kernel.accesses:
            if access.writes and any(inside(access.node, s) for s in self.body):
                raise Unsupported("a store beside the recurrence")

    def _does_more(self, statement: Node) -> bool:
        """Whether something below a node, or in what it calls, is an atomic, an assembler's or printed."""
        source = self.source
        for node in (statement, *self.code.reached(*map(source.called, source.walk(statement, "call_expression")))):
            names = {source.called(call) for call in source.walk(node, "call_expression")}
            if source.has(node, "gnu_asm_expression") or names & {"printf", *self.code.macros}:
                return True
            if any("atomic" in name for name in names):
                return True
        return False

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
        after, block = self._run(start, _element_values(1))
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
                    largest, least = self._check_extremes(found, block)
                    return replace(found, keeps_largest=largest, keeps_least=least)
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
            if (after[path] == start[path] and "." in path) or self._is_scratch(path, start, after):
                continue  # a field of something else, or a variable that only the element needs
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

    def _is_scratch(self, path: str, start: dict[str, Values], after: dict[str, Values]) -> bool:
        """Whether a variable is written before it is read in each round, and nobody else reads it."""
        other, _ = self._run({**start, path: [9.0] * POINTS}, _element_values(1))
        declared = self.code.definition(
            next(n for n in _assigned(self.code, self.body) if self.source.of(n) == path.partition(".")[0])
        )
        uses = self.code.uses(declared, self.kernel.body)
        own = [n for n in uses if any(inside(n, s) for s in self.body) or declares(n)]
        return other == after and len(own) == len(uses)

    def _scale(self, text: str) -> Node | None:
        """Where a number, or a name of one that all elements share, stands; None for anything else."""
        for statement in self.body:
            for node in self.source.walk(statement, "identifier", "number_literal"):
                if self.source.of(node) != text:
                    continue
                found = self.code.variable(node)
                if node.type == "identifier" and (found is None or found.kind == "loop" or self.code.mutated(found)):
                    return None
                inner = found is not None and any(inside(found.declaration, s) for s in self.body)
                return None if inner else node
        return None

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

    def _check_extremes(self, online: Online, seen: _Element) -> tuple[bool, bool]:
        """Our form gives what the source gives for infinities, NaN, zeros and what the source compares with, but that it makes
        no NaN of -inf below -inf. Whether +inf, and -inf on top of -inf, are exceptions: a branch may count the first +inf as
        1, where inf below inf is a NaN."""
        inf = math.inf
        special = sorted(
            {0.0, 1.5, -1.5, 1e30, -1e30, FLT_MAX, -FLT_MAX, inf, -inf} | {c for c in seen.compared if c == c}
        )
        special += [c + d for c in seen.compared if math.isfinite(c) for d in (-0.5, 0.5)] + [math.nan]
        points = [(m, e) for m in special if m == m for e in special]
        atoms, largest, least = self._atoms(online), False, False
        for at in range(0, len(points), POINTS):
            some = [points[(at + i) % len(points)] for i in range(POINTS)]
            first, second = self._exceptions(online, atoms, some, 0.0)
            if second:  # what is in the sum below -inf may be anything then
                first |= self._exceptions(online, atoms, some, 2.5)[0]
            largest, least = largest or first, least or second
        return largest, least

    def _exceptions(
        self, online: Online, atoms: set[str], points: list[tuple[float, float]], nothing: float
    ) -> tuple[bool, bool]:
        """Of pairs of a maximum and an element. `nothing`: the sums below -inf; below -FLT_MAX they are 0, which is a start."""
        inf, largest, least = math.inf, False, False
        named = {online.scale, *(w for _, w in online.sums)}
        start = {path: [2.5] * POINTS for path in self.paths}
        start[online.maximum] = [m for m, _ in points]
        for path, _ in online.sums:
            start[path] = [2.5 if m > -FLT_MAX else nothing if m == -inf and e > m else 0.0 for m, e in points]

        def draw(text: str) -> Values:
            return [0.75] * POINTS if text in named or text not in atoms else [e for _, e in points]

        after, block = self._run(start, draw)
        value = self._spread(block.free[online.element])
        factor = self._spread(block.free[online.scale]) if online.scale else [1.0] * POINTS
        for path, weight in online.sums:
            times = self._spread(block.free[weight]) if weight else [1.0] * POINTS
            ours = self._model(start[online.maximum], value, start[path], factor, times, online.function)
            for theirs, top, mine, m, e in zip(
                after[path], after[online.maximum], ours, start[online.maximum], value, strict=True
            ):
                if close(theirs, mine) or (theirs != theirs and m == e == -inf):
                    continue
                if mine != mine and (top != top or (m == -inf and e != e)):
                    continue  # a sum below a NaN, or a NaN that only counts once there is a number
                if inf not in (m, e) and not m == e == -inf:
                    raise Unsupported("other sums for infinities or NaN")
                largest, least = largest or inf in (m, e), least or inf not in (m, e)
        for theirs, m, e in zip(after[online.maximum], start[online.maximum], value, strict=True):
            if e == e and theirs != max(m, e):
                if inf not in (m, e):
                    raise Unsupported("another maximum for infinities")
                largest = True
        return largest, least

    def _atoms(self, online: Online) -> set[str]:
        """What the element is made of, as far as that has values of its own here."""
        found: set[str] = set()

        def note(text: str) -> Values:
            found.add(text)
            return [1.0] * POINTS

        start: dict[str, Values] = {path: [1.0] * POINTS for path in self.paths}
        self._run(start, note)
        changed = set()
        for text in sorted(found):
            _, block = self._run(start, lambda t, text=text: [2.0 if t == text else 1.0] * POINTS)
            _, plain = self._run(start, lambda _: [1.0] * POINTS)
            if block.free[online.element] != plain.free[online.element]:
                changed.add(text)
        return changed
