"""Triton candidates on a GPU: their kernels are compiled before they are judged, in a process that may start compilers.

Triton compiles when a kernel is called, by what it is called with. So every workload of both suites is called once in a
worker with the compilers' box and a GPU; what that leaves in its folder becomes a part of the build, which later workers get
a copy of (harness/farside/triton_calls.py). The folder belongs to the one candidate: nobody else's kernels are ever in it.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterable
from pathlib import Path

from harness.farside.triton_calls import CACHE, MOST_FIRST, uses_triton
from harness.processes.worker import Worker, WorkerFailure
from harness.records import Build, Outcome
from kernels.spec import Workload

COMPILE_S = 300.0
"""Seconds that a first call may take with all that it compiles; a search over configurations (triton.autotune)
compiles dozens."""
CALLED = "triton_calls.json"
"""File beside the build, where no candidate sees it, that lists the calls whose kernels are compiled."""
MOST_BYTES, MOST_FILES = 1 << 30, 20_000
"""Bytes and files of one candidate's compiled kernels (upper bounds)."""


def is_needed(build: Build) -> bool:
    """Whether the build's kernels have to be compiled by calling them."""
    source = Path(build.artefact) / "candidate.py"
    return build.ok and source.is_file() and uses_triton(source.read_text())


def smallest_of_each_dtype(workloads: Iterable[Workload], size: Callable[[Workload], int]) -> list[Workload]:
    """The workloads at which every configuration that a tuner measured is called: the smallest one of each dtype."""
    found: dict[str, Workload] = {}
    for workload in sorted(workloads, key=size):
        found.setdefault(workload.dtype, workload)
    return list(found.values())


def turns_of(answer: dict[str, object]) -> range:
    """Of what a call answered: the configurations beside the chosen one, by number."""
    turns = answer.get("turns")
    return range(1, min(turns, MOST_FIRST) if isinstance(turns, int) else 1)


def fill(
    artefact: Path,
    calls: Iterable[str],
    start: Callable[[], Worker],
    call: Callable[[Worker, str], object],
    beyond: Iterable[str] = (),
) -> bool:
    """Make those of the calls, by name, that were not made for this build yet, in the worker that `start` gives; answers
    whether there were any. Then, in the same worker, those `beyond` them, of which the first that fails ends it without a word.

    Raises WorkerFailure where a call fails (the judged process, without what was to be compiled, would fail in other words),
    where compiling takes too long and where the folder grows out of bounds.
    """
    record = artefact.with_name(CALLED)
    kept = record.exists() and (artefact / CACHE).is_dir()  # a build that was made anew has lost what was compiled
    made: list[str] = json.loads(record.read_text()) if kept else []
    missing = [name for name in calls if name not in made]
    further = [name for name in beyond if name not in (*made, *missing)]
    worker: Worker | None = None
    try:
        for name in missing + further:
            worker = worker or start()
            call(worker, name)
            gather(worker.scratch / "candidate" / CACHE, artefact / CACHE)
            made.append(name)
    except WorkerFailure as fault:
        if all(name in made for name in missing):
            return True
        raise WorkerFailure(fault.outcome, f"while Triton compiled its kernels: {fault.reason}") from None
    finally:
        if worker is not None:
            worker.close()
            record.write_text(json.dumps(made))
    return bool(missing or further)


def gather(source: Path, target: Path) -> None:
    """Copy the files of a folder that a hostile process may still be changing: never through a link, never without end.

    Raises WorkerFailure.
    """
    size = count = 0
    if not source.is_dir() or source.is_symlink() or source.parent.is_symlink():
        return
    for folder, _folders, names, at in os.fwalk(source, follow_symlinks=False):
        into = target / Path(folder).relative_to(source)
        into.mkdir(parents=True, exist_ok=True)
        for name in names:
            try:
                fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=at)
            except OSError:  # a link, or gone meanwhile: no kernel of Triton's
                continue
            with os.fdopen(fd, "rb") as file:
                found = os.fstat(fd)
                size, count = size + found.st_size, count + 1
                if size > MOST_BYTES or count > MOST_FILES:
                    raise WorkerFailure(Outcome.OUT_OF_RESOURCES, f"they take more than {MOST_BYTES >> 20} MiB")
                if stat.S_ISREG(found.st_mode):
                    (into / name).write_bytes(file.read(found.st_size))  # it may be growing
