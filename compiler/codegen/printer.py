"""Statements of one level of a kernel."""

from __future__ import annotations

import sympy

from compiler.codegen.text import Text, Window, _factor
from compiler.codegen.windows import sought_of
from compiler.draft.expressions import Expr, loads_of
from compiler.draft.index import FloorDiv, Index
from compiler.draft.partition import ROW
from compiler.draft.printing import INFIX, Scope, Statements, _bare
from compiler.draft.tensors import Buffer


class Printer(Statements):
    """Statements of one level that know what the levels around them have named."""

    infix = INFIX | {"bit_and": "&", "bit_or": "|", "bit_xor": "^", "shift_right": ">>", "shift_left": "<<"}

    def __init__(self, of: Text, scope: Scope, roots: list[Expr], lanes: dict[Window, str]) -> None:
        self.of, self.lanes = of, lanes
        super().__init__(scope, roots, of.index_names, of.fresh, self._reader)

    def _reader(self, buffer: Buffer, place, _statements) -> str:
        return self.of.loaded_text(
            buffer, f"{self.of.pointer(buffer)}[{place if isinstance(place, str) else self.index(place)}]"
        )

    def _print(self, expr: Expr, scope: Scope) -> str:
        of = self.of
        if expr.op == "fold":
            member = expr.args[0]
            name = of.fold_names[member]
            return name if of.kernel.layout == ROW else f"{name}[{of.lane_name}]"
        if (
            expr.op == "eq" and not of.on_a_gpu and (part := _is_part(expr))
        ):  # g++ puts no division by a size in vectors
            place, begin, end = map(self.index, part)
            return f"({place} >= {begin} && {place} < {end})"
        if expr.op == "pick" and (picked := of.picked(expr.args[1:], self.text(expr.args[0], scope))):
            return picked
        if expr.op == "masked" and self._in_registers(expr):
            condition, *branches = (self.text(arg, scope) for arg in expr.args)
            if branches[0] == branches[1]:  # one load brought what is wanted of both
                return branches[0]
            names = [
                self._named(arg, text, scope) if loads_of([arg]) and not text.isidentifier() else text
                for arg, text in zip(expr.args[1:], branches, strict=True)
            ]
            return f"({condition} ? {names[0]} : {names[1]})"
        if expr.op == "repeated":
            return self._repeated(expr, scope)
        if expr.op == "halved":
            return self._halved(expr, scope)
        if expr.op in ("load", "load_at"):
            found = of.load_window(expr)
            if found is not None and found[0] in self.lanes:
                window, lane = found
                return of.lane_loaded(window.buffer, f"{self.lanes[window]}.at[{of.index(lane)}]")
            if expr.op == "load_at":
                buffer, base, stride, place = expr.args
                step = f"static_cast<int64_t>({_bare(self.text(place, scope))}) * {_factor(of.index(stride))}"
                if table := of.table_of(expr):
                    return f"{table}[{step if base == 0 else f'{of.index(base)} + {step}'}]"
                return self._reader(buffer, step if base == 0 else f"{of.index(base)} + {step}", self)
        return super()._print(expr, scope)

    def _in_registers(self, expr: Expr) -> bool:
        """Whether what is chosen between is one loaded pack's lane, or a number: a conversion in a branch of its own would be a jump for every lane."""
        loads = [load for load in expr.args[1:] if load.op in ("load", "load_at")]
        known = [found for load in loads if (found := self.of.load_window(load)) is not None]
        numbers = [arg for arg in expr.args[1:] if arg.op == "const"]
        return (
            len(known) == len(loads) > 0 and len(loads) + len(numbers) == 2 and all(w in self.lanes for w, _ in known)
        )

    def _repeated(self, expr: Expr, scope: Scope) -> str:
        """A loop of its own in front of where it is needed."""
        kind, step, end, value = expr.args
        name, inner = self.of.fresh("v"), Scope(scope.indent + 1, scope)
        text = _bare(self.text(value, inner))
        start = {"sum": "0", "max": "-INFINITY", "min": "INFINITY"}[kind]
        scope.line(f"{expr.type} {name} = {start};")
        scope.line(f"for (int {step} = 0; {step} < {self.index(end)}; ++{step}) {{")
        scope.lines += inner.lines
        join = f"{name} += {text};" if kind == "sum" else f"{name} = {kind}imum({name}, {text});"
        scope.lines += [f"{'    ' * (scope.indent + 1)}{join}", f"{'    ' * scope.indent}}}"]
        scope.names[id(expr)] = name
        return name

    def _halved(self, expr: Expr, scope: Scope) -> str:
        """The first step at which the condition does not hold, which it never does again behind one."""
        step, end, condition = expr.args
        name, inner = self.of.fresh("v"), Scope(scope.indent + 1, scope)
        for sought in sought_of(expr):
            self._named(sought, self.text(sought, scope), scope)
        text, tab = _bare(self.text(condition, inner)), "    " * scope.indent
        scope.names[id(expr)] = name
        if end.is_Integer and 0 < end < 2**30:  # as many steps whatever is found: lanes go side by side
            found = self.of.fresh("found")
            scope.line(f"int {found} = 0;")
            scope.lines += [f"{tab}{self.of.over_lanes}"] if "unroll" in self.of.over_lanes else []
            scope.line(f"for (int width = {1 << (int(end).bit_length() - 1)}; width > 0; width /= 2) {{")
            scope.lines += [f"{tab}    const int {step} = {found} + width - 1;", f"{tab}    if ({step} < {end}) {{"]
            scope.lines += [*(f"    {line}" for line in inner.lines), f"{tab}        {found} += {text} ? width : 0;"]
            scope.lines += [f"{tab}    }}", f"{tab}}}"]
            scope.line(f"const int64_t {name} = {found};")
            return name
        scope.line(f"int64_t {name} = 0;")
        scope.line(f"for (int64_t beyond = {self.index(end)}; {name} < beyond;) {{")
        scope.lines += [f"{tab}    const int64_t {step} = ({name} + beyond) / 2;", *inner.lines]
        scope.lines += [f"{tab}    if ({text}) {{ {name} = {step} + 1; }} else {{ beyond = {step}; }}", f"{tab}}}"]
        return name

    def _operation(self, expr: Expr, parts: list[str]) -> str:
        op = expr.op
        if op in ("floor_quotient", "floor_remainder"):
            return f"{op}<{expr.type}>({_bare(parts[0])}, {_bare(parts[1])})"
        return self.of.operation(expr, parts) or super()._operation(expr, parts)


def _is_part(expr: Expr) -> tuple[Index, Index, Index] | None:
    """(place, begin, end) of a comparison that asks whether a place lies in a part of so many elements, the parts counted by a number."""
    left, right = expr.args
    if left.op != "index" or right.op not in ("index", "const") or not right.type.startswith("int"):
        return None
    quotient, number = left.args[0], sympy.Integer(right.args[0]) if right.op == "const" else right.args[0]
    if not isinstance(quotient, FloorDiv) or not number.is_Integer or number < 0:
        return None
    place, size = quotient.args
    return place, sympy.expand(number * size), sympy.expand((number + 1) * size)


def print_lines(text: Text, expr: Expr, scope: Scope | None = None) -> tuple[list[str], str]:
    """(lines before, the value). `scope`: where these stand."""
    scope = scope or Scope(0)
    value = Printer(text, scope, [expr], {}).text(expr, scope)
    return scope.lines, _bare(value)
