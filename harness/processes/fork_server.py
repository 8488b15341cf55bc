"""The parent's end of harness/farside/python_worker.py: one fork server for each device, and the workers that it forks."""

from __future__ import annotations

import atexit
import importlib.util
import os
import shutil
import signal
import socket
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

from harness.device import cuda_library
from harness.farside import sandbox
from harness.processes.forks import ForkedProcess, ForkParent
from harness.processes.spares import Spares
from harness.processes.worker import LIMITS, Worker, signal_group
from kernels.spec import Scalar, Size, Spec, Tensor

FAR_SIDE = Path(__file__).parent.parent / "farside" / "python_worker.py"

STATIC = "returns the same output tensor call after call: whoever keeps a result must copy it"


def site_packages() -> str:
    """The folder that this interpreter's torch is in. Raises ImportError where there is none."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise ImportError("PyTorch is not installed")
    return str(Path(spec.origin).parent.parent)


def ffi_libraries() -> list[str]:
    """The folder of the library that kernels over TVM-FFI are linked to, which need not lie where torch does; empty where there is none."""
    found = importlib.util.find_spec("tvm_ffi")
    return [str(Path(found.origin).parent / "lib")] if found is not None and found.origin else []


class ForkServer(ForkParent):
    """A process that has imported torch, never touches CUDA, loads no candidate, and forks workers. Close it."""

    def __init__(self, device: str, *, libraries: bool = False, waiting: int = 0) -> None:
        """`libraries`: torch's computing operators stay, as a problem's Model needs them.

        `waiting`: how many workers are kept that have the device at hand already, from the first one that is asked for on.
        """
        self.device = device
        self.spares = Spares(partial(SpareWorker, self), waiting)
        self.site = site_packages()
        cores = str(len(os.sched_getaffinity(0)))
        environment = sandbox.clean_environment("/nonexistent") | {
            "OMP_NUM_THREADS": cores,
            "OPENBLAS_NUM_THREADS": "1",  # it would start its threads when numpy is imported, before the fork
            "OMP_WAIT_POLICY": "passive",
            "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # torch would count devices through the driver, which no fork survives
            "KINETO_LOG_LEVEL": "99",
            "CUDA_MODULE_LOADING": "LAZY",  # torch's libraries hold a gigabyte of kernels
        }
        if device != "cuda":
            environment["CUDA_VISIBLE_DEVICES"] = ""
            # Before torch._dynamo imports Triton, whose own functions are then made for a compiler.
            environment["TRITON_INTERPRET"] = "1"
        kind = "libraries" if libraries else "none"
        super().__init__(
            lambda end: [sys.executable, "-I", str(FAR_SIDE), "zygote", str(end), str(os.getpid()), self.site, kind],
            environment,
        )

    def close(self) -> None:
        self.spares.close()
        super().close()


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


class PythonWorker(Worker):
    """A worker that calls its candidate with torch tensors: a Python module or a torch extension."""

    fork_server: ForkServer
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
        return {"readable": [*sandbox.interpreter_paths(), self.fork_server.site, *ffi_libraries(), *cuda]}

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
