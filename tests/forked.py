"""Programs of tests in processes of their own, forked from one that has imported already what they need.

Importing LangGraph and PyTorch takes longer than nearly all that these programs do. A process is as real as one of
`python -c`: it has its own descriptors, environment and folder, and takes signals; but what is registered with atexit does
not run at its end.
"""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import termios
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO

REPOSITORY = Path(__file__).resolve().parents[1]
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.preloaded"])


class Program:
    """What is used of a subprocess.Popen in text mode; `terminal`, a pseudo terminal's descriptor, becomes its own."""

    def __init__(
        self,
        code: str,
        *arguments: object,
        environment: dict[str, str] | None = None,
        terminal: int | None = None,
    ) -> None:
        (asks, told), (said, says) = os.pipe(), os.pipe()
        self.stdin, self.stdout = os.fdopen(told, "w"), os.fdopen(said)
        self.stderr: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115, read after its end: nobody has to empty a pipe
        ends = [asks, says, self.stderr.fileno()]
        streams = [Connection(os.dup(end if terminal is None else terminal)) for end in ends]
        words = [str(argument) for argument in arguments]
        self._process = CONTEXT.Process(
            target=_run, args=(code, words, environment or dict(os.environ), streams, terminal is not None)
        )
        try:
            self._process.start()
        finally:
            for stream in streams:
                stream.close()
            os.close(asks)
            os.close(says)

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("a forked program", timeout or 0)
        self.stderr.seek(0)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self._process.kill()

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._process.join()
        for stream in (self.stdin, self.stdout, self.stderr):
            stream.close()


def run(
    code: str, *arguments: object, timeout: float = 120, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)` in the repository."""
    with Program(code, *arguments, environment=environment) as program:
        said = program.stdout.read()  # until its end, or that of the last process that has it open
        status = program.wait(timeout)
        return subprocess.CompletedProcess(code, status, said, program.stderr.read())


def _run(code: str, words: list[str], environment: dict[str, str], streams: list[Connection], terminal: bool) -> None:
    if terminal:
        os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream.fileno(), number)
        stream.close()
    if terminal:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(REPOSITORY)
    sys.stdin, sys.stdout, sys.stderr = open(0, closefd=False), open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
    sys.argv = ["-c", *words]
    exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
