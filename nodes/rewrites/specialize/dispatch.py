"""The host chooses a candidate's numbers by the size of the workload, where a search found that one choice is not enough.

The file with the numbers of its largest band takes what the smaller bands' numbers make of it in (see multiversion.py), so
that what does not depend on them stays in one piece. Thresholds and the numbers of each band are left open again, under
names of their own. The tune gate asks for this (nodes/tune.py); it is no step of a plan.
"""

from __future__ import annotations

from harness.judge.bands import Split
from harness.judge.tunables import bake, tunables
from kernels.spec import Spec
from nodes.rewrites.specialize.multiversion import multiversion
from nodes.rewrites.specialize.version import Version
from nodes.rewrites.syntax.source import Source, Unsupported

BANDS = {2: ("small",), 3: ("small", "medium")}
"""What the bands below a threshold are called."""


def dispatched(text: str, language: str, spec: Spec, split: Split) -> str:
    """`text` with the split's values for each band. Raises Unsupported where its form is not understood."""
    names, last = BANDS[len(split.bands)], split.bands[-1]
    if any(tunable.name == f"{name.upper()}_BELOW" for tunable in tunables(text) for name in names):
        raise Unsupported("bands of bands")
    joined = bake(text, last.values)
    for band, name in reversed(list(zip(split.bands, names, strict=False))):
        version = Version(
            candidate="", dtypes=spec.dtypes, measure=split.measure, below=band.below, others=tuple(band.others)
        )
        other = Source(bake(text, band.values), language)
        joined = multiversion(Source(joined, language), other, spec, version, name)
    return joined


def values(text: str) -> dict[str, int]:
    """What every tunable of a source stands at."""
    return {tunable.name: tunable.value for tunable in tunables(text)}
