"""The GPU route's logic on the CPU: padded or exact, fused or not, every way trains alike, and what overflows is made again."""

import pytest
import torch

from harness.records import Comparison
from harness.report.words import epoch_gain
from kernels import catalog
from minibatch import models, synthetic, training, trial
from minibatch.graphs import Graph, GraphError
from minibatch.ops import Kernels
from minibatch.resident import WARM_STEPS, Trainer
from tests.kernels import wrong as the_wrong

FANOUTS, BATCH = [5, 4, 3], 128


@pytest.fixture(scope="module")
def graph() -> Graph:
    made = synthetic.generate("tiny", seed=1)
    made.features = made.features.float()
    return made


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    return Kernels("cpu")


def trainer(graph: Graph, kernels: Kernels, **options) -> Trainer:
    torch.manual_seed(0)
    model = models.make("sage", graph.features.shape[1], 32, graph.classes, len(FANOUTS), dropout=0.0)
    made = Trainer(graph, model.to(graph.features.device), kernels, FANOUTS, BATCH, lr=0.01, seed=3, **options)
    made.prepare()
    return made


def losses(made: Trainer, epochs: int = 2) -> torch.Tensor:
    for number in range(epochs):
        record = made.epoch(training.order(made.graph, 0, number), number)
        assert record.batches == 8
        assert record.fallbacks == 0
    return made.losses[:8].clone()


def test_all_ways_train_alike(graph, kernels):
    base = losses(trainer(graph, kernels, fused=False, padded=False))
    assert len(base.unique()) == len(base)
    for options in (
        {"fused": True, "padded": False},
        {"fused": False, "padded": True},
        {"fused": True, "padded": True},
        {"fused": False, "padded": False, "layered": True},
        {"fused": True, "padded": True, "layered": True},
    ):
        torch.testing.assert_close(losses(trainer(graph, kernels, **options)), base, rtol=1e-4, atol=1e-5)
    plain = Kernels("cpu", baseline="plain")  # another sampler: other neighbours, but as good ones
    assert trainer(graph, plain, fused=False, padded=False).epoch(graph.train, 0).loss == pytest.approx(1.5, abs=0.4)


def test_our_aggregation_is_torchs_with_its_gradient(graph, kernels):
    h = torch.randn(50, 8, requires_grad=True)
    ids = torch.randint(-1, 50, (20, 6), dtype=torch.int32)
    grads = []
    for aggregate in (models.self_and_mean, kernels.self_and_mean):
        own, mean = aggregate(h, ids)
        (own.sin().sum() + (mean * torch.arange(8)).square().sum()).backward()
        grads.append((mean.detach().clone(), h.grad.clone()))
        h.grad = None
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other)


def test_a_batch_that_does_not_fit_is_left_out_and_made_again(graph, kernels):
    made = trainer(graph, kernels)
    made.epoch(graph.train, 0)
    calibrated = made.sampler.capacities
    made.sampler.set_capacities([BATCH, calibrated[1] // 2, calibrated[2]])
    made.buffers[0].held.clear()
    before = [parameter.detach().clone() for parameter in made.model.parameters()]
    made.begin(graph.train[:BATCH], 1)
    made.sample_next(0)
    made.compute(made.sampled[0])
    assert float(made.flags[0]) == 1
    assert all(torch.equal(a, b) for a, b in zip(before, made.model.parameters(), strict=True)), (
        "a cut batch was learnt"
    )
    whole = graph.train[: 7 * BATCH]
    record = made.epoch(whole, 1)
    assert record.fallbacks == record.batches == 7
    exact = trainer(graph, kernels, padded=False)
    exact.epoch(graph.train, 0)
    assert record.loss == pytest.approx(exact.epoch(whole, 1).loss, rel=1e-4)


def test_it_is_left_out_too_after_a_checkpoint_of_another_rung(graph, kernels):
    made = trainer(graph, kernels)
    made.epoch(graph.train, 0)
    of_salient = torch.optim.Adam(made.model.parameters(), lr=0.02)
    of_salient.step()
    training.go_on(made.optimizer, of_salient.state_dict())
    assert made.optimizer.param_groups[0]["lr"] == 0.02
    before = [parameter.detach().clone() for parameter in made.model.parameters()]
    made.sampler.set_capacities([BATCH, 256, 512])
    made.buffers[0].held.clear()
    made.begin(graph.train[:BATCH], 1)
    made.sample_next(0)
    made.compute(made.sampled[0])
    assert float(made.flags[0]) == 1
    assert all(torch.equal(a, b) for a, b in zip(before, made.model.parameters(), strict=True))


def test_batches_as_large_as_the_training_set_fit(graph, kernels):
    # Calibrated on seeds drawn with replacement, 570 different ones of 900, they would not.
    model = models.make("sage", graph.features.shape[1], 32, graph.classes, len(FANOUTS), dropout=0.0)
    made = Trainer(graph, model, kernels, FANOUTS, len(graph.train))
    made.prepare()
    assert [made.epoch(graph.train, number).fallbacks for number in range(3)] == [0, 0, 0]


def test_an_epoch_of_one_batch_has_room_for_the_steps_before_a_capture(graph, kernels):
    one_batch = Graph(**(graph.arrays() | {"train": graph.train[:BATCH]}), classes=graph.classes)
    made = trainer(one_batch, kernels)
    made.begin(one_batch.train, 0)
    made.idle.fill_(1)
    for step in range(WARM_STEPS):
        made.sample_next(step % 2)
        made.compute(made.sampled[step % 2])
    made.idle.zero_()
    assert made.epoch(one_batch.train, 0).batches == 1


@pytest.mark.parametrize("fused", [True, False])
def test_a_graph_of_fewer_nodes_than_a_batch_has_seeds_is_trained_on(kernels, fused):
    ids = torch.arange(40).split(20)
    few = Graph(
        torch.arange(41) * 4, torch.randint(40, (160,), dtype=torch.int32), torch.randn(40, 8), torch.arange(40) % 3,
        ids[0], ids[1], ids[1], classes=3,
    )  # fmt: skip
    made = Trainer(few, models.make("sage", 8, 16, 3, 3), kernels, [3, 3, 3], 64, fused=fused)
    made.prepare()
    record = made.epoch(few.train, 0)
    assert (record.batches, record.fallbacks) == (1, 0)
    assert record.edges > 3 * 20


def test_preparing_changes_no_weight(graph, kernels):
    torch.manual_seed(0)
    model = models.make("sage", graph.features.shape[1], 32, graph.classes, 3)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    Trainer(graph, model, kernels, FANOUTS, BATCH).prepare()
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_no_epoch_and_no_batch_is_served_twice(graph, kernels):
    made = trainer(graph, kernels)
    seen = []
    for number in range(2):
        made.begin(graph.train, number)
        for _ in range(3):
            made.sample_next(0)
            seen.append(tuple(made.sampled[0].picked[-1].flatten().tolist()))
    assert len(set(seen)) == 6


def test_all_neighbours_that_there_are_come_where_the_fanout_allows(graph, kernels):
    made = trainer(graph, kernels)
    widest = int((graph.rowptr[1:] - graph.rowptr[:-1]).max())
    made.epoch(graph.train, 0)
    sampled = made.accuracy(graph.test[:64], [widest] * 3, 64)
    assert sampled == pytest.approx(training.full_accuracy(made.model, graph, graph.test[:64]), abs=1e-6)


def test_inference_makes_no_optimizer(graph, kernels):
    made = Trainer(graph, models.make("sage", graph.features.shape[1], 8, graph.classes, 3), kernels, FANOUTS, BATCH)
    assert 0 <= made.accuracy(graph.test[:64], FANOUTS) <= 1
    assert "optimizer" not in vars(made), "PyTorch imports its compiler with the first one"


def test_a_source_of_a_run_takes_the_place_of_a_kernel(graph):
    wrong = the_wrong.wrong(catalog.load("gather_mean"), "cpu")["divides_by_the_fanout"].read_text()
    swapped = Kernels("cpu", sources={"gather_mean": wrong})
    ids = torch.tensor([[0, -1]], dtype=torch.int32)
    table = torch.ones(1, 4)
    assert torch.equal(swapped.gather_mean(table, ids), table / 2)
    assert torch.equal(Kernels("cpu").gather_mean(table, ids), table)


@pytest.mark.slow
def test_a_trial_says_which_side_was_faster(graph):
    # The swapped gather spins a while in every call: no machine is so busy that this is not seen.
    text = catalog.load("gather_mean").baselines("cpu")["baseline"].read_text()
    slow = text.replace("(void)nodes;", "(void)nodes;\n    for (volatile int64_t i = 0; i < 50000000; ++i) {}")

    one_batch = Graph(**(graph.arrays() | {"train": graph.train[:BATCH]}), classes=graph.classes)

    def make(sources):
        torch.manual_seed(0)
        model = models.make("sage", graph.features.shape[1], 32, graph.classes, 3, dropout=0.0)
        return Trainer(one_batch, model, Kernels("cpu", sources=sources), FANOUTS, BATCH, seed=3)

    found = trial.run(make, {"gather_mean": slow}, 0, pairs=8)
    assert found.comparison is Comparison.SLOWER
    assert found.kernels == ("gather_mean",)
    assert found.baseline_accuracy == pytest.approx(found.accuracy)


def test_epochs_are_compared_without_valid_ids(graph):
    arrays = graph.arrays() | {"train": graph.train[:BATCH], "valid": graph.valid[:0]}

    def make(sources):
        torch.manual_seed(0)
        model = models.make("sage", graph.features.shape[1], 8, graph.classes, 3, dropout=0.0)
        return Trainer(Graph(**arrays, classes=graph.classes), model, Kernels("cpu", sources=sources), FANOUTS, BATCH)

    found = trial.run(
        make, {"gather_mean": catalog.load("gather_mean").baselines("cpu")["baseline"].read_text()}, 0, pairs=5
    )
    assert found.accuracy is None and "accuracy" not in epoch_gain(found)


def test_other_models_are_refused(graph, kernels):
    with pytest.raises(GraphError, match="GraphSAGE's"):
        Trainer(graph, torch.nn.Linear(2, 2), kernels, FANOUTS, BATCH)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_captured_epoch_trains_as_an_eager_one_does():
    made = synthetic.generate("tiny", seed=1, device="cuda")
    found = []
    for options in ({"padded": False}, {"padded": True}, {"captured": True}):
        one = trainer(made, Kernels("cuda"), **options)
        for number in range(3):
            record = one.epoch(training.order(made, 0, number).cuda(), number)
        found.append(record)
    assert len({record.edges for record in found}) == 1
    assert found[1].loss == pytest.approx(found[0].loss, rel=0.05)
    assert found[2].loss == pytest.approx(found[0].loss, rel=0.05)
