"""Packages that only some uses need: what is missing is named with the command that installs it."""

from __future__ import annotations

import sys

OF_MODULE = {
    "cryptography": "cluster", "dask": "cluster", "distributed": "cluster", "psutil": "cluster", "datasets": "datasets", "mcp": "mcp",
    "ogb": "gnn", "torch_geometric": "gnn", "opentelemetry": "otel", "psycopg": "postgres", "pynvml": "clocks", "safetensors": "traces",
    "tvm_ffi": "tvm-ffi",
}  # fmt: skip
"""Module that is imported -> the extra of pyproject.toml that brings it."""


def install(extra: str) -> str:
    """The command, to be typed in the checkout."""
    return f"{sys.executable} -m pip install -e '.[{extra}]' -c constraints.txt"
