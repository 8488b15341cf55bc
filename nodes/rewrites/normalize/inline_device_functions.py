"""A small device function through whose pointers or references a kernel reads and writes is written out where it is called.

`rotate(row + head, cos, sin, i);` becomes its statements, the parameters variables that are set once, names that mean
something else in the kernel replaced by new ones. Only functions that no step can follow otherwise (anything may happen
behind a pointer that is handed on), and of these only such as end with their last statement: no recursion, no return before
the end, no barriers or shuffles, no memory of their own. Changes nothing by itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from tree_sitter import Node

from harness.records import Outcome
from nodes.rewrites.analysis.device_code import Code, Definition, code_of
from nodes.rewrites.analysis.kernels import Kernel, template_name
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.syntax.source import Edits, Source, Unsupported
from nodes.rewrites.syntax.tree import children_of, declared_name, field_of, names_declared, same, statements, upward

MOST = 24
"""Calls of one file."""
LONGEST = 60
"""Lines of a function: what is longer is no helper."""
_REFUSED = (
    "goto_statement", "labeled_statement", "lambda_expression", "asm_statement", "gnu_asm_expression", "try_statement",
    "static_assert_declaration", "this",
)  # fmt: skip
_TALKS = re.compile(r"__(sync|shfl|ballot|any|all|reduce|match|activemask)|sync$|cooperative|^shfl")


@rule(
    "cuda",
    expected="nothing by itself: later steps see the loads and stores that a function had hidden",
    normalizes=True,
    after=("inline_vector_methods",),
    risks=(Outcome.INCORRECT,),
)
def rewrite(source: Source, facts: Facts) -> str | None:
    text, gone = source.text, set[str]()
    for _ in range(MOST):
        step = _next(code_of(source.reparsed(text)))
        if step is None:
            break
        text = step[0]
        gone.add(step[1])
    return _without(source.reparsed(text), gone) if gone else None


def _next(code: Code) -> tuple[str, str] | None:
    """The text with one call less, and what was called."""
    for kernel in code.kernels:
        for call, _ in kernel.escapes:
            try:
                inlined = _Inlined(code, kernel, call)
                edits = Edits(code.source)
                inlined.write(edits)
                return edits.apply(), inlined.name
            except Unsupported:
                continue
    return None


def _without(source: Source, names: set[str]) -> str:
    """Without the functions of these names that nothing calls any more."""
    for name in sorted(names):
        code = code_of(source)
        function = code.functions.get(name)
        mentions = sum(source.of(n) == name for n in source.walk(None, "identifier"))
        words = sum(name in re.findall(r"\w+", source.of(m)) for m in code.macros.values())
        if function is None or mentions != 1 or words:
            continue
        outer = function.parent if function.parent is not None else function
        edits = Edits(source)
        edits.remove(outer if outer.type == "template_declaration" else function, comment=True, blank=True)
        source = source.reparsed(edits.apply())
    return source.text


@dataclass
class _Parameter:
    name: str
    node: Node
    declarator: Node
    argument: Node
    spelt: str = ""
    """What stands for it in the statements; "" for a variable of its own name."""

    @property
    def array(self) -> Node | None:
        """The declarator of a reference to an array, `float (&to)[N]`."""
        inner = field_of(self.declarator, "declarator")
        held = inner.named_children[0] if inner is not None and inner.type == "parenthesized_declarator" else None
        return self.declarator if held is not None and held.type == "reference_declarator" else None

    @property
    def reference(self) -> bool:
        return self.declarator.type == "reference_declarator" or self.array is not None


@dataclass
class _Inlined:
    """A call, and the function's statements as they read in its place. Raises Unsupported where they cannot stand there."""

    code: Code
    kernel: Kernel
    call: Node
    name: str = field(init=False)

    def __post_init__(self) -> None:
        source, code = self.code.source, self.code
        given = field_of(self.call, "function")
        plain = field_of(given, "name") if given is not None and given.type == "template_function" else given
        if given is None or plain is None or plain.type != "identifier":
            raise Unsupported("a method, or a name in another scope")
        self.given, self.name = given, source.of(plain)
        known = code.overloads.get(self.name, [])
        if len(known) != 1 or code.definition(plain) is not None or self.name in code.macros:
            raise Unsupported("not one function of the file")
        (self.function,) = known
        body, declarator = field_of(self.function, "body"), field_of(self.function, "declarator")
        while declarator is not None and declarator.type != "function_declarator":
            declarator = field_of(declarator, "declarator")
        if body is None or declarator is None or self.function.has_error or self.call.has_error:
            raise Unsupported("a function that the parser did not understand")
        self.body, self.listed = body, field_of(declarator, "parameters")
        self.statement = self._statement()
        self._check_function()
        self.template = self._template()
        self.parameters = self._parameters()
        self.types = self._types()
        self.renamed = self._renamed()

    # What must hold.

    def _statement(self) -> Node:
        """The call is a statement, which is reached or not as a whole."""
        node = self.call.parent
        if node is None or node.type != "expression_statement" or node.parent is None:
            raise Unsupported("a call in an expression")
        if node.parent.type not in {"compound_statement", "for_statement", "if_statement", "else_clause"}:
            raise Unsupported("a statement in an unusual place")
        if node.parent.type == "for_statement" and not same(field_of(node.parent, "body"), node):
            raise Unsupported("the head of a loop")
        return node

    def _check_function(self) -> None:
        source, body = self.code.source, self.body
        heads = [
            source.of(c) for c in self.function.children if c.type in {"attribute_declaration", "attribute_specifier"}
        ]
        if not any(c.type == "__device__" for c in self.function.children) or "__noinline__" in source.of(
            self.function
        ):
            raise Unsupported("no device function")
        if heads or any(c.type == "__global__" for c in self.function.children):
            raise Unsupported("a function of another kind")
        if self._scope(self.function) != self._scope(self.kernel.node):
            raise Unsupported("a function of another scope")
        if body.end_point[0] - body.start_point[0] > LONGEST or source.has(body, *_REFUSED):
            raise Unsupported("a function that is no small helper")
        for node in source.walk(body, "type_qualifier", "storage_class_specifier"):
            if source.of(node) in {"__shared__", "static", "volatile", "extern"}:
                raise Unsupported("memory of its own")
        if any(source.of(n) == "volatile" for n in source.walk(self.function, "type_qualifier")):
            raise Unsupported("accesses that happen in the order in which they stand")
        if any(n.type.startswith("preproc_") and n.type != "preproc_call" for n in source.walk(body)):
            raise Unsupported("a directive")
        for call in source.walk(body, "call_expression"):
            called = source.called(call).split(".")[-1]
            if _TALKS.search(called) or any(same(self.function, f) for f in self.code.reached(called)):
                raise Unsupported("a function that talks to other threads, or calls itself")
        if source.has(body, "return_statement") or source.of(self.function, "type") != "void":
            raise Unsupported("a result, or a return before the end")

    def _scope(self, node: Node) -> list[str]:
        names = []
        for here in upward(node.parent):
            if here.type in {"namespace_definition", "class_specifier", "struct_specifier"}:
                names.append(f"{here.type} {self.code.source.of(here, 'name')}")
            elif here.type.startswith("preproc_if"):
                names.append(f"{here.type} {here.start_byte}")
        return names

    def _template(self) -> list[Node]:
        outer = self.function.parent
        if outer is None or outer.type != "template_declaration":
            return []
        found = children_of(outer, "parameters")
        kinds = {"type_parameter_declaration", "parameter_declaration", "optional_parameter_declaration",
                 "optional_type_parameter_declaration"}  # fmt: skip
        if any(p.type not in kinds for p in found) or any(c.type == "requires_clause" for c in outer.children):
            raise Unsupported("a template of another form")
        return found

    def _parameters(self) -> list[_Parameter]:
        given = children_of(self.call, "arguments")
        wanted = children_of(self.listed)
        if len(given) != len(wanted):
            raise Unsupported("arguments that are left out")
        found = []
        for parameter, argument in zip(wanted, given, strict=True):
            declarator = field_of(parameter, "declarator")
            name = declared_name(declarator)
            if declarator is None or name is None or parameter.type != "parameter_declaration":
                raise Unsupported("a parameter without a name")
            found.append(_Parameter(self.code.source.of(name), parameter, declarator, argument))
        return found

    # What its types and names become.

    def _types(self) -> dict[str, str]:
        """Template parameters as the call has them: given, by the arguments' types, or by default."""
        source = self.code.source
        listed = field_of(self.given, "arguments") if self.given.type == "template_function" else None
        given = [source.of(c) for c in listed.named_children if c.type != "comment"] if listed is not None else []
        types: dict[str, str] = {}
        for at, parameter in enumerate(self.template):
            name = template_name(source, parameter)
            value = field_of(parameter, "default_value") or field_of(parameter, "default_type")
            if at < len(given):
                types[name] = given[at]
            elif (deduced := self._deduced(name)) or value is not None:
                types[name] = deduced or self._with(source.of(value), types)
            else:
                raise Unsupported(f"{name} is deduced in a way that is not understood")
        for name, text in types.items():
            if not re.fullmatch(r"[\w:]+(<[\w:, ]+>)?|\(.*\)", text):
                types[name] = f"({text})" if not re.search(r"[*&]|\bunsigned\b", text) else ""
            if not types[name]:
                raise Unsupported("a type of several words")
        return types

    def _deduced(self, name: str) -> str:
        """What the arguments say that a template parameter is, "" where they do not, or not alike."""
        source, found = self.code.source, set[str]()
        for parameter in self.parameters:
            kind, declarator = source.of(parameter.node, "type"), parameter.declarator
            if kind == name:
                found.add(self._type_of(parameter.argument, pointer=declarator.type == "pointer_declarator"))
        return found.pop() if len(found) == 1 else ""

    def _found(self, argument: Node) -> Definition | None:
        return self.code.variable(argument)

    def _type_of(self, argument: Node, *, pointer: bool) -> str:
        """The element's type behind a pointer, the type of a plain variable; "" for what would have to be worked out."""
        if pointer:
            base = self.code.pointer_base(self.code.polynomial(argument))
            return self.code.element_of(base) if base is not None else ""
        found = self._found(argument)
        if found is None or found.declarator is None or found.kind not in {"local", "loop", "parameter"}:
            return ""
        inner = found.declarator
        if inner.type == "init_declarator":
            inner = field_of(inner, "declarator") or inner
        kind = self.code.source.of(found.declaration, "type")
        plain = inner.type in {"identifier", "array_declarator"}
        return kind if plain and kind != "auto" else ""

    def _with(self, text: str, types: dict[str, str]) -> str:
        return re.sub(r"[A-Za-z_]\w*", lambda word: types.get(word[0], word[0]), text)

    def _renamed(self) -> dict[str, str]:
        """New names for variables of the function, by their old ones, where the kernel means something else by these."""
        source, code = self.code.source, self.code
        names = [p.name for p in self.parameters]
        own = list(self._declared_inside())
        if set(own) & {*names, *self.types} or len(set(names)) != len(names):
            raise Unsupported("a name that hides a parameter")
        called = {source.of(c, "function") for c in source.walk(self.body, "call_expression")}
        if called & {*own, *names}:
            raise Unsupported("a variable that is called")
        block = self.statement
        while block.parent is not None and block.type != "compound_statement":
            block = block.parent
        near = {source.of(n) for n in source.walk(block, "identifier", "type_identifier")}
        near |= {p.name for p in self.kernel.parameters}
        local = {source.of(n) for n in self._declared_in_kernel()} | set(self.kernel.template_names)
        free = {source.of(n) for n in source.walk(self.body, "identifier", "type_identifier")}
        free |= {source.of(n) for n in source.walk(field_of(self.function, "type"), "type_identifier")}
        if (free - {*own, *names, *self.types}) & local or self._macro_words() & {*own, *names, *self.types, *local}:
            raise Unsupported("a name that means something else in the kernel")
        words = {w for t in self.types.values() for w in re.findall(r"\w+", t)}
        renamed, taken = {}, code.names()
        for name in dict.fromkeys([*own, *(p.name for p in self.parameters if not self._spelt(p))]):
            if name in near | words or name in code.macros or name in self.kernel.template_names:
                new = next(f"{name}_{n}" for n in range(2, 1000) if f"{name}_{n}" not in taken)
                renamed[name] = new
                taken.add(new)
        return renamed

    def _macro_words(self) -> set[str]:
        """What the macros in the function say beside their arguments."""
        source, macros = self.code.source, self.code.macros
        stack = [
            source.of(n) for n in source.walk(self.body, "identifier", "type_identifier") if source.of(n) in macros
        ]
        seen, words = set[str](), set[str]()
        while stack:
            name = stack.pop()
            if name in seen:
                continue
            seen.add(name)
            given = field_of(macros[name], "parameters")
            mine = {source.of(n) for n in given.named_children} if given is not None else set()
            said = set(re.findall(r"[A-Za-z_]\w*", source.of(macros[name], "value"))) - mine
            words |= said
            stack += [word for word in said if word in macros]
        return words

    def _declared_inside(self) -> Iterator[str]:
        source = self.code.source
        for node in source.walk(self.body, "declaration", "for_range_loop"):
            for declarator in node.children_by_field_name("declarator"):
                name = declared_name(declarator)
                if name is None:
                    raise Unsupported("a declaration of another form")
                yield source.of(name)
        for node in source.walk(
            self.body, "alias_declaration", "type_definition", "struct_specifier", "using_declaration"
        ):
            raise Unsupported(f"a {node.type} in the function")

    def _declared_in_kernel(self) -> Iterator[Node]:
        for node in self.code.source.walk(self.kernel.node, "declaration", "for_range_loop", "parameter_declaration"):
            yield from names_declared(node)
        for node in self.code.source.walk(self.kernel.body, "alias_declaration"):
            yield field_of(node, "name") or node

    def _spelt(self, parameter: _Parameter) -> str:
        """What may stand for a parameter wherever the function names it; "" where it must be a variable of its own."""
        if parameter.spelt:
            return parameter.spelt
        source, argument = self.code.source, parameter.argument
        kind = self._with(source.of(parameter.node, "type"), self.types)
        found = self._found(argument)
        qualifiers = {source.of(c) for c in parameter.node.children if c.type == "type_qualifier"}
        if parameter.reference:
            array = parameter.array
            if (
                found is None
                or found.kind not in {"local", "loop", "parameter"}
                or self._type_of(argument, pointer=False) != kind
            ):
                value = argument.type in {"binary_expression", "number_literal", "unary_expression", "cast_expression"}
                if "const" in qualifiers and array is None and value:
                    return ""
                raise Unsupported("a reference to something that has no plain name")
            size = field_of(found.declarator, "size")
            wanted = field_of(array, "size")
            if (size is None) != (wanted is None) or self._with(source.of(wanted), self.types) != source.of(size):
                raise Unsupported("a reference to something else")
            parameter.spelt = source.of(argument)
            return parameter.spelt
        if self._mutated(parameter) or found is None or self._is_lent(argument):
            return ""
        if parameter.declarator.type == "identifier" and self._type_of(argument, pointer=False) == kind:
            parameter.spelt = source.of(argument)
        elif parameter.declarator.type == "pointer_declarator" and found.declarator is not None:
            inner = found.declarator
            if inner.type == "init_declarator":
                inner = field_of(inner, "declarator") or inner
            same_kind = source.of(found.declaration, "type") == kind
            if inner.type in {"pointer_declarator", "array_declarator"} and same_kind:
                parameter.spelt = source.of(argument)
        return parameter.spelt

    def _is_lent(self, argument: Node) -> bool:
        """Whether another parameter is a second name of the same variable, through which it may change."""
        name, source = self.code.source.of(argument), self.code.source
        if any(p.reference and source.of(p.argument) == name for p in self.parameters):
            return True
        for node in source.walk(self.kernel.body, "pointer_expression", "init_declarator"):
            value = field_of(node, "argument") or field_of(node, "value")
            taken = node.type == "pointer_expression" and source.of(node.children[0]) == "&"
            bound = field_of(node, "declarator")
            bound = bound is not None and bound.type == "reference_declarator"
            if (taken or bound) and source.of(value) == name:
                return True
        return False

    def _mutated(self, parameter: _Parameter) -> bool:
        found = Definition(parameter.name, "parameter", parameter.node, parameter.declarator, None)
        return self.code.mutated(found)

    # What is written.

    def write(self, edits: Edits) -> None:
        source = self.code.source
        indent, unit = source.indent(self.statement), source.unit(self.statement)
        braces = self.statement.parent is not None and self.statement.parent.type != "compound_statement"
        inner = indent + unit if braces and source.data[
            source.line_start(self.statement) : self.statement.start_byte].strip() else indent  # fmt: skip
        lines = [f"{text};" for text in self._set_parameters()] + self._statements()
        parts = [part for line in lines for part in line.split("\n")]
        text = "\n".join(part if n == 0 or not part or part[0] == "#" else inner + part for n, part in enumerate(parts))
        if braces:
            text = f"{{\n{inner}{text}\n{indent}}}"
        end = source.data.find(b"\n", self.statement.end_byte)
        if "//" in text.rpartition("\n")[2] and source.data[self.statement.end_byte : end].strip():
            text += f"\n{indent}"  # what follows on the line is no part of the comment
        if not lines:
            text = ";"
        edits.replace(self.statement, text)

    def _set_parameters(self) -> Iterator[str]:
        source = self.code.source
        used = {source.of(n) for n in source.walk(self.body, "identifier")}
        for parameter in self.parameters:
            if self._spelt(parameter):
                continue
            simple = not any(
                True
                for _ in source.walk(
                    parameter.argument, "call_expression", "assignment_expression", "update_expression"
                )
            )
            if parameter.name not in used and simple:
                continue
            qualifiers = [source.of(c) for c in parameter.node.children if c.type == "type_qualifier"]
            kind = self._with(source.of(parameter.node, "type"), self.types)
            declarator, name = parameter.declarator, self.renamed.get(parameter.name, parameter.name)
            if declarator.type in {"identifier", "reference_declarator"}:
                constant = not self._mutated(parameter) and not any(
                    source.of(n, "argument") == parameter.name
                    for n in source.walk(self.body, "field_expression")
                    if n.parent is not None and n.parent.type == "call_expression"
                )
                star = ""
            elif declarator.type == "pointer_declarator":
                inner = next(
                    (c for c in declarator.named_children if c.type not in {"type_qualifier", "ms_pointer_modifier"}),
                    None,
                )
                if inner is None or inner.type != "identifier":
                    raise Unsupported("a pointer to a pointer")
                constant, star = "const" in qualifiers, "*"
            else:
                raise Unsupported("a parameter of another form")
            yield f"{'const ' if constant else ''}{kind}{star} {name} = {source.of(parameter.argument)}"

    def _names(self) -> dict[str, str]:
        spelt = {p.name: self._spelt(p) for p in self.parameters if self._spelt(p)}
        return {**self.types, **self.renamed, **spelt}

    def _replacements(self) -> list[tuple[Node, str]]:
        names = self._names()
        found = []
        for node in self.code.source.walk(self.body, "identifier", "type_identifier"):
            word = self.code.source.of(node)
            if word in names and names[word] != word:
                found.append((node, names[word]))
        return found

    def _statements(self) -> list[str]:
        """The function's lines, moved left by their own indentation."""
        source = self.code.source
        inner = statements(self.body)
        lines = source.render(self.body, self._replacements())[1:-1].split("\n")
        own = source.indent(inner[0]) if inner else ""
        lines = [lines[0].strip(), *(line.removeprefix(own).rstrip() for line in lines[1:])]
        while lines and not lines[0]:
            lines.pop(0)
        while lines and not lines[-1]:
            lines.pop()
        return ["\n".join(lines)] if lines else []
