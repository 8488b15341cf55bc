"""A C++ or CUDA source with its syntax tree, and edits by byte range.

tree-sitter's CUDA grammar is a superset of its C++ one (the C++ grammar errors on every CUDA qualifier), so it parses
both. Edits inside or next to an ERROR node are refused: what was not understood is not touched.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import tree_sitter_cuda
from tree_sitter import Language, Node, Parser

from nodes.rewrites.syntax.tree import JUMPS, declared_name, enclosing, field_of, inside, left_by, pragma_of, same

_LANGUAGE = Language(tree_sitter_cuda.language())
Lines = Sequence["str | Lines"]
"""Of a text: what is a list stands one level deeper."""


class Unsupported(Exception):
    """The source has a form that a rewrite does not understand; the rewrite does not apply."""


class _Parsed:
    """A text's tree, every node of it in source order, and where in that order a node (by its id) and each type stand.

    Rewrites walk a tree some twenty times; through the bindings each walk costs as much as the parse.
    """

    def __init__(self, data: bytes) -> None:
        self.tree = Parser(_LANGUAGE).parse(data)
        self.nodes: list[Node] = []
        cursor = self.tree.walk()  # no recursion: how deep a source nests is the candidate's choice
        below, beside, above = cursor.goto_first_child, cursor.goto_next_sibling, cursor.goto_parent
        left = True
        while left:
            self.nodes.append(cursor.node)
            left = below() or beside()
            while not left and above():
                left = beside()
        self.order = {node.id: at for at, node in enumerate(self.nodes)}
        self.places: dict[str, list[int]] = defaultdict(list)
        for at, node in enumerate(self.nodes):
            self.places[node.type].append(at)


_parsed = lru_cache(maxsize=4)(_Parsed)
"""Of the last few texts: a rewrite that does not apply leaves its text to the next one."""


@dataclass(frozen=True, eq=False)
class Source:
    """`text` parsed once. All positions are byte offsets into `data`. Two of one text are two, whatever each keeps of it."""

    text: str
    language: str
    """`cuda` or `cpu`."""

    @cached_property
    def data(self) -> bytes:
        return self.text.encode()

    @cached_property
    def _parsed(self) -> _Parsed:
        return _parsed(self.data)

    @property
    def root(self) -> Node:
        return self._parsed.tree.root_node

    def of(self, node: Node | None, *path: str) -> str:
        """The text of a node, or of what the grammar calls so below it; "" where there is none."""
        found = field_of(node, *path)
        return "" if found is None else self.data[found.start_byte : found.end_byte].decode()

    def called(self, call: Node | None) -> str:
        """The plain name of the function that a call names, without namespaces and template arguments."""
        return self.of(call, "function").split("<")[0].split("::")[-1]

    def name(self, definition: Node | None) -> str:
        """What a function, a parameter or a declaration gives a name to."""
        return self.of(declared_name(field_of(definition, "declarator")))

    def walk(self, node: Node | None = None, *types: str) -> Iterator[Node]:
        """The node and all below it, depth first, in source order; only `types` where given."""
        nodes, places = self._parsed.nodes, self._parsed.places
        first = self._parsed.order[node.id] if node is not None else 0
        last = first + node.descendant_count if node is not None else len(nodes)
        if not types:
            return iter(nodes[first:last])
        found = [places.get(kind, []) for kind in types]
        inside = [at for here in found for at in here[bisect_left(here, first) : bisect_left(here, last)]]
        return (nodes[at] for at in (sorted(inside) if len(types) > 1 else inside))

    def owns(self, node: Node) -> bool:
        """Whether the node is one of this tree."""
        return node.id in self._parsed.order

    def says(self, declaration: Node, *words: str) -> bool:
        """Whether one of these words stands in front of what a declaration declares: `extern`, `__shared__`, `static`."""
        return any(self.of(child) in words for child in declaration.children)

    def set_by(self, place: Node) -> str:
        """`=`, `+=`, `++` and so on where the node is what an assignment sets or an update counts; "" for anything else."""
        owner = place.parent
        if owner is None or owner.type not in {"assignment_expression", "update_expression"}:
            return ""
        return self.of(owner, "operator") if same(field_of(owner, "left") or field_of(owner, "argument"), place) else ""

    def has(self, node: Node | None, *types: str) -> bool:
        """Whether there is any of these types among the node and all below it."""
        return next(self.walk(node, *types), None) is not None

    def jumps_out_of(self, body: Node) -> Iterator[Node]:
        """Jumps that end a round of the loop around a body, or leave it: not those of loops and lambdas inside of it."""
        for jump in self.walk(body, *JUMPS):
            stays = jump.type in {"return_statement", "goto_statement"}
            left = enclosing(jump, "lambda_expression") if stays else left_by(jump)
            if left is None or not inside(left, body):
                yield jump

    def render(self, node: Node, replaced: Iterable[tuple[Node, str]]) -> str:
        """The text of a node with some nodes below it replaced; a replaced node's own inside is gone with it."""
        pieces, at = [], node.start_byte
        for inner, text in sorted(replaced, key=lambda pair: (pair[0].start_byte, -pair[0].end_byte)):
            if inside(inner, node) and inner.start_byte >= at:
                pieces += [self.data[at : inner.start_byte].decode(), text]
                at = inner.end_byte
        return "".join(pieces) + self.data[at : node.end_byte].decode()

    def line_start(self, node: Node | int) -> int:
        """The first byte of the line on which the node starts, or the byte lies."""
        return self.data.rfind(b"\n", 0, node if isinstance(node, int) else node.start_byte) + 1

    def line_end(self, node: Node) -> int:
        """The byte behind the end of the line on which the node ends."""
        newline = self.data.find(b"\n", node.end_byte)
        return len(self.data) if newline < 0 else newline + 1

    def alone(self, node: Node) -> bool:
        """Whether nothing else stands on the node's lines."""
        start, end = self.line_start(node), self.line_end(node)
        return not self.data[start : node.start_byte].strip() and not self.data[node.end_byte : end].strip()

    def indent(self, node: Node) -> str:
        """The white space in front of the line on which the node starts."""
        line = self.data[self.line_start(node) : node.start_byte].decode()
        return line[: len(line) - len(line.lstrip())]

    def unit(self, node: Node) -> str:
        """One level of indentation, as the function around the node has it."""
        here = enclosing(node, "function_definition")
        body = field_of(here, "body")
        first = next((c for c in body.named_children if c.start_point[0] > body.start_point[0]), None) if body else None
        return "  " if first is None else " " * max(2, len(self.indent(first)) - len(self.indent(here)))

    def reparsed(self, text: str) -> Source:
        """Itself where the text is its own: what was found out of it is kept."""
        return self if text == self.text else Source(text, self.language)


def levelled(lines: Lines, unit: str) -> list[str]:
    """The lines, a list among them one level deeper than what stands around it. Directives stay where the outermost lines are."""
    found: list[str] = []
    for line in lines:
        if isinstance(line, str):
            found.append(line)
        else:
            found += [inner if inner.startswith("#") else unit + inner for inner in levelled(line, unit)]
    return found


def lifted(source: Source, statement: Node, text: str) -> str:
    """A statement's lines moved left by its own indentation."""
    indent = source.indent(statement)
    return "\n".join(line.removeprefix(indent) for line in text.rstrip("\n").split("\n"))


def operands(source: Source, node: Node, operator: str) -> list[Node]:
    """What a chain of one operator joins, `a`, `b` and `c` of `a * (b * c)`, in order."""
    found, stack = [], [node]
    while stack:  # no recursion, as in a walk
        here = stack.pop()
        if here.type == "parenthesized_expression":
            stack.append(here.named_children[0])
        elif here.type == "binary_expression" and source.of(here.child_by_field_name("operator")) == operator:
            stack += [here.child_by_field_name("right"), here.child_by_field_name("left")]
        else:
            found.append(here)
    return found


def repeated(source: Source, change: Callable[[Source], str | None], most: int) -> str | None:
    """The text after up to `most` changes, each made to what the one before left; None where there was none."""
    text = source.text
    for _ in range(most):
        changed = change(source.reparsed(text))
        if changed is None:
            break
        text = changed
    return text if text != source.text else None


@dataclass
class Edits:
    """Replacements of byte ranges of one source, applied together from the end to the start."""

    source: Source
    changes: list[tuple[int, int, str]] = field(default_factory=list)

    def replace(self, node: Node, text: str) -> None:
        self.span(node, node, text)

    def span(self, first: Node, last: Node, text: str) -> None:
        """Replaces all from one node to another."""
        for node in (first, last):
            if node.has_error or (node.parent is not None and node.parent.type == "ERROR"):
                raise Unsupported(f"the parser did not understand line {node.start_point[0] + 1}")
        self.changes.append((first.start_byte, last.end_byte, text))

    def write(self, node: Node, lines: Lines) -> None:
        """Puts lines in a statement's place, at its indentation; a list among them is one level deeper."""
        self.replace(node, f"\n{self.source.indent(node)}".join(levelled(lines, self.source.unit(node))))

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """All that the block asks for or, where it meets a form that it does not understand, nothing of it."""
        kept = len(self.changes)
        try:
            yield
        except Unsupported:
            del self.changes[kept:]

    def insert(self, at: int, text: str) -> None:
        self.changes.append((at, at, text))

    def in_front(self, statement: Node, *lines: str) -> None:
        """Inserts lines in front of a statement and the directive for it, at its indentation; directives have none."""
        source, first, indent = self.source, pragma_of(statement) or statement, self.source.indent(statement)
        start = source.line_start(first)
        if source.data[start : first.start_byte].strip():
            self.insert(first.start_byte, "".join(f"{line}\n{indent}" for line in lines))
        else:
            self.insert(start, "".join(f"{line}\n" if line.startswith("#") else f"{indent}{line}\n" for line in lines))

    def behind(self, statement: Node, line: str) -> None:
        """Inserts a line behind a statement, at its indentation."""
        self.insert(statement.end_byte, f"\n{self.source.indent(statement)}{line}")

    def remove(self, node: Node, comment: bool = False, instead: str = "", blank: bool = False) -> None:
        """Deletes a statement with its line, with a comment of its own above it and a blank line behind it where asked for; where
        something else stands on that line, puts `instead` in its place."""
        above = node.prev_named_sibling if comment else None
        own = above is not None and above.type == "comment" and above.end_point[0] == node.start_point[0] - 1
        if own and self.source.alone(above):
            self.remove(above)
        alone = self.source.alone(node)
        self.replace(node, "" if alone else instead)
        if alone:
            end = self.source.line_end(node)
            after = self.source.data.find(b"\n", end) + 1 if blank else 0
            end = after if after and not self.source.data[end:after].strip() else end
            self.changes[-1] = (self.source.line_start(node), end, "")

    def take_out(self, entry: Node) -> None:
        """Deletes an entry of a list, and one comma beside it."""
        before, after = entry.prev_sibling, entry.next_sibling
        start = before.start_byte if before.type == "," else entry.start_byte
        last = before.type != "," and after.type == ","
        self.changes.append((start, after.next_sibling.start_byte if last else entry.end_byte, ""))

    def apply(self) -> str:
        """The new text. Raises Unsupported where two changes overlap."""
        data, end = self.source.data, len(self.source.data)
        pieces: list[bytes] = []
        # Stable on equal starts: insertions at one place keep the order in which they were asked for.
        ordered = sorted(self.changes, key=lambda change: (change[0], change[1]))
        for start, stop, text in ordered[::-1]:
            if stop > end:
                raise Unsupported("two edits overlap")
            pieces[:0] = [text.encode(), data[stop:end]]
            end = start
        return (data[:end] + b"".join(pieces)).decode()


def one_by_one(
    source: Source, form: Callable[..., bool | None], places: Callable[[Source], Iterable[tuple]], most: int
) -> str | None:
    """As `repeated`, each time where it applies first: `form(edits, *place)` changes a place, or says False or raises
    Unsupported."""

    def first(left: Source) -> str | None:
        for place in places(left):
            edits = Edits(left)
            with suppress(Unsupported):
                if form(edits, *place) is not False:
                    return edits.apply()
        return None

    return repeated(source, first, most)
