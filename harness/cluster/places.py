"""What a machine offers to a cluster: its devices, each with cores that nothing else of ours uses, and cores that build."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from harness.cluster import ClusterError
from kernels.spec import Device, Frozen

CORES_OF_A_GPU = 6
"""The Evaluator, the candidate's and its rival's threads, Dask's own; more would be taken from those that build."""

NONE = "no NVIDIA GPU was found here: nvidia-smi lists none that CUDA_VISIBLE_DEVICES lets one use"


class ClusterPlace(Frozen):
    """One worker process: what it has for itself."""

    name: str
    kind: Literal["device", "builder"]
    device: Device
    gpu: str = ""
    """The GPU as CUDA_VISIBLE_DEVICES names it; "" is none."""
    cores: tuple[int, ...]
    slots: int = 1
    """Builds side by side."""


def gpus() -> dict[str, tuple[int, ...]]:
    """Index of every GPU that nvidia-smi lists -> the cores near it, () where the machine does not say.

    Of those that CUDA_VISIBLE_DEVICES names, by index or UUID, where it is set.
    """
    if shutil.which("nvidia-smi") is None:
        return {}
    done = subprocess.run(
        ["nvidia-smi", "--query-gpu=index,pci.bus_id,uuid", "--format=csv,noheader"], capture_output=True, text=True
    )
    lines = done.stdout.splitlines() if done.returncode == 0 else []
    listed = [[part.strip() for part in line.split(",")] for line in lines]
    found = {index: _near(bus) for index, bus, _uuid in listed}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return found
    # As CUDA reads it: a UUID may be cut short.
    named = [
        [index for index, _bus, uuid in listed if name == index or (name[:4] == "GPU-" and uuid.startswith(name))]
        for name in map(str.strip, visible.split(","))
    ]
    return {first[0]: found[first[0]] for first in named if first}


def _near(bus: str) -> tuple[int, ...]:
    """`00000000:3B:00.0` -> what Linux lists as local to that slot."""
    path = Path("/sys/bus/pci/devices") / bus.lower()[-12:] / "local_cpulist"
    try:
        return numbers(path.read_text())
    except (OSError, ValueError):
        return ()


def numbers(text: str) -> tuple[int, ...]:
    """`0-3,8` -> 0, 1, 2, 3, 8. Raises ValueError."""
    found: list[int] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if match is None:
            raise ValueError(f"{part!r} is no number or range")
        found += range(int(match[1]), int(match[2] or match[1]) + 1)
    return tuple(found)


def of_gpus(chosen: Sequence[str] | None, cores: Sequence[int], near: dict[str, tuple[int, ...]]) -> list[ClusterPlace]:
    """A place for each GPU (all of `near` without `chosen`) and one that builds on the cores that are left.

    A GPU gets cores near it where the machine says which; with fewer cores than places they share. Raises ClusterError
    where no GPU is there and none was named; one that was named and is not there gets a place, which says so.
    """
    wanted = list(near) if chosen is None else list(chosen)
    if not wanted:
        raise ClusterError(f"{NONE}; --cores lends shares of the CPU instead")
    each = max(1, min(CORES_OF_A_GPU, len(cores) * 2 // 3 // len(wanted)))
    host, left, made = socket.gethostname(), list(cores), []
    for gpu in wanted:
        close = [core for core in left if core in near.get(gpu, ())]
        taken = (close + [core for core in left if core not in close])[:each]
        left = [core for core in left if core not in taken]
        own = tuple(taken or cores)
        made.append(ClusterPlace(name=f"{host} gpu {gpu}", kind="device", device="cuda", gpu=gpu, cores=own))
    rest = tuple(left or cores)
    builds = ClusterPlace(name=f"{host} builds", kind="builder", device="cuda", cores=rest, slots=max(1, len(rest)))
    return [*made, builds]


def of_cores(count: int, cores: Sequence[int]) -> list[ClusterPlace]:
    """So many equal shares of the cores, each a device of its own that also builds. Raises ClusterError."""
    if count > len(cores):
        raise ClusterError(f"{count} workers on {len(cores)} cores: each needs one of its own")
    each, host = len(cores) // count, socket.gethostname()
    shares = [tuple(cores[at * each : (at + 1) * each]) for at in range(count)]
    return [
        ClusterPlace(name=f"{host} cores {share[0]}-{share[-1]}", kind="device", device="cpu", cores=share)
        for share in shares
    ]


def own_cores() -> list[int]:
    return sorted(os.sched_getaffinity(0))
