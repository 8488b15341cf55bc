"""Rows that do not divide into packs: what the kernels read like, where they stay as they are, and what they compute."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import pytest
import torch

from kernels import catalog as kernels
from kernels.spec import Spec, Tensor, Workload
from nodes.policies.rules import apply_step
from nodes.rewrites import Facts, ordered
from nodes.rewrites.memory.vectorize_unaligned_rows import has_ragged_rows
from nodes.rewrites.specialize.uneven import row_axis
from tests.nodes.rewrites.emulate.emulation import library
from tests.nodes.rewrites.steps import H200, INPUTS, after, check, where_they_apply
from tests.nodes.rewrites.test_inputs import first_plan


def spec(*workloads: Workload) -> Spec:
    tensors = (
        Tensor(name="x", role="input", shape=("rows", "columns")),
        Tensor(name="y", role="output", shape=("rows",)),
    )
    return Spec(
        name="rows", summary="any operation on rows", axes=("rows", "columns"), dtypes=("float32", "float16"),
        arguments=tensors, workloads=workloads,
    )  # fmt: skip


def at(columns: int, dtype: str = "float16", **more: bool) -> Workload:
    return Workload(axes={"rows": 64, "columns": columns}, dtype=dtype, **more)


RAGGED = Facts(spec=spec(at(4096), at(50257)), device=H200)
ROWS = """\
#include <cuda_fp16.h>

__global__ void add_rows(const __half* x, const __half* bias, __half* y, int n) {
  const int row = blockIdx.x;
  // Each thread has every so manieth element.
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    y[row * n + i] = __float2half(__half2float(x[row * n + i]) + __half2float(bias[i]));
  }
}

extern "C" void add(const __half* x, const __half* bias, __half* y, long rows, long n, cudaStream_t stream) {
  add_rows<<<rows, 256, 0, stream>>>(x, bias, y, n);
}
"""
FLAT = """\
#include <cuda_fp16.h>

__global__ void twice(const __half* x, __half* y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) {
    y[i] = __hmax(x[i], x[i]);
  }
}

extern "C" void run(const __half* x, __half* y, long n, cudaStream_t stream) {
  twice<<<(n + 255) / 256, 256, 0, stream>>>(x, y, n);
}
"""


def ragged(text: str, facts: Facts = RAGGED) -> str:
    """Packs of uneven rows, "" where they stay."""
    return apply_step("vectorize_unaligned_rows", text, facts) or ""


def always(text: str) -> str:
    """For rows of any length, also such as are not worth it."""
    assert ">= 4 * PACK" in text
    return text.replace(">= 4 * PACK", ">= 0 * PACK")


@pytest.mark.parametrize(
    ("workloads", "expected"),
    [
        ((at(4096), at(50257)), True),
        ((at(4096), at(50256)), False),
        ((at(50260, "float32"), at(4092, "float32")), False),
        ((at(50258, "float32"),), True),
        ((at(4096), at(515, timed=False)), True),
        ((at(4096), at(7, timed=False)), False),  # the first and the last pack
        ((at(4096), at(50257, held_out=True)), False),
        ((at(4096), at(50257, devices=("cpu",))), False),  # type: ignore[arg-type]
    ],
)
def test_it_is_planned_for_visible_workloads_with_such_rows(workloads: tuple[Workload, ...], expected: bool) -> None:
    assert has_ragged_rows(spec(*workloads)) is expected
    facts = Facts(spec=spec(*workloads), device=H200)
    assert bool(ragged(after(ROWS, "vectorize"), facts)) is expected


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("pack * VEC;", "pack * VEC;\n    const int group = first / 64;"),  # of the pack's first element alone
        ("pack * VEC;", "pack * VEC;\n    if (pack == 3) return;"),
        ("pack * VEC;", "(pack + 1) * VEC;"),
        ("&bias[first]", "&bias[first % 64]"),
        ("&bias[first]", "&bias[n - first]"),
        ("load_lanes<VEC>(&bias[first])", "load_lanes<2 * VEC, VEC>(&bias[2 * first])"),
        ("n / VEC;", "n / VEC - 1;"),
        ("n / VEC;", "(n + 1) / VEC + 1;"),
        ("    store_lanes(", "    y_pack.at[0] = x_pack.at[0];\n    store_lanes("),
        ("k < VEC; ++k", "k < VEC; k += 2"),
        ("y_pack.at[k] =", "if (k == 3) continue;\n      y_pack.at[k] ="),
        ("const int row = blockIdx.x;", "int row = blockIdx.x;\n  n = n / 2;"),
        ("const int row = blockIdx.x;", "const int row = blockIdx.x;\n  const int lanes = VEC;"),
        ("add_rows<WIDTH><<<", "add_rows<4><<<rows, 256, 0, stream>>>(x, bias, y, n);\n      add_rows<WIDTH><<<"),
        ("constexpr int WIDTH = decltype(lanes)::value;", "constexpr int WIDTH = decltype(lanes)::value + 0;"),
        ("<<<rows, 256", "<<<rows, 256 / WIDTH"),
    ],
)
def test_what_is_not_understood_stays(old: str, new: str) -> None:
    packed = after(ROWS, "vectorize")
    assert old in packed and not ragged(packed.replace(old, new))


def test_a_guard_needs_a_grid_that_counts_packs() -> None:
    packed = after(FLAT, "vectorize")
    new = ragged(packed)
    assert "if (pack < packs_in<VEC, RAGGED>(n)) {" in new and "ceil_div(packs_in<WIDTH, RAGGED>(n), 256)" in new
    assert not ragged(packed.replace("ceil_div(n / WIDTH, 256)", "ceil_div(n, 256)"))


@pytest.mark.parametrize(
    ("old", "new", "reads"),
    [
        ("x[i], x[i]", "x[i], x[i % 64]", "&x[first % 64]"),
        ("y[i] = __hmax(x[i], x[i])", "const int row = i / 64;\n    y[i] = __hmax(x[i], x[row])", "x[row]"),
    ],
)
def test_an_index_over_several_rows_stays(old: str, new: str, reads: str) -> None:
    packed = after(FLAT.replace(old, new), "vectorize")
    assert reads in packed and not ragged(packed)


def test_plain_files_and_files_that_have_it_stay() -> None:
    packed = after(ROWS, "vectorize")
    assert not ragged(ROWS) and not ragged(ragged(packed))
    assert ragged(packed.replace("n % PACK == 0", "sizeof(Lanes<__half, PACK>) == 16")), "what the host asks is its own"


def packed_twice(tmp_path: Path, text: str) -> ctypes.CDLL:
    """The ragged form, with a count of the accesses in one piece that it made."""
    new = ragged(after(text, "vectorize"))
    counted = re.sub(r"if \(in_one_piece<N>\(from, part\)\) \{", r"\g<0> ++pieces;", always(new))
    counted = counted.replace("in_one_piece<N>(to, part)) {", "in_one_piece<N>(to, part)) { ++pieces;")
    assert counted.count("++pieces") == 2
    return library(
        counted.replace("#include <cuda_fp16.h>", '#include <cuda_fp16.h>\nextern "C" { int pieces = 0; }'), tmp_path
    )


def test_every_pack_but_the_ends_moves_in_one_piece(tmp_path: Path) -> None:
    """Rows from any address, in place and not; x, y and bias aligned alike and not."""
    built = packed_twice(tmp_path, ROWS)
    pieces, rows = ctypes.c_int.in_dll(built, "pieces"), 3
    generator = torch.Generator().manual_seed(3)
    for n in (0, 1, 7, 8, 9, 15, 16, 17, 129, 50257 % 1000):
        for x_at, y_at in ((0, 0), (1, 1), (7, 7), (0, 3), (5, 0)):
            x, y = (torch.randn(64 + rows * n + 64, generator=generator).half() for _ in range(2))
            bias = torch.randn(n + 1, generator=generator).half()
            want, before = x[x_at : x_at + rows * n].view(rows, n) + bias[1:], y.clone()
            pointers = [ctypes.c_void_p(t.data_ptr() + 2 * o) for t, o in ((x, x_at), (bias, 1), (y, y_at))]
            pieces.value = 0
            built.add(*pointers, ctypes.c_long(rows), ctypes.c_long(n), None)
            assert torch.equal(y[y_at : y_at + rows * n].view(rows, n), want), (n, x_at, y_at)
            assert torch.equal(y[:y_at], before[:y_at]) and torch.equal(y[y_at + rows * n :], before[y_at + rows * n :])
            if x_at == y_at and n % 8 and x.data_ptr() % 16 == y.data_ptr() % 16 == 0:
                begins = [x_at + row * n for row in range(rows)]
                whole = [max(0, (begin + n) // 8 - -(-begin // 8)) for begin in begins]
                of_bias = sum(w for w, begin in zip(whole, begins, strict=True) if (1 - begin) % 8 == 0)
                assert pieces.value == 2 * sum(whole) + of_bias, (n, x_at)
            built.add(pointers[2], pointers[1], pointers[2], ctypes.c_long(rows), ctypes.c_long(n), None)
            assert torch.equal(y[y_at : y_at + rows * n].view(rows, n), want + bias[1:]), "in place"


WIDTHS = (1, 7, 8, 9, 15, 16, 17, 33, 129, 1021)
BUNDLES = (
    "log_softmax", "cross_entropy", "row_entropy", "online_softmax", "row_softmax", "layer_norm", "head_rms_norm", "quick_gelu",
    "relu_squared", "residual_then_norm", "quantize_rows", "masked_softmax", "row_logsumexp", "thread_softmax",
)  # fmt: skip


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n == "log_softmax" else pytest.mark.slow) for n in BUNDLES]
)
def test_bundles_are_right_for_all_widths(name: str, tmp_path: Path) -> None:
    """With what later steps make of packs: rows in registers, over more blocks, one step a thread."""
    folder = INPUTS / name
    baseline = folder / "baseline.plain.cu"
    steps, text = first_plan(baseline)
    if "vectorize_unaligned_rows" not in steps:  # where its place is: the folder's timed workloads do not ask for it
        text = baseline.read_text()
        there = [r.name for r in ordered("cuda") if r.name in {*steps, "vectorize_unaligned_rows"}]
        text = where_they_apply(text, *there, facts=RAGGED)
    assert "past_pack" in text
    known = kernels.load(str(folder)).spec
    along = row_axis(known, known.workloads[0])
    others = "".join(f"{axis}=3," for axis in known.axes if axis != along)
    named = [f"{dtype}:{others}{along}={width}" for dtype in known.dtypes for width in WIDTHS]
    check(always(text), tmp_path, folder, "0", "1", "3", *named)
