"""Functions of torch's whose results have sizes that values decide, by others whose results have not: what is traced in their places."""

from __future__ import annotations

from typing import Any

import torch


def _bincount(x, weights=None, minlength=0):
    """Of values below `minlength`."""
    dtype = torch.int64 if weights is None else weights.dtype
    counted = torch.ones_like(x, dtype=dtype) if weights is None else weights
    return torch.zeros(minlength, dtype=dtype, device=x.device).index_add(0, x, counted)


def _repeat_interleave(x, repeats=None, dim=None, *, output_size=None):
    """By counts whose sum is known."""
    lengths = x if repeats is None else repeats
    if output_size is None or not isinstance(lengths, torch.Tensor) or lengths.dim() != 1:
        return torch.repeat_interleave(x, *(() if repeats is None else (repeats,)), **({} if repeats is None else {"dim": dim}), output_size=output_size)  # fmt: skip
    at = torch.arange(output_size, device=lengths.device)
    source = torch.searchsorted(lengths.cumsum(0), at, right=True)
    return source if repeats is None else x.index_select(dim or 0, source)


def _one_hot(x, num_classes=-1):
    return torch.nn.functional.one_hot(x) if num_classes == -1 else (x[..., None] == torch.arange(num_classes, device=x.device)).long()  # fmt: skip


COMPOSED: dict[Any, Any] = {
    torch.bincount: _bincount, torch.Tensor.bincount: _bincount, torch.repeat_interleave: _repeat_interleave,
    torch.Tensor.repeat_interleave: _repeat_interleave, torch.nn.functional.one_hot: _one_hot,
}  # fmt: skip
