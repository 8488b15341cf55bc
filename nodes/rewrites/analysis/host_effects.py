"""What one iteration of a C++ loop reads, writes and carries, by interpreting its body once with symbolic values.

`effects(source, loop)` follows pointer arithmetic (`const T* row = input + token * hidden`), looks into functions of the same
file (every overload of that name), and raises Unsupported at the first thing that it does not understand.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tree_sitter import Node

from nodes.rewrites.analysis.host_loops import (
    PRIVATE,
    SIZE,
    Access,
    Carried,
    Effects,
    Iteration,
    Loop,
    Pointer,
    Value,
    canonical,
    last_step,
    moved,
    opaque,
    quotient,
)
from nodes.rewrites.analysis.host_source import (
    INTEGERS,
    PURE,
    Function,
    aliases,
    arguments,
    assignments,
    constants,
    declared_names,
    enclosing_function,
    fields,
    function_of,
    functions,
    identifiers,
    may_be_one,
    operator,
    vector_of,
)
from nodes.rewrites.syntax.algebra import Polynomial, Symbol
from nodes.rewrites.syntax.source import Source, Unsupported

_LVALUES = frozenset({"identifier", "subscript_expression", "pointer_expression", "field_expression"})
_CASTS = frozenset({
    "static_cast", "reinterpret_cast", "const_cast", "int64_t", "int32_t", "int16_t", "int8_t", "uint64_t", "uint32_t", "uint16_t", "uint8_t", "int",
    "size_t", "long", "float", "double", "ptrdiff_t", "_Float16",
})  # fmt: skip
_WITHOUT_EFFECT = frozenset({
    "comment", "string_literal", "char_literal", "true", "false", "sizeof_expression", "type_descriptor", "qualified_identifier",
    "template_function", "static_assert_declaration", "type_definition", "alias_declaration",
})  # fmt: skip
_ALL_PARTS = frozenset({
    "initializer_list", "argument_list", "condition_clause", "comma_expression", "expression_statement",
})  # fmt: skip


@dataclass
class _Variable:
    symbol: Symbol
    value: Value
    private: bool
    """Declared inside the analysed loop, so every iteration has its own."""
    array: bool = False
    reference: bool = False
    """Stands for the element that `value` points to."""
    size: Polynomial | None = None
    """Of a vector, where that is known."""


def effects(source: Source, loop: Loop) -> Effects:
    """What one iteration of `loop` does. Raises Unsupported naming the first thing that is not understood."""
    definition = enclosing_function(loop.node)
    function = function_of(source, definition) if definition is not None else None
    if function is None:
        raise Unsupported("the loop is in no function")
    interpreter = _Interpreter(source, loop)
    for name, _, pointer in function.parameters:
        symbol = Symbol(name, SIZE)
        value = Pointer(symbol, Polynomial()) if pointer else Polynomial.symbol(symbol)
        interpreter.scopes[-1][name] = _Variable(symbol, value, False)
    interpreter.run_to(function.body, loop)
    found = interpreter.effects
    touched = {access.root.text for access in found.accesses}
    for written in {root.text for root in found.written}:
        for other in touched - {written}:
            if may_be_one(source, function, written, other):
                raise Unsupported(f"a caller passes one array as {written} and as {other}")
    return found


def _refused(node: Node, why: str) -> Unsupported:
    return Unsupported(f"line {node.start_point[0] + 1}: {why}")


class _Statements:
    """Variables and statements. What expressions are is in _Interpreter."""

    def __init__(self, source: Source, loop: Loop) -> None:
        self.source = source
        self.functions = functions(source)
        self.scopes: list[dict[str, _Variable]] = [{}]
        self.inner: list[Iteration] = []
        self.depth = 0
        self.inside = False
        self.calling: Node | None = None
        self.arguments: dict[str, Node] = {}
        """The arguments of the outermost call, by parameter."""
        self.returned: list[Value] = []
        self.branches = 0
        """How many branches are around what is interpreted now; a `continue` counts as one to the end."""
        self.effects = Effects(loop, Iteration(Symbol(loop.variable), None, None))

    def run_to(self, node: Node, loop: Loop) -> None:
        """Interprets what stands before `loop` in the enclosing blocks, then the loop itself."""
        for child in node.named_children:
            if child == loop.node:
                self.run(loop)
                return
            if child.start_byte <= loop.node.start_byte and loop.node.end_byte <= child.end_byte:
                outer = canonical(self.source, child) if child.type == "for_statement" else None
                self.forget(child if outer is None else outer.body)
                if outer is not None:
                    symbol = Symbol(outer.variable, child.start_byte)
                    self.scopes.append({outer.variable: _Variable(symbol, Polynomial.symbol(symbol), False)})
                if outer is not None and outer.body == loop.node:
                    self.run(loop)
                else:
                    self.run_to(child if outer is None else outer.body, loop)
                return
            # A statement that is not understood makes what it may assign unknown, and nothing else.
            try:
                if child.type == "declaration":
                    self._declaration(child)
                else:
                    self.forget(child)
            except Unsupported:
                for declarator in child.children_by_field_name("declarator"):
                    inner = declarator.child_by_field_name("declarator") or declarator
                    self.declare(self.source.of(inner), inner.start_byte, None)

    # variables

    def declare(self, name: str, where: int, value: Value, *, array: bool = False) -> _Variable:
        # A variable of a callee is private whenever the callee runs inside the loop.
        self.scopes[-1][name] = _Variable(Symbol(name, where), value, self.inside, array)
        return self.scopes[-1][name]

    def lookup(self, name: str) -> _Variable | None:
        return next((scope[name] for scope in reversed(self.scopes) if name in scope), None)

    def forget(self, node: Node) -> None:
        """Variables that `node` may assign have no known value around it."""
        for name, where in assignments(self.source, node):
            variable = self.lookup(name)
            if variable is not None and not variable.array:
                known = isinstance(variable.value, Polynomial)
                symbol = Symbol(f"{name}@{where.start_byte}", where.start_byte)
                variable.value = Polynomial.symbol(symbol) if known else None

    # statements

    def statement(self, node: Node) -> None:
        if node.type in _WITHOUT_EFFECT:
            return
        if node.type in _ALL_PARTS:
            self.parts(node)
            return
        handler = getattr(self, f"_{node.type}", None)
        if handler is None:
            raise _refused(node, f"a {node.type.replace('_', ' ')} is not understood")
        handler(node)

    def _preproc_call(self, node: Node) -> None:
        if "#pragma" not in self.source.of(node):
            raise _refused(node, "a preprocessor line inside a loop")

    def _compound_statement(self, node: Node) -> None:
        self.scopes.append({})
        for child in node.named_children:
            self.statement(child)
        self.scopes.pop()

    def _declaration(self, node: Node) -> None:
        source, text = self.source, self.source.of(node)
        # What is set when it is first met stays at that; only where that is the same for every call is it a constant.
        fixed = text.startswith(("static const ", "static constexpr ")) and not any(sign in text for sign in "([*&")
        fixed = fixed and identifiers(source, node) <= declared_names(source, node) | set(constants(source))
        if text.startswith(("static ", "thread_local ")) and not fixed:
            raise _refused(node, "a static variable")
        kind = source.of(node, "type")
        kind = aliases(source).get(kind, kind).replace("std::", "")
        for declarator in node.children_by_field_name("declarator"):
            self._declarator(node, kind, declarator)

    def _declarator(self, node: Node, kind: str, declarator: Node) -> None:
        source, value, size = self.source, None, None
        vector = vector_of(kind) != ""
        if declarator.type == "init_declarator":
            declarator, initial = fields(declarator, "declarator", "value")
            value = self.expression(initial)
            for each in (initial, *initial.named_children) if vector else ():
                copied = self.expression(each)  # another array's elements, which ones is not said
                if isinstance(copied, Pointer):
                    self.record(replace(copied, offset=None), each, writes=False)
        array = declarator.type == "array_declarator" or vector
        if array and declarator.type == "function_declarator":  # `std::vector<float> v(n);` reads like one
            declarator, listed = fields(declarator, "declarator", "parameters")
            known = self.lookup(source.of(listed)[1:-1].strip())
            size = known.value if known is not None and isinstance(known.value, Polynomial) else None
        pointer = declarator.type == "pointer_declarator"
        while declarator.type in {"array_declarator", "pointer_declarator"}:
            declarator = declarator.child_by_field_name("declarator")
        if declarator.type != "identifier":
            raise _refused(node, f"a {declarator.type.replace('_', ' ')}")
        integer = set(kind.split()) <= INTEGERS and not pointer and not array
        if not pointer and not array and not integer and not isinstance(value, Pointer):
            value = None
        if integer and value is None:  # not known, but fixed once it is set: an index read from memory
            varies = {self.effects.iteration.symbol, *(i.symbol for i in self.inner)} if self.inside else set()
            value = Polynomial.symbol(Symbol(f"{source.of(declarator)}@{node.start_byte}", -1, frozenset(varies)))
        self.declare(source.of(declarator), declarator.start_byte, value, array=array).size = size

    def _if_statement(self, node: Node) -> None:
        condition, *branches = fields(node, "condition", "consequence", "alternative")
        self.expression(condition)
        for child in branches:
            if child is not None:
                self.branches += 1
                self.statement(child)
                self.branches -= 1
                self.forget(child)

    def _else_clause(self, node: Node) -> None:
        for child in node.named_children:
            self.statement(child)

    def _continue_statement(self, node: Node) -> None:
        self.branches += 1

    def _return_statement(self, node: Node) -> None:
        if self.depth == 0:
            raise _refused(node, "leaves the loop")
        values = [self.expression(child) for child in node.named_children]
        self.returned.append(values[0] if values else None)
        self.branches += self.branches > 0  # what is left of the function is run by some calls only

    def _for_statement(self, node: Node) -> None:
        loop = canonical(self.source, node)
        if loop is None:
            raise _refused(node, "not a loop that counts upwards")
        if self.inside and self.depth == 0:
            self.effects.inner_loops.append(loop)
        self.run(loop)

    def run(self, loop: Loop) -> None:
        """One symbolic pass through the loop's body."""
        low, high = (
            value if isinstance(value, Polynomial) else None for value in map(self.expression, (loop.start, loop.bound))
        )
        step = self.expression(loop.step) if loop.step is not None else Polynomial.constant(1)
        if high is not None and not loop.inclusive:
            high = high - Polynomial.constant(last_step(low, high, step))
        known = step.value if isinstance(step, Polynomial) else None
        iteration = Iteration(Symbol(loop.variable, loop.node.start_byte), low, high, max(1, known or 1))
        self.forget(loop.body)
        analysed = loop.node == self.effects.loop.node and self.depth == 0
        if self.inside and self.depth:
            given = self.depth == 1 and loop.bound.type == "identifier"
            self.effects.called_loops.append(self.arguments.get(self.source.of(loop.bound)) if given else None)
        if analysed:
            self.inside, self.effects.iteration = True, iteration
        elif self.inside:
            self.inner.append(iteration)
        self.scopes.append({loop.variable: _Variable(iteration.symbol, Polynomial.symbol(iteration.symbol), True)})
        self.statement(loop.body)
        self.scopes.pop()
        if analysed:
            self.inside = False
        elif self.inside:
            self.inner.pop()
        self.forget(loop.body)


class _Interpreter(_Statements):
    def expression(self, node: Node | None) -> Value:
        if node is None or node.type in _WITHOUT_EFFECT:
            return None
        if node.type in _ALL_PARTS:
            self.parts(node)
            return None
        handler = getattr(self, f"_{node.type}", None)
        if handler is None or not node.type.endswith(
            ("expression", "literal", "identifier", "subscript_argument_list")
        ):
            raise _refused(node, f"a {node.type.replace('_', ' ')} is not understood")
        return handler(node)

    def parts(self, node: Node) -> None:
        for child in node.named_children:
            self.expression(child)

    def _number_literal(self, node: Node) -> Polynomial | None:
        text = self.source.of(node).rstrip("uUlL").replace("'", "")
        try:
            return Polynomial.constant(int(text, 0))
        except ValueError:
            return None

    def _identifier(self, node: Node) -> Value:
        name = self.source.of(node)
        variable = self.lookup(name)
        if variable is None:  # a global, a macro or an enumerator
            number = constants(self.source).get(name)
            return Polynomial.symbol(Symbol(name)) if number is None else Polynomial.constant(number)
        if variable.reference:
            self.record(variable.value, node, writes=False)
            return None
        if variable.array:
            return Pointer(PRIVATE, None) if variable.private else Pointer(variable.symbol, Polynomial())
        return variable.value

    def _subscript_argument_list(self, node: Node) -> Value:
        if len(node.named_children) != 1:
            raise _refused(node, "a subscript of several")
        return self.expression(node.named_children[0])

    def _parenthesized_expression(self, node: Node) -> Value:
        return self.expression(next(child for child in node.named_children if child.type != "comment"))

    def _cast_expression(self, node: Node) -> Value:
        kind, value = fields(node, "type", "value")
        return self.cast(self.source.of(kind), self.expression(value))

    def cast(self, kind: str, value: Value) -> Value:
        if isinstance(value, Pointer):
            # The start of an array is its start in any unit; anything behind it would have to be counted anew.
            at_start = value.offset is not None and value.offset.value == 0 and kind.count("*") == 1
            unit = " ".join(word for word in kind.replace("*", " ").split() if word != "const")
            unit = aliases(self.source).get(unit, unit)
            return replace(value, offset=value.offset if at_start else None, unit=unit)
        return value if set(kind.replace("std::", "").split()) <= INTEGERS else None

    def _unary_expression(self, node: Node) -> Polynomial | None:
        value, sign = self.expression(node.child_by_field_name("argument")), operator(self.source, node)
        if isinstance(value, Polynomial) and sign in "+-":
            return -value if sign == "-" else value
        return None

    def _conditional_expression(self, node: Node) -> None:
        self.branches += 1
        values = [self.expression(child) for child in node.named_children]
        self.branches -= 1
        if any(isinstance(value, Pointer) for value in values[1:]):
            raise _refused(node, "a choice between pointers")

    def _binary_expression(self, node: Node) -> Value:
        left, right = map(self.expression, fields(node, "left", "right"))
        sign = operator(self.source, node)
        if isinstance(left, Pointer) or isinstance(right, Pointer):
            return moved(left, right, sign)
        if not isinstance(left, Polynomial) or not isinstance(right, Polynomial):
            return None
        match sign:
            case "+":
                return left + right
            case "-":
                return left - right
            case "*":
                return left * right
            case "/" | "%":
                if (whole := quotient(left, right)) is not None:
                    return whole if sign == "/" else Polynomial()
                return opaque((left, right), sign)
        return None

    # places in memory

    def _subscript_expression(self, node: Node) -> None:
        self.touch(node, writes=False)

    def _field_expression(self, node: Node) -> None:
        argument = node.child_by_field_name("argument")
        if argument.type == "call_expression":
            self.expression(argument)
        elif argument.type != "identifier" or operator(self.source, node) != ".":
            self.touch(node, writes=False)

    def _pointer_expression(self, node: Node) -> Pointer | None:
        if operator(self.source, node) == "&":
            return self.address(node.child_by_field_name("argument"))
        self.touch(node, writes=False)
        return None

    def address(self, node: Node) -> Pointer:
        """Where an lvalue lives. A plain variable is an array of one."""
        argument = node.child_by_field_name("argument")
        match node.type:
            case "identifier":
                return self._address_of_name(node)
            case "parenthesized_expression":
                return self.address(node.named_children[0])
            case "subscript_expression":
                base, index = self.expression(argument), self.expression(node.child_by_field_name("indices"))
                if not isinstance(base, Pointer):
                    raise _refused(node, f"{self.source.of(node)} is not an array")
                known = base.offset is not None and isinstance(index, Polynomial)
                return replace(base, offset=base.offset + index if known else None)
            case "field_expression" if operator(self.source, node) == ".":
                return self.address(argument)
            case "pointer_expression" | "field_expression":
                base = self.expression(argument)
            case _:
                raise _refused(node, f"{self.source.of(node)} is not understood")
        if not isinstance(base, Pointer):
            raise _refused(node, f"{self.source.of(node)} is not a pointer")
        return base

    def _address_of_name(self, node: Node) -> Pointer:
        variable = self.lookup(self.source.of(node))
        if variable is None:
            raise _refused(node, f"{self.source.of(node)} is a global")
        if variable.reference:
            return variable.value
        if isinstance(variable.value, Pointer):
            raise _refused(node, "the address of a pointer")
        if not variable.array:
            variable.value = None  # whoever has the address may change it
        return Pointer(PRIVATE, None) if variable.private else Pointer(variable.symbol, Polynomial())

    def touch(self, node: Node, *, writes: bool) -> None:
        self.record(self.address(node), node, writes=writes)

    def record(self, pointer: Pointer, node: Node, *, writes: bool) -> None:
        if self.inside and pointer.root != PRIVATE:
            around, certain = tuple(self.inner), self.branches == 0
            access = Access(pointer.root, pointer.offset, writes, around, node, self.calling, certain, pointer.unit)
            self.effects.accesses.append(access)

    def _assignment_expression(self, node: Node) -> Value:
        left, right = fields(node, "left", "right")
        value, plain = self.expression(right), operator(self.source, node) == "="
        if left.type == "identifier":
            return self.assign(left, node, value if plain else None)
        if not plain:
            self.touch(left, writes=False)
        self.touch(left, writes=True)
        return value

    def assign(self, name: Node, node: Node, value: Value) -> Value:
        text = self.source.of(name)
        variable = self.lookup(text)
        if variable is None:
            raise _refused(node, f"writes {text}, a global")
        if variable.array:
            raise _refused(node, f"writes {text} as a whole")
        if variable.reference:
            self.record(variable.value, node, writes=True)
            return None
        if self.inside and not variable.private:
            self.effects.carried.append(Carried(text, node))
        if isinstance(variable.value, Pointer) and not isinstance(value, Pointer):
            value = replace(variable.value, offset=None)
        variable.value = value
        return value

    def _update_expression(self, node: Node) -> None:
        argument = node.child_by_field_name("argument")
        if argument.type == "identifier":
            self.assign(argument, node, None)
        else:
            self.touch(argument, writes=True)

    # calls

    def _call_expression(self, node: Node) -> Value:
        function, given = node.child_by_field_name("function"), arguments(node)
        if function.type == "field_expression":
            raise _refused(function, f"calls {self.source.of(function)}, whose effects are unknown")
        name = self.source.of(function).partition("<")[0].removeprefix("::").removeprefix("std::")
        own = [f for f in self.functions.get(name, ()) if len(f.parameters) == len(given)]
        values = [
            self._referred(argument)
            if any(f.parameters[place][0] in f.references for f in own) and argument.type in _LVALUES
            else self.expression(argument)
            for place, argument in enumerate(given)
        ]
        if function.type == "parenthesized_expression" and len(values) == 1:  # `(float)(x)` reads like a call
            return self.cast(self.source.of(function)[1:-1], values[0])
        if own:
            self._called(name)
            return self._call(own, values, node)
        if name in _CASTS:
            kind = self.source.of(function).partition("<")[2].rpartition(">")[0] or name
            return self.cast(kind, values[0]) if len(values) == 1 else None
        return self._library(name, values, node)

    def _library(self, name: str, values: list[Value], node: Node) -> Polynomial | None:
        if name in {"memcpy", "__builtin_memcpy", "memmove"} and len(values) == 3:
            for value, writes in ((values[0], True), (values[1], False)):
                if not isinstance(value, Pointer):
                    raise _refused(node, f"memcpy of {self.source.of(node)}")
                self.record(replace(value, offset=None), node, writes=writes)
            return None
        if name == "numeric_limits":
            return None
        self._called(name)
        if name.startswith("_mm"):
            self._intrinsic(name, values, node)
            return None
        if name not in PURE:
            raise _refused(node, f"calls {name}, whose effects are unknown")
        if any(isinstance(value, Pointer) for value in values):
            raise _refused(node, f"{name} takes a pointer")
        known = tuple(value for value in values if isinstance(value, Polynomial))
        if name in {"min", "max"} and len(known) == 2 == len(values):
            return opaque(known, name)
        return None

    def _intrinsic(self, name: str, values: list[Value], node: Node) -> None:
        """A vector instruction: those on memory touch up to as many elements of the pointer's type as their vector has."""
        pointers = [value for value in values if isinstance(value, Pointer)]
        words = name.strip("_").split("_")
        writes = bool({"store", "storeu", "stream", "maskstore"} & set(words))
        reads = bool({"load", "loadu", "lddqu", "maskload", "broadcast", "i32gather"} & set(words))
        if not pointers or name == "_mm_prefetch":
            return
        if len(pointers) != 1 or reads == writes:
            raise _refused(node, f"calls {name}, whose effects are unknown")
        (pointer,) = pointers
        widths = {"mm": 128, "mm256": 256, "mm512": 512}
        sizes = {"ps": 32, "pd": 64, "ss": 0, "sd": 0}  # of one element
        if pointer.offset is None or words[-1] not in sizes or words[0] not in widths or "i32gather" in words:
            self.record(replace(pointer, offset=None), node, writes=writes)
            return
        count = widths[words[0]] // sizes[words[-1]] if sizes[words[-1]] else 1
        lane = Iteration(Symbol("lane", node.start_byte), Polynomial(), Polynomial.constant(count - 1))
        self.inner.append(lane)
        self.record(replace(pointer, offset=pointer.offset + Polynomial.symbol(lane.symbol)), node, writes=writes)
        self.inner.pop()

    def _referred(self, node: Node) -> Pointer:
        """The address of what a reference is bound to; binding counts as a read, which is at worst one too many."""
        pointer = self.address(node)
        self.record(pointer, node, writes=False)
        return pointer

    def _called(self, name: str) -> None:
        if self.inside:
            self.effects.calls.add(name)

    def _call(self, own: list[Function], values: list[Value], node: Node) -> Value:
        if self.depth >= 8:
            raise _refused(node, "calls are nested too deeply, or recursive")
        saved, kept, results = self.scopes, self.returned, []
        outermost = self.depth == 0
        if outermost:
            self.calling = node
        for function in own:
            self.scopes, self.returned = [{}], []
            if outermost:
                names = [name for name, _, _ in function.parameters]
                self.arguments = dict(zip(names, arguments(node), strict=True))
            for (name, _, _), value in zip(function.parameters, values, strict=True):
                variable = self.declare(name, function.node.start_byte, value)
                variable.private = True
                variable.reference = name in function.references and isinstance(value, Pointer)
            self.depth += 1
            self.statement(function.body)
            self.depth -= 1
            results.extend(self.returned)
        self.scopes, self.returned = saved, kept
        if outermost:
            self.calling = None
        return results[0] if len(results) == 1 and len(own) == 1 else None
