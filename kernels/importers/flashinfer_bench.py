"""flashinfer-bench's definitions (github.com/flashinfer-ai/flashinfer-bench, docs/flashinfer-trace): `definitions/OP/NAME.json`,
with the workloads in `workloads/OP/NAME.jsonl` of the same data set, or in `traces/`; tensors in files below its folder."""

from __future__ import annotations

from pathlib import Path

from kernels.catalog import KernelError
from kernels.importers import _definition
from kernels.importers._traces import Definitions
from kernels.importers.kernelbench import MOST_BYTES, Title

WORKLOADS = ("workloads", "traces")
KEYS = ('"axes"', '"inputs"', '"outputs"', '"reference"')


def takes(path: Path) -> bool:
    if (
        path.suffix != ".json"
        or path.name == "definition.json"
        or not path.is_file()
        or path.stat().st_size > MOST_BYTES
    ):
        return False
    text = path.read_text(encoding="utf-8", errors="replace")
    return all(key in text for key in KEYS)


def title(path: Path) -> Title:
    return Title(level=0, number=0, name=path.stem[:100])


def read(path: Path) -> Definitions:
    """Raises KernelError."""
    definition = _definition.parse_definition(path)
    where, root = _workloads(path)
    every = _definition.parse_workloads(where, definition.name)
    kept, left_out = _definition.with_common_scalars(every, where)
    _definition.check_sources(definition, kept, where)
    return Definitions(path, definition, kept, where, (root,), left_out=left_out, title=title(path))


def _workloads(path: Path) -> tuple[Path, Path]:
    """Where a definition's workloads are, and the data set's folder. Raises KernelError."""
    for folder in path.parents:
        if folder.name == "definitions":
            below = path.parent.relative_to(folder)
            files = [folder.parent / kind / below / f"{path.stem}.jsonl" for kind in WORKLOADS]
            found = next((file for file in files if file.is_file()), None)
            if found is None:
                raise KernelError(f"{path} has no workloads: neither {' nor '.join(map(str, files))} is there")
            return found, folder.parent
    beside = path.with_suffix(".jsonl")
    if not beside.is_file():
        raise KernelError(
            f"{path} has no workloads: put them, one a line, into {beside.name} beside it, or keep the data set's layout, "
            "definitions/OP/NAME.json and workloads/OP/NAME.jsonl"
        )
    return beside, path.parent
