"""Loops that read and write: some steps' loads are in flight before the first of these steps writes."""

from __future__ import annotations

from compiler.codegen.levels import StoreStatement
from compiler.codegen.printer import Printer
from compiler.codegen.text import Text, Window
from compiler.draft.expressions import symbols_of
from compiler.draft.partition import Member
from compiler.draft.printing import Scope, indent, index_text
from compiler.kernel import PackedKernel

AHEAD_BYTES = 256
"""Of a thread, on their way from steps to come."""


def loads_of_steps(
    text: Text, kernel: PackedKernel, folds: list[Member], written: list[StoreStatement]
) -> dict[Window, str]:
    """What a loop that also writes loads of each step: no load is brought before a store that may be to the same memory, unless the text does so."""
    if not written or len(kernel.inner) != 1:
        return {}
    (loop, _), values = kernel.inner[0], [*(text.value(m) for m in folds), *(store.value for store in written)]
    stay = lambda window: window.by is None or loop not in symbols_of(window.by[0])  # noqa: E731
    found = [w for w in text.windows(values) if stay(w) and loop in w.base.free_symbols and w.width > 1]
    return {window: f"{text.fresh(f'{window.buffer.name}_ahead')}[item]" for window in found}


def run_batches(text: Text, kernel: PackedKernel, outer: Scope, ahead: dict[Window, str], each: list[str]) -> list[str]:
    """The loop, some steps' loads in flight before the first of them is used. `outer`: what the loop stands in."""
    ((loop, steps),), end = kernel.inner, index_text(kernel.inner[0][1])
    count = max(2, min(8, AHEAD_BYTES // sum(window.width * window.buffer.dtype.itemsize for window in ahead)))
    batch, here = text.fresh("batch"), Scope(0, outer)
    printer = Printer(text, here, [window.by[0] for window in ahead if window.by], {})
    loads = [f"{name} = {text.load(window, text.address(window, here, printer))};" for window, name in ahead.items()]
    step = [f"const {text.wide} {loop} = {batch} + item;"]
    if not (steps.is_Integer and steps % count == 0):
        step += [f"if ({loop} >= {end}) {{ break; }}"]
    every = ["#pragma unroll", f"for (int item = 0; item < {count}; ++item) {{"]
    return [
        f"for ({text.wide} {batch} = 0; {batch} < {end}; {batch} += {count}) {{",
        *indent([f"{text.type_of(window)} {name.replace('[item]', f'[{count}]')};" for window, name in ahead.items()], 1),
        *indent([*every, *indent([*step, *here.lines, *loads], 1), "}", *every, *indent([*step, *each], 1), "}"], 1), "}",
    ]  # fmt: skip
