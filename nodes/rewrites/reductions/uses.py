"""Who reads what a block's reduction leaves behind: its result in a variable, and its slots in shared memory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from tree_sitter import Node

from nodes.rewrites.analysis.block_shape import is_barrier, is_first_thread
from nodes.rewrites.analysis.device_code import Code, Definition, inside
from nodes.rewrites.analysis.kernels import Kernel
from nodes.rewrites.analysis.regions import THREAD
from nodes.rewrites.syntax.algebra import Polynomial
from nodes.rewrites.syntax.match import match
from nodes.rewrites.syntax.source import Edits, Source, Unsupported, operands
from nodes.rewrites.syntax.tree import (
    LOOPS,
    conditions_of,
    declared_name,
    enclosing,
    field_of,
    pragma_of,
    same,
    statements,
    upward,
)


def slots_of(code: Code, found: Definition) -> str:
    """The element of shared memory, or of a pointer into it, that a name stands for; "" where it does not."""
    declaration, declarator = found.declaration, found.declarator
    if declaration is None or declarator is None:
        return ""
    element = code.source.of(declaration, "type")
    if code.source.says(declaration, "__shared__"):
        return element if declarator.type in {"array_declarator", "identifier"} else ""
    if declarator.type != "init_declarator" or field_of(declarator, "declarator").type != "pointer_declarator":
        return ""
    for name in code.source.walk(found.value, "identifier"):
        inner = code.definition(name)
        if inner is not None and inner.kind == "local" and inner.where != found.where and slots_of(code, inner):
            return element
    return ""


def start_of(source: Source, first: Node) -> tuple[int, str]:
    """Where statements begin, the pragma of a loop that comes first included, and the indentation that goes with its line."""
    pragma = pragma_of(first)
    if pragma is None or "unroll" not in source.of(pragma):
        return first.start_byte, ""
    return source.line_start(pragma), source.indent(first)


def keep_apart(edits: Edits, code: Code, kernel: Kernel, statement: Node, last: Node | None = None) -> None:
    """In a loop the slots are written again: a barrier in each round keeps that from overtaking the round before."""
    around, end = enclosing(statement.parent, *LOOPS, until=kernel.body), (last or statement).end_byte
    if around is None:
        return
    others = (
        s for s in statements(field_of(around, "body")) if s.end_byte <= statement.start_byte or s.start_byte >= end
    )
    waits = any(is_barrier(code.source, s) for s in others)
    if not waits or code.source.has(around, "continue_statement"):  # which may skip the barrier
        start, lost = start_of(code.source, statement)
        edits.insert(start, f"{lost}__syncthreads();\n{'' if lost else code.source.indent(statement)}")


def outlives_a_round(kernel: Kernel, where: int, node: Node) -> bool:
    """Whether a variable, by where it is declared, is older than a round of some loop around the node."""
    rounds = (here for here in upward(node.parent, kernel.body) if here.type in LOOPS)
    return any(not here.start_byte <= where < here.end_byte for here in rounds)


def own_name(edits: Edits, code: Code, kernel: Kernel, found: Definition, first: Node, last: Node) -> str | None:
    """A new name for a variable behind the statements, put where it is read until it is set anew; None where it changes in
    another way, or is read where the new name is not in sight."""
    around = last.parent
    later = [use for use in code.uses(found, kernel.body) if use.start_byte >= last.end_byte]
    if outlives_a_round(kernel, found.where, first) or around is None or any(not inside(use, around) for use in later):
        return None
    end = set_anew(code, kernel, found.name, (s for s in statements(around) if s.start_byte >= last.end_byte))
    assigned = {n.start_byte for n in code.assigned(kernel.body)}
    reads = [use for use in later if use.start_byte < end]
    if any(use.start_byte in assigned for use in reads):
        return None
    new = code.fresh(f"{found.name}_of_block")
    for read in reads:
        edits.replace(read, new)
    return new


def check_readers(
    code: Code, kernel: Kernel, found: Definition, statement: Node, allowed: Callable[[Code, Node], bool]
) -> None:
    """Whoever reads the variable behind the statement may, until it is assigned to anew. Raises Unsupported where not."""
    if outlives_a_round(kernel, found.where, statement):
        raise Unsupported("a result that the next round may read")
    behind = [later for later in statements(statement.parent) if later.start_byte >= statement.end_byte]
    end = set_anew(code, kernel, found.name, behind)
    for use in code.uses(found, kernel.body):
        if statement.end_byte <= use.start_byte < end and not allowed(code, use):
            raise Unsupported("a result that others read")


def set_anew(code: Code, kernel: Kernel, name: str, behind: Iterable[Node]) -> int:
    """Where the first of the statements begins that gives a variable, or every thread's own slot of an array, a value that is
    made of something else; the kernel's end where none does."""
    source = code.source
    for statement in behind:
        form = match(source, statement, "$place[$at] = $value;", "$place = $value;")
        if form is None or source.of(form["place"]) != name:
            continue
        mine = "at" not in form or code.polynomial(form["at"]) == Polynomial.symbol(THREAD)
        if mine and not any(source.of(n) == name for n in source.walk(form["value"], "identifier")):
            return statement.start_byte
    return kernel.body.end_byte


def nobody(code: Code, node: Node) -> bool:
    return False


def is_leaders(code: Code, node: Node) -> bool:
    """Whether only the block's first thread gets there: behind `threadIdx.x == 0`, or `!threadIdx.x`, perhaps with more to it."""
    return any(
        is_first_thread(code, part)
        for condition in conditions_of(node)
        for part in operands(code.source, condition, "&&")
    )


def check_slots(
    code: Code, kernel: Kernel, names: set[str], written: list[tuple[int, int]], cells: Collection[str] = ()
) -> None:
    """Nothing else reads what a reduction leaves in its slots: in front of each read there is a write of the kernel's own by
    the same name, nearer than the reduction. `written`: where the reductions are; `cells`: what they leave there still."""
    source = code.source
    events = [(start, "") for start, _ in written]
    reads = []
    names, own = _with_bases(code, kernel, names)
    for name in source.walk(kernel.body, "identifier"):
        if source.of(name) not in names or any(a <= name.start_byte < b for a, b in [*written, *own]):
            continue
        found, parent = code.definition(name), name.parent
        if found is None or found.kind != "local" or not slots_of(code, found):
            continue
        if parent is None:
            raise Unsupported("slots of unknown use")
        place = name
        if parent.type == "subscript_expression" and same(field_of(parent, "argument"), name):
            place = parent
            address = place.parent
            made = address.parent if address is not None and source.of(address).startswith("&") else None
            if made is not None and made.type == "init_declarator":
                continue  # what lies behind them
        elif parent.type == "binary_expression" and source.of(parent, "operator") == "+":
            continue  # what lies behind them
        elif found.declarator is None or found.declarator.type != "identifier":
            raise Unsupported("slots that are handed on")
        if source.set_by(place) == "=":
            events.append((place.parent.end_byte, source.of(name)))
        else:
            reads.append((place, source.of(name)))
    events.sort()
    for read, pointer in reads:
        before = [theirs for at, theirs in events if at <= read.start_byte and theirs in {"", pointer}]
        if not before or not (before[-1] or source.of(read) in cells):
            raise Unsupported("slots that are read elsewhere")


def reads_of_cell(code: Code, kernel: Kernel, cell: str, last: Node) -> list[tuple[Node, bool]]:
    """The places behind a statement that may read what it leaves in shared memory, in an element or a variable, before something
    is written there by the same name; of each whether it reads that for certain, in sight of the statement."""
    source, name, found, end = code.source, cell.partition("[")[0], list[Node](), kernel.body.end_byte
    sharing, ends = _sharing(code, kernel, name), False
    for use in source.walk(kernel.body, "identifier"):
        if source.of(use) not in sharing or use.start_byte < last.end_byte:
            continue
        place = use.parent if use.parent is not None and use.parent.type == "subscript_expression" else use
        writes = source.set_by(place) == "="
        end = min(end, use.start_byte) if writes else end
        ends |= writes and source.of(use) == name and _whatever_comes(code, place, last)
        if source.of(use) == name and not ends:
            found.append(place)

    def plain(place: Node) -> bool:
        rounds = (here for here in upward(place, last.parent) if here.type in LOOPS)
        alone = source.set_by(place) == "" and place.parent.type != "pointer_expression"
        seen = inside(place, last.parent) and all(here.end_byte <= end for here in (place, *rounds))
        return source.of(place) == cell and alone and seen

    return [(place, plain(place)) for place in found]


def _whatever_comes(code: Code, place: Node, last: Node) -> bool:
    """Whether what is behind the statement `last` is done whatever the data: conditions between them are about which thread it is."""
    between = [condition for condition in conditions_of(place) if condition not in conditions_of(last)]
    return all(_of_threads(code, part) for condition in between for part in operands(code.source, condition, "&&"))


def _of_threads(code: Code, node: Node | None, depth: int = 0) -> bool:
    source, names = code.source, code.source.walk(node, "identifier") if node is not None and depth < 8 else ()
    values = ((source.of(name), code.definition(name)) for name in names)
    return any(n == "threadIdx" or (d is not None and _of_threads(code, d.value, depth + 1)) for n, d in values)


def _sharing(code: Code, kernel: Kernel, name: str) -> set[str]:
    """The name and those of pointers into the same shared memory, wherever they point."""
    source, every, before = code.source, {name}, 0
    declared = [node for node in source.walk(kernel.body, "init_declarator")
                if field_of(node, "declarator").type != "identifier" or source.of(node.parent, "type") == "auto"]  # fmt: skip
    made = [(source.of(declared_name(node)), _slots_in(code, node)) for node in declared]
    while len(every) > before:
        before = len(every)
        for pointer, slots in made:
            if slots & every or pointer in every:
                every |= {pointer, *slots}
    return every


def _with_bases(code: Code, kernel: Kernel, names: set[str]) -> tuple[set[str], list[tuple[int, int]]]:
    """Also what the names point into, and other pointers to where that begins, and where they are made of each other."""
    source, every, own = code.source, set(names), []
    declared = [(name, node) for node in source.walk(kernel.body, "init_declarator") if (name := declared_name(node))]
    for name, node in declared:
        if source.of(name) in names and (bases := _slots_in(code, node)):
            every |= bases
            own.append((node.start_byte, node.end_byte))
    for name, node in declared:
        points = field_of(node, "declarator").type == "pointer_declarator"
        if points and source.of(node, "value") in every - {source.of(name)}:
            every.add(source.of(name))
            own.append((node.start_byte, node.end_byte))
    return every, own


def _slots_in(code: Code, node: Node) -> set[str]:
    """The slots that a declarator's value names."""
    inner = code.source.walk(field_of(node, "value"), "identifier")
    return {code.source.of(n) for n in inner if (f := code.definition(n)) is not None and slots_of(code, f)}
