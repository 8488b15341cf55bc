"""Elements of the next step copied while a step is worked on: the worked example of nodes/rewrites/README.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodes.policies.rules import apply_step
from tests.nodes.rewrites.emulate.emulation import emulated
from tests.nodes.rewrites.steps import FACTS, ROOT, after

FOLDER = ROOT / "tests" / "inputs" / "l2_normalize"
SOURCE = (FOLDER / "baseline.vector.cu").read_text()
FIRST = "    const float4 v = row[i];\n    sum"


def test_a_load_through_the_read_only_cache_is_one_too() -> None:
    new = after(SOURCE.replace(FIRST, FIRST.replace("row[i]", "__ldg(row + i)")), "double_buffering")
    assert "copy_ahead(&v_ahead[turn ^ 1][threadIdx.x], row + next);" in new


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("const float4 v = row[i];", "const float4 v = row[i]; if (v.x > 9.0f) break;"),
        ("const float4 v = row[i];", "const int at = i; const float4 v = row[at];"),  # known within the step alone
        ("const float4 v = row[i];", "const float4 v = out[i];"),  # which the kernel writes
        ("const float4 v = row[i];", "const float v = reinterpret_cast<const int*>(row)[i]; sum += v;"),  # converted
        ("<<<rows, 256", "<<<rows, 1024"),  # more shared memory than it is worth
        ("<<<rows, 256", "<<<rows, columns / 4"),  # how much is only known when it runs
        ("<<<rows, 256", "<<<rows, dim3(32, 8)"),
        ("  for (int i", "#pragma unroll 2\n  for (int i"),
    ],
)
def test_other_loops_stay(old: str, new: str) -> None:
    assert old in SOURCE
    loop = SOURCE.index("  for (int i = threadIdx.x")
    head, tail = SOURCE[:loop], SOURCE[loop:]
    changed = apply_step("double_buffering", head + tail.replace(old, new, 1), FACTS)
    assert changed is None or "v_ahead_2" not in changed


def test_it_takes_ampere() -> None:
    turing = FACTS.model_copy(update={"device": FACTS.device.model_copy(update={"architecture": "sm_75"})})
    assert apply_step("double_buffering", SOURCE, turing) is None and turing.compute_capability == 75


@pytest.mark.parametrize("lost", ["", "__pipeline_wait_prior(1);", "turn ^ 1"])
def test_it_computes_the_same_and_only_so(lost: str, tmp_path: Path) -> None:
    """Also that the emulation, in which copies arrive as late as they may, would notice what is left out."""
    candidate = tmp_path / "candidate.cu"
    text = after(SOURCE, "double_buffering")
    candidate.write_text(text.replace(lost, {"turn ^ 1": "turn"}.get(lost, "")) if lost else text)
    ended = emulated(FOLDER, candidate, "0")
    assert (ended.returncode == 0) == (lost == ""), ended.stdout + ended.stderr
