"""A definition with its workloads, the form that flashinfer-bench and SOL-ExecBench share.

The definition names axes, inputs, outputs and holds a Python function `run` as text, the reference; a workload gives the
axes' sizes and says where each input comes from: `random`, a `scalar`, a tensor of a safetensors file, or `custom`, a
function beside `run`. It becomes a module in KernelBench's form that calls `run`, and a spec whose workloads are those.
"""

from __future__ import annotations

import base64
import keyword
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kernels.catalog import KernelError
from kernels.importers._definition import (
    MOST_STORED_BYTES,
    KernelDefinition,
    TensorForm,
    WorkloadTrace,
    evaluate_expression,
    printable,
    read_tensor,
)
from kernels.importers.kernelbench import Description, Title, hidden, nonsense
from kernels.importers.kernelbench import check_description as checked_description
from kernels.spec import DTYPE_BYTES, SIGNIFICAND_BITS, Argument, Dtype, Size, Spec, Tensor, Workload

TIMED, CHECKED, HELD_OUT = 8, 8, 8
"""Workloads that are timed, only checked, and held out, at most; the report counts the others."""


@dataclass(frozen=True)
class Definitions:
    """A definition with its workloads, as kernels/importers says."""

    path: Path
    definition: KernelDefinition
    traces: tuple[WorkloadTrace, ...]
    """Traces with the most common scalars."""
    workload_path: Path
    roots: tuple[Path, ...]
    """Folders that a safetensors path may be relative to, and that it must not leave."""
    distribution: Callable[[str, tuple[int, ...]], str] = lambda name, shape: "ordinary"
    """How a random float input of that name and shape is drawn."""
    left_out: tuple[str, ...] = ()
    kernelbench: bool = False
    title: Title = field(default_factory=lambda: Title(level=0, number=0, name=""))

    @property
    def files(self) -> tuple[Path, ...]:
        return (self.path, self.workload_path)

    @cached_property
    def by_axes(self) -> dict[tuple[int, ...], tuple[WorkloadTrace, dict[str, int]]]:
        """Sizes of the spec's axes -> the first workload with them, and all its axes."""
        found: dict[tuple[int, ...], tuple[WorkloadTrace, dict[str, int]]] = {}
        for trace in self.traces:
            sizes = self.sizes(trace)
            found.setdefault(tuple(sizes[axis] for axis in self.open_axes), (trace, sizes))
        return found

    @cached_property
    def open_axes(self) -> tuple[str, ...]:
        """The definition's axes that a workload gives, and those that follow from them and are not always the same."""
        every = [self.sizes(trace) for trace in self.traces]
        return tuple(
            name
            for name, axis in self.definition.axes.items()
            if axis.type == "var" or (axis.type == "expr" and len({sizes[name] for sizes in every}) > 1)
        )

    def sizes(self, trace: WorkloadTrace) -> dict[str, int]:
        """Every axis's size in a workload. Raises KernelError."""
        sizes: dict[str, int] = {}
        where = f"{self.workload_path}: workload {trace.uuid[:80]}"
        for name, axis in self.definition.axes.items():
            if axis.type == "const":
                sizes[name] = axis.value or 0
            elif axis.type == "var":
                if name not in trace.axes:
                    raise KernelError(f"{where} gives no size of {name}")
                sizes[name] = trace.axes[name]
        for name, axis in self.definition.axes.items():
            if axis.type == "expr":
                try:
                    sizes[name] = evaluate_expression(axis.expression or "", sizes)
                except ValueError as error:
                    raise KernelError(f"{where}: axis {name}: {error}") from None
        return sizes

    # --- names: what a spec may say --------------------------------------------------------------------------------

    @cached_property
    def names(self) -> dict[tuple[str, str], str]:
        """(role, name in the definition) -> name in the spec, all different."""
        taken: set[str] = {"one"}
        found = {}
        wanted = [*(("axis", n) for n in self.open_axes), *(("input", n) for n in self.definition.inputs)]
        for role, name in [*wanted, *(("output", n) for n in self.definition.outputs)]:
            plain = re.sub(r"[^a-z0-9_]", "_", name.lower())[:50]
            plain = plain if re.match(r"[a-z]", plain) else f"t{plain}"
            plain = f"{plain}_" if keyword.iskeyword(plain) else plain
            made, number = plain, 2
            while made in taken:
                made, number = f"{plain}_{number}", number + 1
            taken.add(made)
            found[role, name] = made
        return found

    @property
    def tensor_inputs(self) -> list[str]:
        return [name for name, one in self.definition.inputs.items() if one.shape is not None]

    def values(self, name: str) -> str:
        """How an input is drawn: `given` where a file or a function of theirs has its values."""
        kinds = {trace.inputs[name].type if name in trace.inputs else "random" for trace in self.traces}
        form = self.definition.inputs[name]
        if kinds != {"random"}:
            return "given"
        if form.values is not None:
            return form.values
        if form.dtype == "bool":
            return "integers:0:2"
        if form.dtype not in SIGNIFICAND_BITS:
            return "integers:-128:128" if form.dtype == "int8" else "integers:-1024:1024"
        first = self.sizes(self.traces[0])
        shape = tuple(first[axis] for axis in form.shape or ())
        return self.distribution(name, shape)

    # --- the module ------------------------------------------------------------------------------------------------

    @property
    def smallest(self) -> WorkloadTrace:
        def moved(one: tuple[WorkloadTrace, dict[str, int]]) -> int:
            return _bytes(self.definition, one[1])

        return min(self.by_axes.values(), key=moved)[0]

    @cached_property
    def module(self) -> str:
        return self._module(self.smallest)

    def draw_sizes(self, workload: Workload, description: Description) -> Workload:
        return workload

    def module_at(self, workload: Workload) -> str:
        return self._module(self._trace(workload))

    def _trace(self, workload: Workload) -> WorkloadTrace:
        wanted = tuple(workload.axes[self.names["axis", axis]] for axis in self.open_axes)
        if wanted not in self.by_axes:
            raise KernelError(
                f"{self.definition.name}: inputs come from files or a function of its own, and there are none at {workload.label}"
            )
        return self.by_axes[wanted][0]

    def _module(self, trace: WorkloadTrace) -> str:
        inputs = [
            [
                name,
                None if one.shape is None else list(one.shape),
                one.dtype,
                "" if one.shape is None else self.values(name),
            ]
            for name, one in self.definition.inputs.items()
        ]
        work = {
            "axes": self.sizes(trace), "scalars": dict(trace.scalars()), "stored": self._stored(trace),
            "custom": [name for name, source in trace.inputs.items() if source.type == "custom"],
        }  # fmt: skip
        tail = (Path(__file__).parent / "_traces_module.txt").read_text(encoding="utf-8")
        tail = tail.replace("PARAMETERS", ", ".join(self.definition.inputs))
        outputs = [[name, one.dtype] for name, one in self.definition.outputs.items()]
        facts = {
            "_INPUTS": inputs,
            "_OUTPUTS": outputs,
            "_CUSTOM": self.definition.custom_inputs_entrypoint,
            "_WORK": work,
        }
        return f"{self.definition.reference}\n\n\n{tail}\n" + "".join(
            f"{n} = {value!r}\n" for n, value in facts.items()
        )

    def _stored(self, trace: WorkloadTrace) -> dict[str, str]:
        """The bytes of a workload's tensors from files, as base64. Raises KernelError."""
        sizes, stored, total = self.sizes(trace), {}, 0
        for name, source in trace.inputs.items():
            form = self.definition.inputs.get(name)
            if source.type != "safetensors" or form is None or form.shape is None:
                continue
            raw = read_tensor(self._file(source.path or "", name), source.tensor_key or "", form, sizes, name)
            total += len(raw)
            if total > MOST_STORED_BYTES:
                raise KernelError(
                    f"{self.workload_path}: workload {trace.uuid[:80]} brings more than {MOST_STORED_BYTES >> 20} MiB of stored tensors"
                )
            stored[name] = base64.b64encode(raw).decode()
        return stored

    def _file(self, name: str, tensor: str) -> Path:
        """A stored file, below one of the roots. Raises KernelError."""
        where = f"{self.workload_path}: input {tensor}"
        if not name or Path(name).is_absolute() or ".." in Path(name).parts:
            raise KernelError(f"{where} names the file {name[:200]!r}: it must be a path below the data set's folder")
        for root in self.roots:
            path = (root / name).resolve()
            if path.is_file():
                if not path.is_relative_to(root.resolve()):
                    raise KernelError(f"{where} names the file {name[:200]!r}, a link that leads out of {root}")
                return path
        raise KernelError(
            f"{where} is in the file {name[:200]!r}, which is not below {' or '.join(map(str, self.roots))}"
        )

    # --- the spec --------------------------------------------------------------------------------------------------

    def check_answer(self, answer: object) -> Description:
        """Raises KernelError, also where what it takes and returns is not what the definition says."""
        found = checked_description(answer, self.path)
        sizes = self.sizes(self.smallest)
        forms = [("input", n, self.definition.inputs[n], f.shape, f.dtype)
                 for n, f in zip(self.tensor_inputs, found.inputs, strict=False)]  # fmt: skip
        at_lead = [tuple(slope * found.lead + rest for slope, rest in out.shape) for out in found.outputs]
        forms += [("output", name, form, shape, out.dtype) for (name, form), shape, out
                  in zip(self.definition.outputs.items(), at_lead, found.outputs, strict=False)]  # fmt: skip
        for role, there, count in (
            ("input", len(found.inputs), len(self.tensor_inputs)),
            ("output", len(found.outputs), len(self.definition.outputs)),
        ):
            if there != count:
                raise KernelError(f"{self.path}: run() has {there} {role} tensors, and the definition {count}")
        for role, name, form, shape, dtype in forms:
            wanted = tuple(sizes[axis] for axis in form.shape or ())
            if (wanted, form.dtype) != (shape, dtype):
                raise KernelError(
                    f"{self.path}: {role} {name} is {dtype} {list(shape)} where the definition says {form.dtype} {list(wanted)}"
                )
        return found

    def spec(self, description: Description, token: str, *, most_bytes: int) -> Spec:
        """Raises KernelError."""
        dtypes = [*(one.dtype for one in description.outputs), *(one.dtype for one in description.inputs)]
        main = next((dtype for dtype in dtypes if dtype in SIGNIFICAND_BITS), dtypes[0])
        axes = tuple(self.names["axis", axis] for axis in self.open_axes) or ("one",)
        arguments: list[Argument] = []
        for at, (name, one) in enumerate(zip(self.tensor_inputs, description.inputs, strict=True)):
            first = self.values(name)
            values = [f"given:{token}_{at}" if first == "given" else first]
            if first == "ordinary":
                values += [
                    other for other in ("uniform", "large", "zeros", "outliers") if other in description.alternatives
                ]
            shape = self._shape(self.definition.inputs[name])
            arguments.append(
                Tensor(
                    name=self.names["input", name], role="input", shape=shape,
                    dtype="T" if one.dtype == main else one.dtype, values=tuple(values), touched=None if one.matters else "1",
                    constant=all(extent.isdigit() for extent in shape),  # of one size whatever is asked for: a weight, a table
                )
            )  # fmt: skip
        for (name, form), out in zip(self.definition.outputs.items(), description.outputs, strict=True):
            dtype = "T" if out.dtype == main else out.dtype
            arguments.append(
                Tensor(name=self.names["output", name], role="output", shape=self._shape(form), dtype=dtype)
            )
        arguments += [*hidden(description, token), *(Size(name=axis) for axis in axes)]
        try:
            return Spec(
                name=_spec_name(self.definition.name), summary=_summary(self.definition), axes=axes, dtypes=(main,),
                arguments=tuple(arguments), workloads=self._workloads(main, axes), problem=True,
            )  # fmt: skip
        except ValidationError as error:
            raise nonsense(self.path, error) from None

    def _shape(self, form: TensorForm) -> tuple[str, ...]:
        sizes = self.sizes(self.traces[0])
        extents = (
            self.names["axis", axis] if axis in self.open_axes else str(sizes[axis]) for axis in form.shape or ()
        )
        return tuple(extents) or ("1",)

    def _workloads(self, dtype: Dtype, axes: tuple[str, ...]) -> tuple[Workload, ...]:
        """Smallest first: every third held out, of the others some timed, spread over their sizes."""
        every = sorted(self.by_axes.items(), key=lambda one: _bytes(self.definition, one[1][1]))
        every = [one for one in every if all(size > 0 for size in one[1][1].values())]
        if not every:
            raise KernelError(
                f"{self.workload_path}: every workload has an axis of size 0, so there is nothing to time"
            )
        held = _spread(every[1::3], HELD_OUT) if len(every) > 1 else []
        seen = [one for one in every if one not in every[1::3]] if len(every) > 1 else every
        timed = _spread(seen, TIMED)
        checked = _spread([one for one in seen if one not in timed], CHECKED)

        def made(one: tuple[tuple[int, ...], Any], **more: Any) -> Workload:
            return Workload(axes=dict(zip(axes, one[0] or (1,), strict=True)), dtype=dtype, **more)

        return (
            *(made(one) for one in timed), *(made(one, timed=False) for one in checked),
            *(made(one, held_out=True) for one in held),
        )  # fmt: skip

    def says(self, spec: Spec, description: Description) -> tuple[str, ...]:
        held = sum(workload.held_out for workload in spec.workloads)
        timed = sum(workload.timed and not workload.held_out for workload in spec.workloads)
        said = [
            f"of {len(self.traces)} workloads {timed} are timed, {len(spec.workloads) - timed - held} checked only, {held} "
            "held out; those of the same sizes count once"
        ]
        if strided := [name for name in self.definition.strided if name in self.definition.inputs]:
            said.append(
                f"{', '.join(strided)} had strides where it was captured and is contiguous here, for candidate and eager alike"
            )
        return (*said, *self.left_out)


def _bytes(definition: KernelDefinition, sizes: dict[str, int]) -> int:
    total = 0
    for form in (*definition.inputs.values(), *definition.outputs.values()):
        count = 1
        for axis in form.shape or ():
            count *= sizes[axis]
        total += count * DTYPE_BYTES[form.dtype]
    return total


def _spread(every: list[Any], most: int) -> list[Any]:
    """At most so many, the first and the last among them, evenly by place."""
    if len(every) <= most:
        return list(every)
    return [every[round(at * (len(every) - 1) / (most - 1))] for at in range(most)]


def _spec_name(name: str) -> str:
    plain = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
    return (plain if re.match("[a-z]", plain) else f"p_{plain}")[:64].rstrip("_")


def _summary(definition: KernelDefinition) -> str:
    return printable(" ".join((definition.description or "").split()), 200) or definition.name
