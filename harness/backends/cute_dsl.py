"""CuTe DSL (nvidia-cutlass-dsl): Python that is compiled ahead of time to machine code and a plain C entry, which is then judged as CUDA C++ is.

The source defines a `@cute.jit` function of the entry's name that takes the spec's arguments in order, tensors as `cute.Tensor`, and the stream last. It
is compiled for each dtype of the spec, without a GPU, for the chip asked for. Extents that are numbers in the spec are compile-time numbers, as are
strides that follow from them; all others are taken when called. 3 to 10 s, most of it nvcc's for the entry.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import json
import shutil
import sys
from pathlib import Path
from typing import Any

from harness.backends import C_TYPES, Compiled, cuda, is_python, python_module, run_boxed
from harness.device import cuda_home
from harness.processes.fork_server import FAR_SIDE, site_packages
from harness.records import DeviceFacts

SUFFIX = ".py"
DEVICE = "cuda"
DESCRIBED = True
BUILDER = FAR_SIDE.parent / "cute_build.py"
RUNTIME = "libcuda_dialect_runtime_static.a"


def takes(text: str) -> bool:
    return is_python(text) and python_module.uses_cute_dsl(text)


def _package() -> Path | None:
    found = importlib.util.find_spec("nvidia_cutlass_dsl")
    places = list(found.submodule_search_locations or []) if found is not None else []
    return Path(places[0]) if places else None


def _runtime() -> Path | None:
    package = _package()
    newest = sorted(package.glob(f"cu*/lib/{RUNTIME}"), reverse=True) if package is not None else []
    return newest[0] if newest else None


def why_unavailable() -> str:
    if _runtime() is None:
        return "nvidia-cutlass-dsl was not found; install it (pip install 'nvidia-cutlass-dsl[cu13]')"
    return cuda.why_unavailable()


@functools.cache
def identity(facts: DeviceFacts) -> str:
    return f"{cuda.version('cuda')[-1]} cutlass-dsl {importlib.metadata.version('nvidia-cutlass-dsl')} {facts.architecture}"


def compile(source: Path, artefact: Path, facts: DeviceFacts, timeout_s: float, described: str) -> Compiled:
    asked = json.loads(described)
    objects = source.with_name("objects")
    shutil.rmtree(objects, ignore_errors=True)  # of a build that was killed
    objects.mkdir()
    number = facts.architecture.removeprefix("sm_")
    chip = f"sm_{number}{'a' if int(number) >= 90 else ''}"
    (objects / "asked.json").write_text(described)
    command = ["env", f"CUTE_DSL_ARCH={chip}", sys.executable, "-I", str(BUILDER), str(source), str(objects)]
    readable = [site_packages(), str(FAR_SIDE.parent), str(cuda_home())]
    code, output = run_boxed(command, source.parent, readable, timeout_s)
    output = output.replace(f"{source.parent}/", "")
    if code != 0:
        return Compiled(False, output)
    made = [objects / f"{name}.o" for name in asked["entries"]]
    if any(path.is_symlink() or not path.is_file() for path in made):
        return Compiled(False, "candidate.py: error: it was compiled to nothing")
    shim = source.with_name("entries.cpp")
    shim.write_text("".join(entry(asked, name, dtype) for name, dtype in asked["entries"].items()))
    runtime = _runtime()
    assert runtime is not None, why_unavailable()
    links = ["-shared", "-Xcompiler", "-fPIC", "-cudart", "shared", "-std=c++17", "-O2", "-Xlinker=--exclude-libs,ALL"]
    command = [cuda.nvcc(), *links, "-o", str(artefact), str(shim), *map(str, made), str(runtime)]
    return cuda.run(command, source, artefact, [str(cuda_home()), str(runtime.parent)], timeout_s, on_gpu=False)


def entry(asked: dict[str, Any], name: str, dtype: str) -> str:
    """C++ of one entry: it fills the descriptors of the tensors and calls what was compiled."""
    parameters, before, names = [], [], []
    for one in asked["arguments"]:
        if one["kind"] != "tensor":
            parameters.append(f"{one['ctype']} {one['name']}")
            names.append(one["name"])
            continue
        kind = C_TYPES[dtype if one["dtype"] == "T" else one["dtype"]]
        parameters.append(f"const {kind}* {one['name']}")
        groups = [
            ", ".join(f"int64_t({text})" for text in one[key] if not text.isdigit()) for key in ("shape", "strides")
        ]
        held = "".join(f", {{{group.replace('//', '/')}}}" for group in groups if group)
        before.append(f"  {name}_Tensor_{one['name']}_t {one['name']}_ = {{(void*){one['name']}{held}}};\n")
        names.append(f"&{one['name']}_")
    return (
        f'#include <cuda_bf16.h>\n#include <cuda_fp8.h>\n#include "objects/{name}.h"\n'
        f'extern "C" __attribute__((visibility("default"))) void {name}({", ".join(parameters)}, cudaStream_t stream) {{\n'
        f"  static {name}_Kernel_Module_t module = [] {{ {name}_Kernel_Module_t made; {name}_Kernel_Module_Load(&made); return made; }}();\n"
        f"{''.join(before)}  cute_dsl_{name}_wrapper(&module, {', '.join([*names, 'stream'])});\n}}\n"
    )
