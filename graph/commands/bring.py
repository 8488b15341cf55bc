"""`run.py bring`: a kernel's folder from an engine's test, or from a function and example arguments."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from graph.commands.options import EXIT_SAME, STARTED, Command
from harness.options import Option


class BringCommand(Command):
    """Write the folder of an engine's kernel: spec.py, reference.py, the kernel's file as it stands and the headers that it includes, from
    a test that calls it (TEST.py::NAME, run here: without a GPU on CPU tensors, without the engine up to the call), or from MODULE:FUNCTION,
    which says what is right, and --args. Says what it could not find out, then what `check` says. Exit code 3 where that has a fault."""

    target: Annotated[str, Option("TEST.py::NAME|MODULE:FUNCTION", positional=True)]
    """A pytest of the engine's that compares the kernel's outputs, or a function of torch that computes what is right."""
    kernel_file: Annotated[Path, Option("FILE")]
    """The source that holds the kernel, taken unchanged."""
    symbol: Annotated[str, Option("NAME")]
    """Its host function (or kernel) there, as C++ names it: rms_norm, ns::run, 'Norm<128, {T}>::run', where {T} stands for the type of
    the workload's dtype."""
    to: Annotated[Path | None, Option("FOLDER")] = None
    """The folder to write, by default named as the symbol."""
    args: Annotated[str, Option("FILE.py:FUNCTION")] = ""
    """Makes the arguments of MODULE:FUNCTION: a list of tuples, of dicts, or of (tuple, dict)."""
    function: Annotated[str, Option("NAME")] = ""
    """What the test calls the kernel by, where that is not the symbol."""
    include: Annotated[tuple[Path, ...], Option("FOLDER")] = ()
    """More folders in which headers are looked for; the kernel's folder and those above it are."""

    source: Annotated[tuple[Path, ...], Option("FILE")] = ()
    """More of the engine's sources that the kernel's file needs: a .cu that holds the kernels which it launches; several by several --source."""
    flag: Annotated[tuple[str, ...], Option("FLAG")] = ()
    """A compiler's flag that the engine's build gives, as --flag=-DSM=90; several by several --flag."""

    trace: Annotated[Path | None, Option("TRACE")] = None
    """A trace of torch's profiler with shapes, or SGLang's log of its kernels: the sizes that its program calls the operator of that name with become
    workloads, weighted by calls."""

    def go(self) -> int:
        from graph.bringing import bring
        from graph.bringing.names import bare_name
        from graph.bringing.traces import add_workloads
        from graph.checking import check
        from kernels.catalog import KernelError

        if not self.kernel_file.is_file():
            raise KernelError(f"{self.kernel_file} is not there")
        if self.trace is not None and not self.trace.is_file():
            raise KernelError(f"{self.trace} is not there")
        name = "".join(letter if letter.isalnum() else "_" for letter in self.symbol.partition("<")[0]).strip("_")
        to = (self.to or Path(name)).resolve()
        STARTED.set()
        for sentence in bring(
            self.target,
            self.kernel_file,
            self.symbol,
            to,
            arguments=self.args,
            function=self.function,
            include=self.include,
            sources=self.source,
            flags=self.flag,
        ):
            print(f"{'unsure':8}{sentence}", flush=True)
        if self.trace is not None:
            print(f"{'trace':8}{add_workloads(to, self.trace, self.function or bare_name(self.symbol))}", flush=True)
        faults = 0
        for line in check(
            str(to), None, lambda said: print(f"  {said} ...", file=sys.stderr) if sys.stderr.isatty() else None
        ):
            print(f"{line.kind:8}{line.what}: {line.said}", flush=True)
            faults += line.kind == "fault"
        print(f"the folder is {to}" + (f"; {faults} {'fault' if faults == 1 else 'faults'}" if faults else ""))
        return EXIT_SAME if faults else 0
