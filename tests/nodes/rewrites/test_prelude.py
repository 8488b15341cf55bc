"""What rewrites bring along: each file of the prelude compiles by itself, and defines what it is brought for."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from nodes.rewrites.analysis.insertions import defined
from nodes.rewrites.prelude import FOLDERS, text_of

TUNED = ("ROW_THREADS", "ROW_BLOCKS", "SHORT_ROWS_FROM")
"""Numbers that the rewrites define as they fit the device."""
CUDA = sorted(path.stem for path in FOLDERS[0].glob("*.cuh"))
CPP = sorted(path.stem for path in FOLDERS[0].glob("*.h"))


def test_names_at_the_outer_level_are_what_a_text_defines() -> None:
    assert defined(text_of("ceil_div")) == {"ceil_div"}
    assert defined(text_of("row_shape")) >= {"row_shape"}
    assert defined("#define A 1\nconstexpr int b = A;\n") == {"A", "b"}


def _compiled(command: list[str], text: str, path: Path) -> None:
    path.write_text(text)
    ended = subprocess.run(
        [*command, *(f"-I{folder}" for folder in FOLDERS), str(path)], capture_output=True, text=True, timeout=250
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on PATH")
@pytest.mark.parametrize("name", CUDA)
def test_nvcc_takes_each_file_alone(name: str, tmp_path: Path) -> None:
    numbers = [f"-D{tuned}=4" for tuned in TUNED]
    command = ["nvcc", "-std=c++17", "-arch=sm_90", "-cubin", "-o", str(tmp_path / "made"), *numbers]
    _compiled(command, f'#include "{name}.cuh"\n', tmp_path / "alone.cu")


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ on PATH")
def test_gcc_takes_the_lanes(tmp_path: Path) -> None:
    command = ["g++", "-std=c++17", "-march=sapphirerapids", "-fsyntax-only", "-DBFLOAT16=uint16_t"]
    _compiled(command, "".join(f'#include "{name}.h"\n' for name in CPP), tmp_path / "all.cpp")
