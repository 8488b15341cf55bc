"""What would make an epoch faster and is no epoch any more: each is done here, and each is noticed."""

import pytest
import torch

from kernels import catalog
from minibatch import audit, models, ranks, resident, synthetic, training, trial
from minibatch.batches import Batch, BatchLoader
from minibatch.graphs import Graph, GraphError
from minibatch.ops import Kernels
from minibatch.resident import Trainer
from tests.kernels import wrong as the_wrong

FANOUTS, BATCH = [5, 4, 3], 128
WAYS = {
    "gpu": {"fused": False, "padded": False},
    "gpu-fused": {"fused": True, "padded": True},
    "host features": {"padded": True, "cache_rows": 100},
}


@pytest.fixture(scope="module")
def graph() -> Graph:
    made = synthetic.generate("tiny", seed=1)
    made.features = made.features.float()
    return made


def trainer(graph: Graph, kernels: Kernels, **options) -> Trainer:
    torch.manual_seed(0)
    model = models.make("sage", graph.features.shape[1], 32, graph.classes, len(FANOUTS), dropout=0.0)
    made = Trainer(graph, model.to(graph.features.device), kernels, FANOUTS, BATCH, seed=3, **options)
    made.prepare()
    return made


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("baseline", ["plain", "production"])
def test_what_we_serve_is_what_an_epoch_is(graph, way, baseline):
    assert audit.of_variant(trainer(graph, Kernels("cpu", baseline=baseline), **WAYS[way])) == ""


def served_by(loader: BatchLoader, ids: torch.Tensor, number: int) -> list[audit.AuditedBatch]:
    seen = []
    for at, batch in enumerate(loader.epoch(ids, number)):
        seeds = batch.nodes[: len(batch.y)].to(torch.int64, copy=True)
        hops = batch.hops if at < audit.BATCHES else []
        seen.append(
            audit.AuditedBatch(
                seeds, [batch.nodes[: len(hop)].clone() for hop in hops], [_global(batch, hop) for hop in hops]
            )
        )
    return seen


def _global(batch: Batch, hop: torch.Tensor) -> torch.Tensor:
    return torch.where(hop >= 0, batch.nodes[hop.clamp_min(0).long()], -1)


def test_what_the_native_loader_serves_too(graph):
    with BatchLoader(graph, FANOUTS, BATCH, threads=2) as loader:
        epochs = [served_by(loader, graph.train, number) for number in (0, 1)]
        assert audit.find_violation(graph, FANOUTS, graph.train, epochs) == ""
        again = [served_by(loader, graph.train, 1) for _ in range(2)]
    assert "epochs 0 and 1 have the same sample for 100% of the rows" in audit.find_violation(
        graph, FANOUTS, graph.train, again
    )


@pytest.mark.parametrize(
    ("given_to_all", "says"), [(lambda order: order, "seeds are served by two ranks"), (None, "have the same sample")]
)
def test_ranks_that_do_the_same_work_are_noticed(graph, monkeypatch, given_to_all, says):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    # The other rank answers with what this one sampled; its seeds are its own unless ranks share an order.
    other = [lambda seeds: seeds if given_to_all else seeds + 10**6, lambda batches: batches]
    monkeypatch.setattr(ranks, "gather", lambda value: [value, other[isinstance(value, list)](value)])
    assert says in audit.of_variant(trainer(graph, Kernels("cpu"), **WAYS["gpu-fused"]))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("with_replacement", "twice"),
        ("smaller_fanout", "holds"),
        ("frozen_seed", "have the same sample for 100% of the rows that had a choice"),
    ],
)
def test_a_sampler_that_does_less_is_noticed(graph, way, wrong, says):
    source = the_wrong.wrong(catalog.load("sample_neighbors"), "cpu")[wrong].read_text()
    assert says in audit.of_variant(trainer(graph, Kernels("cpu", sources={"sample_neighbors": source}), **WAYS[way]))


@pytest.mark.parametrize("way", WAYS)
def test_samples_that_are_kept_between_epochs_are_noticed(graph, way, monkeypatch):
    made, kept = trainer(graph, Kernels("cpu"), **WAYS[way]), {}
    sample = made.kernels.sample_neighbors

    def keeps(rowptr, col, frontier, seed, picked):
        if (key := (tuple(frontier.tolist()), picked.shape)) not in kept:
            sample(rowptr, col, frontier, seed, picked)
            kept[key] = picked.clone()
        picked.copy_(kept[key])

    monkeypatch.setattr(made.kernels, "sample_neighbors", keeps)
    assert "have the same sample" in audit.of_variant(made)


def test_a_batch_that_is_served_twice_is_noticed(graph, monkeypatch):
    made = trainer(graph, Kernels("cpu"))
    begin = made.begin

    def twice(ids, number):
        steps = begin(ids, number)
        made.order[1] = made.order[0]
        return steps

    monkeypatch.setattr(made, "begin", twice)
    assert audit.of_variant(made) == "epoch 0 served 900 seeds, 772 of them different, of 900"


def test_fewer_hops_neighbours_than_asked_for_are_noticed(graph):
    made = trainer(graph, Kernels("cpu"), padded=False)
    made.sampler.fanouts = [5, 4, 2]
    served = [audit.of_trainer(made, graph.train, number) for number in (0, 1)]
    assert audit.find_violation(graph, FANOUTS, graph.train, served) == "fanouts are [5, 4, 2], not [5, 4, 3]"


def swapped(graph: Graph, name: str, source: str):
    def make(sources):
        torch.manual_seed(0)
        model = models.make("sage", graph.features.shape[1], 32, graph.classes, len(FANOUTS), dropout=0.0)
        return Trainer(graph, model, Kernels("cpu", sources=sources), FANOUTS, BATCH, seed=3)

    return lambda: trial.run(make, {name: source}, 0, pairs=8)


def test_a_kernel_that_does_so_is_not_timed(graph):
    source = the_wrong.wrong(catalog.load("sample_neighbors"), "cpu")["frozen_seed"].read_text()
    with pytest.raises(
        GraphError, match="epochs with this sample_neighbors are not timed: epochs 0 and 1 have the same"
    ):
        swapped(graph, "sample_neighbors", source)()


def test_a_kernel_that_does_less_once_it_is_timed_is_not_compared(graph):
    # Right in the two epochs that are looked at and in those before them, one neighbour fewer from then on.
    text = catalog.load("sample_neighbors").baselines("cpu")["production"].read_text()
    head = "int64_t nodes, int64_t edges, int64_t rows, int64_t fanout) {"
    assert text.count(head) == 1
    later = text.replace(head, head + "\n    static int64_t calls = 0;\n    const bool lazy = ++calls > 200;")
    end = later.rindex("\n        for (; count < fanout; ++count) {")
    later = later[:end] + "\n        if (lazy && count > 1) {\n            --count;\n        }" + later[end:]
    with pytest.raises(GraphError, match="this sample_neighbors are not compared: .* edges were sampled in one, "):
        swapped(graph, "sample_neighbors", later)()


@pytest.mark.parametrize("way", WAYS)
def test_the_clock_is_read_behind_all_work(graph, way, monkeypatch):
    """A clock that counts kernels' calls: what an epoch says it took is every call that it made."""
    made, calls = trainer(graph, Kernels("cpu"), **WAYS[way]), []
    call = made.kernels.call
    monkeypatch.setattr(made.kernels, "call", lambda *given: (calls.append(given[0]), call(*given))[1])
    monkeypatch.setattr(resident.time, "perf_counter", lambda: float(len(calls)))
    record = made.epoch(graph.train, 0)
    assert record.seconds == len(calls) > 7 * 8


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("options", [{"padded": False}, {"padded": True}, {"captured": True}])
def test_nothing_is_left_to_do_on_the_device_when_the_clock_is_read(options):
    made = trainer(synthetic.generate("tiny", seed=1, device="cuda"), Kernels("cuda"), **options)
    assert audit.of_variant(made) == ""
    made.epoch(training.order(made.graph, 0, 0).cuda(), 0)
    side = torch.cuda.Stream()
    assert torch.cuda.current_stream().query()
    assert side.query()
