"""C++ that the compiler writes from references, beside the folders' own C++, torch.compile of the reference and the speed of light.

    python -m benchmarks.cpu_kernels KERNEL... [--out FILE.json] [--no-compile] [--passes 7] [--old FOLDER]

A kernel is a name of the catalog or a folder. Every timed size that agents may see is timed with one thread and with all, in memory
that lies in no cache (sets of tensors in turn, 48 MB together) and in memory that does (one set again and again); a folder without
sizes for a CPU gives its others. The arms take turns, torch.compile in a process of its own; each has a batch of calls a pass, and a ratio is
the median over the passes. `--old`: texts of another commit, `NAME.cpp` each, as a fourth arm. The text is not searched: its defaults count.
`--texts FOLDER` writes the texts there and times nothing.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

COLD_BYTES, MOST_BYTES = 48 << 20, 40 << 20
BATCH_S = 0.004


def tensors_of(kernel, workload) -> dict:
    import torch

    from harness.checks.drawing import draw

    generator, found = torch.Generator().manual_seed(0), {}
    for tensor in kernel.spec.tensors:
        made = torch.zeros(
            kernel.spec.shape(tensor, workload.axes), dtype=getattr(torch, kernel.spec.dtype(tensor, workload))
        )
        if tensor.role in ("input", "inout"):
            draw(made, tensor.values[0], workload, generator)
        found[tensor.name] = made
    return found


def size_bytes(kernel, workload) -> int:
    return kernel.spec.read_bytes(workload) + kernel.spec.write_bytes(workload)


def entry_arguments(kernel, workload, tensors: dict) -> list:
    from kernels.spec import Scalar, Size

    kinds = {"float": ctypes.c_float, "double": ctypes.c_double, "int64_t": ctypes.c_int64}
    given: list = []
    for one in kernel.spec.arguments:
        if isinstance(one, Size):
            given.append(ctypes.c_int64(workload.axes[one.name]))
        elif isinstance(one, Scalar):
            kind = kinds[one.ctype]
            given.append(kind(int(one.value)) if one.ctype == "int64_t" else kind(one.value))
        else:
            given.append(ctypes.c_void_p(tensors[one.name].data_ptr()))
    return given


class Sets:
    """Copies of a workload's tensors; a cold pass goes through all of them, a hot one stays with the first."""

    def __init__(self, kernel, workload) -> None:
        first = tensors_of(kernel, workload)
        copies = max(1, min(64, COLD_BYTES // max(1, size_bytes(kernel, workload))))
        self.all = [first, *({n: t.clone() for n, t in first.items()} for _ in range(copies - 1))]
        self.moved = [t.name for t in kernel.spec.tensors if t.role == "inout"]
        self.kept = {name: first[name].clone() for name in self.moved}

    def restore(self) -> None:
        for one in self.all:
            for name in self.moved:
                one[name].copy_(self.kept[name])


def timed_us(calls: list, hot: bool, repeat: int, threads: int) -> float:
    """Of one thread its own time on the processor, which other people's work does not add to; of several, the time that passes."""
    clock = time.thread_time if threads == 1 else time.perf_counter
    for call in calls[:1] if hot else calls[-1:]:
        call()
    begin = clock()
    for _ in range(repeat if hot else 1):
        for call in calls[:1] if hot else calls:
            call()
    return (clock() - begin) / (repeat if hot else len(calls)) * 1e6


def serve(pipe, threads: int, arms) -> None:
    """Times on demand: ("load", kernel, workload, sources) | ("pass", hot) -> arm -> us | None: end."""
    import torch

    from kernels import catalog

    torch.set_num_threads(threads)
    loaded: dict = {}
    sets: Sets
    repeat: dict[str, int] = {}
    answer: dict
    while (message := pipe.recv()) is not None:
        try:
            if message[0] == "load":
                kernel = catalog.load(message[1])
                workload = message[2]
                sets = Sets(kernel, workload)
                loaded, repeat, answer = arms(kernel, workload, sets, message[3]), {}, {}
                for name, calls in loaded.items():
                    calls[0]()
                    begin = time.perf_counter()
                    calls[0]()
                    repeat[name] = max(1, min(2000, int(BATCH_S / (time.perf_counter() - begin))))
                    answer[name] = 0.0
            else:
                answer = {}
                for name, calls in loaded.items():
                    sets.restore()
                    answer[name] = timed_us(calls, message[1], repeat[name], threads)
        except (
            RuntimeError,
            ValueError,
            KeyError,
            TypeError,
        ) as fault:  # an arm that cannot be is a line in the report
            answer = {"fault": f"{type(fault).__name__}: {str(fault)[:200]}"}
        pipe.send(answer)


def native_arms(kernel, workload, sets: Sets, sources: dict) -> dict:
    found = {}
    for name, path in sources.items():
        library = ctypes.CDLL(path)
        if name == "light":
            found |= light_arms(library, kernel, workload, len(sets.all))
            continue
        entry = next(
            (getattr(library, n) for n in kernel.spec.entry_names(workload.dtype) if hasattr(library, n)), None
        )
        if entry is not None:
            found[name] = [functools.partial(entry, *entry_arguments(kernel, workload, one)) for one in sets.all]
    return found


def light_arms(library: ctypes.CDLL, kernel, workload, copies: int) -> dict:
    import torch

    inout = sum(kernel.spec.tensor_bytes(t, workload) for t in kernel.spec.outputs if t.role == "inout")
    read, write = kernel.spec.read_bytes(workload), kernel.spec.write_bytes(workload) - inout
    given = [ctypes.c_int64(-(-count // 16)) for count in (read, write, inout)]
    buffers = [[torch.ones(count + 64, dtype=torch.uint8) for count in (read, write)] for _ in range(copies)]

    def call(entry, held: list) -> None:
        entry(*(ctypes.c_void_p(-(-one.data_ptr() // 16) * 16) for one in held), *given)

    return {
        kind: [functools.partial(call, getattr(library, kind), held) for held in buffers]
        for kind in ("light_cached", "light_around", "light_serial")
    }


def compile_arms(kernel, workload, sets: Sets, sources: dict) -> dict:
    import torch

    from kernels.spec import Scalar

    torch._dynamo.reset()
    written = [tensor.name for tensor in kernel.spec.outputs]
    scalars = {s.name: s.value for s in kernel.spec.arguments if isinstance(s, Scalar)}
    axes = {name: workload.axes[name] for name in kernel.reference_axes()}
    asked = [tensor.name for tensor in kernel.spec.inputs]
    module: dict = {}
    exec((kernel.folder / "reference.py").read_text(), module)  # of a folder that the caller named
    function = module["reference"]

    def into(given, out):
        made = function(**given, **scalars, **axes)
        for name in written:
            out[name].copy_(made[name])

    compiled = torch.compile(into, dynamic=False)

    def call(one):
        with torch.no_grad():
            compiled({name: one[name] for name in asked}, {name: one[name] for name in written})

    return {"torch.compile": [functools.partial(call, one) for one in sets.all]}


def build(source: Path, folder: Path, name: str, flags=()) -> str:
    from harness.backends import cpu

    built = folder / f"{name}.so"
    done = subprocess.run(
        [cpu.compiler(), *cpu.FLAGS, *flags, str(source), "-o", str(built)], capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(done.stderr[:400])
    return str(built)


class Server:
    def __init__(self, threads: int, arms) -> None:
        os.environ["OMP_NUM_THREADS"] = str(threads)
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, threads, arms), daemon=True)
        self.process.start()

    def ask(self, message, seconds: float = 240):
        self.pipe.send(message)
        if not self.pipe.poll(seconds):
            raise TimeoutError
        return self.pipe.recv()


def workloads_of(kernel, most: int, only: str | None) -> list:
    """The `most` largest of each dtype that are not too large, else its smallest."""
    timed = [w for w in kernel.spec.workloads if w.timed and not w.held_out]
    timed = sorted([w for w in timed if "cpu" in w.devices] or timed, key=lambda w: size_bytes(kernel, w))
    found = []
    for dtype in [only] if only in kernel.spec.dtypes else kernel.spec.dtypes:
        own = [w for w in timed if w.dtype == dtype]
        found += [w for w in own if size_bytes(kernel, w) <= MOST_BYTES][-most:] or own[:1]
    return found


def compiled_text(kernel) -> str:
    """The compiler's; of a folder without sizes for a CPU, as if its sizes were."""
    from compiler.compile import source

    spec = kernel.spec
    if not any("cpu" in w.devices for w in spec.workloads):
        spec = spec.model_copy(
            update={"workloads": tuple(w.model_copy(update={"devices": ("cpu",)}) for w in spec.workloads)}
        )
    return source(spec, (kernel.folder / "reference.py").read_text(), device="cpu")


def rows_of(name: str, options, scratch: Path, servers: dict) -> list[dict]:
    from harness.timing import speed_of_light
    from kernels import catalog

    kernel = catalog.load(name)
    sources: dict[str, str] = {}
    text = scratch / f"{kernel.spec.name}.cpp"
    text.write_text(compiled_text(kernel))
    sources["ours"] = build(text, scratch, f"{kernel.spec.name}-ours")
    if options.texts:
        (options.texts / text.name).write_text(text.read_text())
        return []
    if kernel.baselines("cpu"):
        sources["baseline"] = build(kernel.baseline("cpu")[1], scratch, f"{kernel.spec.name}-baseline")
    if options.old and (options.old / text.name).exists():
        sources["old"] = build(options.old / text.name, scratch, f"{kernel.spec.name}-old")
    sources["light"] = build(speed_of_light.source("cpu"), scratch, "light")
    rows = []
    for workload in workloads_of(kernel, options.sizes, options.dtype):
        for threads, (native, rival) in servers.items():
            row = {
                "kernel": kernel.spec.name,
                "size": workload.label,
                "threads": threads,
                "bytes": size_bytes(kernel, workload),
            }
            answers = [native.ask(("load", name, workload, sources))]
            row["faults"] = [answers[0]["fault"]] if "fault" in answers[0] else []
            with_rival = False
            if rival is not None:
                answer = rival.ask(("load", name, workload, {}))
                with_rival = "fault" not in answer
                row["faults"] += [] if with_rival else [answer["fault"]]
            for hot in (False, True)[: 1 if row["bytes"] > COLD_BYTES else 2]:
                passes: dict[str, list[float]] = {}
                for _ in range(options.passes):
                    found = dict(native.ask(("pass", hot)))
                    if with_rival:
                        found |= rival.ask(("pass", hot))
                    light = [found.pop(kind) for kind in list(found) if kind.startswith("light")]
                    if light:
                        found["light"] = min(light)
                    for arm, us in found.items():
                        passes.setdefault(arm, []).append(us)
                row["hot" if hot else "cold"] = passes
            rows.append(row)
            print(line_of(row), flush=True)
    return rows


def ratio(row: dict, cache: str, arm: str) -> float | None:
    found = row[cache]
    if arm not in found or "ours" not in found:
        return None
    if arm == "light" or row["threads"] > 1:  # of the fastest passes, where others at work disturb
        return min(found[arm]) / min(found["ours"])
    return statistics.median(a / b for a, b in zip(found[arm], found["ours"], strict=True))


def line_of(row: dict) -> str:
    parts = []
    for cache in [one for one in ("cold", "hot") if one in row]:
        told = [f"{statistics.median(row[cache].get('ours', [0])):9.1f} us"]
        told += [
            f"{arm} {r:.2f}"
            for arm in ("baseline", "torch.compile", "old", "light")
            if (r := ratio(row, cache, arm)) is not None
        ]
        parts.append(f"{cache} " + " ".join(told))
    return f"{row['kernel']:26} {row['size']:54} {row['threads']} | " + " | ".join(parts) + " ".join(row["faults"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kernels", nargs="+")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--old", type=Path)
    parser.add_argument("--texts", type=Path)
    parser.add_argument("--sizes", type=int, default=2, help="of each dtype, the largest")
    parser.add_argument("--dtype", help="only this one, where a kernel has it")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--passes", type=int, default=7)
    parser.add_argument("--threads", type=int, nargs="*", default=[1, os.cpu_count() or 1])
    options = parser.parse_args()
    from compiler.frontend import NoProgram
    from kernels.catalog import KernelError

    if options.texts:
        options.texts.mkdir(parents=True, exist_ok=True)
    servers = {} if options.texts else {
        t: (Server(t, native_arms), None if options.no_compile else Server(t, compile_arms)) for t in options.threads
    }  # fmt: skip
    rows: list[dict] = []
    with tempfile.TemporaryDirectory() as scratch:
        for name in options.kernels:
            try:
                rows += rows_of(name, options, Path(scratch), servers)
            except (KernelError, NoProgram, RuntimeError, ValueError, TimeoutError) as fault:
                print(f"{name}: {type(fault).__name__}: {str(fault)[:300]}", flush=True)
            if options.out:
                options.out.write_text(json.dumps(rows))
    for server in [one for pair in servers.values() for one in pair if one is not None]:
        server.pipe.send(None)
    return 0


if __name__ == "__main__":
    sys.exit(main())
