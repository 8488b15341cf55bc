"""A graph with features and labels: its arrays, and the folder in which they are kept and opened by memory map."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import torch

VERSION = 1
"""Of the folder's layout."""
CHECKED_AT_ONCE = 1 << 26
"""Indices that are looked at in one piece when a graph is written, so that no second copy of them is made."""

KINDS = {"col": (torch.int32,), "features": (torch.float16, torch.bfloat16, torch.float32)}
"""Dtypes of arrays; all others are int64."""


class GraphError(Exception):
    """A graph that cannot be used; the message is one sentence that says what to do."""


@dataclass
class Graph:
    """A graph in compressed sparse rows, all on one device.

    rowptr int64 [nodes + 1]; col int32 [edges], the neighbours of node v at rowptr[v] to rowptr[v + 1]; features float16,
    bfloat16 or float32 [nodes, width]; labels int64 [nodes]; train, valid, test int64 node ids.
    """

    rowptr: torch.Tensor
    col: torch.Tensor
    features: torch.Tensor
    labels: torch.Tensor
    train: torch.Tensor
    valid: torch.Tensor
    test: torch.Tensor
    classes: int

    @property
    def nodes(self) -> int:
        return len(self.rowptr) - 1

    @property
    def edges(self) -> int:
        return len(self.col)

    def arrays(self) -> dict[str, torch.Tensor]:
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name != "classes"}

    def require_consistent(self) -> None:
        """Raises GraphError where a sampler would read beyond an array. It reads every index once."""
        for name, values in self.arrays().items():
            kinds = KINDS.get(name, (torch.int64,))
            if (
                values.dtype not in kinds
                or values.dim() != (2 if name == "features" else 1)
                or not values.is_contiguous()
            ):
                wanted = " or ".join(str(kind).removeprefix("torch.") for kind in kinds)
                shape = "[nodes, width]" if name == "features" else "flat"
                found = f"{str(values.dtype).removeprefix('torch.')} {list(values.shape)}"
                raise GraphError(f"the graph's {name} must be {wanted}, {shape} and contiguous; they are {found}")
        if self.nodes < 1 or int(self.rowptr[0]) != 0 or int(self.rowptr[-1]) != self.edges:
            raise GraphError(f"the graph's row pointers end at {int(self.rowptr[-1])}, and it has {self.edges} edges")
        if bool((self.rowptr[1:] < self.rowptr[:-1]).any()):
            raise GraphError("the graph's row pointers decrease somewhere; build them as a running sum of degrees")
        for begin in range(0, self.edges, CHECKED_AT_ONCE):
            _require_below(self.col[begin : begin + CHECKED_AT_ONCE], self.nodes, "neighbours")
        for name in ("train", "valid", "test"):
            _require_below(getattr(self, name), self.nodes, f"{name} ids")
        if len(self.labels) and not (int(self.labels.min()) >= 0 and int(self.labels.max()) < self.classes):
            raise GraphError(
                f"the graph's labels must lie between 0 and {self.classes - 1}, as it has {self.classes} classes"
            )
        for name in ("features", "labels"):
            if len(getattr(self, name)) != self.nodes:
                raise GraphError(f"the graph has {self.nodes} nodes and {name} for {len(getattr(self, name))}")


def _require_below(ids: torch.Tensor, nodes: int, what: str) -> None:
    if len(ids) and not (int(ids.min()) >= 0 and int(ids.max()) < nodes):
        raise GraphError(
            f"the graph's {what} reach from {int(ids.min())} to {int(ids.max())}, and it has {nodes} nodes, 0 to {nodes - 1}"
        )


def save(graph: Graph, folder: Path, *, same: bool = False) -> None:
    """Write the graph into a new folder, whole or not at all. Raises GraphError where it is inconsistent or in the way.

    `same`: what lies there already is this graph, which another process has made of the same seed.
    """
    graph.require_consistent()
    if folder.exists() and not same:
        raise GraphError(f"{folder} is there already; remove it or name another folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        for name, values in graph.arrays().items():
            kept = values.cpu().to(torch.float16) if values.dtype == torch.bfloat16 else values.cpu()
            with (made / f"{name}.npy").open("wb") as file:
                np.save(file, kept.numpy())
                file.flush()
                os.fsync(file.fileno())
        meta = {"version": VERSION, "nodes": graph.nodes, "edges": graph.edges, "classes": graph.classes}
        (made / "graph.json").write_text(json.dumps(meta, indent=1) + "\n")
        try:
            made.rename(folder)
        except OSError:
            if not (folder / "graph.json").exists():  # another process may have written the same graph meanwhile
                raise
    finally:
        shutil.rmtree(made, ignore_errors=True)


def load(folder: Path) -> Graph:
    """Open a graph's folder by memory map. Raises GraphError where it is none, is cut off or does not fit together."""
    try:
        meta = json.loads((folder / "graph.json").read_text())
        arrays = {f.name: _mapped(folder / f"{f.name}.npy") for f in fields(Graph) if f.name != "classes"}
        graph = Graph(**arrays, classes=int(meta["classes"]))
        stated = meta["version"], meta["nodes"], meta["edges"]
    except FileNotFoundError as error:
        raise GraphError(f"{folder} is no graph: it has no {Path(error.filename).name}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise GraphError(f"{folder} is damaged or cut off ({error}); remove it, so that it is made anew") from None
    if stated != (VERSION, graph.nodes, graph.edges):
        raise GraphError(
            f"{folder} says version, nodes, edges {stated}, its arrays say {(VERSION, graph.nodes, graph.edges)}; "
            "remove it, so that it is made anew"
        )
    graph.require_consistent()
    return graph


def _mapped(path: Path) -> torch.Tensor:
    # Copy on write: torch wants memory that may be written, and nothing of it reaches the file.
    return torch.from_numpy(np.load(path, mmap_mode="c", allow_pickle=False))
