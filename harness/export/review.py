"""What a reviewer runs: one file that is a pytest of a kernel against its reference and, started by itself, a benchmark of both."""

from __future__ import annotations

from pathlib import Path

from harness.checks.expected import UNIT_ROUNDOFF
from harness.checks.noise import DEFAULT_ULPS
from harness.export import load_templates
from harness.export.dropin import ExportError, cases, describe, inputs
from kernels.catalog import Kernel
from kernels.spec import Device, Tensor


def write(kernel: Kernel, device: Device) -> str:
    """The file's text. Raises ExportError where the kernel's arguments make no function of tensors, or many answers are right."""
    if kernel.properties is not None:
        raise ExportError(f"{kernel.spec.name} has many right answers (properties.py), and a test compares with one")
    if any(tensor.strides for tensor in kernel.spec.tensors):
        raise ExportError(f"{kernel.spec.name} takes tensors whose rows have a stride")
    context = describe(kernel.spec, device)
    drawn = kernel.folder / "inputs.py"
    context |= {
        "reference": _body(kernel.folder / "reference.py"),
        "inputs": _body(drawn) if drawn.exists() else "",
        "cases": cases(kernel.spec, device),
        "sizes": kernel.spec.scalars,
        "outputs": {tensor.name: _share(tensor, kernel.spec.dtypes) for tensor in kernel.spec.outputs},
        "asked": [one.split(":")[0] for one in context["wrapper_parameters"] if one.endswith(": int")],
        "draws": {one["name"]: one["draw"].replace("inputs.", "") for one in inputs(kernel.spec)},
        "told_dtype": kernel.reference_asks_dtype,
        "reference_axes": sorted(kernel.reference_axes()),
    }
    return load_templates().get_template("review.py.j2").render(context)


def _body(path: Path) -> str:
    return path.read_text().replace("from __future__ import annotations\n", "").strip()


def _share(tensor: Tensor, dtypes: tuple[str, ...]) -> float:
    """Of the coarsest dtype that the output may have."""
    found = [dtype for dtype in (dtypes if tensor.dtype == "T" else (tensor.dtype,)) if dtype in UNIT_ROUNDOFF]
    return max(((tensor.ulps or DEFAULT_ULPS[dtype]) * UNIT_ROUNDOFF[dtype] for dtype in found), default=0.0)
