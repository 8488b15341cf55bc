"""From what the user asked for to Settings: the device, the baseline's source and who answers, each with its reason.

Everything that can be wrong is said here, in one sentence, before a run exists.
"""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from graph.runs import RunError, new_id, valid_id
from harness import backends, device, engines, problems
from harness.device import DeviceError
from harness.engines import Engine, EngineChoice
from harness.fitting import require_timed
from harness.store import digest
from kernels import catalog
from kernels.catalog import Kernel
from nodes.roles import ROLES, Chat, Limits, Role
from nodes.state import Settings, StopRule

Missing = Callable[[ModuleType], str]
"""Of a backend: why its sources cannot be built, or ""."""
TUNE_S = {"cuda": 8.0, "cpu": 4.0}
"""A search builds variants at one to two seconds each with nvcc and a third of that with g++."""

TOOL_S = {"cuda": 240.0, "cpu": 120.0}
"""A compilation takes seconds with nvcc, Nsight Compute up to half a minute."""


@dataclass(frozen=True)
class Choice:
    kernel: Kernel
    settings: Settings
    source: str
    """The baseline's text."""
    draft: str = ""
    """Of a problem: the first candidate's text where the person gave one."""


def engine_asked(asked: argparse.Namespace) -> EngineChoice:
    """Raises EngineError."""
    return engines.choice(asked.engine, model=asked.device_model, tls=asked.tls, insecure=asked.insecure)


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


def choose(asked: argparse.Namespace, engine: Engine | None = None) -> Choice:
    """For that engine, or this machine. Raises KernelError, DeviceError, EngineError or RunError."""
    place = engine_asked(asked) if engine is not None else EngineChoice()
    with faults_first(asked.kernel):
        engine = engine or engines.opened(place, asked.device)
    on, why_device = engine.device, engine.why
    memory_bytes = engine.memory_bytes or device.memory_bytes(on)
    kernel = problems.load(asked.kernel, on, memory_bytes=memory_bytes)
    kernel.close()  # what it is like is known now; its processes are the run's to start
    if asked.source is not None and kernel.spec.problem:
        raise RunError(
            "a problem's baseline is its own Model: --source does not apply; --draft FILE gives a first candidate"
        )
    draft = _draft(asked, kernel, engine)
    baseline, source = baseline_source(kernel, on, name=asked.baseline, file=asked.source, missing=engine.missing)
    for dtype in asked.dtype:
        if dtype not in kernel.spec.dtypes:
            raise RunError(f"{kernel.spec.name} has no dtype {dtype} (it has {', '.join(kernel.spec.dtypes)})")
    require_timed(kernel.spec, on, tuple(asked.dtype) or kernel.spec.dtypes, memory_bytes)
    policy, why_policy = policies(asked)
    known = asked.kernel in catalog.names()
    settings = Settings(
        run_id=valid_id(asked.run_id) if asked.run_id else new_id(kernel.spec.name),
        kernel=asked.kernel if known else str(kernel.folder),
        device=on,
        policy=policy,
        baseline=baseline,
        source=digest(source),
        dtypes=tuple(asked.dtype),
        stop=StopRule(rounds=asked.rounds, patience=asked.patience, light_fraction=asked.light),
        budget=Limits(
            seconds=asked.seconds,
            tokens=asked.tokens,
            money_usd=asked.money,
            role_tokens={r: n for r in ROLES if (n := getattr(asked, f"tokens_{r}")) is not None},
            role_money_usd={r: n for r in ROLES if (n := getattr(asked, f"money_{r}")) is not None},
            fallback="none" if asked.when_spent == "pause" else "rules",
        ),
        chat=Chat(
            models={r: m for r in ROLES if (m := getattr(asked, f"model_{r}") or asked.model)},
            interface=asked.interface,
            answer_tokens={r: n for r in ROLES if (n := getattr(asked, f"answer_tokens_{r}") or asked.answer_tokens)},
            effort={r: e for r in ROLES if (e := getattr(asked, f"effort_{r}") or asked.effort)},
            idle_seconds=asked.idle_seconds,
            answer_seconds=asked.answer_seconds,
            prices=str(Path(asked.prices).resolve()) if asked.prices else "",
        ),
        width=asked.width,
        repairs=asked.repairs,
        tune_seconds=TUNE_S[on] if asked.tune_seconds is None else asked.tune_seconds,
        sandbox=asked.sandbox,
        exact=asked.exact,
        approve=asked.approve or "none",
        agents=asked.agents,
        coder=asked.coder,
        turns=asked.turns,
        tool_seconds=TOOL_S[on] if asked.tool_seconds is None else asked.tool_seconds,
        review=reviewed(asked),
        transcript=str(Path(asked.transcript).resolve()) if asked.transcript else "",
        memory=asked.memory,
        why=(f"device {on}: {why_device}", f"policy {why_policy}"),
        command=command(asked.words),
        draft=digest(draft) if draft else "",
        own_kernels=asked.own_kernels,
        numerics=asked.numerics,
        compare=compared(asked.compare, kernel, on),
        engine=place,
    )
    return Choice(kernel, settings, source, draft)


def compared(asked: list[str], kernel: Kernel, on: str) -> tuple[str, ...]:
    """Modes of torch.compile to time a problem's winner against; on a GPU both unless something else is asked for."""
    if not kernel.spec.problem:
        if asked:
            raise RunError(f"{kernel.spec.name} is no PyTorch module: --compare does not apply")
        return ()
    chosen = asked or (list(problems.COMPILE_MODES) if on == "cuda" else ["none"])
    return tuple(dict.fromkeys(mode for mode in chosen if mode != "none"))


def _draft(asked: argparse.Namespace, kernel: Kernel, engine: Engine) -> str:
    """The text of a problem's first candidate where the person gave one, else ""."""
    if asked.draft is None:
        return ""
    if not kernel.spec.problem:
        raise RunError(f"{kernel.spec.name} is no PyTorch module: --draft does not apply; --source gives a baseline")
    return read_source(asked.draft, engine.device, engine.missing)


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
    if isinstance(kernel, problems.Problem):
        return chosen, kernel.text
    return chosen, read_source(str(path), on, missing)


HEADERS = frozenset({".cuh", ".h", ".hh", ".hpp", ".hxx", ".inc", ".inl"})


def read_source(name: str, on: str, missing: Missing = _missing_here) -> str:
    """The text of a source for that device, once its compiler is known to be where it is built."""
    path = Path(name)
    if path.suffix in HEADERS:
        raise RunError(f"{name} is a header: give the source that includes it and holds the entry, {_wanted(on)[3:]}")
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


def reviewed(asked: argparse.Namespace) -> bool:
    return bool(asked.review or asked.model_reviewer or asked.policy_reviewer)


def policies(asked: argparse.Namespace) -> tuple[dict[Role, str], str]:
    """(policy of each role, what was taken and why)."""
    key = bool(os.environ.get("OPENAI_API_KEY"))
    named = asked.model or any(getattr(asked, f"model_{role}") for role in ROLES)
    chosen = asked.policy
    if chosen != "auto":
        why = "asked for"
    elif asked.transcript:
        chosen, why = "replay", "a transcript is given"
    elif key and named:
        chosen, why = "chat", "a key and a model are given"
    elif key:
        chosen, why = "rules", "no model is named (--model NAME asks one with the key in OPENAI_API_KEY)"
    else:
        chosen, why = "rules", "the offline policy, since OPENAI_API_KEY is not set"
    policy: dict[Role, str] = {role: getattr(asked, f"policy_{role}") or chosen for role in ROLES}
    used = set(policy.values())
    if "chat" in used and not key:
        raise RunError("--policy chat needs a key in OPENAI_API_KEY (any text for a server that asks for none)")
    for role in ROLES:
        if role == "reviewer" and not reviewed(asked):
            continue
        if "," in (getattr(asked, f"model_{role}") or asked.model or "") and role != "coder":
            raise RunError(f"several models take turns as --model-coder only: the {role} has one")
        if policy[role] == "chat" and not (asked.model or getattr(asked, f"model_{role}")):
            raise RunError(f"--policy chat needs a model: give --model NAME, or --model-{role} NAME")
    if "replay" in used and not asked.transcript:
        raise RunError("--policy replay needs --transcript FILE")
    if asked.transcript and not Path(asked.transcript).is_file():
        raise RunError(f"there is no transcript {asked.transcript}")
    if asked.prices and not Path(asked.prices).is_file():
        raise RunError(f"there is no price table {asked.prices}")
    said = chosen if used == {chosen} else ", ".join(f"{role}={name}" for role, name in policy.items())
    return policy, f"{said}: {why}"


def command(words: list[str]) -> str:
    """The command line that does the same again, without the address of a database, which may hold a password."""
    kept: list[str] = []
    skip = False
    for word in words:
        if skip or word.startswith(("--checkpointer=", "--run-id=")):
            skip = False
            continue
        skip = word in ("--checkpointer", "--run-id")
        if not skip:
            kept.append(word)
    return shlex.join(["python", "run.py", *kept])
