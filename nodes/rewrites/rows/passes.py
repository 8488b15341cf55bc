"""Passes over a row in registers, as cache_row_in_registers writes them, and which of their expressions are the same number.

Two are where they are written alike once names are seen through, and where nothing that they are made of is written in between.
What is not understood, a load from memory say, is the same as nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tree_sitter import Node

from nodes.rewrites.analysis.device_code import Code, Definition, inside
from nodes.rewrites.analysis.indices import COORDINATES
from nodes.rewrites.analysis.kernels import Kernel, Loop
from nodes.rewrites.arithmetic.fast_math import kind
from nodes.rewrites.prelude import text_of
from nodes.rewrites.syntax.source import Source, Unsupported
from nodes.rewrites.syntax.tree import LOOPS, children_of, declared_name, enclosing, field_of, same, upward

DIVISIONS = {"__fdividef", "fdividef"}
EXPENSIVE = DIVISIONS | {
    "exp", "expf", "__expf", "exp2", "exp2f", "exp10f", "__exp10f", "expm1f", "log", "logf", "__logf", "log2f", "__log2f",
    "log10f", "__log10f", "log1pf", "pow", "powf", "__powf", "tanh", "tanhf", "sinhf", "coshf", "erf", "erff", "erfcf",
    "normcdff", "sinf", "cosf", "tanf", "__sinf", "__cosf", "__tanf", "atanf", "asinf", "acosf", "sqrt", "sqrtf", "rsqrt",
    "rsqrtf", "cbrtf", "__frcp_rn", "__fdiv_rn", "__fsqrt_rn", "__frsqrt_rn",
}  # fmt: skip
_PURE = EXPENSIVE | {
    "max", "min", "fmax", "fmin", "fmaxf", "fminf", "abs", "fabs", "fabsf", "fma", "fmaf", "__fmaf_rn", "__fmul_rn",
    "__fadd_rn", "__fsub_rn", "floorf", "ceilf", "rintf", "roundf", "truncf", "copysignf", "__half2float", "__float2half",
    "__bfloat162float", "__float2bfloat16", "__int2float_rn", "__saturatef",
}  # fmt: skip
"""CUDA's functions that only compute."""
_LEAPS = ("lambda_expression", "goto_statement", "labeled_statement", "asm_statement", "gnu_asm_expression")
_JUMPS = ("break_statement", "continue_statement", "return_statement")
_FOREIGN = ("static", "extern", "volatile", "__shared__", "__device__")
"""Others may change such variables, too."""
_PLAIN = ("unary_expression", "binary_expression", "conditional_expression")
_SCALARS = {"x", "y", "z", "w"}
"""Fields that are no arrays."""
_LONGEST = 4000
ITEM = "@item"


@dataclass(frozen=True)
class Computed:
    """An expression as a pass computes it."""

    node: Node
    loop: Loop
    """The pass around it."""
    text: str
    """Without names of its own: a variable of the pass is what it was declared to be, a loop's counter its bound."""
    reads: dict[str, int]
    """The places that it is made of, `x@12[@item].at`: a variable, where that is declared, and the way to a part of it. With the
    byte at which each is read, which a variable of the pass does in front."""
    under: frozenset[str]
    """The conditions that hold and the loops that turn where it is computed."""
    lanes: dict[str, Loop]
    """The loops within the pass, outer ones first, by their counters, that its value differs by."""

    @property
    def by_item(self) -> bool:
        """Whether it differs from step to step of the row."""
        return ITEM in self.text


class Passes:
    """The passes of one kernel over rows in registers. Raises Unsupported where there are none, or nothing can be said."""

    def __init__(self, code: Code, kernel: Kernel) -> None:
        self.code, self.kernel, self.source = code, kernel, code.source
        self.items, self.bytes = self._bounds()
        loops = [loop for loop in kernel.loops if self._counts(loop) and self.source.of(loop.bound_node) == self.items]
        self.loops = [loop for loop in loops if same(loop.node.parent, loops[0].node.parent)]
        if self.source.has(kernel.body, *_LEAPS):
            raise Unsupported("a kernel that does more than one thing after another")
        self.variables: dict[str, Definition] = {}
        """By what places call them."""
        self._written: dict[int, list[tuple[Node, str]] | None] = {}

    def _bounds(self) -> tuple[str, str]:
        """How many steps a thread keeps, and the bytes of one, as cache_row_in_registers wrote them into the kernel's launch bounds."""
        bounds = self.kernel.launch_bounds
        for call in self.source.walk(bounds, "call_expression") if bounds is not None else ():
            if called(self.source, call) == "row_width":
                items, size = (self.source.of(argument) for argument in children_of(call, "arguments"))
                return items, size
        raise Unsupported("no rows in registers")

    def _counts(self, loop: Loop) -> bool:
        """Whether it is `for (i = 0; i < bound; ++i)` and every turn is done."""
        return loop.start.value == 0 and loop.step.value == 1 and not self.source.has(loop.body, *_JUMPS)

    def computed(self, node: Node, loop: Loop) -> Computed | None:
        """What the expression is in a pass; None where that is not known."""
        reads: dict[str, int] = {}
        lanes: dict[str, Loop] = {}
        try:
            text = self._text(node, reads, node.start_byte)
        except Unsupported:
            return None
        under = frozenset(self._conditions(node, loop, reads))
        for around in self.kernel.loops:
            counter = self._counter(around) if inside(node, around.body) and inside(around.node, loop.body) else None
            if counter is not None and counter in text:
                lanes[counter] = around
        return Computed(node, loop, text, reads, under, lanes)

    def serves(self, first: Computed, later: Computed) -> bool:
        """Whether the first has been computed, of the same value, wherever the later one is."""
        return (
            first.text == later.text
            and first.under <= later.under
            and all(self._lasts(place, at, first, later) for place, at in first.reads.items())
        )

    # What an expression is made of.

    def _text(self, node: Node, reads: dict[str, int], at: int) -> str:
        """Raises Unsupported where it may be something else each time."""
        of, parts = self.source.of, children_of(node)
        match node.type:
            case "parenthesized_expression" if len(parts) == 1:
                return self._text(parts[0], reads, at)
            case "number_literal" | "true" | "false":
                return of(node)
            case "identifier" | "field_expression" | "subscript_expression":
                own: dict[str, int] = {}
                text = self._part(node, own, at)
                reads |= {place: min(own[place], reads.get(place, at)) for place in own}
                return text
            case "cast_expression":
                return self._cast(of(node, "type"), field_of(node, "value"), reads, at)
            case "call_expression":
                return self._call(node, reads, at)
            case kind_ if kind_ in _PLAIN:
                words = (self._text(c, reads, at) if c.is_named else of(c) for c in node.children)
                text = f"({' '.join(words)})"
                if len(text) < _LONGEST:
                    return text
        raise Unsupported("a value that is not understood")

    def _part(self, node: Node, reads: dict[str, int], at: int) -> str:
        """Of a variable or a part of one, which alone is among `reads` then, beside what its indices are made of."""
        if node.type == "identifier":
            return self._name(node, reads, at)
        argument = field_of(node, "argument")
        if self.source.of(argument) in COORDINATES:
            return self.source.of(node)
        if argument.type not in {"identifier", "field_expression", "subscript_expression"}:
            raise Unsupported("a part of something else")
        inner = self._part(argument, reads, at)
        if node.type == "field_expression":
            if self.source.of(node.children[1]) != ".":
                raise Unsupported("a pointer")
            text = f"{inner}.{self.source.of(node, 'field')}"
        else:
            index = self._text(children_of(node, "indices")[0], reads, at)
            if "[" in index:
                raise Unsupported("an index that is looked up")
            text = f"{inner}[{index}]"
        if inner in reads:
            reads[text] = reads.pop(inner)
        return text

    def _name(self, node: Node, reads: dict[str, int], at: int) -> str:
        found, name = self.code.definition(node), self.source.of(node)
        if found is None and name.isupper():  # INFINITY and its like
            return name
        kind_ = found.kind if found is not None else ""
        fixed = kind_ == "global" and self.source.says(found.declaration, "const", "constexpr", "__constant__")
        number = kind_ == "macro" and _is_number(self.source.of(found.declaration, "value"))
        if kind_ == "template" or fixed or number:
            return name
        if kind_ not in {"local", "loop", "parameter"}:
            raise Unsupported("a name that may be anything")
        for loop in self.kernel.loops if kind_ == "loop" else ():
            counter = self._counter(loop) if loop.symbol.where == found.where else None
            if counter is not None:
                return counter
        if found.value is not None and found.form.type == "reference_declarator":
            return self._text(found.value, reads, at)
        own = any(inside(found.declaration, loop.body) for loop in self.loops)
        if found.form.type == "pointer_declarator":
            raise Unsupported("a pointer")
        written = self._writes(found)
        if own and found.value is not None and not written and found.form.type == "identifier":
            return self._cast(
                self.source.of(found.declaration, "type"), found.value, reads, found.declaration.start_byte
            )
        place = f"{name}@{found.where}"
        self.variables[place] = found
        reads[place] = at
        return place

    def _counter(self, loop: Loop) -> str | None:
        """Of a pass, or of a loop within one that turns the same number of times wherever it says so; None for another one."""
        around = next((one for one in self.loops if inside(loop.node, one.node)), None)
        if around is None or not self._counts(loop) or not self._counts(around):
            return None
        if loop.node.id == around.node.id:
            return ITEM
        bound = self.source.of(loop.bound_node)
        if not self.code.is_constant(loop.bound_node, self.loops[0].node):
            return None
        outer = (o for o in self.kernel.loops if inside(loop.node, o.body) and inside(o.node, around.body))
        return f"@lane<{bound}>" + "'" * sum(self.source.of(o.bound_node) == bound for o in outer)

    def _cast(self, type_: str, value: Node, reads: dict[str, int], at: int) -> str:
        type_ = type_.removeprefix("const ").strip()
        if "*" in type_ or "&" in type_:
            raise Unsupported("a pointer")
        text = self._text(value, reads, at)
        same_type = type_ == "auto" or type_ == kind(self.code, value) == "float"
        return text if same_type else f"<{type_}>({text})"

    def _call(self, node: Node, reads: dict[str, int], at: int) -> str:
        name, given = called(self.source, node), children_of(node, "arguments")
        to = cast_to(self.code, node)
        if to is not None and len(given) == 1:
            return self._cast(to, given[0], reads, at)
        if not self.is_pure(name):
            raise Unsupported("a function that may say something else each time")
        read = [field_of(a, "argument") if self._is_read(node, a) else a for a in given]
        words = ", ".join(self._text(argument, reads, at) for argument in read)
        return f"{self.source.of(node, 'function').removeprefix('std::')}({words})"

    def _is_read(self, call: Node, argument: Node) -> bool:
        """Whether it is the address of what a function only reads."""
        given = children_of(call, "arguments")
        effects = self.code.pointer_effects(called(self.source, call), len(given))
        effect = next((effect for a, effect in zip(given, effects, strict=True) if same(a, argument)), None)
        return argument.type == "pointer_expression" and self.source.of(argument.children[0]) == "&" and effect == "r"

    def _conditions(self, node: Node, loop: Loop, reads: dict[str, int]) -> Iterator[str]:
        """Of what stands around it in its pass, what decides whether it is computed."""
        for here in upward(node, until=loop.body):
            parent = here.parent
            condition, operator = field_of(parent, "condition"), self.source.of(parent, "operator")
            if parent.type in {"if_statement", "conditional_expression"} and not same(here, condition):
                asked = field_of(condition, "value") or condition
                sign = "!" if same(here, field_of(parent, "alternative")) else ""
            elif parent.type in LOOPS | {"switch_statement"}:
                own = next((o for o in self.kernel.loops if same(o.node, parent)), None)
                counter = self._counter(own) if own is not None and same(here, field_of(parent, "body")) else None
                yield counter or f"?{parent.id}"
                continue
            elif operator in {"&&", "||"} and same(here, field_of(parent, "right")):
                asked, sign = field_of(parent, "left"), "!" if operator == "||" else ""
            else:
                continue
            try:
                yield sign + self._text(asked, reads, asked.start_byte)
            except Unsupported:
                yield f"?{asked.id}"

    # What is written in between.

    def _lasts(self, place: str, at: int, first: Computed, later: Computed) -> bool:
        """Whether nothing changes what is read there; before and behind, elements of other turns alone."""
        for write, target in self._writes(self.variables[root_of(place)]):
            if _differ(place, target):
                continue
            if write.end_byte <= first.loop.node.start_byte or later.loop.node.end_byte <= write.start_byte:
                continue
            before = inside(write, first.loop.body) and write.end_byte <= at
            behind = inside(write, later.loop.body) and (
                write.start_byte >= later.node.end_byte or inside(later.node, write)
            )
            turns = [here.id for here in upward(write, self.loops[0].node.parent) if here.type in LOOPS]
            counters = [self._counter(loop) for loop in self.kernel.loops if loop.node.id in turns]
            own = len(counters) == len(turns) and all(f"[{counter}]" in target for counter in counters)
            if not (own and (before or behind) and (place.startswith(target) or target.startswith(place))):
                return False
        return True

    def _writes(self, found: Definition) -> list[tuple[Node, str]]:
        """Where a variable is written, also by another name, and which part of it. Raises Unsupported where that may be anywhere."""
        if found.where not in self._written:
            self._written[found.where] = []  # while it is worked out: its own name stands in what is written
            itself = declared_name(found.declarator)
            uses = [use for use in self.code.uses(found, self.kernel.body) if not same(use, itself)]
            try:
                writes = [write for use in uses for write in self._written_by(found, use)]
            except Unsupported:
                writes = None
            self._written[found.where] = None if self.source.says(found.declaration, *_FOREIGN) else writes
        if (known := self._written[found.where]) is None:
            raise Unsupported("a variable that others may change")
        return known

    def _written_by(self, found: Definition, use: Node) -> Iterable[tuple[Node, str]]:
        place, steps = use, list[str]()
        while place.parent.type == "parenthesized_expression" or (
            place.parent.type in {"field_expression", "subscript_expression"}
            and same(field_of(place.parent, "argument"), place)
        ):
            place = place.parent
            steps += [self.source.of(place, "field")] if place.type != "parenthesized_expression" else []
        owner, call = place.parent, enclosing(place, "call_expression")
        if self.source.set_by(place):
            return [(owner, self._text(place, {}, 0))]
        if owner.type == "init_declarator" and (name := declared_name(owner)) is not None:
            alias = Definition(self.source.of(name), "local", owner.parent, owner, place)
            if alias.form.type == "reference_declarator":
                return self._writes(alias)
        address = owner.type == "pointer_expression" and self.source.of(owner.children[0]) == "&"
        if address and call is not None and self._is_read(call, owner):
            return ()
        dimensions = sum(n.type == "array_declarator" for n in self.source.walk(found.declarator, "array_declarator"))
        array = (steps and steps[-1] and steps[-1] not in _SCALARS) or len(steps) < dimensions
        if address or array or same(field_of(owner, "function"), place):
            raise Unsupported("a variable that has a pointer to it")
        if owner.type == "argument_list" and self.code.lends(owner.parent, place)[0]:
            held = called(self.source, owner.parent) == "hold_packed" and text_of("hold_packed") in self.source.text
            return () if held else [(owner.parent, self._text(place, {}, 0))]
        return ()

    # What a function does.

    def is_pure(self, name: str) -> bool:
        """Whether a function only computes: what one of the file assigns to is its own, what it reads never changes."""
        if name in self.code.macros or name not in self.code.overloads:
            return name in _PURE and name not in self.code.macros
        return all(map(self._only_computes, self.code.reached(name)))

    def _only_computes(self, function: Node) -> bool:
        source, code, body = self.source, self.code, field_of(function, "body")
        if body is None or source.has(body, "asm_statement", "lambda_expression"):
            return False
        for node in source.walk(body, "gnu_asm_expression"):
            if {c.type for c in node.children} & {"gnu_asm_qualifier", "gnu_asm_clobber_list"}:
                return False
        for declaration in source.walk(body, "declaration"):
            pointers = source.has(declaration, "pointer_declarator", "reference_declarator")
            if pointers or source.says(declaration, *_FOREIGN):
                return False
        changes = list(source.walk(body, "assignment_expression", "update_expression"))
        changed = [code.definition(target) for target in code.assigned(body)]
        if len(changed) < len(changes) or any(d is None or d.kind not in {"local", "loop"} for d in changed):
            return False
        for node in source.walk(body, "identifier"):
            found = code.definition(node)
            kind_ = found.kind if found is not None else ""
            if kind_ == "global" and not source.says(found.declaration, "const", "constexpr", "__constant__"):
                return False
        calls = list(source.walk(body, "call_expression"))
        return all(
            called(source, call) in {*code.overloads, *_PURE} or cast_to(code, call) is not None for call in calls
        )


def called(source: Source, call: Node) -> str:
    return source.of(call, "function").split("<")[0].removeprefix("std::")


def cast_to(code: Code, call: Node) -> str | None:
    """The type of `static_cast<type>(x)`, `float(x)` and, of a template's parameter, `T(x)`."""
    function = field_of(call, "function")
    text = code.source.of(function)
    if text.startswith("static_cast<"):
        return text[len("static_cast<") : -1].strip()
    if function is None or function.type == "primitive_type":
        return text or None
    found = code.variable(function)
    return text if found is not None and found.kind == "template" else None


def root_of(place: str) -> str:
    """The variable that a place is a part of."""
    return re.split(r"[.\[]", place)[0]


def _differ(place: str, other: str) -> bool:
    """Whether two places of a variable part at different fields."""
    ways = (re.findall(r"\.\w+|\[[^][]*\]", one) for one in (place, other))
    apart = next(((a, b) for a, b in zip(*ways, strict=False) if a != b), ("", ""))
    return all(step.startswith(".") for step in apart)


def _is_number(text: str) -> bool:
    try:
        float(text.strip().strip("()").rstrip("fFuUlL"))
    except ValueError:
        return False
    return True
