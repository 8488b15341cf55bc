"""The compiler's candidate for a kernel folder: from what its reference means, not from its source's text."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

from harness.once import Once
from harness.records import DeviceFacts
from harness.store import digest
from kernels.spec import Spec

STEP = "compile the reference"
"""The step of a plan that asks for it."""

ROOT = Path(__file__).resolve().parents[1]
MANY_CORES = 8
MOST_S = 300.0
"""A process of its own may take so long, and then this one does it."""

_found: Once[tuple[str, str]] = Once()


def compile_kernel(spec: Spec, reference: str, device: DeviceFacts) -> tuple[str, str]:
    """(source, ""), or ("", one sentence why there is none); worked out once in this process."""
    return _found.get(_name(spec, reference, device), lambda: _compiled(spec, reference, device))


def compile_ahead(spec: Spec, reference: str, device: DeviceFacts) -> tuple[str, str]:
    """`compile_kernel` from a thread, for whoever asks later.

    A process of its own does it, on another core, while torch is not imported here, since what both import takes seconds; and on a
    GPU's host, which has cores enough.
    """
    apart = "torch" not in sys.modules or (device.device == "cuda" and (os.cpu_count() or 1) >= MANY_CORES)
    work = _compiled_apart if apart else _compiled
    return _found.get(_name(spec, reference, device), lambda: work(spec, reference, device))


def _name(spec: Spec, reference: str, device: DeviceFacts) -> str:
    return digest(spec.model_dump_json(), reference, device.device, device.architecture)


def _compiled_apart(spec: Spec, reference: str, device: DeviceFacts) -> tuple[str, str]:
    asked = json.dumps([spec.model_dump_json(), reference, device.model_dump_json()])
    command = [sys.executable, "-c", "from nodes import compiling; compiling.answer()"]
    try:
        done = subprocess.run(
            command, cwd=ROOT, input=asked, capture_output=True, text=True, timeout=MOST_S, start_new_session=True
        )
        source, reason = json.loads(done.stdout)
    except (OSError, subprocess.TimeoutExpired, ValueError):
        return _compiled(spec, reference, device)
    return source, reason


def answer() -> None:
    """What `_compiled_apart` asks on standard input, answered on standard output."""
    spec, reference, device = json.load(sys.stdin)
    out, sys.stdout = sys.stdout, sys.stderr  # a reference may print
    json.dump(_compiled(Spec.model_validate_json(spec), reference, DeviceFacts.model_validate_json(device)), out)


def _compiled(spec: Spec, reference: str, device: DeviceFacts) -> tuple[str, str]:
    from compiler.compile import source  # imports torch
    from compiler.frontend import NoProgram

    try:
        return source(spec, reference, device.architecture, device.device), ""
    except NoProgram as none:
        return "", str(none)
    except Exception as error:  # noqa: BLE001 -- a defect of the compiler must not end a run that rewrites can serve
        warnings.warn(f"the compiler failed on this reference: {error!r}", RuntimeWarning, stacklevel=2)
        return "", f"the compiler failed on this reference: {type(error).__name__}"
