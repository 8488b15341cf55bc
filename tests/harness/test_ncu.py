"""Nsight Compute's answers: its `--csv --page raw` as documented, and a stand-in for it in the real box."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from harness import probes
from harness.evaluate import Evaluator
from harness.judge import staging
from harness.probes import hot_loop, ncu
from harness.processes.toolbox import Ran, ToolboxUnavailable
from harness.questions import Readings, ReadProbe
from harness.records import Build, DeviceFacts
from harness.store import Store
from kernels import catalog
from kernels.spec import Spec, Workload
from tests.harness import stand_in

needs_compiler = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
H200 = DeviceFacts(device="cuda", name="NVIDIA H200", architecture="sm_90", units=132, last_level_cache_bytes=60 << 20)

FIXED = '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC"'
COUNTERS = {
    "dram__bytes_read.sum": ("byte", "1,048,576"),
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": ("%", "61.25"),
    "gpu__time_duration.sum": ("ns", "12,416"),
    "l1tex__t_sector_hit_rate.pct": ("%", "n/a"),
    "launch__registers_per_thread": ("register/thread", "40"),
    ncu.STALL.format("long_scoreboard"): ("inst", "17.53"),
    ncu.STALL.format("barrier"): ("inst", "1.21"),
    ncu.STALL.format("wait"): ("inst", "0.04"),
}


def table(kernels: dict[str, str], **values: str) -> str:
    """What ncu writes for these kernels (name -> nanoseconds), the other counters as above."""
    names = [name for name in COUNTERS if name not in values or values[name]]
    lines = [
        "==PROF== Connected to process 42 (/usr/bin/python3.12)",
        '==PROF== Profiling "k" - 0: 0%....50%....100% - 9 passes',
    ]
    lines += ["==PROF== Disconnected from process 42", FIXED + "".join(f',"{name}"' for name in names)]
    lines.append(",".join(['""'] * 11 + [f'"{COUNTERS[name][0]}"' for name in names]))
    for index, (kernel, nanoseconds) in enumerate(kernels.items()):
        row = [str(index), "42", "python3.12", "127.0.0.1", kernel, "1", "13", "(256, 1, 1)", "(16, 1, 1)", "0", "9.0"]
        row += [nanoseconds if name == "gpu__time_duration.sum" else COUNTERS[name][1] for name in names]
        lines.append(",".join(f'"{field}"' for field in row))
    return "\n".join(lines) + "\n"


WORKLOAD = Workload(axes={"n": 8}, dtype="float32")


def test_launches_become_profiles() -> None:
    first, second = ncu.profiles(table({'void silu<float, 4>(const T1 *, ""x"")': "12,416", "fill(int *)": "900"}))
    assert first.kernel.startswith("void silu<float, 4>") and second.kernel == "fill(int *)"
    assert (first.grid, first.block) == ("(16, 1, 1)", "(256, 1, 1)")
    assert first.nanoseconds == 12416.0 and first.counters["dram__bytes_read.sum"] == 1048576.0
    assert "l1tex__t_sector_hit_rate.pct" not in first.counters  # n/a


def test_times_in_other_units_are_nanoseconds() -> None:
    text = table({"k": "12.416"}).replace('"ns"', '"usecond"')
    assert ncu.profiles(text)[0].nanoseconds == pytest.approx(12416.0)


@pytest.mark.parametrize(
    "text",
    [
        '"ID","Kernel Name","gpu__time_duration.sum"\n"","","ns"\n"0"\n',
        '"ID","Kernel Name","gpu__time_duration.sum"\n"0","' + "k" * 200_000 + '","1"\n',
        '"ID"\n"0"\n',
        '"\x00","Kernel Name"\n',
        '"ID","Kernel Name","gpu__time_duration.sum"\n"","",""\n',
    ],
)
def test_a_table_that_a_candidate_wrote_harms_nobody(text: str) -> None:
    assert ncu.profiles(text) == []


def test_counters_that_are_no_numbers_are_left_out_and_launches_are_bounded() -> None:
    rows = '"0","k","inf"\n' + '"1","k","nan"\n' + '"2","k","1e400"\n' * 100
    profiles = ncu.profiles('"ID","Kernel Name","gpu__time_duration.sum"\n"","","ns"\n' + rows)
    assert 0 < len(profiles) <= ncu.LAUNCHES and all(profile.counters == {} for profile in profiles)
    assert ncu.summarise(WORKLOAD, profiles)["kernel"].startswith("k ")


def test_readings_are_of_the_longest_launch() -> None:
    readings = ncu.summarise(WORKLOAD, ncu.profiles(table({"fill(int *)": "900", "work(float *)": "12,416"})))
    assert readings["workload"] == "float32 n=8" and readings["launches"] == "2"
    assert readings["kernel"] == "work(float *) grid (16, 1, 1) block (256, 1, 1)"
    assert readings["microseconds"] == "12.42" and readings["DRAM throughput %"] == "61.25"
    assert readings["registers a thread"] == "40" and readings["DRAM bytes read"] == "1048576"
    assert readings["warps waiting, for each that issues"] == "long_scoreboard 17.5, barrier 1.2"
    assert "L1 hit %" not in readings and "occupancy %" not in readings


@pytest.mark.parametrize(
    ("text", "ran", "why"),
    [
        (
            "==PROF== Connected to process 42\n==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU "
            "Performance Counters on the target device 0. For instructions see https://developer.nvidia.com/ERR_NVGPUCTRPERM\n",
            Ran(0, "", "", 1.0, ()),
            "the driver keeps the GPU's counters for administrators (ERR_NVGPUCTRPERM)",
        ),
        (
            "==ERROR== Failed to find metric smsp__nothing\n", Ran(1, "", "", 1.0, ()),
            "ncu ended with status 1: Failed to find metric smsp__nothing",
        ),
        ("", Ran(3, "the kernel: an illegal memory access was encountered\n", "", 1.0, ()), "ncu ended with status 3: the kernel: an"),
        ("==PROF== Connected\n==WARNING== No kernels were profiled.\n", Ran(0, "", "", 1.0, ()), "ncu ended with status 0: No kernels"),
        ("", Ran(-9, "", "took longer than 90 s", 1.0, ()), "ncu took longer than 90 s"),
        ("", Ran(1, "", "", 1.0, ()), "ncu ended with status 1: it said nothing"),
    ],
)  # fmt: skip
def test_no_counters_is_a_reason(text: str, ran: Ran, why: str) -> None:
    assert ncu.profiles(text) == []
    assert ncu.why_nothing(text, ran).startswith(why)


# --- the whole way, with a stand-in for the tool and for the GPU -------------------------------------------------------

SPEC = stand_in.twice(WORKLOAD, Workload(axes={"n": 64}, dtype="float32"))
CANDIDATE = '#include <stdio.h>\nvoid twice_float32(void *i, void *o, long n, void *s) { printf("n=%ld\\n", n); fflush(stdout); }\n'
# Takes ncu's options as ncu does, then answers by its own file of the size that the candidate was called with.
TOOL = """#!/bin/sh
while [ $# -gt 0 ]; do
  case "$1" in
    --csv) shift;;
    --log-file) log=$2; shift 2;;
    --export) log=$2.ncu-rep; shift 2;;
    --*) shift 2;;
    *) break;;
  esac
done
called=$("$@") || exit $?
cat "$(dirname "$0")/$called" > $log
"""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Build, Path]:
    """A candidate, and the folder with the tool's answers, by `n=<size>`."""
    stand_in.runtime(tmp_path, monkeypatch)
    path = stand_in.tool(tmp_path, "ncu", TOOL)
    monkeypatch.setattr(ncu, "find", lambda: path)
    return stand_in.candidate(tmp_path, CANDIDATE), path.parent


def read_on_cpu(build: Build, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The probe, with the inputs drawn on this machine's CPU."""
    stage = staging.stage
    monkeypatch.setattr(
        staging, "stage", lambda spec, b, workloads, _on, folder: stage(spec, b, workloads, "cpu", folder)
    )
    readings = probes.read("ncu", build, H200, SPEC, SPEC.workloads)
    if "sandbox cannot be made" in readings.get("unavailable", ""):
        pytest.skip(readings["unavailable"])
    return readings


@needs_compiler
def test_each_end_of_the_suite_is_profiled_in_the_box(
    machine: tuple[Build, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    build, answers = machine
    (answers / "n=8").write_text(table({"small(float *)": "900"}))
    (answers / "n=64").write_text(table({"large(float *)": "12,416"}))
    readings = read_on_cpu(build, monkeypatch)
    assert readings["small: workload"] == "float32 n=8" and readings["large: workload"] == "float32 n=64"
    assert readings["small: microseconds"] == "0.9" and readings["large: microseconds"] == "12.42"
    assert readings["large: kernel"].startswith("large(float *)")


@needs_compiler
def test_a_report_for_the_tools_own_window(machine: tuple[Build, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    build, answers = machine
    (answers / "n=64").write_bytes(b"NVR\0\xff report")
    stage = staging.stage
    monkeypatch.setattr(staging, "stage", lambda spec, b, workloads, _on, to: stage(spec, b, workloads, "cpu", to))
    try:
        assert ncu.report(build, H200, SPEC, SPEC.workloads[-1]) == b"NVR\0\xff report"
    except ToolboxUnavailable as error:
        pytest.skip(str(error)) if "sandbox cannot be made" in str(error) else pytest.fail(str(error))
    with pytest.raises(ToolboxUnavailable, match="ended with status"):
        ncu.report(build, H200, SPEC, SPEC.workloads[0])


@needs_compiler
def test_what_is_known_stays_where_the_largest_cannot_be_profiled(
    machine: tuple[Build, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    build, answers = machine
    (answers / "n=8").write_text(table({"small(float *)": "900"}))
    (answers / "n=64").write_text("==ERROR== out of memory\n")
    readings = read_on_cpu(build, monkeypatch)
    assert "unavailable" not in readings and readings["small: microseconds"] == "0.9"
    assert "out of memory" in readings["large: unavailable"]


@needs_compiler
def test_what_the_tool_refuses_is_the_reason(machine: tuple[Build, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    build, answers = machine
    (answers / "n=8").write_text("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\n")
    assert "administrators" in read_on_cpu(build, monkeypatch)["unavailable"]


@needs_compiler
def test_a_tool_that_waits_for_others_is_not_waited_for_in_every_round(
    machine: tuple[Build, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a host whose counters others held each profile of a run took its 30 s again."""
    build, answers = machine
    (answers / "ncu").write_text("#!/bin/sh\nsleep 60\n")
    monkeypatch.setattr(ncu, "SECONDS", 0.5)
    monkeypatch.setattr(ncu, "_busy_until", 0.0)
    assert "ncu took longer than 0.5 s" in read_on_cpu(build, monkeypatch)["unavailable"]
    monkeypatch.setattr(ncu, "Toolbox", None)  # nothing is begun
    assert "a short while ago" in read_on_cpu(build, monkeypatch)["unavailable"]


@pytest.mark.parametrize(
    ("facts", "backend", "found", "why"),
    [
        (H200.model_copy(update={"device": "cpu"}), "cpu", None, "NVIDIA GPU only"),
        (H200, "cuda", None, "ncu was not found"),
        (H200, "torch_extension", Path("/bin/true"), "torch_extension"),
    ],
)
def test_where_it_cannot_be_read_it_says_why(
    monkeypatch: pytest.MonkeyPatch, facts: DeviceFacts, backend: str, found: Path | None, why: str
) -> None:
    monkeypatch.setattr(ncu, "find", lambda: found)
    build = Build(candidate="c", backend=backend, ok=True)
    assert why in probes.read("ncu", build, facts, SPEC, SPEC.workloads)["unavailable"]


def test_readings_are_kept_and_refusals_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same question must be asked of a model twice in a row, or a run that was killed pays for it again."""
    asked: list[tuple[str, ...]] = []
    answers = [{"unavailable": "busy"}, {"large: microseconds": "3.1"}, {"large: microseconds": "3.2"}]

    def read(_build: Build, _facts: DeviceFacts, _spec: Spec, workloads: tuple[Workload, ...]) -> dict[str, str]:
        asked.append(tuple(workload.label for workload in workloads))
        return answers[len(asked) - 1]

    monkeypatch.setattr(hot_loop, "read", read)
    with Evaluator(catalog.load("silu_and_mul"), "cpu", Store(tmp_path)) as evaluator:
        build = Build(candidate="c", backend="cpu", ok=True)
        told = [evaluator.probes(build)["hot_loop"] for _ in range(3)]
        timed = [w for w in evaluator.suite() if w.timed]
    assert told == [answers[0], answers[1], answers[1]]
    assert asked == [(timed[0].label, timed[-1].label)] * 2
    assert evaluator.moved_bytes(timed[0]) < evaluator.moved_bytes(timed[-1])


def test_stalls_are_not_asked_for_where_the_same_tool_gave_no_counters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a shared host ncu waited for more than 95 s, twice and a third time for the stalls: the run ended before its coder began."""
    asked: list[str] = []
    late = {"small: microseconds": "3.1", "large: unavailable": "ncu took longer than 30 s"}

    def ask(_evaluator: Evaluator, question: ReadProbe) -> Readings:
        asked.append(question.probe)
        return Readings(values=late)

    monkeypatch.setattr(Evaluator, "ask", ask)
    evaluator = Evaluator(catalog.load("silu_and_mul"), "cpu", Store(tmp_path))
    evaluator.device = "cuda"
    found = evaluator.probes(Build(candidate="c", backend="cuda", ok=True))
    assert asked == ["compiler", "ncu", "sass"] and found["ncu"] == late
    assert found["stalls"] == {"unavailable": "ncu took longer than 30 s"}
