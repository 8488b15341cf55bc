"""Does `--protocol kernelbench` say what KernelBench says? Its own evaluation and ours on the same candidates, on a GPU.

    python -m benchmarks.kernelbench_agreement --kernelbench CHECKOUT [--problems 1:7,2:15,...] [--json FILE]

CHECKOUT is KernelBench's repository (its src/kernelbench/eval.py is what is compared with). Of each problem two candidates: the
drafter's, and the same with its outputs spoiled (one in a hundred off by 0.01, a NaN, another shape, an exception, in turn).
Each is judged by `eval_kernel_against_ref` with the settings of KernelBench's scripts (five trials, 100 timed calls, CUDA events),
in a process of its own, and by ours. Agreement on correctness, runtimes and the seconds that each took, all included, are said.

Packages that its modules import for asking models (litellm, dotenv, requests, datasets) are replaced by empty ones where they are missing.
The drafts bring their own loader, which calls nvcc directly. With --headers theirs are compiled as the candidates of models are, by load_inline,
through torch's headers: for the seconds, on a few problems.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from harness import protocol_kernelbench
from harness.evaluate import Evaluator
from harness.export.one_file import standalone
from harness.problems.pytorch import open_problem
from harness.store import Store
from kernels import suites
from kernels.importers import kernelbench
from nodes.drafting import draft

PROBLEMS = "1:7,1:8,1:9,1:10,1:12,1:14,1:40,1:59,2:6,2:12,2:15,2:18,2:20,2:29,2:50,2:58,2:60,2:72,2:79,3:8"
"""Inputs of at most 256 MB, none that passes without computing."""
SPOILED = (
    "answer.flatten()[::100] += 0.01",
    "answer.flatten()[-1] = float('nan')",
    "answer = answer.unsqueeze(0)",
    "raise RuntimeError('spoiled')",
)
THEIRS_S = 600.0
HEADERS = """
def load_native(namespace):
    from torch.utils.cpp_extension import load_inline

    os.environ["TORCH_CUDA_ARCH_LIST"] = "9.0a"
    name = "draft_" + hashlib.sha256(namespace["CUDA_SOURCE"].encode()).hexdigest()[:16]
    half = [f"-U__CUDA_NO_{one}__" for one in ("HALF_OPERATORS", "HALF_CONVERSIONS", "BFLOAT16_CONVERSIONS", "HALF2_OPERATORS")]
    made = load_inline(
        name, cpp_sources="", cuda_sources=namespace["CUDA_SOURCE"], extra_cuda_cflags=["-O3", *half], is_python_module=False
    )
    return Native(Path(made), "cuda")
"""
THEIRS = """
import json, sys, types

class Anything(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *arguments, **named: None

for name in ("litellm", "dotenv", "requests", "datasets", "openai"):
    try:
        __import__(name)
    except ImportError:
        sys.modules[name] = Anything(name)
checkout, problem, candidate, folder, out, device = sys.argv[1:]
sys.path.insert(0, checkout + "/src")
import torch
from kernelbench.eval import eval_kernel_against_ref

found = eval_kernel_against_ref(
    open(problem).read(), open(candidate).read(), num_correct_trials=5, num_perf_trials=100, measure_performance=True,
    build_dir=folder, device=torch.device(device), backend="cuda", precision=torch.float32,
)
kept = {"compiled", "correctness", "metadata", "runtime", "ref_runtime"}
said = {"retry": True} if found is None else found.model_dump(include=kept)
said["metadata"] = {name: str(value)[:300] for name, value in said.get("metadata", {}).items()}
with open(out, "w") as file:
    json.dump(said, file)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernelbench", required=True, type=Path, help="a checkout")
    parser.add_argument("--problems", default=PROBLEMS, help="LEVEL:NUMBER, ...")
    parser.add_argument("--headers", action="store_true", help="theirs compile through torch's headers")
    parser.add_argument("--json", type=Path, help="write every record")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="KernelBench itself knows no cpu")
    options = parser.parse_args()
    wanted = [tuple(map(int, one.split(":"))) for one in options.problems.split(",")]
    files = suites.problems(str(options.kernelbench), tuple(sorted({level for level, _ in wanted})))
    titled = {(kernelbench.title(path).level, kernelbench.title(path).number): path for path in files}
    if missing := [one for one in wanted if one not in titled]:
        raise SystemExit(f"{options.kernelbench} has no problem {missing[0][0]}:{missing[0][1]}")
    with ThreadPoolExecutor(min(len(wanted), os.cpu_count() or 1)) as pool:  # `both` finds them worked out
        list(pool.map(lambda one: draft(titled[one].read_text(), options.device), wanted))
    records = []
    for at, one in enumerate(wanted):
        records += both(titled[one], SPOILED[at % len(SPOILED)], options)
        if options.json:
            options.json.write_text(json.dumps(records, indent=1))
    show(records)


def both(path: Path, spoil: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The records of a problem's two candidates."""
    on = options.device
    label, drafted = f"{path.parent.name}/{path.name}", draft(path.read_text(), on)
    if not drafted.source:
        print(f"{label}: no draft: {drafted.reason}", flush=True)
        return []
    records = []
    for name, source in (("honest", drafted.source), ("spoiled", spoil_source(drafted.source, spoil))):
        record = {
            "problem": label,
            "candidate": name,
            "ours": ours(path, source, on),
            "theirs": theirs(path, source, options),
        }
        print(json.dumps(record), flush=True)
        records.append(record)
    return records


def spoil_source(source: str, how: str) -> str:
    """The method is changed, not the class: `super(ModelNew, self)` in a class that another takes the name of is that other's."""
    return (
        f"{source}\n\n_right = ModelNew.forward\n\n\ndef _spoiled(self, *given):\n"
        f"    answer = _right(self, *given).contiguous()\n    {how}\n    return answer\n\n\nModelNew.forward = _spoiled\n"
    )


def ours(path: Path, source: str, on: Any) -> dict[str, Any]:
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory() as folder,
        Evaluator(open_problem(path, on), on, Store(Path(folder))) as evaluator,
    ):
        found = protocol_kernelbench.evaluate(evaluator, evaluator.kernel, source)  # type: ignore[arg-type]
    kept = found.model_dump(include={"compiled", "correctness", "metadata", "runtime", "ref_runtime"})
    return {**kept, "seconds": time.monotonic() - began}


def theirs(path: Path, source: str, options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        candidate, out = Path(folder) / "candidate.py", Path(folder) / "out.json"
        text = standalone(source)
        if options.headers:
            text = text.replace("exec(_LOADER, _found)", f"exec(_LOADER + {HEADERS!r}, _found)")
        candidate.write_text(text)
        checkout = str(options.kernelbench.resolve())
        command = [sys.executable, "-c", THEIRS, checkout, str(path), str(candidate), f"{folder}/build", str(out)]
        command += ["cuda:0" if options.device == "cuda" else "cpu"]
        began = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, timeout=THEIRS_S)
        seconds = time.monotonic() - began
        if not out.is_file():
            last = (done.stderr.strip().splitlines() or ["nothing"])[-1]
            return {"compiled": None, "correctness": None, "error": last[:300], "seconds": seconds}
        return {**json.loads(out.read_text()), "seconds": seconds}


def show(records: list[dict[str, Any]]) -> None:
    table = Table("problem", "candidate", "ours", "theirs", "ms", "ms", "ratio", "s", "s", box=None)
    for record in records:
        mine, other = record["ours"], record["theirs"]
        times = [f"{one.get('runtime', -1):g}" if one["correctness"] else "-" for one in (mine, other)]
        ratio = f"{ratio_of(record):.3f}" if ratio_of(record) else "-"
        words = ["right" if one["correctness"] else one.get("error", "wrong")[:40] for one in (mine, other)]
        seconds = [f"{one['seconds']:.1f}" for one in (mine, other)]
        table.add_row(record["problem"][:44], record["candidate"], *words, *times, ratio, *seconds)
    console = Console(width=170)
    console.print(table)
    agreed = sum(one["ours"]["correctness"] == one["theirs"]["correctness"] for one in records)
    apart = [abs(ratio - 1) for one in records if (ratio := ratio_of(one))]
    console.print(f"correctness: {agreed} of {len(records)} agree; torch {importlib.metadata.version('torch')}")
    if apart:
        console.print(f"runtimes: {statistics.median(apart):.1%} apart in the median, {max(apart):.1%} at most")
    spent = [sum(one[side]["seconds"] for one in records) for side in ("ours", "theirs")]
    console.print(f"seconds: ours {spent[0]:.0f}, theirs {spent[1]:.0f}")


def ratio_of(record: dict[str, Any]) -> float | None:
    """Our runtime over theirs, where both took one."""
    pair = [record[side].get("runtime") or -1.0 for side in ("ours", "theirs")]
    return pair[0] / pair[1] if min(pair) > 0 else None


if __name__ == "__main__":
    main()
