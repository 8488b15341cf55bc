"""Parts that the exporter cannot follow stay with torch, and the rest is drafted."""

import pytest
import torch

from compiler import draft
from tests.nodes.draft.direct import Pair, problem

PART = (
    "class Part(nn.Module):\n"
    "    def __init__(self):\n"
    "        super().__init__()\n"
    "        self.w, self.calls = nn.Parameter(torch.rand(37, 8)), 0\n"
    "    def forward(self, x, y, scale=1.0):\n"
    "        {}\n"
    "self.norm, self.part, self.out = nn.LayerNorm(37), Part(), nn.Linear(8, 5)"
)
INPUTS = "[torch.randn(12, 37), (torch.rand(12, 12) < 0.3).float()]"
SPARSE = (
    "self.calls += 1\n"
    "        at = y.nonzero().t().numpy().tolist()\n"
    "        z = torch.sparse.mm(torch.sparse_coo_tensor(torch.tensor(at), x.new_ones(len(at[0])), y.shape), x @ self.w) * scale\n"
    "        return "
)
RETURNED = {
    "a tensor": ("z", "h = self.part(self.norm(x).exp(), y)\nreturn self.out(h.tanh()).softmax(-1)"),
    "a tuple": (
        "z, x.sum(1)",
        "h, s = self.part(self.norm(x).exp(), y, scale=0.5)\nreturn self.out(h.tanh()) * s[:, None]",
    ),
    "a nest": (
        "{'z': z, 'n': [x.sum(1), 3]}",
        "made = self.part(self.norm(x).exp(), y, 0.5)\nreturn self.out(made['z'].tanh()) * made['n'][0][:, None] * made['n'][1]",
    ),
    "twice": (
        "z",
        "h = self.part(self.norm(x).exp(), y) + self.part(x, y * 2, 2.0)\nreturn self.out(h.tanh()).softmax(-1)",
    ),
}


@pytest.mark.parametrize("name", RETURNED)
def test_a_part_that_no_exporter_follows_is_called(name, tmp_path):
    returned, forward = RETURNED[name]
    pair = Pair(problem(forward, INPUTS, PART.format(SPARSE + returned)), tmp_path)
    assert "self.part(" in pair.source and any("part" in note for note in pair.answer["notes"])
    for seed in range(2):
        pair.check(seed, pair.inputs(seed))
    pair.check(0, [pair.inputs(0)[0], torch.ones(12, 12)])
    eager, ours = pair.reference.Model(), pair.candidate.ModelNew()
    for model in (eager, ours):
        model(*pair.inputs(0))
    assert ours.part.calls == eager.part.calls


def test_a_part_that_returns_another_shape_is_answered_as_written(tmp_path):
    body = "n = int(y.sum().numpy())\n        return x[:n] @ self.w"
    text = problem(
        "return self.out(self.part(self.norm(x).exp(), y).tanh()).softmax(-1)",
        "[torch.randn(12, 37), torch.full((), 5.0)]",
        PART.format(body),
    )
    pair = Pair(text, tmp_path)
    pair.check(0, pair.inputs(0))
    pair.check(0, [pair.inputs(0)[0], torch.full((), 7.0)], as_written=True)


def test_what_the_module_itself_does_so_has_no_draft():
    with pytest.raises(draft.NoDraft, match="cannot follow"):
        draft.draft(problem("return x.exp() * y.numpy().tolist()[0][0]", INPUTS), "cpu")
