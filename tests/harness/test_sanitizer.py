"""compute-sanitizer's answers: its words as the manual shows them, and a stand-in for it in the real box."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest

from harness.evaluate import Evaluator
from harness.processes.toolbox import Ran
from harness.questions import Sanitize
from harness.records import Build, Check, Comparison, Interval, Outcome, Suite, Timing, Verdict
from harness.store import Store
from harness.tools import sanitizer
from harness.tools.sanitizer import Report
from kernels import catalog
from kernels.spec import Spec, Workload
from tests.harness import stand_in

needs_compiler = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")

CLEAN = """========= COMPUTE-SANITIZER
========= ERROR SUMMARY: 0 errors
"""
RACE_FREE = """========= COMPUTE-SANITIZER
========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)
"""
OUT_OF_BOUNDS = """========= COMPUTE-SANITIZER
========= Invalid __global__ read of size 4 bytes
=========     at void silu_kernel<float>(const T1 *, T1 *, long)+0x90 in candidate.cu:12
=========     by thread (31,0,0) in block (2,0,0)
=========     Address 0x7f3c7ec00400 is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7f3c7ec00000 of size 1,024 bytes
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: silu_and_mul_float32 [0xacd4] in candidate.so
=========
========= Invalid __global__ write of size 4 bytes
=========     at void silu_kernel<float>(const T1 *, T1 *, long)+0xb0 in candidate.cu:13
=========     by thread (0,0,0) in block (3,0,0)
=========     Address 0x7f3c7ec00800 is out of bounds
=========
========= ERROR SUMMARY: 36 errors
========= ERROR SUMMARY: 34 errors were not printed. Use --print-limit option to adjust the number of printed errors
"""
RACE = """========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at sumKernel(int *, int *)+0x90 in block_error.cu:41
=========     and Read access at sumKernel(int *, int *)+0x100 in block_error.cu:51 [508 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
WARP_RACE = """========= COMPUTE-SANITIZER
========= Warning: Race reported between Read access at sumKernel(int *, int *)+0x190 in warp_error.cu:57
=========     and Write access at sumKernel(int *, int *)+0x1b0 in warp_error.cu:57 [124 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (0 errors, 1 warning)
"""
UNINITIALISED = """========= COMPUTE-SANITIZER
========= Uninitialized __global__ memory read of size 4 bytes
=========     at vectorAdd(int *)+0x70 in memset_error.cu:41
=========     by thread (31,0,0) in block (1,0,0)
=========     Address 0x7f3c7ec000fc
=========
========= ERROR SUMMARY: 48 errors
"""
CLUSTER = """========= COMPUTE-SANITIZER
========= Potential invalid __shared__ read of size 4 bytes
=========     at RemoteAccess(int *, int)+0x170 in RaceCluster.cu:10
=========     by thread (0,0,0) in block (0,0,0)
=========     Address 0x1000400 is located in a block that might not have entered yet
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
NOT_STARTED = """========= COMPUTE-SANITIZER
========= Error: Target application terminated before first instrumented API call
========= Error: couldn't find exit code.
"""
CALL_FAILED = """========= COMPUTE-SANITIZER
========= Program hit cudaErrorMemoryAllocation (error 2) due to "out of memory" on CUDA API call to cudaMalloc.
=========     Saved host backtrace up to driver entry point at error
=========         Host Frame: cudaMalloc [0x56624] in libcudart.so.13
=========
========= Target application returned an error
========= ERROR SUMMARY: 1 error
"""
UNTRACKED = """========= COMPUTE-SANITIZER
========= Internal Sanitizer Error: The Sanitizer encountered an error while launching kernel and didn't track the launch. Errors might go undetected. (Unable to allocate enough memory to perform the requested operation)
=========
========= ERROR SUMMARY: 0 errors
"""


def ran(code: int = 0, output: str = "", killed: str = "") -> Ran:
    return Ran(code, output, killed, 2.5, ())


@pytest.mark.parametrize(
    ("log", "code", "errors", "warnings", "words"),
    [
        (CLEAN, 0, 0, 0, ""),
        (RACE_FREE, 0, 0, 0, ""),
        (OUT_OF_BOUNDS, 86, 36, 0, "Invalid __global__ read of size 4 bytes at void silu_kernel<float>("),
        (OUT_OF_BOUNDS, 3, 36, 0, "Invalid __global__ read"),  # the wrong access has broken the context as well
        (RACE, 86, 1, 0, "Error: Race reported between Write access at sumKernel(int *, int *)+0x90 in block_error.cu:41 and"),
        (WARP_RACE, 86, 0, 1, "Warning: Race reported"),
        (WARP_RACE, 0, 0, 1, "Warning: Race reported"),
        (UNINITIALISED, 86, 48, 0, "Uninitialized __global__ memory read of size 4 bytes at vectorAdd(int *)+0x70"),
        (CLUSTER, 86, 1, 0, "Potential invalid __shared__ read"),
    ],
)  # fmt: skip
def test_what_a_log_says(log: str, code: int, errors: int, warnings: int, words: str) -> None:
    report = sanitizer.read("memcheck", log, ran(code))
    assert (report.errors, report.warnings) == (errors, warnings)
    assert report.words.startswith(words) and len(report.words) <= sanitizer.WORDS
    assert "Frame" not in report.words and "backtrace" not in report.words and "=====" not in report.words


@pytest.mark.parametrize(
    ("log", "how", "words"),
    [
        (NOT_STARTED, ran(255), "Error: Target application terminated before first instrumented API call"),
        (CALL_FAILED, ran(86), "Program hit cudaErrorMemoryAllocation"),
        (CLEAN, ran(3, "cudaMalloc of 12 bytes: out of memory\n"), "cudaMalloc of 12 bytes: out of memory"),
        ("", ran(-9, "", "took longer than 120 s"), "took longer than 120 s"),
        ("", ran(1, "error while loading shared libraries"), "error while loading shared libraries"),
        ("", ran(7), "it ended with status 7"),
        (
            OUT_OF_BOUNDS.partition("=========     by thread")[0],
            ran(-9, "", "used 9 GiB of memory"),
            "used 9 GiB of memory",
        ),
    ],
)
def test_what_is_about_no_device_code_is_no_finding(log: str, how: Ran, words: str) -> None:
    """Neither is it a clean answer."""
    report = sanitizer.read("memcheck", log, how)
    assert report.errors is None and report.words.startswith(words)


def test_a_launch_that_was_not_tracked_is_no_clean_answer() -> None:
    report = sanitizer.read("racecheck", UNTRACKED, ran())
    assert report.errors is None and report.words.startswith("Internal Sanitizer Error")


@pytest.mark.parametrize("count", ["9" * 5000, "-1", "", "many"])
def test_a_summary_that_a_candidate_wrote_harms_nobody(count: str) -> None:
    assert sanitizer.read("memcheck", f"========= ERROR SUMMARY: {count} errors\n", ran()).errors is None


def test_words_that_the_program_prints_are_not_the_tools() -> None:
    """They come in another file; a line without the prefix in the log is nobody's."""
    assert sanitizer.read("memcheck", CLEAN + "Invalid __global__ read\n   by thread (0,0,0)\n", ran()).errors == 0


# --- the verdict ------------------------------------------------------------------------------------------------------

CHECK = Check(workload="w", name="ordinary", passed=True)
WORKLOAD = Workload(axes={"n": 8}, dtype="float32")
SPEEDUP = Interval(median=1.5, low=1.4, high=1.6)
PASSED = Verdict(
    candidate="c",
    kernel="twice",
    device="gpu",
    outcome=Outcome.PASSED,
    checks=(CHECK,),
    timings=(
        Timing(workload=WORKLOAD, cache="cold", baseline_us=3.0, time_us=2.0, speedup=SPEEDUP, comparison=Comparison.FASTER, samples=9),
    ),
    suite=Suite(speedup=SPEEDUP, comparison=Comparison.FASTER),
    warnings=("it was warm",),
    build=Build(candidate="c", backend="cuda", ok=True),
)  # fmt: skip
ALL_CLEAN = tuple(Report(tool=tool, errors=0) for tool in sanitizer.TOOLS)


def test_a_clean_winner_keeps_its_verdict() -> None:
    verdict = sanitizer.judge(PASSED, ALL_CLEAN)
    assert verdict.passed and verdict.timings == PASSED.timings and verdict.warnings == PASSED.warnings
    assert [check.name for check in verdict.checks] == [
        "ordinary",
        "compute-sanitizer memcheck",
        "compute-sanitizer racecheck",
        "compute-sanitizer initcheck",
    ]
    assert sanitizer.describe(ALL_CLEAN) == "memcheck no errors; racecheck no errors; initcheck no errors"


def test_a_finding_is_incorrect_in_the_tools_own_words() -> None:
    reports = (Report(tool="memcheck", errors=0), sanitizer.read("racecheck", RACE, ran(86)))
    verdict = sanitizer.judge(PASSED, reports)
    assert verdict.outcome is Outcome.INCORRECT and verdict.timings == () and verdict.suite is None
    assert verdict.reason.startswith(
        "compute-sanitizer racecheck: Error: Race reported between Write access at sumKernel"
    )
    assert not verdict.checks[-1].passed and "block_error.cu:41" in verdict.checks[-1].message
    assert sanitizer.describe(reports) == "memcheck no errors; racecheck 1 error"


def test_a_tool_without_an_answer_and_a_warning_are_warnings() -> None:
    reports = (
        Report(tool="memcheck", words="took longer than 120 s"),
        sanitizer.read("racecheck", WARP_RACE, ran()),
        Report(tool="initcheck", words="took longer than 120 s"),
        Report(tool=sanitizer.NAME, words="it was not found"),
    )
    verdict = sanitizer.judge(PASSED, reports)
    assert verdict.passed and verdict.suite == PASSED.suite
    assert verdict.warnings[0] == "it was warm" and len(verdict.warnings) == 4
    assert "compute-sanitizer (memcheck, initcheck) says nothing: took longer than 120 s" in verdict.warnings
    assert "compute-sanitizer says nothing: it was not found" in verdict.warnings
    assert any(text.startswith("compute-sanitizer racecheck: Warning: Race") for text in verdict.warnings)


def test_a_verdict_that_was_judged_before_is_not_marked_twice() -> None:
    reports = (*ALL_CLEAN[:2], Report(tool="initcheck", words="took longer"))
    once = sanitizer.judge(PASSED, reports)
    assert sanitizer.judge(once, reports) == once


# --- the whole way, with a stand-in for the tool and for the GPU -------------------------------------------------------

SPEC = stand_in.twice(WORKLOAD)
CANDIDATE = """
#include <stdint.h>
#include <stdio.h>
void twice_float32(const float *input, float *out, int64_t n, void *stream) {
  for (int64_t i = 0; i < n; ++i) out[i] = 2 * input[i];
  printf("called\\n");
  fflush(stdout);
}
"""
# Takes the tool's options as the tool does: they end where the program begins.
TOOL = """#!/bin/sh
while [ $# -gt 0 ]; do
  case "$1" in
    --tool) tool=$2; shift 2;;
    --log-file) log=$2; shift 2;;
    --*) shift 2;;
    *) break;;
  esac
done
called=$("$@") || exit $?
[ "$called" = called ] || exit 9
. "$(dirname "$0")/answers"
"""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Build, Path]:
    """A candidate, and a file of the tool's folder that says what it answers: shell, with $tool and $log."""
    stand_in.runtime(tmp_path, monkeypatch)
    path = stand_in.tool(tmp_path, sanitizer.NAME, TOOL)
    monkeypatch.setattr(sanitizer, "find", lambda: path)
    return stand_in.candidate(tmp_path, CANDIDATE), path.parent / "answers"


def watched(build: Build) -> tuple[Report, ...]:
    reports = sanitizer.watch(SPEC, build, SPEC.workloads, "cpu")
    if "sandbox cannot be made" in reports[0].words:
        pytest.skip(reports[0].words)
    return reports


@needs_compiler
def test_each_tool_watches_the_candidate_in_the_box(machine: tuple[Build, Path]) -> None:
    build, answers = machine
    answers.write_text(
        f"case $tool in racecheck) text='{RACE_FREE}';; *) text='{CLEAN}';; esac\nprintf '%s' \"$text\" > $log\n"
    )
    reports = watched(build)
    assert [(report.tool, report.errors) for report in reports] == [(tool, 0) for tool in sanitizer.TOOLS]


@needs_compiler
def test_a_finding_ends_the_watch(machine: tuple[Build, Path]) -> None:
    build, answers = machine
    answers.write_text(f"printf '%s' '{OUT_OF_BOUNDS}' > $log; exit 86\n")
    (report,) = watched(build)
    assert report.tool == "memcheck" and report.errors == 36 and "candidate.cu:12" in report.words


@needs_compiler
def test_a_tool_that_cannot_start_its_program_says_so(machine: tuple[Build, Path]) -> None:
    build, answers = machine
    answers.write_text(f"printf '%s' \"{NOT_STARTED}\" > $log; exit 255\n")
    assert all(report.errors is None and "Target application" in report.words for report in watched(build))


def test_without_the_tool_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sanitizer, "find", lambda: None)
    (report,) = sanitizer.watch(SPEC, Build(candidate="c", backend="cuda", ok=True), SPEC.workloads, "cpu")
    assert report.errors is None and "was not found" in report.words


def test_a_candidate_that_is_called_with_tensors_is_not_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sanitizer, "find", lambda: Path("/bin/true"))
    (report,) = sanitizer.watch(SPEC, Build(candidate="c", backend="python_module", ok=True), SPEC.workloads, "cpu")
    assert report.errors is None and "python_module" in report.words


@pytest.fixture
def evaluator(tmp_path: Path) -> Evaluator:
    """On a CPU, told that it is on a GPU: what it asks of the tools is looked at, none is run."""
    made = Evaluator(catalog.load("silu_and_mul"), "cpu", Store(tmp_path))
    made.device, made.device_bytes = "cuda", 64 << 30
    return made


def test_the_evaluator_asks_once_and_keeps_whole_answers(evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Workload, ...]] = []
    answers = [(Report(tool="memcheck", words="took longer"),), ALL_CLEAN, ALL_CLEAN]

    def watch(_spec: Spec, _build: Build, workloads: list[Workload], *_: object) -> tuple[Report, ...]:
        asked.append(tuple(workloads))
        return answers[len(asked) - 1]

    monkeypatch.setattr(sanitizer, "watch", watch)
    assert any("took longer" in warning for warning in evaluator.sanitize(PASSED).warnings)
    for _ in range(2):  # what was not whole is asked again, what was is kept
        verdict = evaluator.sanitize(PASSED)
        assert verdict.passed and len(verdict.checks) == 4
    assert len(asked) == 2
    assert evaluator.measured["compute-sanitizer"] == "memcheck no errors; racecheck no errors; initcheck no errors"


def test_the_tools_work_beside_draws_and_nothing_is_timed_before_they_have_ended(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, may_end, order = threading.Event(), threading.Event(), list[str]()

    def watch(*_: object) -> tuple[Report, ...]:
        began.set()
        assert may_end.wait(20)
        order.append("tools")
        return ALL_CLEAN

    def draw(verdict: Verdict) -> Verdict:
        assert began.wait(20), "they began before"
        order.append("draws")
        threading.Timer(0.1, may_end.set).start()
        evaluator.pool.settle()  # as whatever is timed does
        order.append("launches")
        return verdict.model_copy(update={"seconds": 7.0})

    monkeypatch.setattr(sanitizer, "watch", watch)
    both = evaluator.sanitize_beside(PASSED, draw)
    assert order == ["draws", "tools", "launches"] and both.seconds == 7.0 and len(both.checks) == 4
    failed = evaluator.sanitize_beside(PASSED, lambda verdict: verdict.failed(Outcome.INCORRECT, "draw 7"))
    assert failed.reason == "draw 7"
    monkeypatch.setattr(sanitizer, "judge", lambda verdict, _: verdict.failed(Outcome.INCORRECT, "memcheck"))
    assert evaluator.sanitize_beside(PASSED, lambda verdict: verdict).reason == "memcheck"


def test_small_workloads_of_both_suites_and_every_dtype_are_watched(evaluator: Evaluator) -> None:
    chosen = Sanitize.workloads(evaluator)
    assert {workload.dtype for workload in chosen} == {"float16", "bfloat16", "float32"}
    assert {workload.held_out for workload in chosen} == {True, False}
    assert {"tokens": 13, "hidden": 2730} in [workload.axes for workload in chosen]
    assert sum(evaluator.moved_bytes(workload) for workload in chosen) < 16 << 20


def test_on_a_cpu_and_without_a_pass_the_verdict_stays(evaluator: Evaluator) -> None:
    failed = Verdict(candidate="c", kernel="twice", device="gpu", outcome=Outcome.TIMEOUT, reason="hangs")
    assert evaluator.sanitize(failed) is failed
    evaluator.device = "cpu"
    assert evaluator.sanitize(PASSED) is PASSED
