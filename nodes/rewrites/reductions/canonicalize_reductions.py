"""Somebody's own reduction over the block takes the form that warp_shuffle_reduction leaves, from which the other steps go on.

    sum = blockReduceSum<float>(sum);                   const float sum_of_block = block_sum<0>(sum);
    if (threadIdx.x == 0) total = sum;           ->     if (threadIdx.x == 0) total = sum_of_block;

Recognised by what it does and not by its name: the statements run, in step, for the width that a launch has, or for blocks
of one to 32 warps (see block_values.py), and where thread 0, or every thread, ends with each thread's value once it was a
reduction. So the shuffles may go up, down or across, through helper functions or not, the second step may be one warp's or
every warp's, the slots may be the helper's own or handed in. Forms: a call of a function; the same statements written into
the kernel; CUB's `BlockReduce`. What is left of them, helpers, slots and barriers that nothing needs any more, goes.

Our form leaves the result with every thread. Where theirs left it with the first alone, what reads it must ask for that
thread. Theirs shuffle whole warps only, or their results would be undefined, so blocks are whole warps already.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tree_sitter import Node

from harness.records import Outcome
from nodes.rewrites.analysis.block_shape import is_barrier, whole_warps
from nodes.rewrites.analysis.block_values import UNKNOWN, WARP, Block, Frame, Memory, Part
from nodes.rewrites.analysis.device_code import Code, Definition, code_of, inside
from nodes.rewrites.analysis.insertions import drop_unused
from nodes.rewrites.analysis.kernels import Kernel
from nodes.rewrites.analysis.launch_values import value_in
from nodes.rewrites.analysis.launches import Launch
from nodes.rewrites.analysis.regions import EXTREMES, THREAD
from nodes.rewrites.prelude.block_reductions import HELPERS
from nodes.rewrites.reductions.idle_threads import without_idle
from nodes.rewrites.reductions.uses import (
    check_readers,
    check_slots,
    declared_alone,
    is_leaders,
    keep_apart,
    nobody,
    own_name,
    slots_of,
    start_of,
)
from nodes.rewrites.reductions.warp_reductions import called
from nodes.rewrites.reductions.warp_shuffle_reduction import next_site, require_reduction
from nodes.rewrites.reductions.whole_warps import round_up
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.syntax.algebra import Polynomial
from nodes.rewrites.syntax.nodes import LOOPS, declared_name, same, statements
from nodes.rewrites.syntax.source import Edits, Source, Unsupported
from nodes.rewrites.syntax.tree import children_of, enclosing, field_of

MOST = 32
"""Reductions of one file."""
WARPS = (1, 2, 3, 7, 16, 17, 32)
"""Of blocks whose width is only known when it runs: powers of two, what lies next to them, the most there may be."""
ORDERED = frozenset({
    "float", "double", "int", "int32_t", "int64_t", "long", "long long", "unsigned", "unsigned int", "uint32_t", "uint64_t",
    "size_t",
})  # fmt: skip
"""Types that CUDA's own max() and min() take."""


@rule(
    "cuda",
    expected="a barrier less a reduction, 1 to 3 % of a short row, and later steps see a reduction that they know",
    speedup=1.03,
    helps={"memory", "latency", "compute"},
    after=("warp_shuffle_reduction",),
    risks=(Outcome.INCORRECT, Outcome.RUNTIME_ERROR),
)
def rewrite(source: Source, facts: Facts) -> str | None:
    if not any(word in source.text for word in ("__syncthreads", "BlockReduce")):
        return None
    text, kinds, unused = source.text, set(), set()
    site = next_site(code_of(source))
    for _ in range(MOST):
        step = _next(code_of(source.reparsed(text)), site)
        if step is None:
            break
        text, site = step.text, site + 1
        kinds.add(step.kind)
        unused |= step.unused
    if not kinds:
        return None
    return without_idle(source.reparsed(_named(source, _tidied(source, text, unused), kinds)))


@dataclass(frozen=True)
class _Step:
    text: str
    kind: str
    unused: set[str]
    """Names that may have lost their last use: functions, slots, what tells lanes from warps."""


def _placeholder(kind: str) -> str:
    """A name of its own until theirs is gone: it may be called block_sum too."""
    return f"settled_block_{kind}"


def _named(source: Source, text: str, kinds: set[str]) -> str:
    """With the reductions themselves. Raises Unsupported where their names mean something else."""
    for kind in sorted(kinds):
        here = source.reparsed(text)
        edits = Edits(here)
        for name in here.walk(None, "identifier"):
            if here.of(name) == _placeholder(kind):
                edits.replace(name, f"block_{kind}")
        require_reduction(edits, code_of(here), kind)
        text = edits.apply()
    return text


def _next(code: Code, site: int) -> _Step | None:
    """The text after one reduction, the first that is understood."""
    for kernel in code.kernels:
        try:
            widths = _widths(code, kernel)
        except Unsupported:
            continue
        for attempt in (_call, _inline, _cub):
            step = attempt(code, kernel, widths, site)
            if step is not None:
                return step
    return None


def _widths(code: Code, kernel: Kernel) -> list[tuple[Launch, list[int]]]:
    """How many threads a block may have, by launch: one number where it is known."""
    found = []
    if not kernel.launches:
        raise Unsupported("a kernel that nothing launches")
    for launch in kernel.launches:
        if launch.extents(launch.block)[1:] != ("1", "1"):
            raise Unsupported("a block of more than one dimension")
        width = _extent(code, kernel, launch)
        if width is not None and (width % 32 or not 32 <= width <= 1024):
            raise Unsupported("a block that is not whole warps")
        found.append((launch, [width] if width is not None else [32 * warps for warps in WARPS]))
    return found


def _extent(code: Code, kernel: Kernel, launch: Launch) -> int | None:
    try:
        block = launch.along_x(launch.block)
    except Unsupported:
        return None
    value = code.polynomial(block).value
    return value if value is not None else value_in(code, kernel, None, block)


class _Around:
    """What names mean outside of the statements that are run."""

    def __init__(self, code: Code, kernel: Kernel, launch: Launch, reduced: Definition | None) -> None:
        self.code, self.kernel, self.launch, self.reduced = code, kernel, launch, reduced
        self.block: Block | None = None
        self.memories: dict[int, Memory] = {}
        self.settling = 0

    def __call__(self, name: Node) -> object:
        code, found = self.code, self.code.definition(name)
        if found is None:
            return None
        if found.kind in {"macro", "template"}:
            return value_in(code, self.kernel, self.launch, name)
        if self.reduced is not None and found.where == self.reduced.where:
            return self.block.singles() if not self.settling else None
        if found.kind == "local" and found.where not in self.memories:
            element = slots_of(code, found)
            if element:
                scalar = found.declarator is not None and found.declarator.type == "identifier"
                self.memories[found.where] = Memory(found.name, element, scalar=scalar)
        if found.where in self.memories:
            return self.memories[found.where]
        if found.value is None or code.mutated(found):
            return None
        if found.declarator is not None and field_of(found.declarator, "declarator").type != "identifier":
            return None
        self.settling += 1
        try:
            return self.block.value(found.value, self.block.frame(), self.block.everyone)
        finally:
            self.settling -= 1


# A call of a function.


@dataclass
class _Result:
    """What a reduction came to, for every width alike."""

    kind: str
    everywhere: bool
    """Whether every thread has it, and not the first alone."""
    bound: str
    used: set[int]
    waits: bool = True
    """Whether warps met; a block of one warp needs none of what blocks of more do."""


def _joined(results: list[_Result]) -> _Result:
    (kind, *kinds) = sorted({r.kind for r in results if r.kind})
    bounds = sorted({r.bound for r in results if r.bound})
    if kinds or len(bounds) > 1 or (bounds and kind == "sum"):
        raise Unsupported("widths that differ")
    if not any(r.waits for r in results):
        raise Unsupported("no reduction over the block")
    used = set().union(*(r.used for r in results))
    return _Result(kind, all(r.everywhere for r in results), bounds[0] if bounds else "", used)


def _judged(block: Block, value: object) -> _Result:
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
    return _Result(block.kind, everywhere, bound, set(block.used), block.barriers > 0)


def _call(code: Code, kernel: Kernel, widths: list[tuple[Launch, list[int]]], site: int) -> _Step | None:
    for call in code.source.walk(kernel.body, "call_expression"):
        name = called(code.source, call)
        ours = any(name == f"block_{kind}" and text in code.source.text for kind, text in HELPERS.items())
        if not ours and len(code.overloads.get(name, [])) == 1 and _talks(code, name):
            try:
                return _without_call(code, kernel, widths, call, name, site)
            except Unsupported:
                continue
    return None


def _talks(code: Code, name: str) -> bool:
    """Whether the function has barriers and warps that talk, in itself or in what it calls."""
    return _waits(code, name) and any(_shuffles(code, f) for f in _reached(code, name))


def _waits(code: Code, name: str) -> bool:
    calls = [c for f in _reached(code, name) for c in code.source.walk(f, "call_expression")]
    return any(called(code.source, c) == "__syncthreads" for c in calls)


def _shuffles(code: Code, node: Node) -> bool:
    """Whether the threads of a warp talk to each other somewhere below the node."""
    names = [called(code.source, c) for c in code.source.walk(node, "call_expression")]
    return any("shfl" in name for name in names)


def _reached(code: Code, name: str) -> list[Node]:
    found: list[Node] = []
    stack = list(code.overloads.get(name, []))
    while stack:
        function = stack.pop()
        if any(same(function, other) for other in found):
            continue
        found.append(function)
        for call in code.source.walk(function, "call_expression"):
            stack += code.overloads.get(called(code.source, call), [])
    return found


def _without_call(
    code: Code, kernel: Kernel, widths: list[tuple[Launch, list[int]]], call: Node, name: str, site: int
) -> _Step:
    source = code.source
    (function,) = code.overloads[name]
    listed, given = field_of(call, "arguments"), field_of(call, "function")
    parameters = field_of(function, "declarator", "parameters")
    arguments = children_of(listed)
    kinds = children_of(parameters)
    while given.type == "qualified_identifier":
        given = field_of(given, "name")
    if len(arguments) > len(kinds):
        raise Unsupported("more arguments than parameters")
    results, at, element = [], None, ""
    for launch, sizes in widths:
        for width in sizes:
            around = _Around(code, kernel, launch, None)
            values = []
            block = Block(code, width, "", around)
            around.block = block
            unknown = []
            for number, argument in enumerate(arguments):
                declarator = field_of(kinds[number], "declarator")
                pointer = declarator is not None and declarator.type in {"pointer_declarator", "array_declarator"}
                values.append(_argument(block, argument, pointer))
                if values[-1] is None:
                    unknown.append(number)
            if len(unknown) != 1:
                raise Unsupported("not one value")
            at = unknown[0]
            element = block.element = _element(code, function, given, kinds[at], arguments[at])
            for value in values:
                if isinstance(value, Memory) and not value.element:
                    value.element = element
            values[at] = block.singles()
            results.append(_judged(block, block.call(name, given, values, block.frame(), block.everyone)))
    result = _joined(results)
    scratch = {source.of(n) for i, a in enumerate(arguments) if i != at for n in source.walk(a, "identifier")}
    check_slots(code, kernel, scratch, [(c.start_byte, c.end_byte) for c in kernel.calls(name)])
    value = source.of(arguments[at])
    plain = _declared_type(code, arguments[at])
    named = source.of(kinds[at], "type")
    if plain != element and named in _template_types(code, function) and not source.of(given).count("<"):
        plain = element  # the argument's own type is what it is deduced from
    reduction = _reduction(result, site, value if plain == element else f"static_cast<{element}>({value})", element)
    edits, statement = Edits(source), _statement(call)
    keep_apart(edits, code, kernel, statement)
    _put(edits, code, kernel, call, arguments[at], reduction, element, result.everywhere)
    scratch |= {source.of(n) for n in code.assigned(statement)}
    names = {source.of(declared_name(field_of(f, "declarator"))) for f in _reached(code, name)}
    return _Step(edits.apply(), result.kind, names | scratch)


def _reduction(result: _Result, site: int, value: str, element: str) -> str:
    if result.kind != "sum" and element not in ORDERED:
        raise Unsupported(f"an extreme of {element}, which max() and min() may not know")
    call = f"{_placeholder(result.kind)}<{site}>({value})"
    if not result.bound:
        return call
    if element != "float":
        raise Unsupported("an extreme with a bound")
    return f"f{result.kind}f({call}, {result.bound})"  # of a row that has nothing above it


def _argument(block: Block, node: Node, pointer: bool) -> object:
    """A number, a group, shared memory; None for what is only known when it runs."""
    outer = block.outer
    assert isinstance(outer, _Around)
    if pointer:
        found = [outer.code.definition(name) for name in block.source.walk(node, "identifier")]
        if not any(f is not None and f.kind == "local" and slots_of(outer.code, f) for f in found):
            raise Unsupported("a pointer to something else than slots: what is written there would be lost")
        return Memory(block.source.of(node), "")
    outer.settling += 1
    try:
        value = block.value(node, block.frame(), block.everyone)
    except Unsupported:
        return None
    finally:
        outer.settling -= 1
    parts = value if isinstance(value, list) else [value]
    return value if all(isinstance(v, (int, float)) for v in parts) else None


def _template_types(code: Code, function: Node) -> list[str]:
    outer = function.parent
    if outer is None or outer.type != "template_declaration":
        return []
    listed = field_of(outer, "parameters")
    return [
        code.source.of(p.named_children[-1]) if p.type == "type_parameter_declaration" else ""
        for p in listed.named_children
    ]


def _element(code: Code, function: Node, given: Node, parameter: Node, argument: Node) -> str:
    """The type of the value that a call reduces."""
    kind = code.source.of(parameter, "type")
    names = _template_types(code, function)
    if kind not in names:
        return kind
    listed = field_of(given, "arguments") if given.type == "template_function" else None
    if listed is not None and names.index(kind) < listed.named_child_count:
        return code.source.of(listed.named_children[names.index(kind)])
    return _declared_type(code, argument) or kind


def _declared_type(code: Code, node: Node) -> str:
    found = code.definition(node) if node.type == "identifier" else None
    if found is None or found.declaration.type not in {"declaration", "parameter_declaration"}:
        return ""
    return code.source.of(found.declaration, "type")


def _statement(node: Node) -> Node:
    here = node
    while here.parent is not None and here.parent.type != "compound_statement":
        if here.parent.type in LOOPS | {"if_statement", "conditional_expression", "lambda_expression"}:
            raise Unsupported("a reduction that is no statement of its own")
        here = here.parent
    return here


def _put(
    edits: Edits, code: Code, kernel: Kernel, call: Node, argument: Node, reduction: str, element: str, everywhere: bool
) -> None:
    """Our call in place of theirs. A result in the middle of an expression gets a name, and so does one that replaces its
    own argument where nothing else is assigned to that any more. What reads a result that only the first thread had must
    ask for that thread: raises Unsupported where it does not."""
    source, statement = code.source, _statement(call)
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


# The same statements, written into the kernel.


def _inline(code: Code, kernel: Kernel, widths: list[tuple[Launch, list[int]]], site: int) -> _Step | None:
    for block in code.source.walk(kernel.body, "compound_statement"):
        body = statements(block)
        for at, statement in enumerate(body):
            reduced = _shuffled(code, statement) or _stored(code, kernel, widths, body[at:])
            if reduced is not None:
                try:
                    return _without_statements(code, kernel, widths, body[at:], reduced, site)
                except Unsupported:
                    continue
    return None


def _shuffled(code: Code, statement: Node) -> Definition | None:
    """The variable of the thread's own that a statement takes through shuffles first."""
    if statement.type not in {"for_statement", "expression_statement", "declaration"}:
        return None
    for call in code.source.walk(statement, "call_expression"):
        name = called(code.source, call)
        if _waits(code, name) or not ("shfl" in name or any(_shuffles(code, f) for f in _reached(code, name))):
            continue
        for argument in children_of(call, "arguments"):
            found = code.definition(argument) if argument.type == "identifier" else None
            if found is None or found.kind != "local" or inside(found.declaration, statement) or slots_of(code, found):
                continue
            if code.source.of(found.declaration, "type") != "auto":
                return found
    return None


def _stored(code: Code, kernel: Kernel, widths: list[tuple[Launch, list[int]]], body: list[Node]) -> Definition | None:
    """The variable of `slots[threadIdx.x] = value; __syncthreads();`, from which a tree may begin. Shuffles need whole warps,
    and so say that blocks are; a tree does not, so widths must be known."""
    if len(body) < 3 or body[0].type != "expression_statement" or not is_barrier(code.source, body[1]):
        return None
    assignment = body[0].named_children[0] if body[0].named_child_count else body[0]
    if assignment.type != "assignment_expression" or code.source.of(assignment.children[1]) != "=":
        return None
    target, value = (field_of(assignment, f) for f in ("left", "right"))
    if target.type != "subscript_expression" or value.type != "identifier":
        return None
    slots, index = field_of(target, "argument"), field_of(target, "indices")
    memory = code.definition(slots) if slots.type == "identifier" else None
    found = code.definition(value)
    if memory is None or not slots_of(code, memory) or found is None or found.kind != "local" or slots_of(code, found):
        return None
    by_thread = code.polynomial(index.named_children[0]) == Polynomial.symbol(THREAD)
    return found if by_thread and all(len(sizes) == 1 for _, sizes in widths) else None


@dataclass(frozen=True)
class _Cell:
    """One element of shared memory, or a variable there, that the first thread has the result for."""

    target: str
    value: Node | None
    """What is made of the result; None for itself."""
    variable: str
    """The name that the result has in `value`."""


def _without_statements(
    code: Code, kernel: Kernel, widths: list[tuple[Launch, list[int]]], body: list[Node], reduced: Definition, site: int
) -> _Step:
    source = code.source
    element = source.of(reduced.declaration, "type")
    shapes = [(launch, width) for launch, sizes in widths for width in sizes]
    outcomes = [_run(code, kernel, launch, width, body, reduced, element) for launch, width in shapes]
    end = max(o.end for o in outcomes)  # a block of one warp may have its result before the others
    outcomes = [
        o if o.end == end else _run(code, kernel, launch, width, body, reduced, element, end)
        for o, (launch, width) in zip(outcomes, shapes, strict=True)
    ]
    result, outcome = _joined([o.result for o in outcomes]), outcomes[0]
    if any((o.end, o.variable, o.cells) != (outcome.end, outcome.variable, outcome.cells) for o in outcomes):
        raise Unsupported("widths that differ")
    taken = body[: outcome.end + 1]
    first, last, edits = taken[0], taken[-1], Edits(source)
    if any(s.has_error for s in taken):
        raise Unsupported("the parser did not understand a statement")
    names = {source.of(n) for s in taken for n in source.walk(s, "identifier")}
    check_slots(code, kernel, names, [(first.start_byte, last.end_byte)], {c.target for c in outcome.cells})
    declared = _declaration_of(code, taken, outcome.variable)
    kept = _still_needed(
        code, kernel, [s for s in taken if declared is None or not same(s, declared.declaration)], last, reduced
    )
    reduction, value = _reduction(result, site, reduced.name, element), outcome.variable
    if outcome.variable in {reduced.name, ""}:
        if outcome.variable and not result.everywhere:
            check_readers(code, kernel, reduced, last, is_leaders)
        if not outcome.variable:
            check_readers(code, kernel, reduced, last, nobody)
        new = own_name(edits, code, kernel, reduced, first, last)
        value = new or reduced.name
        lines = [f"const {element} {new} = {reduction};" if new else f"{value} = {reduction};"]
    elif declared is not None:
        check_readers(code, kernel, reduced, last, nobody)
        if not result.everywhere:
            check_readers(code, kernel, declared, last, is_leaders)
        lines = [f"{element} {outcome.variable} = {reduction};"]
    else:
        raise Unsupported("a result in a variable that is declared among others")
    for cell in outcome.cells:
        if outcome.told and not _is_read(code, kernel, cell, last):
            continue
        made = value
        if cell.value is not None:
            places = [n for n in source.walk(cell.value, "identifier") if source.of(n) == cell.variable]
            made = source.render(cell.value, [(n, value) for n in places])
        lines.append(f"if (threadIdx.x == 0) {cell.target} = {made};")
    after = last.next_named_sibling
    while after is not None and after.type == "comment":
        after = after.next_named_sibling
    if lines[-1].startswith("if (threadIdx.x == 0)") and (after is None or not is_barrier(source, after)):
        lines.append("__syncthreads();")  # the statements ended with one, as a tree does
    keep_apart(edits, code, kernel, first, last)
    indent, (start, lost) = source.indent(first), start_of(source, first)
    lines = [*(source.of(s) for s in kept), *lines]
    edits.changes.append((start, last.end_byte, lost + f"\n{indent}".join(lines)))
    helpers = [f for f in source.walk(None, "function_definition") if f.start_byte in result.used]
    return _Step(
        edits.apply(), result.kind,
        names | {source.of(declared_name(field_of(f, "declarator"))) for f in helpers},
    )  # fmt: skip


@dataclass
class _Outcome:
    result: _Result
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
    around = _Around(code, kernel, launch, reduced)
    block = _Finishing(code, width, element, around)
    around.block = block
    frame = block.frame()
    frame.scopes[0][reduced.name], frame.held[reduced.name] = block.singles(), element
    for at, statement in enumerate(body):
        block.run(statement, frame, block.everyone)
        cells = list(block.cells)
        for memory in [*around.memories.values(), *block.shared.values()]:
            if 0 in memory.held and _is_full(block, memory.held[0][0]):
                cells.append(_Cell(memory.name if memory.scalar else f"{memory.name}[0]", None, ""))
        whole = [n for n, value in frame.scopes[0].items() if _is_full(block, block.of_thread(value, 0))]
        if at >= least and (block.barriers or width == WARP) and (whole or cells):
            variable = reduced.name if reduced.name in whole else whole[0] if whole else ""
            value = frame.scopes[0][variable] if variable else [Part(block.full, block.bound), *[UNKNOWN] * (width - 1)]
            cells.sort(key=lambda c: c.target)
            outcome = _Outcome(_judged(block, value), at, variable, cells)
            return _told(block, frame, body, outcome) if variable and not outcome.result.everywhere else outcome
    raise Unsupported("no reduction")


def _told(block: Block, frame: Frame, body: list[Node], outcome: _Outcome) -> _Outcome:
    """With `__syncthreads(); value = slots[0];` behind it, where these give every thread the result."""
    source, (barrier, told, *_) = block.source, [*body[outcome.end + 1 :], body[-1], body[-1]]
    assignment = told.named_children[0] if told.type == "expression_statement" and told.named_child_count else told
    target, right = field_of(assignment, "left"), field_of(assignment, "right")
    from_cell = right is not None and source.of(right) in {c.target for c in outcome.cells if c.value is None}
    if not is_barrier(source, barrier) or assignment.type != "assignment_expression" or not from_cell:
        return outcome
    if source.of(target) != outcome.variable:
        return outcome
    for statement in (barrier, told):
        block.run(statement, frame, block.everyone)
    return _Outcome(
        _judged(block, frame.scopes[0][outcome.variable]), outcome.end + 2, outcome.variable, outcome.cells, True
    )


def _is_read(code: Code, kernel: Kernel, cell: _Cell, last: Node) -> bool:
    """Whether what is left in the cell may be read later, here or in a round to come."""
    name = cell.target.partition("[")[0]
    uses = [n for n in code.source.walk(kernel.body, "identifier") if code.source.of(n) == name]
    for use in (n for n in uses if n.start_byte >= last.end_byte):
        place = use.parent if use.parent is not None and use.parent.type == "subscript_expression" else use
        owner = place.parent
        if owner is None or owner.type != "assignment_expression" or not same(field_of(owner, "left"), place):
            return True
        if code.source.of(owner, "operator") == "=":
            return False  # written anew, by check_slots before any other element is read
    return False


def _declaration_of(code: Code, taken: list[Node], variable: str) -> Definition | None:
    """Of a variable that one of the statements declares, alone."""
    for statement in taken:
        if statement.type == "declaration" and len(statement.children_by_field_name("declarator")) == 1:
            found = declared_alone(code, statement)
            if found is not None and found.name == variable:
                return found
    return None


def _is_full(block: Block, value: object) -> bool:
    return isinstance(value, Part) and value.threads == block.full


class _Finishing(Block):
    """Also lets the first thread leave what it makes of the result in shared memory: `total = sqrtf(v)`."""

    def __init__(self, code: Code, width: int, element: str, outer: _Around) -> None:
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
    for statement in taken:
        if statement.type != "declaration":
            continue
        shared = any(source.of(c) == "__shared__" for c in statement.children)
        declared = [n for d in statement.children_by_field_name("declarator") if (n := declared_name(d)) is not None]
        names = {source.of(n) for n in declared}
        later = [
            n for n in source.walk(kernel.body, "identifier") if source.of(n) in names and n.start_byte >= last.end_byte
        ]
        later = [n for n in later if (f := code.definition(n)) is not None and inside(f.declaration, statement)]
        if not later and not shared:
            continue
        made = {source.of(n) for n in source.walk(statement, "identifier")}
        assigned = {source.of(n) for s in taken for n in code.assigned(s)}
        talks = source.has(statement, "call_expression", "subscript_expression")
        if not shared and (talks or reduced.name in made or made & assigned):
            raise Unsupported("a value of the reduction that is read later")
        kept.append(statement)
    return kept


# CUB.


def _cub(code: Code, kernel: Kernel, widths: list[tuple[Launch, list[int]]], site: int) -> _Step | None:
    for call in code.source.walk(kernel.body, "call_expression"):
        try:
            step = _without_cub(code, kernel, widths, call, site)
        except Unsupported:
            continue
        if step is not None:
            return step
    return None


_CUB_SCOPES = {"cub", "cuda", "cuda::std", "::cub", "::cuda", "::cuda::std"}
_CUB = {"Sum": "sum", "plus": "sum", "Max": "max", "maximum": "max", "Min": "min", "minimum": "min"}


def _without_cub(
    code: Code, kernel: Kernel, widths: list[tuple[Launch, list[int]]], call: Node, site: int
) -> _Step | None:
    """`Reduce(temporary).Sum(value)` and `.Reduce(value, cub::Max())`, of `cub::BlockReduce<float, 256>`."""
    source, function = code.source, field_of(call, "function")
    if function is None or function.type != "field_expression":
        return None
    made, method = field_of(function, "argument"), source.of(function, "field")
    if made is None or made.type != "call_expression" or method not in {"Sum", "Reduce"}:
        return None
    held = field_of(made, "arguments").named_children
    kind = source.of(made, "function")
    alias = next((a for a in source.walk(kernel.body, "alias_declaration", "type_definition") if kind in {
        source.of(a, "name"), source.of(a, "declarator")}), None)  # fmt: skip
    words = source.of(alias, "type") if alias is not None else kind
    inside_of = words.removeprefix("cub::BlockReduce<").removesuffix(">").split(",")
    if not words.startswith("cub::BlockReduce<") or len(inside_of) != 2 or len(held) != 1:
        raise Unsupported("another block reduction")
    element = inside_of[0].strip()
    arguments = children_of(call, "arguments")
    operation = _operation(code, arguments[1]) if method == "Reduce" and len(arguments) > 1 else "sum"
    counted = arguments[2:] if method == "Reduce" else arguments[1:]
    if not operation or [source.of(c) for c in counted] not in ([], ["blockDim.x"]):
        raise Unsupported("a reduction of another kind")
    edits = Edits(source)
    if not all(len(sizes) == 1 or whole_warps(code, kernel, launch.block) for launch, sizes in widths):
        reduced = code.definition(arguments[0]) if arguments[0].type == "identifier" else None
        if reduced is None or reduced.kind != "local" or not counted:
            raise Unsupported("blocks that may not be whole warps")
        round_up(edits, code, kernel, call, reduced, operation)
    if not counted and any([str(s) for s in sizes] != [inside_of[1].strip()] for _, sizes in widths):
        raise Unsupported("fewer threads than CUB counts on")
    temporary = source.of(held[0])
    if any(source.of(n) == temporary and not _is_temporary(source, n) for n in source.walk(kernel.body, "identifier")):
        raise Unsupported("memory that serves more than CUB")
    value = source.of(arguments[0])
    if _declared_type(code, arguments[0]) != element:
        value = f"static_cast<{element}>({value})"
    result = _Result(operation, False, "", set())
    reduction = _reduction(result, site, value, element)
    keep_apart(edits, code, kernel, _statement(call))
    _put(edits, code, kernel, call, arguments[0], reduction, element, everywhere=False)
    return _Step(edits.apply(), result.kind, {temporary, kind})


def _operation(code: Code, node: Node) -> str:
    """sum, max or min: `cub::Max()`, `cuda::std::plus<float>{}`, a functor or a short name of the file's; "" for others."""
    name = code.source.of(node).removesuffix("()").removesuffix("{}").partition("<")[0]
    scope, _, last = name.rpartition("::")
    if scope in _CUB_SCOPES:
        return _CUB.get(last, "")
    return _functor(code, last) or _short_name(code, last)


def _short_name(code: Code, name: str) -> str:
    """`using CubAddOp = cuda::std::plus<>;`, of which there may be one for each version of the library."""
    source, kinds = code.source, set[str]()
    for alias in source.walk(None, "alias_declaration"):
        if source.of(alias, "name") == name:
            scope, _, last = source.of(alias, "type").partition("<")[0].rpartition("::")
            kinds.add(_CUB.get(last, "") if scope in _CUB_SCOPES else "")
    return kinds.pop() if len(kinds) == 1 else ""


def _functor(code: Code, name: str) -> str:
    """Of a struct of the file whose one operator returns `a + b`, or `max(a, b)`."""
    source = code.source
    structs = [s for s in source.walk(None, "struct_specifier") if source.of(s, "name") == name]
    structs = [s for s in structs if field_of(s, "body") is not None]
    functions = [f for s in structs for f in source.walk(s, "function_definition")]
    if len(structs) != 1 or len(functions) != 1:
        return ""
    listed = next(source.walk(functions[0], "parameter_list"), None)
    names = [declared_name(field_of(p, "declarator") or p) for p in listed.named_children] if listed else []
    body = field_of(functions[0], "body")
    inner = statements(body) if body is not None else []
    made = inner[0].named_children[0] if len(inner) == 1 and inner[0].type == "return_statement" else None
    if made is None or len(names) != 2:
        return ""
    both = [source.of(n) for n in names]
    if made.type == "binary_expression" and source.of(made, "operator") == "+":
        return "sum" if [source.of(c) for c in made.named_children] == both else ""
    if made.type == "call_expression":
        called_ = source.of(made, "function").removeprefix("::").removeprefix("std::")
        given = [source.of(c) for c in field_of(made, "arguments").named_children]
        return EXTREMES.get(called_, "") if sorted(given) == sorted(both) else ""
    return ""


def _is_temporary(source: Source, name: Node) -> bool:
    parent = name.parent
    if parent is None or parent.type == "declaration":
        return parent is not None
    made = parent.parent if parent.type == "argument_list" else None
    owner = made.parent if made is not None else None
    return owner is not None and owner.type == "field_expression" and source.of(owner, "field") in {"Sum", "Reduce"}


# What is left over.


def _tidied(before: Source, text: str, names: set[str]) -> str:
    """Without the functions, types and variables of these names that nothing uses any more."""
    for _ in range(4 * MOST):
        source = before.reparsed(text)
        edits = Edits(source)
        node = next((n for n in _leftovers(source, names)), None)
        if node is None:
            break
        text = _removed(edits, source, node)
    return drop_unused(before, text, set(names))


def _removed(edits: Edits, source: Source, node: Node) -> str:
    edits.remove(node, comment=True)
    start, end, _ = edits.changes[-1]
    if node.type in {"function_definition", "template_declaration"} and source.data[end : end + 1] == b"\n":
        edits.changes[-1] = (start, end + 1, "")  # the blank line behind it
    return edits.apply()


def _leftovers(source: Source, names: set[str]) -> Iterator[Node]:
    """Definitions of functions and types, and what is declared in shared memory of such types, that nothing mentions."""
    words: dict[str, int] = {}
    for node in source.walk(None, "identifier", "type_identifier", "namespace_identifier"):
        words[source.of(node)] = words.get(source.of(node), 0) + 1
    for node in source.walk(None, "function_definition"):
        declarator = field_of(node, "declarator")
        name = declared_name(declarator) if declarator is not None else None
        device = any(c.type == "__device__" for c in node.children) and not any(
            c.type == "__global__" for c in node.children
        )
        if name is not None and device and source.of(name) in names and words[source.of(name)] == 1:
            outer = node.parent
            yield outer if outer is not None and outer.type == "template_declaration" else node
    for node in source.walk(None, "declaration", "alias_declaration", "type_definition"):
        declarators = node.children_by_field_name("declarator")
        shared = any(source.of(c) == "__shared__" for c in node.children)
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
