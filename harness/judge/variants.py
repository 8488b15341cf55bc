"""Variants of a source beside the source as it came: their processes, their checks, and their times in short comparisons."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from harness.checks.layout import Layout
from harness.judge import verification
from harness.judge.bands import Ratios
from harness.judge.series import Case
from harness.judge.session import EvaluationSession
from harness.judge.tunables import bake
from harness.processes.spares import resting
from harness.processes.worker import Worker, WorkerFailure
from harness.records import Build
from harness.timing.sampling import PAIR, Arm, ArmFailure

MOST_SPILLED = 64
"""Bytes of spill stores and loads from which on a variant is not run; the source as it came always is."""
TRIES = 2
"""Times that a variant is started: a busy machine accuses an honest one now and then, so one that failed while it was
timed is started afresh once."""

STARTED_AT_ONCE = 4
"""Processes of variants that start at once."""


@resting()
def measure_ratios(
    session: EvaluationSession, source: str, variants: Sequence[dict[str, int]], cases: Sequence[Case], blocks: int
) -> list[Ratios | None]:
    """Ratios of each variant by case: time of the source as it came / time of the variant; None where it failed."""
    texts = [source, *(bake(source, values) for values in variants)]
    session.say(f"tuning: building and checking {len(variants)} variants")
    with ThreadPoolExecutor(max(1, len(os.sched_getaffinity(0)))) as pool:
        builds = list(pool.map(session.build, [session.store.put(text) for text in texts]))
    session.pool.only("")
    found: dict[int, list[list[float]]] = {}
    running = Variants(session, builds)
    try:
        running.start(range(len(builds)))
        for case in cases:
            _time(session, case, running, found, blocks)
    finally:
        running.end()
    whole = {i for i in running.workers if len(found.get(i, ())) == len(cases)} if 0 in running.workers else set()
    return [found[i] if i in whole else None for i in range(1, len(texts))]


def may_share(session: EvaluationSession, builds: Sequence[Build]) -> bool:
    """Whether these builds go into one process."""
    return session.device == "cuda" and all(session.pool.is_native(one) for one in builds)


class Variants:
    """The variants of one source that run and have been right, and their processes.

    Native ones on a GPU share one: CUDA's start takes longer than a variant's checks and samples together. They are of one author, and
    what wins is judged in a process of its own.
    """

    def __init__(self, session: EvaluationSession, builds: Sequence[Build]) -> None:
        self.session, self.builds = session, builds
        self.together = may_share(session, builds)
        self.left = dict.fromkeys(range(len(builds)), TRIES)
        self.workers: dict[int, Worker] = {}

    def start(self, wanted: Sequence[int]) -> None:
        """Those of them that can run, have tries left and are right."""
        fit = [at for at in wanted if self._is_fit(at) and self.left[at]]
        for at in fit:
            self.left[at] -= 1
        if self.together:
            self._share(fit, set())
            return
        with ThreadPoolExecutor(min(STARTED_AT_ONCE, len(os.sched_getaffinity(0)))) as pool:
            begun = dict(zip(fit, pool.map(self._begun, fit), strict=True))
        for at, worker in begun.items():  # in turn: they are asked in the same memory
            if worker is not None and _is_right(self.session, worker):
                self.workers[at] = worker
            elif worker is not None:
                self.session.pool.end(worker)

    def lose(self, at: int) -> None:
        """One has failed while it was timed: it is started afresh, by itself, as long as it has tries left."""
        worker = self.workers.pop(at)
        if not self.together:
            self.session.pool.end(worker)
        else:
            gone = {other for other, one in self.workers.items() if not one.alive}
            self._share(sorted(gone), gone)
            if all(one.process is not worker.process for one in self.workers.values()):
                self.session.pool.end(worker)
        self.start([at])

    def end(self) -> None:
        for worker in self.workers.values():
            self.session.pool.end(worker)

    def _is_fit(self, at: int) -> bool:
        return self.builds[at].ok and not (at and _spills(self.builds[at].resources) > MOST_SPILLED)

    def _begun(self, at: int) -> Worker | None:
        try:
            return self.session.pool.start(self.builds[at])
        except WorkerFailure:
            return None

    def _share(self, wanted: Sequence[int], right: set[int]) -> None:
        """Load those one after another into one process, and check who is not `right`; where one ends the process, the others go into another."""
        pool, left = self.session.pool, list(wanted)
        while left:
            workers: dict[int, Worker] = {}
            first: Worker | None = None
            for at in list(left):
                try:
                    workers[at] = (
                        pool.start(self.builds[at]) if first is None else pool.start_beside(first, self.builds[at])
                    )
                    first = workers[at]
                    if at not in right and not _is_right(self.session, workers[at]):
                        left.remove(at)
                except WorkerFailure:
                    left.remove(at)
                right.add(at)
                if first is not None and not first.alive:
                    break
            if first is not None and first.alive:
                self.workers |= {at: workers[at] for at in left}
                if not left:
                    pool.end(first)
                return


def _spills(resources: dict[str, str]) -> int:
    """Bytes that the worst kernel of a build stores and loads for want of registers."""
    return max((int(n) for text in resources.values() for n in re.findall(r"spills=(\d+)", text)), default=0)


def _is_right(session: EvaluationSession, worker: Worker) -> bool:
    """Whether it is right on every small workload. The winner is verified in full."""
    try:
        for workload in session.suite():
            if Layout(session.spec, workload, 1).size > 8 << 20:
                break
            for check in verification.checks(session, worker, workload, everything=False):
                if not check.passed:
                    return False
    except WorkerFailure:
        return False
    return True


def _time(
    session: EvaluationSession,
    case: Case,
    running: Variants,
    found: dict[int, list[list[float]]],
    blocks: int,
) -> None:
    """One comparison of all sides that are left; a side that fails is started afresh or leaves, and all go again."""
    while 0 in running.workers:
        fresh = {index: Arm(str(index), worker) for index, worker in sorted(running.workers.items())}
        comparison = session.open_comparison(*case)
        try:
            result = session.run(comparison, list(fresh.values()), blocks=(blocks, blocks), confirm=False)
        except ArmFailure as fault:
            if fault.arm == PAIR:
                raise RuntimeError(f"the neighbours of timed calls failed by themselves: {fault.reason}") from None
            running.lose(int(fault.arm))
            continue
        for index, arm in fresh.items():
            found.setdefault(index, []).append(result.ratios[arm.name])
        return
