"""Whether a run needs fewer rounds once another kernel of its family has been worked on: eight pairs a device.

    python -m benchmarks.memory --device cuda [--pairs row_softmax:log_softmax ...] [--rounds 8] [-- options of run.py]

Of each pair the first kernel is run with memory, then the second with what that left, and once more with memory off. What is
compared is the first round in which either reaches the same speedup: SHARE of the lesser of the two best. Runs are kept under
--runs-dir, a folder a pair, and a command that was interrupted goes on where it stopped.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from harness import device
from harness.report.result import Result
from kernels import catalog
from kernels.catalog import Kernel
from kernels.family import Family
from nodes.knowledge import families_of

ROOT = Path(__file__).resolve().parent.parent
INPUTS = ROOT / "tests" / "inputs"
PAIRS = {
    "cuda": (
        "row_softmax:log_softmax", "scaled_rms_norm:head_rms_norm", "layer_norm:residual_then_norm", "row_logsumexp:row_entropy",
        "gelu_and_mul:quick_gelu", "relu_squared:bias_scale_residual", "quantize_rows:l2_normalize", "thread_softmax:thread_layer_norm",
    ),
    "cpu": (
        "cpu_softmax:cpu_row_extremes", "fused_add_rmsnorm:cpu_layernorm", "cpu_gelu:cpu_chain", "silu_and_mul:cpu_gelu",
        "cpu_row_extremes:cpu_quantise", "cpu_rotary:cpu_rotary_positions", "cpu_layernorm:cpu_quantise", "gather_rows_by_id:cpu_embedding",
    ),
}  # fmt: skip
SHARE = 0.97


def family_of(kernel: Kernel) -> Family:
    return families_of(kernel.spec, (kernel.folder / "reference.py").read_text())[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    parser.add_argument(
        "--pairs", nargs="+", metavar="FIRST:SECOND", help="of the same family (the eight of the device)"
    )
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--runs-dir", type=Path, default=ROOT / "runs" / "memory")
    parser.add_argument("rest", nargs="*", help="options of run.py, after --")
    options = parser.parse_args()
    on, _ = device.choose(options.device)
    table = Table(title=f"rounds to the same speedup, {on}, at most {options.rounds} rounds each")
    for column in ("family", "first", "second", "to reach", "rounds", "with memory", "best", "with memory"):
        table.add_column(column, justify="right" if column not in ("family", "first", "second") else "left")
    fewer, pairs = 0, options.pairs or PAIRS[on]
    for pair in pairs:
        first, _, second = pair.partition(":")
        kinds = {family_of(catalog.load(place(name))) for name in (first, second)}
        if len(kinds) != 1:
            print(f"{first} is of the family {', and the other of '.join(sorted(kinds))}", file=sys.stderr)
            return 2
        runs = [
            run(pair, *one, on, options)
            for one in ((first, "first", "on"), (second, "second", "on"), (second, "alone", "off"))
        ]
        if None in runs:
            return 1
        _, taught, alone = (result for result in runs if result is not None)
        target = max(1.0, SHARE * min(best(taught), best(alone)))
        rounds = [first_round_at(alone, target), first_round_at(taught, target)]
        fewer += rounds[1] < rounds[0]
        figures = (f"{target:.2f}x", *map(str, rounds), f"{best(alone):.2f}x", f"{best(taught):.2f}x")
        table.add_row(*kinds, first, second, *figures)
    Console(width=130).print(table)
    print(f"fewer rounds with memory: {fewer} of {len(pairs)}")
    return 0


def place(name: str) -> str:
    """A kernel of the catalog, or a folder of tests/inputs."""
    return str(INPUTS / name) if (INPUTS / name).is_dir() else name


def best(result: Result) -> float:
    return max((a.speedup.median for a in result.attempts if a.accepted and a.speedup), default=1.0)


def first_round_at(result: Result, target: float) -> int:
    """The first round after which the incumbent is that fast; 0 where the baseline is, one more than it had where none is."""
    if target <= 1.0:
        return 0
    rounds = [a.round for a in result.attempts if a.accepted and a.speedup and a.speedup.median >= target]
    return min(rounds, default=result.rounds + 1)


def run(pair: str, kernel: str, name: str, memory: str, on: str, options: argparse.Namespace) -> Result | None:
    """The finished run of that name; begun, or gone on with, where it has not finished. None where it cannot finish."""
    folder = options.runs_dir / pair.replace(":", "-")
    kept = folder / name / "result.json"
    if not (kept.exists() and Result.model_validate_json(kept.read_text()).status == "finished"):
        where = ["--runs-dir", str(folder), "--no-live"]
        command = ["resume", name, *where]
        if not (folder / name / "run.json").exists():
            limits = ["--rounds", str(options.rounds), "--patience", str(options.rounds)]
            command = [
                "--kernel", place(kernel), "--device", on, "--memory", memory, "--run-id", name, *limits, *where, *options.rest,
            ]  # fmt: skip
        done = subprocess.run([sys.executable, str(ROOT / "run.py"), *command], stdout=sys.stderr)
        if done.returncode not in (0, 3):
            print(f"{pair}: {name} ended with code {done.returncode}; call this again to go on", file=sys.stderr)
            return None
    return Result.model_validate_json(kept.read_text())


if __name__ == "__main__":
    sys.exit(main())
