"""The tolerance that a reference earns its outputs: what its rounding shows, in fp64 beside fp32 and otherwise rounded.

Of standard library, torch and the files beside it: an exported package's tests hold these files and judge by them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from harness.checks.expected import UNIT_ROUNDOFF, Expected, Right

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
DOUBT_DRAWS = 6
"""Draws of each kind more of a row's noise before an output is called wrong: of 262,144 rows of an attention two were off by four times a tolerance
that came from one. By four more an honest difference of two scores was wrong once in 400 times, by six not in 1,200."""
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
LENT, LENDING_ROWS = 2.0**12, 16
"""Multiple of the largest noise that an element's place shows in all rows, where there are so many, beyond which it earns none by what the rest of its row shows
(beside DRIFT_AT_MOST of the largest value there): a sum of 1e6 in front of a row of codes was off by more than all of them."""
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
"""Roundings of every operator's result to a 16-bit dtype, the largest of which counts. What several roundings make together is about normal: of
8 draws one element in 2,000 shows less than half of its deviation, so before anything is called wrong there are BETWEEN_DRAWS * (1 + DOUBT_DRAWS),
of which one in 10^23 does."""
SHARED_BITS = 3
"""Computed values share a place in a ranking where they are equal in so many bits fewer than their format's: some units of NOISE_FACTOR. Of
16-bit formats in one fewer."""
PICKED_TURNS = (16, 32, 48, 64, 96, 128)
SHORT_SUM = 64
"""Terms of a sum that engines keep in 16 bits, at most; longer ones earn one roundoff for each term, no more: a term left away would pass."""
ROUNDINGS_BYTES = 2 << 30
"""Of outputs otherwise rounded that are kept for one set of inputs: 32 of 3 GiB each filled a GPU."""


class JudgedOutput(NamedTuple):
    """An output of floats or integers, as a spec has it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    ulps: float | None = None
    """Unit roundoffs of the value that it may be off; of integers how much. None is the dtype's default, of integers 0."""
    ulps_of_row: float | None = None
    """The same of its row's largest value, beside that."""
    share: float = 0.0
    """How much of what rounding every operator's result makes it may be off beside that, since the baseline errs so."""


def _rounding(**how: Any) -> AbstractContextManager[Any]:
    from harness.farside.rounding import Rounding  # imports torch

    return Rounding(**how)


@dataclass(frozen=True)
class ReferenceCall:
    """A reference at the sizes of one workload: how it is run, and what its operation says of rounding."""

    name: str
    run: Callable[[dict[str, torch.Tensor], str], dict[str, torch.Tensor]]
    """Outputs by name, of inputs by name, computed in a dtype."""
    dtype: str
    """The workload's."""
    bits: int
    """Significant ones of that dtype."""
    terms: Callable[[], int]
    """How many input elements the longest sum takes in; 1 where nothing is summed."""
    wide: frozenset[str] = frozenset()
    """Inputs of fp64."""
    all_wide: bool = False
    """Whether no floating-point input is narrower than fp64."""
    rounding: Callable[..., AbstractContextManager[Any]] = _rounding
    """A context in which its operators round otherwise."""
    noise_bits: int | None = FP32_BITS
    """Significant bits of the format that the rough reference's noise comes from; None where it cannot be rounded otherwise."""

    def rounded(self, inputs: dict[str, torch.Tensor], **how: Any) -> dict[str, torch.Tensor]:
        """Its outputs in fp64, what each of its operators makes rounded otherwise, as rounding.Rounding takes it."""
        with self.rounding(**how):
            return self.run(upcast(inputs, "float64"), "float64")

    def turned(self, inputs: dict[str, torch.Tensor], turn: int, **how: Any) -> dict[str, torch.Tensor]:
        """Its outputs in fp64, where of what shares a place in a ranking others are picked; `how`: also where a stable sort says which comes
        first, and which of them (`unstable`, `picks` of rounding.Rounding)."""
        bits = self.bits - (SHARED_BITS if self.bits >= FP32_BITS else 1)
        with self.rounding(bits=bits, units=0.0, sum_units=0.0, turn=turn, **how):
            return self.run(upcast(inputs, "float64"), "float64")

    def loose(self, inputs: dict[str, torch.Tensor], undefined: float) -> dict[str, torch.Tensor]:
        """Its outputs for who leaves out what is times zero, and has this where infinities make no number (rounding.Rounding)."""
        with self.rounding(bits=FP32_BITS, units=0.0, sum_units=0.0, loosely=undefined):
            return self.run(upcast(inputs, "float64"), "float64")


class ReferenceRoundings:
    """Outputs of a reference for the same inputs, each time otherwise rounded (harness/farside/rounding.py); made when asked for."""

    def __init__(self, reference: ReferenceCall, inputs: dict[str, torch.Tensor]) -> None:
        self.reference, self.inputs = reference, inputs
        self.made: list[dict[str, torch.Tensor]] = []

    def get(self, number: int) -> dict[str, torch.Tensor]:
        """The first is what fp32 makes, the next ones Monte Carlo arithmetic: beyond ROUNDINGS_BYTES another draw each time."""
        if number < len(self.made):
            return self.made[number]
        one = self._make(number)
        if number == len(self.made) and (number + 1) * sum(t.nbytes for t in one.values()) <= ROUNDINGS_BYTES:
            self.made.append(one)
        return one

    def turn(self, number: int) -> dict[str, torch.Tensor]:
        return self.reference.turned(self.inputs, number)

    def follow(self, places: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        return self.reference.turned(self.inputs, 0, picks=[one.tolist() for one in places])

    def has_order(self, name: str) -> bool:
        """Whether a stable sort says which of equal values comes first, and nothing but that ranks what is in this output."""
        turns = [self.turn(0), self.turn(2), self.reference.turned(self.inputs, 2, unstable=True)]
        first, second, unstable = (one[name].double().nan_to_num() for one in turns)
        return bool((first == second).all()) and not bool((first == unstable).all())

    def _make(self, number: int) -> dict[str, torch.Tensor]:
        if not number:
            return self.reference.run(upcast(self.inputs, "float32"), "float32")
        units = max(NOISE_FACTOR, math.sqrt(self.reference.terms()))
        how = {
            "bits": 50 if self.reference.dtype == "float64" else FP32_BITS,
            "units": NOISE_FACTOR,
            "sum_units": units,
        }
        return self.reference.rounded(self.inputs, **how)


def upcast(inputs: dict[str, torch.Tensor], dtype: str) -> dict[str, torch.Tensor]:
    """Floats in that dtype, the rest as they are."""
    import torch

    to = getattr(torch, dtype)
    return {name: t.to(to) if t.dtype.is_floating_point else t for name, t in inputs.items()}


def _exact_and_rough(
    reference: ReferenceCall, inputs: dict[str, torch.Tensor]
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """The reference's outputs in fp64 and in fp32, whose difference is the noise that earns the tolerance.

    Beside inputs of fp32 and fewer bits those of fp64 stay what they are: a running mean of fp64 is as rough as what is added to it.
    """
    wide, rough = upcast(inputs, "float64"), upcast(inputs, "float32")
    if not reference.all_wide:
        rough |= {name: wide[name] for name in reference.wide}
    return reference.run(wide, "float64"), reference.run(rough, "float32")


def rows_noise(
    reference: ReferenceCall, inputs: dict[str, torch.Tensor], moved: int
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """(outputs in fp64, each row's largest |fp64 - fp32|, that of each place in LENDING_ROWS rows and more) by name.

    What fp32 makes of a row is one draw of its noise, which may be next to nothing by chance where the row is far more sensitive than
    others: two scores that are about equal, a difference of equal numbers. `moved` times three draws more are taken: what a rounding of
    the inputs makes of the row in fp64, what fp32 makes of inputs that are as far off as TF32 rounds, beside fp64 of the same, and what
    operators off by one unit of fp32 make of it.
    """
    import torch

    exact, rough = _exact_and_rough(reference, inputs)
    bits = reference.noise_bits
    noise: dict[str, torch.Tensor] = {}
    places: dict[str, torch.Tensor] = {}
    near: dict[str, torch.Tensor] = {}
    picked: dict[str, float] = {}

    def take(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
        for name, value in one.items():
            apart = _apart(value, other[name])
            highest = _highest(apart)
            if bits is not None and value.dtype.is_floating_point and _steep(highest, value):
                if name not in near:
                    near.update(_near(reference, inputs, exact))
                    picked.update(_picked(reference, inputs, other))
                apart = _without_steps(apart, near[name], bits)
                highest = _highest(apart).clamp_max(picked.get(name, math.inf))
            noise[name] = torch.maximum(noise[name], highest) if name in noise else highest
            if apart.numel() >= LENDING_ROWS * apart.shape[-1:].numel() and apart.dim() > 1:
                most = apart.flatten(0, -2).amax(dim=0)
                places[name] = torch.maximum(places[name], most) if name in places else most

    take(exact, rough)
    del rough
    for _ in range(moved):
        take(exact, reference.run(_shaken(inputs, UNIT_ROUNDOFF["float32"]), "float64"))
        take(*_exact_and_rough(reference, _shaken(inputs, TF32_ROUNDOFF)))
        if bits is not None:
            take(exact, reference.rounded(inputs, bits=FP32_BITS, units=1.0, sum_units=1.0, holds=False))
    return exact, noise, places


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


def _near(
    reference: ReferenceCall, inputs: dict[str, torch.Tensor], exact: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Each element's largest noise, by tensor name, as results of NEAR_BITS bits show it."""
    import torch

    units = math.sqrt(reference.terms())
    found: dict[str, torch.Tensor] = {}
    for _ in range(NEAR_RUNS):
        shaken = _shaken(inputs, 2.0**-NEAR_BITS)
        other = reference.rounded(shaken, bits=NEAR_BITS, units=1.0, sum_units=units, holds=False)
        for name, value in exact.items():
            if value.dtype.is_floating_point:
                apart = _apart(value, other[name])
                found[name] = torch.maximum(found[name], apart) if name in found else apart
    return found


def _picked(
    reference: ReferenceCall, inputs: dict[str, torch.Tensor], rough: dict[str, torch.Tensor]
) -> dict[str, float]:
    """Noise, by tensor name, of those that depend on what is picked where values share a place in a ranking.

    What fp32 picks of them, and fp64 does not, is no noise: boxes of the best of saturated scores may be any of their boxes. How far most
    numbers are from the nearest of those that may be picked says it.
    """
    import torch

    turns = [reference.turned(inputs, turn) for turn in (0, 2)]
    names = [name for name, value in turns[0].items() if value.dtype.is_floating_point]
    names = [name for name in names if not torch.equal(*(one[name].double().nan_to_num() for one in turns))]
    turns += [reference.turned(inputs, turn) for turn in PICKED_TURNS if names]
    found: dict[str, float] = {}
    for name in names:
        near = _nearest(rough[name].double().flatten(), torch.cat([one[name].flatten() for one in turns]))
        near = near[near.isfinite()]
        found[name] = float(near.median()) if len(near) else 0.0
    return found


def _nearest(ones: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """How far each of at most TYPICAL_ROWS numbers is from the nearest of others, both [n]."""
    import torch

    ones, others = ones[:: max(1, len(ones) // TYPICAL_ROWS)], others.sort().values
    at = torch.searchsorted(others, ones).clamp_max(len(others) - 1)
    return torch.minimum((others[at] - ones).abs(), (others[(at - 1).clamp_min(0)] - ones).abs())


def _without_steps(apart: torch.Tensor, near: torch.Tensor, bits: int) -> torch.Tensor:
    """The part of what was seen that is noise. near: of the same elements (`_near`). bits: see ReferenceCall.noise_bits.

    Noise grows with the roundoff, by `scale`. A step that only the rough reference shows is far larger than that; one that both show
    (a tie) is as high in `near`.
    """
    import torch

    scale = 2.0 ** (NEAR_BITS - bits)
    factor = NEAR_FACTOR if bits == FP32_BITS else TF32_FACTOR
    return torch.minimum(apart, factor * scale * near).masked_fill_(2 * near > apart, 0.0)


def round_between(
    reference: ReferenceCall, inputs: dict[str, torch.Tensor], exact: dict[str, torch.Tensor], moved: int = 0
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Each element's largest error by tensor name, and the root of its mean square, fp64, in BETWEEN_DRAWS roundings of every operator's result to the
    workload's dtype, and `moved` times as many more."""
    import torch

    found: dict[str, torch.Tensor] = {}
    squares: dict[str, torch.Tensor] = {}
    terms = reference.terms()
    units = math.sqrt(terms) if terms <= SHORT_SUM else 1.0
    smallest = SMALLEST.get(reference.dtype, 0.0)
    how = {"bits": reference.bits, "units": 1.0, "sum_units": units, "holds": False, "smallest": smallest}
    draws = BETWEEN_DRAWS * (1 + moved)
    for _ in range(draws):
        for name, other in reference.rounded(inputs, **how).items():
            apart = _apart(exact[name], other)
            squares[name] = squares[name].addcmul_(apart, apart) if name in squares else apart.square()
            found[name] = torch.maximum(found[name], apart) if name in found else apart
    return found, {name: one.div_(draws).sqrt_() for name, one in squares.items()}


def _shaken(inputs: dict[str, torch.Tensor], by: float) -> dict[str, torch.Tensor]:
    """Floats times a random number within `by` of one, but for whole numbers, which no rounding changes: masks, counts, what is padded."""
    import torch

    def one(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.dtype.is_floating_point:
            return tensor
        wide = tensor.to(torch.float64)
        moved = torch.empty_like(wide).uniform_(1 - by, 1 + by).mul_(wide)
        return torch.where(wide == wide.round(), wide, moved)

    return {name: one(tensor) for name, tensor in inputs.items()}


def noise_of_few(
    reference: ReferenceCall, outputs: Iterable[JudgedOutput], draw: Callable[[], dict[str, torch.Tensor]]
) -> dict[str, float]:
    """Name of an output of FEW elements -> the reference's largest difference between fp64 and fp32 in FEW_DRAWS draws of its inputs."""
    found = {one.name: 0.0 for one in outputs if one.dtype in UNIT_ROUNDOFF and math.prod(one.shape) < FEW}
    for _ in range(FEW_DRAWS if found else 0):
        exact, noise, _ = rows_noise(reference, draw(), 0)
        for name in found.keys() & exact.keys():
            found[name] = max(found[name], float(noise[name].max()))
    return found


def expect(
    reference: ReferenceCall,
    outputs: Iterable[JudgedOutput],
    inputs: dict[str, torch.Tensor],
    *,
    moved: int = 0,
    few: Callable[[str], dict[str, float]] | None = None,
    right: Right | None = None,
) -> Right:
    """What is right of these outputs for these inputs (by name, each in its own dtype), as `right`, which may know a law already.

    `moved`: see rows_noise. `few`: see noise_of_few; of the device where the reference's outputs are.

    tolerance = ulps * unit roundoff of the output's dtype * |value|
              + NOISE_FACTOR * noise, noise being the row's largest |reference in fp64 - reference in fp32|, or the median of
                that over the rows that show any, if larger; terms/TERMS_PER_NOISE * noise where that is more, noise being
                LEAST_NOISE unit roundoffs at the least, up to DRIFT_AT_MOST of the row's largest |value|; of both no more than LENT says
              + the smallest step of the dtype, and for each further term that of what it is added in: atomic additions flush subnormals
              + what ulps_of_row and share say.
    The second term is what an honest kernel that computes in fp32 shows where terms cancel; steps are no part of it (`_without_steps`,
    judging.judge_closely). Integer outputs may differ by `ulps`, one element in judging.OFF_SHARE.
    """
    import torch

    result = Right() if right is None else right
    exact, rows, places = rows_noise(reference, inputs, moved)
    if reference.noise_bits is not None:
        result.roundings = ReferenceRoundings(reference, inputs)
    least_noise = few(next(iter(exact.values())).device.type) if few and exact else {}
    between: dict[str, torch.Tensor] = {}
    for output in outputs:
        name, dtype = output.name, output.dtype
        if name not in exact:
            if result.law is not None:  # left to properties.py
                continue
            raise ValueError(f"{reference.name}: reference.py returns no {name!r}, which the spec lists as an output")
        value = exact[name].to(torch.float64)
        if tuple(value.shape) != output.shape:
            raise ValueError(
                f"{reference.name}: reference.py returns {name!r} of shape {tuple(value.shape)}, the spec says {output.shape}"
            )
        if dtype not in UNIT_ROUNDOFF:
            allowed = output.ulps or 0.0
            result[name] = Expected(value, torch.full_like(value, allowed), f"{name}: +-{allowed:g}")
            continue
        size = torch.nan_to_num(value.abs(), nan=0.0, posinf=0.0, neginf=0.0)
        noise = rows[name]
        noise = torch.maximum(noise, _typical(noise)).clamp_min(least_noise.get(name, 0.0))
        inside = "float64" if dtype == "float64" else "float32"  # nobody computes a float64's sums in fp32
        if reference.all_wide:  # else it is what they are of fp64
            noise *= UNIT_ROUNDOFF[inside] / UNIT_ROUNDOFF["float32"]
        largest = size.amax(dim=-1, keepdim=True)
        least = LEAST_NOISE * UNIT_ROUNDOFF[inside] * largest
        drift = reference.terms() / TERMS_PER_NOISE * torch.maximum(noise, least)
        drift = torch.minimum(drift, DRIFT_AT_MOST[dtype] * largest)
        noise = torch.maximum(NOISE_FACTOR * noise, drift)
        if name in places:
            own = torch.maximum(LENT * places[name], DRIFT_AT_MOST["float32"] * size.flatten(0, -2).amax(dim=0))
            noise = noise.clamp_max(own) if bool((own < noise.amax()).any()) else noise
        relative = (output.ulps or DEFAULT_ULPS[dtype]) * UNIT_ROUNDOFF[dtype]
        tolerance = size.mul_(relative)
        tolerance += noise + SMALLEST[dtype] + (reference.terms() - 1) * SMALLEST[inside]
        says = f"{name}: {relative:.2g} of the value + {noise.median().item():.2g} (float32 sums of its row)"
        if output.ulps_of_row:
            tolerance += output.ulps_of_row * UNIT_ROUNDOFF[dtype] * largest
            says += f" + {output.ulps_of_row * UNIT_ROUNDOFF[dtype]:.2g} of the row's largest"
        if output.share:
            between = between or round_between(reference, inputs, exact, moved)[0]
            tolerance += output.share * between[name]
            says += f" + {output.share:.2g} of what rounding every operator to {reference.dtype} makes, since the baseline errs so"
        result[name] = Expected(value, tolerance, says)
    return result


def _typical(noise: torch.Tensor) -> torch.Tensor:
    """The median of what is not zero, a scalar; 0 where all is. noise: fp64, one value a row, any shape."""
    rows = noise.flatten()
    rows = rows[:: max(1, len(rows) // TYPICAL_ROWS)]
    shown = rows[rows > 0]
    return shown.median() if len(shown) else rows.new_zeros(())
