"""Random programs through random lists of rewrites: every case that was found so far, and as many new ones as half a minute takes.

A file of `fuzz/found` names steps in its first line; what they make of the program must compute what the program computes.
`python -m benchmarks.fuzz_rewrites --keep FOLDER` writes such files.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.nodes.rewrites.fuzz.search import Case
from tests.nodes.rewrites.fuzz.trial import Bench, Verdict

FOUND = sorted((Path(__file__).parent / "fuzz" / "found").glob("*.c*"))


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with Bench() as bench:
        yield bench


@pytest.fixture(scope="module")
def verdicts(bench: Bench) -> dict[Path, Verdict]:
    """All at once, as most of the time goes by compiling."""
    cases = [Case.loaded(path) for path in FOUND]
    judged = bench.judge([(case.program, case.steps) for case in cases])
    return dict(zip(FOUND, judged, strict=True))


@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.stem)
def test_what_was_found_stays_mended(path: Path, verdicts: dict[Path, Verdict]) -> None:
    verdict = verdicts[path]
    assert verdict.kind == "right", f"{verdict.said}\n{verdict.text}"
