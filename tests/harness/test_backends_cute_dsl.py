"""CuTe DSL, compiled ahead of time without a GPU to the plain entries of a CUDA source."""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from graph.checking import HOPPER
from harness import backends
from harness.backends import cute_dsl
from harness.judge.builds import compile_build
from harness.records import Build
from harness.store import digest
from kernels import catalog

TEXT = """import cutlass
import cutlass.cute as cute
import cuda.bindings.driver as cuda


@cute.kernel
def kernel(x: cute.Tensor, out: cute.Tensor, columns: cutlass.Int64):
    t, _, _ = cute.arch.thread_idx()
    b, _, _ = cute.arch.block_idx()
    for i in range(t, columns, 256):
        gate, up = x[b, i].to(cutlass.Float32), x[b, i + columns].to(cutlass.Float32)
        out[b, i] = (gate / (1.0 + cute.math.exp(-gate)) * up).to(out.element_type)


@cute.jit
def silu_and_mul(input: cute.Tensor, out: cute.Tensor, tokens: cutlass.Int64, hidden: cutlass.Int64, stream: cuda.CUstream):
    kernel(input, out, hidden).launch(grid=[tokens, 1, 1], block=[256, 1, 1], stream=stream)
"""


def build(text: str, folder: Path) -> Build:
    if reason := cute_dsl.why_unavailable():
        pytest.skip(reason)
    spec = catalog.load("silu_and_mul").spec
    return compile_build(digest(text), text, cute_dsl, folder, HOPPER, **backends.entry_of(cute_dsl, spec, "cuda"))


@pytest.mark.timeout(200)
def test_a_module_becomes_a_library_of_the_specs_entries(tmp_path: Path) -> None:
    made = build(TEXT, tmp_path)
    assert made.ok and made.backend == "cute_dsl", made.log
    spec = catalog.load("silu_and_mul").spec
    said = subprocess.run(["nm", "-D", "--defined-only", made.artefact], capture_output=True, text=True, check=True)
    names = [line.split()[-1] for line in said.stdout.splitlines()]
    assert all(spec.entry_names(dtype)[0] in names for dtype in spec.dtypes) and "_cudaFree" not in names
    ctypes.CDLL(made.artefact)  # all that it needs is there


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (TEXT.replace("gate, up =", "gate, upper ="), "candidate.py:12: error: .*name 'up' is not defined"),
        (TEXT.replace("def silu_and_mul", "def other"), "error: it has no function silu_and_mul"),
        (TEXT.replace("hidden: cutlass.Int64, ", ""), "candidate.py.*error"),
        (TEXT + "open('/etc/astrolabe', 'w')\n", "error"),
    ],
    ids=["a name that is not there", "another name", "fewer arguments", "writes outside its box"],
)
def test_what_is_wrong_is_said(text: str, said: str, tmp_path: Path) -> None:
    made = build(text, tmp_path)
    assert not made.ok and re.search(said, made.log, re.DOTALL), made.log


def test_a_source_says_that_it_is_its_form() -> None:
    assert backends.for_source(TEXT, "cuda") is cute_dsl
    assert backends.name_of(backends.for_source(TEXT, "cpu")) == "python_module"
    assert not cute_dsl.takes("def cutlass(): ...\n") and not cute_dsl.takes('#include "cutlass/cutlass.h"\n')


def test_entries_fill_what_depends_on_sizes() -> None:
    def tensor(name: str, shape: list[str], strides: list[str]) -> dict[str, Any]:
        return {"kind": "tensor", "name": name, "dtype": "T", "shape": shape, "strides": strides}

    asked = {
        "arguments": [
            tensor("x", ["rows", "8"], ["8", "1"]),
            tensor("y", ["rows//2", "n"], ["n", "1"]),
            {"kind": "number", "name": "eps", "ctype": "float"},
        ]
    }
    text = cute_dsl.entry(asked, "f_float16", "float16")
    assert "void f_float16(const __half* x, const __half* y, float eps, cudaStream_t stream)" in text
    assert "x_ = {(void*)x, {int64_t(rows)}};" in text
    assert "y_ = {(void*)y, {int64_t(rows/2), int64_t(n)}, {int64_t(n)}};" in text
    assert "(&module, &x_, &y_, eps, stream)" in text
