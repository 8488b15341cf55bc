"""What holds over the whole tree: imports point one way, the linter is content, pins are within the ranges."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize(
    "command",
    [["lint-imports"], ["ruff", "check", "."]],
    ids=["imports point one way", "ruff"],
)
def test_a_linter_is_content(command):
    call = [str(Path(sys.executable).parent / command[0]), *command[1:]]
    done = subprocess.run(call, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]


def test_what_is_loaded_beside_a_candidate_brings_nothing_of_ours():
    """Whoever is in such a process can read all that it holds: only the standard library, torch, Triton, CuTe DSL (in the compiler's box) and this folder."""
    allowed = {*sys.stdlib_module_names, "torch", "triton", "numpy"}
    own = {"cute_build.py": {"cutlass"}}
    for path in sorted((ROOT / "harness" / "farside").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level != 1:  # one dot: a file beside this one
                names.append(node.module or "")
            for name in names:
                assert name.split(".")[0] in allowed | own.get(path.name, set()) or name.startswith(
                    "harness.farside"
                ), f"{path.name} imports {name}"


def test_tested_versions_are_in_the_ranges():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    pins = {name.lower().replace("_", "-"): version for name, version in (line.split("==") for line in lines)}
    wanted = [*project["dependencies"], *(r for extra in project["optional-dependencies"].values() for r in extra)]
    for requirement in map(Requirement, wanted):
        name = requirement.name.lower().replace("_", "-")
        if name in ("astrolabe", "setuptools"):
            continue
        assert name in pins, f"constraints.txt has no {name}"
        assert Version(pins[name]) in requirement.specifier, f"{name} {pins[name]} is outside {requirement.specifier}"


def test_nothing_of_ours_is_installed_under_a_foreign_name():
    """`kernels` is also a package on PyPI: a checkout is the program, and pip installs only what it needs."""
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"] == []
