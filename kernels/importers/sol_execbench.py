"""SOL-ExecBench's problems (github.com/NVIDIA/SOL-ExecBench, docs/): a folder with `definition.json` and `workload.jsonl`,
flashinfer-bench's form with axes that follow from others and inputs that a function of the reference makes."""

from __future__ import annotations

import math
import re
from pathlib import Path

from kernels.importers import _definition
from kernels.importers._traces import Definitions
from kernels.importers.kernelbench import MOST_BYTES, Title

BY_NAME = (
    (r"(.*_)?(rstd|std|variance|var)\d*", "range:0.1:3"),
    (r"(cos|sin)(_cached)?|rope_(cos|sin)", "range:-1:1"),
    (r"A|A_log|A_cumsum|g", "range:-5:-0.001"),
    (r"attn_weights|attention_weights|routing_weights", "uniform"),
    (r"(x|text|aspect_ratio|drop|attention)_mask", "integers:0:2"),
)
"""What a random input of such a name may hold: its operation takes no other, as that benchmark's own generator has it."""
WEIGHT = re.compile(r"(.*_)?(weights?|projs?|weight_matrix)\d*")


def takes(path: Path) -> bool:
    return path.name == "definition.json" and path.is_file() and path.stat().st_size <= MOST_BYTES


def title(path: Path) -> Title:
    level = re.fullmatch(r"L(\d)", path.parent.parent.name)
    return Title(level=int(level[1]) if level else 0, number=0, name=path.parent.name[:100] or "problem")


def read(path: Path) -> Definitions:
    """Raises KernelError."""
    definition = _definition.parse_definition(path)
    where = path.parent / "workload.jsonl"
    every = _definition.parse_workloads(where, definition.name)
    kept, left_out = _definition.with_common_scalars(every, where)
    _definition.check_sources(definition, kept, where)
    stored = ("flashinfer-trace", "data/flashinfer-trace")
    roots = (path.parent, *(up for up in path.parents if any((up / place).is_dir() for place in stored)))
    return Definitions(
        path, definition, kept, where, roots, distribution=distribution, left_out=left_out, title=title(path)
    )


def distribution(name: str, shape: tuple[int, ...]) -> str:
    for pattern, values in BY_NAME:
        if re.fullmatch(pattern, name):
            return values
    if len(shape) > 1 and WEIGHT.fullmatch(name):
        return f"normal:0:{1 / math.sqrt(max(shape[-1], 1)):.6g}"
    return "ordinary"
