"""The verdict on one file without any agent: `run.py evaluate`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from graph.choices import baseline_source, choose_compile_modes, faults_first, read_source
from graph.request import RunRequest
from graph.result import baseline_failed
from graph.runs import RunError, RunFolder
from graph.session import RunService
from harness import device, protocol_kernelbench
from harness.evaluate import Evaluator, measure_against
from harness.problems import pytorch
from harness.problems.pytorch import Problem
from harness.processes.worker import WorkerFailure
from harness.protocol_kernelbench import KernelBenchResult
from harness.records import Verdict
from harness.store import Store
from harness.timing import load
from kernels.catalog import Kernel
from kernels.spec import Device


@dataclass(frozen=True)
class FileRequest:
    """What is to be judged, and against what."""

    kernel: Kernel
    device: Device
    name: str
    source: str
    baseline: tuple[str, str]
    """Name and text of the baseline."""
    dtypes: tuple[str, ...]
    own_kernels: str
    """How much of a problem's work must be the candidate's own kernels: "all" or "some"."""
    compare: tuple[str, ...]
    """Modes of torch.compile that a problem's candidate is timed against, too."""


def of_file(file: str, request: RunRequest, protocol: str | None) -> FileRequest:
    """Raises KernelError, DeviceError or RunError."""
    if not request.kernel or not file:
        missing = [name for name, value in (("--kernel", request.kernel), ("FILE", file)) if not value]
        raise RunError(f"the following arguments are required: {', '.join(missing)} (or --run RUN)")
    with faults_first(request.kernel):
        on, _why = device.choose(request.device)
    source = read_source(file, on)
    kernel = pytorch.load(request.kernel, on)
    name = request.baseline
    as_file = name is not None and name not in kernel.baselines(on) and Path(name).is_file()
    baseline = baseline_source(kernel, on, name=None if as_file else name, file=name if as_file else None)
    _check_protocol(protocol, kernel)
    compare = choose_compile_modes(request.compare, kernel, on)
    return FileRequest(kernel, on, file, source, baseline, request.dtypes, request.own_kernels, compare)


def of_run(service: RunService, run_id: str, file: str, request: RunRequest, protocol: str | None) -> FileRequest:
    """A run's best file, or `file`, against that run's baseline. Raises KernelError, DeviceError or RunError."""
    if request.kernel or request.baseline:
        raise RunError("--run brings its kernel and baseline: leave --kernel and --baseline away")
    run = RunFolder.find(service.runs_dir, run_id)
    settings = run.record.settings
    on, _why = device.choose(settings.device)
    source = read_source(file, on) if file else run.source(service.result(run).best)
    baseline = (settings.baseline, run.source(settings.source))
    kernel = pytorch.load(settings.kernel, settings.device)
    _check_protocol(protocol, kernel)
    rule = (request if "own_kernels" in request.model_fields_set else settings).own_kernels
    compare, dtypes = choose_compile_modes(request.compare, kernel, on), request.dtypes or settings.dtypes
    return FileRequest(kernel, settings.device, file or f"best of {run.id}", source, baseline, dtypes, rule, compare)


def _check_protocol(protocol: str | None, kernel: Kernel) -> None:
    if protocol not in (None, "ours") and not kernel.kernelbench:
        kernel.close()
        raise RunError(
            f"--protocol {protocol} is for a PyTorch module in KernelBench's form, and {kernel.spec.name} is none"
        )


NO_HELD_OUT = "no size is held out that fits here, so it was judged by the sizes that are shown alone"


@dataclass(frozen=True)
class Evaluation:
    verdict: Verdict
    kernelbench: KernelBenchResult | None
    """The answer of KernelBench's own protocol, where it was asked for."""
    notices: tuple[str, ...]
    held_out: str
    """How many held-out sizes a candidate that passes the others is checked on, or why none is."""


def evaluate(
    kernel: Kernel,
    on: Device,
    source: str,
    baseline: tuple[str, str],
    *,
    dtypes: tuple[str, ...],
    sandbox: str,
    own_kernels: str = "some",
    compare: tuple[str, ...] = (),
    protocol: bool = False,
    say: Callable[[str], None],
) -> Evaluation:
    """Build, check and time `source` against the baseline (name, text), and close the kernel.

    Raises RunError where the baseline fails.
    """
    name, text = baseline
    with tempfile.TemporaryDirectory(prefix="astrolabe-") as folder:
        store = Store(Path(folder))
        candidate, base = store.put(source), store.put(text)
        with (
            load.announce() as others,
            closing(kernel),
            Evaluator(
                kernel, on, store, dtypes=dtypes, sandbox_mode=sandbox, own_kernels=own_kernels, say=say
            ) as evaluator,
        ):
            evaluator.notices = (*evaluator.notices, *others)
            verdict = evaluator.verify(evaluator.build(candidate))
            unseen = evaluator.suite(held_out=True)
            held_out = f"{len(unseen)} held-out sizes" if unseen else NO_HELD_OUT
            if not unseen:
                evaluator.notices = (*evaluator.notices, NO_HELD_OUT)
            elif verdict.passed:
                found = evaluator.verify(evaluator.build(candidate), held_out=True)
                if not found.passed:
                    verdict = found.model_copy(update={"reason": f"on held-out sizes: {found.reason}"})
            if verdict.passed:
                first = verdict if base == candidate else evaluator.verify(evaluator.build(base))
                if not first.passed:
                    raise RunError(baseline_failed(name, first))
                verdict = evaluator.measure(verdict, baseline=base)
            for mode in compare:
                verdict = measure_against(evaluator, verdict, mode)
            theirs = None
            if protocol:
                say("KernelBench's protocol: five trials, a hundred timed calls")
                theirs = by_their_protocol(evaluator, cast(Problem, kernel), source)
            return Evaluation(verdict, theirs, evaluator.notices, held_out)


def by_their_protocol(evaluator: Evaluator, problem: Problem, source: str) -> KernelBenchResult:
    """What KernelBench says of the candidate; where Model itself fails under its protocol, nobody can pass."""
    try:
        return protocol_kernelbench.evaluate(evaluator, problem, source)
    except WorkerFailure as fault:
        said = {"runtime_error_name": str(fault.outcome), "runtime_error": f"Model itself fails: {fault.reason}"}
        return KernelBenchResult(compiled=True, metadata=said)
