"""Which loops are taken to be independent: everything else rests on this, so the refusals matter most."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodes.rewrites.analysis.host_dependence import reductions, unordered
from nodes.rewrites.analysis.host_effects import effects
from nodes.rewrites.analysis.host_source import loops
from nodes.rewrites.syntax.source import Source, Unsupported


def first_loop(
    body: str, parameters: str = "const float* x, float* y, int64_t rows, int64_t columns", before: str = ""
):
    source = Source(f"{before}\nvoid f({parameters}) {{\n{body}\n}}\n", "cpu")
    assert not source.root.has_error
    return source, loops(source)[-1 if before.count("for (") else 0]


def verdict(body: str, **more: str) -> str:
    """ "" for a loop that may be shared out, or why not."""
    source, loop = first_loop(body, **more)
    try:
        unordered(source, loop)
    except Unsupported as reason:
        return str(reason)
    return ""


ROWS = "for (int64_t r = 0; r < rows; ++r) {"
INNER = "for (int64_t c = 0; c < columns; ++c)"


@pytest.mark.parametrize(
    "body",
    [
        f"{ROWS} {INNER} y[r * columns + c] = x[r * columns + c]; }}",
        f"{ROWS} const float* in = x + r * columns; float* out = &y[r * columns]; {INNER} out[c] = in[c]; }}",
        # In place: every iteration reads and writes its own row.
        f"{ROWS} float* row = y + r * columns; {INNER} row[c] = row[c] * row[columns - 1]; }}",
        # Two halves of a row of 2 * columns.
        f"{ROWS} {INNER} {{ y[r * 2 * columns + c] = 1; y[r * 2 * columns + columns + c] = 2; }} }}",
        # Transposed: the rows interleave, r is the fast index of an array of rows * columns.
        f"{ROWS} {INNER} y[c * rows + r] = x[r * columns + c]; }}",
        "for (int64_t i = 0; i < rows * columns; i++) y[i] = x[i / columns] + x[i % columns];",
        "for (int64_t i = 0; i < rows; i++) { if (x[i] > 0) { y[i] = 1; } else { y[i] = x[i]; } }",
        # A gather: what is read may be anywhere, what is written may not.
        f"{ROWS} const int64_t from = (int64_t)x[r]; {INNER} y[r * columns + c] = x[from * columns + c]; }}",
        f"{ROWS} const int64_t m = columns * 32 / 32; for (int64_t b = 0; b < m; ++b) {{ y[r * columns + b] = x[b]; }} }}",
        f"static const int64_t first = rows; {INNER} y[3 * first + c] += x[c];",
        "for (int64_t i = 0; i < rows; i += 1) { float part[4] = {0, 0, 0, 0}; part[1] = x[i]; y[i] = part[1]; }",
    ],
)
def test_independent_iterations(body):
    assert verdict(body) == ""


@pytest.mark.parametrize(
    ("body", "why"),
    [
        # One element more than the row holds.
        (f"{ROWS} for (int64_t c = 0; c < columns + 1; ++c) y[r * columns + c] = 1; }}", "overlap"),
        ("for (int64_t i = 0; i < rows; ++i) y[(int64_t)x[i]] += 1;", "not known"), ("for (int64_t i = 0; i < rows; ++i) y[i % 4] = x[i];", "not linear"),
        ("for (int64_t i = 0; i < rows; ++i) { const int64_t at = (int64_t)x[i]; y[at] = 1; }", "not linear"),
        ("for (int64_t i = 0; i < rows; ++i) y[i * i] = x[i];", "without i"), ("for (int64_t i = 0; i < rows; ++i) y[columns - i] = x[i];", "backwards"),
        ("float last = 0; for (int64_t i = 0; i < rows; ++i) { y[i] = last; last = x[i]; }", "carries"),
        ("float s = 0; for (int64_t i = 0; i < rows; ++i) { s += x[i]; y[i] = s; }", "carries"),
        ("for (int64_t i = 0; i < rows; ++i) { if (x[i] < 0) break; y[i] = 1; }", "break"),
        ("for (int64_t i = 0; i < rows; ++i) { if (x[i] < 0) return; y[i] = 1; }", "leaves"),
        ("for (int64_t i = 0; i < rows; ++i) y[i] = rand();", "calls rand"), ("for (int64_t i = 0; i < rows; ++i) *y++ = x[i];", "not a pointer"),
        ("for (int64_t i = 0; i < rows; ++i) { static float seen; seen += 1; y[i] = seen; }", "static"),
        ("float t[8]; for (int64_t i = 0; i < rows; ++i) { t[0] = x[i]; y[i] = t[0]; }", "without i"),
        (f"{ROWS} const int64_t m = columns * 33 / 32; for (int64_t b = 0; b < m; ++b) {{ y[r * columns + b] = x[b]; }} }}", "overlap"),
        (f"{ROWS} y[r] = 1; double* out = (double*)y + r * columns; {INNER} out[c] = x[c]; }}", "stays where it is"),
        # What is fixed at the first call is another call's width.
        (f"static const int64_t first = columns; {ROWS} {INNER} y[r * first + c] += x[c]; }}", "without r"),
        ("float* p = y; if (rows > 3) p = y + 1; for (int64_t i = 0; i < rows; ++i) p[i] = y[i];", "stays where it is"),
        ("for (int64_t i = 0; i < rows; ++i) { int64_t at = i; at += (int64_t)x[i]; y[at] = 1; }", "not known"),
        ("int64_t at = 0; if (rows > 3) at = 1; for (int64_t i = 0; i < rows; ++i) { y[i] = y[at]; }", ""),
    ],
)  # fmt: skip
def test_what_is_refused(body, why):
    got = verdict(body)
    assert got and why in got


PUT = "static void put(float* to, float value) { *to = value; to[1] = value; }"
OVERLOADS = "void put(float* to, float v) { *to = v; }\nvoid put(char* to, float v) { to[1] = (char)v; to[0] = 0; }"
REFERENCE = "inline void put(float& to, float value) { to = value; }\ninline void next(int64_t& at) { at += 1; }"
EACH = "for (int64_t i = 0; i < rows; ++i)"


@pytest.mark.parametrize(
    ("before", "body", "why"),
    [
        (PUT, f"{EACH} put(y + i, x[i]);", "overlap"),
        (PUT, f"{EACH} put(y + 2 * i, x[i]);", ""),
        (OVERLOADS, f"{EACH} put(y + i, x[i]);", "overlap"),
        (REFERENCE, f"{EACH} put(y[i], x[i]);", ""),
        (REFERENCE, f"{EACH} put(y[0], x[i]);", "without i"),
        (REFERENCE, f"{EACH} {{ int64_t at = i; next(at); y[at] = y[i]; }}", "not"),
    ],
)
def test_functions_are_looked_into(before: str, body: str, why: str) -> None:
    got = verdict(body, before=before)
    assert why in got and bool(got) == bool(why)


def test_one_array_passed_twice_is_no_pair_of_arrays():
    text = """
    static void shift(const float* from, float* to, int64_t n) {
        for (int64_t i = 0; i < n; ++i) { to[i] = from[i + 1]; }
    }
    extern "C" void f(float* x, int64_t n) { float* same = x + 1; shift(x, same, n); }
    """
    source = Source(text, "cpu")
    with pytest.raises(Unsupported, match="one array"):
        effects(source, loops(source)[0])


@pytest.mark.parametrize(
    ("statement", "operator"),
    [
        ("m += x[i];", "+"),
        ("m = m + x[i] * x[i];", "+"),
        ("m = fmaxf(m, x[i]);", "max"),
        ("m = std::min(x[i], m);", "min"),
        ("m = x[i] > m ? x[i] : m;", "max"),
        ("m = m < x[i] ? m : x[i];", "min"),
        ("if (x[i] > m) { m = x[i]; }", "max"),
        ("if (m > x[i]) m = x[i];", "min"),
    ],
)
def test_reductions(statement, operator):
    source, loop = first_loop(f"float m = 0; for (int64_t i = 0; i < rows; ++i) {{ {statement} }} y[0] = m;")
    assert reductions(source, effects(source, loop)) == {"m": operator}


@pytest.mark.parametrize(
    "statement",
    [
        "m = x[i] - m;",
        "m += m * x[i];",
        "m = x[i] > 0 ? x[i] : m;",
        "m += x[i]; y[i] = m;",
        "m += x[i]; m = fmaxf(m, 1);",
    ],
)
def test_what_is_no_reduction(statement):
    source, loop = first_loop(f"float m = 0; for (int64_t i = 0; i < rows; ++i) {{ {statement} }} y[0] = m;")
    with pytest.raises(Unsupported):
        reductions(source, effects(source, loop))


TERMS = ["r", "c", "r * columns", "c * rows", "r * 2 * columns", "columns", "rows", "r * rows", "2 * c", "1", "3"]


@settings(max_examples=300, deadline=None)
@given(
    written=st.lists(st.sampled_from(TERMS), min_size=1, max_size=3),
    read=st.lists(st.sampled_from(TERMS), min_size=1, max_size=3),
    start=st.sampled_from(["0", "1", "2"]),
)
def test_never_independent_where_running_it_shows_a_conflict(written, read, start):
    """Whatever is claimed for all sizes holds for small ones, counted out."""
    to, at = " + ".join(written), " + ".join(read)
    body = f"for (int64_t r = {start}; r < rows; ++r) {{ {INNER} y[{to}] = x[0] + y[{at}]; }}"
    if verdict(body):
        return
    for rows, columns in itertools.product(range(1, 5), range(1, 5)):
        owner: dict[int, int] = {}
        touched: list[tuple[int, int]] = []
        for r, c in itertools.product(range(int(start), rows), range(columns)):
            names = {"r": r, "c": c, "rows": rows, "columns": columns}
            place = eval(to, names)
            assert owner.setdefault(place, r) == r, body
            touched.append((eval(at, names), r))
        assert all(owner.get(place, r) == r for place, r in touched), body
