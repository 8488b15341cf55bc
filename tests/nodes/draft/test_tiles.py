"""Products of our own in CUDA, thread by thread on the CPU: right at odd sizes, and as near to the exact result as float32's own."""

import functools
import re
import shutil
from collections.abc import Callable

import pytest
import torch

from compiler import draft
from compiler.draft import algebra, lower_convolutions, lower_products, thin_tiles, tiles
from tests.nodes.draft.direct import (
    Pair,
    _close,
    _leaves,
    agree_on_what_is_not_finite,
    check_group,
    emulated,
    module,
    native_source,
    problem,
    spilled,
)
from tests.nodes.rewrites.emulate import emulation
from tests.nodes.rewrites.emulate.tensor_cores import translated

MODULES = {
    "products": problem(
        # odd sizes, both transposed; copies of 16 bytes along k and along the places; a batch, a single step
        "return x @ y, y.t() @ x.t(), z @ z.t(), z.t() @ z, torch.bmm(x.view(5, 14, 37), x.view(5, 37, 14)), x[:, :1] @ y[:1]",
        "[torch.randn(70, 37), torch.randn(37, 131), torch.randn(68, 52)]",
    ),
    "few steps": problem(
        # rows and columns beyond a block's, a step beyond eights; a batch; a linear layer's weight, whose steps are neighbours
        "return x @ y, torch.bmm(z[:, :, :20].transpose(1, 2), z), x[:20] @ y.view(1300, 37).t()",
        "[torch.randn(150, 37), torch.randn(37, 1300), torch.randn(2, 8, 1028)]",
    ),
}  # fmt: skip
CONVOLUTIONS = {
    "points": problem(
        "return self.points(x)", "[torch.randn(2, 20, 32, 33)]", "self.points = nn.Conv2d(20, 40, 1, bias=False)"
    ),
    "ordinary": problem(
        # strided in groups, its input channels no multiple of anything; a place alone; dilated, its channels a multiple of a stage's
        "return self.strided(x), self.points(y), self.dilated(z)",
        "[torch.randn(2, 8, 9, 10), torch.randn(2, 12, 6, 6), torch.randn(2, 16, 9, 31)]",
        "self.strided = nn.Conv2d(8, 10, 3, stride=2, padding=1, groups=2, bias=False)\n"
        "self.points = nn.Conv2d(12, 20, 1, bias=False)\n"
        "self.dilated = nn.Conv2d(16, 24, (2, 3), dilation=(1, 2), padding=(0, 3), bias=False)",
    ),
    "transposed": problem(
        # all remainders have taps; in groups, taps further apart than the stride
        "return self.twice(x), self.groups(y)",
        "[torch.randn(2, 12, 5, 6), torch.randn(3, 8, 11)]",
        "self.twice = nn.ConvTranspose2d(12, 4, 3, stride=2, padding=1, output_padding=1, bias=False)\n"
        "self.groups = nn.ConvTranspose1d(8, 6, 4, stride=5, padding=2, dilation=3, groups=2, bias=False)",
    ),
    "transposed volume": problem(
        # a third of the remainders has taps, half of them along another axis, which leaves zeros; the middle one is not strided
        "return self.mixed(x)",
        "[torch.randn(2, 16, 4, 3, 5)]",
        "self.mixed = nn.ConvTranspose3d(16, 5, (2, 3, 3), stride=(3, 1, 4), padding=(0, 1, 1), dilation=(3, 2, 2), bias=False)",
    ),
    "transposed one by one": problem(
        "return self.one(x), self.dilated(y)", "[torch.randn(2, 8, 5, 6), torch.randn(2, 4, 40)]",
        "self.one = nn.ConvTranspose2d(8, 4, (3, 2), padding=(1, 0), bias=False)\n"
        "self.dilated = nn.ConvTranspose1d(4, 5, 4, dilation=3, bias=False)",
    ),
}  # fmt: skip
EXACT = problem(
    # channels in threes, and groups of eight
    "return self.ordinary(x), self.transposed(x), self.groups(y)",
    "[torch.randn(2, 3, 9, 10), torch.randn(2, 16, 11)]",
    "self.ordinary = nn.Conv2d(3, 10, 3, stride=2, padding=1, bias=False)\n"
    "self.transposed = nn.ConvTranspose2d(3, 5, 3, stride=2, bias=False)\n"
    "self.groups = nn.Conv1d(16, 80, 3, groups=2, bias=False)",
)
LONG = problem("return x @ y", "[torch.randn(64, 512), torch.randn(512, 64)]")
THIN = problem("return x @ y", "[torch.randn(64, 64), torch.randn(64, 512)]")
THIN_SIZES = (64, 512)


def source_of(text: str) -> str:
    """Drafted once a process, for tests that have not changed the numbers that it chooses by."""
    numbers = [
        lower_convolutions.PRODUCTS,
        lower_convolutions.LEAST,
        lower_convolutions.FEWEST,
        lower_products.SHORTEST,
        thin_tiles.FEW_BLOCKS,
        thin_tiles.CACHED_BYTES,
    ]
    return _drafted(text, *numbers, lower_products.parts_by_halves, tiles.BUSY_BLOCKS, algebra.SMALLEST_PANELS)


@functools.cache
def _drafted(text: str, *_: object) -> str:
    return draft.draft(text, "cuda")


AS_IT_IS = ("if (!finite)", "if (false)")
"""What is not finite stays: shared memory that was not yet written is NaN in the emulation, and would be made good."""


def models(text: str, folder, *changes: tuple[str, str]):
    """The problem's module, its Model and the draft's, emulated and perhaps with changes in its text."""
    reference, source = module(text), source_of(text)
    native = native_source(source, "cuda")
    assert re.search(r"multiply_t(iles|hin)<|multiply_halves\(|convolve_planes<", native) and "torch.ops" not in source
    for old, new in changes:
        assert old in native
        native = native.replace(old, new)
    built = emulation.library(
        translated(native), folder, emulation.emulation.FLAGS
    )  # a product takes longer than its build
    new = emulated(source, built)
    made = []
    for model in (reference.Model, new.ModelNew):
        torch.manual_seed(0)
        made.append(model())
    return reference, *made


def nearest(x: torch.Tensor) -> torch.Tensor:
    """The nearest TF32 number, halves away from zero."""
    return ((x.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


def untied(x: torch.Tensor) -> torch.Tensor:
    """None half way between two TF32 numbers: which of them is taken has a test of its own."""
    bits = x.view(torch.int32)
    return (bits + (bits & 0x1FFF == 0x1000).int()).view(torch.float32)


def untie(*models: torch.nn.Module) -> None:
    for model in models:
        for parameter in model.parameters():
            parameter.data.copy_(untied(parameter.data))


def check(
    text: str, folder, *changes: tuple[str, str], rounding: Callable[[torch.Tensor], torch.Tensor] | None = None
) -> None:
    """`rounding`: beside eager's of operands that were rounded so before."""
    reference, eager, new = models(text, folder, AS_IT_IS, *changes)
    torch.manual_seed(1)
    inputs = reference.get_inputs()
    if rounding:
        inputs = [untied(x) for x in inputs]
        untie(eager, new)
    with torch.no_grad():
        ours = new(*inputs)
        if rounding:
            inputs = [rounding(x) for x in inputs]
            for weight in (parameter for parameter in eager.parameters() if parameter.dim() > 1):
                weight.copy_(rounding(weight))
        theirs = eager(*inputs)
        exact = eager.double()(*[x.double() for x in inputs])
    for mine, other, right in zip(*map(_leaves, (ours, theirs, exact)), strict=True):
        assert mine.shape == other.shape
        _close(mine, other, right)


@pytest.mark.parametrize("name", MODULES)
def test_emulated_products_agree_with_eager(name, tmp_path):
    check(MODULES[name], tmp_path)


def test_emulated_convolutions_of_few_channels_or_not_in_fours_are_exact(tmp_path):
    """As eager's are, for which cuDNN has no TF32 kernel."""
    check(EXACT, tmp_path)


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_emulated_convolutions_are_eagers_of_operands_in_tf32(name, tmp_path, monkeypatch):
    monkeypatch.setattr(lower_convolutions, "FEWEST", 1)
    check(CONVOLUTIONS[name], tmp_path, rounding=nearest)


def test_convolutions_of_our_own_agree_with_eager_on_a_cpu(tmp_path):
    def on_a_cpu(text: str) -> None:
        pair = Pair(text, tmp_path)
        assert "torch.ops" not in pair.source
        for seed in (0, 1):
            pair.check(seed, pair.inputs(seed))

    check_group(CONVOLUTIONS, tuple(CONVOLUTIONS), on_a_cpu)


def test_large_tiles_and_a_depth_that_blocks_share(tmp_path, monkeypatch):
    monkeypatch.setattr(tiles, "BUSY_BLOCKS", 1)
    monkeypatch.setattr(lower_products, "SHORTEST", 8)
    text = problem("return x @ y", "[torch.randn(130, 60), torch.randn(60, 133)]")
    native = native_source(source_of(text), "cuda")
    assert "multiply_tiles<128" in native and "k < 10 &&" in native  # six parts of the depth
    check(text, tmp_path)


@pytest.mark.parametrize(
    ("rows", "steps", "convert", "ours"),
    [(1024, 512, "", True), (1024, 64, "", False), (128, 512, "", False), (1024, 512, ".half()", False)],
    ids=["fills a GPU", "few steps", "few rows for what is to be prepared", "of halves"],
)
def test_a_float32_product_that_fills_a_gpu_is_ours(rows, steps, convert, ours):
    """And what follows it becomes a kernel all the same."""
    inputs = f"[torch.empty({rows}, {steps}){convert}, torch.empty({steps}, 8192){convert}]"
    answer = draft.answer(problem("return F.gelu(x @ y)", inputs), "cuda")
    assert ("multiply_halves(" in answer["source"]) is ours
    assert ("torch.ops.aten.matmul" in answer["source"]) is not ours
    assert answer["notes"][0].startswith("matrix products" if ours else "left to torch: matmul")
    assert "gelu" in answer["kernels"][-1]["summary"]


def test_a_product_of_halves_has_one_part(tmp_path):
    text = problem("return x @ y", "[torch.randn(70, 37).half(), torch.randn(37, 131).half()]")
    reference, _, new = models(text, tmp_path, AS_IT_IS)
    inputs = reference.get_inputs()
    assert ", false, Left, Right>" in native_source(source_of(text), "cuda")
    torch.testing.assert_close(new(*inputs), (inputs[0].double() @ inputs[1].double()).half(), rtol=1e-3, atol=1e-6)


def plain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """x y with one float32 addition after another."""
    sums = torch.zeros(x.shape[0], y.shape[1])
    for k in range(x.shape[1]):
        sums = sums + x[:, k : k + 1] * y[k : k + 1]
    return sums


DRAWS = {
    "of either sign": torch.randn,
    "of one sign": torch.rand,
    "of many sizes": lambda *shape: torch.randn(*shape) * torch.exp(4 * torch.randn(*shape)),
}


def errors(new, draw, steps: int = 512, columns: int = 64) -> tuple[float, float]:
    """The largest error of a product of ours and of plain float32's, in u = 2^-24 of the sum of what was added, without signs."""
    torch.manual_seed(3)
    x, y = draw(64, steps), draw(steps, columns)
    exact, size = x.double() @ y.double(), x.double().abs() @ y.double().abs()
    with torch.no_grad():
        return tuple(((z - exact).abs() / size).max().item() * 2**24 for z in (new(x, y), plain(x, y)))


PRODUCTS = {
    # the problem, its depth and columns, what an error stays below: of the parts, the cuts, the stages' additions
    "tiles": (LONG, (512, 64), 8 + 240 + 512 / 32),
    "halves": (LONG, (512, 64), 12 + 144 + 512 / 228 + 512 / 64),
    "few steps": (THIN, THIN_SIZES, 32),
}  # fmt: skip
"""How a float32 product is made of others, with the bounds of tensor_cores.py and halves.py."""


def one_part(*_: object) -> int:
    return 1


@pytest.fixture
def product(tmp_path, monkeypatch):
    """Eager's and ours of a problem of PRODUCTS, with changes in the text."""

    def made(by: str, *changes: tuple[str, str]):
        if by == "halves":
            monkeypatch.setattr(lower_products, "parts_by_halves", one_part)
        return models(PRODUCTS[by][0], tmp_path, *changes)[1:]

    return made


@pytest.mark.parametrize("by", PRODUCTS)
def test_a_product_is_as_exact_as_float32s(by, product):
    """In the emulation, whose tensor cores cut off more than Hopper's do."""
    (_, sizes, most), (_, new) = PRODUCTS[by], product(by)
    for name, draw in DRAWS.items():
        ours, float32s = errors(new, draw, *sizes)
        # of few steps what tensor cores cut off is the larger part
        assert ours < most and (float32s < 32 if by == "few steps" else ours < float32s), name


@pytest.mark.parametrize(
    ("by", "change"),
    [
        ("tiles", ("round == 0 ? a_low[i] : a_high[i]", "a_high[i]")),
        ("tiles", ("round == 1 ? b_low[j] : b_high[j]", "b_high[j]")),
        ("tiles", ("wait_for_groups<STAGES - 2>();", "wait_for_groups<STAGES - 1>();")),
        ("tiles", ("__syncthreads();  // this stage", "// this stage")),
        ("halves", ("multiply_sixteen(rest, halves_at(a + 64 + steps), halves_at(b + steps), 1);", "")),
        ("halves", ("multiply_sixteen(rest, halves_at(a + steps), halves_at(b + 64 + steps), 1);", "")),
        ("halves", ("#define PERIOD 2", "#define PERIOD 64")),
        ("few steps", ("multiply(part[j], small, high[j][step]);", "")),
        ("few steps", ("multiply(part[j], a, low[j][step]);", "")),
    ],
)
def test_what_exactness_rests_on(by, change, product):
    """Low parts of either side, waits, barriers, more sums than one."""
    _, new = product(by, change, AS_IT_IS)
    ours, float32s = errors(new, torch.rand, *PRODUCTS[by][1])
    assert (ours > 64 and float32s < 32) if by == "few steps" else not ours < float32s


@pytest.mark.parametrize("by", PRODUCTS)
def test_infinite_and_very_large_operands_come_out_as_from_eager(by, product):
    agree_on_what_is_not_finite(*product(by), *PRODUCTS[by][1])


def test_products_of_few_steps_have_kernels_of_their_own():
    for text, count in ((MODULES["few steps"], 3), (CONVOLUTIONS["points"], 1)):
        native = native_source(source_of(text), "cuda")
        assert native.count("= multiply_thin<") == count and "multiply_tiles<" not in native.split('extern "C"', 1)[1]


def test_large_results_of_few_steps_go_past_the_cache_in_strips(tmp_path, monkeypatch):
    monkeypatch.setattr(thin_tiles, "FEW_BLOCKS", 1)
    monkeypatch.setattr(thin_tiles, "CACHED_BYTES", 0)
    text = problem("return x @ y", "[torch.randn(150, 37), torch.randn(37, 1300)]")
    native = native_source(source_of(text), "cuda")
    assert native.count("__stcs(") == native.count("strip < 4;") == 1
    check(text, tmp_path)


def test_what_is_not_finite_in_a_convolution_comes_out_as_from_eager(tmp_path):
    """A tap that a place has not is no product of zero and infinity."""
    reference, eager, new = models(CONVOLUTIONS["transposed"], tmp_path)
    inputs = reference.get_inputs()
    for x, value in zip(inputs, [float("inf"), torch.finfo(torch.float32).max], strict=True):
        x.view(-1)[17] = value
    inputs[0].view(torch.int32).view(-1)[40] = 0x7FFFFFFF  # a NaN that rounds to zero if it is taken for an integer
    for ours, theirs in zip(new(*inputs), eager(*inputs), strict=True):
        assert torch.equal(ours.isnan(), theirs.isnan()) and torch.equal(ours.isinf(), theirs.isinf())
    assert ours.isfinite().all() and ours.abs().max() > 1e30


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc was not found")
@pytest.mark.parametrize("architecture", ["sm_75", "sm_80", "sm_90a"])
def test_tiles_compile_and_keep_their_sums_in_registers(architecture, tmp_path, monkeypatch):
    monkeypatch.setattr(tiles, "BUSY_BLOCKS", 1)
    text = problem(
        "return x @ y, self.conv(z)", "[torch.randn(200, 160), torch.randn(160, 300), torch.randn(2, 32, 15, 16)]",
        "self.conv = nn.Conv2d(32, 128, 3, stride=2, padding=1, bias=False)",
    )  # fmt: skip
    text = native_source(source_of(text), "cuda")
    assert "multiply_tiles<128" in text
    found = spilled(text, architecture, tmp_path)
    assert len(found) >= 3 and sum(count == 0 for count in found) >= len(found) - 1, found
