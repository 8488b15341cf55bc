"""Triton candidates on a GPU: their kernels are compiled before they are judged, in a process that may start compilers.

Triton compiles when a kernel is called, by what it is called with. So every workload of both suites is called once in a
worker with the compilers' box and a GPU; what that leaves in its folder becomes a part of the build, which later workers get
a copy of (harness/worker_triton.py). The folder belongs to the one candidate: nobody else's kernels are ever in it.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness.correctness import Bench, Layout, distributions, drawn
from harness.device import generator, synchronize
from harness.engines.process import Worker, WorkerFailure
from harness.records import Build, Outcome
from harness.worker_triton import CACHE, uses_triton

if TYPE_CHECKING:
    from harness.rig import Rig
    from kernels.spec import Workload

COMPILE_S = 300.0
"""A first call, with all that it compiles; a search over configurations (triton.autotune) compiles dozens."""
CALLED = "triton_calls.json"
"""Beside what was built, where no candidate sees it: the calls whose kernels are there."""
MOST_BYTES, MOST_FILES = 1 << 30, 20_000
"""Of one candidate's compiled kernels."""


def wanted(build: Build) -> bool:
    """Whether the build's kernels have to be compiled by calling them."""
    source = Path(build.artefact) / "candidate.py"
    return build.ok and source.is_file() and uses_triton(source.read_text())


def compile_ahead(rig: Rig, build: Build, workloads: Sequence[Workload]) -> None:
    """Have what calls of those workloads need compiled before a process that is judged makes them; does nothing on a CPU.

    Inputs are drawn for this alone. Held-out sizes come last, once the candidate has passed the others: what the processes
    before leave in the folder, later ones can read. Raises WorkerFailure as `fill`.
    """
    if rig.device != "cuda" or not wanted(build):
        return
    spec, by_label = rig.spec, {workload.label: workload for workload in workloads}

    def call(worker: Worker, label: str) -> None:
        workload = by_label[label]
        layout = Layout(spec, workload, 1)
        arena = rig.memory(layout.size)
        if arena.id not in worker.mapped:
            worker.map(arena)
        values = distributions(spec, {})[0]
        inputs = drawn(spec, workload, values, rig.extra_values, rig.device)
        Bench(spec, arena, layout, generator(rig.device)).write(0, inputs)
        synchronize(rig.device)
        rig.say(f"Triton compiles for {label}")
        calls = [layout.arguments(arena, 0)]
        message = {"op": "call", "dtype": workload.dtype, "calls": calls, "shapes": layout.shapes()}
        worker.request(message, timeout_s=COMPILE_S)

    if fill(Path(build.artefact), by_label, lambda: rig.pool.start(build, compilers=True), call):
        rig.pool.drop(build.candidate)  # a process that lives has the folder as it was


def fill(
    artefact: Path, calls: Iterable[str], start: Callable[[], Worker], call: Callable[[Worker, str], object]
) -> bool:
    """Make those of the calls, by name, that were not made for this build yet, in the worker that `start` gives; answers
    whether there were any.

    Raises WorkerFailure where a call fails (the judged process, without what was to be compiled, would fail in other words),
    where compiling takes too long and where the folder grows out of bounds.
    """
    record = artefact.with_name(CALLED)
    made: list[str] = json.loads(record.read_text()) if record.exists() else []
    missing = [name for name in calls if name not in made]
    worker: Worker | None = None
    try:
        for name in missing:
            worker = worker or start()
            call(worker, name)
            gather(worker.scratch / "candidate" / CACHE, artefact / CACHE)
            made.append(name)
    except WorkerFailure as fault:
        raise WorkerFailure(fault.outcome, f"while Triton compiled its kernels: {fault.reason}") from None
    finally:
        if worker is not None:
            worker.close()
            record.write_text(json.dumps(made))
    return bool(missing)


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
