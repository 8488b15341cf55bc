"""Two forms of a kernel in one file; the host takes the other one for some data types, or below or above a size.

    extern "C" void silu_float16(const __half* x, __half* y, int count, cudaStream_t stream) {
      if (sizeof(*y) * count < SMALL_BELOW) {      // the other form came with all that it needs, named ..._small
        silu_float16_small(x, y, count, stream);
        return;
      }
      ...                                          // as it was

Both forms were measured; what one of them lost where the other won is not lost any more. What the files have in common
stays in one piece. No step by itself: it needs a second source (see Version in nodes/roles.py).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property

from tree_sitter import Node

from kernels.spec import Spec
from nodes.rewrites.specialize.version import Version
from nodes.rewrites.syntax.entry import has_c_linkage, measured, parameters
from nodes.rewrites.syntax.insert import include
from nodes.rewrites.syntax.source import Edits, Source, Unsupported
from nodes.rewrites.syntax.tree import field_of, same

_DIRECTIVES = {"preproc_def", "preproc_function_def"}
_NAMED = {
    *_DIRECTIVES,
    "alias_declaration",
    "class_specifier",
    "concept_definition",
    "enum_specifier",
    "struct_specifier",
    "union_specifier",
}
_WORDS = ("identifier", "namespace_identifier", "type_identifier")
"""A class in front of `::` parses as a namespace."""
_INLINE = "inline"
"""Behind the name of an inline namespace: it cannot be opened again in a file that has none."""
_DECLARES = {"declaration", "function_definition", "type_definition"}


def multiversion(source: Source, other: Source, spec: Spec, version: Version) -> str:
    """`source` with `other`'s form for what `version` says. Raises Unsupported where a form is not understood."""
    if any(one.root.has_error and any(_is_lost(node) for node in one.walk()) for one in (source, other)):
        raise Unsupported("the parser did not understand all of it")
    return _Joined(_File(source, spec), _File(other, spec), spec, version).text()


def _is_lost(node: Node) -> bool:
    """An error, or the rest of a macro's text behind a comment, which the grammar takes for code of its own."""
    within = node.is_missing and node.parent is not None and node.parent.type.startswith("preproc_")
    return node.is_error or within


@dataclass(frozen=True, eq=False)
class _Item:
    """A definition at the top of a file, with the comments that belong to it."""

    node: Node
    names: tuple[str, ...]
    start: int
    end: int
    scope: tuple[str, ...] = ()
    """Named namespaces around it."""


@dataclass(frozen=True, eq=False)
class _File:
    source: Source
    spec: Spec

    @cached_property
    def items(self) -> list[_Item]:
        return [self._item(node, scope) for node, scope in self._flat(self.source.root)]

    @cached_property
    def groups(self) -> dict[str, list[_Item]]:
        """All definitions of a name: overloads and specialisations stay together."""
        found: dict[str, list[_Item]] = {}
        for item in self.items:
            for name in item.names:
                found.setdefault(name, []).append(item)
        return found

    @cached_property
    def words(self) -> frozenset[str]:
        """Every identifier, those in the text of macros included."""
        return self.leaves(self.source.root)

    @cached_property
    def macros(self) -> frozenset[str]:
        defined = self.source.walk(None, *_DIRECTIVES)
        return frozenset(self.source.of(node, "name") for node in defined)

    @cached_property
    def undefined(self) -> frozenset[str]:
        """Names of macros that end somewhere."""
        calls = self.source.walk(None, "preproc_call")
        ends = [node for node in calls if self.source.of(node, "directive").endswith("undef")]
        return frozenset(self.source.of(node, "argument").strip() for node in ends)

    @cached_property
    def scopes(self) -> frozenset[str]:
        """Names that may stand in front of `::` and mean something of this file."""
        named = self.source.walk(None, "namespace_definition")
        spaces = [self.source.of(node, "name") for node in named]
        return frozenset(part for name in spaces for part in name.split("::")) | self.groups.keys()

    def leaves(self, node: Node) -> frozenset[str]:
        """Every word of an item, names of fields and the text of macros included."""
        return frozenset(self.source.of(one) for one in self.source.walk(node) if not one.children) | frozenset(
            inner.of(word) for inner, word, _ in self._macro_words(node)
        )

    def entry(self, dtype: str) -> Node | None:
        """The definition of the entry point for a data type, None where no such function can be seen."""
        for name in self.spec.entry_names(dtype):
            for item in self.groups.get(name, []):
                if field_of(item.node, "body") is not None and has_c_linkage(item.node):
                    return item.node
        return None

    def text(self, item: _Item) -> str:
        return self.source.data[item.start : item.end].decode().rstrip()

    def uses(self, item: _Item) -> set[str]:
        """Names that an item reads or defines."""
        nodes = self.source.walk(item.node, *_WORDS)
        return {self.source.of(node) for node in nodes if not self._foreign(self.source, node)} | {
            inner.of(node) for inner, node, _ in self._macro_words(item.node) if not self._foreign(inner, node)
        }

    def hidden(self, item: _Item) -> set[str]:
        """Names that mean a type's own member somewhere in an item: `size` in a method of what has a field `size`."""
        found: set[str] = set()
        for kind in self.source.walk(item.node, "class_specifier", "struct_specifier", "union_specifier"):
            fields = {self.source.of(name) for name in self.source.walk(kind, "field_identifier")}
            found |= {name for name in map(self.source.of, self.source.walk(kind, *_WORDS)) if name in fields}
        return found

    @cached_property
    def dynamic(self) -> dict[str, str]:
        """Dynamic shared memory by name, with its type: one name has one type in all of a file."""
        found = {}
        for node in self.source.walk(None, "declaration"):
            words = {self.source.of(child) for child in self.source.walk(node)}
            if {"extern", "__shared__"} <= words:
                for declarator in node.children_by_field_name("declarator"):
                    found[self._last(declarator)] = self.source.of(node, "type")
        return found

    def directives(self, item: _Item) -> list[Node]:
        return list(self.source.walk(item.node, "preproc_arg"))

    def keeps_state(self, item: _Item) -> bool:
        """Whether something outlives a call there: two forms that each count on their own would share it."""
        node = item.node
        while node.type == "template_declaration":
            node = node.named_children[-1]
        if node.type == "declaration":
            variables = [
                one
                for one in node.children_by_field_name("declarator")
                if not self.source.has(one, "function_declarator")
            ]
            return bool(variables) and not self._is_fixed(node)
        inside = self.source.walk(node, "declaration") if node.type == "function_definition" else ()
        return any(
            self.source.says(one, "static") and not self.source.says(one, "__shared__") and not self._is_fixed(one)
            for one in inside
        )

    def _is_fixed(self, declaration: Node) -> bool:
        words = {self.source.of(child) for child in declaration.children}
        pointers = self.source.has(declaration, "pointer_declarator")
        return "constexpr" in words or ("const" in words and not pointers)

    def _foreign(self, source: Source, node: Node) -> bool:
        """Whether it is somebody else's: `max` in `std::max`."""
        here = node
        while here.parent is not None and here.parent.type in {"template_function", "template_type", "dependent_name"}:
            if not same(field_of(here.parent, "name") or here.parent, here):
                return False
            here = here.parent
        outer = here.parent
        if outer is None or outer.type not in {"qualified_identifier", "using_declaration"}:
            return False
        scope = field_of(outer, "scope")
        if scope is None or same(scope, here):
            return False
        words = [source.of(word) for word in source.walk(scope, *_WORDS)]
        return bool(words) and not self.scopes & set(words)

    def renamed(self, item: _Item, names: dict[str, str]) -> str:
        changes = [
            (node.start_byte, node.end_byte, names[self.source.of(node)])
            for node in self.source.walk(item.node, *_WORDS)
            if self.source.of(node) in names and not self._foreign(self.source, node)
        ]
        for inner, node, at in self._macro_words(item.node):
            if inner.of(node) in names and not self._foreign(inner, node):
                changes.append((at + node.start_byte, at + node.end_byte, names[inner.of(node)]))
        pieces, at = [], item.start
        for start, end, text in sorted(changes):
            pieces += [self.source.data[at:start].decode(), text]
            at = end
        return ("".join(pieces) + self.source.data[at : item.end].decode()).rstrip()

    def _macro_words(self, node: Node) -> list[tuple[Source, Node, int]]:
        """Identifiers of directives below a node, which the grammar keeps as text: their tree, node and offset."""
        found, waiting = [], [(self.source, text, 0) for text in self.source.walk(node, "preproc_arg")]
        while waiting:
            source, text, at = waiting.pop()
            inner, start = source.reparsed(source.of(text)), at + text.start_byte
            found += [(inner, word, start) for word in inner.walk(None, *_WORDS)]
            waiting += [(inner, more, start) for more in inner.walk(None, "preproc_arg")]  # behind a `#name`
        return found

    def _flat(self, node: Node, scope: tuple[str, ...] = ()) -> list[tuple[Node, tuple[str, ...]]]:
        """Definitions, those within `extern "C"` and namespaces too, with the names of the namespaces."""
        found: list[tuple[Node, tuple[str, ...]]] = []
        for child in node.named_children:
            body = field_of(child, "body")
            if child.type in {"linkage_specification", "namespace_definition"} and body is not None:
                name = field_of(child, "name")
                inside = (*scope, self.source.of(name)) if name is not None else scope
                if any(self.source.of(one) == "inline" for one in child.children):
                    inside = (*inside, _INLINE)
                found += self._flat(body, inside) if body.type == "declaration_list" else [(body, inside)]
            elif child.type not in {"comment", "preproc_include", "static_assert_declaration"}:
                found.append((child, scope))
        return found

    def _item(self, node: Node, scope: tuple[str, ...]) -> _Item:
        start, end = node.start_byte, node.end_byte
        before = node.prev_sibling
        while before is not None and before.type == "comment" and self._alone(before) and self._adjacent(before, start):
            start, before = before.start_byte, before.prev_sibling
        line_end = self.source.data.find(b"\n", max(end - 1, 0))
        after = node.next_sibling
        while after is not None and after.type in {";", "comment"} and after.start_byte < line_end:
            end, after = after.end_byte, after.next_sibling
        return _Item(node, tuple(self._names(node)), start, end, scope)

    def _alone(self, comment: Node) -> bool:
        """Whether nothing stands in front of it on its line."""
        line = self.source.line_start(comment)
        return not self.source.data[line : comment.start_byte].strip()

    def _adjacent(self, comment: Node, start: int) -> bool:
        return self.source.data[comment.end_byte : start].count(b"\n") <= 1

    def _names(self, node: Node) -> list[str]:
        while node.type == "template_declaration":
            node = node.named_children[-1]
        if node.type in _NAMED:
            return self._type_names(node)
        if node.type in _DECLARES:
            declarators = node.children_by_field_name("declarator")
            if any(self._is_member(one) for one in declarators):
                return [""]
            names, kind = [self._last(one) for one in declarators], field_of(node, "type")
            if kind is not None and kind.type in _NAMED and field_of(kind, "body") is not None:
                names += [name for name in self._type_names(kind) if name or not names]  # `typedef struct A { } B;`
            return names or [self._last(kind)]
        return [""]

    def _type_names(self, node: Node) -> list[str]:
        inside = self.source.walk(node, "enumerator") if node.type == "enum_specifier" else ()
        named = [node, *inside]  # what an enum lists is known beside it, too
        return [self._last(field_of(one, "name")) for one in named]

    def _is_member(self, declarator: Node) -> bool:
        """Whether it is of something that is declared elsewhere: `int Some::get() { ... }`."""
        here: Node | None = declarator
        while here is not None and here.type != "qualified_identifier":
            here = field_of(here, "declarator")
        return here is not None

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


class _Joined:
    def __init__(self, first: _File, second: _File, spec: Spec, version: Version) -> None:
        self.first, self.second, self.spec, self.version = first, second, spec, version
        self.entries = {dtype: self._entries(dtype) for dtype in version.dtypes}
        self.suffix = self._suffix()

    def text(self) -> str:
        copied = self._copied()
        own = {name for item in copied for name in item.names} - {""}
        names = {name: _named(name, self.suffix) for name in own}
        at = self._place(copied)
        edits = Edits(self.first.source)
        edits.insert(at, self._written(copied, names))
        for mine, theirs in self._distinct():
            self._enter(edits, mine, names[self._name(theirs)])
        headers = [self.second.source.of(n, "path") for n in self._includes(self.second)]
        missing = set(headers) - {self.first.source.of(n, "path") for n in self._includes(self.first)}
        text = edits.apply()
        for header in sorted(missing):
            if not header.startswith("<"):
                raise Unsupported(f"an include of {header}")
            source = self.first.source.reparsed(text)
            edits = Edits(source)
            include(source, edits, header.strip("<>"))
            text = edits.apply()
        return text

    def _written(self, copied: list[_Item], names: dict[str, str]) -> str:
        text = f"// The form for {self.version.said(self.spec, self._bound(self.suffix))}: measured faster there, and slower elsewhere than the one above."
        if self.version.measure is not None:
            text += f"\n{self._threshold()}"
        before: _Item | None = None
        for item in copied:
            scope = before.scope if before is not None else ()
            if item.scope != scope:
                text += f"\n\n}}  // namespace {'::'.join(scope)}" if scope else ""
                text += f"\n\nnamespace {'::'.join(item.scope)} {{" if item.scope else ""
            together = before is not None and {before.node.type, item.node.type} <= _DIRECTIVES
            renamed = self.second.renamed(item, names)
            entry = bool({self._name(theirs) for _, theirs in self._distinct()} & set(item.names))
            text += ("\n" if together else "\n\n") + (self._static(item, renamed) if entry else renamed)
            before = item
        if before is not None and before.scope:
            text += f"\n\n}}  // namespace {'::'.join(before.scope)}"
        return text + "\n\n"

    @staticmethod
    def _includes(file: _File) -> list[Node]:
        return list(file.source.walk(None, "preproc_include"))

    def _entries(self, dtype: str) -> tuple[Node, Node]:
        mine, theirs = self.first.entry(dtype), self.second.entry(dtype)
        if mine is None or theirs is None:
            raise Unsupported(f"no entry point for {dtype} is written out")
        return mine, theirs

    def _distinct(self) -> list[tuple[Node, Node]]:
        """Entry points, once where one serves several data types."""
        pairs = {mine.start_byte: (mine, theirs) for mine, theirs in self.entries.values()}
        return list(pairs.values())

    def _name(self, entry: Node) -> str:
        return self.second._names(entry)[0]

    def _copied(self) -> list[_Item]:
        """Items of the other file that its entry points need and that this file has not, in their order."""
        theirs = [entry for _, entry in self._distinct()]
        needed: dict[int, _Item] = {}
        # What has no name of its own (a condition of the preprocessor, an operator) may be needed or not: it counts.
        waiting = [item for item in self.second.items if "" in item.names or item.node in theirs]
        while waiting:
            item = waiting.pop()
            if item.start not in needed:
                needed[item.start] = item
                waiting += [other for name in self.second.uses(item) for other in self.second.groups.get(name, [])]
        for item in self.second.items:
            if "" in item.names and self.second.text(item) not in self._texts:
                raise Unsupported(f"line {item.node.start_point[0] + 1} of the other form cannot be named")
        own = {
            start
            for start, item in needed.items()
            if item.node in theirs or not self._shared(item) or self.second.keeps_state(item)
        }
        changed = True
        while changed:  # what builds on something that differs is not the same either
            names = {name for start in own for name in needed[start].names}
            more = {
                s for s, item in needed.items() if s not in own and names & (self.second.uses(item) | set(item.names))
            }
            own |= more
            changed = bool(more)
        if any("" in needed[start].names for start in own):
            raise Unsupported("a definition without a name differs")
        if any("##" in self.second.source.of(t) for item in needed.values() for t in self.second.directives(item)):
            raise Unsupported("names that a macro puts together")
        copied = [needed[start] for start in sorted(own)]
        self._check(copied)
        return copied

    def _check(self, copied: list[_Item]) -> None:
        """Raises Unsupported where a word of the copies would mean something else in this file, or under its new name."""
        names = {name for item in copied for name in item.names}
        for item in copied:
            entry = {self._name(theirs) for _, theirs in self._distinct()} & set(item.names)
            if _INLINE in item.scope or (entry and item.scope):
                raise Unsupported("a namespace that cannot be opened again")
            uses, more = self.second.uses(item), self.second.leaves(item.node)
            taken = (uses & self.first.groups.keys()) | (more & self.first.macros)
            other = taken - self.second.groups.keys() - {""}
            ended = (more - names) & (self.first.undefined | self.second.undefined)
            own = self.second.hidden(item) & names - {""} - set(item.names)
            mine, theirs = self.first.dynamic, self.second.dynamic
            typed = {name for name in more & mine.keys() & theirs.keys() if mine[name] != theirs[name]}
            for reason, found in (
                ("means two things", other | own),
                ("is undefined again", ended),
                ("is shared memory of two types", typed),
            ):
                if found:
                    raise Unsupported(f"{min(found)} {reason}")

    @cached_property
    def _texts(self) -> frozenset[str]:
        return frozenset(self.first.text(item) for item in self.first.items)

    def _shared(self, item: _Item) -> bool:
        """Whether this file has the same definitions of the item's names."""
        for name in item.names:
            mine = [(self.first.text(one), one.scope) for one in self.first.groups.get(name, [])]
            if mine != [(self.second.text(one), one.scope) for one in self.second.groups.get(name, [])]:
                return False
        return True

    def _place(self, copied: list[_Item]) -> int:
        """In front of the first entry point, if all that the copies build on stands above it."""
        first = min((mine for mine, _ in self._distinct()), key=lambda node: node.start_byte)
        outer = first
        while outer.parent is not None and outer.parent.type != "translation_unit":
            outer = outer.parent
        at = outer.start_byte
        before = outer.prev_sibling
        while before is not None and before.type == "comment" and self.first._alone(before):
            at, before = before.start_byte, before.prev_sibling
        own = {name for item in copied for name in item.names}
        for name in {name for item in copied for name in self.second.uses(item)} - own:
            if any(item.start >= at for item in self.first.groups.get(name, [])):
                raise Unsupported(f"{name} is defined below the first entry point")
        return at

    # --- words -------------------------------------------------------------------------------------------------

    def _suffix(self) -> str:
        """One that makes no name that is there already."""
        version = self.version
        plain = "small" if version.below is not None else "large" if version.measure else "_".join(version.dtypes)
        taken = self.first.words | self.second.words
        names = [name for item in self.second.items for name in item.names]
        suffixes = (f"{plain}{count if count > 1 else ''}" for count in itertools.count(1))
        return next(s for s in suffixes if not taken & {self._bound(s), *(_named(name, s) for name in names)})

    def _bound(self, suffix: str) -> str:
        return f"{suffix.upper()}_{'BELOW' if self.version.below is not None else 'FROM'}"

    def _threshold(self) -> str:
        value = self.version.limit
        choices = sorted({value, *self.version.others})
        listed = f"  // tune: {' '.join(map(str, choices))}" if len(choices) > 1 else ""
        return f"#define {self._bound(self.suffix)} {value}{listed}"

    def _static(self, item: _Item, text: str) -> str:
        """An entry point of the other form, which nobody outside of the file calls any more."""
        head = self.second.source.data[item.start : item.node.start_byte].decode()
        return f"{head}static {text[len(head) :]}"

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
