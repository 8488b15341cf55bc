"""benchmarks/hand_answered.py: answers written beforehand find their place, and its faults are real ones."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.hand_answered import ROOT, Misfit, Player, Prepared, facts, play
from harness.judge.tunables import tunables
from kernels import catalog
from nodes.policies import answers
from nodes.policies.model import ModelPolicy, Unusable
from nodes.policies.transcript import Exchange, Question, Reply
from tests.nodes.policies.examples import (
    ATTEMPTS,
    OTHER,
    for_coder,
    for_planner,
    for_profiler,
    for_repair,
    for_tester,
    timing,
)
from tests.nodes.rewrites.emulate import emulation

ANSWERS = ROOT / "benchmarks" / "hand_answered"
FOLDERS = sorted(ANSWERS.glob("*/cuda"))
ROUNDS = range(1, 6)


class Overheard(ModelPolicy):
    """Renders the real prompts and answers nothing."""

    name = "overheard"

    def __init__(self) -> None:
        super().__init__(agents="four", rewrites=None, say=lambda *_: None)
        self.said: list[list[dict[str, str]]] = []

    def _reply(self, question: Question, schema: object, problem: str) -> Reply:
        self.said.append([{"role": m.role, "content": m.content} for m in question.messages])
        raise Unusable("nobody answers")

    def _kept(self) -> tuple[Exchange, ...]:
        return ()


def messages(role: str, request: Any) -> list[dict[str, str]]:
    overheard = Overheard()
    assert request.role == role
    overheard.answer(request)
    return overheard.said[0]


def test_steps_are_told_from_the_requests_themselves(tmp_path: Path) -> None:
    prepared = Prepared(tmp_path)
    said = [
        prepared.step(messages(role, request))
        for role, request in (
            ("tester", for_tester()),
            ("profiler", for_profiler()),
            ("planner", for_planner(round=1)),
            ("coder", for_coder()),
            ("coder", for_repair()),
            ("profiler", for_profiler()),
            ("planner", for_planner(round=2)),
        )
    ]
    assert said == ["tester", "profiler.1", "planner.1", "coder.1", "coder.1.repair1", "profiler.2", "planner.2"]
    again = [*messages("tester", for_tester()), {"role": "user", "content": "That answer cannot be used: no."}]
    with pytest.raises(Misfit, match="the answer for tester was refused: That answer cannot be used: no"):
        prepared.step(again)


def test_what_a_template_may_quote() -> None:
    quoted = facts(messages("profiler", for_profiler(timings=(timing(4.0), timing(2.0, "hot"))))[1]["content"])
    assert [row["light_percent"] for row in quoted["timings"]] == [40.0, 80.0]
    assert quoted["timings"][0]["time_us"] == 4.0 and quoted["timings"][1]["cache"] == "hot"
    assert quoted["speedup"] == pytest.approx(2**0.5, rel=1e-3)
    quoted = facts(messages("planner", for_planner())[1]["content"])
    assert quoted["numbers"] == {"cold_light_percent": 41.0}
    assert quoted["tried"] == {1: "PASSED", 2: "INCORRECT"}
    assert quoted["source_of"] == {1: ATTEMPTS[0].candidate[:12], 2: ""}


def test_a_missing_answer_and_a_figure_that_is_not_there_are_named(tmp_path: Path) -> None:
    prepared = Prepared(tmp_path)
    request = messages("planner", for_planner(round=1))
    with pytest.raises(Misfit, match=r"there is no answer for planner\.1 in"):
        prepared.answer(prepared.step(request), request)
    (tmp_path / "planner.1.json").write_text('{"plans": {{ nonsense }}}')
    with pytest.raises(Misfit, match=r"planner\.1\.json: 'nonsense' is undefined"):
        prepared.answer("planner.1", request)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.parent.name)
def test_prepared_answers_have_the_form_that_their_role_wants(folder: Path) -> None:
    prepared = Prepared(folder)
    request = messages("profiler", for_profiler())
    for number in ROUNDS:
        prepared.round = number - 1
        finding = prepared.answer(prepared.step(request), request)
        assert answers.finding(finding, for_profiler()).summary and "{{" not in finding
        planning = messages("planner", for_planner(round=number, attempts=()))
        plan = prepared.answer(prepared.step(planning), planning)
        assert len(answers.plans(plan, for_planner(round=number, attempts=()))) == 1
        coding = messages("coder", for_coder(round=number))
        source, _ = answers.code(prepared.answer(prepared.step(coding), coding), OTHER)
        assert 'extern "C"' in source and len(tunables(source)) <= 3
    repairing = messages("coder", for_repair())
    assert answers.code(prepared.answer(prepared.step(repairing), repairing), OTHER)[0] == ""
    kernel = catalog.load(folder.parent.name)
    asked = for_tester(spec=kernel.spec)
    testing = messages("tester", asked)
    found = answers.tests(prepared.answer(prepared.step(testing), testing), asked)
    assert len(found.workloads) == 4


@pytest.mark.slow
@pytest.mark.parametrize("source", sorted(ANSWERS.glob("*/cuda/coder.*.cu")), ids=lambda p: f"{p.parts[-3]}-{p.stem}")
def test_prepared_kernels_compute_what_they_should(source: Path) -> None:
    folder = ROOT / "kernels" / source.parts[-3]
    assert emulation.check(folder, source.read_text(), [0, 1]) == []


# What stands in for run.py: asks for planner.1, leaves with 75 where the connection breaks.
ASKS = """\
import json, os, sys, urllib.request
body = json.dumps({"messages": json.loads(sys.argv[1])}).encode()
request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body)
try:
    with urllib.request.urlopen(request) as reply:
        text = json.loads(reply.read())["choices"][0]["message"]["content"]
except urllib.error.HTTPError as error:
    sys.exit(3 if json.loads(error.read())["error"]["message"] else 4)
except OSError:
    sys.exit(75)
sys.exit(0 if text == sys.argv[2] else 5)
"""


def played(folder: Path, expected: str, **faults: str) -> tuple[int, Player]:
    player = Player(Prepared(folder), **faults)
    request = json.dumps(messages("planner", for_planner(round=1)))
    command = [sys.executable, "-S", "-c", ASKS, request, expected]
    return play(player, command, command), player


def test_kills_the_run_and_resumes_it(tmp_path: Path) -> None:
    (tmp_path / "planner.1.json").write_text("the plan")
    code, player = played(tmp_path, "the plan", kill_at="planner.1")
    assert (code, player.kill_at, player.misfit) == (0, "", "")


def test_goes_down_until_the_run_has_paused(tmp_path: Path) -> None:
    (tmp_path / "planner.1.json").write_text("the plan")
    code, player = played(tmp_path, "the plan", down_at="planner.1")
    assert (code, player.down_at, player.misfit) == (0, "", "")


def test_ends_where_no_answer_fits(tmp_path: Path) -> None:
    code, player = played(tmp_path, "")
    assert code == 1 and player.misfit.startswith("there is no answer for planner.1")
