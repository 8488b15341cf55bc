"""A process that works on a run: start, resume, fork; signals, pauses, outputs.

Durability is `sync`: a node's update is on the disk before the next node begins, so a kill at any moment costs the node
in flight and nothing else. What such a node had done is found again in the store and in the transcript by content.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, Checkpoint, CheckpointTuple
from langgraph.checkpoint.base.id import uuid6
from langgraph.errors import GraphDrained
from langgraph.graph.state import CompiledStateGraph
from langgraph.runtime import RunControl
from langgraph.types import Command, StateSnapshot

from graph import asking, checkpoints, draw, outputs
from graph.interrupting import interruptible
from graph.memory import LessonStore, open_memory
from graph.reading import checkpoint_of, config_of, disk_is_full, is_finished, no_checkpoint, readable, snapshot_of
from graph.result import result
from graph.runs import RunError, RunFolder, RunRecord, RunState, RunStatus, now
from graph.workflow import build, difference, recursion_limit, signature
from harness.engines import EngineError
from harness.problems import pytorch
from harness.records import Comparison
from harness.report.result import Result, Status
from harness.store import Store, digest
from kernels.catalog import Kernel
from nodes.approve import Answer
from nodes.context import Context
from nodes.roles import PolicyPaused
from nodes.spans import exporting, span
from nodes.state import STATE_VERSION, Settings, Spent, State
from nodes.subjects import subject_of


class RunDisplay(Protocol):
    """What shows a run while it works (graph/live.py)."""

    def node_started(self, node: str) -> None: ...
    def node_finished(self, node: str) -> None: ...
    def say(self, kind: str, text: str) -> None: ...
    def state(self, state: State) -> None: ...
    def paused(self) -> AbstractContextManager[None]: ...


Ask = Callable[[dict[str, Any], Store], Answer | None]
"""Puts a question of nodes/approve.py to a person; None where nobody is there to answer (graph/asking.py)."""


class OpenContext(Protocol):
    def __call__(
        self, run: RunFolder, record: RunRecord, state: State, say: Callable[[str, str], None]
    ) -> AbstractContextManager[Context]: ...


STATUS: dict[RunState, Status] = {
    "running": "running", "paused": "paused", "interrupted": "stopped", "finished": "finished", "failed": "failed",
}  # fmt: skip
Changes = Callable[[Settings], Settings]


@dataclass(frozen=True)
class Ending:
    """How this process left the run."""

    run: RunFolder
    state: RunState
    result: Result
    message: str = ""


@dataclass(frozen=True)
class RunService:
    """Where runs are and what they are made of; tests bring their own evaluator and policies."""

    runs_dir: Path
    open_context: OpenContext
    checkpointer: str = ""
    """PostgreSQL's address with its password; "" is SQLite."""
    stop: threading.Event | None = None
    """Set, it ends a session as a first Ctrl-C does: for runs side by side, in threads that get no signal."""

    def start(
        self, record: RunRecord, source: str, display: RunDisplay, ask: Ask, draft: str = "", built: Store | None = None
    ) -> Ending:
        """Begin a run; `draft` is a problem's first candidate, `built` has builds that it will ask for.

        Raises RunError where its name is taken.
        """
        run = RunFolder(self.runs_dir, record.run_id)
        with run.create(), self.saver(run, record) as saver, self.memory(record) as memory:
            if saver.get_tuple(config_of(run)) is not None:
                raise RunError(f"the checkpoint database holds a run {run.id!r} already; take another --run-id")
            if built:
                built.link_to(run.store.folder)
            if draft:
                run.store.put(draft)
            run.begin(record, source)
            return Session(run, record, display, ask, self.open_context, memory, self.stop, self.checkpointer).work(
                saver
            )

    def resume(
        self, run_id: str, display: RunDisplay, ask: Ask, answer: Answer | None = None, changes: Changes | None = None
    ) -> Ending:
        """Go on with a run from its last checkpoint, with other limits or another policy where `changes` has them.

        Raises RunError where that cannot be done.
        """
        run = RunFolder.find(self.runs_dir, run_id)
        record = run.record
        refuse_other_graph(record)
        with run.lock(), self.saver(run, record) as saver, self.memory(record) as memory:
            if changes:
                record = _changed(saver, run, record, changes(record.settings))
            return Session(run, record, display, ask, self.open_context, memory, self.stop, self.checkpointer).work(
                saver, answer
            )

    def checkpoint_id(self, run_id: str, wanted: str) -> str:
        """The whole id of the checkpoint that a fork may begin at. Raises RunError where there is none."""
        origin = RunFolder.find(self.runs_dir, run_id)
        return self._origin(origin, wanted).checkpoint["id"]

    def _origin(self, origin: RunFolder, checkpoint_id: str) -> CheckpointTuple:
        refuse_other_graph(origin.record)
        origin.source(origin.record.settings.source)
        with self.saver(origin, origin.record, exclusive=False) as saver:
            # The graph's own saver, not ours: only that one may rebuild the types that the State names.
            return checkpoint_of(cast(BaseCheckpointSaver, build(saver).checkpointer), origin, checkpoint_id)

    def fork(self, run_id: str, checkpoint_id: str, new: RunRecord, display: RunDisplay, ask: Ask) -> Ending:
        """A new run that goes on from a checkpoint of another one, with what `new` changes in its settings."""
        origin = RunFolder.find(self.runs_dir, run_id)
        found = self._origin(origin, checkpoint_id)
        source = origin.source(new.settings.source)
        run = RunFolder(self.runs_dir, new.run_id)
        with run.create(), self.saver(run, new) as saver, self.memory(new) as memory:
            values = dict(found.checkpoint["channel_values"]) | {"settings": new.settings, "spent": Spent()}
            checkpoint = cast(Checkpoint, {**found.checkpoint, "channel_values": values})
            place: RunnableConfig = {"configurable": {"thread_id": run.id, "checkpoint_ns": ""}}
            origin.store.link_to(run.store.folder)
            saver.put(place, checkpoint, found.metadata, dict(checkpoint["channel_versions"]))
            run.begin(new, source)  # last: from here on it is a run, and a resume would begin one without a checkpoint
            return Session(run, new, display, ask, self.open_context, memory, self.stop, self.checkpointer).work(saver)

    @contextmanager
    def memory(self, record: RunRecord) -> Iterator[LessonStore | None]:
        """What the runs of this folder, or of that database, learned; None where the run is to do without."""
        if record.settings.memory == "off":
            yield None
            return
        with open_memory(self.runs_dir, "" if record.checkpointer == "sqlite" else self.checkpointer) as memory:
            yield memory

    @contextmanager
    def saver(self, run: RunFolder, record: RunRecord, *, exclusive: bool = True) -> Iterator[BaseCheckpointSaver]:
        if record.checkpointer == "sqlite":
            with checkpoints.sqlite(run.checkpoints) as saver:
                yield saver
            return
        if not self.checkpointer:
            raise RunError(
                f"run {run.id} is kept in {record.checkpointer}; give its address with --checkpointer or in "
                "ASTROLABE_CHECKPOINTER (the password was not written down)"
            )
        with checkpoints.postgres(self.checkpointer, run.id, exclusive=exclusive) as saver:
            yield saver

    @contextmanager
    def _reading(self, run: RunFolder) -> Iterator[CompiledStateGraph]:
        """Raises RunError where there is no checkpoint; opening SQLite would make an empty database."""
        record = run.record
        if record.checkpointer == "sqlite" and not run.checkpoints.exists():
            raise no_checkpoint(run)
        with self.saver(run, record, exclusive=False) as saver:
            yield build(saver)

    def snapshot(self, run: RunFolder) -> StateSnapshot:
        """The last checkpoint, without working on the run. Raises RunError where there is none."""
        with self._reading(run) as graph:
            found = snapshot_of(graph, run)
        if found.created_at is None:
            raise no_checkpoint(run)
        return found

    def result(self, run: RunFolder) -> Result:
        """The run as its last checkpoint has it, or where the checkpoints are lost, as it was last written down.

        Raises RunError where neither is there.
        """
        status = run.status
        try:
            state = cast(State, self.snapshot(run).values)
        except RunError as error:
            if not status.checkpoints or (kept := outputs.read(run)) is None:
                raise
            lost = f"{error}: this is its record as it was last written"
            return kept.model_copy(update={"warnings": (*kept.warnings, lost)})
        said = "" if status.state == "finished" else status.message
        return result(state, run.record, status=STATUS[status.state], error=said)

    def add(self, run: RunFolder, **found: Any) -> None:
        """What was measured of the run's best after its end, fields of Result: into its record and its report."""
        said = (outputs.read(run) or self.result(run)).model_copy(update=found)
        outputs.write(run, said)
        with self._reading(run) as graph, readable(run):
            drawn = picture(graph, run, cast(State, self.snapshot(run).values))
        outputs.write_report(run, said, drawn)

    def history(self, run: RunFolder) -> list[StateSnapshot]:
        """Every checkpoint, newest first. Raises RunError where there is none."""
        with self._reading(run) as graph, readable(run):
            found = list(graph.get_state_history(config_of(run)))
        if not found:
            raise no_checkpoint(run)
        return found


class Session:
    """One process at work on one run; the caller holds the run's lock."""

    def __init__(
        self,
        run: RunFolder,
        record: RunRecord,
        display: RunDisplay,
        ask: Ask,
        open_context: OpenContext,
        memory: LessonStore | None,
        stop: threading.Event | None = None,
        url: str = "",
    ) -> None:
        self.stop = stop
        self.url = url
        """PostgreSQL's address where the checkpoints are there."""
        self.run, self.record, self.display, self.ask = run, record, display, ask
        self.open_context, self.memory = open_context, memory
        self.control = RunControl()
        self.context: Context | None = None
        self.state: State = {}
        self.layers: tuple[str, ...] = ()
        self.notices: tuple[str, ...] = ()
        self.measured: dict[str, str] = {}
        self.asking = False
        self.graph: CompiledStateGraph | None = None

    def work(self, saver: BaseCheckpointSaver, answer: Answer | None = None) -> Ending:
        if isinstance(saver, checkpoints.PatientSaver):
            saver.say = self.display.say
        graph = self.graph = build(saver, self.memory)
        snapshot = snapshot_of(graph, self.run)
        self.state = cast(State, snapshot.values)
        if "settings" in self.state:  # a kill between the two places leaves the checkpoint's, which nodes go by
            self.record = self.record.model_copy(update={"settings": self.state["settings"]})
        if snapshot.created_at is None and self.run.status.checkpoints:
            raise no_checkpoint(self.run)
        if answer is not None and not snapshot.interrupts:
            raise RunError(f"run {self.run.id} is not waiting for an answer")
        if answer is not None:
            asking.fits(answer, snapshot.interrupts[0].value)
        if is_finished(snapshot):
            return self.ending("finished")
        self.run.source(self.record.settings.source)
        self._note("running")
        return interruptible(lambda: self._body(graph, snapshot, answer), self)

    def _body(self, graph: CompiledStateGraph, snapshot: StateSnapshot, answer: Answer | None) -> Ending:
        """Runs in one thread from beginning to end: a worker that dies with its parent dies with its parent thread."""
        try:
            settings = self.record.settings
            facts = {"astrolabe__run": self.run.id, "astrolabe__kernel": self.record.kernel}
            with (
                exporting(),
                span("run", **facts, astrolabe__device=settings.device),
                self.open_context(self.run, self.record, self.state, self.display.say) as self.context,
            ):
                self._same_device()
                return self._rounds(graph, snapshot, answer)
        except PolicyPaused as pause:
            return self.ending("paused", str(pause))
        except GraphDrained:
            return self.ending("interrupted")
        except Exception as error:
            if lost := checkpoints.unavailable(error, self.url):
                return self.ending("paused", str(lost))
            if disk_is_full(error):
                with contextlib.suppress(OSError):
                    self._note("interrupted", "the disk is full")
                raise RunError(
                    f"the disk that holds {self.run.folder} is full; free some space and go on with "
                    f"`{self.run.command('resume')}` (what was finished is kept)"
                ) from error
            if isinstance(error, (RunError, EngineError)):
                self._note("interrupted", str(error))
            else:
                self._note("failed", f"{type(error).__name__}: {error}"[:500])
            raise

    def _rounds(self, graph: CompiledStateGraph, snapshot: StateSnapshot, answer: Answer | None) -> Ending:
        first: Any = None
        if snapshot.created_at is None:
            first = {"version": STATE_VERSION, "settings": self.record.settings}
        while True:
            if snapshot.interrupts:
                question = snapshot.interrupts[0].value
                if answer is None:
                    self.asking = True
                    with self.display.paused():
                        answer = self.ask(question, self.run.store)
                    self.asking = False
                if answer is None:
                    return self.ending("paused", f"waiting for approval of the {question['kind']} {question['plan']!r}")
                first, answer = Command(resume=answer), None
            self._stream(graph, first)
            snapshot = snapshot_of(graph, self.run)
            if not snapshot.interrupts:
                break
        if not is_finished(snapshot):
            raise RuntimeError(f"the graph stopped with {snapshot.next} still to do")
        self.state = cast(State, snapshot.values)
        return self.ending("finished")

    def _stream(self, graph: CompiledStateGraph[Any, Any], first: Any) -> None:
        config = config_of(self.run) | {"recursion_limit": recursion_limit(self.record.settings)}
        parts = graph.stream(
            first,
            config,
            context=self.context,
            durability="sync",
            stream_mode=["tasks", "values"],
            control=self.control,
            version="v2",
        )
        for part in parts:
            data: Any = part["data"]  # of the two modes that were asked for
            if part["type"] == "values":
                self._keep_best(data)
                self.state = data
                self.display.state(data)
                self._note("running")
                self._notice()
            elif "triggers" in data:
                self.display.node_started(data["name"])
            else:
                self.display.node_finished(data["name"])

    def _keep_best(self, state: State) -> None:
        """Write a new incumbent that is faster at once, for whoever does not want to wait for the end."""
        new, before = state.get("incumbent"), self.state.get("incumbent")
        if new is None or new.verdict.suite is None or (before is not None and before.candidate == new.candidate):
            return
        if new.verdict.suite.comparison is Comparison.FASTER:
            settings = self.record.settings
            outputs.write_best(self.run, new.candidate, settings.device, problem=subject_of(settings).drafted)

    def _notice(self) -> None:
        """What the evaluator has found out by now: it knows of its sandbox once a worker has started."""
        if self.context is None:
            return
        self.layers = tuple(self.context.evaluator.layers)
        self.measured = dict(self.context.evaluator.measured)
        said = (self.memory.said,) if self.memory and self.memory.said else ()
        new = [notice for notice in (*self.context.evaluator.notices, *said) if notice not in self.notices]
        for notice in new:
            self.display.say("notice", notice)
        self.notices = (*self.notices, *new)

    def _same_device(self) -> None:
        before, here = self.state.get("device"), self.context.evaluator.facts if self.context else None
        if before and here and (before.name, before.architecture) != (here.name, here.architecture):
            raise RunError(
                f"run {self.run.id} was measured on {before.name} ({before.architecture}), and this is {here.name} "
                f"({here.architecture}): its times cannot be compared; resume it there, or start a new run"
            )

    def _note(self, state: RunState, message: str = "") -> None:
        incumbent, spent = self.state.get("incumbent"), self.state.get("spent", Spent())
        suite = incumbent.verdict.suite if incumbent else None
        self.run.note(
            RunStatus(
                state=state,
                message=message,
                round=self.state.get("round", 0),
                attempts=len(self.state.get("attempts", ())),
                speedup=suite.speedup.median if suite and not self.state.get("disqualified") else None,
                checkpoints=sum(visits.count for visits in spent.nodes.values()),
                updated=now(),
            )
        )

    def ending(self, state: RunState, message: str = "") -> Ending:
        """The record of the run as it stands, written with the best file; a partial one where the run is not over."""
        status = STATUS[state]
        kept = outputs.read(self.run) if state == "finished" and self.context is None else None
        said = kept or result(
            self.state, self.record, status=status, error=message, sandbox=self.layers, notices=self.notices,
            measured=self.measured,
        )  # fmt: skip
        new = kept is None and "baseline" in self.state
        if new:
            outputs.write(self.run, said)
        self._note(state, message)
        if new:  # last: the run is what it is even where there is no picture of it
            outputs.write_report(self.run, said, self._picture())
        return Ending(self.run, state, said, message)

    def _picture(self) -> str:
        """The graph with the path taken; "" where the checkpoints cannot be read."""
        if self.graph is None:
            return ""
        try:
            return picture(self.graph, self.run, self.state)
        except Exception as error:
            if checkpoints.unavailable(error, self.url) or checkpoints.is_held(error):
                return ""
            raise


def picture(graph: CompiledStateGraph, run: RunFolder, state: State) -> str:
    """The graph with the path that the run took."""
    path = draw.path_of(graph.get_state_history(config_of(run)))
    counts = {name: (visit.count, visit.seconds) for name, visit in state["spent"].nodes.items()}
    return draw.draw(*draw.parts(graph), counts, draw.count_edges(path))


def refuse_other_graph(record: RunRecord) -> None:
    said = difference(record.signature)
    if said:
        raise RunError(
            f"run {record.run_id} was made by another version of the graph ({said}); "
            "resume it with the version that made it, or start a new run"
        )


def kernel_digest(folder: Path) -> str:
    """Digest of what defines right: a run is not resumed under another spec or reference."""
    if folder.is_file():  # a problem is its own reference
        return digest(*(path.read_bytes() for path in pytorch.read(folder)[1].files))
    judges = (folder / name for name in ("spec.py", "reference.py", "properties.py"))
    return digest(*(path.read_bytes() for path in judges if path.exists()))


def new_record(settings: Settings, kernel: Kernel, checkpointer: str = "") -> RunRecord:
    return RunRecord(
        run_id=settings.run_id,
        created=now(),
        settings=settings,
        kernel=kernel.spec.name,
        summary=kernel.spec.summary,
        kernel_digest=kernel_digest(kernel.folder),
        signature=signature(),
        checkpointer=checkpoints.without_password(checkpointer) if checkpointer else "sqlite",
    )


def _changed(saver: BaseCheckpointSaver, run: RunFolder, record: RunRecord, settings: Settings) -> RunRecord:
    """The run under other settings: a checkpoint after the last one that differs from it in nothing else."""
    graph = build(saver)
    snapshot = snapshot_of(graph, run)
    if is_finished(snapshot):
        raise RunError(f"run {run.id} is finished; to go on with other limits, fork it from one of its checkpoints")
    if "settings" in snapshot.values:
        saver = cast(BaseCheckpointSaver, graph.checkpointer)
        last = saver.get_tuple(config_of(run))
        if last is None:
            raise RunError(f"run {run.id} has no checkpoint")
        versions = dict(last.checkpoint["channel_versions"])
        versions["settings"] = saver.get_next_version(versions["settings"], None)
        checkpoint = {
            **last.checkpoint,
            "id": str(uuid6(clock_seq=-2)),
            "channel_values": {**last.checkpoint["channel_values"], "settings": settings},
            "channel_versions": versions,
        }
        saver.put(last.config, cast(Checkpoint, checkpoint), last.metadata, {"settings": versions["settings"]})
    record = record.model_copy(update={"settings": settings})
    run.keep(record)
    return record
