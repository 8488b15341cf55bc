"""Where memory is kept: `memory.sqlite` beside the runs, or the PostgreSQL that keeps their checkpoints.

Memory helps and is never needed: where it cannot be opened, or fails later, that is one sentence and the run does without.
"""

from __future__ import annotations

import fcntl
import json
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from langgraph.store.base import BaseStore, ListNamespacesOp, Op, PutOp, Result, SearchOp

from graph import checkpoints
from graph.runs import RunError
from nodes.lesson import Lesson, read
from nodes.memory import ROOT

FILE = "memory.sqlite"
PAGE = 500
PATIENCE_S = 60.0
"""Seconds to wait for another run that is writing."""


class LessonStore(BaseStore):
    """A store that holds nothing from its first failure on; `said` is then one sentence."""

    def __init__(self) -> None:
        self.inner: BaseStore | None = None
        self.errors: tuple[type[Exception], ...] = ()
        self.said = ""

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        ops = list(ops)
        if self.inner is not None:
            try:
                return self.inner.batch(ops)
            except self.errors as error:
                self.give_up(str(error))
        return [[] if isinstance(op, SearchOp | ListNamespacesOp) else None for op in ops]

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        return self.batch(ops)

    def give_up(self, why: str) -> None:
        self.inner, self.said = None, f"this run goes without memory: {_first_line(why)}"


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0] if text.strip() else "no reason given"


@contextmanager
def open_memory(runs_dir: Path, url: str = "") -> Iterator[LessonStore]:
    """The memory of those runs; `url` is PostgreSQL's address, "" is SQLite."""
    memory = LessonStore()
    with ExitStack() as stack:
        try:
            memory.inner, memory.errors = stack.enter_context(postgres(url) if url else sqlite(runs_dir / FILE))
        except RunError as error:
            memory.give_up(str(error))
        yield memory


@contextmanager
def sqlite(path: Path) -> Iterator[tuple[BaseStore, tuple[type[Exception], ...]]]:
    """Raises RunError where the file is damaged, which is left as it is, or cannot be made."""
    from langgraph.store.sqlite import SqliteStore

    errors = (sqlite3.Error, json.JSONDecodeError, OSError)
    with ExitStack() as stack:
        try:
            checkpoints.refuse_damaged(path, "memory")
            connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=PATIENCE_S)
            stack.callback(connection.close)
            store = SqliteStore(connection)
            with path.with_suffix(".lock").open("w") as lock:  # of two that make the tables at once, one would fail
                fcntl.flock(lock, fcntl.LOCK_EX)
                store.setup()
        except errors as error:
            raise RunError(f"the memory {path} cannot be used ({error})") from None
        yield store, errors


@contextmanager
def postgres(url: str) -> Iterator[tuple[BaseStore, tuple[type[Exception], ...]]]:
    """Raises RunError where the server cannot be used."""
    import psycopg
    from langgraph.store.postgres import PostgresStore

    with ExitStack() as stack:
        try:
            store = stack.enter_context(PostgresStore.from_conn_string(url))
            connection = store.conn
            assert isinstance(connection, psycopg.Connection)  # no pool was asked for
            connection.execute("SELECT pg_advisory_lock(hashtextextended('astrolabe memory', 0))")
            store.setup()
            connection.execute("SELECT pg_advisory_unlock(hashtextextended('astrolabe memory', 0))")
        except psycopg.Error as error:
            where = checkpoints.without_password(url)
            raise RunError(f"the memory in {where} cannot be used: {checkpoints.safe(str(error), url)}") from None
        yield store, (psycopg.Error, json.JSONDecodeError)


# --- for a person --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StoredLesson:
    namespace: tuple[str, ...]
    key: str
    value: dict[str, Any]

    @property
    def lesson(self) -> Lesson | None:
        """None where no run would take it for one."""
        return read(self.value)


@contextmanager
def store(runs_dir: Path, url: str = "") -> Iterator[BaseStore]:
    """Raises RunError where it cannot be used, now or later."""
    with postgres(url) if url else sqlite(runs_dir / FILE) as (found, errors):
        try:
            yield found
        except errors as error:
            raise RunError(f"the memory cannot be used: {_first_line(str(error))}") from None


def entries(store: BaseStore) -> list[StoredLesson]:
    """All, oldest first."""
    found: list[StoredLesson] = []
    while page := store.search((ROOT,), limit=PAGE, offset=len(found)):
        found += [StoredLesson(tuple(item.namespace), item.key, dict(item.value)) for item in page]
    return sorted(found, key=lambda entry: str(entry.value.get("at", "")))


def forget(store: BaseStore, found: list[StoredLesson]) -> None:
    store.batch(PutOp(entry.namespace, entry.key, None) for entry in found)
