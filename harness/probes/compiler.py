"""Registers, spills and shared memory by ptxas; vectorised loops by g++. Free: the build has printed them already."""

from __future__ import annotations

import re

from harness.records import Build, DeviceFacts


def read(build: Build, facts: DeviceFacts) -> dict[str, str]:
    if not build.resources:
        return {"unavailable": f"backend {build.backend} reports no resources"}
    if facts.device == "cpu":
        return dict(build.resources)
    rows = [dict(re.findall(r"(\w+)=(\d+)", text)) for text in build.resources.values()]
    most = {f"most {name}": str(max(int(row[name]) for row in rows)) for name in ("registers", "spills", "shared")}
    return {"kernels": str(len(rows)), **most}
