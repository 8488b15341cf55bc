"""A training step taken apart: each kernel of it by itself, and each layer beside what its bytes and FLOPs need here.

    python -m benchmarks.minibatch_step [--graph papers100M-like] [--rungs gpu-graph ...] [--out FOLDER]

Sampling and computation of one batch are captured as a CUDA graph each and replayed; the profiler says how long each kernel
took, in the mean of REPLAYS replays of different batches, and what ran when in some whole steps. Floors are of a copy's and a large product's measured
rates. Needs a GPU. Writes FOLDER/step.json ($OUT where it is set).
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks import minibatch_ladder as ladder
from minibatch import rungs, synthetic, timeline, training
from minibatch.placing import Placed
from minibatch.resident import MARGIN, Trainer

REPLAYS = 20
STEPS = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graph", default="papers100M-like", choices=synthetic.RECIPES)
    parser.add_argument(
        "--rungs",
        nargs="+",
        default=["gpu-graph", "gpu-layers"],
        choices=[name for name, variant in rungs.VARIANTS.items() if variant.captured],
    )
    parser.add_argument("--epochs", type=int, default=2, help="timed, after one that is not")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "benchmarks")))
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    graph = synthetic.generate(asked.graph, device="cuda")
    found: dict[str, Any] = {"graph": asked.graph, "device": torch.cuda.get_device_name(), "rates": rates()}
    for rung in asked.rungs:
        with ladder.route_of(rung, Placed(graph)) as way:
            found[rung] = measure(way.trainer, asked.epochs, found["rates"])
        report(rung, found[rung])
        (asked.out / "step.json").write_text(json.dumps(found, indent=1) + "\n")


def measure(trainer: Trainer, epochs: int, measured: dict[str, float]) -> dict[str, Any]:
    graph = trainer.graph
    records = [trainer.epoch(training.order(graph, 0, number).to("cuda"), number) for number in range(epochs + 1)]
    found: dict[str, Any] = {
        "epoch_s": [record.seconds for record in records[1:]],
        "losses": [record.loss for record in records],
        "fallbacks": [record.fallbacks for record in records],
        "valid_accuracy": trainer.accuracy(graph.valid[: 20 * ladder.BATCH], ladder.FANOUTS),
        "stages_us": trainer.stages_us(),
        "kernels": {
            "sample": kernels_of(trainer, lambda: trainer.sample_next(0)),
            "compute": kernels_of(trainer, lambda: trainer.compute(trainer.sampled[0])),
        },
        "steps": steps_of(trainer),
        "floors_us": floors(trainer, records[-1].edges / records[-1].batches, measured),
    }
    start = time.perf_counter()
    found["test_accuracy_20_20_20"] = trainer.accuracy(graph.test, [20, 20, 20])
    found["inference_s_20_20_20"] = time.perf_counter() - start
    return found


def rates() -> dict[str, float]:
    """Measured: bytes a second that a copy reads and writes, FLOPs a second of a bfloat16 product like layer 1's."""
    wide = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    rows, columns = (torch.randn(n, 256, device="cuda", dtype=torch.bfloat16) for n in (131_072, 256))
    square = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    return {
        "copy_bytes_s": 2 * wide.numel() / ladder._seconds(lambda: wide.clone()),
        "thin_product_flops_s": 2 * rows.numel() * 256 / ladder._seconds(lambda: rows @ columns),
        "product_flops_s": 2 * 8192**3 / ladder._seconds(lambda: square @ square),
    }


def kernels_of(trainer: Trainer, run: Any) -> list[tuple[str, float, int]]:
    """(name, microseconds a replay, times) of the kernels of a captured `run`, in the order in which they first ran. Changes no
    weight."""
    trainer.begin(trainer.graph.train, 0)
    trainer.idle.fill_(1)
    trainer.sample_next(0)
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured, capture_error_mode="thread_local"):
        run()
    trainer.begin(trainer.graph.train, 0)
    captured.replay()
    events = timeline.kernels_of(captured.replay, REPLAYS)
    trainer.idle.zero_()
    found: dict[str, list[int]] = {}
    for name, _, _, duration in events:
        found.setdefault(name[:120], []).append(duration)
    return [(name, sum(ns) / REPLAYS / 1e3, len(ns) // REPLAYS) for name, ns in found.items()]


def steps_of(trainer: Trainer) -> list[tuple[str, int, int, int]]:
    """(name, stream, begin in ns, duration in ns) of the kernels of some whole steps. Changes no weight."""
    trainer.begin(trainer.graph.train, 0)
    trainer.idle.fill_(1)
    trainer.sample_next(0)
    todo = itertools.cycle(trainer.graphs)
    found = timeline.kernels_of(lambda: next(todo).replay(), STEPS)
    trainer.idle.zero_()
    return found


def floors(trainer: Trainer, edges: float, measured: dict[str, float]) -> dict[str, dict[str, float]]:
    """Of each layer, forward and backward: the longer of its bytes at a copy's rate and its FLOPs at a product's.

    Each tensor is read or written once a use, features, hidden rows and their gradients in 16 bits; rows that a gather reads
    again count again.
    """
    sampler = trainer.sampler
    graph, hidden = trainer.graph, trainer.model.own[0].shape[1]
    sizes = [graph.features.shape[1], *[hidden] * (len(sampler.fanouts) - 1), graph.classes]
    known = [size / (MARGIN if at else 1) for at, size in enumerate(sampler.capacities)]
    picked = [rows * fanout for rows, fanout in zip(known, sampler.fanouts, strict=True)]
    picked = [n * edges / sum(picked) for n in picked]
    found = {}
    for number, (width, out) in enumerate(itertools.pairwise(sizes)):
        rows, read = known[-1 - number], picked[-1 - number]
        gather = (read + rows) * width * 2 + rows * 2 * width * 2
        product = rows * (2 * width + out) * 2
        flops = 2 * rows * 2 * width * out
        backward = rows * out * 2 * 2 + product  # the gradient made, then weights' gradient
        if number:
            backward += rows * (2 * width + out) * 2  # and the inputs' gradient, which the layer below shares out
        for name, (size, work) in {
            "gather": (gather, 0.0), "product": (product, flops), "backward": (backward, flops * (2 if number else 1)),
        }.items():  # fmt: skip
            times = size / measured["copy_bytes_s"] * 1e6, work / measured["product_flops_s"] * 1e6
            found[f"layer {number + 1} {name}"] = {"bytes": size, "flops": work, "us": max(times)}
    return found


def report(rung: str, found: dict[str, Any]) -> None:
    print(
        f"{rung}: epochs {found['epoch_s']} s, stages alone {found['stages_us']} us, accuracy {found['valid_accuracy']}"
    )
    for stage, kernels in found["kernels"].items():
        print(f"  {stage}: {sum(us for _, us, _ in kernels):.1f} us in {sum(times for *_, times in kernels)} kernels")
        for name, us, times in kernels:
            print(f"    {us:8.2f}  {times} x {name}")
    for name, floor in found["floors_us"].items():
        print(
            f"  floor of {name}: {floor['us']:.1f} us, {floor['bytes'] / 1e6:.0f} MB, {floor['flops'] / 1e9:.1f} GFLOP"
        )


if __name__ == "__main__":
    main()
