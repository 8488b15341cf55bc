"""A campaign: killed at any moment and started again it repeats nothing; what cannot be worked on is counted."""

from __future__ import annotations

import html
import json
import signal
import subprocess
from pathlib import Path

import pytest

from graph import campaign as campaigns
from graph.campaign import Campaign, entry_id, make_record
from graph.runs import RunError
from tests import forked

PROBLEMS = ("1_Fast.py", "2_Unfit.py", "3_Slow.py", "4_Wrong.py")
WORK = """
import os, signal, sys, threading
from pathlib import Path
from graph import campaign as campaigns
from graph.choices import Choice
from graph.session import RunService
from kernels.catalog import Kernel, KernelError
from kernels.spec import Spec
from harness.store import digest
from tests.graph.doubles import *

folder, death, at_once, kinds = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4].split(",")
samples = int(sys.argv[5])
SCRIPTS = {
    "1_Fast": {0: ["speed 1.5"], 1: ["speed 2.0"]},
    "3_Slow": {0: ["speed 0.5"], 1: ["speed 0.7"]},
    "4_Wrong": {0: [["incorrect", "compile error"]], 1: ["incorrect"]},
    "l1-003-Slow-sample-1": {0: ["speed 0.5"], 1: ["speed 1.25"]},
    "l1-004-Wrong-sample-1": {0: ["speed 0.9"], 1: ["incorrect"]},
}

def die(moment):
    if moment == death:
        os.kill(os.getpid(), signal.SIGKILL)

class Mortal(Script):
    def __init__(self, name, *arguments, **more):
        super().__init__(*arguments, **more)
        self.title = name

    def drafter(self, request):
        die(f"drafting {self.title}")
        return super().drafter(request)

    def coder(self, request):
        die(f"coding {self.title}")
        return super().coder(request)

def choose(path, run_id):
    if "Unfit" in path.stem:
        raise KernelError(f"{path} cannot be imported: it exits")
    spec = SPEC.model_copy(update={"problem": True})
    made = settings(run_id, kernel=str(path), rounds=1, repairs=1)
    return Choice(Kernel(spec, path), made, BASELINE)

def opened(run, record, state, say):
    name = Path(record.settings.kernel).stem
    script = SCRIPTS.get(record.settings.run_id) or SCRIPTS[name]
    return paper_context(Mortal(name, script))(run, record, state, say)

at_work, most = set(), 0

class Watcher:
    def display_for(self, name):
        global most
        die(f"before {name}")
        at_work.add(name)
        most = max(most, len(at_work))
        return Silent()

    def record_end(self, entry):
        at_work.discard(entry.id)
        die(f"after {entry.id}")

whole = campaigns.write_atomically
def write(path, text):
    if path.parent.name == "entries":
        die(f"unwritten {path.stem}")
    whole(path, text)
campaigns.write_atomically = write

paths = [folder / "level1" / name for name in ("1_Fast.py", "2_Unfit.py", "3_Slow.py", "4_Wrong.py")]
found = campaigns.Campaign(folder / "runs", "c")
found.begin(campaigns.make_record("c", str(folder), "cpu", ["--rounds", "1"], paths, samples))
with found.lock():
    if at_once == 1:
        assert found.work([campaigns.ProblemPlan(choose, lambda runs: RunService(runs, opened), nobody)], Watcher())
    else:
        stop = threading.Event()
        doors = lambda runs: RunService(runs, opened, "", stop)
        plans = [campaigns.ProblemPlan(choose, doors, nobody, kind=kind, at_once=lambda: at_once) for kind in kinds]
        assert found.work(plans, Watcher(), stop)
print(most)
"""


def work(
    folder: Path, death: str = "", *, at_once: int = 1, kinds: str = "", samples: int = 1
) -> subprocess.CompletedProcess[str]:
    (folder / "level1").mkdir(parents=True, exist_ok=True)
    for name in PROBLEMS:
        (folder / "level1" / name).write_text(f"# {name}\nclass Model: ...\ndef get_inputs(): ...\n")
    return forked.run(WORK, folder, death, at_once, kinds, samples)


def said(folder: Path) -> dict:
    """The summary without times, and how often anything was evaluated."""
    found = json.loads((folder / "runs" / "c" / "summary.json").read_text())
    for line in found["page"]["lines"]:
        line.pop("seconds")
        line.pop("load")
        line["reason"] = line["reason"].replace(str(folder), "FOLDER")
    logs = sorted((folder / "runs" / "c" / "runs").glob("*/evaluations.log"))
    counts = {log.parent.name: sorted(log.read_text().splitlines()) for log in logs}
    return {"lines": found["page"]["lines"], "tables": found["tables"], "evaluations": counts}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unbroken")
    done = work(folder)
    assert done.returncode == 0, done.stderr[-2000:]
    return folder


@pytest.fixture(scope="module")
def unbroken(finished: Path) -> dict:
    return said(finished)


def test_every_problem_ends_in_a_result_or_a_reason(unbroken: dict):
    ended = [(line["id"], line["state"], line["outcome"]) for line in unbroken["lines"]]
    assert ended == [
        ("l1-001-Fast", "done", "PASSED"),
        ("l1-002-Unfit", "unfit", ""),
        ("l1-003-Slow", "done", "PASSED"),
        ("l1-004-Wrong", "done", "INCORRECT"),
    ]
    assert "it exits" in unbroken["lines"][1]["reason"]
    whole = unbroken["tables"][0]
    assert (whole["problems"], whole["correct_rate"], whole["fast"]["0.5"], whole["fast"]["1"]) == (4, 0.5, 0.5, 0.25)


@pytest.mark.parametrize("death", ["unwritten l1-001-Fast", "after l1-004-Wrong"])
def test_killed_and_started_again_it_ends_as_the_unbroken_one(unbroken: dict, death: str, tmp_path: Path):
    assert work(tmp_path, death).returncode == -signal.SIGKILL
    again = work(tmp_path)
    assert again.returncode == 0, again.stderr[-2000:]
    assert said(tmp_path) == unbroken


def test_a_finished_campaign_does_nothing_again(finished: Path, unbroken: dict):
    assert work(finished, "before l1-001-Fast").returncode == 0  # it never comes to that
    assert said(finished) == unbroken


def test_another_command_of_that_name_is_refused(tmp_path: Path):
    path = tmp_path / "level1" / "1_A.py"
    found = Campaign(tmp_path, "c")
    found.begin(make_record("c", "s", "cpu", ["--rounds", "1"], [path]))
    with pytest.raises(RunError, match="with other options"):
        found.begin(make_record("c", "s", "cpu", ["--rounds", "2"], [path]))
    with pytest.raises(RunError, match="with other problems"):
        found.begin(make_record("c", "s", "cpu", ["--rounds", "1"], [path, path.with_name("2_B.py")]))
    found.begin(make_record("c", "s", "cpu", ["--rounds", "1"], [path]))


def test_two_processes_do_not_share_a_campaign(tmp_path: Path):
    found = Campaign(tmp_path, "c")
    found.begin(make_record("c", "s", "cpu", [], [tmp_path / "1_A.py"]))
    code = "import sys; from pathlib import Path; from graph.campaign import Campaign\nwith Campaign(Path(sys.argv[1]), 'c').lock(): pass"
    with found.lock():
        done = forked.run(code, tmp_path)
    assert done.returncode == 1 and "being worked on by another process" in done.stderr


def test_a_campaign_that_is_worked_on_is_refused_before_a_cluster_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from graph.commands import campaign as command
    from harness.options import from_words

    def open_engine(*_words, **_more):
        raise AssertionError("an engine was opened")

    monkeypatch.setattr(command, "engine", open_engine)
    words = ["--suite", "starter", "--device", "cpu", "--engine", "dask", "--name", "c", "--runs-dir", str(tmp_path)]
    asked = from_words(command.CampaignCommand, words)
    code = "import sys; from pathlib import Path; from graph.campaign import Campaign\nwith Campaign(Path(sys.argv[1]), 'c').lock(): print(1, flush=True); input()"
    with forked.Program(code, tmp_path) as other:
        assert other.stdout.readline()
        with pytest.raises(RunError, match="being worked on by another process"):
            asked.go()
        other.stdin.write("\n")
        other.stdin.flush()
        other.wait(60)
    assert not (tmp_path / "c").exists()  # nothing was begun
    Campaign(tmp_path, "c").begin(make_record("c", "starter", "cpu", ["--rounds", "1"], [tmp_path / "1_A.py"]))
    with pytest.raises(RunError, match="with other"):
        asked.go()


def test_a_defect_of_ours_costs_one_problem(tmp_path: Path):
    def choose(path: Path, _run_id: str):
        raise ZeroDivisionError("a defect")

    class Quiet:
        def display_for(self, _name):
            return None

        def record_end(self, entry):
            pass

    found = Campaign(tmp_path, "c")
    found.begin(make_record("c", "s", "cpu", [], [tmp_path / "level1" / "1_A.py", tmp_path / "level1" / "2_B.py"]))
    assert found.work([campaigns.ProblemPlan(choose, lambda runs: None, lambda *_: None)], Quiet())
    assert [(entry.state, "ZeroDivisionError: a defect" in entry.reason) for entry in found.entries()] == [
        ("failed", True)
    ] * 2


def test_samples_know_nothing_of_each_other_and_count_together(tmp_path: Path):
    assert work(tmp_path, "coding 3_Slow", samples=2).returncode == -signal.SIGKILL
    again = work(tmp_path, samples=2)
    assert again.returncode == 0, again.stderr[-2000:]
    found = json.loads((tmp_path / "runs" / "c" / "summary.json").read_text())
    lines = {line["id"]: line for line in found["page"]["lines"]}
    assert sorted(lines) == [  # the fastest right sample of each; where all are alike the first
        "l1-001-Fast-sample-0", "l1-002-Unfit-sample-0", "l1-003-Slow-sample-1", "l1-004-Wrong-sample-1",
    ]  # fmt: skip
    counted = {name: (line["solved"]["samples"], line["solved"]["right"]) for name, line in lines.items()}
    assert list(counted.values()) == [(2, 2), (0, 0), (2, 2), (2, 1)]
    whole = found["tables"][0]
    assert whole["pass_at_k"] == {"1": pytest.approx(0.625), "2": pytest.approx(0.75)}
    assert (whole["problems"], whole["correct_rate"], whole["fast"]["1"]) == (4, 0.75, 0.5)
    runs = tmp_path / "runs" / "c" / "runs"
    assert len({(runs / f"l1-003-Slow-sample-{n}" / "run.json").read_text() for n in (0, 1)}) == 2
    page = (tmp_path / "runs" / "c" / "report.html").read_text()
    assert "fast_p@2" in page and "pass@2" in page
    with pytest.raises(RunError, match="with other --samples"):
        Campaign(tmp_path / "runs", "c").begin(
            Campaign(tmp_path / "runs", "c").record.model_copy(update={"samples": 3})
        )


def test_names_of_runs_are_those_of_files():
    assert entry_id(Path("/s/level2/7_Conv ReLU (x).py")) == "l2-007-Conv-ReLU-x"
    assert entry_id(Path("/s/level2/7_Conv.py"), "NVIDIA H200", 3) == "l2-007-Conv-NVIDIA-H200-sample-3"
    assert entry_id(Path("/s/mine.py")) == "l0-000-mine"


def test_side_by_side_it_ends_as_one_after_another(unbroken: dict, tmp_path: Path):
    assert work(tmp_path, "coding 3_Slow", at_once=3).returncode == -signal.SIGKILL
    done = work(tmp_path, at_once=3)
    assert done.returncode == 0, done.stderr[-2000:]
    found = said(tmp_path)  # what the other two were at in that moment is evaluated once more
    assert (found["lines"], found["tables"]) == (unbroken["lines"], unbroken["tables"])


def test_each_kind_of_device_has_a_report_of_its_own(unbroken: dict, tmp_path: Path):
    done = work(tmp_path, at_once=2, kinds="One GPU,Another")
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) > 1, "nothing was done side by side"
    assert not (tmp_path / "runs" / "c" / "report.html").exists()
    for slug, kind in (("One-GPU", "One GPU"), ("Another", "Another")):
        summary = json.loads((tmp_path / "runs" / "c" / f"summary-{slug}.json").read_text())
        assert summary["page"]["device"] == kind and summary["page"]["total"] == 4
        assert [line["id"] for line in summary["page"]["lines"]] == [
            f"{line['id']}-{slug}" for line in unbroken["lines"]
        ]
        assert summary["tables"] == unbroken["tables"]


JUDGED = WORK.replace(", nobody)], Watcher()", ", nobody, protocol=judged)], Watcher()").replace(
    "at_work, most = set(), 0",
    """
def judged(path, source, store):
    from harness.protocol_kernelbench import KernelBenchResult
    if "Fast" in path.stem:
        stats = {"mean": 3.0}
        return KernelBenchResult(compiled=True, correctness=True, runtime=1.0, ref_runtime=3.0, ref_runtime_stats=stats)
    return KernelBenchResult(compiled=True, metadata={"correctness_issue": "Output mismatch", "max_difference": ["0.000300"]})

at_work, most = set(), 0
""",
)


def test_kernelbenchs_own_figures_come_first_and_each_disagreement_has_its_reason(tmp_path: Path):
    (tmp_path / "level1").mkdir()
    for name in PROBLEMS:
        (tmp_path / "level1" / name).write_text(f"# {name}\nclass Model: ...\ndef get_inputs(): ...\n")
    done = forked.run(JUDGED, tmp_path, "", 1, "", 1)
    assert done.returncode == 0, done.stderr[-2000:]
    folder = tmp_path / "runs" / "c"
    (theirs,) = json.loads((folder / "summary.json").read_text())["kernelbench"]
    assert (theirs["problems"], theirs["compile_rate"], theirs["correct_rate"], theirs["fast"]["2"]) == (
        4,
        0.75,
        0.25,
        0.25,
    )
    assert theirs["median"] == 3.0 and theirs["geometric_mean"] == pytest.approx(3.0)
    page = html.unescape((folder / "report.html").read_text())
    said = (
        "fast_p by KernelBench's own evaluation",
        "l1-003-Slow</b>: ours passes, KernelBench's does not",
        "off by 0.0003 at most",
    )
    assert 0 < page.index(said[0]) < page.index(said[1]) < page.index(said[2]) < page.index("fast_p by our verdict")
    results = json.loads((folder / "kernelbench" / "level1" / "eval_results.json").read_text())
    assert {number: entry[0]["correctness"] for number, entry in results.items()} == {"1": True, "3": False, "4": False}
