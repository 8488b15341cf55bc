"""The CPU's instruction mix: who wrote a loop in intrinsics is told how wide its vectors are."""

from __future__ import annotations

import platform
import shutil
from pathlib import Path

import pytest

from harness import device
from harness.backends import cpu
from harness.probes import assembly, compiler
from harness.records import Build, DeviceFacts

LISTING = """\
0000000000001120 <f>:
    1120:\tvmovups (%rdi,%rax,4),%zmm0
    1128:\tvfmadd231ps %zmm1,%zmm0,%zmm2
    112e:\tvaddss %xmm1,%xmm0,%xmm0
    1132:\tvdivps %ymm1,%ymm0,%ymm0
    1136:\tvcvtsi2ss %eax,%xmm0,%xmm0
    113a:\tvmovntps %zmm0,(%rsi)
    1140:\tvgatherdps %zmm0,(%rsi,%zmm1,4),%k1
    1146:\tcall   1030 <expf@plt>
    114b:\tret
"""
# In intrinsics, so that g++ has nothing to vectorise; written for any width that this machine may have.
BY_HAND = """\
#include <immintrin.h>
#include <cstdint>
extern "C" void f(float* y, const float* x, int64_t n) {
#if defined(__AVX512F__)
    for (int64_t i = 0; i + 16 <= n; i += 16) _mm512_storeu_ps(y + i, _mm512_add_ps(_mm512_loadu_ps(x + i), _mm512_loadu_ps(y + i)));
#elif defined(__AVX__)
    for (int64_t i = 0; i + 8 <= n; i += 8) _mm256_storeu_ps(y + i, _mm256_add_ps(_mm256_loadu_ps(x + i), _mm256_loadu_ps(y + i)));
#else
    for (int64_t i = 0; i + 4 <= n; i += 4) _mm_storeu_ps(y + i, _mm_add_ps(_mm_loadu_ps(x + i), _mm_loadu_ps(y + i)));
#endif
}
"""


def test_names_of_functions_are_short() -> None:
    """As objdump demangles them: a sort's arguments and templates told nothing and took a line each."""
    sort = "std::__introsort_loop<__normal_iterator<float*, std::vector<float> >, long>(__normal_iterator<float*>, long) [clone .isra.0]"
    tile = "void (anonymous namespace)::tile<true>(float const*, long, float __vector(16)) [clone .constprop.0]"
    names = {
        sort: "std::__introsort_loop", tile: "tile", "operator new(unsigned long)": "operator new", "run._omp_fn.0": "run._omp_fn.0",
        "std::function<void (int)>::operator()(int) const": "std::function::operator()", "f(void (*)(int))": "f",
    }  # fmt: skip
    assert {name: assembly.shorten_name(name) for name in names} == names
    assert assembly.mix(f"  1146:\tcall   1030 <{sort}>\n")["calls"] == "std::__introsort_loop 1"


def test_counts_of_a_listing() -> None:
    assert assembly.mix(LISTING) == {
        "calls": "expf 1", "divisions and roots": "1", "fused multiply-adds": "1", "gathers": "1", "instructions": "9",
        "scalar float instructions": "2", "streaming stores": "1", "vector instructions of 32 bytes": "1",
        "vector instructions of 64 bytes": "4",
    }  # fmt: skip


@pytest.mark.skipif(
    platform.machine() != "x86_64" or shutil.which("objdump") is None, reason="no x86-64, or no objdump"
)
def test_loops_written_by_hand_are_not_said_to_have_no_vectors(tmp_path: Path) -> None:
    facts = device.facts("cpu")
    source, artefact = tmp_path / "candidate.cpp", tmp_path / "candidate.so"
    source.write_text(BY_HAND)
    done = cpu.compile(source, artefact, facts, 60.0)
    assert done.ok, done.log
    build = Build(candidate="0" * 64, backend="cpu", ok=True, artefact=str(artefact), resources=done.resources)
    assert compiler.read(build, facts)["loops that g++ vectorised itself"] == "0"
    read = assembly.read(build, facts)
    assert int(read[f"vector instructions of {facts.vector_bytes} bytes"]) >= 3


def test_what_cannot_be_read_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = DeviceFacts(device="cuda", name="", architecture="sm_90", units=1, last_level_cache_bytes=1)
    artefact = tmp_path / "candidate.so"
    artefact.write_text("no library")
    build = Build(candidate="0" * 64, backend="cpu", ok=True, artefact=str(artefact))
    assert "unavailable" in assembly.read(build, gpu)
    if shutil.which("objdump"):
        assert assembly.read(build, device.facts("cpu"))["unavailable"].startswith("objdump failed")
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    assert "binutils" in assembly.read(build, device.facts("cpu"))["unavailable"]
