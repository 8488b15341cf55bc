"""The modules of its own checkout that a file of Python imports, so that it runs without the rest."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MOST_MODULES = 400
HELD = frozenset(("torch", "triton", "numpy", "packaging", "typing_extensions", "__future__"))
"""What the box has beside the standard library."""


@dataclass(frozen=True)
class Modules:
    """What a file imports."""

    name: str
    """Its own dotted name in the checkout."""
    files: dict[str, Path]
    """Path below the folder that is to be imported from -> file."""
    missing: tuple[str, ...]
    """Packages that neither its checkout nor the box has."""


def find_modules(source: Path) -> Modules:
    """Follow the imports of a file, outside functions, through its checkout. A package's __init__.py goes along only where it is itself imported."""
    source = source.resolve()
    packages = [above for above in source.parents if (above / "__init__.py").is_file()]
    root = packages[-1].parent if packages else source.parent
    files, missing, waiting = dict[str, Path](), dict[str, None](), [source]
    while waiting and len(files) < MOST_MODULES:
        file = waiting.pop()
        for module, names in _imports(file, root):
            first = module.partition(".")[0]
            place = next((one for one in (root, *list(source.parents)[:7]) if _is_module(one / first)), None)
            if first in sys.stdlib_module_names or first in HELD:
                continue
            if place is None:
                missing[first] = None
                continue
            at = place / Path(*module.split("."))
            for one in (at, *(at / name for name in names)):
                found = next((p for p in (one.with_suffix(".py"), one / "__init__.py") if p.is_file()), None)
                below = str(found.relative_to(place)) if found else ""
                if found and found != source and below not in files:
                    files[below] = found
                    waiting.append(found)
    name = ".".join(source.relative_to(root).with_suffix("").parts)
    return Modules(name, files, tuple(missing))


def _is_module(path: Path) -> bool:
    return path.is_dir() or path.with_suffix(".py").is_file()


def _imports(file: Path, root: Path) -> Iterator[tuple[str, list[str]]]:
    """(module with its package's name, names that are taken of it)."""
    try:
        tree = ast.parse(file.read_text(encoding="utf-8", errors="replace"))
    except SyntaxError:
        return
    here = list(file.relative_to(root).parent.parts) if file.is_relative_to(root) else []
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            yield from ((one.name, []) for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = here[: len(here) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            if module:
                yield module, [one.name for one in node.names]
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            waiting += ast.iter_child_nodes(node)
