"""A cluster of its own on this machine: a scheduler and a supervisor as children, which end when this process does."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys

from harness.cluster import ROOT, ClusterError, places, security
from harness.cluster.supervisor import environment
from harness.processes import scratch


class Local:
    """Close it; a kill closes it too, since the children's standard input ends with this process."""

    def __init__(self, device: str, workers: int | None) -> None:
        self.folder = scratch.folder("cluster")
        self.address = ""
        self.scheduler: subprocess.Popen | None = None
        self.supervisor: subprocess.Popen | None = None
        self.devices = 0
        """Workers that will join."""
        self.builders: tuple[int, ...] = ()
        """Cores that build for its GPUs, and may do what else is not timed."""
        try:
            if device == "cpu":
                self.devices = workers or 2
                words = ["--cores", str(self.devices)]
            else:
                near = places.gpus()
                names = list(near)[:workers]
                if not names:
                    raise ClusterError(places.NONE)
                self.builders = places.of_gpus(names, places.own_cores(), near)[-1].cores
                self.devices = len(names)
                words = ["--gpus", ",".join(names)]
            # On a machine with several users anybody may connect to a port on loopback, and a cluster executes what it is sent.
            self.tls = security.make_certificate(self.folder / "tls")
            self.start_scheduler()
            self.supervisor = self._child(["worker", self.address, *words])
        except BaseException:
            self.close()
            raise

    def start_scheduler(self) -> bool:
        """Start it where it is not running, at the port that it had; whether it was started. Raises ClusterError."""
        if self.scheduler is not None and self.scheduler.poll() is None:
            return False
        port = self.address.rpartition(":")[2] or "0"
        self.scheduler = self._child(["scheduler", "--port", port], stdout=subprocess.PIPE)
        assert self.scheduler.stdout is not None
        line = self.scheduler.stdout.readline().decode().strip()
        if not line.startswith("tls://"):
            raise ClusterError(f"the cluster's scheduler did not start: {self.last_words()}")
        self.address = line
        return True

    def check(self) -> None:
        """Raises ClusterError where the supervisor has ended: it found something wrong at its start."""
        if self.supervisor is not None and self.supervisor.poll() is not None:
            raise ClusterError(f"the cluster's workers did not start: {self.last_words()}")

    def last_words(self, lines: int = 1) -> str:
        """The end of what its parts have said."""
        log = (self.folder / "log.txt").read_text(errors="replace").splitlines()
        said = [line.strip() for line in log if line.strip() and " - INFO - " not in line]  # Dask's, of who connects
        return "; ".join(said[-lines:]) or "nothing was said"

    def _child(self, words: list[str], stdout: int | None = None) -> subprocess.Popen:
        """A command of run.py, out of reach of the terminal's signals, with nothing of the user's environment but its tools."""
        with (self.folder / "log.txt").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, str(ROOT / "run.py"), *words, "--tls", str(self.tls), "--with-parent"],
                cwd=self.folder,
                env=environment() | {"TMPDIR": str(self.folder)},
                stdin=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                stdout=log if stdout is None else stdout,
            )

    def close(self) -> None:
        """End the children. Safe to call twice."""
        for child in (self.supervisor, self.scheduler):
            if child is None:
                continue
            for pipe in (child.stdin, child.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(15)
            if child.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, 9)
                child.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
