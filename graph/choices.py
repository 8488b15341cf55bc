"""From what the user asked for to Settings: the device, the baseline's source and who answers, each with its reason.

Everything that can be wrong is said here, in one sentence, before a run exists.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from graph.request import RunRequest
from graph.runs import RunError, new_id, valid_id
from harness import backends, device, engines
from harness.checks.fitting import require_timed
from harness.device import DeviceError
from harness.engines import Engine, EngineChoice
from harness.problems import pytorch
from harness.store import digest
from kernels import catalog
from kernels.catalog import Kernel
from nodes import agents
from nodes.options import ROLES, Role, RunOptions, StopRule
from nodes.state import Settings

Missing = Callable[[ModuleType], str]
"""Says why a backend cannot build its sources; "" if it can."""
TUNE_S = {"cuda": 8.0, "cpu": 4.0}
"""A search builds variants at one to two seconds each with nvcc and a third of that with g++."""

TOOL_S = {"cuda": 240.0, "cpu": 120.0}
"""A compilation takes seconds with nvcc, Nsight Compute up to half a minute."""


ENOUGH_S = 30.0
"""What rules find first they find soon; later rounds bring a tenth or nothing, and each takes as long (docs/results.md)."""


@dataclass(frozen=True)
class Choice:
    kernel: Kernel
    settings: Settings
    source: str
    """The baseline's text."""
    draft: str = ""
    """Text of a problem's first candidate, if the person gave one."""


@contextmanager
def faults_first(name: str) -> Iterator[None]:
    """Where a device cannot be had, what is wrong with the kernel's folder is said before that. Raises KernelError, DeviceError."""
    try:
        yield
    except DeviceError as error:
        if name in catalog.names() or (Path(name) / "spec.py").exists():
            assert catalog.load(name).headers is not None  # raises KernelError
            raise DeviceError(f"{error}; run.py check {name} looks at the kernel without one") from None
        raise


def choose(request: RunRequest, engine: Engine | None = None, command: str = "") -> Choice:
    """For that engine, or this machine. Raises KernelError, DeviceError, EngineError or RunError."""
    place = request.place.choice() if engine is not None else EngineChoice()
    with faults_first(request.kernel):
        engine = engine or engines.open_engine(place, request.device, lambda text: print(text, file=sys.stderr))
    on, why_device = engine.device, engine.why
    memory_bytes = engine.memory_bytes or device.memory_bytes(on)
    kernel = pytorch.load(request.kernel, on, memory_bytes=memory_bytes)
    kernel.close()  # what it is like is known now; its processes are the run's to start
    if request.source is not None and kernel.spec.problem:
        raise RunError(
            "a problem's baseline is its own Model: --source does not apply; --draft FILE gives a first candidate"
        )
    draft = _draft(request, kernel, engine)
    baseline, source = baseline_source(kernel, on, name=request.baseline, file=request.source, missing=engine.missing)
    for dtype in request.dtypes:
        if dtype not in kernel.spec.dtypes:
            raise RunError(f"{kernel.spec.name} has no dtype {dtype} (it has {', '.join(kernel.spec.dtypes)})")
    require_timed(kernel.spec, on, request.dtypes or kernel.spec.dtypes, memory_bytes)
    policy, why_policy = policies(request)
    known = request.kernel in catalog.names()
    settings = Settings(
        **{name: getattr(request, name) for name in RunOptions.model_fields if name != "stop"},
        run_id=valid_id(request.run_id) if request.run_id else new_id(kernel.spec.name),
        kernel=request.kernel if known else str(kernel.folder),
        device=on,
        policy=policy,
        baseline=baseline,
        source=digest(source),
        tune_seconds=TUNE_S[on] if request.tune_seconds is None else request.tune_seconds,
        tool_seconds=TOOL_S[on] if request.tool_seconds is None else request.tool_seconds,
        why=(f"device {on}: {why_device}", f"policy {why_policy}"),
        command=command,
        draft=digest(draft) if draft else "",
        compare=choose_compile_modes(request.compare, kernel, on),
        stop=_stop_rule(request, set(policy.values())),
        engine=place,
    )
    return Choice(kernel, settings, source, draft)


def _stop_rule(request: RunRequest, answering: set[str]) -> StopRule:
    """A first look where rules answer and nobody said how long."""
    said = request.stop.model_fields_set | request.budget.model_fields_set
    if answering != {"rules"} or said & {"rounds", "seconds", "patience", "enough_seconds"}:
        return request.stop
    return request.stop.model_copy(update={"enough_seconds": ENOUGH_S})


def choose_compile_modes(asked: Sequence[str], kernel: Kernel, on: str) -> tuple[str, ...]:
    """Modes of torch.compile to time the winner against; those of a PyTorch module on a GPU are both unless something else is
    asked for."""
    if "none" not in asked and asked and not kernel.has_reference:
        raise RunError(
            f"{kernel.spec.name} has no reference.py that torch.compile could compile: --compare does not apply"
        )
    usual = list(pytorch.COMPILE_MODES) if kernel.spec.problem and on == "cuda" else ["none"]
    chosen = asked or usual
    return tuple(dict.fromkeys(mode for mode in chosen if mode != "none"))


def _draft(request: RunRequest, kernel: Kernel, engine: Engine) -> str:
    """The text of a problem's first candidate where the person gave one, else ""."""
    if request.draft is None:
        return ""
    if not kernel.spec.problem:
        raise RunError(f"{kernel.spec.name} is no PyTorch module: --draft does not apply; --source gives a baseline")
    return read_source(request.draft, engine.device, engine.missing)


def _missing_here(backend: ModuleType) -> str:
    return backend.why_unavailable()


def baseline_source(
    kernel: Kernel, on: str, *, name: str | None, file: str | None, missing: Missing = _missing_here
) -> tuple[str, str]:
    """(name, text) of what 1.0x is: the user's file, or a baseline of the kernel's folder."""
    if file is not None and name is not None:
        raise RunError("--source is the baseline, so give it or --baseline, not both")
    if file is not None:
        return file, read_source(file, on, missing)
    chosen, path = kernel.baseline(on, name)  # type: ignore[arg-type]
    if kernel.text:
        return chosen, kernel.text
    return chosen, read_source(str(path), on, missing)


HEADERS = frozenset({".cuh", ".h", ".hh", ".hpp", ".hxx", ".inc", ".inl"})


def read_source(name: str, on: str, missing: Missing = _missing_here) -> str:
    """The text of a source for that device, once its compiler is known to be where it is built."""
    path = Path(name)
    if path.suffix in HEADERS:
        kinds = _wanted(on).removeprefix("it takes ")
        raise RunError(f"{name} is a header: give the source that includes it and holds the entry ({kinds})")
    if path.suffix in catalog.DEVICES_OF_SUFFIX and on not in catalog.DEVICES_OF_SUFFIX[path.suffix]:
        raise RunError(f"{name} is not a source for device {on}: {_wanted(on)}")
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise RunError(f"{name} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise RunError(f"{name} is not text") from None
    if not text.strip():
        raise RunError(f"{name} is empty")
    try:
        backend = backends.for_source(text, on)
    except ValueError:
        raise RunError(f"{name} is not a source for device {on}: {_wanted(on)}") from None
    if said := missing(backend):
        raise RunError(f"{name} cannot be compiled: {said}")
    return text


def _wanted(on: str) -> str:
    suffixes = [suffix for suffix, devices in catalog.DEVICES_OF_SUFFIX.items() if on in devices]
    return f"it takes {' or '.join(suffixes)}"


def policies(request: RunRequest) -> tuple[dict[Role, str], str]:
    """(policy of each role, what was taken and why)."""
    key, models = bool(os.environ.get("OPENAI_API_KEY")), request.chat.models
    chosen: str = request.policy
    if chosen != "auto":
        why = "asked for"
    elif request.transcript:
        chosen, why = "replay", "a transcript is given"
    elif key and models:
        chosen, why = "chat", "a key and a model are given"
    elif key:
        chosen, why = "rules", "no model is named (--model NAME asks one with the key in OPENAI_API_KEY)"
    else:
        chosen, why = "rules", "the offline policy, since OPENAI_API_KEY is not set"
    policy: dict[Role, str] = dict.fromkeys(ROLES, chosen) | request.role_policy
    used = set(policy.values())
    if "chat" in used and not key:
        raise RunError("--policy chat needs a key in OPENAI_API_KEY (any text for a server that asks for none)")
    for role in ROLES:
        agent = agents.load(role)
        if agent.option and not getattr(request, agent.option):
            continue
        if "," in models.get(role, "") and not agent.several_models:
            raise RunError(f"several models take turns as --model-coder only: the {role} has one")
        if policy[role] == "chat" and not models.get(role):
            raise RunError(f"--policy chat needs a model: give --model NAME, or --model-{role} NAME")
    if "replay" in used and not request.transcript:
        raise RunError("--policy replay needs --transcript FILE")
    if request.transcript and not Path(request.transcript).is_file():
        raise RunError(f"there is no transcript {request.transcript}")
    if request.chat.prices and not Path(request.chat.prices).is_file():
        raise RunError(f"there is no price table {request.chat.prices}")
    said = chosen if used == {chosen} else ", ".join(f"{role}={name}" for role, name in policy.items())
    return policy, f"{said}: {why}"
