"""The rewrite keep_value: what two passes over a row in registers both compute is kept by the first of them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from nodes.rewrites.prelude import text_of
from tests.nodes.rewrites.steps import ROOT, after, body, refused, where_they_apply
from tests.nodes.rewrites.test_cache_row_in_registers import ASKED
from tests.nodes.rewrites.test_cuda_rewrites import compile_for_hopper
from tests.nodes.rewrites.test_row_rewrites import PREPARE, SOFTMAX

ROWS = after(SOFTMAX, "canonicalize_reductions", "vectorize", "cache_row_in_registers")
HELPER = "__device__ float {}\n\n__global__ void soft_rows"
EXPONENTIAL = "expf(x_pack.at[k] - top)"
SUM = f"sum += {EXPONENTIAL};"
QUOTIENT = f"y_pack.at[k] = {EXPONENTIAL} / total;"


def changed(old: str, new: str, text: str = ROWS) -> str:
    """With the last kernel's words replaced, which is the one that cache_row_in_registers made; helpers stand before both."""
    assert old in text, old
    if old.startswith("__global__"):
        return text.replace(old, new, 1)
    start = text.rindex("__global__")
    assert old in text[start:], old
    return text[:start] + text[start:].replace(old, new)


def kept(text: str) -> str:
    """The passes behind the maximum, in one line."""
    new = body(after(text, "cache_values_in_registers"), "_in_registers")
    return new[new.index("float sum = 0") :]


# How it reads.


def test_it_applies_once_and_only_to_rows_in_registers() -> None:
    assert refused(after(ROWS, "cache_values_in_registers"), "cache_values_in_registers")
    assert refused(after(SOFTMAX, "canonicalize_reductions", "vectorize"), "cache_values_in_registers")
    assert refused(ROWS.replace("// What blocks share", "// Whatever blocks share"), "cache_values_in_registers"), (
        "somebody else's"
    )


def test_a_value_with_a_name_keeps_it() -> None:
    text = changed(SUM, f"const float e = {EXPONENTIAL};\n        sum += e;")
    text = changed(QUOTIENT, f"const float e = {EXPONENTIAL};\n        y_pack.at[k] = e * e / total;", text)
    new = kept(text)
    assert "const float e = expf(x_pack.at[k] - top); e_row[item][k] = e; sum += e;" in new
    assert "const float e = kKept ? e_row[item][k] : expf(x_pack.at[k] - top);" in new


def test_a_row_that_is_wanted_for_more_keeps_its_registers() -> None:
    new = kept(changed(QUOTIENT, f"y_pack.at[k] = {EXPONENTIAL} * x_pack.at[k] / total;"))
    assert "row_has_room<ITEMS, sizeof(Lanes<float, VEC>), 0, sizeof(expf_row[0])>" in new
    assert "if constexpr" not in new and new.count("hold_packed(x_row[item]);") == 2


def test_a_body_without_braces_gets_them() -> None:
    lanes = "for (int k = 0; k < VEC; ++k) {{\n        {}\n      }}"
    new = kept(changed(lanes.format(SUM), f"for (int k = 0; k < VEC; ++k)\n        {SUM}"))
    assert "for (int k = 0; k < VEC; ++k) { expf_row[item][k] = expf(x_pack.at[k] - top); sum += " in new


VECTORS = SOFTMAX.replace("const float* x", "const float4* x").replace("float* y", "float4* y")
VECTORS = VECTORS.replace(
    "v = fmaxf(v, x[blockIdx.x * n + i]);", "{ const float4 a = x[blockIdx.x * n + i]; v = fmaxf(v, fmaxf(a.x, a.y)); }"
)
VECTORS = VECTORS.replace(
    "sum += expf(x[blockIdx.x * n + i] - top);",
    "{ const float4 a = x[blockIdx.x * n + i]; sum += expf(a.x - top) + expf(a.y - top); }",
)
VECTORS = VECTORS.replace(
    "y[blockIdx.x * n + i] = expf(x[blockIdx.x * n + i] - top) / total;",
    "{ float4 a = x[blockIdx.x * n + i]; a.x = expf(a.x - top) / total; a.y = expf(a.y - top) / total; "
    "a.z = a.w = 0.0f; y[blockIdx.x * n + i] = a; }",
)


def test_fields_of_a_vector_are_values_of_their_own() -> None:
    text = after(VECTORS, "canonicalize_reductions", "cache_row_in_registers")
    new = kept(text)
    assert "float expf_row[ITEMS]; float expf_row_2[ITEMS];" in new
    assert "sizeof(float4), 0, sizeof(expf_row[0]) + sizeof(expf_row_2[0])>" in new
    assert "expf_row[item] = expf(a.x - top); expf_row_2[item] = expf(a.y - top); sum += expf_row[item] +" in new
    assert "a.x = (kKept ? expf_row[item] : expf(a.x - top)) / total;" in new
    assert "a.y = (kKept ? expf_row_2[item] : expf(a.y - top)) / total;" in new
    once = kept(changed("a.x = expf", "a.y = 0.0f;\n      a.x = expf", text))
    assert "expf_row_2" not in once, "an element that is overwritten before it is computed of again"


# What is the same.


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("expf((x_pack.at[k]) - top)", "(expf(x_row[item].at[k] - (top)))"),
        ("expf((float)x_pack.at[k] - top)", "expf(static_cast<float>(x_pack.at[k]) - top)"),
        ("exp(static_cast<float>(x_pack.at[k]) - top)", "exp((float)x_pack.at[k] - top)"),
        ("__fdividef(1.0f, 1.0f + x_pack.at[k])", "__fdividef(1.0f, 1.0f + x_pack.at[k])"),
        ("(x_pack.at[k] / (top + 1.0f))", "(x_pack.at[k] / (top + 1.0f))"),
        ("tanhf(x_pack.at[k] * VEC)", "tanhf(x_pack.at[k] * VEC)"),
        ("expf(fmaxf(x_pack.at[k], -INFINITY))", "expf(fmaxf(x_pack.at[k], -INFINITY))"),
        ("softer(x_pack.at[k], top)", "softer(x_pack.at[k], top)"),
        ("logf(read(&x_pack.at[k]))", "logf(read(&x_pack.at[k]))"),
    ],
)
def test_values_that_mean_the_same_are_kept(first: str, second: str) -> None:
    soft = "softer(float v, float m) {\n  float d = v - m;\n  d += 1.0f;\n  return expf(d);\n}"
    text = changed("__global__ void soft_rows", HELPER.format(soft))
    text = changed("__global__ void soft_rows", HELPER.format("read(const float* p) { return *p; }"), text)
    assert "_row[item][k] : " in kept(
        changed(SUM, f"sum += {first};", changed(QUOTIENT, f"y_pack.at[k] = {second};", text))
    )


# What is not.

TOTAL = "const float total = partial_sum;"
UNLIKE = {
    "another shift": [(QUOTIENT, "y_pack.at[k] = expf(x_pack.at[k] - total);")],
    "another function": [(QUOTIENT, "y_pack.at[k] = exp2f(x_pack.at[k] - top);")],
    "another lane": [(QUOTIENT, "y_pack.at[k] = expf(x_pack.at[VEC - 1 - k] - top);")],
    "another step": [(QUOTIENT, "y_pack.at[k] = expf(x_row[0].at[k] - top);")],
    "another type": [(QUOTIENT, "const int v = x_pack.at[k];\n        y_pack.at[k] = expf(v - top);")],
    "a shift that changes": [("const float top =", "float top ="), (TOTAL, f"{TOTAL} top += total;")],
    "a shift that is lent": [
        ("__global__ void soft_rows", "__device__ void move(float& t) { t = 0.0f; }\n\n__global__ void soft_rows"),
        ("const float top =", "float top ="), (TOTAL, f"{TOTAL} move(top);"),
    ],
    "a shift behind a pointer": [
        ("__global__ void soft_rows", "__device__ void move(float* t) { *t = 0.0f; }\n\n__global__ void soft_rows"),
        ("const float top =", "float top ="), (TOTAL, f"{TOTAL} move(&top);"),
    ],
    "a shift that others may change": [("const float top =", "volatile float top =")],
    "a shift in memory": [(SUM, "sum += expf(x_pack.at[k] - y[0]);"), (QUOTIENT, "y_pack.at[k] = expf(x_pack.at[k] - y[0]);")],
    "a row that changes": [(TOTAL, f"{TOTAL} x_row[0].at[0] = total;")],
    "a row that a pass changes": [
        ("const Lanes<float, VEC>& x_pack", "Lanes<float, VEC>& x_pack"), (SUM, f"{SUM}\n        x_pack.at[k] = sum;"),
    ],
    "a row with a pointer": [("float sum = 0.0f;", "float sum = 0.0f; float* p = x_row[0].at; p[1] = 0.0f;")],
    "a row that is lent": [
        ("__global__ void soft_rows", "__device__ void move(float* t) { t[1] = 0.0f; }\n\n__global__ void soft_rows"),
        (TOTAL, f"{TOTAL} move(x_row[0].at);"),
    ],
    "a neighbour overwritten": [
        ("const Lanes<float, VEC>& x_pack", "Lanes<float, VEC>& x_pack"),
        (QUOTIENT, f"{QUOTIENT}\n        x_pack.at[(k + 1) % VEC] = 0.0f;"),
    ],
    "overwritten before": [
        ("const Lanes<float, VEC>& x_pack", "Lanes<float, VEC>& x_pack"), (QUOTIENT, f"x_pack.at[k] = 0.0f;\n        {QUOTIENT}"),
    ],
    "only some elements": [(SUM, f"if (k > 0) {SUM}")],
    "only sometimes": [(SUM, f"sum += k > 0 ? {EXPONENTIAL} : 0.0f;")],
    "only if needed": [(SUM, f"sum += k > 0 && {EXPONENTIAL} > 0.5f;")],
    "until something is found": [(SUM, f"if (sum > top) break;\n        {SUM}")],
    "in a loop that may not turn": [(SUM, f"for (int turn = 0; turn < n % 2; ++turn) {SUM}")],
    "not twice": [(SUM, "sum += x_pack.at[k];")],
    "a function that says something else each time": [
        ("__global__ void soft_rows", HELPER.format("noise(float v) { return v * clock(); }")),
        (SUM, "sum += expf(noise(x_pack.at[k]));"), (QUOTIENT, "y_pack.at[k] = expf(noise(x_pack.at[k]));"),
    ],
    "a function that leaves something behind": [
        ("__global__ void soft_rows", "__device__ float seen;\n\n" + HELPER.format("note(float v) { seen = v; return v; }")),
        (SUM, "sum += expf(note(x_pack.at[k]));"), (QUOTIENT, "y_pack.at[k] = expf(note(x_pack.at[k]));"),
    ],
    "a cheap value": [(SUM, "sum += x_pack.at[k] - top;"), (QUOTIENT, "y_pack.at[k] = x_pack.at[k] - top;")],
    "a divisor of all": [(SUM, "sum += __fdividef(x_pack.at[k], top);"), (QUOTIENT, "y_pack.at[k] = __fdividef(x_pack.at[k], top);")],
    "the same for all": [(SUM, "sum += x_pack.at[k] + expf(top);"), (QUOTIENT, "y_pack.at[k] = expf(top);")],
    "a double": [(SUM, "sum += exp(static_cast<double>(x_pack.at[k]) - top);"), (QUOTIENT, "y_pack.at[k] = exp(static_cast<double>(x_pack.at[k]) - top);")],
    "a kernel that jumps": [("float sum = 0.0f;", "float sum = 0.0f; if (n < 0) goto end; end:;")],
}  # fmt: skip


@pytest.mark.parametrize("changes", UNLIKE.values(), ids=UNLIKE)
def test_values_that_may_differ_are_computed_again(changes: list[tuple[str, str]]) -> None:
    text = ROWS
    for old, new in changes:
        text = changed(old, new, text)
    assert refused(text, "cache_values_in_registers")


def test_a_pass_over_fewer_elements_is_another_one() -> None:
    head, tail = (
        ROWS[: ROWS.rindex("#pragma unroll\n  for (int item")],
        ROWS[ROWS.rindex("#pragma unroll\n  for (int item") :],
    )
    assert refused(
        head + tail.replace("if (pack < n / VEC)", "if (pack < n / VEC - 1)", 1), "cache_values_in_registers"
    )


# What fits, and what comes out.

FITS = [
    # steps, bytes of one, of these not needed any more, bytes of its values
    ((1, 16, 16, 32), True),
    ((4, 16, 16, 32), True),
    ((8, 16, 16, 16), True),  # float32: the value in the element's place
    ((8, 8, 8, 16), True),  # 16-bit elements, four to a pack
    ((8, 16, 16, 32), False),  # 64 registers of values, with 64 for a thread of the widest block
    ((2, 48, 0, 32), False),
    ((4, 48, 0, 32), True),
]


def test_values_are_kept_where_the_widest_block_has_registers_for_them(tmp_path: Path) -> None:
    lines = [f"static_assert({'' if fits else '!'}row_has_room<{', '.join(map(str, sizes))}>);" for sizes, fits in FITS]
    source = tmp_path / "fits.cpp"
    source.write_text("\n".join([ASKED, *map(text_of, ("ceil_div", "row_items", "row_has_room")), *lines]))
    subprocess.run(["g++", "-std=c++17", "-Wall", "-Werror", "-fsyntax-only", source], check=True)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on PATH")
def test_nvcc_computes_half_as_many_exponentials(tmp_path: Path) -> None:
    steps = ("fast_math", "cache_row_in_registers", "cache_values_in_registers", "programmatic_dependent_launch")
    start = where_they_apply((ROOT / "tests/inputs/row_softmax/baseline.plain.cu").read_text(), *PREPARE)
    before, now = (
        _exponentials(tmp_path, after(start, *(s for s in steps if s != left)))
        for left in ("cache_values_in_registers", "")
    )
    assert before == {(lanes, items): 2 * lanes * items for lanes in (4, 8) for items in (1, 2, 4, 8)}
    assert now == before | {at: count // 2 for at, count in before.items() if at != (8, 8)}


def _exponentials(folder: Path, text: str) -> dict[tuple[int, int], int]:
    """How often each kernel for rows in registers takes one, by lanes and steps."""
    candidate = folder / "candidate.cu"
    candidate.write_text(text)
    compile_for_hopper(candidate)
    command = ["nvcc", "-std=c++17", "-O3", "-arch=sm_90", "-ptx", "-o", candidate.with_suffix(".ptx"), candidate]
    subprocess.run(command, check=True, timeout=300)
    found = {}
    for entry in candidate.with_suffix(".ptx").read_text().split(".entry ")[1:]:
        sizes = re.match(r"\w*softmax_in_registersI\w*Li256ELi(\d+)ELi(\d+)E", entry)
        if sizes is not None:
            found[int(sizes[1]), int(sizes[2])] = entry.count("ex2.approx")
    return found
