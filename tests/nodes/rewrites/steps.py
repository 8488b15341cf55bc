"""What the tests of rewrites share: facts, steps one after another, and the emulation's word on what came out.

Steps are named one by one, or several in one text.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.records import DeviceFacts
from kernels.spec import Spec, Tensor, Workload
from nodes.policies.search import apply_step
from nodes.rewrites import Facts
from tests.nodes.rewrites.emulate.emulation import emulated

ROOT = Path(__file__).resolve().parents[3]
INPUTS = ROOT / "tests/inputs"
H200 = DeviceFacts(
    device="cuda", name="H200", architecture="sm_90", units=132, last_level_cache_bytes=50 << 20, bandwidth_gbps=4200
)
SPEC = Spec(
    name="anything",
    summary="any operation",
    axes=("n",),
    dtypes=("float32",),
    arguments=(Tensor(name="out", role="output", shape=("n",)),),
    workloads=(Workload(axes={"n": 1}, dtype="float32"),),
)
FACTS = Facts(spec=SPEC, device=H200)


def after(text: str, *steps: str, facts: Facts = FACTS) -> str:
    for step in " ".join(steps).split():
        changed = apply_step(step, text, facts)
        assert changed is not None, f"{step} does not apply"
        text = changed
    return text


def where_they_apply(text: str, *steps: str, facts: Facts = FACTS) -> str:
    for step in " ".join(steps).split():
        text = apply_step(step, text, facts) or text
    return text


def slow(*row: object) -> object:
    return pytest.param(*row, marks=pytest.mark.slow)


def flat(text: str) -> str:
    return " ".join(text.split())


def check(text: str, tmp_path: Path, folder: Path, *arguments: str, **environment: str) -> str:
    """Emulated, the text computes what the folder's reference says. Returns what it said on the way."""
    candidate = tmp_path / "candidate.cu"
    candidate.write_text(text)
    ended = emulated(folder, candidate, *arguments, **environment)
    assert ended.stdout.strip() == "right", ended.stdout + ended.stderr
    return ended.stderr
