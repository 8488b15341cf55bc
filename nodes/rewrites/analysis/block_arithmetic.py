"""Arithmetic on the numbers that threads hold."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, field

from tree_sitter import Node

from nodes.rewrites.syntax.source import Unsupported
from nodes.rewrites.syntax.tree import field_of

NUMBERS: dict[str, Callable[[float, float], float]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "<": operator.lt, ">": operator.gt, "<=": operator.le,
    ">=": operator.ge, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
INTEGERS: dict[str, Callable[[int, int], int]] = {
    "&": operator.and_, "|": operator.or_, "^": operator.xor, "%": operator.mod, "<<": operator.lshift,
    ">>": operator.rshift, "/": operator.floordiv, **NUMBERS,
}  # fmt: skip


class Unknown:
    """A value that nothing may depend on."""


UNKNOWN = Unknown()


class Arithmetic:
    """What operators make of numbers."""

    def _truth(self, value: object) -> bool:
        if not isinstance(value, (int, float)):
            raise Unsupported("a branch that depends on the values")
        return bool(value)

    def _literal(self, node: Node) -> int | float:
        text = self.source.of(node).replace("'", "")
        try:
            return int(text.rstrip("uUlL"), 0)
        except ValueError:
            try:
                return float(text.rstrip("fFlL"))
            except ValueError as error:
                raise Unsupported(f"the number {text}") from error

    def _unary(self, node: Node, frame: Frame, active: list[int]) -> object:
        inner, sign = self.value(field_of(node, "argument"), frame, active), self.source.of(node.children[0])
        if sign == "!":
            return self._mapped(lambda v: int(not self._truth(v)), inner, active)
        if inner == 0 and sign == "~":
            return -1
        if sign not in "+-":
            raise Unsupported(f"{sign} of a value")
        return self._mapped(lambda v: -v if sign == "-" and isinstance(v, (int, float)) else v, inner, active)

    def _by_thread(self, function: Callable[[int], object], active: list[int]) -> list[object]:
        new: list[object] = [UNKNOWN] * self.width
        for thread in active:
            new[thread] = function(thread)
        return new

    def _mapped(self, function: Callable[[object], object], value: object, active: list[int]) -> object:
        if not isinstance(value, list):
            return function(value)
        return self._by_thread(lambda thread: function(value[thread]), active)

    def _binary(self, node: Node, frame: Frame, active: list[int]) -> object:
        sign = self.source.of(node, "operator")
        left = self.value(field_of(node, "left"), frame, active)
        if sign not in {"&&", "||"}:
            right = self.value(field_of(node, "right"), frame, active)
            return self._each(sign, left, right, active)
        holds = [self._truth(self.of_thread(left, t)) for t in active]
        asked = [t for t, yes in zip(active, holds, strict=True) if yes == (sign == "&&")]
        new = self._by_thread(lambda _: int(sign == "||"), active)
        right = self.value(field_of(node, "right"), frame, asked) if asked else 0
        return self.merged(new, self._mapped(lambda v: int(self._truth(v)), right, asked), asked)

    def _each(self, sign: str, left: object, right: object, active: list[int]) -> object:
        if not isinstance(left, list) and not isinstance(right, list):
            return self._two(sign, left, right)
        here, there = (side if isinstance(side, list) else [side] * self.width for side in (left, right))
        return self._by_thread(lambda thread: self._two(sign, here[thread], there[thread]), active)

    def _two(self, sign: str, a: object, b: object) -> object:
        """One operation of one thread; `max` and `min` beside the language's own."""
        if isinstance(a, (int, float)) and isinstance(b, (int, float)):
            return self._of_numbers(sign, a, b)
        return UNKNOWN

    def _of_numbers(self, sign: str, a: int | float, b: int | float) -> int | float:
        whole = isinstance(a, int) and isinstance(b, int)
        if sign in {"max", "min"}:  # fmaxf's: the one that is a number
            if math.isnan(a) or math.isnan(b):
                return b if math.isnan(a) else a
            return (max if sign == "max" else min)(a, b)
        if sign == "/" and not whole:
            if b != 0:
                return a / b if not (math.isinf(a) and math.isinf(b)) else math.nan
            return math.nan if a == 0 or math.isnan(a) else math.copysign(math.inf, a) * math.copysign(1.0, b)
        try:
            value = (INTEGERS if whole else NUMBERS)[sign](a, b)
        except (KeyError, ZeroDivisionError, ValueError) as error:
            raise Unsupported(f"{sign} of numbers has no result") from error
        if whole and value < 0:
            raise Unsupported("a number below zero, which may be unsigned")
        return int(value) if isinstance(value, bool) else value

    def _choice(self, node: Node, frame: Frame, active: list[int]) -> object:
        condition, yes, no = (field_of(node, f) for f in ("condition", "consequence", "alternative"))
        holds = self.value(condition, frame, active)
        known = [t for t in active if not isinstance(self.of_thread(holds, t), Unknown)]
        taken = [t for t in known if self._truth(self.of_thread(holds, t))]
        new: object = UNKNOWN
        for branch, threads in ((yes, taken), (no, sorted(set(known) - set(taken)))):
            new = self.merged(new, self.value(branch, frame, threads) if threads else UNKNOWN, threads)
        return new


@dataclass
class Frame:
    """A function that runs: its variables by scope, what its template parameters stand for, and who runs it."""

    active: list[int]
    types: dict[str, str]
    scopes: list[dict[str, object]]
    held: dict[str, str] = field(default_factory=dict)
    """The types of the variables."""
    returns: str = ""
    """The type of what it returns."""
    result: object = UNKNOWN
    left: set[int] = field(default_factory=set)
    """Threads that have returned."""
