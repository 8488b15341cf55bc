"""Somebody's own reduction over the block becomes `block_sum` or a sibling of that, from which the other steps go on.

    sum = blockReduceSum<float>(sum);                   const float sum_of_block = block_sum<0>(sum);
    if (threadIdx.x == 0) total = sum;           ->     if (threadIdx.x == 0) total = sum_of_block;

Recognised by what it does and not by its name: the statements run, in step, for the width that a launch has, or for blocks
of one to 32 warps (see block_values.py), and where thread 0, or every thread, ends with each thread's value once it was a
reduction. So the shuffles may go up, down or across, through helper functions or not, the second step may be one warp's or
every warp's, the slots may be the helper's own or handed in. Forms: a call of a function; the same statements written into
the kernel; a tree in shared memory; CUB's `BlockReduce`. What is left of them, helpers, slots and barriers that nothing needs any more, goes.

Our form leaves the result with every thread. Where theirs left it with the first alone, what reads it must ask for that
thread. Theirs shuffle whole warps only, or their results would be undefined, so blocks are whole warps already; a tree says
nothing of the kind, so its blocks' width must be known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

from tree_sitter import Node

from harness.records import Outcome
from nodes.rewrites.analysis.block_arithmetic import UNKNOWN, Frame, Functor, Memory, Part
from nodes.rewrites.analysis.block_shape import is_barrier, width_of
from nodes.rewrites.analysis.block_values import WARP, Block
from nodes.rewrites.analysis.device_code import Code, Definition, code_of, inside, one_by_one
from nodes.rewrites.analysis.insertions import require
from nodes.rewrites.analysis.kernels import Kernel
from nodes.rewrites.analysis.launches import Launch
from nodes.rewrites.analysis.regions import THREAD
from nodes.rewrites.prelude.block_reductions import NAMES, brought, next_site
from nodes.rewrites.reductions.cub_reductions import without_cub
from nodes.rewrites.reductions.foreign_reductions import (
    Result,
    Step,
    Widths,
    declared_type,
    joined,
    judged,
    put_reduction,
    reduction_text,
    statement_of,
    tidied,
)
from nodes.rewrites.reductions.idle_threads import without_idle
from nodes.rewrites.reductions.surroundings import Surroundings
from nodes.rewrites.reductions.uses import (
    check_readers,
    check_slots,
    is_leaders,
    keep_apart,
    nobody,
    own_name,
    reads_of_cell,
    slots_of,
    start_of,
)
from nodes.rewrites.reductions.warp_reductions import called
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.syntax.algebra import Polynomial
from nodes.rewrites.syntax.match import Found, match
from nodes.rewrites.syntax.source import Edits, Source, Unsupported
from nodes.rewrites.syntax.tree import children_of, declared_name, field_of, same, statements

MOST = 32
"""Reductions of one file."""
WARPS = (1, 2, 3, 7, 16, 17, 32)
"""Of blocks whose width is only known when it runs: powers of two, what lies next to them, the most there may be."""


@rule(
    "cuda",
    expected="one barrier a reduction, not one for every halving of a tree, and later steps see a reduction that they know",
    speedup=1.15,
    helps={"memory", "latency", "compute"},
    after=("restrict_pointers",),
    risks=(Outcome.INCORRECT, Outcome.RUNTIME_ERROR),
)
def rewrite(source: Source, facts: Facts) -> str | None:
    if not any(word in source.text for word in ("__syncthreads", "BlockReduce")):
        return None
    text, first, unused = one_by_one(source, _name_value, _stores, MOST) or source.text, next_site(source), set()
    for site in range(first, first + MOST):
        step = _next(code_of(source.reparsed(text)), site)
        if step is None:
            break
        text = step.text
        unused |= step.unused
    if not unused:
        return None
    return without_idle(source.reparsed(tidied(source, text, unused)))


def _stores(code: Code) -> Iterator[tuple[Node, Node]]:
    """Statements with the next ones, of which trees may be made."""
    for kernel in code.kernels:
        for body in map(statements, code.source.walk(kernel.body, "compound_statement")):
            yield from pairwise(body)


def _name_value(edits: Edits, code: Code, store: Node, behind: Node) -> None:
    """`slots[threadIdx.x] = x * x;` in front of a barrier stores a variable: that is what is reduced."""
    form = _store(code, store, behind)
    if form is None or form["value"].type == "identifier":
        raise Unsupported("no value without a name")
    element, value = slots_of(code, code.variable(form["slots"])), code.fresh("own")
    edits.in_front(store, f"const {element} {value} = {code.source.of(form['value'])};")
    edits.replace(form["value"], value)


def _store(code: Code, statement: Node, behind: Node) -> Found | None:
    """`slots[threadIdx.x] = value;` in front of a barrier, which may be the first statement of a loop's body."""
    form = match(code.source, statement, "$slots[$at] = $value;")
    first = [behind, *statements(field_of(behind, "body"))[:1]]
    if form is None or not any(is_barrier(code.source, s) for s in first):
        return None
    memory = code.variable(form["slots"])
    if memory is None or not slots_of(code, memory) or code.polynomial(form["at"]) != Polynomial.symbol(THREAD):
        return None
    return form


def _next(code: Code, site: int) -> Step | None:
    """The text after one reduction, the first that is understood."""
    for kernel in code.kernels:
        with suppress(Unsupported):
            for attempt in _attempts(code, kernel, _widths(code, kernel)):
                with suppress(Unsupported):
                    return attempt(site)
    return None


def _attempts(code: Code, kernel: Kernel, widths: Widths) -> Iterator[Callable[[int], Step]]:
    """What could be a reduction: calls of functions, the same statements written into the kernel, CUB's."""
    source, ours = code.source, brought(code.source)
    calls = list(source.walk(kernel.body, "call_expression"))
    for call in calls:
        name = called(source, call)
        if name not in ours and len(code.overloads.get(name, [])) == 1 and _talks(code, name):
            yield partial(_without_call, code, kernel, widths, call, name)
    for body in map(statements, source.walk(kernel.body, "compound_statement")):
        for at, statement in enumerate(body):
            reduced = _shuffled(code, statement) or _stored(code, widths, body[at:])
            if reduced is not None:
                yield partial(_without_statements, code, kernel, widths, body[at:], reduced)
    for call in calls:
        yield partial(without_cub, code, kernel, widths, call)


def _widths(code: Code, kernel: Kernel) -> Widths:
    """How many threads a block may have, by launch: one number where it is known."""
    found = []
    if not kernel.launches:
        raise Unsupported("a kernel that nothing launches")
    for launch in kernel.launches:
        width = width_of(code, kernel, launch)
        if width is not None and (width % 32 or not 32 <= width <= 1024):
            raise Unsupported("a block that is not whole warps")
        found.append((launch, [width] if width is not None else [32 * warps for warps in WARPS]))
    return found


# A call of a function.


def _talks(code: Code, name: str) -> bool:
    """Whether the function has barriers and warps that talk, in itself or in what it calls."""
    return _waits(code, name) and any(_shuffles(code, f) for f in code.reached(name))


def _waits(code: Code, name: str) -> bool:
    calls = [c for f in code.reached(name) for c in code.source.walk(f, "call_expression")]
    return any(called(code.source, c) == "__syncthreads" for c in calls)


def _shuffles(code: Code, node: Node) -> bool:
    """Whether the threads of a warp talk to each other somewhere below the node."""
    return any("shfl" in called(code.source, c) for c in code.source.walk(node, "call_expression"))


def _without_call(code: Code, kernel: Kernel, widths: Widths, call: Node, name: str, site: int) -> Step:
    source = code.source
    (function,) = code.overloads[name]
    given = field_of(call, "function")
    while given.type == "qualified_identifier":
        given = field_of(given, "name")
    arguments, parameters = children_of(call, "arguments"), children_of(function, "declarator", "parameters")
    if len(arguments) > len(parameters):
        raise Unsupported("more arguments than parameters")
    results, at, element = [], 0, ""
    for launch, width in _shapes(widths):
        block = Surroundings(code, kernel, launch, width, "").block
        values = [_argument_value(block, a, p) for a, p in zip(arguments, parameters, strict=False)]
        if values.count(None) != 1:
            raise Unsupported("not one value")
        at = values.index(None)
        element = block.element = _element_of_value(code, function, given, parameters[at], arguments[at])
        values[at] = block.singles()
        results.append(judged(block, block.call(name, given, values, block.frame(), block.everyone)))
    result = joined(results)
    scratch = {source.of(n) for i, a in enumerate(arguments) if i != at for n in source.walk(a, "identifier")}
    check_slots(code, kernel, scratch, [(c.start_byte, c.end_byte) for c in kernel.calls(name)])
    plain = declared_type(code, arguments[at])
    if source.of(parameters[at], "type") in _template_types(code, function) and "<" not in source.of(given):
        plain = element  # the argument's own type is what it is deduced from
    value = source.of(arguments[at])
    passed = {
        dict(zip(kernel.template_names, x.template_arguments, strict=False)).get(element, element) for x, _ in widths
    }
    kind = passed.pop() if len(passed) == 1 else element  # what all launches say of `template <typename accscalar_t>`
    edits, statement = Edits(source), statement_of(call)
    value = value if plain == element else f"static_cast<{element}>({value})"
    reduction = reduction_text(result, site, value, kind)
    keep_apart(edits, code, kernel, statement)
    put_reduction(edits, code, kernel, call, arguments[at], reduction, element, result.everywhere)
    require(edits, code, *NAMES)
    scratch |= {source.of(n) for n in code.assigned(statement)}
    names = {source.of(declared_name(field_of(f, "declarator"))) for f in code.reached(name)}
    return Step(edits.apply(), names | scratch)


def _shapes(widths: Widths) -> list[tuple[Launch, int]]:
    return [(launch, width) for launch, sizes in widths for width in sizes]


def _argument_value(block: Block, node: Node, parameter: Node) -> object:
    """A number, an operation, shared memory; None for what is only known when it runs."""
    declarator = field_of(parameter, "declarator")
    if declarator is not None and declarator.type in {"pointer_declarator", "array_declarator"}:
        found = [block.code.definition(name) for name in block.source.walk(node, "identifier")]
        if not any(f is not None and f.kind == "local" and slots_of(block.code, f) for f in found):
            raise Unsupported("a pointer to something else than slots: what is written there would be lost")
        return Memory(block.source.of(node), "")
    try:
        value = block.value(node, block.frame(), block.everyone)
    except Unsupported:
        return None
    parts = value if isinstance(value, list) else [value]
    return value if all(isinstance(v, (int, float, Functor)) for v in parts) else None


def _template_types(code: Code, function: Node) -> list[str]:
    """The names of a template's parameters that are types, "" for numbers."""
    outer = function.parent
    listed = children_of(outer, "parameters") if outer is not None and outer.type == "template_declaration" else []
    types = {"type_parameter_declaration"}
    return [code.source.of(p.named_children[-1]) if p.type in types else "" for p in listed]


def _element_of_value(code: Code, function: Node, given: Node, parameter: Node, argument: Node) -> str:
    """The type of the value that a call reduces."""
    kind, names = code.source.of(parameter, "type"), _template_types(code, function)
    if kind not in names:
        return kind
    told = children_of(given, "arguments") if given.type == "template_function" else []
    at = names.index(kind)
    return code.source.of(told[at]) if at < len(told) else declared_type(code, argument) or kind


# The same statements, written into the kernel.


def _shuffled(code: Code, statement: Node) -> Definition | None:
    """The variable of the thread's own that a statement takes through shuffles first."""
    if statement.type not in {"for_statement", "expression_statement", "declaration"}:
        return None
    for call in code.source.walk(statement, "call_expression"):
        name = called(code.source, call)
        if _waits(code, name) or not ("shfl" in name or any(_shuffles(code, f) for f in code.reached(name))):
            continue
        for argument in children_of(call, "arguments"):
            found = code.variable(argument)
            if found is None or found.kind != "local" or inside(found.declaration, statement) or slots_of(code, found):
                continue
            if code.source.of(found.declaration, "type") != "auto":
                return found
    return None


def _stored(code: Code, widths: Widths, body: list[Node]) -> Definition | None:
    """The variable that goes into the slots from which a tree may begin. Shuffles need whole warps, and so say that blocks are;
    a tree does not, so widths must be known."""
    form = _store(code, *body[:2]) if len(body) > 2 else None
    found = code.variable(form["value"]) if form is not None else None
    if found is None or found.kind != "local" or slots_of(code, found):
        return None
    return found if all(len(sizes) == 1 for _, sizes in widths) else None


@dataclass(frozen=True)
class _Cell:
    """One element of shared memory, or a variable there, that the first thread has the result for."""

    target: str
    value: Node | None
    """What is made of the result; None for itself."""
    variable: str
    """The name that the result has in `value`."""


def _cells(
    edits: Edits, code: Code, kernel: Kernel, outcome: _Outcome, value: str, last: Node, *, settled: bool
) -> list[str]:
    """What the first thread told the others in shared memory. They read the result itself where that is `settled`, in a variable
    that stays as it is."""
    source, lines = code.source, list[str]()
    for cell in outcome.cells:
        reads = reads_of_cell(code, kernel, cell.target, last)
        if outcome.told and not reads:
            continue
        made = value
        if settled and cell.value is None and reads and all(plain for _, plain in reads):
            for read, _ in reads:
                edits.replace(read, value)
            continue
        if cell.value is not None:
            places = [n for n in source.walk(cell.value, "identifier") if source.of(n) == cell.variable]
            made = source.render(cell.value, [(n, value) for n in places])
        lines.append(f"if (threadIdx.x == 0) {cell.target} = {made};")
    behind = [s for s in statements(last.parent) if s.start_byte >= last.end_byte]
    if lines and not (behind and is_barrier(source, behind[0])):
        lines.append("__syncthreads();")  # the statements ended with one, as a tree does
    return lines


def _without_statements(
    code: Code, kernel: Kernel, widths: Widths, body: list[Node], reduced: Definition, site: int
) -> Step:
    source = code.source
    element, shapes = source.of(reduced.declaration, "type"), _shapes(widths)
    outcomes = [_run(code, kernel, launch, width, body, reduced, element) for launch, width in shapes]
    end = max(o.end for o in outcomes)  # a block of one warp may have its result before the others
    outcomes = [
        o if o.end == end else _run(code, kernel, launch, width, body, reduced, element, end)
        for o, (launch, width) in zip(outcomes, shapes, strict=True)
    ]
    result, outcome = joined([o.result for o in outcomes]), outcomes[0]
    if any((o.end, o.variable, o.cells) != (outcome.end, outcome.variable, outcome.cells) for o in outcomes):
        raise Unsupported("widths that differ")
    taken = body[: outcome.end + 1]
    first, last, edits = taken[0], taken[-1], Edits(source)
    if any(s.has_error for s in taken):
        raise Unsupported("the parser did not understand a statement")
    names = {source.of(n) for s in taken for n in source.walk(s, "identifier")}
    check_slots(code, kernel, names, [(first.start_byte, last.end_byte)], {c.target for c in outcome.cells})
    made = [code.declared(s) for s in taken if s.type == "declaration"]
    declared = next((one[0] for one in made if [found.name for found in one] == [outcome.variable]), None)
    kept = _still_needed(
        code, kernel, [s for s in taken if declared is None or not same(s, declared.declaration)], last, reduced
    )
    reduction = reduction_text(result, site, reduced.name, code.plain_type(element))
    new = None
    if outcome.variable == reduced.name:
        if not result.everywhere:
            check_readers(code, kernel, reduced, last, is_leaders)
        new = own_name(edits, code, kernel, reduced, first, last)
        lines = [f"const {element} {new} = {reduction};" if new else f"{reduced.name} = {reduction};"]
    elif not outcome.variable:
        said = sum(source.of(n) == reduced.name for s in taken for n in source.walk(s, "identifier"))
        if said > 1 or match(source, first, "$slots[$at] = $value;") is None:
            check_readers(code, kernel, reduced, last, nobody)  # it may hold a part of the result
        new = code.fresh(f"{reduced.name}_of_block")
        lines = [f"const {element} {new} = {reduction};"]
    elif declared is not None:
        check_readers(code, kernel, reduced, last, nobody)
        if not result.everywhere:
            check_readers(code, kernel, declared, last, is_leaders)
        lines = [f"{element} {outcome.variable} = {reduction};"]
    else:
        raise Unsupported("a result in a variable that is declared among others")
    lines += _cells(edits, code, kernel, outcome, new or outcome.variable, last, settled=new is not None)
    keep_apart(edits, code, kernel, first, last)
    indent, (start, lost) = source.indent(first), start_of(source, first)
    lines = [*(source.of(s) for s in kept), *lines]
    edits.changes.append((start, last.end_byte, lost + f"\n{indent}".join(lines)))
    require(edits, code, *NAMES)
    helpers = [f for f in source.walk(None, "function_definition") if f.start_byte in result.used]
    return Step(
        edits.apply(),
        names | {source.of(declared_name(field_of(f, "declarator"))) for f in helpers},
    )  # fmt: skip


@dataclass
class _Outcome:
    result: Result
    end: int
    """The place of the last statement that is needed."""
    variable: str
    """What holds the result in the first thread, "" where only cells do."""
    cells: list[_Cell]
    told: bool = False
    """Whether every thread has read its cell already."""


def _run(
    code: Code,
    kernel: Kernel,
    launch: Launch,
    width: int,
    body: list[Node],
    reduced: Definition,
    element: str,
    least: int = 0,
) -> _Outcome:
    """The statements up to the first, but at `least` so many, after which the block's first thread has the result, or has left
    it in memory."""
    around = Surroundings(code, kernel, launch, width, element, reduced)
    block = around.block = _Finishing(code, width, element, around)
    frame = block.frame(reduced.name)
    for at, statement in enumerate(body):
        block.run(statement, frame, block.everyone)
        cells = list(block.cells)
        for memory in around.left_in_memory():
            if _is_full(block, memory.held[0][0]):
                cells.append(_Cell(memory.name if memory.scalar else f"{memory.name}[0]", None, ""))
        whole = [n for n, value in frame.scopes[0].items() if _is_full(block, block.of_thread(value, 0))]
        if at >= least and (block.barriers or width == WARP) and (whole or cells):
            variable = reduced.name if reduced.name in whole else whole[0] if whole else ""
            value = frame.scopes[0][variable] if variable else [Part(block.full, block.bound), *[UNKNOWN] * (width - 1)]
            cells.sort(key=lambda c: c.target)
            outcome = _Outcome(judged(block, value), at, variable, cells)
            return (
                outcome if outcome.result.everywhere else _told(block, frame, body, outcome, variable or reduced.name)
            )
    raise Unsupported("no reduction")


def _told(block: Block, frame: Frame, body: list[Node], outcome: _Outcome, variable: str) -> _Outcome:
    """With `__syncthreads(); value = slots[0];` behind it, where these give every thread the result."""
    source, end = block.source, outcome.end
    while end + 1 < len(body) and is_barrier(source, body[end + 1]):
        end += 1
    form = match(source, body[end + 1], "$value = $cell;") if end + 1 < len(body) else None
    cells = {c.target for c in outcome.cells if c.value is None}
    if form is None or source.of(form["value"]) != variable or source.of(form["cell"]) not in cells:
        return outcome
    for statement in body[outcome.end + 1 : end + 2]:
        block.run(statement, frame, block.everyone)
    result = judged(block, frame.scopes[0][variable])
    return replace(outcome, result=result, end=end + 1, variable=variable, told=True)


def _is_full(block: Block, value: object) -> bool:
    return isinstance(value, Part) and value.threads == block.full


class _Finishing(Block):
    """Also lets the first thread leave what it makes of the result in shared memory: `total = sqrtf(v)`."""

    def __init__(self, code: Code, width: int, element: str, outer: Surroundings) -> None:
        super().__init__(code, width, element, outer)
        self.cells: list[_Cell] = []
        self.bound: float | None = None

    def _assign(self, node: Node, frame: Frame, active: list[int]) -> object:
        target, right = field_of(node, "left"), field_of(node, "right")
        plain = self.source.of(node, "operator") == "="
        if active == [0] and plain and self.depth == 0 and target.type == "identifier" and right.type != "identifier":
            memory = self.name(target, frame, active)
            found = self._made_of(right, frame) if isinstance(memory, Memory) and memory.scalar else None
            if found is not None:
                self.cells.append(_Cell(self.source.of(target), right, found))
                return UNKNOWN
        return super()._assign(node, frame, active)

    def _made_of(self, value: Node, frame: Frame) -> str | None:
        """The variable with the result, where nothing else in the expression was made on the way."""
        names = set()
        for name in self.source.walk(value, "identifier"):
            scope = next((s for s in reversed(frame.scopes) if self.source.of(name) in s), None)
            here = self.of_thread(scope[self.source.of(name)], 0) if scope is not None else None
            if isinstance(here, Part) and _is_full(self, here):
                names.add(self.source.of(name))
                self.bound = here.bound
            elif scope is not None:
                return None
        return names.pop() if len(names) == 1 else None


def _still_needed(code: Code, kernel: Kernel, taken: list[Node], last: Node, reduced: Definition) -> list[Node]:
    """The declarations among the statements that are read behind them. Raises Unsupported where one holds a value that
    was not there before."""
    source, kept = code.source, []
    assigned = {source.of(n) for s in taken for n in code.assigned(s)}
    for statement in (s for s in taken if s.type == "declaration"):
        shared = source.says(statement, "__shared__")
        uses = (use for found in code.declared(statement) for use in code.uses(found, kernel.body))
        if not shared and not any(use.start_byte >= last.end_byte for use in uses):
            continue
        made = {source.of(n) for n in source.walk(statement, "identifier")}
        talks = source.has(statement, "call_expression", "subscript_expression")
        if not shared and (talks or reduced.name in made or made & assigned):
            raise Unsupported("a value of the reduction that is read later")
        kept.append(statement)
    return kept
