"""What harness/farside/forms.py does with the code of a problem: its Model, a candidate's ModelNew, its inputs.

Runs on the far side, boxed, with nothing of the project on its path. One process does one of four things, as `role` says:

    describe   execute the problem and say what it takes and returns (sizes, dtypes, how its inputs are distributed)
    inputs     draw inputs with the problem's own get_inputs(), under a seed that comes as a tensor
    reference  call Model, in fp64 or fp32
    candidate  call ModelNew (or Model, as the eager baseline), with its native code loaded
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import math
import os
import random
import sys
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import module_state as state_side

if TYPE_CHECKING:
    import torch

SAMPLED = 1 << 18
"""Elements of a tensor by which its distribution is judged."""
LARGE_BYTES = 1 << 30
"""Inputs above this are drawn twice, others three times."""
SCALARS = (int, float, bool, str, type(None))
DTYPES = frozenset("float64 float32 float16 bfloat16 float8_e4m3fn int64 int32 int16 int8 uint8 bool".split())  # noqa: SIM905
OTHER_SIZES = 3
MOST_VALUES = 4096
"""Distinct values of an input that are sent to the parent, where it has few."""
REPEATED = 0.5
"""Share of distinct values among 32-bit floats below which they are few: of a continuous range 262,144 have repeats in
2 %, of a lattice nearly all."""
FEW_VALUES = 64
"""Distinct 16-bit floats up to which they are few; torch.rand makes 256."""
LOOKED = 1 << 22
LARGER = 1.5
"""A leading size that no get_inputs() has, from the rows of two draws."""
LARGER_BYTES = 64 << 20
ALTERNATIVES = {
    "uniform": ("ordinary", "large"),
    "scaled": ("ordinary", "large"),
    "ordinary": ("uniform", "large", "zeros", "outliers"),
    "normal": ("uniform", "large", "zeros", "outliers"),
}
"""Other distributions for inputs of a kind, tried one after another."""


class UnfitProblem(Exception):
    """The problem cannot be worked on; one sentence."""


# --- a problem's structure -------------------------------------------------------------------------------------------


def flatten(value: Any, tensors: list[torch.Tensor], what: str) -> Any:
    """Append the tensors of a nest of lists, tuples and dicts to `tensors`; answers the nest as JSON, tensors as numbers."""
    import torch

    if type(value) in (torch.Tensor, torch.nn.Parameter):
        tensors.append(value.detach())
        return {"t": len(tensors) - 1}
    if isinstance(value, SCALARS):
        return {"v": value}
    if type(value) is list:
        return {"l": [flatten(one, tensors, what) for one in value]}
    if isinstance(value, tuple):
        return {"u": [flatten(one, tensors, what) for one in value]}
    if type(value) is dict and all(isinstance(name, str) for name in value):
        return {"d": {name: flatten(one, tensors, what) for name, one in value.items()}}
    raise UnfitProblem(
        f"{what} a {type(value).__name__}, which is neither a tensor, a number, a text nor a list of such"
    )


def rebuilt(form: Any, tensors: list[Any]) -> Any:
    (kind, inner), *_ = form.items()
    if kind == "t":
        return tensors[inner]
    if kind == "v":
        return inner
    if kind == "l":
        return [rebuilt(one, tensors) for one in inner]
    if kind == "u":
        return tuple(rebuilt(one, tensors) for one in inner)
    return {name: rebuilt(one, tensors) for name, one in inner.items()}


def tensors_of(value: Any) -> list[Any]:
    """What a function returned, as a flat list without what is no tensor; a lone value as it is."""
    found: list[Any] = []
    outline(value, found)
    return [one for one in found if not isinstance(one, SCALARS)]


def leaves_of(value: Any) -> list[Any]:
    """What of a module's answer is judged: tensors, and its numbers as such."""
    found: list[Any] = []
    outline(value, found)
    return [as_tensor(one) for one in found]


def fields(value: Any) -> list[tuple[str, Any]] | None:
    """(name, value) of a named tuple, a dataclass or a dict; None for what is none."""
    if isinstance(value, tuple) and isinstance(names := getattr(value, "_fields", None), tuple):
        return list(zip(names, value, strict=True))
    if isinstance(value, dict):  # transformers' outputs are dicts and dataclasses
        return list(value.items())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(one.name, getattr(value, one.name)) for one in dataclasses.fields(value)]
    return None


def describe_access(value: Any) -> str:
    """How a user gets at a field: by attribute, by key, or by both."""
    by_key = isinstance(value, dict)
    return "attribute" if not by_key else "both" if dataclasses.is_dataclass(value) else "key"


def outline(value: Any, leaves: list[Any]) -> Any:
    """The structure of what a module returned, as JSON; what is judged is appended to `leaves`: tensors and numbers."""
    if (named := fields(value)) is not None:
        return {describe_access(value): [[str(name), outline(one, leaves)] for name, one in named]}
    if isinstance(value, (list, tuple)):
        return {"list": [outline(one, leaves) for one in value]}
    if value is None or isinstance(value, str):
        return {"v": value}
    leaves.append(value)
    return {"t": len(leaves) - 1}


def as_tensor(value: Any, device: str = "cpu", wide: bool = False) -> Any:
    """A number as a tensor without dimensions, float32 where it is none of `wide` inputs; anything else as it is."""
    import torch

    if type(value) not in (bool, int, float):
        return value
    dtype = None if type(value) is not float else torch.float64 if wide else torch.float32
    return torch.tensor(value, dtype=dtype, device=device)


def pick_leaves(form: Any, value: Any, leaves: list[Any], where: str = "what it returns") -> None:
    """Append what is judged of a candidate's answer, in the order of Model's. Raises ValueError where a user of Model's would not
    get at it in the same way."""
    (kind, inner), *_ = form.items()
    if kind == "t":
        if isinstance(value, (list, tuple, dict)):
            raise ValueError(f"{where} is a {type(value).__name__} of {len(value)} values, should be one tensor")
        leaves.append(value)
    elif kind == "v":
        if value != inner or type(value) is not type(inner):
            raise ValueError(f"{where} is a {type(value).__name__}, should be {inner!r}")
    elif kind == "list":
        if not isinstance(value, (list, tuple)) or len(value) != len(inner):
            count = f" of {len(value)}" if isinstance(value, (list, tuple)) else ""
            raise ValueError(f"{where} is a {type(value).__name__}{count}, should be {len(inner)} values")
        for at, (one, found) in enumerate(zip(inner, value, strict=True)):
            pick_leaves(one, found, leaves, f"{where}[{at}]")
    else:
        named = dict(fields(value) or [])
        missing = [name for name, _ in inner if name not in named]
        if (
            fields(value) is None
            or missing
            or (kind, describe_access(value)) in (("attribute", "key"), ("key", "attribute"))
        ):
            lacks = f" without {missing[0]}" if missing and fields(value) is not None else ""
            names = ", ".join(name for name, _ in inner)
            raise ValueError(f"{where} is a {type(value).__name__}{lacks}; Model's has, by {kind}: {names}")
        if isinstance(value, tuple) and [name for name, _ in fields(value) or []] != [name for name, _ in inner]:
            raise ValueError(f"{where} has its fields in another order than Model's")
        for name, one in inner:
            pick_leaves(one, named[name], leaves, f"{where}.{name}")


def construct(namespace: types.ModuleType, model: str, initial: Callable[[], Any], seed: int) -> Any:
    """An instance under the seed, as KernelBench makes it: one seed for its arguments, the same again for its weights."""

    seed_generators(seed)
    arguments = initial()
    seed_generators(seed)
    if isinstance(arguments, dict):
        return getattr(namespace, model)(**arguments)
    return getattr(namespace, model)(*arguments)


def can_make_anywhere(namespace: types.ModuleType) -> bool:
    """Whether Model's constructor works where its tensors hold no values, so that it asks none for its own."""
    import torch

    try:
        with torch.device("meta"):
            construct(namespace, "Model", getattr(namespace, "get_init_inputs", list), 42)
    except Exception:  # noqa: BLE001, it does not: the answer that was asked for
        return False
    return True


def seed_generators(seed: int, *, of_host: bool = True) -> None:
    """Seed torch's generators; `of_host`: Python's and numpy's, too, from which layers are dropped."""
    import torch

    torch.manual_seed(seed)
    if of_host:
        random.seed(seed)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(seed % (1 << 32))


def generator_states() -> list[Any]:
    """What changes where numbers are drawn on the host."""
    import torch

    of_numpy = sys.modules["numpy"].random.get_state()[1:3] if "numpy" in sys.modules else ()
    state = [str(one) if isinstance(one, int) else one.tobytes() for one in of_numpy]
    return [torch.get_rng_state().tolist(), random.getstate(), *state]


def inputs(namespace: types.ModuleType, seed: int) -> tuple[list[torch.Tensor], Any]:
    """get_inputs() under a seed: the tensors, contiguous, and the nest that they stand in."""

    seed_generators(seed)
    found: list[torch.Tensor] = []
    given = namespace.get_inputs()
    if not isinstance(given, (list, tuple)):
        raise UnfitProblem(f"get_inputs() returns a {type(given).__name__}, not a list of arguments")
    form = flatten(list(given), found, "get_inputs() returns")
    return [tensor.contiguous() for tensor in found], form


# --- describe --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def stage(says: str) -> Iterator[None]:
    """What the problem's own code raises inside, as a sentence that begins so and ends in its last line of the file. Raises UnfitProblem."""
    try:
        yield
    except UnfitProblem:
        raise
    except Exception as error:  # noqa: BLE001, the problem's code raises what it likes
        line, trace = error.lineno if isinstance(error, SyntaxError) else 0, error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_filename.endswith("problem.py") and trace.tb_frame.f_globals is not globals():
                line = trace.tb_lineno
            trace = trace.tb_next
        why = str(error).partition(" (problem.py, line")[0]
        if any(words in why for words in ("name resolution", "Network is unreachable", "urlopen error")):
            why += "; problems run without a network"
        raise UnfitProblem(f"{says}: {type(error).__name__}: {why}{f' (line {line})' if line else ''}") from None


def describe(namespace: types.ModuleType) -> dict[str, Any]:
    """What the parent makes a spec of. Everything in it is doubted there. Raises Unfit."""
    import torch

    if not isinstance(getattr(namespace, "Model", None), type):
        raise UnfitProblem("it defines no class Model(nn.Module)")
    if not callable(getattr(namespace, "get_inputs", None)):
        raise UnfitProblem("it defines no function get_inputs()")

    def make() -> Any:
        return construct(namespace, "Model", getattr(namespace, "get_init_inputs", list), 42)

    with stage("Model cannot be made"):
        model = make()
    if not isinstance(model, torch.nn.Module):
        raise UnfitProblem("its Model is no torch.nn.Module")
    with stage("get_inputs() fails"):
        given, form = inputs(namespace, 1)
    whole = [(tensor.shape, str(tensor.dtype).removeprefix("torch."), tensor.nbytes) for tensor in given]
    for shape, dtype, _ in whole:
        if dtype not in DTYPES:
            raise UnfitProblem(f"get_inputs() returns a tensor of {dtype}, which is not supported")
        if 0 in shape:
            raise UnfitProblem("get_inputs() returns an empty tensor")
    large = sum(nbytes for *_, nbytes in whole) > LARGE_BYTES
    samples = [[take_sample(tensor) for tensor in given]]
    structured, bound = ([look(tensor) for tensor in given] for look in (is_structured, is_bound))
    trial = Trial(model, form, make)
    with stage("a call of Model fails"):
        shapes, leading, sizes = trial.leading(given)
    if leading and not large:
        shapes, sizes = trial.larger(given, inputs(namespace, 2)[0], leading, shapes, sizes)
    # One draw at a time: KernelBench's largest has 16 GiB.
    small = given = trial.cut(given, leading, min(sizes)) if sizes else given
    for seed in range(2, 3 if large else 4):
        other, same = inputs(namespace, seed)
        if same != form or [t.shape for t in other] != [shape for shape, *_ in whole]:
            raise UnfitProblem("get_inputs() returns other shapes or numbers at each call")
        samples.append([take_sample(tensor) for tensor in other])
        other = trial.cut(other, leading, min(sizes)) if sizes else other
    kinds = [distribution([draw[at] for draw in samples]) for at in range(len(whole))]
    kinds = ["given" if fixed else kind for fixed, kind in zip(bound, kinds, strict=True)]
    tables: list[dict[str, Any] | None] = [None] * len(whole)
    for at, kind in enumerate(kinds):
        draws = [draw[at] for draw in samples]
        if kind in ("given", "among") and not structured[at] and (table := table_of(draws)) is not None:
            kinds[at], tables[at] = "among", table
        elif kind in ("given", "among"):
            kinds[at] = own_kind(draws, bound[at], structured[at])
    if "given" in kinds:  # what is drawn together stays together
        kinds = ["given" if kind == "near" else kind for kind in kinds]
    entries = trial.state(small, other)
    if entries and sizes:  # whose shape follows the leading size is followed at one size only
        size = next(iter(sorted(sizes)[1:]), given[leading[0]].shape[0])
        drawn = [trial.cut(inputs(namespace, seed)[0], leading, size) for seed in (2, 3)]
        if trial.state(*drawn) != entries:
            small, other = (inputs(namespace, seed)[0] for seed in (2, 3))
            leading, sizes = [], []
            shapes = [{"shape": [[0, n] for n in shape], "dtype": dtype} for shape, dtype in trial.shapes(small)]
            entries = trial.state(small, other)
    facts = trial.facts(small, other)
    if sizes and not all(facts["matters"]):  # of one row nothing is left where the batch's mean is subtracted
        size = sorted(sizes)[1] if len(sizes) > 1 else whole[leading[0]][0][0]
        drawn = [trial.cut(inputs(namespace, seed)[0], leading, size) for seed in (2, 3)]
        more = trial.facts(*drawn)["matters"]
        facts["matters"] = [one or two for one, two in zip(facts["matters"], more, strict=True)]
    choices = trial.alternatives(small, kinds, facts["fp64"])
    return {
        "arguments": form,
        "inputs": [
            {
                "shape": list(shape),
                "dtype": dtype,
                "leading": at in leading,
                "values": [kinds[at], *others(kinds[at])],
                "matters": facts["matters"][at],
                "table": tables[at],
            }
            for at, (shape, dtype, _) in enumerate(whole)
        ],
        "alternatives": choices,
        "outputs": shapes,
        "returns": trial.returns,
        "state": entries,
        "groups": [list(group) for group in state_side.place_entries(entries)[0]],
        "sizes": sizes,
        "fp64": facts["fp64"],
        "random": facts["random"],
        "weight_bytes": sum(t.nbytes for t in (*model.parameters(), *model.buffers())),
        "anywhere": can_make_anywhere(namespace),
    }


def take_sample(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.reshape(-1)
    return wide_enough(flat[:: max(1, len(flat) // SAMPLED)].clone())


def wide_enough(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, in float32 where it is of 8-bit floats, for which torch has hardly an operator."""
    return tensor.float() if tensor.is_floating_point() and tensor.itemsize == 1 else tensor


def distribution(draws: list[torch.Tensor]) -> str:
    """How the parent may draw such a tensor itself; `given` where only get_inputs() can, `among` where its values are few."""
    import torch

    whole = torch.cat(draws)
    first, *others = draws
    alike = torch.stack([first == other for other in others]).all(dim=0)
    if whole.dtype == torch.bool:
        return (
            "given" if bool(alike.all()) or (len(first) > 64 and float(alike.float().mean()) > 0.99) else "integers:0:2"
        )
    if not whole.dtype.is_floating_point:
        low, high = int(whole.min()), int(whole.max())
        counts = torch.bincount((whole.long() - low).clamp_max(1 << 16), minlength=1) if high - low < 1 << 16 else None
        chance = 4.0 / max(1, high - low + 1) + 0.02
        sorted_ = len(first) > 8 and bool((first[1:] >= first[:-1]).all())
        uneven = (
            counts is not None and len(whole) > 40 * len(counts) and float(counts.min()) < 0.5 * float(counts.max())
        )
        distinct = len(first) > 8 and len(first.unique()) == len(first)
        if float(alike.float().mean()) > chance or sorted_ or uneven or distinct or high == low or is_crowded(whole):
            return "given"
        return f"integers:{low}:{high + 1}"
    if len(whole) < 64 or float(alike.float().mean()) > 0.01 or not bool(whole.isfinite().all()):
        return "given"
    values = whole.double().sort().values
    if is_lattice(values, whole.dtype):  # what lies between is never drawn, and ties are
        return "among"
    least, most = float(values[0]), float(values[-1])
    if least >= 0 and most <= 1 and uniform(values):
        return "uniform"
    if uniform(torch.special.ndtr(values)):
        return "ordinary"
    mean, deviation = float(values.mean()), float(values.std())
    if deviation > 1e-3 and uniform(torch.special.ndtr((values - mean) / deviation)):
        mean = 0.0 if abs(mean) < 0.05 * deviation else mean  # any sign may be changed of its values
        return f"normal:{mean:.6g}:{deviation:.6g}"
    span = (most - least) * (1 + 2 / len(values))
    if uniform((values - least) / span):
        return f"range:{least:.6f}:{most:.6f}"
    # torch.rand(n) * torch.rand(()): up to an end that another draw does not share.
    if least >= 0 and most <= 1 and all(uniform((one.double() / one.max()).sort().values) for one in draws):
        return "scaled"
    return "given"


def is_lattice(values: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether sorted floats are of few values that lie further apart than their dtype's own. values: float64."""
    import torch

    different = values.unique_consecutive()
    if len(different) < 2 or len(different) > (MOST_VALUES if dtype.itemsize > 2 else FEW_VALUES):
        return False
    spacing = torch.finfo(dtype).eps * float(values.abs().max())
    return len(different) < REPEATED * len(values) and float(different.diff().min()) > 2 * spacing


def is_crowded(whole: torch.Tensor) -> bool:
    """Whether some integer comes more often, or fewer of them come, than of a range: -100 among targets, 255 among classes."""
    values, counts = whole.unique(return_counts=True)
    span = float(int(values[-1]) - int(values[0]) + 1)
    mean = len(whole) / span
    seen = span * -math.expm1(-mean)
    return float(counts.max()) > mean + 8 * math.sqrt(mean) + 8 or len(values) < 0.8 * seen - 4


def table_of(draws: list[torch.Tensor]) -> dict[str, Any] | None:
    """The values of elements that do not depend on their places, and how often each comes; None where there are too many."""
    import torch

    whole = torch.cat(draws)
    first, *others = draws
    values, counts = wide_enough(whole).unique(return_counts=True)
    if len(whole) < 64 or not 2 <= len(values) <= MOST_VALUES:
        return None
    shares = counts.double() / len(whole)
    # Elements of several draws are alike as often as chance has it, unless they have places of their own.
    alike = float(torch.stack([first == other for other in others]).all(dim=0).double().mean())
    chance = float(shares.pow(len(draws)).sum())
    placed = abs(alike - chance) > 6 * math.sqrt(chance / len(first)) + 8 / len(first)
    if placed or bool((first[1:] >= first[:-1]).all()) or len(first.unique()) == len(first):
        return None
    return {"values": values.tolist(), "shares": shares.tolist()}


def centre(tensor: torch.Tensor) -> torch.Tensor:
    """float64, less its mean, of at most LOOKED elements of the tensor."""
    while tensor.numel() > LOOKED:
        longest = max(range(tensor.dim()), key=lambda dim: tensor.shape[dim])
        tensor = tensor.narrow(longest, 0, tensor.shape[longest] // 2)
    values = wide_enough(tensor).double()
    return values - values.mean()


def is_structured(tensor: torch.Tensor) -> bool:
    """Whether elements of a draw depend on each other or on their places, as far as moments over each dimension show."""
    values = centre(tensor)
    total = float(values.square().mean())
    if not total or is_bound(tensor):  # NaN is no zero
        return True
    for moments in (values, values.square() - total):
        spread = float(moments.square().mean())
        if not spread > 1e-9 * total * total:  # two values of one size
            continue
        for dim, size in enumerate(values.shape):
            others = values.numel() // size
            if size < 8:
                continue
            if others > 1:
                means = moments.mean(dim=[d for d in range(values.dim()) if d != dim])
                if abs(float(means.square().mean()) * others / spread - 1) > 6 * math.sqrt(2 / size) + 8 / others:
                    return True
            near = float((moments.narrow(dim, 1, size - 1) * moments.narrow(dim, 0, size - 1)).mean()) / spread
            if abs(near) > 6 / math.sqrt(values.numel()) + 1 / size:
                return True
    return False


def is_bound(tensor: torch.Tensor) -> bool:
    """Whether elements of a draw are bound to each other exactly: symmetric, sorted, of one sum or one length over a dimension."""
    import torch

    if tensor.dim() >= 2 and tensor.shape[-1] == tensor.shape[-2] > 1 and tensor.dtype.is_floating_point:
        wide = wide_enough(tensor)
        if torch.equal(wide, wide.mT) or torch.equal(wide, -wide.mT):
            return True
    values = centre(tensor)
    for dim, size in enumerate(values.shape):
        if size < 8:
            continue
        if float((values.narrow(dim, 1, size - 1) >= values.narrow(dim, 0, size - 1)).double().mean()) > 0.99:
            return True
        for moments in (values, wide_enough(tensor).double().square() if tensor.numel() == values.numel() else values):
            sums = moments.sum(dim)
            usual = moments.abs().sum(dim).mean() / math.sqrt(size)
            if sums.numel() > 1 and float(sums.std()) < 1e-4 * float(usual):
                return True
    return False


def own_kind(draws: list[torch.Tensor], bound: bool, structured: bool) -> str:
    """The kind of an input that is of no known distribution: `among` where its elements depend on nothing, `near` where the
    floats that
    differ between draws hardly ever repeat and its zeros have their places, so that their mantissas may be others."""
    import torch

    first, *others = draws
    if bound or not first.dtype.is_floating_point or first.dtype.itemsize < 4:
        return "given"
    alike = torch.stack([first == other for other in others]).all(dim=0)
    moving = first[~alike & (first != 0)]
    if len(moving) < 64 or not bool(moving.isfinite().all()) or len(moving.unique()) < 0.95 * len(moving):
        return "given"
    if not structured and bool(torch.stack([one.isfinite().all() for one in draws]).all()):
        return "among"
    return "near" if all(torch.equal(first == 0, other == 0) for other in others) else "given"


def uniform(values: torch.Tensor) -> bool:
    """Whether values in their order are distributed evenly from 0 to 1, by the largest distance of their cumulative shares from a line."""
    import torch

    n = len(values)
    steps = torch.arange(1, n + 1, dtype=torch.float64) / n
    return float((values - steps).abs().max()) < 2.5 / math.sqrt(n) + 1e-3


class Trial:
    """Calls a Model with other sizes and other values to see what it takes."""

    def __init__(self, model: Any, form: Any, make: Callable[[], Any] | None = None) -> None:
        self.model, self.form, self.make = model, form, make
        self.returns: Any = None
        """The structure of what it returns."""
        self.drew = False
        """Whether a call took numbers from a generator: of one row a mask of one seed is often that of another."""

    def fresh(self) -> Any:
        """The module as constructed."""
        try:
            return copy.deepcopy(self.model)
        except Exception:  # torch.nn.utils.weight_norm's module cannot be copied
            if self.make is None:
                raise
            return self.make()

    def call(
        self, tensors: list[torch.Tensor], *, wide: bool = False, seed: int = 5, model: Any = None
    ) -> list[torch.Tensor]:
        """Calls a fresh module, or `model`."""
        import torch

        model = self.fresh() if model is None else model
        if wide:
            model, tensors = model.double(), [t.double() if t.dtype.is_floating_point else t for t in tensors]
        found: list[Any] = []
        with torch.no_grad(), default_dtype(torch.float64 if wide else torch.float32):
            seed_generators(seed)
            before = generator_states()
            returns = outline(model(*rebuilt(self.form, [t.clone() for t in tensors])), found)
            self.drew = self.drew or generator_states() != before
        self.returns = self.returns or returns
        found = [as_tensor(one) for one in found]
        if not found:
            raise UnfitProblem("its Model returns no tensor")
        for one in found:
            if not isinstance(one, torch.Tensor):
                raise UnfitProblem(f"its Model returns a {type(one).__name__}, not tensors")
            if str(one.dtype).removeprefix("torch.") not in DTYPES:
                raise UnfitProblem(f"its Model returns a tensor of {one.dtype}, which is not supported")
        return found

    def shapes(self, tensors: list[torch.Tensor]) -> list[tuple[list[int], str]]:
        """Shapes and dtypes of the outputs; without computing where that is possible."""
        import torch
        from torch._subclasses.fake_tensor import FakeTensorMode

        try:
            with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True) as mode:
                fakes = [mode.from_tensor(tensor) for tensor in tensors]
                found = leaves_of(self.fresh()(*rebuilt(self.form, fakes)))
                shapes = [([int(n) for n in one.shape], str(one.dtype).removeprefix("torch.")) for one in found]
        except Exception:  # noqa: BLE001, not every operator can be followed without values; then they are computed
            shapes = [(list(one.shape), str(one.dtype).removeprefix("torch.")) for one in self.call(tensors)]
        if not shapes or any(0 in shape for shape, _ in shapes):
            raise UnfitProblem("its Model returns no tensor or an empty one")
        return shapes

    @staticmethod
    def cut(tensors: list[torch.Tensor], leading: list[int], size: int) -> list[torch.Tensor]:
        """Copies of the first rows, so that the whole can be let go of."""
        return [t[:size].clone() if at in leading else t for at, t in enumerate(tensors)]

    def leading(self, given: list[torch.Tensor]) -> tuple[list[dict[str, Any]], list[int], list[int]]:
        """(outputs, inputs whose first dimension can be another, smaller sizes of it that were tried and work)."""
        whole = self.shapes(given)
        fixed = [{"shape": [[0, n] for n in shape], "dtype": dtype} for shape, dtype in whole]
        with_rows = [at for at, tensor in enumerate(given) if tensor.dim()]
        if not with_rows:
            return fixed, [], []
        size = given[with_rows[0]].shape[0]
        wanted = sorted({n for n in (1, 3, size // 2, size - 1) if 1 <= n < size})
        alike = [at for at in with_rows if given[at].shape[0] == size]
        for leading in [alike] if len(alike) == 1 else [alike, alike[:1]]:
            found = {size: whole} | {n: s for n in wanted if (s := self._shapes_at(given, leading, n)) is not None}
            outputs = affine(found, size) if len(found) > 2 else None
            if outputs is not None:
                return outputs, leading, sorted(n for n in found if n != size)[:OTHER_SIZES]
        return fixed, [], []

    def larger(
        self, given: list[torch.Tensor], other: list[torch.Tensor], leading: list[int], outputs: list[dict[str, Any]],
        sizes: list[int],
    ) -> tuple[list[dict[str, Any]], list[int]]:  # fmt: skip
        """The same with a size that is larger than any draw's, where the module takes it."""
        import torch

        size = given[leading[0]].shape[0]
        few = sum(t.nbytes for t in given) > LARGER_BYTES
        more = size + 1 if few else max(size + 1, int(LARGER * size) + 1)
        try:
            tensors = [torch.cat([t, o])[:more] if at in leading else t
                       for at, (t, o) in enumerate(zip(given, other, strict=True))]  # fmt: skip
            found = [(list(one.shape), str(one.dtype).removeprefix("torch.")) for one in self.call(tensors)]
        except Exception:  # noqa: BLE001, it does not take that size: the answer that was asked for
            return outputs, sizes
        expected = [([slope * more + rest for slope, rest in o["shape"]], o["dtype"]) for o in outputs]
        return outputs, [*sizes, more] if found == expected else sizes

    def _shapes_at(
        self, given: list[torch.Tensor], leading: list[int], size: int
    ) -> list[tuple[list[int], str]] | None:
        """With data: a node's number may be too large for fewer nodes, which shapes alone do not show."""
        try:
            found = self.call(self.cut(given, leading, size))
        except Exception:  # noqa: BLE001, it does not take that size: the answer that was asked for
            return None
        shapes = [(list(one.shape), str(one.dtype).removeprefix("torch.")) for one in found]
        return None if any(0 in shape for shape, _ in shapes) else shapes

    def state(self, one: list[torch.Tensor], other: list[torch.Tensor]) -> list[dict[str, Any]]:
        """The entries of the module's state (harness/farside/module_state.py). Raises Unfit where it cannot be followed."""
        model, beside = self.fresh(), self.fresh()
        before = state_side.snapshot(model)
        self.call(one, model=model)
        first = state_side.snapshot(model)
        again = self.call(other, model=model)
        second = state_side.snapshot(model)
        alone = self.call(other, model=beside)
        snaps, after_alone = (before, first, second), state_side.snapshot(beside)
        for caches in (False, True):
            try:
                entries = state_side.find_entries(*snaps, after_alone, caches=caches)
            except state_side.Stateful as said:
                raise UnfitProblem(str(said)) from None
            if not entries:
                break
            # a fresh module with the state that the first call has left must go on as the first one did
            alone, after = self._continued(entries, first, other)
            now, then = (self._packed(entries, snap) for snap in (after, second))
            if close(now, then) and close(again, alone):
                return entries
        if entries or not close(again, alone):
            raise UnfitProblem(HIDDEN)
        return entries

    def _continued(self, entries: list[dict[str, Any]], snap: Any, given: list[torch.Tensor]) -> tuple[list[Any], Any]:
        model = self.fresh()
        state = state_side.ModuleState(entries, model, "cpu", UnfitProblem)
        buffers = self._packed(entries, snap)
        state.put(state.prepare(buffers))
        return self.call(given, model=model), state_side.snapshot(model)

    def _packed(self, entries: list[dict[str, Any]], snap: Any) -> list[torch.Tensor]:
        """A snapshot's values as they travel."""
        import torch

        groups, places = state_side.place_entries(entries)
        buffers = [torch.zeros(rows, state_side.ROW, dtype=getattr(torch, dtype)) for dtype, rows in groups]
        for entry, there in zip(entries, places, strict=True):
            leaves = snap[entry["path"], entry["name"]][1]
            for leaf, at, (shape, _) in zip([*leaves, 1], there, [*entry["leaves"], [[], "int"]], strict=False):
                view = state_side.view(buffers, at, shape)
                view.fill_(leaf) if isinstance(leaf, (bool, int, float)) else view.copy_(leaf)
        return buffers

    def facts(self, small: list[torch.Tensor], other: list[torch.Tensor]) -> dict[str, Any]:
        """Whether fp64 works, whether outputs are random, which inputs they depend on; `other`: another draw."""
        once, again = self.call(small), self.call(small, seed=6)
        is_random = self.drew or not same(once, again)
        try:
            self.call(small, wide=True)
            wide = not is_random  # another dtype draws other masks
        except Exception:  # noqa: BLE001, an operator has no fp64 form: the answer that was asked for
            wide = False
        matters = []
        for at in range(len(small)):
            try:
                changed = self.call([*small[:at], other[at], *small[at + 1 :]])
            except Exception:  # noqa: BLE001, what refuses other values looks at them
                matters.append(True)
                continue
            if [one.shape for one in once] != [one.shape for one in changed]:
                raise UnfitProblem("the shape of what its Model returns follows from its inputs' values")
            matters.append(is_random or not same(once, changed))
        return {"random": is_random, "fp64": wide, "matters": matters}

    def alternatives(self, small: list[torch.Tensor], values: list[str], wide: bool) -> list[str]:
        """Distributions that all inputs of a known kind may be drawn from together, with finite outputs."""
        import torch

        if not all(bool(wide_enough(one).isfinite().all()) for one in self.call(small, wide=wide)):
            return []
        found = []
        for name in dict.fromkeys(n for value in values for n in others(value)):
            tried = [
                alternative(wide_enough(t), name).to(t.dtype) if name in others(value) else t
                for t, value in zip(small, values, strict=True)
            ]
            try:
                outputs = self.call(tried, wide=wide)
            except Exception:  # noqa: BLE001, it refuses such values: the answer that was asked for
                continue
            if all(bool(torch.isfinite(wide_enough(one)).all()) for one in outputs):
                found.append(name)
        return found


def others(values: str) -> tuple[str, ...]:
    return ALTERNATIVES.get(values.partition(":")[0], ())


def alternative(like: torch.Tensor, name: str) -> torch.Tensor:
    """About what harness/checks/correctness.py draws under that name."""
    import torch

    if name == "uniform":
        return torch.rand_like(like)
    drawn = torch.randn_like(like)
    if name == "large":
        return drawn * 30
    if name == "zeros":
        return drawn.masked_fill(torch.rand_like(like) < 0.5, 0)
    return drawn * torch.where(torch.rand_like(like) < 0.001, 300.0, 1.0) if name == "outliers" else drawn


HIDDEN = (
    "its Model keeps state between calls that is neither a parameter, a buffer nor an attribute of numbers and tensors, so its "
    "calls cannot be judged one by one"
)


def close(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    """Whether two calls of one module may have answered the same: sums that threads divide differ in their last bits."""
    import torch

    return len(one) == len(other) and all(
        a.shape == b.shape
        and torch.allclose(wide_enough(a).double(), wide_enough(b).double(), 1e-3, 1e-5, equal_nan=True)
        for a, b in zip(one, other, strict=True)
    )


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    import torch

    return all(
        a.shape == b.shape and torch.equal(torch.nan_to_num(a), torch.nan_to_num(b))
        for a, b in zip(map(wide_enough, one), map(wide_enough, other), strict=True)
    )


def affine(found: dict[int, list[tuple[list[int], str]]], size: int) -> list[dict[str, Any]] | None:
    """Each output extent as slope * size + rest, None where that does not fit."""
    whole = found[size]
    other = min(found)
    outputs = []
    for at, (shape, dtype) in enumerate(whole):
        if any(len(s) != len(whole) or len(s[at][0]) != len(shape) for s in found.values()):
            return None
        extents = []
        for dim, extent in enumerate(shape):
            slope = (extent - found[other][at][0][dim]) // (size - other)
            rest = extent - slope * size
            if slope < 0 or any(s[at][0][dim] != slope * n + rest for n, s in found.items()):
                return None
            extents.append([slope, rest])
        outputs.append({"shape": extents, "dtype": dtype})
    return outputs


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Modules make tensors of their own in the default dtype."""
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


# --- forms: how the worker calls it ----------------------------------------------------------------------------------


class Described:
    """No calls: `found` is all that is asked."""

    def __init__(self, found: dict[str, Any]) -> None:
        self.found = found


def shape_scalar(buffer: torch.Tensor, scalar: bool) -> torch.Tensor:
    """The spec writes a tensor without dimensions as one of a single element."""
    return buffer.view(()) if scalar else buffer


class ModelAdapter:
    """Calls a module with tensors over the parent's memory and copies what it returns into the outputs.

    Behind the user's inputs come the module's state before the call, and the seed of torch's generator where it draws; behind
    what it returns its state after the call.
    """

    def __init__(
        self,
        forms: Any,
        signature: Any,
        problem: dict[str, Any],
        model: Any,
        device: str,
        another: Callable[[int], ModelAdapter] | None = None,
        weights: Callable[[int], dict[str, Any]] = lambda _seed: {},
    ) -> None:
        """`another`: makes the form of a module of the same class under that seed; `weights`: Model's state_dict() under it."""
        import torch

        self.weights = weights
        self.another = functools.cache(another) if another is not None else None
        self.copier, self.outputs, self.problem, self.device = forms.OutputCopier(), signature.outputs, problem, device
        self.refused = lambda said: forms.CandidateRefused("WRONG_SHAPE", said)
        self.inputs = signature.at(lambda kind, role: kind == "tensor" and role == "input")
        self.dtype = getattr(torch, problem["dtype"])
        self.model = model.to(device)
        if self.dtype != torch.float32:
            self.model = self.model.to(self.dtype)
        torch.set_default_dtype(self.dtype)
        self.state: Any = None
        if problem["state"]:
            self.state = state_side.ModuleState(
                problem["state"], self.model, device, lambda said: forms.CandidateRefused("INCORRECT", said)
            )
        self.draws = problem["random"] or (self.state is not None and self.state.on_host)
        """Whether a call draws from torch's generator or keeps state in Python: a graph of ours would go on with what
        torch sets only where it replays its own, or with a number that stood still."""
        self.of_host = "random" in problem["text"]
        """Whether a call may draw from Python's or numpy's generators, which takes some microseconds to seed."""
        self.stateful = self.state is not None
        if problem["exact"]:
            torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
        if problem["role"] == "reference" and self.dtype == torch.float64:
            # Ten times cuDNN's speed in a transposed convolution, twice its time in a few small ones (H200); an RNN has no other.
            torch.backends.cudnn.enabled = any(isinstance(one, torch.nn.RNNBase) for one in model.modules())
        self.rounding: Any = contextlib.nullcontext()
        if problem["role"] == "reference" and not problem["exact"] and device == "cuda":
            self.rounding = convolutions_in_tf32()
        if problem["role"] == "reference" and problem["exact"] and problem["random"]:
            self.rounding = wide_but_for_draws()
        if problem["role"] == "reference" and self.dtype == torch.float64 and problem["narrow"]:
            self.rounding = numbers_as(getattr(torch, problem["narrow"]))

    def prepare_strided(self, values: list[Any]) -> Any:
        """`prepare`, with the last two axes of each input exchanged in memory, as a transposed tensor's are."""
        strided = list(values)
        for at in self.inputs[: len(self.problem["scalar_inputs"])]:
            if values[at].dim() > 1:
                strided[at] = values[at].transpose(-1, -2).contiguous().transpose(-1, -2)
        return self.prepare(strided)

    def read_state(self, prepared: Any) -> None:
        """Write the state as it is into what a call would leave it in."""
        *_, views, after = prepared
        self.state.read(views, after)

    @contextlib.contextmanager
    def load_weights(self, seed: int) -> Iterator[str]:
        """Meanwhile Model's weights of that seed in this module, as load_state_dict() puts them; which of them it has not, or ""."""
        import torch

        own, given = self.model.state_dict(), self.weights(seed)
        lacking = next((name for name in given if name not in own or own[name].shape != given[name].shape), "")
        given = {} if lacking else given
        before = {name: own[name].clone() for name in given}
        with torch.no_grad():
            for name, value in given.items():
                own[name].copy_(value)
        try:
            yield lacking
        finally:
            with torch.no_grad():
                for name, value in before.items():
                    own[name].copy_(value)

    def prepare(self, values: list[Any]) -> Any:
        scalars = self.problem["scalar_inputs"]
        given = [shape_scalar(values[at], scalar) for at, scalar in zip(self.inputs, scalars, strict=False)]
        hidden = [values[at] for at in self.inputs[len(scalars) :]]
        seed = hidden.pop() if self.problem["random"] else None
        scalars = self.problem["scalar_outputs"]
        outputs = [
            (name, shape_scalar(values[at], scalar), inout)
            for (name, at, inout), scalar in zip(self.outputs, scalars, strict=False)
        ]
        after = [values[at] for _, at, _ in self.outputs[len(scalars) :]]
        before = self.state.prepare(hidden) if self.state else None
        views = self.state.prepare(after) if self.state else None
        return rebuilt(self.problem["arguments"], given), outputs, seed, before, views, after

    def launch(self, prepared: Any, *, goes_on: bool = False) -> Any:
        """`goes_on`: with the state that the call before has left."""
        import torch

        arguments, outputs, seed, before, views, after = prepared
        if before is not None and not goes_on:
            self.state.put(before)
        if seed is not None:
            seed_generators(int(seed), of_host=self.of_host)
        with self.rounding:
            answer = self.model(*arguments)
        returned: list[Any] = []
        try:
            pick_leaves(self.problem["returns"], answer, returned)
        except ValueError as fault:
            raise self.refused(str(fault)) from None
        returned = [as_tensor(one, self.device, self.dtype == torch.float64) for one in returned]
        if self.problem["role"] == "reference":  # ours to judge by, so nothing is asked of how it keeps its results
            # What it makes of wide inputs may be of either width: it is compared in fp64 all the same.
            returned = [
                one.detach().contiguous().to(buffer.dtype if one.is_floating_point() else one.dtype)
                for one, (_, buffer, _) in zip(returned, outputs, strict=False)
            ]
        self.copier(returned, outputs)
        if views is not None:
            self.state.read(views, after)
        if self.problem["role"] == "reference" and self.device == "cuda":
            del returned, answer
            torch.cuda.empty_cache()  # candidates are asked how much of the memory they take
            return None
        return returned


COMPARING = frozenset(("gt", "ge", "lt", "le", "eq", "ne"))
OF_NUMBERS = frozenset(
    "add sub rsub mul div floor_divide remainder fmod threshold hardshrink clamp clamp_min clamp_max hardtanh full full_like fill "  # noqa: SIM905
    "masked_fill where scalar_tensor new_full maximum minimum heaviside".split()
)
"""Operators of aten whose numbers eager torch rounds to fp32 (no sizes follow from them), and which decide or are compared."""


def numbers_as(narrow: torch.dtype) -> Any:
    """A context in which Python's floats are those that eager torch computes with: of fp32, and what is compared with a tensor
    of its dtype, `narrow`.

    In fp64 an input of fp32's 0.3 is larger than 0.3, and what eager decides by x > 0.3 comes out otherwise.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    def narrowed(value: Any, dtype: torch.dtype) -> Any:
        if type(value) is not float:
            return value
        near = float(torch.tensor(value, dtype=dtype))
        # What torch.finfo says of fp64 is no number of eager's.
        return near if math.isfinite(near) and bool(near) == bool(value) else value

    class Narrowed(TorchDispatchMode):
        def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            name = operator._schema.name.removeprefix("aten::").rstrip("_")
            if name == "lift_fresh" and args[0].dtype == torch.float64:  # torch.tensor(0.3)
                return operator(args[0].to(torch.float32).to(torch.float64))
            if name in COMPARING or name in OF_NUMBERS:
                dtype = narrow if name in COMPARING else torch.float32
                args = tuple(narrowed(one, dtype) for one in args)
                kwargs = {key: narrowed(one, dtype) for key, one in kwargs.items()}
            return operator(*args, **kwargs)

    return Narrowed()


def convolutions_in_tf32() -> Any:
    """A context in which fp32 convolutions take operands of TF32, as torch's defaults let them on a GPU.

    cuDNN does so or not by size and memory format: a small one is fp32 in eager torch, and TF32 as torch.compile lays it out.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    def rounded(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dtype != torch.float32:
            return tensor
        ten_bits = ((tensor.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)
        return torch.where(tensor.isfinite(), ten_bits, tensor)

    class Rounding(TorchDispatchMode):
        def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if operator is torch.ops.aten.convolution.default:
                args = (rounded(args[0]), rounded(args[1]), *args[2:])
            return operator(*args, **kwargs or {})

    return Rounding()


def wide_but_for_draws() -> Any:
    """A context in which every operator of fp32 tensors computes in fp64 and rounds its result, but for those that draw.

    What a module drops depends on the dtype that it is asked in, so one that draws has no fp64 form; its sums have.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_map

    def cast(given: Any, before: torch.dtype, after: torch.dtype) -> Any:
        return tree_map(
            lambda one: one.to(after) if isinstance(one, torch.Tensor) and one.dtype == before else one, given
        )

    class Wide(TorchDispatchMode):
        def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            draws = torch.Tag.nondeterministic_seeded in operator.tags
            if draws or operator._schema.is_mutable or operator.is_view or kwargs.get("dtype") is not None:
                return operator(*args, **kwargs)
            try:
                wide = operator(*cast(args, torch.float32, torch.float64), **cast(kwargs, torch.float32, torch.float64))
            except RuntimeError:  # it has no fp64 form
                return operator(*args, **kwargs)
            return cast(wide, torch.float64, torch.float32)

    return Wide()


FIRST_STEPS, LATE_S = 3, 0.5
"""Calls of Model that are always made for a state, and seconds that more of them may take."""


class InputsAdapter:
    """Draws inputs by get_inputs(), those at the places `only`, into the outputs, and states that Model comes to; the one input is
    the seed."""

    def __init__(self, namespace: types.ModuleType, signature: Any, problem: dict[str, Any]) -> None:
        self.namespace, self.outputs, self.only = namespace, signature.outputs, problem["only"]
        self.problem, self.steps = problem, problem["steps"]

    def prepare(self, values: list[Any]) -> list[Any]:
        return values

    def launch(self, values: list[Any]) -> None:
        seed = int(values[0])
        buffers = [values[at] for _, at, _ in self.outputs]
        if self.only:
            every, _ = inputs(self.namespace, seed)
            for at, buffer in zip(self.only, buffers, strict=False):
                rows = every[at].reshape(-1)[: buffer.numel()]  # fewer leading rows lie in front
                buffer.view(-1).copy_(rows)
        if self.steps is not None:
            self._draw_state(seed, buffers[len(self.only) :])

    def _draw_state(self, seed: int, buffers: list[torch.Tensor]) -> None:
        """The state behind so many calls of inputs of their own, of fewer where they take longer than LATE_S or it would not be finite."""
        import torch

        initial, began = getattr(self.namespace, "get_init_inputs", list), time.monotonic()
        model = construct(self.namespace, "Model", initial, self.problem["seed"])
        state = state_side.ModuleState(self.problem["state"], model, "cpu", UnfitProblem)
        views = state.prepare(buffers)
        for step in range(self.steps):
            if step >= FIRST_STEPS:
                if time.monotonic() - began > LATE_S:
                    break
                before = [buffer.clone() for buffer in buffers]
            given, form = inputs(self.namespace, seed + 1 + step)
            with torch.no_grad():
                model(*rebuilt(form, given))
            if step >= FIRST_STEPS - 1:
                state.read(views, buffers)
                if step >= FIRST_STEPS and not all(bool(one.isfinite().all()) for one in buffers):
                    for buffer, finite in zip(buffers, before, strict=True):
                        buffer.copy_(finite)
                    return
        state.read(views, buffers)


def form(forms: Any, protocol_side: Any, message: dict[str, Any], signature: Any) -> Any:
    """What the message's `problem` asks for, by the modules forms and kernelbench. Raises Refused."""
    import torch

    problem = message["problem"]
    if not problem.get("compile"):
        # A submodule under torch.compile is eager here: its compilers are programs, which no worker of a candidate may start.
        os.environ["TORCHDYNAMO_DISABLE"] = "1"
    folder = Path.cwd()
    path = folder / "problem.py"
    path.write_text(problem["text"])
    device = "cuda" if message["gpu"] else "cpu"
    if problem["role"] == "describe":
        try:
            with stage("it cannot be imported"):
                namespace = forms.execute(path)
            return Described(describe(namespace))
        except UnfitProblem as refusal:
            return Described({"unfit": str(refusal)})
    namespace = forms.execute(path)
    if problem["role"] == "inputs":
        return InputsAdapter(namespace, signature, problem)
    if problem["role"] == "protocol":
        theirs = None if problem["eager"] else lambda: forms.load_module(Path(message["path"]), device)
        return protocol_side.ProtocolAdapter(forms, problem, namespace, theirs, signature, device)
    initial = getattr(namespace, "get_init_inputs", list)
    ours = problem["role"] == "reference" or problem["eager"]
    module = namespace if ours else forms.load_module(Path(message["path"]), device)

    def made(seed: int, another: Callable[[int], ModelAdapter] | None = None) -> ModelAdapter:
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float32)  # as the first one was made
        try:
            with torch.device(device if problem["made_there"] else "cpu"):
                model = construct(module, "Model" if ours else "ModelNew", initial, seed)
        finally:
            torch.set_default_dtype(before)
        if problem["eager"] and problem["compile"]:
            model = compile_model(model, problem["compile"])
        return ModelAdapter(forms, signature, problem, model, device, another, weights)

    def weights(seed: int) -> dict[str, Any]:
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float32)
        try:
            with torch.device(device if problem["made_there"] else "cpu"):
                return dict(construct(namespace, "Model", initial, seed).state_dict())
        finally:
            torch.set_default_dtype(before)

    return made(problem["seed"], made)


def compile_model(model: Any, mode: str) -> Any:
    """torch.compile of Model. Its compilers run in this box, one after another, and a first call waits for them.

    Each size gets a compilation of its own: for any size at once is slower at each, and marks what it returns.
    """
    import torch
    import torch._dynamo.config as tracing
    import torch._inductor.config as config

    config.compile_threads = 1
    config.cpp_cache_precompile_headers = False
    tracing.recompile_limit = 64
    tracing.fail_on_recompile_limit_hit = True  # else it were eager from there on
    return torch.compile(model, mode=mode, dynamic=False)


# --- whose kernels ---------------------------------------------------------------------------------------------------


class Ledger:
    """In place of forms.Watch where libraries may work: refuses nothing, notes the GPU's kernels when asked."""

    def __init__(self) -> None:
        self.kernels: list[list[Any]] | None = None

    def profile(self, run: Callable[[], None], *, kernels: bool) -> None:
        self.kernels = None
        if not kernels:
            run()
            return
        from torch.autograd import DeviceType
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CUDA]) as profiled:
            run()
        times: dict[str, float] = {}
        for event in profiled.events():
            if event.device_type == DeviceType.CUDA:
                times[event.name[:160]] = times.get(event.name[:160], 0.0) + event.time_range.elapsed_us()
        longest = sorted(times.items(), key=lambda one: -one[1])[:400]
        self.kernels = [[name, spent] for name, spent in longest]
