"""The offline optimiser's answers: what it plans, in which order, and what it makes of a failure."""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter
from pathlib import Path

import pytest

from harness.records import Comparison, DeviceFacts, Interval, Outcome, Timing
from harness.store import digest
from kernels import catalog as kernels
from nodes.policies.rules import RulesPolicy, _texts
from nodes.policies.search import Proposal, Search, apply_step
from nodes.rewrites.registry import Facts
from nodes.roles import Attempt, CoderRequest, Finding, Plan, PlannerRequest, ProfilerRequest, TesterRequest, Version

H200 = DeviceFacts(
    device="cuda", name="H200", architecture="sm_90", units=132, last_level_cache_bytes=50 << 20, bandwidth_gbps=4200
)
KERNEL = kernels.load("silu_and_mul")
BASELINE = KERNEL.baseline("cuda", "production")[1].read_text()
LATENCY = Finding(bound="latency", summary="")


class Run:
    """Plays rounds; `speedup(steps)` says what a plan measures, None for a failure."""

    def __init__(self, text: str = BASELINE, width: int = 1) -> None:
        self.policy, self.width = RulesPolicy(), width
        self.root = self.incumbent = digest(text)
        self.sources, self.attempts, self.best = {self.root: text}, [], 1.0

    def request(self) -> PlannerRequest:
        return PlannerRequest(
            spec=KERNEL.spec,
            device=H200,
            finding=LATENCY,
            incumbent=self.incumbent,
            source=self.sources[self.incumbent],
            attempts=tuple(self.attempts),
            sources=self.sources,
            width=self.width,
        )

    def code(self, plan: Plan) -> str:
        request = CoderRequest(
            spec=KERNEL.spec, device=H200, finding=LATENCY, plan=plan, source=self.sources[plan.base]
        )
        return self.policy.coder(request).source

    def play(self, rounds: int, speedup) -> list[Plan]:
        played = []
        for number in range(1, rounds + 1):
            for plan in self.policy.planner(self.request()):
                played.append(plan)
                source, measured = self.code(plan), speedup(plan)
                name = digest(source)
                outcome = Outcome.PASSED if measured else Outcome.INCORRECT
                self.attempts.append(
                    Attempt(round=number, plan=plan, candidate=name, outcome=outcome, speedup=measured)
                )
                if measured:
                    self.sources[name] = source
                    if measured > self.best:
                        self.best, self.incumbent = measured, name
        return played


def test_the_first_round_is_everything_that_should_help() -> None:
    (plan,) = RulesPolicy().planner(Run().request())
    assert plan.steps == (
        "trim_vector_tail",
        "fast_math",
        "grid_stride",
        "drop_grid_stride_loop",
    )
    assert plan.base == digest(BASELINE)
    assert plan.expected_speedup is not None and plan.expected_speedup > 1


def test_no_plan_is_made_twice_and_no_source_either() -> None:
    run = Run()
    plans = run.play(15, lambda plan: 1.0 + len(plan.steps) / 10)
    assert len({(plan.base, plan.steps) for plan in plans}) == len(plans)
    names = [attempt.candidate for attempt in run.attempts]
    assert len(set(names)) == len(names)


def test_what_promises_far_less_than_the_incumbent_has_is_not_tried() -> None:
    """A run whose first candidate gained much ends, rather than time what can only lose."""
    run, promises = Run(), []

    def measured(plan: Plan) -> float:
        promises.append((plan.expected_speedup, run.best))
        return 8.0 if len(promises) == 1 else 1.1

    run.play(12, measured)
    assert all(promise >= 0.7 * best for promise, best in promises), promises
    before = len(promises)
    run.play(12, measured)
    assert len(promises) == before, "nothing is left that is worth a round"


def test_a_failure_sends_it_back_to_what_passed() -> None:
    run = Run()
    plans = run.play(6, lambda plan: None if "fast_math" in plan.steps else 1.3)
    assert "fast_math" in plans[0].steps
    assert any("fast_math" not in plan.steps for plan in plans[1:4]), "never tried without the step that fails"
    assert all(plan.base in run.sources for plan in plans)
    assert run.best == 1.3


def test_what_measured_well_is_built_upon() -> None:
    run = Run()
    run.play(8, lambda plan: 2.0 if "drop_grid_stride_loop" not in plan.steps and plan.base == run.root else 1.1)
    assert run.best == 2.0
    assert any(attempt.plan.base != run.root for attempt in run.attempts)


@pytest.mark.slow  # every plan there is
def test_more_rounds_try_more_and_it_ends() -> None:
    few, many = Run(), Run()
    a, b = few.play(5, lambda plan: 1.01), many.play(400, lambda plan: 1.01)
    assert len(a) == 5 and len(b) > 5
    assert RulesPolicy().planner(many.request()) == ()


def test_the_numbers_of_what_passed_are_searched_again_before_worse_plans_are_tried() -> None:
    run = Run()
    plans = run.play(12, lambda plan: 1.1 ** len(plan.steps) if plan.base == run.root else 1.01 * run.best)
    again = [at for at, plan in enumerate(plans) if "refine_search" in plan.steps]
    assert again and again[0] < 5, [plan.steps for plan in plans]
    assert all(plans[at].steps == ("refine_search",) and plans[at].base != run.root for at in again)


def test_a_step_that_came_to_nothing_by_itself_twice_is_not_planned_so_from_the_next_base() -> None:
    run = Run()
    plans = run.play(10, lambda plan: 2.0 + len(run.attempts) / 1e4)  # noise: each as fast as the one before
    single = Counter(plan.steps for plan in plans if len(plan.steps) == 1)
    assert single and max(single.values()) <= 2
    assert len(plans) == 10


def test_a_step_is_credited_with_what_it_added_to_its_base() -> None:
    """Not with what the base had gained by other steps."""
    run = Run()
    bundle = run.play(1, lambda plan: 3.0)[0]
    gained = run.attempts[0].candidate
    for step in ("refine_search", "fast_math"):
        plan = Plan(id=step, title=step, steps=(step,), base=gained)
        run.attempts.append(Attempt(round=2, plan=plan, candidate=step, outcome=Outcome.PASSED, speedup=3.0))
        run.sources[step] = run.sources[gained] + f"// {step}\n"
    found = Search(run.request())
    assert sum(found.gains[step] for step in bundle.steps) > math.log(1.5)
    for step in ("refine_search", "fast_math"):
        assert found._measure(run.attempts[-1]) == 0.0
        if step not in bundle.steps:
            assert found.gains[step] <= max(found.prior(step), 0.0)


def test_rules_go_on_after_a_model_whose_plans_are_sentences() -> None:
    """Once its money is spent, the rules answer for a chat model."""
    run = Run()
    plan = Plan(id="m", title="packs", steps=("Load eight at a time.", "spread: over more blocks"), base=run.root)
    run.attempts.append(Attempt(round=1, plan=plan, candidate="c", outcome=Outcome.PASSED, speedup=1.2))
    assert run.play(1, lambda plan: 1.5)[0].steps == RulesPolicy().planner(Run().request())[0].steps


def test_width_gives_different_plans() -> None:
    plans = RulesPolicy().planner(Run(width=4).request())
    assert len(plans) == 4 and len({plan.id for plan in plans}) == 4


def test_the_same_request_gets_the_same_answer() -> None:
    run = Run(width=3)
    run.play(3, lambda plan: 1.2)
    assert RulesPolicy().planner(run.request()) == RulesPolicy().planner(run.request())


@pytest.mark.parametrize(
    ("outcome", "dropped"), [(Outcome.INCORRECT, "fast_math"), (Outcome.COMPILE_ERROR, "drop_grid_stride_loop")]
)
def test_a_repair_drops_the_step_that_is_most_likely_to_blame(outcome: Outcome, dropped: str) -> None:
    run = Run()
    (plan,) = run.policy.planner(run.request())
    failed = run.code(plan)
    repair = CoderRequest(
        spec=KERNEL.spec, device=H200, finding=LATENCY, plan=plan, source=failed, origin=BASELINE, failure="", outcome=outcome, repair=1,
    )  # fmt: skip
    answer = run.policy.coder(repair)
    assert answer.source not in {"", failed}
    assert dropped not in answer.reason and "grid_stride" in answer.reason
    assert run.policy.coder(repair.model_copy(update={"repair": len(plan.steps)})).source == ""


def test_a_kernel_that_no_rule_fits_gets_no_plan() -> None:
    text = "__global__ void k(float* x) { atomicAdd(x, 1.0f); }\n"
    ampere = H200.model_copy(update={"architecture": "sm_80"})
    request = Run(text).request().model_copy(update={"device": ampere})
    assert RulesPolicy().planner(request) == ()


def test_the_coder_says_why_there_is_no_source() -> None:
    plan = Plan(id="x", title="x", steps=("vectorize",))
    request = CoderRequest(spec=KERNEL.spec, device=H200, finding=LATENCY, plan=plan, source=BASELINE)
    answer = RulesPolicy().coder(request)
    assert answer.source == "" and "vectorize" in answer.reason


def test_of_a_module_only_the_native_source_is_rewritten() -> None:
    plain = CoderRequest(
        spec=KERNEL.spec, device=H200, finding=LATENCY, source=BASELINE, plan=RulesPolicy().planner(Run().request())[0]
    )
    module = f"import torch\n\nCUDA_SOURCE = r'''{BASELINE}'''\n\n\nclass ModelNew(torch.nn.Module):\n    pass\n"
    spec = KERNEL.spec.model_copy(update={"problem": True})
    written = RulesPolicy().coder(plain).source
    assert written not in ("", BASELINE)
    answer = RulesPolicy().coder(plain.model_copy(update={"spec": spec, "source": module}))
    assert answer.source == module.replace(BASELINE, written)
    assert RulesPolicy().coder(plain.model_copy(update={"spec": spec, "source": "import torch\n"})).source == ""


def timing(axes: dict[str, int], time_us: float, light_us: float) -> Timing:
    workload = next(w for w in KERNEL.spec.workloads if w.axes == axes and w.dtype == "float16")
    return Timing(
        workload=workload, cache="cold", baseline_us=time_us, time_us=time_us, light_us=light_us, samples=10,
        speedup=Interval(median=1, low=1, high=1), comparison=Comparison.SAME,
    )  # fmt: skip


def test_the_profiler_names_the_bound_with_numbers() -> None:
    small, large = {"tokens": 16, "hidden": 4096}, {"tokens": 16384, "hidden": 14336}
    policy = RulesPolicy()

    def finding(*timings: Timing) -> Finding:
        probes = {"ptxas": {"registers": "32", "kernel": "silu"}, "ncu": {"unavailable": "no rights"}}
        return policy.profiler(
            ProfilerRequest(spec=KERNEL.spec, device=H200, source="", timings=timings, probes=probes)
        )

    assert finding(timing(small, 4.0, 0.6)).bound == "latency"
    assert finding(timing(large, 545.0, 320.0)).bound == "memory"
    assert finding(timing(large, 321.0, 320.0)).bound == "at the limit"
    assert finding().bound == "unknown" and finding().numbers == {"ptxas_registers": 32}
    assert finding(timing(large, 545.0, 320.0)).summary.startswith("bound by memory traffic")
    assert finding(timing(large, 5450.0, 320.0)).summary.startswith(
        "far below the memory bandwidth: "
    )  # at 6 % nothing waits for bytes alone
    assert finding(timing(large, 5450.0, 320.0)).likely_bound == "latency", (
        "what is asked of a model and shown to a person"
    )
    assert finding(timing(large, 545.0, 320.0)).likely_bound == "memory"
    found = finding(timing(small, 4.0, 0.6), timing(large, 545.0, 320.0))
    assert found.numbers["ptxas_registers"] == 32 and "cold_percent_of_sol" in found.numbers
    assert found.slow_workloads[0].startswith("float16 tokens=16 ")


INPUTS = sorted((Path(__file__).parents[2] / "inputs").glob("*/baseline*.cu"))


@pytest.mark.parametrize("folder", sorted({path.parent for path in INPUTS}), ids=lambda path: path.name)
def test_the_tester_adds_odd_sizes_that_the_spec_takes(folder: Path) -> None:
    spec = kernels.load(str(folder)).spec
    answer = RulesPolicy().tester(TesterRequest(spec=spec, device=H200, baseline_source=""))
    assert 2 <= len(answer.workloads) <= 4
    assert all(not w.timed and set(w.axes) == set(spec.axes) for w in answer.workloads)
    spec.model_validate(spec.model_dump() | {"workloads": (*spec.workloads, *answer.workloads)})


def test_the_testers_sizes_are_not_hundreds_of_times_a_problems() -> None:
    """A convolution with 8 images took minutes to check with 2042 of them."""
    axis = KERNEL.spec.axes[-1]
    suite = [w.model_copy(update={"axes": w.axes | {axis: 8}}) for w in KERNEL.spec.suite("cuda")[:1]]
    spec = KERNEL.spec.model_copy(update={"workloads": tuple(suite)})
    answer = RulesPolicy().tester(TesterRequest(spec=spec, device=H200, baseline_source=""))
    assert {w.axes[axis] for w in answer.workloads} == {8, 9, 18, 24}


def test_the_testers_sizes_are_what_rewrites_get_wrong() -> None:
    """Nothing divides the first, two alone the second, and no workload has a row as long as the third."""
    answer = RulesPolicy().tester(TesterRequest(spec=KERNEL.spec, device=H200, baseline_source=""))
    prime, even, long, one = (w.axes for w in answer.workloads)
    assert math.gcd(prime["hidden"], 2 * 3 * 5 * 7 * 11 * 13) == 1
    assert even["hidden"] % 2 == 0 and math.gcd(even["hidden"] // 2, 2 * 3 * 5 * 7 * 11 * 13) == 1
    assert long["hidden"] > max(w.axes["hidden"] for w in KERNEL.spec.workloads) and long["hidden"] % 16 == 8
    assert one["tokens"] == 1 and max(prime["tokens"], even["tokens"], long["tokens"]) <= 3


def test_a_source_that_a_rewrite_broke_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """What came with an error that the parser does not know may keep it."""
    texts = {"sound": "void f() { g(1, 2); }\n", "strange": "void f() { g(1 @ 2); }\n"}
    more = {
        "missing": "void f() { g(1, 2) }\n",
        "unread": "void f() { g(1, ?? 2); }\n",
        "other": "void f() { g(2); }\n",
    }
    for name, text in more.items():
        rewrite = type("Rewrite", (), {"forms": (name,), "__call__": lambda _self, _source, _facts, text=text: text})
        monkeypatch.setattr("nodes.policies.search.catalog", lambda name=name, rewrite=rewrite: {name: rewrite()})
        facts = Facts(spec=KERNEL.spec, device=H200)
        assert apply_step(name, texts["sound"], facts) == (text if name == "other" else None)
        assert apply_step(name, texts["strange"], facts) == text


def test_the_bundle_less_each_step_and_each_two_is_thought_of() -> None:
    run = Run()
    search = Search(run.request())
    bundle, lists = search._bundle(), set(search._lists())
    for _, steps in lists:
        rewrites = [step.partition(":")[0] for step in steps]
        assert len(set(rewrites)) == len(rewrites), "one form of a rewrite, not two"
    names = sorted({step.partition(":")[0] for step in bundle if step not in search.normalizing})
    assert len(names) > 4
    for left_out in itertools.chain(itertools.combinations(names, 1), itertools.combinations(names, 2)):
        assert (run.root, tuple(s for s in bundle if s.partition(":")[0] not in left_out)) in lists


def test_all_pairs_of_forms_that_promise_something_are_planned_in_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run()
    plan = Plan(id="x", title="x", steps=("fast_math",), base=run.root)
    run.attempts.append(Attempt(round=1, plan=plan, candidate="x", outcome=Outcome.PASSED, speedup=1.2))
    promise = {"a": 90.0, "b": 80.0, "c": 85.0}
    pairs = [(name, Proposal(run.root, (f"multiversion {name}",), gain)) for name, gain in promise.items()]
    monkeypatch.setattr(Search, "_two_forms", lambda _self: iter(pairs))
    found = itertools.islice(Search(run.request()).rank(), 3)
    assert [one.steps for one in found] == [("multiversion a",), ("multiversion c",), ("multiversion b",)]


# Two forms in one file -----------------------------------------------------------------------------------------------


class TimedRun(Run):
    """`speedup(plan)` gives one figure a workload; the suite's is their geometric mean. Versions get what they take."""

    def __init__(self) -> None:
        super().__init__()
        self.workloads = [w for w in KERNEL.spec.suite("cuda") if w.timed]
        self.by_case: dict[str, tuple[float, ...]] = {self.root: (1.0,) * len(self.workloads)}
        self.planned: dict[str, str] = {}

    def request(self) -> PlannerRequest:
        one = Interval(median=1.0, low=1.0, high=1.0)
        timings = tuple(
            Timing(
                workload=w, cache="hot", baseline_us=9, time_us=9, speedup=one, comparison=Comparison.SAME, samples=9
            )
            for w in self.workloads
        )
        return super().request().model_copy(update={"timings": timings})

    def code(self, plan: Plan) -> str:
        other = self.sources[plan.version.candidate] if plan.version else ""
        request = CoderRequest(
            spec=KERNEL.spec, device=H200, finding=LATENCY, plan=plan, source=self.sources[plan.base], other=other
        )
        return self.policy.coder(request).source

    def play(self, rounds: int, speedup) -> list[Plan]:
        for number in range(1, rounds + 1):
            (plan,) = self.policy.planner(self.request())
            source = self.code(plan)
            assert source, plan.title
            name = digest(source)
            mine = self.by_case[plan.base]
            if plan.version is None:
                cases = speedup(plan, mine)
            else:
                theirs = self.by_case[plan.version.candidate]
                cases = tuple(
                    b if plan.version.takes(KERNEL.spec, w) else a
                    for a, b, w in zip(mine, theirs, self.workloads, strict=True)
                )
            whole = statistics.geometric_mean(cases)
            beside = zip(cases, self.by_case[self.incumbent], strict=True)
            gains = tuple(Interval(median=g, low=g * 0.999, high=g * 1.001) for g in (a / b for a, b in beside))
            accepted = whole > self.best * 1.01 and min(cases) > 0.99  # as the select gate does
            self.by_case[name], self.sources[name] = cases, source
            self.attempts.append(
                Attempt(
                    round=number,
                    plan=plan,
                    candidate=name,
                    outcome=Outcome.PASSED,
                    accepted=accepted,
                    speedup=whole,
                    over=self.incumbent,
                    gains=gains,
                )
            )
            if accepted:
                self.best, self.incumbent = whole, name
        return [attempt.plan for attempt in self.attempts]


def _bytes(workload) -> int:
    return KERNEL.spec.read_bytes(workload)


def test_what_loses_on_some_sizes_is_kept_for_the_others() -> None:
    run = TimedRun()
    largest = max(map(_bytes, run.workloads))

    def speedup(plan: Plan, base: tuple[float, ...]) -> tuple[float, ...]:
        return tuple(0.9 if _bytes(w) == largest else 2.0 for w in run.workloads)

    plans = run.play(3, speedup)
    versions = [plan.version for plan in plans if plan.version is not None]
    assert versions, [plan.title for plan in plans]
    assert run.incumbent in run.by_case and min(run.by_case[run.incumbent]) == 1.0
    text = run.sources[run.incumbent]
    assert "_small(" in text or "_large(" in text
    assert all(f'extern "C" void silu_and_mul_{dtype}(' in text for dtype in KERNEL.spec.dtypes)


def test_more_rounds_find_more_where_no_form_is_best_everywhere() -> None:
    """Every step helps one size and costs another a little: no list of steps holds what several files hold together."""

    def after(rounds: int) -> float:
        run = TimedRun()
        order = sorted({_bytes(w) for w in run.workloads})

        def speedup(plan: Plan, base: tuple[float, ...]) -> tuple[float, ...]:
            cases = []
            for at, workload in enumerate(run.workloads):
                rank = order.index(_bytes(workload))
                gain = sum(0.08 if (len(step) + rank) % 3 == 0 else -0.02 for step in plan.steps)
                cases.append(base[at] * (1 + max(-0.05, gain)))
            return tuple(cases)

        run.play(rounds, speedup)
        return run.best

    assert after(5) < after(12)


def test_a_form_that_was_put_beside_another_and_failed_is_not_repaired() -> None:
    version = Version(candidate="a" * 64, dtypes=("float16",))
    plan = Plan(id="x", title="x", steps=("multiversion",), base="root", version=version)
    request = CoderRequest(
        spec=KERNEL.spec, device=H200, finding=LATENCY, plan=plan, source=BASELINE, other=BASELINE, repair=1
    )
    answer = RulesPolicy().coder(request)
    assert not answer.source and "fail together" in answer.reason


def test_a_defect_in_joining_two_forms_does_not_end_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_) -> str:
        raise IndexError("no such node")

    monkeypatch.setattr("nodes.policies.search.multiversion", broken)
    run = TimedRun()
    largest = max(map(_bytes, run.workloads))
    with pytest.warns(RuntimeWarning, match="multiversion failed"):
        plans = run.play(2, lambda plan, base: tuple(0.9 if _bytes(w) == largest else 2.0 for w in run.workloads))
    assert len(plans) == 2 and all(plan.version is None for plan in plans)


def test_a_repair_drops_the_step_whose_line_the_compiler_does_not_take() -> None:
    """The first of several steps, though nothing of it is risky; a second repair knows what the first one dropped."""
    run = Run()
    (plan,) = run.policy.planner(run.request())
    failed = run.code(plan)
    texts = _texts(list(plan.steps), BASELINE, Facts(spec=KERNEL.spec, device=H200))
    step, text = next((step, text) for step, text in texts.items() if step == "fast_math")
    before = next(text for name, text in texts.items() if name != step)
    number = next(
        at for at, line in enumerate(failed.splitlines(), 1)
        if line in text.splitlines() and line not in before.splitlines() and "__" in line
    )  # fmt: skip
    for line in (f"candidate.cu({number}): error: identifier", f"candidate.cu:{number}:7: error: what is this"):
        repair = CoderRequest(
            spec=KERNEL.spec, device=H200, finding=LATENCY, plan=plan, source=failed, origin=BASELINE, failure=line,
            outcome=Outcome.COMPILE_ERROR, repair=1,
        )  # fmt: skip
        answer = run.policy.coder(repair)
        assert step not in answer.reason and "drop_grid_stride_loop" in answer.reason
        again = run.policy.coder(repair.model_copy(update={"source": answer.source, "failure": "", "repair": 2}))
        assert step not in again.reason and "drop_grid_stride_loop" not in again.reason and again.source
