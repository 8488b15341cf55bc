"""The CPU rewrites that bring other people's forms into the one that the rest reads: before and after, and refusals.

What they must not change is in test_cpu_traps.py.
"""

from textwrap import dedent

import pytest

from nodes.rewrites import catalog
from nodes.rewrites.analysis.host_dependence import unordered
from nodes.rewrites.analysis.host_loops import loops
from nodes.rewrites.syntax.source import Source, Unsupported


def apply(name: str, text: str) -> str | None:
    new = catalog()[name](Source(dedent(text), "cpu"), None)
    if new is not None:
        assert not Source(new, "cpu").root.has_error
        assert catalog()[name](Source(new, "cpu"), None) in {None, new}, "applies twice"
    return new


def body(text: str) -> str:
    return f"void f(const float* x, float* y, int64_t rows, int n) {{\n{text}\n}}\n"


@pytest.mark.parametrize(
    ("call", "loop"),
    [
        ("memset(y, 0, n * sizeof(float))", "y[i] = 0;"),
        ("memset(y, 0, n * sizeof(double))", None),
        ("memset(y, 1, n * sizeof(float))", None),
        ("memcpy(&y[0], x, n * sizeof(float))", None),
    ],
)
def test_algorithms(call, loop):
    lines = f"    for (int64_t i = 0; i < n; ++i) {{\n        {loop}\n    }}"
    assert apply("inline_algorithms", body(f"    {call};")) == (None if loop is None else body(lines))


def refusal(text: str) -> str:
    source = Source(text, "cpu")
    try:
        unordered(source, loops(source)[0])
    except Unsupported as reason:
        return str(reason)
    return ""


def test_whole_steps_reach_no_further_than_their_end():
    pairs = "for (int64_t r = 0; r < rows; ++r) { for (int i = 0; i < 2 * n; i += 2) { y[r * 2 * n + i] = y[r * 2 * n + i + 1]; } }"
    assert refusal(body(pairs)) == ""
    assert "overlap" in refusal(body(pairs.replace("i < 2 * n", "i < 2 * n - 1").replace("+ i + 1]", "+ i + 2]")))


def test_a_loop_around_threads_is_not_shared_out_again():
    text = """\
        static void row(const float* x, float* y, int n) {
            #pragma omp parallel for
            for (int i = 0; i < n; ++i) { y[i] = x[i]; }
        }
        void f(const float* x, float* y, int64_t rows, int n) {
            for (int64_t r = 0; r < rows; ++r) { row(x + r * n, y + r * n, n); }
        }
    """
    assert apply("omp_parallel", text) is None


def test_short_loops_are_left_to_be_unrolled():
    text = body(
        "    for (int i = 0; i < n; ++i) {\n        float s = 0;\n        for (int k = 0; k < 4; ++k) { s += x[i + k]; }\n        y[i] = s;\n    }"
    )
    assert apply("omp_simd", text) is None
    assert "reduction(+:s)" in apply("omp_simd", text.replace("k < 4", "k < 40"))


def test_columns():
    text = body(
        "    for (int c = 0; c < n; ++c) {\n        float s = 0;\n        for (int r = 0; r < rows; ++r) { s += x[r * n + c]; }\n        y[c] = s;\n    }"
    )
    after = apply("loop_interchange", text)
    assert "float s[COLUMNS];" in after
    assert "s[c - c_block] += x[r * n + c];" in after
    assert apply("loop_interchange", text.replace("x[r * n + c]", "x[c * rows + r]")) is None, "it goes along rows"
    rows = body(
        "    for (int r = 0; r < rows; ++r) {\n        for (int c = 0; c < n; ++c) { y[c] += x[r * n + c]; }\n    }"
    )
    assert "#pragma omp parallel for" in apply("loop_interchange", rows)
    assert apply("loop_interchange", rows.replace("y[c] +=", "y[c] += y[c + 1] *")) is None
    assert apply("loop_interchange", rows.replace("y[c] +=", "y[r * n + c] =")) is None, (
        "its rows can be shared out as they are"
    )


def test_what_divides_without_a_rest():
    blocks = "for (int r = 0; r < rows; ++r) { const int m = n * 32 / 32; for (int b = 0; b < m; ++b) { y[r * n + b] = x[b]; } }"
    assert refusal(body(blocks)) == ""
    assert refusal(body(blocks.replace("n * 32 / 32", "(n * 32 + 32) / 32"))) != ""
    assert refusal(body(blocks.replace("n * 32 / 32", "n * 33 / 32"))) != ""


def test_early_returns():
    text = "static float f(float v) {\n    if (v <= -3) return 0;\n    if (v >= 3) { return v; }\n    return v * (v + 3) / 6;\n}\n"
    assert "    return v <= -3 ? 0 : v >= 3 ? v : v * (v + 3) / 6;\n" in apply("if_conversion", text)
    assert apply("if_conversion", text.replace("static float", "static int")) is None
