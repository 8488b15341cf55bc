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
    return torch.where(torch.signbit(other), -x.abs(), x.abs())


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


def _frexp(x):
    """x as a number from a half up to one and a power of two; the exponent that a logarithm gives is one too large or too small at times."""
    whole = (x != 0) & x.isfinite()
    power = torch.where(whole, x.abs().log2().floor() + 1, 0.0)
    half = (power / 2).trunc()  # twice, since the power itself may be no float
    near = x * torch.exp2(-half) * torch.exp2(half - power)
    more = torch.where(whole, (near.abs() >= 1).to(x.dtype) - (near.abs() < 0.5).to(x.dtype), 0.0)
    return torch.return_types.frexp((near * torch.exp2(-more), (power + more).to(torch.int32)))


def _polynomial(x, *factors):
    """By Horner's rule, the factor of the highest power first."""
    return functools.reduce(lambda made, factor: made * x + factor, factors[1:], torch.full_like(x, factors[0]))


def _in_floats(own, formula):
    """A formula as exact as float32; of float64 it is torch's own, which has no kernel."""
    return lambda x: own(x) if x.dtype == torch.float64 else formula(x)


def _erfinv(x):
    """Giles' polynomials (2010), off by three units of float32."""
    w = -torch.log((1 - x) * (1 + x))
    middle = _polynomial(
        w - 2.5, 2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503, -0.00417768164, 0.246640727, 1.50140941
    )  # fmt: skip
    end = _polynomial(
        w.sqrt() - 3, -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613, 0.00943887047, 1.00167406, 2.83297682
    )  # fmt: skip
    found = torch.where(w < 5, middle, end) * x
    return torch.where(x.abs() == 1, x * float("inf"), found)


def _digamma(x):
    """Six steps up, where the asymptotic series is exact; below zero by reflection."""
    at = torch.where(x > 0, x, 1 - x)
    above = at + 6
    inverse = 1 / (above * above)
    series = _polynomial(inverse, 1 / 240, -1 / 252, 1 / 120, -1 / 12, 0.0)
    found = above.log() - 0.5 / above + series - sum(1 / (at + step) for step in range(6))
    below = found - math.pi / torch.tan(math.pi * (x - x.round()))
    end = torch.where(x == 0, -1 / x, float("nan"))  # of no whole number below zero
    return torch.where(x > 0, found, torch.where(x == x.round(), end, below))


def _bessel(order, scaled, x):
    """I0 or I1 (Abramowitz and Stegun 9.8.1 to 9.8.4), off by 2e-7 of the result; `scaled`: by exp(-|x|)."""
    size = x.abs()
    small, large = (size / 3.75).square(), 3.75 / size.clamp(min=3.75)
    near, far = (
        ((0.0045813, 0.0360768, 0.2659732, 1.2067492, 3.0899424, 3.5156229, 1.0),
         (0.00392377, -0.01647633, 0.02635537, -0.02057706, 0.00916281, -0.00157565, 0.00225319, 0.01328592, 0.39894228)),
        ((0.00032411, 0.00301532, 0.02658733, 0.15084934, 0.51498869, 0.87890594, 0.5),
         (-0.00420059, 0.01787654, -0.02895312, 0.02282967, -0.01031555, 0.00163801, -0.00362018, -0.03988024, 0.39894228)),
    )[order]  # fmt: skip
    near_zero = _polynomial(small.clamp(max=1), *near) * (size if order else 1.0)
    beyond = _polynomial(large, *far) * torch.rsqrt(size.clamp(min=3.75))
    found = torch.where(
        size < 3.75,
        near_zero * torch.exp(-size) if scaled else near_zero,
        beyond if scaled else beyond * torch.exp(size),
    )
    return torch.where(x < 0, -found, found) if order else found


def _mode(x, dim=-1, keepdim=False):
    """The smallest of the values that are most often there; the places that torch gives with them are nobody's promise."""
    rows = x.movedim(dim, -1).sort(-1).values.contiguous()
    count = torch.searchsorted(rows, rows, right=True) - torch.searchsorted(rows, rows)
    most = (count == count.amax(-1, keepdim=True)) & (count > 0)
    found = torch.where(most, rows, rows[..., -1:]).amin(-1, keepdim=True).movedim(-1, dim)
    places: Any = None
    return torch.return_types.mode((found if keepdim else found.squeeze(dim), places))


def _cummax(found, x, dim):
    """Running extremes and the last place that held each."""
    values = found(x, dim)[0]
    at = torch.arange(x.shape[dim], device=x.device).view(
        [-1 if axis == dim % x.dim() else 1 for axis in range(x.dim())]
    )
    holds = (x == values) | x.isnan() if x.is_floating_point() else x == values
    places = torch.cummax(torch.where(holds, at, 0), dim)[0]
    return getattr(torch.return_types, found.__name__)((values, places))


def _nanmedian(x, dim=None, keepdim=False):
    """The lower of the two in the middle of what is a number: NaN is sorted behind."""
    if dim is None:
        return _nanmedian(x.flatten(), 0).values
    values, places = torch.sort(x, dim=dim, stable=True)
    rank = ((~x.isnan()).sum(dim, keepdim=True) - 1).clamp(min=0) // 2
    found: Any = values.gather(dim, rank), places.gather(dim, rank)
    return torch.return_types.nanmedian(found if keepdim else tuple(one.squeeze(dim) for one in found))


def _linspace(start, end, steps, **more):
    """Of an open number of steps: from both ends, as torch does."""
    if isinstance(steps, int) or isinstance(start, torch.Tensor) or isinstance(end, torch.Tensor):
        return torch.linspace(start, end, steps, **more)
    dtype = more.pop("dtype", None) or torch.get_default_dtype()
    at = torch.arange(steps, **more)
    last = at.new_full((), steps - 1)
    by = torch.full_like(last, end - start, dtype=dtype) / last.clamp(min=1)
    return torch.where((at < steps // 2) | (at == 0), start + by * at, end - by * (last - at)).to(dtype)


def _cdist(x, other, p=2.0, compute_mode=None):
    return torch.linalg.vector_norm(x.unsqueeze(-2) - other.unsqueeze(-3), p, -1)


def _pdist(x, p=2.0):
    rows, columns = _triu_indices(x.shape[0], x.shape[0], 1, device=x.device)
    return torch.linalg.vector_norm(x[rows] - x[columns], p, -1)


def _take_along_dim(x, places, dim=None):
    return x.flatten()[places.flatten()] if dim is None else x.gather(dim, places)


def _gaussian_nll(input, target, var, full=False, eps=1e-6, reduction="mean"):
    """Without torch's look at whether a variance is below zero."""
    var = (var if isinstance(var, torch.Tensor) else torch.full_like(input, var)).clamp(min=eps)
    var = var if var.dim() == input.dim() else var[..., None]
    found = 0.5 * (var.log() + (input - target).square() / var) + (0.5 * math.log(2 * math.pi) if full else 0)
    return found if reduction == "none" else getattr(found, reduction)()


MOST_OF_MATRIX = 4
"""Rows of a square matrix that is written out."""


def _is_open_or_large(x) -> bool:
    return not isinstance(x.shape[-1], int) or x.shape[-1] > MOST_OF_MATRIX


def _minor(x, row, column):
    rows, columns = ([at for at in range(x.shape[-1]) if at != out] for out in (row, column))
    return torch.stack([torch.stack([x[..., r, c] for c in columns], -1) for r in rows], -2)


def _det(x):
    """Of a few rows, by the first one."""
    if _is_open_or_large(x):
        return torch.linalg.det(x)
    if x.shape[-1] == 1:
        return x[..., 0, 0]
    return sum((-1) ** at * x[..., 0, at] * _det(_minor(x, 0, at)) for at in range(x.shape[-1]))


def _inv(x):
    """Of a few rows, by their minors."""
    if _is_open_or_large(x):
        return torch.linalg.inv(x)
    if x.shape[-1] == 1:
        return 1 / x
    every = range(x.shape[-1])
    minors = [torch.stack([(-1) ** (r + c) * _det(_minor(x, c, r)) for c in every], -1) for r in every]
    return torch.stack(minors, -2) / _det(x)[..., None, None]


def _solve(x, right, **_):
    vector = right.dim() == x.dim() - 1
    found = (_inv(x)[..., None] * (right[..., None] if vector else right)[..., None, :, :]).sum(-2)
    return found[..., 0] if vector else found


def _cholesky(x, upper=False):
    """Of a few rows, one after another."""
    if _is_open_or_large(x):
        return torch.linalg.cholesky(x, upper=upper)
    every = range(x.shape[-1])
    low: dict[tuple[int, int], torch.Tensor] = {}
    for r in every:
        for c in range(r + 1):
            rest = x[..., r, c] - sum(low[r, k] * low[c, k] for k in range(c))
            low[r, c] = rest.sqrt() if r == c else rest / low[c, c]
    zero = torch.zeros_like(x[..., 0, 0])
    found = torch.stack([torch.stack([low.get((r, c), zero) for c in every], -1) for r in every], -2)
    return found.mT if upper else found


def _max_pool1d(x, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False):
    size, by, pad, apart = (_pair(n)[-1] for n in (kernel_size, stride or kernel_size, padding, dilation))
    found = torch.nn.functional.max_pool2d(
        x[..., None, :], (1, size), (1, by), (0, pad), (1, apart), ceil_mode, return_indices
    )
    return tuple(one.squeeze(-2) for one in found) if return_indices else found.squeeze(-2)


def _pair(number) -> tuple[int, int]:
    return (number, number) if isinstance(number, int) else (number[0], number[-1])


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


def _both(name: str, composed, *more) -> dict[Any, Any]:
    """A function of torch and the method of that name."""
    return {getattr(torch, name): composed, getattr(torch.Tensor, name): composed, **dict.fromkeys(more, composed)}


COMPOSED: dict[Any, Any] = {
    **_both("frexp", _frexp), **_both("erfinv", _in_floats(torch.erfinv, _erfinv), torch.special.erfinv),
    **_both("digamma", _in_floats(torch.digamma, _digamma), torch.special.digamma, torch.special.psi),
    **_both("i0", _in_floats(torch.i0, functools.partial(_bessel, 0, False)), torch.special.i0),
    torch.special.i0e: _in_floats(torch.special.i0e, functools.partial(_bessel, 0, True)),
    torch.special.i1: _in_floats(torch.special.i1, functools.partial(_bessel, 1, False)), torch.special.i1e: _in_floats(torch.special.i1e, functools.partial(_bessel, 1, True)),
    **_both("mode", _mode), **_both("nanmedian", _nanmedian), **_both("cummax", functools.partial(_cummax, torch.cummax)),
    **_both("cummin", functools.partial(_cummax, torch.cummin)), torch.linspace: _linspace, torch.cdist: _cdist, torch.nn.functional.pdist: _pdist,
    **_both("dist", lambda x, other, p=2: torch.linalg.vector_norm(x - other, p)), **_both("take_along_dim", _take_along_dim),
    torch.nn.functional.gaussian_nll_loss: _gaussian_nll, **_both("det", _det, torch.linalg.det), **_both("inverse", _inv, torch.linalg.inv),
    torch.linalg.solve: _solve, torch.linalg.cholesky: _cholesky,
    torch.linalg.multi_dot: functools.partial(functools.reduce, torch.matmul), torch.max_pool1d: _max_pool1d, torch.nn.functional.max_pool1d: _max_pool1d,
    torch.nn.functional.embedding_bag: _embedding_bag,
    torch.median: _median, torch.Tensor.median: _median, torch.kthvalue: _kthvalue, torch.Tensor.kthvalue: _kthvalue,
    torch.quantile: _quantile, torch.Tensor.quantile: _quantile, torch.Tensor.unfold: _unfold, torch.copysign: _copysign,
    torch.Tensor.copysign: _copysign, torch.diag_embed: _diag_embed, torch.Tensor.diag_embed: _diag_embed,
    torch.Tensor.masked_scatter: _masked_scatter, torch.masked_scatter: _masked_scatter, torch.linalg.cross: _cross,
    torch.tril_indices: _tril_indices, torch.triu_indices: _triu_indices, torch.histc: _histc, torch.Tensor.histc: _histc,
    torch.bincount: _bincount, torch.Tensor.bincount: _bincount, torch.repeat_interleave: _repeat_interleave,
    torch.Tensor.repeat_interleave: _repeat_interleave, torch.nn.functional.one_hot: _one_hot, torch.stack: stack_rows, torch.Tensor.__getitem__: pick_row, torch.nn.functional.linear: _linear,
    torch.var_mean: functools.partial(_and_mean, torch.var), torch.std_mean: functools.partial(_and_mean, torch.std),
} | {
    getattr(torch.nn.functional, f"adaptive_{kind}_pool{rank}d"): functools.partial(_adaptive, rank, kind) for kind in ("avg", "max") for rank in (1, 2)
}  # fmt: skip
