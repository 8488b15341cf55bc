"""Toolchains, one a file: the file's name is the backend's name.

Each file has
- `SUFFIX`: of its sources;
- `DEVICE`: where its candidates run, "cuda", "cpu" or "any";
- `takes(text) -> bool`: whether a source is of its kind (a store keeps sources without their file names);
- `why_unavailable() -> str`: "" where it can be used, else one clause with what to install;
- `identity(facts: DeviceFacts) -> str`: compiler version and flags, part of a build's key;
- `compile(source: Path, artefact: Path, facts: DeviceFacts, timeout_s: float) -> Compiled`.

One that compiles a kernel's own text has `FLAGS`, and its `compile` takes a kernel's (`BuildSettings`) as `flags`.

One whose candidates are called with torch tensors also has
- `PYTHON_SIDE = True`: they run in harness/farside/python_worker.py, and `compile` takes the entry's name as `entry`;
- `ARTEFACT`: the name of what it makes, which may be a folder.

One that binds a source's host function to a name itself has `BINDS = True`, and its `compile` takes `binding`: what of C++ to bind it to,
by dtype or for all, as JSON of `BuildSettings.binding`. One of plain pointers has `ENTRIES = True`, and its `compile` takes `entries`, C++
that defines the entries by what the source has; it is added to a source without them (`with_entries`).

One with `DESCRIBED = True` is told by `described` what the spec's arguments are, as JSON (`_description`).

One whose candidates are those of problems (a PyTorch module to be made faster) has `PROBLEMS = True`.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib
import json
import math
import os
import pkgutil
import re
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from harness.farside import sandbox
from harness.processes.forks import ForkedProcess, get_native_server
from harness.processes.watchdog import Watchdog
from kernels.spec import Dtype, Size, Spec, Tensor


@dataclass(frozen=True)
class Compiled:
    ok: bool
    log: str
    """The compiler's own words, paths of the scratch folder removed."""
    resources: dict[str, str] = field(default_factory=dict)


def together(ours: tuple[str, ...], flags: tuple[str, ...]) -> list[str]:
    """Our flags without those that a kernel's settle otherwise, and then these."""
    settled = {kind for kind in ("-std=", "-O") for flag in flags if flag.startswith(kind)}
    return [*(flag for flag in ours if not any(flag.startswith(kind) for kind in settled)), *flags]


def names() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def name_of(module: ModuleType) -> str:
    return module.__name__.rpartition(".")[2]


def get(name: str) -> ModuleType:
    if name not in names():
        raise ValueError(f"unknown backend {name!r} (have: {', '.join(names())})")
    return importlib.import_module(f"{__name__}.{name}")


def for_source(text: str, device: str, *, problem: bool = False) -> ModuleType:
    """The backend that takes this source on this device: each says by `takes(text)` whether it is its own kind.

    `problem`: the candidate is one of a problem, which only backends with `PROBLEMS` take.
    """
    for name in names():
        module = get(name)
        if getattr(module, "PROBLEMS", False) is problem and module.DEVICE in (device, "any") and module.takes(text):
            return module
    raise ValueError(f"no backend of device {device} takes this source (have: {', '.join(names())})")


_PYTHON_LINE = re.compile(r"^(import \w|from [\w.]+ import |def \w+\(|class \w+.*:|@\w)", re.MULTILINE)
_NATIVE_LINE = re.compile(
    r"^[ \t]*(#[ \t]*(include|define|pragma)\b|extern\b|template\b|namespace\b|__global__|.*;$)", re.MULTILINE
)


@functools.lru_cache(maxsize=8)
def is_python(text: str) -> bool:
    """Whether a source is a Python module, one with a syntax error included. C++ never parses as Python, but for
    directives alone, which Python takes for comments."""
    try:
        return bool(ast.parse(text).body)
    except (SyntaxError, ValueError):
        return _PYTHON_LINE.search(text) is not None and _NATIVE_LINE.search(text) is None


Form = Literal["plain", "torch", "stable", "tvm_ffi"]
_FORMS: dict[Form, str] = {
    "tvm_ffi": r"<tvm/ffi/|\btvm::ffi::|\bTVM_FFI_\w+|^[ \t]*#[ \t]*include[ \t]*[<\"]([\w/]*/)?tvm_ffi_utils\.h",
    "torch": r"^[ \t]*#[ \t]*include[ \t]*[<\"](torch/(extension|all|torch|library|script|types)\.h|torch/csrc/(?!stable/|inductor/aoti_torch/)|ATen/|c10/|pybind11/)"
    r"|\b(torch|at)::Tensor\b|\bPYBIND11_MODULE\b|\bAT_DISPATCH_\w+\(|^[ \t]*TORCH_LIBRARY",
    "stable": r"<torch/(csrc/stable|headeronly)/|\btorch::stable::|\bSTABLE_TORCH_LIBRARY",
}
"""Pattern, by form, that says outside comments how a source's host function takes tensors; the first that fits
counts. Engines' own headers may bring torch's, so a type counts as an include does."""
_MARKS = ("ffi", "torch", "at::tensor", "aten/", "c10/", "pybind11", "at_dispatch")
"""Each match of a form's pattern holds one of them, in small letters: of 190 KB that hold none the patterns took 70 ms, for each variant of a search."""
_COMMENTS = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


def form_of(text: str) -> Form:
    """How the host function of a C++ or CUDA source takes its tensors: "plain" pointers, torch's tensors, or another ABI's."""
    bare = _COMMENTS.sub("", text)
    lower = bare.lower()
    if not any(mark in lower for mark in _MARKS):
        return "plain"
    return next((form for form, pattern in _FORMS.items() if re.search(pattern, bare, re.MULTILINE)), "plain")


def uses_torch(text: str) -> bool:
    """Whether a C++ or CUDA source takes torch's tensors by whichever of its interfaces, and so no plain pointers."""
    return form_of(text) in ("torch", "stable")


C_TYPES = {
    "float64": "double", "float32": "float", "float16": "__half", "bfloat16": "__nv_bfloat16", "float8_e4m3fn": "__nv_fp8_e4m3",
    "float8_e5m2": "__nv_fp8_e5m2", "uint32": "uint32_t", "uint16": "uint16_t",
    "int64": "int64_t", "int32": "int32_t", "int16": "int16_t", "int8": "int8_t", "uint8": "uint8_t", "bool": "bool",
}  # fmt: skip
"""dtype -> its type in CUDA's C++."""
HOST_TYPES = {
    **C_TYPES,
    "float16": "_Float16",
    "bfloat16": "uint16_t",
    "float8_e4m3fn": "uint8_t",
    "float8_e5m2": "uint8_t",
}
_CUDA_HEADERS = "#include <cuda_bf16.h>\n#include <cuda_fp16.h>\n#include <cuda_fp8.h>\n"


def entry_of(module: ModuleType, spec: Spec, device: str) -> dict[str, str]:
    """What a backend's `compile` is told of the entry: its name, and what it is bound to where the spec says so."""
    if getattr(module, "DESCRIBED", False):
        return {"described": json.dumps(_description(spec))}
    binding = spec.build.binding
    if isinstance(binding, str) and re.fullmatch(r"\w+(\.\w+)+", binding) and name_of(module) != "python_module":
        binding = ""  # a module's name among others of Python's
    if getattr(module, "ENTRIES", False):
        return {"entries": _entries(spec, device)} if binding else {}
    if not getattr(module, "PYTHON_SIDE", False):
        return {}
    if not getattr(module, "BINDS", False) or not binding:
        return {"entry": spec.entry_name}
    named = name_of(module) == "python_module" or not _is_call(binding)
    return {"entry": spec.entry_name, "binding": json.dumps(binding if named else _call_of(spec, binding))}


def _description(spec: Spec) -> dict[str, Any]:
    """The entry's name, the function of each dtype, and the arguments in order: tensors with extents and strides as expressions of sizes."""
    arguments: list[dict[str, Any]] = []
    for one in spec.arguments:
        if isinstance(one, Tensor):
            inner = [[text for text in one.shape[dim + 1 :] if text != "1"] for dim in range(len(one.shape))]
            plain = ["*".join(f"({text})" if len(texts) > 1 else text for text in texts) or "1" for texts in inner]
            plain = [
                str(math.prod(map(int, texts))) if all(text.isdigit() for text in texts) else text
                for texts, text in zip(inner, plain, strict=True)
            ]
            arguments.append(
                {
                    "kind": "tensor",
                    "name": one.name,
                    "dtype": one.dtype,
                    "shape": list(one.shape),
                    "strides": list(one.strides) or plain,
                }
            )
        else:
            arguments.append(
                {"kind": "number", "name": one.name, "ctype": "int64_t" if isinstance(one, Size) else one.ctype}
            )
    return {
        "entry": spec.entry_name,
        "entries": {spec.entry_names(dtype)[0]: dtype for dtype in spec.dtypes},
        "arguments": arguments,
    }


def _is_call(binding: str | dict[Dtype, str]) -> bool:
    """Whether it is the whole call in the spec's names, and not a function's name."""
    return any(text.endswith(")") for text in ([binding] if isinstance(binding, str) else binding.values()))


def _call_of(spec: Spec, binding: str | dict[Dtype, str]) -> dict[str, Any]:
    """What `call_wrapper` takes: the calls by dtype ("" for all), and those of the spec's arguments that they name, [kind, name] each in order."""
    calls = {"": binding} if isinstance(binding, str) else dict(binding)
    words = set(re.findall(r"[A-Za-z_]\w*", " ".join(calls.values())))
    told = next(one for one in spec.tensors if one.dtype == "T") if "" not in calls else None  # says which call
    listed = told.in_list.partition("/") if told is not None else ("", "", "")
    first = "" if told is None else f"{listed[0]}[0]{'[0]' if listed[1] else ''}" if listed[0] else told.name
    words |= {listed[0] or told.name} if told is not None else set()
    takes: dict[str, str] = {}
    for argument in spec.arguments:
        if isinstance(argument, Tensor) and argument.in_list:
            takes.setdefault(argument.in_list.partition("/")[0], "lists" if "/" in argument.in_list else "list")
        elif isinstance(argument, Tensor):
            takes[argument.name] = "tensor"
        else:
            kind = "int64_t" if isinstance(argument, Size) else argument.ctype
            takes[argument.name] = {"int64_t": "int64_t", "void*": "optional"}.get(kind, "double")
    every = [[kind, name] for name, kind in takes.items()]
    return {
        "call": calls,
        "takes": [one for one in every if one[1] in words],
        "all": every,
        "leader": first,
        "returns": [one.name for one in spec.outputs if one.name not in words],
    }


SCALAR_TYPES = {
    "float64": "Double", "float32": "Float", "float16": "Half", "bfloat16": "BFloat16", "float8_e4m3fn": "Float8_e4m3fn",
    "float8_e5m2": "Float8_e5m2", "int64": "Long", "int32": "Int", "int16": "Short", "int8": "Char", "uint8": "Byte", "bool": "Bool",
    "uint16": "UInt16", "uint32": "UInt32",
}  # fmt: skip
"""dtype -> its enumerator of ScalarType."""


FUNCTION_BY_DTYPE = "build.binding by dtype takes the whole call of an operator, such as run<float>(x, out): it takes every dtype by itself"
"""What a form of torch's operators says to a function's name for each dtype."""


def call_wrapper(name: str, asked: dict[str, Any], tensor: str, scalar_type: str, returns: str = "auto") -> str:
    """C++ of a function `name` whose parameters are the spec's arguments, of `_call_of`'s calls. `tensor`, `scalar_type`: the form's classes."""
    types = {"tensor": tensor, "list": f"std::vector<{tensor}>", "lists": f"std::vector<std::vector<{tensor}>>"}
    types |= {"optional": f"std::optional<{tensor}>", "int64_t": "int64_t", "double": "double"}
    parameters = ", ".join(f"{types[kind]} {parameter}" for kind, parameter in asked["takes"])
    lines = []
    for dtype, call in asked["call"].items():
        of_dtype = f"if ({asked['leader']}.scalar_type() == {scalar_type}::{SCALAR_TYPES[dtype]}) " if dtype else ""
        lines.append(f"  {of_dtype}return {call};")
    if "" not in asked["call"]:
        lines.append(f'  throw std::runtime_error("no call of {name} is bound for this dtype");')
    return "\n".join(["", f"static {returns} {name}({parameters}) {{", *lines, "}", ""])


def _entries(spec: Spec, device: str) -> str:
    """The spec's entries in C++, or in C where `build.language` says so, each a call of what `build.binding` says."""
    in_c = spec.build.language == "c" and device == "cpu"
    linkage = "extern" if in_c else 'extern "C"'
    types, made = C_TYPES if device == "cuda" else HOST_TYPES, []
    for dtype in spec.dtypes:
        binding = spec.build.binding
        call = binding if isinstance(binding, str) else binding.get(dtype, "")
        parameters = []
        for argument in spec.arguments:
            if isinstance(argument, Tensor):
                kind = types[dtype if argument.dtype == "T" else argument.dtype]
                parameters.append(f"{kind}* {argument.name}")  # engines' own functions leave const away
            else:
                parameters.append(f"{'int64_t' if isinstance(argument, Size) else argument.ctype} {argument.name}")
        names = [argument.name for argument in spec.arguments]
        if device == "cuda":
            parameters.append("cudaStream_t stream")
            names.append("stream")
        if not call.endswith(")"):
            call = f"{call}({', '.join(names)})"
        if in_c:
            call = call.replace("nullptr", "NULL")
        made.append(
            f'{linkage} __attribute__((visibility("default"))) void {spec.entry_names(dtype)[0]}({", ".join(parameters)}) {{ {call}; }}\n'
        )
    headers = "#include <stdbool.h>\n#include <stddef.h>\n" if in_c else _CUDA_HEADERS if device == "cuda" else ""
    return f"\n#include <stdint.h>\n{headers}{''.join(made)}"


ALONE, ALONE_LINKED = (
    ("-fvisibility=hidden", "-ffunction-sections", "-fdata-sections"),
    ("--gc-sections", "--no-undefined"),
)
"""For a source whose entries were added: it needs only what these reach, not all that the engine's other files define for the rest of it; and what
these reach it must have, which the linker says by its name."""


def with_entries(text: str, entries: str) -> str:
    """The source, with the entries that it lacks defined by what it has."""
    names = re.findall(r'^extern (?:"C" )?__attribute__.*? void (\w+)\(', entries, re.MULTILINE)
    plain = {re.sub(rf"_({'|'.join(C_TYPES)})$", "", name) for name in names} if len(names) == 1 else set()
    own = [rf"\b{name}\s*\(" for name in names] + [
        rf'extern\s+"C"\s(?:(?!__global__)[^;{{}}()])*\b{name}\s*\(' for name in plain
    ]
    return text if any(re.search(pattern, text) for pattern in own) else text + entries


def is_alone(module: ModuleType, text: str, entry: dict[str, str]) -> bool:
    """Whether a source needs none of the engine's other ones: plain C that has its entries itself."""
    if not getattr(module, "ENTRIES", False):
        return is_python(text)
    return with_entries(text, entry["entries"]) == text if "entries" in entry else form_of(text) == "plain"


ENTROPY = "/dev/urandom"
"""Device that torch opens as it is imported. Compilers do not see it: they would read it to its end."""
COMPILER_BYTES = 4 << 30
"""Resident memory of a compiler and its children. torch's headers take g++ 1.3 GB."""
FILE_BYTES, SCRATCH_BYTES = 128 << 20, 512 << 20
"""Bytes of one file that a compiler writes, and of all its files (upper bounds)."""
ARTEFACT_BYTES = 64 << 20
"""Bytes of a candidate's stored artefacts (upper bound)."""
OUTPUT_BYTES, TALKS_BYTES = 8 << 20, 64 << 20
"""Bytes of a compiler's output that are held, half of them from its beginning; beyond the second number it is
killed."""


def run_boxed(
    command: list[str],
    scratch: Path,
    readable: list[str],
    timeout_s: float,
    *,
    memory_bytes: int = COMPILER_BYTES,
    outside: Sequence[str] = (),
) -> tuple[int, str]:
    """Run a compiler on hostile source: no network, nothing written outside `scratch`, the user's home out of sight. `outside`: a command of
    ours that becomes the box's, whose words follow it.

    Returns (exit code, merged output, its middle left out where it is long). One that runs over `timeout_s`, takes more memory
    than it may or does not stop talking is killed with its children; exit code -1, and the last line says why.
    """
    limits = sandbox.ProcessLimits(memory_bytes=16 << 30, file_bytes=FILE_BYTES)
    talks, says = os.pipe()
    process: subprocess.Popen | ForkedProcess
    try:
        if outside:
            process = subprocess.Popen(
                [*outside, *sandbox.launch_command(command, scratch=str(scratch), readable=readable, limits=limits)],
                cwd=scratch, env=sandbox.clean_environment(str(scratch)), stdin=subprocess.DEVNULL, stdout=says,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        else:
            box = sandbox.describe_box(str(scratch), readable, limits)
            process = get_native_server().run(scratch, says, box, command)
    except BaseException:
        os.close(talks)
        raise
    finally:
        os.close(says)
    watched = limits._replace(memory_bytes=memory_bytes, scratch_bytes=SCRATCH_BYTES, threads=1024)
    watchdog = Watchdog(process.pid, watched, seconds=timeout_s, scratch=str(scratch), tree=True, interval_s=0.1)
    said = _Said()
    try:
        while part := os.read(talks, 1 << 16):
            said.add(part)
            if said.bytes > TALKS_BYTES:
                break
        else:
            process.wait()
    finally:  # Ctrl-C too: nothing may go on compiling behind the user's back
        killed = watchdog.stop()
        talked = said.bytes > TALKS_BYTES
        if process.poll() is None:
            _kill(process)
        os.close(talks)
    if killed or talked:
        why = killed or f"wrote more than {TALKS_BYTES >> 20} MiB of messages"
        return -1, f"{said.text()}\nerror: the compiler was killed: it {why}".lstrip()
    return process.wait(), said.text()


class _Said:
    """The beginning and the end of what somebody writes."""

    def __init__(self) -> None:
        self.bytes, self.first, self.last = 0, bytearray(), bytearray()

    def add(self, part: bytes) -> None:
        self.bytes += len(part)
        room = OUTPUT_BYTES // 2 - len(self.first)
        self.first += part[:room]
        self.last += part[room:]
        del self.last[: max(0, len(self.last) - OUTPUT_BYTES // 2)]

    def text(self) -> str:
        left_out = self.bytes - len(self.first) - len(self.last)
        between = f"\n[{left_out:,} bytes left out]\n".encode() if left_out else b""
        return (bytes(self.first) + between + bytes(self.last)).decode(errors="replace")


def _kill(process: subprocess.Popen | ForkedProcess) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
