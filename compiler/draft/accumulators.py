"""What a fold keeps while it runs: its type, where it starts, how two of them join."""

from __future__ import annotations

from .printing import _bare, number_text
from .tensors import Definition

JOINS = {
    "sum": "a + b", "prod": "a * b", "max": "maximum(a, b)", "min": "minimum(a, b)", "any": "a || b", "all": "a && b",
    "argmax": "larger(a, b)", "argmin": "smaller(a, b)", "welford": "joined(a, b)", "softmax": "joined(a, b)",
    "join_welford": "joined(a, b)", "join_softmax": "joined(a, b)",
}  # fmt: skip
UPDATES = {
    "sum": "{0} += {1};", "prod": "{0} *= {1};", "max": "{0} = maximum({0}, {1});", "min": "{0} = minimum({0}, {1});",
    "any": "{0} = {0} || {2};", "all": "{0} = {0} && {2};",
}  # fmt: skip
PARTS = {
    "welford": ("mean", "squares", "count"), "join_welford": ("mean", "squares"), "softmax": ("highest", "total"),
    "join_softmax": ("highest", "total"), "argmax": ("index",), "argmin": ("index",),
}  # fmt: skip


def step(kind: str, name: str, text: str) -> str:
    """The statement that takes an element into what a fold keeps."""
    return UPDATES[kind].format(name, _bare(text), text)


def is_struct(definition: Definition) -> bool:
    return definition.kind in PARTS


def accumulator_type(device: str, definition: Definition) -> str:
    """Sums on a CPU are kept in double: one thread adds a whole row there, where a GPU's add in parts."""
    kind, type = definition.kind, definition.type
    if kind in ("any", "all"):
        return "bool"
    if kind in ("argmax", "argmin"):
        return f"Place<{type}>"
    if (
        kind in ("sum", "prod", "welford", "join_welford", "scan_sum", "scan_prod")
        and device == "cpu"
        and type == "float"
    ):
        type = "double"
    if kind.endswith("welford"):
        return f"Moments<{type}>"
    if kind.endswith("softmax"):
        return f"Shifted<{type}>"
    return type


def identity(device: str, definition: Definition) -> str:
    kind, type = definition.kind, definition.type
    if kind in ("argmax", "argmin"):
        return f"{{{_extreme(type, kind == 'argmax')}, 0}}"  # where all are as extreme, the first counts
    if kind.endswith("welford"):
        return "{0, 0, 0}"
    if kind.endswith("softmax"):
        return "{-INFINITY, 0}"
    if kind in ("max", "min"):
        return _extreme(type, kind == "max")
    if kind in ("any", "all"):
        return "true" if kind == "all" else "false"
    return number_text(0 if kind == "sum" else 1, accumulator_type(device, definition))


def _extreme(type: str, lowest: bool) -> str:
    if type in ("float", "double"):
        return "-INFINITY" if lowest else "INFINITY"
    if type == "bool":
        return "false" if lowest else "true"
    bits = "INT64" if type == "int64_t" else "INT32"
    return f"{bits}_{'MIN' if lowest else 'MAX'}"


def cast_to(text: str, definition: Definition, device: str) -> str:
    held = accumulator_type(device, definition)
    return f"static_cast<double>({text})" if "double" in held and definition.type == "float" else text
