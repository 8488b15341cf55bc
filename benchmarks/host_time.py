"""Host and device time of a forward, side by side: eager, the draft whose forward is Python's, the draft whose forward is one native call.

    python -m benchmarks.host_time --suite CHECKOUT --problems 3:6,3:3 [--drafts FOLDER] [--device cpu] [--json FILE]
    python -m benchmarks.host_time --suite CHECKOUT --problems 3 --drafts FOLDER --prepare     # drafts without a GPU, into FOLDER

host: from a forward's call to its return, the device idle before. device: a replay of the forward captured in a CUDA graph.
call: between two events around a forward, the device idle before, as KernelBench times it; at least the larger of the other two.
Microseconds, medians over rounds in which the three take turns. Each problem has a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from harness.export.one_file import standalone
from kernels import suites
from kernels.importers import kernelbench
from nodes.drafting import draft

MARK = "    @native.host\n"
ARMS = ("eager", "python", "native")
MEASURE = """
import json, statistics, sys, time, torch

problem, native, plain, out, device, rounds = sys.argv[1:]
torch.set_grad_enabled(False)
if device == "cpu":
    torch.set_num_threads(1)

def executed(path):
    found = {"__name__": "made"}
    exec(compile(open(path).read(), path, "exec"), found)
    return found

def synchronize():
    if device == "cuda":
        torch.cuda.synchronize()

reference = executed(problem)
made = {"eager": reference["Model"], "python": executed(plain)["ModelNew"], "native": executed(native)["ModelNew"]}
models, init = {}, reference["get_init_inputs"]()
for name, model in made.items():
    torch.manual_seed(0)
    models[name] = (model(**init) if isinstance(init, dict) else model(*init)).to(device)
torch.manual_seed(1)
inputs = [x.to(device) if isinstance(x, torch.Tensor) else x for x in reference["get_inputs"]()]

def leaves(tree):
    return [tree] if isinstance(tree, torch.Tensor) else [x for part in tree for x in leaves(part)] if isinstance(tree, (list, tuple)) else []

said, answers = {}, {}
for name, model in models.items():
    torch.manual_seed(2)
    answers[name] = [x.double().cpu() for x in leaves(model(*inputs))]
for name in ("python", "native"):
    pairs = list(zip(answers[name], answers["eager"]))
    said[name + "_error"] = max(((a - b).abs().max() / b.abs().max().clamp(min=1e-30)).item() for a, b in pairs)
said["same_bits"] = all(torch.equal(a, b) for a, b in zip(answers["python"], answers["native"]))

def host(model):
    times = []
    for _ in range(20):
        synchronize()
        began = time.perf_counter_ns()
        model(*inputs)
        times.append((time.perf_counter_ns() - began) / 1e3)
    synchronize()
    return statistics.median(times)

def between_events(work, rounds):
    times = []
    for _ in range(rounds):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        synchronize()
        first.record()
        work()
        last.record()
        synchronize()
        times.append(first.elapsed_time(last) * 1e3)
    return statistics.median(times)

def graph(model):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            model(*inputs)
    synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        kept = model(*inputs)
    return captured, kept

graphs = {}
for name, model in models.items():
    for _ in range(3):
        model(*inputs)
    synchronize()
found = {}
for _ in range(int(rounds)):
    for name, model in models.items():
        found.setdefault(name + "_host", []).append(host(model))
        if device == "cuda":
            found.setdefault(name + "_call", []).append(between_events(lambda: model(*inputs), 20))
if device == "cuda":
    for name, model in models.items():
        try:
            captured, kept = graph(model)
            found[name + "_device"] = [between_events(captured.replay, 10) for _ in range(3)]
            del captured, kept
        except Exception as error:
            said[name + "_device"] = None
            said[name + "_why"] = str(error).splitlines()[0][:200]
            break
said |= {name: statistics.median(times) for name, times in found.items()}
cells = [cell.cell_contents for cell in getattr(made["native"].forward, "__closure__", None) or ()]
said["bound"] = any(isinstance(kept, list) and "builtin" in type(kept[0]).__name__ for kept in cells)
said["torch"], said["gpu"] = torch.__version__, torch.cuda.get_device_name() if device == "cuda" else "cpu"
json.dump(said, open(out, "w"))
"""
BUILD = "import sys; exec(compile(open(sys.argv[1]).read(), sys.argv[1], 'exec'), {'__name__': 'made'})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", required=True, type=Path, help="a checkout of KernelBench")
    parser.add_argument("--problems", default="3", help="LEVEL or LEVEL:NUMBER, ...")
    parser.add_argument(
        "--drafts", type=Path, help="a folder of drafts LEVEL_NUMBER.py: what is missing is drafted into it"
    )
    parser.add_argument("--prepare", action="store_true", help="draft and stop")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=120, help="for a problem")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    levels = {int(one.split(":")[0]) for one in options.problems.split(",")}
    files = {kernelbench.title(p): p for p in suites.problems(str(options.suite), tuple(sorted(levels)))}
    wanted = [
        (f"{title.level}_{title.number}", path) for title, path in files.items()
        if {str(title.level), f"{title.level}:{title.number}"} & set(options.problems.split(","))
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.drafts or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            whys = list(pool.map(lambda one: prepare_draft(*one, folder, options), wanted))
        records = []
        for (name, path), why in zip(wanted, whys, strict=True):
            record = {"problem": path.stem, "level": name[0], "why": why}
            if not why and not options.prepare:
                record |= measure_text(name, path, folder, options)
                print(json.dumps(record), flush=True)
            records.append(record)
            if options.json:
                options.json.write_text(json.dumps(records, indent=1))
    show(records)


def prepare_draft(name: str, path: Path, folder: Path, options: argparse.Namespace) -> str:
    """Both files of a draft, and its library; why there is none."""
    file = folder / f"{name}.py"
    if not file.exists():
        made = draft(path.read_text(), options.device)
        if not made.source:
            return made.reason or "no draft"
        file.write_text(made.source)
    if options.prepare:
        return ""
    text = standalone(file.read_text())
    (folder / f"{name}.native.py").write_text(text)
    (folder / f"{name}.python.py").write_text(text.replace(MARK, ""))
    done = subprocess.run(
        [sys.executable, "-c", BUILD, str(folder / f"{name}.native.py")], capture_output=True, text=True
    )
    return (done.stderr.strip().splitlines() or ["?"])[-1][:200] if done.returncode else ""


def measure_text(name: str, path: Path, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    out = folder / f"{name}.json"
    out.unlink(missing_ok=True)
    files = [str(path), str(folder / f"{name}.native.py"), str(folder / f"{name}.python.py"), str(out)]
    command = [sys.executable, "-c", MEASURE, *files, options.device, str(options.rounds)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=options.seconds)
    except subprocess.TimeoutExpired:
        return {"why": f"no answer in {options.seconds:g} s"}
    if not out.exists():
        return {"why": (done.stderr.strip().splitlines() or ["?"])[-1][:200]}
    return json.loads(out.read_text())


def show(records: list[dict[str, Any]]) -> None:
    kinds = ("host", "device", "call")
    table = Table("problem", *(f"{arm} {kind}" for kind in kinds for arm in ARMS), "host of eager's", "bits", box=None)
    halves = 0
    for record in records:
        if "native_host" not in record:
            table.add_row(f"{record['level']} {record['problem']}"[:34], record["why"] or "prepared")
            continue
        numbers = [
            f"{record[key]:.0f}" if record.get(key := f"{arm}_{kind}") else "-" for kind in kinds for arm in ARMS
        ]
        share = record["native_host"] / record["eager_host"]
        halves += share <= 0.5
        table.add_row(
            f"{record['level']} {record['problem']}"[:34],
            *numbers,
            f"{share:.2f}",
            ("same" if record["same_bits"] else "differ") + ("" if record["bound"] else ", not bound"),
        )
    console = Console(width=190)
    console.print(table)
    timed = [record for record in records if "native_host" in record]
    if timed:
        console.print(
            f"host time at most half of eager's: {halves} of {len(timed)}; torch {timed[0]['torch']} on {timed[0]['gpu']}"
        )


if __name__ == "__main__":
    main()
