"""Device functions written out where they are called, kernels for each side of a branch, indices declared where they are set."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernels import catalog
from nodes.policies.rules import applied_step
from nodes.rewrites import Facts
from tests.nodes.rewrites.steps import H200, ROOT, after, check, flat, refused

PAIRS = """\
#include <stdint.h>

template <typename scalar, int STEP = 2>
__device__ inline void turn(scalar* __restrict__ to, const scalar* from, const float angle, int place, int64_t shift) {
  // neighbours
  const int first = STEP * place;
  const float a = from[first] * angle;
  float row = from[first + 1];
  row += a;
  to[first] = a - row;
  to[first + 1] = a + shift;
}

template <typename T>
__global__ void turn_rows(const T* x, const float* angles, T* y, int n) {
  const int row = blockIdx.x;
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    const float a = angles[i];
    turn(y + row * 2 * n, x + row * 2 * n, a, i, row);
  }
}

extern "C" void run(const float* x, const float* angles, float* y, int rows, int n, cudaStream_t stream) {
  turn_rows<float><<<rows, 256, 0, stream>>>(x, angles, y, n);
}
"""
WRITTEN_OUT = """\
    const float a = angles[i];
    float* to = y + row * 2 * n;
    const float* from = x + row * 2 * n;
    const int64_t shift = row;
    // neighbours
    const int first = 2 * i;
    const float a_2 = from[first] * a;
    float row_2 = from[first + 1];
    row_2 += a_2;
    to[first] = a_2 - row_2;
    to[first + 1] = a_2 + shift;
"""


def test_a_call_becomes_its_statements() -> None:
    new = after(PAIRS, "inline_device_functions")
    assert WRITTEN_OUT.replace("float*", "T*").replace("const T* from", "const T* from") in new
    assert "turn(" not in new and "STEP" not in new, "what nothing calls any more goes"
    assert refused(PAIRS, "vectorize") and "store_lanes(" in after(new, "vectorize")


CALL = "turn(y + row * 2 * n, x + row * 2 * n, a, i, row);"
REFUSED = {
    "a return before the end": ("  row += a;", "  if (a > row) return;\n  row += a;"),
    "recursion": ("  row += a;", "  turn(to, from, angle, place, shift);"),
    "a barrier": ("  row += a;", "  __syncthreads();"),
    "a shuffle": ("  row += a;", "  row += __shfl_xor_sync(~0u, a, 1);"),
    "memory of its own": ("  row += a;", "  __shared__ float held[4];"),
    "a static variable": ("  row += a;", "  static int calls;"),
    "a lambda": ("  row += a;", "  const auto f = [&] { return a; };\n  row += f();"),
    "assembly": ("  row += a;", '  asm volatile("" : "+f"(row));'),
    "a jump": ("  row += a;", "  goto end;\n  end: row += a;"),
    "a type of its own": ("  row += a;", "  using other = float;"),
    "another overload": ("template <typename T>\n", "__device__ void turn(double* to, int at) { to[at] = 0; }\n\ntemplate <typename T>\n"),
    "a macro of that name": ("template <typename T>\n", "#define turn(a, b, c, d, e) 0\n\ntemplate <typename T>\n"),
    "a function that is not for the device": ("__device__ inline void turn", "inline void turn"),
    "one that is to stay": ("__device__ inline", "__device__ __noinline__"),
    "a condition": (CALL, "i > 0 && (turn(y, x, a, i, row), true);"),
    "the head of a loop": (CALL, "for (turn(y, x, a, i, row); i < 0;) {}"),
    "a name that the kernel means otherwise": ("  row += a;", "  row += angles;"),
    "a macro that names a variable": ("template <typename scalar", "#define ADD(v) row += v\ntemplate <typename scalar"),
    "a result": ("__device__ inline void turn", "__device__ inline float turn"),
    "a method": (CALL, "maker.turn(y, x, a, i, row);"),
    "another scope": ("template <typename scalar, int STEP = 2>", "namespace inner {\ntemplate <typename scalar, int STEP = 2>"),
    "arguments that are left out": ("int64_t shift)", "int64_t shift, int more = 0)"),
    "a type that is not known": ("int STEP = 2>", "int STEP = 2, typename other = scalar, int N>"),
}  # fmt: skip


@pytest.mark.parametrize(("old", "new"), REFUSED.values(), ids=REFUSED)
def test_functions_that_cannot_be_written_out(old: str, new: str) -> None:
    text = PAIRS.replace(old, new)
    if "namespace" in new:
        text = text.replace(
            "template <typename T>\n__global__", "}\nusing inner::turn;\ntemplate <typename T>\n__global__"
        )
    if "ADD" in new:
        text = text.replace("row += a;", "ADD(a);")
    assert text != PAIRS and refused(text, "inline_device_functions")


def test_arguments_are_computed_once_and_names_do_not_mix() -> None:
    text = PAIRS.replace(CALL, "int count = i; turn(y, x, a, count++, row); if (i) turn(y, x, angles[i], i, row);")
    new = flat(after(text, "inline_device_functions"))
    assert "const int place = count++; const int64_t shift = row;" in new
    assert "if (i) { const float angle = angles[i]; const int64_t shift_2 = row; // neighbours" in new
    pointed = after(PAIRS.replace(CALL, "const T* at = &a; turn<T>(y, at, a, i, row);"), "inline_device_functions")
    assert "const float angle = a;" in pointed, "which may change through the pointer"
    hidden = PAIRS.replace("float* angles, T* y, int n)", "float* angles, T* y, int n, int first)").replace(
        "y, n);", "y, n, 0);"
    )
    assert "const int first_2 = 2 * i;" in after(hidden, "inline_device_functions"), (
        "a parameter that the body does not name"
    )
    said = after(
        PAIRS.replace("a + shift;", "a + shift;  // last").replace(CALL, f"{CALL} y[0] = a;"), "inline_device_functions"
    )
    assert "shift; y[0] = a;" in said
    mutated = after(PAIRS.replace("  row += a;", "  row += a;\n  ++place;"), "inline_device_functions")
    assert "int place = i;" in mutated and "const int place" not in mutated
    hidden = after(PAIRS.replace("const float a = from[first]", "const float sum = from[first]").replace(
        "row += a;", "row += sum;").replace("= a - row", "= sum - row").replace("= a + shift", "= sum + shift").replace(
        CALL, f"{CALL}\n    y[0] = sum(a);"), "inline_device_functions")  # fmt: skip
    assert "const float sum_2 = from[first]" in hidden and "y[0] = sum(a);" in hidden


ARRAYS = """\
template <typename T, int N>
__device__ void load_row(float (&to)[N], const T* from, const int& place) {
  for (int j = 0; j < N; ++j) to[j] = static_cast<float>(from[N * place + j]);
}
__device__ void scale(float (&v)[4], float& factor) {
  for (int j = 0; j < 4; ++j) v[j] *= factor;
  factor = 1.0f;
}

__global__ void scaled(const short* x, float* y, int n) {
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    float held[4], by = 2.0f;
    load_row<short, 4>(held, x, i + 1);
    scale(held, by);
    y[i] = held[0] * by;
  }
}

extern "C" void run(const short* x, float* y, int rows, int n, cudaStream_t stream) {
  scaled<<<rows, 256, 0, stream>>>(x, y, n);
}
"""


def test_references_are_the_variables_that_they_name() -> None:
    new = after(ARRAYS, "inline_device_functions")
    assert "    for (int j = 0; j < 4; ++j) held[j] = static_cast<float>(x[4 * place + j]);\n" in new
    assert "const int place = i + 1;" in new
    assert "for (int j_2 = 0; j_2 < 4; ++j_2) held[j_2] *= by;\n    by = 1.0f;\n" in new
    assert refused(ARRAYS.replace("float held[4]", "float held[5]"), "inline_device_functions"), "another length"


BRANCHED = """\
template <bool FLIP>
__global__ void copy(const float* x, float* y, int n) {
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    int from, to;
    if (FLIP) {
      from = n + i;
      to = i;
    } else {
      from = i;
      to = n + i;
    }
    y[to] = x[from];
  }
}

extern "C" void run(const float* x, float* y, int flip, int n, cudaStream_t stream) {
  if (flip) {
    copy<true><<<1, 256, 0, stream>>>(x, y, n);
  } else {
    copy<false><<<1, 256, 0, stream>>>(x, y, n);
  }
}
"""


def test_launches_of_either_side_get_a_kernel_each() -> None:
    assert refused(BRANCHED, "fold_branches") and refused(BRANCHED, "vectorize")
    new = flat(after(BRANCHED, "split_template_instances", "fold_branches", "single_assignment"))
    assert "int from = n + i; int to = i; y[to] = x[from];" in new
    assert "int from = i; int to = n + i; y[to] = x[from];" in new
    assert "copy<true><<<1" in new and "copy_not_flip<false><<<1" in new
    packed = after(new, "vectorize")
    assert packed.count("store_lanes(&y[to]") == 2


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("copy<false>", "copy<true>"),
        ("<bool FLIP>", "<int FLIP>"),
        ("copy<true><<<", "copy<kFlip><<<"),
        ("if (FLIP) {", "if (n) {"),
    ],
)
def test_other_kernels_stay_one(old: str, new: str) -> None:
    assert refused(BRANCHED.replace(old, new), "split_template_instances")


def test_a_branch_under_a_loop_without_braces_keeps_its_own() -> None:
    text = BRANCHED.replace("copy<false>", "copy<true>").replace(
        "    if (FLIP) {", "    for (int k = 0; k < 2; ++k)\n    if (FLIP) {"
    )
    assert "for (int k = 0; k < 2; ++k) { from = n + i; to = i; }" in flat(after(text, "fold_branches"))
    either = text.replace("    for (int k = 0; k < 2; ++k)\n", "    if (n > 7) from = to = 0;\n    else ")
    assert "else { from = n + i; to = i; }" in flat(after(either, "fold_branches"))


def test_heads_whose_neighbours_rotate_come_out_right(tmp_path: Path) -> None:
    """The other side of tests/inputs/rotary_query_key, whose own workloads rotate halves."""
    for file in (ROOT / "tests/inputs/rotary_query_key").iterdir():
        if file.is_file():
            (tmp_path / file.name).write_text(file.read_text().replace("value=1)", "value=0)"))
    kernel = catalog.load(str(tmp_path))
    assert kernel.spec.scalars["is_neox"] == 0
    text, facts = kernel.baseline("cuda", "plain")[1].read_text(), Facts(spec=kernel.spec, device=H200)
    for step in (
        "inline_device_functions",
        "split_template_instances",
        "fold_branches",
        "single_assignment",
        "vectorize",
    ):
        new = applied_step(step, text, facts)
        assert new is not None, step
        text = new
    made = text[text.index("rotary_query_key_kernel_not_is_neox(") :]
    assert "cos_sin_cache_pack.at[k]" in made, "twice an index over two is followed"
    check(text, tmp_path, tmp_path, "0", "1")


SET_LATER = BRANCHED.replace("if (FLIP) {", "{").replace("} else {\n      from = i;\n      to = n + i;\n    }", "}")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("", ""),  # in a block of its own, where the name would end
        ("    {\n      from", "    y[from] = 0;\n    from"),
        (
            "    {\n      from = n + i;\n      to = i;\n    }",
            "    from = i;\n    from = from + 1;\n    to = i, to = 2;",
        ),
        ("    {\n      from = n + i;\n      to = i;\n    }", "    from = from + i;\n    to += i;"),
        ("    {\n      from = n + i;\n      to = i;\n    }", "    if (i) from = i;\n    if (i) to = i;"),
        ("int from, to;", "float from, to;"),
        ("int from, to;", "static int from, to;"),
    ],
)
def test_variables_that_are_set_otherwise_stay(old: str, new: str) -> None:
    assert refused(SET_LATER.replace(old, new) if old else SET_LATER, "single_assignment")


def test_a_quotient_without_a_rest_is_followed() -> None:
    text = BRANCHED.replace("y[to] = x[from];", "const int twice = 2 * i;\n    y[twice / 2] = x[i];")
    assert "store_lanes(&y[" in after(text, "vectorize")
    assert "store_lanes(&" not in after(text.replace("2 * i;", "2 * i + 1;"), "vectorize")
