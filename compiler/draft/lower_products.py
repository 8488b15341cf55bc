"""Matrix products and attention as kernels of our own: where a module has nothing else, and float32 products that are faster by halves."""

from __future__ import annotations

import functools
import math
from dataclasses import replace

import sympy
import torch

from .algebra import letters_of
from .expressions import COMPUTED, Expr, binary, cast, compare, constant, index_value, masked, unary, where
from .index import product
from .lower_halves import by_halves, kept, parts_by_halves
from .lower_reductions import shifted
from .lowering import PRODUCTS, Lowering, broadcast, lowers, plain
from .tensors import PLAIN, Tiling, Value

BLOCKS, SHORTEST = 264, 1024
"""Blocks that a large GPU has work for (two to each of an H200's multiprocessors), and steps of a part that are worth a block."""
PRODUCTS_AT_ONCE = 16
"""Products to an element moved up to which a fold of an einsum is done before a library has copied its operands: 1.6e12 a second on an H200."""


_lowers = functools.partial(lowers, table=PRODUCTS)


def wanted(low: Lowering, batch, rows, columns, depth, weights=(False, False)) -> bool:
    """Whether a product is to be one of ours: the module has nothing else, or it is faster than the library's.

    `weights`: whether the left and the right are weights.
    """
    if low.program.own_products:
        return True
    return parts_by_halves(low, batch, rows, columns, depth, weights) > 0


@_lowers("aten.matmul.default", "aten.mm.default", "aten.bmm.default")
def matmul(low: Lowering, a: Value, b: Value):
    if len(a.shape) < 2 or len(b.shape) < 2:
        return None
    if len(b.shape) == 2:
        return _rows_times(low, a, b)
    batch, weights = low.shape[:-2], (kept(low, a), kept(low, b))
    if not wanted(low, batch, a.shape[-2], b.shape[-1], a.shape[-1], weights):
        return None
    for side in (a, b):
        low.settle(side, 1000)

    left, right = (lambda position, of=of: of.at(broadcast(of, position)) for of in (a, b))
    return multiplied(low, batch, a.shape[-2], b.shape[-1], a.shape[-1], left, right, low.shape, weights=weights)


def _rows_times(low: Lowering, a: Value, b: Value) -> Value | None:
    """The last axis of `a` with the first of a matrix."""
    return _flat_times(low, a, b.shape[1], b.at, (kept(low, a), kept(low, b)), (a, b))


def _flat_times(low: Lowering, a: Value, columns, right, weights, settled) -> Value | None:
    """The last axis of `a`, its others taken as one, with right(step, column). `settled`: what is to be in memory."""
    rows, depth = product(a.shape[:-1]), a.shape[-1]
    if not wanted(low, (), rows, columns, depth, weights):
        return None
    for side in settled:
        low.settle(side, 1000)
    flat = low.program.reshape(a, [rows, depth])
    made = multiplied(low, (), rows, columns, depth, flat.at, right, (rows, columns), weights=weights)
    return made if made is None else low.program.reshape(made, low.shape)


@_lowers("aten.linear.default")
def linear(low: Lowering, a: Value, weight: Value, bias: Value | None = None):
    turned = lambda p: weight.at([p[1], p[0]])  # noqa: E731
    whole = _flat_times(low, a, weight.shape[0], turned, (False, kept(low, weight)), (a,))
    if whole is None or bias is None:
        return whole
    type = COMPUTED[low.dtype]
    return low.formula(lambda p: binary("add", cast(whole.at(p), type), cast(bias.at([p[-1]]), type)))


@_lowers("aten.einsum.default")
def einsum(low: Lowering, equation: str, operands, path=None):
    """`...k, k n -> ... n` as a product of matrices; where an element moved takes part in few products, one fold over all letters."""
    letters = letters_of(equation)
    if letters is None:
        return None
    names, out = letters
    if [len(name) for name in names[1:]] == [2]:
        first, k, n = names[0], *names[1]
        if first[-1] == k and out == first[:-1] + n and n not in first:
            return _rows_times(low, *operands)
    return _summed_at_once(low, names, out, operands)


def _summed_at_once(low: Lowering, names: list[str], out: str, operands: list[Value]) -> Value | None:
    """sum over the letters that `out` lacks of the operands' product, where a library would copy operands for a product of matrices."""
    type, estimate = COMPUTED[low.dtype], low.program.estimate
    letters = [pair for name, a in zip(names, operands, strict=True) for pair in zip(name, a.shape, strict=True)]
    sizes = dict(letters)
    if type != "float" or any(size != sizes[letter] for letter, size in letters):
        return None  # of one slice, which stands for all of the others'
    summed = [letter for letter in sizes if letter not in out]
    counts = [estimate(product(a.shape)) for a in operands]
    products, moved = estimate(product(sizes.values())), sum(counts) + estimate(product(low.shape))
    of_all = "".join(letter for letter in names[0] if letter in out and all(letter in name for name in names))
    copied = len(names) > 2 or not all(name.startswith(of_all) for name in names)
    along_sums = sum(count * (1 if name[-1:] in summed else -1) for name, count in zip(names, counts, strict=True)) > 0
    if summed and (along_sums or not copied or products > PRODUCTS_AT_ONCE * moved):
        return None
    for a, count in zip(operands, counts, strict=True):
        low.settle(a, math.ceil(products / max(count, 1)))

    def term(position) -> Expr:
        at = dict(zip([*summed, *out], position, strict=True))
        factors = (cast(a.at([at[letter] for letter in name]), type) for name, a in zip(names, operands, strict=True))
        return functools.reduce(lambda x, y: binary("mul", x, y), factors)

    if not summed:
        return low.formula(term)
    terms = low.formula(term, [sizes[letter] for letter in [*summed, *out]], torch.float32)
    return low.program.fold("sum", terms, range(len(summed)), [low.dtype])[0]


@_lowers("draft.triangular_product")
def triangular(low: Lowering, a: Value, b: Value, upper: bool) -> Value | None:
    """A product of which only one triangle is computed, in whole tiles, by halves; in panels by the library where that would not pay."""
    weights, sizes = (kept(low, a), kept(low, b)), (a.shape[0], b.shape[1], b.shape[0])
    if not parts_by_halves(low, (), *sizes, weights):
        return None
    for side in (a, b):
        low.settle(side, 1000)
    tiling = replace(PLAIN, triangle="upper" if upper else "lower")
    return multiplied(low, (), *sizes, a.at, b.at, low.shape, tiling, weights=weights)


def multiplied(
    low: Lowering,
    batch,
    rows,
    columns,
    depth,
    left,
    right,
    shape,
    tiling: Tiling = PLAIN,
    counts=None,
    weights=(False, False),
) -> Value | None:
    """A `product` definition over (*batch, rows, columns, depth) of left(*batch, row, step) and right(*batch, step, column).

    `counts(row, step)` is the condition under which a product is one of the sum; elsewhere the left is zero. `weights`: whether the left and the right are weights.
    """
    if COMPUTED[low.dtype] != "float":
        return None
    shared = (
        parts_by_halves(low, batch, rows, columns, depth, weights) if tiling is PLAIN else int(bool(tiling.triangle))
    )
    parts = shared or (1 if tiling.place else _parts(low, batch, rows, columns, depth))

    def times(position, right, condition=None) -> Expr:
        *at, m, n, k = position[parts > 1 :]
        k = k if parts == 1 else position[0] * (depth // parts) + k
        sides = cast(left([*at, m, k]), "float"), cast(right([*at, k, n]), "float")
        return binary("mul", sides[0], masked(condition(m, k) if condition else None, sides[1], constant(0, "float")))

    def element(position) -> Expr:
        return times(position, right, counts)

    def factors(position) -> Expr:
        return times(position, right)

    tiling = replace(tiling, factors=factors)
    if shared:
        at = [sympy.Integer(0)] * len(batch)
        whole = (lambda m, k: left([*at, m, k])), (lambda n, k: right([*at, k, n]))
        tiling = by_halves(low, tiling, batch, (rows, columns, depth // parts), parts, whole)
    if parts == 1:
        return low.program.multiply([*batch, rows, columns, depth], element, low.dtype, shape, tiling)
    ranges = [parts, *batch, rows, columns, depth // parts]
    found = low.program.multiply(ranges, element, torch.float32, [parts, *shape], tiling)
    summed = low.program.fold("sum", found, [0], [torch.float32])[0]
    return low.formula(lambda position: cast(summed.at(position), COMPUTED[low.dtype]), summed.shape, low.dtype)


def _parts(low: Lowering, batch, rows, columns, depth) -> int:
    """Into how many products of a part of the depth a GPU's blocks share a product of few tiles: a divisor of the depth."""
    if low.program.device != "cuda" or not depth.is_Integer:
        return 1
    batches, down, across = (low.program.estimate(size) for size in (product(batch), rows, columns))
    most = min(BLOCKS // (batches * -(-down // 128) * -(-across // 128)), int(depth) // SHORTEST)
    return next((parts for parts in range(most, 3, -1) if depth % parts == 0), 1)


@_lowers("aten.scaled_dot_product_attention.default")
def attention(low: Lowering, q, k, v, mask=None, dropout=0.0, causal=False, *, scale=None, enable_gqa=False):
    """softmax(q k^T * scale, masked) v, its scores in memory."""
    if not low.program.own_products or dropout or enable_gqa or COMPUTED[low.dtype] != "float":
        return None
    batch, rows, columns = q.shape[:-2], q.shape[-2], k.shape[-2]
    scale = 1 / math.sqrt(plain(q.shape[-1])) if scale is None else scale
    for side in (q, k, v):
        low.settle(side, 1000)
    scores = multiplied(
        low, batch, rows, columns, q.shape[-1], lambda p: q.at(broadcast(q, p)), lambda p: k.at(broadcast(k, [*p[:-2], p[-1], p[-2]])),
        (*batch, rows, columns),
    )  # fmt: skip

    if scores is None:
        return None

    def masked_score(position):
        score = binary("mul", scores.at(position), constant(scale, "float"))
        lowest = constant(float("-inf"), "float")
        if causal:
            score = where(compare("le", index_value(position[-1]), index_value(position[-2])), score, lowest)
        if mask is None:
            return score
        given = mask.at(broadcast(mask, position))
        return where(given, score, lowest) if mask.dtype == torch.bool else binary("add", score, cast(given, "float"))

    shaped = low.formula(masked_score, scores.shape, torch.float32)
    highest, total = shifted(low, shaped, [len(batch) + 1])

    def share(position):
        row = [*position[:-1], sympy.Integer(0)]
        apart = binary("sub", shaped.at(position), highest.at(row))
        return binary("div", unary("exp", apart), total.at(row))

    shares = low.formula(share, scores.shape, torch.float32)
    low.program.realise(shares)
    return multiplied(
        low,
        batch,
        rows,
        v.shape[-1],
        columns,
        shares.at,
        lambda p: v.at(broadcast(v, p)),
        (*batch, rows, v.shape[-1]),
    )
