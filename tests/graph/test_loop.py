"""The graph from end to end, on paper: no compiler, no model."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import pytest

from graph.choices import ENOUGH_S, choose
from graph.request import RunRequest
from graph.session import Ending, RunService
from harness.records import Outcome
from harness.store import digest
from kernels.spec import Workload
from nodes import roles
from nodes.options import ROLES
from tests.graph.doubles import BASELINE, Script, Silent, nobody, paper_context, record, settings


def run(tmp_path: Path, script: Script, *, source: str = BASELINE, ask=nobody, **changes) -> Ending:
    made = settings(**{"source": digest(source), **changes})
    return RunService(tmp_path, paper_context(script)).start(record(made), source, Silent(), ask)


def rows(ending: Ending) -> list[tuple[int, str, bool]]:
    return [(row.round, str(row.outcome), row.accepted) for row in ending.result.attempts]


def test_keeps_the_fastest_that_passed_and_says_what_became_of_each(tmp_path: Path) -> None:
    ending = run(tmp_path, Script({1: ["speed 1.3"], 2: ["speed 1.2"], 3: ["speed 1.6"]}))
    assert ending.state == "finished"
    assert rows(ending) == [(1, "PASSED", True), (2, "PASSED", False), (3, "PASSED", True)]
    assert ending.result.attempts[1].reason == "not clearly faster than the best so far: SLOWER"
    assert ending.result.improved and ending.result.speedup.median == pytest.approx(1.6)
    assert ending.result.stop_reason == "rounds"
    assert ending.result.best_round == 3


def test_what_the_evaluator_found_out_is_said_and_kept(tmp_path: Path) -> None:
    front, made = Silent(), settings(rounds=1)
    ending = RunService(tmp_path, paper_context(Script({1: ["speed 1.3"]}))).start(
        record(made), BASELINE, front, nobody
    )
    assert front.events.count(("notice", "no landlock here")) == 1
    assert ending.result.notices == ("no landlock here",) and ending.result.sandbox == ("rlimits",)


def test_what_a_run_leaves_in_its_folder(tmp_path: Path) -> None:
    folder = run(tmp_path, Script({1: ["speed 1.5"]}), rounds=1).run.folder
    assert (folder / "best.cpp").read_text() == "speed 1.5"
    assert "+speed 1.5" in (folder / "best.diff").read_text()
    assert "1.5" in (folder / "report.html").read_text()
    assert '"run_id": "run"' in (folder / "result.json").read_text()
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]  # no half-written file


def test_the_report_has_a_picture_of_the_path_that_the_run_took(tmp_path: Path) -> None:
    page = (
        run(tmp_path, Script({1: [["compile error", "speed 1.5"]]}), rounds=1).run.folder / "report.html"
    ).read_text()
    pictures = [base64.b64decode(found).decode() for found in re.findall(r"base64,([A-Za-z0-9+/=]+)", page)]
    (path,) = [picture for picture in pictures if "planner" in picture]
    said = re.findall(r">([^<>]+)</text>", path)
    assert "taken" in said and "built" in said and "repair" in said
    assert said.count("not run") == 1, "a kernel needs no draft"
    assert sum(words.startswith("2× · ") for words in said) >= 2, "compile and coder: there was a repair"


def test_plans_start_from_the_incumbent_and_see_every_attempt(tmp_path: Path) -> None:
    script = Script({1: ["speed 1.3"], 2: ["incorrect\nspeed 9"], 3: ["speed 1.4"]})
    run(tmp_path, script, repairs=0)
    plans = [request for role, request in script.asked if role == "planner"]
    assert [plan.source for plan in plans] == [BASELINE, "speed 1.3", "speed 1.3"]
    assert [a.outcome for a in plans[2].attempts] == ["PASSED", "INCORRECT"]
    assert set(plans[2].sources.values()) == {BASELINE, "speed 1.3"}


def test_agents_never_see_held_out_workloads(tmp_path: Path) -> None:
    script = Script({1: ["speed 1.3"]})
    run(tmp_path, script, rounds=1)
    assert {role for role, _ in script.asked} == set(ROLES) - {"drafter", "reviewer"}  # a kernel needs no draft
    for _, request in script.asked:
        assert not any(workload.held_out for workload in request.spec.workloads)
        assert "3000" not in request.model_dump_json()


def test_the_finding_is_asked_for_again_only_when_the_incumbent_changed(tmp_path: Path) -> None:
    script = Script({1: ["speed 1.0"], 2: ["speed 1.3"], 3: ["speed 1.31"]})
    run(tmp_path, script)
    assert [request.round for role, request in script.asked if role == "profiler"] == [1, 3]


def test_a_failure_is_repaired_with_its_own_words_and_a_bounded_number_of_times(tmp_path: Path) -> None:
    script = Script(
        {1: [["compile error", "incorrect\nspeed 2", "speed 1.4"]], 2: [["compile 1", "compile 2", "compile 3"]]}
    )
    ending = run(tmp_path, script, rounds=2)
    asked = [(r.repair, r.outcome, r.source) for role, r in script.asked if role == "coder"]
    assert asked[:3] == [
        (0, None, BASELINE),
        (1, Outcome.COMPILE_ERROR, "compile error"),
        (2, Outcome.INCORRECT, "incorrect\nspeed 2"),
    ]
    assert "no such thing" in script.asked[4][1].failure
    assert [(row.outcome, row.repairs) for row in ending.result.attempts] == [("PASSED", 2), ("COMPILE_ERROR", 2)]
    assert len(asked) == 6


def test_a_repair_that_gives_nothing_leaves_the_failure(tmp_path: Path) -> None:
    ending = run(tmp_path, Script({1: [["incorrect\nspeed 2", ""]]}), rounds=1)
    row = ending.result.attempts[0]
    assert row.outcome == "INCORRECT" and "no repair: nothing comes to mind" in row.reason


def test_side_by_side_only_what_failed_is_written_again(tmp_path: Path) -> None:
    script = Script({1: ["speed 1.3", ["compile error", "speed 1.5"], ""]})
    ending = run(tmp_path, script, rounds=1, width=3)
    assert rows(ending) == [(1, "PASSED", False), (1, "PASSED", True), (1, "NO_CANDIDATE", False)]
    assert sum(role == "coder" for role, _ in script.asked) == 4
    assert ending.result.attempts[0].reason == "another candidate of the round was faster still"


def test_open_integers_are_searched_and_the_winner_says_which(tmp_path: Path) -> None:
    ending = run(tmp_path, Script({1: ["speed 1.3\ntune 64 128 256"]}), rounds=1)
    assert ending.result.attempts[0].tuned == {"BLOCK": 128}
    assert ending.result.speedup.median == pytest.approx(1.3 * 1.05)
    assert "picked 128" in (ending.run.folder / "best.cpp").read_text()


def test_what_is_unclear_is_contested_again_beside_the_incumbent_before_the_next_plan(tmp_path: Path) -> None:
    script = Script({1: ["speed 1.3"], 2: ["speed 1.5\nunclear"], 3: ["speed 1.5"]})
    ending = run(tmp_path, script)
    assert rows(ending) == [(1, "PASSED", True), (2, "PASSED", True), (3, "PASSED", False)]
    assert ending.result.attempts[1].reason == "FASTER with 3 times the samples"
    third = [request for role, request in script.asked if role == "planner"][2]
    assert third.source == "speed 1.5\nunclear" and ending.result.best_round == 2


def test_a_first_look_ends_without_longer_comparisons(tmp_path: Path) -> None:
    script = Script({1: ["speed 1.3", "speed 1.5\nunclear"]})
    ending = run(tmp_path, script, width=2, enough_seconds=1e-6)
    assert ending.result.stop_reason.startswith("first look") and ending.result.best_round == 1
    assert not any("times the samples" in attempt.reason for attempt in ending.result.attempts)


def test_what_stays_unclear_is_asked_later_with_more_samples_until_they_are_too_many(tmp_path: Path) -> None:
    script = Script({1: ["speed 1.5\nunclear always"], 2: ["speed 1.0"], 3: ["speed 1.2"], 4: ["speed 1.1"]})
    ending = run(tmp_path, script, rounds=4, patience=4)
    assert rows(ending) == [(1, "PASSED", False), (2, "PASSED", False), (3, "PASSED", True), (4, "PASSED", False)]
    assert ending.result.attempts[0].reason == (
        "not clearly faster than the best so far: UNCLEAR, with 12 times the samples"
    )
    did = (ending.run.folder / "evaluations.log").read_text().splitlines()
    again = [line.split()[0] for line in did if "-again" in line]
    beside = f"measure-visible-{digest('speed 1.2')}"
    assert again == ["measure-visible--again3", "measure-visible--again6", *(f"{beside}-again{n}" for n in (3, 6, 12))]


def test_of_several_that_are_unclear_the_best_two_are_contested_again(tmp_path: Path) -> None:
    """The second beside the incumbent that the first has become; what promises less than the margin is not worth it."""
    plans = [f"speed {speed}\nunclear" for speed in (1.2, 1.4, 1.02, 1.3)]
    ending = run(tmp_path, Script({1: plans}), rounds=1, width=4)
    assert [row.accepted for row in ending.result.attempts] == [False, True, False, False]
    did = (ending.run.folder / "evaluations.log").read_text().splitlines()
    assert [line for line in did if "-again" in line] == [f"measure-visible--again3 {digest(plans[1])}"]


def test_who_stays_unclear_leaves_the_next_its_turn(tmp_path: Path) -> None:
    plans = ["speed 1.4\nunclear always", "speed 1.3\nunclear"]
    ending = run(tmp_path, Script({1: plans}), rounds=1, width=2)
    first, second = ending.result.attempts
    assert (first.accepted, first.candidate) == (False, digest(plans[0])) and "UNCLEAR" in first.reason
    assert (second.accepted, second.candidate) == (True, digest(plans[1]))
    did = (ending.run.folder / "evaluations.log").read_text().splitlines()
    first, second = map(digest, plans)
    later = [f"measure-visible-{second}-again{contests} {first}" for contests in (3, 6, 12)]
    once = [f"measure-visible--again3 {first}", f"measure-visible--again3 {second}"]
    assert [line for line in did if "-again" in line] == [*once, *later]


def asked(script: Script, role: str) -> list:
    return [request for who, request in script.asked if who == role]


def test_a_plan_is_coded_once_the_reviewer_agrees(tmp_path: Path) -> None:
    """Of two plans one is objected to: only that one is planned again, with the reason."""

    class Again(Script):
        def planner(self, request):
            plans = super().planner(request)
            if not request.objections:
                return plans
            return tuple(roles.Plan(id="p1", title=f"better {i}", steps=("do it",)) for i in range(request.width))

    script = Again({1: ["speed 1.3", "speed 1.5"]}, objections={"plan 1": "it was tried"})
    ending = run(tmp_path, script, rounds=1, width=2, review=True)
    second = asked(script, "planner")[1]
    assert second.width == 1 and [(o.plan.title, o.reason) for o in second.objections] == [("plan 1", "it was tried")]
    assert {(row.plan.title, row.accepted) for row in ending.result.attempts} == {("plan 0", False), ("better 0", True)}
    reviewed = sorted((request.plan.title, bool(request.source)) for request in asked(script, "reviewer"))
    assert reviewed == [("better 0", False), ("better 0", True), ("plan 0", False), ("plan 0", True), ("plan 1", False)]


def test_what_is_objected_to_again_and_again_is_given_up(tmp_path: Path) -> None:
    script = Script({1: ["speed 1.3"], 2: ["speed 1.2"]}, objections={"plan 0": "no gain"})
    ending = run(tmp_path, script, rounds=2, review=True)
    assert [request.round for request in asked(script, "planner")] == [1, 1, 1, 2, 2, 2] and not asked(script, "coder")
    assert {(row.outcome, row.reason) for row in ending.result.attempts} == {
        ("NO_CANDIDATE", "the reviewer does not agree: no gain")
    }


def test_a_candidate_is_built_once_the_reviewer_agrees(tmp_path: Path) -> None:
    script = Script({1: [["speed 9\nobjection it skips the tail", "speed 1.4"]]})
    ending = run(tmp_path, script, rounds=1, review=True)
    assert rows(ending) == [(1, "PASSED", True)] and ending.result.attempts[0].repairs == 1
    assert asked(script, "coder")[1].failure == "The reviewer does not agree to it: it skips the tail"
    assert digest("speed 9\nobjection it skips the tail") not in (ending.run.folder / "evaluations.log").read_text()


def test_objections_to_candidates_count_as_repairs(tmp_path: Path) -> None:
    sources = [f"speed {n}\nobjection wrong" for n in range(1, 5)]
    ending = run(tmp_path, Script({1: [sources]}), rounds=1, repairs=2, review=True)
    row = ending.result.attempts[0]
    assert (row.outcome, row.repairs, row.reason) == ("NO_CANDIDATE", 2, "the reviewer does not agree: wrong")
    log = (ending.run.folder / "evaluations.log").read_text()
    assert not any(digest(source) in log for source in sources)


def test_nobody_reviews_where_nobody_is_asked_to(tmp_path: Path) -> None:
    script = Script({1: ["speed 1.3\nobjection wrong"]}, objections={"plan 0": "no"})
    assert run(tmp_path, script, rounds=1).result.improved and not asked(script, "reviewer")


def test_stops_on_a_plateau(tmp_path: Path) -> None:
    """More rounds asked for mean more of them without gain, unless it is said how many."""
    ending = run(tmp_path, Script({r: [f"speed 1.00{r}"] for r in range(1, 9)}), rounds=5, patience=None)
    assert ending.result.stop_reason == "plateau" and len(ending.result.attempts) == 3


def test_stops_where_the_planner_sees_nothing_left(tmp_path: Path) -> None:
    ending = run(tmp_path, Script({1: ["speed 1.3"]}))
    assert ending.result.stop_reason == "nothing left to try" and ending.result.improved


def test_a_first_look_ends_with_something_faster_and_not_before(tmp_path: Path) -> None:
    sources = {1: ["speed 1.0"], 2: ["speed 1.3"], 3: ["speed 2.0"]}
    ending = run(tmp_path / "short", Script(sources), rounds=3, enough_seconds=1e-6)
    assert ending.result.stop_reason.startswith("first look") and len(ending.result.attempts) == 2
    ending = run(tmp_path / "long", Script(sources), rounds=3, enough_seconds=3600)
    assert ending.result.stop_reason == "rounds" and len(ending.result.attempts) == 3


@pytest.mark.parametrize(
    ("words", "enough"),
    [
        ({}, ENOUGH_S),
        ({"stop": {"light_fraction": 0.9}}, ENOUGH_S),
        ({"stop": {"rounds": 5}}, None),
        ({"stop": {"patience": 3}}, None),
        ({"budget": {"seconds": 600}}, None),
        ({"stop": {"enough_seconds": 7}}, 7),
    ],
)
def test_a_first_look_is_for_rules_that_nobody_told_how_long(words: dict, enough: float | None) -> None:
    request = RunRequest.model_validate({"kernel": "silu_and_mul", "device": "cpu", "policy": "rules", **words})
    assert choose(request).settings.stop.enough_seconds == enough
    assert choose(request).settings.with_changes(rounds=9).stop.enough_seconds is None


def test_where_a_model_answers_there_is_no_first_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "any")
    asked = {"policy": "rules", "role_policy": {"coder": "chat"}, "chat": {"models": {"coder": "m"}}}
    request = RunRequest.model_validate({"kernel": "silu_and_mul", "device": "cpu", **asked})
    assert choose(request).settings.stop.enough_seconds is None


def test_stops_at_the_speed_of_light(tmp_path: Path) -> None:
    ending = run(tmp_path, Script({1: ["speed 5.0"], 2: ["speed 6.0"]}), light_fraction=0.95)
    assert ending.result.stop_reason == "speed of light" and len(ending.result.attempts) == 1


def test_no_rounds_measures_the_baseline_only(tmp_path: Path) -> None:
    ending = run(tmp_path, Script({}), rounds=0)
    assert ending.result.stop_reason == "rounds" and ending.result.workloads and not ending.result.improved


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("compile error\n", "COMPILE_ERROR: line 1: error: no such thing"),
        (
            "incorrect\n",
            "INCORRECT: 9 times the tolerance; if its arithmetic is meant so, `ulps` of that output in spec.py allows more "
            "(docs/kernels.md)",
        ),
    ],
)
def test_a_baseline_that_fails_ends_the_run_with_its_reason(source: str, error: str, tmp_path: Path) -> None:
    ending = run(tmp_path, Script({}), source=source)
    assert ending.result.status == "failed"
    assert ending.result.error == f"the baseline (plain) does not pass: {error}"


def test_the_workload_that_gains_least_stands_in_the_record(tmp_path: Path) -> None:
    result = run(tmp_path, Script({1: ["speed 1.5"]}), rounds=1).result
    visible = result.rows(held_out=False)
    assert result.worst == min(visible, key=lambda row: row.speedup.median)


def test_the_winner_meets_the_held_out_workloads(tmp_path: Path) -> None:
    ending = run(tmp_path, Script({1: ["speed 1.5\nheld-out 1.2"]}), rounds=1)
    assert ending.result.improved
    assert ending.result.held_out_speedup.median == pytest.approx(1.2)
    assert [row.axes for row in ending.result.rows(held_out=True)] == [{"n": 3000}]


@pytest.mark.parametrize(
    ("held_out", "reason"),
    [
        ("fails", "on held-out workloads: INCORRECT: 9 times the tolerance"),
        ("0.8", "slower than the baseline on held-out"),
        ("1.2\nsanitizer Invalid __global__ read", "INCORRECT: compute-sanitizer memcheck: Invalid __global__ read"),
        ("1.2\ndraws 3 elements are wrong", "INCORRECT: draw 7 of 200: 3 elements are wrong"),
    ],
)
def test_a_winner_that_does_not_hold_there_is_no_improvement(tmp_path: Path, held_out: str, reason: str) -> None:
    ending = run(tmp_path, Script({1: [f"speed 1.5\nheld-out {held_out}"]}), rounds=1)
    assert not ending.result.improved and ending.result.best == digest(BASELINE)
    assert reason in ending.result.held_out_reason
    assert (ending.run.folder / "best.cpp").read_text() == BASELINE


def test_what_the_tester_adds_is_kept_where_the_spec_allows_it_and_the_baseline_passes(tmp_path: Path) -> None:
    tests = roles.TesterAnswer(
        workloads=(Workload(axes={"n": 7}, dtype="float32", held_out=True),),
        values={"input": ("zeros",), "nothing": ("zeros",)},
    )
    script = Script({1: ["speed 1.3"]}, tests)
    run(tmp_path, script, rounds=1)
    coder = next(request for role, request in script.asked if role == "coder")
    assert {"n": 7} in [workload.axes for workload in coder.spec.workloads]


def test_spent_counts_nodes_seconds_and_answers(tmp_path: Path) -> None:
    script = Script({1: ["speed 1.3"], 2: ["speed 1.0"]})
    ending = run(tmp_path, script, rounds=2)
    spent = RunService(tmp_path, paper_context(script)).snapshot(ending.run).values["spent"]
    assert spent.nodes["coder"].count == 2 and spent.nodes["tester"].count == 1
    assert spent.seconds == pytest.approx(sum(visits.seconds for visits in spent.nodes.values()))
    assert ending.result.spent.calls == len(script.asked) and ending.result.spent.tokens_in == 100 * len(script.asked)


def test_a_spent_budget_ends_the_run_by_name_where_nobody_answers_instead(tmp_path: Path) -> None:
    ending = run(
        tmp_path, Script({r: [f"speed 1.{r}"] for r in range(1, 9)}), rounds=8, fallback="none", money_usd=0.05
    )
    assert ending.result.stop_reason == "budget: money" and len(ending.result.attempts) == 2


def test_seconds_end_the_run_and_stop_repairs(tmp_path: Path) -> None:
    ending = run(tmp_path, Script({1: [["compile 1", "compile 2", "speed 2"]]}), seconds=1e-6)
    assert ending.result.stop_reason == "budget: seconds" and not ending.result.attempts


def test_the_same_source_with_a_reason_answers_an_objection_and_is_measured(tmp_path: Path) -> None:
    class Rebuts(Script):
        def coder(self, request):
            answer = super().coder(request)
            return answer.model_copy(update={"reason": "the tail is the second loop"}) if request.repair else answer

    source = "speed 1.4\nobjection it skips the tail"
    script = Rebuts({1: [[source, source]]})
    ending = run(tmp_path, script, rounds=1, review=True)
    assert rows(ending) == [(1, "PASSED", True)], "times decide, not the reviewer"
    assert len(asked(script, "reviewer")) == 2, "of the plan and of the candidate, once each"
    same = run(tmp_path / "silent", Script({1: [[source, source]]}), rounds=1, review=True)
    assert same.result.attempts[0].reason.endswith("the coder returned the source unchanged")
