"""What each thread has a share of is joined over the block by ours, whatever joined it before.

Recognised by what it does: the statements behind the shares run on numbers, for whole blocks, and where a variable or the
slots hold the result after them they were that reduction. So it may be a tree, shuffles up, down or across, a function with
its own slots or with slots that it is handed, or a struct with a function that joins two. Ours leaves the
result with every thread; where theirs left it with the first alone, what reads it must ask for that thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise

from tree_sitter import Node

from nodes.rewrites.analysis.block_shape import is_barrier, whole_warps, width_of
from nodes.rewrites.analysis.device_code import Code, Definition, inside
from nodes.rewrites.analysis.insertions import drop_unused, require
from nodes.rewrites.analysis.kernels import Kernel
from nodes.rewrites.analysis.launches import Launch
from nodes.rewrites.analysis.regions import THREAD
from nodes.rewrites.prelude import NAMES
from nodes.rewrites.reductions.runs import Run, Threads, slots_of
from nodes.rewrites.syntax.match import match
from nodes.rewrites.syntax.source import Edits, Source, Unsupported
from nodes.rewrites.syntax.tree import LOOPS, children_of, enclosing, field_of, pragma_of, same, statements, upward

WIDTHS = (32, 64, 256, 1024)
"""Of blocks whose width is only known when it runs. Trees are for powers of two."""
End = tuple[int, int]
"""The place of a statement, and of a branch at the end how many of the branch's own statements have run, counted from their end,
0 for the whole."""
Ends = dict[tuple[End, str, str], bool]
"""Behind which statement which result is where, and whether every thread may read it there."""
Places = dict[str, dict[str, bool]]
"""Of one end: where each result is."""


def declares(name: Node) -> bool:
    """Whether a name is where a variable begins, of whatever scope."""
    parent = name.parent
    if parent is None or parent.type == "declaration":
        return parent is not None
    return parent.type == "init_declarator" and same(field_of(parent, "declarator"), name)


def shapes_of(code: Code, kernel: Kernel, *, shuffles: bool = False) -> list[tuple[Launch, int]]:
    """The launches with how many threads a block may have. A block that `shuffles` is whole warps, or what it computes is undefined."""
    found: dict[tuple[object, ...], tuple[Launch, int]] = {}
    for launch in kernel.launches:
        width = width_of(code, kernel, launch)
        if width is not None and (width % 32 or not 32 <= width <= 1024):
            raise Unsupported("a block that is not whole warps")
        if width is None and not shuffles and not whole_warps(code, kernel, launch.block):
            raise Unsupported("a block that may not be whole warps")
        passed = zip(kernel.template_parameters, launch.template_arguments, strict=False)
        numbers = [argument for parameter, argument in passed if parameter.type != "type_parameter_declaration"]
        for each in WIDTHS if width is None else (width,):
            found.setdefault((each, *numbers), (launch, each))
    if not found:
        raise Unsupported("a kernel that nothing launches")
    return list(found.values())


class Joined:
    """The statements `after` which the shares are joined, of which the first belongs to that. `state` names the shares."""

    def __init__(
        self, code: Code, kernel: Kernel, shapes: list[tuple[Launch, int]], after: list[Node], state: list[str]
    ) -> None:
        self.code, self.source, self.kernel, self.after, self.state = code, code.source, kernel, after, state
        self.shapes, self.asked = shapes, Run(code, kernel, *max(shapes, key=lambda shape: shape[1]), {})

    # What a kind of reduction says of itself.

    def draws(self, width: int) -> Iterator[Threads]:
        """Shares to run the statements on."""
        raise NotImplementedError

    def expected(self, run: Run, threads: Threads) -> dict[str, float]:
        """What each result, by a name of its own, comes to."""
        raise NotImplementedError

    def check(self, end: End, results: Places) -> None:
        """Raises Unsupported where these are not the results, for infinities and NaN too."""
        raise NotImplementedError

    def lines(self, edits: Edits, taken: list[Node], results: Places) -> tuple[dict[str, str], list[str]]:
        """How the results are called, and what stands in the statements' place."""
        raise NotImplementedError

    # What the statements do.

    def text(self) -> str:
        """The source with ours in their place, as far down as that goes. Raises Unsupported where they are something else."""
        possible: Ends | None = None
        waits = False
        for launch, width in self.shapes:
            for threads in self.draws(width):
                run = Run(self.code, self.kernel, launch, width, threads)
                mine = self._ends(run, threads)
                both, waits = mine if possible is None else possible, waits or run.block.barriers > 0
                possible = {at: everywhere and mine[at] for at, everywhere in both.items() if at in mine}
                if not possible:
                    raise Unsupported("no reduction")
        left: dict[End, Places] = {}
        for (end, result, place), everywhere in (possible or {}).items():
            left.setdefault(end, {}).setdefault(result, {})[place] = everywhere
        ends = sorted(left)
        for before, end in reversed([*pairwise([None, *ends])]) if waits else ():
            results = left[end]
            if results == left.get(before):
                continue  # the last statement is none of the reduction's
            with suppress(Unsupported):
                self.check(end, results)
                return self._written(end, results)
        raise Unsupported("no reduction")

    def _ends(self, run: Run, threads: Threads) -> Ends:
        """Where the results are after which of the statements, up to the first that is something else."""
        found: Ends = {}
        with suppress(Unsupported):
            for end in self.steps(run, (len(self.after), 0)):
                found |= {(end, *at): all_ for at, all_ in run.found(self.expected(run, threads)).items()}
        return found

    def steps(self, run: Run, last: End) -> Iterator[End]:
        """Runs the statements, and behind each says which it was."""
        for at, statement in enumerate(self.after):
            inner = _branch(statement)
            if not inner:
                run.step(statement)
            else:
                run.enter(statement)
                for count, own in enumerate(inner, 1):
                    run.step(own)
                    if count < len(inner):
                        yield at, count - len(inner)
                    if (at, count - len(inner)) == last:
                        return
                run.leave()
            yield at, 0
            if (at, 0) == last:
                return

    def left_by(self, threads: Threads, end: End) -> Run:
        """What these shares leave behind the statements in the widest block."""
        self.ran = Run(self.code, self.kernel, *self.shapes[-1], threads)
        for _ in self.steps(self.ran, end):
            pass
        return self.ran

    # What is written.

    def _written(self, end: End, results: Places) -> str:
        source, code, edits = self.source, self.code, Edits(self.source)
        at, left = end
        inner = _branch(self.after[at]) if left else []
        whole, inner, rest = self.after[: at + (not left)], inner[:left], inner[left:] if left else []
        taken, first = [*whole, *inner], self.after[0]
        if any(s.has_error for s in taken):
            raise Unsupported("the parser did not understand a statement")
        named, lines = self.lines(edits, taken, results)
        places = {place: (named[result], all_) for result, held in results.items() for place, all_ in held.items()}
        self._replace_variables(edits, taken, places)
        kept = self._replace_slots(edits, taken, places)
        lines = [*(source.of(node) for _, node in sorted(kept.items())), *lines]
        self._keep_apart(edits, first, taken[-1])
        text = f"\n{source.indent(first)}".join(lines)
        if whole:
            start, lost = _start_of(source, first)
            edits.changes.append((start, whole[-1].end_byte, lost + text))
        else:
            edits.in_front(first, text)
        told = field_of(rest[0], "consequence") if len(rest) == 1 and rest[0].type == "if_statement" else None
        if told is not None and field_of(rest[0], "alternative") is None and self.asked.reaching(told)[0] == [0]:
            branch = self.after[at]  # of which nothing but what the first thread tells is left
            edits.changes.append((branch.start_byte, told.start_byte, "if (threadIdx.x == 0) "))
            edits.changes.append((told.end_byte, branch.end_byte, ""))
        else:
            for statement in inner:
                edits.remove(statement, comment=True)
        require(edits, code, *NAMES)
        names = {source.of(n) for s in taken for n in source.walk(s, "identifier")}
        names |= {source.name(f) for f in code.reached(*names)}
        return drop_unused(source, edits.apply(), names)

    def _keep_apart(self, edits: Edits, first: Node, last: Node) -> None:
        """In a loop the slots are written again: a barrier in each round keeps that from overtaking the round before."""
        source, around = self.source, enclosing(first.parent, *LOOPS, until=self.kernel.body)
        body = statements(field_of(around, "body"))
        others = (s for s in body if s.end_byte <= first.start_byte or s.start_byte >= last.end_byte)
        waits = any(is_barrier(source, s) for s in others)
        if around is not None and (not waits or source.has(around, "continue_statement")):  # which may skip the barrier
            edits.in_front(first, "__syncthreads();")

    def _replace_variables(self, edits: Edits, taken: list[Node], places: dict[str, tuple[str, bool]]) -> None:
        """Who reads a result reads our name. Raises Unsupported where something else that the statements leave in a variable is
        read."""
        code, kernel, first = self.code, self.kernel, taken[0]
        made = {f.where: f for s in taken for node in self.source.walk(s, "declaration") for f in code.declared(node)}
        changed = {found.where: found for s in taken for found in self._changed(s)}
        behind = [s for s in self.after if s.start_byte >= taken[-1].end_byte]
        rounds = [here for here in upward(first.parent, kernel.body) if here.type in LOOPS]
        for found in (made | changed).values():
            if slots_of(code, found):
                continue
            if found.where in changed and any(not here.start_byte <= found.where < here.end_byte for here in rounds):
                raise Unsupported("a variable of the rounds around")
            over = self._set_anew(found.name, behind)
            for use in code.uses(found, kernel.body):
                if use.start_byte < first.start_byte or any(inside(use, s) for s in taken) or declares(use):
                    continue
                if use.start_byte < over and not self._replace(edits, use, places):
                    raise Unsupported("something else that is read later")

    def _replace_slots(self, edits: Edits, taken: list[Node], places: dict[str, tuple[str, bool]]) -> dict[int, Node]:
        """As `_replace_variables`, of what the statements leave in shared memory: others read results until something is written
        there, and what has been written by the same name since. The declarations among the statements that they need."""
        code, source, first, kept = self.code, self.source, taken[0], dict[int, Node]()
        touched = {slots.where for s in taken for n in source.walk(s, "identifier") if (slots := self._slots(n))}
        calls = {source.called(call) for s in taken for call in source.walk(s, "call_expression")}
        rounds = [here for here in upward(first.parent, self.kernel.body) if here.type in LOOPS]
        written, reads = set[str](), list[Node]()
        for use in source.walk(self.kernel.body, "identifier"):
            slots, node = self._slots(use), _whole(use)
            pointer = field_of(enclosing(use, "init_declarator", "expression_statement"), "declarator")
            if slots is None or slots.where not in touched or any(inside(use, s) for s in taken):
                continue
            found = code.definition(use)
            if (pointer is not None and pointer.type == "pointer_declarator") or self._lies_behind(found):
                continue
            if use.start_byte < first.start_byte:
                if any(inside(use, here) for here in rounds):
                    raise Unsupported("slots that an earlier round reads")
                continue
            # A function that the statements call fills them, not one that takes an element.
            handed = node.parent.type == "argument_list" and node.type != "subscript_expression"
            again = handed and source.called(enclosing(node, "call_expression")) in calls
            if again or source.set_by(node) == "=":
                around = [here for here in upward(node, self.kernel.body) if here.type in LOOPS and here not in rounds]
                if any(inside(read, here) for read in reads for here in around):
                    raise Unsupported("a result that the round before may have overwritten")
                _, sure = self.asked.reaching(node, first.parent)
                each = node.type == "subscript_expression" and code.place_of(node).depends_on(THREAD)
                # A function fills them before it reads them, as it has here; one place by one thread fills no slots.
                written.add(found.name if sure and (again or each) else "")
            elif found.name not in written:
                if written or not self._replace(edits, use, places):
                    raise Unsupported("slots that are read elsewhere")
                reads.append(use)
                continue
            kept |= {s.start_byte: s for s in taken if inside(found.declaration, s)}
        return kept

    def _lies_behind(self, found: Definition) -> bool:
        """Whether a pointer begins behind the places that the statements have written."""
        for node in self.source.walk(found.value, "binary_expression", "pointer_expression"):
            form = match(self.source, node, "$memory + $at", "&$memory[$at]")
            base = self.code.variable(form["memory"]) if form is not None else None
            if base is not None and base.where in self.ran.memories:
                return self.ran.number(form["at"]) > max(self.ran.memories[base.where].held, default=0)
        return False

    def _slots(self, name: Node) -> Definition | None:
        found = self.code.definition(name)
        return slots_of(self.code, found) if found is not None else None

    def _replace(self, edits: Edits, use: Node, places: dict[str, tuple[str, bool]]) -> bool:
        """Whether a use is one of a result in sight, which reads our name now. Raises Unsupported where it may not."""
        node = _whole(use)
        place = "".join(self.source.of(node).split())
        if place not in places or not inside(use, self.after[0].parent):
            return False
        name, everywhere = places[place]
        changed = node.parent.type == "pointer_expression" or self.source.set_by(node) != ""
        if changed or not (everywhere or self.asked.reaching(use)[0] == [0]):
            raise Unsupported("a result that others read, or that changes")
        edits.replace(node, name)
        return True

    def _set_anew(self, name: str, behind: list[Node]) -> int:
        """Where the first of the statements begins that gives a variable a value that is made of something else; the kernel's end
        where none does."""
        for statement in behind:
            form = match(self.source, statement, "$place = $value;")
            read = self.source.walk(form["value"], "identifier") if form is not None else ()
            if self.source.of((form or {}).get("place")) == name and all(self.source.of(n) != name for n in read):
                return statement.start_byte
        return self.kernel.body.end_byte

    def _changed(self, statement: Node) -> Iterator[Definition]:
        """What a statement sets, wholly or in part, and what it hands to a function that may: variables and slots."""
        code, source = self.code, self.source
        for node in source.walk(statement, "assignment_expression", "update_expression"):
            target = field_of(node, "left") or field_of(node, "argument")
            found = code.variable(next(source.walk(target, "identifier"), None))
            if found is None:
                raise Unsupported("a variable of unknown origin")
            yield found
        for call in source.walk(statement, "call_expression"):
            for argument in children_of(call, "arguments"):
                for name in source.walk(argument, "identifier"):
                    found = code.definition(name)
                    if found is not None and found.kind == "local" and code.lends(call, argument)[0]:
                        yield found


def _branch(statement: Node) -> list[Node]:
    """The statements of a branch without another."""
    if statement.type != "if_statement" or field_of(statement, "alternative") is not None:
        return []
    body = field_of(statement, "consequence")
    return statements(body) if body is not None and body.type == "compound_statement" else []


def _whole(use: Node) -> Node:
    """The whole of `maxs[0]`, `total.m`, `slots[0].m`."""
    here = use
    while here.parent is not None and here.parent.type in {"field_expression", "subscript_expression"}:
        if not same(field_of(here.parent, "argument"), here):
            break
        here = here.parent
    return here


def _start_of(source: Source, first: Node) -> tuple[int, str]:
    """Where statements begin, the pragma of a loop that comes first included, and the indentation that goes with its line."""
    pragma = pragma_of(first)
    if pragma is None or "unroll" not in source.of(pragma):
        return first.start_byte, ""
    return source.line_start(pragma), source.indent(first)
