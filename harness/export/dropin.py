"""The way out of a run: a package that builds the winner and registers it as `torch.ops.astrolabe.<name>`.

The kernel keeps its plain C entry point and is called through ctypes (0.8 us) from an implementation registered with
torch.library (2.6 us), so that nothing of torch's headers is compiled; sizes are read from the tensors' shapes.
"""

from __future__ import annotations

import hashlib
import json
import keyword
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from harness import backends, farside
from harness.backends import cpu, cuda
from harness.checks import shipped
from harness.checks.tolerance import call_of, outputs_of
from harness.export import load_templates
from harness.judge.search import PROGRAMMATIC
from harness.store import write_atomically, write_folder
from kernels.catalog import Kernel
from kernels.spec import AXIS_VALUES, BELOW, DRAWN, Device, Scalar, Size, Spec, Tensor, Workload, expression

VERSION = "1.0"
CTYPES = {"float": "ctypes.c_float", "double": "ctypes.c_double", "int64_t": "ctypes.c_int64"}
JUDGED = "evidence/kernel"
"""Folder of a package that holds the kernel as it was judged."""
FILES = "evidence/files.json"
"""SHA-256 of each file of a package, by name."""
SOURCES = (".py", ".cu", ".cpp", ".c", ".h", ".hpp", ".cuh", ".pth", ".so")
"""Endings of files that come to run."""
JUDGING = "judging"
"""Folder of a package's tests with the files that say what is right, as the verdict says it."""
JUDGED_BY = (
    *(Path(shipped.__file__).with_name(f"{name}.py") for name in ("expected", "judging", "noise", "steps")),
    Path(farside.__file__).with_name("rounding.py"),
)
"""These, each of standard library, torch and the others."""
HEADERS = "headers"
"""Folder of a package that holds what the source includes, as it lies in the kernel's folder."""
TESTED_BYTES = 64 << 20
"""The package's own tests take workloads up to this traffic, so that they end in seconds."""
# Compiler reports that only the harness reads.
_REPORTS = {"cuda": {"-lineinfo", "-Xptxas", "-v"}, "cpu": {"-Wall", "-Wno-unknown-pragmas"}}
_TAKEN = frozenset("torch ctypes build functools hashlib os shutil subprocess tempfile annotations".split())  # noqa: SIM905


MADE = ("output", "workspace")
"""Roles of tensors that a function makes where its caller does not."""


class ExportError(Exception):
    """This winner cannot be exported; one sentence says why."""


def export(
    kernel: Kernel, source: str, evidence: dict[str, Any], to: Path, device: Device, *, baseline: str = ""
) -> list[Path]:
    """Write the package for `source`, a candidate of `kernel` that PASSED on `device`, into the folder `to`.

    `evidence`: what was measured, as JSON (a run's result.json); it is shipped, and its headline stands in the README.
    `baseline`: the text of what was 1.0x, shipped with spec and reference so that `recheck` can judge the package again.
    Returns the files. Raises ExportError for a source that is no plain C or C++ entry point, and where `to` holds files
    already.
    """
    if backends.is_python(source) or backends.uses_torch(source):
        raise ExportError("only a source with plain C entry points is exported; this one binds itself to torch already")
    if kernel.properties is not None:
        raise ExportError(
            f"{kernel.spec.name} has many right answers (properties.py), and an exported package compares with one; take "
            "the run's best file as it is"
        )
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise ExportError(f"{to} is there already and not empty; name another folder")
    kernel = replace(kernel, allowed=shipped.read(evidence.get("measured") or {}))
    context = describe(kernel.spec, device)
    context["include"] = (
        [HEADERS, *(f"{HEADERS}/{name}" for name in kernel.spec.build.include)] if kernel.headers else []
    )
    package, context["beside"] = context["package"], False
    context["programmatic"] = device == "cuda" and PROGRAMMATIC in source
    context |= {"summary": kernel.spec.summary, "version": VERSION, "headline": headline(evidence)}
    context["reference_axes"] = sorted(kernel.reference_axes())
    tested = cases(kernel.spec, device)
    context |= {
        "told_dtype": kernel.reference_asks_dtype,
        "library": kernel.spec.library or "",
        "cases": [_case(kernel, workload) for workload in tested],
        "gapped": [
            t.name for t in kernel.spec.tensors if any(math.prod(kernel.spec.shape(t, w.axes)) > 1 for w in tested)
        ],
        "inputs": inputs(kernel.spec),
        "sizes": kernel.spec.scalars,
        "most_bytes": most_bytes(kernel.spec, device),
    }
    scalars = "".join(f", {name}={value!r}" for name, value in kernel.spec.scalars.items())
    context |= {"draws": {one["name"]: one["draw"] for one in context["inputs"]}, "scalar_values": scalars}
    adapter = f"adapters/{kernel.spec.name}.py.j2"
    context["adapted"] = adapter in load_templates().list_templates()
    files = {
        "pyproject.toml": "pyproject.toml.j2",
        "README.md": "package.md.j2",
        "LICENSE.md": "license.md.j2",
        f"{package}/__init__.py": "init.py.j2",
        f"tests/test_{kernel.spec.name}.py": "test.py.j2",
    }
    if context["adapted"]:
        files[f"{package}/serving.py"] = adapter
    texts: dict[str, str | bytes] = {
        name: load_templates().get_template(template).render(context) for name, template in files.items()
    }
    texts |= {f"{package}/{HEADERS}/{name}": text for name, text in kernel.headers.items()}
    texts[f"{package}/{context['source']}"] = source
    texts["tests/reference.py"] = (kernel.folder / "reference.py").read_text()
    texts |= {f"tests/{JUDGING}/{path.name}": _alone(path.read_text()) for path in JUDGED_BY}
    if (kernel.folder / "inputs.py").exists():
        texts["tests/inputs.py"] = (kernel.folder / "inputs.py").read_text()
    texts["evidence/result.json"] = json.dumps(evidence, indent=1) + "\n"
    if baseline:
        judged = f"{JUDGED}/{kernel.spec.name}"
        texts |= {
            f"{judged}/{name}": (kernel.folder / name).read_text()
            for name in ("spec.py", "reference.py", "inputs.py")
            if (kernel.folder / name).exists()
        }
        texts |= {f"{judged}/{name}": text for name, text in kernel.headers.items()}
        named = kernel.spec.default_baseline
        middle = f".{named[device]}" if named.get(device, "baseline") != "baseline" else ""
        texts[f"{judged}/baseline{middle}{Path(context['source']).suffix}"] = baseline
        others = {on: kernel.baselines(on)[name] for on, name in named.items() if on != device}
        texts |= {f"{judged}/{path.name}": path.read_text() for path in others.values()}  # the spec names them
    texts[FILES] = json.dumps({name: _digest(text) for name, text in texts.items()}, indent=1) + "\n"
    with write_folder(to) as made:
        for name, text in texts.items():
            write_atomically(made / name, text)
    return [to / name for name in texts]


def _alone(text: str) -> str:
    """A file of JUDGED_BY as it stands in a package."""
    return re.sub(r"\bharness\.(checks|farside)\b", JUDGING, text)


def _case(kernel: Kernel, workload: Workload) -> dict[str, Any]:
    """A workload that the package's tests run, with what noise.py asks of its reference and outputs, as Python."""
    call = call_of(kernel, workload)
    asked: dict[str, Any] = {"dtype": call.dtype, "bits": call.bits, "terms": call.terms()}
    asked |= {"wide": sorted(call.wide), "all_wide": call.all_wide}
    return {
        "dtype": workload.dtype,
        "axes": workload.axes,
        "reference": repr(asked),
        "outputs": [repr(tuple(output)) for output in outputs_of(kernel, workload)],
    }


def _digest(text: str | bytes) -> str:
    return hashlib.sha256(text.encode() if isinstance(text, str) else text).hexdigest()


def find_changes(package: Path) -> tuple[str, ...]:
    """Names of the package's files that are not as they were exported: changed, gone, or sources that came to be there. Whoever changes
    the list as well is not found out."""
    try:
        known = json.loads((package / FILES).read_text())
        if not isinstance(known, dict):
            raise ValueError
    except (OSError, ValueError):
        return (FILES,)
    changed = []
    for name, digest in known.items():
        try:
            same = _digest((package / name).read_bytes()) == digest
        except OSError:
            same = False
        if not same:
            changed.append(name)
    there = (path.relative_to(package).as_posix() for path in package.rglob("*") if path.suffix in SOURCES)
    return tuple(sorted([*changed, *(name for name in there if name not in known)]))


class ExportedPackage(NamedTuple):
    """A package as it was exported."""

    folder: Path
    """Folder of the kernel: spec, reference, baseline."""
    source: Path
    evidence: dict[str, Any]
    """The run's result.json."""


def read(package: Path) -> ExportedPackage:
    """A package that `export` wrote. Raises ExportError where it is none, or cannot be judged again."""
    try:
        evidence = json.loads((package / "evidence" / "result.json").read_text())
    except (OSError, ValueError):
        raise ExportError(f"{package} is no package of `export`: it has no evidence/result.json") from None
    sources = [*package.glob("astrolabe_*/kernel.cu"), *package.glob("astrolabe_*/kernel.cpp")]
    folders = list((package / JUDGED).glob("*/spec.py"))
    if len(sources) != 1 or len(folders) != 1:
        raise ExportError(
            f"{package} holds no kernel to judge it by (packages of version 0.1.0 do not): export the run again"
        )
    return ExportedPackage(folders[0].parent, sources[0], evidence)


def describe(spec: Spec, device: Device) -> dict[str, Any]:
    """What the templates need of a spec. Raises ExportError where sizes or names do not allow an operator."""
    if absent := next((a.name for a in spec.arguments if isinstance(a, Scalar) and a.ctype == "void*"), ""):
        raise ExportError(
            f"{absent} is an optional tensor that was left away, which an operator's schema does not have"
        )
    leader = next((tensor for tensor in spec.inputs if tensor.dtype == "T"), spec.tensors[0])
    found = infer(spec, spec.inputs)
    late = {axis: code for axis, code in infer(spec, spec.tensors).items() if axis not in found}
    asked = [a.name for a in spec.arguments if isinstance(a, Size) and a.name not in found and a.name not in late]
    used = {name for t in spec.tensors for extent in t.shape for name in re.findall(r"[a-z_][a-z0-9_]*", extent)}
    if lost := sorted(used - set(found) - set(late) - set(asked)):
        raise ExportError(f"the axis {lost[0]!r} can be read from no tensor's shape and is no argument")
    names = [argument.name for argument in spec.arguments if not isinstance(argument, Size)] + asked
    clash = [n for n in (*names, *spec.axes) if keyword.iskeyword(n) or n in _TAKEN or (n in names and n in found)]
    if clash:
        raise ExportError(f"{clash[0]!r} cannot be the name of an argument or an axis of an operator in Python")
    tensors, scalars = spec.tensors, [a for a in spec.arguments if isinstance(a, Scalar)]
    marks = {tensor.name: f"({chr(97 + i)}!)" for i, tensor in enumerate(t for t in tensors if t.role != "input")}
    schema = [f"Tensor{marks.get(tensor.name, '')} {tensor.name}" for tensor in tensors]
    schema += [f"int {name}" for name in asked]
    schema += [f"{_kind(scalar)} {scalar.name}={_number(scalar)}" for scalar in scalars]
    order = [tensor.name for tensor in tensors] + asked + [scalar.name for scalar in scalars]
    typed = [f"{t.name}: torch.Tensor" for t in tensors] + [f"{name}: int" for name in asked]
    settings = [f"{scalar.name}: {_kind(scalar)} = {_number(scalar)}" for scalar in scalars]
    written = [tensor for tensor in tensors if tensor.role != "input"]
    outputs = [tensor for tensor in tensors if tensor.role == "output"]
    flags = backends.together(cuda.FLAGS if device == "cuda" else cpu.FLAGS, spec.build.flags_on(device))
    stream = ["torch._C._cuda_getCurrentRawStream(_index)"] if device == "cuda" else []
    returned = ", ".join(tensor.name for tensor in outputs)
    kinds = {"input": "", "inout": " (changed in place)"} | dict.fromkeys(MADE, " (made where it is None)")
    return {
        "name": spec.name,
        "package": f"astrolabe_{spec.name}",
        "device": device,
        "source": "kernel.cu" if device == "cuda" else "kernel.cpp",
        "flags": [flag for flag in flags if flag not in _REPORTS[device]],
        "symbols": {dtype: list(spec.entry_names(dtype)) for dtype in spec.dtypes},
        "ctypes": [*(_ctype(a) for a in spec.arguments), *(["ctypes.c_void_p"] if device == "cuda" else [])],
        "leader": leader.name,
        "dtype": _dtype_of(spec, tensors),
        "tensors": [_tensor(t) for t in tensors],
        "made": [_tensor(t) | {"made_dtype": _dtype_of(spec, spec.inputs, t.dtype)} for t in spec.poisoned],
        "late": sorted(late),
        "written": [t.name for t in written],
        "never_empty": [axis for axis in spec.axes if axis not in spec.zeros],
        "inference": [f"{axis} = {code}" for axis, code in (found | late).items()],
        "wrapper_inference": [f"{axis} = {code}" for axis, code in found.items()] if spec.poisoned else [],
        "parameters": [*typed, *settings],
        "wrapper_parameters": [
            *(f"{t.name}: torch.Tensor" for t in spec.inputs),
            *(f"{name}: int" for name in (*asked, *late)),
            *(f"{t.name}: torch.Tensor | None = None" for t in spec.poisoned),
            *settings,
        ],
        "wrapper_returns": _returns(len(outputs)),
        "wrapper_doc": [f"{t.name} [{', '.join(t.shape)}]{kinds[t.role]}" for t in tensors],
        "returned": returned,
        "axis_names": spec.axes,
        "input_names": [t.name for t in spec.inputs],
        "output_names": [t.name for t in outputs],
        "tensor_names": [t.name for t in tensors],
        "asked_names": asked,
        "asked_values": "".join(f', case[1]["{name}"]' for name in asked),
        "late_values": "".join(f', case[1]["{name}"]' for name in late),
        "used": [(t.name, t.used) for t in spec.outputs if t.used is not None],
        "call": [*(f"_at_{a.name}" if isinstance(a, Tensor) else a.name for a in spec.arguments), *stream],
        "apart": [
            (one.name, other.name)
            for at, one in enumerate(written)
            for other in (*(tensor for tensor in tensors if tensor.role == "input"), *written[at + 1 :])
            if not one.strides and not other.strides  # slices of one tensor lie between each other's rows
        ],
        "names": ", ".join(order),
        "schema_arguments": schema,
        "schema": f"{spec.name}({', '.join(schema)}) -> ()",
    }


def infer(spec: Spec, tensors: tuple[Tensor, ...]) -> dict[str, str]:
    """axis -> Python that reads it from a tensor's shape or strides: an extent or a stride that is the axis itself, else an extent linear in it."""
    found: dict[str, str] = {}
    extents = [(tensor.name, at, extent) for tensor in tensors for at, extent in enumerate(tensor.shape)]
    for name, at, extent in extents:
        if extent in spec.axes:
            found.setdefault(extent, f"{name}.shape[{at}]")
    for name, at, extent in extents:
        mentioned = [axis for axis in spec.axes if re.search(rf"\b{axis}\b", extent)]
        if len(mentioned) == 1 and mentioned[0] not in found:
            base, one, two = (expression(extent, {mentioned[0]: n}) for n in (0, 1, 2))
            slope = one - base
            if slope > 0 and two - one == slope:
                offset = f" - {base}" if base else ""
                found[mentioned[0]] = (
                    f"({name}.shape[{at}]{offset}) // {slope}" if base else f"{name}.shape[{at}] // {slope}"
                )
    for tensor in tensors:
        for at, stride in enumerate(tensor.strides):
            if stride in spec.axes:
                found.setdefault(stride, f"{tensor.name}.stride({at})")
    return found


def _dtype_of(spec: Spec, tensors: tuple[Tensor, ...], dtype: str = "T") -> str:
    """Python that says a dtype; the workload's by one of these tensors that has it, else by the only one or the first of the spec's."""
    if dtype != "T":
        return f"torch.{dtype}"
    return next((f"{t.name}.dtype" for t in tensors if t.dtype == "T"), f"torch.{spec.dtypes[0]}")


def _tensor(tensor: Tensor) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "role": tensor.role,
        "rank": len(tensor.shape),
        "shape": f"({', '.join(tensor.shape)}{',' * (len(tensor.shape) == 1)})",
        "strides": f"({', '.join(tensor.strides)}{',' * (len(tensor.strides) == 1)})" if tensor.strides else "",
        "dtype": "_dtype" if tensor.dtype == "T" else f"torch.{tensor.dtype}",
    }


def _kind(scalar: Scalar) -> str:
    return "int" if scalar.ctype == "int64_t" else "float"


def _number(scalar: Scalar) -> str:
    return str(int(scalar.value)) if scalar.ctype == "int64_t" else repr(float(scalar.value))


def _ctype(argument: Tensor | Size | Scalar) -> str:
    if isinstance(argument, Scalar):
        return CTYPES[argument.ctype]
    return "ctypes.c_void_p" if isinstance(argument, Tensor) else "ctypes.c_int64"


def _returns(count: int) -> str:
    if count == 0:
        return " -> None"
    return " -> torch.Tensor" if count == 1 else f" -> tuple[{', '.join(['torch.Tensor'] * count)}]"


OFFSETS_BYTES = 2**31 - 1
"""Largest tensor, in bytes, for which 32-bit offsets are right in bytes and in elements."""


def most_bytes(spec: Spec, device: Device) -> int:
    """The largest tensor that a package takes, in bytes: what was judged, and never less than 32-bit offsets reach."""
    suites = (*spec.suite(device), *spec.suite(device, held_out=True))
    return max(OFFSETS_BYTES, *(spec.tensor_bytes(t, w) for w in suites for t in spec.tensors))


def cases(spec: Spec, device: Device) -> list[Workload]:
    """The visible workloads of this device that the package tests itself on, smallest first, at most eight."""
    known = [w for w in spec.suite(device) if spec.read_bytes(w) + spec.write_bytes(w) <= TESTED_BYTES]
    return sorted(known, key=lambda w: spec.read_bytes(w) + spec.write_bytes(w))[:8]


def inputs(spec: Spec) -> list[dict[str, Any]]:
    """How the package's tests draw each input: the first distribution that the spec names, and a fixed seed."""
    found = []
    for tensor in spec.inputs:
        kind, _, rest = tensor.values[0].partition(":")
        low, _, high = rest.partition(":")
        draw = {
            "index": f"torch.randint(0, axes[{rest!r}], shape, generator=generator)",
            "offsets": f"torch.arange(shape[0]) * axes[{rest!r}] // max(shape[0] - 1, 1)",
            "starts": f"torch.arange(shape[0]) * axes[{rest!r}] // shape[0]",
            **dict.fromkeys(
                ("distinct", "permutation"),
                f"torch.randperm(axes[{rest!r}], generator=generator)[: math.prod(shape)].reshape(shape)",
            ),
            "below": f"below(found[{rest!r}], shape, generator)",
            "padded": f"torch.randint(-1, axes[{rest!r}], shape, generator=generator)",
            "range": f"torch.empty(shape).uniform_({low}, {high}, generator=generator)",
            DRAWN: f"inputs.{rest.partition('__')[0]}(shape, axes | SCALARS, generator)",
            "uniform": "torch.rand(shape, generator=generator)",
            "scaled": "torch.rand(shape, generator=generator) * torch.rand((), generator=generator)",
        }.get(kind, "torch.randn(shape, generator=generator)")
        if tensor.dtype.startswith(("int", "uint")) and kind not in (*AXIS_VALUES, BELOW, DRAWN):
            draw = "torch.randint(0, 127, shape, generator=generator)"
        found.append(
            {"name": tensor.name, "draw": draw, "dtype": "None" if tensor.dtype == "T" else f"torch.{tensor.dtype}"}
        )
    return found


def headline(evidence: dict[str, Any]) -> str:
    """One sentence with the speedup: of a run's result.json or of a verdict, the held-out suite's where there is one."""
    suite = evidence.get("suite") or {}
    known = {
        "the held-out workloads": evidence.get("held_out_speedup"),
        "the workloads that it was made for": evidence.get("speedup") or suite.get("speedup"),
    }
    for where, interval in known.items():
        if interval:
            median, low, high = (float(interval[name]) for name in ("median", "low", "high"))
            held_out = where == "the held-out workloads"
            rows = evidence.get("workloads") or evidence.get("timings") or ()
            # Of all workloads: whoever reads only this must not find out later that one of the other suite became slower.
            slowest = min((row["speedup"]["median"] for row in rows if row.get("speedup")), default=None)
            here = [row for row in rows if bool(row.get("held_out")) == held_out]
            weighted = bool(here) and all(row.get("weight") or row.get("workload", {}).get("weight") for row in here)
            mean = "of the time of all calls, each size by its weight" if weighted else "geometric mean"
            more = "" if slowest is None else f"; {slowest:.3f}x on the workload that gains least"
            return (
                f"Measured {median:.3f}x its baseline on {where} (99 % interval {low:.3f} to {high:.3f}, {mean}{more})."
            )
    return "What was measured stands in evidence/result.json."
