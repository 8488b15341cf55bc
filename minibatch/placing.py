"""Which graph a name means, and where its arrays go: the device, host memory, or features here and the rest there."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from harness.machine import cache_folder
from harness.report.console import Console
from minibatch import benchmark_graphs, folders, graphs, synthetic
from minibatch.graphs import Graph, GraphError
from minibatch.memory import amount, available_bytes, empty_pinned

SPARE = 0.85
"""Share of free memory that a graph may take; batches and weights need the rest."""
MADE_ON_CPU_BYTES = 2 << 30


@dataclass(frozen=True)
class Placed:
    """A graph where a rung wants it. cache_rows: features are in host memory, and so many rows on the device too."""

    graph: Graph
    cache_rows: int | None = None
    identity: str = ""
    """Hash of the graph before it was placed: the same wherever it goes."""


@dataclass(frozen=True)
class Sizes:
    """Bytes of a graph as the GPU route keeps it."""

    topology: int
    features: int
    row: int


def sizes_of(graph: Graph, device: str) -> Sizes:
    row = graph.features.shape[1] * (2 if device == "cuda" else 4)
    rest = sum(values.nbytes for name, values in graph.arrays().items() if name != "features")
    return Sizes(rest, graph.nodes * row, row)


def place_of_features(sizes: Sizes, free: int, host_free: int, asked: str | None) -> str:
    """ "hbm" or "host": on the device where all fits. Raises GraphError where they fit nowhere, or not where they were asked."""
    if sizes.topology > SPARE * free:
        raise GraphError(
            f"the graph's neighbours take {amount(sizes.topology)}, and {amount(free)} are free on the device: "
            "take --rung salient, which samples in host memory, or a smaller graph such as papers10M-like or small"
        )
    fits = sizes.topology + sizes.features <= SPARE * free
    if fits and asked != "host":
        return "hbm"
    if asked == "hbm":
        raise GraphError(
            f"graph and features take {amount(sizes.topology + sizes.features)}, and {amount(free)} are free on "
            "the device: take --features host"
        )
    if sizes.features > SPARE * host_free:
        raise GraphError(
            f"features take {amount(sizes.features)} and fit nowhere: {amount(free)} are free on the device, "
            f"{amount(host_free)} in host memory; take a smaller graph such as papers10M-like or small"
        )
    return "host"


def count_cached_rows(sizes: Sizes, free: int, cache_gib: float | None) -> int:
    """How many rows the cache on the device has: what was asked for, else what fits behind the graph."""
    left = SPARE * free - sizes.topology
    wanted = left if cache_gib is None else cache_gib * (1 << 30)
    if wanted > left:
        raise GraphError(f"--cache-gib {cache_gib:g}: {amount(max(0, left))} are left behind the graph")
    return max(0, int(wanted // sizes.row))


def free_bytes(device: str) -> int:
    return torch.cuda.mem_get_info()[0] if device == "cuda" else available_bytes()


@dataclass(frozen=True)
class Wanted:
    """What was asked for: options of `epoch` and `infer` as the command line names them."""

    graph: str
    device: str
    resident: bool
    """Whether the rung keeps neighbours on the device."""
    features: str | None = None
    cache_gib: float | None = None
    data: Path = Path("dataset")


def place(wanted: Wanted, console: Console) -> Placed:
    """Open or make the graph and put it where the rung keeps it. Raises GraphError.

    A large synthetic graph is made on the GPU where there is one, others once on the CPU and then mapped: the two kinds of
    device draw differently, so a name must not mean one graph here and another there on one machine.
    """
    if wanted.graph in synthetic.RECIPES:
        needed = synthetic.bytes_of(wanted.graph)
        if torch.cuda.is_available() and needed > MADE_ON_CPU_BYTES:
            return replace(_made_on_gpu(wanted, console), identity=f"{wanted.graph}-{synthetic.VERSION}-cuda")
        folder = cache_folder() / "graphs" / f"{wanted.graph}-{synthetic.VERSION}"
        if not folder.exists():
            _require_room(wanted.graph, needed, available_bytes(), "CPU")
            with console.status(f"making {wanted.graph}"):
                graphs.save(synthetic.generate(wanted.graph), folder, same=True)  # every rank makes it
    elif wanted.graph in benchmark_graphs.NAMES:
        folder = cache_folder() / "graphs" / f"{wanted.graph}-{benchmark_graphs.VERSION}"
        if not folder.exists():
            with console.status(f"reading {wanted.graph}"):
                graphs.save(benchmark_graphs.load(wanted.graph, wanted.data), folder, same=True)
    else:
        folder = Path(wanted.graph)
        if not folder.is_dir():
            known = ", ".join([*synthetic.RECIPES, *benchmark_graphs.NAMES])
            raise GraphError(f"there is no graph {wanted.graph!r}; there is {known}, or a graph's folder")
        folder = _converted(folder, console)
    graph = graphs.load(folder)
    return replace(_put(graph, wanted), identity=graph.identity())


def _converted(folder: Path, console: Console) -> Path:
    """The folder, or our own of what a folder of OGB's or GraphBolt's holds, made anew when its files change."""
    read = folders.kind_of(folder)
    if read is None or (folder / "graph.json").exists():
        return folder
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    about = [(str(path.relative_to(folder)), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    key = hashlib.sha256(repr((str(folder.resolve()), about)).encode()).hexdigest()[:16]
    kept = cache_folder() / "graphs" / f"{folder.resolve().name}-{key}"
    if not kept.exists():
        with console.status(f"reading {folder}"):
            graphs.save(read(folder), kept, same=True)
    return kept


def _require_room(name: str, needed: int, free: int, where: str) -> None:
    if needed > SPARE * free:
        raise GraphError(
            f"{name} takes {amount(needed)}, and {amount(free)} are free on the {where}: take a smaller graph, "
            "such as papers10M-like or small"
        )


def _made_on_gpu(wanted: Wanted, console: Console) -> Placed:
    recipe = synthetic.RECIPES[wanted.graph]
    row = recipe.width * 2
    sizes = Sizes(synthetic.bytes_of(wanted.graph) - recipe.nodes * row, recipe.nodes * row, row)
    free = free_bytes("cuda")
    if not wanted.resident:
        _require_room(f"drawing {wanted.graph}", sizes.topology, free, "GPU, which makes it")
        _require_room(wanted.graph, sizes.topology + sizes.features, available_bytes(), "CPU")
        with console.status(f"making {wanted.graph}"):
            # Not pinned: batches are copied out of slots that are, and worker processes read features too.
            made = synthetic.generate(wanted.graph, device="cuda", features_on="cpu")
        arrays = {name: values.cpu() for name, values in made.arrays().items()}
        return Placed(Graph(**arrays, classes=made.classes))
    where = place_of_features(sizes, free, available_bytes(), wanted.features)
    rows = count_cached_rows(sizes, free, wanted.cache_gib) if where == "host" else None
    with console.status(f"making {wanted.graph}"):
        made = synthetic.generate(wanted.graph, device="cuda", features_on="cuda" if where == "hbm" else "pinned")
    return Placed(made, rows)


def _put(graph: Graph, wanted: Wanted) -> Placed:
    """Out of host memory to where the rung keeps it, with features in the dtype that is computed in on the device."""
    if not wanted.resident:
        return Placed(graph)
    device = wanted.device
    sizes, free = sizes_of(graph, device), free_bytes(device)
    where = place_of_features(sizes, free, available_bytes(), wanted.features)
    rows = count_cached_rows(sizes, free, wanted.cache_gib) if where == "host" else None
    moved = {name: values.to(device) for name, values in graph.arrays().items() if name != "features"}
    # Written in pieces to where they stay, pinned from the start in host memory: one copy of the features, whatever their dtype is.
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    shape, pinned = tuple(graph.features.shape), where == "host" and device == "cuda"
    features = empty_pinned(shape, dtype) if pinned else torch.empty(shape, dtype=dtype, device=device)
    for begin in range(0, graph.nodes, synthetic.ROWS_AT_ONCE):
        part = graph.features[begin : begin + synthetic.ROWS_AT_ONCE]
        features[begin : begin + len(part)] = part.to(features.device)
    return Placed(Graph(**moved, features=features, classes=graph.classes), rows)
