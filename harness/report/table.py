"""Tables for the terminal. `print_result(result, Console())`: rich leaves colour out where it is no terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from harness.records import Comparison, Interval, Outcome
from harness.report.console import Console
from harness.report.inert import one_line
from harness.report.result import AttemptRow, Result, WorkloadRow
from harness.report.words import count, duration, evidence, interval, micros, percent, the_baseline, times, worst

STYLES = {
    "FASTER": "bold green",
    "SLOWER": "bold red",
    "SAME": "dim",
    "UNCLEAR": "yellow",
    "PASSED": "green",
    "finished": "green",
    "running": "cyan",
    "paused": "yellow",
    "stopped": "yellow",
    "failed": "bold red",
}


def word(value: object) -> Text:
    """A verdict, an outcome or a status in its colour; an outcome that is no pass is red."""
    text = one_line(value, 40)
    return Text(text, style=STYLES.get(text, "red" if text.isupper() else ""))


def _plain(value: object, limit: int = 200, style: str = "") -> Text:
    return Text(one_line(value, limit), style=style)


def _table(title: str, *columns: str) -> Table:
    """A column's name may start with marks: `>` set to the right, `~` may take several lines where space is short."""
    table = Table(
        box=box.SIMPLE_HEAD,
        title=Text(title, style="bold") if title else None,
        title_justify="left",
        pad_edge=False,
        collapse_padding=True,
    )
    for column in columns:
        name = column.lstrip(">~")
        marks = column[: len(column) - len(name)]
        table.add_column(
            Text(name), justify="right" if ">" in marks else "left", no_wrap="~" not in marks, overflow="fold"
        )
    return table


def _print(console: Console, view: RenderableType) -> None:
    if not console.is_terminal:
        console.width = max(console.width, 150)  # a pipe has no width, and rich would break everything at 80
    console.print(view)


def workloads_table(rows: Sequence[WorkloadRow], title: str) -> Table:
    """One line a workload and cache state: times in us, speedup with its interval, share of speed of light."""
    axes = " × ".join(rows[0].axes) if rows else "workload"
    table = _table(
        title, f"~{one_line(axes, 60)}", "cache", ">baseline µs", ">best µs", ">speedup", "verdict", ">of SOL"
    )
    before = ""
    for row in rows:
        label = f"{' × '.join(map(str, row.axes.values()))} {row.dtype}"
        table.add_row(
            _plain(label if label != before else ""),
            row.cache,
            micros(row.baseline_us),
            micros(row.best_us),
            f"{times(row.speedup.median)} {row.speedup.low:.2f}–{row.speedup.high:.2f}",
            word(row.comparison),
            percent(row.light.fraction if row.light else None),
        )
        before = label
    return table


def attempts_table(attempts: Sequence[AttemptRow]) -> Table:
    """A run's attempts: under each plan the numbers that were searched, or why it was not kept."""
    table = _table("Attempts", ">#", "~plan", "outcome", ">speedup", ">gain", "candidate", ">time")
    for row in attempts:
        plan = _plain(row.plan.title, 100)
        tuned = " ".join(f"{name}={value}" for name, value in row.tuned.items())
        for detail in filter(None, (tuned, row.reason)):
            plan.append(f"\n{one_line(detail, 220)}", style="dim")
        table.add_row(
            str(row.round),
            plan,
            Text("PASSED, kept", style="bold green") if row.accepted else word(row.outcome),
            times(row.speedup.median) if row.speedup else "–",
            times(row.gain) if row.gain else "–",
            row.candidate[:8] or "–",
            duration(row.seconds),
        )
    return table


def pairs_table(rows: Sequence[tuple[WorkloadRow, WorkloadRow, Interval]], first: str, second: str) -> Table:
    """`compare`: both files' times and speedups on each workload, and how many times faster the second is."""
    axes = " × ".join(rows[0][0].axes) if rows else "workload"
    a, b = one_line(first, 30), one_line(second, 30)
    table = _table(
        "", f"~{one_line(axes, 60)}", "cache", f">~{a} µs", f">~{b} µs", f">~{a}", f">~{b}", ">second over first"
    )
    before = ""
    for one, other, ratio in rows:
        label = f"{' × '.join(map(str, one.axes.values()))} {one.dtype}{' held out' if one.held_out else ''}"
        clear = "bold green" if ratio.low > 1 else "bold red" if ratio.high < 1 else "dim"
        table.add_row(
            _plain(label if label != before else ""),
            one.cache if one.company == "plain" else f"{one.cache}, {one.company}",
            micros(one.best_us),
            micros(other.best_us),
            times(one.speedup.median),
            times(other.speedup.median),
            Text(f"{times(ratio.median)} {ratio.low:.2f}–{ratio.high:.2f}", style=clear),
        )
        before = label
    return table


def print_pairs(
    rows: Sequence[tuple[WorkloadRow, WorkloadRow, Interval]], first: str, second: str, overall: Interval,
    notes: Sequence[str], console: Console,
) -> None:  # fmt: skip
    said = f"{one_line(second, 80)} over {one_line(first, 80)}: {interval(overall)}"
    lines = [_plain(note, 400, "dim") for note in notes]
    _print(console, Group(pairs_table(rows, first, second), Text(said, style="bold"), *lines))


@dataclass(frozen=True)
class RunLine:
    """One run of `runs`."""

    run_id: str
    kernel: str
    device: str
    policy: str
    status: str
    round: int
    rounds: int
    speedup: float | None = None
    started: str = ""


def runs_table(runs: Iterable[RunLine]) -> Table:
    table = _table("", "~run", "kernel", "device", "~policy", ">round", ">speedup", "state", "~started")
    for run in runs:
        table.add_row(
            _plain(run.run_id),
            _plain(run.kernel),
            _plain(run.device),
            _plain(run.policy),
            f"{run.round}/{run.rounds}",
            times(run.speedup) if run.speedup else "–",
            word(run.status),
            _plain(run.started),
        )
    return table


def headline(result: Result) -> Text:
    """The run in two or three lines: what came out, against which baseline, on which device, why it ended."""
    text = Text()
    where = one_line(f"{result.kernel} on {result.device_name or result.device}", 120)
    if result.status not in ("finished", "failed"):
        text.append("Not finished: ", style="bold yellow")
    if result.improved and result.speedup:
        text.append(times(result.speedup.median), style="bold green")
        text.append(f" (interval {result.speedup.low:.2f} – {result.speedup.high:.2f}) ")
        weighted = "of the weighted calls' time " if result.weighted else ""
        text.append(
            f"{weighted}against {the_baseline(one_line(result.baseline, 80))}: {where}, round {result.best_round}"
        )
    elif result.status == "failed":
        text.append("failed", style="bold red")
        text.append(f": {where}")
    elif result.status == "finished":
        text.append("No improvement found", style="bold")
        text.append(f" over {the_baseline(one_line(result.baseline, 80))}: {where}")
    else:
        text.append(f"nothing faster than {the_baseline(one_line(result.baseline, 80))} so far: {where}")
    parts = [
        worst(row for row in result.workloads if not row.held_out) if result.improved else "",
        f"cold {interval(result.speedup_cold)}" if result.speedup_cold and result.improved else "",
        f"hot {interval(result.speedup_hot)}" if result.speedup_hot and result.improved else "",
        f"held out {interval(result.held_out_speedup)}" if result.held_out_speedup and result.improved else "",
        f"{percent(result.light_fraction)} of speed of light" if result.light_fraction else "",
    ]
    if any(parts):
        text.append("\n" + "; ".join(filter(None, parts)))
    correct = sum(row.outcome == Outcome.PASSED for row in result.attempts)
    because = result.stop_reason if result.stop_reason != result.status else ""
    ended = f"{result.status}: {one_line(because, 100)}" if because else result.status
    tokens = result.spent.tokens_in + result.spent.tokens_out
    spent = duration(result.spent.seconds) + (f", {count(tokens, 'token')}" if tokens else "")
    text.append(f"\n{ended}; {count(len(result.attempts), 'attempt')}, {correct} correct; {spent}", style="dim")
    return text


def result_view(result: Result) -> RenderableType:
    """The end-of-run report for the terminal: attempts, workloads, held-out ones apart, the headline last."""
    parts: list[RenderableType] = [attempts_table(result.attempts)] if result.attempts else []
    visible, held_out = result.rows(held_out=False), result.rows(held_out=True)
    if visible:
        parts.append(workloads_table(visible, "Workloads"))
    if held_out:
        parts.append(workloads_table(held_out, "Held out: no agent saw these"))
    parts += [_plain(note, 400, "dim") for note in result.footnotes]
    parts.append(headline(result))
    parts += [_plain(f"against torch.compile ({mode}): {interval(found)}") for mode, found in result.against.items()]
    if result.degenerate:
        parts.append(_plain(f"degenerate: {', '.join(result.degenerate)} passes KernelBench's check", 400, "yellow"))
    parts += [_plain(f"{heading}: {said}", 400) for heading, said in evidence(result).items()]
    parts += [_plain(note, 400, "dim") for note in result.notes]
    if result.held_out_reason:
        parts.append(_plain(f"The fastest candidate does not hold: {result.held_out_reason}", 400, "bold red"))
    elif result.held_out_comparison is Comparison.SLOWER:
        parts.append(_plain("Slower than the baseline on held-out workloads.", style="bold red"))
    if result.untried:
        parts.append(_plain(result.untried))
    return Group(*parts, *_remarks(result))


def _remarks(result: Result) -> list[RenderableType]:
    said: list[RenderableType] = [_plain(f"warning: {warning}", 400, "yellow") for warning in result.warnings]
    return [*said, *([_plain(result.error, 600, "red")] if result.error else [])]


def print_result(result: Result, console: Console) -> None:
    _print(console, result_view(result))


def print_attempts(result: Result, console: Console) -> None:
    """`show RUN`: the attempts, then the headline."""
    attempts = [attempts_table(result.attempts)] if result.attempts else []
    notes = [_plain(note, 400, "dim") for note in result.footnotes]
    _print(console, Group(*attempts, headline(result), *notes, *_remarks(result)))


def print_runs(runs: Iterable[RunLine], console: Console) -> None:
    _print(console, runs_table(runs))
