"""What a program may hand over: seeds that come twice, other dtypes, masks, epochs side by side; and what is refused."""

import gc
import warnings

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData

from minibatch import graphs, models
from minibatch.batches import BatchLoader, pad_to
from minibatch.graphs import Graph, GraphError, from_coo, from_csr, from_pyg
from minibatch.ops import Kernels
from minibatch.resident import Trainer

NODES = 300


def made(edges: int = 3000, **changed) -> Graph:
    torch.manual_seed(0)
    source, target = torch.randint(NODES, (2, edges))
    graph = from_coo(
        source, target, torch.randn(NODES, 4), torch.randint(3, (NODES,)), train=torch.arange(150), classes=3
    )
    for name, values in changed.items():
        setattr(graph, name, values)
    return graph


def check(graph: Graph, loader: BatchLoader, ids: torch.Tensor, number: int = 0) -> None:
    """Every row is its node's, every sampled neighbour one, and seeds come as they were given."""
    served = []
    for batch in loader.epoch(ids, number):
        nodes = batch.nodes.long()
        seeds = nodes[: len(batch.y)]
        served.append(seeds)
        assert torch.equal(batch.x, graph.features[nodes].to(batch.x.dtype))
        assert torch.equal(batch.y, graph.labels[seeds].to(batch.y.dtype))
        assert len(nodes[len(seeds) :].unique()) == len(nodes) - len(seeds)
        for hop in batch.hops:
            for row in range(0, len(hop), 17):
                node = int(nodes[row])
                mine = graph.col[int(graph.rowptr[node]) : int(graph.rowptr[node + 1])].tolist()
                picked = nodes[hop[row][hop[row] >= 0].long()].tolist()
                assert len(picked) == min(len(mine), hop.shape[1])
                assert not set(picked) - set(mine)
    assert torch.equal(torch.cat(served), torch.as_tensor(ids).long())


@pytest.mark.parametrize("batch", [64, 1024])
def test_a_seed_that_comes_often_is_a_row_each_time(batch):
    graph = made()
    ids = torch.cat([torch.arange(150), torch.arange(150).repeat(4)])
    with BatchLoader(graph, [15, 10, 5], batch, threads=2) as loader:
        for number in range(5):
            check(graph, loader, ids, number)


def test_more_seeds_than_nodes_fit_a_batch():
    graph = made()
    with BatchLoader(graph, [3, 2], 10_000, threads=2) as loader:
        check(graph, loader, torch.arange(NODES).repeat(40))


@pytest.mark.parametrize("options", [{"fused": True}, {"fused": False}, {"layered": True}, {"padded": False}])
def test_the_gpu_route_trains_seeds_that_come_twice_on_their_own_labels(options):
    graph = made()
    torch.manual_seed(1)
    model = models.make("sage", 4, 8, 3, 2, dropout=0.0)
    widest = int((graph.rowptr[1:] - graph.rowptr[:-1]).max())
    graph.train = torch.tensor([3, 3, 9, 11, 9, 40, 40, 40])
    trainer = Trainer(graph, model, Kernels("cpu"), [widest, widest], 4, **options)
    trainer.prepare()
    found = trainer.sampler.exact(pad_to(torch.tensor([3, 3, 9]), 4), torch.arange(2))
    with torch.no_grad():
        logits = trainer.logits(found)
        alone = [
            trainer.logits(trainer.sampler.exact(torch.tensor([n], dtype=torch.int32), torch.arange(2)))
            for n in (3, 3, 9)
        ]
    torch.testing.assert_close(logits[:3], torch.cat(alone))
    losses = torch.nn.functional.cross_entropy(logits[:3], graph.labels[[3, 3, 9]])
    trainer.epoch(torch.tensor([3, 3, 9]), 0)
    torch.testing.assert_close(trainer.losses[0], losses)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("labels", lambda graph: graph.labels.int()),
        ("labels", lambda graph: graph.labels.double()[:, None].expand(-1, 2)),
        ("features", lambda graph: graph.features.t().contiguous().t()),
        ("features", lambda graph: graph.features.double()),
        ("features", lambda graph: graph.features.half()),
        ("features", lambda graph: graph.features[:, 1:3]),
        ("col", lambda graph: graph.col.long()),
        ("rowptr", lambda graph: graph.rowptr.int()),
    ],
)
def test_what_can_be_converted_is(name, values):
    graph = made()
    setattr(graph, name, values(graph))
    with BatchLoader(graph, [4, 3], 32, threads=2) as loader:
        check(graph, loader, graph.train)


@pytest.mark.parametrize(
    "give",
    [
        lambda m: m,
        lambda m: m.numpy(),
        lambda m: m.tolist(),
        lambda m: m.nonzero().flatten().int(),
        lambda m: np.flatnonzero(m.numpy()),
    ],
)
def test_masks_and_ids_of_any_kind_are_seeds(give):
    graph, mask = made(), torch.arange(NODES) % 3 == 0
    with BatchLoader(graph, [3], 32, threads=1) as loader:
        served = torch.cat([batch.nodes[: len(batch.y)] for batch in loader.epoch(give(mask))])
    assert torch.equal(served.long(), mask.nonzero().flatten())


@pytest.mark.parametrize(
    ("ids", "says"),
    [
        ([5, 299, 10_000_000], "seeds reach from 5 to 10000000, and the graph has 300 nodes"),
        ([5, -1], "seeds reach from -1 to 5"),
        ([0.5], "seeds must be whole numbers or a mask, flat; they are float64"),
        (torch.zeros(7, dtype=torch.bool), "a mask of seeds must have one element a node, 300"),
        (torch.zeros(2, 2, dtype=torch.int64), "flat; they are int64"),
        (torch.zeros(2, dtype=torch.int64, device="meta"), "seeds are on the device meta, which holds no values"),
    ],
    ids=str,
)
def test_seeds_that_are_no_nodes_are_refused(ids, says):
    with BatchLoader(made(), [3], 32, threads=1) as loader, pytest.raises(GraphError, match=says):
        loader.epoch(ids)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"batch": 0}, "batch must be a whole number of at least 1"),
        ({"batch": 2.5}, "batch must be a whole number"),
        ({"batch": 10**9}, "are free: take a smaller batch"),
        ({"threads": -1}, "threads must be a whole number of at least 0 and at most 1024, not -1"),
        ({"threads": 100_000}, "at most 1024, not 100000"),
        ({"slots": -2}, "slots must be"),
        ({"fanouts": [1] * 9}, "at most 8 hops"),
        ({"fanouts": [2.5]}, "fanouts must be at least 1"),
        ({"fanouts": [1 << 40]}, "more neighbours than a graph here has nodes"),
        ({"fanouts": [1 << 30, 1 << 30]}, "smaller fanouts"),
    ],
    ids=str,
)
def test_arguments_that_do_not_fit_are_refused(options, says):
    with pytest.raises(GraphError, match=says):
        BatchLoader(made(), **({"fanouts": [3], "batch": 32, "threads": 1} | options))


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"col": torch.full((3000,), NODES, dtype=torch.int32)}, "neighbours reach from 300 to 300"),
        ({"rowptr": torch.zeros(0, dtype=torch.int64)}, "the graph has no nodes"),
        (
            {"rowptr": torch.zeros(NODES + 1, dtype=torch.int64)},
            "row pointers reach from 0 to 0, and it has 3000 edges",
        ),
        ({"labels": torch.zeros(3, dtype=torch.int64)}, "300 nodes and labels for 3"),
        ({"features": torch.zeros(NODES, 2, 2)}, "features must be"),
        ({"labels": torch.zeros(NODES, dtype=torch.complex64)}, "complex64 cannot be made that"),
    ],
    ids=str,
)
def test_graphs_that_would_be_misread_are_refused(changed, says):
    with pytest.raises(GraphError, match=says):
        BatchLoader(made(**changed), [3], 32, threads=1)


def test_two_epochs_of_one_loader_are_read_in_turn():
    graph = made()
    with BatchLoader(graph, [3, 2], 16, threads=2) as loader:
        one, other = loader.epoch(torch.arange(150), 0), loader.epoch(torch.arange(150, 300), 1)
        pairs = list(zip(one, other, strict=True))
        for which, first in ((0, 0), (1, 150)):
            seeds = torch.cat([pair[which].nodes[: len(pair[which].y)] for pair in pairs]).long()
            assert torch.equal(seeds, torch.arange(first, first + 150))


def test_an_epoch_that_was_left_is_closed_late_and_harms_no_other():
    graph = made()
    gc.collect()
    gc.freeze()  # what other tests have imported is not looked through two hundred times
    with BatchLoader(graph, [3, 2], 16, threads=2, slots=2, copy=False) as loader:
        for _ in range(20):
            left = loader.epoch(torch.arange(150), 0)
            next(left)
            gc.collect()
            reading = loader.epoch(torch.arange(150, 300), 1)
            for batch in reading:
                before = batch.nodes.clone()
                left.close()
                gc.collect(1)
                assert torch.equal(before, batch.nodes)
        assert len(loader._open) <= 2


def test_batches_live_until_they_are_dropped():
    with BatchLoader(made(), [3], 16, threads=1, slots=2) as loader:
        assert [int(batch.nodes[0]) for batch in list(loader.epoch(torch.arange(96)))] == list(range(0, 96, 16))


def test_edges_say_where_they_were():
    graph = made()
    with BatchLoader(graph, [4, 3], 32, threads=2, places=True) as loader:
        for batch in loader.epoch(graph.train):
            for hop, at in zip(batch.hops, batch.places, strict=True):
                some = hop >= 0
                assert torch.equal(at >= 0, some)
                assert torch.equal(graph.col[at[some]], batch.nodes[hop[some].long()])


def test_edges_of_more_weight_are_sampled_more_often_and_those_of_none_never():
    rowptr = torch.tensor([0, 4, 4, 4, 4, 4])
    graph = from_csr(
        rowptr,
        torch.tensor([1, 2, 3, 4]),
        torch.zeros(5, 1),
        torch.zeros(5).long(),
        edge_weights=torch.tensor([1.0, 2.0, 4.0, 0.0]),
    )
    shares = {}
    for again in (False, True):
        with BatchLoader(graph, [1], 64, threads=2, with_replacement=again) as loader:
            picked = torch.cat([b.nodes[b.hops[0].long()].flatten() for b in loader.epoch(torch.zeros(20_000).long())])
        shares[again] = torch.bincount(picked.long(), minlength=5).double() / len(picked)
        torch.testing.assert_close(shares[again], torch.tensor([0, 1, 2, 4, 0]).double() / 7, atol=0.02, rtol=0)
    with BatchLoader(graph, [2], 64, threads=1) as loader:
        pairs = (
            torch.cat([b.nodes[b.hops[0].long()] for b in loader.epoch(torch.zeros(20_000).long())]).sort(dim=1).values
        )
    # Of weights 1, 2, 4 without replacement: {1, 2} in order 1-2 or 2-1 has 1/7 * 2/6 + 2/7 * 1/5.
    assert float((pairs == torch.tensor([1, 2])).all(dim=1).double().mean()) == pytest.approx(
        1 / 7 * 2 / 6 + 2 / 7 / 5, abs=0.01
    )


def test_with_replacement_a_neighbour_may_come_again():
    graph = made()
    with BatchLoader(graph, [40], 64, threads=1, with_replacement=True) as loader:
        for batch in loader.epoch(graph.train):
            degree = (graph.rowptr[1:] - graph.rowptr[:-1])[batch.nodes[: len(batch.y)].long()]
            assert torch.equal((batch.hops[0] >= 0).sum(dim=1), torch.where(degree > 0, 40, 0))


def test_the_newest_nodes_only_are_expanded_where_that_is_asked_for():
    graph = made()
    with BatchLoader(graph, [3, 2], 16, threads=1, newest_only=True) as loader:
        for batch in loader.epoch(graph.train):
            assert len(batch.hops[1]) == batch.counts[1] - batch.counts[0]
            rows = batch.nodes[batch.counts[0] : batch.counts[1]].long()
            degree = (graph.rowptr[1:] - graph.rowptr[:-1])[rows]
            assert torch.equal((batch.hops[1] >= 0).sum(dim=1), degree.clamp_max(2))


def test_col_holds_in_neighbours():
    # 0 -> 1 and 0 -> 2: node 1 hears from 0, node 0 from nobody.
    graph = from_coo([0, 0], [1, 2], np.eye(3), [0, 1, -1], train=[1])
    assert graph.col[graph.rowptr[1] : graph.rowptr[2]].tolist() == [0]
    assert int(graph.rowptr[1]) == 0
    with BatchLoader(graph, [5], 4, threads=1) as loader:
        (batch,) = loader.epoch([1])
        assert batch.nodes.tolist() == [1, 0]


def test_a_graph_of_pyg_keeps_edges_splits_and_unlabelled_nodes():
    data = Data(
        x=torch.randn(4, 3), y=torch.tensor([0, 2, -1, 1]), edge_index=torch.tensor([[0, 1, 3], [1, 0, 0]]),
        edge_attr=torch.tensor([1.0, 2.0, 3.0]), train_mask=torch.tensor([True, False, False, True]), val_mask=torch.tensor([False, True, False, False]),
    )  # fmt: skip
    graph = from_pyg(data, edge_weights="edge_attr")
    assert (graph.rowptr.tolist(), graph.col.tolist()) == ([0, 2, 3, 3, 3], [1, 3, 0])
    assert (graph.train.tolist(), graph.valid.tolist(), graph.test.tolist(), graph.classes) == ([0, 3], [1], [], 3)
    assert (graph.edge_ids.tolist(), graph.edge_weights.tolist()) == ([1, 2, 0], [2.0, 3.0, 1.0])
    csr = torch.sparse_csr_tensor(graph.rowptr, graph.col.long(), torch.ones(3), (4, 4))
    assert torch.equal(from_pyg(Data(x=data.x, y=data.y, adj_t=csr)).col, graph.col)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (HeteroData(), "several kinds of nodes"),
        (Data(edge_index=torch.zeros(2, 1).long()), "has no x"),
        (Data(x=torch.zeros(2, 1)), "neither edge_index nor"),
        (Data(x=torch.zeros(2, 1), edge_index=torch.tensor([[0], [2]])), "targets reach from 2 to 2"),
        (Data(x=torch.zeros(2, 1), edge_index=torch.zeros(3, 2).long()), r"must be \[2, edges\], sources and targets; it is \[3, 2\]"),
        (Data(x=torch.full((2, 1), float("nan")), edge_index=torch.zeros(2, 1).long()), "node 0 are not all finite"),
        (Data(x=torch.zeros(2, 1), edge_index=torch.zeros(2, 1).long(), train_mask=torch.ones(2, 10) > 0), "choose one of its columns"),
    ],
    ids=str,
)  # fmt: skip
def test_data_that_is_no_graph_of_ours_is_refused(data, says):
    with pytest.raises(GraphError, match=says):
        from_pyg(data)


def test_two_graphs_have_two_identities_and_a_folder_has_its_graphs(tmp_path):
    graph = made()
    graphs.save(graph, tmp_path / "one")
    assert graphs.load(tmp_path / "one").identity() == made().identity()
    for changed in ({"labels": (graph.labels + 1) % 3}, {"features": graph.features + 1}, {"train": graph.train[1:]}):
        assert made(**changed).identity() != graph.identity()


def test_a_graph_without_edges_is_kept_and_trained_on(tmp_path):
    graphs.save(made(edges=0), tmp_path / "none")
    graph = graphs.load(tmp_path / "none")
    with BatchLoader(graph, [4, 3], 32, threads=2) as loader:
        check(graph, loader, graph.train)


@pytest.mark.parametrize("name", ["rowptr", "features", "train"])
def test_empty_and_junk_arrays_in_a_folder_are_refused_with_a_sentence(name, tmp_path):
    graphs.save(made(), tmp_path / "junk")
    for junk in (np.zeros(0), np.zeros(3, dtype="S4"), np.zeros((0, 0), dtype=np.float32), np.array(1)):
        np.save(tmp_path / "junk" / f"{name}.npy", junk)
        with pytest.raises(GraphError):
            graphs.load(tmp_path / "junk")


def test_arrays_and_lists_of_any_kind_are_a_graph():
    graph = made()
    arrays = {name: values.numpy() for name, values in graph.arrays().items()}
    held = Graph(**(arrays | {"train": arrays["train"].tolist()}), classes=3)
    held.require_consistent()
    assert held.identity() == graph.identity()
    again = from_csr(
        arrays["rowptr"].astype(np.uint64), arrays["col"].astype(np.uint32).tolist(), arrays["features"].tolist(), arrays["labels"][:, None]
    )  # fmt: skip
    assert torch.equal(again.col, graph.col)
    assert torch.equal(again.labels, graph.labels)
    assert from_csr([0, 0], [], [[1.0]], None).labels.tolist() == [-1]
    with warnings.catch_warnings(action="error"):
        arrays["features"].setflags(write=False)
        assert torch.equal(Graph(**arrays, classes=3).features, graph.features)
    swapped = arrays["features"].astype(arrays["features"].dtype.newbyteorder(">"))
    again = from_csr(graph.rowptr, graph.col, swapped, graph.labels, classes=np.int64(5))
    assert torch.equal(again.features, graph.features)
    assert again.classes == 5
    some = from_csr([0, 0, 0], [], [[True], [False]], [[1, 0], [-1, 1]])
    assert some.features.tolist() == [[1.0], [0.0]]
    assert torch.equal(some.labels.nan_to_num(-1), torch.tensor([[1.0, 0.0], [-1.0, 1.0]]))
    with BatchLoader(graph, list(np.array([2, 2])), np.int64(32), threads=1) as loader:
        check(graph, loader, graph.train)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda g: from_csr(g.rowptr, g.col, torch.eye(NODES).to_sparse(), g.labels), "features must be dense"),
        (lambda g: from_csr(g.rowptr, g.col, g.features, ["a"] * NODES), "labels must be numbers"),
        (lambda g: from_csr(g.rowptr, g.col, g.features, g.labels, classes="3"), "classes must be a whole number"),
        (lambda g: BatchLoader(Data(), [2], 4), "must be a minibatch Graph, such as from_pyg makes, not a Data"),
        (lambda g: BatchLoader(g, 3, 4), "fanouts must be a list"),
        (lambda g: BatchLoader(g, [2], 4, seed="a"), "seed must be a whole number"),
        (lambda g: BatchLoader(g, [2], 4).epoch([1], 0.5), "an epoch's number must be a whole number"),
        (lambda g: BatchLoader(g, [2], 4).epoch("abc"), "seeds must be numbers"),
        (lambda g: BatchLoader(g, [2], 4).epoch(None), "seeds must be numbers"),
    ],
)
def test_arguments_of_another_kind_are_refused(call, says):
    with pytest.raises(GraphError, match=says):
        call(made())
