"""The verdict on one file without any agent: `run.py evaluate`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from graph.result import baseline_failed
from graph.runs import RunError
from harness import protocol_kernelbench
from harness.engines.process import WorkerFailure
from harness.evaluate import Evaluator
from harness.of_problems import measure_against
from harness.problems import Problem
from harness.protocol_kernelbench import KernelBenchResult
from harness.records import Verdict
from harness.store import Store
from kernels.catalog import Kernel
from kernels.spec import Device


@dataclass(frozen=True)
class Evaluation:
    verdict: Verdict
    kernelbench: KernelBenchResult | None
    """What KernelBench's own protocol says, where it was asked for."""
    notices: tuple[str, ...]


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
    """Build, check and time `source` against the baseline (name, text). Raises RunError where the baseline fails."""
    name, text = baseline
    with tempfile.TemporaryDirectory(prefix="astrolabe-") as folder:
        store = Store(Path(folder))
        candidate, base = store.put(source), store.put(text)
        with Evaluator(
            kernel, on, store, dtypes=dtypes, sandbox_mode=sandbox, own_kernels=own_kernels, say=say
        ) as evaluator:
            verdict = evaluator.verify(evaluator.build(candidate))
            if verdict.passed and isinstance(kernel, Problem) and evaluator.suite(held_out=True):
                unseen = evaluator.verify(evaluator.build(candidate), held_out=True)
                if not unseen.passed:
                    verdict = unseen.model_copy(update={"reason": f"on held-out sizes: {unseen.reason}"})
            if verdict.passed:
                first = verdict if base == candidate else evaluator.verify(evaluator.build(base))
                if not first.passed:
                    raise RunError(baseline_failed(name, first))
                verdict = evaluator.measure(verdict, baseline=base)
            for mode in compare:
                verdict = measure_against(evaluator, kernel, verdict, mode)
            theirs = None
            if protocol and isinstance(kernel, Problem):
                say("KernelBench's protocol: five trials, a hundred timed calls")
                theirs = by_their_protocol(evaluator, kernel, source)
            return Evaluation(verdict, theirs, evaluator.notices)


def by_their_protocol(evaluator: Evaluator, problem: Problem, source: str) -> KernelBenchResult:
    """What KernelBench says of the candidate; where Model itself fails under its protocol, nobody can pass."""
    try:
        return protocol_kernelbench.evaluate(evaluator, problem, source)
    except WorkerFailure as fault:
        said = {"runtime_error_name": str(fault.outcome), "runtime_error": f"Model itself fails: {fault.reason}"}
        return KernelBenchResult(compiled=True, metadata=said)
