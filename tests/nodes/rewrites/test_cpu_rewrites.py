"""What each CPU rewrite writes, and what it leaves alone. That the meaning stays is for test_cpu_traps.py and test_cpu_kernels.py."""

import pytest

from harness.judge.tunables import tunables
from harness.records import DeviceFacts
from kernels.spec import Size, Spec, Tensor, Workload
from nodes.rewrites import Facts, catalog
from nodes.rewrites.syntax.source import Source
from tests.nodes.rewrites.steps import flat

AVX512 = DeviceFacts(
    device="cpu", name="", architecture="avx512f", units=2, last_level_cache_bytes=32 << 20, bandwidth_gbps=40.0
)


def facts(rows: int = 4096, device: DeviceFacts = AVX512) -> Facts:
    shape = ("rows", "columns")
    spec = Spec(
        name="any", summary="y from x", axes=shape, dtypes=("float32",),
        arguments=(Tensor(name="x", role="input", shape=shape), Tensor(name="y", role="output", shape=shape), Size(name="rows"),
                   Size(name="columns")),
        workloads=(Workload(axes={"rows": rows, "columns": 4096}, dtype="float32"),),
    )  # fmt: skip
    return Facts(spec=spec, device=device)


def apply(step: str, text: str, given: Facts | None = None) -> str | None:
    new = catalog()[step](Source(text, "cpu"), given or facts())
    if new is not None:
        assert not Source(new, "cpu").root.has_error
        assert catalog()[step](Source(new, "cpu"), given or facts()) in {None, new}, "applies twice"
    return new


def after(steps: str, text: str) -> str:
    for step in steps.split():
        text = apply(step, text)
        assert text is not None, f"{step} does not apply"
    return text


def f(body: str, parameters: str = "const float* x, float* y, long rows, long n", before: str = "") -> str:
    return f"#include <cmath>\n#include <cstdint>\n\n{before}\nvoid f({parameters}) {{\n{body}}}\n"


ROWS, ELEMENTS = "    for (long r = 0; r < rows; ++r) {", "        for (long i = 0; i < n; ++i) {"
SCALE = f(f"""\
{ROWS}
        float highest = 0.0f;
{ELEMENTS}
            highest = fmaxf(highest, x[r * n + i]);
        }}
{ELEMENTS}
            y[r * n + i] = expf(x[r * n + i]) / highest;
        }}
    }}
""")
COPY = f("    for (long i = 0; i < n; ++i) {\n        y[i] = x[i];\n    }\n")
GUARDED = f(
    f"{ELEMENTS}\n            if (x[i] < 0) continue;\n            y[i] = x[i] * (z[0] / s);\n        }}\n",
    "const float* x, const float* z, float s, float* y, long n",
)
CLEARED = f("    std::memset(y, 0, n * sizeof(float));\n")
HEADS = f(
    """\
    for (long b = 0; b < batch; ++b) {
        for (long h = 0; h < heads; ++h) {
            for (long i = 0; i < n; ++i) { y[(b * heads + h) * n + i] = x[i]; }
        }
    }
""",
    "const float* x, float* y, long batch, long heads, long n",
)
CALLED = """\
static void row(const float* x, float* y, long n) {
    for (long i = 0; i < n; ++i) { y[i] = x[i]; }
}
"""
CALLS = f(f"{ROWS} row(x + r * n, y + r * n, n); }}\n", before=CALLED)
HOISTED = f(
    f"""\
{ROWS}
{ELEMENTS}
            const float weight = expf(w[r]);
            const float sum = weight + 1.0f;
            y[r * n + i] = x[r * n + i] * (weight / sum);
            if (i == 0) {{
                z[r] = sum;
            }}
        }}
    }}
""",
    "const float* x, const float* w, float* y, float* z, long rows, long n",
)
FLAT = f("""\
    const long count = rows * n;
    for (long i = 0; i < count; ++i) {
        const long row = i / n;
        const long column = i % n;
        y[i] = x[i] * y[column] + x[row];
    }
""")
QUOTIENT = f(
    "    for (long i = 0; i < n; ++i) {\n        y[i] = x[i] / s * 2.0f;\n    }\n",
    "const float* x, float* y, long n, float s",
)
SUMS = f(
    f"{ROWS}\n        float s = 0;\n        for (int k = 0; k < 4; ++k) {{ s += x[r + k]; }}\n        y[r] = s;\n    }}\n"
)
COLUMNS = f("""\
    for (int c = 0; c < n; ++c) {
        float s = 0;
        for (int r = 0; r < rows; ++r) { s += x[r * n + c]; }
        y[c] = s;
    }
""")
TURNED = f(
    "    for (int r = 0; r < rows; ++r) {\n        for (int c = 0; c < n; ++c) { y[c] += x[r * n + c]; }\n    }\n"
)
ANGLES = f(
    f"""\
{ROWS}
        for (long h = 0; h < 8; ++h) {{
            for (long i = 0; i < n; ++i) {{
                const float power = powf(10000.0f, -(float)i / n);
                const float c = cosf(at[r] * power);
                y[(r * 8 + h) * n + i] = x[(r * 8 + h) * n + i] * c;
            }}
        }}
    }}
""",
    "const float* x, const int* at, float* y, long rows, long n",
)
EARLY = """\
static float bend(float v) {
    if (v <= -3) return 0;
    if (v >= 3) { return v; }
    return v * (v + 3) / 6;
}
"""
HALF = f(
    f"""\
{ROWS}
        float sum = 0.0f;
        #pragma omp simd reduction(+:sum)
{ELEMENTS}
            const float v = static_cast<float>(x[r * n + i]);
            sum += v * v;
            y[r * n + i] = static_cast<T>(v > 0 ? v : 0.5 * v);
        }}
        sums[r] = sum;
    }}
""",
    "const T* x, T* y, float* sums, long rows, long n",
    "template <typename T>",
)
BFLOAT16 = f(
    "    for (long i = 0; i < n; ++i) {\n        y[i] = up(x[i]);\n    }\n",
    "const uint16_t* x, float* y, long n",
    """\
#include <cstring>
static float up(uint16_t h) {
    uint32_t w = uint32_t(h) << 16;
    float f;
    std::memcpy(&f, &w, 4);
    return f;
}
""",
)
BEND = "static float bend(float v) {\n    const float w = v * v;\n    return v < 0.0f ? 0.0f : w;\n}\n"
BENT = f("    for (long i = 0; i < n; ++i) y[i] = bend(x[i]);\n", before=BEND)
IN_PLACE = f(
    """\
    for (long i = 0; i < n; ++i) {
        float v = x[i] * s;
        v *= std::max(v, 0.5f);
        y[i] += 2 * fmaxf(std::tanh(v), 0.0f);
    }
""",
    "const float* x, float* y, long n, float s",
)
LANES = after("explicit_simd", HALF)


@pytest.mark.parametrize(
    ("steps", "text"),
    [
        ("omp_parallel", SCALE),
        ("omp_parallel", HEADS.replace("y[(b * heads + h) * n + i] =", "y[b * n + i] +=")),
        ("omp_parallel", CALLS),  # the work is that of the rows it calls for
        ("omp_parallel", CLEARED),
        ("omp_parallel omp_simd", COPY),
        ("vector_math omp_simd", SCALE),
        ("omp_simd", SUMS.replace("k < 4", "k < 40")),
        ("vector_math", SCALE.replace("/ highest", "/ std::pow(highest, 2.0f)")),
        ("unflatten_loop", FLAT),
        ("licm", QUOTIENT),
        ("licm", ANGLES),
        ("licm", ANGLES.replace("= x[", "= power * x[")),
        ("loop_interchange", COLUMNS),
        ("loop_interchange", TURNED),
        ("explicit_simd", BENT.replace(BEND, EARLY)),
        ("explicit_simd", HALF.replace("float sum", "double sum")),
        ("explicit_simd", BFLOAT16),
        ("explicit_simd", BENT),
        ("explicit_simd", IN_PLACE),
        ("nontemporal_stores", LANES),
    ],
)
def test_forms_that_it_knows(steps, text):
    after(steps, text)


@pytest.mark.parametrize(
    ("steps", "text", "written"),
    [
        ("omp_parallel", HEADS, "if (batch * heads * n >= PARALLEL_FROM) collapse(2)"),
        ("vector_math omp_simd", SCALE, "#pragma omp simd reduction(max:highest) for"),
        ("licm", HOISTED, """\
        const float weight = expf(w[r]);
        const float sum = weight + 1.0f;
        z[r] = sum;
        const float constant = weight / sum;
        for (long i = 0; i < n; ++i) {
            y[r * n + i] = x[r * n + i] * constant;
        }
"""),
        ("explicit_simd", HALF, """\
        lanes sum_lanes = lanes{};
        for (long i = 0; i < n; i += LANES) {
            const int64_t count = std::min<int64_t>(LANES, n - i);
            const lanes v = load_lanes(x + r * n + i, count);
            sum_lanes += kept(v * v, count, 0.0f);
            store_lanes(y + r * n + i, v > static_cast<float>(0) ? v : static_cast<float>(0.5) * v, count);
        }
        sum += sum_of(sum_lanes);
"""),
        ("nontemporal_stores", LANES, "* v, count, streams);"),
    ],
)  # fmt: skip
def test_written(steps, text, written):
    found = after(steps, text)
    assert written in found if "\n" in written else flat(written) in flat(found)


FIRST = "            if (i == 0) {\n                z[r] = %s;\n            }\n"
BODY = HOISTED[: HOISTED.index("            const float weight")] + "%s        }\n    }\n}\n"


@pytest.mark.parametrize(
    ("step", "text", "why"),
    [
        ("omp_parallel", f("    for (long i = n / 8 * 8; i < n; ++i) { y[i] = x[i]; }\n"), "the remainder of another loop"),
        ("omp_parallel", f("    for (long r = 1; r < rows; ++r) {\n        for (long i = 0; i < n; ++i) { y[r * n + i] = y[r * n - n + i]; }\n    }\n"),
         "the outer loop carries a value; a fork for every row would cost more than it gives"),
        ("omp_simd", f(f"{ROWS} row(x + r * n, y + r * n, n); }}\n"), "a function that is not in sight"),
        ("omp_simd", SCALE, "expf and fmaxf keep both loops scalar"),
        ("omp_simd", SUMS, "a short loop is left to be unrolled"),
        ("vector_math", COPY.replace("= x[i]", "= std::log(1.0 + x[i])"), "a logarithm lives off the digits of a double"),
        ("vector_math", "static int is_nan(float v) { return (int)v; }\n" + SCALE, "a name that is taken"),
        ("licm", BODY % "            const float first = y[r * n];\n            y[r * n + i] = first + x[i];\n", "read and written"),
        ("licm", BODY % "            const float v = x[i];\n            y[r * n + i] = v;\n", "changes"),
        ("licm", BODY % (FIRST % "x[i + 1]" + "            y[r * n + i] = x[i];\n"), "changes"),
        ("licm", BODY % (FIRST % "w[r]" + "            y[r * n + i] = z[r];\n"), "the block writes what the rest reads"),
        ("licm", BODY % ("            y[r * n + i] = z[r];\n" + FIRST % "w[r]"), "the block writes what the rest reads"),
        ("licm", BODY % ("            y[r * n + i] = x[i];\n" + FIRST % "y[r * n]"), "and reads what the rest writes"),
        ("licm", BODY % (FIRST.replace("i == 0", "i == 1") % "w[r]" + "            y[r * n + i] = x[i];\n"), "not the first"),
        ("unflatten_loop", FLAT.replace("rows * n", "rows * n + 1"), "rows that are not whole"),
        ("unflatten_loop", FLAT.replace("i % n", "i % rows"), "two divisors"),
        ("licm", QUOTIENT.replace("x[i] / s * 2.0f", "rintf(x[i] / s)"), "a tie may flip"),
        ("licm", QUOTIENT.replace("float s", "long s"), "an integer division"),
        ("loop_interchange", COLUMNS.replace("x[r * n + c]", "x[c * rows + r]"), "it goes along rows"),
        ("loop_interchange", TURNED.replace("y[c] +=", "y[c] += y[c + 1] *"), "columns that depend on each other"),
        ("loop_interchange", TURNED.replace("y[c] +=", "y[r * n + c] ="), "its rows can be shared out as they are"),
        ("licm", ANGLES.replace("/ n)", "/ (n + h + r))"), "nothing stays the same"),
        ("licm", ANGLES.replace("powf(10000.0f, -(float)i / n)", "x[i]").replace("* power)", "* power + h)"), "what is left depends on the head"),
        ("licm", ANGLES.replace("powf(10000.0f, -(float)i / n)", "y[i]"), "of what the loop writes"),
        ("licm", GUARDED, "z may have no elements where no iteration gets there"),
        ("explicit_simd", HALF.replace("v * v", "v * static_cast<float>(i)"), "the position as a number"),
        ("explicit_simd", HALF.replace("x[r * n + i]", "x[r * n + 2 * i]"), "every other element"),
        ("explicit_simd", HALF.replace("x[r * n + i]", "x[i * rows + r]"), "down a column"),
        ("explicit_simd", HALF.replace("static_cast<T>(v", "static_cast<int16_t>(v"), "integers"),
        ("explicit_simd", HALF.replace("float sum", "long double sum"), "a wider sum"),
        ("explicit_simd", HALF.replace("float sum", "double sum").replace("v * v", "v * 2.0 * v"), "terms that are computed in double"),
        ("omp_parallel", CLEARED.replace("float)", "double)"), "another type"),
        ("omp_parallel", CLEARED.replace("n * s", "(long)y[0] * s"), "a length that is cleared"),
        ("omp_parallel", CLEARED.replace("y, 0", "y, 1"), "another value"),
        ("explicit_simd", HALF.replace("v > 0 ? v : 0.5 * v", "std::fmod(v, v)"), "no such function of lanes"),
        ("explicit_simd", HALF.replace("sums", "lanes"), "a name that is taken"),
        ("explicit_simd", BFLOAT16.replace("<< 16", "<< 15"), "a conversion from something else"),
        ("explicit_simd", BFLOAT16.replace("= up(x[i])", "= x[i]"), "bits as an integer are another number"),
        ("nontemporal_stores", LANES.replace("sums[r] = sum", "sums[r] = y[r]"), "the output is read again"),
        ("nontemporal_stores", LANES.replace("* v, count", "* v + load_lanes(y + r * n, count), count"), "in lanes too"),
    ],
)  # fmt: skip
def test_left_alone(step, text, why):
    assert apply(step, text) is None, why


@pytest.mark.parametrize(
    ("call", "taken"),
    [
        ("expf(x[i])", True),
        ("std::exp(v)", True),
        ("std::exp(d)", False),
        ("exp(v)", False),  # a double
        ("exp(d)", False),
        ("log(v)", False),
        ("std::max(v, 0.0f)", False),
        ("std::tanh(0.5f * v)", True),
    ],
)
def test_vector_math_takes_floats_only(call, taken):
    text = COPY.replace("y[i] = x[i];", f"const float v = x[i]; const double d = x[i]; y[i] = {call};")
    assert (apply("vector_math", text) is not None) == taken


def test_what_is_written_once():
    parallel = after("omp_parallel", SCALE)
    assert parallel.count("#pragma") == 1 and [t.name for t in tunables(parallel)] == ["PARALLEL_FROM"]
    assert after("omp_parallel", CALLS).count("#pragma omp") == 1, "nothing in a function that a loop calls"
    assert after("vector_math", SCALE).count("#pragma omp declare simd") == 1, "only what is used"
    streams = after("nontemporal_stores", LANES)
    assert [(t.name, t.value) for t in tunables(streams)] == [("STREAM_FROM_MB", 20)]
    # A loop that only a later step made fit, in a source with lanes already.
    twice = after("explicit_simd", LANES + COPY.replace("= x[i]", "= -x[i]").replace("void f", "void g"))
    assert twice.count("typedef float lanes") == twice.count("static inline lanes load_lanes(const float*") == 1
    assert "store_lanes(y + i, -load_lanes(x + i, count), count);" in twice


def test_what_the_device_decides():
    assert apply("explicit_simd", HALF, facts(device=AVX512.model_copy(update={"architecture": "avx2"}))) is None
    assert apply("nontemporal_stores", LANES, facts(rows=64)) is None, "everything fits into the cache"
