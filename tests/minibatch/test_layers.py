"""Layers by hand against PyTorch's own gradients, and their CUDA source, emulated, against what stands in for it on a CPU."""

import ctypes

import pytest
import torch

from minibatch import layers, models
from minibatch.layers import Layers
from minibatch.objectives import Objective
from minibatch.resident import StepBuffers
from tests.kernels.test_kernels_emulated import emulated


def sampled(rows: int, fanout: int, sources: int) -> torch.Tensor:
    ids = torch.randint(-1, sources, (rows, fanout), dtype=torch.int32)
    ids[0] = -1  # no neighbour at all
    ids[:, 0] = torch.where(torch.rand(rows) < 0.5, 3, ids[:, 0])  # a hub
    return ids


def made(
    width: int, dropout: float, hidden: int = 12, classes: int = 5
) -> tuple[Layers, list[torch.Tensor], torch.Tensor, torch.Tensor]:
    """Layers of a model; ids of three layers; features; the first layer's own rows."""
    model = models.Sage(width, hidden, classes, 3, dropout)
    ids = [sampled(60, 4, 300), sampled(20, 5, 60), sampled(8, 3, 20)]
    own = torch.randint(300, (60,), dtype=torch.int32)
    own[-1] = -1
    return Layers(model, "cpu"), ids, torch.randn(300, width), own


def transposed(of: Layers, ids: list[torch.Tensor], sources: list[int]) -> list[layers.Transposed]:
    return [of.transpose(i, n, StepBuffers("cpu", kept=False), "0") for i, n in zip(ids, sources, strict=True)]


@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_gradients_by_hand_are_autograds(dropout):
    torch.manual_seed(1)
    of, ids, table, own = made(7, dropout)
    key = torch.tensor([-5])
    passed = of.forward(table, own, ids, key)
    grad = torch.randn_like(passed.hidden[-1])
    of.backward(passed, grad, transposed(of, ids[1:], [60, 20]))
    h = torch.where(own[:, None] >= 0, table[own.clamp_min(0).long()], 0)
    mean = models.self_and_mean(table, ids[0])[1]
    weights = [
        weight.detach().clone().requires_grad_()
        for pair in zip(of.model.own, of.model.neighbours, strict=True)
        for weight in pair
    ]
    for number in range(3):
        if number:
            if of.drop:
                keep = layers.draw_dropout_mask(*h.shape, of.drop, int(key), number)
                h = h.relu() * keep * 256 / (256 - of.drop)
            else:
                h = h.relu()
            h, mean = models.self_and_mean(h, ids[number])
        h = h @ weights[2 * number] + mean @ weights[2 * number + 1]
    torch.testing.assert_close(passed.hidden[-1], h.detach())
    for weight, wanted in zip(weights, torch.autograd.grad(h, weights, grad), strict=True):
        mine = of.gradient[:-1].split([w.numel() for w in weights])[
            next(i for i, w in enumerate(weights) if w is weight)
        ]
        torch.testing.assert_close(mine.view_as(wanted), wanted, rtol=1e-4, atol=1e-5)


def test_a_weight_that_the_optimizer_moves_is_the_one_that_layers_compute_with():
    of, ids, table, own = made(7, 0.0)
    before = of.forward(table, own, ids, None).hidden[-1]
    with torch.no_grad():
        of.model.neighbours[2].mul_(2)
    assert not torch.equal(of.forward(table, own, ids, None).hidden[-1], before)
    of.gradient.fill_(3)
    assert all((parameter.grad == 3).all() for parameter in of.model.parameters())


@pytest.mark.parametrize("drop", [26, 128])
def test_a_share_of_elements_is_dropped_and_every_step_layer_and_row_drops_others(drop):
    base = layers.draw_dropout_mask(2000, 50, drop, 7, 1)
    assert float(base.float().mean()) == pytest.approx(1 - drop / 256, abs=0.01)
    for other in (
        layers.draw_dropout_mask(2000, 50, drop, 8, 1),
        layers.draw_dropout_mask(2000, 50, drop, 7, 2),
        base.roll(1, 0),
        base.roll(1, 1),
    ):
        agree = float((base == other).float().mean())
        assert agree == pytest.approx((drop / 256) ** 2 + (1 - drop / 256) ** 2, abs=0.01)


class Emulated(Layers):
    """A Layers whose CUDA source runs here: what a GPU would compute of bfloat16."""

    def __init__(self, of: Layers, native: ctypes.CDLL) -> None:
        self.__dict__ |= of.__dict__
        self.native = native

    def _call(self, name, *values):
        given = [
            None if v is None else ctypes.c_void_p(v.data_ptr()) if isinstance(v, torch.Tensor) else ctypes.c_int64(v)
            for v in values
        ]
        getattr(self.native, f"layers_{name}")(*given, None)


@pytest.fixture(scope="module")
def native(tmp_path_factory) -> ctypes.CDLL:

    return ctypes.CDLL(
        str(emulated(layers.Path(layers.__file__).parent / "layers.cu", tmp_path_factory.mktemp("layers")))
    )


@pytest.mark.parametrize("width", [16, 12, 7])
@pytest.mark.parametrize("key", [None, -11])
def test_the_cuda_source_computes_what_the_cpu_does(native, width, key):
    torch.manual_seed(2)
    of, ids, table, own = made(width, 0.3)
    key = None if key is None else torch.tensor([key])
    theirs = Emulated(of, native)
    table, hidden = table.bfloat16(), torch.randn(60, width).bfloat16()
    for h, mine, named, layer in ((table, own, ids[0], 0), (hidden, None, ids[1], 1), (hidden, None, ids[1], 2)):
        wanted, kept = of._self_and_mean(h.float(), mine, named, layer, key)
        found, mask = theirs._self_and_mean(h, mine, named, layer, key)
        torch.testing.assert_close(found.float(), wanted, rtol=1e-2, atol=1e-2)
        assert (mask is None) == (layer == 0 or key is None)
        if mask is not None and kept is not None:
            read = torch.cat([torch.arange(len(named)), named[named >= 0].long()]).unique()
            pack = width // mask.shape[1]
            bits = (mask[:, :, None] >> torch.arange(pack) & 1).bool().reshape(kept.shape)
            assert torch.equal(bits[read], kept[read])
    edges = torch.ones(1, dtype=torch.int64)
    theirs.count_picked(ids[0], edges)
    assert int(edges) == 1 + int((ids[0] >= 0).sum())
    grad = torch.randn(20, 2 * width).bfloat16()
    (way,) = transposed(of, ids[1:2], [60])
    (other,) = transposed(theirs, ids[1:2], [60])
    assert torch.equal(way.offsets, other.offsets)
    assert torch.equal(way.inverse, other.inverse)
    for begin, end in zip(way.offsets[:-1].tolist(), way.offsets[1:].tolist(), strict=True):
        assert way.entries[begin:end].sort().values.equal(other.entries[begin:end].sort().values)
    if key is None:
        return  # nothing goes backward in evaluation
    passed = layers.Passed([], [], [], [], of.drop)
    kept, mask = (one._self_and_mean(h, None, ids[1], 1, key)[1] for one, h in ((of, hidden.float()), (theirs, hidden)))
    wanted = of._gather_gradient(grad.float(), way, kept, passed)
    found = theirs._gather_gradient(grad, other, mask, passed).float()
    torch.testing.assert_close(found, wanted, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("classes", [3, 172])
@pytest.mark.parametrize("unlabelled", [0.0, 0.4, 1.0])
def test_the_cuda_source_has_the_loss_and_its_gradient(native, classes, unlabelled):
    torch.manual_seed(3)
    theirs = Emulated(made(8, 0.3)[0], native)
    logits = (4 * torch.randn(300, classes)).bfloat16()
    labels = torch.where(torch.rand(300) < unlabelled, -1, torch.randint(classes, (300,)))
    shares, grad = theirs.softmax_gradient(logits, labels)
    wide = logits.float().requires_grad_()
    loss = Objective("classes").loss(wide, labels)
    assert float(shares.sum()) == pytest.approx(float(loss.detach()), rel=1e-5)
    torch.testing.assert_close(grad.float(), torch.autograd.grad(loss, wide)[0], rtol=1e-2, atol=1e-6)


@pytest.mark.parametrize("peers", [1, 2, 3])
@pytest.mark.parametrize("together", [1, 4])
def test_the_cuda_source_makes_adams_steps_and_leaves_out_those_of_batches_that_do_not_fit(native, peers, together):
    torch.manual_seed(4)
    of, *_ = made(8, 0.3, *((12, 5) if together == 4 else (9, 4)))
    assert (len(of.flat) % 4 == 0) == (together == 4)
    theirs = Emulated(of, native)
    theirs.rounded = torch.empty_like(theirs.flat, dtype=torch.bfloat16)
    copied = theirs.flat.clone().requires_grad_()
    wanted, rate = torch.optim.Adam([copied], lr=0.02), torch.tensor(0.02)
    mine = torch.optim.Adam(of.model.parameters(), lr=0.02)
    theirs.adopt(mine)
    losses, flags, finished, key = torch.zeros(8), torch.zeros(8), torch.zeros(1).long(), torch.tensor([7])
    fits = {"fits": [5, 8], "does not fit": [5, 9], "exact": None, "idle": None}
    for number, (name, totals) in enumerate([*fits.items(), *fits.items()]):
        gradient = torch.randn(len(theirs.flat))
        parts = [theirs.gradient, *(torch.randn(len(theirs.gradient)) for _ in range(peers - 1))]
        theirs.gradients_at = torch.tensor([part.data_ptr() for part in parts])
        for part in parts[1:]:
            part[-1] = 0
        theirs.gradient[:-1] = 2 * gradient - sum(part[:-1] for part in parts[1:])  # of two ranks
        room = None if totals is None else (torch.tensor(totals).int(), torch.tensor([5, 8]).int())
        theirs.close_batch(
            torch.tensor([1.0, number]), room, torch.tensor(float(name == "idle")), rate, finished, losses
        )
        if peers > 1:
            parts[-1][-1], theirs.gradient[-1] = (
                float(theirs.gradient[-1]),
                0,
            )  # a batch that did not fit is left out by all
        before = theirs.flat.clone()
        theirs.adam(finished, key, flags, 2)
        left_out = name in ("does not fit", "idle")
        assert (float(losses[number]), float(flags[number])) == (1 + number, left_out)
        if left_out:
            assert torch.equal(theirs.flat, before)
        else:
            copied.grad = gradient
            wanted.step()
    assert (int(finished), int(key)) == (8, 15)
    torch.testing.assert_close(theirs.flat, copied.detach(), rtol=1e-5, atol=1e-5)
    assert torch.equal(theirs.rounded, theirs.flat.bfloat16())
    state = [mine.state[weight] for pair in zip(of.model.own, of.model.neighbours, strict=True) for weight in pair]
    assert torch.equal(torch.cat([held["exp_avg"].flatten() for held in state]), theirs.first)
    assert all(float(held["step"]) == 4 for held in state)


def test_ranks_meet_by_signals_in_one_anothers_memory(native):
    theirs = [torch.zeros(3, dtype=torch.int32) for _ in range(3)]
    at, met = torch.tensor([there.data_ptr() for there in theirs]), torch.zeros(1, dtype=torch.int32)
    for round_ in (1, 2, 3):
        theirs[1][0], theirs[1][2] = round_, round_ + 1  # one of the others is ahead
        native.layers_meet(
            *(ctypes.c_void_p(tensor.data_ptr()) for tensor in (at, met)), *map(ctypes.c_int64, (1, 3)), None
        )
        assert int(met) == round_
        assert [there.tolist() for there in theirs] == [[0, round_, 0], [round_, round_, round_ + 1], [0, round_, 0]]


def test_a_checkpoints_moments_are_gone_on_from():
    of, *_ = made(8, 0.3)
    saved = torch.optim.Adam(of.model.parameters(), lr=0.02)
    of.gradient[:-1] = torch.randn(len(of.flat))
    saved.step()
    other, *_ = made(8, 0.3)
    loaded = torch.optim.Adam(other.model.parameters(), lr=0.02)
    loaded.load_state_dict(saved.state_dict())
    other.adopt(loaded)
    other.adopt(loaded)
    assert float(other.made) == 1
    torch.testing.assert_close(other.first, 0.1 * of.gradient[:-1])
