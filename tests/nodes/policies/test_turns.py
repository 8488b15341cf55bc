"""What stays in a conversation with tools, and what is said of a call that cannot be made."""

from __future__ import annotations

import json
import threading
from types import SimpleNamespace

from harness.records import Build
from nodes.coding import _refusal
from nodes.policies import turns
from nodes.roles import ToolCall, Turn
from nodes.workbench import shown
from nodes.workbench.arguments import SOURCE_CHARS, CheckArguments
from nodes.workbench.bench import Workbench
from nodes.workbench.results import ToolResult
from tests.nodes.policies.examples import CPU


def test_an_answer_of_megabytes_does_not_stay_in_the_conversation() -> None:
    huge = json.dumps({"source": "x" * 3_900_000})
    turn = Turn(
        name="n", text="y" * 900_000, calls=(ToolCall(id="c", name="compile", arguments=huge),), results=("no",)
    )
    before, _ = turns.split_messages((), (turn,))
    assert len(before[0].content) < 130_000 and len(before[0].calls[0].arguments) < 200
    assert "3900" in json.loads(before[0].calls[0].arguments)["left_out"]
    whole = json.dumps({"source": "x" * SOURCE_CHARS})
    fits = turn.model_copy(update={"text": "short", "calls": (ToolCall(id="c", name="compile", arguments=whole),)})
    (message,) = turns.split_messages((), (fits,))[0]
    assert (message.content, message.calls[0].arguments) == ("short", whole)


def test_arguments_that_were_cut_off_are_called_so() -> None:
    said = _refusal("read", '{"what": "sou', 0.0, 60.0)
    assert "no whole JSON" in said and "edits" in said and "Field required" not in said
    assert "what: Field required" in _refusal("read", "{}", 0.0, 60.0)


def test_the_compilers_own_headers_are_not_the_candidates_warnings() -> None:
    log = "/usr/lib/gcc/x86_64-linux-gnu/12/include/avx512fintrin.h:9: warning: 'y' is used\ncandidate.cpp:3:1: warning: mine"
    said = shown.describe_build(Build(candidate="ab" * 32, backend="cpu", ok=True, log=log), CPU)
    assert "mine" in said and "avx512fintrin" not in said


def test_who_waits_for_anothers_tool_is_not_charged_for_it() -> None:
    at_work, go_on = threading.Event(), threading.Event()
    bench = Workbench.__new__(Workbench)
    Workbench.__init__(bench, SimpleNamespace(), SimpleNamespace(), None, baseline="b", incumbent="b")  # type: ignore[arg-type]

    def check(asked: CheckArguments, _last: str) -> ToolResult:
        with bench._device:
            if asked.candidate == "first":
                at_work.set()
                go_on.wait(10)
        return ToolResult(text="")

    bench.check = check  # type: ignore[method-assign]
    first = threading.Thread(target=lambda: bench.check(CheckArguments(candidate="first"), ""))
    first.start()
    at_work.wait(10)
    threading.Timer(0.4, go_on.set).start()
    bench._call.waited_s = 0.0
    check(CheckArguments(candidate="second"), "")
    first.join()
    assert bench._call.waited_s > 0.2, "what it waited is known, and taken off"
