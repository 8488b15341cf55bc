"""Loops that walk with pointers become loops that count, and what walked is indexed by the counter.

    while (n--) { *y++ = f(*x++); }                       for (i = 0; i < n; ++i) { y[i] = f(x[i]); }
    for (; x != end; ++x, ++y) { *y = f(*x); }            for (i = 0; i < count; ++i) { y[i] = f(x[i]); }
    for (r ...) { ...; x += n; ...; x += pad; }           for (r ...) { ... x[r * n + r * pad + c] ... }

A pointer that an iteration takes over from the one before hides which elements it touches, from other steps as from the
compiler. Changes nothing by itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from tree_sitter import Node

from nodes.rewrites.analysis.host_loops import Loop, canonical, counts_from_zero, has_pragma, is_integer
from nodes.rewrites.analysis.host_source import (
    assignments,
    changed_names,
    declared_names,
    enclosing_function,
    escapes,
    fields,
    identifiers,
    name_of,
    operator,
    pragma_node,
)
from nodes.rewrites.registry import rule
from nodes.rewrites.syntax.insert import free
from nodes.rewrites.syntax.source import Edits, Source, Unsupported, inside

_LOOPS = frozenset({"for_statement", "while_statement", "do_statement", "for_range_loop"})
_LONG = frozenset({"int64_t", "uint64_t", "size_t", "ssize_t", "ptrdiff_t", "long"})
"""Counters that a product with does not overflow."""


@dataclass(frozen=True)
class _Variable:
    """The one declaration of a name in a function."""

    kind: str
    pointer: bool
    scope: Node
    """The block that it lives in; the function for a parameter."""


@rule(
    "cpu",
    expected="nothing by itself: later steps see which elements an iteration touches",
    normalizes=True,
    after=("narrow_scopes",),
)
def rewrite(source: Source, facts: object) -> str | None:
    """One change of each function at a time, innermost loops first: what an inner one walked, the outer one steps over."""
    text = source.text
    for _ in range(256):
        current = Source(text, source.language)
        edits, done = Edits(current), set[int]()
        nodes = current.walk(None, "for_statement", "while_statement")
        for node in sorted(nodes, key=lambda node: -node.start_byte):
            function = enclosing_function(node)
            if function is not None and function.start_byte not in done and (changes := _step(current, node)):
                edits.changes.extend(changes)
                done.add(function.start_byte)
        if not done:
            break
        text = edits.apply()
    return text if text != source.text else None


def _step(source: Source, node: Node) -> list[tuple[int, int, str]]:
    for form in (_separate, _counted_down, _to_an_end, _indexed):
        edits = Edits(source)
        try:
            if not node.has_error and form(source, node, edits):
                edits.apply()  # raises where two of them overlap
                return edits.changes
        except Unsupported:
            continue
    return []


def _separate(source: Source, node: Node, edits: Edits) -> bool:
    """`++x, ++y;` in a loop's body as two statements."""
    body = node.child_by_field_name("body")
    for statement in body.named_children if body.type == "compound_statement" else ():
        if statement.type == "expression_statement" and statement.named_children:
            parts = _parts(statement.named_children[0])
            if len(parts) > 1:
                edits.write(statement, [f"{source.of(part)};" for part in parts])
    return bool(edits.changes)


# --- loops that do not count upwards -------------------------------------------------------------------------------


def _counted_down(source: Source, node: Node, edits: Edits) -> bool:
    """`while (n--)`, `while (n-- > 0)` and `for (; n--; ++p)`."""
    body, condition = _uncounted(node)
    if condition is not None and condition.type == "binary_expression":
        left, right = fields(condition, "left", "right")
        condition = left if operator(source, condition) in {">", "!="} and source.of(right) == "0" else None
    if condition is None or condition.type != "update_expression":
        return False
    name, others = source.of(condition, "argument"), _parts(node.child_by_field_name("update"))
    variable = _variable(source, node, name)
    if (
        source.of(condition) != f"{name}--"
        or variable is None
        or variable.pointer
        or not is_integer(source, variable.kind)
    ):
        return False
    if (others and _leaves(source, body)) or name in identifiers(source, body) or variable.kind == "auto":
        return False
    if any(name in identifiers(source, each) for each in others) or not _dead_after(source, node, name, variable):
        return False
    counter = _counter(source, node)
    kind = variable.kind if variable.kind in _LONG else "int64_t"
    header = f"for ({kind} {counter} = 0; {counter} < {name}; ++{counter}) "
    edits.changes.append((node.start_byte, body.start_byte, header))
    _append(source, body, [f"{source.of(each)};" for each in others], edits)
    return True


def _to_an_end(source: Source, node: Node, edits: Edits) -> bool:
    """`for (; p != end; ++p)` and `while (p < end) { ...; ++p; }` over a pointer."""
    body, condition = _uncounted(node)
    if condition is None or condition.type != "binary_expression" or operator(source, condition) not in {"<", "!="}:
        return False
    left, end = fields(condition, "left", "right")
    name, updates = source.of(left), _parts(node.child_by_field_name("update"))
    variable = _variable(source, node, name)
    if variable is None or not variable.pointer or pragma_node(source, node) is not None or _leaves(source, body):
        return False
    changed = changed_names(source, node) | declared_names(source, body)
    if identifiers(source, end) & changed or any(source.walk(end, "call_expression", "update_expression")):
        return False
    steps = [where for target, where in assignments(source, node) if target == name]
    if len(steps) != 1 or _amount(source, steps[0], name) != "1":
        return False
    if not any(inside(steps[0], update) for update in updates) and _statement_in(steps[0], body) is None:
        return False
    counter, count = _counter(source, node), free("count", _taken(source, node))
    header = f"const int64_t {count} = {_operand(source, end)} - {name};\n{source.indent(node)}"
    header += f"for (int64_t {counter} = 0; {counter} < {count}; ++{counter}) "
    edits.changes.append((node.start_byte, body.start_byte, header))
    _append(source, body, [f"{source.of(update)};" for update in updates], edits)
    return True


def _uncounted(node: Node) -> tuple[Node | None, Node | None]:
    """(body, condition) of a loop in braces that starts nothing of its own."""
    body, condition = fields(node, "body", "condition")
    if (
        None in (body, condition)
        or body.type != "compound_statement"
        or node.child_by_field_name("initializer") is not None
    ):
        return None, None
    return body, condition.child_by_field_name("value") or condition


# --- what walks along with a counter -------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Update:
    node: Node
    """The update or assignment expression."""
    statement: Node
    """The statement of the loop's body that holds it."""
    amount: str
    stands_alone: bool
    before: bool
    """`++p`: its own value is the one after it."""


def _indexed(source: Source, node: Node, edits: Edits) -> bool:
    """One variable that every iteration moves on by the same is replaced by what it is in iteration i."""
    loop = canonical(source, node) if node.type == "for_statement" else None
    if loop is None or not counts_from_zero(source, loop) or loop.body.type != "compound_statement":
        return False
    if has_pragma(source, loop) or _leaves(source, loop.body):
        return False
    own = declared_names(source, loop.body) | {loop.variable}
    names = dict.fromkeys(target for target, _ in assignments(source, loop.body) if target not in own)
    return any(_walks(source, loop, name, edits) for name in names)


def _walks(source: Source, loop: Loop, name: str, edits: Edits) -> bool:
    variable = _variable(source, loop.node, name)
    if variable is None or not (variable.pointer or (is_integer(source, variable.kind) and variable.kind != "auto")):
        return False
    updates = [_update(source, loop, where, name) for target, where in assignments(source, loop.body) if target == name]
    uses = [n for n in source.walk(loop.body, "identifier") if source.of(n) == name]
    if None in updates or any(escapes(source, use) for use in uses):
        return False
    for update in updates:
        beside = [use for use in uses if inside(use, update.statement) and not inside(use, update.node)]
        if beside and not update.stands_alone:
            return False  # before or after it?
    changed = changed_names(source, loop.body) | declared_names(source, loop.body) | {loop.variable}
    if any(identifiers(source, u.node.child_by_field_name("right")) & changed - {name} for u in updates):
        return False
    wide = loop.variable if loop.kind.removeprefix("std::") in _LONG else f"static_cast<int64_t>({loop.variable})"
    place = " + ".join(loop.variable if u.amount == "1" else f"{wide} * {u.amount}" for u in _joined(updates))
    for use in uses:
        own = next((update for update in updates if inside(use, update.node)), None)
        if own is None or not own.stands_alone:
            passed = [u for u in updates if u is not own and u.node.end_byte <= use.start_byte]
            passed += [own] if own is not None and own.before else []
            extra = "".join(f" + {u.amount}" for u in _joined(passed))
            _index(source, own.node if own is not None else use, name, f"{place}{extra}", edits)
    for update in updates:
        if update.stands_alone:
            edits.remove(update.statement)
    if not _dead_after(source, loop.node, name, variable):
        if any(
            n.type not in {"identifier", "number_literal", "binary_expression", "*"} for n in source.walk(loop.bound)
        ):
            raise Unsupported("a bound that may be negative")
        count = _operand(source, loop.bound)
        moved = " + ".join(count if u.amount == "1" else f"{count} * {u.amount}" for u in _joined(updates))
        edits.insert(loop.node.end_byte, f"\n{source.indent(loop.node)}{name} += {moved};")
    return True


def _joined(updates: list[_Update]) -> list[_Update]:
    """Steps by numbers as one step by their sum."""
    if not updates or not all(update.amount.isdigit() for update in updates):
        return updates
    first = updates[0]
    total = str(sum(int(update.amount) for update in updates))
    return [_Update(first.node, first.statement, total, first.stands_alone, first.before)]


def _update(source: Source, loop: Loop, where: Node, name: str) -> _Update | None:
    amount, statement = _amount(source, where, name), _statement_in(where, loop.body)
    if amount is None or statement is None:
        return None
    alone = statement.type == "expression_statement" and statement.named_children[0] == where
    if not alone and where.type != "update_expression":
        return None
    return _Update(where, statement, amount, alone, source.of(where).startswith("++"))


def _amount(source: Source, node: Node, name: str) -> str | None:
    """What `p++` or `p += e` adds, as an operand; None for anything else."""
    if node.type == "update_expression":
        return "1" if "++" in source.of(node) else None
    if node.type != "assignment_expression" or operator(source, node) != "+=":
        return None
    right = node.child_by_field_name("right")
    kinds = {"identifier", "number_literal", "binary_expression", "parenthesized_expression", "*", "+", "(", ")"}
    plain = name not in identifiers(source, right) and {n.type for n in source.walk(right)} <= kinds
    return _operand(source, right) if plain else None


def _statement_in(node: Node, body: Node) -> Node | None:
    """The statement directly in `body` that evaluates `node` exactly once, whatever happens; None where none surely does."""
    here = node
    while here.parent is not None and here.parent != body:
        here = here.parent
        branches = {
            "conditional_expression",
            "lambda_expression",
            "if_statement",
            "switch_statement",
            "sizeof_expression",
        }
        if here.type in branches | _LOOPS:
            return None
        if here.type == "binary_expression" and here.child_by_field_name("operator").type in {"&&", "||"}:
            return None
    return here if here.parent == body and here.type in {"expression_statement", "declaration"} else None


def _index(source: Source, node: Node, base: str, place: str, edits: Edits) -> None:
    """`*p`, `p[k]` and `p` as elements of `base`, `place` further on."""
    parent = node.parent
    if parent.type == "pointer_expression" and operator(source, parent) == "*":
        edits.replace(parent, f"{base}[{place}]")
    elif parent.type == "subscript_expression" and parent.child_by_field_name("argument") == node:
        (index,) = parent.child_by_field_name("indices").named_children
        edits.replace(node, base)
        edits.replace(index, place if source.of(index) == "0" else f"{place} + {_operand(source, index)}")
    elif parent.type in {"subscript_argument_list", "argument_list", "init_declarator"}:
        edits.replace(node, f"{base} + {place}")
    else:
        edits.replace(node, f"({base} + {place})")


# --- names and places ----------------------------------------------------------------------------------------------


def _parts(node: Node | None) -> list[Node]:
    """What commas separate, in order."""
    if node is not None and node.type == "comma_expression":
        return [part for side in fields(node, "left", "right") for part in _parts(side)]
    return [node] if node is not None else []


def _leaves(source: Source, body: Node) -> bool:
    """Whether an iteration may end early."""
    for node in source.walk(body, "break_statement", "continue_statement", "return_statement", "goto_statement"):
        here = node.parent
        while here != body and here.type not in _LOOPS | {"switch_statement"}:
            here = here.parent
        if here == body or node.type in {"return_statement", "goto_statement"}:
            return True
    return False


def _variable(source: Source, node: Node, name: str) -> _Variable | None:
    """What a name is in the function around a node; None unless that is declared in one place and no reference."""
    function = enclosing_function(node)
    if function is None or any(source.walk(function, "lambda_expression", "goto_statement", "labeled_statement")):
        return None
    found = [
        (here, declarator)
        for here in source.walk(function, "declaration", "parameter_declaration")
        for declarator in here.children_by_field_name("declarator")
        if source.of(name_of(declarator)) == name
    ]
    if len(found) != 1:
        return None
    ((declaration, declarator),) = found
    if declarator.type == "init_declarator":
        declarator = declarator.child_by_field_name("declarator")
    scope = declaration.parent if declaration.type == "declaration" else function
    fixed = source.of(declaration).startswith(("static", "thread_local", "extern"))
    if declarator.type not in {"identifier", "pointer_declarator"} or fixed:
        return None
    if any(source.walk(declarator, "reference_declarator")) or scope.type not in {
        "compound_statement",
        "function_definition",
    }:
        return None
    return _Variable(source.of(declaration, "type"), declarator.type != "identifier", scope)


def _dead_after(source: Source, node: Node, name: str, variable: _Variable) -> bool:
    """Whether nothing reads the variable once the loop is over, also in a later round of a loop around it."""
    here = node.parent
    while here is not None and here != variable.scope:
        if here.type in _LOOPS:
            return False
        here = here.parent
    later = (n for n in source.walk(variable.scope, "identifier") if n.start_byte >= node.end_byte)
    return all(source.of(use) != name for use in later)


def _taken(source: Source, node: Node) -> set[str]:
    return identifiers(source, enclosing_function(node))


def _counter(source: Source, node: Node) -> str:
    taken = _taken(source, node)
    return next((name for name in ("i", "k", "at") if name not in taken), None) or free("i", taken)


def _operand(source: Source, node: Node) -> str:
    """The text of an expression, in parentheses where it is more than one word."""
    plain = node.type in {"identifier", "number_literal", "parenthesized_expression", "subscript_expression"}
    return source.of(node) if plain else f"({source.of(node)})"


def _append(source: Source, body: Node, lines: list[str], edits: Edits) -> None:
    indent, unit = source.indent(body), source.unit(body)
    text = "".join(f"{unit}{line}\n{indent}" for line in lines)
    one_line = body.start_point[0] == body.end_point[0]
    edits.insert(body.end_byte - 1, f"{' '.join(lines)} " if one_line and lines else text)
