"""Start, resume, fork, pause; locks, damaged databases, other graphs."""

from __future__ import annotations

import errno
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

import run as door
from graph import checkpoints, outputs
from graph.runs import RunError, RunFolder, RunStatus, every, new_id, now, valid_id
from graph.session import Ending, RunService, kernel_digest, new_record
from graph.workflow import signature
from harness.records import Comparison, EpochGain, Interval
from harness.store import Store
from kernels.catalog import Kernel
from nodes.options import Chat, Limits, StopRule
from nodes.roles import PolicyPaused
from tests import forked
from tests.graph.doubles import BASELINE, SPEC, PaperEvaluator, Script, Silent, nobody, paper_context, record, settings

REPOSITORY = Path(__file__).resolve().parents[2]
ROUNDS = {1: ["speed 1.3"], 2: ["speed 1.2"], 3: ["speed 1.6"]}


class Down(Script):
    """Its server is down in one round."""

    def __init__(self, rounds, down: int) -> None:
        super().__init__(rounds)
        self.down = down

    def coder(self, request):
        if request.round == self.down:
            raise PolicyPaused("the server does not answer")
        return super().coder(request)


def start(folder: Path, script: Script, ask=nobody, **changes) -> Ending:
    return RunService(folder, paper_context(script)).start(record(settings(**changes)), BASELINE, Silent(), ask)


def resume(folder: Path, script: Script, run_id: str = "run", ask=nobody, answer=None) -> Ending:
    return RunService(folder, paper_context(script)).resume(run_id, Silent(), ask, answer)


def outcomes(ending: Ending) -> list[dict]:
    return [row.model_dump(exclude={"seconds"}) for row in ending.result.attempts]


def test_a_type_that_the_state_does_not_name_is_not_rebuilt_from_a_checkpoint() -> None:
    code = "import run, graph.session, langgraph.checkpoint.serde._msgpack as m; print(m.STRICT_MSGPACK_ENABLED)"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


def test_records_come_back_from_the_database_as_they_were(tmp_path: Path) -> None:
    ending = start(tmp_path, Script(ROUNDS))
    values = RunService(tmp_path, paper_context(Script(ROUNDS))).snapshot(ending.run).values
    assert values["settings"] == settings()
    assert values["incumbent"].verdict.timings[0].workload.axes == {"n": 1024}
    assert isinstance(values["attempts"][0].plan.steps, tuple)


def test_settings_of_a_checkpoint_from_before_they_had_groups_come_back_in_them() -> None:
    """The recording is one that the program of 2026-11-22 wrote, when all fields stood side by side."""
    saved = (Path(__file__).parent / "recorded" / "settings_side_by_side.msgpack").read_bytes()
    serde = JsonPlusSerializer(allowed_msgpack_modules=[("nodes.state", "Settings")])
    found = serde.loads_typed(("msgpack", saved))
    assert found.stop == StopRule(rounds=7, patience=2)
    assert found.budget == Limits(tokens=50, role_tokens={"coder": 3}, fallback="none")
    assert found.chat == Chat(models={"coder": "m"}, effort={"coder": "low"}, prices="/p")
    assert serde.loads_typed(serde.dumps_typed(found)) == found
    assert found.with_changes(rounds=9, width=2) == found.model_copy(
        update={"stop": StopRule(rounds=9, patience=2), "width": 2}
    )


def test_a_paused_run_goes_on_and_ends_as_an_unbroken_one(tmp_path: Path) -> None:
    unbroken = start(tmp_path / "whole", Script(ROUNDS))
    paused = start(tmp_path / "broken", Down(ROUNDS, 2))
    assert paused.state == "paused" and paused.message == "the server does not answer"
    assert paused.run.status.state == "paused"
    assert len(paused.result.attempts) == 1  # a partial result is there
    again = resume(tmp_path / "broken", Down(ROUNDS, 2))
    assert again.state == "paused"
    ended = resume(tmp_path / "broken", Script(ROUNDS))
    assert ended.state == "finished" and outcomes(ended) == outcomes(unbroken)
    assert ended.result.spent.calls == unbroken.result.spent.calls
    assert ended.run.status.state == "finished"


def test_the_status_says_how_far_a_run_has_come(tmp_path: Path) -> None:
    """What `run.py runs` shows, without opening a database."""
    paused = start(tmp_path, Down(ROUNDS, 2))
    status = paused.run.status
    assert (status.round, status.attempts, status.message) == (2, 1, "the server does not answer")
    assert status.speedup == paused.result.speedup.median
    ended = resume(tmp_path, Script(ROUNDS))
    after, spent = ended.run.status, ended.result.attempts
    assert (after.round, after.attempts, after.message) == (3, len(spent), "")
    assert after.speedup == ended.result.speedup.median and after.updated >= status.updated
    visits = RunService(tmp_path, paper_context(Script(ROUNDS))).snapshot(ended.run).values["spent"].nodes.values()
    assert after.checkpoints == sum(visit.count for visit in visits) > status.checkpoints > 0


def test_what_was_measured_after_the_end_is_in_the_record_and_the_report(tmp_path: Path) -> None:
    ended = start(tmp_path, Script(ROUNDS))
    before = outputs.read(ended.run)
    gain = EpochGain(
        kernels=("gather_mean",), graph="small", rung="gpu-graph", nodes=9, edges=9, pairs=11,
        speedup=Interval(median=1.25, low=1.2, high=1.3), comparison=Comparison.FASTER, baseline_s=1.0, time_s=0.8,
        baseline_accuracy=0.91, accuracy=0.92,
    )  # fmt: skip
    RunService(tmp_path, paper_context(Script(ROUNDS))).add(ended.run, epoch=gain)
    assert outputs.read(ended.run) == before.model_copy(update={"epoch": gain})
    page = (ended.run.folder / "report.html").read_text()
    assert "FASTER, 1.250x (1.200 – 1.300): 1.000 s and 0.800 s on small, rung gpu-graph" in page
    assert "data:image/svg" in page, "the picture of the graph is gone"


def test_a_faster_incumbent_is_the_best_file_while_the_run_goes_on(tmp_path: Path) -> None:
    seen: dict[int, str] = {}

    class Looks(Script):
        def coder(self, request):
            best = tmp_path / "run" / "best.cpp"
            seen[request.round] = best.read_text() if best.exists() else ""
            return super().coder(request)

    start(tmp_path, Looks(ROUNDS))
    assert seen[1] == "" and "speed 1.3" in seen[2] and "speed 1.3" in seen[3], "1.2 was not kept"
    assert "speed 1.6" in (tmp_path / "run" / "best.cpp").read_text()


def test_seconds_go_on_counting_over_a_pause(tmp_path: Path) -> None:
    paused = start(tmp_path, Down(ROUNDS, 3))
    ended = resume(tmp_path, Script(ROUNDS))
    assert 0 < paused.result.spent.seconds < ended.result.spent.seconds


def test_a_budget_counts_what_was_spent_before_the_pause(tmp_path: Path) -> None:
    start(tmp_path, Down(ROUNDS, 2), tokens=700, fallback="none")
    ended = resume(tmp_path, Script(ROUNDS))
    assert ended.result.stop_reason == "budget: tokens"
    assert len(ended.result.attempts) == 2


def test_a_resume_may_have_other_limits(tmp_path: Path) -> None:
    start(tmp_path, Down({**ROUNDS, 4: ["speed 2"]}, 2))
    service = RunService(tmp_path, paper_context(Script({**ROUNDS, 4: ["speed 2"]})))
    more = lambda found: found.with_changes(rounds=4)  # noqa: E731
    ended = service.resume("run", Silent(), nobody, changes=more)
    assert [row.round for row in ended.result.attempts] == [1, 2, 3, 4] and ended.result.rounds == 4
    assert ended.run.record.settings.stop.rounds == 4
    assert ended.result.spent.calls == 1 + 3 + 4 + 4  # nobody was asked twice; the incumbent of round 1 stayed in 2
    with pytest.raises(RunError, match="is finished; to go on with other limits, fork it"):
        service.resume("run", Silent(), nobody, changes=more)


def test_resuming_a_finished_run_does_nothing_and_says_the_same(tmp_path: Path) -> None:
    first = start(tmp_path, Script(ROUNDS))
    script = Script(ROUNDS)
    again = resume(tmp_path, script)
    assert again.result == first.result and not script.asked


def test_a_finished_run_whose_outputs_are_lost_writes_them_again(tmp_path: Path) -> None:
    first = start(tmp_path, Script(ROUNDS))
    (first.run.folder / "result.json").unlink()
    assert outcomes(resume(tmp_path, Script(ROUNDS))) == outcomes(first)
    assert (first.run.folder / "result.json").exists()


def test_a_new_record_is_of_now_and_of_this_graph_and_has_no_password(tmp_path: Path) -> None:
    before, kernel = now(), Kernel(SPEC, tmp_path)
    made = new_record(settings(), kernel, "postgresql://u:secret@h/d")
    assert before <= made.created <= now() and made.signature == signature()
    assert (made.run_id, made.kernel, made.summary) == (
        "run",
        SPEC.name,
        SPEC.summary,
    ) and made.kernel_digest == kernel_digest(tmp_path)
    assert made.checkpointer.startswith("postgresql://") and "secret" not in made.model_dump_json()
    assert new_record(settings(), kernel).checkpointer == "sqlite"


def test_a_run_that_was_killed_before_its_first_checkpoint_starts(tmp_path: Path) -> None:
    run = RunFolder(tmp_path, "run")
    run.reserve()
    run.begin(record(settings()), BASELINE)
    assert run.status.state == "interrupted"
    assert resume(tmp_path, Script(ROUNDS)).state == "finished"


def test_the_name_of_a_run_is_taken_once(tmp_path: Path) -> None:
    start(tmp_path, Script(ROUNDS))
    with pytest.raises(RunError, match="there is a run 'run' already"):
        start(tmp_path, Script(ROUNDS))


def test_an_older_graph_is_refused_by_name(tmp_path: Path) -> None:
    paused = start(tmp_path, Down(ROUNDS, 2))
    path = paused.run.folder / "run.json"
    path.write_text(path.read_text().replace('"measure"', '"judge"'))
    before = (paused.run.checkpoints).read_bytes()
    with pytest.raises(RunError, match=r"another version of the graph .*its node 'judge' is not there any more"):
        resume(tmp_path, Script(ROUNDS))
    assert paused.run.checkpoints.read_bytes() == before


@pytest.mark.parametrize("damage", [b"this is no database, it only looks like one" * 200, b""])
def test_a_damaged_database_is_refused_and_left_as_it_is(tmp_path: Path, damage: bytes) -> None:
    paused = start(tmp_path, Down(ROUNDS, 2))
    for extra in paused.run.folder.glob("checkpoint.sqlite-*"):
        extra.unlink()
    paused.run.checkpoints.write_bytes(damage)
    with pytest.raises(RunError, match=r"is damaged .*left as it is|has no checkpoint any more"):
        resume(tmp_path, Script(ROUNDS))
    if damage:
        assert paused.run.checkpoints.read_bytes() == damage


class Holds(Script):
    """Another process takes the database in the first round, as a backup does, for `seconds`."""

    def __init__(self, rounds, database: Path, seconds: float) -> None:
        super().__init__(rounds)
        self.database, self.seconds, self.held = database, seconds, None

    def coder(self, request):
        if self.held is None:
            code = (
                "import sqlite3, sys, time; held = sqlite3.connect(sys.argv[1], timeout=20, isolation_level=None); "
                "held.execute('BEGIN EXCLUSIVE'); print('held', flush=True); time.sleep(float(sys.argv[2]))"
            )
            command = [sys.executable, "-c", code, str(self.database), str(self.seconds)]
            self.held = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            assert self.held.stdout.readline() == "held\n"
        return super().coder(request)


class Listens(Silent):
    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def say(self, kind: str, text: str) -> None:
        self.said.append(text)


def test_a_database_that_another_process_holds_for_seconds_is_waited_for(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(checkpoints, "TRY_S", 0.2)
    script, front = Holds(ROUNDS, tmp_path / "run" / "checkpoint.sqlite", 1.0), Listens()
    ending = RunService(tmp_path, paper_context(script)).start(record(settings()), BASELINE, front, nobody)
    assert ending.state == "finished" and script.held is not None
    assert any("another process holds the checkpoint database" in said for said in front.said)


def test_a_database_that_is_held_for_too_long_pauses_the_run_and_nothing_is_lost(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(checkpoints, "TRY_S", 0.2)
    monkeypatch.setattr(checkpoints, "PATIENCE_S", 0.5)
    script = Holds(ROUNDS, tmp_path / "run" / "checkpoint.sqlite", 60)
    ending = start(tmp_path, script)
    try:
        assert ending.state == "paused" and "another process has held the database" in ending.message
        assert resume(tmp_path, Script(ROUNDS)).state == "paused"
    finally:
        script.held.kill()
        script.held.wait()
    assert outcomes(resume(tmp_path, Script(ROUNDS))) == outcomes(start(tmp_path / "whole", Script(ROUNDS)))


@pytest.mark.parametrize(
    "words", [["history", "run"], ["resume", "run"], ["fork", "run", "--checkpoint", "1"], ["graph", "run"]]
)
def test_a_command_meets_a_database_that_nobody_else_may_read(
    words: list[str], tmp_path: Path, monkeypatch, capsys
) -> None:
    start(tmp_path, Down(ROUNDS, 2))
    monkeypatch.setattr(checkpoints, "TRY_S", 0.1)
    monkeypatch.setattr(checkpoints, "PATIENCE_S", 0.2)
    with closing(sqlite3.connect(tmp_path / "run" / "checkpoint.sqlite", isolation_level=None)) as holder:
        holder.execute("PRAGMA locking_mode=EXCLUSIVE")
        holder.execute("BEGIN EXCLUSIVE")
        assert door.main([*words, "--runs-dir", str(tmp_path)]) == 75
        waiting, said = capsys.readouterr().err.splitlines()
        assert "waiting up to" in waiting and "has held the database" in said
        holder.execute("ROLLBACK")


def test_a_page_of_garbage_in_the_database_is_found(tmp_path: Path) -> None:
    paused = start(tmp_path, Down(ROUNDS, 2))
    path = paused.run.checkpoints
    data = bytearray(path.read_bytes())
    data[4096:8192] = os.urandom(4096)
    path.write_bytes(data)
    with pytest.raises(RunError, match="damaged"):
        resume(tmp_path, Script(ROUNDS))
    assert path.read_bytes() == data


def test_a_record_that_does_not_fit_is_not_resumed(tmp_path: Path) -> None:
    paused = start(tmp_path, Down(ROUNDS, 2))
    with sqlite3.connect(paused.run.checkpoints) as connection:
        changed = connection.execute(
            "UPDATE checkpoints SET checkpoint = replace(checkpoint, CAST('repairs' AS BLOB), CAST('repaira' AS BLOB))"
        ).rowcount
    assert changed
    with pytest.raises(RunError, match="damaged"):
        resume(tmp_path, Script(ROUNDS))


def test_another_device_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start(tmp_path, Down(ROUNDS, 2))
    monkeypatch.setattr(PaperEvaluator, "facts", PaperEvaluator.facts.model_copy(update={"name": "stone"}))
    with pytest.raises(RunError, match=r"measured on paper \(pencil\), and this is stone"):
        resume(tmp_path, Script(ROUNDS))


def test_another_architecture_of_the_same_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cloud's "Intel Xeon" is with and without AVX-512."""
    start(tmp_path, Down(ROUNDS, 2))
    monkeypatch.setattr(PaperEvaluator, "facts", PaperEvaluator.facts.model_copy(update={"architecture": "ink"}))
    with pytest.raises(RunError, match=r"measured on paper \(pencil\), and this is paper \(ink\)"):
        resume(tmp_path, Script(ROUNDS))


def test_a_failure_of_ours_is_raised_and_noted_and_can_be_resumed(tmp_path: Path) -> None:
    class Broken(Script):
        def planner(self, request):
            raise ZeroDivisionError("a bug")

    with pytest.raises(ZeroDivisionError):
        start(tmp_path, Broken(ROUNDS))
    status = RunFolder(tmp_path, "run").status
    assert status.state == "failed" and "a bug" in status.message
    assert resume(tmp_path, Script(ROUNDS)).state == "finished"


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), sqlite3.OperationalError("database or disk is full")]
)
def test_a_full_disk_is_said_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    whole, put = start(tmp_path / "whole", Script(ROUNDS)), Store.put

    def full(self: Store, source: str) -> str:
        if source == "speed 1.2":
            raise error
        return put(self, source)

    monkeypatch.setattr(Store, "put", full)
    with pytest.raises(RunError, match=r"is full; free some space .*run.py resume run --runs-dir .*/full`"):
        start(tmp_path / "full", Script(ROUNDS))
    monkeypatch.setattr(Store, "put", put)
    assert outcomes(resume(tmp_path / "full", Script(ROUNDS))) == outcomes(whole)


def test_a_fork_goes_on_from_a_checkpoint_with_other_limits(tmp_path: Path) -> None:
    script = Script({**ROUNDS, 4: ["speed 2.0"]})
    first = start(tmp_path, script)
    service = RunService(tmp_path, paper_context(script))
    after_round_1 = next(s for s in service.history(first.run) if s.next == ("profiler",) and s.values["round"] == 1)
    new = first.run.record.model_copy(
        update={"run_id": "second", "settings": settings("second", rounds=4), "forked_from": "run"}
    )
    ended = service.fork("run", after_round_1.config["configurable"]["checkpoint_id"], new, Silent(), nobody)
    assert ended.state == "finished" and ended.result.run_id == "second"
    assert [row.round for row in ended.result.attempts] == [1, 2, 3, 4]
    assert ended.result.speedup.median == pytest.approx(2.0)
    # What the first run had evaluated was not evaluated again, and the first run is what it was.
    fresh = (ended.run.folder / "evaluations.log").read_text()
    known = Store(tmp_path).put("speed 1.2")
    assert not [line for line in fresh.splitlines() if known in line and "contend" not in line], (
        "short ones are not kept"
    )
    assert service.snapshot(first.run).values["settings"].run_id == "run"
    assert [run.id for run in every(tmp_path)] == ["run", "second"]


def test_a_run_of_an_older_graph_is_not_forked(tmp_path: Path) -> None:
    first = start(tmp_path, Script(ROUNDS))
    service = RunService(tmp_path, paper_context(Script(ROUNDS)))
    checkpoint = service.history(first.run)[3].config["configurable"]["checkpoint_id"]
    path = first.run.folder / "run.json"
    path.write_text(path.read_text().replace('"measure"', '"judge"'))
    new = first.run.record.model_copy(update={"run_id": "second", "settings": settings("second")})
    with pytest.raises(RunError, match=r"another version of the graph .*its node 'judge' is not there any more"):
        service.fork("run", checkpoint, new, Silent(), nobody)
    assert not (tmp_path / "second").exists()


@pytest.mark.parametrize(
    ("checkpoint", "said"),
    [("nonsense", "has no checkpoint 'nonsense'"), ("", "no checkpoint"), ("-", "'-' may be any of")],
)
def test_a_checkpoint_that_is_not_there_is_said(tmp_path: Path, checkpoint: str, said: str) -> None:
    first = start(tmp_path, Script(ROUNDS))
    new = first.run.record.model_copy(update={"run_id": "second", "settings": settings("second")})
    with pytest.raises(RunError, match=said):
        RunService(tmp_path, paper_context(Script(ROUNDS))).fork("run", checkpoint, new, Silent(), nobody)
    assert not (tmp_path / "second").exists()


def test_the_end_of_a_run_cannot_be_forked(tmp_path: Path) -> None:
    first = start(tmp_path, Script(ROUNDS))
    service = RunService(tmp_path, paper_context(Script(ROUNDS)))
    last = service.history(first.run)[0].config["configurable"]["checkpoint_id"]
    new = first.run.record.model_copy(update={"run_id": "second", "settings": settings("second")})
    with pytest.raises(RunError, match="is the end of run run"):
        service.fork("run", last, new, Silent(), nobody)


# --- the person ----------------------------------------------------------------------------------------------------


def test_an_approval_that_nobody_gives_pauses_and_is_answered_later(tmp_path: Path) -> None:
    paused = start(tmp_path, Script({1: ["speed 1.3", "speed 1.5"]}), approve="candidates", width=2, rounds=1)
    assert paused.state == "paused" and paused.message == "waiting for approval of the candidate 'p0'"
    again = resume(tmp_path, Script({1: ["speed 1.3", "speed 1.5"]}))
    assert again.state == "paused"
    second = resume(tmp_path, Script({1: ["speed 1.3", "speed 1.5"]}), answer="yes")
    assert second.message == "waiting for approval of the candidate 'p1'"
    ended = resume(tmp_path, Script({1: ["speed 1.3", "speed 1.5"]}), answer="no: too long")
    assert [(row.outcome, row.reason) for row in ended.result.attempts] == [
        ("PASSED", ""),
        ("REFUSED", "refused by the person: too long"),
    ]
    assert ended.result.spent.calls == 5  # tester, profiler, planner, two coders: nobody was asked twice


def test_a_person_may_edit_a_candidate(tmp_path: Path) -> None:
    seen: list[dict] = []

    def ask(question, store):
        seen.append(question)
        assert store.get(question["candidate"]) == "speed 1.3"
        return {"edit": "speed 1.9"}

    ended = start(tmp_path, Script({1: ["speed 1.3"]}), ask, approve="candidates", rounds=1)
    assert ended.result.speedup.median == pytest.approx(1.9)
    assert len(seen) == 1 and "+speed 1.3" in seen[0]["text"]


def test_a_repair_is_shown_again(tmp_path: Path) -> None:
    seen: list[str] = []

    def ask(question, _store):
        seen.append(question["text"])
        return "yes"

    ended = start(tmp_path, Script({1: [["compile error", "speed 1.3"]]}), ask, approve="candidates", rounds=1)
    assert len(seen) == 2 and "+speed 1.3" in seen[1]
    assert ended.result.attempts[0].accepted


def test_a_person_may_refuse_or_edit_a_plan(tmp_path: Path) -> None:
    script = Script({1: ["speed 1.3"], 2: ["speed 1.6"]})
    answers = iter(["no", {"edit": "my plan\nfirst\nthen"}])
    ended = start(tmp_path, script, lambda _q, _s: next(answers), approve="plans", rounds=2)
    first, second = ended.result.attempts
    assert (first.outcome, first.reason) == ("REFUSED", "refused by the person")
    assert (second.plan.title, second.plan.steps, second.outcome) == ("my plan", ("first", "then"), "PASSED")
    assert sum(role == "coder" for role, _ in script.asked) == 1


def test_an_answer_that_nobody_asked_for_is_refused(tmp_path: Path) -> None:
    start(tmp_path, Down(ROUNDS, 2))
    with pytest.raises(RunError, match="not waiting for an answer"):
        resume(tmp_path, Script(ROUNDS), answer="yes")


def test_an_edited_plan_without_a_step_is_refused_before_the_run_goes_on(tmp_path: Path) -> None:
    start(tmp_path, Script(ROUNDS), approve="plans")
    with pytest.raises(RunError, match="at least one step"):
        resume(tmp_path, Script(ROUNDS), answer={"edit": "a title only"})
    assert RunFolder(tmp_path, "run").status.state == "paused"


# --- processes -----------------------------------------------------------------------------------------------------

HOLD = """
import sys, time
from pathlib import Path
from graph.runs import RunFolder
with RunFolder(Path(sys.argv[1]), "run").lock():
    print("held", flush=True)
    time.sleep(60)
"""
SLOW = """
import sys, time
from pathlib import Path
from graph import interrupting
from graph.session import RunService
from tests.graph.doubles import *

class Slow(Script):
    def coder(self, request):
        print("coding", flush=True)
        time.sleep(float(sys.argv[2]))
        return super().coder(request)

interrupting.GRACE_S = float(sys.argv[3]) if len(sys.argv) > 3 else interrupting.GRACE_S
ending = RunService(Path(sys.argv[1]), paper_context(Slow({1: ["speed 1.3"]}))).start(
    record(settings(rounds=1)), BASELINE, Silent(), nobody)
print(ending.state, flush=True)
os._exit(130 if ending.state == "interrupted" else 0)
"""


def test_a_second_process_is_refused_and_a_dead_one_holds_nothing(tmp_path: Path) -> None:
    paused = start(tmp_path, Down(ROUNDS, 2))
    other = forked.Program(HOLD, tmp_path)
    try:
        assert other.stdout.readline() == "held\n"
        assert paused.run.holder() == other.pid
        paused.run.note(RunStatus(state="running", updated=now()))
        assert paused.run.status.state == "running"
        with pytest.raises(RunError, match=rf"run run is being worked on by another process \(pid {other.pid}\)"):
            resume(tmp_path, Script(ROUNDS))
    finally:
        other.kill()
        other.wait()
    assert paused.run.holder() is None
    assert paused.run.status.state == "interrupted"
    assert resume(tmp_path, Script(ROUNDS)).state == "finished"


def test_the_lock_is_not_inherited_by_a_forked_worker(tmp_path: Path) -> None:
    paused = start(tmp_path, Down(ROUNDS, 2))
    code = HOLD.replace(
        "    print(", "    import os\n    child = os.fork()\n    if not child: time.sleep(60)\n    print(child, "
    )
    other = forked.Program(code, tmp_path)
    child = int(other.stdout.readline().split()[0])
    other.kill()
    other.wait()
    try:
        os.kill(child, 0)  # the worker lives on
        assert resume(tmp_path, Script(ROUNDS)).state == "finished"
    finally:
        os.kill(child, signal.SIGKILL)
    assert paused.run.holder() is None


def test_ctrl_c_ends_a_long_node_soon_and_the_run_goes_on(tmp_path: Path) -> None:
    process = forked.Program(SLOW, tmp_path, 3600, 0.1)  # nobody waits for its end
    assert process.stdout.readline() == "coding\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(200) == 130, process.stderr.read()
    assert process.stdout.read() == "interrupted\n"
    run = RunFolder(tmp_path, "run")
    assert run.status.state == "interrupted"
    assert resume(tmp_path, Script({1: ["speed 1.3"]})).result.attempts[0].accepted


def test_ctrl_c_lets_a_short_node_finish(tmp_path: Path) -> None:
    process = forked.Program(SLOW, tmp_path, 0.3, 60)
    assert process.stdout.readline() == "coding\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 130, process.stderr.read()
    values = RunService(tmp_path, paper_context(Script({}))).snapshot(RunFolder(tmp_path, "run")).values
    assert values["drafts"][0].candidate and values["spent"].nodes["coder"].count == 1


def test_a_second_ctrl_c_ends_at_once(tmp_path: Path) -> None:
    process = forked.Program(SLOW, tmp_path, 3600, 3600)  # the first one would be waited for as long
    assert process.stdout.readline() == "coding\n"
    sent = 0
    while process.poll() is None and sent < 400:  # two that come at once are one
        process.send_signal(signal.SIGINT)
        sent += 1
        time.sleep(0.3)
    assert process.wait(1) == 130 and sent >= 2
    assert process.stderr.read().endswith(f"run.py resume run --runs-dir {tmp_path}\n")
    assert resume(tmp_path, Script({1: ["speed 1.3"]})).state == "finished"


# --- names ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", ".", "..", "../up", "a/b", "/etc", ".hidden", "-x", "a b", "a\n", "é", "x" * 101])
def test_a_bad_run_id_is_refused(name: str) -> None:
    with pytest.raises(RunError, match="is no run id"):
        valid_id(name)


def test_made_up_names_are_valid(tmp_path: Path) -> None:
    for kernel in ("silu_and_mul", "/home/me/my kernel", "é", "x" * 300):
        assert valid_id(new_id(kernel))


def test_an_unknown_run_names_the_nearest(tmp_path: Path) -> None:
    start(tmp_path, Script(ROUNDS), run_id="silu-monday")
    with pytest.raises(RunError, match="no run 'silu-munday'; did you mean silu-monday"):
        RunFolder.find(tmp_path, "silu-munday")
