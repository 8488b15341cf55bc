"""What engines call things, and what a tensor is called in C."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Any

from harness.backends import C_TYPES, HOST_TYPES, SCALAR_TYPES
from harness.capture.extents import axis_name

if TYPE_CHECKING:
    import torch

ALIKE = {
    "x": "input", "inp": "input", "in": "input", "src": "input", "hidden_states": "input", "y": "out", "output": "out", "dst": "out",
    "res": "residual", "w": "weight", "gamma": "weight", "bias": "beta", "pos": "positions", "position_ids": "positions",
    "epsilon": "eps", "variance_epsilon": "eps", "out_": "out", "output_q": "out_q", "scale": "scales", "result": "out",
}  # fmt: skip
"""Other names that engines give the same thing."""
COLUMNS = frozenset(
    ("cols", "columns", "col", "hidden", "hidden_units", "width", "d", "dim", "hidden_dimension", "elems_per_row", "elements_per_row",
     "row_length")
)  # fmt: skip
ROWS = frozenset(("rows", "row", "m", "tokens", "batch", "token"))
ELEMENTS = frozenset(("n", "k", "size", "numel", "total", "elements", "count", "nelements", "length", "len", "elem"))
"""Names of whole numbers: the last extent of the largest input, the first, all of its elements."""
POINTED_AT = {
    *C_TYPES.values(),
    *HOST_TYPES.values(),
    "int",
    "long",
    "short",
    "unsigned",
    "char",
    "void",
    "half",
    "nv_bfloat16",
}
"""What a pointer may point to that is given a tensor as it is."""
TORCH_NAMES = {"float16": "c10::Half", "bfloat16": "c10::BFloat16"}
C_NAMES = {"float32": "float", "float16": "half", "bfloat16": "__nv_bfloat16", "float64": "double"}


def bare_name(symbol: str) -> str:
    """A function's own name; of a class that has it, the class's, which is what Python calls it by."""
    parts = re.sub(r"<.*?>", "", re.sub(r"<[^<>]*<[^<>]*>[^<>]*>", "<>", symbol)).split("::")
    return parts[-2] if parts[-1] in ("run", "launch", "forward", "apply") and len(parts) > 1 else parts[-1]


def _function(text: str, symbol: str) -> ast.FunctionDef | None:
    """A Python function, or a class's `forward`."""
    found: ast.AST | None = next(
        (node for node in ast.parse(text).body if getattr(node, "name", "") == symbol.rpartition(".")[2]), None
    )
    if isinstance(found, ast.ClassDef):
        found = next((node for node in found.body if getattr(node, "name", "") == "forward"), None)
    return found if isinstance(found, ast.FunctionDef) else None


def defines(text: str, symbol: str) -> bool:
    """Whether a file of Python has a function of that name outside of classes."""
    return any(isinstance(node, ast.FunctionDef) and node.name == symbol for node in ast.parse(text).body)


def any_number_of(text: str, symbol: str) -> str:
    """`*args` of a Python function, or of a class's `forward`, that has such; else ""."""
    found = _function(text, symbol)
    return f"*{found.args.vararg.arg}" if found is not None and found.args.vararg else ""


def python_parameters(text: str, symbol: str) -> list[str]:
    """Names of a Python function's parameters, or of a class's `forward`; none where it has no such one, or takes any."""
    found = _function(text, symbol)
    if found is None or found.args.kwarg or found.args.vararg:
        return []
    return [one.arg for one in (*found.args.posonlyargs, *found.args.args, *found.args.kwonlyargs)]


def flat(names: Any) -> list[str]:
    return [found for one in names for found in flat(one)] if isinstance(names, list) else [names]


def same(one: str, other: str) -> bool:
    return axis_name(one) == axis_name(other)


def alike(one: str, other: str) -> bool:
    """Whether engines use both names for one thing."""

    def plain(name: str) -> str:
        name = re.sub(r"^(d_|p_|ptr_|optional_|opt_|maybe_)|(_ptr|_tensor|_data|_)$", "", axis_name(name))
        return ALIKE.get(name, name)

    return plain(one) == plain(other)


def dtype_in(form: str, dtype: str) -> str:
    """C++ of a dtype in that form of source; "" where it has none."""
    if form == "tvm_ffi":
        bits = re.search(r"\d+$", dtype)
        kind = (
            "kDLBfloat" if dtype == "bfloat16" else {"f": "kDLFloat", "i": "kDLInt", "u": "kDLUInt"}.get(dtype[0], "")
        )
        return f"DLDataType{{{kind}, {bits[0]}, 1}}" if bits and kind else ""
    scope = "torch::headeronly" if form == "stable" else "at"
    return f"{scope}::ScalarType::{SCALAR_TYPES[dtype]}" if dtype in SCALAR_TYPES else ""


def dtype_name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def stack_integers(tensors: list[torch.Tensor]) -> torch.Tensor:
    import torch

    return torch.cat([tensor.flatten().long() for tensor in tensors if tensor.numel()])
