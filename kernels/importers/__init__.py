"""Other people's formats become specs, one a file: the file's name is the format's name.

Each file has
- `takes(path: Path) -> bool`: whether a file is of its kind, by its name and text; nothing of it is executed;
- `title(path: Path) -> Title`: level, number and name of a problem, from its path;
- `read(path: Path) -> Import`: the problem, checked. Raises KernelError with one sentence.

What such a file holds is hostile: its code runs in the box only (harness/problems/pytorch.py), and what the box answers comes from
hostile code, too. A file whose name begins with `_` is shared by importers.
"""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from kernels.importers.kernelbench import Description, Title
    from kernels.spec import Spec, Workload


SUFFIXES = (".py", ".json")


class Import(Protocol):
    """One problem of whatever format, as harness/problems/pytorch.py opens it."""

    title: Title
    module: str
    """A Python module in KernelBench's form: `Model`, `get_inputs()`, `get_init_inputs()`. Executed in the box only."""
    files: tuple[Path, ...]
    """All that it was read from: a run is not resumed where one of them has changed."""
    kernelbench: bool
    """Whether KernelBench's own protocol can judge it."""

    def check_answer(self, answer: object) -> Description:
        """What the box found when it executed `module`, checked. Raises KernelError."""

    def spec(self, description: Description, token: str, *, most_bytes: int) -> Spec:
        """`token` names the problem's own generator in `given:<token>_<input>`. Raises KernelError where nothing fits."""

    def draw_sizes(self, workload: Workload, description: Description) -> Workload:
        """The sizes at which get_inputs() draws for this workload; the leading rows of a larger draw will do."""

    def module_at(self, workload: Workload) -> str:
        """`module`, whose get_inputs() draws at those sizes."""

    def says(self, spec: Spec, description: Description) -> tuple[str, ...]:
        """What a person should know of how it was read: clauses for the verdict and the report."""


def is_problem(name: str) -> bool:
    """Whether a name of `--kernel` is a problem's file rather than a kernel."""
    return name.endswith(SUFFIXES)


def names() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))


def get(name: str) -> ModuleType:
    return importlib.import_module(f"{__name__}.{name}")


def title(path: Path) -> Title:
    """Title of a problem's file, by its path; of one that no importer takes as KernelBench would have it."""
    return (for_file(path) or get("kernelbench")).title(path)


def for_file(path: Path) -> ModuleType | None:
    """The importer that takes this file, None where none does."""
    return next((module for module in map(get, names()) if module.takes(path)), None)
