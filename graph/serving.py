"""The workbench for a coding agent outside, and the run that its submissions are rounds of. No protocol here (mcp_server.py).

One thread does all that needs the device, in the order of the calls. The run is started or resumed there as any other
process would, with the same lock, checkpoints and gates, and pauses at its checkpoint whenever it waits for the client; the
evaluator stays warm in between. What needs no device is answered by another thread while the run measures its baseline or a
submission: a client reads and compiles within seconds. A call that takes longer than a client may wait for goes on: asked
again, it is joined.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from concurrent.futures import TimeoutError as StillAtWork
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, cast

from pydantic import Field, ValidationError

from graph.request import KernelRequest
from graph.runs import RunError, RunFolder, RunRecord
from graph.session import Ending, RunService
from harness.device import DeviceError
from harness.judge.session import MissingTool
from harness.records import Outcome
from harness.report.result import WorkloadRow
from harness.report.words import worst
from kernels import catalog
from kernels.catalog import KernelError
from kernels.spec import Frozen
from nodes import ledger
from nodes.context import Context
from nodes.policies.client import ClientPolicy
from nodes.policies.render import data, describe_kernel, timing_table
from nodes.policies.trim import printable
from nodes.roles import COMPILED_FIRST
from nodes.state import State
from nodes.stops import standing
from nodes.workbench.arguments import (
    MAKERS,
    Arguments,
    CompileArguments,
    ReadArguments,
    ScheduleArguments,
    SubmitArguments,
)
from nodes.workbench.arguments import TOOLS as BENCH
from nodes.workbench.bench import Workbench
from nodes.workbench.results import ToolResult
from nodes.workbench.shown import describe_attempt, describe_written

FREE = ("read", "submit")
"""Tools that may still be called once the round's seconds are used up."""


class KernelsArguments(Frozen):
    """The kernels of the catalog, with one line each."""


class StartArguments(KernelRequest):
    """Begin a run on a kernel of the catalog; then compile, check, time, profile, and submit, round by round."""

    kernel: str = Field(max_length=100)
    """A name that `kernels` lists."""


class OperationArguments(Frozen):
    """What is to be computed: arguments, workloads, device, what a candidate is."""


class StateArguments(Frozen):
    """Where the run stands: round, best source so far, attempts, what is left of its limits, what is at work."""


class FinishArguments(Frozen):
    """End the run: the best source meets workloads that nobody has seen, and the report is written."""

    reason: str = Field(default="", max_length=1000)


TOOLS: dict[str, type[Frozen]] = {
    "kernels": KernelsArguments,
    "start": StartArguments,
    "operation": OperationArguments,
    **BENCH,
    "state": StateArguments,
    "finish": FinishArguments,
}


WITHOUT_DEVICE = (OperationArguments, ReadArguments, ScheduleArguments, CompileArguments)
"""What a client may call while the run measures. Of `compile` that is the building: what it is to do `then` waits for its turn."""
MEASURES_FIRST = (
    "is measuring what comes before your turn; `operation`, `read`, `schedule` and `compile` answer meanwhile"
)
MOST_TRIALS = 40
OVER = "The run is over ({}): nothing can be submitted any more, and `finish` only says this again."


class Wrong(ValueError):
    """A call that cannot be done; one sentence to the client."""


@dataclass
class _Work:
    """One call. `beside` is its part that needs no device: what it said, or None where all is still to be done in turn."""

    turn: Future[str]
    beside: Future[str | None] | None


@dataclass
class Begun:
    """A new run, about to begin."""

    record: RunRecord
    source: str


Begin = Callable[[StartArguments], Begun]


class Service:
    """What the tools do. `begin` makes a new run's record, `run_id` names one to go on with. Close it.

    Safe for several threads. `wait_s`: a call answers after so long even where its work goes on.
    """

    def __init__(self, service: RunService, begin: Begin, *, run_id: str = "", wait_s: float = 45.0) -> None:
        self.runs = RunService(service.runs_dir, self._held, service.checkpointer)
        self._opens, self._begin, self._wait_s = service.open_context, begin, wait_s
        self._stack = ExitStack()
        self._context: Context | None = None
        self.run: RunFolder | None = RunFolder.find(service.runs_dir, run_id) if run_id else None
        self._ending: Ending | None = None
        self._state: State = {}
        self._progress = self._refused = ""
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="serving")
        self._side = ThreadPoolExecutor(1, thread_name_prefix="beside")
        self._opened = threading.Event()
        """The run's context is there, or could not be had."""
        self._measures = threading.Event()
        """The run is begun or gone on with; unset, it waits for the client."""
        self._pending: dict[str, _Work] = {}
        self._last_beside: Future[str | None] | None = None
        self._guard = threading.Lock()
        if self.run is not None:
            self._measures.set()
            self._pool.submit(self._ready)  # while the client is still saying hello

    def start_soon(self, arguments: StartArguments) -> None:
        """Begin the run now, while the client is still saying hello; what goes wrong is said to its first call."""
        self._measures.set()
        self._pending[f"start {arguments.model_dump_json()}"] = _Work(self._pool.submit(self._start, arguments), None)

    def close(self, grace_s: float) -> bool:
        """End the workers; False where work is still going on after `grace_s`, which is lost as by a kill: nothing is."""
        self._opened.set()  # nobody waits for it any more
        for pool in (self._side, self._pool):
            pool.shutdown(wait=False, cancel_futures=True)
        done = threading.Event()

        def ended() -> None:
            for pool in (self._side, self._pool):
                pool.shutdown(wait=True)
            done.set()

        threading.Thread(target=ended, daemon=True).start()
        if not done.wait(grace_s):
            return False
        self._stack.close()
        return True

    # --- calls ---------------------------------------------------------------------------------------------------

    def call(self, name: str, given: dict[str, Any], client: str = "client") -> tuple[str, bool]:
        """(what is said to the client, whether it is an error)."""
        try:
            arguments = self._arguments(name, given)
            if isinstance(arguments, KernelsArguments):
                return "\n".join(f"{one}: {catalog.load(one).spec.summary}" for one in catalog.names()), False
            if isinstance(arguments, StateArguments):
                return self._where(), False
            return self._joined(name, arguments, client), False
        except Wrong as wrong:
            return str(wrong), True

    @staticmethod
    def _arguments(name: str, given: dict[str, Any]) -> Frozen:
        if name not in TOOLS:
            raise Wrong(f"there is no such tool; there are {', '.join(TOOLS)}")
        try:
            return TOOLS[name].model_validate_json(
                json.dumps({key: one for key, one in given.items() if one is not None})
            )
        except ValidationError as error:
            said = [f"{'.'.join(map(str, e['loc'])) or 'its arguments'}: {e['msg']}" for e in error.errors()[:4]]
            raise Wrong(f"{name}: {'; '.join(said)}"[:1000]) from None

    def _joined(self, name: str, arguments: Frozen, client: str) -> str:
        """The work's answer; the same call while it goes on waits for the same work."""
        key = f"{name} {arguments.model_dump_json()}"
        with self._guard:
            work = self._pending.get(key)
            if work is None:
                work = self._pending[key] = self._begin_work(name, arguments, client)
        until = time.monotonic() + self._wait_s
        try:
            said = work.beside.result(self._wait_s) if work.beside else None
            if said is None:
                said = work.turn.result(max(0.0, until - time.monotonic()))
        except StillAtWork:
            return (
                f"{name} is still at work after {self._wait_s:g} s ({self._doing()}): call it again with the same "
                "arguments to wait on"
            )
        except BaseException:
            self._forget(key)
            raise
        self._forget(key)
        return said

    def _begin_work(self, name: str, arguments: Frozen, client: str) -> _Work:
        beside = None
        if isinstance(arguments, StartArguments) and self.run is None:
            self._measures.set()
        if self._measures.is_set() and isinstance(arguments, WITHOUT_DEVICE):
            beside = self._last_beside = self._side.submit(self._beside, name, arguments, client)
        return _Work(self._pool.submit(self._do, name, arguments, client, beside, self._last_beside), beside)

    def _forget(self, key: str) -> None:
        with self._guard:
            self._pending.pop(key, None)

    def _doing(self) -> str:
        return data(self._progress, "progress") if self._progress else "starting"

    def progress(self) -> str:
        """What is at work, in one line."""
        return " ".join(printable(self._progress or "starting").split())[:200]

    # --- beside the run's measurements ---------------------------------------------------------------------------

    def _beside(self, name: str, arguments: Frozen, client: str) -> str | None:
        """The call's answer where it needs no device; None where it has to wait for its turn."""
        self._opened.wait()
        return self._answer(name, arguments, self._context, client, beside=True) if self._context else None

    def _answer(
        self, name: str, arguments: Frozen, context: Context, client: str, *, beside: bool = False
    ) -> str | None:
        if isinstance(arguments, OperationArguments):
            said = [self._left(context)]
            for one in self._state.get("attempts", ()):
                said += [describe_written(one)] if one.plan.id == COMPILED_FIRST and one.candidate else []
            said.append(
                describe_kernel(context.visible_spec(self._state), context.evaluator.facts, context.reference())
            )
            return "\n".join(said)
        return self._work(name, cast(Arguments, arguments), context, client, beside=beside)

    # --- on the one thread ---------------------------------------------------------------------------------------

    def _do(
        self,
        name: str,
        arguments: Frozen,
        client: str,
        own: Future[str | None] | None,
        before: Future[str | None] | None,
    ) -> str:
        """The call in its turn, after what was called `before` it beside a measurement; unless its `own` part there was all."""
        if before is not None:
            wait([before])
        if own is not None and (said := own.result()) is not None:
            return said
        if isinstance(arguments, StartArguments):
            return self._start(arguments)
        context = self._ready()
        if isinstance(arguments, FinishArguments):
            return self._finish(arguments, client)
        return cast(str, self._answer(name, arguments, context, client))

    def _start(self, arguments: StartArguments) -> str:
        if self.run is not None:
            raise Wrong(f"run {self.run.id} is begun already: finish it, and start a server for another")
        try:
            begun = self._begin(arguments)
        except BaseException as error:
            self._waits()
            if not isinstance(error, (RunError, KernelError, DeviceError)):
                raise
            self._refused = " ".join(str(error).split())[:500]
            raise Wrong(self._refused) from None
        self.run = RunFolder(self.runs.runs_dir, begun.record.run_id)
        try:
            self._session(lambda: self.runs.start(begun.record, begun.source, self, _nobody))
        except BaseException:
            self.run = None if not (self.run.folder / "run.json").exists() else self.run
            raise
        return self._where()

    def _ready(self) -> Context:
        """The run at its client's turn, or ended."""
        if self.run is None:
            raise Wrong(self._refused or "no run is begun: call `start` with one of `kernels`")
        if self._ending is None:
            self._session(lambda: self.runs.resume(self.run.id, self, _nobody))  # type: ignore[union-attr]
        if self._context is None:
            raise Wrong(f"run {self.run.id} is finished: {self.run.folder / 'report.html'}")
        return self._context

    def _session(self, work: Callable[[], Ending]) -> None:
        self._measures.set()
        try:
            self._ending = work()
        except (RunError, KernelError, DeviceError, MissingTool) as error:
            raise Wrong(" ".join(str(error).split())[:500]) from None
        finally:
            self._waits()
        assert self.run is not None
        self._state = cast(State, self.runs.snapshot(self.run).values)
        self._progress = ""

    def _waits(self) -> None:
        """Nothing is measured until the client calls for it."""
        self._measures.clear()
        self._opened.set()

    @contextmanager
    def _held(
        self, run: RunFolder, record: RunRecord, state: State, say: Callable[[str, str], None]
    ) -> Iterator[Context]:
        """The one context of this server, opened by its first session."""
        if self._context is None:
            self._state = {**State(settings=record.settings), **state}
            self._context = self._stack.enter_context(self._opens(run, record, state, self.say))
            self._opened.set()
        yield self._context

    def _work(self, name: str, arguments: Arguments, context: Context, client: str, *, beside: bool) -> str | None:
        """What a tool says; `beside` a measurement None where what was built is to be checked or timed."""
        policy = cast(ClientPolicy, context.policies["coder"])
        settings, round_ = self._state["settings"], self._state.get("round") or 1
        past = policy.list_calls()
        here = [e for e in past if e.question.facts["round"] == str(round_)]
        used = sum(e.seconds for e in here)
        if "incumbent" not in self._state and ("baseline" in self._state or not beside):
            raise Wrong("the baseline did not pass: `state` says why")
        if name not in FREE and (used >= settings.tool_seconds or len(here) >= settings.turns):
            raise Wrong(
                f"{name}: this round's {settings.turns} calls or {settings.tool_seconds:g} s of tools are used up: submit"
            )
        compiled = [e.question.facts for e in past if e.question.facts["tool"] in MAKERS]
        last = next((facts["candidate"] for facts in reversed(compiled) if facts["candidate"]), "")
        best = self._state["incumbent"].candidate if "incumbent" in self._state else settings.source
        bench = Workbench(
            context.evaluator, context.store, context.visible_spec(self._state), baseline=settings.source, incumbent=best,
            attempts=self._state.get("attempts", ()), reference=context.reference(), exact=settings.exact,
        )  # fmt: skip
        submits = isinstance(arguments, SubmitArguments) or "submit" in getattr(arguments, "then", ())
        if submits and self._over():
            raise Wrong(f"the run is {self._over()}: nothing can be submitted any more")
        if isinstance(arguments, CompileArguments) and not last and not arguments.base:
            arguments = arguments.model_copy(update={"base": "incumbent"})
        then = arguments.then if isinstance(arguments, CompileArguments) else ()
        found = bench.do(
            arguments.model_copy(update={"then": ()}) if beside and then else arguments,
            last,
            settings.tool_seconds - used,
        )
        if beside and then and found.outcome is Outcome.PASSED:
            return None
        policy.keep_call(client, round_, name, arguments.model_dump_json(exclude_defaults=True), found)
        left = (
            f"(call {len(here) + 1} of {settings.turns} in round {round_}; tools took {used + found.seconds:.1f} s of "
            f"{settings.tool_seconds:g} s)"
        )
        if found.submitted and found.candidate:
            return self._round(found, policy, client)
        return f"{found.text}\n{left}"

    def _round(self, found: ToolResult, policy: ClientPolicy, client: str) -> str:
        """The submission through the gates; what the tool said of it, unless that is `submit`, and what came of it."""
        assert self.run is not None
        round_, run = self._state["round"], self.run.id
        policy.keep_submission(client, round_, found, self.run.store.get(found.candidate))
        self._session(lambda: self.runs.resume(run, self, _nobody))
        return self._where(round_) if found.tool == "submit" else f"{found.text}\n{self._where(round_)}"

    def _finish(self, arguments: FinishArguments, client: str) -> str:
        assert self.run is not None and self._context is not None
        if not self._over():
            policy, run = cast(ClientPolicy, self._context.policies["coder"]), self.run.id
            policy.keep_end(client, self._state["round"], arguments.reason)
            self._session(lambda: self.runs.resume(run, self, _nobody))
        return self._where()

    def _over(self) -> str:
        return self._ending.state if self._ending is not None and self._ending.state != "paused" else ""

    def _left(self, context: Context) -> str:
        """The round, and what is left of its calls and tools."""
        if over := self._over():
            return OVER.format(over)
        settings, round_ = self._state["settings"], self._state.get("round") or 1
        past = cast(ClientPolicy, context.policies["coder"]).list_calls()
        here = [e for e in past if e.question.facts["round"] == str(round_)]
        calls, seconds = settings.turns - len(here), settings.tool_seconds - sum(e.seconds for e in here)
        last = ", which ends the run" if round_ >= settings.stop.rounds else ""
        return (
            f"round {round_} of {settings.stop.rounds}: {max(0, calls)} calls and {max(0.0, seconds):.1f} s of tools are "
            f"left before its submission{last}"
        )

    # --- where it stands -----------------------------------------------------------------------------------------

    def _where(self, round_: int | None = None) -> str:
        """The run's state; of that round's attempt first, where one is named."""
        if self.run is None:
            return "no run is begun: `start` begins one"
        state, settings = self._state, self._state.get("settings")
        if settings is None:
            return f"run {self.run.id}: {self._doing()}"
        if self._ending is None:
            ended = MEASURES_FIRST
        else:
            ended = "waits for what you submit" if self._ending.state == "paused" else self._ending.state
        said = [f"run {self.run.id}: {ended}, round {state.get('round', 0)} of {settings.stop.rounds}"]
        said += [] if self._over() or self._context is None else [self._left(self._context)]
        attempts = state.get("attempts", [])
        for attempt in attempts if round_ is None else [a for a in attempts if a.round == round_]:
            said.append(describe_attempt(attempt))
            if round_ is not None and attempt.trials:
                tried = [
                    one for one in ledger.read(self.run.store, [attempt.trials]) if one.candidate == attempt.candidate
                ]
                said.append(data("\n".join(ledger.rows(tried, attempts)), "by workload"))
        if "incumbent" in state:
            suite = state["incumbent"].verdict.suite
            best = state["incumbent"]
            least = worst(map(WorkloadRow.of, best.timings))
            speed = f", {suite.speedup.median:.3f}x the baseline{', ' + least if least else ''}" if suite else ""
            said.append(f"the best so far (`best`): {best.candidate[:12]} of round {best.round}{speed}")
            said.append(data(timing_table(best.timings), "its times"))
            stands = standing(state)
            said.append(stands.sentences(state.get("round", 0)))
            said += ["How far an output may be off: " + "; ".join(stands.tolerances)] if stands.tolerances else []
        if round_ is None and (rows := ledger.rows(ledger.every(self.run.store), attempts, MOST_TRIALS)):
            said.append(data("\n".join(rows), "ledger: every source that was tried"))
        if "held_out" in state:
            verdict = state["held_out"]
            suite = verdict.suite
            said.append(
                f"on the workloads that nobody was told: {verdict.outcome}"
                + (f", {suite.speedup.median:.3f}x" if suite else "")
            )
        if "stop" in state:
            said.append(f"stopped: {state['stop'].value}; report: {self.run.folder / 'report.html'}")
        if self._progress:
            said.append(f"at work: {self._doing()}")
        said += [OVER.format(over)] if (over := self._over()) else []
        return "\n".join(said)

    # --- what a session shows ------------------------------------------------------------------------------------

    def node_started(self, node: str) -> None:
        self._progress = node

    def node_finished(self, node: str) -> None:
        pass

    def say(self, kind: str, text: str) -> None:
        self._progress = f"{kind}: {text}"

    def state(self, state: State) -> None:
        self._state = state

    def paused(self) -> nullcontext[None]:
        return nullcontext()


def _nobody(_question: dict[str, Any], _store: Any) -> None:
    """Nobody is at a terminal."""
