"""Programmatic dependent launch (Hopper and later): a grid is set up while the one before it on the stream drains.

Every kernel of the file waits for its predecessors (`cudaGridDependencySynchronize`) before it touches memory, so nothing
is read early; what overlaps is the launch itself, about half a microsecond where kernels follow each other in a graph, and
the arithmetic of indices and addresses that stands in front of the first access: 2 to 5 % of a short kernel on an H200.

When blocks let the next grid be set up is a number to tune. Measured on an H200: a block that triggers takes the place of
the launch of another, 0.6 ns, so grids of thousands of short blocks took up to twice as long where all of them did; a softmax
of 4096 rows of 1024 columns gained 6 to 17 % where the last ones alone do, kernels of few blocks lost 3 % by asking which
these are; before the wait it is 2 to 4 % for one kernel (merge_attn_states_lse) and a third less for others, in clusters above all.
Blocks that move single elements only end: to ask which are the last made such a kernel 3 % slower than the source that it came from.
"""

from __future__ import annotations

import re

from tree_sitter import Node

from harness.records import Outcome
from nodes.rewrites.analysis.device_code import code_of, inside
from nodes.rewrites.analysis.indices import COORDINATES
from nodes.rewrites.analysis.insertions import require
from nodes.rewrites.analysis.kernels import Kernel
from nodes.rewrites.analysis.regions import is_return, waiting_return
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.syntax.source import Edits, Source
from nodes.rewrites.syntax.tree import field_of, statements

TRIGGER_WHEN = "#define TRIGGER_WHEN 1  // tune: 0 1 2\n"


@rule(
    "cuda",
    expected="hides most of the launch latency between kernels of a stream or a graph, 0.3 to 0.6 us a call",
    speedup=1.2,
    helps={"memory", "latency", "launch"},
    after=("tune_block_size",),
    risks=(Outcome.RUNTIME_ERROR,),
    once="cudaGridDependencySynchronize",
)
def rewrite(source: Source, facts: Facts) -> str | None:
    if facts.compute_capability < 90:
        return None
    code = code_of(source)
    kernels = [kernel for kernel in code.kernels if kernel.launches]
    launched = {launch.kernel_name for launch in code.launches}
    if not kernels or launched != {kernel.name for kernel in kernels} or len({k.name for k in kernels}) != len(kernels):
        return None  # a kernel that does not wait must not be launched so, and one of them may be out of sight
    edits = Edits(source)
    packs = {kernel.name for kernel in kernels if _lanes(kernel) or _moves_packs(kernel)}
    for kernel in kernels:
        lanes = _lanes(kernel)
        if lanes:
            busy = f"{lanes} > 1"
        else:  # beside kernels of packs, the one for rows that do not divide into them
            busy = "false" if packs and kernel.name not in packs else ""
        _wait(edits, kernel, busy)
        for launch in kernel.launches:
            edits.replace(launch.node, launch.rendered(function=launch.with_arguments(), dependent=True))
    require(edits, code, "launch_dependent", "wait_for_predecessor")
    return edits.apply()


def _lanes(kernel: Kernel) -> str:
    """The template parameter that says how many elements move at once, or ""."""
    source = kernel.source
    parameters = zip(kernel.template_names, kernel.template_parameters, strict=True)
    numbers = {n for n, p in parameters if p.type in _NUMBERS and source.of(p, "type") != "bool"}
    for node in source.walk(kernel.node, "template_type"):
        arguments = field_of(node, "arguments")
        named = {source.of(n) for n in source.walk(arguments, "identifier", "type_identifier")} & numbers
        if named:
            return min(named)
    return ""


def _moves_packs(kernel: Kernel) -> bool:
    """Whether it reads elements as something else, or names one of CUDA's types of several."""
    source = kernel.source
    casts = source.walk(kernel.body, "template_function")
    if any(source.of(cast, "name") == "reinterpret_cast" for cast in casts):
        return True
    return any(_PACK_TYPE.fullmatch(source.of(n)) for n in source.walk(kernel.node, "type_identifier"))


def _wait(edits: Edits, kernel: Kernel, busy: str) -> None:
    """Let a kernel wait behind the declarations at its top that touch no memory, and the returns of idle threads.

    Every thread waits, also one that returns: a grid of which none did would be over before the one in front of it, and
    what waits for this grid alone would start too early. That one waits where it returns: behind a wait in front of it
    ptxas moved the arithmetic, and silu_and_mul took 6 % longer on an H200.
    """
    source = kernel.source
    indent, unit = source.indent(kernel.node) + source.unit(kernel.body), source.unit(kernel.body)
    at = kernel.body.start_byte + 1
    for statement in statements(kernel.body):
        if is_return(source, statement):
            condition = source.of(statement, "condition")
            edits.replace(statement, waiting_return(condition, indent, unit))
        elif statement.type not in _DECLARATIONS or not _is_idle(kernel, statement):
            break
        at = statement.end_byte
    end = (source.data + b"\n").index(b"\n", at)
    behind = source.data[at:end]
    text = f"\n{indent}wait_for_predecessor({busy});  // nothing before this may touch memory"
    if not behind.strip() or behind.strip().startswith(b"//"):
        edits.insert(end, text)
    else:  # other statements, on the same line
        edits.changes.append((at, at + len(behind) - len(behind.lstrip()), f"{text}\n{indent}"))


_PACK_TYPE = re.compile(r"u?(char|short|int|long|longlong)[234]|(float|double)[234]")
_NUMBERS = frozenset({"parameter_declaration", "optional_parameter_declaration"})
_CASTS = frozenset({"static_cast", "reinterpret_cast", "const_cast"})
_MADE = frozenset({"lambda_expression", "initializer_list", "argument_list"})
"""Values of objects, which may be made of anything."""
_DECLARATIONS = frozenset({"declaration", "alias_declaration", "using_declaration", "static_assert_declaration"})


def _is_idle(kernel: Kernel, statement: Node) -> bool:
    """Whether a declaration computes from indices, parameters and constants alone, nothing that lies in memory."""
    source, code = kernel.source, kernel.code
    found = code.declared(statement) if statement.type == "declaration" else []
    values = [made.value for made in found if made.value is not None]
    if any(v.type in _MADE for v in values) or any(inside(access.node, statement) for access in kernel.accesses):
        return False
    calls, fields, names = (
        [node for value in values for node in source.walk(value, kind)]
        for kind in ("call_expression", "field_expression", "identifier")
    )
    definitions = [code.definition(n) for n in names if source.of(n) not in {*COORDINATES, *_CASTS}]
    return (
        all(source.called(call) in _CASTS for call in calls)
        and all(source.of(node, "argument") in COORDINATES for node in fields)
        # no variable in the device's memory
        and all(d is not None and (d.kind != "global" or source.says(d.declaration, "constexpr")) for d in definitions)
    )
