"""Index arithmetic beyond 2^24 and 2^31 elements, of what rewrites and the compiler write: interpreted block by block, with no such memory."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from compiler.compile import source
from kernels import catalog
from nodes.policies.search import apply_step, first_steps
from nodes.rewrites import Facts
from tests import forked
from tests.nodes.rewrites.emulate.large import PERIOD
from tests.nodes.rewrites.steps import H200

FLAT = """#include <cuda_fp16.h>
#include <stdint.h>
__device__ float silu(float x) { return x / (1.0f + expf(-x)); }
__global__ void kernel(const __half* input, __half* out, size_t bytes, int64_t hidden) {
    const size_t total = bytes / sizeof(float) * (sizeof(float) / sizeof(__half));
    for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < total; i += size_t(gridDim.x) * blockDim.x) {
        const size_t row = i / hidden, column = i % hidden;
        out[i] = __float2half(silu(__half2float(input[row * 2 * hidden + column])) * __half2float(input[(row * 2 + 1) * hidden + column]));
    }
}
extern "C" void silu_and_mul_float16(const __half* input, __half* out, int64_t tokens, int64_t hidden, cudaStream_t stream) {
    const size_t bytes = size_t(tokens) * hidden * sizeof(__half);
    kernel<<<static_cast<unsigned>((bytes / sizeof(__half) + 255) / 256), 256, 0, stream>>>(input, out, bytes, hidden);
}
"""
"""A size in bytes, of which one rewrite took the division for one of floats."""
NARROW = FLAT.replace("size_t i = blockIdx.x * size_t(blockDim.x)", "int i = blockIdx.x * int(blockDim.x)")


def text_of(kernel: catalog.Kernel, which: str) -> str:
    if which == "compiler":
        return source(kernel.spec, (kernel.folder / "reference.py").read_text())
    return FLAT if which == "flat" else (kernel.folder / f"{which}.cu").read_text()


def fault(kernel: str, text: str, sizes: str, folder: Path) -> str:
    path = folder / "candidate.cu"
    path.write_text(text)
    code = "import sys; from tests.nodes.rewrites.emulate.large import main; sys.exit(main(sys.argv[1:]))"
    done = forked.run(code, kernel, path, "float16", sizes, timeout=300)
    return "" if done.returncode == 0 else f"{done.returncode}: {done.stdout}{done.stderr[-500:]}"


@pytest.mark.parametrize(
    ("name", "which"),
    [("silu_and_mul", "flat"), ("silu_and_mul", "compiler"), ("fused_add_rmsnorm", "baseline.production")],
)
def test_indices_of_large_tensors_lead_where_they_should(name: str, which: str, tmp_path: Path) -> None:
    """The text after every step of the first plan; hidden and tokens are drawn, above 2^31 elements of each tensor with rows."""
    kernel, chance = catalog.load(name), random.Random(f"{name} {which}")
    text, facts = text_of(kernel, which), Facts(spec=kernel.spec, device=H200)
    for step in first_steps(kernel.spec, H200):
        text = apply_step(step, text, facts) or text
    hidden = 8 * chance.randrange(300, 600)
    for elements in (1 << 24, 1 << 31):
        tokens = elements // hidden + chance.randrange(3, 99)
        assert tokens * hidden > elements and PERIOD % hidden
        assert not fault(name, text, f"tokens={tokens},hidden={hidden}", tmp_path)


def test_an_index_of_32_bits_is_found(tmp_path: Path) -> None:
    assert fault("silu_and_mul", NARROW, f"tokens={(1 << 31) // 4096 + 5},hidden=4096", tmp_path)
