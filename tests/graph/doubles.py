"""An evaluator and a policy that need no compiler: a source is a few lines such as `speed 1.30`.

    speed 1.30        how much faster than the baseline it measures
    against 0.9       speedup on the second workload, where it differs
    compile error     does not build
    incorrect         builds, is wrong
    held-out 0.8      speedup on held-out workloads (a number), or `fails`
    tune 64 128 256   an open integer; 128 adds 5 %
    unclear           UNCLEAR, unless it is contested again; `unclear always` is so then too, `unclear fails` is wrong

Every evaluation that is really made appends a line to `evaluations.log` beside the store, so that tests can count them
over several processes.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import ClassVar

from pydantic import BaseModel

from graph.runs import RunRecord, now
from graph.workflow import signature
from harness.judge.quick import Quick
from harness.judge.search import Tuned
from harness.records import (
    Build,
    Cache,
    Check,
    Comparison,
    DeviceFacts,
    Draws,
    Interval,
    Outcome,
    Suite,
    Timing,
    Verdict,
)
from harness.store import Store, digest
from kernels.catalog import Kernel
from kernels.spec import Size, Spec, Tensor, Workload
from nodes import roles
from nodes.context import Context
from nodes.options import ROLES, Role
from nodes.roles import CoderAnswer, CoderRequest, Finding, Plan, PlannerRequest, Review, ReviewRequest, Usage
from nodes.state import Settings

BASELINE = "speed 1.0\n"
SPEC = Spec(
    name="twice",
    summary="out = 2 * input",
    axes=("n",),
    dtypes=("float32",),
    arguments=(
        Tensor(name="input", role="input", shape=("n",)),
        Tensor(name="out", role="output", shape=("n",)),
        Size(name="n"),
    ),
    workloads=(
        Workload(axes={"n": 1024}, dtype="float32"),
        Workload(axes={"n": 4096}, dtype="float32"),
        Workload(axes={"n": 3000}, dtype="float32", held_out=True),
    ),
)
FACTS = DeviceFacts(device="cpu", name="paper", architecture="pencil", units=2, last_level_cache_bytes=1 << 20)


def settings(run_id: str = "run", **changes) -> Settings:
    base = {
        "run_id": run_id,
        "kernel": "twice",
        "device": "cpu",
        "policy": dict.fromkeys(ROLES, "rules"),
        "baseline": "plain",
        "source": digest(BASELINE),
        "rounds": 3,
        "patience": 2,
    }
    return Settings(**base | changes)


def comparison(speedup: float) -> Comparison:
    return Comparison.FASTER if speedup > 1.02 else Comparison.SLOWER if speedup < 0.98 else Comparison.SAME


def interval(speedup: float) -> Interval:
    return Interval(median=speedup, low=speedup * 0.99, high=speedup * 1.01)


def undecided(suite: Suite) -> Suite:
    """Of the same median, with an interval that begins within a CPU's margin of 1."""
    wide = suite.speedup.model_copy(update={"low": min(suite.speedup.low, 1.02)})
    return suite.model_copy(update={"comparison": Comparison.UNCLEAR, "speedup": wide})


class PaperEvaluator:
    """Deterministic; caches by content in the store, as the real one does."""

    spec = SPEC
    device = "cpu"
    facts = FACTS
    width = 1
    waited_s = 0.0
    notices: tuple[str, ...] = ("no landlock here",)
    layers: tuple[str, ...] = ("rlimits",)
    measured: ClassVar[dict[str, str]] = {"timing": "not at all: this is a double"}

    def __init__(self, store: Store, log: Path) -> None:
        self.store, self.log = store, log
        self.closed = False
        self.added: list[Workload] = []

    def _did(self, what: str, candidate: str) -> None:
        with self.log.open("a") as file:
            file.write(f"{what} {candidate}\n")

    def _read(self, candidate: str) -> dict[str, str]:
        lines = [line.partition(" ") for line in self.store.get(candidate).splitlines()]
        return {key: value for key, _, value in lines}

    def measure_facts(self) -> DeviceFacts:
        return FACTS

    def suite(self, *, held_out: bool = False) -> tuple[Workload, ...]:
        return SPEC.suite("cpu", held_out=held_out)

    def extend(self, workloads: tuple[Workload, ...], values: dict[str, tuple[str, ...]]) -> None:
        for name in values:
            if name != "input":
                raise ValueError(f"{name!r} is no input")
        self.added = list(workloads)

    def build(self, candidate: str) -> Build:
        kept = self.store.find_record("paper-build", candidate, Build)
        if kept is None:
            self._did("build", candidate)
            ok = "compile" not in self._read(candidate)
            kept = Build(candidate=candidate, backend="cpu", ok=ok, log="" if ok else "line 1: error: no such thing")
            self.store.keep("paper-build", candidate, kept)
        return kept

    def verify(self, build: Build, *, held_out: bool = False, only: Workload | None = None) -> Verdict:
        what = "verify-held-out" if held_out else f"verify-{only.label.replace(' ', '-')}" if only else "verify"
        return self._kept(what, build.candidate, lambda: self._verify(build, held_out))

    def _verify(self, build: Build, held_out: bool) -> Verdict:
        said = self._read(build.candidate)
        common = {"candidate": build.candidate, "kernel": "twice", "device": "cpu", "build": build}
        if not build.ok:
            return Verdict(**common, outcome=Outcome.COMPILE_ERROR, reason=build.log)
        wrong = said.get("held-out") == "fails" if held_out else "incorrect" in said
        check = Check(workload="float32 n=1024", name="ordinary", passed=not wrong, error=9.0 if wrong else 0.1)
        if wrong:
            return Verdict(**common, outcome=Outcome.INCORRECT, reason="9 times the tolerance", checks=(check,))
        return Verdict(**common, outcome=Outcome.PASSED, checks=(check,))

    def tune(self, candidate: str, *, seconds: float) -> Tuned:
        if "tune" not in self._read(candidate):
            return Tuned(candidate=candidate)
        self._did("tune", candidate)
        text = self.store.get(candidate)
        picked = text.replace("tune", "picked 128 of")
        return Tuned(candidate=self.store.put(picked), values={"BLOCK": 128}, tried=3)

    def measure(
        self,
        verdict: Verdict,
        *,
        baseline: str,
        incumbent: str | None = None,
        held_out: bool = False,
        contests: int = 1,
        again: bool = False,
    ) -> Verdict:
        what = f"measure-{'held-out' if held_out else 'visible'}-{incumbent or ''}{f'-again{contests}' if contests > 1 else ''}"
        what += "-once-more" if again else ""
        measured = self._kept(what, verdict.candidate, lambda: self._measure(verdict, incumbent, held_out))
        unclear = self._read(verdict.candidate).get("unclear")
        if unclear is None or held_out or (contests > 1 and unclear != "always"):
            return measured.failed(Outcome.INCORRECT, "wrong while it was timed") if unclear == "fails" else measured
        suites = {"suite": measured.suite, "suite_incumbent": measured.suite_incumbent}
        return measured.model_copy(update={name: undecided(suite) for name, suite in suites.items() if suite})

    def _measure(self, verdict: Verdict, incumbent: str | None, held_out: bool) -> Verdict:
        said = self._read(verdict.candidate)
        speed = self._speed(said)
        speeds = [float(said.get("held-out", speed))] if held_out else [speed, float(said.get("against", speed))]
        timings = tuple(
            Timing(
                workload=workload,
                cache="cold",
                baseline_us=100.0,
                time_us=100.0 / s,
                speedup=interval(s),
                comparison=comparison(s),
                light_us=20.0,
                samples=10,
            )
            for workload, s in zip(SPEC.suite("cpu", held_out=held_out), speeds, strict=True)
        )
        mean = speeds[0] if held_out else (speeds[0] * speeds[1]) ** 0.5
        against = None
        if incumbent is not None:
            gain = mean / self._speed(self._read(incumbent))
            against = Suite(speedup=interval(gain), comparison=comparison(gain))
        suite = Suite(speedup=interval(mean), comparison=comparison(mean))
        return verdict.model_copy(update={"timings": timings, "suite": suite, "suite_incumbent": against})

    def compare_briefly(self, build: Build, rivals: dict[str, str], cases=(), **_) -> Quick:
        """Like the real one it keeps nothing: asked twice, it measures twice."""
        self._did("contend", build.candidate)
        speed = self._speed(self._read(build.candidate))
        over = speed / self._speed(self._read(rivals["incumbent"])) if "incumbent" in rivals else None
        cases = cases or [(SPEC.suite("cpu")[0], "cold")]
        ratios = {name: ((speed / self._speed(self._read(rival)),) * 5,) for name, rival in rivals.items()}
        return Quick(
            pairs=(ratios,) * len(cases),
            timings=tuple(
                Timing(
                    workload=workload, cache=cache, baseline_us=100.0, time_us=100.0 / speed, speedup=interval(speed),
                    comparison=comparison(speed), against_incumbent=interval(over) if over else None, light_us=20.0,
                    samples=5,
                )
                for workload, cache in cases
            ),
        )  # fmt: skip

    def admits(self, workload: Workload) -> bool:
        return True

    def caches(self, workload: Workload) -> tuple[Cache, ...]:
        return ("cold",)

    def moved_bytes(self, workload: Workload) -> int:
        return 8 * workload.axes["n"]

    @staticmethod
    def _speed(said: dict[str, str]) -> float:
        """A source that says none is as fast as the baseline."""
        return float(said.get("speed", 1.0)) * (1.05 if "picked" in said else 1.0)

    def _kept(self, what: str, candidate: str, make: Callable[[], Verdict]) -> Verdict:
        kept = self.store.find_record(f"paper-{what}", candidate, Verdict)
        if kept is None:
            self._did(what, candidate)
            kept = make()
            self.store.keep(f"paper-{what}", candidate, kept)
        return kept

    def sanitize(self, verdict: Verdict) -> Verdict:
        """A source that says `sanitizer <words>` is found out by it."""
        words = self._read(verdict.candidate).get("sanitizer")
        if words is None:
            return verdict
        return verdict.failed(Outcome.INCORRECT, f"compute-sanitizer memcheck: {words}")

    def sanitize_beside(self, verdict: Verdict, work: Callable[[Verdict], Verdict]) -> Verdict:
        return work(self.sanitize(verdict))

    def draw_again(self, verdict: Verdict, *, baseline: str) -> Verdict:
        """A source that says `draws <words>` is wrong on one of them."""
        words = self._read(verdict.candidate).get("draws")
        if not verdict.passed or words is None:
            draws = Draws(count=200, bitwise=200, error=0.1, baseline_error=0.1)
            return verdict.model_copy(update={"draws": draws}) if verdict.passed else verdict
        return verdict.failed(Outcome.INCORRECT, f"draw 7 of 200: {words}")

    def measure_other_contexts(self, verdict: Verdict, *, baseline: str) -> Verdict:
        """On a CPU nobody launches."""
        return verdict

    def probes(self, build: Build, *, calls: bool = True) -> dict[str, dict[str, str]]:
        return {"ptxas": {"unavailable": "made of paper"}}

    def close(self) -> None:
        self.closed = True


class Script:
    """Policy: round -> the sources of its plans; a plan's source may be a list, one for each repair.

    Like the chat policy it keeps a ledger of what it answered, by the hash of the question: asking again costs nothing.
    """

    name = "script"
    PRICE = Usage(calls=1, tokens_in=100, tokens_out=10, money_usd=0.01)

    name = "script"

    def __init__(
        self,
        rounds: dict[int, list[str | list[str]]],
        tests: roles.TesterAnswer | None = None,
        objections: dict[str, str] | None = None,
    ) -> None:
        self.objections = objections or {}
        """Title of a plan -> what the reviewer has against it."""
        self.rounds, self.tests = rounds, tests or roles.TesterAnswer()
        self.asked: list[tuple[Role, BaseModel]] = []
        self.ledger: Path | None = None
        self._lock = threading.Lock()
        self._spent: dict[Role, Usage] = {}

    def paid(self) -> dict[Role, Usage]:
        """What the ledger says of all processes."""
        lines = self.ledger.read_text().splitlines() if self.ledger and self.ledger.exists() else []
        paid: dict[Role, Usage] = {}
        for line in lines:
            role: Role = line.split()[0]  # type: ignore[assignment]
            paid[role] = paid.get(role, Usage()).plus(self.PRICE)
        return paid

    def _ask(self, role: Role, request: BaseModel) -> None:
        with self._lock:
            self.asked.append((role, request))
            line = f"{role} {digest(request.model_dump_json())}"
            if self.ledger is not None:
                if self.ledger.exists() and line in self.ledger.read_text().splitlines():
                    return
                with self.ledger.open("a") as file:
                    file.write(line + "\n")
            self._spent[role] = self._spent.get(role, Usage()).plus(self.PRICE)

    def answer(self, request: roles.AgentRequest[roles.Answer]) -> roles.Answer:
        return getattr(self, request.role)(request)

    def tester(self, request: roles.TesterRequest) -> roles.TesterAnswer:
        self._ask("tester", request)
        return self.tests

    def drafter(self, request: roles.DraftRequest) -> roles.DraftAnswer:
        self._ask("drafter", request)
        written = self.rounds.get(0, [""])[0]
        source = written if isinstance(written, str) else written[min(request.repair, len(written) - 1)]
        return roles.DraftAnswer(source=source, reason="" if source else "nothing comes to mind")

    def profiler(self, request: roles.ProfilerRequest) -> Finding:
        self._ask("profiler", request)
        return Finding(bound="memory", summary=f"{len(request.timings)} timings")

    def planner(self, request: PlannerRequest) -> tuple[Plan, ...]:
        self._ask("planner", request)
        plans = self.rounds.get(request.round, [])
        return tuple(Plan(id=f"p{i}", title=f"plan {i}", steps=("do it",)) for i in range(len(plans)))

    def coder(self, request: CoderRequest) -> CoderAnswer:
        self._ask("coder", request)
        written = self.rounds[request.round][int(request.plan.id.split("-")[0][1:])]
        source = written if isinstance(written, str) else written[min(request.repair, len(written) - 1)]
        return CoderAnswer(source=source, reason="" if source else "nothing comes to mind")

    def reviewer(self, request: ReviewRequest) -> Review:
        """Has something against what a line `objection <words>` of it says, and against a plan of that title."""
        self._ask("reviewer", request)
        said = dict(line.partition(" ")[::2] for line in request.source.splitlines()) if request.source else {}
        reason = said.get("objection", "") if request.source else self.objections.get(request.plan.title, "")
        return Review(agrees=not reason, reason=reason)

    def usage(self) -> dict[Role, Usage]:
        return dict(self._spent)


class Silent:
    """A front that keeps what it was told."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []

    def node_started(self, node: str) -> None:
        self.events.append(("started", node))

    def node_finished(self, node: str) -> None:
        self.events.append(("finished", node))

    def say(self, kind: str, text: str) -> None:
        self.events.append((kind, text))

    def state(self, state) -> None:
        pass

    def paused(self):
        return nullcontext()


def paper_context(policy):
    """An `open_context` for graph.session.RunService."""

    @contextmanager
    def open_context(run, record, state, say) -> Iterator[Context]:
        evaluator = PaperEvaluator(run.store, run.folder / "evaluations.log")
        policy.ledger = run.folder / "ledger"
        yield Context(
            kernel=Kernel(SPEC, Path(os.devnull)),
            evaluator=evaluator,  # type: ignore[arg-type]
            store=run.store,
            policies=dict.fromkeys(ROLES, policy),
            say=say,
            usage_before=policy.paid(),
        )

    return open_context


def record(made: Settings) -> RunRecord:
    return RunRecord(
        run_id=made.run_id, created=now(), settings=made, kernel="twice", kernel_digest="0", signature=signature()
    )


def nobody(_question: dict, _store: Store) -> None:
    """Nobody is there to answer."""
