"""Rows that stay in registers: how many steps of them a thread keeps, as the host works it out."""

from __future__ import annotations

import subprocess
from pathlib import Path

from nodes.rewrites.prelude import text_of
from tests.nodes.rewrites.steps import ROOT, after, check, where_they_apply

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
PICKED = [
    # rows, steps of 16 bytes, and what was fastest on an H200, within 2 %
    ("half", 256, 512, 1),
    ("bfloat", 256, 512, 1),
    ("wide", 256, 512, 1),
    ("half", 32, 640, 2),  # 1.49 us against 1.58 with 1
    ("half", 128, 1376, 4),  # 2.84 us against 2.91 with 2
    ("half", 64, 2048, 4),  # 2.85 us against 2.95 with 2
    ("half", 1024, 512, 4),
    ("half", 512, 1792, 4),
    ("bfloat", 512, 1792, 4),
    ("half", 16384, 1024, 4),
    ("bfloat", 8192, 1536, 2),
    ("bfloat", 384, 896, 2),  # 4.28 us against 4.73 with 1 and 6.90 with 4
    ("softmax", 256, 1024, 2),  # 2.61 us against 3.02 with 1
    # not measured
    ("half", 1, 1, 1),
    ("half", 1, 0, 0),
    ("half", 0, 512, 1),
    ("half", 7, 100_000, 0),
    ("half", 1, 1 << 40, 0),
    ("unknown", 384, 896, 2),
    ("huge", 384, 896, 8),
]


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


def test_every_number_of_steps_computes_the_same(tmp_path: Path) -> None:
    """On a device of one multiprocessor a few rows are many waves."""
    folder = ROOT / "kernels/fused_add_rmsnorm"
    start = (folder / "baseline.extracted.cu").read_text()
    text = where_they_apply(start, "restrict_pointers", "canonicalize_reductions", "vectorize")
    text = after(text, "cache_row_in_registers", "programmatic_dependent_launch")
    assert text.count("  return best;") == 1
    picks = {"float16:tokens=13,hidden=4096": "8", "bfloat16:tokens=12,hidden=2048": "2", "float32:tokens=2,hidden=2048": "1",
             "bfloat16:tokens=2,hidden=9000": "4"}  # fmt: skip
    said = check(
        text.replace("  return best;", '  std::fprintf(stderr, "%d ", best);\n  return best;'),
        tmp_path,
        folder,
        "0",
        *picks,
        EMULATE_MULTIPROCESSORS="1",
    )
    assert said.split() == list(picks.values())
