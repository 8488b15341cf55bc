"""What `run.py epoch` and `run.py infer` do."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from harness.records import EpochGain
from harness.report.console import Console
from harness.report.words import epoch_gain
from harness.store import write_atomically
from minibatch import geometric, ops, placing, ranks, report, rungs, training, trial
from minibatch.batches import Loader, require_fanouts
from minibatch.graphs import GraphError
from minibatch.placing import Placed
from minibatch.resident import Trainer
from minibatch.rungs import RUNGS, trainer_of
from minibatch.timeline import Span, Trace


def epoch(asked: argparse.Namespace) -> int:
    """Train for --epochs epochs; prints accuracy, writes a checkpoint after each."""
    require_fanouts(asked.fanout)
    device, rung = rungs.device_and_rung(asked)
    if asked.report and not asked.report.parent.is_dir():
        raise GraphError(f"--report {asked.report}: there is no folder {asked.report.parent}")
    count = asked.gpus or asked.ranks
    path = _checkpoint_path(asked)
    if count > 1 and not ranks.started():
        return ranks.start([str(Path(sys.argv[0]).resolve()), *asked.words], count, path)
    if ranks.started():
        ranks.join(device)
    well = False
    try:
        code = _train(asked, device, rung, path)
        ranks.meet()
        well = True
    except torch.OutOfMemoryError as error:
        said = ". ".join(str(error).split(". ")[:2])
        raise GraphError(
            f"the GPU's memory is full ({said}): take a smaller --batch, --fanout or --cache-gib, or keep features in host memory"
        ) from None
    except RuntimeError as error:
        if ranks.started() and re.search("gloo|NCCL|peer", str(error)):
            raise GraphError(f"rank {ranks.rank()} has lost another") from None
        raise
    finally:
        ranks.leave(well)
    if ranks.started():
        ranks.end(code)
    return code


def _train(asked: argparse.Namespace, device: str, rung: str, path: Path) -> int:
    first = ranks.rank() == 0
    console = Console(highlight=False, quiet=not first or asked.json, stderr=True)
    placed = _placed(asked, device, console, resident=rung in rungs.RESIDENT)
    graph = placed.graph
    torch.manual_seed(asked.seed)
    state = training.load_checkpoint(path) if asked.resume else None
    model = rungs.model_of(asked, rung, placed, state, device)
    done = int(state["epoch"]) + 1 if state else 0
    torch.manual_seed(asked.seed + ranks.rank())  # weights alike, dropout not
    console.print(
        f"{asked.graph}: {graph.nodes:,} nodes, {graph.edges:,} edges; {asked.model}, fanout "
        f"{' '.join(map(str, asked.fanout))}, {ranks.ranks()} x {asked.batch} seeds; {device}, rung {rung}: {RUNGS[rung]}"
        f"{_where_features_are(placed)}"
    )
    records = []
    with rungs.route(asked, placed, model, device, rung, state, console) as way:
        for number in range(done, done + asked.epochs):
            ids = training.order(graph, asked.seed, number, ranks.rank(), ranks.ranks())
            with _bar(console, f"epoch {number + 1}") as say:
                last = asked.report and number == done + asked.epochs - 1
                trace = Trace(device) if last and first else None
                # Every rank samples with numbers of its own: its epochs count from another place.
                record = replace(way.run(ids, number * ranks.ranks() + ranks.rank(), say, trace), number=number)
            if first:
                with _bar(console, "validation") as say:
                    valid = way.accuracy(graph.valid, say)
                saved = {"model": model.state_dict(), "optimizer": way.optimizer.state_dict()}
                about = {
                    "kind": rungs.kind_of(asked.model, rung),
                    "fanout": asked.fanout,
                    "graph": asked.graph,
                    "hidden": int(state["hidden"]) if state else rungs.hidden_of(asked, device),
                }
                training.save_checkpoint(path, **saved, **about, epoch=number, accuracy=valid)
                records.append(asdict(record) | {"valid_accuracy": valid})
                console.print(_line(record, valid, asked.batch))
        captured = way.trainer is not None and way.trainer.captured
        if asked.report and (first or captured):
            # A trace cannot look into replays of a CUDA graph; those of all ranks wait for one another.
            spans = way.trainer.spans() if captured else trace.finish()
            if first:
                _report(asked, placed, device, rung, record, valid, spans)
                console.print(f"report: {asked.report}")
    if first:
        chance = float(torch.bincount(graph.labels[graph.valid].cpu()).max()) / len(graph.valid)
        console.print(f"chance is {chance:.3f} (the most frequent class); checkpoint: {path}")
        if asked.json:
            print(json.dumps({"graph": asked.graph, "rung": rung, "device": device, "epochs": records}, indent=1))
    return 0


def _report(
    asked: argparse.Namespace, placed: Placed, device: str, rung: str, record: Any, valid: float, spans: list[Span]
) -> None:
    row = report.row_of(rung, RUNGS[rung], record, valid, placed.graph, spans)
    name = torch.cuda.get_device_name() if device == "cuda" else f"{len(os.sched_getaffinity(0))} CPU cores"
    lines = [
        f"{asked.model}, fanout {' '.join(map(str, asked.fanout))}, {ranks.ranks()} x {asked.batch} seeds a batch; "
        f"epoch {record.number + 1}: {record.batches} batches a process{_where_features_are(placed)}"
    ]
    write_atomically(asked.report, report.render(report.Page(asked.graph, name, lines, [row])))


def _line(record: Any, valid: float, batch: int) -> str:
    rate = f", {record.edges / record.seconds / 1e6:.3g} million edges/s" if record.edges else ""
    stages = "".join(f", {name} {seconds:.2f} s" for name, seconds in getattr(record, "stages_s", {}).items())
    hits = getattr(record, "cache_hits", None)
    cached = "" if hits is None else f", {hits:.1%} of feature rows from the cache"
    missed = f", {record.fallbacks} batches made again" if getattr(record, "fallbacks", 0) else ""
    return (
        f"epoch {record.number + 1}: {record.seconds:.2f} s, {record.batches} batches of {batch}, loss {record.loss:.3f}, "
        f"validation accuracy {valid:.3f}{rate}{stages}{cached}{missed}"
    )


def _where_features_are(placed: Placed) -> str:
    if placed.cache_rows is None:
        return ""
    rows, nodes = placed.cache_rows, placed.graph.nodes
    return f"; features in host memory, {min(rows, nodes):,} of {nodes:,} rows on the device too"


def with_sources(asked: argparse.Namespace, sources: dict[str, tuple[str, str]]) -> EpochGain:
    """Whether epochs become faster with other kernels; sources: kernel -> (device that it is for, text). Raises GraphError."""
    require_fanouts(asked.fanout)
    device, rung = rungs.device_and_rung(asked)
    if asked.gpus > 1 or asked.ranks > 1:
        raise GraphError("--with compares epochs of one process; leave --gpus and --ranks out")
    if rung == "salient":
        rung = "gpu-fused" if asked.rung is None else rung
    if rung not in rungs.OURS or rung == "gpu-plain":
        raise GraphError(f"--rung {rung} does not run the kernels of runs; take gpu, gpu-fused or gpu-graph")
    for kernel, (made_for, _) in sources.items():
        if kernel not in ops.NAMES:
            raise GraphError(f"an epoch has no kernel {kernel}; it has {', '.join(ops.NAMES)}")
        if made_for != device:
            raise GraphError(f"the run's {kernel} is for device {made_for}, and this epoch runs on {device}")
    console = Console(highlight=False, quiet=asked.json, stderr=True)
    placed = _placed(asked, device, console, resident=True)

    def make(swapped: Mapping[str, str]) -> Trainer:
        torch.manual_seed(asked.seed)
        model = rungs.model_of(asked, rung, placed, None, device)
        return trainer_of(rung, placed, model, asked.fanout, asked.batch, asked.lr, asked.seed, sources=swapped)

    with _bar(console, "pairs of epochs") as say:
        found = trial.run(make, {kernel: text for kernel, (_, text) in sources.items()}, asked.seed, say=say)
    found = found.model_copy(update={"graph": asked.graph, "rung": rung})
    console.print(f"with {', '.join(found.kernels)} epochs are {epoch_gain(found)}")
    if asked.json:
        print(found.model_dump_json(indent=1))
    return found


def infer(asked: argparse.Namespace) -> int:
    """Accuracy on the test ids of the checkpoint's model: from sampled and from all neighbours."""
    require_fanouts(asked.fanout)
    state = training.load_checkpoint(_checkpoint_path(asked))
    if len(state["fanout"]) != len(asked.fanout):
        raise GraphError(f"the model has {len(state['fanout'])} layers, and --fanout names {len(asked.fanout)}")
    console = Console(highlight=False, quiet=asked.json, stderr=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rung, asked.model = rungs.of_kind(state["kind"], device)
    if rung == "wholegraph":
        raise GraphError("infer does not read models of --rung wholegraph; train with another rung")
    if rung == "pyg":
        geometric.sampler_named()
    resident = rung in rungs.OURS
    placed = _placed(asked, device, console, resident=resident)
    graph = placed.graph
    model = rungs.model_of(asked, rung, placed, state, device)
    found: dict[str, Any] = {
        "graph": asked.graph,
        "model": asked.model,
        "fanout": asked.fanout,
        "nodes": len(graph.test),
    }
    start = time.perf_counter()
    with _bar(console, "sampled") as say:
        found["sampled_accuracy"] = _sampled(asked, placed, model, device, rung, say)
    found["sampled_s"] = time.perf_counter() - start
    lines = [
        f"sampled ({' '.join(map(str, asked.fanout))}): {found['sampled_accuracy']:.4f} in {found['sampled_s']:.2f} s"
    ]
    free = torch.cuda.mem_get_info()[0] if resident else placing.available_bytes()
    layers_bytes = 2 * graph.nodes * int(state["hidden"]) * (2 if resident else 4)  # one layer read, one written
    if rung == "pyg":
        lines.append("all neighbours: left out for a model of PyTorch Geometric's own")
    elif placed.cache_rows is not None:
        lines.append("all neighbours: left out, features are in host memory and layers are computed on the GPU")
    elif layers_bytes > placing.SPARE * free:
        lines.append(f"all neighbours: left out, {layers_bytes / 2**30:.0f} GiB of hidden rows do not fit here")
    else:
        start = time.perf_counter()
        with _bar(console, "all neighbours") as say:
            moved = model.to(graph.col.device)
            found["full_accuracy"] = training.full_accuracy(moved, graph, graph.test, say)
        found["full_s"] = time.perf_counter() - start
        lines.append(f"all neighbours: {found['full_accuracy']:.4f} in {found['full_s']:.2f} s")
    for line in lines:
        console.print(f"test accuracy, {line}")
    if asked.json:
        print(json.dumps(found, indent=1))
    return 0


def _sampled(
    asked: argparse.Namespace, placed: Placed, model: torch.nn.Module, device: str, rung: str, say: training.Say
) -> float:
    """Test accuracy from sampled neighbours, on the device where the graph is."""
    graph, sizes = placed.graph, (asked.fanout, asked.batch)
    if rung in rungs.OURS:
        trainer = trainer_of(rung, placed, model, *sizes, seed=asked.seed)
        return trainer.accuracy(graph.test, *sizes)
    if rung == "pyg":
        workers = rungs.threads_of(asked)
        with geometric.Loader(graph, *sizes, workers=workers, device=device, seed=asked.seed) as of_pyg:
            return geometric.accuracy(model, of_pyg, graph.test, say)
    with Loader(graph, *sizes, threads=asked.threads, seed=asked.seed, pin=device == "cuda") as loader:
        return training.sampled_accuracy(model, loader, graph.test, device, say)


def _placed(asked: argparse.Namespace, device: str, console: Console, *, resident: bool) -> Placed:
    chosen = {name: getattr(asked, name, None) for name in ("features", "cache_gib")}
    return placing.place(placing.Wanted(asked.graph, device, resident, data=asked.data, **chosen), console)


def _checkpoint_path(asked: argparse.Namespace) -> Path:
    if asked.checkpoint:
        return asked.checkpoint
    kind = rungs.kind_of(asked.model, getattr(asked, "rung", None) or "")
    return asked.runs_dir / "minibatch" / f"{Path(asked.graph).name}-{kind}.pt"


@contextlib.contextmanager
def _bar(console: Console, what: str) -> Iterator[training.Say]:
    """A progress bar while it lasts, where there is a terminal to draw it on."""
    columns = (TextColumn(f"{what:<12}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
