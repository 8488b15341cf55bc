"""Features in host memory behind a cache: the same rows, the same training, and hot rows that are read again."""

import ctypes

import pytest
import torch

from minibatch import features, models, synthetic, training
from minibatch.features import FeatureTable, TieredTable, hot_rows, visits
from minibatch.graphs import Graph
from minibatch.memory import empty_pinned
from minibatch.ops import Kernels
from minibatch.resident import Sampler, Trainer
from tests.kernels.test_kernels_emulated import emulated

FANOUTS, BATCH = [5, 4, 3], 64
ON = [
    "cpu",
    pytest.param(
        "cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
    ),
]


@pytest.fixture(scope="module")
def graph() -> Graph:
    made = synthetic.generate("tiny", seed=1)
    made.features = made.features.float()
    return made


@pytest.fixture(scope="module")
def small() -> Graph:
    return synthetic.generate("small", seed=1)


def in_host_memory(graph: Graph, device: str) -> Graph:
    """The graph on the device, its features in memory that the device can read."""
    arrays = {name: values.to(device) for name, values in graph.arrays().items()}
    arrays["features"] = graph.features
    if device == "cuda":
        arrays["features"] = empty_pinned(tuple(graph.features.shape), graph.features.dtype).copy_(graph.features)
    return Graph(**arrays, classes=graph.classes)


@pytest.mark.parametrize("device", ON)
@pytest.mark.parametrize("room", [0, 1, 700, 10_000])
def test_rows_and_means_are_those_of_the_table_whatever_is_held(graph, device, room):
    kernels = Kernels(device)
    placed = in_host_memory(graph, device)
    whole = FeatureTable(graph.features.to(device), kernels)
    tiered = TieredTable(placed.features, room, device, kernels)
    tiered.fill(torch.randperm(graph.nodes)[: tiered.room])
    tiered.begin()
    ids = torch.randint(-1, graph.nodes, (500, 7), dtype=torch.int32).to(device)
    assert torch.equal(tiered.rows(ids.flatten()), whole.rows(ids.flatten()))
    held = (tiered.place[ids[ids >= 0].long()] >= 0).float().mean()
    assert tiered.hit_share() == pytest.approx(float(held), abs=1e-6)
    torch.testing.assert_close(tiered.mean(ids), whole.mean(ids))
    if room > graph.nodes:
        assert tiered.hit_share() == 1.0


@pytest.fixture(scope="module")
def native(tmp_path_factory) -> ctypes.CDLL:
    source = features.Path(features.__file__).parent / "features.cu"
    return ctypes.CDLL(str(emulated(source, tmp_path_factory.mktemp("features"))))


@pytest.mark.parametrize("width", [7, 12, 16, 128])
@pytest.mark.parametrize("rows", [0, 3, 5000])
def test_the_cuda_source_takes_rows_from_where_they_are(native, width, rows):
    torch.manual_seed(0)
    table = torch.randn(300, width).bfloat16()
    tiered = TieredTable(table, 100, "cpu", Kernels("cpu"))
    tiered.fill(torch.randperm(300)[:100])
    tiered.begin()
    ids = torch.randint(-1, 300, (rows,), dtype=torch.int32)
    wanted, read = tiered.rows(ids), tiered.read.clone()
    tiered.begin()
    found = torch.full((rows, width), 7.0).bfloat16()
    assert torch.equal(tiered.rows(ids, found), wanted)
    assert torch.equal(tiered.read, read)
    tiered.native = native
    tiered.begin()
    assert torch.equal(tiered.rows(ids, found.fill_(7.0)), wanted)
    assert torch.equal(tiered.read, read)


def test_a_cache_is_filled_in_pieces_and_anew(graph, monkeypatch):
    monkeypatch.setattr(features, "FILLED_AT_ONCE", 100)
    tiered = TieredTable(graph.features, 250, "cpu", Kernels("cpu"))
    assert len(tiered.cache) == 1, "its memory is wanted before it is filled"
    for hot in (torch.arange(250), torch.arange(2000, 2250)):
        tiered.fill(hot)
        assert torch.equal(torch.nonzero(tiered.place >= 0).flatten(), hot)
        assert torch.equal(tiered.cache, graph.features[hot])


def test_what_was_visited_is_counted(graph):
    sampler = Sampler(graph, Kernels("cpu"), FANOUTS, BATCH, fused=False)
    counts = visits(sampler, graph.train[:BATCH], batches=3)
    assert int(counts.max()) == 1, "one batch reads a row once"
    assert torch.equal(counts[graph.train[:BATCH]], torch.ones(BATCH, dtype=torch.int32))
    assert int(visits(sampler, graph.train, batches=4).max()) == 4, "some node is in every batch"


def test_the_hottest_come_first_and_neighbours_decide_among_equals():
    rowptr = torch.tensor([0, 9, 10, 15, 15, 35])
    assert hot_rows(torch.tensor([0, 3, 0, 0, 3]), rowptr, 4).tolist() == [4, 1, 0, 2]
    assert len(hot_rows(torch.zeros(5), rowptr, 99)) == 5


def test_visits_pick_rows_that_later_epochs_read(small):
    # Train ids in one part of the graph, as papers100M's are: there degree alone says little of what is read.
    train = small.train[small.train < 6000]
    sampler = Sampler(small, Kernels("cpu"), [5, 5], 128, fused=False)
    room = small.nodes // 10
    later = torch.zeros(small.nodes, dtype=torch.int64)
    for number in range(32):
        seeds = train[torch.randperm(len(train))[:128]]
        later[sampler.exact(seeds.int(), torch.arange(2) + (7 << 40) + number * 8).heads[-1].long()] += 1

    def share(rows: torch.Tensor) -> float:
        return float(later[rows].sum() / later.sum())

    counted = visits(sampler, train, batches=8)
    by_visits, by_degree = hot_rows(counted, small.rowptr, room), hot_rows(counted * 0, small.rowptr, room)
    best = share(later.topk(room).indices)
    assert share(by_visits) > 0.8 * best
    assert share(by_visits) > share(by_degree) + 0.1


@pytest.mark.parametrize("device", ON)
@pytest.mark.parametrize("padded", [False, True])
def test_training_behind_a_cache_is_training(graph, device, padded):
    kernels, found = Kernels(device), []
    for cache_rows in (None, 0, 500):
        torch.manual_seed(0)
        model = models.make("sage", graph.features.shape[1], 32, graph.classes, 3, dropout=0.0).to(device)
        placed = in_host_memory(graph, device)
        if cache_rows is None:
            placed.features = graph.features.to(device)
        options = {"fused": False, "padded": padded, "captured": padded and device == "cuda"}
        made = Trainer(placed, model, kernels, FANOUTS, BATCH, lr=0.01, cache_rows=cache_rows, **options)
        made.prepare()
        record = made.epoch(training.order(graph, 0, 0).to(device), 0)
        found.append(record)
    assert found[0].cache_hits is None
    assert found[1].cache_hits == 0
    assert 0.2 < found[2].cache_hits < 1
    for record in found[1:]:
        assert record.edges == found[0].edges
        assert record.loss == pytest.approx(found[0].loss, rel=1e-3)
