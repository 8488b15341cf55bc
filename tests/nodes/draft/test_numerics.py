"""What of a network a draft leaves to the library, so that a convolution rounds the bits that it rounds in eager torch."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest
import torch

from compiler import draft
from tests.nodes.draft.direct import Pair, native_source, problem
from tests.nodes.draft.test_recurrences import emulated

IMAGES = "[torch.rand(3, 16, 12, 12)]"
LAYERS = (
    "self.one, self.two = nn.Conv2d(16, 24, 3, padding=1, bias=False), nn.Conv2d(24, 16, 1, bias=False)\n"
    "self.first, self.last, self.spread = nn.BatchNorm2d(24), nn.BatchNorm2d(16), nn.Conv2d(24, 24, 3, groups=24, bias=False)"
)
NETWORK = problem(
    "y = F.relu6(self.first(self.one(x)))\n"
    "y = self.spread(F.pad(y, (1, 1, 1, 1)) * torch.sigmoid(F.avg_pool2d(y, 12)))\n"
    "return torch.relu(self.last(self.two(y)) + x)",
    IMAGES,
    LAYERS,
)


def forward_of(text: str, **named) -> str:
    return draft.draft(text, "cuda", **named).rpartition("def forward(")[2]


def test_what_a_convolution_reads_behind_a_norm_is_summed_by_the_library_and_the_rest_by_us():
    made = forward_of(NETWORK)
    assert (
        made.count("torch.batch_norm(") == 1
        and "self.first.running_mean" in made.partition("torch.batch_norm(")[2][:200]
    )
    assert "aten.avg_pool2d" in made and "own_conv2d" in made, "the depthwise one is in eager's order anyway"
    assert "aten.relu" not in made and "aten.sigmoid" not in made and "self.last.weight" in made


def test_without_a_norm_nothing_is_left_to_the_library_for_its_bits():
    text = problem("return self.two(F.avg_pool2d(F.relu(self.one(x)), 2))", IMAGES, LAYERS)
    assert "aten.avg_pool2d" not in forward_of(text)


def test_a_mean_that_weighs_channels_which_a_convolution_reads_is_the_library_s_in_any_network():
    weighed = "y = F.relu(self.one(x))\nreturn {}(y * torch.sigmoid(F.adaptive_avg_pool2d(y, 1)))"
    assert "own_adaptive_avg_pool2d" not in forward_of(problem(weighed.format("self.two"), IMAGES, LAYERS))
    assert "own_adaptive_avg_pool2d" in forward_of(problem(weighed.format("torch.tanh"), IMAGES, LAYERS))


def test_a_depthwise_convolution_begins_its_sum_with_the_bias_as_torch_does():
    """Added behind the sum it gave 10,792 of 18,432 elements another last bit (H200), and EfficientViT's block was off by 2e-4."""
    body = "return self.last(self.two(F.relu(self.spread(self.one(x)))))"
    layers = LAYERS.replace("groups=24, bias=False", "groups=24")
    assert "self.spread.weight, self.spread.bias, [1, 1]" in forward_of(problem(body, IMAGES, layers))
    assert "conv2d.default(conv2d, self.spread" not in forward_of(problem(body, IMAGES, LAYERS))
    wide = LAYERS.replace("24, 24, 3, groups", "24, 24, 7, padding=3, groups")
    assert "conv2d.default(conv2d, self.spread" in forward_of(problem(body, IMAGES, wide)), "a warp adds 49 taps up"


def test_fp32_rounds_nowhere():
    made = forward_of(NETWORK, numerics="fp32")
    assert "torch.batch_norm(" not in made and "aten.avg_pool2d" not in made
    assert made.count("in_float32(lambda: torch.ops.aten.conv2d") == 2
    with pytest.raises(ValueError, match="eager or fp32"):
        draft.draft(NETWORK, "cuda", numerics="half")


@pytest.mark.skipif(not shutil.which("g++"), reason="the emulation needs g++")
def test_such_a_draft_gives_eagers_bits_and_moves_its_statistics(tmp_path, monkeypatch):
    """Without what a CPU's eager sums or approximates in another way than a GPU's."""
    forward = "y = F.relu6(self.first(self.one(x)))\nreturn torch.relu(self.two(y * F.avg_pool2d(y, 12)) + x)"
    text = problem(forward, IMAGES, LAYERS)
    reference, source, eager, new = emulated(text, tmp_path, 8, monkeypatch, "eager")
    assert "torch.batch_norm(" in source
    (x,) = reference.get_inputs()
    with torch.no_grad():
        for _ in range(2):
            assert torch.equal(new(x), eager(x))
    state = new.state_dict()
    assert all(torch.equal(state[name], value) for name, value in eager.state_dict().items())
    assert state["first.num_batches_tracked"] == 2 and state["first.running_mean"].abs().max() > 0


def test_what_a_convolution_reads_is_rounded_element_by_element_as_eager_does(tmp_path):
    """One multiply-add of nvcc's would round once where eager's two kernels round twice; eager divides by a number by its reciprocal."""
    body = "y = F.silu(self.one(x))\ny = y * torch.sigmoid(y) / 6 + y\nreturn {}(y * torch.rsqrt(y * y + 1))"
    made = draft.draft(problem(body.format("self.two"), IMAGES, LAYERS), "cuda")
    assert made.count("__fmul_rn(") >= 4 and "0.166666672f" in made and "rsqrtf(" in made and "/ 6.0f" not in made
    for other in (
        draft.draft(problem(body.format("self.two"), IMAGES, LAYERS), "cuda", numerics="fp32"),
        draft.draft(problem(body.format("torch.tanh"), IMAGES, LAYERS), "cuda"),
        draft.draft(problem(body.format("self.two"), IMAGES, LAYERS), "cpu"),
    ):
        assert "__fmul_rn(" not in other and "/ 6.0" in other
    if shutil.which("nvcc"):
        source = tmp_path / "draft.cu"
        source.write_text(native_source(made, "cuda"))
        ptx = subprocess.run(
            ["nvcc", "-arch=sm_90", "-ptx", "-o", "-", source], capture_output=True, text=True, check=True
        ).stdout
        chain = next(kernel for kernel in ptx.split(".entry") if "rsqrt" in kernel)
        assert "mul.rn.f32" in chain


def test_what_decides_how_many_there_are_has_eagers_bits(tmp_path):
    """Shares that sum to four: whether the last reaches it, one unit decides."""
    text = problem(
        "p = x.sigmoid()\np = p / p.sum(1, keepdim=True) * 4\nat = p.cumsum(1)\nreturn (x.exp() + 1)[at >= 4.0], at",
        "[torch.randn(64, 37)]",
    )
    pair = Pair(text, tmp_path)
    for seed in range(3):
        x = pair.inputs(seed)[0]
        (ours, at), (theirs, reached) = pair.candidate.ModelNew()(x), pair.reference.Model()(x)
        assert torch.equal(at, reached)
        torch.testing.assert_close(ours, theirs)


def test_what_a_convolution_reads_lies_in_memory_as_eager_has_it():
    """Tokens seen as an image have their channels last, for which cuDNN takes another algorithm (SwinIR: 7e-4 off on an H200)."""
    layers = "self.norm, self.conv = nn.LayerNorm(16), nn.Conv2d(16, 16, 3, padding=1)"
    forward = "t = self.norm(x * 2)\nreturn self.conv(t{}.view(-1, 16, 6, 6)).tanh()"
    texts = [
        draft.draft(problem(forward.format(view), inputs, layers.replace("(16)", size)), "cuda")
        for view, inputs, size in (
            (".transpose(1, 2)", "[torch.randn(3, 36, 16)]", "(16)"), ("", "[torch.randn(3, 16, 36)]", "(36)")
        )
    ]  # fmt: skip
    calls = [re.search(r"conv2d\.default\((.*)\)", text)[1] for text in texts]
    assert "as_strided((s" in calls[0] and "576, 1, 96, 16" in calls[0] and "as_strided" not in calls[1]
