"""What threads compute, each by itself: statements run, in step, on a syntax tree.

Whoever asks gives every thread numbers of its own, and looks at what the statements leave behind. How a source gets there, in which order and by
which helpers, is its own affair. What is left unsaid is Unknown, and may be computed as long as no branch depends on it. Whatever else there is
in the statements, memory and other threads among it, raises Unsupported. A struct's value is a mapping of its fields, never changed in place.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

from tree_sitter import Node

from nodes.rewrites.analysis.block_arithmetic import UNKNOWN, Arithmetic, Frame
from nodes.rewrites.analysis.device_code import Code
from nodes.rewrites.analysis.kernels import template_name
from nodes.rewrites.analysis.numbers import EXTREMES, FLT_MAX, FUNCTIONS, base_of, fields_of, power
from nodes.rewrites.syntax.source import Unsupported
from nodes.rewrites.syntax.tree import children_of, declared_name, field_of, is_integer, statements, template_of

WARP = 32
KNOWN = {"INFINITY": math.inf, "HUGE_VALF": math.inf, "CUDART_INF_F": math.inf, "FLT_MAX": FLT_MAX, "warpSize": 32}
_IDLE = {"comment", "preproc_call", "static_assert_declaration", ";"}
_QUOTIENTS = {"__fdividef": "/", "__fdiv_rn": "/"}
_PLAIN = {"identifier", "reference_declarator"}
_STATEMENTS = {
    "declaration": "_declare", "if_statement": "_branch", "for_statement": "_loop", "return_statement": "_return",
}  # fmt: skip
_HANDLERS = {
    "unary_expression": "_unary", "binary_expression": "_binary", "conditional_expression": "_choice",
    "assignment_expression": "_assign", "call_expression": "_call",
}  # fmt: skip


Seen = Callable[[Node], object]
"""What a name that the statements did not make themselves stands for, None where that is not known."""


class Block(Arithmetic):
    """A block of `width` threads, whole warps."""

    def __init__(self, code: Code, width: int, outer: Seen) -> None:
        self.code, self.source, self.width, self.outer = code, code.source, width, outer
        self.everyone = list(range(width))
        self.depth = 0

    def frame(self) -> Frame:
        return Frame(self.everyone, {}, [{}])

    def of_thread(self, value: object, thread: int) -> object:
        return value[thread] if isinstance(value, list) else value

    # Statements.

    def run(self, node: Node, frame: Frame, active: list[int]) -> None:
        active = [t for t in active if t not in frame.left] if frame.left else active
        if node.type in _IDLE or not active:
            return
        if node.type == "compound_statement":
            frame.scopes.append({})
            for statement in statements(node):
                self.run(statement, frame, active)
            frame.scopes.pop()
        elif node.type == "expression_statement":
            for child in node.named_children:
                if child.type != "comment":
                    self.value(child, frame, active)
        elif node.type in _STATEMENTS:
            getattr(self, _STATEMENTS[node.type])(node, frame, active)
        else:
            raise Unsupported(f"a {node.type} in a reduction")

    def _return(self, node: Node, frame: Frame, active: list[int]) -> None:
        if self.depth == 0:
            raise Unsupported("a return in the middle")
        given = node.named_children[0] if node.named_child_count else None
        fields = fields_of(self.code, frame.returns)
        value = self._initial(given, fields, frame, active) if given is not None else UNKNOWN
        frame.result = value if active == frame.active else self.merged(frame.result, value, active)
        frame.left.update(active)

    def merged(self, old: object, value: object, active: list[int]) -> list[object]:
        """What every thread has where some have a new value."""
        new = list(old) if isinstance(old, list) else [old] * self.width
        for thread in active:
            new[thread] = self.of_thread(value, thread)
        return new

    def _declare(self, node: Node, frame: Frame, active: list[int]) -> None:
        kind = self._type(self.source.of(node, "type"), frame)
        if self.source.says(node, "__shared__", "extern", "volatile", "static"):
            raise Unsupported("memory of unknown use")
        for declarator in node.children_by_field_name("declarator"):
            name = declared_name(declarator)
            if name is None:
                raise Unsupported("a declaration without a name")
            text = self.source.of(name)
            if (field_of(declarator, "declarator") or declarator).type != "identifier":
                raise Unsupported("a pointer, a reference, or an array of the thread's own")
            fields, given = fields_of(self.code, kind), field_of(declarator, "value")
            value: object = {} if fields else UNKNOWN
            if given is not None:
                value = self._initial(given, fields, frame, active)
            frame.held[text] = kind
            frame.scopes[-1][text] = UNKNOWN
            self._set(text, value, frame, active)

    def _initial(self, given: Node, fields: list[str], frame: Frame, active: list[int]) -> object:
        if given.type not in {"initializer_list", "argument_list"}:
            return self.value(given, frame, active)
        listed = children_of(given)
        if len(listed) > len(fields) or any(c.type == "initializer_pair" for c in listed):
            raise Unsupported("a struct of another form")
        values = [self.value(c, frame, active) for c in listed] + [0.0] * (len(fields) - len(listed))
        return [{f: self.of_thread(v, t) for f, v in zip(fields, values, strict=True)} for t in range(self.width)]

    def _branch(self, node: Node, frame: Frame, active: list[int]) -> None:
        condition = field_of(node, "condition", "value")
        if condition is None:
            raise Unsupported("a branch of another form")
        holds = self.value(condition, frame, active)
        yes = self.those(holds, active)
        no = sorted(set(active) - set(yes))
        for branch, threads in ((field_of(node, "consequence"), yes), (field_of(node, "alternative"), no)):
            if branch is not None and threads:
                inner = branch.named_children[-1] if branch.type == "else_clause" else branch
                self.run(inner, frame, threads)

    def _loop(self, node: Node, frame: Frame, active: list[int]) -> None:
        start, condition, update = (field_of(node, f) for f in ("initializer", "condition", "update"))
        if start is None or start.type != "declaration" or condition is None or update is None:
            raise Unsupported("a loop of another form")
        frame.scopes.append({})
        self._declare(start, frame, active)
        for _ in range(64):
            ahead = self.those(self.value(condition, frame, active), active)
            if not ahead:
                frame.scopes.pop()
                return
            if len(ahead) < len(active):
                raise Unsupported("a loop that some threads leave")
            self.run(field_of(node, "body"), frame, active)
            self.value(update, frame, active)
        raise Unsupported("a long loop")

    def those(self, holds: object, active: list[int]) -> list[int]:
        """The threads for which a condition holds."""
        return [t for t in active if self._truth(self.of_thread(holds, t))]

    # Variables.

    def _type(self, text: str, frame: Frame) -> str:
        text = re.sub(r"\b(const|volatile|static)\b", "", text).strip(" &")
        return frame.types.get(text, text)

    def _set(self, name: str, value: object, frame: Frame, active: list[int]) -> None:
        scope = next((s for s in reversed(frame.scopes) if name in s), None)
        if scope is None:
            raise Unsupported(f"{name} is assigned to")
        value = self._converted(frame.held.get(name, ""), value, active)
        scope[name] = value if active == self.everyone else self.merged(scope[name], value, active)

    def name(self, node: Node, frame: Frame, active: list[int]) -> object:
        text = self.source.of(node)
        scope = next((s for s in reversed(frame.scopes) if text in s), None)
        if scope is not None:
            return scope[text]
        if text in KNOWN:
            return KNOWN[text]
        found = self.outer(node)
        if found is None:
            raise Unsupported(f"{text} is not known")
        return found

    # Expressions.

    def value(self, node: Node | None, frame: Frame, active: list[int]) -> object:
        """A number that all threads share, or a list of what each has."""
        text, kind = self.source.of, node.type
        if kind in _HANDLERS:
            return getattr(self, _HANDLERS[kind])(node, frame, active)
        if kind == "parenthesized_expression" and node.named_child_count == 1:
            return self.value(node.named_children[0], frame, active)
        if kind == "number_literal":
            return self._literal(node)
        if kind in {"true", "false"}:
            return int(kind == "true")
        if kind == "identifier":
            return self.name(node, frame, active)
        if kind == "field_expression" and text(node, "argument") in {"threadIdx", "blockDim"}:
            along_x = {"threadIdx.x": self.everyone, "blockDim.x": self.width}
            return along_x.get(text(node), int(text(node, "argument") == "blockDim"))
        if kind == "field_expression":
            held = self.value(field_of(node, "argument"), frame, active)
            if node.children[1].type == "->":
                raise Unsupported("a struct behind a pointer")
            field = text(node, "field")
            return self._mapped(lambda v: v.get(field, UNKNOWN) if isinstance(v, dict) else UNKNOWN, held, active)
        if kind == "compound_literal_expression":
            fields = fields_of(self.code, self._type(text(node, "type"), frame))
            return self._initial(field_of(node, "value"), fields, frame, active)
        if kind == "update_expression":
            target, sign = field_of(node, "argument"), text(node, "operator")
            old = self.value(target, frame, active)
            self._store(target, self._each(sign[0], old, 1, active), frame, active)
            return old
        if kind == "cast_expression":
            inner = self.value(field_of(node, "value"), frame, active)
            return self._cast(text(node, "type"), inner, frame, active)
        raise Unsupported(f"a {kind} in a reduction")

    def _assign(self, node: Node, frame: Frame, active: list[int]) -> object:
        target, given, sign = field_of(node, "left"), field_of(node, "right"), self.source.of(node, "operator")
        fields = fields_of(self.code, frame.held.get(self.source.of(target), ""))
        value = self._initial(given, fields, frame, active)
        if sign != "=":
            value = self._each(sign[:-1], self.value(target, frame, active), value, active)
        self._store(target, value, frame, active)
        return value

    def _store(self, target: Node, value: object, frame: Frame, active: list[int]) -> None:
        """Raises Unsupported for what is no variable."""
        if target.type == "field_expression" and target.children[1].type != "->":
            field, holder = self.source.of(target, "field"), field_of(target, "argument")
            held = self.value(holder, frame, active)

            def changed(thread: int) -> object:
                old = self.of_thread(held, thread)
                return {**(old if isinstance(old, dict) else {}), field: self.of_thread(value, thread)}

            self._store(holder, self._by_thread(changed, active), frame, active)
        elif target.type == "identifier":
            self._set(self.source.of(target), value, frame, active)
        else:
            raise Unsupported("an assignment of another form")

    # Calls.

    def _cast(self, to: str, value: object, frame: Frame, active: list[int]) -> object:
        return self._converted(self._type(to, frame), value, active)

    def _converted(self, kind: str, value: object, active: list[int]) -> object:
        whole = is_integer(kind)
        return self._mapped(
            lambda v: int(v) if whole and isinstance(v, float) and math.isfinite(v) else v, value, active
        )

    def _call(self, node: Node, frame: Frame, active: list[int]) -> object:
        function, arguments = field_of(node, "function"), children_of(node, "arguments")
        if function.type == "parenthesized_expression" and len(arguments) == 1:
            return self._cast(self.source.of(function)[1:-1], self.value(arguments[0], frame, active), frame, active)
        if function.type == "field_expression":
            raise Unsupported("a call of a method")
        spelled = self.source.of(function).split("<")[0].removeprefix("std::")
        while function.type == "qualified_identifier" and "numeric_limits" not in self.source.of(function):
            function = field_of(function, "name")
        text = self.source.of(function)
        name, _, given = text.partition("<")
        if "numeric_limits" in text:
            return self._limit(text)
        if name == "__syncwarp":
            return 0
        values = [self.value(a, frame, active) for a in arguments]
        plain = function.type == "primitive_type" or name in {*frame.types, "float", "int", "double", "unsigned"}
        if len(values) == 1 and (plain or name == "static_cast"):
            return self._cast(name if plain else given.removesuffix(">"), values[0], frame, active)
        if len(values) == 1 and (base := base_of(self.code, spelled)):
            return self._mapped(
                lambda v: power(v * base) if isinstance(v, (int, float)) else UNKNOWN, values[0], active
            )
        if name in self.code.macros:
            raise Unsupported(f"a call of {name}")
        if name not in self.code.overloads and (found := self._library(name, values, active)) is not None:
            return found
        return self.call(name, function, values, frame, active, arguments)

    def _library(self, name: str, values: list[object], active: list[int]) -> object | None:
        """What one of CUDA's functions makes of numbers; None for what is none of them."""
        if len(values) == 2 and (sign := EXTREMES.get(name) or _QUOTIENTS.get(name)):
            return self._each(sign, *values, active)
        if name not in FUNCTIONS:
            return None

        def of(thread: int) -> object:
            mine = [self.of_thread(v, thread) for v in values]
            return FUNCTIONS[name](*mine) if all(isinstance(v, (int, float)) for v in mine) else UNKNOWN

        return self._by_thread(of, active)

    def _limit(self, text: str) -> float:
        """`std::numeric_limits<float>::lowest()` and its like."""
        number = {"lowest": -FLT_MAX, "infinity": math.inf, "max": FLT_MAX}.get(text.rpartition("::")[2])
        if number is None or "float" not in text:
            raise Unsupported(f"the number {text}")
        return number

    def call(
        self,
        name: str,
        function: Node,
        values: list[object],
        frame: Frame,
        active: list[int],
        lent: Sequence[Node] = (),
    ) -> object:
        """What a function of the file returns. `lent`: the arguments, for what it leaves in its references."""
        known = self.code.overloads.get(name, [])
        if len(known) != 1 or self.depth > 8:
            raise Unsupported(f"a call of {name}")
        (node,) = known
        body, parameters = field_of(node, "body"), children_of(node, "declarator", "parameters")
        if body is None or node.has_error or any(c.type == "__global__" for c in node.children):
            raise Unsupported(f"a call of {name}")
        inner = Frame(active, {}, [{}])
        self._templates(node, function, inner, frame, active)
        if len(parameters) != len(values):
            raise Unsupported("not as many arguments as parameters")
        changed: dict[int, str] = {}
        for at, parameter in enumerate(parameters):
            text = self._take(parameter, values[at], inner)
            if self.code.binds(parameter, field_of(parameter, "declarator")):
                changed[at] = text
        if changed.keys() - set(range(len(lent))):
            raise Unsupported("a reference to nothing in sight")
        inner.returns = self._type(self.source.of(node, "type"), inner)
        self.depth += 1
        for statement in statements(body):
            self.run(statement, inner, active)
        self.depth -= 1
        for at, text in changed.items():
            self._store(lent[at], inner.scopes[0][text], frame, active)
        if not inner.left and inner.returns != "void":
            raise Unsupported(f"{name} has no result")
        return self._converted(inner.returns, inner.result, active)

    def _take(self, parameter: Node, value: object, inner: Frame) -> str:
        """Gives a function's parameter its value. Returns its name."""
        mine, kind = field_of(parameter, "declarator"), self.source.of(parameter, "type")
        if mine is None or mine.type not in _PLAIN:
            raise Unsupported("a parameter of another form")
        text = self.source.of(declared_name(mine))
        inner.held[text] = self._type(kind, inner)
        inner.scopes[0][text] = self._converted(inner.held[text], value, inner.active)
        return text

    def _templates(self, node: Node, function: Node, inner: Frame, frame: Frame, active: list[int]) -> None:
        """Types by what is given, or by themselves until an argument says; numbers by what is given or their default."""
        given = children_of(function, "arguments") if function.type == "template_function" else []
        for at, parameter in enumerate(children_of(template_of(node), "parameters")):
            if parameter.type in {"type_parameter_declaration", "template_template_parameter_declaration"}:
                name = template_name(self.source, parameter)
                inner.types[name] = self._type(self.source.of(given[at]), frame) if at < len(given) else name
                continue
            declarator = field_of(parameter, "declarator")
            value = given[at] if at < len(given) else field_of(parameter, "default_value")
            if declarator is None or value is None:
                raise Unsupported("a template of another form")
            if value.type == "type_descriptor":  # a name could be either
                value = next(self.source.walk(value, "type_identifier", "identifier"))
            found = (self.name if value.type == "type_identifier" else self.value)(value, frame, active)
            if not isinstance(found, int):
                raise Unsupported("a template of another form")
            inner.scopes[0][self.source.of(declarator)] = found
