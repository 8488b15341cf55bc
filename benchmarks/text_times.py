"""Times of many texts of the same kernels in minutes: what each rewrite is worth, old rules beside new ones.

    python -m benchmarks.text_times FILE [--only WORD] [--more N] [--json FILE]

FILE is {input: {variant: text}}, as `benchmarks.ablation --texts` and `benchmarks.rewritten_texts` write it ("first" is that one's text);
an input's own text is the variant "source". A GPU is needed, and nothing else may be at work on it.

Not the instrument: nothing is hidden, nothing is in company, no number is tuned. At each timed size (`--more`: rows so much longer)
the calls of a variant are captured one after another into a graph of about 300 us, hot (the same tensors again) and, where they are smaller than half
the cache, cold (other tensors each time); the graphs are replayed in turns, and medians are kept. Outputs that are not the source's are said.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.odd_widths import longer
from benchmarks.rewrite_inputs import Input, inputs
from harness import device
from harness.backends import cuda
from harness.correctness import draw
from harness.store import digest
from harness.verification import first_error
from harness.worker import CTYPES
from kernels.spec import Scalar, Size, Spec, Tensor, Workload

GRAPH_US = 300.0
REPLAYS = 15
BUILDERS = 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", default="", help="inputs whose label holds this")
    parser.add_argument(
        "--more", type=int, default=0, help="rows so many elements longer than those of the timed sizes"
    )
    parser.add_argument("--json", type=Path, help="write {input: {size: {variant: us}}}")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    told = json.loads(options.file.read_text())
    wanted = [
        one for one in inputs() if one.label in told and one.device.device == "cuda" and options.only in one.label
    ]
    if options.worker:
        for one in wanted[int(options.worker) :]:
            for found in times(one, texts_of(one, told), options.file.parent, options.more):
                print(json.dumps([one.label, *found]), flush=True)
            print(json.dumps([one.label]), flush=True)
        return
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder) / "texts.json"
        kept.write_text(options.file.read_text())
        texts = {text for one in wanted for text in texts_of(one, told).values()}
        with ThreadPoolExecutor(BUILDERS) as pool:
            list(pool.map(lambda text: build(text, kept.parent), texts))
        print(f"{len(texts)} texts of {len(wanted)} inputs are built", flush=True)
        found = by_workers(kept, [one.label for one in wanted], options)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    show(found)


def texts_of(one: Input, told: dict[str, dict[str, Any]]) -> dict[str, str]:
    said = told[one.label]
    return {"source": one.text, **{name: text for name, text in said.items() if isinstance(text, str)}}


def artefact(text: str, folder: Path) -> Path:
    return folder / digest(text)[:24] / "kernel.so"


def build(text: str, folder: Path) -> None:
    """What does not compile has no artefact. A folder each: a compiler's box has its temporary files there."""
    made = artefact(text, folder)
    made.parent.mkdir()
    source = made.with_suffix(".cu")
    source.write_text(text)
    compiled = cuda.compile(source, made, device.facts("cuda"), 300.0)
    if not compiled.ok:
        print(f"a text does not compile: {first_error(compiled.log)}", flush=True)


def by_workers(kept: Path, labels: list[str], options: argparse.Namespace) -> dict[str, dict[str, dict[str, float]]]:
    """All that a process says; where one ends at an input (an illegal address), another goes on behind it."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    at = 0
    while at < len(labels):
        command = [sys.executable, "-m", "benchmarks.text_times", str(kept), "--worker", str(at)]
        command += ["--only", options.only, "--more", str(options.more)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            for line in process.stdout or ():
                label, *said = json.loads(line)
                if said:
                    found.setdefault(label, {})[said[0]] = said[1]
                else:
                    at = labels.index(label) + 1
        if process.returncode:
            print(f"{labels[at]}: its process ended with {process.returncode}", flush=True)
            at += 1
    return found


def times(one: Input, texts: dict[str, str], folder: Path, more: int) -> Iterator[tuple[str, dict[str, float]]]:
    """(size and cache, {variant: microseconds a call}) of each timed size."""
    spec = one.spec
    sizes = longer(spec, "cuda", more) if more else [w for w in spec.suite("cuda", held_out=False) if w.timed]
    libraries = {}
    for name, text in texts.items():
        if artefact(text, folder).exists():
            libraries[name] = ctypes.CDLL(str(artefact(text, folder)))
        else:
            print(f"{one.label}: {name} does not compile", file=sys.stderr, flush=True)
    for size in sizes:
        entries = {name: entry(spec, size, library) for name, library in libraries.items()}
        need = sum(spec.tensor_bytes(tensor, size) for tensor in spec.tensors)
        cache = one.device.last_level_cache_bytes
        for state, slots in (("hot", 1), ("cold", 4 * cache // need)):
            if slots:
                yield f"{size.label}, {state}", measured(one.label, spec, size, entries, min(slots, 400))


def entry(spec: Spec, size: Workload, library: Any) -> Any:
    function = next(getattr(library, name) for name in spec.entry_names(size.dtype) if hasattr(library, name))
    function.restype = None
    return function


def measured(label: str, spec: Spec, size: Workload, entries: dict[str, Any], slots: int) -> dict[str, float]:
    import torch

    stream = torch.cuda.Stream()
    handle = ctypes.c_void_p(stream.cuda_stream)
    given = [tensors(spec, size) for _ in range(slots)]
    calls = [encoded(spec, size, one) for one in given]
    begun = {name: tensor.clone() for name, tensor in given[0].items()}
    graphs, right = {}, None
    entries["source"](*calls[0], handle)
    torch.cuda.synchronize()
    repeats = {
        name: max(slots, math.ceil(GRAPH_US / once_us(function, calls, handle, stream)))
        for name, function in entries.items()
    }
    for name, function in entries.items():
        for key, value in begun.items():
            given[0][key].copy_(value)
        torch.cuda.synchronize()
        function(*calls[0], handle)
        torch.cuda.synchronize()
        out = {tensor.name: given[0][tensor.name].clone() for tensor in spec.outputs}
        right = right or out
        if worst := [key for key, value in out.items() if not close(value, right[key])]:
            print(f"{label} at {size.label}: {name} gives another {worst[0]}", file=sys.stderr, flush=True)
        graphs[name] = torch.cuda.CUDAGraph()
        # torch.cuda.graph collects garbage each time, which takes longer than all the rest
        with torch.cuda.stream(stream):
            graphs[name].capture_begin(capture_error_mode="relaxed")
            for at in range(repeats[name]):
                function(*calls[at % slots], handle)
            graphs[name].capture_end()
    samples: dict[str, list[float]] = {name: [] for name in graphs}
    names = list(graphs)
    for turn in range(REPLAYS + 1):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            took = timed(graphs[name].replay, stream)
            if turn:
                samples[name].append(took / repeats[name])
    return {name: statistics.median(some) for name, some in samples.items()}


def once_us(function: Any, calls: list[list[Any]], handle: Any, stream: Any) -> float:
    function(*calls[0], handle)  # loads its kernels
    return timed(lambda: [function(*calls[at % len(calls)], handle) for at in range(10)], stream) / 10


def timed(work: Any, stream: Any) -> float:
    """Microseconds on the GPU."""
    import torch

    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    with torch.cuda.stream(stream):
        begin.record()
        work()
        end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e3


def tensors(spec: Spec, size: Workload) -> dict[str, Any]:
    import torch

    made: dict[str, Any] = {}
    for tensor in spec.tensors:
        shape, kind = spec.shape(tensor, size.axes), getattr(torch, spec.dtype(tensor, size))
        made[tensor.name] = torch.zeros(shape, dtype=kind, device="cuda")
        if tensor.role != "output":
            bound = spec.bound(tensor)
            least = None if bound is None else made[bound.name].min().reshape(1)
            draw(made[tensor.name], tensor.values[0], size, torch.Generator("cuda").manual_seed(len(made)), least)
    return made


def encoded(spec: Spec, size: Workload, given: dict[str, Any]) -> list[Any]:
    """The entry point's arguments, without the stream."""
    arguments: list[Any] = []
    for argument in spec.arguments:
        if isinstance(argument, Tensor):
            arguments.append(ctypes.c_void_p(given[argument.name].data_ptr()))
        elif isinstance(argument, Size):
            arguments.append(CTYPES["i"](size.axes[argument.name]))
        elif isinstance(argument, Scalar):
            kind = CTYPES[{"float": "f", "double": "d", "int64_t": "i"}[argument.ctype]]
            arguments.append(kind(int(argument.value) if argument.ctype == "int64_t" else argument.value))
    return arguments


def close(one: Any, other: Any) -> bool:
    """As far as a rounding or two goes."""
    import torch

    bits = torch.finfo(one.dtype).bits if one.is_floating_point() else 0
    if not bits:
        return bool(((one.double() - other.double()).abs() <= 1).all())
    near = {32: 1e-3, 64: 1e-6}.get(bits, 3e-2 if bits == 16 else 0.3)
    return torch.allclose(one.float(), other.float(), rtol=near, atol=near, equal_nan=True)


def show(found: dict[str, dict[str, dict[str, float]]]) -> None:
    table = Table(title=f"speedup beside the source on {device.facts('cuda').name}, not in company")
    for column in ("input", "variant", "geometric mean", "least", "most", "of the first plan's speed"):
        table.add_column(column, justify="left" if column in {"input", "variant"} else "right")
    for label, sizes in found.items():
        names = list(next(iter(sizes.values())))
        for name in names[1:]:
            ratios = [one["source"] / one[name] for one in sizes.values()]
            first = "" if name == names[1] else f"{mean([one[names[1]] / one[name] for one in sizes.values()]):.3f}"
            table.add_row(label, name, f"{mean(ratios):.2f}x", f"{min(ratios):.2f}x", f"{max(ratios):.2f}x", first)
    Console(width=170).print(table)


def mean(ratios: list[float]) -> float:
    return statistics.geometric_mean(ratios)


if __name__ == "__main__":
    main()
