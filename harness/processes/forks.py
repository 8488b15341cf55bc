"""The parent's end of a fork server (harness/farside/forks.py): how it is started, asked for a worker, and ended."""

from __future__ import annotations

import atexit
import ctypes
import functools
import json
import os
import select
import socket
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from harness.farside import sandbox

WARM_S = 120.0
"""`import torch` takes 1 to 5 s, on a busy machine with a cold disk ten times that."""
NATIVE_SIDE = Path(__file__).parent.parent / "farside" / "worker.py"
ADDR_NO_RANDOMIZE = 0x40000


@functools.cache
def _starter(_pid: int) -> ThreadPoolExecutor:
    """The thread of this process that starts others: the kernel ends a process with the *thread* that started it, and a graph's nodes run
    on threads that come and go. A fork has none of its parent's threads."""
    return ThreadPoolExecutor(1, thread_name_prefix="process-starter")


def start_process(command: list[str], *, same_addresses: bool = False, **how: Any) -> subprocess.Popen:
    """Start a process that ends with this one at the latest; with `same_addresses` one whose libraries and stack lie where those of every
    other such process lie, and of whatever it forks.

    A binary's speed depends on its addresses: of 80 comparisons of a kernel with itself five differed by 5 to 10 %, steadily
    as long as both processes lived, and none without randomised addresses. What is set here is the starting thread's alone, and
    its children's. Where it is refused, as in Docker, all is as it was.
    """
    return _starter(os.getpid()).submit(_popen, same_addresses, command, **how).result()


def _popen(same_addresses: bool, command: list[str], **how: Any) -> subprocess.Popen:
    libc = ctypes.CDLL(None)
    usual = libc.personality(ctypes.c_ulong(0xFFFFFFFF))
    libc.personality(ctypes.c_ulong(usual | ADDR_NO_RANDOMIZE if same_addresses else usual & ~ADDR_NO_RANDOMIZE))
    return subprocess.Popen(command, **how)


class ForkParent:
    """A process that forks workers, and has loaded no candidate. Close it."""

    def __init__(
        self, command: Callable[[int], list[str]], environment: dict[str, str], *, same_addresses: bool = False
    ) -> None:
        """`command`: from the descriptor of its end of the channel."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control, self.lock, self.ready = ours, threading.Lock(), False
        self.process = start_process(
            command(theirs.fileno()), same_addresses=same_addresses, pass_fds=[theirs.fileno()], env=environment, cwd="/",
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        theirs.close()
        self.control.settimeout(WARM_S)

    def fork(self, folder: Path, channel: socket.socket, log: int, own: dict[str, str] | None = None) -> ForkedProcess:
        """A worker whose working folder is `folder`; `own`: more of its environment. Raises RuntimeError where the fork server has died."""
        return self._ask(folder, channel.fileno(), log, own or {})

    def run(self, folder: Path, log: int, box: dict[str, Any], command: list[str]) -> ForkedProcess:
        """A command in that box (`sandbox.describe_box`), its output to `log`. Raises RuntimeError where the fork server has died."""
        return self._ask(folder, log, log, {}, box=box, command=command)

    def _ask(self, folder: Path, channel: int, log: int, own: dict[str, str], **more: Any) -> ForkedProcess:
        ours, theirs = socket.socketpair()
        # Everything of the environment that is not the fork server's own but the worker's: what lies in its folder.
        clean = sandbox.clean_environment(str(folder))
        environment = {name: value for name, value in clean.items() if value.startswith(str(folder))} | own
        asked = {"environment": environment, "folder": str(folder), "threads": len(os.sched_getaffinity(0)), **more}
        request = json.dumps(asked).encode()
        try:
            with self.lock:
                if not self.ready:
                    self.ready = bool(self.control.recv(16))
                socket.send_fds(self.control, [request], [channel, log, theirs.fileno()])
                answer = self.control.recv(4096)
            pid = json.loads(answer)["pid"]
        except (OSError, ValueError) as error:
            ours.close()
            raise RuntimeError(f"the process that forks workers has ended: {self._said() or error}") from None
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
        self.control.close()
        self.process.kill()
        self.process.wait()
        if self.process.stderr is not None:
            self.process.stderr.close()


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


_native: dict[tuple[int, tuple[tuple[str, str], ...]], ForkParent] = {}
_starting = threading.Lock()


def get_native_server() -> ForkParent:
    """The fork server of native workers on a CPU of this process in its environment of now; it ends with the process.

    A fork takes 3 ms of CPU in place of the 30 in which Python starts and imports what a worker needs.
    """
    environment = sandbox.clean_environment("/nonexistent")
    key = os.getpid(), tuple(sorted(environment.items()))
    with _starting:
        found = _native.get(key)
        if found is None or not found.alive:
            if found is not None:
                found.close()
            else:
                atexit.register(_close_native, key)
            found = _native[key] = ForkParent(
                lambda end: [*sandbox.program(NATIVE_SIDE), "fork", str(end), str(os.getpid())],
                environment, same_addresses=True,
            )  # fmt: skip
        return found


def _close_native(key: tuple[int, tuple[tuple[str, str], ...]]) -> None:
    if key[0] == os.getpid():
        _native.pop(key).close()
