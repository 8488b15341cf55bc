"""KernelBench's problems: a Python file with `Model`, `get_inputs()` and `get_init_inputs()` (arXiv 2502.10517).

A problem becomes a spec of the tensors that `forward` takes and returns. Its weights are no arguments: ModelNew makes its
own under Model's seed and may lay them out as it likes. The one axis is `lead`, the leading size of the inputs.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)

from kernels.catalog import KernelError, one_sentence
from kernels.spec import (
    AXIS_VALUES,
    DTYPE_BYTES,
    OWN_VALUES,
    Argument,
    Dtype,
    Frozen,
    Size,
    Spec,
    Tensor,
    Workload,
    check_values,
)

MOST_BYTES = 4 << 20
"""A problem's text; KernelBench's longest is 12 KB."""
MOST_DIMENSIONS = 16


class Title(Frozen):
    """Where a problem stands in its suite; level and number are 0 where its path does not say."""

    level: int
    number: int
    name: str

    @property
    def label(self) -> str:
        return f"level {self.level}, {self.number} {self.name}" if self.number else self.name


Extent = Annotated[int, Field(ge=1, le=2**40)]


def _drawable(text: str) -> str:
    """One of OWN_VALUES, or a distribution that needs no axis: the box knows of no axes."""
    if text not in OWN_VALUES and text.partition(":")[0] in (*AXIS_VALUES, *OWN_VALUES):
        raise ValueError(f"{text[:80]!r} is no distribution of a problem's input")
    return text if text in OWN_VALUES else check_values(text)


class ValueTable(Frozen):
    """The values that an input's elements have, and how often."""

    values: tuple[float | int, ...] = Field(min_length=2, max_length=1 << 16)
    shares: tuple[Annotated[float, Field(ge=0, le=1)], ...]

    @model_validator(mode="after")
    def _fits(self) -> ValueTable:
        if len(self.shares) != len(self.values) or not 0.99 < sum(self.shares) < 1.01:
            raise ValueError("a table's shares must be as many as its values, and sum to one")
        return self


class Input(Frozen):
    shape: tuple[Extent, ...] = Field(max_length=MOST_DIMENSIONS)
    dtype: Dtype
    leading: bool
    """Whether its first dimension is the one that can have other sizes."""
    values: tuple[Annotated[str, AfterValidator(_drawable)], ...] = Field(min_length=1, max_length=20)
    """How it is drawn: one of OWN_VALUES, else distributions of kernels.spec.Values."""
    matters: bool
    """Whether another draw of it changes any output."""
    table: ValueTable | None = None
    """Values of `among` where they are few; else they are those of draws."""


class Output(Frozen):
    shape: tuple[tuple[Annotated[int, Field(ge=0, le=2**40)], Annotated[int, Field(ge=-(2**40), le=2**40)]], ...] = (
        Field(max_length=MOST_DIMENSIONS)
    )
    """(slope, rest) of each dimension, whose size is slope * lead + rest."""
    dtype: Dtype


ROW = 64
"""Elements of a row, as in harness/farside/module_state.py."""


class StateEntry(Frozen):
    """One parameter, buffer or attribute of the state, as the box says it: what is done with it is done there."""

    path: str = Field(max_length=1000)
    name: str = Field(max_length=1000)
    form: Any
    leaves: tuple[tuple[tuple[Annotated[int, Field(ge=0, le=2**40)], ...], Annotated[str, Field(max_length=20)]], ...]
    """[shape, dtype] of each, a number's dtype its type in Python."""
    initial: Any = None
    """What it is before the first call; not given where that is of the same kind."""
    apart: bool = False
    """Whether it begins in memory of another, and no longer lies there behind a call."""

    @property
    def label(self) -> str:
        return ".".join(filter(None, (self.path, self.name)))[:80]

    @model_serializer(mode="wrap")
    def _leave_out_what_is_not_given(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Nothing before the first call is null, the same kind is no `initial` at all: a record that was stored or sent says which."""
        found = dump(self)
        if "initial" not in self.model_fields_set:
            found.pop("initial", None)
        return found

    def describe_for_box(self) -> dict[str, Any]:
        return self.model_dump(mode="json")


class Description(Frozen):
    """What a problem takes and returns, found by executing it in the box."""

    arguments: Any
    """The nest that get_inputs() returns, tensors by number (harness/farside/nest.py, `flatten`)."""
    inputs: tuple[Input, ...] = Field(max_length=200)
    outputs: tuple[Output, ...] = Field(min_length=1, max_length=200)
    sizes: tuple[Extent, ...] = Field(max_length=20)
    """Other leading sizes that the module takes, as tried; empty where none was found."""
    alternatives: tuple[Annotated[str, AfterValidator(_drawable)], ...] = Field(max_length=20)
    """Other distributions with which its outputs stay finite."""
    returns: Any = None
    """The structure of what it returns (harness/farside/nest.py, `outline`)."""
    changed: tuple[Annotated[int, Field(ge=0, lt=200)], ...] = Field(default=(), max_length=200)
    """Inputs that a call changes: the last outputs are what they are after it."""
    state: tuple[StateEntry, ...] = Field(default=(), max_length=2000)
    """What its calls change beside that (harness/farside/module_state.py)."""
    groups: tuple[tuple[Dtype, Annotated[int, Field(ge=1, le=2**34)]], ...] = Field(default=(), max_length=8)
    """(dtype, rows of ROW) of each tensor that the state travels in."""
    fp64: bool
    random: bool
    weight_bytes: int = Field(ge=0)
    anywhere: bool = False
    """Whether Model's constructor works on any device."""

    @property
    def lead(self) -> int:
        """The leading size as shipped; 1 where the sizes are fixed."""
        return next((one.shape[0] for one in self.inputs if one.leading), 1)


def takes(path: Path) -> bool:
    if path.suffix != ".py" or not path.is_file() or path.stat().st_size > MOST_BYTES:
        return False
    text = path.read_text(encoding="utf-8", errors="replace")
    return all(
        re.search(rf"^(?:(?:class|def) {name}\b|{name}\b *[:=]|from .* import .*\b{name}\b)", text, re.MULTILINE)
        for name in ("Model", "get_inputs")
    )


def title(path: Path) -> Title:
    level = re.fullmatch(r"level_?(\d+)", path.parent.name)
    number = re.match(r"(\d+)_(.+)", path.stem)
    return Title(
        level=int(level[1]) if level else 0,
        number=int(number[1]) if number else 0,
        name=(number[2] if number else path.stem).strip("_")[:100] or "problem",
    )


@dataclass(frozen=True)
class ProblemFile:
    """One problem's file, as kernels/importers says."""

    path: Path
    module: str
    kernelbench: bool = True

    @property
    def title(self) -> Title:
        return title(self.path)

    @property
    def files(self) -> tuple[Path, ...]:
        return (self.path,)

    def check_answer(self, answer: object) -> Description:
        return check_description(answer, self.path)

    def spec(self, description: Description, token: str, *, most_bytes: int) -> Spec:
        try:
            return spec(self.title, description, token, most_bytes=most_bytes)
        except ValidationError as error:
            raise nonsense(self.path, error) from None

    def draw_sizes(self, workload: Workload, description: Description) -> Workload:
        return workload.model_copy(update={"axes": {"lead": description.lead}, "held_out": False, "timed": True})

    def module_at(self, workload: Workload) -> str:
        return self.module

    def says(self, spec: Spec, description: Description) -> tuple[str, ...]:
        lead = spec.workloads[0].axes["lead"]
        held = [w.axes["lead"] for w in spec.workloads if w.held_out]
        said = []
        if lead != description.lead:
            said.append(f"leading size {lead} in place of {description.lead}, which does not fit this device")
        if held:
            said.append(f"held out: leading sizes {', '.join(map(str, held))}")
        else:
            said.append("no other leading size was found that the module takes, so held out are other draws only")
        said += says_of_state(description)
        if description.alternatives:
            said.append(f"values also {', '.join(description.alternatives)}")
        return tuple(said)


def read(path: Path) -> ProblemFile:
    """Raises KernelError."""
    return ProblemFile(path, text_of(path))


def text_of(path: Path) -> str:
    """A file's text. Raises KernelError."""
    try:
        return path.read_text(encoding="utf-8-sig")  # as Python reads it
    except (OSError, UnicodeDecodeError) as error:
        raise KernelError(f"{path} cannot be read: {error}") from None


def check_description(answer: object, path: Path) -> Description:
    if isinstance(answer, dict) and "unfit" in answer:
        said = " ".join(str(answer["unfit"]).split())[:500]
        missing = re.search(r"No module named '(\w+)'", said)
        if missing and (path.parent / f"{missing[1]}.py").is_file():
            said += f". {missing[1]}.py beside it is not read: a problem is one file, which has all that it needs"
        raise KernelError(f"{path} is no problem that can be worked on: {said}")
    try:
        return Description.model_validate_json(json.dumps(answer))
    except (ValidationError, TypeError, ValueError) as error:
        raise nonsense(path, error) from None


def nonsense(path: Path, error: Exception) -> KernelError:
    said = one_sentence(error) if isinstance(error, ValidationError) else str(error).splitlines()[0]
    return KernelError(f"{path}: what it says of itself makes no sense ({said})")


def spec_name(found: Title) -> str:
    plain = re.sub(r"[^a-z0-9]+", "_", found.name.lower()).strip("_") or "problem"
    start = f"l{found.level}_{found.number}_" if found.number else "p_"
    return (start + plain)[:64].rstrip("_")


def spec(found: Title, description: Description, token: str, *, most_bytes: int) -> Spec:
    """The spec. `token` names the problem's own generator in `given:<token>_<input>`; a workload whose tensors take more
    than `most_bytes` is replaced by the largest half, quarter, ... of its leading size that does not.

    Raises KernelError where none fits.
    """
    main = _main_dtype(description)
    tensors: list[Argument] = []
    for at, one in enumerate(description.inputs):
        first, *others = one.values
        values = [f"{first}:{token}_{at}" if first in OWN_VALUES else first]
        values += [name for name in others if name in description.alternatives]
        shape = tuple(("lead" if one.leading and not dim else str(extent)) for dim, extent in enumerate(one.shape))
        tensors.append(
            Tensor(
                name=f"input_{at}", role="input", shape=shape or ("1",), dtype="T" if one.dtype == main else one.dtype,
                values=tuple(values), touched=None if one.matters else "1",
            )
        )  # fmt: skip
    for at, out in enumerate(description.outputs):
        extents = [f"{slope}*lead{rest:+d}" if slope else str(rest) for slope, rest in out.shape]
        dtype = "T" if out.dtype == main else out.dtype
        tensors.append(Tensor(name=f"output_{at}", role="output", shape=tuple(extents) or ("1",), dtype=dtype))
    tensors += [*hidden(description, token), Size(name="lead")]
    lead = description.lead
    whole = Workload(axes={"lead": lead}, dtype=main)
    made = Spec(
        name=spec_name(found), summary=found.label, axes=("lead",), dtypes=(main,), arguments=tuple(tensors),
        workloads=(whole,), problem=True,
    )  # fmt: skip
    shown = _fitting(made, whole, bool(description.sizes), most_bytes)
    held = tuple(
        Workload(axes={"lead": size}, dtype=main, held_out=True, timed=False)
        for size in description.sizes
        if size != shown.axes["lead"]
        and (
            size <= shown.axes["lead"]
            or _reaches(made, description, Workload(axes={"lead": size}, dtype=main), most_bytes)
        )
    )
    return made.model_copy(update={"workloads": (shown, *held)})


def hidden(description: Description, token: str) -> list[Tensor]:
    """What a call has beside a user's arguments: the module's state before it and after it, the seed of torch's generator."""
    found = []
    for at, (dtype, rows) in enumerate(description.groups):
        shape = (str(rows), str(ROW))
        values = (f"given:{token}_{len(description.inputs) + at}",)
        found.append(
            Tensor(name=f"state_{dtype}", role="input", shape=shape, dtype=dtype, values=values, constant=True)
        )
        found.append(Tensor(name=f"state_{dtype}_after", role="output", shape=shape, dtype=dtype))
    if description.random:
        found.append(
            Tensor(name="torch_seed", role="input", shape=("1",), dtype="int64", values=("integers:0:2147483648",))
        )
    return found


def says_of_state(description: Description) -> list[str]:
    """A clause for the verdict, none for a module without state."""
    if not description.state:
        return []
    names = [entry.label for entry in description.state]
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return [
        f"a call begins from a state that Model came to, and leaves one that is judged as outputs are: {', '.join(names[:4])}{more} "
        "(put in and read out within each timed call, the baseline's too)"
    ]


def _reaches(spec: Spec, description: Description, workload: Workload, most_bytes: int) -> bool:
    """Whether a size beyond those of get_inputs() can be drawn, and fits."""
    drawn = all(one.values[0] not in ("given", "near") for one in description.inputs if one.leading)
    return drawn and _held(spec, workload) <= most_bytes


def _main_dtype(description: Description) -> Dtype:
    """The float dtype that the problem computes in, the first there is; that of an integer output where there is none."""
    used = [*(one.dtype for one in description.outputs), *(one.dtype for one in description.inputs)]
    return next((dtype for dtype in used if "float" in dtype), used[0])


def _fitting(spec: Spec, whole: Workload, variable: bool, most_bytes: int) -> Workload:
    workload = whole
    while (needed := _held(spec, workload)) > most_bytes:
        if not variable or workload.axes["lead"] < 2:
            raise KernelError(
                f"{spec.name} needs more memory than there is: its tensors take {needed / 2**30:.1f} GiB, and judging them "
                f"needs many times as much (at most {most_bytes / 2**30:.1f} GiB of tensors fit here)"
            )
        workload = workload.model_copy(update={"axes": {"lead": workload.axes["lead"] // 2}})
    return workload


def _held(spec: Spec, workload: Workload) -> int:
    """Bytes of all tensors, whole: as the harness counts what judging them takes."""
    return sum(math.prod(spec.shape(t, workload.axes)) * DTYPE_BYTES[spec.dtype(t, workload)] for t in spec.tensors)
