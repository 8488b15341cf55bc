"""What bounds a kernel, from the cheapest source that knows. One probe a file; the file's name is the probe's name.

Each file has `read(build: Build, facts: DeviceFacts) -> dict[str, str]`. A probe that cannot be read here answers
{"unavailable": why}, in one clause; it raises for our own mistakes only.
"""

from __future__ import annotations

import importlib
import pkgutil

from harness.records import Build, DeviceFacts


def names() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def read_all(build: Build, facts: DeviceFacts) -> dict[str, dict[str, str]]:
    """Every probe's readings of a build, by the probe's name."""
    return {name: importlib.import_module(f"{__name__}.{name}").read(build, facts) for name in names()}
