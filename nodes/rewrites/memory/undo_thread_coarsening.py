"""A thread that takes a few elements, one after another, takes one.

    int base = blockIdx.x * blockDim.x * 4 + threadIdx.x;            const int i = blockIdx.x * blockDim.x + threadIdx.x;
    for (int k = 0; k < 4; ++k) {                                    if (i < n) {
      int i = base + k * blockDim.x;                           ->      y[i] = f(x[i]);
      if (i < n) y[i] = f(x[i]);                                     }
    }

also where they are neighbours, `4 * thread + k`. The host launches as many threads as there are elements. By itself that is
no gain: it applies only where pack goes on from it, and has threads take several elements again, as one.
"""

from __future__ import annotations

from dataclasses import dataclass

from tree_sitter import Node

from harness.records import Outcome
from nodes.rewrites.analysis.device_code import Code, code_of, inside
from nodes.rewrites.analysis.insertions import require, without_unused
from nodes.rewrites.analysis.kernels import Kernel, Loop
from nodes.rewrites.analysis.launches import host_text
from nodes.rewrites.analysis.regions import BLOCK, BLOCK_DIM, THREAD, carries_state, is_extent
from nodes.rewrites.memory.vectorize import rewrite as vectorize
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.syntax.algebra import Polynomial, Symbol
from nodes.rewrites.syntax.insert import free
from nodes.rewrites.syntax.source import Edits, Source, Unsupported
from nodes.rewrites.syntax.tree import declared_name, field_of, is_integer, same, statements

_NARROW = {"int", "unsigned", "unsigned int", "int32_t", "uint32_t"}


@rule(
    "cuda",
    expected="nothing by itself: pack has threads take neighbours as one",
    normalizes=True,
    risks=(Outcome.INCORRECT,),
)
def rewrite(source: Source, facts: Facts) -> str | None:
    code, text = code_of(source), None
    for kernel in code.kernels:
        try:
            edits = Edits(source)
            _settle(edits, code, kernel)
            require(edits, code, "ceil_div", includes=("cstdint",))
            changed = without_unused(code, edits.apply())
        except Unsupported:
            continue
        if vectorize(source.reparsed(changed), facts) is not None:
            text = changed
            break  # the nodes of another kernel are those of the old text
    return text


@dataclass
class _Items:
    loop: Loop
    inner: list[Node]
    """The statements of one element, without the declaration of its index."""
    index: Polynomial
    bound: Node
    name: str
    type: str
    width: str
    guard: Node
    gone: list[Node]
    """Declarations that only the index needs."""


def _settle(edits: Edits, code: Code, kernel: Kernel) -> None:
    source, items = code.source, _items(code, kernel)
    text = f"{'' if items.type in _NARROW else f'({items.type})'}blockIdx.x * {items.width} + threadIdx.x"
    indent = source.indent(items.loop.node)
    lines = [f"const {items.type} {items.name} = {text};"]
    bound = source.of(items.bound)
    replaced = _places(code, items)
    _check_rest(code, kernel, items, [node for node, _ in replaced])
    consequence = field_of(items.guard, "consequence")
    whole = same(items.inner[-1], items.guard)
    condition = f"{items.name} < {bound}" if whole else f"{items.name} >= {bound}"
    if whole:
        body = _moved(source, items.guard, indent, source.render(consequence, replaced))
        front = [_moved(source, s, indent, source.render(s, replaced)) for s in items.inner[:-1]]
        lines += [*front, f"if ({condition}) {body}"]
    else:
        rest = [_moved(source, s, indent, source.render(s, replaced)) for s in items.inner if not same(s, items.guard)]
        lines += [f"if ({condition}) return;", *rest]
    start = items.loop.node
    directive = start.prev_named_sibling
    if directive is not None and directive.type == "preproc_call":
        line = source.line_start(directive)
        edits.changes.append((line, start.start_byte, indent))
    edits.write(start, lines)
    for declaration in items.gone:
        edits.remove(declaration)
    for launch in kernel.launches:
        _, y, z = launch.extents(launch.grid)
        threads = launch.extents(launch.block)[0]
        shape = [f"ceil_div({host_text(kernel, launch, items.bound)}, {threads})", y, z]
        while shape[-1] == "1":
            shape.pop()
        grid = shape[0] if len(shape) == 1 else f"dim3({', '.join(shape)})"
        edits.replace(launch.statement, f"{launch.rendered(grid=grid)};")


def _moved(source: Source, statement: Node, indent: str, text: str) -> str:
    """Lines that stood inside of the loop, where the loop stood."""
    own = source.indent(statement)
    first, *rest = text.split("\n")
    return "\n".join([first, *(indent + line.removeprefix(own) if line.startswith(own) else line for line in rest)])


def _items(code: Code, kernel: Kernel) -> _Items:
    source, body = code.source, [s for s in statements(kernel.body) if s.type != "preproc_call"]
    loop = next((loop for loop in kernel.loops if body and same(loop.node, body[-1])), None)
    if (
        loop is None
        or kernel.synchronises
        or not kernel.launches
        or kernel.escapes
        or loop.body.type != "compound_statement"
    ):
        raise Unsupported("no loop over a thread's elements at the end")
    if loop.start.value != 0 or loop.step.value != 1 or not _is_constant(code, loop.bound_node):
        raise Unsupported("another loop")
    inner = [s for s in statements(loop.body) if s.type != "preproc_call"]
    guard = next((s for s in inner if s.type == "if_statement"), None)
    if guard is None or carries_state(kernel, inner) or any(a.root == "?" for a in kernel.accesses):
        raise Unsupported("no guard, or state that a thread carries along")
    accesses = [a for a in kernel.global_accesses() if inside(a.node, loop.node)]
    written = [a for a in accesses if a.writes]
    for read in (a for a in accesses if a.reads and any(a.root == w.root for w in written)):
        if not any((read.base, read.offset) == (write.base, write.offset) for write in written):
            raise Unsupported("an element that the thread may have written before")
    left, bound = _compared(code, guard, last=same(guard, inner[-1]))
    index = code.polynomial(left)
    width = _width(code, kernel, index, loop)
    if any(index.depends_on(s) or code.polynomial(bound).depends_on(s) for s in (Symbol("gridDim.x"),)):
        raise Unsupported("an index that knows the number of blocks")
    if any(code.polynomial(bound).depends_on(s) for s in (THREAD, BLOCK, loop.symbol)):
        raise Unsupported("a bound of the thread's own")
    own = [
        s for s in inner if s.type == "declaration" and s.start_byte < guard.start_byte and _is_place(code, s, index)
    ]
    if len(own) > 1:
        raise Unsupported("an index of several names")
    gone = [s for s in body[:-1] if s.type == "declaration" and _of_thread(code, s)]
    (held, *_) = [*own, *gone, None]
    kind = source.of(held, "type") if held is not None else ""
    if not is_integer(kind):
        raise Unsupported("an index of unknown type")
    name = source.of(declared_name(field_of(own[0], "declarator"))) if own else free("i", kernel.identifiers())
    rest = [s for s in inner if not any(same(s, o) for o in own)]
    if any(s.type == "declaration" for s in rest if s.end_byte <= guard.start_byte) and own == []:
        raise Unsupported("declarations in front of the guard")
    return _Items(loop, rest, index, bound, name, kind, width, guard, gone)


def _is_constant(code: Code, bound: Node) -> bool:
    kinds = {
        found.kind if (found := code.definition(n)) is not None else "" for n in code.source.walk(bound, "identifier")
    }
    calls = code.source.has(bound, "call_expression", "field_expression")
    return not calls and not kinds & {"parameter", "local", "loop", ""}


def _compared(code: Code, guard: Node, *, last: bool) -> tuple[Node, Node]:
    """The index and the bound of `if (i < n) {...}` at the end, or of `if (i >= n) continue;` in front of the rest."""
    source, holder = code.source, field_of(guard, "condition")
    condition = field_of(holder, "value")
    leaves = [source.of(s) for s in statements(field_of(guard, "consequence"))]
    if condition is None or condition.type != "binary_expression" or field_of(guard, "alternative") is not None:
        raise Unsupported("another guard")
    operator = source.of(condition, "operator")
    if (operator, last) not in {("<", True), (">=", False)}:
        raise Unsupported("another comparison")
    if not last and leaves not in (["continue;"], ["break;"], ["return;"]):
        raise Unsupported("a guard that does something")
    left, right = field_of(condition, "left"), field_of(condition, "right")
    return left, right


def _width(code: Code, kernel: Kernel, index: Polynomial, loop: Loop) -> str:
    """The block's width as the kernel writes it, where the index counts all elements of all threads up."""
    one, count = Polynomial.constant(1), loop.bound
    item, thread, block = (Polynomial.symbol(s) for s in (loop.symbol, THREAD, BLOCK))
    extents = [Polynomial.symbol(BLOCK_DIM), index.coefficient(loop.symbol)]
    for launch in kernel.launches:
        width = launch.extents(launch.block)[0]
        extents += [Polynomial.constant(int(width))] if width.isdigit() else []
    for width in extents:
        striped = block * width * count + thread + item * width
        neighbours = (block * width + thread) * count + item * one
        if index in (striped, neighbours) and is_extent(kernel, width):
            (symbol, *more) = width.symbols or {None}
            text = str(width.value) if symbol is None else symbol.text
            if not more:
                return text
    raise Unsupported("elements that are shared out in another way")


def _is_place(code: Code, declaration: Node, index: Polynomial) -> bool:
    declarators = declaration.children_by_field_name("declarator")
    value = field_of(declarators[0], "value") if len(declarators) == 1 else None
    return value is not None and code.polynomial(value) == index


def _of_thread(code: Code, declaration: Node) -> bool:
    """Whether a declaration names the thread or its block, itself or through variables."""
    values = [field_of(d, "value") for d in declaration.children_by_field_name("declarator")]
    polynomials = [code.polynomial(value) for value in values if value is not None]
    return any(p.depends_on(s) for p in polynomials for s in (THREAD, BLOCK))


def _places(code: Code, items: _Items) -> list[tuple[Node, str]]:
    """Expressions of the index in an element's statements, and its name."""
    found: list[tuple[Node, str]] = []
    for statement in items.inner:
        for node in code.source.walk(statement, "binary_expression", "parenthesized_expression"):
            if any(inside(node, other) for other, _ in found):
                continue
            if code.polynomial(node) == items.index:
                found.append((node, items.name))
    return found


def _check_rest(code: Code, kernel: Kernel, items: _Items, places: list[Node]) -> None:
    """Nothing else may know which of its elements a thread is at, or which thread it is."""
    source = code.source
    names = {
        source.of(name)
        for declaration in items.gone
        for declarator in declaration.children_by_field_name("declarator")
        if (name := declared_name(declarator)) is not None
    }
    known = [*places, *items.gone]
    header = field_of(items.guard, "condition")
    for node in source.walk(kernel.body, "identifier"):
        text = source.of(node)
        if any(inside(node, place) for place in known) or (header is not None and inside(node, header)):
            continue
        if inside(node, items.loop.node) and not any(inside(node, statement) for statement in items.inner):
            continue  # the loop's own head, and what declared the index
        along = source.of(node.parent) in {f"{c}.x" for c in ("threadIdx", "blockIdx", "gridDim")}
        if along or text in names or (text == items.loop.name and inside(node, items.loop.node)):
            raise Unsupported("something else that depends on the thread")
    if any(d.type != "init_declarator" for s in items.gone for d in s.children_by_field_name("declarator")):
        raise Unsupported("a declaration of another form")
