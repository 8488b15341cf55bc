"""An index that is declared first and set once, later, is declared where it is set.

`int x_index, y_index; ... x_index = 2 * i;` becomes `int x_index = 2 * i;`, as fold_branches leaves such places behind, and
`const int row = blockIdx.y, i = blockIdx.x * blockDim.x + threadIdx.x;` a declaration for each. Changes nothing by itself, but
other steps follow only variables that keep their value, and know a thread's element by a declaration of its own.
"""

from __future__ import annotations

from collections.abc import Iterator

from tree_sitter import Node

from harness.records import Outcome
from nodes.rewrites.analysis.device_code import Code, one_by_one
from nodes.rewrites.analysis.kernels import Kernel
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.syntax.algebra import Symbol
from nodes.rewrites.syntax.match import match
from nodes.rewrites.syntax.source import Edits, Source, inside
from nodes.rewrites.syntax.tree import enclosing, field_of, is_integer, same, statements


@rule(
    "cuda",
    expected="nothing by itself: later steps can follow the index",
    normalizes=True,
    after=("fold_branches",),
    risks=(Outcome.INCORRECT,),
)
def rewrite(source: Source, facts: Facts) -> str | None:
    return one_by_one(source, _settle_or_part, _declarations, 32)


def _declarations(code: Code) -> Iterator[tuple[Kernel, Node]]:
    return ((kernel, node) for kernel in code.kernels for node in code.source.walk(kernel.body, "declaration"))


def _settle_or_part(edits: Edits, code: Code, kernel: Kernel, declaration: Node) -> bool:
    return _settle(edits, code, kernel, declaration) or _part(edits, code, kernel, declaration)


def _settle(edits: Edits, code: Code, kernel: Kernel, declaration: Node) -> bool:
    around, kind = declaration.parent, code.source.of(declaration, "type")
    declared = code.declared(declaration)
    plain = all(found.declarator.type == "identifier" for found in declared)
    qualified = any(c.type in {"type_qualifier", "storage_class_specifier"} for c in declaration.children)
    if around.type != "compound_statement" or not is_integer(kind) or qualified or not plain:
        return False
    for found in declared:
        uses = [n for n in code.uses(found, around) if not same(n, found.declarator)]
        set_by = _first_set(code, around, found.name, uses)
        indexes = any(enclosing(use, "subscript_argument_list", "argument_list") is not None for use in uses)
        if set_by is None or len(code.set_at(found, around)) != 1 or not indexes:
            continue
        edits.insert(set_by.start_byte, f"{kind} ")
        rest = [other.name for other in declared if other is not found]
        if rest:
            edits.replace(declaration, f"{kind} {', '.join(rest)};")
        else:
            edits.remove(declaration)
        return True
    return False


def _part(edits: Edits, code: Code, kernel: Kernel, declaration: Node) -> bool:
    """A declaration for each of several variables, of which one is the place of the thread in the grid."""
    source = code.source
    declarators, kind = declaration.children_by_field_name("declarator"), field_of(declaration, "type")
    values = [field_of(d, "value") for d in declarators]
    plain = all(d.type == "init_declarator" and field_of(d, "declarator").type == "identifier" for d in declarators)
    if len(declarators) < 2 or not plain or None in values or not is_integer(source.of(kind)):
        return False
    places = [code.polynomial(value) for value in values if value is not None]
    blocks = [Symbol(f"blockIdx.{axis}") for axis in "xyz"]
    if not any(p.depends_on(Symbol("threadIdx.x")) and any(p.depends_on(b) for b in blocks) for p in places):
        return False
    if not any(same(declaration, statement) for statement in statements(kernel.body)):
        return False
    head = source.data[declaration.start_byte : declarators[0].start_byte].decode()
    edits.write(declaration, [f"{head}{source.of(declarator)};" for declarator in declarators])
    return True


def _first_set(code: Code, around: Node, name: str, uses: list[Node]) -> Node | None:
    """The statement of the block that sets the variable, where it is the first to name it and names it once."""
    first = next((s for s in statements(around) if any(inside(use, s) for use in uses)), None)
    once = sum(inside(use, first) for use in uses) == 1 if first is not None else False
    return first if once and match(code.source, first, f"{name} = $value;") is not None else None
