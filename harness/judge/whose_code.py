"""Whose code a Python candidate's process runs on a CPU, where no profile names kernels: its own, a library's, or neither.

The process is stopped at random moments while it makes the calls that are timed, and the kernel says where each of its threads
stands. A candidate reaches the BLAS inside numpy and torch by ctypes or by an extension of its own; what it runs there is
seen whichever way it came.
"""

from __future__ import annotations

import filecmp
import os
import random
import re
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

from harness.checks.drawing import distributions
from harness.judge.session import EvaluationSession, map_buffers
from harness.processes.worker import Worker, WorkerFailure
from harness.records import Build
from harness.timing.sampling import read_seconds
from kernels.spec import Frozen, Workload

LOOKS, PATIENCE_S = 60, 10.0
REPEAT = 1000
INTERVAL_S = 2e-3
STOPPED_S = 5e-3
NEITHER = re.compile(
    r"^\[|/python[0-9.]*$|libpython|/ld-|/lib(c|m|dl|rt|pthread|gcc_s|util|mvec)[-.]|libtorch_python|libc10|libshm|libtorch\.so|/torch/_C|libgomp|libiomp|libomp|lib-dynload|libstdc\+\+|_ctypes"
)
"""Names of the interpreter, the system's own libraries, bindings and thread pools, which stand between it and the code that works."""
TORCH = re.compile(r"libtorch_cpu|libtorch_cuda|libmkl|dnnl")
"""Names of the libraries that torch's own operators run."""
MOST_LIBRARY = 0.25
LEAST_OWN = 0.02
DISPATCH_US = 30.0
"""Microseconds of a call that torch's dispatcher takes at most (empty_like, views, the copy of what is returned):
they are nobody's work."""
FEWEST = 20


class CodeShares(Frozen):
    """In how many looks a thread stood in code of each kind."""

    own: int = 0
    library: int = 0
    neither: int = 0
    beside_torch: int = 0
    """Looks in code of a library that no operator of torch runs; they are in `library`, too."""
    names: tuple[str, ...] = ()
    """Names of the libraries."""
    call_us: float = 0.0

    @property
    def looks(self) -> int:
        return self.own + self.library + self.neither


def watch(session: EvaluationSession, build: Build, workload: Workload) -> CodeShares:
    """What its threads run in calls of that workload; nothing where the kernel does not say. Raises WorkerFailure."""
    worker = session.pool.get(build)
    bench = map_buffers(session, worker, workload, 1)
    case = session.cases.get(workload, distributions(session.spec, {})[0], {})
    bench.write(0, case.inputs)
    message = bench.message(op="host", repeat=REPEAT)
    failed: list[WorkerFailure] = []
    seconds: list[float] = []
    enough = threading.Event()

    def call() -> None:
        try:
            while not enough.is_set():
                seconds.append(read_seconds(worker.request(message, timeout_s=session.call_s)))
        except WorkerFailure as fault:
            failed.append(fault)

    thread = threading.Thread(target=call)
    places: list[int] = []
    late = time.monotonic() + PATIENCE_S
    thread.start()
    try:
        while thread.is_alive() and len(places) < LOOKS and time.monotonic() < late:
            time.sleep(random.uniform(0, INTERVAL_S))
            places += _places(worker.process.pid)
        with suppress(OSError):
            maps = Path(f"/proc/{worker.process.pid}/maps").read_text()
    finally:
        enough.set()
        thread.join()
    if failed:
        raise failed[0]
    return _sorted(places, maps, str(worker.scratch), min(seconds) * 1e6, _own_files(worker, Path(build.artefact)))


def _own_files(worker: Worker, artefact: Path) -> frozenset[str]:
    """The files that its build made, as its process has them: those that it has written or changed since are not among them."""
    if artefact.is_dir():
        folder = worker.scratch / "candidate"
        pairs = [(one, folder / one.relative_to(artefact)) for one in artefact.rglob("*.so")]
    else:
        pairs = [(artefact, worker.code / "candidate.so")]
    return frozenset(str(own) for made, own in pairs if own.is_file() and filecmp.cmp(made, own, shallow=False))


def _places(pid: int) -> list[int]:
    """Where those of its threads that are at work stand; it runs on afterwards."""
    found = []
    try:
        if _state(pid) == "T":  # between two requests
            return []
        os.killpg(pid, signal.SIGSTOP)
        late = time.monotonic() + STOPPED_S
        while _state(pid) not in "Tt" and time.monotonic() < late:
            time.sleep(2e-5)
        for task in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError, ValueError):
                number, *rest = Path(f"/proc/{pid}/task/{task}/syscall").read_text().split()
                if number == "-1":  # of its own code, not within a system call
                    found.append(int(rest[1], 16))
        os.killpg(pid, signal.SIGCONT)
    except (OSError, ValueError):
        return []
    return found


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def _sorted(
    places: list[int], maps: str, scratch: str, call_us: float, own: frozenset[str] = frozenset()
) -> CodeShares:
    ranges = []
    for line in maps.splitlines():
        fields = line.split(maxsplit=5)
        if "x" in fields[1]:
            low, high = (int(end, 16) for end in fields[0].split("-"))
            ranges.append((low, high, fields[5] if len(fields) > 5 else ""))
    counts, names = {"own": 0, "library": 0, "neither": 0, "beside_torch": 0}, set()
    for place in places:
        path = next((path for low, high, path in ranges if low <= place < high), None)
        if path is None or path == "" or path in own:
            kind = "own"  # memory that is no file's, too: what it compiled or wrote there
        elif NEITHER.search(path):
            kind = "neither"
        else:  # whatever it is called: of files that it wrote itself nobody knows what they were copied from
            kind = "library"
            counts["beside_torch"] += not TORCH.search(path) or path.startswith(scratch)
            names.add(path.rpartition("/")[2].split(".so")[0][:40])
        counts[kind] += 1
    return CodeShares(**counts, names=tuple(sorted(names)), call_us=call_us)


def doubt(seen: CodeShares, *, libraries: bool) -> str:
    """Why a gain may be a library's, or "". `libraries`: they may do a part of the work."""
    if seen.looks < FEWEST:
        return f"whose code did the work is not known: it was seen at work {seen.looks} times, {FEWEST} are needed"
    share = seen.library / seen.looks
    said = f"in {seen.library} of {seen.looks} looks it ran code of {' and '.join(seen.names)}, in {seen.own} its own"
    if share * seen.call_us < DISPATCH_US or share < MOST_LIBRARY:
        return ""
    if libraries and seen.own >= LEAST_OWN * seen.looks and seen.beside_torch < MOST_LIBRARY * seen.looks:
        return ""
    return f"a library did the work: {said}"
