"""The contract on all inputs: the first plan has the steps that it should, and computes what the reference says."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from kernels import catalog as kernels
from nodes.policies.rules import RulesPolicy
from nodes.roles import CoderRequest, Finding, PlannerRequest
from tests.nodes.rewrites.emulate.emulation import emulated
from tests.nodes.rewrites.steps import H200, ROOT

MINI_BATCH = {"gather_mean", "gather_rows_by_id", "relabel", "sample_neighbors", "scatter_mean_backward"}
"""No bundle was looked at for these yet. Their baselines are emulated by tests/kernels/test_kernels_emulated.py, whose
inputs are graphs, which the emulation here does not draw."""
EVERY = sorted([*(ROOT / "tests/inputs").glob("*/baseline*.cu"), *(ROOT / "kernels").glob("*/baseline.*.cu")])
NO_PLAN = {
    "block_scaled_fp8_product/baseline.production.cu", "grouped_moe_product/baseline.production.cu",
    "l2_normalize/baseline.vector.cu", "layer_norm/baseline.functors.cu", "moe_align/baseline.production.cu",
    "prefill_attention/baseline.production.cu", "relu_squared/baseline.vector.cu", "rope_kv_write/baseline.production.cu",
    "top_p_renormalize/baseline.production.cu", "w4a16_gemv/baseline.production.cu",
}  # fmt: skip
"""No rewrite finds anything in their text; the compiler's text of their reference is what is tried."""
INPUTS = [p for p in EVERY if p.parent.name not in MINI_BATCH and f"{p.parent.name}/{p.name}" not in NO_PLAN]
NEED_ALIGNMENT = {"l2_normalize/baseline.vector.cu", "relu_squared/baseline.vector.cu"}
"""Their own baseline reads 16 bytes from any address."""


def first_plan(path: Path) -> tuple[tuple[str, ...], str]:
    """What the first round makes of a baseline."""
    kernel, text = kernels.load(str(path.parent)), path.read_text()
    finding, policy = Finding(bound="latency", summary=""), RulesPolicy()
    plans = policy.planner(
        PlannerRequest(
            spec=kernel.spec, device=H200, finding=finding, incumbent="b", source=text, attempts=(), sources={"b": text}
        )
    )
    if not plans:
        return (), ""
    answer = policy.coder(CoderRequest(spec=kernel.spec, device=H200, finding=finding, plan=plans[0], source=text))
    return plans[0].steps, answer.source


QUICK = {
    "fused_add_rmsnorm/extracted", "gather_rows/vector", "gelu_and_mul/plain", "head_norm_rope/plain",
    "head_rms_norm/array", "merge_attn_states_lse/production", "quantize_fp8/plain",
    "relu_squared/plain", "rotary_embedding/plain", "short_softmax/block",
    "short_softmax/warp", "silu_and_mul/production",
}  # fmt: skip
"""The like of the others, or other steps' results on them, are emulated anyway."""


def named(path: Path) -> str:
    return f"{path.parent.name}/{path.stem.removeprefix('baseline.')}"


def test_well_written_texts_have_no_plan_and_all_others_have_one() -> None:
    without = {f"{path.parent.name}/{path.name}" for path in EVERY if not first_plan(path)[0]}
    assert without - {name for name in without if name.partition("/")[0] in MINI_BATCH} == NO_PLAN


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=() if named(path) in QUICK else pytest.mark.slow) for path in INPUTS],
    ids=lambda path: f"{path.parent.name}/{path.name}",
)
def test_bundles_compute_what_the_reference_says(path: Path, tmp_path: Path) -> None:
    steps, text = first_plan(path)
    assert steps
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
    candidate.write_text(first_plan(path)[1])
    compile_for_hopper(candidate)
