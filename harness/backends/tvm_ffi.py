"""C++ or CUDA whose host function takes tvm::ffi::TensorView: SGLang's headers of its JIT, FlashInfer's operators.

The source exports the entry by TVM_FFI_DLL_EXPORT_TYPED_FUNC, or an export is added here: of the function named as the entry, or of what the
spec's `build.binding` says, such as `Norm<128, bf16_t>::run`. It takes the spec's arguments in order, all, all but the sizes, or the tensors.
`pip install apache-tvm-ffi` brings the headers. 10 to 30 s.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import json
import re
from pathlib import Path

from harness.backends import Compiled, call_wrapper, cpu, cuda, form_of, is_python, together
from harness.device import cuda_home
from harness.records import DeviceFacts

SUFFIX = ".cu"
"""Suffix of sources; on a CPU compile() renames them."""
DEVICE = "any"
PYTHON_SIDE = True
BINDS = True
ARTEFACT = "candidate.so"
FLAGS = ("-std=c++20", "-O3", "-DTVM_FFI_DLL_EXPORT_INCLUDE_METADATA=1")
GPU_FLAGS = ("--expt-relaxed-constexpr",)
"""What the JITs of engines that use this form give nvcc."""
_EXPORTS = re.compile(r"^[ \t]*TVM_FFI_DLL_EXPORT_TYPED_FUNC\(", re.MULTILINE)


def takes(text: str) -> bool:
    return not is_python(text) and form_of(text) == "tvm_ffi"


def _package() -> Path | None:
    found = importlib.util.find_spec("tvm_ffi")
    return Path(found.origin).parent if found is not None and found.origin else None


def why_unavailable() -> str:
    if _package() is None:
        return "apache-tvm-ffi was not found; install it (pip install apache-tvm-ffi)"
    return cpu.why_unavailable()


@functools.cache
def identity(facts: DeviceFacts) -> str:
    said = cuda.version(facts.device)
    ffi = importlib.metadata.version("apache-tvm-ffi")
    chip = f"{facts.name} {facts.architecture}"
    return f"{said[0]} {said[-1]} {' '.join(FLAGS + GPU_FLAGS)} tvm-ffi {ffi} in {_package()} {chip}"  # a build names the library's folder


def with_export(text: str, entry: str, binding: str) -> str:
    """The source with an export of the entry where it has none."""
    asked = json.loads(binding) if binding else ""
    if not asked and _EXPORTS.search(text):
        return text
    if isinstance(asked, dict) and "call" in asked:
        whole = {f"{entry}_{dtype}" if dtype else entry: call for dtype, call in asked["call"].items()}
        asked["takes"] = asked["all"]
        text += "".join(
            call_wrapper(f"{name}_call", asked | {"call": {"": call}}, "tvm::ffi::TensorView", "")
            for name, call in whole.items()
        )
        exports = [f"TVM_FFI_DLL_EXPORT_TYPED_FUNC({name}, {name}_call);" for name in whole]
        return "\n".join([text, "#include <tvm/ffi/function.h>", *exports, ""])
    names = (
        {f"{entry}_{dtype}": what for dtype, what in asked.items()}
        if isinstance(asked, dict)
        else {entry: asked or entry}
    )
    exports = [f"TVM_FFI_DLL_EXPORT_TYPED_FUNC({name}, ({what}));" for name, what in names.items()]
    return "\n".join([text, "#include <tvm/ffi/function.h>", *exports, ""])


def compile(
    source: Path,
    artefact: Path,
    facts: DeviceFacts,
    timeout_s: float,
    entry: str,
    binding: str = "",
    flags: tuple[str, ...] = (),
) -> Compiled:
    on_gpu, package = facts.device == "cuda", _package()
    assert package is not None, why_unavailable()
    text = with_export(source.read_text(), entry, binding)
    source = source.with_suffix(".cu" if on_gpu else ".cpp")
    source.write_text(text)
    library = package / "lib"
    found = [f"-I{package / 'include'}", f"-L{library}"]
    common = [*together(FLAGS, flags), *found, "-o", str(artefact), str(source), "-ltvm_ffi"]
    readable = [str(package)]
    if on_gpu:
        readable.append(str(cuda_home()))
        chip = cuda.architecture_flag(facts.architecture)
        given = [flag for flag in GPU_FLAGS if flag not in flags]
        command = [cuda.nvcc(), *common, *given, *cuda.FLAGS[2:], chip, f"-Xlinker=-rpath,{library}"]
    else:
        command = [cpu.compiler(), *common, *cpu.FLAGS[2:], f"-Wl,-rpath,{library}"]
    return cuda.run(command, source, artefact, readable, timeout_s, on_gpu=on_gpu)
