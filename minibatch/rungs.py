"""The rungs: ways to make batches and train on them, each a list of stages, all behind the same calls."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from harness.report.console import Console
from minibatch import geometric, models, objectives, ranks, training
from minibatch.batches import BatchLoader
from minibatch.graphs import Graph, GraphError
from minibatch.objectives import Objective
from minibatch.ops import Kernels
from minibatch.placing import Placed
from minibatch.resident import Trainer
from minibatch.timeline import SpanTrace

if TYPE_CHECKING:
    from minibatch.request import Resolved, ResolvedEpoch, ResolvedInference

HIDDEN = 256
HIDDEN_ON_CPU = 64
REHEARSED = 1 << 14
"""Nodes of the graph by which libraries are loaded: PyTorch sorts fewer by another kernel."""


@dataclass(frozen=True)
class LoaderVariant:
    """How each stage of a step is done.

    sample, which also renumbers: "workers" (PyTorch Geometric's processes), "threads" (loader.cpp) or "device" (the catalog's
    kernels, whose baselines are named by `kernels`). fetch, of feature rows: "host" before they are copied, or "device". step:
    "exact" sizes, which the host waits for; "padded" ones, where it waits for nothing; "captured", the same as a CUDA graph beside
    the next batch's sampling. compute: "torch" (autograd over PyTorch), "kernels" (autograd over the catalog's), "fused" (the same,
    the last hop gathered and averaged at once), or "layers" (layers.py).
    """

    what: str
    sample: str
    fetch: str
    step: str
    compute: str
    kernels: str = "production"

    @property
    def resident(self) -> bool:
        """Whether the graph is on the device."""
        return self.sample == "device"

    @property
    def captured(self) -> bool:
        return self.step == "captured"

    @property
    def needs_gpu(self) -> bool:
        return self.captured or (self.sample, self.fetch) == ("workers", "device")


VARIANTS = {
    "pyg": LoaderVariant("PyTorch Geometric's NeighborLoader in worker processes, float32", "workers", "host", "exact", "torch"),
    "pyg-hbm": LoaderVariant("the same with features on the device", "workers", "device", "exact", "torch"),
    "salient": LoaderVariant(
        "native CPU threads sample and slice into reused (pinned) buffers; a stream copies one batch ahead",
        "threads", "host", "exact", "torch",
    ),
    "gpu-plain": LoaderVariant(
        "graph and features on the device, plain kernels, the host waits for the size of every hop",
        "device", "device", "exact", "kernels", "plain",
    ),
    "gpu": LoaderVariant("the same with the production kernels", "device", "device", "exact", "kernels"),
    "gpu-fused": LoaderVariant(
        "last hop gathered and averaged at once; padded sizes, no synchronisation with the host",
        "device", "device", "padded", "fused",
    ),
    "gpu-graph": LoaderVariant(
        "the same as a CUDA graph, the next batch sampled beside the computation on this one",
        "device", "device", "captured", "fused",
    ),
    "gpu-layers": LoaderVariant(
        "the same with each layer's gather, activation and backward in kernels of their own, without atomics",
        "device", "device", "captured", "layers",
    ),
}  # fmt: skip
"""Loader variants, from what people have to the fastest."""


@dataclass
class Route:
    """What an epoch needs of a rung."""

    run: Callable[[torch.Tensor, int, training.Say, SpanTrace | None], Any]
    """(seeds in their order, a number that picks other neighbours) -> what the epoch did and took."""
    outputs: Callable[[torch.Tensor, training.Say], Iterator[tuple[torch.Tensor, torch.Tensor]]]
    """(ids) -> (logits, labels) of batches of them."""
    optimizer: torch.optim.Optimizer
    objective: Objective
    trainer: Trainer | None = None
    """Trainer of a rung that keeps the graph on the device."""

    def accuracy(self, ids: torch.Tensor, say: training.Say) -> float | None:
        """The objective's metric; None where nothing is labelled."""
        return self.objective.metric_of(self.outputs(ids, say))


def choose_device_and_variant(asked: ResolvedEpoch) -> tuple[str, str]:
    """Raises GraphError where options do not go together, or there are fewer GPUs than asked for."""
    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if asked.gpus > there:
        raise GraphError(f"--gpus {asked.gpus}: there are {there}; --ranks N trains with N processes on the CPU")
    if asked.gpus and asked.ranks > 1:
        raise GraphError("--gpus and --ranks both say how many processes train; give one")
    if asked.ranks > 1 and there:
        raise GraphError("--ranks is for machines without a GPU; take --gpus")
    device = "cuda" if there else "cpu"
    name = asked.rung or ("gpu-layers" if device == "cuda" and asked.model == "sage" else "salient")
    variant = VARIANTS[name]
    if asked.features == "hbm" and variant.fetch == "host":
        other = "pyg-hbm" if variant.sample == "workers" else "a gpu rung"
        raise GraphError(f"--rung {name} keeps features in host memory; take {other} for --features hbm")
    if asked.features == "host" and variant.fetch == "device" and not variant.resident:
        raise GraphError(f"--rung {name} keeps features on the device; take pyg for --features host")
    if asked.cache_gib is not None and (asked.features != "host" or not variant.resident):
        raise GraphError("--cache-gib is the size of the cache that a gpu rung has with --features host")
    if variant.needs_gpu and device == "cpu":
        other = "gpu-fused to run the same steps on the CPU, or salient" if variant.captured else "pyg"
        raise GraphError(f"--rung {name} needs a GPU; take {other}")
    if variant.resident and asked.model != "sage":
        raise GraphError(f"--model {asked.model} is trained by --rung salient or pyg; our kernels are GraphSAGE's")
    if variant.sample == "workers":
        geometric.name_sampler()
    return device, name


def hidden_of(asked: Resolved, device: str) -> int:
    return asked.hidden or (HIDDEN if device == "cuda" else HIDDEN_ON_CPU)


def model_of(asked: Resolved, placed: Placed, state: dict | None, device: str) -> torch.nn.Module:
    """The model on the device, with the weights of the checkpoint's state where there is one. Raises GraphError."""
    graph = placed.graph
    sizes = (graph.features.shape[1], hidden_of(asked, device), graph.classes, len(asked.fanout))
    try:
        model = models.make(asked.model, *sizes)
    except (RuntimeError, MemoryError) as error:  # of torch's allocator
        raise GraphError(f"a model of hidden width {sizes[1]} does not fit here ({str(error)[:100]})") from None
    if isinstance(model, models.Sage):
        model.aggregate = Kernels(device).self_and_mean  # on a CPU a third of the time of torch's bag of embeddings
    if state:
        try:
            model.load_state_dict(state["model"])
        except RuntimeError:
            raise GraphError("the checkpoint's model has other sizes than this graph and --fanout ask for") from None
    return model.to(device)


def inferring(model: str, device: str) -> str:
    """The rung that infers with a model on the device."""
    return "gpu-layers" if device == "cuda" and model == "sage" else "salient"


@contextlib.contextmanager
def loading_libraries(asked: ResolvedInference, state: dict, device: str) -> Iterator[None]:
    """While the block makes or reads the graph a thread makes the GPU's libraries load, which takes as long as inference."""
    if inferring(asked.model, device) != "gpu-layers":
        yield
        return
    with ThreadPoolExecutor(1) as beside:
        loaded = beside.submit(rehearse, asked, state, device)
        yield
        loaded.result()


def rehearse(asked: ResolvedInference, state: dict, device: str) -> None:
    """Infer with the checkpoint's model on a small graph: a ring."""
    nodes = torch.arange(REHEARSED, device=device)
    width, classes = len(state["model"]["own.0"]), state["model"][f"own.{len(asked.fanout) - 1}"].shape[1]
    features = nodes.new_zeros(REHEARSED, width, dtype=torch.bfloat16 if device == "cuda" else torch.float32)
    links = torch.arange(REHEARSED + 1, device=device)
    placed = Placed(Graph(links, nodes.roll(1).int(), features, torch.zeros_like(nodes), nodes, nodes, nodes, classes))
    model = model_of(asked, placed, state, device)
    trainer_of("gpu-layers", placed, model, asked.fanout, asked.batch).accuracy(nodes, asked.fanout)


def threads_of(asked: Resolved) -> int:
    """Threads or processes that prepare batches: those asked for, else this rank's share of the machine's cores."""
    return asked.threads or max(1, len(os.sched_getaffinity(0)) // ranks.here())


@contextlib.contextmanager
def route(
    asked: ResolvedEpoch, placed: Placed, model: torch.nn.Module, device: str, name: str, state: dict | None,
    console: Console,
) -> Iterator[Route]:  # fmt: skip
    """The rung's route, ready to run; closed at the end."""
    variant, objective = VARIANTS[name], objectives.of(placed.graph, getattr(asked, "loss", None))
    with contextlib.ExitStack() as stack:
        if variant.resident:
            with console.status("preparing the steps"):
                trainer = trainer_of(
                    name,
                    placed,
                    model,
                    asked.fanout,
                    asked.batch,
                    asked.lr,
                    asked.seed,
                    ranks.ranks(),
                    objective=objective,
                )
                if state:
                    training.go_on(trainer.optimizer, state["optimizer"])
                trainer.prepare()
            yield _resident(trainer, asked)
            return
        optimizer = torch.optim.Adam(model.parameters(), lr=asked.lr)
        if state:
            training.go_on(optimizer, state["optimizer"])
        trained = torch.nn.parallel.DistributedDataParallel(model) if ranks.is_distributed() else model
        if variant.sample == "threads":
            loader = stack.enter_context(loader_of(asked, placed, device))
            yield Route(
                lambda ids, number, say, trace: training.train_epoch(
                    trained, optimizer, loader, ids, number, device, say, trace, objective
                ),
                lambda ids, say: training.infer_sampled(model, loader, ids, device, say),
                optimizer,
                objective,
            )
            return
        torch.backends.cuda.matmul.allow_tf32 = True  # float32 without it would be slow for no reason of its loader
        console.print(f"NeighborLoader samples by {geometric.name_sampler()}")
        options: dict[str, Any] = {
            "workers": threads_of(asked),
            "device": device,
            "seed": asked.seed,
            "on_device": variant.fetch == "device",
        }
        batches = stack.enter_context(geometric.GeometricLoader(placed.graph, asked.fanout, asked.batch, **options))
        yield Route(
            lambda ids, number, say, trace: geometric.train_epoch(
                trained, optimizer, batches, ids, number, objective, say, trace
            ),
            lambda ids, say: geometric.outputs(model, batches, ids, say),
            optimizer,
            objective,
        )


def loader_of(asked: Resolved, placed: Placed, device: str) -> BatchLoader:
    """The native loader, whose slots are used again; a user's own model sees each node's neighbours once."""
    threads, pin = threads_of(asked), device == "cuda"
    return BatchLoader(
        placed.graph,
        asked.fanout,
        asked.batch,
        threads=threads,
        seed=asked.seed,
        pin=pin,
        copy=False,
        newest_only=models.is_own(asked.model),
    )


def _resident(trainer: Trainer, asked: Resolved) -> Route:
    def run(ids: torch.Tensor, number: int, say: training.Say, trace: SpanTrace | None) -> Any:
        record = trainer.epoch(ids.to(trainer.device), number, trace)
        say(record.batches, record.batches)
        return record

    outputs = lambda ids, _say: trainer.outputs(ids, asked.fanout)  # noqa: E731
    return Route(run, outputs, trainer.optimizer, trainer.objective, trainer)


def trainer_of(
    name: str, placed: Placed, model: torch.nn.Module, fanouts: Sequence[int], batch: int, lr: float = 0.003, seed: int = 0,
    count: int = 1, sources: Mapping[str, str] | None = None, objective: Objective | None = None,
) -> Trainer:  # fmt: skip
    """The resident trainer of a rung, not prepared yet."""
    variant, device = VARIANTS[name], placed.graph.col.device.type
    kernels = Kernels(device, baseline=variant.kernels, sources=sources)
    return Trainer(
        placed.graph, model, kernels, fanouts, batch, lr=lr, fused=variant.compute in ("fused", "layers"),
        padded=variant.step != "exact", captured=variant.captured, layered=variant.compute == "layers", seed=seed, ranks=count,
        cache_rows=placed.cache_rows, objective=objective,
    )  # fmt: skip
