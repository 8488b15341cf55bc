"""What no epoch may do, looked for in batches as they are served: whoever is timed is looked at with this first.

Replacement, fewer neighbours than asked for, neighbours that are none, a seed left out or served twice, a sample that is used
again in another epoch. That all subsets of neighbours are equally likely is what the kernel's own verdict tests.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch

from kernels import catalog
from minibatch import ranks, training
from minibatch.graphs import Graph
from minibatch.resident import Trainer

BATCHES = 2
"""Batches of each epoch whose neighbours are looked at."""
AGAIN, AMONG = 0.7, 64
"""Share of rows with a choice that may have the same sample in two epochs, among so many rows at least; by chance at most
a third of rows with twice the fanout's neighbours have."""


@dataclass
class AuditedBatch:
    """One batch as it was served, copied. Global ids: seeds int64 [rows]; of each hop heads int32 [rows], picked [rows, fanout]."""

    seeds: torch.Tensor
    heads: list[torch.Tensor]
    picked: list[torch.Tensor]


def of_trainer(trainer: Trainer, ids: torch.Tensor, number: int) -> list[AuditedBatch]:
    """All batches that the GPU route serves in that epoch; only the first BATCHES with their neighbours."""
    seen = []
    for at in range(trainer.begin(ids, number)):
        trainer.sample_next(0)
        found = trainer.sampled[0]
        seeds = found.seeds[found.seeds >= 0].to(torch.int64, copy=True)
        kept = at < BATCHES
        seen.append(
            AuditedBatch(seeds, [h.clone() for h in found.heads if kept], [p.clone() for p in found.picked if kept])
        )
    return seen


def find_violation(graph: Graph, fanouts: list[int], ids: torch.Tensor, epochs: list[list[AuditedBatch]]) -> str:
    """What these epochs over the same seeds did wrong, as one sentence; empty where nothing was found."""
    judge = catalog.load("sample_neighbors").properties
    assert judge is not None
    for number, batches in enumerate(epochs):
        served = torch.cat([batch.seeds for batch in batches]) if batches else ids[:0]
        if not torch.equal(served.sort().values, ids.to(served.device).sort().values):
            return f"epoch {number} served {len(served)} seeds, {len(served.unique())} of them different, of {len(ids)}"
        for batch in batches[:BATCHES]:
            if [picked.shape[1] for picked in batch.picked] != fanouts:
                return f"fanouts are {[picked.shape[1] for picked in batch.picked]}, not {fanouts}"
            for hop, (heads, picked) in enumerate(zip(batch.heads, batch.picked, strict=False)):
                inputs = {"rowptr": graph.rowptr, "col": graph.col, "frontier": heads}
                sizes = {"nodes": graph.nodes, "fanout": picked.shape[1]}
                if said := judge.violated(inputs, {"picked": picked}, sizes):
                    return f"hop {hop + 1}: {said}"
    for (one, first), (other, second) in pairwise(enumerate(epochs)):
        if share := _again(graph, first[:BATCHES], second[:BATCHES]):
            return f"epochs {one} and {other} have the same sample for {share:.0%} of the rows that had a choice"
    return ""


def _again(graph: Graph, first: list[AuditedBatch], second: list[AuditedBatch]) -> float:
    """Share of seeds in both epochs' first batches whose samples are alike though they had a choice; 0 where it is usual."""
    samples = []
    for batches in (first, second):
        heads = torch.cat([batch.heads[0][: len(batch.seeds)] for batch in batches]).long()
        picked = torch.cat([batch.picked[0][: len(batch.seeds)] for batch in batches]).sort(dim=1).values
        samples.append((heads, picked))
    (heads, picked), (others, later) = samples
    places, at = torch.nonzero(heads[:, None] == others[None, :], as_tuple=True)
    degree = (graph.rowptr[1:] - graph.rowptr[:-1])[heads[places]]
    chosen = (degree > 2 * picked.shape[1]) & (heads[places] >= 0)
    if int(chosen.sum()) < AMONG:
        return 0.0
    share = float((picked[places] == later[at]).all(dim=1)[chosen].float().mean())
    return share if share > AGAIN else 0.0


def of_variant(trainer: Trainer) -> str:
    """`find_violation` of two epochs that this trainer serves; changes no weight. Of several ranks each looks at its own share, and
    rank 0 also at all of them: together they serve every seed once, and no two draw the same neighbours."""
    graph, fanouts, mine, all_ranks = trainer.graph, trainer.sampler.fanouts, ranks.rank(), ranks.ranks()

    def serve(number: int, share: int, shares: int) -> list[AuditedBatch]:
        """The same order each time: the same seeds are in the first batches, and only their neighbours may differ."""
        ids = training.order(graph, 0, 0, share, shares).to(trainer.device)
        return of_trainer(trainer, ids, number * all_ranks + mine)

    own = [serve(number, mine, all_ranks) for number in (0, 1)]
    found = find_violation(graph, fanouts, training.order(graph, 0, 0, mine, all_ranks), own)
    if all_ranks > 1:
        alike = serve(0, 0, all_ranks)  # the first share on every rank
        seeds = ranks.gather(torch.cat([batch.seeds for batch in own[0]]).cpu())
        theirs = ranks.gather([_moved(batch, "cpu") for batch in alike])
        served = torch.cat(seeds)
        if not found and len(served.unique()) != len(served):
            found = f"{len(served) - len(served.unique())} seeds are served by two ranks"
        if not found:
            epochs = [[_moved(batch, trainer.device) for batch in batches] for batches in theirs]
            found = find_violation(graph, fanouts, training.order(graph, 0, 0, 0, all_ranks), epochs)
    return found


def _moved(batch: AuditedBatch, device: torch.device | str) -> AuditedBatch:
    return AuditedBatch(
        batch.seeds.to(device), [h.to(device) for h in batch.heads], [p.to(device) for p in batch.picked]
    )
