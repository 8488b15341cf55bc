"""The ladder of mini-batch systems on one machine: seconds an epoch, edges a second, share of the memory floor, accuracy.

    python -m benchmarks.minibatch_ladder [--graph papers100M-like] [--rungs about gpu-graph ...] [--epochs 2] [--out FOLDER]

Every rung runs in a process of its own that makes the graph anew from its seed, so that one that fails, or takes the memory,
costs no other. `about` counts what a batch holds and what the device's memory does; the others are RUNGS of
minibatch/rungs.py. Writes FOLDER/ladder.json ($OUT where it is set) after every rung.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from minibatch import models, synthetic, training
from minibatch.batches import SEEDS_A_BATCH, Loader, padded_to
from minibatch.graphs import Graph
from minibatch.ops import Kernels
from minibatch.placing import Placed
from minibatch.resident import Sampler
from minibatch.rungs import HIDDEN, RUNGS, trainer_of

ORDER = ("about", "gpu-graph", "gpu-compiled", "gpu-fused", "gpu", "gpu-plain", "salient", "pyg")
LIMIT_S = {"about": 150, "salient": 240, "pyg": 240}
"""Of one rung; 150 s otherwise."""
SALIENT_BATCHES = 100
"""Of the host rungs: their epoch is these batches' pace times its number of batches, and the record says so."""
FANOUTS, BATCH = [15, 10, 5], 1024
SMALL_EPOCHS = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graph", default="papers100M-like", choices=synthetic.RECIPES)
    parser.add_argument("--rungs", nargs="+", default=list(ORDER), choices=ORDER)
    parser.add_argument("--epochs", type=int, default=2, help="timed, after one that is not")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "benchmarks")))
    parser.add_argument("--one", choices=ORDER, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        print("RESULT " + json.dumps(one(asked.one, asked.graph, asked.epochs)), flush=True)
        return
    found: dict[str, Any] = {
        "graph": asked.graph,
        "device": torch.cuda.get_device_name(),
        "fanouts": FANOUTS,
        "batch": BATCH,
    }
    for rung in asked.rungs:
        found[rung] = _in_a_process(rung, asked)
        print(f"{rung}: {json.dumps(found[rung], indent=1)}", flush=True)
        asked.out.mkdir(parents=True, exist_ok=True)
        (asked.out / "ladder.json").write_text(json.dumps(found, indent=1) + "\n")
    _table(found)


def _in_a_process(rung: str, asked: argparse.Namespace) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.minibatch_ladder", "--one", rung, "--graph", asked.graph]
    command += ["--epochs", str(asked.epochs)]
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


def one(rung: str, name: str, epochs: int) -> dict[str, Any]:
    start = time.perf_counter()
    if rung == "pyg" and not (importlib.util.find_spec("pyg_lib") or importlib.util.find_spec("torch_sparse")):
        return {"error": "PyTorch Geometric's NeighborLoader needs pyg-lib or torch-sparse, and neither is here"}
    graph = synthetic.generate(name, device="cuda")
    torch.cuda.synchronize()
    made = {"generation_s": time.perf_counter() - start, "nodes": graph.nodes, "edges": graph.edges}
    if rung == "about":
        return made | about(graph)
    if rung == "salient":
        return made | salient(graph)
    if rung == "pyg":
        return made | pyg(graph)
    return made | resident(rung, graph, epochs) | small_accuracy(rung)


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
            seeds = padded_to(graph.train[number * BATCH : (number + 1) * BATCH], BATCH)
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


def resident(rung: str, graph: Graph, epochs: int) -> dict[str, Any]:
    torch.manual_seed(0)
    model = models.make("sage", graph.features.shape[1], HIDDEN, graph.classes, len(FANOUTS)).cuda()
    trainer = trainer_of(rung, Placed(graph), model, FANOUTS, BATCH)
    start = time.perf_counter()
    trainer.prepare()
    torch.cuda.synchronize()
    found: dict[str, Any] = {"prepare_s": time.perf_counter() - start, "capacities": trainer.sampler.capacities}
    records = []
    for number in range(epochs + 1):  # every one in another order and with other neighbours
        ids = training.order(graph, 0, number).cuda()
        torch.cuda.synchronize()
        records.append(trainer.epoch(ids, number))
    timed = records[1:]
    best = min(timed, key=lambda record: record.seconds)
    wide = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    copy = _seconds(lambda: wide.clone())
    floor = floor_bytes(trainer, best.edges / best.batches) * best.batches / (2 * (1 << 30) / copy)
    found |= {
        "epoch_s": [record.seconds for record in timed],
        "batches": best.batches,
        "edges_a_batch": best.edges / best.batches,
        "million_edges_a_second": best.edges / best.seconds / 1e6,
        "fallbacks": [record.fallbacks for record in records],
        "losses": [record.loss for record in records],
        "floor_s": floor,
        "share_of_floor": floor / best.seconds,
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30,
    }
    if trainer.captured:
        found["stages_us"] = trainer.stages_us()
    found["valid_accuracy"] = trainer.accuracy(graph.valid[: 20 * BATCH], FANOUTS, BATCH)
    start = time.perf_counter()
    found["test_accuracy_20_20_20"] = trainer.accuracy(graph.test, [20, 20, 20], BATCH)
    found["inference_s_20_20_20"] = time.perf_counter() - start
    return found


def floor_bytes(trainer: Any, edges: float) -> float:
    """Bytes that a fused training step must move in memory, bfloat16 activations, each tensor read or written once a use.

    Sizes are the calibrated ones less their margin; hop h has rows[h] rows and edges[h] neighbours.
    """
    from minibatch.resident import MARGIN

    known = trainer.sampler.capacities
    if not known:
        sampler = Sampler(trainer.graph, trainer.kernels, FANOUTS, BATCH, fused=True)
        known = sampler.calibrate(trainer.graph.train)
    seeds, first, second = known[0], known[1] / MARGIN, known[2] / MARGIN
    in_hops = [first, second, edges - first - second]  # about: a fresh neighbour each in the first two hops
    row, hidden = trainer.graph.features.shape[1] * 2, HIDDEN * 2
    sampling = sum(in_hops) * 32 + (seeds + first + second) * 32
    layer_1 = (in_hops[2] + second) * row + 2 * second * row + 2 * second * row + second * hidden
    layer_2 = (in_hops[1] + first) * hidden + 2 * first * hidden + 2 * first * hidden + first * hidden
    backward = 3 * second * hidden + 2 * second * row + second * HIDDEN * 4 + 2 * in_hops[1] * HIDDEN * 4
    return sampling + layer_1 + layer_2 + backward


def small_accuracy(rung: str) -> dict[str, Any]:
    """Test accuracy after SMALL_EPOCHS epochs on the labelled small graph."""
    graph = synthetic.generate("small")
    moved = {name: values.cuda() for name, values in graph.arrays().items()}
    moved["features"] = moved["features"].to(torch.bfloat16)
    resident_graph = Graph(**moved, classes=graph.classes)
    torch.manual_seed(0)
    model = models.make("sage", graph.features.shape[1], HIDDEN, graph.classes, len(FANOUTS)).cuda()
    trainer = trainer_of(rung, Placed(resident_graph), model, FANOUTS, BATCH)
    trainer.prepare()
    for number in range(SMALL_EPOCHS):
        trainer.epoch(training.order(graph, 0, number).cuda(), number)
    return {"small_test_accuracy": trainer.accuracy(resident_graph.test, FANOUTS, BATCH)}


def salient(on_device: Graph) -> dict[str, Any]:
    """The CPU route with features and graph in host memory, batches copied one ahead."""
    start = time.perf_counter()
    arrays = {name: values.cpu() for name, values in on_device.arrays().items()}
    graph = Graph(**arrays, classes=on_device.classes)
    found: dict[str, Any] = {"to_host_s": time.perf_counter() - start}
    torch.manual_seed(0)
    model = models.make("sage", graph.features.shape[1], HIDDEN, graph.classes, len(FANOUTS)).cuda()
    model.aggregate = Kernels("cuda").self_and_mean
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003, fused=True)
    with Loader(graph, FANOUTS, BATCH, pin=True) as loader:
        found["threads"] = len(os.sched_getaffinity(0))
        for number in range(2):
            ids = training.order(graph, 0, number)[: BATCH * SALIENT_BATCHES]
            record = training.train_epoch(model, optimizer, loader, ids, number, "cuda")
        found["sampler"] = _sampler_alone(graph)
    batches = -(-len(graph.train) // BATCH)
    pace = record.seconds / record.batches
    return found | {
        "ms_a_batch": pace * 1e3,
        "epoch_s_extrapolated": pace * batches,
        "waiting_share": record.stages_s["waiting"] / record.seconds,
        "nodes_a_batch": record.nodes / record.batches,
    }


def _sampler_alone(graph: Graph) -> dict[str, float]:
    """Million edges a second of one thread and of all, without slicing."""
    found = {}
    for threads in (1, len(os.sched_getaffinity(0))):
        with Loader(graph, FANOUTS, BATCH, threads=threads, with_features=False) as loader:
            edges, start = 0, time.perf_counter()
            for batch in loader.epoch(graph.train[: BATCH * (10 if threads == 1 else 100)]):
                edges += batch.edges
            seconds = time.perf_counter() - start
        found[f"{threads} threads, million edges a second"] = edges / seconds / 1e6
    return found


def pyg(on_device: Graph) -> dict[str, Any]:
    """PyTorch Geometric's NeighborLoader and SAGEConv, 16 workers, pinned; its semantics expand the newest nodes only."""
    from torch_geometric.data import Data
    from torch_geometric.loader import NeighborLoader
    from torch_geometric.nn import GraphSAGE
    from torch_geometric.sampler import NeighborSampler

    graph = {name: values.cpu() for name, values in on_device.arrays().items()}
    data = Data(x=graph["features"], y=graph["labels"], edge_index=torch.empty(2, 0, dtype=torch.int64))
    data.num_nodes = on_device.nodes
    sampler = NeighborSampler(data, num_neighbors=FANOUTS)
    sampler.colptr, sampler.row, sampler.perm = graph["rowptr"], graph["col"].long(), None
    loader = NeighborLoader(
        data, num_neighbors=FANOUTS, input_nodes=graph["train"][: BATCH * SALIENT_BATCHES], batch_size=BATCH,
        neighbor_sampler=sampler, num_workers=min(16, len(os.sched_getaffinity(0))), pin_memory=True,
    )  # fmt: skip
    model = GraphSAGE(data.x.shape[1], HIDDEN, 3, on_device.classes, dropout=0.5).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003, fused=True)
    start, done = time.perf_counter(), 0
    for batch in loader:
        if done == 10:  # workers have started
            torch.cuda.synchronize()
            start = time.perf_counter()
        batch = batch.to("cuda", non_blocking=True)
        out = model(batch.x.float(), batch.edge_index)[: batch.batch_size]
        loss = torch.nn.functional.cross_entropy(out, batch.y[: batch.batch_size])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        done += 1
    torch.cuda.synchronize()
    pace = (time.perf_counter() - start) / (done - 10)
    return {"ms_a_batch": pace * 1e3, "epoch_s_extrapolated": pace * -(-len(graph["train"]) // BATCH)}


def _table(found: dict[str, Any]) -> None:
    print(f"\n{found['graph']} on {found['device']}, fanout {FANOUTS}, batch {BATCH}")
    for rung in (name for name in ORDER if name in found and name != "about"):
        record = found[rung]
        if "error" in record:
            print(f"{rung:<10} failed: {record['error']}")
        elif "epoch_s" in record:
            print(
                f"{rung:<10} {min(record['epoch_s']):.3f} s/epoch, {record['million_edges_a_second']:.0f} M edges/s, "
                f"{record['share_of_floor']:.2f} of the floor, small graph {record['small_test_accuracy']:.3f}"
            )
        else:
            print(
                f"{rung:<10} {record['epoch_s_extrapolated']:.1f} s/epoch (extrapolated from {SALIENT_BATCHES} batches)"
            )
    print(f"rungs: {'; '.join(f'{name}: {what}' for name, what in RUNGS.items())}")


if __name__ == "__main__":
    main()
