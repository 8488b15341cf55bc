"""A kernel's text in C++: loops that g++ vectorises, shared by threads.

Elements go in blocks of a line: it is as long as what places are divided by, so that a quotient is computed a line. What each
row folds goes in blocks along the row, or, where rows lie side by side, sixteen rows at a time, each a lane with an accumulator of its own.
"""

from __future__ import annotations

import re
from dataclasses import replace

import sympy
import torch

from .accumulators import JOINS, accumulator_type, identity, is_struct
from .emit import Emitter, is_fold
from .expressions import Expr, indices_of, loads_of, put, symbols_of, walk
from .index import Index, divisions_in, substitute
from .partition import ROW, Kernel, Member, Partition
from .printing import Scope, Statements, _bare, indent, index_text

BLOCK = 1024
"""Elements of a row whose sum is made in float, in lanes, before it goes to double; and those of a map that a thread takes at once."""
STRIPS = 64
"""Rows side by side that a thread takes at once."""
LANES = 16
SHORT_LINE = 8
"""Neighbours from which on a line is worth a loop."""
PARALLEL_FROM = 1 << 17
"""Instructions below which a thread is not worth its start."""
SHORT_SUM = 64
"""Steps up to which a lane's sum stays in float."""
HELD_FROM, MOST_HELD = 8, 16384
"""Instructions from which on an element's value is kept for a later pass over its row; elements of a row that are kept at most."""
REDUCTIONS = {"sum": "+", "prod": "*", "max": "maximum", "min": "minimum", "any": "||", "all": "&&"}
"""By kind, how OpenMP joins lanes; of `maximum` and `minimum` the prelude says it."""
IN_LANES = ("sum", "prod", "max", "min")
"""Kinds of which one alone goes in 32 lanes: by OpenMP each vector would wait for the one before it."""
OF_BLOCKS = {
    "welford": "joined({0}, moments_of({1}, {2}))", "softmax": "joined({0}, shifted_of({1}, {2}))",
    "argmax": "larger_of({0}, {1}, {2}, {3})", "argmin": "smaller_of({0}, {1}, {2}, {3})",
}  # fmt: skip
"""By kind, what joins a block's values to what came before: more than one operation an element, so that values wait until a block is there."""


class CppStatements(Statements):
    def _operation(self, expr: Expr, parts: list[str]) -> str:
        if expr.op == "exp":
            return f"exponential({_bare(parts[0])})"
        if expr.op == "sigmoid":
            one = "1.0f" if expr.type == "float" else "1.0"
            return f"({one} / ({one} + exponential(-{parts[0]})))"
        return super()._operation(expr, parts)


class CppEmitter(Emitter):
    statements = CppStatements

    def __init__(self, kernel: Kernel, partition: Partition, device: str) -> None:
        super().__init__(kernel, partition, device)
        self.waiting: dict[Member, str] = {}
        """Text of the array in which a fold's values wait."""
        self.returned: Member | None = None
        """The fold whose elements the text returns to `fold_in_lanes`."""
        self.of_lane: dict[Index, Index] = {}
        """The row in terms of its line and of where it is there."""
        self.in_line: list[str] = []
        """Lines that name, for each element, quotients that are not its line's."""
        self.in_lanes = False
        self.held: dict[Expr, tuple[int, str]] = {}
        """What a row's element keeps for later passes: the stage that computes it, where it is."""
        self.at_stage = 0

    def text(self, summary: str) -> str:
        kernel = self.kernel
        by_rows = kernel.scan is not None or (bool(kernel.inner) and self._along_row())
        loops = self._rows() if by_rows else self._lines()
        head = [
            f"// {summary}",
            f'extern "C" void {kernel.name}(',
            f"    {', '.join(self.parameters(restricted=True))}) {{",
        ]
        return "\n".join([*head, *indent(loops), "}", ""])

    @property
    def _parallel(self) -> str:
        cost = sum(max(1, member.value.cost) for member in self.kernel.members)
        work = index_text(self.kernel.rows * self.kernel.length * cost)
        return f"if (({work}) > {PARALLEL_FROM})"

    def _along_row(self) -> bool:
        """Whether lanes lie along what a row folds: else sixteen rows side by side have a lane each."""
        kernel, estimate = self.kernel, self.partition.program.estimate
        if kernel.layout == ROW or estimate(kernel.rows) < LANES:
            return True
        variable, end = kernel.inner[-1]
        steps = [
            sympy.expand(load.args[1].subs(variable, variable + 1) - load.args[1])
            for load in loads_of(kernel.roots)
            if load.op == "load"
        ]
        return estimate(end) >= LANES and any(step == 1 for step in steps)

    # ------------------------------------------------------------------------------------------ rows

    def _rows(self) -> list[str]:
        row = self.kernel.row_name
        head = f"for (int64_t {row} = 0; {row} < {index_text(self.kernel.rows)}; ++{row}) {{"
        held = self._hold()
        return [f"#pragma omp parallel for {self._parallel}", head, *indent(held), *self.body(1), "}"]

    def _hold(self) -> list[str]:
        """Decides what is kept; lines that declare where."""
        kernel, lines = self.kernel, []
        if (
            kernel.scan is not None
            or len(kernel.inner) != 1
            or not kernel.length.is_Integer
            or kernel.length > MOST_HELD
        ):
            return []
        variable, seen = kernel.inner[0][0], dict[Expr, int]()
        for at, members in enumerate(self._stages()):
            looped = [member.value for member in members if not member.per_row]
            stack = list(looped)
            while stack:
                expr = stack.pop()
                if expr in seen and expr.cost >= HELD_FROM and expr.type == "float" and variable in symbols_of(expr):
                    if expr not in self.held:
                        name = self.name("held")
                        self.held[expr] = seen[expr], f"{name}[{variable}]"
                        lines.append(f"float {name}[{kernel.length}];")
                else:
                    stack += [arg for arg in expr.args if isinstance(arg, Expr)]
            for expr in walk(looped):
                seen.setdefault(expr, at)
        return lines

    def before_elements(self, scope: Scope, statements: Statements) -> None:
        for expr, (at, place) in self.held.items():
            if at < self.at_stage:
                scope.names[id(expr)] = place
            elif at == self.at_stage and id(expr) in statements.always:
                text = statements.text(expr)
                scope.line(f"{place} = {text if text.isidentifier() else statements._named(expr, text, scope)};")

    def loops(self, top: Scope, looped: list[Member], accumulators: dict[Member, str]) -> None:
        if self.in_lanes:
            self._loops_of_lanes(top, looped, accumulators)
            return
        *outer, (variable, end) = self.kernel.inner
        tab, stop = "    " * (top.indent + len(outer)), index_text(end)
        shift = len(outer) + (2 if accumulators else 1)
        inner = Scope(top.indent + shift)
        block = self.name("block")
        if (
            len(looped) == 1
            and looped[0] in accumulators
            and looped[0].definition.kind in IN_LANES
            and self._has_lanes(looped[0])
        ):
            self.returned = looped[0]
        before, behind, clauses, partial = [], [], [], dict(accumulators)
        for member, name in accumulators.items():
            definition = member.definition
            if definition.kind in OF_BLOCKS and member.value.op != "only_if":
                lies = self._lies(member, variable, block)
                if lies is not None:
                    before.append(f"const {definition.type}* const {name}_of = {lies};")
                    looped = [one for one in looped if one is not member]
                else:
                    self.waiting[member] = f"{name}_of[{variable} - {block}]"
                    before.append(f"{definition.type} {name}_of[{BLOCK}];")
                place = index_text(self._folded_place().subs(variable, sympy.Symbol(block)))
                behind.append(
                    f"{name} = {OF_BLOCKS[definition.kind].format(name, f'{name}_of', f'{block}_end - {block}', place)};"
                )
            elif definition.kind in ("sum", "prod") and accumulator_type(self.device, definition) != definition.type:
                partial[member] = part = f"{name}_part"
                before.append(f"{definition.type} {part} = {identity('cuda', definition)};")
                behind.append(f"{name} {REDUCTIONS[definition.kind]}= {part};")
                clauses.append(f"reduction({REDUCTIONS[definition.kind]} : {part})")
            elif self._has_lanes(member):
                clauses.append(f"reduction({REDUCTIONS[definition.kind]} : {name})")
        plain = any(m in looped and m not in self.waiting and not self._has_lanes(m) for m in accumulators)
        self._elements(inner, top, looped, partial)
        for depth, (loop, loop_end) in enumerate(outer):
            top.lines.append(
                f"{'    ' * (top.indent + depth)}for (int64_t {loop} = 0; {loop} < {index_text(loop_end)}; ++{loop}) {{"
            )
        simd = [] if plain else [" ".join(["#pragma omp simd", *clauses])]
        if self.returned is not None:
            (member,) = looped
            definition, name = member.definition, accumulators[member]
            type, join = definition.type, JOINS[definition.kind]
            held = accumulator_type(self.device, definition)
            top.lines += [
                f"{tab}for (int64_t {block} = 0; {block} < {stop}; {block} += {BLOCK}) {{",
                f"{tab}    const int64_t {block}_end = {block} + {BLOCK} < {stop} ? {block} + {BLOCK} : {stop};",
                f"{tab}    const {type} {name}_part = fold_in_lanes<{type}>({block}_end - {block}, {identity('cuda', definition)}, [&](int64_t at) {{",
                f"{tab}        const int64_t {variable} = {block} + at;", *inner.lines, f"{tab}    }}, []({type} a, {type} b) {{ return {join}; }});",
                f"{tab}    {name} = [](auto a, auto b) {{ return {join}; }}({name}, static_cast<{held}>({name}_part));", f"{tab}}}",
                *("    " * (top.indent + depth) + "}" for depth in reversed(range(len(outer)))),
            ]  # fmt: skip
            self.returned = None
            return
        if accumulators:
            each = [*simd, f"for (int64_t {variable} = {block}; {variable} < {block}_end; ++{variable}) {{"]
            each = [*(f"{tab}    {line}" for line in each), *inner.lines, f"{tab}    }}"] if looped else []
            top.lines += [
                f"{tab}for (int64_t {block} = 0; {block} < {stop}; {block} += {BLOCK}) {{",
                f"{tab}    const int64_t {block}_end = {block} + {BLOCK} < {stop} ? {block} + {BLOCK} : {stop};",
                *(f"{tab}    {line}" for line in before), *each,
                *(f"{tab}    {line}" for line in behind), f"{tab}}}",
            ]  # fmt: skip
        else:
            each = [*simd, f"for (int64_t {variable} = 0; {variable} < {stop}; ++{variable}) {{"]
            top.lines += [*(f"{tab}{line}" for line in each), *inner.lines, f"{tab}}}"]
        top.lines += ["    " * (top.indent + depth) + "}" for depth in reversed(range(len(outer)))]
        self.waiting.clear()

    def _lies(self, member: Member, variable: Index, block: str) -> str | None:
        """Where a block's values stand in memory already."""
        value = member.value
        if value.op != "load" or value.args[0].dtype != torch.float32 or value.args[0] in self.registers:
            return None
        place = value.args[1]
        divided = any(variable in atom.free_symbols for atom in divisions_in(place))
        if divided or place.coeff(variable) != 1 or any(atom not in self.row_names for atom in divisions_in(place)):
            return None
        at = place.subs(variable, sympy.Symbol(block, integer=True, nonnegative=True))
        return f"{value.args[0].name} + {index_text(at, self.row_names)}"

    def _has_lanes(self, member: Member) -> bool:
        kind, type = member.definition.kind, member.definition.type
        return kind in REDUCTIONS and (type != "bool" or kind in ("any", "all"))

    def accumulate(self, scope: Scope, statements: Statements, member: Member, name: str) -> None:
        if member is self.returned:
            scope.line(f"return static_cast<{member.definition.type}>({_bare(statements.text(member.value))});")
        elif member in self.waiting:
            scope.line(f"{self.waiting[member]} = {_bare(statements.text(member.value))};")
        else:
            super().accumulate(scope, statements, member, name)

    # ------------------------------------------------------------------------------------------ lines

    def _lines(self) -> list[str]:
        """Blocks of a line's neighbours, in parallel; one line where nothing is divided by what is worth a loop."""
        kernel, begin, end = self.kernel, self.name("begin"), self.name("end")
        length, item, head = self._split_in_lines()
        step, lines = STRIPS if kernel.inner else BLOCK, kernel.rows / length
        stop = index_text(length)
        made = self._strips(begin, end, item) if kernel.inner else self._neighbours(begin, end, item)
        each = [
            f"for (int64_t {begin} = 0; {begin} < {stop}; {begin} += {step}) {{",
            *indent(_used(head, made)), f"    const int64_t {end} = {begin} + {step} < {stop} ? {begin} + {step} : {stop};",
            *indent(made), "}",
        ]  # fmt: skip
        if lines == 1:
            return [f"#pragma omp parallel for {self._parallel}", *each]
        line = self.line
        over = f"for (int64_t {line} = 0; {line} < {index_text(sympy.expand(lines))}; ++{line}) {{"
        return [f"#pragma omp parallel for collapse(2) {self._parallel}", over, *indent(each), "}"]

    def _split_in_lines(self) -> tuple[Index, str, list[str]]:
        """(elements of a line, the variable that counts them, what all of a line share by name)."""
        kernel, program = self.kernel, self.partition.program
        row = kernel.row
        atoms = dict.fromkeys(atom for index in self.indices() for atom in divisions_in(index))
        lengths = {atom.args[1] for atom in atoms if atom.args[0] == row} if row.is_Symbol else set()
        few = lambda size: program.estimate(size) < SHORT_LINE  # noqa: E731
        fits = [
            one for one in lengths
            if not few(one) and _divides(one, kernel.rows) and all(_divides(one, other) or (few(other) and _divides(other, one)) for other in lengths)
        ]  # fmt: skip
        if not fits:
            return kernel.rows, kernel.row_name, []
        length = min(fits, key=program.estimate)
        self.line, item = self.name("line"), self.name("item")
        places = program.ranges
        line_at, item_at = places.named(self.line, kernel.rows / length), places.named(item, length)
        shared: list[str] = []
        loops = {variable for variable, _ in kernel.inner}
        for atom in atoms:
            if not atom.has(row) or atom.free_symbols & loops:
                continue
            value = substitute(atom, {row: length * line_at + item_at}, places)
            name = self.name("i")
            to = self.in_line if value.has(item_at) else shared
            to.append(f"const int64_t {name} = {_bare(index_text(value))};")
            self.row_names[atom] = name
        self.in_line.insert(0, f"const int64_t {kernel.row_name} = {self.line} * {_factor(length)} + {item};")
        self.of_lane = {row: length * line_at + item_at}
        return length, item, shared

    def _neighbours(self, begin: str, end: str, item: str) -> list[str]:
        lines = self.body(1)
        return [
            "#pragma omp simd",
            f"for (int64_t {item} = {begin}; {item} < {end}; ++{item}) {{",
            *indent(_used(self.in_line, lines)),
            *lines,
            "}",
        ]

    def _strips(self, begin: str, end: str, item: str) -> list[str]:
        """Sixteen rows beside each other, and those that are left."""
        self.in_lanes, self.first, self.item = True, self.name("first"), item
        count = f"{self.first}_count"
        self.count = count
        top = Scope(1)
        for members in self._stages():
            self._stage(top, members, None)
        return [f"in_strips({begin}, {end}, [&](int64_t {self.first}, auto {count}) {{", *top.lines, "});"]

    def _of_lanes(self, lines: list[str]) -> list[str]:
        """Lines for each of the lanes."""
        return [
            "#pragma omp simd",
            f"for (int lane = 0; lane < {self.count}; ++lane) {{",
            *indent(self._of_lane(lines)),
            *lines,
            "}",
        ]

    def _of_lane(self, lines: list[str]) -> list[str]:
        """What the lines of a lane need of its place."""
        return _used([f"const int64_t {self.item} = {self.first} + lane;", *self.in_line], lines)

    def _stage(self, top: Scope, members: list[Member], packs) -> None:
        self.at_stage = members[0].stage if members else 0
        if not self.in_lanes:
            super()._stage(top, members, packs)
            return
        folds = [m for m in members if is_fold(m, self.kernel)]
        accumulators, tab = {}, "    " * top.indent
        for member in folds:
            name = self.name(member.definition.kind.removeprefix("join_") + "_")
            short = (
                self.kernel.length.is_Integer and self.kernel.length <= SHORT_SUM and not is_struct(member.definition)
            )
            where = "cuda" if short else self.device
            type, start = accumulator_type(where, member.definition), identity(where, member.definition)
            start = f"{type}{start}" if is_struct(member.definition) else start
            top.lines += [f"{tab}{type} {name}[{LANES}];", f"{tab}for (auto& one : {name}) {{ one = {start}; }}"]
            accumulators[member] = f"{name}[lane]"
        looped = [m for m in members if not m.per_row]
        if looped:
            self._loops_of_lanes(top, looped, accumulators)
        for member in looped:
            self.registers.pop(member.definition.outs[0], None)
        names, last = dict(self.row_names), Scope(1)
        for member in folds:
            self._finish(last, member, accumulators[member])
        rows = [m for m in members if m.per_row]
        for member in rows:
            self._per_row(last, [member])
            out, type = member.definition.outs[0], member.value.type
            if not any(
                load.args[0] is out
                for one in self.kernel.members
                if one.stage > member.stage
                for load in loads_of([one.value])
            ):
                continue
            kept = self.name("row_")
            top.lines.append(f"{tab}{type} {kept}[{LANES}];")
            last.line(f"{kept}[lane] = {self.registers[out]};")
            self.registers[out] = f"{kept}[lane]"
        self.row_names = names
        if last.lines:
            top.lines += indent(self._of_lanes(last.lines), top.indent)

    def _loops_of_lanes(self, top: Scope, looped: list[Member], accumulators: dict[Member, str]) -> None:
        conditions = list(
            dict.fromkeys(
                e.args[0] for e in walk(m.value for m in looped) if e.op == "masked" and self._rises(e.args[0])
            )
        )
        made = self._of_lanes(self._printed(looped, accumulators))
        if conditions:  # what all lanes of a strip are inside of has no conditions: no lane is masked
            scope, names = Scope(0), dict(self.row_names)
            atoms = self.divisions([index for index in indices_of(conditions) if divisions_in(index)], self.row_names)
            inside = " && ".join(
                f"({self.statements(scope, [one], self.row_names, self.name, self.read).text(one)})"
                for one in conditions
            )
            self.row_names = names
            known: dict[int, Expr] = {}

            def chosen(expr: Expr) -> Expr | None:
                return put(expr.args[1], chosen, known) if expr.op == "masked" and expr.args[0] in conditions else None

            free = {m: replace(m, value=put(m.value, chosen, known)) for m in looped}
            lines = self._of_lanes(
                self._printed(list(free.values()), {free[m]: name for m, name in accumulators.items()})
            )
            name = self.name("inside")
            asked = [*atoms, *scope.lines, f"return {inside};"]
            asked = [*self._of_lane(asked), *asked]
            made = [
                f"const auto {name} = [&]([[maybe_unused]] int lane) {{", *indent(asked), "};",
                f"if ({name}(0) && {name}({self.count} - 1)) {{", *indent(lines), "} else {", *indent(made), "}",
            ]  # fmt: skip
        for variable, end in reversed(self.kernel.inner):
            head = f"for (int64_t {variable} = 0; {variable} < {index_text(end)}; ++{variable}) {{"
            made = [head, *indent(made), "}"]
        top.lines += indent(made, top.indent)

    def _printed(self, looped: list[Member], accumulators: dict[Member, str]) -> list[str]:
        names, inner = dict(self.row_names), Scope(1)
        self._elements(inner, inner, looped, accumulators)
        self.row_names = names
        return inner.lines

    def _rises(self, condition: Expr) -> bool:
        """Whether it holds of all lanes where it holds of the first and the last: comparisons of places that rise or fall steadily."""
        if condition.op == "and":
            return all(map(self._rises, condition.args))
        if condition.op not in ("lt", "le", "gt", "ge") or any(
            arg.op not in ("index", "const") for arg in condition.args
        ):
            return False
        ranges = self.partition.program.ranges
        rows = {
            self.kernel.row,
            *(symbol for value in self.of_lane.values() for symbol in value.free_symbols if str(symbol) == self.item),
        }
        for arg in condition.args:
            if arg.op == "index":
                place = substitute(arg.args[0], self.of_lane, ranges)
                if any(atom.free_symbols & rows for atom in divisions_in(place)) or any(
                    sympy.diff(place, one).has(one) for one in rows & place.free_symbols
                ):
                    return False
        return True


def _used(named: list[str], lines: list[str]) -> list[str]:
    """Those of the lines that name something which is named again."""
    found: list[str] = []
    for line in reversed(named):
        name = line.split("=")[0].split()[-1]
        if any(re.search(rf"\b{name}\b", other) for other in (*found, *lines)):
            found.insert(0, line)
    return found


def _divides(one: Index, other: Index) -> bool:
    return sympy.denom(sympy.cancel(other / one)) == 1


def _factor(size: Index) -> str:
    return f"({index_text(size)})" if size.is_Add else index_text(size)
