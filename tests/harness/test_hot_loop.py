"""Where a CPU build spends its time: on a canned disassembly, and of a real build in the box."""

from __future__ import annotations

import platform
import shutil
from collections import Counter
from pathlib import Path

import pytest

from harness.evaluate import Evaluator
from harness.probes import hot_loop, names
from harness.store import Store
from kernels import catalog

LISTING = """
0000000000001100 <sums>:
    1100:\tvxorps %xmm0,%xmm0,%xmm0
    1104:\tvaddps (%rdi,%rax,1),%ymm0,%ymm0
    1108:\tadd    $0x20,%rax
    110c:\tjne    1104 <sums+0x4>
    1110:\tvfmadd231ps (%rsi),%zmm1,%zmm2
    1114:\tvfmadd231ps 0x40(%rsi),%zmm1,%zmm3
    1118:\tjne    1110 <sums+0x10>
    111c:\tjne    1100 <sums>
    1120:\tret
"""


def test_the_innermost_loops_are_shown_with_their_width_and_their_chains() -> None:
    samples = Counter({0x1108: 60, 0x1114: 30, 0x1120: 5})
    said = hot_loop.summarise(LISTING, samples, Counter({"libgomp.so": 5}))
    assert said["hottest function"] == "sums: 95% of the samples, 100% of those outside of libgomp"
    assert said["outside of the candidate"].startswith("libgomp.so 5% (in libgomp: threads that wait")
    assert (
        said["loop 1"] == "60% of the samples, 63% of those outside of libgomp, 3 instructions"
        and "1 vector instructions of 32 bytes" in said["loop 1 has"]
    )
    assert said["loop 1 accumulates in"] == "1 registers (ymm0): each operation waits for the one before"
    assert (
        said["loop 2"].startswith("30% of the samples, 32% of those outside of libgomp")
        and "2 fused multiply-adds" in said["loop 2 has"]
    )
    assert said["loop 2 accumulates in"] == "2 registers (zmm2, zmm3)" and said["loop 1 1108"] == "60% add $0x20,%rax"


def test_threads_that_wait_do_not_hide_what_the_candidate_does() -> None:
    """Four fifths of the samples were threads that waited awake, and a loop of all the work had 15 %."""
    listing = LISTING + "\n0000000000001200 <sort(float*)>:\n    1200:\tret\n"
    said = hot_loop.summarise(listing, Counter({0x1108: 15, 0x1200: 4}), Counter({"libgomp.so.1": 80, "libc.so.6": 1}))
    assert said["hottest function"] == "sums: 15% of the samples, 75% of those outside of libgomp"
    assert said["other functions"] == "sort 4% (20% outside of libgomp)"
    assert said["loop 1"] == "15% of the samples, 75% of those outside of libgomp, 3 instructions"


def test_loops_that_share_their_instructions_are_shown_once() -> None:
    """Two jumps back into one body, neither inside the other."""
    listing = LISTING.replace("jne    1110 <sums+0x10>", "jne    1108 <sums+0x8>")
    said = hot_loop.summarise(listing, Counter({0x1108: 60, 0x1114: 30}), Counter())
    shown = [key for key in said if key.startswith("loop ") and key.split()[-1].startswith("11")]
    assert len({key.split()[-1] for key in shown}) == len(shown)


def test_other_functions_have_their_share_and_what_took_next_to_nothing_is_not_named() -> None:
    listing = LISTING + "\n0000000000001200 <void (anonymous namespace)::sort<8>(float*)>:\n    1200:\tret\n"
    said = hot_loop.summarise(listing, Counter({0x1108: 600, 0x1200: 390}), Counter({"libpython3.so": 10}))
    assert said["other functions"] == "sort 39%" and "outside of the candidate" not in said


def test_without_a_sample_nothing_is_claimed() -> None:
    assert "unavailable" in hot_loop.summarise(LISTING, Counter(), Counter())
    assert "loop 1" not in hot_loop.summarise("", Counter({4: 9}), Counter())


def test_a_probe_of_another_device_is_not_asked() -> None:
    assert {"hot_loop", "assembly"} <= set(names(device="cpu")) and not {"ncu", "sass", "stalls"} & set(
        names(device="cpu")
    )
    assert {"ncu", "sass", "stalls"} <= set(names(device="cuda")) and "hot_loop" not in names(device="cuda")


@pytest.mark.skipif(
    platform.machine() != "x86_64" or any(shutil.which(tool) is None for tool in ("g++", "objdump")),
    reason="g++ and objdump on x86-64 only",
)
def test_a_real_build_is_sampled_in_the_box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The kernel's own clock of the threads counts on every machine; hardware's counters few machines let one read.
    monkeypatch.setattr(hot_loop, "EVENTS", {"CPU ns": (1, 1), "cache misses": (0xFFFF, 3)})
    folder = Path(__file__).resolve().parents[1] / "inputs" / "cpu_column_sums"
    kernel = catalog.load(str(folder))
    with Evaluator(kernel, "cpu", Store(tmp_path)) as evaluator:
        build = evaluator.build(evaluator.store.put((folder / "baseline.cpp").read_text()))
        timed = [workload for workload in evaluator.suite() if workload.timed]
        said = hot_loop.read(build, evaluator.facts, kernel.spec, timed)
        assert said["workload"] == timed[-1].label and "cpu_column_sums" in said["hottest function"]
        samples = int(said["samples"].split(",")[0])
        assert samples > 5 and "instructions" in said["loop 1"]
        assert int(said["CPU ns a call"].replace(",", "")) > 100
        assert said["not to be counted here"] == "cache misses"
        assert list(said).index("not to be counted here") < list(said).index("loop 1"), "long listings are cut"
        bad = evaluator.build(evaluator.store.put("#include <cstdlib>\n" + (folder / "baseline.cpp").read_text().replace(
            "{\n    // bias", "{ abort();\n    // bias")))  # fmt: skip
        assert "could not be sampled" in hot_loop.read(bad, evaluator.facts, kernel.spec, timed)["unavailable"]


def test_counters_are_said_by_call_and_which_there_are_none_of() -> None:
    said = hot_loop.describe_counters(
        {"instructions": 12_000, "cycles": "No such file or directory", "misses": "no"}, 4
    )
    assert said == {"instructions a call": "3,000", "not to be counted here": "cycles, misses"}
    said = hot_loop.describe_counters({"instructions": "no", "cycles": "no"}, 4)
    assert said == {"hardware counters": "none can be read on this machine"}


def test_a_branch_behind_the_functions_end_that_returns_into_it_is_no_loop() -> None:
    rows = [
        (0, "vaddss", "%xmm1,%xmm0,%xmm0"),
        (4, "jne", "0 <f>"),
        (6, "mov", "%eax,(%rdi)"),
        (8, "ret", ""),
        (9, "and", "$1,%eax"),
    ]
    code = [hot_loop.Instruction(*row) for row in [*rows, (12, "jmp", "6 <f+0x6>")]]
    (loop,) = hot_loop.hot_loops(code, Counter({0: 10, 6: 5, 9: 5}))
    assert [one.at for one in loop] == [0, 4]
