"""Whether a problem can be "solved" without computing: by measurement, with KernelBench's own check.

A problem is degenerate where zeros, one constant, a copy of an input or the output of another draw passes for every
output in every trial. Whoever reports a fast_p reports it with and without those.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from harness.checks.cases import Case
from harness.checks.drawing import draw_inputs
from harness.checks.expected import Right
from harness.problems.pytorch import Problem
from kernels.spec import Frozen, Spec, Workload

if TYPE_CHECKING:
    import torch

TRIALS = 3
TOLERANCE = 1e-4
"""KernelBench's for fp32, absolute and relative."""


def holes(spec: Spec, cases: Iterable[Case]) -> tuple[str, ...]:
    """What no case of any distribution has shown, one sentence each: who gets only that wrong passes all checks."""
    # The smallest first: what one of them shows is asked of no larger one.
    found = sorted((case for case in cases if isinstance(case.expected, Right)), key=lambda case: case.size)
    if not found:
        return ()
    floats = [tensor.name for tensor in spec.inputs if found[0].inputs[tensor.name].dtype.is_floating_point]
    said = []

    def drawn(name: str) -> Iterator[torch.Tensor]:
        return (case.inputs[name].double() for case in found)

    if floats and not any(bool((one < 0).any()) and bool((one > 0).any()) for name in floats for one in drawn(name)):
        said.append("no float input ever held values of both signs: the identity would pass for relu or abs")
    for name in floats:
        if all(one.numel() > 1 and bool((one == one.view(-1)[0]).all()) for one in drawn(name)):
            said.append(f"{name} never held more than one value at a time")
        elif all(one.shape[-1] > 2 and bool((one.diff(dim=-1) >= 0).all()) for one in drawn(name)):
            said.append(f"{name} was never out of order")
    for tensor in spec.outputs:
        known = [(case, case.expected) for case in found if isinstance(case.expected, Right)]
        outputs = [(case, right[tensor.name].value) for case, right in known if tensor.name in right]
        if not outputs or max(value.numel() for _, value in outputs) < 2:
            continue
        if all(bool((value == value.view(-1)[0]).all()) for _, value in outputs):
            said.append(f"{tensor.name} never had to hold more than one value at a time: a constant would do")
        for name in floats:
            pairs = zip(drawn(name), outputs, strict=False)
            if all(one.shape == value.shape and bool((one == value).all()) for one, (_, value) in pairs):
                said.append(f"{tensor.name} was always the same as {name}: a copy would do")
    return tuple(f"not seen by any check: {sentence}" for sentence in said)


class Degenerate(Frozen):
    passes: tuple[str, ...] = ()
    """Sources that pass without computing; empty where the problem is sound."""


def look(problem: Problem, workload: Workload, device: str) -> Degenerate:
    """Compare TRIALS draws' eager outputs with what takes no computing. Raises KernelError where Model fails."""
    spec = problem.spec
    trials = []
    for _ in range(TRIALS):
        inputs = draw_inputs(spec, workload, spec.inputs[0].values[0] if spec.inputs else "", {}, device)
        trials.append((inputs, problem.reference_in("float32", **inputs, **workload.axes)))
    names = problem.returned
    trials = [(inputs, {name: outputs[name] for name in names}) for inputs, outputs in trials]
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
