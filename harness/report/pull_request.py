"""What a reviewer of the user's own repository asks for: a run's result as Markdown for a pull request."""

from __future__ import annotations

from harness.report.result import Result, WorkloadRow
from harness.report.words import interval, micros, model_step, percent, the_baseline, worst


def markdown(result: Result, diff: str, built: str, test: str = "", missing: str = "", profile: str = "") -> str:
    """Headline with the worst workload beside it, a table of all sizes, equality, how it was measured, what is said of the `profile`, the diff, a test
    with its benchmark (`missing`: why there is none)."""
    visible = [row for row in result.workloads if not row.held_out]
    mean = (
        "of the time of all calls, each size by its weight"
        if result.weighted
        else "geometric mean over the sizes below"
    )
    head = (
        f"{interval(result.speedup)} against {the_baseline(result.baseline)} on {result.device_name} ({mean}, 99 % interval)"
        if result.speedup
        else "nothing was measured"
    )
    parts = [
        f"## `{result.kernel}`: {head}",
        "",
        f"{result.summary}. {'; '.join(filter(None, [worst(visible), _held_out(result)]))}.",
        "",
        *_table(result.workloads),
        "",
        _legend(result),
        "",
        *_equality(result),
        *_model_steps(result),
        *[f"- warning: {warning}" for warning in result.warnings],
        f"- {built}",
        f"- measured by Astrolabe {result.commit} on {result.device_name}, {result.started:%Y-%m-%d}, baseline and candidate interleaved in processes of their own"
        + (f": `{result.command}`" if result.command else ""),
        *(f"- {said}" for said in (profile, missing) if said),
        "",
        *_folded("diff", "diff", diff),
        *(_folded("test and benchmark", "python", test) if test else []),
    ]
    return "\n".join(parts)


def _folded(title: str, language: str, text: str) -> list[str]:
    head, foot = ["<details><summary>" + title + "</summary>", "", "```" + language], ["```", "", "</details>", ""]
    return [*head, text.rstrip("\n"), *foot]


def _held_out(result: Result) -> str:
    if result.held_out_speedup is None:
        return f"sizes held out: {result.held_out_outcome}" if result.held_out_outcome else ""
    return f"sizes that it had not seen: {interval(result.held_out_speedup)}"


def _table(rows: tuple[WorkloadRow, ...]) -> list[str]:
    lines = [
        "| size | dtype | cache | before, us | after, us | speedup (99 %) | GB/s | of speed of light |",
        "|---|---|---|---:|---:|---|---:|---:|",
    ]
    for row in rows:
        rate = f"{row.moved_bytes / row.best_us / 1e3:,.0f}" if row.moved_bytes else "–"
        light = percent(row.light.fraction) if row.light else "–"
        seen = " (held out)" if row.held_out else ""
        lines.append(
            f"| {row.label}{seen} | {row.dtype} | {row.cache} | {micros(row.baseline_us)} | {micros(row.best_us)} | {interval(row.speedup)} | {rate} | {light} |"
        )
    return lines


def _legend(result: Result) -> str:
    """What the table's columns are, for a reader who knows none of this."""
    rows = result.workloads
    said = [
        "Times are of one call"
        + (" from a CUDA graph, where it can be captured" if result.device == "cuda" else "")
        + ", medians"
    ]
    if any(row.cache == "cold" for row in rows):
        said.append("cold: with caches that hold none of its tensors, hot: with what the call before left there")
    said.append("the speedup's interval holds the true ratio in 99 of 100 measurements")
    if any(row.moved_bytes for row in rows):
        said.append(
            "GB/s: bytes that a call has to move at least, inputs read once and outputs written once, by the time after"
        )
    if any(row.light for row in rows):
        said.append("of speed of light: the shortest time in which this device moved as many bytes, by the time after")
    if any(row.held_out for row in rows):
        said.append("held out: a size that took no part in the search")
    return f"*{'; '.join(said)}.*"


def _model_steps(result: Result) -> list[str]:
    """What `run.py model` has measured, where it has."""
    if result.model is None:
        return []
    shape = result.model.shape
    of = f"step of a model of {shape.layers} layers of {shape.hidden} in {result.model.dtype}, before and after"
    return [f"- {step.name} {of}: {model_step(step)}" for step in result.model.steps]


def _equality(result: Result) -> list[str]:
    if result.draws is None:
        return []
    draws = result.draws
    if draws.bitwise == draws.count:
        return [f"- equality: bitwise, every output's every bit was the baseline's in {draws.count} fresh draws"]
    by_output = [
        f"`{name}` {'bitwise' if not share else f'within tolerance, {percent(share)} of its elements are others'}"
        for name, share in draws.differing.items()
    ]
    said = f"equality: {'; '.join(by_output) or 'within tolerance'}: {draws.count} fresh draws right, {draws.bitwise} of them the baseline's in every bit"
    return [f"- {said}; largest error {draws.error:.2f} of the tolerance (the baseline's {draws.baseline_error:.2f})"]
