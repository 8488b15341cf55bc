"""KernelBench's numbers for one candidate, by its own protocol (notes in docs/kernelbench.md), and its eval_results.json.

Compatible on purpose, weaknesses included: public seeds, one distribution, the shipped size. What is ours: the candidate shares neither process nor memory with the answer that it is compared with, nor with Model; timed calls
get inputs that were not there before and are made in Model's process, the answer of a drawn one is compared, too, and its clock is held against ours.
"""

from __future__ import annotations

import json
import random
import secrets
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pydantic import Field

from harness.device import ArgumentBuffers, synchronize
from harness.farside.kernelbench import CALL, NEXT, TIMES
from harness.judge import triton_kernels
from harness.problems.box import ProblemWorker
from harness.problems.pytorch import Problem
from harness.processes.fork_server import get_fork_server
from harness.processes.worker import WorkerFailure
from harness.records import Build, Outcome
from harness.store import write_atomically
from kernels.spec import Device, Dtype, Frozen, Spec, Tensor, Workload

if TYPE_CHECKING:
    import torch

    from harness.evaluate import Evaluator

Precision = Literal["float32", "float16", "bfloat16"]
TOLERANCE = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 1e-2}
SEED, TRIALS, TIMED = 42, 5, 100
FORGED, CLOCK_TRIES = 0.2, 3
PIPE_MS, PIPE = {"cpu": 0.05, "cuda": 0.1}, {"cpu": 0.25, "cuda": 0.25}
"""Milliseconds, and shares of what its clock says and of what Model's call beside it takes beside its own, that a candidate's timed call may take more
than that one beside its clock. What takes more, each of so many times, has a clock that lies. Behind the first both are timed anew, in processes of
their own, whose answers and times count then."""
BLOCKS, BLOCK, LOW, TRIMMED, SURE = 10, 5, 0.25, 0.05, 2.0
"""Hidden work is looked for in the calls that nobody disturbs, this quantile of each of so many blocks of so many calls at least, and in the mean of all, without this
share of them at either end: that is where few calls hide much. Either counts as far as it is beyond so many standard errors."""
MOST_ROOM = 1 << 40
"""Bytes that a problem may say its inputs take; there is no memory for so many, which is what is said then."""
SAMPLED = 64
"""Elements of each timed call's answer that are compared; all of one call's are. Which, is drawn here, behind the call."""
NUDGED = -2
"""Seed's offset for nudged inputs, as in farside/kernelbench.py."""
EXCESSIVE = 10.0
GENERATORS = 1 << 13
"""Bytes in which the states of torch's generators travel: 5,056 of the host's, 16 of a GPU's."""
COMPILE, RUNTIME = "compilation_error", "runtime_error"


class KernelBenchResult(Frozen):
    """As its KernelExecResult. Times are milliseconds; -1.0 is one that was not taken."""

    compiled: bool = False
    correctness: bool = False
    metadata: dict[str, Any] = Field(default_factory=dict)
    runtime: float = -1.0
    runtime_stats: dict[str, Any] = Field(default_factory=dict)
    ref_runtime: float = -1.0
    ref_runtime_stats: dict[str, Any] = Field(default_factory=dict)

    @property
    def speedup(self) -> float | None:
        """Mean over mean, as its analysis takes it; None where it is not correct or was not timed."""
        timed = self.correctness and self.runtime > 0 and self.ref_runtime > 0
        return self.ref_runtime / self.runtime if timed else None


class _Process:
    """One process of the protocol: Model's, or Model's and the candidate's."""

    def __init__(
        self, problem: Problem, artefact: Path, spec: Spec, *, reference: bool, precision: str, compilers: bool = False,
    ):  # fmt: skip
        from harness.checks.layout import Layout

        self.spec, self.layout = spec, Layout(spec, spec.workloads[0], 1)
        self.buffers = ArgumentBuffers(problem.device, self.layout.size)
        """Buffers of this process alone: in those that Model's process had, the last trial's answer would lie."""
        assert problem.description is not None
        independent = [one.values[0] not in ("given", "near") for one in problem.description.inputs]
        asked = problem.describe_for_worker("protocol", eager=reference, dtype=precision, independent=independent)
        fork_server = get_fork_server(problem.device, libraries=True)
        self.worker = ProblemWorker(
            fork_server, spec, device=problem.device, artefact=artefact, problem=asked, compilers=compilers
        )
        self.worker.map(self.buffers)

    def lay_out(self, spec: Spec) -> None:
        """Buffers anew, of the same tensors in other sizes."""
        from harness.checks.layout import Layout

        self.worker.unmap(self.buffers)
        self.buffers.close()
        self.spec, self.layout = spec, Layout(spec, spec.workloads[0], 1)
        self.buffers = ArgumentBuffers(self.buffers.device, self.layout.size)
        self.worker.map(self.buffers)

    def call(self, seed: int, generators: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        if generators is not None:
            self.layout.view(self.buffers, self.spec.inputs[1])[0].copy_(generators)
        self.ask(seed)
        return {tensor.name: self.view(tensor.name).clone() for tensor in self.spec.outputs}

    def time(self, maker: _Process, secret: int, looked: int, timed: int) -> _TimedCalls:
        """The timed calls, of inputs that `maker` makes, a process of Model's, this one itself or another, which is then timed beside it; `secret`
        draws these, `looked` what of the answers is compared. Raises WorkerFailure for times that are none."""
        import torch

        chance, seeds = torch.Generator().manual_seed(looked), random.Random(secret)
        whole_at = int(torch.randint(1, timed + 1, (), generator=chance))
        both = (self,) if maker is self else (self, maker)
        for one in both:
            one.ask(TIMES)
        elapsed_ms, samples, lacking, whole = list[float](), list[torch.Tensor](), list[list[float]](), None
        for trial in range(timed + 1):
            seed = seeds.getrandbits(31)
            maker.ask(NEXT, seed)
            made = maker.view("given")
            self.view("given").copy_(made.clone() if maker is self else made)  # Model's are as cold as the candidate's
            order = random.sample(both, len(both))  # the first one behind NEXT takes some tenths of a millisecond more
            took = {one: one.time_call(seed) for one in order}
            answer = self.view("output_0")
            if trial == whole_at:
                whole = answer.clone()
            if not trial:
                continue
            places = torch.randint(max(1, answer.numel()), (SAMPLED if answer.numel() else 0,), generator=chance)
            samples.append(answer.take(places.to(answer.device)).double())
            elapsed_ms.append(took[self][0])
            lacking.append([took[one][1] for one in both])
        assert whole is not None
        return _TimedCalls(elapsed_ms, lacking, whole, torch.stack(samples))

    def time_call(self, seed: int) -> tuple[float, float]:
        """Milliseconds of a timed call by its own clock, and of the request beside it. Raises WorkerFailure for times that are none."""
        synchronize(self.buffers.device)
        asked = time.perf_counter()
        self.ask(CALL, seed)
        took_ms, taken_ms = (time.perf_counter() - asked) * 1e3, float(self.view("elapsed"))
        if not 0 < taken_ms < took_ms:
            raise WorkerFailure(Outcome.CHEATED, "its clock says what cannot be")
        return taken_ms, took_ms - taken_ms

    def ask(self, seed: int, of_call: int = 0) -> None:
        """One request of the protocol, whose answer lies in the buffers. Raises WorkerFailure."""
        asked = self.view("seed")
        asked[0], asked[1] = seed, of_call
        self.worker.request(self.layout.message(self.buffers))

    def view(self, name: str) -> torch.Tensor:
        return self.layout.view(self.buffers, next(one for one in self.spec.tensors if one.name == name))[0]

    def close(self) -> None:
        self.worker.close()
        self.buffers.close()


class _TimedCalls(NamedTuple):
    elapsed_ms: list[float]
    lacking_ms: list[list[float]]
    """[calls, 1 or 2]: what the request of each took beside it, the copy of the answer, on a GPU what is written before each; and that of Model's call
    of the same inputs, where these are the candidate's."""
    answer: torch.Tensor
    """Of the one that was drawn."""
    samples: torch.Tensor
    """[calls, SAMPLED], float64: elements of every one's."""

    def hides_ms(self) -> float:
        """Milliseconds of a call that the candidate's clock lacks and Model's beside it does not, as far as chance does not explain them."""
        size = max(BLOCK, -(-len(self.lacking_ms) // BLOCKS))
        blocks = [self.lacking_ms[at : at + size] for at in range(0, len(self.lacking_ms), size)]
        low = [_low([own for own, _ in block]) - _low([beside for _, beside in block]) for block in blocks]
        apart = sorted(own - beside for own, beside in self.lacking_ms)
        cut = int(TRIMMED * len(apart))
        kept = apart[cut : len(apart) - cut]
        return max(_surely(low), _surely(kept))

    def usual_ms(self) -> float:
        """What Model's calls beside it take beside their clock, where nobody disturbs them."""
        return _low([beside for _, beside in self.lacking_ms])


def _low(values: list[float]) -> float:
    return sorted(values)[int(LOW * (len(values) - 1))]


def _surely(values: list[float]) -> float:
    """Their mean, less SURE standard errors by how far they lie below the median alone: above it is where a candidate can put as much as it likes,
    by pauses beside its clock, and honest ones are as noisy on either side."""
    middle = statistics.median(values)
    below = statistics.fmean(min(0.0, value - middle) ** 2 for value in values)
    return statistics.fmean(values) - SURE * (2 * below / len(values)) ** 0.5


def _check_timed(
    again: Callable[[], tuple[_TimedCalls, _TimedCalls]], mine: _TimedCalls, model: _TimedCalls, tolerance: float,
    device: Device,
) -> list[float]:  # fmt: skip
    """Milliseconds of its timed calls where the candidate has done meanwhile what it was timed for. Raises WorkerFailure where not.

    again: times it and Model once more, in processes of their own.
    """
    import torch

    for turn in range(CLOCK_TRIES):  # a first time may compile for gradients, or another process was at work
        for own, right in ((mine.answer, model.answer), (mine.samples, model.samples)):
            if not torch.allclose(right, own, atol=tolerance, rtol=tolerance, equal_nan=own is mine.samples):
                raise WorkerFailure(Outcome.CHEATED, "one of its timed calls returned another answer than Model's")
        late_ms, says_ms = mine.hides_ms(), statistics.fmean(mine.elapsed_ms)
        if late_ms <= PIPE_MS[device] + PIPE[device] * mine.usual_ms() + FORGED * says_ms:
            return mine.elapsed_ms
        if turn + 1 < CLOCK_TRIES:
            mine, model = again()
    said = f"its clock lacks {late_ms:.2f} ms of a timed call, of which it says {says_ms:.2f} ms"
    raise WorkerFailure(Outcome.CHEATED, said)


def evaluate(
    evaluator: Evaluator, problem: Problem, source: str, *, precision: Precision = "float32", trials: int = TRIALS,
    timed: int = TIMED,
) -> KernelBenchResult:  # fmt: skip
    """What KernelBench says of the candidate. Raises WorkerFailure where Model itself fails under its protocol."""
    device = {"hardware": evaluator.facts.name, "device": "cuda:0" if evaluator.device == "cuda" else "cpu"}
    build = evaluator.build(evaluator.store.put(source))
    if not build.ok:
        return KernelBenchResult(metadata={**device, f"{COMPILE}_name": "RuntimeError", COMPILE: build.log[-4000:]})
    spec = _spec(problem, precision)
    processes: list[_Process] = []
    try:
        made = Path(build.artefact)
        first = _Process(problem, made, spec, reference=True, precision=precision)
        processes.append(first)
        seeds = _seeds(trials)
        right = [first.call(seed) for seed in seeds]
        spec = _spec(problem, precision, max(1, min(int(first.view("elapsed")), MOST_ROOM)))
        first.lay_out(spec)
        asked = secrets.randbits(60), secrets.randbits(60), timed
        model = first.time(first, *asked)
        baseline = _stats(model.elapsed_ms, device)
        # of a candidate that fails, too: its analysis leaves out what has no baseline
        timed_reference = {"ref_runtime": baseline["mean"], "ref_runtime_stats": baseline}
        try:
            _compile_ahead(build, problem, spec, precision)
            other = _Process(problem, made, spec, reference=False, precision=precision)
            processes.append(other)
            metadata = dict(device) | _compare(other, seeds, right, TOLERANCE[precision])
            passed = metadata.pop("passed")
            if not passed:
                processes.remove(other)
                other.close()
                metadata |= _conditioned(problem, made, spec, precision, seeds[0], right[0])
                return KernelBenchResult(compiled=True, metadata=metadata, **timed_reference)
            mine = other.time(first, *asked)
            processes.remove(other)
            other.close()

            def time_both() -> tuple[_TimedCalls, _TimedCalls]:
                drawn, begun = (secrets.randbits(60), secrets.randbits(60), timed), len(processes)
                # One after the other: what a candidate leaves at work while it is made would be in Model's times, and excuse its clock.
                maker = _Process(problem, made, spec, reference=True, precision=precision)
                processes.append(maker)
                beside = maker.time(maker, *drawn)
                processes.append(again := _Process(problem, made, spec, reference=False, precision=precision))
                mine = again.time(maker, *drawn)
                while len(processes) > begun:
                    processes.pop().close()
                return mine, beside

            found = _check_timed(time_both, mine, model, TOLERANCE[precision], problem.device)
            stats = _stats(found, device)
        except WorkerFailure as fault:
            return _failed(fault, device).model_copy(update=timed_reference)
        if baseline["mean"] / max(stats["mean"], 1e-12) > EXCESSIVE:
            metadata["excessive_speedup"] = True
        return KernelBenchResult(
            compiled=True, correctness=True, metadata=metadata, runtime=stats["mean"], runtime_stats=stats,
            **timed_reference,
        )  # fmt: skip
    finally:
        for process in processes:
            process.close()


def _conditioned(
    problem: Problem,
    made: Path,
    spec: Spec,
    precision: Precision,
    seed: int,
    right: dict[str, torch.Tensor],
) -> dict[str, Any]:
    """What rounding alone does to this problem: how far Model is from itself with inputs one unit in the last place away."""
    import torch

    process = _Process(problem, made, spec, reference=True, precision=precision)
    try:
        got, want = process.call(NUDGED - seed)["output_0"], right["output_0"]
    except WorkerFailure:
        return {}
    finally:
        process.close()
    apart, tolerance = (want.double() - got.double()).abs().max().item(), TOLERANCE[precision]
    within = torch.allclose(want, got, atol=tolerance, rtol=tolerance)
    return {"eager_off_by_rounding": f"{apart:.6f}", "eager_passes_off_by_rounding": within}


def _compile_ahead(build: Build, problem: Problem, spec: Spec, precision: str) -> None:
    """Triton's kernels for the shipped sizes, which may be larger than those of our suite. Raises WorkerFailure."""
    if problem.device != "cuda" or not triton_kernels.is_needed(build):
        return
    made, processes = Path(build.artefact), list[_Process]()

    def start() -> ProblemWorker:
        how = {"reference": False, "precision": precision, "compilers": True}
        processes.append(_Process(problem, made, spec, **how))  # type: ignore[arg-type]
        return processes[-1].worker

    try:
        triton_kernels.fill(made, [f"kernelbench {precision}"], start, lambda _worker, _name: processes[-1].call(SEED))
    finally:
        for process in processes:
            process.buffers.close()


def _seeds(trials: int) -> list[int]:
    """Its chain: one public seed, and what torch's generator makes of it."""
    import torch

    generator = torch.Generator().manual_seed(SEED)
    return [int(torch.randint(0, 2**32 - 1, (1,), generator=generator)) for _ in range(trials)]


def _compare(process: _Process, seeds: list[int], right: list[dict[str, Any]], tolerance: float) -> dict[str, Any]:
    """Its metadata of the trials, and `passed`."""
    import torch

    metadata: dict[str, Any] = {}
    passed = 0
    for seed, expected in zip(seeds, right, strict=True):
        want, got = expected["output_0"], process.call(seed, expected["generators"])["output_0"]
        if torch.allclose(want, got, atol=tolerance, rtol=tolerance):
            passed += 1
            continue
        apart = (want.double() - got.double()).abs()
        metadata.setdefault("max_difference", []).append(f"{apart.max().item():.6f}")
        metadata.setdefault("avg_difference", []).append(f"{apart.mean().item():.6f}")
        metadata["correctness_issue"] = "Output mismatch"
    metadata["correctness_trials"] = f"({passed} / {len(seeds)})"
    return metadata | {"passed": passed == len(seeds)}


def _failed(fault: WorkerFailure, device: dict[str, str]) -> KernelBenchResult:
    if fault.outcome is Outcome.WRONG_SHAPE:
        said = {
            "correctness_issue": f"Output shape mismatch: {fault.reason}",
            "correctness_issue_name": "correctness_issue",
        }
        return KernelBenchResult(compiled=True, metadata={**device, **said})
    if fault.outcome is Outcome.MISSING_ENTRY:
        said = {f"{COMPILE}_name": "SyntaxError", COMPILE: fault.reason}
        return KernelBenchResult(metadata={**device, **said})
    said = {f"{RUNTIME}_name": str(fault.outcome), RUNTIME: fault.reason}
    return KernelBenchResult(compiled=True, metadata={**device, **said})


def _stats(elapsed_ms: list[float], device: dict[str, str]) -> dict[str, Any]:
    """Three significant digits, as there: ties are decided by rounding."""
    found = {
        "mean": statistics.fmean(elapsed_ms), "std": statistics.pstdev(elapsed_ms), "min": min(elapsed_ms),
        "max": max(elapsed_ms),
    }  # fmt: skip
    return {name: float(f"{value:.3g}") for name, value in found.items()} | {"num_trials": len(elapsed_ms), **device}


def _spec(problem: Problem, precision: Dtype, room: int = 1) -> Spec:
    """room: bytes in which the inputs of timed calls lie."""
    assert problem.description is not None
    shape = tuple(str(slope * problem.description.lead + rest) for slope, rest in problem.description.outputs[0].shape)
    dtype = problem.description.outputs[0].dtype
    outputs = (
        Tensor(name="output_0", role="output", shape=shape or ("1",), dtype=precision if "float" in dtype else dtype),
        Tensor(name="generators", role="output", shape=(str(GENERATORS),), dtype="uint8"),
        Tensor(name="elapsed", role="output", shape=("1",), dtype="float64"),
        Tensor(name="given", role="output", shape=(str(room),), dtype="uint8"),
    )
    seed = Tensor(name="seed", role="input", shape=("2",), dtype="int64")
    behind = Tensor(name="generators_before", role="input", shape=(str(GENERATORS),), dtype="uint8")
    workload = Workload(axes={"lead": 1}, dtype="float32")
    return Spec(
        name=problem.spec.name, summary="KernelBench's protocol", axes=("lead",), dtypes=("float32",),
        arguments=(seed, behind, *outputs), workloads=(workload,),
    )  # fmt: skip


# --- its files -------------------------------------------------------------------------------------------------------


def add_to_results(path: Path, problem_id: int, result: KernelBenchResult, sample_id: int = 0) -> None:
    """Put one sample's entry into an eval_results.json, in place of one of the same numbers."""
    found: dict[str, list[dict[str, Any]]] = json.loads(path.read_text()) if path.exists() else {}
    entry = {"sample_id": sample_id, **result.model_dump(exclude={"ref_runtime", "ref_runtime_stats"})}
    others = [one for one in found.get(str(problem_id), []) if one["sample_id"] != sample_id]
    found[str(problem_id)] = sorted([*others, entry], key=lambda one: one["sample_id"])
    ordered = dict(sorted(found.items(), key=lambda item: int(item[0])))
    write_atomically(path, json.dumps(ordered, indent=4))


def add_to_baseline(path: Path, level: int, file_name: str, result: KernelBenchResult) -> None:
    """The eager module's time where its analysis looks for baselines: {"level1": {"23_Softmax.py": {...}}}."""
    if not result.ref_runtime_stats:
        return
    found: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.exists() else {}
    found.setdefault(f"level{level}", {})[file_name] = result.ref_runtime_stats
    write_atomically(path, json.dumps(found, indent=4))


def disagreement(result: KernelBenchResult, outcome: Outcome, reason: str, degenerate: tuple[str, ...]) -> str:
    """Why the two verdicts differ, in one sentence; "" where they agree."""
    ours = outcome is Outcome.PASSED
    if result.correctness == ours:
        return ""
    if result.correctness:
        also = f"; {', '.join(degenerate)} would pass there too" if degenerate else ""
        return f"KernelBench's check passes, ours says {outcome}: {reason}{also}"
    said = next(
        (str(result.metadata[name]) for name in (COMPILE, RUNTIME, "correctness_issue") if name in result.metadata), ""
    )
    worst = max((float(one) for one in result.metadata.get("max_difference", [])), default=None)
    itself = result.metadata.get("eager_off_by_rounding")
    if itself is not None and not result.metadata["eager_passes_off_by_rounding"]:
        also = f"; so is eager from itself with inputs one unit in the last place away, by {float(itself):g}: a property of the problem"
    elif itself is not None:
        also = f"; eager is off from itself by {float(itself):g} with inputs one unit in the last place away"
    else:
        also = ""
    apart = f" (off by {worst:g} at most, of inputs with its seeds)" if worst is not None else ""
    return f"ours passes, KernelBench's does not: {' '.join(said.split())[:200]}{apart}{also}"
