"""Baselines in C: compiled as C, and a winner of C++ called from them."""

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from harness import backends
from harness.backends import cpu
from harness.export import patch
from harness.judge.builds import Brought, compile_build
from harness.records import DeviceFacts
from kernels.spec import BuildSettings, Size, Spec, Tensor, Workload
from nodes.rewrites.registry import Facts, catalog
from nodes.rewrites.syntax.source import Source

OWN = """#include <stdint.h>
#include <stdlib.h>
typedef struct { uint8_t low, high; } pair;
static int class = 3;  /* a keyword of C++ */
void add_pairs(pair * restrict x, float * restrict y, int n, const void * settings) {
    if (settings != NULL) return;
    float *sums = malloc(n * sizeof(float));
    for (int i = 0; i < n; i++) sums[i] = x[i].low + x[i].high;
    for (int i = 0; i < n; i++) y[i] = sums[i] + 0 * class;
    free(sums);
}
int main(void) { return 0; }
"""
WINNER = """#include <cstdint>
extern "C" void add_pairs_float32(const uint8_t* x, float* y, int64_t n) {
    for (int64_t i = 0; i < n; ++i) y[i] = float(x[2 * i]) + float(x[2 * i + 1]);
}
"""
SPEC = Spec(
    name="add_pairs",
    summary="y = low + high",
    axes=("n",),
    dtypes=("float32",),
    arguments=(
        Tensor(name="x", role="input", shape=("n", "2"), dtype="uint8", values=("bits",)),
        Tensor(name="y", role="output", shape=("n",)),
        Size(name="n"),
    ),
    build=BuildSettings(language="c", binding="add_pairs(x, y, n, nullptr)"),
    workloads=(Workload(axes={"n": 5}, dtype="float32", devices=("cpu",)),),
)
FACTS = DeviceFacts(device="cpu", name="here", architecture="x86_64", units=1, last_level_cache_bytes=1 << 20)
pytestmark = pytest.mark.skipif(shutil.which(cpu.compiler()) is None, reason="no C++ compiler")


def built(text: str, folder: Path):
    folder.mkdir()
    entry = backends.entry_of(cpu, SPEC, "cpu")
    return compile_build("", text, cpu, folder, FACTS, Brought(), **entry)


def test_a_source_in_c_is_compiled_as_c_and_a_candidate_of_it_as_cpp(tmp_path: Path) -> None:
    for name, text in (("own", OWN), ("winner", WINNER)):
        build = built(text, tmp_path / name)
        assert build.ok, build.log


def test_what_a_source_exports_and_its_entry_does_not_reach_needs_no_other_file(tmp_path: Path) -> None:
    more = '__attribute__((visibility("default"))) void exported(void) { extern void elsewhere(void); elsewhere(); }\n'
    build = built(OWN + more, tmp_path / "own")
    assert build.ok, build.log
    assert ctypes.CDLL(build.artefact, mode=os.RTLD_NOW).add_pairs_float32
    assert not hasattr(ctypes.CDLL(build.artefact), "exported")


def test_what_the_entry_does_not_reach_is_left_as_it_was_in_a_winner_of_the_files_own_form() -> None:
    more = "float twice(float x) {\n    return 2 * x;\n}\n"
    derived = (more + OWN).replace("return 2 * x", "return x + x").replace("+ 0 * class", "+ 0")
    files = patch.patch_files(SPEC, more + OWN, more + OWN, derived, "pairs.c", "cpu")
    assert files == {"pairs.c": more + OWN.replace("+ 0 * class", "+ 0")}


def test_what_rules_make_of_a_source_in_c_is_c() -> None:
    own = (
        "#include <math.h>\n#include <stdint.h>\nvoid add_pairs(const uint8_t *x, float *y, int n) {\n    float sum = 0;\n"
        "    for (int i = 0; i < n; i++) sum += expf(x[2 * i]);\n    for (int i = 0; i < n; i++) y[i] = sum + fmaxf(x[2 * i], sum);\n}\n"
    )
    facts = Facts(spec=SPEC, device=FACTS)
    made = [one(Source(own, "cpu"), facts) for one in catalog().values() if "cpu" in one.languages]
    texts = [text for text in made if text is not None]
    assert texts
    for text in texts:
        done = subprocess.run(["gcc", "-fsyntax-only", "-x", "c", "-"], input=text, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_a_winner_of_cpp_is_called_from_the_file_in_c(tmp_path: Path) -> None:
    files = patch.patch_files(SPEC, OWN, OWN, WINNER, "src/pairs.c", "cpu")
    assert sorted(files) == ["src/pairs.astrolabe.cpp", "src/pairs.astrolabe.h", "src/pairs.c"]
    for name, text in files.items():
        (tmp_path / Path(name).name).write_text(text)
    calls = '#include <stdio.h>\nextern void add_pairs();\nint main(void) { unsigned char x[16] = {1, 2, 3, 4}; float y[8]; add_pairs(x, y, 8, (void *)0); printf("%g %g", y[0], y[1]); }\n'
    (tmp_path / "main.c").write_text(calls)
    (tmp_path / "pairs.c").write_text((tmp_path / "pairs.c").read_text().replace("int main(void) { return 0; }", ""))
    for command in (
        ["gcc", "-c", "pairs.c", "main.c"],
        ["g++", "-std=c++17", "-c", "pairs.astrolabe.cpp"],
        ["g++", "pairs.o", "main.o", "pairs.astrolabe.o", "-o", "main"],
    ):
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert subprocess.run(["./main"], cwd=tmp_path, capture_output=True, text=True).stdout == "3 7"
    assert "launched" in (tmp_path / "pairs.c").read_text()
