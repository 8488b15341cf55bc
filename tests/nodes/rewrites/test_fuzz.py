"""Random programs through random lists of rewrites: every case that was found so far, and a few new ones.

A file of `fuzz/found` names steps in its first line; what they make of the program must compute what the program computes.
`python -m benchmarks.fuzz_rewrites --keep FOLDER` writes such files.
"""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

import pytest

from nodes.policies.rules import _rewritten
from nodes.rewrites import Facts, catalog
from nodes.rewrites.syntax.source import Source
from tests.nodes.rewrites.fuzz.search import Case, Failure, Search, with_fewer_steps
from tests.nodes.rewrites.fuzz.trial import Verdict, of_text
from tests.nodes.rewrites.steps import bench

FOUND = sorted((Path(__file__).parent / "fuzz" / "found").glob("*.c*"))


@pytest.fixture(scope="module")
def verdicts() -> dict[Path, Verdict]:
    """All at once, as most of the time goes by compiling."""
    cases = [Case.loaded(path) for path in FOUND]
    judged = bench().judge([(case.program, case.steps) for case in cases])
    return dict(zip(FOUND, judged, strict=True))


@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.stem)
def test_what_was_found_stays_mended(path: Path, verdicts: dict[Path, Verdict]) -> None:
    verdict = verdicts[path]
    assert verdict.kind == "right", f"{verdict.said}\n{verdict.text}"


def test_random_programs_keep_what_they_compute() -> None:
    """The same few every time, in C++; the tool goes on from there, and what it found in CUDA stands above."""
    search = Search("cpu", bench(), batch=2)
    (failures,) = itertools.islice(search.rounds(first=0), 1)
    assert search.rewritten > 15, "the steps must apply"
    for failure in failures:
        steps = " ".join(failure.case.steps)
        pytest.fail(f"{failure.verdict.kind}: {steps}\n{failure.verdict.said}\n{failure.case.program.text}")


ROWS = """\
__global__ void twice(const float* x, float* y, int n) {
  for (int i = threadIdx.x; i < n; i += blockDim.x) y[blockIdx.x * n + i] = 2.0f * x[blockIdx.x * n + i];
}
extern "C" void fuzz_float32(const float* x, float* y, int64_t rows, int64_t n, cudaStream_t stream) {
  twice<<<rows, 128, 0, stream>>>(x, y, n);
}
"""


def test_a_wrong_rewrite_is_noticed_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that loses the last element of every loop over a row, among steps that are right."""

    def rewrite(source: Source, facts: Facts) -> str | None:
        return source.text.replace("; i < n; ", "; i < n - 1; ")

    wrong = dataclasses.replace(catalog()["restrict_pointers"], apply=rewrite)
    monkeypatch.setitem(catalog(), "restrict_pointers", wrong)
    _rewritten.cache_clear()
    try:
        case = Case(of_text("cuda", ROWS, (4096, 4096), ()), ("restrict_pointers", "vectorize", "grid_stride"))
        (verdict,) = bench().judge([(case.program, case.steps)])
        assert verdict.kind == "wrong"
        fewer = with_fewer_steps(bench(), Failure(case, verdict, 0))
        assert fewer.case.steps == ("restrict_pointers",)
    finally:
        _rewritten.cache_clear()
