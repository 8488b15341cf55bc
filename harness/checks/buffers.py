"""Argument buffers that notice what a call may not do: guards, poison, inputs that must not change."""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING, Any

from harness.checks.cases import Sliced
from harness.checks.correctness import judge_closely
from harness.checks.expected import Right
from harness.checks.layout import Layout
from harness.device import ArgumentBuffers
from harness.records import Check
from kernels.spec import DTYPE_BYTES, Spec, Tensor

if TYPE_CHECKING:
    import torch


DRAWN_WORDS = (1 << 17) + 1
"""Words of eight bytes after which a guard's repeat: no multiple of a page, so that no two pages of it are alike."""


class LaidOutAnewError(RuntimeError):
    """A check's memory was given to another before it was looked at."""


class GuardedBuffers:
    """Argument sets of one workload in an arena: writes inputs and poison, and looks at what a call left there."""

    def __init__(self, spec: Spec, buffers: ArgumentBuffers, layout: Layout, rng: torch.Generator) -> None:
        self.spec, self.buffers, self.layout = spec, buffers, layout
        buffers.laid_out += 1
        self.turn = buffers.laid_out
        self.pattern: dict[str, tuple[torch.Tensor, ...]] = {}
        self.written: set[int] = set()
        self.between: dict[tuple[str, int], torch.Tensor] = {}
        """(tensor, argument set) -> what was written between its rows."""
        for tensor in spec.tensors:
            views = layout.head(buffers, tensor), layout.tail(buffers, tensor)
            self.pattern[tensor.name] = tuple(_filled(view, rng) for view in views)

    def _require_undisturbed(self) -> None:
        """Raises LaidOutAnewError where the memory was laid out anew meanwhile, by whoever had to call something there: what lies in it is nobody's
        fault then. An honest candidate was CHEATED so, since its baseline was compiled for behind its guards."""
        if self.buffers.laid_out != self.turn:
            raise LaidOutAnewError("the harness laid out the memory of a check anew before it had looked at it")

    def message(self, slots: int = 1, **more: Any) -> dict[str, Any]:
        return self.layout.message(self.buffers, slots, **more)

    def write(self, slot: int, inputs: dict[str, torch.Tensor], *, poison: bool = True) -> None:
        """Inputs as given; outputs of floats to all ones bits, which is NaN in every type and so never a right answer.

        Of integers anything may be one, so there the poison is drawn anew, but for the first call's. Without `poison` the outputs
        are what the call before has left.
        """
        first, self.written = slot not in self.written, self.written | {slot}
        for tensor in self.spec.tensors:
            view = self.layout.view(self.buffers, tensor)[slot]
            if tensor.role in ("input", "inout"):
                if tensor.strides:
                    self._write_strided(tensor, slot, inputs[tensor.name], first=first)
                else:
                    view.copy_(inputs[tensor.name])
            elif poison and tensor.role == "workspace":  # anything: NaNs, or what any other kernel left there
                raw = self.layout.bytes_view(self.buffers, tensor)[slot]
                raw.fill_(0xFF) if first or random.random() < 0.5 else raw.copy_(self._poison(tensor))
            elif poison and (first or view.dtype.is_floating_point):
                self.layout.bytes_view(self.buffers, tensor)[slot].fill_(0xFF)
            elif poison:
                self.layout.bytes_view(self.buffers, tensor)[slot].copy_(self._poison(tensor))
            if tensor.strides and (poison or tensor.role != "output"):
                self.between[tensor.name, slot] = self._gaps(tensor, slot)

    def _write_strided(self, tensor: Tensor, slot: int, values: torch.Tensor, *, first: bool) -> None:
        """An input whose rows do not lie one behind the other, and poison between them."""
        raw, view = self.layout.bytes_view(self.buffers, tensor)[slot], self.layout.view(self.buffers, tensor)[slot]
        raw.fill_(0xFF) if first or values.dtype.is_floating_point else raw.copy_(self._poison(tensor))
        if self.spec.overlaps(tensor, self.layout.workload.axes):
            elements = raw.view(values.dtype) if raw.storage_offset() % values.element_size() == 0 else None
            assert elements is not None, "a tensor begins where one of its elements may"
            elements[self._places(tensor).flatten()] = values.flatten()
        else:
            view.copy_(values)

    def _places(self, tensor: Tensor) -> torch.Tensor:
        """Place of each element from the tensor's first one on, int64 of its shape."""
        import torch

        axes = self.layout.workload.axes
        shape, strides = self.spec.shape(tensor, axes), self.spec.strides(tensor, axes)
        places = torch.zeros(shape, dtype=torch.int64, device=self.buffers.view.device)
        for at, (n, stride) in enumerate(zip(shape, strides, strict=True)):
            steps = torch.arange(n, device=places.device) * stride
            places += steps.view(*(n if dim == at else 1 for dim in range(len(shape))))
        return places

    def _gaps(self, tensor: Tensor, slot: int) -> torch.Tensor:
        """uint8 [elements between rows, bytes of one]."""
        import torch

        width = DTYPE_BYTES[self.spec.dtype(tensor, self.layout.workload)]
        raw = self.layout.bytes_view(self.buffers, tensor)[self.layout.copy(tensor, slot)].view(-1, width)
        free = torch.ones(len(raw), dtype=torch.bool, device=raw.device)
        free[self._places(tensor).flatten()] = False
        return raw[free]

    def _poison(self, tensor: Tensor) -> torch.Tensor:
        """uint8 of the tensor's size: one value all over, small, negative or any, or bytes at random."""
        import torch

        size, width = self.layout.sizes[tensor.name], DTYPE_BYTES[self.spec.dtype(tensor, self.layout.workload)]
        values = [0, -1, random.randrange(1, 100), random.getrandbits(8 * width - 1), None]
        value = random.choice(values)
        raw = os.urandom(1 << 16) if value is None else (value % (1 << 8 * width)).to_bytes(width, "little")
        pattern = torch.frombuffer(bytearray(raw), dtype=torch.uint8).to(self.buffers.view.device)
        return pattern.repeat(-(-size // len(pattern)))[:size]

    def read(self, slot: int, tensor: Tensor) -> torch.Tensor:
        return self.layout.view(self.buffers, tensor)[self.layout.copy(tensor, slot)]

    def check_guards(self, name: str) -> Check:
        import torch

        self._require_undisturbed()
        label = self.layout.workload.label
        for tensor in self.spec.tensors:
            head, tail = self.pattern[tensor.name]
            for pattern, now, where in (
                (head, self.layout.head(self.buffers, tensor), "before"),
                (tail, self.layout.tail(self.buffers, tensor), "behind"),
            ):
                if not torch.equal(pattern, now):
                    return Check(workload=label, name=name, passed=False, message=f"wrote {where} {tensor.name}")
        for tensor in self.spec.tensors:
            for slot in {slot for known, slot in self.between if known == tensor.name}:
                if not torch.equal(self.between[tensor.name, slot], self._gaps(tensor, slot)):
                    return Check(
                        workload=label, name=name, passed=False, message=f"wrote between the rows of {tensor.name}"
                    )
        return Check(workload=label, name=name, passed=True)

    def check_inputs(self, slot: int, inputs: dict[str, torch.Tensor], name: str) -> Check:
        import torch

        self._require_undisturbed()
        label = self.layout.workload.label
        for tensor in self.spec.tensors:
            if tensor.role == "input":
                # By bytes: NaN is not equal to itself, and -0.0 equals 0.0.
                then = inputs[tensor.name].contiguous().view(-1).view(torch.uint8)
                if tensor.strides:
                    now = self.read(slot, tensor).contiguous().view(-1).view(torch.uint8)
                else:
                    now = self.layout.bytes_view(self.buffers, tensor)[self.layout.copy(tensor, slot)]
                now = now.clone() if self.layout.offsets[tensor.name] % 8 else now
                eights = len(then) // 8 * 8  # eight at once, which takes a tenth of the time
                same = torch.equal(now[:eights].view(torch.int64), then[:eights].view(torch.int64))
                if not same or not torch.equal(now[eights:], then[eights:]):
                    return Check(workload=label, name=name, passed=False, message=f"changed its input {tensor.name}")
        return Check(workload=label, name=name, passed=True)

    def outputs(self, slot: int) -> dict[str, torch.Tensor]:
        """Views of what a call has left in its outputs, by name."""
        return {tensor.name: self.read(slot, tensor) for tensor in self.spec.outputs}

    def check_outputs(self, slot: int, right: Right | Sliced, name: str) -> Check:
        """Every element of every output against the reference, and the properties that a call's outputs must have."""
        self._require_undisturbed()
        label = self.layout.workload.label
        if isinstance(right, Sliced):
            return self._check_slices(slot, right, f"{name}, in {len(right)} slices")
        error, message, right = judge_closely(self.spec, self.layout.workload, self.outputs(slot), right)
        says = "; ".join([*(e.says for e in right.values()), *(["properties"] if right.law else [])])
        return Check(workload=label, name=name, passed=not message, error=error, tolerance=says, message=message)

    def _check_slices(self, slot: int, right: Sliced, name: str) -> Check:
        worst, says, whole = 0.0, "", self.outputs(slot)
        for rows, part, own in right.parts():
            left = {output: values[rows] for output, values in whole.items()}
            error, message, own = judge_closely(self.spec, part, left, own)
            worst, says = max(worst, error), "; ".join(e.says for e in own.values())
            if message:
                message += f", of the slice that begins at {right.slicing.axis} {rows.start:,}"
                break
        label = self.layout.workload.label
        return Check(workload=label, name=name, passed=not message, error=worst, tolerance=says, message=message)


def _filled(view: torch.Tensor, rng: torch.Generator) -> torch.Tensor:
    """A guard filled with random bytes; what it holds now. view: uint8 [rows, bytes], with gaps between rows.

    Of a large one the bytes come again: to draw them all took longer than to draw the inputs.
    """
    import torch

    wanted = -(-view.numel() // 8)
    whole = torch.empty(min(wanted, DRAWN_WORDS), dtype=torch.int64, device=view.device)
    whole.random_(-(1 << 63), None, generator=rng)
    if wanted > DRAWN_WORDS:
        whole = whole.repeat(-(-wanted // DRAWN_WORDS))
    drawn = whole.view(torch.uint8)[: view.numel()].view(view.shape)
    view.copy_(drawn)
    return drawn
