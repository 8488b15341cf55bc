"""The native loader and the kernels' sampler against each other and against what a sample must keep."""

import pytest
import torch

from kernels import catalog
from minibatch import synthetic
from minibatch.batches import SEEDS_A_BATCH, BatchLoader, batch_seed, most_nodes, pad_to
from minibatch.graphs import Graph, GraphError
from minibatch.ops import Kernels
from minibatch.resident import Sampler

FANOUTS, BATCH = [6, 4, 3], 128


@pytest.fixture(scope="module")
def graph() -> Graph:
    return synthetic.generate("tiny", seed=1)


def edges(batch) -> list[torch.Tensor]:
    """Of each hop the global ids (row, neighbour) of what was sampled, [edges, 2]."""
    found = []
    for hop in batch.hops:
        rows, places = torch.nonzero(hop >= 0, as_tuple=True)
        found.append(torch.stack([batch.nodes[rows], batch.nodes[hop[rows, places].long()]], dim=1))
    return found


def test_batches_hold_the_seeds_their_labels_and_features_in_order(graph):
    with BatchLoader(graph, FANOUTS, BATCH, threads=2) as loader:
        served = []
        for batch in loader.epoch(graph.train):
            seeds = batch.nodes[: len(batch.y)].long()
            served.append(seeds.clone())
            assert torch.equal(batch.y, graph.labels[seeds])
            assert torch.equal(batch.x, graph.features[batch.nodes.long()])
            assert len(batch.nodes.unique()) == len(batch.nodes)
            assert batch.edges == sum(int((hop >= 0).sum()) for hop in batch.hops)
    assert torch.equal(torch.cat(served), graph.train)


def test_every_row_has_min_of_degree_and_fanout_of_its_own_neighbours(graph):
    degree = graph.rowptr[1:] - graph.rowptr[:-1]
    with BatchLoader(graph, FANOUTS, BATCH, threads=1) as loader:
        for batch in loader.epoch(graph.train[: 2 * BATCH]):
            for hop, fanout in zip(batch.hops, FANOUTS, strict=True):
                rows = batch.nodes[: len(hop)].long()
                assert torch.equal((hop >= 0).sum(dim=1), degree[rows].clamp_max(fanout))
            for pairs in edges(batch):
                for node, neighbour in pairs[:: len(pairs) // 50].tolist():
                    assert neighbour in graph.col[graph.rowptr[node] : graph.rowptr[node + 1]]


@pytest.mark.parametrize("seed", [3, 70_000])  # the second's is beyond 64 bits
def test_the_loader_and_the_kernels_sample_the_same(graph, seed):
    # The same random numbers, the same order of numbering: one can stand in for the other, bit for bit.
    sampler = Sampler(graph, Kernels("cpu"), FANOUTS, BATCH, fused=False)
    with BatchLoader(graph, FANOUTS, BATCH, threads=2, seed=seed) as loader:
        for number, batch in enumerate(loader.epoch(graph.train, 4)):
            draws = torch.arange(3) + batch_seed(seed, 4) + number * SEEDS_A_BATCH
            other = sampler.exact(pad_to(graph.train[number * BATCH :][:BATCH], BATCH), draws)
            assert torch.equal(other.heads[-1], batch.nodes)
            assert all(torch.equal(a, b) for a, b in zip(other.local, batch.hops, strict=True))


def test_the_number_of_threads_changes_nothing(graph):
    kept = []
    for threads in (1, 3):
        with BatchLoader(graph, FANOUTS, BATCH, threads=threads, seed=9) as loader:
            kept.append([[pairs.clone() for pairs in edges(batch)] for batch in loader.epoch(graph.train)])
    for one, other in zip(*kept, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_epochs_and_seeds_sample_other_neighbours(graph):
    def first(seed: int, epoch: int) -> torch.Tensor:
        with BatchLoader(graph, FANOUTS, BATCH, threads=1, seed=seed) as loader:
            batches = loader.epoch(graph.train, epoch)  # held: once it is gone the batch's memory is used again
            return edges(next(batches))[1].clone()

    base = first(0, 0)
    assert torch.equal(base, first(0, 0))
    assert not torch.equal(base, first(0, 1))
    assert not torch.equal(base, first(1, 0))


def test_the_loader_keeps_the_properties_of_the_kernel(graph):
    # Its first hop is what sample_neighbors does: the kernel's own judge looks at fifteen seeds together.
    properties = catalog.load("sample_neighbors").properties
    sizes = {"nodes": 3000, "edges": 90_000, "rows": 3000, "fanout": 7}
    empty = torch.zeros(3001, dtype=torch.int64), torch.zeros(90_000, dtype=torch.int32)
    inputs = {"rowptr": empty[0], "col": empty[1], "frontier": torch.zeros(3000, dtype=torch.int32)}
    calls = properties.several(inputs | {"seed": torch.tensor([77])}, sizes)
    assert calls
    pairs = []
    for call in calls:
        rowptr, count = call["rowptr"], int(call["rowptr"][-1])
        made = Graph(
            rowptr, call["col"][:count].contiguous(), torch.zeros(3000, 1, dtype=torch.float16),
            torch.zeros(3000, dtype=torch.int64), *[torch.arange(3)] * 3, classes=1,
        )  # fmt: skip
        with BatchLoader(made, [7], 3000, threads=1, seed=0) as loader:
            # Hop 0 of batch 0 has the epoch's seed, of which `epoch` would keep the low half alone.
            batch = next(loader._batches(call["frontier"].long(), int(call["seed"])))
            picked = torch.where(batch.hops[0] >= 0, batch.nodes[batch.hops[0].long().clamp_min(0)], -1)
        assert properties.violated(call, {"picked": picked}, sizes) == ""
        pairs.append((call, {"picked": picked}))
    assert properties.violated_together(pairs, sizes) == ""


def test_an_epoch_that_is_left_midway_harms_no_other(graph):
    with BatchLoader(graph, FANOUTS, BATCH, threads=2) as loader:
        for wanted in (1, 3):
            for number, _ in enumerate(loader.epoch(graph.train)):
                if number == wanted:
                    break
        assert sum(len(batch.y) for batch in loader.epoch(graph.train)) == len(graph.train)


def test_a_closed_loader_says_so(graph):
    loader = BatchLoader(graph, FANOUTS, BATCH, threads=2)
    loader.close()
    loader.close()
    with pytest.raises(ValueError, match="closed"):
        next(loader.epoch(graph.train))


@pytest.mark.parametrize("fanouts", [[], [5, 0], [-1], [2] * 9])
def test_fanouts_that_are_none_are_refused(graph, fanouts):
    with pytest.raises(GraphError, match="fanouts must be at least 1|at most 8 hops"):
        BatchLoader(graph, fanouts, BATCH)


def test_the_most_nodes_are_bounded_by_the_graph():
    assert most_nodes(1024, [15, 10, 5], 10**9) == [1024, 16384, 180_224, 1_081_344]
    assert most_nodes(1024, [15, 10], 5000) == [1024, 5000, 5000]
