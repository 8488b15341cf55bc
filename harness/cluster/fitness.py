"""Whether a place may time anything: its device is there, a binary is the same as itself on it, there is room on its disk."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from harness import device as devices
from harness.cluster.places import ClusterPlace
from harness.device import DeviceError
from harness.evaluate import Evaluator
from harness.judge.session import MissingTool
from harness.records import Comparison, Verdict
from harness.store import Store
from kernels import catalog

ROOM_BYTES = 256 << 20
"""Free bytes on the disk of a worker's folder (lower bound): sources, builds and records of some hundred runs."""
KERNEL = "silu_and_mul"
EVERY_S = 3600.0
"""A comparison of a binary with itself, when a worker joins and whenever the last one is older than this."""
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class NotFit(Exception):
    """This place may not go on; the message says why."""


def look(
    place: ClusterPlace, folder: Path, *, contest: bool, say: Callable[[str], None], least: int = ROOM_BYTES
) -> None:
    """Raises NotFit."""
    room = shutil.disk_usage(folder).free
    if room < least:
        raise NotFit(f"its disk is full: {room >> 20} MiB are left at {folder}")
    if place.device == "cuda" and place.kind == "device" and (missing := devices.why_no_cuda()):
        raise NotFit(f"GPU {place.gpu} cannot be used: {missing}")
    if not contest or place.kind != "device":
        return
    # Twice: of 216 verdicts on a binary against itself on an H200 four were SLOWER, by the chance of their processes.
    if find_fault(against_itself(place, folder, say)) and (said := find_fault(against_itself(place, folder, say))):
        raise NotFit(said)


def against_itself(place: ClusterPlace, folder: Path, say: Callable[[str], None]) -> Verdict:
    """The verdict on a kernel's baseline timed against the same source under another hash. Raises NotFit."""
    kernel = catalog.load(KERNEL)
    timed = [w for w in kernel.spec.suite(place.device) if w.timed]
    smallest = min(timed, key=lambda w: kernel.spec.read_bytes(w) + kernel.spec.write_bytes(w))
    small = replace(kernel, spec=kernel.spec.model_copy(update={"workloads": (smallest,)}))
    shutil.rmtree(folder / "contest", ignore_errors=True)
    try:
        text = kernel.baseline(place.device)[1].read_text()
        with Evaluator(small, place.device, Store(folder / "contest"), dtypes=(smallest.dtype,), say=say) as evaluator:
            baseline, same = evaluator.store.put(text), evaluator.store.put(f"{text}\n// once more\n")
            with ThreadPoolExecutor(len(place.cores)) as pool:  # nobody joins before this is over
                list(pool.map(evaluator.build, [baseline, same, *evaluator.beside()]))
            verdict = evaluator.verify(evaluator.build(same))
            return evaluator.measure(verdict, baseline=baseline) if verdict.passed else verdict
    except (MissingTool, DeviceError, RuntimeError) as error:
        raise NotFit(f"a kernel could not be timed against itself: {error}") from None
    finally:
        shutil.rmtree(folder / "contest", ignore_errors=True)


def find_fault(verdict: Verdict) -> str:
    """What is wrong with a place on which this is a binary against itself, or ""."""
    if not verdict.passed or verdict.suite is None:
        return f"{KERNEL}'s baseline does not pass on it: {verdict.outcome}: {verdict.reason}"
    if verdict.suite.comparison in (Comparison.FASTER, Comparison.SLOWER):
        gain = verdict.suite.speedup
        said = f"{verdict.suite.comparison} ({gain.median:.3f}, {gain.low:.3f} to {gain.high:.3f})"
        return f"a binary timed against itself came out {said}: times of this device mean nothing"
    return ""
