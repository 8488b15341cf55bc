"""Folders of problems: `PATH/level1/23_Softmax.py`, or PATH/KernelBench/level1/... as a checkout of KernelBench has them;
flashinfer-bench's `PATH/definitions/OP/NAME.json`; SOL-ExecBench's `PATH/L1/NAME/definition.json`; a single file.
"""

from __future__ import annotations

import ast
import random
import re
from pathlib import Path

from kernels.catalog import KernelError

FOLDER = Path(__file__).resolve().parent
DEFAULT_LEVELS = (1, 2, 3)
"""KernelBench's own scripts never time its level 4."""


def names() -> list[str]:
    """The suites that come with Astrolabe."""
    return sorted(path.name for path in FOLDER.iterdir() if any(path.glob("level*")))


def problems(suite: str, levels: tuple[int, ...] = ()) -> list[Path]:
    """Every file of those levels, by level and number. A suite of ours by its name, another by its path; a file is a suite of
    one.

    Raises KernelError where there is no such folder, it holds no level or a level that was asked for is missing.
    """
    folder = FOLDER / suite if suite in names() else Path(suite).expanduser()
    if folder.is_file() and not levels:
        return [folder.resolve()]
    if not folder.is_dir():
        raise KernelError(f"{suite} is no folder of problems (suites that are here: {', '.join(names())})")
    if not levels and (definitions := _definitions(folder)):
        return definitions
    if (folder / "KernelBench").is_dir():
        folder = folder / "KernelBench"
    found = {
        int(match[1]): path
        for path in folder.iterdir()
        if path.is_dir() and (match := re.fullmatch(r"level_?(\d+)", path.name))
    }
    flat = [path.resolve() for path in sorted(folder.glob("*.py"), key=_number) if _is_problem(path)]
    if not found and not levels and flat:
        return flat
    if not found:
        raise KernelError(
            f"{suite} is no suite: it has no folder level1, level2 or level3 with problem files, no problem files of its own, no definitions/ with "
            "definitions of flashinfer-bench and no definition.json of SOL-ExecBench"
        )
    for level in levels:
        if level not in found:
            raise KernelError(f"{suite} has no level {level} (it has {', '.join(map(str, sorted(found)))})")
    wanted = levels or tuple(level for level in DEFAULT_LEVELS if level in found) or tuple(found)
    files = [path.resolve() for level in sorted(set(wanted)) for path in sorted(found[level].glob("*.py"), key=_number)]
    files = [path for path in files if _is_problem(path)]
    if not files:
        raise KernelError(f"{suite} is no suite: its levels hold no problem files")
    return files


def shuffle(files: list[Path], seed: int) -> list[Path]:
    """The files in an order drawn from the seed in which each folder (a level) is spread evenly, so that what was done of a
    campaign that ends early is a sample of all of it.

    The same on every machine, wherever the files lie.
    """
    places: dict[Path, float] = {}
    for folder in sorted({path.parent for path in files}):
        inside = sorted((path for path in files if path.parent == folder), key=_number)
        random.Random(f"{seed} {folder.name}").shuffle(inside)
        places |= {path: (at + 0.5) / len(inside) for at, path in enumerate(inside)}
    return sorted(files, key=lambda path: (places[path], path.parent.name))


def _is_problem(path: Path) -> bool:
    """Whether a Python file is more than a helper of others: it names what KernelBench's form asks for. What cannot be parsed is looked at in its turn."""
    if path.name.startswith(("_", ".")):
        return False
    try:
        body = ast.parse(path.read_text(errors="replace")).body
    except (SyntaxError, ValueError):
        return True
    named = {name for node in body for name in _bound(node)}
    return "Model" in named or "get_inputs" in named or not named


def _bound(node: ast.stmt) -> list[str]:
    if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
        return [node.name]
    if isinstance(node, ast.Assign):
        return [target.id for target in node.targets if isinstance(target, ast.Name)]
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return [alias.asname or alias.name for alias in node.names]
    return []


def _definitions(folder: Path) -> list[Path]:
    if (folder / "definitions").is_dir():
        return sorted(path.resolve() for path in (folder / "definitions").rglob("*.json"))
    return sorted(path.resolve() for depth in ("*", "*/*") for path in folder.glob(f"{depth}/definition.json"))


def _number(path: Path) -> tuple[int, str]:
    match = re.match(r"\d+", path.name)
    return int(match[0]) if match else 0, path.name
