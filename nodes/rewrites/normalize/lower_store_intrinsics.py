"""A store through an intrinsic, `__stcs(out + i, value);`, is written as `out[i] = value;`.

The hint that it drops is worth little where elements are stored one by one, and other steps follow assignments only.
"""

from __future__ import annotations

from nodes.rewrites.analysis.device_code import code_of
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.syntax.insert import as_factor
from nodes.rewrites.syntax.match import match
from nodes.rewrites.syntax.source import Edits, Source

STORES = ("__stcs", "__stcg", "__stwb", "__stwt")


@rule(
    "cuda",
    expected="nothing by itself: later steps can follow the store",
    normalizes=True,
    after=("single_assignment",),
)
def rewrite(source: Source, facts: Facts) -> str | None:
    edits, text = Edits(source), source.of
    for call in (call for kernel in code_of(source).kernels for call in kernel.calls(*STORES)):
        found = match(
            source, call.parent, "$store(&$place, $value);", "$store($to + $i, $value);", "$store($to, $value);"
        )
        if found is None:
            continue
        place = text(found["place"]) if "place" in found else f"*{as_factor(text(found['to']))}"
        if "i" in found:
            place = f"{as_factor(text(found['to']))}[{text(found['i'])}]"
        edits.replace(call, f"{place} = {text(found['value'])}")
    return edits.apply()
