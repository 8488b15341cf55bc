"""A recording is played back without a network, and says where it no longer fits."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.store import digest
from nodes.policies.replay import ReplayMismatch, ReplayPolicy
from nodes.policies.transcript import Transcript
from nodes.roles import PolicyPaused
from tests.nodes.policies.examples import (
    CPU,
    OTHER,
    PLAN,
    SOURCE,
    for_coder,
    for_planner,
    for_profiler,
    for_repair,
    for_tester,
    timing,
)
from tests.nodes.policies.examples import (
    FINDING as MEASURED,
)
from tests.nodes.policies.server import Says, model_server
from tests.nodes.policies.test_chat import EDIT, EDITED, FINDING, PLANS, SINGLE, policy

TESTS = {"workloads": [], "values": [{"tensor": "y", "values": "zeros"}], "reasons": "zeros are lacking"}


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """One round of the four agents; the planner's first answer was not used."""
    with model_server() as server:
        server.script = [Says(json.dumps(a)) for a in (TESTS, FINDING, {"plans": 1}, PLANS)] + [Says(EDIT)]
        chat = policy(server, tmp_path / "recorded")
        chat.answer(for_tester())
        chat.answer(for_profiler())
        for plan in chat.answer(for_planner())[:1]:
            chat.answer(for_coder(plan=plan, round=3))
    return tmp_path / "recorded" / "transcript.jsonl"


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the replay opened a connection")

    monkeypatch.setattr(socket.socket, "connect", refuse)


def test_same_questions_get_the_same_answers(recorded: Path, offline: None) -> None:
    replay = ReplayPolicy(recorded)
    assert replay.answer(for_tester()).values == {"y": ("zeros",)}
    assert replay.answer(for_profiler()).bound == "memory"
    plans = replay.answer(for_planner())
    assert [plan.title for plan in plans] == ["wider loads", "two rows a block"]
    assert replay.answer(for_coder(plan=plans[0], round=3)).source == EDITED
    assert replay.usage() == {}


def test_other_timings_do_not_matter(recorded: Path, offline: None) -> None:
    said: list[str] = []
    replay = ReplayPolicy(recorded, say=lambda kind, text: said.append(kind))
    found = replay.answer(for_profiler(timings=(timing(3.7),)))
    assert found.bound == "memory" and found.numbers["cold_percent_of_sol"] == pytest.approx(43.2, abs=0.1)
    finding = MEASURED.model_copy(update={"light_fraction": 0.44, "summary": "other figures"})
    plans = replay.answer(for_planner(finding=finding))
    assert replay.answer(for_coder(plan=plans[0], finding=finding, round=3)).source == EDITED
    assert "replay" not in said, "nothing but measurements differs"


def test_other_outcomes_are_taken_by_place_and_said(recorded: Path, offline: None) -> None:
    said: list[str] = []
    replay = ReplayPolicy(recorded, say=lambda kind, text: said.append(text) if kind == "replay" else None)
    plans = replay.answer(for_planner(attempts=(), incumbent=digest(OTHER), source=OTHER))
    assert len(plans) == 2
    assert (
        said[0]
        == "the planner's answer in round 3: taken by its place in the recording; what differs: attempts, source"
    )


def _mismatch(ask: Callable[[], object]) -> str:
    with pytest.raises(ReplayMismatch) as caught:
        ask()
    assert isinstance(caught.value, PolicyPaused) and "\n" not in str(caught.value)
    return str(caught.value)


def test_what_no_longer_fits_is_named(recorded: Path, offline: None) -> None:
    replay = ReplayPolicy(recorded)
    plan = replay.answer(for_planner())[0]
    begin = "the recorded answers no longer fit at "
    assert _mismatch(lambda: replay.answer(for_planner(round=4))) == (
        begin + "the planner's answer in round 4: the nearest recorded request differs in its round, "
        "and its answer is used up"
    )
    assert _mismatch(lambda: replay.answer(for_repair(plan=plan, round=3))) == (
        begin + "the coder's answer to repair 1 for plan 'wider loads' in round 3: "
        "the nearest recorded request differs in its step"
    )
    assert "differs in its plan" in _mismatch(lambda: replay.answer(for_coder(plan=PLAN, round=3)))
    assert "they are for scaled_add on cuda, and this is scaled_add on cpu" in _mismatch(
        lambda: replay.answer(for_profiler(device=CPU))
    )


def test_a_finding_that_nobody_asked_for_then_is_the_measured_figures(tmp_path: Path) -> None:
    with model_server() as server:
        server.script = [Says(json.dumps(a)) for a in (FINDING, PLANS, PLANS)]
        chat = policy(server, tmp_path)
        chat.answer(for_profiler(round=1))
        chat.answer(for_planner(round=1, attempts=()))
        chat.answer(for_planner(round=2, attempts=()))  # the incumbent had not changed
    said: list[str] = []
    replay = ReplayPolicy(tmp_path / "transcript.jsonl", say=lambda kind, text: said.append(f"{kind}: {text}"))
    assert replay.answer(for_profiler(round=1)).bound == "memory"
    found = replay.answer(for_profiler(round=2, source=OTHER))
    assert found.summary.startswith("measured figures only") and found.numbers["cold_percent_of_sol"] == 40.0
    assert said[-1] == "replay: no finding was recorded in round 2; it holds the measured figures only"
    assert "differs in its round" in _mismatch(lambda: replay.answer(for_profiler(round=3, source=OTHER)))


def test_edits_that_do_not_fit_after_another_tuning_give_the_file_that_they_made(recorded: Path, offline: None) -> None:
    said: list[str] = []
    replay = ReplayPolicy(recorded, say=lambda kind, text: said.append(text))
    plan = replay.answer(for_planner())[0]
    tuned = SOURCE.replace("BLOCK 128", "BLOCK 256")
    answer = replay.answer(for_coder(plan=plan, source=tuned, round=3))
    assert (answer.source, answer.reason) == (EDITED, "64 threads")
    assert said[-1].endswith("its edits do not fit the source here; the file that they made is taken")


def test_an_edit_of_another_source_does_not_fit(recorded: Path, offline: None) -> None:
    lines = [json.loads(line) for line in recorded.read_text().splitlines()]
    for line in lines:
        del line["reply"]["made"]  # as recordings were before files were kept
    recorded.write_text("".join(json.dumps(line) + "\n" for line in lines))
    replay = ReplayPolicy(recorded)
    plan = replay.answer(for_planner())[0]
    sentence = _mismatch(lambda: replay.answer(for_coder(plan=plan, source="int x;\n", round=3)))
    assert "the coder's answer for plan 'wider loads' in round 3" in sentence and "occurs 0 times" in sentence


def test_a_replayed_run_keeps_its_own_transcript_and_resumes(recorded: Path, tmp_path: Path, offline: None) -> None:
    own = tmp_path / "run" / "transcript.jsonl"
    first = ReplayPolicy(recorded, kept=Transcript(own))
    first.answer(for_profiler(source=OTHER))  # by place
    kept = Transcript(own)
    assert kept.usage()["profiler"].tokens_in == 0
    again = ReplayPolicy(recorded, kept=kept)
    assert again.answer(for_profiler(source=OTHER)).bound == "memory"
    assert len(Transcript(own).exchanges()) == 1
    assert "differs in its source, and its answer is used up" in _mismatch(
        lambda: again.answer(for_profiler(source=SOURCE + "\n", timings=()))
    )


def test_a_kept_transcript_can_be_replayed_in_turn(recorded: Path, tmp_path: Path, offline: None) -> None:
    own = tmp_path / "run" / "transcript.jsonl"
    ReplayPolicy(recorded, kept=Transcript(own)).answer(for_planner())
    assert len(ReplayPolicy(own).answer(for_planner())) == 2


def test_single_agent_is_recognised(tmp_path: Path) -> None:
    with model_server() as server:
        server.script = [Says(SINGLE)]
        policy(server, tmp_path, agents="single").answer(for_planner(width=1))
    replay = ReplayPolicy(tmp_path / "transcript.jsonl")
    (plan,) = replay.answer(for_planner(width=1))
    assert replay.agents == "single" and replay.answer(for_coder(plan=plan)).source == EDITED


def test_there_must_be_something_to_play(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no transcript"):
        ReplayPolicy(tmp_path / "none.jsonl")
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(ValueError, match="holds no answer"):
        ReplayPolicy(tmp_path / "empty.jsonl")
