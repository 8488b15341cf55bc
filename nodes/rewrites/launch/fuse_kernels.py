"""Two kernels that the host launches one after the other become one, where a block of the second reads only what the same
block of the first wrote: one launch less, and what lay between them in memory may stay in registers.

Applies where both have the same grid and block, and every array that one writes and the other touches is touched by rows
(`row = blockIdx.x`, each element of the row, or one number a row) or at the thread's own element in both.
"""

from __future__ import annotations

import re
from contextlib import suppress

from tree_sitter import Node

from harness.records import Outcome
from nodes.rewrites.analysis.device_code import GRID_CALLS, Code, inside, one_after_another
from nodes.rewrites.analysis.indices import LOADS
from nodes.rewrites.analysis.kernels import Access, Kernel, Parameter
from nodes.rewrites.analysis.launches import Launch
from nodes.rewrites.analysis.regions import BLOCK, BLOCK_DIM, THREAD, is_return, thread_loops
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.syntax.algebra import Polynomial
from nodes.rewrites.syntax.insert import free
from nodes.rewrites.syntax.source import Edits, Source, Unsupported, lifted
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
    for (first, second), launches in _pairs(code).items():
        with suppress(Unsupported):
            return _Fusion(code, first, second, launches).text()
    return None


def _pairs(code: Code) -> dict[tuple[Kernel, Kernel], list[tuple[Launch, Launch]]]:
    """Kernels that are launched one right after the other wherever either is launched."""
    kernels = {kernel.name: kernel for kernel in code.kernels}
    found: dict[tuple[Kernel, Kernel], list[tuple[Launch, Launch]]] = {}
    for launch in code.launches:
        later = _next_launch(code, launch)
        pair = [kernels.get(one.kernel_name) for one in (launch, later) if one is not None]
        if len(pair) == 2 and None not in pair and pair[0] is not pair[1]:
            found.setdefault(tuple(pair), []).append((launch, later))
    return {
        pair: launches for pair, launches in found.items()
        if all(len(launches) == len(kernel.launches) for kernel in pair)
    }  # fmt: skip


def _next_launch(code: Code, launch: Launch) -> Launch | None:
    """The launch in the next statement; only declarations without calls may stand in between."""
    after = launch.node.parent.next_named_sibling
    while after is not None and (
        after.type == "comment" or (after.type == "declaration" and not code.source.has(after, "call_expression"))
    ):
        after = after.next_named_sibling
    return next((other for other in code.launches if same(other.node.parent, after)), None)


class _Fusion:
    """Raises Unsupported where the two may not become one."""

    def __init__(self, code: Code, first: Kernel, second: Kernel, launches: list[tuple[Launch, Launch]]) -> None:
        self.code, self.source = code, code.source
        self.first, self.second, self.launches = first, second, launches
        for kernel in (self.first, self.second):
            if kernel.launch_bounds is not None:
                raise Unsupported("bounds on the block")
            if any(word in kernel.text for word in (*GRID_CALLS, "cooperative_groups")):
                raise Unsupported("a kernel that waits for others")
            defined = [code.definition(n) for n in code.assigned(kernel.body)]
            if any(found is not None and found.kind == "parameter" for found in defined):
                raise Unsupported("a parameter that changes")
            if any(root for _, root in kernel.escapes) or any(a.root == "?" for a in kernel.accesses):
                raise Unsupported("a kernel that may write anywhere")
        for a, b in self.launches:
            shapes = [[x.extents(x.grid), x.extents(x.block), x.stream_text, x.dependent] for x in (a, b)]
            if shapes[0] != shapes[1] or a.dependent:
                raise Unsupported("launches of different shapes")
            if a.shared_text != "0" and b.shared_text != "0":
                raise Unsupported("two uses of dynamic shared memory")
            if any(len(k.parameters) != len(x.arguments) for k, x in ((self.first, a), (self.second, b))):
                raise Unsupported("arguments that the launch leaves out")
        self._check_templates()
        self.same = self._same_parameters()
        self._check_pointers()
        self.again = self._said_again()
        self.barrier = self._barrier()

    def _check_templates(self) -> None:
        first, second = (" ".join(self.source.of(k.template, "parameters").split()) for k in (self.first, self.second))
        alike = first == second and all(a.template_arguments == b.template_arguments for a, b in self.launches)
        if first and second and not alike:
            raise Unsupported("different templates, or different arguments of them")

    def _same_parameters(self) -> dict[str, Parameter]:
        """The second kernel's parameters that are one of the first's, for every launch."""
        found = {}
        for number, mine in enumerate(self.second.parameters):
            for other, theirs in enumerate(self.first.parameters):
                alike = (mine.element, mine.pointer) == (theirs.element, theirs.pointer)
                if alike and all(
                    self.source.of(a.arguments[other]) == self.source.of(b.arguments[number]) for a, b in self.launches
                ):
                    found[mine.name] = theirs
                    break
        return found

    def _check_pointers(self) -> None:
        """Buffers must be told apart by their names: parameters of the host's function, nothing computed from them."""
        for a, b in self.launches:
            names: dict[str, str] = {}
            for kernel, launch in ((self.first, a), (self.second, b)):
                for parameter, argument in zip(kernel.parameters, launch.arguments, strict=True):
                    found, mine = self.code.variable(argument), self._merged(parameter.name, kernel)
                    if not parameter.pointer:
                        continue
                    if found is None or found.kind != "parameter" or names.setdefault(found.name, mine) != mine:
                        raise Unsupported("a buffer that is computed, or goes by two names")

    def _merged(self, root: str, kernel: Kernel) -> str:
        """What tells a pointer apart in the fused kernel."""
        if kernel is self.first:
            return f"first:{root}"
        return f"first:{self.same[root].name}" if root in self.same else f"second:{root}"

    def _barrier(self) -> bool:
        """Whether threads must wait in between; raises where another block's data would be read."""
        touched: dict[str, list[tuple[Kernel, Access]]] = {}
        for kernel in (self.first, self.second):
            for access in kernel.accesses:
                if access.root:
                    touched.setdefault(self._merged(access.root, kernel), []).append((kernel, access))
        wait = any("__shared__" in kernel.text for kernel in (self.first, self.second))
        for accesses in touched.values():
            kernels = {kernel.name for kernel, _ in accesses}
            if len(kernels) < 2 or not any(access.writes for _, access in accesses):
                continue
            places = {self._place(kernel, access) for kernel, access in accesses}
            if len(places) != 1:
                raise Unsupported("blocks that read each other's data")
            wait = wait or any(place[0] == "row" for place in places)
            if any(self.source.of(access.node, "function") in LOADS for _, access in accesses):
                raise Unsupported("a read through the read-only cache of what is written")
        returns = list(self.source.walk(self.first.body, "return_statement"))
        if wait and returns:
            raise Unsupported("threads that end before the others have met")
        for node in returns:
            if not any(_words(self.source, said) == _words(self.source, node.parent) for said in self.again):
                raise Unsupported("threads that end before their share of the second kernel")
        return wait

    def _said_again(self) -> list[Node]:
        """Statements of the second kernel that stand in the first one, of the same things: variables that are set once, shared
        memory, and `if (i >= n) return;`."""
        source, found = self.source, list[Node]()
        known = {name for name, theirs in self.same.items() if theirs.name == name}
        firsts = [_words(source, statement) for statement in statements(self.first.body)]
        own = {source.of(name) for name in self._declared(self.second)}
        for statement in statements(self.second.body):
            names = {source.of(name) for name in names_declared(statement)}
            used = {source.of(n) for n in source.walk(statement, "identifier")} & own
            settled = one_variable(statement) is not None or is_return(source, statement)
            shared = len(names) == 1 and source.says(statement, "__shared__")
            alike = (shared or (settled and self._is_settled(statement))) and used - names <= known
            if alike and firsts.count(_words(source, statement)) == 1:
                found.append(statement)
                known |= names
        return found

    def _is_settled(self, statement: Node) -> bool:
        """Whether what a statement says stays so in both kernels."""
        names = {self.source.of(n) for n in self.source.walk(statement, "identifier")}
        changed = {self.source.of(n) for k in (self.first, self.second) for n in self.code.assigned(k.body)}
        reads = any(inside(access.node, statement) for access in self.second.accesses)
        writes = any(access.writes for kernel in (self.first, self.second) for access in kernel.accesses)
        return not names & changed and not (reads and writes)

    def _declared(self, kernel: Kernel) -> list[Node]:
        """The names that a kernel gives to anything, parameters too."""
        holders = self.source.walk(kernel.node, "declaration", "parameter_declaration")
        return [name for holder in holders for name in names_declared(holder)]

    def _place(self, kernel: Kernel, access: Access) -> tuple[str, object]:
        """("row", its stride in the host's words), or ("thread", "") for the thread's own element of the whole grid."""
        # The base may be a pointer that was moved to its row: what it was moved by is part of the offset already.
        offset = access.offset
        if self.code.variable(access.base.node) is None or access.base.text != access.root or access.wide:
            raise Unsupported("an address that cannot be seen through, or several elements at once")
        block, thread = Polynomial.symbol(BLOCK), Polynomial.symbol(THREAD)
        if offset == block * Polynomial.symbol(BLOCK_DIM) + thread:
            return ("thread", "")
        stride = offset.coefficient(BLOCK)
        rest = offset - block * stride
        if rest.depends_on(BLOCK) or not stride.terms:
            raise Unsupported("an element that is not of the block's row")
        if rest.terms:
            loop = next((o for o in thread_loops(kernel) if rest.only == o.symbol), None)
            whole = loop is not None and inside(access.node, loop.body) and loop.bound == stride
            if loop is None or not whole or loop.start != thread or loop.step.only != BLOCK_DIM:
                raise Unsupported("an element that may be of another row")
        return ("row", self._host_form(kernel, stride))

    def _host_form(self, kernel: Kernel, polynomial: Polynomial) -> frozenset[tuple[object, int]]:
        """A stride in the words of every launch."""
        names = [p.name for p in kernel.parameters]
        terms: list[tuple[object, int]] = []
        for monomial, factor in polynomial.terms:
            if any(symbol.text not in names or symbol.parts for symbol in monomial):
                raise Unsupported("a stride that the host does not know")
            at = [names.index(symbol.text) for symbol in monomial]
            launches = [pair[0] if kernel is self.first else pair[1] for pair in self.launches]
            words = tuple(tuple(sorted(self.source.of(x.arguments[n]) for n in at)) for x in launches)
            terms.append((words, factor))
        return frozenset(terms)

    # What is written.

    def text(self) -> str:
        edits, source, second = Edits(self.source), self.source, self.second.outer
        if self.first.outer.start_byte > second.start_byte:
            raise Unsupported("the second kernel stands in front of the first")
        name = self.code.fresh(f"{self.first.name.removesuffix('_kernel')}_then_{self.second.name}")
        edits.replace(self.first.outer, self._kernel(name, self._renamed()))
        edits.remove(second, blank=True)
        for a, b in self.launches:
            given = zip(self.second.parameters, b.arguments, strict=True)
            arguments = [source.of(x) for x in a.arguments]
            arguments += [source.of(x) for p, x in given if p.name not in self.same]
            template = source.of(a.template_list or b.template_list)
            shared = a.shared_text if a.shared_text != "0" else b.shared_text
            edits.remove(a.statement)
            edits.replace(b.node, b.rendered(function=name + template, shared=shared, arguments=arguments))
        return edits.apply()

    def _renamed(self) -> dict[str, str]:
        """What the second kernel's own names become where they stand behind the first one's statements."""
        source, second = self.source, self.second
        outermost = [source.of(n) for s in statements(self.first.body) for n in names_declared(s)]
        taken = {*(p.name for p in self.first.parameters), *outermost}
        kept = {source.of(name) for statement in self.again for name in names_declared(statement)}
        own = dict.fromkeys(source.of(name) for name in self._declared(second))
        words = {source.of(n) for n in source.walk(second.body, "identifier", "type_identifier")}
        if words & taken - set(own):
            raise Unsupported("a name that the first kernel hides")
        host = [source.of(argument) for argument in self.launches[0][1].arguments]
        of_host = dict(zip((p.name for p in second.parameters), host, strict=True))
        renamed = {name: theirs.name for name, theirs in self.same.items()}
        used = taken | words | set(own)
        for name in own:
            if name in taken - kept and name not in renamed:
                wanted = of_host.get(name, "")
                plain = wanted.isidentifier() and wanted not in used
                renamed[name] = wanted if plain else free(name, used | self.code.names())
                used.add(renamed[name])
        return renamed

    def _kernel(self, name: str, renamed: dict[str, str]) -> str:
        source, first, second = self.source, self.first, self.second
        indent = source.indent(first.node) + source.unit(first.node)
        head = source.data[first.outer.start_byte : first.parameter_list.start_byte].decode()
        if first.template is None and second.template is not None:
            head = f"template {source.of(second.template, 'parameters')}\n{head}"
        head = re.sub(rf"\b{re.escape(first.name)}\s*$", name, head)
        lines = [lifted(source, s, source.of(s)) for s in first.body.named_children]
        if self.barrier:
            lines.append("__syncthreads();  // the row is written")
        replaced = [
            (n, renamed[source.of(n)]) for n in source.walk(second.node, "identifier") if source.of(n) in renamed
        ]
        kept = [s for s in second.body.named_children if not any(same(s, said) for said in self.again)]
        lines += [lifted(source, s, source.render(s, replaced)) for s in kept]
        body = [line if line.startswith("#") or not line else indent + line for line in "\n".join(lines).split("\n")]
        parameters = [self._with_writes(parameter) for parameter in first.parameters]
        parameters += [source.render(p.node, replaced) for p in second.parameters if p.name not in self.same]
        return f"{head}({', '.join(parameters)}) {{\n" + "\n".join(body) + "\n}"

    def _with_writes(self, parameter: Parameter) -> str:
        """A parameter of the first kernel, no pointer to constants any more where the second one writes there."""
        twins = [p for p in self.second.parameters if self.same.get(p.name) is parameter]
        writes = parameter.pointer and parameter.const and any(not twin.const for twin in twins)
        return self.source.of(parameter.node).replace("const ", "" if writes else "const ", 1)


def _words(source: Source, node: Node) -> str:
    return " ".join(source.of(node).split())
