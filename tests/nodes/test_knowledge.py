"""The pages that models read: every snippet compiles, and is right where it can be run; only what fits a kernel is shown."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import get_args

import pytest

from harness import device
from harness.backends import cpu
from kernels import catalog
from kernels.family import Family
from nodes import knowledge
from tests.nodes.policies.examples import CPU, GPU, for_coder, for_planner
from tests.nodes.policies.test_prompts import prompt

HERE = Path(__file__).parent
PAGE_CHARS = 3400
NVCC_FLAGS = ("-std=c++17", "-O3", "-gencode=arch=compute_90a,code=sm_90a")


def snippet(name: str, language: str) -> str:
    (found,) = re.findall(rf"```{language}\n(.*?)```", knowledge.page(name), re.DOTALL)
    return found


def joined(names: list[str], language: str, main: str) -> str:
    """All snippets in one file, what they include first, each in a namespace of its page's name."""
    snippets = {name: snippet(name, language) for name in names}
    includes = {line: None for text in (*snippets.values(), main) for line in re.findall(r"^#include .*$", text, re.M)}
    bodies = {name: re.sub(r"^#include .*$", "", text, flags=re.M) for name, text in (*snippets.items(), ("", main))}
    spaces = [f"namespace {name} {{\n{body}\n}}" for name, body in bodies.items() if name]
    return "\n".join([*includes, *spaces, bodies[""]])


def pages(*prefixes: str) -> list[str]:
    return [name for name in knowledge.every() if name.startswith(prefixes)]


@pytest.mark.skipif(bool(cpu.why_unavailable()), reason=cpu.why_unavailable())
def test_what_the_cpu_pages_show_is_right(tmp_path: Path) -> None:
    (tmp_path / "check.cpp").write_text(joined(pages("cpu"), "cpp", (HERE / "knowledge_check.cpp").read_text()))
    flags = ["-std=c++17", "-O2", "-march=native", "-fopenmp", "-Wall", "-Werror", "-o", "check"]
    built = subprocess.run(["g++", *flags, "check.cpp"], cwd=tmp_path, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr[-3000:]
    said = subprocess.run(["./check"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert said.stdout == "all right\n"


@pytest.mark.skipif(device.cuda_home() is None, reason="no nvcc")
def test_what_the_gpu_pages_show_compiles(tmp_path: Path) -> None:
    nvcc(tmp_path, "-c", "-o", "check.o")


@pytest.mark.gpu
def test_what_the_gpu_pages_show_is_right(tmp_path: Path) -> None:
    nvcc(tmp_path, "-o", "check")
    said = subprocess.run(["./check"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert said.stdout == "all right\n", said.stdout + said.stderr


def nvcc(folder: Path, *flags: str) -> None:
    home = device.cuda_home()
    assert home is not None
    (folder / "check.cu").write_text(joined(pages("cuda", "hopper"), "cuda", (HERE / "knowledge_check.cu").read_text()))
    command = [str(home / "bin" / "nvcc"), *NVCC_FLAGS, *flags, "check.cu"]
    built = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout[-3000:] + built.stderr[-3000:]


def test_every_family_has_its_page_on_both_kinds_of_device_and_no_page_is_left_over() -> None:
    families = {name.replace(" ", "_") for name in get_args(Family)}
    hopper = {f"hopper_{what}" for shown in knowledge.HOPPER.values() for what in shown}
    assert set(knowledge.every()) == {f"{on}_{name}" for on in ("cpu", "cuda") for name in families} | hopper
    assert hopper == {"hopper_tma", "hopper_mbarrier", "hopper_clusters", "hopper_wgmma", "hopper_pdl"}


@pytest.mark.parametrize("name", knowledge.every())
def test_a_page_is_short_and_says_how_libraries_do_it_or_what_it_needs(name: str) -> None:
    text = knowledge.page(name)
    assert text.startswith("### ") and len(text) <= PAGE_CHARS and text.count("```") == 2


def gate_pages(device: str) -> tuple[str, str]:
    return (f"{device}_select", f"{device}_row_reduction")


def test_only_what_fits_the_kernel_and_the_device_is_shown() -> None:
    gate = ("select", "row reduction")
    assert knowledge.names(gate, GPU) == ("cuda_select", "cuda_row_reduction", "hopper_pdl")
    assert knowledge.names(gate, GPU.model_copy(update={"architecture": "sm_80"})) == gate_pages("cuda")
    assert knowledge.names(gate, CPU) == gate_pages("cpu")
    with pytest.raises(KeyError, match="there is no page '../secrets'"):
        knowledge.page("../secrets")


def test_the_planner_and_the_coder_are_shown_the_pages_whole() -> None:
    for role, request in (("planner", for_planner()), ("coder", for_coder())):
        system, user = prompt(role, request)
        shown = [name for name in knowledge.every() if knowledge.page(name) in system + user]
        assert tuple(sorted(shown)) == tuple(sorted(knowledge.names(("elementwise",), request.device)))


def test_the_page_is_that_of_what_the_reference_does_whatever_the_kernel_is_called() -> None:
    spec = catalog.load("silu_and_mul").spec.model_copy(update={"name": "row_softmax"})
    reference = (catalog.load("silu_and_mul").folder / "reference.py").read_text()
    assert knowledge.families_of(spec, "") == ("row reduction",)
    assert knowledge.families_of(spec, reference) == ("elementwise",)
    system, _ = prompt("coder", for_coder(spec=spec, device=CPU), reference=reference)
    assert knowledge.page("cpu_elementwise") in system and knowledge.page("cpu_row_reduction") not in system
