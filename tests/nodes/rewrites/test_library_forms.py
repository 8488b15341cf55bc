"""Forms of serving engines' and llm.c's kernels: cooperative groups, launches through a variable, CUDA's
word for alignment, arguments by default."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodes.policies.rules import applied_step
from tests.nodes.rewrites.steps import body
from tests.nodes.rewrites.test_foreign_traits import kernel, refused
from tests.nodes.rewrites.test_row_forms import HARRIS, ROWS, after, computes_the_norm

GROUPS = """\
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <math.h>
namespace cg = cooperative_groups;

__global__ void norm_kernel(float* out, const float* inp, const float* weight, int N, int C) {
  cg::thread_block block = cg::this_thread_block();
  cg::thread_block_tile<32> warp = cg::tiled_partition<32>(block);
  int idx = blockIdx.x * warp.meta_group_size() + warp.meta_group_rank();
  if (idx >= N) {
    return;
  }
  const float* x = inp + idx * C;
  float sum = 0.0f;
  for (int i = warp.thread_rank(); i < C; i += warp.size()) sum += x[i];
  sum = cg::reduce(warp, sum, cg::plus<float>{});
  float m = sum / C;
  sum = 0.0f;
  for (int i = warp.thread_rank(); i < C; i += warp.size()) {
    float diff = x[i] - m;
    sum += diff * diff;
  }
  sum = cg::reduce(warp, sum, cg::plus<float>{});
  float s = rsqrtf(sum / C + 1e-5f);
  float* o = out + idx * C;
  for (int c = warp.thread_rank(); c < C; c += warp.size()) o[c] = (x[c] - m) * s * weight[c];
}

extern "C" void norm(float* out, const float* inp, const float* weight, long N, long C) {
  norm_kernel<<<(N + 7) / 8, 256, 0, 0>>>(out, inp, weight, N, C);
}
"""


def test_other_words_of_groups() -> None:
    more = """\
  auto tile = cg::tiled_partition<32>(cg::this_thread_block());
  float v = cg::reduce(tile, x[2] + 1, cg::greater<float>());
  block.sync();
  if (v > 0) o[0] = block.thread_rank() + block.size();
"""
    last = GROUPS.rindex("  for (int c")
    kernel = body(after(GROUPS[:last] + more + GROUPS[last:], "lower_cooperative_groups"), "norm_kernel")
    assert "float v = warp_max(static_cast<float>(x[2] + 1)); __syncthreads();" in kernel
    assert "o[0] = threadIdx.x + blockDim.x;" in kernel


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("256, 0", "dim3(32, 8), 0"),  # warps along the second dimension: thread_rank() is no threadIdx.x
        ("256, 0", "C / 3, 0"),  # blocks that may not be whole warps
        ("tiled_partition<32>(block)", "tiled_partition<16>(block)"),
        ("cg::plus<float>{}", "Mine{}"),
        ("float m = sum / C;", "float m = ask(warp, sum);"),  # handed on
        ("float m = sum / C;", "float m = sum / C; { int warp = 3; m += warp; }"),  # two things of one name
        ("float m = sum / C;", "float m = sum / C + block.group_index().x;"),
    ],
)
def test_other_groups_stay(old: str, new: str) -> None:
    assert old in GROUPS
    assert applied_step("lower_cooperative_groups", GROUPS.replace(old, new), ROWS) is None


@pytest.mark.parametrize(
    "declared",
    [
        "extern __shared__ __align__(sizeof(float)) char bytes[];",
        "extern __align__(16) __shared__ char bytes[];",
        "__align__(16) extern __shared__ char bytes[];",
    ],
)
def test_alignment_is_said_in_standard_words(declared: str) -> None:
    text = f"__global__ void k(float* x) {{\n  int n = 1;\n  {declared}\n  x[n] = bytes[0];\n}}\n"
    new = after(text, "standard_alignas")
    given = declared[declared.index("(") : declared.index(")") + 1 + declared.count("))")]
    assert f"  alignas{given} extern __shared__ char bytes[];\n" in new


def test_alignment_of_other_things_stays() -> None:
    text = "struct __align__(8) Pair { float a, b; };\n__global__ void k(float* x) { Pair p = {1, 2}; x[0] = p.a; }\n"
    assert applied_step("standard_alignas", text, ROWS) is None


def test_a_launch_through_a_variable_names_its_kernel() -> None:
    launch = "  norm_kernel<256><<<N, 256, 0, 0>>>(out, inp, weight, N, C);"
    through = "  auto kernel = norm_kernel<256>;\n  cudaFuncSetAttribute(kernel, Most, 7);\n" + launch.replace(
        "norm_kernel<256>", "kernel"
    )
    new = after(HARRIS.replace(launch, through), "resolve_kernel_variables")
    assert new == HARRIS.replace(launch, "  cudaFuncSetAttribute(norm_kernel<256>, Most, 7);\n" + launch)
    for other in (
        through.replace(
            "auto kernel = norm_kernel<256>;", "auto kernel = norm_kernel<256>; if (N > 7) kernel = other;"
        ),
        through.replace("= norm_kernel<256>", "= choose(C)"),
    ):
        assert applied_step("resolve_kernel_variables", HARRIS.replace(launch, other), ROWS) is None


def test_defaults_are_written_out() -> None:
    text = kernel(
        "  y[0] = kBias ? bias[0] : x[0];",
        parameters="const float* x, float* y, int n, const float* bias = nullptr",
        launch="plain<256><<<rows, 256, 0, stream>>>(x, y, n);",
        head="template <int W, bool kBias = false> ",
    )
    new = after(text, "fill_default_arguments")
    assert "template <int W, bool kBias> " in new and "const float* bias)" in new
    assert "plain<256, false><<<rows, 256, 0, stream>>>(x, y, n, nullptr);" in new
    assert refused(text.replace("bool kBias = false", "bool kBias = W == 4"), "fill_default_arguments")


@pytest.mark.parametrize("steps", [(), ("vectorize", "warp_per_row")])
def test_groups_compute_the_same(steps: tuple[str, ...], tmp_path: Path) -> None:
    computes_the_norm(after(GROUPS, "lower_cooperative_groups", *steps), True, tmp_path)
