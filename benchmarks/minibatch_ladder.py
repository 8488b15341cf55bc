"""The ladder of mini-batch systems on one machine: seconds an epoch, edges a second, share of the memory floor, accuracy.

    python -m benchmarks.minibatch_ladder [--graph papers100M-like] [--rungs about gpu-graph ...] [--epochs 2] [--out FOLDER]

Every rung runs in a process of its own that makes the graph anew from its seed, so that one that fails, or takes the memory,
costs no other. `about` counts what a batch holds and what the device's memory does; `gpu-host` is gpu-graph with features in
host memory behind a cache of CACHE_GIB; the others are RUNGS of minibatch/rungs.py. Writes FOLDER/ladder.json ($OUT where it
is set) and ladder.html after every rung. Without a GPU: `--graph small`, and the rungs that run there.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from minibatch import geometric, report, rungs, synthetic, training
from minibatch.batches import SEEDS_A_BATCH, BatchLoader, pad_to
from minibatch.graphs import Graph, GraphError
from minibatch.ops import Kernels
from minibatch.placing import Placed
from minibatch.request import EpochRequest
from minibatch.resident import MARGIN, Sampler
from minibatch.timeline import Span, SpanTrace

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
WHAT = {name: variant.what for name, variant in rungs.VARIANTS.items()} | {
    "gpu-host": "gpu-graph with features in host memory, hot rows on the device too"
}
ON_GPU_ONLY = ("about", "pyg-hbm", "gpu-host", "gpu-graph", "gpu-layers")
ORDER = (
    "about", "gpu-graph", "gpu-layers", "gpu-fused", "gpu", "gpu-plain", "gpu-host", "salient", "pyg", "pyg-hbm"
)  # fmt: skip
ON_HOST = ("salient", "pyg", "pyg-hbm")
"""Sampled by the CPU: of a large graph only HOST_BATCHES are made, and the record says that the epoch is extrapolated."""
HOST_BATCHES = 100
LIMIT_S = {"gpu-host": 240} | dict.fromkeys(ON_HOST, 240)
"""Of one rung; 150 s otherwise."""
CACHE_GIB = 4.0
FANOUTS, BATCH = [15, 10, 5], 1024
SMALL_EPOCHS = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graph", default="papers100M-like", choices=synthetic.RECIPES)
    parser.add_argument("--rungs", nargs="+", default=list(ORDER), choices=ORDER)
    parser.add_argument("--epochs", type=int, default=2, help="timed, after one that is not")
    parser.add_argument("--small-epochs", type=int, default=SMALL_EPOCHS, help="on `small`, for the accuracy")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "benchmarks")))
    parser.add_argument("--one", choices=ORDER, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        print("RESULT " + json.dumps(run_variant(asked.one, asked.graph, asked.epochs, asked.small_epochs)), flush=True)
        return
    name = torch.cuda.get_device_name() if DEVICE == "cuda" else f"{len(os.sched_getaffinity(0))} CPU cores"
    found: dict[str, Any] = {"graph": asked.graph, "device": name, "fanouts": FANOUTS, "batch": BATCH}
    asked.out.mkdir(parents=True, exist_ok=True)
    for rung in asked.rungs:
        if DEVICE == "cpu" and rung in ON_GPU_ONLY:
            found[rung] = {"error": "needs a GPU"}
        else:
            found[rung] = _in_a_process(rung, asked)
        said = {name: value for name, value in found[rung].items() if name != "spans"}
        print(f"{rung}: {json.dumps(said, indent=1)}", flush=True)
        (asked.out / "ladder.json").write_text(json.dumps(found, indent=1) + "\n")
        (asked.out / "ladder.html").write_text(page(found))
    for row in rows(found):
        rate = f"{row.edges_s / 1e6:.3g} million edges/s" if row.edges_s else row.error or "no record"
        print(f"{row.rung:<12} {report.seconds(row.epoch_s) if row.epoch_s else '-':>8}  {rate}")


def _in_a_process(rung: str, asked: argparse.Namespace) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.minibatch_ladder", "--one", rung, "--graph", asked.graph]
    command += ["--epochs", str(asked.epochs), "--small-epochs", str(asked.small_epochs)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S.get(rung, 150))
    except subprocess.TimeoutExpired as late:
        return {"error": f"took longer than {late.timeout:.0f} s", "said": _text(late.stdout)[-500:]}
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if done.returncode or not lines:
        return {"error": f"exit code {done.returncode}", "said": (done.stdout + done.stderr)[-2500:]}
    return json.loads(lines[-1].removeprefix("RESULT "))


def _text(said: str | bytes | None) -> str:
    return said.decode(errors="replace") if isinstance(said, bytes) else said or ""


def rows(found: dict[str, Any]) -> list[report.EpochRow]:
    made = []
    for rung in (name for name in WHAT if name in found):  # from the one that people have to the fastest
        record = found[rung]
        if "error" in record:
            made.append(report.EpochRow(rung, WHAT[rung], error=record["error"]))
            continue
        made.append(
            report.EpochRow(
                rung, WHAT[rung], min(record["epoch_s"]), extrapolated=record["extrapolated"], edges=record["edges"],
                nodes=record["nodes_read"], row_bytes=record["row_bytes"], floor_share=record.get("share_of_floor"),
                accuracy=record["small_test_accuracy"], stages_s=record["stages_s"],
                spans=[Span(*span) for span in record["spans"]],
            )
        )  # fmt: skip
    return made


def page(found: dict[str, Any]) -> str:
    lines = [
        f"GraphSAGE, hidden width {rungs.hidden_of(_asked('gpu'), DEVICE)}, fanout {' '.join(map(str, FANOUTS))}, {BATCH} seeds "
        "a batch; the fastest of the timed epochs of each rung, every one with another order and other neighbours.",
        f"≈: extrapolated from {HOST_BATCHES} batches. Accuracy: of test ids of the graph small, which has labels to be learnt.",
    ]
    return report.render(report.EpochPage(found["graph"], found["device"], lines, rows(found)))


def _asked(rung: str) -> EpochRequest:
    return EpochRequest(model="sage", rung=rung, fanout=FANOUTS, batch=BATCH, lr=0.003, seed=0)


def run_variant(rung: str, name: str, epochs: int, small_epochs: int) -> dict[str, Any]:
    start = time.perf_counter()
    if rung == "about":
        graph = synthetic.generate(name, device=DEVICE)
        return {"nodes": graph.nodes, "edges_in_all": graph.edges} | about(graph)
    try:
        if rung.startswith("pyg"):
            geometric.name_sampler()
        placed = _placed(rung, name)
        if DEVICE == "cuda":
            torch.cuda.synchronize()
        made = {"generation_s": time.perf_counter() - start, "nodes": placed.graph.nodes}
        return made | _measured(rung, placed, epochs) | {"small_test_accuracy": small_accuracy(rung, small_epochs)}
    except GraphError as error:
        return {"error": str(error)}


def _placed(rung: str, name: str) -> Placed:
    """The graph where the rung keeps it."""
    if rung == "gpu-host":
        graph = synthetic.generate(name, device=DEVICE, features_on="pinned")
        return Placed(graph, int(CACHE_GIB * 2**30 / (graph.features.shape[1] * graph.features.element_size())))
    graph = synthetic.generate(name, device=DEVICE)
    if rung in ON_HOST:
        graph = Graph(**{key: values.cpu() for key, values in graph.arrays().items()}, classes=graph.classes)
    elif DEVICE == "cpu":
        graph.features = graph.features.float()
    elif graph.features.dtype != torch.bfloat16:
        graph.features = graph.features.to(torch.bfloat16)
    return Placed(graph)


def route_of(rung: str, placed: Placed) -> Any:
    named = "gpu-graph" if rung == "gpu-host" else rung
    asked = _asked(named)
    torch.manual_seed(0)
    model = rungs.model_of(asked, placed, None, DEVICE)
    return rungs.route(asked, placed, model, DEVICE, named, None, Console(stderr=True))


def _measured(rung: str, placed: Placed, epochs: int) -> dict[str, Any]:
    graph = placed.graph
    batches = -(-len(graph.train) // BATCH)
    limit = min(batches, HOST_BATCHES) if rung in ON_HOST else batches
    records, start = [], time.perf_counter()
    with route_of(rung, placed) as way:
        found: dict[str, Any] = {"prepare_s": time.perf_counter() - start}
        trace = SpanTrace(DEVICE)
        for number in range(epochs + 1):  # every one in another order and with other neighbours
            ids = training.order(graph, 0, number)[: limit * BATCH]
            records.append(way.run(ids, number, training.nothing, trace if number == epochs else None))
        timed = records[1:]
        best = min(timed, key=lambda record: record.seconds)
        found |= {
            "epoch_s": [record.seconds * batches / limit for record in timed],
            "extrapolated": limit < batches,
            "batches": batches,
            "edges": best.edges * batches / limit,
            "nodes_read": getattr(best, "nodes", 0) * batches / limit or None,
            "row_bytes": graph.features.shape[1] * graph.features.element_size(),
            "losses": [record.loss for record in records],
            "fallbacks": [getattr(record, "fallbacks", 0) for record in records],
            "cache_hits": getattr(best, "cache_hits", None),
            "stages_s": {stage: spent * batches / limit for stage, spent in getattr(best, "stages_s", {}).items()},
        }
        if way.trainer:
            found |= _of_trainer(way.trainer, best, batches)
        captured = way.trainer is not None and way.trainer.captured
        spans = report.window(way.trainer.spans() if captured else trace.finish())
        found["spans"] = [(span.lane, span.stage, span.begin_s, span.end_s) for span in spans]
    del way
    gc.collect()  # of PyTorch Geometric's copy of the neighbours, 26 GB in a cycle of references, before there is another
    if rung in ("salient", "pyg"):
        found["sampler"] = _sampler_alone(rung, graph)
    return found


def _of_trainer(trainer: Any, best: Any, batches: int) -> dict[str, Any]:
    """What only a rung has that keeps the graph on the device."""
    found: dict[str, Any] = {"capacities": trainer.sampler.capacities}
    graph = trainer.graph
    if DEVICE == "cuda":
        wide = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
        copy = _seconds(lambda: wide.clone())
        floor = floor_bytes(trainer, best.edges / best.batches) * best.batches / (2 * (1 << 30) / copy)
        found |= {
            "floor_s": floor,
            "share_of_floor": floor / best.seconds,
            "peak_gib": torch.cuda.max_memory_allocated() / 2**30,
        }
        del wide
    if trainer.captured:
        found["stages_us"] = trainer.stages_us()
        found["stages_s"] = {stage: spent * batches / 1e6 for stage, spent in found["stages_us"].items()}
    found["valid_accuracy"] = trainer.accuracy(graph.valid[: 20 * BATCH], FANOUTS)
    start = time.perf_counter()
    found["test_accuracy_20_20_20"] = trainer.accuracy(graph.test, [20, 20, 20])
    found["inference_s_20_20_20"] = time.perf_counter() - start
    return found


def small_accuracy(rung: str, epochs: int) -> float:
    """Test accuracy after so many epochs on the labelled small graph, drawn on the CPU, so that all rungs have the same."""
    graph = synthetic.generate("small")
    if rung not in ON_HOST:
        arrays = {name: values.to(DEVICE) for name, values in graph.arrays().items()}
        arrays["features"] = graph.features.to(torch.bfloat16 if DEVICE == "cuda" else torch.float32)
        arrays["features"] = arrays["features"].pin_memory() if rung == "gpu-host" else arrays["features"].to(DEVICE)
        graph = Graph(**arrays, classes=graph.classes)
    with route_of(rung, Placed(graph, graph.nodes // 10 if rung == "gpu-host" else None)) as way:
        for number in range(epochs):
            way.run(training.order(graph, 0, number), number, training.nothing, None)
        return way.accuracy(graph.test, training.nothing)


def about(graph: Graph) -> dict[str, Any]:
    """What a batch holds at (10,10,10) and (15,10,5), degrees, and what the device's memory does at random."""
    kernels = Kernels("cuda")
    found: dict[str, Any] = {"train": len(graph.train)}
    degrees = graph.rowptr[1:] - graph.rowptr[:-1]
    some = degrees[torch.randint(graph.nodes, (1 << 20,), device="cuda")].float()
    found["degree_quantiles"] = {q: float(some.quantile(q)) for q in (0.1, 0.25, 0.5, 0.75, 0.9, 0.99)}
    found["degree_mean"], found["degree_max"] = graph.edges / graph.nodes, int(degrees.max())
    for fanouts in ([10, 10, 10], FANOUTS):
        sampler = Sampler(graph, kernels, fanouts, BATCH, fused=False)
        nodes, edges = [], []
        for number in range(10):
            seeds = pad_to(graph.train[number * BATCH : (number + 1) * BATCH], BATCH)
            batch = sampler.exact(seeds, torch.arange(3, device="cuda") + number * SEEDS_A_BATCH)
            nodes.append(batch.totals.tolist())
            edges.append([int((picked >= 0).sum()) for picked in batch.picked])
        key = " ".join(map(str, fanouts))
        found[f"nodes after each hop ({key})"] = [sum(column) / len(nodes) for column in zip(*nodes, strict=True)]
        found[f"edges of each hop ({key})"] = [sum(column) / len(edges) for column in zip(*edges, strict=True)]
    found |= _rates(graph, kernels, found)
    return found


def _rates(graph: Graph, kernels: Kernels, found: dict[str, Any]) -> dict[str, Any]:
    """Measured: a copy, random rows and random sectors of 32 bytes by torch, and our kernels on a batch's sizes."""
    rows, middle = (int(n) for n in found["nodes after each hop (15 10 5)"][::-1][:2])
    row_bytes = graph.features.shape[1] * 2
    ids = torch.randint(graph.nodes, (rows,), device="cuda", dtype=torch.int32)
    wide = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    sectors = graph.features.view(-1, 16)
    at = torch.randint(len(sectors), (1 << 22,), device="cuda")
    frontier = torch.randint(2_200_000, (middle,), device="cuda", dtype=torch.int32).clamp_max_(graph.nodes - 1)
    picked = torch.empty(middle, FANOUTS[-1], dtype=torch.int32, device="cuda")
    seed = torch.zeros(1, dtype=torch.int64, device="cuda")
    calls = {
        "copy_gbps": (lambda: wide.clone(), 2 * wide.numel()),
        "index_select_gbps": (lambda: graph.features.index_select(0, ids), 2 * rows * row_bytes),
        "gather_rows_gbps": (lambda: kernels.gather_rows(graph.features, ids), 2 * rows * row_bytes),
        "random_sectors_gbps": (lambda: sectors.index_select(0, at), 2 * 32 * len(at)),
        "sample_neighbors_gbps": (
            lambda: kernels.sample_neighbors(graph.rowptr, graph.col, frontier, seed, picked),
            middle * (32 + 4 + FANOUTS[-1] * (32 + 4)),
        ),
        "gather_mean_gbps": (
            lambda: kernels.gather_mean(graph.features, picked), middle * (FANOUTS[-1] + 1) * row_bytes
        ),
    }  # fmt: skip
    return {name: size / _seconds(call) / 1e9 for name, (call, size) in calls.items()}


def _seconds(call: Any, repeat: int = 20) -> float:
    call()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    for _ in range(repeat):
        call()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1e3 / repeat


def floor_bytes(trainer: Any, edges: float) -> float:
    """Bytes that a fused training step must move in memory, bfloat16 activations, each tensor read or written once a use.

    Sizes are the calibrated ones less their margin; hop h has rows[h] rows and edges[h] neighbours.
    """
    known = trainer.sampler.capacities
    if not known:
        sampler = Sampler(trainer.graph, trainer.kernels, FANOUTS, BATCH, fused=True)
        known = sampler.calibrate(trainer.graph.train)
    seeds, first, second = known[0], known[1] / MARGIN, known[2] / MARGIN
    in_hops = [first, second, edges - first - second]  # about: a fresh neighbour each in the first two hops
    row, hidden = trainer.graph.features.shape[1] * 2, rungs.HIDDEN * 2
    sampling = sum(in_hops) * 32 + (seeds + first + second) * 32
    layer_1 = (in_hops[2] + second) * row + 2 * second * row + 2 * second * row + second * hidden
    layer_2 = (in_hops[1] + first) * hidden + 2 * first * hidden + 2 * first * hidden + first * hidden
    backward = 3 * second * hidden + 2 * second * row + second * rungs.HIDDEN * 4 + 2 * in_hops[1] * rungs.HIDDEN * 4
    return sampling + layer_1 + layer_2 + backward


def _sampler_alone(rung: str, graph: Graph, batches: int = 20) -> dict[str, float]:
    """Million edges that one core samples in a second of its own time, without slicing: ours, or what samples for PyG."""
    ids = graph.train[: BATCH * batches]
    if rung == "salient":
        with BatchLoader(graph, FANOUTS, BATCH, threads=1, with_features=False) as loader:
            for _ in loader.epoch(ids, 1):  # memory is touched for the first time
                pass
            edges = sum(batch.edges for batch in loader.epoch(ids, 0))
            start = time.process_time()
            for _ in loader.epoch(ids, 0):  # the same batches, not counted
                pass
            seconds = time.process_time() - start
        return {"million_edges_a_core_second": edges / seconds / 1e6}
    from torch_geometric.sampler import NodeSamplerInput

    torch.set_num_threads(1)
    sampler = geometric.sampler_of(graph, FANOUTS)
    edges, start = 0, time.process_time()
    for seeds in ids.split(BATCH):
        edges += len(sampler.sample_from_nodes(NodeSamplerInput(None, seeds)).row)
    return {"million_edges_a_core_second": edges / (time.process_time() - start) / 1e6}


if __name__ == "__main__":
    main()
