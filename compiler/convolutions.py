"""Convolutions where channels mix, of any rank, in groups, apart, transposed: products of matrices, whose rows are output channels, columns places.

Where packs of channels are whole, what is convolved is laid out with its channels last before, and the weights likewise: a step of the depth is
a tap and in it a channel, so that neighbouring steps are neighbours in memory whatever the tap, inside or outside together. Else
the depth is channels and in them taps, as the weights lie, and windows begin anywhere (codegen/shifted_sides.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import sympy
import torch

from compiler.draft.expressions import COMPUTED, Expr, all_of, binary, cast, constant, loads_of, masked
from compiler.draft.index import Index, divide, modulo, number, product, unflatten
from compiler.draft.lower_convolutions import Axis, ImageWindow, _compare
from compiler.draft.lower_windows import _windows, depthwise
from compiler.draft.lowering import Lowering, lowers, plain
from compiler.draft.tensors import Definition, NoDraft, Position, Value
from compiler.kernel import LONGEST_WINDOW
from compiler.products import HALVES, SHORT, STAGE, is_plain

FEW_ROWS = 8
"""Output channels of a group up to which every thread does its own window: a tile has 32 rows."""
PACK = 8
"""Channels of which each tap must have whole packs."""


def convolution(
    low: Lowering, a: Value, weight: Value, bias, stride, padding, dilation, transposed, _more, groups
) -> Value | None:
    """[n, groups * out, *places] of [n, groups * channels, *places] and weights as torch has them; bias [groups * out]."""
    if low.program.settles:
        return None
    if not transposed and weight.shape[1] == 1 and sympy.cancel(weight.shape[0] / a.shape[1]).is_Integer:
        return depthwise(low, a, weight, bias, stride, padding, dilation, len(a.shape) - 2)
    rows, depth = sympy.cancel(weight.shape[0] / plain(groups)), product(weight.shape[1:])
    if not transposed and rows.is_Integer and rows <= FEW_ROWS and depth.is_Integer and SHORT < depth <= LONGEST_WINDOW:
        made = _few_rows(low, a, weight, stride, padding, dilation, rows)
    else:
        made = _Convolution(low, a, weight, stride, padding, dilation, plain(groups), transposed).result()
    type = COMPUTED[low.dtype]
    return low.formula(lambda p: made(p) if bias is None else binary("add", made(p), cast(bias.at([p[1]]), type)))


def _few_rows(low: Lowering, a: Value, weight: Value, stride, padding, dilation, rows) -> Callable[[Position], Expr]:
    """What stands at a place, where each thread takes a window: what a tile reads for 32 rows and more is for a few."""
    rank, channels, ranges = len(a.shape) - 2, weight.shape[1], low.program.ranges
    taps = [plain(size) for size in weight.shape[2:]]
    type = COMPUTED[low.dtype]
    windows, _ = _windows(low, a, taps, list(stride), list(padding), list(dilation), constant(0, type), low.dtype)

    def element(p) -> Expr:
        channel, of_taps = p[2 + rank], p[3 + rank :]
        read = [p[0], sympy.expand(divide(p[1], rows, ranges) * channels + channel), *p[2 : 2 + rank], *of_taps]
        return binary("mul", cast(weight.at([p[1], channel, *of_taps]), type), cast(windows.at(read), type))

    whole = low.program.formula((*low.shape, channels, *weight.shape[2:]), low.dtype, element, low.name)
    (made,) = low.program.fold("sum", whole, range(2 + rank, len(whole.shape)), [low.dtype])
    return lambda p: cast(made.at(p), type)


class _Convolution:
    def __init__(
        self, low: Lowering, a: Value, weight: Value, stride, padding, dilation, groups: int, transposed: bool
    ) -> None:
        self.low, self.a, self.weight, self.groups, self.transposed = low, a, weight, groups, transposed
        self.ranges, self.type = low.program.ranges, COMPUTED[low.dtype]
        numbers = list(zip(*(map(plain, part) for part in (stride, padding, dilation, weight.shape[2:])), strict=True))
        self.axes = [Axis.transposed(s, 0, d, k) if transposed else Axis(s, -p, d, k) for s, p, d, k in numbers]
        self.cut = [p if transposed else 0 for _, p, _, _ in numbers]
        """Places in front of the first that is asked for: a tap of a remainder reads one column, whatever the padding."""
        self.channels, self.out = (sympy.cancel(size / groups) for size in (a.shape[1], low.shape[1]))
        self.taps, self.classes = [axis.taps for axis in self.axes], [axis.classes for axis in self.axes]
        self.columns = [
            divide(size + cut + axis.apart - 1, axis.apart, self.ranges)
            for axis, cut, size in zip(self.axes, self.cut, low.shape[2:], strict=True)
        ]
        if transposed:  # lines of whole packs
            self.columns[-1] += -int(self.columns[-1].as_coeff_Add()[0]) % PACK
        self.rows, self.depth = self.out * math.prod(self.classes), self.channels * math.prod(self.taps)

        self.is_product = 1 not in (self.rows, product(self.columns))
        short = self.depth.is_Integer and self.depth <= SHORT
        self.by_tiles = self.is_product and not short and not low.program.in_memory

    @property
    def lays_out(self) -> bool:
        """Whether it pays that channels are last; a window of one tap at every place is no window."""
        wide = any(axis.taps > 1 or axis.stride > 1 for axis in self.axes)
        return self.by_tiles and wide and self.low.program.estimate(self.channels) % PACK == 0

    def result(self) -> Callable[[Position], Expr]:
        """What stands at a place."""
        low, ranges, last = self.low, self.ranges, self.lays_out
        copies = last or (self.transposed and self.by_tiles)
        if copies and not low.program.in_scratch:
            raise NoDraft("a convolution reads what is laid out before")
        weights, image = self._weights(last, copies), self._image(last)
        lead = (self.a.shape[0], number(self.groups))

        def element(position) -> Expr:
            *batch, row, column, step = position
            tap = divide(step, self.channels, ranges) if last else step
            channel, *taps = unflatten(tap, [sympy.S.One if last else self.channels, *self.taps], ranges)
            channel = step - self.channels * tap if last else channel
            told = zip(self.axes, unflatten(column, self.columns, ranges), taps, self.a.shape[2:], strict=True)
            read = [axis.read(q, j, size, ranges) for axis, q, j, size in told]
            found = cast(image.at([*batch, *(place for place, _ in read), channel]), self.type)
            inside = [one for _, conditions in read for one in conditions]
            found = masked(all_of(inside), found, constant(0, self.type)) if inside else found
            return binary("mul", cast(weights.at([batch[1], row, step]), self.type), found)

        shape = (*lead, self.rows, product(self.columns), self.depth)
        whole = low.program.formula(shape, low.dtype, element, low.name)
        (made,) = low.program.fold("sum", whole, [4], [low.dtype])
        if made.buffer is not None and isinstance(summed := made.buffer.written_by, Definition):
            summed.is_product = self.is_product
            summed.window = self._window(image) if last else None
        split = low.program.reshape(made, (*lead, self.out, *self.classes, *self.columns))

        def at(p: Position) -> Expr:
            group, channel = divide(p[1], self.out, ranges), modulo(p[1], self.out, ranges)
            columns: list[Index] = []
            classes: list[Index] = []
            tapped: list[Expr] = []
            for place, axis, cut in zip(p[2:], self.axes, self.cut, strict=True):
                ahead = place + cut
                within = modulo(ahead, axis.apart, ranges)
                columns.append(divide(ahead, axis.apart, ranges))
                classes.append(divide(within, axis.between, ranges))
                if axis.between > 1:  # places between have no tap
                    tapped.append(_compare("eq", modulo(within, axis.between, ranges), 0))
            found = cast(split.at([p[0], group, channel, *classes, *columns]), self.type)
            return masked(all_of(tapped), found, constant(0, self.type)) if tapped else found

        return at

    def _window(self, image: Value) -> ImageWindow | None:
        """What boxes of the image may be asked for by; a stage is channels of one tap."""
        if image.buffer is None or self.low.program.estimate(self.channels) % STAGE:
            return None
        axes = tuple((axis.stride, axis.ahead, axis.step, axis.taps) for axis in self.axes)
        return ImageWindow(image.buffer, self.channels, tuple(self.a.shape[2:]), tuple(self.columns), axes)

    def _image(self, last: bool) -> Value:
        """[n, group, *places, channel]; in memory as that where channels are `last`."""
        a, groups, channels = self.a, self.groups, self.channels
        shape = (a.shape[0], groups, *a.shape[2:], channels)
        made = self.low.formula(
            lambda p: a.at([p[0], sympy.expand(p[1] * channels + p[-1]), *p[2:-1]]), shape, _kept_in(self.low, a)
        )
        return self._laid_out(made) if last else made

    def _weights(self, last: bool, copies: bool) -> Value:
        """[group, row, step of the depth]; in memory as that where they are copied."""
        shape = (number(self.groups), self.rows, self.depth)
        if not (last or self.transposed):
            return self.low.program.reshape(self.weight, shape)
        rank = len(self.axes)

        def element(p) -> Expr:
            group, out, *classes = p[: 2 + rank]
            channel, steps = (p[-1], p[2 + rank : -1]) if last else (p[2 + rank], p[3 + rank :])
            told = [axis.tap(c, j, self.ranges) for axis, c, j in zip(self.axes, classes, steps, strict=True)]
            sides = (group * self.out + out, channel)
            if self.transposed:
                sides = (group * self.channels + channel, out)
            found = self.weight.at([*map(sympy.expand, sides), *(tap for tap, _ in told)])
            inside = [condition for _, conditions in told for condition in conditions]
            return masked(all_of(inside), found, constant(0, found.type)) if inside else found

        depth = (*self.taps, self.channels) if last else (self.channels, *self.taps)
        made = self.low.formula(
            element, (self.groups, self.out, *self.classes, *depth), _kept_in(self.low, self.weight)
        )
        return self.low.program.reshape(self._laid_out(made) if copies else made, shape)

    def _laid_out(self, value: Value) -> Value:
        self.low.program.copied.add(self.low.program.realise(value))
        return value


def _kept_in(low: Lowering, value: Value) -> torch.dtype:
    """What holds the value as the product's operand."""
    side = low.probe(value)
    kinds = {load.args[0].dtype for load in loads_of([side])}
    (kind,) = kinds if len(kinds) == 1 else (None,)
    return kind if kind in HALVES and (is_plain(side) or kind == torch.bfloat16) else torch.float32


def extend_table() -> None:
    lowers("aten.convolution.default")(convolution)
