"""The CPU rewrites on whole kernels of C++: compiled, called, and compared with the reference in float64. No time is asserted."""

from __future__ import annotations

import ctypes
import math
import subprocess
from pathlib import Path

import pytest

from harness import device
from harness.backends import cpu
from harness.judge.tunables import bake, tunables
from harness.records import DeviceFacts
from kernels import catalog
from kernels.catalog import Kernel
from nodes.rewrites import Facts, ordered
from tests.nodes.rewrites.emulate.emulation import run
from tests.nodes.rewrites.steps import INPUTS, where_they_apply

FACTS = DeviceFacts(
    device="cpu", name="this machine", architecture=device.facts("cpu").architecture, units=2, last_level_cache_bytes=1 << 12
)  # fmt: skip
"""What is written runs here: lanes only where the processor has them."""
FLAGS = ["-O0" if flag == "-O3" else flag for flag in cpu.FLAGS]
"""What g++ vectorises of its own accord is nobody's topic here, and half of a build."""
FROM_CATALOG = ("fused_add_rmsnorm", "gather_mean", "merge_attn_states_lse", "scatter_mean_backward", "silu_and_mul")
"""Of the catalog, those whose C++ has forms of its own; the others' loops are of forms that these and tests/inputs have."""
KERNELS = {name: catalog.load(name) for name in FROM_CATALOG}
KERNELS |= {path.parent.name: catalog.load(str(path.parent)) for path in sorted(INPUTS.glob("*/baseline.cpp"))}
MOST_ELEMENTS = 1 << 17
"""Elements of a workload from which on the reference would take longer than all the rest of the test."""


def order() -> list[str]:
    """The CPU rewrites that plans put together, in their order."""
    return [rewrite.name for rewrite in ordered("cpu") if not rewrite.alone]


def rewritten(kernel: Kernel, text: str) -> str:
    """The text after every step that applies, tried again until none does."""
    facts, before = Facts(spec=kernel.spec, device=FACTS), ""
    while text != before:
        before, text = text, where_they_apply(text, *order(), facts=facts)
    return text


@pytest.mark.parametrize("name", ["gather_rows_by_id", "relabel"])
def test_what_nothing_fits_stays_as_it_is(name: str) -> None:
    """One copies rows already, one is a hash table."""
    kernel = catalog.load(name)
    text = kernel.baseline("cpu")[1].read_text()
    assert rewritten(kernel, text) == text


@pytest.mark.parametrize("name", KERNELS)
def test_the_whole_bundle(name: str, tmp_path: Path) -> None:
    kernel = KERNELS[name]
    baseline = kernel.baseline("cpu")[1].read_text()
    text = rewritten(kernel, baseline)
    assert text != baseline, "each of these kernels has something to rewrite"
    # Threads and stores past the cache at any size, so that small workloads go every way.
    text = bake(text, {t.name: 0 for t in tunables(text) if t.name in {"PARALLEL_FROM", "STREAM_FROM_MB"}})
    (tmp_path / "new.cpp").write_text(text)
    done = subprocess.run(
        ["g++", *FLAGS, "-o", tmp_path / "new.so", tmp_path / "new.cpp"], capture_output=True, text=True
    )
    assert done.returncode == 0, f"{done.stderr}\n{text}"
    library = ctypes.CDLL(str(tmp_path / "new.so"))
    sized = (*kernel.spec.suite("cpu"), *kernel.spec.suite("cpu", held_out=True))
    sized = sorted(sized, key=lambda workload: math.prod(workload.axes.values()))
    small = [workload for workload in sized if math.prod(workload.axes.values()) <= MOST_ELEMENTS]
    for workload in small or sized[:1]:
        for offset in (0, 1):
            assert run(kernel.spec, kernel, library, workload, offset) == "", workload.label
