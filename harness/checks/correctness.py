"""What makes an output right: compared with what the reference says, within its tolerance."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.checks import judging, properties
from harness.checks.expected import Right
from harness.checks.tolerance import compute_expected
from harness.records import Check, Outcome
from kernels.catalog import Kernel
from kernels.spec import Spec, Workload

if TYPE_CHECKING:
    import torch


def judge_call(spec: Spec, workload: Workload, outputs: dict[str, torch.Tensor], right: Right) -> tuple[float, str]:
    """`judging.judge_outputs` of the outputs of one call, by name, each in its own dtype."""
    return judging.judge_outputs(*_of_spec(spec, workload, outputs), right)


def judge_closely(
    spec: Spec, workload: Workload, outputs: dict[str, torch.Tensor], right: Right
) -> tuple[float, str, Right]:
    """`judging.judge_closely` of the outputs of one call, by name, each in its own dtype."""
    return judging.judge_closely(*_of_spec(spec, workload, outputs), right)


def _of_spec(
    spec: Spec, workload: Workload, outputs: dict[str, torch.Tensor]
) -> tuple[dict[str, str], dict[str, torch.Tensor]]:
    """Dtypes by name, and the outputs cut to what is used. A length that is wrong is found with the output that states it."""
    dtypes = {tensor.name: spec.dtype(tensor, workload) for tensor in spec.outputs}
    return dtypes, properties.cut_to_used(spec, outputs)


def judge_several(
    kernel: Kernel, workload: Workload, calls: list[dict[str, torch.Tensor]], outputs: list[dict[str, torch.Tensor]]
) -> str:
    """ "" or what is wrong with the outputs of the calls that properties.py asked for: first each alone, then together."""
    for inputs, left in zip(calls, outputs, strict=True):
        message = judge_closely(kernel.spec, workload, left, compute_expected(kernel, workload, inputs))[1]
        if message:
            return message
    return properties.find_joint_violation(kernel, workload, calls, outputs) if calls else ""


def failure(check: Check) -> tuple[Outcome, str]:
    """The outcome and reason of a failed check."""
    return Outcome.INCORRECT, f"{check.name} at {check.workload}: {check.message}"
