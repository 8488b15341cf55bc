"""The command line, as a user meets it: sentences, exit codes, a whole run on a small kernel with a real compiler."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import run as door
from graph.runs import RunFolder
from tests import forked

REPOSITORY = Path(__file__).resolve().parents[1]

SPEC = """
from kernels.spec import Size, Spec, Tensor, Workload

SPEC = Spec(
    name="twice",
    summary="out = 2 * input",
    axes=("n",),
    dtypes=("float32",),
    arguments=(
        Tensor(name="input", role="input", shape=("n",), values=("ordinary", "zeros")),
        Tensor(name="out", role="output", shape=("n",)),
        Size(name="n"),
    ),
    workloads=(
        Workload(axes={"n": 40000}, dtype="float32"),
        Workload(axes={"n": 30011}, dtype="float32", held_out=True),
    ),
    flops="n",
)
"""
REFERENCE = """
def reference(input):
    return {"out": 2 * input}
"""
BASELINE = """
#include <cstdint>

extern "C" void twice_float32(const float* input, float* out, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
        volatile float kept = input[i];
        out[i] = kept * 2.0f;
    }
}
"""
FASTER = BASELINE.replace("volatile float", "float")


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    folder = tmp_path / "twice"
    folder.mkdir()
    (folder / "spec.py").write_text(SPEC)
    (folder / "reference.py").write_text(REFERENCE)
    (folder / "baseline.cpp").write_text(BASELINE)
    return folder


def started(*words: object, **more) -> subprocess.CompletedProcess[str]:
    """`python run.py` with these words, in a process of its own."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("OPENAI", "ASTROLABE"))} | more.pop(
        "env", {}
    )
    command = [sys.executable, str(REPOSITORY / "run.py"), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=150, check=False, env=environment, **more)


Call = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """The same in this process, in the test's folder: most of what a short command takes is `import torch`."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith(("OPENAI", "ASTROLABE"))]:
        monkeypatch.delenv(name)

    def go(*words: object) -> subprocess.CompletedProcess[str]:
        capsys.readouterr()
        try:
            code = door.main([str(word) for word in words])
        except SystemExit as left:
            code = left.code
        said = capsys.readouterr()
        return subprocess.CompletedProcess(words, code, said.out, said.err)

    return go


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """The one sentence that a bad call gets, with exit code 2."""
    try:
        code = door.main([str(word) for word in words])
    except SystemExit as left:
        code = left.code
    said = capsys.readouterr()
    assert code == 2 and said.out == ""
    assert said.err.count("\n") == 1 and "Traceback" not in said.err
    return said.err


# --- bad input: one sentence, exit code 2 --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "the following arguments are required: --kernel"),
        (["--kernel", "silu_and_mull", "--device", "cpu"], "did you mean silu_and_mul or silu_and_mul_quantize_fp8?"),
        (["--kernel", "no/such/folder"], "no/such/folder is not a folder"),
        (["--kernel", "silu_and_mul", "--device", "tpu"], "invalid choice: 'tpu'"),
        (["--kernel", "silu_and_mul", "--rounds", "-1"], "'-1' is not a whole number of at least 0"),
        (["--kernel", "silu_and_mul", "--rounds", "many"], "'many' is not a whole number"),
        (["--kernel", "silu_and_mul", "--seconds", "0"], "'0' is not a number above 0"),
        (
            ["--kernel", "silu_and_mul", "--device", "cpu", "--baseline", "productoin"],
            "has no cpu baseline 'productoin'",
        ),
        (["--kernel", "silu_and_mul", "--device", "cpu", "--dtype", "int3"], "has no dtype int3"),
        (["--kernel", "silu_and_mul", "--device", "cpu", "--source", "nowhere.cpp"], "nowhere.cpp cannot be read"),
        (["--kernel", "silu_and_mul", "--device", "cpu", "--source", "x.cpp", "--baseline", "y"], "not both"),
        (["--kernel", "silu_and_mul", "--device", "cpu", "--source", "x.cuh"], "x.cuh is a header"),
        (["--kernel", "gr\udcfcn"], "is no UTF-8, which file names must be"),
        (["--kernel", "silu_and_mul", "--device", "cpu", "--source", "x.cu"], "is not a source for device cpu"),
        (["--kernel", "silu_and_mul", "--device", "cpu", "--run-id", "../up"], "'../up' is no run id"),
        (["--kernel", "silu_and_mul", "--device", "cpu", "--policy", "chat"], "needs a key in OPENAI_API_KEY"),
        (["--kernel", "silu_and_mul", "--device", "cpu", "--policy", "replay"], "needs --transcript FILE"),
        (
            ["--kernel", "silu_and_mul", "--device", "cpu", "--transcript", "no.jsonl"],
            "there is no transcript ",
        ),
        (["--kernel", "silu_and_mul", "--checkpointer", "mysql://x"], "--checkpointer takes postgresql://"),
        (["--kernell", "x"], "the following arguments are required: --kernel"),
        (["--kernel", "silu_and_mul", "--engine", "ray"], "there is no engine 'ray'"),
        (["--kernel", "silu_and_mul", "--device-model", "H200"], "are for --engine dask"),
        (["--kernel", "silu_and_mul", "--device", "cpu", "--engine", "dask:192.0.2.1:8786"], "beyond this machine"),
        (["scheduler", "--host", "192.0.2.1"], "192.0.2.1 is beyond this machine"),
        (["worker", "192.0.2.1:8786"], "192.0.2.1 is beyond this machine"),
        (["worker", "tls://127.0.0.1:8786", "--tls", "nowhere"], "--tls nowhere holds no cert.pem"),
        (["worker", "127.0.0.1:8786", "--cores", "9999"], "9999 workers on"),
        (["campaign", "--suite", "starter", "--engine", "dask", "--protocol", "kernelbench"], "leave --engine away"),
        (["resum", "x"], "there is no command 'resum'; did you mean resume?"),
        (["resume"], "the following arguments are required: RUN"),
        (["resume", "nothing"], "there is no run 'nothing'"),
        (["resume", "../../etc"], "is no run id"),
        (["show", "nothing"], "there is no run 'nothing'"),
        (["history", "nothing"], "there is no run 'nothing'"),
        (["fork", "nothing", "--checkpoint", "x"], "there is no run 'nothing'"),
        (["graph", "nothing"], "there is no run 'nothing'"),
        (["graph", "--output", "picture.gif"], ".svg"),
        (["evaluate", "--kernel", "silu_and_mul", "--device", "cpu", "nowhere.cpp"], "nowhere.cpp cannot be read"),
        (["evaluate", "nowhere.cpp"], "the following arguments are required: --kernel"),
    ],
)
def test_bad_usage(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert said in refused(capsys, *words)
    assert not (tmp_path / "runs").exists()


def test_what_is_not_installed_is_one_sentence() -> None:
    """`python3 run.py` before bootstrap.py, which is the first thing that some will type."""
    started = "import sys, run; sys.modules['langgraph'] = None; sys.exit(run.main(['--kernel', 'silu_and_mul']))"
    done = subprocess.run([sys.executable, "-c", started], cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 2
    assert f"is not installed for {sys.executable}" in done.stderr and "bootstrap.py" in done.stderr
    assert done.stderr.startswith("run.py: langgraph") and done.stderr.count("\n") == 1


def test_a_key_without_a_model_is_said(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    said = refused(capsys, "--kernel", "silu_and_mul", "--device", "cpu", "--policy", "chat")
    assert "give --model NAME" in said and "sk-secret" not in said


def test_a_device_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    from harness.device import why_no_cuda

    if not why_no_cuda():
        pytest.skip("a GPU is here")
    assert "device cuda cannot be used" in refused(capsys, "--kernel", "silu_and_mul", "--device", "cuda")


def test_a_missing_compiler(call: Call, kernel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("CXX", "")
    done = call("--kernel", kernel, "--device", "cpu")
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "cannot be compiled" in done.stderr and "g++" in done.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("content", ["", "\x00\x01 not\udcff text"])
def test_a_source_that_is_no_text(
    content: str, kernel: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.cpp"
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    assert "mine.cpp is" in refused(capsys, "--kernel", kernel, "--device", "cpu", "--source", path)


def test_a_broken_source_file_is_said_with_the_compilers_first_complaint(
    call: Call, kernel: Path, tmp_path: Path
) -> None:
    (tmp_path / "mine.cpp").write_text(BASELINE.replace("volatile", "volatil"))
    done = call("--kernel", kernel, "--device", "cpu", "--source", "mine.cpp", "--run-id", "a", "--no-live")
    assert done.returncode == 2
    assert "the baseline (mine.cpp) does not pass: COMPILE_ERROR" in done.stderr and "volatil" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_incomplete_spec_names_the_field(kernel: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (kernel / "spec.py").write_text(SPEC.replace('dtypes=("float32",),', ""))
    assert "field dtypes" in refused(capsys, "--kernel", kernel, "--device", "cpu")


@pytest.mark.parametrize("leaves", ["sys.exit(0)", "{}['nothing']", "raise GeneratorExit"])
def test_a_reference_that_leaves_is_one_sentence(
    leaves: str, call: Call, kernel: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (kernel / "reference.py").write_text(f"import sys\ndef reference(input):\n    {leaves}\n")
    (tmp_path / "mine.cpp").write_text(FASTER)
    words = ("--kernel", kernel, "--device", "cpu")
    said = refused(capsys, "evaluate", *words, "--json", tmp_path / "mine.cpp")
    assert "twice: reference.py fails at float32 n=" in said
    done = call(*words, *QUICK, "--run-id", "a")
    assert done.returncode == 2 and "reference.py fails at float32 n=" in done.stderr, done.stderr
    assert done.stderr.count("\n") == 1


def test_a_spec_that_leaves_is_one_sentence(kernel: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (kernel / "spec.py").write_text("import sys\nsys.exit(0)\n" + SPEC)
    assert "spec.py, line 2: SystemExit: 0" in refused(capsys, "--kernel", kernel, "--device", "cpu")


def test_a_runs_folder_that_is_a_file(kernel: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "runs").write_text("")
    said = refused(capsys, "--kernel", kernel, "--device", "cpu", "--runs-dir", tmp_path / "runs")
    assert "no run can be kept in" in said


def test_one_damaged_record_does_not_hide_the_other_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "run.json").write_text('{"format": 7}')
    assert door.main(["runs", "--runs-dir", str(tmp_path)]) == 0
    assert "run.json cannot be read: format" in capsys.readouterr().err
    assert "run.json cannot be read" in refused(capsys, "resume", "bad", "--runs-dir", tmp_path)


# --- quick commands ------------------------------------------------------------------------------------------------


def test_a_working_folder_that_is_no_utf_8_or_gone_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, said in ((b"caf\xe9", "is no UTF-8"), (b"gone", "the working folder is gone")):
        folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))
        folder.mkdir()
        monkeypatch.chdir(folder)
        folder.rmdir() if name == b"gone" else None
        assert said in refused(capsys, "check", ".")


def test_an_on_end_that_cannot_be_called_leaves_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--kernel", "silu_and_mul", "--device", "cpu", "--on-end", "'open", "--runs-dir", tmp_path / "runs"]
    assert "cannot be read" in refused(capsys, *words)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("flag", ["-I", "-P"])
def test_python_that_leaves_out_the_folder_of_a_program_runs_it(flag: str, tmp_path: Path) -> None:
    command = [sys.executable, flag, str(REPOSITORY / "run.py"), "--help"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("usage:"), done.stderr


def test_help_says_the_exit_codes() -> None:
    done = started("--help")
    assert done.returncode == 0
    table = done.stdout.split("exit codes:")[1]
    assert sorted(map(int, re.findall(r" (\d+) {2,4}\w", table))) == [0, 1, 2, 3, 75, 130]


@pytest.mark.parametrize("words", [["--help"], ["kernels"], ["runs"]])
def test_quick_commands_import_nothing_slow(words: list[str], tmp_path: Path) -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv.pop(1)); import run\n"
        "try: run.main()\nexcept SystemExit: pass\n"
        "slow = {'torch', 'langgraph', 'langchain_core', 'openai'} & set(sys.modules)\n"
        "assert not slow, slow"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(REPOSITORY), *words], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("closed", ["stdout", "stderr"])
def test_whoever_closes_an_output_sees_no_traceback(closed: str, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    """As `run.py kernels >&-` and a daemon do: Python then has None in its place."""
    monkeypatch.setattr(sys, closed, None)
    if closed == "stdout":
        assert door.main(["kernels"]) == 0
    else:
        with pytest.raises(SystemExit, match="^2$"):
            door.main(["nosuch"])


def test_kernels_lists_every_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    assert door.main(["kernels"]) == 0
    listed = capsys.readouterr().out
    for name in ("silu_and_mul", "fused_add_rmsnorm", "merge_attn_states_lse"):
        assert name in listed


def test_the_graph_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert door.main(["graph", "--output", str(tmp_path / "graph.svg")]) == 0
    assert "<svg" in (tmp_path / "graph.svg").read_text()
    assert door.main(["graph"]) == 0
    assert "tester" in capsys.readouterr().out


def test_studio_gets_a_graph() -> None:
    import importlib

    where = json.loads((REPOSITORY / "langgraph.json").read_text())["graphs"]["astrolabe"]
    path, _, name = where.partition(":")
    module = importlib.import_module(path.removeprefix("./").removesuffix(".py").replace("/", "."))
    assert set(getattr(module, name)().get_graph().nodes) > {"tester", "held_out"}


# --- what was chosen and why ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "words", "policy", "why"),
    [
        (None, [], "rules", "OPENAI_API_KEY is not set"),
        ("k", [], "rules", "no model is named"),
        ("k", ["--model", "m"], "chat", "a key and a model are given"),
        ("k", ["--policy", "rules", "--model", "m"], "rules", "asked for"),
        ("k", ["--policy", "chat", "--model", "m", "--policy-coder", "rules"], "coder=rules, others chat", "asked for"),
    ],
)
def test_the_policy_and_its_reason(
    key: str | None, words: list[str], policy: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from graph.choices import choose
    from harness.report.result import policy_text

    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    if key:
        monkeypatch.setenv("OPENAI_API_KEY", key)
    asked = door.parse(["--kernel", "silu_and_mul", "--device", "cpu", *words])
    settings = choose(asked).settings
    assert policy_text(settings.policy) == policy
    assert why in settings.why[1]
    assert settings.why != "k"


@pytest.mark.parametrize(
    ("words", "review"),
    [([], False), (["--model-reviewer", "m2"], True), (["--review"], True), (["--policy-reviewer", "chat"], True)],
)
def test_a_reviewer_is_there_where_one_is_asked_for(
    words: list[str], review: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from graph.choices import choose

    monkeypatch.setenv("OPENAI_API_KEY", "k")
    asked = door.parse(["--kernel", "silu_and_mul", "--device", "cpu", "--model", "m", "--model-coder", "a,b", *words])
    settings = choose(asked).settings
    assert settings.review is review and settings.chat.models["coder"] == "a,b" and settings.memory == "off"


def test_several_models_are_for_the_coder_only(monkeypatch: pytest.MonkeyPatch) -> None:
    from graph.choices import choose
    from graph.runs import RunError

    monkeypatch.setenv("OPENAI_API_KEY", "k")
    asked = door.parse(["--kernel", "silu_and_mul", "--device", "cpu", "--model", "a,b"])
    with pytest.raises(RunError, match="several models take turns as --model-coder only: the drafter has one"):
        choose(asked)


def test_the_command_that_is_written_down_has_no_password() -> None:
    from graph.commands.options import UNSAID
    from harness.options import command_line

    words = ["--kernel", "k", "--checkpointer", "postgresql://u:secret@h/d", "--run-id=a", "--rounds", "2"]
    assert command_line(door.parse(words), leave_out=UNSAID) == "python run.py --kernel k --rounds 2"


# --- a whole run ---------------------------------------------------------------------------------------------------

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
QUICK = ("--device", "cpu", "--rounds", "1", "--tune-seconds", "0", "--no-live")
ITSELF = """
import os, sys
import run, tests.machine
tests.machine.hurry()
for name in [name for name in os.environ if name.startswith(("OPENAI", "ASTROLABE"))]:
    del os.environ[name]
os.chdir(sys.argv.pop(1))
sys.exit(run.main(sys.argv[1:]))
"""
"""The command line in the folder that is its first argument."""


@needs_compiler
@pytest.mark.usefixtures("short_run")
def test_a_run_is_killed_resumed_shown_forked_and_drawn(call: Call, kernel: Path, tmp_path: Path) -> None:
    with forked.Program(ITSELF, tmp_path, "--kernel", kernel, *QUICK, "--run-id", "a", "--json") as process:
        # Always longer than the 50 ms below which a node gets no line, and a round is to come.
        while b" baseline " not in os.pread(process.stderr.fileno(), 1 << 16, 0):
            assert process.poll() is None, "it ended before it was killed"
            time.sleep(0.02)
        process.kill()
        process.wait()
    assert "interrupted" in call("runs").stdout

    done = forked.run(ITSELF, tmp_path, "resume", "a", "--json", "--no-live")
    assert done.returncode in (0, 3), done.stderr
    record = json.loads(done.stdout)
    required = {"run_id", "kernel", "device", "policy", "baseline", "status", "stop_reason", "speedup", "attempts"}
    assert required | {"workloads", "schema_version"} <= set(record)
    assert record["run_id"] == "a" and record["status"] == "finished" and record["attempts"]
    assert set(record["speedup"]) == {"median", "low", "high"}
    folder = tmp_path / "runs" / "a"
    for name in ("best.cpp", "best.diff", "result.json", "report.html"):
        assert (folder / name).exists()
    assert json.loads((folder / "result.json").read_text()) == record
    page = (folder / "report.html").read_text()
    assert (
        "Bandwidth under the roof" in page
        and "Roofline" in page
        and page.count('alt="Histogram') == len(record["workloads"])
    )
    assert all(row["moved_bytes"] == 8 * row["axes"]["n"] == 8 * row["flops"] for row in record["workloads"])

    again = call("resume", "a", "--json")
    assert json.loads(again.stdout) == record and again.returncode == done.returncode
    listed = json.loads(call("runs", "--json").stdout)
    assert [(line["run_id"], line["status"]) for line in listed] == [("a", "finished")]
    shown = call("show", "a")
    assert shown.returncode == 0 and record["attempts"][0]["plan"]["title"][:20] in shown.stdout

    points = json.loads(call("history", "a", "--json").stdout)
    assert points[0]["next"] == ["__start__"] and points[-1]["next"] == []
    point = next(p for p in points if p["next"] == ["select"])
    at = ("--checkpoint", point["checkpoint"])
    branched = call("fork", "a", *at, "--run-id", "b", "--rounds", "1", "--model", "another", "--no-live", "--json")
    assert branched.returncode in (0, 3), branched.stderr
    record = json.loads(branched.stdout)
    assert record["rounds"] == 1 and f"forked from a at checkpoint {point['checkpoint']}" in record["notices"]
    assert record["command"].startswith(f"python run.py fork a --checkpoint {point['checkpoint']} ")
    assert set(RunFolder.find(tmp_path / "runs", "b").record.settings.chat.models.values()) == {"another"}

    written = call("export", "a", "--samples", "a.csv")
    assert written.returncode == 0 and written.stdout == "a.csv\n", written.stderr
    lines = list(csv.DictReader((tmp_path / "a.csv").read_text().splitlines()))
    baseline = [float(line["us"]) for line in lines if line["side"] == "baseline"]
    assert {line["n"] for line in lines} <= {"40000", "30011"} and {line["cache"] for line in lines} >= {"cold"}
    assert len(baseline) >= 5 and all(us > 0 for us in baseline)
    assert not (folder / "export").exists()

    again = call("evaluate", "--run", "a", "--json")
    assert json.loads(again.stdout)["outcome"] == "PASSED" and json.loads(again.stdout)["file"] == "best of a"

    drawn = call("graph", "a", "--output", "a.svg")
    assert drawn.returncode == 0 and "<svg" in (tmp_path / "a.svg").read_text()


@needs_compiler
@pytest.mark.usefixtures("short_run")
def test_evaluate_gives_the_verdict_on_one_file(call: Call, kernel: Path, tmp_path: Path) -> None:
    (tmp_path / "faster.cpp").write_text(FASTER)
    (tmp_path / "wrong.cpp").write_text(FASTER.replace("2.0f", "3.0f"))
    good = call("evaluate", "--kernel", kernel, "--device", "cpu", "faster.cpp", "--json")
    verdict = json.loads(good.stdout)
    assert (good.returncode, verdict["outcome"]) == (0, "PASSED"), verdict["reason"]
    assert verdict["comparison"] in ("FASTER", "UNCLEAR", "SAME") and verdict["timings"]
    bad = call("evaluate", "--kernel", kernel, "--device", "cpu", "wrong.cpp", "--json")
    verdict = json.loads(bad.stdout)
    assert (bad.returncode, verdict["outcome"], verdict["comparison"]) == (3, "INCORRECT", None)
    assert not (tmp_path / "runs").exists()


HUGE = 'Workload(axes={"n": 10**15}, dtype="float32"),'


@needs_compiler
@pytest.mark.usefixtures("short_run")
def test_a_workload_that_the_machine_cannot_hold_is_named_wherever_a_person_looks(
    call: Call, kernel: Path, tmp_path: Path
) -> None:
    (kernel / "spec.py").write_text(SPEC.replace("workloads=(", f"workloads=({HUGE}"))
    words = ("--kernel", kernel, "--device", "cpu")
    done = call(*words, *QUICK[2:], "--rounds", "0", "--run-id", "a")
    assert done.returncode == 3, done.stderr
    assert "left out, too large: float32 n=1000000000000000" in done.stdout
    folder = tmp_path / "runs" / "a"
    assert "n=1000000000000000 needs" in "".join(json.loads((folder / "result.json").read_text())["notices"])
    assert "n=1000000000000000 needs" in (folder / "report.html").read_text()


def test_a_kernel_too_large_for_the_machine_is_refused_before_a_run_exists(
    kernel: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (kernel / "spec.py").write_text(SPEC.replace('"n": 40000', '"n": 10**15'))
    said = refused(capsys, "--kernel", kernel, "--device", "cpu", "--runs-dir", tmp_path / "runs")
    assert "no timed workload that fits device cpu" in said and "n=1000000000000000 needs" in said
    assert not (tmp_path / "runs").exists()


def test_the_version_is_that_of_the_project(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="^0$"):
        door.parse(["--version"])
    version = re.search(r'^version = "(.+)"', (REPOSITORY / "pyproject.toml").read_text(), re.MULTILINE)
    assert version and capsys.readouterr().out.startswith(f"Astrolabe {version[1]} (")
