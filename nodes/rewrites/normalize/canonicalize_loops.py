"""A loop in which a thread takes every so-manieth element is written as one: `for (i = thread; i < n; i += threads)`.

    for (int base = 0; base < n; base += blockDim.x) { int i = base + threadIdx.x; if (i < n) { ... } }   also with
        `if (i >= n) break;` or `continue;`
    for (int k = 0; threadIdx.x + k * blockDim.x < n; ++k) { ... threadIdx.x + k * blockDim.x ... }
    int i = threadIdx.x; while (i < n) { ...; i += blockDim.x; }                   also as for (; i < n; i += blockDim.x)
    for (i = threadIdx.x; n > i; i = i + blockDim.x) { ... }                       with `int i;` above

Changes nothing by itself, but other steps know loops by this form only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tree_sitter import Node

from nodes.rewrites.analysis.device_code import Code, inside, one_by_one
from nodes.rewrites.analysis.kernels import Kernel
from nodes.rewrites.analysis.regions import THREAD
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.syntax.algebra import Polynomial, Symbol
from nodes.rewrites.syntax.match import match
from nodes.rewrites.syntax.source import Edits, Source
from nodes.rewrites.syntax.tree import field_of, left_by, one_variable, same, statements


@rule(
    "cuda",
    expected="nothing by itself: later steps can follow the loop",
    normalizes=True,
    after=("single_assignment_pointers",),
)
def rewrite(source: Source, facts: Facts) -> str | None:
    return one_by_one(source, _as_for, _loops, 32)


def _loops(code: Code) -> Iterator[tuple[Callable[..., bool], Kernel, Node]]:
    for kernel in code.kernels:
        known = {loop.node.id for loop in kernel.loops}
        for node in code.source.walk(kernel.body, "for_statement", "while_statement"):
            yield from (
                (form, kernel, node) for form in (_outside, _bases, _rounds) if node.id not in known or form is _bases
            )


def _as_for(edits: Edits, code: Code, form: Callable[..., bool], kernel: Kernel, node: Node) -> bool:
    return form(edits, code, kernel, node)


def _comparison(code: Code, condition: Node | None) -> tuple[Node, Node] | None:
    """The smaller and the larger side of `a < b` or `b > a`."""
    found = match(code.source, condition, "$less < $more", "$more > $less")
    return (found["less"], found["more"]) if found is not None else None


def _step(code: Code, update: Node | None, name: str) -> Node | str | None:
    """What `i += step`, `i = i + step` or `++i` adds to the variable."""
    found = match(code.source, update, "++$i", "$i++", "$i += $step", "$i = $i + $step", "$i = $step + $i")
    return found.get("step", "1") if found is not None and code.source.of(found["i"]) == name else None


def _text(code: Code, node: Node | str) -> str:
    return node if isinstance(node, str) else code.source.of(node)


def _outside(edits: Edits, code: Code, kernel: Kernel, node: Node) -> bool:
    """A variable that is declared above the loop, and no longer used below it."""
    source = code.source
    body, sides = field_of(node, "body"), _comparison(code, field_of(node, "condition"))
    if body is None or sides is None or sides[0].type != "identifier":
        return False
    found = code.definition(sides[0])
    if found is None or found.kind != "local" or found.declarator is None:
        return False
    inner = statements(body)
    start: Node | None = found.value
    if node.type == "while_statement":
        last = inner[-1] if inner and body.type == "compound_statement" else None
        update = last.named_children[0] if last is not None and last.type == "expression_statement" else None
        jumps = any(same(left_by(j), node) for j in source.walk(body, "continue_statement"))
        if last is None or jumps:
            return False
    else:
        last, update, first = None, field_of(node, "update"), field_of(node, "initializer")
        if first is not None and first.type == "assignment_expression":
            if source.of(first, "left") != found.name:
                return False
            start = field_of(first, "right")
        elif first is not None:
            return False
    step = _step(code, update, found.name)
    uses = code.uses(found, kernel.body)
    own = found.declaration
    alone = len(own.children_by_field_name("declarator")) == 1 and same(own.parent, node.parent)
    if start is None or step is None or update is None or not alone:
        return False
    if any(not inside(use, node) and not inside(use, own) for use in uses) or not code.polynomial(start).depends_on(
        THREAD
    ):
        return False
    if sum(inside(t, body) for t in code.assigned(kernel.body) if t in uses) != (1 if last is not None else 0):
        return False
    between = [s for s in statements(node.parent) if own.end_byte <= s.start_byte and s.end_byte <= node.start_byte]
    if kernel.changes_within(code.polynomial(start), between):
        return False
    kind = source.of(own, "type")
    header = f"for ({kind} {found.name} = {source.of(start)}; {source.of(sides[0])} < {source.of(sides[1])}; "
    edits.remove(own, blank=True)
    edits.changes.append((node.start_byte, body.start_byte, f"{header}{found.name} += {_text(code, step)}) "))
    if last is not None:
        edits.remove(last, blank=True)
    return True


_LEAVING = [
    f"if ($name >= $bound) {leaves % jump}"
    for jump in ("continue;", "break;", "return;")
    for leaves in ("%s", "{ %s }")
]


def _bases(edits: Edits, code: Code, kernel: Kernel, node: Node) -> bool:
    """Rounds of the whole block, in which each thread asks whether its own element is there."""
    source = code.source
    loop = next((o for o in kernel.loops if same(o.node, node)), None)
    inner = statements(loop.body) if loop is not None else []
    if loop is None or loop.step_node is None or loop.start.value != 0 or len(inner) < 2:
        return False
    own = match(source, inner[0], "$T $name = $value;", "const $T $name = $value;")
    guard = match(source, inner[1], "if ($name < $bound) $then;", *_LEAVING)
    if own is None or guard is None or own["name"].type != "identifier":
        return False
    name, value = source.of(own["name"]), own["value"]
    if source.of(guard["name"]) != name or code.polynomial(guard["bound"]) != loop.bound:
        return False
    if code.polynomial(value) != Polynomial.symbol(Symbol(loop.name, loop.symbol.where)) + Polynomial.symbol(THREAD):
        return False
    if any(source.of(n) == loop.name for s in inner for n in source.walk(s, "identifier") if not inside(n, value)):
        return False
    if any(source.of(t) == name for t in code.assigned(loop.body)):
        return False
    header = f"for ({source.of(own['T'])} {name} = {_thread_of(code, value, loop.name)}; "
    header += f"{name} < {source.of(loop.bound_node)}; {name} += {source.of(loop.step_node)}) "
    if "then" in guard and len(inner) == 2:
        edits.changes.append((node.start_byte, loop.body.start_byte, header))
        lines = source.of(guard["then"]).split("\n")
        inside_guard, outside = source.indent(inner[1]), source.indent(node)
        shifted = [
            outside + line.removeprefix(inside_guard) if line.startswith(inside_guard) else line for line in lines[1:]
        ]
        edits.replace(loop.body, "\n".join([lines[0], *shifted]))
        return True
    if "then" in guard or ("return" in guard.pattern and not same(statements(kernel.body)[-1], node)):
        return False
    edits.changes.append((node.start_byte, loop.body.start_byte, header))
    for gone in inner[:2]:
        edits.remove(gone, blank=True)
    return True


def _thread_of(code: Code, value: Node, base: str) -> str:
    """`base + tid` without the base."""
    parts = [field_of(value, "left"), field_of(value, "right")]
    rest = [code.source.of(p) for p in parts if p is not None and code.source.of(p) != base]
    return rest[0] if value.type == "binary_expression" and len(rest) == 1 else "threadIdx.x"


def _rounds(edits: Edits, code: Code, kernel: Kernel, node: Node) -> bool:
    """A count of rounds from which each place computes the element."""
    source, text = code.source, code.source.of
    first, body = field_of(node, "initializer"), field_of(node, "body")
    sides = _comparison(code, field_of(node, "condition"))
    variable = one_variable(first)
    if sides is None or body is None or variable is None or code.polynomial(variable[1]).value != 0:
        return False
    name, _ = variable
    if _step(code, field_of(node, "update"), text(name)) != "1":
        return False
    count = Symbol(text(name), name.start_byte)
    index = code.polynomial(sides[0])
    width = index.coefficient(count)
    if (
        index != Polynomial.symbol(THREAD) + Polynomial.symbol(count) * width
        or not width.terms
        or width.depends_on(count)
    ):
        return False
    if any(text(t) == text(name) for t in code.assigned(body)):
        return False
    taken = kernel.identifiers()
    own = _element(code, body, index, text(name))
    element = own[0] if own else next(n for n in ("i", "element", code.fresh("index")) if n not in taken)
    replaced = [] if own else [(n, element) for n in _places(code, body, index)]
    gone = [own[1]] if own else []
    left = [n for n in source.walk(body, "identifier") if text(n) == text(name)]
    if any(not any(inside(n, r) for r in [*(p for p, _ in replaced), *gone]) for n in left):
        return False
    (only, *more) = width.terms
    step = "blockDim.x" if width == Polynomial.symbol(Symbol("blockDim.x")) else only[0][0].text if not more and len(
        only[0]) == 1 and only[1] == 1 else str(width.value)  # fmt: skip
    if step == "None":
        return False
    kind = own[2] if own else text(first, "type")
    header = f"for ({kind} {element} = threadIdx.x; {element} < {text(sides[1])}; {element} += {step}) "
    edits.changes.append((node.start_byte, body.start_byte, header))
    for place, new in replaced:
        edits.replace(place, new)
    for statement in gone:
        edits.remove(statement, blank=True)
    return True


def _element(code: Code, body: Node, index: Polynomial, count: str) -> tuple[str, Node, str] | None:
    """The variable of the body that is the element, where there is one: its name, declaration and type."""
    for statement in statements(body):
        variable = one_variable(statement) if statement.type == "declaration" else None
        if variable is None or code.polynomial(variable[1]) != index:
            continue
        name, uses = variable[0], [n for n in code.source.walk(body, "identifier") if code.source.of(n) == count]
        if all(inside(n, statement) for n in uses):
            kind = code.source.of(statement, "type")
            assigned = any(code.source.of(t) == code.source.of(name) for t in code.assigned(body))
            return None if assigned else (code.source.of(name), statement, kind)
    return None


def _places(code: Code, body: Node, index: Polynomial) -> list[Node]:
    """The outermost expressions that are the element's index."""
    found: list[Node] = []
    for node in code.source.walk(body, "binary_expression", "parenthesized_expression"):
        if any(inside(node, outer) for outer in found):
            continue
        if code.polynomial(node) == index:
            found.append(node)
    return found
