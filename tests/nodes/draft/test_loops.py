"""Loops of many steps: one step is drafted, and forward's own loop calls it."""

import ast

import pytest

from compiler import draft
from compiler.draft import loops
from compiler.draft.tensors import NoDraft
from tests.nodes.draft.direct import Pair, problem

KEPT = {
    "scan": problem(
        # what a step slices out lies in one piece; a list is filled; the state goes on
        "a, b = torch.exp(-x.abs()).unsqueeze(-1), self.into(x)\n"
        "h, outs = torch.zeros(x.shape[0], 8, 3, dtype=x.dtype), []\n"
        "for t in range(x.shape[1]):\n"
        "    h = a[:, t] * h + b[:, t].unsqueeze(-1)\n"
        "    outs.append((h * self.weigh).sum(-1))\n"
        "return torch.stack(outs, 1), h",
        "[torch.randn(2, 20, 8)]",
        "self.into = nn.Linear(8, 8)\nself.weigh = nn.Parameter(torch.randn(3))",
    ),
    "layers": problem(
        # a list of states, a tensor that is filled, pieces of a tensor, backwards
        "states = [x.new_zeros(x.shape[1], 6), x.new_zeros(x.shape[1], 6)]\n"
        "out = x.new_zeros(x.shape[0], x.shape[1], 6)\n"
        "for t in reversed(range(len(x))):\n"
        "    given = x[t]\n"
        "    for layer, state in enumerate(states):\n"
        "        given = torch.sigmoid(self.of_x[layer](given)) * torch.tanh(self.of_h[layer](state))\n"
        "        states[layer] = given + state\n"
        "    out[t] = given\n"
        "return out, states",
        "[torch.randn(18, 3, 6)]",
        "self.of_x = nn.ModuleList(nn.Linear(6, 6) for _ in range(2))\nself.of_h = nn.ModuleList(nn.Linear(6, 6) for _ in range(2))",
    ),
    "pieces": problem(
        "h = y\nfor step, piece in enumerate(x.unbind(1)):\n    h = F.softplus(h + piece) - torch.sigmoid(h)\nreturn h",
        "[torch.randn(3, 30, 5), torch.randn(3, 5)]",
    ),
}
UNROLLED = {
    "a step's number": "h = x[:, 0]\nfor t in range(16):\n    h = torch.sin(h * (t + 1)) + x[:, t]\nreturn h",
    "a filler that is asked": "outs = []\nfor t in range(16):\n    if len(outs) < 9:\n        outs.append(torch.sin(x[:, t]))\nreturn sum(outs)",
}


@pytest.fixture(autouse=True)
def few_are_many(monkeypatch):
    monkeypatch.setattr(loops, "MANY", 10)


@pytest.mark.parametrize("name", KEPT)
def test_a_draft_whose_loop_stays_agrees_with_eager(name, tmp_path):
    pair = Pair(KEPT[name], tmp_path)
    model = next(n for n in ast.parse(pair.source).body if isinstance(n, ast.ClassDef) and n.name == "ModelNew")
    (forward,) = (n for n in model.body if isinstance(n, ast.FunctionDef) and n.name == "forward")
    assert sum(isinstance(n, ast.For) for n in ast.walk(forward)) == 1 and ".step(" in ast.unparse(forward)
    assert "stays a loop" in pair.answer["notes"][0] and len(pair.answer["kernels"]) <= 6
    for seed in (0, 1):
        pair.check(seed, pair.inputs(seed))


@pytest.mark.parametrize("name", UNROLLED)
def test_a_step_that_is_no_function_of_tensors_is_followed(name, tmp_path):
    text = problem(UNROLLED[name], "[torch.randn(3, 16)]")
    assert loops.loop_of(text, None) is None
    pair = Pair(text, tmp_path)
    pair.check(0, pair.inputs(0))


def test_a_loop_that_can_neither_stay_nor_be_followed_is_told_at_once(monkeypatch):
    monkeypatch.setattr(loops, "TOO_MANY", 40)
    text = problem("t = 0\nwhile t < 100:\n    x = torch.sin(x)\n    t += 1\nreturn x", "[torch.randn(3, 4)]")
    with pytest.raises(NoDraft, match="functions of torch.*with fewer steps"):
        draft.answer(text, "cpu")
