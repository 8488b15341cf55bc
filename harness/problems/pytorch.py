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
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import device as devices
from harness.checks.drawing import GIVEN
from harness.checks.fitting import JUDGING_FACTOR, OutOfDeviceMemory
from harness.checks.layout import Layout
from harness.device import ArgumentBuffers
from harness.farside import module_state, sandbox
from harness.once import Once
from harness.processes.fork_server import ForkServer, PythonWorker, get_fork_server
from harness.processes.worker import WorkerFailure
from harness.records import Outcome
from harness.store import digest
from kernels import catalog, importers
from kernels.catalog import Kernel, KernelError
from kernels.importers.kernelbench import Description
from kernels.spec import OWN_VALUES, Device, Spec, Tensor, Workload

if TYPE_CHECKING:
    import torch

    from kernels.importers import Import

DEFINITION = "definition.json"
FORMS = {
    ".py": "it must define class Model and get_inputs() at its top level, in KernelBench's form",
    ".json": "it must be a definition of flashinfer-bench (name, axes, inputs, outputs, reference) or a definition.json of "
    "SOL-ExecBench with its workload.jsonl beside it (docs/kernels.md)",
}
DESCRIBE_S = 300.0
"""Seconds for executing a problem and drawing its inputs three times; KernelBench's largest draw 6 GB."""
SLOW_S = 10.0
"""After which it is said that this takes long, and what to do."""
REFERENCE_S = 300.0
SHARED_ON = ("cuda",)
"""Devices on which the references of a problem share a process."""
LATE_STEPS = 100
"""Calls of Model, and less than so many more, behind which the last of the states that are drawn is, the others behind 0, 1, 2: what
warms up is warm by then."""
POOL, LARGE_POOL, LARGE_BYTES = 4, 2, 1 << 30
"""Draws of get_inputs() kept for tensors that only it can draw; fewer of larger ones, which take it half a minute each."""
QUICK_S, FRESH_S = 0.03, 12.0
"""Draws that take no longer than this are used once, until all have taken so much: then those that there are come again."""
LARGE_WEIGHTS = 64 << 20
"""Bytes of weights from which on modules are constructed on the device, where Model's constructor allows that: a core draws
some 300 MB of them a second, and seven processes do."""
LIMITS = sandbox.ProcessLimits(memory_bytes=16 << 30, threads=512)
COMPILING = sandbox.ProcessLimits(memory_bytes=32 << 30, threads=1024, file_bytes=1 << 30, scratch_bytes=8 << 30)
"""torch.compile runs g++ or ptxas in its worker; a precompiled header of torch's has over 64 MB."""
DESCRIBED_SHARE, DESCRIBED_BYTES = 4, 40 << 30
"""A process that draws a whole problem's inputs may take one part in so many of this machine's memory, at most so much, or LIMITS."""
EAGER = "eager"
COMPILE_MODES = {"compile": "default", "max-autotune": "max-autotune-no-cudagraphs"}


def begin_workers() -> None:
    """Begin those that wait for a first problem on a GPU, and the fork server of all."""
    get_fork_server("cuda", libraries=True).spares.prepare(LIMITS)


def describing() -> sandbox.ProcessLimits:
    share = min(devices.memory_bytes("cpu") // DESCRIBED_SHARE, DESCRIBED_BYTES)
    return LIMITS._replace(memory_bytes=max(LIMITS.memory_bytes, share))


class ProblemWorker(PythonWorker):
    """A worker that loads a problem's code, as `problem["role"]` says (harness/farside/problem.py)."""

    def __init__(
        self,
        fork_server: ForkServer,
        spec: Spec,
        *,
        device: str,
        artefact: Path,
        problem: dict[str, Any],
        patience_s: float = REFERENCE_S,
        compilers: bool = False,
        company: Path | None = None,
        limits: sandbox.ProcessLimits = LIMITS,
    ) -> None:
        self.problem = problem
        super().__init__(
            fork_server, spec, "model_new", device=device, artefact=artefact, dtypes=spec.dtypes, company=company,
            limits=COMPILING if compilers else limits, compilers=compilers, ours=bool(problem.get("compile")),
            patience_s=patience_s,
        )  # fmt: skip

    def _entry(self) -> dict[str, Any]:
        return {**super()._entry(), "problem": self.problem}


class SecondReference(ProblemWorker):
    """Model in other precision, in the process of the first reference: both are the problem's own, and are called in turn."""

    def __init__(self, first: ProblemWorker, spec: Spec, artefact: Path, problem: dict[str, Any]) -> None:
        """Raises WorkerFailure where it cannot load: then both end."""
        self.__dict__.update(vars(first))
        self.number, self.spec, self.problem = next(self.siblings), spec, problem
        self._load(artefact, dict.fromkeys(spec.dtypes, (spec.entry_name,)), None)

    def request(self, message: dict[str, Any], **how: Any) -> dict:
        return super().request({**message, "candidate": self.number}, **how)


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

    def compare_initial_state(self, workload: Workload, left: dict[str, torch.Tensor]) -> str:
        """What of the state a module begins with otherwise than Model, or "". left: the outputs' `state_DTYPE_after` [rows, ROW]."""
        import torch

        assert self.description is not None and self.box is not None
        drawn = self.box._pool(self, workload)[0]  # behind no call
        begins = {self.spec.inputs[at].name: values.reshape(-1) for at, values in drawn.items()}
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


class Box:
    """The processes that execute a problem's own code for us: what it draws, and what is right."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.workers: dict[str, ProblemWorker] = {}
        self.apart = False
        """Whether each reference has a process of its own, since one has failed where they shared it."""
        self.rounding: dict[str, Any] | None = None
        """Arguments by which references in fp64 round (rounding.Rounding); None for no other rounding."""
        self.mode = ""
        """The mode in which it is called."""
        self.instance, self.moved = 0, ""
        """The seed of the module that is asked, 0 for the first one, and which of its weights are moved."""
        self.arenas: dict[str, ArgumentBuffers] = {}
        self.drawn_at: Workload | None = None
        self.drawn: list[dict[int, torch.Tensor]] = []
        """Draws at those sizes: inputs that only get_inputs() can draw, by their place."""
        self.filled: dict[int, int] = {}
        self.turns: dict[int, int] = {}
        """Draw -> how often its like had been used when it was made."""
        self.quick_s, self.spent_s = math.inf, 0.0
        """Least seconds of a draw, and the seconds of all draws."""
        self.drawing = ""
        """The module that the drawing worker has executed."""
        self.given: dict[str, Callable[[torch.Tensor, Workload], None]] = {}
        """Functions of GIVEN that belong to this problem."""

    def describe(self, text: str, path: Path) -> Any:
        """What harness/farside/problem.py finds. Raises KernelError where the problem ends its process or hangs."""
        plain = Spec(
            name="problem", summary="described", axes=("one",), dtypes=("float32",),
            arguments=(Tensor(name="nothing", role="output", shape=("1",)),),
            workloads=(Workload(axes={"one": 1}, dtype="float32"),),
        )  # fmt: skip
        slow = threading.Timer(SLOW_S, _say_slow, (path,))
        slow.start()
        try:
            worker = ProblemWorker(
                get_fork_server("cpu", libraries=True), plain, device="cpu", artefact=path, problem={"role": "describe", "text": text},
                patience_s=DESCRIBE_S, limits=describing(),
            )  # fmt: skip
        except WorkerFailure as fault:
            if "no answer within" in fault.reason:
                raise KernelError(
                    f"{path} takes more than {DESCRIBE_S:.0f} s to be imported and called a few times on this machine's processor: "
                    "get_inputs and get_init_inputs must make less"
                ) from None
            raise KernelError(f"{path} cannot be imported: {_plain(fault.reason)}") from None
        finally:
            slow.cancel()
        found = worker.found
        worker.close()
        return found

    def call(self, name: str, problem: Problem, spec: Spec, workload: Workload, asked: dict[str, Any],
             given: dict[str, torch.Tensor], on: str) -> dict[str, torch.Tensor]:  # fmt: skip
        """Outputs by name of one call in the worker of that name, started where it is not there. Raises WorkerFailure."""
        layout = Layout(spec, workload, 1)
        worker = self.workers.get(name)
        if on == "cuda":
            devices.give_back_memory()
        if worker is None or not worker.alive:
            worker = self.workers[name] = self._started(spec, problem.folder, asked, on)
        buffers = self.arenas.get(name)
        if buffers is None or buffers.size < layout.size:
            if buffers is not None:
                worker.unmap(buffers)
                buffers.close()
            buffers = self.arenas[name] = ArgumentBuffers(on, layout.size)
        if buffers.id not in worker.mapped:
            worker.map(buffers)
        for tensor in spec.inputs:
            layout.view(buffers, tensor)[0].copy_(given[tensor.name])
        more: dict[str, Any] = {"rounding": self.rounding} if asked.get("exact") and self.rounding else {}
        if asked["role"] == "reference" and self.instance:
            more |= {"instance": self.instance, "moved": self.moved}
        if asked["role"] == "reference" and self.mode:
            more["mode"] = self.mode
        if worker.request(layout.message(buffers, **more)).get("lacks_moved"):
            raise KernelError(f"{problem.spec.name}: Model has no such weights")
        return {tensor.name: layout.view(buffers, tensor)[0].clone() for tensor in spec.outputs}

    def _started(self, spec: Spec, artefact: Path, asked: dict[str, Any], on: str) -> ProblemWorker:
        """On a GPU references share a process, where Model can be loaded twice in one: CUDA's start takes longer."""
        first = next((one for one in self.workers.values() if one.alive and one.problem["role"] == "reference"), None)
        if first is not None and asked["role"] == "reference" and on in SHARED_ON and not self.apart:
            try:
                return SecondReference(first, spec, artefact, asked)
            except WorkerFailure:  # it registers an operator, say, or there is no memory for two
                self.apart = True
        return ProblemWorker(get_fork_server(on, libraries=True), spec, device=on, artefact=artefact, problem=asked)

    def reference(
        self, problem: Problem, given: dict[str, torch.Tensor], axes: dict[str, int], *, exact: bool
    ) -> dict[str, torch.Tensor]:
        assert problem.description is not None
        wide = exact and problem.description.fp64
        spec, dtype = problem.spec, problem.spec.dtypes[0]
        if wide:  # every float, not only those of the workload's dtype
            wider = [("float" in spec.dtype(t, spec.workloads[0]), t) for t in spec.tensors]
            arguments = tuple(t.model_copy(update={"dtype": "float64"}) if is_float else t for is_float, t in wider)
            spec = spec.model_copy(update={"arguments": arguments})
        workload = Workload(axes=axes, dtype=dtype)
        computed = "float64" if wide else "float32"
        asked = problem.describe_for_worker("reference", dtype=computed, exact=exact)
        name = f"{computed} {'exact' if exact else 'eager'}"
        try:
            try:
                return self.call(name, problem, spec, workload, asked, given, self.device)
            except WorkerFailure as fault:
                shared = any(isinstance(one, SecondReference) for one in self.workers.values())
                if fault.outcome is Outcome.OUT_OF_RESOURCES:
                    self._make_room(name)
                elif not shared:
                    raise
                self.apart = self.apart or shared
                return self.call(name, problem, spec, workload, asked, given, self.device)
        except WorkerFailure as fault:
            at = " ".join(f"{axis}={size}" for axis, size in axes.items())
            kind = OutOfDeviceMemory if fault.outcome is Outcome.OUT_OF_RESOURCES else KernelError
            raise kind(f"{problem.spec.name}: Model fails at {at}: {_plain(fault.reason)}") from None

    def _make_room(self, name: str) -> None:
        """Give back what the other references hold of the device, and what torch has set aside here; they start anew."""
        for other in [one for one in self.workers if one != name and not one.startswith("inputs")]:
            self.end(other)
            if (buffers := self.arenas.pop(other, None)) is not None:
                buffers.close()
        if self.device == "cuda":
            devices.give_back_memory(0)

    def _pool(self, problem: Problem, workload: Workload) -> list[dict[int, torch.Tensor]]:
        """Draws of get_inputs() for that workload."""
        assert problem.source is not None
        drawn_at = problem.source.draw_sizes(workload, problem.description)  # type: ignore[arg-type]
        if self.drawn_at is None or (drawn_at.axes, drawn_at.dtype) != (self.drawn_at.axes, self.drawn_at.dtype):
            self.drawn_at, self.drawn, self.filled, self.turns = drawn_at, [], {}, {}
        wanted = POOL
        while len(self.drawn) < wanted:
            number = len(self.drawn)
            steps = number if number < wanted - 1 else LATE_STEPS + secrets.randbelow(LATE_STEPS)
            self.drawn.append(self._draw(problem, drawn_at, steps))
            wanted = LARGE_POOL if sum(one.nbytes for one in self.drawn[0].values()) > LARGE_BYTES else POOL
        return self.drawn

    def fill(self, problem: Problem, at: int, view: torch.Tensor, workload: Workload) -> None:
        """Fill one input, or several of them one above the other, with draws of get_inputs(), the same for all inputs; behind the
        user's inputs come the states that Model has come to.

        A draw that takes little time is used once by each input, as long as all such have not taken FRESH_S.
        """
        assert problem.description is not None
        found, pool = problem.description.inputs, self._pool(problem, workload)
        dimensions = len(found[at].shape or (1,)) if at < len(found) else 2
        several = view.dim() > dimensions
        for one in view if several else [view]:
            turn = self.filled.get(at, 0)
            self.filled[at] = turn + 1
            place = turn % len(pool)
            if (
                turn > self.turns.get(place, place)
                and self.quick_s < QUICK_S
                and self.spent_s < FRESH_S
                and not problem.description.state
            ):
                assert self.drawn_at is not None
                pool[place], self.turns[place] = self._draw(problem, self.drawn_at, place), turn
            kept = pool[place][at]
            if len(one) > len(kept):
                raise KernelError(f"get_inputs() of {problem.spec.name} draws {len(kept)} leading rows, not {len(one)}")
            one.copy_(kept[: one.shape[0]])

    def fill_near(self, problem: Problem, at: int, view: torch.Tensor, workload: Workload) -> None:
        """The same, with other low bits in the floats that differ between two draws."""
        import torch

        self.fill(problem, at, view, workload)
        first, second = (self.drawn[turn][at][: view.shape[-len(self.drawn[turn][at].shape)]] for turn in (0, 1))
        moving = (first != second).to(view.device)
        bits, mask = {8: (torch.int64, (1 << 26) - 1), 4: (torch.int32, (1 << 12) - 1)}[view.element_size()]
        raw = view.view(bits)
        noise = torch.randint(
            0, mask + 1, raw.shape, dtype=bits, device=view.device, generator=devices.generator(view.device.type)
        )
        raw.bitwise_xor_(noise.masked_fill_(~moving | (view == 0), 0))

    def fill_among(self, problem: Problem, at: int, view: torch.Tensor, workload: Workload) -> None:
        """Fill an input, whatever its shape, with the values that its elements have, each as often as it was drawn."""
        import torch

        assert problem.description is not None
        table, on = problem.description.inputs[at].table, view.device
        if table is None:
            drawn = secrets.choice(self._pool(problem, workload))[at].reshape(-1).to(on)
            view.copy_(drawn[torch.randint(len(drawn), view.shape, device=on, generator=devices.generator(on.type))])
            return
        wide = torch.float64 if view.dtype.is_floating_point else torch.int64
        values = torch.tensor(table.values, dtype=wide, device=on).to(view.dtype)
        upto = torch.tensor(table.shares, dtype=torch.float64, device=on).cumsum(0)
        drawn = torch.rand(view.shape, device=on, dtype=torch.float64, generator=devices.generator(on.type))
        view.copy_(values[torch.searchsorted(upto, drawn.mul_(upto[-1])).clamp_max_(len(values) - 1)])

    def _draw(self, problem: Problem, workload: Workload, steps: int) -> dict[int, torch.Tensor]:
        """One draw of the inputs that only get_inputs() can draw, by their place; of states that behind so many calls of Model."""
        import torch

        assert problem.source is not None and problem.description is not None
        count = len(problem.description.inputs)
        found = problem.description.inputs
        given = [
            at
            for at, one in enumerate(problem.spec.inputs)
            if one.values[0].partition(":")[0] in OWN_VALUES and not (at < count and found[at].table)
        ]
        began = time.monotonic()
        inputs = [problem.spec.inputs[at] for at in given]
        seed = Tensor(name="seed", role="input", shape=("1",), dtype="int64")
        drawn = tuple(tensor.model_copy(update={"role": "output", "touched": None}) for tensor in inputs)
        spec = problem.spec.model_copy(update={"arguments": (seed, *drawn), "workloads": (workload,)})
        text = problem.source.module_at(workload)
        worker = f"inputs {steps}" if problem.description.state else "inputs"
        if self.drawing != text:  # its module draws at other sizes
            for name in [name for name in self.workers if name.startswith("inputs")]:
                self.end(name)
            self.drawing = text
        try:
            asked = problem.describe_for_worker(
                "inputs", text=text, only=[at for at in given if at < count],
                steps=steps if any(at >= count for at in given) else None,
            )  # fmt: skip
            seeded = {"seed": torch.tensor([secrets.randbits(31)])}
            made = self.call(worker, problem, spec, workload, asked, seeded, "cpu")
        except WorkerFailure as fault:
            raise KernelError(f"{problem.spec.name}: get_inputs() fails: {_plain(fault.reason)}") from None
        if problem.description.state:
            self.end(worker)
        taken = time.monotonic() - began
        self.quick_s, self.spent_s = min(self.quick_s, taken), self.spent_s + taken
        return {at: made[tensor.name] for at, tensor in zip(given, inputs, strict=True)}

    def end(self, name: str) -> None:
        """End the worker of that name, if it is there."""
        if (worker := self.workers.pop(name, None)) is not None:
            worker.close()

    def close(self) -> None:
        for worker in self.workers.values():
            worker.close()
        for buffers in self.arenas.values():
            buffers.close()
        for name, fill in self.given.items():
            GIVEN[name].remove(fill)
            if not GIVEN[name]:
                del GIVEN[name]
        self.workers, self.arenas, self.given = {}, {}, {}


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


_slow_said = threading.Event()


def _say_slow(path: Path) -> None:
    """Once a process: a campaign of large modules would say it of each."""
    if not _slow_said.is_set():
        _slow_said.set()
        print(
            f"{ascii(path.name)[1:-1]} takes more than {SLOW_S:.0f} s to be imported and called on this machine's processor, of {DESCRIBE_S:.0f} s "
            "that it may: smaller inputs, from get_inputs and get_init_inputs, make that and all that follows shorter",
            file=sys.stderr, flush=True,
        )  # fmt: skip


def _plain(reason: str) -> str:
    return " ".join(reason.split())[:600]
