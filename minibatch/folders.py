"""Graphs that other programs keep: DGL's objects, folders of GraphBolt (DGL's data sets on disk) and of OGB, whatever their names."""

from __future__ import annotations

import gzip
import math
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from minibatch.benchmark_graphs import SPLIT_HOLDS, symmetrise
from minibatch.graphs import SPLITS, Graph, GraphError, from_coo, from_csr, tensor_of

NAMES_OF = {
    "features": ("feat", "x", "features"), "labels": ("label", "y", "labels"), "train": ("train_mask", "train_idx"),
    "valid": ("val_mask", "valid_mask", "val_idx", "valid_idx"), "test": ("test_mask", "test_idx"),
}  # fmt: skip
"""What DGL's users call a node's data."""
DAMAGED = (
    OSError, ValueError, KeyError, TypeError, IndexError, EOFError, RuntimeError, zipfile.BadZipFile, pickle.UnpicklingError
)  # fmt: skip
"""What readers of files that are cut off raise."""
OGB_SPLITS = {"train": "train", "valid": "valid", "test": "test"}
GRAPHBOLT_SPLITS = {"train": "train_set", "valid": "validation_set", "test": "test_set"}


def from_dgl(graph: Any, *, edge_weights: str | None = None) -> Graph:
    """A graph from a DGLGraph of one kind of nodes and edges, whose ndata has feat, label and masks (or x, y, train_idx and so on).

    Messages go from sources to destinations, as DGL's message passing does; edge_weights names data of edges. Raises GraphError.
    """
    if len(graph.ntypes) != 1 or len(graph.canonical_etypes) != 1:
        raise GraphError("heterogeneous graphs are not built here; give one kind of nodes and edges")
    held = {
        name: next((graph.ndata[key] for key in keys if key in graph.ndata), None) for name, keys in NAMES_OF.items()
    }
    if held["features"] is None:
        raise GraphError(f"the graph's ndata has no {' or '.join(NAMES_OF['features'])}, and a graph here needs some")
    if edge_weights is not None and edge_weights not in graph.edata:
        raise GraphError(f"the graph's edata has no {edge_weights}")
    weights = None if edge_weights is None else graph.edata[edge_weights]
    source, target = graph.edges(order="eid")
    splits = {name: held[name] for name in SPLITS}
    labels = held["labels"] if held["labels"] is not None else torch.full((int(graph.num_nodes()),), -1)
    return from_coo(source, target, held["features"], labels, edge_weights=weights, **splits)


def kind_of(folder: Path) -> Callable[[Path], Graph] | None:
    """What reads the folder; None where it is neither GraphBolt's nor OGB's."""
    if (folder / "metadata.yaml").is_file():
        return from_graphbolt
    return from_ogb if (folder / "raw").is_dir() and (folder / "split").is_dir() else None


def from_ogb(folder: Path | str, *, both_ways: bool = True) -> Graph:
    """A graph from a folder in the form of OGB's node property prediction: `raw` and `split`, as csv.gz or npz.

    both_ways: every edge in both directions, each neighbour once, as `--graph ogbn-...` does; else edges point as they are
    named. Raises GraphError.
    """
    folder = Path(folder)
    try:
        raw = folder / "raw"
        if (raw / "data.npz").is_file():
            arrays, labels = np.load(raw / "data.npz"), np.load(raw / "node-label.npz")["node_label"]
            edges, nodes = arrays["edge_index"], int(np.ravel(arrays["num_nodes_list"])[0])
            features = arrays.get("node_feat")
        else:
            edges, labels = _csv(raw / "edge.csv.gz", np.int64).T, _csv(raw / "node-label.csv.gz", np.float64)
            nodes = int(_csv(raw / "num-node-list.csv.gz", np.int64)[0, 0])
            there = (raw / "node-feat.csv.gz").is_file()
            features = _csv(raw / "node-feat.csv.gz", np.float32) if there else None
        splits = _ogb_splits(folder / "split")
    except FileNotFoundError as error:
        raise GraphError(f"{folder} is no data set of OGB's: it has no {error.filename}") from None
    except DAMAGED as error:
        raise GraphError(f"{folder} is damaged or cut off ({type(error).__name__}: {str(error)[:150]})") from None
    if features is None:
        raise GraphError(f"{folder} has no features of nodes, and a graph here needs some")
    ends = torch.from_numpy(np.ascontiguousarray(edges, dtype=np.int64).reshape(2, -1))
    known = _labels(labels)
    if both_ways:
        return from_csr(*symmetrise(ends, nodes), features, known, **splits)
    return from_coo(ends[0], ends[1], features, known, **splits)


def _csv(path: Path, kind: type) -> np.ndarray:
    """[rows, columns] of a gzipped file without a header."""
    with gzip.open(path, "rt") as file:
        found = np.genfromtxt(file, delimiter=",", dtype=kind) if kind is np.float64 else np.loadtxt(
            file, delimiter=",", dtype=kind, ndmin=2
        )  # fmt: skip
    return found if found.ndim == 2 else found[:, None]


def _labels(labels: np.ndarray) -> Any:
    """One class a node in int64, -1 for none, where labels are whole numbers in one column; else float32 [nodes, outputs]."""
    found = np.asarray(labels, dtype=np.float64).reshape(len(labels), -1)
    whole = np.isnan(found) | (found == np.floor(found))
    if found.shape[1] == 1 and bool(whole.all()):
        return np.nan_to_num(found[:, 0], nan=-1).astype(np.int64)
    return found.astype(np.float32)


def _ogb_splits(folder: Path) -> dict[str, Any]:
    ways = [path for path in sorted(folder.iterdir()) if path.is_dir()]
    if len(ways) != 1:
        raise GraphError(f"{folder} has {len(ways)} ways to split ({', '.join(w.name for w in ways)}); leave one")
    held = ways[0] / "split_dict.pt"
    if held.is_file():
        with torch.serialization.safe_globals(SPLIT_HOLDS):
            found = torch.load(held, weights_only=True)
        return {name: np.asarray(found[theirs]) for name, theirs in OGB_SPLITS.items()}
    return {name: _csv(ways[0] / f"{theirs}.csv.gz", np.int64)[:, 0] for name, theirs in OGB_SPLITS.items()}


def from_graphbolt(folder: Path | str) -> Graph:
    """A graph from a folder with GraphBolt's metadata.yaml: one kind of nodes and edges, its node feature `feat` (or the only one),
    and its first task's seeds and labels. Edges point from sources to destinations. Raises GraphError."""
    try:
        import yaml  # type: ignore[import-untyped]
    except ImportError as error:
        raise GraphError(f"metadata.yaml is read by the package PyYAML, which cannot be imported ({error})") from None

    folder = Path(folder)
    try:
        about = yaml.safe_load((folder / "metadata.yaml").read_text())
        nodes, edges = about["graph"]["nodes"], about["graph"]["edges"]
        if len(nodes) != 1 or len(edges) != 1:
            raise GraphError(f"{folder} is heterogeneous, which is not built here; give one kind of nodes and edges")
        ends = _array(folder, edges[0])
        ends = ends if ends.shape[0] == 2 else ends.T
        count = int(nodes[0]["num"])
        held = [one for one in about.get("feature_data") or () if one.get("domain") == "node"]
        named = [one for one in held if one["name"] in NAMES_OF["features"]] or held
        if len(named) != 1:
            raise GraphError(f"{folder} has {len(named)} features of nodes, and one is needed, named feat")
        features = _array(folder, named[0])
        task = about["tasks"][0]
        sets = {name: _items(folder, task.get(theirs)) for name, theirs in GRAPHBOLT_SPLITS.items()}
    except FileNotFoundError as error:
        raise GraphError(f"{folder} is no data set of GraphBolt's: it has no {error.filename}") from None
    except (*DAMAGED, yaml.YAMLError) as error:
        raise GraphError(f"{folder} is damaged or cut off ({type(error).__name__}: {str(error)[:150]})") from None
    if len(features) != count:
        raise GraphError(f"{folder} has {count} nodes and features for {len(features)}")
    labels = _labels_of_sets(sets, count)
    splits = {name: seeds for name, (seeds, _) in sets.items()}
    classes = task.get("num_classes") if np.issubdtype(labels.dtype, np.integer) else None
    return from_coo(ends[0], ends[1], features, labels, classes=classes, **splits)


def _labels_of_sets(sets: dict[str, tuple[np.ndarray, np.ndarray | None]], count: int) -> np.ndarray:
    """Of all nodes, from those that the sets' seeds have."""
    parts = [(seeds, _labels(held)) for seeds, held in sets.values() if held is not None and len(seeds)]
    floats = [part for _, part in parts if part.dtype != np.int64]
    if floats:
        labels = np.full((count, floats[0].shape[1]), math.nan, dtype=np.float32)
    else:
        labels = np.full(count, -1, dtype=np.int64)
    for seeds, part in parts:
        if len(seeds) != len(part) or seeds.min() < 0 or seeds.max() >= count:
            raise GraphError(f"the graph has {count} nodes, and a set of {len(seeds)} seeds has labels for {len(part)}")
        labels[seeds] = part if part.ndim == labels.ndim else part[:, None]
    return labels


def _items(folder: Path, sets: Any) -> tuple[np.ndarray, np.ndarray | None]:
    """Seeds and labels of a set of a task."""
    if not sets:
        return np.zeros(0, dtype=np.int64), None
    if len(sets) != 1:
        raise GraphError(f"{folder} has sets of several kinds of nodes, which are not built here")
    arrays = {one.get("name"): _array(folder, one) for one in sets[0]["data"]}
    seeds = next(arrays[name] for name in ("seeds", "seed_nodes") if name in arrays)
    return np.asarray(seeds, dtype=np.int64).reshape(-1), arrays.get("labels")


def _array(folder: Path, about: dict[str, Any]) -> np.ndarray:
    """An array that metadata.yaml names, by its format."""
    path = folder / about["path"]
    kind = about.get("format", "numpy")
    if kind == "numpy":
        return np.load(path, allow_pickle=False)
    if kind == "torch":
        return tensor_of(str(path), torch.load(path, weights_only=True)).numpy()
    if kind == "csv":
        return np.loadtxt(path, delimiter=",", dtype=np.int64, ndmin=2)
    raise GraphError(f"{path}: the format {kind} is not read here; there is numpy, torch and csv")
