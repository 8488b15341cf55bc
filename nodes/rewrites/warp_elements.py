"""Threads that have one element each, and reduce it over their warp, take several neighbours each.

`if (i >= n) return; v = f(x[i]); v = warp_max(v); y[i] = g(x[i], v); if (i % 32 == 0) top[i / 32] = v;` is how blocks of 32
elements are quantised. A second kernel has WARP_ELEMENTS of them in a thread: they are loaded and stored as one, what each comes
to is reduced in the thread first, and then over as many lanes as still share a group. What is said in front of the reduction is
said again behind it, for the compiler to find that it knows it. The host launches it where the elements are whole warps.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tree_sitter import Node

from nodes.rewrites import Facts
from nodes.rewrites._warp_reductions import WARP, Reduction, reductions, require_team
from nodes.rewrites.algebra import Polynomial, Symbol
from nodes.rewrites.device_code import (
    Access,
    Code,
    Kernel,
    Launch,
    code_of,
    declared_name,
    host_text,
    inside,
    require,
    same,
    statements,
)
from nodes.rewrites.join_lanes import ANY
from nodes.rewrites.pack import CEIL_DIV, LANES
from nodes.rewrites.regions import Region, Stride, conditional, is_return, regions, waits
from nodes.rewrites.source import Edits, Source, Unsupported
from nodes.rewrites.warp_rows import extent_of
from nodes.roles import Bound

LANGUAGES = frozenset({"cuda"})
HELPS: frozenset[Bound] = frozenset({"latency", "memory"})
EXPECTED = "several elements a load and store where a thread had one, and fewer shuffles for each"
SPEEDUP = 1.2
ORDER = 44

TUNABLES = """\
#define WARP_ELEMENTS 4  // tune: 2 4 8
"""
JOINS = {"sum": "{0} + {1}", "max": "max({0}, {1})", "min": "min({0}, {1})"}


def rewrite(source: Source, facts: Facts) -> str | None:
    if "__shfl" not in source.text or "WARP_ELEMENTS" in source.text:
        return None
    code, edits, kinds = code_of(source), Edits(source), set[str]()
    for kernel in code.kernels:
        attempt = Edits(source)
        try:
            several = _Several(code, kernel)
            several.write(attempt)
        except Unsupported:
            continue
        edits.changes += attempt.changes
        kinds.add(several.reduction.kind)
    if not edits.changes:
        return None
    try:
        require(edits, code, TUNABLES, "WARP_ELEMENTS")
        require(edits, code, CEIL_DIV, "ceil_div", includes=("cstdint",))
        require(edits, code, LANES, "Lanes", "load_lanes", "store_lanes")
        require(edits, code, ANY, "load_joined", "store_joined")
        require_team(edits, code, kinds, planar=False)
        return edits.apply()
    except Unsupported:
        return None


@dataclass
class _Lanes:
    """An access to neighbouring elements of neighbouring indices, in every element's visit."""

    access: Access
    name: str


class _Several:
    """One kernel, and the same with several elements a thread. Raises Unsupported where it is another kind of kernel."""

    def __init__(self, code: Code, kernel: Kernel) -> None:
        found = regions(kernel)
        if len(found) != 1 or found[0].kind != "guard" or not kernel.launches or kernel.has_defaults:
            raise Unsupported("not one element a thread")
        where = found[0].symbol.where
        # The index stays a name of its own.
        self.code = Code(code.source, pinned=frozenset({where}))
        self.kernel = next(k for k in self.code.kernels if k.node.start_byte == kernel.node.start_byte)
        self.source = code.source
        self.region: Region = next(r for r in regions(kernel) if r.symbol.where == where)
        assert self.region.guard is not None
        self.body = [s for s in self.region.body if s.start_byte > self.region.guard.end_byte]
        self.waits = [
            s
            for s in statements(self.kernel.body)
            if waits(self.source, s) and s.start_byte > self.region.guard.end_byte
        ]
        """For the grid before this one: they stay in front of what touches memory."""
        (self.reduction,) = self._reduction()
        self.first, self.lane, self.pack = (self.code.fresh(n) for n in ("first", "k", "pack"))
        self.total = self.code.fresh("all_of_group", "group_total")
        self._check_shape()
        self._check_coordinates()
        self._check_statements()
        self.lanes = self._lanes()

    def _reduction(self) -> list[Reduction]:
        found = reductions(self.code, self.kernel, WARP)
        if len(found) != 1:
            raise Unsupported("more than one reduction")
        nodes = found[0].nodes
        self.at = next((n for n, s in enumerate(self.body) if inside(nodes[0], s)), -1)
        statement = self.body[self.at]
        plain = statement.type in {"expression_statement", "declaration"} if len(nodes) == 1 else True
        if self.at < 0 or not (plain or statement.type == "for_statement"):
            raise Unsupported("a reduction that some elements skip")
        return found

    def _check_shape(self) -> None:
        guard, condition = self.region.guard, self.region.condition
        assert guard is not None and condition is not None
        if not is_return(self.source, guard) or self.region.otherwise is not None or not self.body:
            raise Unsupported("a guard of another form")
        name = self.region.name
        inner = [n for n in self.source.walk(guard, "identifier") if self.source.of(n) == name]
        between = [s for s in self.region.body if s.start_byte < guard.start_byte]
        early = any(self.source.of(n) == name for s in between for n in self.source.walk(s, "identifier"))
        if len(inner) != 1 or early:
            raise Unsupported("an index that more than the comparison asks for")
        for launch in self.kernel.launches:
            width = extent_of(self.code, self.kernel, launch.along_x(launch.block))
            if launch.extents(launch.block)[1:] != ("1", "1") or not width or width % WARP:
                raise Unsupported("a block that is not whole warps")

    def _check_coordinates(self) -> None:
        source, definition = self.source, self.region.definition
        assert definition is not None
        for function in [self.kernel.node, *self.kernel.helpers]:
            for node in source.walk(function, "type_qualifier", "asm_statement", "gnu_asm_expression"):
                if node.type != "type_qualifier" or source.of(node) in {"__shared__", "volatile"}:
                    raise Unsupported("threads that talk to each other")
        axis = self.region.axis
        for node in source.walk(self.kernel.body, "field_expression"):
            text = source.of(node)
            mine = text.startswith(("threadIdx.", "blockDim.")) or text in {f"blockIdx.{axis}", f"gridDim.{axis}"}
            if mine and not inside(node, definition) and not any(inside(node, lane) for lane in self._lane_numbers()):
                raise Unsupported("a thread that asks which one it is")
        for helper in self.kernel.helpers:
            if any(source.of(n) in {"threadIdx", "blockIdx", "blockDim"} for n in source.walk(helper, "identifier")):
                raise Unsupported("a helper that asks which thread it is")
        for node in source.walk(self.kernel.body, "identifier"):
            held = self.code.definition(node)
            outside = (
                held is not None and held.kind == "local" and not any(inside(held.declaration, s) for s in self.body)
            )
            index = held is not None and same(held.declaration, definition)
            if outside and not index and self.code.polynomial(node).depends_on(Symbol("threadIdx.x")):
                raise Unsupported("a name for the thread")

    def _lane_numbers(self) -> list[Node]:
        """`threadIdx.x % 32` in the elements' statements, which is the element's number in its group."""
        whole = Polynomial.symbol(Symbol("threadIdx.x"))
        found = []
        for statement in self.body:
            for node in self.source.walk(statement, "binary_expression"):
                value = self.code.polynomial(node)
                (only, *more) = value.symbols or {Symbol("")}
                rest = not more and only.operator == "%" and value == Polynomial.symbol(only)
                if rest and only.operands[0] == whole and only.operands[1].value == WARP:
                    found.append(node)
        return found

    def _check_statements(self) -> None:
        """What is done for an element changes nothing that the next one sees."""
        source, code = self.source, self.code
        before = self.body[: self.at]
        for at, statement in enumerate(self.body):
            for target in code.assigned(statement):
                held = code.definition(target)
                scope = before if at < self.at else self.body
                if held is None or not any(inside(held.declaration, s) for s in scope):
                    raise Unsupported("a variable that outlives the element")
            returns = list(source.walk(statement, "return_statement", "goto_statement"))
            if returns and (at <= self.at or not is_return(source, statement) or waits(source, statement)):
                raise Unsupported("a return of some elements")
            if any(True for _ in source.walk(statement, "update_expression")) and statement.type == "declaration":
                raise Unsupported("a declaration that changes something")
        own = self.reduction.element
        held = next((d for s in before for d in source.walk(s, "declaration") if self._declares(d)), None)
        if held is None or source.of(held.child_by_field_name("type")) != own:
            raise Unsupported("a value that is not the element's")
        first = self.body[self.at].start_byte
        for access in self.kernel.accesses:
            if access.root and access.writes and access.node.start_byte < first:
                raise Unsupported("a store in front of the reduction")
        if self.kernel.escapes or any(a.root == "?" for a in self.kernel.accesses):
            raise Unsupported("a pointer of unknown origin")

    def _declares(self, declaration: Node) -> bool:
        names = [declared_name(d) for d in declaration.children_by_field_name("declarator")]
        return any(n is not None and self.source.of(n) == self.reduction.value for n in names)

    def _lanes(self) -> list[_Lanes]:
        """Loads and stores of neighbours. Raises Unsupported where memory is read that other elements write."""
        found: list[_Lanes] = []
        taken = self.code.names()
        accesses = [a for a in self.kernel.accesses if a.root and any(inside(a.node, s) for s in self.body)]
        returned = next((s.start_byte for s in self.body if is_return(self.source, s)), self.kernel.body.end_byte)
        for access in accesses:
            if not self._is_neighbour(access) or (access.writes and access.node.start_byte > returned):
                continue
            known = next((e for e in found if e.access.base == access.base and e.access.offset == access.offset), None)
            stem = f"{access.base.text}_lanes"
            name = next(n for n in (stem, *(f"{stem}_{i}" for i in range(2, 99))) if n not in taken)
            taken.add(known.name if known is not None else name)
            found.append(_Lanes(access, known.name if known is not None else name))
        for root in {a.root for a in accesses if a.writes}:
            mine = [a for a in accesses if a.root == root]
            joined = {e.name for e in found if e.access.root == root}
            apart = [a for a in mine if not any(e.access is a for e in found)]
            if any(a.reads for a in mine) and (len(joined) != 1 or apart):
                raise Unsupported("memory that other elements write")
            if len(joined) > 1 or (joined and apart):
                raise Unsupported("elements that are written twice")
        if not any(e.access.reads for e in found):
            raise Unsupported("no neighbours")
        return found

    def _is_neighbour(self, access: Access) -> bool:
        stride = Stride(self.region.symbol)
        try:
            plain = stride.of(access.offset) == 1 and not stride.multiples
        except Unsupported:
            return False
        if not plain or access.wide or access.address or (access.reads and access.writes):
            return False
        if access.base.node is None or access.base.node.type != "identifier":
            return False
        if conditional(access.node, self.region, self.kernel) or self._front(access) is None:
            return False
        return not self.kernel.changes_within(Polynomial.symbol(access.base) + access.offset, list(self.body))

    def _front(self, access: Access) -> list[Node] | None:
        """The statements that the access's place needs, of indices alone; None where it needs others."""
        found: list[Node] = []
        stack = [access.node]
        while stack:
            for name in self.source.walk(stack.pop(), "identifier"):
                held = self.code.definition(name)
                if held is None or not any(same(held.declaration, s) for s in self.body):
                    if held is not None and any(inside(held.declaration, s) for s in self.body):
                        return None
                    continue
                declaration = held.declaration
                calls = [
                    self.source.of(c.child_by_field_name("function"))
                    for c in self.source.walk(declaration, "call_expression")
                ]
                reads = any(inside(a.node, declaration) for a in self.kernel.accesses)
                if (
                    reads
                    or self.code.mutated(held)
                    or any(not c.startswith(("static_cast<", "reinterpret_cast<")) for c in calls)
                ):
                    return None
                if not any(same(declaration, other) for other in found):
                    found.append(declaration)
                    stack.append(declaration)
        return sorted(found, key=lambda declaration: declaration.start_byte)

    # What is written.

    def write(self, edits: Edits) -> None:
        name = self.code.fresh(f"{self.kernel.name}_by_packs")
        edits.insert(self.kernel.outer.end_byte, "\n\n" + self._new_kernel(name))
        for launch in self.kernel.launches:
            self._write_launch(edits, launch, name)

    def _new_kernel(self, name: str) -> str:
        kernel, source, region = self.kernel, self.source, self.region
        definition, condition, guard = region.definition, region.condition, region.guard
        assert definition is not None and condition is not None and guard is not None
        declarator = definition.children_by_field_name("declarator")[0]
        named, left = declarator.child_by_field_name("declarator"), condition.child_by_field_name("left")
        assert named is not None and left is not None
        bound = source.of(region.bound_node)
        bound = bound if re.fullmatch(r"[\w.]+", bound) else f"({bound})"
        replaced = [
            (kernel.name_node, name), (named, self.pack), (left, self.pack),
            (region.bound_node, f"{bound} / WARP_ELEMENTS"), (self.body[0], self._text()),
            *((statement, "") for statement in [*self.body[1:], *self.waits]),
        ]  # fmt: skip
        first = self.body[0].start_byte
        for (
            node
        ) in kernel.body.named_children:  # directives of loops, and what was said about a statement that is elsewhere
            if node.type == "preproc_call" or (node.type == "comment" and node.start_byte > first):
                replaced.append((node, ""))
        text = source.render(kernel.outer, replaced)
        return re.sub(r"(?m)^[ \t]+\n", "", text)

    def _text(self) -> str:
        source, region, unit = self.source, self.region, self.source.unit(self.body[0])
        indent = source.indent(self.body[0])
        kind = region.type if region.type != "auto" else "int64_t"
        lines = [f"const {kind} {self.first} = {self.pack} * WARP_ELEMENTS;"]
        declared: list[Node] = []
        for entry in self.lanes:
            for node in self._front(entry.access) or []:
                if not any(same(node, other) for other in declared):
                    declared.append(node)
        declared.sort(key=lambda node: node.start_byte)
        lines += [self._relined(node, source.render(node, self._at_first(node))) for node in declared]
        for statement in self.waits:
            said = statement.next_named_sibling
            beside = said is not None and said.type == "comment" and said.start_point[0] == statement.end_point[0]
            lines.append(source.of(statement) + (f"  {source.of(said)}" if beside else ""))
        by_name: dict[str, list[Access]] = {}
        for entry in self.lanes:
            by_name.setdefault(entry.name, []).append(entry.access)
        stores = []
        for name, accesses in by_name.items():
            place, element = self._place(accesses[0]), accesses[0].element
            if any(a.reads for a in accesses):
                head = "" if any(a.writes for a in accesses) else "const "
                lines.append(f"{head}Lanes<{element}, WARP_ELEMENTS> {name} = load_joined<WARP_ELEMENTS>({place});")
            else:
                lines.append(f"Lanes<{element}, WARP_ELEMENTS> {name};")
            if any(a.writes for a in accesses):
                stores.append(f"store_joined({place}, {name});")
        value, total = self.reduction.value, self.total
        join = JOINS[self.reduction.kind].format(total, value)
        before = self.body[: self.at]
        fold = f"{total} = {self.lane} == 0 ? {value} : {join};"
        lines.append(f"{self.reduction.element} {total};")
        lines += self._loop(self._needed(before, [fold]), unit)
        lines.append(f"{total} = team_{self.reduction.kind}<{WARP} / WARP_ELEMENTS>({total});")
        lines += self._loop(self._needed(before, [self._reduced(), *map(self._rendered, self._behind())]), unit)
        flat = [part for line in [*lines, *stores] for part in line.split("\n")]
        return "\n".join(
            part if n == 0 or part.startswith("#") or not part else indent + part for n, part in enumerate(flat)
        )

    def _needed(self, before: list[Node], behind: list[str]) -> list[str]:
        """Without declarations that nothing behind them names."""
        lines = list(behind)
        for statement in reversed(before):
            names = [self.source.of(declared_name(d)) for d in statement.children_by_field_name("declarator")]
            words = set(re.findall(r"(?<![.\w])[A-Za-z_]\w*", " ".join(lines)))  # no fields
            if statement.type != "declaration" or words & set(names):
                lines.insert(0, self._rendered(statement))
        return lines

    def _behind(self) -> list[Node]:
        return [
            s
            for s in self.body[self.at + 1 :]
            if not any(same(s, n) for n in self.reduction.nodes) and s.type != "preproc_call"
        ]

    def _reduced(self) -> str:
        statement, nodes = self.body[self.at], self.reduction.nodes
        if nodes[0].type == "call_expression":
            return self._relined(
                statement, self.source.render(statement, [(nodes[0], self.total), *self._names(statement)])
            )
        return f"{self.reduction.value} = {self.total};"

    def _loop(self, body: list[str], unit: str) -> list[str]:
        kind = self.region.type if self.region.type != "auto" else "int64_t"
        inner = "\n".join(body)
        head = [f"{unit}const {kind} {self.region.name} = {self.first} + {self.lane};"]
        if not re.search(rf"\b{re.escape(self.region.name)}\b", inner):
            head = []
        parts = [
            unit + part if part and not part.startswith("#") else part for text in body for part in text.split("\n")
        ]
        return [
            "#pragma unroll",
            f"for (int {self.lane} = 0; {self.lane} < WARP_ELEMENTS; ++{self.lane}) {{",
            *head,
            *parts,
            "}",
        ]

    def _names(self, statement: Node) -> list[tuple[Node, str]]:
        found = [(e.access.node, f"{e.name}.at[{self.lane}]") for e in self.lanes if inside(e.access.node, statement)]
        return found + [(n, f"({self.region.name} % {WARP})") for n in self._lane_numbers() if inside(n, statement)]

    def _rendered(self, statement: Node) -> str:
        replaced = self._names(statement)
        if is_return(self.source, statement):
            replaced += [(n, "continue;") for n in self.source.walk(statement, "return_statement")]
        return self._relined(statement, self.source.render(statement, replaced))

    def _relined(self, statement: Node, text: str) -> str:
        indent = self.source.indent(statement)
        return "\n".join(line.removeprefix(indent) for line in text.split("\n"))

    def _at_first(self, node: Node) -> list[tuple[Node, str]]:
        name = self.region.name
        return [(n, self.first) for n in self.source.walk(node, "identifier") if self.source.of(n) == name]

    def _place(self, access: Access) -> str:
        node = access.node
        if node.type == "call_expression":
            listed = node.child_by_field_name("arguments")
            assert listed is not None
            return self.source.render(listed.named_children[0], self._at_first(listed))
        if node.type == "pointer_expression":
            inner = node.child_by_field_name("argument")
            assert inner is not None
            return self.source.render(inner, self._at_first(inner))
        return "&" + self.source.render(node, self._at_first(node))

    def _write_launch(self, edits: Edits, launch: Launch, name: str) -> None:
        source, kernel, statement = self.source, self.kernel, launch.statement
        bound = host_text(kernel, launch, self.region.bound_node)
        bound = bound if re.fullmatch(r"[\w.]+", bound) else f"({bound})"
        width = launch.extents(launch.block)[0]
        width = width if re.fullmatch(r"[\w.]+", width) else f"({width})"
        extents = dict(zip("xyz", launch.extents(launch.grid), strict=True))
        extents[self.region.axis] = along = f"static_cast<unsigned>(ceil_div({bound} / WARP_ELEMENTS, {width}))"
        shape = list(extents.values())
        while shape[-1] == "1":
            shape.pop()
        grid = along if shape == [along] else f"dim3({', '.join(shape)})"
        function = re.sub(rf"\b{re.escape(kernel.name)}\b", name, source.of(launch.function), count=1)
        unit, indent = source.unit(statement), source.indent(statement)
        lines = [
            f"if ({bound} % {WARP} == 0) {{",
            f"{unit}{launch.rendered(function=function, grid=grid)};",
            "} else {",
            f"{unit}{source.of(statement)}",
            "}",
        ]
        edits.replace(statement, f"\n{indent}".join(lines))
