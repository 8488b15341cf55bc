"""Operators that only say where an element is: views, slices, concatenation, padding, constants."""

from __future__ import annotations

import sympy
import torch

from . import library
from .expressions import (
    COMPUTED,
    Expr,
    all_of,
    cast,
    compare,
    constant,
    index_value,
    make,
    masked,
    replace_indices,
    where,
)
from .index import Index, divide, flatten, joined, modulo, number, product, substitute
from .lowering import Lowering, broadcast, lowers, plain, size_of
from .tensors import Piece, Value

MOST_JOINED = 4
"""Pieces up to which a concatenation is read where its pieces are; more of them are copied by torch."""
MOST_ALONE = 64
"""Likewise, where there is no torch to copy them."""


@lowers("aten.view.default", "aten.reshape.default", "aten._unsafe_view.default", "aten.unsqueeze.default",
        "aten.squeeze.dims", "aten.squeeze.dim", "aten.squeeze.default", "aten.flatten.using_ints", "aten.unflatten.int",
        "aten.view_as.default")  # fmt: skip
def reshaped(low: Lowering, a, *_, **__):
    return low.program.reshape(a, low.shape)


@lowers("aten.permute.default")
def permute(low: Lowering, a: Value, order):
    order = [axis % len(order) for axis in order]
    if a.buffer is not None:
        return low.program.strided(a, [a.shape[o] for o in order], [a.strides[o] for o in order], a.offset)

    def formula(position):
        source = [sympy.Integer(0)] * len(order)
        for place, axis in zip(position, order, strict=True):
            source[axis] = place
        return a.at(source)

    return low.formula(formula)


@lowers("aten.transpose.int", "aten.t.default", "aten.numpy_T.default", "aten.swapaxes.default")
def transpose(low: Lowering, a: Value, first=0, second=1):
    order = list(range(len(a.shape)))
    if len(order) > 1:
        first, second = first % len(order), second % len(order)
        order[first], order[second] = order[second], order[first]
    return permute(low, a, order)


@lowers("aten.expand.default", "aten.broadcast_to.default", "aten.expand_as.default")
def expand(low: Lowering, a: Value, *_, **__):
    shape = low.shape
    if a.buffer is not None:
        missing = len(shape) - len(a.shape)
        own = zip(a.shape, a.strides, shape[missing:], strict=True)
        strides = [sympy.Integer(0)] * missing + [sympy.Integer(0) if s == 1 and n != 1 else t for s, t, n in own]
        return low.program.strided(a, shape, strides, a.offset)
    return low.formula(lambda position: a.at(broadcast(a, position)))


@lowers("aten.slice.Tensor")
def narrow(low: Lowering, a: Value, dim=0, start=None, end=None, step=1):
    dim %= len(a.shape)
    return _moved(low, a, {dim: (_start(low, start, a.shape[dim]), number(step))})


def _start(low: Lowering, start, size: Index) -> Index:
    """Where a slice of an axis begins."""
    start = number(0 if start is None else start)
    known = start.subs(low.program.hints)  # x[-n:]: the exporter has asked for its sign, too
    if known < 0 if known.is_number else known.is_negative:
        start = sympy.expand(size + start)
    return max(0, min(start, size)) if start.is_Integer and size.is_Integer else start


@lowers("aten.slice_scatter.default")
def slice_scatter(low: Lowering, a: Value, part: Value, dim=0, start=None, _end=None, step=1):
    """`a` with `part` in place of a slice: where that is all of it, `part` itself."""
    dim %= len(a.shape)
    first, by, size = _start(low, start, a.shape[dim]), plain(step), part.shape[dim]
    if by == 1 and size == a.shape[dim] and part.shape == a.shape and part.dtype == a.dtype:
        return part

    def formula(position):
        place = sympy.expand(position[dim] - first)
        inside = [compare("ge", index_value(position[dim]), index_value(first))] if first != 0 else []
        inside.append(compare("lt", index_value(place), index_value(size * by)))
        if by != 1:
            inside.append(
                compare("eq", index_value(modulo(place, number(by), low.program.ranges)), index_value(number(0)))
            )
        at = list(position)
        at[dim] = divide(place, number(by), low.program.ranges)
        return masked(all_of(inside), cast(part.at(broadcast(part, at)), a.type), a.at(position))

    return low.formula(formula)


@lowers("aten.repeat.default")
def repeat(low: Lowering, a: Value, counts):
    if 0 in a.shape:
        return None
    low.settle(a)
    first, ranges = len(counts) - len(a.shape), low.program.ranges

    def formula(position):
        places = zip(position[first:], a.shape, counts[first:], strict=True)
        return a.at([p if count == 1 else modulo(p, size, ranges) for p, size, count in places])

    return low.formula(formula)


@lowers("aten.unfold.default")
def unfold(low: Lowering, a: Value, dim, _size, step):
    """Windows along an axis, their places along a new one behind the others."""
    if not a.shape:
        return None
    dim %= len(a.shape)
    low.settle(a)
    if a.buffer is not None:
        strides = [s * step if axis == dim else s for axis, s in enumerate(a.strides)]
        return low.program.strided(a, low.shape, [*strides, a.strides[dim]], a.offset)
    return low.formula(lambda p: a.at([*p[:dim], p[dim] * step + p[-1], *p[dim + 1 : -1]]))


def _moved(low: Lowering, a: Value, places: dict[int, tuple[Index, Index]]) -> Value:
    """The view with position start + step * place along some axes."""
    if a.buffer is not None:
        offset = a.offset + sympy.Add(*(start * a.strides[axis] for axis, (start, _) in places.items()))
        strides = [s * places[axis][1] if axis in places else s for axis, s in enumerate(a.strides)]
        if a.buffer in low.program.elsewhere:
            return library.bring(low, a.buffer, strides, offset)
        return low.program.strided(a, low.shape, strides, offset)

    def formula(position):
        return a.at([places[x][0] + places[x][1] * p if x in places else p for x, p in enumerate(position)])

    return low.formula(formula)


@lowers("aten.select.int")
def select(low: Lowering, a: Value, dim, index):
    dim %= len(a.shape)
    place = number(index)
    if place.is_Integer and place < 0:
        place = a.shape[dim] + place
    if a.buffer is not None:
        rest = [axis for axis in range(len(a.shape)) if axis != dim]
        return low.program.strided(
            a, [a.shape[x] for x in rest], [a.strides[x] for x in rest], a.offset + place * a.strides[dim]
        )
    return low.formula(lambda position: a.at([*position[:dim], place, *position[dim:]]))


def _pieces(low: Lowering, a: Value, sizes, dim: int):
    start, parts = sympy.Integer(0), []
    for meta, size in zip(low.meta, sizes, strict=True):
        parts.append(_moved(low.part(meta), a, {dim % len(a.shape): (start, sympy.Integer(1))}))
        start = start + number(size)
    return tuple(parts)


@lowers("aten.split_with_sizes.default")
def split_with_sizes(low: Lowering, a: Value, sizes, dim=0):
    return _pieces(low, a, sizes, dim)


@lowers("aten.split.Tensor", "aten.chunk.default")
def split(low: Lowering, a: Value, _, dim=0):
    return _pieces(low, a, [size_of(meta.shape[dim]) for meta in low.meta], dim)


@lowers("aten.unbind.int")
def unbind(low: Lowering, a: Value, dim=0):
    return tuple(select(low.part(meta), a, dim, place) for place, meta in enumerate(low.meta))


@lowers("aten.flip.default")
def flip(low: Lowering, a: Value, dims):
    turned = {dim % len(a.shape) for dim in dims}

    def formula(position):
        return a.at([a.shape[x] - 1 - p if x in turned else p for x, p in enumerate(position)])

    return low.formula(formula)


@lowers("aten.roll.default")
def roll(low: Lowering, a: Value, shifts, dims=()):
    shifts = [shifts] if isinstance(shifts, int) else list(shifts)
    dims = [dims] if isinstance(dims, int) else list(dims)
    if not dims:
        return low.program.reshape(roll(low, low.program.reshape(a, [product(a.shape)]), shifts, 0), a.shape)
    by = {dim % len(a.shape): shift for dim, shift in zip(dims, shifts, strict=True)}
    ranges = low.program.ranges

    def place(axis, p):
        if axis not in by:
            return p
        size, shift = a.shape[axis], by[axis]
        least = int(
            size.subs(dict.fromkeys(size.free_symbols, 1))
        )  # a smaller size than the shift turns more than once
        turned = (
            -shift % int(size)
            if size.is_Integer
            else size * max(1, -(-shift // least)) - shift
            if shift > 0
            else -shift
        )
        return modulo(p + turned, size, ranges)

    return low.formula(lambda position: a.at([place(x, p) for x, p in enumerate(position)]), a.shape)


@lowers("aten.cat.default")
def cat(low: Lowering, parts, dim=0):
    parts = [part for part in parts if part.shape != (0,)]
    return None if len(parts) > most_joined(low) else side_by_side(low, parts, dim)


def most_joined(low: Lowering) -> int:
    return MOST_JOINED if low.program.settles else MOST_ALONE


def side_by_side(low: Lowering, parts, dim: int) -> Value:
    """The pieces one after another along an axis, each read where it is."""
    dim %= len(low.shape)
    type = COMPUTED[low.dtype]
    ends = [sympy.Add(*(part.shape[dim] for part in parts[: count + 1])) for count in range(len(parts))]
    knows, ranges = not low.program.settles, low.program.ranges

    def within(part: Value, at: list[Index]) -> Expr:
        # What is read is known to be inside, which a place in the whole does not say: a variable does.
        own, inner = at[dim], part.shape[dim]
        if not knows or ranges.below(own, inner):
            return part.at(at)
        at[dim] = ranges.variable(low.program.name("inner"), inner)
        shift = {at[dim]: own}
        return replace_indices(part.at(at), lambda index: joined(substitute(index, shift, ranges)))

    def formula(position):
        found = None
        for part, end in reversed(list(zip(parts, ends, strict=True))):
            at, start = list(position), end - part.shape[dim]
            at[dim] = sympy.expand(position[dim] - start)
            behind = found is None and part is not parts[0] and low.program.ranges.below(position[dim], start)
            beyond = sympy.Add.make_args(sympy.expand(position[dim] - end))
            before = found is not None and all(term.as_coeff_Mul()[0] >= 0 for term in beyond)
            if knows and (behind or before):
                continue  # of what is asked for nothing lies in it
            element = cast(within(part, at), type)
            inside = compare("lt", index_value(position[dim]), index_value(end))
            found = element if found is None else masked(inside, element, found)
        return found

    def piece(part: Value, start: Index) -> Piece:
        def place(position):
            at = list(position)
            at[dim] = at[dim] + start
            return flatten(at, whole.shape)

        return Piece(part, place, dim, start)

    whole = low.formula(formula)
    whole.pieces = tuple(piece(part, end - part.shape[dim]) for part, end in zip(parts, ends, strict=True))
    return whole


@lowers("aten.stack.default")
def stack(low: Lowering, parts, dim=0):
    if len(parts) > most_joined(low):
        return None
    dim %= len(low.shape)
    raised = [low.program.reshape(p, [*p.shape[:dim], 1, *p.shape[dim:]]) for p in parts]
    return cat(low, raised, dim)


@lowers("aten.constant_pad_nd.default")
def pad(low: Lowering, a: Value, amounts, value=0):
    before = {len(a.shape) - 1 - count // 2: amounts[count] for count in range(0, len(amounts), 2)}
    type, after = COMPUTED[low.dtype], {len(a.shape) - 1 - c // 2: amounts[c + 1] for c in range(0, len(amounts), 2)}

    def formula(position):
        # What is read is known to be inside, which a difference that may be negative does not say: a variable does.
        at, inside, shifts = list(position), [], {}
        for axis, amount in before.items():
            if amount:
                if amount > 0:
                    inside.append(compare("ge", index_value(position[axis]), index_value(number(amount))))
                at[axis] = low.program.ranges.named(low.program.name("inner"), a.shape[axis])
                shifts[at[axis]] = position[axis] - amount
            if after[axis] > 0:
                inside.append(compare("lt", index_value(position[axis]), index_value(a.shape[axis] + amount)))
        value_at = a.at(at)
        if shifts:
            value_at = replace_indices(value_at, lambda index: joined(index.xreplace(shifts)))
        return masked(all_of(inside), value_at, constant(value, type))

    return low.formula(formula)


for _name, _kept in {"triu": "ge", "tril": "le"}.items():

    def _triangle(low: Lowering, a: Value, diagonal=0, *, _kept=_kept):
        def formula(position):
            row, column = index_value(position[-2] + diagonal), index_value(position[-1])
            return masked(compare(_kept, column, row), a.at(position), constant(0, a.type))

        return low.formula(formula)

    lowers(f"aten.{_name}.default")(_triangle)


@lowers("aten.diag.default", "aten.diagonal.default", "aten.diag_embed.default")
def diag(low: Lowering, a: Value, offset=0, dim1=None, dim2=None):
    standard = (dim1, dim2) in ((None, None), (0, 1), (-2, -1))
    if offset != 0 or not standard or len(a.shape) + len(low.shape) != 3:
        return None
    if len(a.shape) == 2:
        return low.formula(lambda position: a.at([position[0], position[0]]))

    def formula(position):
        on = compare("eq", index_value(position[0]), index_value(position[1]))
        return masked(on, a.at([position[0]]), constant(0, a.type))

    return low.formula(formula)


@lowers("aten.full.default", "aten.full_like.default", "aten.new_full.default")
def full(low: Lowering, _, value, *rest, **__):
    filled = rest[0] if rest and str(low.node.target) == "aten.new_full.default" else value
    return low.formula(lambda position: low.as_value(filled, COMPUTED[low.dtype])(position, low.shape))


@lowers("aten.scalar_tensor.default")
def scalar_tensor(low: Lowering, value, **__):
    return low.formula(lambda position: low.as_value(value, COMPUTED[low.dtype])(position, low.shape))


for _name, _value in {"zeros": 0, "ones": 1}.items():

    def _filled(low: Lowering, *_, _value=_value, **__):
        return low.formula(lambda position: constant(_value, COMPUTED[low.dtype]))

    lowers(f"aten.{_name}.default", f"aten.{_name}_like.default", f"aten.new_{_name}.default")(_filled)


@lowers("aten.arange.default", "aten.arange.start", "aten.arange.start_step")
def arange(low: Lowering, first, end=None, step=1, **__):
    start = 0 if end is None else first
    if not all(isinstance(x, (int, sympy.Expr)) for x in (start, step)):
        return None
    return low.formula(lambda position: index_value(start + step * position[0], COMPUTED[low.dtype]))


@lowers("aten.embedding.default")
def embedding(low: Lowering, table: Value, indices: Value, *_, **__):
    return gathered(low, table, 0, indices, len(indices.shape))


@lowers("aten.index_select.default")
def index_select(low: Lowering, a: Value, dim, indices: Value):
    return gathered(low, a, dim % len(a.shape), indices, 1) if indices.shape else None


def gathered(low: Lowering, a: Value, dim: int, indices: Value, rank: int):
    """Elements of `a` at places along `dim` that a tensor names; negative ones count from the end."""
    if a.buffer is None:  # a view of what is in memory is read where it lies
        low.program.realise(a)

    def formula(position):
        place = wrapped(low, indices.at(position[dim : dim + rank]), a.shape[dim])
        return a.along(dim, place, [*position[:dim], *position[dim + rank :]])

    return low.formula(formula)


def wrapped(low: Lowering, place, size: Index):
    """An index into an axis: a negative one counts from its end."""
    counts = _is_never_negative(low, place)
    place = cast(place, "int64_t")
    if counts:
        return place
    behind = make("add", place, index_value(size), type="int64_t")
    return where(compare("lt", place, constant(0, "int64_t")), behind, place)


def _is_never_negative(low: Lowering, place) -> bool:
    """Of an integer expression, where what it is made of says so."""
    if place.op == "load":
        return place.args[0] in low.program.non_negative or place.args[0].dtype == torch.uint8
    if place.op == "const":
        return place.args[0] >= 0
    parts = [arg for arg in place.args if hasattr(arg, "op")]
    if place.op == "round_to" and place.args[1] == "uint8":
        return True
    if place.op == "bit_and":
        return any(_is_never_negative(low, part) for part in parts)
    if place.op in ("masked", "where"):
        return all(_is_never_negative(low, part) for part in parts[1:])
    return place.op in ("cast", "round_to", "shift_right") and _is_never_negative(low, parts[0])


@lowers("aten.gather.default")
def gather(low: Lowering, a: Value, dim, indices: Value, **__):
    if a.buffer is None:
        low.program.realise(a)
    dim %= len(a.shape)

    def formula(position):
        return a.along(dim, cast(indices.at(position), "int64_t"), [*position[:dim], *position[dim + 1 :]])

    return low.formula(formula)


@lowers("aten.index.Tensor")
def index(low: Lowering, a: Value, places):
    """One tensor of indices along one axis is a gather; more are torch's."""
    named = [axis for axis, place in enumerate(places) if place is not None]
    if len(named) != 1 or places[named[0]].dtype == torch.bool:
        return None
    chosen = places[named[0]]
    return gathered(low, a, named[0], chosen, len(chosen.shape))


@lowers("aten.upsample_nearest2d.vec", "aten.upsample_nearest2d.default")
def upsample_nearest(low: Lowering, a: Value, *_, **__):
    sizes = [(plain(o), plain(i)) for o, i in zip(low.shape[2:], a.shape[2:], strict=True)]
    if any(out % into for out, into in sizes):
        return None
    ranges = low.program.ranges

    def formula(position):
        near = [divide(p, o // i, ranges) for p, (o, i) in zip(position[2:], sizes, strict=True)]
        return a.at([*position[:2], *near])

    return low.formula(formula)
