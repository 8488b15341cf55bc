"""The verdict on one file without any agent: `run.py evaluate`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from graph.result import baseline_failed
from graph.runs import RunError
from harness import load
from harness.evaluate import Evaluator
from harness.records import Verdict
from harness.store import Store
from kernels.catalog import Kernel
from kernels.spec import Device


@dataclass(frozen=True)
class Evaluation:
    verdict: Verdict
    notices: tuple[str, ...]


def evaluate(
    kernel: Kernel,
    on: Device,
    source: str,
    baseline: tuple[str, str],
    *,
    dtypes: tuple[str, ...],
    sandbox: str,
    say: Callable[[str], None],
) -> Evaluation:
    """Build, check and time `source` against the baseline (name, text). Raises RunError where the baseline fails."""
    name, text = baseline
    with tempfile.TemporaryDirectory(prefix="astrolabe-") as folder:
        store = Store(Path(folder))
        candidate, base = store.put(source), store.put(text)
        with (
            load.announced() as others,
            Evaluator(kernel, on, store, dtypes=dtypes, sandbox_mode=sandbox, say=say) as evaluator,
        ):
            evaluator.notices = (*evaluator.notices, *others)
            verdict = evaluator.verify(evaluator.build(candidate))
            if verdict.passed:
                first = verdict if base == candidate else evaluator.verify(evaluator.build(base))
                if not first.passed:
                    raise RunError(baseline_failed(name, first))
                verdict = evaluator.measure(verdict, baseline=base)
            return Evaluation(verdict, evaluator.notices)
