"""Tensors of a draft: what is in memory, what is only a formula yet, and what computes each.

A `Value` is a shape with a function from a position to an `Expr`. It costs nothing until `Program.realise` gives it a
`Buffer`; until then whoever reads it computes it. Views change positions only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import sympy
import torch

from .expressions import COMPUTED, Expr, NoDraft, SizeNeeded, cast, loads_of, make
from .index import Index, Ranges, estimate, flatten, joined, number, product, strides_of, unflatten, viewed_strides
from .planes import Stages

if TYPE_CHECKING:
    from .halves import Side
    from .lower_convolutions import ImageWindow

__all__ = ["NoDraft", "Program", "SizeNeeded", "Value"]

Position = Sequence[Index]


@dataclass(eq=False)
class Buffer:
    """Contiguous memory of a shape. `text` is what the candidate's Python code calls it."""

    name: str
    shape: tuple[Index, ...]
    dtype: torch.dtype
    text: str = ""
    written_by: Definition | Library | None = None

    @property
    def elements(self) -> Index:
        return product(self.shape)


@dataclass(frozen=True)
class Tiling:
    """What a `product` says beyond its element; positions are (*batch, row, column) or with the step of the depth behind them."""

    rounded: bool = False
    """Whether its operands may be rounded to TF32."""
    ties_to_even: bool = False
    """Where two TF32 numbers are as near; else the one away from zero."""
    factors: Callable[[Position], Expr] | None = None
    """The element as a product of what depends on (row, step) and on (column, step) alone: equal where everything is finite."""
    place: Callable[[Position], Index] | None = None
    """The element of the out that a result goes to, where that is not the row-major one."""
    inside: Callable[[Position], list[tuple[Index, Index]]] = lambda position: []
    """(coordinate, end): results beyond an end go nowhere."""
    sparse: bool = False
    """Whether the out has elements that no result goes to: zeros."""
    in_tf32: bool = False
    """Whether what `factors` loads for the left are TF32 numbers in memory already."""
    triangle: str = ""
    """`upper` or `lower` where the results in the tiles of that triangle are all that is wanted; such a product goes by halves."""
    halves: tuple[Side, Side] | None = None
    """The prepared left and right, where float32s are multiplied by halves (halves.py)."""

    @property
    def filled(self) -> list[Buffer]:
        """What is filled before the product, for it alone."""
        sides = [side for side in self.halves or () if not side.ready]
        return [b for side in sides for b in (side.lines, side.largest)]


PLAIN = Tiling()


@dataclass(frozen=True)
class Recurrence:
    """What a `recurrence` says: all steps of some cells, which are the layers of a recurrent network or the directions of one layer."""

    cell: str
    """rnn_tanh, rnn_relu, gru or lstm."""
    hidden: int
    """Units of a cell."""
    cells: int
    layers: bool
    """Whether the cells are layers, each of which takes what the one below makes; else directions, of which the second goes backwards."""
    batch_first: bool
    first: int
    """The cell's number in what the module was given as initial states."""
    steps: Index
    batch: Index
    buffers: dict[str, Buffer]
    """By what it is for: see the struct of recurrences.py."""
    rounds: tuple[bool, bool] = (False, False)
    """Whether products with what the layer below made, and with what was a step before, are of operands rounded to TF32."""


@dataclass(frozen=True)
class Planes:
    """What a `convolution` says: see planes.py. One number an axis of the places, where there are several."""

    batch: Index
    groups: int
    channels: int
    """Of the input, of a group."""
    rows: int
    """Of the product, of a group: output channels (out_each) times classes, which count the remainders of a place by `apart`."""
    out_each: int
    size: list[int]
    """Of the input."""
    before: list[int]
    """Places of the plane that lie before the input's first."""
    plane: list[int]
    taps: list[int]
    step: list[int]
    """Column q of the product reads, for tap j, place q + step * j of the plane."""
    columns: list[int]
    apart: list[int]
    classes: list[int]
    """Column q of class c is place apart * q + c of the result."""
    major: int
    """Axes, the first ones, whose classes stand before the output channel in a row's number; the others' behind it."""
    used: list[list[list[int]]]
    """Of each axis, of each class: the taps it has."""
    out: list[int]
    window: list[int]
    given: list[tuple[int, int, int]]
    """The convolution's own: its window, and (stride, padding, dilation)."""
    transposed: bool
    ties_to_even: bool
    """Where two TF32 numbers are as near an operand; else the one away from zero."""
    stages: Stages
    buffers: dict[str, Buffer]
    """input, weight: as they are; steps: the weights as [group, row, tap, channel] in float32; planes, halves, unscale, state: working memory."""


@dataclass(eq=False)
class Definition:
    """A loop nest that fills buffers: over `ranges`, of which the axes in `reduced` are folded by `kind`.

    `map`: out[position] = element(position). A fold (`sum`, `prod`, `max`, `min`, `argmax`, `argmin`, `any`, `all`, `welford`: mean
    and sum of squared deviations, `softmax`: maximum and sum of exponentials shifted by it): outs[...][kept axes]. `product`: a sum of products along
    the last axis, of matrices. `recurrence`: see Recurrence, `convolution`: see Planes; their elements only name what they read. `scan_sum`, `scan_prod`: out has the ranges' shape and accumulates along the one axis in `reduced`.
    """

    order: int
    kind: str
    ranges: tuple[Index, ...]
    reduced: frozenset[int]
    element: Callable[[Position], Expr]
    outs: list[Buffer]
    origin: str
    """The operator that asked for it, for names and comments."""
    type: str = "float"
    exclusive: bool = False
    backwards: bool = False
    tiling: Tiling = PLAIN
    recurrence: Recurrence | None = None
    planes: Planes | None = None
    place: Callable[[Position], Index] | None = None
    """The element of the out that a map's result goes to, where that is not the row-major one."""
    by: Callable[[Position], tuple[Expr, Index]] | None = None
    """(a computed index, its stride in elements) that a map's place is counted from: a scatter."""
    when: Callable[[Position], Expr] | None = None
    """Whether a map's result is stored at all."""
    first: int = 0
    """Of a sort: how many in front are wanted; 0: all. Of a place that a selection finds: its round, from 1 on."""
    chunked: tuple[Index, Callable[[Position], Expr]] | None = None  # a fold in chunks: how many, one of them unmasked
    is_product: bool = False
    """Whether a sum is one of a product of matrices, which reads everything several times: the compiler's."""
    window: ImageWindow | None = None

    @property
    def kept(self) -> list[int]:
        return [axis for axis in range(len(self.ranges)) if axis not in self.reduced]

    def place_at(self, axes: Position) -> Index:
        """The element of an out that is made of this one."""
        if self.reduced and not self.kind.startswith("scan"):
            return flatten([axes[k] for k in self.kept], [self.ranges[k] for k in self.kept])
        return flatten(axes, self.ranges) if self.place is None else self.place(axes)

    def reads(self, ranges: Ranges, word: str = "read") -> set[Buffer]:
        """`word`: what the position is called at which is looked: elements are remembered by their positions."""
        at = ranges.probe(self.ranges, word)
        by = [] if self.by is None else [self.by(at)[0]]
        when = [] if self.when is None else [self.when(at)]
        return {load.args[0] for load in loads_of([self.element(at), *by, *when])}


@dataclass(eq=False)
class Library:
    """A call of torch that stays one. `text` is the expression; `outs` what it returns, None where nobody wants it."""

    order: int
    text: str
    reads: list[Buffer]
    outs: list[Buffer | None]
    origin: str
    single: bool = True
    contiguous: list[bool] = field(default_factory=list)
    """For each out: whether torch is sure to return it contiguous."""
    node: Any = None
    """The graph's, whose call it is."""
    names: list[sympy.Symbol] = field(default_factory=list)
    """Sizes that have names from here on."""
    after: list[str] = field(default_factory=list)
    """Lines behind the call: names of the sizes that depend on values, and what was taken for granted about them."""

    def text_of(self, path: tuple) -> str | None:
        """A size of what the call returns, where torch says it is found: (output's place,) `size`, axis. None elsewhere."""
        if not path or type(path[0]).__name__ == "ConvertIntKey":  # a number; a choice as 0 or 1
            return self.text
        (out, *rest) = (self.outs[0], *path) if self.single else (self.outs[path[0].idx], *path[1:])
        if out is None or len(rest) != 2 or getattr(rest[0], "name", "") != "size":
            return None
        return f"{{{out.name}}}.shape[{rest[1].idx}]"


@dataclass(frozen=True)
class Supposed:
    """What the exporter was told about sizes that depend on values; where it does not hold, the module runs as it is written."""

    names: frozenset[str]
    text: str
    call: str
    """The arguments as they are handed on."""


@dataclass(frozen=True)
class Piece:
    """A part of a concatenation, and the row-major element of the whole at a position of the part."""

    value: Value
    place: Callable[[Position], Index]
    axis: int = 0
    start: Index = sympy.S.Zero
    """Where it begins along the axis."""


@dataclass(frozen=True)
class Scatter:
    """Elements of `base` that were overwritten: over `shape`, `source`'s goes to position `at`, of which computed ones are Exprs."""

    base: Value
    now: Value
    """What has been made of the base since, by views."""
    shape: tuple[Index, ...]
    source: Value
    at: Callable[[Position], list[Index | Expr]]
    when: Callable[[Position], Expr]
    """Whether it is written."""
    is_partial: bool = False
    """Whether anything is not."""


@dataclass(eq=False)
class Value:
    shape: tuple[Index, ...]
    dtype: torch.dtype
    formula: Callable[[Position], Expr] | None
    order: int
    origin: str
    buffer: Buffer | None = None
    strides: tuple[Index, ...] = ()
    offset: Index = sympy.S.Zero
    pieces: tuple[Piece, ...] = ()
    """What it is put together of, where it is a concatenation."""
    scatter: Scatter | None = None
    """What of it was written at computed places, the rest being another value: the compiler's."""
    _computed: dict[tuple, Expr] = field(default_factory=dict)

    def at(self, position: Position) -> Expr:
        """The element at a position, in its computed type."""
        if self.buffer is None:
            assert self.formula is not None
            key = tuple(position)
            if key not in self._computed:
                self._computed[key] = self.formula(position)
            return self._computed[key]
        return make("load", self.buffer, joined(self._place(position)), type=COMPUTED[self.dtype])

    def _place(self, position: Position) -> Index:
        return self.offset + sympy.Add(*(p * s for p, s in zip(position, self.strides, strict=True)))

    def along(self, axis: int, place: Expr, others: Position) -> Expr:
        """Of what is in memory, the element at a computed place along an axis; `others`: where it is along the other axes."""
        base = sympy.expand(self._place([*others[:axis], sympy.Integer(0), *others[axis:]]))
        return make("load_at", self.buffer, base, self.strides[axis], place, type=self.type)

    @property
    def type(self) -> str:
        return COMPUTED[self.dtype]

    @property
    def is_whole(self) -> bool:
        """Whether it is a buffer as it lies in memory."""
        return (
            self.buffer is not None
            and self.offset == 0
            and self.strides == strides_of(self.shape)
            and sympy.expand(self.buffer.elements - product(self.shape)) == 0
        )


class Program:
    """Everything that a forward pass does, as far as it is known."""

    def __init__(self, hints: dict[sympy.Symbol, int]) -> None:
        self.hints = hints
        self.device = "cuda"
        self.ranges = Ranges()
        self.definitions: list[Definition] = []
        self.libraries: list[Library] = []
        self.buffers: list[Buffer] = []
        self.helpers: dict[str, str] = {}
        """Python functions that calls of torch go through, by name."""
        self.hidden: set[sympy.Symbol] = set()
        """Sizes that depend on values; kernels are launched for none where they may be zero."""
        self.supposed: list[Supposed] = []
        self.call = ""
        """Forward's arguments as they are handed on."""
        self.foreign: set[torch.dtype] = set()
        """Types that are computed with and that no draft stores."""
        self.scalars: dict[str, str] = {}
        """Numbers of the call: what forward calls them, by a kernel's name for them."""
        self.kept: list[str] = []
        """Lines at the end of the constructor."""
        self.weights: set[Buffer] = set()
        """What the constructor knows."""
        self.elsewhere: dict[Buffer, str] = {}
        """Tensors of the module that `Model.to()` leaves where they are, as the module calls them."""
        self.own_products = False
        """Whether matrix products and convolutions become kernels of our own too."""
        self.settles = True
        """Whether what is costly and read several times is kept in memory."""
        self.non_negative: set[Buffer] = set()
        """Indices that never count from the end."""
        self.distinct: set[Buffer] = set()  # indices of which no two name one place
        self.numerics = "eager"
        """Where a product's operands are rounded: see numerics.py."""
        self.draws = False
        """Whether what is drawn has to be drawn again where the module's own forward is asked in the middle."""
        self.exact: set[torch.fx.Node] = set()
        """Calls that are to have eager's bits."""
        self.rounded: set[torch.fx.Node] = set()
        """Calls each of whose products is rounded as eager's kernels do."""
        self.chosen: dict[sympy.Symbol, tuple[Value, Index]] = {}
        """Sizes that count where a mask holds -> the mask, its elements. A position along such an axis is one of the mask's: the compiler's."""
        self.given, self.copied = set[Buffer](), set[Buffer]()
        """What the call brings: the compiler's."""
        self.in_memory = False
        """Whether definitions hand on what they make in memory of a block's own: the compiler's."""
        self.in_scratch = False  # whether its kernels hand on in memory
        self.operator = ""
        """The operator that is being lowered: what folds are named after."""
        self._order = 0
        self.names: set[str] = set()

    def next_order(self) -> int:
        self._order += 1
        return self._order

    def estimate(self, size: Index | int) -> int:
        return estimate(size, self.hints)

    def reserve(self, names) -> None:
        """Names that mean something else already."""
        self.names.update(names)

    def name(self, wanted: str) -> str:
        """`wanted`, or it with a number where it is taken."""
        wanted = "".join(c if c.isalnum() and c.isascii() else "_" for c in wanted).strip("_").lower() or "value"
        if wanted[0].isdigit():
            wanted = "v" + wanted
        name, count = wanted, 1
        while name in self.names:
            count += 1
            name = f"{wanted}_{count}"
        self.names.add(name)
        return name

    def allocate(self, shape, dtype: torch.dtype, wanted: str) -> Buffer:
        name = self.name(wanted)
        buffer = Buffer(name, tuple(map(number, shape)), dtype, text=name)
        self.buffers.append(buffer)
        return buffer

    def formula(self, shape, dtype: torch.dtype, function: Callable[[Position], Expr] | None, origin: str) -> Value:
        return Value(tuple(map(number, shape)), dtype, function, self.next_order(), origin)

    def whole(self, buffer: Buffer, order: int | None = None, origin: str = "") -> Value:
        order, strides = self.next_order() if order is None else order, strides_of(buffer.shape)
        return Value(buffer.shape, buffer.dtype, None, order, origin, buffer, strides)

    def strided(self, value: Value, shape, strides, offset: Index) -> Value:
        """A view of the buffer that `value` views."""
        view = self.formula(shape, value.dtype, None, value.origin)
        view.buffer, view.strides, view.offset = value.buffer, tuple(map(number, strides)), sympy.expand(offset)
        return view

    def realise(self, value: Value) -> Buffer:
        """The buffer that holds exactly this value, contiguous; made where there is none yet. Later readers load from it."""
        if value.is_whole:
            assert value.buffer is not None
            return value.buffer
        source = value.formula or copy(value).at
        buffer = self.allocate(value.shape, value.dtype, value.origin)
        self.define(
            Definition(value.order, "map", value.shape, frozenset(), source, [buffer], value.origin, value.type)
        )
        value.buffer, value.strides, value.offset = buffer, strides_of(value.shape), sympy.Integer(0)
        return buffer

    def fold(
        self,
        kind: str,
        source: Value,
        axes,
        dtypes: list[torch.dtype],
        element: Callable[[Position], Expr] | None = None,
    ) -> list[Value]:
        """Folds the axes of `source` away (see Definition); the results have the kept axes only.

        `element` says what is folded where that is not the source's value itself.
        """
        reduced = frozenset(axis % len(source.shape) for axis in axes) if source.shape else frozenset()
        kept = [size for axis, size in enumerate(source.shape) if axis not in reduced]
        origin = self.operator or source.origin
        outs = [self.allocate(kept, dtype, f"{origin}_{kind}") for dtype in dtypes]
        type = COMPUTED[dtypes[0]] if kind not in ("argmax", "argmin") else source.type
        return self.define(
            Definition(self.next_order(), kind, source.shape, reduced, element or source.at, outs, origin, type)
        )

    def define(self, definition: Definition) -> list[Value]:
        """All of what a new definition writes."""
        self.definitions.append(definition)
        for out in definition.outs:
            out.written_by = definition
        return [self.whole(out, definition.order, definition.origin) for out in definition.outs]

    def multiply(self, ranges, element: Callable[[Position], Expr], dtype: torch.dtype, shape, tiling: Tiling) -> Value:
        """A product of matrices of our own: over (*batch, rows, columns, depth), the last one summed."""
        ranges = tuple(map(number, ranges))
        last = frozenset({len(ranges) - 1})
        outs = [self.allocate(shape, dtype, self.operator), *tiling.filled]
        return self.define(Definition(
            self.next_order(), "product", ranges, last, element, outs, self.operator, COMPUTED[dtype], tiling=tiling,
        ))[0]  # fmt: skip

    def convolve(self, planes: Planes, element: Callable[[Position], Expr], shape) -> Value:
        """A convolution of our own by planes of eight channels."""
        out = self.allocate(shape, torch.float32, self.operator)
        outs = [out, *(planes.buffers[use] for use in ("planes", "halves", "unscale", "state"))]
        return self.define(Definition(
            self.next_order(), "convolution", out.shape, frozenset(), element, outs, self.operator, planes=planes,
        ))[0]  # fmt: skip

    def recur(self, recurrence: Recurrence, element: Callable[[Position], Expr], outs: list[Buffer]) -> list[Value]:
        """All steps of a recurrent layer, or of several."""
        ranges = (sympy.Integer(recurrence.cells), recurrence.steps, recurrence.batch, sympy.Integer(recurrence.hidden))
        return self.define(Definition(
            self.next_order(), "recurrence", ranges, frozenset(), element, outs, recurrence.cell, recurrence=recurrence,
        ))  # fmt: skip

    def scan(self, kind: str, source: Value, axis: int, dtype: torch.dtype, exclusive: bool, backwards: bool) -> Value:
        origin, type = self.operator or source.origin, COMPUTED[dtype]
        out = self.allocate(source.shape, dtype, origin)
        return self.define(Definition(
            self.next_order(), kind, source.shape, frozenset({axis % len(source.shape)}),
            lambda position: cast(source.at(position), type), [out], origin, type, exclusive, backwards,
        ))[0]  # fmt: skip

    def reshape(self, value: Value, shape) -> Value:
        """The same elements in another shape."""
        shape = tuple(map(number, shape))
        if shape == value.shape:
            return value
        if value.buffer is not None:
            strides = viewed_strides(value.shape, value.strides, shape)
            if strides is not None:
                return self.strided(value, shape, strides, value.offset)

        def formula(position: Position) -> Expr:
            return value.at(unflatten(flatten(position, shape), value.shape, self.ranges))

        reshaped = self.formula(shape, value.dtype, formula, value.origin)
        reshaped.pieces = value.pieces
        return reshaped
