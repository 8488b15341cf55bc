"""The CPU route's training, evaluation and checkpoints; on a GPU the same with batches copied one ahead."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from harness.store import write_atomically
from minibatch import models
from minibatch.batches import Batch, Loader, ahead
from minibatch.graphs import Graph, GraphError
from minibatch.timeline import TRAINING, Trace

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


def moved(batches: Iterator[Batch], device: str, trace: Trace | None = None) -> Iterator[Batch]:
    return ahead(batches, device, trace) if device == "cuda" else batches


def one_pass(
    model: nn.Module, optimizer: torch.optim.Optimizer, batches: Iterator[Any], number: int, total: int, *,
    loss_of: Callable[[Any], torch.Tensor], counted: Callable[[Any], tuple[int, int]], say: Say, trace: Trace,
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
    model: nn.Module, optimizer: torch.optim.Optimizer, loader: Loader, ids: torch.Tensor, number: int, device: str,
    say: Say = nothing, trace: Trace | None = None,
) -> Epoch:  # fmt: skip
    """One pass over the seeds `ids` in their order; `trace` gets the spans of its first batches."""
    trace = trace or Trace(device, room=0)
    made = {"sampling": 0.0, "features": 0.0}

    def counted(batch: Batch) -> tuple[int, int]:
        begun, sampled, sliced, worker = batch.made
        made["sampling"] += sampled - begun
        made["features"] += sliced - sampled
        trace.add(f"thread {worker + 1}", "sampling", begun, sampled)
        trace.add(f"thread {worker + 1}", "features", sampled, sliced)
        return batch.edges, len(batch.nodes)

    epoch = one_pass(
        model, optimizer, moved(loader.epoch(ids, number), device, trace), number, -(-len(ids) // loader.batch),
        loss_of=lambda batch: F.cross_entropy(model(batch.hops[::-1], inputs_of(batch, device)), batch.y),
        counted=counted, say=say, trace=trace,
    )  # fmt: skip
    epoch.stages_s = made | epoch.stages_s
    return epoch


def inputs_of(batch: Batch, device: str) -> torch.Tensor:
    """The batch's features as the model takes them: float32 on a CPU, bfloat16 on a GPU."""
    return batch.x.float() if device == "cpu" else batch.x.to(torch.bfloat16)


@torch.no_grad()
def sampled_accuracy(model: nn.Module, loader: Loader, ids: torch.Tensor, device: str, say: Say = nothing) -> float:
    """Share of `ids` that are labelled rightly, from sampled neighbourhoods (the loader's fanouts)."""
    model.eval()
    right, total = torch.zeros((), device=device), -(-len(ids) // loader.batch)
    for number, batch in enumerate(moved(loader.epoch(ids, -1), device)):
        right += (model(batch.hops[::-1], inputs_of(batch, device)).argmax(dim=1) == batch.y).sum()
        say(number + 1, total)
    return float(right) / len(ids)


FULL_EDGES = 1 << 22
"""Neighbours that full inference gathers at once; attention also keeps what passes along each: an eighth of them."""


@torch.no_grad()
def full_accuracy(model: models.Sage | models.Geometric, graph: Graph, ids: torch.Tensor, say: Say = nothing) -> float:
    """The same from all neighbours: layer by layer over the whole graph, each layer's rows once."""
    model.eval()
    h = graph.features.float() if graph.features.device.type == "cpu" else graph.features.to(torch.bfloat16)
    at_once = FULL_EDGES if isinstance(model, models.Sage) else FULL_EDGES // 8
    outputs = []
    for number in range(model.depth):
        first, made = 0, h
        while first < graph.nodes:
            begin = int(graph.rowptr[first])
            last = max(first + 1, int(torch.searchsorted(graph.rowptr, begin + at_once, right=True)) - 1)
            last = min(last, graph.nodes)
            offsets = graph.rowptr[first:last] - begin
            neighbours = graph.col[begin : int(graph.rowptr[last])]
            rows = model.whole_layer(number, h, h[first:last], offsets, neighbours)
            if first == 0:
                made = rows.new_empty(graph.nodes, rows.shape[1])  # two layers are in memory, never three
            made[first:last] = rows
            first = last
            say(number * graph.nodes + last, model.depth * graph.nodes)
        h = made
        outputs.append(h[ids])
    return float((model.classify(outputs).argmax(dim=1) == graph.labels[ids]).float().mean())


def order(graph: Graph, seed: int, epoch: int, rank: int = 0, ranks: int = 1) -> torch.Tensor:
    """The rank's seeds of an epoch: its slice of a permutation that every rank draws alike, all of one length."""
    shuffled = graph.train.cpu()[
        torch.randperm(len(graph.train), generator=torch.Generator().manual_seed(seed * 7919 + epoch))
    ]
    share = len(shuffled) // ranks
    return shuffled[rank * share : (rank + 1) * share]


def save_checkpoint(path: Path, **state: Any) -> None:
    """Whole or not at all."""
    import io

    held = io.BytesIO()
    torch.save(state, held)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, held.getvalue())


def go_on(optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    """Give the optimizer a saved one's moments and learning rate. Which kernels it steps by stays its own: rungs differ in
    that, a checkpoint is of any of them, and only a fused one leaves out the step of a batch that did not fit."""
    own = optimizer.state_dict()["param_groups"]
    groups = [mine | {"lr": theirs["lr"]} for mine, theirs in zip(own, saved["param_groups"], strict=True)]
    optimizer.load_state_dict({"state": saved["state"], "param_groups": groups})


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Raises GraphError where there is none or it cannot be read."""
    try:
        return torch.load(path, weights_only=True, map_location="cpu")
    except FileNotFoundError:
        raise GraphError(f"there is no checkpoint {path}; `run.py epoch` writes one") from None
    except (OSError, RuntimeError, ValueError, EOFError, pickle.UnpicklingError) as error:
        raise GraphError(
            f"{path} is no checkpoint of ours ({type(error).__name__}); remove it and train anew"
        ) from None
