"""Run folders: `runs/<id>/` with its record, its status and its lock. Quick to import: no langgraph, no torch.

run.json            what the run is: settings, graph signature, which checkpointer (never a password); written once
status.json         a view for `runs`, written after each node; the truth is the checkpoint
lock                held by the process that works on the run, with its pid
checkpoint.sqlite   the State after every node, unless the run is kept in PostgreSQL
store/              sources, builds and verdicts by the hash of their content
"""

from __future__ import annotations

import difflib
import fcntl
import os
import re
import secrets
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import Field, ValidationError

from harness.options import program
from harness.store import Store, says_disk_is_full, write_atomically
from kernels.spec import Frozen
from nodes.state import Settings

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
RunState = Literal["running", "paused", "interrupted", "finished", "failed"]


class RunError(Exception):
    """What the user named or asked for cannot be had; the message is one sentence."""


class RunRecord(Frozen):
    format: Literal[1] = 1
    run_id: str
    created: datetime
    settings: Settings
    kernel: str
    summary: str = ""
    kernel_digest: str
    """Hash of the kernel's spec and reference, which said what is right when the run began."""
    signature: dict[str, Any]
    checkpointer: str = "sqlite"
    """`sqlite`, or PostgreSQL's address without its password."""
    forked_from: str = ""
    """`run@checkpoint`."""


class RunStatus(Frozen):
    state: RunState
    message: str = ""
    round: int = 0
    attempts: int = 0
    speedup: float | None = None
    checkpoints: int = Field(default=0, ge=0)
    updated: datetime


def now() -> datetime:
    return datetime.now(UTC)


def valid_id(run_id: str) -> str:
    """Raises RunError where the name could not be a folder of its own."""
    if not _ID.fullmatch(run_id):
        raise RunError(
            f"{run_id!r} is no run id: at most 100 letters, digits, '.', '_' and '-', the first a letter or digit"
        )
    return run_id


def new_id(kernel: str) -> str:
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(kernel).name).strip("-._") or "run"
    return f"{stem[:60]}-{now():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


Kept = TypeVar("Kept", bound=Frozen)


def read_record(path: Path, kind: type[Kept]) -> Kept:
    """The record in a file of JSON. Raises RunError where it does not fit, OSError where it is not there."""
    try:
        return kind.model_validate_json(path.read_bytes())
    except ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"])) or "its form"
        raise RunError(f"{path} cannot be read: {where}: {error.errors()[0]['msg']}") from None


class RunFolder:
    """One folder of `runs_dir`."""

    def __init__(self, runs_dir: Path, run_id: str) -> None:
        self.id = valid_id(run_id)
        self.folder = runs_dir / run_id
        self.store = Store((self.folder / "store").resolve())  # compilers and workers run in folders of their own
        self.checkpoints = self.folder / "checkpoint.sqlite"

    def reserve(self) -> None:
        """Make the folder. Raises RunError where that cannot be done or it is a run already."""
        if (self.folder / "run.json").exists():
            raise RunError(f"there is a run {self.id!r} already; resume it, or take another --run-id")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            if says_disk_is_full(error):
                raise
            raise RunError(f"no run can be kept in {self.folder}: {error.strerror}") from None

    @contextmanager
    def create(self) -> Iterator[None]:
        """The folder, reserved and locked. Where the block ends before `begin`, what was made here is removed again."""
        self.reserve()
        mine = not any(self.folder.iterdir())
        try:
            with self.lock():
                yield
        finally:
            if mine and not (self.folder / "run.json").exists():
                shutil.rmtree(self.folder)

    def begin(self, record: RunRecord, source: str) -> None:
        """Write the record, which makes the folder a run. The caller holds the lock."""
        self.reserve()
        self.store.put(source)
        self.keep(record)

    def keep(self, record: RunRecord) -> None:
        write_atomically(self.folder / "run.json", record.model_dump_json(indent=1))

    @classmethod
    def find(cls, runs_dir: Path, run_id: str) -> RunFolder:
        """An existing run. Raises RunError with the nearest names."""
        run = cls(runs_dir, run_id)
        if not (run.folder / "run.json").is_file():
            there = [other.id for other in every(runs_dir)]
            near = difflib.get_close_matches(run_id, there, n=3, cutoff=0.4)
            hint = (
                f"did you mean {' or '.join(near)}?"
                if near
                else f"`run.py runs` lists those in {runs_dir}"
                if there
                else f"{runs_dir} holds none"
            )
            raise RunError(f"there is no run {run_id!r}; {hint}")
        return run

    def command(self, name: str) -> str:
        """`.venv/bin/python run.py NAME RUN`, as it is to be typed for this run from here."""
        runs_dir = self.folder.parent
        more = "" if runs_dir == Path("runs") else f" --runs-dir {shlex.quote(str(runs_dir))}"
        return f"{program()} {name} {self.id}{more}"

    def source(self, name: str) -> str:
        """A source of this run by its hash. Raises RunError where the store has lost it."""
        try:
            return self.store.get(name)
        except KeyError:
            raise RunError(f"the sources are lost of run {self.id}: {self.store.folder} has no {name[:12]}") from None

    @property
    def record(self) -> RunRecord:
        return read_record(self.folder / "run.json", RunRecord)

    @property
    def status(self) -> RunStatus:
        """As last written; a run that says it is running while nobody holds its lock was killed."""
        path = self.folder / "status.json"
        try:
            status = RunStatus.model_validate_json(path.read_bytes())
        except (FileNotFoundError, ValidationError):  # killed before its first node; the truth is the checkpoint
            return RunStatus(state="interrupted", updated=self.record.created)
        if status.state == "running" and self.holder() is None:
            return status.model_copy(update={"state": "interrupted", "message": "its process is gone"})
        return status

    def note(self, status: RunStatus) -> None:
        write_atomically(self.folder / "status.json", status.model_dump_json())

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Exclusive over processes, gone with the process. Raises RunError naming the holder.

        A POSIX record lock, not flock: a worker that was forked while it was held does not inherit it, so a killed
        run can be resumed at once. Closing any other descriptor of the file would give it up, so it is opened once.
        """
        handle = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            try:
                fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                pid = os.pread(handle, 20, 0).decode().strip() or "unknown"
                raise RunError(f"run {self.id} is being worked on by another process (pid {pid})") from None
            os.ftruncate(handle, 0)
            os.pwrite(handle, str(os.getpid()).encode(), 0)
            yield
        finally:
            os.close(handle)

    def holder(self) -> int | None:
        """Pid of the process that works on the run. Not to be asked by that process itself: it would lose the lock."""
        try:
            handle = os.open(self.folder / "lock", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            pid = os.pread(handle, 20, 0).decode().strip()
            return int(pid) if pid.isdigit() else 0
        finally:
            os.close(handle)
        return None


def every(runs_dir: Path) -> list[RunFolder]:
    """All runs of the folder, oldest first."""
    if not runs_dir.is_dir():
        return []
    found = [RunFolder(runs_dir, p.parent.name) for p in runs_dir.glob("*/run.json") if _ID.fullmatch(p.parent.name)]
    return sorted(found, key=lambda run: (run.folder / "run.json").stat().st_mtime)
