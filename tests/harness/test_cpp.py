"""C++ definitions are found by their brackets, whatever stands before and behind the name."""

import pytest

from harness.cpp import find_definitions, find_scopes, split, without_dead_conditionals

TEXT = """
#define void_f(a) void f(a) { }
// void f(int in_a_comment) { }
namespace outer::inner {
template <typename T, class U = Pair<int, 3>, int N = 4>
struct Norm {
  static auto f(T* __restrict__ y, const U x[], int n = max(1, 2)) const noexcept -> cudaError_t { g("}"); }
};
}
extern "C" {
__global__ void __launch_bounds__(max(64, 128), 2) f(float* y) { h(); }
}
int Other<int>::f(const std::pair<int, float>& p, int) { return f(p, 1); }
Other::Other(int a) { }
"""


def test_definitions_and_where_they_stand() -> None:
    first, second, third = find_definitions(TEXT, "f")
    assert first.scopes == ("outer", "inner", "Norm") and first.namespace == "outer::inner" and not first.has_c_linkage
    assert first.returns == "cudaError_t" and not first.is_kernel and TEXT[first.body :].startswith(' g("}"); }\n')
    assert [(p.type, p.name, p.default) for p in first.parameters] == [
        ("T*", "y", ""), ("const U*", "x", ""), ("int", "n", "max(1, 2)"),
    ]  # fmt: skip
    assert second.is_kernel and second.has_c_linkage and second.returns == "void" and second.scopes == ()
    assert third.scopes == ("Other",) and third.returns == "int"
    assert [p.name for p in third.parameters] == ["p", ""]
    assert TEXT[third.end] == "}" and not find_definitions(TEXT, "Other") and not find_definitions(TEXT, "g")


def test_parameters_of_templates() -> None:
    text = "template <typename T, template <class, int> class Of = Pair, int... N>\nvoid f(T x) { }"
    (found,) = find_definitions(text, "f")
    assert found.template_names == ["T", "Of", "N"] and found.returns == "void"
    assert find_scopes("template <class T> struct alignas(16) A final : B { int x; };", 55) == ["A"]
    assert split("a < b, f<c, d>(1, 2), x > y") == ["a < b", "f<c, d>(1, 2)", "x > y"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("#define A\n#if !defined(A)\nx\n#endif\ny\n", "y\n"),
        ("#define A\n#ifndef A\nx\n#else\nz\n#endif\ny\n", "z\ny\n"),
        (
            "#define A\n#if !defined(A) || !defined(B)\nx\n#endif\n",
            "#define A\n#if !defined(A) || !defined(B)\nx\n#endif\n",
        ),
        ("#define A\n#if !defined(A) && defined(B)\nx\n#endif\n", ""),
        ("#define A\n#if !defined(A)\n#if B\nx\n#else\nw\n#endif\n#endif\ny\n", "y\n"),
        ("#if defined(__CUDA_ARCH__)\nx\n#else\nw\n#endif\n", "#if defined(__CUDA_ARCH__)\nx\n#else\nw\n#endif\n"),
        ("#define A\n#undef A\n#ifdef A\nx\n#endif\n", "#define A\n#undef A\n#ifdef A\nx\n#endif\n"),
        ("#define A 1\n#ifdef A\nx\n#endif\n", "#define A 1\n#ifdef A\nx\n#endif\n"),
        ("#define A\nA int f();\n", "#define A\nA int f();\n"),
        ("#define A\n#if defined(A)\nx\n#elif B\nw\n#endif\n", "#define A\n#if defined(A)\nx\n#elif B\nw\n#endif\n"),
    ],
)
def test_conditionals_that_a_text_decides_itself_are_left_out(before: str, after: str) -> None:
    assert without_dead_conditionals(before) == after
