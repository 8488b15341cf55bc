"""A thread asks for the elements of several steps before it works on the first: more bytes in flight, fewer blocks.

Applies to strided loops whose bodies begin with declarations that read memory, such as those that pack leaves, and to those
that are one assignment (`out[i] = in[i];`). Loads of IN_FLIGHT steps come first, each into its own registers; then the steps are done in their order, so sums stay what they
were. Where the host spreads rows over a grid, only grids of DEEP_BLOCKS and more are cut down for it: a small tensor
wants every thread that it can get, and where a thread has one step alone (one_step), it stays one.
"""

from __future__ import annotations

import re

from tree_sitter import Node

from harness.records import Outcome
from nodes.rewrites.analysis.device_code import Code, code_of, inside
from nodes.rewrites.analysis.insertions import insertion_point, require
from nodes.rewrites.analysis.kernels import Access, Kernel, Loop
from nodes.rewrites.analysis.regions import Stride, thread_loops
from nodes.rewrites.launch.drop_grid_stride_loop import ONLY_STEP
from nodes.rewrites.launch.grid_stride import row_shape_of
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.syntax.source import Edits, Source, Unsupported
from nodes.rewrites.syntax.tree import enclosing, field_of, names_declared, one_variable, statements

STEPS = """\
#define IN_FLIGHT 2  // tune: 1 2 4
"""
DEEP = """\
#define DEEP_BLOCKS {few}  // tune: {fewer} {few} {many}
"""
_JUMPS = ("break_statement", "return_statement", "goto_statement")
_SHORTCUTS = ("conditional_expression", "assignment_expression", "lambda_expression", "binary_expression")
"""Around a load they may mean that it is not made; of the last, `&&` and `||`."""
_BARRIERS = ("sync", "shfl", "vote", "ballot", "atomic", "asm")


@rule(
    "cuda",
    expected="loads of several steps wait for memory together: more bandwidth where a tensor is far larger than the L2",
    speedup=0.995,
    helps={"memory", "latency"},
    after=("tune_block_size",),
    risks=(Outcome.INCORRECT, Outcome.OUT_OF_RESOURCES),
)
def rewrite(source: Source, facts: Facts) -> str | None:
    if code_of(source).names() & {"IN_FLIGHT", "DEEP_BLOCKS"}:
        return None
    source = _with_named_loads(source)
    code, edits = code_of(source), Edits(source)
    changed: list[Kernel] = []
    for kernel in code.kernels:
        attempt = Edits(source)
        for loop in thread_loops(kernel):
            try:
                _rewrite_loop(attempt, code, kernel, loop)
            except Unsupported:
                continue
        if attempt.changes:
            edits.changes += attempt.changes
            changed.append(kernel)
    if not changed:
        return None
    units = facts.device.units
    text = STEPS
    if any(_spread(code, kernel) for kernel in changed):
        _deepen(edits, code)
        text += DEEP.format(fewer=units * 8, few=units * 32, many=units * 128)
    elif all("blockIdx.x" in source.of(loop.start_node) for kernel in changed for loop in thread_loops(kernel)):
        _require_full_grids(code, changed)
    edits.insert(insertion_point(source), "\n" + text)
    if "ceil_div(" in "".join(change[2] for change in edits.changes):
        require(edits, code, "ceil_div")
    return edits.apply()


def _with_named_loads(source: Source) -> Source:
    """With declarations for what loops load that are one assignment."""
    code, edits = code_of(source), Edits(source)
    for kernel in code.kernels:
        for loop in thread_loops(kernel):
            body = _steps(source, loop)[0]
            value = _assigned_value(body[0]) if len(body) == 1 else None
            if value is None or any(
                n.type != "binary_expression" or _cuts_short(source, n) for n in source.walk(value, *_SHORTCUTS)
            ):
                continue
            reads = [a for a in kernel.global_accesses() if a.reads and inside(a.node, value)]
            reads = [a for a in reads if not any(inside(a.node, o.node) and o is not a for o in reads)]
            if not reads or any(a.writes or a.address or a.wide for a in reads):
                continue
            indent = source.indent(loop.node) + source.unit(loop.node)
            lines = []
            for read in reads:
                name = code.fresh(
                    *("loaded" if n == 0 else f"loaded_{n + 1}" for n in range(len(lines), len(reads) + 8))
                )
                lines.append(f"const {read.element} {name} = {source.of(read.node)};")
                edits.replace(read.node, name)
            text = f"\n{indent}".join(lines)
            if loop.body.type == "compound_statement":
                edits.insert(body[0].start_byte, f"{text}\n{indent}")
            else:
                edits.insert(body[0].start_byte, f"{{\n{indent}{text}\n{indent}")
                edits.insert(body[0].end_byte, f"\n{source.indent(loop.node)}}}")
    return source.reparsed(edits.apply()) if edits.changes else source


def _cuts_short(source: Source, node: Node) -> bool:
    return source.of(node, "operator") in {"&&", "||"}


def _assigned_value(statement: Node) -> Node | None:
    """The right side of `left = right;`."""
    assignment = statement.named_children[0] if statement.type == "expression_statement" else None
    plain = assignment is not None and assignment.type == "assignment_expression"
    return field_of(assignment, "right") if assignment is not None and plain else None


def _steps(source: Source, loop: Loop) -> tuple[list[Node], Node | None]:
    """The statements of a loop's body, and one_step's last one, with which one instance of the kernel ends it."""
    body = statements(loop.body)
    last = " ".join(source.of(body[-1]).split()) if body else ""
    return (body[:-1], body[-1]) if last == ONLY_STEP else (body, None)


def _spread(code: Code, kernel: Kernel) -> bool:
    """Whether the kernel's grid is the one that spread chooses."""
    try:
        return bool([row_shape_of(code, launch) for launch in kernel.launches])
    except Unsupported:
        return False


def _require_full_grids(code: Code, kernels: list[Kernel]) -> None:
    """Raises where the grid has a thread for every step, so that there is no second one to ask for."""
    for kernel in kernels:
        for launch in kernel.launches:
            grid = code.source.of(launch.grid)
            if "/" in grid or "ceil_div" in grid:
                raise Unsupported("one step a thread")


def _deepen(edits: Edits, code: Code) -> None:
    """Fewer cuts of a row in row_shape, where there would be blocks enough."""
    function = code.functions.get("row_shape")
    if function is None:
        raise Unsupported("another way to shape a launch")
    for node in code.source.walk(function, "call_expression"):
        arguments = field_of(node, "arguments")
        declaration = enclosing(node.parent, "init_declarator")
        if declaration is None or code.source.of(declaration, "declarator") != "slices":
            continue
        if code.source.of(node, "function") == "ceil_div" and arguments is not None:
            last = arguments.named_children[-1]
            edits.replace(last, f"{code.source.of(last)} * (blocks() < DEEP_BLOCKS ? 1 : IN_FLIGHT)")
            return
    raise Unsupported("another row_shape")


def _loads(code: Code, kernel: Kernel, loop: Loop, body: list[Node]) -> tuple[list[Node], list[Node], list[Node]]:
    """Declarations at the front of a loop's body, those that load, and those that these need. Raises Unsupported where a
    step's loads may not come before the work of the steps in front of it."""
    source = code.source
    leading = []
    for statement in body:
        if statement.type != "declaration":
            break
        leading.append(statement)
    accesses = [a for a in kernel.accesses if a.root and inside(a.node, loop.node)]
    reads = [a for a in accesses if a.reads and any(inside(a.node, statement) for statement in leading)]
    loads = [s for s in leading if any(inside(a.node, s) for a in reads)]
    _check_memory(kernel, loop, accesses, reads)
    later = {source.of(target) for target in code.assigned(loop.body)}
    needed = _needed(source, leading, loads)
    for statement in [*loads, *needed]:
        # What a load sets may change later, `float4 v = x[i]; v.x *= scale;`: each step has a place of its own for it.
        own = names_declared(statement) if statement in loads else []
        words = {source.of(word) for word in source.walk(statement, "identifier") if word not in own}
        if words & later or source.has(statement, "assignment_expression", "update_expression"):
            raise Unsupported("a load that depends on what the step before did")
    if len(loads) > 8 or not loads:
        raise Unsupported("nothing to load early, or more than registers hold")
    return leading, loads, needed


def _rewrite_loop(edits: Edits, code: Code, kernel: Kernel, loop: Loop) -> None:
    source = code.source
    body, last = _steps(source, loop)
    if loop.step_node is None or loop.body.type != "compound_statement":
        raise Unsupported("a loop without a stride")
    if any(last is None or not inside(jump, last) for jump in source.walk(loop.body, *_JUMPS)) or any(
        word in source.of(call, "function") for call in source.walk(loop.body, "call_expression") for word in _BARRIERS
    ):
        raise Unsupported("steps that end early, or that threads take together")
    leading, loads, needed = _loads(code, kernel, loop, body)
    arrays = {statement.id: _array(source, statement) for statement in loads}
    taken = kernel.identifiers() | code.names()
    ahead, step = (name if name not in taken else code.fresh(name) for name in ("ahead", "step"))
    count = "IN_FLIGHT"
    if last is not None:
        count = "kInFlight" if "kInFlight" not in taken else code.fresh("kInFlight")
    indent, unit = source.indent(loop.node), source.unit(loop.node)
    stride = source.of(loop.step_node)
    stride = stride if re.fullmatch(r"[\w.]+", stride) else f"({stride})"
    bound = source.of(loop.bound_node)
    bound = bound if re.fullmatch(r"[\w.]+(\s*/\s*\w+)?", bound) else f"({bound})"
    kind = loop.type if loop.type != "auto" else "int64_t"
    head = [
        "#pragma unroll",
        f"{unit}for (int {step} = 0; {step} < {count}; ++{step}) {{",
        f"{unit * 2}const {kind} {loop.name} = {ahead} + {step} * {stride};",
        f"{unit * 2}if ({loop.name} < {bound}) {{",
    ]
    tail = [f"{unit * 2}}}", f"{unit}}}"]
    lines = [f"{unit}constexpr int {count} = kOneStep ? 1 : IN_FLIGHT;"] if last is not None else []
    lines += [f"{unit}{element} {name}[{count}];" for element, name, _, _ in arrays.values()]
    lines += head
    for statement in leading:
        if statement.id in arrays:
            element, name, own, value = arrays[statement.id]
            lines += _moved(source, statement, f"{name}[{step}] = {value};", unit * 3)
            others = [other for other in [*loads, *needed] if other.id != statement.id]
            if any(source.of(word) == own for other in others for word in source.walk(other, "identifier")):
                lines.append(f"{unit * 3}const {element}& {own} = {name}[{step}];")
        elif any(statement.id == index.id for index in needed):
            lines += _moved(source, statement, source.of(statement), unit * 3)
    lines += [*tail, *head]
    for statement in _with_notes(loop.body):
        if last is not None and statement.id == last.id:
            continue
        if statement.id in arrays:
            element, name, own, _ = arrays[statement.id]
            constant = "const " if source.of(statement).startswith("const ") else ""
            lines.append(f"{unit * 3}{constant}{element}& {own} = {name}[{step}];")
        elif statement.type == "preproc_call":
            lines.append(source.of(statement).strip())
        else:
            lines += _moved(source, statement, source.of(statement), unit * 3)
    lines += tail
    if last is not None:
        lines.append(f"{unit}{ONLY_STEP}")
    text = "\n".join(line if line.startswith("#") or not line else indent + line for line in lines)
    for node in loop.name_nodes:
        edits.replace(node, ahead)
    edits.replace(loop.step_node, f"IN_FLIGHT * {stride}")
    edits.replace(loop.body, "{\n" + text + "\n" + indent + "}")


def _with_notes(body: Node) -> list[Node]:
    """The statements, with the comments and directives between them."""
    return [child for child in body.children if child.is_named]


def _moved(source: Source, statement: Node, text: str, indent: str) -> list[str]:
    own = source.indent(statement)
    first, *rest = text.split("\n")
    return [indent + first, *(line if line.startswith("#") else indent + line.removeprefix(own) for line in rest)]


def _check_memory(kernel: Kernel, loop: Loop, accesses: list[Access], reads: list[Access]) -> None:
    """What is read early, no step may have written by then: each only writes elements that it alone reads."""
    if any(inside(call, loop.node) for call, _ in kernel.escapes):
        raise Unsupported("a helper that may write anywhere")
    for read in reads:
        for write in accesses:
            if not write.writes or (write.root != read.root and "?" not in {write.root, read.root}):
                continue
            if (write.base, write.offset) != (read.base, read.offset) or Stride(loop.symbol).of(read.offset) == 0:
                raise Unsupported("elements that another step writes")


def _needed(source: Source, leading: list[Node], loads: list[Node]) -> list[Node]:
    """Leading declarations that the loads build on."""
    words = {source.of(word) for statement in loads for word in source.walk(statement, "identifier")}
    found = []
    for statement in reversed(leading):
        if any(statement.id == load.id for load in loads):
            continue
        if {source.of(name) for name in names_declared(statement)} & words:
            found.append(statement)
            words |= {source.of(word) for word in source.walk(statement, "identifier")}
    return found


def _array(source: Source, statement: Node) -> tuple[str, str, str, str]:
    """(element type, array, variable, value) of a declaration of one plain variable."""
    variable, kind = one_variable(statement), source.of(statement, "type")
    if variable is None or kind == "auto" or variable[1].type == "initializer_list":
        raise Unsupported("not one plain variable")
    name, value = map(source.of, variable)
    return kind, f"{name}_ahead", name, value
