"""CPU rewrites for rows in bytes, unrolled loops, tables and places: before and after, and refusals.

That they compute what was computed before is in test_cpu_traps.py.
"""

from textwrap import dedent

import pytest

from nodes.rewrites import catalog
from nodes.rewrites._loops import loops, unordered
from nodes.rewrites.source import Source, Unsupported


def apply(name: str, text: str) -> str | None:
    new = catalog()[name].rewrite(Source(dedent(text), "cpu"), None)
    if new is not None:
        assert not Source(new, "cpu").root.has_error
        assert catalog()[name].rewrite(Source(new, "cpu"), None) in {None, new}, "applies twice"
    return new


BYTES = """\
    static void half(const char* src, size_t step, char* dst, int width, int height) {
        for (int r = 0; r < height; ++r) {
            const float* in = (const float*)(src + r * step);
            float* out = reinterpret_cast<float*>(dst + step * r);
            for (int i = 0; i < width; ++i) {
                out[i] = in[i] * 0.5f;
            }
        }
    }

    extern "C" void f(const float* x, float* y, int64_t rows, int64_t n) {
        half((const char*)x, n * sizeof(float), (char*)y, (int)n, (int)rows);
    }
"""


def test_rows_in_bytes():
    after = apply("cpu_bytes", BYTES)
    assert "const float* in = (const float*)src + static_cast<int64_t>(r) * width;" in after
    assert "float* out = reinterpret_cast<float*>(dst) + static_cast<int64_t>(width) * r;" in after
    source = Source(after, "cpu")
    found, carried = unordered(source, loops(source)[0])
    assert found.accesses and not carried


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("n * sizeof(float)", "2 * n * sizeof(float)"),  # not the width
        ("n * sizeof(float)", "n * sizeof(double)"),
        ("r * step", "r * (step + 4)"),
        ("int width", "size_t& width"),
        ("const char* src", "const short* src"),
        ("out[i] = in[i] * 0.5f;", "out[i] = in[i] * 0.5f; width = 3;"),
    ],
)
def test_rows_in_bytes_need_one_width(before, after):
    text = apply("cpu_bytes", dedent(BYTES).replace(before, after)) or ""
    assert "(const float*)src + static_cast<int64_t>(r) * width" not in text


def test_a_width_from_two_callers():
    other = '\n    extern "C" void g(float* y, int64_t n) { half((char*)y, 4 * sizeof(float), (char*)y, (int)n, 2); }\n'
    assert apply("cpu_bytes", dedent(BYTES) + dedent(other)) is None


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


UNROLLED = """\
    void f(const float* x, float* y, int n) {
        float s0 = 0.0f, s1 = 0.0f;
        int i = 0;
        for (; i + 1 < n; i += 2) {
            const float a = x[i] * 2.0f;
            y[i] = a + 1.0f;
            y[i + 1] = x[i + 1] * 2.0f + 1.0f;
            s0 += x[i];
            s1 += x[i + 1];
        }
        float sum = s0 + s1;
        for (; i < n; ++i) {
            y[i] = x[i] * 2.0f + 1.0f;
            sum += x[i];
        }
        y[0] = sum;
    }
"""


def test_unrolled_copies_become_one_loop():
    assert apply("cpu_reroll", UNROLLED) == dedent(
        """\
        void f(const float* x, float* y, int n) {
            float s0 = 0.0f, s1 = 0.0f;
            float sum = s0 + s1;
            for (int i = 0; i < n; ++i) {
                y[i] = x[i] * 2.0f + 1.0f;
                sum += x[i];
            }
            y[0] = sum;
        }
        """
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("y[i + 1] = x[i + 1] * 2.0f", "y[i + 1] = x[i + 1] * 3.0f"),
        ("y[i + 1] = x[i + 1] * 2.0f", "y[i + 1] = x[i] * 2.0f"),
        ("s1 += x[i + 1]", "s1 -= x[i + 1]"),
        ("float sum = s0 + s1", "float sum = s0 - s1"),
        ("float sum = s0 + s1", "float sum = s0"),
        ("float sum = s0 + s1;", "float sum = s0 + s1; y[0] = 3.0f;"),
        ("y[0] = sum", "y[0] = sum + s1"),
        ("const float a = x[i] * 2.0f", "const float a = y[i + 1] * 2.0f"),
    ],
)
def test_copies_that_are_not_alike_stay(before, after):
    text = apply("cpu_reroll", dedent(UNROLLED).replace(before, after))
    assert text is None or "i += 2" in text


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("i + 1 < n", "i + 2 < n"),  # the last loop may run more than once less
        ("i + 1 < n", "i < n"),
        ("i += 2", "i += 3"),
        ("y[0] = sum", "y[i] = sum"),  # the counter's end is used
        ("s0 += x[i];", "s0 += x[i]; if (s0 > 3.0f) break;"),
        ("int i = 0", "int i = 2"),
        ("s1 += x[i + 1];", "s1 += x[i + 1]; n -= 1;"),
    ],
)
def test_counters_that_are_shared_otherwise_stay(before, after):
    assert apply("cpu_reroll", dedent(UNROLLED).replace(before, after)) is None


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
    after = apply("cpu_tables", ANGLES)
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
    assert apply("cpu_tables", text) is None


def test_no_table_of_what_the_loop_writes():
    assert apply("cpu_tables", dedent(ANGLES).replace("at[r] * powf(10000.0f, -(float)i / n)", "expf(y[i])")) is None


PLACE = """\
    long f(const float* x, long n) {
        long place = 0;
        float best = x[0];
        for (long i = 1; i < n; ++i) {
            if (x[i] > best) {
                best = x[i];
                place = i;
            }
        }
        return place;
    }
"""


def test_a_place_is_looked_up_in_its_block():
    after = apply("cpu_places", PLACE)
    assert "top = x[i] > top ? x[i] : top;" in after
    assert "if (highest > best) {  // the first of them" in after
    source = Source(after, "cpu")
    _, inner, last = loops(source)
    assert unordered(source, inner)[1] == {"top": "max"}
    assert unordered(source, last)[1] == {"found": "min"}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (">", ">="),  # the last of several
        ("(x[i] > best)", "(x[i] * 0.3f > best)"),
        ("x[i]", "(x[i] * 0.3f)"),  # another rounding in vectors could not be found again
        ("place = i;", "place = i; n -= 1;"),
        ("place = i;", "place = i + place;"),
        ("best = x[i];", "best = x[i] + 1.0f;"),
        ("float best", "double best"),
    ],
)
def test_places_that_may_be_others_stay(before, after):
    assert apply("cpu_places", dedent(PLACE).replace(before, after)) is None
