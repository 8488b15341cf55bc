"""The far side of the engine `dask`: what runs on the machines of a cluster. Only that engine and `run.py` know of it.

scheduler.py    Dask's scheduler, on loopback unless told otherwise, then with TLS
supervisor.py   one a machine: starts a process for each place, again where it ended
homes.py        which device is asked: where the asker's kernel is warm
places.py       what a machine offers: GPUs or shares of its cores, each with cores of its own, and cores that build
worker.py       one process a place: a Dask worker that answers jobs (harness/jobs.py), one timed job at a time
fitness.py      whether a place may time anything: a binary against itself, and room on the disk
security.py     certificates
"""

from __future__ import annotations

import functools
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from harness.records import DeviceFacts
from harness.store import digest
from kernels.spec import Frozen

ROOT = Path(__file__).resolve().parent.parent.parent


class ClusterError(Exception):
    """The cluster cannot be used as asked; one sentence says why and what to do."""


@functools.cache
def code() -> str:
    """Digest of the program text that makes verdicts: machines that run another version of it get no job."""
    kinds = (".py", ".cu", ".cpp", ".cuh", ".h", ".jinja")
    every = [path for package in ("harness", "kernels") for path in (ROOT / package).rglob("*")]
    files = sorted(path for path in every if path.suffix in kinds and path.is_file())
    parts = [part for path in files for part in (str(path.relative_to(ROOT)), path.read_text(errors="replace"))]
    return digest(*parts)[:12]


@functools.cache
def software() -> str:
    """The versions beneath the program that verdicts and connections may depend on; who differs is named."""
    packages = ("torch", "numpy", "distributed", "cloudpickle", "msgpack")
    held = [f"{name} {version(name).partition('+')[0]}" for name in packages if find_spec(name)]
    return ", ".join([f"Python {sys.version_info.major}.{sys.version_info.minor}", *held])


class DeviceModel(Frozen):
    """A kind of device. Times of two kinds are never put together."""

    facts: DeviceFacts
    memory_bytes: int
    """The least of those in the cluster."""

    @property
    def resource(self) -> str:
        """The name by which the scheduler gives its jobs to a device that is free: one a device, so one job at a time."""
        return f"{self.facts.name} {digest(self.facts.model_dump_json(), code())[:12]}"


def build_resource() -> str:
    """What a place offers that builds for GPUs, one for each of its cores."""
    return f"build {code()}"


class Status(Frozen):
    """What a worker says of itself with every heartbeat."""

    place: str
    """`host gpu 0`, `host cores 0-3`, `host builds`."""
    kind: Literal["device", "builder"]
    state: Literal["ready", "set aside"]
    reason: str = ""
    facts: DeviceFacts | None = None
    memory_bytes: int = 0
    doing: str = ""
    seconds: float = 0.0
    """Seconds that it has been doing so."""
    job: str = ""
    pid: int = 0
    code: str = ""
    software: str = ""
    slots: int = 1

    @property
    def model(self) -> DeviceModel | None:
        known = self.facts if self.kind == "device" else None
        return DeviceModel(facts=known, memory_bytes=self.memory_bytes) if known else None
