"""A loop or more in C++ for each rewrite for the CPU: where it applies, what it then writes, and what it must leave alone."""

from __future__ import annotations

from tests.nodes.rewrites.examples import Example

X_Y = "const float* x, float* y"


def f(body: str, arrays: str = X_Y, before: str = "") -> str:
    dtype = "float16" if "_Float16*" in arrays else "float32"
    head = f"#include <algorithm>\n#include <cmath>\n#include <cstdint>\n#include <cstring>\n{before}\n"
    return f'{head}extern "C" void fuzz_{dtype}({arrays}, int64_t rows, int64_t n) {{\n{body}}}\n'


ROWS, ELEMENTS = "    for (int64_t r = 0; r < rows; ++r) {", "        for (int64_t i = 0; i < n; ++i) {"
SCALE = f(f"""\
{ROWS}
        float highest = 0.0f;
{ELEMENTS}
            highest = fmaxf(highest, x[r * n + i]);
        }}
{ELEMENTS}
            y[r * n + i] = expf(x[r * n + i]) / (1.0f + highest);
        }}
    }}
""")
COPY = f("    for (int64_t i = 0; i < n; ++i) {\n        y[i] = x[i];\n    }\n")
CLEARED = f("    std::memset(y, 0, n * sizeof(float));\n", "float* y")
HEADS = f(
    "    spread(x, y, rows, n / 4, 4);\n",
    before="""\
static void spread(const float* x, float* y, int64_t batch, int64_t heads, int64_t each) {
    for (int64_t b = 0; b < batch; ++b) {
        for (int64_t h = 0; h < heads; ++h) {
            for (int64_t i = 0; i < each; ++i) { y[(b * heads + h) * each + i] = x[i]; }
        }
    }
}
""",
)
CALLED = (
    "static void row(const float* x, float* y, int64_t n) {\n    for (int64_t i = 0; i < n; ++i) { y[i] = x[i]; }\n}\n"
)
CALLS = f(f"{ROWS} row(x + r * n, y + r * n, n); }}\n", before=CALLED)
HOISTED = f(f"""\
{ROWS}
{ELEMENTS}
            const float weight = expf(s[r]);
            const float sum = weight + 1.0f;
            y[r * n + i] = x[r * n + i] * (weight / sum);
            if (i == 0) {{
                out[r] = sum;
            }}
        }}
    }}
""", "const float* x, const float* s, float* y, float* out")  # fmt: skip
IF_FIRST = HOISTED[HOISTED.index("            if (i == 0)") : HOISTED.index("        }\n    }\n}\n")]
LINE = "            y[r * n + i] = x[r * n + i] * (weight / sum);\n"
BODY = HOISTED[HOISTED.index("            const float weight") : HOISTED.index("        }\n    }\n}\n")]


def first(of: str, where: str = "i == 0") -> str:
    return f"            if ({where}) {{\n                out[r] = {of};\n            }}\n"


FLAT = f("""\
    const int64_t count = rows * n;
    for (int64_t i = 0; i < count; ++i) {
        const int64_t row = i / n;
        const int64_t column = i % n;
        y[i] = x[i] * w[column] + x[row];
    }
""", "const float* x, const float* w, float* y")  # fmt: skip
QUOTIENT = f(
    "    const float s = x[0] * x[0] + 1;\n    for (int64_t i = 0; i < n; ++i) {\n        y[i] = x[i] / s * 2.0f;\n    }\n"
)
GUARDED = f(
    f"    const float s = 2;\n{ELEMENTS}\n            if (x[i] < 0) continue;\n            y[i] = x[i] * (x[0] / s);\n        }}\n"
)
SUMS = f(
    f"{ROWS}\n        float s = 0;\n        for (int64_t k = 0; k < 40; ++k) {{ s += x[(r * n + k) % n]; }}\n        y[r] = s;\n    }}\n"
)
COLUMNS = f("""\
    for (int64_t c = 0; c < n; ++c) {
        float s = 0;
        for (int64_t r = 0; r < rows; ++r) { s += x[r * n + c]; }
        sums[c] = s;
    }
""", "const float* x, float* sums")  # fmt: skip
TURNED = f(
    f"{ROWS}\n        for (int64_t c = 0; c < n; ++c) {{ sums[c] += x[r * n + c]; }}\n    }}\n",
    "const float* x, float* sums",
)
ANGLES = f(f"""\
{ROWS}
        for (int64_t h = 0; h < 2; ++h) {{
            for (int64_t i = 0; i < n / 2; ++i) {{
                const float power = powf(10000.0f, -(float)i / n);
                const float c = cosf(s[r] * power);
                y[r * n + h * (n / 2) + i] = x[r * n + h * (n / 2) + i] * c;
            }}
        }}
    }}
""", "const float* x, const float* s, float* y")  # fmt: skip
HALF = f(f"""\
{ROWS}
        float sum = 0.0f;
        #pragma omp simd reduction(+:sum)
{ELEMENTS}
            const float v = static_cast<float>(x[r * n + i]);
            sum += v * v;
            y[r * n + i] = static_cast<_Float16>(v > 0 ? v : 0.5 * v);
        }}
        out[r] = sum;
    }}
""", "const _Float16* x, _Float16* y, float* out")  # fmt: skip
EARLY = "static float bend(float v) {\n    if (v <= -3) return 0;\n    if (v >= 3) { return v; }\n    return v * (v + 3) / 6;\n}\n"
BEND = "static float bend(float v) {\n    const float w = v * v;\n    return v < 0.0f ? 0.0f : w;\n}\n"
IN_PLACE = f("""\
    for (int64_t i = 0; i < n; ++i) {
        float v = x[i] * 3;
        v *= std::max(v, 0.5f);
        y[i] += 2 * fmaxf(std::tanh(v), 0.0f);
    }
""")
BENT = "    for (int64_t i = 0; i < n; ++i) { y[i] = bend(x[i]); }\n"
UP = "static float up(uint16_t h) {\n    uint32_t w = uint32_t(h) << 16;\n    float f;\n    std::memcpy(&f, &w, 4);\n    return f;\n}\n"
UP += "static void widen(const uint16_t* b, float* to, int64_t n) {\n    for (int64_t i = 0; i < n; ++i) { to[i] = up(b[i]); }\n}\n"
BFLOAT16 = f("    widen((const uint16_t*)x, y, rows * n);\n", before=UP)

EXAMPLES = {
    "parallel": Example("omp_parallel", SCALE, (
        ("int64_t r = 0;", "int64_t r = rows / 8 * 8;"),  # the remainder of another loop
        ("y[r * n + i] = expf(x[r * n + i])", "y[r * n + i] = y[(r + 1) * n + i]"),  # a fork for every row would cost more than it gives
    )),
    "parallel, two loops": Example("omp_parallel", HEADS, reads=("collapse(2)",)),
    "parallel, calls": Example("omp_parallel", CALLS),
    "parallel, cleared": Example("omp_parallel", CLEARED, (("float)", "double)"), ("n * s", "(long)y[0] * s"), ("y, 0", "y, 1"))),
    "simd": Example("omp_parallel omp_simd", COPY),
    "simd of functions": Example("vector_math omp_simd", SCALE, reads=("#pragma omp simd reduction(max:highest)",)),
    "simd of sums": Example("omp_simd", SUMS, (("k < 40", "k < 4"), ("s += x[", "s += unseen(x)[")),),
    "vector math": Example("vector_math", SCALE.replace("/ (1.0f + highest)", "/ std::pow(1.0f + highest, 2.0f)"), reads=("#pragma omp declare simd",)),
    "vector math of floats": Example("vector_math", COPY.replace("y[i] = x[i];", "const float v = x[i]; const double d = x[i]; y[i] = std::exp(v);"), tuple(
        ("std::exp(v)", other) for other in ("std::exp(d)", "exp(v)", "std::log(1.0 + v)", "std::max(v, 0.0f)")
    )),
    "licm": Example("licm", HOISTED, (
        (BODY, "            const float first = y[r * n];\n            y[r * n + i] = first + x[i];\n"),  # read and written
        (BODY, "            const float v = x[i];\n            y[r * n + i] = v;\n"), (BODY, first("s[r]") + "            y[r * n + i] = out[r];\n"),
        (BODY, "            y[r * n + i] = x[i];\n" + first("y[r * n]")), (BODY, first("s[r]", "i == 1") + "            y[r * n + i] = x[i];\n"),
    ), ("out[r] = sum; const float constant = weight / sum; for (int64_t i = 0; i < n; ++i) { y[r * n + i] = x[r * n + i] * constant;",)),
    "quotient": Example("licm", QUOTIENT, (("x[i] / s * 2.0f", "rintf(x[i] / s)"), ("const float s", "const long s"))),
    "tables": Example("licm", ANGLES, (("/ n)", "/ (n + h + r))"), ("powf(10000.0f, -(float)i / n)", "y[i]"))),
    "nest": Example("unflatten_loop", FLAT, (("rows * n;", "rows * n + 1;"), ("i % n", "i % rows"))),
    "columns": Example("loop_interchange", COLUMNS, (("x[r * n + c]", "x[c * rows + r]"),)),
    "columns, turned": Example("loop_interchange", TURNED, (("sums[c] +=", "sums[c] += sums[c + 1] *"), ("sums[c] +=", "sums[r * n + c] ="))),
    "lanes": Example("explicit_simd", HALF, (
        ("v * v", "v * static_cast<float>(i)"), ("x[r * n + i]", "x[r * n + 2 * i]"), ("x[r * n + i]", "x[i * rows + r]"), ("<_Float16>(v", "<int16_t>(v"),
        ("float sum", "long double sum"), ("v > 0 ? v : 0.5 * v", "std::fmod(v, v)"), ("out[r] = sum", "float lanes = sum; out[r] = lanes"),
    ), ("sum_lanes += kept(v * v, count, 0.0f);", "sum += sum_of(sum_lanes);")),
    "lanes, sums in double": Example("explicit_simd", HALF.replace("float sum", "double sum"), (("v * v", "v * 2.0 * v"),)),
    "lanes of bits": Example("explicit_simd", BFLOAT16, (("<< 16", "<< 15"), ("= up(b[i])", "= b[i]"))),
    "lanes of functions": Example("explicit_simd", f(BENT, before=BEND)),
    "lanes of returns": Example("explicit_simd", f(BENT, before=EARLY)),
    "lanes in place": Example("explicit_simd", IN_PLACE),
    "streams": Example("explicit_simd nontemporal_stores", HALF, (
        ("out[r] = sum", "out[r] = y[r]"), (": static_cast<float>(0.5) * v, count", ": v + load_lanes(y + r * n, count), count"),
    ), ("v, count, streams);",)),
}  # fmt: skip
LEFT = {"licm": GUARDED, "omp_simd": SCALE}
"""No element may be read where no iteration gets there; functions keep loops scalar."""
