"""The last step of a block's reduction is done by every warp for itself, instead of by one that tells the others.

    if (warp == 0) {                                          value = lane < warps ? slots[lane] : 0.0f;
      value = lane < warps ? slots[lane] : 0.0f;      ->      // the same shuffles
      ... shuffles ...                                        return value;
      if (lane == 0) slots[0] = value;
    }
    __syncthreads();
    return slots[0];

Saves a barrier and a round trip through shared memory, which a short row waits for. Applies where the shuffles are
`__shfl_xor_sync`, after which every lane has the result.
"""

from __future__ import annotations

from tree_sitter import Node

from nodes.rewrites import Facts
from nodes.rewrites._row_blocks import remove_line
from nodes.rewrites.device_code import Code, code_of, declared_name, inside, statements
from nodes.rewrites.source import Edits, Source, Unsupported
from nodes.roles import Bound

LANGUAGES = frozenset({"cuda"})
HELPS: frozenset[Bound] = frozenset({"latency", "memory"})
EXPECTED = "one barrier a reduction instead of two, 0.1 us of a row that is over in two"
SPEEDUP = 1.02
ORDER = 22
BARRIER = "__syncthreads();"
LANES = {"%": 32, "&": 31}


def rewrite(source: Source, facts: Facts) -> str | None:
    code, edits = code_of(source), Edits(source)
    try:
        for function in source.walk(None, "function_definition"):
            if any(child.type == "__device__" for child in function.children) and not function.has_error:
                _rewrite_function(edits, code, function)
        return edits.apply() if edits.changes else None
    except Unsupported:
        return None


def _rewrite_function(edits: Edits, code: Code, function: Node) -> None:
    source, text = code.source, code.source.of
    body = function.child_by_field_name("body")
    last = statements(body)[-5:] if body is not None else []
    if len(last) < 4 or [text(last[-2]), text(last[-4])] != [BARRIER, BARRIER] or last[-1].type != "return_statement":
        return
    step, final = last[-3], last[-1]
    slots = _first_slot(source, final.named_children[0] if final.named_children else None)
    condition, consequence = step.child_by_field_name("condition"), step.child_by_field_name("consequence")
    if slots is None or step.type != "if_statement" or step.child_by_field_name("alternative") is not None:
        return
    if condition is None or consequence is None or consequence.type != "compound_statement":
        return
    inner = statements(consequence)
    value = _stored(source, inner[-1], slots) if len(inner) > 1 else None
    if value is None or not _is_local(code, value):
        return
    kept = inner[:-1]
    warp = {text(n) for n in source.walk(condition, "identifier")} | {"threadIdx"}
    if any(text(n) in warp for node in kept for n in source.walk(node, "identifier")):
        return  # what it does depends on the warp
    if not (
        _shuffles_all_lanes(code, kept) and _lanes_are_of_the_warp(code, kept) and _stays_here(code, function, slots)
    ):
        return
    remove_line(edits, source, last[-2])
    edits.changes.append((step.start_byte, step.end_byte, _dedented(source, step, consequence, kept[-1])))
    edits.replace(final, f"return {text(value)};")


def _first_slot(source: Source, node: Node | None) -> str | None:
    """`slots` of `slots[0]`."""
    if node is None or node.type != "subscript_expression":
        return None
    base, index = node.child_by_field_name("argument"), node.child_by_field_name("indices")
    index = index.named_children[0] if index is not None and len(index.named_children) == 1 else None
    if base is None or base.type != "identifier" or index is None or source.of(index) != "0":
        return None
    return source.of(base)


def _stored(source: Source, statement: Node, slots: str) -> Node | None:
    """The variable of `if (...) slots[0] = value;`."""
    if statement.type != "if_statement" or statement.child_by_field_name("alternative") is not None:
        return None
    consequence = statement.child_by_field_name("consequence")
    inner = statements(consequence) if consequence is not None else []
    if len(inner) != 1 or inner[0].type != "expression_statement":
        return None
    assignment = inner[0].named_children[0]
    left, right = assignment.child_by_field_name("left"), assignment.child_by_field_name("right")
    if assignment.type != "assignment_expression" or left is None or right is None or right.type != "identifier":
        return None
    return right if _first_slot(source, left) == slots and source.of(assignment.children[1]) == "=" else None


def _is_local(code: Code, name: Node) -> bool:
    definition = code.definition(name)
    return (
        definition is not None
        and definition.kind in {"parameter", "local"}
        and "&" not in code.source.of(definition.declaration)
    )


def _shuffles_all_lanes(code: Code, nodes: list[Node], depth: int = 0) -> bool:
    """Whether there are shuffles, here or in what is called, and each leaves its result in every lane."""
    found = False
    for node in nodes:
        for call in code.source.walk(node, "call_expression"):
            name = code.source.of(call.child_by_field_name("function")).split("<")[0]
            if "__shfl" in name:
                if name != "__shfl_xor_sync":
                    return False
                found = True
            elif name in code.functions and depth < 3:
                body = code.functions[name].child_by_field_name("body")
                if body is not None and "__shfl" in code.source.of(body):
                    if len(code.overloads[name]) > 1 or not _shuffles_all_lanes(code, [body], depth + 1):
                        return False
                    found = True
    return found


def _lanes_are_of_the_warp(code: Code, nodes: list[Node]) -> bool:
    """Whether no name in these statements tells one warp from another: what is computed from threadIdx is its lane."""
    for node in nodes:
        for name in code.source.walk(node, "identifier"):
            definition = code.definition(name)
            if definition is None or definition.value is None or inside(definition.declaration, node):
                continue
            if "threadIdx" in code.source.of(definition.value) and not _is_lane(code, definition.value):
                return False
    return True


def _is_lane(code: Code, value: Node) -> bool:
    """`threadIdx.x % 32` or `threadIdx.x & 31`."""
    if value.type != "binary_expression":
        return False
    left, right = value.child_by_field_name("left"), value.child_by_field_name("right")
    wanted = LANES.get(code.source.of(value.children[1]))
    if left is None or right is None or code.source.of(left) != "threadIdx.x" or wanted is None:
        return False
    definition = code.definition(right) if right.type == "identifier" else None
    if (
        definition is not None
        and definition.value is not None
        and "constexpr" in code.source.of(definition.declaration)
    ):
        right = definition.value
    return right.type == "number_literal" and int(code.source.of(right).rstrip("uUlL"), 0) == wanted


def _stays_here(code: Code, function: Node, slots: str) -> bool:
    """Whether nobody else looks at the slots: they are declared here, or what callers hand in is used for that alone."""
    declarator = function.child_by_field_name("declarator")
    name = declared_name(declarator) if declarator is not None else None
    listed = declarator.child_by_field_name("parameters") if declarator is not None else None
    if name is None or listed is None or len(code.overloads.get(code.source.of(name), [])) != 1:
        return False
    names = [declared_name(p.child_by_field_name("declarator") or p) for p in listed.named_children]
    places = [n for n, parameter in enumerate(names) if parameter is not None and code.source.of(parameter) == slots]
    if not places:
        return any(
            code.source.of(declared) == slots
            for node in code.source.walk(function, "declaration")
            if "__shared__" in code.source.of(node)
            for d in node.children_by_field_name("declarator")
            if (declared := declared_name(d)) is not None
        )
    for call in code.source.walk(None, "call_expression"):
        if code.source.of(call.child_by_field_name("function")).split("<")[0] != code.source.of(name):
            continue
        arguments = call.child_by_field_name("arguments")
        handed = arguments.named_children[places[0]] if arguments is not None else None
        if handed is None or handed.type != "identifier" or not _is_scratch(code, call, code.source.of(handed)):
            return False
    return True


def _is_scratch(code: Code, call: Node, name: str) -> bool:
    """Whether the function around the call does nothing else with that array than to hand it on, or begin behind it."""
    around: Node | None = call
    while around is not None and around.type != "function_definition":
        around = around.parent
    if around is None:
        return False
    for use in code.source.walk(around, "identifier"):
        parent = use.parent
        if code.source.of(use) != name or parent is None:
            continue
        declared = parent.type in {"pointer_declarator", "array_declarator", "init_declarator"}
        if not declared and parent.type not in {"argument_list", "binary_expression"}:
            return False
    return True


def _dedented(source: Source, step: Node, block: Node, last: Node) -> str:
    """The statements of a block up to the last of them, as they stand, one level to the left."""
    start = source.data.find(b"\n", block.start_byte) + 1
    lines = source.data[start : last.end_byte].decode().split("\n")
    deeper = len(source.indent(last)) - len(source.indent(step))
    moved = [line[deeper:] if line[:deeper].isspace() else line for line in lines]
    return "\n".join(moved).lstrip(" ")
