"""What statements compute on floating-point numbers: they run on the syntax tree, every thread of a block on its own.

Beside what block_values.py knows of warps, shared memory and barriers there are structs, references, exponentials,
infinities and NaN. Whatever else there is raises Unsupported, or is UNKNOWN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from tree_sitter import Node

from nodes.rewrites.analysis.block_arithmetic import UNKNOWN, Frame, Unknown
from nodes.rewrites.analysis.block_values import Block, Memory
from nodes.rewrites.analysis.device_code import Code
from nodes.rewrites.analysis.regions import EXTREMES
from nodes.rewrites.syntax.source import Unsupported
from nodes.rewrites.syntax.tree import children_of, declared_name, field_of, statements

NEAR = 1e-9
LN2 = math.log(2.0)
FLT_MAX = 3.4028234663852886e38
BASES = {**dict.fromkeys(("expf", "__expf", "exp"), 1.0), **dict.fromkeys(("exp2f", "exp2"), LN2)}
"""Exponential functions, each with what its argument is multiplied by."""
_FUNCTIONS: dict[str, Callable[..., float]] = {
    "isinf": lambda v: int(math.isinf(v)), "isnan": lambda v: int(math.isnan(v)), "isfinite": lambda v: int(math.isfinite(v)),
    "fabsf": abs, "fmaf": lambda a, b, c: a * b + c, "__fmaf_rn": lambda a, b, c: a * b + c,
    "__fmul_rn": lambda a, b: a * b, "__fadd_rn": lambda a, b: a + b, "__fsub_rn": lambda a, b: a - b,
}  # fmt: skip
_COMPARISONS = {"<", ">", "<=", ">=", "==", "!="}
_RETURNED = "return"
"""What a function returns, among the types of its variables."""
Values = list[object]


def power(value: float) -> float:
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf


def close(a: object, b: object) -> bool:
    if not isinstance(a, (int, float)) or not isinstance(b, (int, float)):
        return False
    if math.isnan(a) or math.isnan(b):
        return math.isnan(a) and math.isnan(b)
    return a == b or abs(a - b) <= NEAR * (1.0 + abs(a) + abs(b))


class Numbers(Block):
    """Statements that run on floating-point numbers, one for each thread, also in structs and through references.

    A struct's value is a mapping of its fields, never changed in place.
    """

    def __init__(self, code: Code, width: int, outer: Callable[[Node], object]) -> None:
        super().__init__(code, width, "float", outer)
        self.exponentials: set[str] = set()
        """Those that were called."""
        self.compared: set[float] = set()
        """Numbers that something was compared with."""
        self.left: dict[int, set[int]] = {}
        """Threads that have returned, by the frame."""

    # Statements.

    def run(self, node: Node, frame: Frame, active: list[int]) -> None:
        gone = self.left.get(id(frame))
        active = [t for t in active if t not in gone] if gone else active
        if node.type != "return_statement" or not active:
            super().run(node, frame, active)
            return
        if self.depth == 0:
            raise Unsupported("a return in the middle")
        given = node.named_children[0] if node.named_child_count else None
        fields = fields_of(self.code, frame.held.get(_RETURNED, ""))
        value = self._initial(given, fields, frame, active) if given is not None else UNKNOWN
        frame.result = self._merged(frame.result, value, active)
        self.left.setdefault(id(frame), set()).update(active)
        frame.done = len(self.left[id(frame)]) == len(frame.active)

    def _merged(self, old: object, value: object, active: list[int]) -> Values:
        new = list(old) if isinstance(old, list) else [old] * self.width
        for thread in active:
            new[thread] = self.of_thread(value, thread)
        return new

    def _declare(self, node: Node, frame: Frame, active: list[int]) -> None:
        kind = self._type(self.source.of(node, "type"), frame)
        declarators = node.children_by_field_name("declarator")
        plain = all(
            (field_of(d, "declarator") if d.type == "init_declarator" else d).type == "identifier" for d in declarators
        )
        fields = fields_of(self.code, kind)
        if not plain or self.source.says(node, "__shared__", "static", "extern"):
            super()._declare(node, frame, active)
            return
        for declarator in declarators:
            value: object = {} if fields else UNKNOWN
            given = field_of(declarator, "value") if declarator.type == "init_declarator" else None
            if given is not None:
                value = self._initial(given, fields, frame, active)
            text = self.source.of(declared_name(declarator))
            frame.scopes[-1][text], frame.held[text] = UNKNOWN, kind
            self._set(text, value, frame, active)

    def _initial(self, given: Node, fields: list[str], frame: Frame, active: list[int]) -> object:
        if given.type not in {"initializer_list", "argument_list"}:
            return self.value(given, frame, active)
        listed = children_of(given)
        if not fields and len(listed) == 1:
            return self.value(listed[0], frame, active)
        if len(listed) > len(fields) or any(c.type == "initializer_pair" for c in listed):
            raise Unsupported("a struct of another form")
        values = [self.value(c, frame, active) for c in listed] + [0.0] * (len(fields) - len(listed))
        return [
            {f: self.of_thread(v, t) for f, v in zip(fields, values, strict=True)} for t in range(self.width)
        ]  # fmt: skip

    def _has_part(self, value: object, active: list[int]) -> bool:
        return False  # any value may have any type here

    # Expressions.

    def value(self, node: Node | None, frame: Frame, active: list[int]) -> object:
        if node.type == "field_expression" and self.source.of(node).split(".")[0] not in {"threadIdx", "blockDim"}:
            holder, field = field_of(node, "argument"), self.source.of(node, "field")
            if node.children[1].type == "->":
                raise Unsupported("a struct behind a pointer")
            held = self.value(holder, frame, active)
            return self._mapped(lambda v: v.get(field, UNKNOWN) if isinstance(v, dict) else UNKNOWN, held, active)
        if node.type == "compound_literal_expression":
            kind = self._type(self.source.of(node, "type"), frame)
            return self._initial(field_of(node, "value"), fields_of(self.code, kind), frame, active)
        return super().value(node, frame, active)

    def _unary(self, node: Node, frame: Frame, active: list[int]) -> object:
        sign = self.source.of(node.children[0])
        if sign not in "+-":
            return super()._unary(node, frame, active)
        inner = self.value(field_of(node, "argument"), frame, active)
        return self._mapped(
            lambda v: (-v if sign == "-" else v) if isinstance(v, (int, float)) else UNKNOWN, inner, active
        )

    def _binary(self, node: Node, frame: Frame, active: list[int]) -> object:
        found = super()._binary(node, frame, active)
        if self.source.of(node, "operator") in _COMPARISONS:
            for side in (field_of(node, "left"), field_of(node, "right")):
                named = side.type in {"number_literal", "unary_expression", "identifier"}
                value = self.value(side, frame, active) if named else None
                if isinstance(value, (int, float)):
                    self.compared.add(float(value))
        return found

    def _two(self, sign: str, a: object, b: object) -> object:
        if isinstance(a, Unknown) or isinstance(b, Unknown):
            return UNKNOWN
        if not isinstance(a, (int, float)) or not isinstance(b, (int, float)):
            raise Unsupported("arithmetic with something else")
        return self._of_numbers(sign, a, b)

    def _of_numbers(self, sign: str, a: int | float, b: int | float) -> int | float:
        if isinstance(a, int) and isinstance(b, int):
            return super()._of_numbers(sign, a, b)
        if sign in {"max", "min"}:  # fmaxf's: the one that is a number
            if math.isnan(a) or math.isnan(b):
                return b if math.isnan(a) else a
            return max(a, b) if sign == "max" else min(a, b)
        if sign == "*":
            return a * b
        if sign == "/":
            if b != 0:
                return a / b if not (math.isinf(a) and math.isinf(b)) else math.nan
            return math.nan if a == 0 or math.isnan(a) else math.copysign(math.inf, a) * math.copysign(1.0, b)
        return super()._of_numbers(sign, a, b)

    def _choice(self, node: Node, frame: Frame, active: list[int]) -> object:
        condition, yes, no = (field_of(node, f) for f in ("condition", "consequence", "alternative"))
        holds = self.value(condition, frame, active)
        if isinstance(holds, Unknown):
            return UNKNOWN
        new: Values = [UNKNOWN] * self.width
        taken = [t for t in active if self._truth(self.of_thread(holds, t))]
        for branch, threads in ((yes, taken), (no, sorted(set(active) - set(taken)))):
            value = self.value(branch, frame, threads) if threads else UNKNOWN
            for thread in threads:
                new[thread] = self.of_thread(value, thread)
        return new

    # Variables and memory.

    def _assign(self, node: Node, frame: Frame, active: list[int]) -> object:
        target, sign = field_of(node, "left"), self.source.of(node, "operator")
        given = field_of(node, "right")
        if given is not None and given.type == "initializer_list" and target is not None:
            name = frame.held.get(self.source.of(target), "")
            value = self._initial(given, fields_of(self.code, name), frame, active)
        else:
            value = self.value(given, frame, active)
        if sign != "=":
            value = self._each(sign[:-1], self.value(target, frame, active), value, active)
        self._store(target, value, frame, active)
        return value

    def _store(self, target: Node | None, value: object, frame: Frame, active: list[int]) -> None:
        """Raises Unsupported for what is neither a variable nor shared memory."""
        if target.type == "parenthesized_expression":
            self._store(target.named_children[0], value, frame, active)
        elif target.type == "field_expression" and target.children[1].type != "->":
            field, holder = (self.source.of(target, "field"), field_of(target, "argument"))
            held = self.value(holder, frame, active)
            changed: Values = [UNKNOWN] * self.width
            for thread in active:
                old = self.of_thread(held, thread)
                changed[thread] = {**(old if isinstance(old, dict) else {}), field: self.of_thread(value, thread)}
            self._store(holder, changed, frame, active)
        elif target.type == "identifier":
            here = self.name(target, frame, active)
            if isinstance(here, Memory):
                self._write(here, 0, value, active)
            else:
                self._set(self.source.of(target), value, frame, active)
        elif target.type == "subscript_expression":
            memory, index = self._place(target, frame, active)
            self._write(memory, index, value, active)
        else:
            raise Unsupported("an assignment of another form")

    def _write(self, memory: Memory, index: object, value: object, active: list[int]) -> None:
        for thread in active:
            place = self._within(memory, self.of_thread(index, thread))
            memory.held[place] = (self.of_thread(value, thread), thread, self.barriers)

    # Calls.

    def _call(self, node: Node, frame: Frame, active: list[int]) -> object:
        function, listed = field_of(node, "function"), field_of(node, "arguments")
        name = self.source.of(function).split("<")[0].removeprefix("std::")
        arguments = children_of(listed)
        made = field_of(function, "argument") if function.type == "field_expression" else None
        if made is not None and made.type == "call_expression" and self.source.of(function, "field") == "Reduce":
            return self._cub(self.value(arguments[0], frame, active), arguments[-1], frame, active)
        known = self.code.overloads.get(name.split("::")[-1], [])
        base = base_of(self.code, name)
        if base and len(arguments) == 1:
            self.exponentials.add(name)
            values = self.value(arguments[0], frame, active)
            return self._mapped(lambda v: power(v * base) if isinstance(v, (int, float)) else UNKNOWN, values, active)
        if len(known) == 1 and not any(c.type == "__global__" for c in known[0].children):
            return self._enter(known[0], function, arguments, frame, active)
        if name in self.code.macros or known:
            raise Unsupported(f"a call of {name}")
        if name in _FUNCTIONS:
            given = [self.value(a, frame, active) for a in arguments]
            new: Values = [UNKNOWN] * self.width
            for thread in active:
                mine = [self.of_thread(v, thread) for v in given]
                if all(isinstance(v, (int, float)) for v in mine):
                    new[thread] = _FUNCTIONS[name](*mine)
            return new
        if name in {"__fdividef", "__fdiv_rn"} and len(arguments) == 2:
            return self._each("/", *(self.value(a, frame, active) for a in arguments), active)
        if name in EXTREMES and len(arguments) == 2:
            return self._each(EXTREMES[name], *(self.value(a, frame, active) for a in arguments), active)
        return super()._call(node, frame, active)

    def _cub(self, value: object, operation: Node, frame: Frame, active: list[int]) -> object:
        """`BlockReduce(temporary).Reduce(value, operation)`: the first thread gets what all come to."""
        known = self.code.overloads.get(self.source.of(operation), [])
        if operation.type != "identifier" or len(known) != 1 or active != self.everyone:
            raise Unsupported("a reduction by something else")
        distance, now = 1, self._merged(UNKNOWN, value, active)
        while distance < self.width:
            other = [now[t + distance] if t + distance < self.width else UNKNOWN for t in active]
            first = [t for t in active if t + distance < self.width and t % (2 * distance) == 0]
            now = self._merged(now, self._run_function(known[0], operation, [now, other], frame, first)[0], first)
            distance *= 2
        self.barriers += 1
        return [now[0], *[UNKNOWN] * (self.width - 1)]

    def _enter(self, node: Node, function: Node, arguments: list[Node], frame: Frame, active: list[int]) -> object:
        result, changed = self._run_function(
            node, function, [self.value(a, frame, active) for a in arguments], frame, active
        )
        for at, value in changed.items():
            self._store(arguments[at], value, frame, active)
        return result

    def _run_function(
        self, node: Node, function: Node, values: list[object], frame: Frame, active: list[int]
    ) -> tuple[object, dict[int, object]]:
        """What a function returns, and what it leaves in its references."""
        declarator, body = field_of(node, "declarator"), field_of(node, "body")
        listed = field_of(declarator, "parameters")
        if body is None or listed is None or node.has_error or self.depth > 8:
            raise Unsupported("a function of another form")
        inner = Frame(active, {}, [{}])
        self._templates(node, function, inner, frame, active)
        parameters = children_of(listed)
        if len(parameters) != len(values):
            raise Unsupported("arguments that are left out")
        lent: dict[int, str] = {}
        for at, (parameter, value) in enumerate(zip(parameters, values, strict=True)):
            mine = field_of(parameter, "declarator")
            name = declared_name(mine)
            if (
                name is None
                or mine is None
                or mine.type not in {"identifier", "reference_declarator", "pointer_declarator"}
            ):
                raise Unsupported("a parameter of another form")
            if isinstance(value, Memory) != (mine.type == "pointer_declarator"):
                raise Unsupported("a parameter of another form")
            text = self.source.of(name)
            if self.code.binds(parameter, mine):
                lent[at] = text
            inner.scopes[0][text] = value
            inner.held[text] = self._type(self.source.of(parameter, "type"), inner)
        inner.held[_RETURNED] = self._type(self.source.of(node, "type"), inner)
        self.depth += 1
        self.used.add(node.start_byte)
        for statement in statements(body):
            self.run(statement, inner, active)
        self.depth -= 1
        self.left.pop(id(inner), None)
        return inner.result if inner.result is not None else UNKNOWN, {at: inner.scopes[0][t] for at, t in lent.items()}


def base_of(code: Code, name: str) -> float:
    """What an exponential function multiplies its argument by, 0 for other functions. One of the file's own is
    understood where all it has is the device's instruction, `asm("ex2.approx.ftz.f32 %0, %1;" : ...)`."""
    known = code.overloads.get(name.split("::")[-1], [])
    if not known:
        return BASES.get(name, 0.0)
    if len(known) != 1:
        return 0.0
    declarator, body = field_of(known[0], "declarator"), field_of(known[0], "body")
    listed = field_of(declarator, "parameters")
    taken = [declared_name(field_of(p, "declarator") or p) for p in listed.named_children]
    lines = statements(body)
    if [s.type for s in lines] != ["declaration", "expression_statement", "return_statement"] or len(taken) != 1:
        return 0.0
    asm, declared = lines[1].named_children[0], lines[0].children_by_field_name("declarator")
    if asm.type != "gnu_asm_expression" or [d.type for d in declared] != ["identifier"]:
        return 0.0
    words = code.source.of(asm, "assembly_code").strip('"').split()
    operands = [
        [code.source.of(n, "value") for n in code.source.walk(asm, f"gnu_asm_{kind}_operand")]
        for kind in ("output", "input")
    ]
    told = [[code.source.of(declared[0])], [code.source.of(taken[0])]]
    returned = code.source.of(lines[2].named_children[0]) == told[0][0]
    plain = len(words) == 3 and words[0].startswith("ex2.approx.") and words[1:] == ["%0,", "%1;"]
    return LN2 if plain and returned and operands == told else 0.0


def fields_of(code: Code, kind: str) -> list[str]:
    """The fields of a struct of the file that has nothing but numbers in it, in order; none for any other type."""
    kind = code.plain_type(kind).removeprefix("struct ").strip()
    for name, body in _structs(code):
        if name != kind:
            continue
        found = []
        for member in body.named_children:
            if member.type == "comment":
                continue
            declarators = member.children_by_field_name("declarator")
            plain = all(d.type in {"field_identifier", "identifier"} for d in declarators)
            if member.type not in {"field_declaration", "declaration"} or not plain:
                return []
            found += [code.source.of(d) for d in declarators]
        return found
    return ["x", "y"] if kind == "float2" else []


def _structs(code: Code) -> Iterator[tuple[str, Node]]:
    """Names and bodies. The grammar takes `struct __align__(8) Pair { ... }` for a function."""
    for node in code.source.walk(None, "struct_specifier"):
        body, outer = field_of(node, "body"), node.parent
        if body is not None:
            yield code.source.of(node, "name"), body
        if body is not None and outer is not None and outer.type == "type_definition":
            yield code.source.of(outer, "declarator"), body
        if body is None and outer is not None and outer.type == "function_definition":
            names = list(code.source.walk(field_of(outer, "declarator"), "identifier"))
            if code.source.of(node, "name") == "__align__" and len(names) == 1:
                yield code.source.of(names[0]), field_of(outer, "body")
