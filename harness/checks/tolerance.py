"""What is right, and how far from it rounding may lead: the reference in fp64, and its noise in fp32."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

from harness.checks import fitting, properties, slices
from harness.checks.drawing import distributions, draw_inputs
from harness.checks.expected import Right
from harness.checks.noise import (
    DEFAULT_ULPS,
    DOUBT_DRAWS,
    FP32_BITS,
    NOISE_FACTOR,
    TERMS_PER_NOISE,
    JudgedOutput,
    ReferenceCall,
    expect,
    noise_of_few,
    upcast,
)
from kernels.catalog import Kernel, KernelError
from kernels.spec import SIGNIFICAND_BITS, Workload

if TYPE_CHECKING:
    import torch


DEPENDENCE_BYTES = 64 << 20
"""Sums are looked for on a workload of at most this size: each tensor extent costs three references in fp64."""

ENTRIES = 3
"""Entries of a dimension that an output must depend on for it to count as summed over."""

TOLERANCE = (
    f"16-bit outputs within {DEFAULT_ULPS['float16']:g} unit roundoffs of the value, float32 within "
    f"{DEFAULT_ULPS['float32']:g} (a spec may say otherwise), plus {NOISE_FACTOR:g} times the row's largest difference "
    f"between the reference in fp64 and in fp32 (the median row's where that is larger), more where it sums over more than "
    f"{int(NOISE_FACTOR * TERMS_PER_NOISE)} terms; what rounds, compares or picks earns no tolerance: an element is on either side of "
    f"a step only where another rounding of the reference is (within {NOISE_FACTOR:g} units of each operator), exact ties never"
)


def call_of(kernel: Kernel, workload: Workload) -> ReferenceCall:
    """A kernel's reference at that workload, as noise.py takes it."""
    spec = kernel.spec
    floats = {t.name: spec.dtype(t, workload) for t in spec.inputs if "float" in spec.dtype(t, workload)}
    wide = frozenset(name for name, dtype in floats.items() if dtype == "float64")
    elsewhere = {
        name: getattr(kernel, name) for name in ("rounding", "noise_bits") if hasattr(kernel, name)
    }  # a problem
    return ReferenceCall(
        spec.name,
        functools.partial(run_reference, kernel, workload),
        workload.dtype,
        SIGNIFICAND_BITS.get(workload.dtype, FP32_BITS),
        functools.partial(terms, kernel, workload),
        wide,
        len(wide) == len(floats),
        **elsewhere,
    )


def outputs_of(kernel: Kernel, workload: Workload) -> list[JudgedOutput]:
    """The outputs as noise.py takes them."""
    spec, shares = kernel.spec, dict(kernel.allowed)
    return [
        JudgedOutput(
            t.name,
            spec.dtype(t, workload),
            spec.shape(t, workload.axes),
            t.ulps,
            t.ulps_of_row,
            shares.get(t.name, 0.0),
        )
        for t in spec.outputs
    ]


def run_reference(
    kernel: Kernel, workload: Workload, inputs: dict[str, torch.Tensor], dtype: str = "float64"
) -> dict[str, torch.Tensor]:
    import torch

    try:
        with torch.no_grad():
            more: dict[str, Any] = {axis: workload.axes[axis] for axis in kernel.reference_axes()}
            if kernel.reference_asks_dtype:
                more["dtype"] = getattr(torch, workload.dtype)
            return kernel.reference_in(dtype, **inputs, **kernel.spec.scalars, **more)
    except (KernelError, KeyboardInterrupt):
        raise
    except BaseException as error:  # the user's own code may raise anything, SystemExit too
        first = str(error).strip().partition("\n")[0]
        where = f"{kernel.spec.name}: reference.py fails at {workload.label}"
        raise KernelError(f"{where}: {type(error).__name__}: {first}") from error


@functools.cache
def find_summed_dimensions(kernel: Kernel) -> dict[str, tuple[int, ...]]:
    """Input tensor's name -> its dimensions over which some output sums, found by asking the reference.

    A dimension counts where one output element changes with the entries 0, 1 and 2 of it: a product of two halves of a
    row depends on two, a maximum mostly on none.
    """
    spec = kernel.spec
    if not kernel.has_reference:
        return {}
    sizes = sorted(spec.workloads, key=spec.read_bytes)
    large_enough = (w for w in sizes if all(n >= ENTRIES for t in spec.inputs for n in spec.shape(t, w.axes)))
    workload = next(large_enough, sizes[0])
    if spec.read_bytes(workload) > DEPENDENCE_BYTES:
        workload = sizes[0]
    found: dict[str, tuple[int, ...]] = {}
    known = distributions(spec, {})
    # Of the first a ReLU may leave zeros alone.
    for values in (known[0], "large"):
        if not found and values in known:
            found = _summed(kernel, workload, values)
    return found


def _summed(kernel: Kernel, workload: Workload, values: str) -> dict[str, tuple[int, ...]]:
    """`find_summed_dimensions` by one draw of that distribution."""

    inputs = upcast(draw_inputs(kernel.spec, workload, values, {}, kernel.reference_on), "float64")
    exact = run_reference(kernel, workload, inputs)

    def moved(name: str, dim: int, entry: int) -> dict[str, torch.Tensor]:
        other = inputs[name].clone()
        part = other.select(dim, entry).add_(1.0)
        try:
            return run_reference(kernel, workload, inputs | {name: other})
        except KernelError:  # it takes numbers of some range only, as a binary cross entropy does: others of its own
            drawn = draw_inputs(kernel.spec, workload, values, {}, kernel.reference_on)[name]
            part.copy_(drawn.select(dim, entry))
        try:
            return run_reference(kernel, workload, inputs | {name: other})
        except KernelError:  # rows that must sum to one
            return exact

    def changed(name: str, dim: int, entry: int) -> list[torch.Tensor]:
        got = moved(name, dim, entry)
        return [(got[t] != exact[t]) & ~(got[t].isnan() & exact[t].isnan()) for t in exact]

    found: dict[str, tuple[int, ...]] = {}
    for name, tensor in inputs.items():
        if not tensor.dtype.is_floating_point:
            continue
        dims = []
        for dim in range(tensor.dim()):
            if tensor.shape[dim] >= ENTRIES:
                by_entry = [changed(name, dim, entry) for entry in range(ENTRIES)]
                if any(bool((first & second & third).any()) for first, second, third in zip(*by_entry, strict=True)):
                    dims.append(dim)
        if dims:
            found[name] = tuple(dims)
    return found


def terms(kernel: Kernel, workload: Workload) -> int:
    """How many input elements the longest sum of this workload takes in; 1 where nothing is summed."""
    spec = kernel.spec
    shapes = {tensor.name: spec.shape(tensor, workload.axes) for tensor in spec.inputs}
    return max(
        (math.prod(shapes[name][dim] for dim in dims) for name, dims in find_summed_dimensions(kernel).items()),
        default=1,
    )


@functools.cache
def _noise_of_few(kernel: Kernel, at: str, values: str, device: str) -> dict[str, float]:
    """`noise_of_few` of these values. `at`: the workload, as JSON."""
    workload = Workload.model_validate_json(at)
    draw = functools.partial(draw_inputs, kernel.spec, workload, values, {}, device)
    return noise_of_few(call_of(kernel, workload), outputs_of(kernel, workload), draw)


def _doubted(kernel: Kernel, workload: Workload, inputs: dict[str, torch.Tensor], values: str) -> Right | None:
    """`compute_expected` with the noise of DOUBT_DRAWS draws; None where the device has no memory for it."""
    import torch

    try:
        return compute_expected(kernel, workload, inputs, values, moved=DOUBT_DRAWS)
    except (torch.OutOfMemoryError, fitting.OutOfDeviceMemory):
        return None


def compute_expected(
    kernel: Kernel, workload: Workload, inputs: dict[str, torch.Tensor], values: str = "", *, moved: int = 0
) -> Right:
    """Reference outputs for these inputs (name -> tensor in its own dtype), with tolerances, and the kernel's properties.

    `values`: the distribution that they are drawn from, which says more of the noise of small outputs. `moved`: see rows_noise.
    """
    result = Right()
    result.law = properties.law(kernel, workload, inputs)
    if not kernel.has_reference:
        return result
    if not moved:
        result.doubted = functools.partial(_doubted, kernel, workload, inputs, values)

    few = functools.partial(_noise_of_few, kernel, workload.model_dump_json(), values) if values else None
    outputs = outputs_of(kernel, workload)
    return expect(call_of(kernel, workload), outputs, inputs, moved=moved, few=few, right=result)


def rows_apart(kernel: Kernel) -> str:
    """The leading axis, where slices of it are right by themselves; else ""."""
    import torch

    spec, axis = kernel.spec, slices.leading_axis(kernel.spec)
    if not axis or spec.problem or not kernel.has_reference or kernel.properties is not None:
        return ""
    tried = [one.model_copy(update={"axes": {**one.axes, axis: slices.TRIED_ROWS}}) for one in spec.workloads]
    workload = min(tried, key=lambda one: fitting.estimate_bytes(spec, one))
    if fitting.estimate_bytes(spec, workload) > slices.MOST_TRIED_BYTES:
        return ""
    inputs = draw_inputs(spec, workload, distributions(spec, {})[0], {}, kernel.reference_on)
    try:
        whole = run_reference(kernel, workload, upcast(inputs, "float64"))
        for first, end in ((0, 1), (1, slices.TRIED_ROWS)):
            part, given = slices.cut(spec, workload, inputs, axis, first, end)
            for name, values in run_reference(kernel, part, upcast(given, "float64")).items():
                if not torch.allclose(values.double(), whole[name][first:end].double(), 1e-12, 0.0, equal_nan=True):
                    return ""
    except KernelError:  # it has no such sizes
        return ""
    return axis
