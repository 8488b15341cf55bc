"""An engine's Python kernel that imports modules of its package, and returns what it makes: in, and out again."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

from graph.bringing import bring
from harness.capture.modules import find_modules
from harness.evaluate import Evaluator
from harness.export import patch
from harness.store import Store
from kernels import catalog

KERNEL = """
import numpy
import torch

from engine.numbers import TWO
from .helpers import product


def scaled(x, scale, mode=0, dtype=None):
    return torch.from_numpy(product(product(x.numpy(), scale), TWO))
"""
ARGUMENTS = """
import torch


def scaled(x, scale):
    return x * scale * 2


def arguments():
    return [(torch.randn(n, 8), 0.5) for n in (3, 200)]
"""
WINNER = """
#include <cstdint>
extern "C" void scaled_float32(const float* x, float* out, float scale, int64_t x_0) {
    for (int64_t i = 0; i < 8 * x_0; ++i) out[i] = x[i] * scale * 2;
}
"""


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    ops = tmp_path / "engine" / "ops"
    ops.mkdir(parents=True)
    (tmp_path / "engine" / "__init__.py").write_text("import the_rest_of_the_engine\n")
    (ops / "__init__.py").write_text("from . import what_needs_a_gpu\n")
    (tmp_path / "engine" / "numbers.py").write_text("TWO = 2.0\n")
    (ops / "helpers.py").write_text(
        "import numpy\n\n\ndef product(a, b):\n    return numpy.multiply(a, b).astype('float32')\n"
    )
    (ops / "scaled.py").write_text(KERNEL)
    (tmp_path / "right.py").write_text(ARGUMENTS)
    return tmp_path


@pytest.fixture
def folder(engine: Path) -> Path:
    to = engine / "made"
    given = {"arguments": f"{engine}/right.py:arguments"}
    said = list(bring(f"{engine}/right.py:scaled", engine / "engine/ops/scaled.py", "scaled", to, **given))
    assert not any("imports" in one for one in said), said
    return to


def test_a_file_that_needs_what_is_not_there_says_so(engine: Path) -> None:
    (engine / "engine" / "numbers.py").write_text("import transformers_that_are_not_here\nTWO = 2.0\n")
    found = find_modules(engine / "engine/ops/scaled.py")
    assert found.missing == ("transformers_that_are_not_here",) and found.name == "engine.ops.scaled"


def test_it_runs_beside_the_modules_that_it_imports(folder: Path, tmp_path: Path) -> None:
    kernel = catalog.load(str(folder))
    assert set(kernel.headers) == {"include/engine/numbers.py", "include/engine/ops/helpers.py"}
    assert [argument.name for argument in kernel.spec.arguments] == ["x", "out", "scale", "x_0"]
    with Evaluator(kernel, "cpu", Store(tmp_path / "store")) as evaluator:
        own = evaluator.store.put((folder / "baseline.py").read_text())
        verdict = evaluator.verify(evaluator.build(own))
        assert verdict.passed, verdict.reason
        verdict = evaluator.verify(evaluator.build(evaluator.store.put(WINNER)))
        assert verdict.passed, verdict.reason


def test_its_winner_makes_what_it_returns(folder: Path, engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = catalog.load(str(folder)).spec
    files = patch.patch_files(spec, KERNEL, KERNEL, WINNER, "scaled.py", "cpu", packaged=True)
    own = files.pop("scaled.py")
    assert "dtype is None and (astrolabe_launched_outputs := astrolabe_launched(x=x, scale=scale)) is not None" in own
    assert "mode == 0 and " in own
    place = engine / "engine" / "ops"
    for name, text in files.items():
        (place / name).write_text(text)
    monkeypatch.setenv("ASTROLABE_CACHE", str(engine / "cache"))
    (module,) = (name for name in files if name.endswith(".py"))
    loading = importlib.util.spec_from_file_location("scaled_astrolabe_made", place / module)
    assert loading is not None and loading.loader is not None
    made = importlib.util.module_from_spec(loading)
    monkeypatch.setitem(sys.modules, "scaled_astrolabe_made", made)
    loading.loader.exec_module(made)
    x = torch.randn(5, 8)
    torch.testing.assert_close(made.made(x=x, scale=3.0), x * 6)
    assert made.made(x=x.t(), scale=3.0) is None and made.made(x=x.double(), scale=3.0) is None
