"""An application in which kernels are worth something, and a library: mini-batch training of graph neural networks, as SALIENT does it."""

from __future__ import annotations

from typing import Any

LIBRARY = {
    "Graph": "graphs", "GraphError": "graphs", "from_coo": "graphs", "from_csr": "graphs", "from_pyg": "graphs", "from_dgl": "folders", "from_ogb": "folders", "from_graphbolt": "folders",
    "load": "graphs", "save": "graphs", "Batch": "batches", "BatchLoader": "batches", "NeighborLoader": "neighbor_loader", "LinkNeighborLoader": "pyg_loaders",
}  # fmt: skip
"""Names that other programs use, with the module that has each: imported when it is asked for, since PyTorch takes seconds."""
__all__ = list(LIBRARY)


def __getattr__(name: str) -> Any:
    if name not in LIBRARY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{LIBRARY[name]}"), name)
