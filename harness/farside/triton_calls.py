"""Triton on the far side. Its kernels are compiled at their first call: by ptxas and a C compiler, which are programs, and
the process that is judged may start none. So a candidate's calls are made once before, in a process that may
(harness/judge/triton_kernels.py), and what was compiled there is found by the judged one in a folder of the candidate's own.

On a CPU, for which Triton has no compiler, its interpreter serves.
"""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

CACHE = "triton"
"""Name of the cache in the candidate's folder."""
SAID = "programs_said.json"
"""File in CACHE with what programs printed while it was filled. Triton asks ptxas for its version, and the linker for
libcuda, to name what it looks for, and these may not be started any more."""
LATE = (
    "Triton wants to compile a kernel that no call with the suite's sizes compiled before: here no compiler may be started. "
    "A kernel's compile-time arguments may depend on shapes and dtypes only"
)
_IMPORTS = re.compile(r"^\s*(import|from)\s+triton\b", re.MULTILINE)


def uses_triton(source: str) -> bool:
    """Whether a Python module imports Triton; decides on what is done beforehand, not on a verdict."""
    return _IMPORTS.search(source) is not None


def settle(folder: str, *, gpu: bool, compilers: bool) -> None:
    """Before a candidate of `folder` is executed. `compilers`: programs may be started here, and the folder is filled."""
    if not gpu:
        os.environ["TRITON_INTERPRET"] = "1"
        return
    cache = Path(folder) / CACHE
    os.environ["TRITON_CACHE_DIR"] = str(cache)
    # What autotune found is kept beside what it compiled: else each process measures all configurations anew, at each size.
    os.environ["TRITON_CACHE_AUTOTUNING"] = "1"
    for group in cache.glob("*/__grp__*"):
        rewrite_paths(group)
    if compilers:
        cache.mkdir(exist_ok=True)
        subprocess.check_output = recording(cache / SAID, subprocess.check_output)
    elif cache.is_dir():
        subprocess.check_output = replaying(cache / SAID)
        subprocess.Popen = TooLate  # type: ignore[misc]


def rewrite_paths(group: Path) -> None:
    """Triton writes down whole paths of what belongs together; it lies elsewhere now."""
    found = json.loads(group.read_text())
    found["child_paths"] = {name: str(group.with_name(Path(path).name)) for name, path in found["child_paths"].items()}
    group.write_text(json.dumps(found))


def recording(path: Path, call: Callable[..., Any]) -> Callable[..., Any]:
    said: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}

    @functools.wraps(call)
    def check_output(command: Any, *arguments: Any, **options: Any) -> Any:
        answer = call(command, *arguments, **options)
        said[json.dumps(command, default=str)] = (
            answer if isinstance(answer, str) else answer.decode(errors="surrogateescape")
        )
        path.write_text(json.dumps(said))
        return answer

    return check_output


def replaying(path: Path) -> Callable[..., Any]:
    said: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}

    def check_output(command: Any, *_arguments: Any, **options: Any) -> Any:
        answer = said.get(json.dumps(command, default=str))
        if answer is None:  # a program that was not there then either, or failed
            raise FileNotFoundError(f"{command} may not be started here")
        text = any(options.get(name) for name in ("text", "universal_newlines", "encoding", "errors"))
        return answer if text else answer.encode(errors="surrogateescape")

    return check_output


class TooLate(subprocess.Popen):
    def __init__(self, *_arguments: Any, **_options: Any) -> None:
        raise RuntimeError(LATE)
