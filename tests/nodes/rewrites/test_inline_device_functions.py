"""Device functions written out where they are called, kernels for each side of a branch, indices declared where they are set."""

from __future__ import annotations

import pytest

from tests.nodes.rewrites.steps import after, refused, same, where_they_apply

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

extern "C" void fuzz_float32(const float* x, const float* w, float* y, int64_t rows, int64_t n, cudaStream_t stream) {
  turn_rows<float><<<rows, 256, 0, stream>>>(x, w, y, n / 2);
}
"""


def test_a_call_becomes_its_statements() -> None:
    new = after(PAIRS, "inline_device_functions")
    same({"a call": (PAIRS, new)})
    assert "turn(" not in new, "what nothing calls any more goes"
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


HIDDEN = PAIRS.replace("const float a = from[first]", "const float sum = from[first]").replace(
    "row += a;", "row += sum;"
)
HIDDEN = (
    HIDDEN.replace("= a - row", "= sum - row")
    .replace("= a + shift", "= sum + shift")
    .replace("template <typename T>", "__device__ float sum(float v) { return 3 * v; }\n\ntemplate <typename T>")
)
HERE = "y[row * 2 * n + 2 * i]"
ARGUMENTS = {
    "computed once": PAIRS.replace(
        CALL,
        f"int count = i; {CALL.replace('a, i', 'a, count++')} if (i) {CALL.replace('a, i', 'angles[i], i')} {HERE} += count;",
    ),
    "a name that the body does not know": PAIRS.replace("T* y, int n)", "T* y, int n, int first)").replace(
        "n / 2)", "n / 2, 0)"
    ),
    "a comment at the end": PAIRS.replace("a + shift;", "a + shift;  // last\n").replace(CALL, f"{CALL} {HERE} += a;"),
    "a parameter that changes": PAIRS.replace("  row += a;", "  row += a;\n  ++place;").replace(
        CALL, f"{CALL} {HERE} += i;"
    ),
    "a function of the same name": HIDDEN.replace(CALL, f"{CALL}\n    {HERE} += sum(a);"),
}


def test_arguments_are_computed_once_and_names_do_not_mix() -> None:
    same({name: (text, after(text, "inline_device_functions")) for name, text in ARGUMENTS.items()})
    pointed = PAIRS.replace(CALL, "const T* at = &a; turn<T>(y, at, a, i, row);")
    assert "const float angle = a;" in after(pointed, "inline_device_functions"), "it may change through the pointer"


ARRAYS = """\
template <typename T, int N>
__device__ void load_row(float (&to)[N], const T* from, const int& place) {
  for (int j = 0; j < N; ++j) to[j] = static_cast<float>(from[N * place + j]);
}
__device__ void scale(float (&v)[4], float& factor) {
  for (int j = 0; j < 4; ++j) v[j] *= factor;
  factor = 1.0f;
}

__global__ void scaled(const float* x, float* y, int n) {
  for (int i = threadIdx.x; i < n / 4 - 1; i += blockDim.x) {
    float held[4], by = 2.0f;
    load_row<float, 4>(held, x, i + 1);
    scale(held, by);
    y[i] = held[0] + held[3] * by;
  }
}

extern "C" void fuzz_float32(const float* x, float* y, int64_t rows, int64_t n, cudaStream_t stream) {
  scaled<<<1, 256, 0, stream>>>(x, y, n);
}
"""


def test_references_are_the_variables_that_they_name() -> None:
    new = after(ARRAYS, "inline_device_functions")
    assert "load_row" not in new and "scale(" not in new
    same({"references": (ARRAYS, new)})
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

extern "C" void fuzz_float32(const float* x, float* y, int64_t rows, int64_t n, cudaStream_t stream) {
  if (rows > 2) {
    copy<true><<<1, 256, 0, stream>>>(x, y, n / 2);
  } else {
    copy<false><<<1, 256, 0, stream>>>(x, y, n / 2);
  }
}
"""


def test_launches_of_either_side_get_a_kernel_each() -> None:
    assert refused(BRANCHED, "fold_branches") and refused(BRANCHED, "vectorize")
    new = after(BRANCHED, "split_template_instances fold_branches single_assignment vectorize")
    assert new.count("store_lanes(&y[to]") == 2 and "FLIP)" not in new
    same({"either side": (BRANCHED, new)})


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
    text = BRANCHED.replace("copy<false>", "copy<true>")
    before = ("for (int k = 0; k < 2; ++k)\n", "if (n > 7) from = to = 0;\n else ")
    texts = [text.replace("    if (FLIP) {", f"    {words}    if (FLIP) {{") for words in before]
    same({str(n): (text, after(text, "fold_branches")) for n, text in enumerate(texts)})


SET_LATER = BRANCHED.replace("if (FLIP) {", "{").replace("} else {\n      from = i;\n      to = n + i;\n    }", "}")


SET = "    {\n      from = n + i;\n      to = i;\n    }"
BESIDE = SET_LATER.replace(SET, "    from = n + i;\n    to = i;")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("    from = n + i;\n    to = i;", SET),  # in a block of its own, where the name would end
        ("    from", "    y[from] = 0;\n    from"),
        ("    from = n + i;\n    to = i;", "    from = i;\n    from = from + 1;\n    to = i, to = 2;"),
        ("    from = n + i;\n    to = i;", "    from = from + i;\n    to += i;"),
        ("    from = n + i;\n    to = i;", "    if (i) from = i;\n    if (i) to = i;"),
        ("int from, to;", "float from, to;"),
        ("int from, to;", "static int from, to;"),
    ],
)
def test_variables_that_are_set_otherwise_stay(old: str, new: str) -> None:
    text = after(BESIDE, "single_assignment") and BESIDE.replace(old, new, 1)
    assert text != BESIDE and "int from = " not in where_they_apply(text, "single_assignment")


def test_a_quotient_without_a_rest_is_followed() -> None:
    text = BRANCHED.replace("y[to] = x[from];", "const int twice = 2 * i;\n    y[twice / 2] = x[i];")
    assert "store_lanes(&y[" in after(text, "vectorize")
    assert "store_lanes(&" not in after(text.replace("2 * i;", "2 * i + 1;"), "vectorize")
