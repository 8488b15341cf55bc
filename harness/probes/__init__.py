"""What bounds a kernel, from the cheapest source that knows. One probe a file; the file's name is the probe's name.

Each file has `read(build: Build, facts: DeviceFacts) -> dict[str, str]`. One that runs the build has `NEEDS_CALLS = True`
and is also given the spec and the workloads to call it at; such a reading takes seconds and is not the same twice. A
probe that cannot be read here answers {"unavailable": why}, in one clause; it raises for our own mistakes only. `AFTER` names the
probe by whose tool it reads, at a workload of that one's: where that one could not be read, this one is not tried.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from types import ModuleType

from harness.records import Build, DeviceFacts
from kernels.spec import Spec, Workload


def names(*, calls: bool = True, device: str = "") -> list[str]:
    """Names of all probes, or of those that need not run the build; only those for that device, where one is named."""
    found = sorted(module.name for module in pkgutil.iter_modules(__path__))
    found = [name for name in found if getattr(_probe(name), "DEVICE", device) in ("", device)] if device else found
    return found if calls else [name for name in found if not getattr(_probe(name), "NEEDS_CALLS", False)]


def why_not(name: str, found: Mapping[str, Mapping[str, str]]) -> str:
    """Why the probe is not tried after those readings, one clause; "" where it is."""
    before = found.get(getattr(_probe(name), "AFTER", ""), {})
    return next((why for key, why in before.items() if key.endswith("unavailable")), "")


def _probe(name: str) -> ModuleType:
    return importlib.import_module(f"{__name__}.{name}")


def read(name: str, build: Build, facts: DeviceFacts, spec: Spec, workloads: Sequence[Workload]) -> dict[str, str]:
    """One probe's readings of a build."""
    probe = _probe(name)
    if getattr(probe, "NEEDS_CALLS", False):
        return probe.read(build, facts, spec, workloads)
    return probe.read(build, facts)
