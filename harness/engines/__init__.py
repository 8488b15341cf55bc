"""Places where jobs run, one a file; the file's name is what `--engine` takes.

    process        this machine, in this process and those that it starts
    dask           a cluster: one of its own on this machine, or `dask:ADDRESS`, a scheduler that runs already; `_connection.py` is to it

Each file has `open_engine(choice, wanted, say, every) -> Engine`. An engine makes Evaluators; whichever made it, an Evaluator has the same
methods, verdicts, keys in the store and exceptions (tests/harness/test_engines.py holds them to it).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, Protocol

from kernels.extras import install
from kernels.spec import Device, Frozen

if TYPE_CHECKING:
    from types import ModuleType

    from harness.evaluate import Evaluator
    from harness.store import Store
    from kernels.catalog import Kernel

Say = Callable[[str], None]


class EngineError(Exception):
    """The engine cannot be had, or is lost; what was finished is kept. One sentence says what to do."""


class EngineChoice(Frozen):
    """What the user asked for."""

    name: Literal["process", "dask"] = "process"
    address: str = ""
    """Address of a scheduler that runs already; "" starts a cluster on this machine."""
    model: str = ""
    """Part of the name of the kind of device to take, where a cluster has several."""
    tls: str = ""
    """Folder with a certificate and a key."""
    insecure: bool = False
    workers: int | None = None
    """Devices of a cluster on this machine: without it all GPUs, or two shares of the cores."""


def choice(text: str, *, model: str = "", tls: str = "", insecure: bool = False) -> EngineChoice:
    """`process`, `dask`, `dask:4` (so many workers) or `dask:ADDRESS`. Raises EngineError."""
    name, _, rest = text.partition(":")
    names: dict[str, Literal["process", "dask"]] = {"process": "process", "dask": "dask"}
    if name not in names or (name == "process" and rest):
        raise EngineError(f"there is no engine {text!r}: process, dask, dask:WORKERS or dask:ADDRESS of a scheduler")
    if name == "process" and (model or tls or insecure):
        raise EngineError("--device-model, --tls and --insecure are for --engine dask")
    more: dict[str, Any] = {"workers": int(rest)} if rest.isdigit() and int(rest) else {"address": rest}
    return EngineChoice(name=names[name], model=model, tls=tls, insecure=insecure, **more)


class Cores(Frozen):
    """The cores of this machine, while an engine is open."""

    own: tuple[int, ...]
    """Cores of the asking process and of what it starts, which may be what is timed."""
    spare: tuple[int, ...]
    """Cores on which nothing is timed and nothing of ours runs but what does not mind company: builds."""


class Engine(Protocol):
    """Opened once for all that it is asked; safe for several threads. Close it."""

    device: Device
    why: str
    """Reason for this device, for the user."""
    memory_bytes: int | None
    """Memory of a device elsewhere in bytes; None stands for this machine's."""
    here: bool
    """Whether what it times runs on this machine beside the caller."""

    say: Say
    """Receives what a person should know of the engine."""

    def kinds(self) -> dict[str, Engine]:
        """Every kind of device that was asked for, by its name, as an engine that need not be closed; one where one was."""
        ...

    def missing(self, backend: ModuleType) -> str:
        """Why sources of that backend cannot be built, or ""."""
        ...

    def evaluator(self, kernel: Kernel, store: Store, **settings: Any) -> Evaluator:
        """`settings` as harness.evaluate.Evaluator takes them."""
        ...

    def cores(self) -> Cores:
        """Which cores may work while something is timed; none are spare where it might be disturbed."""
        ...

    def width(self) -> int:
        """Questions that it can answer side by side."""
        ...

    def lines(self) -> list[tuple[str, str]]:
        """(worker, what it is doing) for the display; none where there is one place only."""
        ...

    def close(self) -> None: ...


def open_engine(choice: EngineChoice, wanted: str, say: Say = lambda _text: None, every: bool = False) -> Engine:
    """The engine with a device of the kind that is wanted (`auto`, `cuda`, `cpu`). Raises DeviceError or EngineError.

    Devices of several models are an EngineError, unless `every` one is asked for.
    """
    try:
        module = importlib.import_module(f"{__name__}.{choice.name}")
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ("dask", "distributed"):
            raise
        raise EngineError(
            f"--engine {choice.name} needs the cluster extra; in the checkout: {install('cluster')}"
        ) from None
    return module.open_engine(choice, wanted, say, every)
