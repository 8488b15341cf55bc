"""Workloads whose reference does not fit the device's memory: what is right is computed slice by slice of their leading axis.

Only where each row's outputs follow from the same row of the inputs (and from inputs that have no rows), which the reference is
asked at a small size.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from harness.checks.fitting import estimate_bytes
from kernels.spec import Spec, Workload

if TYPE_CHECKING:
    import torch

SHARE = 8
"""A slice's reference may take one part in so many of the memory."""
CPU_SLICE_BYTES = 16 << 20
"""What a slice's reference takes on a CPU: what fits its caches is not fetched from memory for each operator, nor from the system, which
clears each page. 2^26 elements of uint8: 5.2 s of processor time in slices of 2^26, 3.6 s of 2^21, 1.4 s of 2^18, 1.8 s of 2^16."""
TRIED_ROWS, MOST_TRIED_BYTES = 6, 1 << 30
"""Rows and bytes of the trial by which the reference is asked whether it can be sliced, in two parts of different
sizes."""


def leading_axis(spec: Spec) -> str:
    """The axis that all outputs begin with, and that no other extent has; "" where there is none."""
    axis = spec.outputs[0].shape[0] if spec.outputs[0].shape else ""
    if axis not in spec.axes or any(tensor.shape[:1] != (axis,) for tensor in spec.outputs):
        return ""
    rest = [extent for t in spec.tensors for extent in (t.shape[1:] if t.shape[:1] == (axis,) else t.shape)]
    named = any(re.search(rf"\b{axis}\b", extent) for extent in rest)
    return "" if named or any(tensor.used is not None for tensor in spec.tensors) else axis


def cut(
    spec: Spec, workload: Workload, inputs: dict[str, torch.Tensor], axis: str, first: int, end: int
) -> tuple[Workload, dict[str, torch.Tensor]]:
    """Those rows as a workload of their own, and its inputs, views of the whole ones."""
    given = {t.name: inputs[t.name][first:end] if t.shape[:1] == (axis,) else inputs[t.name] for t in spec.inputs}
    return workload.model_copy(update={"axes": {**workload.axes, axis: end - first}}), given


def rows_at_once(spec: Spec, workload: Workload, axis: str, device_bytes: int, device: str) -> int:
    """Rows of one slice; 0 where the whole workload can be judged at once."""
    needed = estimate_bytes(spec, workload)
    if not axis or needed <= device_bytes:
        return 0
    wanted = device_bytes // SHARE
    if device == "cpu":  # and no less than what every slice needs whole
        one = workload.model_copy(update={"axes": {**workload.axes, axis: 1}})
        wanted = min(wanted, max(CPU_SLICE_BYTES, estimate_bytes(spec, one)))
    return max(1, workload.axes[axis] * wanted // needed)
