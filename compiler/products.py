"""Products of matrices whose sums leave through maps alone: a kernel of tiles, in which what is made of a sum is computed where it stands.

Two products of the same space share one, as a gate and what it opens.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field

import sympy
import torch

from compiler.draft.expressions import (
    Expr,
    binary,
    by_name,
    cast,
    constant,
    indices_of,
    loads_of,
    make,
    runs_along,
    symbols_of,
)
from compiler.draft.index import FloorDiv, Index, flatten, joined, product, unflatten
from compiler.draft.lower_convolutions import ImageWindow
from compiler.draft.partition import Member
from compiler.draft.tensors import Buffer, Definition
from compiler.kernel import PackedKernel
from compiler.selects import SelectedProgram

TILES = "tiles"
"""The layout."""
SHORT = 16
"""Steps up to which a product, of a number of them known now, is no tile's: every thread does its own."""
MOST_PRODUCTS = 2
MOST_HANDED_ON = 4
"""A hidden layer is so many times as wide as its input."""
HALVES = (torch.float16, torch.bfloat16)
BYTES = (torch.int8, torch.uint8, torch.float8_e4m3fn)
"""Of which each number is one of either type of 16 bits."""
STAGE = 64
"""Steps that 16-bit operands are brought at once, within which a factor of a sum may not change."""
MOST_OF_FACTOR = 32
"""Instructions of a factor, which each thread computes for its rows and columns."""
WHOLE = 1 << 20
"""Stages that have one factor where it is the same for all of a sum."""


@dataclass(eq=False)
class ProductKernel(PackedKernel):
    """sum over k of left[batch, m, k] * right[batch, k, n], and maps of it."""

    loops_of: tuple[Index, ...] = ()
    """Batch, m, n, k; a number where there is one only."""
    ends: tuple[Index, ...] = ()
    sides: list[tuple[Expr, Expr]] = field(default_factory=list)
    """Of each product."""
    sums: list[Buffer] = field(default_factory=list)
    stores: list[Member] = field(default_factory=list)
    factors: tuple[Expr, Expr] | None = None
    """What the sums within `stages` stages are multiplied by, of their row and of their column; None: nothing."""
    stages: int = 0
    window: ImageWindow | None = None
    """What the right side reads of."""

    @property
    def read(self) -> list[Expr]:
        return [*(side for pair in self.sides for side in pair), *(self.factors or ())]

    @property
    def names(self) -> dict[Buffer, str]:
        """The sums', in the text."""
        return {buffer: f"sumOf{n}" for n, buffer in enumerate(self.sums)}

    def leaf(self, expr: Expr) -> Expr:
        return by_name(expr, self.names)

    def along(self, side: Expr) -> bool:
        """Whether neighbours in memory differ in k."""
        return runs_along(side, self.loops_of[3])

    @property
    def narrow(self) -> torch.dtype | None:
        """The 16-bit type in which the operands go through tensor cores as they are; None: as float32, each as two TF32 numbers."""
        sides = [side for pair in self.sides for side in pair]
        plain = all(map(is_plain, sides))
        kinds = {load.args[0].dtype for load in loads_of(sides)} - set(BYTES)
        if self.factors is not None and not kinds:
            return torch.float16
        (kind,) = kinds if len(kinds) == 1 else (None,)
        return kind if kind in HALVES and (plain or kind == torch.bfloat16) else None


def is_plain(side: Expr) -> bool:
    """Whether 16 bits hold the operand as it is: a load, or zero beyond an edge, or a byte as a number."""
    while side.op == "cast" or (side.op == "masked" and side.args[2].op == "const" and side.args[2].args[0] == 0):
        side = side.args[side.op == "masked"]
    return side.op in ("load", "load_at") and side.args[0].dtype in (*HALVES, *BYTES)


def apart_from_factor(side: Expr, step: Index) -> tuple[Expr, Expr | None, int] | None:
    """(what is multiplied by the other side, its factor, stages in which that is the same) of an operand that 16 bits hold but for the factor."""
    plain, factors, parts = [], [], [side]
    while parts:
        part = parts.pop(0)
        inner = part.args[0] if part.op == "cast" and part.type == "float" else part
        if inner.op == "mul":
            parts += inner.args
        elif is_plain(part) and any(step in without_quotients(index).free_symbols for index in indices_of([part])):
            plain.append(part)
        else:
            factors.append(part)
    if len(plain) != 1:
        return None
    stages = WHOLE
    for index in indices_of(factors):
        for quotient in index.atoms(FloorDiv):
            if step in quotient.free_symbols:
                if quotient.args[0] != step or not quotient.args[1].is_Integer or quotient.args[1] % STAGE:
                    return None
                stages = math.gcd(stages % WHOLE, int(quotient.args[1]) // STAGE)
        if step in without_quotients(index).free_symbols:
            return None
    factor = (
        functools.reduce(lambda a, b: binary("mul", a, b), (cast(one, "float") for one in factors)) if factors else None
    )
    return plain[0], factor, stages


def products_of(
    program: SelectedProgram, outputs: set[Buffer], apart: bool = False, on_a_gpu: bool = True
) -> list[ProductKernel]:
    """Kernels of the form above; their definitions are taken out of the program. `apart`: what other kernels make more of is handed on in memory."""
    found = []
    for definition in [d for d in program.definitions if d.is_product and d.type == "float"]:
        kernel = _kernel(program, definition, outputs, on_a_gpu) if definition in program.definitions else None
        if kernel is None and apart and definition in program.definitions:
            kernel = _kernel(program, definition, outputs, on_a_gpu, apart=True)
        if kernel is not None:
            found.append(program.take(kernel))
    return found


def _kernel(
    program, first: Definition, outputs: set[Buffer], on_a_gpu: bool, apart: bool = False
) -> ProductKernel | None:
    depth = first.ranges[-1]
    if depth.is_Integer and depth <= SHORT:
        return None
    reads = {d: d.reads(program.ranges) for d in program.definitions}
    products, maps = [first], []
    made = {d.outs[0]: d for d in program.definitions if d.is_product}
    while not apart:  # those whose sums the same maps read
        sums = {d.outs[0] for d in products}
        maps = [d for d in program.definitions if reads[d] & sums]
        more = [made[b] for d in maps for b in reads[d] if b in made and made[b] not in products]
        if not more:
            break
        products.append(more[0])
    alike = all(d.ranges == first.ranges for d in products) and len(products) <= MOST_PRODUCTS
    if not alike or any(d.kind != "map" or d.outs[0] not in outputs or d.by is not None for d in maps):
        return None
    variables, batch = program.ranges, first.ranges[:-3]
    ends = [product(batch), *first.ranges[-3:]]
    loops = [
        variables.variable(program.name(word), end) for word, end in zip(("batch", "m", "n", "k"), ends, strict=True)
    ]
    axes = [*unflatten(loops[0], batch, variables), *loops[1:]]
    place = joined(flatten(axes[:-1], first.ranges[:-1]))
    kernel = ProductKernel(
        first.ranges, first.reduced, sympy.S.Zero, axes, layout=TILES, order=max(d.order for d in [*products, *maps]),
        loops_of=tuple(loops), ends=tuple(ends), sums=[d.outs[0] for d in products], window=first.window,
    )  # fmt: skip
    _, m, n, _ = loops
    if not (m.is_Symbol and n.is_Symbol):
        return None
    for one in products:
        value = one.element(axes)
        while value.op == "cast":
            value = value.args[0]
        if value.op != "mul" or n in symbols_of(value.args[0]) or m in symbols_of(value.args[1]):
            return None
        handed = [b for b in (load.args[0] for load in loads_of([value])) if getattr(b.written_by, "is_product", False)]
        if apart and any(_is_large(program, buffer, outputs) for buffer in handed):
            return None  # all scores of an attention are more than memory should hold
        kernel.sides.append((value.args[0], value.args[1]))
        kernel.members.append(Member(one, value, 0, [place], False))
    kernel.stores = [
        Member(one, make("load", one.outs[0], place, type="float"), 0, [place], False) for one in products if apart or one.outs[0] in outputs
    ]  # fmt: skip
    for one in maps:
        if sympy.expand(product(one.ranges) - product(ends[:-1])) != 0:
            return None
        at = unflatten(sympy.expand(place), one.ranges, variables)
        goes = joined(one.place_at(at))
        member = Member(one, one.element(at), 0, [goes], False, None, None if one.when is None else one.when(at))
        own = [load for load in loads_of(member.roots) if load.args[0] in kernel.sums]
        if member.when is not None or any(load.op != "load" or joined(load.args[1] - place) != 0 for load in own):
            return None
        kernel.members.append(member)
        kernel.stores.append(member)
    if not on_a_gpu:
        return kernel if kernel.stores and len(products) == 1 else None
    if len(products) == 1:
        _take_factors(program, kernel)
    alike = len({tuple(map(kernel.along, pair)) for pair in kernel.sides}) == 1
    alone = len(products) == 1 or (kernel.narrow is not None and alike)
    return kernel if kernel.stores and alone else None


def _is_large(program: SelectedProgram, buffer: Buffer, outputs: set[Buffer]) -> bool:
    """Whether a sum takes more memory than MOST_HANDED_ON times the largest tensor of the reference."""
    size, *given = (int(b.elements.subs(program.hints)) for b in (buffer, *program.given, *outputs))
    return size > MOST_HANDED_ON * max(given)


def without_quotients(index: Index) -> Index:
    return index.xreplace(dict.fromkeys(index.atoms(FloorDiv), sympy.S.Zero))


def _take_factors(program: SelectedProgram, kernel: ProductKernel) -> None:
    """Numbers of 8 or 16 bits times a scale of their row, or of a part of it, are multiplied as they are and the sums scaled. Of an infinite scale
    that would be something else: a sum of both infinities is none."""
    found = [apart_from_factor(side, kernel.loops_of[3]) for side in kernel.sides[0]]
    if any(one is None for one in found) or all(one is None or one[1] is None for one in found):
        return
    (left, of_row, stages), (right, of_column, more) = (one for one in found if one is not None)
    of_row, of_column = (constant(1.0, "float") if factor is None else factor for factor in (of_row, of_column))
    finite = all(load.args[0] in program.finite for load in loads_of([of_row, of_column]))
    if not finite or max(of_row.cost, of_column.cost) > MOST_OF_FACTOR:
        return
    before = kernel.sides
    kernel.sides, kernel.factors, kernel.stages = (
        [(left, right)],
        (of_row, of_column),
        math.gcd(stages % WHOLE, more % WHOLE) or WHOLE,
    )
    if kernel.narrow is None:
        kernel.sides, kernel.factors = before, None
