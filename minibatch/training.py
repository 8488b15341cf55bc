"""The CPU route's training, evaluation and checkpoints; on a GPU the same with batches copied one ahead."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from harness.store import write_atomically
from minibatch import models, objectives
from minibatch.batches import Batch, BatchLoader, ahead
from minibatch.graphs import Graph, GraphError
from minibatch.objectives import Objective
from minibatch.timeline import TRAINING, SpanTrace

Say = Callable[[int, int], None]
"""Called with (batches done, batches in all)."""


def nothing(_done: int, _total: int) -> None:
    """Says nothing."""


@dataclass
class Epoch:
    """What one epoch did and took."""

    number: int
    seconds: float
    loss: float
    batches: int
    edges: int
    nodes: int
    stages_s: dict[str, float] = field(default_factory=dict)
    """Seconds that the training thread spent `waiting` for batches and at `compute`; that the loader's threads together
    spent `sampling` and slicing `features`."""


def move_batches(batches: Iterator[Batch], device: str, trace: SpanTrace | None = None) -> Iterator[Batch]:
    return ahead(batches, device, trace) if device == "cuda" else batches


def train_pass(
    model: nn.Module, optimizer: torch.optim.Optimizer, batches: Iterator[Any], number: int, total: int, *,
    loss_of: Callable[[Any], torch.Tensor], counted: Callable[[Any], tuple[int, int]], say: Say, trace: SpanTrace,
) -> Epoch:  # fmt: skip
    """Train on each batch as it comes; `counted` says its sampled edges and nodes, before it is computed with."""
    model.train()
    start, waited, losses, edges, nodes = time.perf_counter(), 0.0, [], 0, 0
    while True:
        asked = time.perf_counter()
        batch = next(batches, None)
        got = time.perf_counter()
        waited += got - asked
        if batch is None:
            break
        trace.add(TRAINING, "waiting", asked, got)
        more_edges, more_nodes = counted(batch)
        with trace.span(TRAINING, "compute"):
            loss = loss_of(batch)
        with trace.span(TRAINING, "backward"):
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
        losses.append(loss.detach())
        edges, nodes = edges + more_edges, nodes + more_nodes
        say(len(losses), total)
    mean = float(torch.stack(losses).mean()) if losses else 0.0  # waits for a GPU: the clock is read behind it
    seconds = time.perf_counter() - start
    return Epoch(number, seconds, mean, len(losses), edges, nodes, {"waiting": waited, "compute": seconds - waited})


def train_epoch(
    model: nn.Module, optimizer: torch.optim.Optimizer, loader: BatchLoader, ids: torch.Tensor, number: int, device: str,
    say: Say = nothing, trace: SpanTrace | None = None, objective: Objective | None = None,
) -> Epoch:  # fmt: skip
    """One pass over the seeds `ids` in their order; `trace` gets the spans of its first batches."""
    trace, objective = trace or SpanTrace(device, room=0), objective or objectives.of(loader.graph)
    made = {"sampling": 0.0, "features": 0.0}

    def counted(batch: Batch) -> tuple[int, int]:
        begun, sampled, sliced, worker = batch.made
        made["sampling"] += sampled - begun
        made["features"] += sliced - sampled
        trace.add(f"thread {worker + 1}", "sampling", begun, sampled)
        trace.add(f"thread {worker + 1}", "features", sampled, sliced)
        return batch.edges, len(batch.nodes)

    epoch = train_pass(
        model, optimizer, move_batches(loader.epoch(ids, number), device, trace), number, -(-len(ids) // loader.batch),
        loss_of=lambda batch: objective.loss(model(batch.hops[::-1], inputs_of(batch, device)), batch.y),
        counted=counted, say=say, trace=trace,
    )  # fmt: skip
    epoch.stages_s = made | epoch.stages_s
    return epoch


def inputs_of(batch: Batch, device: str) -> torch.Tensor:
    """The batch's features as the model takes them: float32 on a CPU, bfloat16 on a GPU."""
    return batch.x.float() if device == "cpu" else batch.x.to(torch.bfloat16)


@torch.no_grad()
def infer_sampled(
    model: nn.Module, loader: BatchLoader, ids: torch.Tensor, device: str, say: Say = nothing
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """(logits, labels) of batches of these ids, from sampled neighbourhoods (the loader's fanouts)."""
    model.eval()
    total = -(-len(ids) // loader.batch)
    for number, batch in enumerate(move_batches(loader.epoch(ids, -1), device)):
        yield model(batch.hops[::-1], inputs_of(batch, device)), batch.y
        say(number + 1, total)


FULL_BYTES = 256 << 20
"""Bytes that the temporaries of a piece of full inference may take."""
FULL_ROWS = 1 << 16
"""Rows of a piece at most."""


def full_bytes(model: nn.Module, graph: Graph) -> int:
    """About what `full_outputs` takes beside the graph: features as they are computed with, two layers' rows, a piece's temporaries."""
    size = 2 if graph.features.device.type == "cuda" else 4
    width = graph.features.shape[1]
    widest = max(width, *(max(p.shape) for p in model.parameters() if p.dim() > 1))
    if not isinstance(model, models.Model):  # all at once, forward only: some rows an edge and a node
        return (2 * graph.edges + 4 * graph.nodes) * widest * size + 16 * graph.edges
    first = 0 if graph.features.element_size() == size else graph.nodes * width * size
    return first + 2 * graph.nodes * widest * size + 2 * FULL_BYTES


@torch.no_grad()
def full_outputs(model: nn.Module, graph: Graph, ids: torch.Tensor, say: Say = nothing) -> torch.Tensor:
    """Logits of `ids` from all neighbours: layer by layer over the whole graph, each layer's rows once; a user's model at once."""
    model.eval()
    ids = ids.to(graph.features.device)
    h = graph.features.float() if graph.features.device.type == "cpu" else graph.features.to(torch.bfloat16)
    if isinstance(model, models.UserModel):
        degree = graph.rowptr[1:] - graph.rowptr[:-1]
        rows = torch.repeat_interleave(torch.arange(graph.nodes, device=h.device), degree)
        return model.whole(h, torch.stack([graph.col.long(), rows]))[ids]
    assert isinstance(model, models.Model)
    seen = []
    with torch.autocast(h.device.type, torch.bfloat16, enabled=h.dtype == torch.bfloat16):
        h = model.begin(h)
        seen.append(h[ids])
        for number in range(model.depth):
            h = _whole_layer(model, number, h, graph, say)
            seen.append(h[ids])
        return model.classify(seen).float()


def _whole_layer(model: models.Model, number: int, h: torch.Tensor, graph: Graph, say: Say) -> torch.Tensor:
    """A layer's output of all nodes, in pieces whose temporaries take about FULL_BYTES."""
    widest = max(h.shape[1], max(p.shape[-1] for p in model.parameters() if p.dim() > 1))
    at_once = max(1, FULL_BYTES // (model.bytes_an_edge * widest + 64))
    first, made = 0, h
    while first < graph.nodes:
        begin = int(graph.rowptr[first])
        last = max(first + 1, int(torch.searchsorted(graph.rowptr, begin + at_once, right=True)) - 1)
        last = min(last, graph.nodes, first + min(FULL_ROWS, at_once))
        own = torch.arange(first, last, device=h.device)
        degree = graph.rowptr[first + 1 : last + 1] - graph.rowptr[first:last]
        row = torch.repeat_interleave(own - first, degree)
        source = graph.col[begin : int(graph.rowptr[last])].long()
        rows = model.layer(number, h, models.Edges(source, row, own))
        if first == 0:
            made = rows.new_empty(graph.nodes, rows.shape[1])  # two layers are in memory, never three
        made[first:last] = rows
        first = last
        say(number * graph.nodes + last, model.depth * graph.nodes)
    return made


def full_accuracy(model: nn.Module, graph: Graph, ids: torch.Tensor, say: Say = nothing) -> float | None:
    """The objective's metric of `ids` from all neighbours."""
    logits = full_outputs(model, graph, ids, say)
    return objectives.of(graph).metric_of([(logits, graph.labels[ids.to(graph.labels.device)])])


def order(graph: Graph, seed: int, epoch: int, rank: int = 0, ranks: int = 1) -> torch.Tensor:
    """The rank's seeds of an epoch: its slice of a permutation that every rank draws alike, all of one length."""
    shuffled = graph.train.cpu()[
        torch.randperm(len(graph.train), generator=torch.Generator().manual_seed((seed * 7919 + epoch) % (1 << 63)))
    ]
    share = len(shuffled) // ranks
    return shuffled[rank * share : (rank + 1) * share]


VERSION = 2
"""Version of checkpoints."""
KEYS = {
    "version": int,
    "options": dict,
    "identity": str,
    "graph": str,
    "model": dict,
    "optimizer": dict,
    "schedule": dict,
    "epoch": int,
}
"""Keys of a checkpoint with their types, beside `valid` and `best`, metrics of valid ids or None."""


def save_checkpoint(path: Path, **state: Any) -> None:
    """Whole or not at all."""
    import io

    held = io.BytesIO()
    torch.save(state | {"version": VERSION}, held)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, held.getvalue())


def go_on(optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    """Give the optimizer a saved one's moments and learning rate. Which kernels it steps by stays its own: rungs differ in
    that, a checkpoint is of any of them, and only a fused one leaves out the step of a batch that did not fit.
    Raises GraphError where it is of other parameters."""
    own = optimizer.state_dict()["param_groups"]
    try:
        rates = [theirs["lr"] for theirs in saved["param_groups"]]
        held = [group["lr"] for group in optimizer.param_groups]
        optimizer.load_state_dict({"state": saved["state"], "param_groups": own})
        for group, lr, tensor in zip(optimizer.param_groups, rates, held, strict=True):
            group["lr"] = tensor
            set_rate(group, float(lr))
    except (KeyError, ValueError, TypeError) as error:
        raise GraphError(f"the checkpoint's optimizer is of other parameters ({error}); train anew") from None


def set_rate(group: dict[str, Any], lr: float) -> None:
    """Set a group's learning rate; a captured step reads it from a tensor."""
    if isinstance(group["lr"], torch.Tensor):
        group["lr"].fill_(lr)
    else:
        group["lr"] = lr


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Raises GraphError where there is none or it cannot be read."""
    try:
        found = torch.load(path, weights_only=True, map_location="cpu")
    except FileNotFoundError:
        raise GraphError(f"there is no checkpoint {path}; `run.py epoch` writes one") from None
    except Exception as error:  # noqa: BLE001 - whatever bytes make of torch's readers
        raise GraphError(
            f"{path} is no checkpoint of ours ({type(error).__name__}); name one that `run.py epoch` wrote"
        ) from None
    wrong = [] if isinstance(found, dict) else ["keys"]
    if not wrong:
        wrong = [key for key, kind in KEYS.items() if not isinstance(found.get(key), kind)]
    if wrong or found["version"] != VERSION:
        what = f"it has no {wrong[0]}" if wrong else f"of version {found['version']}, and this is {VERSION}"
        raise GraphError(f"{path} is no checkpoint of ours ({what}); train anew, or name another")
    return found
