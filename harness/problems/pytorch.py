"""A problem, a PyTorch module in another's format, as a kernel that the Evaluator can judge.

Its code is hostile: it is executed in workers only, never here. One process describes it when it is opened, one draws its
inputs, one or two compute what is right (in fp64, and in fp32 as eager torch computes it on this device, which earns the
tolerance). The parent keeps the values, and compares.
"""

from __future__ import annotations

import functools
import math
import pickle
import re
import secrets
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import device as devices
from harness.checks.drawing import GIVEN
from harness.checks.fitting import JUDGING_FACTOR
from harness.farside import module_state
from harness.once import Once
from harness.problems.box import LIMITS, Box, ProblemWorker
from harness.processes.fork_server import get_fork_server
from harness.store import digest
from kernels import catalog, importers
from kernels.catalog import Kernel, KernelError
from kernels.importers.kernelbench import Description
from kernels.spec import Device, Spec, Workload

if TYPE_CHECKING:
    import torch

    from kernels.importers import Import

DEFINITION = "definition.json"
FORMS = {
    ".py": "it must define class Model and get_inputs() at its top level, in KernelBench's form",
    ".json": "it must be a definition of flashinfer-bench (name, axes, inputs, outputs, reference) or a definition.json of "
    "SOL-ExecBench with its workload.jsonl beside it (docs/kernels.md)",
}
LARGE_WEIGHTS = 64 << 20
"""Bytes of weights from which on modules are constructed on the device, where Model's constructor allows that: a core draws
some 300 MB of them a second, and seven processes do."""
EAGER = "eager"
COMPILE_MODES = {"compile": "default", "max-autotune": "max-autotune-no-cudagraphs"}


def begin_workers() -> None:
    """Begin those that wait for a first problem on a GPU, and the fork server of all."""
    get_fork_server("cuda", libraries=True).spares.prepare(LIMITS)


@dataclass(frozen=True)
class Problem(Kernel):
    """`folder` is the problem's file. Close it: it owns processes."""

    source: Import | None = None
    description: Description | None = None
    device: Device = "cpu"
    seed: int = 0
    """Seed of the weights: secret, and the same for Model and ModelNew."""
    token: str = ""
    box: Box | None = None

    __hash__ = Kernel.__hash__

    @property
    def has_reference(self) -> bool:
        """Its Model."""
        return True

    def reference_in(self, dtype: str, /, **arguments: Any) -> dict[str, torch.Tensor]:
        """Outputs by name: float64 asks for what is right, float32 for what eager torch makes on this device.

        Takes inputs and axes by name. Raises KernelError where Model does not take them.
        """
        assert self.box is not None
        axes = {axis: arguments.pop(axis) for axis in self.spec.axes}
        return self.box.reference(self, arguments, axes, exact=dtype == "float64")

    def reference(self, /, **arguments: Any) -> dict[str, torch.Tensor]:
        return self.reference_in("float64", **arguments)

    @property
    def noise_bits(self) -> int | None:
        """Significant bits of the format that eager torch's noise comes from, TF32 on a GPU; None where Model cannot be
        rounded otherwise: autocast casts float32s, and leaves fp64 as it is."""
        assert self.description is not None
        if self.description.random or not self.description.fp64 or "autocast" in self.text:
            return None
        return 11 if self.device == "cuda" else 24

    @contextmanager
    def rounding(self, **how: Any) -> Iterator[None]:
        """Meanwhile Model in fp64 rounds otherwise; `how`: arguments of rounding.Rounding."""
        assert self.box is not None
        self.box.rounding = how
        try:
            yield
        finally:
            self.box.rounding = None

    @contextmanager
    def another_instance(self, seed: int, moved: str = "") -> Iterator[None]:
        """Meanwhile what is right is what a module under that seed, beside the first one in its process, makes.

        `moved`: which of its weights are others than its constructor's (farside/problem.py, move_weights).
        """
        assert self.box is not None
        self.box.instance, self.box.moved = seed, moved
        try:
            yield
        finally:
            self.box.instance, self.box.moved = 0, ""

    @contextmanager
    def entering(self, mode: str) -> Iterator[None]:
        """Meanwhile what is right is what Model makes in that mode (farside/problem.py)."""
        assert self.box is not None
        self.box.mode = mode
        try:
            yield
        finally:
            self.box.mode = ""

    @property
    def reference_on(self) -> Device:
        return self.device

    def reference_axes(self) -> tuple[str, ...]:
        return self.spec.axes

    @property
    def reference_asks_dtype(self) -> bool:
        return False

    def defines_right(self) -> str:
        return f"{self.text}\n{self.description}"

    def files(self) -> dict[str, bytes]:
        return {self.folder.name: self.text.encode()}

    def described(self) -> tuple[bytes, Description | None]:
        return pickle.dumps(self.source), self.description

    @property
    def text(self) -> str:
        return self.source.module if self.source is not None else ""

    @property
    def kernelbench(self) -> bool:  # type: ignore[override]
        return self.source is not None and self.source.kernelbench

    def baselines(self, device: Device) -> dict[str, Path]:
        return {EAGER: self.folder}

    def baseline(self, device: Device, name: str | None = None) -> tuple[str, Path]:
        if name not in (None, EAGER):
            raise KernelError(f"{self.spec.name} is a problem: its only baseline is {EAGER}, not {name!r}")
        return EAGER, self.folder

    def compiled_source(self, mode: str) -> str:
        """The source by which the evaluator knows torch.compile of Model in that mode."""
        return f"# torch.compile({COMPILE_MODES[mode]})\n{self.text}"

    def sources(self) -> dict[str, str]:
        """Hash of the sources that are Model itself -> mode of torch.compile, "" for eager."""
        return {digest(self.text): ""} | {
            digest(self.compiled_source(mode)): COMPILE_MODES[mode] for mode in COMPILE_MODES
        }

    def describe_for_worker(self, role: str, **more: Any) -> dict[str, Any]:
        """What a worker is told of the problem."""
        assert self.description is not None
        return {
            "role": role,
            "text": self.text,
            "arguments": self.description.arguments,
            "scalar_inputs": [not one.shape for one in self.description.inputs],
            "scalar_outputs": [not one.shape for one in self.description.outputs],
            "random": self.description.random,
            "returns": self.description.returns,
            "changed": list(self.description.changed),
            "state": [entry.describe_for_box() for entry in self.description.state],
            "seed": self.seed,
            "dtype": "float32",
            "exact": False,
            "eager": False,
            "compile": "",
            "narrow": self._narrow(),
            "made_there": self.description.anywhere and self.description.weight_bytes >= LARGE_WEIGHTS,
            **more,
        }

    def _narrow(self) -> str:
        """In which dtype eager torch compares the inputs with Python's numbers; "" where that is fp64."""
        assert self.description is not None
        dtypes = {one.dtype for one in self.description.inputs if "float" in one.dtype}
        if "float64" in dtypes:
            return ""
        return dtypes.pop() if len(dtypes) == 1 and dtypes <= {"float16", "bfloat16"} else "float32"

    @property
    def returned(self) -> tuple[str, ...]:
        """The outputs that Model returns; those behind them are its state after the call."""
        assert self.description is not None
        return tuple(tensor.name for tensor in self.spec.outputs[: len(self.description.outputs)])

    def initial_state(self, workload: Workload) -> dict[str, torch.Tensor]:
        """What the inputs that are Model's state are before any call, by name."""
        assert self.description is not None and self.box is not None
        drawn = self.box._pool(self, workload)[0]  # behind no call
        count = len(self.description.inputs)
        return {self.spec.inputs[at].name: values for at, values in drawn.items() if at >= count}

    def compare_initial_state(self, workload: Workload, left: dict[str, torch.Tensor]) -> str:
        """What of the state a module begins with otherwise than Model, or "". left: the outputs' `state_DTYPE_after` [rows, ROW]."""
        import torch

        assert self.description is not None
        begins = {name: values.reshape(-1) for name, values in self.initial_state(workload).items()}
        entries = [entry.describe_for_box() for entry in self.description.state]
        groups, places = module_state.place_entries(entries)
        for entry, own in zip(entries, places, strict=True):
            if "initial" in entry:
                continue  # it comes with the first call, or is there before: nobody sees a difference
            for (group, row), (shape, _) in zip(own, entry["leaves"], strict=True):
                name, first = f"state_{groups[group][0]}", row * module_state.ROW
                at = slice(first, first + math.prod(shape))
                now = left[f"{name}_after"].reshape(-1)[at].to(begins[name].device)
                if not torch.allclose(now.double(), begins[name][at].double(), rtol=1e-5, equal_nan=True):
                    return f"its {module_state.ModuleState.says(entry)} is another than Model's before any call"
        return ""

    def name_fault(self, reason: str) -> str:
        """The reason with the user's name of what is wrong of the state."""
        assert self.description is not None
        entries = [entry.describe_for_box() for entry in self.description.state]
        groups, places = module_state.place_entries(entries)

        def name(match: re.Match[str]) -> str:
            group, row = next((at for at, (dtype, _) in enumerate(groups) if dtype == match[1]), -1), int(match[2])
            begins = [
                (first, entry) for entry, own in zip(entries, places, strict=True) for at, first in own if at == group
            ]
            before = [(first, module_state.ModuleState.says(entry)) for first, entry in begins if first <= row]
            return f"{max(before)[1]} after the call ({match[0]})" if before else match[0]

        return re.sub(r"state_(\w+?)_after\[(\d+), \d+\]", name, reason) if entries else reason

    def start(
        self, candidate: str, artefact: Path, *, libraries: bool, company: Path | None = None, compilers: bool = False
    ) -> ProblemWorker:
        """The process of a candidate, or of the eager or the compiled Model. Raises WorkerFailure.

        `libraries`: torch's operators may do a part of the candidate's work. `compilers`: it may start programs.
        """
        assert self.box is not None
        mode = self.sources().get(candidate)
        asked = self.describe_for_worker("candidate", eager=mode is not None, compile=mode or "")
        fork_server = get_fork_server(self.device, libraries=libraries or mode is not None)
        return ProblemWorker(
            fork_server, self.spec, device=self.device, artefact=artefact, problem=asked,
            compilers=bool(mode) or compilers, company=company,
        )  # fmt: skip

    def says(self) -> str:
        """How right was defined, in words, for verdict and report."""
        assert self.description is not None
        how = "in fp64" if self.description.fp64 else "in fp32 without TF32, since it has no fp64 form here"
        if self.description.random:
            how = "with sums in fp64 from the same state of torch's generator, since its outputs are random"
        said = f"the reference is the problem's Model {how}"
        assert self.source is not None
        return "; ".join([said, *self.source.says(self.spec, self.description)])

    def gpu_bytes(self) -> int:
        """The buffers that the reference answers in; its process gives back what it computed with."""
        if self.box is None or self.device != "cuda":
            return 0
        return sum(buffers.size for name, buffers in self.box.arenas.items() if name != "inputs")

    def close(self) -> None:
        if self.box is not None:
            self.box.close()


_described: Once[Description] = Once()
"""Descriptions by the problem's text: it does not change while this process lives."""


def load(name: str, on: Device, *, memory_bytes: int | None = None) -> Kernel:
    """A kernel by name or folder, or a problem by its file or the folder of its definition, for a device of so much memory.

    Raises KernelError.
    """
    definition = Path(name).expanduser() / DEFINITION
    if definition.is_file() and not definition.with_name("spec.py").exists():
        return open_problem(definition, on, memory_bytes=memory_bytes)
    return open_problem(Path(name), on, memory_bytes=memory_bytes) if importers.is_problem(name) else catalog.load(name)


def find_definition(name: str) -> Path:
    """The folder of a kernel, or the file of a problem, by what a run keeps of it. Raises KernelError."""
    return read(Path(name))[0] if importers.is_problem(name) else catalog.load(name).folder


def read(path: Path) -> tuple[Path, Import]:
    """The problem's file, whole path, and what its importer read. Raises KernelError."""
    path = path.expanduser().resolve()
    if not path.is_file():
        raise KernelError(f"{path} is no file")
    importer = importers.for_file(path)
    if importer is None:
        raise KernelError(f"{path} is no problem: {FORMS[path.suffix]}")
    return path, importer.read(path)


def open_problem(path: Path, on: Device, *, memory_bytes: int | None = None) -> Problem:
    """Describe a problem in the box and make its spec. The caller closes it. Raises KernelError.

    `memory_bytes`: of the device, where it is another machine's.
    """
    path, source = read(path)
    box = Box(on)
    try:
        description = _describe(path, source, box)
        token = digest(source.module)[:16]
        most_bytes = (memory_bytes or devices.memory_bytes(on)) // JUDGING_FACTOR
        spec = source.spec(description, token, most_bytes=most_bytes)
    except BaseException:
        box.close()
        raise
    return reopen(path, source, description, spec, on, box)


def _describe(path: Path, source: Import, box: Box) -> Description:
    return _described.get(source.module, lambda: source.check_answer(box.describe(source.module, path)))


def describe_ahead(path: Path) -> str:
    """Describe a problem before its device is known; whoever opens it finds that done. The text of its module. Raises KernelError."""
    path, source = read(path)
    with closing(Box("cpu")) as box:
        _describe(path, source, box)
    return source.module


def reopen(
    path: Path, source: Import, description: Description, spec: Spec, on: Device, box: Box | None = None
) -> Problem:
    """A problem that was described before. The caller closes it."""
    box, token = box or Box(on), digest(source.module)[:16]
    problem = Problem(
        spec=spec, folder=path, source=source, description=description, device=on, seed=secrets.randbits(31), token=token,
        box=box,
    )  # fmt: skip
    for at in range(len(description.inputs) + len(description.groups)):
        kind = description.inputs[at].values[0] if at < len(description.inputs) else "given"
        fill = {"near": box.fill_near, "among": box.fill_among}.get(kind, box.fill)
        name = f"{token}_{at}"
        box.given[name] = functools.partial(fill, problem, at)
        GIVEN.setdefault(name, []).append(box.given[name])
    return problem
