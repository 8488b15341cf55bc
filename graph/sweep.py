"""`evaluate --axis tokens=1:4096:x2`: one file over the sizes of an axis, beside its baseline and the speed of light."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pydantic import ValidationError

from graph.runs import RunError
from harness.records import Timing, Verdict
from harness.report.inert import one_line
from harness.report.plot import Curve, Panel, panels
from harness.report.words import the_baseline
from kernels.catalog import Kernel
from kernels.spec import Spec, Workload

MOST = 64
"""Sizes of one sweep; each is checked, and timed for seconds."""
_FORM = "--axis takes NAME=SIZE, NAME=SIZE,SIZE,... or NAME=FIRST:LAST:xFACTOR (or :STEP), such as tokens=1:4096:x2"


@dataclass(frozen=True)
class Sweep:
    """The kernel with the swept sizes as its only workloads."""

    kernel: Kernel
    axis: str
    dtype: str


def sizes(text: str) -> tuple[str, tuple[int, ...]]:
    """(axis, its sizes, ascending) of one --axis. Raises RunError."""
    name, _, values = text.partition("=")
    span = re.fullmatch(r"(\d+):(\d+):(x?)(\d+)", values)
    listed = re.fullmatch(r"\d+(,\d+)*", values)
    if not name or not (span or listed):
        raise RunError(f"--axis {text!r} cannot be read: {_FORM}")
    if listed:
        found = sorted({int(value) for value in values.split(",")})
    else:
        assert span is not None
        at, last, factor, step = int(span[1]), int(span[2]), bool(span[3]), int(span[4])
        if at < 1 or last < at or step < (2 if factor else 1):
            raise RunError(f"--axis {text!r} goes nowhere: FIRST of at least 1, LAST not below it, a step that grows")
        found = []
        while at <= last and len(found) <= MOST:
            found.append(at)
            at = at * step if factor else at + step
    if found[0] < 1:
        raise RunError(f"--axis {text!r}: a size is at least 1")
    if len(found) > MOST:
        raise RunError(f"--axis {text!r} has more than {MOST} sizes")
    return name, tuple(found)


def sweep(kernel: Kernel, on: str, asked: Sequence[str], dtypes: Sequence[str]) -> Sweep:
    """Exactly one axis with several sizes; what is not named is as in the first timed workload. Raises RunError."""
    if len(dtypes) > 1:
        raise RunError("a sweep is of one dtype: give --dtype once")
    given = dict(sizes(text) for text in asked)
    spec = kernel.spec
    for name in given:
        if name not in spec.axes:
            raise RunError(f"{spec.name} has no axis {name!r} (axes: {', '.join(spec.axes)})")
    several = [name for name, values in given.items() if len(values) > 1]
    if len(several) != 1:
        raise RunError("a sweep is over one axis: give several sizes for exactly one --axis")
    first = next(w for w in spec.suite(on) if w.timed and w.dtype in (dtypes or spec.dtypes))
    fixed = first.axes | {name: values[0] for name, values in given.items()}
    workloads = tuple(
        Workload(axes=fixed | {several[0]: size}, dtype=first.dtype, devices=first.devices)
        for size in given[several[0]]
    )
    try:
        swept = Spec.model_validate(spec.model_dump() | {"workloads": [w.model_dump() for w in workloads]})
    except ValidationError as error:
        said = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise RunError(f"{spec.name} does not take these sizes: {said}") from None
    return Sweep(replace(kernel, spec=swept), several[0], first.dtype)


def picture(swept: Sweep, verdict: Verdict, baseline: str, file: str) -> str:
    """Time, bandwidth and speedup over the axis, with a cold cache, as SVG. Raises RunError where nothing was timed."""
    cold = [timing for timing in verdict.timings if timing.cache == "cold" and timing.company == "plain"]
    if not cold:
        raise RunError(f"nothing was timed, so there is nothing to draw: {verdict.outcome}: {verdict.reason}")
    spec = swept.kernel.spec

    def at(timing: Timing, value: float) -> tuple[float, float]:
        return float(timing.workload.axes[swept.axis]), value

    def gbps(timing: Timing, us: float) -> float:
        return (spec.read_bytes(timing.workload) + spec.write_bytes(timing.workload)) / us * 1e-3

    bound = [(t, t.light_us) for t in cold if t.light_us]
    mine, base = ("this file", "best"), (one_line(the_baseline(baseline), 24), "base")
    light = ("speed of light", "light")

    def curves(value) -> tuple[Curve, ...]:
        lines = [
            Curve(*base, tuple(at(t, value(t, t.baseline_us)) for t in cold)),
            Curve(*mine, tuple(at(t, value(t, t.time_us)) for t in cold)),
        ]
        return (*lines, *([Curve(*light, tuple(at(t, value(t, us)) for t, us in bound), dashed=True)] if bound else []))

    speedups = (
        Curve("speedup", "best", tuple(at(t, t.speedup.median) for t in cold)),
        Curve("1.0×", "base", tuple(at(t, 1.0) for t in cold), dashed=True),
    )
    fixed = {name: size for name, size in cold[0].workload.axes.items() if name != swept.axis}
    others = ", ".join([swept.dtype, *(f"{name} {size}" for name, size in fixed.items()), "cold cache"])
    return panels(
        (
            Panel("time of a call, µs", curves(lambda _t, us: us)),
            Panel("bandwidth, GB/s", curves(gbps)),
            Panel("speedup over the baseline", speedups, log_y=False),
        ),
        f"{spec.name}: {one_line(file, 50)} on {one_line(verdict.device, 40)}, {others}",
        swept.axis,
    )
