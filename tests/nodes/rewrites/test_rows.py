"""Rows that are kept in registers, shared by clusters, longer than a grid or begun anywhere: numbers that the host works out, and
ways that small sizes take only where those numbers are changed."""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path

import pytest
import torch

from harness.judge.tunables import bake
from kernels import catalog
from nodes.rewrites import Facts
from nodes.rewrites.prelude import text_of
from tests.nodes.rewrites.emulate.emulation import library
from tests.nodes.rewrites.examples import VECTORS
from tests.nodes.rewrites.steps import H200, ROOT, after, check, where_they_apply
from tests.nodes.rewrites.test_contract import behind

ASKED = """\
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <type_traits>

enum { cudaDevAttrMultiProcessorCount, cudaDevAttrMaxThreadsPerMultiProcessor, cudaDevAttrMaxRegistersPerMultiprocessor,
       cudaDevAttrMaxBlocksPerMultiprocessor };
int questions = 0;
int cudaGetDevice(int*) { return 0; }
int cudaDeviceGetAttribute(int* value, int attribute, int) {
  const int h200[] = {132, 2048, 65536, 32};
  return ++questions, *value = h200[attribute], 0;
}
// A "kernel" is the number of its registers, 0 where the driver does not know it.
struct cudaFuncAttributes { int numRegs; };
int cudaFuncGetAttributes(cudaFuncAttributes* of, const int* kernel) {
  return ++questions, of->numRegs = *kernel, *kernel == 0;
}
"""
KERNELS = {"softmax": (16, (20, 32, 51, 64)), "half": (80, (26, 42, 64, 118)), "bfloat": (80, (26, 40, 66, 118)), "wide": (64, (21, 32, 64, 114)),
           "unknown": (64, (0, 0, 0, 0)), "huge": (64, (255, 255, 255, 255))}  # fmt: skip
"""Bytes of a step in registers; nvcc's registers for 1, 2, 4 and 8 steps: the production norm's in three types."""
PICKED = (
    ("half", 256, 512, 1), ("bfloat", 256, 512, 1), ("wide", 256, 512, 1), ("half", 32, 640, 2), ("half", 128, 1376, 4), ("half", 64, 2048, 4),
    ("half", 1024, 512, 4), ("half", 512, 1792, 4), ("bfloat", 512, 1792, 4), ("half", 16384, 1024, 4), ("bfloat", 8192, 1536, 2),
    ("bfloat", 384, 896, 2), ("softmax", 256, 1024, 2),
    ("half", 1, 1, 1), ("half", 1, 0, 0), ("half", 0, 512, 1), ("half", 7, 100_000, 0), ("half", 1, 1 << 40, 0), ("unknown", 384, 896, 2),
    ("huge", 384, 896, 8),
)  # fmt: skip
"""Rows, steps of 16 bytes, and what was fastest on an H200, within 2 %; those from half, 1, 1 on were not measured."""


def test_the_host_picks_what_was_measured_fastest_and_asks_the_driver_once(tmp_path: Path) -> None:
    lines = [f"const int {name}[] = {{{', '.join(map(str, taken))}}};" for name, (_, taken) in KERNELS.items()]
    lines += ["int main() {", "for (int round = 0; round < 2; ++round) {"]
    for name in KERNELS:
        chosen = "decltype(items)::value"
        index = f"{chosen} == 8 ? 3 : {chosen} / 2"
        asks = f"cudaFuncGetAttributes(of, &{name}[{index}]);"
        lines.append(f"const auto of_{name} = [](auto items, cudaFuncAttributes* of) {{ {asks} }};")
    for name, rows, steps, _ in PICKED:
        lines.append(f'std::printf("%d ", row_items({rows}, {steps}LL, {KERNELS[name][0]}, of_{name}));')
    lines += ['std::printf("%d\\n", questions);', "}", "}"]
    source, program = tmp_path / "picks.cpp", tmp_path / "picks"
    source.write_text("\n".join([ASKED, *map(text_of, ("ceil_div", "multiprocessors", "row_items")), *lines]))
    subprocess.run(["g++", "-std=c++17", "-Wall", "-Werror", "-o", program, source], check=True)
    first, second = subprocess.run([program], capture_output=True, text=True, check=True).stdout.splitlines()
    assert [int(n) for n in first.split()[:-1]] == [items for *_, items in PICKED]
    assert second == first, "the numbers of questions and all answers stay"


NORM, SILU = ROOT / "kernels/fused_add_rmsnorm", catalog.load("silu_and_mul")
PICKS = {"float16:tokens=13,hidden=4096": "8", "bfloat16:tokens=12,hidden=2048": "2", "float32:tokens=2,hidden=2048": "1",
         "bfloat16:tokens=2,hidden=9000": "4"}  # fmt: skip


def kept() -> str:
    text = (NORM / "baseline.extracted.cu").read_text()
    text = where_they_apply(text, "restrict_pointers canonicalize_reductions vectorize")
    return after(text, "cache_row_in_registers programmatic_dependent_launch")


def test_every_number_of_steps_computes_the_same(tmp_path: Path) -> None:
    """On a device of one multiprocessor a few rows are many waves."""
    text = kept().replace("  return best;", '  std::fprintf(stderr, "%d ", best);\n  return best;')
    assert check(text, tmp_path, NORM, "0", *PICKS, EMULATE_MULTIPROCESSORS="1").split() == list(PICKS.values())


def test_rows_over_a_cluster_compute_the_same(tmp_path: Path) -> None:
    text = bake(after(kept(), "cluster_split"), {"CLUSTER_STEPS": 128, "CLUSTER_THREADS": 64})
    sizes = ["float16:tokens=3,hidden=2048", "bfloat16:tokens=2,hidden=8200", "float32:tokens=1,hidden=515"]
    check(text, tmp_path, NORM, "0", "1", *sizes, EMULATE_BACKWARDS="1")


LIMIT, COVERED, HIGH = "cuts = slices < 65535 ? slices : 65535", "cuts * along >= steps", "high / 65536 + 1"


def test_rows_longer_or_more_than_a_grid_are_computed_too(tmp_path: Path) -> None:
    """With a grid of at most two slices packs fit it, single elements of long rows do not; one of a few blocks in y goes on in z."""
    text, facts = SILU.baseline("cuda", "production")[1].read_text(), Facts(spec=SILU.spec, device=H200)
    steps = "trim_vector_tail restrict_pointers fast_math vectorize grid_stride drop_grid_stride_loop"
    text = where_they_apply(text, steps, facts=facts)
    assert "kOneStep" in text and text.count(LIMIT) == text.count(COVERED) == text.count(HIGH) == 1
    small = text.replace(LIMIT, "cuts = slices < 2 ? slices : 2").replace(HIGH, "high / 4 + 1")
    sizes = (
        "float16:tokens=3,hidden=1021",
        "float16:tokens=2,hidden=8200",
        "float32:tokens=5,hidden=12",
        "float16:tokens=37,hidden=264",
    )
    check(small, tmp_path, SILU.folder, "0", "1", *sizes)
    with pytest.raises(AssertionError, match="values wrong"):
        check(small.replace(COVERED, "true"), tmp_path, SILU.folder, "0", "1", *sizes)


def test_every_pack_but_the_ends_moves_in_one_piece(tmp_path: Path) -> None:
    """Rows from any address, in place and not; x, y and w aligned alike and not."""
    text = behind(VECTORS["unaligned rows"])
    text = re.sub(r"in_one_piece<N>\((from|to), part\)\) \{", r"\g<0> ++pieces;", text).replace(
        ">= 4 * PACK", ">= 0 * PACK"
    )
    assert text.count("++pieces") == 2
    built = library('extern "C" { int pieces = 0; }\n' + text, tmp_path)
    pieces, rows = ctypes.c_int.in_dll(built, "pieces"), 3
    generator = torch.Generator().manual_seed(3)
    for n in (0, 1, 7, 8, 9, 15, 16, 17, 129, 257):
        for x_at, y_at in ((0, 0), (1, 1), (7, 7), (0, 3), (5, 0)):
            x, y = (torch.randn(64 + rows * n + 64, generator=generator).half() for _ in range(2))
            w = torch.randn(n + 1, generator=generator).half()
            want, before = x[x_at : x_at + rows * n].view(rows, n) + w[1:], y.clone()
            pointers = [ctypes.c_void_p(t.data_ptr() + 2 * o) for t, o in ((x, x_at), (w, 1), (y, y_at))]
            pieces.value = 0
            built.fuzz_float16(*pointers, ctypes.c_long(rows), ctypes.c_long(n), None)
            assert torch.equal(y[y_at : y_at + rows * n].view(rows, n), want), (n, x_at, y_at)
            assert torch.equal(y[:y_at], before[:y_at]) and torch.equal(y[y_at + rows * n :], before[y_at + rows * n :])
            if x_at == y_at and n % 8 and x.data_ptr() % 16 == y.data_ptr() % 16 == 0:
                begins = [x_at + row * n for row in range(rows)]
                whole = [max(0, (begin + n) // 8 - -(-begin // 8)) for begin in begins]
                of_w = sum(packs for packs, begin in zip(whole, begins, strict=True) if (1 - begin) % 8 == 0)
                assert pieces.value == 2 * sum(whole) + of_w, (n, x_at)
            built.fuzz_float16(pointers[2], pointers[1], pointers[2], ctypes.c_long(rows), ctypes.c_long(n), None)
            assert torch.equal(y[y_at : y_at + rows * n].view(rows, n), want + w[1:]), "in place"
