"""Which problems of a suite the drafter's rules can draft, and what the others need: a table by level and by reason.

    python -m benchmarks.draft_coverage --suite PATH [--levels 1,2,3] [--device cuda|cpu] [--build] [--jobs N] [--json FILE] [--keep DIR]

PATH is a checkout of KernelBench (or its folder of levels), or `starter`. Every problem is drafted in the compilers' box at its shipped
sizes, without data, so neither a GPU nor the memory is needed. `--build` compiles each draft as well, as a candidate is compiled (nvcc for sm_90a, or g++);
`--keep` writes the drafts, one file a problem.
"""

from __future__ import annotations

import argparse
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

from harness.backends import cpu, cuda, run_boxed
from harness.backends.model_new import native_source
from harness.device import facts as device_facts
from harness.judge.verification import first_error
from harness.processes.fork_server import site_packages
from harness.records import DeviceFacts
from harness.store import write_atomically

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "nodes" / "draft"
STARTER = ROOT / "kernels" / "suites" / "starter"
DRAFT_S, BUILD_S = 300.0, 300.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", required=True, help="a checkout of KernelBench, or starter")
    parser.add_argument("--levels", default="1,2,3")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--build", action="store_true", help="compile each draft")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path, help="write one record a problem")
    parser.add_argument("--keep", type=Path, help="write each draft there")
    options = parser.parse_args()
    problems = find_problems(options.suite, [int(level) for level in options.levels.split(",")])
    if not problems:
        raise SystemExit(f"{options.suite} holds no level1/*.py; name a checkout of KernelBench, or starter")
    with ThreadPoolExecutor(options.jobs) as pool:
        records = list(pool.map(lambda path: record(path, options.device, options.build, options.keep), problems))
    if options.json:
        options.json.write_text(json.dumps(records, indent=1))
    show(records, options.build)


def find_problems(suite: str, levels: list[int]) -> list[Path]:
    """The problem files of a suite, in their order."""
    folder = STARTER if suite == "starter" else Path(suite)
    folder = folder / "KernelBench" if (folder / "KernelBench").is_dir() else folder
    by_number = lambda path: int(re.match(r"\d*", path.name)[0] or 0)  # noqa: E731
    return [path for level in levels for path in sorted((folder / f"level{level}").glob("*.py"), key=by_number)]


def record(path: Path, device: str, build: bool, keep: Path | None = None) -> dict:
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
        if keep is not None:
            write_atomically(keep / f"{said['problem']}.py", answer["source"])
        if build:
            said["build"] = compile_source(answer["source"], device, scratch)
        print(said["problem"], len(said["kernels"]), said.get("build", ""), flush=True, file=sys.stderr)
        return said


def compile_source(text: str, device: str, scratch: Path) -> str:
    """ "" or the first error of the compiler for the draft's native source, built as a candidate is."""
    module = cuda if device == "cuda" else cpu
    if missing := module.why_unavailable():
        raise SystemExit(f"--build: {missing}")
    facts = DeviceFacts(device="cuda", name="", architecture="sm_90", units=0, last_level_cache_bytes=0)
    source = scratch / f"draft{module.SUFFIX}"
    source.write_text(native_source(text, device))
    done = module.compile(source, scratch / "draft.so", facts if device == "cuda" else device_facts("cpu"), BUILD_S)
    return "" if done.ok else first_error(done.log)


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
