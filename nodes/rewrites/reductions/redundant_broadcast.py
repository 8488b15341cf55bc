"""What the first thread makes of a reduction and tells the others through shared memory, every thread makes for itself.

    const float sum_of_block = block_sum<0>(sum);              const float sum_of_block = block_sum<0>(sum);
    if (threadIdx.x == 0) scale = rsqrtf(sum_of_block / n);    const float scale = rsqrtf(sum_of_block / n);
    __syncthreads();

Applies behind `block_sum` and its siblings (canonicalize_reductions's), after which every thread has the result, to a variable in
shared memory that takes an expression of such results, of parameters and of other numbers that the whole block shares, and that
is read behind the barrier. The barrier goes where nothing else could need it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tree_sitter import Node

from harness.records import Outcome
from nodes.rewrites.analysis.block_shape import is_barrier, is_first_thread
from nodes.rewrites.analysis.device_code import Code, Definition, inside, one_by_one
from nodes.rewrites.analysis.indices import COORDINATES
from nodes.rewrites.analysis.kernels import Kernel
from nodes.rewrites.analysis.numbers import EXTREMES
from nodes.rewrites.prelude.block_reductions import NAMES, brought
from nodes.rewrites.reductions.idle_threads import without_idle
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.syntax.match import match
from nodes.rewrites.syntax.source import Edits, Lines, Source, Unsupported
from nodes.rewrites.syntax.tree import LOOPS, enclosing, field_of, names_declared, same, statements, upward

_MATHS = frozenset({
    "rsqrtf", "sqrtf", "rsqrt", "sqrt", "expf", "exp", "logf", "log", "powf", "pow", "fabsf", "fabs", "abs", "exp2f", "log2f",
    "__expf", "__logf", "__fdividef", "__frcp_rn", "__fsqrt_rn", "__frsqrt_rn", "__fdiv_rn", "__fmaf_rn", "fmaf",
    "static_cast", "float", "int", "double", "unsigned", "__half2float", "__float2half", "__bfloat162float",
    "__float2bfloat16", *EXTREMES,
})  # fmt: skip
"""Functions whose value is their arguments' alone."""
_PLAIN = {
    "parenthesized_expression",
    "unary_expression",
    "binary_expression",
    "conditional_expression",
    "cast_expression",
}


@rule(
    "cuda",
    expected="a barrier less, and later steps see no shared memory beside the reductions",
    normalizes=True,
    after=("canonicalize_reductions",),
    risks=(Outcome.INCORRECT, Outcome.RUNTIME_ERROR),
)
def rewrite(source: Source, facts: Facts) -> str | None:
    if not brought(source):
        return None
    text = one_by_one(source, _spread, _branches, 32)
    return None if text is None else without_idle(source.reparsed(text))


def _branches(code: Code) -> Iterator[tuple[Kernel, Node]]:
    for kernel in code.kernels:
        if kernel.calls(*NAMES):
            yield from ((kernel, statement) for statement in code.source.walk(kernel.body, "if_statement"))


def _spread(edits: Edits, code: Code, kernel: Kernel, statement: Node) -> None:
    _Broadcast(code, kernel, statement).write(edits)


class _Broadcast:
    """`if (threadIdx.x == 0) ...` with a barrier behind it. Raises Unsupported for any other statement."""

    def __init__(self, code: Code, kernel: Kernel, statement: Node) -> None:
        self.code, self.kernel, self.source, self.statement = code, kernel, code.source, statement
        body, around = field_of(statement, "consequence"), statement.parent
        if body is None or around is None or around.type != "compound_statement" or statement.has_error:
            raise Unsupported("a branch of another form")
        if field_of(statement, "alternative") is not None:
            raise Unsupported("a branch of another form")
        if not is_first_thread(code, field_of(statement, "condition", "value")):
            raise Unsupported("not the first thread's")
        self.around, self.inner = around, statements(body)
        siblings = statements(around)
        at = next(n for n, s in enumerate(siblings) if same(s, statement))
        if at + 1 == len(siblings) or not is_barrier(self.source, siblings[at + 1]):
            raise Unsupported("no barrier behind it")
        self.before, self.barrier = siblings[:at], siblings[at + 1]

    def write(self, edits: Edits) -> None:
        source = self.source
        found = next((c for s in self.inner if (c := self._cell(s)) is not None), None)
        if found is None:
            raise Unsupported("nothing that every thread could make for itself")
        assignment, memory = found
        value, reads = field_of(assignment, "right"), self._reads(memory, assignment)
        only = len(self.code.uses(memory, self.kernel.body)) == len(reads) + 1
        named = self._is_named(value)
        name = source.of(value) if named else memory.name if only else self.code.fresh(f"{memory.name}_of_block")
        lines: Lines = [source.of(s) for s in self._needed(value)]
        if not named:
            element = source.of(memory.declaration, "type")
            lines.append(f"const {element} {name} = {source.of(value)};")
        kept = [s for s in self.inner if not inside(assignment, s) and source.of(s) not in lines]
        if only:
            self._drop_declaration(edits, memory)
        for read in reads if name != memory.name else ():
            if not inside(read, self.statement):
                edits.replace(read, name)
        if kept:
            inner = [source.render(statement, [(read, name) for read in reads]) for statement in kept]
            lines += [f"if {source.of(self.statement, 'condition')} {{", inner, "}"]
        if lines:
            edits.write(self.statement, lines)
        else:
            edits.remove(self.statement, comment=True)

    def _is_named(self, value: Node) -> bool:
        """Whether what every thread needs has a name already, and one that means nothing else anywhere."""
        found = self.code.variable(value)
        if found is None or found.kind != "local" or self.code.mutated(found):
            return False
        declarations = self.source.walk(self.kernel.body, "declaration")
        named = [self.source.of(name) for node in declarations for name in names_declared(node)]
        return not inside(found.declaration, self.statement) and named.count(found.name) == 1

    def _cell(self, statement: Node) -> tuple[Node, Definition] | None:
        """The assignment and the shared memory of `scale = value;` that every thread could do."""
        form = match(self.source, statement, "$memory = $value;")
        found = self.code.variable(form["memory"]) if form is not None else None
        if found is None or found.kind != "local" or found.declarator is None:
            return None
        alone = self.source.says(found.declaration, "__shared__") and found.declarator.type == "identifier"
        return (statement.named_children[0], found) if alone and self._same_for_all(form["value"]) else None

    def _reads(self, memory: Definition, assignment: Node) -> list[Node]:
        """The places that read what is assigned here. Raises Unsupported where that is not clear, or not in sight."""
        source, reads = self.source, []
        uses = self.code.uses(memory, self.kernel.body)
        writes = [use.parent for use in uses if source.set_by(use) == "="]
        for use in (use for use in uses if source.set_by(use) != "="):
            before = [w for w in writes if w.end_byte <= use.start_byte]
            if source.set_by(use) or use.parent.type == "pointer_expression" or not before:
                raise Unsupported("memory that is handed on, added to, or read before it is written")
            if not any(same(w, assignment) for w in before):
                continue
            rounds = [here for here in upward(use.parent, self.kernel.body) if here.type in LOOPS]
            if any(inside(w, here) for here in rounds if not inside(assignment, here) for w in writes):
                raise Unsupported("memory that the round before wrote")
            if same(before[-1], assignment):
                reads.append(use)
            elif not self._always_before(before[-1], use):
                raise Unsupported("memory that may have been written anew")
        for read in reads:
            after = read.start_byte >= self.barrier.end_byte or inside(read, self.statement)
            if not after or not inside(read, self.around):
                raise Unsupported("a read that is out of sight")
        if not reads:
            raise Unsupported("nobody reads it")
        return reads

    def _always_before(self, write: Node, read: Node) -> bool:
        """Whether the write is the first thread's, in a branch next to the read or next to something around it."""
        here = enclosing(write, "if_statement")
        if here is None or here.parent is None or here.parent.type != "compound_statement":
            return False
        return is_first_thread(self.code, field_of(here, "condition", "value")) and inside(read, here.parent)

    # What all threads have alike.

    def _same_for_all(self, node: Node, depth: int = 0) -> bool:
        source = self.source
        if depth > 16:
            return False
        if node.type in {"number_literal", "true", "false", "sizeof_expression"}:
            return True
        if node.type in _PLAIN:
            inner = [c for c in node.named_children if c.type not in {"type_descriptor", "comment"}]
            changes = node.type == "unary_expression" and source.of(node.children[0]) not in {"-", "+", "!", "~"}
            return not changes and all(self._same_for_all(c, depth + 1) for c in inner)
        if node.type == "field_expression":
            name, _, _ = source.of(node).partition(".")
            holder = field_of(node, "argument")
            if name in COORDINATES:
                return name != "threadIdx"
            return node.children[1].type == "." and holder is not None and self._same_for_all(holder, depth + 1)
        if node.type == "call_expression":
            name = source.of(node, "function").partition("<")[0].removeprefix("std::")
            listed = field_of(node, "arguments")
            if name in NAMES:
                return name in brought(source)
            known = name in _MATHS and name not in self.code.functions
            return known and all(self._same_for_all(c, depth + 1) for c in listed.named_children if c.type != "comment")
        return node.type == "identifier" and self._is_same(node, depth)

    def _is_same(self, name: Node, depth: int) -> bool:
        code, found = self.code, self.code.definition(name)
        if found is None:
            return re.fullmatch(r"INFINITY|[A-Z]+_(MAX|MIN|EPSILON)", self.source.of(name)) is not None
        if found.kind in {"template", "macro"}:
            text = self.source.of(found.declaration)
            return not any(word in text for word in (*COORDINATES, "("))
        if found.kind == "parameter":
            return not code.mutated(found) and "*" not in self.source.of(found.declaration)
        if found.kind == "global":
            return "const" in self.source.of(found.declaration) and found.value is not None
        if found.kind != "local" or found.declarator.type not in {"init_declarator", "identifier"}:
            return False
        if self.source.says(found.declaration, "__shared__", "static", "volatile"):
            return False
        return not code.mutated(found) and found.value is not None and self._same_for_all(found.value, depth + 1)

    def _needed(self, value: Node) -> list[Node]:
        """The declarations inside the branch that the value is made of, which every thread then makes too."""
        code, found = self.code, []
        for name in self.source.walk(value, "identifier"):
            here = code.definition(name)
            if here is None or here.kind != "local" or not inside(here.declaration, self.statement):
                continue
            if not any(same(here.declaration, s) for s in self.inner) or here.value is None or code.mutated(here):
                raise Unsupported("a value that is made on the way")
            if len(here.declaration.children_by_field_name("declarator")) != 1:
                raise Unsupported("a value that is declared among others")
            if any(here.name == self.source.of(n) for s in self.before for n in self.source.walk(s, "identifier")):
                raise Unsupported("a name that means something else in front")
            for inner in [*self._needed(here.value), here.declaration]:
                if not any(same(inner, other) for other in found):
                    found.append(inner)
        return found

    # What goes.

    def _drop_declaration(self, edits: Edits, memory: Definition) -> None:
        declarators = memory.declaration.children_by_field_name("declarator")
        if len(declarators) == 1:
            edits.remove(memory.declaration, comment=True)
            return
        kept = [self.source.of(d) for d in declarators if not same(d, memory.declarator)]
        first, last = declarators[0], declarators[-1]
        edits.changes.append((first.start_byte, last.end_byte, ", ".join(kept)))
