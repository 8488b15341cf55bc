"""Source-to-source steps for the rules policy, one a file. The file's name is the rewrite's name.

Each file has
- `LANGUAGES`: the backends it works on, from {"cuda", "cpu"};
- `HELPS`: which bounds of a Finding it is for;
- `EXPECTED`: what it should do to which number, one sentence;
- `SPEEDUP`: what to expect where it applies, before anything was measured (the planner's prior); not above 1 for what
  is only worth trying once the rest is done;
- `speedup(facts) -> float` (left out where SPEEDUP says it all): the prior for this spec's workloads;
- `ORDER` (50 where left out): its place when several are applied; `VARIANTS` (none): arguments that `rewrite` takes as a
  third parameter, each a form of its own, named `name:argument` in plans;
- `ALONE` (False): it goes on from what was measured, so it is planned by itself and never from the baseline;
- `rewrite(source: Source, facts: Facts) -> str | None`: the new text, or None where it does not apply.

A rewrite is deterministic, works on the syntax tree, refuses to touch what it does not understand, never looks at the
kernel's name, and leaves code that a person would be glad to read. Numbers that a search should pick are left open as
`#define NAME value  // tune: choices` (see harness/tunables.py); where bands of workloads turn out to want different
ones, the tune gate has the host choose (see dispatch.py).
"""

from __future__ import annotations

import importlib
import math
import pkgutil
from collections.abc import Callable
from typing import Protocol

from harness.records import DeviceFacts
from kernels.spec import DTYPE_BYTES, Frozen, Spec, Workload
from nodes.rewrites.source import Source
from nodes.roles import Bound


class Facts(Frozen):
    """What a rewrite may rely on beside the source."""

    spec: Spec
    device: DeviceFacts

    def share_of_workloads(self, fits: Callable[[int, int], bool]) -> float:
        """Of the timed visible ones, those for which `fits(rows, row_bytes)` says so of their largest tensor's last axis."""
        spec, timed = self.spec, [w for w in self.spec.suite(self.device.device) if w.timed]

        def shape(workload: Workload) -> tuple[int, int]:
            sizes = [(spec.shape(t, workload.axes), DTYPE_BYTES[spec.dtype(t, workload)]) for t in spec.tensors]
            extents, item = max(sizes, key=lambda size: math.prod(size[0]) * size[1])
            return math.prod(extents[:-1]), (extents[-1] if extents else 1) * item

        return sum(fits(*shape(w)) for w in timed) / max(len(timed), 1)


class Rewrite(Protocol):
    __name__: str
    LANGUAGES: frozenset[str]
    HELPS: frozenset[Bound]
    EXPECTED: str
    SPEEDUP: float

    @staticmethod
    def rewrite(source: Source, facts: Facts) -> str | None: ...


def catalog() -> dict[str, Rewrite]:
    """Every rewrite of this folder by name, in name order; what they share (source, algebra, ...) has no `rewrite`."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    modules = {name: importlib.import_module(f"{__name__}.{name}") for name in names}
    return {name: module for name, module in modules.items() if hasattr(module, "rewrite")}
