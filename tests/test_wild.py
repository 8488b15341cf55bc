"""The manifest of engines' kernels: each names what its folder needs, and its own files are a kernel's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.wild.__main__ import HERE, make
from kernels import catalog

KNOWN = json.loads((HERE / "manifest.json").read_text())


@pytest.mark.parametrize("name", KNOWN)
def test_a_checkout_and_our_files_make_a_kernel(name: str, tmp_path: Path) -> None:
    checkout, wanted = tmp_path / "checkout", KNOWN[name]
    for path in wanted["links"].values():
        (checkout / path).mkdir(parents=True)
    with (
        pytest.raises(SystemExit, match="must be a checkout of|is there already")
        if wanted["files"]
        else pytest.raises(SystemExit)
    ):
        make(name, checkout, tmp_path if not wanted["files"] else tmp_path / "early")
    for path in wanted["files"].values():
        (checkout / path).parent.mkdir(parents=True, exist_ok=True)
        (checkout / path).write_text("// of the engine\n")
    kernel = catalog.load(str(make(name, checkout, tmp_path / "made")))
    assert any(kernel.baselines(device) for device in ("cuda", "cpu")) and set(wanted["files"]) - {
        "baseline.cu",
        "baseline.cpp",
        "baseline.py",
    } <= set(kernel.headers)


def test_nothing_of_an_engine_is_kept_here() -> None:
    kept = {path.name for path in HERE.rglob("*") if path.is_file() and path.suffix not in (".pyc",)}
    assert not any(name.endswith((".cuh", ".h")) or name == "baseline.cu" for name in kept)
