"""What a model sees of the winners of runs: `run.py model`."""

from __future__ import annotations

from collections.abc import Sequence

from graph import outputs
from graph.runs import RunError, RunFolder
from harness.evaluate import Evaluator
from harness.judge import in_model
from harness.processes.toolbox import ToolboxUnavailable
from harness.records import Build
from harness.report.result import Result
from kernels import catalog
from kernels.spec import Spec


def measure(
    found: Sequence[tuple[RunFolder, Result]], shape: in_model.Shape, *, dtype: str = "", samples: int
) -> in_model.ModelGain:
    """Transformer steps with the baselines and with the best of all these runs in their places.

    `dtype`: the first that all their kernels have where it is empty. Raises RunError in one sentence.
    """
    devices = {result.device for _, result in found}
    if len(devices) > 1:
        raise RunError("these runs are of different devices; a model step runs on one")
    kernels: dict[str, tuple[Spec, Build, Build]] = {}
    for run, result in found:
        if not result.best or not result.source:
            raise RunError(f"run {run.id} has no result yet; `{run.command('resume')}` goes on with it")
        if result.problem:
            raise RunError(f"run {run.id} is about a PyTorch module, which has no place in a transformer's step")
        kernel = catalog.load(run.record.settings.kernel)
        if kernel.spec.name in kernels:
            raise RunError(f"two of these runs are of {kernel.spec.name}; name one")
        with Evaluator(kernel, result.device, run.store) as evaluator:
            before, best = evaluator.build(result.source), evaluator.build(result.best)
        if failed := next((build for build in (before, best) if not build.ok), None):
            raise RunError(f"{kernel.spec.name}: {failed.candidate[:8]} does not compile any more: {failed.log[:200]}")
        kernels[kernel.spec.name] = (kernel.spec, before, best)
    common = [
        one
        for one in next(iter(kernels.values()))[0].dtypes
        if all(one in spec.dtypes for spec, *_ in kernels.values())
    ]
    if not common:
        raise RunError("these kernels have no dtype in common")
    try:
        gain = in_model.run(kernels, shape, devices.pop(), dtype=dtype or common[0], samples=samples)
    except (in_model.ModelError, ToolboxUnavailable) as error:
        raise RunError(str(error)) from None
    if len(found) == 1:
        run, result = found[0]
        kept = outputs.read(run) or result  # what an epoch gains may be in it already
        outputs.write(run, kept.model_copy(update={"model": gain}))
    return gain
