"""The compiler's candidate for a kernel folder: from what its reference means, not from its source's text."""

from __future__ import annotations

import warnings

from harness.once import Once
from harness.records import DeviceFacts
from harness.store import digest
from kernels.spec import Spec

STEP = "compile the reference"
"""The step of a plan that asks for it."""

_found: Once[tuple[str, str]] = Once()


def compile_kernel(spec: Spec, reference: str, device: DeviceFacts) -> tuple[str, str]:
    """(source, ""), or ("", one sentence why there is none); worked out once in this process."""
    name = digest(spec.model_dump_json(), reference, device.device, device.architecture)
    return _found.get(name, lambda: _compiled(spec, reference, device))


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
