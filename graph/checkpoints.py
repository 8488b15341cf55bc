"""Where checkpoints are kept: SQLite in the run's folder, or PostgreSQL. Errors become one sentence."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.sqlite import SqliteSaver

from graph.runs import RunError


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
    """Raises RunError where that SQLite file is damaged. It is left as it is: only read, through a read-only connection."""
    if not path.exists():
        return
    try:
        probe = sqlite3.connect(f"file:{_quoted(path)}?mode=ro", uri=True)
        try:
            said = probe.execute("PRAGMA quick_check(1)").fetchone()[0]
        finally:
            probe.close()
    except sqlite3.DatabaseError as error:
        said = str(error)
    if said != "ok":
        raise RunError(f"the {what} database {path} is damaged ({said}); it was left as it is")


@contextmanager
def sqlite(path: Path) -> Iterator[SqliteSaver]:
    """The saver on that file. Raises RunError where it is damaged."""
    refuse_damaged(path, "checkpoint")
    connection = sqlite3.connect(path, check_same_thread=False)
    try:
        connection.execute("PRAGMA synchronous=FULL")  # a finished node outlives a power cut, not only a kill
        yield SqliteSaver(connection)
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
            "--checkpointer postgresql://... needs the postgres extra; in the checkout: "
            f"{sys.executable} -m pip install -e '.[postgres]' -c constraints.txt"
        ) from None
    try:
        with PostgresSaver.from_conn_string(url) as saver:
            saver.setup()
            if exclusive:
                row = saver.conn.execute(
                    "SELECT pg_try_advisory_lock(hashtextextended(%s, 0)) AS held", (f"astrolabe {run_id}",)
                ).fetchone()
                if not row["held"]:
                    raise RunError(f"run {run_id} is being worked on by another process of this database")
            yield saver
    except psycopg.OperationalError as error:
        raise RunError(f"PostgreSQL at {without_password(url)} cannot be used: {safe(str(error), url)}") from None


def safe(text: str, url: str) -> str:
    """The first line of an error, without the password."""
    parts = urlsplit(url)
    line = text.strip().splitlines()[0] if text.strip() else "no reason given"
    for secret in [parts.password, unquote(parts.password or ""), *parse_qs(parts.query).get("password", [])]:
        if secret:
            line = line.replace(secret, "***")
    return line
