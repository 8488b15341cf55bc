"""The processes that execute a problem's own code: what it draws, and what is right."""

from __future__ import annotations

import math
import secrets
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import device as devices
from harness.checks.drawing import GIVEN
from harness.checks.fitting import OutOfDeviceMemory
from harness.checks.integers import put
from harness.checks.layout import Layout
from harness.device import ArgumentBuffers
from harness.farside import sandbox
from harness.processes.fork_server import ForkServer, PythonWorker, get_fork_server
from harness.processes.worker import WorkerFailure
from harness.records import Outcome
from kernels.catalog import KernelError
from kernels.spec import OWN_VALUES, Device, Spec, Tensor, Workload

if TYPE_CHECKING:
    import torch

    from harness.problems.pytorch import Problem

DESCRIBE_S = 300.0
"""Seconds for executing a problem and drawing its inputs three times; KernelBench's largest draw 6 GB."""
SLOW_S = 10.0
"""After which it is said that this takes long, and what to do."""
REFERENCE_S = 300.0
SHARED_ON = ("cuda",)
"""Devices on which the references of a problem share a process."""
FAR_CALLS = 5000
"""Calls in a row of a Model with a state by which what happens rarely is found."""
LATE_STEPS = 100
"""Calls of Model, and less than so many more, behind which the last of the states that are drawn is, the others behind 0, 1, 2: what
warms up is warm by then."""
POOL, LARGE_POOL, LARGE_BYTES = 4, 2, 1 << 30
"""Draws of get_inputs() kept for tensors that only it can draw; fewer of larger ones, which take it half a minute each."""
QUICK_S, FRESH_S = 0.03, 12.0
"""Draws that take no longer than this are used once, until all have taken so much: then those that there are come again."""
LIMITS = sandbox.ProcessLimits(memory_bytes=16 << 30, threads=512)
COMPILING = sandbox.ProcessLimits(memory_bytes=32 << 30, threads=1024, file_bytes=1 << 30, scratch_bytes=8 << 30)
"""torch.compile runs g++ or ptxas in its worker; a precompiled header of torch's has over 64 MB."""
DESCRIBED_SHARE, DESCRIBED_BYTES = 4, 40 << 30
"""A process that draws a whole problem's inputs may take one part in so many of this machine's memory, at most so much, or LIMITS."""


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


class EagerBeside(SecondReference):
    """Model as the baseline in the process of the references, for what is not timed. Who ends it leaves that process."""

    def __init__(self, first: ProblemWorker, problem: Problem, company: Path) -> None:
        """Raises WorkerFailure where it cannot load: then both end."""
        self.__dict__.update(vars(first))
        self.number, self.left, self.failed = next(self.siblings), False, False
        self.mapped, self.warnings, self.returned = set(), [], frozenset()
        self.spec, self.problem = problem.spec, problem.describe_for_worker("candidate", eager=True)
        symbols: dict[str, tuple[str, ...]] = dict.fromkeys(self.spec.dtypes, (self.spec.entry_name,))
        self._load(problem.folder, symbols, company)

    @property
    def alive(self) -> bool:
        return not self.left and super().alive

    def kill(self) -> None:
        if self.failed:
            super().kill()
        elif not self.left:
            try:
                for number in list(self.mapped):
                    self.request({"op": "unmap", "id": number})
            except WorkerFailure:
                return  # it has ended
            self.left = True

    def close(self) -> None:
        if not self.left:
            self.failed = self.left = True
            super().close()

    def _copied(self, library: Path, name: str) -> str:
        return super()._copied(library, f"{self.number}-{name}")


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
                get_fork_server("cpu", libraries=True), plain, device="cpu", artefact=path, problem={"role": "describe", "text": text, "far": FAR_CALLS},
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
        first = self._shared_with() if asked["role"] == "reference" else None
        if first is not None:
            try:
                return SecondReference(first, spec, artefact, asked)
            except WorkerFailure:  # it registers an operator, say, or there is no memory for two
                self.apart = True
        return ProblemWorker(get_fork_server(on, libraries=True), spec, device=on, artefact=artefact, problem=asked)

    def _shared_with(self) -> ProblemWorker | None:
        """A reference whose process others may share."""
        if self.apart or self.device not in SHARED_ON:
            return None
        return next((one for one in self.workers.values() if one.alive and one.problem["role"] == "reference"), None)

    def beside_references(self, problem: Problem, company: Path) -> EagerBeside | None:
        """Model as the baseline in the process of the references, for checks; None where they have none in common, or it is not loaded there."""
        if (first := self._shared_with()) is None:
            return None
        try:
            return EagerBeside(first, problem, company)
        except WorkerFailure:  # both have ended
            self.apart = True
            return None

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
        places = torch.searchsorted(upto, drawn.mul_(upto[-1])).clamp_max_(len(values) - 1)
        rarest = min(range(len(values)), key=table.shares.__getitem__)
        put(places, list(dict.fromkeys((0, len(values) - 1, rarest))))  # a sentinel is one of them
        view.copy_(values[places])

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
                steps=steps if any(at >= count for at in given) else None, far=FAR_CALLS,
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
