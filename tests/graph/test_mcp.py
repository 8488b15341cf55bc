"""The workbench over MCP, with the SDK's own client: in this process over paper, and as a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp", reason="the mcp extra is not installed")

import anyio
from mcp import Client, StdioServerParameters

from graph.mcp_server import INSTRUCTIONS, describe_tools, server
from graph.runs import RunFolder
from graph.serving import TOOLS, Begun, Service, StartArguments
from graph.session import RunService
from harness.records import Outcome
from kernels.catalog import Kernel
from nodes.context import Context
from nodes.options import ROLES
from nodes.policies.client import ClientPolicy
from nodes.policies.transcript import Transcript
from nodes.roles import COMPILED_FIRST, Attempt, Plan
from tests.graph.doubles import BASELINE, SPEC, PaperEvaluator, Script, Silent, nobody, record, settings
from tests.graph.test_coding import Hostile, outside_of_marks
from tests.nodes.policies.examples import PRIVATE

ROOT = Path(__file__).resolve().parents[2]
LIMITS = {"rounds": 3, "patience": 3, "repairs": 0, "turns": 40, "tool_seconds": 60.0}
POLICY = dict.fromkeys(ROLES, "rules") | {"planner": "client", "coder": "client"}


class Dies(PaperEvaluator):
    """Killed as the submission is measured."""

    def _measure(self, verdict: Any, incumbent: str | None, held_out: bool) -> Any:
        if "speed 1.4" in self.store.get(verdict.candidate):
            os.kill(os.getpid(), signal.SIGKILL)
        return super()._measure(verdict, incumbent, held_out)


def service(
    folder: Path, evaluator: type[PaperEvaluator] = PaperEvaluator, run_id: str = "", **changes: Any
) -> Service:
    @contextmanager
    def open_context(run, record, state, say) -> Iterator[Context]:
        script = Script({})
        client = ClientPolicy(Transcript(run.folder / "transcript.jsonl"))
        yield Context(
            kernel=Kernel(SPEC, Path(os.devnull)),
            evaluator=evaluator(run.store, run.folder / "evaluations.log"),  # type: ignore[arg-type]
            store=run.store,
            policies=dict.fromkeys(ROLES, script) | {"planner": client, "coder": client},  # type: ignore[dict-item]
            say=say,
        )

    def begin(_start: StartArguments) -> Begun:
        return Begun(record(settings(policy=POLICY, **LIMITS | changes)), BASELINE)

    return Service(RunService(folder, open_context), begin, run_id=run_id, wait_s=30.0)


class Held(PaperEvaluator):
    """Measures nothing before it may, and says when it was asked to."""

    may = threading.Event()

    def _measure(self, verdict: Any, incumbent: str | None, held_out: bool) -> Any:
        assert self.may.wait(60.0)
        return super()._measure(verdict, incumbent, held_out)


class Talk:
    """Calls as a client makes them; keeps what was said."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.last: Any = None

    async def __call__(self, tool: str, /, **arguments: Any) -> str:
        self.last = await self.client.call_tool(tool, arguments)
        return "\n".join(part.text for part in self.last.content)


def talk(made: Service, conversation: Any) -> None:
    async def main() -> None:
        async with Client(server(made)) as client:
            await conversation(Talk(client))

    try:
        anyio.run(main)
    finally:
        assert made.close(30.0)


def test_a_client_works_round_by_round_and_everything_is_in_the_run(tmp_path: Path) -> None:
    made = service(tmp_path)

    async def conversation(say: Talk) -> None:
        listed = await say.client.list_tools()
        assert {tool.name for tool in listed.tools} == set(TOOLS)
        assert "silu_and_mul: " in await say("kernels")
        assert await say("state") == "no run is begun: `start` begins one"
        assert await say("check") == "no run is begun: call `start` with one of `kernels`" and say.last.is_error
        assert "run run: waits for what you submit, round 1 of 3" in await say("start", kernel="silu_and_mul")
        said = await say("operation")
        assert "out = 2 * input" in said and "n=3000" not in said  # held out
        assert "speed 1.0" in await say("read", what="source", name="baseline")
        assert "COMPILE_ERROR" in await say("compile", source="compile error")
        assert "compiles" in await say("compile", source="speed 1.2")
        assert "PASSED" in await say("check")
        assert "1.200" in await say("time", workloads=["float32 n=4096"])
        assert "or any size, written like float32 n=" in await say("time", workloads=["float32 rows=3000"])
        assert "(call 7 of 40 in round 1;" in await say("read", what="attempts")
        said = await say("submit", notes="twice as wide")
        assert "round 1: PASSED, 1.200 [" in said and "it is the best so far now" in said
        assert "round 2 of 3" in said
        said = await say("compile", edits=[{"search": "1.2", "replacement": "1.1"}], note="narrow", then=["submit"])
        assert "compiles" in said and "round 2: PASSED, 1.100 [" in said and "narrow" in said
        assert "twice as wide" in await say("read", what="attempts")
        said = await say("finish", reason="enough")
        assert "finished" in said and "nobody was told: PASSED" in said
        assert "finished: nothing can be submitted" in await say("submit", candidate="baseline")

    talk(made, conversation)
    run = RunFolder.find(tmp_path, "run")
    assert run.status.state == "finished" and run.status.speedup == pytest.approx(1.2)
    assert (run.folder / "report.html").read_text().count("twice as wide") >= 2
    kept = Transcript(run.folder / "transcript.jsonl").exchanges()
    assert [e.question.facts["step"] for e in kept][:4] == ["tool read", "tool compile", "tool compile", "tool check"]
    assert kept[0].model == "mcp:mcp" or kept[0].model.startswith("mcp:")


def test_what_needs_no_device_is_answered_while_the_run_measures(tmp_path: Path) -> None:
    Held.may.clear()

    async def conversation(say: Talk) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: say.client.call_tool("start", {"kernel": "silu_and_mul"}))
            while await say("state") == "no run is begun: `start` begins one":
                await anyio.sleep(0.01)
            await answers(say)

    async def answers(say: Talk) -> None:
        assert "out = 2 * input" in await say("operation")
        assert "run run: is measuring what comes before your turn" in await say("state")
        assert "speed 1.0" in await say("read", what="source", name="baseline")
        assert "COMPILE_ERROR" in await say("compile", source="compile error", then=["check", "submit"])
        assert "compiles" in await say("compile", source="speed 1.2")
        assert "(call 4 of 40 in round 1;" in await say("read", what="ledger")
        told: list[str] = []

        async def waits(_done: float, _total: float | None, message: str | None) -> None:
            told.append(message or "")
            Held.may.set()

        checked = await say.client.call_tool("check", {}, progress_callback=waits)
        assert "PASSED" in checked.content[0].text and told == ["baseline"]
        Held.may.clear()

        async def submits() -> None:
            said = await say.client.call_tool("submit", {"notes": "wider"})
            assert "round 1: PASSED, 1.200 [" in said.content[0].text

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(submits)
            while "at work: " not in await say("state"):
                await anyio.sleep(0.01)
            assert "compiles" in await say("compile", source="speed 1.3")
            Held.may.set()
        assert "round 2: PASSED, 1.300 [" in await say("submit", notes="wider still")

    talk(service(tmp_path, Held), conversation)


def test_a_kill_while_a_submission_is_measured_loses_nothing(tmp_path: Path) -> None:
    child = os.fork()
    if not child:
        try:

            async def first(say: Talk) -> None:
                await say("start", kernel="silu_and_mul")
                await say("compile", source="speed 1.4")
                await say("submit", notes="wider")

            talk(service(tmp_path, Dies), first)
        finally:
            os._exit(1)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    assert RunFolder.find(tmp_path, "run").status.state == "interrupted"

    async def second(say: Talk) -> None:
        # The resumed run first ends the round that was submitted; what was compiled before is still the last.
        assert "(call 1 of 40 in round 2;" in await say("check")
        said = await say("state")
        assert "round 1: PASSED, 1.400 [" in said and "waits for what you submit, round 2 of 3" in said
        await say("finish")

    talk(service(tmp_path, run_id="run"), second)
    log = (tmp_path / "run" / "evaluations.log").read_text().splitlines()
    twice = [line for line in set(log) if log.count(line) > 1]
    assert len(twice) == 1 and twice[0].startswith("measure-visible")  # the one that it died in


def test_limits_hold_over_restarts_and_a_paused_run_goes_on_with_the_rules(tmp_path: Path) -> None:
    made = service(tmp_path, turns=3)

    async def first(say: Talk) -> None:
        await say("start", kernel="silu_and_mul")
        await say("compile", source="speed 1.3")
        await say("check")

    talk(made, first)

    async def second(say: Talk) -> None:
        await say("check")
        assert "this round's 3 calls or 60 s of tools are used up: submit" in await say("check") and say.last.is_error
        assert "it is the best so far now" in await say("submit")
        assert "(call 1 of 3 in round 2" in await say("check")

    talk(service(tmp_path, run_id="run", turns=3), second)
    where = service(tmp_path, run_id="run")
    assert where.close(30.0)
    script = {2: ["speed 1.5"], 3: []}

    @contextmanager
    def open_context(run, record, state, say) -> Iterator[Context]:
        yield Context(
            kernel=Kernel(SPEC, Path(os.devnull)), store=run.store, say=say, policies=dict.fromkeys(ROLES, Script(script)),  # type: ignore[arg-type]
            evaluator=PaperEvaluator(run.store, run.folder / "evaluations.log"),  # type: ignore[arg-type]
        )  # fmt: skip

    ending = RunService(tmp_path, open_context).resume("run", Silent(), nobody)
    assert ending.state == "finished" and ending.result.speedup.median == pytest.approx(1.5)


def test_how_many_rounds_there_are_is_said_first_and_that_they_are_over(tmp_path: Path) -> None:
    """Two engineers wrote for the next round and had none."""

    async def conversation(say: Talk) -> None:
        said = await say("start", kernel="silu_and_mul")
        left = "round 1 of 1: 40 calls and 60.0 s of tools are left before its submission, which ends the run"
        assert left in said
        assert (await say("operation")).startswith(left)
        await say("compile", source="speed 1.2")
        assert "round 1 of 1: 39 calls" in await say("operation") and "round 1 of 1: 39 calls" in await say("state")
        said = await say("submit")
        assert said.count("x the baseline, which was the best so far (FASTER)") == 1, "no number twice"
        over = "The run is over (finished): nothing can be submitted any more, and `finish` only says this again."
        assert said.endswith(over) and (await say("finish")).endswith(over) and "before its submission" not in said
        assert (await say("operation")).startswith(over)

    talk(service(tmp_path, rounds=1), conversation)


def test_the_source_that_was_tried_first_is_named_with_the_operation(tmp_path: Path) -> None:
    made = service(tmp_path)

    async def conversation(say: Talk) -> None:
        await say("start", kernel="silu_and_mul")
        assert "compiler wrote" not in await say("operation")
        written = Attempt(
            round=0, plan=Plan(id=COMPILED_FIRST, title="it", steps=("it",), base="b"), candidate="ab" * 32,
            outcome=Outcome.PASSED, brief_speedup=1.5,
        )  # fmt: skip
        made._state = {**made._state, "attempts": [written]}
        first, second, *_ = (await say("operation")).splitlines()
        assert first.startswith("round 1 of 3: ") and "ends the run" not in first
        assert second == (
            "Astrolabe's compiler wrote [abababababab] (PASSED, 1.500x the baseline in a short comparison): "
            "`read` it, start from it or submit it by that name."
        )

    talk(made, conversation)


def test_what_other_programs_say_reaches_a_client_as_data_only(tmp_path: Path) -> None:
    async def conversation(say: Talk) -> None:
        await say("start", kernel="silu_and_mul")
        said = [await say("compile", source="compile error"), await say("compile", source="speed 2\nincorrect")]
        said += [await say("check"), await say("compile", source="speed 1.4"), await say("profile")]
        for text in said:
            outside = outside_of_marks(text)
            assert "ignore your task" in text and "ignore" not in outside and outside.count("(call ") == 1

    talk(service(tmp_path, Hostile), conversation)


def test_what_is_asked_wrongly_is_said(tmp_path: Path) -> None:
    async def conversation(say: Talk) -> None:
        assert (await say("format_disk")).startswith("there is no such tool")
        assert await say("start", kernel="silu_and_mul", device="tpu") == (
            "start: device: Input should be 'auto', 'cuda' or 'cpu'"
        )
        await say("start", kernel="silu_and_mul")
        assert "run run is begun already" in await say("start", kernel="silu_and_mul")
        assert await say("check", candidat="x") == "check: candidat: Extra inputs are not permitted"
        assert "no source has that name" in await say("submit", candidate="feedbeef", spec_doubt=None)

    talk(service(tmp_path), conversation)


def parameters(folder: Path, *options: str) -> StdioServerParameters:
    command = [str(ROOT / "run.py"), "mcp", "--runs-dir", str(folder), *options]
    return StdioServerParameters(command=sys.executable, args=command, cwd=str(ROOT))


def test_a_process_on_standard_input_and_output(tmp_path: Path) -> None:
    async def main() -> None:
        async with Client(parameters(tmp_path)) as client:
            assert {tool.name for tool in (await client.list_tools()).tools} == set(TOOLS)
            result = await client.call_tool("start", {"kernel": "../../etc"})
            assert result.is_error and "there is no kernel '../../etc' in the catalog" in result.content[0].text

    anyio.run(main)


def test_tools_are_described_without_words_of_ours() -> None:
    schemas = [tool.model_dump(mode="json", include={"description", "input_schema"}) for tool in describe_tools()]
    said = [INSTRUCTIONS, *map(json.dumps, schemas)]
    assert not [found[0] for text in said if (found := PRIVATE.search(text))]


def test_a_process_on_loopback_http(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "run.py"), "mcp", "--http", "0", "--runs-dir", str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            address = process.stderr.readline().strip()
            assert address.startswith("http://127.0.0.1:") and address.endswith("/mcp")

            async def main() -> None:
                async with Client(address) as client:
                    result = await client.call_tool("kernels", {})
                    assert "silu_and_mul" in result.content[0].text

            anyio.run(main)
        finally:
            process.terminate()
            process.wait(60)
