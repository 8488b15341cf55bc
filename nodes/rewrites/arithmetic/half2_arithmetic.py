"""Lane loops over 16-bit floats compute two elements an instruction, where each result is rounded once either way.

`narrow(widen(a) * widen(b))` rounds once: a float holds the product of two 16-bit floats exactly, and their sum closely
enough that rounding it again changes nothing (24 bits are at least twice 11 and two). So one `*`, `+`, `-` or a fused
multiply-add of values as they were loaded may be done in 16 bits, with maxima, minima, signs and magnitudes, which round
nothing, before or after. Longer chains would round at every step and are left in float. So are mere conversions: nvcc 13
packs those by itself (F2FP.F16.F32.PACK_AB; the disassembly is the same for `__float22half2_rn`).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from tree_sitter import Node

from harness.records import Outcome
from nodes.rewrites.analysis.device_code import Code, code_of, declared_name, only_argument, require, statements
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.syntax.source import Edits, Source, Unsupported
from nodes.rewrites.syntax.tree import children_of, enclosing, field_of

PAIRS = """\
// Two neighbouring 16-bit floats that one instruction works on.
__device__ __forceinline__ {two} two(const {one}* at) {{ return *reinterpret_cast<const {two}*>(at); }}
__device__ __forceinline__ void put_two({one}* at, {two} value) {{ *reinterpret_cast<{two}*>(at) = value; }}
__device__ __forceinline__ {two} both({two}, float value) {{ return {splat}(value); }}
"""
_TYPES = {
    "__half": ("cuda_fp16.h", {"one": "__half", "two": "__half2", "splat": "__float2half2_rn"}),
    "__nv_bfloat16": (
        "cuda_bf16.h",
        {"one": "__nv_bfloat16", "two": "__nv_bfloat162", "splat": "__float2bfloat162_rn"},
    ),
}
_ALIASES = {"half": "__half", "nv_bfloat16": "__nv_bfloat16"}
_WIDENING = {"float", "(float)", "static_cast<float>", "__half2float", "__bfloat162float"}
_NARROWING = {"__float2half", "__float2half_rn", "__float2bfloat16", "__float2bfloat16_rn"}
_EXTREMES = {"fmaxf": "__hmax2", "fminf": "__hmin2"}
_ARITHMETIC = {"*": "__hmul2", "+": "__hadd2", "-": "__hsub2"}


@dataclass(frozen=True)
class _Value:
    """A packed expression; `rounded` once arithmetic was done on it, `constant` where it is a number."""

    text: str
    rounded: bool = False
    constant: float | None = None
    product: tuple[str, str] | None = None
    """The factors of a product, for a fused multiply-add."""


@rule(
    "cuda",
    expected="a quarter of the arithmetic and conversion instructions where 16-bit elements meet in one operation",
    speedup=1.0,
    helps={"latency", "compute"},
    after=("several_rows_per_block",),
    risks=(Outcome.INCORRECT,),
)
def rewrite(source: Source, facts: Facts) -> str | None:
    code = code_of(source)
    edits, element_types = Edits(source), set()
    for node in source.walk(None, "for_statement"):
        try:
            loop = _LaneLoop(code, node)
            text, before = loop.text(), node.prev_sibling
            if before is not None and before.type == "preproc_call":
                if source.of(before).split() != ["#pragma", "unroll"]:
                    raise Unsupported("another directive")
                edits.changes.append((before.start_byte, node.start_byte, source.indent(node)))
            edits.replace(node, text)
            element_types.add(loop.element)
        except Unsupported:
            continue
    if not edits.changes:
        return None
    for header, words in _TYPES.values():
        if f"<{header}>" in source.text:
            require(edits, code, PAIRS.format(**words))
    if code.names() & {"two", "put_two", "both"}:
        return None
    return edits.apply()


@dataclass
class _LaneLoop:
    """`for (int k = 0; k < N; ++k) { const float v = ...; out.at[k] = narrow(...); }`, all of one element type."""

    code: Code
    node: Node
    element: str = ""
    known: dict[str, _Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.source = self.code.source
        initializer, condition = (field_of(self.node, f) for f in ("initializer", "condition"))
        update, body = (field_of(self.node, f) for f in ("update", "body"))
        declarator = field_of(initializer, "declarator")
        if condition is None or update is None or body is None or declarator is None or self.node.has_error:
            raise Unsupported("another loop")
        name = declared_name(declarator)
        self.lane = self.source.of(name)
        bound = field_of(condition, "right")
        plain = (
            declarator.type == "init_declarator" and self.source.of(declarator, "value") == "0"
            and self.source.of(condition, "left") == self.lane
            and self.source.of(condition, "operator") == "<"
            and self.source.of(update) in {f"++{self.lane}", f"{self.lane}++"}
        )  # fmt: skip
        if not plain or bound is None or not self._is_constant(bound):
            raise Unsupported("not a loop over lanes")
        self.bound, self.body = self.source.of(bound), statements(body)

    def _is_constant(self, bound: Node) -> bool:
        if bound.type == "number_literal":
            return True
        found = self.code.definition(bound) if bound.type == "identifier" else None
        return found is not None and (
            found.kind == "template" or self.source.of(found.declaration).startswith(("constexpr", "static constexpr"))
        )

    def text(self) -> str:
        lines = [line for statement in self.body for line in self._statement(statement)]
        if not self.element or not any(line.startswith("put_two(") for line in lines):
            raise Unsupported("nothing of 16 bits")
        generic = self.element not in {*_TYPES, *_ALIASES}
        indent, unit = self.source.indent(self.node), self.source.unit(self.node)
        sized = f"sizeof({self.element}) == 2 && " if generic else ""
        packed = [
            f"if constexpr ({sized}{self.bound} % 2 == 0) {{  // each result is rounded once, as by way of float",
            "#pragma unroll",
            f"{unit}for (int {self.lane} = 0; {self.lane} < {self.bound}; {self.lane} += 2) {{",
            *(unit * 2 + line for line in lines),
            f"{unit}}}",
            "} else {",
            "#pragma unroll",
            *(unit + line.removeprefix(indent) for line in self.source.of(self.node).split("\n")),
            "}",
        ]
        return "\n".join(
            line if line.startswith("#") else (indent if at else "") + line for at, line in enumerate(packed)
        )

    def _statement(self, node: Node) -> list[str]:
        if node.type == "declaration":
            declarators = node.children_by_field_name("declarator")
            if self.source.of(node, "type") != "float" or len(declarators) != 1:
                raise Unsupported("a variable that is no float")
            name, initial = (field_of(declarators[0], f) for f in ("declarator", "value"))
            if name is None or initial is None:
                raise Unsupported("a variable without a value")
            found = self._value(initial)
            self.known[self.source.of(name)] = _Value(self.source.of(name), found.rounded, found.constant)
            constant = "const " if self.source.of(node).startswith("const ") else ""
            return [] if found.constant is not None else [f"{constant}auto {self.source.of(name)} = {found.text};"]
        if node.type == "if_statement":
            return [self._limited(node)]
        inner = node.named_children[0] if node.type == "expression_statement" and node.named_children else None
        if inner is None or inner.type != "assignment_expression":
            raise Unsupported("more than arithmetic")
        left, right = field_of(inner, "left"), field_of(inner, "right")
        if left is None or right is None or self.source.of(inner, "operator") != "=":
            raise Unsupported("an update")
        target = self._lane_of(left)
        value = self._value(self._narrowed(right))
        if value.constant is not None:
            raise Unsupported("a constant")
        return [f"put_two(&{target}, {value.text});"]

    def _limited(self, node: Node) -> str:
        """`if (v < 0.0f) v = 0.0f;`, which leaves a NaN as it is."""
        holder, then = field_of(node, "condition"), field_of(node, "consequence")
        condition = field_of(holder, "value")
        if then is None or condition is None or field_of(node, "alternative") is not None:
            raise Unsupported("a branch")
        inside = statements(then)
        inner = inside[0].named_children[0] if len(inside) == 1 and inside[0].named_children else None
        operator = self.source.of(condition, "operator")
        if inner is None or inner.type != "assignment_expression" or operator not in {"<", ">"}:
            raise Unsupported("a branch")
        name = self.source.of(inner, "left")
        limits = [self._value(_bare(field_of(part, "right"))).constant for part in (condition, inner)]
        variable = self.known.get(name)
        same = self.source.of(condition, "left") == name and limits[0] == limits[1]
        if variable is None or variable.constant is not None or limits[0] is None or not same:
            raise Unsupported("a branch that is no limit")
        extreme = "__hmax2_nan" if operator == "<" else "__hmin2_nan"
        return f"{name} = {extreme}({name}, both({name}, {limits[0]!r}f));"

    def _lane_of(self, node: Node) -> str:
        """`pack.at[k]`, whose element type must be that of all the others."""
        index = list(self.source.walk(node, "subscript_argument_list"))
        holder = field_of(node, "argument")
        if node.type != "subscript_expression" or holder is None or holder.type != "field_expression":
            raise Unsupported("not a lane of a pack")
        pack = field_of(holder, "argument")
        if len(index) != 1 or self.source.of(index[0]) != f"[{self.lane}]" or pack is None or pack.type != "identifier":
            raise Unsupported("another lane")
        found = self.code.definition(pack)
        kind = self.source.of(found.declaration, "type") if found is not None else ""
        name, _, arguments = kind.partition("<")
        element = arguments.removesuffix(">").split(",")[0].strip()
        aligned = any(
            self.source.of(struct_, "name") == name and "alignas" in self.source.of(struct_)
            for struct_ in self.source.walk(None, "struct_specifier")
        )
        if not element or not aligned or (self.element and element != self.element):
            raise Unsupported("elements of another type, or anywhere")
        if element not in {*_TYPES, *_ALIASES} and not self._is_generic(element):
            raise Unsupported("elements that are no 16-bit floats")
        self.element = element
        return self.source.of(node)

    def _is_generic(self, element: str) -> bool:
        here = enclosing(self.node, "template_declaration")
        listed = field_of(here, "parameters")
        return listed is not None and element in {
            self.source.of(n.named_children[0]) for n in self.source.walk(listed, "type_parameter_declaration")
        }

    def _narrowed(self, node: Node) -> Node:
        """What is converted to the element type."""
        if node.type == "cast_expression" and self.source.of(node, "type") == self.element:
            return _bare(field_of(node, "value"))
        if node.type == "call_expression":
            name = self.source.of(node, "function")
            if name in _NARROWING or name in {self.element, f"({self.element})", f"static_cast<{self.element}>"}:
                return _bare(only_argument(node))
        raise Unsupported("another conversion")

    def _value(self, node: Node) -> _Value:
        node = _bare(node)
        text = self.source.of(node)
        if node.type == "identifier" and text in self.known:
            return self.known[text]
        if node.type == "number_literal":
            return _Value("", constant=_exact(text))
        if node.type == "cast_expression" and self.source.of(node, "type") == "float":
            return _Value(f"two(&{self._lane_of(_bare(node.child_by_field_name('value')))})")
        if node.type == "unary_expression" and text.startswith("-"):
            inner = self._value(node.named_children[-1])
            if inner.constant is not None:
                return _Value("", constant=-inner.constant)
            return _Value(f"__hneg2({inner.text})", inner.rounded)
        if node.type == "call_expression":
            return self._called(node)
        if node.type == "conditional_expression":
            return self._chosen(node)
        if node.type == "binary_expression":
            left, right = (self._value(_bare(field_of(node, f))) for f in ("left", "right"))
            return _arithmetic(self.source.of(node, "operator"), left, right)
        raise Unsupported(f"a {node.type}")

    def _chosen(self, node: Node) -> _Value:
        """`v > 0.0f ? v : 0.0f`, which is the number where v is a NaN."""
        condition = _bare(field_of(node, "condition"))
        operator = self.source.of(condition, "operator")
        sides = [field_of(condition, "left"), field_of(condition, "right")]
        chosen = [field_of(node, "consequence"), field_of(node, "alternative")]
        same = [self.source.of(_bare(a)) == self.source.of(_bare(b)) for a, b in zip(sides, chosen, strict=True)]
        if condition.type != "binary_expression" or operator not in {"<", ">"} or not all(same):
            raise Unsupported("a choice that is no limit")
        value, limit = (self._value(_bare(part)) for part in chosen)
        if value.constant is not None or limit.constant is None:
            raise Unsupported("a choice that is no limit")
        extreme = "__hmax2" if operator == ">" else "__hmin2"
        return _Value(f"{extreme}({value.text}, both({value.text}, {limit.constant!r}f))", value.rounded)

    def _called(self, node: Node) -> _Value:
        name = self.source.of(node, "function")
        inner = children_of(node, "arguments")
        if name in _WIDENING and len(inner) == 1:
            return _Value(f"two(&{self._lane_of(_bare(inner[0]))})")
        if name == "fabsf" and len(inner) == 1:
            value = self._value(inner[0])
            return _Value(f"__habs2({_variable(value)})", value.rounded)
        if name in _EXTREMES and len(inner) == 2:
            left, right = _alike(*(self._value(n) for n in inner))
            return _Value(f"{_EXTREMES[name]}({left.text}, {right.text})", left.rounded or right.rounded)
        raise Unsupported(f"{name} is called")


def _arithmetic(operator: str, left: _Value, right: _Value) -> _Value:
    for product, other, sign in ((left, right, operator), (right, left, operator)):
        if product.product is not None and sign == "+" and not other.rounded:
            _, third = _alike(_Value(product.product[0]), other)
            return _Value(f"__hfma2({', '.join([*product.product, third.text])})", True)
    if operator not in _ARITHMETIC or left.rounded or right.rounded:
        raise Unsupported("a chain that would round more than once")
    left, right = _alike(left, right)
    factors = (left.text, right.text) if operator == "*" else None
    return _Value(f"{_ARITHMETIC[operator]}({left.text}, {right.text})", True, product=factors)


def _alike(left: _Value, right: _Value) -> tuple[_Value, _Value]:
    """Both as packs: a number takes the type of its partner."""
    if left.constant is not None and right.constant is not None:
        raise Unsupported("two numbers")
    if left.constant is not None:
        return _Value(f"both({right.text}, {left.constant!r}f)"), right
    if right.constant is not None:
        return left, _Value(f"both({left.text}, {right.constant!r}f)")
    return left, right


def _variable(value: _Value) -> str:
    if value.constant is not None:
        raise Unsupported("a number")
    return value.text


def _exact(text: str) -> float:
    """A number that both 16-bit types hold exactly."""
    try:
        value = float(text.rstrip("fF"))
        as_half = struct.unpack("<e", struct.pack("<e", value))[0]
    except (ValueError, OverflowError):
        raise Unsupported(f"{text} is no 16-bit float") from None
    as_bfloat16 = not struct.unpack("<I", struct.pack("<f", value))[0] & 0xFFFF
    if as_half != value or not as_bfloat16 or struct.unpack("<f", struct.pack("<f", value))[0] != value:
        raise Unsupported(f"{text} is no 16-bit float")
    return value


def _bare(node: Node | None) -> Node:
    while node is not None and node.type == "parenthesized_expression" and node.named_child_count == 1:
        node = node.named_children[0]
    if node is None:
        raise Unsupported("nothing there")
    return node
