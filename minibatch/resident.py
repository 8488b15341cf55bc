"""The GPU route: graph and features resident on the device, sampling by our kernels, no host synchronisation in a step.

Sizes that depend on the data stay on the device: buffers have capacities that were calibrated on a few batches, and ids
behind what is used are -1. A batch that does not fit raises a flag on the device, which makes the optimizer leave its step
out; the host reads the flags after the epoch, makes those batches' steps with exact sizes and counts them.

On the CPU the same code runs with the kernels' C++ baselines, without streams and graphs: that is how it is tested.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from minibatch import objectives, timeline
from minibatch.batches import SEEDS_A_BATCH, batch_seed, most_nodes, pad_to, require_fanouts
from minibatch.features import FeatureTable, TieredTable, hot_rows, visits
from minibatch.graphs import Graph, GraphError
from minibatch.layers import Layers, Passed, Transposed
from minibatch.models import Sage
from minibatch.objectives import Objective
from minibatch.ops import Kernels, scratch_for
from minibatch.streams import Branch
from minibatch.timeline import STEP, SpanTrace

CALIBRATED_ON = 16
"""Batches whose largest sizes, and MARGIN more, are the capacities."""
MARGIN = 1.06
"""Factor of the capacities over the largest sizes seen: over 1,179 batches of papers100M's shape sizes vary by some 1 %
(standard deviation), a hub more or less."""
WARM_STEPS = 3
"""Steps before a capture, also where an epoch has fewer."""
ROWS_AT_ONCE = 1 << 18
"""Rows of inference's first layer that are made at once, so that what is gathered for them stays small."""
BYTES_AN_ID = 48
"""Of a sampled id that is renumbered: itself, its place, up to eight words of the table, and what is left after."""
MOST_IDS = 1 << 30
SPARE = 0.7
"""Share of free memory that a batch of inference may take."""


@dataclass
class SampledBatch:
    """One batch's neighbourhood. All int32 on the device but labels.

    heads: the nodes known before each hop, global ids; picked: what was sampled for them, [rows, fanout] global ids;
    local: the same as places among the nodes known after the hop (not of the last hop where it is fused).
    """

    labels: torch.Tensor
    """A row a seed, -1 or NaN for padding."""
    rows: torch.Tensor | None
    """Each seed's place among the batch's nodes, which are all different: a seed that comes twice is one node. None: its own."""
    seeds: torch.Tensor
    heads: list[torch.Tensor] = field(default_factory=list)
    picked: list[torch.Tensor] = field(default_factory=list)
    local: list[torch.Tensor] = field(default_factory=list)
    totals: torch.Tensor = field(kw_only=True)
    """int32 [relabelled hops]: how many nodes are known after each."""
    features: torch.Tensor | None = None
    """Rows of the last heads, where they were fetched with the sample."""
    transposed: list[Transposed] = field(default_factory=list)
    """Transposed hops, all but the last, where layers are computed by hand."""


EachHop = Callable[[SampledBatch, int, int], None]
"""Called beside the next hop with (what was sampled so far, the hop that is done, rows known after it or 0 where it is not renumbered)."""


def _write(out: torch.Tensor, values: torch.Tensor) -> None:
    """A copy by a kernel: a captured copy has no priority, and waited 72 us for a large kernel beside it."""
    torch.add(values, 0, out=out)


class StepBuffers:
    """int32 buffers by name that stay where they are once they were asked for; or new ones each time (`kept` False)."""

    def __init__(self, device: str, kept: bool) -> None:
        self.device, self.kept = device, kept
        self.held: dict[str, torch.Tensor] = {}

    def get(self, name: str, size: int, *, zeros: bool = False) -> torch.Tensor:
        """zeros: a new one holds zeros."""
        if not self.kept or name not in self.held:
            self.held[name] = (torch.zeros if zeros else torch.empty)(size, dtype=torch.int32, device=self.device)
        return self.held[name]


class Sampler:
    """Samples the neighbourhoods of batches of seeds. `fused`: the last hop is not renumbered, its ids stay global."""

    def __init__(self, graph: Graph, kernels: Kernels, fanouts: Sequence[int], batch: int, *, fused: bool) -> None:
        self.graph, self.kernels, self.fanouts, self.batch, self.fused = graph, kernels, list(fanouts), batch, fused
        self.device = str(graph.col.device.type)
        self.relabelled = len(fanouts) - 1 if fused else len(fanouts)
        self.repeated = True
        """Whether a batch may have a seed twice; the seeds are then renumbered first."""
        self.capacities: list[int] = []
        """Empty until `set_capacities`."""
        self.beside = Branch("cpu")
        """What the next hop does not wait for."""

    def exact(self, seeds: torch.Tensor, draws: torch.Tensor, each_hop: EachHop | None = None) -> SampledBatch:
        """Sizes as they are: the host waits for each hop. seeds int32 [rows], -1 behind them; draws int64 [hops]."""
        seeds = seeds[seeds >= 0]
        buffers = StepBuffers(self.device, kept=False)
        most = most_nodes(len(seeds), self.fanouts, self.graph.nodes)
        return self._sample(seeds, draws, buffers, most, each_hop, exact=True)

    def padded(
        self, seeds: torch.Tensor, draws: torch.Tensor, buffers: StepBuffers, each_hop: EachHop | None = None
    ) -> SampledBatch:
        """Sizes of the capacities, without waiting; whether they were enough is in `totals`."""
        return self._sample(seeds, draws, buffers, self.capacities, each_hop, exact=False)

    def _sample(
        self, seeds: torch.Tensor, draws: torch.Tensor, buffers: StepBuffers, sizes: list[int], each_hop: EachHop | None,
        *, exact: bool,
    ) -> SampledBatch:  # fmt: skip
        rows = len(seeds)
        ids = buffers.get("ids0", rows * (1 + sum(self.fanouts[:1])))
        place = None
        if self.repeated:
            ids[:rows].fill_(-1)
            place, scratch = buffers.get("place", rows), buffers.get("scratch", len(scratch_for(rows, "meta")))
            self.kernels.relabel(seeds, rows, ids[:rows], buffers.get("distinct", 1), place, scratch)
        else:
            _write(ids[:rows], seeds)
        with self.beside.fork():
            labels = self._labels(seeds)
        found = SampledBatch(labels, place, seeds, totals=buffers.get("totals", self.relabelled))
        for hop, fanout in enumerate(self.fanouts):
            head, picked = ids[:rows], ids[rows:].view(rows, fanout)
            self.kernels.sample_neighbors(self.graph.rowptr, self.graph.col, head, draws[hop : hop + 1], picked)
            found.heads.append(head)
            found.picked.append(picked)
            if hop == self.relabelled:
                self._end_hop(each_hop, found, hop, 0)
                self.beside.join()
                return found
            following = self.fanouts[hop + 1] if hop + 1 < len(self.fanouts) else 0
            room = min(sizes[hop + 1], len(ids))
            after = buffers.get(f"ids{hop + 1}", room * (1 + following))
            local, total = buffers.get(f"local{hop}", len(ids)), found.totals[hop : hop + 1]
            after[:room].fill_(-1)
            # Every hop has a table of its own: the next batch's may be at work beside this one's.
            scratch = buffers.get(f"scratch{hop}", len(scratch_for(len(ids), "meta")))
            self.kernels.relabel(ids, rows, after[:room], total, local, scratch)
            found.local.append(local[rows:].view(rows, fanout))
            if exact and int(total) < room:
                room = max(1, int(total))
                shorter = after.new_empty(room * (1 + following))
                shorter[:room].copy_(after[:room])
                after = shorter
            ids, rows = after, room
            self._end_hop(each_hop, found, hop, rows)
        found.heads.append(ids[:rows])
        self.beside.join()
        return found

    def _end_hop(self, each_hop: EachHop | None, found: SampledBatch, hop: int, rows: int) -> None:
        if each_hop:
            with self.beside.fork():
                each_hop(found, hop, rows)

    def _labels(self, seeds: torch.Tensor) -> torch.Tensor:
        labels = self.graph.labels[seeds.long().clamp_min(0)]
        there = seeds >= 0
        return torch.where(there, labels, -1) if labels.dim() == 1 else torch.where(there[:, None], labels, torch.nan)

    def overflowed(self, found: SampledBatch) -> torch.Tensor:
        """float32 [], 1 where the batch did not fit its capacities."""
        return (found.totals > self.room).any().float()

    def set_capacities(self, capacities: list[int]) -> None:
        """Nodes known before each hop, and after the last relabelled one: the sizes of padded batches from now on."""
        self.capacities = list(itertools.accumulate(capacities, max))  # a hop's nodes are among the next one's
        self.room = torch.tensor(self.capacities[1 : self.relabelled + 1], dtype=torch.int32, device=self.device)

    def calibrate(self, ids: torch.Tensor) -> list[int]:
        """Capacities from CALIBRATED_ON batches of these seeds. Returns them."""
        known = [self.batch] * (self.relabelled + 1)
        for number in range(CALIBRATED_ON):
            seeds = pad_to(ids[torch.randperm(len(ids), device=ids.device)[: self.batch]], self.batch)
            draws = torch.arange(len(self.fanouts), device=self.device) + (number << 8)
            totals = self.exact(seeds, draws).totals.tolist()
            known[1:] = [max(a, b) for a, b in zip(known[1:], totals, strict=True)]
        most = most_nodes(self.batch, self.fanouts, self.graph.nodes)
        rounded = [-(-int(n * MARGIN) // 256) * 256 for n in known[1:]]
        # A batch has all its rows also where the graph has fewer nodes: those without a seed are padded.
        self.set_capacities([self.batch, *(min(a, b) for a, b in zip(rounded, most[1:], strict=False))])
        return self.capacities


@dataclass
class ResidentEpoch:
    """What one epoch did and took."""

    number: int
    seconds: float
    loss: float
    batches: int
    edges: int
    fallbacks: int
    """Batches that did not fit their capacities and were made again with exact sizes."""
    cache_hits: float | None = None
    """Share of feature rows that the device's cache held; None where all rows are on the device."""


def of_seeds(rows: torch.Tensor, found: SampledBatch) -> torch.Tensor:
    """Those of the batch's seeds out of rows of its nodes; of padding any."""
    return rows if found.rows is None else rows.index_select(0, found.rows.clamp_min(0))


def any_twice(ids: torch.Tensor) -> bool:
    """Whether an id comes twice."""
    inorder = ids.sort().values
    return bool((inorder[1:] == inorder[:-1]).any())


class Trainer:
    """Trains a GraphSAGE on a graph that is resident on its device.

    padded: fixed sizes without synchronisation, otherwise exact ones; captured: steps are replays of a CUDA graph in which
    the next batch is sampled beside the computation on this one (implies padded); layered: layers forward and backward are
    those of layers.py instead of PyTorch's over the catalog's kernels. cache_rows: the graph's features are in
    host memory (pinned for a GPU), so many of their rows are held on the device too, and `fused` is off: the last hop is
    renumbered, so that a row crosses the bus once a batch.
    """

    def __init__(
        self, graph: Graph, model: torch.nn.Module, kernels: Kernels, fanouts: Sequence[int], batch: int, *, lr: float = 0.003,
        fused: bool = True, padded: bool = True, captured: bool = False, layered: bool = False, seed: int = 0, ranks: int = 1,
        cache_rows: int | None = None, objective: Objective | None = None,
    ) -> None:  # fmt: skip
        if not isinstance(model, Sage):
            raise GraphError("the GPU route's kernels are GraphSAGE's; take --rung salient for other models")
        require_fanouts(fanouts)
        self.graph, self.model, self.kernels, self.seed, self.ranks = graph, model, kernels, seed, ranks
        self.padded, self.captured, self.fused = padded or captured, captured, fused and cache_rows is None
        self.sampler = Sampler(graph, kernels, fanouts, batch, fused=self.fused)
        self.device = self.sampler.device
        self.features = FeatureTable(graph.features, kernels)
        if cache_rows is not None:
            self.features = TieredTable(graph.features, cache_rows, self.device, kernels)
        model.aggregate = kernels.self_and_mean
        self.layers = Layers(model, self.device) if layered else None
        self.objective = objective or objectives.of(graph)
        self.lr = lr
        self.hops = len(fanouts)
        self.buffers = [StepBuffers(self.device, kept=True) for _ in range(2)]
        self.sampled: dict[int, SampledBatch] = {}
        self.graphs: list[torch.cuda.CUDAGraph] = []
        self._room_for(max(-(-len(graph.train) // batch), WARM_STEPS))

    @functools.cached_property
    def optimizer(self) -> torch.optim.Adam:
        """Made when it is first asked for: PyTorch then imports its compiler, longer than inference takes, which needs neither."""
        cuda = self.device == "cuda"
        # On a GPU the rate is a tensor, which a captured step reads anew.
        rate = torch.tensor(self.lr, device="cuda") if cuda else self.lr
        return torch.optim.Adam(self.model.parameters(), lr=rate, fused=True, capturable=cuda)

    def _room_for(self, steps: int) -> None:
        """Device-side state of an epoch of at most so many steps."""
        device, batch = self.device, self.sampler.batch
        self.order = torch.full((steps + 1, batch), -1, dtype=torch.int32, device=device)
        self.position = torch.zeros(1, dtype=torch.int64, device=device)
        self.finished = torch.zeros(1, dtype=torch.int64, device=device)
        self.draws = torch.zeros(self.hops, dtype=torch.int64, device=device)
        self.losses = torch.zeros(steps + 1, device=device)
        self.flags = torch.zeros(steps + 1, device=device)
        self.edges = torch.zeros(1, dtype=torch.int64, device=device)
        self.key = torch.zeros(1, dtype=torch.int64, device=device)
        """Key of what this step's layers drop."""
        self.idle = torch.zeros((), device=device)
        """1 while steps are made for their own sake (before a capture): the optimizer leaves them out."""

    def begin(self, ids: torch.Tensor, number: int) -> int:
        """Set the epoch's order of seeds (int64 ids); returns its number of batches."""
        steps = -(-len(ids) // self.sampler.batch)
        if steps >= len(self.order):
            raise GraphError(f"an epoch of {steps} batches does not fit the room for {len(self.order) - 1}")
        if not self.sampler.repeated and any_twice(ids):
            self.sampler.repeated = True
            if self.captured:  # in steps that take seeds to be different
                self._warm_up_idle()
        self.order.fill_(-1)
        self.order.view(-1)[: len(ids)].copy_(ids)
        for counter in (self.position, self.finished, self.flags, self.edges):
            counter.zero_()
        self.features.begin()
        if self.layers and self.device == "cuda":
            self.layers.adopt(self.optimizer)  # a checkpoint's moments may have been loaded
        self.draws.copy_(torch.arange(self.hops) + batch_seed(self.seed, number))
        self.key.fill_(batch_seed(self.seed, number))
        return steps

    def sample_next(self, slot: int) -> None:
        """The next batch's neighbourhood into a slot; all sizes and counters stay on the device."""
        seeds = self.order.index_select(0, self.position.clamp_max(len(self.order) - 1))[0]
        each_hop = self._each_hop(self.buffers[slot]) if self.layers else None
        if self.padded:
            found = self.sampler.padded(seeds, self.draws, self.buffers[slot], each_hop)
        else:
            found = self.sampler.exact(seeds, self.draws, each_hop)
        if isinstance(
            self.features, TieredTable
        ):  # what crosses the bus does so beside the computation on the batch before
            found.features = self._fetched(self.features, found.heads[-1], self.buffers[slot])
        kept = self.sampled.get(slot)
        if self.captured and kept is not None:
            _write(kept.labels, found.labels)  # not in the slot's buffers
            _write(kept.seeds, found.seeds)
        else:
            self.sampled[slot] = found
        if not self.layers:
            for picked in found.picked:
                self.edges += (picked >= 0).sum()
        self.position += 1
        self.draws += SEEDS_A_BATCH

    def _fetched(self, table: TieredTable, ids: torch.Tensor, buffers: StepBuffers) -> torch.Tensor:
        """Rows of ids; of padded batches in a buffer of the slot."""
        if not self.padded:
            return table.rows(ids)
        width, size = table.cache.shape[1], table.cache.element_size()
        room = buffers.get("features", -(-len(ids) * width * size // 4))
        return table.rows(ids, room.view(table.cache.dtype)[: len(ids) * width].view(len(ids), width))

    def _each_hop(self, buffers: StepBuffers) -> EachHop:
        """Counts the hop's edges, and makes what the backward pass gathers along, of all hops but the last."""
        layers = self.layers
        assert layers is not None
        if not self.padded:
            buffers = StepBuffers(self.device, kept=False)

        def run(found: SampledBatch, hop: int, rows: int) -> None:
            layers.count_picked(found.picked[hop], self.edges)
            if hop < self.hops - 1:
                found.transposed.append(layers.transpose(found.local[hop], rows, buffers, str(hop)))

        return run

    def _passed(self, layers: Layers, found: SampledBatch, key: torch.Tensor | None) -> Passed:
        """The layers' forward pass."""
        if self.fused:
            return layers.forward(self.graph.features, found.heads[-1], [found.picked[-1], *found.local[::-1]], key)
        return layers.forward(self._rows(found), None, found.local[::-1], key)

    def _rows(self, found: SampledBatch) -> torch.Tensor:
        return self.features.rows(found.heads[-1]) if found.features is None else found.features

    def logits(self, found: SampledBatch) -> torch.Tensor:
        """[seeds of the batch, classes], in float32; a seed that comes twice has two rows alike."""
        if self.layers:
            return of_seeds(self._passed(self.layers, found, None).hidden[-1].float(), found)
        if self.fused:
            own = self.features.rows(found.heads[-1])
            h = self.model.combine(0, own, self.features.mean(found.picked[-1]))
            layers = found.local[::-1]
        else:
            h, layers = self._rows(found), found.local[::-1]
            h = self.model.combine(0, *self.model.aggregate(h, layers[0]))
            layers = layers[1:]
        for number, local in enumerate(layers, start=1):
            h = self.model.combine(number, *self.model.aggregate(h, local))
        return of_seeds(h.float(), found)

    def compute(self, found: SampledBatch, slot: int = 0) -> None:
        """Forward, backward, the ranks' mean gradient, and a step that is left out where the batch did not fit.

        slot: 0 and 1 in turn; ranks meet before steps that do otherwise."""
        if self.layers:
            self.layers.turn(slot)
        if self.layers and self.device == "cuda":
            self._compute_layers(self.layers, found)
            return
        loss = self._differentiate_layers(self.layers, found) if self.layers else self._differentiate(found)
        flag = torch.maximum(self.sampler.overflowed(found), self.idle) if self.padded else self.idle.clone()
        if self.ranks > 1:
            self._reduce(flag)
        self.optimizer.found_inf = flag  # type: ignore[attr-defined]  # as torch.amp.GradScaler hands it to fused steps
        self.optimizer.step()
        self.losses.index_copy_(0, self.finished, loss.detach().reshape(1))
        self.flags.index_copy_(0, self.finished, flag.reshape(1))
        self.finished += 1
        self.key += 1

    def _differentiate(self, found: SampledBatch) -> torch.Tensor:
        """The loss; parameters have its gradient."""
        loss = self.objective.loss(self.logits(found), found.labels)
        for parameter in self.model.parameters():
            parameter.grad = None
        loss.backward()
        return loss

    def _differentiate_layers(self, layers: Layers, found: SampledBatch) -> torch.Tensor:
        """The same by hand but for the loss itself."""
        passed = self._passed(layers, found, self.key)
        logits = passed.hidden[-1].float().requires_grad_()
        loss = self.objective.loss(of_seeds(logits, found), found.labels)
        (gradient,) = torch.autograd.grad(loss, logits)
        layers.backward(passed, gradient, found.transposed[::-1])
        return loss

    def _compute_layers(self, layers: Layers, found: SampledBatch) -> None:
        """`compute` in few launches, by kernels of layers.cu."""
        passed = self._passed(layers, found, self.key)
        logits = passed.hidden[-1]
        if found.rows is None and self.objective.kind == "classes":
            shares, gradient = layers.softmax_gradient(logits, found.labels)
        else:
            wide = logits.float().requires_grad_()
            loss = self.objective.loss(of_seeds(wide, found), found.labels)
            (gradient,) = torch.autograd.grad(loss, wide)
            shares = loss.detach().reshape(1)
        fits = (found.totals, self.sampler.room) if self.padded else None
        with layers.beside.fork():
            rate = self.optimizer.param_groups[0]["lr"]
            layers.close_batch(shares, fits, self.idle, rate, self.finished, self.losses)
        layers.backward(passed, gradient, found.transposed[::-1])
        if layers.peers is not None:
            layers.meet()
        elif self.ranks > 1:
            from torch import distributed

            distributed.all_reduce(layers.gradient)
        layers.adam(self.finished, self.key, self.flags, self.ranks)

    def _reduce(self, flag: torch.Tensor) -> None:
        """One all-reduce of all gradients and the flag: a step that one rank leaves out is left out by all."""
        from torch import distributed

        grads = [grad for parameter in self.model.parameters() if (grad := parameter.grad) is not None]
        flat = (
            self.layers.gradient if self.layers else torch.cat([*(grad.flatten() for grad in grads), flag.reshape(1)])
        )
        flat[-1].copy_(flag)
        distributed.all_reduce(flat)
        flag.copy_((flat[-1] > 0).float())
        flat[:-1] /= self.ranks
        if not self.layers:
            for grad, part in zip(grads, flat[:-1].split([grad.numel() for grad in grads]), strict=True):
                grad.copy_(part.view_as(grad))

    def prepare(self) -> None:
        """Fill the cache, calibrate capacities and, where captured, capture both parities of a step. Changes no weight."""
        self.sampler.repeated = any_twice(self.graph.train)
        if isinstance(self.features, TieredTable) and self.features.room:
            counts = visits(self.sampler, self.graph.train)
            self.features.fill(hot_rows(counts, self.graph.rowptr, self.features.room))
        if not self.padded:
            return
        self.sampler.calibrate(self.graph.train)
        self._warm_up_idle()

    def _warm_up_idle(self) -> None:
        self.graphs.clear()
        self.sampled.clear()
        self.begin(self.graph.train[: self.sampler.batch * WARM_STEPS], 0)
        self.idle.fill_(1)
        self.model.train()
        try:
            self._warm_up()
        finally:
            self.idle.zero_()

    def _warm_up(self) -> None:
        if not self.captured:
            self.sample_next(0)
            return
        # Sampling is a chain of small kernels: each would wait until a large one of the computation has run to its end.
        side, self.aside = torch.cuda.Stream(), torch.cuda.Stream(priority=-1)
        self.sampler.beside = Branch(self.device, priority=-1)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for step in range(WARM_STEPS):
                self.sample_next(step % 2)
                self.compute(self.sampled[step % 2], step % 2)
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        for slot in (0, 1):
            captured = torch.cuda.CUDAGraph()
            with torch.cuda.graph(captured, capture_error_mode="thread_local"):
                now = torch.cuda.current_stream()
                self.aside.wait_stream(now)
                with torch.cuda.stream(self.aside):
                    self.sample_next(1 - slot)
                self.compute(self.sampled[slot], slot)
                now.wait_stream(self.aside)
            self.graphs.append(captured)

    def epoch(self, ids: torch.Tensor, number: int, trace: SpanTrace | None = None) -> ResidentEpoch:
        """One pass over these seeds (int64 on the device) in their order; `trace` gets the spans of its first batches.

        Of captured steps it gets none: `timeline.of_replays` has theirs.
        """
        self.model.train()
        trace = trace or SpanTrace(self.device, room=0)
        start = time.perf_counter()
        steps = self.begin(ids, number)
        if self.layers:
            self.layers.meet()
        if self.captured:
            self.sample_next(0)
            for step in range(steps):
                self.graphs[step % 2].replay()
        else:
            for _ in range(steps):
                with trace.span(STEP, "sampling"):
                    self.sample_next(0)
                with trace.span(STEP, "compute"):
                    self.compute(self.sampled[0])
        edges = int(self.edges)  # waits for all of it
        missed = torch.nonzero(self.flags[:steps]).flatten().tolist()
        for step in missed:
            self._make_exactly(step, number)
        loss = float(self.losses[:steps].mean())
        if self.device == "cuda":
            torch.cuda.synchronize()  # all streams: a kernel of a run may have used another one
        seconds = time.perf_counter() - start
        return ResidentEpoch(number, seconds, loss, steps, edges, len(missed), self.features.hit_share())

    def _make_exactly(self, step: int, number: int) -> None:
        """The step of a batch that did not fit, with the same neighbours and exact sizes."""
        draws = torch.arange(self.hops, device=self.device) + batch_seed(self.seed, number) + step * SEEDS_A_BATCH
        padded, self.padded = self.padded, False
        try:
            self.finished.fill_(step)
            self.key.fill_(batch_seed(self.seed, number) + step)
            found = self.sampler.exact(
                self.order[step], draws, self._each_hop(self.buffers[0]) if self.layers else None
            )
            if self.layers:
                self.layers.meet()
            self.compute(found)
        finally:
            self.padded = padded

    @torch.no_grad()
    def outputs(
        self, ids: torch.Tensor, fanouts: Sequence[int], batch: int | None = None
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """(logits, labels) of batches of `ids` from neighbourhoods sampled with these fanouts.

        batch: seeds a batch; on a GPU as many as memory holds where None. A node has one sample a hop and batch, drawn apart from
        all others, so a seed's logits have one distribution whatever the batch: a wider one only shares more of the work.
        """
        self.model.eval()
        batch = batch or self._seeds_at_once(fanouts, len(ids))
        # The last hop of fused layers is sampled where it is read, some rows at a time.
        sampler = Sampler(self.graph, self.kernels, fanouts[: -1 if self.fused else None], batch, fused=False)
        sampler.repeated = any_twice(ids)
        draws = torch.arange(self.hops, device=self.device) + batch_seed(self.seed, -1)
        if self.layers:
            self.layers.round_weights()
        for some in ids.split(batch):
            found = sampler.exact(pad_to(some, len(some)), draws)
            draws += self.hops
            h, layers = (
                (self._first_layer(found.heads[-1], fanouts[-1], draws), found.local[::-1])
                if self.fused
                else self._first_renumbered(found)
            )
            for number, local in enumerate(layers, start=1):
                h = self._layer(number, h, local)
            yield of_seeds(h.float(), found), found.labels

    def _first_layer(self, nodes: torch.Tensor, fanout: int, draws: torch.Tensor) -> torch.Tensor:
        """[nodes, out] of int32 nodes and neighbours sampled for them; draws, int64, go on."""
        out = self.graph.features.new_empty(len(nodes), self.model.own[0].shape[1])
        for some, rows in zip(nodes.split(ROWS_AT_ONCE), out.split(ROWS_AT_ONCE), strict=True):
            picked = some.new_empty(len(some), fanout)
            self.kernels.sample_neighbors(self.graph.rowptr, self.graph.col, some, draws[:1], picked)
            draws += 1
            if self.layers:
                self.layers.infer(0, self.graph.features, some, picked, rows)
            else:
                rows.copy_(self.model.combine(0, self.features.rows(some), self.features.mean(picked)))
        return out

    def _first_renumbered(self, found: SampledBatch) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """(the first layer's rows, the other layers) of a batch whose last hop is renumbered too."""
        first, *others = found.local[::-1]
        return self._layer(0, self.features.rows(found.heads[-1]), first), others

    def _layer(self, number: int, h: torch.Tensor, local: torch.Tensor) -> torch.Tensor:
        if self.layers:
            return self.layers.infer(number, h, None, local)
        return self.model.combine(number, *self.model.aggregate(h, local))

    def _seeds_at_once(self, fanouts: Sequence[int], count: int) -> int:
        """The most seeds of `count` whose batch is sure to fit into free memory, in batches alike; a training batch's on a CPU."""
        if self.device == "cpu":
            return self.sampler.batch
        free = torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
        batches = 1
        while (batch := -(-count // batches)) > self.sampler.batch and not self._fits(batch, fanouts, SPARE * free):
            batches += 1
        return max(1, batch)

    def _fits(self, batch: int, fanouts: Sequence[int], free: float) -> bool:
        """Whether inference of a batch takes no more than so many bytes, whatever its neighbours are."""
        known = most_nodes(batch, fanouts, self.graph.nodes)
        named = [rows * (1 + fanout) for rows, fanout in zip(known, fanouts, strict=False)][
            : -1 if self.fused else None
        ]
        widths = [self.graph.features.shape[1], *(weight.shape[1] for weight in self.model.own)]
        size = self.graph.features.element_size()
        rows = sum(
            count * (out + (0 if layer == 0 and self.fused else 2 * width)) * size
            for layer, (count, width, out) in enumerate(zip(known[-2::-1], widths, widths[1:], strict=False))
        )
        if not self.fused:
            rows += known[-1] * widths[0] * size * 2
        return max(named, default=0) < MOST_IDS and sum(named) * BYTES_AN_ID + rows <= free

    def accuracy(self, ids: torch.Tensor, fanouts: Sequence[int], batch: int | None = None) -> float | None:
        """The objective's metric of `ids`: the share that is labelled rightly where labels are classes."""
        return self.objective.metric_of(self.outputs(ids, fanouts, batch))

    def spans(self, steps: int = 6) -> list[timeline.Span]:
        """What kernels of some captured steps ran when, by the profiler. Changes no weight."""
        self.begin(self.graph.train, 0)
        self.idle.fill_(1)
        self.sample_next(0)
        todo = itertools.cycle(self.graphs)
        found = timeline.of_replays(lambda: next(todo).replay(), min(steps, len(self.order) - 2))
        self.idle.zero_()
        return found

    def stages_us(self, replays: int = 50) -> dict[str, float]:
        """Microseconds a batch of sampling and of computing alone, each a CUDA graph of its own; captured only."""
        found: dict[str, float] = {}
        self.begin(self.graph.train, 0)
        self.idle.fill_(1)
        self.sample_next(0)
        for name, run in (("sample", lambda: self.sample_next(0)), ("compute", lambda: self.compute(self.sampled[0]))):
            torch.cuda.synchronize()
            captured = torch.cuda.CUDAGraph()
            with torch.cuda.graph(captured, capture_error_mode="thread_local"):
                run()
            self.begin(self.graph.train, 0)
            captured.replay()
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(min(replays, len(self.order) - 2)):
                captured.replay()
            torch.cuda.synchronize()
            found[name] = (time.perf_counter() - start) / min(replays, len(self.order) - 2) * 1e6
        self.idle.zero_()
        return found
