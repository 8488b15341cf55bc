"""Kernels written with structs: taken by value, with methods, as functors, as a template's parameter; and with lambdas."""

from __future__ import annotations

import pytest

from tests.nodes.rewrites.steps import after, flat, refused, same
from tests.nodes.rewrites.test_differential import ENTRY, HEAD

PARAMETERS = """\
template <typename T>
struct Params {
  const T* input;
  T *output, *other;
  int64_t n, stride;
  const float scale = 2.0f;
};

template <typename T>
__global__ void scale_kernel(const Params<T> params) {
  for (int i = threadIdx.x; i < params.n; i += blockDim.x) {
    params.output[blockIdx.x * params.n + i] = params.input[blockIdx.x * params.n + i] * params.scale;
  }
}

extern "C" void fuzz_float32(const float* x, float* y, int64_t rows, int64_t n, cudaStream_t stream) {
  Params<float> given = {x, y, y, n, n};
  scale_kernel<float><<<rows, 256, 0, stream>>>(given);
}
"""
LAUNCH = "scale_kernel<float><<<rows, 256, 0, stream>>>(given);"


def test_a_kernel_takes_the_members_that_it_reads() -> None:
    new = after(PARAMETERS, "unpack_struct_parameters")
    assert refused(PARAMETERS, "vectorize") and not refused(new, "vectorize")
    same({"members": (PARAMETERS, new)})


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("  int64_t n,", " private:\n  int64_t n,"),
        ("  int64_t n,", "  float held[4];\n  int64_t n,"),
        ("  int64_t n,", "  ~Params() {}\n  int64_t n,"),
        ("struct Params {", "struct Params : Base {"),
        ("const T* input;", "const T& input;"),
        ("  for (int i", "  use(params);\n  for (int i"),
        ("  for (int i", "  const Params<T>& same = params;\n  for (int i"),
        ("template <typename T>\n__global__", "#define N params.n\ntemplate <typename T>\n__global__"),
        (LAUNCH, LAUNCH.replace("given", "Params<float>{x, y, y, n, n}")),
        (LAUNCH, LAUNCH.replace("given", "made(x, y)")),
        ("template <typename T>\nstruct", "template <>\nstruct Params<int> { int n; };\ntemplate <typename T>\nstruct"),
    ],
)
def test_structs_that_stay_as_they_are(old: str, new: str) -> None:
    text = PARAMETERS.replace(old, new)
    if "#define" in new:
        text = text.replace("i < params.n", "i < N")
    assert text != PARAMETERS and refused(text, "unpack_struct_parameters")


METHODS = """\
template <typename From, typename To>
struct Load {
  Load(const From* from, int64_t n) : from(from), n(n) {}
  __device__ To at(int64_t row, int64_t i) const { return static_cast<To>(from[row * n + i]); }
  const From* from;
  int64_t n;
};
template <typename T>
struct Store {
  __device__ void put(T value, int i) const {
    const int64_t place = blockIdx.x * n + i;
    to[place] = value + place;
  }
  T* to;
  int64_t n;
};

template <typename LOAD, typename STORE, typename C>
__global__ void copy(LOAD load, STORE store, int n) {
  for (int i = threadIdx.x; i < n; i += blockDim.x) store.put(load.at(blockIdx.x, i) * C(3), i);
}

template <typename T>
void launch(const T* x, T* y, int64_t rows, int64_t n, cudaStream_t stream) {
  Load<T, float> load(x, n);
  copy<Load<T, float>, Store<T>, float><<<rows, 256, 0, stream>>>(load, Store<T>{y, n}, n);
}
extern "C" void fuzz_float32(const float* x, float* y, int64_t rows, int64_t n, cudaStream_t stream) {
  launch(x, y, rows, n, stream);
}
"""


def test_structs_of_any_type_are_those_that_launches_pass() -> None:
    new = after(METHODS, "resolve_struct_templates")
    other = METHODS.replace(
        "  copy<", "  copy<Store<T>, Store<T>, float><<<1, 1, 0, stream>>>(Store<T>{y, n}, Store<T>{y, n}, 0);\n  copy<"
    ).replace("  T* to;", "  __device__ T at(int64_t row, int64_t i) const { return to[row * n + i]; }\n  T* to;")
    cut = METHODS.index("template <typename LOAD")
    head, store = METHODS[:cut].split("template <typename T>\nstruct Store")
    below = f"{head}{METHODS[cut:]}".replace(
        "template <typename T>\nvoid", f"template <typename T>\nstruct Store{store}template <typename T>\nvoid"
    )
    plain = METHODS.replace("template <typename LOAD, typename STORE, typename C>\n", "template <typename STORE>\n").replace(
        "LOAD load", "Load<float, float> load").replace("C(3)", "3.0f").replace(
        "copy<Load<T, float>, Store<T>, float>", "copy<Store<float>>").replace("Store<T>{y", "Store<float>{y")  # fmt: skip
    texts = {"two types": other, "a struct that is not known there": below, "no template left": plain}
    made = {name: (text, after(text, "resolve_struct_templates")) for name, text in texts.items()}
    same(made | {"any type": (METHODS, new)})


def test_methods_stand_where_they_are_called() -> None:
    new = after(METHODS, "resolve_struct_templates", "inline_device_functions")
    assert "load.at(" not in new and "store.put(" not in new
    held = new.replace("Load<T, float> load(x, n);", "Load<T, float> load(x, n); Store<T> store{y, n};")
    packed = after(held.replace("(load, Store<T>{y, n}", "(load, store"), "unpack_struct_parameters", "vectorize")
    assert "store_lanes(&store_to[place]" in packed
    same({"methods": (METHODS, new), "in packs": (METHODS, packed)})


OBJECTS = """\
struct Highest {
  float m = -1.0f;
  int seen = 0;
  __device__ void take(float v) {
    m = fmaxf(m, v);
    ++seen;
  }
};
struct Shift {
  __device__ Shift(float by, float of) : by(by), of(of) {}
  __device__ float operator()(float v) const { return v * of - by; }
  const float by, of;
};
template <typename F>
__device__ void for_each(const float* from, int n, F&& visit) {
  for (int i = threadIdx.x; i < n; i += blockDim.x) visit(i, from[i]);
}
__device__ float most_of(const float* from, int n, Highest found) {
  for (int i = 0; i < n; ++i) found.take(from[i]);
  return found.m + found.seen;
}
__device__ float sum_of(const float* from, int n) {
  float v = 0.0f;
  for (int i = 0; i < n; ++i) v += from[i];
  return v;
}
"""
BODIES = {
    "an object that its method changes": """
  Highest highest;
  for (int i = 0; i < n; ++i) highest.take(x[blockIdx.x * n + i]);
  for (int i = threadIdx.x; i < n; i += blockDim.x) y[blockIdx.x * n + i] += highest.m + highest.seen;
""",
    "an object made of what keeps its value": """
  const float of = 3.0f, by = x[0];
  const Shift shift(by, of);
  for (int i = threadIdx.x; i < n; i += blockDim.x) y[blockIdx.x * n + i] = shift(x[blockIdx.x * n + i] + 1);
""",
    "an object made of what changes": """
  float of = 3.0f, by = x[0];
  const Shift shift(by, of);
  of = 4.0f;
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    const float by = 7.0f;
    y[blockIdx.x * n + i] = shift(x[blockIdx.x * n + i] + by);
  }
""",
    "lambdas": """
  const float by = x[1];
  float* row = y + blockIdx.x * n;
  for_each(x + blockIdx.x * n, n, [&](int i, const float& v) { row[i] = v * by; });
  for_each(x + blockIdx.x * n, n, [=](int j, float v) { row[j] += v; });
""",
    "a lambda of values": """
  float by = x[1];
  float* row = y + blockIdx.x * n;
  const auto visit = [=](int i, float v) { row[i] = v * by; };
  by = 5.0f;
  for (int i = threadIdx.x; i < n; i += blockDim.x) visit(i, x[i] + by);
""",
    "a lambda whose names mean something else": """
  const float by = x[1];
  float* row = y + blockIdx.x * n;
  const auto visit = [&](int i, float v) { row[i] = v * by; };
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    const float by = 9.0f;
    visit(i, x[i] + by);
  }
""",
    "a reference to what the lambda changes": """
  float* row = y + blockIdx.x * n;
  const auto visit = [&](int i, const float& v) {
    row[i] = 2 * v;
    row[i] += v;
  };
  for (int i = threadIdx.x; i < n; i += blockDim.x) visit(i, row[i]);
""",
    "an array that a lambda copies": """
  float held[2] = {x[1], x[2]};
  float* row = y + blockIdx.x * n;
  const auto visit = [=](int i, float v) { row[i] = v * held[0]; };
  held[0] = 5.0f;
  for (int i = threadIdx.x; i < n; i += blockDim.x) visit(i, x[i]);
""",
    "an object that is handed on as a copy": """
  Highest highest;
  highest.take(x[0]);
  const float copied = most_of(x + blockIdx.x * n, n, highest);
  for (int i = threadIdx.x; i < n; i += blockDim.x) y[blockIdx.x * n + i] += highest.m + 2 * copied + highest.seen;
""",
    "names that a method has as well": """
  const float of = 3.0f, v = x[0];
  const Shift shift(v, of);
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    float w = x[i];
    w = shift(w * 2);
    y[blockIdx.x * n + i] = w;
  }
""",
    "results": """
  float total = sum_of(x + blockIdx.x * n, n);
  total = sum_of(y + blockIdx.x * n, n) + total;
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += blockDim.x) y[blockIdx.x * n + i] = total;
""",
}  # fmt: skip


KEPT = {"an array that a lambda copies", "a lambda of values", "a lambda whose names mean something else"}


def test_what_is_written_out_computes_the_same() -> None:
    texts = {}
    for name, inside in BODIES.items():
        kernel = f"__global__ void trap_kernel(const float* x, float* y, int64_t n) {{{inside}}}\n"
        text = HEAD + OBJECTS + kernel + ENTRY.format(launch="trap_kernel<<<rows, 64, 0, stream>>>(x, y, n);")
        assert refused(text, "inline_device_functions") == (name in KEPT), name
        if name not in KEPT:
            texts[name] = text, "inline_device_functions"
            new = after(*texts[name])
            body = flat(new[new.index("__global__") :])
            assert not any(
                call in body.replace("const Shift shift(", "") for call in ("for_each(", "take(", "shift(")
            ), name
            assert ("Shift shift" in body) == (name == "an object made of what changes")
    same(texts)
