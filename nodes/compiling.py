"""The compiler's candidate for a kernel folder: from what its reference means, not from its source's text."""

from __future__ import annotations

from harness.once import Once
from harness.store import digest
from kernels.spec import Spec

STEP = "compile the reference"
"""The step of a plan that asks for it."""

_found: Once[tuple[str, str]] = Once()


def compiled(spec: Spec, reference: str, architecture: str) -> tuple[str, str]:
    """(source, ""), or ("", one sentence why there is none); worked out once in this process."""
    name = digest(spec.model_dump_json(), reference, architecture)
    return _found.get(name, lambda: _compiled(spec, reference, architecture))


def _compiled(spec: Spec, reference: str, architecture: str) -> tuple[str, str]:
    from compiler.compile import source  # imports torch
    from compiler.frontend import NoProgram

    try:
        return source(spec, reference, architecture), ""
    except NoProgram as none:
        return "", str(none)
