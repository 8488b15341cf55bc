"""A run's best is left under the name of what it is, and an earlier one under another name goes."""

from __future__ import annotations

from pathlib import Path

from graph import outputs
from graph.runs import RunFolder
from tests.harness.report.example import RESULT

MODULE = "import torch\n\n\nclass ModelNew(torch.nn.Module):\n    pass\n"
NATIVE = 'extern "C" void step_float32(const float* x) {}\n'


def test_the_best_of_a_problem_may_be_native(tmp_path: Path):
    run = RunFolder(tmp_path, "r")
    run.reserve()
    source = run.store.put(MODULE)
    for text, name, other in (
        (MODULE, "best.py", "best.cpp"),
        (NATIVE, "best.cpp", "best.py"),
        (MODULE, "best.py", "best.cpp"),
    ):
        best = run.store.put(text)
        result = RESULT.model_copy(update={"problem": True, "device": "cpu", "source": source, "best": best})
        outputs.write(run, result)
        assert outputs.best_file(run, result) == run.folder / name
        assert (run.folder / name).read_text() == text and not (run.folder / other).exists()
