"""A file's own `ceil_div` gets another name: several rewrites bring one along, and refuse where that name means something else."""

from __future__ import annotations

from nodes.rewrites.analysis.device_code import code_of
from nodes.rewrites.prelude import text_of
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.syntax.source import Edits, Source

NAME = "ceil_div"


@rule(
    "cuda",
    expected="nothing by itself: later steps have their names for themselves",
    normalizes=True,
    after=("inline_device_functions",),
)
def rewrite(source: Source, facts: Facts) -> str | None:
    code, edits = code_of(source), Edits(source)
    # Under an #if, or in the body of a macro, another definition or use may be out of sight.
    bodies = " ".join(source.of(n) for n in source.walk(None, "preproc_arg"))
    if not code.overloads.get(NAME) or text_of(NAME).strip() in source.text or NAME in bodies or NAME in code.macros:
        return None
    new = code.fresh(f"{NAME}_of_file")
    for node in source.walk(None, "identifier"):
        if source.of(node) == NAME:
            edits.replace(node, new)
    return edits.apply()
