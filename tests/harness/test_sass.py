"""The SASS probe: what it counts, how it runs its tools in the compilers' box, and what it says where they fail."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from harness.probes import sass
from harness.records import Build, DeviceFacts

GPU = DeviceFacts(device="cuda", name="a GPU", architecture="sm_90a", units=132, last_level_cache_bytes=1 << 26)
LISTING = """\
        /*0080*/              @!P0 BRA `(.L_x_0) ;
.L_x_0:
        /*00a0*/                   LDG.E.128.CONSTANT R4, [R2.64] ;
        /*00b0*/                   LDG.E.U16 R4, [R2.64] ;
        /*00c0*/                   LDS R4, [R2] ;
        /*00d0*/              @P1  STG.E.64 [R2.64], R4 ;
        /*00e0*/                   MUFU.EX2 R5, R5 ;
        /*00f0*/                   HADD2.F32 R6, -RZ, R6.H0_H0 ;
        /*0100*/                   HADD2 R6, R6, R7 ;
        /*0110*/                   STL [R1], R6 ;
        /*0120*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;
        /*0130*/                   SHFL.BFLY PT, R7, R6, 0x10, 0x1f ;
        /*0140*/                   FFMA R7, R6, R5, R7 ;
        /*0150*/                   LDGSTS.E.BYPASS.128.ZFILL [R3], desc[UR4][R8.64], P2 ;
        /*0160*/                   LDSM.16.MT88.4 R8, [R3] ;
        /*0170*/                   HMMA.16816.F32 R8, R12, R4, R8 ;
        /*0180*/              @UP0 UTMALDG.2D [UR8], [UR4] ;
        /*0190*/                   HGMMA.64x256x16.F32 R24, gdesc[UR4].tnspB, R24, UP1, gsb0 ;
"""
COUNTS = {
    "asynchronous copies to shared memory": "1", "barriers": "1", "conversions": "1", "global loads of 16 bytes": "1", "global loads of 2 bytes": "1",
    "global stores of 8 bytes": "1", "instructions": "17", "local memory accesses": "1", "matrix loads from shared memory": "1",
    "multiply-adds of vector units": "1", "shared loads of 4 bytes": "1", "shuffles": "1", "special function EX2": "1",
    "TMA copies": "1", "tensor core products of a warp": "1", "tensor core products of a warp group": "1",
}  # fmt: skip


def build(folder: Path) -> Build:
    artefact = folder / "candidate.so"
    artefact.write_bytes(b"machine code")
    return Build(candidate="0" * 64, backend="cuda", ok=True, artefact=str(artefact))


def tools(home: Path, extract: str, disassemble: str) -> None:
    (home / "bin").mkdir(parents=True)
    home.chmod(0o755)
    for name, script in (("cuobjdump", extract), ("nvdisasm", disassemble)):
        (home / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")
        (home / "bin" / name).chmod(0o755)


def test_counts_of_a_listing() -> None:
    assert sass.mix(LISTING) == COUNTS


@pytest.mark.parametrize(
    ("extract", "disassemble", "says"),
    [
        ("echo $1 $2; cp $3 a.cubin; cp $3 b.cubin", "cat LISTING", {k: str(2 * int(v)) for k, v in COUNTS.items()}),
        ("echo cannot read it; exit 1", "true", {"unavailable": "cuobjdump failed: cannot read it"}),
        ("kill -SEGV $$", "true", {"unavailable": "cuobjdump failed: exit code 139"}),
        ("true", "true", {"unavailable": "the build holds no machine code"}),
        ("cp $3 a.cubin", "exit 7", {"unavailable": "nvdisasm failed: exit code 7"}),
    ],
    ids=["two cubins", "a refusal", "a crash", "nothing inside", "no listing"],
)
def test_the_tools_run_in_the_box(
    extract: str, disassemble: str, says: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "cuda"
    tools(home, extract, disassemble.replace("LISTING", str(home / "listing")))
    (home / "listing").write_text(LISTING)
    monkeypatch.setattr(sass, "cuda_home", lambda: home)
    assert sass.read(build(tmp_path), GPU) == says


def test_a_problems_candidate_is_a_folder_with_libraries_or_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, made = tmp_path / "cuda", tmp_path / "candidate"
    tools(home, "cp $3 $3.cubin", f"cat {home / 'listing'}")
    (home / "listing").write_text(LISTING)
    monkeypatch.setattr(sass, "cuda_home", lambda: home)
    (made / "triton" / "key").mkdir(parents=True)
    (made / "candidate.py").write_text("import torch\n")
    (made / "triton" / "key" / "__triton_launcher.so").write_bytes(b"the host's")
    folder = Build(candidate="0" * 64, backend="model_new", ok=True, artefact=str(made))
    assert sass.read(folder, GPU) == {"unavailable": "the build holds no machine code"}
    (made / "extensions" / "-o").mkdir(parents=True)
    for name in ("native.so", "extensions/-o/-o.so"):
        (made / name).write_bytes(b"machine code")
    assert sass.read(folder, GPU) == {name: str(2 * int(count)) for name, count in COUNTS.items()}


def test_a_tool_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sass, "cuda_home", lambda: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "cuobjdump was not found" in sass.read(build(tmp_path), GPU)["unavailable"]


@pytest.mark.skipif(not all(map(shutil.which, ("nvcc", "cuobjdump", "nvdisasm"))), reason="no CUDA toolkit on PATH")
def test_a_real_kernel(tmp_path: Path) -> None:
    source, artefact = tmp_path / "a.cu", tmp_path / "a.so"
    source.write_text("__global__ void twice(const float4* x, float4* y) { y[threadIdx.x] = x[threadIdx.x]; }\n")
    command = ["nvcc", "-arch=sm_90a", "-shared", "-Xcompiler", "-fPIC", "-o", str(artefact), str(source)]
    subprocess.run(command, check=True)
    found = sass.read(Build(candidate="0" * 64, backend="cuda", ok=True, artefact=str(artefact)), GPU)
    assert found["global loads of 16 bytes"] == found["global stores of 16 bytes"] == "1", found
