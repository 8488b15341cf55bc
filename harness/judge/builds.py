"""A source built by its backend: what a kernel brings for its compiler, and what comes of it."""

from __future__ import annotations

import hashlib
import re
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from harness import backends
from harness.judge import triton_kernels
from harness.processes.scratch import remove_tree
from harness.processes.watchdog import folder_bytes
from harness.records import Build, DeviceFacts
from harness.store import digest, digest_of, write_atomically
from kernels.spec import INCLUDED

COMPILE_S = 300.0


@dataclass(frozen=True)
class Brought:
    """What a kernel brings for its compiler."""

    flags: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    headers: dict[str, bytes] = field(default_factory=dict)
    """Contents by path below the kernel's folder."""

    def digest(self) -> str:
        """ "" where there is nothing."""
        if not (self.flags or self.headers):
            return ""
        held = [f"{name} {hashlib.sha256(text).hexdigest()}" for name, text in self.headers.items()]
        return digest(*self.flags, "", *self.include, "", *held)

    def put(self, folder: Path) -> tuple[str, ...]:
        """Write the headers into a folder that is not there; the compiler's flags."""
        for name, text in self.headers.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text)
        places = [folder, *(folder / name for name in self.include)] if self.headers else []
        return (*(f"-I{place}" for place in places), *self.flags)


HEADERS = "kernel"
"""Folder of a build in which the kernel's headers lie while it is compiled."""


def compile_build(
    candidate: str, text: str, module: ModuleType, folder: Path, facts: DeviceFacts, brought: Brought = Brought(),
    **entry: str,
) -> Build:  # fmt: skip
    """That source built into `folder` by its backend for that device, or why it could not be."""
    source, artefact = folder / f"candidate{module.SUFFIX}", folder / getattr(module, "ARTEFACT", "candidate.so")
    source.write_text(text)
    start = time.perf_counter()
    remove_tree(folder / HEADERS)  # of a build that was killed
    asked: dict[str, Any] = {**entry, "flags": brought.put(folder / HEADERS)} if brought.digest() else {**entry}
    if INCLUDED in brought.flags and backends.is_alone(module, text, entry):
        flags = list(asked["flags"])
        while INCLUDED in flags:
            del flags[(at := flags.index(INCLUDED)) : at + 2]
        asked["flags"] = tuple(flags)
    done = module.compile(source, artefact, facts, COMPILE_S, **asked)
    remove_tree(folder / HEADERS)
    if brought.headers:  # headers are called what the user calls them
        done = replace(done, log=re.sub(rf"(?<![\w/.-]){HEADERS}/", "", done.log))
    size = folder_bytes(str(artefact), backends.ARTEFACT_BYTES) if artefact.is_dir() else _bytes(artefact)
    if done.ok and size > backends.ARTEFACT_BYTES:
        allowed = f"{backends.ARTEFACT_BYTES >> 20} MiB"
        done = backends.Compiled(False, f"error: what was compiled is larger than the {allowed} that are allowed")
    if not done.ok and artefact.is_file():
        artefact.unlink()  # nobody will ask for it
    return Build(
        candidate=candidate, backend=backends.name_of(module), ok=done.ok, artefact=str(artefact) if done.ok else "",
        log=done.log[-20_000:], seconds=time.perf_counter() - start, resources=done.resources,
    )  # fmt: skip


def place_build(build: Build, folder: Path, files: dict[str, bytes]) -> Build:
    """The build with its files written into `folder`."""
    for name, data in files.items():
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()):
            raise ValueError(f"{name} is no path in a build's folder")
        if not path.exists():
            write_atomically(path, data)
    return build.model_copy(update={"artefact": str(folder / build.artefact) if build.ok else ""})


ADDED_LATER = ("__pycache__", triton_kernels.CACHE)
"""Folders of a build that are filled after it was made, so that its digest leaves them out."""


def is_intact(build: Build) -> bool:
    """Whether the artefact is there and as it was built."""
    artefact = Path(build.artefact)
    return artefact.exists() and build.artefact_digest in ("", digest_of(artefact, ADDED_LATER))


def _bytes(path: Path) -> int:
    return path.stat(follow_symlinks=False).st_size if path.is_file() else 0


@dataclass(eq=False, repr=False)
class BuildPlace:
    """All that a question needs which is of no kernel."""

    facts: DeviceFacts
    contents: dict[str, bytes]

    def content(self, name: str) -> bytes:
        """What has that hash."""
        return self.contents[name]
