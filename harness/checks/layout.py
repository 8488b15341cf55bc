"""Where the tensors of a call lie in the argument buffers: copies apart, aligned or one element beyond it, guards on both sides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.device import ArgumentBuffers, synchronize
from kernels.spec import DTYPE_BYTES, Scalar, Size, Spec, Tensor, Workload

if TYPE_CHECKING:
    import torch


GUARD_BYTES = 256
"""Bytes of random pattern before and after every tensor: an overrun of one 16-byte store lands in them."""
WIDE_GUARD_BYTES = 1 << 20


class Layout:
    """Where each tensor of `slots` argument sets lies in an arena, guards around every one.

    They are independent but for inputs of which there are fewer `copies`: the sets have these in turns.
    """

    def __init__(
        self,
        spec: Spec,
        workload: Workload,
        slots: int,
        copies: dict[str, int] | None = None,
        *,
        wide: bool = False,
        shift: int | None = None,
    ) -> None:
        """`wide`: guards are as wide as their tensor, up to WIDE_GUARD_BYTES. `shift`: tensors begin so many bytes behind an
        alignment, an element for 0; without, where 256 bytes begin."""
        self.spec, self.workload, self.slots = spec, workload, slots
        self.offsets: dict[str, int] = {}
        self.strides: dict[str, int] = {}
        self.sizes: dict[str, int] = {}
        self.heads: dict[str, int] = {}
        """Bytes of the guard before the first copy of each tensor."""
        self.copies = {tensor.name: (copies or {}).get(tensor.name, slots) for tensor in spec.tensors}
        at = 0
        for tensor in spec.tensors:
            size = spec.span(tensor, workload.axes) * DTYPE_BYTES[spec.dtype(tensor, workload)]
            whole = -(-size // 256) * 256  # 256-byte alignment, as cudaMalloc gives
            guard = max(GUARD_BYTES, min(whole, WIDE_GUARD_BYTES)) if wide else GUARD_BYTES
            behind = 0 if shift is None else shift or DTYPE_BYTES[spec.dtype(tensor, workload)]
            stride = whole + guard + (256 if behind else 0)
            self.offsets[tensor.name], self.strides[tensor.name] = at + guard + behind, stride
            self.sizes[tensor.name], self.heads[tensor.name] = size, guard
            at += guard + self.copies[tensor.name] * stride + (256 if behind else 0)
        self.size = at

    def copy(self, tensor: Tensor, slot: int) -> int:
        """Which copy of a tensor an argument set has."""
        return slot % self.copies[tensor.name]

    def bytes_view(self, buffers: ArgumentBuffers, tensor: Tensor) -> torch.Tensor:
        """uint8 [copies, bytes from the tensor's first to its last]."""
        offset, stride, size = (d[tensor.name] for d in (self.offsets, self.strides, self.sizes))
        return buffers.view.as_strided((self.copies[tensor.name], size), (stride, 1), offset)

    def head(self, buffers: ArgumentBuffers, tensor: Tensor) -> torch.Tensor:
        """uint8 [1, GUARD_BYTES or more]: the bytes that end just before the first slot's tensor."""
        offset, guard = self.offsets[tensor.name], self.heads[tensor.name]
        return buffers.view.as_strided((1, guard), (guard, 1), offset - guard)

    def tail(self, buffers: ArgumentBuffers, tensor: Tensor) -> torch.Tensor:
        """uint8 [copies, GUARD_BYTES or more]: all bytes between each copy of the tensor and the next one."""
        offset, stride, size = (d[tensor.name] for d in (self.offsets, self.strides, self.sizes))
        return buffers.view.as_strided((self.copies[tensor.name], stride - size), (stride, 1), offset + size)

    def view(self, buffers: ArgumentBuffers, tensor: Tensor) -> torch.Tensor:
        """The tensor's dtype, [copies, *shape]."""
        import torch

        dtype = getattr(torch, self.spec.dtype(tensor, self.workload))
        shape = self.spec.shape(tensor, self.workload.axes)
        step = self.strides[tensor.name] // dtype.itemsize
        inner = self.spec.strides(tensor, self.workload.axes)
        usable = buffers.view[: buffers.size // 8 * 8].view(dtype)
        copies = self.copies[tensor.name]
        return usable.as_strided((copies, *shape), (step, *inner), self.offsets[tensor.name] // dtype.itemsize)

    def shapes(self) -> list[list[Any]]:
        """[dtype, extents, strides] of each tensor in the spec's order, for a far side that calls with tensors."""
        axes = self.workload.axes
        return [
            [self.spec.dtype(t, self.workload), list(self.spec.shape(t, axes)), list(self.spec.strides(t, axes))]
            for t in self.spec.tensors
        ]

    def arguments(self, buffers: ArgumentBuffers, slot: int) -> list[list[Any]]:
        """The encoded argument list of one call, in the spec's order (see worker.arguments)."""
        encoded: list[list[Any]] = []
        for argument in self.spec.arguments:
            if isinstance(argument, Tensor):
                at = self.offsets[argument.name] + self.copy(argument, slot) * self.strides[argument.name]
                encoded.append(["p", buffers.id, at])
            elif isinstance(argument, Size):
                encoded.append(["i", self.workload.axes[argument.name]])
            elif isinstance(argument, Scalar):
                code = {"float": "f", "double": "d", "int64_t": "i", "void*": "n"}[argument.ctype]
                encoded.append([code, int(argument.value) if code in "in" else argument.value])
        return encoded

    def message(self, buffers: ArgumentBuffers, slots: int = 1, *, op: str = "call", **more: Any) -> dict[str, Any]:
        """What a worker is asked for calls of the first `slots` argument sets, once all that was written is there; `more` fields of the
        request."""
        synchronize(buffers.device)
        calls = [self.arguments(buffers, slot) for slot in range(slots)]
        return {"op": op, "dtype": self.workload.dtype, "calls": calls, "shapes": self.shapes(), **more}
