"""Whether a problem can be "solved" without computing: by measurement, with KernelBench's own check.

A problem is degenerate where zeros, one constant, a copy of an input or the output of another draw passes for every
output in every trial. Whoever reports a fast_p reports it with and without those.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.correctness import drawn
from harness.problems import Problem
from kernels.spec import Frozen, Workload

if TYPE_CHECKING:
    import torch

TRIALS = 3
TOLERANCE = 1e-4
"""KernelBench's for fp32, absolute and relative."""


class Degenerate(Frozen):
    passes: tuple[str, ...] = ()
    """What passes without computing; empty where the problem is sound."""


def look(problem: Problem, workload: Workload, device: str) -> Degenerate:
    """Compare TRIALS draws' eager outputs with what takes no computing. Raises KernelError where Model fails."""
    spec = problem.spec
    trials = []
    for _ in range(TRIALS):
        inputs = drawn(spec, workload, spec.inputs[0].values[0] if spec.inputs else "", {}, device)
        trials.append((inputs, problem.reference_in("float32", **inputs, **workload.axes)))
    names = list(trials[0][1])
    first = trials[0][1]
    guesses = {
        "zeros": [{name: outputs[name].new_zeros(()) for name in names} for _, outputs in trials],
        "one constant": [{name: first[name].double().median().to(first[name].dtype) for name in names}] * TRIALS,
        "the output of another draw": [trials[at - 1][1] for at in range(TRIALS)],
    }
    found = [guess for guess, answers in guesses.items() if _passes(answers, trials)]
    for tensor in spec.inputs:
        if all(inputs[tensor.name].shape == out.shape for inputs, outs in trials for out in outs.values()):
            copies = [dict.fromkeys(names, inputs[tensor.name]) for inputs, _ in trials]
            found += ["a copy of an input"] if _passes(copies, trials) else []
    return Degenerate(passes=tuple(dict.fromkeys(found)))


def _passes(answers: list[dict[str, torch.Tensor]], trials: list) -> bool:
    return all(
        _close(answer[name], outputs[name])
        for answer, (_, outputs) in zip(answers, trials, strict=True)
        for name in outputs
    )


def _close(answer: torch.Tensor, right: torch.Tensor) -> bool:
    import torch

    return torch.allclose(right.double(), answer.double().expand(right.shape), atol=TOLERANCE, rtol=TOLERANCE)
