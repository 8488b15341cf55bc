"""The catalog's kernels as this application calls them: on torch tensors, on the current stream, without synchronising.

On the CPU the same calls go to the kernels' C++ baselines, so that what the GPU route does is tested where there is no GPU.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import torch

from kernels import catalog
from kernels.spec import Scalar, Size, Tensor
from minibatch.native import library

NAMES = ("sample_neighbors", "relabel", "gather_rows_by_id", "gather_mean", "scatter_mean_backward")


class Kernels:
    """One source of each kernel, compiled for a device ("cuda" or "cpu").

    baseline: of kernels that have one so named, else the spec's default; sources: kernel -> text that replaces it.
    Raises NativeError where one does not compile.
    """

    def __init__(self, device: str, *, baseline: str = "production", sources: Mapping[str, str] | None = None) -> None:
        self.device = device
        self._entries: dict[tuple[str, str], Any] = {}
        self._specs = {}
        for name in NAMES:
            kernel = catalog.load(name)
            found = kernel.baselines(device)  # type: ignore[arg-type]
            chosen = baseline if baseline in found else None
            text = (sources or {}).get(name) or kernel.baseline(device, chosen)[1].read_text()  # type: ignore[arg-type]
            built = library(text, device)
            self._specs[name] = kernel.spec
            for dtype in kernel.spec.dtypes:
                entry = getattr(built, kernel.spec.entry_names(dtype)[0])
                entry.restype = None
                self._entries[name, dtype] = entry

    def call(self, name: str, dtype: torch.dtype, given: dict[str, torch.Tensor | int]) -> None:
        """The kernel's entry with its arguments by name: contiguous tensors and sizes."""
        arguments: list[Any] = []
        for argument in self._specs[name].arguments:
            value = given[argument.name] if not isinstance(argument, Scalar) else argument.value
            if isinstance(argument, Tensor):
                assert isinstance(value, torch.Tensor) and value.is_contiguous(), f"{name}: {argument.name}"
                arguments.append(ctypes.c_void_p(value.data_ptr()))
            elif isinstance(argument, Size):
                arguments.append(ctypes.c_int64(int(value)))
        if self.device == "cuda":
            arguments.append(ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))
        self._entries[name, str(dtype).removeprefix("torch.")](*arguments)

    def sample_neighbors(
        self, rowptr: torch.Tensor, col: torch.Tensor, frontier: torch.Tensor, seed: torch.Tensor, picked: torch.Tensor
    ) -> None:
        """picked int32 [rows, fanout] is written; frontier int32 [rows], seed int64 [1]."""
        rows, fanout = picked.shape
        sizes = {"nodes": len(rowptr) - 1, "edges": len(col), "rows": rows, "fanout": fanout}
        tensors = {"rowptr": rowptr, "col": col, "frontier": frontier, "seed": seed, "picked": picked}
        self.call("sample_neighbors", torch.int32, tensors | sizes)

    def relabel(
        self, ids: torch.Tensor, seeds: int, unique: torch.Tensor, total: torch.Tensor, local: torch.Tensor,
        scratch: torch.Tensor,
    ) -> None:  # fmt: skip
        """unique int32 [capacity] as far as used, total int32 [1] and local int32 [ids] are written."""
        sizes = {"seeds": seeds, "count": len(ids), "slots": slots_for(len(ids)), "capacity": len(unique)}
        tensors = {"ids": ids, "unique": unique, "total": total, "local": local, "scratch": scratch}
        self.call("relabel", torch.int32, tensors | sizes)

    def gather_rows(self, table: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """[rows, width] of table's dtype, where the ids are: table[ids], zeros where an id is -1. The table may be pinned."""
        out = torch.empty(len(ids), table.shape[1], dtype=table.dtype, device=ids.device)
        sizes = {"nodes": len(table), "rows": len(ids), "width": table.shape[1]}
        self.call("gather_rows_by_id", table.dtype, {"table": table, "ids": ids, "out": out} | sizes)
        return out

    def gather_mean(self, table: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """[rows, width]: the mean of table[ids[i]] over ids that are not -1."""
        out = table.new_empty(len(ids), table.shape[1])
        sizes = {"nodes": len(table), "rows": len(ids), "fanout": ids.shape[1], "width": table.shape[1]}
        self.call("gather_mean", table.dtype, {"table": table, "ids": ids, "out": out} | sizes)
        return out

    def scatter_mean_backward(self, grad_out: torch.Tensor, ids: torch.Tensor, sources: int) -> torch.Tensor:
        """float32 [sources, width]."""
        grad = torch.empty(sources, grad_out.shape[1], dtype=torch.float32, device=grad_out.device)
        sizes = {"sources": sources, "rows": len(ids), "fanout": ids.shape[1], "width": grad_out.shape[1]}
        tensors = {"grad_out": grad_out, "ids": ids, "grad": grad}
        self.call("scatter_mean_backward", grad_out.dtype, tensors | sizes)
        return grad

    def self_and_mean(self, h: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(h[:rows], the mean of h[ids]), with one gradient for both: h [sources, width], ids int32 [rows, fanout]."""
        return _SelfAndMean.apply(h, ids, self)


class _SelfAndMean(torch.autograd.Function):
    """In one function, so that the gradient of a slice is not written out and added over all sources."""

    @staticmethod
    def forward(ctx: Any, h: torch.Tensor, ids: torch.Tensor, kernels: Kernels) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.save_for_backward(ids)
        ctx.kernels, ctx.sources, ctx.dtype = kernels, len(h), h.dtype
        return h[: len(ids)].clone() if h.requires_grad else h[: len(ids)], kernels.gather_mean(h, ids)

    @staticmethod
    def backward(ctx: Any, grad_self: torch.Tensor, grad_mean: torch.Tensor) -> tuple[Any, ...]:
        (ids,) = ctx.saved_tensors
        grad = ctx.kernels.scatter_mean_backward(grad_mean.contiguous(), ids, ctx.sources)
        grad[: len(ids)] += grad_self
        return grad.to(ctx.dtype), None, None


def slots_for(ids: int) -> int:
    """Slots of relabel's table: a power of two, at least twice the ids."""
    return 1 << max(10, (2 * ids - 1).bit_length())


def scratch_for(ids: int, device: str) -> torch.Tensor:
    """Room for relabel's table of so many ids."""
    return torch.empty(2 * slots_for(ids) + ids // 1024 + 1, dtype=torch.int32, device=device)
