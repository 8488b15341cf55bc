"""Random programs through random lists of rewrites: every case that was found so far, and as many new ones as half a minute takes.

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
from tests.nodes.rewrites.fuzz.search import PROGRAMS, Case, Search, shrunk, with_fewer_steps
from tests.nodes.rewrites.fuzz.trial import Verdict
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


@pytest.mark.parametrize("language", sorted(PROGRAMS))
def test_random_programs_keep_what_they_compute(language: str) -> None:
    """The same few every time; the tool goes on from there."""
    search = Search(language, bench(), batch=2)
    (failures,) = itertools.islice(search.rounds(first=0), 1)
    assert search.rewritten > 15, "the steps must apply"
    for failure in failures:
        steps = " ".join(failure.case.steps)
        pytest.fail(f"{failure.verdict.kind}: {steps}\n{failure.verdict.said}\n{failure.case.program.text}")


def test_a_wrong_rewrite_is_noticed_and_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that loses the last element of every loop over a row."""

    def rewrite(source: Source, facts: Facts) -> str | None:
        return source.text.replace("; i < n; ", "; i < n - 1; ")

    wrong = dataclasses.replace(catalog()["restrict_pointers"], apply=rewrite)
    monkeypatch.setitem(catalog(), "restrict_pointers", wrong)
    _rewritten.cache_clear()
    try:
        search = Search("cuda", bench(), batch=1)
        found = [failure for failure in next(search.rounds(first=0)) if "restrict_pointers" in failure.case.steps]
        assert {failure.verdict.kind for failure in found} == {"wrong"}
        fewer = with_fewer_steps(bench(), found[0])
        assert fewer.case.steps == ("restrict_pointers",)
        small = shrunk(bench(), fewer, seconds=2)
        assert small.verdict.kind == "wrong" and len(small.case.program.text) <= len(found[0].case.program.text)
    finally:
        _rewritten.cache_clear()
