"""Two kernels that the host launches one after the other become one, where a block of the second reads only what the same
block of the first wrote: one launch less, and what lay between them in memory may stay in registers.

Applies where both have the same grid and block, and every array that one writes and the other touches is touched by rows
(`row = blockIdx.x`, each element of the row, or one number a row) or at the thread's own element in both.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from tree_sitter import Node

from harness.records import Outcome
from nodes.rewrites.analysis.device_code import GRID_CALLS, Code, code_of, inside
from nodes.rewrites.analysis.indices import LOADS
from nodes.rewrites.analysis.kernels import Access, Kernel, Parameter
from nodes.rewrites.analysis.launches import Launch
from nodes.rewrites.analysis.regions import BLOCK, BLOCK_DIM, THREAD, thread_loops
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.syntax.algebra import Polynomial
from nodes.rewrites.syntax.source import Edits, Source, Unsupported
from nodes.rewrites.syntax.tree import field_of, same, statements


@dataclass
class Pair:
    first: Kernel
    second: Kernel
    launches: list[tuple[Launch, Launch]] = field(default_factory=list)


@rule(
    "cuda",
    expected="one launch less; what the first kernel wrote and the second reads is still in the block",
    speedup=1.5,
    helps={"memory", "latency", "launch"},
    risks=(Outcome.INCORRECT,),
)
def rewrite(source: Source, facts: Facts) -> str | None:
    text, changed = source.text, False
    for _ in range(8):  # a third kernel may follow
        new = _fused_once(source.reparsed(text))
        if new is None:
            break
        text, changed = new, True
    return text if changed else None


def _fused_once(source: Source) -> str | None:
    code = code_of(source)
    for pair in _pairs(code):
        try:
            return _Fusion(code, pair).text()
        except Unsupported:
            continue
    return None


def _pairs(code: Code) -> list[Pair]:
    """Kernels that are launched one right after the other wherever either is launched."""
    kernels = {kernel.name: kernel for kernel in code.kernels}
    found: dict[tuple[str, str], Pair] = {}
    for first in code.launches:
        second = _next_launch(code, first)
        if second is None or first.kernel_name == second.kernel_name:
            continue
        if first.kernel_name in kernels and second.kernel_name in kernels:
            pair = Pair(kernels[first.kernel_name], kernels[second.kernel_name])
            found.setdefault((first.kernel_name, second.kernel_name), pair).launches.append((first, second))
    return [
        pair for pair in found.values()
        if len(pair.launches) == len(pair.first.launches) == len(pair.second.launches)
    ]  # fmt: skip


def _next_launch(code: Code, launch: Launch) -> Launch | None:
    """The launch in the next statement; only declarations without calls may stand in between."""
    statement = launch.node.parent
    if statement is None or statement.type != "expression_statement":
        return None
    if statement.parent is None or statement.parent.type != "compound_statement":
        return None
    after = statement.next_named_sibling
    while after is not None and (
        after.type == "comment" or (after.type == "declaration" and not code.source.has(after, "call_expression"))
    ):
        after = after.next_named_sibling
    return next((other for other in code.launches if after is not None and same(other.node.parent, after)), None)


class _Fusion:
    """Raises Unsupported where the two may not become one."""

    def __init__(self, code: Code, pair: Pair) -> None:
        self.code, self.source = code, code.source
        self.first, self.second, self.launches = pair.first, pair.second, pair.launches
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
        self.barrier = self._barrier()

    def _check_templates(self) -> None:
        lists = []
        for kernel in (self.first, self.second):
            lists.append(" ".join(self.source.of(kernel.template, "parameters").split()))
        if lists[0] and lists[1] and lists[0] != lists[1]:
            raise Unsupported("different templates")
        for a, b in self.launches:
            if lists[0] and lists[1] and a.template_arguments != b.template_arguments:
                raise Unsupported("different template arguments")
        self.template = self.first.template or self.second.template

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
                    if not parameter.pointer:
                        continue
                    found = self.code.variable(argument)
                    if found is None or found.kind != "parameter":
                        raise Unsupported("a buffer that is computed")
                    mine = self._merged(parameter.name, kernel)
                    if names.setdefault(found.name, mine) != mine:
                        raise Unsupported("one buffer under two names")

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
        wait = self._dynamic_or_static_shared()
        for accesses in touched.values():
            kernels = {kernel.name for kernel, _ in accesses}
            if len(kernels) < 2 or not any(access.writes for _, access in accesses):
                continue
            places = {self._place(kernel, access) for kernel, access in accesses}
            if len(places) != 1:
                raise Unsupported("blocks that read each other's data")
            wait = wait or any(place[0] == "row" for place in places)
            if any(self._loads_read_only(access) for _, access in accesses):
                raise Unsupported("a read through the read-only cache of what is written")
        returns = list(self.source.walk(self.first.body, "return_statement"))
        if wait and returns:
            raise Unsupported("threads that end before the others have met")
        guards = [s for s in statements(self.second.body) if self._is_guard_of_first(s)]
        for node in returns:
            if not any(
                _words(self.source, g) == _words(self.source, node.parent) for g in guards if node.parent is not None
            ):
                raise Unsupported("threads that end before their share of the second kernel")
        self.guards = guards
        return wait

    def _is_guard_of_first(self, statement: Node) -> bool:
        """`if (i >= n) return;` as it stands in the first kernel too, of the same things."""
        source = self.source
        consequence = field_of(statement, "consequence") if statement.type == "if_statement" else None
        if consequence is None or source.of(consequence) != "return;":
            return False
        twins = [s for s in statements(self.first.body) if _words(source, s) == _words(source, statement)]
        if len(twins) != 1:
            return False
        mine, theirs = _locals(source, self.second), _locals(source, self.first)
        for node in source.walk(statement, "identifier"):
            name = source.of(node)
            if name in mine:
                if name not in theirs or not self._is_same(theirs[name], mine[name]):
                    return False
                if _words(source, theirs[name]) != _words(source, mine[name]):
                    return False
            elif self.second.parameter(name) is not None and self.same.get(name) != self.first.parameter(name):
                return False
        return True

    def _dynamic_or_static_shared(self) -> bool:
        return any("__shared__" in k.text for k in (self.first, self.second))

    def _loads_read_only(self, access: Access) -> bool:
        node = access.node
        return node.type == "call_expression" and self.source.of(node, "function") in LOADS

    def _place(self, kernel: Kernel, access: Access) -> tuple[str, object]:
        """("row", its stride in the host's words), or ("thread", "") for the thread's own element of the whole grid."""
        # The base may be a pointer that was moved to its row: what it was moved by is part of the offset already.
        offset = access.offset
        if (
            access.base.node is None
            or self.code.definition(access.base.node) is None
            or access.base.text != access.root
        ):
            raise Unsupported("an address that cannot be seen through")
        if access.wide:
            raise Unsupported("several elements at once")
        block, thread = Polynomial.symbol(BLOCK), Polynomial.symbol(THREAD)
        if offset == block * Polynomial.symbol(BLOCK_DIM) + thread:
            return ("thread", "")
        stride = offset.coefficient(BLOCK)
        rest = offset - block * stride
        if rest.depends_on(BLOCK) or not stride.terms:
            raise Unsupported("an element that is not of the block's row")
        if rest.terms:
            loop = next((o for o in thread_loops(kernel) if rest == Polynomial.symbol(o.symbol)), None)
            whole = loop is not None and inside(access.node, loop.body) and loop.bound == stride
            if loop is None or not whole or loop.start != thread or loop.step != Polynomial.symbol(BLOCK_DIM):
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
        edits, source = Edits(self.source), self.source
        name = self.code.fresh(f"{self.first.name.removesuffix('_kernel')}_then_{self.second.name}")
        renamed = self._renamed()
        edits.changes.append((self.first.outer.start_byte, self.first.outer.end_byte, self._kernel(name, renamed)))
        second = self.second.outer
        end = second.end_byte
        while source.data[end : end + 1] == b"\n":
            end += 1
        edits.changes.append((second.start_byte, end, ""))
        if self.first.outer.start_byte > second.start_byte:
            raise Unsupported("the second kernel stands in front of the first")
        for a, b in self.launches:
            names = [p.name for p in self.second.parameters]
            arguments = [source.of(x) for x in a.arguments]
            arguments += [source.of(b.arguments[names.index(n)]) for n in names if n not in self.same]
            listed = a if a.template_list is not None else b
            template = source.of(listed.template_list) if listed.template_list is not None else ""
            shared = a.shared_text if a.shared_text != "0" else b.shared_text
            edits.remove(a.statement)
            edits.replace(b.node, b.rendered(function=name + template, shared=shared, arguments=arguments))
        return edits.apply()

    def _renamed(self) -> dict[int, str]:
        """New names of the second kernel's parameters and outermost variables, by where they are defined."""
        code, source = self.code, self.source
        taken = {p.name for p in self.first.parameters} | set(_locals(source, self.first))
        inner = {source.of(n) for n in source.walk(self.second.body, "identifier")}
        used = set(taken) | inner
        names: dict[int, str] = {}

        def fresh(stem: str) -> str:
            name = next(f"{stem}_{n}" for n in range(2, 100) if f"{stem}_{n}" not in used | code.names())
            used.add(name)
            return name

        launch = self.launches[0][1]
        for parameter, argument in zip(self.second.parameters, launch.arguments, strict=True):
            new = parameter.name
            if parameter.name in self.same:
                new = self.same[parameter.name].name
                if new != parameter.name and self._is_shadowed(new):
                    raise Unsupported("a name that means something else in the second kernel")
            elif parameter.name in taken:
                of_host = source.of(argument)
                new = of_host if of_host.isidentifier() and of_host not in used else fresh(parameter.name)
                used.add(new)
            declarator = field_of(parameter.node, "declarator")
            names[declarator.start_byte] = new
        self.dropped: list[Node] = []
        firsts = {_words(source, s) for s in statements(self.first.body)}
        for name, declaration in _locals(source, self.second).items():
            if name not in taken:
                continue
            before = _locals(source, self.first).get(name)
            again = before is not None and self._is_same(before, declaration)
            if again and _words(source, declaration) in firsts:
                self.dropped.append(declaration)
                continue
            for declarator in declaration.children_by_field_name("declarator"):
                names[declarator.start_byte] = fresh(name)
        mine = {p.name for p in self.second.parameters}
        for node in source.walk(self.second.body, "identifier", "type_identifier"):
            found = None if _declares(node) else code.definition(node)
            outside = found is None or found.kind in {"global", "macro"}
            if outside and not _declares(node) and source.of(node) in taken - mine:
                raise Unsupported("a name that the first kernel hides")
        return names

    def _is_shadowed(self, name: str) -> bool:
        """Whether a loop or a block inside of the second kernel gives the name a meaning of its own."""
        outermost = _locals(self.source, self.second)
        for node in self.source.walk(self.second.body, "identifier"):
            if self.source.of(node) == name and not _declares(node):
                found = self.code.definition(node)
                if found is None or found.kind not in {"parameter", "local"}:
                    return True
                if found.kind == "local" and name not in outermost:
                    return True
        return False

    def _is_same(self, a: Node, b: Node) -> bool:
        """Whether two declarations of one text say the same: settled values of the same things."""
        for declaration, kernel in ((a, self.first), (b, self.second)):
            for declarator in declaration.children_by_field_name("declarator"):
                if declarator.type != "init_declarator":
                    return declaration.parent is not None and "__shared__" in self.source.of(declaration)
            for node in self.source.walk(declaration, "identifier"):
                found = self.code.definition(node)
                if found is not None and self.code.mutated(found):
                    return False
                known = {p.name for p in kernel.parameters}
                if self.source.of(node) in known and kernel is self.second:
                    theirs = self.same.get(self.source.of(node))
                    if theirs is None or theirs.name != self.source.of(node):
                        return False
            written = {access.root for access in kernel.accesses if access.writes}
            if any(inside(access.node, declaration) for access in kernel.accesses) and written:
                return False
        return len(a.children_by_field_name("declarator")) == len(b.children_by_field_name("declarator")) == 1

    def _kernel(self, name: str, renamed: dict[int, str]) -> str:
        source = self.source
        indent = source.indent(self.first.node) + source.unit(self.first.node)
        head = source.data[self.first.outer.start_byte : self.first.parameter_list.start_byte].decode()
        if self.first.template is None and self.second.template is not None:
            listed = field_of(self.second.template, "parameters")
            head = f"template {source.of(listed)}\n{head}"
        head = re.sub(rf"\b{re.escape(self.first.name)}\s*$", name, head)
        lines = [_reindented(source, s, source.of(s), indent) for s in self._body(self.first)]
        kept = [
            s for s in self._body(self.second)
            if not any(same(s, d) for d in self.dropped)
            and not any(same(s, g) for g in self.guards)
        ]  # fmt: skip
        texts = [_reindented(source, s, source.render(s, self._replaced(s, renamed)), indent) for s in kept]
        if self.barrier:
            lines.append(f"{indent}__syncthreads();  // the row is written")
        return f"{head}({', '.join(self._parameters(renamed))}) {{\n" + "\n".join([*lines, *texts]) + "\n}"

    def _body(self, kernel: Kernel) -> list[Node]:
        return list(kernel.body.named_children)

    def _replaced(self, node: Node, renamed: dict[int, str]) -> list[tuple[Node, str]]:
        found = []
        for identifier in self.source.walk(node, "identifier"):
            definition = self.code.definition(identifier)
            where = definition.where if definition is not None else -1
            if where not in renamed:  # the name in its own declaration
                owner = identifier.parent
                where = -1
                while owner is not None and owner.type in {"init_declarator", "pointer_declarator", "array_declarator"}:
                    if owner.start_byte in renamed and identifier.start_byte < _value_start(owner):
                        where = owner.start_byte
                    owner = owner.parent
                if identifier.start_byte in renamed:
                    where = identifier.start_byte
            if where in renamed and renamed[where] != self.source.of(identifier):
                found.append((identifier, renamed[where]))
        return found

    def _parameters(self, renamed: dict[int, str]) -> list[str]:
        source, texts = self.source, []
        for parameter in self.first.parameters:
            text = source.of(parameter.node)
            for name, theirs in self.same.items():
                twin = self.second.parameter(name)
                if (
                    theirs is parameter
                    and parameter.const
                    and twin is not None
                    and not twin.const
                    and parameter.pointer
                ):
                    text = text.replace("const ", "", 1)
            texts.append(text)
        for parameter in self.second.parameters:
            if parameter.name in self.same:
                continue
            declarator = field_of(parameter.node, "declarator")
            new = renamed.get(declarator.start_byte, parameter.name)
            texts.append(re.sub(rf"\b{re.escape(parameter.name)}$", new, source.of(parameter.node)))
        return texts


def _declares(node: Node) -> bool:
    """Whether an identifier stands where it is declared."""
    parent = node.parent
    kinds = {"init_declarator", "pointer_declarator", "array_declarator", "reference_declarator", "declaration"}
    return (
        parent is not None
        and parent.type in kinds
        and any(same(d, node) for d in parent.children_by_field_name("declarator"))
    )


def _value_start(declarator: Node) -> int:
    value = field_of(declarator, "value") or field_of(declarator, "size")
    return value.start_byte if value is not None else declarator.end_byte


def _locals(source: Source, kernel: Kernel) -> dict[str, Node]:
    """The outermost variables of a kernel, with their declarations."""
    found = {}
    for statement in statements(kernel.body):
        if statement.type == "declaration":
            for declarator in statement.children_by_field_name("declarator"):
                inner = declarator
                while inner.type not in {"identifier"} and field_of(inner, "declarator") is not None:
                    inner = field_of(inner, "declarator")  # type: ignore[assignment]
                found[source.of(inner)] = statement
    return found


def _words(source: Source, node: Node) -> str:
    return " ".join(source.of(node).split())


def _reindented(source: Source, node: Node, text: str, indent: str) -> str:
    old = source.indent(node)
    lines = text.rstrip("\n").split("\n")
    if node.type == "preproc_call":
        return "\n".join(lines)
    moved = [
        indent + lines[0],
        *(line if line.startswith("#") else indent + line.removeprefix(old) for line in lines[1:]),
    ]
    return "\n".join(line if line.strip() else "" for line in moved)
