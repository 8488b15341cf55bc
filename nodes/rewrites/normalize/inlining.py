"""A call of a small function, a method or a lambda, and its statements as they read in its place."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from tree_sitter import Node

from nodes.rewrites.analysis.device_code import Code, Definition
from nodes.rewrites.analysis.indices import is_pure
from nodes.rewrites.analysis.kernels import Kernel, template_name
from nodes.rewrites.analysis.structs import called_object, is_made, is_steady, object_of, structs, substituted
from nodes.rewrites.syntax.insert import free
from nodes.rewrites.syntax.source import Edits, Unsupported, inside
from nodes.rewrites.syntax.tree import (
    LOOPS,
    children_of,
    declared_name,
    enclosing,
    field_of,
    names_declared,
    same,
    statements,
    template_of,
    upward,
)

LONGEST = 60
"""Lines of a function: what is longer is no helper."""
_REFUSED = (
    "goto_statement", "labeled_statement", "lambda_expression", "asm_statement", "gnu_asm_expression", "try_statement",
    "static_assert_declaration", "this", "alias_declaration", "type_definition", "struct_specifier", "using_declaration",
)  # fmt: skip
_TALKS = re.compile(r"__(sync|shfl|ballot|any|all|reduce|match|activemask)|sync$|cooperative|^shfl")
_CHANGES = ("assignment_expression", "update_expression")


@dataclass
class _Parameter:
    name: str
    node: Node
    declarator: Node
    argument: Node
    found: Definition | None
    """The variable that the argument is."""
    uses: list[Node]
    mutated: bool
    called: bool
    """Or a method of its, which may change it."""
    const: bool

    @property
    def array(self) -> Node | None:
        """The declarator of a reference to an array, `float (&to)[N]`."""
        inner = field_of(self.declarator, "declarator")
        held = inner.named_children[0] if inner is not None and inner.type == "parenthesized_declarator" else None
        return self.declarator if held is not None and held.type == "reference_declarator" else None

    @property
    def reference(self) -> bool:
        return self.declarator.type == "reference_declarator" or self.array is not None

    @property
    def pointer(self) -> bool:
        return self.declarator.type == "pointer_declarator"


@dataclass
class Inlined:
    """A call, and the function's statements as they read in its place. Raises Unsupported where they cannot stand there."""

    code: Code
    kernel: Kernel
    call: Node
    name: str = field(init=False)
    """Of the function, or of the object that is called."""

    def __post_init__(self) -> None:
        source = self.code.source
        self.object = called_object(self.code, self.call)
        self.members: dict[str, str] = {}
        self.types: dict[str, str] = {}
        self.lambda_: Node | None = None
        if self.object is not None:
            self._find_method(self.object)
        else:
            self._find_function()
        listed = next(source.walk(self.function, "parameter_list"), None)
        body = field_of(self.function, "body")
        if body is None or listed is None or self.function.has_error or self.call.has_error:
            raise Unsupported("a function that the parser did not understand")
        self.body, self.listed = body, listed
        self._check_function()
        self.result = self._result()
        self.alone = self.result is not None and len(statements(body)) == 1
        """Whether there is nothing but a value, which may stand wherever the call does."""
        self.statement = self.call if self.alone else self._statement()
        self.parameters = self._parameters()
        self.types = {**self.types, **self._types()}
        own = list(self._declared_inside())
        hidden = {*own, *(p.name for p in self.parameters)}
        self.members = {member: text for member, text in self.members.items() if member not in hidden}
        place = self._in_place if self.alone else self._named
        self.spelt = {p.name: place(p) for p in self.parameters}
        """What stands for a parameter wherever the function names it; "" for a variable of its own name."""
        self.renamed = self._renamed(own)

    def _find_method(self, found: Definition) -> None:
        """Of a struct, or the lambda that a variable is. Raises Unsupported where it is not known, or captures what may change."""
        code, given = self.code, field_of(self.call, "function")
        self.name = found.name
        if found.value is not None and found.value.type == "lambda_expression" and given.type == "identifier":
            self.function = self.lambda_ = found.value
            captured = code.source.of(found.value, "captures").replace(" ", "")
            captured += " mutable" if "mutable" in code.source.of(found.value, "declarator") else ""
            outer = [code.definition(n) for n in code.source.walk(field_of(found.value, "body"), "identifier")]
            kept = all(is_steady(code, d) for d in outer if d is not None and d.where < found.value.start_byte)
            if code.mutated(found) or captured not in {"[&]", "[=]"} or (captured == "[=]" and not kept):
                raise Unsupported("a lambda with values of its own")
            return
        object_ = object_of(code, structs(code), found)
        name = code.source.of(given, "field") or "operator()"
        if object_ is None or name not in object_.struct.methods or name == object_.struct.name:
            raise Unsupported("a method that is not known")
        self.function, self.types = object_.struct.methods[name], object_.types
        hidden = self._declared_between(found.declaration)
        made = {member: text for member, text in object_.made.items() if text not in hidden}
        self.members = {member: made.get(member, f"{found.name}.{member}") for member in object_.struct.members}
        if self._words(field_of(self.function, "body")) & object_.struct.methods.keys():
            raise Unsupported("a method that calls another one")

    def _find_function(self) -> None:
        source, code = self.code.source, self.code
        given = field_of(self.call, "function")
        plain = field_of(given, "name") if given is not None and given.type == "template_function" else given
        self.name = source.of(plain)
        known = code.overloads.get(self.name, [])
        if plain is None or plain.type != "identifier" or len(known) != 1 or code.definition(plain) is not None:
            raise Unsupported("not one function of the file")  # a macro of that name is a definition
        (self.function,) = known

    def _words(self, node: Node | None) -> set[str]:
        return {self.code.source.of(n) for n in self.code.source.walk(node, "identifier", "type_identifier")}

    # What must hold.

    def _statement(self) -> Node:
        """What is reached or not as a whole: the call as a statement or, of a function with a result, all that a variable is set to."""
        node = self.call.parent
        if self.result is not None:
            value = field_of(node, "value") if node.type == "init_declarator" else field_of(node, "right")
            if node.type not in {"init_declarator", "assignment_expression"} or not same(value, self.call):
                raise Unsupported("a call in an expression")
            node = node.parent
        if node.type not in {"expression_statement", "declaration"} or node.parent is None:
            raise Unsupported("a call in an expression")
        around = node.parent
        head = around.type == "for_statement" and not same(field_of(around, "body"), node)
        known = around.type in {"compound_statement", "for_statement", "if_statement", "else_clause"}
        if len(node.children_by_field_name("declarator")) > 1 or head or not known:
            raise Unsupported("a declaration of several variables, or a statement in an unusual place")
        return node

    def _result(self) -> Node | None:
        """What the last statement returns. Raises Unsupported for a return before the end, and for pointers and references."""
        source = self.code.source
        returns, inner = list(source.walk(self.body, "return_statement")), statements(self.body)
        void = source.of(self.function, "type") == "void" or (self.lambda_ is not None and not returns)
        if void and not returns:
            return None
        declared = field_of(self.function, "declarator")
        plain = declared is not None and declared.type in {"function_declarator", "lambda_declarator"}
        if void or not plain or source.has(declared, "trailing_return_type"):
            raise Unsupported("a result of another form")
        if len(returns) != 1 or not same(returns[0], inner[-1]) or returns[0].named_child_count != 1:
            raise Unsupported("a return before the end")
        return returns[0].named_children[0]

    def _check_function(self) -> None:
        source, body, function = self.code.source, self.body, self.function
        kinds = {c.type for c in function.children}
        if self.lambda_ is None and ("__device__" not in kinds or "__noinline__" in source.of(function)):
            raise Unsupported("no device function")
        if kinds & {"attribute_declaration", "attribute_specifier", "__global__"}:
            raise Unsupported("a function of another kind")
        scope = self._scope(function)[0 if self.object is None else 1 :]
        if self.lambda_ is None and scope != self._scope(self.kernel.node):
            raise Unsupported("a function of another scope")
        if body.end_point[0] - body.start_point[0] > LONGEST or source.has(body, *_REFUSED):
            raise Unsupported("a function that is no small helper")
        words = {source.of(n) for n in source.walk(function, "type_qualifier", "storage_class_specifier")}
        inner = {source.of(n) for n in source.walk(body, "type_qualifier", "storage_class_specifier")}
        if inner & {"__shared__", "static", "extern"} or "volatile" in words:
            raise Unsupported("memory of its own, or accesses that happen in the order in which they stand")
        if any(n.type.startswith("preproc_") and n.type != "preproc_call" for n in source.walk(body)):
            raise Unsupported("a directive")
        for call in source.walk(body, "call_expression"):
            called = source.called(call).split(".")[-1]
            if _TALKS.search(called) or any(same(function, f) for f in self.code.reached(called)):
                raise Unsupported("a function that talks to other threads, or calls itself")

    def _scope(self, node: Node) -> list[str]:
        names = []
        for here in upward(node.parent):
            if here.type in {"namespace_definition", "class_specifier", "struct_specifier"}:
                names.append(f"{here.type} {self.code.source.of(here, 'name')}")
            elif here.type.startswith("preproc_if"):
                names.append(f"{here.type} {here.start_byte}")
        return names

    def _parameters(self) -> list[_Parameter]:
        code, source = self.code, self.code.source
        given, wanted = children_of(self.call, "arguments"), children_of(self.listed)
        if len(given) != len(wanted):
            raise Unsupported("arguments that are left out")
        called = [field_of(call, "function") for call in source.walk(self.body, "call_expression")]
        holders = [field_of(f, "argument") if f.type == "field_expression" else f for f in called]
        found = []
        for node, argument in zip(wanted, given, strict=True):
            declarator = field_of(node, "declarator")
            named = declared_name(declarator)
            if declarator is None and is_pure(source, argument):
                continue  # without a name, for a caller that has more to say
            if declarator is None or named is None or node.type != "parameter_declaration":
                raise Unsupported("a parameter without a name")
            name = source.of(named)
            uses = [n for n in source.walk(self.body, "identifier") if source.of(n) == name]
            mutated = code.mutated(Definition(name, "parameter", node, declarator, None))
            const = any(source.of(c) == "const" for c in node.children if c.type == "type_qualifier")
            calls = any(source.of(holder) == name for holder in holders)
            found.append(
                _Parameter(name, node, declarator, argument, code.variable(argument), uses, mutated, calls, const)
            )
        if len({p.name for p in found}) != len(found):
            raise Unsupported("two parameters of one name")
        return found

    # What its types and names become.

    def _types(self) -> dict[str, str]:
        """Template parameters as the call has them: given, by the arguments' types, or by default."""
        source, outer = self.code.source, template_of(self.function)
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
            elif not any(p.argument.type == "lambda_expression" for p in mine) or name in self._words(self.body):
                raise Unsupported(
                    f"{name} is deduced in a way that is not understood, or a lambda's type, which has no name"
                )
        for name, text in types.items():
            plain = re.fullmatch(r"[\w:]+(<[\w:, ]+>)?|\(.*\)", text)
            if not plain and re.search(r"[*&]|\bunsigned\b", text):
                raise Unsupported("a type of several words")
            types[name] = text if plain else f"({text})"
        return types

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
        kind = self.code.source.of(found.declaration, "type")
        plain = found.form.type in {"identifier", "array_declarator"}
        return kind if plain and kind != "auto" else ""

    def _kind(self, node: Node) -> str:
        """The type that a parameter or the function says, as it is here."""
        return substituted(self.code.source.of(node, "type"), self.types)

    def _renamed(self, own: list[str]) -> dict[str, str]:
        """New names for variables of the function, by their old ones, where the kernel means something else by these."""
        source, code, names = self.code.source, self.code, [p.name for p in self.parameters]
        called = {source.of(c, "function") for c in source.walk(self.body, "call_expression")}
        if set(own) & {*names, *self.types, *called}:
            raise Unsupported("a name that hides a parameter, or is called")
        met = source.walk(enclosing(self.statement, "compound_statement"), "identifier", "type_identifier")
        near = {source.of(n) for n in met if self.lambda_ is None or not inside(n, self.lambda_)}
        near |= {p.name for p in self.kernel.parameters}
        local = {source.of(n) for n in self._declared_in_kernel()} | set(self.kernel.template_names)
        if self.lambda_ is not None:  # in which the kernel's names mean what they mean in the kernel
            local = self._declared_between(self.lambda_)
        mine = {*own, *names, *self.types}
        words = self._words(self.body)
        hidden = code.words_of_macros if words & code.macros.keys() else set()
        free_ = words | {source.of(n) for n in source.walk(field_of(self.function, "type"), "type_identifier")}
        if (free_ - mine - self.members.keys()) & local or hidden & (mine | local):
            raise Unsupported("a name that means something else in the kernel")
        near |= {w for t in (*self.types.values(), *self.members.values()) for w in re.findall(r"\w+", t)}
        near |= {*code.macros, *self.kernel.template_names}
        renamed, taken = dict[str, str](), code.names()
        for name in dict.fromkeys([*own, *(name for name in names if not self.spelt[name])]):
            if name in near:
                renamed[name] = free(name, taken)
                taken.add(renamed[name])
        return renamed

    def _declared_inside(self) -> Iterator[str]:
        for node in self.code.source.walk(self.body, "declaration", "for_range_loop"):
            for declarator in node.children_by_field_name("declarator"):
                name = declared_name(declarator)
                if name is None:
                    raise Unsupported("a declaration of another form")
                yield self.code.source.of(name)

    def _declared_in_kernel(self) -> Iterator[Node]:
        for node in self.code.source.walk(self.kernel.node, "declaration", "for_range_loop", "parameter_declaration"):
            yield from names_declared(node)
        for node in self.code.source.walk(self.kernel.body, "alias_declaration"):
            yield field_of(node, "name") or node

    def _declared_between(self, before: Node) -> set[str]:
        """Names that may have another meaning at the call than at a node in front of it."""
        declared = self._declared_in_kernel()
        return {self.code.source.of(n) for n in declared if before.end_byte <= n.start_byte < self.call.start_byte}

    def _named(self, parameter: _Parameter) -> str:
        """The variable that may stand for a parameter in the function's statements; "" where it must be one of its own."""
        source, argument, found = self.code.source, parameter.argument, parameter.found
        if argument.type == "lambda_expression" or is_made(self.code, argument):
            return ""
        kind = self._kind(parameter.node)
        if parameter.reference:
            return self._bound(parameter, kind)
        if parameter.mutated or parameter.called or found is None or self._is_lent(argument):
            return ""
        if self.lambda_ is not None and source.of(argument) in map(source.of, self.code.assigned(self.body)):
            return ""
        if parameter.pointer and found.declarator is not None:
            alike = found.form.type in {"pointer_declarator", "array_declarator"}
            return source.of(argument) if alike and source.of(found.declaration, "type") == kind else ""
        alike = parameter.declarator.type == "identifier" and self._type_of(argument) == kind
        return source.of(argument) if alike else ""

    def _bound(self, parameter: _Parameter, kind: str) -> str:
        """As `_named`, of a reference. Raises Unsupported where it is one to something without a name, which changes."""
        source, argument, array, found = self.code.source, parameter.argument, parameter.array, parameter.found
        if found is None or self._type_of(argument) != kind:
            value = argument.type in {"binary_expression", "number_literal", "unary_expression", "cast_expression"}
            if parameter.const and array is None and (value or self._read_before_stores(parameter)):
                return ""
            raise Unsupported("a reference to something that has no plain name")
        size, wanted = field_of(found.declarator, "size"), field_of(array, "size")
        if (size is None) != (wanted is None) or substituted(source.of(wanted), self.types) != source.of(size):
            raise Unsupported("a reference to something else")
        return source.of(argument)

    def _in_place(self, parameter: _Parameter) -> str:
        """The argument as an operand of what a function returns. Raises Unsupported where it would be computed more or less than once,
        and that made a difference."""
        source, argument = self.code.source, parameter.argument
        once = len(parameter.uses) == 1 and all(
            is_pure(source, p.argument) for p in self.parameters if p is not parameter
        )
        if once:
            around = upward(parameter.uses[0], self.body)
            once = not any(
                n.type == "conditional_expression" or source.of(n, "operator") in {"&&", "||"} for n in around
            )
        if parameter.mutated or parameter.array is not None or not (once or is_pure(source, argument)):
            raise Unsupported("an argument that is not a value alone")
        if parameter.called and not parameter.reference:
            raise Unsupported("an object that is copied")
        kind, text = self._kind(parameter.node), source.of(argument)
        plain = {"identifier", "number_literal", "subscript_expression", "call_expression", "field_expression"}
        if parameter.pointer or kind in {self._type_of(argument), "auto"}:
            return text if argument.type in plain else f"({text})"
        if parameter.reference and not parameter.const:
            raise Unsupported("a reference to something of another type")
        return f"static_cast<{kind}>({text})"

    def _read_before_stores(self, parameter: _Parameter) -> bool:
        """Whether an element that a reference is bound to could as well be copied when the function begins."""
        source, code = self.code.source, self.code
        if not is_pure(source, parameter.argument) or source.has(self.body, *LOOPS, "pointer_expression"):
            return False
        stores = [n for n in source.walk(self.body, *_CHANGES)
                  if (field_of(n, "left") or field_of(n, "argument")).type != "identifier" or self.lambda_ is not None]  # fmt: skip
        calls = source.walk(self.body, "call_expression")
        if any(any(code.pointer_effects(source.called(c), len(children_of(c, "arguments")))) for c in calls):
            return False
        return not stores or all(n.end_byte <= stores[0].end_byte for n in parameter.uses)

    def _is_lent(self, argument: Node) -> bool:
        """Whether another parameter is a second name of the same variable, through which it may change."""
        name, source = self.code.source.of(argument), self.code.source
        if any(p.reference and source.of(p.argument) == name for p in self.parameters):
            return True
        for node in source.walk(self.kernel.body, "pointer_expression", "init_declarator"):
            taken = node.type == "pointer_expression" and source.of(node.children[0]) == "&"
            bound = field_of(node, "declarator")
            bound = bound is not None and bound.type == "reference_declarator"
            if (taken or bound) and source.of(field_of(node, "argument") or field_of(node, "value")) == name:
                return True
        return False

    # What is written.

    def write(self, edits: Edits) -> None:
        source = self.code.source
        if self.alone:
            edits.replace(self.call, self._value())
            return
        indent, unit = source.indent(self.statement), source.unit(self.statement)
        braces = self.statement.parent.type != "compound_statement"
        before = source.data[source.line_start(self.statement) : self.statement.start_byte].strip()
        inner = indent + unit if braces and before else indent
        lines = [f"{text};" for text in self._set_parameters()] + self._statements()
        if self.result is not None:
            lines.append(source.render(self.statement, [(self.call, self._value())]))
        parts = [part for line in lines for part in line.split("\n")]
        text = "\n".join(part if n == 0 or not part or part[0] == "#" else inner + part for n, part in enumerate(parts))
        if braces:
            text = f"{{\n{inner}{text}\n{indent}}}"
        behind = source.data[self.statement.end_byte : source.line_end(self.statement)].strip()
        if "//" in text.rpartition("\n")[2] and behind:
            text += f"\n{indent}"  # what follows on the line is no part of the comment
        edits.replace(self.statement, text if lines else ";")

    def _set_parameters(self) -> Iterator[str]:
        source = self.code.source
        for parameter in self.parameters:
            argument, declarator = parameter.argument, parameter.declarator
            acts = source.has(argument, "call_expression", *_CHANGES)
            if self.spelt[parameter.name] or not (parameter.uses or acts):
                continue
            name = self.renamed.get(parameter.name, parameter.name)
            if argument.type == "lambda_expression":
                yield f"const auto {name} = {source.of(argument)}"
                continue
            inner = field_of(declarator, "declarator") if parameter.pointer else None
            if declarator.type not in {"identifier", "reference_declarator"} and source.of(inner) != parameter.name:
                raise Unsupported("a pointer to a pointer, or a parameter of another form")
            kept = not parameter.mutated and (parameter.const or not parameter.called)
            constant = "const " if (parameter.const if parameter.pointer else kept) else ""
            star = "*" if parameter.pointer else ""
            yield f"{constant}{self._kind(parameter.node)}{star} {name} = {source.of(argument)}"

    def _value(self) -> str:
        """What stands in the place of a call that has a result."""
        source, kind = self.code.source, self._kind(self.function)
        value = source.render(self.result, self._replacements())
        declared = self.call.parent.parent if self.call.parent.type == "init_declarator" else None
        if source.of(declared, "type") == kind or value.startswith(f"static_cast<{kind}>("):
            return value
        return f"({value})" if kind in {"auto", ""} else f"static_cast<{kind}>({value})"

    def _replacements(self) -> list[tuple[Node, str]]:
        spelt = {name: text for name, text in self.spelt.items() if text}
        names, found = {**self.types, **self.members, **self.renamed, **spelt}, []
        for node in self.code.source.walk(self.body, "identifier", "type_identifier"):
            word, scope = self.code.source.of(node), node.parent
            scoped = scope.type == "qualified_identifier" and same(field_of(scope, "name"), node)
            if names.get(word, word) != word and not scoped:
                found.append((node, names[word]))
        return found

    def _statements(self) -> list[str]:
        """The function's lines less its return, moved left by their own indentation."""
        source = self.code.source
        inner = statements(self.body)
        end = [(inner[-1], "")] if self.result is not None else []
        lines = source.render(self.body, [*self._replacements(), *end])[1:-1].split("\n")
        own = source.indent(inner[0]) if inner else ""
        text = "\n".join([lines[0].strip(), *(line.removeprefix(own).rstrip() for line in lines[1:])]).strip("\n")
        return [text] if text else []
