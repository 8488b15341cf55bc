"""Whose code a Python candidate's process runs on a CPU, where no profile names kernels: its own, a library's, or neither.

A fresh process makes timed calls, as in any comparison, and is stopped in some of them at a random moment; the kernel says where each of
its threads stands. A candidate reaches the BLAS inside numpy and torch by ctypes or by an extension of its own; what it runs there is
seen whichever way it came. It may notice that it was stopped, so a request has one such moment, and whose calls take longer from
the first one on is not believed.
"""

from __future__ import annotations

import filecmp
import os
import random
import re
import signal
import statistics
import time
from contextlib import suppress
from pathlib import Path

from harness.judge.session import EvaluationSession
from harness.processes.worker import Worker
from harness.records import Build, Cache
from harness.timing.sampling import Arm
from kernels.spec import Frozen, Workload

LOOKS, PATIENCE_S = 60, 12.0
UNSEEN, FEWEST_UNSEEN = 8, 3
"""Samples before the first in which it is stopped, and the fewest of them."""
WATCHED = 0.5
"""Share of the samples that follow in which it is."""
SLOWER, TRIES = 1.2, 2
"""Its samples in which it is not stopped may take so many times the CPU time of those before the first in which it was, in one of so many
processes: others may have come to use the machine."""
STOPPED_S = 5e-3
NEITHER = re.compile(
    r"^\[v|/python[0-9.]*$|libpython|/ld-|/lib(c|m|dl|rt|pthread|gcc_s|util|mvec)[-.]|libtorch_python|libc10|libshm|libtorch\.so|/torch/_C|libgomp|libiomp|libomp|lib-dynload|libstdc\+\+|_ctypes"
)
"""Names of the interpreter, the system's own libraries, bindings and thread pools, which stand between it and the code that works."""
WRITTEN = re.compile(r"^/memfd:| \(deleted\)$")
"""Names of files that a candidate may have made: what is in them it has called as it liked."""
TORCH = re.compile(r"libtorch_cpu|libtorch_cuda|libmkl|dnnl")
"""Names of the libraries that torch's own operators run."""
MOST_LIBRARY = 0.25
LEAST_OWN = 0.02
DISPATCH_US = 30.0
"""Microseconds of a call that torch's dispatcher takes at most (empty_like, views, the copy of what is returned):
they are nobody's work."""
FEWEST = 8
COPIED, FEWEST_COPIES = 0.5, 3
"""Of the looks that the copies of what it returns must have had, by what its process says that they took, the share that must have been in the system's
code, but for so many: what is said to be a copy is nobody's time, and who writes where it is copied to makes none."""


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
    copied: float = 0.0
    """Share of its calls' time that its process says to be copies of what they return, laid out as the outputs are."""
    carried: float = 0.0
    """Share of its calls' time that copies of its state into the module and out of it take at least, which it may not leave out."""
    slower: float = 1.0
    """CPU time of a call after it was first stopped over that before."""

    @property
    def looks(self) -> int:
        return self.own + self.library + self.neither


def watch(session: EvaluationSession, build: Build, workload: Workload, cache: Cache = "hot") -> CodeShares:
    """What its threads run in timed calls of that workload; nothing where the kernel does not say. Raises WorkerFailure."""
    for _ in range(TRIES):
        seen = _watch_once(session, build, workload, cache)
        if seen.slower <= SLOWER:
            break
    return seen


def _watch_once(session: EvaluationSession, build: Build, workload: Workload, cache: Cache) -> CodeShares:
    session.pool.drop(build.candidate)
    worker = session.pool.get(build)
    comparison, arm = session.open_comparison(workload, cache), Arm("candidate", worker)
    session.pool.settle()
    comparison.prepare(arm)
    request_s = arm.whole_s * arm.calls
    late = time.monotonic() + PATIENCE_S
    unseen = min(UNSEEN, max(FEWEST_UNSEEN, int(PATIENCE_S / 4 / (request_s * arm.rounds))))
    places: list[int] = []
    before: list[float] = []
    after: list[float] = []
    stopped, ahead = False, 0

    def look() -> None:
        nonlocal ahead, stopped
        if not ahead:
            time.sleep(random.uniform(0, request_s))
            places.extend(_places(worker.process.pid))
            stopped = True
        ahead -= 1

    while len(places) < LOOKS and time.monotonic() < late:
        watched, ahead = len(before) >= unseen and random.random() < WATCHED, random.randrange(arm.rounds)
        worker.meanwhile = look if watched else None
        try:
            comparison.sample(arm)
        finally:
            worker.meanwhile = None
        if not watched:
            (after if stopped else before).append(arm.cpu[-1])
    with suppress(OSError):
        maps = Path(f"/proc/{worker.process.pid}/maps").read_text()
    seen = _sorted(places, maps, str(worker.scratch), arm.pace_s * 1e6, _own_files(worker, Path(build.artefact)))
    slower = statistics.median(after) / max(statistics.median(before), 1e-9) if after else 1.0
    copied = statistics.median(plain for plain, _other in arm.copied) / arm.whole_s if arm.copied else 0.0
    carried = min(1.0, session.rules.carried_s(workload) / arm.whole_s)
    return seen.model_copy(update={"slower": slower, "copied": copied, "carried": carried})


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
        path = next((path for low, high, path in ranges if low <= place < high), "")
        written = bool(path) and (path.startswith(scratch) or bool(WRITTEN.search(path)))
        if not path or (path[0] == "[" and not NEITHER.search(path)) or path in own:
            kind = "own"  # memory that is no file's, too: what it compiled or wrote there
        elif NEITHER.search(path) and not written:
            kind = "neither"
        else:  # whatever it is called: of files that it wrote itself nobody knows what they were copied from
            kind = "library"
            counts["beside_torch"] += written or not TORCH.search(path)
            names.add(path.rpartition("/")[2].split(".so")[0][:40])
        counts[kind] += 1
    return CodeShares(**counts, names=tuple(sorted(names)), call_us=call_us)


def doubt(seen: CodeShares, *, libraries: bool) -> str:
    """Why a gain may be a library's, or "". `libraries`: they may do a part of the work."""
    if seen.looks < FEWEST:
        return f"whose code did the work is not known: it was seen at work {seen.looks} times, {FEWEST} are needed"
    share = seen.library / seen.looks
    said = f"in {seen.library} of {seen.looks} looks it ran code of {' and '.join(seen.names)}, in {seen.own} its own"
    spent = share * seen.call_us >= DISPATCH_US and share >= MOST_LIBRARY
    allowed = libraries and seen.own >= LEAST_OWN * seen.looks and seen.beside_torch < MOST_LIBRARY * seen.looks
    if spent and not allowed:
        return f"a library did the work: {said}"
    if seen.neither < COPIED * seen.copied * seen.looks - FEWEST_COPIES:
        return f"it copies what it returns in {seen.copied:.0%} of its time, as its process says, and was seen there in {seen.neither} of {seen.looks} looks"
    if seen.library < COPIED * seen.carried * seen.looks - FEWEST_COPIES:
        return f"its state is copied in {seen.carried:.0%} of its time, and torch was seen to copy in {seen.library} of {seen.looks} looks"
    if seen.slower > SLOWER:
        return f"whose code did the work is not known: its calls took {seen.slower:.2f} times as long once it had been looked at"
    return ""
