"""Each CPU rewrite on a source before and after, and what it leaves alone."""

from textwrap import dedent

import pytest

from harness.records import DeviceFacts
from harness.tunables import tunables
from kernels.spec import Size, Spec, Tensor, Workload
from nodes.rewrites import Facts, catalog
from nodes.rewrites.syntax.source import Source

AVX512 = DeviceFacts(
    device="cpu", name="", architecture="avx512f", units=2, last_level_cache_bytes=32 << 20, bandwidth_gbps=40.0
)


def facts(rows: int = 4096, device: DeviceFacts = AVX512) -> Facts:
    spec = Spec(
        name="any",
        summary="y from x",
        axes=("rows", "columns"),
        dtypes=("float32",),
        arguments=(
            Tensor(name="x", role="input", shape=("rows", "columns")),
            Tensor(name="y", role="output", shape=("rows", "columns")),
            Size(name="rows"),
            Size(name="columns"),
        ),
        workloads=(Workload(axes={"rows": rows, "columns": 4096}, dtype="float32"),),
    )
    return Facts(spec=spec, device=device)


def apply(name: str, text: str, given: Facts | None = None) -> str | None:
    new = catalog()[name](Source(dedent(text), "cpu"), given or facts())
    if new is not None:
        assert not Source(new, "cpu").root.has_error
        assert catalog()[name](Source(new, "cpu"), given or facts()) in {None, new}, "applies twice"
    return new


def behind(text: str | None, marker: str) -> str:
    assert text is not None
    return text[text.index(marker) :]


SCALE = """\
    #include <cmath>
    #include <cstdint>

    void f(const float* x, float* y, int64_t rows, int64_t columns) {
        for (int64_t r = 0; r < rows; ++r) {
            float highest = 0.0f;
            for (int64_t c = 0; c < columns; ++c) {
                highest = fmaxf(highest, x[r * columns + c]);
            }
            for (int64_t c = 0; c < columns; ++c) {
                y[r * columns + c] = expf(x[r * columns + c]) / highest;
            }
        }
    }
"""


def test_parallel():
    after = apply("omp_parallel", SCALE)
    assert "#pragma omp parallel for schedule(static) if (rows * columns >= PARALLEL_FROM)\n    for (int64_t r" in after
    assert after.count("#pragma") == 1
    assert [t.name for t in tunables(after)] == ["PARALLEL_FROM"]


def test_parallel_shares_out_two_loops_of_rows_together():
    text = """\
        void f(const float* x, float* y, long batch, long heads, long n) {
            for (long b = 0; b < batch; ++b) {
                for (long h = 0; h < heads; ++h) {
                    for (long i = 0; i < n; ++i) { y[(b * heads + h) * n + i] = x[i]; }
                }
            }
        }
    """
    assert "if (batch * heads * n >= PARALLEL_FROM) collapse(2)\n" in apply("omp_parallel", text)
    alone = text.replace("y[(b * heads + h) * n + i] = x[i];", "y[b * n + i] += x[h];")
    assert "collapse" not in apply("omp_parallel", alone)


def test_parallel_leaves_the_remainder_of_another_loop():
    text = "void f(const float* x, float* y, long n) {\n    for (long i = n / 8 * 8; i < n; ++i) { y[i] = x[i]; }\n}\n"
    assert apply("omp_parallel", text) is None


def test_parallel_only_outside():
    """The outer loop carries a value; a fork for every row would cost more than it gives."""
    text = """\
        void f(const float* x, float* y, long rows, long columns) {
            for (long r = 1; r < rows; ++r) {
                for (long c = 0; c < columns; ++c) { y[r * columns + c] = y[(r - 1) * columns + c]; }
            }
        }
    """
    assert apply("omp_parallel", text) is None


def test_parallel_not_in_a_function_that_a_loop_calls():
    text = """\
        static void row(const float* x, float* y, long n) {
            for (long i = 0; i < n; ++i) { y[i] = x[i]; }
        }
        void f(const float* x, float* y, long rows, long columns) {
            for (long r = 0; r < rows; ++r) { row(x + r * columns, y + r * columns, columns); }
        }
    """
    after = apply("omp_parallel", text)
    assert after.count("#pragma omp") == 1
    assert "if (rows * columns >= PARALLEL_FROM)" in behind(after, "void f("), (
        "the work is that of the rows it calls for"
    )
    assert apply("omp_simd", behind(after, "void f(")) is None


def test_simd():
    vector = apply("vector_math", SCALE)
    after = apply("omp_simd", vector)
    assert "#pragma omp simd reduction(max:highest)\n        for" in after
    assert after.count("#pragma omp simd") == 2
    assert apply("omp_simd", SCALE) is None, "expf and fmaxf keep both loops scalar"


def test_simd_joins_a_parallel_flat_loop_in_either_order():
    flat = """\
        void f(const float* x, float* y, long n) {
            for (long i = 0; i < n; ++i) {
                y[i] = x[i];
            }
        }
    """
    wanted = "#pragma omp parallel for simd schedule(static) if (parallel: n >= PARALLEL_FROM)\n    for"
    for first, second in (("omp_simd", "omp_parallel"), ("omp_parallel", "omp_simd")):
        assert wanted in apply(second, apply(first, flat))


def test_vector_math_of_literals_without_a_suffix():
    text = """\
        #include <math.h>
        void f(const float* x, const double* z, float* y, long n) {
            for (long i = 0; i < n; ++i) { y[i] = 0.5 * x[i] * (1.0 + tanh(0.797885 * (x[i] + 0.044715 * x[i]))) + log(1.0 + x[i]) + exp(z[i]); }
        }
    """
    after = apply("vector_math", text)
    assert "(1.0 + tanhf(0.797885 * (x[i]" in after
    assert "+ log(1.0 + x[i]) + exp(z[i]);" in after


def test_vector_math():
    after = apply("vector_math", SCALE.replace("/ highest", "/ std::pow(highest, 2.0f)"))
    assert "expf(x[r * columns + c]) / powf(highest, 2.0f)" in after
    assert "highest = simd_max(highest, x[r * columns + c]);" in after
    assert after.count("#pragma omp declare simd") == 2, "only what is used"
    assert "__attribute__((const)) float powf(float, float) noexcept;" in after[: after.index("void f(")]
    assert "#pragma omp simd\n" in apply("omp_simd", after)


@pytest.mark.parametrize(
    ("call", "taken"),
    [
        ("expf(x[i])", True),
        ("std::exp(v)", True),
        ("std::exp(d)", False),
        ("exp(v)", True),  # of <math.h>: a double, but of a float
        ("exp(d)", False),
        ("log(v)", False),
        ("std::max(v, 0.0f)", False),
        ("std::tanh(0.5f * v)", True),
    ],
)
def test_vector_math_takes_floats_only(call, taken):
    text = f"""\
        #include <cmath>
        void f(const float* x, float* y, long n) {{
            for (long i = 0; i < n; ++i) {{
                const float v = x[i];
                const double d = x[i];
                y[i] = {call};
            }}
        }}
    """
    assert (apply("vector_math", text) is not None) == taken


def test_hoist():
    text = """\
        void f(const float* x, const float* w, float* y, float* z, long rows, long columns) {
            for (long r = 0; r < rows; ++r) {
                for (long c = 0; c < columns; ++c) {
                    const float weight = expf(w[r]);
                    const float sum = weight + 1.0f;
                    y[r * columns + c] = x[r * columns + c] * (weight / sum);
                    if (c == 0) {
                        z[r] = sum;
                    }
                }
            }
        }
    """
    after = apply("licm", text)
    assert behind(after, "for (long r") == dedent(
        """\
        for (long r = 0; r < rows; ++r) {
                const float weight = expf(w[r]);
                const float sum = weight + 1.0f;
                z[r] = sum;
                const float weight_over_sum = weight / sum;
                for (long c = 0; c < columns; ++c) {
                    y[r * columns + c] = x[r * columns + c] * weight_over_sum;
                }
            }
        }
        """
    )


FIRST = "if (c == 0) {\nz[r] = %s;\n}\n"


@pytest.mark.parametrize(
    ("body", "moves"),
    [
        ("const float first = y[r * columns];\ny[r * columns + c] = first + x[c];", False),  # read and written
        ("const float v = x[c];\ny[r * columns + c] = v;", False),
        (FIRST % "w[r]" + "y[r * columns + c] = x[c];", True),
        (FIRST % "x[c + 1]" + "y[r * columns + c] = x[c];", False),
        (FIRST % "w[r]" + "y[r * columns + c] = z[r];", False),  # the block writes what the rest reads
        ("y[r * columns + c] = z[r];\n" + FIRST % "w[r]", False),
        ("y[r * columns + c] = x[c];\n" + FIRST % "y[r * columns]", False),  # and reads what the rest writes
        (FIRST.replace("c == 0", "c == 1") % "w[r]", False),
    ],
)
def test_what_is_hoisted(body, moves):
    text = f"""\
        void f(const float* x, const float* w, float* y, float* z, long rows, long columns) {{
            for (long r = 0; r < rows; ++r) {{
                for (long c = 0; c < columns; ++c) {{
                    {body}
                }}
            }}
        }}
    """
    assert (apply("licm", text) is not None) == moves


FLAT = """\
    void f(const float* x, const float* b, float* y, long rows, long columns) {
        const long count = rows * columns;
        for (long i = 0; i < count; ++i) {
            const long row = i / columns;
            const long column = i % columns;
            y[i] = x[i] * b[column] + b[row];
        }
    }
"""


def test_nest():
    assert behind(apply("unflatten_loop", FLAT), "for (long row") == dedent(
        """\
        for (long row = 0; row < rows; ++row) {
                for (long column = 0; column < columns; ++column) {
                    const long i = row * columns + column;
                    y[i] = x[i] * b[column] + b[row];
                }
            }
        }
        """
    )


def test_nest_needs_whole_rows():
    assert apply("unflatten_loop", FLAT.replace("rows * columns", "rows * columns + 1")) is None
    assert apply("unflatten_loop", FLAT.replace("i % columns", "i % rows")) is None


def test_reciprocal():
    text = """\
        void f(const float* x, float* y, long n, float s) {
            for (long i = 0; i < n; ++i) {
                y[i] = x[i] / s * 2.0f;
            }
        }
    """
    after = behind(apply("reciprocal_division", text), "const float inverse_s")
    assert after.startswith("const float inverse_s = 1.0f / s;\n    for (long i")
    assert "y[i] = x[i] * inverse_s * 2.0f;" in after
    assert apply("reciprocal_division", text.replace("x[i] / s * 2.0f", "rintf(x[i] / s)")) is None, "a tie may flip"
    assert apply("reciprocal_division", text.replace("float s", "long s")) is None, "an integer division"


HALF = """\
    #include <cstdint>

    template <typename T>
    static void f(const T* x, T* y, float* sums, int64_t rows, int64_t columns) {
        for (int64_t r = 0; r < rows; ++r) {
            float sum = 0.0f;
            #pragma omp simd reduction(+:sum)
            for (int64_t c = 0; c < columns; ++c) {
                const float v = static_cast<float>(x[r * columns + c]);
                sum += v * v;
                y[r * columns + c] = static_cast<T>(v > 0 ? v : 0.5 * v);
            }
            sums[r] = sum;
        }
    }
"""


def test_lanes():
    assert behind(apply("explicit_simd", HALF), "float sum = 0.0f;") == dedent(
        """\
        float sum = 0.0f;
                lanes sum_lanes = lanes{};
                for (int64_t c = 0; c < columns; c += LANES) {
                    const int64_t count = std::min<int64_t>(LANES, columns - c);
                    const lanes v = load_lanes(x + r * columns + c, count);
                    sum_lanes += kept(v * v, count, 0.0f);
                    store_lanes(y + r * columns + c, v > 0.0f ? v : 0.5f * v, count);
                }
                sum += sum_of(sum_lanes);
                sums[r] = sum;
            }
        }
        """
    )


def test_lanes_only_where_the_vectors_are():
    older = AVX512.model_copy(update={"architecture": "avx2"})
    assert apply("explicit_simd", HALF, facts(device=older)) is None


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("v * v", "v * static_cast<float>(c)"),  # the position as a number
        ("x[r * columns + c]", "x[r * columns + 2 * c]"),  # every other element
        ("x[r * columns + c]", "x[c * rows + r]"),
        ("static_cast<T>(v", "static_cast<int16_t>(v"),
        ("float sum", "long double sum"),
        ("v > 0 ? v : 0.5 * v", "std::fmod(v, v)"),
    ],
)
def test_lanes_leave(before, after):
    assert apply("explicit_simd", dedent(HALF).replace(before, after)) is None


def test_lanes_know_bfloat16_by_what_a_conversion_does():
    text = """\
        #include <cstdint>
        #include <cstring>
        static float up(uint16_t h) {
            uint32_t w = uint32_t(h) << 16;
            float f;
            std::memcpy(&f, &w, 4);
            return f;
        }
        void f(const uint16_t* x, float* y, long n) {
            for (long i = 0; i < n; ++i) {
                y[i] = up(x[i]);
            }
        }
    """
    assert "store_lanes(y + i, load_lanes(x + i, count), count);" in apply("explicit_simd", text)
    assert apply("explicit_simd", text.replace("<< 16", "<< 15")) is None
    assert apply("explicit_simd", text.replace("= up(x[i])", "= x[i]")) is None, "bits as an integer are another number"


def test_lanes_follow_a_function_of_the_file():
    text = """\
        static float bend(float v) {
            const float w = v * v;
            return v < 0.0f ? 0.0f : w;
        }
        void f(const float* x, float* y, long n) {
            for (long i = 0; i < n; ++i) y[i] = bend(x[i]);
        }
    """
    after = apply("explicit_simd", text)
    assert (
        "static lanes bend(lanes v) {\n    const lanes w = v * v;\n    return v < 0.0f ? splat(0.0f) : w;\n}" in after
    )
    assert "store_lanes(y + i, bend(load_lanes(x + i, count)), count);" in after


def test_lanes_update_in_place():
    text = """\
        #include <cmath>
        void f(const float* q, float* y, long n, float s) {
            for (long i = 0; i < n; ++i) {
                float v = q[i] * s;
                v *= std::max(v, 0.5f);
                y[i] += 2 * fmaxf(std::tanh(v), 0.0f);
            }
        }
    """
    after = behind(apply("explicit_simd", text), "lanes v =")
    assert after.startswith(
        "lanes v = load_lanes(q + i, count) * s;\n"
        "        v *= max_lanes(v, splat(0.5f));\n"
        "        store_lanes(y + i, load_lanes(y + i, count) + (2.0f * max_lanes(splat(0.0f), tanh_lanes(v))), count);\n"
    )


def test_names_that_are_taken():
    assert apply("explicit_simd", dedent(HALF).replace("sums", "lanes")) is None
    assert apply("vector_math", "static int is_nan(float v) { return (int)v; }\n" + dedent(SCALE)) is None


def test_lanes_define_nothing_twice():
    """A loop that only a later step made fit, in a source with lanes already."""
    once = apply("explicit_simd", HALF)
    loop = "\nvoid g(const float* x, float* y, int64_t n) {\n    for (int64_t i = 0; i < n; ++i) { y[i] = -x[i]; }\n}\n"
    twice = apply("explicit_simd", once + loop)
    assert twice.count("typedef float lanes") == 1
    assert twice.count("static inline lanes load_lanes(const float*") == 1
    assert "store_lanes(y + i, -load_lanes(x + i, count), count);" in twice


def test_stream():
    lanes = apply("explicit_simd", HALF)
    after = apply("nontemporal_stores", lanes)
    assert "* static_cast<int64_t>(sizeof(*y)) >= STREAM_FROM_MB * int64_t{1 << 20};\n    for (int64_t r" in after
    assert "0.5f * v, count, streams);" in after
    assert [(t.name, t.value) for t in tunables(after)] == [("STREAM_FROM_MB", 20)]
    assert apply("nontemporal_stores", lanes, facts(rows=64)) is None, "everything fits into the cache"
    assert apply("nontemporal_stores", lanes.replace("sums[r] = sum", "sums[r] = y[r]")) is None, (
        "the output is read again"
    )
    again = lanes.replace("0.5f * v, count", "0.5f * v + load_lanes(y + r * columns + i, count), count")
    assert again != lanes and apply("nontemporal_stores", again) is None, "the output is read again, in lanes"


SWISH = """\
    #include <cmath>
    #include <cstdint>

    static float swish(float v) {
        return v / (1.0f + expf(-v));
    }

    void f(const float* x, const float* weight, float* y, int64_t rows, int64_t columns) {
        for (int64_t r = 0; r < rows; ++r) {
            const float* row = x + r * columns;
            for (int64_t c = 0; c < columns; ++c) {
                y[r * columns + c] = swish(row[c]) * weight[c];
            }
        }
    }
"""


def streamed(text: str, *first: str) -> str:
    for step in (*first, "explicit_simd", "nontemporal_stores"):
        text = apply(step, text)
    return text


def test_prefetch():
    after = apply("software_prefetch", streamed(SWISH, "vector_math"))
    assert behind(after, "const int64_t count = std").startswith(
        "const int64_t count = std::min<int64_t>(LANES, columns - c);\n"
        "            prefetch_ahead(row + c);\n"
        "            store_lanes(y + r * columns + c, swish(load_lanes(row + c, count)) *"
    ), "the row, not the weights, which stay in the caches"
    assert after.index("constexpr int64_t LANES") < after.index("void prefetch_ahead(") < after.index("void f(")


def test_prefetch_leaves_alone():
    short = streamed(SWISH.replace("expf(-v)", "v * v"))
    assert ", count, streams);" in short
    assert apply("software_prefetch", short) is None, "little arithmetic"
    lanes = apply("explicit_simd", apply("vector_math", SWISH))
    assert apply("software_prefetch", lanes) is None, "nothing goes past the caches"
    loop = "for (int64_t c = 0; c < columns; ++c) {"
    twice = SWISH.replace(loop, f"float sum = 0.0f;\n{loop} sum += weight[c]; }}\n{loop}").replace(
        "= swish", "= sum * swish"
    )
    assert apply("software_prefetch", streamed(twice, "vector_math")).count("prefetch_ahead(row + c);") == 1
    twice = twice.replace("+= weight[c]", "+= row[c]")
    assert apply("software_prefetch", streamed(twice, "vector_math")) is None, "the sum has just read the row"


def test_prefetch_of_bodies_that_somebody_else_wrote():
    text = streamed(SWISH, "vector_math")
    count = "const int64_t count = std::min<int64_t>(LANES, columns - c);\n"
    start = text.index(" {\n            " + count)
    end = text.index("        }\n", start)
    single = (
        text[:start] + "\n" + text[start + len(" {\n            " + count) : end] + text[end + len("        }\n") :]
    )
    single = single.replace(", count)", ", LANES)").replace(", count, streams", ", LANES, streams")
    assert apply("software_prefetch", single) is None, "the prefetch would be the loop's body"
    branch = text.replace("store_lanes(y + r", "if (r > 2) { const float* from = row; store_lanes(y + r", 1).replace(
        "load_lanes(row + c, count)", "load_lanes(from + c, count)"
    )
    branch = branch.replace(", count, streams);\n", ", count, streams); }\n")
    assert apply("software_prefetch", branch) is None, "of a variable that is not in sight in front of the branch"
