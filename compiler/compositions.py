"""Functions of torch's by others that the compiler lowers: what is traced in their places. Some have results whose sizes values decide."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch

from compiler.steps import pick_row, stack_rows


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


def _triangle(count, device):
    """(row, place in it) of the first `count` elements of a triangle whose row r has r + 1: a root, made good by integers."""
    at = torch.arange(count, device=device)
    row = (((8 * at + 1).float().sqrt() - 1) / 2).long()
    row = row + ((row + 1) * (row + 2) // 2 <= at).long() - (row * (row + 1) // 2 > at).long()
    return row, at - row * (row + 1) // 2


def _tril_indices(row, col, offset=0, *, dtype=torch.int64, device="cpu", **more):
    """Of a square, below its diagonal or on it, of a size that is open."""
    if isinstance(row, int) or row != col or offset > 0:
        return torch.tril_indices(row, col, offset, dtype=dtype, device=device, **more)
    side = row + offset
    own, place = _triangle(side * (side + 1) // 2, device)
    return torch.stack([own - offset, place]).to(dtype)


def _triu_indices(row, col, offset=0, *, dtype=torch.int64, device="cpu", **more):
    """Of a square, above its diagonal or on it, of a size that is open: from the last one on."""
    if isinstance(row, int) or row != col or offset < 0:
        return torch.triu_indices(row, col, offset, dtype=dtype, device=device, **more)
    side = row - offset
    own, place = _triangle(side * (side + 1) // 2, device)
    return torch.stack([side - 1 - own, row - 1 - place]).flip(1).to(dtype)


def _linear(x, weight, bias=None):
    """torch's own takes three axes with a bias as two, for which it asks what the first one's size is."""
    found = x @ weight.T
    return found if bias is None else found + bias


def _ranked(x, rank, dim, keepdim):
    """The element at a rank (from 0) along an axis, where NaN is the largest, and its place."""
    values, places = torch.sort(x, dim=dim, stable=True)
    found = values.narrow(dim, rank, 1), places.narrow(dim, rank, 1)
    return found if keepdim else tuple(one.squeeze(dim) for one in found)


def _kthvalue(x, k, dim=-1, keepdim=False):
    return torch.return_types.kthvalue(_ranked(x, k - 1, dim, keepdim))


def _median(x, dim=None, keepdim=False):
    """The lower of the two in the middle; NaN where there is any."""
    if dim is None:
        return _median(x.flatten(), 0).values
    values, places = _ranked(x, (x.shape[dim] - 1) // 2, dim, keepdim)
    if x.is_floating_point():
        values = torch.where(x.isnan().any(dim, keepdim=keepdim), float("nan"), values)
    return torch.return_types.median((values, places))


def _quantile(x, q, dim=None, keepdim=False, *, interpolation="linear"):
    """One quantile by the two elements around it."""
    if not isinstance(q, float | int) or interpolation != "linear":
        return torch.quantile(x, q, dim, keepdim, interpolation=interpolation)
    if dim is None:
        return _quantile(x.flatten(), q, 0)
    last = x.shape[dim] - 1
    values = torch.sort(x, dim=dim).values
    at = torch.full((), q, dtype=torch.float64) * last
    below = at.floor().long()
    low, high = (values.index_select(dim, place.reshape(1)) for place in (below, (below + 1).clamp(max=last)))
    found = low + (at - below).to(x.dtype) * (high - low)
    found = torch.where(x.isnan().any(dim, keepdim=True), float("nan"), found)
    return found if keepdim else found.squeeze(dim)


def _unfold(x, dimension, size, step):
    dim = dimension % x.dim()
    at = torch.arange((x.shape[dim] - size) // step + 1, device=x.device)[:, None] * step
    at = at + torch.arange(size, device=x.device)
    windows = x.index_select(dim, at.flatten()).unflatten(dim, at.shape)
    return windows.movedim(dim + 1, -1)


def _copysign(x, other):
    if not isinstance(other, torch.Tensor):
        return -x.abs() if math.copysign(1, other) < 0 else x.abs()
    return torch.where((other < 0) | (1 / other < 0), -x.abs(), x.abs())  # 1 / -0 is below zero


def _diag_embed(x, offset=0, dim1=-2, dim2=-1):
    if (offset, dim1, dim2) != (0, -2, -1):
        return torch.diag_embed(x, offset, dim1, dim2)
    at = torch.arange(x.shape[-1], device=x.device)
    return torch.where(at[:, None] == at, x[..., None], 0)


def _masked_scatter(x, mask, source):
    mask = mask.expand(x.shape)
    at = mask.flatten().long().cumsum(0) - 1
    return torch.where(mask, source.flatten()[at.clamp(min=0)].view(x.shape), x)


def _cross(x, other, *, dim=-1):
    """Of vectors of three."""
    a, b = ([one.select(dim, n) for n in range(3)] for one in (x, other))
    return torch.stack([a[n - 2] * b[n - 1] - a[n - 1] * b[n - 2] for n in range(3)], dim)


def _histc(x, bins=100, min=0, max=0):
    if min == max:  # by the values
        return torch.histc(x, bins, min, max)
    flat = x.flatten()
    inside = (flat >= min) & (flat <= max)
    at = ((flat - min) * (bins / (max - min))).floor().clamp(0, bins - 1)
    counted = inside.to(x.dtype)
    return torch.zeros(bins, dtype=x.dtype, device=x.device).index_add(0, torch.where(inside, at, 0).long(), counted)


def _pair(number) -> tuple[int, int]:
    return (number, number) if isinstance(number, int) else (number[0], number[-1])


def _conv2d(x, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
    """Where channels mix: windows side by side, and a product for each group."""
    if weight.shape[1] == 1 or isinstance(padding, str) or x.dim() != 4:
        return torch.conv2d(x, weight, bias, stride, padding, dilation, groups)
    windows = torch.nn.functional.unfold(x, weight.shape[2:], dilation, padding, stride)
    of_group = weight.flatten(1).unflatten(0, (groups, -1)).expand(x.shape[0], -1, -1, -1).flatten(0, 1)
    made = torch.bmm(of_group, windows.unflatten(1, (groups, -1)).flatten(0, 1))
    told = zip(x.shape[2:], weight.shape[2:], *map(_pair, (stride, padding, dilation)), strict=True)
    sizes = ((size + 2 * p - d * (k - 1) - 1) // s + 1 for size, k, s, p, d in told)
    made = made.view(x.shape[0], weight.shape[0], *sizes)
    return made if bias is None else made + bias[:, None, None]


def _conv1d(x, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
    if weight.shape[1] == 1 or isinstance(padding, str) or x.dim() != 3:
        return torch.conv1d(x, weight, bias, stride, padding, dilation, groups)
    one, more, apart = (_pair(number)[-1] for number in (stride, padding, dilation))
    return _conv2d(x[:, :, None], weight[:, :, None], bias, (1, one), (0, more), (1, apart), groups)[:, :, 0]


def _conv_transpose2d(x, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1):
    """Results that are `stride` apart are a convolution by weights that are: all of these are one, whose channels are theirs and the remainders,
    and no product is with a zero between inputs."""
    if x.dim() != 4:
        return torch.conv_transpose2d(x, weight, bias, stride, padding, output_padding, groups, dilation)
    pad, cut = torch.nn.functional.pad, []
    around: list[int] = []
    missing: list[int] = []
    rows = weight.unflatten(0, (groups, -1))
    told = zip(x.shape[2:], weight.shape[2:], *map(_pair, (stride, padding, output_padding, dilation)), strict=True)
    for size, taps, by, less, more, apart in told:
        reach = apart * (taps - 1) + 1
        each = -(-reach // by)  # weights of one remainder
        rows = pad(rows.movedim(3, -1)[..., None], (0, apart - 1)).flatten(-2)[..., :reach]
        rows = pad(rows, (0, each * by - reach)).unflatten(-1, (each, by)).flip(-2)
        length = (size - 1) * by - 2 * less + reach + more
        around = [each - 1, each - 1, *around]
        missing = [0, max(0, reach + more - less - each * by), *missing]
        cut.append(slice(less, less + length))
    channels = rows.permute(0, 2, 4, 6, 1, 3, 5).flatten(0, 3)
    made = _conv2d(pad(x, around), channels, None, groups=groups)
    made = (
        made.unflatten(1, (-1, *map(rows.shape.__getitem__, (4, 6)))).permute(0, 1, 4, 2, 5, 3).flatten(4).flatten(2, 3)
    )
    made = (pad(made, missing) if any(missing) else made)[:, :, cut[0], cut[1]]
    return made if bias is None else made + bias[:, None, None]


def _conv_transpose1d(x, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1):
    if x.dim() != 3:
        return torch.conv_transpose1d(x, weight, bias, stride, padding, output_padding, groups, dilation)
    by, less, more, apart = (_pair(number)[-1] for number in (stride, padding, output_padding, dilation))
    return _conv_transpose2d(
        x[:, :, None], weight[:, :, None], bias, (1, by), (0, less), (0, more), groups, (1, apart)
    )[:, :, 0]


def _and_mean(spread, x, dim=None, *more, **told):
    return spread(x, dim, *more, **told), x.mean(dim, keepdim=told.get("keepdim", more[1] if len(more) > 1 else False))


def _adaptive(rank, kind, x, sizes, return_indices=False):
    """Windows that do not divide what they lie in: of at most as many elements, of which some do not count."""
    sizes = [sizes] * rank if isinstance(sizes, int) else list(sizes)
    ends, counts = (
        x.shape[-rank:],
        [end if size is None else size for size, end in zip(sizes, x.shape[-rank:], strict=True)],
    )
    if return_indices or all(
        isinstance(end, int) and end % count == 0 for end, count in zip(ends, counts, strict=True)
    ):
        return getattr(torch.nn.functional, f"adaptive_{kind}_pool{rank}d")(x, sizes, *[True] * return_indices)
    places: list[torch.Tensor] = []
    inside, elements = (torch.ones((), dtype=dtype, device=x.device) for dtype in (torch.bool, torch.int64))
    for axis, (end, count) in enumerate(zip(ends, counts, strict=True)):
        at = torch.arange(count, device=x.device).view(-1, *[1] * (2 * rank - axis - 1))
        first, behind = at * end // count, ((at + 1) * end + count - 1) // count
        place = first + torch.arange(end // count + 2, device=x.device).view(-1, *[1] * (rank - axis - 1))
        inside = (place < behind) & inside
        places.append(place.clamp(max=end - 1))
        elements = (behind - first) * elements
    steps = tuple(range(-rank, 0))
    windows = torch.where(inside, x[(..., *places)], float("-inf") if kind == "max" else 0.0)
    return windows.amax(steps) if kind == "max" else windows.sum(steps) / elements.flatten(rank - 1).squeeze(-1)


def _embedding_bag(
    input, weight, offsets=None, max_norm=None, norm_type=2.0, scale_grad_by_freq=False, mode="mean", sparse=False,
    per_sample_weights=None, include_last_offset=False, padding_idx=None,
):  # fmt: skip
    """Rows of a table, those of a bag put together."""
    if max_norm is not None or padding_idx is not None or (offsets is not None and mode == "max"):
        return torch.nn.functional.embedding_bag(
            input, weight, offsets, max_norm, norm_type, scale_grad_by_freq, mode, sparse, per_sample_weights,
            include_last_offset, padding_idx,
        )  # fmt: skip
    rows = torch.nn.functional.embedding(input, weight)
    rows = rows if per_sample_weights is None else rows * per_sample_weights[..., None]
    if offsets is None:
        return rows.amax(1) if mode == "max" else rows.sum(1) if mode == "sum" else rows.mean(1)
    at = torch.arange(input.shape[0], device=input.device)
    first = offsets[:-1] if include_last_offset else offsets
    bag = torch.searchsorted(first, at.to(first.dtype), right=True) - 1
    made = torch.zeros(first.shape[0], weight.shape[1], dtype=rows.dtype, device=rows.device).index_add(0, bag, rows)
    if mode == "sum":
        return made
    ends = torch.cat((first[1:], torch.full_like(first[:1], input.shape[0])))
    return made / (ends - first).clamp(min=1)[:, None]


COMPOSED: dict[Any, Any] = {
    torch.nn.functional.embedding_bag: _embedding_bag,
    torch.median: _median, torch.Tensor.median: _median, torch.kthvalue: _kthvalue, torch.Tensor.kthvalue: _kthvalue,
    torch.quantile: _quantile, torch.Tensor.quantile: _quantile, torch.Tensor.unfold: _unfold, torch.copysign: _copysign,
    torch.Tensor.copysign: _copysign, torch.diag_embed: _diag_embed, torch.Tensor.diag_embed: _diag_embed,
    torch.Tensor.masked_scatter: _masked_scatter, torch.masked_scatter: _masked_scatter, torch.linalg.cross: _cross,
    torch.tril_indices: _tril_indices, torch.triu_indices: _triu_indices, torch.histc: _histc, torch.Tensor.histc: _histc,
    torch.bincount: _bincount, torch.Tensor.bincount: _bincount, torch.repeat_interleave: _repeat_interleave,
    torch.Tensor.repeat_interleave: _repeat_interleave, torch.nn.functional.one_hot: _one_hot, torch.stack: stack_rows, torch.Tensor.__getitem__: pick_row, torch.nn.functional.linear: _linear,
    torch.conv1d: _conv1d, torch.nn.functional.conv1d: _conv1d, torch.conv2d: _conv2d, torch.nn.functional.conv2d: _conv2d,
    torch.conv_transpose1d: _conv_transpose1d, torch.nn.functional.conv_transpose1d: _conv_transpose1d,
    torch.conv_transpose2d: _conv_transpose2d, torch.nn.functional.conv_transpose2d: _conv_transpose2d,
    torch.var_mean: functools.partial(_and_mean, torch.var), torch.std_mean: functools.partial(_and_mean, torch.std),
} | {
    getattr(torch.nn.functional, f"adaptive_{kind}_pool{rank}d"): functools.partial(_adaptive, rank, kind) for kind in ("avg", "max") for rank in (1, 2)
}  # fmt: skip
