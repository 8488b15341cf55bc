"""Loops that were unrolled by hand become loops over one element.

    int i = 0;                                                  for (int i = 0; i < n; ++i) {
    for (; i + 4 <= n; i += 4) {                                    y[i] = x[i] * s;
        y[i] = x[i] * s; ... y[i + 3] = x[i + 3] * s;           }
    }
    for (; i < n; ++i) { y[i] = x[i] * s; }

What was a help to a compiler without vectors hides from one with them that all iterations are alike. Each copy must be the
first with `i + k` for `i`; sums over several variables (`s0 += ...; s1 += ...`) become one sum. Loops that go on with each
other's counter, also those over vectors of eight, get a counter and an end of their own, which other steps understand.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from tree_sitter import Node

from nodes.rewrites._insert import remove
from nodes.rewrites._loops import (
    INTEGERS,
    aliases,
    assignments,
    canonical,
    declared_names,
    enclosing_function,
    identifiers,
    pragma_node,
    root_name,
)
from nodes.rewrites.source import Edits, Source, Unsupported, inside, repeated

LANGUAGES = frozenset({"cpu"})
HELPS = frozenset({"compute", "latency", "memory", "unknown"})
EXPECTED = "nothing by itself: later steps see one element where several were written out"
SPEEDUP = 1.0001
ORDER = 5

LONGEST = 64
"""Copies of an element that anybody writes out."""


@dataclass(frozen=True)
class _Piece:
    """`for (; i + step <= bound; i += step)`, one of several loops that share a counter."""

    node: Node
    step: int
    bound: Node


def rewrite(source: Source, facts: object) -> str | None:
    return repeated(source, _next, 128)


def _next(source: Source) -> str | None:
    for node in source.walk(None, "for_statement"):
        for form in (_own_counters, _rolled):
            edits = Edits(source)
            try:
                if not node.has_error:
                    form(source, node, edits)
                    return edits.apply()
            except Unsupported:
                continue
    return None


# --- a counter of its own for each loop ----------------------------------------------------------------------------


def _own_counters(source: Source, node: Node, edits: Edits) -> None:
    """Splits `int i = 0; for (; i + 8 <= n; i += 8) ... for (; i < n; ++i) ...` into loops that do not share `i`."""
    name = _counter(source, node)
    pieces = [_piece(source, node, name)]
    end = node
    gaps: list[Node] = []
    here = node.next_named_sibling
    while here is not None:
        if here.type == "for_statement" and here.child_by_field_name("initializer") is None:
            try:
                pieces.append(_piece(source, here, name))
            except Unsupported:
                break
            end = here
        elif here.type in {"for_statement", "while_statement", "do_statement"} or name in identifiers(source, here):
            break
        elif here.type != "comment":
            gaps.append(here)
        here = here.next_named_sibling
    steps = [piece.step for piece in pieces]
    if len(pieces) < 2 or steps[-1] != 1 or any(a % b or a == b for a, b in itertools.pairwise(steps)):
        raise Unsupported("not loops of smaller and smaller steps, down to one")
    if len({source.of(piece.bound) for piece in pieces}) != 1:
        raise Unsupported("loops to several ends")
    gaps = [gap for gap in gaps if gap.start_byte < end.start_byte]
    bound, names = source.of(pieces[0].bound), identifiers(source, pieces[0].bound)
    changed = {target for piece in pieces for target, _ in assignments(source, piece.node)}
    changed |= {target for gap in gaps for target, _ in assignments(source, gap)}
    if names & (changed | {name}) or pieces[0].bound.type not in {"identifier", "parenthesized_expression"}:
        raise Unsupported("an end that moves")
    declaration = _declaration(source, node, name)
    kind = source.of(declaration.child_by_field_name("type"))
    covered = [declaration, *(piece.node for piece in pieces)]
    others = [u for u in _uses(source, node, name) if not any(inside(u, each) for each in covered)]
    # Other loops may use the variable if they begin by setting it.
    if any(not _set_anew(source, use, name) for use in others):
        raise Unsupported("the counter is used otherwise")
    before = "0"
    for piece in pieces:
        stop = bound if piece.step == 1 else f"{bound} / {piece.step} * {piece.step}"
        increment = f"++{name}" if piece.step == 1 else f"{name} += {piece.step}"
        header = f"for ({kind} {name} = {before}; {name} < {stop}; {increment})"
        closing = next(child for child in reversed(piece.node.children) if child.type == ")")
        edits.changes.append((piece.node.start_byte, closing.end_byte, header))
        before = stop
    if not others:
        remove(source, declaration, edits)


def _counter(source: Source, node: Node) -> str:
    """The counter of a loop `for (; ...)` or `for (i = 0; ...)`, which begins at 0 and is declared before it."""
    initializer, condition = node.child_by_field_name("initializer"), node.child_by_field_name("condition")
    update = node.child_by_field_name("update")
    if condition is None or update is None or (initializer is not None and initializer.type != "assignment_expression"):
        raise Unsupported("a loop with a counter of its own")
    name = source.of(update.child_by_field_name("left") or update.child_by_field_name("argument"))
    declaration = _declaration(source, node, name)
    if initializer is not None:
        if source.of(initializer).replace(" ", "") != f"{name}=0":
            raise Unsupported("another start")
        return name
    value = declaration.child_by_field_name("declarator").child_by_field_name("value")
    between = [n for n in _uses(source, node, name) if declaration.end_byte < n.start_byte < node.start_byte]
    if source.of(value) != "0" or declaration.parent != node.parent or between:
        raise Unsupported("another start")
    return name


def _declaration(source: Source, node: Node, name: str) -> Node:
    """The one declaration of a counter in its function, of a plain integer, beside those of loops' own counters."""
    function = enclosing_function(node)
    if function is None or any(source.walk(function, "lambda_expression", "goto_statement")):
        raise Unsupported("no plain function")
    found = [n for n in source.walk(function, "declaration") if name in declared_names(source, n)]
    found = [n for n in found if n.parent.type != "for_statement"]
    if len(found) != 1 or len(found[0].children_by_field_name("declarator")) != 1:
        raise Unsupported("not one variable that is declared alone")
    kind = source.of(found[0].child_by_field_name("type"))
    kind = aliases(source).get(kind, kind).replace("std::", "")
    plain = set(kind.split()) <= INTEGERS - {"auto"} and found[0].parent.type == "compound_statement"
    if not plain or found[0].start_byte > node.start_byte or len(found[0].named_children) != 2:
        raise Unsupported("no plain integer")
    return found[0]


def _uses(source: Source, node: Node, name: str) -> list[Node]:
    """Mentions of a variable in its function, without those of loops' own counters of that name."""
    found = []
    for use in source.walk(enclosing_function(node), "identifier"):
        here: Node | None = use if source.of(use) == name else None
        while here is not None and here.type != "function_definition":
            start = here.child_by_field_name("initializer") if here.type == "for_statement" else None
            if start is not None and start.type == "declaration" and name in declared_names(source, start):
                here = None
                break
            here = here.parent
        if here is not None:
            found.append(use)
    return found


def _set_anew(source: Source, use: Node, name: str) -> bool:
    """Whether a mention stands in a loop, or in one behind such a loop, that starts by setting the variable."""
    here = use
    while here is not None and here.type != "function_definition":
        if here.type == "for_statement":
            before: Node | None = here
            while before is not None:
                if before.type == "for_statement":
                    start = before.child_by_field_name("initializer")
                    if start is not None:
                        return source.of(start).replace(" ", "").startswith(f"{name}=")
                elif name in identifiers(source, before):
                    return False
                before = before.prev_named_sibling
            return False
        here = here.parent
    return False


def _piece(source: Source, node: Node, name: str) -> _Piece:
    condition, update = node.child_by_field_name("condition"), node.child_by_field_name("update")
    body = node.child_by_field_name("body")
    if condition is None or update is None or body is None or pragma_node(source, node) is not None:
        raise Unsupported("a loop of another form")
    if name in {target for target, _ in assignments(source, body)} or name in declared_names(source, body):
        raise Unsupported("a counter that moves otherwise")
    if any(source.walk(body, "break_statement", "return_statement")):
        raise Unsupported("a loop that may end early")
    step = _step(source, update, name)
    if condition.type != "binary_expression":
        raise Unsupported("another condition")
    left, right = (condition.child_by_field_name(side) for side in ("left", "right"))
    operator = source.of(condition.child_by_field_name("operator"))
    (first, ahead), (bound, back) = _sum(source, left), _sum(source, right)
    # `i + ahead < bound + back`: the last of the step's elements is the one at i + ahead - back.
    reach = ahead - back - (operator == "<=")
    if source.of(first) != name or operator not in {"<", "<="} or reach != step - 1:
        raise Unsupported("a step that goes past the end")
    return _Piece(node, step, bound)


def _step(source: Source, update: Node, name: str) -> int:
    if source.of(update).replace(" ", "") in {f"++{name}", f"{name}++", f"{name}+=1"}:
        return 1
    right = update.child_by_field_name("right")
    if source.of(update).replace(" ", "") == f"{name}+={source.of(right)}" and source.of(right).isdigit():
        return int(source.of(right))
    raise Unsupported("no fixed step")


def _sum(source: Source, node: Node) -> tuple[Node, int]:
    """(term, number) of `term + number` or `term - number`."""
    inner = node.named_children[0] if node.type == "parenthesized_expression" else node
    if inner.type == "binary_expression":
        left, right = (inner.child_by_field_name(side) for side in ("left", "right"))
        operator = source.of(inner.child_by_field_name("operator"))
        if operator in {"+", "-"} and right.type == "number_literal" and source.of(right).isdigit():
            term, number = _sum(source, left)
            return term, number + int(source.of(right)) * (1 if operator == "+" else -1)
    return node, 0


# --- one element instead of several --------------------------------------------------------------------------------


_Tree = str | tuple
"""An expression without its parentheses: a word, or the node's type and its parts. Sums are flat."""


@dataclass(frozen=True)
class _Effect:
    """What one statement does, everything in it written out in terms of the loop's counter."""

    target: _Tree
    operator: str
    value: _Tree
    stores: bool
    """To an element of an array; otherwise it adds to a variable."""


def _rolled(source: Source, node: Node, edits: Edits) -> None:
    """A loop of `step` copies, and the loop over what it leaves, become one over all elements."""
    loop = canonical(source, node)
    if loop is None or loop.step is None or loop.inclusive or not source.of(loop.step).isdigit():
        raise Unsupported("no fixed step")
    step, name = int(source.of(loop.step)), loop.variable
    if not 2 <= step <= LONGEST or source.of(loop.start) != "0" or pragma_node(source, node) is not None:
        raise Unsupported("no step of several")
    whole = source.of(loop.bound)
    tail = node.next_named_sibling
    gaps = []
    while tail is not None and tail.type not in {"for_statement", "while_statement", "do_statement"}:
        if tail.type != "comment":
            gaps.append(tail)
        tail = tail.next_named_sibling
    rest = canonical(source, tail) if tail is not None and tail.type == "for_statement" else None
    bound = source.of(rest.bound) if rest is not None else ""
    if rest is None or rest.step is not None or rest.variable != name or source.of(rest.start) != whole:
        raise Unsupported("no loop over what is left")
    if whole != f"{bound} / {step} * {step}":
        raise Unsupported("a loop to another end")
    copies, single = _Copies(source, loop.body, name), _Copies(source, rest.body, name)
    element = single.effects
    if len(copies.effects) != step * len(element) or not element:
        raise Unsupported("not as many copies as the step says")
    sums: dict[str, set[str]] = {}
    left = list(copies.effects)
    for k in range(step):
        for effect in element:
            value, target = _shifted(effect.value, name, k), _shifted(effect.target, name, k)
            alike = (e for e in left if (e.stores, e.operator, e.value) == (effect.stores, effect.operator, value))
            match = next((e for e in alike if not e.stores or e.target == target), None)
            if match is None:
                raise Unsupported("copies that are not alike")
            left.remove(match)
            if not effect.stores:
                sums.setdefault(str(effect.target), set()).add(str(match.target))
    _no_neighbours(source, loop.body, rest.body, name)
    for total, parts in sums.items():
        _joined(source, total, parts, node, tail, gaps)
    used = {effect.target for effect in (*copies.effects, *element) if not effect.stores}
    for gap in gaps:
        stored = any(source.walk(gap, "assignment_expression", "update_expression", "call_expression"))
        if gap.type != "declaration" or (stored and not identifiers(source, gap) & used):
            raise Unsupported("something between the two loops")
    edits.replace(rest.start, "0")
    remove(source, node, edits)


def _shifted(tree: _Tree, name: str, by: int) -> _Tree:
    """With `name + by` for `name`."""
    if isinstance(tree, str):
        return _sum_of([name, str(by)]) if tree == name else tree
    parts = [_shifted(part, name, by) for part in tree[1:]]
    return _sum_of(parts) if tree[0] == "+" else (tree[0], *parts)


def _sum_of(parts: list[_Tree]) -> _Tree:
    flat: list[_Tree] = []
    for part in parts:
        flat += part[1:] if isinstance(part, tuple) and part[0] == "+" else [part]
    flat = [part for part in flat if part != "0"]
    return ("+", *flat) if len(flat) > 1 else flat[0] if flat else "0"


class _Copies:
    """The effects of a straight-line body, in order, local variables replaced by what they hold."""

    def __init__(self, source: Source, body: Node, counter: str) -> None:
        self.source, self.counter = source, counter
        self.values: dict[str, _Tree] = {}
        self.effects: list[_Effect] = []
        self.stored: list[_Tree] = []
        for statement in body.named_children if body.type == "compound_statement" else [body]:
            self.statement(statement)

    def statement(self, node: Node) -> None:
        source = self.source
        if node.type == "comment":
            return
        if node.type == "declaration":
            kind = source.of(node.child_by_field_name("type"))
            for declarator in node.children_by_field_name("declarator"):
                name = declarator.child_by_field_name("declarator")
                if declarator.type != "init_declarator" or name.type != "identifier" or kind not in {"float", "double"}:
                    raise Unsupported("a variable of another form")
                self.values[source.of(name)] = self.tree(declarator.child_by_field_name("value"))
            return
        inner = node.named_children[0] if node.type == "expression_statement" and node.named_children else None
        if inner is None or inner.type != "assignment_expression":
            raise Unsupported("more than assignments")
        left, right = inner.child_by_field_name("left"), inner.child_by_field_name("right")
        operator = source.of(inner.child_by_field_name("operator"))
        if left.type == "subscript_expression" and operator in {"=", "+=", "-=", "*="}:
            self.effects.append(_Effect(self.tree(left), operator, self.tree(right), True))
            self.stored.append(self.effects[-1].target)
        elif left.type == "identifier" and source.of(left) in self.values and operator == "=":
            self.values[source.of(left)] = self.tree(right)
        elif left.type == "identifier" and operator == "+=" and source.of(left) not in identifiers(source, right):
            self.effects.append(_Effect(source.of(left), operator, self.tree(right), False))
        else:
            raise Unsupported("an assignment of another form")

    def tree(self, node: Node) -> _Tree:
        kinds = ("assignment_expression", "update_expression", "lambda_expression", "pointer_expression")
        if any(self.source.walk(node, *kinds)):
            raise Unsupported("a value that changes something")
        tree = self._tree(node)
        if any(_holds(tree, target) for target in self.stored):
            raise Unsupported("an element that was written already")
        return tree

    def _tree(self, node: Node) -> _Tree:
        if node.type == "parenthesized_expression":
            return self._tree(node.named_children[0])
        if node.type == "identifier" and self.source.of(node) in self.values:
            return self.values[self.source.of(node)]
        if not node.children:
            return self.source.of(node)
        if node.type == "binary_expression" and self.source.of(node.child_by_field_name("operator")) == "+":
            return _sum_of([self._tree(node.child_by_field_name(side)) for side in ("left", "right")])
        return (node.type, *(self._tree(child) for child in node.children if child.type != "comment"))


def _holds(tree: _Tree, part: _Tree) -> bool:
    return tree == part or (isinstance(tree, tuple) and any(_holds(each, part) for each in tree[1:]))


def _no_neighbours(source: Source, copies: Node, single: Node, name: str) -> None:
    """Raises Unsupported where an element that is written may be read by another copy: there the order matters."""
    for body in (copies, single):
        written = {root_name(source, n.child_by_field_name("left")) for n in _stores(source, body)}
        for node in source.walk(body, "subscript_expression"):
            term, _ = _sum(source, node.child_by_field_name("indices").named_children[0])
            if root_name(source, node) in written and source.of(term) != name:
                raise Unsupported("elements that are not one behind the other")
    # In the loop over one element, what is written is read at the same place or nowhere; the copies are its like.
    written = {root_name(source, n.child_by_field_name("left")) for n in _stores(source, single)}
    for node in source.walk(single, "subscript_expression"):
        if root_name(source, node) in written and source.of(node.child_by_field_name("indices")) != f"[{name}]":
            raise Unsupported("an element that another copy writes")


def _stores(source: Source, body: Node) -> list[Node]:
    found = source.walk(body, "assignment_expression")
    return [n for n in found if n.child_by_field_name("left").type == "subscript_expression"]


def _joined(source: Source, total: str, parts: set[str], first: Node, last: Node, gaps: list[Node]) -> None:
    """Raises Unsupported unless the parts of a sum are only ever added up, into what the last loop goes on with."""
    if parts == {total}:
        return
    function = enclosing_function(first)
    chains: dict[int, Node] = {}
    for part in parts | {total}:
        for use in source.walk(function, "identifier"):
            if source.of(use) != part or inside(use, first) or inside(use, last):
                continue
            if use.parent.type == "init_declarator" and use.parent.child_by_field_name("declarator") == use:
                continue
            if part == total and use.start_byte > last.end_byte and total not in parts:
                continue
            chain = _chain(source, use)
            chains[chain.id] = chain
    for part in parts - {total}:
        around = [c for c in chains.values() if part in identifiers(source, c)]
        if len(around) != 1 or sum(source.of(n) == part for n in source.walk(around[0], "identifier")) != 1:
            raise Unsupported("a part of the sum that is used otherwise")
        chain = around[0]
        into = chain.parent
        initial = into.type == "init_declarator" and source.of(into.child_by_field_name("declarator")) == total
        if not (initial and any(inside(chain, gap) for gap in gaps)) and total not in identifiers(source, chain):
            raise Unsupported("a sum that the last loop does not go on with")
        if not parts <= identifiers(source, chain) | {total}:
            raise Unsupported("a part of the sum that is left out")
        if chain.start_byte < first.end_byte:
            raise Unsupported("a sum that is made before")


def _chain(source: Source, use: Node) -> Node:
    """The largest expression of additions that a variable stands in."""
    here = use
    while here.parent is not None and (
        here.parent.type == "parenthesized_expression"
        or (here.parent.type == "binary_expression" and source.of(here.parent.child_by_field_name("operator")) == "+")
    ):
        here = here.parent
    return here
