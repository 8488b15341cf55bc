"""Two forms in one file, numbers by size, numbers that are searched again: which of them runs, and what is refused."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest

from harness.judge.bands import Band, Measure, Split, measures
from harness.judge.tunables import tunables
from harness.store import digest
from kernels import catalog
from kernels.spec import Size, Spec, Tensor, Workload
from nodes.policies.search import apply_step
from nodes.rewrites.specialize.dispatch import dispatched
from nodes.rewrites.specialize.multiversion import multiversion
from nodes.rewrites.specialize.uneven import every_uneven, row_axis
from nodes.rewrites.syntax.source import Source, Unsupported
from nodes.roles import Version
from tests.nodes.rewrites.emulate.emulation import emulated
from tests.nodes.rewrites.steps import FACTS, ROOT
from tests.nodes.rewrites.test_inputs import first_plan

SPEC = Spec(
    name="some",
    summary="an operation with one size",
    axes=("n",),
    dtypes=("float32", "float64"),
    arguments=(Tensor(name="out", role="output", shape=("n",)), Size(name="n")),
    workloads=(Workload(axes={"n": 1}, dtype="float32"),),
)
BYTES = Measure(sizes=("n",), tensor="out")
BOTH = ("float32", "float64")


def version(dtypes: tuple[str, ...] = BOTH, **more) -> Version:
    return Version(candidate="other", dtypes=dtypes, **more)


def below(limit: int, dtypes: tuple[str, ...] = BOTH, **more) -> Version:
    return version(dtypes, measure=BYTES, below=limit, **more)


def joined(first: str, second: str, how: Version) -> str:
    return multiversion(Source(first, "cpu"), Source(second, "cpu"), SPEC, how)


def entries(body: str) -> str:
    return "".join(
        f'extern "C" void some_{name}({ctype}* y, int64_t count) {{ {body} }}\n'
        for name, ctype in (("float32", "float"), ("float64", "double"))
    )


def called(text: str, folder: Path, counts: list[int]) -> list[tuple[float, float]]:
    """What a source writes to the first element of each data type."""
    built_as = folder / f"{digest(text)}.so"  # a library that is loaded already would be taken for it
    built_as.with_suffix(".cpp").write_text(text)
    flags = ["-std=c++17", "-O1", "-shared", "-fPIC", "-Wall", "-Wno-unused-function", "-Werror"]
    subprocess.run(["g++", *flags, "-o", built_as, built_as.with_suffix(".cpp")], check=True)
    built = ctypes.CDLL(str(built_as))
    found = []
    for count in counts:
        single, double = (ctypes.c_float * 1)(), (ctypes.c_double * 1)()
        built.some_float32(single, ctypes.c_int64(count))
        built.some_float64(double, ctypes.c_int64(count))
        found.append((single[0], double[0]))
    return found


SHARED = """\
#include <cstdint>
#define STEP 1  // tune: 1 3 5

// Ten of them.
static int tens(int x) { return 10 * x; }
"""
FIRST = SHARED + "template <typename T>\nstatic void run(T* y) { y[0] = tens(STEP); }\n\n" + entries("run(y);")
SECOND = (
    SHARED.replace("<cstdint>", "<cmath>\n#include <cstdint>")
    + "// The other way.\ntemplate <typename T>\nstatic void run(T* y) { y[0] = -std::fabs(T(tens(STEP))); }\n\n"
    + entries("run(y);")
)


# what the second file has where the first one has it otherwise -> its value is negative
FORMS = {
    "a function": "static void put(T* y) { y[0] = SIGN tens(1); }",
    "a number": "#define VALUE SIGN 10  // tune: 10\ntemplate <typename T>\nstatic void put(T* y) { y[0] = VALUE; }",
    "a constant below what uses it": "constexpr int kSign = SIGN 1;\nstatic int sign() { return kSign; }\n"
    "static void put(T* y) { y[0] = sign() * tens(1); }",
    "one of two overloads": "static int of(int) { return SIGN 10; }\nstatic int of(long) { return 7; }\n"
    "static void put(T* y) { y[0] = of(0); }",
    "a specialisation": "template <typename U>\nstruct Value {\n  static constexpr int get = 1;\n};\ntemplate <>\nstruct Value<int> {\n"
    "  static constexpr int get = SIGN 10;\n};\nstatic void put(T* y) { y[0] = Value<int>::get; }",
    "within namespaces": "namespace mine {\nint five() { return SIGN 5; }\nnamespace deep {\nint ten() { return 2 * five(); }\n}\n}\n"
    "static void put(T* y) { y[0] = mine::deep::ten(); }",
    "a name of the standard library": "static int max(int x) { return SIGN std::max(x, 1); }\n#define TEN max(std::max(10, 2))\n"
    "static void put(T* y) { y[0] = TEN; }",
    "types with a variable or a second name": "typedef struct Five_ {\n  int get = 5;\n} Five;\n"
    "typedef enum { kSign = SIGN 1 } Sign;\nstatic const struct Two {\n  int get = SIGN 2;\n} two;\n"
    "static void put(T* y) { y[0] = kSign * kSign * two.get * Five().get; }",
    "state of its own": "static int ten = 0;\nstatic int first(int x) {\n  static int kept = x;\n  return kept;\n}\n"
    "static void put(T* y) {\n  if (ten == 0) ten = first(SIGN 10);\n  y[0] = ten;\n}",
    "a function under a condition": "static int ten() { return SIGN 10; }\n#ifndef OTHER\nstatic int of() { return ten(); }\n#endif\n"
    "static void put(T* y) { y[0] = of(); }",
    "a condition on a number": "#define WIDTH (6 SIGN 1)\n#if WIDTH > 6\n#define TEN 10\n#else\n#define TEN -10\n#endif\n"
    "static void put(T* y) { y[0] = TEN; }",
    "a method behind its type": "struct S {\n  static int ten();\n};\nint S::ten() { return SIGN 10; }\n"
    "static void put(T* y) { y[0] = S::ten(); }",
    "a member of the same name": "constexpr int n = SIGN 10;\nstruct A {\n  int n = 3;\n  int get() { return n; }\n};\n"
    "static void put(T* y) { y[0] = n * A().get() / 3; }",
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_each_size_and_type_gets_its_form(form: str, tmp_path: Path) -> None:
    text = FORMS[form].replace("static void put(T*", "template <typename T>\nstatic void put(T*")
    text = text.replace("template <typename T>\ntemplate <typename T>", "template <typename T>")
    text = "#include <algorithm>\n" + text
    first, second = (SHARED + text.replace("SIGN", sign) + "\n" + entries("put(y);") for sign in ("+", "-"))
    if form == "a function":
        new = joined(first, second, version(measure=BYTES, at_least=64))
        assert called(new, tmp_path, [7, 8, 16]) == [(10, 10), (10, -10), (-10, -10)]
        assert called(joined(first, second, version(("float64",))), tmp_path, [1, 99]) == [(10, -10), (10, -10)]
    again = joined(joined(first, second, below(64)), first, below(16))
    assert called(again, tmp_path, [1, 2, 4, 8, 16]) == [(10, 10), (10, -10), (-10, -10), (-10, 10), (10, 10)]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (FIRST, SHARED + "#define ENTRY(NAME, T) extern \"C\" void NAME(T* y, int64_t count) { y[0] = 1; }\n"
         "ENTRY(some_float32, float)\nENTRY(some_float64, double)\n"),
        (FIRST, SECOND + "namespace {\nint broken(\n}\n"),
        (FIRST, SECOND.replace("#define STEP 1", "#define TEN(x) of(x); /* two */ of(x)\n#define STEP 1")),
        (FIRST, SHARED + "using namespace std;\n" + entries("y[0] = 1;")),
        (FIRST, '#include "mine.h"\n' + SECOND),
        (FIRST.replace("int64_t count", "int64_t"), SECOND),
    ],
    ids=["entries by a macro", "not parsed", "a macro with a comment within", "a using directive", "a header of its own",
         "a parameter without a name"],
)  # fmt: skip
def test_what_is_not_understood_is_refused(first: str, second: str) -> None:
    with pytest.raises(Unsupported):
        joined(first, second, below(64))


# What both files have, word for word, means something else in each of them, or would in one file.
MIXED = {
    "a name that a macro puts together": "static int ten_abc() { return SIGN 10; }\n#define TEN(x) ten_##x()\nPUT { y[0] = TEN(abc); }",
    "a function that a macro writes": "static int ten() { return SIGN 10; }\n#define MAKE(name) static int name() { return ten(); }\n"
    "MAKE(of)\nPUT { y[0] = of(); }",
    "a using declaration": "namespace a {\nint ten() { return SIGN 10; }\n}\nusing a::ten;\nPUT { y[0] = ten(); }",
}  # fmt: skip


@pytest.mark.parametrize("form", MIXED)
def test_what_would_mean_something_else_is_refused(form: str) -> None:
    text = (
        SHARED + MIXED[form].replace("PUT", "template <typename T>\nstatic void put(T* y)") + "\n" + entries("put(y);")
    )
    with pytest.raises(Unsupported):
        joined(text.replace("SIGN", "+"), text.replace("SIGN", "-"), below(64))


def test_a_word_that_only_the_first_file_defines_is_anothers_in_the_second(tmp_path: Path) -> None:
    """A parameter is renamed: `template <int WIDTH>` would read `template <int 4>`. What is somebody else's is refused."""
    second = SHARED + (
        "template <int WIDTH>\nstatic int ten(float to) { return 10 * WIDTH * int(to); }\n"
        + entries("y[0] = ten<-1>(1.0f);")
    )
    first = "#define WIDTH 4\n" + FIRST.replace(
        "static int tens", "static int to(int x) { return x; }\nstatic int tens"
    )
    assert called(joined(first, second, below(64)), tmp_path, [1, 99]) == [(-10, -10), (10, 10)]
    with pytest.raises(Unsupported, match="WIDTH"):
        joined(first, second.replace("ten<-1>(1.0f)", "ten<WIDTH>(1.0f)"), below(64))


def test_operators_of_the_first_file_alone_stay_there(tmp_path: Path) -> None:
    """As the compiler's divisors have them."""
    divisor = "struct D {\n  int by;\n  operator int() const { return by; }\n};\nstatic int operator/(int x, D d) { return x - d.by; }\n"
    first = FIRST.replace(
        "static int tens(int x) { return 10 * x; }", divisor + "static int tens(int x) { return 15 * x / D{5}; }"
    )
    assert called(joined(first, SECOND, below(64)), tmp_path, [1, 99]) == [(-10, -10), (10, 10)]


def test_what_the_forms_point_to_by_different_types_is_cast(tmp_path: Path) -> None:
    second = SECOND.replace("some_float32(float* y", "some_float32(uint32_t* __restrict__ y").replace(
        "run(y);", "y[0] = 0;", 1
    )
    new = joined(FIRST, second, below(64))
    assert "some_float32_small(reinterpret_cast<uint32_t*>(y), count)" in new and "some_float64_small(y, count)" in new
    assert called(new, tmp_path, [1, 99]) == [(0, -10), (10, 10)]


def test_dynamic_shared_memory_is_each_forms_own() -> None:
    """nvcc wants one type for a name in all of a file."""
    text = SHARED + (
        "__global__ void put(float* y) {\n  extern __shared__ TYPE row[];\n  y[0] = row[0];\n}\n"
        'extern "C" void some_float32(float* y, int64_t count) { put<<<1, 1, 8>>>(y); }\n'
    )
    new = joined(text.replace("TYPE", "float"), text.replace("TYPE", "double"), below(64, ("float32",)))
    assert "extern __shared__ double row_small[];\n  y[0] = row_small[0];" in new and "put_small<<<1, 1, 8>>>(y)" in new


def test_numbers_that_both_leave_open_alike_stay_one() -> None:
    new = joined(FIRST, SECOND, below(64))
    assert new.count("// tune: 1 3 5") == 1 and new.index("#define STEP") < new.index("run_small(")
    other = joined(FIRST, SECOND.replace("STEP 1 ", "STEP 3 "), below(64))
    assert "#define STEP_SMALL 3  // tune: 1 3 5" in other and "#define STEP 1  // tune: 1 3 5" in other


@pytest.mark.parametrize(
    ("name", "baseline"),
    [("relu_squared", "plain")],
)
def test_the_rules_own_forms_of_a_kernel_go_together(name: str, baseline: str, tmp_path: Path) -> None:
    """The baseline above a size, the first plan's file below, both ways round, emulated on either side of it; the baseline for
    uneven rows."""
    folder = ROOT / "tests" / "inputs" / name
    kernel = catalog.load(str(folder))
    text = kernel.baseline("cuda", baseline)[1].read_text()
    new = first_plan(folder / f"baseline.{baseline}.cu")[1]
    small = [w for w in kernel.spec.workloads if not w.timed]
    measure = measures(kernel.spec)[0]
    limit = max(measure.of(kernel.spec, workload) for workload in small)  # the largest of them is not below it
    below_it = Version(candidate="other", dtypes=kernel.spec.dtypes, measure=measure, below=limit)
    axis = row_axis(kernel.spec, small[0])
    uneven = [(new, text, every_uneven(kernel.spec, axis, 1))] if axis else []
    for index, (first, second, version) in enumerate([(text, new, below_it), (new, text, below_it), *uneven]):
        both = multiversion(Source(first, "cuda"), Source(second, "cuda"), kernel.spec, version)
        path = tmp_path / f"{index}.cu"
        path.write_text(both)
        ran = emulated(folder, path)
        assert (ran.returncode, ran.stdout.strip()) == (0, "right"), ran.stdout + ran.stderr


# Numbers by size.

TWO = Split(
    measure=BYTES,
    bands=(Band(below=64, values={"STEP": 1, "BLOCK": 8}), Band(below=None, values={"STEP": 5, "BLOCK": 8})),
)
THREE = Split(
    measure=BYTES, bands=(Band(below=64, values={"STEP": 1, "BLOCK": 8}), Band(below=128, values={"STEP": 5, "BLOCK": 8}),
                          Band(below=None, values={"STEP": 3, "BLOCK": 2})),
)  # fmt: skip
ONE = SPEC.model_copy(update={"dtypes": ("float32",)})
HEAD = "#include <cstdint>\n#define STEP 1  // tune: 1 3 5\n#define BLOCK 4  // tune: 2 4 8\n"
ENTRY = 'extern "C" void some_float32(float* y, int64_t count)'
PLAIN = f"static void run(float* y) {{ y[0] = STEP * 10 + BLOCK; }}\n{ENTRY} {{ run(y); }}\n"
OF_SIZES = {
    "only a call": PLAIN,
    "the entry's own body": ENTRY + " {\n    if (count < 1) return;\n    y[0] = STEP * 10 + BLOCK;\n}\n",
    "a template, its numbers named": "template <typename T, int N>\nvoid run(T* y) { y[0] = STEP * N + BLOCK; }\n" + ENTRY + " { run<float, 10>(y); }\n",
    "a macro of a macro": "#define SUM (TENS + BLOCK)\n#define TENS (STEP * 10)\nvoid run(float* y) { y[0] = SUM; }\n" + ENTRY + " { run(y); }\n",
    "a pragma": "static void run(float* y) {\n    y[0] = BLOCK;\n#pragma omp parallel for if (y[0] >= STEP)\n"
    "    for (int64_t i = 0; i < 1; ++i) y[0] += STEP * 10;\n}\n" + ENTRY + " { run(y); }\n",
}  # fmt: skip


def test_every_size_runs_with_the_numbers_of_its_band(tmp_path: Path) -> None:
    """All forms in one file."""
    parts = [HEAD]
    for number, text in enumerate(OF_SIZES.values()):
        named = dispatched(HEAD + text, "cpu", ONE, THREE).replace("some_float32", f"some_{number}")
        assert named.startswith("#include <cstdint>\n")
        parts.append(f"namespace form_{number} {{\n{named.removeprefix('#include <cstdint>')}\n}}\n")
        parts += [
            f"#undef {name}\n"
            for name in {line.split()[1] for line in named.splitlines() if line.startswith("#define")}
        ]
    path = tmp_path / "some.cpp"
    path.write_text("".join(parts[1:]).join(["#include <cstdint>\n", ""]))
    subprocess.run(
        ["g++", "-std=c++17", "-fopenmp", "-shared", "-fPIC", "-w", "-o", tmp_path / "some.so", path], check=True
    )
    library = ctypes.CDLL(str(tmp_path / "some.so"))
    for number, form in enumerate(OF_SIZES):
        found = []
        for count in (1, 15, 16, 31, 32, 10**9):
            y = (ctypes.c_float * 1)()
            getattr(library, f"some_{number}")(y, ctypes.c_int64(count))
            found.append(y[0])
        assert found == [18, 18, 58, 58, 32, 32], form


def test_thresholds_and_numbers_are_left_open_again() -> None:
    bands = (
        Band(below=64, values={"STEP": 1, "BLOCK": 2}, others=(256, 16)),
        Band(below=None, values={"STEP": 3, "BLOCK": 2}),
    )
    new = dispatched(HEAD + PLAIN, "cpu", ONE, Split(measure=BYTES, bands=bands))
    assert {t.name: t.choices for t in tunables(new)} == {
        "SMALL_BELOW": (16, 64, 256), "STEP_SMALL": (1, 3, 5), "STEP": (1, 3, 5), "BLOCK": (2, 4, 8),
    }  # fmt: skip
    ends = [{t.name: t.choices[at] for t in tunables(new)} for at in (0, -1)]
    for text, split in (
        (new, Split(measure=BYTES, bands=(Band(below=64, values=ends[0]), Band(below=None, values=ends[1])))),
        (HEAD + PLAIN.replace("y, int64_t count", ", int64_t").replace("run(y); ", ""), TWO),
        (HEAD + PLAIN.replace("run(y);", "y[0] = 1;"), TWO), (HEAD + PLAIN.replace(", int64_t count", ""), TWO),
    ):  # fmt: skip
        with pytest.raises(Unsupported):
            dispatched(text, "cpu", ONE, split)


# Numbers that are searched again.


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("66  // tune: 66 99 198", "66  // tune: 44 54 66 81 99"), ("198 // tune: 198 66 99", "198 // tune: 99 140 198 280 396"),
        ("512  // tune: 128 256 512", "512  // tune: 256 512 1024"), ("256  // tune: 32 64 128 256 512", "256  // tune: 128 256 512"),
        ("1  // tune: 1 2 4", "1  // tune: 1 2"),
        ("1  // tune: 0 1", None), ("8  // tune: 8", None), ("512", None), ("256  // tune: 128 256 512", None),
    ],
)  # fmt: skip
def test_choices_lie_around_the_value(before: str, after: str | None) -> None:
    body = "int width() { return BLOCKS; }\n"
    new = apply_step("refine_search", f"#define BLOCKS {before}\n{body}", FACTS)
    assert new == (after and f"#define BLOCKS {after}\n{body}")
    for rounds in range(40):
        new = new and apply_step("refine_search", new, FACTS)
        assert new is None or rounds < 39, "it comes to an end"
