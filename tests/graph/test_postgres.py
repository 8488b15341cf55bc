"""A run kept in a real PostgreSQL server, started here from Debian's binaries, on loopback, as an ordinary user."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from graph import checkpoints, memory
from graph.runs import RunError
from graph.session import RunService
from tests.graph.doubles import BASELINE, Script, Silent, nobody, paper_context, record, settings
from tests.graph.test_session import ROUNDS, Down, outcomes

PASSWORD = "not to be%40seen"


def _binaries() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return found[-1].parent if found else None


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """postgresql://... of a fresh server; skips with the reason where there is none."""
    pytest.importorskip("langgraph.checkpoint.postgres", reason="the postgres extra is not installed")
    binaries = _binaries()
    if binaries is None:
        pytest.skip("no PostgreSQL server is installed (apt-get install postgresql)")
    account = None
    if os.geteuid() == 0:  # the server refuses to run as root
        names = {entry.pw_name: entry for entry in pwd.getpwall()}
        account = names.get("postgres") or names.get("nobody")
        if account is None:
            pytest.skip("PostgreSQL does not run as root and there is no other user")
    folder = Path(tempfile.mkdtemp(prefix="astrolabe-postgres-", dir="/tmp"))  # short: a socket's path has 107 bytes
    with contextlib.closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    as_user = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []} if account else {}
    try:
        if account:
            os.chown(folder, account.pw_uid, account.pw_gid)
        (folder / "password").write_text("not to be@seen")
        (folder / "password").chmod(0o644)
        data = folder / "data"

        def call(*command: str) -> None:
            subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=60, **as_user)

        call(
            str(binaries / "initdb"), "-D", str(data), "-U", "astrolabe", "-A", "scram-sha-256", "--no-sync",
            f"--pwfile={folder / 'password'}",
        )  # fmt: skip
        options = f"-p {port} -h 127.0.0.1 -k {folder} -c fsync=off"
        call(str(binaries / "pg_ctl"), "-D", str(data), "-l", str(folder / "log"), "-o", options, "-w", "start")
        try:
            yield f"postgresql://astrolabe:{PASSWORD.replace(' ', '%20')}@127.0.0.1:{port}/postgres"
        finally:
            call(str(binaries / "pg_ctl"), "-D", str(data), "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def kept_there(run_id: str, url: str, **changes):
    made = record(settings(run_id, **changes))
    return made.model_copy(update={"checkpointer": checkpoints.without_password(url)})


def test_a_run_pauses_resumes_and_is_forked_there(tmp_path: Path, url: str) -> None:
    whole = RunService(tmp_path / "sqlite", paper_context(Script(ROUNDS))).start(
        record(settings("pg")), BASELINE, Silent(), nobody
    )
    paused = RunService(tmp_path, paper_context(Down(ROUNDS, 2)), url).start(
        kept_there("pg", url), BASELINE, Silent(), nobody
    )
    assert paused.state == "paused" and not paused.run.checkpoints.exists()
    service = RunService(tmp_path, paper_context(Script(ROUNDS)), url)
    ended = service.resume("pg", Silent(), nobody, changes=lambda found: found.with_changes(tokens=10**6))
    assert service.snapshot(ended.run).values["settings"].budget.tokens == 10**6
    assert ended.state == "finished" and outcomes(ended) == outcomes(whole)
    history = service.history(ended.run)
    assert not history[0].next and history[-1].next == ("__start__",)
    point = next(s for s in history if s.next == ("profiler",) and s.values["round"] == 2)
    forked = service.fork(
        "pg", point.config["configurable"]["checkpoint_id"], kept_there("pg-2", url, rounds=2), Silent(), nobody
    )
    assert forked.state == "finished"


class Severed(Script):
    """The server ends all connections in the first round, as a restart does."""

    def __init__(self, rounds, url: str) -> None:
        super().__init__(rounds)
        self.url, self.done = url, False

    def coder(self, request):
        if not self.done:
            import psycopg

            with psycopg.connect(self.url, autocommit=True) as other:
                other.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
            self.done = True
        return super().coder(request)


def test_a_connection_that_the_server_ends_pauses_the_run_and_it_goes_on(tmp_path: Path, url: str, logged) -> None:
    whole = RunService(tmp_path / "sqlite", paper_context(Script(ROUNDS))).start(
        record(settings("severed")), BASELINE, Silent(), nobody
    )
    script = Severed(ROUNDS, url)
    paused = RunService(tmp_path, paper_context(script), url).start(
        kept_there("severed", url), BASELINE, Silent(), nobody
    )
    assert paused.state == "paused" and "PostgreSQL at" in paused.message and PASSWORD not in paused.message
    assert not logged.records, "one sentence, and nothing of the library's beside it"
    kept = RunService(tmp_path, paper_context(script)).result(paused.run)
    assert "give its address with --checkpointer" in kept.warnings[-1]
    ended = RunService(tmp_path, paper_context(Script(ROUNDS)), url).resume("severed", Silent(), nobody)
    assert ended.state == "finished" and outcomes(ended) == outcomes(whole)


def test_the_password_is_nowhere(tmp_path: Path, url: str) -> None:
    ended = RunService(tmp_path, paper_context(Script(ROUNDS)), url).start(
        kept_there("secret", url), BASELINE, Silent(), nobody
    )
    for path in ended.run.folder.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            assert b"not to be" not in data and PASSWORD.encode() not in data, path
    assert "astrolabe@127.0.0.1" in (ended.run.folder / "run.json").read_text()


def test_a_resume_without_the_address_says_so(tmp_path: Path, url: str) -> None:
    RunService(tmp_path, paper_context(Down(ROUNDS, 2)), url).start(kept_there("lost", url), BASELINE, Silent(), nobody)
    with pytest.raises(RunError, match=r"is kept in postgresql://astrolabe@127.0.0.1.*ASTROLABE_CHECKPOINTER"):
        RunService(tmp_path, paper_context(Script(ROUNDS))).resume("lost", Silent(), nobody)


def test_the_same_run_from_another_folder_is_refused_while_it_is_worked_on(tmp_path: Path, url: str) -> None:
    with (
        checkpoints.postgres(url, "twin", exclusive=True),
        pytest.raises(RunError, match="twin is being worked on by another process of this database"),
    ):
        RunService(tmp_path, paper_context(Script(ROUNDS)), url).start(
            kept_there("twin", url), BASELINE, Silent(), nobody
        )


def test_a_name_that_the_database_has_is_refused(tmp_path: Path, url: str) -> None:
    for folder, taken in (("a", False), ("b", True)):
        service = RunService(tmp_path / folder, paper_context(Script(ROUNDS)), url)
        if not taken:
            assert service.start(kept_there("same", url), BASELINE, Silent(), nobody).state == "finished"
            continue
        with pytest.raises(RunError, match="holds a run 'same' already"):
            service.start(kept_there("same", url), BASELINE, Silent(), nobody)


def test_a_server_that_is_not_there_or_a_wrong_password_is_one_sentence_without_it(tmp_path: Path, url: str) -> None:
    wrong = url.replace(PASSWORD.replace(" ", "%20"), "hunter2")
    gone = "postgresql://someone:hunter2@127.0.0.1:1/nothing?connect_timeout=2"
    for address in (wrong, gone):
        with pytest.raises(
            RunError, match=r"PostgreSQL at postgresql://\w+@127.0.0.1:\d+/\w+ cannot be used"
        ) as raised:
            RunService(tmp_path / address[-4:], paper_context(Script(ROUNDS)), address).start(
                kept_there("x", address), BASELINE, Silent(), nobody
            )
        assert "hunter2" not in str(raised.value) and "\n" not in str(raised.value)


def test_what_runs_learn_is_kept_there_too(tmp_path: Path, url: str) -> None:
    second = Script(ROUNDS)
    for run_id, script in (("pupil-1", Script(ROUNDS)), ("pupil-2", second)):
        service = RunService(tmp_path / run_id, paper_context(script), url)
        ended = service.start(kept_there(run_id, url, memory="on"), BASELINE, Silent(), nobody)
        assert ended.state == "finished" and not [said for said in ended.result.notices if "memory" in said]
        assert not (tmp_path / run_id / memory.FILE).exists()
    assert {lesson.run_id for _, asked in second.asked for lesson in getattr(asked, "memory", ())} == {"pupil-1"}
    with memory.store(tmp_path, url) as store:
        memory.forget(store, memory.entries(store))
        assert memory.entries(store) == []


def test_a_memory_that_cannot_be_reached_there_is_one_sentence_without_the_password(tmp_path: Path) -> None:
    gone = "postgresql://someone:hunter2@127.0.0.1:1/nothing?connect_timeout=2"
    with memory.open_memory(tmp_path, gone) as found:
        assert found.search(("lessons",)) == [] and "hunter2" not in found.said and "\n" not in found.said
        assert found.said.startswith("this run goes without memory: the memory in postgresql://someone@127.0.0.1:1")
