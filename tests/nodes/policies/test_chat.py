"""The chat policy against a real server on loopback, through the real client."""

from __future__ import annotations

import json
import logging
import os
import stat
import threading
import traceback
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from pydantic import SecretStr

from harness.store import digest
from nodes.options import Chat, Limits
from nodes.policies import transcript, wire
from nodes.policies.chat import ChatPolicy
from nodes.policies.connection import Connection, Retries
from nodes.policies.model import silent
from nodes.policies.rules import RulesPolicy
from nodes.policies.transcript import Exchange, Transcript, TranscriptDamaged
from nodes.roles import CoderAnswer, Plan, PolicyPaused, Usage
from tests.nodes.policies.examples import (
    HIDDEN,
    OTHER,
    PLAN,
    SOURCE,
    VISIBLE,
    for_coder,
    for_planner,
    for_profiler,
    for_repair,
    for_review,
    for_tester,
)
from tests.nodes.policies.server import Drips, Drops, Fails, ModelServer, Raw, Says, model_server

KEY = "sk-test-0123456789abcdef"
FAST = Retries(attempts=3, first_s=0.01, ceiling_s=0.05, total_s=5.0, timeout_s=5.0)

FINDING = {"bound": "memory", "summary": "Reads twice.", "numbers": [{"name": "load_width_bytes", "value": 2}],
           "slow_workloads": [VISIBLE.label, "no such workload"]}  # fmt: skip
A_PLAN = {
    "title": "wider loads",
    "steps": ["Load 16 bytes."],
    "rationale": "fewer requests",
    "expected_speedup": 1.3,
    "base": "",
}
B_PLAN = {**A_PLAN, "title": "two rows a block"}
PLANS = {"plans": [A_PLAN, B_PLAN], "nothing_left": ""}
EDIT = """\
{"format": "edit", "notes": "64 threads"}

<<<<<<< SEARCH
#define BLOCK 128  // tune: 64 128 256
=======
#define BLOCK 64  // tune: 32 64
>>>>>>> REPLACE
"""
EDITED = SOURCE.replace("BLOCK 128  // tune: 64 128 256", "BLOCK 64  // tune: 32 64")


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with model_server() as made:
        yield made


class Said(list):
    def __call__(self, kind: str, text: str) -> None:
        self.append((kind, text))

    def of(self, kind: str) -> list[str]:
        return [text for here, text in self if here == kind]


def policy(server: ModelServer, folder: Path, **options: object) -> ChatPolicy:
    models = dict.fromkeys(("tester", "profiler", "planner", "coder"), "some-model")
    address, say = options.pop("base_url", server.base_url), options.get("say", silent)
    chat, limits = (
        record(**{name: options.pop(name) for name in record.model_fields if name in options and name != "fallback"})
        for record in (Chat, Limits)
    )
    connection = Connection(address, SecretStr(KEY), chat.interface, options.pop("retries", FAST), say)
    chat = chat.model_copy(update={"models": chat.models if "models" in chat.model_fields_set else models})
    return ChatPolicy(chat, Transcript(folder / "transcript.jsonl"), connection, limits=limits, **options)


def says(answer: dict, **options: object) -> Says:
    return Says(json.dumps(answer), **options)


def test_a_loopback_server_is_never_asked_through_a_proxy(
    server: ModelServer, tmp_path: Path, monkeypatch, logged
) -> None:
    """Nor does the client say that it overrides the proxy, which is none of a user's business."""
    for name in ("HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "socks5://127.0.0.1:9" if name == "ALL_PROXY" else "http://127.0.0.1:9")
    server.script = [says(FINDING)]
    assert policy(server, tmp_path).answer(for_profiler()).bound == "memory"
    assert "proxy" not in logged.text


def test_a_proxy_that_does_not_answer_is_named_and_its_password_is_not(
    server: ModelServer, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://me:secret@127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    with pytest.raises(PolicyPaused, match=r"through the proxy HTTP_PROXY=http://127\.0\.0\.1:9, cannot be") as raised:
        policy(server, tmp_path, base_url="http://models.invalid/v1", retries=Retries(attempts=1)).answer(
            for_profiler()
        )
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("proxy", ["ftp://127.0.0.1:9", "http://[::1", "127.0.0.1:port"])
def test_what_is_no_address_of_a_proxy_is_refused_before_anything_is_asked(proxy: str, monkeypatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", proxy)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    with pytest.raises(ValueError, match="^HTTPS_PROXY=.* is no address of a proxy"):
        wire.proxy_of("https", "models.invalid")
    monkeypatch.setenv("NO_PROXY", "*")
    assert wire.proxy_of("https", "models.invalid") == ""


def test_a_socks_proxy_without_its_package_is_refused_before_anything_is_asked(
    server: ModelServer, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.setattr(wire.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="needs the package socksio"):
        policy(server, tmp_path, base_url="http://models.invalid/v1")


# The ladder ----------------------------------------------------------------------------------------------------------


def test_json_schema_is_the_first_rung(server: ModelServer, tmp_path: Path) -> None:
    server.script = [says(FINDING)]
    chat = policy(server, tmp_path)
    found = chat.answer(for_profiler())
    assert found.bound == "memory" and found.slow_workloads == (VISIBLE.label,)
    assert found.numbers["load_width_bytes"] == 2 and found.numbers["cold_percent_of_sol"] == 40.0
    sent = server.requests[0]
    assert sent["path"] == "/v1/chat/completions" and sent["headers"]["authorization"] == f"Bearer {KEY}"
    form = sent["body"]["response_format"]["json_schema"]
    assert form["strict"] and form["schema"]["additionalProperties"] is False
    assert sorted(form["schema"]["required"]) == sorted(form["schema"]["properties"])
    assert chat.usage() == {"profiler": Usage(calls=1, tokens_in=100, tokens_out=20, money_usd=None)}


def test_ladder_goes_down_and_the_rung_that_worked_is_remembered(server: ModelServer, tmp_path: Path) -> None:
    server.script = [
        Fails(400, "response_format is not supported"), Says(arguments=PLANS), Says(arguments=FINDING),
    ]  # fmt: skip
    chat = policy(server, tmp_path)
    assert [plan.title for plan in chat.answer(for_planner())] == ["wider loads", "two rows a block"]
    chat.answer(for_profiler())
    bodies = [request["body"] for request in server.requests]
    assert "response_format" in bodies[0] and "tools" not in bodies[0]
    assert all("response_format" not in body for body in bodies[1:])
    assert all(body["tool_choice"]["function"]["name"] == body["tools"][0]["function"]["name"] for body in bodies[1:])


def test_last_rung_is_text_with_fenced_json(server: ModelServer, tmp_path: Path) -> None:
    server.script = [
        Fails(422, "extra_forbidden: response_format"), Fails(400, "tools are not supported"),
        Says(f"Here it is:\n```json\n{json.dumps(PLANS)}\n```\nGood luck."),
    ]  # fmt: skip
    chat = policy(server, tmp_path)
    assert len(chat.answer(for_planner())) == 2
    last = server.requests[-1]["body"]
    assert "tools" not in last and "response_format" not in last
    assert '"nothing_left"' in last["messages"][-1]["content"]
    assert [e.reply.rung for e in chat.transcript.exchanges()] == ["text"]


def test_a_server_that_ignores_the_schema_is_asked_one_rung_lower(server: ModelServer, tmp_path: Path) -> None:
    server.script = [Says("I think that it is memory."), Says(arguments=FINDING)]
    assert policy(server, tmp_path).answer(for_profiler()).bound == "memory"
    assert "tools" in server.requests[1]["body"]


def test_a_server_that_knows_only_the_old_name_of_the_limit(server: ModelServer, tmp_path: Path) -> None:
    server.script = [Fails(422, "extra_forbidden: max_completion_tokens"), says(FINDING), Says(EDIT)]
    chat = policy(server, tmp_path, answer_tokens={"coder": 777})
    assert chat.answer(for_profiler()).bound == "memory"
    chat.answer(for_coder())
    first, second, third = [request["body"] for request in server.requests]
    assert "max_completion_tokens" in first and "response_format" in second, "the rung is not to blame"
    assert third["max_tokens"] == 777 and "max_completion_tokens" not in third


def test_responses_interface(server: ModelServer, tmp_path: Path) -> None:
    server.script = [says(FINDING), Fails(400, "text.format: unsupported"), Says(arguments=PLANS), Says(EDIT)]
    chat = policy(server, tmp_path, interface="responses")
    assert chat.answer(for_profiler()).bound == "memory"
    assert len(chat.answer(for_planner())) == 2
    assert chat.answer(for_coder()).source == EDITED
    assert {request["path"] for request in server.requests} == {"/v1/responses"}
    assert server.requests[0]["body"]["text"]["format"]["type"] == "json_schema"
    assert chat.usage()["coder"].tokens_out == 20


@pytest.mark.parametrize("interface", ["chat", "responses"])
def test_cut_off_and_refused_answers(server: ModelServer, tmp_path: Path, interface: str) -> None:
    said = Said()
    server.script = [Says('{"bound": "mem', finish="length"), says(FINDING), Says(refusal="I will not.")]
    chat = policy(server, tmp_path, interface=interface, say=said)
    assert chat.answer(for_profiler()).bound == "memory"
    assert said.of("asked again") == [
        "profiler: the answer was cut off at the limit of 20 tokens; now with 2 times the limit"
    ]
    first, second = (request["body"] for request in server.requests[:2])
    limit = "max_output_tokens" if interface == "responses" else "max_completion_tokens"
    assert second == {**first, limit: 2 * first[limit]}, "asked the same again, not to be shorter"
    answer = chat.answer(for_coder())
    assert answer.source == "" and answer.reason == "the model refused the coder's request: I will not."
    assert len(server.requests) == 3, "a refusal is not asked again"
    assert chat.usage()["profiler"].tokens_out == 40, "a cut-off answer is paid for"


def test_content_filter_has_its_own_sentence(server: ModelServer, tmp_path: Path) -> None:
    server.script = [Says(None, finish="content_filter")] * 2
    chat = policy(server, tmp_path)
    assert "content filter" in chat.answer(for_coder()).reason
    finding = chat.answer(for_profiler())
    assert finding.bound == "unknown" and finding.numbers["cold_percent_of_sol"] == 40.0


# Answers that do not fit ---------------------------------------------------------------------------------------------


def test_wrong_schema_is_asked_again_with_the_error(server: ModelServer, tmp_path: Path) -> None:
    server.script = [says({**FINDING, "bound": "the moon"}), says(FINDING)]
    assert policy(server, tmp_path).answer(for_profiler()).bound == "memory"
    messages = server.requests[1]["body"]["messages"]
    assert [m["role"] for m in messages] == ["system", "user", "assistant", "user"]
    assert "bound: Input should be" in messages[-1]["content"]


def test_a_bad_answer_goes_back_whole_but_for_its_thoughts(server: ModelServer, tmp_path: Path) -> None:
    long = EDIT.replace("SEARCH\n", "SEARCH\n// not there\n") + "\n".join(f"// line {n}" for n in range(2000))
    server.script = [Says(f"<think>{{hm}}</think>{long}"), Says("nothing"), Says(EDIT)]
    assert policy(server, tmp_path).answer(for_coder()).source == EDITED
    second, third = (request["body"]["messages"] for request in server.requests[1:])
    assert second[2] == {"role": "assistant", "content": long.strip()} and len(long) > 20_000
    assert third[:4] == second and third[4]["content"] == "nothing", "a conversation grows at its end only"


def test_a_repair_goes_on_in_the_conversation_in_which_the_file_was_written(
    server: ModelServer, tmp_path: Path
) -> None:
    whole = f'{{"format": "file", "notes": ""}}\n```cuda\n{EDITED.replace("BLOCK 64", "BLOCK 32")}```\n'
    server.script = [Says(EDIT), Says(whole), Says(EDIT.replace("128  // tune: 64 128 256", "32  // tune: 32 64"))]
    chat = policy(server, tmp_path)
    first = chat.answer(for_coder(round=2)).source
    second = chat.answer(for_repair(source=first, round=2)).source
    repaired = policy(server, tmp_path)  # after a kill
    repaired.answer(for_repair(source=second, round=2, repair=2))
    asked = [request["body"]["messages"] for request in server.requests]
    assert [len(messages) for messages in asked] == [2, 4, 6]
    assert asked[1][:2] == asked[0] and asked[1][2]["content"] == EDIT.strip() and asked[2][:4] == asked[1]
    last = [messages[-1]["content"] for messages in asked]
    assert (
        "COMPILE_ERROR" in last[1] and 'identifier "y4" is undefined' in last[1] and "the given source" not in last[1]
    )
    assert EDITED.strip() in last[1], "edits were its answer: it has not seen the file that they make"
    assert second.strip() not in last[2] and "as you left it." in last[2], "the file is its last answer"
    other = policy(server, tmp_path / "other")  # somebody else's file
    server.script = [Says(EDIT)]
    other.answer(for_repair(source=SOURCE, round=2))
    assert len(server.requests[-1]["body"]["messages"]) == 2


def test_what_agents_doubt_of_the_spec_is_kept(server: ModelServer, tmp_path: Path) -> None:
    doubt = "Half of the columns are padding."
    server.script = [
        says({**FINDING, "spec_doubt": doubt}), says({**PLANS, "spec_doubt": doubt}),
        Says(EDIT.replace('"notes"', f'"spec_doubt": "{doubt}", "notes"')),
    ]  # fmt: skip
    chat = policy(server, tmp_path)
    assert chat.answer(for_profiler()).spec_doubt == doubt
    assert {plan.spec_doubt for plan in chat.answer(for_planner())} == {doubt}
    assert chat.answer(for_coder()).spec_doubt == doubt
    assert all("`spec_doubt`" in request["body"]["messages"][0]["content"] for request in server.requests)


def test_asking_again_is_bounded_and_each_role_ends_sensibly(server: ModelServer, tmp_path: Path) -> None:
    said = Said()
    server.script = [Says("no json \ud800\x00")] * 12
    chat = policy(server, tmp_path, say=said)
    assert chat.answer(for_tester()).workloads == ()
    assert chat.answer(for_profiler()).light_fraction == pytest.approx((0.4 * 0.5) ** 0.5)
    (plan,) = chat.answer(for_planner())
    assert plan.title == "the coder's own choice" and plan.base == digest(SOURCE)
    answer = chat.answer(for_coder())
    assert answer.source == "" and "could not be used after 3 tries" in answer.reason
    assert len(server.requests) == 12 and len(said.of("no answer")) == 4


def test_search_text_must_occur_once(server: ModelServer, tmp_path: Path) -> None:
    twice = EDIT.replace("#define BLOCK 128  // tune: 64 128 256\n=", "BLOCK\n=")
    server.script = [Says(twice), Says(EDIT)]
    assert policy(server, tmp_path).answer(for_coder()) == CoderAnswer(source=EDITED, reason="64 threads")
    assert "occurs 2 times" in server.requests[1]["body"]["messages"][-1]["content"]


def test_coder_may_say_that_a_plan_cannot_be_carried_out(server: ModelServer, tmp_path: Path) -> None:
    server.script = [Says('{"format": "none", "notes": "there is no loop"}')]
    assert policy(server, tmp_path).answer(for_coder()) == CoderAnswer(source="", reason="there is no loop")


def test_planner_returns_at_most_width_different_new_plans(server: ModelServer, tmp_path: Path) -> None:
    other = {**A_PLAN, "title": "from the other", "base": digest(OTHER)[:12]}
    server.script = [says({"plans": [A_PLAN, A_PLAN, other, B_PLAN], "nothing_left": ""})]
    chat = policy(server, tmp_path)
    plans = chat.answer(for_planner())
    assert [(p.title, p.base) for p in plans] == [("wider loads", digest(SOURCE)), ("from the other", digest(OTHER))]
    # The same plan from the same source was tried: it is asked again, and an unknown base too.
    server.script = [
        says({"plans": [A_PLAN], "nothing_left": ""}),
        says({"plans": [{**A_PLAN, "base": "0123456789ab"}], "nothing_left": ""}),
        says({"plans": [], "nothing_left": "it is at its limit"}),
    ]
    tried = for_planner().attempts[0].model_copy(update={"plan": plans[0], "round": 3})
    assert chat.answer(for_planner(attempts=(tried,), round=4)) == ()
    complaints = [r["body"]["messages"][-1]["content"] for r in server.requests[2:]]
    assert "was tried from the same source in round 3" in complaints[0] and "base: '0123456789ab'" in complaints[1]


def test_plans_for_rules_name_rewrites(server: ModelServer, tmp_path: Path) -> None:
    rewrites = {"vectorise": "16-byte loads", "restrict_pointers": "no aliasing"}
    named = {**A_PLAN, "steps": ["restrict_pointers", "vectorise"]}
    server.script = [says(PLANS), says({"plans": [named], "nothing_left": ""})]
    (plan,) = policy(server, tmp_path, rewrites=rewrites).answer(for_planner())
    assert plan.steps == ("restrict_pointers", "vectorise")
    assert "- vectorise: 16-byte loads" in server.requests[0]["body"]["messages"][1]["content"]


def test_tester_only_adds_what_the_spec_allows(server: ModelServer, tmp_path: Path) -> None:
    def workload(rows: int, columns: int, dtype: str = "float16") -> dict:
        return {"axes": [{"axis": "rows", "size": rows}, {"axis": "columns", "size": columns}], "dtype": dtype}

    good = {
        "workloads": [workload(1, 1), workload(64, 4096), workload(512, 9999)],
        "values": [{"tensor": "y", "values": "zeros"}, {"tensor": "y", "values": "large"}],
        "reasons": "tails",
    }
    bad = [
        {**good, "workloads": [workload(1, 1, "float64")]},
        {**good, "values": [{"tensor": "rows", "values": "zeros"}]},
    ]
    server.script = [*map(says, bad), says(good)]
    answer = policy(server, tmp_path).answer(for_tester())
    assert [(w.label, w.timed, w.held_out) for w in answer.workloads] == [("float16 rows=1 columns=1", False, False)]
    assert answer.values == {"y": ("zeros",)}
    server.script = [says({**good, "workloads": [workload(1 << 30, 1 << 20)]}), *[Says("{}")] * 2]
    assert policy(server, tmp_path / "huge").answer(for_tester()).workloads == ()


def test_no_prompt_shows_a_held_out_workload(server: ModelServer, tmp_path: Path) -> None:
    server.script = [
        says({"workloads": [], "values": [], "reasons": ""}),
        says(FINDING),
        says(PLANS),
        Says(EDIT),
        Says(EDIT),
    ]
    chat = policy(server, tmp_path)
    chat.answer(for_tester())
    chat.answer(for_profiler())
    chat.answer(for_planner())
    chat.answer(for_coder())
    chat.answer(for_repair())
    assert len(server.requests) == 5
    assert str(HIDDEN.axes["columns"]) not in json.dumps([request["body"] for request in server.requests])


# Faults --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault",
    [
        Fails(429),
        Fails(500),
        Fails(503),
        Drops(),
        Drops(midway=True),
        Raw("{}"),
    ],
    ids=str,
)
def test_passing_faults_are_waited_out(server: ModelServer, tmp_path: Path, fault: object) -> None:
    said = Said()
    server.script = [fault, fault, says(FINDING)]
    chat = policy(server, tmp_path, say=said)
    assert chat.answer(for_profiler()).bound == "memory"
    streamed = isinstance(fault, Raw)  # the first of these is taken for a server that does not stream
    assert len(said.of("waiting")) == 2 - streamed and len(said.of("server")) == streamed
    assert chat.usage()["profiler"].calls == 1


def test_a_page_from_a_server_that_never_answered_names_the_address(server: ModelServer, tmp_path: Path) -> None:
    said = Said()
    server.script = [Raw("<html>Welcome to nginx</html>", "text/html"), says(FINDING)]
    chat = policy(server, tmp_path, say=said)
    with pytest.raises(
        PolicyPaused, match=r"a page or text instead of an answer: check OPENAI_BASE_URL, now http"
    ) as at:
        chat.answer(for_profiler())
    assert len(server.requests) == 1 and not said.of("waiting") and "object has no" not in str(at.value)


def test_a_page_from_a_server_that_has_answered_is_waited_out(server: ModelServer, tmp_path: Path) -> None:
    said = Said()
    page = Raw("<html>gateway</html>", "text/html")
    server.script = [says(PLANS), page, page, says(FINDING)]
    chat = policy(server, tmp_path, say=said)
    chat.answer(for_planner())
    assert chat.answer(for_profiler()).bound == "memory"
    assert len(said.of("waiting")) == 2


@pytest.mark.parametrize("body", [False, True], ids=["headers", "body"])
def test_a_server_that_sends_a_byte_now_and_then_is_not_waited_for_for_ever(
    server: ModelServer, tmp_path: Path, body: bool
) -> None:
    """It is never idle: only a bound on the whole answer ends it."""
    server.script = [Drips(body)]
    retries = FAST.model_copy(update={"attempts": 1, "timeout_s": 60.0, "answer_s": 0.5})
    with pytest.raises(PolicyPaused, match=r"did not finish its answer within 0\.5 s; tried once: resume"):
        policy(server, tmp_path, retries=retries).answer(for_coder())
    server.script = [Says(EDIT)]
    assert policy(server, tmp_path).answer(for_coder()).source == EDITED


@pytest.mark.parametrize("status", [404, 405])
def test_a_page_with_an_error_names_the_address_too(server: ModelServer, tmp_path: Path, status: int) -> None:
    server.script = [Fails(status, headers={"content-type": "text/html"})]
    with pytest.raises(PolicyPaused, match="check OPENAI_BASE_URL, now http"):
        policy(server, tmp_path).answer(for_coder())
    assert len(server.requests) == 1


# What a server does not know of a request ----------------------------------------------------------------------------


@pytest.mark.parametrize("interface", ["chat", "responses"])
@pytest.mark.parametrize(
    "first", [Says(EDIT, streams=False), Fails(400, "this relay does not stream")], ids=["a whole answer", "a refusal"]
)
def test_a_server_that_does_not_stream_is_asked_without(
    server: ModelServer, tmp_path: Path, interface: str, first: object
) -> None:
    said = Said()
    server.script = [first, Says(EDIT), says(FINDING)]
    chat = policy(server, tmp_path, interface=interface, say=said)
    assert chat.answer(for_coder()).source == EDITED and chat.answer(for_profiler()).bound == "memory"
    assert [bool(request["body"].get("stream")) for request in server.requests] == [True, False, False]
    (sentence,) = said.of("server")
    assert sentence.endswith("does not stream: it is waited for without a sign of life")


def test_a_server_that_knows_no_usage_of_streams(server: ModelServer, tmp_path: Path) -> None:
    said = Said()
    server.script = [Fails(422, "extra_forbidden: stream_options"), Says(EDIT)]
    chat = policy(server, tmp_path, say=said)
    assert chat.answer(for_coder()).source == EDITED and chat.usage()["coder"].tokens_in > 1000
    second = server.requests[1]["body"]
    assert second["stream"] and "stream_options" not in second and said.of("usage")


@pytest.mark.parametrize("interface", ["chat", "responses"])
def test_effort_is_asked_for_by_role(server: ModelServer, tmp_path: Path, interface: str) -> None:
    server.script = [
        Says(EDIT), says(FINDING), Fails(400, "Unsupported parameter: 'reasoning.effort'"), Says(EDIT),
    ]  # fmt: skip
    chat = policy(server, tmp_path, interface=interface, effort={"coder": "high"})
    chat.answer(for_coder())
    chat.answer(for_profiler())
    assert chat.answer(for_coder(plan=PLAN.model_copy(update={"title": "another"}))).source == EDITED
    bodies = [request["body"] for request in server.requests]
    effort = [body.get("reasoning_effort") or body.get("reasoning", {}).get("effort") for body in bodies]
    assert effort == ["high", None, "high", None]


def test_a_raised_limit_that_the_model_does_not_have_is_lowered_to_what_the_server_names(
    server: ModelServer, tmp_path: Path
) -> None:
    too_large = "max_completion_tokens is too large: 32000. This model supports at most 20000 completion tokens"
    server.script = [Says("", finish="length"), Fails(400, too_large), Says(EDIT)]
    assert policy(server, tmp_path).answer(for_coder()).source == EDITED
    assert [request["body"]["max_completion_tokens"] for request in server.requests] == [16_000, 32_000, 20_000]


def test_retry_after_is_honoured(server: ModelServer, tmp_path: Path) -> None:
    server.script = [
        Fails(429, headers={"retry-after-ms": "300"}),
        Fails(503, headers={"retry-after": "0.2"}),
        Says(EDIT),
    ]
    policy(server, tmp_path).answer(for_coder())
    times = [request["at"] for request in server.requests]
    assert times[1] - times[0] >= 0.3 and times[2] - times[1] >= 0.2


def test_a_wait_longer_than_the_bound_pauses_at_once(server: ModelServer, tmp_path: Path) -> None:
    server.script = [Fails(429, headers={"retry-after": "3600"})]
    with pytest.raises(PolicyPaused, match=r"busy \(HTTP 429\) and asks to wait 3600 s; tried once"):
        policy(server, tmp_path).answer(for_coder())


@pytest.mark.parametrize(
    ("fault", "sentence", "requests"),
    [
        (Fails(500), r"failed \(HTTP 500\); tried 3 times in .* resume when it is back", 3),
        (Drops(), "cannot be reached or dropped the connection; tried 3 times", 3),
        (Says(EDIT, after_s=1.0), r"did not answer within 0\.2 s; tried 3 times", 3),
        (Fails(401, f"Incorrect API key provided: {KEY}"), "refused the key .*check OPENAI_API_KEY", 1),
        (Fails(400, f"bad {KEY}"), r"refused the request \(HTTP 400\): bad \[key\]", 1),
        (Fails(404, "no"), "knows no model 'some-model'", 1),
        (Fails(429, "pay", code="insufficient_quota"), "no quota left", 1),
        (Fails(400, "too long", code="context_length_exceeded"), "the request is longer than some-model", 1),
    ],
)
def test_lasting_faults_pause_with_one_sentence(
    server: ModelServer, tmp_path: Path, fault: object, sentence: str, requests: int, logged
) -> None:
    logging.getLogger().setLevel(logging.DEBUG)
    server.script = [fault] * 3
    # Only a server that is slow on purpose may be too slow: a busy machine has needed 0.2 s for an honest 401.
    timeout_s = 0.2 if isinstance(fault, Says) else 20.0
    chat = policy(server, tmp_path, retries=FAST.model_copy(update={"timeout_s": timeout_s}))
    with pytest.raises(PolicyPaused, match=sentence) as caught:
        chat.answer(for_coder())
    assert len(server.requests) == requests
    assert "\n" not in str(caught.value)
    seen: BaseException | None = caught.value
    while seen is not None:  # whatever prints the chain must not find the key in it
        assert KEY not in "".join(traceback.format_exception(seen))
        seen = seen.__cause__ or seen.__context__
    assert KEY not in logged.text
    assert chat.usage() == {} and chat.transcript.exchanges() == ()
    # Later the server is back: the same request goes through.
    server.script = [Says(EDIT)] * 3
    assert chat.answer(for_coder()).source == EDITED


def test_server_that_is_down(tmp_path: Path) -> None:
    with model_server() as gone:
        pass
    with pytest.raises(PolicyPaused, match="cannot be reached"):
        policy(gone, tmp_path).answer(for_coder())


def test_key_reaches_neither_prompt_nor_transcript(server: ModelServer, tmp_path: Path) -> None:
    server.script = [Says(f"```json\n{json.dumps({**FINDING, 'summary': KEY})}\n```")]
    chat = policy(server, tmp_path)
    found = chat.answer(for_profiler(source=f"// {KEY}\n{SOURCE}"))
    assert found.summary == "[key]"
    assert KEY not in json.dumps(server.requests[0]["body"])
    assert KEY not in (tmp_path / "transcript.jsonl").read_text()
    assert KEY not in repr(vars(chat)) + repr(vars(chat._connection))


# Budget --------------------------------------------------------------------------------------------------------------


class Rules(RulesPolicy):
    def planner(self, request: object) -> tuple[Plan, ...]:
        return (PLAN,)

    def coder(self, request: object) -> CoderAnswer:
        return CoderAnswer(source="by rules")


def test_budget_stops_before_the_call_that_would_pass_it(server: ModelServer, tmp_path: Path) -> None:
    with pytest.raises(
        PolicyPaused, match=r"the token budget ends here: 0 tokens of 5,000 tokens .* resume with a larger"
    ):
        policy(server, tmp_path, tokens=5000).answer(for_coder())
    assert server.requests == []


def test_rules_take_over_when_the_budget_ends(server: ModelServer, tmp_path: Path) -> None:
    said = Said()
    server.script = [Says(EDIT, tokens=(3000, 2000)), says(PLANS, tokens=(9_000, 1_000))]
    spent = {"tester": Usage(calls=1, tokens_in=15_000, tokens_out=10_000, money_usd=0.1)}
    chat = policy(
        server, tmp_path, tokens=45_000, spent=spent, fallback=Rules(), say=said, answer_tokens={"coder": 10_000}
    )
    assert chat.answer(for_coder()).source == EDITED
    assert said.of("budget") == [], "25,000 and 5,000 of 45,000 are no 80 %"
    assert len(chat.answer(for_planner())) == 2
    assert said.of("budget") == ["80% of the token budget is used: 40,000 tokens of 45,000 tokens"]
    assert chat.answer(for_repair()).source == "by rules"
    assert chat.answer(for_planner(round=4)) == (PLAN,)
    assert len(server.requests) == 2 and len(said.of("budget")) == 2
    assert "rules answers from here on" in said.of("budget")[1]
    assert chat.usage()["coder"] == Usage(calls=1, tokens_in=3000, tokens_out=2000, money_usd=None)


def test_role_budget_ends_only_that_role(server: ModelServer, tmp_path: Path) -> None:
    server.script = [says(PLANS)]
    chat = policy(server, tmp_path, role_tokens={"coder": 100}, fallback=Rules())
    assert chat.answer(for_coder()).source == "by rules"
    assert len(chat.answer(for_planner())) == 2


def test_money_is_counted_from_the_users_table_and_held_back(server: ModelServer, tmp_path: Path) -> None:
    table = tmp_path / "prices.json"
    table.write_text('{"usd_per_million_tokens": {"some-model": {"input": 10, "output": 100}}}')
    server.script = [Says(EDIT, tokens=(1000, 1000))]
    chat = policy(server, tmp_path, prices=str(table), money_usd=0.2, answer_tokens={"coder": 1000})
    chat.answer(for_coder())
    assert chat.usage()["coder"].money_usd == pytest.approx(0.11)
    with pytest.raises(PolicyPaused, match=r"the money budget ends here: \$0.1100 of \$0.2000"):
        chat.answer(for_repair())
    assert len(server.requests) == 1


def test_unknown_price_says_so_and_counts_tokens(server: ModelServer, tmp_path: Path) -> None:
    said = Said()
    server.script = [Says(EDIT), Says(EDIT, tokens=None)]
    chat = policy(server, tmp_path, money_usd=1.0, say=said)
    chat.answer(for_coder())
    chat.answer(for_repair())
    assert said.of("price") == [
        "the price of some-model is not known: its tokens are counted, its money is not, "
        "so a money budget cannot hold it back"
    ]
    assert said.of("usage") == ["some-model's server reports no usage: tokens are estimated from the bytes"]
    assert chat.usage()["coder"].money_usd is None and chat.usage()["coder"].tokens_in > 1000


def test_calls_in_flight_are_reserved(server: ModelServer, tmp_path: Path) -> None:
    """Four at once where only one fits at a time: all are served, one after another, and none passes the limit."""
    server.script = [Says(EDIT, tokens=(100, 100), after_s=0.05) for _ in range(4)]
    chat = policy(server, tmp_path, tokens=14_000, answer_tokens={"coder": 8_000})
    threads = [
        threading.Thread(
            target=chat.coder, args=(for_coder(plan=PLAN.model_copy(update={"id": f"p{n}", "title": f"t{n}"})),)
        )
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    times = sorted(request["at"] for request in server.requests)
    assert len(times) == 4 and min(later - earlier for earlier, later in pairwise(times)) >= 0.04
    assert chat.usage()["coder"].calls == 4
    assert len(Transcript(tmp_path / "transcript.jsonl").exchanges()) == 4


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "is wrong at"),
        ('{"usd_per_million_tokens": {"m": {"input": -1, "output": 2}}}', r"m\.input"),
        (None, "cannot be read"),
    ],
)
def test_a_wrong_price_table_is_refused(server: ModelServer, tmp_path: Path, text: str | None, complaint: str) -> None:
    table = tmp_path / "prices.json"
    if text is not None:
        table.write_text(text)
    with pytest.raises(ValueError, match=complaint):
        policy(server, tmp_path, prices=str(table))


# The transcript ------------------------------------------------------------------------------------------------------


def test_a_resumed_run_pays_for_no_answer_twice(server: ModelServer, tmp_path: Path) -> None:
    server.script = [says({**FINDING, "bound": "x"}), says(FINDING), says(PLANS), Says(EDIT)]
    first = policy(server, tmp_path)
    answers = (first.answer(for_profiler()), first.answer(for_planner()), first.answer(for_coder()))
    assert len(server.requests) == 4

    again = policy(server, tmp_path, tokens=1)  # not even a budget is needed for what was paid
    assert (again.answer(for_profiler()), again.answer(for_planner()), again.answer(for_coder())) == answers
    assert len(server.requests) == 4 and again.usage() == {}
    assert again.transcript.usage() == first.usage(), "the transcript is the ledger that a kill cannot shorten"


def test_an_answer_is_on_the_disk_before_it_is_used(
    server: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is killed while it is looked at has paid for it once; written and not synced it may be lost all the same."""
    path, synced = tmp_path / "transcript.jsonl", [0]
    real = transcript.os.fsync

    def fsync(file: int) -> None:
        real(file)
        if stat.S_ISREG(os.fstat(file).st_mode):
            synced.append(os.fstat(file).st_size)

    monkeypatch.setattr(transcript.os, "fsync", fsync)
    server.script = [says(FINDING)]
    chat = policy(server, tmp_path)
    reply = chat._reply

    def killed(*given: object) -> None:
        reply(*given)
        assert path.read_bytes().endswith(b"\n") and synced[-1] == path.stat().st_size
        raise KeyboardInterrupt

    monkeypatch.setattr(chat, "_reply", killed)
    with pytest.raises(KeyboardInterrupt):
        chat.answer(for_profiler())
    assert policy(server, tmp_path).answer(for_profiler()).bound == "memory"
    assert len(server.requests) == 1


def test_the_ledger_counts_against_the_budget_after_a_kill(server: ModelServer, tmp_path: Path) -> None:
    server.script = [Says(EDIT, tokens=(50_000, 1))]
    policy(server, tmp_path).answer(for_coder())
    with pytest.raises(PolicyPaused, match="50,001 tokens of 60,000"):
        policy(server, tmp_path, spent={}, tokens=60_000).answer(for_repair())


def test_two_objects_may_write_one_file(server: ModelServer, tmp_path: Path) -> None:
    server.script = [says(FINDING), Says(EDIT), says(PLANS)]
    one, other = policy(server, tmp_path), policy(server, tmp_path)
    one.answer(for_profiler())
    other.answer(for_coder())
    one.answer(for_planner())
    roles = [exchange.question.role for exchange in Transcript(tmp_path / "transcript.jsonl").exchanges()]
    assert roles == ["profiler", "coder", "planner"]


@pytest.mark.parametrize("tail", ["half", "half and newline", "zeros and newline"])
def test_a_torn_last_line_is_cut_off(server: ModelServer, tmp_path: Path, tail: str) -> None:
    server.script = [says(FINDING), Says(EDIT)]
    chat = policy(server, tmp_path)
    chat.answer(for_profiler())
    path = tmp_path / "transcript.jsonl"
    whole = path.read_bytes()
    lost = bytes(50) if "zeros" in tail else whole[: len(whole) // 2]
    path.write_bytes(whole + lost + (b"\n" if "newline" in tail else b""))
    torn = policy(server, tmp_path)
    assert torn.answer(for_profiler()).bound == "memory"
    torn.answer(for_coder())
    lines = path.read_text().splitlines()
    assert [Exchange.model_validate_json(line).question.role for line in lines] == ["profiler", "coder"]


def test_a_damaged_line_in_the_middle_is_named(tmp_path: Path) -> None:
    path = tmp_path / "transcript.jsonl"
    path.write_text('{"key": 1}\n{"key": 2}\n')
    with pytest.raises(TranscriptDamaged, match="line 1 is not an exchange"):
        Transcript(path)


# The single agent ----------------------------------------------------------------------------------------------------

SINGLE = json.dumps({"format": "edit", "notes": "n", "bound": "latency", "plan": A_PLAN}) + EDIT[EDIT.index("\n") :]


def test_single_agent_plans_and_codes_in_one_answer(server: ModelServer, tmp_path: Path) -> None:
    server.script = [Says(SINGLE), Says(SINGLE.replace("wider loads", "another")), Says(EDIT)]
    chat = policy(server, tmp_path, agents="single")
    assert chat.answer(for_profiler()).bound == "unknown", "the figures only: no model is asked"
    plans = chat.answer(for_planner())
    assert [plan.title for plan in plans] == ["wider loads", "another"]
    assert "Choose something other than: wider loads" in server.requests[1]["body"]["messages"][1]["content"]
    assert chat.answer(for_coder(plan=plans[0])).source == EDITED
    resumed = policy(server, tmp_path, agents="single")
    assert resumed.answer(for_coder(plan=plans[1])).source == EDITED
    assert len(server.requests) == 2, "the code came with the plan, after a kill too"
    assert resumed.answer(for_repair(plan=plans[1])).source == EDITED
    assert len(server.requests) == 3 and set(chat.usage()) == {"planner"}


# Construction --------------------------------------------------------------------------------------------------------


def test_construction_refuses_what_cannot_work(server: ModelServer, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no model is named"):
        policy(server, tmp_path, models={})
    with pytest.raises(ValueError, match="must begin with http"):
        policy(server, tmp_path, base_url="localhost:8001")


def test_constructing_does_not_import_langchain() -> None:
    import subprocess
    import sys

    code = "import sys, nodes.policies.chat, nodes.policies.replay; sys.exit('openai' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


# The reviewer, and several coders -----------------------------------------------------------------------------------


def test_a_reviewer_of_another_model_agrees_or_says_why_not(server: ModelServer, tmp_path: Path) -> None:
    server.script = [
        says({"agrees": False, "reason": "The tail of odd rows is dropped."}), says({"agrees": True, "reason": ""}),
    ]  # fmt: skip
    chat = policy(server, tmp_path, models={"reviewer": "another-model"})
    assert chat.answer(for_review()).reason == "The tail of odd rows is dropped."
    assert chat.answer(for_review(source=OTHER)).agrees
    assert {request["body"]["model"] for request in server.requests} == {"another-model"}
    assert OTHER.strip() in server.requests[1]["body"]["messages"][1]["content"]
    assert chat.usage()["reviewer"].calls == 2


def test_an_objection_without_a_reason_is_asked_again_and_no_answer_lets_it_go_on(
    server: ModelServer, tmp_path: Path
) -> None:
    said = Said()
    server.script = [says({"agrees": False, "reason": " "})] * 3
    assert policy(server, tmp_path, models={"reviewer": "m"}, say=said).answer(for_review()).agrees
    assert len(server.requests) == 3 and "goes on unreviewed" in said.of("no answer")[0]


def test_on_a_plateau_another_model_takes_the_coders_place(server: ModelServer, tmp_path: Path) -> None:
    said = Said()
    server.script = [Says(EDIT)] * 4
    chat = policy(server, tmp_path, models={"coder": "first, second"}, say=said)
    for round_, stale in enumerate((0, 1, 2, 4), start=1):
        assert chat.answer(for_coder(round=round_, stale_rounds=stale)).source == EDITED
    assert [request["body"]["model"] for request in server.requests] == ["first", "second"]
    assert said.of("coder") == [
        "2 rounds without gain: second writes in round 3",
        "4 rounds without gain: first writes in round 4",
    ]
    kept = Transcript(tmp_path / "transcript.jsonl").exchanges()
    assert [exchange.model for exchange in kept] == ["first", "second"]
