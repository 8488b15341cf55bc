"""What several tests ask the compiler about one reference is followed and lowered once."""

from collections.abc import Iterator

import pytest

from compiler import compile as compiling
from compiler.frontend import Traced
from compiler.program import KernelProgram
from kernels.spec import Spec

traces: dict[tuple[str, str, str], Traced] = {}
programs: dict[tuple[object, ...], KernelProgram] = {}


@pytest.fixture(autouse=True)
def references_followed_once(request: pytest.FixtureRequest) -> Iterator[None]:
    """A trace and what is lowered of it are half of a small text's compilation. Nothing that comes later changes either: a Meaning, too,
    makes all of its texts of one. A test that patches something may patch what they depend on."""
    if "monkeypatch" in request.fixturenames:
        yield
        return
    trace, lower = compiling.trace, compiling.lower_program

    def trace_once(spec: Spec, reference: str, dtype: str) -> Traced:
        key = spec.model_dump_json(), reference, dtype
        if key not in traces:
            traces[key] = trace(spec, reference, dtype)
        return traces[key]

    def lower_once(spec: Spec, traced: Traced, *more: object) -> KernelProgram:
        key = spec.model_dump_json(), id(traced), *more
        if key not in programs:
            programs[key] = lower(spec, traced, *more)
        return programs[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiling, "trace", trace_once)
        patch.setattr(compiling, "lower_program", lower_once)
        yield
