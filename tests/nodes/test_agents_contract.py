"""What an agent's file, prompt, rules and lines of the graph must hold for all else to follow from them."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from graph.draw import parts
from graph.live import NODES as DISPLAYED
from graph.request import RunRequest
from graph.workflow import NODES, build
from harness.options import add_options
from nodes import agents
from nodes.policies.client import ClientPolicy
from nodes.policies.render import PROMPTS
from nodes.policies.rules import RulesPolicy
from nodes.policies.transcript import Question, Transcript
from nodes.roles import AgentRequest
from tests.nodes.policies.examples import for_profiler, for_review, for_tester


@pytest.mark.parametrize("role", agents.NAMES)
def test_an_agent_is_known_wherever_agents_are(role: str, tmp_path: Path) -> None:
    agent = agents.load(role)
    drawn = {node.name: node.kind for node in parts(build())[0]}
    assert set(agent.nodes) <= {node.__name__ for node in NODES}
    assert all(drawn[node] == "agent" and DISPLAYED[node] == doing for node, doing in agent.nodes.items())

    asked = [request for request in _requests(AgentRequest) if request.role == role]
    assert len(asked) == 1, "one record says what it is asked"
    assert f"You are the {role}. " in (PROMPTS / f"{role}.md").read_text()
    assert callable(getattr(RulesPolicy, role, None))
    assert callable(agent.prompt)

    parser = argparse.ArgumentParser()
    add_options(parser, RunRequest)
    given = [f"--policy-{role}=rules", f"--model-{role}=m", f"--tokens-{role}=9", f"--answer-tokens-{role}=9"]
    read = RunRequest.model_validate(vars(parser.parse_args(["--kernel=k", *given])))
    assert (read.role_policy, read.chat.models, read.budget.role_tokens) == ({role: "rules"}, {role: "m"}, {role: 9})
    assert Question(role=role, messages=(), wants="").role == role


@pytest.mark.parametrize("request_", [for_tester(), for_profiler(), for_review()])
def test_where_nobody_is_asked_there_is_an_answer_all_the_same(request_: AgentRequest, tmp_path: Path) -> None:
    client = ClientPolicy(Transcript(tmp_path / "transcript.jsonl"))
    assert type(client.answer(request_)) is type(RulesPolicy().answer(request_))


def _requests(base: type) -> list[type]:
    found = [base] if "role" in base.__dict__ else []
    return found + [one for sub in base.__subclasses__() for one in _requests(sub)]
