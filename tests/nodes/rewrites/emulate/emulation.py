"""Runs CUDA sources on the CPU, thread by thread, and compares what they compute with the reference.

`python -m tests.nodes.rewrites.emulate.emulation FOLDER SOURCE [OFFSET...] [DTYPE:AXIS=SIZE,...]` runs SOURCE on the
folder's small workloads, or on those that are named, with every tensor moved by OFFSET elements from its alignment, and ends
with status 1 where a value is wrong, 9 where the emulation itself refuses (a barrier that not all threads reach, ...).
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

import tests.machine
from harness.checks.drawing import draw
from kernels import catalog
from kernels.spec import Scalar, Size, Spec, Tensor, Workload
from nodes.rewrites import emulation
from nodes.rewrites.emulation import FOLDER, host_source
from tests.nodes.rewrites.emulate.tensor_cores import translated

HERE, ROOT = FOLDER, Path(__file__).parents[4]
FLAGS = tuple("-O0" if flag == "-Og" else flag for flag in emulation.FLAGS)
"""Inputs here are small: what g++ does for -Og takes longer than it saves, but for products of matrices."""
LINKED = "-DEMULATION_LINKED"
RUNS = '#include "cuda_emulation.h"\nvoid (*used)(dim3, dim3, size_t, unsigned) = emulate::run_grid;\n'
HARNESS_DRAWS = ("distinct", "permutation", "padded", "offsets", "starts", "integers", "drawn")
GUARD = 64
"""Elements on either side of every tensor that must stay as they are."""
FILL = 77
MOST_ELEMENTS = 70_000
EMULATION_S = 240


@functools.cache
def compiled_before(flags: tuple[str, ...] = FLAGS) -> list[str]:
    """Options that spare a small kernel two thirds of its build: the emulation's header as g++ has read it before, and what runs
    its threads, compiled.

    Both are kept like Python's own bytecode, by what they were made of; where they do not fit, g++ reads the header itself.
    """
    header, compiler = HERE / "cuda_emulation.h", Path(shutil.which("g++") or "/usr/bin/g++").stat()
    made_of = f"{flags} {RUNS} {compiler.st_size} {compiler.st_mtime_ns}\n{header.read_text()}"
    folder = HERE / "__pycache__" / f"header-{hashlib.sha256(made_of.encode()).hexdigest()[:16]}"
    kept, runs = folder / f"{header.name}.gch", folder / "runs.o"
    if not kept.exists():
        if not os.access(HERE, os.W_OK):
            return []
        folder.mkdir(parents=True, exist_ok=True)
        unfinished, source = folder / f"{os.getpid()}", folder / f"{os.getpid()}.cpp"
        source.write_text(RUNS)
        quick = ["-O2" if flag in ("-O0", "-Og") else flag for flag in flags if flag != "-shared"]
        subprocess.run(["g++", *quick, f"-I{HERE}", "-c", str(source), "-o", str(unfinished)], check=True)
        source.unlink()
        unfinished.rename(runs)
        linked = ["g++", *flags, LINKED, "-x", "c++-header", str(header), "-o", str(unfinished)]
        subprocess.run(linked, check=True)
        unfinished.rename(kept)
    return [LINKED, f"-I{folder}", str(runs)]


def library(text: str, folder: Path, flags: tuple[str, ...] = FLAGS) -> ctypes.CDLL:
    """Built once for all processes of these tests; what is loaded is a copy in `folder`, with memory of its own."""
    host, built = host_source(text), folder / "candidate.so"
    shared = Path(os.environ.get("ASTROLABE_CACHE", folder)) / "emulated"
    kept = shared / f"{hashlib.sha256((' '.join(flags) + host).encode()).hexdigest()}.so"
    if not kept.exists():
        path = folder / "candidate.cpp"
        path.write_text(host)
        own = [*compiled_before(flags), f"-I{HERE}", f"-I{Path(__file__).parent}"]
        command = ["g++", *flags, *tests.machine.LINKER, *own, str(path), "-o", str(built)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stderr[:4000])
        shared.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(built, shared / f"{os.getpid()}")
        (shared / f"{os.getpid()}").rename(kept)
    else:
        shutil.copyfile(kept, built)
    return ctypes.CDLL(str(built))


def small_workloads(spec: Spec, device: str = "cuda") -> list[Workload]:
    def elements(workload: Workload) -> int:
        return sum(torch.Size(spec.shape(t, workload.axes)).numel() for t in spec.tensors)

    return [w for w in spec.workloads if elements(w) <= MOST_ELEMENTS and device in w.devices]


def values(spec: Spec, tensor: Tensor, workload: Workload, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    shape, dtype = spec.shape(tensor, workload.axes), getattr(torch, spec.dtype(tensor, workload))
    rule = tensor.values[0]
    if rule.partition(":")[0] in HARNESS_DRAWS:
        drawn = torch.empty(shape, dtype=dtype)
        draw(drawn, rule, workload, generator)
        return drawn
    if rule.startswith("index:"):
        return torch.randint(0, workload.axes[rule[6:]], shape, generator=generator).to(dtype)
    if rule == "uniform":
        return torch.rand(shape, generator=generator).to(dtype)
    if rule.startswith("range:"):
        low, high = (float(x) for x in rule[6:].split(":"))
        return (torch.rand(shape, generator=generator) * (high - low) + low).to(dtype)
    return torch.randn(shape, generator=generator).to(dtype)


def placed(shape: Sequence[int], dtype: torch.dtype, offset: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Memory with guards, and in it a tensor `offset` elements away from an alignment of 16 bytes."""
    count = torch.Size(shape).numel()
    raw = torch.full(((count + 2 * GUARD + offset) * dtype.itemsize,), FILL, dtype=torch.int8).view(dtype)
    assert raw.data_ptr() % 16 == 0
    return raw, raw[GUARD + offset : GUARD + offset + count].view(shape)


def outside(raw: torch.Tensor, view: torch.Tensor, offset: int) -> bool:
    """Whether something was written beside the tensor."""
    bytes_, edge = raw.view(torch.int8), (GUARD + offset) * view.element_size()
    return bool((bytes_[:edge] != FILL).any() or (bytes_[edge + view.numel() * view.element_size() :] != FILL).any())


def run(spec: Spec, kernel: catalog.Kernel, built: ctypes.CDLL, workload: Workload, offset: int = 0) -> str:
    """What is wrong, "" if nothing. `offset` elements move every tensor away from its alignment."""
    inputs = {t.name: values(spec, t, workload, n) for n, t in enumerate(spec.tensors) if t.role in ("input", "inout")}
    precise = {name: value.double() if value.is_floating_point() else value.clone() for name, value in inputs.items()}
    sizes = {axis: workload.axes[axis] for axis in kernel.reference_axes()}
    expected = kernel.reference(**precise, **spec.scalars, **sizes)
    buffers: dict[str, torch.Tensor] = {}
    views: dict[str, torch.Tensor] = {}
    arguments: list[object] = []
    for argument in spec.arguments:
        if isinstance(argument, Size):
            arguments.append(ctypes.c_int64(workload.axes[argument.name]))
        elif isinstance(argument, Scalar):
            kind = {"float": ctypes.c_float, "double": ctypes.c_double, "int64_t": ctypes.c_int64}[argument.ctype]
            arguments.append(kind(int(argument.value) if argument.ctype == "int64_t" else argument.value))
        else:
            shape, dtype = spec.shape(argument, workload.axes), getattr(torch, spec.dtype(argument, workload))
            raw, view = placed(shape, dtype, offset)
            if argument.name in inputs:
                view.copy_(inputs[argument.name])
            buffers[argument.name], views[argument.name] = raw, view
            arguments.append(ctypes.c_void_p(view.data_ptr()))
    names = spec.entry_names(workload.dtype)
    function = next((getattr(built, n) for n in names if hasattr(built, n)), None)
    if function is None:
        return f"no entry {names[0]}"
    function(*arguments, ctypes.c_void_p(0))
    for tensor in spec.tensors:
        view = views[tensor.name]
        if outside(buffers[tensor.name], view, offset):
            return f"{tensor.name}: written outside its bounds"
        if tensor.role == "workspace":
            continue
        want = expected.get(tensor.name, inputs.get(tensor.name))
        wrong = _difference(view, want, tensor.role == "input")
        if wrong:
            return f"{tensor.name}: {wrong}"
    return ""


def _difference(got: torch.Tensor, want: torch.Tensor, exact: bool) -> str:
    if exact or not got.dtype.is_floating_point:
        near = (got.double() - want.double()).abs() <= (0 if exact else 1)
    else:
        step = {torch.float16: 2**-10, torch.bfloat16: 2**-7, torch.float32: 2**-18}.get(got.dtype, 2**-3)
        a, b = got.double(), want.double()
        scale = b.abs().nan_to_num(posinf=0, neginf=0).max() if b.numel() else torch.tensor(0.0)
        near = (
            ((a - b).abs() <= 3 * step * b.abs() + 1e-4 * scale * step / 2**-10 + 1e-6)
            | (a == b)
            | (a.isnan() & b.isnan())
        )
    return wrong_places(near, got, want)


def wrong_places(near: torch.Tensor, got: torch.Tensor, want: torch.Tensor) -> str:
    if near.all():
        return ""
    at = tuple(int(i) for i in (~near).nonzero()[0])
    return f"{int((~near).sum())} of {near.numel()} values wrong, first {at}: {got[at].item()} for {want[at].item()}"


def workload(named: str) -> Workload:
    """`float16:rows=3,columns=515`"""
    dtype, _, axes = named.partition(":")
    sizes = dict(axis.split("=") for axis in axes.split(","))
    return Workload(axes={name: int(size) for name, size in sizes.items()}, dtype=dtype, devices=("cuda",))


def emulated(folder: Path, candidate: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command above, in a process of its own: what the source does wrong may end it."""
    return apart(_command, [str(folder), str(candidate), *map(str, arguments)], environment)


def _command(command: list[str], environment: dict[str, str]) -> None:
    os.environ.update(environment)
    sys.exit(main(command))


def apart(function: Callable[..., None], *arguments: Any) -> subprocess.CompletedProcess[str]:
    """A call in a process that is forked from one that has imported torch, which takes three times as long as a run does."""
    forkserver = multiprocessing.get_context("forkserver")
    forkserver.set_forkserver_preload(["tests.preloaded"])
    with tempfile.TemporaryDirectory() as scratch:
        said = [Path(scratch) / name for name in ("stdout", "stderr")]
        process = forkserver.Process(target=_apart, args=(said, function, arguments))
        process.start()
        process.join(EMULATION_S)
        if process.is_alive():
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(function.__name__, EMULATION_S)
        out, err = (path.read_text(errors="replace") if path.exists() else "" for path in said)
        return subprocess.CompletedProcess(function.__name__, process.exitcode, out, err)


def _apart(said: list[Path], function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    for number, path in enumerate(said, start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    torch.set_num_threads(1)
    function(*arguments)


def check(folder: Path, text: str, offsets: list[int], workloads: list[Workload] | None = None) -> list[str]:
    """Everything that is wrong with the source on these workloads, or the folder's small ones."""
    kernel = catalog.load(str(folder))
    with tempfile.TemporaryDirectory() as scratch:
        built = library(translated(text) if "mma.sync" in text else text, Path(scratch))
        found = []
        for chosen in workloads or small_workloads(kernel.spec):
            for offset in offsets:
                wrong = run(kernel.spec, kernel, built, chosen, offset)
                if wrong:
                    found.append(f"{chosen.label}, {offset} elements off: {wrong}")
    return found


def main(command: list[str]) -> int:
    offsets, named = [int(a) for a in command[2:] if a.isdigit()], [a for a in command[2:] if not a.isdigit()]
    problems = check(Path(command[0]), Path(command[1]).read_text(), offsets or [0], [workload(a) for a in named])
    print("\n".join(problems) or "right", flush=True)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
