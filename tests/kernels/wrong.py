"""Candidates that must be refused: `kernels/NAME/wrong/WRONG.cu.diff` says why in front of a diff of one of the kernel's baselines."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from kernels.catalog import DEVICES_OF_SUFFIX, Kernel
from kernels.spec import Device

_MADE = tempfile.TemporaryDirectory(prefix="wrong-")


def wrong(kernel: Kernel, device: Device) -> dict[str, Path]:
    """The sources by their names, written beside each other into a folder that is gone when Python ends."""
    found = {}
    for diff in sorted((kernel.folder / "wrong").glob("*.diff")):
        path = Path(_MADE.name, kernel.spec.name, "wrong", diff.stem)
        if device in DEVICES_OF_SUFFIX[path.suffix]:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(patched(diff, kernel.folder))
            found[path.stem] = path
    return found


def patched(diff: Path, folder: Path) -> str:
    """The baseline that a diff names, changed. Raises ValueError where the baseline is not what the diff was made of."""
    reason, name, _, hunks = re.fullmatch(
        r"(WRONG: .*)^--- (.*?)\n\+\+\+ (.*?)\n(.*)", diff.read_text(), re.M | re.S
    ).groups()
    old, new, at = (folder / name).read_text().splitlines(), ["// " + line for line in reason.splitlines()], 0
    for line in hunks.splitlines():
        if line.startswith("@@"):
            begin = int(line.split()[1].lstrip("-").partition(",")[0]) - 1
            new += old[at:begin]
            at = begin
            continue
        if line[0] != "+":
            if old[at] != line[1:]:
                raise ValueError(f"{diff}: line {at + 1} of {name} is not {line[1:]!r} any more")
            at += 1
        if line[0] != "-":
            new.append(line[1:])
    return "\n".join([*new, *old[at:], ""])
