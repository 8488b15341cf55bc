"""Each rewrite on a source before and after, and what it refuses."""

from __future__ import annotations

import pytest

from harness.judge.tunables import tunables
from nodes.policies.rules import apply_step
from nodes.rewrites import Facts, catalog
from nodes.rewrites.syntax.source import Source
from tests.nodes.rewrites.steps import FACTS, H200, ROOT, SPEC, after, refused, stays, where_they_apply

ROWS = """\
#include <cuda_fp16.h>

__global__ void scale_rows(const __half* x, const float* factor, __half* y, int n) {
  const int row = blockIdx.x;
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    const float f = factor[row];
    y[row * n + i] = __float2half(__half2float(x[row * n + i]) * f);
  }
}

extern "C" void scale(const __half* x, const float* factor, __half* y, long rows, long n, cudaStream_t stream) {
  scale_rows<<<rows, 256, 0, stream>>>(x, factor, y, n);
}
"""
TREE = """\
__global__ void sums(const float* x, float* y, int n) {
  __shared__ float partial[256];
  float sum = 0.0f;
  for (int i = threadIdx.x; i < n; i += blockDim.x) sum += x[blockIdx.x * n + i];
  partial[threadIdx.x] = sum;
  __syncthreads();
  for (int s = blockDim.x / 2; s > 0; s >>= 1) {
    if (threadIdx.x < s) partial[threadIdx.x] += partial[threadIdx.x + s];
    __syncthreads();
  }
  for (int i = threadIdx.x; i < n; i += blockDim.x) y[blockIdx.x * n + i] = x[blockIdx.x * n + i] / partial[0];
}

extern "C" void normalise(const float* x, float* y, long rows, long n, cudaStream_t stream) {
  sums<<<rows, 256, 0, stream>>>(x, y, n);
}
"""


BY_ELEMENTS = ROWS.replace("const int row = blockIdx.x;", "const int row = 0;")
BY_ELEMENTS = BY_ELEMENTS.replace("i = threadIdx.x;", "i = blockIdx.x * blockDim.x + threadIdx.x;")
BY_ELEMENTS = BY_ELEMENTS.replace("i += blockDim.x", "i += blockDim.x * gridDim.x").replace(
    "<<<rows, 256", "<<<(n + 255) / 256, 256"
)
SILU = (ROOT / "kernels/silu_and_mul/baseline.production.cu").read_text()


@pytest.mark.parametrize(
    ("step", "text", "old", "new"),
    [
        ("grid_stride", ROWS, "const float f", "__syncwarp(); const float f"),  # threads that talk
        ("grid_stride", ROWS, "factor[row]", "factor[threadIdx.x]"),
        ("grid_stride", ROWS, "const float f", "auto block = cooperative_groups::this_thread_block(); block.sync(); const float f"),
        ("grid_stride", ROWS, "  for (int i", "  if (threadIdx.x == 0) y[row] = 1.0f;\n  for (int i"),  # once a row
        ("canonicalize_reductions", TREE, "<<<rows, 256", "<<<rows, n"),  # perhaps no whole warps
        ("canonicalize_reductions", TREE, "/ partial[0]", "/ partial[1]"),  # not the result
        ("canonicalize_reductions", TREE, "+= partial[threadIdx.x + s]", "+= 2 * partial[threadIdx.x + s]"),
        ("canonicalize_reductions", TREE, "if (threadIdx.x < s) partial", "if (threadIdx.x < s && n > 3) partial2[0] = 1, partial"),
        ("canonicalize_reductions", TREE, "  sums<<<rows, 256", "  auto run = &sums; run<<<rows, 256"),  # launched by nobody that is seen
        ("programmatic_dependent_launch", ROWS, "scale_rows<<<", "elsewhere<<<"),
        ("tune_block_size", BY_ELEMENTS, "(n + 255) / 256", "n / 2560 + 1"),
        ("tune_block_size", BY_ELEMENTS, "__global__ void", "__global__ void __launch_bounds__(512)"),
        ("tune_block_size", BY_ELEMENTS.replace("; i < n; i += blockDim.x *", " / 32; i < n; i += blockDim.x / 32 *").replace("blockDim.x +", "(blockDim.x / 32) +"), "blockDim.x / 32 *", "8 *"),
        ("symbolic_block_size", ROWS.replace("i += blockDim.x", "i += 256"), "<<<rows, 256", "<<<rows, 128"),
        ("restrict_pointers", ROWS, "(x, factor, y, n);", "(y, factor, y, n);"),  # one buffer twice
        # A tail that rows may need.
        ("trim_vector_tail", SILU, "hidden % lanes == 0 && addresses", "addresses"),
        ("trim_vector_tail", SILU, "hidden % lanes == 0 && addresses", "hidden % lanes == 0 || addresses"),
        ("trim_vector_tail", SILU, "lanes = 16 / sizeof(T);", "lanes = 8 / sizeof(T);"),
        ("trim_vector_tail", SILU, "T lane[16 / sizeof(T)];", "T lane[8 / sizeof(T)];"),
    ],
)  # fmt: skip
def test_what_is_refused(step: str, text: str, old: str, new: str) -> None:
    assert stays(step, text, old, new)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("i += blockDim.x", "i += 2 * blockDim.x"),  # not every element
        ("y[row * n + i] =", "y[row * n + 2 * i] ="),  # holes
        ("y[row * n + i] =", "if (x[row * n + i] > f) y[row * n + i] ="),  # some elements stay as they are
        ("const float f = factor[row];", "if (factor[row] == 0) continue; const float f = factor[row];"),
        ("const float f = factor[row];", "const float f = factor[row]; atomicAdd(&y[0], f);"),
    ],
)
def test_what_is_not_stored_in_packs(old: str, new: str) -> None:
    assert old in ROWS and "store_lanes(&y" not in where_they_apply(ROWS.replace(old, new), "vectorize")


def test_pack_needs_a_barrier_between_two_uses_not_just_any() -> None:
    """Each thread reads again what it wrote itself; with packs those are another thread's elements."""
    loop = "  for (int i = threadIdx.x; i < n; i += blockDim.x) "
    first, then, barrier = loop + "kept[i] = x[i];\n", loop + "atomicAdd(&y[0], kept[i]);\n", "  __syncthreads();\n"

    def text(*parts: str) -> str:
        return (
            "__global__ void steps(const float* __restrict__ x, float* __restrict__ kept, float* __restrict__ y, int n) {\n"
            + "".join(parts)
            + '}\nextern "C" void f(const float* x, float* kept, float* y, int n) { steps<<<1, 256, 0, 0>>>(x, kept, y, n); }\n'
        )

    assert "store_lanes(&kept" in after(text(first, barrier, then), "vectorize")
    for parts in ((first, then), (barrier, first, then), (first, then, barrier)):
        assert refused(text(*parts), "vectorize")


@pytest.mark.parametrize(
    ("steps", "text", "reads"),
    [
        # A size of the host's that is named like a variable of ours once made every row come from the wrong place.
        ("vectorize", ROWS.replace("long n,", "long width,").replace("x, factor, y, n)", "x, factor, y, width)"), "width % PACK == 0"),
        # nvcc unrolls a float loop four times, for which each thread divides 64-bit integers first.
        ("grid_stride", ROWS, "#pragma unroll 1\n  for (int i = blockIdx.x * blockDim.x + threadIdx.x;"),
        ("grid_stride", ROWS.replace("  const int row = blockIdx.x;\n", "").replace("row * n", "blockIdx.x * n").replace(
            "[row]", "[blockIdx.x]"), "return;\n#pragma unroll 1\n  for (int i"),  # above the loop, not above the row
        ("programmatic_dependent_launch vectorize grid_stride", ROWS, "launch_dependent(scale_rows<WIDTH>, shape.grid, shape.block"),
    ],
)  # fmt: skip
def test_what_is_written(steps: str, text: str, reads: str) -> None:
    new = after(text, steps)
    assert (reads in new and "[&](auto lanes)" in new) or "PACK" not in reads
    assert refused(new, steps.split()[-1])


def test_a_loop_whose_unrolling_is_chosen_keeps_that() -> None:
    assert "#pragma unroll 1" not in after(
        ROWS.replace("  for (int i", "#pragma unroll 4\n  for (int i"), "grid_stride"
    )


def test_keep_row_refuses_a_row_that_changes() -> None:
    text = after(TREE, "canonicalize_reductions").replace("float sum = 0.0f;", "float sum = 0.0f; y[n] = 1.0f;")
    text = text.replace("sum += x[", "sum += y[").replace("= x[blockIdx.x * n + i] /", "= y[blockIdx.x * n + i] /")
    assert refused(where_they_apply(text, "vectorize"), "cache_row_in_registers")


@pytest.mark.parametrize("value", ["exp(d)", "d / (1 + d)", "x[i] / d", "d / x[i]", "1.0 / sqrt(d)", "d * 0.1"])
def test_fast_math_leaves_doubles(value: str) -> None:
    new = ROWS.replace("const float f = factor[row];", f"const double d = factor[row];\n    const double f = {value};")
    assert value in new and refused(new, "fast_math")
    assert refused("__global__ void f(double* x) { x[0] = x[1] / x[2]; }\n", "fast_math"), "no half of a double"


WAITS = """\
__constant__ int offset;
constexpr int kStep = 4;

__global__ void copy(const int* x, int* y, int n) {
  __shared__ int shared[32];
  const int i = (blockIdx.x * blockDim.x + threadIdx.x) * kStep;
  // Threads behind the end.
  if (i >= n) return;
  const int* from = x + i;
  int* to = &y[i];  // 16 bytes
  FIRST
  to[0] = from[0];
}

extern "C" void run(const int* x, int* y, long n, cudaStream_t stream) { copy<<<n / 1024 + 1, 256, 0, stream>>>(x, y, n); }
"""


@pytest.mark.parametrize(
    "first",
    [
        "const int one = from[1];",
        "const int one = *from;",
        "const int one = offset;",
        "const int one = __ldg(from);",
        "shared[threadIdx.x % 32] = 0;",
        "if (n > 4) to[1] = 0;",
    ],
)
def test_dependent_launch_waits_behind_the_address_arithmetic(first: str) -> None:
    """A load, a call and a variable in memory wait; an idle thread waits where it returns."""
    new = after(WAITS.replace("FIRST", first), "programmatic_dependent_launch")
    lines = [line.strip() for line in new[new.index("void copy(") :].splitlines()]
    guard = lines.index("if (i >= n) {")
    assert lines[guard + 1].startswith("cudaGridDependencySynchronize();") and lines[guard + 2] == "return;"
    wait = next(n for n in range(guard + 2, len(lines)) if lines[n].startswith("wait_for_predecessor();"))
    assert lines[wait - 1] == "int* to = &y[i];  // 16 bytes" and lines[wait + 1] == first


def test_dependent_launch_needs_hopper_and_leaves_open_when_the_next_grid_is_set_up() -> None:
    new = after(ROWS, "programmatic_dependent_launch")
    assert {tunable.name: tunable.choices for tunable in tunables(new)} == {"TRIGGER_WHEN": (0, 1, 2)}
    ampere = Facts(spec=SPEC, device=H200.model_copy(update={"architecture": "sm_80"}))
    assert apply_step("programmatic_dependent_launch", ROWS, ampere) is None


def test_every_rewrite_is_complete_and_deterministic() -> None:
    for name, rewrite in catalog().items():
        assert rewrite.languages and {"cuda", "cpu"} >= rewrite.languages, name
        assert rewrite.expected and rewrite.helps, name
        for text in (ROWS, TREE) if "cuda" in rewrite.languages else ():
            assert rewrite(Source(text, "cuda"), FACTS) == rewrite(Source(text, "cuda"), FACTS), name
