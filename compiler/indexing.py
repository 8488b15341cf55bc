"""Places that are computed: gathers of anything, stores to places that others name, masks as indices. `extend_table` registers them.

A gather of a formula puts a symbol in the formula's place and what the symbol stands for into the result, so that nothing goes
through memory. What is written at computed places stays apart (`Scatter`) until it is known which tensor it changes in place.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import replace

import sympy
from torch import fx

from compiler.draft.expressions import (
    COMPUTED,
    Expr,
    all_of,
    binary,
    cast,
    compare,
    constant,
    index_value,
    make,
    pick,
    put,
    where,
)
from compiler.draft.index import FloorDiv, Index, Modulo, flatten, product, unflatten
from compiler.draft.lower_views import wrapped
from compiler.draft.lowering import LOWERINGS, Lowering, broadcast, extend, lowers
from compiler.draft.tensors import Definition, NoDraft, Position, Program, Scatter, Value
from compiler.operators import MOST_IN_TABLE

MOST_COMPARED = 64
"""Elements of a computed table that is chosen from by comparisons."""
MOST_SCATTERED = 16
"""Places along an axis up to which a scatter into a formula is one comparison each."""
Where = list[Index | Expr]
"""A position of which some indices are computed."""


# ------------------------------------------------------------------------------------------ reading at computed places


def read_at(a: Value, at: Where) -> Expr:
    """The element of `a` at a position."""
    at = [index.args[0] if isinstance(index, Expr) and index.op == "index" else index for index in at]
    # Terms stand in the order of their names, so these follow the axes. Those around a read within a read are in its position.
    taken = {str(symbol) for index in at if not isinstance(index, Expr) for symbol in index.free_symbols}
    free = (name for name in map("place_{:03}".format, itertools.count()) if name not in taken)
    symbols: dict[Expr, sympy.Symbol] = {}
    for index in at:
        if isinstance(index, Expr) and index not in symbols:
            symbols[index] = sympy.Symbol(next(free), integer=True, nonnegative=True)
    value = a.at([symbols[index] if isinstance(index, Expr) else index for index in at])
    return _put_in(value, {symbol: index for index, symbol in symbols.items()}) if symbols else value


def _put_in(expr: Expr, known: dict[sympy.Symbol, Expr]) -> Expr:
    """The expression with what the symbols stand for in their places."""
    done: dict[int, Expr] = {}

    def other(one: Expr) -> Expr | None:
        indices = [arg for arg in one.args if isinstance(arg, sympy.Expr)]
        if one.op not in ("index", "load", "load_at") or not any(i.free_symbols & known.keys() for i in indices):
            return None
        if one.op == "index":
            return cast(_computed(one.args[0], known), one.type)
        buffer, base, *more = one.args
        base, parts = _apart(base, known)
        if more:
            stride, place = more
            if stride.free_symbols & known.keys():
                raise NoDraft("a stride depends on a computed place")
            parts.append((put(place, other, done), stride))
        place, stride = together(parts)
        return make("load_at", buffer, base, stride, place, type=one.type)

    return put(expr, other, done)


def _apart(index: Index, known: dict[sympy.Symbol, Expr]) -> tuple[Index, list[tuple[Expr, Index]]]:
    """(what of an index is known, the computed rest as parts with their strides)."""
    base: list[Index] = []
    parts: list[tuple[Expr, Index]] = []
    for term in sympy.Add.make_args(sympy.expand(index)):
        factors = sympy.Mul.make_args(term)
        told = [factor for factor in factors if factor.free_symbols & known.keys()]
        if not told:
            base.append(term)
            continue
        stride = sympy.Mul(*(factor for factor in factors if factor not in told))
        parts.append((_computed(sympy.Mul(*told), known), stride))
    return sympy.Add(*base), parts


def _computed(index: Index, known: dict[sympy.Symbol, Expr]) -> Expr:
    """An index with computed parts as a value."""
    if not index.free_symbols & known.keys():
        return index_value(index)
    if index.is_Symbol:
        return cast(known[index], "int64_t")
    parts = [_computed(arg, known) for arg in index.args]
    if isinstance(index, FloorDiv):
        return make("floor_quotient", *parts, type="int64_t")
    if isinstance(index, Modulo):
        return make("floor_remainder", *parts, type="int64_t")
    if index.is_Pow:
        return functools.reduce(lambda a, b: binary("mul", a, b), [parts[0]] * int(index.args[1]))
    return functools.reduce(lambda a, b: binary("add" if index.is_Add else "mul", a, b), parts)


def together(parts: list[tuple[Expr, Index]]) -> tuple[Expr, Index]:
    """Computed indices with their strides as one index and what is common to the strides."""
    stride = functools.reduce(sympy.gcd, [stride for _, stride in parts])
    each = []
    for place, own in parts:
        times = sympy.cancel(own / stride)
        each.append(place if times == 1 else binary("mul", place, index_value(times)))
    return functools.reduce(lambda a, b: binary("add", a, b), each), stride


def split_place(at: Where, strides, base: Index = sympy.S.Zero) -> tuple[Index, list[tuple[Expr, Index]]]:
    """(what is known of a place, the computed indices with their strides)."""
    each = list(zip(at, strides, strict=True))
    known = sympy.Add(base, *(index * stride for index, stride in each if not isinstance(index, Expr)))
    return sympy.expand(known), [pair for pair in each if isinstance(pair[0], Expr)]


def _counts(place: Value) -> bool:
    return not place.dtype.is_floating_point and COMPUTED[place.dtype] != "bool"


# ------------------------------------------------------------------------------------------ operators that gather


def _named(places) -> tuple[list[int], tuple[Index, ...]] | None:
    """(the axes that tensors of integers name, the shape of these together); None where others name one."""
    named = [axis for axis, place in enumerate(places) if place is not None]
    if not all(_counts(places[axis]) for axis in named):
        return None
    rank = max(len(places[axis].shape) for axis in named)
    shape = []
    for axis in range(rank):
        own = [places[n].shape[axis - rank] for n in named if len(places[n].shape) >= rank - axis]
        shape.append(next((size for size in own if size != 1), own[0]))
    return named, tuple(shape)


def _places(low: Lowering, a: Value, named: list[int], places, rank: int, position: Position) -> Where:
    """Named axes stand together where the first one is, or in front where others lie between them."""
    first = _first(named)
    at, others = position[first : first + rank], iter([*position[:first], *position[first + rank :]])
    here = {axis: wrapped(low, places[axis].at(broadcast(places[axis], at)), a.shape[axis]) for axis in named}
    return [here[axis] if axis in here else next(others) for axis in range(len(a.shape))]


def _first(named: list[int]) -> int:
    return named[0] if named[-1] - named[0] < len(named) else 0


def _index(before, low: Lowering, a: Value, places):
    """Of a short table, of axes that integers name, or what a mask over leading axes chooses."""
    if low.program.settles:
        return before(low, a, places)
    (first, *more) = places
    if first is not None and first.type == "bool" and all(place is None for place in more):
        return _masked(low, a, first)
    found = _named(places)
    if found is None:
        return None
    named, shape = found
    short = a.buffer is None and len(a.shape) == 1 and a.shape[0].is_Integer and a.shape[0] <= MOST_IN_TABLE
    parts = [a.at([sympy.Integer(number)]) for number in range(int(a.shape[0]))] if short else []
    if 0 < len(parts) <= MOST_COMPARED or (short and all(part.op == "const" for part in parts)):
        return low.formula(lambda position: pick(wrapped(low, first.at(position), a.shape[0]), parts))
    return low.formula(lambda position: read_at(a, _places(low, a, named, places, len(shape), position)))


def _masked(low: Lowering, a: Value, mask: Value) -> Value:
    """What a mask chooses of the leading axes: positions stay those of the mask, whoever writes it asks the mask."""
    rank = len(mask.shape)
    size = low.shape[0]
    low.program.chosen[size] = (mask, product(mask.shape))

    def element(position: Position) -> Expr:
        return a.at([*unflatten(position[0], mask.shape, low.program.ranges), *position[1:]])

    return low.formula(element, (size, *a.shape[rank:]))


def _nonzero(low: Lowering, mask: Value):
    if low.program.settles:
        return None
    size = low.shape[0]
    low.program.chosen[size] = (mask, product(mask.shape))

    def element(position: Position) -> Expr:
        at = unflatten(position[0], mask.shape, low.program.ranges)
        return index_value(at[int(position[1])]) if position[1].is_Integer else pick(
            index_value(position[1]), [index_value(one) for one in at]
        )  # fmt: skip

    return low.formula(element)


def _along(low: Lowering, a: Value, dim: int, indices: Value, rank: int):
    def element(position: Position) -> Expr:
        place = wrapped(low, indices.at(position[dim : dim + rank]), a.shape[dim])
        return read_at(a, [*position[:dim], place, *position[dim + rank :]])

    return low.formula(element)


def _gather(low: Lowering, a: Value, dim, indices: Value, **_):
    dim %= len(a.shape)

    def element(position: Position) -> Expr:
        place = cast(indices.at(position), "int64_t")
        return read_at(a, [place if axis == dim else p for axis, p in enumerate(position)])

    return low.formula(element)


class MemoryNeeded(NoDraft):
    """The reference has a step whose result others read at other places."""


def is_kept(low: Lowering) -> bool:
    """Whether definitions may hand on what they made; drafts leave these operators as they are. Raises MemoryNeeded."""
    if not low.program.settles and not low.program.in_memory:
        raise MemoryNeeded(
            f"the reference needs {low.name}, of which others read other places: that needs memory of its own"
        )
    return bool(low.program.in_memory)


# ------------------------------------------------------------------------------------------ operators that scatter


def into(program: Program, name: str, base: Value, kind: str, shape, element, at, when=None) -> Value:
    """`base` with elements over `shape` put (`map`) or added (`add`) at positions of which some indices are computed."""
    made = program.formula(base.shape, base.dtype, base.at, name)
    buffer = program.realise(made)
    type, strides = COMPUTED[base.dtype], made.strides

    def split(position: Position):
        plain = [one.args[0] if isinstance(one, Expr) and one.op == "index" else one for one in at(position)]
        known, computed = split_place(plain, strides)
        return known, computed or [(index_value(sympy.S.Zero), sympy.S.One)]

    order = program.next_order()
    program.definitions.append(Definition(
        order, kind, tuple(shape), frozenset(), lambda position: cast(element(position), type), [buffer], name, type,
        place=lambda position: split(position)[0], by=lambda position: together(split(position)[1]), when=when,
    ))  # fmt: skip
    return program.whole(buffer, order, name)


def put_into_copy(program: Program, scatter: Scatter) -> Value:
    """What is written at computed places of a copy, where it is no tensor of the call that may change. Raises MemoryNeeded."""
    if not program.in_memory:
        raise MemoryNeeded("what is written at computed places is a copy: that needs memory of its own")
    base, now, when = scatter.base, scatter.now, scatter.when if scatter.is_partial else None
    if now is not base and not (now.buffer is base.buffer is not None and now.is_whole and base.is_whole):
        raise NoDraft("a view is taken of a copy that was written at computed places; take it before")
    return program.reshape(
        into(program, "copy", base, "map", scatter.shape, scatter.source.at, scatter.at, when), now.shape
    )


def _index_put(low: Lowering, a: Value, places, source, accumulate=False):
    """Which of two elements for one place wins is nobody's promise, as in torch."""
    if low.program.settles:
        return None
    if a.scatter is not None:
        raise NoDraft("what was written at computed places is written again")
    (first, *more) = places
    if first is not None and first.type == "bool" and all(place is None for place in more) and not accumulate:
        return _put_where(low, a, first, source)
    if a.buffer in low.program.copied and not accumulate:
        raise NoDraft(
            "a tensor is changed in place where numbers say, and read there: say in the spec that they differ"
        )
    found = _named(places)
    if found is None:
        return None
    named, counts = found
    rank = len(counts)
    chosen = [low.program.chosen[size] for size in counts if size in low.program.chosen]
    over = tuple(low.program.chosen[size][1] if size in low.program.chosen else size for size in counts)
    first, others = _first(named), [size for axis, size in enumerate(a.shape) if axis not in named]
    shape = (*others[:first], *over, *others[first:])
    read = low.as_value(source, COMPUTED[a.dtype])
    whole = low.program.formula(shape, a.dtype, lambda position: read(position, shape), low.name)
    if isinstance(source, Value) and source.shape == shape:
        whole.pieces = source.pieces

    if chosen and rank != 1:
        raise NoDraft("places that a mask chose are used beside others")

    def when(position: Position) -> Expr:
        mask = chosen[0][0]
        return mask.at(unflatten(position[first], mask.shape, low.program.ranges))

    at = lambda position: _places(low, a, named, places, rank, position)  # noqa: E731
    if accumulate and len(named) == 1 and places[named[0]].is_whole and places[named[0]].buffer in low.program.distinct:
        each = whole  # an element each is added to

        def added(position: Position) -> Expr:
            own = read_at(a, at(position))
            return cast(binary("add", own, cast(each.at(position), own.type)), a.type)

        whole, accumulate = low.program.formula(shape, a.dtype, added, low.name), False
    if accumulate:
        is_kept(low)
    if accumulate or (low.program.in_memory and (a.buffer not in low.program.given or not _is_returned(low.node))):
        return into(
            low.program, low.name, a, "add" if accumulate else "map", shape, whole.at, at, when if chosen else None
        )
    return _scattered(low, Scatter(a, a, shape, whole, at, when, bool(chosen)))


def _is_returned(node: fx.Node) -> bool:
    """Whether nothing but the reference's results reads it, through views or as part of another tensor."""
    passed = (*VIEWS, *(f"aten.{name}" for name in ("slice.Tensor", "slice_scatter.default", "select_scatter.default")))
    return all(user.op == "output" or (str(user.target) in passed and _is_returned(user)) for user in node.users)


def _scattered(low: Lowering, scatter: Scatter) -> Value:
    def unread(position: Position) -> Expr:
        raise (NoDraft if low.program.in_memory else MemoryNeeded)("what was written at computed places is read again")

    value = low.program.formula(scatter.now.shape, scatter.base.dtype, unread, low.name)
    value.scatter = scatter
    return value


def _put_where(low: Lowering, a: Value, mask: Value, source) -> Value:
    """Of elements that a mask names."""
    rank = len(mask.shape)
    read, type = low.as_value(source, a.type), a.type
    one = not isinstance(source, Value) or product(source.shape) == 1
    if not one and not any(low.program.chosen.get(size, (None,))[0] is mask for size in source.shape[:1]):
        raise NoDraft("what is written where a mask holds was not chosen by the same mask")

    def element(position: Position) -> Expr:
        lead = position[:rank]
        value = read([flatten(lead, mask.shape), *position[rank:]], a.shape[rank - 1 :])
        return where(mask.at(lead), cast(value, type), a.at(position))

    return low.formula(element, a.shape, a.dtype)


def _index_copy(low: Lowering, a: Value, dim, indices: Value, source: Value):
    return _index_put(low, a, [*[None] * (dim % len(a.shape)), indices], source)


def _scatter(low: Lowering, a: Value, dim, indices: Value, source, **_):
    """Of few places along the axis: an element is the last one that goes there, or what was."""
    dim %= len(a.shape)
    count, type = indices.shape[dim], a.type
    same = all(size == own for axis, (size, own) in enumerate(zip(indices.shape, a.shape, strict=True)) if axis != dim)
    if low.program.settles or not count.is_Integer or count > MOST_SCATTERED or not same:
        return None
    read = low.as_value(source, type)

    def element(position: Position) -> Expr:
        value, own = a.at(position), index_value(position[dim])
        for number in range(int(count)):
            at = [sympy.Integer(number) if axis == dim else p for axis, p in enumerate(position)]
            here = compare("eq", cast(indices.at(at), "int64_t"), own)
            value = where(here, read(at, indices.shape), value)
        return value

    return low.formula(element)


# ------------------------------------------------------------------------------------------ views of what was scattered


def _seen_through(before, low: Lowering, a, *more, **keywords):
    """A view of a tensor that was written at computed places: what is written stays, its places lie in the tensor before."""
    if not isinstance(a, Value) or a.scatter is None:
        return before(low, a, *more, **keywords)
    return _scattered(low, replace(a.scatter, now=before(low, a.scatter.now, *more, **keywords)))


def begin_of(a: Value, dim: int, start) -> Index:
    """Where a slice of an axis begins."""
    first = sympy.sympify(0 if start is None else start)
    return a.shape[dim] + first if first.is_Integer and first < 0 else first


def _narrowed(before, low: Lowering, a: Value, dim=0, start=None, end=None, step=1):
    """A slice of what was scattered into a concatenation, where it is one of its parts: what goes elsewhere is not written."""
    scatter = a.scatter
    if scatter is None or not isinstance(scatter.now, Value):
        return _piece_of(low, a, dim, start, step) or before(low, a, dim, start, end, step)
    dim %= len(a.shape)
    first, size = begin_of(a, dim, start), low.shape[dim]
    if scatter.now is not scatter.base or step != 1:
        return _scattered(low, replace(scatter, now=before(low, scatter.now, dim, start, end, step)))
    part = before(low, scatter.base, dim, start, end, step)
    for piece in scatter.base.pieces:
        if piece.axis == dim and piece.start == first and piece.value.shape[dim] == size:
            part = piece.value
    before_at, before_when, whole = scatter.at, scatter.when, a.shape[dim]

    def at(position: Position) -> Where:
        found = before_at(position)
        if first != 0:
            own = found[dim]
            found[dim] = binary("sub", own, index_value(first)) if isinstance(own, Expr) else own - first
        return found

    def when(position: Position) -> Expr:
        own = before_at(position)[dim]
        place = own if isinstance(own, Expr) else index_value(own)
        said = [before_when(position)] if scatter.is_partial else []
        if first != 0:
            said.append(compare("ge", place, index_value(first)))
        if first + size != whole:
            said.append(compare("lt", place, index_value(first + size)))
        return all_of(said) or constant(True, "bool")

    return _scattered(low, Scatter(part, part, scatter.shape, scatter.source, at, when, True))


def _piece_of(low: Lowering, a: Value, dim, start, step) -> Value | None:
    """A slice of a concatenation that is one of its parts."""
    if low.program.settles or not a.shape or a.buffer is not None or step != 1:
        return None
    first = begin_of(a, dim % len(a.shape), start)
    for piece in a.pieces:
        same = len(piece.value.shape) == len(a.shape) and piece.axis == dim % len(a.shape)
        if same and piece.start == first and piece.value.shape == low.shape:
            return piece.value
    return None


def _put_back(view: str, before, low: Lowering, a: Value, source, *more, **keywords):
    """What was scattered into a slice of a tensor, put back into the tensor: the rest of it is as it was."""
    if not isinstance(source, Value) or source.scatter is None:
        return before(low, a, source, *more, **keywords)
    own, now = LOWERINGS[view](_Shaped(low, source), a, *more), source.scatter.now
    if now.buffer is None or (own.buffer, own.offset, own.strides) != (now.buffer, now.offset, now.strides):
        return None
    return _scattered(low, replace(source.scatter, now=a))


class _Shaped(Lowering):
    """The lowering of a view of another shape than the node's."""

    def __init__(self, low: Lowering, like: Value) -> None:
        super().__init__(low.program, low.node, low.uses)
        self._shape = like.shape

    @property
    def shape(self) -> tuple[Index, ...]:
        return self._shape


def _only_compiled(lowering, before, low: Lowering, a: Value, *more, **keywords):
    """In place of the draft's, which keeps what it gathers from in memory."""
    kept = low.program.settles or a.buffer is not None
    return (before if kept else lowering)(low, a, *more, **keywords)


def _select_along(low: Lowering, a: Value, dim, indices: Value):
    return _along(low, a, dim % len(a.shape), indices, 1)


def _embedding(low: Lowering, a: Value, indices: Value, *_, **__):
    return _along(low, a, 0, indices, len(indices.shape))


VIEWS = (
    "aten.view.default", "aten._unsafe_view.default", "aten.reshape.default", "aten.permute.default", "aten.transpose.int",
    "aten.unsqueeze.default", "aten.squeeze.dim", "aten.squeeze.dims", "aten.alias.default", "aten.clone.default",
    "aten._to_copy.default", "aten.select.int", "aten.t.default", "aten.detach.default",
)  # fmt: skip


def extend_table() -> None:
    extend(_index, "aten.index.Tensor")
    LOWERINGS["aten._unsafe_index.Tensor"] = LOWERINGS["aten.index.Tensor"]
    lowers("aten.nonzero.default")(_nonzero)
    lowers("aten.index_put.default", "aten._unsafe_index_put.default")(_index_put)
    lowers("aten.index_copy.default")(_index_copy)
    lowers("aten.scatter.src", "aten.scatter.value")(_scatter)
    for name, lowering in (("gather", _gather), ("index_select", _select_along), ("embedding", _embedding)):
        extend(functools.partial(_only_compiled, lowering), f"aten.{name}.default")
    extend(_seen_through, *VIEWS)
    extend(_narrowed, "aten.slice.Tensor")
    extend(functools.partial(_put_back, "aten.slice.Tensor"), "aten.slice_scatter.default")
    extend(functools.partial(_put_back, "aten.select.int"), "aten.select_scatter.default")
