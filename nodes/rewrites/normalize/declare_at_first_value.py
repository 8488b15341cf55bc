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
from nodes.rewrites.syntax.source import Edits, Source
from nodes.rewrites.syntax.tree import field_of, is_integer, same, statements


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
    source, text = code.source, code.source.of
    kind, around = text(field_of(declaration, "type")), declaration.parent
    declarators = declaration.children_by_field_name("declarator")
    if around is None or around.type != "compound_statement" or not is_integer(kind):
        return False
    if any(c.type in {"type_qualifier", "storage_class_specifier"} for c in declaration.children):
        return False
    if any(d.type != "identifier" for d in declarators):
        return False
    for declarator in declarators:
        uses = [n for n in source.walk(around, "identifier") if text(n) == text(declarator) and not same(n, declarator)]
        assignment = _first_set(code, around, uses)
        assigned = [t for t in code.assigned(around) if text(t) == text(declarator)]
        if assignment is None or len(assigned) != 1 or not _is_index(code, kernel, text(declarator)):
            continue
        edits.insert(assignment.start_byte, f"{kind} ")
        rest = [text(d) for d in declarators if not same(d, declarator)]
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


def _first_set(code: Code, around: Node, uses: list[Node]) -> Node | None:
    """The statement of the block that sets the variable, where it is the first to name it and names it once."""
    if not uses:
        return None
    (first, *_) = uses
    assignment = first.parent
    if assignment is None or assignment.type != "assignment_expression" or assignment.parent is None:
        return None
    statement = assignment.parent
    if not same(field_of(assignment, "left"), first) or not any(same(s, statement) for s in statements(around)):
        return None
    operator = code.source.of(assignment, "operator")
    inner = [n for n in uses if statement.start_byte <= n.start_byte < statement.end_byte]
    return statement if operator == "=" and len(inner) == 1 else None


def _is_index(code: Code, kernel: Kernel, name: str) -> bool:
    """Whether the variable is part of an element's place."""
    source = code.source
    places = list(source.walk(kernel.body, "subscript_argument_list"))
    places += [a for n in source.walk(kernel.body, "call_expression") if (a := field_of(n, "arguments")) is not None]
    return any(source.of(n) == name for place in places for n in source.walk(place, "identifier"))
