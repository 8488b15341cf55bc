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
from functools import cached_property

from tree_sitter import Node

from kernels.spec import Spec
from nodes.rewrites.specialize.version import Version
from nodes.rewrites.syntax.insert import include, substituted
from nodes.rewrites.syntax.source import Edits, Source, Unsupported, levelled
from nodes.rewrites.syntax.tree import children_of, declared_name, enclosing, field_of, upward

_TYPES = {"class_specifier", "concept_definition", "enum_specifier", "struct_specifier", "union_specifier"}
_DEFINES = {"preproc_def", "preproc_function_def"}
_CONDITIONS = {"preproc_if", "preproc_ifdef", "preproc_else", "preproc_elif"}
_NAMING = {
    "alias_declaration", "declaration", "function_definition", "namespace_definition", "type_definition", *_TYPES, *_DEFINES,
}  # fmt: skip
_UNNAMED = {
    "comment", "preproc_call", "preproc_include", "static_assert_declaration", "template_instantiation",
    "identifier", "number_literal", "binary_expression", "unary_expression", "preproc_defined", "parenthesized_expression",
}  # fmt: skip
"""At the top of a file, or of a condition of the preprocessor: what brings no name of its own beside those of macros."""
_FIRST_WORD = re.compile(r"(?:[\s*&(]|const\b|__restrict__\b)*(\w*)")
"""Of a declarator: its name, or that of the type whose member it is."""
_TOKEN = re.compile(
    r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'|\.?\d(?:[eEpP][+-]|[\w.'])*"
    r"|(?P<before>(?:(?:[A-Za-z_]\w*)?::)+|(?:\.|->|>::)\s*)?(?P<word>[A-Za-z_]\w*)",
    re.DOTALL,
)
"""A comment, a string, a number, or a word with what says whose it is."""
_FUNCTIONS = {"function_definition", "template_declaration"}
_DECLARING = ("parameter_declaration", "optional_parameter_declaration", "declaration")
_FIXED = {"const", "constexpr", "__constant__", "__shared__", "extern"}


def multiversion(source: Source, other: Source, spec: Spec, version: Version, called: str = "") -> str:
    """`source` with `other`'s form, of names that end in `called`, for what `version` says. Raises Unsupported where a form is not
    understood, or both are alike."""
    if source.root.has_error or other.root.has_error:
        raise Unsupported("the parser did not understand all of it")
    return _Joined(_File(source), _File(other), spec, version, called).text()


def _has_c_linkage(node: Node) -> bool:
    return enclosing(node, "linkage_specification") is not None


class _File:
    def __init__(self, source: Source) -> None:
        self.source = source
        self.named: dict[str, list[Node]] = {}
        """The items of each name: overloads, specialisations and declarations stay together."""
        for item in self._flat(source.root):
            for name in self.names_of(item):
                self.named.setdefault(name, []).append(item)

    def _flat(self, node: Node) -> Iterator[Node]:
        """What is known by its name all over the file: within `extern "C"`, conditions and unnamed namespaces, too."""
        for child in node.named_children:
            body = field_of(child, "body")
            unnamed = child.type == "namespace_definition" and field_of(child, "name") is None
            if child.type in _CONDITIONS:
                yield from self._flat(child)
            elif body is not None and (unnamed or child.type == "linkage_specification"):
                yield from self._flat(body) if body.type == "declaration_list" else [body]
            else:
                yield child

    def names_of(self, item: Node) -> list[str]:
        """What an item calls anything that the rest of the file may name. Raises Unsupported where that is not known."""
        while item.type == "template_declaration":
            item = item.named_children[-1]
        of, kind = self.source.of, field_of(item, "type")
        if item.type in _UNNAMED:
            return [of(item, "argument").strip()] if of(item, "directive").endswith("undef") else []
        if item.type not in _NAMING or any(of(child) == "inline" for child in item.children if item.type[:4] == "name"):
            raise Unsupported(f"line {item.start_point[0] + 1} of a form: {item.type.replace('_', ' ')}")
        types = [one for one in (item, kind) if one is not None and one.type in _TYPES]
        enumerators = [n for one in types if one.type == "enum_specifier" for n in self.source.walk(one, "enumerator")]
        naming = [field_of(one, "name") for one in (item, *types, *enumerators)]
        naming += item.children_by_field_name("declarator")
        return [_FIRST_WORD.match(of(node))[1] for node in naming if node is not None]

    @cached_property
    def own(self) -> frozenset[str]:
        """Names that mean something of this file wherever they stand: not the functions that it only declares, the library's, but
        dynamic shared memory, of which one name has one type in all of a file."""
        found = {name for name, items in self.named.items() if not all(map(self._is_promise, items))}
        found |= {self.source.of(node, "name") for node in self.source.walk(None, *_DEFINES)}
        for node in self.source.walk(None, "declaration"):
            if self.source.says(node, "extern") and self.source.says(node, "__shared__"):
                found.update(self.names_of(node))
        return frozenset(found - {""})

    def _is_promise(self, item: Node) -> bool:
        inner = item.named_children[-1] if item.type == "template_declaration" else item
        given = field_of(inner, "declarator")
        return (
            inner.type == "declaration"
            and self.source.has(given, "function_declarator")
            and not field_of(given, "value")
        )

    def texts(self, name: str) -> list[str]:
        return [" ".join(self.source.of(item).split()) for item in self.named.get(name, [])]

    def words(self, name: str) -> frozenset[str]:
        """What the items of a name, and the conditions of the preprocessor around them, are made of."""
        of, items = self.source.of, self.named.get(name, [])
        around = [node for item in items for node in upward(item) if node.type in _CONDITIONS]
        return _words(" ".join([*map(of, items), *(of(node, "condition") or of(node, "name") for node in around)]))

    def means_its_own(self, word: str) -> bool:
        """Whether every function that names this word declares it, as a parameter or a variable."""
        of, walk = self.source.of, self.source.walk
        found = [node for node in walk() if node.type.endswith("identifier") and of(node) == word]
        if len(found) != sum(token["word"] == word for token in _TOKEN.finditer(self.source.text)):
            return False  # in a macro or a condition
        functions = [[n for n in upward(node) if n.type in _FUNCTIONS][-1:] for node in found]
        return all(word in map(self.source.name, walk(*outer, *_DECLARING)) if outer else False for outer in functions)

    def keeps_state(self, item: Node) -> bool:
        """Whether something outlives a call there, which two forms would share, or ends where a macro is undefined."""
        if item.type == "declaration":
            variable = not self.source.has(item, "function_declarator")
            return variable and not self.source.says(item, *_FIXED)
        within = self.source.walk(item, "declaration") if item.type != "namespace_definition" else ()
        static = any(self.source.says(one, "static") and not self.source.says(one, *_FIXED) for one in within)
        return static or item.type == "preproc_call"

    def whole(self, item: Node) -> tuple[int, int, str]:
        """The change that takes an item away, with the comments above it, its semicolon and the rest of its line."""
        first, last = item, item
        while (above := first.prev_named_sibling) is not None and above.type == "comment" and self.source.alone(above):
            if above.end_point[0] + 1 != first.start_point[0]:
                break
            first = above
        if last.next_sibling is not None and last.next_sibling.type == ";":
            last = last.next_sibling
        newline = self.source.data[last.end_byte - 1 : last.end_byte] == b"\n"  # a directive ends with its line
        return self.source.line_start(first), last.end_byte if newline else self.source.line_end(last), ""


def _named(name: str, suffix: str) -> str:
    if name[:1].isupper() and "_" not in name and not name.isupper():
        return f"{name}{suffix.capitalize()}"
    return f"{name}_{suffix.upper() if name.isupper() else suffix}"


def _pointer_type(source: Source, parameter: Node) -> str:
    """Without its name and `__restrict__`; "" where it is no pointer."""
    name = declared_name(field_of(parameter, "declarator"))
    if name is None or not source.has(parameter, "pointer_declarator"):
        return ""
    text = source.render(parameter, [(name, "")])
    return re.sub(r"\s*\*\s*", "*", " ".join(re.sub(r"\b__restrict(__)?\b", "", text).split()))


def _words(text: str) -> frozenset[str]:
    """Every word of it but for those of comments and strings."""
    tokens = (token[0] for token in _TOKEN.finditer(text) if token["word"])
    return frozenset(word for token in tokens for word in re.findall(r"\w+", token))


def _renamed(text: str, names: dict[str, str]) -> str:
    """Every word that is one of the names, but for what is another's, `max` in `std::max`. Raises Unsupported where that is not
    told."""

    def new(token: re.Match[str]) -> str:
        before, word = token["before"] or "", token["word"]
        if word is None or before.partition("::")[0] not in {"", ">", *names}:
            return token[0]
        if word in names and before.startswith((".", "-", ">")):
            raise Unsupported("a member that is named as something of the file is")
        return substituted(before, names) + names.get(word, word)

    return _TOKEN.sub(new, text)


class _Joined:
    def __init__(self, first: _File, second: _File, spec: Spec, version: Version, called: str) -> None:
        self.first, self.second, self.spec, self.version = first, second, spec, version
        entries = [(self._entry(first, dtype), self._entry(second, dtype)) for dtype in version.dtypes]
        self.entries = list({mine.start_byte: (mine, theirs) for mine, theirs in entries}.values())
        """Once where one serves several data types."""
        self.wanted = {second.names_of(theirs)[0] for _, theirs in self.entries}
        self.place = self._place()
        self.own = self._differing()
        self.suffix = self._suffix(called)
        taken = (first.own - second.own) & _words(second.source.text)
        renamed = self.own | {
            word for word in taken if second.means_its_own(word)
        }  # `to`, or a macro would be put in its place
        self.names = {name: _named(name, self.suffix) for name in renamed}

    def _entry(self, file: _File, dtype: str) -> Node:
        """The definition of the entry point for a data type. Raises Unsupported where no such function can be seen."""
        found = (item for name in self.spec.entry_names(dtype) for item in file.named.get(name, []))
        defined = next((item for item in found if field_of(item, "body") is not None and _has_c_linkage(item)), None)
        if defined is None:
            raise Unsupported(f"no entry point for {dtype} is written out")
        return defined

    def text(self) -> str:
        edits, copy = Edits(self.first.source), self._copy()
        if taken := (self.first.own - self.second.own - {"operator"}) & _words(copy):
            raise Unsupported(f"{min(taken)} means two things")
        for node in self.second.source.walk(None, "preproc_include"):
            path = self.second.source.of(node, "path")
            if not path.startswith("<"):
                raise Unsupported(f"an include of {path}")
            include(self.first.source, edits, path.strip("<>"))
        edits.insert(self.place, f"{copy}\n")
        for mine, theirs in self.entries:
            self._enter(edits, mine, theirs)
        return re.sub(r"\n{3,}", "\n\n", edits.apply())

    def _differing(self) -> frozenset[str]:
        """Names that this file has otherwise, or not above the copy, those that build on them, and the entry points. Raises
        Unsupported where no entry point is otherwise."""
        own = {name for name in self.second.own - self.wanted if not self._is_shared(name)}
        own |= {name for name in self.wanted if self.first.texts(name) != self.second.texts(name)}
        words = {name: self.second.words(name) for name in self.second.own}
        while more := {name for name in self.second.own - own if words[name] & own}:
            own |= more
        if not own & self.wanted:
            raise Unsupported("both forms are alike")
        if "operator" in own:
            raise Unsupported("operators of which each form has others")
        return frozenset(own | self.wanted)

    def _is_shared(self, name: str) -> bool:
        """Whether this file has the same definitions of a name, above the copy, and nothing that they keep."""
        mine, theirs = self.first.named.get(name, []), self.second.named.get(name, [])
        alike = bool(theirs) and self.first.texts(name) == self.second.texts(name)
        above = all(item.end_byte <= self.place for item in mine)
        return alike and above and not any(self.second.keeps_state(item) for item in theirs)

    def _copy(self) -> str:
        """The other file under its new names: no include that is there already, and entry points for the version alone."""
        second, source, edits = self.second, self.second.source, Edits(self.second.source)
        for node in source.walk(None, "preproc_include"):
            edits.remove(node)
        shared = [item for name in second.own - self.own for item in second.named.get(name, [])]
        edits.changes += {second.whole(item) for item in shared if not self.own & set(second.names_of(item))}
        for name in {name for dtype in self.spec.dtypes for name in self.spec.entry_names(dtype)}:
            items = list(filter(_has_c_linkage, second.named.get(name, [])))
            unused = name not in self.wanted and len(re.findall(rf"\b{name}\b", source.text)) == len(items)
            for item in items:
                whole = item.parent if item.parent.type == "linkage_specification" else item
                if unused:
                    edits.changes.append(second.whole(whole))
                else:  # nobody outside of the file calls it any more
                    edits.replace(whole, f"static {source.of(item)}")
        text = edits.apply()
        if "##" in text:
            raise Unsupported("names that a macro puts together")
        said = self.version.said(self.spec, self._bound(self.suffix))
        head = f"// The form for {said}: measured faster there, and slower elsewhere than the other one.\n"
        return head + self._threshold() + _renamed(text, self.names).strip("\n") + "\n"

    def _place(self) -> int:
        """In front of the first entry point, and of the comments above it."""
        outer = list(upward(min((mine for mine, _ in self.entries), key=lambda node: node.start_byte)))[-2]
        while (
            (before := outer.prev_sibling) is not None and before.type == "comment" and self.first.source.alone(before)
        ):
            outer = before
        return outer.start_byte

    # --- words -------------------------------------------------------------------------------------------------

    def _suffix(self, called: str) -> str:
        """One that makes no name that is there already."""
        version = self.version
        sized = "small" if version.below is not None else "large" if version.measure else "_".join(version.dtypes)
        plain = called or ("uneven" if version.uneven else sized)
        taken = _words(self.first.source.text) | _words(self.second.source.text)
        suffixes = (f"{plain}{count if count > 1 else ''}" for count in itertools.count(1))
        return next(s for s in suffixes if not taken & {self._bound(s), *(_named(name, s) for name in self.own)})

    def _bound(self, suffix: str) -> str:
        return f"{suffix.upper()}_{'BELOW' if self.version.below is not None else 'FROM'}"

    def _threshold(self) -> str:
        value = self.version.limit
        if value is None:
            return ""
        choices = sorted({value, *self.version.others})
        listed = f"  // tune: {' '.join(map(str, choices))}" if len(choices) > 1 else ""
        return f"#define {self._bound(self.suffix)} {value}{listed}\n"

    def _passed(self, entry: Node, theirs: Node, given: list[str]) -> list[str]:
        """The parameters; what the other form points to by another type is cast to it, `uint8_t*` where this one has bits in a struct."""
        types = [
            [_pointer_type(file.source, one) for one in children_of(node, "declarator", "parameters")]
            for file, node in ((self.first, entry), (self.second, theirs))
        ]
        wanted = [_renamed(one, self.names) for one in types[1]]
        pairs = zip(given, types[0], wanted, strict=True)
        return [f"reinterpret_cast<{to}>({name})" if to != at and to and at else name for name, at, to in pairs]

    def _enter(self, edits: Edits, entry: Node, theirs: Node) -> None:
        source, version, body = self.first.source, self.version, field_of(entry, "body")
        called = self.names[self.second.names_of(theirs)[0]]
        indent, unit = f"\n{source.indent(entry)}", source.unit(entry)
        given = [source.name(parameter) for parameter in children_of(entry, "declarator", "parameters")]
        names = dict(zip([a.name for a in self.spec.arguments], given, strict=False))
        if not all(given) or not version.asked <= names.keys():
            raise Unsupported("an entry point with a parameter that has no name, or that lacks a size")
        call = f"{called}({', '.join(self._passed(entry, theirs, given))})"
        calls = [f"return {call};"] if source.of(entry, "type") != "void" else [f"{call};", "return;"]
        condition = version.condition(names, self._bound(self.suffix))
        lines = [f"if ({condition}) {{", calls, "}"] if condition else calls[:1]
        if condition and body.start_point[0] != body.end_point[0]:
            edits.insert(body.start_byte + 1, "".join(indent + line for line in levelled([lines], unit)))
            return
        lines += map(source.of, body.named_children) if condition else ()
        edits.replace(body, indent.join(["{", *levelled([lines], unit), "}"]))
