"""A call of a small function, and its statements as they read in its place."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tree_sitter import Node

from nodes.rewrites.analysis.device_code import Code, Definition
from nodes.rewrites.analysis.indices import is_pure
from nodes.rewrites.analysis.kernels import TALKS, Kernel, template_name
from nodes.rewrites.syntax.insert import free, substituted
from nodes.rewrites.syntax.source import Edits, Unsupported, lifted
from nodes.rewrites.syntax.tree import (
    children_of,
    declared_name,
    field_of,
    names_declared,
    same,
    statements,
    template_of,
    upward,
)

_REFUSED = (
    "goto_statement", "labeled_statement", "lambda_expression", "asm_statement", "gnu_asm_expression", "try_statement",
    "static_assert_declaration", "this", "alias_declaration", "type_definition", "struct_specifier", "using_declaration",
    "preproc_if", "preproc_ifdef", "preproc_def", "preproc_call",
)  # fmt: skip
_WRAPPERS = {"template_declaration", "field_declaration_list", "struct_specifier"}
_VALUES = {"binary_expression", "number_literal", "unary_expression", "cast_expression"}
"""Arguments of which a reference is one to a copy."""
_OPERANDS = {"identifier", "number_literal", "subscript_expression", "call_expression", "field_expression"}


@dataclass
class _Parameter:
    name: str
    node: Node
    declarator: Node
    argument: Node
    used: bool
    mutated: bool
    called: bool
    """Or a method of its, which may change it."""
    const: bool
    pointer: bool
    reference: bool
    size: str
    """Of a reference to an array, `float (&to)[N]`."""


class Inlined:
    """A call, and the function's statements as they read in its place. Raises Unsupported where they cannot stand there."""

    def __init__(self, code: Code, kernel: Kernel, call: Node) -> None:
        self.code, self.source, self.kernel, self.call = code, code.source, kernel, call
        self.function = self._function()
        listed = next(self.source.walk(self.function, "parameter_list"), None)
        body = field_of(self.function, "body")
        if body is None or listed is None or self.function.has_error or call.has_error:
            raise Unsupported("a function that the parser did not understand")
        self.body, self.listed = body, listed
        self._check_function()
        self.result = self._result()
        self.alone = self.result is not None and len(statements(body)) == 1
        """Whether there is nothing but a value, which may stand wherever the call does."""
        self.statement = call if self.alone else self._statement()
        self.parameters = self._parameters()
        self.types = self._types()
        self.spelt = {p.name: self._spelt(p) for p in self.parameters}
        """What stands for a parameter wherever the function names it; "" for a variable of its own name."""
        self.names = self._names()

    def _function(self) -> Node:
        given = field_of(self.call, "function")
        plain = field_of(given, "name") if given is not None and given.type == "template_function" else given
        if plain is None or plain.type != "identifier" or self.code.definition(plain) is not None:
            raise Unsupported("not a function of the file")  # a macro of that name is a definition
        self.name = self.source.of(plain)
        known = self.code.overloads.get(self.name, [])
        if len(known) != 1:
            raise Unsupported("not one function of the file")
        return known[0]

    def _words(self, node: Node | None) -> set[str]:
        found = self.source.walk(node, "identifier", "type_identifier") if node is not None else ()
        return {self.source.of(n) for n in found}

    def _declared(self) -> set[str]:
        """Names that the kernel has declared where the call stands: they mean nothing to the function."""
        nodes = self.source.walk(self.kernel.node, "declaration", "for_range_loop", "parameter_declaration")
        declared = [name for node in nodes for name in names_declared(node)]
        declared += [field_of(node, "name") or node for node in self.source.walk(self.kernel.body, "alias_declaration")]
        begin = self.kernel.name_node.end_byte
        return {self.source.of(n) for n in declared if begin <= n.start_byte < self.call.start_byte}

    # What must hold.

    def _check_function(self) -> None:
        source, body, function = self.source, self.body, self.function
        homes = [next(here for here in upward(node.parent) if here.type not in _WRAPPERS)
                 for node in (function, self.kernel.node)]  # fmt: skip
        if not source.says(function, "__device__") or "__noinline__" in source.of(function) or not same(*homes):
            raise Unsupported("no device function, or one of another scope")
        words = {source.of(n) for n in source.walk(body, "type_qualifier", "storage_class_specifier")}
        if (
            words & {"__shared__", "static", "extern"}
            or "volatile" in source.of(function)
            or source.has(body, *_REFUSED)
        ):
            raise Unsupported("memory of its own, or what cannot stand elsewhere")
        for call in source.walk(body, "call_expression"):
            called = source.called(call).split(".")[-1]
            if TALKS.fullmatch(called) or any(same(function, f) for f in self.code.reached(called)):
                raise Unsupported("a function that talks to other threads, or calls itself")

    def _result(self) -> Node | None:
        """What the last statement returns. Raises Unsupported for a return before the end, and for pointers and references."""
        source, declared = self.source, field_of(self.function, "declarator")
        returns, inner = list(source.walk(self.body, "return_statement")), statements(self.body)
        if not returns and source.of(self.function, "type") == "void":
            return None
        plain = declared is not None and declared.type == "function_declarator"
        if not plain or source.has(declared, "trailing_return_type"):
            raise Unsupported("a result of another form")
        if len(returns) != 1 or not same(returns[0], inner[-1]) or returns[0].named_child_count != 1:
            raise Unsupported("a return before the end")
        return returns[0].named_children[0]

    def _statement(self) -> Node:
        """What is reached or not as a whole: the call as a statement or, of a function with a result, all that a variable is set to."""
        node = self.call.parent
        if self.result is not None:
            value = field_of(node, "value") if node.type == "init_declarator" else field_of(node, "right")
            if node.type not in {"init_declarator", "assignment_expression"} or not same(value, self.call):
                raise Unsupported("a call in an expression")
            node = node.parent
        around = node.parent
        head = around.type == "for_statement" and not same(field_of(around, "body"), node)
        known = around.type in {"compound_statement", "for_statement", "if_statement", "else_clause"}
        plain = (
            node.type in {"expression_statement", "declaration"} and len(node.children_by_field_name("declarator")) < 2
        )
        if not plain or head or not known:
            raise Unsupported("a call in an expression, a declaration of several variables, or in an unusual place")
        return node

    def _parameters(self) -> list[_Parameter]:
        code, source, found = self.code, self.source, list[_Parameter]()
        given, wanted = children_of(self.call, "arguments"), children_of(self.listed)
        if len(given) != len(wanted):
            raise Unsupported("arguments that are left out")
        called = [field_of(call, "function") for call in source.walk(self.body, "call_expression")]
        holders = {source.of(f, "argument") if f.type == "field_expression" else source.of(f) for f in called}
        for node, argument in zip(wanted, given, strict=True):
            declarator = field_of(node, "declarator")
            if declarator is None and is_pure(source, argument):
                continue  # without a name, for a caller that has more to say
            name = source.of(declared_name(declarator))
            if not name or node.type != "parameter_declaration":
                raise Unsupported("a parameter without a name")
            mutated = code.mutated(Definition(name, "parameter", node, declarator, None))
            used = name in self._words(self.body)
            const = any(source.of(c) == "const" for c in node.children if c.type == "type_qualifier")
            pointer, reference = declarator.type == "pointer_declarator", "&" in source.of(declarator)
            size, mine = source.of(declarator, "size") if reference else "", (used, mutated, name in holders)
            found.append(_Parameter(name, node, declarator, argument, *mine, const, pointer, reference, size))
        return found

    # What its types and names become.

    def _types(self) -> dict[str, str]:
        """Template parameters as the call has them: given, by the arguments' types, or by default."""
        source, outer = self.source, template_of(self.function)
        template = children_of(outer, "parameters")
        if template and any(p.type.startswith(("variadic", "requires")) for p in [*template, *outer.children]):
            raise Unsupported("a template of another form")
        called = field_of(self.call, "function")
        given = [source.of(c) for c in children_of(called, "arguments")] if called.type == "template_function" else []
        types: dict[str, str] = {}
        for at, parameter in enumerate(template):
            name = template_name(source, parameter)
            value = field_of(parameter, "default_value") or field_of(parameter, "default_type")
            mine = [p for p in self.parameters if source.of(p.node, "type") == name]
            if at < len(given):
                types[name] = given[at]
            elif len(kinds := {self._type_of(p.argument, pointer=p.pointer) for p in mine} - {""}) == 1:
                types[name] = kinds.pop()
            elif value is not None:
                types[name] = substituted(source.of(value), types)
            else:
                raise Unsupported(f"{name} is deduced in a way that is not understood")
        plain = re.compile(r"[\w:]+(<[\w:, ]+>)?|\(.*\)")
        return {name: text if plain.fullmatch(text) else f"({text})" for name, text in types.items()}

    def _type_of(self, argument: Node, *, pointer: bool = False) -> str:
        """The type of a plain variable or of an element, that of the elements behind a `pointer`; "" for what would have to be worked
        out."""
        if argument.type == "subscript_expression" and not pointer:
            return self._type_of(field_of(argument, "argument"), pointer=True)
        if pointer:
            base = self.code.pointer_base(self.code.polynomial(argument))
            return self.code.element_of(base) if base is not None else ""
        found = self.code.variable(argument)
        if found is None or found.declarator is None or found.kind not in {"local", "loop", "parameter"}:
            return ""
        kind = self.source.of(found.declaration, "type")
        plain = found.form.type in {"identifier", "array_declarator"}
        return kind if plain and kind != "auto" else ""

    def _kind(self, node: Node) -> str:
        """The type that a parameter or the function says, as it is here."""
        return substituted(self.source.of(node, "type"), self.types)

    def _spelt(self, parameter: _Parameter) -> str:
        """What may stand for a parameter in the function's statements; "" where it must be a variable of its own. Raises Unsupported
        where it cannot be one."""
        source, argument, pure = self.source, parameter.argument, is_pure(self.source, parameter.argument)
        kind, text = self._kind(parameter.node), source.of(argument)
        alike = kind in {self._type_of(argument, pointer=parameter.pointer), "auto"}
        if self.alone:
            copied = parameter.called and not parameter.reference
            other = parameter.reference and not (alike or parameter.const)
            if parameter.mutated or parameter.size or copied or other or not pure:
                raise Unsupported("an argument that is not a value alone")
            plain = text if argument.type in _OPERANDS else f"({text})"
            return plain if parameter.pointer or alike else f"static_cast<{kind}>({text})"
        steady, found = pure and not self._is_lent(argument), self.code.variable(argument)
        if not parameter.reference:
            kept = steady and found is not None and not parameter.mutated and not parameter.called
            return text if kept and alike else ""
        size = source.of(found.declarator, "size") if found is not None else ""
        named = found is not None or (argument.type == "subscript_expression" and steady)
        if named and alike and size == substituted(parameter.size, self.types):
            return text
        if not parameter.const or parameter.size or argument.type not in _VALUES:
            raise Unsupported("a reference to something that has no plain name")
        return ""

    def _is_lent(self, argument: Node) -> bool:
        """Whether what an argument is made of may change while the function runs."""
        source, names = self.source, self._words(argument)
        changed = {source.of(p.argument) for p in self.parameters if p.reference and p.argument is not argument}
        for node in source.walk(self.kernel.body, "pointer_expression", "init_declarator"):
            bound = field_of(node, "declarator")
            if source.of(node.children[0]) == "&" or (bound is not None and bound.type == "reference_declarator"):
                changed.add(source.of(field_of(node, "argument") or field_of(node, "value")))
        return bool(names & changed)

    def _names(self) -> dict[str, str]:
        """What the function's names are here, those of its variables new where the kernel has others of these names."""
        source, code, parameters = self.source, self.code, [p.name for p in self.parameters]
        declared = [(node, d) for node in source.walk(self.body, "declaration", "for_range_loop")
                    for d in node.children_by_field_name("declarator")]  # fmt: skip
        own = [source.of(declared_name(declarator)) for _, declarator in declared]
        called = {source.of(c, "function") for c in source.walk(self.body, "call_expression")}
        if "" in own or set(own) & {*parameters, *self.types, *called} or len({*parameters}) < len(parameters):
            raise Unsupported("a name that hides a parameter, or is called")
        mine, words = {*own, *parameters, *self.types}, self._words(self.body)
        local = self._declared() | set(self.kernel.template_names)
        hidden = code.words_of_macros if words & code.macros.keys() else set()
        free_ = words | self._words(field_of(self.function, "type"))
        if (free_ - mine) & local or hidden & (mine | local):
            raise Unsupported("a name that means something else in the kernel")
        spelt = {name: text for name, text in self.spelt.items() if text}
        near = {w for t in self.types.values() for w in re.findall(r"\w+", t)}
        near |= {*self.kernel.identifiers(), *code.macros}
        renamed, taken = dict[str, str](), code.names()
        for name in dict.fromkeys(own + parameters):
            if name in near and name not in spelt:
                renamed[name] = free(name, taken)
                taken.add(renamed[name])
        return {**self.types, **renamed, **spelt}

    # What is written.

    def write(self, edits: Edits) -> None:
        if self.alone:
            edits.replace(self.call, self._value())
            return
        lines = [*(f"{text};" for text in self._set_parameters()), *self._statements()]
        if self.result is not None:
            lines.append(self.source.render(self.statement, [(self.call, self._value())]))
        lines = [part for line in lines for part in line.split("\n")]
        block = self.statement.parent.type == "compound_statement"
        edits.write(self.statement, (lines or [";"]) if block else ["{", lines, "}"])

    def _set_parameters(self) -> Iterator[str]:
        source = self.source
        for parameter in self.parameters:
            argument, declarator = parameter.argument, parameter.declarator
            acts = source.has(argument, "call_expression", "assignment_expression", "update_expression")
            if self.spelt[parameter.name] or not (parameter.used or acts):
                continue
            inner = field_of(declarator, "declarator") if parameter.pointer else None
            if declarator.type not in {"identifier", "reference_declarator"} and source.of(inner) != parameter.name:
                raise Unsupported("a pointer to a pointer, or a parameter of another form")
            kept = not parameter.mutated and (parameter.const or not parameter.called)
            constant = "const " if (parameter.const if parameter.pointer else kept) else ""
            star = "*" if parameter.pointer else ""
            name = self.names.get(parameter.name, parameter.name)
            yield f"{constant}{self._kind(parameter.node)}{star} {name} = {source.of(argument)}"

    def _statements(self) -> list[str]:
        """The function's statements less its return, and comments between them."""
        inner = self.body.named_children[:-1] if self.result is not None else self.body.named_children
        while inner and inner[-1].type == "comment":
            inner = inner[:-1]  # of what follows on the line
        return [lifted(self.source, node, self._here(node)) for node in inner]

    def _value(self) -> str:
        """What stands in the place of a call that has a result."""
        source, kind = self.source, self._kind(self.function)
        value = self._here(self.result)
        declared = self.call.parent.parent if self.call.parent.type == "init_declarator" else None
        if source.of(declared, "type") == kind or value.startswith(f"static_cast<{kind}>("):
            return value
        return f"({value})" if kind in {"auto", ""} else f"static_cast<{kind}>({value})"

    def _here(self, node: Node) -> str:
        """A part of the function by the names that it has here."""
        found = []
        for name in self.source.walk(node, "identifier", "type_identifier"):
            word, scope = self.source.of(name), name.parent
            scoped = scope.type == "qualified_identifier" and same(field_of(scope, "name"), name)
            if self.names.get(word, word) != word and not scoped:
                found.append((name, self.names[word]))
        return self.source.render(node, found)
