"""Convolutions as products of matrices of our own: where a module has nothing else, and where cuDNN is slow (see tiles.py).

Rows are output channels, columns places, the depth is input channels and the window, channels last: steps of the depth that lie together
then differ in the channel alone. For that the weights are copied in that order, which is little beside the product.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import sympy
import torch

from .expressions import COMPUTED, Expr, all_of, binary, cast, compare, constant, index_value, make, masked
from .index import Index, divide, flatten, modulo, number, product, unflatten
from .lower_products import multiplied
from .lowering import Lowering, plain
from .planes import COLUMNS, ROWS, Stages, stages
from .tensors import Buffer, Planes, Tiling, Value

CHANNELS = 8
"""Input channels of a group from a multiple of which on the depth has them last."""
PRODUCTS = 256
"""Products to an input's element from which on it is laid out in planes of halves."""
LEAST = 1e9
"""Products of a convolution from which on planes, which take four launches more, are faster than the library: on an H200 ResNet18's of 0.23e9
each made it 0.83x, UNet's of 9.7e9 made that 1.38x."""
FOURS, FEWEST = 4, 16
"""Channels of a group in a multiple of which, and from how many on, cuDNN multiplies in TF32: with eight eager stayed in float32 (on an H200, in seven
of KernelBench's), and so do we."""


@dataclass(frozen=True)
class ImageWindow:
    """What the right side of a convolution's product reads: column q and tap j of each axis the place stride * q + ahead + step * j of an image
    [images, *places, channels] in memory, zeros beyond it; the depth is taps and in them channels."""

    image: Buffer
    channels: Index
    places: tuple[Index, ...]
    columns: tuple[Index, ...]
    axes: tuple[tuple[int, int, int, int], ...]
    """Stride, ahead, step and taps."""


@dataclass(frozen=True)
class Axis:
    """One axis of the places. Column q of the product and class c of its row are place apart * q + first + between * c, of which tap j
    reads the input at stride * q + ahead + step * j.

    An ordinary convolution has one class. A transposed one, out[i * s + k * d - p] += w[k] * x[i], as it stands multiplies by a
    zero for all but every s-th place of an input that was spread out. But places with equal remainder by s read the same taps, from
    neighbouring inputs: so it is a convolution with stride one that makes all remainders of a place at once, as more channels.
    A tap that a class has not is a zero among its weights.
    """

    stride: int
    ahead: int
    step: int
    taps: int
    apart: int = 1
    first: int = 0
    between: int = 1
    """Where gcd(s, d) > 1, places between these have no tap: zeros."""
    classes: int = 1
    turned: tuple[int, int, int, int] | None = None
    """(s, p, d, taps) of a transposed convolution."""

    @staticmethod
    def transposed(s: int, p: int, d: int, taps: int) -> Axis:
        between = math.gcd(s, d)
        first = -p % between
        remainders = range(first, s, between)
        read = sorted({(r + p - k * d) // s for r in remainders for k in range(taps) if (r + p - k * d) % s == 0})
        step = math.gcd(*(place - read[0] for place in read)) or 1
        many = (read[-1] - read[0]) // step + 1
        return Axis(1, read[0], step, many, s, first, between, len(remainders), (s, p, d, taps))

    def columns(self, places: Index) -> Index:
        return places if self.apart == 1 else number(-(-(plain(places) - self.first) // self.apart))

    def place(self, column: Index, of_class: Index) -> Index:
        return sympy.expand(self.apart * column + self.first + self.between * of_class)

    def tap(self, of_class: Index, j: Index, ranges) -> tuple[Index, list[Expr]]:
        """The tap of the weights as they are, and when there is one."""
        if self.turned is None:
            return j, []
        s, p, d, taps = self.turned
        if s == 1:
            return taps - 1 - j, []
        ahead = sympy.expand(self.first + self.between * of_class + p - s * (self.ahead + self.step * j))
        k = divide(ahead, d, ranges)
        conditions = [_compare("ge", ahead, 0), _compare("lt", k, taps)]
        return k, conditions + ([_compare("eq", modulo(ahead, d, ranges), 0)] if d > 1 else [])

    def used(self) -> list[list[int]]:
        """Of each class, the taps it has."""
        if self.turned is None:
            return [list(range(self.taps))]
        s, p, d, taps = self.turned
        reads = [{(self.first + self.between * c + p - k * d) / s for k in range(taps)} for c in range(self.classes)]
        return [[j for j in range(self.taps) if self.ahead + self.step * j in of_class] for of_class in reads]

    def read(self, column: Index, j: Index, size: Index, ranges) -> tuple[Index, list[Expr]]:
        """The place of the input, and when there is one."""
        place = sympy.expand(self.stride * column + self.ahead + self.step * j)
        conditions = [_compare("ge", place, 0)] if self.ahead < 0 else []
        return place, conditions if ranges.below(place, size) else [*conditions, _compare("lt", place, size)]


def _compare(op: str, a: Index, b: Index | int) -> Expr:
    return compare(op, index_value(number(a)), index_value(number(b)))


def convolution(low: Lowering, a, weight, bias, stride, padding, dilation, groups, transposed: bool) -> Value | None:
    """out[b, g, oc, o] = sum over ic and window of w * x; None where that is the library's, whose it is unless ours is faster or the module
    has nothing else."""
    if COMPUTED[low.dtype] != "float":
        return None
    given = list(zip(*([plain(n) for n in part] for part in (stride, padding, dilation)), strict=True))
    windows = [plain(window) for window in weight.shape[2:]]
    if transposed:
        axes = [Axis.transposed(s, p, d, window) for (s, p, d), window in zip(given, windows, strict=True)]
    else:
        axes = [Axis(s, -p, d, window) for (s, p, d), window in zip(given, windows, strict=True)]
    convolution = _Convolution(low, a, weight, plain(groups), axes, transposed)
    stages = convolution.stages()
    if stages is not None:
        made: Value | None = convolution.by_planes(stages, given, windows)
    elif low.program.own_products or convolution.is_faster:
        made = convolution.product()
    else:
        return None
    if made is None or bias is None:
        return made
    type = COMPUTED[low.dtype]
    return low.formula(lambda p: binary("add", cast(made.at(p), type), cast(bias.at([p[1]]), type)))


class _Convolution:
    def __init__(self, low: Lowering, a: Value, weight: Value, groups: int, axes: list[Axis], transposed: bool) -> None:
        self.low, self.a, self.weight, self.axes, self.transposed = low, a, weight, axes, transposed
        self.ranges, self.type = low.program.ranges, COMPUTED[low.dtype]
        self.out_each, self.in_each = plain(low.shape[1]) // groups, plain(a.shape[1]) // groups
        self.groups = groups
        self.window = [plain(size) for size in weight.shape[2:]]
        self.classes = [axis.classes for axis in axes]
        self.taps = [axis.taps for axis in axes]
        self.columns = [axis.columns(size) for axis, size in zip(axes, low.shape[2:], strict=True)]
        self.channels_last = transposed or self.in_each % CHANNELS == 0
        self.rows, self.depth = self.out_each * math.prod(self.classes), self.in_each * math.prod(self.taps)

    @property
    def is_faster(self) -> bool:
        """Whether tiles beat the library."""
        return self.in_tf32 and len(self.a.shape) == 5 and self.transposed

    def stages(self) -> Stages | None:
        """How planes of eight channels cut it (planes.py), where they can and are worth it: the places are known, taps of neighbouring places
        lie in neighbouring places, and every result has a product."""
        sizes = [*self.a.shape[2:], *self.low.shape[2:]]
        float32 = self.low.program.device == "cuda" and self.low.dtype == torch.float32
        if not float32 or any(axis.stride > 1 or axis.between > 1 for axis in self.axes):
            return None
        each = self.rows * math.prod(self.taps)
        if not all(size.is_Integer for size in sizes) or each < PRODUCTS:
            return None
        if not self.low.program.own_products and each * self.low.program.estimate(product(self.a.shape)) < LEAST:
            return None
        *_, last = self.axes
        found = stages(self.in_each, last.taps, last.step, math.prod(self.taps[:-1]), not self.rounded, self.major > 0)
        return found if found is not None and math.prod(self._plane(found)) + COLUMNS < 2**31 else None

    @property
    def major(self) -> int:
        """Of how many axes a tile of the product has one class, so that it can leave out the taps that this class has not."""
        rank, classes = len(self.axes), self.classes
        if math.prod(classes) == 1 or math.prod(self.taps) > 64:
            return 0
        most = rank if self.rounded else rank - 1  # numbers of two halves take two taps at a time
        whole = (n for n in range(most, 0, -1) if self.out_each * math.prod(classes[n:]) % ROWS == 0)
        return next((n for n in whole if math.prod(classes[:n]) > 1), 0)

    def _plane(self, stages: Stages) -> list[int]:
        """Places that all columns' taps read, those that are there for an even number of them, too."""
        taps = [*self.taps[:-1], stages.taps]
        return [plain(q) + axis.step * (n - 1) for q, axis, n in zip(self.columns, self.axes, taps, strict=True)]

    def by_planes(self, stages: Stages, given, windows) -> Value:
        low, allocate, groups = self.low, self.low.program.allocate, self.groups
        out = [plain(size) for size in low.shape[2:]]
        plane = self._plane(stages)
        batch, tiles = self.a.shape[0], -(-self.rows // ROWS)
        laid = (
            math.prod(self.taps[:-1]) * stages.taps * (stages.tap_bytes // 2 // ROWS) * (stages.eights // stages.chunk)
        )
        buffers = {
            "input": low.program.realise(self.a),
            "weight": low.program.realise(self.weight),
            "steps": low.program.realise(self._copied(major=self.major)),
            # the last tile's run may end behind the last plane
            "planes": allocate([batch * (groups * stages.eights * stages.planes * math.prod(plane) * 8) + (COLUMNS + stages.run) * 8], torch.float16, "planes"),
            "halves": allocate([groups * tiles * ROWS * laid], torch.float16, "halves"),
            "unscale": allocate([groups * tiles * ROWS], torch.float32, "unscale"),
            "state": allocate([2], torch.int32, "state"),
        }  # fmt: skip
        planes = Planes(
            batch, groups, self.in_each, self.rows, self.out_each, [plain(size) for size in self.a.shape[2:]],
            [-axis.ahead for axis in self.axes], plane, self.taps, [axis.step for axis in self.axes],
            [plain(size) for size in self.columns], [axis.apart for axis in self.axes], self.classes, self.major,
            [axis.used() for axis in self.axes], out, windows, given,
            self.transposed, self.ties_to_even, stages, buffers,
        )  # fmt: skip

        def reads(_) -> Expr:
            named = [make("load", buffers[use], number(0), type="float") for use in ("input", "weight", "steps")]
            return binary("add", binary("add", named[0], named[1]), named[2])

        return low.program.convolve(planes, reads, low.shape)

    def product(self) -> Value | None:
        self.low.settle(self.a, 1000)
        low, batch = self.low, (self.a.shape[0], number(self.groups))
        weights = self._weights()
        strided = any(axis.apart > 1 for axis in self.axes)
        tiling = Tiling(rounded=self.rounded, ties_to_even=self.ties_to_even, in_tf32=self.copies and self.in_tf32)
        shape = (*batch, number(self.out_each), *self.columns)
        if strided:
            sparse = any(axis.between > 1 for axis in self.axes)
            tiling = replace(tiling, place=self._place, inside=self._inside, sparse=sparse)
            shape = low.shape
        made = multiplied(
            low, batch, number(self.rows), product(self.columns), number(self.depth),
            lambda p: weights.at([p[1], *p[2:]]), self._input, shape, tiling, self._tapped if strided else None,
        )  # fmt: skip
        return made if made is None or strided else low.program.reshape(made, low.shape)

    @property
    def rounded(self) -> bool:
        """Whether operands have the 11 bits of TF32."""
        eager = self.low.program.numerics == "eager" or self.low.program.device != "cuda"
        if self.transposed and len(self.taps) == 3 and self.groups == 1:  # on an H200 with three channels, too
            return eager
        return eager and self.in_each % FOURS == 0 and self.in_each >= FEWEST

    @property
    def ties_to_even(self) -> bool:
        """Of two TF32 numbers as near an operand cuDNN took, on an H200, the even one in 42 of 44 of KernelBench's transposed ones, all but the dilated of
        one and two axes, in a 1x1 window, and in 3x3 ones that make 64 channels (three of three; the four that make 128 not), on an H100 in groups, too;
        else the one away from zero (20 of 20)."""
        if self.transposed:
            return len(self.axes) == 3 or all(axis.turned is not None and axis.turned[2] == 1 for axis in self.axes)
        return self.groups > 1 or math.prod(self.window) == 1 or (self.window == [3, 3] and self.out_each == 64)

    @property
    def in_tf32(self) -> bool:
        """Whether what is copied may be rounded by it."""
        return self.rounded and self.low.program.device == "cuda" and self.low.dtype == torch.float32

    @property
    def copies(self) -> bool:
        return self.transposed or (self.channels_last and math.prod(self.taps) > 1)

    def _weights(self) -> Value:
        """[group, row, step of the depth], as they lie or copied in that order."""
        shape = [self.groups, self.rows, self.depth]
        if not self.copies:
            return self.low.program.reshape(self.weight, shape)
        copied = self._copied(self.in_tf32)
        self.low.program.realise(copied)
        return self.low.program.reshape(copied, shape)

    def _copied(self, in_tf32: bool = False, major: int = 0) -> Value:
        """[group, output channel, *classes, *taps, input channel], perhaps rounded, and with the first `major` classes before the output channel."""
        groups, low, rank = self.groups, self.low, len(self.axes)

        def formula(position):
            group, *at, channel = position
            out = at.pop(major)
            taps, conditions = self._taps(at[:rank], at[rank:])
            sides = (group * self.out_each + out, channel)
            if self.transposed:
                sides = (group * self.in_each + channel, out)
            value = cast(self.weight.at([*sides, *taps]), self.type)
            value = (
                make("round_to", value, "tf32_even" if self.ties_to_even else "tf32", type="float")
                if in_tf32
                else value
            )
            return masked(all_of(conditions), value, constant(0, self.type))

        rows = [*self.classes[:major], self.out_each, *self.classes[major:]]
        return low.formula(formula, [groups, *rows, *self.taps, self.in_each])

    def _taps(self, classes, at) -> tuple[list[Index], list[Expr]]:
        found = [axis.tap(c, j, self.ranges) for axis, c, j in zip(self.axes, classes, at, strict=True)]
        return [k for k, _ in found], [condition for _, conditions in found for condition in conditions]

    def _steps(self, k: Index) -> tuple[Index, list[Index]]:
        """(channel, taps) of a step of the depth."""
        if self.channels_last:
            *at, channel = unflatten(k, [*self.taps, self.in_each], self.ranges)
        else:
            channel, *at = unflatten(k, [self.in_each, *self.taps], self.ranges)
        return channel, at

    def _input(self, position) -> Expr:
        batch, group, k, n = position
        channel, taps = self._steps(k)
        columns = unflatten(n, self.columns, self.ranges)
        found = [
            axis.read(q, j, size, self.ranges)
            for axis, q, j, size in zip(self.axes, columns, taps, self.a.shape[2:], strict=True)
        ]
        places, channel = [place for place, _ in found], group * self.in_each + channel
        value = cast(self.a.at([batch, channel, *places]), self.type)
        return masked(all_of([c for _, conditions in found for c in conditions]), value, constant(0, self.type))

    def _tapped(self, row: Index, k: Index) -> Expr | None:
        """Whether the row's class has the step's taps."""
        _, *classes = unflatten(row, [self.out_each, *self.classes], self.ranges)
        return all_of(self._taps(classes, self._steps(k)[1])[1])

    def _places(self, position) -> tuple[Index, list[Index]]:
        *_, row, n = position
        out, *classes = unflatten(row, [self.out_each, *self.classes], self.ranges)
        columns = unflatten(n, self.columns, self.ranges)
        return out, [axis.place(q, c) for axis, q, c in zip(self.axes, columns, classes, strict=True)]

    def _place(self, position) -> Index:
        out, places = self._places(position)
        return flatten([position[0], position[1] * self.out_each + out, *places], self.low.shape)

    def _inside(self, position) -> list[tuple[Index, Index]]:
        _, places = self._places(position)
        return [
            (place, size)
            for axis, place, size in zip(self.axes, places, self.low.shape[2:], strict=True)
            if axis.apart > 1 and not self.ranges.below(place, size)
        ]
