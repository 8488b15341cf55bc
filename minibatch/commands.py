"""What `run.py epoch` and `run.py infer` do."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from harness.options import words
from harness.records import EpochGain
from harness.report.console import Console
from harness.report.words import epoch_gain
from harness.store import write_atomically
from minibatch import (
    audit,
    benchmark_graphs,
    objectives,
    ops,
    options,
    placing,
    ranks,
    report,
    rungs,
    schedules,
    synthetic,
    training,
    trial,
)  # fmt: skip
from minibatch.batches import batch_seed, require_fanouts
from minibatch.graphs import Graph, GraphError
from minibatch.placing import Placed
from minibatch.request import EpochRequest, GraphRequest, InferRequest
from minibatch.resident import Trainer
from minibatch.rungs import trainer_of
from minibatch.timeline import Span, SpanTrace

if TYPE_CHECKING:
    from minibatch.request import ResolvedEpoch, ResolvedInference


def epoch(request: EpochRequest) -> int:
    """Train for --epochs epochs; prints each one's metric, writes a checkpoint after each, and keeps the best beside it."""
    ranks.end_with_parent()
    if request.report and not request.report.parent.is_dir():
        raise GraphError(f"--report {request.report}: there is no folder {request.report.parent}")
    path = _checkpoint_path(request)
    for file in filter(None, (request.report, path)):
        if file.is_dir():
            raise GraphError(f"{file} is a folder; name a file")
    there = next(folder for folder in path.parents if folder.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        fault = "cannot be written to" if there.is_dir() else "is no folder"
        raise GraphError(f"{path.parent} cannot be made, {there} {fault}; name another --runs-dir or --checkpoint")
    state = training.load_checkpoint(path) if request.resume else None
    asked = options.resolve(request, state)
    require_fanouts(asked.fanout)
    device, rung = rungs.choose_device_and_variant(asked)
    count = asked.gpus or asked.ranks
    if count > 1 and not ranks.is_distributed():
        return ranks.start([str(Path(sys.argv[0]).resolve()), "epoch", *words(asked)], count, path)
    if ranks.is_distributed():
        ranks.join(device)
    well = False
    try:
        code = _train(asked, device, rung, path, state)
        ranks.meet()
        well = True
    except torch.OutOfMemoryError as error:
        said = ". ".join(str(error).split(". ")[:2])
        raise GraphError(
            f"the GPU's memory is full ({said}): take a smaller --batch, --fanout or --cache-gib, or keep features in host memory"
        ) from None
    except RuntimeError as error:
        if ranks.is_distributed() and re.search("gloo|NCCL|peer", str(error)):
            raise GraphError(f"rank {ranks.rank()} has lost another") from None
        raise
    finally:
        ranks.leave(well)
    if ranks.is_distributed():
        ranks.end(code)
    return code


def _train(asked: ResolvedEpoch, device: str, rung: str, path: Path, state: dict[str, Any] | None) -> int:
    first = ranks.rank() == 0
    console = Console(highlight=False, quiet=not first or asked.as_json, stderr=True)
    placed, rung = _placed_for(asked, device, console, rung, named=asked.rung is not None)
    graph = placed.graph
    _require_its_graph(state, placed, asked.graph, path)
    graph.require_ids("train")
    if len(graph.train) < ranks.ranks():
        raise GraphError(f"the graph has {len(graph.train)} train ids for {ranks.ranks()} processes: start fewer")
    _require_labelled(graph)
    if not len(graph.valid) and (asked.patience or asked.schedule == "plateau"):
        raise GraphError("--patience and --schedule plateau look at valid ids, and the graph has none")
    torch.manual_seed(asked.seed)
    model = rungs.model_of(asked, placed, state, device)
    done = int(state["epoch"]) + 1 if state else 0
    _seed_epoch(asked, done)  # what prepares steps may draw too
    console.print(
        f"{asked.graph}: {graph.nodes:,} nodes, {graph.edges:,} edges; {asked.model}, fanout "
        f"{' '.join(map(str, asked.fanout))}, {ranks.ranks()} x {asked.batch} seeds; {device}, rung {rung}: "
        f"{rungs.VARIANTS[rung].what}{_where_features_are(placed)}"
    )
    records, best = [], state.get("best") if state else None
    since = int(state["since"]) if state and isinstance(state.get("since"), int) else 0
    with rungs.route(asked, placed, model, device, rung, state, console) as way:
        if state and asked.lr != state["options"].get("lr"):  # asked for anew
            for group in way.optimizer.param_groups:
                training.set_rate(group, asked.lr)
        schedule = schedules.RateSchedule(asked.schedule, way.optimizer, done + asked.epochs, way.objective)
        if state and asked.schedule == state["options"].get("schedule"):
            schedule.load(state["schedule"])
        metric = way.objective.metric
        if asked.audit:
            _audit(way, console)
        for number in range(done, done + asked.epochs):
            _seed_epoch(asked, number)
            ids = training.order(graph, asked.seed, number, ranks.rank(), ranks.ranks())
            with _bar(console, f"epoch {number + 1}") as say:
                last = asked.report and number == done + asked.epochs - 1
                trace = SpanTrace(device) if last and first else None
                # Every rank samples with numbers of its own: its epochs count from another place.
                record = replace(way.run(ids, number * ranks.ranks() + ranks.rank(), say, trace), number=number)
            if not math.isfinite(record.loss):
                kept = f"the last checkpoint is {path}" if path.exists() else "there is no checkpoint"
                raise GraphError(f"the loss of epoch {number + 1} is {record.loss}: take a smaller --lr; {kept}")
            valid = None
            if first and len(graph.valid):
                with _bar(console, "validation") as say:
                    valid = way.accuracy(graph.valid, say)
            seen = ranks.agree(valid)
            better = seen is not None and way.objective.better(seen, best)
            best, since = (seen, 0) if better else (best, since + 1)
            schedule.step(seen)
            if first:
                saved = {
                    "model": model.state_dict(),
                    "optimizer": way.optimizer.state_dict(),
                    "schedule": schedule.held(),
                }
                about: dict[str, Any] = {
                    "options": options.select_stored(asked, rungs.hidden_of(asked, device)),
                    "graph": asked.graph,
                }
                about |= {"identity": placed.identity, "valid": valid, "best": best, "since": since}
                training.save_checkpoint(path, **saved, **about, epoch=number)
                if better:
                    write_atomically(best_path(path), path.read_bytes())
                records.append(asdict(record) | {f"valid_{metric}": valid, "lr": schedule.rate_before})
                console.print(_line(record, metric, valid, asked.batch))
            if asked.patience and since >= asked.patience:
                console.print(f"no better {metric} of valid ids for {since} epochs: training ends here")
                break
        captured = way.trainer is not None and way.trainer.captured
        if asked.report and (first or captured):
            # A trace cannot look into replays of a CUDA graph; those of all ranks wait for one another.
            replays = way.trainer if captured else None
            spans = replays.spans() if replays else trace.finish() if trace else []
            if first:
                _report(asked, placed, device, rung, record, valid, spans)
                console.print(f"report: {asked.report}")
    if first:
        known = (
            graph.labels[graph.valid].cpu() if len(graph.valid) and way.objective.kind == "classes" else torch.empty(0)
        )
        known = known[known >= 0].long()
        if len(known):
            chance = float(torch.bincount(known).max()) / len(known)
            console.print(f"chance is {chance:.3f} (the most frequent class)")
        console.print(
            f"checkpoint: {path}" + (f"; the best by validation: {best_path(path)}" if best is not None else "")
        )
        if asked.as_json:
            found = {"graph": asked.graph, "rung": rung, "device": device, "audited": asked.audit, "epochs": records}
            print(json.dumps(found, indent=1, allow_nan=False))
    return 0


def _audit(way: rungs.Route, console: Console) -> None:
    """Raises GraphError, on every rank, with what the first that found something says."""
    if way.trainer is None:
        raise GraphError(
            "--audit looks at rungs whose batches our kernels sample (gpu, gpu-fused, gpu-graph, gpu-layers)"
        )
    with console.status("looking at what is sampled"):
        found = [said for said in ranks.gather(audit.of_variant(way.trainer)) if said]
    if found:
        raise GraphError(f"this is no epoch: {found[0]}")
    console.print(
        f"audit: two epochs of {ranks.ranks()} process{'es' if ranks.ranks() > 1 else ''} hold what they must"
    )


def best_path(path: Path) -> Path:
    """Where the best checkpoint is kept beside the last."""
    return path.with_name(f"{path.stem}.best{path.suffix}")


def _seed_epoch(asked: ResolvedEpoch, number: int) -> None:
    """Every epoch's random numbers begin from its own seed, so that a resumed run draws what the whole one does; each rank its own."""
    torch.manual_seed(batch_seed(asked.seed, number * ranks.ranks() + ranks.rank()) % (1 << 63))


def _require_its_graph(state: dict[str, Any] | None, placed: Placed, name: str, path: Path) -> None:
    if state is not None and state["identity"] != placed.identity:
        raise GraphError(
            f"{path} was trained on another graph ({state['graph']}) than {name}: name that, or train anew"
        )


def _require_labelled(graph: Graph) -> None:
    labels = graph.labels[graph.train.to(graph.labels.device)]
    missing = int((labels == -1).sum()) if labels.dim() == 1 else int(labels.isnan().all(dim=1).sum())
    if missing:
        raise GraphError(f"{missing} of the graph's train ids have no label; leave them out")


def _report(
    asked: ResolvedEpoch,
    placed: Placed,
    device: str,
    rung: str,
    record: Any,
    valid: float | None,
    spans: list[Span],
) -> None:
    row = report.row_of(rung, rungs.VARIANTS[rung].what, record, valid, placed.graph, spans)
    name = torch.cuda.get_device_name() if device == "cuda" else f"{len(os.sched_getaffinity(0))} CPU cores"
    lines = [
        f"{asked.model}, fanout {' '.join(map(str, asked.fanout))}, {ranks.ranks()} x {asked.batch} seeds a batch; "
        f"epoch {record.number + 1}: {record.batches} batches a process{_where_features_are(placed)}"
    ]
    assert asked.report is not None
    write_atomically(asked.report, report.render(report.EpochPage(asked.graph, name, lines, [row])))


def _line(record: Any, metric: str, valid: float | None, batch: int) -> str:
    rate = f", {record.edges / record.seconds / 1e6:.3g} million edges/s" if record.edges else ""
    stages = "".join(f", {name} {seconds:.2f} s" for name, seconds in getattr(record, "stages_s", {}).items())
    hits = getattr(record, "cache_hits", None)
    cached = "" if hits is None else f", {hits:.1%} of feature rows from the cache"
    said = "no valid ids" if valid is None else f"validation {metric.replace('_', ' ')} {valid:.3f}"
    missed = f", {record.fallbacks} batches made again" if getattr(record, "fallbacks", 0) else ""
    return (
        f"epoch {record.number + 1}: {record.seconds:.2f} s, {record.batches} {'batch' if record.batches == 1 else 'batches'} of {batch}, loss {record.loss:.3f}, "
        f"{said}{rate}{stages}{cached}{missed}"
    )


def _where_features_are(placed: Placed) -> str:
    if placed.cache_rows is None:
        return ""
    rows, nodes = placed.cache_rows, placed.graph.nodes
    return f"; features in host memory, {min(rows, nodes):,} of {nodes:,} rows on the device too"


def with_sources(request: EpochRequest, sources: Mapping[str, tuple[str, str]]) -> EpochGain:
    """Whether epochs become faster with other kernels; sources: kernel -> (device that it is for, text). Raises GraphError."""
    asked = options.resolve(request, None)
    require_fanouts(asked.fanout)
    device, rung = rungs.choose_device_and_variant(asked)
    if asked.gpus > 1 or asked.ranks > 1:
        raise GraphError("--with compares epochs of one process; leave --gpus and --ranks out")
    if asked.rung is None:
        rung = "gpu-fused" if device == "cpu" else "gpu-graph"
    how = rungs.VARIANTS[rung]
    if not how.resident or how.kernels == "plain" or how.compute == "layers":
        raise GraphError(f"--rung {rung} does not run the kernels of runs; take gpu, gpu-fused or gpu-graph")
    for kernel, (made_for, _) in sources.items():
        if kernel not in ops.NAMES:
            raise GraphError(f"an epoch has no kernel {kernel}; it has {', '.join(ops.NAMES)}")
        if made_for != device:
            raise GraphError(f"the run's {kernel} is for device {made_for}, and this epoch runs on {device}")
    console = Console(highlight=False, quiet=asked.as_json, stderr=True)
    placed, _ = _placed_for(asked, device, console, rung, named=True)

    def make(swapped: Mapping[str, str]) -> Trainer:
        torch.manual_seed(asked.seed)
        model = rungs.model_of(asked, placed, None, device)
        return trainer_of(rung, placed, model, asked.fanout, asked.batch, asked.lr, asked.seed, sources=swapped)

    with _bar(console, "pairs of epochs") as say:
        found = trial.run(make, {kernel: text for kernel, (_, text) in sources.items()}, asked.seed, say=say)
    found = found.model_copy(update={"graph": asked.graph, "rung": rung})
    console.print(f"with {', '.join(found.kernels)} epochs are {epoch_gain(found)}")
    if asked.as_json:
        print(found.model_dump_json(indent=1))
    return found


def infer(request: InferRequest) -> int:
    """The metric on ids of the checkpoint's model, from sampled and from all neighbours; --out writes what it predicts."""
    if request.out and (request.out.suffix not in (".npz", ".csv") or not request.out.parent.is_dir()):
        raise GraphError(f"--out {request.out}: name an .npz or .csv file in a folder that is there")
    path = _checkpoint_path(request)
    state = training.load_checkpoint(path)
    asked = options.resolve_inference(request, state)
    require_fanouts(asked.fanout)
    console = Console(highlight=False, quiet=asked.as_json, stderr=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with rungs.loading_libraries(asked, state, device):
        placed, rung = _placed_for(asked, device, console, rungs.inferring(asked.model, device), named=False)
    resident = rungs.VARIANTS[rung].resident
    graph = placed.graph
    _require_its_graph(state, placed, asked.graph, path)
    ids = torch.arange(graph.nodes, device=graph.col.device) if asked.on == "all" else getattr(graph, asked.on)
    if asked.on != "all":
        graph.require_ids(asked.on, "; name other nodes by --on train, valid or all")
    model = rungs.model_of(asked, placed, state, device)
    objective = objectives.of(graph, state["options"].get("loss"))
    metric = objective.metric
    found: dict[str, Any] = {"graph": asked.graph, "model": asked.model, "fanout": asked.fanout, "nodes": len(ids)}
    start = time.perf_counter()
    predicted: list[torch.Tensor] = []
    with _bar(console, "sampled") as say:
        outputs = _sampled(asked, request.batch, placed, model, device, rung, objective, ids, say)
        found[f"sampled_{metric}"] = objective.metric_of(_kept(outputs, objective, predicted if asked.out else None))
    found["sampled_s"] = time.perf_counter() - start
    lines = [
        f"sampled ({' '.join(map(str, asked.fanout))}): {_number(found[f'sampled_{metric}'])} in {found['sampled_s']:.2f} s"
    ]
    free = torch.cuda.mem_get_info()[0] if resident else placing.available_bytes()
    needed = training.full_bytes(model, graph)
    if placed.cache_rows is not None:
        lines.append("all neighbours: left out, features are in host memory and layers are computed on the GPU")
    elif needed > placing.SPARE * free:
        lines.append(f"all neighbours: left out, {needed / 2**30:.1f} GiB of rows do not fit here")
    else:
        start = time.perf_counter()
        with _bar(console, "all neighbours") as say:
            found[f"full_{metric}"] = training.full_accuracy(model.to(graph.col.device), graph, ids, say)
        found["full_s"] = time.perf_counter() - start
        lines.append(f"all neighbours: {_number(found[f'full_{metric}'])} in {found['full_s']:.2f} s")
    for line in lines:
        console.print(f"{asked.on} {metric.replace('_', ' ')}, {line}")
    if asked.out:
        _write(asked.out, ids.cpu(), torch.cat(predicted))
        console.print(f"predictions: {asked.out}")
    if asked.as_json:
        print(json.dumps(found, indent=1, allow_nan=False))
    return 0


def _number(value: float | None) -> str:
    return "no labels" if value is None else f"{value:.4f}"


def _kept(
    outputs: Iterator[tuple[torch.Tensor, torch.Tensor]],
    objective: objectives.Objective,
    into: list[torch.Tensor] | None,
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The same outputs; what they predict goes `into` the list."""
    for logits, labels in outputs:
        if into is not None:
            into.append(objective.predictions(logits).cpu())
        yield logits, labels


def _write(path: Path, ids: torch.Tensor, predicted: torch.Tensor) -> None:
    """Node ids and what was predicted of each, in one file, whole or not at all."""
    held = io.BytesIO()
    if path.suffix == ".npz":
        np.savez(held, ids=ids.numpy(), predictions=predicted.numpy())
    else:
        columns = predicted.reshape(len(ids), -1).numpy()
        names = ["prediction"] if columns.shape[1] == 1 else [f"prediction_{n}" for n in range(columns.shape[1])]
        table = np.column_stack([ids.numpy(), columns])
        kind = "%d" if columns.dtype.kind in "iu" else ["%d", *["%.9g"] * columns.shape[1]]
        np.savetxt(held, table, fmt=kind, delimiter=",", header=",".join(["node", *names]), comments="")
    write_atomically(path, held.getvalue())


def _sampled(
    asked: ResolvedInference, batch: int | None, placed: Placed, model: torch.nn.Module, device: str, rung: str,
    objective: objectives.Objective, ids: torch.Tensor, say: training.Say,
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:  # fmt: skip
    """(logits, labels) of batches of ids from sampled neighbours, on the device where the graph is; batch: seeds a batch where it was given."""
    if rungs.VARIANTS[rung].resident:
        trainer = trainer_of(rung, placed, model, asked.fanout, asked.batch, seed=asked.seed, objective=objective)
        yield from trainer.outputs(ids, asked.fanout, batch)
        return
    with rungs.loader_of(asked, placed, device) as loader:
        yield from training.infer_sampled(model, loader, ids, device, say)


def _placed_for(asked: GraphRequest, device: str, console: Console, rung: str, *, named: bool) -> tuple[Placed, str]:
    """The graph where the rung keeps it, and the rung: of a graph with edge weights one that samples by them, or, where the
    other was `named`, a GraphError."""
    placed = _placed(asked, device, console, resident=rungs.VARIANTS[rung].resident)
    if placed.graph.edge_weights is None or rungs.VARIANTS[rung].sample == "threads":
        return placed, rung
    if named:
        raise GraphError(f"the graph has edge_weights, and --rung {rung} does not sample by them: take --rung salient")
    return _placed(asked, device, console, resident=False), "salient"


def _placed(asked: GraphRequest, device: str, console: Console, *, resident: bool) -> Placed:
    chosen = {name: getattr(asked, name, None) for name in ("features", "cache_gib")}
    return placing.place(placing.Wanted(asked.graph, device, resident, data=asked.data, **chosen), console)


def _checkpoint_path(asked: GraphRequest) -> Path:
    """Named by graph and model; two folders of one name are told apart by where they lie."""
    if asked.checkpoint:
        return asked.checkpoint
    name = asked.graph
    if name not in (*synthetic.RECIPES, *benchmark_graphs.NAMES):
        folder = Path(name).resolve()
        name = f"{folder.name}-{hashlib.sha256(str(folder).encode()).hexdigest()[:8]}"
    return asked.runs_dir / "minibatch" / f"{name}-{options.model_name(asked.model)}.pt"


@contextlib.contextmanager
def _bar(console: Console, what: str) -> Iterator[training.Say]:
    """A progress bar while it lasts, where there is a terminal to draw it on."""
    columns = (TextColumn(f"{what:<12}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
