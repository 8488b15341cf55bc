"""The parent's end of harness/farside/python_worker.py: one fork server for each device, and the workers that it forks."""

from __future__ import annotations

import atexit
import importlib.util
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from harness.device import cuda_library
from harness.farside import sandbox
from harness.processes.spares import Spares
from harness.processes.worker import LIMITS, Worker, name_own_gpu, signal_group
from kernels.spec import Scalar, Size, Spec, Tensor

FAR_SIDE = Path(__file__).parent.parent / "farside" / "python_worker.py"
WARM_S = 120.0
"""`import torch` takes 1 to 5 s, on a busy machine with a cold disk ten times that."""

STATIC = "returns the same output tensor call after call: whoever keeps a result must copy it"

# The kernel ends a fork server with the *thread* that started it, and a graph's nodes run on threads that come and go.
_starter = ThreadPoolExecutor(1, thread_name_prefix="zygote-starter")


def site_packages() -> str:
    """The folder that this interpreter's torch is in. Raises ImportError where there is none."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise ImportError("PyTorch is not installed")
    return str(Path(spec.origin).parent.parent)


class ForkServer:
    """A process that has imported torch, never touches CUDA, loads no candidate, and forks workers. Close it."""

    def __init__(self, device: str, *, libraries: bool = False, waiting: int = 0) -> None:
        """`libraries`: torch's computing operators stay, as a problem's Model needs them.

        `waiting`: how many workers are kept that have the device at hand already, from the first one that is asked for on.
        """
        self.device = device
        self.spares = Spares(partial(SpareWorker, self), waiting)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control, self.site, self.lock = ours, site_packages(), threading.Lock()
        cores = str(len(os.sched_getaffinity(0)))
        environment = sandbox.clean_environment("/nonexistent") | {
            "OMP_NUM_THREADS": cores,
            "OPENBLAS_NUM_THREADS": "1",  # it would start its threads when numpy is imported, before the fork
            "OMP_WAIT_POLICY": "passive",
            "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # torch would count devices through the driver, which no fork survives
            "KINETO_LOG_LEVEL": "99",
            "CUDA_MODULE_LOADING": "LAZY",  # torch's libraries hold a gigabyte of kernels
            **name_own_gpu(),
        }
        if device != "cuda":
            environment["CUDA_VISIBLE_DEVICES"] = ""
            # Before torch._dynamo imports Triton, whose own functions are then made for a compiler.
            environment["TRITON_INTERPRET"] = "1"
        command = [sys.executable, "-I", str(FAR_SIDE), "zygote", str(theirs.fileno()), str(os.getpid()), self.site]
        self.process: subprocess.Popen = _starter.submit(
            subprocess.Popen,
            [*command, "libraries" if libraries else "none"],
            pass_fds=[theirs.fileno()],
            env=environment,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        ).result()
        theirs.close()
        self.control.settimeout(WARM_S)
        self.ready = False

    def fork(self, folder: Path, channel: socket.socket, log: int) -> ForkedProcess:
        """A worker whose working folder is `folder`. Raises RuntimeError where the fork server has died."""
        ours, theirs = socket.socketpair()
        # Everything of the environment that is not the fork server's own but the worker's: what lies in its folder.
        own = sandbox.clean_environment(str(folder))
        environment = {name: value for name, value in own.items() if value.startswith(str(folder))}
        asked = {"environment": environment, "folder": str(folder), "threads": len(os.sched_getaffinity(0))}
        request = json.dumps(asked).encode()
        try:
            with self.lock:
                if not self.ready:
                    self.ready = bool(self.control.recv(16))
                socket.send_fds(self.control, [request], [channel.fileno(), log, theirs.fileno()])
                answer = self.control.recv(4096)
            pid = json.loads(answer)["pid"]
        except (OSError, ValueError) as error:
            ours.close()
            raise RuntimeError(f"the process that forks Python workers has ended: {self._said() or error}") from None
        except BaseException:  # Ctrl-C: its answer would be taken for that to the next request
            ours.close()
            self.process.kill()
            raise
        finally:
            theirs.close()
        return ForkedProcess(pid, ours)

    def _said(self) -> str:
        self.process.kill()
        _, text = self.process.communicate()
        lines = text.decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def close(self) -> None:
        """End it, and with it the workers that are left. Safe to call twice."""
        self.spares.close()
        self.control.close()
        self.process.kill()
        self.process.wait()
        if self.process.stderr is not None:
            self.process.stderr.close()


WAITING = 4
"""Workers of problems on a GPU that wait ready: up to four of them start between two timings."""
_shared: dict[tuple[str, bool], ForkServer] = {}
_sharing = threading.Lock()


def get_fork_server(device: str, *, libraries: bool) -> ForkServer:
    """One fork server a kind for this whole process, started where it is not there; it ends with the process.

    A campaign opens hundreds of problems, and `import torch` takes longer than most of them.
    """
    with _sharing:
        found = _shared.get((device, libraries))
        if found is None or not found.alive:
            if found is not None:
                found.close()
            else:
                atexit.register(_close_shared, device, libraries)
            waiting = WAITING if device == "cuda" and libraries else 0
            found = _shared[device, libraries] = ForkServer(device, libraries=libraries, waiting=waiting)
        return found


def _close_shared(device: str, libraries: bool) -> None:
    _shared.pop((device, libraries)).close()


class ForkedProcess:
    """A grandchild, with what subprocess.Popen offers of a child; its pid stays its own until it was waited for."""

    def __init__(self, pid: int, status: socket.socket) -> None:
        self.pid, self.status = pid, status
        self.returncode: int | None = None

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            poll = select.poll()
            poll.register(self.status, select.POLLIN)
            if not poll.poll(None if timeout is None else timeout * 1e3):
                raise subprocess.TimeoutExpired("a forked worker", timeout or 0)
            told = self.status.recv(16)
            self.returncode = int(told) if told else -9  # the fork server has died, and its workers with it
            self.status.close()
        return self.returncode


class PythonWorker(Worker):
    """A worker that calls its candidate with torch tensors: a Python module or a torch extension."""

    ours = False
    """Whether it is torch.compile's: it is timed, although it may start compilers."""
    patience_s = 0.0
    """Seconds that a load or call may take at least, where it compiles or is a user's: 0 for what its caller allows."""

    def __init__(
        self,
        fork_server: ForkServer,
        spec: Spec,
        backend: str,
        *,
        device: str,
        artefact: Path,
        dtypes: tuple[str, ...],
        company: Path | None = None,
        limits: sandbox.ProcessLimits = LIMITS,
        compilers: bool = False,
        ours: bool = False,
        patience_s: float = 0.0,
    ) -> None:
        """`compilers`: it may start programs, in the same box; never one that is judged, but for one of `ours`."""
        self.fork_server, self.spec, self.backend, self.compilers = fork_server, spec, backend, compilers
        self.ours, self.patience_s = ours, patience_s
        symbols: dict[str, tuple[str, ...]] = dict.fromkeys(dtypes, (spec.entry_name,))
        super().__init__(device=device, artefact=artefact, symbols=symbols, company=company, limits=limits)

    def request(self, message: dict[str, Any], **how: Any) -> dict:
        if message["op"] == "enter" and self.compilers:
            message = message | {"box": message["box"] | {"allow_exec": True}}
        if self.patience_s and message["op"] in ("load", "call", "plan"):
            how["timeout_s"] = max(how.get("timeout_s") or 0.0, self.patience_s)
        answer = super().request(message, **how)
        self.returned |= {name for name in ("copies", "shares") if answer.get(name) is True}
        if answer.get("static") is True and STATIC not in self.warnings:
            self.warnings.append(STATIC)
        return answer

    def _spare(self) -> Worker | None:
        return None if self.compilers else self.fork_server.spares.take(self.limits)

    def _start(self, theirs: socket.socket) -> ForkedProcess:
        return self.fork_server.fork(self.scratch, theirs, self.log.fileno())

    def _own(self, artefact: Path) -> Path:
        if artefact.is_dir():
            return Path(shutil.copytree(artefact, self.scratch / "candidate"))
        return super()._own(artefact)

    def _visible(self) -> dict[str, Any]:
        cuda = [str(Path(cuda_library()).parent)] if self.device == "cuda" else []
        return {"readable": [*sandbox.interpreter_paths(), self.fork_server.site, *cuda]}

    def close(self) -> None:
        if (
            self.compilers and self.process.returncode is not None
        ):  # what it started is in its group, and may outlive it
            signal_group(self.process.pid, signal.SIGKILL)
        self.compilers = False
        super().close()

    def foreign_code(self) -> str:
        """For a Python candidate the far side says what it has loaded, and on a GPU the profile whose kernels ran."""
        return ""

    def _parent(self) -> int:
        return self.fork_server.process.pid

    def _has_children(self) -> bool:
        return self.compilers and not self.ours

    def _entry(self) -> dict[str, Any]:
        kinds = {Tensor: "tensor", Size: "size", Scalar: "scalar"}
        arguments = [
            [kinds[type(a)], a.name, *((a.role, *a.list_and_place) if isinstance(a, Tensor) else ("", "", None))]
            for a in self.spec.arguments
        ]
        return {
            "backend": self.backend,
            "entry": self.spec.entry_name,
            "arguments": arguments,
            "site": self.fork_server.site,
            "compilers": self.compilers,
            "ours": self.ours,
        }


class SpareWorker(PythonWorker):
    """A process that is in its box and has the device at hand, and has loaded nothing: the next one that is asked for."""

    def __init__(self, fork_server: ForkServer, limits: sandbox.ProcessLimits) -> None:
        self.fork_server, self.device, self.limits, self.compilers = fork_server, fork_server.device, limits, False
        self._wait_ready(site=fork_server.site)
