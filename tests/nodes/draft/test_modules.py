"""Small modules of every group that a draft has kernels for, beside eager: two draws, and another leading size."""

import re

import pytest

from compiler import draft
from tests.nodes.draft.direct import Pair, check_group, groups, native_source, problem

BATCH = "torch.randn(5, 37)"
IMAGE = "torch.randn(3, 6, 9, 10)"
MODULES = {
    "chain": problem("return torch.tanh(F.gelu(x) * 2 + y) / (1 + x.abs())", f"[{BATCH}, torch.randn(37)]"),
    "activations": problem(
        "return F.mish(x) + F.selu(x) - F.softplus(x) * F.hardswish(x) + F.leaky_relu(x, 0.2) + F.elu(x) + F.silu(x)",
        f"[{BATCH}]",
    ),
    "a number that stays open": problem("return x * y + y", f"[{BATCH}, 2.5]"),
    "transposed": problem("return torch.relu(x.t()) + y", f"[{BATCH}, torch.randn(37, 5)]"),
    "concatenated and padded": problem("return F.pad(torch.cat([x, x * 2], dim=1), (1, 2), value=3.0)", f"[{BATCH}]"),
    "a size that is multiplied and divided again": problem(
        "parts = x.view(x.shape[0] * 4, -1)\nreturn torch.relu(parts).view(int(parts.shape[0] / (8 / 2)), 2, -1).sum(dim=1)",
        "[torch.randn(5, 36)]",
    ),
    "triangle": problem("return torch.tril(x @ x.transpose(-1, -2), -1)", "[torch.randn(3, 7, 5)]"),
    "einsums": problem(
        # three operands; no sum; sums of all of it, of one operand's own axis; one slice for all others
        "return torch.einsum('bln, bl, blp -> bpn', x, x[..., 0], y), torch.einsum('bln, blp -> lnbp', x, y), "
        "torch.einsum('bln, bln ->', x, x), torch.einsum('bln, blp -> b', x, y), torch.einsum('bln, bl -> bn', x[:1], y[..., 0])",
        "[torch.randn(5, 40, 16), torch.randn(5, 40, 7)]",
    ),
    "all of it": problem("return x.mean(), x.sum(), x.max(), x.prod()", "[torch.rand(3, 5) + 0.5]"),
    "a long sum": problem("return x.sum(), x.abs().mean(dim=0), x.var(dim=1)", "[torch.randn(2, 9001) + 3]"),
    "extremes and places": problem(
        "values, places = x.max(dim=1)\nreturn values, places, x.argmin(dim=2), x.min(dim=0).values",
        "[torch.randint(0, 4, (4, 6, 33)).float()]",
    ),
    "places and moments in long rows": problem(
        "return x.argmax(dim=1), x.argmin(dim=1), x.std(dim=1), torch.logsumexp(x, dim=1), F.layer_norm(x, (2500,)).sum(dim=1)",
        "[torch.randint(-9, 9, (3, 2500)).float()]",
    ),
    "windows at the edges": problem(
        "return F.avg_pool1d(x, 5, 1, 2), F.max_pool1d(x, 3, 2, 1), self.filter(x)",
        "[torch.randn(2, 4, 75)]",
        "self.filter = nn.Conv1d(4, 4, 4, padding=3, groups=4)",
    ),
    "softmax of channels": problem("return F.softmax(x, dim=1) + torch.logsumexp(x, dim=(2, 3), keepdim=True)", f"[{IMAGE}]"),
    "softmax of long rows": problem("return torch.softmax(x, dim=1)", "[torch.randn(2, 17001) * 3]"),
    "layer norm": problem("return self.norm(x)", "[torch.randn(3, 4, 33) * 2 + 5]", "self.norm = nn.LayerNorm((4, 33))"),
    "group and instance norm": problem(
        "return self.group(x) + self.instance(x)", f"[{IMAGE}]",
        "self.group, self.instance = nn.GroupNorm(3, 6), nn.InstanceNorm2d(6, affine=True)",
    ),
    "norm of long rows": problem("return self.norm(x)", "[torch.randn(2, 3, 17000) + 9]", "self.norm = nn.GroupNorm(1, 3)"),
    "RMS norm": problem("return self.norm(x)", f"[{BATCH}]", "self.norm = nn.RMSNorm(37)"),
    "unit length": problem("return F.normalize(x, dim=1) + x / x.norm(p=1, dim=0)", f"[{BATCH}]"),
    "batch norm that learns": problem("return F.relu(self.norm(x))", f"[{IMAGE}]", "self.norm = nn.BatchNorm2d(6)"),
    "batch norm that is done": problem("return self.norm(x)", f"[{IMAGE}]", "self.norm = nn.BatchNorm2d(6).eval()"),
    "losses": problem(
        "return F.mse_loss(x, y), F.smooth_l1_loss(x, y), F.huber_loss(x, y, delta=0.3), F.l1_loss(x, y)",
        f"[{BATCH}, {BATCH}]",
    ),
    "divergence": problem("return F.kl_div(torch.log(x), y, reduction='batchmean')", "[torch.rand(5, 37), torch.rand(5, 37)]"),
    "cross entropy with weights": problem(
        "w = self.w\nreturn F.cross_entropy(x, y, w), F.cross_entropy(x, y, w, ignore_index=3, reduction='sum'), F.nll_loss(F.log_softmax(x, 1), y, w)",
        f"[{BATCH}, torch.randint(0, 37, (5,))]", "self.register_buffer('w', torch.rand(37) + 0.1)",
    ),
    "cross entropy that is smoothed": problem(
        "return (F.cross_entropy(x, y, label_smoothing=0.1), F.cross_entropy(x + 1e4, y, label_smoothing=0.3, ignore_index=3, reduction='sum'),\n"
        "    F.cross_entropy(x, y, self.w, label_smoothing=0.2))",
        f"[{BATCH}, torch.randint(0, 37, (5,))]", "self.register_buffer('w', torch.rand(37) + 0.1)",
    ),
    "triplets": problem("return F.triplet_margin_loss(x, y, z)", f"[{BATCH}, {BATCH}, {BATCH}]"),
    "hinge": problem("return torch.clamp(1 - x * y, min=0).mean()", f"[{BATCH}, torch.randn(37).sign()]"),
    "max pools": problem(
        "return F.max_pool2d(x, 3, 2, 1), F.max_pool2d(x, 2, 2, ceil_mode=True), F.max_pool2d(x, 2, 1, dilation=2)", f"[{IMAGE}]"
    ),
    "average pools": problem(
        "return F.avg_pool2d(x, 3, 2, 1), F.adaptive_avg_pool2d(x, (3, 5)), F.adaptive_avg_pool2d(x, 1)", f"[{IMAGE}]"
    ),
    "gathers": problem(
        "return self.table(x).mean(dim=1), self.table.weight[x[:, 0]]", "[torch.randint(0, 11, (5, 7))]",
        "self.table = nn.Embedding(11, 13)",
    ),
    "depthwise": problem(
        "return F.relu(self.conv(x))", f"[{IMAGE}]", "self.conv = nn.Conv2d(6, 12, (3, 2), padding=(1, 0), stride=2, groups=6)"
    ),
    "behind a convolution": problem(
        "return torch.tanh(self.conv(x)).amax(dim=1, keepdim=True)", f"[{IMAGE}]", "self.conv = nn.Conv2d(6, 8, 3)"
    ),
    "a vector": problem("return x @ y", f"[{BATCH}, torch.randn(37)]"),
    "numbers in forward": problem("return torch.minimum(x, torch.tensor(0.25, device=x.device))", f"[{BATCH}]"),
    "dropout of nothing": problem("return F.dropout(x, 0.0) * 2", f"[{BATCH}]"),
    "live dropout": problem("return F.relu(F.dropout(x, 0.4))", f"[{BATCH}]"),
    "nothing but a product": problem("return x @ y", "[torch.randn(70, 37), torch.randn(37, 131)]"),
    "nothing but a convolution": problem(
        "return self.conv(x)", f"[{IMAGE}]", "self.conv = nn.Conv2d(6, 4, 3, stride=2, padding=1, groups=2, dilation=2)"
    ),
    "nothing but a transposed convolution of groups": problem(
        "return self.conv(x)", "[torch.randn(2, 4, 3, 4, 5)]",
        "self.conv = nn.ConvTranspose3d(4, 6, (2, 3, 1), stride=(2, 1, 2), padding=(1, 0, 0), groups=2, dilation=(2, 1, 1))",
    ),
    "nothing but attention": problem(
        "return F.scaled_dot_product_attention(x, y, z, is_causal=True)",
        "[torch.randn(2, 3, 9, 8), torch.randn(2, 3, 9, 8), torch.randn(2, 3, 9, 8)]",
    ),
    "names that C has": problem(
        "return torch.maximum(x, y) * self.long.exp() + torch.minimum(x, y)", f"[{BATCH}, {BATCH}]",
        "self.long = nn.Parameter(torch.rand(37))",
    ),
    "slices that are written": problem(
        "y = torch.zeros_like(x)\ny[:, 3:20] = x[:, :17]\ny[1:, 5::3] += 1\ny[:, -4:] *= x[:, :1]\ny[:] = y * 2 + x\nreturn y", f"[{BATCH}]"
    ),
    "copies side by side": problem(
        "return x.repeat(2, 3) + 1, x[:, :1].repeat(1, 37) * x, torch.tanh(x).repeat(2, 1, 2)", f"[{BATCH}]"
    ),
    "windows that overlap": problem("return x.unfold(1, 5, 2).mean(-1), torch.tanh(x).unfold(1, 4, 3) * 2", f"[{BATCH}]"),
    "windows that are added up": problem(
        "at = torch.arange(11, device=x.device).unfold(0, 4, 1).reshape(-1)\nreturn torch.zeros_like(x[:, :11]).index_add(1, at, torch.tanh(x[:, :32])) * 2",
        f"[{BATCH}]",
    ),
    "a view comes out": problem("y = torch.relu(x)\nreturn y.view(-1), [y[:, :3], x]", f"[{BATCH}]"),
}  # fmt: skip


FIXED = ("chain", "hinge", "a vector", "transposed", "nothing but a product", "nothing but attention")
"""Modules whose inputs' leading sizes depend on one another's."""
ALONE = (*FIXED, *(name for name in MODULES if name.startswith("nothing but") and name not in FIXED))
"""With another module beside it, one that is nothing but a library's product would stay the library's."""


@pytest.mark.parametrize("names", groups(MODULES, ALONE), ids=" | ".join)
def test_a_draft_agrees_with_eager(names, tmp_path):
    def check(text: str) -> None:
        pair = Pair(text, tmp_path)
        for seed in (0, 1):
            pair.check(seed, pair.inputs(seed))
        if not set(names) & set(FIXED):
            pair.check(2, pair.inputs(2, leading=4, scale=0.5))

    check_group(MODULES, names, check)


def test_odd_values_come_out_as_from_eager(tmp_path):
    text = problem(
        "return torch.relu(x), x.amax(dim=1), F.hardtanh(x), x.softmax(dim=1), torch.logsumexp(x, dim=1), x.argmax(dim=1)",
        "[torch.randn(4, 33)]",
    )
    pair = Pair(text, tmp_path)
    for values in (0.0, float("nan"), float("inf"), -float("inf")):
        (x,) = pair.inputs(0)
        x[1, 5], x[2, :] = values, values
        pair.check(0, [x])


def test_odd_values_in_long_rows_come_out_as_from_eager(tmp_path):
    """Blocks of a row are joined: one that is nothing but infinities, NaN in the last."""
    pair = Pair(
        problem(
            "return torch.logsumexp(x, dim=1), x.argmax(dim=1), x.argmin(dim=1), x.softmax(dim=1)",
            "[torch.randn(5, 2100)]",
        ),
        tmp_path,
    )
    for values in (float("nan"), float("inf"), -float("inf")):
        (x,) = pair.inputs(0)
        x[0, :1100], x[1, 2090:], x[2, 3], x[3, 3], x[3, 2000] = values, values, values, values, values
        pair.check(0, [x])


def test_an_open_number_is_read_from_the_call(tmp_path):
    pair = Pair(MODULES["a number that stays open"], tmp_path)
    x, _ = pair.inputs(0)
    pair.check(0, [x, -7.25])


PIECES = problem(
    "return torch.cat([torch.relu(self.one(x)), torch.relu(self.two(x)), torch.tanh(self.three(x))], dim=1)",
    "[torch.randn(3, 4, 16, 16)]",
    "self.one, self.two, self.three = nn.Conv2d(4, 5, 1), nn.Conv2d(4, 6, 1), nn.Conv2d(4, 7, 1)",
)


def test_what_is_not_chosen_is_not_read():
    """Where it lies may be nobody's memory: of three pieces the last two were looked at for every element of the second."""
    kernel = native_source(draft.draft(PIECES, "cpu"), "cpu").partition('extern "C"')[2]
    assert kernel.count("conv2d") > 3 and not re.search(r"float v\d+ = [^;?]*\[", kernel), kernel


@pytest.mark.parametrize("stride", [2, 1], ids=["apart", "overlapping"])
def test_what_windows_read_once_is_computed_where_it_is_read(stride) -> None:
    norm = problem(
        f"return F.max_pool2d(self.norm(x), 2, {stride})", "[torch.empty(256, 8, 64, 64)]", "self.norm = nn.GroupNorm(2, 8)"
    )  # fmt: skip
    pool = native_source(draft.draft(norm, "cuda"), "cuda").partition("own_max_pool2d_kernel(")[2].partition(")")[0]
    assert ("norm_weight" in pool) == (stride == 2)


EINSUM = "return torch.relu(torch.einsum('{}', x, y))"


@pytest.mark.parametrize(
    ("equation", "steps", "own"),
    [
        ("blhp, blhn -> bhpn", 64, True),  # a library would copy both, heads first
        ("blp, bln -> bpn", 64, False),  # a batch of matrices as it lies
        ("bhpl, blhn -> bhpn", 64, False),  # neighbours along the sum
        ("blhp, blhn -> bhpn", 512, False),  # many products
    ],
)
def test_who_computes_an_einsum(equation, steps, own) -> None:
    many = steps == 512
    sizes = {"b": 4096, "h": 2, "l": steps, "p": 512 if many else 32, "n": 512 if many else 16}
    inputs = [tuple(sizes[letter] for letter in side.strip()) for side in equation.split("->")[0].split(",")]
    text = problem(EINSUM.format(equation), f"[torch.empty({inputs[0]}), torch.empty({inputs[1]})]")
    source = draft.draft(text, "cuda")
    assert (("sum_1 +=" in native_source(source, "cuda")), "aten.einsum" not in source) == (own, own)


def test_a_fold_of_a_whole_tensor_keeps_a_device_busy_where_the_leading_size_is_a_quarter() -> None:
    answer = draft.answer(problem("return x / x.norm()", "[torch.empty(112, 64, 64, 64)]"), "cuda")
    parts = answer["kernels"][0]["summary"]
    assert parts.endswith("* 64 rows of 4096"), parts


@pytest.mark.parametrize(("images", "by_warps"), [(64, False), (1, True)], ids=["many windows", "few windows"])
def test_a_window_of_many_is_folded_by_a_thread(images, by_warps) -> None:
    """Its pieces of 11 neighbours are too short for a warp; rows of 121 neighbours are not."""
    window = draft.draft(problem("return F.avg_pool2d(x, 11)", f"[torch.empty({images}, 64, 121, 121)]"), "cuda")
    row = draft.draft(problem("return x.mean(dim=(2, 3))", f"[torch.empty({images}, 8192, 11, 11)]"), "cuda")
    assert ("warp_fold(sum" in window) is by_warps and "warp_fold(sum" in row


@pytest.mark.parametrize(
    ("body", "shape", "by_warps"),
    [
        ("x.softmax(-1)", (40, 30), True),
        ("x.softmax(-1)", (40000, 30), False),  # a thread to each row keeps a device busy
        ("x.softmax(-1)", (40, 9), False),
        ("F.avg_pool2d(x, 5, 1)", (2, 4, 12, 12), False),  # windows that overlap
    ],
)
def test_few_short_rows_are_folded_by_a_warp_each(body, shape, by_warps) -> None:
    source = draft.draft(problem(f"return {body} * 2", f"[torch.empty{shape}]"), "cuda")
    assert ("= warp_fold(" in source) is by_warps


def test_the_parts_of_few_columns_are_joined_by_a_warp_each() -> None:
    text = problem("return self.norm(x)", "[torch.empty(32, 20, 28, 28)]", "self.norm = nn.BatchNorm2d(20)")
    join = (
        native_source(draft.draft(text, "cuda"), "cuda")
        .partition("legit_functional_2_kernel(")[2]
        .partition("\n}\n")[0]
    )
    assert "= warp_fold(" in join
