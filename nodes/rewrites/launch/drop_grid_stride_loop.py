"""Where the grid that spread lays over the rows has a thread for every step, a thread takes its one step without a loop.

The host knows whether it does: only where a row is longer than 65535 blocks do threads take more than one step. Kernels
get an instance for either case, `kOneStep`. In that of one step the loop ends behind its first pass, and as so many blocks
hold fewer than 2^26 threads, index and bound count in 32 bits; nvcc then needs a quarter fewer instructions before the
first load. The other instance stays what the kernel was. A loop over rows goes altogether.
"""

from __future__ import annotations

from contextlib import suppress

from harness.records import Outcome
from nodes.rewrites.analysis.device_code import Code, code_of
from nodes.rewrites.analysis.insertions import bring
from nodes.rewrites.analysis.kernels import Kernel, Loop
from nodes.rewrites.analysis.launches import Launch, host_text
from nodes.rewrites.analysis.regions import BLOCK, BLOCK_DIM, GRID_DIM, THREAD, thread_loops
from nodes.rewrites.launch.grid_stride import ROW_BLOCK, ROW_BLOCKS, row_shape_of, steps_text
from nodes.rewrites.prelude import text_of
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.syntax.algebra import Polynomial, Symbol
from nodes.rewrites.syntax.match import match
from nodes.rewrites.syntax.source import Edits, Source, Unsupported
from nodes.rewrites.syntax.tree import field_of, names_declared, pragma_of, same, statements

_WIDE = {"int64_t", "uint64_t", "size_t", "ptrdiff_t", "long"}
ONLY_STEP = "if constexpr (kOneStep) break;"


@rule(
    "cuda",
    expected="no loop and 32-bit indices where a thread has one step: 3 to 11 % of a short kernel",
    speedup=1.05,
    helps={"memory", "latency", "launch"},
    after=("grid_stride",),
    risks=(Outcome.INCORRECT,),
)
def rewrite(source: Source, facts: Facts) -> str | None:
    code = code_of(source)
    if text_of("row_shape").rstrip() not in source.text or "kOneStep" in code.names():
        return None
    for number in range(len(code.kernels)):
        with suppress(Unsupported):
            source = one_row(source, number)
    code, edits = code_of(source), Edits(source)
    for kernel in code.kernels:
        with edits.attempt():
            _rewrite_kernel(edits, code, kernel)
    bring(edits, code, "", ("type_traits",))
    return edits.apply()


def _rewrite_kernel(edits: Edits, code: Code, kernel: Kernel) -> None:
    source = kernel.source
    mentions = sum(source.of(node) == kernel.name for node in source.walk(None, "identifier"))
    if not kernel.launches or mentions != 1 + len(kernel.launches):
        raise Unsupported("a kernel that is named elsewhere")
    loops = thread_loops(kernel)
    covered = [loop for loop in loops if _is_covered(loop) and loop.bound == loops[0].bound]
    if not covered:
        raise Unsupported("no loop that the grid covers")
    shapes = {launch: row_shape_of(code, launch) for launch in kernel.launches}
    if any(steps != steps_text(kernel, launch, loops) for launch, (_, _, steps) in shapes.items()):
        raise Unsupported("a grid for other steps")
    index = code.fresh("Index")
    wide = [loop for loop in covered if loop.type in _WIDE]
    wide = [loop for loop in wide if loop.type == wide[0].type]
    for loop in wide:
        _narrow(edits, code, loop, index)
    for loop in covered:
        _end_after_one(edits, loop)
    first = statements(kernel.body)[0]
    if wide:
        alias = f"using {index} = std::conditional_t<kOneStep, unsigned, {wide[0].type}>;"
        edits.in_front(first, alias)
    listed = field_of(kernel.template, "parameters")
    if listed is not None:
        edits.insert(listed.start_byte + 1, "bool kOneStep" + (", " if kernel.template_names else ""))
    else:
        edits.in_front(kernel.node, "template <bool kOneStep>")
    for launch, (shape, _, _) in shapes.items():
        _choose(edits, source, launch, shape)


def _is_covered(loop: Loop) -> bool:
    """Whether it strides by the whole grid over steps that may count as the grid was made for them."""
    start = Polynomial.product(BLOCK, BLOCK_DIM) + Polynomial.symbol(THREAD)
    return (loop.start, loop.step) == (start, Polynomial.product(GRID_DIM, BLOCK_DIM)) and _is_size(loop.bound)


def _is_size(polynomial: Polynomial) -> bool:
    """Whether it is made of sizes in such a way that it is not below zero: a 32-bit bound has no sign."""
    return all(c > 0 and all(_is_count(symbol) for symbol in monomial) for monomial, c in polynomial.terms)


def _is_count(symbol: Symbol) -> bool:
    if symbol.operator:
        return all(_is_size(operand) for operand in symbol.operands)
    return not symbol.parts or (symbol.node is not None and symbol.node.type == "sizeof_expression")


def one_row(source: Source, number: int) -> Source:
    """Without the loop over rows at a kernel's end: the grid has a place for every row."""
    code = code_of(source)
    kernel = code.kernels[number]
    start, step = f"{ROW_BLOCK} * blockDim.y + threadIdx.y", f"{ROW_BLOCKS} * blockDim.y"
    last = statements(kernel.body)[-1:]
    loop = next((loop for loop in kernel.loops if last and same(loop.node, last[0])), None)
    if loop is None or (source.of(loop.start_node), source.of(loop.step_node)) != (start, step):
        return source
    if not kernel.launches or not statements(loop.body) or leaves(source, loop):
        return source
    if any(row_shape_of(code, a)[1] != host_text(kernel, a, loop.bound_node) for a in kernel.launches):
        return source
    plain = loop.bound_node.type in {"identifier", "binary_expression", "field_expression"}
    bound = source.of(loop.bound_node) if plain else f"({source.of(loop.bound_node)})"
    return source.reparsed(in_place(source, kernel, loop, start, f"if ({loop.name} >= {bound}) return;"))


def in_place(source: Source, kernel: Kernel, loop: Loop, start: str, *more: str) -> str:
    """The text with a loop's variable declared as `start`, more lines, and the body's statements in the loop's place. Raises
    Unsupported where something else has a name that these declare."""
    node, body, text = loop.node, loop.body, source.of
    mine = [loop.name, *(text(name) for statement in statements(body) for name in names_declared(statement))]
    declarations = source.walk(kernel.node, "declaration", "parameter_declaration")
    everywhere = [text(name) for declaration in declarations for name in names_declared(declaration)]
    if any(everywhere.count(name) > 1 for name in mine):
        raise Unsupported("a name that a row's own would meet")
    unit, indent, line = source.unit(node), source.indent(node), source.line_start(pragma_of(node) or node)
    braces = int(body.type == "compound_statement")
    inner = source.data[body.start_byte + braces : body.end_byte - braces].decode().strip("\n").rstrip()
    inner = inner if inner.startswith((indent, "#")) else f"{indent}{unit}{inner.lstrip()}"
    first = [f"{indent}{line}" for line in (f"const {loop.type} {loop.name} = {start};", *more)]
    lines = [*first, *(line.removeprefix(unit) for line in inner.split("\n"))]
    return source.data[:line].decode() + "\n".join(lines) + source.data[node.end_byte :].decode()


def leaves(source: Source, loop: Loop) -> bool:
    """Whether a `break` or `continue` is the loop's own, or may be."""
    return any(jump.type != "return_statement" for jump in source.jumps_out_of(loop.body))


def _narrow(edits: Edits, code: Code, loop: Loop, index: str) -> None:
    """Count in `index`. Elements are found by it as they were; what else is computed from it is computed as before."""
    source = code.source
    edits.replace(field_of(loop.node, "initializer", "type"), index)
    edits.replace(loop.bound_node, f"{index}({source.of(loop.bound_node)})")
    for use in source.walk(loop.body, "identifier"):
        found = code.definition(use) if source.of(use) == loop.name else None
        if found is None or found.where != loop.symbol.where:
            continue
        if use.parent.type == "lambda_capture_specifier":
            raise Unsupported("an index that a lambda takes")
        # The width of its type makes no difference in `x[i]` and `pointer + i`.
        added = match(source, use.parent, "$pointer + $index")
        based = added is not None and code.pointer_base(code.polynomial(added["pointer"])) is not None
        if not based and use.parent.type != "subscript_argument_list":
            edits.replace(use, f"{loop.type}({loop.name})")


def _end_after_one(edits: Edits, loop: Loop) -> None:
    source, body = edits.source, loop.body
    indent, unit = source.indent(loop.node), source.unit(loop.node)
    if body.type == "compound_statement":
        for last in statements(body)[-1:]:
            edits.behind(last, ONLY_STEP)
        return
    header = len(source.data[: body.start_byte].rstrip())
    edits.changes.append((header, body.start_byte, f" {{\n{indent}{unit}"))
    edits.insert(body.end_byte, f"\n{indent}{unit}{ONLY_STEP}\n{indent}}}")


def _choose(edits: Edits, source: Source, launch: Launch, shape: str) -> None:
    name = source.of(launch.function).split("<")[0].rstrip()
    one, more = (
        launch.rendered(function=f"{name}<{', '.join([value, *launch.template_arguments])}>")
        for value in ("true", "false")
    )
    edits.write(launch.statement, [f"if ({shape}.one_step) {{", [f"{one};"], "} else {", [f"{more};"], "}"])
