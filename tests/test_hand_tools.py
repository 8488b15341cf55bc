"""benchmarks/hand_tools.py: what a coder that works from prepared sources does next, and a kill while its tools are at work."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.hand_answered import ROOT, Misfit, Player, Said, play
from benchmarks.hand_tools import Called, Through
from harness import device
from harness.backends import cuda
from harness.records import DeviceFacts
from kernels import catalog
from nodes.policies import answers
from nodes.workbench.arguments import TOOLS, CompileArguments
from tests.nodes.policies.examples import for_planner, for_profiler, for_tester
from tests.nodes.rewrites.emulate import emulation
from tests.nodes.rewrites.emulate.tensor_cores import translated
from tests.test_hand_answered import messages

FOLDERS = sorted((ROOT / "benchmarks" / "hand_answered").glob("*/tools"))
KERNELS = [ROOT / "tests" / "inputs" / "tools", ROOT / "tests" / "inputs"]
SAYS = {
    "compile": "[{name}] compiles (1.0 s).",
    "check": "[{name}] PASSED: 12 checks; the largest error is 0.1 of the tolerance (float32 n=1).",
    "time": "[{name}] a short contest, unofficial: 7 samples a side.\nfloat32 n=1 | cold | 1.00 | 3.00 | {speedup} [2.9, 3.1] | - | -",
    "profile": "[{name}] profile",
    "submit": "[{name}] goes to the gates",
}


def sources_of(through: Through) -> Iterator[tuple[str, str]]:
    """Of each prepared source its file's name and its text, edits carried out."""
    source = ""
    for path in through.sources:
        ((_, arguments),) = through._compile(path).calls
        compiled = CompileArguments.model_validate(arguments)
        for edit in compiled.edits:
            assert source.count(edit.search) == 1
            source = source.replace(edit.search, edit.replacement)
        source = compiled.source or source
        yield path.name, source


def prepared(tmp_path: Path, *sources: str) -> Through:
    for number, text in enumerate(sources, 1):
        (tmp_path / f"{number}.source.{'json' if text.startswith('{') else 'cpp'}").write_text(text)
    (tmp_path / "listing.txt").write_text("kernel\n")
    return Through(tmp_path)


def worked(coder: Through, gains: list[str], **wrong: str) -> list[tuple[str, dict[str, Any]]]:
    """All calls until the first submission. The source compiled n-th is named by n; `gains` over the baseline, by source."""
    done: list[Called] = []
    while not any(one.name == "submit" for one in done):
        said = coder.next(done)
        for name, arguments in said.calls:
            TOOLS[name].model_validate(arguments)
            number = sum(one.name == "compile" for one in done) + (name == "compile")
            of = arguments.get("candidate") or f"{number:012x}"
            says = wrong.get(f"{name}{number}", SAYS[name])
            done.append(Called(name, arguments, says.format(name=of, speedup=gains[number - 1])))
    return [(one.name, one.arguments) for one in done]


def test_each_source_is_tried_and_the_fastest_is_profiled_and_submitted(tmp_path: Path) -> None:
    edits = [{"search": "2", "replacement": "3"}]
    coder = prepared(tmp_path, "// first\nint x = 1;\n", "int x = 2;\n", json.dumps({"text": "third", "edits": edits}))
    one, two, three = (f"{number:012x}" for number in (1, 2, 3))
    assert worked(coder, ["3.000", "9.000", "4.000"]) == [
        ("compile", {"source": "// first\nint x = 1;\n"}),
        *[("check", {"candidate": one}), ("time", {"candidate": one})],
        ("profile", {"candidate": one, "function": "kernel"}),
        ("compile", {"source": "int x = 2;\n"}),
        *[("check", {"candidate": two}), ("time", {"candidate": two})],
        ("compile", {"edits": edits}),
        *[("check", {"candidate": three}), ("time", {"candidate": three})],
        ("profile", {"candidate": two}),
        ("submit", {"candidate": two, "notes": "9.00x in the short contests"}),
    ]
    assert coder.next([]).text == "first"


def test_what_does_not_compile_or_is_wrong_is_passed_over(tmp_path: Path) -> None:
    coder = prepared(tmp_path, "a", "b", "c")
    wrong = "[{name}] INCORRECT (3 checks before it passed)\nout[0] is 1, should be 2"
    broken = {
        "compile1": "[{name}] COMPILE_ERROR\nexpected ;",
        "check2": wrong,
        "time2": f"{wrong}\nOnly what is right is timed.",
    }
    calls = worked(coder, ["1.000", "5.000", "2.000"], **broken)
    assert [name for name, _ in calls] == [
        "compile", "compile", "check", "time", "compile", "check", "time", "profile", "profile", "submit",
    ]  # fmt: skip
    assert calls[-1][1]["candidate"] == f"{3:012x}"
    calls = worked(
        coder, ["1.000"] * 3, **dict.fromkeys(("compile1", "compile2", "compile3"), "[{name}] COMPILE_ERROR")
    )
    assert calls[-1] == ("submit", {"none": "none of the prepared sources is right and was not refused"})


def test_a_folder_without_sources_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Misfit, match=r"there is no source 1\.\*\.cu"):
        Through(tmp_path)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.parent.name)
def test_prepared_answers_have_the_form_that_their_role_wants(folder: Path) -> None:
    through, where = Through(folder), next(path for path in KERNELS if (path / folder.parent.name).is_dir())
    kernel = catalog.load(str(where / folder.parent.name))
    found = through.said("profiler.1", messages("profiler", for_profiler())).text
    assert answers.finding(found, for_profiler()).summary and "{{" not in found
    planning = for_planner(round=1, attempts=())
    assert len(answers.plans(through.said("planner.1", messages("planner", planning)).text, planning)) == 1
    asked = for_tester(spec=kernel.spec)
    assert answers.tests(through.said("tester", messages("tester", asked)).text, asked).workloads
    assert (folder / "listing.txt").read_text().strip()
    names = kernel.spec.entry_names(kernel.spec.dtypes[0])
    assert all(any(name in text for name in names) for _, text in sources_of(through))


@pytest.mark.slow
@pytest.mark.skipif(device.cuda_home() is None, reason="no nvcc")
@pytest.mark.parametrize("folder", [f for f in FOLDERS if list(f.glob("*.cu"))], ids=lambda folder: folder.parent.name)
def test_prepared_sources_compile_without_spills_and_without_advice(folder: Path, tmp_path: Path) -> None:
    gpu = DeviceFacts(device="cuda", name="a GPU", architecture="sm_90", units=132, last_level_cache_bytes=1 << 26)
    for number, (call, text) in enumerate(sources_of(Through(folder))):
        (scratch := tmp_path / str(number)).mkdir()
        (scratch / "candidate.cu").write_text(text)
        built = cuda.compile(scratch / "candidate.cu", scratch / "candidate.so", gpu, 120.0)
        assert built.ok and not built.log, f"{call}: {built.log}"
        assert all("spills=0 " in said for said in built.resources.values()), built.resources


SIZES = {
    "half_product": [(77, 131, 45), (140, 264, 328), (300, 520, 72)],
    "decode_attention": [(1, 2, 17, 201), (2, 1, 3, 250), (1, 1, 8, 500)],
}
PREPARED = [
    (folder.parent.name, name)
    for folder in FOLDERS
    if folder.parent.name in SIZES
    for name, _ in sources_of(Through(folder))
]


def emulated(folder: Path, kernel: str, file: str, sizes: tuple[int, ...], *change: str) -> str:
    """What the emulation says of a prepared source, changed, on a device of two multiprocessors: each has several tiles then."""
    text = dict(sources_of(Through(ROOT / "benchmarks" / "hand_answered" / kernel / "tools")))[file]
    if change:
        assert change[0] in text
        text = text.replace(*change)
    (candidate := folder / "candidate.cu").write_text(translated(text))
    axes = zip(catalog.load(str(KERNELS[0] / kernel)).spec.axes, sizes, strict=True)
    where = "float16:" + ",".join(f"{axis}={size}" for axis, size in axes)
    ended = emulation.emulated(KERNELS[0] / kernel, candidate, "0", where, EMULATE_MULTIPROCESSORS="2")
    assert ended.returncode in (0, 1, 9), ended.stderr
    return f"{ended.stdout}{ended.stderr}".strip()


@pytest.mark.slow
@pytest.mark.parametrize(("kernel", "file"), PREPARED)
def test_prepared_sources_compute_what_they_should(kernel: str, file: str, tmp_path: Path) -> None:
    assert [emulated(tmp_path, kernel, file, sizes) for sizes in SIZES[kernel]] == ["right"] * len(SIZES[kernel])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "file", "before", "after", "says"),
    [
        ("half_product", "2.wgmma.cu", "kInner * 128), step", "kInner * 64), step", "wrong"),  # columns of another box
        ("half_product", "4.wgmma_persistent.cu", "[%0], 8;", "[%0], 9;", "waited for for ever"),
        (
            "half_product",
            "5.wgmma_multicast.cu",
            "(COLUMNS / 128); ++n",
            "(COLUMNS / 128) - 1; ++n",
            "waited for for ever",
        ),
        ("decode_attention", "2.tensor.cu", "lane / 8 % 2));", "lane / 16));", "wrong"),
        ("decode_attention", "3.tma.cu", "half * 64, begin", "64, begin", "wrong"),  # the second half of each row twice
    ],
)
def test_the_emulation_finds_out_what_is_wrong(
    kernel: str, file: str, before: str, after: str, says: str, tmp_path: Path
) -> None:
    assert says in emulated(tmp_path, kernel, file, SIZES[kernel][1], before, after)


# What stands in for run.py: asks as a coder, keeps the answer as the transcript does and "works" until it is killed; then ends.
WORKS = """\
import json, os, pathlib, sys, time, urllib.request
transcript = pathlib.Path(sys.argv[2])
if transcript.exists():
    sys.exit(0)
body = json.dumps({"messages": json.loads(sys.argv[1])}).encode()
with urllib.request.urlopen(urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body)) as reply:
    transcript.write_bytes(reply.read())
time.sleep(600)
"""


class Fixed(Through):
    def said(self, step: str, messages: list[dict[str, Any]]) -> Said:
        return Said("worked on", (("check", {}),))


def test_kills_the_run_while_its_tools_are_at_work_and_resumes_it(tmp_path: Path) -> None:
    coder = Fixed(prepared(tmp_path, "a").folder)
    request = [{"role": "system", "content": ""}, {"role": "user", "content": "You are the coder. "}]
    transcript = tmp_path / "transcript.jsonl"
    command = [sys.executable, "-S", "-c", WORKS, json.dumps(request), str(transcript)]
    player = Player(coder, kill_in="coder.0.turn1", transcript=transcript)
    assert play(player, command, command) == 0
    assert (player.kill_in, player.misfit) == ("", "")
    assert [step for step, *_ in player.answered] == ["coder.0.turn1"]
    (call,) = json.loads(transcript.read_text())["choices"][0]["message"]["tool_calls"]
    assert call["function"] == {"name": "check", "arguments": "{}"}


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
def test_a_whole_run_is_killed_in_a_tool_turn_and_asks_nothing_twice(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "benchmarks.hand_tools",
        "--kernel",
        "tests/inputs/cpu_matrix_product",
        "--device",
        "cpu",
    ]
    command += ["--rounds", "1", "--run-id", "one", "--runs-dir", str(tmp_path), "--kill-in", "coder.1.turn2", "--"]
    done = subprocess.run(
        [*command, "--memory", "off", "--tune-seconds", "0"], cwd=ROOT, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "kill -9 while the tools of coder.1.turn2 are at work" in done.stdout
    assert "asked twice: nothing" in done.stdout and "% of the roofline" in done.stdout
    (attempt,) = json.loads((tmp_path / "one" / "result.json").read_text())["attempts"]
    assert attempt["accepted"] and attempt["tools"]["compile"] == 2 and attempt["tools"]["submit"] == 1
