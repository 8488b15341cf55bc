"""What is right, and how far from it rounding may lead: the reference in fp64, and its noise in fp32."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

from harness.checks import fitting, properties, slices
from harness.checks.drawing import distributions, draw_inputs
from harness.checks.expected import UNIT_ROUNDOFF, Expected, Right
from kernels.catalog import Kernel, KernelError
from kernels.spec import SIGNIFICAND_BITS, Spec, Workload

if TYPE_CHECKING:
    import torch

TF32_ROUNDOFF = 2.0**-11
DEFAULT_ULPS = {
    "float64": 64.0,
    "float32": 64.0,
    "float16": 3.0,
    "bfloat16": 3.0,
    "float8_e4m3fn": 1.02,
    "float8_e5m2": 1.02,
}
"""16-bit outputs: one rounding of the result, one of an intermediate that the operation stores, one to spare; eight
would let a bfloat16 result pass for a float16 one. float32: expf and a division are a few ulp each, and the __expf
family loses one more for every unit of the exponent."""
SMALLEST = {
    "float64": 2.0**-1022,
    "float32": 2.0**-126,
    "bfloat16": 2.0**-126,
    "float16": 2.0**-24,
    "float8_e4m3fn": 2.0**-9,
    "float8_e5m2": 2.0**-16,
}
"""Spacing of subnormals for the types that GPUs never flush, the smallest normal for those that they may."""
NOISE_FACTOR = 8.0
"""Multiple of the reference's rounding noise in fp32 that a kernel may show which sums in another order."""
TERMS_PER_NOISE = 8
"""Divisor of an output's number of terms: the noise is also allowed so many times. The reference sums pairwise, which
is off by a few units; one accumulator that takes n terms in turn drifts by n/2 units at worst. Layer norm's plain loop
was measured at n/14 times the reference's noise for n from 1024 to 16384, where half of the inputs are zero."""
TYPICAL_ROWS = 1 << 16
"""Rows, evenly spaced, whose median is the typical noise. A row behind a ReLU or of three columns may show less than
its arithmetic makes, because few of its elements are left to show it."""
FEW, FEW_DRAWS = 64, 6
"""An output of fewer elements shows too little of its noise: of a loss's single number the reference in fp32 may be right by
chance, where a difference of large sums cancels. There it is the largest of so many draws more."""
DOUBT_DRAWS = 4
"""Draws more of a row's noise before an output is called wrong: of 262,144 rows of an attention two were off by four times a tolerance
that came from one."""
STEEP = 2.0**-17
"""Noise, as a share of the row's largest value, beyond which it may be a step (rounding to a code, a threshold, a
pick)."""
FP32_BITS, NEAR_BITS, NEAR_RUNS, NEAR_FACTOR, TF32_FACTOR = 24, 34, 2, 32.0, 4.0
"""Then the reference runs so often with results rounded to so many bits in place of fp32's 24: noise is so much smaller there, within
so large a factor, and a step is as high as it was. Steps earn no tolerance."""
LEAST_NOISE = 2.0
"""Least noise of a sum, in unit roundoffs of the type that it is computed in, of the row's largest value: the reference
may meet its own sum exactly by chance (many equal terms), where a plain loop drifts by up to 0.15 n units (softmax, n
from 128 to 8192)."""
DRIFT_AT_MOST = {
    "float64": 2.0**-42,
    "float32": 2.0**-13,
    "float16": 2.0**-14,
    "bfloat16": 2.0**-11,
    "float8_e4m3fn": 2.0**-7,
    "float8_e5m2": 2.0**-6,
}
"""Upper bound of what long sums may earn, as a share of the row's largest value, by dtype: well below the rounding to
the next narrower type, and for types of 16 bits and fewer an eighth of the output's own rounding."""
BETWEEN_DRAWS = 8
"""Roundings of every operator's result to a 16-bit dtype, the largest of which counts: of a uniform error one element in 65,000 then shows less
than a quarter of its size."""
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


ROUNDINGS_BYTES = 2 << 30
"""Of outputs otherwise rounded that are kept for one set of inputs: 32 of 3 GiB each filled a GPU."""


class ReferenceRoundings:
    """Outputs of a reference for the same inputs, each time otherwise rounded (harness/farside/rounding.py); made when asked for."""

    def __init__(self, kernel: Kernel, workload: Workload, inputs: dict[str, torch.Tensor]) -> None:
        self.kernel, self.workload, self.inputs = kernel, workload, inputs
        self.made: list[dict[str, torch.Tensor]] = []

    def get(self, number: int) -> dict[str, torch.Tensor]:
        """The first is what fp32 makes, the next ones Monte Carlo arithmetic: beyond ROUNDINGS_BYTES another draw each time."""
        if number < len(self.made):
            return self.made[number]
        one = self._make(number)
        if number == len(self.made) and (number + 1) * sum(t.nbytes for t in one.values()) <= ROUNDINGS_BYTES:
            self.made.append(one)
        return one

    def _make(self, number: int) -> dict[str, torch.Tensor]:
        if not number:
            return run_reference(self.kernel, self.workload, upcast_to(self.inputs, "float32"), "float32")
        units = max(NOISE_FACTOR, math.sqrt(terms(self.kernel, self.workload)))
        how = {
            "bits": 50 if self.workload.dtype == "float64" else FP32_BITS,
            "units": NOISE_FACTOR,
            "sum_units": units,
        }
        return _otherwise_rounded(self.kernel, self.workload, self.inputs, **how)


def _upcast(inputs: dict[str, torch.Tensor], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    return {name: t.to(dtype) if t.dtype.is_floating_point else t for name, t in inputs.items()}


def upcast_to(inputs: dict[str, torch.Tensor], dtype: str) -> dict[str, torch.Tensor]:
    import torch

    return _upcast(inputs, getattr(torch, dtype))


def _otherwise_rounded(
    kernel: Kernel, workload: Workload, inputs: dict[str, torch.Tensor], **how: Any
) -> dict[str, torch.Tensor]:
    """The reference in fp64, what each of its operators makes rounded otherwise, as rounding.Rounding takes it."""
    import torch

    from harness.farside.rounding import Rounding

    if (theirs := getattr(kernel, "rounding", None)) is not None:  # a problem's reference runs elsewhere
        inside = theirs(**how)
    else:
        inside = Rounding(**how)
    with inside:
        return run_reference(kernel, workload, _upcast(inputs, torch.float64), "float64")


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


def _exact_and_rough(
    kernel: Kernel, workload: Workload, inputs: dict[str, torch.Tensor]
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """The reference's outputs in fp64 and in fp32, whose difference is the noise that earns the tolerance.

    Beside inputs of fp32 and fewer bits those of fp64 stay what they are: a running mean of fp64 is as rough as what is added to it.
    """
    import torch

    wide = _upcast(inputs, torch.float64)
    rough = _upcast(inputs, torch.float32)
    if not _all_wide(kernel.spec, workload):
        rough |= {t.name: wide[t.name] for t in kernel.spec.inputs if kernel.spec.dtype(t, workload) == "float64"}
    return run_reference(kernel, workload, wide, "float64"), run_reference(kernel, workload, rough, "float32")


def _all_wide(spec: Spec, workload: Workload) -> bool:
    """Whether no floating-point input is narrower than fp64."""
    return all(spec.dtype(t, workload) == "float64" for t in spec.inputs if "float" in spec.dtype(t, workload))


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
    import torch

    inputs = _upcast(draw_inputs(kernel.spec, workload, values, {}, kernel.reference_on), torch.float64)
    exact = run_reference(kernel, workload, inputs)

    def changed(name: str, dim: int, entry: int) -> list[torch.Tensor]:
        other = inputs[name].clone()
        other.select(dim, entry).add_(1.0)
        got = run_reference(kernel, workload, inputs | {name: other})
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
    """Name of an output of FEW elements -> the reference's largest difference between fp64 and fp32 in FEW_DRAWS draws.

    `at`: the workload, as JSON.
    """
    spec, workload = kernel.spec, Workload.model_validate_json(at)
    floats = [tensor for tensor in spec.outputs if spec.dtype(tensor, workload) in UNIT_ROUNDOFF]
    few = [tensor for tensor in floats if math.prod(spec.shape(tensor, workload.axes)) < FEW]
    found = dict.fromkeys((tensor.name for tensor in few), 0.0)
    for _ in range(FEW_DRAWS if few else 0):
        exact, noise = _rows_noise(kernel, workload, draw_inputs(spec, workload, values, {}, device), 0)
        for name in found.keys() & exact.keys():
            found[name] = max(found[name], float(noise[name].max()))
    return found


def _rows_noise(
    kernel: Kernel, workload: Workload, inputs: dict[str, torch.Tensor], moved: int
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """(outputs in fp64, each row's largest |fp64 - fp32|) by name.

    What fp32 makes of a row is one draw of its noise, which may be next to nothing by chance where the row is far more sensitive than
    others: two scores that are about equal, a difference of equal numbers. `moved` times two draws more are taken: what a rounding of
    the inputs makes of the row in fp64, and what fp32 makes of inputs that are as far off as TF32 rounds, beside fp64 of the same.
    """
    import torch

    exact, rough = _exact_and_rough(kernel, workload, inputs)
    bits = _noise_bits(kernel)
    noise: dict[str, torch.Tensor] = {}
    near: dict[str, torch.Tensor] = {}

    def take(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
        for name, value in one.items():
            apart = _apart(value, other[name])
            highest = _highest(apart)
            if bits is not None and value.dtype.is_floating_point and _steep(highest, value):
                if name not in near:
                    near.update(_near(kernel, workload, inputs, exact))
                highest = _highest(_without_steps(apart, near[name], bits))
            noise[name] = torch.maximum(noise[name], highest) if name in noise else highest

    take(exact, rough)
    del rough
    for _ in range(moved):
        take(exact, run_reference(kernel, workload, _shaken(inputs, UNIT_ROUNDOFF["float32"]), "float64"))
        take(*_exact_and_rough(kernel, workload, _shaken(inputs, TF32_ROUNDOFF)))
    return exact, noise


def _apart(value: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """|value - other| in fp64, 0 where it is no number."""
    import torch

    return torch.nan_to_num((value.to(torch.float64) - other.to(torch.float64)).abs_(), nan=0.0, posinf=0.0, neginf=0.0)


def _highest(apart: torch.Tensor) -> torch.Tensor:
    """Highest value of each row; a single number counts as one."""
    return apart.amax(dim=-1, keepdim=True) if apart.dim() else apart


def _steep(noise: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether a row's noise is so much of its largest value that it may be a step."""
    size = value.to(noise.dtype).abs().nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
    return bool((noise > STEEP * _highest(size)).any())


def _noise_bits(kernel: Kernel) -> int | None:
    """Significant bits of the format that the rough reference's noise comes from; None where the kernel's cannot be rounded
    otherwise."""
    return getattr(kernel, "noise_bits", FP32_BITS)


def _near(
    kernel: Kernel, workload: Workload, inputs: dict[str, torch.Tensor], exact: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Each element's largest noise, by tensor name, as results of NEAR_BITS bits show it."""
    import torch

    units = math.sqrt(terms(kernel, workload))
    found: dict[str, torch.Tensor] = {}
    for _ in range(NEAR_RUNS):
        shaken = _shaken(inputs, 2.0**-NEAR_BITS)
        other = _otherwise_rounded(kernel, workload, shaken, bits=NEAR_BITS, units=1.0, sum_units=units, holds=False)
        for name, value in exact.items():
            if value.dtype.is_floating_point:
                apart = _apart(value, other[name])
                found[name] = torch.maximum(found[name], apart) if name in found else apart
    return found


def _without_steps(apart: torch.Tensor, near: torch.Tensor, bits: int) -> torch.Tensor:
    """The part of what was seen that is noise. near: of the same elements (`_near`). bits: see _noise_bits.

    Noise grows with the roundoff, by `scale`. A step that only the rough reference shows is far larger than that; one that both show
    (a tie) is as high in `near`.
    """
    import torch

    scale = 2.0 ** (NEAR_BITS - bits)
    factor = NEAR_FACTOR if bits == FP32_BITS else TF32_FACTOR
    return torch.minimum(apart, factor * scale * near).masked_fill_(2 * near > apart, 0.0)


def round_between(
    kernel: Kernel, workload: Workload, inputs: dict[str, torch.Tensor], exact: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Each element's largest error by tensor name, fp64, in BETWEEN_DRAWS roundings of every operator's result to the workload's dtype."""
    import torch

    found: dict[str, torch.Tensor] = {}
    how = {"bits": SIGNIFICAND_BITS[workload.dtype], "units": 1.0, "sum_units": 1.0, "holds": False}
    for _ in range(BETWEEN_DRAWS):
        for name, other in _otherwise_rounded(kernel, workload, inputs, **how).items():
            apart = _apart(exact[name], other)
            found[name] = torch.maximum(found[name], apart) if name in found else apart
    return found


def _shaken(inputs: dict[str, torch.Tensor], by: float) -> dict[str, torch.Tensor]:
    """Floats times a random number within `by` of one."""
    import torch

    def one(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.dtype.is_floating_point:
            return tensor
        return torch.empty_like(tensor, dtype=torch.float64).uniform_(1 - by, 1 + by).mul_(tensor.to(torch.float64))

    return {name: one(tensor) for name, tensor in inputs.items()}


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

    `values`: the distribution that they are drawn from, which says more of the noise of small outputs. `moved`: see _rows_noise.

    tolerance = ulps * unit roundoff of the output's dtype * |value|
              + NOISE_FACTOR * noise, noise being the row's largest |reference in fp64 - reference in fp32|, or the median of
                that over the rows that show any, if larger; terms/TERMS_PER_NOISE * noise where that is more, noise being
                LEAST_NOISE unit roundoffs at the least, up to DRIFT_AT_MOST of the row's largest |value|
              + the smallest step of the dtype.
    The middle term is what an honest kernel that computes in fp32 shows where terms cancel; steps are no part of it (`_without_steps`,
    `judge_closely`). Integer outputs may differ by `ulps` (default 0), one element in OFF_SHARE.
    """
    import torch

    spec, result = kernel.spec, Right()
    result.law = properties.law(kernel, workload, inputs)
    if not kernel.has_reference:
        return result
    exact, rows = _rows_noise(kernel, workload, inputs, moved)
    if _noise_bits(kernel) is not None:
        result.roundings = ReferenceRoundings(kernel, workload, inputs)
    if not moved:
        result.doubted = functools.partial(_doubted, kernel, workload, inputs, values)
    few, between = {}, dict[str, torch.Tensor]()
    if values and exact:
        few = _noise_of_few(kernel, workload.model_dump_json(), values, next(iter(exact.values())).device.type)
    for tensor in spec.outputs:
        if tensor.name not in exact:
            if result.law is not None:  # left to properties.py
                continue
            raise ValueError(f"{spec.name}: reference.py returns no {tensor.name!r}, which the spec lists as an output")
        value = exact[tensor.name]
        shape = spec.shape(tensor, workload.axes)
        if tuple(value.shape) != shape:
            raise ValueError(
                f"{spec.name}: reference.py returns {tensor.name!r} of shape {tuple(value.shape)}, the spec says {shape}"
            )
        dtype = spec.dtype(tensor, workload)
        if dtype not in UNIT_ROUNDOFF:
            allowed = tensor.ulps or 0.0
            value = value.to(torch.float64)
            result[tensor.name] = Expected(value, torch.full_like(value, allowed), f"{tensor.name}: +-{allowed:g}")
            continue
        value = value.to(torch.float64)
        size = torch.nan_to_num(value.abs(), nan=0.0, posinf=0.0, neginf=0.0)
        noise = rows[tensor.name]
        noise = torch.maximum(noise, _typical(noise)).clamp_min(few.get(tensor.name, 0.0))
        inside = "float64" if dtype == "float64" else "float32"  # nobody computes a float64's sums in fp32
        if _all_wide(spec, workload):  # else it is what they are of fp64
            noise *= UNIT_ROUNDOFF[inside] / UNIT_ROUNDOFF["float32"]
        largest = size.amax(dim=-1, keepdim=True)
        least = LEAST_NOISE * UNIT_ROUNDOFF[inside] * largest
        drift = terms(kernel, workload) / TERMS_PER_NOISE * torch.maximum(noise, least)
        drift = torch.minimum(drift, DRIFT_AT_MOST[dtype] * largest)
        noise = torch.maximum(NOISE_FACTOR * noise, drift)
        relative = (tensor.ulps or DEFAULT_ULPS[dtype]) * UNIT_ROUNDOFF[dtype]
        tolerance = size.mul_(relative)
        tolerance += noise + SMALLEST[dtype]
        says = f"{tensor.name}: {relative:.2g} of the value + {noise.median().item():.2g} (float32 sums of its row)"
        if tensor.ulps_of_row:
            tolerance += tensor.ulps_of_row * UNIT_ROUNDOFF[dtype] * largest
            says += f" + {tensor.ulps_of_row * UNIT_ROUNDOFF[dtype]:.2g} of the row's largest"
        if share := dict(kernel.allowed).get(tensor.name):
            between = between or round_between(kernel, workload, inputs, exact)
            tolerance += share * between[tensor.name]
            says += (
                f" + {share:.2g} of what rounding every operator to {workload.dtype} makes, since the baseline errs so"
            )
        result[tensor.name] = Expected(value, tolerance, says)
    return result


def _typical(noise: torch.Tensor) -> torch.Tensor:
    """The median of what is not zero, a scalar; 0 where all is. noise: fp64, one value a row, any shape."""
    rows = noise.flatten()
    rows = rows[:: max(1, len(rows) // TYPICAL_ROWS)]
    shown = rows[rows > 0]
    return shown.median() if len(shown) else rows.new_zeros(())


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
        whole = run_reference(kernel, workload, upcast_to(inputs, "float64"))
        for first, end in ((0, 1), (1, slices.TRIED_ROWS)):
            part, given = slices.cut(spec, workload, inputs, axis, first, end)
            for name, values in run_reference(kernel, part, upcast_to(given, "float64")).items():
                if not torch.allclose(values.double(), whole[name][first:end].double(), 1e-12, 0.0, equal_nan=True):
                    return ""
    except KernelError:  # it has no such sizes
        return ""
    return axis
