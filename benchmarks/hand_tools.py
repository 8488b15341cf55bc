"""The same as hand_answered.py with a coder that works through the tools: sources written beforehand, tried one after another.

    python -m benchmarks.hand_tools --kernel tests/inputs/tools/half_product --rounds 1 [--kill-in coder.1.turn2] [-- options]

The folder `benchmarks/hand_answered/KERNEL/tools` (or --answers) holds `tester.json`, `profiler.json` and `planner.1.json` as there, and
sources in the order of their names: `1.split.cu` a whole file, `4.blocks.json` edits of the source before it,

    {"text": "why", "edits": [{"search": "#define RING 3", "replacement": "#define RING 4"}]}

The coder compiles each, checks and times what compiles, looks at the machine code of the first that is right (`listing.txt`: part of a
function's name), profiles the fastest and submits it. What the tools say is printed; after a source that does not compile or is not
right it goes on with the next. An answer follows from its request alone, so a run that was killed and resumed is answered as if it had not
been.

`--kill-in STEP` kills the run with SIGKILL while the tools of that answer are at work, and resumes it. At the end: what was reached,
turns, calls, and the sizes of all requests.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.hand_answered import Misfit, Player, Prepared, Said, commands, common_options, folder_of, play

BUILT = re.compile(r"^\[([0-9a-f]{12})\] compiles\b")
RIGHT = re.compile(r"^\[[0-9a-f]{12}\] PASSED\b")
TIMED = re.compile(r"^\[[0-9a-f]{12}\] a short (?:contest|comparison)\b")
SPEEDUP = re.compile(r"\| ([\d.]+) \[[\d.]+, [\d.]+\](?: [A-Z]+)? \| ")
"""Of a timing's line: over the baseline, its interval behind it."""


SHOWN_LINES = 70


@dataclass(frozen=True)
class Called:
    """A tool that was called, and what it said."""

    name: str
    arguments: dict[str, Any]
    result: str


def called(messages: list[dict[str, Any]]) -> list[Called]:
    said = {m["tool_call_id"]: m["content"] for m in messages if m["role"] == "tool"}
    calls = [call for m in messages if m["role"] == "assistant" for call in m.get("tool_calls") or ()]
    return [Called(c["function"]["name"], json.loads(c["function"]["arguments"]), said[c["id"]]) for c in calls]


class Through(Prepared):
    """The folder's answers, the coder's among them as a conversation with tools."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.shown = 0
        """Results of tools that were printed."""
        self.sources = sorted(path for path in folder.glob("[0-9]*") if path.suffix in {".cu", ".cpp", ".json"})
        if not self.sources:
            raise Misfit(f"there is no source 1.*.cu, 1.*.cpp in {folder}")

    def step(self, messages: list[dict[str, Any]]) -> str:
        step = super().step(messages)
        turns = sum(message["role"] == "assistant" for message in messages)
        return f"{step}.turn{turns + 1}" if step.startswith("coder") else step

    def said(self, step: str, messages: list[dict[str, Any]]) -> Said:
        if not step.startswith("coder"):
            return super().said(step, messages)
        done = called(messages)
        for one in done[self.shown :]:
            said = "\n".join(one.result.splitlines()[:SHOWN_LINES])
            print(f"hand_tools: {one.name} before {step} said:\n{said}", flush=True)
        self.shown = len(done)
        return self.next(done)

    def next(self, done: list[Called]) -> Said:
        """What a coder does after these calls."""
        compiled = [BUILT.match(one.result) for one in done if one.name == "compile"]
        if done and done[-1].name == "compile" and compiled[-1]:
            name = compiled[-1][1]
            return Said("", (("check", {"candidate": name}), ("time", {"candidate": name})))
        right = speedups(done)
        if right and not any(one.name == "profile" for one in done):
            name, function = next(iter(right)), (self.folder / "listing.txt").read_text().strip()
            return Said(
                "What its inner loop was compiled to.", (("profile", {"candidate": name, "function": function}),)
            )
        if len(compiled) < len(self.sources):
            return self._compile(self.sources[len(compiled)])
        sent = {one.arguments.get("candidate") for one in done if one.name == "submit"}
        left = {name: speedup for name, speedup in right.items() if name not in sent}
        if not left:
            return Said("", (("submit", {"none": "none of the prepared sources is right and was not refused"}),))
        best = max(left, key=lambda name: left[name])
        if not any(one.name == "profile" and one.arguments == {"candidate": best} for one in done):
            return Said("The fastest of them, under the profiler.", (("profile", {"candidate": best}),))
        return Said("", (("submit", {"candidate": best, "notes": f"{left[best]:.2f}x in the short contests"}),))

    def _compile(self, path: Path) -> Said:
        text = path.read_text()
        if path.suffix == ".json":
            edits = json.loads(text)
            return Said(edits["text"], (("compile", {"edits": edits["edits"]}),))
        why = " ".join(line.removeprefix("//").strip() for line in re.match(r"(?://.*\n)*", text)[0].splitlines())  # type: ignore[index]
        return Said(why, (("compile", {"source": text}),))


def speedups(done: list[Called]) -> dict[str, float]:
    """Of each candidate that was timed, over the baseline: the geometric mean of its short comparison."""
    found = {}
    for one in done:
        figures = (
            [float(figure) for figure in SPEEDUP.findall(one.result)]
            if one.name == "time" and TIMED.match(one.result)
            else []
        )
        if figures:
            found[one.arguments["candidate"]] = math.exp(sum(map(math.log, figures)) / len(figures))
    return found


def summary(run: Path, player: Player) -> str:
    """What was reached, by workload and by attempt, and what was asked for."""
    result = json.loads((run / "result.json").read_text())
    lines = ["workload | held out | cache | baseline us | best us | speedup | light us | % of the roofline"]
    for row in result["workloads"]:
        light, label = row["light"], f"{row['dtype']} " + " ".join(f"{k}={v}" for k, v in row["axes"].items())
        share = f"{light['us']:.2f} | {100 * light['us'] / row['best_us']:.0f}" if light else "- | -"
        lines.append(
            f"{label} | {row['held_out']} | {row['cache']} {row['company']} | {row['baseline_us']:.2f} | {row['best_us']:.2f} | "
            f"{row['speedup']['median']:.2f} | {share}"
        )
    for attempt in result["attempts"]:
        lines.append(
            f"round {attempt['round']}: {attempt['outcome']}, accepted {attempt['accepted']}, {attempt['turns']} turns, "
            f"tools {attempt['tools']}, {attempt['seconds']:.0f} s"
        )
    lines += [f"{step}: {asked:,} bytes asked, {answered:,} answered" for step, asked, answered in player.answered]
    twice = [step for step, times in Counter(step for step, *_ in player.answered).items() if times > 1]
    lines.append(f"asked twice: {', '.join(twice) or 'nothing'}; tokens {result['spent']}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kill-in", default="", metavar="STEP", help="such as coder.1.turn2")
    options = common_options(parser)
    run = options.runs_dir / options.run_id
    try:
        prepared = Through(options.answers or folder_of(options, "tools"))
    except Misfit as misfit:
        print(f"hand_tools: {misfit}", file=sys.stderr)
        return 2
    player = Player(prepared, options.kill_at, options.down_at, options.kill_in, run / "transcript.jsonl")
    code = play(player, *commands(options, "tools"))
    if (run / "result.json").exists():
        print(summary(run, player), flush=True)
    if options.kill_in and player.kill_in:
        print(f"hand_tools: {options.kill_in} never came, so nothing was killed", flush=True)
        return 1
    return code


if __name__ == "__main__":
    sys.exit(main())
