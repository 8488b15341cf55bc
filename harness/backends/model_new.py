"""A candidate of a problem: a Python module that defines `ModelNew`, with its native code in string constants.

    import torch
    from torch import nn

    CUDA_SOURCE = r'''
    extern "C" void scale_rows(const float* x, float* out, int64_t rows, int64_t width, float by, cudaStream_t stream)
    { ... scale_rows_kernel<<<...,  stream>>>(...); }
    '''
    CPP_SOURCE = r'''
    extern "C" void scale_rows(const float* x, float* out, int64_t rows, int64_t width, float by) { ... }
    '''
    native = load_native(globals())

    class ModelNew(nn.Module):
        def __init__(self, ...): ...      # as Model's
        def forward(self, x):             # as Model's
            out = torch.empty_like(x)
            native.scale_rows(x, out, x.shape[0], x.shape[1], 2.0)
            return out

- `CUDA_SOURCE`, `CPP_SOURCE`: plain string literals at the module's top level, each at most once. They are read from the
  syntax tree, so nothing is executed to find them. On a GPU CUDA_SOURCE is compiled by nvcc as backends/cuda.py does, on
  a CPU CPP_SOURCE by g++ as backends/cpu.py does (C++17, OpenMP; `<cstdint>` must be included by the source). A candidate
  may leave out both (Triton; `torch.utils.cpp_extension`, which is built in the compiler's box; torch alone).
- `load_native(globals())` is put into the module's namespace before it is executed. It answers an object whose attributes
  are the library's functions: C linkage, returning nothing. It raises RuntimeError where this device's constant is missing.
  An attribute that the library does not export raises AttributeError.
- A call passes its positional arguments in order: a tensor as the address of its first element (it must be contiguous and
  on the candidate's device, else ValueError), None as a null pointer, an int or a bool as `int64_t`, a float as `float`;
  an instance of a ctypes type as it is (`ctypes.c_double(0.1)`, `ctypes.c_int32(3)`, `ctypes.c_void_p(t.data_ptr())` for a
  tensor whose strides the kernel knows). On a GPU torch's current stream is appended as the last argument.
- `@native.host` on `forward` makes it one native call: its text becomes C++ that is built with the source (harness/problems/host.py), which allocates,
  launches the kernels and calls convolutions and matrix products through torch's C interface. Where the text says something else than sizes
  and checks, `torch.empty`, kernels, `del`, calls of torch and one `return`, where torch lacks that interface, or an argument is no plain
  tensor, `forward` runs as it stands: what it computes is the same.
- `ModelNew(*get_init_inputs())` is constructed on the CPU under the seed under which Model was, so it must draw the same
  random numbers in the same order (the same submodules in the same order do); then `.to(device)`, training mode as it
  comes, `forward` under `no_grad`. Derived tensors (transposed weights, folded constants) may be prepared in `__init__`, as
  buffers (`register_buffer(..., persistent=False)`), so that `.to(device)` moves them.
- `forward` takes what Model's takes: new tensors in each call, contiguous, and it may not change them. It returns what
  Model's returns: one tensor, or a tuple or list of them, of the same shapes and dtypes. It is also called with other
  leading sizes, where Model takes them, so it reads sizes from its arguments. It may not synchronise (calls are
  captured in a CUDA graph where that is possible).
- In a problem whose outputs are random (live dropout) torch's generator is seeded before Model's and ModelNew's forward alike, anew
  for each call: the same draws of the same shapes in the same order give the same masks.
- State that Model's calls change (running statistics, counters, moving averages) is kept under Model's names and read from there in
  each call: it is put in before a judged call, and what the call leaves is judged as outputs are.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import shutil
from pathlib import Path

from harness.backends import Compiled, cpu, cuda, is_python, python_module
from harness.problems.host import HEADER, host_source
from harness.records import DeviceFacts

SUFFIX = ".py"
DEVICE = "any"
PYTHON_SIDE = True
PROBLEMS = True
"""Candidates of problems only; of a kernel a ModelNew is a python_module."""
ARTEFACT = "candidate"
"""A folder: candidate.py, native.so where it has native code for the device, extensions where it brings some."""
SOURCES = {"cuda": "CUDA_SOURCE", "cpu": "CPP_SOURCE"}


def takes(text: str) -> bool:
    return is_python(text)


def why_unavailable() -> str:
    return python_module.why_unavailable()


def identity(facts: DeviceFacts) -> str:
    native = cuda if facts.device == "cuda" else cpu
    host = hashlib.sha256(HEADER.read_bytes() + Path(inspect.getfile(host_source)).read_bytes()).hexdigest()[:16]
    return f"{python_module.identity(facts)} {'' if native.why_unavailable() else native.identity(facts)} host {host}"


def native_source(text: str, device: str) -> str:
    """The literal of this device's constant, "" where there is none. Raises ValueError where it is no plain literal."""
    found = _literal(text, device)
    return "" if found is None else found.value  # type: ignore[return-value]


def with_native_source(text: str, device: str, written: str) -> str:
    """`text` with another literal in this device's constant. Raises ValueError where it has none."""
    found = _literal(text, device)
    if found is None or found.end_lineno is None or found.end_col_offset is None:
        raise ValueError(f"the source has no {SOURCES[device]}")
    lines = text.encode().splitlines(keepends=True)
    before = b"".join(lines[: found.lineno - 1]) + lines[found.lineno - 1][: found.col_offset]
    behind = lines[found.end_lineno - 1][found.end_col_offset :] + b"".join(lines[found.end_lineno :])
    plain = "'''" not in written and not written.endswith(("'", "\\")) and "\r" not in written
    literal = f"r'''{written}'''" if plain else repr(written)
    return (before + literal.encode() + behind).decode()


def _literal(text: str, device: str) -> ast.Constant | None:
    name, found = SOURCES[device], None
    for node in ast.parse(text).body:
        if not isinstance(node, ast.Assign | ast.AnnAssign):
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            value = node.value
            if not isinstance(value, ast.Constant) or not isinstance(value.value, str) or found is not None:
                raise ValueError(f"line {node.lineno}: {name} must be one plain string literal, assigned once")
            found = value
    return found


def compile(source: Path, artefact: Path, facts: DeviceFacts, timeout_s: float, entry: str) -> Compiled:
    text = source.read_text()
    done = python_module.compile(source, artefact, facts, timeout_s, entry)
    if not done.ok:
        return done
    try:
        written = native_source(text, facts.device)
    except ValueError as error:
        return Compiled(False, f"candidate.py: error: {error}")
    if not written:
        return done
    native = cuda if facts.device == "cuda" else cpu
    if missing := native.why_unavailable():
        return Compiled(False, f"{SOURCES[facts.device]} cannot be compiled: {missing}")
    path = source.with_name(f"native{native.SUFFIX}")
    library = source.with_name("native.so")
    path.write_text(written + host_source(text, facts.device))
    built = native.compile(path, library, facts, timeout_s)
    if (
        not built.ok and written != path.read_text()
    ):  # the candidate's own mistake, or something that the host cannot be built behind
        path.write_text(written)
        built = native.compile(path, library, facts, timeout_s)
    if built.ok:
        shutil.move(library, artefact / "native.so")
    return Compiled(built.ok, built.log, built.resources)
