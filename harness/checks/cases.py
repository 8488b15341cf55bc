"""Inputs and what is right for them: each workload's cases, kept while there is room."""

from __future__ import annotations

import functools
import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from harness.checks import fitting, slices
from harness.checks.drawing import distributions, draw_inputs
from harness.checks.expected import Expected, Right, errors
from harness.checks.noise import upcast
from harness.checks.tolerance import call_of, compute_expected, run_reference
from harness.device import give_back_memory
from kernels.catalog import Kernel, KernelError
from kernels.spec import Scalar, Spec, Workload

if TYPE_CHECKING:
    import torch


Made = TypeVar("Made")


@dataclass(frozen=True)
class Slicing:
    """How what is right is computed slice by slice."""

    axis: str = ""
    rows: int = 0
    """Of one slice; 0 where it is computed at once."""
    say: Callable[[str], None] = field(default=lambda _text: None)
    """Is told of every tenth."""


NOT_SLICED = Slicing()


@dataclass(frozen=True)
class Sliced:
    """What is right for inputs of a workload that is judged in slices."""

    kernel: Kernel
    workload: Workload
    inputs: dict[str, torch.Tensor]
    values: str
    """The distribution of the inputs."""
    slicing: Slicing

    def __len__(self) -> int:
        return -(-self.workload.axes[self.slicing.axis] // self.slicing.rows)

    def parts(self) -> Iterator[tuple[slice, Workload, Right]]:
        """Which rows, the workload that they are, and what is right there."""
        axis, rows = self.slicing.axis, self.slicing.rows
        whole, told = self.workload.axes[axis], 0
        for first in range(0, whole, rows):
            if first * 10 // whole > told:
                told = first * 10 // whole
                self.slicing.say(f"checking {self.workload.label}, {self.values}: {told * 10} %")
            end = min(first + rows, whole)
            part, given = slices.cut(self.kernel.spec, self.workload, self.inputs, axis, first, end)
            yield slice(first, end), part, compute_expected(self.kernel, part, given, self.values)


@dataclass
class Case:
    """One workload with one set of input values: private copies, and the expected outputs."""

    workload: Workload
    name: str
    inputs: dict[str, torch.Tensor]
    expected: Right | Sliced
    size: int = field(default=0)


def make_case(
    kernel: Kernel,
    workload: Workload,
    values: str,
    extra: dict[str, tuple[str, ...]],
    device: str,
    slicing: Slicing = NOT_SLICED,
) -> Case:
    """Fresh inputs and what is right for them; `values` as in `draw_inputs`."""
    inputs = draw_inputs(kernel.spec, workload, values, extra, device)
    if slicing.rows:
        size = sum(t.numel() * t.element_size() for t in inputs.values())
        return Case(workload, values, inputs, Sliced(kernel, workload, inputs, values, slicing), size)
    right = compute_expected(kernel, workload, inputs, values)
    held = [*inputs.values(), *(t for e in right.values() for t in (e.value, e.tolerance))]
    return Case(workload, values, inputs, right, sum(t.numel() * t.element_size() for t in held))


NANS, INFINITE = "not a number", "infinite values"
SPECIAL = {NANS: (math.nan,), INFINITE: (math.inf, -math.inf)}
"""Checks of values that are no finite numbers, by name."""
SPECIAL_EACH = 3


def make_special(name: str, case: Case, kernel: Kernel, device: str) -> Case | None:
    """Another case with a few elements of each float input, its last one among them, of the `SPECIAL` ones; None where no input can have one, or the reference
    takes none.

    Where the reference hands NaNs on in fp64 and in fp32, so must a kernel; where it makes an infinity in both, an infinity or
    none. What it makes of an infinity that is no number, or not the same in both, may be anything, and so may what depends on the order in
    which it ranks infinities, and what is a number for who skips what is times zero: dropped elements, masked keys, one-hot rows.
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
                    flat[-1:] = special  # behind what is done by so many at once
                    found = True
            inputs[tensor.name] = values
    if not found or not kernel.has_reference:
        return None
    try:
        right = compute_expected(kernel, case.workload, inputs)
        rough = run_reference(kernel, case.workload, upcast(inputs, "float32"), "float32")
        ways = (math.inf, -math.inf) if name == INFINITE else (math.inf,)
        loose = [call_of(kernel, case.workload).loose(inputs, undefined) for undefined in ways]
    except fitting.OutOfDeviceMemory:
        raise
    except KernelError:  # the reference itself raises on them
        return None

    dtypes = {tensor.name: kernel.spec.dtype(tensor, case.workload) for tensor in kernel.spec.outputs}
    turns = [right.roundings.turn(turn) for turn in range(2, 2 * SPECIAL_EACH, 2)] if right.roundings else []

    def leave_open(right: Right) -> Right:
        for output, one in right.items():
            other = rough[output].to(torch.float64)
            if name == NANS:
                differ = one.value.isnan() & ~(other.isnan() & loose[0][output].isnan())
            else:
                differ = one.value.isnan() | other.isnan() | (one.value.isinf() != other.isinf())
                differ |= one.value.isinf() & (one.value != other)
                for turn in (*loose, *turns):
                    differ |= errors(turn[output], one, dtypes[output]) > 1.0
            one.tolerance.masked_fill_(differ, math.inf)
            one.value.masked_fill_(differ, 0.0)
        right.nans, right.law = True, None
        return right

    doubted = right.doubted
    right.doubted = lambda: leave_open(closer) if doubted is not None and (closer := doubted()) is not None else None
    leave_open(right)
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
        self._said: tuple[set[tuple[str, str]], tuple[str, ...]] | None = None
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
        if self._said is None or self._said[0] != self.kept.keys():  # in whatever order they were used last
            self._said = set(self.kept), look(self.kernel.spec, self.kept.values())
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
