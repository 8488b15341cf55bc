"""Each rewrite on a source before and after, what it refuses, and what the emulation says of whole bundles."""

from __future__ import annotations

import shutil
import subprocess
import warnings
from pathlib import Path

import pytest

from harness.tunables import tunables
from kernels import catalog as kernels
from nodes.policies.rules import RulesPolicy, applied_step
from nodes.rewrites import Facts, catalog
from nodes.rewrites.syntax.source import Source
from nodes.roles import CoderRequest, Finding, PlannerRequest
from tests.nodes.rewrites.emulate.emulation import emulated
from tests.nodes.rewrites.steps import FACTS, H200, ROOT, SPEC, after, refused, stays

MINI_BATCH = {"gather_mean", "gather_rows_by_id", "relabel", "sample_neighbors", "scatter_mean_backward"}
"""No bundle was looked at for these yet. Their baselines are emulated by tests/kernels/test_minibatch_kernels_emulated.py, whose
inputs are graphs, which the emulation here does not draw."""
EVERY = sorted([*(ROOT / "tests/inputs").glob("*/baseline*.cu"), *(ROOT / "kernels").glob("*/baseline.*.cu")])
BY_CUB = "scaled_rms_norm/baseline.cub.cu"
"""Its first plan is compiled by nvcc alone: the emulation has no CUB."""
INPUTS = [p for p in EVERY if p.parent.name not in MINI_BATCH and f"{p.parent.name}/{p.name}" != BY_CUB]
NEED_ALIGNMENT = {"l2_normalize/baseline.vector.cu", "relu_squared/baseline.vector.cu"}
"""Their own baseline reads 16 bytes from any address."""

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
def test_pack_refuses_what_it_does_not_understand(old: str, new: str) -> None:
    changed = after(ROWS.replace(old, new), "vectorize") if not refused(ROWS.replace(old, new), "vectorize") else ""
    assert "store_lanes(&y" not in changed


def test_pack_needs_a_barrier_between_two_uses_not_just_any() -> None:
    """Each thread reads again what it wrote itself; with packs those are another thread's elements."""
    first = "    for (int i = threadIdx.x; i < n; i += blockDim.x) kept[row * n + i] = x[row * n + i];\n"
    then = "    for (int i = threadIdx.x; i < n; i += blockDim.x) atomicAdd(&y[row], kept[row * n + i]);\n"
    barrier = "    __syncthreads();\n"

    def text(*parts: str) -> str:
        return (
            "#include <cuda_runtime.h>\n#include <cstdint>\n__global__ void steps(const float* __restrict__ x, "
            "float* __restrict__ kept, float* __restrict__ y, int64_t n) {\n    const int64_t row = blockIdx.x;\n"
            + "".join(parts)
            + '}\nextern "C" void f(const float* x, float* kept, float* y, int64_t rows, int64_t n, cudaStream_t s) {\n'
            "    steps<<<rows, 256, 0, s>>>(x, kept, y, n);\n}\n"
        )

    assert "store_lanes(&kept" in after(text(first, barrier, then), "vectorize")
    for parts in ((first, then), (barrier, first, then), (first, then, barrier)):
        assert refused(text(*parts), "vectorize")


def test_pack_reads_what_the_same_statement_writes() -> None:
    new = after(ROWS.replace("__half2float(x[row * n + i])", "__half2float(y[row * n + i])"), "vectorize")
    assert "y_pack = load_lanes<VEC>(&y[row * n + first]);" in new


def test_names_of_the_host_are_not_hidden() -> None:
    """A size named like a variable of ours once made every row come from the wrong place."""
    text = ROWS.replace("long n,", "long width,").replace("x, factor, y, n)", "x, factor, y, width)")
    new = after(text, "vectorize")
    assert "[&](auto lanes)" in new and "width % PACK == 0" in new


def test_spread_refuses_threads_that_talk() -> None:
    assert refused(TREE, "grid_stride")
    assert refused(ROWS.replace("const float f", "__syncwarp(); const float f"), "grid_stride")
    assert refused(ROWS.replace("factor[row]", "factor[threadIdx.x]"), "grid_stride")
    group = "auto block = cooperative_groups::this_thread_block(); block.sync(); const float f"
    assert refused(ROWS.replace("const float f", group), "grid_stride"), "a group that lower_cooperative_groups left"


def test_what_is_written_once_a_row_keeps_its_block() -> None:
    text = ROWS.replace("  for (int i", "  if (threadIdx.x == 0) factor_out[row] = 1.0f;\n  for (int i")
    text = text.replace("__half* y, int n", "__half* y, float* factor_out, int n").replace(", y, n)", ", y, 0, n)")
    assert refused(text, "grid_stride")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("<<<rows, 256", "<<<rows, n"),  # perhaps no whole warps
        ("/ partial[0]", "/ partial[1]"),  # not the result
        ("+= partial[threadIdx.x + s]", "+= 2 * partial[threadIdx.x + s]"),
        ("if (threadIdx.x < s) partial", "if (threadIdx.x < s && n > 3) partial2[0] = 1, partial"),
        ("  sums<<<rows, 256", "  auto run = &sums; run<<<rows, 256"),  # launched by nobody that is seen
    ],
)
def test_warp_reduce_refuses_other_trees(old: str, new: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a rewrite that raises anything but Unsupported is one
        assert refused(TREE.replace(old, new), "canonicalize_reductions")


def test_keep_row_refuses_a_row_that_changes() -> None:
    text = after(TREE, "canonicalize_reductions").replace("float sum = 0.0f;", "float sum = 0.0f; y[n] = 1.0f;")
    text = text.replace("sum += x[", "sum += y[").replace("= x[blockIdx.x * n + i] /", "= y[blockIdx.x * n + i] /")
    assert refused(after(text, "vectorize") if not refused(text, "vectorize") else text, "cache_row_in_registers")


def test_fast_math_touches_floats_only() -> None:
    text = ROWS.replace("* f)", "/ (1.0f + expf(-f)) + n / 3)")
    new = after(text, "fast_math")
    assert "__fdividef(__half2float(x[row * n + i]), 1.0f + __expf(-f)) + n / 3" in new


@pytest.mark.parametrize("value", ["exp(d)", "d / (1 + d)", "x[i] / d", "d / x[i]", "1.0 / sqrt(d)", "d * 0.1"])
def test_fast_math_leaves_doubles(value: str) -> None:
    new = ROWS.replace("const float f = factor[row];", f"const double d = factor[row];\n    const double f = {value};")
    assert value in new and refused(new, "fast_math")


def test_fast_math_makes_no_half_of_a_double() -> None:
    text = "__global__ void f(double* x) { x[0] = x[1] / x[2]; }\n"
    assert refused(text, "fast_math")


def test_dependent_launch_waits_before_the_first_access() -> None:
    new = after(ROWS, "programmatic_dependent_launch")
    body = new[new.index("int n) {") :]
    assert body.index("blockIdx.x") < body.index("wait_for_predecessor();") < body.index("x[row")
    assert "launch_dependent(scale_rows, rows, 256, 0, stream, x, factor, y, n);" in new
    assert refused(new, "programmatic_dependent_launch")


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


def test_what_says_when_the_next_grid_is_set_up_may_be_chosen_by_size() -> None:
    new = after(ROWS, "programmatic_dependent_launch")
    assert {tunable.name: tunable.choices for tunable in tunables(new)} == {"TRIGGER_WHEN": (0, 1, 2)}
    assert refused(new, "programmatic_dependent_launch")


def test_dependent_launch_needs_hopper_and_every_kernel_in_sight() -> None:
    ampere = Facts(spec=SPEC, device=H200.model_copy(update={"architecture": "sm_80"}))
    assert applied_step("programmatic_dependent_launch", ROWS, ampere) is None
    assert refused(ROWS.replace("scale_rows<<<", "elsewhere<<<"), "programmatic_dependent_launch")


def test_steps_apply_on_top_of_a_dependent_launch() -> None:
    new = after(ROWS, "programmatic_dependent_launch", "vectorize", "grid_stride")
    assert "launch_dependent(scale_rows<WIDTH>, shape.grid, shape.block" in new


@pytest.mark.parametrize(
    ("old", "now"),
    [
        ("hidden % lanes == 0 && addresses", "addresses"),  # rows of any length
        ("hidden % lanes == 0 && addresses", "hidden % lanes == 0 || addresses"),
        ("lanes = 16 / sizeof(T);", "lanes = 8 / sizeof(T);"),
        ("T lane[16 / sizeof(T)];", "T lane[8 / sizeof(T)];"),
    ],
)
def test_a_tail_that_rows_may_need_stays(old: str, now: str) -> None:
    assert stays("trim_vector_tail", (ROOT / "kernels/silu_and_mul/baseline.production.cu").read_text(), old, now)


def test_spread_does_not_unroll_what_is_one_step() -> None:
    """nvcc unrolls a float loop four times, for which each thread divides 64-bit integers first."""
    new = after(ROWS, "grid_stride")
    assert "#pragma unroll 1\n  for (int i = blockIdx.x * blockDim.x + threadIdx.x;" in new
    chosen = ROWS.replace("  for (int i", "#pragma unroll 4\n  for (int i")
    assert "#pragma unroll 1" not in after(chosen, "grid_stride")
    bare = (
        ROWS.replace("  const int row = blockIdx.x;\n", "")
        .replace("row * n", "blockIdx.x * n")
        .replace("[row]", "[blockIdx.x]")
    )
    assert "return;\n#pragma unroll 1\n  for (int i" in after(bare, "grid_stride")  # above the loop, not above the row


def test_block_size_changes_the_grid_with_the_block() -> None:
    text = ROWS.replace("const int row = blockIdx.x;", "const int row = 0;").replace(
        "threadIdx.x;", "blockIdx.x * blockDim.x + threadIdx.x;"
    )
    text = text.replace("i += blockDim.x", "i += blockDim.x * gridDim.x").replace(
        "<<<rows, 256", "<<<(n + 255) / 256, 256"
    )
    new = after(text, "tune_block_size")
    assert "<<<(n + (BLOCK_THREADS - 1)) / BLOCK_THREADS, BLOCK_THREADS, 0, stream>>>" in new
    assert refused(text.replace("(n + 255) / 256", "n / 2560 + 1"), "tune_block_size")
    assert refused(text.replace("__global__ void", "__global__ void __launch_bounds__(512)"), "tune_block_size")


def test_block_extent_lets_the_width_be_chosen() -> None:
    text = ROWS.replace("i += blockDim.x", "i += 256")
    assert "i += blockDim.x" in after(text, "symbolic_block_size")
    assert refused(text.replace("<<<rows, 256", "<<<rows, 128"), "symbolic_block_size")


def test_restrict_wants_different_buffers() -> None:
    assert "const __half* __restrict__ x" in after(ROWS, "restrict_pointers")
    assert refused(ROWS.replace("(x, factor, y, n);", "(y, factor, y, n);"), "restrict_pointers")


def test_every_rewrite_is_complete_and_deterministic() -> None:
    for name, rewrite in catalog().items():
        assert rewrite.languages and {"cuda", "cpu"} >= rewrite.languages, name
        assert rewrite.expected and rewrite.helps, name
    for text in (ROWS, TREE):
        for name, rewrite in catalog().items():
            if "cuda" in rewrite.languages:
                assert rewrite(Source(text, "cuda"), FACTS) == rewrite(Source(text, "cuda"), FACTS), name


def _bundle(path: Path) -> tuple[tuple[str, ...], str]:
    """What the first round makes of a baseline."""
    kernel, text = kernels.load(str(path.parent)), path.read_text()
    finding, policy = Finding(bound="latency", summary=""), RulesPolicy()
    plans = policy.planner(
        PlannerRequest(
            spec=kernel.spec, device=H200, finding=finding, incumbent="b", source=text, attempts=(), sources={"b": text}
        )
    )
    assert plans, "no rule fits"
    answer = policy.coder(CoderRequest(spec=kernel.spec, device=H200, finding=finding, plan=plans[0], source=text))
    return plans[0].steps, answer.source


EXPECTED = {
    "add_bias_grid": {"fold_branches", "vectorize"},
    "bias_scale_residual": {"vectorize"},
    "cross_entropy": {"online_reduction", "vectorize", "vectorize_online_reduction", "tune_block_size"},
    "gather_rows": {"grid_stride"},
    "gelu_and_mul": {"fast_tanh"},
    "head_norm_rope": {"inline_device_functions", "vectorize", "warp_per_row"},
    "head_rms_norm/array": {"rematerialize_row_arrays", "vectorize", "warp_per_row"},
    "head_rms_norm": {"vectorize", "warp_per_row"},
    "l2_normalize": {"canonicalize_reductions", "redundant_broadcast", "cache_row_in_registers"},
    "layer_norm/functors": {
        "resolve_struct_templates",
        "inline_device_functions",
        "unpack_struct_parameters",
        "canonicalize_reductions",
        "vectorize",
        "cache_row_in_registers",
    },
    "layer_norm/planar": {"flatten_blocks", "canonicalize_reductions", "vectorize", "cache_row_in_registers"},
    "layer_norm": {"canonicalize_reductions", "vectorize", "cache_row_in_registers"},
    "log_softmax": {"vectorize", "vectorize_unaligned_rows"},
    "masked_softmax": {
        "free_reserved_names",
        "single_assignment",
        "canonicalize_loops",
        "canonicalize_reductions",
        "vectorize",
        "cache_row_in_registers",
    },
    "online_softmax": {"single_assignment", "online_reduction", "vectorize", "vectorize_online_reduction"},
    "quantize_fp8": {"vectorize"},
    "quantize_rows/lambda": {
        "inline_device_functions",
        "canonicalize_reductions",
        "vectorize",
        "cache_row_in_registers",
    },
    "quantize_rows": {"canonicalize_reductions", "vectorize", "cache_row_in_registers"},
    "quick_gelu": {"expand_macros", "vectorize", "grid_stride"},
    "relu_squared": {"tune_block_size"},
    "rescale_groups": {"vectorize", "neighbouring_rows_per_block"},
    "residual_then_norm": {"fuse_kernels", "canonicalize_reductions", "vectorize", "cache_row_in_registers"},
    "rotary_embedding": {"vectorize", "grid_stride"},
    "rotary_query_key": {
        "inline_device_functions",
        "split_template_instances",
        "fold_branches",
        "single_assignment",
        "vectorize",
        "grid_stride",
    },
    "row_entropy": {"symbolic_block_size", "online_reduction", "vectorize", "vectorize_online_reduction"},
    "row_logsumexp": {"canonicalize_reductions", "vectorize", "cache_row_in_registers"},
    "row_softmax/functors": {
        "inline_device_functions",
        "canonicalize_reductions",
        "vectorize",
        "cache_row_in_registers",
    },
    "row_softmax": {"canonicalize_reductions", "vectorize", "cache_row_in_registers"},
    "scaled_rms_norm/vectors": {"standard_alignas", "resolve_kernel_variables"},
    "scaled_rms_norm/warps": {"lower_cooperative_groups", "vectorize", "warp_per_row"},
    "scaled_rms_norm": {
        "fill_default_arguments",
        "fold_branches",
        "single_assignment",
        "lower_store_intrinsics",
        "canonicalize_reductions",
        "redundant_broadcast",
        "vectorize",
        "cache_row_in_registers",
    },
    "short_softmax/block": {
        "rematerialize_row_arrays",
        "canonicalize_reductions",
        "vectorize",
        "cache_row_in_registers",
    },
    "short_softmax": {"rematerialize_row_arrays", "symbolic_block_size", "vectorize", "warp_per_row"},
    "thread_layer_norm": {
        "block_per_row",
        "fast_math",
        "vectorize",
        "cache_row_in_registers",
        "programmatic_dependent_launch",
    },
    "thread_softmax": {
        "block_per_row",
        "fast_math",
        "vectorize",
        "cache_row_in_registers",
        "programmatic_dependent_launch",
    },
    "fused_add_rmsnorm": {"cache_row_in_registers"},
    "merge_attn_states_lse/production": {
        "symbolic_block_size",
        "fast_math",
        "neighbouring_rows_per_block",
        "tune_block_size",
    },
    "merge_attn_states_lse": {
        "restrict_pointers",
        "vectorize",
        "grid_stride",
        "fast_math",
        "neighbouring_rows_per_block",
    },
    "silu_and_mul": {"grid_stride"},
}


LONG = {
    "residual_then_norm", "layer_norm", "masked_softmax", "row_softmax", "thread_layer_norm",
    "quantize_rows", "relu_squared/vector", "gelu_and_mul/vector", "thread_softmax", "gather_rows/plain", "rescale_groups",
    "add_bias_grid", "log_softmax", "merge_attn_states_lse/extracted", "online_softmax", "row_entropy", "silu_and_mul/extracted",
    "l2_normalize", "bias_scale_residual", "cross_entropy", "row_logsumexp", "rotary_query_key",
    "head_rms_norm", "short_softmax", "quick_gelu", "fused_add_rmsnorm/production", "scaled_rms_norm",
}  # fmt: skip
"""Of these, a baseline or all, whose like is emulated anyway: the norm, production ones, head_norm_rope, relu_squared; and of
other steps' own tests."""


def is_long(path: Path) -> bool:
    return bool({path.parent.name, f"{path.parent.name}/{path.stem.removeprefix('baseline.')}"} & LONG)


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=pytest.mark.slow if is_long(path) else ()) for path in INPUTS],
    ids=lambda path: f"{path.parent.name}/{path.name}",
)
def test_bundles_compute_what_the_reference_says(path: Path, tmp_path: Path) -> None:
    steps, text = _bundle(path)
    named = f"{path.parent.name}/{path.stem.removeprefix('baseline.')}"
    assert EXPECTED.get(named, EXPECTED[path.parent.name]) <= set(steps)
    candidate = tmp_path / "candidate.cu"
    candidate.write_text(text)
    offsets = ["0"] if f"{path.parent.name}/{path.name}" in NEED_ALIGNMENT else ["0", "1"]
    ended = emulated(path.parent, candidate, *offsets)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def compile_for_hopper(candidate: Path) -> None:
    flags = ["-std=c++17", "-O3", "-arch=sm_90", "-cubin"]
    command = ["nvcc", *flags, "-o", str(candidate.with_suffix(".cubin")), str(candidate)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on PATH")
@pytest.mark.parametrize("path", EVERY, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_nvcc_takes_every_first_plan(path: Path, tmp_path: Path) -> None:
    """Once that of relabel named an index that nothing declared."""
    candidate = tmp_path / "candidate.cu"
    candidate.write_text(_bundle(path)[1])
    compile_for_hopper(candidate)
