"""Numbers in the words that every view shares: `3.36 µs`, `1.31×`, `87 %`, `2 min 05 s`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from harness.records import Draws, EpochGain, Interval
from harness.report.inert import one_line

if TYPE_CHECKING:
    from harness.judge.in_model import StepGain
    from harness.report.result import Result, WorkloadRow


def times(value: float) -> str:
    """A speedup: two decimals, `1.31×`; one from 10 up."""
    return f"{value:.2f}×" if value < 9.995 else f"{value:.1f}×"


def interval(speedup: Interval | None) -> str:
    """`1.31× (1.29 – 1.33)`, a dash where there is none."""
    return "–" if speedup is None else f"{times(speedup.median)} ({speedup.low:.2f} – {speedup.high:.2f})"


def worst(rows: Iterable[WorkloadRow]) -> str:
    """The workload that gains least, for beside a mean: `worst 0.28× at tokens=1 float16, hot`; "" for fewer than two."""
    known = sorted(rows, key=lambda row: row.speedup.median)
    if len(known) < 2:
        return ""
    return (
        f"worst {times(known[0].speedup.median)} at {one_line(known[0].label, 80)} {known[0].dtype}, {known[0].cache}"
    )


def micros(value: float) -> str:
    """Three significant digits in microseconds, thousands grouped: `3.36`, `52.1`, `1,204`."""
    if value >= 999.5:
        return f"{value:,.0f}"
    return f"{value:.0f}" if value >= 99.95 else f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.0f} %"


def duration(seconds: float) -> str:
    """`0.8 s`, `42 s`, `2 min 05 s`, `1 h 12 min`."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def the_baseline(name: str) -> str:
    """`the production baseline`; `the baseline` where that is its name; `the baseline my.cu` for a file."""
    if name == "baseline":
        return "the baseline"
    return f"the {name} baseline" if name.replace("_", "").isalnum() else f"the baseline {name}"


def commit(name: str) -> str:
    """Its first twelve digits; `-dirty` stays."""
    digits, dirty, _ = name.partition("-dirty")
    return digits[:12] + dirty


def count(number: int, noun: str) -> str:
    """`1 round`, `5 rounds`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


COMPANY = {
    "plain": "among kernels that launch plainly",
    "pdl": "among kernels with programmatic launch",
    "early": "behind a kernel that triggers early",
    "alone": "back to back with itself, which no model does",
}


def evidence(result: Result) -> dict[str, str]:
    """What is known of the best beside its speedup: heading -> one sentence."""
    said: dict[str, str] = {}
    for company, suite in result.suites_elsewhere.items():
        said[f"speedup {COMPANY[company]}"] = f"{interval(suite.speedup)}, hot"
    if draws := result.draws:
        same = (
            "every bit as the baseline's"
            if draws.equality == "bitwise"
            else f"{draws.bitwise} equal to the baseline's in every bit"
        )
        said["draws"] = (
            f"{draws.count} more random inputs, none wrong, {same}: a failure rate above {draws.excluded:.1%} is excluded (95 %); "
            f"largest error {draws.error:.2f} of the tolerance, the baseline's {draws.baseline_error:.2f}"
        )
        said["equality"] = equality(draws)
    if launch := result.launch:
        said["launch path"] = f"{micros(launch.baseline_us)} µs of the host a call, now {micros(launch.time_us)} µs"
    for step in result.model.steps if result.model else ():
        said[f"{step.name} step of a model"] = model_step(step)
    if result.epoch:
        said["epoch of training"] = epoch_gain(result.epoch)
    return said


def equality(draws: Draws) -> str:
    """`bitwise`, or by output: `codes: bitwise but for 0.2 % of its elements, which are within tolerance; scale: bitwise`."""
    if not draws.differing or draws.equality == "bitwise":
        return draws.equality
    said = {0.0: "bitwise"}
    return "; ".join(
        f"{name}: {said.get(share) or f'bitwise but for {100 * share:.2g} % of its elements, which are within tolerance'}"
        for name, share in draws.differing.items()
    )


def epoch_gain(gain: EpochGain) -> str:
    """`SAME, 1.004x (0.998 - 1.011): 1.147 s and 1.142 s on papers100M-like, rung gpu-graph; accuracy 0.301 and 0.302`."""
    low, high = gain.speedup.low, gain.speedup.high
    accuracy = ""
    if gain.baseline_accuracy is not None and gain.accuracy is not None:
        accuracy = f"; validation accuracy {gain.baseline_accuracy:.3f} and {gain.accuracy:.3f}"
    return (
        f"{gain.comparison}, {gain.speedup.median:.3f}x ({low:.3f} – {high:.3f}): {gain.baseline_s:.3f} s and "
        f"{gain.time_s:.3f} s on {gain.graph}, rung {gain.rung}{accuracy}"
    )


def model_step(step: StepGain) -> str:
    """`1.027x (1.025 - 1.029), with programmatic launch 1.035x; the kernels had 7.4% of its 812 µs`."""
    pdl = f", with programmatic launch {step.pdl.median:.3f}x" if step.pdl else ""
    return (
        f"{step.speedup.median:.3f}x ({step.speedup.low:.3f} – {step.speedup.high:.3f}){pdl}; "
        f"the kernels had {step.share:.1%} of its {micros(step.baseline_us)} µs"
    )
