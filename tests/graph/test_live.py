import io
import os
import pty
import re
import select
import signal
import time
from pathlib import Path

import pytest
from rich.console import Console

from graph.campaign import CampaignEntry
from graph.campaign_live import CampaignDisplay
from graph.live import LiveDisplay, PlainDisplay, budget_left, display
from harness.records import Check, Comparison, DeviceFacts, Interval, Suite, Timing, Verdict
from harness.report.fast_p import Solved
from harness.report.result import WorkloadRow
from kernels.spec import Workload
from nodes.roles import Attempt, Finding, Plan, Usage
from nodes.state import Incumbent, Settings, Spent, State, Stop
from tests import forked
from tests.harness.report.hostile import PAYLOAD, dangerous

REPOSITORY = Path(__file__).parents[2]
RULES = {"tester": "rules", "profiler": "rules", "planner": "chat", "coder": "rules"}


def settings(**more):
    return Settings(
        run_id="r1", kernel="silu_and_mul", device="cuda", policy=RULES, baseline="production", source="0" * 64, **more
    )


def timing(light_us: float) -> Timing:
    faster = Interval(median=1.27, low=1.25, high=1.29)
    return Timing(
        workload=Workload(axes={"tokens": 8}, dtype="float16"), cache="cold", baseline_us=127.0, time_us=100.0,
        speedup=faster, comparison=Comparison.FASTER, light_us=light_us, samples=9,
    )  # fmt: skip


def verdict(median: float) -> Verdict:
    return Verdict(
        candidate="1" * 64,
        kernel="silu_and_mul",
        device="cuda",
        outcome="PASSED",
        checks=(Check(workload="w", name="ordinary", passed=True),),
        timings=(timing(44.0),) if median > 1 else (timing(6.0),),
        suite=Suite(
            speedup=Interval(median=median, low=median - 0.02, high=median + 0.02), comparison=Comparison.FASTER
        ),
    )


def attempt(round_: int, title: str, outcome: str, speedup: float | None = None, reason: str = "") -> Attempt:
    plan = Plan(id=f"p{round_}", title=title, steps=("x",))
    return Attempt(round=round_, plan=plan, outcome=outcome, speedup=speedup, accepted=bool(speedup), reason=reason)


def state(**more) -> State:
    whole: State = {
        "settings": settings(seconds=120, tokens=50_000),
        "device": DeviceFacts(
            device="cuda", name="NVIDIA H200", architecture="sm_90", units=132, last_level_cache_bytes=1
        ),
        "baseline": verdict(1.0),
        "incumbent": Incumbent(candidate="1" * 64, verdict=verdict(1.27), round=2),
        "round": 3,
        "finding": Finding(bound="latency", summary="waits for loads", light_fraction=0.06),
        "attempts": [
            attempt(1, "Fast exponential", "PASSED", 1.04),
            attempt(2, "Sixteen bytes a load", "PASSED", 1.27),
            attempt(3, "Two tokens a block", "INCORRECT", reason="41.3 times the tolerance"),
        ],
        "spent": Spent(seconds=40, usage={"planner": Usage(calls=3, tokens_in=9_000, tokens_out=2_000)}),
    }
    return {**whole, **more}


def terminal(width: int = 110) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=width, height=40, color_system=None)


def shown(view: LiveDisplay) -> str:
    console = terminal(view.console.width)
    console.print(view.panel())
    return console.file.getvalue()


def test_the_panel_says_where_the_run_is():
    with LiveDisplay(terminal(), ("Device cuda: a GPU is there.",)) as view:
        view.state(state())
        view.node_started("measure")
        view.say("measure", "workload 3 of 14")
        time.sleep(0.12)
        text = shown(view)
    for said in (
        "silu_and_mul", "NVIDIA H200", "planner=chat, others rules", "production", "Device cuda: a GPU is there.",
        "round 3 of 5", "1.27× (1.25 – 1.29), round 2", "44 % of speed of light", "measure", "0.1 s",
        "workload 3 of 14", "Two tokens a block", "INCORRECT", "2 more rounds", "of 2 min 00 s",
        "39,000 of 50,000 tokens",
        "Ctrl-C",
    ):  # fmt: skip
        assert said in text, said


def test_the_panel_has_a_line_a_worker_and_of_many_the_busy_ones():
    view = LiveDisplay(terminal())
    try:
        view.workers = lambda: [
            ("host gpu 0", "idle"),
            ("host gpu 1", "measure silu_and_mul: timing"),
            ("other gpu 0", "set aside: full"),
        ]
        lines = shown(view).splitlines()
        busy = [line for line in lines if "host gpu 1" in line]
        assert len(busy) == 1 and "measure silu_and_mul" in busy[0]
        assert any("set aside: full" in line for line in lines) and any("host gpu 0  idle" in line for line in lines)
        view.workers = lambda: [(f"host gpu {n}", "idle" if n else "timing") for n in range(1000)]
        text = shown(view)
        assert text.count("host gpu") < 20 and "host gpu 0  timing" in text and "999 of 1000 workers idle" in text
    finally:
        view.close()


def test_the_row_that_gains_least_is_named_where_there_are_several():
    slower = timing(6.0).model_copy(update={"speedup": Interval(median=0.28, low=0.2, high=0.3), "cache": "hot"})
    least = WorkloadRow.worst_of([timing(6.0), slower])
    assert least is not None and (least.cache, least.speedup.median) == ("hot", 0.28)
    assert WorkloadRow.worst_of([slower]) is None


def test_a_long_word_of_progress_cuts_neither_the_node_nor_its_clock():
    with LiveDisplay(terminal(80)) as view:
        view.state(state())
        view.node_started("held_out")
        view.say("harness", "measuring the speed of light at bfloat16 tokens=100 hidden=2816, cold")
        view.active["held_out"] -= 84
        assert "held_out 1 min 24 s measuring the speed of light at" in shown(view)
        view.node_finished("held_out")
        assert "finishing" in shown(view) and "starting" not in shown(view)


@pytest.mark.parametrize("width", [20, 40, 80, 300])
def test_the_panel_fits_any_width(width):
    with LiveDisplay(terminal(width)) as view:
        view.state(state())
        view.node_started("measure")
        view.say("x", "word " * 200)
        assert max(map(len, shown(view).splitlines())) <= width


def test_the_clock_ticks_while_a_node_works_and_says_nothing():
    console = terminal()
    with LiveDisplay(console) as view:
        view.node_started("verify")
        time.sleep(0.9)
        text = console.file.getvalue()
    assert len(set(re.findall(r"verify .*?(\d\.\d s)", text))) >= 3


def test_the_terminal_is_given_back():
    console = terminal()
    with pytest.raises(KeyboardInterrupt), LiveDisplay(console):
        raise KeyboardInterrupt
    assert (
        console.file.getvalue().endswith("\x1b[?25h") or "\x1b[?25h" in console.file.getvalue().split("\x1b[?25l")[-1]
    )


def test_a_question_has_the_terminal_for_itself():
    console = terminal()
    with LiveDisplay(console) as view:
        view.node_started("approve_plans")
        with view.paused():
            before = console.file.getvalue()
            view.say("while", "paused")
            time.sleep(0.6)
            assert console.file.getvalue() == before
        time.sleep(0.4)
        assert len(console.file.getvalue()) > len(before)


def test_plain_lines_say_each_thing_once():
    out = io.StringIO()
    with PlainDisplay(out, ("Policy rules: no key is set.",)) as view:
        view.node_started("verify")
        time.sleep(0.06)
        view.node_finished("verify")
        view.node_started("approve_plans")
        view.node_finished("approve_plans")
        view.state(state())
        view.state(state())
        view.state(state(stop=Stop.PLATEAU, held_out=verdict(1.2), disqualified="fails on held-out"))
    text = out.getvalue()
    assert "\x1b" not in text and "approve_plans" not in text
    for said in (
        "Policy rules: no key is set.", "verify", "INCORRECT", "kept", "1.27× (1.25 – 1.29)", "waits for loads",
        "plateau", "fails on held-out", "1.20× (1.18 – 1.22)", "2 min 00 s", "50,000 tokens",
    ):  # fmt: skip
        assert text.count(said) == 1 or said in ("kept", "verify"), said


def test_plain_lines_do_not_fall_silent():
    out = io.StringIO()
    with PlainDisplay(out, quiet_s=0.05) as view:
        wait_for(lambda: "still at work       starting" in out.getvalue())
        view.say("harness", "checking float32 n=7")  # of `evaluate`, which has no nodes
        wait_for(lambda: "still at work       checking float32 n=7" in out.getvalue())
        view.node_started("coder")
        view.say("asking", "a-model at localhost")
        wait_for(lambda: re.search(r"still at work +coder for [\d.]+ s: a-model at localhost", out.getvalue()))
        with view.paused():  # the person thinks, and the terminal is theirs
            before = out.getvalue()
            time.sleep(0.3)
            assert out.getvalue() == before
    before = out.getvalue()
    time.sleep(0.3)
    assert out.getvalue() == before


def wait_for(true) -> None:
    for _ in range(500):
        if true():
            return
        time.sleep(0.02)
    pytest.fail("it did not come")


def test_a_flood_of_progress_is_one_line():
    out = io.StringIO()
    view = PlainDisplay(out)
    for n in range(500):
        view.say("harness", f"checking {n}")
    view.say("budget", "80 % of the tokens are spent")
    assert out.getvalue().count("checking") == 1 and "80 %" in out.getvalue()
    with LiveDisplay(terminal()) as live:
        live.node_started("verify")
        live.say("budget", "80 % of the tokens are spent")
        for n in range(500):
            live.say("harness", f"checking {n}")
        text = shown(live)
        live.node_started("measure")
    assert "checking 499" in text and "checking 498" not in text and "80 %" in text
    assert "checking 499" not in shown(live), "what the node before was doing is over"


@pytest.mark.parametrize(
    ("limits", "usage", "left"),
    [
        ({}, {}, ""),
        ({"seconds": 100}, {}, "1 min 00 s of 1 min 40 s"),
        ({"seconds": 30}, {}, "0.0 s of 30 s"),
        ({"tokens": 1000}, {"planner": Usage(tokens_in=300, tokens_out=100)}, "600 of 1,000 tokens"),
        ({"money_usd": 2.0}, {"planner": Usage(money_usd=0.5)}, "$1.50 of $2.00"),
        ({"money_usd": 2.0}, {"planner": Usage(money_usd=None)}, "money unknown"),
    ],
)
def test_budget_left(limits, usage, left):
    said = budget_left(settings(**limits), Spent(seconds=40, usage=usage))
    assert left in said and bool(said) == bool(limits)


@pytest.mark.parametrize("live_one", [True, False])
def test_hostile_text_is_inert(live_one):
    hostile = state(
        attempts=[attempt(1, PAYLOAD, "COMPILE_ERROR", reason=PAYLOAD * 500)],
        finding=Finding(bound="unknown", summary=PAYLOAD),
        settings=settings().model_copy(update={"kernel": PAYLOAD, "baseline": PAYLOAD, "run_id": PAYLOAD}),
    )
    console = terminal()
    view = LiveDisplay(console, (PAYLOAD,)) if live_one else PlainDisplay(console.file, (PAYLOAD,))
    with view:
        view.state(hostile)
        view.node_started(PAYLOAD)
        view.say(PAYLOAD, PAYLOAD)
        view.node_finished(PAYLOAD)
        text = shown(view) if live_one else console.file.getvalue()
    assert not dangerous(text)
    assert "script" in text and len(text) < 20_000


class Closed(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")


def test_a_closed_pipe_turns_the_display_off_and_nothing_else(capsys):
    view = PlainDisplay(Closed())
    for _ in range(3):
        view.say("a", "b")
        view.state(state())
        view.node_started("verify")
        view.node_finished("verify")
    view.close()
    assert capsys.readouterr().err.count("the display is off") == 1


def test_a_terminal_that_cannot_be_written_is_no_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")  # makes rich take any file for a terminal
    with display(stdout=io.StringIO()) as works:
        assert isinstance(works, LiveDisplay)
    view = display(stdout=Closed())
    assert isinstance(view, PlainDisplay)
    view.say("a", "b")
    view.close()


def test_a_bug_in_the_panel_is_shown_not_raised(monkeypatch):
    console = terminal()
    with LiveDisplay(console) as view:
        monkeypatch.setattr(view, "panel", lambda: 1 / 0)
        time.sleep(0.5)
        view.say("still", "here")
    assert "the run goes on" in console.file.getvalue()
    assert not view.broken


PROGRAM = """
import signal, sys, time
from graph.live import display
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
with display(json="--json" in sys.argv, why=("why this",)) as view:
    view.node_started("tester")
    view.say("tester", "one workload")
    if "--print" in sys.argv:
        print("printed inside", flush=True)
    time.sleep(float(sys.argv[1]))
    view.node_finished("tester")
print('{"a": 1}')
"""


def in_a_terminal(
    arguments: list[str], interrupt_after: float | None = None, stdout: Path | None = None
) -> tuple[str, int]:
    """Runs PROGRAM with a pseudo terminal as its output; what it wrote there, and its exit status."""
    to_file = f"import os\nos.dup2(os.open({str(stdout)!r}, os.O_WRONLY | os.O_CREAT), 1)\n" if stdout else ""
    ours, theirs = pty.openpty()
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"}
    process = forked.Program(to_file + PROGRAM, *arguments, environment=environment, terminal=theirs)
    os.close(theirs)
    data, deadline, waiting = b"", time.monotonic() + 60, interrupt_after is not None
    while time.monotonic() < deadline:
        readable, _, _ = select.select([ours], [], [], 0.05)
        if readable:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # EIO: the other end is closed
                break
            if not piece:
                break
            data += piece
        if waiting and b"tester" in data:
            time.sleep(interrupt_after or 0)
            process.send_signal(signal.SIGINT)
            waiting = False
    os.close(ours)
    return data.decode(), process.wait(30)


def test_with_json_what_is_printed_meanwhile_stays_on_standard_output(tmp_path):
    text, _ = in_a_terminal(["0.3", "--json", "--print"], stdout=tmp_path / "out")
    assert "\x1b[?25l" in text and "printed" not in text
    assert (tmp_path / "out").read_text() == 'printed inside\n{"a": 1}\n'


def test_ctrl_c_gives_the_cursor_back():
    text, status = in_a_terminal(["30"], interrupt_after=0.3)
    assert status != 0
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")
    assert "KeyboardInterrupt" in text


def test_a_campaign_says_a_whole_reason_and_how_a_gain_compares(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "60")
    out = io.StringIO()
    shown = CampaignDisplay(2, [], out, live=False)
    reason = "x.py is no problem: " + " ".join(f"word{number}" for number in range(60)) + " (line 3)"
    unfit = Solved(level=1, number=1, name="x", correct=False)
    slow = Solved(level=1, number=2, name="y", correct=True, speedup={"eager": Interval(median=0.5, low=0.4, high=0.6)})
    shown.record_end(CampaignEntry(id="x", path="x.py", state="unfit", reason=reason, solved=unfit))
    shown.record_end(CampaignEntry(id="y", path="y.py", state="done", outcome="PASSED", solved=slow))
    said = " ".join(out.getvalue().split())
    assert f"unfit: {reason} (" in said and "PASSED, slower 0.50" in said
    assert max(map(len, out.getvalue().splitlines())) <= 60
