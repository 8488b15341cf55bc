"""The company that a timed call is in: what writes its inputs anew before it, and what reads its outputs after it.

No input of a timed call exists before the calls that went before it, and none is used twice. Each element is
`a ^ (x & b)`: `a` drawn as the spec says, `b` random bits, both read from an offset that is the call's own, `x` the bits
of `a` that may change without leaving the distribution (sign and mantissa of a normal value, the mantissa of one of a range;
on a CPU the exponent, too). So values are fresh, making them costs as many bytes as reading them, and the parent can make them once more to
check any call. What a model keeps between calls (`constant`, tables of which calls touch a part) has copies in turn, which
are redrawn between samples.

On a GPU producer and consumer are kernels around the call (probes/company.cu), in the same graph: the offsets follow from
a secret of the call and from a digest of what the previous consumer read. On a CPU the parent writes the inputs through
its own mapping, where no candidate can reach, and reads the outputs there.
"""

from __future__ import annotations

import ctypes
import functools
import math
import os
import secrets
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.backends import cpu
from harness.checks.drawing import draw
from harness.checks.layout import Layout
from harness.device import ArgumentBuffers, generator
from kernels.catalog import KernelError
from kernels.spec import DTYPE_BYTES, Spec, Tensor, Workload

if TYPE_CHECKING:
    import torch

SOURCE = Path(__file__).parent.parent / "probes" / "company.cu"
HOST_SOURCE = SOURCE.with_suffix(".cpp")
BESIDE = {"cuda": SOURCE, "cpu": SOURCE.with_name("calls.cpp")}
"""Source of the code around a call in its own process: the kernels before and after it; on a CPU the loop that makes it."""
PACK_BYTES, MAX_TENSORS = 16, 32
"""Bytes of a pack, and tensors of a list, as in probes/company.cu: two such lists fit the 4 KiB that a kernel's
arguments may take."""
STEPS = 4096
"""Offsets in `b` on a GPU are below so many packs; it is redrawn before each sample."""
ROOM, ROOM_BYTES = 3, 256 << 20
"""`a` is longer than the input by so many times its size, so much at most: who would have it in the cache before the next
producer reads it does not know which part."""
HOST_STEPS, HOST_STEP = 1 << 16, PACK_BYTES // 2
"""Offsets on a CPU, where `b` stays for a comparison, and their step in bytes: nobody foresees, or remembers, 2^32
pairs."""
ROUND_BYTES = 4 << 20
"""Bytes after which `b` repeats on a GPU, so that it stays in the cache: making a large input reads `a` and writes, no
more."""
DRAWN_ELEMENTS = 1 << 20
"""Elements drawn for one sample on a CPU, of a distribution that is not elementwise; a longer input repeats them."""
CHOSEN_BYTES = 8 << 20
"""Largest input, in bytes, that is drawn twice; of a larger one only sign and mantissa are new, since drawing takes a
second."""
REDRAWN_BYTES = {"cuda": 64 << 20, "cpu": 1 << 20}
"""Bytes of each constant that are redrawn between two samples, by device."""
NEIGHBOURS = {"plain": 0, "pdl": 1, "early": 2, "alone": 0}
"""How the kernels around a call launch: see `before` in probes/company.cu."""
OFF_ZERO = 0.05
"""Share of its deviation above which a mean is not taken for zero."""
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
_M32 = 0xFFFFFFFF
_M64 = 0xFFFFFFFFFFFFFFFF


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


def mix_number(number: int) -> int:
    """splitmix64's finaliser, as in probes/company.cu."""
    z = (number + 0x9E3779B97F4A7C15) & _M64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _M64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _M64
    return z ^ (z >> 31)


def digest(outputs: list[torch.Tensor]) -> int:
    """What the consumer makes of the bytes of all outputs (uint8, flat): a sum over words and places, modulo 2^64."""
    import torch

    total, base = 0, 0
    for raw in outputs:
        packed = len(raw) // PACK_BYTES * PACK_BYTES
        words = raw[:packed].clone().view(torch.int32).to(torch.int64).bitwise_and_(_M32)
        rest = raw[packed:].to(torch.int64) + 1
        for values, first in ((words, base), (rest, base + packed)):
            at = (torch.arange(len(values), device=raw.device) + first).bitwise_and_(_M32)
            at.mul_(0x9E3779B1).bitwise_and_(_M32)
            at.bitwise_xor_(values).mul_(0x85EBCA77).bitwise_and_(_M32)
            at.bitwise_xor_(at >> 15)
            total += int(at.mul_(0xC2B2AE3D).bitwise_and_(_M32).sum())
        base += len(raw)
    return total & _M64


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


class InputProducer:
    """The inputs of every call of a comparison, by argument set: written, and made once more to check them."""

    def __init__(self, spec: Spec, workload: Workload, layout: Layout, device: str, evict_bytes: int) -> None:
        self.spec, self.workload, self.layout, self.device = spec, workload, layout, device
        steps = STEPS if device == "cuda" else HOST_STEPS
        self.steps = steps
        made = [tensor for tensor in spec.inputs if not is_persistent(tensor)]
        most = ROUND_BYTES if device == "cuda" else 1 << 62
        self.mixtures = [
            InputMixture(spec, tensor, workload, layout.sizes[tensor.name], steps, most) for tensor in made
        ]
        if device == "cuda" and len(spec.tensors) > MAX_TENSORS:
            raise KernelError(
                f"{spec.name} has {len(spec.tensors)} tensors; on a GPU at most {MAX_TENSORS} can be timed"
            )
        self.kept = [tensor for tensor in spec.inputs if is_persistent(tensor)]
        self.groups = group_persistent(spec)
        self.evict_bytes = evict_bytes
        self.size = 0
        self.places: dict[str, int] = {}
        """Offsets in the arena, behind the argument sets, of what a GPU's kernels read."""
        if device == "cuda":
            at = -(-layout.size // 256) * 256
            wanted = [(f"{m.tensor.name} {part}", m.bytes[part]) for m in self.mixtures for part in "axb"]
            for name, size in (
                *wanted,
                ("secrets", 8 * layout.slots),
                ("digests", 8 * layout.slots),
                ("never", 256),
                ("evict", evict_bytes),
            ):
                self.places[name] = at
                at += -(-size // 256) * 256
            self.size = at - layout.size

    def open(self, buffers: ArgumentBuffers, rng: torch.Generator) -> None:
        """Draw what inputs are made from, and the constants."""
        import torch

        self.buffers, self.rng = buffers, rng
        for mixture in self.mixtures:
            for part in "axb":
                if self.device == "cuda":
                    at = self.places[f"{mixture.tensor.name} {part}"]
                    raw = buffers.view[at : at + mixture.bytes[part]]
                else:
                    raw = torch.empty(mixture.bytes[part], dtype=torch.uint8)
                setattr(mixture, part, raw)
            mixture.fill(rng)
        self.offsets: dict[int, list[tuple[int, int]]] = {}
        """Argument set -> where its inputs were read from (CPU only)."""
        self.secrets = [0] * self.layout.slots
        self.began: int | None = None
        """Digest that the first call of a sample starts from; None after several passes in a row (GPU only)."""
        self.constants: dict[str, torch.Tensor] = {}
        """Constants as they must be; the candidate could have written to those in the buffers."""
        self.still = False
        """Whether constants stay as they are for now."""
        self.redrawn: list[tuple[Tensor, int]] = []
        """Constants, and which copy of each, that are new since the last sample."""
        for tensor in self.kept:
            raw = self.layout.bytes_view(buffers, tensor)
            for copy in range(len(raw)):  # torch draws into what has gaps sixteen times slower
                self._draw(tensor, copy, tensor.values[0])
            whole = -(-self.layout.sizes[tensor.name] // PACK_BYTES) * PACK_BYTES  # each copy where eight bytes begin
            self.constants[tensor.name] = raw.new_empty(len(raw), whole)[:, : raw.shape[1]].copy_(raw)

    def _draw(self, tensor: Tensor, copy: int, values: str) -> None:
        """A copy of a constant whole, anew; what lies between its rows, too, where these are not one behind the other."""
        view = self.layout.view(self.buffers, tensor)[copy]
        if not tensor.strides:
            draw(view, values, self.workload, self.rng, self._bound(tensor, copy))
            return
        raw = self.layout.bytes_view(self.buffers, tensor)[copy]
        raw.fill_(0xFF)
        if self.spec.overlaps(tensor, self.workload.axes):
            draw(raw.view(view.dtype), values, self.workload, self.rng)
        else:
            drawn = view.new_empty(view.shape)
            draw(drawn, values, self.workload, self.rng, self._bound(tensor, copy))
            view.copy_(drawn)

    def _bound(self, tensor: Tensor, copy: int) -> torch.Tensor | None:
        """For a tensor that is drawn below another: the copy of the other that bounds it."""
        import torch

        if (bound := self.spec.bound(tensor)) is None:
            return None
        dtype = getattr(torch, self.spec.dtype(bound, self.workload))
        form = self.spec.shape(bound, self.workload.axes), self.spec.strides(bound, self.workload.axes)
        return self.constants[bound.name][copy].view(dtype).as_strided(*form)

    def _words(self, name: str) -> torch.Tensor:
        import torch

        at = self.places[name]
        return self.buffers.view[at : at + 8 * self.layout.slots].view(torch.int64)

    def renew(self, *, passes: int = 1) -> None:
        """Before a sample of so many passes: secrets nobody knows, other bits to mix in, another part of each constant."""
        import torch

        if not self.still:
            self._redraw_constants()
        if self.device != "cuda":
            return
        for mixture in self.mixtures:
            mixture.renew(self.rng)
        self.secrets = [secrets.randbits(64) for _ in self.secrets]
        signed = [value - (1 << 64) if value >> 63 else value for value in self.secrets]
        self._words("secrets").copy_(torch.tensor(signed, dtype=torch.int64))
        self.began = secrets.randbits(62)
        self._words("digests").fill_(self.began)
        if passes > 1:
            self.began = None

    def _redraw_constants(self) -> None:
        """One copy of each that was drawn whole, or a part of it where that is large; at random a single element."""
        self.redrawn = []
        for group in self.groups:
            copy = secrets.randbelow(self.layout.copies[group[0].name])
            for tensor in group:
                self._redraw(tensor, copy, whole=len(group) > 1)
                self.redrawn.append((tensor, copy))

    @contextmanager
    def drawn_as(self, values: str, extra: dict[str, tuple[str, ...]]) -> Iterator[bool]:
        """Every input that knows that distribution has it meanwhile; whether there is one. Large constants stay as they are."""
        asked = [m for m in self.mixtures if values in (*m.tensor.values, *extra.get(m.tensor.name, ()))]
        kept = [
            tensor
            for tensor in self.kept
            if values in (*tensor.values, *extra.get(tensor.name, ()))
            and self.layout.copies[tensor.name] * self.layout.sizes[tensor.name] <= REDRAWN_BYTES[self.device]
        ]
        with ExitStack() as stack:
            for mixture in asked:
                stack.enter_context(mixture.drawn_as(values, self.rng))
            try:
                self._redraw_wholly(kept, values)
                self.still = True
                yield bool(asked or kept)
            finally:
                self.still = False
                self._redraw_wholly(kept, "")

    def _redraw_wholly(self, tensors: list[Tensor], values: str) -> None:
        """Every copy of these constants, of that distribution or, where that is "", of its own."""
        for tensor in tensors:
            raw = self.layout.bytes_view(self.buffers, tensor)
            for copy in range(len(raw)):
                self._draw(tensor, copy, values or tensor.values[0])
            self.constants[tensor.name].copy_(raw)

    def has_new_constants(self, slot: int) -> bool:
        """Whether a constant that this call reads was redrawn last."""
        return any(self.layout.copy(tensor, slot) == copy for tensor, copy in self.redrawn)

    def _redraw(self, tensor: Tensor, copy: int, *, whole: bool) -> None:
        import torch

        view = self.layout.view(self.buffers, tensor)[copy]
        if tensor.strides:
            self._draw(tensor, copy, tensor.values[0])
            self.constants[tensor.name][copy].copy_(self.layout.bytes_view(self.buffers, tensor)[copy])
            return
        flat, kind = view.view(-1), tensor.values[0].partition(":")[0]
        first, count = 0, len(flat)
        whole = whole or kind not in ELEMENTWISE
        if not whole:
            most = REDRAWN_BYTES[self.device] // flat.element_size()
            count = 1 if secrets.randbelow(4) == 0 else min(len(flat), most)
            first = secrets.randbelow(len(flat) - count + 1)
        drawn = view if whole else flat[first : first + count]
        draw(drawn, tensor.values[0], self.workload, self.rng, self._bound(tensor, copy))
        size = flat.element_size()
        at = slice(first * size, (first + count) * size)
        self.constants[tensor.name][copy][at] = flat.view(torch.uint8)[at]

    def produce(self, slots: list[int]) -> None:
        """On a CPU: write the inputs of these argument sets anew, and poison their outputs."""
        # By addresses: to make a tensor of each place takes longer than to write a small one.
        inputs = [(self._places(mixture.tensor), mixture) for mixture in self.mixtures]
        dtypes = {tensor.name: self.spec.dtype(tensor, self.workload) for tensor in self.spec.outputs}
        outputs = [
            (self._places(tensor), "float" not in dtypes[tensor.name])  # of integers any value may be right
            for tensor in self.spec.outputs
            if tensor.role == "output"
        ]
        drawn = iter(memoryview(os.urandom(16 * len(self.mixtures) * len(slots))).cast("Q"))
        for slot in slots:
            self.offsets[slot] = [
                (next(drawn) % mixture.steps_a * HOST_STEP, next(drawn) % self.steps * HOST_STEP)
                for mixture in self.mixtures
            ]
            for ((first, step, _), mixture), at in zip(inputs, self.offsets[slot], strict=True):
                mixture.mix_to(first + slot * step, *at)
            for (first, step, size), whole in outputs:
                ctypes.memset(first + slot * step, secrets.randbelow(256) if whole else 0xFF, size)

    def _places(self, tensor: Tensor) -> tuple[int, int, int]:
        """On a CPU: the address of a tensor in the first argument set, bytes from one set to the next, and its own."""
        view = self.layout.bytes_view(self.buffers, tensor)
        return view.data_ptr(), view.stride(0), view.shape[1]

    def forget(self, slots: list[int]) -> None:
        """On a CPU: take what was written for these argument sets out of all caches."""
        for first, step, size in [self._places(tensor) for tensor in self.spec.tensors if not is_persistent(tensor)]:
            for slot in slots:
                host().forget(first + slot * step, size)

    def last_digest(self) -> int:
        """On a GPU: what lies there of the last argument set's call."""
        return int(self._words("digests")[-1])

    def _offsets(self, slot: int) -> list[tuple[int, int]]:
        """Where each input of that call was read from."""
        if self.device != "cuda":
            return self.offsets[slot]
        seen = self.began if slot == 0 else int(self._words("digests")[slot - 1])
        assert seen is not None
        key = mix_number(self.secrets[slot] ^ (seen & _M64))
        return [
            (
                mix_number((key + 2 * at) & _M64) % mixture.steps_a * PACK_BYTES,
                mix_number((key + 2 * at + 1) & _M64) % self.steps * PACK_BYTES,
            )
            for at, mixture in enumerate(self.mixtures)
        ]

    def inputs(self, slot: int) -> dict[str, torch.Tensor]:
        """The inputs that the call on that argument set had, made once more; shape and dtype of the spec."""
        import torch

        made: dict[str, torch.Tensor] = {}
        offsets = dict(zip((m.tensor.name for m in self.mixtures), self._offsets(slot), strict=True))
        by_name = {m.tensor.name: m for m in self.mixtures}
        for tensor in self.spec.inputs:
            dtype = getattr(torch, self.spec.dtype(tensor, self.workload))
            shape = self.spec.shape(tensor, self.workload.axes)
            if tensor.name in by_name:
                raw = torch.empty(self.layout.sizes[tensor.name], dtype=torch.uint8, device=self.buffers.view.device)
                by_name[tensor.name].mix(raw, *offsets[tensor.name])
            else:
                raw = self.constants[tensor.name][self.layout.copy(tensor, slot)]
            made[tensor.name] = raw.view(dtype).as_strided(shape, self.spec.strides(tensor, self.workload.axes))
        return made

    def digests_agree(self, slot: int) -> bool:
        """On a GPU: whether the consumer of that call has read what lies there now."""
        outputs = [self.layout.bytes_view(self.buffers, tensor)[slot] for tensor in self.spec.outputs]
        return digest(outputs) == int(self._words("digests")[slot]) & _M64

    def constants_intact(self) -> str:
        """Which constant has been written to, or ""."""
        import torch

        for name, right in self.constants.items():
            tensor = next(tensor for tensor in self.kept if tensor.name == name)
            if not torch.equal(self.layout.bytes_view(self.buffers, tensor), right):
                return name
        return ""

    def message(self, company: str) -> dict[str, Any]:
        """What a worker needs to launch the neighbours of each argument set's call (see worker.Neighbours)."""
        layout = self.layout

        def place(tensor: Tensor) -> list[int]:
            return [layout.offsets[tensor.name], layout.strides[tensor.name], layout.sizes[tensor.name]]

        def parts(mixture: InputMixture) -> list[int]:
            a, x, b = (self.places[f"{mixture.tensor.name} {part}"] for part in "axb")
            return [a, -1 if mixture.same_x else x, b, mixture.round_bytes // PACK_BYTES, mixture.steps_a]

        pieces = [[*place(mixture.tensor), *parts(mixture)] for mixture in self.mixtures]
        return {
            "arena": self.buffers.id,
            "neighbour": NEIGHBOURS[company],
            "apart": company == "alone",
            "steps": self.steps,
            "pieces": pieces,
            "poisoned": [place(tensor) for tensor in self.spec.outputs if tensor.role == "output"],
            "outputs": [place(tensor) for tensor in self.spec.outputs],
            "secrets": self.places["secrets"],
            "digests": self.places["digests"],
            "never": self.places["never"],
            "programmatic": company in ("pdl", "early"),
            "evict": [self.places["evict"], self.evict_bytes, int(bool(self.kept))],
        }
