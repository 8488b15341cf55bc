"""The rewrite persistent: a grid that stays on the device, and what keeps a kernel from having one."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.tunables import bake, tunables
from nodes.policies.rules import applied_step
from tests.nodes.rewrites.test_cuda_rewrites import after, refused
from tests.nodes.rewrites.test_row_rewrites import FACTS, ROOT, emulated

FLAT = """\
#include <cuda_runtime.h>

__global__ void scale(const float* __restrict__ x, float* __restrict__ y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
#pragma unroll
  for (int k = 0; k < 4; ++k) y[4 * i + k] = 2 * x[4 * i + k];

  y[4 * i] += 1;
}

extern "C" void run(const float* x, float* y, long n, cudaStream_t stream) {
  scale<<<(n + 255) / 256, 256, 0, stream>>>(x, y, n);
}
"""
LOOP = """\
  for (int64_t at = blockIdx.x * blockDim.x + threadIdx.x; at < n; at += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    const int i = static_cast<int>(at);
#pragma unroll
    for (int k = 0; k < 4; ++k) y[4 * i + k] = 2 * x[4 * i + k];

    y[4 * i] += 1;
  }
}
"""


def test_a_return_behind_the_end_becomes_a_loop() -> None:
    new = after(FLAT, "persistent")
    assert LOOP in new and "scale<<<persistent_blocks((n + 255) / 256), 256, 0, stream>>>(x, y, n);" in new
    assert [(t.name, t.value) for t in tunables(new)] == [("RESIDENT_BLOCKS", 8)]
    assert refused(new, "persistent")


def test_so_does_a_condition_around_everything() -> None:
    new = after(FLAT.replace("if (i >= n) return;", "if (i < n) {").replace("+= 1;\n}", "+= 1;\n  }\n}"), "persistent")
    kernel = new[new.index("void scale") : new.index("extern")]
    assert (
        "if (" not in kernel and kernel.count("for (int64_t at = ") == 1 and kernel.count("{") == kernel.count("}") == 2
    )


def test_the_steps_before_and_behind_it_still_apply() -> None:
    new = after(FLAT, "persistent", "block_size", "dependent_launch")
    grid = "persistent_blocks((n + (BLOCK_THREADS - 1)) / BLOCK_THREADS)"
    assert f"launch_dependent(scale, {grid}, BLOCK_THREADS, 0, stream, x, y, n);" in new
    assert refused(after(FLAT, "dependent_launch"), "persistent")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("y[4 * i] += 1;", "__syncthreads(); y[4 * i] += 1;"),
        ("y[4 * i] += 1;", "y[4 * i] += __shfl_xor_sync(0xffffffffu, 1.0f, 1);"),
        ("y[4 * i] += 1;", "if (x[4 * i] > 0) return; y[4 * i] += 1;"),
        ("y[4 * i] += 1;", "y[4 * i] += gridDim.x;"),
        ("  const int i =", "  float sum = 0;\n  const int i ="),
        ("if (i >= n) return;", "if (i >= n || n < 4) return;"),
        (
            "const int i = blockIdx.x * blockDim.x + threadIdx.x;",
            "int i = blockIdx.x * blockDim.x + threadIdx.x; i += 0;",
        ),
        ("<<<(n + 255) / 256, 256", "<<<dim3((n + 255) / 256, 2), 256"),
    ],
    ids=["barrier", "shuffle", "return", "grid", "sum", "more", "changed", "two dimensions"],
)
def test_what_cannot_take_several_elements_stays(old: str, new: str) -> None:
    text = FLAT.replace(old, new)
    assert text != FLAT
    if "sum" in new:
        text = text.replace("y[4 * i] += 1;", "sum += x[i]; y[4 * i] += sum;")
    assert refused(text, "persistent")


@pytest.mark.parametrize("folder", ["tests/inputs/relu_squared/vector", "tests/inputs/gelu_and_mul/plain"])
def test_a_small_device_computes_what_the_reference_says(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One multiprocessor, four blocks: every thread takes many elements."""
    monkeypatch.setenv("EMULATE_MULTIPROCESSORS", "1")
    where, _, name = folder.rpartition("/")
    text = (ROOT / where / f"baseline.{name}.cu").read_text()
    for step in ("settle_names", "block_extent", "fast_math", "persistent", "dependent_launch"):
        text = applied_step(step, text, FACTS) or text
    assert "persistent_blocks(" in text
    candidate = tmp_path / "candidate.cu"
    candidate.write_text(bake(text, {"RESIDENT_BLOCKS": 4}))
    assert emulated(ROOT / where, candidate, "0") == "right"  # the vector form itself needs aligned tensors
