"""The CPU rewrites on whole kernels of C++: rewritten, compiled and called in this process, without a sandbox."""

from __future__ import annotations

import ctypes
import hashlib
import subprocess
from dataclasses import dataclass
from pathlib import Path

import torch

from harness import device
from harness.backends import cpu
from harness.checks.cases import make_case
from harness.checks.judging import judge
from harness.records import DeviceFacts
from kernels import catalog
from kernels.catalog import Kernel
from kernels.spec import Scalar, Size, Workload
from nodes.rewrites import Facts, ordered
from nodes.rewrites import catalog as rewrites
from nodes.rewrites.syntax.source import Source

INPUTS = Path(__file__).resolve().parents[2] / "inputs"
FACTS = DeviceFacts(
    device="cpu", name="this machine", architecture=device.facts("cpu").architecture, units=2, last_level_cache_bytes=32 << 20
)  # fmt: skip
"""What is written runs here: lanes only where the processor has them."""
FLAGS = ["-O0" if flag == "-O3" else flag for flag in cpu.FLAGS]
"""What g++ vectorises of its own accord is nobody's topic here, and half of a build."""
_CTYPES = {"float": ctypes.c_float, "double": ctypes.c_double, "int64_t": ctypes.c_int64}


def order() -> list[str]:
    """The CPU rewrites that plans put together, in their order."""
    return [rewrite.name for rewrite in ordered("cpu") if not rewrite.alone]


def apply(kernel: Kernel, text: str, steps: list[str], device: DeviceFacts = FACTS) -> tuple[str, list[str]]:
    """The text after every step that applies, and their names. Steps are tried again until none applies."""
    modules, applied, changed = rewrites(), [], True
    while changed:
        changed = False
        for step in steps:
            if step in applied:
                continue
            new = modules[step](Source(text, "cpu"), Facts(spec=kernel.spec, device=device))
            if new is not None:
                text, changed = new, True
                applied.append(step)
    return text, applied


@dataclass
class Native:
    """A compiled C++ candidate, called in this process."""

    kernel: Kernel
    library: ctypes.CDLL

    @staticmethod
    def build(kernel: Kernel, text: str, folder: Path) -> Native:
        name = hashlib.sha256(text.encode()).hexdigest()[:16]
        source, artefact = folder / f"{name}.cpp", folder / f"{name}.so"
        source.write_text(text)
        command = ["g++", *FLAGS, "-o", str(artefact), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ValueError(f"{kernel.spec.name} does not compile:\n{done.stderr}\n{text}")
        return Native(kernel, ctypes.CDLL(str(artefact)))

    def call(self, workload: Workload, tensors: dict[str, torch.Tensor]):
        """A function of no arguments that runs one call on these tensors, in place."""
        spec = self.kernel.spec
        names = spec.entry_names(workload.dtype)
        entry = next(getattr(self.library, name) for name in names if hasattr(self.library, name))
        arguments = []
        for argument in spec.arguments:
            if isinstance(argument, Size):
                arguments.append(ctypes.c_int64(workload.axes[argument.name]))
            elif isinstance(argument, Scalar):
                kind = _CTYPES[argument.ctype]
                arguments.append(kind(int(argument.value) if argument.ctype == "int64_t" else argument.value))
            else:
                arguments.append(ctypes.c_void_p(tensors[argument.name].data_ptr()))
        entry.restype = None
        return lambda: entry(*arguments)

    def check(self, workload: Workload, values: str) -> str:
        """ "" or what is wrong with the outputs for one draw of inputs."""
        spec = self.kernel.spec
        case = make_case(self.kernel, workload, values, {}, "cpu")
        tensors = fresh(self.kernel, workload) | {name: tensor.clone() for name, tensor in case.inputs.items()}
        self.call(workload, tensors)()
        for tensor in spec.outputs:
            dtype = spec.dtype(tensor, workload)
            _, message = judge(tensors[tensor.name], case.expected[tensor.name], dtype)
            if message:
                return f"{workload.label}, {values}: {tensor.name}{message}"
        for tensor in spec.inputs:
            if tensor.role == "input" and not torch.equal(tensors[tensor.name], case.inputs[tensor.name]):
                return f"{workload.label}, {values}: changed its input {tensor.name}"
        return ""


def fresh(kernel: Kernel, workload: Workload) -> dict[str, torch.Tensor]:
    """Outputs of the workload's shapes, every bit set."""
    spec = kernel.spec
    made = {}
    for tensor in spec.outputs:
        dtype = getattr(torch, spec.dtype(tensor, workload))
        made[tensor.name] = torch.empty(spec.shape(tensor, workload.axes), dtype=dtype)
        made[tensor.name].view(torch.uint8).fill_(0xFF)
    return made


FROM_CATALOG = (
    "fused_add_rmsnorm", "gather_mean", "gather_rows_by_id", "merge_attn_states_lse", "relabel", "sample_neighbors",
    "scatter_mean_backward", "silu_and_mul",
)  # fmt: skip
"""Of the catalog, those whose C++ has forms of its own; the others' loops are of forms that these and tests/inputs have."""


def kernels() -> list[Kernel]:
    """Some of the catalog and all of tests/inputs that have a C++ baseline."""
    folders = [str(path.parent) for path in sorted(INPUTS.glob("*/baseline.cpp"))]
    return [catalog.load(name) for name in [*FROM_CATALOG, *folders]]
