"""Every problem of the starter suite of several operators, as it is: drafted, built, beside eager; in CUDA one compiles, and on a GPU all run.

One draw of the inputs, and another of fewer rows: test_modules.py has several draws of every group of kernels."""

import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from compiler import draft
from tests.nodes.draft.direct import Pair, native_source

SUITE = Path(__file__).resolve().parents[3] / "kernels" / "suites" / "starter"
PROBLEMS = sorted(SUITE.glob("level*/*.py"))
IDS = [f"{path.parent.name}/{path.stem}" for path in PROBLEMS]
SEVERAL = [path for path in PROBLEMS if path.parent.name != "level1"]


@pytest.mark.parametrize("path", SEVERAL, ids=[f"{path.parent.name}/{path.stem}" for path in SEVERAL])
def test_a_starter_problem_agrees_with_eager(path, tmp_path):
    # torch.export takes 9 s for 32 steps of a loop, and 1 s for 5.
    pair = Pair(path.read_text().replace("16, 32, 64, 128", "16, 5, 64, 128"), tmp_path)
    pair.check(0, pair.inputs(0))
    pair.check(2, pair.inputs(2, leading=7))


@pytest.mark.gpu
@pytest.mark.parametrize("path", PROBLEMS, ids=IDS)
def test_a_starter_problem_agrees_with_eager_on_a_gpu(path, tmp_path):
    torch.backends.cudnn.allow_tf32 = False
    pair = Pair(path.read_text(), tmp_path, "cuda")
    for seed in (0, 1):
        pair.check(seed, pair.inputs(seed))


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc was not found")
def test_a_draft_in_cuda_compiles(tmp_path):
    source = tmp_path / "draft.cu"
    text = (SUITE / "level3/2_Residual_network.py").read_text()
    source.write_text(native_source(draft.draft(text, "cuda"), "cuda"))
    command = ["nvcc", "-std=c++17", "-ptx", "-arch=compute_90", "-o", str(tmp_path / "draft.ptx"), str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:3000]
