"""Two forms of a kernel in one file; the host takes the other one for some data types, or below or above a size.

    extern "C" void silu_float16(const __half* x, __half* y, int count, cudaStream_t stream) {
      if (sizeof(*y) * count < SMALL_BELOW) {      // the other form came with all that it needs, named ..._small
        silu_float16_small(x, y, count, stream);
        return;
      }
      ...                                          // as it was

Both forms were measured; what one of them lost where the other won is not lost any more. The other file comes whole, less
its includes, with every name of its own renamed, so that nothing in it can mean what this file means by it; only numbers
that a search may pick and that both files leave open alike stay one. No step by itself: it needs a second source (see
Version in nodes/roles.py).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from tree_sitter import Node

from kernels.spec import Spec
from nodes.rewrites.specialize.version import Version
from nodes.rewrites.syntax.entry import has_c_linkage, measured, parameters
from nodes.rewrites.syntax.source import Edits, Source, Unsupported
from nodes.rewrites.syntax.tree import field_of

_TYPES = {"class_specifier", "concept_definition", "enum_specifier", "struct_specifier", "union_specifier"}
_DEFINES = {"preproc_def", "preproc_function_def"}
_CONDITIONS = {"preproc_if", "preproc_ifdef", "preproc_else", "preproc_elif"}
_UNNAMED = {
    *_DEFINES, "comment", "preproc_call", "preproc_include", "static_assert_declaration", "template_instantiation",
    "identifier", "number_literal", "binary_expression", "unary_expression", "preproc_defined", "parenthesized_expression",
}  # fmt: skip
"""At the top of a file, or of a condition of the preprocessor: what brings no name of its own beside those of macros."""
_TOKEN = re.compile(
    r"(?P<skipped>//[^\n]*|/\*.*?\*/|\s+)|\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'|\.?\d(?:[eEpP][+-]|[\w.'])*"
    r"|(?P<word>[A-Za-z_]\w*)|::|->|.",
    re.DOTALL,
)
_TUNED = re.compile(r"#define\s+(\w+)\s+\d+\s*// tune: .*")


def multiversion(source: Source, other: Source, spec: Spec, version: Version) -> str:
    """`source` with `other`'s form for what `version` says. Raises Unsupported where a form is not understood."""
    if any(one.root.has_error and any(_is_lost(node) for node in one.walk()) for one in (source, other)):
        raise Unsupported("the parser did not understand all of it")
    return _Joined(_File(source, spec), _File(other, spec), version).text()


def _is_lost(node: Node) -> bool:
    """An error, or the rest of a macro's text behind a comment, which the grammar takes for code of its own."""
    within = node.is_missing and node.parent is not None and node.parent.type.startswith("preproc_")
    return node.is_error or within


@dataclass(frozen=True, eq=False)
class _File:
    source: Source
    spec: Spec

    @cached_property
    def items(self) -> list[Node]:
        """What is known by its name all over the file: within `extern "C"`, conditions and unnamed namespaces, too."""
        return list(self._flat(self.source.root))

    def _flat(self, node: Node) -> Iterator[Node]:
        for child in node.named_children:
            body = field_of(child, "body")
            unnamed = child.type == "namespace_definition" and field_of(child, "name") is None
            if child.type in _CONDITIONS:
                yield from self._flat(child)
            elif body is not None and (unnamed or child.type == "linkage_specification"):
                yield from self._flat(body) if body.type == "declaration_list" else [body]
            else:
                yield child

    @cached_property
    def macros(self) -> dict[str, Node]:
        return {self.source.of(node, "name"): node for node in self.source.walk(None, *_DEFINES)}

    @cached_property
    def words(self) -> frozenset[str]:
        return frozenset(re.findall(r"[A-Za-z_]\w*", self.source.text))

    @cached_property
    def own(self) -> frozenset[str]:
        """Names that mean something of this file wherever they stand. Raises Unsupported where a form has none."""
        found = {*self.macros, *self._dynamic()}
        for item in self.items:
            found.update(self._names(item))
        return frozenset(found - {"", *self._promised()})

    def _promised(self) -> set[str]:
        """Functions that are declared and nowhere defined: the library's."""
        found: dict[str, set[str]] = {"declaration": set(), "function_definition": set()}
        for item in self.items:
            inner = item.named_children[-1] if item.type == "template_declaration" else item
            given = self.source.has(field_of(inner, "declarator"), "function_declarator")
            if inner.type in found and given and field_of(inner, "declarator", "value") is None:
                found[inner.type].update(self._names(inner))
        return found["declaration"] - found["function_definition"]

    def entry(self, dtype: str) -> Node | None:
        """The definition of the entry point for a data type, None where no such function can be seen."""
        for name in self.spec.entry_names(dtype):
            for item in self.declared(name):
                if field_of(item, "body") is not None and has_c_linkage(item):
                    return item
        return None

    def declared(self, name: str) -> list[Node]:
        """Functions of that name, declared or defined."""
        return [i for i in self.items if i.type in {"declaration", "function_definition"} and name in self._names(i)]

    def tuned(self) -> dict[str, Node]:
        """Numbers that a search may pick, by their line, where nothing above mentions them."""
        found = {}
        for item in self.items:
            line = (
                self.source.text[self.source.line_start(item) :].partition("\n")[0]
                if item.type == "preproc_def"
                else ""
            )
            name = _TUNED.fullmatch(line)
            if name is None:
                continue
            above = self.source.data[: item.start_byte].decode()
            ends = re.search(rf"#\s*undef\s+{name[1]}\b", self.source.text)
            if not ends and not re.search(rf"\b{name[1]}\b", above):
                found[line] = item
        return found

    def _dynamic(self) -> Iterator[str]:
        """Dynamic shared memory: one name has one type in all of a file."""
        for node in self.source.walk(None, "declaration"):
            if self.source.says(node, "extern") and self.source.says(node, "__shared__"):
                yield from map(self._last, node.children_by_field_name("declarator"))

    def _names(self, node: Node) -> list[str]:
        while node.type == "template_declaration":
            node = node.named_children[-1]
        of = self.source.of
        if node.type == "namespace_definition":
            if any(of(child) == "inline" for child in node.children):
                raise Unsupported("an inline namespace")
            return [of(node, "name").partition("::")[0]]
        if node.type in _TYPES:
            inside = self.source.walk(node, "enumerator") if node.type == "enum_specifier" else ()
            return [self._last(field_of(one, "name")) for one in (node, *inside)]
        if node.type == "alias_declaration":
            return [of(node, "name")]
        if node.type in {"declaration", "function_definition", "type_definition"}:
            kind = field_of(node, "type")
            names = self._names(kind) if kind is not None and kind.type in _TYPES else []
            return names + [name for one in node.children_by_field_name("declarator") for name in self._declared(one)]
        if node.type in _UNNAMED:
            return []
        raise Unsupported(f"line {node.start_point[0] + 1} of a form: {node.type.replace('_', ' ')}")

    def _declared(self, declarator: Node) -> list[str]:
        if self.source.has(declarator, "operator_name"):
            raise Unsupported("an operator")
        here: Node | None = declarator
        while here is not None and here.type != "qualified_identifier":
            here = field_of(here, "declarator")
        return [] if here is not None else [self._last(declarator)]  # a member of what is declared elsewhere

    def _last(self, node: Node | None) -> str:
        """The name that a declarator ends in, "" where it has none of its own."""
        while node is not None and node.type not in {"identifier", "type_identifier"}:
            inner = field_of(node, "declarator") or field_of(node, "name")
            if inner is None and node.type in {"reference_declarator", "parenthesized_declarator"}:
                inner = next(iter(reversed(node.named_children)), None)
            node = inner
        return self.source.of(node)


def _named(name: str, suffix: str) -> str:
    if name[:1].isupper() and "_" not in name and not name.isupper():
        return f"{name}{suffix.capitalize()}"
    return f"{name}_{suffix.upper() if name.isupper() else suffix}"


def _renamed(text: str, names: dict[str, str]) -> str:
    """Every word that is one of the names, but for what is another's, `max` in `std::max`."""
    pieces, before = list[str](), [""]
    for token in _TOKEN.finditer(text):
        word = token[0]
        if token["skipped"] is None:
            if word in names and not _is_anothers(before, names):
                pieces.append(names[word])
                before.append(word)
                continue
            before.append(word)
        pieces.append(word)
    return "".join(pieces)


def _is_anothers(before: list[str], names: dict[str, str]) -> bool:
    """Whether the tokens in front of a name of the file say that it is another's. Raises Unsupported where that is not told."""
    if before[-1] in {".", "->"} or before[-2:] == [">", "::"]:
        raise Unsupported("a member that is named as something of the file is")
    at = len(before)
    while before[at - 1] == "::" and before[at - 2].isidentifier():
        at -= 2
    return at < len(before) and before[at] not in names


class _Joined:
    def __init__(self, first: _File, second: _File, version: Version) -> None:
        self.first, self.second, self.spec, self.version = first, second, first.spec, version
        entries = [self._entries(dtype) for dtype in version.dtypes]
        self.entries = list({mine.start_byte: (mine, theirs) for mine, theirs in entries}.values())
        """Once where one serves several data types."""
        mine, theirs = first.tuned(), second.tuned()
        self.shared = {line: (node, theirs[line]) for line, node in mine.items() if line in theirs}
        self.own = second.own - {second.source.of(node, "name") for _, node in self.shared.values()}
        self.suffix = self._suffix()
        self.names = {name: _named(name, self.suffix) for name in self.own}

    def text(self) -> str:
        edits, at = Edits(self.first.source), self._place()
        copy = self._copy()
        above = {name for name, node in self.first.macros.items() if node.start_byte < at}
        if taken := above & frozenset(re.findall(r"[A-Za-z_]\w*", copy)) - {line.split()[1] for line in self.shared}:
            raise Unsupported(f"{min(taken)} means two things")
        for node, _ in self.shared.values():
            edits.remove(node)
        edits.insert(at, "".join(f"\n{line}" for line in self.shared) + f"\n{copy}\n")
        for mine, theirs in self.entries:
            self._enter(edits, mine, self.names[self.second._names(theirs)[0]])
        return re.sub(r"\n{3,}", "\n\n", edits.apply())

    def _copy(self) -> str:
        """The other file under its new names: no include that is there already, and entry points for the version alone."""
        source, edits = self.second.source, Edits(self.second.source)
        for include in source.walk(None, "preproc_include"):
            path = source.of(include, "path")
            if not path.startswith("<"):
                raise Unsupported(f"an include of {path}")
            if path in {self.first.source.of(n, "path") for n in self.first.source.walk(None, "preproc_include")}:
                edits.remove(include)
        for _, node in self.shared.values():
            edits.remove(node)
        wanted = {self.second._names(theirs)[0] for _, theirs in self.entries}
        for name in {name for dtype in self.spec.dtypes for name in self.spec.entry_names(dtype)}:
            items = self.second.declared(name)
            unused = name not in wanted and len(re.findall(rf"\b{name}\b", source.text)) == len(items)
            for item in items:
                whole = item.parent if item.parent.type == "linkage_specification" else item
                if unused:
                    edits.remove(whole, comment=True)
                else:  # nobody outside of the file calls it any more
                    edits.replace(whole, f"static {source.of(item)}")
        text = edits.apply()
        if "##" in text:
            raise Unsupported("names that a macro puts together")
        said = self.version.said(self.spec, self._bound(self.suffix))
        head = f"// The form for {said}: measured faster there, and slower elsewhere than the one below it.\n"
        if self.version.measure is not None:
            head += f"{self._threshold()}\n"
        return head + _renamed(text, self.names).strip("\n") + "\n"

    def _entries(self, dtype: str) -> tuple[Node, Node]:
        mine, theirs = self.first.entry(dtype), self.second.entry(dtype)
        if mine is None or theirs is None:
            raise Unsupported(f"no entry point for {dtype} is written out")
        return mine, theirs

    def _place(self) -> int:
        """Behind the includes, in front of all that this file defines below them."""
        source = self.first.source
        includes = [n for n in source.root.named_children if source.has(n, "preproc_include")]
        at = includes[-1].end_byte if includes else 0  # an include ends with its line
        return at if source.data[at - 1 : at] in {b"\n", b""} else source.line_end(includes[-1])

    # --- words -------------------------------------------------------------------------------------------------

    def _suffix(self) -> str:
        """One that makes no name that is there already."""
        version = self.version
        plain = "small" if version.below is not None else "large" if version.measure else "_".join(version.dtypes)
        taken = self.first.words | self.second.words
        suffixes = (f"{plain}{count if count > 1 else ''}" for count in itertools.count(1))
        return next(s for s in suffixes if not taken & {self._bound(s), *(_named(name, s) for name in self.own)})

    def _bound(self, suffix: str) -> str:
        return f"{suffix.upper()}_{'BELOW' if self.version.below is not None else 'FROM'}"

    def _threshold(self) -> str:
        value = self.version.limit
        choices = sorted({value, *self.version.others})
        listed = f"  // tune: {' '.join(map(str, choices))}" if len(choices) > 1 else ""
        return f"#define {self._bound(self.suffix)} {value}{listed}"

    def _enter(self, edits: Edits, entry: Node, called: str) -> None:
        source, version = self.first.source, self.version
        body = field_of(entry, "body")
        indent, unit = source.indent(entry), source.unit(entry)
        call = f"{called}({', '.join(parameters(source, entry))})"
        returns = source.of(entry, "type") != "void"
        calls = [f"return {call};"] if returns else [f"{call};", "return;"]
        if version.measure is None:
            edits.replace(body, f"{{\n{indent}{unit}{calls[0]}\n{indent}}}")
            return
        condition = f"{measured(source, self.spec, entry, version.measure)} {version.sign} {self._bound(self.suffix)}"
        lines = [f"if ({condition}) {{", *(f"{unit}{line}" for line in calls), "}"]
        head = "".join(f"\n{indent}{unit}{line}" for line in lines)
        if body.start_point[0] != body.end_point[0]:
            edits.insert(body.start_byte + 1, head)
            return
        inside = "".join(f"\n{indent}{unit}{source.of(node)}" for node in body.named_children)
        edits.replace(body, f"{{{head}{inside}\n{indent}}}")
