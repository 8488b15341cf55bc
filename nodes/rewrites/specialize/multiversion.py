"""Two forms of a kernel in one file; the host takes the other one for some data types, below or above
a size, or where rows are uneven.

    extern "C" void silu_float16(const __half* x, __half* y, int count, cudaStream_t stream) {
      if (sizeof(*y) * count < SMALL_BELOW) {      // the other form came with all that it needs, named ..._small
        silu_float16_small(x, y, count, stream);
        return;
      }
      ...                                          // as it was

Both forms were measured; what one of them lost where the other won is not lost any more. Of the other file comes all that
differs, and what builds on it, with every such name renamed; what both have in common stays in one piece. No step by itself:
it needs a second source (see Version in nodes/roles.py).
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
from nodes.rewrites.syntax.insert import include
from nodes.rewrites.syntax.source import Edits, Source, Unsupported
from nodes.rewrites.syntax.tree import children_of, declared_name, enclosing, field_of, upward

_TYPES = {"class_specifier", "concept_definition", "enum_specifier", "struct_specifier", "union_specifier"}
_DEFINES = {"preproc_def", "preproc_function_def"}
_CONDITIONS = {"preproc_if", "preproc_ifdef", "preproc_else", "preproc_elif"}
_UNNAMED = {
    "comment", "preproc_call", "preproc_include", "static_assert_declaration", "template_instantiation",
    "identifier", "number_literal", "binary_expression", "unary_expression", "preproc_defined", "parenthesized_expression",
}  # fmt: skip
"""At the top of a file, or of a condition of the preprocessor: what brings no name of its own beside those of macros."""
_TOKEN = re.compile(
    r"(?P<skipped>//[^\n]*|/\*.*?\*/|\s+)|\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'|\.?\d(?:[eEpP][+-]|[\w.'])*"
    r"|(?P<word>[A-Za-z_]\w*)|::|->|.",
    re.DOTALL,
)
_FIXED = {"const", "constexpr", "__constant__", "__shared__", "extern"}


def multiversion(source: Source, other: Source, spec: Spec, version: Version, called: str = "") -> str:
    """`source` with `other`'s form, of names that end in `called`, for what `version` says. Raises Unsupported where a form is not
    understood, or both are alike."""
    if any(one.root.has_error and any(_is_lost(node) for node in one.walk()) for one in (source, other)):
        raise Unsupported("the parser did not understand all of it")
    return _Joined(_File(source, spec), _File(other, spec), version, called).text()


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
        return _words(self.source.text)

    @cached_property
    def named(self) -> dict[str, list[Node]]:
        """The items of each name: overloads, specialisations and declarations stay together."""
        found: dict[str, list[Node]] = {}
        for item in self.items:
            for name in self.names_of(item):
                found.setdefault(name, []).append(item)
        return found

    def texts(self, name: str) -> list[str]:
        return [" ".join(self.source.of(item).split()) for item in self.named.get(name, [])]

    def whole(self, item: Node) -> tuple[int, int]:
        """Where an item begins and ends, with the comments above it, its semicolon and the rest of its line."""
        first, last = item, item
        while (above := first.prev_named_sibling) is not None and above.type == "comment" and self.source.alone(above):
            if above.end_point[0] + 1 != first.start_point[0]:
                break
            first = above
        if last.next_sibling is not None and last.next_sibling.type == ";":
            last = last.next_sibling
        newline = self.source.data[last.end_byte - 1 : last.end_byte] == b"\n"  # a directive ends with its line
        return self.source.line_start(first), last.end_byte if newline else self.source.line_end(last)

    def keeps_state(self, item: Node) -> bool:
        """Whether something outlives a call there, which two forms would share, or ends where a macro is undefined."""
        if item.type == "preproc_call":
            return True
        if item.type == "declaration":
            variable = not self.source.has(item, "function_declarator")
            return variable and not self.source.says(item, *_FIXED)
        inside = self.source.walk(item, "declaration") if item.type != "namespace_definition" else ()
        return any(self.source.says(one, "static") and not self.source.says(one, *_FIXED) for one in inside)

    @cached_property
    def own(self) -> frozenset[str]:
        """Names that mean something of this file wherever they stand. Raises Unsupported where a form has none."""
        found = {*self.macros, *self._dynamic()}
        for item in self.items:
            found.update(self.names_of(item))
        return frozenset(found - {"", *self._promised()})

    def _promised(self) -> set[str]:
        """Functions that are declared and nowhere defined: the library's."""
        found: dict[str, set[str]] = {"declaration": set(), "function_definition": set()}
        for item in self.items:
            inner = item.named_children[-1] if item.type == "template_declaration" else item
            given = self.source.has(field_of(inner, "declarator"), "function_declarator")
            if inner.type in found and given and field_of(inner, "declarator", "value") is None:
                found[inner.type].update(self.names_of(inner))
        return found["declaration"] - found["function_definition"]

    def entry(self, dtype: str) -> Node:
        """The definition of the entry point for a data type. Raises Unsupported where no such function can be seen."""
        found = (item for name in self.spec.entry_names(dtype) for item in self.declared(name))
        defined = next(
            (item for item in found if field_of(item, "body") is not None and enclosing(item, "linkage_specification")),
            None,
        )
        if defined is None:
            raise Unsupported(f"no entry point for {dtype} is written out")
        return defined

    def declared(self, name: str) -> list[Node]:
        """Functions of that name, declared or defined."""
        return [i for i in self.items if i.type in {"declaration", "function_definition"} and name in self.names_of(i)]

    def _dynamic(self) -> Iterator[str]:
        """Dynamic shared memory: one name has one type in all of a file."""
        for node in self.source.walk(None, "declaration"):
            if self.source.says(node, "extern") and self.source.says(node, "__shared__"):
                yield from map(self._last, node.children_by_field_name("declarator"))

    def names_of(self, node: Node) -> list[str]:
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
        if node.type in {"alias_declaration", *_DEFINES}:
            return [of(node, "name")]
        if node.type in {"declaration", "function_definition", "type_definition"}:
            kind = field_of(node, "type")
            names = self.names_of(kind) if kind is not None and kind.type in _TYPES else []
            return names + [name for one in node.children_by_field_name("declarator") for name in self._declared(one)]
        if node.type == "preproc_call" and of(node, "directive").endswith("undef"):
            return [of(node, "argument").strip()]
        if node.type in _UNNAMED:
            return []
        raise Unsupported(f"line {node.start_point[0] + 1} of a form: {node.type.replace('_', ' ')}")

    def _declared(self, declarator: Node) -> list[str]:
        if self.source.has(declarator, "operator_name"):
            raise Unsupported("an operator")
        here: Node | None = declarator
        while here is not None and here.type != "qualified_identifier":
            here = field_of(here, "declarator")
        return [self._last(declarator)] if here is None else [self.source.of(here).partition("::")[0].partition("<")[0]]

    def _last(self, node: Node | None) -> str:
        """The name that a declarator ends in, "" where it has none of its own."""
        found, inner = declared_name(node), field_of(node, "declarator") or field_of(node, "name")
        return self._last(inner) if found is None and inner is not None else self.source.of(found)


def _named(name: str, suffix: str) -> str:
    if name[:1].isupper() and "_" not in name and not name.isupper():
        return f"{name}{suffix.capitalize()}"
    return f"{name}_{suffix.upper() if name.isupper() else suffix}"


def _words(text: str) -> frozenset[str]:
    """Every word of it but for those of comments and strings."""
    return frozenset(token["word"] for token in _TOKEN.finditer(text)) - {None}


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
    def __init__(self, first: _File, second: _File, version: Version, called: str) -> None:
        self.first, self.second, self.spec, self.version = first, second, first.spec, version
        entries = [(first.entry(dtype), second.entry(dtype)) for dtype in version.dtypes]
        self.entries = list({mine.start_byte: (mine, theirs) for mine, theirs in entries}.values())
        """Once where one serves several data types."""
        self.place = self._place()
        self.own = self._differing()
        self.suffix = self._suffix(called)
        self.names = {name: _named(name, self.suffix) for name in self.own}

    def text(self) -> str:
        edits, copy = Edits(self.first.source), self._copy()
        if taken := (self.first.own - self.second.own) & _words(copy):
            raise Unsupported(f"{min(taken)} means two things")
        edits.insert(self.place, f"{copy}\n")
        for mine, theirs in self.entries:
            self._enter(edits, mine, self.names[self.second.names_of(theirs)[0]])
        text = re.sub(r"\n{3,}", "\n\n", edits.apply())
        for node in self.second.source.walk(None, "preproc_include"):
            path, source = self.second.source.of(node, "path"), self.first.source.reparsed(text)
            if not path.startswith("<"):
                raise Unsupported(f"an include of {path}")
            edits = Edits(source)
            include(source, edits, path.strip("<>"))
            text = edits.apply()
        return text

    def _differing(self) -> frozenset[str]:
        """Names that this file has otherwise, or not above the copy, those that build on them, and the entry points. Raises
        Unsupported where no entry point is otherwise."""
        entries = {self.second.names_of(theirs)[0] for _, theirs in self.entries}
        own = {name for name in self.second.own - entries if not self._is_shared(name)}
        own |= {name for name in entries if self.first.texts(name) != self.second.texts(name)}
        words = {name: self._words(name) for name in self.second.own}
        while more := {name for name in self.second.own - own if words[name] & own}:
            own |= more
        if not own & entries:
            raise Unsupported("both forms are alike")
        return frozenset(own | entries)

    def _is_shared(self, name: str) -> bool:
        """Whether this file has the same definitions of a name, above the copy, and nothing that they keep."""
        mine, theirs = self.first.named.get(name, []), self.second.named.get(name, [])
        alike = bool(theirs) and self.first.texts(name) == self.second.texts(name)
        above = all(item.end_byte <= self.place for item in mine)
        return alike and above and not any(self.second.keeps_state(item) for item in theirs)

    def _words(self, name: str) -> frozenset[str]:
        """What the items of a name, and the conditions of the preprocessor around them, are made of."""
        of, found = self.second.source.of, list[str]()
        for item in self.second.named.get(name, []):
            found.append(of(item))
            around = (node for node in upward(item) if node.type in _CONDITIONS)
            found += [of(node, "condition") or of(node, "name") for node in around]
        return _words(" ".join(found))

    def _copy(self) -> str:
        """The other file under its new names: no include that is there already, and entry points for the version alone."""
        source, edits, gone = self.second.source, Edits(self.second.source), set[tuple[int, int, str]]()
        for node in source.walk(None, "preproc_include"):
            edits.remove(node)
        for name, items in self.second.named.items():
            for item in items if name in self.second.own - self.own else ():
                if not self.own & set(self.second.names_of(item)):
                    gone.add((*self.second.whole(item), ""))
        edits.changes += gone
        wanted = {self.second.names_of(theirs)[0] for _, theirs in self.entries}
        for name in {name for dtype in self.spec.dtypes for name in self.spec.entry_names(dtype)}:
            items = self.second.declared(name)
            unused = name not in wanted and len(re.findall(rf"\b{name}\b", source.text)) == len(items)
            for item in items:
                whole = item.parent if item.parent.type == "linkage_specification" else item
                if unused:
                    edits.changes.append((*self.second.whole(whole), ""))
                else:  # nobody outside of the file calls it any more
                    edits.replace(whole, f"static {source.of(item)}")
        text = edits.apply()
        if "##" in text:
            raise Unsupported("names that a macro puts together")
        said = self.version.said(self.spec, self._bound(self.suffix))
        head = f"// The form for {said}: measured faster there, and slower elsewhere than the other one.\n"
        if self.version.measure is not None:
            head += f"{self._threshold()}\n"
        return head + _renamed(text, self.names).strip("\n") + "\n"

    def _place(self) -> int:
        """In front of the first entry point, and of the comments above it."""
        source = self.first.source
        outer = min((mine for mine, _ in self.entries), key=lambda node: node.start_byte)
        while outer.parent is not None and outer.parent.type != "translation_unit":
            outer = outer.parent
        before = outer.prev_sibling
        while before is not None and before.type == "comment" and source.alone(before):
            outer, before = before, before.prev_sibling
        return outer.start_byte

    # --- words -------------------------------------------------------------------------------------------------

    def _suffix(self, called: str) -> str:
        """One that makes no name that is there already."""
        version = self.version
        sized = "small" if version.below is not None else "large" if version.measure else "_".join(version.dtypes)
        plain = called or ("uneven" if version.uneven else sized)
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
        given = [source.name(parameter) for parameter in children_of(entry, "declarator", "parameters")]
        names = dict(zip([a.name for a in self.spec.arguments], given, strict=False))
        if not all(given) or not version.asked <= names.keys():
            raise Unsupported("an entry point with a parameter that has no name, or that lacks a size")
        call = f"{called}({', '.join(given)})"
        returns = source.of(entry, "type") != "void"
        calls = [f"return {call};"] if returns else [f"{call};", "return;"]
        condition = version.condition(names, self._bound(self.suffix))
        if not condition:
            edits.replace(body, f"{{\n{indent}{unit}{calls[0]}\n{indent}}}")
            return
        lines = [f"if ({condition}) {{", *(f"{unit}{line}" for line in calls), "}"]
        head = "".join(f"\n{indent}{unit}{line}" for line in lines)
        if body.start_point[0] != body.end_point[0]:
            edits.insert(body.start_byte + 1, head)
            return
        inside = "".join(f"\n{indent}{unit}{source.of(node)}" for node in body.named_children)
        edits.replace(body, f"{{{head}{inside}\n{indent}}}")
