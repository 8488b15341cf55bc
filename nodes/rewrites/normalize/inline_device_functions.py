"""A small device function through whose pointers or references a kernel reads and writes is written out where it is called.

`rotate(row + head, cos, sin, i);` becomes its statements, the parameters variables that are set once, names that mean
something else in the kernel replaced by new ones. Only functions that no step can follow otherwise (anything may happen behind a
pointer that is handed on), and of these only such as end with their last statement: no recursion, no return before the end, no barriers or shuffles, no memory of their own. Changes nothing by itself.
"""

from __future__ import annotations

from contextlib import suppress

from harness.records import Outcome
from nodes.rewrites.analysis.device_code import Code, one_after_another
from nodes.rewrites.analysis.insertions import drop_unused
from nodes.rewrites.normalize.inlining import Inlined
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.syntax.source import Edits, Source, Unsupported

MOST = 24
"""Calls of one file."""


@rule(
    "cuda",
    expected="nothing by itself: later steps see the loads and stores that a function had hidden",
    normalizes=True,
    after=("expand_macros",),
    risks=(Outcome.INCORRECT,),
)
def rewrite(source: Source, facts: Facts) -> str | None:
    called = set[str]()

    def change(code: Code) -> str | None:
        for kernel in code.kernels:
            for call, _ in kernel.escapes:
                with suppress(Unsupported):
                    inlined, edits = Inlined(code, kernel, call), Edits(code.source)
                    inlined.write(edits)
                    called.add(inlined.name)
                    return edits.apply()
        return None

    text = one_after_another(source, change, MOST)
    return drop_unused(source, text, called) if text is not None else None
