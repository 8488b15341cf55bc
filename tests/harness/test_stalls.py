"""Samples by source line. The machine code is as nvdisasm 13 printed it, with `-c -gi`; ncu's table is written here after its
documented form (no recording of one is in this repository), and read for real in test_tools_on_a_gpu.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.probes import ncu, sass, stalls
from harness.processes.toolbox import Ran
from harness.records import Build
from tests.harness.test_ncu import H200, SPEC

# Line 3 is inlined into line 11; of what a header of CUDA's does the line is the candidate's own.
LISTING = """
//--------------------- .text._Z5otherPf          --------------------------
	.section	.text._Z5otherPf,"ax",@progbits
.text._Z5otherPf:
	//## File "/b/candidate.cu", line 17
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/                   EXIT ;
//--------------------- .text._Z3actPK6__halfPS_l --------------------------
	.section	.text._Z3actPK6__halfPS_l,"ax",@progbits
.text._Z3actPK6__halfPS_l:
	//## File "/b/candidate.cu", line 5
        /*0000*/                   LDC R1, c[0x0][0x28] ;
	//## File "/b/candidate.cu", line 8
        /*00b0*/              @!P0 LDG.E.U16 R4, desc[UR6][R4.64] ;
	//## File "/usr/local/cuda-13.0/bin/../targets/x86_64-linux/include/cuda_fp16.hpp", line 708 inlined at "/b/candidate.cu", line 8
	//## File "/b/candidate.cu", line 8
        /*0110*/              @!P0 HADD2.F32 R0, -RZ, R4.H0_H0 ;
	//## File "/b/candidate.cu", line 9
        /*0130*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;
.L_x_14:
	//## File "/b/candidate.cu", line 3 inlined at "/b/candidate.cu", line 11
	//## File "/b/candidate.cu", line 11
        /*0210*/                   MUFU.EX2 R4, R5 ;
	//## File "/b/candidate.cu", line 11
        /*0230*/                   STG.E.U16 desc[UR6][R2.64], R0 ;
        /*0240*/                   EXIT ;
.L_x_0:
        /*0250*/                   BRA `(.L_x_0);
        /*0260*/                   NOP;
"""
SOURCE = "\n" * 2 + "  return x / (1 + expf(-x));\n" + "\n" * 4 + "  shared[threadIdx.x] = in[i];\n"
ROWS = [  # what ncu prints of an instruction; samples; long_sb, barrier, selected
    ("      LDC R1, c[0x0][0x28]", "2", "0", "0", "2"),
    ("@!P0  LDG.E.U16 R4, desc[UR6][R4.64]", "10", "8", "0", "2"),
    ("@!P0  HADD2.F32 R0, -RZ, R4.H0_H0", "1,050", "1,000", "0", "50"),
    ("      BAR.SYNC.DEFER_BLOCKING 0x0", "300", "0", "299", "1"),
    ("      MUFU.EX2 R4, R5", "40", "0", "0", "40"),
    ("      STG.E.U16 desc[UR6][R2.64], R0", "5", "0", "0", "5"),
    ("      EXIT", "0", "", "", ""),
    ("      BRA 0x250", "0", "", "", ""),
]


def page(*kernels: tuple[str, list[tuple[str, ...]]]) -> str:
    lines = ["==PROF== Disconnected from process 42"]
    names = ("stall_long_sb", "stall_barrier", "stall_selected", "stall_long_sb (Not Issued)")
    for kernel, rows in kernels:
        lines.append(f'"Kernel Name","{kernel}"')
        lines.append(
            ",".join(f'"{name}"' for name in ("#", "Address", "Source", stalls.SAMPLES, "Live Registers", *names))
        )
        for at, (text, samples, long_sb, barrier, selected) in enumerate(rows):
            row = (str(at), f"{at * 16:x}", text, samples, "9", long_sb, barrier, selected, long_sb)
            lines.append(",".join(f'"{value}"' for value in row))
    return "\n".join(lines) + "\n"


def test_the_lines_that_warps_waited_at_are_named_with_their_reasons() -> None:
    (launch,) = stalls.parse_launches(page(("act(const __half *, __half *, long)", ROWS)))
    lines = stalls.lines_of(LISTING, launch.opcodes)
    assert lines == [5, 8, 8, 9, 3, 11, 11, 11]
    readings = stalls.summarise(launch, lines, SOURCE.splitlines())
    assert readings["kernel"].startswith("act(") and readings["samples"] == "1407"
    named = {name: said for name, said in readings.items() if name.startswith("line")}
    assert list(named) == [
        "line 8 shared[threadIdx.x] = in[i];",
        "line 9",
        "line 3 return x / (1 + expf(-x));",
        "line 11",
        "line 5",
    ]
    assert named["line 8 shared[threadIdx.x] = in[i];"] == "75% of the samples: long_sb 95%"
    assert named["line 9"] == "21% of the samples: barrier 100%" and named["line 11"] == "0% of the samples"


def test_of_several_launches_it_is_the_one_with_most_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill = ("fill(float *)", [("      EXIT", "3", "0", "0", "3")])
    monkeypatch.setattr(ncu, "find", lambda: Path("/bin/true"))
    monkeypatch.setattr(ncu, "collect", lambda *_: (page(fill, ("act(long)", ROWS), fill), Ran(0, "", "", 1.0, ())))
    monkeypatch.setattr(sass, "disassemble", lambda _build, *, lines: LISTING if lines else "")
    (tmp_path / "candidate.cu").write_text(SOURCE)
    build = Build(candidate="c", backend="cuda", ok=True, artefact=str(tmp_path / "candidate.so"))
    readings = stalls.read(build, H200, SPEC, SPEC.workloads)
    assert readings["workload"] == SPEC.workloads[-1].label and readings["kernel"] == "act(long)"
    assert "line 8 shared[threadIdx.x] = in[i];" in readings


def test_without_lines_the_instructions_are_named() -> None:
    (launch,) = stalls.parse_launches(page(("act(long)", ROWS)))
    assert stalls.lines_of(LISTING, [*launch.opcodes[1:], "FADD"]) == []
    assert stalls.summarise(launch, [], [])["instruction 3 HADD2.F32"] == "75% of the samples: long_sb 95%"


@pytest.mark.parametrize(
    "text",
    [
        "==ERROR== Failed to find section SourceCounters\n",
        page(("act(long)", [(row[0], "0", "", "", "") for row in ROWS])),  # nothing was sampled
        '"Kernel Name","k"\n"#","Source"\n"0","EXIT"\n',
        f'"Kernel Name","k"\n"Source","{stalls.SAMPLES}"\n"EXIT","inf"\n"EXIT"\n"","7"\n"EXIT","nan"\n',
        '"Kernel Name","' + "k" * 200_000 + '"\n',
        '"Source"\n"Kernel Name"\n',
    ],
)
def test_a_table_without_samples_or_one_that_a_candidate_wrote_is_nothing(text: str) -> None:
    assert stalls.parse_launches(text) == []


def test_where_it_cannot_be_read_it_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    build = Build(candidate="c", backend="cuda", ok=True)
    monkeypatch.setattr(ncu, "find", lambda: None)
    assert "ncu was not found" in stalls.read(build, H200, SPEC, SPEC.workloads)["unavailable"]
    monkeypatch.setattr(ncu, "find", lambda: Path("/bin/true"))
    refused = "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\n"
    monkeypatch.setattr(ncu, "collect", lambda *_: (refused, Ran(1, "", "", 1.0, ())))
    assert "administrators" in stalls.read(build, H200, SPEC, SPEC.workloads)["unavailable"]
