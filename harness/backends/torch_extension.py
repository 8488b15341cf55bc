"""C++ or CUDA that includes torch's headers, SGLang's own style: 25 s with g++, a minute with nvcc.

The source binds itself (PYBIND11_MODULE, TORCH_LIBRARY), or it defines a plain C++ function named as the entry that
takes at::Tensor, int64_t and double arguments in the spec's order, for which a binding is added here; `build.binding` names one of another
name or in a namespace, or writes the whole call: of dtypes, strings and lists of numbers, which no spec has.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import re
import sys
import sysconfig
from pathlib import Path

from harness.backends import FUNCTION_BY_DTYPE, Compiled, call_wrapper, cpu, cuda, form_of, is_python, together
from harness.device import cuda_home
from harness.records import DeviceFacts

SUFFIX = ".cu"
"""Suffix of sources; on a CPU compile() renames them."""
DEVICE = "any"
PYTHON_SIDE = True
BINDS = True
ARTEFACT = "candidate.so"
FLAGS = ("-std=c++20", "-O3", "-DTORCH_EXTENSION_NAME=candidate", "-DTORCH_API_INCLUDE_EXTENSION_H")
LINKS = ["-lc10", "-ltorch_cpu", "-ltorch"]
_BINDS = re.compile(r"\b(PYBIND11_MODULE|TORCH_LIBRARY(_FRAGMENT)?|PyInit_)\b")
NEEDS_OPERATORS = re.compile(
    r'error: (no operator "|no suitable (user-defined conversion|conversion|constructor)|no instance of constructor)'
)
"""Of a source that computes with __half or __nv_bfloat16 by the operators that torch's usual flags take away."""
_BINDING = """
#include <torch/extension.h>
PYBIND11_MODULE({module}, module) {{ module.def("{entry}", &{bound}{names}); }}
"""
CALL_MODULE = "candidate_call"
"""Python module of a call that `build.binding` writes out; the source may have one of its own."""


def with_binding(text: str, entry: str, binding: str) -> str:
    """The source with a binding of the entry: of the call that the spec writes out, or of a function where the source binds nothing."""
    asked = json.loads(binding) if binding else entry
    if isinstance(asked, dict) and "call" in asked:
        names = "".join(f', pybind11::arg("{name}")' for _, name in asked["takes"])
        text += "\n#include <torch/extension.h>\n" + call_wrapper(
            f"{entry}_call", asked, "at::Tensor", "at::ScalarType"
        )
        return text + _BINDING.format(module=CALL_MODULE, entry=entry, bound=f"{entry}_call", names=names)
    if isinstance(asked, dict):
        raise ValueError(FUNCTION_BY_DTYPE)
    if not _BINDS.search(text):
        text += _BINDING.format(module="TORCH_EXTENSION_NAME", entry=entry, bound=asked, names="")
    return text


def takes(text: str) -> bool:
    return not is_python(text) and form_of(text) == "torch"


def why_no_torch() -> str:
    return "" if importlib.util.find_spec("torch") else "PyTorch was not found; install it (pip install torch)"


def why_unavailable() -> str:
    return cpu.why_unavailable() or why_no_torch()


def identity(facts: DeviceFacts) -> str:
    return toolchain(facts, " ".join(FLAGS))


@functools.cache
def toolchain(facts: DeviceFacts, flags: str) -> str:
    """Compiler, flags, PyTorch and chip: what a build with torch's headers depends on beside its source."""
    import torch

    said = cuda.version(facts.device)
    return f"{said[0]} {said[-1]} {flags} {torch.__version__} {facts.architecture}"


def environment(facts: DeviceFacts) -> list[str]:
    """The command in front of a build that goes through torch.utils.cpp_extension by itself."""
    number = facts.architecture.removeprefix("sm_")
    chip = []
    if number.isdigit():
        chip = [f"TORCH_CUDA_ARCH_LIST={number[:-1]}.{number[-1]}{'a' if int(number) >= 90 else ''}"]
    home = cuda_home()
    toolkit = [f"CUDA_HOME={home}"] if home else []
    return ["env", *chip, *toolkit, f"PATH={Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}"]


def header_folders() -> list[str]:
    """torch's own, and Python's, which these name; nvcc knows the toolkit's."""
    from torch.utils import cpp_extension

    return [*cpp_extension.include_paths(), sysconfig.get_paths()["include"]]


def command_for(
    source: Path, artefact: Path, facts: DeviceFacts, options: list[str], links: list[str], for_nvcc: list[str]
) -> tuple[list[str], list[str]]:
    """The compiler's command with torch's headers and libraries, and the folders that it reads."""
    import torch

    library, folders = str(Path(torch.__file__).parent / "lib"), header_folders()
    common = [*options, *(f"-I{folder}" for folder in folders), "-o", str(artefact), f"-L{library}"]
    readable = [*folders, library]
    if facts.device == "cuda":
        readable.append(str(cuda_home()))
        command = [
            cuda.nvcc(),
            *for_nvcc,
            *common,
            *cuda.FLAGS[2:],
        ]  # so that a kernel can take away what torch defines
        command += [cuda.architecture_flag(facts.architecture), str(source), *links]
        return [*command, "-lc10_cuda", "-ltorch_cuda", f"-Xlinker=-rpath,{library}"], readable
    command = [cpu.compiler(), *common, "-shared", "-fPIC", "-march=native", "-fopenmp"]
    return [*command, str(source), *links, f"-Wl,-rpath,{library}"], readable


def compile(
    source: Path,
    artefact: Path,
    facts: DeviceFacts,
    timeout_s: float,
    entry: str,
    binding: str = "",
    flags: tuple[str, ...] = (),
) -> Compiled:
    import torch
    from torch.utils import cpp_extension

    on_gpu = facts.device == "cuda"
    try:
        text = with_binding(source.read_text(), entry, binding)
    except ValueError as error:
        return Compiled(False, f"error: {error}")
    source = source.with_suffix(".cu" if on_gpu else ".cpp")
    source.write_text(text)
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}"
    options, links = [*together(FLAGS, flags), abi], [*LINKS, "-ltorch_python"]
    usual = cpp_extension.COMMON_NVCC_FLAGS
    command, readable = command_for(source, artefact, facts, options, links, usual)
    done = cuda.run(command, source, artefact, readable, timeout_s, on_gpu=on_gpu)
    if (
        not done.ok and on_gpu and NEEDS_OPERATORS.search(done.log)
    ):  # vLLM's build takes these flags of torch's away, too
        usual = [flag for flag in usual if not flag.startswith("-D__CUDA_NO_")]
        command, readable = command_for(source, artefact, facts, options, links, usual)
        done = cuda.run(command, source, artefact, readable, timeout_s, on_gpu=on_gpu)
    return done
