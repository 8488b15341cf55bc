"""What a run leaves in its folder for people: best.cu or best.cpp, best.diff, result.json, report.html."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from graph.conversation import exchanges
from graph.runs import Run
from harness.report import html
from harness.report.result import Result
from harness.report.source import diff_text
from harness.store import write_atomically

SUFFIX = {"cuda": "cu", "cpu": "cpp"}


def best_file(run: Run, result: Result) -> Path:
    return run.folder / f"best.{'py' if result.problem else SUFFIX[result.device]}"


def write(run: Run, result: Result) -> None:
    """The files that a run is for, each whole or not at all. Raises OSError where the disk is full."""
    before, after = run.store.get(result.source), run.store.get(result.best)
    best = best_file(run, result)
    write_atomically(best, after)
    write_atomically(run.folder / "best.diff", diff_text(before, after, f"{result.baseline} (baseline)", best.name))
    # Last, because whoever finds it may expect the others.
    write_atomically(run.folder / "result.json", result.model_dump_json(indent=1) + "\n")


def write_report(run: Run, result: Result, graph_svg: str) -> None:
    names = {result.source, result.best, *(row.candidate for row in result.attempts)} - {""}
    sources = {name: run.store.get(name) for name in sorted(names)}
    said = exchanges(run.folder / "transcript.jsonl")
    write_atomically(run.folder / "report.html", html.render(result, sources, graph_svg=graph_svg, transcript=said))


def read(run: Run) -> Result | None:
    """The record of a finished run, None where it was never written or by another version."""
    try:
        return Result.model_validate_json((run.folder / "result.json").read_bytes())
    except (OSError, ValidationError):
        return None
