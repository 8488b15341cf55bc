"""What forward leaves in attributes of Model and of its parts, and what a part looks at before it sets itself up."""

import copy
import importlib
from unittest.mock import patch

import pytest
import torch

from compiler import draft
from tests.nodes.draft.direct import Pair, problem

BATCH = "torch.randn(5, 37)"
PART = (
    "class Part(nn.Module):\n"
    "    def __init__(self):\n"
    "        super().__init__()\n"
    "        self.last, self.by_name, self.two = None, {{}}, [0, 1]\n"
    "        self.register_buffer('filled', None)\n"
    "        self.old = torch.zeros(1)\n"
    "    def forward(self, x):\n"
    "        {}\n"
    "self.part = Part()"
)
LEFT = {
    "a tensor where was none": "self.last = x.softmax(-1); return self.last * 2",
    "what comes in, and a view": "self.last = x; self.old = (x * 2)[:, :3]; return x.exp()",
    "in a dict and in a list": "self.by_name['x'] = x.tanh(); self.two[1] = x.sum(-1); return self.two[1] + 1",
    "a pair in an attribute that is new": "self.pair = (x.mean(-1), {'n': x.shape[1], 'x': x * 3}); return x.exp()",
    "a tensor of another shape, a buffer that was none": "self.old = x.mean(-1); self.filled = x * x; return x - 1",
    "a mask of sizes": (
        "self.last = x.new_ones(x.shape[1]).cumsum(0) if self.last is None else self.last; return x * self.last"
    ),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_forward_leaves_in_attributes_the_draft_leaves_there(name, tmp_path):
    pair = Pair(problem("return self.part(x) + 1", f"[{BATCH}]", PART.format(LEFT[name])), tmp_path)
    eager, ours = pair.reference.Model(), pair.candidate.ModelNew()
    for seed in range(3):
        pair.check(seed, pair.inputs(seed))
        (x,) = pair.inputs(seed)
        torch.testing.assert_close(ours(x), eager(x))
        for attribute in ("last", "by_name", "two", "pair", "filled", "old"):
            mine, theirs = (getattr(model.part, attribute, None) for model in (ours, eager))
            torch.testing.assert_close(mine, theirs) if theirs is not None else None
            assert (mine is None) == (theirs is None), attribute


REMEMBERED = {
    "a state that is none at first": "self.last = x if self.last is None else self.last * 0.5 + x; return self.last * 2",
    "a cache that grows": "self.last = x if self.last is None else torch.cat((self.last, x)); return self.last * 2",
    "statistics of the first batch": "self.last = x.mean(0) if self.last is None else self.last; return x - self.last",
    "in a dict": "old = self.by_name.get('x'); self.by_name['x'] = x * 2; return x if old is None else x + old",
}


@pytest.mark.parametrize("name", REMEMBERED)
def test_what_the_last_call_has_left_is_no_constant(name):
    with pytest.raises(draft.NoDraft, match="last call has left|would take for a constant"):
        draft.draft(problem("return self.part(x) + 1", f"[{BATCH}]", PART.format(REMEMBERED[name])), "cpu")


def test_a_part_counts_in_its_attributes(tmp_path):
    """It cannot be called without data: a tensor is made beside no input."""
    body = "n = self.two[0]; self.two[0] = n + 1; y = torch.zeros(37) + n; return x * y"
    with pytest.raises(draft.NoDraft, match="would take for a constant"):
        draft.draft(problem("return self.part(x) + 1", f"[{BATCH}]", PART.format(body)), "cpu")
    constructor = PART.format(body.replace("self.two[0]", "self.n")).replace("self.last,", "self.n = 0; self.last,")
    pair = Pair(problem("return self.part(x) + self.part.n", f"[{BATCH}]", constructor), tmp_path)
    eager, ours = pair.reference.Model(), pair.candidate.ModelNew()
    for seed in range(3):
        (x,) = pair.inputs(seed)
        torch.testing.assert_close(ours(x), eager(x))
        torch.testing.assert_close(ours(x.double()), eager(x.double()))  # as written
        assert ours.part.n == eager.part.n == 2 * seed + 2


def test_a_choice_of_a_second_call_is_drafted_where_the_first_sets_up(tmp_path):
    """A buffer says whether its statistics are those of a batch; a tensor is made beside no input, so that the export is one with data."""
    text = problem(
        "if not self.begun:\n    self.mean.copy_(x.mean(0))\n    self.begun.fill_(1.0)\n"
        "return torch.ones(37) * (x - self.mean).exp()",
        f"[{BATCH}]",
        "self.register_buffer('mean', torch.zeros(37)); self.register_buffer('begun', torch.zeros(1))",
    )
    pair = Pair(text, tmp_path)
    pair.check(0, pair.inputs(0), as_written=True)
    eager, ours = pair.reference.Model(), pair.candidate.ModelNew()
    for seed in range(3):
        (x,) = pair.inputs(seed)
        torch.testing.assert_close(ours(x), eager(x))
        torch.testing.assert_close(ours.mean, eager.mean)


def test_inference_mode_is_no_gradients(tmp_path):
    text = problem(
        "with torch.inference_mode():\n    return x.exp() * self.w",
        f"[{BATCH}]",
        "self.w = nn.Parameter(torch.rand(37))",
    )
    text = text.replace("    def forward", "    @torch.inference_mode()\n    def forward")
    Pair(text, tmp_path).check(0, [torch.randn(5, 37)])


def test_a_buffer_that_is_not_saved_lies_beside_a_scripted_function():
    part = "class Part(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.register_buffer('a', torch.ones(37), persistent=False)\n    def forward(self, x):\n        return x * self.a\n"
    assert "self.part.a" in draft.draft(
        problem("return self.part(x).exp()", f"[{BATCH}]", part + "self.part = Part()"), "cpu"
    )


def test_a_table_in_a_plain_attribute_is_no_weight(tmp_path):
    """What is computed of it is not computed by the constructor, where no input says on which device it shall lie."""
    text = problem(
        "self.cache[: x.shape[0]] = x\nreturn x * self.table[:37].view(1, 37).exp() + self.cache[: x.shape[0]]",
        f"[{BATCH}]",
        "self.table, self.cache = torch.rand(40), torch.zeros(8, 37)",
    )
    pair = Pair(text, tmp_path)
    pair.check(0, pair.inputs(0), as_written=None)
    assert "_prepare_weights" not in pair.source


CHANGED = {
    "a weight that is scaled before it is used": (
        "with torch.no_grad():\n    self.w.copy_(self.w / self.w.norm())\nreturn (x * self.w).exp()"
    ),
    "a weight that is read after it has moved": "self.w.data.mul_(0.5).add_(x.mean(0)); return x.exp() * self.w",
    "what a product takes": "self.v.data.copy_(self.v / self.v.sum()); return (x @ self.v).exp()",
}


@pytest.mark.parametrize("name", CHANGED)
def test_a_parameter_that_forward_changes_in_place_changes(name, tmp_path):
    constructor = "self.w, self.v = nn.Parameter(torch.rand(37)), nn.Parameter(torch.rand(37, 6))"
    pair = Pair(problem(CHANGED[name], f"[{BATCH}]", constructor), tmp_path)
    torch.manual_seed(0)
    eager = pair.reference.Model()
    torch.manual_seed(0)
    ours = pair.candidate.ModelNew()
    for seed in range(3):
        pair.check(seed, pair.inputs(seed))
        (x,) = pair.inputs(seed)
        torch.testing.assert_close(ours(x), eager(x))  # with gradients on
        torch.testing.assert_close(type(ours).forward.__wrapped__(ours, x), eager(x))  # in Python
        torch.testing.assert_close(ours.state_dict(), eager.state_dict())


def test_a_type_that_is_asked_for_by_name_is_that_of_the_drafts_device(tmp_path):
    text = problem(
        "y = x.new_zeros(37).type(x.type()) + (x > 0).type(torch.FloatTensor)\n"
        "return (y.exp() if x.type() == 'torch.FloatTensor' else y).type('torch.DoubleTensor'), (x * 9).type(torch.int32)",
        f"[{BATCH}]",
    )
    pair = Pair(text, tmp_path)
    pair.check(0, pair.inputs(0))
    source = draft.draft(
        text.replace("torch.FloatTensor", "torch.cuda.FloatTensor").replace("torch.D", "torch.cuda.D"), "cuda"
    )
    assert "own_" in source and "exp" in source


def test_a_number_that_is_compared_is_asked_anew(tmp_path):
    """Of a part that sets itself up by its first batch; and a share, which the draft goes on with."""
    part = (
        "class Part(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.loc = nn.Parameter(torch.zeros(1, 37))\n"
        "        self.register_buffer('begun', torch.tensor(0, dtype=torch.uint8))\n"
        "        self.register_buffer('share', torch.tensor(0.25))\n"
        "    def forward(self, x):\n"
        "        if self.begun.item() == 0:\n"
        "            self.loc.data.copy_(-x.mean(0, keepdim=True))\n"
        "            self.begun.fill_(1)\n"
        "        share = self.share.item()\n"
        "        return (x + self.loc).exp() * share if share > 0.1 else x\n"
        "self.parts = nn.ModuleList([Part(), Part()])"
    )
    pair = Pair(problem("return self.parts[1](self.parts[0](x))", f"[{BATCH}]", part), tmp_path)
    pair.check(0, pair.inputs(0), as_written=True)
    eager, ours = pair.reference.Model(), pair.candidate.ModelNew()
    for seed, share in enumerate((0.25, 0.5, 0.0, 0.75)):
        (x,) = pair.inputs(seed)
        for model in (eager, ours):
            model.parts[1].share.fill_(share)
        with patch.object(type(ours), "as_written", autospec=True, side_effect=type(ours).as_written) as asked:
            torch.testing.assert_close(ours(x), eager(x))
        assert asked.called == (seed == 0 or share == 0.0)
        torch.testing.assert_close(ours.state_dict(), eager.state_dict())


def test_layers_by_names_that_are_other_places_numbers(tmp_path):
    """As CLIP names them: -1, 0 and 1."""
    text = problem(
        "return self.layers(x).exp()",
        f"[{BATCH}]",
        "from collections import OrderedDict\n"
        "layers = [('-1', nn.ReLU()), ('0', nn.LayerNorm(37)), ('1', nn.Linear(37, 5)), ('a b', nn.LayerNorm(5))]\n"
        "self.layers = nn.Sequential(OrderedDict(layers))",
    )
    pair = Pair(text, tmp_path)
    pair.check(0, pair.inputs(0))


PLAIN = {
    "lists of tuples": (
        "self.flows = [(nn.Linear(37, 37), nn.Sequential(nn.Linear(37, 37))) for _ in range(2)]",
        "for one, other in self.flows:\n    x = other(one(x).exp())\nreturn x.tanh()",
    ),
    "a dict": (
        "self.by_name = {'one': nn.Linear(37, 37), 'two': [nn.Linear(37, 3)]}",
        "return self.by_name['two'][0](self.by_name['one'](x).exp()).tanh()",
    ),
    "a closure": (
        "layer = nn.Linear(37, 5)\nself.own = nn.Linear(5, 5)\nself.part = lambda x: layer(x)",
        "return self.own(self.part(x)).exp()",
    ),
}


@pytest.mark.parametrize("name", PLAIN)
def test_weights_that_the_module_does_not_register_are_no_numbers(name, tmp_path):
    """The drafts had those of the module that was followed."""
    constructor, forward = PLAIN[name]
    text = problem(forward, f"[{BATCH}]", constructor)
    if name == "a closure":
        with pytest.raises(draft.NoDraft, match="does not register"):
            draft.draft(text, "cpu")
        return
    pair = Pair(text, tmp_path)
    torch.manual_seed(0)
    eager = pair.reference.Model()
    torch.manual_seed(0)
    ours = pair.candidate.ModelNew()
    (x,) = pair.inputs(0)
    with torch.no_grad():
        torch.testing.assert_close(ours(x), eager(x), rtol=1e-4, atol=1e-5)


def test_a_weight_that_lies_transposed_is_read_as_it_lies(tmp_path):
    """As qr leaves it: torch takes the determinant of what lies there, and a copy's is off by a rounding."""
    text = problem(
        "return torch.logdet(self.w) * 256, x.exp() @ self.w + (x * self.w[1] + self.v.sum(2)).tanh()",
        "[torch.randn(5, 8)]",
        "w = torch.linalg.qr(torch.randn(8, 8))[0].t().contiguous().t()\n"
        "self.w, self.v = nn.Parameter(w), nn.Parameter(torch.randn(3, 8, 5).permute(2, 1, 0))",
    )
    pair = Pair(text, tmp_path)
    assert ".permute(1, 0)" in pair.source and ".permute(2, 1, 0)" in pair.source
    for seed in range(4):
        torch.manual_seed(seed)
        eager = pair.reference.Model()
        torch.manual_seed(seed)
        ours = pair.candidate.ModelNew()
        (x,) = pair.inputs(seed)
        with torch.no_grad():
            (det, rest), (right, other) = ours(x), eager(x)
        assert torch.equal(det.nan_to_num(7.0), right.nan_to_num(7.0))
        torch.testing.assert_close(rest, other)


def test_how_many_there_are_is_what_comes_later_takes(tmp_path):
    """Places that are kept, eight of them as a rule; a product takes eight."""
    text = problem(
        "best, at = (x @ self.w).topk(8)\nat = at[best > y]\n"
        "if at.size(0) < 8:\n    at = torch.cat([at, at[-1].repeat(8 - at.size(0))])\n"
        "return (x[at].t() @ self.v).exp()",
        "[torch.randn(20, 12), torch.full((), -1e9)]",
        "self.w, self.v = nn.Parameter(torch.rand(12)), nn.Parameter(torch.rand(8, 5))",
    )
    pair = Pair(text, tmp_path)
    x, y = pair.inputs(0)
    pair.check(0, [x, y])
    pair.check(0, [x, (x @ torch.rand(12, generator=torch.Generator().manual_seed(0))).median()], as_written=None)
    torch.manual_seed(0)
    model = pair.reference.Model()
    pair.check(0, [x, (x @ model.w.detach()).topk(4)[0][-1]], as_written=True)


def test_what_forward_sets_on_another_way_is_not_prepared(tmp_path):
    """A part sets its scale by the first batch; where somebody sets it otherwise, a sum of it that the constructor had made was the old one."""
    text = problem(
        "if self.begun.item() == 0:\n    self.scale.data.copy_(x.std(0))\n    self.begun.fill_(1)\n"
        "return x * self.scale, self.scale.abs().log().sum()",
        f"[{BATCH}]",
        "self.scale = nn.Parameter(torch.ones(37)); self.register_buffer('begun', torch.tensor(0))",
    )
    pair = Pair(text, tmp_path)
    model = pair.candidate.ModelNew()
    (x,) = pair.inputs(0)
    with torch.no_grad():
        model.scale.fill_(3.0)
        model.begun.fill_(1)
        torch.testing.assert_close(model(x)[1], torch.full((37,), 3.0).log().sum())


def test_a_module_that_takes_numbers_alone_works_where_its_weights_are(tmp_path):
    text = problem(
        "return F.relu(self.table(torch.LongTensor(x)) * self.w).sum(0)",
        "[[3, 1, 4, 1, 5]]",
        "self.table, self.w = nn.Embedding(9, 37), nn.Parameter(torch.randn(37))",
    )
    pair = Pair(text, tmp_path)
    pair.check(0, pair.inputs(0))
    pair.check(0, [[2, 7, 1]], as_written=True)
    assert "prepared" not in pair.source


def test_a_place_and_a_shift_that_are_read_of_tensors(tmp_path):
    """As Autoformer rolls by its largest correlations; also where a compiler of folders, which knows remainders of integers, is in the process."""
    importlib.import_module("compiler.program")
    text = problem(
        "mean = x.mean(0)\nat = mean.topk(2)[1]\nw = torch.stack([x[:, at[k]] for k in range(2)], -1).softmax(-1)\n"
        "return sum(torch.roll(x, -int(at[k]), -1) * w[:, k, None] for k in range(2)) + x[:, int(y)][:, None]",
        f"[{BATCH}, torch.tensor(3)]",
    )
    pair = Pair(text, tmp_path)
    for seed in range(3):
        pair.check(seed, pair.inputs(seed))
    pair.check(0, [pair.inputs(0)[0], torch.tensor(-2)], as_written=True)


def test_sizes_are_not_left_open_beside_a_tensor_of_no_input(tmp_path):
    """Half of a batch, rounded up, is no size that a draft has; the module makes a tensor on the device of no input."""
    text = problem("return torch.cat([y.softmax(0) for y in x.chunk(2)]) * torch.ones(37)", "[torch.randn(6, 37)]")
    pair = Pair(text, tmp_path)
    pair.check(0, pair.inputs(0))
    pair.check(0, pair.inputs(0, leading=5), as_written=True)


def test_behind_eval_the_modules_own_forward_answers(tmp_path):
    """Batch norm took the batch's statistics, and dropout dropped, whatever mode a user's model was in."""
    pair = Pair(problem("return self.norm(x).exp()", f"[{BATCH}]", "self.norm = nn.BatchNorm1d(37)"), tmp_path)
    eager, ours = pair.reference.Model(), pair.candidate.ModelNew()
    outer = torch.nn.Sequential(ours)
    for mode in (True, False, True):
        eager.train(mode)
        outer.train(mode)
        (x,) = pair.inputs(3)
        torch.testing.assert_close(ours(x), eager(x))
        assert ("forward" in vars(ours)) is not mode
        torch.testing.assert_close(copy.deepcopy(ours)(x), copy.deepcopy(eager)(x))
    plain = Pair(problem("return self.norm(x).exp()", f"[{BATCH}]", "self.norm = nn.LayerNorm(37)"), tmp_path)
    assert "train" not in vars(plain.candidate.ModelNew)
