"""What kernels hand on in memory, and that nothing is read after it was overwritten."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sympy

from compiler.draft.expressions import Expr, loads_of, symbols_of
from compiler.draft.index import joined
from compiler.draft.partition import ROW, Member
from compiler.frontend import NoProgram
from compiler.kernel import PHASES, PackedKernel

if TYPE_CHECKING:
    from compiler.program import KernelProgram


def check_memory(program: KernelProgram, apart: bool) -> None:
    """What goes through memory, and what would be read after it was overwritten. `apart`: the former may. Raises NoProgram."""
    outputs = set(program.outputs.values())
    written: set[str] = set()
    for kernel in program.kernels:
        made = kernel.made
        for load in loads_of(kernel.roots):
            buffer = load.args[0]
            if buffer not in made and buffer.text not in program.inputs and buffer not in outputs | {*program.scratch}:
                if not apart:
                    raise NoProgram(f"the reference goes through memory at {buffer.name}: that needs a workspace")
                program.scratch.append(buffer)
                buffer.text = program.lowered.name(f"kept_{buffer.name}")
            if (
                buffer.text in written
                and buffer not in made
                and buffer not in outputs
                and not _is_of_writers(program, kernel, load)
            ):
                raise NoProgram(f"{buffer.text} is read after another kernel has overwritten it")
        for buffer in made if kernel.layout == PHASES else ():  # a sort has two results, though one alone is read
            if buffer not in outputs | {*program.scratch}:
                program.scratch.append(buffer)
                buffer.text = program.lowered.name(f"kept_{buffer.name}")
        _check_in_place(program, kernel)
        written |= {b.text for b in program.stored(kernel)} & set(program.inputs)


def _check_in_place(program: KernelProgram, kernel: PackedKernel) -> None:
    """A tensor that is read and written: every thread may read of it only what it writes itself."""
    stored = program.stored(kernel)
    for buffer in stored:
        given = program.inputs.get(buffer.text)
        if given is None:
            continue
        writers = [m for m in kernel.members if buffer in m.definition.outs]
        folded = any(m.definition.reduced or m.per_row for m in writers)
        first = min(m.stage for m in writers)
        for member in kernel.members:
            before = bool(member.definition.reduced) and member.stage < first  # a row's threads meet behind it
            for load in loads_of(member.roots):
                if load.args[0] is not given or (before and _is_row_of(program, kernel, load, writers)):
                    continue
                own = any(_is_own(program, load, writer) for writer in writers)
                if not own or (folded and not _is_read_before(program, kernel, load)):
                    raise NoProgram(
                        f"{buffer.text} is changed in place, and a thread would read what another one writes"
                    )


def _is_of_writers(program: KernelProgram, kernel: PackedKernel, load: Expr) -> bool:
    """Whether a kernel reads an element of an input that it writes itself, and so no kernel before it: an output's parts are written once."""
    writers = [
        m for m in kernel.members if load.args[0].text in {out.text for out in m.definition.outs} and m.by is None
    ]
    return load.op == "load" and (
        any(_is_own(program, load, writer) for writer in writers) or _is_row_of(program, kernel, load, writers)
    )


def _is_row_of(program: KernelProgram, kernel: PackedKernel, load: Expr, writers: list[Member]) -> bool:
    """Whether a row's elements are what those writers write of the same row, one part of it behind the other."""
    if kernel.layout != ROW or load.op != "load" or any(writer.by is not None for writer in writers):
        return False
    inner = {program.lane: 0, kernel.pack: 0} | dict.fromkeys(kernel.loops, 0)
    begin = load.args[1].subs(inner)
    if sympy.expand(joined(load.args[1] - begin) - kernel.inner[0][0]) != 0:
        return False
    ends = {}
    for writer in writers:
        first = writer.places[0].subs(inner)
        steps = sympy.expand(joined(writer.places[0] - first))
        for pack, count in {kernel.pack: kernel.length / kernel.width, **kernel.loops}.items():
            along = kernel.width * pack + program.lane if kernel.width > 1 else pack
            if sympy.expand(steps - along) == 0:
                at = sympy.expand(joined(first - begin))
                ends[at] = sympy.expand(at + count * kernel.width)
    reached = sympy.S.Zero
    while reached in ends:
        reached = ends.pop(reached)
    return sympy.expand(reached - kernel.length) == 0


def _is_read_before(program: KernelProgram, kernel: PackedKernel, load: Expr) -> bool:
    """Whether all threads of a row read one element before the reductions at which they meet: what is written once a row is written later.

    A column's element is written by one thread, behind its reductions.
    """
    if kernel.layout != ROW:
        return True
    within = {kernel.pack, program.lane, *(loop for loop, _ in kernel.inner), *kernel.loops}
    return any(m.definition.reduced for m in kernel.members) and not symbols_of(load) & within


def _is_own(program: KernelProgram, load: Expr, writer: Member) -> bool:
    """Whether a load is of the element that a thread writes, and no other thread writes that."""
    if joined(load.args[1] - writer.places[0]) != 0:
        return False
    if load.op == "load" or writer.by is None:
        return load.op == "load" and writer.by is None
    place, stride = writer.by
    return load.args[2:] == (stride, place) and all(e.args[0] in program.lowered.distinct for e in loads_of([place]))
