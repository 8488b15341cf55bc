"""What two passes over a row in registers both compute of an element, an exponential say, is computed once and kept.

Applies between passes that cache_row_in_registers made, where an expensive expression of a row's element stands in an earlier and in a
later one and nothing that it is made of changes in between. The value takes a register of its own, or that of the element
where nothing else wants this any more (a float32's place is as large). 16-bit elements lie two to a register, so that their
values take more than they did: each instance of the kernel tells from its steps a thread whether a block as wide as before
has registers for that; where it has not (eight steps of eight 16-bit elements), the value is computed again as it was. No
row becomes too long for registers by this.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tree_sitter import Node

from harness.records import Outcome
from nodes.rewrites.analysis.device_code import Code, Definition, code_of, inside
from nodes.rewrites.analysis.kernels import Kernel, Loop
from nodes.rewrites.arithmetic.fast_math import kind
from nodes.rewrites.prelude import text_of
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.rows.passes import DIVISIONS, EXPENSIVE, Computed, Passes, called, root_of
from nodes.rewrites.syntax.insert import free
from nodes.rewrites.syntax.source import Edits, Source, Unsupported
from nodes.rewrites.syntax.tree import children_of, declared_name, field_of, same, statement_around


@rule(
    "cuda",
    expected="one exponential an element instead of two, where the row and its values fit the registers",
    speedup=1.1,
    helps={"memory", "latency", "compute"},
    risks=(Outcome.INCORRECT, Outcome.OUT_OF_RESOURCES),
    once="row_has_room",
)
def rewrite(source: Source, facts: Facts) -> str | None:
    if text_of("row_items") not in source.text:
        return None
    code, edits = code_of(source), Edits(source)
    for kernel in code.kernels:
        with edits.attempt():
            _Keeper(code, kernel).write(edits)
    if not edits.changes:
        return None
    edits.insert(code.functions["row_width"].end_byte, f"\n\n{text_of('row_has_room').rstrip()}")
    return edits.apply()


@dataclass
class _Value:
    first: Computed
    """Where it is computed."""
    again: list[Computed] = field(default_factory=list)
    """Where it is computed once more."""
    name: str = ""

    def slot(self, computed: Computed) -> str:
        lanes = "".join(f"[{computed.lanes[lane].name}]" for lane in self.first.lanes)
        return f"{self.name}[{computed.loop.name}]{lanes}"


class _Keeper:
    """Works out which values of one kernel can be kept, and writes that."""

    def __init__(self, code: Code, kernel: Kernel) -> None:
        self.code, self.kernel, self.source = code, kernel, code.source
        self.passes = Passes(code, kernel)
        self.values: list[_Value] = []
        before: list[Computed] = []
        for loop in self.passes.loops:
            here = list(self._computations(loop))
            self._find(here, before)
            before += here
        if not self.values:
            raise Unsupported("nothing is computed twice")

    # What is computed twice.

    def _computations(self, loop: Loop) -> Iterator[Computed]:
        """Of a pass, what is worth a register, outer expressions first."""
        for node in self.source.walk(loop.body, "call_expression", "binary_expression"):
            if kind(self.code, node) == "float" and self._is_worth_it(node, loop):
                computed = self.passes.computed(node, loop)
                if computed is not None:
                    yield computed

    def _find(self, here: list[Computed], before: list[Computed]) -> None:
        """Add what a pass computes, of expressions within each other the outer one, that one of those before has."""
        taken: Node | None = None
        for computed in here:
            if taken is not None and inside(computed.node, taken):
                continue
            firsts = (one for one in before if self.passes.serves(one, computed))
            value = next((value for one in firsts if (value := self._value(one)) is not None), None)
            if value is not None:
                value.again.append(computed)
                taken = computed.node

    def _is_worth_it(self, node: Node, loop: Loop) -> bool:
        """Whether something expensive in it differs from element to element."""
        for inner in self.source.walk(node, "call_expression", "binary_expression"):
            if self._is_expensive(inner):
                # The compiler takes the reciprocal of a divisor that all elements share once.
                shared = inner.type == "call_expression" and called(self.source, inner) in DIVISIONS
                computed = self.passes.computed(children_of(inner, "arguments")[-1] if shared else inner, loop)
                if computed is not None and computed.by_item:
                    return True
        return False

    def _is_expensive(self, node: Node) -> bool:
        """By itself, whatever its operands are."""
        source, code = self.source, self.code
        if node.type != "call_expression":
            divides = source.of(node, "operator") == "/" and field_of(node, "right").type != "number_literal"
            return divides and kind(code, node) == "float"
        name = called(source, node)
        if name not in code.overloads:
            return name in EXPENSIVE
        functions = code.reached(name)
        calls = (called(source, call) for f in functions for call in source.walk(f, "call_expression"))
        return any(source.has(f, "gnu_asm_expression") for f in functions) or any(
            inner in EXPENSIVE and inner not in code.overloads for inner in calls
        )

    def _value(self, first: Computed) -> _Value | None:
        """The value that is computed there; None where that is a part of another value, or has one inside."""
        for value in self.values:
            if same(value.first.node, first.node):
                return value
            if inside(value.first.node, first.node) or inside(first.node, value.first.node):
                return None
        self.values.append(_Value(first))
        return self.values[-1]

    # What is written.

    def write(self, edits: Edits) -> None:
        source, items = self.source, self.passes.items
        self._name_values()
        kept, freed = self.code.fresh("kKept", "kValuesKept"), self._freed()
        top = min((value.first.loop.node for value in self.values), key=lambda node: node.start_byte)
        lines = []
        for value in self.values:
            lanes = "".join(f"[{source.of(lane.bound_node)}]" for lane in value.first.lanes.values())
            lines.append(f"float {value.name}[{items}]{lanes};")
            self._write_first(edits, value)
            for computed in value.again:
                node = computed.node
                again = f"{kept} ? {value.slot(computed)} : {source.of(node)}"
                edits.replace(node, again if _stands_alone(node) else f"({again})")
        steps = (list(freed), [value.name for value in self.values])
        sizes = [" + ".join(f"sizeof({name}[0])" for name in names) or "0" for names in steps]
        lines.append(f"constexpr bool {kept} = row_has_room<{', '.join([items, self.passes.bytes, *sizes])}>;")
        pragma = top.prev_named_sibling
        at = pragma if pragma is not None and pragma.type == "preproc_call" else top
        start = source.line_start(at)
        edits.insert(start, "".join(f"{source.indent(top)}{line}\n" for line in lines))
        for hold in (hold for holds in freed.values() for hold in holds):
            edits.insert(hold.start_byte, f"if constexpr (!{kept}) ")

    def _name_values(self) -> None:
        taken = self.code.names()
        for value in self.values:
            first = value.first.node
            function = called(self.source, first) if first.type == "call_expression" else "value"
            stem = self._declared(value) or function.split("::")[-1].strip("_")
            value.name = free(f"{stem}_row", taken)
            taken.add(value.name)

    def _declared(self, value: _Value) -> str:
        """The variable that the value is when it is first computed, "" for none."""
        parent = value.first.node.parent
        declaration = parent.parent if parent is not None and parent.type == "init_declarator" else None
        if parent is None or declaration is None or len(declaration.children_by_field_name("declarator")) != 1:
            return ""
        name, type_ = field_of(parent, "declarator"), field_of(declaration, "type")
        plain = name is not None and name.type == "identifier" and self.source.of(type_) in {"float", "auto"}
        return self.source.of(name) if plain else ""

    def _write_first(self, edits: Edits, value: _Value) -> None:
        source, first, statement = self.source, value.first.node, statement_around(value.first.node)
        slot, declared, parent = value.slot(value.first), self._declared(value), statement.parent
        indent = source.indent(statement)
        if declared:
            edits.insert(statement.end_byte, f"\n{indent}{slot} = {declared};")
            return
        if parent is None:
            raise Unsupported("a value outside of a statement")
        edits.replace(first, slot)
        line = f"{slot} = {source.of(first)};"
        if parent.type == "compound_statement":
            edits.insert(statement.start_byte, f"{line}\n{indent}")
            return
        outer, inner = source.indent(parent), source.indent(parent) + source.unit(parent)
        edits.insert(statement.start_byte, f"{{\n{inner}{line}\n{inner}")
        edits.insert(statement.end_byte, f"\n{outer}}}")

    def _freed(self) -> dict[str, list[Node]]:
        """Rows that nobody wants any more where the values are kept, with what holds them in registers nonetheless."""
        freed: dict[str, list[Node]] = {}
        rows = {name: row for name, row in self.passes.variables.items() if self._is_row(row)}
        for name, row in rows.items():
            made = [one.first.loop.node.end_byte for one in self.values if name in map(root_of, one.first.reads)]
            if not made:
                continue
            behind = max(made)
            uses = [use for use in self.code.uses(row, self.kernel.body) if use.start_byte > behind]
            if all(self._is_spent(use) for use in uses):
                freed[row.name] = [hold for use in uses if self._is_hold(hold := statement_around(use))]
        return freed

    def _is_row(self, found: Definition) -> bool:
        here = found.declarator
        while here is not None and (inner := field_of(here, "declarator")) is not None:
            if inner.type == "identifier":
                return self.source.of(here, "size") == self.passes.items
            here = inner
        return False

    def _is_hold(self, statement: Node) -> bool:
        call = statement.named_children[0] if statement.named_children else statement
        return statement.type == "expression_statement" and called(self.source, call) == "hold_packed"

    def _is_spent(self, use: Node) -> bool:
        """Whether a name only stands where a value that is kept is computed again, in the end."""
        if any(inside(use, again.node) for value in self.values for again in value.again):
            return True
        statement = statement_around(use)
        if statement.type != "declaration":
            return self._is_hold(statement)
        declarators = statement.children_by_field_name("declarator")
        name = declared_name(declarators[0]) if len(declarators) == 1 else None
        if name is None:
            return False
        found = self.code.uses(
            Definition(self.source.of(name), "local", statement, declarators[0], None), self.kernel.body
        )
        return bool(found) and all(self._is_spent(n) for n in found)


def _stands_alone(node: Node) -> bool:
    """Whether `a ? b : c` may take its place as it is."""
    parent = node.parent
    if parent is not None and parent.type == "assignment_expression":
        return same(field_of(parent, "right"), node)
    return parent is not None and parent.type in {"argument_list", "parenthesized_expression", "init_declarator"}
