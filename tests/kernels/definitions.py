"""A small definition of our own with its workloads, in the two layouts, and ways to spoil them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

REFERENCE = """\
import torch


def made(axes_and_scalars, device):
    return {"ids": torch.randint(0, axes_and_scalars["T"], (axes_and_scalars["N"],), dtype=torch.int32, device=device)}


@torch.no_grad()
def run(X, ids, table, eps):
    rows = table[ids.long()].to(torch.float32) + X.to(torch.float32)
    scale = torch.rsqrt(rows.pow(2).mean(-1, keepdim=True) + eps)
    return {"sums": rows.sum(-1), "out": (rows * scale).to(X.dtype)}
"""

DEFINITION = {
    "name": "gather_norm_d16",
    "op_type": "norm",
    "tags": ["status:draft"],
    "description": "Rows of a table added to X and normalised.",
    "axes": {"N": {"type": "var"}, "T": {"type": "const", "value": 8}, "D": {"type": "const", "value": 16}},
    "inputs": {
        "X": {"shape": ["N", "D"], "dtype": "bfloat16"},
        "ids": {"shape": ["N"], "dtype": "int32"},
        "table": {"shape": ["T", "D"], "dtype": "bfloat16"},
        "eps": {"shape": None, "dtype": "float32"},
    },
    "outputs": {"out": {"shape": ["N", "D"], "dtype": "bfloat16"}, "sums": {"shape": ["N"], "dtype": "float32"}},
    "reference": REFERENCE,
}
SIZES = (12, 100, 5, 64)


def trace(size: int, ids: dict | None = None, eps: float = 1e-6) -> dict:
    inputs = {"X": {"type": "random"}, "table": {"type": "random"}, "eps": {"type": "scalar", "value": eps}}
    inputs["ids"] = ids or {"type": "safetensors", "path": f"blob/n{size}.safetensors", "tensor_key": "ids"}
    return {"uuid": f"n{size}", "axes": {"N": size}, "inputs": inputs}


def flashinfer(
    folder: Path, sizes: tuple[int, ...] = SIZES, change: Callable[[dict, list[dict]], None] = lambda _d, _w: None
) -> Path:
    """A data set in flashinfer-bench's layout; answers the definition's path."""
    import torch

    save_file = pytest.importorskip("safetensors.torch").save_file  # the optional group `traces`
    definition, workloads = json.loads(json.dumps(DEFINITION)), [trace(size) for size in sizes]
    (folder / "blob").mkdir(parents=True, exist_ok=True)
    for size in sizes:
        ids = (torch.arange(size) % 8).flip(0).to(torch.int32)
        save_file({"ids": ids}, folder / "blob" / f"n{size}.safetensors")
    change(definition, workloads)
    path = folder / "definitions" / "norm" / "gather_norm_d16.json"
    lines = [
        {"definition": definition["name"], "workload": one, "solution": None, "evaluation": None} for one in workloads
    ]
    return _written(path, definition, folder / "workloads" / "norm" / "gather_norm_d16.jsonl", lines)


def sol(folder: Path, change: Callable[[dict, list[dict]], None] = lambda _d, _w: None) -> Path:
    """A problem in SOL-ExecBench's layout, with an axis that follows from another and inputs made by a function."""
    definition = json.loads(json.dumps(DEFINITION)) | {"hf_id": None, "custom_inputs_entrypoint": "made"}
    definition["axes"]["half"] = {"type": "expr", "expression": "D // 2"}
    definition["axes"]["twice"] = {"type": "expr", "expression": "N * 2"}
    workloads = [trace(size, {"type": "custom"}) | {"tolerance": {"max_atol": 0.01}} for size in SIZES]
    change(definition, workloads)
    below = folder / "L1" / "gather_norm"
    return _written(below / "definition.json", definition, below / "workload.jsonl", workloads)


def _written(path: Path, definition: dict, where: Path, lines: list[dict]) -> Path:
    for file, text in ((path, json.dumps(definition)), (where, "".join(json.dumps(one) + "\n" for one in lines))):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return path
