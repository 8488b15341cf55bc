"""What a reduction of somebody else's comes to, and ours in its place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from tree_sitter import Node

from nodes.rewrites.analysis.block_arithmetic import Part
from nodes.rewrites.analysis.block_values import WARP, Block
from nodes.rewrites.analysis.device_code import Code, inside
from nodes.rewrites.analysis.insertions import drop_unused
from nodes.rewrites.analysis.kernels import Kernel
from nodes.rewrites.analysis.launches import Launch
from nodes.rewrites.reductions.uses import check_readers, is_leaders, own_name
from nodes.rewrites.reductions.warp_reductions import ORDERED
from nodes.rewrites.syntax.match import match
from nodes.rewrites.syntax.source import Edits, Source, Unsupported
from nodes.rewrites.syntax.tree import LOOPS, declared_name, enclosing, field_of, same, upward

Widths = list[tuple[Launch, list[int]]]
"""How many threads a block may have, by launch: one number where it is known."""


@dataclass(frozen=True)
class Step:
    text: str
    unused: set[str]
    """Names that may have lost their last use: functions, slots, what tells lanes from warps."""


@dataclass
class Result:
    """What a reduction came to, for every width alike."""

    kind: str
    everywhere: bool
    """Whether every thread has it, and not the first alone."""
    bound: str
    used: set[int]
    waits: bool = True
    """Whether warps met; a block of one warp needs none of what blocks of more do."""


def joined(results: list[Result]) -> Result:
    (kind, *kinds) = sorted({r.kind for r in results if r.kind})
    bounds = sorted({r.bound for r in results if r.bound})
    if kinds or len(bounds) > 1 or (bounds and kind == "sum"):
        raise Unsupported("widths that differ")
    if not any(r.waits for r in results):
        raise Unsupported("no reduction over the block")
    used = set().union(*(r.used for r in results))
    return Result(kind, all(r.everywhere for r in results), bounds[0] if bounds else "", used)


def judged(block: Block, value: object) -> Result:
    """Raises Unsupported where the value is no reduction over the block."""
    if not block.kind or not (block.barriers or block.width == WARP):
        raise Unsupported("no reduction over the block")
    of_threads = value if isinstance(value, list) else [value] * block.width
    first = of_threads[0]
    if not isinstance(first, Part) or first.threads != block.full:
        raise Unsupported("not every thread's value")
    everywhere = all(isinstance(p, Part) and p == first for p in of_threads)
    bound = block.bounds.get(first.bound, "") if first.bound is not None else ""
    if first.bound is not None and not bound:
        raise Unsupported("a bound without a name")
    return Result(block.kind, everywhere, bound, set(block.used), block.barriers > 0)


def reduction_text(result: Result, site: int, value: str, element: str) -> str:
    """Our call. Raises Unsupported where it does not know the type."""
    if result.kind != "sum" and element not in ORDERED:
        raise Unsupported(f"an extreme of {element}, which max() and min() may not know")
    call = f"block_{result.kind}<{site}>({value})"
    if not result.bound:
        return call
    if element != "float":
        raise Unsupported("an extreme with a bound")
    return f"f{result.kind}f({call}, {result.bound})"  # of a row that has nothing above it


def declared_type(code: Code, node: Node) -> str:
    found = code.variable(node)
    if found is None or found.declaration.type not in {"declaration", "parameter_declaration"}:
        return ""
    return code.source.of(found.declaration, "type")


def statement_of(node: Node) -> Node:
    """The statement that a node is in. Raises Unsupported where that is a part of another one."""
    for here in upward(node):
        if here.parent is None or here.parent.type == "compound_statement":
            return here
        if here.parent.type in LOOPS | {"if_statement", "conditional_expression", "lambda_expression"}:
            break
    raise Unsupported("a reduction that is no statement of its own")


def put_reduction(
    edits: Edits, code: Code, kernel: Kernel, call: Node, argument: Node, reduction: str, element: str, everywhere: bool
) -> None:
    """Our call in place of theirs. A result in the middle of an expression gets a name, and so does one that replaces its
    own argument where nothing else is assigned to that any more. What reads a result that only the first thread had must
    ask for that thread: raises Unsupported where it does not."""
    source, statement = code.source, statement_of(call)
    form = match(source, statement, "$target = $call;", "$T $target = $call;", "const $T $target = $call;")
    target = form["target"] if form is not None and same(form["call"], call) else None
    if target is None or target.type != "identifier":
        if not everywhere:
            raise Unsupported("a result of the first thread's that is not a variable")
        changes = list(source.walk(statement, "assignment_expression", "update_expression"))
        if len(changes) > 1 or any(c.type == "update_expression" for c in changes):
            raise Unsupported("a statement that changes several things")
        name = code.fresh(f"{source.of(argument) if argument.type == 'identifier' else 'result'}_of_block")
        edits.in_front(statement, f"const {element} {name} = {reduction};")
        edits.replace(call, name)
        return
    found = code.declared(statement)[0] if statement.type == "declaration" else code.definition(target)
    if found is None:
        raise Unsupported("a result of unknown origin")
    if not everywhere:
        check_readers(code, kernel, found, statement, is_leaders)
    new = None
    if statement.type != "declaration":
        new = own_name(edits, code, kernel, found, statement, statement)
    if new is None:
        edits.replace(call, reduction)
    else:
        edits.replace(statement, f"const {element} {new} = {reduction};")


def tidied(before: Source, text: str, names: set[str]) -> str:
    """Without the functions, types and variables of these names that nothing uses any more."""
    for _ in range(128):
        source = before.reparsed(text)
        edits = Edits(source)
        node = next((n for n in _leftovers(source, names)), None)
        if node is None:
            break
        edits.remove(node, comment=True, blank=node.type in {"function_definition", "template_declaration"})
        text = edits.apply()
    return drop_unused(before, text, set(names))


def _leftovers(source: Source, names: set[str]) -> Iterator[Node]:
    """Definitions of functions and types, and what is declared in shared memory of such types, that nothing mentions."""
    words = ("identifier", "type_identifier", "namespace_identifier")
    said = Counter(source.of(node) for node in source.walk(None, *words))
    for node in source.walk(None, "function_definition"):
        name, spaces = declared_name(field_of(node, "declarator")), {c.type for c in node.children}
        device = "__device__" in spaces and "__global__" not in spaces
        if name is not None and device and source.of(name) in names and said[source.of(name)] == 1:
            outer = node.parent
            yield outer if outer is not None and outer.type == "template_declaration" else node
    for node in source.walk(None, "declaration", "alias_declaration", "type_definition"):
        around = enclosing(node, "function_definition")
        name = field_of(node, "name") or declared_name(field_of(node, "declarator"))
        if node.type == "declaration":
            alone = len(node.children_by_field_name("declarator")) == 1
            shared = source.says(node, "__shared__") and not source.says(node, "extern")
            slots = match(source, node, "$T* $pointer = $memory;", "$T* $pointer = &$memory[$at];") is not None
            slots = slots and not source.has(node, "call_expression")
            name = name if alone and (shared or slots) else None
        if around is None or name is None or source.of(name) not in names:
            continue
        if not any(source.of(n) == source.of(name) and not inside(n, node) for n in source.walk(around, *words)):
            yield node
