"""What the inputs of timed calls are made of, so that none is used twice: see neighbours.py. And which inputs a model keeps between calls."""

from __future__ import annotations

import ctypes
import functools
import math
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from harness.backends import cpu
from harness.checks.drawing import draw
from harness.checks.layout import Layout
from harness.device import generator
from kernels.spec import DTYPE_BYTES, Spec, Tensor, Workload

if TYPE_CHECKING:
    import torch

HOST_SOURCE = Path(__file__).parent.parent / "probes" / "company.cpp"
PACK_BYTES = 16
"""Of a pack, as in probes/company.cu."""
ROOM, ROOM_BYTES = 3, 256 << 20
"""`a` is longer than the input by so many times its size, so much at most: who would have it in the cache before the next
producer reads it does not know which part."""
DRAWN_ELEMENTS = 1 << 20
"""Elements drawn for one sample on a CPU, of a distribution that is not elementwise; a longer input repeats them."""
CHOSEN_BYTES = 8 << 20
"""Largest input, in bytes, that is drawn twice; of a larger one only sign and mantissa are new, since drawing takes a
second."""
OFF_ZERO = 0.05
"""Share of its deviation above which a mean is not taken for zero."""
NORMAL_AT_LEAST = 16.0
"""Largest of scaled values, in smallest normal numbers of their dtype, below which they are drawn again: no bit of a subnormal may change, and with one
scale in sixty all values of 8 bits are subnormal."""
_MANTISSA = {"float64": 52, "float32": 23, "float16": 10, "bfloat16": 7, "float8_e4m3fn": 3, "float8_e5m2": 2}
_BITS = {1: "int8", 2: "int16", 4: "int32", 8: "int64"}
ELEMENTWISE = (
    "ordinary",
    "normal",
    "large",
    "tiny",
    "zeros",
    "outliers",
    "infinities",
    "uniform",
    "scaled",
    "range",
    "index",
    "integers",
    "padded",
    "bits",
    "near",
    "among",
)
"""Distributions whose elements are drawn one by one. Inputs of any other are redrawn whole, like constants."""


def is_persistent(tensor: Tensor) -> bool:
    """Whether a model keeps this input between calls, so that no kernel writes it before each one."""
    kind = tensor.values[0].partition(":")[0]
    whole = kind not in ELEMENTWISE or tensor.dtype in ("uint16", "uint32")  # of which torch draws no bits
    return tensor.role == "input" and (tensor.constant or tensor.touched is not None or whole)


def group_persistent(spec: Spec) -> list[list[Tensor]]:
    """The inputs that a model keeps: each by itself; in one group, in order, those that bound each other (`below:NAME`), and
    those that only a problem's own generator draws (`given:NAME`), which go together as it drew them."""
    groups: dict[str, list[Tensor]] = {}
    for tensor in filter(is_persistent, spec.inputs):
        bound = spec.bound(tensor)
        given = tensor.values[0].startswith("given:")
        group = groups[bound.name] if bound else groups.setdefault("given:", []) if given else []
        group.append(tensor)
        groups[tensor.name] = group
    return list({id(group): group for group in groups.values()}.values())


def copies_together(spec: Spec, copies: dict[str, int]) -> dict[str, int]:
    """As many copies of each as of the others of its group, so that an argument set gets those that fit each other."""
    return {
        tensor.name: min(copies[other.name] for other in group) for group in group_persistent(spec) for tensor in group
    }


@functools.cache
def host() -> ctypes.CDLL:
    """probes/company.cpp, in this process. Raises RuntimeError where it does not compile."""
    with tempfile.TemporaryDirectory() as folder:
        library = f"{folder}/company.so"
        command = [cpu.compiler(), "-O3", "-march=native", "-shared", "-fPIC", "-o", library, str(HOST_SOURCE)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"what writes the inputs of timed calls does not compile:\n{done.stderr}")
        loaded, size, place = ctypes.CDLL(library), ctypes.c_int64, ctypes.c_void_p
    loaded.mix.argtypes, loaded.mix.restype = [place, place, place, place, size, size], None
    loaded.poisoned.argtypes, loaded.poisoned.restype = [place, size, size], size
    loaded.forget.argtypes, loaded.forget.restype = [place, size], None
    return loaded


def _freedom(a: torch.Tensor, low: float, high: float) -> torch.Tensor:
    """Which bits of each element may change, all independently, without leaving `low` to `high` (the same integer type).

    None of a zero, of an infinity the sign alone. Of all others as many low bits of the mantissa as there may be: the whole of
    it but where an end of the range lies within a factor of two.
    """
    import torch

    name = str(a.dtype).removeprefix("torch.")
    bits = getattr(torch, _BITS[a.element_size()])
    raw, width = a.view(bits), 8 * a.element_size()
    # Of the elements' own type: `where` would make eight bytes of each with Python's integers, 4.5 GiB in a prefill's input.
    none, mantissa, sign = raw.new_tensor([0, (1 << _MANTISSA[name]) - 1, -(1 << (width - 1))])
    magnitude = raw & ~sign
    exponent = magnitude & ~mantissa
    normal = (exponent != 0) & (exponent != (~sign & ~mantissa))
    if math.isinf(low) and math.isinf(high):
        free = torch.where(normal, sign | mantissa, sign)
        return torch.where(magnitude == 0, none, free)

    def stays(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        inside = torch.ones_like(values, dtype=torch.bool)
        for end in (values | mask, values & ~mask):
            value = end.view(a.dtype).to(torch.float64)
            inside &= (value >= low) & (value <= high)
        return inside

    free = torch.where(normal & stays(raw, mantissa), mantissa, none)
    left = (normal & (free == 0)).nonzero().squeeze(1)
    values, masks = raw[left], free[left]
    for count in range(_MANTISSA[name] - 1, 0, -1):
        mask = raw.new_tensor((1 << count) - 1)
        masks = torch.where((masks == 0) & stays(values, mask), mask, masks)
    free[left] = masks
    both = stays(raw ^ sign, free) & normal if low < 0 < high else torch.zeros_like(normal)
    return torch.where(both, free | sign, free)


def _is_off_zero(values: str) -> bool:
    """Whether a normal distribution's signs and mantissas may not be others: of 1e4 +- 1 hardly a bit may."""
    kind, _, rest = values.partition(":")
    if kind != "normal":
        return False
    mean, deviation = map(float, rest.split(":"))
    return abs(mean) > OFF_ZERO * deviation


class InputMixture:
    """One produced input: `a`, `x` and `b`, flat uint8, each as long as the input (`b` maybe shorter) and steps packs more."""

    def __init__(
        self, spec: Spec, tensor: Tensor, workload: Workload, size: int, steps: int, most_round_bytes: int
    ) -> None:
        self.tensor, self.workload, self.size = tensor, workload, size
        self.round_bytes = min(1 << max(4, (size - 1).bit_length()), most_round_bytes)
        """Bytes after which `b` begins anew, a power of two."""
        self.still = False
        """Whether no bit of `a` is changed for now."""
        self.same_x = False
        """Whether `x` is the same for all elements; `b` is masked with it, then, and `x` not read."""
        self.dtype, self.shape = spec.dtype(tensor, workload), spec.shape(tensor, workload.axes)
        self.strides = spec.strides(tensor, workload.axes)
        self.kind = tensor.values[0].partition(":")[0]
        self.near = self.kind == "near"
        """Whether elements have their places, so that `a` is a draw of the whole, read from its beginning by every
        call."""
        self.steps_a = (
            1
            if self.near
            else max(steps, min(ROOM * size, ROOM_BYTES) // PACK_BYTES)
            if most_round_bytes < 1 << 62
            else steps
        )
        whole = -(-size // PACK_BYTES) * PACK_BYTES + self.steps_a * PACK_BYTES
        self.bytes = {"a": whole, "x": whole, "b": self.round_bytes + steps * PACK_BYTES}
        self.whole = "float" not in self.dtype or self.kind == "among" or _is_off_zero(tensor.values[0])
        """Integers, what has few values, and what lies about another value than zero are not mixed bit by bit: `b` chooses between
        two draws."""
        self.chooses = not self.whole and most_round_bytes >= 1 << 62 and size <= CHOSEN_BYTES
        """Whether `b` chooses exponents too, as on a CPU. On a GPU `x` would have to be read for that, by kernels that
        stand beside timed ones."""
        self.a: torch.Tensor
        self.x: torch.Tensor
        self.b: torch.Tensor

    def fill(self, rng: torch.Generator) -> None:
        """Draw all three, which somebody else has allocated."""
        import torch

        values = self.a.view(getattr(torch, self.dtype))
        if self.near:
            self._fill_near(values, rng)
            self.renew(rng)
            return
        draw(values, self.tensor.values[0], self.workload, rng)
        while self.kind == "scaled" and float(values.float().max()) < NORMAL_AT_LEAST * torch.finfo(values.dtype).tiny:
            draw(values, self.tensor.values[0], self.workload, rng)
        if self.whole:
            other = torch.empty_like(values)
            draw(other, self.tensor.values[0], self.workload, rng)
            self.x.copy_(self.a ^ other.view(torch.uint8))
        else:
            if self.kind in ("ordinary", "large"):  # a few in 100,000: with them gone `x` need not be read
                wide = values.float() if values.dtype.itemsize == 1 else values  # 8-bit floats cannot be compared
                one = torch.ones(1, device=values.device).to(values.dtype).view(torch.uint8)
                self.a.view(-1, values.dtype.itemsize)[wide.abs() < torch.finfo(values.dtype).smallest_normal] = one
            free = _freedom(values, *self._ends(values))
            if self.chooses:
                free |= self._exponents(values, free, rng)
            self.x.copy_(free.view(torch.uint8))
            self.same_x = bool((free == free[0]).all())
        self.renew(rng)

    def _ends(self, values: torch.Tensor) -> tuple[float, float]:
        """Ends of the range that the values are drawn from."""
        if self.kind == "range":
            _, low, high = self.tensor.values[0].split(":")
            return float(low), float(high)
        if self.kind == "scaled":
            return 0.0, float(values.float().max())
        return (0.0, 1.0) if self.kind == "uniform" else (-math.inf, math.inf)

    def _exponents(self, values: torch.Tensor, free: torch.Tensor, rng: torch.Generator) -> torch.Tensor:
        """Where an element may have the exponent of another draw: the bits in which the two differ, of `free`'s type.

        Only where the other may change as much: then either has what the other has, and nothing leaves the distribution.
        """
        import torch

        other = torch.empty_like(values)
        draw(other, self.tensor.values[0], self.workload, rng)
        alike = (_freedom(other, *self._ends(values)) == free) & (free & self._mantissa(free) == self._mantissa(free))
        differ = values.view(free.dtype) ^ other.view(free.dtype)
        return torch.where(alike, differ & self._field(free), free.new_zeros(()))

    def _mantissa(self, like: torch.Tensor) -> torch.Tensor:
        return like.new_tensor((1 << _MANTISSA[self.dtype]) - 1)

    def _field(self, like: torch.Tensor) -> torch.Tensor:
        """The bits of an exponent."""
        return ~self._mantissa(like) & ~like.new_tensor(-(1 << (8 * like.element_size() - 1)))

    @contextmanager
    def drawn_as(self, values: str, rng: torch.Generator) -> Iterator[None]:
        """Inputs of another distribution meanwhile: `a` drawn so, and no bit of it changed."""
        import torch

        a = self.a.view(getattr(torch, self.dtype))
        before, self.still = self.a.clone(), True
        try:
            drawn = a if a.device.type != "cpu" else a[: min(len(a), DRAWN_ELEMENTS)]
            draw(drawn, values, self.workload, rng)
            for first in range(len(drawn), len(a), DRAWN_ELEMENTS):
                a[first : first + DRAWN_ELEMENTS] = drawn[: len(a) - first]
            if a.device.type != "cpu":  # there `b` is not looked at meanwhile
                self.renew(rng)
            yield
        finally:
            self.a.copy_(before)
            self.still = False
            if a.device.type != "cpu":
                self.renew(rng)

    def _fill_near(self, values: torch.Tensor, rng: torch.Generator) -> None:
        """Changes what differs between two draws: the mantissa, within the range of all, or its low half; what does not
        differ, and what is zero, is part of the inputs' structure."""
        import torch

        inside = values[: self.size // values.element_size()].view(self.shape)
        other = torch.empty_like(inside)
        for one in (values.zero_()[: inside.numel()].view(self.shape), other):
            draw(one, self.tensor.values[0], self.workload, rng)
        raw = values.view(getattr(torch, _BITS[values.element_size()]))
        low, high = inside.min(), inside.max()
        half, whole = (
            raw.new_tensor((1 << bits) - 1) for bits in ((_MANTISSA[self.dtype] + 1) // 2, _MANTISSA[self.dtype])
        )
        ends = [end.view(values.dtype) for end in (raw | whole, raw & ~whole)]
        fits = torch.stack([(end >= low) & (end <= high) for end in ends]).all(dim=0)
        free = torch.where(fits, whole, half)
        free.masked_fill_(raw == 0, 0)
        free[: inside.numel()].masked_fill_((inside == other).view(-1), 0)
        self.x.copy_(free.view(torch.uint8))

    def renew(self, rng: torch.Generator) -> None:
        """Draw `b` anew."""
        import torch

        if self.still:
            self.b.zero_()
            return
        if self.whole:
            elements = self.b.view(getattr(torch, _BITS[DTYPE_BYTES[self.dtype]]))
            elements.random_(0, 2, generator=rng).neg_()
        else:
            self.b.view(torch.int32).random_(-(1 << 31), 1 << 31, generator=rng)
            if self.chooses:  # an exponent whole or not at all
                elements = self.b.view(getattr(torch, _BITS[DTYPE_BYTES[self.dtype]]))
                choice = torch.empty_like(elements).random_(0, 2, generator=rng).neg_()
                elements.bitwise_xor_((elements ^ choice) & self._field(elements))
            if self.same_x:
                self.b.view(torch.int64).bitwise_and_(self.x[:8].view(torch.int64))

    def mix(self, to: torch.Tensor, at_a: int, at_b: int) -> None:
        """Write the input of the call that reads `a` from byte `at_a` and `b` from `at_b` on; to: uint8 [size]."""
        if to.device.type == "cpu":
            self.mix_to(to.data_ptr(), at_a, at_b)
        else:
            self.mix_by_torch(to, at_a, at_b)

    def mix_to(self, address: int, at_a: int, at_b: int) -> None:
        """On a CPU: the same, to that address."""
        if self.still:
            ctypes.memmove(address, self.a.data_ptr() + at_a, self.size)
            return
        places = (self.a.data_ptr() + at_a, self.x.data_ptr() + at_a, self.b.data_ptr() + at_b)
        host().mix(address, *places, self.size, self.round_bytes)

    def mix_by_torch(self, to: torch.Tensor, at_a: int, at_b: int) -> None:
        """The same on any device."""
        import torch

        packed = self.size // 8 * 8
        a, x = (raw[at_a : at_a + self.size] for raw in (self.a, self.x))
        b = self.b[at_b : at_b + min(self.size, self.round_bytes)]
        if len(b) < self.size:
            b = b.repeat(-(-self.size // len(b)))[: self.size]
        if packed:
            eights = [raw[:packed].view(torch.int64) for raw in (a, x, b)]
            torch.bitwise_and(eights[1], eights[2], out=to[:packed].view(torch.int64))
            to[:packed].view(torch.int64).bitwise_xor_(eights[0])
        torch.bitwise_xor(a[packed:], x[packed:] & b[packed:], out=to[packed:])


def two_calls(spec: Spec, tensor: Tensor, workload: Workload, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """A produced input as two calls of one sample get it."""
    import torch

    size = Layout(spec, workload, 1).sizes[tensor.name]
    mixture = InputMixture(spec, tensor, workload, size, 1, 1 << 62)
    for part in "axb":
        setattr(mixture, part, torch.zeros(mixture.bytes[part], dtype=torch.uint8, device=device))
    rng = generator(device)
    mixture.fill(rng)
    found = []
    for _ in range(2):
        raw = torch.empty(size, dtype=torch.uint8, device=device)
        mixture.renew(rng)
        mixture.mix_by_torch(raw, 0, 0)
        found.append(raw.view(getattr(torch, mixture.dtype)).as_strided(mixture.shape, mixture.strides))
    return found[0], found[1]
