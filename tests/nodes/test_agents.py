"""The agents' nodes: what they ask and what they do with an answer. On paper, one node at a time."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.records import Check, Outcome, Verdict
from harness.store import Store
from kernels.catalog import Kernel, KernelError
from kernels.spec import Workload
from nodes import roles
from nodes.agents.coder import coder
from nodes.agents.planner import planner
from nodes.agents.profiler import profiler
from nodes.agents.tester import tester as node_tester
from nodes.baseline import baseline as node_baseline
from nodes.context import Context
from nodes.drafts import FAILURE_CHARACTERS
from nodes.options import ROLES
from nodes.roles import Attempt, Finding, Plan
from nodes.state import Draft, Incumbent, Spent, State, Stop
from tests.graph.doubles import BASELINE, FACTS, SPEC, PaperEvaluator, Script, settings

FINDING = Finding(bound="memory", summary="s")


class Fixed(Script):
    """Gives the answers that it was made with."""

    def __init__(self, **answers: Any) -> None:
        super().__init__({})
        self.answers = answers

    def planner(self, request):
        self.asked.append(("planner", request))
        return self.answers["plans"]

    def coder(self, request):
        self.asked.append(("coder", request))
        return self.answers["code"]

    def tester(self, request):
        self.asked.append(("tester", request))
        return self.answers["tests"]


class Bench:
    """A runtime, a store and a state in which a baseline was measured."""

    def __init__(self, folder: Path, policy: Script, **changes: Any) -> None:
        self.store = Store(folder)
        self.source = self.store.put(BASELINE)
        self.evaluator = PaperEvaluator(self.store, folder / "log")
        self.said: list[str] = []
        context = Context(
            kernel=Kernel(SPEC, folder),
            evaluator=self.evaluator,  # type: ignore[arg-type]
            store=self.store,
            policies=dict.fromkeys(ROLES, policy),
            say=lambda _kind, text: self.said.append(text),
        )
        self.runtime: Any = SimpleNamespace(context=context, store=None)
        verdict = self.evaluator.verify(self.evaluator.build(self.source))
        measured = self.evaluator.measure(verdict, baseline=self.source)
        self.state = State(
            settings=settings(**changes), device=FACTS, baseline=measured, finding=FINDING, round=1, stale_rounds=0,
            incumbent=Incumbent(candidate=self.source, verdict=measured), drafts=[], attempts=[], spent=Spent(),
        )  # fmt: skip


def plan(name: str, base: str = "") -> Plan:
    return Plan(id=name, title=name, steps=("s",), base=base)


# --- planner -------------------------------------------------------------------------------------------------------


def test_plans_are_cut_to_the_width_and_start_from_the_incumbent(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Fixed(plans=(plan("a"), plan("b"), plan("c"))), width=2)
    drafts = planner(bench.state, bench.runtime)["drafts"]
    assert [(d.plan.id, d.plan.base) for d in drafts] == [("a", bench.source), ("b", bench.source)]


def test_two_plans_of_one_name_become_two_attempts(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Fixed(plans=(plan("a"), plan("a"), plan("a"))), width=3)
    assert [d.plan.id for d in planner(bench.state, bench.runtime)["drafts"]] == ["a", "a-2", "a-3"]


def test_a_plan_may_start_from_a_candidate_that_passed_and_from_nothing_else(tmp_path: Path) -> None:
    policy = Fixed(plans=())
    bench = Bench(tmp_path, policy, width=3)
    passed, failed = bench.store.put("speed 1.1"), bench.store.put("incorrect")
    bench.state["attempts"] = [
        Attempt(round=1, plan=plan("x"), candidate=passed, outcome=Outcome.PASSED),
        Attempt(round=1, plan=plan("y"), candidate=failed, outcome=Outcome.INCORRECT),
        Attempt(round=1, plan=plan("z"), outcome="NO_CANDIDATE"),
    ]
    policy.answers["plans"] = (plan("a", passed), plan("b", failed), plan("c", "0" * 64))
    drafts = planner(bench.state, bench.runtime)["drafts"]
    assert [d.plan.base for d in drafts] == [passed, bench.source, bench.source]
    assert set(policy.asked[0][1].sources) == {bench.source, passed}


def test_no_plan_is_a_named_end(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Fixed(plans=()))
    assert planner(bench.state, bench.runtime) == {"stop": Stop.EXHAUSTED}


# --- coder ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "reason", "refused"),
    [
        ("", "cannot", "cannot"),
        ("  \n", "", "the coder gave no source and no reason"),
        (BASELINE, "", "the coder returned the source unchanged"),
    ],
)
def test_no_new_source_is_said_as_such(tmp_path: Path, source: str, reason: str, refused: str) -> None:
    bench = Bench(tmp_path, Fixed(code=roles.CoderAnswer(source=source, reason=reason)))
    bench.state["drafts"] = [Draft(plan=plan("a", bench.source))]
    draft = coder(bench.state, bench.runtime)["drafts"][0]
    assert (draft.candidate, draft.refused) == ("", refused)


def test_a_repair_sees_what_failed_and_starts_afresh(tmp_path: Path) -> None:
    policy = Fixed(code=roles.CoderAnswer(source="speed 2"))
    bench = Bench(tmp_path, policy)
    wrong = bench.store.put("incorrect")
    checks = (
        Check(workload="w", name="zeros", passed=False, message="3 elements differ"),
        Check(workload="w", name="ordinary", passed=True),
    )
    verdict = Verdict(
        candidate=wrong, kernel="k", device="d", outcome=Outcome.INCORRECT, reason="bad " * 9000, checks=checks
    )
    build = bench.evaluator.build(wrong)
    bench.state["drafts"] = [
        Draft(plan=plan("a", bench.source), candidate=wrong, build=build, verdict=verdict, repairs=1)
    ]
    draft = coder(bench.state, bench.runtime)["drafts"][0]
    assert (draft.repairs, draft.build, draft.verdict) == (2, None, None)
    request = policy.asked[0][1]
    assert (request.source, request.repair, request.outcome) == ("incorrect", 2, Outcome.INCORRECT)
    assert len(request.failure) == FAILURE_CHARACTERS


def test_finished_drafts_are_left_alone(tmp_path: Path) -> None:
    policy = Fixed(code=roles.CoderAnswer(source="speed 2"))
    bench = Bench(tmp_path, policy, repairs=1, width=3)
    done = bench.store.put("speed 1.2")
    passed = bench.evaluator.verify(bench.evaluator.build(done))
    failed = bench.evaluator.verify(bench.evaluator.build(bench.store.put("incorrect")))
    drafts = [
        Draft(plan=plan("a", bench.source), candidate=done, verdict=passed),
        Draft(plan=plan("b", bench.source), candidate=failed.candidate, verdict=failed, repairs=1),
        Draft(plan=plan("c", bench.source), refused="no", by_person=True),
    ]
    bench.state["drafts"] = drafts
    assert coder(bench.state, bench.runtime)["drafts"] == drafts and not policy.asked


# --- tester and profiler -------------------------------------------------------------------------------------------


def test_what_the_spec_does_not_allow_is_not_added_and_said(tmp_path: Path) -> None:
    tests = roles.TesterAnswer(
        workloads=(Workload(axes={"n": 5}, dtype="float32", held_out=True), Workload(axes={"n": 6}, dtype="float16")),
        values={"input": ("zeros",), "output": ("zeros",)},
    )
    bench = Bench(tmp_path, Fixed(tests=tests), dtypes=("float32",))
    kept = node_tester(bench.state, bench.runtime)["tests"]
    assert [w.label for w in kept.workloads] == ["float32 n=5"] and not kept.workloads[0].held_out
    assert kept.values == {"input": ("zeros",)}
    assert len(bench.said) == 2 and "float16" in bench.said[0] and "'output' is no input" in bench.said[1]
    assert bench.evaluator.added == list(kept.workloads)


@pytest.mark.parametrize("fails", [False, True], ids=["wrong or late", "no reference"])
def test_what_the_baseline_does_not_pass_on_is_not_added(tmp_path: Path, fails: bool) -> None:
    tests = roles.TesterAnswer(
        workloads=(Workload(axes={"n": 5}, dtype="float32"), Workload(axes={"n": 6}, dtype="float32"))
    )
    bench = Bench(tmp_path, Fixed(tests=tests))
    honest, asked = bench.evaluator.verify, []

    def verify(build, *, held_out=False, only=None):
        asked.append(only)
        if only is None or only.axes["n"] == 6:
            if fails:
                raise KernelError("k: Model fails at n=6: OutOfMemoryError")
            return Verdict(
                candidate=build.candidate, kernel="k", device="d", outcome=Outcome.TIMEOUT, reason="too long"
            )
        return honest(build, held_out=held_out, only=only)

    bench.evaluator.verify = verify  # type: ignore[method-assign]
    kept = node_tester(bench.state, bench.runtime)["tests"]
    assert [w.axes["n"] for w in kept.workloads] == [5] and bench.evaluator.added == list(kept.workloads)
    why = "k: Model fails at n=6: OutOfMemoryError" if fails else "the baseline does not pass: too long"
    assert bench.said == [f"not added: {why}"]
    assert asked == [None, *tests.workloads]  # all at once, and since that fails each by itself


def test_what_the_baseline_passes_on_is_checked_all_at_once(tmp_path: Path) -> None:
    tests = roles.TesterAnswer(workloads=tuple(Workload(axes={"n": n}, dtype="float32") for n in (5, 6, 7)))
    bench = Bench(tmp_path, Fixed(tests=tests))
    honest, asked = bench.evaluator.verify, []

    def verify(build, *, held_out=False, only=None):
        asked.append(only)
        return honest(build, held_out=held_out, only=only)

    bench.evaluator.verify = verify  # type: ignore[method-assign]
    kept = node_tester(bench.state, bench.runtime)["tests"]
    assert kept.workloads == tests.workloads and asked == [None]


def test_the_rules_draft_is_built_while_the_tester_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def draft(problem: str, device: str, numerics: str) -> roles.DraftAnswer:
        asked.append(problem)
        return roles.DraftAnswer(source="speed 3")

    monkeypatch.setattr("nodes.agents.drafter.draft_by_rules", draft)
    policy = Fixed(tests=roles.TesterAnswer())
    bench = Bench(tmp_path, policy, kernel=str(tmp_path / "problem.py"))
    built: list[str] = []
    monkeypatch.setattr(bench.evaluator, "build", lambda source: built.append(bench.store.get(source)))
    node_tester(bench.state, bench.runtime)
    assert not asked  # another answers for the drafter, and not before it is asked
    policy.name = "rules"
    node_tester(bench.state, bench.runtime)
    assert asked == [BASELINE] and built == ["speed 3"]


def test_the_compiler_is_asked_ahead_for_the_sizes_that_there_will_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planner compiled again what had been compiled for sizes that the spec or the baseline refuses: 5 to 18 s (H200)."""
    sizes = (Workload(axes={"n": 5}, dtype="float32"), Workload(axes={"n": 6}, dtype="float32"))
    other = Workload(axes={"n": 6}, dtype="float16")
    bench = Bench(tmp_path, Fixed(tests=roles.TesterAnswer(workloads=(other, *sizes))), dtypes=("float32",))
    honest, asked = bench.evaluator.verify, []

    def verify(build, *, held_out=False, only=None):
        if only is None or only.axes["n"] == 6:
            raise KernelError("no such size")
        return honest(build, held_out=held_out, only=only)

    @contextlib.contextmanager
    def ahead(_state, _context, tests):
        asked.append(tests.workloads)
        yield

    monkeypatch.setattr("nodes.agents.tester.compiling_ahead", ahead)
    bench.evaluator.verify = verify  # type: ignore[method-assign]
    node_tester(bench.state, bench.runtime)
    assert asked == [sizes, sizes[:1]]


def test_sizes_that_are_all_allowed_are_one_question(tmp_path: Path) -> None:
    sizes = tuple(Workload(axes={"n": n}, dtype="float32") for n in (5, 6, 7))
    bench = Bench(tmp_path, Fixed(tests=roles.TesterAnswer(workloads=sizes)))
    honest, asked, refused = bench.evaluator.extend, [], set()

    def extend(workloads, values):
        asked.append(len(workloads))
        if refused & {workload.axes["n"] for workload in workloads}:
            raise ValueError("no such size")
        honest(workloads, values)

    bench.evaluator.extend = extend  # type: ignore[method-assign]
    assert node_tester(bench.state, bench.runtime)["tests"].workloads == sizes and asked == [3]
    refused.add(6)
    assert node_tester(bench.state, bench.runtime)["tests"].workloads == (sizes[0], sizes[2])
    assert bench.said == ["not added: no such size"]


def test_of_a_validators_error_its_own_words_are_said(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Fixed(tests=roles.TesterAnswer(workloads=(Workload(axes={"n": 5}, dtype="float32"),))))

    def extend(workloads, values):
        if workloads:
            Workload(axes={"N": 5}, dtype="float32")  # raises

    bench.evaluator.extend = extend  # type: ignore[method-assign]
    assert not node_tester(bench.state, bench.runtime)["tests"].workloads
    assert [said.count("\n") for said in bench.said] == [0] and "'N' is no name" in bench.said[0]
    assert "pydantic" not in bench.said[0] and "Value error" not in bench.said[0]


def test_one_distribution_that_is_refused_does_not_take_the_others_with_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Fixed(tests=roles.TesterAnswer(values={"input": ("zeros", "infinities", "tiny")})))
    allowed = bench.evaluator.extend

    def extend(workloads, values):
        if "infinities" in values.get("input", ()):
            raise ValueError("no infinities here")
        allowed(workloads, values)

    bench.evaluator.extend = extend  # type: ignore[method-assign]
    assert node_tester(bench.state, bench.runtime)["tests"].values == {"input": ("zeros", "tiny")}
    assert set(bench.said) == {"not added: no infinities here"}


@pytest.mark.parametrize(
    ("text", "asked"),
    [("speed 2.0", ["draft"]), ("incorrect", ["baseline"]), ("speed 2.0\nwrong then", ["draft", "baseline"])],
)
def test_eager_torch_is_timed_once_beside_the_draft_or_alone_where_that_has_no_times(
    tmp_path: Path, text: str, asked: list[str]
) -> None:
    bench = Bench(tmp_path, Script({}), kernel=str(tmp_path / "problem.py"))
    candidate = bench.store.put(text)
    verdict = bench.evaluator.verify(bench.evaluator.build(candidate))
    bench.state["draft"] = Draft(plan=plan("draft", bench.source), candidate=candidate, verdict=verdict)
    honest, seen = bench.evaluator.measure, []

    def measure(verdict: Verdict, **how: Any) -> Verdict:
        seen.append("draft" if verdict.candidate == candidate else "baseline")
        if verdict.candidate == candidate and "wrong then" in text:
            return verdict.failed(Outcome.INCORRECT, "wrong while it was timed")
        return honest(verdict, **how)

    bench.evaluator.measure = measure  # type: ignore[method-assign]
    update = node_baseline(bench.state, bench.runtime)
    assert seen == asked and update["baseline"].candidate == bench.source
    assert all(t.time_us == t.baseline_us and t.speedup.median == 1 for t in update["baseline"].timings)
    winner = candidate if text == "speed 2.0" else bench.source
    assert update["incumbent"].candidate == winner and len(update["attempts"]) == 1


def test_a_round_begins_with_the_profiler(tmp_path: Path) -> None:
    script = Script({})
    bench = Bench(tmp_path, script)
    bench.state["finding"] = bench.state["finding"].model_copy(update={"of": bench.state["incumbent"].candidate})
    assert profiler(bench.state, bench.runtime) == {"round": 2, "drafts": []} and not script.asked
    bench.state["finding"] = bench.state["finding"].model_copy(update={"of": "another"})
    finding = profiler(bench.state, bench.runtime)["finding"]
    assert finding.of == bench.state["incumbent"].candidate
    assert finding.summary == "2 timings"
    assert script.asked[0][1].probes == finding.probes == {"ptxas": {"unavailable": "made of paper"}}


@pytest.mark.parametrize(("name", "asked"), [("rules", [False, True]), ("chat", [True, True])])
def test_the_first_plan_of_rules_does_not_wait_for_a_profiler(tmp_path: Path, name: str, asked: list[bool]) -> None:
    script = Script({})
    bench = Bench(tmp_path, script)
    script.name, seen = name, []  # type: ignore[misc]
    bench.evaluator.probes = lambda build, calls: seen.append(calls) or {}  # type: ignore[method-assign]
    bench.state["finding"] = bench.state["finding"].model_copy(update={"of": "another"})
    for round_ in (0, 1):
        bench.state["round"] = round_
        profiler(bench.state, bench.runtime)
    assert seen == asked


# --- context -------------------------------------------------------------------------------------------------------


def test_one_policy_object_for_several_roles_is_counted_once(tmp_path: Path) -> None:
    script = Script({})
    bench = Bench(tmp_path, script)
    profiler(bench.state, bench.runtime)
    assert bench.runtime.context.usage()["profiler"].calls == 1


def test_agents_see_the_runs_dtypes_and_what_the_tester_added(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Script({}))
    bench.state["tests"] = roles.TesterAnswer(workloads=(Workload(axes={"n": 5}, dtype="float32"),))
    seen = bench.runtime.context.visible_spec(bench.state)
    assert [w.axes["n"] for w in seen.workloads] == [1024, 4096, 5]
