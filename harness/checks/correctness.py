"""Right or not: inputs that nobody can know before, expected values in fp64, and a tolerance that each output earns.

Everything here happens in the parent. A worker gets addresses of buffers that the parent owns; it never sees an
expected value, and what it says of its own success is not asked.
"""

from __future__ import annotations

import functools
import math
import os
import random
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from harness.checks import fitting, properties, slices, steps
from harness.checks.expected import BEYOND, UNIT_ROUNDOFF, Expected, Right, errors
from harness.device import ArgumentBuffers, generator, give_back_memory, synchronize
from harness.records import Check, Outcome
from kernels import catalog
from kernels.catalog import Kernel, KernelError
from kernels.spec import BELOW, DRAWN, DTYPE_BYTES, OWN_VALUES, SIGNIFICAND_BITS, Scalar, Size, Spec, Tensor, Workload

if TYPE_CHECKING:
    import torch

Made = TypeVar("Made")

GUARD_BYTES = 256
"""Bytes of random pattern before and after every tensor: an overrun of one 16-byte store lands in them."""
WIDE_GUARD_BYTES = 1 << 20
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
OFF_SHARE = 16
"""One element in so many of an integer output may be off by its `ulps`: truncation is off in half."""
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


class Layout:
    """Where each tensor of `slots` argument sets lies in an arena, guards around every one.

    They are independent but for inputs of which there are fewer `copies`: the sets have these in turns.
    """

    def __init__(
        self,
        spec: Spec,
        workload: Workload,
        slots: int,
        copies: dict[str, int] | None = None,
        *,
        wide: bool = False,
        shift: int | None = None,
    ) -> None:
        """`wide`: guards are as wide as their tensor, up to WIDE_GUARD_BYTES. `shift`: tensors begin so many bytes behind an
        alignment, an element for 0; without, where 256 bytes begin."""
        self.spec, self.workload, self.slots = spec, workload, slots
        self.offsets: dict[str, int] = {}
        self.strides: dict[str, int] = {}
        self.sizes: dict[str, int] = {}
        self.heads: dict[str, int] = {}
        """Bytes of the guard before the first copy of each tensor."""
        self.copies = {tensor.name: (copies or {}).get(tensor.name, slots) for tensor in spec.tensors}
        at = 0
        for tensor in spec.tensors:
            size = spec.span(tensor, workload.axes) * DTYPE_BYTES[spec.dtype(tensor, workload)]
            whole = -(-size // 256) * 256  # 256-byte alignment, as cudaMalloc gives
            guard = max(GUARD_BYTES, min(whole, WIDE_GUARD_BYTES)) if wide else GUARD_BYTES
            behind = 0 if shift is None else shift or DTYPE_BYTES[spec.dtype(tensor, workload)]
            stride = whole + guard + (256 if behind else 0)
            self.offsets[tensor.name], self.strides[tensor.name] = at + guard + behind, stride
            self.sizes[tensor.name], self.heads[tensor.name] = size, guard
            at += guard + self.copies[tensor.name] * stride + (256 if behind else 0)
        self.size = at

    def copy(self, tensor: Tensor, slot: int) -> int:
        """Which copy of a tensor an argument set has."""
        return slot % self.copies[tensor.name]

    def bytes_view(self, buffers: ArgumentBuffers, tensor: Tensor) -> torch.Tensor:
        """uint8 [copies, bytes from the tensor's first to its last]."""
        offset, stride, size = (d[tensor.name] for d in (self.offsets, self.strides, self.sizes))
        return buffers.view.as_strided((self.copies[tensor.name], size), (stride, 1), offset)

    def head(self, buffers: ArgumentBuffers, tensor: Tensor) -> torch.Tensor:
        """uint8 [1, GUARD_BYTES or more]: the bytes that end just before the first slot's tensor."""
        offset, guard = self.offsets[tensor.name], self.heads[tensor.name]
        return buffers.view.as_strided((1, guard), (guard, 1), offset - guard)

    def tail(self, buffers: ArgumentBuffers, tensor: Tensor) -> torch.Tensor:
        """uint8 [copies, GUARD_BYTES or more]: all bytes between each copy of the tensor and the next one."""
        offset, stride, size = (d[tensor.name] for d in (self.offsets, self.strides, self.sizes))
        return buffers.view.as_strided((self.copies[tensor.name], stride - size), (stride, 1), offset + size)

    def view(self, buffers: ArgumentBuffers, tensor: Tensor) -> torch.Tensor:
        """The tensor's dtype, [copies, *shape]."""
        import torch

        dtype = getattr(torch, self.spec.dtype(tensor, self.workload))
        shape = self.spec.shape(tensor, self.workload.axes)
        step = self.strides[tensor.name] // dtype.itemsize
        inner = self.spec.strides(tensor, self.workload.axes)
        usable = buffers.view[: buffers.size // 8 * 8].view(dtype)
        copies = self.copies[tensor.name]
        return usable.as_strided((copies, *shape), (step, *inner), self.offsets[tensor.name] // dtype.itemsize)

    def shapes(self) -> list[list[Any]]:
        """[dtype, extents, strides] of each tensor in the spec's order, for a far side that calls with tensors."""
        axes = self.workload.axes
        return [
            [self.spec.dtype(t, self.workload), list(self.spec.shape(t, axes)), list(self.spec.strides(t, axes))]
            for t in self.spec.tensors
        ]

    def arguments(self, buffers: ArgumentBuffers, slot: int) -> list[list[Any]]:
        """The encoded argument list of one call, in the spec's order (see worker.arguments)."""
        encoded: list[list[Any]] = []
        for argument in self.spec.arguments:
            if isinstance(argument, Tensor):
                at = self.offsets[argument.name] + self.copy(argument, slot) * self.strides[argument.name]
                encoded.append(["p", buffers.id, at])
            elif isinstance(argument, Size):
                encoded.append(["i", self.workload.axes[argument.name]])
            elif isinstance(argument, Scalar):
                code = {"float": "f", "double": "d", "int64_t": "i", "void*": "n"}[argument.ctype]
                encoded.append([code, int(argument.value) if code in "in" else argument.value])
        return encoded

    def message(self, buffers: ArgumentBuffers, slots: int = 1, *, op: str = "call", **more: Any) -> dict[str, Any]:
        """What a worker is asked for calls of the first `slots` argument sets, once all that was written is there; `more` fields of the
        request."""
        synchronize(buffers.device)
        calls = [self.arguments(buffers, slot) for slot in range(slots)]
        return {"op": op, "dtype": self.workload.dtype, "calls": calls, "shapes": self.shapes(), **more}


GIVEN: dict[str, list[Callable[[torch.Tensor, Workload], None]]] = {}
"""Name in `given:<name>` -> what fills a tensor, or several of them one above the other, with draws of a generator that
the harness does not know, such as a problem's get_inputs(). Whoever opens a problem puts it here and takes it away; one
that is open twice is here twice, and either draws for both."""


def draw(
    view: torch.Tensor, values: str, workload: Workload, rng: torch.Generator, bound: torch.Tensor | None = None
) -> None:
    """Fill `view` (any shape, the tensor's dtype) in place with values of the named distribution.

    bound: of `below:NAME`, that input's values.
    """
    import torch

    kind, _, rest = values.partition(":")
    if not view.numel():
        return
    if kind == BELOW:
        assert bound is not None, f"{values} is drawn beside the tensor that it names"
        properties.draw_below(view, bound, rng)
        return
    if kind in OWN_VALUES:
        GIVEN[rest][-1](view, workload)
        return
    if kind == DRAWN:
        view.copy_(catalog.draw_by_function(rest, workload.axes, tuple(view.shape), generator("cpu")))
        return
    if view.dtype in (torch.uint16, torch.uint32):  # no random kernels for these
        wide = torch.empty(view.shape, dtype=torch.int64, device=view.device)
        own = {"bits": f"integers:0:{1 << 8 * view.element_size()}"}.get(kind, values)
        draw(wide, own if ":" in own else "integers:0:127", workload, rng)
        view.copy_(wide)
        return
    if kind == "integers":
        low, high = (int(bound) for bound in rest.split(":"))
        view.random_(low, high, generator=rng)
        return
    if kind == "bits" and view.dtype.is_floating_point:  # any: subnormals, infinities and NaNs too
        whole = getattr(torch, {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}[view.element_size()])
        least, end = (0, 256) if view.element_size() == 1 else (-(1 << 8 * view.element_size() - 1), None)
        view.view(whole).random_(least, end, generator=rng)
        return
    if kind in ("bits", "padded", "distinct", "permutation", "offsets", "starts"):
        properties.draw_integers(view, kind, workload.axes.get(rest, 0), rng)
        return
    if not view.dtype.is_floating_point or kind == "index":
        limit = workload.axes[rest] if kind == "index" else 127
        if view.dtype.is_floating_point:
            raise ValueError(f"{values!r} needs an integer tensor")
        view.random_(0 if kind == "index" or view.dtype == torch.uint8 else -127, limit, generator=rng)
        return
    if view.dtype.itemsize == 1:  # no random kernels for 8-bit floats
        wide = torch.empty(view.shape, dtype=torch.float32, device=view.device)
        draw(wide, values, workload, rng)
        view.copy_(wide)
        return
    if kind == "normal":
        mean, deviation = (float(number) for number in rest.split(":"))
        view.normal_(mean, deviation, generator=rng)
        return
    if kind == "range":
        lowest, highest = (float(bound) for bound in rest.split(":"))
        view.uniform_(lowest, highest, generator=rng)
        return
    if kind in ("uniform", "scaled"):
        view.uniform_(0, 1, generator=rng)
        if kind == "scaled":
            view.mul_(torch.rand((), generator=rng, device=view.device).to(view.dtype))
        return
    view.normal_(generator=rng)
    if kind == "large":
        view.mul_(30.0)  # products of two still fit float16
    elif kind == "tiny":
        view.mul_(2.0**-20 if view.dtype == torch.float16 else 1e-20)  # subnormal, and squares that underflow
    elif kind in ("zeros", "outliers", "infinities"):
        pick = torch.rand(view.shape, generator=rng, device=view.device)
        if kind == "zeros":
            view.masked_fill_(pick < 0.5, 0.0)
        elif kind == "outliers":
            view.mul_(torch.where(pick < 0.001, 300.0, 1.0).to(view.dtype))
        else:
            view.masked_fill_(pick < 0.05, math.inf)
            view.masked_fill_(pick > 0.95, -math.inf)


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
            return _run_reference(self.kernel, self.workload, _upcast_to(self.inputs, "float32"), "float32")
        units = max(NOISE_FACTOR, math.sqrt(terms(self.kernel, self.workload)))
        how = {
            "bits": 50 if self.workload.dtype == "float64" else FP32_BITS,
            "units": NOISE_FACTOR,
            "sum_units": units,
        }
        return _otherwise_rounded(self.kernel, self.workload, self.inputs, **how)


Slicing = tuple[str, int]
NOT_SLICED: Slicing = ("", 0)


@dataclass(frozen=True)
class Sliced:
    """What is right for inputs of a workload that is judged in slices."""

    kernel: Kernel
    workload: Workload
    inputs: dict[str, torch.Tensor]
    values: str
    """The distribution of the inputs."""
    axis: str
    rows: int

    def __len__(self) -> int:
        return -(-self.workload.axes[self.axis] // self.rows)

    def parts(self) -> Iterator[tuple[slice, Workload, Right]]:
        """Which rows, the workload that they are, and what is right there."""
        whole = self.workload.axes[self.axis]
        for first in range(0, whole, self.rows):
            end = min(first + self.rows, whole)
            part, given = slices.cut(self.kernel.spec, self.workload, self.inputs, self.axis, first, end)
            yield slice(first, end), part, compute_expected(self.kernel, part, given, self.values)


@dataclass
class Case:
    """One workload with one set of input values: private copies, and the expected outputs."""

    workload: Workload
    name: str
    inputs: dict[str, torch.Tensor]
    expected: Right | Sliced
    size: int = field(default=0)


def _upcast(inputs: dict[str, torch.Tensor], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    return {name: t.to(dtype) if t.dtype.is_floating_point else t for name, t in inputs.items()}


def _upcast_to(inputs: dict[str, torch.Tensor], dtype: str) -> dict[str, torch.Tensor]:
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
        return _run_reference(kernel, workload, _upcast(inputs, torch.float64), "float64")


def _run_reference(
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
    return _run_reference(kernel, workload, wide, "float64"), _run_reference(kernel, workload, rough, "float32")


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
    exact = _run_reference(kernel, workload, inputs)

    def changed(name: str, dim: int, entry: int) -> list[torch.Tensor]:
        other = inputs[name].clone()
        other.select(dim, entry).add_(1.0)
        got = _run_reference(kernel, workload, inputs | {name: other})
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
        take(exact, _run_reference(kernel, workload, _shaken(inputs, UNIT_ROUNDOFF["float32"]), "float64"))
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


def draw_inputs(
    spec: Spec, workload: Workload, values: str, extra: dict[str, tuple[str, ...]], device: str
) -> dict[str, torch.Tensor]:
    """Every input that knows the distribution `values` drawn from it, the others from their first."""
    import torch

    rng, inputs = generator(device), dict[str, torch.Tensor]()
    for tensor in spec.inputs:
        known = (*tensor.values, *extra.get(tensor.name, ()))
        dtype = getattr(torch, spec.dtype(tensor, workload))
        view = torch.empty(spec.shape(tensor, workload.axes), dtype=dtype, device=device)
        bound = spec.bound(tensor)
        beside = inputs[bound.name] if bound else None
        asked = values if values in known else tensor.values[0]
        if tensor.strides and spec.overlaps(tensor, workload.axes):
            whole = torch.empty(spec.span(tensor, workload.axes), dtype=dtype, device=device)
            draw(whole, asked, workload, rng)
            view = whole.as_strided(view.shape, spec.strides(tensor, workload.axes)).clone(
                memory_format=torch.contiguous_format
            )
        else:
            draw(view, asked, workload, rng, beside)
        inputs[tensor.name] = view
    return inputs


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
        whole = _run_reference(kernel, workload, _upcast_to(inputs, "float64"))
        for first, end in ((0, 1), (1, slices.TRIED_ROWS)):
            part, given = slices.cut(spec, workload, inputs, axis, first, end)
            for name, values in _run_reference(kernel, part, _upcast_to(given, "float64")).items():
                if not torch.allclose(values.double(), whole[name][first:end].double(), 1e-12, 0.0, equal_nan=True):
                    return ""
    except KernelError:  # it has no such sizes
        return ""
    return axis


def make_case(
    kernel: Kernel,
    workload: Workload,
    values: str,
    extra: dict[str, tuple[str, ...]],
    device: str,
    slicing: Slicing = NOT_SLICED,
) -> Case:
    """Fresh inputs and what is right for them; `values` as in `draw_inputs`. `slicing`: the axis, and how many rows at once."""
    inputs = draw_inputs(kernel.spec, workload, values, extra, device)
    axis, rows = slicing
    if rows:
        size = sum(t.numel() * t.element_size() for t in inputs.values())
        return Case(workload, values, inputs, Sliced(kernel, workload, inputs, values, axis, rows), size)
    right = compute_expected(kernel, workload, inputs, values)
    held = [*inputs.values(), *(t for e in right.values() for t in (e.value, e.tolerance))]
    return Case(workload, values, inputs, right, sum(t.numel() * t.element_size() for t in held))


DRAWN_WORDS = (1 << 17) + 1
"""Words of eight bytes after which a guard's repeat: no multiple of a page, so that no two pages of it are alike."""
NANS, INFINITE = "not a number", "infinite values"
SPECIAL = {NANS: (math.nan,), INFINITE: (math.inf, -math.inf)}
"""Checks of values that are no finite numbers, by name."""
SPECIAL_EACH = 3


def make_special(name: str, case: Case, kernel: Kernel, device: str) -> Case | None:
    """Another case with a few elements of each float input of the `SPECIAL` ones; None where no input can have one.

    Where the reference hands NaNs on in fp64 and in fp32, so must a kernel; where it makes an infinity in both, an infinity or
    none. What it makes of an infinity that is no number, or not the same in both, may be anything.
    """
    import torch

    inputs, found = dict(case.inputs), False
    for tensor in kernel.spec.inputs:
        values = inputs[tensor.name]
        alone = not (tensor.strides and kernel.spec.overlaps(tensor, case.workload.axes))
        if values.dtype.is_floating_point and kernel.spec.nans and alone:
            values = values.clone()
            flat = values.view(-1)
            for special in SPECIAL[name]:
                if not math.isinf(special) or values.dtype != torch.float8_e4m3fn:  # it has none
                    flat[torch.randint(len(flat), (SPECIAL_EACH,), device=flat.device)] = special
                    found = True
            inputs[tensor.name] = values
    if not found or not kernel.has_reference:
        return None
    right = compute_expected(kernel, case.workload, inputs)
    rough = _run_reference(kernel, case.workload, _upcast_to(inputs, "float32"), "float32")
    for output, one in right.items():
        other = rough[output].to(torch.float64)
        if name == NANS:
            differ = one.value.isnan() & ~other.isnan()
        else:
            differ = one.value.isnan() | other.isnan() | (one.value.isinf() != other.isinf())
            differ |= one.value.isinf() & (one.value != other)
        one.tolerance.masked_fill_(differ, math.inf)
        one.value.masked_fill_(differ, 0.0)
    right.nans, right.law, right.doubted = True, None, None
    return Case(case.workload, name, inputs, right)


OTHER_SCALARS = (1.5, 1e3, 1e6)
"""Times a scalar's own value; the first that changes an output beyond its tolerance."""


def _with_other_scalars(kernel: Kernel, workload: Workload, device: str) -> tuple[Kernel, Case] | None:
    """See Cases.other_scalars. Integers stay: what they count may have to fit the shapes."""
    spec = kernel.spec
    floats = [one for one in spec.arguments if isinstance(one, Scalar) and one.ctype != "int64_t" and one.value]
    if not floats or not kernel.has_reference:
        return None
    inputs = draw_inputs(spec, workload, distributions(spec, {})[0], {}, device)
    before = compute_expected(kernel, workload, inputs)
    for factor in OTHER_SCALARS:
        arguments = tuple(
            one.model_copy(update={"value": one.value * factor}) if one in floats else one for one in spec.arguments
        )
        other = replace(kernel, spec=spec.model_copy(update={"arguments": arguments}))
        try:
            right = compute_expected(other, workload, inputs)
        except KernelError:  # the operation has no such value
            continue
        if any(_moves(before[name], right[name]) for name in right):
            says = ", ".join(f"{one.name}={one.value * factor:g}" for one in floats)
            return other, Case(workload, f"with {says}", inputs, right)
    return None


def _moves(one: Expected, other: Expected) -> bool:
    """Whether no answer that is right for one is right for the other."""
    return bool(((one.value - other.value).abs() > 2 * (one.tolerance + other.tolerance)).any())


class Cases:
    """Cases kept for the next candidate, newest first, up to a size: no candidate can tell another what it saw."""

    def __init__(
        self,
        kernel: Kernel,
        device: str,
        limit_bytes: int,
        slicing: Callable[[Workload], Slicing] = lambda _workload: NOT_SLICED,
    ) -> None:
        self.kernel, self.device, self.limit, self.slicing = kernel, device, limit_bytes, slicing
        self.kept: OrderedDict[tuple[str, str], Case] = OrderedDict()
        self._said: tuple[list[tuple[str, str]], tuple[str, ...]] | None = None
        self._special: dict[tuple[str, str], Case | None] = {}
        """Cases of small workloads, kept."""
        self._scalars: dict[str, tuple[Kernel, Case] | None] = {}

    def get(self, workload: Workload, values: str, extra: dict[str, tuple[str, ...]]) -> Case:
        key = (workload.label, values)
        if key not in self.kept:
            self.kept[key] = self._made(workload, values, extra)
        self.kept.move_to_end(key)
        while len(self.kept) > 1 and sum(case.size for case in self.kept.values()) > self.limit:
            self.kept.popitem(last=False)
        return self.kept[key]

    def special(self, name: str, workload: Workload, extra: dict[str, tuple[str, ...]]) -> Case | None:
        """`make_special` of that workload's first distribution."""
        key = (name, workload.label)
        if key not in self._special:
            case = self.get(workload, distributions(self.kernel.spec, extra)[0], extra)
            self._special[key] = self._in_room(lambda: make_special(name, case, self.kernel, self.device), workload)
        return self._special[key]

    def forget(self) -> None:
        """Let go of all cases, and give the device their memory back."""
        self.kept.clear()
        self._special.clear()
        self._scalars.clear()
        if self.device == "cuda":
            give_back_memory(0)

    def once(self, look: Callable[[Spec, Iterable[Case]], tuple[str, ...]]) -> tuple[str, ...]:
        """What `look` says of all kept cases; asked once as long as these are kept."""
        if self._said is None or self._said[0] != list(self.kept):
            self._said = list(self.kept), look(self.kernel.spec, self.kept.values())
        return self._said[1]

    def other_scalars(self, workload: Workload) -> tuple[Kernel, Case] | None:
        """The kernel with other values of its float scalars, and a case in which they show; None where there are none, or none
        shows. Found once."""
        if workload.label not in self._scalars:
            make = functools.partial(_with_other_scalars, self.kernel, workload, self.device)
            self._scalars[workload.label] = self._in_room(make, workload)
        return self._scalars[workload.label]

    def _made(self, workload: Workload, values: str, extra: dict[str, tuple[str, ...]]) -> Case:
        make = functools.partial(make_case, self.kernel, workload, values, extra, self.device, self.slicing(workload))
        made = self._in_room(make, workload)
        if self.device == "cuda":
            give_back_memory()  # a tolerance takes several times its case meanwhile
        return made

    def _in_room(self, make: Callable[[], Made], workload: Workload) -> Made:
        """What it makes, where the device's memory does not suffice once more with no case kept in it.

        Raises KernelError where that does not suffice either.
        """
        try:
            return fitting.retry_in_room(make, self.forget)
        except Exception as error:
            if not fitting.is_out_of_memory(error):
                raise
            said = str(error).partition(". ")[0]
        raise KernelError(f"{workload.label} is too much for this device's memory: {said}")


AS_TIMED = "as timed"
"""Every input from its first distribution, where no distribution's name says so."""


def distributions(spec: Spec, extra: dict[str, tuple[str, ...]]) -> list[str]:
    """Names for `draw_inputs`, so that every distribution of every input is drawn: what is timed first, none that gives the same as another."""
    known = [(*tensor.values, *extra.get(tensor.name, ())) for tensor in spec.inputs]
    firsts = tuple(values[0] for values in known)
    names = list(dict.fromkeys(name for values in known for name in values))
    drawn_as = {name: tuple(name if name in values else values[0] for values in known) for name in names}
    timed = [name for name in names if drawn_as[name] == firsts]
    found = {firsts: timed[0] if timed else AS_TIMED}
    for name in names:
        found.setdefault(drawn_as[name], name)
    return list(found.values()) if spec.inputs else ["ordinary"]


class GuardedBuffers:
    """Argument sets of one workload in an arena: writes inputs and poison, and looks at what a call left there."""

    def __init__(self, spec: Spec, buffers: ArgumentBuffers, layout: Layout, rng: torch.Generator) -> None:
        self.spec, self.buffers, self.layout = spec, buffers, layout
        self.pattern: dict[str, tuple[torch.Tensor, ...]] = {}
        self.written: set[int] = set()
        self.between: dict[tuple[str, int], torch.Tensor] = {}
        """(tensor, argument set) -> what was written between its rows."""
        for tensor in spec.tensors:
            views = layout.head(buffers, tensor), layout.tail(buffers, tensor)
            self.pattern[tensor.name] = tuple(_filled(view, rng) for view in views)

    def message(self, slots: int = 1, **more: Any) -> dict[str, Any]:
        return self.layout.message(self.buffers, slots, **more)

    def write(self, slot: int, inputs: dict[str, torch.Tensor], *, poison: bool = True) -> None:
        """Inputs as given; outputs of floats to all ones bits, which is NaN in every type and so never a right answer.

        Of integers anything may be one, so there the poison is drawn anew, but for the first call's. Without `poison` the outputs
        are what the call before has left.
        """
        first, self.written = slot not in self.written, self.written | {slot}
        for tensor in self.spec.tensors:
            view = self.layout.view(self.buffers, tensor)[slot]
            if tensor.role in ("input", "inout"):
                if tensor.strides:
                    self._write_strided(tensor, slot, inputs[tensor.name], first=first)
                else:
                    view.copy_(inputs[tensor.name])
            elif poison and tensor.role == "workspace":  # anything: NaNs, or what any other kernel left there
                raw = self.layout.bytes_view(self.buffers, tensor)[slot]
                raw.fill_(0xFF) if first or random.random() < 0.5 else raw.copy_(self._poison(tensor))
            elif poison and (first or view.dtype.is_floating_point):
                self.layout.bytes_view(self.buffers, tensor)[slot].fill_(0xFF)
            elif poison:
                self.layout.bytes_view(self.buffers, tensor)[slot].copy_(self._poison(tensor))
            if tensor.strides and (poison or tensor.role != "output"):
                self.between[tensor.name, slot] = self._gaps(tensor, slot)

    def _write_strided(self, tensor: Tensor, slot: int, values: torch.Tensor, *, first: bool) -> None:
        """An input whose rows do not lie one behind the other, and poison between them."""
        raw, view = self.layout.bytes_view(self.buffers, tensor)[slot], self.layout.view(self.buffers, tensor)[slot]
        raw.fill_(0xFF) if first or values.dtype.is_floating_point else raw.copy_(self._poison(tensor))
        if self.spec.overlaps(tensor, self.layout.workload.axes):
            elements = raw.view(values.dtype) if raw.storage_offset() % values.element_size() == 0 else None
            assert elements is not None, "a tensor begins where one of its elements may"
            elements[self._places(tensor).flatten()] = values.flatten()
        else:
            view.copy_(values)

    def _places(self, tensor: Tensor) -> torch.Tensor:
        """Place of each element from the tensor's first one on, int64 of its shape."""
        import torch

        axes = self.layout.workload.axes
        shape, strides = self.spec.shape(tensor, axes), self.spec.strides(tensor, axes)
        places = torch.zeros(shape, dtype=torch.int64, device=self.buffers.view.device)
        for at, (n, stride) in enumerate(zip(shape, strides, strict=True)):
            steps = torch.arange(n, device=places.device) * stride
            places += steps.view(*(n if dim == at else 1 for dim in range(len(shape))))
        return places

    def _gaps(self, tensor: Tensor, slot: int) -> torch.Tensor:
        """uint8 [elements between rows, bytes of one]."""
        import torch

        width = DTYPE_BYTES[self.spec.dtype(tensor, self.layout.workload)]
        raw = self.layout.bytes_view(self.buffers, tensor)[self.layout.copy(tensor, slot)].view(-1, width)
        free = torch.ones(len(raw), dtype=torch.bool, device=raw.device)
        free[self._places(tensor).flatten()] = False
        return raw[free]

    def _poison(self, tensor: Tensor) -> torch.Tensor:
        """uint8 of the tensor's size: one value all over, small, negative or any, or bytes at random."""
        import torch

        size, width = self.layout.sizes[tensor.name], DTYPE_BYTES[self.spec.dtype(tensor, self.layout.workload)]
        values = [0, -1, random.randrange(1, 100), random.getrandbits(8 * width - 1), None]
        value = random.choice(values)
        raw = os.urandom(1 << 16) if value is None else (value % (1 << 8 * width)).to_bytes(width, "little")
        pattern = torch.frombuffer(bytearray(raw), dtype=torch.uint8).to(self.buffers.view.device)
        return pattern.repeat(-(-size // len(pattern)))[:size]

    def read(self, slot: int, tensor: Tensor) -> torch.Tensor:
        return self.layout.view(self.buffers, tensor)[self.layout.copy(tensor, slot)]

    def check_guards(self, name: str) -> Check:
        import torch

        label = self.layout.workload.label
        for tensor in self.spec.tensors:
            head, tail = self.pattern[tensor.name]
            for pattern, now, where in (
                (head, self.layout.head(self.buffers, tensor), "before"),
                (tail, self.layout.tail(self.buffers, tensor), "behind"),
            ):
                if not torch.equal(pattern, now):
                    return Check(workload=label, name=name, passed=False, message=f"wrote {where} {tensor.name}")
        for tensor in self.spec.tensors:
            for slot in {slot for known, slot in self.between if known == tensor.name}:
                if not torch.equal(self.between[tensor.name, slot], self._gaps(tensor, slot)):
                    return Check(
                        workload=label, name=name, passed=False, message=f"wrote between the rows of {tensor.name}"
                    )
        return Check(workload=label, name=name, passed=True)

    def check_inputs(self, slot: int, inputs: dict[str, torch.Tensor], name: str) -> Check:
        import torch

        label = self.layout.workload.label
        for tensor in self.spec.tensors:
            if tensor.role == "input":
                # By bytes: NaN is not equal to itself, and -0.0 equals 0.0.
                then = inputs[tensor.name].contiguous().view(-1).view(torch.uint8)
                if tensor.strides:
                    now = self.read(slot, tensor).contiguous().view(-1).view(torch.uint8)
                else:
                    now = self.layout.bytes_view(self.buffers, tensor)[self.layout.copy(tensor, slot)]
                now = now.clone() if self.layout.offsets[tensor.name] % 8 else now
                eights = len(then) // 8 * 8  # eight at once, which takes a tenth of the time
                same = torch.equal(now[:eights].view(torch.int64), then[:eights].view(torch.int64))
                if not same or not torch.equal(now[eights:], then[eights:]):
                    return Check(workload=label, name=name, passed=False, message=f"changed its input {tensor.name}")
        return Check(workload=label, name=name, passed=True)

    def outputs(self, slot: int) -> dict[str, torch.Tensor]:
        """Views of what a call has left in its outputs, by name."""
        return {tensor.name: self.read(slot, tensor) for tensor in self.spec.outputs}

    def check_outputs(self, slot: int, right: Right | Sliced, name: str) -> Check:
        """Every element of every output against the reference, and the properties that a call's outputs must have."""
        label = self.layout.workload.label
        if isinstance(right, Sliced):
            return self._check_slices(slot, right, f"{name}, in {len(right)} slices")
        error, message, right = judge_closely(self.spec, self.layout.workload, self.outputs(slot), right)
        says = "; ".join([*(e.says for e in right.values()), *(["properties"] if right.law else [])])
        return Check(workload=label, name=name, passed=not message, error=error, tolerance=says, message=message)

    def _check_slices(self, slot: int, right: Sliced, name: str) -> Check:
        worst, says, whole = 0.0, "", self.outputs(slot)
        for rows, part, own in right.parts():
            left = {output: values[rows] for output, values in whole.items()}
            error, message, own = judge_closely(self.spec, part, left, own)
            worst, says = max(worst, error), "; ".join(e.says for e in own.values())
            if message:
                message += f", of the slice that begins at {right.axis} {rows.start:,}"
                break
        label = self.layout.workload.label
        return Check(workload=label, name=name, passed=not message, error=worst, tolerance=says, message=message)


def _filled(view: torch.Tensor, rng: torch.Generator) -> torch.Tensor:
    """A guard filled with random bytes; what it holds now. view: uint8 [rows, bytes], with gaps between rows.

    Of a large one the bytes come again: to draw them all took longer than to draw the inputs.
    """
    import torch

    wanted = -(-view.numel() // 8)
    whole = torch.empty(min(wanted, DRAWN_WORDS), dtype=torch.int64, device=view.device)
    whole.random_(-(1 << 63), None, generator=rng)
    if wanted > DRAWN_WORDS:
        whole = whole.repeat(-(-wanted // DRAWN_WORDS))
    drawn = whole.view(torch.uint8)[: view.numel()].view(view.shape)
    view.copy_(drawn)
    return drawn


def judge_call(
    spec: Spec, workload: Workload, outputs: dict[str, torch.Tensor], right: Right, *, closely: bool = False
) -> tuple[float, str]:
    """(largest error in tolerances, "" or what is wrong) of the outputs of one call, by name, each in its own dtype.

    `closely`: what is on the other side of a step of the reference's is looked at, too; it takes other roundings of it.
    """
    worst = 0.0
    # A length that is wrong is found with the output that states it, before what it cuts is read.
    used = properties.cut_to_used(spec, outputs)
    for tensor in sorted(spec.outputs, key=lambda tensor: tensor.used is not None):
        one, got = right.get(tensor.name), used[tensor.name]
        if one is None or not got.numel():
            continue
        if tensor.used is not None:
            one = Expected(one.value[: len(got)], one.tolerance[: len(got)], one.says)
        if right.nans:
            got = _numbers_only(got, one)
        error, message = judge(got, one, spec.dtype(tensor, workload))
        if message and closely and steps.explain(spec, workload, tensor, got, one, right):
            error, message = 1.0, ""
        worst = max(worst, error)
        if message:
            cares = " (nans=False in the spec, where nobody cares)" if right.nans else ""
            return error, f"{tensor.name}{message}{cares}"
    violated = right.law(used) if right.law is not None else ""
    return (BEYOND, violated) if violated else (worst, "")


def _numbers_only(got: torch.Tensor, right: Expected) -> torch.Tensor:
    """What came out as no number where right is one, or where anything is right, taken for right; an integer made of no number is
    anything."""
    import torch

    if got.dtype.is_floating_point:
        spread = (got.to(torch.float64).isnan() & ~right.value.isnan()) | right.tolerance.isinf()
        return torch.where(spread, right.value, got.to(torch.float64))
    return right.value


def judge_closely(
    spec: Spec, workload: Workload, outputs: dict[str, torch.Tensor], right: Right
) -> tuple[float, str, Right]:
    """`judge_call`, and where something seems wrong once more with a closer look at noise and steps; what it was judged by."""
    error, message = judge_call(spec, workload, outputs, right)
    if message:
        error, message = judge_call(spec, workload, outputs, right, closely=True)
    if message and right.doubted is not None and (closer := right.doubted()) is not None:
        closer.roundings, right = right.roundings, closer
        error, message = judge_call(spec, workload, outputs, right, closely=True)
    return error, message, right


def judge_several(
    kernel: Kernel, workload: Workload, calls: list[dict[str, torch.Tensor]], outputs: list[dict[str, torch.Tensor]]
) -> str:
    """ "" or what is wrong with the outputs of the calls that properties.py asked for: first each alone, then together."""
    for inputs, left in zip(calls, outputs, strict=True):
        message = judge_closely(kernel.spec, workload, left, compute_expected(kernel, workload, inputs))[1]
        if message:
            return message
    return properties.find_joint_violation(kernel, workload, calls, outputs) if calls else ""


NEAR_MISS, NEAR_MISSES = 2.0, 1e-7
"""Factor on the tolerance, and share of an output's elements that may need it: of hundreds of millions one may round
worse than all that its row's noise shows (eager torch's own once did, by 8 %, one of 277 million); another answer, or
one of a narrower type, is off by more."""


def judge(got: torch.Tensor, right: Expected, dtype: str) -> tuple[float, str]:
    """(largest error in tolerances, "" or what is wrong and where) of one output tensor."""
    import torch

    error = errors(got, right, dtype)
    worst = float(error.max())
    wrong = int((error > 1.0).sum()) if worst > 1.0 else 0
    if not wrong and dtype not in UNIT_ROUNDOFF and bool(right.tolerance.any()):
        off, most = int((got.to(torch.float64) != right.value).sum()), max(1, got.numel() // OFF_SHARE)
        if off > most:
            return worst, f": {off} of {got.numel()} elements are off, and by its ulps {most} may be"
    if not wrong or (worst <= NEAR_MISS and wrong <= NEAR_MISSES * error.numel()):
        return worst, ""
    place = tuple(int(i) for i in np.unravel_index(int(error.argmax()), error.shape))  # torch's own imports SymPy
    text = (
        f"{list(place)} is {float(got[place]):.6g}, should be {float(right.value[place]):.6g} "
        f"+- {float(right.tolerance[place]):.2g}; {wrong} of {error.numel()} elements are wrong"
    )
    return worst, text


def failure(check: Check) -> tuple[Outcome, str]:
    """The outcome and reason of a failed check."""
    return Outcome.INCORRECT, f"{check.name} at {check.workload}: {check.message}"
