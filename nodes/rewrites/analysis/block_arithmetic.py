"""Arithmetic on what threads hold: numbers, and the parts of a value that is reduced."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from tree_sitter import Node

from nodes.rewrites.syntax.match import bare
from nodes.rewrites.syntax.source import Unsupported
from nodes.rewrites.syntax.tree import field_of

NUMBERS: dict[str, Callable[[float, float], float]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "<": operator.lt, ">": operator.gt, "<=": operator.le,
    ">=": operator.ge, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
INTEGERS: dict[str, Callable[[int, int], int]] = {
    "&": operator.and_, "|": operator.or_, "^": operator.xor, "%": operator.mod, "<<": operator.lshift,
    ">>": operator.rshift, **NUMBERS,
}  # fmt: skip


class Unknown:
    """A value that nothing may depend on."""


UNKNOWN = Unknown()


class Arithmetic:
    """What operators make of numbers and of sets of threads."""

    def _literal(self, node: Node) -> int | float:
        text = self.source.of(node).replace("'", "")
        number: int | float
        try:
            number = int(text.rstrip("uUlL"), 0)
            text = f"{number}.0f"
        except ValueError:
            try:
                number = float(text.rstrip("fFlL"))
            except ValueError as error:
                raise Unsupported(f"the number {text}") from error
        self.bounds.setdefault(number, text)
        return number

    def _unary(self, node: Node, frame: Frame, active: list[int]) -> object:
        inner, sign = self.value(field_of(node, "argument"), frame, active), self.source.of(node.children[0])
        if sign == "!":
            return self._mapped(lambda v: int(not self._truth(v)), inner, active)
        if isinstance(inner, (int, float)) and sign == "-":
            self.bounds.setdefault(-inner, self.source.of(node))
            return -inner
        if inner == 0 and sign == "~":
            return -1
        raise Unsupported(f"{sign} of a value")

    def _mapped(self, function: Callable[[object], object], value: object, active: list[int]) -> object:
        if not isinstance(value, list):
            return function(value)
        new: list[object] = [UNKNOWN] * self.width
        for thread in active:
            new[thread] = function(value[thread])
        return new

    def _binary(self, node: Node, frame: Frame, active: list[int]) -> object:
        sign = self.source.of(node, "operator")
        if (cast := self._negative_cast(node, sign, frame, active)) is not None:
            return cast
        left = self.value(field_of(node, "left"), frame, active)
        if sign not in {"&&", "||"}:
            return self._each(sign, left, self.value(field_of(node, "right"), frame, active), active)
        holds = [self._truth(self.of_thread(left, t)) for t in active]
        asked = [t for t, yes in zip(active, holds, strict=True) if yes == (sign == "&&")]
        new: list[object] = [UNKNOWN] * self.width
        right = self.value(field_of(node, "right"), frame, asked) if asked else 0
        for thread, yes in zip(active, holds, strict=True):
            new[thread] = int(yes)
        for thread in asked:
            new[thread] = int(self._truth(self.of_thread(right, thread)))
        return new

    def _negative_cast(self, node: Node, sign: str, frame: Frame, active: list[int]) -> object:
        """`(T)-1e20f`, which the grammar takes for a difference."""
        kind, number = field_of(node, "left"), field_of(node, "right")
        if sign != "-" or kind is None or number is None or kind.type != "parenthesized_expression":
            return None
        value = self.value(number, frame, active) if self.source.of(kind)[1:-1] in frame.types else None
        if not isinstance(value, (int, float)):
            return None
        self.bounds.setdefault(-value, f"-{self.source.of(number)}")
        return -value

    def _each(self, sign: str, left: object, right: object, active: list[int]) -> object:
        if not isinstance(left, list) and not isinstance(right, list):
            return self._two(sign, left, right)
        new: list[object] = [UNKNOWN] * self.width
        here, there = isinstance(left, list), isinstance(right, list)
        for thread in active:
            new[thread] = self._two(sign, left[thread] if here else left, right[thread] if there else right)
        return new

    def _two(self, sign: str, a: object, b: object) -> object:
        """One operation of one thread; `max` and `min` beside the language's own."""
        if isinstance(a, Part) and isinstance(b, Part) and self.kind == "sum" and sign == "+":
            return UNKNOWN if a.threads & b.threads else Part(a.threads | b.threads)
        if isinstance(a, (int, float)) and isinstance(b, (int, float)):
            return self._of_numbers(sign, a, b)
        if not isinstance(a, (int, float, Part, Unknown)) or not isinstance(b, (int, float, Part, Unknown)):
            raise Unsupported("arithmetic with memory")
        if sign not in {"+", "max", "min"}:
            raise Unsupported(f"{sign} of the values")
        kind = "sum" if sign == "+" else sign
        if self.kind not in {"", kind}:
            raise Unsupported("a reduction of two kinds")
        self.kind = kind
        if isinstance(a, Unknown) or isinstance(b, Unknown):
            return UNKNOWN
        if isinstance(a, Part) and isinstance(b, Part):
            if kind == "sum" and a.threads & b.threads:
                return UNKNOWN
            if a.bound is not None and b.bound is not None and a.bound != b.bound:
                raise Unsupported("an extreme with two bounds")
            return Part(a.threads | b.threads, a.bound if a.bound is not None else b.bound)
        part, number = (a, b) if isinstance(a, Part) else (b, a)
        assert isinstance(part, Part) and isinstance(number, (int, float))
        if number == {"sum": 0, "max": -math.inf, "min": math.inf}[kind]:
            return part
        if kind == "sum" or part.bound not in {None, number}:
            return UNKNOWN
        return Part(part.threads, number)

    def _of_numbers(self, sign: str, a: int | float, b: int | float) -> int | float:
        if sign in {"max", "min"}:
            return (max if sign == "max" else min)(a, b)
        whole = isinstance(a, int) and isinstance(b, int)
        try:
            if sign == "/":
                value: int | float = a // b if whole else a / b
            elif sign in (INTEGERS if whole else NUMBERS):
                value = (INTEGERS if whole else NUMBERS)[sign](a, b)
            else:
                raise Unsupported(f"{sign} of numbers")
        except (ZeroDivisionError, ValueError) as error:
            raise Unsupported("arithmetic that has no result") from error
        if whole and value < 0:
            raise Unsupported("a number below zero, which may be unsigned")
        return int(value) if isinstance(value, bool) else value

    def _choice(self, node: Node, frame: Frame, active: list[int]) -> object:
        condition, yes, no = (field_of(node, f) for f in ("condition", "consequence", "alternative"))
        compared = bare(condition)
        if compared.type == "binary_expression":
            sides = [self.source.of(field_of(compared, f)) for f in ("left", "right")]
            sign = self.source.of(compared, "operator")[0]
            if sign in "<>" and sorted(sides) == sorted([self.source.of(yes), self.source.of(no)]):
                larger = sides[0] if sign == ">" else sides[1]
                kind = "max" if larger == self.source.of(yes) else "min"
                return self._each(kind, self.value(yes, frame, active), self.value(no, frame, active), active)
        holds = self.value(condition, frame, active)
        taken = [t for t in active if self._truth(self.of_thread(holds, t))]
        rest = sorted(set(active) - set(taken))
        new: list[object] = [UNKNOWN] * self.width
        for branch, threads in ((yes, taken), (no, rest)):
            value = self.value(branch, frame, threads) if threads else UNKNOWN
            for thread in threads:
                new[thread] = self.of_thread(value, thread)
        return new


class Part(NamedTuple):
    """The threads whose values are in it, a bit each; `bound`: a number that took part in the extreme too."""

    threads: int
    bound: float | None = None


@dataclass
class Frame:
    """A function that runs: its variables by scope, what its template parameters stand for, and who runs it."""

    active: list[int]
    types: dict[str, str]
    scopes: list[dict[str, object]]
    held: dict[str, str] = field(default_factory=dict)
    """The types of the variables."""
    result: object = None
    done: bool = False
