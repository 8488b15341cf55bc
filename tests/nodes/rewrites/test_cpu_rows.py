"""CPU rewrites for rows in bytes, unrolled loops, tables and places: before and after, and refusals.

That they compute what was computed before is in test_cpu_traps.py.
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


def test_what_is_cast_is_only_compared_with_its_like():
    text = """\
        void f(const float* x, char* y, int64_t rows, int64_t n) {
            for (int64_t r = 0; r < rows; ++r) {
                float* out = (float*)y + r * n;
                for (int64_t i = 0; i < n; ++i) {
                    out[i] = x[i];
                }
            }
        }
    """
    source = Source(dedent(text), "cpu")
    assert unordered(source, loops(source)[0])
    for mixed in ("((double*)y)[r] = 1;", "y[r] = 1;", "((float*)(y + 4))[r] = 1;"):
        other = Source(dedent(text).replace("float* out", f"{mixed}\n        float* out"), "cpu")
        with pytest.raises(Unsupported):
            unordered(other, loops(other)[0])


ANGLES = """\
    #include <math.h>
    void f(const float* x, const int* at, float* y, long rows, long n) {
        for (long r = 0; r < rows; ++r) {
            for (long h = 0; h < 8; ++h) {
                for (long i = 0; i < n; ++i) {
                    const float angle = at[r] * powf(10000.0f, -(float)i / n);
                    y[(r * 8 + h) * n + i] = x[(r * 8 + h) * n + i] * cosf(angle);
                }
            }
        }
    }
"""


def test_tables_stand_in_front_of_the_loops_that_do_not_change_them():
    after = apply("lookup_tables", ANGLES)
    lines = [line.strip() for line in after.split("\n")]
    order = [
        "powf_table[i] = powf(10000.0f, -(float)i / n);",
        "for (long r = 0; r < rows; ++r) {",
        "cosf_table[i] = cosf(angle);",
        "for (long h = 0; h < 8; ++h) {",
        "y[(r * 8 + h) * n + i] = x[(r * 8 + h) * n + i] * cosf_table[i];",
    ]
    assert [lines.index(line) for line in order] == sorted(lines.index(line) for line in order)
    assert "std::vector<float> cosf_table(n);" in lines and "#include <vector>" in lines


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("-(float)i / n", "-(float)i / (n + h + r)"),
        ("powf(10000.0f, -(float)i / n)", "x[i]"),  # what is left depends on the row and the head
    ],
)
def test_tables_need_something_that_stays_the_same(before, after):
    text = dedent(ANGLES).replace(before, after).replace("cosf(angle)", "cosf(angle + h * r)")
    assert apply("lookup_tables", text) is None


def test_no_table_of_what_the_loop_writes():
    assert apply("lookup_tables", dedent(ANGLES).replace("at[r] * powf(10000.0f, -(float)i / n)", "expf(y[i])")) is None
