"""A reduction tree in shared memory becomes warp shuffles and one step across warps.

Recognised: `a[tid] = value; __syncthreads();` followed by a loop that halves (or doubles) a distance, over all of the
block's threads, and combines `a[tid]` with `a[tid + distance]`, a barrier in every round (at its end or its start), after
which `a[0]` is the result. One barrier instead of nine.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tree_sitter import Node

from harness.records import Outcome
from nodes.rewrites.analysis.block_shape import is_barrier, whole_warps
from nodes.rewrites.analysis.device_code import Code, code_of, inside
from nodes.rewrites.analysis.insertions import require
from nodes.rewrites.analysis.kernels import Kernel
from nodes.rewrites.analysis.regions import BLOCK_DIM, EXTREMES, THREAD
from nodes.rewrites.prelude.block_reductions import HELPERS
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.syntax.algebra import Polynomial
from nodes.rewrites.syntax.match import match
from nodes.rewrites.syntax.source import Edits, Source, Unsupported
from nodes.rewrites.syntax.tree import field_of, one_variable, same, statements


@dataclass
class Tree:
    """One reduction: the statements it consists of, and the arrays it reduces."""

    stores: list[Node]
    barriers: list[Node]
    """Beside the loop's own: `block_sum` and its siblings have one that does for them."""
    loop: Node
    arrays: dict[str, str]
    """Array -> sum, max or min."""
    values: dict[str, str]
    end: int
    """Where the result stops being valid: the next store to the array, or the end of the block."""


@rule(
    "cuda",
    expected="one barrier a reduction instead of one for every halving",
    speedup=1.15,
    helps={"memory", "latency", "compute"},
    after=("restrict_pointers",),
    risks=(Outcome.INCORRECT, Outcome.RUNTIME_ERROR),
)
def rewrite(source: Source, facts: Facts) -> str | None:
    code = code_of(source)
    edits, site = Edits(source), next_site(code)
    needed: set[str] = set()
    for kernel in code.kernels:
        with edits.attempt():
            used, site = _rewrite_kernel(edits, code, kernel, site)
            needed |= used
    if not edits.changes:
        return None
    for kind in sorted(needed):
        require(edits, code, f"block_{kind}")
    return edits.apply()


def next_site(code: Code) -> int:
    """The first SITE that no call of ours has yet."""
    taken = [-1]
    for call in code.source.walk(None, "template_function"):
        listed = field_of(call, "arguments")
        first = code.source.of(listed.named_children[0]) if listed is not None and listed.named_children else ""
        if code.source.of(call, "name") in {f"block_{kind}" for kind in HELPERS} and first.isdigit():
            taken.append(int(first))
    return max(taken) + 1


def _shared_arrays(kernel: Kernel) -> dict[str, Node]:
    found = {}
    for node in kernel.source.walk(kernel.body, "declaration"):
        if kernel.source.says(node, "__shared__"):
            declarators = node.children_by_field_name("declarator")
            if len(declarators) == 1 and declarators[0].type == "array_declarator":
                name = field_of(declarators[0], "declarator")
                if name is not None:
                    found[kernel.source.of(name)] = node
    return found


def _rewrite_kernel(edits: Edits, code: Code, kernel: Kernel, site: int) -> tuple[set[str], int]:
    shared = _shared_arrays(kernel)
    trees = [
        tree for node in kernel.source.walk(kernel.body, "for_statement") if (tree := _tree(code, kernel, node, shared))
    ]
    if not trees or not kernel.launches:
        raise Unsupported("no reduction tree")
    if not all(whole_warps(code, kernel, launch.block) for launch in kernel.launches):
        raise Unsupported("blocks that may not be whole warps")
    arrays = {name for tree in trees for name in tree.arrays}
    handled: list[Node] = [node for tree in trees for node in (*tree.stores, tree.loop)]
    kinds: set[str] = set()
    for tree in trees:
        reads = {}
        for access in kernel.accesses:
            if access.base.text in tree.arrays and tree.loop.end_byte <= access.node.start_byte < tree.end:
                if access.writes or access.offset.value != 0 or access.root:
                    raise Unsupported("an element of the tree other than the result")
                reads.setdefault(access.base.text, []).append(access.node)
        lines = []
        for name, kind in tree.arrays.items():
            result = code.fresh(f"{name}_{kind}" if kind not in name else f"{name}_of_block")
            if len([t for t in trees if name in t.arrays and t.arrays[name] == kind]) > 1:
                result = f"{result}_{site}"
            element = code.source.of(shared[name], "type")
            lines.append(f"const {element} {result} = block_{kind}<{site}>({tree.values[name]});")
            site += 1
            kinds.add(kind)
            for node in reads.get(name, []):
                edits.replace(node, result)
                handled.append(node)
        edits.write(tree.stores[0], lines)
        for node in [*tree.stores[1:], *tree.barriers, tree.loop]:
            edits.remove(node)
    for access in kernel.accesses:
        if access.base.text in arrays and not access.root and not any(inside(access.node, node) for node in handled):
            raise Unsupported("another use of the tree's memory")
    for call, _ in kernel.escapes:
        if any(code.source.of(n) in arrays for n in code.source.walk(call, "identifier")):
            raise Unsupported("the tree's memory is passed on")
    for name in arrays:
        declaration = shared[name]
        if any(code.source.of(c) == "extern" for c in code.source.walk(declaration)):
            mentions = sum(code.source.of(n) == name for n in code.source.walk(kernel.body, "identifier"))
            used = sum(1 for a in kernel.accesses if a.base.text == name)
            if mentions != used + 1:
                raise Unsupported("dynamic shared memory that serves more than the tree")
            for launch in kernel.launches:
                if launch.shared_text != "0":
                    edits.replace(launch.config_nodes[2], "0")
        edits.remove(declaration)
    return kinds, site


def _tree(code: Code, kernel: Kernel, loop: Node, shared: dict[str, Node]) -> Tree | None:
    source = code.source
    distance = _distance(code, kernel, loop)
    body = field_of(loop, "body")
    if distance is None or body is None or loop.parent is None:
        return None
    inner = statements(body)
    early = len(inner) == 2 and is_barrier(source, inner[0])
    step_node = inner[1 if early else 0] if inner else body
    if len(inner) != 2 or step_node.type != "if_statement" or not (early or is_barrier(source, inner[1])):
        return None
    consequence, holder = field_of(step_node, "consequence"), field_of(step_node, "condition")
    condition = field_of(holder, "value")
    if consequence is None or condition is None or field_of(step_node, "alternative") is not None:
        return None
    if not _takes_part(code, kernel, condition, distance):
        return None
    arrays: dict[str, str] = {}
    for statement in statements(consequence):
        step = _step(code, statement, distance)
        if step is None or step[0] not in shared or step[0] in arrays:
            return None
        arrays[step[0]] = step[1]
    siblings = [c for c in loop.parent.named_children if c.type not in {"comment", "preproc_call"}]
    at = next(i for i, c in enumerate(siblings) if same(c, loop))
    around = [s for s in (siblings[at - 1] if at else None, siblings[at + 1] if at + 1 < len(siblings) else None) if s]
    barriers = [s for s in around[: 2 if early else 1] if is_barrier(source, s)]
    ready = at - 1 if barriers and same(barriers[0], siblings[at - 1]) else at
    if not early and ready == at:
        return None
    stores: list[Node] = []
    values: dict[str, str] = {}
    for statement in reversed(siblings[:ready]):
        stored = _store(code, statement)
        if stored is None or stored[0] not in arrays or stored[0] in values:
            break
        stores.insert(0, statement)
        values[stored[0]] = stored[1]
    if set(values) != set(arrays):
        return None
    end = loop.parent.end_byte
    for later in siblings[at + 1 :]:
        stored = _store(code, later)
        if stored is not None and stored[0] in arrays:
            end = later.start_byte
            break
    return Tree(stores, barriers, loop, arrays, values, end)


def _takes_part(code: Code, kernel: Kernel, condition: Node, distance: str) -> bool:
    """Whether all threads below the distance, or all multiples of twice of it, and no others combine."""
    source = code.source
    left, right = field_of(condition, "left"), field_of(condition, "right")
    if condition.type == "parenthesized_expression":
        return _takes_part(code, kernel, condition.named_children[0], distance)
    if condition.type != "binary_expression" or left is None or right is None:
        return False
    operator, here, there = (source.of(condition, "operator"), code.polynomial(left), code.polynomial(right))
    if operator == "&&":
        last = right.type == "binary_expression" and source.of(right, "operator") == "<"
        far = code.polynomial(field_of(right, "left")) - Polynomial.symbol(THREAD) if last else Polynomial()
        end = code.polynomial(field_of(right, "right")) if last else Polynomial()
        within = {s.text for s in far.symbols} == {distance} and _is_width(code, kernel, end)
        return within and _takes_part(code, kernel, left, distance)
    if operator == "<":
        return here == Polynomial.symbol(THREAD) and [([s.text for s in m], c) for m, c in there.terms] == [
            ([distance], 1)
        ]
    (only, *more) = here.symbols or {None}
    if operator != "==" or there.value != 0 or more or only is None or only.operator != "%":
        return False
    thread, twice = only.operands
    return thread == Polynomial.symbol(THREAD) and [([s.text for s in m], c) for m, c in twice.terms] == [
        ([distance], 2)
    ]


def _is_width(code: Code, kernel: Kernel, extent: Polynomial) -> bool:
    """Whether an extent is the block's width: blockDim.x, or what every launch says."""
    if extent == Polynomial.symbol(BLOCK_DIM):
        return True
    (only, *more) = extent.symbols or {None}
    named = only.text if only is not None and not more and extent == Polynomial.symbol(only) else str(extent.value)
    for launch in kernel.launches:
        passed = dict(zip(kernel.template_names, launch.template_arguments, strict=False))
        if launch.extents(launch.block)[0] not in {named, passed.get(named, named)}:
            return False
    return bool(kernel.launches)


def _distance(code: Code, kernel: Kernel, loop: Node) -> str | None:
    """The name of the variable that runs blockDim.x / 2, ..., 1 or 1, 2, ..., blockDim.x / 2."""
    source = code.source
    start, condition, update = (field_of(loop, f) for f in ("initializer", "condition", "update"))
    declared = one_variable(start)
    if declared is None or condition is None or update is None:
        return None
    variable, value = source.of(declared[0]), declared[1]
    bounds = re.sub(r"\s", "", source.of(condition))
    change = re.sub(r"\s", "", source.of(update))
    halves = change in {f"{variable}>>=1", f"{variable}/=2", f"{variable}={variable}/2", f"{variable}={variable}>>1"}
    doubles = change in {f"{variable}<<=1", f"{variable}*=2", f"{variable}={variable}*2"}
    if halves and bounds in {f"{variable}>0", f"{variable}>=1", variable, f"{variable}!=0"}:
        first = code.polynomial(value)
        (only, *_) = first.symbols or {None}
        half = only is not None and first == Polynomial.symbol(only) and only.operator == "/"
        width = only.operands[0] if half and only.operands[1].value == 2 else first * Polynomial.constant(2)
        return variable if _is_width(code, kernel, width) else None
    if doubles and source.of(value) == "1" and bounds.startswith(f"{variable}<"):
        bound = field_of(condition, "right")
        return variable if bound is not None and _is_width(code, kernel, code.polynomial(bound)) else None
    return None


def _is_thread(code: Code, node: Node) -> bool:
    return code.polynomial(node) == Polynomial.symbol(THREAD)


def _index(code: Code, node: Node) -> tuple[str, Node] | None:
    """Array name and index of `a[i]`."""
    if node.type != "subscript_expression":
        return None
    argument, indices = field_of(node, "argument"), field_of(node, "indices")
    if argument is None or argument.type != "identifier" or indices is None or indices.named_child_count != 1:
        return None
    return code.source.of(argument), indices.named_children[0]


def _step(code: Code, statement: Node, distance: str) -> tuple[str, str] | None:
    """Array and operation of `a[tid] += a[tid + s]` and its like."""
    source = code.source
    found = match(source, statement, "$a += $far;", "$a = $x + $y;", "$a = $f($x, $y);")
    target = _index(code, found["a"]) if found is not None else None
    if target is None or not _is_thread(code, target[1]):
        return None
    if "far" in found:
        return (target[0], "sum") if _is_far(code, found["far"], target[0], distance) else None
    kind, operands = (
        EXTREMES.get(source.of(found["f"]).split("<")[0], "") if "f" in found else "sum",
        (found["x"], found["y"]),
    )
    near = [o for o in operands if (here := _index(code, o)) and here[0] == target[0] and _is_thread(code, here[1])]
    far = [o for o in operands if _is_far(code, o, target[0], distance)]
    return (target[0], kind) if kind and len(near) == 1 and len(far) == 1 else None


def _is_far(code: Code, node: Node, array: str, distance: str) -> bool:
    found = _index(code, node)
    if found is None or found[0] != array:
        return False
    rest = code.polynomial(found[1]) - Polynomial.symbol(THREAD)
    return len(rest.terms) == 1 and {s.text for s in rest.symbols} == {distance}


def _store(code: Code, statement: Node) -> tuple[str, str] | None:
    """Array and value of `a[tid] = value;`."""
    if statement.type != "expression_statement" or not statement.named_children:
        return None
    assignment = statement.named_children[0]
    if assignment.type != "assignment_expression" or code.source.of(assignment, "operator") != "=":
        return None
    left, right = field_of(assignment, "left"), field_of(assignment, "right")
    target = _index(code, left) if left is not None else None
    if target is None or right is None or not _is_thread(code, target[1]):
        return None
    return target[0], code.source.of(right)
