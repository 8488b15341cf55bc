"""The host chooses a candidate's numbers by the size of the workload, where a search found that one choice is not enough.

What depends on such a number takes it as a template parameter of the same name, so bodies, launch bounds and pragmas
read as before; each entry point compares its sizes with thresholds and calls the instance for that band. Thresholds and
the numbers of each band are left open again, under names of their own. The tune gate asks for this (nodes/tune.py); it
is no step of a plan.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tree_sitter import Node

from harness.bands import Split
from harness.tunables import Tunable, bake, tunables
from kernels.spec import DTYPE_BYTES, Spec
from nodes.rewrites.syntax.entry import has_c_linkage, measured, parameters
from nodes.rewrites.syntax.source import Edits, Source, Unsupported
from nodes.rewrites.syntax.tree import children_of, field_of

BANDS = {2: ("SMALL", "LARGE"), 3: ("SMALL", "MEDIUM", "LARGE")}


def dispatched(text: str, language: str, spec: Spec, split: Split) -> str:
    """`text` with the split's values for each band. Raises Unsupported where its form is not understood."""
    open_ = {tunable.name: tunable for tunable in tunables(text)}
    differing = [name for name in open_ if len({band.values[name] for band in split.bands}) > 1]
    same = {name: split.bands[0].values[name] for name in open_ if name not in differing}
    return _Dispatch(Source(bake(text, same), language), spec, split, [open_[name] for name in differing]).text()


def values(text: str) -> dict[str, int]:
    """What every tunable of a source stands at."""
    return {tunable.name: tunable.value for tunable in tunables(text)}


@dataclass
class _Function:
    """All definitions and declarations of one name: a function, or a constant of the file."""

    nodes: list[Node] = field(default_factory=list)
    needs: set[str] = field(default_factory=set)


class _Dispatch:
    def __init__(self, source: Source, spec: Spec, split: Split, open_: list[Tunable]) -> None:
        self.source, self.spec, self.split = source, spec, split
        self.open = {tunable.name: tunable for tunable in open_}
        self.names = BANDS[len(split.bands)]
        self.macros = self._macros()
        self.functions = self._functions()
        # A file may serve more data types than the spec asks for.
        names = {spec.entry_name, *(f"{spec.entry_name}_{dtype}" for dtype in DTYPE_BYTES)}
        self.entries = {
            name
            for name, function in self.functions.items()
            if name in names and all(has_c_linkage(node) for node in function.nodes)
        }
        self.edits = Edits(source)

    def text(self) -> str:
        if self.source.root.has_error and any(node.is_error for node in self.source.walk()):
            raise Unsupported("the parser did not understand all of it")
        self._refuse_other_uses()
        self._spread_needs()
        entries = [name for name in self.entries if name in self.functions and self.functions[name].needs]
        if not entries:
            raise Unsupported("no entry point depends on the numbers")
        self._define()
        for name, function in self.functions.items():
            if function.needs and name not in self.entries:
                for node in function.nodes:
                    self._parametrise(node, self._ordered(function.needs))
        for node in self._references():
            if self.source.of(self._name(self._holder(node))) not in entries:
                self._instantiate(node)
        for name in entries:
            for node in self.functions[name].nodes:
                self._enter(node, name)
        return self.edits.apply()

    # --- what depends on the numbers -----------------------------------------------------------------------------

    def _macros(self) -> dict[str, set[str]]:
        """Names that stand for text with open numbers in it -> which ones; the numbers themselves included."""
        found = {name: {name} for name in self.open}
        definitions = list(self.source.walk(None, "preproc_def", "preproc_function_def"))
        for _ in definitions:  # a macro may name one that is defined below it
            for node in definitions:
                name = self.source.of(node, "name")
                inside = self._words(field_of(node, "value"))
                needs = set().union(*(found[word] for word in inside & found.keys()))
                if needs and name not in self.open:
                    found[name] = needs
        return found

    def _words(self, node: Node | None) -> set[str]:
        """Identifiers of a directive's text, which the grammar keeps as it stands."""
        inner = self.source.reparsed(self.source.of(node))
        return {inner.of(word) for word in inner.walk(None, "identifier", "type_identifier")}

    def _functions(self) -> dict[str, _Function]:
        found: dict[str, _Function] = {}
        for node in self.source.walk(None, "function_definition", "declaration"):
            name = self._name(node)
            if name is not None and self._holder(node.parent) is None:
                found.setdefault(self.source.of(name), _Function()).nodes.append(node)
        return found

    def _name(self, node: Node | None) -> Node | None:
        """The declared name of a function or a constant, None for what declares something else."""
        here = field_of(node, "declarator")
        if here is not None and here.type == "init_declarator" and self._constant(node):
            name = field_of(here, "declarator")
            return name if name is not None and name.type == "identifier" else None
        while here is not None and here.type in {"pointer_declarator", "reference_declarator"}:
            here = field_of(here, "declarator") or next(iter(here.named_children), None)
        if here is None or here.type != "function_declarator":
            return None
        name = field_of(here, "declarator")
        return name if name is not None and name.type in {"identifier", "field_identifier"} else None

    def _constant(self, node: Node | None) -> bool:
        """Whether a declaration is of one `constexpr`."""
        qualifiers = [self.source.of(child) for child in node.children if child.type == "type_qualifier"]
        return "constexpr" in qualifiers and len(node.children_by_field_name("declarator")) == 1

    def _holder(self, node: Node | None) -> Node | None:
        """The outermost definition around a node."""
        found = None
        while node is not None:
            if node.type in {"function_definition", "declaration"}:
                found = node
            node = node.parent
        return found

    def _spread_needs(self) -> None:
        for function in self.functions.values():
            for node in function.nodes:
                for word in self.source.walk(node, "identifier", "type_identifier"):
                    function.needs |= self.macros.get(self.source.of(word), set())
                for directive in self.source.walk(node, "preproc_arg"):
                    for name in self._words(directive):
                        function.needs |= self.macros.get(name, set())
        changed = True
        while changed:
            changed = False
            for node in self._references():
                function = self.functions[self.source.of(self._name(self._holder(node)))]
                needs = function.needs | self.functions[self.source.of(node)].needs
                changed = changed or needs != function.needs
                function.needs = needs

    def _references(self) -> list[Node]:
        """Where a function that depends on the numbers is named in another's definition; entry points are not."""
        mine = {name for name, function in self.functions.items() if function.needs and name not in self.entries}
        found = []
        for node in self.source.walk(None, "identifier"):
            if self.source.of(node) not in mine:
                continue
            holder = self._holder(node)
            if any(node == self._name(one) for one in self.functions[self.source.of(node)].nodes):
                continue
            if holder is None or self._name(holder) is None:
                raise Unsupported(f"{self.source.of(node)} is named in a member or outside of any function")
            found.append(node)
        return found

    def _refuse_other_uses(self) -> None:
        for node in self.source.walk(None, "identifier", "type_identifier"):
            name = self.source.of(node)
            definition = node.parent is not None and node.parent.type in {"preproc_def", "preproc_function_def"}
            if name in self.macros and not definition and (holder := self._holder(node)) is None:
                raise Unsupported(f"{name} is used outside of any function")
            if name in self.macros and not definition and self._name(holder) is None:
                raise Unsupported(f"{name} is used in a member or an operator")
        for node in self.source.walk(None, "preproc_if", "preproc_elif"):
            condition = field_of(node, "condition")
            if condition is not None and {self.source.of(n) for n in self.source.walk(condition)} & self.macros.keys():
                raise Unsupported("a number that the preprocessor compares")

    def _ordered(self, needs: set[str]) -> list[str]:
        return [name for name in self.open if name in needs]

    # --- edits ---------------------------------------------------------------------------------------------------

    def _define(self) -> None:
        """The numbers of each band and the thresholds, in the place of the first number."""
        taken = {self.source.of(node) for node in self.source.walk(None, "identifier")}
        lines = [
            f"// Which numbers are fastest depends on the workload: they were measured for bands of {self.split.measure.words()}."
        ]
        new: list[str] = []
        for band, name in zip(self.split.bands, self.names, strict=True):
            if band.below is not None:
                new.append(f"{name}_BELOW")
                choices = sorted({band.below, *band.others})
                lines.append(f"#define {new[-1]} {band.below}  // tune: {' '.join(map(str, choices))}")
        for number, tunable in self.open.items():
            for band, name in zip(self.split.bands, self.names, strict=True):
                new.append(f"{number}_{name}")
                lines.append(f"#define {new[-1]} {band.values[number]}  // tune: {' '.join(map(str, tunable.choices))}")
        if taken & set(new):
            raise Unsupported("bands of bands")
        definitions = [
            node for node in self.source.walk(None, "preproc_def") if self.source.of(node, "name") in self.open
        ]
        if any(node.parent != self.source.root for node in definitions):
            raise Unsupported("a number that is defined under a condition")
        for index, node in enumerate(definitions):
            end = self.source.data.find(b"\n", node.start_byte) + 1 or len(self.source.data)
            self.edits.changes.append((node.start_byte, end, "" if index else "\n".join(lines) + "\n"))

    def _parametrise(self, node: Node, needs: list[str]) -> None:
        """The function takes the numbers that it depends on as template parameters, in front of its own."""
        declared = ", ".join(f"int {name}" for name in needs)
        template = node.parent
        if template is not None and template.type == "template_declaration":
            listed = field_of(template, "parameters")
            if listed is None or not listed.named_children:
                raise Unsupported("a specialisation of a function")
            self.edits.insert(listed.start_byte + 1, f"{declared}, ")
            return
        if has_c_linkage(node):
            raise Unsupported("a function that cannot be a template")
        indent = self.source.indent(node)
        self.edits.insert(node.start_byte, f"template <{declared}>\n{indent}")

    def _instantiate(self, node: Node, numbers: list[str] | None = None) -> None:
        """Name the instance: with the holder's own numbers, or with these."""
        start, end, text = self._instance(node, numbers)
        self.edits.changes.append((start, end, text))

    def _instance(self, node: Node, numbers: list[str] | None = None) -> tuple[int, int, str]:
        listed = ", ".join(numbers or self._ordered(self.functions[self.source.of(node)].needs))
        parent = node.parent
        if parent is not None and parent.type == "template_function":
            arguments = field_of(parent, "arguments")
            return (
                arguments.start_byte + 1,
                arguments.start_byte + 1,
                f"{listed}, " if arguments.named_children else listed,
            )
        return node.end_byte, node.end_byte, f"<{listed}>"

    def _enter(self, node: Node, name: str) -> None:
        """The entry point compares its sizes and calls the band's instance of all that it did."""
        body = field_of(node, "body")
        if body is None:
            return  # a declaration stays as it is
        if self.source.of(node, "type") != "void":
            raise Unsupported("an entry point that returns something")
        needs = self._ordered(self.functions[name].needs)
        call = self._only_call(body)
        calls = []
        for band in self.names:
            numbers = {number: f"{number}_{band}" for number in needs}
            calls.append(
                self._called(call, numbers) if call is not None else self._own(name, node, list(numbers.values()))
            )
        if call is None:
            outer: Node = node
            while outer.parent is not None and outer.parent.type != "translation_unit":
                outer = outer.parent
            head = ", ".join(f"int {number}" for number in needs)
            parameters = self.source.of(field_of(node, "declarator"), "parameters")
            inner = _Instances(self.source, [(n, self._instance(n)) for n in self._references() if self._in(n, body)])
            whole = f"template <{head}>\nvoid {name}_tuned{parameters} {inner.text(body)}\n\n"
            self.edits.insert(outer.start_byte, whole)
        indent, unit = self.source.indent(node), self.source.unit(node)
        condition = measured(self.source, self.spec, node, self.split.measure)
        lines = ["{"]
        for index, (limits, text) in enumerate(zip(self.split.bands, calls, strict=True)):
            test = f"if ({condition} < {self.names[index]}_BELOW) " if limits.below is not None else ""
            lines += [f"{unit}{'} else ' if index else ''}{test}{{", f"{unit * 2}{text}"]
        lines += [f"{unit}}}", "}"]
        self.edits.replace(body, f"\n{indent}".join(lines))

    def _only_call(self, body: Node) -> Node | None:
        """The statement that is all of the body, where it calls something that depends on the numbers and no more."""
        inside = children_of(body)
        mine = [node for node in self._references() if self._in(node, body)]
        direct = any(self.source.of(n) in self.macros for n in self.source.walk(body, "identifier"))
        if len(inside) != 1 or len(mine) != 1 or direct or inside[0].type != "expression_statement":
            return None
        return inside[0]

    def _called(self, statement: Node, numbers: dict[str, str]) -> str:
        (node,) = [n for n in self._references() if self._in(n, statement)]
        needs = self._ordered(self.functions[self.source.of(node)].needs)
        change = self._instance(node, [numbers[name] for name in needs])
        text = _Instances(self.source, [(node, change)]).text(statement)
        return "".join(line if line.endswith("(") else f"{line} " for line in map(str.strip, text.split("\n"))).strip()

    def _own(self, name: str, node: Node, numbers: list[str]) -> str:
        return f"{name}_tuned<{', '.join(numbers)}>({', '.join(parameters(self.source, node))});"

    @staticmethod
    def _in(node: Node, outer: Node) -> bool:
        return outer.start_byte <= node.start_byte and node.end_byte <= outer.end_byte


@dataclass(frozen=True)
class _Instances:
    """A part of the source as it reads with its instances named."""

    source: Source
    changes: list[tuple[Node, tuple[int, int, str]]]

    def text(self, node: Node) -> str:
        pieces, at = [], node.start_byte
        for _, (start, end, text) in sorted(self.changes, key=lambda change: change[1][0]):
            pieces += [self.source.data[at:start].decode(), text]
            at = end
        return "".join(pieces) + self.source.data[at : node.end_byte].decode()
