"""Several forms of one source: how they are made, and what a comparison in which all of them took turns says of each."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping

from harness.judge.quick import Quick
from harness.records import Timing
from harness.store import Store
from kernels.spec import Device
from nodes.ledger import Pooled, pool_series
from nodes.policies.replies import UnfitReply, apply_edits
from nodes.workbench.arguments import Variant

MINE = "candidate"
"""The arm of a comparison that the others stand beside (harness/judge/quick.py)."""
Series = tuple[tuple[float, ...], ...]


def whole(source: str) -> str:
    """A file as it is kept."""
    return source.replace("\r\n", "\n").rstrip() + "\n"


def make_variant(text: str, variant: Variant) -> str:
    """The source, or the variant's own, with other values in its `#define NAME value` lines, then edited. Raises UnfitReply.

    A number that was left open by `// tune:` is fixed by that.
    """
    text = whole(variant.source) if variant.source.strip() else text
    for name, value in variant.define.items():
        line = re.compile(rf"^([ \t]*#[ \t]*define[ \t]+{re.escape(name)})(?:[ \t].*)?$", re.MULTILINE)
        found = len(line.findall(text))
        if found != 1 or "\n" in value:
            raise UnfitReply(f"{name}: {found} lines of the source are `#define {name} value`, and one must be")
        text = line.sub(rf"\1 {value.replace(chr(92), chr(92) * 2)}", text)
    return apply_edits(text, [(edit.search, edit.replacement) for edit in variant.edits])


def fastest(quick: Quick, arms: Mapping[str, str]) -> str:
    """Which of the arms (name -> hash) is fastest, by its paired ratios with each of the others in all cases.

    Not by their ratios with one of them alone: where that one waits for a core they are mostly its noise, and a source was taken that each
    sample beside it called slower.
    """

    return max(arms, key=lambda arm: math.prod(lead(quick, arm, arms).values()))


def lead(quick: Quick, arm: str, arms: Mapping[str, str]) -> dict[str, float]:
    """How many times as fast as each of the others it is: the median of their paired ratios, as a geometric mean over the cases."""
    cases = [beside(pairs, arm) for pairs in quick.pairs]
    return {
        other: statistics.geometric_mean(statistics.median(_flat(case[other])) for case in cases)
        for other in arms
        if other != arm
    }


def describe_each(
    store: Store, quick: Quick, arms: Mapping[str, str], device: Device
) -> dict[str, tuple[list[Timing], list[dict[str, Pooled]]]]:
    """What a comparison says of each of its arms (name -> hash) but the baseline: its timings, and of each, by the other arm's name, what all
    series of the two say, earlier ones too."""
    said: dict[str, tuple[list[Timing], list[dict[str, Pooled]]]] = {}
    added: set[tuple[int, frozenset[str]]] = set()
    for arm, candidate in arms.items():
        if arm == "baseline":
            continue
        said[arm] = timings, pooled = [], []
        for at, timing in enumerate(quick.timings):
            known = {}
            for name, series in (beside(quick.pairs[at], arm) if quick.pairs else {}).items():
                pair = at, frozenset((candidate, arms[name]))
                known[name] = pool_series(store, candidate, arms[name], timing, () if pair in added else series, device)
                added.add(pair)  # the other of the two is told of the same samples, which count once
            if arm != MINE and quick.spreads:
                timing = timing.model_copy(update={"time_us": quick.spreads[at][arm].median_us})
            if base := known.get("baseline"):
                update = {"speedup": base.speedup, "comparison": base.comparison, "samples": base.samples}
                timing = timing.model_copy(update=update)
            timings.append(timing)
            pooled.append(known)
    return said


def beside(pairs: Mapping[str, Series], arm: str) -> dict[str, Series]:
    """The same series with that arm in the candidate's place: every other one's time over its own."""
    if arm == MINE:
        return dict(pairs)

    def over(ratios: Series) -> Series:
        return tuple(tuple(a / b for a, b in zip(*one, strict=True)) for one in zip(ratios, pairs[arm], strict=True))

    mine = tuple(tuple(1.0 for _ in one) for one in pairs[arm])
    return {name: over(ratios) for name, ratios in [*pairs.items(), (MINE, mine)] if name != arm}


def _flat(series: Series) -> list[float]:
    return [ratio for one in series for ratio in one]
