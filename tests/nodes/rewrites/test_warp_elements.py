"""Several elements a thread where a warp reduces one of each: before and after, what is left alone, and what comes out."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.nodes.rewrites.emulate.emulation import emulated
from tests.nodes.rewrites.test_cuda_rewrites import after, flat, refused

GROUPS = """\
#include <stdint.h>

__device__ float warp_max(float v) {
  for (int mask = 16; mask > 0; mask /= 2) v = fmaxf(v, __shfl_xor_sync(0xffffffff, v, mask));
  return v;
}

__global__ void quantise(const float* x, signed char* y, float* scale, int n) {
  const int row = blockIdx.y;
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const int at = row * n + i;
  const float v = x[at];
  float most = v < 0.0f ? -v : v;
  most = warp_max(most);
  const float step = most / 127.0f;
  y[at] = static_cast<signed char>(step == 0.0f ? 0.0f : v / step);
  if (threadIdx.x % 32 == 0) scale[at / 32] = step;
}

extern "C" void run(const float* x, signed char* y, float* scale, int64_t rows, int64_t n, cudaStream_t stream) {
  quantise<<<dim3((n + 127) / 128, rows), 128, 0, stream>>>(x, y, scale, n);
}
"""
MADE = """\
  const int pack = blockIdx.x * blockDim.x + threadIdx.x;
  if (pack >= n / WARP_ELEMENTS) return;
  const int first = pack * WARP_ELEMENTS;
  const int at = row * n + first;
  const Lanes<float, WARP_ELEMENTS> x_lanes = load_joined<WARP_ELEMENTS>(&x[at]);
  Lanes<signed char, WARP_ELEMENTS> y_lanes;
  float all_of_group;
#pragma unroll
  for (int k = 0; k < WARP_ELEMENTS; ++k) {
    const float v = x_lanes.at[k];
    float most = v < 0.0f ? -v : v;
    all_of_group = k == 0 ? most : max(all_of_group, most);
  }
  all_of_group = team_max<32 / WARP_ELEMENTS>(all_of_group);
#pragma unroll
  for (int k = 0; k < WARP_ELEMENTS; ++k) {
    const int i = first + k;
    const int at = row * n + i;
    const float v = x_lanes.at[k];
    float most = v < 0.0f ? -v : v;
    most = all_of_group;
    const float step = most / 127.0f;
    y_lanes.at[k] = static_cast<signed char>(step == 0.0f ? 0.0f : v / step);
    if ((i % 32) == 0) scale[at / 32] = step;
  }
  store_joined(&y[at], y_lanes);
}
"""


def test_a_thread_takes_several_elements() -> None:
    new = after(GROUPS, "warp_elements")
    assert MADE in new
    host = flat(new[new.index('extern "C"') :])
    grid = "dim3(static_cast<unsigned>(ceil_div(n / WARP_ELEMENTS, 128)), rows), 128, 0, stream>>>(x, y, scale, n);"
    assert f"if (n % 32 == 0) {{ quantise_by_packs<<<{grid} }} else {{ quantise<<<dim3((n + 127) / 128, rows)" in host


def test_a_grid_still_waits_before_it_touches_memory() -> None:
    made = after(GROUPS, "dependent_launch", "warp_elements").partition("quantise_by_packs")[2].partition("extern")[0]
    assert made.endswith("  store_joined(&y[at], y_lanes);\n}\n\n"), "nothing is left over"
    assert (
        made.index("const int at = row * n + first;") < made.rindex("wait_for_predecessor(") < made.index("load_joined")
    )


EARLY = GROUPS.replace("if (threadIdx.x % 32 == 0) scale", "if (i % 32 > 0) return;\n  scale")
NAMED = GROUPS.replace(
    "most = warp_max(most);\n  const float step = most", "const float top = warp_max(most);\n  const float step = top"
)
LOOPED = GROUPS.replace(
    "  most = warp_max(most);",
    "#pragma unroll\n  for (int mask = 16; mask > 0; mask /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffff, most, mask));",
)


def test_other_ways_to_say_it() -> None:
    assert "if (i % 32 > 0) continue;\n    scale[at / 32] = step;\n  }\n" in after(EARLY, "warp_elements")
    assert "const float top = all_of_group;\n    const float step = top" in after(NAMED, "warp_elements")
    made = after(LOOPED, "warp_elements").partition("quantise_by_packs")[2].partition("extern")[0]
    assert "    most = all_of_group;\n" in made and "shfl" not in made


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("most = warp_max(most);", "most = warp_max(most);\n  most = warp_max(most + v);"),
        ("most = warp_max(most);", "if (v > 0) most = warp_max(most);"),
        ("most = warp_max(most);", "scale[0] = most;\n  most = warp_max(most);"),
        ("most = warp_max(most);", "if (v > 9) return;\n  most = warp_max(most);"),
        ("const int row = blockIdx.y;", "const int row = blockIdx.y + threadIdx.x;"),
        ("const int row = blockIdx.y;", "int row = blockIdx.y;\n  __shared__ float held[32];"),
        ("const float v = x[at];", "const float v = x[at] + y[at + 1];"),
        ("const float v = x[at];", "const float v = x[2 * at];"),
        ("const float v = x[at];", "n -= 1;\n  const float v = x[at];"),
        ("threadIdx.x % 32 == 0", "threadIdx.x == 0"),
        ("if (i >= n) return;", "if (i >= n && i > row) return;"),
        ("rows), 128, 0", "rows), 100, 0"),
        ("rows), 128, 0", "rows), dim3(128, 2), 0"),
        ("mask = 16", "mask = 8"),
    ],
)
def test_what_is_left_alone(old: str, new: str) -> None:
    assert old in GROUPS and refused(GROUPS.replace(old, new), "warp_elements")


@pytest.mark.parametrize(
    ("text", "elements"),
    [
        (EARLY, 4),
        (NAMED, 8),
        pytest.param(GROUPS, 2, marks=pytest.mark.slow),
        pytest.param(LOOPED, 4, marks=pytest.mark.slow),
    ],
    ids=["early", "named", "guarded", "looped"],
)
def test_groups_come_out_right(text: str, elements: int, tmp_path: Path) -> None:
    (tmp_path / "spec.py").write_text(SPEC)
    (tmp_path / "reference.py").write_text(REFERENCE)
    (tmp_path / "baseline.cu").write_text(text)
    candidate = tmp_path / "candidate.cu"
    new = after(text, "warp_elements").replace("#define WARP_ELEMENTS 4 ", f"#define WARP_ELEMENTS {elements} ")
    candidate.write_text(new)
    ended = emulated(
        tmp_path, candidate, "0", "1", "float32:rows=1,n=32", "float32:rows=3,n=160", "float32:rows=2,n=1056"
    )
    assert ended.stdout.strip() == "right", ended.stdout + ended.stderr


SPEC = """\
from kernels.spec import Size, Spec, Tensor, Workload

SPEC = Spec(
    name="run",
    summary="groups of 32 to bytes",
    axes=("rows", "n"),
    dtypes=("float32",),
    arguments=(
        Tensor(name="x", role="input", shape=("rows", "n")),
        Tensor(name="y", role="output", shape=("rows", "n"), dtype="int8"),
        Tensor(name="scale", role="output", shape=("rows", "n//32")),
        Size(name="rows"),
        Size(name="n"),
    ),
    flops="3*rows*n",
    workloads=(Workload(axes={"rows": 2, "n": 64}, dtype="float32"),),
)
"""
REFERENCE = """\
import torch


def reference(x):
    step = x.unflatten(-1, (-1, 32)).abs().amax(-1) / 127
    return {"y": torch.trunc(x / step.repeat_interleave(32, -1)).to(torch.int8), "scale": step}
"""
