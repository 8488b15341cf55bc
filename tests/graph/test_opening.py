"""What a run works with: refused where it is another one now, and one policy object for the roles that share it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from graph.choices import choose
from graph.opening import answering, open_context
from graph.request import RunRequest
from graph.runs import RunError, RunFolder
from graph.session import kernel_digest, new_record
from harness.options import from_words
from kernels import catalog
from nodes.options import ROLES, Chat
from nodes.policies.connection import Retries
from nodes.policies.transcript import Exchange, Question, Reply, Transcript
from nodes.roles import Usage
from nodes.state import Spent, State
from tests.graph.doubles import record, settings
from tests.nodes.policies.examples import for_coder, for_profiler
from tests.nodes.policies.server import Says, model_server
from tests.nodes.policies.test_chat import EDIT, FINDING


def silent(_kind: str, _text: str) -> None:
    pass


def test_a_kernel_whose_reference_changed_is_not_resumed(tmp_path: Path) -> None:
    made = record(settings(kernel="silu_and_mul"))
    with (
        pytest.raises(RunError, match=r"the spec or the reference of .*silu_and_mul has changed since run run began"),
        open_context(RunFolder(tmp_path, "run"), made, State(), silent),
    ):
        pass


def test_the_digest_is_of_the_spec_and_the_reference(tmp_path: Path) -> None:
    folder = catalog.load("silu_and_mul").folder
    for name in ("spec.py", "reference.py"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    assert kernel_digest(tmp_path) == kernel_digest(folder)
    for name in ("spec.py", "reference.py", "properties.py"):  # the last one is not there before
        before, path = kernel_digest(tmp_path), tmp_path / name
        path.write_text("changed = True")
        assert kernel_digest(tmp_path) != before, name
    before = kernel_digest(tmp_path)
    (tmp_path / "notes.md").write_text("says nothing about what is right")
    assert kernel_digest(tmp_path) == before


def test_a_record_says_where_checkpoints_are_without_the_password(tmp_path: Path) -> None:
    kernel = catalog.load("silu_and_mul")
    made = new_record(settings(), kernel, "postgresql://me:pw@h:5/d?a=b")
    assert made.checkpointer == "postgresql://me@h:5/d"
    assert new_record(settings(), kernel).checkpointer == "sqlite"


def test_roles_share_a_policy(tmp_path: Path) -> None:
    policies, before = answering(settings(), tmp_path / "t.jsonl", State(), silent)
    assert set(policies) == set(ROLES) and len({id(policy) for policy in policies.values()}) == 1
    assert policies["coder"].name == "rules" and before == {}


def test_what_was_asked_of_models_reaches_their_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with model_server() as server:
        monkeypatch.setenv("OPENAI_API_KEY", "k")
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        words = [
            "--kernel",
            "silu_and_mul",
            "--device",
            "cpu",
            "--policy",
            "chat",
            "--model",
            "m",
            "--answer-tokens",
            "900",
        ]
        words += ["--answer-tokens-coder", "5000", "--effort", "low", "--effort-coder", "high"]
        made = choose(from_words(RunRequest, [*words, "--idle-seconds", "7", "--answer-seconds", "70"])).settings
        waits = Retries.of(made.chat)
        assert (waits.timeout_s, waits.answer_s) == (7, 70) and Retries.of(Chat()) == Retries()
        server.script = [Says(json.dumps(FINDING)), Says(EDIT)]
        policies, _ = answering(made, tmp_path / "t.jsonl", State(), silent)
        policies["profiler"].answer(for_profiler())
        policies["coder"].answer(for_coder())
    sent = [(r["body"]["max_completion_tokens"], r["body"]["reasoning_effort"]) for r in server.requests]
    assert sent == [(900, "low"), (5000, "high")]


def test_a_model_beside_the_rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    policy = dict.fromkeys(ROLES, "rules") | {"planner": "chat"}
    policies, _ = answering(settings(policy=policy, models={"planner": "m"}), tmp_path / "t.jsonl", State(), silent)
    assert {role: policies[role].name for role in ROLES} == policy
    assert policies["planner"].rewrites  # it plans what the rules can carry out


def test_what_answers_cost_is_read_from_the_transcript(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill between an answer and the next checkpoint must not make it free."""
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    usage = Usage(calls=1, tokens_in=70, tokens_out=30, money_usd=0.5)
    question = Question(role="coder", messages=(), wants="")
    Transcript(tmp_path / "t.jsonl").append(
        Exchange(key="1", question=question, model="m", reply=Reply(text="x"), usage=usage)
    )
    made = settings(policy=dict.fromkeys(ROLES, "chat"), models=dict.fromkeys(ROLES, "m"))
    state = State(spent=Spent(usage={"planner": Usage(calls=2)}))
    _, before = answering(made, tmp_path / "t.jsonl", state, silent)
    assert before == {"planner": Usage(calls=2), "coder": usage}


def test_what_cannot_answer_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    chat = settings(policy=dict.fromkeys(ROLES, "chat"), models=dict.fromkeys(ROLES, "m"))
    with pytest.raises(RunError, match="needs a key in OPENAI_API_KEY"):
        answering(chat, tmp_path / "t.jsonl", State(), silent)
    replay = settings(policy=dict.fromkeys(ROLES, "replay"), transcript=str(tmp_path / "none.jsonl"))
    with pytest.raises(RunError, match="there is no transcript"):
        answering(replay, tmp_path / "t.jsonl", State(), silent)
    (tmp_path / "t.jsonl").write_text("not an exchange\n{}\n")
    with pytest.raises(RunError, match="line 1 is not an exchange"):
        answering(replay, tmp_path / "t.jsonl", State(), silent)
