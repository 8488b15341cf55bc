"""Workloads with weights from a trace of torch's profiler, or SGLang's log of its kernels: the sizes that a program called the kernel with, as often as
it did."""

from __future__ import annotations

import ast
import itertools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from graph.ranking import rank
from harness.store import write_atomically
from kernels import catalog
from kernels.catalog import KernelError
from kernels.spec import Spec, Workload, expression

MOST = 12
"""Sizes that are taken, the most called first."""


def add_workloads(folder: Path, trace: Path, operator: str) -> str:
    """Put the sizes of that operator's calls into the folder's spec.py, with the number of calls as weights; those that were there are checked and no more
    timed. One sentence on what was taken. Raises KernelError where no call fits."""
    spec, calls, names = catalog.load(str(folder)).spec, Counter[tuple[tuple[tuple[str, int], ...], str]](), set[str]()
    wanted = operator.rpartition("::")[2]
    for called, shapes in _calls(trace):
        names |= called
        if wanted in {re.split(r"::|\.", name)[-1] for name in called}:
            sizes = Counter[tuple[tuple[tuple[str, int], ...], str]]()
            for operands, count in shapes.items():
                if (found := _sized(spec, operands)) is not None:
                    sizes[found] += count
            calls |= (
                sizes  # the larger of each: a call may launch several kernels, and hold another operator of that name
            )
    if not calls:
        seen = ", ".join(sorted(names)[:8]) or "no operator with shapes: record_shapes=True"
        raise KernelError(f"{trace}: no call of {wanted} has the spec's shapes (it holds {seen})")
    taken = calls.most_common(MOST)
    devices = spec.workloads[0].devices
    sized = [
        Workload.model_validate({"axes": dict(axes), "dtype": dtype, "devices": devices, "weight": count})
        for (axes, dtype), count in taken
    ]
    sized.sort(key=lambda w: sum(spec.tensor_bytes(t, w) for t in spec.tensors))
    timed = [w.model_copy(update={"held_out": at % 3 == 1 and len(sized) > 2}) for at, w in enumerate(sized)]
    checked = [w.model_copy(update={"timed": False, "held_out": False, "weight": None}) for w in spec.workloads]
    known = {w.label for w in timed}
    _write_workloads(folder / "spec.py", [*timed, *(w for w in checked if w.label not in known)])
    return f"{len(taken)} sizes of {sum(calls.values())} calls of {wanted} are timed, weighted by their calls{f'; {len(calls) - MOST} rarer ones are left out' if len(calls) > MOST else ''}"


def _write_workloads(path: Path, workloads: Sequence[Workload]) -> None:
    """In place of those that the call of Spec in the file is given."""
    text = path.read_bytes()
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    given = next(k.value for call in calls for k in call.keywords if k.arg == "workloads")
    starts = [0, *itertools.accumulate(map(len, text.splitlines(keepends=True)))]
    begin = starts[given.lineno - 1] + given.col_offset
    end = starts[(given.end_lineno or given.lineno) - 1] + (given.end_col_offset or 0)
    rows = [", ".join(f"{k}={v!r}" for k, v in w.model_dump(exclude_defaults=True).items()) for w in workloads]
    made = "".join(f"        Workload({row}),\n" for row in rows)
    write_atomically(path, text[:begin] + f"(\n{made}    )".encode() + text[end:])


LOGGED = "SGLang Kernel API Call: "
"""Before the name of a call in SGLang's log (SGLANG_KERNEL_API_LOGLEVEL=3, SGLANG_KERNEL_API_LOGDEST=FILE)."""


def _calls(trace: Path) -> Iterator[tuple[set[str], Counter[str]]]:
    """(names of what was called, its operands as `bfloat16[64, 4096]` -> calls). Raises KernelError."""
    try:
        text = trace.read_bytes()
    except OSError as error:
        raise KernelError(f"{trace} cannot be read: {error.strerror}") from None
    if LOGGED.encode() not in text:
        yield from (({row.name, *row.operators}, row.shapes) for row in rank(trace).rows)
        return
    shapes: dict[str, Counter[str]] = {}
    for call in text.decode(errors="replace").split(LOGGED)[1:]:
        name, _, given = call.partition("\n")
        tensors = re.findall(r"shape=\(([\d, ]*)\)\s+dtype=torch\.(\w+)", given.partition("\nOutput:")[0])
        operands = " ".join(f"{kind}[{shape.rstrip(', ')}]" for shape, kind in tensors)
        shapes.setdefault(name.strip(), Counter())[operands] += 1
    yield from (({name}, found) for name, found in shapes.items())


def _sized(spec: Spec, operands: str) -> tuple[tuple[tuple[str, int], ...], str] | None:
    """(axes, dtype) by which these operands, as `bfloat16[64, 4096] bfloat16[4096]`, are the spec's tensors, or its inputs, in order; None where they are not."""
    given = [
        (kind, tuple(map(int, filter(None, shape.split(", ")))))
        for kind, shape in re.findall(r"(\w+)\[([\d, ]*)\]", operands)
    ]
    for tensors in (spec.tensors, spec.inputs):
        if len(tensors) != len(given) or any(
            len(t.shape) != len(shape) for t, (_, shape) in zip(tensors, given, strict=True)
        ):
            continue
        pairs = [
            pair for t, (_, shape) in zip(tensors, given, strict=True) for pair in zip(t.shape, shape, strict=True)
        ]
        axes = {extent: size for extent, size in pairs if extent in spec.axes}
        axes |= {axis: size for axis, size in (_solved(spec, *pair) for pair in pairs) if axis and axis not in axes}
        dtype = next((kind for t, (kind, _) in zip(tensors, given, strict=True) if t.dtype == "T"), spec.dtypes[0])
        if axes.keys() != set(spec.axes) or dtype not in spec.dtypes or not all(axes.values()):
            continue
        if all(spec.shape(t, axes) == shape for t, (_, shape) in zip(tensors, given, strict=True)):
            return tuple((axis, axes[axis]) for axis in spec.axes), dtype
    return None


def _solved(spec: Spec, extent: str, size: int) -> tuple[str, int]:
    """(axis, size) of an extent such as 2*hidden, linear in one axis; ("", 0) where it is another."""
    mentioned = [axis for axis in spec.axes if re.search(rf"\b{axis}\b", extent)]
    if len(mentioned) != 1:
        return "", 0
    base, one = (expression(extent, {mentioned[0]: n}) for n in (0, 1))
    return (mentioned[0], (size - base) // (one - base)) if one > base else ("", 0)
