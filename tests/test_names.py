"""Names: a public class is called as no other, a public function says what it does."""

from __future__ import annotations

import ast
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


def _public(
    kinds: tuple[type[ast.ClassDef] | type[ast.FunctionDef] | type[ast.AsyncFunctionDef], ...],
) -> list[tuple[str, str]]:
    """(file, name) of what modules of the product define for others."""
    found = []
    listed = subprocess.run(["git", "ls-files", *PACKAGES], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for path in listed.split():
        if path.endswith(".py") and not path.startswith(PROBLEM_FILES) and (ROOT / path).is_file():
            body = ast.parse((ROOT / path).read_text()).body
            found += [(path, node.name) for node in body if isinstance(node, kinds) and not node.name.startswith("_")]
    return found


def test_no_public_class_name_stands_twice():
    places: dict[str, list[str]] = {}
    for path, name in _public((ast.ClassDef,)):
        places.setdefault(name, []).append(path)
    twice = {
        name: where
        for name, where in places.items()
        if len(where) > 1 and name not in SHARED and not all(path.startswith(TEXT_COMPILERS) for path in where)
    }
    assert not twice


def test_public_functions_are_no_past_participles():
    """Imperative verbs, or what the function gives; only the first word is looked at."""
    wrong = []
    for path, name in _public((ast.FunctionDef, ast.AsyncFunctionDef)):
        if PARTICIPLE.fullmatch(name.split("_")[0]) and name not in CONTRACTS and not path.startswith(TEXT_COMPILERS):
            wrong.append(f"{path}: {name}")
    assert not wrong
