"""Whether the drafter's rules draft what is right: each problem of a suite, with its sizes made small, judged on the CPU in C++.

    python -m benchmarks.draft_correctness --suite PATH [--levels 1,2,3] [--shuffle SEED] [--json FILE]

PATH is a checkout of KernelBench (or its folder of levels), or `starter`. The numbers at a problem's top level (batch_size = 4096) are
halved until they are small, less where the module does not take that; the verdict is the harness's own, visible and held out,
nothing is timed. Wrong algebra, wrong indices and wrong shapes show here; what only CUDA does wrong does not.
"""

from __future__ import annotations

import argparse
import ast
import collections
import json
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.evaluate import Evaluator
from harness.problems.pytorch import open_problem
from harness.store import Store
from kernels import suites
from kernels.catalog import KernelError
from nodes import drafting

BATCH = ("batch", "batch_size", "B")
SMALL_BATCH = 4
LARGEST = (16, 64, 256, 1024, 1 << 40)
"""Tried one after another: what is read as a size may have to divide by what is read as a number of groups or heads. The last one
makes only batches small."""


@dataclass(frozen=True)
class Judged:
    problem: str
    outcome: str
    """The harness's, NO_DRAFT or UNFIT."""
    reason: str
    largest: int
    """Of the numbers that were tried; 0: the problem as it is."""
    seconds: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", required=True, help="a checkout of KernelBench, or starter")
    parser.add_argument("--levels", default="1,2,3")
    parser.add_argument("--shuffle", type=int, metavar="SEED", help="in an order drawn from SEED, levels mixed evenly")
    parser.add_argument("--json", type=Path, help="write one record a problem, after each")
    options = parser.parse_args()
    problems = suites.problems(options.suite, tuple(int(level) for level in options.levels.split(",")))
    problems = problems if options.shuffle is None else suites.shuffle(problems, options.shuffle)
    found: list[Judged] = []
    for path in problems:
        found.append(judge_draft(path))
        one = found[-1]
        print(
            f"{one.problem} {one.outcome} {one.reason[:200]} (numbers up to {one.largest}, {one.seconds:.0f} s)",
            flush=True,
        )
        if options.json:
            options.json.write_text(json.dumps([vars(one) for one in found], indent=1))
    print(
        ", ".join(f"{count} {name}" for name, count in collections.Counter(one.outcome for one in found).most_common())
    )


def judge_draft(path: Path) -> Judged:
    began, said = time.monotonic(), ""
    for largest, text in variants(path.read_text(encoding="utf-8")):
        with tempfile.TemporaryDirectory(prefix="astrolabe-correctness-") as folder:
            small = Path(folder) / path.name
            small.write_text(text, encoding="utf-8")
            try:
                outcome, reason = verdict(small, Path(folder) / "store")
            except KernelError as error:  # it does not take those sizes
                said = str(error).replace(folder, "")
                continue
        return Judged(f"{path.parent.name}/{path.stem}", outcome, reason, largest, time.monotonic() - began)
    return Judged(f"{path.parent.name}/{path.stem}", "UNFIT", said, 0, time.monotonic() - began)


def verdict(path: Path, folder: Path) -> tuple[str, str]:
    """(outcome, reason) of the draft of that problem. Raises KernelError where the problem cannot be worked on."""
    with Evaluator(open_problem(path, "cpu"), "cpu", Store(folder)) as evaluator:
        draft = drafting.draft(evaluator.kernel.text, "cpu")  # type: ignore[attr-defined]
        if not draft.source.strip():
            return "NO_DRAFT", draft.reason
        build = evaluator.build(evaluator.store.put(draft.source))
        found = evaluator.verify(build)
        if found.passed and evaluator.suite(held_out=True):
            found = evaluator.verify(build, held_out=True)
        return str(found.outcome), found.reason


def variants(text: str) -> Iterator[tuple[int, str]]:
    """(largest number, the problem's text with no larger one at its top level), from small to as it is, each text once."""
    seen = set()
    for largest in LARGEST:
        made = shrunk(text, largest)
        if made != text and made not in seen:
            seen.add(made)
            yield largest, made
    yield 0, text


def shrunk(text: str, largest: int) -> str:
    """The text with every integer that its top level gives a name to halved until it is no larger; a batch is SMALL_BATCH."""
    lines = [line.encode() for line in text.splitlines(keepends=True)]
    found = [pair for node in ast.parse(text).body if isinstance(node, ast.Assign) for pair in find_names(node)]
    for name, node in sorted(found, key=lambda pair: (pair[1].lineno, pair[1].col_offset), reverse=True):
        value = integer(node)
        if value is not None and value > SMALL_BATCH and node.lineno == node.end_lineno:
            line, start, end = node.lineno - 1, node.col_offset, node.end_col_offset
            lines[line] = lines[line][:start] + str(smaller(name, value, largest)).encode() + lines[line][end:]
    return b"".join(lines).decode()


def find_names(node: ast.Assign) -> list[tuple[str, ast.expr]]:
    """(name, value) of `a = 1`, `a = b = 1` and `a, b = 1, 2`."""
    target, value = node.targets[0], node.value
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        return [(one.id, two) for one, two in zip(target.elts, value.elts, strict=False) if isinstance(one, ast.Name)]
    return [(target.id, value)] if isinstance(target, ast.Name) else []


def integer(node: ast.expr) -> int | None:
    """The value of a literal, or of products of literals."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        left, right = integer(node.left), integer(node.right)
        return None if left is None or right is None else left * right
    return None


def smaller(name: str, value: int, largest: int) -> int:
    if name in BATCH:
        return min(value, SMALL_BATCH)
    while value > largest and value % 2 == 0:
        value //= 2
    return value if value <= largest else largest | 1


if __name__ == "__main__":
    main()
