"""Other people's formats become specs, one a file: the file's name is the format's name.

Each file has
- `takes(path: Path) -> bool`: whether a file is of its kind, by its name and text; nothing of it is executed;
- `title(path: Path) -> Title`: level, number and name of a problem, from its path;
- `described(answer: object) -> Description`: what the box found when it executed the problem, checked: the answer comes
  from hostile code. Raises KernelError with one sentence;
- `spec(title, description, ...) -> Spec`.
"""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path
from types import ModuleType


def names() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def get(name: str) -> ModuleType:
    return importlib.import_module(f"{__name__}.{name}")


def for_file(path: Path) -> ModuleType | None:
    """The importer that takes this file, None where none does."""
    return next((module for module in map(get, names()) if module.takes(path)), None)
