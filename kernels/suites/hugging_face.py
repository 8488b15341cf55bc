"""KernelBench's problems from the Hugging Face hub, or a data set of that form: `hf:OWNER/NAME`, `hf:OWNER/NAME@REVISION`.

Splits `level_1`, `level_2`, ...; a row is a problem: `problem_id`, `name`, `code`. The rows become files of a suite's folder, so
that everything after goes the way of a checkout. Data only: nothing of the data set is executed here.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from kernels.catalog import KernelError
from kernels.extras import install
from kernels.importers.kernelbench import MOST_BYTES

PREFIX = "hf:"
MOST_ROWS = 10_000


def is_hugging_face(suite: str) -> bool:
    return suite.startswith(PREFIX)


def name(suite: str) -> str:
    """A folder's name for it: `hf:ScalingIntelligence/KernelBench@v1` -> `KernelBench-v1`."""
    return re.sub(r"[^\w.-]+", "-", suite.removeprefix(PREFIX).rstrip("/").rpartition("/")[2]).strip("-.") or "suite"


def fetch(suite: str, into: Path) -> Path:
    """The folder of the data set's problem files, `into/level1/23_Softmax.py`; what is there already is not fetched again.

    `suite`: `hf:` and a name on the hub or a local folder that `datasets` can load. Raises KernelError.
    """
    if into.is_dir():
        return into
    into.parent.mkdir(parents=True, exist_ok=True)
    whole = Path(tempfile.mkdtemp(prefix=f"{into.name}.", dir=into.parent))
    try:
        for split, rows in _loaded(suite).items():
            if level := re.fullmatch(r"level_?(\d+)", split):
                _write(rows, whole / f"level{level[1]}", suite)
        if not any(whole.iterdir()):
            raise KernelError(f"{suite} has no split level_1, level_2 or level_3: it is no data set of problems")
        os.replace(whole, into)
    finally:
        shutil.rmtree(whole, ignore_errors=True)
    return into


def _loaded(suite: str) -> Mapping[str, object]:
    """Its splits by name."""
    try:
        import datasets
    except ImportError:
        raise KernelError(f"{suite} needs the package datasets; in the checkout: {install('datasets')}") from None
    where, _, revision = suite.removeprefix(PREFIX).partition("@")
    datasets.disable_progress_bars()
    try:
        found = datasets.load_dataset(where, revision=revision or None)
    except Exception as error:  # noqa: BLE001, its errors and those of the network have no class in common; all mean the same here
        said = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise KernelError(f"{suite} cannot be loaded: {said[:400]}") from None
    return found if isinstance(found, Mapping) else {str(found.split): found}


def _write(rows: object, folder: Path, suite: str) -> None:
    columns = set(rows.column_names)  # type: ignore[attr-defined]
    if missing := [column for column in ("problem_id", "name", "code") if column not in columns]:
        raise KernelError(f"{suite} has no column {missing[0]}: it is no data set of KernelBench's form")
    folder.mkdir()
    for at, row in enumerate(rows):  # type: ignore[arg-type,var-annotated]
        number, title, code = row["problem_id"], str(row["name"]), row["code"]
        if at == MOST_ROWS or not isinstance(code, str) or len(code) > MOST_BYTES or not 0 < int(number) < 10**6:
            raise KernelError(f"{suite}: row {at} of {folder.name} is no problem")
        stem = re.sub(r"[^\w() +.-]", "_", title.removesuffix(".py").removeprefix(f"{number}_"))[:100]
        (folder / f"{int(number)}_{stem}.py").write_text(code, encoding="utf-8")
