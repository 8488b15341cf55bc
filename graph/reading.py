"""Reads a run's checkpoints without working on it. Errors of a damaged database become one sentence."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import StateSnapshot

from graph.checkpoints import is_held, make_lock_error
from graph.runs import RunError, RunFolder
from harness.store import says_disk_is_full


def config_of(run: RunFolder) -> RunnableConfig:
    # Named, for a saver that is not told lists those of subgraphs, too.
    return {"configurable": {"thread_id": run.id, "checkpoint_ns": ""}}


def disk_is_full(error: BaseException | None) -> bool:
    while error is not None:
        if says_disk_is_full(error):
            return True
        error = error.__cause__ or error.__context__
    return False


@contextmanager
def readable(run: RunFolder) -> Iterator[None]:
    """Errors of a damaged database as one sentence."""
    try:
        yield
    except (sqlite3.DatabaseError, ValueError, TypeError, KeyError) as error:
        if disk_is_full(error):
            raise
        if is_held(error):
            raise make_lock_error(run.checkpoints) from None
        raise RunError(
            f"the checkpoint database {run.checkpoints} is damaged ({error}); it was left as it is"
        ) from None


def no_checkpoint(run: RunFolder) -> RunError:
    """What to say of a run of which there is no checkpoint."""
    if run.status.checkpoints:
        return RunError(f"run {run.id} has no checkpoint any more: they were lost or {run.checkpoints} was emptied")
    if run.status.state == "running":
        return RunError(f"run {run.id} has no checkpoint yet: its first node is still at work")
    said = run.status.message
    why = f"it was stopped before its first node had finished{f' ({said})' if said else ''}"
    return RunError(f"run {run.id} has no checkpoint: {why}; `{run.command('resume')}` begins it")


def snapshot_of(graph: CompiledStateGraph, run: RunFolder) -> StateSnapshot:
    with readable(run):
        snapshot = graph.get_state(config_of(run))
        # The serialiser falls back to an unvalidated record where one does not fit; a resume must not go on with that.
        for name, value in snapshot.values.items():
            for record in value if isinstance(value, list) else [value]:
                if hasattr(record, "model_dump"):
                    type(record).model_validate(record.model_dump())
                elif isinstance(record, dict):
                    raise ValueError(f"{name} is not a record of this version")
        return snapshot


def is_finished(snapshot: StateSnapshot) -> bool:
    """`next` alone does not say so: after Ctrl-C tasks may hold results that were not applied yet."""
    return snapshot.created_at is not None and not snapshot.next and not snapshot.tasks


def checkpoint_of(saver: BaseCheckpointSaver, run: RunFolder, wanted: str) -> Any:
    """The checkpoint whose id has `wanted` in it, and no other one's."""
    with readable(run):
        everything = list(saver.list(config_of(run)))
    found = [one for one in everything if wanted and wanted in one.checkpoint["id"]]
    if not found:
        raise RunError(f"run {run.id} has no checkpoint {wanted!r}; `{run.command('history')}` lists them")
    if len(found) > 1:
        raise RunError(
            f"{wanted!r} may be any of {len(found)} checkpoints of run {run.id}: give more of it, as "
            f"`{run.command('history')}` lists them"
        )
    if not any(name.startswith("branch:to:") for name in found[0].checkpoint["channel_values"]):
        if found[0].metadata.get("step", -1) >= 0:
            raise RunError(f"checkpoint {wanted!r} is the end of run {run.id}; take an earlier one")
        raise RunError(f"checkpoint {wanted!r} is before the first node of run {run.id}; start a new run instead")
    return found[0]
