"""compute-sanitizer on one candidate: memory errors, races in shared memory, reads of uninitialised memory.

Each tool runs the candidate once a workload in the tools' box (harness/processes/toolbox.py). Only a finding decides: a candidate
that misbehaves under the eyes of memcheck has misbehaved, while one that is clean may have noticed that it was watched.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pydantic import Field

from harness.device import cuda_home
from harness.judge import staging
from harness.processes.toolbox import Ran, Toolbox, ToolboxUnavailable
from harness.records import Build, Check, Outcome, Verdict
from kernels.spec import Frozen, Spec, Workload

NAME = "compute-sanitizer"
TOOLS = ("memcheck", "racecheck", "initcheck")
SECONDS = 90.0
"""Seconds for one tool. It slows a kernel ten to a thousand times, so the workloads are to be small."""
FOUND = 86
"""The exit status that we ask for where there is a finding."""
PADDING_BYTES = 1024
"""memcheck keeps so much unallocated after each allocation, the candidate's own ones included."""
WORDS = 400
"""Characters of the tool's own words that a reason holds."""

_PREFIX = re.compile(r"^={9} ?")
_SUMMARY = re.compile(
    r"^(?:ERROR SUMMARY: (\d{1,12}) errors?|RACECHECK SUMMARY: \d{1,12} hazards? displayed \((\d{1,12}) errors?, (\d{1,12}) warnings?\))"
)
_WARNING = re.compile(r"^warning:", re.IGNORECASE)
_AT_A_PLACE = re.compile(
    r"\bby thread \(| access at |^(?:error|warning): (?:race reported|potential \w+ hazard)", re.IGNORECASE
)
"""Matches a record about the candidate's device code; one about a CUDA call or about the tool itself does not
match."""


class Report(Frozen):
    """What one tool said. `errors` is None where it did not come to an end."""

    tool: str
    errors: int | None = Field(default=None, ge=0)
    warnings: int = Field(default=0, ge=0)
    words: str = ""
    """The first error, else the first warning, in the tool's own words, or why there is no answer."""
    seconds: float = 0.0


def find() -> Path | None:
    """compute-sanitizer of the CUDA toolkit, else of the PATH."""
    home = cuda_home()
    places = [home / "bin" / NAME, home / NAME / NAME] if home else []
    on_path = shutil.which(NAME)
    return next((place for place in [*places, *([Path(on_path)] if on_path else [])] if place.is_file()), None)


def watch(
    spec: Spec, build: Build, workloads: Sequence[Workload], on: str, say: Callable[[str], None] = lambda _text: None
) -> tuple[Report, ...]:
    """One report a tool, in their order, up to the first that finds an error. They run side by side: most of a second each is their start."""
    if why := staging.why_not(build):
        return (Report(tool=NAME, words=why),)
    tool = find()
    if tool is None:
        return (Report(tool=NAME, words="it was not found (it comes with the CUDA toolkit)"),)
    say(f"{NAME}: {', '.join(TOOLS)}")

    def run(name: str) -> Report:
        try:
            return _run(tool, name, spec, build, workloads, on)
        except ToolboxUnavailable as error:
            return Report(tool=NAME, words=str(error))

    with ThreadPoolExecutor(len(TOOLS)) as pool:
        reports = list(pool.map(run, TOOLS))
    last = next((at for at, report in enumerate(reports) if report.errors or report.tool == NAME), len(reports))
    return tuple(reports[: last + 1])


def judge(verdict: Verdict, reports: Sequence[Report]) -> Verdict:
    """The PASSED verdict with a check for each tool that came to an end; INCORRECT, untimed, with the first error."""
    ended = [report for report in reports if report.errors is not None]
    # Not twice: a run that is continued after its end brings a verdict that has been here.
    checks = [check for check in verdict.checks if not check.name.startswith(NAME)]
    checks += [
        Check(
            workload="the small ones",
            name=_named(report),
            passed=not report.errors,
            message=report.words if report.errors else "",
        )
        for report in ended
    ]
    warnings = [text for text in verdict.warnings if not text.startswith(NAME)]
    warnings += [f"{_named(report)}: {report.words}" for report in ended if report.warnings and not report.errors]
    silent: dict[str, list[str]] = {}
    for report in reports:
        if report.errors is None:
            silent.setdefault(report.words, []).append(report.tool)
    for words, tools in silent.items():
        named = "" if tools == [NAME] else f" ({', '.join(tools)})"
        warnings.append(f"{NAME}{named} says nothing: {words}")
    update: dict = {"checks": tuple(checks), "warnings": tuple(warnings)}
    if bad := next((report for report in ended if report.errors), None):
        return verdict.failed(Outcome.INCORRECT, f"{_named(bad)}: {bad.words}", **update)
    return verdict.model_copy(update=update)


def _named(report: Report) -> str:
    return NAME if report.tool == NAME else f"{NAME} {report.tool}"


def describe(reports: Sequence[Report]) -> str:
    """One line for the report: what was run and what it found."""

    def said(report: Report) -> str:
        if report.errors is None:
            return f"{report.tool} says nothing ({report.words})"
        return f"{report.tool} {report.errors or 'no'} error{'' if report.errors == 1 else 's'}"

    return "; ".join(said(report) for report in reports)


def _run(tool: Path, name: str, spec: Spec, build: Build, workloads: Sequence[Workload], on: str) -> Report:
    options = ["--tool", name, "--log-file", "report.txt", "--error-exitcode", str(FOUND), "--print-limit", "20"]
    options += ["--show-backtrace", "device"]
    if name == "memcheck":  # a call that fails is not yet a wrong access: probing what the device can do is allowed
        options += ["--report-api-errors", "no", "--padding", str(PADDING_BYTES)]
    with Toolbox() as box:
        staged = staging.stage(spec, build, workloads, on, box.scratch)
        readable = [*staged.readable, str(tool), str(tool.resolve().parent)]
        ran = box.run([str(tool), *options, *staged.command], readable=readable, seconds=SECONDS)
        return read(name, box.read("report.txt"), ran)


def read(name: str, log: str, ran: Ran) -> Report:
    """The report of a tool's log, each line of which begins with `=========`, a record's later ones indented."""
    records, summary = _records(log)
    about_code = [record for record in records if any(_AT_A_PLACE.search(line) for line in record)]
    warnings = [record for record in about_code if _WARNING.match(record[0])]
    errors = [record for record in about_code if record not in warnings]
    counted_errors, counted_warnings = summary or (0, 0)
    untracked = any(record[0].startswith("Internal Sanitizer Error") for record in records)
    if errors or (summary is not None and not counted_errors and not untracked and ran.code in (0, FOUND)):
        return Report(
            tool=name,
            errors=max(len(errors), counted_errors),
            warnings=max(len(warnings), counted_warnings),
            words=_words((errors or warnings or [[]])[0]),
            seconds=ran.seconds,
        )
    said = ran.killed or next((_words(record) for record in records), "") or _last_line(ran.output)
    return Report(tool=name, words=(said or f"it ended with status {ran.code}")[:WORDS], seconds=ran.seconds)


def _records(log: str) -> tuple[list[list[str]], tuple[int, int] | None]:
    """Records as lines without the prefix, and the summary's (errors, warnings), None where there was none."""
    records: list[list[str]] = []
    summary: tuple[int, int] | None = None
    for line in log.splitlines():
        text, prefixed = _PREFIX.subn("", line, count=1)
        if not prefixed or not text.strip() or text.startswith("COMPUTE-SANITIZER"):
            continue
        if match := _SUMMARY.match(text):
            summary = summary or (int(match[1] or match[2]), int(match[3] or 0))
        elif text.endswith(" SUMMARY") or " SUMMARY: " in text:
            continue
        elif text[0].isspace() and records:
            records[-1].append(text.strip())
        else:
            records.append([text.strip()])
    return records, summary


def _words(record: list[str]) -> str:
    return " ".join(line for line in record if "backtrace" not in line and " Frame:" not in f" {line}")[:WORDS]


def _last_line(output: str) -> str:
    lines = output.strip().splitlines()
    return lines[-1].strip() if lines else ""
