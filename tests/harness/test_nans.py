"""Values that are no numbers: the kernel's own baseline says whether they must come out as none."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from harness.evaluate import Evaluator
from harness.store import Store
from kernels import catalog
from tests.test_run import SPEC

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
REFERENCE = "import torch\n\ndef reference(input):\n    return {'out': torch.clamp(input, max=0.5)}\n"
TEXT = """#include <cstdint>
extern "C" void twice_float32(const float* input, float* out, int64_t n) {
    for (int64_t i = 0; i < n; ++i) out[i] = %s;
}
"""
LOSES, HANDS_ON = TEXT % "input[i] < 0.5f ? input[i] : 0.5f", TEXT % "input[i] > 0.5f ? 0.5f : input[i]"


def verdicts(folder: Path, baseline: str, candidate: str) -> tuple[list[str], tuple[str, ...]]:
    """Outcomes of the baseline, then of the candidate, and what was said."""
    folder.mkdir()
    for name, text in (("spec.py", SPEC), ("reference.py", REFERENCE), ("baseline.cpp", baseline)):
        (folder / name).write_text(text)
    store = Store((folder / "store").resolve())
    with Evaluator(catalog.load(str(folder)), "cpu", store, dtypes=("float32",)) as evaluator:
        made = [evaluator.verify(evaluator.build(store.put(text))) for text in (baseline, candidate)]
        return [str(verdict.outcome) for verdict in made], evaluator.notices


def test_a_candidate_hands_them_on_where_the_baseline_does(tmp_path: Path) -> None:
    assert verdicts(tmp_path / "twice", HANDS_ON, LOSES)[0] == ["PASSED", "INCORRECT"]


def test_the_last_element_is_one_of_them(tmp_path: Path) -> None:
    """Who loses them behind what is done by eight at once had passed: of hundreds of thousands of elements three were not numbers."""
    tail = TEXT % "input[i] > 0.5f || (i >= n - n % 8 && !(input[i] < 0.5f)) ? 0.5f : input[i]"
    assert verdicts(tmp_path / "twice", HANDS_ON, tail.replace("n % 8", "(n % 8 ? n % 8 : 1)"))[0] == [
        "PASSED",
        "INCORRECT",
    ]


@pytest.mark.parametrize("candidate", [LOSES + "\n", HANDS_ON])
def test_what_ships_without_handing_them_on_is_a_baseline_and_it_is_said(tmp_path: Path, candidate: str) -> None:
    outcomes, notices = verdicts(tmp_path / "twice", LOSES, candidate)
    assert outcomes == ["PASSED", "PASSED"] and any("loses NaNs" in notice for notice in notices)


LOSES_INFINITIES = TEXT % "input[i] > 0.5f ? 0.5f : input[i] < -1e30f ? -1e30f : input[i]"


def test_infinities_are_asked_for_as_nans_are(tmp_path: Path) -> None:
    assert verdicts(tmp_path / "twice", HANDS_ON, LOSES_INFINITIES)[0] == ["PASSED", "INCORRECT"]
    outcomes, notices = verdicts(tmp_path / "other", LOSES_INFINITIES, LOSES_INFINITIES + "\n")
    assert outcomes == ["PASSED", "PASSED"] and any("loses infinities" in notice for notice in notices)
