"""A run of `--policy chat` whose answers were written beforehand, by hand, for a machine where nobody can answer.

    python -m benchmarks.hand_answered --kernel silu_and_mul --device cuda [--kill-at coder.3] [--down-at planner.4] \\
        [-- options of run.py]

Starts a server on loopback that speaks OpenAI's protocol, starts `run.py` with it, and answers each request from the folder
`benchmarks/hand_answered/KERNEL/DEVICE` (or --answers), by role and round:

    tester.json  profiler.2.json  planner.2.json  coder.2.cu (a whole file) or coder.2.md (an answer as it is)
    profiler.json    where there is none for that round          coder.2.repair1.md    a repair; else repair.md

.json and .md are Jinja2 templates, because a finding quotes measurements that nobody knows beforehand. What they may name is
`facts(request)`; a name that is not there is an error. The same request gets the same answer.

`--kill-at STEP` kills the run with SIGKILL when it asks for that step, and resumes it. `--down-at STEP` drops that request and
takes the server down until the run has paused (exit code 75), then resumes it. Each once.

Where an answer is missing or the run refuses one (it asks again), that is said, and the command ends with 1 and the run
paused. Otherwise it ends as the run does.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined, TemplateError

from nodes.options import ROLES

ROOT = Path(__file__).resolve().parent.parent
PAUSED = 75
MIDWAY_S, MIDWAY_WAIT_S = 0.5, 60.0
"""From an answer on the disk to the kill, in which its tools begin; and how long it may take to get there."""
MOST_STARTS = 6
"""Of run.py for one run: the first, one after each fault, and a few for rate limits and the like."""


class Misfit(Exception):
    """No prepared answer fits. One sentence."""


def facts(user: str) -> dict[str, Any]:
    """What a template may quote from a request: its figures as they stand there.

    `timings`: rows with `workload`, `cache`, `time_us`, `light_us`, `light_percent`, `speedup`, lowest share of light first;
    `light_percent`, `speedup`: geometric means; `numbers`: the finding's, by name; `tried`: round -> the outcome's word;
    `source_of`: round -> the 12 digits of its candidate, "" where there is none; `incumbent`: 12 digits.
    """
    timings: list[dict[str, Any]] = []
    for line in user.splitlines():
        cells = [cell.strip() for cell in line.split(" | ")]
        if len(cells) >= 9 and cells[2] in {"cold", "hot"}:
            share = re.match(r"([\d.]+) %", cells[5])
            timings.append(
                {
                    "workload": cells[1],
                    "cache": cells[2],
                    "time_us": float(cells[3]),
                    "light_us": None if cells[4] == "-" else float(cells[4]),
                    "light_percent": float(share[1]) if share else None,
                    "speedup": float(cells[6].split()[0]),
                }
            )
    timings.sort(key=lambda row: row["light_percent"] or 1e9)
    tried = re.findall(r"^- round (\d+): (.*?)(?: \[([0-9a-f]{12})\])?: ([A-Z_]+)\b", user, re.MULTILINE)
    incumbent = re.search(r"^## The incumbent \(([0-9a-f]{12})\)", user, re.MULTILINE)
    return {
        "timings": timings,
        "light_percent": _mean([row["light_percent"] for row in timings if row["light_percent"]]),
        "speedup": _mean([row["speedup"] for row in timings]),
        "numbers": {n: float(v) for n, v in re.findall(r"^- (\w+) = ([-+.\de]+)$", user, re.MULTILINE)},
        "tried": {int(number): outcome for number, _, _, outcome in tried},
        "source_of": {int(number): digits for number, _, digits, _ in tried},
        "incumbent": incumbent[1] if incumbent else "",
    }


def _mean(figures: list[float]) -> float | None:
    """Geometric, three digits; None of nothing."""
    if not figures or min(figures) <= 0:
        return None
    product = 1.0
    for figure in figures:
        product *= figure ** (1 / len(figures))
    return round(product, 3)


@dataclass(frozen=True)
class Said:
    """One answer. `calls`: the tools that it calls, each by its name and arguments."""

    text: str
    calls: tuple[tuple[str, dict[str, Any]], ...] = ()


class Prepared:
    """The folder's answers, and which round the run is in: what the planner was last asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.round = 0
        self._given: dict[str, str] = {}
        self._templates = Environment(undefined=StrictUndefined, autoescape=False, keep_trailing_newline=True)
        if not folder.is_dir():
            raise Misfit(f"there is no folder of answers {folder}")

    def step(self, messages: list[dict[str, str]]) -> str:
        """Such as `coder.2.repair1`. Raises Misfit for a request that is asked again, or of no known role."""
        user, last = messages[1]["content"], messages[-1]["content"]
        role = next((r for r in ROLES if f"\nYou are the {r}. " in f"\n{user}"), "")
        if not role:
            raise Misfit(f"a request of no role that is known here: {user[:60]!r}")
        if role == "planner":
            found = re.search(r"^Round (\d+)\.", user, re.MULTILINE)
            if not found:
                raise Misfit("the planner's request names no round")
            self.round = int(found[1])
        repair = re.search(r"^## Repair (\d+)$", last, re.MULTILINE)
        number = self.round + 1 if role == "profiler" else self.round
        step = role if role == "tester" else f"{role}.{number}" + (f".repair{repair[1]}" if repair else "")
        if last.startswith("That answer cannot be used"):
            raise Misfit(f"the answer for {step} was refused: {last[:300]}")
        return step

    def said(self, step: str, messages: list[dict[str, Any]]) -> Said:
        return Said(self.answer(step, messages))

    def answer(self, step: str, messages: list[dict[str, str]]) -> str:
        asked = hashlib.sha256(json.dumps(messages).encode()).hexdigest()
        if asked not in self._given:
            self._given[asked] = self._read(step, messages[1]["content"])
        return self._given[asked]

    def _read(self, step: str, user: str) -> str:
        names = [step] + (["repair"] if ".repair" in step else ["profiler"] if step.startswith("profiler") else [])
        for name in names:
            for suffix in (".json", ".md"):
                path = self.folder / (name + suffix)
                if path.is_file():
                    try:
                        return self._templates.from_string(path.read_text()).render(facts(user))
                    except TemplateError as error:
                        raise Misfit(f"{path.name}: {error}") from None
            for suffix, language in ((".cu", "cuda"), (".cpp", "cpp")):
                path = self.folder / (name + suffix)
                if path.is_file():
                    header = json.dumps({"format": "file", "notes": f"prepared by hand as {path.name}"})
                    return f"{header}\n```{language}\n{path.read_text().rstrip()}\n```\n"
        raise Misfit(f"there is no answer for {step} in {self.folder}")


class Player:
    """The server. `process` is the run that it answers; `misfit` says why it gave up, "" while it has not."""

    def __init__(
        self,
        prepared: Prepared,
        kill_at: str = "",
        down_at: str = "",
        kill_in: str = "",
        transcript: Path | None = None,
    ) -> None:
        self.prepared, self.kill_at, self.down_at = prepared, kill_at, down_at
        self.kill_in, self.transcript = kill_in, transcript
        self.misfit = ""
        self.answered: list[tuple[str, int, int]] = []
        """Of each answer its step, the bytes of its request and its own."""
        self.process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._http: ThreadingHTTPServer | None = None
        self._going: threading.Thread | None = None
        self.port = 0

    def up(self) -> None:
        """Listens, on the port of the time before where there was one: a resumed run may know its server by it."""
        player = self

        class Door(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                pass

            def do_POST(self) -> None:
                player.serve(self)

        self._http = ThreadingHTTPServer(("127.0.0.1", self.port), Door)
        self._http.daemon_threads = True
        self.port = self._http.server_address[1]
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def down(self) -> None:
        if self._http is not None:
            self._http.shutdown()
            self._http.server_close()
            self._http = None

    def went_down(self) -> bool:
        """Whether the server went down since this was asked last; once it has, it is entirely."""
        going, self._going = self._going, None
        if going is not None:
            going.join()
        return going is not None

    def serve(self, door: BaseHTTPRequestHandler) -> None:
        raw = door.rfile.read(int(door.headers["content-length"]))
        body = json.loads(raw)
        messages = body.get("messages") or []
        with self._lock:
            try:
                step = self.prepared.step(messages)
                if self._fault(step):
                    door.close_connection = True
                    return
                said = self.prepared.said(step, messages)
            except Misfit as misfit:
                self.misfit = str(misfit)
                print(f"hand_answered: {self.misfit}", flush=True)
                _send(door, 400, json.dumps({"error": {"message": self.misfit, "type": "invalid_request_error"}}))
                return
            made = _completion(body, said)
            self.answered.append((step, len(raw), len(json.dumps(made))))
            if step == self.kill_in:
                self.kill_in = ""
                threading.Thread(target=self._kill_midway, args=(step, self._written()), daemon=True).start()
        called = ", ".join(name for name, _ in said.calls)
        print(f"hand_answered: {step} answered{f': {called}' if called else ''} ({len(raw):,} bytes asked)", flush=True)
        if body.get("stream"):
            _send(door, 200, _streamed(made), "text/event-stream")
        else:
            _send(door, 200, json.dumps(made))

    def _written(self) -> int:
        return self.transcript.stat().st_size if self.transcript is not None and self.transcript.exists() else 0

    def _kill_midway(self, step: str, written: int) -> None:
        """Kills the run while the tools of that answer are at work: the answer is on its disk, the next not asked for."""
        process, answered = self.process, len(self.answered)
        until = time.monotonic() + MIDWAY_WAIT_S
        while self._written() == written and time.monotonic() < until:
            time.sleep(0.02)
        time.sleep(MIDWAY_S)
        with self._lock:
            if self._written() == written or len(self.answered) != answered or process is None:
                self.misfit = f"the run could not be killed in the tools of {step}: they had ended, or never began"
                print(f"hand_answered: {self.misfit}", flush=True)
                return
            print(f"hand_answered: kill -9 while the tools of {step} are at work", flush=True)
            process.kill()

    def _fault(self, step: str) -> bool:
        """Whether this request gets no answer. A fault happens once."""
        if step == self.kill_at and self.process is not None:
            self.kill_at = ""
            print(f"hand_answered: kill -9 at {step}", flush=True)
            os.kill(self.process.pid, signal.SIGKILL)
            return True
        if step == self.down_at:
            self.down_at = ""
            print(f"hand_answered: the server goes down at {step}", flush=True)
            self._going = threading.Thread(target=self.down, daemon=True)  # not here: it waits for the requests' loop
            self._going.start()
            return True
        return False


def _completion(body: dict[str, Any], said: Said) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": said.text}
    if said.calls:
        message["tool_calls"] = [
            {"id": f"call_{at}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
            for at, (name, arguments) in enumerate(said.calls)
        ]
    asked = {key: body[key] for key in ("messages", "tools") if key in body}
    tokens_in, tokens_out = len(json.dumps(asked)) // 4, max(1, len(json.dumps(message)) // 4)
    return {
        "id": "chatcmpl-hand",
        "object": "chat.completion",
        "created": 0,
        "model": body.get("model", "hand"),
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls" if said.calls else "stop"}],
        "usage": {"prompt_tokens": tokens_in, "completion_tokens": tokens_out, "total_tokens": tokens_in + tokens_out},
    }


def _streamed(made: dict[str, Any]) -> str:
    """The same as the events of a stream: what is said, its end with the usage."""
    common = {key: made[key] for key in ("id", "created", "model")} | {"object": "chat.completion.chunk"}
    (whole,) = made["choices"]
    delta = dict(whole["message"])
    if "tool_calls" in delta:
        delta["tool_calls"] = [{"index": at, **call} for at, call in enumerate(delta["tool_calls"])]
    said = {"index": 0, "delta": delta, "finish_reason": None}
    ended = {"index": 0, "delta": {}, "finish_reason": whole["finish_reason"]}
    listed = [
        {**common, "choices": [said]},
        {**common, "choices": [ended]},
        {**common, "choices": [], "usage": made["usage"]},
    ]
    return "".join(f"data: {json.dumps(event)}\n\n" for event in listed) + "data: [DONE]\n\n"


def _send(door: BaseHTTPRequestHandler, status: int, text: str, kind: str = "application/json") -> None:
    data = text.encode()
    door.send_response(status)
    door.send_header("content-type", kind)
    door.send_header("content-length", str(len(data)))
    door.end_headers()
    door.wfile.write(data)


def play(player: Player, first: list[str], resume: list[str]) -> int:
    """Runs `first`, and `resume` for as long as a fault of ours ended it. The run's exit code, 1 where an answer was amiss."""
    player.up()
    key = os.environ.get("OPENAI_API_KEY", "written-by-hand")
    environment = os.environ | {"OPENAI_API_KEY": key, "OPENAI_BASE_URL": f"http://127.0.0.1:{player.port}/v1"}
    command = first
    try:
        for _ in range(MOST_STARTS):
            with subprocess.Popen(command, env=environment) as player.process:
                code = player.process.wait()
            print(f"hand_answered: the run ended with {code}", flush=True)
            if player.misfit:
                return 1
            down = player.went_down()
            if down:
                player.up()
            if code != -signal.SIGKILL and not (code == PAUSED and down):
                return code
            command = resume
        return 1
    finally:
        if not player.went_down():
            player.down()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options = common_options(parser)
    try:
        player = Player(
            Prepared(options.answers or folder_of(options, options.device)), options.kill_at, options.down_at
        )
    except Misfit as misfit:
        print(f"hand_answered: {misfit}", file=sys.stderr)
        return 2
    return play(player, *commands(options, "oneshot"))


def common_options(parser: argparse.ArgumentParser) -> argparse.Namespace:
    parser.add_argument("--kernel", required=True)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument(
        "--answers", type=Path, help="folder, another than the one below benchmarks/hand_answered/KERNEL"
    )
    parser.add_argument("--run-id", default="")
    parser.add_argument("--runs-dir", type=Path, default=ROOT / "runs")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kill-at", default="", metavar="STEP", help="such as coder.3")
    parser.add_argument("--down-at", default="", metavar="STEP")
    parser.add_argument("rest", nargs="*", help="options of run.py, after --")
    options = parser.parse_args()
    options.run_id = options.run_id or f"hand-{Path(options.kernel).name}-{options.device}"
    return options


def folder_of(options: argparse.Namespace, name: str) -> Path:
    return ROOT / "benchmarks" / "hand_answered" / Path(options.kernel).name / name


def commands(options: argparse.Namespace, coder: str) -> tuple[list[str], list[str]]:
    """What begins the run, and what resumes it."""
    runs = ["--runs-dir", str(options.runs_dir)]
    program = [sys.executable, str(ROOT / "run.py")]
    first = [
        *program, "--kernel", options.kernel, "--device", options.device, "--policy", "chat", "--model", "hand", "--coder", coder,
        "--rounds", str(options.rounds), "--run-id", options.run_id, *runs, *options.rest,
    ]  # fmt: skip
    return first, [*program, "resume", options.run_id, *runs]


if __name__ == "__main__":
    sys.exit(main())
