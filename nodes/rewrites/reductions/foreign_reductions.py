"""What a reduction of somebody else's comes to, and ours in its place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tree_sitter import Node

from nodes.rewrites.analysis.block_arithmetic import Part
from nodes.rewrites.analysis.block_values import WARP, Block
from nodes.rewrites.analysis.device_code import Code, inside
from nodes.rewrites.analysis.insertions import drop_unused
from nodes.rewrites.analysis.kernels import Kernel
from nodes.rewrites.reductions.uses import check_readers, declared_alone, is_leaders, own_name
from nodes.rewrites.syntax.source import Edits, Source, Unsupported
from nodes.rewrites.syntax.tree import LOOPS, declared_name, enclosing, field_of, same

ORDERED = frozenset({
    "float", "double", "int", "int32_t", "int64_t", "long", "long long", "unsigned", "unsigned int", "uint32_t", "uint64_t",
    "size_t",
})  # fmt: skip
"""Types that CUDA's own max() and min() take."""


@dataclass(frozen=True)
class Step:
    text: str
    kind: str
    unused: set[str]
    """Names that may have lost their last use: functions, slots, what tells lanes from warps."""


def placeholder(kind: str) -> str:
    """A name of its own until theirs is gone: it may be called block_sum too."""
    return f"settled_block_{kind}"


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
    if result.kind != "sum" and element not in ORDERED:
        raise Unsupported(f"an extreme of {element}, which max() and min() may not know")
    call = f"{placeholder(result.kind)}<{site}>({value})"
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
    here = node
    while here.parent is not None and here.parent.type != "compound_statement":
        if here.parent.type in LOOPS | {"if_statement", "conditional_expression", "lambda_expression"}:
            raise Unsupported("a reduction that is no statement of its own")
        here = here.parent
    return here


def put_reduction(
    edits: Edits, code: Code, kernel: Kernel, call: Node, argument: Node, reduction: str, element: str, everywhere: bool
) -> None:
    """Our call in place of theirs. A result in the middle of an expression gets a name, and so does one that replaces its
    own argument where nothing else is assigned to that any more. What reads a result that only the first thread had must
    ask for that thread: raises Unsupported where it does not."""
    source, statement = code.source, statement_of(call)
    target = None
    if statement.type == "expression_statement":
        assignment = statement.named_children[0]
        whole = assignment.type == "assignment_expression" and same(field_of(assignment, "right"), call)
        if whole and source.of(assignment, "operator") == "=":
            target = field_of(assignment, "left")
    elif statement.type == "declaration":
        declarators = statement.children_by_field_name("declarator")
        if len(declarators) == 1 and same(field_of(declarators[0], "value"), call):
            target = field_of(declarators[0], "declarator")
    if target is None or target.type != "identifier":
        if not everywhere:
            raise Unsupported("a result of the first thread's that is not a variable")
        changes = list(source.walk(statement, "assignment_expression", "update_expression"))
        if len(changes) > 1 or any(c.type == "update_expression" for c in changes):
            raise Unsupported("a statement that changes several things")
        name = code.fresh(f"{source.of(argument) if argument.type == 'identifier' else 'result'}_of_block")
        edits.insert(statement.start_byte, f"const {element} {name} = {reduction};\n{source.indent(statement)}")
        edits.replace(call, name)
        return
    found = declared_alone(code, statement) if statement.type == "declaration" else code.definition(target)
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
    words: dict[str, int] = {}
    for node in source.walk(None, "identifier", "type_identifier", "namespace_identifier"):
        words[source.of(node)] = words.get(source.of(node), 0) + 1
    for node in source.walk(None, "function_definition"):
        name = declared_name(field_of(node, "declarator"))
        device = any(c.type == "__device__" for c in node.children) and not any(
            c.type == "__global__" for c in node.children
        )
        if name is not None and device and source.of(name) in names and words[source.of(name)] == 1:
            outer = node.parent
            yield outer if outer is not None and outer.type == "template_declaration" else node
    for node in source.walk(None, "declaration", "alias_declaration", "type_definition"):
        declarators = node.children_by_field_name("declarator")
        shared = source.says(node, "__shared__")
        shared = shared and not any(source.of(c) == "extern" for c in source.walk(node))
        if node.type != "declaration":
            name = field_of(node, "name") or field_of(node, "declarator")
        else:
            name = declared_name(declarators[0]) if shared and len(declarators) == 1 else None
        if name is None or source.of(name) not in names:
            continue
        around = enclosing(node, "function_definition")
        inner = (
            source.walk(around, "identifier", "type_identifier", "namespace_identifier") if around is not None else ()
        )
        if around is not None and not any(source.of(n) == source.of(name) and not inside(n, node) for n in inner):
            yield node
