"""A function of the file that has the name of one that rewrites bring along gets another: many files have a `ceil_div`,
or a `block_sum`.

Changes nothing by itself, but other steps refuse where their names mean something else.
"""

from __future__ import annotations

from nodes.rewrites.analysis.device_code import code_of
from nodes.rewrites.prelude import NAMES, text_of
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.syntax.source import Edits, Source

OURS = {name: text_of(name) for name in ("ceil_div", *NAMES)}
"""Only what several steps share and others' files are likely to have."""


@rule(
    "cuda",
    expected="nothing by itself: later steps have their names for themselves",
    normalizes=True,
    after=("inline_device_functions",),
)
def rewrite(source: Source, facts: Facts) -> str | None:
    code, edits = code_of(source), Edits(source)
    for name, text in OURS.items():
        defined = code.overloads.get(name, [])
        # Under an #if, or in the body of a macro, another definition or use may be out of sight.
        bodies = " ".join(source.of(n) for n in source.walk(None, "preproc_arg"))
        if not defined or text.strip() in source.text or name in bodies or name in code.macros:
            continue
        new = code.fresh(f"{name}_of_file")
        for node in source.walk(None, "identifier"):
            if source.of(node) == name:
                edits.replace(node, new)
    return edits.apply()
