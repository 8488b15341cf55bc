"""A graph with features and labels: its arrays, and the folder in which they are kept and opened by memory map."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import warnings
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch

from harness.store import name_full_disk

VERSION = 1
"""Version of the folder's layout."""
CHECKED_AT_ONCE = 1 << 26
"""Elements that are looked at in one piece, so that no second copy of them is made."""
HASHED_BYTES = 1 << 24
"""Bytes of each array, spread evenly over it, that a graph's identity is made of; all of a shorter one."""
SPLITS = ("train", "valid", "test")

KINDS = {
    "col": (torch.int32,),
    "features": (torch.float16, torch.bfloat16, torch.float32),
    "edge_weights": (torch.float32,),
}
"""Dtypes of arrays; all others are int64."""
OPTIONAL = ("edge_ids", "edge_weights")


class GraphError(Exception):
    """A graph that cannot be used; the message is one sentence that says what to do."""


@dataclass
class Graph:
    """A graph in compressed sparse rows, all on one device.

    rowptr int64 [nodes + 1]; col int32 [edges], the in-neighbours of node v, whose messages it gets, at rowptr[v] to
    rowptr[v + 1]; features float16, bfloat16 or float32 [nodes, width]; labels int64 [nodes], -1 where a node has none, or
    float32 [nodes, outputs] of several labels a node or of numbers to be regressed, NaN where a node has none; train, valid, test
    int64 node ids, in any order and as often as they are to be trained on, or bool [nodes], which becomes ids.
    classes: of labels, or outputs. edge_ids int64 [edges]: the number of each edge where it came from; edge_weights float32 [edges].
    """

    rowptr: torch.Tensor
    col: torch.Tensor
    features: torch.Tensor
    labels: torch.Tensor
    train: torch.Tensor
    valid: torch.Tensor
    test: torch.Tensor
    classes: int
    edge_ids: torch.Tensor | None = None
    edge_weights: torch.Tensor | None = None

    def __post_init__(self) -> None:
        for name, values in self.arrays().items():
            if isinstance(values, (np.ndarray, list, tuple)):
                setattr(self, name, tensor_of(name, values))
        for name in SPLITS:
            ids = getattr(self, name)
            if isinstance(ids, torch.Tensor) and ids.dtype == torch.bool and ids.shape == (self.nodes,):
                setattr(self, name, torch.nonzero(ids).flatten())

    @property
    def nodes(self) -> int:
        return len(self.rowptr) - 1

    @property
    def edges(self) -> int:
        return len(self.col)

    def arrays(self) -> dict[str, torch.Tensor]:
        """All tensors by name; optional ones only where they are there."""
        held = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "classes"}
        return {name: values for name, values in held.items() if values is not None}

    def require_consistent(self) -> None:
        """Raises GraphError where a sampler would read beyond an array. It reads every index once."""
        for name, values in self.arrays().items():
            _require_kind(name, values)
        self.require_topology()
        for name in SPLITS:
            _require_below(getattr(self, name), self.nodes, f"{name} ids")
        labels = self.labels
        if labels.dtype == torch.int64 and len(labels):
            low, high = int(labels.min()), int(labels.max())
            if low < -1 or high >= self.classes:
                raise GraphError(
                    f"the graph's labels must lie between 0 and {self.classes - 1}, as it has {self.classes} classes, "
                    f"and be -1 where a node has none; they reach from {low} to {high}"
                )
        if labels.dtype == torch.float32 and labels.shape[1] != self.classes:
            raise GraphError(f"the graph's labels have {labels.shape[1]} outputs, and its classes are {self.classes}")
        for name in ("features", "labels"):
            if len(getattr(self, name)) != self.nodes:
                raise GraphError(f"the graph has {self.nodes} nodes and {name} for {len(getattr(self, name))}")

    def require_topology(self) -> None:
        """Raises GraphError where row pointers and neighbours do not fit together; they were of the right dtypes."""
        if self.nodes < 1:
            raise GraphError("the graph has no nodes: its row pointers must be their number and one more")
        if int(self.rowptr[0]) != 0 or int(self.rowptr[-1]) != self.edges:
            raise GraphError(
                f"the graph's row pointers reach from {int(self.rowptr[0])} to {int(self.rowptr[-1])}, and it has {self.edges} edges"
            )
        if bool((self.rowptr[1:] < self.rowptr[:-1]).any()):
            raise GraphError("the graph's row pointers decrease somewhere; build them as a running sum of degrees")
        for begin in range(0, self.edges, CHECKED_AT_ONCE):
            _require_below(self.col[begin : begin + CHECKED_AT_ONCE], self.nodes, "neighbours")
        for name in OPTIONAL:
            values = getattr(self, name)
            if values is not None and len(values) != self.edges:
                raise GraphError(f"the graph has {self.edges} edges and {name} for {len(values)}")
        if self.edge_weights is not None and not bool(
            (self.edge_weights >= 0).all() & self.edge_weights.isfinite().all()
        ):
            raise GraphError("the graph's edge_weights must be finite and at least 0")

    def require_finite(self) -> None:
        """Raises GraphError where a feature is infinite or not a number. It reads all of them once."""
        rows = max(1, CHECKED_AT_ONCE // max(1, self.features.shape[1]))
        for begin in range(0, self.nodes, rows):
            bad = ~self.features[begin : begin + rows].isfinite().all(dim=1)
            if bool(bad.any()):
                node = begin + int(torch.nonzero(bad)[0])
                raise GraphError(
                    f"the graph's features of node {node} are not all finite; replace what is infinite or not a number"
                )

    def require_ids(self, name: str, hint: str = "") -> None:
        """Raises GraphError, which ends with the hint, where a split has no ids."""
        if not len(getattr(self, name)):
            raise GraphError(f"the graph has no {name} ids, and some are needed here{hint}")

    def identity(self) -> str:
        """16 hex digits that another graph has not: of all sizes and dtypes, and of HASHED_BYTES of each array."""
        made = hashlib.sha256(f"{self.classes}".encode())
        for name, values in sorted(self.arrays().items()):
            made.update(f"{name} {values.dtype} {list(values.shape)} ".encode())
            flat = values.detach().flatten()
            pieces = max(1, -(-flat.nbytes // HASHED_BYTES))
            for part in flat.tensor_split(pieces):
                # Of a long array's pieces an even share each: one that differs in a few elements may be taken for another.
                kept = part[: -(-len(part) // pieces)].contiguous().cpu()
                made.update(kept.view(torch.uint8).numpy().tobytes() if len(kept) else b"")
        return made.hexdigest()[:16]


def _require_kind(name: str, values: torch.Tensor) -> None:
    kinds = KINDS.get(name, (torch.int64,))
    flat = name != "features" and not (name == "labels" and values.dtype == torch.float32 and values.dim() == 2)
    good = values.dtype in kinds or (name == "labels" and not flat)
    if not good or values.dim() != (1 if flat else 2) or not values.is_contiguous():
        wanted = " or ".join(str(kind).removeprefix("torch.") for kind in kinds)
        shape = "flat" if flat else "[nodes, width]"
        found = f"{str(values.dtype).removeprefix('torch.')} {list(values.shape)}"
        raise GraphError(f"the graph's {name} must be {wanted}, {shape} and contiguous; they are {found}")


def tensor_of(name: str, values: Any) -> torch.Tensor:
    """Numbers in a tensor, an array or a list as a dense tensor; unsigned ones, which PyTorch cannot compare, in int64."""
    try:
        if not isinstance(values, torch.Tensor):
            held = np.asarray(values) if len(values) else np.zeros(np.shape(values), dtype=np.int64)
            values = in_place(np.ascontiguousarray(held, dtype=held.dtype.newbyteorder("=")))
    except (TypeError, ValueError):
        kind = type(values).__name__
        raise GraphError(f"{name} must be numbers, in a tensor, an array or a list; they are {kind}") from None
    if values.layout != torch.strided:
        raise GraphError(f"{name} must be dense; call to_dense() first")
    if values.is_meta:
        raise GraphError(f"{name} are on the device meta, which holds no values; give them on the CPU or a GPU")
    return values.to(torch.int64) if values.dtype in (torch.uint16, torch.uint32, torch.uint64) else values.detach()


def in_place(values: np.ndarray) -> torch.Tensor:
    """The array as the tensor that shares its memory."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # nobody writes
        return torch.from_numpy(values)


def convert(name: str, values: Any) -> torch.Tensor:
    """An array of a graph in the dtype and layout that it must have, from a tensor, an array or a list that holds the same.

    Raises GraphError where it does not, such as fractions for ids.
    """
    found = tensor_of(name, values)
    if name == "labels" and not found.is_floating_point() and found.dim() == 2 and found.shape[1] == 1:
        found = found[:, 0]
    kinds = KINDS.get(name, (torch.int64,))
    if found.dtype == torch.bool and name in ("features", "labels"):
        found = found.to(torch.float32 if name == "features" else torch.int64)
    if name == "labels" and found.dim() == 2 and not found.is_floating_point():  # several a node
        found = torch.where(found == -1, torch.nan, found.to(torch.float32))
    if name == "labels" and found.is_floating_point():
        found = found.to(torch.float32)
        found = found[:, None] if found.dim() == 1 else found
    elif found.dtype not in kinds:
        floats = kinds[-1].is_floating_point
        if found.is_complex() or found.dtype == torch.bool or (found.is_floating_point() and not floats):
            kind = str(found.dtype).removeprefix("torch.")
            raise GraphError(f"{name} must be {str(kinds[-1]).removeprefix('torch.')}, and {kind} cannot be made that")
        if kinds == (torch.int32,) and len(found) and int(found.max()) >= 1 << 31:
            raise GraphError(f"{name} have 32 bits here, and the highest is {int(found.max())}")
        found = found.to(kinds[-1])
    if name == "features" and found.dim() == 1:
        found = found[:, None]
    _require_kind(name, found.contiguous())
    return found.contiguous()


def ids_of(values: Any, nodes: int, what: str = "seeds") -> torch.Tensor:
    """int64 node ids from ids or a bool mask [nodes], as a tensor, an array or a list. Raises GraphError."""
    found = tensor_of(what, values)
    found = found.to(torch.int64) if not found.numel() else found
    if found.dtype == torch.bool:
        if found.shape != (nodes,):
            raise GraphError(f"a mask of {what} must have one element a node, {nodes}; it has {list(found.shape)}")
        return torch.nonzero(found).flatten()
    if found.is_floating_point() or found.is_complex() or found.dim() != 1:
        kind = str(found.dtype).removeprefix("torch.")
        raise GraphError(f"{what} must be whole numbers or a mask, flat; they are {kind} {list(found.shape)}")
    if len(found) and (int(found.min()) < 0 or int(found.max()) >= nodes):
        raise GraphError(
            f"{what} reach from {int(found.min())} to {int(found.max())}, and the graph has {nodes} nodes, 0 to {nodes - 1}"
        )
    return found.to(torch.int64).contiguous()


def from_csr(
    rowptr: Any, col: Any, features: Any, labels: Any, *, train: Any = (), valid: Any = (), test: Any = (),
    classes: int | None = None, edge_ids: Any = None, edge_weights: Any = None,
) -> Graph:  # fmt: skip
    """A graph from tensors or arrays; row v of it holds the in-neighbours of node v. Splits are ids or masks.

    What can be converted without loss is. Raises GraphError, also where features are not finite.
    """
    if labels is None:
        labels = torch.full((max(0, len(rowptr) - 1),), -1)
    names = {
        "rowptr": rowptr,
        "col": col,
        "features": features,
        "labels": labels,
        "edge_ids": edge_ids,
        "edge_weights": edge_weights,
    }
    arrays = {name: convert(name, values) for name, values in names.items() if values is not None}
    nodes = len(arrays["rowptr"]) - 1
    if nodes >= 1 << 31:
        raise GraphError(f"node ids have 32 bits here, and the graph has {nodes} nodes")
    splits = {
        name: ids_of(() if ids is None else ids, nodes, f"{name} ids")
        for name, ids in zip(SPLITS, (train, valid, test), strict=True)
    }
    held = arrays["labels"]
    if classes is None:
        known = held.shape[1] if held.dim() == 2 else int(held.max()) + 1 if len(held) else 0
        classes = max(1, known)
    if isinstance(classes, bool) or not hasattr(classes, "__index__") or classes < 1:
        raise GraphError(f"classes must be a whole number of at least 1, not {classes!r}")
    made = Graph(**arrays, **splits, classes=int(classes))
    made.require_consistent()
    made.require_finite()
    return made


def from_coo(source: Any, target: Any, features: Any, labels: Any, *, edge_weights: Any = None, **more: Any) -> Graph:
    """A graph from edges source[i] -> target[i], whole numbers [edges]: a node gets messages from the sources of its edges.

    An undirected graph names each edge in both directions. edge_ids are the edges' places. more: as of `from_csr`.
    """
    features = convert("features", features)
    nodes = len(features)
    ends = [ids_of(ids, nodes, f"edges' {what}") for ids, what in ((source, "sources"), (target, "targets"))]
    if len(ends[0]) != len(ends[1]):
        raise GraphError(f"there are {len(ends[0])} sources and {len(ends[1])} targets of edges")
    rowptr, place = in_rows(ends[1], nodes)
    if edge_weights is not None:
        edge_weights = convert("edge_weights", edge_weights)
        if len(edge_weights) != len(place):
            raise GraphError(f"there are {len(place)} edges and edge_weights for {len(edge_weights)}")
        edge_weights = edge_weights[place]
    return from_csr(rowptr, ends[0][place], features, labels, edge_ids=place, edge_weights=edge_weights, **more)


def in_rows(target: torch.Tensor, nodes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Row pointers int64 [nodes + 1] of edges sorted by these targets, and each edge's place among the unsorted ones."""
    rowptr = torch.zeros(nodes + 1, dtype=torch.int64)
    rowptr[1:] = torch.bincount(target, minlength=nodes).cumsum(0)
    return rowptr, target.argsort(stable=True)


def from_pyg(data: Any, *, edge_weights: str | None = None) -> Graph:
    """A graph from a torch_geometric.data.Data with x, y and edge_index, or adj_t as a CSR tensor of PyTorch's.

    Splits are its masks train_mask, val_mask and test_mask (or train_idx and so on); edge_weights names an attribute of edges.
    """
    if hasattr(data, "node_types"):
        raise GraphError(
            "a graph of several kinds of nodes is not taken; name one kind and one relation of it as a Data"
        )
    held = {"train": "train", "valid": "val", "test": "test"}
    splits = {
        name: _first(data, f"{short}_mask", f"{short}_idx", f"{name}_mask", f"{name}_idx")
        for name, short in held.items()
    }
    splits = {name: ids for name, ids in splits.items() if ids is not None}
    for name, ids in splits.items():
        if ids.dim() != 1:
            raise GraphError(f"the data's {name} masks are {list(ids.shape)}: choose one of its columns first")
    if _first(data, "x") is None:
        raise GraphError("the data has no x, and a graph here needs features of nodes")
    labels = _first(data, "y")
    if labels is None:
        labels = torch.full((len(data.x),), -1)
    labels = labels[:, 0] if labels.dim() == 2 and labels.shape[1] == 1 and not labels.is_floating_point() else labels
    weights = None if edge_weights is None else _first(data, edge_weights)
    if edge_weights is not None and weights is None:
        raise GraphError(f"the data has no {edge_weights} of edges")
    edges, transposed = _first(data, "edge_index"), _first(data, "adj_t")
    if edges is None and transposed is not None and transposed.layout == torch.sparse_csr:
        rowptr, col = transposed.crow_indices(), transposed.col_indices()
        return from_csr(rowptr, col, data.x, labels, edge_weights=weights, **splits)
    if edges is None:
        raise GraphError("the data has neither edge_index nor an adj_t that is PyTorch's own CSR tensor")
    if edges.dim() != 2 or len(edges) != 2:
        raise GraphError(f"the data's edge_index must be [2, edges], sources and targets; it is {list(edges.shape)}")
    return from_coo(edges[0], edges[1], data.x, labels, edge_weights=weights, **splits)


def _first(data: Any, *names: str) -> Any:
    """The first of these attributes that the data has, or None."""
    return next((found for name in names if (found := getattr(data, name, None)) is not None), None)


def _require_below(ids: torch.Tensor, nodes: int, what: str) -> None:
    if len(ids) and not (int(ids.min()) >= 0 and int(ids.max()) < nodes):
        raise GraphError(
            f"the graph's {what} reach from {int(ids.min())} to {int(ids.max())}, and it has {nodes} nodes, 0 to {nodes - 1}"
        )


def save(graph: Graph, folder: Path | str, *, same: bool = False) -> None:
    """Write the graph into a new folder, whole or not at all. Raises GraphError where it is inconsistent or in the way.

    `same`: what lies there already is this graph, which another process has made of the same seed.
    """
    folder = Path(folder)
    graph.require_consistent()
    graph.require_finite()
    if folder.exists() and not same:
        raise GraphError(f"{folder} is there already; remove it or name another folder")
    with name_full_disk(folder):
        _save(graph, folder)


def _save(graph: Graph, folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        for name, values in graph.arrays().items():
            kept = values.cpu()
            if values.dtype == torch.bfloat16:  # numpy has none; of greater range than float16
                kept = kept.to(torch.float16)
                kept = kept if bool(kept.isfinite().all()) else values.cpu().float()
            with (made / f"{name}.npy").open("wb") as file:
                np.save(file, kept.numpy())
                file.flush()
                os.fsync(file.fileno())
        meta = {"version": VERSION, "nodes": graph.nodes, "edges": graph.edges, "classes": graph.classes}
        meta["finite"] = True
        (made / "graph.json").write_text(json.dumps(meta, indent=1) + "\n")
        try:
            made.rename(folder)
        except OSError:
            if not (folder / "graph.json").exists():  # another process may have written the same graph meanwhile
                raise
    finally:
        shutil.rmtree(made, ignore_errors=True)


def load(folder: Path | str) -> Graph:
    """Open a graph's folder by memory map. Raises GraphError where it is none, is cut off or does not fit together."""
    folder = Path(folder)
    try:
        meta = json.loads((folder / "graph.json").read_text())
        names = [f.name for f in fields(Graph) if f.name != "classes"]
        there = [name for name in names if name not in OPTIONAL or (folder / f"{name}.npy").exists()]
        arrays = {name: _mapped(folder / f"{name}.npy") for name in there}
        for name, values in arrays.items():
            _require_kind(name, values)
        graph = Graph(**arrays, classes=int(meta["classes"]))
        stated = meta["version"], meta["nodes"], meta["edges"]
    except FileNotFoundError as error:
        raise GraphError(f"{folder} is no graph: it has no {Path(error.filename).name}") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, OverflowError) as error:
        raise GraphError(f"{folder} is damaged or cut off ({error}); remove it, so that it is made anew") from None
    if stated != (VERSION, graph.nodes, graph.edges):
        raise GraphError(
            f"{folder} says version, nodes, edges {stated}, its arrays say {(VERSION, graph.nodes, graph.edges)}; "
            "remove it, so that it is made anew"
        )
    graph.require_consistent()
    if not meta.get("finite"):  # written by another hand: `save` has looked
        graph.require_finite()
    return graph


def _mapped(path: Path) -> torch.Tensor:
    # Copy on write: torch wants memory that may be written, and nothing of it reaches the file.
    return torch.from_numpy(np.load(path, mmap_mode="c", allow_pickle=False))
