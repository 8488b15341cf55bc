"""Which problems of a suite the drafter's rules can draft, and what the others need: a table by level and by reason.

    python -m benchmarks.draft_coverage --suite PATH [--levels 1,2,3] [--device cuda|cpu] [--build] [--jobs N] [--json FILE]

PATH is a checkout of KernelBench (or its folder of levels), or `starter`. Every problem is drafted in the compilers' box at its shipped
sizes, without data, so neither a GPU nor the memory is needed. `--build` compiles each draft as well (nvcc for sm_90 to PTX, or g++).
"""

from __future__ import annotations

import argparse
import ast
import collections
import json
import re
import shutil
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rich.console import Console
from rich.table import Table

from harness.backends import run_boxed
from harness.device import cuda_home
from harness.zygote import site_packages

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "nodes" / "draft"
STARTER = ROOT / "kernels" / "suites" / "starter"
DRAFT_S, BUILD_S = 300.0, 300.0
CONSTANTS = {"cuda": "CUDA_SOURCE", "cpu": "CPP_SOURCE"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", required=True, help="a checkout of KernelBench, or starter")
    parser.add_argument("--levels", default="1,2,3")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--build", action="store_true", help="compile each draft")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path, help="write one record a problem")
    options = parser.parse_args()
    problems = found(options.suite, [int(level) for level in options.levels.split(",")])
    if not problems:
        raise SystemExit(f"{options.suite} holds no level1/*.py; name a checkout of KernelBench, or starter")
    with ThreadPoolExecutor(options.jobs) as pool:
        records = list(pool.map(lambda path: record(path, options.device, options.build), problems))
    if options.json:
        options.json.write_text(json.dumps(records, indent=1))
    show(records, options.build)


def found(suite: str, levels: list[int]) -> list[Path]:
    """The problem files of a suite, in their order."""
    folder = STARTER if suite == "starter" else Path(suite)
    folder = folder / "KernelBench" if (folder / "KernelBench").is_dir() else folder
    by_number = lambda path: int(re.match(r"\d*", path.name)[0] or 0)  # noqa: E731
    return [path for level in levels for path in sorted((folder / f"level{level}").glob("*.py"), key=by_number)]


def record(path: Path, device: str, build: bool) -> dict:
    """{problem, seconds, kernels, rules, left to torch | none: sentence, build: "" or the compiler's first error}."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="astrolabe-coverage-") as folder:
        scratch = Path(folder)
        shutil.copytree(PACKAGE, scratch / "draft", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copyfile(path, scratch / "problem.py")
        out = scratch / "out.json"
        command = [sys.executable, "-I", str(scratch / "draft"), str(scratch / "problem.py"), device, str(out)]
        code, output = run_boxed(command, scratch, [site_packages()], DRAFT_S)
        said = {"problem": f"{path.parent.name}/{path.stem}"}
        if code != 0 or not out.is_file():
            lines = output.strip().splitlines() or ["no reason given"]
            return {
                **said,
                "none": f"the drafter failed: {lines[-1][:300]}",
                "seconds": round(time.monotonic() - began, 1),
            }
        answer = json.loads(out.read_text())
        said["seconds"] = round(time.monotonic() - began, 1)
        if "none" in answer:
            return {**said, "none": answer["none"]}
        said |= {"kernels": [kernel["summary"] for kernel in answer["kernels"]], "notes": answer["notes"]}
        if build:
            said["build"] = compiled(answer["source"], device, scratch)
        print(said["problem"], len(said["kernels"]), said.get("build", ""), flush=True, file=sys.stderr)
        return said


def compiled(text: str, device: str, scratch: Path) -> str:
    """ "" or the first error of the compiler for the draft's native source."""
    constants = [
        node.value for node in ast.parse(text).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == CONSTANTS[device]
    ]  # fmt: skip
    source = scratch / ("draft.cu" if device == "cuda" else "draft.cpp")
    source.write_text(ast.literal_eval(constants[0]))
    home = cuda_home()
    if device == "cuda":
        if home is None:
            raise SystemExit("--build for cuda needs nvcc; install the CUDA toolkit or set CUDA_HOME")
        command = [
            str(home / "bin" / "nvcc"),
            "-std=c++17",
            "-ptx",
            "-arch=compute_90",
            "-o",
            str(scratch / "draft.ptx"),
        ]
    else:
        command = ["g++", "-std=c++17", "-fopenmp", "-fsyntax-only"]
    code, output = run_boxed([*command, str(source)], scratch, [str(home)] if home else [], BUILD_S)
    return "" if code == 0 else next((line for line in output.splitlines() if "error" in line), output[:300])


def reason_of(sentence: str) -> str:
    """The sentence without the names of one problem, so that like reasons count together."""
    return re.sub(r"(, \w+)+$", "", sentence)


def show(records: list[dict], built: bool) -> None:
    console = Console(width=150)
    table = Table(title="drafts by level")
    for column in ("level", "problems", "drafted", "kernels a draft", *(["do not compile"] if built else [])):
        table.add_column(column, justify="right")
    for level in sorted({r["problem"].split("/")[0] for r in records}):
        here = [r for r in records if r["problem"].startswith(level)]
        drafted = [r for r in here if "kernels" in r]
        mean = sum(len(r["kernels"]) for r in drafted) / max(len(drafted), 1)
        bad = [str(sum(bool(r.get("build")) for r in drafted))] if built else []
        table.add_row(level, str(len(here)), str(len(drafted)), f"{mean:.1f}", *bad)
    console.print(table)
    reasons = collections.Counter(reason_of(r["none"]) for r in records if "none" in r)
    for reason, count in reasons.most_common():
        console.print(f"{count:4} without a draft: {reason}")
    rules = collections.Counter(note.split(":")[0] for r in records for note in r.get("notes", []))
    for rule, count in rules.most_common():
        console.print(f"{count:4} drafts: {rule}")
    for r in records:
        if r.get("build"):
            console.print(f"{r['problem']}: {r['build']}")


if __name__ == "__main__":
    main()
