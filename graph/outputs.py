"""What a run leaves in its folder for people: best.cu or best.cpp, best.diff, result.json, report.html."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pydantic import ValidationError

from graph.conversation import describe_prompt_caching, exchanges
from graph.runs import RunError, RunFolder
from harness import device
from harness.backends import is_python
from harness.evaluate import Evaluator
from harness.export import patch
from harness.export.one_file import needs_loader, standalone
from harness.judge.session import MissingTool
from harness.probes import ncu
from harness.processes.toolbox import ToolboxUnavailable
from harness.report import html, plot, roofline
from harness.report.result import Result, WorkloadRow
from harness.report.source import diff_text
from harness.report.words import micros, the_baseline
from harness.store import write_atomically
from harness.timing import samples
from kernels import catalog
from kernels.spec import Workload

SUFFIX = {"cuda": "cu", "cpu": "cpp"}
WIDTHS = (860, 380)
"""Widths of a picture on a desktop and on a phone, px."""


def best_file(run: RunFolder, result: Result) -> Path:
    """The best as it was written: of a problem a module, or the native source that a person gave as its first candidate."""
    module, native = run.folder / "best.py", run.folder / f"best.{SUFFIX[result.device]}"
    return module if result.problem and not native.exists() else native


def write(run: RunFolder, result: Result) -> None:
    """The files that a run is for, each whole or not at all. Raises OSError where the disk is full."""
    before, after = run.store.get(result.source), run.store.get(result.best)
    best = write_best(run, result.best, result.device, problem=bool(result.problem))
    if result.problem and needs_loader(after):
        write_atomically(run.folder / "best_standalone.py", standalone(after))
    write_atomically(run.folder / "best.diff", diff_text(before, after, f"{result.baseline} (baseline)", best.name))
    # Last, because whoever finds it may expect the others.
    write_atomically(run.folder / "result.json", result.model_dump_json(indent=1) + "\n")


def write_best(run: RunFolder, candidate: str, device: str, *, problem: bool) -> Path:
    """The source of that hash as the run's best file. Raises OSError where the disk is full."""
    text = run.store.get(candidate)
    module, native = run.folder / "best.py", run.folder / f"best.{SUFFIX[device]}"
    best, other = (module, native) if problem and is_python(text) else (native, module)
    write_atomically(best, text)
    other.unlink(missing_ok=True)  # of an earlier best
    return best


def _samples(run: RunFolder, candidate: str, row: WorkloadRow) -> samples.Samples | None:
    workload = Workload(axes=row.axes, dtype=row.dtype, held_out=row.held_out)
    return samples.load(run.store, candidate, workload, row.cache, row.company)


def _histograms(run: RunFolder, result: Result) -> list[str]:
    """Pictures of the samples of the best file and its baseline, one for each workload and cache state."""
    pictures = []
    for row in result.workloads:
        found = _samples(run, result.best, row)
        if found is None:
            continue
        kinds = {"baseline": "base", "candidate": "best"}
        sides = [
            (name, kinds[name], [value * 1e6 for value in values])
            for name, values in found.seconds.items()
            if name in kinds and values
        ]
        if sides:
            name = f"{row.label} {row.dtype}, {row.cache}{', held out' if row.held_out else ''}"
            pictures.append(plot.histogram(name, sides))
    return pictures


def _roofs(run: RunFolder, result: Result) -> list[html.Picture]:
    """What the baseline, incumbents on the way and the best reach of this device, with a cold cache.

    Without the bytes of a call there is no picture, without FLOPs or the device's roofs only the one of bandwidth.
    """
    rows = [row for row in result.rows(held_out=False) if row.cache == "cold" and row.moved_bytes]
    if not rows:
        return []

    def points(time_us: Callable[[WorkloadRow], float | None]) -> list[plot.RooflinePoint]:
        timed = [(row, us) for row in rows if (us := time_us(row))]
        return [
            plot.RooflinePoint(row.moved_bytes or 0, us, f"{row.label} {row.dtype}: {micros(us)} µs", row.flops or 0)
            for row, us in timed
        ]

    def of(candidate: str) -> Callable[[WorkloadRow], float | None]:
        def time_us(row: WorkloadRow) -> float | None:
            found = _samples(run, candidate, row)
            return found.net_us("candidate") if found else None

        return time_us

    way = [one for one in result.attempts if one.accepted and one.candidate != result.best]
    files = [(the_baseline(result.baseline)[4:], "base", points(lambda row: row.baseline_us))]
    files += [(f"round {one.round}", "ink", points(of(one.candidate))) for one in way]
    if result.improved:
        files.append((f"best, round {result.best_round}", "best", points(lambda row: row.best_us)))
    shown, title = [one for one in files if one[2]], f"{result.kernel} on {result.device_name}, cold cache"
    light = points(lambda row: row.light.us if row.light else None)
    peak = result.facts.bandwidth_gbps if result.facts and result.facts.bandwidth_gbps else 0.0
    what = "of baseline, incumbents and best"
    pictures = [
        html.Picture(
            "Bandwidth under the roof",
            f"Achieved bandwidth {what} over the bytes of a call, under the measured roof",
            *(plot.roof(shown, light, peak, title, width) for width in WIDTHS),
        )
    ]
    flat = roofline.roofs(result.facts, sorted({row.dtype for row in rows})) if result.facts else []
    if peak and flat and all(row.flops for row in rows):
        pictures.append(
            html.Picture(
                "Roofline",
                f"Achieved FLOPs a second {what} over FLOPs a byte, under the measured roofs of bandwidth and arithmetic",
                *(roofline.roofline(shown, peak, flat, title, width) for width in WIDTHS),
            )
        )
    return pictures


def write_report(run: RunFolder, result: Result, graph_svg: str) -> None:
    names = {result.source, result.best, *(row.candidate for row in result.attempts)} - {""}
    sources = {name: run.store.get(name) for name in sorted(names)}
    asked = run.folder / "transcript.jsonl"
    page = html.render(
        result, sources, graph_svg=graph_svg, transcript=exchanges(asked), prompts=describe_prompt_caching(asked),
        roofs=_roofs(run, result),
        histograms=_histograms(run, result),
    )  # fmt: skip
    write_atomically(run.folder / "report.html", page)


def write_samples(run: RunFolder, result: Result, path: Path) -> None:
    """Every sample of the best file's timings as CSV. Raises RunError where the run has kept none."""
    found = []
    for row in result.workloads:
        one = _samples(run, result.best, row)
        found += [one] if one is not None else []
    if not found:
        raise RunError(f"run {run.id} has kept no samples: nothing of it was timed, or by a version that kept none")
    write_atomically(path, samples.as_csv(found))


def read(run: RunFolder) -> Result | None:
    """The record of a finished run, None where it was never written or by another version."""
    try:
        return Result.model_validate_json((run.folder / "result.json").read_bytes())
    except (OSError, ValidationError):
        return None


def changes(run: RunFolder, result: Result, of: Path | None) -> tuple[str, str]:
    """(the diff that puts the run's best into the user's own file, whether that was built as it becomes).

    Raises ExportError where it cannot be put there, or does not compile; RunError where the file cannot be read.
    """
    settings = run.record.settings
    kernel = catalog.load(settings.kernel).of_dtypes(result.dtypes)
    baseline, winner = run.source(result.source), run.source(result.best)
    if of is None:
        of = (
            Path(settings.baseline)
            if Path(settings.baseline).is_file()
            else kernel.baseline(result.device, settings.baseline)[1]
        )
    try:
        on_disk = of.read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"{of} cannot be read: {error}") from None
    name, own = _in_its_repository(of), on_disk.replace("\r\n", "\n")
    headers = {where: text.decode(errors="replace") for where, text in kernel.headers.items()}
    plain = {where: text.replace("\r\n", "\n") for where, text in headers.items()}
    after = patch.patch_files(
        kernel.spec, own, baseline, winner, name, result.device, plain, packaged=(of.parent / "__init__.py").exists()
    )
    architecture = result.facts.architecture if result.facts is not None else "sm_90"
    built = patch.compile_patched(kernel, own, after, name, result.device, architecture)
    if name in after:
        return patch.diff({name: on_disk}, after), built
    where = {header: _in_its_repository(kernel.folder / header) for header in after}
    before = {where[header]: headers[header] for header in after if header in headers}
    return patch.diff(before, {where[header]: text for header, text in after.items()}), built


def profile(run: RunFolder, result: Result) -> tuple[bytes, str]:
    """(the best file's call at the largest timed size as a report of Nsight Compute, a sentence on it or on why there is none); of a GPU's alone."""
    if result.device != "cuda":
        return b"", ""
    kernel = catalog.load(run.record.settings.kernel).of_dtypes(result.dtypes)
    timed = [workload for workload in kernel.spec.suite("cuda") if workload.timed]
    try:
        device.choose("cuda")
        with Evaluator(kernel, "cuda", run.store) as evaluator:
            build = evaluator.build(result.best)
            largest = max(timed, key=evaluator.moved_bytes)
            made = ncu.report(build, evaluator.facts, kernel.spec, largest)
    except (device.DeviceError, MissingTool, ToolboxUnavailable) as error:
        return b"", f"no profile: {error}"
    return made, f"profile: {result.kernel}.ncu-rep, one call at {largest.label} (Nsight Compute)"


def _in_its_repository(path: Path) -> str:
    """The path below the checkout that it lies in, as `git apply` wants it; where it lies in none, its name."""
    whole = path.resolve()
    root = next((folder for folder in whole.parents if (folder / ".git").exists()), whole.parent)
    return whole.relative_to(root).as_posix()
