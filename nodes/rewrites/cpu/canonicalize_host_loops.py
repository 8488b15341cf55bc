"""Loops that walk with pointers or running indices become loops that count, and what walked is indexed by the counter.

    while (n--) { *y++ = f(*x++); }                       for (i = 0; i < n; ++i) { y[i] = f(x[i]); }
    for (; n > 0; n--, ++x) { *y++ = f(*x); }              the same
    for (; x != end; ++x, ++y) { *y = f(*x); }            for (i = 0; i < count; ++i) { y[i] = f(x[i]); }
    for (const float* p = x; p < x + n; ++p) { s += *p; } for (i = 0; i < n; ++i) { s += x[i]; }
    for (float& v : row) { v *= s; }                      for (i = 0; i < row.size(); ++i) { row[i] *= s; }
    for (r ...) { ...; x += n; ...; x += pad; }           for (r ...) { ... x[r * n + r * pad + c] ... }

A pointer that an iteration takes over from the one before hides which elements it touches, from other steps as from the
compiler. Changes nothing by itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from tree_sitter import Node

from nodes.rewrites.analysis.host_loops import (
    INTEGERS,
    Loop,
    assignments,
    canonical,
    declared_names,
    enclosing_function,
    escapes,
    identifiers,
    pragma_node,
)
from nodes.rewrites.registry import rule
from nodes.rewrites.syntax.insert import remove
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
    node: Node


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
        nodes = current.walk(None, "for_statement", "while_statement", "for_range_loop")
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
    for form in (_separate, _counted_down, _copied, _to_an_end, _extra_updates, _declared_pointer, _range, _indexed):
        edits = Edits(source)
        try:
            if not node.has_error and form(source, node, edits) and edits.changes:
                edits.apply()  # raises where two of them overlap
                return edits.changes
        except Unsupported:
            continue
    return []


# --- loops that do not count upwards -------------------------------------------------------------------------------


def _separate(source: Source, node: Node, edits: Edits) -> bool:
    """`++x, ++y;` in a loop's body as two statements."""
    for statement in _body(node).named_children if _body(node) is not None else ():
        if statement.type == "expression_statement" and statement.named_children:
            parts = _parts(statement.named_children[0])
            if len(parts) > 1:
                edits.replace(statement, f"\n{source.indent(statement)}".join(f"{source.of(part)};" for part in parts))
    return True


def _counted_down(source: Source, node: Node, edits: Edits) -> bool:
    """`while (n--)`, `while (n-- > 0)`, `while (n > 0) { ...; --n; }`, and `for` without a counter of its own."""
    body, condition = _body(node), node.child_by_field_name("condition")
    if node.type == "for_range_loop" or body is None or condition is None:
        return False
    if node.child_by_field_name("initializer") is not None:
        return False
    condition = condition.child_by_field_name("value") or condition
    compared = condition
    if condition.type == "binary_expression":
        if source.of(condition.child_by_field_name("operator")) not in {">", "!="}:
            return False
        if source.of(condition.child_by_field_name("right")) != "0":
            return False
        compared = condition.child_by_field_name("left")
    update: Node | None = None
    name, others = source.of(compared), _updates_of_header(node)
    if compared.type == "update_expression":
        name = source.of(compared.child_by_field_name("argument"))
        if source.of(compared) != f"{name}--":
            return False
    elif compared.type == "identifier":
        update = next((each for each in others if _is_decrement(source, each, name)), None)
        others = [each for each in others if each != update]
        if update is None:
            statements = (child for child in body.named_children if child.type == "expression_statement")
            inner = (child for child in statements if child.named_children)
            update = next((each for each in inner if _is_decrement(source, each.named_children[0], name)), None)
        if update is None or (inside(update, body) and _leaves(source, body)):
            return False
    else:
        return False
    if (others and _leaves(source, body)) or any(name in identifiers(source, each) for each in others):
        return False
    mentions = [n for n in source.walk(body, "identifier") if source.of(n) == name]
    if any(update is None or not inside(mention, update) for mention in mentions):
        return False
    variable = _variable(source, node, name)
    if (
        variable is None
        or variable.pointer
        or not _is_integer(variable.kind)
        or not _dead_after(source, node, name, variable)
    ):
        return False
    counter = _free(source, node, ("i", "k", "at"))
    kind = variable.kind if variable.kind in _LONG else "int64_t"
    edits.changes.append(
        (node.start_byte, body.start_byte, f"for ({kind} {counter} = 0; {counter} < {name}; ++{counter}) ")
    )
    if update is not None and inside(update, body):
        remove(source, update, edits)
    _append(source, body, [f"{source.of(each)};" for each in others], edits)
    return True


def _copied(source: Source, node: Node, edits: Edits) -> bool:
    """`int left = width;` that never changes, nor does `width`, is `width`: how far a loop walks is then one name."""
    for statement in node.parent.named_children if node.parent is not None else ():
        declarator = statement.child_by_field_name("declarator") if statement.type == "declaration" else None
        if declarator is None or declarator.type != "init_declarator" or statement.has_error:
            continue
        name, value = declarator.child_by_field_name("declarator"), declarator.child_by_field_name("value")
        if {name.type, value.type} != {"identifier"} or len(statement.children_by_field_name("declarator")) != 1:
            continue
        variables = [_variable(source, node, source.of(each)) for each in (name, value)]
        if None in variables or any(v.pointer or not _is_integer(v.kind) for v in variables):
            continue
        function = enclosing_function(node)
        changed = {target for target, _ in assignments(source, function)}
        uses = [n for n in source.walk(function, "identifier") if source.of(n) == source.of(name) and n != name]
        if variables[0].kind != variables[1].kind or changed & {source.of(name), source.of(value)}:
            continue
        if any(escapes(source, use) for use in uses) or any(source.walk(function, "preproc_call")):
            continue
        original = [n for n in source.walk(function, "identifier") if source.of(n) == source.of(value)]
        if any(escapes(source, use) for use in original):
            continue
        for use in uses:
            edits.replace(use, source.of(value))
        remove(source, statement, edits)
        return True
    return False


def _is_decrement(source: Source, node: Node, name: str) -> bool:
    text = source.of(node).replace(" ", "")
    return text in {f"--{name}", f"{name}--", f"{name}-=1", f"{name}={name}-1"}


def _to_an_end(source: Source, node: Node, edits: Edits) -> bool:
    """`for (; p != end; ++p)` and `while (p < end) { ...; ++p; }` over a pointer."""
    body, condition = _body(node), node.child_by_field_name("condition")
    if node.type == "for_range_loop" or body is None or condition is None:
        return False
    condition = condition.child_by_field_name("value") or condition
    if condition.type != "binary_expression" or node.child_by_field_name("initializer") is not None:
        return False
    left, end = condition.child_by_field_name("left"), condition.child_by_field_name("right")
    if left.type != "identifier" or source.of(condition.child_by_field_name("operator")) not in {"<", "!="}:
        return False
    name = source.of(left)
    variable = _variable(source, node, name)
    if variable is None or not variable.pointer or pragma_node(source, node) is not None or _leaves(source, body):
        return False
    updates = _updates_of_header(node)
    changed = {target for target, _ in assignments(source, node)} | declared_names(source, body)
    if identifiers(source, end) & changed or any(source.walk(end, "call_expression", "update_expression")):
        return False
    steps = [(target, where) for target, where in assignments(source, node) if target == name]
    if len(steps) != 1 or _amount(source, steps[0][1], name) != "1":
        return False
    if not any(inside(steps[0][1], update) for update in updates) and _statement_in(steps[0][1], body) is None:
        return False
    counter, count = _free(source, node, ("i", "k", "at")), _free(source, node, ("count", "length", "steps"))
    indent = source.indent(node)
    header = f"const int64_t {count} = {_operand(source, end)} - {name};\n{indent}"
    header += f"for (int64_t {counter} = 0; {counter} < {count}; ++{counter}) "
    edits.changes.append((node.start_byte, body.start_byte, header))
    _append(source, body, [f"{source.of(update)};" for update in updates], edits)
    return True


def _extra_updates(source: Source, node: Node, edits: Edits) -> bool:
    """`for (i = 0; i < n; ++i, ++p)`: all but the counter's own step go to the end of the body."""
    updates, body = _updates_of_header(node), _body(node)
    initializer = node.child_by_field_name("initializer")
    if (
        len(updates) < 2
        or body is None
        or initializer is None
        or initializer.type != "declaration"
        or _leaves(source, body)
    ):
        return False
    own = [u for u in updates if identifiers(source, u) & declared_names(source, initializer)]
    if len(own) != 1:
        return False
    edits.replace(node.child_by_field_name("update"), source.of(own[0]))
    _append(source, body, [f"{source.of(update)};" for update in updates if update != own[0]], edits)
    return True


def _declared_pointer(source: Source, node: Node, edits: Edits) -> bool:
    """`for (const float* p = x; p != x + n; ++p)`."""
    initializer, condition = node.child_by_field_name("initializer"), node.child_by_field_name("condition")
    body, updates = _body(node), _updates_of_header(node)
    if node.type != "for_statement" or body is None or condition is None or initializer is None or len(updates) != 1:
        return False
    declared = initializer.child_by_field_name("declarator") if initializer.type == "declaration" else None
    if declared is None or declared.type != "init_declarator" or condition.type != "binary_expression":
        return False
    pointer, start = declared.child_by_field_name("declarator"), declared.child_by_field_name("value")
    if pointer.type != "pointer_declarator" or len(initializer.children_by_field_name("declarator")) != 1:
        return False
    (name,) = identifiers(source, pointer)
    left, end = condition.child_by_field_name("left"), condition.child_by_field_name("right")
    if source.of(left) != name or source.of(condition.child_by_field_name("operator")) not in {"<", "!="}:
        return False
    if _amount(source, updates[0], name) != "1" or any(target == name for target, _ in assignments(source, body)):
        return False
    fixed = identifiers(source, start) | identifiers(source, end)
    if fixed & ({target for target, _ in assignments(source, body)} | declared_names(source, body)) or name in fixed:
        return False
    if any(source.walk(start, "call_expression")) or any(source.walk(end, "call_expression")):
        return False
    first, last = source.of(start), source.of(end)
    count = (
        last.removeprefix(f"{first} + ")
        if last.startswith(f"{first} + ")
        else f"{_operand(source, end)} - {_operand(source, start)}"
    )
    counter = _free(source, node, ("i", "k", "at"))
    edits.replace(initializer, f"int64_t {counter} = 0;")
    edits.replace(condition, f"{counter} < {count}")
    edits.replace(updates[0], f"++{counter}")
    for use in (n for n in source.walk(body, "identifier") if source.of(n) == name):
        _index(source, use, _operand(source, start), counter, edits)
    return True


def _range(source: Source, node: Node, edits: Edits) -> bool:
    """`for (float& v : row)` over a vector or array of the function."""
    if node.type != "for_range_loop":
        return False
    body, right = node.child_by_field_name("body"), node.child_by_field_name("right")
    names = identifiers(source, node.child_by_field_name("declarator"))
    if right.type != "identifier" or len(names) != 1:
        return False
    (name,) = names
    array = source.of(right)
    variable = _variable(source, node, array)
    if variable is None or "vector<" not in variable.kind or array in {t for t, _ in assignments(source, body)}:
        return False
    if any(source.of(n) == array for n in source.walk(body, "identifier")) or name in declared_names(source, body):
        return False
    refers = node.child_by_field_name("declarator").type == "reference_declarator"
    if not refers and any(target == name for target, _ in assignments(source, body)):
        return False  # a copy of its own
    counter = _free(source, node, ("i", "k", "at"))
    header = f"for (size_t {counter} = 0; {counter} < {array}.size(); ++{counter}) "
    edits.changes.append((node.start_byte, body.start_byte, header))
    for use in (n for n in source.walk(body, "identifier") if source.of(n) == name):
        edits.replace(use, f"{array}[{counter}]")
    return True


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
    if loop is None or loop.step is not None or source.of(loop.start) != "0" or loop.inclusive:
        return False
    if loop.body.type != "compound_statement" or pragma_node(source, node) is not None or _leaves(source, loop.body):
        return False
    inside = declared_names(source, loop.body) | {loop.variable}
    for name in dict.fromkeys(target for target, _ in assignments(source, loop.body)):
        if name not in inside and _walks(source, loop, name, edits):
            return True
    return False


def _walks(source: Source, loop: Loop, name: str, edits: Edits) -> bool:
    variable = _variable(source, loop.node, name)
    if variable is None or not (variable.pointer or _is_integer(variable.kind)):
        return False
    updates = [_update(source, loop, where, name) for target, where in assignments(source, loop.body) if target == name]
    uses = [n for n in source.walk(loop.body, "identifier") if source.of(n) == name]
    if None in updates or any(escapes(source, use) for use in uses):
        return False
    for update in updates:
        beside = [use for use in uses if inside(use, update.statement) and not inside(use, update.node)]
        if beside and not update.stands_alone:
            return False  # before or after it?
    changed = {target for target, _ in assignments(source, loop.body)} | declared_names(source, loop.body)
    amounts = [update.amount for update in updates]
    numbers = all(amount.isdigit() for amount in amounts)
    for update in updates:
        right = update.node.child_by_field_name("right")
        if identifiers(source, right) & (changed | {loop.variable}) - {name}:
            return False
    total = str(sum(map(int, amounts))) if numbers else ""
    strides = [total] if numbers else amounts
    place = " + ".join(loop.variable if stride == "1" else f"{_wide(source, loop)} * {stride}" for stride in strides)
    for use in uses:
        own = next((update for update in updates if inside(use, update.node)), None)
        if own is not None and own.stands_alone:
            continue
        passed = [update for update in updates if update.node.end_byte <= use.start_byte and update is not own]
        if own is not None and own.before:
            passed.append(own)
        extra = "".join(f" + {update.amount}" for update in passed) if not numbers else ""
        if numbers and passed:
            extra = f" + {sum(int(update.amount) for update in passed)}"
        target = own.node if own is not None else use
        _index(source, target, name, f"{place}{extra}", edits)
    for update in updates:
        if update.stands_alone:
            remove(source, update.statement, edits)
    if not _dead_after(source, loop.node, name, variable):
        count = source.of(loop.bound)
        if loop.bound.type not in {"identifier", "number_literal"}:
            count = f"({count})"
        if loop.bound.type not in {"identifier", "number_literal"} and not _is_product(source, loop.bound):
            raise Unsupported("a bound that may be negative")
        moved = " + ".join(count if stride == "1" else f"{count} * {stride}" for stride in strides)
        edits.insert(loop.node.end_byte, f"\n{source.indent(loop.node)}{name} += {moved};")
    return True


def _wide(source: Source, loop: Loop) -> str:
    """The counter as 64 bits, where a pointer was moved on without an overflow."""
    kind = source.of(loop.node.child_by_field_name("initializer").child_by_field_name("type")).replace("std::", "")
    return loop.variable if kind in _LONG else f"static_cast<int64_t>({loop.variable})"


def _is_product(source: Source, node: Node) -> bool:
    if node.type == "binary_expression" and source.of(node.child_by_field_name("operator")) == "*":
        return all(_is_product(source, node.child_by_field_name(side)) for side in ("left", "right"))
    return node.type in {"identifier", "number_literal"}


def _update(source: Source, loop: Loop, where: Node, name: str) -> _Update | None:
    amount, statement = _amount(source, where, name), _statement_in(where, loop.body)
    if amount is None or statement is None:
        return None
    alone = statement.type == "expression_statement" and statement.named_children[0] == where
    if not alone and where.type != "update_expression":
        return None
    prefix = where.type == "update_expression" and source.of(where).startswith("++")
    return _Update(where, statement, amount, alone, prefix)


def _amount(source: Source, node: Node, name: str) -> str | None:
    """What `p++`, `p += e` or `p = p + e` adds, as an operand; None for anything else."""
    if node.type == "update_expression":
        return "1" if "++" in source.of(node) else None
    if node.type != "assignment_expression":
        return None
    right, operator = node.child_by_field_name("right"), source.of(node.child_by_field_name("operator"))
    if operator == "=" and right.type == "binary_expression" and source.of(right.child_by_field_name("left")) == name:
        if source.of(right.child_by_field_name("operator")) != "+":
            return None
        right = right.child_by_field_name("right")
    elif operator != "+=":
        return None
    kinds = {"identifier", "number_literal", "binary_expression", "parenthesized_expression", "*", "+", "(", ")"}
    kinds |= {"sizeof_expression", "sizeof", "type_descriptor", "type_identifier", "primitive_type"}
    if name in identifiers(source, right) or {n.type for n in source.walk(right)} - kinds:
        return None
    return _operand(source, right)


def _statement_in(node: Node, body: Node) -> Node | None:
    """The statement directly in `body` that evaluates `node` exactly once, whatever happens; None where none surely does."""
    here = node
    while here.parent is not None and here.parent != body:
        here = here.parent
        if here.type in {"conditional_expression", "lambda_expression", "if_statement", "switch_statement", *_LOOPS}:
            return None
        if here.type == "binary_expression" and here.child_by_field_name("operator").type in {"&&", "||"}:
            return None
        if here.type == "sizeof_expression":
            return None
    return here if here.parent == body and here.type in {"expression_statement", "declaration"} else None


def _index(source: Source, node: Node, base: str, place: str, edits: Edits) -> None:
    """`*p`, `p[k]` and `p` as elements of `base`, `place` further on."""
    parent = node.parent
    if parent.type == "pointer_expression" and source.of(parent.child_by_field_name("operator")) == "*":
        whole = parent
        if whole.parent.type == "parenthesized_expression" and whole.parent.parent.type != "call_expression":
            whole = whole.parent
        edits.replace(whole, f"{base}[{place}]")
    elif parent.type == "subscript_expression" and parent.child_by_field_name("argument") == node:
        index = parent.child_by_field_name("indices").named_children[0]
        edits.replace(node, base)
        if source.of(index) == "0":
            edits.replace(index, place)
        else:
            edits.insert(index.start_byte, f"{place} + ")
            if index.type not in {"identifier", "number_literal", "binary_expression", "parenthesized_expression"}:
                edits.insert(index.start_byte, "(")
                edits.insert(index.end_byte, ")")
            elif index.type == "binary_expression" and source.of(index.child_by_field_name("operator")) not in {
                "+",
                "-",
                "*",
                "/",
                "%",
            }:
                raise Unsupported("an index of another kind")
    elif parent.type in {"subscript_argument_list", "argument_list", "init_declarator"}:
        edits.replace(node, f"{base} + {place}")
    else:
        edits.replace(node, f"({base} + {place})")


# --- names and places ----------------------------------------------------------------------------------------------


def _body(node: Node) -> Node | None:
    body = node.child_by_field_name("body")
    return body if body is not None and body.type == "compound_statement" else None


def _parts(node: Node | None) -> list[Node]:
    """What commas separate, in order."""
    if node is not None and node.type == "comma_expression":
        return [*_parts(node.child_by_field_name("left")), *_parts(node.child_by_field_name("right"))]
    return [node] if node is not None else []


def _updates_of_header(node: Node) -> list[Node]:
    return _parts(node.child_by_field_name("update"))


def _leaves(source: Source, body: Node) -> bool:
    """Whether an iteration may end early."""
    for node in source.walk(body, "break_statement", "continue_statement", "return_statement", "goto_statement"):
        here = node.parent
        if node.type in {"return_statement", "goto_statement"}:
            return True
        while here != body and here.type not in _LOOPS and here.type != "switch_statement":
            here = here.parent
        if here == body:
            return True
    return False


def _variable(source: Source, node: Node, name: str) -> _Variable | None:
    """What a name is in the function around a node; None unless that is declared in one place and no reference."""
    function = enclosing_function(node)
    if function is None or any(source.walk(function, "lambda_expression", "goto_statement", "labeled_statement")):
        return None
    found = []
    for here in source.walk(function, "declaration", "parameter_declaration"):
        for declarator in here.children_by_field_name("declarator"):
            inner, pointer = declarator, False
            while inner is not None and inner.type != "identifier":
                if inner.type == "reference_declarator":
                    pointer = None
                pointer = pointer or (inner.type == "pointer_declarator" if pointer is not None else None)
                inner = inner.child_by_field_name("declarator") or next(
                    (c for c in inner.named_children if c.type.endswith(("declarator", "identifier"))), None
                )
            if source.of(inner) == name:
                found.append((here, pointer))
    if len(found) != 1 or found[0][1] is None:
        return None
    declaration, pointer = found[0]
    scope = declaration.parent if declaration.type == "declaration" else function
    if scope.type != "compound_statement" and scope != function:
        return None
    if declaration.type == "declaration" and source.of(declaration).startswith(("static", "thread_local", "extern")):
        return None
    return _Variable(source.of(declaration.child_by_field_name("type")), pointer, scope, declaration)


def _dead_after(source: Source, node: Node, name: str, variable: _Variable) -> bool:
    """Whether nothing reads the variable once the loop is over, also in a later round of a loop around it."""
    here = node.parent
    while here is not None and here != variable.scope:
        if here.type in _LOOPS:
            return False
        here = here.parent
    return not any(
        source.of(use) == name for use in source.walk(variable.scope, "identifier") if use.start_byte >= node.end_byte
    )


def _is_integer(kind: str) -> bool:
    return set(kind.replace("std::", "").split()) <= INTEGERS and kind != "auto"


def _free(source: Source, node: Node, names: tuple[str, ...]) -> str:
    taken = {source.of(n) for n in source.walk(enclosing_function(node), "identifier")}
    return next(free for free in (*names, *(f"{names[0]}_{n}" for n in range(2, 1000))) if free not in taken)


def _operand(source: Source, node: Node) -> str:
    """The text of an expression, in parentheses where it is more than one word."""
    plain = node.type in {"identifier", "number_literal", "parenthesized_expression", "subscript_expression"}
    return source.of(node) if plain else f"({source.of(node)})"


def _append(source: Source, body: Node, lines: list[str], edits: Edits) -> None:
    if not lines:
        return
    indent, unit = source.indent(body), source.unit(body)
    text = "".join(f"{unit}{line}\n{indent}" for line in lines)
    one_line = body.start_point[0] == body.end_point[0]
    edits.insert(body.end_byte - 1, f"{' '.join(lines)} " if one_line else text)
