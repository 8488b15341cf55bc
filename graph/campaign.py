"""A campaign: every problem of a suite as a run of its own, one folder, one report.

    runs/<campaign>/campaign.json      what was asked for; the same command goes on with it, another one is refused
    runs/<campaign>/runs/<problem>/    a run with its own checkpoints
    runs/<campaign>/entries/<problem>.json   written once the problem ended, in a result or in a named reason

Killed at any moment and started again it repeats nothing that was finished: an entry is not looked at twice, a run goes on
from its last checkpoint. On this machine problems run one after another, so no compiler is at work while a time is taken; on
a cluster as many at once as it has devices. Where it has devices of several kinds every problem is worked on for each of
them, and each kind has a report of its own.
"""

from __future__ import annotations

import fcntl
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Literal, Protocol

from pydantic import Field

from graph.ahead import Ahead
from graph.choices import Choice
from graph.one_file import by_their_protocol
from graph.request import EachRequest
from graph.result import commit
from graph.runs import RunError, now, read_record, valid_id
from graph.session import Ask, Ending, RunDisplay, RunService, new_record
from harness import device
from harness.device import DeviceError
from harness.engines import EngineError
from harness.evaluate import Evaluator
from harness.export.one_file import standalone
from harness.judge.session import MissingTool
from harness.options import from_words
from harness.problems import pytorch as problems
from harness.protocol_kernelbench import KernelBenchResult, add_to_baseline, add_to_results, disagreement
from harness.records import Interval, Outcome
from harness.report import campaign_page
from harness.report.campaign_page import EAGER, CampaignPage, Line
from harness.report.fast_p import Solved
from harness.report.result import Result
from harness.report.words import worst
from harness.store import Store, write_atomically
from kernels import importers
from kernels.catalog import KernelError
from kernels.spec import Device, Frozen

State = Literal["done", "unfit", "failed"]
NO_CANDIDATE = "NO_CANDIDATE"
UNFIT = (KernelError, RunError, DeviceError, MissingTool)
"""Errors that say what is wrong with one problem, or with this machine for it: an entry, and the rest goes on."""


class CampaignRecord(Frozen):
    format: Literal[1] = 1
    name: str
    created: datetime
    suite: str
    device: str
    words: tuple[str, ...]
    """The options that every problem's run gets."""
    problems: tuple[str, ...] = Field(min_length=1)
    """Paths."""
    samples: int = Field(default=1, ge=1)
    """Runs of each problem that know nothing of each other."""
    commit: str = ""


class CampaignEntry(Frozen):
    """How one problem ended."""

    id: str
    path: str
    state: State
    """done: its run finished; unfit: it cannot be worked on; failed: our own failure, or a run that cannot go on."""
    reason: str = ""
    run: str = ""
    """The run's folder, relative to the campaign's."""
    stop_reason: str = ""
    outcome: str = ""
    seconds: float = 0.0
    wall_seconds: float = 0.0
    """Wall time with the waits for others and the report."""
    nodes: dict[str, float] = Field(default_factory=dict)
    """Node of the graph -> its part of `seconds`."""
    commit: str = ""
    """Astrolabe's commit when this problem ended; the campaign may have begun at another."""
    kind: str = ""
    """Kind of device that it ran on, where the campaign covers several."""
    sample: int = Field(default=0, ge=0)
    """Which of the problem's runs, from 0."""
    kernelbench: str = ""
    """The answer of KernelBench's own protocol, where it was asked."""
    theirs: KernelBenchResult | None = None
    """KernelBench's verdict with its figures; an older entry has none."""
    disagreement: str = ""
    """Why that differs from our verdict."""
    machine: str = ""
    """Processor, device, torch."""
    load: float | None = None
    """Processes that ran or waited, over the minute before this ended."""
    worst: str = ""
    """Its workload that gains least, in words; "" of a single one."""
    solved: Solved


class Watcher(Protocol):
    """What shows a campaign while it works (graph/campaign_live.py)."""

    def display_for(self, name: str) -> RunDisplay: ...
    def record_end(self, entry: CampaignEntry) -> None: ...


@dataclass(frozen=True)
class ProblemPlan:
    """What a campaign does with a problem's path."""

    choose: Callable[[Path, str], Choice]
    """(path, run id) -> the run's settings. Raises what graph.choices.choose raises."""
    open_service: Callable[[Path], RunService]
    ask: Ask
    prepare: Callable[[Path], None] = lambda _path: None
    """Does beforehand what of a problem's run needs no device."""
    built: Callable[[Path], Store | None] = lambda _path: None
    """The store with the builds that `prepare` made for it."""
    protocol: Callable[[Path, str, Store], KernelBenchResult] | None = None
    """Asks KernelBench's own protocol about a candidate (problem's path, its text, the run's store)."""
    kind: str = ""
    """Kind of device, where the campaign covers several."""
    at_once: Callable[[], int] = lambda: 1
    """How many problems may be worked on side by side, now."""


class Campaign:
    """One folder of the runs' folder."""

    def __init__(self, runs_dir: Path, name: str) -> None:
        self.folder = runs_dir / valid_id(name)
        self.writing = threading.Lock()

    @property
    def record(self) -> CampaignRecord:
        return read_record(self.folder / "campaign.json", CampaignRecord)

    def begin(self, asked: CampaignRecord) -> CampaignRecord:
        """Write the record, or go on with the one that is there. Raises what `check` raises."""
        there = self.check(asked)
        if there is None:
            write_atomically(self.folder / "campaign.json", asked.model_dump_json(indent=1))
        return there or asked

    def check(self, asked: CampaignRecord) -> CampaignRecord | None:
        """The record that is there. Raises RunError where that one asked for something else, or where a run has the name."""
        if (self.folder / "run.json").exists():
            raise RunError(f"{self.folder} is a run; take another --name for the campaign")
        if not (self.folder / "campaign.json").exists():
            return None
        there = self.record
        asked_words = {
            "suite": "suite",
            "device": "device",
            "words": "options",
            "problems": "problems",
            "samples": "--samples",
        }
        for field, words in asked_words.items():
            theirs, ours = getattr(there, field), getattr(asked, field)
            if (
                (from_words(EachRequest, theirs) != from_words(EachRequest, ours))
                if field == "words"
                else theirs != ours
            ):
                raise RunError(
                    f"there is a campaign {asked.name!r} already with other {words}; take another --name, or give the "
                    "same command again to go on with it"
                )
        return there

    def entry(self, entry_id: str) -> CampaignEntry | None:
        try:
            return read_record(self.folder / "entries" / f"{entry_id}.json", CampaignEntry)
        except FileNotFoundError:
            return None

    def entries(self, kinds: Sequence[str] = ("",)) -> list[CampaignEntry]:
        """The entries of every run that has ended, by problem, kind and sample."""
        record = self.record
        numbers = sample_numbers(record.samples)
        ids = (entry_id(Path(p), kind, number) for p in record.problems for kind in kinds for number in numbers)
        return [entry for entry in map(self.entry, ids) if entry is not None]

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Raises RunError where another process works on the campaign. A folder in which nothing was begun is removed."""
        self.folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            try:
                fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise RunError(f"campaign {self.folder.name} is being worked on by another process") from None
            try:
                yield
            finally:
                if not (self.folder / "campaign.json").exists():
                    (self.folder / "lock").unlink()
                    with suppress(OSError):  # it holds something that is not ours
                        self.folder.rmdir()
        finally:
            os.close(handle)

    def list_left(self, plans: Sequence[ProblemPlan]) -> list[Task]:
        """What has no entry yet."""
        record = self.record
        every = [
            Task(Path(path), plan, number)
            for path in record.problems for plan in plans for number in sample_numbers(record.samples)
        ]  # fmt: skip
        return [task for task in every if self.entry(task.id) is None]

    def work(
        self,
        plans: Sequence[ProblemPlan],
        watcher: Watcher,
        stop: threading.Event | None = None,
        ahead: Ahead | None = None,
    ) -> bool:
        """Go through the problems that have no entry yet, for each plan; False where the person stopped it.

        `stop` is set by SIGINT or SIGTERM where several are worked on at once, and ends their sessions (graph.session.RunService).
        Raises EngineError where the place at which they are judged is lost.
        """
        left = self.list_left(plans)
        if stop is None:
            whole = all(self._ended(task, watcher, ahead) for task in left)
        else:
            with _stopped_by_signals(stop):
                whole = self._side_by_side(left, watcher, stop, ahead)
        if whole:
            self.report(plans)
        return whole

    def _side_by_side(self, left: list[Task], watcher: Watcher, stop: threading.Event, ahead: Ahead | None) -> bool:
        at_work: dict[Future[bool], ProblemPlan] = {}
        whole, limit = True, max(1, len(left))
        with ThreadPoolExecutor(max_workers=limit, thread_name_prefix="problem") as pool:
            try:
                while (left or at_work) and whole and not stop.is_set():
                    for task in list(left):
                        plan = task.plan
                        if sum(one is plan for one in at_work.values()) < plan.at_once():
                            at_work[pool.submit(self._ended, task, watcher, ahead)] = plan
                            left.remove(task)
                    done, _running = wait(at_work, timeout=0.5, return_when=FIRST_COMPLETED)
                    for one in done:
                        del at_work[one]
                        whole = one.result() and whole
            finally:
                if left or at_work:
                    stop.set()
        return whole and not stop.is_set() and all(one.result() for one in at_work)

    def _ended(self, task: Task, watcher: Watcher, ahead: Ahead | None) -> bool:
        """Work on one problem until it has an entry; False where the person interrupted it."""
        plan, name, began = task.plan, task.id, time.monotonic()
        if ahead is not None:
            ahead.begins(task.path)
        ended = self._one(task, watcher.display_for(name))
        if ended is None:
            return False
        whole = time.monotonic() - began
        update = {
            "seconds": ended.seconds or whole,
            "wall_seconds": whole,
            "commit": commit(),
            "kind": plan.kind,
            "sample": task.number or 0,
            "load": os.getloadavg()[0],
        }
        entry = ended.model_copy(update=update)
        with self.writing:
            write_atomically(self.folder / "entries" / f"{name}.json", entry.model_dump_json(indent=1))
            watcher.record_end(entry)
            self.report([plan])
        return True

    def _one(self, task: Task, display: RunDisplay) -> CampaignEntry | None:
        """The problem's run, started or gone on with; None where the person interrupted it."""
        path, plan, name, runs = task.path, task.plan, task.id, self.folder / "runs"
        try:
            if (runs / name / "run.json").exists():
                ending = plan.open_service(runs).resume(name, display, plan.ask)
            else:
                choice = plan.choose(path, name)
                record = new_record(choice.settings, choice.kernel)
                ending = plan.open_service(runs).start(
                    record, choice.source, display, plan.ask, choice.draft, plan.built(path)
                )
        except EngineError:  # nothing about this problem: it goes on once the engine is there again
            raise
        except UNFIT as error:
            return self._lost(path, name, "unfit" if isinstance(error, KernelError) else "failed", str(error))
        except Exception as error:  # noqa: BLE001, a defect of ours at one problem must not cost the others; it is counted
            return self._lost(path, name, "failed", f"our own failure: {type(error).__name__}: {error}")
        if ending.state == "interrupted":
            return None
        if ending.state == "paused":
            return self._lost(path, name, "failed", f"paused: {ending.message}")
        entry = self._done(path, name, ending)
        return self._by_protocol(entry, task, ending) if plan.protocol else entry

    def _by_protocol(self, entry: CampaignEntry, task: Task, ending: Ending) -> CampaignEntry:
        """The entry with KernelBench's verdict on the same candidate, and that in its own files, one folder a level."""
        path, plan, number = task.path, task.plan, task.number or 0
        result, title = ending.result, importers.title(path)
        candidate = result.answer.candidate if result.answer else _last_candidate(result)
        importer = importers.for_file(path)
        if not candidate or plan.protocol is None or importer is not importers.get("kernelbench"):
            return entry
        source = ending.run.store.get(candidate)
        found = plan.protocol(path, source, ending.run.store)
        outcome = result.answer.outcome if result.answer else Outcome(_last_outcome(result))
        differs = disagreement(found, outcome, entry.reason, result.degenerate)
        entry = entry.model_copy(update={"kernelbench": _in_words(found), "theirs": found, "disagreement": differs})
        if not title.number:  # its files know problems by number
            return entry
        folder = self.folder / "kernelbench" / f"level{title.level}"
        sample = f"level_{title.level}_problem_{title.number}_sample_{number}_kernel.py"  # as its scripts look for it
        write_atomically(folder / sample, standalone(source))
        add_to_results(folder / "eval_results.json", title.number, found, number)
        add_to_baseline(folder / "baseline_time_torch.json", title.level, path.name, found)
        return entry

    def _lost(self, path: Path, name: str, state: State, reason: str) -> CampaignEntry:
        run = f"runs/{name}" if (self.folder / "runs" / name / "run.json").exists() else ""
        return CampaignEntry(
            id=name, path=str(path), state=state, reason=" ".join(reason.split())[:600], run=run, solved=_unsolved(path)
        )

    def _done(self, path: Path, name: str, ending: Ending) -> CampaignEntry:
        result = ending.result
        if result.status == "failed":
            return self._lost(path, name, "failed", result.error)
        said = [n for n in result.notes if n.startswith("no draft")]
        said += [row.reason for row in reversed(result.attempts) if row.reason]
        attempts = [row for row in result.attempts if row.candidate]
        return CampaignEntry(
            id=name,
            path=str(path),
            state="done",
            reason=result.answer.reason if result.answer else next(iter(said), ""),
            run=f"runs/{name}",
            stop_reason=result.stop_reason,
            outcome=str(result.answer.outcome) if result.answer else _last_outcome(result),
            seconds=result.spent.seconds,
            nodes=result.spent.nodes,
            machine=_machine(result),
            worst=worst(row for row in result.workloads if not row.held_out) if result.improved else "",
            solved=_solved(path, result, len(attempts)),
        )

    def report(self, plans: Sequence[ProblemPlan]) -> None:
        """report.html and summary.json, of what has ended so far; with the kind's name where there are several."""
        for plan in plans:
            self._report(plan.kind)

    def _report(self, kind: str) -> None:
        record, entries = self.record, by_problem(self.entries((kind,)))
        lines = [
            Line(
                id=entry.id, state=entry.state, outcome=entry.outcome, reason=entry.reason,
                link=f"{entry.run}/report.html" if (self.folder / entry.run / "report.html").is_file() and entry.run else "",
                seconds=entry.seconds, stop_reason=entry.stop_reason, solved=entry.solved,
                kernelbench=entry.kernelbench, disagreement=entry.disagreement, commit=entry.commit,
                theirs=_by_kernelbench(entry), machine=entry.machine, load=entry.load, worst=entry.worst,
            )
            for entry in entries
        ]  # fmt: skip
        page = CampaignPage(
            name=record.name, suite=record.suite, device=kind or record.device, words=record.words, commit=record.commit,
            started=record.created, total=len(record.problems), samples=record.samples, lines=tuple(lines),
        )  # fmt: skip
        suffix = f"-{slug(kind)}" if kind else ""
        write_atomically(
            self.folder / f"summary{suffix}.json", campaign_page.summary(page).model_dump_json(indent=1) + "\n"
        )
        write_atomically(self.folder / f"report{suffix}.html", campaign_page.render(page))


@contextmanager
def _stopped_by_signals(stop: threading.Event) -> Iterator[None]:
    """The first SIGINT or SIGTERM sets `stop`, the second ends the process at once."""

    def on_signal(_number: int, _frame: object) -> None:
        if stop.is_set():
            os._exit(130)
        stop.set()

    main = threading.current_thread() is threading.main_thread()
    before = {s: signal.signal(s, on_signal) for s in (signal.SIGINT, signal.SIGTERM)} if main else {}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")[:60]


def entry_id(path: Path, kind: str = "", number: int | None = None) -> str:
    """A name for a problem's run: `l1-003-Softmax`, `l1-003-Softmax-NVIDIA-H200` where there are several kinds, and
    `l1-003-Softmax-sample-2` where there are several samples."""
    title = importers.title(path)
    name = f"l{title.level}-{title.number:03d}-{slug(title.name) or 'problem'}"
    name = f"{name}-{slug(kind)}" if kind else name
    return name if number is None else f"{name}-sample-{number}"


def sample_numbers(samples: int) -> list[int | None]:
    return [None] if samples == 1 else list(range(samples))


@dataclass(frozen=True)
class Task:
    """One run."""

    path: Path
    plan: ProblemPlan
    number: int | None = None
    """Number of the sample, where a problem has several."""

    @property
    def id(self) -> str:
        return entry_id(self.path, self.plan.kind, self.number)


def make_record(
    name: str, suite: str, device: str, words: Sequence[str], problems: Sequence[Path], samples: int = 1
) -> CampaignRecord:
    return CampaignRecord(
        name=name, created=now(), suite=suite, device=device, words=tuple(words),
        problems=tuple(str(path) for path in problems), samples=samples, commit=commit(),
    )  # fmt: skip


def by_problem(entries: Sequence[CampaignEntry]) -> list[CampaignEntry]:
    """One entry for each problem and kind of device: that of its fastest right sample, which counts the others, too."""
    groups: dict[tuple[str, str], list[CampaignEntry]] = {}
    for entry in entries:
        groups.setdefault((entry.path, entry.kind), []).append(entry)
    return [_together(group) if len(group) > 1 else group[0] for group in groups.values()]


def _together(samples: list[CampaignEntry]) -> CampaignEntry:
    def rank(entry: CampaignEntry) -> tuple[bool, float, bool]:
        speedup = entry.solved.speedup.get(EAGER)
        return entry.solved.correct, speedup.median if speedup else 0.0, entry.state == "done"

    best = max(samples, key=rank)
    worked_on = any(entry.state != "unfit" for entry in samples)
    counts = {
        "compiled": any(entry.solved.compiled for entry in samples),
        "samples": len(samples) if worked_on else 0,
        "right": sum(entry.solved.correct for entry in samples),
    }
    said = next((entry.disagreement for entry in samples if entry.disagreement), "")
    judged = [entry.theirs for entry in samples if entry.theirs]
    changed = {
        "solved": best.solved.model_copy(update=counts), "disagreement": best.disagreement or said,
        "theirs": max(judged, key=lambda one: (one.correctness, one.speedup or 0.0), default=None),
        "seconds": sum(entry.seconds for entry in samples),
    }  # fmt: skip
    return best.model_copy(update=changed)


def _by_kernelbench(entry: CampaignEntry) -> Solved | None:
    """What became of the problem by KernelBench's own verdict; None of a candidate that it was not asked about."""
    none = _unsolved(Path(entry.path))
    if entry.theirs is None:
        return none if entry.state != "done" or entry.outcome == NO_CANDIDATE else None
    found, gain = entry.theirs, entry.theirs.speedup
    speedup = {EAGER: Interval(median=gain, low=gain, high=gain)} if gain else {}
    return none.model_copy(
        update={
            "compiled": found.compiled,
            "correct": found.correctness,
            "speedup": speedup,
            "degenerate": entry.solved.degenerate,
        }
    )


def _machine(result: Result) -> str:
    """What the times were taken on."""
    gpu = result.device_name if result.device == "cuda" else ""
    parts = [device.facts("cpu").name, gpu, f"PyTorch {metadata.version('torch')}"]
    return ", ".join(part for part in parts if part)


def _unsolved(path: Path) -> Solved:
    title = importers.title(path)
    return Solved(level=title.level, number=title.number, name=title.name)


def _solved(path: Path, result: Result, samples: int) -> Solved:
    answer = result.answer
    correct = answer is not None and answer.outcome is Outcome.PASSED
    compiled = [row for row in result.attempts if row.candidate and row.outcome not in (Outcome.COMPILE_ERROR,)]
    speedup = {}
    if answer is not None and correct:
        speedup = dict(answer.against) | ({EAGER: answer.speedup} if answer.speedup else {})
    return _unsolved(path).model_copy(
        update={
            "compiled": bool(compiled),
            "correct": correct,
            "speedup": speedup,
            "degenerate": result.degenerate,
            "samples": samples,
            "right": sum(row.outcome == Outcome.PASSED for row in result.attempts if row.candidate),
        }
    )


def by_kernelbench(on: Device) -> Callable[[Path, str, Store], KernelBenchResult]:
    """What asks KernelBench's protocol: the problem is opened once more, in processes of its own."""

    def ask(path: Path, source: str, store: Store) -> KernelBenchResult:
        problem = problems.open_problem(path, on)
        with Evaluator(problem, on, store) as evaluator:
            return by_their_protocol(evaluator, problem, source)

    return ask


def _in_words(found: KernelBenchResult) -> str:
    if not found.correctness:
        return "not compiled" if not found.compiled else "not correct"
    return f"{found.runtime:g} ms, eager {found.ref_runtime:g} ms"


def _last_candidate(result: Result) -> str:
    return next((row.candidate for row in reversed(result.attempts) if row.candidate), "")


def _last_outcome(result: Result) -> str:
    """The outcome of the last attempt that came to a candidate."""
    return next((str(row.outcome) for row in reversed(result.attempts) if row.candidate), NO_CANDIDATE)
