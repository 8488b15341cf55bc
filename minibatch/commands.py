"""What `run.py epoch` and `run.py infer` do."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from minibatch import graphs, models, ops, ranks, synthetic, training, trial
from minibatch.batches import Loader, require_fanouts
from minibatch.graphs import Graph, GraphError
from minibatch.native import cache_folder
from minibatch.ops import Kernels
from minibatch.resident import Trainer

HIDDEN = 256
HIDDEN_ON_CPU = 64
SPARE = 0.85
"""Share of free memory that a graph may take; batches and weights need the rest."""
MADE_ON_CPU_BYTES = 2 << 30
RUNGS = {
    "salient": "native CPU threads sample and slice into reused (pinned) buffers; a stream copies one batch ahead",
    "gpu-plain": "graph and features on the device, plain kernels, the host waits for the size of every hop",
    "gpu": "the same with the production kernels",
    "gpu-fused": "last hop gathered and averaged at once; padded sizes, no synchronisation with the host",
    "gpu-graph": "the same as a CUDA graph, the next batch sampled beside the computation on this one",
    "gpu-compiled": "the same with ReLU and dropout compiled into one kernel by torch.compile",
}


def epoch(asked: argparse.Namespace) -> int:
    """Train for --epochs epochs; prints accuracy, writes a checkpoint after each."""
    require_fanouts(asked.fanout)
    device, rung = _device_and_rung(asked)
    count = asked.gpus or asked.ranks
    path = _checkpoint_path(asked)
    if count > 1 and not ranks.started():
        return ranks.start([str(Path(sys.argv[0]).resolve()), *asked.words], count, path)
    if ranks.started():
        ranks.join(device)
    try:
        code = _train(asked, device, rung, path)
        ranks.meet()
    except RuntimeError as error:
        if ranks.started() and re.search("gloo|NCCL|peer", str(error)):
            raise GraphError(f"rank {ranks.rank()} has lost another") from None
        raise
    finally:
        ranks.leave()
    if ranks.started():
        ranks.end(code)
    return code


def _train(asked: argparse.Namespace, device: str, rung: str, path: Path) -> int:
    first = ranks.rank() == 0
    console = Console(highlight=False, quiet=not first or asked.json, stderr=True)
    resident = rung != "salient"
    graph = _graph(asked, device, console, resident=resident)
    torch.manual_seed(asked.seed)
    state = training.load_checkpoint(path) if asked.resume else None
    model = _model(asked, graph, state, device)
    done = int(state["epoch"]) + 1 if state else 0
    torch.manual_seed(asked.seed + ranks.rank())  # weights alike, dropout not
    console.print(
        f"{asked.graph}: {graph.nodes:,} nodes, {graph.edges:,} edges; {asked.model}, fanout "
        f"{' '.join(map(str, asked.fanout))}, {ranks.ranks()} x {asked.batch} seeds; {device}, rung {rung}: {RUNGS[rung]}"
    )
    make = _resident if resident else _salient
    records = []
    with make(asked, graph, model, device, rung, state, console) as (run, accuracy, optimizer):
        for number in range(done, done + asked.epochs):
            ids = training.order(graph, asked.seed, number, ranks.rank(), ranks.ranks())
            with _bar(console, f"epoch {number + 1}") as say:
                # Every rank samples with numbers of its own: its epochs count from another place.
                record = replace(run(ids, number * ranks.ranks() + ranks.rank(), say), number=number)
            if first:
                with _bar(console, "validation") as say:
                    valid = accuracy(graph.valid, say)
                saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                about = {
                    "kind": asked.model,
                    "fanout": asked.fanout,
                    "graph": asked.graph,
                    "hidden": int(state["hidden"]) if state else _hidden(asked, device),
                }
                training.save_checkpoint(path, **saved, **about, epoch=number, accuracy=valid)
                records.append(asdict(record) | {"valid_accuracy": valid})
                console.print(_line(record, valid, asked.batch))
    if first:
        chance = float(torch.bincount(graph.labels[graph.valid].cpu()).max()) / len(graph.valid)
        console.print(f"chance is {chance:.3f} (the most frequent class); checkpoint: {path}")
        if asked.json:
            print(json.dumps({"graph": asked.graph, "rung": rung, "device": device, "epochs": records}, indent=1))
    return 0


def _line(record: Any, valid: float, batch: int) -> str:
    rate = f", {record.edges / record.seconds / 1e6:.1f} million edges/s" if record.edges else ""
    stages = "".join(f", {name} {seconds:.2f} s" for name, seconds in getattr(record, "stages_s", {}).items())
    missed = f", {record.fallbacks} batches made again" if getattr(record, "fallbacks", 0) else ""
    return (
        f"epoch {record.number + 1}: {record.seconds:.2f} s, {record.batches} batches of {batch}, loss {record.loss:.3f}, "
        f"validation accuracy {valid:.3f}{rate}{stages}{missed}"
    )


@contextlib.contextmanager
def _salient(
    asked: argparse.Namespace, graph: Graph, model: torch.nn.Module, device: str, rung: str, state: dict | None,
    console: Console,
) -> Iterator[tuple[Callable, Callable, torch.optim.Optimizer]]:  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=asked.lr)
    if state:
        optimizer.load_state_dict(state["optimizer"])
    trained: torch.nn.Module = model
    if ranks.started():
        trained = torch.nn.parallel.DistributedDataParallel(model)
    threads = asked.threads or max(1, len(os.sched_getaffinity(0)) // ranks.ranks())
    options = {"threads": threads, "seed": asked.seed, "pin": device == "cuda"}
    with Loader(graph, asked.fanout, asked.batch, **options) as loader:

        def run(ids: torch.Tensor, number: int, say: training.Say) -> training.Epoch:
            return training.train_epoch(trained, optimizer, loader, ids, number, device, say)

        def accuracy(ids: torch.Tensor, say: training.Say) -> float:
            return training.sampled_accuracy(model, loader, ids, device, say)

        yield run, accuracy, optimizer


@contextlib.contextmanager
def _resident(
    asked: argparse.Namespace, graph: Graph, model: torch.nn.Module, device: str, rung: str, state: dict | None,
    console: Console,
) -> Iterator[tuple[Callable, Callable, torch.optim.Optimizer]]:  # fmt: skip
    with console.status("compiling kernels, calibrating sizes"):
        trainer = trainer_of(rung, graph, model, asked.fanout, asked.batch, asked.lr, asked.seed, ranks.ranks())
        if state:
            trainer.optimizer.load_state_dict(state["optimizer"])
        trainer.prepare()

    def run(ids: torch.Tensor, number: int, say: training.Say) -> Any:
        record = trainer.epoch(ids.to(device), number)
        say(record.batches, record.batches)
        return record

    yield run, lambda ids, say: trainer.accuracy(ids, asked.fanout, asked.batch), trainer.optimizer


def trainer_of(
    rung: str, graph: Graph, model: torch.nn.Module, fanouts: list[int], batch: int, lr: float = 0.003, seed: int = 0,
    count: int = 1, sources: Mapping[str, str] | None = None,
) -> Trainer:  # fmt: skip
    """The resident trainer of a rung, not prepared yet."""
    device = graph.col.device.type
    kernels = Kernels(device, baseline="plain" if rung == "gpu-plain" else "production", sources=sources)
    captured = rung in ("gpu-graph", "gpu-compiled")
    padded = captured or rung == "gpu-fused"
    if rung == "gpu-compiled" and isinstance(model, models.Sage):
        model.activate = torch.compile(models.activate, dynamic=False)
    return Trainer(
        graph, model, kernels, fanouts, batch, lr=lr, fused=padded, padded=padded, captured=captured,
        seed=seed, ranks=count,
    )  # fmt: skip


def with_sources(asked: argparse.Namespace, sources: dict[str, tuple[str, str]]) -> int:
    """Whether epochs become faster with other kernels; sources: kernel -> (device that it is for, text)."""
    require_fanouts(asked.fanout)
    device, rung = _device_and_rung(asked)
    if asked.gpus > 1 or asked.ranks > 1:
        raise GraphError("--with compares epochs of one process; leave --gpus and --ranks out")
    if rung == "salient":
        rung = "gpu-fused" if asked.rung is None else rung
    if rung in ("salient", "gpu-plain"):
        raise GraphError(f"--rung {rung} does not run the kernels of runs; take gpu, gpu-fused or gpu-graph")
    for kernel, (made_for, _) in sources.items():
        if kernel not in ops.NAMES:
            raise GraphError(f"an epoch has no kernel {kernel}; it has {', '.join(ops.NAMES)}")
        if made_for != device:
            raise GraphError(f"the run's {kernel} is for device {made_for}, and this epoch runs on {device}")
    console = Console(highlight=False, quiet=asked.json, stderr=True)
    graph = _graph(asked, device, console, resident=True)

    def make(swapped: Mapping[str, str]) -> Trainer:
        torch.manual_seed(asked.seed)
        model = _model(asked, graph, None, device)
        return trainer_of(rung, graph, model, asked.fanout, asked.batch, asked.lr, asked.seed, sources=swapped)

    with _bar(console, "pairs of epochs") as say:
        found = trial.run(make, {kernel: text for kernel, (_, text) in sources.items()}, asked.seed, say=say)
    low, high = found.speedup.low, found.speedup.high
    console.print(
        f"{asked.graph}, {rung}, with {', '.join(found.kernels)}: epochs are {found.comparison}, "
        f"{found.speedup.median:.3f}x ({low:.3f} to {high:.3f}): {found.base_s:.3f} s and {found.swapped_s:.3f} s; "
        f"validation accuracy {found.base_accuracy:.3f} and {found.swapped_accuracy:.3f}"
    )
    if asked.json:
        print(json.dumps(asdict(found) | {"speedup": found.speedup.model_dump()}, indent=1))
    return 0


def infer(asked: argparse.Namespace) -> int:
    """Accuracy on the test ids of the checkpoint's model: from sampled and, for GraphSAGE, from all neighbours."""
    require_fanouts(asked.fanout)
    state = training.load_checkpoint(_checkpoint_path(asked))
    if len(state["fanout"]) != len(asked.fanout):
        raise GraphError(f"the model has {len(state['fanout'])} layers, and --fanout names {len(asked.fanout)}")
    console = Console(highlight=False, quiet=asked.json, stderr=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    asked.model = state["kind"]
    resident = device == "cuda" and asked.model == "sage"
    graph = _graph(asked, device, console, resident=resident)
    model = _model(asked, graph, state, device)
    found: dict[str, Any] = {
        "graph": asked.graph,
        "model": asked.model,
        "fanout": asked.fanout,
        "nodes": len(graph.test),
    }
    start = time.perf_counter()
    with _bar(console, "sampled") as say:
        found["sampled_accuracy"] = _sampled(asked, graph, model, device, resident, say)
    found["sampled_s"] = time.perf_counter() - start
    lines = [
        f"sampled ({' '.join(map(str, asked.fanout))}): {found['sampled_accuracy']:.4f} in {found['sampled_s']:.2f} s"
    ]
    free = torch.cuda.mem_get_info()[0] if resident else _available_bytes()
    layers_bytes = 2 * graph.nodes * int(state["hidden"]) * (2 if resident else 4)  # one layer read, one written
    if layers_bytes > SPARE * free:
        lines.append(f"all neighbours: left out, {layers_bytes / 2**30:.0f} GiB of hidden rows do not fit here")
    elif isinstance(model, models.Sage):
        start = time.perf_counter()
        with _bar(console, "all neighbours") as say:
            placed = model.to(graph.col.device)
            found["full_accuracy"] = training.full_accuracy(placed, graph, graph.test, say)
        found["full_s"] = time.perf_counter() - start
        lines.append(f"all neighbours: {found['full_accuracy']:.4f} in {found['full_s']:.2f} s")
    for line in lines:
        console.print(f"test accuracy, {line}")
    if asked.json:
        print(json.dumps(found, indent=1))
    return 0


def _sampled(
    asked: argparse.Namespace, graph: Graph, model: torch.nn.Module, device: str, resident: bool, say: training.Say
) -> float:
    """Test accuracy from sampled neighbours, on the device where the graph is."""
    if resident:
        trainer = trainer_of("gpu-fused", graph, model, asked.fanout, asked.batch, seed=asked.seed)
        return trainer.accuracy(graph.test, asked.fanout, asked.batch)
    options = {"threads": asked.threads, "seed": asked.seed, "pin": device == "cuda"}
    with Loader(graph, asked.fanout, asked.batch, **options) as loader:
        return training.sampled_accuracy(model, loader, graph.test, device, say)


def _device_and_rung(asked: argparse.Namespace) -> tuple[str, str]:
    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if asked.gpus > there:
        raise GraphError(f"--gpus {asked.gpus}: there are {there}; --ranks N trains with N processes on the CPU")
    if asked.gpus and asked.ranks > 1:
        raise GraphError("--gpus and --ranks both say how many processes train; give one")
    device = "cuda" if there and asked.ranks == 1 else "cpu"
    if asked.ranks > 1 and there:
        raise GraphError("--ranks is for machines without a GPU; take --gpus")
    rung = asked.rung or (
        "gpu-graph" if device == "cuda" and asked.model == "sage" and asked.features != "host" else "salient"
    )
    if asked.features == "hbm" and rung == "salient":
        raise GraphError("--rung salient keeps features in host memory; take a gpu rung for --features hbm")
    if asked.features == "host" and rung != "salient":
        raise GraphError(f"--rung {rung} keeps features on the device; take --rung salient for --features host")
    if rung in ("gpu-graph", "gpu-compiled") and device == "cpu":
        raise GraphError(f"--rung {rung} needs a GPU; take gpu-fused to run the same steps on the CPU, or salient")
    if rung != "salient" and asked.model != "sage":
        raise GraphError(f"--model {asked.model} is trained by --rung salient only; our kernels are GraphSAGE's")
    return device, rung


def _graph(asked: argparse.Namespace, device: str, console: Console, *, resident: bool) -> Graph:
    """A graph's folder, or a synthetic one: a large one made on the GPU where there is one, others once and then mapped.

    The two kinds of device draw differently, so a name must not mean one graph here and another there on one machine.
    """
    if asked.graph not in synthetic.RECIPES:
        folder = Path(asked.graph)
        if not folder.is_dir():
            raise GraphError(
                f"there is no graph {asked.graph!r}; there is {', '.join(synthetic.RECIPES)}, or a graph's folder"
            )
        return _on(graphs.load(folder), device, resident)
    needed = synthetic.bytes_of(asked.graph)
    on_gpu = torch.cuda.is_available() and needed > MADE_ON_CPU_BYTES
    free = torch.cuda.mem_get_info()[0] if on_gpu else _available_bytes()
    folder = cache_folder() / "graphs" / f"{asked.graph}-{synthetic.VERSION}"
    if needed > SPARE * free and (on_gpu or not folder.exists()):
        raise GraphError(
            f"{asked.graph} takes {needed / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB are free on the "
            f"{'GPU' if on_gpu else 'CPU'}: take a smaller graph, such as papers10M-like or small"
        )
    with console.status(f"making {asked.graph}"):
        if on_gpu:
            return _on(synthetic.generate(asked.graph, device="cuda"), device, resident)
        if not folder.exists():
            graphs.save(synthetic.generate(asked.graph), folder, same=True)  # every rank makes it
    return _on(graphs.load(folder), device, resident)


def _available_bytes() -> int:
    """Host memory that can be had without swapping."""
    found = re.search(r"^MemAvailable:\s*(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    return int(found[1]) << 10 if found else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _on(graph: Graph, device: str, resident: bool) -> Graph:
    """Where the rung keeps it: on the device with features in the dtype that is computed in, or in host memory."""
    place = device if resident else "cpu"
    moved = {name: values.to(place) for name, values in graph.arrays().items()}
    if resident:
        moved["features"] = moved["features"].to(torch.bfloat16 if device == "cuda" else torch.float32)
    return Graph(**moved, classes=graph.classes)


def _hidden(asked: argparse.Namespace, device: str) -> int:
    return asked.hidden or (HIDDEN if device == "cuda" else HIDDEN_ON_CPU)


def _model(asked: argparse.Namespace, graph: Graph, state: dict | None, device: str) -> torch.nn.Module:
    hidden = int(state["hidden"]) if state else _hidden(asked, device)
    model = models.make(asked.model, graph.features.shape[1], hidden, graph.classes, len(asked.fanout))
    if isinstance(model, models.Sage):
        model.aggregate = Kernels(device).self_and_mean  # on a CPU a third of the time of torch's bag of embeddings
    if state:
        if state["kind"] != asked.model:
            raise GraphError(f"the checkpoint holds a {state['kind']}, not a {asked.model}")
        try:
            model.load_state_dict(state["model"])
        except RuntimeError:
            raise GraphError("the checkpoint's model has other sizes than this graph and --fanout ask for") from None
    return model.to(device)


def _checkpoint_path(asked: argparse.Namespace) -> Path:
    if asked.checkpoint:
        return asked.checkpoint
    return asked.runs_dir / "minibatch" / f"{Path(asked.graph).name}-{asked.model}.pt"


@contextlib.contextmanager
def _bar(console: Console, what: str) -> Iterator[training.Say]:
    """A progress bar while it lasts, where there is a terminal to draw it on."""
    columns = (TextColumn(f"{what:<12}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
