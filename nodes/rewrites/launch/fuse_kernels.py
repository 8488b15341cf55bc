"""Two kernels that the host launches one after the other become one, where a block of the second reads only what the same
block of the first wrote: one launch less, and what lay between them in memory may stay in registers.

Applies where both have the same grid, block and template, and every array that one writes and the other touches is touched by
rows, `for (i = threadIdx.x; i < n; i += blockDim.x) ... x[blockIdx.x * n + i]`.
"""

from __future__ import annotations

import re
from contextlib import suppress

from tree_sitter import Node

from harness.records import Outcome
from nodes.rewrites.analysis.device_code import GRID_CALLS, Code, inside, one_after_another
from nodes.rewrites.analysis.indices import LOADS
from nodes.rewrites.analysis.kernels import Access, Kernel, Parameter
from nodes.rewrites.analysis.launches import Launch, host_text
from nodes.rewrites.analysis.regions import BLOCK, BLOCK_DIM, THREAD, thread_loops
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.syntax.algebra import Polynomial
from nodes.rewrites.syntax.insert import free
from nodes.rewrites.syntax.source import Edits, Source, Unsupported, levelled, lifted
from nodes.rewrites.syntax.tree import names_declared, one_variable, same, statements


@rule(
    "cuda",
    expected="one launch less; what the first kernel wrote and the second reads is still in the block",
    speedup=1.5,
    helps={"memory", "latency", "launch"},
    risks=(Outcome.INCORRECT,),
)
def rewrite(source: Source, facts: Facts) -> str | None:
    return one_after_another(source, _fused, 8)  # a third kernel may follow


def _fused(code: Code) -> str | None:
    kernels = {kernel.name: kernel for kernel in code.kernels if len(kernel.launches) == 1}
    for launch in code.launches:
        after = launch.node.parent.next_named_sibling
        later = next((other for other in code.launches if same(other.node.parent, after)), None)
        found = [kernels.get(one.kernel_name) for one in (launch, later) if one is not None]
        if len(found) == 2 and None not in found:
            with suppress(Unsupported):
                return _Fusion(code, *found, launch, later).text()
    return None


class _Fusion:
    """Raises Unsupported where the two may not become one."""

    def __init__(self, code: Code, first: Kernel, second: Kernel, a: Launch, b: Launch) -> None:
        self.code, self.source, self.first, self.second, self.a, self.b = code, code.source, first, second, a, b
        shapes = [[x.extents(x.grid), x.extents(x.block), x.stream_text, x.template_arguments] for x in (a, b)]
        templates = [self.source.of(kernel.template, "parameters") for kernel in (first, second)]
        if shapes[0] != shapes[1] or templates[0] != templates[1]:
            raise Unsupported("launches of different shapes, or different templates")
        if self.source.has(first.body, "return_statement"):
            raise Unsupported("threads that end before the others have met")
        for kernel, launch in ((first, a), (second, b)):
            if launch.dependent or launch.shared_text != "0" or kernel.launch_bounds is not None:
                raise Unsupported("dynamic shared memory, or a kernel that says more of its launch")
            if any(word in kernel.text for word in (*GRID_CALLS, "cooperative_groups")):
                raise Unsupported("a kernel that waits for others")
            if any(root for _, root in kernel.escapes) or any(access.root == "?" for access in kernel.accesses):
                raise Unsupported("a kernel that may write anywhere")
            self._check_parameters(kernel, launch)
        self.same = self._same_parameters()
        self._check_rows()

    def _check_parameters(self, kernel: Kernel, launch: Launch) -> None:
        """Buffers must be told apart by their names: parameters of the host's function, nothing computed from them."""
        for parameter, argument in zip(kernel.parameters, launch.arguments, strict=True):
            found = self.code.variable(argument)
            if parameter.pointer and (found is None or found.kind != "parameter"):
                raise Unsupported("a buffer that is computed")
        defined = [self.code.definition(name) for name in self.code.assigned(kernel.body)]
        if any(found is not None and found.kind == "parameter" for found in defined):
            raise Unsupported("a parameter that changes")

    def _same_parameters(self) -> dict[str, Parameter]:
        """The second kernel's parameters that are one of the first's."""
        of, found = self.source.of, dict[str, Parameter]()
        given = {of(argument): p for p, argument in zip(self.first.parameters, self.a.arguments, strict=True)}
        for mine, argument in zip(self.second.parameters, self.b.arguments, strict=True):
            theirs = given.get(of(argument))
            if theirs is not None and (mine.element, mine.pointer) == (theirs.element, theirs.pointer):
                found[mine.name] = theirs
            if theirs is not None and mine.pointer and (mine.name not in found or theirs.const > mine.const):
                raise Unsupported("a buffer that is seen in two ways")
        return found

    def _check_rows(self) -> None:
        """Raises Unsupported where another block's data would be read."""
        of, touched = self.source.of, dict[str, list[tuple[Kernel, Launch, Access]]]()
        for kernel, launch in ((self.first, self.a), (self.second, self.b)):
            host = {p.name: of(argument) for p, argument in zip(kernel.parameters, launch.arguments, strict=True)}
            for access in kernel.global_accesses():
                touched.setdefault(host[access.root], []).append((kernel, launch, access))
        for accesses in touched.values():
            if len({kernel for kernel, _, _ in accesses}) < 2 or not any(access.writes for _, _, access in accesses):
                continue
            if len({self._row_length(*access) for access in accesses}) != 1:
                raise Unsupported("rows of several lengths")
            if any(of(access.node, "function") in LOADS for _, _, access in accesses):
                raise Unsupported("a read through the read-only cache of what is written")

    def _row_length(self, kernel: Kernel, launch: Launch, access: Access) -> str:
        """Of the block's row, of which an access is to an element, in the host's words."""
        loop = next((loop for loop in thread_loops(kernel) if inside(access.node, loop.body)), None)
        if loop is None or (loop.start.only, loop.step.only) != (THREAD, BLOCK_DIM):
            raise Unsupported("an element that is not of the block's row")
        row = Polynomial.symbol(BLOCK) * loop.bound + Polynomial.symbol(loop.symbol)
        # The base may be a pointer that was moved to its row: what it was moved by is part of the offset already.
        if access.offset != row or access.base.text != access.root or access.wide:
            raise Unsupported("an element that may be of another row, or several at once")
        return host_text(kernel, launch, loop.bound_node)

    def text(self) -> str:
        edits, of, second = Edits(self.source), self.source.of, self.second.outer
        if self.first.outer.start_byte > second.start_byte:
            raise Unsupported("the second kernel stands in front of the first")
        name = self.code.fresh(f"{self.first.name.removesuffix('_kernel')}_then_{self.second.name}")
        edits.replace(self.first.outer, self._kernel(name))
        edits.remove(second, blank=True)
        more = [of(x) for p, x in zip(self.second.parameters, self.b.arguments, strict=True) if p.name not in self.same]
        function, arguments = name + of(self.a.template_list), [of(x) for x in self.a.arguments] + more
        edits.remove(self.a.statement)
        edits.replace(self.b.node, self.b.rendered(function=function, arguments=arguments))
        return edits.apply()

    def _kernel(self, name: str) -> str:
        source, first, second = self.source, self.first, self.second
        again = self._said_again()
        renamed = self._renamed({source.of(n) for statement in again for n in names_declared(statement)})
        uses = ((n, renamed.get(source.of(n))) for n in source.walk(second.node, "identifier"))
        replaced = [(node, new) for node, new in uses if new is not None]
        lines = [lifted(source, s, source.of(s)) for s in first.body.named_children]
        lines.append("__syncthreads();  // the row is written")
        lines += [lifted(source, s, source.render(s, replaced)) for s in second.body.named_children if s not in again]
        head = source.data[first.outer.start_byte : first.parameter_list.start_byte].decode()
        head = re.sub(rf"\b{re.escape(first.name)}\s*$", name, head)
        parameters = [source.of(parameter.node) for parameter in first.parameters]
        parameters += [source.render(p.node, replaced) for p in second.parameters if p.name not in self.same]
        body = levelled(["\n".join(lines).split("\n")], source.unit(first.body))
        return f"{head}({', '.join(parameters)}) {{\n" + "\n".join(body) + "\n}"

    def _said_again(self) -> list[Node]:
        """`const int row = blockIdx.x;` of the second kernel where the first says so, too."""
        source, firsts = self.source, [self.source.of(statement) for statement in statements(self.first.body)]
        changed = {source.of(n) for kernel in (self.first, self.second) for n in self.code.assigned(kernel.body)}
        return [
            statement for statement in statements(self.second.body)
            if (variable := one_variable(statement)) is not None and source.of(variable[0]) not in changed
            and self.code.polynomial(variable[1]).only in {BLOCK, THREAD}
            and source.of(statement) in firsts
        ]  # fmt: skip

    def _renamed(self, kept: set[str]) -> dict[str, str]:
        """What the second kernel's names become, but for those that are kept, behind the first one's statements."""
        source, second = self.source, self.second
        holders = list(source.walk(second.node, "declaration", "parameter_declaration"))
        own = dict.fromkeys(source.of(name) for holder in holders for name in names_declared(holder))
        taken = {source.of(name) for s in statements(self.first.body) for name in names_declared(s)}
        taken |= {p.name for p in self.first.parameters}
        words = second.identifiers()
        if words & taken - own.keys():
            raise Unsupported("a name that the first kernel hides")
        host = dict(zip([p.name for p in second.parameters], map(source.of, self.b.arguments), strict=True))
        renamed = {name: theirs.name for name, theirs in self.same.items()}
        used = self.first.identifiers() | words
        for name in (name for name in own if name in taken - kept and name not in renamed):
            wanted = host.get(name, name)
            renamed[name] = free(wanted if wanted.isidentifier() else name, used | {*renamed.values()})
        return renamed
