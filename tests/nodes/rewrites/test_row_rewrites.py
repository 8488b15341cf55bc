"""Rewrites of row reductions: rows in registers, rows over a cluster."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness.judge.tunables import bake, tunables
from kernels import catalog
from nodes.policies.rules import apply_step
from nodes.rewrites import Facts
from nodes.rewrites import catalog as rewrites
from tests.nodes.rewrites.steps import FACTS, ROOT, after, body, check, flat, refused, slow, stays, where_they_apply

TREE = """\
  partial[threadIdx.x] = v;
  __syncthreads();
  for (int s = blockDim.x / 2; s > 0; s >>= 1) {
    if (threadIdx.x < s) partial[threadIdx.x] OP;
    __syncthreads();
  }
"""
SUM = TREE.replace("OP", "+= partial[threadIdx.x + s]")
MAX = TREE.replace("OP", "= fmaxf(partial[threadIdx.x], partial[threadIdx.x + s])")
NORMALISE = f"""\
__global__ void normalise_rows(const float* x, float* y, int n) {{
  __shared__ float partial[256];
  float v = 0.0f;
  for (int i = threadIdx.x; i < n; i += blockDim.x) v += x[blockIdx.x * n + i];
{SUM}  for (int i = threadIdx.x; i < n; i += blockDim.x) y[blockIdx.x * n + i] = x[blockIdx.x * n + i] / partial[0];
}}

extern "C" void normalise(const float* x, float* y, long rows, long n, cudaStream_t stream) {{
  normalise_rows<<<rows, 256, 0, stream>>>(x, y, n);
}}
"""
SOFTMAX = f"""\
__global__ void soft_rows(const float* x, float* y, int n) {{
  __shared__ float partial[256];
  float v = -INFINITY;
  for (int i = threadIdx.x; i < n; i += blockDim.x) v = fmaxf(v, x[blockIdx.x * n + i]);
{MAX}  const float top = partial[0];
  __syncthreads();
  float sum = 0.0f;
  for (int i = threadIdx.x; i < n; i += blockDim.x) sum += expf(x[blockIdx.x * n + i] - top);
{SUM.replace("= v;", "= sum;")}  const float total = partial[0];
  for (int i = threadIdx.x; i < n; i += blockDim.x) y[blockIdx.x * n + i] = expf(x[blockIdx.x * n + i] - top) / total;
}}

extern "C" void soft(const float* x, float* y, long rows, long n, cudaStream_t stream) {{
  soft_rows<<<rows, 256, 0, stream>>>(x, y, n);
}}
"""
# Rows that stay in registers.


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("float v = 0.0f;", "float v = 0.0f; __shared__ float mine[1]; mine[0] = n;"),
        ("float v = 0.0f;", "float v = 0.0f; if (threadIdx.x < 7) v = n;"),
        ("const int first", "if (n > 9) break;\n    const int first"),  # what is not loaded is missing later on
    ],
)
def test_threads_that_do_more_than_their_share_keep_no_rows(old: str, new: str) -> None:
    assert stays("cache_row_in_registers", after(NORMALISE, "canonicalize_reductions", "vectorize"), old, new)


# Rows that need their own block.


ROW_TRAPS = [
    (
        "float v = 0.0f;",
        "float v = 0.0f; if (threadIdx.x == 0) y[blockIdx.x * n] = 0.0f;",
    ),  # what another thread writes, too
    ("v += x", "__syncwarp(); v += x"),  # threads that talk in another way
    ("float v = 0.0f;", "float v = 0.0f; __shared__ float mine; mine = 1.0f;"),
    ("float v = 0.0f;", "float v = 0.0f; if (threadIdx.x % 32 == 0) v = 1.0f;"),  # who is who in a warp
    ("float v = 0.0f;", "float v = y[blockIdx.x * n];"),  # what another thread writes
    ("y[blockIdx.x * n + i] =", "y[(blockIdx.x + gridDim.x) * n + i] ="),
    ("x[blockIdx.x * n + i] /", "y[blockIdx.x * n + n - 1 - i] /"),
]


@pytest.mark.parametrize(("old", "new"), ROW_TRAPS)
def test_rows_that_need_their_own_block_keep_it(old: str, new: str) -> None:
    assert old in NORMALISE
    assert refused(after(NORMALISE.replace(old, new, 1), "canonicalize_reductions"), "cluster_split")


# One row over a cluster.


def order(kernel: str, *more: str) -> list[str]:
    words = {"barrier_arrive", "barrier_wait", "cluster_sum", *more}
    return [part for part in re.split(r"\W+", kernel) if part in words]


def test_few_long_rows_are_shared_by_a_cluster() -> None:
    new = after(NORMALISE, "canonicalize_reductions vectorize", REGISTERS, DEPENDENT, "cluster_split")
    kernel = body(new, "normalise_rows_in_registers_over_cluster")
    assert order(kernel, "wait_for_predecessor", "load_lanes")[:3] == [
        "barrier_arrive",
        "wait_for_predecessor",
        "load_lanes",
    ]
    assert order(kernel) == ["barrier_arrive", "barrier_wait", "cluster_sum"]
    assert {t.name: t.choices for t in tunables(new)}["TRIGGER_WHEN"] == (1, 2)
    assert "row_cluster, true," in flat(new), "it may begin before its predecessor has ended"
    assert refused(new, "cluster_split")


def test_a_cluster_that_takes_row_after_row_waits_until_its_parts_are_read() -> None:
    text = (ROOT / "kernels/fused_add_rmsnorm/baseline.extracted.cu").read_text()
    kernel = body(
        after(text, "canonicalize_reductions", "vectorize", "cache_row_in_registers", "cluster_split"),
        "in_registers_over_cluster",
    )
    assert order(kernel, "for")[:2] == ["barrier_arrive", "for"]
    assert order(kernel) == ["barrier_arrive", "barrier_wait", "cluster_sum", "barrier_arrive", "barrier_wait"]


def test_a_cluster_needs_hopper_and_blocks_that_all_get_to_its_end() -> None:
    text = after(NORMALISE, "canonicalize_reductions")
    ampere = FACTS.model_copy(update={"device": FACTS.device.model_copy(update={"architecture": "sm_80"})})
    assert apply_step("cluster_split", text, ampere) is None and not refused(text, "cluster_split")
    assert refused(text.replace("float v = 0.0f;", "float v = 0.0f; if (n == 0) return;"), "cluster_split")


# When they are worth a first plan.


@pytest.mark.parametrize(("kernel", "few"), [("row_softmax", True), ("layer_norm", False), ("head_rms_norm", False)])
def test_the_workloads_say_whether_rows_are_few(kernel: str, few: bool) -> None:
    facts = Facts(spec=catalog.load(str(ROOT / "tests/inputs" / kernel)).spec, device=FACTS.device)
    assert (rewrites()["cluster_split"].speedup(facts) > 1) == few


# What all of them compute.

PREPARE = ("symbolic_block_size", "canonicalize_reductions", "vectorize")
"""Each where it applies."""
CLUSTERS = {"CLUSTER_STEPS": 128}
"""Rows are long enough for clusters."""
REGISTERS, DEPENDENT = "cache_row_in_registers", "programmatic_dependent_launch"
STEPS = [
    "float32:rows=2,columns=7",
    "float16:rows=5,columns=64",
    "float32:rows=2,columns=4100",
    "float16:rows=1,columns=20000",
]
"""Of one step a thread to eight, and rows whose last steps some threads do not have."""


@pytest.mark.parametrize(
    ("folder", "steps", "numbers", "workloads", "environment"),
    [
        ("kernels/fused_add_rmsnorm/extracted", (REGISTERS, DEPENDENT, "cluster_split"), {**CLUSTERS, "CLUSTER_THREADS": 64},
         ["float16:tokens=3,hidden=2048", "bfloat16:tokens=2,hidden=8200", "float32:tokens=1,hidden=515"], {}),
        slow("tests/inputs/row_softmax/plain", ("cluster_split",), CLUSTERS,
             ["float32:rows=3,columns=1028", "float16:rows=2,columns=515", "float32:rows=1,columns=9000"], {}),
        ("tests/inputs/row_softmax/plain", ("fast_math", REGISTERS, DEPENDENT), {}, STEPS, {"EMULATE_BACKWARDS": "1"}),
        slow("tests/inputs/row_softmax/plain", (REGISTERS,), {}, STEPS, {"EMULATE_MULTIPROCESSORS": "1"}),
        slow("tests/inputs/row_softmax/plain", (REGISTERS, DEPENDENT, "cluster_split"), {"CLUSTER_STEPS": 1}, STEPS, {}),
    ],
    ids=lambda value: value.split("/")[-2] if isinstance(value, str) else "+".join(value) if isinstance(value, tuple) else "",
)  # fmt: skip
def test_they_compute_what_the_reference_says(
    folder: str, steps: tuple[str, ...], numbers: dict[str, int], workloads: list[str], environment: dict[str, str],
    tmp_path: Path,
) -> None:  # fmt: skip
    where, _, name = folder.rpartition("/")
    text = where_they_apply((ROOT / where / f"baseline.{name}.cu").read_text(), *PREPARE)
    check(bake(after(text, *steps), numbers), tmp_path, ROOT / where, "0", "1", *workloads, **environment)
