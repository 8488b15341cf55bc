"""A candidate staged and called alone, with a CUDA runtime that is the host's memory in place of a GPU's."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.judge import staging
from harness.records import Build
from kernels.spec import Scalar, Size, Spec, Tensor, Workload
from tests.harness import stand_in

needs_compiler = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")

SPEC = Spec(
    name="gather",
    summary="out[i] = scale * table[rows[i]]; counts[0] += n",
    axes=("n", "rows"),
    dtypes=("float32", "float16"),
    arguments=(
        Tensor(name="table", role="input", shape=("rows",)),
        Tensor(name="index", role="input", shape=("n",), dtype="int32", values=("index:rows",)),
        Tensor(name="out", role="output", shape=("n",)),
        Tensor(name="counts", role="inout", shape=("1",), dtype="int64", values=("index:n",)),
        Size(name="n"),
        Scalar(name="scale", value=0.5),
        Scalar(name="bias", ctype="double", value=0.25),
        Scalar(name="steps", ctype="int64_t", value=7),
    ),
    workloads=(
        Workload(axes={"n": 5, "rows": 3}, dtype="float32"),
        Workload(axes={"n": 4, "rows": 2}, dtype="float16"),
    ),
)
# Writes down what it was called with; the stream is the one that the stand-in made.
CANDIDATE = """
#include <stdint.h>
#include <stdio.h>
long stand_in_alive(void);
static void told(const char *name, const void *table, const int *index, const unsigned char *out, const int64_t *counts,
                 int64_t n, float scale, double bias, int64_t steps, void *stream, int bytes, int rows) {
  FILE *file = fopen("told.txt", "a");
  fprintf(file, "%s n=%ld scale=%g bias=%g steps=%ld stream=%p alive=%ld counts=%ld out=%02x%02x", name, n, scale, bias, steps,
          stream, stand_in_alive(), *counts, out[0], out[n * bytes - 1]);
  for (int i = 0; i < n; ++i) fprintf(file, "%s%d", i ? "," : " index=", index[i]);
  fprintf(file, " table=");
  for (int i = 0; i < rows * bytes; ++i) fprintf(file, "%02x", ((const unsigned char *)table)[i]);
  fprintf(file, "\\n");
  fclose(file);
}
#define ENTRY(dtype, bytes, rows)                                                                              \\
  void gather_##dtype(void *table, void *index, void *out, void *counts, int64_t n, float scale, double bias, \\
                      int64_t steps, void *stream) {                                                          \\
    told(#dtype, table, index, out, counts, n, scale, bias, steps, stream, bytes, rows);                      \\
  }
ENTRY(float32, 4, 3)
ENTRY(float16, 2, 2)
"""


@pytest.fixture
def staged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], staging.Staged]:
    """Puts the candidate and its inputs into `tmp_path`."""
    (tmp_path / "made").mkdir()
    stand_in.runtime(tmp_path / "made", monkeypatch)
    build = stand_in.candidate(tmp_path / "made", CANDIDATE)
    return lambda: staging.stage(SPEC, build, SPEC.workloads, "cpu", tmp_path)


def run(what: staging.Staged, folder: Path, **environment: str) -> subprocess.CompletedProcess:
    known = {"PATH": os.environ["PATH"], **environment}
    return subprocess.run(what.command, cwd=folder, env=known, capture_output=True, text=True, timeout=60)


@needs_compiler
def test_every_argument_arrives(staged: Callable[[], staging.Staged], tmp_path: Path) -> None:
    what = staged()
    done = run(what, tmp_path)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in (tmp_path / "told.txt").read_text().splitlines()]
    assert [line[0] for line in lines] == ["float32", "float16"]
    for line, workload, index in zip(lines, SPEC.workloads, (0, 1), strict=True):
        said = dict(field.split("=") for field in line[1:])
        assert said["n"] == str(workload.axes["n"])
        assert (said["scale"], said["bias"], said["steps"], said["stream"]) == ("0.5", "0.25", "7", "0x57")
        assert said["alive"] == "4"  # the four tensors: the holes after them are free again, as is the call before
        assert said["out"] == "cdcd"  # an output is left as it was allocated
        rows = [int(row) for row in said["index"].split(",")]
        assert all(0 <= row < workload.axes["rows"] for row in rows)
        files = {name: (tmp_path / f"{index}-{name}.bin").read_bytes() for name in ("table", "index", "counts")}
        assert said["table"] == files["table"].hex()
        assert rows == list(struct.unpack(f"<{len(rows)}i", files["index"]))
        assert int(said["counts"]) == struct.unpack("<q", files["counts"])[0]
    assert not (tmp_path / "0-out.bin").exists()


@needs_compiler
def test_a_large_input_is_its_beginning_over_and_over(
    staged: Callable[[], staging.Staged], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "WRITTEN_BYTES", 8)
    what = staged()
    assert (tmp_path / "0-table.bin").stat().st_size == 8
    assert run(what, tmp_path).returncode == 0
    said = (tmp_path / "told.txt").read_text().splitlines()[0]
    beginning = (tmp_path / "0-table.bin").read_bytes()
    assert f"table={(beginning * 2)[:12].hex()}" in said


@needs_compiler
@pytest.mark.parametrize(
    ("environment", "status", "words"),
    [
        ({"STAND_IN_FAULT": "1"}, 3, "the kernel: an illegal memory access was encountered"),
        ({"STAND_IN_MOST": "12"}, 3, "cudaMalloc of 4096 bytes: out of memory"),
    ],
)
def test_what_cuda_refuses_is_an_exit_status(
    staged: Callable[[], staging.Staged],
    tmp_path: Path,
    environment: dict[str, str],
    status: int,
    words: str,
) -> None:
    done = run(staged(), tmp_path, **environment)
    assert (done.returncode, done.stderr.strip()) == (status, words)


@needs_compiler
def test_a_missing_entry_is_named(staged: Callable[[], staging.Staged], tmp_path: Path) -> None:
    what = staged()
    told = json.loads((tmp_path / "calls.json").read_text())
    told["calls"][0]["symbols"] = ["scatter_float32", "scatter"]
    (tmp_path / "calls.json").write_text(json.dumps(told))
    done = run(what, tmp_path)
    assert (done.returncode, done.stderr.strip()) == (4, "no entry scatter_float32 or scatter")


def test_what_cannot_be_called_so_is_said() -> None:
    assert staging.why_not(Build(candidate="c", backend="cuda", ok=True)) == ""
    assert "failed" in staging.why_not(Build(candidate="c", backend="cuda", ok=False))
    for backend in ("cpu", "python_module", "torch_extension"):
        assert backend in staging.why_not(Build(candidate="c", backend=backend, ok=True))


def test_it_runs_with_the_standard_library_alone() -> None:
    """`-I -S` in a box that shows nothing else: an import of ours would end it."""
    done = subprocess.run([sys.executable, "-I", "-S", str(staging.STANDALONE)], capture_output=True, text=True)
    assert "IndexError" in done.stderr  # it came as far as asking for its argument
