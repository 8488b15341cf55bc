"""A problem, a PyTorch module in another's format, as a kernel that the Evaluator can judge.

Its code is hostile: it is executed in workers only, never here. One process describes it when it is opened, one draws its
inputs, one or two compute what is right (in fp64, and in fp32 as eager torch computes it on this device, which earns the
tolerance). The parent keeps the values, and compares.
"""

from __future__ import annotations

import secrets
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import device as devices
from harness import sandbox
from harness.correctness import GIVEN, Layout
from harness.device import Arena
from harness.engines.process import WorkerFailure
from harness.fitting import JUDGING_FACTOR
from harness.store import digest
from harness.zygote import PythonWorker, Zygote, shared
from kernels import catalog, importers
from kernels.catalog import Kernel, KernelError
from kernels.importers.kernelbench import Description, Title
from kernels.spec import Device, Spec, Tensor, Workload

if TYPE_CHECKING:
    import torch

DESCRIBE_S = 300.0
"""Executing a problem and drawing its inputs thrice; KernelBench's largest draw 6 GB."""
REFERENCE_S = 300.0
POOL = 4
"""Draws of get_inputs() kept for tensors that only it can draw."""
LIMITS = sandbox.Limits(memory_bytes=16 << 30, threads=512)
COMPILING = sandbox.Limits(memory_bytes=32 << 30, threads=1024, file_bytes=1 << 30, scratch_bytes=8 << 30)
"""torch.compile runs g++ or ptxas in its worker; a precompiled header of torch's has over 64 MB."""
EAGER = "eager"
COMPILE_MODES = {"compile": "default", "max-autotune": "max-autotune-no-cudagraphs"}


class ProblemWorker(PythonWorker):
    """A worker that loads a problem's code, as `problem["role"]` says (harness/worker_problem.py)."""

    def __init__(
        self,
        zygote: Zygote,
        spec: Spec,
        *,
        device: str,
        artefact: Path,
        problem: dict[str, Any],
        patience_s: float = REFERENCE_S,
        compilers: bool = False,
        company: Path | None = None,
    ) -> None:
        self.problem, self.patience_s, self.compilers = problem, patience_s, compilers
        limits = COMPILING if compilers else LIMITS
        super().__init__(
            zygote, spec, "model_new", device=device, artefact=artefact, dtypes=spec.dtypes, company=company,
            limits=limits,
        )  # fmt: skip

    def request(self, message: dict[str, Any], **how: Any) -> dict:
        if message["op"] in ("load", "call", "plan"):
            how["timeout_s"] = max(how.get("timeout_s") or 0.0, self.patience_s)
        if message["op"] == "enter" and self.compilers:
            message = message | {"box": message["box"] | {"allow_exec": True}}
        return super().request(message, **how)

    def _entry(self) -> dict[str, Any]:
        return {**super()._entry(), "problem": self.problem}


@dataclass(frozen=True)
class Problem(Kernel):
    """`folder` is the problem's file. Close it: it owns processes."""

    text: str = ""
    title: Title = field(default_factory=lambda: Title(level=0, number=0, name="problem"))
    description: Description | None = None
    device: Device = "cpu"
    seed: int = 0
    """Of the weights: secret, and the same for Model and ModelNew."""
    token: str = ""
    box: Box | None = None

    __hash__ = Kernel.__hash__

    @property
    def has_reference(self) -> bool:
        """Its Model."""
        return True

    def reference_in(self, dtype: str, /, **arguments: Any) -> dict[str, torch.Tensor]:
        """Outputs by name: float64 asks for what is right, float32 for what eager torch makes on this device.

        Raises KernelError where Model does not take the arguments.
        """
        assert self.box is not None and self.description is not None
        leading = next((at for at, one in enumerate(self.description.inputs) if one.leading), None)
        lead = arguments[f"input_{leading}"].shape[0] if leading is not None else 1
        return self.box.reference(self, arguments, lead, exact=dtype == "float64")

    def reference(self, /, **arguments: Any) -> dict[str, torch.Tensor]:
        return self.reference_in("float64", **arguments)

    def reference_axes(self) -> tuple[str, ...]:
        return ()

    def defines_right(self) -> str:
        return f"{self.text}\n{self.description}"

    def baselines(self, device: Device) -> dict[str, Path]:
        return {EAGER: self.folder}

    def baseline(self, device: Device, name: str | None = None) -> tuple[str, Path]:
        if name not in (None, EAGER):
            raise KernelError(f"{self.spec.name} is a problem: its only baseline is {EAGER}, not {name!r}")
        return EAGER, self.folder

    def wrong(self, device: Device) -> dict[str, Path]:
        return {}

    def compiled(self, mode: str) -> str:
        """The source by which the evaluator knows torch.compile of Model in that mode."""
        return f"# torch.compile({COMPILE_MODES[mode]})\n{self.text}"

    def sources(self) -> dict[str, str]:
        """Hash of the sources that are Model itself -> mode of torch.compile, "" for eager."""
        return {digest(self.text): ""} | {digest(self.compiled(mode)): COMPILE_MODES[mode] for mode in COMPILE_MODES}

    def asked(self, role: str, **more: Any) -> dict[str, Any]:
        """What a worker is told of the problem."""
        assert self.description is not None
        return {
            "role": role,
            "text": self.text,
            "arguments": self.description.arguments,
            "scalar_inputs": [not one.shape for one in self.description.inputs],
            "scalar_outputs": [not one.shape for one in self.description.outputs],
            "random": self.description.random,
            "seed": self.seed,
            "dtype": "float32",
            "exact": False,
            "eager": False,
            "compile": "",
            **more,
        }

    def start(self, candidate: str, artefact: Path, *, libraries: bool, company: Path | None = None) -> ProblemWorker:
        """The process of a candidate, or of the eager or the compiled Model. Raises WorkerFailure.

        `libraries`: torch's operators may do a part of the candidate's work.
        """
        assert self.box is not None
        mode = self.sources().get(candidate)
        asked = self.asked("candidate", eager=mode is not None, compile=mode or "")
        zygote = shared(self.device, libraries=libraries or mode is not None)
        return ProblemWorker(
            zygote, self.spec, device=self.device, artefact=artefact, problem=asked, compilers=bool(mode),
            company=company,
        )  # fmt: skip

    def says(self) -> str:
        """How right was defined, in words, for verdict and report."""
        assert self.description is not None
        how = "in fp64" if self.description.fp64 else "in fp32 without TF32, since it has no fp64 form here"
        if self.description.random:
            how = "in fp32 from the same state of torch's generator, since its outputs are random"
        lead = self.spec.workloads[0].axes["lead"]
        held = [w.axes["lead"] for w in self.spec.workloads if w.held_out]
        said = [f"the reference is the problem's Model {how}"]
        if lead != self.description.lead:
            said.append(f"leading size {lead} in place of {self.description.lead}, which does not fit this device")
        if held:
            said.append(f"held out: leading sizes {', '.join(map(str, held))}")
        else:
            said.append("no other leading size was found that the module takes, so held out are other draws only")
        if self.description.alternatives:
            said.append(f"values also {', '.join(self.description.alternatives)}")
        return "; ".join(said)

    def gpu_bytes(self) -> int:
        """The buffers that the reference answers in; its process gives back what it computed with."""
        if self.box is None or self.device != "cuda":
            return 0
        return sum(arena.size for name, arena in self.box.arenas.items() if name != "inputs")

    def close(self) -> None:
        if self.box is not None:
            self.box.close()


class Box:
    """The processes that execute a problem's own code for us: what it draws, and what is right."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.workers: dict[str, ProblemWorker] = {}
        self.arenas: dict[str, Arena] = {}
        self.drawn: list[list[torch.Tensor]] = []
        self.filled: dict[int, int] = {}
        self.tokens: list[str] = []

    def describe(self, text: str, path: Path) -> Any:
        """What harness/worker_problem.py finds. Raises KernelError where the problem ends its process or hangs."""
        plain = Spec(
            name="problem", summary="described", axes=("one",), dtypes=("float32",),
            arguments=(Tensor(name="nothing", role="output", shape=("1",)),),
            workloads=(Workload(axes={"one": 1}, dtype="float32"),),
        )  # fmt: skip
        try:
            worker = ProblemWorker(
                shared("cpu", libraries=True), plain, device="cpu", artefact=path, problem={"role": "describe", "text": text},
                patience_s=DESCRIBE_S,
            )  # fmt: skip
        except WorkerFailure as fault:
            raise KernelError(f"{path} cannot be imported: {_plain(fault.reason)}") from None
        found = worker.found
        worker.close()
        return found

    def call(self, name: str, problem: Problem, spec: Spec, workload: Workload, asked: dict[str, Any],
             given: dict[str, torch.Tensor], on: str) -> dict[str, torch.Tensor]:  # fmt: skip
        """Outputs by name of one call in the worker of that name, started where it is not there. Raises WorkerFailure."""
        layout = Layout(spec, workload, 1)
        worker = self.workers.get(name)
        if worker is None or not worker.alive:
            zygote = shared(on, libraries=True)
            worker = self.workers[name] = ProblemWorker(zygote, spec, device=on, artefact=problem.folder, problem=asked)
        arena = self.arenas.get(name)
        if arena is None or arena.size < layout.size:
            if arena is not None:
                worker.unmap(arena)
                arena.close()
            arena = self.arenas[name] = Arena(on, layout.size)
        if arena.id not in worker.mapped:
            worker.map(arena)
        for tensor in spec.inputs:
            layout.view(arena, tensor)[0].copy_(given[tensor.name])
        _synchronize(on)
        calls = [layout.arguments(arena, 0)]
        worker.request({"op": "call", "dtype": workload.dtype, "calls": calls, "shapes": layout.shapes()})
        return {tensor.name: layout.view(arena, tensor)[0].clone() for tensor in spec.outputs}

    def reference(
        self, problem: Problem, given: dict[str, torch.Tensor], lead: int, *, exact: bool
    ) -> dict[str, torch.Tensor]:
        assert problem.description is not None
        wide = exact and problem.description.fp64
        dtype: Any = "float64" if wide and "float" in problem.spec.dtypes[0] else problem.spec.dtypes[0]
        workload = Workload(axes={"lead": lead}, dtype=dtype)
        spec = problem.spec.model_copy(update={"dtypes": (dtype,), "workloads": (workload,)})
        computed = "float64" if wide else "float32"
        asked = problem.asked("reference", dtype=computed, exact=exact)
        name = f"{computed} {'exact' if exact else 'eager'}"
        try:
            return self.call(name, problem, spec, workload, asked, given, self.device)
        except WorkerFailure as fault:
            where = f"{problem.spec.name}: Model fails at leading size {lead}"
            raise KernelError(f"{where}: {_plain(fault.reason)}") from None

    def fill(self, problem: Problem, at: int, view: torch.Tensor) -> None:
        """Fill one input, or several of them one above the other, with draws of get_inputs(), the same for all inputs."""
        shape = problem.description.inputs[at].shape or (1,)  # type: ignore[union-attr]
        while len(self.drawn) < POOL:
            self.drawn.append(self._draw(problem))
        several = view.dim() > len(shape)
        for one in view if several else [view]:
            turn = self.filled.get(at, 0)
            self.filled[at] = turn + 1
            kept = self.drawn[turn % POOL][at]
            if len(one) > len(kept):
                raise KernelError(f"get_inputs() of {problem.spec.name} draws {len(kept)} leading rows, not {len(one)}")
            one.copy_(kept[: one.shape[0]])

    def _draw(self, problem: Problem) -> list[torch.Tensor]:
        import torch

        inputs = problem.spec.inputs
        seed = Tensor(name="seed", role="input", shape=("1",), dtype="int64")
        drawn = tuple(tensor.model_copy(update={"role": "output"}) for tensor in inputs)
        workload = Workload(axes={"lead": problem.description.lead}, dtype=problem.spec.dtypes[0])  # type: ignore[union-attr]
        spec = problem.spec.model_copy(update={"arguments": (seed, *drawn), "workloads": (workload,)})
        given = {"seed": torch.tensor([secrets.randbits(31)])}
        try:
            found = self.call("inputs", problem, spec, workload, problem.asked("inputs"), given, "cpu")
        except WorkerFailure as fault:
            raise KernelError(f"{problem.spec.name}: get_inputs() fails: {_plain(fault.reason)}") from None
        return [found[tensor.name] for tensor in inputs]

    def close(self) -> None:
        for worker in self.workers.values():
            worker.close()
        for arena in self.arenas.values():
            arena.close()
        for token in self.tokens:
            GIVEN.pop(token, None)
        self.workers, self.arenas, self.tokens = {}, {}, []


_described: dict[str, Description] = {}
"""By text: what a problem is like does not change while this process lives."""
_describing = threading.Lock()
"""A campaign opens problems side by side, and all of them ask one zygote."""


def is_problem(name: str) -> bool:
    """Whether `--kernel` names a problem's file rather than a kernel."""
    return name.endswith(".py")


def load(name: str, on: Device, *, memory_bytes: int | None = None) -> Kernel:
    """A kernel by name or folder, or a problem by its file, for a device of so much memory. Raises KernelError."""
    return open_problem(Path(name), on, memory_bytes=memory_bytes) if is_problem(name) else catalog.load(name)


def read(path: Path) -> tuple[Path, Any, str]:
    """(path, importer, text) of a problem's file. Raises KernelError."""
    path = path.expanduser().resolve()
    if not path.is_file():
        raise KernelError(f"{path} is no file")
    importer = importers.for_file(path)
    if importer is None:
        raise KernelError(
            f"{path} is no problem: it must define class Model and get_inputs() at its top level, in KernelBench's form"
        )
    try:
        return path, importer, path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise KernelError(f"{path} cannot be read: {error}") from None


def open_problem(path: Path, on: Device, *, memory_bytes: int | None = None) -> Problem:
    """Describe a problem in the box and make its spec. The caller closes it. Raises KernelError.

    `memory_bytes`: of the device, where it is another machine's.
    """
    path, importer, text = read(path)
    box = Box(on)
    try:
        with _describing:
            if (description := _described.get(text)) is None:
                description = _described[text] = importer.described(box.describe(text, path), path)
        title, token = importer.title(path), digest(text)[:16]
        spec = importer.spec(
            title, description, token, most_bytes=(memory_bytes or devices.memory_bytes(on)) // JUDGING_FACTOR
        )
    except BaseException:
        box.close()
        raise
    return reopened(path, text, title, description, spec, on, box)


def reopened(
    path: Path, text: str, title: Title, description: Description, spec: Spec, on: Device, box: Box | None = None
) -> Problem:
    """A problem that was described before. The caller closes it."""
    box, token = box or Box(on), digest(text)[:16]
    problem = Problem(
        spec=spec, folder=path, text=text, title=title, description=description, device=on,
        seed=secrets.randbits(31), token=token, box=box,
    )  # fmt: skip
    for at in range(len(description.inputs)):
        name = f"{token}_{at}"
        GIVEN[name] = lambda view, at=at: box.fill(problem, at, view)
        box.tokens.append(name)
    return problem


def _plain(reason: str) -> str:
    return " ".join(reason.split())[:600]


def _synchronize(device: str) -> None:
    if device == "cuda":
        import torch

        with suppress(RuntimeError):
            torch.cuda.synchronize()
