"""Which libraries a native candidate may have: what its toolchain links it to, file by file, and no others.

The box shows these files and no folder (harness/farside/sandbox.py), so a library that is opened by its full path is not there.
Where the box cannot hide files, the parent looks which ones a worker has mapped to run.
"""

from __future__ import annotations

import functools
import re
import subprocess
from pathlib import Path

from harness.device import cuda_library

# The C and C++ runtimes, OpenMP's and the vector mathematics that g++ calls.
_RUNTIME = re.compile(
    r"(ld-linux.*|libc|libm|libmvec|libdl|libpthread|librt|libutil|libgcc_s|libstdc\+\+|libgomp|libatomic|libquadmath)"
    r"\.so(\.\d+)*$"
)
_DRIVER = re.compile(r"(libcuda|libcudadebugger|libnvidia-.*)\.so(\.\d+)*$")
MEMORY = "memory"
_LDCONFIG = ("/sbin/ldconfig", "/usr/sbin/ldconfig", "ldconfig")


@functools.cache
def _known() -> tuple[Path, ...]:
    """Every library that the dynamic linker finds by name."""
    for command in _LDCONFIG:
        try:
            text = subprocess.run([command, "-p"], capture_output=True, text=True, check=True).stdout
        except (OSError, subprocess.CalledProcessError):
            continue
        return tuple(Path(line.partition("=> ")[2]) for line in text.splitlines() if "=> " in line)
    return ()


@functools.cache
def list_allowed(*, gpu: bool) -> tuple[str, ...]:
    """The files that a native worker may read and run, links and what they lead to; () where ldconfig is not there."""
    found = [path for path in _known() if _RUNTIME.match(path.name) or (gpu and _DRIVER.match(path.name))]
    if not found:
        return ()
    if gpu:  # the driver opens its other parts beside the first
        folders = {path.parent for path in found if path.name.startswith("libcuda.so")}
        found += [path for folder in folders for path in folder.iterdir() if _DRIVER.match(path.name)]
        found.append(Path(cuda_library()))
    return tuple(sorted({str(name) for path in found for name in (path, path.resolve())}))


def read_maps(pid: int) -> str:
    """What the process has mapped, as the kernel lists it; "" where nobody may look: then the box alone decides."""
    try:
        return Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return ""


def list_mapped(maps: str, *, gpu: bool) -> frozenset[str]:
    """The files that a process with such maps has mapped to run.

    On a CPU also memory that holds code and is no file's, by its address: a library can be read into it.
    """
    lines = maps.splitlines()
    fields = [(*line.split(maxsplit=5), "") for line in lines if "x" in line[: line.index(" ") + 4]]
    runs = [(f[5], f[0]) for f in fields]
    if gpu:  # where the driver has such memory
        driver = ("/dev/nvidia", "/memfd:", "/anon_hugepage")
        return frozenset(name for name, _ in runs if name.startswith("/") and not name.startswith(driver))
    known = ("[vdso]", "[vsyscall]", "[stack]")
    return frozenset(name if name.startswith("/") else f"{MEMORY} at {at}" for name, at in runs if name not in known)


def foreign(maps: str, before: frozenset[str], own: frozenset[str], *, gpu: bool) -> str:
    """What code a process with these maps has come to run since `before` that is neither allowed nor its candidate's, one sentence, or "".

    `own`: files of its candidate, in a folder where it cannot write.
    """
    if not (known := list_allowed(gpu=gpu)):
        return ""
    new = list_mapped(maps, gpu=gpu) - before - set(known) - own
    if files := sorted(name for name in new if not name.startswith(MEMORY)):
        return f"a library did the work: it runs code of {files[0]}"
    # Made by the candidate, or a library's that it has read into memory: nobody can tell, and no source shows what runs.
    return (
        f"it runs code that was made at run time ({min(new)}); only what its source compiles to may run" if new else ""
    )
