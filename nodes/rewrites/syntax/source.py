"""A C++ or CUDA source with its syntax tree, and edits by byte range.

tree-sitter's CUDA grammar is a superset of its C++ one (the C++ grammar errors on every CUDA qualifier), so it parses
both. Edits inside or next to an ERROR node are refused: what was not understood is not touched.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

import tree_sitter_cuda
from tree_sitter import Language, Node, Parser, Query, QueryCursor, Tree

_LANGUAGE = Language(tree_sitter_cuda.language())


class Unsupported(Exception):
    """The source has a form that a rewrite does not understand; the rewrite does not apply."""


@dataclass(frozen=True, eq=False)
class Source:
    """`text` parsed once. All positions are byte offsets into `data`. Two of one text are two: their nodes do not mix."""

    text: str
    language: str
    """`cuda` or `cpu`."""

    @cached_property
    def data(self) -> bytes:
        return self.text.encode()

    @cached_property
    def tree(self) -> Tree:
        return Parser(_LANGUAGE).parse(self.data)

    @property
    def root(self) -> Node:
        return self.tree.root_node

    def of(self, node: Node | None) -> str:
        """The text of a node, "" for None."""
        return "" if node is None else self.data[node.start_byte : node.end_byte].decode()

    @cached_property
    def _preorder(self) -> tuple[list[Node], dict[int, tuple[int, int]], dict[str, list[int]]]:
        """Every node in source order, by a node's id the range of the node and all below it, and the places by type.

        Rewrites walk a tree some twenty times; through the bindings each walk costs as much as the parse.
        """
        nodes: list[Node] = []
        stack = [self.root]
        while stack:  # no recursion: how deep a source nests is the candidate's choice
            here = stack.pop()
            nodes.append(here)
            if here.child_count:
                stack.extend(here.children[::-1])
        ranges = {node.id: (at, at + node.descendant_count) for at, node in enumerate(nodes)}
        places: dict[str, list[int]] = {}
        for at, node in enumerate(nodes):
            places.setdefault(node.type, []).append(at)
        return nodes, ranges, places

    def walk(self, node: Node | None = None, *types: str) -> Iterator[Node]:
        """The node and all below it, depth first, in source order; only `types` where given."""
        nodes, ranges, places = self._preorder
        first, last = ranges[node.id] if node is not None else (0, len(nodes))
        if not types:
            return iter(nodes[first:last])
        found = [places.get(kind, []) for kind in types]
        inside = [at for here in found for at in here[bisect_left(here, first) : bisect_left(here, last)]]
        return (nodes[at] for at in (sorted(inside) if len(types) > 1 else inside))

    def query(self, pattern: str, node: Node | None = None) -> list[dict[str, list[Node]]]:
        """Matches of a tree-sitter query, each a mapping of capture name to nodes."""
        cursor = QueryCursor(Query(_LANGUAGE, pattern))
        return [captures for _, captures in cursor.matches(node or self.root)]

    def render(self, node: Node, replaced: Iterable[tuple[Node, str]]) -> str:
        """The text of a node with some nodes below it replaced; a replaced node's own inside is gone with it."""
        pieces, at = [], node.start_byte
        for inner, text in sorted(replaced, key=lambda pair: (pair[0].start_byte, -pair[0].end_byte)):
            if node.start_byte <= inner.start_byte and inner.end_byte <= node.end_byte and inner.start_byte >= at:
                pieces += [self.data[at : inner.start_byte].decode(), text]
                at = inner.end_byte
        return "".join(pieces) + self.data[at : node.end_byte].decode()

    def indent(self, node: Node) -> str:
        """The white space in front of the line on which the node starts."""
        line = self.data[self.data.rfind(b"\n", 0, node.start_byte) + 1 : node.start_byte].decode()
        return line[: len(line) - len(line.lstrip())]

    def unit(self, node: Node) -> str:
        """One level of indentation, as the function around the node has it."""
        here: Node | None = node
        while here is not None and here.type != "function_definition":
            here = here.parent
        body = here.child_by_field_name("body") if here is not None else None
        first = next((c for c in body.named_children if c.start_point[0] > body.start_point[0]), None) if body else None
        if first is None or here is None:
            return "  "
        return " " * max(2, len(self.indent(first)) - len(self.indent(here)))

    def reparsed(self, text: str) -> Source:
        return Source(text, self.language)


def inside(node: Node, outer: Node) -> bool:
    return outer.start_byte <= node.start_byte and node.end_byte <= outer.end_byte


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
        if node.has_error or (node.parent is not None and node.parent.type == "ERROR"):
            raise Unsupported(f"the parser did not understand line {node.start_point[0] + 1}")
        self.changes.append((node.start_byte, node.end_byte, text))

    def insert(self, at: int, text: str) -> None:
        self.changes.append((at, at, text))

    def remove(self, node: Node) -> None:
        """Deletes a statement, and its line where nothing else stands on it."""
        data, start, end = self.source.data, node.start_byte, node.end_byte
        line = data.rfind(b"\n", 0, start) + 1
        if not data[line:start].strip() and data[end : end + 1] == b"\n":
            start, end = line, end + 1
        self.changes.append((start, end, ""))

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
