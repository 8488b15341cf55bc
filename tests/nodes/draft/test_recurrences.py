"""Recurrent layers as kernels of our own: beside eager in C++, and in CUDA block by block, where blocks wait for each other."""

import re
import shutil

import pytest
import torch

from compiler import draft
from compiler.draft import lower_recurrent, recurrences
from tests.nodes.draft import direct
from tests.nodes.draft.direct import Pair, _close, _leaves, module, native_source, problem
from tests.nodes.rewrites.emulate import emulation
from tests.nodes.rewrites.emulate.tensor_cores import translated

LAYERS = problem(
    # layers, one of them narrower than four; directions of more rows than are taken together; a layer alone
    "layers, gru = self.layers(x, self.first)\nboth, (lstm, state) = self.both(y, (self.ends, self.ends))\nreturn layers, gru, both, lstm, state, self.alone(z, self.start)",
    "[torch.randn(6, 3, 12), torch.randn(13, 5, 7), torch.randn(4, 2, 5)]",
    "self.first, self.start = nn.Parameter(torch.randn(3, 3, 20)), nn.Parameter(torch.randn(1, 2, 9))\n"
    "self.ends = nn.Parameter(torch.randn(4, 13, 10))\n"
    "self.layers, self.both = nn.GRU(12, 20, 3), nn.LSTM(7, 10, 2, batch_first=True, bidirectional=True, bias=False)\n"
    "self.alone = nn.RNN(5, 9, nonlinearity='relu')",
)
LOOP = problem(
    "steps = []\nfor step in range(x.shape[1]):\n    y = torch.tanh(self.take(torch.cat([y, x[:, step]], dim=1)))\n"
    "    steps.append(self.give(y))\nreturn torch.stack(steps, dim=1), y",
    "[torch.randn(3, 8, 5), torch.randn(3, 8)]",
    "self.take, self.give = nn.Linear(13, 8), nn.Linear(8, 4)",
)
KEEPS = problem(
    "self.state.copy_(y)\nself.state = torch.tanh(self.state + x)\nreturn self.state * 2",
    "[torch.randn(3, 5), torch.randn(3, 5)]",
    "self.state = torch.zeros(3, 5)",
)


def test_layers_are_right(tmp_path):
    layers = Pair(LAYERS, tmp_path)
    assert "torch.ops.aten.gru" not in layers.source and "torch.ops.aten.lstm" not in layers.source
    for seed in (1, 2):
        layers.check(seed, layers.inputs(seed))


def test_steps_may_be_more_or_fewer(tmp_path):
    text = problem(
        "return self.layer(x, self.start)[0]", "[torch.randn(5, 2, 3)]",
        "self.layer, self.start = nn.GRU(3, 6), nn.Parameter(torch.randn(1, 2, 6))",
    )  # fmt: skip
    pair = Pair(text, tmp_path)
    assert "aten.gru" not in pair.source
    for steps in (1, 2, 9):
        pair.check(steps, pair.inputs(steps, leading=steps))


def emulated(text: str, folder, multiprocessors: int, monkeypatch, numerics: str = "fp32"):
    """The problem's module, Model and the draft's ModelNew for a device of so many multiprocessors, its kernels emulated."""
    monkeypatch.setattr(recurrences, "MULTIPROCESSORS", multiprocessors)
    monkeypatch.setenv("EMULATE_MULTIPROCESSORS", "8")
    reference, source = module(text), draft.draft(text, "cuda", numerics=numerics)
    built = emulation.library(translated(native_source(source, "cuda")), folder)
    new = direct.emulated(source, built)
    made = []
    for model in (reference.Model, new.ModelNew):
        torch.manual_seed(0)
        made.append(model())
    return reference, source, *made


def check(eager, new, inputs) -> None:
    with torch.no_grad():
        ours, theirs = _leaves(new(*inputs)), _leaves(eager(*inputs))
        exact = _leaves(eager.double()(*[x.double() for x in inputs]))
        eager.float()
    for mine, other, right in zip(ours, theirs, exact, strict=True):
        assert mine.shape == other.shape
        _close(mine, other, right)


@pytest.mark.skipif(not shutil.which("g++"), reason="the emulation needs g++")
@pytest.mark.parametrize("multiprocessors", [8, 132])
def test_blocks_that_wait_for_each_other_are_right(multiprocessors, tmp_path, monkeypatch):
    """For a device of eight, so that several blocks share a layer, each warp's weights in registers; and for a larger one than there
    is, where blocks take 32 units."""
    reference, source, eager, new = emulated(LAYERS, tmp_path, multiprocessors, monkeypatch)
    assert "Cell::gru, 20, 3, 3, true, false, false, 10, true>" in source or multiprocessors == 132
    torch.manual_seed(3)
    inputs = reference.get_inputs()
    check(eager, new, inputs)
    monkeypatch.setenv("EMULATE_BACKWARDS", "1")
    check(eager, new, inputs)


def to_tf32(x: torch.Tensor) -> torch.Tensor:
    """To the nearest of 11 significant bits, of two as near to the even one; float64."""
    bits = x.float().contiguous().view(torch.int32)
    return ((bits + 0xFFF + (bits >> 13 & 1)) & ~0x1FFF).view(torch.float32).double()


@pytest.mark.skipif(not shutil.which("g++"), reason="the emulation needs g++")
@pytest.mark.parametrize("of_before", [True, False])
def test_a_grus_operands_are_rounded_where_cudnn_rounds_them(of_before, tmp_path, monkeypatch):
    """Inputs, and what the layer below made, always; what was a step before by size."""
    assert [lower_recurrent.rounds_before("gru", 10, units) for units in (100, 256, 512)] == [False, True, False]
    monkeypatch.setattr(lower_recurrent, "rounds_before", lambda *_: of_before)
    units = 20
    text = problem("return self.layer(x)[0]", "[torch.randn(5, 3, 16)]", f"self.layer = nn.GRU(16, {units}, 2)")
    reference, _, eager, new = emulated(text, tmp_path, 8, monkeypatch, "eager")
    (x,) = reference.get_inputs()
    before = to_tf32 if of_before else torch.Tensor.double
    below, layer = x, eager.layer
    with torch.no_grad():
        for number in range(2):
            of_input, recurrent = (getattr(layer, f"weight_{which}_l{number}") for which in ("ih", "hh"))
            biases = [getattr(layer, f"bias_{which}_l{number}").double() for which in ("ih", "hh")]
            hidden, made = torch.zeros(3, units), []
            for step in below:
                r, z, n = (to_tf32(step) @ to_tf32(of_input).T + biases[0]).chunk(3, 1)
                r_h, z_h, n_h = (before(hidden) @ before(recurrent).T + biases[1]).chunk(3, 1)
                made_of, kept = torch.tanh(n + torch.sigmoid(r + r_h) * n_h), torch.sigmoid(z + z_h)
                hidden = ((hidden - made_of) * kept + made_of).float()
                made.append(hidden)
            below = torch.stack(made)
        ours, theirs = new(x), eager(x)
    assert (ours - below).abs().max() < 3e-6 < 5e-5 < (theirs - below).abs().max()


@pytest.mark.skipif(not shutil.which("g++"), reason="the emulation needs g++")
def test_what_is_not_a_number_does_not_stop_the_steps(tmp_path, monkeypatch):
    """A value that is not there yet is a NaN, too: one of the input's with the same bits goes on as another."""
    text = problem("return self.layer(x)", "[torch.randn(4, 2, 8)]", "self.layer = nn.GRU(8, 8, 2)")
    reference, _, eager, new = emulated(text, tmp_path, 8, monkeypatch)
    torch.manual_seed(4)
    (x,) = reference.get_inputs()
    x.view(torch.int32)[1, 0, :] = -1
    x[2, 1, 3] = float("inf")
    with torch.no_grad():
        ours, theirs = _leaves(new(x)), _leaves(eager(x))
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, equal_nan=True)
        assert mine.isnan().any()


def test_weights_that_do_not_fit_stay_with_the_library():
    text = problem("return torch.relu(self.layer(x)[0])", "[torch.randn(4, 2, 8)]", "self.layer = nn.LSTM(8, {})")
    assert "recurrence_kernel" in draft.draft(text.format(128), "cuda")
    wide = draft.answer(text.format(2048), "cuda")
    assert "recurrence_kernel" not in wide["source"] and any("left to torch: lstm" in note for note in wide["notes"])


def test_layers_alone_are_refused_where_their_blocks_cannot_run_at_once():
    text = problem(
        "return self.layer(x, y)[0]",
        "[torch.randn(4, 2, 8), torch.randn(5, 2, 1024)]",
        "self.layer = nn.GRU(8, 1024, 5)",
    )
    with pytest.raises(draft.NoDraft, match="stays with a library: gru"):
        draft.draft(text, "cuda")
    fewer = text.replace("1024, 5)", "1024, 4)").replace("(5, 2", "(4, 2")
    assert "1024, 2, 4, true, true, false, 32, false>" in draft.draft(fewer, "cuda")


def test_a_layer_that_starts_from_a_draw_is_computed_once():
    text = problem(
        "return torch.relu(self.layer(x, (torch.randn(1, 2, 8), torch.randn(1, 2, 8)))[0])",
        "[torch.randn(4, 2, 8)]",
        "self.layer = nn.LSTM(8, 8)",
    )
    source = draft.draft(text, "cuda")
    assert "recurrence_kernel" in source and "aten.lstm" not in source


def test_live_dropout_between_layers_stays_with_the_library():
    text = problem(
        "return torch.relu(self.layer(x)[0])", "[torch.randn(4, 2, 8)]", "self.layer = nn.GRU(8, 8, 2, dropout=0.3)"
    )
    assert "recurrence_kernel" not in draft.draft(text, "cuda")


def test_a_loop_over_steps_is_one_kernel(tmp_path, monkeypatch):
    """What forward does step by step with the same weights: a product before, the steps, a product behind."""
    reference, source, eager, new = emulated(LOOP, tmp_path, 8, monkeypatch)
    assert source.count("native.own_") == 1 and source.count("torch.ops.aten.linear.default(") == 2
    torch.manual_seed(5)
    check(eager, new, reference.get_inputs())


LEADING = problem(
    "for step in range(x.shape[0]):\n    y = torch.relu(self.take(torch.cat([x[step], y], dim=1)))\nreturn self.give(y)",
    "[torch.randn(8, 3, 5), torch.randn(3, 8)]",
    "self.take, self.give = nn.Linear(13, 8), nn.Linear(8, 4)",
)
LEADING = re.sub(r"\bx\b", "recurrence", re.sub(r"\by\b", "steps", LEADING))  # names that stand in the text around them


def test_the_steps_of_a_loop_over_the_leading_axis_stay_open(tmp_path):
    pair = Pair(LEADING, tmp_path)
    assert pair.source.count("native.own_") == 1 and "relu" in pair.answer["kernels"][0]["name"]
    for steps in (1, 5, 8, 30):
        pair.check(1, [torch.randn(steps, 3, 5), pair.inputs(1)[1]])


def test_steps_that_make_another_graph_stay_as_many_as_they_are():
    """What the length does beyond numbering the steps is not followed."""
    assert "self.give(steps)" in LEADING
    source = draft.draft(LEADING.replace("self.give(steps)", "self.give(steps) * recurrence.shape[0]"), "cuda")
    assert "Cell::rnn_relu" in source and "(8, 3, 5)" in source


def test_another_loop_is_not_taken_for_one():
    """Backwards, not all of it, with a factor."""
    changes = [
        ("x[:, step]", "x[:, 7 - step]"),
        ("range(x.shape[1])", "range(7)"),
        ("torch.tanh(self.take(", "torch.tanh(2 * self.take("),
    ]
    assert all(old in LOOP for old, _ in changes)
    text = direct.together([LOOP.replace(*change) for change in changes])
    assert "recurrence_kernel" not in draft.draft(text, "cuda")


def test_an_attribute_that_forward_replaces_is_replaced(tmp_path):
    pair = Pair(KEEPS, tmp_path)
    inputs = pair.inputs(1)
    pair.check(1, inputs)
    models = pair.reference.Model(), pair.candidate.ModelNew()
    for model in models:
        model(*inputs)
    assert "register_buffer" not in pair.source
    torch.testing.assert_close(models[1].state, models[0].state)


@pytest.mark.gpu
@pytest.mark.parametrize("text", [LAYERS, LOOP, LEADING, KEEPS], ids=["layers", "loop", "leading", "keeps"])
def test_recurrences_are_right_on_a_gpu(text, tmp_path):
    torch.backends.cudnn.allow_tf32 = False
    pair = Pair(text, tmp_path, "cuda")
    for seed in (1, 2):
        pair.check(seed, pair.inputs(seed))


CELLS = {
    "GRU": ("h = x.new_zeros(x.shape[0], 12)\nouts = []\nfor t in range(x.shape[1]):\n    h = self.cell(x[:, t], h)\n    outs.append(h)\n"
            "return torch.stack(outs, 1), h", "GRUCell(8, 12)"),
    "what a cell holds is read": ("c, outs = y, []\nfor t in range(x.shape[1]):\n    y, c = self.cell(x[:, t], (y, c))\n    outs.append(c)\n"
                                  "return torch.stack(outs, 1).relu()", "LSTMCell(8, 12)"),
}  # fmt: skip


@pytest.mark.parametrize("name", CELLS)
def test_a_loop_over_a_cell_is_a_layer(name, tmp_path):
    forward, cell = CELLS[name]
    given = "[torch.randn(5, 4, 8)]" if name == "GRU" else "[torch.randn(5, 4, 8), torch.randn(5, 12)]"
    pair = Pair(problem(forward, given, f"self.cell = nn.{cell}"), tmp_path)
    assert ("_cell.default" in pair.source) == (name == "what a cell holds is read")
    pair.check(0, pair.inputs(0))
    pair.check(1, pair.inputs(1, leading=3))
