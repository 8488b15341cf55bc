"""Every problem of the starter suite, as it is: drafted, built, beside eager; in CUDA it compiles.

One draw of the inputs, and another of fewer rows: test_modules.py has several draws of every group of kernels."""

import shutil
from pathlib import Path

import pytest
import torch

from compiler import draft
from tests.nodes.draft.direct import Pair, native_source

SUITE = Path(__file__).resolve().parents[3] / "kernels" / "suites" / "starter"
PROBLEMS = sorted(SUITE.glob("level*/*.py"))
IDS = [f"{path.parent.name}/{path.stem}" for path in PROBLEMS]
TIED = ("Upper_triangular", "Diagonal")
"""Whose inputs' leading sizes depend on one another's."""


@pytest.mark.parametrize("path", PROBLEMS, ids=IDS)
def test_a_starter_problem_agrees_with_eager(path, tmp_path):
    # torch.export takes 9 s for 32 steps of a loop, and 2 s for 8.
    pair = Pair(path.read_text().replace("16, 32, 64, 128", "16, 8, 64, 128"), tmp_path)
    pair.check(0, pair.inputs(0))
    if not any(word in path.stem for word in TIED):
        pair.check(2, pair.inputs(2, leading=7))


@pytest.mark.gpu
@pytest.mark.parametrize("path", PROBLEMS, ids=IDS)
def test_a_starter_problem_agrees_with_eager_on_a_gpu(path, tmp_path):
    torch.backends.cudnn.allow_tf32 = False
    pair = Pair(path.read_text(), tmp_path, "cuda")
    for seed in (0, 1):
        pair.check(seed, pair.inputs(seed))


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc was not found")
@pytest.mark.parametrize("name", ["level1/3_Softmax", "level1/8_Cumulative_sum", "level3/2_Residual_network"])
def test_a_draft_in_cuda_compiles(name, tmp_path):
    import subprocess

    source = tmp_path / "draft.cu"
    source.write_text(native_source(draft.draft((SUITE / f"{name}.py").read_text(), "cuda"), "cuda"))
    command = ["nvcc", "-std=c++17", "-ptx", "-arch=compute_90", "-o", str(tmp_path / "draft.ptx"), str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:3000]
