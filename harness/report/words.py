"""Numbers in the words that every view shares: `3.36 µs`, `1.31×`, `87 %`, `2 min 05 s`."""

from __future__ import annotations

from harness.records import Interval


def times(value: float) -> str:
    """A speedup: two decimals, `1.31×`; one from 10 up."""
    return f"{value:.2f}×" if value < 9.995 else f"{value:.1f}×"


def interval(speedup: Interval | None) -> str:
    """`1.31× (1.29 – 1.33)`, a dash where there is none."""
    return "–" if speedup is None else f"{times(speedup.median)} ({speedup.low:.2f} – {speedup.high:.2f})"


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


def count(number: int, noun: str) -> str:
    """`1 round`, `5 rounds`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
