"""GraphSAGE's layers forward and backward by hand: one product a layer, hidden rows read as few times as can be.

Own row and neighbours' mean lie side by side, so that a layer is one product. A hidden row is kept as the product left it;
ReLU and dropout are applied where it is read, so they cost no pass over memory and no mask is kept. Backward, gradients are
gathered along the transposed sample instead of added atomically. On a GPU by layers.cu, on a CPU the same by torch.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from minibatch.models import Sage
from minibatch.native import library

WORD = 0xFFFFFFFF
BYTES = 256
"""Values of a random byte: a dropout's share is one of so many."""


class BufferProvider(Protocol):
    def get(self, name: str, size: int) -> torch.Tensor: ...


@dataclass
class Transposed:
    """For each source the rows that have it as neighbour: int32 entries from offsets[source] to offsets[source + 1], in any
    order.

    inverse: float32 [rows], one over the number of a row's neighbours.
    """

    offsets: torch.Tensor
    entries: torch.Tensor
    inverse: torch.Tensor


@dataclass
class Passed:
    """What a forward pass keeps for the backward one, of each layer: its ids, its inputs [rows, 2 width], its product [rows, out]."""

    ids: list[torch.Tensor]
    inputs: list[torch.Tensor]
    hidden: list[torch.Tensor]


class Layers:
    """A Sage's layers. Its weights become views of one tensor, `flat`, their gradients of another, `gradient`, which has one
    element more, for a flag that ranks reduce with it."""

    def __init__(self, model: Sage, device: str) -> None:
        self.model, self.device = model, device
        self.native = library((Path(__file__).parent / "layers.cu").read_text(), "cuda") if device == "cuda" else None
        pairs = list(zip(model.own, model.neighbours, strict=True))
        weights = [weight for pair in pairs for weight in pair]
        sizes = [weight.numel() for weight in weights]
        self.flat = torch.cat([weight.detach().flatten() for weight in weights])
        self.gradient = torch.zeros(len(self.flat) + 1, device=self.flat.device)
        for weight, held, grad in zip(weights, self.flat.split(sizes), self.gradient[:-1].split(sizes), strict=True):
            weight.data = held.view_as(weight)
            weight.grad = grad.view_as(weight)
        # On a GPU products are of bfloat16, from weights of float32.
        self.rounded = self.flat.to(torch.bfloat16) if device == "cuda" else self.flat
        both = [own + other for own, other in zip(sizes[::2], sizes[1::2], strict=True)]
        shapes = [(2 * len(own), own.shape[1]) for own, _ in pairs]
        self.weights = [part.view(shape) for part, shape in zip(self.rounded.split(both), shapes, strict=True)]
        self.gradients = [part.view(shape) for part, shape in zip(self.gradient[:-1].split(both), shapes, strict=True)]
        self.drop = min(BYTES - 1, round(model.dropout * BYTES))

    def forward(
        self, table: torch.Tensor, own: torch.Tensor | None, ids: list[torch.Tensor], key: torch.Tensor | None
    ) -> Passed:
        """ids: of each layer, deepest first, int32 [rows, fanout], places in the layer below's rows, in table of the first;
        own: of the first layer each row's place in table, its number where None. key: int64 [1] that picks what is dropped, none
        in evaluation. The logits are the last `hidden`."""
        if self.rounded is not self.flat:
            self.rounded.copy_(self.flat)
        passed = Passed(ids, [], [])
        h = table
        for number, named in enumerate(ids):
            x = self._self_and_mean(h, own if number == 0 else None, named, number, key)
            h = x @ self.weights[number]
            passed.inputs.append(x)
            passed.hidden.append(h)
        return passed

    def backward(
        self, passed: Passed, grad: torch.Tensor, transposed: list[Transposed], key: torch.Tensor | None
    ) -> None:
        """Writes `gradient`, all but the flag. grad: of the logits; transposed: of all layers but the first, in their order."""
        grad = grad.to(self.weights[0].dtype)
        for number in reversed(range(len(passed.inputs))):
            x, out = passed.inputs[number], self.gradients[number]
            if self.device == "cuda":
                torch.mm(x.t(), grad, out_dtype=torch.float32, out=out)
            else:
                torch.mm(x.t(), grad, out=out)
            if number:
                below = grad @ self.weights[number].t()
                grad = self._gather_gradient(below, transposed[number - 1], passed.hidden[number - 1], number, key)

    def transpose(self, ids: torch.Tensor, sources: int, buffers: BufferProvider, name: str) -> Transposed:
        """ids int32 [rows, fanout] of places below `sources`; buffers: int32 ones by name, where what is made is kept."""
        rows, fanout = ids.shape
        offsets = buffers.get(f"offsets {name}", sources + 1)
        entries = buffers.get(f"entries {name}", ids.numel())
        inverse = buffers.get(f"inverse {name}", rows).view(torch.float32)
        counts = buffers.get(f"counts {name}", sources)
        offsets[:1].zero_()
        if self.native is None:
            at = torch.nonzero(ids.flatten() >= 0).flatten()
            named = ids.flatten()[at].long()
            counts.copy_(torch.bincount(named, minlength=sources))
            torch.cumsum(counts, 0, dtype=torch.int32, out=offsets[1:])
            entries[: len(at)].copy_(at[named.argsort(stable=True)] // fanout)
            inverse.copy_((ids >= 0).sum(dim=1).clamp_min(1).float().reciprocal())
            return Transposed(offsets, entries, inverse)
        self._call("count_entries", ids, counts, inverse, rows, fanout, sources)
        torch.cumsum(counts, 0, dtype=torch.int32, out=offsets[1:])
        self._call("fill_entries", ids, counts, offsets, entries, rows, fanout)
        return Transposed(offsets, entries, inverse)

    def count_picked(self, picked: torch.Tensor, edges: torch.Tensor) -> None:
        """Adds how many ids of int32 `picked` are not -1 to edges, int64 [1]."""
        if self.native is None:
            edges += (picked >= 0).sum()
        else:
            self._call("count_picked", picked, edges, picked.numel())

    def _self_and_mean(
        self, h: torch.Tensor, own: torch.Tensor | None, ids: torch.Tensor, layer: int, key: torch.Tensor | None
    ) -> torch.Tensor:
        """[rows, 2 width]: the own row and the neighbours' mean; of hidden rows what ReLU and dropout leave of them."""
        rows, width = len(ids), h.shape[1]
        if self.native is None:
            if layer:
                h = torch.where(self._kept(h, layer, key), h, 0) * self._scale(key)
            mine = torch.arange(rows) if own is None else own.long()
            self_ = torch.where(mine[:, None] >= 0, h[mine.clamp_min(0)], 0)
            some = (ids >= 0).unsqueeze(-1)
            mean = torch.where(some, h[ids.clamp_min(0).long()], 0).sum(dim=1) / some.sum(dim=1).clamp_min(1)
            return torch.cat([self_, mean], dim=1)
        out = h.new_empty(rows, 2 * width)
        drop = self.drop if key is not None else 0
        self._call("self_and_mean", h, own, ids, out, rows, ids.shape[1], width, int(layer > 0), key, layer, drop)
        return out

    def _gather_gradient(
        self, grad: torch.Tensor, transposed: Transposed, hidden: torch.Tensor, layer: int, key: torch.Tensor | None
    ) -> torch.Tensor:
        """[sources, width]: of the product of the layer below; grad [rows, 2 width] of what `_self_and_mean` made of it."""
        sources, width = hidden.shape
        if self.native is None:
            rows = len(grad)
            found = torch.zeros_like(hidden)
            found[:rows] = grad[:, :width]
            offsets = transposed.offsets.long()
            to = torch.repeat_interleave(torch.arange(sources), offsets[1:] - offsets[:-1])
            entries = transposed.entries[: len(to)].long()
            found.index_add_(0, to, grad[entries, width:] * transposed.inverse[entries, None])
            return torch.where(self._kept(hidden, layer, key), found, 0) * self._scale(key)
        out = torch.empty_like(hidden)
        about = (transposed.inverse, transposed.offsets, transposed.entries, hidden, out)
        drop = self.drop if key is not None else 0
        self._call("gather_gradient", grad, *about, sources, len(grad), width, key, layer, drop)
        return out

    def _scale(self, key: torch.Tensor | None) -> float:
        return 1.0 if key is None else BYTES / (BYTES - self.drop)

    def _kept(self, h: torch.Tensor, layer: int, key: torch.Tensor | None) -> torch.Tensor:
        """Which elements of hidden rows ReLU and dropout leave."""
        if key is None or not self.drop:
            return h > 0
        rows, width = h.shape
        return (h > 0) & draw_dropout_mask(rows, width, self.drop, int(key), layer)

    def _call(self, name: str, *values: Any) -> None:
        arguments: list[Any] = []
        for value in values:
            if isinstance(value, torch.Tensor):
                assert value.is_contiguous(), name
                arguments.append(ctypes.c_void_p(value.data_ptr()))
            else:
                arguments.append(None if value is None else ctypes.c_int64(value))
        getattr(self.native, f"layers_{name}")(*arguments, ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))


def draw_dropout_mask(rows: int, width: int, drop: int, key: int, layer: int) -> torch.Tensor:
    """bool [rows, width]: what a dropout of drop / 256 keeps; layers.cu hashes the same."""
    mixed = _mix((key + 0x9E3779B97F4A7C15 * layer) % (1 << 64))
    words = (width + 3) // 4
    index = (torch.arange(rows)[:, None] * words + torch.arange(words)) & WORD
    word = _scramble((_scramble(index ^ (mixed & WORD)) + (mixed >> 32)) & WORD)
    return ((word[:, :, None] >> torch.arange(0, 32, 8)) & (BYTES - 1)).view(rows, words * 4)[:, :width] >= drop


def _scramble(x: torch.Tensor) -> torch.Tensor:
    """A hash of 32 bits, in int64."""
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & WORD
    x = ((x ^ (x >> 15)) * 0x846CA68B) & WORD
    return x ^ (x >> 16)


def _mix(x: int) -> int:
    """The finaliser of splitmix64."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) % (1 << 64)
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) % (1 << 64)
    return x ^ (x >> 31)
