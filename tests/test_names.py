"""Names: a public class is called as no other, a public function says what it does."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("compiler", "graph", "harness", "kernels", "minibatch", "nodes", "run.py")
TEXT_COMPILERS = ("compiler/draft/", "nodes/rewrites/")
"""Their names stand as they came; a class outside them that is called as one in them is listed in SHARED."""
SHARED = {"Kernel", "Launch"}
PROBLEM_FILES = "kernels/suites/starter/"
PARTICIPLE = re.compile(
    "(?!(bed|embed|exceed|feed|heed|need|proceed|seed|shed|speed|succeed|weed)$).*ed|been|begun|bound|bought|broken|brought|built|"
    "chosen|done|drawn|driven|felt|found|given|gone|grown|heard|held|kept|known|laid|led|left|lent|lost|made|meant|met|paid|said|"
    "seen|sent|shown|spent|taken|taught|thought|thrown|told|torn|understood|won|worn|written"
)
CONTRACTS = {
    "held_out",  # a node: checkpoints hold its name
    "violated",  # of a kernel's properties.py, which users write
    "violated_together",
}


@functools.cache
def _defined() -> list[tuple[str, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]]:
    """File and definition of what modules of the product define for others."""
    kinds, found = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef), []
    listed = subprocess.run(["git", "ls-files", *PACKAGES], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for path in listed.split():
        if path.endswith(".py") and not path.startswith(PROBLEM_FILES) and (ROOT / path).is_file():
            body = ast.parse((ROOT / path).read_text()).body
            found += [(path, node) for node in body if isinstance(node, kinds) and not node.name.startswith("_")]
    return found


def test_no_public_class_name_stands_twice():
    places: dict[str, list[str]] = {}
    for path, node in _defined():
        if isinstance(node, ast.ClassDef):
            places.setdefault(node.name, []).append(path)
    twice = {
        name: where
        for name, where in places.items()
        if len(where) > 1 and name not in SHARED and not all(path.startswith(TEXT_COMPILERS) for path in where)
    }
    assert not twice


def test_public_functions_are_no_past_participles():
    """Imperative verbs, or what the function gives; only the first word is looked at."""
    wrong = []
    for path, node in _defined():
        if isinstance(node, ast.ClassDef) or node.name in CONTRACTS or path.startswith(TEXT_COMPILERS):
            continue
        if PARTICIPLE.fullmatch(node.name.split("_")[0]):
            wrong.append(f"{path}: {node.name}")
    assert not wrong
