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
import os
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.checks.drawing import draw
from harness.checks.layout import Layout
from harness.device import ArgumentBuffers
from harness.timing.mixtures import ELEMENTWISE, PACK_BYTES, InputMixture, group_persistent, host, is_persistent
from kernels.catalog import KernelError
from kernels.spec import Spec, Tensor, Workload

if TYPE_CHECKING:
    import torch

SOURCE = Path(__file__).parent.parent / "probes" / "company.cu"
BESIDE = {"cuda": SOURCE, "cpu": SOURCE.with_name("calls.cpp")}
"""Source of the code around a call in its own process: the kernels before and after it; on a CPU the loop that makes it."""
MAX_TENSORS = 32
"""Tensors of a list, as in probes/company.cu: two such lists fit the 4 KiB that a kernel's arguments may take."""
STEPS = 4096
"""Offsets in `b` on a GPU are below so many packs; it is redrawn before each sample."""
HOST_STEPS, HOST_STEP = 1 << 16, PACK_BYTES // 2
"""Offsets on a CPU, where `b` stays for a comparison, and their step in bytes: nobody foresees, or remembers, 2^32
pairs."""
ROUND_BYTES = 4 << 20
"""Bytes after which `b` repeats on a GPU, so that it stays in the cache: making a large input reads `a` and writes, no
more."""
REDRAWN_BYTES = {"cuda": 64 << 20, "cpu": 1 << 20}
"""Bytes of each constant that are redrawn between two samples, by device."""
NEIGHBOURS = {"plain": 0, "pdl": 1, "early": 2, "alone": 0}
"""How the kernels around a call launch: see `before` in probes/company.cu."""
_M32 = 0xFFFFFFFF
_M64 = 0xFFFFFFFFFFFFFFFF


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
