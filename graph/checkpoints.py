"""Where checkpoints are kept: SQLite in the run's folder, or PostgreSQL. Errors become one sentence."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.sqlite import SqliteSaver

from graph.runs import RunError
from kernels.extras import install

TRY_S = 2.0
"""SQLite itself waits so long for a lock before an attempt counts as failed."""
PATIENCE_S = 60.0
"""A backup or a browser of databases holds the file for seconds; a network drive for longer."""


class CheckpointsUnavailable(RunError):
    """The checkpoints cannot be reached now: the run pauses, and nothing of it is lost."""


def is_held(error: BaseException) -> bool:
    """Whether another process holds the SQLite file."""
    return isinstance(error, sqlite3.OperationalError) and ("locked" in str(error) or "busy" in str(error))


def make_lock_error(path: Path) -> CheckpointsUnavailable:
    return CheckpointsUnavailable(
        f"another process has held the database {path} for more than {PATIENCE_S:.0f} s; go on once it is free"
    )


class PatientSaver(SqliteSaver):
    """Waits `PATIENCE_S` where another process holds the database, and says so; then raises Unavailable."""

    path: Path
    say: Callable[[str, str], None] = staticmethod(lambda kind, text: None)

    def _patiently(self, work: Callable[[], Any]) -> Any:
        began, told = time.monotonic(), False
        while True:
            try:
                return work()
            except sqlite3.OperationalError as error:
                if not is_held(error):
                    raise
                if time.monotonic() - began > PATIENCE_S:
                    raise make_lock_error(self.path) from None
                if not told:
                    self.say(
                        "notice", f"another process holds the checkpoint database; waiting up to {PATIENCE_S:.0f} s"
                    )
                    told = True

    def get_tuple(self, *args: Any, **named: Any) -> Any:
        return self._patiently(lambda: super(PatientSaver, self).get_tuple(*args, **named))

    def put(self, *args: Any, **named: Any) -> Any:
        return self._patiently(lambda: super(PatientSaver, self).put(*args, **named))

    def put_writes(self, *args: Any, **named: Any) -> None:
        self._patiently(lambda: super(PatientSaver, self).put_writes(*args, **named))


def check_url(url: str) -> str:
    if not url.startswith(("postgresql://", "postgres://")):
        raise RunError("--checkpointer takes postgresql://user:password@host:port/database")
    return url


def without_password(url: str) -> str:
    """The address as it may be written down and shown."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return f"postgresql://{parts.username + '@' if parts.username else ''}{host}{parts.path}"


def refuse_damaged(path: Path, what: str) -> None:
    """Raises RunError where that SQLite file is damaged, OSError where the disk is too full to read it. It is left as it is: only read, through a read-only connection.

    Another process that holds it is waited for, with a line on standard error.
    """
    if not path.exists():
        return
    try:
        try:
            said = _quick_check(path, TRY_S)
        except sqlite3.OperationalError as error:
            if not is_held(error):
                raise
            print(f"another process holds {path}; waiting up to {PATIENCE_S:.0f} s", file=sys.stderr, flush=True)
            said = _quick_check(path, PATIENCE_S)
    except sqlite3.DatabaseError as error:
        if is_held(error):
            raise make_lock_error(path) from None
        said = str(error)
        if "disk I/O" in said and not shutil.disk_usage(path.parent).free:  # SQLite has no room to read beside a log
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path)) from None
    if said != "ok":
        raise RunError(f"the {what} database {path} is damaged ({said}); it was left as it is")


def _quick_check(path: Path, patience_s: float) -> str:
    with closing(sqlite3.connect(f"file:{_quoted(path)}?mode=ro", uri=True, timeout=patience_s)) as probe:
        return probe.execute("PRAGMA quick_check(1)").fetchone()[0]


@contextmanager
def sqlite(path: Path) -> Iterator[SqliteSaver]:
    """The saver on that file. Raises RunError where it is damaged."""
    refuse_damaged(path, "checkpoint")
    connection = sqlite3.connect(path, check_same_thread=False, timeout=TRY_S)
    try:
        connection.execute("PRAGMA synchronous=FULL")  # a finished node outlives a power cut, not only a kill
        saver = PatientSaver(connection)
        saver.path = path
        yield saver
    finally:
        connection.close()


def _quoted(path: Path) -> str:
    return str(path.resolve()).replace("%", "%25").replace("?", "%3f").replace("#", "%23")


@contextmanager
def postgres(url: str, run_id: str, *, exclusive: bool) -> Iterator[BaseCheckpointSaver]:
    """The saver on that server; with `exclusive`, holding the run's advisory lock against other machines' processes."""
    try:
        import psycopg
        from langgraph.checkpoint.postgres import PostgresSaver
    except ImportError:
        raise RunError(
            f"--checkpointer postgresql://... needs the postgres extra; in the checkout: {install('postgres')}"
        ) from None
    logging.getLogger("psycopg").setLevel(logging.ERROR)  # it warns of the lost connection beside our sentence
    try:
        with PostgresSaver.from_conn_string(url) as saver:
            connection = saver.conn
            assert isinstance(connection, psycopg.Connection)  # no pool was asked for
            saver.setup()
            if exclusive:
                row = connection.execute(
                    "SELECT pg_try_advisory_lock(hashtextextended(%s, 0)) AS held", (f"astrolabe {run_id}",)
                ).fetchone()
                if row is None or not row["held"]:
                    raise RunError(f"run {run_id} is being worked on by another process of this database")
            yield saver
    except psycopg.OperationalError as error:
        raise make_server_error(url, error) from None


def make_server_error(url: str, error: Exception) -> CheckpointsUnavailable:
    return CheckpointsUnavailable(f"PostgreSQL at {without_password(url)} cannot be used: {safe(str(error), url)}")


def unavailable(error: BaseException | None, url: str) -> CheckpointsUnavailable | None:
    """The sentence of an error that means that the checkpoints cannot be reached; None of any other error."""
    while error is not None:
        if isinstance(error, CheckpointsUnavailable):
            return error
        module = type(error).__module__
        if url and isinstance(error, Exception) and (module.startswith(("psycopg_pool", "psycopg"))):
            return make_server_error(url, error)
        error = error.__cause__ or error.__context__
    return None


def safe(text: str, url: str) -> str:
    """The first line of an error, without the password."""
    parts = urlsplit(url)
    line = text.strip().splitlines()[0] if text.strip() else "no reason given"
    for secret in [parts.password, unquote(parts.password or ""), *parse_qs(parts.query).get("password", [])]:
        if secret:
            line = line.replace(secret, "***")
    return line
