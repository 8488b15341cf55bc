"""Random kernels through random lists of rewrites, run before and after: `python -m benchmarks.fuzz_rewrites --seconds 3600`.

CUDA runs in the tests' emulation, so no GPU is needed. Prints the counts as it goes; ends with status 1 where something
failed, each cause once, made small, in the folder that --keep names. `--again FILE` judges such a case again.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from tests.nodes.rewrites.fuzz.search import PROGRAMS, Case, Failure, Search, judged, shrunk, with_fewer_steps
from tests.nodes.rewrites.fuzz.trial import Bench

PROGRESS_S = 20


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60, help="how long to go on (60); a round is finished")
    parser.add_argument("--rewritten", type=int, help="stop after so many rewritten texts")
    parser.add_argument(
        "--seed", type=int, default=0, help="where to begin; runs from different thousands do not overlap soon"
    )
    parser.add_argument("--language", choices=sorted(PROGRAMS), action="append", help="both where left out")
    parser.add_argument("--keep", type=Path, help="folder for the failing cases, before and after")
    parser.add_argument(
        "--shrink-seconds", type=float, default=120, help="how long to make one case smaller; 0: not at all"
    )
    parser.add_argument("--again", type=Path, nargs="+", help="judge kept cases again")
    return parser.parse_args()


def _said(search: Search, number: int, begun: float) -> str:
    seconds = time.monotonic() - begun
    bad = (
        ", ".join(f"{count} {kind}" for kind, count in sorted(search.counts.items()) if kind != "right") or "none wrong"
    )
    pace = f"{search.rewritten / seconds:.1f} a second"
    return f"{search.language} to seed {number}: {search.kernels} kernels, {search.rewritten} rewritten ({pace}), {bad}"


def _small(
    bench: Bench, failures: list[Failure], known: dict[tuple[str, ...], Failure], seconds: float
) -> list[Failure]:
    """Of each cause that is new, by the steps that it needs, one case."""
    found = []
    for failure in failures:
        fewer = with_fewer_steps(bench, failure)
        if (fewer.verdict.kind, *fewer.case.steps) in known:
            continue
        known[fewer.verdict.kind, *fewer.case.steps] = fewer
        found.append(shrunk(bench, fewer, seconds) if seconds else fewer)
    return found


def _again(bench: Bench, paths: list[Path], keep: Path | None) -> int:
    failed = 0
    for path in paths:
        case = Case.loaded(path)
        verdict = judged(bench, case)
        failed += verdict.failed
        print(f"{path}: {verdict.kind} {verdict.said}")
        if keep is not None:
            keep.mkdir(parents=True, exist_ok=True)
            (keep / path.name).with_suffix(".after").write_text(verdict.text)
    return 1 if failed else 0


def main() -> int:
    wanted = _arguments()
    bench = Bench()
    if wanted.again:
        return _again(bench, wanted.again, wanted.keep)
    languages = wanted.language or sorted(PROGRAMS)
    failed = 0
    known: dict[tuple[str, ...], Failure] = {}
    for language in languages:
        search, begun = Search(language, bench), time.monotonic()
        until, shown, number = begun + wanted.seconds / len(languages), begun, wanted.seed
        for failures in search.rounds(wanted.seed, ahead=True):
            number += search.batch
            for failure in _small(bench, failures, known, wanted.shrink_seconds):
                failed += 1
                steps = " ".join(failure.case.steps)
                print(
                    f"{failure.verdict.kind}, seed {failure.seed}: {steps}: {failure.verdict.said[:300]}",
                    flush=True,
                )
                if wanted.keep:
                    failure.keep(wanted.keep, failed)
            over = time.monotonic() > until or (wanted.rewritten and search.rewritten >= wanted.rewritten)
            if over or time.monotonic() > shown + PROGRESS_S:
                shown = time.monotonic()
                print(_said(search, number, begun), flush=True)
            if over:
                break
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
