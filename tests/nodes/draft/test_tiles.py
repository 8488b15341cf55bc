"""Products of our own in CUDA, thread by thread on the CPU: right at odd sizes, and as near to the exact result as float32's own."""

import ctypes
import shutil
import subprocess

import pytest
import torch

from nodes import draft
from tests.nodes.draft.direct import Native, _close, module, native_source, problem
from tests.nodes.rewrites.emulate import emulation
from tests.nodes.rewrites.emulate.tensor_cores import translated

TWO = "[torch.randn({}), torch.randn({})]"


class Emulated(Native):
    """A draft's kernels in the emulation: the last argument of each is the stream."""

    def __getattr__(self, name: str):
        call = super().__getattr__(name)
        return lambda *arguments: call(*arguments, ctypes.c_void_p(0))


def models(text: str, folder, change=lambda source: source):
    """The problem's module, its Model and the emulated draft's."""
    reference, source = module(text), draft.draft(text, "cuda")
    built = emulation.library(change(translated(native_source(source, "cuda"))), folder)
    new = module(source, load_native=lambda _: Emulated(built, "emulated"))
    made = []
    for model in (reference.Model, new.ModelNew):
        torch.manual_seed(0)
        made.append(model())
    return reference, *made


def check(text: str, folder) -> None:
    reference, eager, new = models(text, folder)
    torch.manual_seed(1)
    inputs = reference.get_inputs()
    with torch.no_grad():
        ours, theirs = new(*inputs), eager(*inputs)
        exact = eager.double()(*[x.double() for x in inputs])
    _close(ours, theirs, exact)


PRODUCTS = {
    "odd sizes": problem("return x @ y", TWO.format("70, 37", "37, 131")),
    "copies of 16 bytes": problem("return x @ y", TWO.format("68, 52", "52, 132")),
    "left transposed": problem("return x.t() @ y", TWO.format("33, 66", "33, 65")),
    "right transposed": problem("return x @ y.t()", TWO.format("65, 36", "70, 36")),
    "both transposed": problem("return x.t() @ y.t()", TWO.format("20, 64", "68, 20")),
    "a batch": problem("return torch.bmm(x, y)", TWO.format("3, 9, 21", "3, 21, 10")),
    "a single step": problem("return x @ y", TWO.format("5, 1", "1, 3")),
    "large tiles": problem("return x @ y", TWO.format("1300, 19", "19, 1290")),
    "a convolution": problem(
        "return self.conv(x)", "[torch.randn(2, 6, 9, 10)]", "self.conv = nn.Conv2d(6, 10, 3, stride=2, padding=1, groups=2, bias=False)"
    ),
    "a convolution of points": problem(
        "return self.conv(x)", "[torch.randn(2, 12, 6, 6)]", "self.conv = nn.Conv2d(12, 20, 1, bias=False)"
    ),
    "a transposed convolution": problem(
        "return self.conv(x)", "[torch.randn(2, 6, 5, 4)]",
        "self.conv = nn.ConvTranspose2d(6, 4, 3, stride=2, padding=1, output_padding=1, bias=False)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PRODUCTS)
def test_an_emulated_product_agrees_with_eager(name, tmp_path):
    check(PRODUCTS[name], tmp_path)
