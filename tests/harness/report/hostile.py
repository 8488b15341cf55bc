"""Text as a hostile candidate or model would write it, and a Result that has it in every free field."""

from __future__ import annotations

from harness.report.html import ExchangeView
from harness.report.result import Result
from tests.harness.report.example import BASELINE, RESULT

PAYLOAD = (
    "</style></title></pre><script>alert(1)</script><img src=x onerror=alert(1)>\"' onload=alert(1) {{ 7*7 }} {% raw %}"
    "\x1b[2J\x1b]0;owned\x07\x9b31m\x00\u202ereversed\u2066 ]]><!-- -->&lt;[bold red]markup[/]"
)


def hostile_result() -> Result:
    record = RESULT.model_dump()
    for field in (
        "run_id",
        "kernel",
        "summary",
        "device_name",
        "policy",
        "baseline",
        "stop_reason",
        "error",
        "command",
    ):
        record[field] = PAYLOAD
    record |= {"held_out_reason": PAYLOAD, "commit": PAYLOAD, "facts": None}
    record |= {"sandbox": [PAYLOAD], "notices": [PAYLOAD], "warnings": [PAYLOAD], "measured": {PAYLOAD: PAYLOAD}}
    record["finding"] = {"bound": PAYLOAD, "summary": PAYLOAD, "probes": {PAYLOAD: {PAYLOAD: PAYLOAD}}}
    record["finding"]["probes"] |= {"ncu": {"unavailable": PAYLOAD}}
    record["versions"] = dict.fromkeys(record["versions"], PAYLOAD)
    for attempt in record["attempts"]:
        attempt |= {"reason": PAYLOAD, "tuned": {PAYLOAD: 1}}
        attempt["plan"] |= {"id": PAYLOAD, "title": PAYLOAD, "rationale": PAYLOAD, "steps": [PAYLOAD]}
    for row in record["workloads"]:
        row |= {"axes": {PAYLOAD: 3}, "note": PAYLOAD}
    return Result.model_validate(record)


HOSTILE_SOURCE = BASELINE + f"// {PAYLOAD}\n/* {PAYLOAD}\n"
HOSTILE_TRANSCRIPT = (ExchangeView(PAYLOAD, PAYLOAD, PAYLOAD, PAYLOAD, PAYLOAD),)


def dangerous(text: str) -> list[str]:
    """Control characters and bidirectional overrides that are left in a text."""
    return [repr(c) for c in text if (ord(c) < 32 and c not in "\n\t") or 0x7F <= ord(c) < 0xA0 or c in "\u202e\u2066"]
