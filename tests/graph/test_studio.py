"""The graph as LangGraph's server has it: configured by plain values, stopped anywhere, edited, forked, gone on with."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from graph.studio import StudioRequest, restore_records, studio
from nodes.state import Incumbent, Settings, State
from tests.test_run import BASELINE, REFERENCE, SPEC

REPOSITORY = Path(__file__).resolve().parents[2]
pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed"),
    pytest.mark.usefixtures("short_run"),
]


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    folder = tmp_path / "twice"
    folder.mkdir()
    for name, text in (("spec.py", SPEC), ("reference.py", REFERENCE), ("baseline.cpp", BASELINE)):
        (folder / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return {"kernel": str(folder), "device": "cpu", "rounds": 1, "tune_seconds": 0}


def thread(name: str = "t") -> dict[str, Any]:
    return {"configurable": {"thread_id": name}}


def values(snapshot: Any) -> State:
    """Under the strict serialiser a saver that knows no types gives dicts, as a person's edits do."""
    return restore_records(snapshot.values)


def test_a_run_is_stepped_edited_and_forked(asked: dict[str, Any], tmp_path: Path) -> None:
    graph = studio().copy(update={"checkpointer": InMemorySaver()})  # as the server does
    graph.invoke({}, thread(), context=asked | {"rounds": 0}, interrupt_before=["held_out"])
    state = graph.get_state(thread())
    assert state.next == ("held_out",) and values(state)["settings"].stop.rounds == 0
    assert values(state)["incumbent"].verdict.timings
    # What a person edits in Studio comes back as JSON, and no context goes with it.
    settings = values(state)["settings"].model_dump(mode="json")
    forked = graph.update_state(state.config, {"settings": settings | {"rounds": 2}})
    graph.invoke(None, forked)
    ended = graph.get_state(thread())
    assert not ended.next and values(ended)["settings"].stop.rounds == 2
    # The first way is still there, and goes on by itself.
    graph.invoke(None, state.config)
    assert values(graph.get_state(thread()))["settings"].stop.rounds == 0
    assert not list(tmp_path.glob("runs/*/run.json"))


def test_a_person_answers_and_edits_attempts(asked: dict[str, Any]) -> None:
    graph = studio().copy(update={"checkpointer": InMemorySaver()})
    graph.invoke({}, thread(), context=asked | {"approve": "plans"})
    (question,) = graph.get_state(thread()).interrupts
    assert question.value["kind"] == "plan"
    graph.invoke(Command(resume="no: not this one"), thread())
    (attempt,) = values(graph.get_state(thread()))["attempts"]
    assert (attempt.outcome, attempt.reason) == ("REFUSED", "refused by the person: not this one")
    before = next(s for s in graph.get_state_history(thread()) if s.next == ("held_out",))
    graph.update_state(before.config, {"attempts": [attempt.model_dump(mode="json") | {"reason": "mine"}]})
    (again,) = values(graph.get_state(thread()))["attempts"]
    assert again.reason == "mine"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kernel": "silu_and_mull"}, "did you mean silu_and_mul"),
        ({"dtype": ["int3"]}, "has no dtype int3"),
        ({"policy": "chat"}, "needs a key in OPENAI_API_KEY"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_kept(
    asked: dict[str, Any], change: dict[str, Any], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    graph = studio().copy(update={"checkpointer": InMemorySaver()})
    with pytest.raises(ValueError, match=said):
        graph.invoke({}, thread(), context=asked | change)
    assert not (tmp_path / "runs").exists()


def test_an_edit_that_does_not_fit_is_one_sentence() -> None:
    with pytest.raises(
        ValueError, match="edited so that it does not fit: round: Input should be a valid integer"
    ) as said:
        restore_records({"round": "many"})  # type: ignore[typeddict-item]
    assert "\n" not in str(said.value)


def test_the_coders_turns_are_listed_with_schemas_as_studio_asks_for_them() -> None:
    ((name, turns),) = studio().get_subgraphs(recurse=True)
    assert name == "coder" and {"model", "tools"} <= set(turns.nodes)
    assert turns.get_input_jsonschema()["properties"].keys() >= {"draft", "messages"}
    turns.get_output_jsonschema(), turns.get_context_jsonschema()


def test_its_configuration_has_a_schema() -> None:
    graph = studio()
    assert "kernel" in graph.get_context_jsonschema()["properties"]
    assert "incumbent" in json.dumps(graph.get_output_jsonschema())
    with pytest.raises(ValueError, match="rounds"):
        StudioRequest.model_validate({"rounds": -1})


# --- langgraph dev -------------------------------------------------------------------------------------------------


@pytest.fixture
def server(asked: dict[str, Any], tmp_path: Path) -> Iterator[httpx.Client]:
    """`langgraph dev` on the repository's langgraph.json, in a folder of its own, on loopback."""
    pytest.importorskip("langgraph_api", reason="the studio extra is not installed: pip install -e '.[studio]'")
    config = json.loads((REPOSITORY / "langgraph.json").read_text())
    graphs = {name: str(REPOSITORY / where.removeprefix("./")) for name, where in config["graphs"].items()}
    (tmp_path / "langgraph.json").write_text(json.dumps(config | {"graphs": graphs, "dependencies": [str(REPOSITORY)]}))
    with contextlib.closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        str(Path(sys.executable).with_name("langgraph")),
        "dev",
        "--no-browser",
        "--no-reload",
        "--port",
        str(port),
    ]
    quiet = {"LANGSMITH_TRACING": "false", "LANGGRAPH_CLI_NO_ANALYTICS": "1", "PYTHONPATH": str(REPOSITORY)}
    log = tmp_path / "server.log"
    with log.open("w") as out:
        process = subprocess.Popen(command, cwd=tmp_path, env=os.environ | quiet, stdout=out, stderr=out)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=200, trust_env=False) as client:
            for _ in range(600):
                with contextlib.suppress(httpx.TransportError):
                    if client.get("/ok").status_code == 200:
                        break
                assert process.poll() is None, log.read_text()[-2000:]
                time.sleep(0.1)
            yield client
    finally:
        process.terminate()
        process.wait(30)


def answer(response: httpx.Response) -> Any:
    assert response.status_code == 200, response.text[:500]
    return response.json()


@pytest.mark.slow
def test_studio_steps_through_a_run(server: httpx.Client, asked: dict[str, Any]) -> None:
    assistant = answer(server.post("/assistants/search", json={}))[0]["assistant_id"]
    schemas = answer(server.get(f"/assistants/{assistant}/schemas"))
    assert "kernel" in schemas["context_schema"]["properties"]
    drawn = answer(server.get(f"/assistants/{assistant}/graph"))
    assert {"tester", "held_out"} <= {node["id"] for node in drawn["nodes"]}

    at = f"/threads/{answer(server.post('/threads', json={}))['thread_id']}"
    begin = {"assistant_id": assistant, "input": {}, "context": asked, "interrupt_before": ["profiler"]}
    answer(server.post(f"{at}/runs/wait", json=begin))
    state = answer(server.get(f"{at}/state"))
    assert state["next"] == ["profiler"] and state["values"]["baseline"]["outcome"] == "PASSED"
    Settings.model_validate(state["values"]["settings"])
    Incumbent.model_validate(state["values"]["incumbent"])

    # One node, then the next.
    answer(server.post(f"{at}/runs/wait", json={"assistant_id": assistant, "input": None, "interrupt_after": "*"}))
    assert answer(server.get(f"{at}/state"))["next"] == ["planner"]

    # A fork from before the profiler, with more rounds, goes on to its end.
    history = answer(server.post(f"{at}/history", json={"limit": 50}))
    point = next(one for one in history if one["next"] == ["profiler"])
    edited = {"settings": point["values"]["settings"] | {"rounds": 2, "patience": 2, "light_fraction": 1.5}}
    answer(server.post(f"{at}/state", json={"values": edited, "checkpoint": point["checkpoint"]}))
    answer(server.post(f"{at}/runs/wait", json={"assistant_id": assistant, "input": None}))
    ended = answer(server.get(f"{at}/state"))
    assert ended["next"] == [] and ended["values"]["attempts"][0]["round"] == 1
    assert ended["values"]["stop"] in ("rounds", "nothing left to try")

    wrong = begin | {"context": asked | {"kernel": "silu_and_mull"}}
    other = f"/threads/{answer(server.post('/threads', json={}))['thread_id']}"
    assert "did you mean silu_and_mul" in server.post(f"{other}/runs/wait", json=wrong).text
