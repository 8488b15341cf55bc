"""CUDA C++ by nvcc: one file, plain C entry points that take the stream last. No torch headers: 1.3 s, not a minute."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import subprocess
from pathlib import Path

from harness.backends import ALONE, ALONE_LINKED, Compiled, cpu, form_of, is_python, run_boxed, together, with_entries
from harness.device import cuda_home
from harness.records import DeviceFacts

SUFFIX = ".cu"
DEVICE = "cuda"
ENTRIES = True
# The shared runtime is the worker's own, so that an error of the candidate's launch is seen by the worker. Without unique symbols, or a
# template's static variable ("attribute is set") were one for all variants in a process.
FLAGS = (
    "-std=c++17",
    "-O3",
    "-shared",
    "-Xcompiler",
    "-fPIC,-fno-gnu-unique",
    "-cudart",
    "shared",
    "-lineinfo",
    "-Xptxas",
    "-v",
)


def takes(text: str) -> bool:
    return not is_python(text) and form_of(text) == "plain"


def why_unavailable() -> str:
    return "" if cuda_home() else "nvcc was not found; install the CUDA toolkit or set CUDA_HOME"


def nvcc() -> str:
    home = cuda_home()
    assert home is not None, why_unavailable()
    return str(home / "bin" / "nvcc")


def version(device: str) -> list[str]:
    """Lines in which the compiler for that device says its version."""
    compiler = nvcc() if device == "cuda" else cpu.compiler()
    return subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout.splitlines()


def architecture_flag(architecture: str) -> str:
    """`sm_90` -> the flag that builds for exactly that chip, its own instructions (wgmma) included."""
    number = architecture.removeprefix("sm_")
    specific = "a" if int(number) >= 90 else ""
    return f"-gencode=arch=compute_{number}{specific},code=sm_{number}{specific}"


@functools.cache
def identity(facts: DeviceFacts) -> str:
    return f"{version('cuda')[-1]} {' '.join(FLAGS)} {architecture_flag(facts.architecture)}"


def compile(
    source: Path, artefact: Path, facts: DeviceFacts, timeout_s: float, flags: tuple[str, ...] = (), entries: str = ""
) -> Compiled:
    text = source.read_text()
    source.write_text(with_entries(text, entries))
    alone = [f"-Xcompiler={flag}" for flag in ALONE] + [f"-Xlinker={flag}" for flag in ALONE_LINKED]
    alone = alone if source.read_text() != text else []
    chip = architecture_flag(facts.architecture)
    command = [nvcc(), *together(FLAGS, flags), *alone, chip, "-o", str(artefact), str(source)]
    done = run(command, source, artefact, [str(cuda_home())], timeout_s)
    if not done.ok and _TORCH_HEADER.search(done.log) and importlib.util.find_spec("torch"):
        # An engine's header for plain pointers includes torch's, of which nothing is left in what is linked.
        from harness.backends import torch_extension

        folders = torch_extension.header_folders()
        more = [f"-I{folder}" for folder in folders]
        done = run([*command, *more], source, artefact, [str(cuda_home()), *folders], timeout_s)
    if not done.ok and alone and _asks_for_the_chip(source.parent):
        # Bare kernels of an engine that builds PTX alone are written for device passes: the host's is to see the text that these see.
        header = source.with_name("host_pass.h")
        header.write_text(_HOST_PASS.format(facts.architecture.removeprefix("sm_")))
        again = run([*command, "-include", str(header)], source, artefact, [str(cuda_home())], timeout_s)
        done = again if again.ok else done
    return done


def _asks_for_the_chip(folder: Path) -> bool:
    """Whether the source or a header that lies beside it does; of another one that is broken a second build would say the same."""
    return any(b"__CUDA_ARCH__" in path.read_bytes() for path in folder.rglob("*") if path.is_file())


_HOST_PASS = """#include <cuda_runtime.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <mma.h>
#ifndef __CUDA_ARCH__
#define __CUDA_ARCH__ {}0
#endif
"""
"""The toolkit's own headers before it: their functions for the host are what the host's pass is to see of these."""


def run(
    command: list[str], source: Path, artefact: Path, readable: list[str], timeout_s: float, *, on_gpu: bool = True
) -> Compiled:
    """What a compiler makes in the box: nvcc, or g++ in its place where not `on_gpu`."""
    if on_gpu:
        command = [*command, *_optimizer_threads(command[0])]
    code, output = run_boxed(command, source.parent, readable, timeout_s)
    log = output.replace(f"{source.parent}/", "")
    return Compiled(
        code == 0 and artefact.exists(), log if code else warnings(log), resources(log) if code == 0 and on_gpu else {}
    )


@functools.cache
def _optimizer_threads(compiler: str) -> list[str]:
    """The flag by which nvcc optimises a file's kernels side by side: the same SASS, sooner. Its first releases of CUDA 12 have none."""
    said = subprocess.run([compiler, "--help"], capture_output=True, text=True).stdout
    cores = len(os.sched_getaffinity(0))
    return [f"-split-compile={min(MOST_THREADS, cores)}"] if cores > 1 and "--split-compile " in said else []


MOST_THREADS = 8
"""Of one build: others run beside it."""
_TORCH_HEADER = re.compile(r"fatal error: (torch|ATen|c10)/")
ADVICE = "Potential Performance Loss"
"""Marks ptxas's warnings about performance, such as wgmma serialized or setmaxnreg ignored: they come as an info, and
matter most for time."""


def warnings(log: str) -> str:
    """What nvcc said beside the resources of each kernel."""
    rows = log.splitlines()
    return "\n".join(row for row in rows if ADVICE in row or not row.startswith(("ptxas info", "    ")))


_KERNEL = re.compile(r"Compiling entry function '(?P<name>[^']+)'")
_SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers(?:.*?(\d+) bytes smem)?")


def resources(log: str) -> dict[str, str]:
    """ptxas's report: mangled kernel name -> `registers=35 spills=0 shared=0`."""
    found: dict[str, str] = {}
    name, spilled = "", 0
    for line in log.splitlines():
        if match := _KERNEL.search(line):
            name = match["name"]
        elif match := _SPILLS.search(line):
            spilled = int(match[2]) + int(match[3])
        elif (match := _USED.search(line)) and name:
            found[name] = f"registers={match[1]} spills={spilled} shared={match[2] or 0}"
    return found
