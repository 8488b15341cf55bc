"""One candidate, one process: the parent's end of harness/farside/worker.py."""

from __future__ import annotations

import functools
import itertools
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.device import ArgumentBuffers, cuda_library
from harness.farside import sandbox
from harness.farside.worker import send
from harness.processes import libraries, scratch
from harness.processes.forks import NATIVE_SIDE, ForkedProcess, ForkParent, get_native_server, start_process
from harness.processes.spares import Spares
from harness.processes.watchdog import Watchdog, read_at_once
from harness.records import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

ANSWER_BYTES = 1 << 20  # an answer is a few numbers; a longer one is an attack on our memory
START_S = 30.0


class WorkerFailure(Exception):
    """The candidate failed in its worker: what to call it, and why."""

    def __init__(self, outcome: Outcome, reason: str) -> None:
        super().__init__(reason)
        self.outcome, self.reason = outcome, reason


REQUEST_S = 60.0
GRACES, MOST_GRACES, STARVED = 4, 16, 0.25
"""Parts of its time that a late answer is waited for one by one, at most, and the share of one for which its threads must have waited for a
core for the next: on a machine that others use a second is less."""
STOP_S = 5.0
REFUSALS = ("INCORRECT", "WRONG_SHAPE", "WRONG_DTYPE", "CHEATED", "MISSING_ENTRY")
"""Outcomes that a far side may give its own candidate; each is a failure, so a lie gains nothing."""
LIMITS = sandbox.ProcessLimits(memory_bytes=8 << 30, threads=512)


def _rests(task: str) -> bool:
    """Whether the thread is stopped, or no more."""
    try:
        return read_at_once(f"{task}/stat").rpartition(")")[2].split(maxsplit=1)[0] in "TtZX"
    except OSError:
        return True


def signal_group(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, number)


class Worker:
    """A process that has entered the sandbox and loaded one candidate. Close it; a failure closes it too.

    It runs while it is asked (`request`) and is stopped else: what a candidate does between two questions would be nobody's
    time, on memory that it shares with whoever is judged next.
    """

    returned: frozenset[str] = frozenset()
    """What is known of what its calls return: `copies`, it was copied into the outputs in the calls' time, as no user's call has it;
    `shares`, it lay in the memory of an argument."""
    looked_at = ("", "")
    """The maps that `foreign_code` has looked at last, and what it has found."""
    fork_server: ForkParent | None = None
    """Whoever forks its process; None where it is a child of this one."""
    meanwhile: Callable[[], None] | None = None
    """What is done once it has been asked, while it works."""

    def __init__(
        self,
        *,
        device: str,
        artefact: Path,
        symbols: dict[str, tuple[str, ...]],
        company: Path | None = None,
        limits: sandbox.ProcessLimits = LIMITS,
    ) -> None:
        """`company`: the library of what stands around a timed call (harness/timing/neighbours.py)."""
        self.device, self.limits = device, limits
        self._enter()
        try:
            self._load(artefact, symbols, company)
        except BaseException:
            self.close()
            raise

    def _enter(self) -> None:
        """The process, in its box, with nothing of a candidate yet: one that waits, or a new one."""
        if (spare := self._spare()) is None:
            self._begin()
            return
        self.__dict__.update({name: value for name, value in vars(spare).items() if name not in vars(self)})
        self.move()

    def _spare(self) -> Worker | None:
        return get_spares().take(self.limits) if self.device == "cuda" else None

    def _wait_ready(self, **more: Any) -> None:
        """A new process that takes the device in hand, and waits for what it is to load."""
        self._begin()
        try:
            self.request({"op": "warm", **self._device(), **more}, timeout_s=START_S)
        except BaseException:
            self.close()
            raise

    def _begin(self) -> None:
        self.scratch = scratch.folder("worker")
        self.code = scratch.folder("code")
        """Folder of the files that the worker loads, which it cannot write: a file under an expected name is the one
        that we put there."""
        self.loaded: set[str] = set()
        """Those files."""
        self.siblings = itertools.count(1)
        """Numbers of the candidates beside its first."""
        self.mapped: set[int] = set()
        self.warnings: list[str] = []
        ours, theirs = socket.socketpair()
        self.channel = ours
        self.log = (self.scratch / "output.txt").open("w+b")
        self.watchdog: Watchdog | None = None
        try:
            self.process: subprocess.Popen | ForkedProcess = self._start(theirs)
        except BaseException:
            self._let_go()
            raise
        finally:
            theirs.close()
        try:
            self.move()  # whoever started or forked it for us
            gpu = self.device == "cuda"
            self.watchdog = Watchdog(
                self.process.pid, self.limits, scratch=str(self.scratch), tree=self._has_children()
            )
            box = {
                "scratch": str(self.scratch),
                **self._visible(),
                "devices": [],
                "limits": self.limits._asdict(),
                "gpu": gpu,
                "allow_exec": False,
                "parent": self._parent(),
            }
            box["readable"] = [*box["readable"], str(self.code)]
            message = {"op": "enter", "box": box, **self._device()}
            self.active: list[str] = self.request(message, timeout_s=START_S)["active"]
            self.own_code = libraries.list_mapped(libraries.read_maps(self.process.pid), gpu=gpu)
        except BaseException:
            self.close()
            raise

    def _load(self, artefact: Path, symbols: dict[str, tuple[str, ...]], company: Path | None) -> None:
        load = {"op": "load", "path": str(self._own(artefact)), **self._device(), **self._entry()}
        if company is not None:
            load["company"] = self._copied(company, "company.so")
        load["symbols"] = {dtype: list(names) for dtype, names in symbols.items()}
        found = self.request(load, timeout_s=START_S).get("found")
        if not isinstance(found, dict):
            raise WorkerFailure(Outcome.CHEATED, "the worker answered outside the protocol: it says not what it found")
        self.found: dict[str, str] = found

    def _device(self) -> dict[str, Any]:
        gpu = self.device == "cuda"
        return {"gpu": gpu, "cuda_library": cuda_library() if gpu else "", "device": 0}

    def move(self) -> None:
        """Its threads to the cores on which whoever asks may run."""
        cores = os.sched_getaffinity(0)
        with suppress(OSError):  # threads come and go, and so may the process
            for task in os.listdir(f"/proc/{self.process.pid}/task"):
                os.sched_setaffinity(int(task), cores)

    # What a worker of another kind does otherwise (harness/processes/fork_server.py).

    def _start(self, theirs: socket.socket) -> subprocess.Popen | ForkedProcess:
        """The process, at the other end of the channel, in a session of its own."""
        environment = self._threads()
        if self.device == "cpu":
            self.fork_server = get_native_server()
            return self.fork_server.fork(self.scratch, theirs, self.log.fileno(), environment)
        return start_process(
            [*sandbox.program(NATIVE_SIDE), str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            cwd=self.scratch,
            env=sandbox.clean_environment(str(self.scratch)) | environment,
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def _own(self, artefact: Path) -> Path:
        """The candidate copied beside its scratch folder: it need not see the store at all."""
        return Path(self._copied(artefact, "candidate.so"))

    def _copied(self, library: Path, name: str) -> str:
        self.loaded.add(str(self.code / name))
        return str(shutil.copyfile(library, self.code / name))

    def _visible(self) -> dict[str, Any]:
        """What of the machine's files it may read: a native candidate the libraries that it is linked to, no folder."""
        gpu = self.device == "cuda"
        if known := libraries.list_allowed(gpu=gpu):
            return {"readable": list(known), "system": False}
        return {"readable": [*sandbox.interpreter_paths(), *([str(Path(cuda_library()).parent)] if gpu else [])]}

    def foreign_code(self) -> str:
        """What its process runs that is not the candidate's own code, one sentence, or ""."""
        maps = libraries.read_maps(self.process.pid)
        if maps == self.looked_at[0]:  # thousands of lines with a GPU's memory, after each timed request
            return self.looked_at[1]
        found = libraries.foreign(maps, self.own_code, frozenset(self.loaded), gpu=self.device == "cuda")
        self.looked_at = maps, found
        return found

    def _parent(self) -> int:
        return os.getpid() if self.fork_server is None else self.fork_server.process.pid

    def _has_children(self) -> bool:
        """Whether the watchdog is to count what it starts, which takes some time of a core: of none that is timed."""
        return False

    def _entry(self) -> dict[str, Any]:
        """What else the far side must know to load the candidate."""
        return {}

    def _threads(self) -> dict[str, str]:
        cores = len(os.sched_getaffinity(0))
        if self.device == "cuda":
            return {"CUDA_MODULE_LOADING": "EAGER"}
        # As many threads as cores, so that none has to move. The sandbox refuses threads that pin themselves: one that
        # pins another process's threads would be slowing its rival.
        # Threads wait awake for some 50 us, then sleep: with libgomp's default a barrier on a machine that others use too
        # spins away the time slice of the thread that it waits for (12 ms in place of 0.3 ms were seen).
        return {"OMP_NUM_THREADS": str(cores), "GOMP_SPINCOUNT": "20000"}

    def map(self, buffers: ArgumentBuffers) -> None:
        message, fds = buffers.description()
        self.request({"op": "map", **message}, fds=fds)
        self.mapped.add(buffers.id)

    def unmap(self, buffers: ArgumentBuffers) -> None:
        if buffers.id in self.mapped:
            self.request({"op": "unmap", "id": buffers.id})
            self.mapped.discard(buffers.id)

    def request(self, message: dict[str, Any], *, timeout_s: float | None = None, fds: list[int] | None = None) -> dict:
        """Let it go on, ask, wait for the answer and stop it. Raises WorkerFailure where the worker died, hung, failed or
        talked nonsense."""
        limit = timeout_s or REQUEST_S
        late = time.monotonic() + limit
        self.channel.settimeout(limit)
        self.proceed()
        try:
            if fds:
                self._send_with(message, fds)
            else:
                send(self.channel, message)
            if self.meanwhile is not None:
                self.meanwhile()
            answer = self._answer(late, limit / GRACES)
            self.pause()
        except TimeoutError:
            self.close()
            raise WorkerFailure(Outcome.TIMEOUT, f"no answer within {limit:.0f} s") from None
        except (OSError, ValueError, EOFError, RecursionError) as error:
            raise self._death(error) from None
        except BaseException:  # Ctrl-C: its answer would be taken for that to the next question
            self.close()
            raise
        if "error" in answer:
            text = str(answer["error"])[:2000]
            self.close()
            if answer.get("outcome") in REFUSALS:
                raise WorkerFailure(Outcome(answer["outcome"]), text)
            out_of_memory = "out of memory" in text or "MemoryError" in text
            raise WorkerFailure(Outcome.OUT_OF_RESOURCES if out_of_memory else Outcome.RUNTIME_ERROR, text)
        return answer

    def _send_with(self, message: dict[str, Any], fds: list[int]) -> None:
        data = json.dumps(message).encode()
        socket.send_fds(self.channel, [struct.pack("<I", len(data)) + data], fds)

    def _answer(self, late: float, grace_s: float = 0.0) -> dict[str, Any]:
        """Raises TimeoutError at that time, however little at once it sends, or later by some graces of so many seconds, in each of which its
        threads waited for a core: a baseline was a TIMEOUT on cores that eight others used. Descriptors that come along are let go."""
        graces, waited_s = 0, 0.0

        def received(count: int) -> bytes:
            nonlocal late, graces, waited_s
            data = bytearray()
            while len(data) < count:
                if (left := late - time.monotonic()) <= 0:
                    now_s = self.waited_s() if grace_s else 0.0
                    if not grace_s or graces == MOST_GRACES or (graces and now_s - waited_s < STARVED * grace_s):
                        raise TimeoutError
                    graces, waited_s, late, left = graces + 1, now_s, time.monotonic() + grace_s, grace_s
                self.channel.settimeout(left)
                try:
                    part = self.channel.recv(count - len(data))
                except TimeoutError:
                    continue
                if not part:
                    raise EOFError
                data += part
            return bytes(data)

        (size,) = struct.unpack("<I", received(4))
        if size > ANSWER_BYTES:
            raise ValueError("the answer is too long")
        data = received(size)
        answer = json.loads(data)
        if not isinstance(answer, dict):
            raise ValueError("the answer is no object")
        if b"\\ud" in data.lower():  # half of a surrogate pair can be neither kept nor printed
            answer = json.loads(json.dumps(answer, ensure_ascii=False).encode(errors="replace"))
        return answer

    def _death(self, error: Exception) -> WorkerFailure:
        """Why the worker is gone, from its exit status, its watchdog and the last line that it wrote."""
        if self.watchdog and not self.watchdog.reason:
            time.sleep(0.1)  # a poll of the watchdog: the kill and its reason are not one step
        try:
            code: int | None = self.process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            code = None
        killed = self.watchdog.reason if self.watchdog else ""
        last = self.output().strip().splitlines()[-1:] or [""]
        self.close()
        tail = f"; it wrote: {last[0][:300]}" if last[0] else ""
        if killed:
            return WorkerFailure(Outcome.OUT_OF_RESOURCES, killed)
        if code is None:
            return WorkerFailure(Outcome.CHEATED, f"the worker answered outside the protocol ({error}){tail}")
        if code in (-signal.SIGXFSZ, -signal.SIGXCPU):
            return WorkerFailure(Outcome.OUT_OF_RESOURCES, f"it ran over a limit ({signal.Signals(-code).name}){tail}")
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        return WorkerFailure(Outcome.RUNTIME_ERROR, f"the process {how} in the middle of its work{tail}")

    def output(self) -> str:
        """The end of what the candidate wrote to its standard output and error."""
        if self.log.closed:
            return ""
        # By our own descriptor: under that name there may by now be a link to a file that only we may read.
        size = os.fstat(self.log.fileno()).st_size
        return os.pread(self.log.fileno(), 4096, max(0, size - 4096)).decode(errors="replace")

    def pause(self) -> None:
        """Stop all its threads, so that they cannot disturb what is timed next."""
        if self.process.returncode is None:  # else its number may be another's by now
            signal_group(self.process.pid, signal.SIGSTOP)
        if self.watchdog is not None:
            self.watchdog.sleeps()

    def rest(self) -> None:
        """Wait until none of its threads runs any more: one that is stopped within a system call first ends that.

        Raises WorkerFailure where that takes long: it would have gone on beside its rival.
        """
        late, tasks = time.monotonic() + STOP_S, f"/proc/{self.process.pid}/task"
        while self.alive and not all(_rests(f"{tasks}/{one}") for one in os.listdir(tasks)):
            if time.monotonic() > late:
                raise WorkerFailure(
                    Outcome.CHEATED, f"was still within a system call {STOP_S:g} s after it was stopped"
                )
            time.sleep(1e-4)

    def proceed(self) -> None:
        if self.watchdog is not None:
            self.watchdog.goes_on()
        if self.process.returncode is None:
            signal_group(self.process.pid, signal.SIGCONT)

    def pin(self, apart: bool) -> None:
        """Its threads `apart`, one a core in turn, or free again. From here, because the sandbox refuses it to a candidate.

        Threads that wake up together otherwise often share a core for milliseconds while another idles: on two cores
        a parallel loop took 15 ms in place of 8 that way, and 0.75 in place of 0.1 while the first of them was free. One that
        is alone stays free, for what it starts inherits its cores.
        """
        cores = sorted(os.sched_getaffinity(0))
        with suppress(OSError):  # threads come and go, and so may the process
            tasks = sorted(int(name) for name in os.listdir(f"/proc/{self.process.pid}/task"))
            for place, task in enumerate(tasks):
                with suppress(ProcessLookupError):
                    os.sched_setaffinity(task, {cores[place % len(cores)]} if apart and len(tasks) > 1 else cores)

    def put_on(self, core: int) -> None:
        """All its threads on that core, until `pin` says otherwise: only for one that works alone."""
        with suppress(OSError):
            for task in os.listdir(f"/proc/{self.process.pid}/task"):
                os.sched_setaffinity(int(task), {core})

    def cpu_seconds(self) -> float:
        """CPU seconds that all its threads have taken so far, by the kernel's count, which it cannot change; 0 once it is gone."""
        try:
            return time.clock_gettime(
                (~self.process.pid << 3) | 2
            )  # CPUCLOCK_SCHED of a process, as clock_getcpuclockid makes it
        except OSError:
            return 0.0

    def first_thread(self) -> tuple[float, int]:
        """CPU seconds that its first thread took so far, and how often it has waited for something other than a core; zeros where the
        kernel does not say."""
        place = f"/proc/{self.process.pid}/task/{self.process.pid}"
        try:
            taken = int(read_at_once(f"{place}/schedstat").split()[0])
            waits = read_at_once(f"{place}/status").rpartition("\nvoluntary_ctxt_switches:")[2].split()[0]
            return taken * 1e-9, int(waits)
        except (OSError, ValueError, IndexError):
            return 0.0, 0

    def waited_s(self) -> float:
        """Seconds that its threads have waited for a core, all together; 0 where the kernel does not say."""
        found = 0
        with suppress(OSError, ValueError, IndexError):
            for task in Path(f"/proc/{self.process.pid}/task").iterdir():
                found += int((task / "schedstat").read_text().split()[1])
        return found * 1e-9

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        """Begin to end the process, without waiting: with a GPU's memory mapped that takes seconds. `close` it later."""
        if self.process.returncode is None:
            signal_group(self.process.pid, signal.SIGKILL)

    def close(self) -> None:
        """End the process and all that it started, and remove its scratch folder. Safe to call twice."""
        self.kill()
        if self.watchdog is not None:
            self.watchdog.stop()
        self.channel.close()  # a fork that had no group yet when that was killed ends by this
        self.process.wait()
        self._let_go()

    def _let_go(self) -> None:
        self.channel.close()
        self.log.close()
        for folder in (self.scratch, self.code):
            scratch.remove_tree(folder)


class SiblingWorker(Worker):
    """One more native candidate in a worker's process, of the same author: each could do what the other does. What ends the process ends
    both."""

    def __init__(self, first: Worker, artefact: Path, symbols: dict[str, tuple[str, ...]]) -> None:
        """Raises WorkerFailure where it cannot load."""
        self.__dict__.update(vars(first))
        self.number = next(self.siblings)
        self._load(artefact, symbols, None)

    def request(self, message: dict[str, Any], **how: Any) -> dict:
        return super().request({**message, "candidate": self.number}, **how)

    def _own(self, artefact: Path) -> Path:
        return Path(self._copied(artefact, f"candidate-{self.number}.so"))


class SpareNativeWorker(Worker):
    """A process for a native candidate that is in its box and has the device at hand."""

    def __init__(self, limits: sandbox.ProcessLimits, device: str = "cuda") -> None:
        self.device, self.limits = device, limits
        self._wait_ready()


WAITING, WAITING_BESIDE_OTHERS = 8, 4
"""Native workers on a GPU that wait ready: a search takes two, the measurement behind it four, and two come before more may be begun. Fewer where
other GPUs of the host have some, too: the driver starts them one after another."""


@functools.cache
def get_spares() -> Spares:
    """Those of this whole process; they end with it, and nobody waits for that."""
    return Spares(SpareNativeWorker, WAITING)


def time_request(worker: Worker, message: dict[str, Any], *, timeout_s: float | None = None) -> tuple[dict, float]:
    """A request, and the seconds that it took by our own clock, from before its process runs until it is stopped."""
    start = time.perf_counter()
    answer = worker.request(message, timeout_s=timeout_s)
    return answer, time.perf_counter() - start
