"""C text of scalar expressions and indices, the same for CUDA and C++."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import sympy
import torch

from .expressions import Expr, chosen, loads_of
from .index import FloorDiv, Index, Modulo
from .tensors import NoDraft

STORED = {
    torch.float32: "float", torch.float64: "double", torch.int64: "int64_t", torch.int32: "int32_t",
    torch.int16: "int16_t", torch.int8: "int8_t", torch.uint8: "uint8_t", torch.bool: "bool",
}  # fmt: skip
"""The C type of a tensor's element in memory; halves are the printer's own."""

INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=",
    "and": "&&", "or": "||",
}  # fmt: skip
CALLS = {
    "exp": "exp", "log": "log", "log1p": "log1p", "expm1": "expm1", "tanh": "tanh", "erf": "erf", "erfc": "erfc",
    "sqrt": "sqrt", "sin": "sin", "cos": "cos", "atan": "atan", "log2": "log2", "log10": "log10", "exp2": "exp2", "floor": "floor",
    "ceil": "ceil", "trunc": "trunc", "round": "rint", "pow": "pow", "atan2": "atan2", "fmod": "fmod", "hypot": "hypot", "fmax": "fmax", "fmin": "fmin", "device_rsqrt": "rsqrt",
    **{name: name for name in ("tan", "sinh", "cosh", "asin", "acos", "asinh", "acosh", "atanh", "lgamma")},
}  # fmt: skip
"""Functions of C's mathematics; the one for float ends in f."""
LONGEST = 96
"""Characters from which a part of an expression gets a name of its own."""


def compares_places(expr: Expr) -> bool:
    """Whether it is printed with the places themselves, whatever names they have."""
    return expr.type == "bool" and expr.op in INFIX and all(arg.op in ("index", "const") for arg in expr.args)


def index_text(index: Index, names: dict[Index, str] | None = None) -> str:
    """An Index in C; `names` are those of parts that were computed before."""
    if names and index in names:
        return names[index]
    if index.is_Integer:
        return str(index) if abs(int(index)) < 2**31 else f"INT64_C({index})"
    if index.is_Symbol:
        return str(index)
    if index.is_Add:
        terms = sorted(index.args, key=lambda t: (t.is_number, str(t)))
        terms = sorted(terms, key=_is_negative)
        text = " + ".join(index_text(term, names) for term in terms)
        return text.replace("+ -", "- ")
    if index.is_Mul:
        coefficient, rest = index.as_coeff_Mul()
        if coefficient == -1:
            return f"-{_factor(rest, names)}"
        factors = [] if coefficient == 1 else [index_text(coefficient)]
        parts = sorted(sympy.Mul.make_args(rest), key=lambda f: (not isinstance(f, (FloorDiv, Modulo)), str(f)))
        return " * ".join([_factor(part, names) for part in parts] + factors)
    if index.is_Pow:
        return " * ".join([_factor(index.base, names)] * int(index.exp))
    if isinstance(index, (FloorDiv, Modulo)):
        operator = "/" if isinstance(index, FloorDiv) else "%"
        left, right = index.args
        return f"({_operand(left, names)} {operator} {_operand(right, names)})"
    raise NoDraft(f"the index {index} is no sum of products")


def _is_negative(term: Index) -> bool:
    return bool(term.as_coeff_Mul()[0] < 0)


def _factor(index: Index, names) -> str:
    text = index_text(index, names)
    return f"({text})" if index.is_Add and text not in (names or {}).values() else text


def _operand(index: Index, names) -> str:
    text = index_text(index, names)
    return f"({text})" if (index.is_Add or index.is_Mul or index.is_Pow) and index not in (names or {}) else text


def number_text(value, type: str) -> str:
    if type == "bool":
        return "true" if value else "false"
    if type in ("int64_t", "int32_t"):
        return str(int(value)) if abs(int(value)) < 2**31 else f"INT64_C({int(value)})"
    if math.isinf(value):
        return "-INFINITY" if value < 0 else "INFINITY"
    if math.isnan(value):
        return "NAN"
    text = repr(float(value))
    if type == "float":
        text = repr(float(value)) if len(repr(float(value))) < 12 else f"{value:.9g}"
        text = text if any(c in text for c in ".e") else text + ".0"
        return text + "f"
    return text


@dataclass
class Scope:
    """Lines of a block and what is named in it and around it."""

    indent: int
    parent: Scope | None = None
    lines: list[str] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)

    def find(self, expr: Expr) -> str | None:
        scope: Scope | None = self
        while scope is not None:
            if id(expr) in scope.names:
                return scope.names[id(expr)]
            scope = scope.parent
        return None

    def line(self, text: str) -> None:
        self.lines.append("    " * self.indent + text)


class Statements:
    """Prints the expressions of one block: what is used twice gets a name, what may not be computed stays in its branch."""

    infix = INFIX

    def __init__(self, scope: Scope, roots: list[Expr], names: dict[Index, str], namer, reader) -> None:
        self.top, self.index_names, self.namer, self.reader = scope, names, namer, reader
        self.uses: Counter[int] = Counter()
        self.always: set[int] = set()
        seen: set[int] = set()
        for root in roots:
            self.uses[id(root)] += 1
            self._count(root, seen)
        for root in roots:
            self._mark(root)

    def _count(self, expr: Expr, seen: set[int]) -> None:
        stack = [expr]
        while stack:
            current = stack.pop()
            if id(current) in seen:
                continue
            seen.add(id(current))
            for arg in current.args:
                if isinstance(arg, Expr):
                    self.uses[id(arg)] += 1
                    stack.append(arg)

    def _mark(self, root: Expr) -> None:
        stack = [root]
        while stack:
            current = stack.pop()
            if id(current) in self.always:
                continue
            self.always.add(id(current))
            arguments = current.args[:1] if current.op in ("masked", "only_if", "repeated", "halved") else current.args
            stack.extend(arg for arg in arguments if isinstance(arg, Expr))

    def text(self, expr: Expr, scope: Scope | None = None) -> str:
        scope = scope or self.top
        if id(expr) in self.always:
            scope = self.top
        found = scope.find(expr)
        if found is not None:
            return found
        text = self._print(expr, scope)
        plain = expr.op in ("const", "index", "scalar") or (expr.op == "load" and text.isidentifier())
        if not plain and (self.uses[id(expr)] > 1 or len(text) > LONGEST):
            text = self._named(expr, text, scope)
        return text

    def _named(self, expr: Expr, text: str, scope: Scope) -> str:
        name = self.namer("v")
        scope.line(f"const {expr.type} {name} = {_bare(text)};")
        scope.names[id(expr)] = name
        return name

    def index(self, index: Index) -> str:
        return index_text(index, self.index_names)

    def _print(self, expr: Expr, scope: Scope) -> str:
        op, args = expr.op, expr.args
        if op == "const":
            return number_text(args[0], expr.type)
        if op == "index":
            text = self.index(args[0])
            return (
                f"static_cast<{expr.type}>({text})" if not args[0].is_Integer else number_text(int(args[0]), expr.type)
            )
        if op == "scalar":
            return args[0]
        if op == "load":
            return self.reader(args[0], args[1], self)
        if op == "load_at":
            buffer, base, stride, place = args
            step = self.text(place, scope)
            step = step if stride == 1 else f"{step} * {_factor(stride, self.index_names)}"
            base_text = "" if base == 0 else f"{self.index(base)} + "
            return self.reader(buffer, f"{base_text}{step}", self)
        if op == "masked":
            return self._choice(expr, scope)
        if op == "pick":
            return self.text(chosen(args[0], list(args[1:])), scope)
        if compares_places(expr):
            sides = [self.index(arg.args[0]) if arg.op == "index" else self.text(arg, scope) for arg in args]
            return f"({sides[0]} {INFIX[op]} {sides[1]})"
        return self._operation(expr, [self.text(arg, scope) for arg in args if isinstance(arg, Expr)])

    def _operation(self, expr: Expr, parts: list[str]) -> str:
        op, type = expr.op, expr.type
        if op in self.infix:
            return f"({parts[0]} {self.infix[op]} {parts[1]})"
        if op in CALLS:
            name = CALLS[op] + ("f" if expr.args[0].type == "float" else "")
            return f"{name}({', '.join(map(_bare, parts))})"
        if op == "product":  # in CUDA alone: no sum that it is added to takes it in
            return f"__{'f' if type == 'float' else 'd'}mul_rn({_bare(parts[0])}, {_bare(parts[1])})"
        one = number_text(1, type)
        if op == "sigmoid":
            return f"({one} / ({one} + {'expf' if type == 'float' else 'exp'}({_negative(parts[0])})))"
        if op == "rsqrt":
            return f"({one} / {'sqrtf' if type == 'float' else 'sqrt'}({_bare(parts[0])}))"
        if op == "neg":
            return f"({_negative(parts[0])})"
        if op == "not":
            return f"(!{parts[0]})"
        if op == "abs":
            magnitude = {"float": "fabsf", "double": "fabs"}.get(type)
            return f"{magnitude}({_bare(parts[0])})" if magnitude else f"({parts[0]} < 0 ? -{parts[0]} : {parts[0]})"
        if op in ("min", "max"):
            chosen = "" if type in ("float", "double") else f"<{type}>"
            return f"{op}imum{chosen}({_bare(parts[0])}, {_bare(parts[1])})"
        if op == "where":
            return f"({_condition(parts[0])} ? {parts[1]} : {parts[2]})"
        if op == "cast":
            return f"static_cast<{type}>({_bare(parts[0])})"
        if op in ("bits_of", "of_bits"):
            return f"as_bits<{type}, {expr.args[0].type}>({_bare(parts[0])})"
        if op == "round_to":
            return f"round_to_{expr.args[1]}({_bare(parts[0])})"
        raise NoDraft(f"the operation {op} has no text in C")

    def _choice(self, expr: Expr, scope: Scope) -> str:
        """`condition ? a : b` where both are short, an if where a branch needs lines of its own."""
        condition = _condition(self.text(expr.args[0], scope))
        branches = []
        for arg in expr.args[1:]:
            inner = Scope(scope.indent + 1, scope)
            branches.append((inner, self.text(arg, inner)))
        (first, value), (second, otherwise) = branches
        if not first.lines and not second.lines and len(condition) + len(value) + len(otherwise) < LONGEST:
            return f"({condition} ? {value} : {otherwise})"
        name = self.namer("v")
        apart = bool(second.lines or loads_of([expr.args[2]]))
        if apart:
            scope.line(f"{expr.type} {name};")
        else:  # nothing is read for it, so it may be there wherever the other one is chosen
            scope.line(f"{expr.type} {name} = {_bare(otherwise)};")
        scope.line(f"if ({condition}) {{")
        scope.lines += first.lines
        first.lines.clear()
        first.line(f"{name} = {_bare(value)};")
        scope.lines += first.lines
        if apart:
            scope.line("} else {")
            scope.lines += second.lines
            second.lines.clear()
            second.line(f"{name} = {_bare(otherwise)};")
            scope.lines += second.lines
        scope.line("}")
        scope.names[id(expr)] = name
        return name


def indent(lines: Iterable[str], by: int = 1) -> list[str]:
    return ["    " * by + line for line in lines]


def branch(arms: Sequence[tuple[str, list[str]]]) -> list[str]:
    """The lines of the first arm (condition, lines) whose condition holds, those of the last one where none does."""
    lines: list[str] = []
    for number, (condition, body) in enumerate(arms):
        head = f"if ({condition}) {{" if number < len(arms) - 1 else "{"
        lines += [f"{'} else ' if number else ''}{head}", *indent(body)]
    return [*lines, "}"]


def _negative(text: str) -> str:
    return f"-({text})" if text.startswith("-") else f"-{text}"


def _condition(text: str) -> str:
    """What may stand before `?`: a choice keeps its parentheses there."""
    return text if "?" in text else _bare(text)


def _bare(text: str) -> str:
    """Without parentheses around the whole; never for an operand of an operator."""
    if not (text.startswith("(") and text.endswith(")")):
        return text
    depth = 0
    for place, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0 and place < len(text) - 1:
            return text
    return text[1:-1]
