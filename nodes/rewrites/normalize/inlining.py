"""A call of a small function, a method or a lambda, and its statements as they read in its place."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from tree_sitter import Node

from nodes.rewrites.analysis.device_code import Code, Definition
from nodes.rewrites.analysis.indices import is_pure
from nodes.rewrites.analysis.kernels import Kernel, template_name
from nodes.rewrites.analysis.structs import called_object, is_made, is_steady, object_of, structs
from nodes.rewrites.syntax.source import Edits, Unsupported, inside
from nodes.rewrites.syntax.tree import (
    LOOPS,
    children_of,
    declared_name,
    field_of,
    names_declared,
    same,
    statements,
    upward,
)

LONGEST = 60
"""Lines of a function: what is longer is no helper."""
_REFUSED = (
    "goto_statement", "labeled_statement", "lambda_expression", "asm_statement", "gnu_asm_expression", "try_statement",
    "static_assert_declaration", "this",
)  # fmt: skip
_TALKS = re.compile(r"__(sync|shfl|ballot|any|all|reduce|match|activemask)|sync$|cooperative|^shfl")


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
        self.template = self._template()
        self.parameters = self._parameters()
        self.types = {**self.types, **self._types()}
        hidden = {*self._declared_inside(), *(p.name for p in self.parameters)}
        self.members = {member: text for member, text in self.members.items() if member not in hidden}
        self.renamed = self._renamed()

    def _find_method(self, found: Definition) -> None:
        """Of a struct, or the lambda that a variable is. Raises Unsupported where it is not known, or captures what may change."""
        code, given = self.code, field_of(self.call, "function")
        self.name = found.name
        if found.value is not None and found.value.type == "lambda_expression" and given.type == "identifier":
            self.function = self.lambda_ = found.value
            captured = code.source.of(found.value, "captures").replace(" ", "")
            captured += " mutable" if "mutable" in code.source.of(found.value, "declarator") else ""
            free = [code.definition(n) for n in code.source.walk(field_of(found.value, "body"), "identifier")]
            kept = all(is_steady(code, d) for d in free if d is not None and d.where < found.value.start_byte)
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
        named = {code.source.of(n) for n in code.source.walk(field_of(self.function, "body"), "identifier")}
        if named & object_.struct.methods.keys():
            raise Unsupported("a method that calls another one")

    def _find_function(self) -> None:
        source, code = self.code.source, self.code
        given = field_of(self.call, "function")
        plain = field_of(given, "name") if given is not None and given.type == "template_function" else given
        if given is None or plain is None or plain.type != "identifier":
            raise Unsupported("a method, or a name in another scope")
        self.name = source.of(plain)
        known = code.overloads.get(self.name, [])
        if len(known) != 1 or code.definition(plain) is not None or self.name in code.macros:
            raise Unsupported("not one function of the file")
        (self.function,) = known

    # What must hold.

    def _statement(self) -> Node:
        """What is reached or not as a whole: the call as a statement or, of a function with a result, all that a variable is set to."""
        node = self.call.parent
        if self.result is not None and node is not None and node.type in {"init_declarator", "assignment_expression"}:
            if not same(field_of(node, "value") or field_of(node, "right"), self.call):
                raise Unsupported("a call in an expression")
            node = node.parent
        elif self.result is not None:
            raise Unsupported("a call in an expression")
        if node is None or node.type not in {"expression_statement", "declaration"} or node.parent is None:
            raise Unsupported("a call in an expression")
        if len(node.children_by_field_name("declarator")) > 1:
            raise Unsupported("a declaration of several variables")
        if node.parent.type not in {"compound_statement", "for_statement", "if_statement", "else_clause"}:
            raise Unsupported("a statement in an unusual place")
        if node.parent.type == "for_statement" and not same(field_of(node.parent, "body"), node):
            raise Unsupported("the head of a loop")
        return node

    def _result(self) -> Node | None:
        """What the last statement returns. Raises Unsupported for a return before the end, and for pointers and references."""
        source = self.code.source
        returns = list(source.walk(self.body, "return_statement"))
        inner = statements(self.body)
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
        source, body = self.code.source, self.body
        heads = [
            source.of(c) for c in self.function.children if c.type in {"attribute_declaration", "attribute_specifier"}
        ]
        kinds = {c.type for c in self.function.children}
        if self.lambda_ is None and ("__device__" not in kinds or "__noinline__" in source.of(self.function)):
            raise Unsupported("no device function")
        if heads or "__global__" in kinds:
            raise Unsupported("a function of another kind")
        scope = self._scope(self.function)[0 if self.object is None else 1 :]
        if self.lambda_ is None and scope != self._scope(self.kernel.node):
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
                 "optional_type_parameter_declaration", "template_template_parameter_declaration"}  # fmt: skip
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
            if declarator is None and is_pure(self.code.source, argument):
                continue  # without a name, for a caller that has more to say
            if declarator is None or name is None or parameter.type != "parameter_declaration":
                raise Unsupported("a parameter without a name")
            found.append(_Parameter(self.code.source.of(name), parameter, declarator, argument))
        return found

    # What its types and names become.

    def _types(self) -> dict[str, str]:
        """Template parameters as the call has them: given, by the arguments' types, or by default."""
        source = self.code.source
        called = field_of(self.call, "function")
        listed = field_of(called, "arguments") if called.type == "template_function" else None
        given = [source.of(c) for c in children_of(listed)]
        types: dict[str, str] = {}
        for at, parameter in enumerate(self.template):
            name = template_name(source, parameter)
            value = field_of(parameter, "default_value") or field_of(parameter, "default_type")
            if at < len(given):
                types[name] = given[at]
            elif (deduced := self._deduced(name)) or value is not None:
                types[name] = deduced or self._with(source.of(value), types)
            elif any(
                p.argument.type == "lambda_expression" and source.of(p.node, "type") == name for p in self.parameters
            ):
                if any(source.of(n) == name for n in source.walk(self.body, "type_identifier", "identifier")):
                    raise Unsupported("a lambda's type, which has no name")
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
        kind = self.code.source.of(found.declaration, "type")
        plain = found.form.type in {"identifier", "array_declarator"}
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
        if called & {*own}:
            raise Unsupported("a variable that is called")
        block = self.statement
        while block.parent is not None and block.type != "compound_statement":
            block = block.parent
        met = source.walk(block, "identifier", "type_identifier")
        near = {source.of(n) for n in met if self.lambda_ is None or not inside(n, self.lambda_)}
        near |= {p.name for p in self.kernel.parameters}
        local = {source.of(n) for n in self._declared_in_kernel()} | set(self.kernel.template_names)
        free = {source.of(n) for n in source.walk(self.body, "identifier", "type_identifier")}
        free |= {source.of(n) for n in source.walk(field_of(self.function, "type"), "type_identifier")}
        if self.lambda_ is not None:  # in which the kernel's names mean what they mean in the kernel
            local = self._declared_between(self.lambda_)
        if (free - {*own, *names, *self.types, *self.members}) & local or self._macro_words() & {
            *own,
            *names,
            *self.types,
            *local,
        }:
            raise Unsupported("a name that means something else in the kernel")
        words = {w for t in (*self.types.values(), *self.members.values()) for w in re.findall(r"\w+", t)}
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

    def _declared_between(self, before: Node) -> set[str]:
        """Names that may have another meaning at the call than at a node in front of it."""
        return {
            self.code.source.of(n)
            for n in self._declared_in_kernel()
            if before.end_byte <= n.start_byte < self.call.start_byte
        }

    def _spelt(self, parameter: _Parameter) -> str:
        """What may stand for a parameter wherever the function names it; "" where it must be a variable of its own."""
        if parameter.spelt:
            return parameter.spelt
        source, argument = self.code.source, parameter.argument
        if self.alone:
            parameter.spelt = self._in_place(parameter)
            return parameter.spelt
        if argument.type == "lambda_expression" or is_made(self.code, argument):
            return ""
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
                if "const" in qualifiers and array is None and (value or self._read_before_stores(parameter)):
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
        if self.lambda_ is not None and source.of(argument) in map(source.of, self.code.assigned(self.body)):
            return ""
        if self._is_called(parameter):
            return ""  # which may change an object
        if parameter.declarator.type == "identifier" and self._type_of(argument, pointer=False) == kind:
            parameter.spelt = source.of(argument)
        elif parameter.declarator.type == "pointer_declarator" and found.declarator is not None:
            same_kind = source.of(found.declaration, "type") == kind
            if found.form.type in {"pointer_declarator", "array_declarator"} and same_kind:
                parameter.spelt = source.of(argument)
        return parameter.spelt

    def _in_place(self, parameter: _Parameter) -> str:
        """The argument as an operand of what a function returns. Raises Unsupported where it would be computed more or less than once,
        and that made a difference."""
        source, argument, text = self.code.source, parameter.argument, self.code.source.of(parameter.argument)
        uses = [n for n in source.walk(self.result, "identifier") if source.of(n) == parameter.name]
        once = len(uses) == 1 and all(is_pure(source, p.argument) for p in self.parameters if p is not parameter)
        if once:
            around = upward(uses[0], self.body)
            once = not any(
                n.type == "conditional_expression" or source.of(n, "operator") in {"&&", "||"} for n in around
            )
        if self._mutated(parameter) or parameter.array is not None or not (once or is_pure(source, argument)):
            raise Unsupported("an argument that is not a value alone")
        if self._is_called(parameter) and not parameter.reference:
            raise Unsupported("an object that is copied")
        kind = self._with(source.of(parameter.node, "type"), self.types)
        bare = argument.type in {
            "identifier",
            "number_literal",
            "subscript_expression",
            "call_expression",
            "field_expression",
        }
        constant = any(source.of(c) == "const" for c in parameter.node.children if c.type == "type_qualifier")
        if parameter.declarator.type == "pointer_declarator" or self._kind_of(argument) == kind or kind == "auto":
            return text if bare else f"({text})"
        if parameter.reference and not constant:
            raise Unsupported("a reference to something of another type")
        return f"static_cast<{kind}>({text})"

    def _kind_of(self, argument: Node) -> str:
        """The type of a plain variable or of an element behind a pointer, "" for what would have to be worked out."""
        if argument.type == "subscript_expression":
            return self._type_of(field_of(argument, "argument"), pointer=True)
        return self._type_of(argument, pointer=False)

    def _read_before_stores(self, parameter: _Parameter) -> bool:
        """Whether an element that a reference is bound to could as well be copied when the function begins."""
        source = self.code.source
        if not is_pure(source, parameter.argument) or source.has(self.body, *LOOPS, "pointer_expression"):
            return False
        stores = [n for n in source.walk(self.body, "assignment_expression", "update_expression")
                  if (field_of(n, "left") or field_of(n, "argument")).type != "identifier" or self.lambda_ is not None]  # fmt: skip
        calls = source.walk(self.body, "call_expression")
        effects = [
            e for c in calls for e in self.code.pointer_effects(source.called(c), len(children_of(c, "arguments")))
        ]
        uses = [n for n in source.walk(self.body, "identifier") if source.of(n) == parameter.name]
        known = not any(effect for effect in effects)
        return known and (not stores or all(n.end_byte <= stores[0].end_byte for n in uses))

    def _is_called(self, parameter: _Parameter) -> bool:
        """Whether the parameter, or a method of its, is called."""
        for call in self.code.source.walk(self.body, "call_expression"):
            function = field_of(call, "function")
            holder = field_of(function, "argument") if function.type == "field_expression" else function
            if self.code.source.of(holder) == parameter.name:
                return True
        return False

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
        if self.alone:
            edits.replace(self.call, self._value())
            return
        indent, unit = source.indent(self.statement), source.unit(self.statement)
        braces = self.statement.parent is not None and self.statement.parent.type != "compound_statement"
        inner = indent + unit if braces and source.data[
            source.line_start(self.statement) : self.statement.start_byte].strip() else indent  # fmt: skip
        lines = [f"{text};" for text in self._set_parameters()] + self._statements()
        if self.result is not None:
            lines.append(source.render(self.statement, [(self.call, self._value())]))
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
            if parameter.argument.type == "lambda_expression":
                yield f"const auto {self.renamed.get(parameter.name, parameter.name)} = {source.of(parameter.argument)}"
                continue
            qualifiers = [source.of(c) for c in parameter.node.children if c.type == "type_qualifier"]
            kind = self._with(source.of(parameter.node, "type"), self.types)
            declarator, name = parameter.declarator, self.renamed.get(parameter.name, parameter.name)
            if declarator.type in {"identifier", "reference_declarator"}:
                constant = not self._mutated(parameter) and ("const" in qualifiers or not self._is_called(parameter))
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
        return {**self.types, **self.members, **self.renamed, **spelt}

    def _value(self) -> str:
        """What stands in the place of a call that has a result."""
        source = self.code.source
        kind, value = (
            self._with(source.of(self.function, "type"), self.types),
            source.render(self.result, self._replacements()),
        )
        declared = self.call.parent.parent if self.call.parent.type == "init_declarator" else None
        if source.of(declared, "type") == kind or value.startswith(f"static_cast<{kind}>("):
            return value
        return f"({value})" if kind in {"auto", ""} else f"static_cast<{kind}>({value})"

    def _replacements(self) -> list[tuple[Node, str]]:
        names = self._names()
        found = []
        for node in self.code.source.walk(self.body, "identifier", "type_identifier"):
            word, scope = self.code.source.of(node), node.parent
            scoped = scope is not None and scope.type == "qualified_identifier" and same(field_of(scope, "name"), node)
            if word in names and names[word] != word and not scoped:
                found.append((node, names[word]))
        return found

    def _statements(self) -> list[str]:
        """The function's lines less its return, moved left by their own indentation."""
        source = self.code.source
        inner = statements(self.body)
        end = [(inner[-1], "")] if self.result is not None else []
        lines = source.render(self.body, [*self._replacements(), *end])[1:-1].split("\n")
        own = source.indent(inner[0]) if inner else ""
        lines = [lines[0].strip(), *(line.removeprefix(own).rstrip() for line in lines[1:])]
        while lines and not lines[0]:
            lines.pop(0)
        while lines and not lines[-1]:
            lines.pop()
        return ["\n".join(lines)] if lines else []
