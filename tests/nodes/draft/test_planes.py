"""Convolutions by planes of eight channels, in CUDA, thread by thread on the CPU: eager's of operands with 11 significant bits."""

import shutil

import pytest
import torch

from compiler import draft
from compiler.draft import lower_convolutions
from compiler.draft.planes import SHARED_BYTES, stages
from tests.nodes.draft import test_tiles
from tests.nodes.draft.direct import native_source, problem, spilled
from tests.nodes.draft.test_tiles import AS_IT_IS, models, source_of

PROBLEMS = {
    "a chain behind it": problem(
        # 70 of 128 rows, columns that end within a block, a tensor and a number in the chain, another reader of the sums
        "c = self.one(x)\nreturn torch.relu(c + y) * 0.5, c.sum((2, 3))", "[torch.randn(2, 32, 9, 13), torch.randint(-3, 4, (2, 70, 9, 14)).float()]",
        "self.one = nn.Conv2d(32, 70, (3, 2), padding=1)",
    ),
    "along one axis": problem(
        "return self.one(x), self.two(x)", "[torch.randn(1, 16, 330)]",
        "self.one = nn.ConvTranspose1d(16, 40, 5, padding=2, dilation=2, bias=False)\nself.two = nn.Conv1d(16, 8, 4, padding=7, dilation=3)",
    ),
    "transposed with strides": problem(
        # remainders of three axes as rows, places beyond the end; groups, a class without taps
        "return self.one(x), self.two(x)", "[torch.randn(2, 32, 4, 3, 5)]",
        "self.one = nn.ConvTranspose3d(32, 5, (2, 3, 3), stride=(3, 1, 2), padding=(0, 1, 1), bias=False)\n"
        "self.two = nn.ConvTranspose3d(32, 6, 3, stride=2, padding=1, output_padding=1, groups=2)",
    ),
    "tiles of a class, without the taps it has not": problem(
        # of both axes, with a class that has none; of the first, with three taps and two
        "return torch.tanh(self.one(x)), self.two(x)", "[torch.randn(2, 16, 5, 6)]",
        "self.one = nn.ConvTranspose2d(16, 64, (3, 1), stride=(2, 2), padding=(1, 0), output_padding=(1, 1))\n"
        "self.two = nn.ConvTranspose2d(16, 32, 5, stride=(2, 2), padding=1, bias=False)",
    ),
    "several stages": problem(
        # 20 channels with zeros to 32, 160 in three stages, a window's rows together and apart
        "return self.one(x), self.two(y)", "[torch.randn(1, 20, 5, 6, 7), torch.randn(1, 160, 8, 9)]",
        "self.one = nn.Conv3d(20, 9, (2, 3, 2), padding=1, dilation=(1, 1, 2), bias=False)\nself.two = nn.Conv2d(160, 65, 3, bias=False)",
    ),
}  # fmt: skip
EXACT = {
    "three channels, and eighteen": problem(
        # an even and an odd number of taps, with a stride as remainders
        "return F.gelu(self.one(x)), self.two(x), self.three(y)", "[torch.randn(2, 3, 9, 30), torch.randn(1, 18, 5, 6)]",
        "self.one = nn.Conv2d(3, 10, (3, 2), padding=1)\nself.two = nn.ConvTranspose2d(3, 66, 3, stride=2, bias=False)\n"
        "self.three = nn.Conv2d(18, 7, 3, padding=(0, 2), dilation=(1, 2), bias=False)",
    ),
    "groups of eight": problem(
        "return self.one(x), self.two(y)", "[torch.randn(2, 16, 3, 4, 5), torch.randn(2, 8, 4, 5)]",
        "self.one = nn.ConvTranspose3d(16, 6, 3, stride=2, padding=1, output_padding=1, groups=2)\n"
        "self.two = nn.ConvTranspose2d(8, 32, 3, stride=2, padding=1)",
    ),
}  # fmt: skip
SMALL = problem(
    "return self.one(x)", "[torch.randn(2, 16, 40)]", "self.one = nn.Conv1d(16, 6, 3, padding=1, bias=False)"
)
SMALL_EXACT = SMALL.replace("16", "12")


@pytest.fixture(autouse=True)
def small_ones_too(monkeypatch):
    monkeypatch.setattr(lower_convolutions, "PRODUCTS", 1)
    monkeypatch.setattr(lower_convolutions, "LEAST", 1)


def nearest(x: torch.Tensor) -> torch.Tensor:
    """The nearest number of 11 significant bits, halves to the even one."""
    bits = x.view(torch.int32)
    return ((bits + 0xFFF + (bits >> 13 & 1)) & ~0x1FFF).view(torch.float32)


FORMS = {
    "wgmma": [],
    "mma.sync": [("__CUDA_ARCH_FEAT_SM90_ALL", "MISSING")],
    "multiply-adds": [("__CUDA_ARCH_FEAT_SM90_ALL", "MISSING"), ("__CUDA_ARCH__ >= 800", "0")],
}


def check(text: str, folder, form: str, rounded: bool) -> None:
    """Beside eager, of operands with 11 bits where `rounded`."""
    assert "multiply_tiles" not in native_source(source_of(text), "cuda")
    test_tiles.check(text, folder, *FORMS[form], rounding=nearest if rounded else None)


OTHER_FORMS = [form for form in FORMS if form != "wgmma"]
"""How pieces are multiplied does not change what they are pieces of: of these forms one problem each is enough."""


@pytest.mark.parametrize(
    ("name", "form"),
    [*((name, "wgmma") for name in PROBLEMS), *(("along one axis", form) for form in OTHER_FORMS)],
)
def test_emulated_convolutions_are_eagers_of_operands_with_eleven_bits(name, form, tmp_path):
    check(PROBLEMS[name], tmp_path, form, True)


@pytest.mark.parametrize(
    ("name", "form"), [*((name, "wgmma") for name in EXACT), *(("groups of eight", form) for form in OTHER_FORMS)]
)
def test_emulated_convolutions_of_few_channels_are_float32s(name, form, tmp_path):
    check(EXACT[name], tmp_path, form, False)


def check_ties(layer: str, x_shape: str, to_even: bool, folder, planes: bool) -> None:
    """Operands half way between two TF32 numbers, beside numbers that TF32 has: what eager's convolution made of them on an H100."""
    rounded, away = nearest, lambda x: ((x.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)
    text = problem("return self.one(x)", f"[torch.randn({x_shape})]", f"self.one = nn.{layer}")
    reference, eager, new = models(text, folder, *([AS_IT_IS, *(FORMS["mma.sync"] if planes else [])]))
    assert ("convolve_planes" in native_source(source_of(text), "cuda")) is planes
    torch.manual_seed(2)

    def between(like: torch.Tensor) -> torch.Tensor:
        return (1 + (2 * torch.randint(0, 1024, like.shape) + 1) / 2048) * torch.randint(0, 2, like.shape).mul(2).sub(1)

    def few(like: torch.Tensor) -> torch.Tensor:
        return torch.randint(-1, 2, like.shape).float()

    (x,) = reference.get_inputs()
    for kind_x, kind_weight in ((between, few), (few, between)):
        x, weight = kind_x(x), kind_weight(eager.one.weight)
        with torch.no_grad():
            new.one.weight.copy_(weight)
            eager.one.weight.copy_((rounded if to_even else away)(weight))
            torch.testing.assert_close(new(x), eager((rounded if to_even else away)(x)), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("layer", "shape", "to_even"),
    [
        ("Conv2d(16, 24, 3, bias=False)", "1, 16, 9, 10", False),
        ("Conv2d(16, 64, 3, bias=False)", "1, 16, 6, 7", True),
        (
            "ConvTranspose3d(3, 24, 2, bias=False)",
            "1, 3, 3, 5, 6",
            True,
        ),  # channels that an ordinary one leaves in float32
    ],
)
def test_of_two_tf32_numbers_as_near_the_one_that_cudnn_takes(layer, shape, to_even, tmp_path, monkeypatch):
    check_ties(layer, shape, to_even, tmp_path, planes=True)
    monkeypatch.setattr(lower_convolutions, "LEAST", 1e30)
    monkeypatch.setattr(lower_convolutions, "PRODUCTS", 1e30)
    (tmp_path / "tiles").mkdir()
    check_ties(layer, shape, to_even, tmp_path / "tiles", planes=False)


BITS = {"eleven bits": (SMALL, 2.0**-10), "exact": (SMALL_EXACT, 2.0**-20)}


def relative_error(new, eager, x: torch.Tensor) -> torch.Tensor:
    """Of each result, of what it would be of magnitudes."""
    with torch.no_grad():
        ours, exact = new(x), eager.double()(x.double())
        size = torch.nn.functional.conv1d(x.double().abs(), eager.one.weight.abs(), padding=1)
        eager.float()
    return (ours - exact).abs() / size


@pytest.mark.parametrize("bits", BITS)
def test_the_scale_follows_the_input(bits, tmp_path):
    text, most = BITS[bits]
    reference, eager, new = models(text, tmp_path, AS_IT_IS)
    torch.manual_seed(2)
    (x,) = reference.get_inputs()
    for scale in (2.0**-120, 1e-20, 1.0, 1e20):
        assert relative_error(new, eager, x * scale).max() < most, scale


@pytest.mark.parametrize("bits", BITS)
def test_what_the_sample_misses_is_laid_out_again(bits, tmp_path):
    """One that is larger by far, whose scale the others still fit, and an input of zeros but for one."""
    text, most = BITS[bits]
    # the sample then begins with the second element
    reference, eager, new = models(text, tmp_path, AS_IT_IS, ("* apart;", "* apart + 1;"))
    torch.manual_seed(2)
    (x,) = reference.get_inputs()
    zeros = torch.zeros_like(x)
    x[0, 0, 0] = 1e5 if most > 1e-4 else 3e3
    assert relative_error(new, eager, x).max() < most
    zeros[0, 0, 0] = 3e-7
    with torch.no_grad():
        torch.testing.assert_close(new(zeros), eager(zeros), rtol=most, atol=0)
        assert not new(torch.zeros_like(x)).any()


def test_what_is_not_finite_comes_out_as_from_eager(tmp_path):
    """A tap that a place has not is no product of zero and infinity."""
    text = PROBLEMS["transposed with strides"]
    reference, eager, new = models(text, tmp_path)
    torch.manual_seed(3)
    (x,) = reference.get_inputs()
    x.view(-1)[17], x.view(-1)[200] = float("inf"), torch.finfo(torch.float32).max
    x.view(torch.int32).view(-1)[40] = 0x7FFFFFFF
    with torch.no_grad():
        for ours, theirs in zip(new(x), eager(x), strict=True):
            assert torch.equal(ours.isnan(), theirs.isnan()) and torch.equal(ours.isinf(), theirs.isinf())
            assert theirs.isnan().any() and theirs.isinf().any() and theirs.isfinite().any()


@pytest.mark.parametrize(("images", "ours"), [(2, False), (64, True)])
def test_a_small_convolution_is_the_librarys(images, ours, monkeypatch):
    monkeypatch.undo()
    text = problem(
        "return torch.relu(self.conv(x))", f"[torch.empty({images}, 64, 56, 56)]", "self.conv = nn.Conv2d(64, 64, 3, padding=1)"
    )  # fmt: skip
    assert ("aten.conv2d" not in draft.draft(text, "cuda")) == ours


def test_a_stage_has_room():
    for channels, exact in ((c, e) for c in (3, 8, 12, 16, 24, 48, 64, 100, 512) for e in (False, True)):
        for taps, step, rows in ((1, 1, 1), (3, 1, 3), (3, 1, 9), (7, 1, 5), (9, 3, 5), (31, 2, 1)):
            found = stages(channels, taps, step, rows, exact)
            if found is None:
                assert exact and channels * taps * rows > 300
                continue
            assert found.eights * 8 >= channels and found.eights % found.chunk == 0 and rows % found.together == 0
            assert found.together * found.taps % found.at_once == 0
            assert (found.at_once % 2 == 0 and found.taps % 2 == 0) if exact else found.chunk % 2 == 0
            used = 1024 + found.runs * found.run_bytes + found.weights * found.weight_bytes
            assert used <= SHARED_BYTES and min(found.runs, found.weights) >= 2 and max(found.runs, found.weights) <= 8
    assert stages(64, 100, 90, 1, False) is None


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc was not found")
@pytest.mark.parametrize("architecture", ["sm_75", "sm_80", "sm_90a", "sm_120"])
def test_it_compiles_and_keeps_its_sums_in_registers(architecture, tmp_path):
    found = spilled(native_source(source_of(EXACT["three channels, and eighteen"]), "cuda"), architecture, tmp_path)
    assert len(found) >= 6 and (max(found) <= 16 or architecture != "sm_90a")  # elsewhere up to 168 bytes
