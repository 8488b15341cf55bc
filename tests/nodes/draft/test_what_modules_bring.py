"""What users' modules bring along that a draft may get wrong: state, views, choices, odd names, what comes in and goes out."""

import functools
import re
from collections.abc import Callable

import pytest
import torch

from compiler import draft
from compiler.draft import traced
from tests.nodes.draft.direct import HEADER, Pair, check_group, groups, native_source, problem

BATCH = "torch.randn(5, 37)"
SHIFTED = "self.register_buffer('a', torch.arange(6.0)); self.register_buffer('b', torch.ones(6))"
RIGHT = {
    "any and all of choices": problem(
        "return torch.all((x > 0) | (y > 0), 1), torch.where(z, x > 1, y > 1).any(1), ((x > 0) & (y > 0)).any(0)",
        f"[{BATCH}, {BATCH}, torch.rand(5, 37) < 0.5]",
    ),
    "a choice that decides a choice": problem(
        "m = torch.triu(torch.ones(7, 7, dtype=torch.bool, device=x.device), 1)\n"
        "return x.masked_fill(m, float('-inf')).softmax(-1)", "[torch.randn(4, 7, 7)]",
    ),
    "more of the end than there is": problem("return x[:, -256:].tanh(), x[:, -40:-30] * 2", f"[{BATCH}]"),
    "as many of the end as another has": problem(
        "return torch.cat((y, x))[-x.shape[0]:] * 2 + x", "[torch.randn(5, 37), torch.randn(7, 37)]"
    ),
    "bytes that wrap": problem(
        "return (x - y).float(), (x + y) > 100, -x, x * y, x.to(torch.int8) + 100",
        "[torch.randint(0, 256, (5, 37), dtype=torch.uint8), torch.randint(0, 256, (5, 37), dtype=torch.uint8)]",
    ),
    "a number beside floats": problem("return x == y, torch.where(x > y, x, -x)", "[torch.randint(0, 10, (5, 37)).float() / 10, 0.3]"),
    "log of a sigmoid, in double": problem("return F.logsigmoid(30 * x)", "[torch.randn(5, 37, dtype=torch.float64)]"),
    "a weight as old code makes one": problem(
        "return self.g * x", f"[{BATCH}]",
        "self.g = nn.Parameter(torch.Tensor(1, 37))\nself.g.data.fill_(1.5)",
    ),
    "old state comes out": problem(
        "before = self.a.clone()\nself.a.copy_(x.mean(0))\nreturn x - before, before", "[torch.randn(5, 6)]", SHIFTED
    ),
    "state that is turned": problem("self.a.copy_(self.a.flip(0) + x.sum(0))\nreturn x * self.a", "[torch.randn(5, 6)]", SHIFTED),
    "a ring of state": problem("self.a.copy_(self.a.roll(1))\nself.a[0] = x.mean()\nreturn x + self.a", "[torch.randn(5, 6)]", SHIFTED),
    "states that change places": problem(
        "t = self.a.clone()\nself.a.copy_(self.b)\nself.b.copy_(t)\nreturn x * self.a", "[torch.randn(5, 6)]", SHIFTED
    ),
    "a quotient of sizes": problem(
        "n = x.numel() / x.shape[1]\nreturn (x - x.mean(0)).square().mean(0) * (n / (n - 1))", "[torch.randn(9, 6)]"
    ),
    "axes as numbers of a tensor": problem(
        "last = torch.arange(3) - 3\nreturn x - x.mean(torch.arange(1, x.dim()).tolist(), keepdim=True), "
        "x.amax(torch.arange(1, 3, device=x.device).tolist()) + last.sum()", "[torch.randn(4, 5, 6)]",
    ),
    "complex numbers put among others": problem(
        "z = torch.fft.rfft(x)\nw = torch.zeros(5, 6, 4, dtype=z.dtype)\n"
        "for k in range(3):\n    w[:, :, k] = torch.einsum('bi,io->bo', z[:, :, k], self.a[:, :, k].to(z.dtype))\n"
        "w[1:3] = torch.where(z[1:3].real > 0, z[1:3], w[1:3] * 1j)\nreturn torch.fft.irfft(w)",
        "[torch.randn(5, 6, 6)]",
        "self.a = nn.Parameter(torch.randn(6, 6, 3, dtype=torch.complex64))",
    ),
    "arithmetic of complex numbers": problem(
        "z = torch.view_as_complex(x) * torch.polar(torch.ones_like(y), y)\n"
        "w = (z.conj() + z * (2 - 1j)).unsqueeze(1).transpose(0, 1) * self.a[:1]\n"
        "return torch.view_as_real(z), torch.view_as_real(w), z.abs(), (z * z.real).imag, torch.complex(y, y.flip(0)).exp().real",
        "[torch.randn(5, 7, 2), torch.rand(7)]",
        "self.register_buffer('a', torch.randn(7, dtype=torch.complex64))",
    ),
    "data of a tensor": problem("v, at = torch.sort(x, 0)\nreturn (x[at.data[:, 0]] * v).sum(0)", f"[{BATCH}]"),
    "how many there are": problem(
        "found = (x > 0).nonzero()[:, 0]\n"
        "return x.new_tensor([len(found), len(x)]) * 2, x[found].exp()", "[torch.randn(40)]",
    ),
    "state that a part assigns": problem(
        "return self.part(x), self.part(x) * 2", "[torch.randn(5, 6)]",
        "class Part(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.register_buffer('mean', torch.zeros(6))\n"
        "    def forward(self, x):\n"
        "        old = self.mean\n"
        "        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)\n"
        "        return x - self.mean, old\n"
        "self.part = Part()",
    ),
    "an input that is changed": problem(
        "y.add_(x)\nreturn y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6), y", f"[{BATCH}, {BATCH}]"
    ),
    "the mean of all batches": problem(
        "return F.relu6(self.norm(x))", "[torch.randn(8, 6, 5)]", "self.norm = nn.BatchNorm1d(6, momentum=None)"
    ),
    "an input that a library changes under another shape": problem(
        "y = x.view(-1, 2, 4)\ny[:, :1] = torch.sort(y[:, :1], -1)[0]\nreturn y.exp().sum(1)", "[torch.randn(5, 8)]"
    ),
    "a weight that is no contiguous one": problem("return torch.relu(x * self.w)", f"[{BATCH}]", "self.w = nn.Parameter(torch.rand(37, 5).t())"),
    "tensors and numbers in a dict": problem(
        "return {'out': x['x'] * x['mask'][..., None] * x['gain'], 'sum': (x['x'] ** 2).sum(-1) * z, 'mode': y}",
        "[{'x': torch.randn(5, 7, 3), 'mask': torch.rand(5, 7) < 0.5, 'gain': 1.5}, 'mean', 2]",
    ),
    "a state in a tuple": problem("h, (c, n) = x\nreturn torch.tanh(h) * y, (c + h.sum(), n)", f"[({BATCH}, ({BATCH}, torch.randn(3))), {BATCH}]"),
    "the batch comes out": problem("return torch.relu(x), x.shape[0] * 2", f"[{BATCH}]"),
    "complex numbers": problem(
        "z = torch.view_as_complex(x) * torch.polar(torch.ones_like(y), y) * 1j\n"
        "return torch.view_as_real(z), z.abs() * 2, z.conj().real + z.conj().imag, torch.fft.ifft(torch.fft.fft(z) * z).real.tanh(), z",
        "[torch.randn(5, 8, 2), torch.rand(8)]",
    ),
    "floats of eight bits": problem("return (x * 0.5).to(torch.float8_e4m3fn).float() * 2", f"[{BATCH}]"),
    "a number that is read": problem("return x * x.mean().item() + y.max().item()", f"[{BATCH}, torch.randint(0, 9, (4,))]"),
    "a decomposition": problem("return torch.linalg.cholesky(x @ x.mT + torch.eye(4)) * 2", "[torch.randn(6, 4, 4)]"),
    "a roll of the batch": problem("return 0.7 * x + 0.3 * x.roll(1, 0), x.roll(-1, 0) * x.roll(3, 0)", f"[{BATCH}]"),
    "every other row": problem("a, b = x[1::2].chunk(2, 0)\nreturn a * 2, b.exp()", "[torch.randn(8, 37)]"),
    "casts of a device": problem(
        "with torch.autocast(x.device.type, dtype=torch.bfloat16):\n    y = self.layer(x)\nreturn y.float().softmax(-1)",
        f"[{BATCH}]", "self.layer = nn.Linear(37, 8)",
    ),
    "a tensor that is not beside its input": problem(
        "hot = torch.zeros(x.shape)\nhot.scatter_(1, y, 1)\nreturn (hot * x.sigmoid()).sum(1)", "[torch.randn(4, 6), torch.randint(0, 6, (4, 1))]"
    ),
    "a number of the CPU's in a tensor": problem(
        "m = y >= self.table\nreturn x.masked_fill(m, torch.tensor(-torch.inf)).softmax(-1)",
        f"[{BATCH}, torch.rand(5, 37)]", "self.register_buffer('table', torch.linspace(0.2, 1, 37))",
    ),
    "draws for what lies otherwise in memory": problem(
        "return F.dropout(torch.softmax(x.transpose(1, 2) * 2, -1), 0.4, True) + 1", "[torch.randn(3, 8, 5)]"
    ),
    "losses of a batch, row by row": problem(
        "return F.cross_entropy(x.transpose(1, 2).reshape(-1, 4), y.view(-1), reduction='none') * 2", "[torch.randn(3, 4, 6), torch.randint(0, 4, (3, 6))]"
    ),
}  # fmt: skip


ALONE = (
    "casts of a device", "a number that is read", "complex numbers", "a decomposition", "a tensor that is not beside its input",
    "a number of the CPU's in a tensor", "draws for what lies otherwise in memory", "losses of a batch, row by row",
)  # fmt: skip
"""What is as it was written, or exported otherwise, is so as a whole."""


@pytest.mark.parametrize("names", groups(RIGHT, ALONE), ids=" | ".join)
def test_the_draft_agrees_with_eager(names, tmp_path):
    def check(text: str) -> None:
        pair = Pair(text, tmp_path)
        for seed in (0, 1):
            pair.check(seed, pair.inputs(seed))

    check_group(RIGHT, names, check)


OUT = "from typing import NamedTuple\n\n\nclass Out(NamedTuple):\n    logits: torch.Tensor\n    most: torch.Tensor\n"
DATA = "import dataclasses\n\n\n@dataclasses.dataclass\nclass Data:\n    logits: torch.Tensor\n    most: torch.Tensor\n"


def test_what_comes_out_is_of_the_problems_classes(tmp_path):
    forward = "z = Out(logits=torch.tanh(x), most=x.amax(1))\nreturn z if y > 0 else Data(logits=z.logits, most=z.most)"
    for sign, name in (("2.0", "Out"), ("-2.0", "Data")):
        text = problem(forward, f"[{BATCH}, {sign}]")
        pair = Pair(HEADER + OUT + DATA + text.removeprefix(HEADER), tmp_path)
        given = pair.inputs(0)
        ours, theirs = pair.candidate.ModelNew()(*given), pair.reference.Model()(*given)
        assert type(ours).__name__ == name
        torch.testing.assert_close(ours.logits, theirs.logits)
        assert torch.equal(ours.most, theirs.most)


def test_an_ordered_dict_comes_out_as_one(tmp_path):
    text = problem("return collections.OrderedDict(b=torch.relu(x), a=x.sum())", f"[{BATCH}]")
    pair = Pair("import collections\n" + text, tmp_path)
    ours = pair.candidate.ModelNew()(*pair.inputs(0))
    assert type(ours).__name__ == "OrderedDict" and list(ours) == ["b", "a"]


def test_what_a_mask_chooses_is_drafted_as_far_as_it_goes(tmp_path):
    """How many there are is the call's matter, none at all included."""
    pair = Pair(
        problem("y = x[x > 0]\nreturn y.exp() * 2, torch.masked_select(x, x < -1).sum()", f"[{BATCH}]"),
        tmp_path,
    )
    (x,) = pair.inputs(0)
    for scale in (1.0, 0.0):
        pair.check(0, [x * scale])
    cuda = native_source(draft.draft(problem("return x[x > 0].exp()", f"[{BATCH}]"), "cuda"), "cuda")
    assert "if (rows == 0) return;" in cuda.partition("own_exp(")[2]  # no grid is that small


EXPERTS = problem(
    "share, chosen = torch.topk(F.softmax(self.router(x), dim=-1), 2, dim=-1)\nout = torch.zeros_like(x)\n"
    "for number, expert in enumerate(self.experts):\n    token, slot = torch.where(chosen == number)\n"
    "    if token.numel() == 0:\n        continue\n"
    "    out.index_add_(0, token, F.gelu(expert(x[token])) * share[token, slot, None])\nreturn out",
    "[torch.randn(24, 8)]",
    "self.router, self.experts = nn.Linear(8, 4), nn.ModuleList(nn.Linear(8, 8) for _ in range(4))",
)  # fmt: skip


def test_experts_are_drafted_and_one_without_tokens_is_skipped(tmp_path):
    pair = Pair(EXPERTS, tmp_path)
    assert "erff" in native_source(pair.source, "cpu") and "return self.as_written(x)" in pair.source
    pair.check(0, pair.inputs(0))
    pair.check(0, pair.inputs(0, leading=1), as_written=True)


COUNTS = {
    "a counter that a loop is long by": (
        "self.calls = 0",
        "self.calls += 1\nreturn sum(x * n for n in range(self.calls))",
    ),
    "a list": ("self.seen = []", "self.seen.append(1)\nreturn x * len(self.seen)"),
    "a choice that turns": ("self.odd = True", "y = x * 2 if self.odd else x\nself.odd = not self.odd\nreturn y"),
    "a count that is compared": ("self.calls = 0", "self.calls += 1\nreturn x * 2 if self.calls > 2 else x"),
}


@pytest.mark.parametrize("name", COUNTS)
def test_what_forward_counts_is_no_constant(name):
    constructor, forward = COUNTS[name]
    with pytest.raises(draft.NoDraft, match="would take for a constant"):
        draft.draft(problem(forward, f"[{BATCH}]", constructor), "cpu")


COUNTED = {
    "in front": (
        "self.rate, self.calls = 0.9, 0",
        "self.calls += 1\nreturn x / (1 - self.rate ** self.calls)",
        "calls",
    ),
    "behind": ("self.calls = 1", "y = x * self.calls\nself.calls = self.calls * 2 + 1\nreturn y", "calls"),
    "a share that shrinks": (
        "self.share = 0.5",
        "self.share *= 0.9\nreturn self.share * x.tanh() + (1 - self.share) * x",
        "share",
    ),
    "between its readers": (
        "self.calls = 1",
        "y = x / self.calls\nself.calls += 1\nreturn y * self.calls // 2",
        "calls",
    ),
    "what somebody else reads": (
        "self.calls = 0\nself.part = lambda x: x * self.calls",
        "self.calls += 1\nreturn self.part(x)",
        "calls",
    ),
    "beside integers": (
        "self.calls = 3",
        "self.calls = 7 - self.calls\nreturn (x > 0) + self.calls, x * self.calls",
        "calls",
    ),
    "a first time": (
        "self.first = True",
        "y = x * 2 if self.first else x\nself.first = False\nreturn y.exp()",
        "first",
    ),
}


@pytest.mark.parametrize("name", COUNTED)
def test_a_number_that_forward_counts_is_counted_in_python(name, tmp_path):
    constructor, forward, attribute = COUNTED[name]
    pair = Pair(problem(forward, f"[{BATCH}]", constructor), tmp_path)
    eager, ours = pair.reference.Model(), pair.candidate.ModelNew()
    for seed in range(4):
        (x,) = pair.inputs(seed)
        torch.testing.assert_close(ours(x), eager(x))
        assert getattr(ours, attribute) == getattr(eager, attribute)


ARGUMENTS = ["float", "this", "λ", "main", "M_PI", "uint8_t", "c_in", "NAN", "Model"]


def test_arguments_may_have_any_name(tmp_path):
    names = ", ".join(ARGUMENTS)
    text = (
        problem("return x", "[x]")
        .replace("self, x", f"self, {names}")
        .replace("return x", f"return {' + '.join(ARGUMENTS)}")
    )
    text = text.replace(
        "return [x]",
        f"return [torch.randn(5, 37) for _ in range({len(ARGUMENTS) - 3})] + [2.5] + [torch.randn(37)] * 2",
    )
    pair = Pair(text, tmp_path)
    pair.check(0, pair.inputs(0))


@pytest.mark.parametrize("change", ["axes += 1", "axes[0] = 1", "torch.add(axes, 1, out=axes)"])
def test_numbers_that_were_changed_are_not_the_ones_that_were_made(change):
    text = problem(f"axes = torch.arange(1)\n{change}\nreturn x.sum(axes.tolist()).exp()", "[torch.randn(4, 5)]")
    with pytest.raises(draft.NoDraft):
        draft.draft(text, "cpu")


def test_what_is_scripted_is_drafted_as_python(tmp_path):
    """torch.jit.script asks for the file that a text was read from, so the text beside which the draft is run has none of it."""
    plain = problem("return gated(x, self.part(x))", f"[{BATCH}]", "self.part = Part()")
    gated = "def gated(x, y):\n    return torch.tanh(x) * torch.sigmoid(y)\n\n\n"
    part = "class Part({}):\n    def forward(self, x):\n        return x.square()\n\n\n"
    scripted = plain.replace(
        "class Model", f"@torch.jit.script\n{gated}{part.format('torch.jit.ScriptModule')}class Model"
    )
    scripted = scripted.replace(
        "    def forward(self, x):\n        return x.square",
        "    @torch.jit.script_method\n    def forward(self, x):\n        return x.square",
    )
    scripted = scripted.replace("= Part()", "= torch.jit.script(Part())")
    plain = plain.replace("class Model", f"{gated}{part.format('nn.Module')}class Model")
    assert native_source(draft.draft(scripted, "cpu"), "cpu") == native_source(draft.draft(plain, "cpu"), "cpu")


def test_a_file_may_begin_oddly_and_model_inherit_its_forward(tmp_path):
    gate = "class Gate(nn.Module):\n    def forward(self, x, y):\n        return torch.sigmoid(x) * x * y\n\n\n"
    head = "from __future__ import annotations\nimport math, torch\nfrom torch import nn\n\n\n"
    ends = f"\n\ndef get_inputs():\n    return [{BATCH}, 1.5]\n\n\ndef get_init_inputs():\n    return []\n"
    sources = []
    for model in ("Model = Gate\n", "class Model(Gate):\n    pass\n"):
        text = head + gate + model + ends
        pair = Pair(text, tmp_path)
        pair.check(0, pair.inputs(0))
        sources.append(draft.draft("\ufeff" + text, "cpu") == pair.source and "def forward(self, x, y)" in pair.source)
    assert sources == [True, True]


def test_layers_in_a_plain_list_are_found_where_they_are():
    layers = "self.layers = [nn.Linear(37, 37), nn.LayerNorm(37)]"
    source = draft.answer(
        problem("for layer in self.layers:\n    x = torch.tanh(layer(x))\nreturn x", f"[{BATCH}]", layers), "cpu"
    )["source"]
    assert "self.layers[0].weight" in source
    assert "self.layers[1].weight" in source
    assert "torch.tensor(" not in source


def test_keys_of_a_dict_stand_in_its_order():
    """Not in that of a set, which differs from process to process."""
    inputs = ", ".join(f"'{key}': torch.randn(3)" for key in "gbdface")
    assert "x.keys() != {'g', 'b', 'd', 'f', 'a', 'c', 'e'}" in draft.draft(
        problem("return sum(x.values())", f"[{{{inputs}}}]"), "cpu"
    )


def test_what_is_left_out_stays_left_out(tmp_path):
    text = problem("return x * 2 if y is None else x * y", f"[{BATCH}, None]").replace(
        "self, x, y", "self, x, y=None, *more, z=1, **named"
    )
    pair = Pair(text, tmp_path)
    (x, _), model = pair.inputs(0), pair.candidate.ModelNew()
    for given in ({"y": None}, {"y": x}, {"z": 2}, {"w": 1}):
        assert torch.equal(model(x, **given), pair.reference.Model()(x, **given))


MASKED = problem("return torch.cumsum(x * y, 1) * z", f"[{BATCH}, torch.rand(5, 37) < 0.5, 2.5]")
STATE = problem(
    "h, c = x\nreturn h * y['gain'] + c.sum(-1, keepdim=True)",
    f"[({BATCH}, torch.randn(5, 3)), {{'gain': torch.rand(37)}}]",
)
OTHERS = {
    "a mask as floats": (MASKED, lambda x, y, z: [x, y.float(), z]),
    "doubles": (MASKED, lambda x, y, z: [x.double(), y, z]),
    "one dimension more": (MASKED, lambda x, y, z: [x[None], y[None], z]),
    "no dimension but one": (MASKED.replace("cumsum(x * y, 1)", "cumsum(x * y, -1)"), lambda x, y, z: [x[0], y[0], z]),
    "none at all": (problem("return x.exp()", f"[{BATCH}]"), lambda x: [x[0, 0]]),
    "fewer columns": (MASKED, lambda x, y, z: [x[:, :5], y[:, :5], z]),
    "one row for all": (MASKED, lambda x, y, z: [x, y[:1], z]),
    "an integer for a float": (problem("return x * y", "[torch.arange(5), 2.5]"), lambda x, y: [x, 2]),
    "a tensor for a float": (MASKED, lambda x, y, z: [x, y, torch.tensor(2.5, dtype=torch.float64)]),
    "a number for a tensor": (problem("return torch.tanh(x) * y", f"[{BATCH}, {BATCH}]"), lambda x, y: [x, 3.0]),
    "another number": (problem("return torch.tanh(x).sum(y)", f"[{BATCH}, 1]"), lambda x, y: [x, 0]),
    "a tensor for a number": (problem("return torch.tanh(x) * y", f"[{BATCH}, 3]"), lambda x, y: [x, torch.arange(37)]),
    "something for nothing": (problem("return x * 2 if y is None else x + y", f"[{BATCH}, None]"), lambda x, y: [x, x]),
    "sparse": (problem("return (x * 2).to_dense() + 1", f"[{BATCH}]"), lambda x: [x.relu().to_sparse()]),
    "a list for a tuple": (STATE, lambda x, y: [list(x), y]),
    "more in a tuple": (problem("return sum(x).tanh()", f"[({BATCH}, {BATCH})]"), lambda x: [(*x, x[0])]),
    "more in a dict": (problem("return sum(x.values()).tanh()", f"[{{'a': {BATCH}}}]"), lambda x: [x | {"b": x["a"]}]),
    "another key": (problem("return sum(x.values()).tanh()", f"[{{'a': {BATCH}}}]"), lambda x: [{"b": x["a"]}]),
    "a tensor for a tuple": (problem("return x[0].tanh()", f"[({BATCH},)]"), lambda x: [torch.stack([*x, *x])]),
}  # fmt: skip


CLASSES = problem(
    "total = x.new_zeros(())\nfor c in range(3):\n    mine = (y == c).float()\n    if mine.sum() == 0:\n        continue\n"
    "    total = total + (x * mine).square().sum() / mine.sum()\nreturn total",
    "[torch.randn(40, 30), torch.randint(0, 3, (40, 30))]",
)  # fmt: skip
WAYS = problem("if x.shape[0] > 4:\n    return torch.tanh(x) * 2\nreturn torch.sigmoid(x) * 3", f"[{BATCH}]")
ANYWHERE = problem("return self.layer(x[1:]).relu(), x.tanh()", "[torch.randn(8, 8)]", "self.layer = nn.Linear(8, 8)")
ODD = problem("return torch.sign(x), torch.sgn(x) + 0", f"[{BATCH}]")
ALL = problem("return sum(x).tanh()", f"[{BATCH}, {BATCH}]").replace("self, x, y", "self, *x")
CALLS = {
    "more of many": (ALL, lambda x, y: [x, y, x], True),
    "fewer of many": (ALL, lambda x, y: [x], True),
    "the sign of NaN": (ODD, lambda x: [x.index_put((torch.tensor(0), torch.tensor([0, 1])), torch.tensor([float("nan"), -0.0]))], False),
    "every other column": (ANYWHERE, lambda x: [x.repeat(1, 2)[:, ::2]], False),
    "turned in memory": (ANYWHERE, lambda x: [x.t().contiguous().t()], False),
    "a slice of more": (ANYWHERE, lambda x: [torch.stack([x] * 3, 1)[:, 1]], False),
    "as many rows as decide the other way": (WAYS, lambda x: [x[:4]], True),
    "more rows": (WAYS, lambda x: [x.repeat(2, 1)], False),
    "a size of one that the module asks for": (problem("y = x * 2\nreturn y.squeeze(0)", f"[{BATCH}]"), lambda x: [x[:1]], True),
    # no class 2: a division by zero, where the module skips it
    "values that choose otherwise": (CLASSES, lambda x, y: [x, y % 2], True),
    "a choice that is taken of its tensor as a number": (problem(
        "if y is not None and (y > 1).any().item():\n    x = x.masked_fill(y > 1, 0.5)\nreturn x * 2",
        "[torch.randn(40, 30), torch.randint(0, 3, (40, 30))]",
    ), lambda x, y: [x, y % 2], True),
}  # fmt: skip
"""A module, another call of it, and whether Model's own forward answers that."""


@pytest.fixture(scope="module")
def drafted(tmp_path_factory) -> Callable[[str], Pair]:
    """The pair of a text, which agrees for what it was drafted for."""

    @functools.cache
    def pair(text: str) -> Pair:
        made = Pair(text, tmp_path_factory.mktemp("drafted"))
        made.check(0, made.inputs(0))
        return made

    return pair


@pytest.mark.parametrize("name", CALLS)
def test_another_call_is_answered_by_the_kernels_or_by_the_modules_own_operators(name, drafted):
    text, change, as_written = CALLS[name]
    pair = drafted(text)
    assert text != CLASSES or pair.source.count(".item()") == 3
    pair.check(0, change(*pair.inputs(0)), as_written=as_written)


@pytest.mark.parametrize("name", OTHERS)
def test_what_was_not_drafted_for_is_answered_by_the_modules_own_operators(name, drafted):
    """KernelBench casts masks and targets to float; whoever calls a module may do anything that Model takes."""
    text, change = OTHERS[name]
    pair = drafted(text)
    pair.check(0, change(*pair.inputs(0)), as_written=True)


def test_what_the_module_does_not_take_is_refused_in_its_own_words(tmp_path):
    pair = Pair(problem("return torch.tanh(x @ y)", "[torch.randn(5, 6), torch.randn(6, 7)]"), tmp_path)
    x, y = pair.inputs(0)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        pair.candidate.ModelNew()(x, y[:5])


EMBEDDED = problem("return self.table(x).tanh()", "[torch.randint(0, 11, (5, 7))]", "self.table = nn.Embedding(11, 13)")


def test_a_module_of_other_weights_is_answered_by_its_own_operators(tmp_path):
    """The inputs are integers as before: only the weights say that it has been cast."""
    pair = Pair(EMBEDDED, tmp_path)
    (x,), model = pair.inputs(0), pair.candidate.ModelNew().double()
    assert torch.equal(model(x), model.table(x).tanh())


def test_under_autocast_the_modules_own_operators_answer(tmp_path):
    """A library's product would come out in bfloat16, which a kernel behind it reads as float32."""
    text = problem("return torch.tanh(self.layer(x)) * 2", f"[{BATCH}]", "self.layer = nn.Linear(37, 8)")
    pair = Pair(text, tmp_path)
    (x,), model = pair.inputs(0), pair.candidate.ModelNew()
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(model(x), model.as_written(x))


@pytest.mark.parametrize("name", ["torch.autocast", "getattr(torch, 'auto' + 'cast')"])
def test_autocast_of_a_gpu_casts_as_a_gpu_does(name):
    """Whatever the module's text calls it."""
    text = problem(
        f"with {name}(x.device.type, dtype=torch.bfloat16):\n"
        "    y = self.norm(self.layer(x))\n"
        "    z = F.gelu(self.layer(y))\n"
        "    soft = z.softmax(-1)\n    with torch.autocast('cuda', enabled=False):\n        plain = self.layer(x)\n"
        "return y, z, soft, plain",
        "[torch.randn(5, 37)]",
        "self.layer, self.norm = nn.Linear(37, 37), nn.LayerNorm(37)",
    )
    source = draft.answer(text, "cuda")["source"]
    made = dict(re.findall(r"(\w+?)(?:_\d+)? = torch.empty\(.*dtype=torch\.(\w+)", source))
    assert made["layer_norm"] == made["softmax"] == "float32" and made["gelu"] == "bfloat16", made
    with torch.autocast("cpu", dtype=torch.bfloat16):  # the CPU's is its own again
        assert torch.randn(3, 4, dtype=torch.bfloat16).softmax(-1).dtype is torch.bfloat16


def test_a_tensor_that_model_keeps_as_a_plain_attribute_comes_along(tmp_path):
    """Model.to() leaves it where it is, and type_as moves it; a kernel was given the CPU's."""
    text = problem(
        "self.mean = self.mean.type_as(x)\nreturn (x - self.mean).tanh()", f"[{BATCH}]", "self.mean = torch.rand(37)"
    )
    assert "self.mean.to(device)" in draft.draft(text, "cuda")
    text = problem("return (x - self.mean).tanh()", f"[{BATCH}]", "self.mean = torch.rand(37)")
    assert "self.mean.to(device)" in draft.draft(text, "cuda")
    text = problem("return x * self.table[3:40]", f"[{BATCH}]", "self.table = torch.rand(5000)")
    part = "self.table.as_strided((37, ), (1, ), self.table.storage_offset() + 3).to(device)"
    assert part in draft.draft(text, "cuda"), "what a call does not read is not copied in each"
    Pair(text, tmp_path).check(0, [torch.randn(5, 37)])


def test_a_part_under_compile_is_found_whether_its_compiler_is_turned_off_or_not(tmp_path, monkeypatch):
    text = problem(
        "return torch.tanh(self.part(x)) * 2",
        f"[{BATCH}]",
        "self.part = torch.compile(nn.Sequential(nn.Linear(37, 8), nn.GELU()))",
    )
    for folder in ("on", "off"):
        (tmp_path / folder).mkdir()
    Pair(text, tmp_path / "on").check(0, [torch.randn(5, 37)])
    monkeypatch.setattr(torch, "compile", lambda part: part)  # as a worker has it
    Pair(text, tmp_path / "off").check(0, [torch.randn(5, 37)])


def test_a_line_is_divided_by_a_product_of_open_sizes(tmp_path):
    """Heads in front of the batch: the quotient of a line was one of its first factor, times the second."""
    text = problem(
        "b = x.shape[0]\nreturn x.view(b, 20, 2, 16).permute(2, 0, 1, 3).contiguous().view(-1, 20, 16).exp()",
        "[torch.randn(3, 20, 32)]",
    )
    pair = Pair(text, tmp_path)
    pair.check(0, pair.inputs(0))
    pair.check(0, pair.inputs(0, leading=7))


@pytest.mark.parametrize("draw", ["torch.randn_like(t)", "torch.rand_like(t)", "torch.bernoulli(t)"])
def test_what_is_drawn_for_elements_goes_to_them_as_they_lie_in_memory(draw, tmp_path):
    pair = Pair(problem(f"t = x.transpose(1, 2).sigmoid()\nreturn t + {draw}", "[torch.randn(3, 5, 37)]"), tmp_path)
    for leading in (3, 1):
        x = pair.inputs(0, leading)[0]
        torch.manual_seed(7)
        theirs = pair.reference.Model()(x)
        torch.manual_seed(7)
        torch.testing.assert_close(pair.candidate.ModelNew()(x), theirs)


def test_what_is_read_of_a_tensor_stays_where_the_exporter_would_drop_it():
    """torch 2.11 drops a choice that only Python's `if` has asked for; it lies in a graph without users, as here."""

    class Reads(torch.nn.Module):
        def forward(self, x):
            torch._check((x > 0).sum().item() >= 0)
            return x * 2

    exported = torch.export.export(Reads(), (torch.rand(3),), strict=False)
    for node in reversed(exported.graph.nodes):
        if node.op == "call_function" and not node.users and not str(node.target).startswith("aten.item"):
            exported.graph.erase_node(node)
    assert [node for node in exported.graph.nodes if "item" in str(node.target) and not node.users]
    table = torch.export.default_decompositions()
    kept = traced._decomposed(exported, table).graph
    kept.eliminate_dead_code()
    assert any("_local_scalar_dense" in str(node.target) for node in kept.nodes)


def test_a_choice_behind_a_draw_is_asked_and_its_other_way_draws_the_same(tmp_path):
    """As torch.distributions validate what they are given and what they have drawn."""
    text = problem(
        "d = torch.distributions.Normal(x[:, :8].tanh(), x[:, 8:].sigmoid())\nz = d.rsample()\n"
        "if (z.abs() > y).any():\n    z = z.clamp(-0.1, 0.1)\nreturn z.tanh() * 2, d.log_prob(z).sum(-1)",
        "[torch.randn(6, 16), torch.full((), 100.0)]",
    )
    pair = Pair(text, tmp_path)
    for y in (100.0, 0.0):
        given = [pair.inputs(0)[0], torch.full((), y)]
        found = []
        for model in (pair.reference.Model(), pair.candidate.ModelNew()):
            torch.manual_seed(7)
            found.append((*model(*given), torch.rand(())))
        torch.testing.assert_close(*found)
