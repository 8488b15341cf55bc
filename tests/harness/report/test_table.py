import io
import re

import pytest
from rich.console import Console

from harness.report.result import Result
from harness.report.table import RunLine, print_attempts, print_result, print_runs
from tests.harness.report.example import RESULT
from tests.harness.report.hostile import PAYLOAD, dangerous, hostile_result


def printed(show, what, width=None):
    out = io.StringIO()
    show(
        what,
        Console(file=out, width=width, force_terminal=width is not None, color_system="standard" if width else None),
    )
    return out.getvalue()


def plain(text):
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)


def test_the_end_of_a_run_has_every_workload_and_held_out_ones_apart():
    text = printed(print_result, RESULT)
    assert "\x1b" not in text, "plain where it is no terminal"
    visible, held_out = text.split("Held out: no agent saw these")
    assert "16384 × 14336" in visible and "16384 × 14336" not in held_out
    line = next(line for line in visible.splitlines() if "16384 × 14336 float16" in line)
    assert line.split() == [
        "16384",
        "×",
        "14336",
        "float16",
        "cold",
        "545",
        "331",
        "1.65×",
        "1.62–1.67",
        "FASTER",
        "97",
        "%",
    ]
    assert "SLOWER" in visible and "SAME" in visible and "4096 × 11008" in held_out
    assert "1.31× (interval 1.29 – 1.33) against the production baseline" in held_out
    assert f"worst {min(row.speedup.median for row in RESULT.rows(held_out=False)):.2f}×" in held_out


def test_a_terminal_of_80_columns_shows_every_number():
    wide, narrow = printed(print_result, RESULT), plain(printed(print_result, RESULT, 80))
    assert max(map(len, narrow.splitlines())) <= 80
    for number in re.findall(r"\d+\.\d+× \d+\.\d+–\d+\.\d+", wide):
        assert number in narrow


def test_attempts_say_what_became_of_them():
    text = " ".join(printed(print_attempts, RESULT).split())
    for said in ("PASSED, kept", "INCORRECT", "COMPILE_ERROR", "1.27×", "BLOCK=512", "__pipeline_memcpy_asink"):
        assert said in text


UNTRIED = {"best": RESULT.source, "comparison": "SAME", "attempts": (), "policies": {"planner": "rules"}}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"best": RESULT.source, "comparison": "SAME"}, "No improvement found"),
        ({"status": "failed", "best": "", "error": "the worker is gone"}, "the worker is gone"),
        (
            {"held_out_outcome": "INCORRECT", "held_out_reason": "NaN at 3"},
            "does not hold: NaN at 3",
        ),
        ({"held_out_comparison": "SLOWER"}, "Slower than the baseline on held-out workloads"),
        (UNTRIED, "None of the offline optimiser's rewrites fits this source; --policy chat"),
    ],
)
def test_bad_ends_are_said(change, said):
    text = printed(print_result, Result.model_validate(RESULT.model_dump() | change))
    assert said in text
    improved = "held_out_outcome" in change or "held_out_comparison" in change
    assert ("1.31× (interval" in text) is improved


@pytest.mark.parametrize(
    "change", [{"attempts": RESULT.attempts}, {"policies": {"planner": "chat"}}, {"status": "stopped"}]
)
def test_a_model_is_named_where_no_rule_applied_at_all(change):
    assert "fits this source" not in printed(
        print_result, Result.model_validate(RESULT.model_dump() | UNTRIED | change)
    )


def test_runs():
    text = printed(print_runs, [RunLine("a-run", "silu_and_mul", "cpu", "rules", "running", 2, 5, 1.204)])
    assert "a-run silu_and_mul cpu rules 2/5 1.20× running" in " ".join(text.split())


@pytest.mark.parametrize("width", [None, 100])
def test_hostile_text_reaches_no_terminal(width):
    run = RunLine(PAYLOAD, PAYLOAD, PAYLOAD, PAYLOAD, PAYLOAD, 1, 2, started=PAYLOAD)
    text = printed(print_result, hostile_result(), width) + printed(print_runs, [run], width)
    assert not dangerous(re.sub(r"\x1b\[[0-9;]*m", "", text)), "rich's own colours are the only escapes"
    assert "[bold red]" in "".join(text.split("\n")) or width, "markup is text"
