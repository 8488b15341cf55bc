"""The rungs: ways to make batches and train on them, each behind the same three calls."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from harness.report.console import Console
from minibatch import geometric, models, ranks, training, wholegraph
from minibatch.batches import Loader
from minibatch.graphs import GraphError
from minibatch.ops import Kernels
from minibatch.placing import Placed
from minibatch.resident import Trainer
from minibatch.timeline import Trace

HIDDEN = 256
HIDDEN_ON_CPU = 64
RUNGS = {
    "pyg": "PyTorch Geometric's NeighborLoader in worker processes, its model, float32",
    "pyg-hbm": "the same with features on the device",
    "wholegraph": "WholeGraph samples and gathers on the device, PyTorch Geometric's SAGEConv, float32",
    "salient": "native CPU threads sample and slice into reused (pinned) buffers; a stream copies one batch ahead",
    "gpu-plain": "graph and features on the device, plain kernels, the host waits for the size of every hop",
    "gpu": "the same with the production kernels",
    "gpu-fused": "last hop gathered and averaged at once; padded sizes, no synchronisation with the host",
    "gpu-graph": "the same as a CUDA graph, the next batch sampled beside the computation on this one",
    "gpu-layers": "the same with each layer's gather, activation and backward in kernels of their own, without atomics",
}
OURS = ("gpu-plain", "gpu", "gpu-fused", "gpu-graph", "gpu-layers")
"""Graph on the device, sampled by our kernels."""
RESIDENT = (*OURS, "wholegraph")
CAPTURED = ("gpu-graph", "gpu-layers")


@dataclass
class Route:
    """What an epoch needs of a rung."""

    run: Callable[[torch.Tensor, int, training.Say, Trace | None], Any]
    """(seeds in their order, a number that picks other neighbours) -> what the epoch did and took."""
    accuracy: Callable[[torch.Tensor, training.Say], float]
    optimizer: torch.optim.Optimizer
    trainer: Trainer | None = None
    """Of a rung that keeps the graph on the device."""


def device_and_rung(asked: argparse.Namespace) -> tuple[str, str]:
    """Raises GraphError where options do not go together, or there are fewer GPUs than asked for."""
    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if asked.gpus > there:
        raise GraphError(f"--gpus {asked.gpus}: there are {there}; --ranks N trains with N processes on the CPU")
    if asked.gpus and asked.ranks > 1:
        raise GraphError("--gpus and --ranks both say how many processes train; give one")
    if asked.ranks > 1 and there:
        raise GraphError("--ranks is for machines without a GPU; take --gpus")
    device = "cuda" if there else "cpu"
    rung = asked.rung or ("gpu-graph" if device == "cuda" and asked.model == "sage" else "salient")
    if asked.features == "hbm" and rung in ("pyg", "salient"):
        other = "pyg-hbm" if rung == "pyg" else "a gpu rung"
        raise GraphError(f"--rung {rung} keeps features in host memory; take {other} for --features hbm")
    if asked.features == "host" and rung == "pyg-hbm":
        raise GraphError("--rung pyg-hbm keeps features on the device; take pyg for --features host")
    if asked.cache_gib is not None and (asked.features != "host" or rung not in OURS):
        raise GraphError("--cache-gib is the size of the cache that a gpu rung has with --features host")
    if rung in (*CAPTURED, "pyg-hbm", "wholegraph") and device == "cpu":
        other = "pyg" if rung not in CAPTURED else "gpu-fused to run the same steps on the CPU, or salient"
        raise GraphError(f"--rung {rung} needs a GPU; take {other}")
    if rung in OURS and asked.model != "sage":
        raise GraphError(f"--model {asked.model} is trained by --rung salient or pyg; our kernels are GraphSAGE's")
    if rung == "wholegraph":
        if asked.model != "sage" or asked.gpus > 1 or ranks.started() or asked.features == "host":
            raise GraphError("--rung wholegraph is --model sage on one GPU with features there")
        wholegraph.require()
    if rung.startswith("pyg"):
        geometric.sampler_named()
    return device, rung


def hidden_of(asked: argparse.Namespace, device: str) -> int:
    return asked.hidden or (HIDDEN if device == "cuda" else HIDDEN_ON_CPU)


def model_of(asked: argparse.Namespace, rung: str, placed: Placed, state: dict | None, device: str) -> torch.nn.Module:
    """The rung's model on the device, with the weights of the checkpoint's state where there is one. Raises GraphError."""
    graph, hidden = placed.graph, int(state["hidden"]) if state else hidden_of(asked, device)
    sizes = (graph.features.shape[1], hidden, graph.classes, len(asked.fanout))
    if rung == "wholegraph":
        model: torch.nn.Module = wholegraph.Convolutions(*sizes)
    else:
        model = (geometric.model_of if rung.startswith("pyg") else models.make)(asked.model, *sizes)
    if isinstance(model, models.Sage):
        model.aggregate = Kernels(device).self_and_mean  # on a CPU a third of the time of torch's bag of embeddings
    if state:
        if state["kind"] != kind_of(asked.model, rung):
            raise GraphError(f"the checkpoint holds a {state['kind']}, not a {kind_of(asked.model, rung)}")
        try:
            model.load_state_dict(state["model"])
        except RuntimeError:
            raise GraphError("the checkpoint's model has other sizes than this graph and --fanout ask for") from None
    return model.to(device)


def kind_of(model: str, rung: str) -> str:
    """A checkpoint's kind: PyG's own models have other weights than ours of the same name."""
    return f"pyg-{model}" if rung.startswith("pyg") else f"wholegraph-{model}" if rung == "wholegraph" else model


def of_kind(kind: str, device: str) -> tuple[str, str]:
    """(rung that infers with a checkpoint's model on the device, name of the model)."""
    for rung in ("pyg", "wholegraph"):
        if kind.startswith(f"{rung}-"):
            return rung, kind.removeprefix(f"{rung}-")
    return ("gpu-fused" if device == "cuda" and kind == "sage" else "salient"), kind


def threads_of(asked: argparse.Namespace) -> int:
    return asked.threads or max(1, len(os.sched_getaffinity(0)) // ranks.ranks())


@contextlib.contextmanager
def route(
    asked: argparse.Namespace, placed: Placed, model: torch.nn.Module, device: str, rung: str, state: dict | None,
    console: Console,
) -> Iterator[Route]:  # fmt: skip
    """The rung, ready to train; what it started ends with the block."""
    with contextlib.ExitStack() as stack:
        if rung in OURS:
            with console.status("compiling kernels, calibrating sizes"):
                trainer = trainer_of(
                    rung, placed, model, asked.fanout, asked.batch, asked.lr, asked.seed, ranks.ranks()
                )
                if state:
                    training.go_on(trainer.optimizer, state["optimizer"])
                trainer.prepare()
            yield _resident(trainer, asked)
            return
        optimizer = torch.optim.Adam(model.parameters(), lr=asked.lr)
        if state:
            training.go_on(optimizer, state["optimizer"])
        trained = torch.nn.parallel.DistributedDataParallel(model) if ranks.started() else model
        if rung == "salient":
            options = {"threads": threads_of(asked), "seed": asked.seed, "pin": device == "cuda"}
            loader = stack.enter_context(Loader(placed.graph, asked.fanout, asked.batch, **options))
            yield _salient(loader, model, trained, optimizer, device)
            return
        torch.backends.cuda.matmul.allow_tf32 = True  # float32 without it would be slow for no reason of its loader
        if rung == "wholegraph":
            batches: Any = stack.enter_context(
                wholegraph.Loader(placed.graph, asked.fanout, asked.batch, seed=asked.seed)
            )
        else:
            batches = stack.enter_context(_pyg(asked, placed, device, rung, console))
        yield Route(
            lambda ids, number, say, trace: geometric.train_epoch(trained, optimizer, batches, ids, number, say, trace),
            lambda ids, say: geometric.accuracy(model, batches, ids, say),
            optimizer,
        )


def _pyg(asked: argparse.Namespace, placed: Placed, device: str, rung: str, console: Console) -> geometric.Loader:
    console.print(f"NeighborLoader samples by {geometric.sampler_named()}")
    options = {"workers": threads_of(asked), "device": device, "seed": asked.seed, "on_device": rung == "pyg-hbm"}
    return geometric.Loader(placed.graph, asked.fanout, asked.batch, **options)


def _salient(
    loader: Loader, model: torch.nn.Module, trained: torch.nn.Module, optimizer: torch.optim.Optimizer, device: str
) -> Route:
    return Route(
        lambda ids, number, say, trace: training.train_epoch(
            trained, optimizer, loader, ids, number, device, say, trace
        ),
        lambda ids, say: training.sampled_accuracy(model, loader, ids, device, say),
        optimizer,
    )


def _resident(trainer: Trainer, asked: argparse.Namespace) -> Route:
    def run(ids: torch.Tensor, number: int, say: training.Say, trace: Trace | None) -> Any:
        record = trainer.epoch(ids.to(trainer.device), number, trace)
        say(record.batches, record.batches)
        return record

    return Route(run, lambda ids, say: trainer.accuracy(ids, asked.fanout, asked.batch), trainer.optimizer, trainer)


def trainer_of(
    rung: str, placed: Placed, model: torch.nn.Module, fanouts: list[int], batch: int, lr: float = 0.003, seed: int = 0,
    count: int = 1, sources: Mapping[str, str] | None = None,
) -> Trainer:  # fmt: skip
    """The resident trainer of a rung, not prepared yet."""
    device = placed.graph.col.device.type
    kernels = Kernels(device, baseline="plain" if rung == "gpu-plain" else "production", sources=sources)
    captured = rung in CAPTURED
    padded = captured or rung == "gpu-fused"
    return Trainer(
        placed.graph, model, kernels, fanouts, batch, lr=lr, fused=padded, padded=padded, captured=captured, layered=rung == "gpu-layers",
        seed=seed, ranks=count, cache_rows=placed.cache_rows,
    )  # fmt: skip
