"""What is wrong with a kernel's folder, found without a GPU: `run.py check`."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Literal

from harness import backends, device
from harness.backends import python_module
from harness.checks.cases import make_case
from harness.checks.drawing import distributions
from harness.checks.expected import Right
from harness.device import DeviceError
from harness.evaluate import Evaluator
from harness.farside.forms import take_arguments, take_inputs
from harness.farside.triton_calls import uses_triton
from harness.judge.builds import Brought, compile_build
from harness.judge.session import MissingTool
from harness.judge.verification import check_once, first_error
from harness.problems import pytorch
from harness.records import Build, DeviceFacts
from harness.store import Store, digest
from kernels.catalog import Kernel, KernelError
from kernels.spec import HEADER_SUFFIXES, Device, Spec, Workload, expression
from nodes.policies.rules import RulesPolicy
from nodes.rewrites import emulation
from nodes.roles import CoderRequest, Finding, PlannerRequest

SMALL_ELEMENTS = 1 << 20
EMULATED_ELEMENTS = 70_000
"""All tensors together; the emulation takes a microsecond or so for each step of each thread."""
NOT_INTERPRETED = {"bfloat16", "float8_e4m3fn", "float8_e5m2"}
"""Dtypes in which Triton's interpreter, which is numpy's, multiplies wrongly."""
FEW_ROWS = 3
HOPPER = DeviceFacts(
    device="cuda",
    name="a Hopper GPU that is not here",
    architecture="sm_90",
    units=132,
    last_level_cache_bytes=50 << 20,
)


@dataclass(frozen=True)
class CheckLine:
    """One line of the report."""

    kind: Literal["right", "fault", "skipped"]
    what: str
    """Which part of the folder."""
    said: str


def check(name: str, only: Device | None, say: Callable[[str], None]) -> Iterator[CheckLine]:
    """Everything about the folder, or a PyTorch module's file or definition, part by part, faults first within each. `only`: look at that
    device's baselines alone."""
    try:
        kernel = pytorch.load(name, "cpu")
    except KernelError as error:
        yield CheckLine("fault", "spec", str(error))
        return
    with closing(kernel):
        yield from _parts(kernel, only, say)


def _parts(kernel: Kernel, only: Device | None, say: Callable[[str], None]) -> Iterator[CheckLine]:
    try:
        brought = kernel.headers
    except KernelError as error:
        yield CheckLine("fault", "spec", str(error))
        return
    spec = kernel.spec
    sizes = sum(not w.held_out for w in spec.workloads), sum(w.held_out for w in spec.workloads)
    more = f", {len(brought)} headers" if brought else ""
    yield CheckLine(
        "right", "spec", f"{len(spec.arguments)} arguments, {sizes[0]} workloads and {sizes[1]} held out{more}"
    )
    small, faults = {}, []
    for dtype in spec.dtypes:
        say(f"drawing {dtype}")
        found = list(_small(kernel, dtype))
        small[dtype] = [one for one in found if isinstance(one, Workload)]
        faults += [one for one in found if isinstance(one, CheckLine)]
    yield from faults
    if not faults:
        labels = ", ".join(workload.label for few in small.values() for workload in few)
        yield CheckLine(
            "right",
            "reference",
            f"inputs drawn from {len(distributions(spec, {}))} distributions, and right for them, at {labels}",
        )
    if isinstance(kernel, pytorch.Problem):
        assert kernel.source is not None and kernel.description is not None
        clauses = ("its own Model, by eager torch", *kernel.source.says(spec, kernel.description))
        yield CheckLine("right", "baseline", "; ".join(clauses))
        return
    devices: tuple[Device, ...] = ("cuda", "cpu")
    baselines = [
        (on, *one) for on in devices if only in (on, None) and _has(spec, on) for one in kernel.baselines(on).items()
    ]
    if not baselines:
        yield CheckLine("fault", "baseline", f"{kernel.folder} has no baseline for {only or 'cuda, and none for cpu'}")
    for on, _name, path in baselines:
        say(f"building {path.name}")
        yield from _baseline(kernel, on, path, [] if faults else [w for few in small.values() for w in few], say)


def _has(spec: Spec, on: Device) -> bool:
    return any(on in workload.devices for workload in spec.workloads)


def _elements(spec: Spec, workload: Workload) -> int:
    total = 0
    for tensor in spec.tensors:
        count = 1
        for extent in tensor.shape:
            count *= expression(extent, workload.axes)
        total += count
    return total


def _small(kernel: Kernel, dtype: str) -> Iterator[Workload | CheckLine]:
    """The smallest workload of the dtype, and one of few rows if that is large; what is wrong with the inputs or the reference there."""
    spec = kernel.spec
    listed = sorted((w for w in spec.workloads if w.dtype == dtype), key=lambda w: _elements(spec, w))
    if not listed:
        yield CheckLine("fault", "spec", f"workloads: none is of {dtype}, which dtypes lists")
        return
    chosen = listed[:1]
    if (
        not spec.problem
        and _elements(spec, listed[0]) > EMULATED_ELEMENTS
        and (fewer := _fewer_rows(spec, listed[0])) is not None
    ):
        chosen = [fewer]
    for workload in chosen:
        if _elements(spec, workload) > SMALL_ELEMENTS * 64:
            yield CheckLine(
                "skipped",
                "reference",
                f"{workload.label} is the smallest size of {dtype}, and too large to be tried here",
            )
            return
        for values in distributions(spec, {}):
            try:
                case = make_case(kernel, workload, values, {}, "cpu")
            except (KernelError, ValueError) as error:
                yield CheckLine("fault", "reference", f"{error} (inputs: {values})")
                return
            assert isinstance(case.expected, Right), "no size as small is judged in slices"
            for name, right in case.expected.items():
                value = right.value
                # Of a few elements a mask may leave none.
                is_lost = value.isnan() if value.numel() < FEW_ELEMENTS else ~value.isfinite()
                if values not in ("infinities", "bits") and value.numel() and bool(is_lost.all()):
                    yield CheckLine(
                        "fault", "reference", f"{name} has no finite value at {workload.label}, inputs: {values}"
                    )
                    return
        yield workload


FEW_ELEMENTS = 64
"""Of an output, up to which all of them may be infinite by chance."""


def _fewer_rows(spec: Spec, workload: Workload) -> Workload | None:
    """Axes cut down until it is small, where the spec's shapes allow it: of the first output, then rows of the other tensors."""
    cut = workload
    for axis in (*spec.outputs[0].shape, *(extent for tensor in spec.tensors for extent in tensor.shape[:1])):
        if (
            axis not in spec.axes
            or cut.axes[axis] <= FEW_ROWS
            or (cut != workload and _elements(spec, cut) <= EMULATED_ELEMENTS)
        ):
            continue
        fewer = cut.model_copy(update={"axes": {**cut.axes, axis: FEW_ROWS}, "timed": False})
        try:
            Spec.model_validate(spec.model_copy(update={"workloads": (*spec.workloads, fewer)}).model_dump())
        except ValueError:
            continue
        cut = fewer
        if axis in spec.outputs[0].shape and _elements(spec, cut) <= SMALL_ELEMENTS * 64:
            break
    return cut if cut != workload else None


def _baseline(
    kernel: Kernel, on: Device, path: Path, small: list[Workload], say: Callable[[str], None]
) -> Iterator[CheckLine]:
    text = path.read_text(errors="replace")
    try:
        module = backends.for_source(text, on)
    except ValueError as error:
        yield CheckLine("fault", path.name, str(error))
        return
    if module is python_module and (said := _misfit(kernel.spec, text)):
        yield CheckLine("fault", path.name, said)
        return
    facts = _facts(on)
    if missing := module.why_unavailable():
        yield CheckLine("skipped", path.name, f"it was not compiled: {missing}")
    else:
        with tempfile.TemporaryDirectory(prefix="astrolabe-") as folder:
            build = _built(kernel, on, text, module, facts, Path(folder))
            if not build.ok and (missing := re.search(r"error: (\w+ is not installed .*)", build.log)):
                yield CheckLine("skipped", path.name, f"it was not compiled: {missing[1]}")
                return
            if not build.ok:
                if re.search(r"cannot find -l(c10|torch)_cuda", build.log):
                    yield CheckLine("skipped", path.name, "it was compiled and not linked: torch has no CUDA here")
                    return
                said = first_error(build.log)
                if "the compiler was killed: it took longer" in build.log:
                    yield CheckLine(
                        "skipped",
                        path.name,
                        f"whether it compiles was not found out: {said.removeprefix('error: ')}; other work slows it down",
                    )
                    return
                if missing := re.search(r"/torch/include/.*fatal error: (\S+): No such file", said):
                    said = f"torch's own headers need {missing[1]}, which is not here (torch with CUDA, and a whole CUDA toolkit, have it)"
                    yield CheckLine("skipped", path.name, f"it was not compiled: {said}")
                else:
                    yield CheckLine("fault", path.name, f"it does not compile: {said}")
                return
            if missing := _undefined(build.artefact, module):
                yield CheckLine(
                    "fault",
                    path.name,
                    f"it needs {missing}, which no file here defines: bind what does not call it (build.binding), or define it",
                )
                return
            yield CheckLine(
                "right",
                path.name,
                f"compiled by {build.backend} in {build.seconds:.1f} s"
                + (f" for {facts.architecture}" if on == "cuda" else ""),
            )
    if small:
        say(f"running {path.name}")
        yield _ran(kernel, on, path.name, text, module, small, is_here=facts is not HOPPER)
    if on == "cuda" and module.__name__.endswith(".cuda"):
        say(f"planning for {path.name}")
        yield _planned(kernel.spec, path.name, text, facts)


def _misfit(spec: Spec, text: str) -> str:
    """What a Python function of the entry's name takes that the spec does not give it, "" where it is called as it wants, or how is only seen when it is."""
    nodes = ast.parse(text).body
    function = next((one for one in nodes if isinstance(one, ast.FunctionDef) and one.name == spec.entry_name), None)
    if function is None or function.args.vararg or function.args.kwarg or any(one.in_list for one in spec.tensors):
        return ""
    taken = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
    needed = len(taken) - len(function.args.defaults)
    names, kinds = [one.name for one in spec.arguments], [one.kind for one in spec.arguments]
    roles = [getattr(one, "role", "") for one in spec.arguments]
    if take_inputs(taken, needed, [list(one) for one in zip(kinds, names, roles, strict=True)]) is not None:
        return ""
    picked = take_arguments(taken, needed, names, list(kinds))
    if picked is not None and all(names[at] == one or one not in names for at, one in zip(picked, taken, strict=False)):
        return ""
    absent = [one for one in taken[:needed] if one not in names] or taken
    return f"{function.name} takes {', '.join(absent)}, which the spec does not give it: its arguments go in their order, or inputs and scalars by their names"


def _undefined(artefact: str, module: ModuleType) -> str:
    """Functions that a library of plain entries needs of none that it was linked with, of an engine's other files mostly. "" without `nm`."""
    if not getattr(module, "ENTRIES", False) or shutil.which("nm") is None:
        return ""
    said = subprocess.run(
        ["nm", "-D", "-C", "--undefined-only", artefact], capture_output=True, text=True, check=False
    ).stdout
    names = [line.split(" U ", 1)[1] for line in said.splitlines() if " U " in line and "@" not in line]
    return ", ".join(names[:3])


def _facts(on: Device) -> DeviceFacts:
    if on == "cuda":
        try:
            device.choose("cuda")
        except DeviceError:
            return HOPPER
    return device.facts(on)


def _built(kernel: Kernel, on: Device, text: str, module: ModuleType, facts: DeviceFacts, folder: Path) -> Build:
    entry = backends.entry_of(module, kernel.spec, on)
    settings = kernel.spec.build
    brought = (
        Brought(settings.flags_on(on), settings.include, kernel.headers) if hasattr(module, "FLAGS") else Brought()
    )
    return compile_build(digest(text), text, module, folder, facts, brought, **entry)


class _Emulating(Evaluator):
    """Judges CUDA sources by the emulation, as if they were a CPU's."""

    def brought(self, candidate: str, module: ModuleType) -> Brought:
        if candidate in self.harness_sources:
            return Brought()
        settings = self.spec.build
        return Brought((*emulation.FLAGS, *settings.flags_on("cpu")), settings.include, self._headers)

    @cached_property
    def _headers(self) -> dict[str, bytes]:
        """The emulation's and, as it takes them, the kernel's."""
        headers = {path.name: path.read_bytes() for path in emulation.FOLDER.glob("*.h")}
        for name, text in self.kernel.headers.items():
            headers[name] = _translated(text) if Path(name).suffix in HEADER_SUFFIXES else text
        return headers

    @cached_property
    def contents(self) -> dict[str, bytes]:  # type: ignore[override]
        return {digest(text): text for text in self._headers.values()}


def _translated(text: bytes) -> bytes:
    """A header as the emulation takes it."""
    try:
        return emulation.host_source(text.decode()).encode()
    except Exception:  # noqa: BLE001, a header that is not understood is taken as it stands: the compiler says what it thinks of it
        return text


def _ran(
    kernel: Kernel, on: Device, name: str, text: str, module: ModuleType, small: list[Workload], *, is_here: bool
) -> CheckLine:
    """`is_here`: whether the device is; of a GPU that is not, a CPU does what it can."""
    interpreted = not is_here and module is python_module and uses_triton(text)
    emulated, spec = not is_here and not interpreted, kernel.spec
    how = "emulated, " if emulated else "in Triton's interpreter, " if interpreted else ""
    if emulated and not module.__name__.endswith(".cuda"):
        return CheckLine(
            "skipped",
            name,
            f"it was not run: no GPU is here, and the emulation does not take {module.__name__.rpartition('.')[2]}",
        )
    if interpreted:
        small = [
            workload for workload in small if not NOT_INTERPRETED & {spec.dtype(one, workload) for one in spec.tensors}
        ]
        if not small:
            return CheckLine(
                "skipped", name, "it was not run: Triton's interpreter reckons in no bfloat16 and no float8"
            )
    if how:
        small = [workload for workload in small if _elements(kernel.spec, workload) <= EMULATED_ELEMENTS]
        if not small:
            return CheckLine(
                "skipped",
                name,
                f"it was not run: no size has {EMULATED_ELEMENTS:,} elements or fewer, which the emulation takes",
            )
    if emulated:
        try:
            entries = backends.entry_of(module, kernel.spec, on).get("entries", "")
            text = emulation.host_source(backends.with_entries(text, entries)).replace(
                "cuda_emulation.h", "emulated_more.h"
            )
        except Exception as error:  # noqa: BLE001, a text that it was not written for
            return CheckLine("skipped", name, f"it was not run: the emulation does not understand it ({error})")
    where: Device = on if is_here else "cpu"
    small = [workload.model_copy(update={"devices": (where,), "held_out": False, "timed": True}) for workload in small]
    judged = replace(kernel, spec=kernel.spec.model_copy(update={"workloads": tuple(small)}))
    with tempfile.TemporaryDirectory(prefix="astrolabe-") as folder, closing(judged):
        try:
            with (_Emulating if emulated else Evaluator)(judged, where, Store(Path(folder))) as evaluator:
                build = evaluator.build(evaluator.store.put(text))
                if not build.ok:
                    kind: Literal["fault", "skipped"] = "skipped" if emulated else "fault"
                    return CheckLine(
                        kind, name, f"it was not run: the emulation lacks something: {first_error(build.log)}"
                    )
                for workload in small:
                    if fault := check_once(evaluator, build, workload):
                        if (
                            interpreted and fault.outcome == "RUNTIME_ERROR"
                        ):  # of its host function mostly, which asks for a GPU
                            return CheckLine("skipped", name, f"it was not run: {how}{fault.reason}")
                        return CheckLine("fault", name, f"{how}{fault.reason}")
        except (MissingTool, KernelError) as error:
            return CheckLine("skipped", name, f"it was not run: {error}")
    labels = ", ".join(workload.label for workload in small)
    return CheckLine("right", name, f"{how}it computes what the reference says at {labels}")


def _planned(spec: Spec, name: str, text: str, facts: DeviceFacts) -> CheckLine:
    """The first plan of the rules, which need neither a GPU nor a model."""
    policy, finding = RulesPolicy(), Finding(bound="latency", summary="")
    shown = spec.model_copy(update={"workloads": tuple(w for w in spec.workloads if not w.held_out)})
    request = PlannerRequest(
        spec=shown, device=facts, finding=finding, incumbent="baseline", source=text, attempts=(), sources={"baseline": text},
    )  # fmt: skip
    plans = policy.planner(request)
    if not plans:
        return CheckLine("skipped", name, "no rewrite knows this form: the rules will have no first plan, a model may")
    answer = policy.coder(CoderRequest(spec=shown, device=facts, finding=finding, plan=plans[0], source=text))
    if not answer.source:
        return CheckLine(
            "skipped", name, f"the first plan ({', '.join(plans[0].steps)}) does not apply: {answer.reason}"
        )
    return CheckLine("right", name, f"first plan: {', '.join(plans[0].steps)}")
