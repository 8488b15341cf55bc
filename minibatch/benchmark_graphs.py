"""Graphs of the Open Graph Benchmark, symmetrised as SALIENT trains on them, in this application's layout."""

from __future__ import annotations

import contextlib
import pickle
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy._core.multiarray import _reconstruct  # what the pickle names is private

from minibatch.graphs import Graph, GraphError

NAMES = ("ogbn-arxiv", "ogbn-products", "ogbn-papers100M")
"""OGB's node data sets with one class a node and one kind of node."""
VERSION = 2
"""Version of the conversion, part of a kept graph's name."""
EDGES_AT_ONCE = 1 << 28
"""Edges sorted in one piece: eight bytes each and their sorting's, about 10 GB."""
ROWS_AT_ONCE = 1 << 20
SPLIT_HOLDS: list[Callable[..., Any] | tuple[Callable[..., Any], str]] = [
    (_reconstruct, "numpy.core.multiarray._reconstruct"),
    _reconstruct,
    np.ndarray,
    np.dtype,
    *{type(np.dtype(kind)) for kind in ("int32", "int64")},
]
"""Types that torch.load may make, beside tensors, of the arrays in OGB's split_dict.pt."""


def load(name: str, root: Path) -> Graph:
    """The data set out of OGB's folder `root`, downloaded there first where it is missing; OGB asks before more than 1 GB.

    Features are float16; nodes without a label get -1. Raises GraphError.
    """
    found, split, classes = _read(name, root)
    arrays, labels = found
    if arrays.get("node_feat") is None:
        raise GraphError(f"{name} has no features of nodes, and a model here needs some")
    nodes = int(arrays["num_nodes"])
    features = torch.empty(nodes, arrays["node_feat"].shape[1], dtype=torch.float16)
    for begin in range(0, nodes, ROWS_AT_ONCE):
        features[begin : begin + ROWS_AT_ONCE] = torch.from_numpy(arrays["node_feat"][begin : begin + ROWS_AT_ONCE])
    rowptr, col = symmetrise(torch.from_numpy(np.ascontiguousarray(arrays["edge_index"])), nodes)
    labelled = torch.from_numpy(np.nan_to_num(labels.reshape(-1), nan=-1)).to(torch.int64)
    ids = {part: torch.from_numpy(np.array(split[part], dtype=np.int64)) for part in ("train", "valid", "test")}
    return Graph(rowptr, col, features, labelled, **ids, classes=classes)


def _read(name: str, root: Path) -> tuple[Any, dict[str, Any], int]:
    """OGB's (arrays, labels), split and number of classes."""
    folder = root / name.replace("-", "_")
    dataset = _reader(name)
    try:
        # OGB prints what it does; standard output is for the record.
        with contextlib.redirect_stdout(sys.stderr), torch.serialization.safe_globals(SPLIT_HOLDS):
            opened = dataset(name=name, root=str(root))
            return (opened.graph, opened.labels), opened.get_idx_split(), int(opened.num_classes)
    except NotHad as error:
        raise GraphError(
            f"{name} is not in {root} and was not downloaded ({error}); bring it there as {folder}"
        ) from None
    except (OSError, EOFError, ValueError, KeyError, RuntimeError, zipfile.BadZipFile, pickle.UnpicklingError) as error:
        raise GraphError(
            f"{folder} is damaged or cut off ({_said(error)}); remove it, so that it is had anew"
        ) from None


class NotHad(Exception):
    """A data set that is not there and was not downloaded; why."""


def _reader(name: str) -> type:
    """OGB's class, opening raw files itself. Raises GraphError where OGB is not here.

    OGB's own way keeps a pickle of the arrays beside the raw files (57 GB of papers100M), which today's torch.load refuses.
    """
    try:
        before = sys.modules.get("outdated")
        sys.modules["outdated"] = None  # type: ignore[assignment]  # with it OGB's import asks PyPI for its newest version
        try:
            from ogb.io.read_graph_raw import read_binary_graph_raw, read_csv_graph_raw
            from ogb.nodeproppred import NodePropPredDataset
            from ogb.nodeproppred import dataset as theirs
        finally:
            sys.modules.pop("outdated")
            if before is not None:
                sys.modules["outdated"] = before
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == "ogb"
        why = "is not here: pip install ogb" if missing else f"cannot be imported ({error})"
        raise GraphError(f"{name} is read by the package ogb, which {why}") from None

    class Raw(NodePropPredDataset):
        def pre_process(self) -> None:
            raw = Path(self.root) / "raw"
            if not raw.exists():
                self.download()
            if self.binary:
                self.graph = read_binary_graph_raw(str(raw), False)[0]
                self.labels = np.load(raw / "node-label.npz")["node_label"]
            else:
                # An edge in both directions is what `symmetrise` makes anyway.
                self.graph = read_csv_graph_raw(str(raw), False)[0]
                self.labels = np.loadtxt(raw / "node-label.csv.gz", dtype=np.int64, delimiter=",")

        def download(self) -> None:
            try:
                if not theirs.decide_download(self.meta_info["url"]):
                    raise NotHad("the answer was no")
                archive = theirs.download_url(self.meta_info["url"], self.original_root)
            except (OSError, EOFError) as error:  # no network; nobody to ask
                raise NotHad(_said(error)) from None
            theirs.extract_zip(archive, self.original_root)
            Path(archive).unlink()
            (Path(self.original_root) / self.download_name).rename(self.root)

    return Raw


def _said(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__


def symmetrise(edges: torch.Tensor, nodes: int, at_once: int = EDGES_AT_ONCE) -> tuple[torch.Tensor, torch.Tensor]:
    """(rowptr int64 [nodes + 1], col int32 [edges]) of both directions of edges int64 [2, n], each neighbour once, sorted.

    Made in ranges of rows that hold at most about `at_once` edges, so that 3.2 billion need no second copy of all.
    """
    if edges.numel() and (int(edges.min()) < 0 or int(edges.max()) >= nodes):
        raise GraphError(f"the edges name nodes {int(edges.min())} to {int(edges.max())}, and there are {nodes}")
    if nodes >= 1 << 31:
        raise GraphError(f"node ids have 32 bits here, and the graph has {nodes} nodes")
    ends = (torch.bincount(edges[0], minlength=nodes) + torch.bincount(edges[1], minlength=nodes)).cumsum(0)
    degree = torch.zeros(nodes, dtype=torch.int64)
    parts, first = [], 0
    while first < nodes:
        before = int(ends[first - 1]) if first else 0
        last = min(nodes, max(first + 1, int(torch.searchsorted(ends, before + at_once, right=True))))
        keys = []
        for rows, others in ((edges[0], edges[1]), (edges[1], edges[0])):
            mine = (rows >= first) & (rows < last)
            keys.append((rows[mine] - first) * nodes + others[mine])
        kept = torch.unique(torch.cat(keys))
        degree[first:last] = torch.bincount(kept // nodes, minlength=last - first)
        parts.append((kept % nodes).to(torch.int32))
        first = last
    rowptr = torch.zeros(nodes + 1, dtype=torch.int64)
    torch.cumsum(degree, 0, out=rowptr[1:])
    return rowptr, torch.cat(parts)
