"""GraphSAGE's layers forward and backward by hand: one product a layer, hidden rows read as few times as can be.

Own row and neighbours' mean lie side by side, so that a layer is one product. A hidden row is kept as the product left it;
ReLU and dropout are applied where it is read, so they cost no pass over memory, and what they leave is kept as a bit an element
for the backward pass. There gradients are gathered along the transposed sample instead of added atomically. On a GPU by layers.cu,
whose kernels make loss, gradient and Adam's step too, on a CPU the same by torch.
"""

from __future__ import annotations

import contextlib
import ctypes
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from minibatch import ranks
from minibatch.models import Sage
from minibatch.native import library
from minibatch.streams import Branch

WORD = 0xFFFFFFFF
BYTES = 256
"""Values of a random byte: a dropout's share is one of so many."""


class BufferProvider(Protocol):
    def get(self, name: str, size: int, *, zeros: bool = False) -> torch.Tensor: ...


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
    masks: list[torch.Tensor]
    """What ReLU and dropout left of each hidden row that was read, of all layers but the last: bool [rows, width], on a GPU
    uint8 [rows, packs]."""
    drop: int
    """Of BYTES."""


class Layers:
    """A Sage's layers. Its weights become views of one tensor, `flat`, their gradients of another, `gradient`, which has one
    element more, for a flag that ranks reduce with it. Where GPUs of one machine train together they read one another's, if
    they can (`peers`): then steps write two buffers in turn, and a rank that has met the others once since is sure that
    nobody reads the one it writes."""

    def __init__(self, model: Sage, device: str) -> None:
        self.model, self.device = model, device
        self.native = library((Path(__file__).parent / "layers.cu").read_text(), "cuda") if device == "cuda" else None
        pairs = list(zip(model.own, model.neighbours, strict=True))
        weights = [weight for pair in pairs for weight in pair]
        sizes = [weight.numel() for weight in weights]
        self.flat = torch.cat([weight.detach().flatten() for weight in weights])
        self.peers = ranks.share(len(self.flat) + 1, self.flat.device)
        alone = self.flat.new_zeros(len(self.flat) + 1)
        self.buffers = [alone, alone] if self.peers is None else self.peers.mine
        self.buffers_at = (
            self.peers.at
            if self.peers
            else torch.tensor([[buffer.data_ptr()] for buffer in self.buffers], device=self.flat.device)
        )
        for weight, held in zip(weights, self.flat.split(sizes), strict=True):
            weight.data = held.view_as(weight)
        # On a GPU products are of bfloat16, from weights of float32.
        self.rounded = self.flat.to(torch.bfloat16) if device == "cuda" else self.flat
        both = [own + other for own, other in zip(sizes[::2], sizes[1::2], strict=True)]
        shapes = [(2 * len(own), own.shape[1]) for own, _ in pairs]
        self.weights = [part.view(shape) for part, shape in zip(self.rounded.split(both), shapes, strict=True)]
        self.of_layers = [
            [part.view(shape) for part, shape in zip(buffer[:-1].split(both), shapes, strict=True)]
            for buffer in self.buffers
        ]
        self.turn(0)
        for weight, grad in zip(weights, self.gradient[:-1].split(sizes), strict=True):
            weight.grad = grad.view_as(weight)
        self.drop = min(BYTES - 1, round(model.dropout * BYTES))
        self.first, self.second = (torch.zeros_like(self.flat) for _ in range(2))
        """Adam's moments of `flat`, on a GPU."""
        self.made = torch.zeros((), device=self.flat.device)
        """How many of Adam's steps were made."""
        self.next = torch.zeros(2, device=self.flat.device)
        self.beside = Branch(device)
        """What the next layer of the backward pass does not wait for."""

    def turn(self, slot: int) -> None:
        """Let the next step write the gradient of this slot, 0 or 1."""
        self.gradient, self.gradients = self.buffers[slot], self.of_layers[slot]
        self.gradients_at = self.buffers_at[slot]

    def meet(self) -> None:
        """Go on, on the device, when all peers have come here."""
        if self.peers is not None:
            self._call("meet", self.peers.signals, self.peers.met, ranks.rank(), ranks.ranks())

    def forward(
        self, table: torch.Tensor, own: torch.Tensor | None, ids: list[torch.Tensor], key: torch.Tensor | None
    ) -> Passed:
        """ids: of each layer, deepest first, int32 [rows, fanout], places in the layer below's rows, in table of the first;
        own: of the first layer each row's place in table, its number where None. key: int64 [1] that picks what is dropped, none
        in evaluation. The logits are the last `hidden`."""
        self.round_weights()
        passed = Passed(ids, [], [], [], 0 if key is None else self.drop)
        h = table
        for number, named in enumerate(ids):
            x, mask = self._self_and_mean(h, own if number == 0 else None, named, number, key)
            h = x @ self.weights[number]
            if mask is not None:
                passed.masks.append(mask)
            passed.inputs.append(x)
            passed.hidden.append(h)
        return passed

    def round_weights(self) -> None:
        """Let products have the weights as they are now."""
        if self.rounded is not self.flat:
            self.rounded.copy_(self.flat)

    def infer(
        self, number: int, h: torch.Tensor, own: torch.Tensor | None, ids: torch.Tensor, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """One layer in evaluation, into `out` where it is given; arguments as `forward`'s of one layer."""
        x, _ = self._self_and_mean(h, own, ids, number, None)
        return torch.mm(x, self.weights[number], out=out)

    def backward(self, passed: Passed, grad: torch.Tensor, transposed: list[Transposed]) -> None:
        """Writes `gradient`, all but the flag. grad: of the logits; transposed: of all layers but the first, in their order."""
        grad = grad.to(self.weights[0].dtype)
        held = []  # what the other stream reads must not be given to another tensor meanwhile
        for number in reversed(range(len(passed.inputs))):
            x, out = passed.inputs[number], self.gradients[number]
            held.append(grad)
            with self.beside.fork() if number else contextlib.nullcontext():
                if self.device == "cuda":
                    torch.mm(x.t(), grad, out_dtype=torch.float32, out=out)
                else:
                    torch.mm(x.t(), grad, out=out)
            if number:
                below = grad @ self.weights[number].t()
                grad = self._gather_gradient(below, transposed[number - 1], passed.masks[number - 1], passed)
        self.beside.join()

    def softmax_gradient(self, logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(float32 [rows], shares whose sum is the mean cross entropy of rows that have a label; its gradient) of bfloat16 logits."""
        grad, shares = torch.empty_like(logits), torch.empty(len(logits), device=logits.device)
        self._call("softmax_gradient", logits, labels, grad, shares, *logits.shape)
        return shares, grad

    def adopt(self, optimizer: torch.optim.Adam) -> None:
        """Let the optimizer's state be views of ours, with its values where it has some: then `adam` makes its steps."""
        begin = 0
        for weight in (w for pair in zip(self.model.own, self.model.neighbours, strict=True) for w in pair):
            end, held = begin + weight.numel(), optimizer.state.get(weight, {})
            views = {"exp_avg": self.first[begin:end], "exp_avg_sq": self.second[begin:end], "step": self.made}
            for name, view in views.items():
                if name in held and held[name].data_ptr() != view.data_ptr():
                    view.copy_(held[name].reshape(view.shape))
            optimizer.state[weight] = {
                name: view if name == "step" else view.view_as(weight) for name, view in views.items()
            }
            begin = end

    def close_batch(
        self, shares: torch.Tensor, fits: tuple[torch.Tensor, torch.Tensor] | None, idle: torch.Tensor, rate: torch.Tensor,
        finished: torch.Tensor, losses: torch.Tensor,
    ) -> None:  # fmt: skip
        """losses[finished] is the sum of shares, and the last of `gradient` 1 where the batch did not fit, by (totals, room), or
        steps are idle; on a GPU."""
        totals, room = fits if fits else (None, None)
        about = (totals, room, idle, rate, self.made, finished, losses, self.gradient[-1:], self.next)
        self._call("close_batch", shares, *about, len(shares), len(totals) if totals is not None else 0)

    def adam(self, finished: torch.Tensor, key: torch.Tensor, flags: torch.Tensor, ranks: int) -> None:
        """Adam's step by the mean of the peers' gradients, or of `gradient`, a sum over ranks; left out where the last of one is not
        0; finished and key go on; on a GPU."""
        state = (self.first, self.second, self.gradients_at, self.next, self.made)
        sizes = (len(self.flat), len(self.gradients_at), ranks)
        self._call("adam", self.flat, self.rounded, *state, finished, key, flags, *sizes)

    def transpose(self, ids: torch.Tensor, sources: int, buffers: BufferProvider, name: str) -> Transposed:
        """ids int32 [rows, fanout] of places below `sources`; buffers: int32 ones by name, where what is made is kept."""
        rows, fanout = ids.shape
        offsets = buffers.get(f"offsets {name}", sources + 1)
        entries = buffers.get(f"entries {name}", ids.numel())
        inverse = buffers.get(f"inverse {name}", rows).view(torch.float32)
        counts = buffers.get(f"counts {name}", sources, zeros=True)  # and zeros again after each transposition
        offsets[:1].zero_()
        if self.native is None:
            at = torch.nonzero(ids.flatten() >= 0).flatten()
            named = ids.flatten()[at].long()
            torch.cumsum(torch.bincount(named, minlength=sources), 0, dtype=torch.int32, out=offsets[1:])
            entries[: len(at)].copy_(at[named.argsort(stable=True)] // fanout)
            inverse.copy_((ids >= 0).sum(dim=1).clamp_min(1).float().reciprocal())
            return Transposed(offsets, entries, inverse)
        self._call("count_entries", ids, counts, inverse, rows, fanout)
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
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """[rows, 2 width]: the own row and the neighbours' mean; of hidden rows what ReLU and dropout leave of them, by the mask."""
        rows, width, mask = len(ids), h.shape[1], None
        drop = self.drop if key is not None else 0
        if self.native is None:
            if layer:
                mask = self._kept(h, layer, key)
                h = torch.where(mask, h, 0) * (BYTES / (BYTES - drop))
            mine = torch.arange(rows) if own is None else own.long()
            self_ = torch.where(mine[:, None] >= 0, h[mine.clamp_min(0)], 0)
            some = (ids >= 0).unsqueeze(-1)
            mean = torch.where(some, h[ids.clamp_min(0).long()], 0).sum(dim=1) / some.sum(dim=1).clamp_min(1)
            return torch.cat([self_, mean], dim=1), mask
        out = h.new_empty(rows, 2 * width)
        if layer and key is not None:
            mask = torch.empty(len(h), width // _pack(width), dtype=torch.uint8, device=h.device)
        self._call("self_and_mean", h, own, ids, out, mask, rows, ids.shape[1], width, int(layer > 0), key, layer, drop)
        return out, mask

    def _gather_gradient(
        self, grad: torch.Tensor, transposed: Transposed, mask: torch.Tensor, passed: Passed
    ) -> torch.Tensor:
        """[sources, width]: of the product of the layer below; grad [rows, 2 width] of what `_self_and_mean` made of it."""
        sources, width = len(mask), grad.shape[1] // 2
        if self.native is None:
            rows = len(grad)
            found = grad.new_zeros(sources, width)
            found[:rows] = grad[:, :width]
            offsets = transposed.offsets.long()
            to = torch.repeat_interleave(torch.arange(sources), offsets[1:] - offsets[:-1])
            entries = transposed.entries[: len(to)].long()
            found.index_add_(0, to, grad[entries, width:] * transposed.inverse[entries, None])
            return torch.where(mask, found, 0) * (BYTES / (BYTES - passed.drop))
        out = grad.new_empty(sources, width)
        about = (transposed.inverse, transposed.offsets, transposed.entries, mask, out)
        self._call("gather_gradient", grad, *about, sources, len(grad), width, passed.drop)
        return out

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


def _pack(width: int) -> int:
    """Columns that a thread of layers.cu has."""
    return 8 if width % 8 == 0 else 4 if width % 4 == 0 else 1


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
